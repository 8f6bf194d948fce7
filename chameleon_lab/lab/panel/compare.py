"""Two steps side by side: recorded ones, or policies' predictions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from ...planner import Prediction, StallCause, simulate
from ...planner.host_room import HostRoom
from ...planner.program import bind
from ...planner.retention import as_planned
from ...policy import Decision, Link, Policy, diff
from ...policy.model import NEVER, fingerprint
from ...trace import Cause, Direction, StepTrace
from .clock import Clock, clock_of
from .lod import Intervals, steps_between
from .protocol import ProtocolError
from .scene import Scene
from .views import Buffers, arrow_stream, bar_columns, require_pyarrow

_MOST_ROWS = 200
_MOST_BARS = 1500
_MOST_PIXELS = 2048
"""Five curves of three points a pixel are half of what an answer may have."""
_KEPT = 4

_CONDITIONS = ("capacity_bytes", "link", *(f"assumed.{name}" for name in ("ops", "live_peak_bytes", "torch")))
"""What two policies were made for that a person can use: of the predictions, the figures tell."""


@dataclass(frozen=True, eq=False)
class ComparedStep:
    """One of the two: a step, and what was measured of it or is predicted.

    Attributes:
        kind: ``"measured"`` or ``"predicted"``.
        scene: the step's ops, storages and names; of a prediction, its residencies are not this side's.
        clock: float64 (ops + 1,): when each op starts, and when the step ends.
        resident_bytes: int64 (ops,): bytes on the device until the next op starts.
        on_device: bool (storages,): what is on the device at the op with the most.
        moved_bytes: float64 (storages,): copied in the step, both ways.
        stall_s: float64 (storages,): what the compute stream waited for each.
        stalls: float64 (stalls, 2): seconds from and to which it waited.
        figures: what is compared, by name.
        policy: of a prediction.
        says: of a prediction, which op times it takes.
    """

    kind: str
    scene: Scene
    clock: np.ndarray
    resident_bytes: np.ndarray
    on_device: np.ndarray
    moved_bytes: np.ndarray
    stall_s: np.ndarray
    stalls: np.ndarray
    figures: dict[str, float | None]
    policy: Policy | None = None
    says: str = ""

    @property
    def step(self) -> StepTrace:
        """The step that it is about."""
        return self.scene.steps[0]

    def length(self, axis: str) -> float:
        """Where the axis ends; it begins at 0."""
        return float(self.clock[-1]) if axis == "time" else float(len(self.resident_bytes))

    def x_of_op(self, axis: str) -> np.ndarray:
        """float64 (ops + 1,): where each op begins, and where the step ends."""
        return self.clock if axis == "time" else np.arange(len(self.clock), dtype=np.float64)

    @cached_property
    def stall_intervals(self) -> dict[str, Intervals]:
        """The stalls on each axis."""
        on_ops = np.interp(self.stalls, self.clock, np.arange(len(self.clock), dtype=np.float64))
        return {"time": Intervals(*self.stalls.T), "op": Intervals(*on_ops.T)}

    @cached_property
    def modules(self) -> dict[str, dict[str, float]]:
        """By module path, of the storages that belong to it: bytes at the peak, bytes moved, and stall."""
        paths, module = self.scene.storage_modules
        count = len(paths) + 1
        sizes = self.scene.storage_bytes * self.on_device
        columns = {
            "peak_bytes": np.bincount(module + 1, weights=sizes, minlength=count).astype(np.int64),
            "moved_bytes": np.bincount(module + 1, weights=self.moved_bytes, minlength=count).astype(
                np.int64
            ),
            "stall_s": np.bincount(module + 1, weights=self.stall_s, minlength=count),
        }
        return {
            path: {name: column[i].item() for name, column in columns.items()}
            for i, path in enumerate(["", *paths])
            if any(column[i] for column in columns.values())
        }


def measured_side(scene: Scene) -> ComparedStep:
    """A recorded step as it ran. ``scene`` holds that step alone."""
    step = scene.steps[0]
    rows, stalls = scene.transfers, scene.stall_column
    count = len(scene.storage_uid)
    stall_s = stalls["end_s"] - stalls["start_s"]
    out = stalls["direction"] == Direction.OUT
    demand = ~out & (stalls["cause"] != Cause.PLANNED)
    peak = int(step.ops.resident_peak_bytes.argmax())
    held = scene.residencies
    on_device = np.zeros(count, dtype=bool)
    on_device[held["storage"][(held["from_op"] <= peak) & (peak < held["to_op"])]] = True
    total_s = float(stall_s.sum())
    return ComparedStep(
        kind="measured",
        scene=scene,
        clock=scene.x_of_op("time", np.arange(scene.op_count + 1)),
        resident_bytes=step.ops.resident_peak_bytes,
        on_device=on_device,
        moved_bytes=_sum_by_storage(rows.storage, rows.bytes, count),
        stall_s=_sum_by_storage(stalls["storage"], stall_s, count),
        stalls=np.column_stack([stalls["start_s"], stalls["end_s"]]),
        figures=_figures(
            step,
            capacity_bytes=scene.meta.get("capacity_bytes"),
            peak_bytes=step.peak_bytes,
            step_s=step.duration_s,
            stall_s=total_s,
            causes=(
                float(stall_s[out].sum()),
                float(stall_s[~out & ~demand].sum()),
                float(stall_s[demand].sum()),
            ),
            overlap=scene.overlap,
            out_bytes=rows.bytes[rows.direction == Direction.OUT].sum(),
            in_bytes=rows.bytes[rows.direction == Direction.IN].sum(),
            replay_s=step.replays.duration_s.sum(),
            replayed_bytes=step.replays.bytes.sum(),
        ),
    )


def predicted_side(policy: Policy, step: StepTrace, clock: Clock | None = None) -> ComparedStep:
    """A step as it should run under a policy, in the steady state; see :func:`~chameleon_lab.planner.simulate`.

    ``clock``: the op times that it should take; None for those of the step.
    """
    clock = clock_of(None, step) if clock is None else clock
    scene = Scene([step], {})
    memory, swaps, replays, _ = bind(policy, step, clock.op_times)
    swaps, _ = replays.served(memory, swaps)
    found: Prediction = simulate(step, policy, op_times=clock.op_times)
    count, n = len(step.storages), memory.ops
    starts = np.concatenate([[0.0], np.cumsum(clock.op_times)])
    starts[:n] += np.cumsum(found.stall_op_s + replays.seconds)
    starts[n] += found.stall_s + found.replay_s
    waits = np.flatnonzero(found.stall_op_s)
    peak = int(found.resident_bytes.argmax())
    birth, death = scene.storage_life
    on_device = (birth <= peak) & (peak < death)
    row, size = memory.row[swaps.storage], memory.block_bytes[swaps.storage]
    away = swaps.in_op == NEVER
    for op in (peak, peak + n):  # a gap may reach over the step's end
        away |= (swaps.free_op <= op) & (op < swaps.in_op)
    on_device[row[away]] = False
    on_device[memory.row[replays.storage[(replays.out_op < peak) & (peak < replays.in_op)]]] = False
    kept = HostRoom(as_planned(policy, step), policy.host_capacity_bytes).kept(memory, swaps)
    moved = size * (swaps.needs_copy(memory, kept).astype(np.int64) + swaps.returns)
    causes = found.stall_by_cause
    return ComparedStep(
        kind="predicted",
        scene=scene,
        clock=starts,
        resident_bytes=found.resident_bytes,
        on_device=on_device,
        moved_bytes=_sum_by_storage(row, moved, count),
        stall_s=_sum_by_storage(found.waits.storage, found.waits.duration_s, count),
        stalls=np.column_stack([starts[waits] - found.stall_op_s[waits], starts[waits]]),
        figures=_figures(
            step,
            capacity_bytes=found.capacity_bytes,
            peak_bytes=found.peak_bytes,
            step_s=found.step_s,
            stall_s=found.stall_s,
            causes=(causes[StallCause.SWAP_OUT], causes[StallCause.PREFETCH], causes[StallCause.DEMAND]),
            overlap=found.overlap,
            out_bytes=found.swapped_out_bytes,
            in_bytes=found.swapped_in_bytes,
            replay_s=found.replay_s,
            replayed_bytes=found.replayed_bytes,
        ),
        policy=policy,
        says=str(clock),
    )


class Sides:
    """The sides made last: making one takes long on large steps, and the person zooms. Safe among threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: OrderedDict[tuple[int, ...], tuple[Scene | Policy, ComparedStep]] = OrderedDict()
        self._differences: OrderedDict[
            tuple[int, int, str], tuple[ComparedStep, ComparedStep, tuple[np.ndarray, np.ndarray]]
        ] = OrderedDict()

    def of_scene(self, scene: Scene) -> ComparedStep:
        """The side of a recorded step."""
        return self._kept(scene, (), lambda: measured_side(scene))

    def of_policy(self, policy: Policy, step: StepTrace, clock: Clock | None = None) -> ComparedStep:
        """The side of a policy on a step, by the clock's op times, or the step's own."""
        numbers = (step.index, *(() if clock is None else clock.steps))
        return self._kept(policy, numbers, lambda: predicted_side(policy, step, clock))

    def _kept(
        self, what: Scene | Policy, numbers: tuple[int, ...], make: Callable[[], ComparedStep]
    ) -> ComparedStep:
        key = (id(what), *numbers)
        with self._lock:
            if key not in self._made:
                self._made[key] = (what, make())  # held, so that nothing else gets its id
            self._made.move_to_end(key)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
            return self._made[key][1]

    def difference(self, a: ComparedStep, b: ComparedStep, axis: str) -> tuple[np.ndarray, np.ndarray]:
        """Positions (T,), and from each on the resident bytes of ``b`` less those of ``a``, where both have some."""
        key = (id(a), id(b), axis)
        with self._lock:
            if key not in self._differences:
                self._differences[key] = (a, b, _difference(a, b, axis))
            while len(self._differences) > _KEPT:
                self._differences.popitem(last=False)
            return self._differences[key][2]


