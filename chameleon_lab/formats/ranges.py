"""Stretches of time on threads: which lie in no other, and what a moment lies in."""

from __future__ import annotations

import numpy as np

_ROUNDING_S = 5e-10
"""Times in files have whole nanoseconds at most, and their sums are rounded."""


def outermost(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Rows of the stretches that lie in no other one of their thread, in the order of their starts."""
    order = np.lexsort((-end, start, thread))
    threads, starts, ends = thread[order], start[order], end[order]
    outer = np.ones(len(order), dtype=bool)
    for first, last in _runs(threads):
        reach = np.maximum.accumulate(ends[first:last])
        outer[first + 1 : last] = starts[first + 1 : last] >= reach[:-1] - _ROUNDING_S
    found = order[outer]
    return found[np.argsort(start[found], kind="stable")]


def enclosing(
    thread: np.ndarray, start: np.ndarray, end: np.ndarray, of_thread: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """For moments, the row of the outermost stretch of the same thread that they lie in; -1 for none."""
    found = np.full(len(at), -1, dtype=np.int64)
    rows = outermost(thread, start, end)
    by_thread = rows[np.argsort(thread[rows], kind="stable")]
    for first, last in _runs(thread[by_thread]):
        own = by_thread[first:last]
        asked = np.flatnonzero(of_thread == thread[own[0]])
        place = np.searchsorted(start[own], at[asked], side="right") - 1
        there = (place >= 0) & (at[asked] < end[own[np.maximum(place, 0)]])
        found[asked[there]] = own[place[there]]
    return found


def innermost(
    thread: np.ndarray, start: np.ndarray, end: np.ndarray, of_thread: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For moments, the row of the innermost stretch of the same thread that they lie in, -1 for none; and each
    stretch's own parent, likewise.
    """
    found = np.full(len(at), -1, dtype=np.int64)
    parent = np.full(len(start), -1, dtype=np.int64)
    # Events in order of time: at one moment a stretch begins before a question is asked, and ends before both.
    count = len(start)
    threads = np.concatenate([thread, of_thread])
    times = np.concatenate([start, at])
    kinds = np.concatenate([np.zeros(count), np.ones(len(at))])
    longest = np.concatenate([-end, np.zeros(len(at))])
    stack: list[int] = []
    last_thread: object = None
    ends = end.tolist()
    order = np.lexsort((longest, kinds, times, threads))
    for row, thread_, time in zip(
        order.tolist(), threads[order].tolist(), times[order].tolist(), strict=True
    ):
        if thread_ != last_thread:
            stack, last_thread = [], thread_
        while stack and ends[stack[-1]] <= time:
            stack.pop()
        inside = stack[-1] if stack else -1
        if row < count:
            parent[row] = inside
            stack.append(row)
        else:
            found[row - count] = inside
    return found, parent


def _runs(values: np.ndarray) -> list[tuple[int, int]]:
    """First and past-the-last row of each run of equal values."""
    if not len(values):
        return []
    borders = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = np.concatenate([[0], borders, [len(values)]])
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
