"""What a file is, by its first bytes: its name says nothing."""

from __future__ import annotations

import os
import re
import zlib
from enum import Enum

from ..errors import TraceError
from ..util.files import printable, unusable_reason
from .source import MOST_FILE_BYTES

_HEAD_BYTES = 1 << 16


class Format(Enum):
    """The formats that are read, and what messages call them."""

    TRACE = "Chameleon Lab trace"
    SNAPSHOT = "PyTorch memory snapshot"
    CHROME = "Chrome trace of torch.profiler"
    EXECUTION = "PyTorch execution trace"
    NSIGHT = "Nsight Systems SQLite export"


def recognize(path: str | os.PathLike[str]) -> Format:
    """The format of a file.

    Raises TraceError if it is none of those that are read, or no regular file; OSError if it cannot be opened.
    """
    if (odd := unusable_reason(path, MOST_FILE_BYTES)) is not None:
        raise TraceError(f"{printable(path)}: {odd}; give the file of a trace")
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            head = b""
    found = _of(head)
    if found is None:
        raise TraceError(
            f"{printable(path)}: {_what(head)}; files that are read: {', '.join(each.value for each in Format)}"
        )
    return found


def _of(head: bytes) -> Format | None:
    if head.startswith(b"PAR1"):
        return Format.TRACE
    if head.startswith(b"SQLite format 3\0"):
        return Format.NSIGHT
    # Protocols from 2 on say so in their first instruction.
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return Format.SNAPSHOT
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        if re.search(rb'"schema"\s*:\s*"[^"]{0,80}chakra', text) or re.search(rb'"nodes"\s*:\s*\[', text):
            return Format.EXECUTION
        # Of a Chrome trace everything may stand before the events; a policy has its own reader.
        ours = re.search(rb'"chameleon_lab', text) and not re.search(rb'"trace(Events|Name)"', text)
        return None if ours else Format.CHROME
    return Format.CHROME if re.match(rb"\[\s*\{", text) else None


def _what(head: bytes) -> str:
    """What a file that is not read seems to be."""
    if not head:
        return "the file is empty"
    if head.startswith(b"PK\x03\x04"):
        return "this is a zip file, as torch.save writes: no trace"
    if head[:1] in (b"(", b"]", b"}") and b"\n" in head:
        return "this may be a pickle of protocol 0 or 1: no memory snapshot"
    return "the content is of no format that is read"
