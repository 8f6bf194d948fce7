"""Memory snapshots of PyTorch: ``torch.cuda.memory._dump_snapshot``, and what its observer of OOM errors writes.

A snapshot has, of each device, the allocator's segments at its end, and the newest of its events. A device becomes a
step, and an event an op: there are no others, so a snapshot cannot be planned. Its floor, the largest allocation, is
still a bound that no policy goes below.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import TraceError
from ..trace import Category, Marks, Ops, Segments, StepTrace, Storages, Trace
from ..trace.alive_bytes import alive_bytes
from ..trace.flame import own_frames
from ..util.units import format_bytes
from .build import (
    Names,
    bytes_of,
    clean,
    constant,
    filled,
    limited,
    made_step,
    ordinals,
    whole_number,
)
from .plain_pickle import PlainPickle
from .source import Source

FORMAT = "PyTorch memory snapshot"
LACKS = "a memory snapshot has no op order: can't plan; record an execution trace of the run, and open that"

_BLOCK_BYTES = 512
"""The caching allocator's sizes are multiples of it."""
_LONGEST_STACK = 1 << 15
_MOST_DEVICES = 1024
_MOST_OOMS = 100
_MOST_ADDRESS = 1 << 62
_ACTIONS = (
    "alloc",
    "free_completed",
    "free_requested",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "user_defined",
)
_ALLOC, _FREED, _FREE, _OOM = 0, 1, 2, 7
_RESERVES = {3: 1, 4: -1, 5: 1, 6: -1}
_OTHER = len(_ACTIONS)
_CODES = {name: number for number, name in enumerate(_ACTIONS)}


class _Event:
    """Stands where an event was."""


_EVENT = _Event()


@dataclass(frozen=True)
class _Frame:
    text: str


class _Events:
    """The events of all devices as columns, in the order in which they stand in the file."""

    def __init__(self) -> None:
        self.action, self.stack = array("b"), array("i")
        self.address, self.size, self.time = array("Q"), array("q"), array("q")
        self.stacks = Names(longest=_LONGEST_STACK)
        self._frames: dict[tuple[Any, Any, Any], _Frame] = {}
        self._of_list: dict[int, tuple[list[Any], int]] = {}

    def take(self, value: dict[Any, Any]) -> tuple[Any, int]:
        """For :class:`PlainPickle`: events become rows, and frames texts."""
        if "action" in value:
            frames, pool = value.get("frames"), value.get("pool_id")
            address = value.get("addr", value.get("device_free"))
            self.action.append(_CODES.get(_text(value["action"]), _OTHER))
            self.address.append(whole_number(address, 0, (1 << 64) - 1))
            self.size.append(bytes_of(value.get("size")))
            self.time.append(whole_number(value.get("time_us"), 0, 1 << 53))
            fresh = type(frames) is list and id(frames) not in self._of_list
            self.stack.append(self.stack_of(frames))
            return _EVENT, 1 + (type(pool) is tuple) + fresh
        if "filename" in value and "line" in value:
            key = (value["filename"], value["line"], value.get("name"))
            if any(type(part) not in (str, int, type(None)) for part in key):
                return value, 0
            found = self._frames.get(key)
            if found is None:
                file, line, function = (clean(str(part)) for part in key)
                found = self._frames[key] = _Frame(f"{file}:{line} {function}".replace("\n", " "))
            return found, 1
        return value, 0

    def stack_of(self, frames: Any) -> int:
        """The number of a stack; -1 where there is none. Stacks that several events share are read once."""
        if type(frames) is not list:
            return -1
        known = self._of_list.get(id(frames))
        if known is not None:
            return known[1]
        if not frames:
            return -1
        text = "\n".join(frame.text for frame in frames[:200] if type(frame) is _Frame)
        number = self.stacks.number(text) if text else -1
        frames.clear()
        self._of_list[id(frames)] = frames, number
        return number

    def by_device(self, counts: list[int]) -> list[_History]:
        """The events of each device. What is kept here of them is gone afterwards."""
        columns = {
            "action": np.frombuffer(self.action, dtype="int8"),
            "address": np.frombuffer(self.address, dtype="uint64"),
            "bytes": np.frombuffer(self.size, dtype="int64"),
            "time_us": np.frombuffer(self.time, dtype="int64"),
            "stack": np.frombuffer(self.stack, dtype="int32"),
        }
        del self.action, self.address, self.size, self.time, self.stack
        found, first = [], 0
        for count in counts:
            rows = slice(first, first + count)
            # A free that is asked for is followed by the one that is done, but for what waits at the snapshot's end.
            kept = columns["action"][rows] != _FREE
            found.append(_History(**{name: column[rows][kept] for name, column in columns.items()}))
            first += count
        return found


