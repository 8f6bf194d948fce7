"""Traces in the formats of other tools: nothing is lost, and other readers read it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from synthetic import dropped_step, gpt_step, random_step, swapped_step
from test_trace_store import rich_step

from chameleon_lab.errors import TraceError
from chameleon_lab.export import FORMATS, export, format_of
from chameleon_lab.export.block_events import block_events
from chameleon_lab.export.lanes import lanes_of
from chameleon_lab.export.snapshot import CATEGORIES
from chameleon_lab.export.tables import TABLE_NAMES, described_columns
from chameleon_lab.export.timeline import timeline_of
from chameleon_lab.trace import Category, Direction, Trace, Transfers
from chameleon_lab.trace.occupancy import resident_by_category

META = {"torch": "2.13.0", "device": "cpu", "capacity_bytes": 1 << 24}


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Two steps that swap, and one that drops."""
    swapped, _ = swapped_step()
    dropped, _ = dropped_step()
    steps = [swapped, replace(swapped, index=1, start_s=100.0), replace(dropped, index=2, start_s=200.0)]
    return Trace(steps, META)


def chrome(trace: Trace, path: Path) -> dict:
    export(trace, path)
    return json.loads(path.read_text())


def slices_by_thread(found: dict) -> dict[tuple[int, int], list[tuple[int, int]]]:
    threads = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            threads[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    return threads


def overlapping(slices: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that begin in another one and end after it."""
    found, ends = [], []
    for begin, end in sorted(slices, key=lambda each: (each[0], -each[1])):
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            found.append((begin, end))
        ends.append(end)
    return found


# ---------------------------------------------------------------------------------------------------- choosing


def test_the_format_follows_the_ending():
    assert format_of("a/run.json") == format_of("run.JSON.gz") == "chrome"
    assert format_of("run.pftrace") == "perfetto"
    assert format_of("run.json", "csv") == "csv"
    for each in FORMATS.values():
        assert {format_of(f"run{ending}") for ending in each.endings} == {each.name}


@pytest.mark.parametrize(
    ("path", "arguments", "told"),
    [
        ("run.xls", {}, r"run\.xls: its ending is that of no format: end the name in one of \.json"),
        ("run", {}, "or give the format"),
        ("run.json", {"format": "xls"}, "there is no format 'xls': give one of chrome"),
        ("run.json", {"table": "ops"}, "chrome has no tables"),
        ("run.csv", {"table": "opps"}, "there is no table 'opps': give one of steps, ops"),
        ("run.json", {"step": 7}, "no step 7 with an op: it has 0, 1, 2"),
    ],
)
def test_what_does_not_exist_is_named(trace, tmp_path, path, arguments, told):
    with pytest.raises(ValueError, match=told):
        trace.export(tmp_path / path, **arguments)
    assert not list(tmp_path.iterdir())


def test_an_empty_trace_says_so(tmp_path):
    with pytest.raises(TraceError, match="holds no op"):
        Trace([]).export(tmp_path / "run.json")


def test_a_name_that_no_file_has_is_refused(trace, tmp_path):
    with pytest.raises(TraceError, match="null character"):
        trace.export(f"{tmp_path}/a\0.json")


def test_what_fails_leaves_the_old_file(trace, tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chameleon_lab.export.chrome._head", broken)
    with pytest.raises(OSError, match="No space"):
        trace.export(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------------------------------------- lanes


@pytest.mark.parametrize("seed", range(20))
def test_slices_on_one_lane_follow_each_other_or_nest(seed):
    random = np.random.default_rng(seed)
    start = random.integers(0, 60, 80)
    end = start + random.integers(0, 12, 80)
    lane = lanes_of(start, end)
    assert len(lane) == 80
    for number in range(int(lane.max()) + 1):
        rows = np.flatnonzero(lane == number)
        assert len(rows)
        assert not overlapping(list(zip(start[rows].tolist(), end[rows].tolist(), strict=True)))


def test_what_does_not_overlap_takes_one_lane():
    start = np.array([5, 0, 9])
    assert lanes_of(start, start + 4).tolist() == [0, 0, 0]


# ---------------------------------------------------------------------------------------------------- Chrome


def test_chrome_has_every_op_copy_stall_and_replay(trace, tmp_path):
    found = chrome(trace, tmp_path / "run.json")
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    count = Counter(event["cat"] for event in events)
    assert count["cpu_op"] == sum(len(step.ops) for step in trace)
    assert count["gpu_memcpy"] == sum(len(step.transfers) for step in trace)
    assert count["stall"] == sum(len(step.stalls) for step in trace)
    replays = [event for event in events if event["cat"] == "kernel" and "cause" in event["args"]]
    assert len(replays) == sum(len(step.replays) for step in trace) > 0
    assert [e["name"] for e in events if e["name"].startswith("ProfilerStep#")] == [
        f"ProfilerStep#{step.index}" for step in trace
    ]
    first = trace.steps[0]
    ops = [event for event in events if event["cat"] == "cpu_op" and event["args"]["step"] == 0]
    assert [event["name"] for event in ops] == [first.op_name(op) for op in range(len(first.ops))]
    assert [event["ts"] for event in ops] == pytest.approx(first.ops.start_s * 1e6, abs=2e-3)
    assert [event["dur"] for event in ops] == pytest.approx(first.ops.duration_s * 1e6, abs=2e-3)
    modules = {event["name"] for event in events if event["cat"] == "module"}
    assert set(first.modules) - {""} <= modules


def test_chrome_keeps_the_way_and_the_bytes_of_copies(trace, tmp_path):
    found = chrome(trace, tmp_path / "run.json")
    for way, name in ((Direction.OUT, "DtoH"), (Direction.IN, "HtoD")):
        copied = [e for e in found["traceEvents"] if e.get("cat") == "gpu_memcpy" and name in e["name"]]
        expected = sum(int(step.transfers.bytes[step.transfers.direction == way].sum()) for step in trace)
        assert sum(event["args"]["bytes"] for event in copied) == expected > 0
        assert {event["args"]["stream"] for event in copied} == {20 if way == Direction.OUT else 21}


def test_chrome_overlaps_nothing_on_a_thread(trace, tmp_path):
    for slices in slices_by_thread(chrome(trace, tmp_path / "run.json")).values():
        assert not overlapping(slices)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_chrome_is_read_again(tmp_path, name):
    """As a profiler's trace is: what the format holds, not which storages the ops use."""
    trace = Trace([gpt_step()])
    export(trace, tmp_path / name)
    (found,) = Trace.open(tmp_path / name)
    (step,) = trace
    assert found.index == step.index
    assert [found.op_name(op) for op in range(len(found.ops))] == [
        step.op_name(op) for op in range(len(step.ops))
    ]
    assert found.ops.duration_s == pytest.approx(step.ops.duration_s, abs=1e-6)


def test_copies_that_overlap_are_all_there(tmp_path):
    step = gpt_step(layers=2)
    count = 6
    start = np.linspace(0, 0.01, count)
    copies = Transfers(
        storage=np.arange(count, dtype=np.int32),
        direction=np.zeros(count, dtype=np.uint8),
        cause=np.zeros(count, dtype=np.uint8),
        bytes=np.full(count, 64),
        issue_op=np.zeros(count, dtype=np.int32),
        issue_s=start,
        start_s=np.append(start[:-1], np.nan),
        end_s=np.append(start[:-1] + 0.0065, np.nan),  # each overlaps three others; the last has not begun
    )
    found = chrome(Trace([replace(step, transfers=copies)], META), tmp_path / "run.json")
    copied = [event for event in found["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    assert len(copied) == count
    assert [event["args"].get("unfinished", False) for event in copied] == [False] * 5 + [True]
    threads = {(event["pid"], event["tid"]) for event in copied}
    assert len(threads) > 2
    for slices in slices_by_thread(found).values():
        assert not overlapping(slices)
    named = {(e["pid"], e["tid"]) for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert threads <= named


def test_chrome_leads_from_a_swap_out_to_its_swap_in(trace, tmp_path):
    found = chrome(trace, tmp_path / "run.json")
    arrows = [event for event in found["traceEvents"] if event["ph"] in "sf" and event["cat"] == "swap"]
    slices = {
        (event["pid"], event["tid"], event["ts"]): event
        for event in found["traceEvents"]
        if event.get("cat") == "gpu_memcpy"
    }
    ends = defaultdict(dict)
    for arrow in arrows:
        ends[arrow["id"]][arrow["ph"]] = slices[arrow["pid"], arrow["tid"], arrow["ts"]]
    assert len(ends) >= sum(int((step.transfers.direction == Direction.IN).sum()) for step in trace) / 2 > 0
    for pair in ends.values():
        assert pair["s"]["args"]["storage"] == pair["f"]["args"]["storage"]
        assert "DtoH" in pair["s"]["name"] and "HtoD" in pair["f"]["name"]
        assert pair["s"]["ts"] <= pair["f"]["ts"]


def test_chrome_counts_the_resident_bytes(trace, tmp_path):
    found = chrome(trace, tmp_path / "run.json")
    counted = [e for e in found["traceEvents"] if e["ph"] == "C" and e["name"] == "Resident bytes"]
    times, levels = resident_by_category(trace.steps[0])
    for event, at, row in zip(counted, times.tolist(), levels.tolist(), strict=False):
        assert event["ts"] == pytest.approx(at * 1e6, abs=2e-3)
        assert event["args"] == {category.name.lower(): row[category] for category in Category}


def test_chrome_is_what_hta_reads_a_rank_from(trace, tmp_path):
    path = tmp_path / "run.json"
    replace(trace, meta=META | {"rank": 3, "world_size": 4}).export(path)
    assert any('"rank": 3' in line for line in path.read_text().splitlines())
    assert json.loads(path.read_text())["distributedInfo"] == {"rank": 3, "world_size": 4}


def test_chrome_compressed_holds_the_same(trace, tmp_path):
    trace.export(tmp_path / "run.json")
    trace.export(tmp_path / "run.json.gz")
    plain, packed = ((tmp_path / name).read_bytes() for name in ("run.json", "run.json.gz"))
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 4


def test_one_step_can_be_chosen(trace, tmp_path):
    trace.export(tmp_path / "run.json", step=1)
    found = json.loads((tmp_path / "run.json").read_text())
    assert [each["index"] for each in found["chameleon_lab"]["steps"]] == [1]


def test_measured_times_of_the_device_follow_one_another():
    step = gpt_step(layers=2)
    step = replace(step, ops=replace(step.ops, device_s=step.ops.duration_s * 2))
    track = next(track for track in timeline_of(Trace([step], META)).tracks if track.kind == "compute")
    assert (track.start_ns[1:] >= track.end_ns[:-1]).all()
    took = (track.end_ns - track.start_ns).sum()
    assert took == pytest.approx(2e9 * step.ops.duration_s.sum(), abs=len(track))


def test_the_device_does_not_compute_during_a_stall(trace):
    tracks = {track.kind: track for track in timeline_of(trace).tracks}
    compute, stalls = tracks["compute"], tracks["stalls"]
    assert len(stalls)
    for begin, end in zip(stalls.start_ns.tolist(), stalls.end_ns.tolist(), strict=True):
        inside = np.minimum(compute.end_ns, end) - np.maximum(compute.start_ns, begin)
        assert inside.max() <= 1  # rounded to nanoseconds


def test_rows_of_every_table_are_drawn(tmp_path):
    found = chrome(Trace([rich_step()], META), tmp_path / "run.json")
    kinds = {event.get("cat") for event in found["traceEvents"]}
    assert {
        "user_annotation",
        "stage",
        "module",
        "cpu_op",
        "kernel",
        "gpu_memcpy",
        "stall",
        "pauses",
    } <= kinds
    assert any(event["name"] == "my step" for event in found["traceEvents"])


# ---------------------------------------------------------------------------------------------------- tables


def test_csv_has_a_file_for_each_table(trace, tmp_path):
    written = trace.export(tmp_path / "run.csv")
    assert [path.name for path in written] == [f"run.{name}.csv" for name in TABLE_NAMES]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "run.transfers.csv").read_text())))
    columns = trace.steps[0].transfers
    own = [row for row in rows if row["step"] == "0"]
    assert [int(row["bytes"]) for row in own] == columns.bytes.tolist()
    assert [float(row["start_s"]) for row in own] == columns.start_s.tolist()
    assert [row["direction"] for row in own] == [
        Direction(i).name.lower() for i in columns.direction.tolist()
    ]
    ops = list(csv.DictReader(io.StringIO((tmp_path / "run.ops.csv").read_text())))
    step = trace.steps[0]
    assert [row["name"] for row in ops[: len(step.ops)]] == [step.op_name(op) for op in range(len(step.ops))]
    assert {row["device_s"] for row in ops} == {""}  # not measured


def test_parquet_says_units_and_meanings(trace, tmp_path):
    trace.export(tmp_path / "run", format="parquet")
    for name in TABLE_NAMES:
        table = parquet.read_table(tmp_path / f"run.{name}.parquet")
        described = described_columns(name)
        assert table.column_names == list(described)
        for column, (_, unit, meaning) in described.items():
            told = table.schema.field(column).metadata or {}
            assert told.get(b"unit", b"").decode() == unit
            assert told.get(b"meaning", b"").decode() == meaning
            if column.endswith("_s"):
                assert unit == "s"
            if column.endswith("_bytes"):
                assert unit == "bytes"
    storages = parquet.read_table(tmp_path / "run.storages.parquet").to_pylist()
    step = trace.steps[0]
    own = [row for row in storages if row["step"] == 0]
    assert [row["key"] for row in own] == list(step.storage_keys)
    assert [row["category"] for row in own] == [Category(i).name.lower() for i in step.storages.category]


def test_parquet_takes_every_column(tmp_path):
    step = rich_step()
    Trace([step], META).export(tmp_path / "run.parquet")
    stacks = parquet.read_table(tmp_path / "run.ops.parquet").column("stack").to_pylist()
    assert stacks[:2] == [None, step.stacks[0]]
    makings = parquet.read_table(tmp_path / "run.makings.parquet").to_pylist()
    assert makings[2]["refusal"] == step.reasons[6] and makings[2]["name"] is None


def test_one_table_is_written_to_the_path_itself(trace, tmp_path):
    assert trace.export(tmp_path / "ops.csv", table="ops") == [tmp_path / "ops.csv"]
    assert [path.name for path in tmp_path.iterdir()] == ["ops.csv"]


# ---------------------------------------------------------------------------------------------------- Perfetto


def test_perfetto_reads_back(trace, tmp_path):
    pytest.importorskip("perfetto", reason="the perfetto package is not installed")
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Parsed
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    path = tmp_path / "run.pftrace"
    trace.export(path)
    parsed = Parsed()
    parsed.ParseFromString(path.read_bytes())
    tracks = {
        p.track_descriptor.uuid: p.track_descriptor for p in parsed.packet if p.HasField("track_descriptor")
    }
    slices, counted, flows, ends = defaultdict(list), defaultdict(list), Counter(), Counter()
    opened: dict[int, list] = defaultdict(list)
    clock: dict[int, int] = {}
    for packet in parsed.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert packet.timestamp >= clock.get(event.track_uuid, 0)
        clock[event.track_uuid] = packet.timestamp
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            opened[event.track_uuid].append((packet.timestamp, event))
            flows.update(event.flow_ids)
            ends.update(event.terminating_flow_ids)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begin, event_of = opened[event.track_uuid].pop()
            slices[tracks[event.track_uuid].name].append((begin, packet.timestamp, event_of.name))
        elif event.type == TrackEvent.TYPE_COUNTER:
            counted[tracks[event.track_uuid].name].append((packet.timestamp, event.counter_value))
    assert not any(opened.values())
    expected = timeline_of(trace)
    for track in expected.tracks:
        rows = zip(track.start_ns.tolist(), track.end_ns.tolist(), track.names, strict=True)
        assert sorted(slices[track.name]) == sorted(rows)
    resident = next(counter for counter in expected.counters if counter.name == "Resident bytes")
    for name, values in resident.values.items():
        assert counted[name][-1][1] == values[-1]
        assert max(value for _, value in counted[name]) == values.max()
    assert len(flows) == len(expected.flows) > 0
    assert flows == ends and set(flows.values()) == {1}
    kinds = Counter(flow.kind for flow in expected.flows)
    assert kinds["decision"] and kinds["swap"]
    assert {tracks[1].name, tracks[2].name} == {"Host", "Device cpu"}


def test_without_the_package_perfetto_says_so(trace, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "perfetto", None)
    monkeypatch.setitem(__import__("sys").modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(ImportError, match=r"pip install perfetto.*\.json"):
        trace.export(tmp_path / "run.pftrace")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------- snapshot


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")


def read_snapshot(path: Path) -> dict:
    return _PlainUnpickler(io.BytesIO(path.read_bytes())).load()


def test_the_snapshot_holds_what_was_resident(trace, tmp_path):
    path = tmp_path / "run.pickle"
    trace.export(path)
    snapshot = read_snapshot(path)
    (events,) = snapshot["device_traces"]
    assert all("category" in event for event in events)
    assert {event["category"] for event in events} >= {"parameter", "activation", "unknown"}
    assert {event["category"] for event in events} <= set(CATEGORIES.values())
    sizes: dict[int, int] = {}
    peak = 0
    for event in events:
        if event["action"] == "alloc":
            here, size = event["addr"], event["size"]
            assert all(here + size <= other or other + sizes[other] <= here for other in sizes)
            sizes[here] = size
            peak = max(peak, sum(sizes.values()))
        elif event["action"] == "free_completed":
            assert sizes.pop(event["addr"]) == event["size"]
    expected = max(int(resident_by_category(step)[1].sum(axis=1).max()) for step in trace)
    assert peak == expected
    (segment,) = snapshot["segments"]
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at
        at += block["size"]
    assert at == segment["address"] + segment["total_size"]
    there = {b["address"]: b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"}
    assert there == sizes
    times = [event["time_us"] for event in events]
    assert times == sorted(times)


def test_pytorch_reads_the_snapshot(trace, tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    trace.export(tmp_path / "run.pickle")
    snapshot = read_snapshot(tmp_path / "run.pickle")
    events = len(snapshot["device_traces"][0])
    assert f"{events} entries" in viz.trace(snapshot)
    assert "Summary of segments" in viz.segsum(snapshot)
    assert "Device 0" in viz.trace(snapshot)
    assert viz.segments(snapshot, format_flamegraph=str)
    assert "parameter:" in viz.memory(snapshot, format_flamegraph=str)
    assert "Active Memory Timeline" in viz.trace_plot(snapshot)


def test_a_snapshot_without_unknown_storages_names_the_category_all_the_same(tmp_path):
    step = gpt_step(layers=1)
    category = np.where(step.storages.category == Category.OTHER, Category.ACTIVATION, step.storages.category)
    step = replace(step, storages=replace(step.storages, category=category.astype(np.uint8)))
    Trace([step], META).export(tmp_path / "run.pickle")
    (events,) = read_snapshot(tmp_path / "run.pickle")["device_traces"]
    assert "unknown" in {event["category"] for event in events}


def test_the_device_of_a_snapshot_is_its_number(tmp_path):
    Trace([gpt_step(layers=1)], META | {"device": "cuda:2"}).export(tmp_path / "run.pickle")
    snapshot = read_snapshot(tmp_path / "run.pickle")
    assert [bool(events) for events in snapshot["device_traces"]] == [False, False, True]
    assert [segment["device"] for segment in snapshot["segments"]] == [2]


@pytest.mark.parametrize("seed", range(10))
def test_blocks_come_and_leave_in_turn(seed):
    steps = [random_step(seed), replace(random_step(seed), index=1, start_s=10.0)]
    there: dict[int, int] = {}
    for event in block_events(Trace(steps, META)):
        if event.bytes > 0:
            assert event.address not in there
            there[event.address] = event.bytes
        else:
            assert there.pop(event.address) == -event.bytes
