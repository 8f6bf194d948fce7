"""The GPU benchmarks run on the embedded device, as far as that shows anything: what they print and write is whole."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hangs import HANGS_AFTER_S
from recordings import gpu_trace, written
from torch.distributed.tensor import DTensor

import chameleon_lab as cl
from benchmarks import host_memory
from benchmarks.gpu import facts, first, llama, overlap, peers, ready, witness
from benchmarks.gpu.common import (
    ALLOCATOR_COUNTS,
    GIB,
    LINK_RATES,
    SHAPES,
    Gpu,
    allocator_of,
    build,
    state_of,
    with_allocator,
    write_part,
)
from benchmarks.gpu.steps import Steps
from benchmarks.measure import most_reserved_bytes
from chameleon_lab.report.session_report import StepSummary
from chameleon_lab.runtime import core

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def ends_what_a_benchmark_sets(settings_are_put_back: None) -> Iterator[None]:
    """For its process, which is the tests' here."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


TRIAL = ["--device", "cpu", "--tiny", "--json"]


def allocator_is_told(row: dict[str, Any]) -> None:
    """Of every step of a row's session. On the embedded device nothing is counted."""
    found = row["allocator"]
    assert {"setting", "reserve_bytes", "split_bytes"} < found.keys()
    steps = found["steps"]
    assert set(steps) == {
        *("index", "refusals", "soft_ooms", "alloc_retries", "device_allocs"),
        *("device_frees", "device_syncs", "useless_bytes"),
    }
    assert steps["index"] == list(range(len(steps["index"]))) and steps["index"]
    assert all(len(counts) == len(steps["index"]) for counts in steps.values())


def test_what_the_allocator_did_is_told_step_by_step() -> None:
    counts = dict.fromkeys(ALLOCATOR_COUNTS, 0)
    steps = [
        dataclasses.replace(StepSummary.none(), index=0, **{n: i for i, n in enumerate(counts, 1)}),
        dataclasses.replace(StepSummary.none(), index=1, alloc_retries=9),
    ]
    report: Any = SimpleNamespace(history=steps, allocator="default", reserve_bytes=3, split_bytes=5)
    found = allocator_of(report)
    assert found["steps"].pop("index") == [0, 1]
    assert found["steps"].pop("alloc_retries") == [3, 9]
    assert [found["steps"][name] for name in counts if name != "alloc_retries"] == [
        [number, 0] for number in (1, 2, 4, 5, 6, 7)
    ]
    assert (found["setting"], found["reserve_bytes"], found["split_bytes"]) == ("default", 3, 5)


def test_a_row_that_failed_has_what_the_allocator_did() -> None:
    session = cl.Session("1MiB", device="cpu")
    assert with_allocator({"error": "no GPU"}, session) == {"error": "no GPU"}, "it never began"
    assert with_allocator({"method": "checkpoint"}, None) == {"method": "checkpoint"}
    with pytest.raises(cl.BelowFloorError), session:
        session.step()
        torch.ones(2 << 20, dtype=torch.uint8).add(1)
    allocator_is_told(with_allocator({"error": "below the floor"}, session))


def test_the_profiler_s_records_are_the_second_witness(tmp_path: Path) -> None:
    """Of 90 us of copies 50 are beside no kernel."""
    found = witness.of_file(written(gpu_trace(), tmp_path / "gpu.json"))
    assert {name: found.pop(name) for name in ("copies", "out_bytes", "in_bytes")} == {
        "copies": 2,
        "out_bytes": 8192,
        "in_bytes": 4096,
    }
    assert found == pytest.approx({"hidden": 4 / 9, "copy_s": 90e-6, "stall_s": 50e-6, "kernel_s": 90e-6})


def test_a_witness_that_sees_nothing_costs_no_row() -> None:
    """Where CUPTI may not be used, the profiler's file has no kernel and no copy."""
    made = witness.profiled(Gpu("cpu", 0.0), lambda: None)
    assert "no event in it is an op" in witness.testimony(made)["error"]


class Scripted(Gpu):
    """A device on which a step takes what is written here."""

    def __init__(self, steps_s: list[float], limit_s: float) -> None:
        super().__init__("cpu", limit_s)
        self.steps_s, self.now_s = steps_s, 0.0

    def seconds(self, run: Any, times: int = 1) -> float:
        run()
        self.now_s += self.steps_s[0]
        return self.steps_s.pop(0)

    def left_s(self) -> float:
        return self.end_s - self.now_s


def test_a_row_has_the_median_the_least_and_the_most_of_its_steps() -> None:
    steps, ran = Steps(Scripted([9.0, 1.0, 5.0, 2.0, 8.0, 8.0], 0.0), settling=1), []
    steps.run(lambda number: lambda: ran.append(number), timed=3)
    steps.sample(lambda number: lambda: ran.append(number))
    found = steps.figures()
    assert (found["step_s"], found["step_min_s"], found["step_max_s"]) == (2.0, 1.0, 5.0)
    assert found["timed_steps"] == 3 and found["steps_s"] == [9.0, 1.0, 5.0, 2.0], "sampled ones are none"
    assert ran == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("limit_s", "timed"), [(100.0, 6), (9.0, 4), (0.0, 2)])
