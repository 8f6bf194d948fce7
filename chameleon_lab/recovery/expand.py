"""A recorded step with some of its ops several times over, each time on storages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..trace import Makings, StepTrace, Storages, Uses
from ..trace.alive_bytes import alive_bytes_of
from ..trace.columns import TABLES

_KEPT = ("ops", "storages", "uses", "makings")


@dataclass(frozen=True)
class Changed:
    """A step as it should be after a change, and what of the recorded one its storages stand for."""

    step: StepTrace
    origin: np.ndarray
    """int64 (storages of ``step``,): rows of the recorded step's storages."""


@dataclass(frozen=True)
class Copies:
    """Which storage an op's copy uses in the place of a recorded one. All arrays are int64.

    ``C`` counts the copies of an op, the recorded one, which is copy 0, among them; ``S`` the recorded storages, ``K``
    those of the changed step.
    """

    origin: np.ndarray
    """(K,): the recorded storage."""
    birth_op: np.ndarray
    """(K,): op of the changed step; -1: before it."""
    death_op: np.ndarray
    """(K,): op of the changed step, or how many there are."""
    row: np.ndarray
    """(C, S): the storage that each copy uses."""
    outside: np.ndarray
    """(C, S): those that ops without copies use; -1: none of this copy."""
    extra_op: np.ndarray
    """(E,): ops of the changed step that read and write one more storage than the recorded ones."""
    extra_row: np.ndarray
    """(E,): that storage."""


def order(n: int, ranges: Sequence[tuple[int, int]], times: int, *, first: Sequence[bool]) -> np.ndarray:
    """The ops of a step of ``n`` with each range (begin, end) ``times`` times: int64 (2, ops), recorded op and copy.

    ``first``, for each range: does the recorded one come first? In backward, copies run in the opposite order.
    """
    ops: list[np.ndarray] = []
    at = 0
    for (begin, end), forward in sorted(zip(ranges, first, strict=True)):
        ops.append(np.stack([np.arange(at, begin), np.zeros(begin - at, dtype=np.int64)]))
        numbers = range(times) if forward else range(times - 1, -1, -1)
        ops += [np.stack([np.arange(begin, end), np.full(end - begin, copy)]) for copy in numbers]
        at = end
    ops.append(np.stack([np.arange(at, n), np.zeros(n - at, dtype=np.int64)]))
    return np.concatenate(ops, axis=1)


def places(ops: np.ndarray, n: int, times: int) -> np.ndarray:
    """Where each copy of each recorded op went: int64 (times, n + 1). An op without copies is in one place for all."""
    place = np.zeros((times, n + 1), dtype=np.int64)
    count = np.bincount(ops[0], minlength=n)
    place[:, :n] = np.flatnonzero(ops[1] == 0)
    several = count[ops[0]] > 1
    at = np.flatnonzero(several)
    place[ops[1][at], ops[0][at]] = at
    place[:, n] = ops.shape[1]
    return place


def expanded(
    step: StepTrace, ops: np.ndarray, copies: Copies, op_times: np.ndarray, names: Sequence[str] = ()
) -> Changed:
    """The step with ops as :func:`order` lists them, on the storages of ``copies``.

    Args:
        step: as recorded.
        ops: recorded op and copy of each op.
        copies: the storages.
        op_times: compute seconds of each op of the changed step.
        names: of the storages of ``copies``, empty for those that keep theirs; none given: all do.
    """
    source, copy = ops
    n = len(source)
    several = np.bincount(source, minlength=len(step.ops))[source] > 1
    columns = {name: values[copies.origin] for name, values in step.storages.columns().items()}
    columns["birth_op"] = copies.birth_op.astype(np.int32)
    columns["death_op"] = copies.death_op.astype(np.int32)
    columns["uid"] = np.where(np.arange(len(copies.origin)) < len(step.storages), columns["uid"], -1)
    labels = list(step.labels)
    for row, name in enumerate(names):
        if name:
            columns["name"][row] = len(labels)
            labels.append(name)
    storages = Storages(**columns)
    old_live = alive_bytes_of(step.storages, len(step.ops))
    more = alive_bytes_of(storages, n) - old_live[source]
    op_columns = {name: values[source] for name, values in step.ops.columns().items()}
    op_columns |= {
        "start_s": np.concatenate([[0.0], np.cumsum(op_times)])[:n],
        "duration_s": op_times,
        "stall_s": np.zeros(n),
        "device_s": np.full(n, np.nan),
        "live_peak_bytes": op_columns["live_peak_bytes"] + more,
        "resident_peak_bytes": op_columns["live_peak_bytes"] + more,
        "plan_op": np.full(n, -1, dtype=np.int32),
    }
    changed = replace(
        step,
        duration_s=float(op_times.sum()),
        labels=tuple(labels),
        ops=type(step.ops)(**op_columns),
        storages=storages,
        uses=_uses(step, source, copy, several, copies),
        makings=_makings(step, source, copy, several, copies),
        **nothing_else(),
    )
    return Changed(changed, copies.origin)


