"""What a device did, from a profiler's records of kernels and copies: tables, overlap and stalls.

A profiler does not say what compute waited for. A *stall* is here the time in which a copy between host and device runs
and no kernel does on that device; a session's trace has the waits themselves. Overlap follows from the stalls by the
one definition in :mod:`chameleon_lab.trace.overlap`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from ..trace import Cause, Direction, Kernels, Stalls, Transfers
from .build import constant, filled

NO_DIRECTION = -1
"""Of a copy that stays on the device."""


class Records:
    """Rows of equal shape, kept as columns while a file is read."""

    def __init__(self, **kinds: str) -> None:
        self._columns = {name: array(kind) for name, kind in kinds.items()}
        self._appends = tuple(column.append for column in self._columns.values())

    def add(self, *values: float) -> None:
        """A row, in the order of the columns."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)  # type: ignore[arg-type]  # an array of a kind takes that kind

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def columns(self, order: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The columns as arrays, in an order of rows. No row can be added any more: they are not copied."""
        made = {
            name: np.frombuffer(column, dtype=column.typecode) if column else np.zeros(0, column.typecode)
            for name, column in self._columns.items()
        }
        return made if order is None else {name: column[order] for name, column in made.items()}


@dataclass(frozen=True)
class Work:
    """Kernels and copies, all columns of equal length; ``op`` is -1 where nobody knows it. Times in seconds."""

    name: np.ndarray
    op: np.ndarray
    device: np.ndarray
    stream: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray

    def taken(self, rows: np.ndarray) -> Work:
        """Some of the rows."""
        return Work(*(column[rows] for column in vars(self).values()))


@dataclass(frozen=True)
class Copies(Work):
    """Copies: ``direction`` is a Direction, and ``issue_s`` when the host asked for it (NaN unknown)."""

    direction: np.ndarray
    bytes: np.ndarray
    issue_s: np.ndarray

    def taken(self, rows: np.ndarray) -> Copies:
        """Some of the rows."""
        return Copies(*(column[rows] for column in vars(self).values()))


def kernel_table(work: Work) -> Kernels:
    """The kernels as a table of a step."""
    order = np.argsort(work.start_s, kind="stable")
    rows = work.taken(order)
    return filled(
        Kernels,
        len(order),
        name=rows.name,
        op=rows.op,
        device=rows.device,
        stream=rows.stream,
        start_s=rows.start_s,
        duration_s=rows.end_s - rows.start_s,
    )


def transfer_table(copies: Copies, ops: int) -> Transfers:
    """The copies as a table of a step; which storage they are of, and why, nobody knows."""
    issue_s = np.where(np.isfinite(copies.issue_s), copies.issue_s, copies.start_s)
    order = np.argsort(issue_s, kind="stable")
    rows = copies.taken(order)
    return filled(
        Transfers,
        len(order),
        storage=constant(-1, len(order), "int32"),
        direction=rows.direction,
        cause=constant(Cause.DEMAND, len(order), "uint8"),
        bytes=rows.bytes,
        issue_op=np.clip(rows.op, -1, ops),
        issue_s=issue_s[order],
        start_s=rows.start_s,
        end_s=rows.end_s,
    )


def stall_table(copies: Copies, work: Work) -> Stalls:
    """When a copy ran and no kernel did on its device; for each, the op of the kernel that came next."""
    found: list[tuple[int, int, float, float]] = []
    for device in np.unique(copies.device).tolist():
        here = work.taken(work.device == device)
        order = np.argsort(here.start_s, kind="stable")
        starts, ops = here.start_s[order], here.op[order]
        busy_start, busy_end = union(here.start_s, here.end_s)
        for way in Direction:
            chosen = (copies.device == device) & (copies.direction == way)
            start, end = union(copies.start_s[chosen], copies.end_s[chosen])
            for begin_s, end_s in zip(*_without(start, end, busy_start, busy_end), strict=True):
                after = int(np.searchsorted(starts, end_s - 1e-12))
                op = int(ops[after]) if after < len(ops) else -1
                found.append((op, int(way), float(begin_s), float(end_s)))
    found.sort(key=lambda row: (row[2], row[1]))
    rows = np.array(found, dtype=np.float64).reshape(-1, 4)
    return filled(
        Stalls,
        len(rows),
        op=rows[:, 0],
        storage=constant(-1, len(rows), "int32"),
        direction=rows[:, 1],
        cause=constant(Cause.DEMAND, len(rows), "uint8"),
        start_s=rows[:, 2],
        duration_s=rows[:, 3] - rows[:, 2],
    )


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stretches that intervals cover together: starts and ends, ascending."""
    if not len(start):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    begins = np.concatenate([[0], np.flatnonzero(start[1:] > reach[:-1]) + 1])
    return start[begins], reach[np.append(begins[1:] - 1, len(reach) - 1)]


def _without(
    start: np.ndarray, end: np.ndarray, busy_start: np.ndarray, busy_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What is left of disjoint stretches without others; both ascending."""
    if not len(start):
        return start, end
    points = np.concatenate([start, end, busy_start, busy_end])
    inside = np.concatenate([np.ones(len(start)), -np.ones(len(end)), np.zeros(2 * len(busy_start))])
    busy = np.concatenate([np.zeros(2 * len(start)), np.ones(len(busy_start)), -np.ones(len(busy_end))])
    order = np.argsort(points, kind="stable")
    points = points[order]
    open_ = (np.cumsum(inside[order]) > 0.5) & (np.cumsum(busy[order]) < 0.5)
    left, right = points[:-1], points[1:]
    kept = open_[:-1] & (right > left)
    return union(left[kept], right[kept] + 0.0)


def device_seconds(work: Work, ops: int) -> np.ndarray:
    """float64 (ops,): what the kernels of each op took on the device; NaN of ops without any."""
    known = (work.op >= 0) & (work.op < ops)
    if not known.any():
        return np.full(ops, np.nan)
    seconds = np.bincount(work.op[known], (work.end_s - work.start_s)[known], minlength=ops)
    count = np.bincount(work.op[known], minlength=ops)
    return np.where(count > 0, seconds, np.nan)


def lookup(keys: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The value of each asked key; -1 of those that are negative or unknown. Of equal keys the first."""
    found = np.full(len(asked), -1, dtype=np.int64)
    known = keys >= 0
    keys, values = keys[known], values[known]
    if not len(keys):
        return found
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    there = (keys[place] == asked) & (asked >= 0)
    found[there] = values[place[there]]
    return found
