"""Thrift's compact protocol, as far as Parquet's metadata needs it: structures are dictionaries of field numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_DEEPEST = 32
_CUT = "the metadata are cut short"


class Reader:
    """Reads structures: field numbers to values. An entry takes a byte of the data at least: none grows beyond it.

    Raises ValueError where the data are cut short or nonsense.
    """

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at
        """Where the next structure begins."""

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """A whole structure."""
        return {field: value for field, value, _ in self.fields(depth)}

    def fields(self, depth: int = 0) -> Iterator[tuple[int, Any, int]]:
        """The fields of a structure: number, value, and where the field begins."""
        field, begin = 0, self.at
        while (head := self._byte()) != _STOP:
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._integer()
            yield field, kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth), begin
            begin = self.at

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
        if count > len(self._data) - self.at:
            raise ValueError(_CUT)

    def _bytes(self, count: int) -> bytes:
        self._room(count)
        self.at += count
        return self._data[self.at - count : self.at]

    def _byte(self) -> int:
        try:
            value = self._data[self.at]
        except IndexError:
            raise ValueError(_CUT) from None
        self.at += 1
        return value

    def _varint(self) -> int:
        data, at, value = self._data, self.at, 0
        for shift in range(0, 70, 7):
            try:
                byte = data[at]
            except IndexError:
                raise ValueError(_CUT) from None
            at += 1
            if byte < 128:
                self.at = at
                return value | byte << shift
            value |= (byte & 127) << shift
        raise ValueError("a number without an end")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


class Int32(int):
    """An integer that is written as an i32; a plain one is an i64."""


def written(struct: dict[int, Any]) -> bytes:
    """A structure of integers, bytes, structures and lists of one of these."""
    parts, last = [], 0
    for field in sorted(struct):
        parts.append(written_field(field, struct[field], last))
        last = field
    return b"".join(parts) + bytes([_STOP])


def written_field(field: int, value: Any, last: int) -> bytes:
    """One field, at most 15 numbers after ``last``, the one before it."""
    return bytes([(field - last) << 4 | _kind(value)]) + _written(value)


def _kind(value: Any) -> int:
    if isinstance(value, int):
        return _I32 if isinstance(value, Int32) else _I64
    kinds: dict[type, int] = {bytes: _BINARY, list: _LIST, dict: _STRUCT}
    return kinds[type(value)]


def _written(value: Any) -> bytes:
    if isinstance(value, dict):
        return written(value)
    if isinstance(value, bytes):
        return _varint(len(value)) + value
    if isinstance(value, list):
        kind = _kind(value[0]) if value else _STRUCT
        count = (
            bytes([len(value) << 4 | kind])
            if len(value) < 15
            else bytes([15 << 4 | kind]) + _varint(len(value))
        )
        return count + b"".join(map(_written, value))
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
