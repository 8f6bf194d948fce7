"""Step time against capacity, for choosing a capacity."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import BelowFloorError
from ..policy.edits import Edit, EditAction
from ..policy.model import Link
from ..trace import StepTrace, Trace
from ..trace.overlap import DEFINITION
from ..trace.trace import plannable_step
from ..util.progress import bar, tick
from ..util.units import NOTHING, format_bytes, format_percent, format_seconds, parse_fraction
from .arguments import checked_capacity, checked_host_capacity, checked_link, checked_min_swap
from .generate import plan, refused_of, replay_class_of
from .host_room import floor_within
from .memory import MIN_SWAP_BYTES, Floor, step_memory, step_op_times
from .replay import ReplayChains
from .simulate import simulate

POINTS = 13
"""Capacities looked at, unless told which."""

KNEE = 0.05
"""A step is as good as uncapped if it takes at most this share longer."""

_HEADS = ("capacity", "of peak", "step", "stall", "replays", "overlap", "out", "in", "host", "")


@dataclass(frozen=True)
class SweepPoint:
    """What the generator's policy for one capacity should achieve. Without any ``step_s`` is infinite."""

    capacity_bytes: int
    step_s: float
    stall_s: float
    overlap: float | None
    """See :attr:`~chameleon_lab.planner.simulate.Prediction.overlap`; None where nothing is copied."""
    swapped_out_bytes: int
    swapped_in_bytes: int
    replay_s: float = 0.0
    host_peak_bytes: int = 0
    """Most bytes of copies on the host at once."""

    @property
    def feasible(self) -> bool:
        """Is there a policy that runs the step in this capacity, and in what the host has?"""
        return math.isfinite(self.step_s)


