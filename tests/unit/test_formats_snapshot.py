"""PyTorch's memory snapshots as traces: what is kept, and what is refused by name."""

from __future__ import annotations

import os
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
import torch
from memory_use import memory_use
from snapshots import BASE, BEGIN_US, FRAMES, event, oom, saved, snapshot

from chameleon_lab.errors import TraceError
from chameleon_lab.planner import floor, plan
from chameleon_lab.policy import Link
from chameleon_lab.report.trace_report import TraceReport
from chameleon_lab.trace import Trace
from chameleon_lab.trace.check import check_step


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_snapshot_of_each_protocol(protocol: int, tmp_path: Path) -> None:
    trace = Trace.open(saved(snapshot(), tmp_path / "anything.bin", protocol))
    step = trace.last
    check_step(step)
    assert trace.meta["format"] == "PyTorch memory snapshot" and trace.meta["device"] == "cuda:0"
    assert [step.op_name(op) for op in range(len(step.ops))] == [
        "segment_alloc",
        "alloc",
        "alloc",
        "free_completed",
        "free_completed",
        "oom",
    ]
    lives = sorted(
        zip(
            step.storages.bytes.tolist(),
            step.storages.birth_op.tolist(),
            step.storages.death_op.tolist(),
            strict=True,
        )
    )
    assert lives == [(1000, 1, 3), (1536, -1, 6), (4096, -1, 4), (512 << 10, 2, 6)]
    assert step.live_peak_bytes == 1024 + 1536 + 4096 + (512 << 10)
    assert step.start_s == BEGIN_US * 1e-6 and step.ops.start_s[3] == pytest.approx(30e-6)
    assert set(step.modules) == {"train:forward"}
    assert step.stacks == (
        "/venv/site-packages/torch/nn/functional.py:9 linear\n/home/me/train.py:12 forward",
    )
    assert step.flame(2, "stack").bytes == step.live_peak_bytes


def test_segments_and_their_gaps(tmp_path: Path) -> None:
    rows = Trace.open(saved(snapshot(), tmp_path / "s.pickle")).last.segments
    assert rows.address.tolist() == [BASE] and rows.total_bytes.tolist() == [2 << 20]
    assert rows.allocated_bytes.tolist() == [(512 << 10) + 1536]
    assert rows.gaps.tolist() == [2]
    assert rows.largest_gap_bytes.tolist() == [(2 << 20) - 1024 - (512 << 10) - 1536]


def test_an_out_of_memory_error_says_what_had_to_leave(tmp_path: Path) -> None:
    trace = Trace.open(saved(snapshot(), tmp_path / "s.pickle"))
    (found,) = trace.meta["out_of_memory"]
    alive = int(trace.last.ops.live_peak_bytes[5])
    assert found["must_leave_bytes"] == alive + (64 << 20) - (2 << 20) - (16 << 20)
    assert trace.last.marks.from_op.tolist() == [5]
    report = TraceReport.of(trace)
    assert len(report.out_of_memory) == 1 and "had to leave" in report.out_of_memory[0]
    values = snapshot()
    values["device_traces"][0][-1] = oom(1 << 20, 0, 40)
    (found,) = Trace.open(saved(values, tmp_path / "f.pickle")).meta["out_of_memory"]
    assert found["must_leave_bytes"] == 0  # there was room in all: in gaps


def test_a_snapshot_has_a_floor_and_no_plan(tmp_path: Path) -> None:
    trace = Trace.open(saved(snapshot(), tmp_path / "s.pickle"))
    assert floor(trace).bytes >= 512 << 10
    with pytest.raises(TraceError, match="no op order: can't plan"):
        plan(trace, "50%", Link(1e9, 1e9))


def test_devices_are_steps(tmp_path: Path) -> None:
    first, third = snapshot(0), snapshot(2)
    third["device_traces"][0] = first["device_traces"][0]
    third["segments"] += first["segments"]
    trace = Trace.open(saved(third, tmp_path / "s.pickle"))
    assert [step.index for step in trace] == [0, 2]
    for step in trace:
        check_step(step)
        assert len(step.segments) == 1 and len(step.ops) == 6


def test_a_snapshot_without_history_is_its_end(tmp_path: Path) -> None:
    values = snapshot()
    values["device_traces"] = []
    step = Trace.open(saved(values, tmp_path / "s.pickle")).last
    check_step(step)
    assert step.live_peak_bytes == (512 << 10) + 1536 and len(step.storages) == 2


def test_a_block_of_the_history_is_counted_once(tmp_path: Path) -> None:
    values = snapshot()
    step = Trace.open(saved(values, tmp_path / "s.pickle")).last
    assert (step.storages.bytes == 512 << 10).sum() == 1


