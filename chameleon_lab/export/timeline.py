"""A trace as tracks of slices, counters and flows: what timeline formats have in common.

Times are nanoseconds from the first step's beginning. Steps lie where they began; within a step the clock stands still
during a pause, as it does everywhere else, so that step times, stalls and overlap are the same in every viewer. Pauses
are points that say how long they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..trace import Category, Cause, Direction, Pause, Stage, StepTrace, Trace
from ..trace.occupancy import resident_by_category
from .lanes import lanes_of

HOST, DEVICE = "host", "device"


@dataclass
class Track:
    """Slices of one kind, in the order of their starts.

    ``lane`` says which of them share a line: on one lane they follow each other or nest.
    """

    kind: str
    name: str
    group: str
    start_ns: np.ndarray
    end_ns: np.ndarray
    names: list[str]
    args: list[dict[str, Any]]
    lane: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.lane = lanes_of(self.start_ns, self.end_ns)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Points:
    """Moments with a name."""

    kind: str
    name: str
    time_ns: list[int]
    names: list[str]
    args: list[dict[str, Any]]


@dataclass(frozen=True)
class Counter:
    """Step functions of bytes: ``values`` by their names, each (times,)."""

    name: str
    time_ns: np.ndarray
    values: dict[str, np.ndarray]


@dataclass(frozen=True)
class Flow:
    """An arrow from one slice to another, each a track and a row of it."""

    kind: str
    source: tuple[Track, int]
    target: tuple[Track, int]


@dataclass(frozen=True)
class Timeline:
    """A trace as viewers draw it."""

    base_ns: int
    """Unix time of zero."""
    tracks: list[Track]
    points: list[Points]
    counters: list[Counter]
    flows: list[Flow]


@dataclass
class _Rows:
    """Slices of a track while they are collected."""

    start: list[np.ndarray] = field(default_factory=list)
    end: list[np.ndarray] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    args: list[dict[str, Any]] = field(default_factory=list)

    def add(self, start: np.ndarray, end: np.ndarray, names: list[str], args: list[dict[str, Any]]) -> range:
        """Add slices; their rows."""
        first = len(self.names)
        self.start.append(start)
        self.end.append(np.maximum(start, end))
        self.names += names
        self.args += args
        return range(first, len(self.names))

    def track(self, kind: str, name: str, group: str) -> Track:
        none = np.empty(0, dtype=np.int64)
        start, end = (np.concatenate([none, *parts]) for parts in (self.start, self.end))
        return Track(kind, name, group, start, end, self.names, self.args)


def timeline_of(trace: Trace) -> Timeline:
    """The tracks of all steps of a trace."""
    return _Builder(trace).timeline()


def step_starts_s(steps: list[StepTrace]) -> list[float]:
    """Where each step begins, from the first one's beginning on; never before the end of the one before it."""
    starts: list[float] = []
    end = 0.0
    for step in steps:
        starts.append(max(end, step.start_s - steps[0].start_s))
        end = starts[-1] + step.duration_s
    return starts


