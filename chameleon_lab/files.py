"""What is asked of a file before it is opened: anybody may have made it."""

from __future__ import annotations

import os
import stat


def oddity(path: str | os.PathLike[str], most_bytes: int) -> str | None:
    """What is odd about a file: no regular one (a pipe would be waited for without end), or too large. None: nothing.

    Raises OSError if it is not there.
    """
    if "\0" in os.fsdecode(path):
        return "no file has a name with a null character in it"
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return "this is no regular file"
    if status.st_size > most_bytes:
        return f"it has {status.st_size} bytes, and at most {most_bytes} are read"
    return None