def test_slow_steps_end_with_the_time_but_not_before_the_least(limit_s: float, timed: int) -> None:
    steps = Steps(Scripted([4.0, *[1.0] * 6], limit_s), settling=1)
    steps.run(lambda number: lambda: None, timed=6, least=2)
    assert steps.figures()["timed_steps"] == timed


def test_without_timed_steps_the_last_one_stands() -> None:
    steps = Steps(Scripted([4.0, 3.0], 0.0), settling=2)
    steps.run(lambda number: lambda: None, timed=0)
    found = steps.figures()
    assert (found["step_s"], found["timed_steps"]) == (3.0, 0)


SMI = """#!/bin/sh
echo "GPU-1111, 300, 400, 70.5, 700.00, 30, 1, 5, 8, 16"
echo "GPU-2222, 1980, 2619, 650.12, 700.00, 60, 5, 5, [N/A], 16"
"""


def test_clocks_power_and_the_link_s_width_are_those_of_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = state_of("2222")
    assert (found["sm_mhz"], found["power_w"], found["pcie_generation"]) == (1980.0, 650.12, 5.0)
    assert found["pcie_width"] is None and found["pcie_width_most"] == 16.0
    assert state_of("in another order")["pcie_width"] == 8.0, "the first one"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert state_of("2222") == {}