class _Builder:
    def __init__(self, trace: Trace) -> None:
        self.steps = trace.steps
        self.rows: dict[tuple[str, str, str], _Rows] = {}
        self.flows: list[tuple[str, tuple[str, str, str], int, tuple[str, str, str], int]] = []
        self.points: dict[tuple[str, str], Points] = {}
        self.device = str(trace.meta.get("device") or "cpu")
        self.left: dict[int, tuple[tuple[str, str, str], int]] = {}  # by uid: its newest swap-out

    def timeline(self) -> Timeline:
        for step, at_s in zip(self.steps, step_starts_s(self.steps), strict=True):
            self._step(step, at_s)
        tracks = {key: rows.track(*key) for key, rows in self.rows.items()}
        flows = [
            Flow(kind, (tracks[source], row), (tracks[target], other))
            for kind, source, row, target, other in self.flows
        ]
        return Timeline(
            round(self.steps[0].start_s * 1e9),
            list(tracks.values()),
            list(self.points.values()),
            list(self._counters()),
            flows,
        )

    def _track(self, kind: str, name: str, group: str) -> tuple[tuple[str, str, str], _Rows]:
        key = (kind, name, group)
        return key, self.rows.setdefault(key, _Rows())

    def _step(self, step: StepTrace, at_s: float) -> None:
        def ns(seconds: np.ndarray | float) -> np.ndarray:
            return np.rint((np.asarray(seconds) + at_s) * 1e9).astype(np.int64)

        end_s = max(step.duration_s, float((step.ops.start_s + step.ops.duration_s).max(initial=0.0)))
        _, rows = self._track("steps", "Steps", HOST)
        about = {"step": step.index, "stage": step.session_stage}
        rows.add(ns(np.array([0.0])), ns(np.array([end_s])), [f"ProfilerStep#{step.index}"], [about])
        self._marks(step, ns)
        self._stages(step, ns)
        self._modules(step, ns)
        op_rows = self._ops(step, ns)
        self._device_ops(step, ns)
        self._copies(step, ns, op_rows)
        self._stalls(step, ns)
        self._replays(step, ns)
        for op, kind, at, duration in zip(*(c.tolist() for c in step.pauses.columns().values()), strict=True):
            self._point(
                "pauses", "Pauses", int(ns(at)), Pause(kind).name.lower(), {"op": op, "duration_s": duration}
            )

    def _point(self, kind: str, name: str, at: int, text: str, args: dict[str, Any]) -> None:
        points = self.points.setdefault((kind, name), Points(kind, name, [], [], []))
        points.time_ns.append(at)
        points.names.append(text)
        points.args.append(args)

    def _marks(self, step: StepTrace, ns: Any) -> None:
        table = step.marks
        for thread in np.unique(table.thread).tolist():
            chosen = np.flatnonzero(table.thread == thread)
            _, rows = self._track("marks", f"Marks, thread {thread}", HOST)
            start = table.start_s[chosen]
            names = [step.mark_names[i] for i in table.name[chosen].tolist()]
            rows.add(ns(start), ns(start + table.duration_s[chosen]), names, [{} for _ in names])

    def _stages(self, step: StepTrace, ns: Any) -> None:
        """Stretches of one stage, and of one module in each depth: runs of ops on a thread."""
        for thread, chosen in _by_thread(step):
            stage = step.ops.stage[chosen]
            first, last = _runs(stage)
            _, rows = self._track("stages", f"Stages, thread {thread}", HOST)
            names = [Stage(i).name.lower() for i in stage[first].tolist()]
            begin, end = _op_times(step, chosen[first], chosen[last])
            rows.add(ns(begin), ns(end), names, [{"step": step.index} for _ in names])

    def _modules(self, step: StepTrace, ns: Any) -> None:
        parts = [path.split(".") if path else [] for path in step.modules]
        deepest = max((len(path) for path in parts), default=0)
        for thread, chosen in _by_thread(step):
            stage, module = step.ops.stage[chosen].astype(np.int64), step.ops.module[chosen]
            for depth in range(1, deepest + 1):
                index: dict[str, int] = {}
                prefix = [
                    index.setdefault(".".join(path[:depth]), len(index)) if len(path) >= depth else -1
                    for path in parts
                ]
                path_of = np.array([*prefix, -1], dtype=np.int64)[module]
                first, last = _runs(path_of * len(Stage) + stage)
                inside = path_of[first] >= 0
                first, last = first[inside], last[inside]
                if not len(first):
                    continue
                texts = list(index)
                names = [texts[i] for i in path_of[first].tolist()]
                args = [{"stage": Stage(i).name.lower()} for i in stage[first].tolist()]
                begin, end = _op_times(step, chosen[first], chosen[last])
                _, rows = self._track("modules", f"Modules, thread {thread}", HOST)
                rows.add(ns(begin), ns(end), names, args)

    def _ops(self, step: StepTrace, ns: Any) -> list[tuple[tuple[str, str, str], int]]:
        """The row of each op on its track."""
        where: list[tuple[tuple[str, str, str], int]] = [(("", "", ""), 0)] * len(step.ops)
        args = self._op_args(step)
        for thread, chosen in _by_thread(step):
            key, rows = self._track("ops", f"Ops, thread {thread}", HOST)
            begin, end = _op_times(step, chosen, chosen)
            names = [step.names[i] for i in step.ops.name[chosen].tolist()]
            added = rows.add(ns(begin), ns(end), names, [args[op] for op in chosen.tolist()])
            for op, row in zip(chosen.tolist(), added, strict=True):
                where[op] = (key, row)
        return where

    def _op_args(self, step: StepTrace) -> list[dict[str, Any]]:
        args = []
        table = step.ops
        columns = (table.module, table.stage, table.sequence_nr, table.stall_s, table.stack)
        for op, (module, stage, sequence, stall_s, stack) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            found: dict[str, Any] = {"op": op, "step": step.index, "stage": Stage(stage).name.lower()}
            if module >= 0:
                found["module"] = step.modules[module]
            if sequence >= 0:
                found["Sequence number"] = sequence
            if stall_s > 0:
                found["stall_us"] = round(stall_s * 1e6, 3)
            if stack >= 0:
                found["Call stack"] = step.stacks[stack]
            args.append(found)
        return args

    def _device_ops(self, step: StepTrace, ns: Any) -> None:
        """When the device computed: measured times behind one another; without them, the ops less their waits."""
        _, rows = self._track("compute", "Compute", DEVICE)
        table = step.ops
        begin, end, of_op = _computing(step)
        names = [step.names[i] for i in table.name[of_op].tolist()]
        args = [{"op": op, "step": step.index} for op in of_op.tolist()]
        rows.add(ns(begin), ns(end), names, args)

    def _copies(self, step: StepTrace, ns: Any, ops: list[tuple[tuple[str, str, str], int]]) -> None:
        table, keys, uids = step.transfers, step.storage_keys, step.storages.uid
        begin = np.where(np.isnan(table.start_s), table.issue_s, table.start_s)
        ended = ~np.isnan(table.end_s)
        end = np.where(ended, table.end_s, np.maximum(begin, step.duration_s))
        order = np.argsort(begin, kind="stable")
        found: dict[int, tuple[tuple[str, str, str], int]] = {}
        for way, name, text in (
            (Direction.OUT, "Swap-outs", "Memcpy DtoH (Device -> Pinned)"),
            (Direction.IN, "Swap-ins", "Memcpy HtoD (Pinned -> Device)"),
        ):
            chosen = order[table.direction[order] == way]
            if not len(chosen):
                continue
            args = []
            for row in chosen.tolist():
                storage, size = int(table.storage[row]), int(table.bytes[row])
                about: dict[str, Any] = {
                    "storage": keys[storage] if storage >= 0 else "",
                    "cause": Cause(int(table.cause[row])).name.lower(),
                    "bytes": size,
                    "issue_op": int(table.issue_op[row]),
                    "step": step.index,
                }
                took = float(end[row] - begin[row])
                if not ended[row]:
                    about["unfinished"] = True
                elif took > 0:
                    about["memory bandwidth (GB/s)"] = round(size / took / 1e9, 6)
                args.append(about)
            key, rows = self._track(name.lower(), name, DEVICE)
            added = rows.add(ns(begin[chosen]), ns(end[chosen]), [text] * len(args), args)
            for row, at in zip(chosen.tolist(), added, strict=True):
                found[row] = (key, at)
        for row in order.tolist():
            self._arrows(step, row, found[row], ops, uids)

    def _arrows(
        self,
        step: StepTrace,
        row: int,
        at: tuple[tuple[str, str, str], int],
        ops: list[tuple[tuple[str, str, str], int]],
        uids: np.ndarray,
    ) -> None:
        """From the op that a copy was issued at, and from the swap-out of what comes back."""
        table = step.transfers
        op, storage = int(table.issue_op[row]), int(table.storage[row])
        if 0 <= op < len(ops):
            self.flows.append(("decision", *ops[op], *at))
        if storage < 0:
            return
        uid = int(uids[storage])
        if table.direction[row] == Direction.OUT:
            self.left[uid] = at
        elif uid in self.left:
            self.flows.append(("swap", *self.left.pop(uid), *at))

    def _stalls(self, step: StepTrace, ns: Any) -> None:
        table, keys = step.stalls, step.storage_keys
        if not len(table):
            return
        _, rows = self._track("stalls", "Stalls", DEVICE)
        order = np.argsort(table.start_s, kind="stable")
        names, args = [], []
        for row in order.tolist():
            storage, cause = int(table.storage[row]), Cause(int(table.cause[row])).name.lower()
            way = Direction(int(table.direction[row])).name.lower()
            names.append(f"stall: {cause} swap-{way}")
            args.append(
                {
                    "storage": keys[storage] if storage >= 0 else "",
                    "cause": cause,
                    "direction": way,
                    "op": int(table.op[row]),
                    "step": step.index,
                }
            )
        begin = table.start_s[order]
        rows.add(ns(begin), ns(begin + table.duration_s[order]), names, args)

    def _replays(self, step: StepTrace, ns: Any) -> None:
        table, keys = step.replays, step.storage_keys
        if not len(table):
            return
        _, rows = self._track("replays", "Replays", DEVICE)
        order = np.argsort(table.start_s, kind="stable")
        names = [step.names[i] for i in table.name[order].tolist()]
        args = []
        for row in order.tolist():
            storage = int(table.storage[row])
            args.append(
                {
                    "storage": keys[storage] if storage >= 0 else "",
                    "cause": Cause(int(table.cause[row])).name.lower(),
                    "bytes": int(table.bytes[row]),
                    "op": int(table.op[row]),
                    "step": step.index,
                }
            )
        begin = table.start_s[order]
        rows.add(ns(begin), ns(begin + table.duration_s[order]), names, args)

    # ------------------------------------------------------------------------------------------------ counters

    def _counters(self) -> Iterator[Counter]:
        resident: list[tuple[np.ndarray, np.ndarray]] = []
        alive: list[tuple[np.ndarray, np.ndarray]] = []
        for step, at_s in zip(self.steps, step_starts_s(self.steps), strict=True):
            times, levels = resident_by_category(step)
            resident.append((np.rint((times + at_s) * 1e9).astype(np.int64), levels))
            starts = np.rint((step.ops.start_s + at_s) * 1e9).astype(np.int64)
            order = np.argsort(starts, kind="stable")
            alive.append((starts[order], step.ops.live_peak_bytes[order]))
        times = np.concatenate([each for each, _ in resident])
        levels = np.concatenate([each for _, each in resident])
        names = {category.name.lower(): levels[:, int(category)] for category in Category}
        yield Counter("Resident bytes", times, names)
        times = np.concatenate([each for each, _ in alive])
        yield Counter("Bytes alive", times, {"alive": np.concatenate([each for _, each in alive])})


