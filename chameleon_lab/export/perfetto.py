"""Perfetto's own format: track events, written with the builder of the ``perfetto`` package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..trace import Trace
from .timeline import DEVICE, HOST, Counter, Flow, Timeline, Track, timeline_of

_SEQUENCE = 1
_GROUPS = {HOST: 1, DEVICE: 2}
_FIRST_TRACK = 10
_BOOTTIME, _REALTIME = 6, 1  # built-in clocks
_ORDER = (
    "steps",
    "marks",
    "stages",
    "modules",
    "ops",
    "compute",
    "swap-outs",
    "swap-ins",
    "stalls",
    "replays",
)


def write_perfetto(trace: Trace, path: Path, compressed: bool = False) -> None:
    """Write a trace's steps as a Perfetto trace. Raises ImportError without the ``perfetto`` package."""
    builder_of, messages = _import_perfetto()
    timeline = timeline_of(trace)
    with open(path, "wb") as file:
        builder = builder_of(file)
        for packet in _packets(trace, timeline, builder, messages):
            builder.write_packet(packet)


def _import_perfetto() -> tuple[Any, Any]:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError as error:
        raise ImportError(
            "Perfetto's format needs the perfetto package, which is not installed: pip install perfetto; "
            "Perfetto opens Chrome JSON (.json) too"
        ) from error
    return StreamingTraceProtoBuilder, perfetto_trace_pb2


def _packets(trace: Trace, timeline: Timeline, builder: Any, messages: Any) -> Iterator[Any]:
    packet = builder.create_packet()
    packet.trusted_packet_sequence_id = _SEQUENCE
    packet.sequence_flags = messages.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for clock, at in ((_BOOTTIME, 0), (_REALTIME, timeline.base_ns)):
        packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=at)
    yield packet
    named = str(trace.meta.get("device") or "cpu")
    explicit = messages.TrackDescriptor.EXPLICIT
    for group, name in ((HOST, "Host"), (DEVICE, f"Device {named}")):
        packet, track = _described(builder, _GROUPS[group], name, _GROUPS[group])
        track.child_ordering = explicit
        yield packet
    uuids: dict[tuple[int, int], int] = {}
    for track in timeline.tracks:
        for lane in range(int(track.lane.max(initial=0)) + 1):
            uuid = uuids[id(track), lane] = _FIRST_TRACK + len(uuids)
            # A viewer puts lanes of one name below one another.
            packet, described = _described(builder, uuid, track.name, _ORDER.index(track.kind))
            described.parent_uuid = _GROUPS[track.group]
            yield packet
    next_uuid = _FIRST_TRACK + len(uuids)
    out, into = _flow_ids(timeline.flows)
    for track in timeline.tracks:
        for lane in range(int(track.lane.max(initial=0)) + 1):
            yield from _slices(track, lane, uuids[id(track), lane], out, into, builder, messages)
    for points in timeline.points:
        packet, described = _described(builder, next_uuid, points.name, len(_ORDER))
        described.parent_uuid = _GROUPS[HOST]
        yield packet
        for at, name, args in zip(points.time_ns, points.names, points.args, strict=True):
            packet = _event(builder, next_uuid, at, messages.TrackEvent.TYPE_INSTANT)
            packet.track_event.name = name
            _annotate(packet.track_event, args)
            yield packet
        next_uuid += 1
    for counter in timeline.counters:
        packet, described = _described(builder, next_uuid, counter.name, len(_ORDER) + 1)
        described.parent_uuid = _GROUPS[DEVICE]
        yield packet
        parent, next_uuid = next_uuid, next_uuid + 1
        for name in counter.values:
            yield from _counted(counter, name, parent, next_uuid, builder, messages)
            next_uuid += 1


def _described(builder: Any, uuid: int, name: str, rank: int) -> tuple[Any, Any]:
    packet = builder.create_packet()
    packet.trusted_packet_sequence_id = _SEQUENCE
    track = packet.track_descriptor
    track.uuid, track.name, track.sibling_order_rank = uuid, name, rank
    return packet, track


def _event(builder: Any, uuid: int, at: int, kind: int) -> Any:
    packet = builder.create_packet()
    packet.trusted_packet_sequence_id = _SEQUENCE
    packet.timestamp = at
    packet.track_event.type = kind
    packet.track_event.track_uuid = uuid
    return packet


def _slices(
    track: Track, lane: int, uuid: int, out: _Ids, into: _Ids, builder: Any, messages: Any
) -> Iterator[Any]:
    """Begins and ends of a lane, at one moment ends first: the order in which a viewer has to see them."""
    rows = np.flatnonzero(track.lane == lane)
    rows = rows[np.lexsort((-track.end_ns[rows], track.start_ns[rows]))]
    begins, ends = messages.TrackEvent.TYPE_SLICE_BEGIN, messages.TrackEvent.TYPE_SLICE_END
    open_ends: list[int] = []
    for row in rows.tolist():
        begin = int(track.start_ns[row])
        while open_ends and open_ends[-1] <= begin:
            yield _event(builder, uuid, open_ends.pop(), ends)
        packet = _event(builder, uuid, begin, begins)
        event = packet.track_event
        event.name = track.names[row]
        event.categories.append(track.kind)
        event.flow_ids.extend(out.get((id(track), row), ()))
        event.terminating_flow_ids.extend(into.get((id(track), row), ()))
        _annotate(event, track.args[row])
        yield packet
        open_ends.append(int(track.end_ns[row]))
    while open_ends:
        yield _event(builder, uuid, open_ends.pop(), ends)


_Ids = dict[tuple[int, int], list[int]]


def _flow_ids(flows: list[Flow]) -> tuple[_Ids, _Ids]:
    """The arrows that leave each slice, and those that end at it."""
    out: _Ids = {}
    into: _Ids = {}
    for number, flow in enumerate(flows, 1):
        for ids, (track, row) in ((out, flow.source), (into, flow.target)):
            ids.setdefault((id(track), row), []).append(number)
    return out, into


def _annotate(event: Any, args: dict[str, Any]) -> None:
    for name, value in args.items():
        note = event.debug_annotations.add(name=name)
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, int):
            note.int_value = value
        elif isinstance(value, float):
            note.double_value = value
        else:
            note.string_value = str(value)


def _counted(
    counter: Counter, name: str, parent: int, uuid: int, builder: Any, messages: Any
) -> Iterator[Any]:
    packet, described = _described(builder, uuid, name, uuid)
    described.parent_uuid = parent
    described.counter.unit = messages.CounterDescriptor.UNIT_SIZE_BYTES
    yield packet
    values = counter.values[name]
    changed = np.append(True, values[1:] != values[:-1])
    for at, value in zip(counter.time_ns[changed].tolist(), values[changed].tolist(), strict=True):
        packet = _event(builder, uuid, at, messages.TrackEvent.TYPE_COUNTER)
        packet.track_event.counter_value = value
        yield packet