def compare(a: ComparedStep, b: ComparedStep) -> dict[str, Any]:
    """The figures of both sides, their modules, and of two policies the decisions that differ."""
    paths = sorted({*a.modules, *b.modules})
    nothing = {"peak_bytes": 0, "moved_bytes": 0, "stall_s": 0.0}
    modules = [
        {"module": path, "a": a.modules.get(path, nothing), "b": b.modules.get(path, nothing)}
        for path in paths
    ]

    def apart(row: dict[str, Any]) -> tuple[float, ...]:
        names = ("peak_bytes", "moved_bytes", "stall_s")
        return (*(-abs(row["b"][name] - row["a"][name]) for name in names), -row["a"]["peak_bytes"])

    modules.sort(key=apart)
    return {
        "a": _described(a),
        "b": _described(b),
        "same_ops": fingerprint(a.step) == fingerprint(b.step),
        "module_count": len(modules),
        "modules": modules[:_MOST_ROWS],
        "decisions": None if a.policy is None or b.policy is None else _decisions(a.policy, b.policy),
    }


def compare_view(
    sides: Sides, a: ComparedStep, b: ComparedStep, axis: str, start: float, end: float, width: int
) -> tuple[dict[str, Any], Buffers]:
    """Both sides' stages, stalls and resident bytes from ``start`` to ``end`` of the axis, and the difference.

    Returns:
        What is in the buffers, and one Arrow stream a table, thinned to the pixels.
    """
    pa = require_pyarrow()
    pixels = min(width, _MOST_PIXELS)
    tables: dict[str, dict[str, np.ndarray]] = {}
    for name, side in (("a", a), ("b", b)):
        x = side.x_of_op(axis)
        for column, values in (("resident", side.resident_bytes), ("live", side.scene.live_bytes)):
            kept = steps_between(x[:-1], values, start, end, pixels)
            tables[f"{name}_{column}"] = {"x": x[kept], "bytes": values[kept]}
        spans = side.scene.stages
        bars = Intervals(x[spans.first_op], x[spans.end_op]).bars(start, end, pixels, _MOST_BARS)
        tables[f"{name}_stages"] = {**bar_columns(bars), "label": spans.label[bars.row].astype(np.int32)}
        tables[f"{name}_stalls"] = bar_columns(
            side.stall_intervals[axis].bars(start, end, pixels, _MOST_BARS)
        )
    x, apart = sides.difference(a, b, axis)
    kept = steps_between(x, apart, start, end, pixels)
    tables["difference"] = {"x": x[kept], "bytes": apart[kept]}
    return {"tables": list(tables)}, [arrow_stream(pa, columns) for columns in tables.values()]


