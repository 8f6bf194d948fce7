"""Chrome traces of ``torch.profiler`` (``export_chrome_trace``, a tensorboard handler), plain or gzip.

The dispatcher's outermost ops become ops, kernels and copies their tables, and ``[memory]`` instants the storages'
lives. Steps are the profiler's (``ProfilerStep#3``); without them all is one step. Which storages an op reads is not in
the file, so it cannot be planned alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import TraceError
from ..trace import Category, Direction, Marks, Ops, Stage, StepTrace, Storages, Trace
from ..trace.alive_bytes import alive_bytes
from ..util.progress import tick
from .build import (
    Names,
    bytes_of,
    clean,
    constant,
    filled,
    limited,
    made_step,
    number_of,
    ordinals,
    whole_number,
)
from .device_work import (
    NO_DIRECTION,
    Copies,
    Records,
    Work,
    device_seconds,
    kernel_table,
    lookup,
    stall_table,
    transfer_table,
)
from .json_stream import JsonStream
from .ranges import enclosing, innermost, outermost
from .source import Source

FORMAT = "Chrome trace of torch.profiler"
LACKS = (
    "a Chrome trace does not tell which storages the ops read: can't plan; open the execution trace beside it, "
    "Trace.open(execution_trace, chrome_trace)"
)
_LISTS = ("traceEvents",)
_STEP = re.compile(r"ProfilerStep\s*#(\d{1,9})")
_MODULE = "nn.Module: "
_MOST_FRAMES = 64


class Events:
    """The events of a file that are kept, as columns. Times in microseconds, as in the file."""

    def __init__(self) -> None:
        self.names = Names()
        self.threads = Names()
        self.ops = Records(name="i", thread="i", start="d", dur="d", external="q", record="q", sequence="q")
        self.python = Records(name="i", thread="i", start="d", dur="d")
        self.ranges = Records(name="i", thread="i", start="d", dur="d")
        self.launches = Records(thread="i", start="d", correlation="q", external="q")
        self.work = Records(
            name="i",
            kind="b",
            device="i",
            stream="q",
            start="d",
            dur="d",
            bytes="q",
            correlation="q",
            external="q",
        )
        self.memory = Records(start="d", address="Q", bytes="q", total="q", kind="b", device="i")

    def take(self, event: Any) -> None:
        """Keep an event, if it is one of those that are read."""
        if type(event) is not dict:
            return
        phase, category = event.get("ph"), event.get("cat")
        arguments = event.get("args")
        if type(arguments) is not dict:
            arguments = {}
        if phase == "X" and type(category) is str:
            self._slice(category.lower(), event, arguments)
        elif phase in ("i", "I") and event.get("name") == "[memory]":
            self.memory.add(
                number_of(event.get("ts")),
                whole_number(arguments.get("Addr"), 0, (1 << 64) - 1),
                whole_number(arguments.get("Bytes"), -(1 << 50), 1 << 50),
                whole_number(arguments.get("Total Allocated"), -1, 1 << 50, -1),
                whole_number(arguments.get("Device Type"), 0, 100),
                whole_number(arguments.get("Device Id"), -1, 1023, -1),
            )

    def _slice(self, category: str, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        name = event.get("name")
        start, length = number_of(event.get("ts")), max(number_of(event.get("dur")), 0.0)
        external = whole_number(arguments.get("External id", arguments.get("external id")), other=-1)
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = 0
            if category == "gpu_memcpy":
                words = str(name)
                kind = 1 if "HtoD" in words else 2 if "DtoH" in words else 0
            self.work.add(
                self.names.number(name),
                kind,
                whole_number(arguments.get("device", event.get("pid")), 0, 1023),
                whole_number(arguments.get("stream", event.get("tid")), other=-1),
                start,
                length,
                bytes_of(arguments.get("bytes")),
                whole_number(arguments.get("correlation"), other=-1),
                external,
            )
            return
        thread = self.threads.number(f"{event.get('pid')!r:.40} {event.get('tid')!r:.40}")
        if category == "cpu_op":
            self.ops.add(
                self.names.number(name),
                thread,
                start,
                length,
                external,
                whole_number(arguments.get("Record function id"), other=-1),
                whole_number(arguments.get("Sequence number"), other=-1),
            )
        elif category == "python_function":
            self.python.add(self.names.number(name), thread, start, length)
        elif category == "user_annotation":
            self.ranges.add(self.names.number(name), thread, start, length)
        elif category in ("cuda_runtime", "cuda_driver"):
            correlation = whole_number(arguments.get("correlation"), other=-1)
            self.launches.add(thread, start, correlation, external)


def read_chrome_trace(source: Source) -> Trace:
    """The profiler's steps. Raises TraceError if the file is damaged, or has neither ops nor kernels."""
    profile = read_profile(source)
    return Trace(profile.steps(), profile.meta, profile.lost)


