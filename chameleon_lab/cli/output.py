"""Standard output and standard error, with full disks and closed pipes handled."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from ..ranks.identity import Identity


class _Held(io.StringIO):
    """What a command prints, until it has ended: its exit code does not depend on who reads on."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()


@contextmanager
def held() -> Iterator[None]:
    """Hold back what is printed on stdout until the block has ended, and write it then.

    Raises OSError where it cannot be written. Where nobody reads it, that is no error.
    """
    stream = sys.stdout
    if stream is None:  # closed by who has called
        yield
        return
    text = _Held(stream)
    try:
        with redirect_stdout(text):
            yield
    finally:
        _write(stream, text.getvalue())


def spoken(who: Identity) -> str:
    """Behind the command's name on stderr, which all ranks of a job share: which one speaks."""
    return "" if who.is_alone else f", rank {who.rank}"


def tell(text: str) -> bool:
    """Print on stderr. Could it be written, or has nobody asked for it? False where the disk is full."""
    if sys.stderr is None:
        return True
    try:
        _write(sys.stderr, f"{text}\n")
    except OSError:
        return False
    return True


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:  # `chameleon report t.parquet | head`: what is left has no reader
        _abandon(stream)
    except OSError:
        _abandon(stream)
        raise


def _abandon(stream: TextIO) -> None:
    """Send what the stream still holds nowhere, or the interpreter would try again at its end, and fail."""
    try:
        descriptor = stream.fileno()
    except OSError:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
