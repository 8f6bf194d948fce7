"""Overlap of copies and compute: one definition for reports, figures, the panel and comparisons.

*Overlap* is the share of the time of the copies in which compute did not wait for a copy of the same direction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .columns import Direction
from .step import StepTrace

DEFINITION = "share of the copies' time in which compute did not wait for their direction"
"""What stands where an overlap is shown."""


def exposed_share(
    direction: np.ndarray,
    start_s: np.ndarray,
    end_s: np.ndarray,
    stall_direction: np.ndarray,
    stall_start_s: np.ndarray,
    stall_end_s: np.ndarray,
) -> np.ndarray:
    """float64 (copies,): the share of each copy's time in which compute waited for its direction.

    The first three columns are the copies', of shape (copies,); the last three the waits', of shape (waits,). All times
    are in one unit.
    """
    exposed = np.zeros(len(direction))
    length = end_s - start_s
    for way in Direction:
        waits = stall_direction == way
        if not waits.any():  # every step is asked this, short ones too
            continue
        chosen = np.flatnonzero(direction == way)
        waited = covered(stall_start_s[waits], stall_end_s[waits])
        inside = waited(end_s[chosen]) - waited(start_s[chosen])
        exposed[chosen] = np.divide(
            inside, length[chosen], out=np.zeros(len(chosen)), where=length[chosen] > 0
        )
    return np.clip(exposed, 0.0, 1.0)


def hidden_share(exposed: np.ndarray, time_s: np.ndarray) -> float | None:
    """The overlap of copies, by what :func:`exposed_share` says of each and its time; None where nothing was copied."""
    total = float(time_s.sum())
    return min(max(1.0 - float((time_s * exposed).sum()) / total, 0.0), 1.0) if total > 0 else None


def overlap_of(step: StepTrace) -> float | None:
    """The overlap of a recorded step; None where nothing was copied. Copies that still run do not count."""
    rows, stalls = step.transfers, step.stalls
    done = np.isfinite(rows.start_s) & np.isfinite(rows.end_s)
    start_s, end_s = rows.start_s[done], rows.end_s[done]
    ends = stalls.start_s + stalls.duration_s
    exposed = exposed_share(rows.direction[done], start_s, end_s, stalls.direction, stalls.start_s, ends)
    return hidden_share(exposed, end_s - start_s)


def covered(start: np.ndarray, end: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A function of times: how much up to them the union of intervals covers."""
    if not len(start):
        return lambda times: np.zeros(len(times))
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    begins = np.concatenate([[0], np.flatnonzero(start[1:] > reach[:-1]) + 1])
    left, right = start[begins], reach[np.append(begins[1:] - 1, len(reach) - 1)]
    points = np.column_stack([left, right]).ravel()
    sums = np.cumsum(np.column_stack([np.zeros(len(left)), right - left]).ravel())
    return lambda times: np.interp(times, points, sums, left=0.0)
