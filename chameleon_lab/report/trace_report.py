"""A trace in a few figures: its steps, and the largest users of the device in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..errors import TraceError
from ..planner import Floor, floor
from ..trace import Category, Cause, Direction, Divergence, Pause, StepTrace, Trace
from ..trace.overlap import DEFINITION, covered, overlap_of
from ..trace.stall_parts import parts_of_step
from ..util.units import NOTHING, format_bytes, format_percent, format_seconds
from .session_report import not_replayed_rows, stall_rows


@dataclass(frozen=True)
class RecordedStep:
    """One step of a trace."""

    index: int
    stage: str
    """Stage of the session: WarmUp, Profile or Stable; Imported where another tool has recorded it."""
    ops: int
    step_s: float
    stall_s: float
    peak_bytes: int
    live_peak_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    replays: int = 0
    """Ops replayed to restore dropped storages."""
    replay_s: float = 0.0
    declined_drops: int = 0
    match_rate: float = 0.0
    """Share of the ops that were found in the plan that was followed; 0.0 where none was."""
    divergences: tuple[Divergence, ...] = ()
    """Where the ops differ from the plan's."""
    overlap: float | None = None
    """Share of the copies' time in which compute did not wait for their direction; None without copies."""
    loading_s: float = 0.0
    """Time of DataLoaders in which no op ran; not part of ``step_s``."""
    paused_s: float = 0.0
    """Pauses without ops, data loading included; not part of ``step_s``."""

    @classmethod
    def of(cls, step: StepTrace) -> RecordedStep:
        """Its figures."""
        moved = step.transfers
        return cls(
            index=step.index,
            stage=step.session_stage,
            ops=len(step.ops),
            step_s=float(step.duration_s),
            stall_s=float(step.stalls.duration_s.sum()),
            peak_bytes=step.peak_bytes,
            live_peak_bytes=step.live_peak_bytes,
            swapped_out_bytes=int(moved.bytes[moved.direction == Direction.OUT].sum()),
            swapped_in_bytes=int(moved.bytes[moved.direction == Direction.IN].sum()),
            replays=len(step.replays),
            replay_s=float(step.replays.duration_s.sum()),
            declined_drops=len(step.declined),
            match_rate=step.match_rate,
            divergences=step.divergences,
            overlap=overlap_of(step),
            loading_s=step.paused_s(Pause.LOADING),
            paused_s=step.paused_s(),
        )


