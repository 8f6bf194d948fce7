"""A file of bytes that may be compressed, read in pieces and within limits."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from ..errors import TraceError
from ..util.files import printable, unusable_reason
from ..util.progress import tick

MOST_FILE_BYTES = 1 << 33
"""Larger files are refused."""

PIECE_BYTES = 1 << 20

_GZIP = b"\x1f\x8b"
_MOST_RATIO = 200
"""Real recordings compress to a fiftieth at best; what stands for more was made to fill the memory."""


class Source:
    """The bytes of a file, decompressed, one piece after another."""

    def __init__(self, file: BinaryIO, path: str | os.PathLike[str]) -> None:
        self.path = printable(path)
        self._file = file
        head = file.read(2)
        file.seek(0)
        self._gzip = zlib.decompressobj(31) if head == _GZIP else None
        self._pending = b""
        self._taken = 0
        self._given = 0

    @property
    def compressed(self) -> bool:
        """Is it a gzip file?"""
        return self._gzip is not None

    def read(self) -> bytes:
        """The next piece; empty at the end. Raises TraceError if the compression is damaged or stands for too much."""
        tick()
        if self._gzip is None:
            return self._file.read(PIECE_BYTES)
        while True:
            data = self._pending or self._file.read(PIECE_BYTES // 8)
            if not data:
                if not self._gzip.eof:
                    raise TraceError(f"{self.path}: the gzip file is cut; copy it again")
                return b""
            if self._gzip.eof:
                return b""
            self._taken += 0 if self._pending else len(data)
            try:
                piece = self._gzip.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise TraceError(f"{self.path}: the gzip file is damaged ({error}); copy it again") from error
            self._pending = self._gzip.unconsumed_tail
            self._given += len(piece)
            if self._given > _MOST_RATIO * self._taken + (1 << 24) or self._given > MOST_FILE_BYTES:
                raise TraceError(
                    f"{self.path}: {self._taken} bytes of it stand for more than {self._given}, and at most "
                    f"{_MOST_RATIO} times as many are read; decompress it first"
                )
            if piece:
                return piece


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Source]:
    """The bytes of a file. Raises TraceError if it is no regular file or too large, OSError if it cannot be opened."""
    if (odd := unusable_reason(path, MOST_FILE_BYTES)) is not None:
        raise TraceError(f"{printable(path)}: {odd}; give a file that a profiler wrote")
    with open(path, "rb") as file:
        yield Source(file, path)
