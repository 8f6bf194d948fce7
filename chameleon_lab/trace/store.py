"""Trace files: one Parquet file a trace, one row a step, each in a row group of its own.

A step's tables are columns of type list<struct>, its dictionaries (op names, module paths, labels, stacks)
list<string>; all of them follow from how :mod:`.columns` declares them. The schema's metadata holds, under the key
``chameleon_lab.trace``, JSON with the format's ``version``, the trace's ``meta``, and of each enum the names behind its
numbers (``enums``). What lets the whole steps of a cut file be read: :mod:`.cut_file`.
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
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from ..errors import CutFileError, TraceError
from ..util import arrow
from ..util.files import invalid_name_reason, printable, unusable_reason, write_then_rename
from ..util.progress import bar, tick
from .check import check_step
from .columns import KINDS, TABLES
from .cut_file import MAGIC, lead_of, mended, note, whole_steps
from .parquet_footer import stated_size
from .step import StepTrace
from .table import StepTable, renumbered

if TYPE_CHECKING:
    import pyarrow

VERSION = 9
"""Version of the trace file that this package writes and reads."""

_KEY = b"chameleon_lab.trace"

_MOST_VALUES = 1 << 28
_MOST_BYTES = 1 << 31

_WRITING: dict[str, Any] = {
    "compression": "zstd",
    "data_page_version": "1.0",
    "write_page_checksum": True,
    "write_statistics": False,
}

_TYPES = {int: "int64", float: "float64", str: "string"}
_SCALARS = {name: _TYPES[kind] for name, kind in KINDS.items() if kind in _TYPES}
_DICTIONARIES = [name for name, kind in KINDS.items() if kind == tuple[str, ...]]

_ENUMS = {
    column.into.__name__: column.into
    for kind in TABLES.values()
    for column in kind.declared().values()
    if isinstance(column.into, type)
}


class Contents(NamedTuple):
    """What a trace file holds: the fields of a trace."""

    steps: list[StepTrace]
    meta: dict[str, Any]
    lost: str | None


def save(trace: Contents, path: str | os.PathLike[str]) -> None:
    """Write a trace to ``path``: to a file beside it first, which then takes its place.

    Raises ImportError without pyarrow, TraceError if no file can have this name, ``trace.meta`` holds something that
    JSON cannot or a column does not fit its type, OSError if the file cannot be written.
    """
    pa = _import_pyarrow()
    import pyarrow.parquet as parquet

    if (wrong := invalid_name_reason(path)) is not None:
        raise TraceError(f"{printable(path)}: {wrong}; give another name")
    try:
        enums = {name: [value.name for value in kind] for name, kind in _ENUMS.items()}
        values: dict[str, Any] = {"version": VERSION, "meta": trace.meta, "enums": enums}
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


def load(path: str | os.PathLike[str], partial: bool = False) -> Contents:
    """Read what :func:`save` wrote.

    Args:
        path: of the file.
        partial: of a file whose end is missing, read the steps that are whole; ``lost`` of the trace says what is gone.

    Raises ImportError without pyarrow, CutFileError if the file's end is missing (``partial``: and no step is whole),
    TraceError if it is of another version, damaged or no trace at all, OSError if it cannot be opened.
    """
    pa = _import_pyarrow()
    if (odd := unusable_reason(path, _MOST_BYTES)) is not None:
        raise TraceError(f"{printable(path)}: {odd}; give a file that Trace.save wrote")
    with open(path, "rb") as file:
        try:
            return _read(pa, file, path)
        except CutFileError as error:
            file.seek(0)
            found = _read_whole_steps(pa, file.read(), path, error)
            if partial:
                return found
            raise CutFileError(
                f"{error}; or read what there is with "
                f"Trace.load(path, partial=True), as the commands and the panel do: {found.lost}"
            ) from error


def _read(pa: Any, file: BinaryIO, path: str | os.PathLike[str], verified: bool = False) -> Contents:
    """The trace in an open file. ``verified``: its pages' checksums are looked at."""
    import pyarrow.parquet as parquet

    with _whole(pa, path):
        _check_size(file, path)
        file.seek(0)
        source = parquet.ParquetFile(file, page_checksum_verification=verified)
        schema = source.schema_arrow
    header = _header(schema, path)
    expected = _schema(pa)
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
            # Alone: after a damaged file, arrow's threads can end the process when it exits.
            columns.append(source.read([name], use_threads=False).column(name))
            tick()
    table = pa.Table.from_arrays(columns, schema=expected).combine_chunks()
    try:
        return Contents(_steps(table, header), header.meta, header.lost)
    except (pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
        raise TraceError(f"{path}: damaged ({error}); save the trace again, or record it anew") from error


def _read_whole_steps(pa: Any, data: bytes, path: str | os.PathLike[str], cut: CutFileError) -> Contents:
    """The steps of a cut file that are whole. Raises CutFileError if there is none."""
    if (lead := lead_of(data)) is None:
        raise cut  # cut within its first bytes, or written by another program
    _header_of(lead, path)
    template = _template(pa, lead)
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
        lost = f"{printable(path)}: cut after {len(data)} bytes; {steps} of its {of} steps can be read"
        return found._replace(lost=lost if found.lost is None else f"{found.lost}; {lost}")
    raise CutFileError(f"{cut}; none of its {of} steps is whole")


def _template(pa: Any, header: dict[str, Any]) -> bytes:
    """A file of one step, for all that does not hang on how many steps a file has."""
    import pyarrow.parquet as parquet

    values = {name: value for name, value in header.items() if name != "steps"}
    schema = _schema(pa).with_metadata({_KEY: json.dumps(values).encode()})
    row = pa.Table.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    sink = io.BytesIO()
    parquet.write_table(row, sink, **_WRITING)
    return sink.getvalue()


def _check_size(file: BinaryIO, path: str | os.PathLike[str]) -> None:
    """A few bytes of Parquet can stand for any number of values: refuse those that nobody would have recorded."""
    values, size = stated_size(file)
    if values > _MOST_VALUES or size > _MOST_BYTES:
        raise TraceError(
            f"{path}: it declares {values} values in {size} bytes, and at most {_MOST_VALUES} in "
            f"{_MOST_BYTES} are read; save fewer steps"
        )


def _steps(table: Any, header: _Header) -> list[StepTrace]:
    tables = {name: _tables(table.column(name), name, header) for name in TABLES}
    plain = table.select([*_SCALARS, *_DICTIONARIES]).to_pylist()
    steps = []
    for position, values in enumerate(plain):
        values |= {name: tuple(values[name]) for name in _DICTIONARIES}
        if any(text is None for name in _DICTIONARIES for text in values[name]):
            raise ValueError("a name is missing")
        if any(values[name] is None for name in _SCALARS):
            raise ValueError("a step without its index, stage, times or counts")
        values |= {name: rows[position] for name, rows in tables.items()}
        step = StepTrace(**values, keeps_host_copies=header.keeps_host_copies)
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


def _schema(pa: Any) -> pyarrow.Schema:
    def type_of(kind: str) -> Any:
        return pa.bool_() if kind == "bool" else getattr(pa, kind)()

    columns = [(name, type_of(kind)) for name, kind in _SCALARS.items()]
    columns += [(name, pa.list_(pa.string())) for name in _DICTIONARIES]
    for name, kind in TABLES.items():
        fields = [(key, type_of(c.dtype)) for key, c in kind.declared().items()]
        columns.append((name, pa.list_(pa.struct(fields))))
    return pa.schema(columns)


def _row(pa: Any, step: StepTrace, schema: pyarrow.Schema) -> pyarrow.Table:
    """A step as a table of one row."""
    columns = []
    for name, kind in _SCALARS.items():
        value = getattr(step, name)
        columns.append(
            arrow.strings(pa, [value]) if kind == "string" else arrow.numbers(pa, np.array([value], kind))
        )
    columns += [
        arrow.list_of(pa, arrow.strings(pa, getattr(step, name)), schema.field(name))
        for name in _DICTIONARIES
    ]
    columns += [_list_column(pa, getattr(step, name), name, schema) for name in TABLES]
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


def _list_column(pa: Any, table: StepTable, name: str, schema: pyarrow.Schema) -> pyarrow.ListArray:
    """A step's table as one list<struct> entry."""
    struct_type = schema.field(name).type.value_type
    arrays = []
    for key, column in table.declared().items():
        values = np.asarray(getattr(table, key))
        if values.ndim != 1:
            raise TraceError(f"column {name}.{key} has the shape {values.shape}, and not one value a row")
        try:
            fitting = values.astype(column.dtype, casting="same_kind")
        except TypeError as error:
            raise TraceError(
                f"column {name}.{key} is {values.dtype}, which does not fit {column.dtype}"
            ) from error
        arrays.append(arrow.numbers(pa, fitting))
    structs = pa.StructArray.from_arrays(arrays, fields=list(struct_type))
    return arrow.list_of(pa, structs, schema.field(name))


def _tables(column: Any, name: str, header: _Header) -> list[StepTable]:
    """The reverse of :func:`_list_column`."""
    declared = TABLES[name].declared()
    rows: list[StepTable] = []
    for chunk in column.chunks:
        values = chunk.values
        if chunk.null_count or values.null_count or any(values.field(key).null_count for key in declared):
            raise ValueError(f"{name} has rows without values")
        arrays = {}
        for key in declared:
            arrays[key] = values.field(key).to_numpy(zero_copy_only=False).astype(declared[key].dtype)
            if isinstance(kind := declared[key].into, type):
                names = header.enums[kind.__name__]
                arrays[key] = renumbered(f"{name}.{key}", kind, names, arrays[key])
        offsets = chunk.offsets.to_numpy()
        for begin, end in pairwise(offsets.tolist()):
            rows.append(TABLES[name](**{key: array[begin:end] for key, array in arrays.items()}))
    return rows


@dataclass(frozen=True)
class _Header:
    meta: dict[str, Any]
    keeps_host_copies: bool
    lost: str | None
    enums: dict[str, tuple[str, ...]]


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
        version = values["version"]
        if type(version) is not int:
            raise ValueError(f"its version is {version!r}")
        if version != VERSION:
            raise TraceError(
                f"{path}: it is of trace version {version}, and this Chameleon Lab reads version {VERSION}: record "
                "it anew"
            )
        lost, enums = values.get("lost"), values["enums"]
        return _Header(
            dict(values["meta"]),
            bool(values.get("keeps_host_copies", True)),
            None if lost is None else str(lost),
            {name: tuple(map(str, enums[name])) for name in _ENUMS},
        )
    except TraceError:
        raise
    except (AttributeError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _broken(path, error) from error


def _broken(path: str | os.PathLike[str], error: Exception) -> TraceError:
    return TraceError(f"{path}: the trace's header is broken ({error}); save the trace again")
