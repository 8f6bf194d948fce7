"""Chrome traces of torch.profiler as traces: of the CPU, recorded here; of a GPU, made by hand from the schema."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from memory_use import memory_use
from recordings import gpu_trace, gzipped, record, written

from chameleon_lab.errors import TraceError
from chameleon_lab.formats.ranges import enclosing, innermost, outermost
from chameleon_lab.planner import plan
from chameleon_lab.policy import Link
from chameleon_lab.report.trace_report import TraceReport
from chameleon_lab.trace import Direction, Stage, Trace
from chameleon_lab.trace.check import check_step
from chameleon_lab.trace.overlap import overlap_of


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded"))[0]


def names_of(step) -> list[str]:
    return [step.op_name(op) for op in range(len(step.ops))]


def test_a_recorded_training_has_its_steps_ops_and_memory(chrome: Path) -> None:
    trace = Trace.open(chrome)
    assert trace.meta["format"] == "Chrome trace of torch.profiler" and trace.meta["device"] == "cpu"
    assert [step.index for step in trace] == [1, 2]
    for step in trace:
        check_step(step)
        names = names_of(step)
        assert names.count("aten::linear") == 3 and names.count("aten::mm") == 5
        assert not any("Backward" in name or "evaluate_function" in name for name in names)
        stages = step.ops.stage
        assert stages[names.index("aten::linear")] == Stage.FORWARD
        assert stages[names.index("aten::mm")] == Stage.BACKWARD
        assert (stages == Stage.OPTIMIZER).any()
        linear = step.module_path(step.ops.module[names.index("aten::linear")])
        assert linear.startswith("Sequential") and ".Linear" in linear
        assert any("recordings.py" in stack for stack in step.stacks)
        assert "my forward" in step.mark_names
        # Weights, gradients and states of three layers, and what the forward keeps.
        assert step.live_peak_bytes > 3 * 96 * 96 * 4
        assert (np.diff(step.ops.start_s) >= 0).all()


def test_gzip_and_a_bare_list_read_the_same(chrome: Path, tmp_path: Path) -> None:
    plain = Trace.open(chrome)
    bare = written(json.loads(chrome.read_text())["traceEvents"], tmp_path / "bare.txt")
    for other in (gzipped(chrome), bare):
        read = Trace.open(other)
        assert names_of(read.last) == names_of(plain.last)
        assert read.last.live_peak_bytes == plain.last.live_peak_bytes


def test_without_the_profilers_steps_it_is_one(tmp_path: Path) -> None:
    trace = Trace.open(record(tmp_path, steps=False)[0])
    assert len(trace) == 1 and names_of(trace.last).count("aten::linear") == 6


def test_it_says_what_a_plan_needs(chrome: Path) -> None:
    with pytest.raises(TraceError, match="open the execution trace beside it"):
        plan(Trace.open(chrome), "50%", Link(1e9, 1e9))


def test_it_is_saved_and_read_again(chrome: Path, tmp_path: Path) -> None:
    trace = Trace.open(chrome)
    trace.save(tmp_path / "t.parquet")
    again = Trace.open(tmp_path / "t.parquet")
    assert names_of(again.last) == names_of(trace.last) and again.last.lacks == trace.last.lacks


def test_a_gpus_kernels_copies_stalls_and_overlap(tmp_path: Path) -> None:
    trace = Trace.open(written(gpu_trace(), tmp_path / "gpu.json"))
    step = trace.last
    check_step(step)
    assert trace.meta["device"] == "cuda:0" and trace.meta["kernels"] == "NVIDIA H100 80GB HBM3"
    assert (trace.meta["rank"], trace.meta["world_size"]) == (3, 8)
    assert names_of(step) == ["aten::mm", "aten::to", "aten::mm", "aten::copy_"]
    kernels = step.kernels
    assert [step.names[name] for name in kernels.name] == ["gemm_a", "gemm_b"]
    assert kernels.op.tolist() == [0, 2] and kernels.stream.tolist() == [7, 7]
    np.testing.assert_allclose(kernels.duration_s, [50e-6, 40e-6])
    np.testing.assert_allclose(step.ops.device_s, [50e-6, np.nan, 40e-6, np.nan])
    copies = step.transfers
    assert copies.direction.tolist() == [Direction.IN, Direction.OUT]
    assert copies.bytes.tolist() == [4096, 8192] and copies.issue_op.tolist() == [1, 3]
    np.testing.assert_allclose(step.stalls.duration_s, [30e-6, 20e-6], rtol=1e-6)
    assert step.stalls.op.tolist() == [
        2,
        -1,
    ]  # the second matmul waited for the copy in; nothing for the copy out
    assert overlap_of(step) == pytest.approx(1 - 50 / 90)
    # 4096 bytes were allocated before the recording; 1024 come and go; 2048 stay.
    assert step.ops.live_peak_bytes.tolist() == [5120, 5120, 7168, 7168]
    report = TraceReport.of(trace)
    assert report.kernels == 2 and report.kernel_s == pytest.approx(90e-6)


def test_a_trace_of_the_device_alone_has_its_kernels_as_ops(tmp_path: Path) -> None:
    values = gpu_trace()
    values["traceEvents"] = [e for e in values["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy")]
    step = Trace.open(written(values, tmp_path / "gpu.json")).last
    check_step(step)
    assert names_of(step) == ["gemm_a", "gemm_b"] and step.kernels.op.tolist() == [0, 1]


def test_a_cut_file_gives_what_stands_before_its_end(chrome: Path, tmp_path: Path) -> None:
    text = chrome.read_text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.index('"traceEvents"') + len(text) // 2])
    trace = Trace.open(path)
    assert trace.lost is not None and "cut" in trace.lost and len(trace.last.ops)
    packed = gzipped(chrome).read_bytes()
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(TraceError, match="gzip file is cut"):
        Trace.open(path)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"traceEvents": []}',
        '{"traceEvents": [1, null, "x", [], {}]}',
        '{"traceEvents": 3}',
        '{"a": ' + "[" * 100_000,
        '{"traceEvents": [' + '{"a":' * 100_000,
        '{"traceEvents": [{"ph": "X", "ts": NaN}]}',
        '{"traceEvents": [{"ph": "X", "ts": ' + "9" * 5000 + "}]}",
        '{"a": tru, "b": 1}',
        '{"a" 1}',
        '{"a": 1 "b"}',
        "[ {]",
    ],
)
def test_json_that_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        Trace.open(path)
    assert str(path) in str(raised.value) and len(str(raised.value)) < 500


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    import zlib

    engine = zlib.compressobj(9, wbits=31)
    parts = [engine.compress(b'{"traceEvents": [')]
    parts += [engine.compress(b" " * (1 << 20)) for _ in range(300)]
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(b"".join([*parts, engine.flush()]))
    with pytest.raises(TraceError, match="stand for more"):
        Trace.open(path)


@pytest.mark.full
def test_odd_values_anywhere_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = gpu_trace()["traceEvents"]
    for odd in (None, -1, 1 << 62, 1e308, -1e300, "x", "1e5", [], {}, True, "\ud800"):
        for row, found in enumerate(events):
            values = gpu_trace()
            for key in found:
                values["traceEvents"] = [*events[:row], found | {key: odd}, *events[row + 1 :]]
                _open_and_check(written(values, path))
            if "args" in found:
                changed = found | {"args": dict.fromkeys(found["args"], odd)}
                values["traceEvents"] = [*events[:row], changed, *events[row + 1 :]]
                _open_and_check(written(values, path))


def _open_and_check(path: Path) -> None:
    try:
        trace = Trace.open(path)
    except TraceError:
        return
    for step in trace:
        check_step(step)


@pytest.mark.full
def test_a_large_chrome_trace_takes_less_than_its_size(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for i in range(150_000):
            arguments = {"External id": i, "Record function id": i, "Ev Idx": i, "Input Dims": [[64, 96], []]}
            event = {"ph": "X", "cat": "cpu_op", "name": f"aten::op{i % 90}", "pid": 1, "tid": 1}
            event |= {"ts": i * 10.0, "dur": 9.5, "args": arguments}
            file.write(json.dumps(event) + ",\n")
        file.write('{"ph": "M", "name": "end"}]}')
    size = path.stat().st_size
    assert size > 28 << 20
    taken, ops = memory_use(path)
    assert ops == 150_000 and taken < 2 * size + (32 << 20)


def test_ranges_by_hand() -> None:
    thread = np.array([0, 0, 0, 1])
    start, end = np.array([0.0, 1.0, 5.0, 0.0]), np.array([4.0, 2.0, 6.0, 9.0])
    assert outermost(thread, start, end).tolist() == [0, 3, 2]
    at, where = np.array([1.5, 4.5, 5.5, 8.0]), np.array([0, 0, 0, 1])
    assert enclosing(thread, start, end, where, at).tolist() == [0, -1, 2, 3]
    found, parent = innermost(thread, start, end, where, at)
    assert found.tolist() == [1, -1, 2, 3] and parent.tolist() == [-1, 0, -1, -1]
    nothing = np.zeros(0)
    assert enclosing(nothing, nothing, nothing, where, at).tolist() == [-1] * 4
