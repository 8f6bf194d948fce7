"""The collectives of a step: when a rank came to each, and when it had its result, on the rank's own clock."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..trace import StepTrace
from ..trace.collective_ops import WAITS

_PREFIXES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::")
_NO_LAUNCH = ("wait_tensor", "_wrap_tensor_autograd")
_MEETINGS = (
    *("allreduce", "all_reduce", "allgather", "all_gather"),
    *("reduce_scatter", "alltoall", "all_to_all"),
)
"""In the names of those that no rank can end before all have begun."""


@dataclass(frozen=True, eq=False)
class Collectives:
    """Those of one step that need every rank of their group, in program order. Times are Unix seconds.

    A rank came at ``begin_s``. It needed the result from ``needed_s`` on, and had it at ``done_s``: what is between
    these is what it waited. NaN where its trace does not tell, since nothing of the step uses the result.
    """

    names: tuple[str, ...]
    bytes: np.ndarray
    """int64: of the storages that the op touched."""
    user_op: np.ndarray
    """int32: the first op that uses the result; -1 none."""
    begin_s: np.ndarray
    needed_s: np.ndarray
    done_s: np.ndarray
    is_exact: np.ndarray
    """bool: does ``done_s`` end the wait? Else the op that waits computes, too."""

    def __len__(self) -> int:
        return len(self.names)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, None for NaN."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        plain = {
            name: [None if value != value else value for value in column.tolist()]
            for name, column in columns.items()
        }
        return {"names": list(self.names), **plain}

    @classmethod
    def of_dict(cls, values: dict[str, Any]) -> Collectives:
        """The reverse of :meth:`to_dict`. Raises KeyError, TypeError, ValueError where it is none."""
        kinds = {"bytes": np.int64, "user_op": np.int32, "is_exact": np.bool_}
        columns: dict[str, np.ndarray] = {
            each.name: np.array(
                [np.nan if value is None else value for value in values[each.name]],
                dtype=kinds.get(each.name, np.float64),
            )
            for each in fields(cls)[1:]
        }
        names = tuple(str(name) for name in values["names"])
        if any(len(column) != len(names) for column in columns.values()):
            raise ValueError("columns of collectives differ in length")
        return cls(names, **columns)


def collectives_of(step: StepTrace) -> Collectives:
    """The collectives of a step that need every rank."""
    by_name = [_is_meeting(name) for name in step.names]
    meets = np.array(by_name, dtype=bool)[step.ops.name] if len(step.ops) else np.zeros(0, dtype=bool)
    ops = np.flatnonzero(meets)
    begin_s, end_s = op_times(step)
    later, touched = _uses_of(step, ops)
    begins, ends = begin_s.tolist(), end_s.tolist()  # single values of arrays are slow to read
    all_names = [step.names[name] for name in step.ops.name.tolist()] if len(ops) else []
    names, rows = [], []
    for op in ops.tolist():
        user = _first_user(step, op, touched[op], later, all_names)
        names.append(all_names[op])
        rows.append(_times(op, user, all_names, begins, ends))
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return Collectives(
        tuple(names),
        bytes=step.used_bytes[ops] if len(ops) else np.zeros(0, dtype=np.int64),
        user_op=table[:, 0].astype(np.int32),
        begin_s=begin_s[ops],
        needed_s=table[:, 1],
        done_s=table[:, 2],
        is_exact=table[:, 3] > 0,
    )


def op_times(step: StepTrace) -> tuple[np.ndarray, np.ndarray]:
    """When each op began and ended, in Unix seconds: pauses, for which a step's clock stands still, are put back."""
    still_s = np.zeros(len(step.ops) + 1)
    np.add.at(still_s, np.minimum(step.pauses.op, len(step.ops)), step.pauses.duration_s)
    begin_s = step.start_s + step.ops.start_s + np.cumsum(still_s)[: len(step.ops)]
    return begin_s, begin_s + step.ops.duration_s


def _is_meeting(name: str) -> bool:
    base = next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), "")
    return any(word in base for word in _MEETINGS) and base not in _NO_LAUNCH


def _uses_of(
    step: StepTrace, ops: np.ndarray
) -> tuple[dict[int, list[int]], dict[int, list[tuple[int, bool]]]]:
    """By storage of a collective the ops that use it, ascending; by collective its storages, and which it writes."""
    uses = step.uses
    own = np.isin(uses.op, ops)
    touched: dict[int, list[tuple[int, bool]]] = {op: [] for op in ops.tolist()}
    for op, storage, writes in zip(
        uses.op[own].tolist(), uses.storage[own].tolist(), uses.writes[own].tolist(), strict=True
    ):
        touched[op].append((storage, writes))
    chosen = np.isin(uses.storage, uses.storage[own])
    later: dict[int, list[int]] = {}
    for op, storage in zip(uses.op[chosen].tolist(), uses.storage[chosen].tolist(), strict=True):
        later.setdefault(storage, []).append(op)
    return later, touched


def _first_user(
    step: StepTrace,
    op: int,
    touched: list[tuple[int, bool]],
    later: dict[int, list[int]],
    names: list[str],
) -> int:
    """The op that first uses the result; of several results the last of these, -1 if one has none.

    What an op only reads is no result of it. Where the schema has not told, an input counts as written too: then only
    the one that is certain is looked at, by its size.
    """
    births, sizes = step.storages.birth_op, step.storages.block_bytes
    results = [storage for storage, _ in touched if births[storage] == op]
    results = results or [storage for storage, writes in touched if writes]
    if not results:
        return -1
    if len(results) > 1 and ("reduce_scatter" in names[op] or "gather" in names[op]):
        choose = min if "reduce_scatter" in names[op] else max
        size = choose(sizes[storage] for storage in results)
        results = [storage for storage in results if sizes[storage] == size]
    users = []
    for storage in results:
        of = later[storage]
        at = bisect_right(of, op)
        while at < len(of) and names[of[at]].endswith("_wrap_tensor_autograd"):
            at += 1
        users.append(of[at] if at < len(of) else -1)
    return -1 if -1 in users else max(users)


def _times(
    op: int, user: int, names: list[str], begin_s: list[float], end_s: list[float]
) -> tuple[float, float, float, float]:
    """The user op, since when the result was needed, when it was there, and whether that is exact."""
    if user < 0:
        return -1.0, math.nan, math.nan, 0.0
    if names[user] in WAITS:
        return float(user), begin_s[user], end_s[user], 1.0
    if names[op].startswith("c10d::"):
        # Its wait is in C++ and no op, and lies before the op that uses the result.
        needed = begin_s[op] if user == op + 1 else end_s[user - 1]
        return float(user), min(needed, begin_s[user]), begin_s[user], 1.0
    return float(user), begin_s[user], end_s[user], 0.0
