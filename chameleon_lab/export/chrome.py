"""Chrome's trace events, laid out as ``torch.profiler`` lays them out: chrome://tracing, Perfetto and HTA read them.

Host tracks are threads of one process. The device is a process of its own, named by its number, and its tracks are
streams: HTA takes what has a ``stream`` for the device's work. A lane more of a track is a thread more.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from .._version import __version__
from ..trace import Trace
from .block_events import block_events
from .timeline import HOST, Timeline, Track, timeline_of

VERSION = 1
"""Of what stands under ``chameleon_lab``, and of the names of tracks and arguments."""

HOST_PID = 1_000_000
"""Of the host's process; a device's is its number."""

CATEGORIES = {
    "steps": "user_annotation",
    "marks": "user_annotation",
    "stages": "stage",
    "modules": "module",
    "ops": "cpu_op",
    "compute": "kernel",
    "swap-outs": "gpu_memcpy",
    "swap-ins": "gpu_memcpy",
    "stalls": "stall",
    "replays": "kernel",
}
STREAMS = {"compute": 7, "replays": 8, "swap-outs": 20, "swap-ins": 21}
"""Of the tracks that are the device's work. A stall is none."""

_SORT = list(CATEGORIES)
_LANE_TIDS = 1000
_STALLS_TID, _STREAM_LANES = 9, 100


def write_chrome(trace: Trace, path: Path, compressed: bool = False) -> None:
    """Write a trace's steps as JSON, one event a line; ``compressed``: by gzip."""
    timeline = timeline_of(trace)
    with open(path, "wb") as file:
        if compressed:
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                _write(trace, timeline, cast(IO[bytes], packed))
        else:
            _write(trace, timeline, file)


def _write(trace: Trace, timeline: Timeline, file: IO[bytes]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
    text.write(_head(trace, timeline))
    events = _events(trace, timeline)
    text.write(next(events))
    for event in events:
        text.write(",\n")
        text.write(event)
    text.write("\n]}\n")
    text.flush()
    text.detach()


def _head(trace: Trace, timeline: Timeline) -> str:
    """Everything but the events. HTA reads the rank line by line, with a blank behind the colon."""
    about: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [],
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": timeline.base_ns,
        "traceName": f"chameleon-lab {__version__}",
        "chameleon_lab": {
            "version": VERSION,
            "meta": {name: value for name, value in trace.meta.items() if _is_plain(value)},
            "steps": [
                {
                    "index": step.index,
                    "session_stage": step.session_stage,
                    "start_s": step.start_s,
                    "duration_s": step.duration_s,
                }
                for step in trace.steps
            ],
        },
    }
    rank, world = trace.meta.get("rank"), trace.meta.get("world_size")
    if isinstance(rank, int):
        about["distributedInfo"] = {"rank": rank} | ({"world_size": world} if isinstance(world, int) else {})
    lines = [f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in about.items()]
    return "{\n" + ",\n".join(lines) + ',\n"traceEvents": [\n'


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _events(trace: Trace, timeline: Timeline) -> Iterator[str]:
    device = _device_number(trace)
    yield from _names(trace, timeline, device)
    numbers = _external_ids(timeline)
    for track in timeline.tracks:
        yield from _slices(track, device, numbers)
    for points in timeline.points:
        for at, name, args in zip(points.time_ns, points.names, points.args, strict=True):
            yield _json(ph="i", s="p", cat=points.kind, name=name, pid=HOST_PID, tid=0, ts=_us(at), args=args)
    for counter in timeline.counters:
        columns = [values.tolist() for values in counter.values.values()]
        for time_ns, *levels in zip(counter.time_ns.tolist(), *columns, strict=True):
            args = dict(zip(counter.values, levels, strict=True))
            yield _json(ph="C", name=counter.name, pid=device, ts=_us(time_ns), args=args)
    for number, flow in enumerate(timeline.flows):
        for ph, (track, row), more in (("s", flow.source, {}), ("f", flow.target, {"bp": "e"})):
            pid, tid = _place(track, int(track.lane[row]), device)
            ts = _us(int(track.start_ns[row]))
            yield _json(ph=ph, id=number, cat=flow.kind, name=flow.kind, pid=pid, tid=tid, ts=ts, **more)
    yield from _memory(trace, device)