def test_facts(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    assert facts.main([*TRIAL, str(file)]) == 0
    found = json.loads(file.read_text())
    assert "no GPU figure" in found["environment"]["device"]
    assert found["link"] and found["pinning"]
    for rows, names, unit in (
        (found["link"], LINK_RATES, ""),
        (found["pinning"], ("per_gib",), "_s"),
        ([found["blocks"]], ("torch", "session", "forwarded", "no_room", "copy"), "_s"),
        (found["host_cost"], ("host", "done"), "_s"),
    ):
        for row in rows:
            for name in names:
                least, middle, most = (row[name + end + unit] for end in ("_min", "", "_max"))
                assert 0 < least <= middle <= most, (name, row)
    ends = ("", "_min", "_max")
    assert set(found["disturbance"]) == {f"{name}_slower{end}" for name in ("matmul", "add") for end in ends}
    assert all({"pinned_bytes", "driver_peak_bytes"} < row.keys() for row in found["host_cost"])
    assert found["blocks"]["left_bytes"] == found["blocks"]["bytes"], "one leaves for each"
    variants = [(row["kernel"], row["variant"]) for row in found["host_cost"]]
    assert variants == [
        *((k, v) for k in ("tiny", "10 us") for v in ("no session", "recorded", "planned")),
        *(("2 MiB", v) for v in ("no session", "planned, at the limit")),
    ]
    assert [row["stage"] for row in found["host_cost"] if "planned" in row["variant"]] == ["Stable"] * 3
    assert all(row.get("moved_bytes", 0) == 0 for row in found["host_cost"]), "there is nothing to move"


def test_ways_to_pin_have_their_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded device pins nothing: it says here what it took."""
    seconds = iter(range(1, 1000))
    monkeypatch.setattr(core, "measure_pinning", lambda device, way, size: [next(seconds), 2.0, 3.0])
    rows = facts.ways_to_pin(Gpu("cpu", time.monotonic() + 1000.0), [1 << 20])
    assert [(row["way"], row["samples"]) for row in rows] == [("register", 10), ("alloc", 10)]
    for row, least in zip(rows, (1, 11), strict=True):
        assert (row["touch_min_s"], row["touch_s"], row["touch_max_s"]) == (least, least + 4.5, least + 9)
        assert row["pin_s"] == row["pin_max_s"] == 2.0 and row["unpin_min_s"] == 3.0


FAILED = {"error": "RuntimeError: no"}


@pytest.mark.parametrize(
    ("benchmark", "source", "row"),
    [
        (overlap, "measure_model", {"model": "gpt2", "variant": "planned 1/2"} | FAILED),
        (llama, "rows_of", {"capacity_gib": 24.0} | FAILED),
        (peers, "run_trials", {"method": "ours", "budget_bytes": 24 * GIB} | FAILED),
    ],
)
def test_a_row_that_fails_fails_the_rehearsal_too(
    benchmark: ModuleType,
    source: str,
    row: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(benchmark, source, lambda *_: iter([row]))
    assert benchmark.main([*TRIAL, str(tmp_path / "found.json")]) == 1


def test_of_methods_of_others_none_has_to_run() -> None:
    ran = {"common": {"ok": True}, "losses_identical": True}
    for name, row, wrong in (
        ("ours", ran, False),
        ("ours", ran | {"losses_identical": False}, True),
        ("ours", {"common": {"ok": False}}, True),
        ("ours, replay only", {"common": {"ok": False}}, False),
        ("OffloadActivations", FAILED, False),
        (peers.ALL_MEMORY, FAILED, False),
    ):
        assert peers._is_wrong({"method": name} | row) is wrong


def test_parts_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    write_part(file, "peers-24", {"rows": [1]})
    write_part(file, "peers-16", {"rows": [2]})
    write_part(file, "peers-24", {"rows": [3]})
    assert json.loads(file.read_text()) == {"peers-24": {"rows": [3]}, "peers-16": {"rows": [2]}}
    write_part(file, None, {"rows": []})
    assert json.loads(file.read_text()) == {"rows": []}


def test_the_first_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "facts.json"
    assert first.main([*TRIAL, str(file), "--part", "ready"]) == 0
    found = json.loads(file.read_text())["ready"]["bits"]
    assert found["recorded_same"] and found["planned_same"] and found["moved_bytes"] > 0
    assert found["peak_bytes"] <= found["capacity_bytes"]
    assert "in half the memory the same True" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "kind", "known"),
    [
        (torch.OutOfMemoryError("no room"), "torch.OutOfMemoryError", True),
        (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED\nmore"), "builtins.RuntimeError", False),
        (None, "", False),
    ],
)
def test_what_running_out_of_memory_raises_is_told(raised: Exception | None, kind: str, known: bool) -> None:
    def ask() -> None:
        if raised is not None:
            raise raised

    found = first.error_of(ask)
    assert found["type"] == kind and found["out_of_memory"] is known and "\n" not in found["text"]


def test_llama_beside_what_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert llama.main(["--device", "cpu", "--tiny", "--one", "0.0015"]) == 0
    finally:
        torch.set_num_threads(threads)
    row = json.loads(capsys.readouterr().out)
    allocator_is_told(row)
    assert "error" not in row and row["swapped_out_bytes"] + row["dropped_bytes"] > 0, row
    assert row["peak_bytes"] <= 0.0015 * GIB
    anchor = llama.dataclasses.asdict(llama.ANCHOR)
    others = [llama.dataclasses.asdict(llama.LLMQ)]
    result = {"environment": {"device": "none"}, "model": "tiny", "anchor": anchor}
    result["anchors_of_other_shapes"] = others
    write_part(
        tmp_path / "llama.json", "llama", result | {"rows": [row, {"capacity_gib": 24.0, "error": "stopped"}]}
    )
    assert llama.main(["--table", str(tmp_path / "llama.json"), "--part", "llama"]) == 0
    table = capsys.readouterr().out
    assert "als244/ml_dataflow" in table and "9781" in table and "86%" in table and "stopped" in table
    last = table.strip().splitlines()[-1]
    assert "IST-DASLab/llmq" in last and "RTX 4090: 2800 tokens/s in 24 GiB" in last
    assert all(words in last for words in ("7 B", "sequences of 1024", "524288 tokens a step", "72 %"))


def test_the_anchor_s_shares_are_of_its_largest_memory() -> None:
    rows = [
        {"capacity_gib": gib, "tokens_per_s": speed, "losses": []}
        for gib, speed in ((24.0, 50.0), (78.0, 100.0))
    ]
    rows.append({"capacity_gib": 30.0, "error": "no time left"})
    llama.judge(rows)
    assert [row.get("kept") for row in rows] == [0.5, 1.0, None]
    assert llama.ANCHOR.kept(78) == 1.0 and 0.85 < llama.ANCHOR.kept(24) < 0.87
    assert [llama.ANCHOR.beside(size) for size in (24, 23, 76, 79, 35)] == [24, 24, 78, None, None]


def test_the_host_s_memory_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [100]
    monkeypatch.setattr(host_memory, "available_bytes", lambda: left[0])
    monkeypatch.setattr(host_memory, "_EVERY_S", 0.001)
    ended = threading.Event()
    told: list[int] = []
    with host_memory.guarded(50, lambda bytes: (told.append(bytes), ended.set())):
        assert told == []
        left[0] = 40
        assert ended.wait(HANGS_AFTER_S)
    assert told == [40]


def test_the_host_s_memory_is_bounded_by_every_group_around_the_process(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": f"MemAvailable: {64 * GIB // 1024} kB",
        "proc/self/cgroup": "0::/outer/inner",
        "sys/fs/cgroup/outer/memory.max": 8 * GIB,
        "sys/fs/cgroup/outer/memory.current": 6 * GIB,
        "sys/fs/cgroup/outer/inner/memory.max": 7 * GIB,
        "sys/fs/cgroup/outer/inner/memory.current": GIB,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert host_memory.available_bytes(tmp_path) == 2 * GIB
    with pytest.raises(OSError, match="does not say"):
        host_memory.available_bytes(tmp_path / "elsewhere")


def test_the_host_has_memory_left() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < host_memory.available_bytes() <= pages


def test_a_search_adds_to_its_method_s_row() -> None:
    rows: list[dict[str, Any]] = []
    peers.merge(rows, {"method": "ours", "budget_bytes": 1, "common": {"ok": True}})
    peers.merge(rows, {"method": "ours", "budget_bytes": 2, "common": {"ok": False}})
    peers.merge(rows, {"method": "ours", "budget_bytes": 1, "largest_batch": 4})
    peers.merge(rows, {"method": "ours", "budget_bytes": 2, "error": "no time left"})
    assert rows == [
        {"method": "ours", "budget_bytes": 1, "common": {"ok": True}, "largest_batch": 4},
        {"method": "ours", "budget_bytes": 2, "common": {"ok": False}, "search_error": "no time left"},
    ]


def test_offloading_by_the_name_that_transformers_has_for_it() -> None:
    class Newest:
        def activation_checkpointing_enable(self, kwargs: Any = None, *, offload: bool = False) -> None:
            self.enabled = offload

        def gradient_checkpointing_enable(
            self, gradient_checkpointing_kwargs: Any = None, **kwargs: Any
        ) -> None:
            raise AssertionError("deprecated")

    class Since517:
        def gradient_checkpointing_enable(self, every_n_layers: int = 1, offload: bool = False) -> None:
            self.enabled = offload

    class Older:
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
            raise AssertionError("it would hand the setting on to torch's checkpoint")

    for theirs in (Newest(), Since517()):
        peers.enable_offloading(theirs)
        assert theirs.enabled
    with pytest.raises(ImportError, match=r"5\.17"):
        peers.enable_offloading(Older())


def test_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "overlap.json"
    monkeypatch.setattr(overlap, "modes", lambda: (True, "trusting"))  # as before torch 2.13
    assert overlap.main([*TRIAL, str(file), "--steps", "2", "--fractions", "1/2"]) == 0
    rows = json.loads(file.read_text())["rows"]
    variants = ["no session", "recorded", "planned 1/2", "planned 1/2, trusting"]
    assert [row["variant"] for row in rows] == variants
    assert all("error" not in row and row["losses_identical"] for row in rows), rows
    for row in rows:
        steps = overlap.SETTLING_STEPS + row["timed_steps"]
        assert row["timed_steps"] == 2 and len(row["steps_s"]) == steps
        assert len(row["losses"]) == steps + overlap.SAMPLED_STEPS + 1, "one is the profiler's"
        assert row["step_min_s"] <= row["step_s"] <= row["step_max_s"]
        assert row["profiler"]["copies"] == 0, "the embedded device's copies are none of a GPU's"
    for row in rows[2:]:
        assert row["out_bytes"] > 0 and row["within"]
        assert row["profiled"]["out_bytes"] > 0 and row["profiled"]["hidden"] is not None
    for row in rows[1:]:
        allocator_is_told(row)
    assert "allocator" not in rows[0], "it has no session"
    header, _, *printed = capsys.readouterr().out.partition("\nmodel ")[2].splitlines()
    assert "refusals  flushes" in header and "by profiler" in header and len(printed) == 4


def test_torch_may_reserve_a_page_of_expandable_segments_more_than_the_capacity() -> None:
    assert most_reserved_bytes(73 << 20, "default") == 73 << 20
    assert most_reserved_bytes(73 << 20, "expandable_segments") == 93 << 20


@pytest.mark.parametrize(("sees", "modes"), [(True, (True,)), (False, (True, "trusting"))])
def test_both_modes_are_measured_where_they_differ(
    monkeypatch: pytest.MonkeyPatch, sees: bool, modes: tuple[Any, ...]
) -> None:
    monkeypatch.setattr(core, "SEES_RAW_ACCESS", sees)
    assert overlap.modes() == modes


BUDGET = 0.0025  # GiB: a little less than the tiny model's step keeps


def test_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    methods = "ours, replay only;ours"
    assert peers.main([*TRIAL, str(file), "--methods", methods, "--budgets", str(BUDGET)]) == 0
    plain, ours, searched = json.loads(file.read_text())["rows"]
    assert plain["method"] == peers.ALL_MEMORY
    assert (
        searched["largest_batch"] >= 1 and searched["deepest"] >= 1 and searched["losses_identical"] is True
    )
    assert plain["common"]["ok"] and ours["common"]["ok"], (plain, ours)
    assert not plain["fills_new_memory"] and not ours["fills_new_memory"], "users do not fill it either"
    assert ours["losses_identical"] is True
    assert ours["common"]["dropped_bytes"] > 0 == ours["common"]["swapped_out_bytes"]
    for found in (ours["common"], searched["common"], searched["at_largest"]):
        allocator_is_told(found)
    assert "allocator" not in plain["common"], "it has no session"
    printed = capsys.readouterr().out
    assert peers.ALL_MEMORY in printed and "ours, replay only" in printed


def test_peers_of_ours_do_what_their_names_say() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        gpu, shape = Gpu("cpu", time.monotonic() + HANGS_AFTER_S), SHAPES["tiny"]

        def run(name: str, budget_gib: float) -> dict[str, Any]:
            budget = int(budget_gib * GIB)
            return peers.attempt(gpu, peers.METHODS[name], shape, budget, 2, 32, timed=True)

        plain = run("nothing", 1.0)
        for name in ("ours", "ours, swap only"):
            row = run(name, BUDGET)
            assert row["ok"] and row["losses"] == plain["losses"], row
            assert row["swapped_out_bytes"] + row["dropped_bytes"] > 0
            assert bool(row["replays_off"]) == (name == "ours, swap only")
        assert row["dropped_bytes"] == 0
        states_alone = run("ours, replay only", 0.0015)
        allocator_is_told(states_alone)
        assert not states_alone["ok"] and "would have to be copied" in states_alone["why"]
    finally:
        torch.set_num_threads(threads)


def test_layers_leave_one_by_one_and_the_weights_stay_the_same() -> None:
    gpu, shape = Gpu("cpu", time.monotonic() + HANGS_AFTER_S), SHAPES["tiny"]
    here, _ = build(gpu, shape)
    seen: list[torch.nn.Module] = []
    gone, optimizer = build(gpu, shape, prepare=seen.append, layers_on="meta")
    assert seen == [gone], "prepared before the optimizer takes hold of the parameters"
    assert all(p.device.type == "meta" for p in gone.layers.parameters())
    assert torch.equal(gone.embed.weight, here.embed.weight) and torch.equal(
        gone.head.weight, here.head.weight
    )
    (group,) = optimizer.param_groups
    assert {id(p) for p in group["params"]} == {id(p) for p in gone.parameters()}


def test_fsdp_holds_nothing_that_it_was_given() -> None:
    """What it shards has a copy on the host: with an optimizer of the old parameters, the device would keep both."""
    gpu, shape = Gpu("cpu", time.monotonic() + HANGS_AFTER_S), SHAPES["tiny"]
    method = peers.METHODS["FSDP2 offload"]
    with peers._one_rank(gpu):
        model, optimizer = build(gpu, shape, prepare=method.prepare, layers_on="cpu")
        assert all(isinstance(p, DTensor) for p in model.parameters())
        assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
        row = peers.attempt(gpu, method, shape, GIB, 2, 32, timed=True)
    plain = peers.attempt(gpu, peers.METHODS["nothing"], shape, GIB, 2, 32, timed=True)
    assert row["ok"] and row["losses"] == plain["losses"], row


def test_rows_are_judged_by_the_losses_of_plain_training() -> None:
    def row(method: str, losses: list[str], tokens_per_s: float = 1.0) -> dict[str, Any]:
        common = {"ok": True, "losses": losses, "tokens_per_s": tokens_per_s}
        return {"method": method, "budget_bytes": 8, "common": common}

    rows = [
        row(peers.ALL_MEMORY, ["1", "2"]),
        row("checkpoint", ["1", "2"], 2.0),
        row("ours", ["1", "3"], 3.0),
        row("ours, replay only", ["1", "2", "5"]),
    ]
    peers.judge(rows)
    assert [r["losses_identical"] for r in rows] == [True, True, False, True]
    assert rows[2]["speed_to_checkpoint"] == 1.5


@pytest.mark.parametrize(
    ("fits", "most", "calls", "found"),
    [
        (5, 64, 99, (5, True)),  # 1, 2, 4, 8, then 6, 5
        (0, 64, 99, (0, True)),
        (100, 64, 99, (64, False)),  # larger ones were not asked for
        (5, 64, 3, (4, False)),  # 8 was never tried
        (40, 64, 8, (32, False)),  # between 32 and 48
    ],
)
def test_a_search_that_was_cut_short_says_so(
    fits: int, most: int, calls: int, found: tuple[int, bool]
) -> None:
    tried: list[int] = []

    def runs(size: int) -> bool:
        tried.append(size)
        return size <= fits

    assert peers.largest(runs, most, lambda: calls - len(tried)) == found


ROOT = Path(__file__).parents[2]

STAND_IN = """#!/usr/bin/env bash
# Python, but for what pip installs: that is copied from the checkout, which is built already.
if [ "$1 $2 $3" = "-m pip install" ]; then
    echo "$@" >>{log}
    for word in "$@"; do
        [ "${{before-}}" = --target ] && mkdir -p "$word" && cp -r {built} "$word"
        before=$word
    done
    exit 0
fi
{slow}exec {python} "$@"
"""


class Check:
    """``gpu_check.sh`` of a fresh copy of the files that are in git, which nobody has built."""

    def __init__(self, folder: Path, slow: str = "") -> None:
        self.root, self.folder = folder / "checkout", folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
        if listed.returncode:
            pytest.skip("this is no git checkout")
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():  # a file that is deleted and not yet committed is listed still
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.root / name)
        built = folder / "built" / "chameleon_lab"
        ignored = shutil.ignore_patterns("__pycache__", "labextension")
        shutil.copytree(ROOT / "chameleon_lab", built, ignore=ignored)
        self.python = folder / "python"
        self.log = folder / "pip.txt"
        self.python.write_text(
            STAND_IN.format(log=self.log, built=built, python=sys.executable, slow=slow and slow + "\n")
        )
        self.python.chmod(0o755)

    def __call__(self, *parts: str, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {"OUT": self.out, "WORK": self.folder / "work", "PYTHON": self.python, "DEVICE": "cpu"}
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        return subprocess.run(
            [self.root / "benchmarks" / "gpu_check.sh", *parts],
            capture_output=True, text=True, timeout=1800,
            env=inherited | {k: str(v) for k, v in (settings | environment).items()},
        )  # fmt: skip

    @property
    def out(self) -> Path:
        """Where its results are."""
        return self.folder / "out"

    def found(self, name: str) -> dict[str, Any]:
        """Of one file of results."""
        return json.loads((self.out / f"{name}.json").read_text())

    def builds(self) -> int:
        """How often it has built."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


PARTS = ("tests", "overlap", "replay", "facts", "llama", "peers-24")


def rehearsed(parts: dict[str, Any]) -> None:
    """What of tests/cuda needs no GPU has run, in every file; what was skipped says what it needs."""
    tests = [test for part in parts.values() for test in part["tests"]]
    assert {test["outcome"] for test in tests} == {"passed", "skipped"}, tests
    files = {file.name for file in (ROOT / "tests" / "cuda").glob("test_*.py")}
    for file in files:
        mine = [test["outcome"] for test in tests if f"/{file}::" in test["test"]]
        assert mine.count("passed") > len(mine) / 2, (file, mine)
    for test in tests:
        if test["outcome"] == "skipped":
            why = test["why"]
            assert "a rehearsal on the embedded device, and" in why or "transformers" in why, test


def test_every_part_runs_in_a_fresh_copy(tmp_path: Path) -> None:
    """The rehearsal: all parts, on the embedded device, as they will be run on a GPU."""
    check = Check(tmp_path)
    done = check(BUDGETS="24", METHODS="ours", LIMIT="3000")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.partition("--- parts")[2]
    lines = [line.partition(":")[0] for line in told.splitlines() if ": done in" in line]
    ends = ["tests-expandable", "overlap-expandable", "sanitizer"]
    assert lines == ["looking", "build", "ready", *PARTS, *ends], done.stdout
    assert check.builds() == 1
    # What comes back from a machine that is lent: few files.
    results = {"tests.json", "overlap.json", "peers.json", "facts.json", "llama.json"}
    assert {file.name for file in check.out.rglob("*")} == {*results, "log.txt", "build.tar.gz"}
    assert set(check.found("facts")) == {"ready", "facts"}
    assert set(check.found("peers")) == {"peers-24"}
    assert set(check.found("overlap")) == {"overlap", "overlap-expandable"}
    assert set(check.found("tests")) == {"tests", "replay", "tests-expandable", "sanitizer"}
    rehearsed(check.found("tests"))
    assert all("error" not in row for row in check.found("llama")["llama"]["rows"])
    assert all(row["common"]["ok"] for row in check.found("peers")["peers-24"]["rows"])
    assert not any(row["fills_new_memory"] for row in check.found("peers")["peers-24"]["rows"])
    for part in check.found("overlap").values():
        for row in part["rows"][1:]:
            allocator_is_told(row)
    for row in check.found("llama")["llama"]["rows"]:
        allocator_is_told(row)
    ours = [row for row in check.found("peers")["peers-24"]["rows"] if row["method"] == "ours"]
    assert ours
    for row in ours:
        allocator_is_told(row["common"])
    assert "copy of MiB" in done.stdout and "us/op" in done.stdout
    assert done.stdout.strip() == (check.out / "log.txt").read_text().strip(), "all is printed as it comes"


def test_it_builds_where_nothing_of_this_source_is_built(tmp_path: Path) -> None:
    check = Check(tmp_path, slow='case "$*" in *gpu.first*) exit 0 ;; esac')
    assert check("ready").returncode == 0 and check.builds() == 1
    assert check("ready").returncode == 0 and check.builds() == 1, "it is built"
    with (check.root / "csrc" / "runtime.cpp").open("a") as file:
        file.write("// changed\n")
    assert check("ready").returncode == 0 and check.builds() == 2, "of another source"
    assert "-DBUILD_CUDA" not in check.log.read_text() and "BUILD_CUDA=OFF" in check.log.read_text()
    shutil.rmtree(tmp_path / "work")
    assert check("ready").returncode == 0 and check.builds() == 3, "on a machine that has forgotten it"
    assert check("build").returncode == 0 and check.builds() == 4
    assert check("ready", BUILD_CUDA="ON").returncode == 0 and check.builds() == 5, "with another device"


def test_a_build_is_carried_to_the_next_machine(tmp_path: Path) -> None:
    check = Check(tmp_path, slow='case "$*" in *gpu.first*) exit 0 ;; esac')
    assert check("ready").returncode == 0 and check.builds() == 1
    carried = tmp_path / "work" / "build.tar.gz"
    shutil.rmtree(carried.parent)
    carried.parent.mkdir()
    shutil.copy(check.out / "build.tar.gz", carried)
    done = check("ready")
    assert done.returncode == 0 and check.builds() == 1 and "unpacked" in done.stdout, done.stdout
    assert (carried.parent / "site" / "chameleon_lab" / "__init__.py").exists()
    with (check.root / "csrc" / "runtime.cpp").open("a") as file:
        file.write("// changed\n")
    assert check("ready").returncode == 0 and check.builds() == 2, "of another source"
    shutil.rmtree(carried.parent / "site")
    carried.write_bytes(carried.read_bytes()[:100])
    done = check("ready")
    assert done.returncode == 0 and check.builds() == 3 and "another source" in done.stdout, "it was cut"


def test_three_calls_tell_most(tmp_path: Path) -> None:
    """As they are made on a lent machine, each within its time, with the first one's build."""
    check = Check(tmp_path, slow='case "$*" in *" pip "*) ;; *gpu*|*pytest*) echo "$@"; exit 0 ;; esac')
    calls = (("ready", "tests"), ("overlap", "replay", "facts"), ("llama", "peers-24"))
    for number, parts in enumerate(calls):
        shutil.rmtree(tmp_path / "work", ignore_errors=True)
        if number:
            (tmp_path / "work").mkdir()
            shutil.copy(check.out / "build.tar.gz", tmp_path / "work")
        done = check(*parts)
        ran = [line.partition(":")[0] for line in done.stdout.partition("--- parts")[2].splitlines()[1:]]
        built = [] if number else ["build"]
        assert done.returncode == 0 and ran == ["looking", *built, *dict.fromkeys(("ready", *parts))], (
            done.stdout
        )
    assert check.builds() == 1


def test_a_call_ends_in_time_and_names_what_it_did_not_get_to(tmp_path: Path) -> None:
    """A part never ends: it is stopped, and there is no time left for the others."""
    check = Check(tmp_path, slow='case "$*" in *gpu.overlap*) sleep 100 ;; *) exit 0 ;; esac')
    done = check("overlap", "peers-16", "facts", LIMIT="24", LEAST="12")
    assert done.returncode == 1 and "\noverlap: STOPPED after" in done.stdout
    assert int(done.stdout.partition("--- parts, in ")[2].split()[0]) <= 24
    last = done.stdout.strip().splitlines()[-1]
    assert last == "not begun, for want of time: benchmarks/gpu_check.sh facts peers-16"


def test_what_was_named_and_not_begun_fails_the_call(tmp_path: Path) -> None:
    check = Check(tmp_path, slow='case "$*" in *" pip "*) ;; *gpu*|*pytest*) exit 0 ;; esac')
    assert check("ready").returncode == 0
    named, all_of_them = check("facts", LEAST="1000"), check(LEAST="1000")
    assert "not begun" in named.stdout and named.returncode == 1
    assert "not begun" in all_of_them.stdout and all_of_them.returncode == 0


def test_a_part_that_fails_fails_the_check_and_not_the_others(tmp_path: Path) -> None:
    check = Check(tmp_path, slow='case "$*" in *gpu.overlap*) exit 7 ;; esac')
    done = check("overlap", "facts")
    assert done.returncode == 1
    assert "\noverlap: FAILED (7)" in done.stdout and "\nfacts: done in" in done.stdout
    assert "overlap: FAILED" in (check.out / "log.txt").read_text()


def test_compute_sanitizer_takes_a_copy_under_way_for_no_error(tmp_path: Path) -> None:
    """``cudaEventQuery`` says ``cudaErrorNotReady`` of it all the time."""
    stand_in = tmp_path / "compute-sanitizer"
    stand_in.write_text("""#!/bin/sh\ncase "$*" in *"--report-api-errors no "*) exit 0 ;; esac\nexit 9\n""")
    stand_in.chmod(0o755)
    code = (
        "import sys; sys.path[:0] = ['tests/cuda', 'tests/integration', '.']\n"
        "import test_sanitizer\n"
        "test_sanitizer.ON_GPU = True\n"
        "test_sanitizer.test_compute_sanitizer_finds_nothing()\n"
    )
    settings = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CHAMELEON_TEST_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_llama_leaves_of_80_gb_what_lies_outside_of_torch() -> None:
    """A context, modules, and page tables of pinned memory: 2 MiB for each GiB of it, or twice that."""
    device_bytes = json.loads((ROOT / "benchmarks/results/gpu_ready.json").read_text())["ready"][
        "environment"
    ]["device_bytes"]
    pinned_gib = 200
    assert max(llama.CAPACITIES) * GIB + pinned_gib * (4 << 20) + 2 * GIB < device_bytes


def test_a_part_that_there_is_not_is_named(tmp_path: Path) -> None:
    done = Check(tmp_path)("overlaps")
    assert done.returncode == 2 and "there is no part overlaps" in done.stderr and "peers-24" in done.stderr


def test_wheels_are_unpacked_beside_the_build(tmp_path: Path) -> None:
    check = Check(tmp_path)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "trl-1.0-py3-none-any.whl").touch()
    done = check("ready", WHEELS=str(wheels))
    assert done.returncode == 0, done.stdout + done.stderr
    wheel, build = check.log.read_text().splitlines()
    assert "--no-index" in wheel and "trl-1.0" in wheel and "trl" not in build


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_is_missing_is_said_before_anything_is_built(tmp_path: Path) -> None:
    check = Check(tmp_path)
    done = check(DEVICE="cuda", CXX="no-such-compiler")
    assert done.returncode == 1 and "looking: FAILED (1)" in done.stdout
    assert "a C++20 compiler: there is no no-such-compiler" in done.stdout
    assert "built with CUDA" in done.stdout or "torch finds none" in done.stdout
    assert check.builds() == 0