@dataclass(frozen=True)
class TraceReport:
    """A trace, and the step of it that is looked at."""

    meta: dict[str, Any]
    history: tuple[RecordedStep, ...]
    step: RecordedStep
    floor: Floor | None
    """None where the step has lost ops."""
    truncated_ops: int
    peak_op: str
    """The op at which most bytes are alive."""
    peak_categories: tuple[tuple[str, int], ...]
    """What is alive there: category and bytes, the largest first."""
    peak_modules: tuple[tuple[str, int], ...]
    """Activations alive there, by the module that made them; the largest first."""
    stalls: tuple[tuple[str, float], ...]
    """Seconds waited, by the cause of the transfer waited for; the longest first."""
    stall_parts: dict[str, float] = field(default_factory=dict)
    """The same by why it was waited for, in seconds: see :mod:`chameleon_lab.trace.stall_parts`."""
    lost: str | None = None
    """What the trace's file has lost, in words; None: nothing."""
    lacks: str = ""
    """What a plan needs and the file does not tell, in words; empty: nothing."""
    kernels: int = 0
    """Kernels that a profiler has recorded."""
    kernel_s: float = 0.0
    """Time in which at least one of them ran."""
    segments: dict[str, int] = field(default_factory=dict)
    """The allocator's segments at the end of a memory snapshot: how many, their bytes, those in use, gaps, and the
    longest gap."""
    out_of_memory: tuple[str, ...] = ()
    """The out-of-memory errors of a memory snapshot, in words."""

    @classmethod
    def of(cls, trace: Trace, step: StepTrace | None = None) -> TraceReport:
        """Of a trace and one of its steps, by default the newest.

        Raises ValueError if the trace is empty, TraceError if the step has no ops.
        """
        step = trace.last if step is None else step
        if not len(step.ops):
            raise TraceError(
                f"step {step.index} has no ops: choose another step, or train inside the session"
            )
        peak = int(step.ops.live_peak_bytes.argmax())
        return cls(
            meta=dict(trace.meta),
            history=tuple(RecordedStep.of(each) for each in trace),
            step=RecordedStep.of(step),
            floor=None if step.truncated_ops else floor(Trace([step], trace.meta)),
            truncated_ops=step.truncated_ops,
            peak_op=place(step.op_name(peak), step.module_path(int(step.ops.module[peak]))),
            peak_categories=tuple(_categories(step, peak)),
            peak_modules=tuple(_modules(step, peak)),
            stalls=tuple(_stalls(step)),
            stall_parts=parts_of_step(step).totals() if len(step.stalls) else {},
            lost=trace.lost,
            lacks=step.lacks,
            kernels=len(step.kernels),
            kernel_s=_busy_s(step),
            segments=_segments(step),
            out_of_memory=tuple(name for name in step.mark_names if name.startswith("Out of memory:")),
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain Python values."""
        return asdict(self)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """The step's table: what, value, remark."""
        step, capacity = self.step, self.meta.get("capacity_bytes")
        yield (
            "Step",
            str(step.index),
            f"{step.stage}, {step.ops} ops, on {self.meta.get('device', 'an unknown device')}",
        )
        if form := self.meta.get("format"):
            yield "Read from", str(form), ""
        if self.lacks:
            yield "Plans", "none", self.lacks
        yield "Step time", format_seconds(step.step_s), ""
        if step.loading_s:
            yield "Data loading", format_seconds(step.loading_s), "not counted in the step time"
        if step.paused_s > step.loading_s:
            paused_s = step.paused_s - step.loading_s
            yield (
                "Paused",
                format_seconds(paused_s),
                "no op ran; not counted in the step time",
            )
        yield "Stall", format_seconds(step.stall_s), _share(step.stall_s, step.step_s, "of the step")
        for cause, seconds in self.stalls:
            yield f"  {cause}", format_seconds(seconds), _share(seconds, step.stall_s, "of the stall")
        yield from stall_rows(self.stall_parts)
        overlap = NOTHING if step.overlap is None else format_percent(step.overlap)
        yield "Overlap", overlap, "no copies" if step.overlap is None else DEFINITION
        if step.replays or step.declined_drops:
            declined = f"; {step.declined_drops} drops were declined" if step.declined_drops else ""
            share = _share(step.replay_s, step.step_s, "of the step")
            yield "Replays", format_seconds(step.replay_s), f"{step.replays} ops ran again, {share}{declined}"
        if off := self.meta.get("replays_off"):
            yield "Replays", "off", str(off)
        elif isinstance(refused := self.meta.get("not_replayed"), dict):
            yield from not_replayed_rows({name: str(why) for name, why in refused.items()})
        if self.kernels:
            yield (
                "Kernels",
                format_seconds(self.kernel_s),
                f"{self.kernels} kernels; {_share(self.kernel_s, step.step_s, 'of the step')}",
            )
        yield (
            "Capacity",
            "none" if capacity is None else format_bytes(capacity),
            "" if capacity is None else _share(capacity, step.live_peak_bytes, "of the peak alive"),
        )
        if self.floor is not None:
            yield (
                "Floor",
                format_bytes(self.floor.bytes),
                f"set by {place(self.floor.op_name, self.floor.module)}",
            )
            yield "", "", self.floor.measured_on
        yield "Peak resident", format_bytes(step.peak_bytes), ""
        for what in self.out_of_memory:
            yield "Out of memory", "", what
        if self.segments:
            yield from _segment_rows(self.segments)
        yield "Peak alive", format_bytes(step.live_peak_bytes), f"at {self.peak_op}; of which"
        for category, size in self.peak_categories:
            yield f"  {category}", format_bytes(size), _share(size, step.live_peak_bytes)
        for module, size in self.peak_modules:
            yield "  activations", format_bytes(size), f"made in {module}"
        yield (
            "Moved",
            f"{format_bytes(step.swapped_out_bytes)} out",
            f"{format_bytes(step.swapped_in_bytes)} in",
        )
        if step.match_rate:
            places = len(step.divergences)
            yield (
                "Matched",
                format_percent(step.match_rate),
                f"of the ops were found in the plan; diverged in {places} place{'s' * (places != 1)}",
            )
        else:
            yield "Matched", "none", "no plan was followed"
        if self.truncated_ops and not self.lacks:
            yield "Truncated", f"{self.truncated_ops} ops", "beyond the recorder's limit, max_ops"


STEP_COLUMNS = (
    "Step",
    "Stage",
    "Ops",
    "Time",
    "Stall",
    "Replays",
    "Peak resident",
    "Peak alive",
    "Out",
    "In",
)
"""Heads of what :func:`step_cells` gives."""


def step_cells(step: RecordedStep) -> tuple[str, ...]:
    """A step as a row of text."""
    sizes = (step.peak_bytes, step.live_peak_bytes, step.swapped_out_bytes, step.swapped_in_bytes)
    times = (step.step_s, step.stall_s, step.replay_s)
    return (
        *(str(step.index), step.stage, str(step.ops)),
        *(format_seconds(value) for value in times),
        *(format_bytes(value) for value in sizes),
    )


def followed(step: RecordedStep) -> str:
    """In a line: how a step followed its plan, and the first places where it diverged."""
    if not step.match_rate:
        return f"Step {step.index}: no plan was followed"
    line = f"Step {step.index}: {format_percent(step.match_rate)} of the ops were found in the plan"
    for each in step.divergences[:_MOST_DIVERGENCES]:
        line += f"; op {each.from_op}, {place(each.op_name, each.module)}: "
        line += f"{each.extra_ops} extra, {each.left_out_ops} skipped"
    more = len(step.divergences) - _MOST_DIVERGENCES
    return f"{line}; and {more} more place{'s' * (more != 1)}" if more > 0 else line


_MOST_MODULES = 6
_MOST_DIVERGENCES = 3


def _categories(step: StepTrace, op: int) -> list[tuple[str, int]]:
    alive = _alive(step, op)
    sizes = [
        (
            category.name.lower().replace("_", " "),
            int(step.storages.block_bytes[alive & (step.storages.category == category)].sum()),
        )
        for category in Category
    ]
    return sorted((row for row in sizes if row[1]), key=lambda row: -row[1])


def _modules(step: StepTrace, op: int) -> list[tuple[str, int]]:
    rows = np.flatnonzero(_alive(step, op) & (step.storages.category == Category.ACTIVATION))
    totals: dict[str, int] = {}
    for row in rows.tolist():
        module = step.module_path(int(step.storages.module[row])) or "no module"
        totals[module] = totals.get(module, 0) + int(step.storages.block_bytes[row])
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:_MOST_MODULES]


