"""What the copies of the newest steps have found of the link, and how much less the slowest of them."""

from __future__ import annotations

import threading

import numpy as np

from ..policy import Link
from ..runtime import core
from ..trace import Direction

_STEPS = 16
"""So many steps tell."""
_SETTLED_STEPS = 12
"""So many have to have told before there is a margin, or a plan is made anew: one odd step of them is none yet."""
_SLOWEST = 0.1
"""The margin covers all steps but this share of them."""
_MOST = 0.5
"""The margin is at most this: beyond it, plans would pay in every step for what few find."""
_TELLING_BYTES = 1 << 20
"""In a direction in which a step moved less than this it says nothing of the link."""
_FEW = 8
"""Nor does it where it moved less than another one over this: small copies find less of a link than large ones."""


class LinkUnderLoad:
    """The link of a session that measures it, as training finds it: beside compute, other copies, other processes.

    Plans are made for the median of the newest steps, less a margin for the slowest of them: a plan that assumes too
    much of the link stalls far longer than one that assumes too little (``benchmarks/link.py``). Steps tell that follow
    a plan which an earlier one has followed: else host memory is used for the first time, which takes long. The
    training loop takes steps in and asks, and planning asks in other threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moved: dict[int, _Moved] = {}  # by step
        self._followed: set[int] = set()

    def learn(self, log: core.StepLog) -> None:
        """Take in a step that has ended, and all of which is known."""
        if log.program < 0 or log.program not in self._followed:
            self._followed.add(log.program)
            return
        moved = _moved(log)
        with self._lock:
            self._moved[log.index] = moved
            if len(self._moved) > _STEPS:
                del self._moved[min(self._moved)]

    @property
    def is_settled(self) -> bool:
        """Have enough steps told, of each direction in which any has?"""
        told = [count for direction in Direction if (count := len(self._speeds(direction)))]
        return min(told, default=0) >= _SETTLED_STEPS

    def typical(self, before: Link, log: core.StepLog | None = None) -> tuple[Link, float]:
        """What half of the steps have found, and the share by which the slowest found less, 0 to 0.5: 0 while few tell.

        In a direction in which no step has told, it is what the step ``log`` has found, or as ``before``.
        """
        speeds, margin = [before.out_bytes_per_s, before.in_bytes_per_s], 0.0
        for direction in Direction:
            found = self._speeds(direction) or _speeds([] if log is None else [_moved(log)[direction]])
            if found:
                median = float(np.median(found))
                speeds[direction] = median
                if len(found) >= _SETTLED_STEPS:
                    margin = max(margin, 1.0 - float(np.quantile(found, _SLOWEST)) / median)
        return Link(*speeds), min(margin, _MOST)

    def _speeds(self, direction: Direction) -> list[float]:
        with self._lock:
            return _speeds([both[direction] for both in self._moved.values()])


_Moved = list[tuple[int, float]]
"""For each direction: bytes, and seconds that their copies took."""


def _moved(log: core.StepLog) -> _Moved:
    rows, tick_s = log.transfers(), core.seconds_per_tick()
    # A copy that has not ended ends at 0.
    taken = rows["end_ticks"].astype(np.int64) - rows["start_ticks"].astype(np.int64)
    both = [(taken > 0) & (rows["direction"] == direction) for direction in Direction]
    return [(int(rows["bytes"][mine].sum()), float(taken[mine].sum()) * tick_s) for mine in both]


def _speeds(moved: _Moved) -> list[float]:
    """Bytes a second of steps that moved so much in a direction: of those that tell."""
    least = max(_TELLING_BYTES, max((size for size, _ in moved), default=0) // _FEW)
    return [size / taken_s for size, taken_s in moved if size >= least and taken_s > 0.0]
