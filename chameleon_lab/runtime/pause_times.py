"""The pauses of a step log: time in which no op ran, outside of the loop, and a clock that stands still meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..trace.columns import Pause
from ..trace.overlap import covered
from . import core

LEAST_S = 0.05
"""A stretch without ops that nobody tells of is a pause from here on; shorter ones are the loop's own Python."""


@dataclass(frozen=True)
class PauseTimes:
    """Stretches that do not touch each other, ascending. All columns are of shape (pauses,)."""

    start_ticks: np.ndarray  # int64
    end_ticks: np.ndarray  # int64
    kind: np.ndarray  # uint8: Pause

    @property
    def ticks(self) -> int:
        """All of them together."""
        if not len(self.kind):  # every step is asked this, short ones too
            return 0
        return int((self.end_ticks - self.start_ticks).sum())

    def ticks_of(self, kind: Pause) -> int:
        """Those of one kind."""
        if not len(self.kind):
            return 0
        return int((self.end_ticks - self.start_ticks)[self.kind == kind].sum())

    def before(self) -> Callable[[np.ndarray], np.ndarray]:
        """A function of ticks: how many of those up to them are of pauses."""
        return covered(self.start_ticks.astype(np.float64), self.end_ticks.astype(np.float64))


_NONE = PauseTimes(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8))


def pause_times(log: core.StepLog) -> PauseTimes:
    """The pauses of a log: what was told of (loading, cells) before the rest, and all without the ops inside."""
    rows = log.pauses()
    if not len(rows):
        return _NONE
    long = (rows["end_ticks"] - rows["start_ticks"]) * core.seconds_per_tick() >= LEAST_S
    rows = rows[(rows["kind"] != Pause.IDLE) | long]
    ops = log.ops()
    taken_start, taken_end = ops["start_ticks"], ops["end_ticks"]
    found: list[tuple[int, int, int]] = []
    for kind in (Pause.LOADING, Pause.CELLS, Pause.IDLE):
        chosen = rows[rows["kind"] == kind]
        if not len(chosen):
            continue
        pieces = _without(chosen["start_ticks"], chosen["end_ticks"], taken_start, taken_end)
        found += [(start, end, int(kind)) for start, end in pieces]
        taken_start = np.append(taken_start, chosen["start_ticks"])
        taken_end = np.append(taken_end, chosen["end_ticks"])
    if not found:
        return _NONE
    start, end, kind = np.array(sorted(found), dtype=np.int64).T
    return PauseTimes(start, end, kind.astype(np.uint8))


def _without(
    start: np.ndarray, end: np.ndarray, taken_start: np.ndarray, taken_end: np.ndarray
) -> list[tuple[int, int]]:
    """What is left of the intervals without those that are taken."""
    pieces = []
    for begin, stop in zip(start.tolist(), end.tolist(), strict=True):
        inside = (taken_end > begin) & (taken_start < stop)
        at = begin
        for first, last in sorted(zip(taken_start[inside].tolist(), taken_end[inside].tolist(), strict=True)):
            if first > at:
                pieces.append((at, first))
            at = max(at, last)
        if stop > at:
            pieces.append((at, stop))
    return pieces