def _alive(step: StepTrace, op: int) -> np.ndarray:
    return (step.storages.birth_op <= op) & (op <= step.storages.death_op)


def _stalls(step: StepTrace) -> list[tuple[str, float]]:
    rows = step.stalls
    sums = [
        (
            f"{cause.name.lower()} {direction.name.lower()}",
            float(rows.duration_s[(rows.cause == cause) & (rows.direction == direction)].sum()),
        )
        for cause in Cause
        for direction in Direction
    ]
    return sorted((row for row in sums if row[1]), key=lambda row: -row[1])


def _busy_s(step: StepTrace) -> float:
    rows = step.kernels
    if not len(rows):
        return 0.0
    until = covered(rows.start_s, rows.start_s + rows.duration_s)
    return float(until(np.array([np.inf]))[0])


def _segments(step: StepTrace) -> dict[str, int]:
    rows = step.segments
    if not len(rows):
        return {}
    return {
        "segments": len(rows),
        "total_bytes": int(rows.total_bytes.sum()),
        "allocated_bytes": int(rows.allocated_bytes.sum()),
        "gaps": int(rows.gaps.sum()),
        "largest_gap_bytes": int(rows.largest_gap_bytes.max()),
    }


def _segment_rows(found: dict[str, int]) -> Iterator[tuple[str, str, str]]:
    total, used = found["total_bytes"], found["allocated_bytes"]
    yield "Reserved", format_bytes(total), f"in {found['segments']} segments, at the end; of which"
    yield "  in use", format_bytes(used), _share(used, total)
    largest = format_bytes(found["largest_gap_bytes"])
    yield "  in gaps", format_bytes(total - used), f"{found['gaps']} gaps, the longest {largest}"


def place(op: str, module: str) -> str:
    """An op's name, and the path of the module that ran it."""
    return f"{op} in {module}" if module else op


def _share(part: float, whole: float, of: str = "") -> str:
    return f"{format_percent(part / whole)} {of}".rstrip() if whole else ""