@dataclass
class _History:
    """The events of a device, in order."""

    action: np.ndarray
    address: np.ndarray
    """Of an out-of-memory error, the bytes that were free on the device."""
    bytes: np.ndarray
    time_us: np.ndarray
    stack: np.ndarray


_AT_END = _History(
    np.array([8], "int8"),
    np.zeros(1, "uint64"),
    np.zeros(1, "int64"),
    np.zeros(1, "int64"),
    np.full(1, -1, "int32"),
)
"""A snapshot without history is its end: an event of its own."""


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def read_memory_snapshot(source: Source) -> Trace:
    """A trace of one step a device. Raises TraceError if the file is damaged, hostile, or no snapshot."""
    events = _Events()
    found = PlainPickle(source, events.take).load()
    if type(found) is not dict or type(found.get("segments")) is not list:
        raise TraceError(
            f"{source.path}: this pickle is no memory snapshot: it has no list of segments; give what "
            "torch.cuda.memory._dump_snapshot wrote"
        )
    traces = found.get("device_traces")
    lists = traces if type(traces) is list else []
    if len(lists) > _MOST_DEVICES:
        raise TraceError(
            f"{source.path}: the snapshot has {len(lists)} devices, and at most {_MOST_DEVICES} are read"
        )
    counts = [len(each) if type(each) is list else 0 for each in lists]
    if sum(counts) != len(events.action) or any(
        each is not _EVENT for rows in lists if type(rows) is list for each in rows
    ):
        raise TraceError(f"{source.path}: the snapshot's events are not in order; write it again")
    found.pop("device_traces", None)
    del lists, traces
    blocks = _Blocks(found["segments"], events)
    del found
    devices = max(len(counts), blocks.devices)
    history = events.by_device(counts + [0] * (devices - len(counts)))
    stacks = events.stacks.texts()
    del events
    steps, ooms = [], []
    for device in range(devices):
        step, oom = _step(device, history.pop(0), blocks, stacks)
        if step is not None:
            steps.append(step)
            ooms += oom
    if not steps:
        raise TraceError(
            f"{source.path}: the snapshot has no event and no block: call torch.cuda.memory._record_memory_history() "
            "before the training"
        )
    meta: dict[str, Any] = {"format": FORMAT, "device": f"cuda:{steps[-1].index}"}
    if ooms:
        meta["out_of_memory"] = ooms
    return Trace(steps, meta)


class _Blocks:
    """The segments and the blocks in use, at the snapshot's end."""

    def __init__(self, segments: list[Any], events: _Events) -> None:
        self.kinds = Names()
        rows: list[tuple[int, ...]] = []
        blocks: list[tuple[int, ...]] = []
        for segment in segments:
            if type(segment) is not dict:
                continue
            device = whole_number(segment.get("device"), 0, _MOST_DEVICES - 1)
            begin = whole_number(segment.get("address"), 0, _MOST_ADDRESS)
            total = bytes_of(segment.get("total_size"))
            kind = _text(segment.get("segment_type")) or "unknown"
            kind += ", expandable" if segment.get("is_expandable") is True else ""
            used, gaps, largest, at, open_gap = 0, 0, 0, begin, 0
            inner = segment.get("blocks")
            for block in inner if type(inner) is list else ():
                if type(block) is not dict:
                    continue
                size, state = bytes_of(block.get("size")), _text(block.get("state"))
                address = whole_number(block.get("address"), 0, _MOST_ADDRESS, min(at, _MOST_ADDRESS))
                at = address + size
                if state.startswith("active"):
                    wanted = bytes_of(block.get("requested_size")) or size
                    stack = events.stack_of(block.get("frames"))
                    blocks.append((device, address, size, wanted, stack))
                    used += size
                    open_gap = 0
                elif size:
                    gaps += open_gap == 0
                    open_gap += size
                    largest = max(largest, open_gap)
            stream = whole_number(segment.get("stream"))
            used, largest = min(used, _MOST_ADDRESS), min(largest, _MOST_ADDRESS)
            rows.append((device, begin, total, used, gaps, largest, stream, self.kinds.number(kind)))
        self._rows = np.array(rows, dtype=np.int64).reshape(-1, 8)
        self._blocks = np.array(blocks, dtype=np.int64).reshape(-1, 5)
        self.devices = 1 + int(max(self._rows[:, 0].max(initial=-1), self._blocks[:, 0].max(initial=-1)))

    def of(self, device: int) -> np.ndarray:
        """int64 (blocks, 4): address, size, requested size and stack of the blocks in use."""
        rows: np.ndarray = self._blocks[self._blocks[:, 0] == device]
        return rows[:, 1:]

    def segments(self, device: int, names: Names) -> Segments:
        """A device's segments; their kinds are in ``names``."""
        rows = self._rows[self._rows[:, 0] == device]
        numbers = np.array([names.number(text) for text in self.kinds.texts()] or [0])
        return filled(
            Segments,
            len(rows),
            address=rows[:, 1],
            total_bytes=limited(rows[:, 2]),
            allocated_bytes=limited(rows[:, 3]),
            gaps=rows[:, 4],
            largest_gap_bytes=limited(rows[:, 5]),
            stream=rows[:, 6],
            kind=numbers[rows[:, 7]],
        )


