"""Slices on lanes: a viewer draws what nests on one lane, and would lose what overlaps in part."""

from __future__ import annotations

import numpy as np


def lanes_of(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The lane of each slice: int32 (slices,), from 0. On one lane, slices follow each other or nest.

    Args:
        start: int64 (slices,), nanoseconds.
        end: int64 (slices,), none before its start.
    """
    order = np.lexsort((-end, start))
    lane = np.zeros(len(start), dtype=np.int32)
    if not (start[order][1:] < np.maximum.accumulate(end[order])[:-1]).any():
        return lane  # one after the other
    open_ends: list[list[int]] = []
    for row, begins, ends in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        for number, stack in enumerate(open_ends):
            while stack and stack[-1] <= begins:
                stack.pop()
            if not stack or ends <= stack[-1]:
                stack.append(ends)
                lane[row] = number
                break
        else:
            lane[row] = len(open_ends)
            open_ends.append([ends])
    return lane