def _difference(a: ComparedStep, b: ComparedStep, axis: str) -> tuple[np.ndarray, np.ndarray]:
    ends = min(a.length(axis), b.length(axis))
    x = np.unique(np.concatenate([a.x_of_op(axis)[:-1], b.x_of_op(axis)[:-1]]))
    x = x[x < ends]
    levels = [
        side.resident_bytes[np.maximum(np.searchsorted(side.x_of_op(axis)[:-1], x, side="right") - 1, 0)]
        for side in (a, b)
    ]
    # Behind the end of the shorter one there is nothing to compare.
    return np.append(x, ends), np.append(levels[1] - levels[0], 0)


def _described(side: ComparedStep) -> dict[str, Any]:
    return {
        "kind": side.kind,
        "clock": side.says,
        "stage": side.step.session_stage,
        "length": {axis: side.length(axis) for axis in ("time", "op")},
        "stages": list(side.scene.stages.labels),
        "figures": side.figures,
    }


def _figures(
    step: StepTrace,
    *,
    capacity_bytes: int | None,
    peak_bytes: int,
    step_s: float,
    stall_s: float,
    causes: tuple[float, float, float],
    overlap: float | None,
    out_bytes: int,
    in_bytes: int,
    replay_s: float,
    replayed_bytes: int,
) -> dict[str, float | None]:
    return {
        "capacity_bytes": capacity_bytes,
        "peak_bytes": int(peak_bytes),
        "live_peak_bytes": step.live_peak_bytes,
        "step_s": float(step_s),
        "stall_s": stall_s,
        "stall_out_s": causes[0],
        "stall_prefetch_s": causes[1],
        "stall_demand_s": causes[2],
        "overlap": overlap,
        "out_bytes": int(out_bytes),
        "in_bytes": int(in_bytes),
        "replay_s": float(replay_s),
        "replayed_bytes": int(replayed_bytes),
        "ops": len(step.ops),
        "storages": len(step.storages),
    }


