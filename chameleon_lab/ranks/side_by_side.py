"""The ranks of a job side by side: who computes how long, who waits for whom, and how far their clocks are apart."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TraceError
from ..trace import Trace
from ..util.progress import bar, tick
from ..util.units import NOTHING, format_bytes, format_seconds
from .alignment import Alignment, Offset, align, matched_collectives, meets
from .side import RankSide

_PARTS = (".killed", ".unfinished")
"""Traces of runs that were killed stand for a rank only where it has no better one; the best last."""

COLUMNS = (
    *("Rank", "Host", "Step", "Compute", "Waited", "Longest for", "Made others wait", "Stall"),
    *("Peak resident", "Skew", "Clock", "Program"),
)
"""Heads of what :meth:`RankRow.cells` gives."""


@dataclass(frozen=True)
class RankRow:
    """One rank. Seconds are means of a step."""

    name: str
    rank: int
    host: str
    device: str
    steps: int
    """How many of its steps were looked at."""
    step_s: float
    compute_s: float
    """Without waits at collectives, and without stalls."""
    waited_s: float | None
    """Waits for other ranks: until the last of them came to the collective. None where nothing tells."""
    moving_s: float | None
    """Waits for collectives that all ranks had come to."""
    longest_for: str
    """The rank that it waited for longest; empty where it waited for none."""
    made_wait_s: float | None
    """What all others together waited for it."""
    skew_s: float | None
    """How much later than the first rank it came to a collective: a mean of them all."""
    stall_s: float
    peak_bytes: int
    live_peak_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    capacity_bytes: int | None
    clock: Offset | None
    """How far its clock is ahead of the first rank's; None: unknown."""
    program: str
    """A letter: ranks that have the same one run the same ops."""
    lost: str | None = None

    def cells(self) -> tuple[str, ...]:
        """As a row of text."""

        def seconds(value: float | None) -> str:
            return NOTHING if value is None else format_seconds(value)

        clock = NOTHING
        if self.clock is not None:
            sign = "+" if self.clock.seconds > 0 else "-" if self.clock.seconds < 0 else ""
            clock = f"{sign}{format_seconds(abs(self.clock.seconds))} ± {format_seconds(self.clock.error_s)}"
        return (
            *(self.name, self.host, seconds(self.step_s), seconds(self.compute_s), seconds(self.waited_s)),
            *(self.longest_for or NOTHING, seconds(self.made_wait_s), seconds(self.stall_s)),
            *(format_bytes(self.peak_bytes), seconds(self.skew_s), clock, self.program),
        )


