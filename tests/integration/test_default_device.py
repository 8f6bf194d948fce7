"""What a session takes where it is told nothing: the GPU with all that it has, else the embedded device."""

from __future__ import annotations

import re
import textwrap
import warnings

import pytest
import torch
from fake_gpu import on_fake_gpu
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import chameleon_lab as cl
from chameleon_lab.runtime import core
from chameleon_lab.session.arguments import RESERVE_BYTES

pytestmark = pytest.mark.full

GiB = 1 << 30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A GPU of 24 GiB, as far as torch and the core tell of it: other processes have 3, torch has taken 2."""
    found = {"free": 19 * GiB, "reserved": 2 * GiB, "share": 1.0}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (found["free"], 24 * GiB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: found["reserved"])
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: found["share"])
    monkeypatch.setattr(core, "missing_device", lambda name: "")
    monkeypatch.setattr(core, "tensor_device", torch.device)
    monkeypatch.setattr(core, "total_bytes", lambda name: 24 * GiB)
    monkeypatch.setattr(core, "of", lambda name: core.Runtime("cpu"))
    return found


def test_without_a_gpu_it_is_the_embedded_device_which_only_records() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    session = cl.Session()
    assert (session.device, session.capacity_bytes) == ("cpu", None)


def test_with_a_gpu_it_is_that_with_what_it_has(gpu: dict[str, float]) -> None:
    session = cl.Session()
    assert session.device == "cuda:0"
    assert session.capacity_bytes == 21 * GiB - RESERVE_BYTES
    gpu["share"] = 0.5
    assert cl.Session().capacity_bytes == 12 * GiB
    assert cl.Session("6GiB").capacity_bytes == 6 * GiB
    assert cl.Session(device="cpu").capacity_bytes is None


def test_recording_alone_is_asked_for(gpu: dict[str, float]) -> None:
    assert cl.Session("unlimited").capacity_bytes is None
    assert cl.Session("unlimited", device="cpu").capacity_bytes is None
    policy = cl.Policy(GiB, cl.Link(1e9, 1e9), ())
    assert cl.Session(policy=policy).capacity_bytes == GiB
    with pytest.raises(ValueError, match="leave out the policy"):
        cl.Session("unlimited", policy=policy)


def test_a_gpu_that_others_fill_is_named(gpu: dict[str, float]) -> None:
    gpu |= {"free": 100 << 20, "reserved": 0}
    with pytest.raises(cl.SessionError, match=r"'cuda:0' has 100 MiB of 24\.0 GiB free.*give a capacity"):
        cl.Session()


def test_a_link_is_the_embedded_device_s(gpu: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="device='cpu'"):
        cl.Session("1GiB", link="8GiB/s")


def test_a_build_without_the_cuda_device_takes_the_embedded_one(
    gpu: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "missing_device", lambda name: "this build has none")
    assert cl.Session().device == "cpu"
    with pytest.raises(cl.SessionError, match="this build has none"):
        cl.Session(device="cuda")


def model_on(device: str) -> nn.Module:
    """One that is nowhere: its tensors only say that they are on the device."""
    made = nn.Module()
    with FakeTensorMode():
        made.weight = nn.Parameter(torch.empty(64, 64, device=device))
    return made


def test_a_model_on_a_gpu_in_a_session_on_the_embedded_device_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "missing_device", lambda name: "")
    with warnings.catch_warnings(record=True) as caught, cl.Session(device="cpu") as session:
        warnings.simplefilter("always")
        session.adopt(model_on("cuda"))
        session.adopt(torch.optim.SGD(model_on("cuda").parameters(), lr=0.1))
        notes = session.report().notes
    (said,) = [str(w.message) for w in caught if "Chameleon Lab" in str(w.message)]
    assert "the model Module is on cuda:0, and this session's device is cpu" in said
    assert "cl.Session(device='cuda:0')" in said
    assert [said] == [f"Chameleon Lab: {note}" for note in notes if "cuda:0" in note]


def test_it_says_so_where_there_is_no_device_for_the_model() -> None:
    missing = core.missing_device("cuda:0")
    if not missing:
        pytest.skip("there is a GPU")
    with pytest.warns(UserWarning, match=re.escape(missing)), cl.Session(device="cpu") as session:
        session.adopt(model_on("cuda"))


def test_what_is_on_the_device_or_not_trained_is_no_reason_to_warn() -> None:
    frozen = model_on("cuda").requires_grad_(False)
    with warnings.catch_warnings(), cl.Session(device="cpu") as session:
        warnings.simplefilter("error")
        session.adopt(nn.Linear(64, 64), frozen, model_on("meta"))


FAKE = """
    from chameleon_lab.session import arguments

    def give(bytes, others=0):
        "Torch tells of a GPU that has room for so many bytes beside the reserve, and of blocks that are not ours."
        def counted(device):
            runtime = core.of(device)
            counters = runtime.counters() if runtime.is_open() else {"resident_bytes": 0, "other_bytes": 0}
            return counters["resident_bytes"] + counters["other_bytes"] + others

        torch.cuda.is_available = lambda: True
        torch.cuda.init = lambda: None
        torch.cuda.current_device = lambda: 0
        torch.cuda.is_current_stream_capturing = lambda: False  # AdamW asks in a CUDA build of torch
        torch.accelerator.current_accelerator = lambda check_available=False: None  # likewise
        torch.cuda.memory_reserved = lambda device: 0
        torch.cuda.memory_allocated = counted
        torch.cuda.get_per_process_memory_fraction = lambda device: 1.0
        torch.cuda.mem_get_info = lambda device: (bytes + arguments.RESERVE_BYTES, 1 << 36)
