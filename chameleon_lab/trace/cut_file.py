"""Truncated trace files: extra data that makes their steps readable, and its reader.

A Parquet file says at its end where all else is. Trace files say some of it before the data, too, between the
columns' pages, where readers of Parquet do not look: after the file's first four bytes a lead with the trace's header,
and before each step, which has a row group of its own, how many values its columns hold. With these the pages of each
whole step are found one after the other, and the end that is missing is made anew.

Each such note is the bytes ``CLab``, its length and its CRC-32 (both uint32, little endian) and JSON.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from .thrift import Int32, Reader, written_field

MAGIC = b"PAR1"
"""What a Parquet file begins and ends with."""

_MARK = b"CLab"

# Fields of parquet.thrift: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, PageHeader and the headers in it.
_NUM_ROWS, _ROW_GROUPS = 3, 4
_COLUMNS, _TOTAL_BYTE_SIZE, _GROUP_ROWS = 1, 2, 3
_FILE_OFFSET, _META_DATA = 2, 3
_TYPE, _ENCODINGS, _PATH, _CODEC, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED = 1, 2, 3, 4, 5, 6, 7
_DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 9, 11
_PAGE_TYPE, _PAGE_UNCOMPRESSED, _PAGE_COMPRESSED, _DATA_PAGE = 1, 2, 3, 5
_PAGE_VALUES = 1
_IS_DATA, _IS_DICTIONARY = 0, 2


def note(values: dict[str, Any]) -> bytes:
    """What is written before the data they tell of."""
    text = json.dumps(values, allow_nan=False).encode()
    return _MARK + len(text).to_bytes(4, "little") + zlib.crc32(text).to_bytes(4, "little") + text


@dataclass(frozen=True)
class Whole:
    """The steps that are whole in a file that is cut."""

    header: dict[str, Any]
    """What the lead says: the trace's header, and how many ``steps`` were written."""
    groups: tuple[dict[int, Any], ...]
    """Their row groups."""
    ends: tuple[int, ...]
    """Where each ends in the file, bytes."""


def lead_of(data: bytes) -> dict[str, Any] | None:
    """What the lead says; None where it is not whole, or the file has none."""
    found = _note_at(data, len(MAGIC)) if data.startswith(MAGIC) else None
    return None if found is None else found[0]


def whole_steps(data: bytes, template: bytes) -> Whole:
    """Look for them.

    Args:
        data: the bytes that there are of the file; they have a lead.
        template: a whole Parquet file of the same schema with one row group.

    Raises:
        ValueError: the file has no lead, or another schema.
    """
    found = _note_at(data, len(MAGIC))
    if found is None:
        raise ValueError("the file has no lead")
    header, at = found
    if not isinstance(header.get("steps"), int):
        raise ValueError("the lead lacks the number of steps")
    columns = Reader(_footer(template)).struct()[_ROW_GROUPS][0][_COLUMNS]
    groups: list[dict[int, Any]] = []
    ends: list[int] = []
    while len(groups) < header["steps"] and (found := _note_at(data, at)) is not None:
        counts, at = found
        values = counts.get("values")
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise ValueError("a step lacks its size")
        if len(values) != len(columns):
            raise ValueError(f"a step of {len(values)} columns, and {len(columns)} are known")
        chunks = []
        try:
            for column, count in zip(columns, values, strict=True):
                chunk, at = _chunk(data, at, column[_META_DATA], count)
                chunks.append(chunk)
        except ValueError:
            break
        size = sum(chunk[_META_DATA][_UNCOMPRESSED] for chunk in chunks)
        groups.append({_COLUMNS: chunks, _TOTAL_BYTE_SIZE: size, _GROUP_ROWS: 1})
        ends.append(at)
    return Whole(header, tuple(groups), tuple(ends))


def mended(data: bytes, template: bytes, whole: Whole, steps: int) -> bytes:
    """A whole Parquet file of the first steps of a cut one."""
    footer = _footer(template)
    reader = Reader(footer)
    begins = [(field, begin) for field, _, begin in reader.fields()]
    before = next(begin for field, begin in begins if field == _NUM_ROWS)
    after = next(begin for field, begin in begins if field > _ROW_GROUPS)
    groups = list(whole.groups[:steps])
    made = b"".join(
        (
            footer[:before],
            written_field(_NUM_ROWS, steps, _NUM_ROWS - 1),
            written_field(_ROW_GROUPS, groups, _NUM_ROWS),
            footer[after:],
        )
    )
    return data[: whole.ends[steps - 1]] + made + len(made).to_bytes(4, "little") + MAGIC


def _note_at(data: bytes, at: int) -> tuple[dict[str, Any], int] | None:
    """A note and where it ends; None where none is whole."""
    head = data[at : at + 12]
    text_at, size = at + 12, int.from_bytes(head[4:8], "little")
    text = data[text_at : text_at + size]
    if head[:4] != _MARK or len(text) < size or zlib.crc32(text) != int.from_bytes(head[8:12], "little"):
        return None
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return (values, text_at + size) if isinstance(values, dict) else None


def _footer(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


def _chunk(data: bytes, begin: int, like: dict[int, Any], values: int) -> tuple[dict[int, Any], int]:
    """The column that begins here and holds so many values, and where it ends. Raises ValueError if it is not whole."""
    at, left, uncompressed, dictionary, first = begin, values, 0, None, None
    while left > 0:
        reader = Reader(data, at)
        page = reader.struct()
        try:
            kind, size, bytes_of = page[_PAGE_TYPE], page[_PAGE_COMPRESSED], page[_PAGE_UNCOMPRESSED]
            held = page[_DATA_PAGE][_PAGE_VALUES] if kind == _IS_DATA else 0
        except (KeyError, TypeError) as error:
            raise ValueError("no page is here") from error
        if not all(isinstance(number, int) for number in (size, bytes_of, held)):
            raise ValueError("no page is here")
        end = reader.at + size
        if end > len(data) or size < 0 or (kind == _IS_DATA) == (held <= 0):
            raise ValueError("the page is not whole")
        if kind == _IS_DICTIONARY:
            dictionary = at
        elif kind == _IS_DATA and first is None:
            first = at
        uncompressed += reader.at - at + bytes_of
        left -= held
        at = end
    if left or first is None:
        raise ValueError("the column holds another number of values")
    meta: dict[int, Any] = {
        _TYPE: Int32(like[_TYPE]),
        _ENCODINGS: [Int32(encoding) for encoding in like[_ENCODINGS]],
        _PATH: like[_PATH],
        _CODEC: Int32(like[_CODEC]),
        _NUM_VALUES: values,
        _UNCOMPRESSED: uncompressed,
        _COMPRESSED: at - begin,
        _DATA_PAGE_OFFSET: first,
    }
    if dictionary is not None:
        meta[_DICTIONARY_PAGE_OFFSET] = dictionary
    return {_FILE_OFFSET: begin, _META_DATA: meta}, at
