"""The CUDA device on a CUDA runtime for tests, whose streams run in random legal order (tests/fake_cuda).

The device, the swapper and the host pool are the real ones. Freed memory is overwritten in the order of its stream, so
a wait that is missing reads or leaves wrong bytes; each kind of wait is also left out on purpose, and must be missed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from training import ROOT, child

BUILD = ROOT / "build"

# Who waits for whom; see Note [Order on a GPU] in csrc/device/cuda/cuda_device.h.
WAITS = {
    "copies out wait for what compute wrote": ("out", "lane"),
    "copies in wait for who used the memory before": ("in", "lane"),
    "a block goes back behind the copy out": ("lane", "out"),
    "compute waits for the copy in": ("lane", "in"),
    "a block goes back behind those that read it on other streams": ("lane", "lane"),
    "the host waits for the copy in": ("host", "in"),
}


@cache
def fake_library() -> Path:
    """Builds it where it has changed."""
    if not (BUILD / "build.ninja").exists():
        pytest.skip("the core has not been built here with CMake: run `make build`")
    done = subprocess.run(
        ["cmake", "--build", str(BUILD), "--target", "fake_cuda"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    library = BUILD / "fake_cuda" / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not library.exists():
        pytest.skip("CUDA's headers were not found: install nvidia-cuda-runtime and nvidia-cuda-crt")
    return library


def on_fake_gpu(code: str, timeout_s: float = 120.0) -> Any:
    """Run code in a process whose chameleon_lab has the fake GPU, as ``fake``; returns the JSON of its last line."""
    load = f"""
        import sys, json
        from importlib.machinery import ExtensionFileLoader
        from importlib.util import module_from_spec, spec_from_loader
        import torch

        def load(name):
            loader = ExtensionFileLoader(name, {str(fake_library())!r})
            module = module_from_spec(spec_from_loader(name, loader))
            sys.modules[name] = module
            loader.exec_module(module)
            return module

        load("chameleon_lab._C")
        fake = load("_fake_cuda")
        fake.install()
    """
    lines = child(code, timeout_s=timeout_s, first=load).stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else None


def programs(
    seed: int, count: int, drop: tuple[str, str] | None = None, first_error: bool = False
) -> dict[str, Any]:
    """Random programs of toy kernels, each with its own lanes and capacity."""
    return on_fake_gpu(f"""
        import random
        from collections import Counter
        draw = random.Random({seed})
        total, errors = Counter(), []
        for number in range({count}):
            seed = draw.getrandbits(60)
            lanes, capacity = draw.choice([1, 1, 2, 3]), draw.choice([16, 24, 40, 80]) * 1024
            found = fake.run(seed, lanes, capacity, 300, {[drop] if drop else []!r})
            errors += [f"seed {{seed}}, {{lanes}} lanes, {{capacity}} bytes: {{e}}" for e in found.pop("errors")]
            total.update(found, programs=1)
            if {first_error} and errors:
                break
        print(json.dumps(dict(total) | {{"errors": errors[:10]}}))
    """)


def test_every_legal_order_reads_the_right_bytes() -> None:
    seed = random.SystemRandom().getrandbits(32)
    found = programs(seed, 1500)
    assert found["errors"] == [], f"seed {seed}"
    # The programs do what they are there for.
    assert found["kernels"] > 20 * found["programs"]
    assert found["copies_out"] > 10 * found["programs"] and found["copies_in"] > 10 * found["programs"]
    assert found["dropped"] == 0


@pytest.mark.parametrize("what", WAITS)
def test_a_missing_wait_is_seen(what: str) -> None:
    found = programs(random.SystemRandom().getrandbits(32), 3000, WAITS[what], first_error=True)
    assert found["dropped"] > 0, "the device never waits like that"
    assert found["errors"], (
        f"{found['programs']} programs ran without an error although no wait of this kind took place"
    )


def test_sessions_on_the_fake_gpu_give_the_same_bits() -> None:
    found = on_fake_gpu("""
        results = {}
        bare, live_peak = reference(Gpt, adamw, 6, Loop(clip=True))
        fake.start(random_seed := int.from_bytes(os.urandom(4), "little"))
        for part in (2, 4, 8):
            for planning in (True, False):
                capacity = live_peak // part
                run = train(
                    Gpt, adamw, 6, {"capacity": capacity, "min_swap": "2KiB", "device": "cuda", "planning": planning},
                    loop=Loop(clip=True),
                )
                results[f"1/{part} planning {planning}"] = {
                    "same": run.same(bare),
                    "within": run.report.peak_bytes <= capacity,
                    "moved": run.report.history[-1].swapped_out_bytes,
                    "stall_known": all(step.stall_s >= 0 for step in run.report.history),
                    "matched": run.report.match_rate,
                    "device": run.report.device,
                    "planned": len(run.report.plans),
                    "pinned": fake.pinned_bytes(),
                    "seed": random_seed,
                }
        print(json.dumps(results))
    """)
    for case, result in found.items():
        assert result["same"], f"{case}: {result}"
        assert result["within"] and result["moved"] > 0, f"{case}: {result}"
        assert result["device"] == "cuda:0"
        assert result["pinned"] == 0, f"{case}: pinned memory outlives the session"
        assert result["planned"] >= 1


def test_ops_are_timed_on_the_device_all_at_first_and_then_a_few() -> None:
    found = on_fake_gpu("""
        fake.start(int.from_bytes(os.urandom(4), "little"))
        _, live_peak = reference(Gpt, adamw, 6)
        timed, stages = [], []

        def look(number, model, session):
            if session is None or number == 0:
                return
            core.logs()[-1].wait()
            step = session.trace().last
            known = np.isfinite(step.ops.device_s)
            assert (step.ops.device_s[known] >= 0).all()
            timed.append((int(known.sum()), np.flatnonzero(known)[:1].tolist(), len(step.ops)))
            stages.append(step.session_stage)

        run = train(Gpt, adamw, 8, {"capacity": live_peak // 2, "device": "cuda"}, each_step=look)
        print(json.dumps({"timed": timed, "stages": stages}))
    """)
    profiled = [
        timed for timed, stage in zip(found["timed"], found["stages"], strict=True) if stage != "Stable"
    ]
    stable = [
        timed for timed, stage in zip(found["timed"], found["stages"], strict=True) if stage == "Stable"
    ]
    assert profiled and stable
    assert all(count == ops for count, _, ops in profiled)
    assert all(0 < count < ops / 2 for count, _, ops in stable)
    assert len({tuple(first) for _, first, _ in stable}) > 1, "others each time"


def test_replays_on_the_fake_gpu_give_the_same_bits() -> None:
    found = on_fake_gpu("""
        results = {}
        fake.start(random_seed := int.from_bytes(os.urandom(4), "little"))
        core.measure_link = lambda: (32 * MiB, 32 * MiB)  # so slow that replays are worth their while
        cl.Link.under_load = lambda link, step: link
        for name, model in {"gpt": Gpt, "moe": Moe}.items():
            bare, live_peak = reference(model, adamw, 6)
            capacity = int(0.6 * live_peak)
            kwargs = {"capacity": capacity, "min_swap": "2KiB", "device": "cuda"}
            run = train(model, adamw, 6, kwargs)
            results[name] = {
                "same": run.same(bare),
                "within": run.report.peak_bytes <= capacity,
                "replays": sum(step.replays for step in run.report.history),
                "seed": random_seed,
            }
        print(json.dumps(results))
    """)
    for case, result in found.items():
        assert result["same"] and result["within"] and result["replays"] > 0, f"{case}: {result}"


def test_replays_of_single_ops_on_the_fake_gpu_give_the_same_bits() -> None:
    found = on_fake_gpu("""
        from replay_cases import CASES, SMALL, count_replays
        fake.start(random_seed := int.from_bytes(os.urandom(4), "little"))
        count = count_replays("cuda", SMALL, CASES[::3])
        print(json.dumps({
            "seed": random_seed, "different": count.different, "unseen": count.unseen,
            "replayed": sum(count.replayed.values()),
        }))
    """)
    assert found["different"] == found["unseen"] == [], found
    assert found["replayed"] > 100


@pytest.mark.parametrize("what", ["a block goes back behind the copy out", "compute waits for the copy in"])
def test_a_session_without_a_wait_is_caught(what: str) -> None:
    waiter, source = WAITS[what]
    found = on_fake_gpu(f"""
        bare, live_peak = reference(Gpt, adamw, 4)
        caught = False
        for seed in range(6):
            fake.start(seed)
            fake.drop({waiter!r}, {source!r})
            try:
                run = train(Gpt, adamw, 4, {{"capacity": live_peak // 4, "min_swap": "2KiB", "device": "cuda"}})
                caught = not run.same(bare)
            except Exception as error:
                caught = True
            if caught:
                break
        print(json.dumps({{"caught": caught, "dropped": fake.dropped()}}))
    """)
    assert found["caught"] and found["dropped"] > 0


def test_what_does_not_fit_back_is_still_readable() -> None:
    found = on_fake_gpu("""
        held = [torch.full((MiB // 4,), 0.0) for _ in range(4)]
        with cl.Session("6MiB", device="cuda", min_swap="2KiB") as session:
            held += [torch.full((MiB // 4,), float(number)) for number in range(4, 24)]
            fake.set_total_bytes(8 << 20)
        away = sum(core.residency(t) == "away" for t in held)
        sums = [float(t[0] + t[-1]) for t in held]
        with cl.Session("6MiB", device="cuda", min_swap="2KiB") as session:
            again = [float(t[0] + t[-1]) for t in held]
            fake.set_total_bytes(1 << 36)
        here = {core.residency(t) for t in held}
        print(json.dumps({"away": away, "sums": sums, "again": again, "here": sorted(map(str, here))}))
    """)
    assert found["away"] > 8, "everything fitted: the case tests nothing"
    assert found["sums"] == found["again"] == [0.0] * 4 + [2.0 * number for number in range(4, 24)]
    assert found["here"] == ["None"], "a session that could bring everything back still holds something"


def test_without_pinned_memory_it_goes_on_with_a_warning() -> None:
    found = on_fake_gpu("""
        import warnings
        bare, live_peak = reference(Gpt, adamw, 4)
        fake.limit_pinned(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run = train(Gpt, adamw, 4, {"capacity": live_peak // 3, "min_swap": "2KiB", "device": "cuda"})
        texts = [str(w.message).splitlines()[0] for w in caught]
        print(json.dumps({"same": run.same(bare), "warned": [t for t in texts if "pinned" in t]}))
    """)
    assert found["same"]
    assert len(found["warned"]) == 1 and "ulimit -l" in found["warned"][0]


def test_host_capacity_bounds_pinned_memory() -> None:
    found = on_fake_gpu("""
        held, most = [], 0
        failure = None
        try:
            with cl.Session("4MiB", device="cuda", host_capacity="6MiB") as session:
                for number in range(32):
                    held.append(torch.full((MiB // 4,), float(number)))
                    most = max(most, fake.pinned_bytes())
        except cl.ChameleonError as error:
            failure = str(error)
        except RuntimeError as error:
            failure = str(error)
        print(json.dumps({"most": most, "failure": failure, "held": [float(t[0]) for t in held]}))
    """)
    assert 0 < found["most"] <= 6 << 20
    assert "host_capacity" in found["failure"]
    assert found["held"] == [float(number) for number in range(len(found["held"]))]


def test_tensors_are_taken_over_and_handed_back_without_a_copy() -> None:
    found = on_fake_gpu("""
        model = torch.nn.Linear(256, 256)
        before = [p.untyped_storage().data_ptr() for p in model.parameters()]
        with cl.Session("64MiB", device="cuda") as session:
            session.adopt(model)
            inside = [session.where(p) for p in model.parameters()]
            counted = core.counters()["resident_bytes"]
        after = [p.untyped_storage().data_ptr() for p in model.parameters()]
        print(json.dumps({"same": before == after, "inside": inside, "counted": counted}))
    """)
    assert found["same"] and found["inside"] == ["resident", "resident"]
    assert found["counted"] >= 256 * 257 * 4


def test_what_a_gpu_session_refuses() -> None:
    found = on_fake_gpu("""
        said = {}
        for name, arguments in {
            "link": {"device": "cuda", "link": "8GiB/s"},
            "second": {"device": "cuda:7"},
            "nonsense": {"device": "gpu"},
        }.items():
            try:
                cl.Session("64MiB", **arguments)
            except (ValueError, cl.SessionError) as error:
                said[name] = str(error)
        with cl.Session("64MiB", device="cuda"):
            try:
                torch.cuda.CUDAGraph.replay(None)
            except cl.SessionError as error:
                said["graph"] = str(error)
        said["graph_after"] = torch.cuda.CUDAGraph.replay.__module__
        print(json.dumps(said))
    """)
    assert "leave out link" in found["link"]
    assert "cuda" in found["nonsense"]
    assert "one GPU" in found["second"]
    assert "keeps the addresses" in found["graph"]
    assert found["graph_after"] == "torch.cuda.graphs"
