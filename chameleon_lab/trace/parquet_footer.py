"""How much a Parquet file says that it holds, read from its footer without pyarrow.

pyarrow ends the process where the metadata of a column is damaged: ``RowGroupMetaData.column`` lets a C++ exception
through that Python cannot catch. The footer is Thrift in its compact protocol (parquet-format, ``parquet.thrift``):
``FileMetaData.row_groups[].columns[].meta_data`` has the sizes.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO

_MAGIC = b"PAR1"
_ROW_GROUPS, _COLUMNS, _META_DATA, _NUM_VALUES, _TOTAL_UNCOMPRESSED_SIZE = 4, 1, 3, 5, 6
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_DEEPEST = 32


def stated_size(file: BinaryIO) -> tuple[int, int]:
    """The values in all columns of all row groups, and their bytes when uncompressed. The file's position changes.

    Raises ValueError if the footer is damaged.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 8, 0))
    tail = file.read(8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or size > end - 8:
        raise ValueError("it does not end as Parquet files do")
    file.seek(end - 8 - size)
    footer = _Thrift(file.read(size)).struct(0)
    values = uncompressed_bytes = 0
    for group in _listed(footer, _ROW_GROUPS):
        for column in _listed(group, _COLUMNS):
            about = column.get(_META_DATA)
            if not isinstance(about, dict):
                raise ValueError("a column without its metadata")
            values += _count(about, _NUM_VALUES)
            uncompressed_bytes += _count(about, _TOTAL_UNCOMPRESSED_SIZE)
    return values, uncompressed_bytes


def _listed(struct: dict[int, Any], field: int) -> list[dict[int, Any]]:
    found = struct.get(field)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ValueError(f"field {field} of the footer is no list of structures")
    return found


def _count(struct: dict[int, Any], field: int) -> int:
    found = struct.get(field)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise ValueError(f"field {field} of a column's metadata is no size")
    return found


class _Thrift:
    """Reads structures: field numbers to values. An entry takes a byte of the data at least: none grows beyond it."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self, depth: int) -> dict[int, Any]:
        found: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != _STOP:
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._integer()
            found[field] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("structures too deep in each other")
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind in (_TRUE, _FALSE, _BYTE):  # of a list, where booleans take a byte each
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 != 15 else self._varint()
            self._room(count)
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == _MAP:
            count = self._varint()
            self._room(count)
            kinds = self._byte() if count else 0
            return [
                (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in range(count)
            ]
        raise ValueError(f"no Thrift type {kind}")

    def _room(self, count: int) -> None:
        if count > len(self._data) - self._at:
            raise ValueError("the footer is cut short")

    def _bytes(self, count: int) -> bytes:
        self._room(count)
        self._at += count
        return self._data[self._at - count : self._at]

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number without an end")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