def test_what_pytorch_itself_writes_reads_the_same(tmp_path: Path) -> None:
    """torch's own maker of a snapshot, from a profile of the CPU."""
    from torch.cuda import _memory_viz

    with torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True) as profile:
        kept = [torch.ones(1 << 18) for _ in range(4)]
        kept.pop()
    made = _memory_viz._profile_to_snapshot(profile)
    trace = Trace.open(saved(made, tmp_path / "s.pickle"))
    check_step(trace.last)
    events = [each for rows in made["device_traces"] for each in rows]
    assert events and trace.last.live_peak_bytes >= 4 << 20
    trace.save(tmp_path / "t.parquet")
    assert len(Trace.load(tmp_path / "t.parquet").last.ops) == len(trace.last.ops)


class _Calls:
    def __reduce__(self) -> tuple:
        return os.system, ("echo owned > owned",)


def _globals() -> dict[str, bytes]:
    values = snapshot()
    values["more"] = _Calls()
    return {
        "system": pickle.dumps(values, protocol=4),
        "os.system": b"cos\nsystem\n(S'true'\ntR.",
        "GLOBAL": b"\x80\x02cos\nsystem\nq\x00.",
        "INST": b"\x80\x02(ios\nsystem\n.",
        "PERSID": b"\x80\x02Pname\n.",
        "BINPERSID": b"\x80\x02K\x01Q.",
        "EXT1": b"\x80\x02\x82\x01.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "REDUCE": b"\x80\x02K\x01)R.",
        "BUILD": b"\x80\x02}}b.",
        "NEWOBJ": b"\x80\x02K\x01)\x81.",
    }


@pytest.mark.parametrize("name", sorted(_globals()))
def test_a_pickle_that_would_run_code_is_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.pickle"
    path.write_bytes(_globals()[name])
    with pytest.raises(TraceError) as raised:
        Trace.open(path)
    assert str(path) in str(raised.value) and not (tmp_path / "owned").exists()
    if not path.read_bytes().startswith(b"c"):
        assert "refused" in str(raised.value) and name in str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02K\x01q\xffq\x05.",  # a memo with holes
        b"\x80\x04" + b"(" * 100_000 + b".",
        b"\x80\x04" + b"]" * (1 << 21) + b".",
        b"\x80\x04K\x01" + b"\x94" * (1 << 22) + b".",
        b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        b"\x80\x04X\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".",
        b"\x80\x04}(]K\x01u.",
        b"\x80\x04u.",
        b"\x80\x04.",
        b"\x80\x04",
        b"\x80\x09N.",
        b"\x80\x04h\x07.",
        b"\x80\x04N.",
        b"\x80\x04}.",
        b"\x80\x04]" + b"]a" * (1 << 20) + b".",
    ],
)
def test_hostile_pickles_are_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(data)
    with pytest.raises(TraceError) as raised:
        Trace.open(path)
    assert str(path) in str(raised.value) and len(str(raised.value)) < 500


def test_every_cut_of_a_snapshot_is_refused(tmp_path: Path) -> None:
    whole = pickle.dumps(snapshot(), protocol=4)
    path = tmp_path / "s.pickle"
    for end in range(2, len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(TraceError):
            Trace.open(path)


def test_odd_values_anywhere_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    for odd in (None, -1, 1 << 62, 1.5, "x", [], {}, (), True):
        for key in event("alloc", 1, 1, 1):
            values = snapshot()
            values["device_traces"][0][2] = values["device_traces"][0][2] | {key: odd}
            try:
                trace = Trace.open(saved(values, path))
            except TraceError:
                continue
            for step in trace:
                check_step(step)
        for key in snapshot()["segments"][0]:
            values = snapshot()
            values["segments"][0][key] = odd
            try:
                trace = Trace.open(saved(values, path))
            except TraceError:
                continue
            for step in trace:
                check_step(step)


def test_the_reader_reads_what_python_reads(tmp_path: Path) -> None:
    """Optimized pickles renumber the memo; frames may be shared by all events, or by none."""
    own = snapshot()
    own["device_traces"] = [
        [each | {"frames": [dict(f) for f in FRAMES]} for each in own["device_traces"][0]]
    ]
    plain = Trace.open(saved(snapshot(), tmp_path / "a.pickle"))
    for protocol in (2, 4):
        for values in (snapshot(), own):
            path = tmp_path / "b.pickle"
            path.write_bytes(pickletools.optimize(pickle.dumps(values, protocol=protocol)))
            read = Trace.open(path)
            for name, column in plain.last.storages.columns().items():
                np.testing.assert_array_equal(column, getattr(read.last.storages, name))


@pytest.mark.full
def test_a_large_snapshot_takes_about_twice_its_size(tmp_path: Path) -> None:
    stacks = [[{"filename": f"/home/me/{i}.py", "line": i, "name": "f"}] for i in range(500)]
    events = []
    for i in range(200_000):
        address = BASE + (i % 5000) * 4096
        events.append(event("alloc", address, 3000, 2 * i, frames=stacks[i % 500]))
        events.append(event("free_completed", address, 3000, 2 * i + 1, frames=stacks[i % 500]))
    path = saved({"segments": [], "device_traces": [events]}, tmp_path / "s.pickle")
    del events
    size = path.stat().st_size
    assert size > 18 << 20
    taken, ops = memory_use(path)
    assert ops == 400_000 and taken < 2.5 * size + (32 << 20)