@dataclass(frozen=True)
class Sweep:
    """Predictions over a range of capacities, ascending."""

    points: tuple[SweepPoint, ...]
    floor: Floor
    live_peak_bytes: int
    """What the step takes without any policy."""
    compute_s: float
    """The step without stalls and replays, as at a capacity of ``live_peak_bytes``."""
    link: Link
    within: float
    """Share of ``compute_s`` that a step may take longer at the knee."""
    host_capacity_bytes: int | None = None
    """What copies may take on the host; None: no limit."""

    @property
    def knee(self) -> SweepPoint | None:
        """The smallest capacity at which, as at all larger ones swept, the step takes at most ``within`` longer.

        Above it more capacity buys next to nothing; None if not even the largest capacity is large enough.
        """
        knee = None
        for point in reversed(self.points):
            if point.step_s > (1.0 + self.within) * self.compute_s:
                break
            knee = point
        return knee

    def __str__(self) -> str:
        cells = [_HEADS, *self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADS))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False))
            + "  "
            + row[-1]
            for row in cells
        ]
        return "\n".join([*self._headlines(), *(line.rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{cell}</th>" for cell in _HEADS)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in self._cells())
        text = "<br>".join(html.escape(line) for line in self._headlines())
        return f"<div><p>{text}</p><table><tr>{head}</tr>{body}</table></div>"

    def _headlines(self) -> list[str]:
        lowest, knee = self.floor, self.knee
        where = f"op {lowest.op} {lowest.op_name}" + (f" in {lowest.module}" if lowest.module else "")
        found = (
            "at none of these capacities" if knee is None else f"from {format_bytes(knee.capacity_bytes)} on"
        )
        return [
            f"Uncapped: {format_bytes(self.live_peak_bytes)}, step {format_seconds(self.compute_s)}. "
            f"Floor: {format_bytes(lowest.bytes)}, set by {where}; {lowest.measured_on}."
            + (
                f" On the host: {format_bytes(self.host_capacity_bytes)} at most."
                if self.host_capacity_bytes is not None
                else ""
            ),
            f"The step is within {format_percent(self.within, 0)} of uncapped {found}.",
            f"Overlap: {DEFINITION}.",
        ]

    def _cells(self) -> list[tuple[str, ...]]:
        knee = self.knee
        rows = []
        for point in self.points:
            share = (
                format_percent(point.capacity_bytes / self.live_peak_bytes, 0) if self.live_peak_bytes else ""
            )
            head = (format_bytes(point.capacity_bytes), share)
            if not point.feasible:
                below = point.capacity_bytes < self.floor.bytes
                why = "below the floor" if below else "too little host memory"
                rows.append((*head, *[NOTHING] * 7, why))
                continue
            stall, replays = (
                format_percent(seconds / self.compute_s) if self.compute_s else format_seconds(seconds)
                for seconds in (point.stall_s, point.replay_s)
            )
            rows.append(
                (
                    *head,
                    format_seconds(point.step_s),
                    stall,
                    replays,
                    format_percent(point.overlap, 0),
                    format_bytes(point.swapped_out_bytes),
                    format_bytes(point.swapped_in_bytes),
                    format_bytes(point.host_peak_bytes),
                    "knee" if point is knee else "",
                )
            )
        return rows


def sweep(
    trace: Trace | StepTrace,
    capacities: Sequence[int | float | str] | None,
    link: Link | float | str | tuple[float | str, float | str],
    *,
    op_times: Sequence[float] | np.ndarray | None = None,
    within: float | str = KNEE,
    min_swap_bytes: int | str = MIN_SWAP_BYTES,
    margin: float | str = 0.0,
    link_margin: float | str = 0.0,
    reserve_bytes: int | str = 0,
    edits: Sequence[Edit] = (),
    rematerialize: bool | int | str | None = None,
    refused: Collection[str] | None = None,
    host_capacity_bytes: int | float | str | None = None,
) -> Sweep:
    """Plan and simulate the newest step of ``trace`` at each of ``capacities``.

    Capacities and the link are written as for :func:`~chameleon_lab.planner.plan`. Without capacities, at
    evenly spaced ones from the floor to the step's peak. ``op_times`` as for
    :func:`~chameleon_lab.planner.simulate`; ``within`` is what the knee allows, see :attr:`Sweep.knee`; ``margin``,
    ``link_margin``, ``reserve_bytes``, ``edits`` (those of the capacity and the link aside), ``rematerialize``,
    ``refused`` and ``host_capacity_bytes`` as for :func:`~chameleon_lab.planner.plan`. A capacity at which the edits
    cannot be obeyed, or for which the host has too little, is as one below the floor.

    Raises TraceError if the trace holds no op, or its step has lost some, ValueError if ``capacities`` is empty or
    one of them, ``op_times``, ``within`` or ``rematerialize`` does not fit, TypeError if an argument is something else.
    """
    within = parse_fraction(within, "within", most=math.inf)
    link = checked_link(link)
    step, replay_class = plannable_step(trace), replay_class_of(rematerialize, trace)
    refused = refused_of(refused, trace)
    times = step_op_times(step, op_times)
    host_bytes = checked_host_capacity(host_capacity_bytes, step)
    min_swap_bytes = checked_min_swap(min_swap_bytes)
    replayable = None
    if host_bytes is not None and replay_class:
        replayable = ReplayChains(step, step_memory(step, min_swap_bytes), times, replay_class, refused)
    lowest = floor_within(trace, host_bytes, replayable=replayable)
    edits = tuple(edit for edit in edits if edit.action not in (EditAction.CAPACITY, EditAction.LINK))
    if capacities is None:
        capacities = (
            np.linspace(lowest.bytes, max(step.live_peak_bytes, lowest.bytes), POINTS).astype(int).tolist()
        )
    chosen = sorted({checked_capacity(capacity, step) for capacity in capacities})
    if not chosen:
        raise ValueError(
            "capacities is empty: give at least one, or None for a range from the floor to the peak"
        )

    def point(capacity: int) -> SweepPoint:
        nothing = SweepPoint(capacity, math.inf, math.inf, None, 0, 0)
        if capacity < lowest.bytes:
            return nothing
        try:
            policy = plan(
                step,
                capacity,
                link,
                op_times=times,
                min_swap_bytes=min_swap_bytes,
                margin=margin,
                link_margin=link_margin,
                reserve_bytes=reserve_bytes,
                edits=edits,
                rematerialize=replay_class,
                refused=refused,
                host_capacity_bytes=host_bytes,
            )
        except BelowFloorError:  # with the edits, or with what the host has
            return nothing
        predicted = simulate(step, policy, op_times=times)
        return SweepPoint(
            capacity,
            predicted.step_s,
            predicted.stall_s,
            predicted.overlap,
            predicted.swapped_out_bytes,
            predicted.swapped_in_bytes,
            predicted.replay_s,
            predicted.host_peak_bytes,
        )

    points = []
    with bar("Planning at several capacities", len(chosen), "capacity"):
        for capacity in chosen:
            points.append(point(capacity))
            tick()
    return Sweep(tuple(points), lowest, step.live_peak_bytes, float(times.sum()), link, within, host_bytes)
