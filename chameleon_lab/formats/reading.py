"""Opens a trace of any known format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..errors import TraceError
from ..trace import Trace
from ..util.files import printable
from ..util.progress import bar
from .chrome_trace import read_chrome_trace, read_profile
from .execution_trace import read_execution, read_execution_trace
from .join import joined
from .memory_snapshot import read_memory_snapshot
from .nsight import read_nsight
from .recognize import Format, recognize
from .source import Source, opened

_READERS: dict[Format, Callable[[Source], Trace]] = {
    Format.CHROME: read_chrome_trace,
    Format.EXECUTION: read_execution_trace,
    Format.SNAPSHOT: read_memory_snapshot,
}


def open_trace(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Trace:
    """See :meth:`~chameleon_lab.trace.Trace.open`."""
    if not more:
        return _one(path)
    paths = [path, *more]
    named = " and ".join(printable(each) for each in paths)
    by_format = {recognize(each): each for each in paths}
    if len(paths) != 2 or by_format.keys() != {Format.EXECUTION, Format.CHROME}:
        kinds = " and ".join(each.value for each in by_format)
        raise TraceError(
            f"{named}: {kinds} are not joined: give an execution trace and a Chrome trace of one run"
        )
    with bar(f"Reading {named}", unit="MiB"):
        with opened(by_format[Format.EXECUTION]) as source:
            execution = read_execution(source)
        with opened(by_format[Format.CHROME]) as source:
            return joined(execution, read_profile(source), named)


def _one(path: str | os.PathLike[str]) -> Trace:
    found = recognize(path)
    if found is Format.TRACE:
        return Trace.load(path, partial=True)
    if found is Format.NSIGHT:
        return read_nsight(Path(path))
    with bar(f"Reading {printable(path)}", unit="MiB"), opened(path) as source:
        return _READERS[found](source)
