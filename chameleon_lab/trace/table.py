"""Declarations of a trace's columns: the source for files, recordings, texts and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

MOST_BYTES = 1 << 56
"""Of all that a step could hold: sums of them still fit int64."""


@dataclass(frozen=True)
class Column:
    """What a column holds."""

    dtype: str
    meaning: str = ""
    unit: str = ""
    """``s`` (from the step's start), ``bytes``, or none."""
    missing: Any = None
    """What it is filled with where a caller leaves it out; None: it cannot be left out."""
    into: str | int | type[IntEnum] | None = None
    """What its numbers are within: rows of a table, entries of a dictionary, an enum, or a number of its own."""
    low: int = 0
    """The least of them."""
    past: int = 0
    """How many more than ``into`` has may be named: 1 where its end may."""
    unknown: bool = False
    """May it be NaN?"""


def column(dtype: str, meaning: str = "", **facts: Any) -> Any:
    """The declaration of a column, for a field of a :class:`StepTable`; ``facts`` are those of :class:`Column`."""
    return field(default=None, metadata={"column": Column(dtype, meaning, **facts)})


def index(into: str | int, meaning: str = "", **facts: Any) -> Any:
    """A column of numbers of rows, ops or entries of a dictionary; ``low=-1`` where there may be none."""
    return column("int32", meaning, into=into, **facts)


def code(kind: type[IntEnum], meaning: str = "") -> Any:
    """A column of an enum's values. Files keep the names of the enum beside them."""
    return column("uint8", meaning, into=kind)


def size(meaning: str = "", **facts: Any) -> Any:
    """A column of bytes."""
    return column("int64", meaning, unit="bytes", into=MOST_BYTES, **facts)


def seconds(meaning: str = "", **facts: Any) -> Any:
    """A column of times from the step's start, or of durations."""
    return column("float64", meaning, unit="s", **facts)


class Table:
    """Equally long numpy columns; subclasses are dataclasses whose fields are the columns."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def columns(self) -> dict[str, np.ndarray]:
        """The columns by name, in the order of the declaration."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns().items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"{type(self).__name__} needs columns of one length, got {lengths}")


class StepTable(Table):
    """A table of a recorded step: each field declares its column."""

    def __init_subclass__(cls) -> None:
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        rows = (_described(name, value.metadata["column"]) for name, value in declared.items())
        cls.__doc__ = f"{(cls.__doc__ or '').rstrip()}\n\n    Columns:\n        " + "\n        ".join(rows)

    @classmethod
    @cache
    def declared(cls) -> dict[str, Column]:
        """What is declared of each column, in the order of the declaration."""
        return {f.name: f.metadata["column"] for f in fields(cls)}

    @classmethod
    def none(cls) -> Self:
        """A table without rows."""
        return cls(**{name: np.zeros(0, dtype=column.dtype) for name, column in cls.declared().items()})

    def __post_init__(self) -> None:
        for name, column in self.declared().items():
            if getattr(self, name) is None:
                if column.missing is None:
                    raise TypeError(f"{type(self).__name__} needs the column {name!r}")
                rows = next((len(values) for values in self.columns().values() if values is not None), 0)
                object.__setattr__(self, name, np.full(rows, column.missing, dtype=column.dtype))
        super().__post_init__()


def _described(name: str, column: Column) -> str:
    words = [column.dtype if not column.unit else f"{column.dtype}, {column.unit}"]
    if isinstance(column.into, type):
        words.append(column.into.__name__)
    elif isinstance(column.into, str):
        words.append(f"number in {column.into}")
    if column.meaning:
        words.append(column.meaning)
    return f"{name}: {'; '.join(words)}"


def renumbered(where: str, kind: type[IntEnum], names: Sequence[str], numbers: np.ndarray) -> np.ndarray:
    """Numbers of an enum that had these names, as they are now; raises ValueError if one is none of it."""
    if not len(numbers):
        return numbers
    if not 0 <= int(numbers.min()) <= int(numbers.max()) < len(names):
        raise ValueError(f"{where} is outside 0 to {len(names) - 1}")
    known = np.array([kind.__members__.get(name, -1) for name in names])[numbers]
    if (known < 0).any():
        unknown = names[numbers[known < 0][0]]
        raise ValueError(f"{where} is {unknown!r}, which this Chameleon Lab does not know: record it anew")
    now: np.ndarray = known.astype(numbers.dtype)
    return now
