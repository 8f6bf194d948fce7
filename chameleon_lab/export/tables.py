"""The tables of a trace, all steps in one, with words in place of numbers: for pandas, DuckDB and spreadsheets."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from ..trace import StepTrace, Trace
from ..trace.columns import KINDS, TABLES
from ..trace.table import Column

STEPS = "steps"
TABLE_NAMES = (STEPS, *TABLES)
"""What can be exported: the steps, and what is recorded of each."""

_DICTIONARIES = [name for name, kind in KINDS.items() if kind == tuple[str, ...]]
_SCALARS = {name: kind for name, kind in KINDS.items() if kind in (int, float, str, bool)}
_ARROW = {int: "int64", float: "float64", str: "string", bool: "bool_"}
_OWN_COLUMNS = {
    "step": ("int64", "", "the session's number of the step"),
    "row": ("int64", "", "the row's number in its step, to which other tables refer"),
    "key": ("string", "", "the stable name of the storage: what made it"),
}


def described_columns(table: str) -> dict[str, tuple[str, str, str]]:
    """Of each column of an exported table: Arrow's type, the unit and the meaning."""
    if table == STEPS:
        return {name: (_ARROW[kind], _unit(name), "") for name, kind in _SCALARS.items()}
    found = {name: _OWN_COLUMNS[name] for name in ("step", "row")}
    if table == "storages":
        found["key"] = _OWN_COLUMNS["key"]
    for name, column in TABLES[table].declared().items():
        found[name] = (_arrow_type(column), column.unit, _meaning(column))
    return found


def exported_table(trace: Trace, table: str) -> Any:
    """A table of all steps as one of Arrow, units and meanings in the metadata of its columns."""
    pa = _import_pyarrow()
    columns = described_columns(table)
    schema = pa.schema(
        [
            pa.field(
                name,
                getattr(pa, kind)(),
                metadata={key: text for key, text in (("unit", unit), ("meaning", meaning)) if text},
            )
            for name, (kind, unit, meaning) in columns.items()
        ]
    )
    if table == STEPS:
        rows = [{name: getattr(step, name) for name in columns} for step in trace.steps]
        return pa.Table.from_pylist(rows, schema=schema)
    parts = [_step_columns(pa, step, table, schema) for step in trace.steps]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def write_table(table: Any, path: Path, kind: str) -> None:
    """Write an Arrow table as ``csv`` or ``parquet``."""
    if kind == "csv":
        from pyarrow import csv

        csv.write_csv(table, str(path))
    else:
        from pyarrow import parquet

        parquet.write_table(table, str(path), compression="zstd")


def _step_columns(pa: Any, step: StepTrace, table: str, schema: Any) -> Any:
    rows = getattr(step, table)
    columns: dict[str, Any] = {
        "step": np.full(len(rows), step.index, dtype=np.int64),
        "row": np.arange(len(rows), dtype=np.int64),
    }
    if table == "storages":
        columns["key"] = list(step.storage_keys)
    for name, column in TABLES[table].declared().items():
        words = _words(step, column)
        values = getattr(rows, name)
        columns[name] = values if words is None else words(values)
    return pa.Table.from_arrays(
        # NaN, which stands for what nobody has measured, is a missing value.
        [pa.array(columns[field.name], type=field.type, from_pandas=True) for field in schema],
        schema=schema,
    )


def _words(step: StepTrace, column: Column) -> Callable[[np.ndarray], list[str | None]] | None:
    """How a column's numbers are written in words; None where they stay numbers. -1 is a missing value."""
    if isinstance(column.into, type) and issubclass(column.into, IntEnum):
        texts = [member.name.lower() for member in column.into]
    elif column.into in _DICTIONARIES:
        texts = list(getattr(step, str(column.into)))
    else:
        return None
    known: list[str | None] = [*texts, None]
    return lambda values: [known[i] for i in values.tolist()]


def _arrow_type(column: Column) -> str:
    if isinstance(column.into, type) or column.into in _DICTIONARIES:
        return "string"
    return "bool_" if column.dtype == "bool" else column.dtype


def _meaning(column: Column) -> str:
    into = f"row in {column.into}" if isinstance(column.into, str) and column.into in TABLES else ""
    return "; ".join(text for text in (into, column.meaning) if text)


def _unit(name: str) -> str:
    return "bytes" if name.endswith("_bytes") else "s" if name.endswith("_s") else ""


def _import_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(
            "CSV and Parquet need pyarrow, which is not installed: pip install pyarrow"
        ) from error
    return pyarrow