def read_profile(source: Source) -> Profile:
    """What the file holds, still to be made into steps."""
    stream, events = JsonStream(source, _LISTS), Events()
    for number, event in enumerate(stream.items()):
        events.take(event)
        if number % 65536 == 0:
            tick()
    if not stream.list_name and not len(events.ops) and not len(events.work):
        raise TraceError(
            f"{source.path}: this JSON has no list traceEvents: give a Chrome trace of torch.profiler, or the JSON of "
            "its execution trace observer"
        )
    if not len(events.ops) and not len(events.work) and not len(events.memory):
        raise TraceError(
            f"{source.path}: no event in it is an op, a kernel or a copy: record with activities=[ProfilerActivity.CPU]"
        )
    lost = f"{source.path}: cut; what stands before its end is read" if stream.cut else None
    return Profile(events, stream.values, lost)


@dataclass(frozen=True)
class OpRows:
    """The dispatcher's outermost ops of a file, in order of their starts; times in seconds of the profile."""

    name: np.ndarray
    thread: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    stage: np.ndarray
    sequence: np.ndarray
    module: np.ndarray
    stack: np.ndarray
    record: np.ndarray
    """The record function ids, by which execution traces know them."""


class Profile:
    """A profiler's recording: its outermost ops, work, memory and ranges on one clock."""

    def __init__(self, events: Events, values: dict[str, Any], lost: str | None) -> None:
        self.lost = lost
        self.names = events.names
        self.modules, self.stacks = Names(), Names(longest=1 << 15)
        starts = [
            table.columns()["start"]
            for table in (events.ops, events.work, events.memory, events.ranges)
            if len(table)
        ]
        self._zero = min(float(each.min()) for each in starts)
        base_s = number_of(values.get("baseTimeNanoseconds")) * 1e-9
        self.start_s = base_s + self._zero * 1e-6
        """Unix time of the first event, where the file says it; else some other clock's."""
        self.meta = _meta(values)
        ops = events.ops.columns()
        texts = np.array(events.names.texts() or [""], dtype=object)
        self.ranges = self._times(events.ranges.columns())
        self.ops, external_op = self._op_rows(self._times(ops), texts, self._times(events.python.columns()))
        self.work, self.copies = self._device_work(
            self._times(events.work.columns()), self._times(events.launches.columns()), external_op
        )
        if not len(self.ops.name):  # a trace of the device alone: what it does is all there is
            self._work_as_ops()
        memory = self._times(events.memory.columns())
        self.memory = self._of_device(memory)

    def _times(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Seconds from the first event on."""
        columns["start"] = (columns["start"] - self._zero) * 1e-6
        if "dur" in columns:
            columns["end"] = columns["start"] + columns.pop("dur") * 1e-6
        return columns

    def _op_rows(
        self, ops: dict[str, np.ndarray], texts: np.ndarray, python: dict[str, np.ndarray]
    ) -> tuple[OpRows, dict[str, np.ndarray]]:
        names = texts[ops["name"]] if len(ops["name"]) else np.zeros(0, dtype=object)
        is_op = np.array([_is_op(name) for name in names], dtype=bool)
        rows = np.flatnonzero(is_op)
        rows = rows[outermost(ops["thread"][rows], ops["start"][rows], ops["end"][rows])]
        thread, start = ops["thread"][rows], ops["start"][rows]
        backward = np.array(["Backward" in name or "::evaluate_function" in name for name in names], bool)
        backward &= ~is_op
        in_backward = (
            enclosing(ops["thread"][backward], ops["start"][backward], ops["end"][backward], thread, start)
            >= 0
        )
        ranges = self.ranges
        optimizer = np.array(
            [texts[name].startswith(("Optimizer.step", "Optimizer.zero_grad")) for name in ranges["name"]],
            dtype=bool,
        )
        in_optimizer = (
            enclosing(
                ranges["thread"][optimizer],
                ranges["start"][optimizer],
                ranges["end"][optimizer],
                thread,
                start,
            )
            >= 0
        )
        stage = np.where(in_optimizer, Stage.OPTIMIZER, np.where(in_backward, Stage.BACKWARD, Stage.FORWARD))
        module, stack = self._python(python, texts, thread, start)
        found = OpRows(
            ops["name"][rows],
            thread,
            start,
            ops["end"][rows],
            stage.astype(np.uint8),
            ops["sequence"][rows],
            module,
            stack,
            ops["record"][rows],
        )
        # All ops, inner ones too, with the number of the outermost one that they lie in: launches name these.
        inside = np.full(len(names), -1, dtype=np.int64)
        if len(rows):
            inside = enclosing(thread, start, ops["end"][rows], ops["thread"], ops["start"])
        return found, {"external": ops["external"], "op": inside}

    def _python(
        self, python: dict[str, np.ndarray], texts: np.ndarray, thread: np.ndarray, start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Module and stack of each op, by the Python functions that it lies in."""
        none = np.full(len(start), -1, dtype=np.int32)
        if not len(python["name"]):
            return none, none
        found, parent = innermost(python["thread"], python["start"], python["end"], thread, start)
        known: dict[int, tuple[int, int]] = {-1: (-1, -1)}
        parents, names = parent.tolist(), python["name"].tolist()
        for row in np.unique(found).tolist():
            if row in known:
                continue
            frames: list[str] = []
            modules: list[str] = []
            at = row
            while at >= 0 and len(frames) < _MOST_FRAMES:
                text = texts[names[at]]
                if text.startswith(_MODULE):
                    modules.append(text.removeprefix(_MODULE))
                else:
                    frames.append(_frame(text))
                at = parents[at]
            path = ".".join(reversed(modules))
            known[row] = (
                self.modules.number(path) if path else -1,
                self.stacks.number("\n".join(frames)) if frames else -1,
            )
        pairs = np.array([known[row] for row in found.tolist()], dtype=np.int32).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _device_work(
        self,
        work: dict[str, np.ndarray],
        launches: dict[str, np.ndarray],
        external_op: dict[str, np.ndarray],
    ) -> tuple[Work, Copies]:
        """Kernels and copies, with the op that launched each: by its launch, or the op that it names."""
        ops = self.ops
        by_launch = enclosing(ops.thread, ops.start_s, ops.end_s, launches["thread"], launches["start"])
        op = np.full(len(work["name"]), -1, dtype=np.int64)
        issue_s = np.full(len(op), np.nan)
        named = lookup(external_op["external"], external_op["op"], work["external"])
        by_correlation = lookup(
            launches["correlation"], np.arange(len(launches["correlation"])), work["correlation"]
        )
        launched = by_correlation >= 0
        op[launched] = by_launch[by_correlation[launched]]
        issue_s[launched] = launches["start"][by_correlation[launched]]
        op = np.where(op >= 0, op, named)
        # Only those in this file's order can be told: a number that is given twice says nothing.
        columns = (work["name"], op, work["device"], work["stream"], work["start"], work["end"])
        kind = work["kind"]
        direction = np.select(
            [kind == 1, kind == 2], [int(Direction.IN), int(Direction.OUT)], default=NO_DIRECTION
        )
        copies = Copies(*columns, direction, limited(work["bytes"]), issue_s)
        return Work(*columns).taken(kind == 0), copies.taken(kind != 0)

    def _work_as_ops(self) -> None:
        order = np.argsort(self.work.start_s, kind="stable")
        work, n = self.work.taken(order), len(order)
        none = np.full(n, -1, dtype=np.int32)
        self.ops = OpRows(
            work.name,
            np.zeros(n, np.int32),
            work.start_s,
            work.end_s,
            np.zeros(n, np.uint8),
            none.astype(np.int64),
            none,
            none,
            none,
        )
        self.work = Work(work.name, np.arange(n), work.device, work.stream, work.start_s, work.end_s)

    def _of_device(self, memory: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The memory events of one device, the GPU with most of them or else the CPU; names it."""
        if len(self.work.name) + len(self.copies.name):
            devices, counts = np.unique(np.append(self.work.device, self.copies.device), return_counts=True)
            self.meta["device"] = f"cuda:{devices[counts.argmax()]}"
        on_gpu = memory["kind"] == 1
        if on_gpu.any():
            devices, counts = np.unique(memory["device"][on_gpu], return_counts=True)
            device = devices[counts.argmax()]
            self.meta["device"] = f"cuda:{max(device, 0)}"
            chosen = on_gpu & (memory["device"] == device)
        else:
            chosen = memory["kind"] == 0
            if "cuda" in self.meta["device"]:
                chosen &= False
        rows = np.flatnonzero(chosen)
        order = rows[np.argsort(memory["start"][rows], kind="stable")]
        return {name: column[order] for name, column in memory.items()}

    # ---------------------------------------------------------------------------------------------- steps

    def steps(self) -> list[StepTrace]:
        """The steps, in order."""
        return [self._step(number, begin, end) for number, begin, end in self.borders()]

    def borders(self) -> list[tuple[int, float, float]]:
        """Number, begin and end of each step, in seconds of the profile."""
        ranges, texts = self.ranges, self.names.texts()
        found: dict[int, tuple[float, float]] = {}
        for name, begin, end in zip(*(ranges[key].tolist() for key in ("name", "start", "end")), strict=True):
            match = _STEP.fullmatch(texts[name])
            if match and int(match[1]) not in found:
                found[int(match[1])] = (begin, end)
        start = self.ops.start_s
        steps = [
            (number, begin, end)
            for number, (begin, end) in sorted(found.items(), key=lambda item: item[1])
            if ((start >= begin) & (start < end)).any()
        ]
        ascending = all(a[0] < b[0] and a[2] <= b[1] + 1e-9 for a, b in zip(steps, steps[1:], strict=False))
        if steps and ascending and len(steps) <= 10_000:
            return steps
        ends = [self.ops.end_s.max(initial=0.0), self.work.end_s.max(initial=0.0)]
        ends += [self.copies.end_s.max(initial=0.0), self.memory["start"].max(initial=0.0)]
        return [(0, 0.0, float(max(ends)) + 1e-9)]

    def _step(self, number: int, begin: float, end: float) -> StepTrace:
        """One step: what its ops launched is its, though the device may do it later."""
        all_ops = self.ops
        inside = np.flatnonzero((all_ops.start_s >= begin) & (all_ops.start_s < end))
        n = len(inside)
        ops = OpRows(*(column[inside] for column in vars(all_ops).values()))
        number_in_step = np.full(len(all_ops.name) + 1, -1, dtype=np.int64)
        number_in_step[inside] = np.arange(n)
        work = self._within(self.work, number_in_step, begin, end)
        copies = self._within(self.copies, number_in_step, begin, end)
        assert isinstance(copies, Copies)
        latest = max(
            [end, float(work.end_s.max(initial=0.0)) + begin, float(copies.end_s.max(initial=0.0)) + begin]
        )
        duration_s = latest - begin
        start_s, end_s = ops.start_s - begin, ops.end_s - begin
        storages, live = self.storages(start_s + begin, begin, latest)
        threads = {thread: i for i, thread in enumerate(dict.fromkeys(ops.thread.tolist()))}
        table = filled(
            Ops,
            n,
            name=ops.name,
            module=ops.module,
            stage=ops.stage,
            sequence_nr=ops.sequence,
            thread=np.array([threads[each] for each in ops.thread.tolist()], dtype=np.int32),
            stack=ops.stack,
            start_s=start_s,
            duration_s=end_s - start_s,
            device_s=device_seconds(work, n),
            live_peak_bytes=live,
            resident_peak_bytes=live,
        )
        marks, mark_names = self._marks(start_s, begin, latest, threads)
        return made_step(
            number,
            self.start_s + begin,
            duration_s,
            table,
            storages,
            names=self.names.texts(),
            modules=self.modules.texts(),
            stacks=self.stacks.texts(),
            kernels=kernel_table(work),
            transfers=transfer_table(copies, n),
            stalls=stall_table(copies, work),
            marks=marks,
            mark_names=mark_names,
            lacks=LACKS,
        )

    @staticmethod
    def _within(work: Work, number_in_step: np.ndarray, begin: float, end: float) -> Work:
        """What a step launched; of what nobody knows who launched it, what began in it."""
        op = np.where(work.op >= 0, number_in_step[work.op], -1)
        mine = (op >= 0) | ((work.op < 0) & (work.start_s >= begin) & (work.start_s < end))
        if isinstance(work, Copies):
            mine &= work.direction != NO_DIRECTION
        columns = {name: column[mine] for name, column in vars(work).items()}
        columns["op"] = op[mine]
        for name in ("start_s", "end_s", "issue_s"):
            if name in columns:
                columns[name] = np.maximum(columns[name] - begin, 0.0)
        return type(work)(**columns)

    def storages(self, op_start_s: np.ndarray, begin: float, end: float) -> tuple[Storages, np.ndarray]:
        """Lives by the memory events, and the bytes alive at each op."""
        memory, n = self.memory, len(op_start_s)
        at, address, size = memory["start"], memory["address"], memory["bytes"]
        order = np.lexsort((np.arange(len(at)), address))
        there, sizes, times = address[order], size[order], at[order]
        same = there[1:] == there[:-1]
        allocs = sizes > 0
        death_s = np.full(len(order), np.inf)
        death_s[:-1][same] = times[1:][same]
        unseen = sizes < 0
        unseen[1:] &= ~(same & allocs[:-1])
        birth_s = np.concatenate([times[allocs], np.full(unseen.sum(), -np.inf)])
        death_s = np.concatenate([death_s[allocs], times[unseen]])
        bytes_ = np.abs(np.concatenate([sizes[allocs], sizes[unseen]]))
        uid = np.concatenate([order[allocs], order[unseen]])
        in_step = (birth_s < end) & (death_s >= begin)
        birth_s, death_s, bytes_, uid = (each[in_step] for each in (birth_s, death_s, bytes_, uid))
        labels = np.full(len(uid), -1)
        rest = self._before(begin) - int(bytes_[birth_s < begin].sum())
        if rest > 0:  # what was allocated before the recording and is not freed in it, as one
            birth_s, death_s = np.append(birth_s, -np.inf), np.append(death_s, np.inf)
            bytes_, uid = np.append(bytes_, rest), np.append(uid, len(order))
        order = np.lexsort((uid, birth_s))
        birth_s, death_s, bytes_, uid = (each[order] for each in (birth_s, death_s, bytes_, uid))
        birth_op = np.searchsorted(op_start_s, birth_s, side="right") - 1
        birth_op = np.where(birth_s < begin, -1, np.maximum(birth_op, 0))
        death_op = np.maximum(np.searchsorted(op_start_s, death_s, side="right") - 1, 0)
        death_op = np.where(death_s >= end, n, np.maximum(death_op, birth_op))
        sizes = limited(bytes_)
        live = alive_bytes(n, birth_op, death_op, sizes)
        count = len(sizes)
        labels = np.full(count, -1, dtype=np.int32)
        module = np.where(birth_op >= 0, self._module_at(op_start_s, birth_op), -1)
        return (
            filled(
                Storages,
                count,
                uid=uid,
                bytes=sizes,
                block_bytes=sizes,
                category=np.where(birth_op < 0, Category.OTHER, Category.ACTIVATION),
                module=module,
                name=labels,
                birth_op=birth_op,
                birth_ordinal=ordinals(birth_op),
                death_op=death_op,
                movable=constant(True, count, "bool"),
            ),
            live,
        )

    def _before(self, begin: float) -> int:
        """Bytes that were allocated when a step began, by the totals of the memory events; 0 where there are none."""
        memory = self.memory
        known = np.flatnonzero(memory["total"] >= 0)
        if not len(known):
            return 0
        before = known[memory["start"][known] < begin]
        if len(before):
            return int(memory["total"][before[-1]])
        return int(memory["total"][known[0]] - memory["bytes"][known[0]])

    def _module_at(self, op_start_s: np.ndarray, op: np.ndarray) -> np.ndarray:
        """The module of ops of a step, by their starts in the profile."""
        if not len(op_start_s):
            return np.full(len(op), -1)
        first = int(np.searchsorted(self.ops.start_s, op_start_s[0], side="left"))
        found: np.ndarray = self.ops.module[np.clip(first + op, 0, len(self.ops.module) - 1)]
        return found

    def _marks(
        self, op_start_s: np.ndarray, begin: float, end: float, threads: dict[int, int]
    ) -> tuple[Marks, tuple[str, ...]]:
        ranges = self.ranges
        texts, words = self.names.texts(), Names()
        rows = np.flatnonzero((ranges["start"] < end) & (ranges["end"] > begin))
        rows = np.array([row for row in rows if not _STEP.fullmatch(texts[ranges["name"][row]])], dtype=int)
        rows = rows[np.argsort(ranges["end"][rows], kind="stable")] if len(rows) else rows
        start = np.maximum(ranges["start"][rows] - begin, 0.0)
        stop = np.minimum(ranges["end"][rows], end) - begin
        marks = filled(
            Marks,
            len(rows),
            name=np.array([words.number(texts[name]) for name in ranges["name"][rows]], dtype=np.int32),
            thread=np.array([threads.get(each, 0) for each in ranges["thread"][rows].tolist()], np.int32),
            from_op=np.searchsorted(op_start_s, start),
            to_op=np.searchsorted(op_start_s, stop),
            start_s=start,
            duration_s=np.maximum(stop - start, 0.0),
        )
        return marks, words.texts()


def _meta(values: dict[str, Any]) -> dict[str, Any]:
    meta: dict[str, Any] = {"format": FORMAT, "device": "cpu"}
    properties = values.get("deviceProperties")
    if type(properties) is list and properties and type(properties[0]) is dict:
        name = properties[0].get("name")
        if type(name) is str and name:
            meta["kernels"] = clean(name, 200)
    rank = values.get("distributedInfo")
    if type(rank) is dict and type(rank.get("rank")) is int:
        meta["rank"] = whole_number(rank.get("rank"), 0, 1 << 24)
        meta["world_size"] = whole_number(rank.get("world_size"), 0, 1 << 24)
    return meta


def _is_op(name: str) -> bool:
    """Is this a dispatcher op, and not a node of autograd or something that somebody has named?"""
    return (
        "::" in name
        and not name.startswith(("autograd::", "torch::autograd"))
        and "evaluate_function" not in name
    )


def _frame(text: str) -> str:
    """``train.py(14): step`` as frames are written here: ``train.py:14 step``."""
    match = re.fullmatch(r"(.*)\((\d+)\): (.*)", text)
    return f"{match[1]}:{match[2]} {match[3]}" if match else text
