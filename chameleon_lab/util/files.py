"""Checks on untrusted files before they are read, and atomic writes."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_MOST_LINKS = 40


def invalid_name_reason(path: str | os.PathLike[str]) -> str | None:
    """Why no file can have this name; None if one can."""
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        return "no file has a name with half a surrogate pair in it"
    return "no file has a name with a null character in it" if b"\0" in name else None


def printable(path: str | os.PathLike[str]) -> str:
    """The path with its unprintable characters escaped."""
    text = os.fsdecode(path) or "''"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def is_no_file(path: str | os.PathLike[str]) -> bool:
    """Is the path a pipe, a device or an open descriptor, which is written to and never replaced?"""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _descriptor(os.fspath(path)) is not None


@contextmanager
def write_then_rename(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file beside ``path`` to write to; at the end it takes the place of ``path``, or vanishes if writing failed.

    Whoever reads ``path`` meanwhile, or after a crash, finds the old file or the new one, and never a part. A link
    stays one; a pipe or a device is written to itself, at the end.
    """
    if is_no_file(path):
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "whole"
            yield whole
            with whole.open("rb") as source, _appending(path) as sink:
                shutil.copyfileobj(source, sink)
        return
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield beside
        os.replace(beside, target)
    except OSError as error:
        if error.filename == str(beside):
            error.filename = str(path)  # the one that somebody has asked for
        raise
    finally:
        beside.unlink(missing_ok=True)


def _appending(path: str | os.PathLike[str]) -> BinaryIO:
    """Something that is no file, open to write to its end. What this process has open keeps its place in the file."""
    link = _descriptor(os.fspath(path))
    own = link and os.path.dirname(link) == os.path.realpath("/proc/self/fd")
    return os.fdopen(os.dup(int(os.path.basename(link))), "wb") if link and own else open(path, "ab")


def _descriptor(path: str | bytes) -> str | None:
    """Of ``/dev/stdout``, say, the place in ``/proc``: whoever has opened what is there would not see another file."""
    name = os.fsdecode(path)
    for _ in range(_MOST_LINKS):
        folder = os.path.realpath(os.path.dirname(name))
        if re.fullmatch(r"/proc/\d+(/task/\d+)?/fd", folder):
            return os.path.join(folder, os.path.basename(name))
        if not os.path.islink(name):
            return None
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return None


def unusable_reason(path: str | os.PathLike[str], most_bytes: int) -> str | None:
    """Why a file cannot be read: not a regular file (a pipe could block forever), or too large. None if it can.

    Raises OSError if the file does not exist.
    """
    if (wrong := invalid_name_reason(path)) is not None:
        return wrong
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return "this is no regular file"
    if status.st_size > most_bytes:
        return f"it has {status.st_size} bytes, and at most {most_bytes} are read"
    return None