def _names(trace: Trace, timeline: Timeline, device: int) -> Iterator[str]:
    named = str(trace.meta.get("device") or "cpu")
    for pid, name, order in ((HOST_PID, "Host", 0), (device, f"Device {named}", 1)):
        yield _json(ph="M", name="process_name", pid=pid, tid=0, ts=0, args={"name": name})
        yield _json(ph="M", name="process_sort_index", pid=pid, tid=0, ts=0, args={"sort_index": order})
    for track in timeline.tracks:
        for lane in range(int(track.lane.max(initial=0)) + 1):
            pid, tid = _place(track, lane, device)
            name = track.name if not lane else f"{track.name}, overlapping {lane}"
            yield _json(ph="M", name="thread_name", pid=pid, tid=tid, ts=0, args={"name": name})
            order = _SORT.index(track.kind) * _LANE_TIDS + lane
            yield _json(ph="M", name="thread_sort_index", pid=pid, tid=tid, ts=0, args={"sort_index": order})


def _place(track: Track, lane: int, device: int) -> tuple[int, int]:
    """The process and the thread of a lane."""
    if track.group == HOST:
        thread = int(track.name.rpartition(" ")[2]) if " thread " in track.name else 0
        return HOST_PID, 1 + (thread * len(_SORT) + _SORT.index(track.kind)) * _LANE_TIDS + lane
    return device, STREAMS.get(track.kind, _STALLS_TID) + lane * _STREAM_LANES


def _external_ids(timeline: Timeline) -> dict[tuple[int, int], int]:
    """A number for each op, which its work on the device has too."""
    numbers: dict[tuple[int, int], int] = {}
    for track in timeline.tracks:
        if track.kind == "ops":
            for args in track.args:
                numbers.setdefault((args["step"], args["op"]), len(numbers) + 1)
    return numbers


def _slices(track: Track, device: int, numbers: dict[tuple[int, int], int]) -> Iterator[str]:
    category, stream = CATEGORIES[track.kind], STREAMS.get(track.kind)
    with_ops = track.kind in ("ops", "compute", "replays")
    starts, ends, lanes = track.start_ns.tolist(), track.end_ns.tolist(), track.lane.tolist()
    places = [_place(track, lane, device) for lane in range(max(lanes, default=0) + 1)]
    names = {name: json.dumps(name) for name in set(track.names)}
    for name, begin, end, lane, own in zip(track.names, starts, ends, lanes, track.args, strict=True):
        args = dict(own)
        if with_ops:
            args["External id"] = numbers.get((args["step"], args["op"]), 0)
        if stream is not None:
            # Lanes that overlap are other streams to a reader that merges none.
            args |= {
                "device": device,
                "stream": stream + lane * _STREAM_LANES,
                "correlation": args.get("External id", 0),
            }
        pid, tid = places[lane]
        yield (
            f'{{"ph": "X", "cat": "{category}", "name": {names[name]}, "pid": {pid}, "tid": {tid}, '
            f'"ts": {_us(begin)}, "dur": {_us(end - begin)}, "args": {json.dumps(args)}}}'
        )


def _memory(trace: Trace, device: int) -> Iterator[str]:
    """Blocks that come to the device and leave it, as the profiler's memory points."""
    on_gpu = str(trace.meta.get("device") or "cpu").startswith("cuda")
    place = {"Device Id": device if on_gpu else -1, "Device Type": 1 if on_gpu else 0}
    allocated = 0
    for at, address, size, _, _ in block_events(trace):
        allocated += size
        args = {
            "Total Allocated": allocated,
            "Total Reserved": allocated,
            "Bytes": size,
            "Addr": address,
        } | place
        about: dict[str, Any] = {"cat": "cpu_instant_event", "pid": HOST_PID, "tid": 0, "args": args}
        yield _json(ph="i", s="t", name="[memory]", ts=_us(at), **about)


def _device_number(trace: Trace) -> int:
    name = str(trace.meta.get("device") or "cpu")
    number = name.partition(":")[2]
    return int(number) if number.isdigit() else 0


def _us(nanoseconds: int) -> str:
    sign, size = "-" * (nanoseconds < 0), abs(nanoseconds)
    return f"{sign}{size // 1000}.{size % 1000:03d}"


def _json(*, ts: str | int, **values: Any) -> str:
    """An event as JSON; its time is written already."""
    return f'{json.dumps(values)[:-1]}, "ts": {ts}}}'