def _step(
    device: int, history: _History, blocks: _Blocks, stacks: tuple[str, ...]
) -> tuple[StepTrace | None, list[dict[str, Any]]]:
    """A device's step, and what is to be said of its out-of-memory errors."""
    live = blocks.of(device)
    names = Names()
    segments = blocks.segments(device, names)
    if not len(history.action):
        if not len(live):
            return None, []
        history = _AT_END
    n = len(history.action)
    action, stack = history.action, history.stack
    start_s, begin_s = _clock(history.time_us)
    lives, ooms = _lives(history, live), _Ooms(history, segments)
    del history  # a long one takes as much memory as all that is made of it
    block_bytes = limited(-(-lives.bytes // _BLOCK_BYTES) * _BLOCK_BYTES)
    alive = alive_bytes(n, lives.birth_op, lives.death_op, block_bytes)
    duration_s = float(start_s[-1])
    modules = Names()
    # The last place stands for no stack, -1.
    module_of = np.array([modules.number(_own_place(each)) for each in stacks] + [-1], dtype=np.int32)
    name_of = np.array([names.number(name) for name in (*_ACTIONS, "other")], dtype=np.int32)
    ops = filled(
        Ops,
        n,
        name=name_of[action],
        stack=stack,
        start_s=start_s,
        duration_s=np.diff(start_s, append=duration_s),
        live_peak_bytes=alive,
        resident_peak_bytes=alive,
        module=module_of[stack],
        plan_op=constant(-1, n, "int32"),
    )
    count = len(lives.bytes)
    storages = filled(
        Storages,
        count,
        uid=np.arange(count),
        bytes=np.minimum(lives.bytes, block_bytes),
        block_bytes=block_bytes,
        category=constant(Category.OTHER, count, "uint8"),
        module=module_of[lives.stack],
        name=constant(-1, count, "int32"),
        birth_op=lives.birth_op,
        birth_ordinal=ordinals(lives.birth_op),
        death_op=lives.death_op,
        movable=constant(True, count, "bool"),
    )
    marks, mark_names, facts = ooms.told(device, start_s, alive)
    step = made_step(
        device,
        begin_s,
        duration_s,
        ops,
        storages,
        names=names.texts(),
        modules=modules.texts(),
        stacks=stacks,
        segments=segments,
        marks=marks,
        mark_names=mark_names,
        lacks=LACKS,
    )
    return step, facts


def _clock(time_us: np.ndarray) -> tuple[np.ndarray, float]:
    """Seconds from the first event on, never falling, and when that was; without times, a microsecond an event."""
    if not (time_us > 0).all():
        return np.arange(len(time_us)) * 1e-6, 0.0
    first = int(time_us[0])
    return np.maximum.accumulate((time_us - first) * 1e-6), first * 1e-6


def _own_place(stack: str) -> str:
    """Where in the user's own code a stack stands, as file and function: it takes the place of a module."""
    place, _, function = own_frames(stack)[-1].rpartition(" ")
    file = place.rpartition(":")[0].rpartition("/")[2]
    return f"{file.removesuffix('.py')}:{function}"


@dataclass
class _Lives:
    birth_op: np.ndarray
    death_op: np.ndarray
    bytes: np.ndarray
    stack: np.ndarray


def _lives(history: _History, live: np.ndarray) -> _Lives:
    """From when to when blocks are in use: an allocation goes with the next free of its address."""
    n = len(history.action)
    of_blocks = np.flatnonzero(history.action <= _FREED).astype(np.int32)
    order = of_blocks[np.argsort(history.address[of_blocks], kind="stable")]
    there, code = history.address[order], history.action[order]
    same = np.zeros(len(order), dtype=bool)
    same[:-1] = there[1:] == there[:-1]
    # What is allocated again at its address has been freed before, though nobody saw it.
    ends = np.full(len(order), n, dtype=np.int32)
    ends[:-1] = np.where(same[:-1], order[1:], n)
    freed_next = np.zeros(len(order), dtype=bool)
    freed_next[:-1] = same[:-1] & (code[1:] == _FREED)
    allocs = code == _ALLOC
    birth = order[allocs]
    death = np.where(freed_next[allocs], ends[allocs], np.where(same[allocs], ends[allocs] - 1, n))
    sizes = history.bytes[birth]
    # A free without an allocation before it, and blocks of the end that nobody saw come: from before the first event.
    alone = ~allocs
    alone[1:] &= ~(same[:-1] & allocs[:-1])
    carried_death, carried_size = order[alone], history.bytes[order[alone]]
    known = np.isin(live[:, 0].astype(np.uint64), there)
    left = live[~known]
    birth_op = np.concatenate([birth, np.full(len(carried_death) + len(left), -1, np.int32)])
    death_op = np.concatenate([death, carried_death, np.full(len(left), n, np.int32)])
    sizes = np.concatenate([sizes, carried_size, left[:, 2]])
    stacks = np.concatenate([history.stack[birth], np.full(len(carried_death), -1), left[:, 3]])
    del of_blocks, order, there, code, same, ends, freed_next, allocs, alone
    # In the order of their births.
    by_birth = np.argsort(birth_op, kind="stable")
    return _Lives(
        birth_op[by_birth].astype(np.int32),
        death_op[by_birth].astype(np.int32),
        sizes[by_birth],
        stacks[by_birth],
    )


class _Ooms:
    """The out-of-memory errors of a device."""

    def __init__(self, history: _History, segments: Segments) -> None:
        self._rows = np.flatnonzero(history.action == _OOM)
        self._wanted, self._free = history.bytes[self._rows], history.address[self._rows]
        self._reserved = np.zeros(0, dtype=np.int64)
        if len(self._rows):
            sign = np.array([_RESERVES.get(code, 0) for code in range(_OTHER + 1)])[history.action]
            change = limited(history.bytes) * sign
            after = int(segments.total_bytes.sum()) - change.sum() + np.cumsum(change)
            self._reserved = np.maximum(after[self._rows], 0)

    def told(
        self, device: int, start_s: np.ndarray, alive: np.ndarray
    ) -> tuple[Marks, tuple[str, ...], list[dict[str, Any]]]:
        """A mark for each, and its figures."""
        words, numbers = Names(), []
        facts: list[dict[str, Any]] = []
        for row, wanted, free, reserved in zip(
            self._rows.tolist(),
            self._wanted.tolist(),
            self._free.tolist(),
            self._reserved.tolist(),
            strict=True,
        ):
            left = min(free, 1 << 50)
            must_leave = max(int(alive[row]) + wanted - reserved - left, 0)
            text = (
                f"Out of memory: {format_bytes(wanted)} asked for, {format_bytes(left)} free on the device; "
            )
            if must_leave:
                text += f"{format_bytes(must_leave)} had to leave"
            else:
                text += "there was room, but in no stretch that was long enough"
            numbers.append(words.number(text))
            figures = {
                "requested_bytes": wanted,
                "free_bytes": left,
                "alive_bytes": int(alive[row]),
                "reserved_bytes": reserved,
                "must_leave_bytes": must_leave,
            }
            if len(facts) < _MOST_OOMS:
                facts.append({"device": device, "op": row, **figures})
        rows = self._rows
        marks = filled(
            Marks,
            len(rows),
            name=np.array(numbers, dtype=np.int32),
            from_op=rows,
            to_op=rows + 1,
            start_s=start_s[rows],
            duration_s=np.zeros(len(rows)),
        )
        return marks, words.texts(), facts
