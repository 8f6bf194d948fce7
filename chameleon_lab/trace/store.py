"""Trace files: one Parquet file a trace, one row a step, each in a row group of its own.

A step's tables are columns of type list<struct>, its dictionaries (op names, module paths, labels, stacks)
list<string>. The schema's metadata holds, under the key ``chameleon_lab.trace``, JSON with the format's
``version`` and the trace's ``meta``. What lets the whole steps of a cut file be read: :mod:`.cut_file`.
Needs pyarrow, which is imported when a trace is saved or loaded.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..errors import CutFileError, TraceError
from ..files import misnomer, oddity, shown, write_then_rename
from ..progress import bar, tick
from .check import check_step
from .columns import (
    Declined,
    Makings,
    Marks,
    Ops,
    Pauses,
    Replays,
    Residencies,
    Stalls,
    StepTrace,
    Storages,
    Table,
    Trace,
    Transfers,
    Uses,
)
from .cut_file import MAGIC, lead_of, mended, note, whole_steps
from .parquet_footer import stated_size

if TYPE_CHECKING:
    import pyarrow

VERSION = 7
"""Version of the trace file that this package writes, and the newest that it reads."""

_KEY = b"chameleon_lab.trace"

_MOST_VALUES = 1 << 28
_MOST_BYTES = 1 << 31

_WRITING: dict[str, Any] = {
    "compression": "zstd",
    "data_page_version": "1.0",
    "write_page_checksum": True,
    "write_statistics": False,
}

_SCALARS = {
    "index": "int64",
    "session_stage": "string",
    "start_s": "float64",
    "duration_s": "float64",
    "truncated_ops": "int64",
    "refusals": "int64",
    "soft_ooms": "int64",
    "alloc_retries": "int64",
    "device_allocs": "int64",
    "device_frees": "int64",
    "device_syncs": "int64",
    "useless_bytes": "int64",
}
_SCALARS_OF_VERSION_1 = ("index", "session_stage", "start_s", "duration_s", "truncated_ops")
"""The others came with version 5; from an older file they read as 0."""
_DICTIONARIES = ("names", "modules", "labels", "stacks", "forms", "mark_names")
_DICTIONARY_SINCE = {"forms": 7, "mark_names": 7}
_TABLES: dict[str, tuple[type[Table], dict[str, str]]] = {
    "ops": (
        Ops,
        {
            "name": "int32",
            "module": "int32",
            "stage": "uint8",
            "sequence_nr": "int64",
            "thread": "int32",
            "stack": "int32",
            "start_s": "float64",
            "duration_s": "float64",
            "stall_s": "float64",
            "device_s": "float64",
            "live_peak_bytes": "int64",
            "resident_peak_bytes": "int64",
            "token": "uint32",
            "plan_op": "int32",
        },
    ),
    "storages": (
        Storages,
        {
            "uid": "int64",
            "bytes": "int64",
            "block_bytes": "int64",
            "category": "uint8",
            "module": "int32",
            "name": "int32",
            "birth_op": "int32",
            "birth_ordinal": "int32",
            "death_op": "int32",
            "movable": "bool",
            "form": "int32",
        },
    ),
    "uses": (
        Uses,
        {"op": "int32", "storage": "int32", "reads": "bool", "writes": "bool", "part": "int32"},
    ),
    "transfers": (
        Transfers,
        {
            "storage": "int32",
            "direction": "uint8",
            "cause": "uint8",
            "bytes": "int64",
            "issue_op": "int32",
            "issue_s": "float64",
            "start_s": "float64",
            "end_s": "float64",
            "due_s": "float64",
        },
    ),
    "stalls": (
        Stalls,
        {
            "op": "int32",
            "storage": "int32",
            "direction": "uint8",
            "cause": "uint8",
            "start_s": "float64",
            "duration_s": "float64",
            "due_s": "float64",
            "issue_s": "float64",
            "copy_start_s": "float64",
            "copy_end_s": "float64",
            "room_bytes": "int64",
            "room_storage": "int32",
        },
    ),
    "residencies": (
        Residencies,
        {
            "storage": "int32",
            "from_op": "int32",
            "to_op": "int32",
            "from_s": "float64",
            "to_s": "float64",
        },
    ),
    "replays": (
        Replays,
        {
            "op": "int32",
            "storage": "int32",
            "name": "int32",
            "cause": "uint8",
            "bytes": "int64",
            "start_s": "float64",
            "duration_s": "float64",
        },
    ),
    "declined": (Declined, {"op": "int32", "storage": "int32", "name": "int32", "refusal": "uint8"}),
    "makings": (
        Makings,
        {
            "making": "int32",
            "op": "int32",
            "storage": "int32",
            "name": "int32",
            "input": "int32",
            "refusal": "uint8",
        },
    ),
    "pauses": (
        Pauses,
        {"op": "int32", "kind": "uint8", "at_s": "float64", "duration_s": "float64"},
    ),
    "marks": (
        Marks,
        {
            "name": "int32",
            "thread": "int32",
            "from_op": "int32",
            "to_op": "int32",
            "start_s": "float64",
            "duration_s": "float64",
        },
    ),
}

_TABLE_SINCE = {"replays": 3, "declined": 3, "makings": 4, "pauses": 6, "marks": 7}
"""The version that brought a table; an older file has no rows for it."""

_SINCE: dict[tuple[str, str], tuple[int, float]] = {
    ("ops", "token"): (2, 0),
    ("ops", "plan_op"): (2, -1),
    ("ops", "device_s"): (3, np.nan),
    ("uses", "part"): (6, -1),
    ("transfers", "due_s"): (6, np.nan),
    **{("stalls", name): (6, np.nan) for name in ("due_s", "issue_s", "copy_start_s", "copy_end_s")},
    ("stalls", "room_bytes"): (6, 0),
    ("stalls", "room_storage"): (6, -1),
    ("storages", "form"): (7, -1),
}
"""The version that brought a column, and what it reads as from an older file."""


def save(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace to ``path``: to a file beside it first, which then takes its place.

    Raises ImportError without pyarrow, TraceError if no file can have this name, ``trace.meta`` holds something that
    JSON cannot or a column does not fit its type, OSError if the file cannot be written.
    """
    pa = _import_pyarrow()
    import pyarrow.parquet as parquet

    if (wrong := misnomer(path)) is not None:
        raise TraceError(f"{shown(path)}: {wrong}; give another name")
    try:
        values: dict[str, Any] = {"version": VERSION, "meta": trace.meta}
        if any(not step.keeps_host_copies for step in trace.steps):
            values["keeps_host_copies"] = False
        if trace.lost is not None:
            values["lost"] = trace.lost
        header = json.dumps(values, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TraceError(f"trace.meta must hold plain, finite JSON values: {error}") from error
    schema = _schema(pa).with_metadata({_KEY: header.encode()})
    rows = [_row(pa, step, schema) for step in trace.steps]
    with (
        write_then_rename(path) as beside,
        pa.OSFile(str(beside), "wb") as sink,
        parquet.ParquetWriter(sink, schema, **_WRITING) as writer,
    ):
        sink.write(note(values | {"steps": len(rows)}))
        for row in rows:
            sink.write(note({"values": _value_counts(row)}))
            writer.write_table(row)


def load(path: str | os.PathLike[str], partial: bool = False) -> Trace:
    """Read what :func:`save` wrote.

    Args:
        path: of the file.
        partial: of a file whose end is missing, read the steps that are whole; ``lost`` of the trace says what is gone.

    Raises ImportError without pyarrow, CutFileError if the file's end is missing (``partial``: and no step is whole),
    TraceError if it is of a newer version, damaged or no trace at all, OSError if it cannot be opened.
    """
    pa = _import_pyarrow()
    if (odd := oddity(path, _MOST_BYTES)) is not None:
        raise TraceError(f"{shown(path)}: {odd}; give a file that Trace.save wrote")
    with open(path, "rb") as file:
        try:
            return _read(pa, file, path)
        except CutFileError as error:
            file.seek(0)
            found = _read_whole_steps(pa, file.read(), path, error)
            if partial:
                return found
            raise CutFileError(
                f"{error}; or read what there is with `chameleon report` or "
                f"Trace.load(path, partial=True): {found.lost}"
            ) from error


def _read(pa: Any, file: BinaryIO, path: str | os.PathLike[str], verified: bool = False) -> Trace:
    """The trace in an open file. ``verified``: its pages' checksums are looked at."""
    import pyarrow.parquet as parquet

    with _whole(pa, path):
        _check_size(file, path)
        file.seek(0)
        source = parquet.ParquetFile(file, page_checksum_verification=verified)
        schema = source.schema_arrow
    header = _header(schema, path)
    expected = _schema(pa, header.version)
    for column in expected:
        position = schema.get_field_index(column.name)
        if position < 0 or schema.field(position).type != column.type:
            found = "missing" if position < 0 else f"of type {schema.field(position).type}"
            raise TraceError(
                f"{path}: column {column.name!r} is {found}, not {column.type}; save the trace again"
            )
    with _whole(pa, path), bar(f"Reading {os.fspath(path)}", len(expected), "column"):
        columns = []
        for name in expected.names:
            columns.append(source.read([name]).column(name))
            tick()
    table = pa.Table.from_arrays(columns, schema=expected).combine_chunks()
    try:
        return Trace(_steps(table, header.keeps_host_copies), header.meta, header.lost)
    except (pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
        raise TraceError(f"{path}: damaged ({error}); save the trace again, or record it anew") from error


def _read_whole_steps(pa: Any, data: bytes, path: str | os.PathLike[str], cut: CutFileError) -> Trace:
    """The steps of a cut file that are whole. Raises CutFileError if there is none."""
    if (lead := lead_of(data)) is None:
        raise cut  # cut within its first bytes, or of an earlier Chameleon Lab, which wrote all steps in one piece
    header = _header_of(lead, path)
    template = _template(pa, lead, header.version)
    try:
        whole = whole_steps(data, template)
    except ValueError as error:
        raise TraceError(f"{path}: damaged ({error}); record it anew") from error
    steps, of = len(whole.groups), lead["steps"]
    while steps:
        try:
            found = _read(pa, io.BytesIO(mended(data, template, whole, steps)), path, verified=True)
        except TraceError:
            steps -= 1  # its last pages are there, but not as they were written
            continue
        lost = f"{shown(path)}: cut after {len(data)} bytes; {steps} of its {of} steps can be read"
        found.lost = lost if found.lost is None else f"{found.lost}; {lost}"
        return found
    raise CutFileError(f"{cut}; none of its {of} steps is whole")


def _template(pa: Any, header: dict[str, Any], version: int) -> bytes:
    """A file of one step, for all that does not hang on how many steps a file has."""
    import pyarrow.parquet as parquet

    values = {name: value for name, value in header.items() if name != "steps"}
    schema = _schema(pa, version).with_metadata({_KEY: json.dumps(values).encode()})
    row = pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    sink = io.BytesIO()
    parquet.write_table(row, sink, **_WRITING)
    return sink.getvalue()


def _check_size(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """A few bytes of Parquet can stand for any number of values: refuse those that nobody would have recorded."""
    values, size = stated_size(file)
    if values > _MOST_VALUES or size > _MOST_BYTES:
        raise TraceError(
            f"{path}: it says that it holds {values} values in {size} bytes, and at most {_MOST_VALUES} in "
            f"{_MOST_BYTES} are read; save fewer steps"
        )


def _steps(table: Any, keeps_host_copies: bool) -> list[StepTrace]:
    tables = {name: _tables(table.column(name), name) for name in _TABLES if name in table.schema.names}
    scalars = [name for name in _SCALARS if name in table.schema.names]
    dictionaries = [name for name in _DICTIONARIES if name in table.schema.names]
    plain = table.select([*scalars, *dictionaries]).to_pylist()
    steps = []
    for position, values in enumerate(plain):
        values |= {name: tuple(values[name]) for name in dictionaries}
        if any(text is None for name in dictionaries for text in values[name]):
            raise ValueError("a name is missing")
        if any(values[name] is None for name in scalars):
            raise ValueError("a step without its index, stage, times or counts")
        values |= {name: rows[position] for name, rows in tables.items()}
        step = StepTrace(**values, keeps_host_copies=keeps_host_copies)
        try:
            check_step(step)
        except ValueError as error:
            raise ValueError(f"step {step.index}: {error}") from None
        steps.append(step)
    return steps


@contextmanager
def _whole(pa: Any, path: str | os.PathLike[str]) -> Iterator[None]:
    """Says so where a file turns out to be cut short, or none of Parquet."""
    try:
        yield
    except TraceError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unread(path, error) from error


def _unread(path: str | os.PathLike[str], error: Exception) -> TraceError:
    """Why a file does not read as Parquet, by the marks that such a file has at both of its ends."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        begins = MAGIC.startswith(file.read(len(MAGIC)))
        file.seek(max(0, size - len(MAGIC)))
        ends = file.read() == MAGIC and size > 2 * len(MAGIC)
    if not size:
        return CutFileError(f"{path}: the file is empty; save the trace again")
    if not begins:
        return TraceError(f"{path}: this is no Parquet file; give a file that Trace.save wrote")
    if not ends:
        return CutFileError(
            f"{path}: truncated: it begins as a trace, and of its {size} bytes the last ones, which say where all "
            "else is, are missing; copy it again, or save the trace again"
        )
    return TraceError(f"{path}: damaged ({error}); save the trace again, or record it anew")


def _import_pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("trace files need pyarrow, which is not installed: pip install pyarrow") from error
    return pyarrow


def _schema(pa: Any, version: int = VERSION) -> pyarrow.Schema:
    def arrow(kind: str) -> Any:
        return pa.bool_() if kind == "bool" else getattr(pa, kind)()

    columns = [
        (name, arrow(kind))
        for name, kind in _SCALARS.items()
        if version >= 5 or name in _SCALARS_OF_VERSION_1
    ]
    columns += [
        (name, pa.list_(pa.string())) for name in _DICTIONARIES if _DICTIONARY_SINCE.get(name, 1) <= version
    ]
    for name, (_, kinds) in _TABLES.items():
        if _TABLE_SINCE.get(name, 1) > version:
            continue
        fields = [
            (column, arrow(kind))
            for column, kind in kinds.items()
            if _SINCE.get((name, column), (1,))[0] <= version
        ]
        columns.append((name, pa.list_(pa.struct(fields))))
    return pa.schema(columns)


def _row(pa: Any, step: StepTrace, schema: pyarrow.Schema) -> pyarrow.Table:
    """A step as a table of one row."""
    columns: list[Any] = [
        pa.array([getattr(step, name)], type=schema.field(name).type) for name in (*_SCALARS, *_DICTIONARIES)
    ]
    columns += [_list_column(pa, getattr(step, name), name, schema) for name in _TABLES]
    return pa.Table.from_arrays(columns, schema=schema)


def _value_counts(row: pyarrow.Table) -> list[int]:
    """How many values each of Parquet's columns has for a row: an empty list counts as one."""
    counts = []
    for column in row.columns:
        kind, value = column.type, column.chunk(0)
        if hasattr(kind, "value_type"):  # a list, whose structures have a column a field
            fields = kind.value_type.num_fields or 1
            counts += [max(1, len(value.values))] * fields
        else:
            counts.append(1)
    return counts


def _list_column(pa: Any, table: Table, name: str, schema: pyarrow.Schema) -> pyarrow.ListArray:
    """A step's table as one list<struct> entry."""
    struct_type = schema.field(name).type.value_type
    arrays = []
    for column, kind in _TABLES[name][1].items():
        values = np.asarray(getattr(table, column))
        try:
            arrays.append(
                pa.array(values.astype(kind, casting="same_kind"), type=struct_type.field(column).type)
            )
        except TypeError as error:
            raise TraceError(
                f"column {name}.{column} is {values.dtype}, which does not fit {kind}"
            ) from error
    structs = pa.StructArray.from_arrays(arrays, fields=list(struct_type))
    return pa.ListArray.from_arrays(pa.array([0, len(table)], type=pa.int32()), structs)


def _tables(column: Any, name: str) -> list[Table]:
    """The reverse of :func:`_list_column`."""
    table_type, kinds = _TABLES[name]
    rows: list[Table] = []
    for chunk in column.chunks:
        values = chunk.values
        present = [key for key in kinds if values.type.get_field_index(key) >= 0]
        if chunk.null_count or values.null_count or any(values.field(key).null_count for key in present):
            raise ValueError(f"{name} has rows without values")
        arrays = {
            key: values.field(key).to_numpy(zero_copy_only=False).astype(kind)
            if key in present
            else np.full(len(values), _SINCE[name, key][1], dtype=kind)
            for key, kind in kinds.items()
        }
        offsets = chunk.offsets.to_numpy()
        for begin, end in pairwise(offsets.tolist()):
            rows.append(table_type(**{key: array[begin:end] for key, array in arrays.items()}))
    return rows


@dataclass(frozen=True)
class _Header:
    version: int
    meta: dict[str, Any]
    keeps_host_copies: bool
    lost: str | None


def _header(schema: pyarrow.Schema, path: str | os.PathLike[str]) -> _Header:
    header = (schema.metadata or {}).get(_KEY)
    if header is None:
        raise TraceError(
            f"{path}: this Parquet file is no Chameleon Lab trace; give a file that Trace.save wrote"
        )
    try:
        values = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from error
    return _header_of(values, path)


def _header_of(values: Any, path: str | os.PathLike[str]) -> _Header:
    try:
        lost = values.get("lost")
        header = _Header(
            int(values["version"]),
            dict(values["meta"]),
            bool(values.get("keeps_host_copies", True)),
            None if lost is None else str(lost),
        )
    except (AttributeError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _broken(path, error) from error
    if header.version > VERSION:
        raise TraceError(
            f"{path}: it is of trace version {header.version}, and this Chameleon Lab reads up to {VERSION}: "
            "upgrade Chameleon Lab"
        )
    return header


def _broken(path: str | os.PathLike[str], error: Exception) -> TraceError:
    return TraceError(f"{path}: the trace's header is broken ({error}); save the trace again")