def nothing_else() -> dict[str, Any]:
    """Empty tables for all that a recorded step tells of its own run alone."""
    return {name: kind.none() for name, kind in TABLES.items() if name not in _KEPT}


def _rows_of(column: np.ndarray, source: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a table for each op, and the op of each: its column of ops need not be sorted."""
    by_op = np.argsort(column, kind="stable")
    begin = np.searchsorted(column[by_op], np.arange(n + 1))
    count = (begin[1:] - begin[:-1])[source]
    op = np.repeat(np.arange(len(source)), count)
    within = np.arange(len(op)) - np.repeat(np.cumsum(count) - count, count)
    return by_op[begin[source][op] + within], op


def _uses(step: StepTrace, source: np.ndarray, copy: np.ndarray, several: np.ndarray, copies: Copies) -> Uses:
    row, op = _rows_of(step.uses.op, source, len(step.ops))
    storage = step.uses.storage[row].astype(np.int64)
    inside = several[op]
    found = [(op[inside], copies.row[copy[op[inside]], storage[inside]], row[inside])]
    for outside in copies.outside:
        there = ~inside & (outside[storage] >= 0)
        found.append((op[there], outside[storage[there]], row[there]))
    at, used, of = (np.concatenate(column) for column in zip(*found, strict=True))
    table = {name: values[of] for name, values in step.uses.columns().items()}
    table |= {"op": at.astype(np.int32), "storage": used.astype(np.int32)}
    extra = {name: np.zeros(len(copies.extra_op), dtype=values.dtype) for name, values in table.items()}
    extra |= {"op": copies.extra_op.astype(np.int32), "storage": copies.extra_row.astype(np.int32)}
    extra["reads"][:] = extra["writes"][:] = True
    extra["part"][:] = -1
    table = {name: np.concatenate([values, extra[name]]) for name, values in table.items()}
    by_op = np.argsort(table["op"], kind="stable")
    return Uses(**{name: values[by_op] for name, values in table.items()})


def _makings(
    step: StepTrace, source: np.ndarray, copy: np.ndarray, several: np.ndarray, copies: Copies
) -> Makings:
    if not len(step.makings):
        return Makings.none()
    row, op = _rows_of(step.makings.op, source, len(step.ops))
    holder, read = step.makings.storage[row], step.makings.input[row]
    inside = several[op]
    found = []
    for number in range(len(copies.row)):
        there = np.flatnonzero(np.where(inside, copy[op] == number, copies.outside[number][holder] >= 0))
        inputs = np.where(read[there] < 0, -1, copies.row[number][read[there]])
        found.append((there, np.full(len(there), number), copies.row[number][holder[there]], inputs))
    position, of, holds, inputs = (np.concatenate(column) for column in zip(*found, strict=True))
    by_op = np.lexsort((position, of, op[position]))
    position, of = position[by_op], of[by_op]
    table = {name: values[row[position]] for name, values in step.makings.columns().items()}
    calls = np.stack([op[position], of, table["making"]])
    new = np.any(calls[:, 1:] != calls[:, :-1], axis=0)
    table |= {
        "op": op[position].astype(np.int32),
        "storage": holds[by_op].astype(np.int32),
        "input": inputs[by_op].astype(np.int32),
        "making": np.concatenate([[0], np.cumsum(new)]).astype(table["making"].dtype),
    }
    return Makings(**table)