@dataclass(frozen=True)
class MergedReport:
    """The ranks of a job, those first that the others wait for longest."""

    rows: tuple[RankRow, ...]
    world_size: int
    steps: tuple[int, ...]
    """The steps that were looked at: those that all ranks have, if there are such."""
    collectives: int
    """How many of them, of all steps, were found on more than one rank."""
    waited_s: tuple[tuple[float, ...], ...]
    """By rank, in the order of :attr:`ranks`: how long it waited for each of them, seconds of a step."""
    ranks: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self)
        for row, of in zip(plain["rows"], self.rows, strict=True):
            if of.clock is not None:
                row["clock"]["error_s"] = of.clock.error_s
        return plain

    @property
    def title(self) -> str:
        """In a line what was looked at."""
        if not self.steps:
            return f"{len(self.rows)} of {self.world_size} ranks"
        first, last = self.steps[0], self.steps[-1]
        which = f"step {first}" if first == last else f"steps {first} to {last}"
        return f"{len(self.rows)} of {self.world_size} ranks, {which}, {self.collectives} collectives matched"

    def __str__(self) -> str:
        cells = [COLUMNS, *(row.cells() for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells
        ]
        return "\n".join([self.title, *(line.rstrip() for line in lines), *self.notes])


def merge(
    traces: Iterable[Trace | str | os.PathLike[str]] | str | os.PathLike[str], step: int | None = None
) -> MergedReport:
    """Put the ranks of a job side by side.

    Args:
        traces: of one rank each, or their paths; or the folder that they lie in.
        step: the session's step number to look at. None: the newest steps that all ranks have.

    Raises TraceError where there is no trace or step, OSError where one cannot be read.
    """
    if isinstance(traces, str | os.PathLike):
        traces = trace_files(traces)
    chosen = None if step is None else [step]
    sides = []
    traces = list(traces)
    with bar("Reading ranks", len(traces), "trace"):
        for each in traces:
            path = "" if isinstance(each, Trace) else os.fspath(each)
            trace = each if isinstance(each, Trace) else Trace.load(each, partial=True)
            sides.append(RankSide.of(trace, path, chosen))
            tick()
    if step is not None and not any(side.steps for side in sides):
        raise TraceError(f"no trace holds step {step}")
    return merged(sides)


def trace_files(folder: str | os.PathLike[str]) -> list[str]:
    """The traces in a folder, one a rank: of a killed one, what it has left. Raises TraceError if none is there."""
    best: dict[str, tuple[int, str]] = {}
    for path in sorted(Path(folder).glob("*.parquet"), key=lambda path: (len(path.name), path.name)):
        stem, quality = path.name.removesuffix(".parquet"), len(_PARTS)
        for number, part in enumerate(_PARTS):
            if stem.endswith(part):
                stem, quality = stem.removesuffix(part), number
        best[stem] = max(best.get(stem, (-1, "")), (quality, str(path)))
    if not best:
        raise TraceError(f"{os.fspath(folder)}: no trace is in this folder: save some there, as t.parquet")
    return [path for _, path in best.values()]


def merged(sides: Sequence[RankSide]) -> MergedReport:
    """Of what each rank's trace says; see :func:`merge`. Raises TraceError where two are of the same rank."""
    sides = sorted(sides, key=lambda side: (side.who.rank, side.name))
    for one, other in zip(sides, sides[1:], strict=False):
        if one.who.rank == other.who.rank:
            raise TraceError(
                f"two traces are of {one.name}: give the traces of one job, or a folder that holds no others"
            )
    sides, steps = _common(sides)
    alignment = align(sides)
    alone = ""
    if alignment.contradicts and len(steps) > 1:  # clocks drift, and within one step they hardly do
        steps = steps[-1:]
        sides = [replace(side, steps=(side.at(steps[0]),)) for side in sides]
        alignment = align(sides)
        alone = (
            f"Only step {steps[0]} was looked at: from step to step, the ranks' clocks drift, or were set."
        )
    waited, came_late, counted = _waits(sides, alignment)
    known = not alignment.why_not or any(each is not None for each in alignment.offsets[1:])
    letters = _letters(sides)
    rows = []
    for row, side in enumerate(sides):
        count = max(len(side.steps), 1)
        mine, of_others = waited[row] / count, waited[:, row] / count
        longest = int(mine.argmax()) if mine.max(initial=0.0) > 0 else -1
        tells = known and counted[row] > 0
        total = float(mine.sum())
        blocked_s = _mean(side, "blocked_s")
        rows.append(
            RankRow(
                name=side.name,
                rank=side.who.rank,
                host=side.who.host,
                device=side.device,
                steps=len(side.steps),
                step_s=_mean(side, "step_s"),
                compute_s=_mean(side, "compute_s"),
                waited_s=total if tells else None,
                moving_s=max(blocked_s - total, 0.0) if tells else None,
                longest_for=sides[longest].name if tells and longest >= 0 else "",
                made_wait_s=float(of_others.sum()) if tells else None,
                skew_s=float(came_late[row] / counted[row]) if tells else None,
                stall_s=_mean(side, "stall_s"),
                peak_bytes=_most(side, "peak_bytes"),
                live_peak_bytes=_most(side, "live_peak_bytes"),
                swapped_out_bytes=int(_mean(side, "swapped_out_bytes")),
                swapped_in_bytes=int(_mean(side, "swapped_in_bytes")),
                capacity_bytes=side.capacity_bytes,
                clock=alignment.offsets[row],
                program=letters[row],
                lost=side.lost,
            )
        )
    per_step = waited / np.array([[max(len(side.steps), 1)] for side in sides])
    order = sorted(range(len(rows)), key=lambda k: (-(rows[k].made_wait_s or 0.0), rows[k].rank))
    said = {side.who.world_size for side in sides if side.who.world_size < 1 << 30}
    return MergedReport(
        rows=tuple(rows[k] for k in order),
        world_size=max(said, default=len(sides)),
        steps=steps,
        collectives=alignment.matched,
        waited_s=tuple(tuple(map(float, row)) for row in per_step),
        ranks=tuple(side.name for side in sides),
        notes=(*([alone] if alone else []), *_notes(sides, alignment, steps, letters)),
    )


def _common(sides: Sequence[RankSide]) -> tuple[list[RankSide], tuple[int, ...]]:
    """The ranks with the steps to look at alone: those of all ranks, and of these the ones under a policy."""
    shared = set.intersection(*({step.index for step in side.steps} for side in sides)) if sides else set()
    stages = {index: {side.at(index).session_stage for side in sides} for index in shared}
    steady = {index for index, found in stages.items() if found == {"Stable"}}
    later = {index for index in shared if index > min(shared)}
    chosen = tuple(sorted(steady or later or shared))
    if not chosen:
        return list(sides), ()
    kept = []
    for side in sides:
        steps = tuple(step for step in side.steps if step.index in chosen)
        kept.append(replace(side, steps=steps))
    return kept, chosen


def _waits(sides: Sequence[RankSide], alignment: Alignment) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds that each rank waited for each; seconds that each came after the first; and to how many collectives.

    A rank waits for the last one that comes, from when it needs the result, or comes itself, until that one has come.
    Of collectives that it waits for at the same op, only the longest wait counts.
    """
    count = len(sides)
    waited, late, counted = np.zeros((count, count)), np.zeros(count), np.zeros(count, dtype=np.int64)
    ahead_s = alignment.seconds()
    for each in matched_collectives(sides):
        of = [sides[row] for row in each.rows]
        if not all(meets(one, other) for one in of for other in of):
            continue  # some are of groups that not all of these ranks are in, and nothing tells which
        came_s = each.begin_s - ahead_s[each.rows, None]
        last, last_s = came_s.argmax(axis=0), came_s.max(axis=0)
        for place, row in enumerate(each.rows.tolist()):
            late[row] += float((came_s[place] - came_s.min(axis=0)).sum())
            counted[row] += came_s.shape[1]
            needed_s = np.maximum(each.needed_s[place] - ahead_s[row], came_s[place])
            wait_s = np.minimum(each.done_s[place] - ahead_s[row], last_s) - needed_s
            wait_s[np.isnan(wait_s) | (wait_s < 0) | (last == place)] = 0.0
            users = each.user_op[place]
            for user in np.unique(users[wait_s > 0]).tolist():
                at = np.flatnonzero(users == user)
                longest = int(at[wait_s[at].argmax()])
                waited[row, each.rows[last[longest]]] += float(wait_s[longest])
    return waited, late, counted


def _letters(sides: Sequence[RankSide]) -> list[str]:
    """A letter for each sequence of programs of the steps, in the order of ranks."""
    known: dict[tuple[str, ...], str] = {}
    found = []
    for side in sides:
        key = tuple(step.program for step in side.steps)
        number = len(known)
        letter = chr(ord("A") + number % 26) * (number // 26 + 1)
        found.append(known.setdefault(key, letter))
    return found


def _notes(
    sides: Sequence[RankSide], alignment: Alignment, steps: tuple[int, ...], letters: Sequence[str]
) -> Iterable[str]:
    if alignment.why_not:
        yield f"Clocks are taken as they are where none is shown: {alignment.why_not}."
    if not steps:
        yield "The ranks have no step in common: each row is of its own steps."
    said = max((side.who.world_size for side in sides if side.who.world_size < 1 << 30), default=0)
    if missing := sorted(set(range(said)) - {side.who.rank for side in sides}):
        shown = ", ".join(map(str, missing[:8])) + (
            f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        )
        yield f"No trace of rank {shown}."
    if len(set(letters)) > 1:
        yield f"The ranks run {len(set(letters))} programs: letters tell them apart."
    for side in sides:
        if side.lost:
            yield f"{side.name}: {side.lost}"


def _mean(side: RankSide, name: str) -> float:
    return statistics.fmean([getattr(step, name) for step in side.steps]) if side.steps else 0.0


def _most(side: RankSide, name: str) -> int:
    return max((getattr(step, name) for step in side.steps), default=0)
