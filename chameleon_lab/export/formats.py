"""The formats that a trace is exported in, and how one is chosen."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from .._lazy import at_first_use
from ..errors import TraceError
from ..trace import Trace
from ..util.files import invalid_name_reason, is_no_file, printable, write_then_rename


@dataclass(frozen=True)
class Format:
    """A format: the ends of its files' names, and what opens it."""

    name: str
    endings: tuple[str, ...]
    meaning: str


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format("chrome", (".json", ".json.gz"), "Chrome JSON: chrome://tracing, Perfetto, HTA"),
        Format(
            "perfetto", (".pftrace", ".perfetto-trace"), "Perfetto's own: ui.perfetto.dev, trace_processor"
        ),
        Format("snapshot", (".pickle",), "PyTorch's memory snapshot: memory_viz"),
        Format("html", (".html",), "One offline page with the panel's timeline: any browser"),
        Format("csv", (".csv",), "CSV, a file for each table"),
        Format("parquet", (".parquet",), "Parquet, a file for each table"),
    )
}
"""By name, as ``format=`` takes it."""

TABLE_FORMATS = ("csv", "parquet")
"""Those that write a file for each table."""


def format_of(path: str | os.PathLike[str], format: str | None = None) -> str:
    """The name of the format that a path's end stands for, unless ``format`` names one.

    Raises ValueError if there is no such format, or no format's files end so.
    """
    if format is not None:
        if format not in FORMATS:
            raise ValueError(f"there is no format {format!r}: give one of {', '.join(FORMATS)}")
        return format
    name = os.path.basename(os.fspath(path)).lower()
    for known in FORMATS.values():
        if name.endswith(known.endings):
            return known.name
    endings = ", ".join(ending for known in FORMATS.values() for ending in known.endings)
    raise ValueError(
        f"{printable(path)}: its ending is that of no format: end the name in one of {endings}, "
        f"or give the format ({', '.join(FORMATS)})"
    )


def export(
    trace: Trace,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    step: int | None = None,
    table: str | None = None,
) -> list[Path]:
    """Write a trace in another tool's format: to a file beside the path first, which then takes its place.

    Args:
        trace: what to write; all of its steps.
        path: of the file. With ``csv`` and ``parquet`` there is a file for each table: ``run.csv`` stands for
            ``run.ops.csv``, ``run.storages.csv`` and so on.
        format: one of :data:`FORMATS`. None: by the ending of ``path``.
        step: the session's number of the one step to write. None: all of them.
        table: with ``csv`` and ``parquet``, the one table to write, to ``path`` itself.

    Returns:
        The files.

    Raises:
        ValueError: the format, the step or the table does not exist.
        TraceError: the trace has no step with an op, or no file can have this name.
        ImportError: a package that the format needs is not installed.
        OSError: a file cannot be written.
    """
    name = format_of(path, format)
    if table is not None and name not in TABLE_FORMATS:
        raise ValueError(f"table={table!r}: {name} has no tables: leave it out, or choose csv or parquet")
    if (wrong := invalid_name_reason(path)) is not None:
        raise TraceError(f"{printable(path)}: {wrong}; give another name")
    steps = [each for each in trace.steps if len(each.ops)]
    if not steps:
        raise TraceError(
            "the trace holds no op, so there is nothing to export: record at least one whole step"
        )
    if step is not None:
        chosen = [each for each in steps if each.index == step]
        if not chosen:
            known = ", ".join(str(each.index) for each in steps)
            raise ValueError(f"the trace has no step {step} with an op: it has {known}")
        steps = chosen
    trace = replace(trace, steps=steps)
    if name in TABLE_FORMATS:
        return _export_tables(trace, path, name, table)
    if name == "html":
        text = at_first_use("html_page")(trace, os.path.basename(os.fspath(path)))
        with write_then_rename(path) as beside:
            beside.write_text(text, encoding="utf-8")
        return [Path(path)]
    with write_then_rename(path) as beside:
        _writer(name)(trace, beside, compressed=os.fspath(path).lower().endswith(".gz"))
    return [Path(path)]


def _writer(name: str) -> Callable[..., None]:
    """What writes a format of one file: a function of the trace, the path, and whether the file is compressed."""
    if name == "chrome":
        from .chrome import write_chrome

        return write_chrome
    if name == "perfetto":
        from .perfetto import write_perfetto

        return write_perfetto
    assert name == "snapshot", name
    from .snapshot import write_snapshot

    return write_snapshot


def _export_tables(trace: Trace, path: str | os.PathLike[str], name: str, table: str | None) -> list[Path]:
    from .tables import TABLE_NAMES, exported_table, write_table

    if table is not None:
        if table not in TABLE_NAMES:
            raise ValueError(f"there is no table {table!r}: give one of {', '.join(TABLE_NAMES)}")
        with write_then_rename(path) as beside:
            write_table(exported_table(trace, table), beside, name)
        return [Path(path)]
    if is_no_file(path):
        raise ValueError(
            f"{printable(path)}: {name} writes a file for each table, and this is no file: name one table"
        )
    stem, ending = Path(path), f".{name}"
    if stem.name.lower().endswith(ending):
        stem = stem.with_name(stem.name[: -len(ending)])
    targets = {each: stem.with_name(f"{stem.name}.{each}{ending}") for each in TABLE_NAMES}
    with ExitStack() as renaming:  # none takes its place before all are written
        for each, target in targets.items():
            write_table(exported_table(trace, each), renaming.enter_context(write_then_rename(target)), name)
    return list(targets.values())