def _by_thread(step: StepTrace) -> Iterator[tuple[int, np.ndarray]]:
    """Each thread with its ops, in the order of their starts."""
    order = np.argsort(step.ops.start_s, kind="stable")
    for thread in np.unique(step.ops.thread).tolist():
        yield thread, order[step.ops.thread[order] == thread]


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last position of each stretch of equal values."""
    changes = np.flatnonzero(values[1:] != values[:-1])
    return np.append(0, changes + 1), np.append(changes, len(values) - 1)


def _op_times(step: StepTrace, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    begin = step.ops.start_s
    return begin[first], begin[last] + step.ops.duration_s[last]


def _computing(step: StepTrace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stretches in which the device computed: begin, end (seconds) and the op of each, ascending by begin.

    An op with a time measured on the device takes that long from where it began on the host, or from where the one
    before it ended. Another one computes for as long as it lasts on the host, but for the stalls in it.
    """
    table, stalls = step.ops, step.stalls
    order = np.argsort(table.start_s, kind="stable")
    begin = table.start_s[order]
    measured = table.device_s[order]
    known = ~np.isnan(measured)
    pieces: list[tuple[float, float, int]] = []
    waits = np.argsort(stalls.start_s, kind="stable")
    wait_begin = stalls.start_s[waits].tolist()
    wait_end = (stalls.start_s + stalls.duration_s)[waits].tolist()
    wait, free_at = 0, 0.0
    rows = (order, begin, begin + table.duration_s[order], measured, known)
    for op, start, end, device_s, is_known in zip(*(row.tolist() for row in rows), strict=True):
        if is_known:
            start = max(start, free_at)
            free_at = start + device_s
            pieces.append((start, free_at, op))
            continue
        while wait < len(wait_begin) and wait_end[wait] <= start:
            wait += 1
        at, here = start, wait
        while here < len(wait_begin) and wait_begin[here] < end:
            if wait_begin[here] > at:
                pieces.append((at, wait_begin[here], op))
            at = max(at, wait_end[here])
            here += 1
        if at < end or (at == end == start):
            pieces.append((at, end, op))
        free_at = max(free_at, end)
    pieces.sort()
    columns = list(zip(*pieces, strict=True)) or [(), (), ()]
    return (
        np.array(columns[0], dtype=np.float64),
        np.array(columns[1], dtype=np.float64),
        np.array(columns[2], dtype=np.int64),
    )