def _decisions(a: Policy, b: Policy) -> dict[str, Any]:
    """The decisions that differ, the largest first."""
    found = diff(a, b)
    pairs: list[tuple[Decision | None, Decision | None]] = [
        *((decision, None) for decision in found.removed),
        *((None, decision) for decision in found.added),
        *found.changed,
    ]
    pairs.sort(key=lambda pair: -_either(*pair).bytes)
    return {
        "removed": len(found.removed),
        "added": len(found.added),
        "changed": len(found.changed),
        "rows": [_decision_row(*pair) for pair in pairs[:_MOST_ROWS]],
        "conditions": [
            {"name": name, "a": _plain(before), "b": _plain(after)}
            for name, (before, after) in found.conditions.items()
            if name in _CONDITIONS
        ],
    }


def _either(a: Decision | None, b: Decision | None) -> Decision:
    """The first that there is; one of them is."""
    either = b if a is None else a
    assert either is not None
    return either


def _decision_row(a: Decision | None, b: Decision | None) -> dict[str, Any]:
    either = asdict(_either(a, b))
    names = ("action", "out_op", "in_op", "decided_by")
    row = {name: either[name] for name in ("storage", "category", "module", "bytes", "gap")}
    for name, decision in (("a", a), ("b", b)):
        row[name] = None if decision is None else {key: asdict(decision)[key] for key in names}
    return row


def _plain(value: Any) -> Any:
    """What the panel shows as it stands: a number, a text or nothing."""
    if isinstance(value, dict):
        value = str(Link(**value))  # the one condition that has parts
    return value


def _sum_by_storage(storage: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    known = storage >= 0
    return np.bincount(storage[known], weights=values[known], minlength=count)


def policy_step(policy: Policy, newest: StepTrace | None) -> StepTrace:
    """The step to show a policy on: its own, else the newest recorded one. Raises ProtocolError without any."""
    step = policy.source if policy.source is not None else newest
    if step is None:
        raise ProtocolError(
            "empty",
            "the policy has no step, and no session has recorded one",
            "Train a step first.",
        )
    return step