"""


def told_of(code: str) -> dict[str, object]:
    return on_fake_gpu("fake_cuda", textwrap.dedent(FAKE) + textwrap.dedent(code))


@pytest.mark.bits
def test_a_session_that_is_told_nothing_trains_what_does_not_fit() -> None:
    found = told_of("""
        bare, live_peak = reference(Gpt, adamw, 6)
        fake.start(7)
        give(live_peak // 3)
        run = train(Gpt, adamw, 6, {"min_swap": "2KiB"})
        print(json.dumps({
            "same": run.same(bare), "device": run.report.device, "asked": live_peak // 3,
            "capacity": run.report.capacity_bytes, "peak": run.report.peak_bytes,
            "moved": run.report.history[-1].swapped_out_bytes, "stage": run.report.stage,
        }))
    """)
    assert found["same"] and found["device"] == "cuda:0"
    assert found["capacity"] == found["asked"] >= found["peak"]
    assert found["moved"] > 0 and found["stage"] == "Stable"


@pytest.mark.bits
def test_after_the_first_step_it_leaves_room_for_what_is_not_its_own() -> None:
    found = told_of("""
        bare, live_peak = reference(Gpt, adamw, 6)
        fake.start(7)
        give(live_peak // 2, others=live_peak // 8)
        first = []

        def look(number, model, session):
            if session:
                first.append(session.capacity_bytes)

        run = train(Gpt, adamw, 6, {"min_swap": "2KiB"}, each_step=look)
        print(json.dumps({
            "same": run.same(bare), "capacity": [first[0], run.report.capacity_bytes],
            "less": live_peak // 8, "late_peaks": max(step.peak_bytes for step in run.report.history[2:]),
        }))
    """)
    assert found["same"]
    before, after = found["capacity"]
    assert before - after == found["less"]
    assert found["late_peaks"] <= after


def test_the_command_and_the_magic_take_the_gpu_too() -> None:
    found = told_of("""
        import contextlib, tempfile
        from IPython.core.interactiveshell import InteractiveShell
        from chameleon_lab.cli.run import run as command

        give(64 * MiB)
        seen = {}

        @contextlib.contextmanager
        def quietly():
            with contextlib.redirect_stdout(io.StringIO()):
                yield

        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "train.py")
            open(script, "w").write('''
        import chameleon_lab as cl, __main__
        seen = cl.current_session()
        open(__file__ + ".seen", "w").write(f"{seen.device} {seen.capacity_bytes}")
        '''.replace("\\n        ", "\\n"))
            for name, words in {"run": [], "recorded": ["--capacity", "unlimited"]}.items():
                made = command.main([*words, "-q", script], standalone_mode=False)
                try:
                    made.execute()
                except SystemExit as end:
                    assert end.code == 0, end.code
                seen[name] = open(script + ".seen").read()
        shell = InteractiveShell.instance()
        with quietly():
            shell.run_cell("%load_ext chameleon_lab")
            shell.run_cell("%chameleon start")
        open_session = cl.current_session()
        seen["magic"] = f"{open_session.device} {open_session.capacity_bytes}"
        with quietly():
            shell.run_cell("%chameleon stop")
        print(json.dumps(seen))
    """)
    assert found == {
        "run": f"cuda:0 {64 << 20}",
        "recorded": "cuda:0 None",
        "magic": f"cuda:0 {64 << 20}",
    }
