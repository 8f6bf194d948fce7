"""Steps made of what another tool has recorded: columns that it does not tell are filled as unknown."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from ..trace import Ops, Residencies, Stalls, StepTrace, Storages, Transfers, Uses
from ..trace.table import MOST_BYTES, StepTable

IMPORTED = "Imported"
"""The session stage of a step that another tool has recorded."""

_LONGEST_NAME = 1000

_Rows = TypeVar("_Rows", bound=StepTable)


class Names:
    """Texts, each with a number."""

    def __init__(self, longest: int = _LONGEST_NAME) -> None:
        self._numbers: dict[str, int] = {}
        self._longest = longest

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, text: Any) -> int:
        """The number of a text; of what is none, that of its words."""
        if type(text) is not str:
            text = (
                "" if text is None else str(text)[:_LONGEST_NAME] if isinstance(text, (int, float)) else "?"
            )
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers.setdefault(clean(text, self._longest), len(self._numbers))
        return found

    def texts(self) -> tuple[str, ...]:
        """The texts by number."""
        return tuple(self._numbers)


def clean(text: str, longest: int = _LONGEST_NAME) -> str:
    """A text that can be written to a file and shown."""
    return text[:longest].encode("utf-8", "replace").decode().replace("\0", "�")


def whole_number(value: Any, low: int = -(1 << 62), high: int = 1 << 62, other: int = 0) -> int:
    """An integer within limits; ``other`` where the value is none."""
    if type(value) is int and low <= value <= high:
        return value
    if type(value) is float and value == value and low <= value <= high:
        return int(value)
    if type(value) is str and 0 < len(value) < 20 and value.isascii() and value.lstrip("-").isdigit():
        return whole_number(int(value), low, high, other)
    return other


def number_of(value: Any, other: float = 0.0) -> float:
    """A finite number that is no absurd time; ``other`` where the value is none."""
    if type(value) in (int, float) and -4e18 < value < 4e18:
        return float(value)
    if type(value) is str and len(value) < 40:
        try:
            return number_of(float(value), other)
        except ValueError:
            return other
    return other


def bytes_of(value: Any) -> int:
    """A size of at most a petabyte, so that sums of many stay sums; 0 where the value is none."""
    return whole_number(value, 0, 1 << 50)


def constant(value: Any, rows: int, dtype: str) -> np.ndarray:
    """A column of one value, which takes no memory."""
    return np.broadcast_to(np.array(value, dtype=dtype), (rows,))


def filled(kind: type[_Rows], rows: int, /, **columns: np.ndarray) -> _Rows:
    """A table with these columns; the others have the value that says that nobody knows, or 0."""
    made = {}
    for name, column in kind.declared().items():
        if name in columns:
            made[name] = columns[name].astype(column.dtype, copy=False)
        else:
            other = column.missing if column.missing is not None else column.low
            made[name] = constant(other, rows, column.dtype)
    return kind(**made)


def residencies(
    birth_op: np.ndarray, death_op: np.ndarray, start_s: np.ndarray, end_s: np.ndarray, duration_s: float
) -> Residencies:
    """The storages' blocks stay where they are from birth to death: nothing is known to have left."""
    ops = len(start_s)
    from_op = np.maximum(birth_op, 0).astype(np.int32)
    stays = death_op >= ops
    to_op = np.where(stays, ops, death_op + 1).astype(np.int32)
    from_s = np.where(birth_op < 0, 0.0, start_s[np.minimum(from_op, ops - 1)])
    to_s = np.where(stays, duration_s, end_s[np.minimum(death_op, ops - 1)])
    order = np.argsort(to_s, kind="stable").astype(np.int32)
    return Residencies(
        storage=order,
        from_op=from_op[order],
        to_op=np.where(stays, ops, np.minimum(to_op, ops))[order].astype(np.int32),
        from_s=from_s[order],
        to_s=np.maximum(to_s, from_s)[order],
    )


def birth_uses(birth_op: np.ndarray) -> Uses:
    """Where nothing is known but which op made a storage: its birth is a write. Sorted by op."""
    born = np.flatnonzero(birth_op >= 0)
    order = born[np.argsort(birth_op[born], kind="stable")]
    return filled(
        Uses,
        len(order),
        op=birth_op[order],
        storage=order,
        reads=constant(False, len(order), "bool"),
        writes=constant(True, len(order), "bool"),
    )


def ordinals(birth_op: np.ndarray) -> np.ndarray:
    """Each storage's number among those of its birth op; -1 where there is none."""
    order = np.argsort(birth_op, kind="stable")
    sorted_births = birth_op[order]
    first = np.searchsorted(sorted_births, sorted_births, side="left")
    found = np.empty(len(birth_op), dtype=np.int32)
    found[order] = np.arange(len(birth_op)) - first
    found[birth_op < 0] = -1
    return found


def limited(block_bytes: np.ndarray) -> np.ndarray:
    """The sizes, if their sum is one that a trace may hold; else none of them has any."""
    return block_bytes if float(block_bytes.astype(np.float64).sum()) < MOST_BYTES / 2 else block_bytes * 0


def made_step(
    index: int, start_s: float, duration_s: float, ops: Ops, storages: Storages, **fields: Any
) -> StepTrace:
    """A step; ``fields`` are its other tables and dictionaries."""
    given: dict[str, Any] = {
        "names": (),
        "modules": (),
        "labels": (),
        "uses": birth_uses(storages.birth_op),
        "residencies": residencies(
            storages.birth_op, storages.death_op, ops.start_s, ops.start_s + ops.duration_s, duration_s
        )
        if len(ops)
        else Residencies.none(),
        "transfers": Transfers.none(),
        "stalls": Stalls.none(),
    }
    return StepTrace(
        index=index,
        session_stage=IMPORTED,
        start_s=start_s,
        duration_s=duration_s,
        ops=ops,
        storages=storages,
        **(given | fields),
    )