def test_what_is_needed_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ready.missing("cpu") == []
    monkeypatch.setattr(ready, "find_spec", lambda name: None)
    monkeypatch.setattr(ready.shutil, "which", lambda name: None)
    said = "\n".join(ready._tools_missing())
    assert "cmake 3.25" in said and "ninja" in said and "compiler" in said
    assert ready.missing("cuda")[0] == "torch 2.11 or newer with CUDA"


def test_what_trl_imports_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "find_spec", lambda name: None if name in ("accelerate", "psutil") else name)
    said = {name: lost for name, lost in ready.lacking() if name in ready.WISHES}
    assert said.keys() == {"accelerate", "psutil"}
    assert all("TRL's OffloadActivations" in lost for lost in said.values())


def test_what_keeps_trl_from_being_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the row says: that torchtune is missing as well is of no use to who brought TRL."""
    gpu, model = Gpu("cpu", 0.0), build(Gpu("cpu", 0.0), SHAPES["tiny"])[0]
    theirs: Any = ModuleType("torchtune.training")
    theirs.OffloadActivations = contextlib.nullcontext
    monkeypatch.setitem(sys.modules, "trl.models.activation_offloading", None)
    monkeypatch.setitem(sys.modules, "torchtune.training", None)
    with pytest.raises(ImportError, match=r"no TRL .*trl\.models\.activation_offloading"):
        peers._offload_activations(gpu, model)
    monkeypatch.setitem(sys.modules, "torchtune.training", theirs)
    assert isinstance(peers._offload_activations(gpu, model), contextlib.nullcontext)


def test_what_is_done_without_is_a_note_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ready.shutil, "which", lambda name: None)
    assert ready.main(["--device", "cpu"]) == 0
    assert "not here: compute-sanitizer: its run" in capsys.readouterr().out
    monkeypatch.setattr(ready.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert ready.main(["--device", "cpu"]) == 0
    assert "compute-sanitizer" not in capsys.readouterr().out


@pytest.mark.parametrize(("installed", "theirs"), [("5.23.0", True), ("5.16.4", False), (None, False)])
def test_peers_take_transformers_own_offloading_where_it_is(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, theirs: bool
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise peers.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(peers.metadata, "version", version)
    names = peers.usual_methods()
    assert ("transformers offload" in names, "checkpoint in save_on_cpu" in names) == (theirs, not theirs)
    assert len(names) == len(peers.METHODS) - 1


def test_slow_peers_do_not_outlast_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpu_check.sh stops a part 40 s after its time, and what was not printed by then is lost."""
    clock, stopped = [0.0], []

    def never_ends(command: list[str], timeout: float, **kwargs: Any) -> None:
        clock[0] += timeout
        stopped.append(clock[0])
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(peers.subprocess, "run", never_ends)
    gpu = Gpu("cpu", 0.0)
    monkeypatch.setattr(Gpu, "left_s", lambda self: 100.0 - clock[0])
    options = peers.argparse.Namespace(methods="", budgets="1", device="cpu", batch=2, length=32, tiny=True)
    rows = list(peers.run_trials(options, gpu))
    usual = peers.usual_methods()
    searched = [name for name in peers.SEARCHED if name in usual]
    assert [row["method"] for row in rows] == [peers.ALL_MEMORY, *usual, *searched]
    assert 1 < len(stopped) < len(rows) and stopped[-1] <= 130
    assert rows[-1]["error"] == "no time left"


@pytest.mark.parametrize(
    ("text", "version"), [("2.11.0+cu130", (2, 11)), ("4.0.2\n\nCMake suite", (4, 0)), ("3.25-rc1", (3, 25))]
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert ready.version_of(text) == version
