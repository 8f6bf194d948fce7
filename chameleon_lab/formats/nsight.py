"""SQLite exports of Nsight Systems (``nsys export --type sqlite``): kernels, copies and NVTX ranges.

The host's launches become ops, named by what they launched; the NVTX ranges that they lie in take the place of modules.
The file is opened read-only and as one that nobody changes, nothing in its schema is run, and its tables are read row
by row. A file has only the tables that it has rows for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TraceError
from ..trace import Direction, Marks, Ops, Storages, Trace
from ..util.files import printable
from .build import Names, bytes_of, clean, constant, filled, limited, made_step, whole_number
from .device_work import (
    NO_DIRECTION,
    Copies,
    Records,
    Work,
    device_seconds,
    kernel_table,
    lookup,
    stall_table,
    transfer_table,
)
from .ranges import innermost

FORMAT = "Nsight Systems SQLite export"
LACKS = "an Nsight Systems export has no storages: can't plan; record an execution trace of the run, and open that"
_TABLES = {
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "sets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "launches": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "ranges": "NVTX_EVENTS",
}
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_MOST_ROWS = 1 << 25
_MOST_STEPS = 4_000_000_000
"""Of SQLite's machine: a file whose views or tables go on for ever ends here."""
_MOST_TEXT = 1 << 20
_MOST_DEPTH = 32


def read_nsight(path: Path) -> Trace:
    """One step of all that the file holds. Raises TraceError if it is damaged, or has neither kernels nor copies."""
    try:
        with _Export(path) as export:
            return export.trace()
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise TraceError(
            f"{printable(path)}: this SQLite file is damaged, or none of Nsight Systems ({clean(str(error), 200)}); "
            "export it again with nsys export --type sqlite"
        ) from None


class _Export:
    """An open file."""

    def __init__(self, path: Path) -> None:
        self._path = printable(path)
        self._steps = 0
        # Not only read-only: immutable, so that no journal beside it is looked for.
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._file = sqlite3.connect(uri, uri=True, isolation_level=None)
        self._file.text_factory = lambda data: data.decode("utf-8", "replace")

    def __enter__(self) -> _Export:
        file = self._file
        file.execute("PRAGMA trusted_schema = OFF")
        file.execute("PRAGMA query_only = ON")
        file.execute("PRAGMA mmap_size = 0")
        file.execute("PRAGMA cell_size_check = ON")
        file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_TEXT)
        file.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 1 << 16)
        file.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        file.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50)
        file.set_authorizer(_only_reads)
        file.set_progress_handler(self._count, 1_000_000)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def _count(self) -> bool:
        self._steps += 1_000_000
        return self._steps > _MOST_STEPS

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table, with None for columns that it lacks; none if it is no plain table of the file."""
        kind = self._file.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        if kind is None or kind[0] != "table":
            return
        # It leaves out columns that are computed.
        there = {row[1] for row in self._file.execute(f'PRAGMA table_info("{table}")')}
        chosen = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
        for number, row in enumerate(self._file.execute(f'SELECT {chosen} FROM "{table}"')):
            if number >= _MOST_ROWS:
                raise TraceError(
                    f"{self._path}: {table} has more than {_MOST_ROWS} rows; export a shorter time"
                )
            yield row

    def _strings(self) -> dict[int, str]:
        return {
            key: text
            for key, text in self._rows("StringIds", "id", "value")
            if type(key) is int and type(text) is str
        }

    def trace(self) -> Trace:
        """All that the file holds."""
        strings, names, ranges_names = self._strings(), Names(), Names()
        work = Records(
            name="i",
            kind="b",
            device="i",
            stream="q",
            start="q",
            end="q",
            bytes="q",
            correlation="q",
            pid="q",
        )
        shared = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        for short, full, *row in self._rows(_TABLES["kernels"], "shortName", "demangledName", *shared):
            text = strings.get(short) or strings.get(full) or "kernel"
            self._add(work, names.number(text), 0, row, 0)
        for kind, size, *row in self._rows(_TABLES["copies"], "copyKind", "bytes", *shared):
            direction = {_HOST_TO_DEVICE: 1, _DEVICE_TO_HOST: 2}.get(kind, 0)
            text = {1: "Memcpy HtoD", 2: "Memcpy DtoH"}.get(direction, "Memcpy on the device")
            self._add(work, names.number(text), direction, row, bytes_of(size))
        for size, *row in self._rows(_TABLES["sets"], "bytes", *shared):
            self._add(work, names.number("Memset"), 0, row, bytes_of(size))
        if not len(work):
            raise TraceError(
                f"{self._path}: it has neither kernels nor copies: record with nsys profile --trace cuda,nvtx"
            )
        launches = Records(start="q", end="q", thread="q", correlation="q", pid="q")
        for start, end, thread, correlation in self._rows(
            _TABLES["launches"], "start", "end", "globalTid", "correlationId"
        ):
            begin = _time(start)
            thread = whole_number(thread)
            launches.add(
                begin, max(_time(end), begin), thread, whole_number(correlation, 0, other=-1), thread >> 24
            )
        ranges = Records(name="i", thread="q", start="q", end="q")
        for start, end, text, key, thread in self._rows(
            _TABLES["ranges"], "start", "end", "text", "textId", "globalTid"
        ):
            text = text if type(text) is str else strings.get(key, "")
            if text and type(end) is int:
                begin = _time(start)
                ranges.add(ranges_names.number(text), whole_number(thread), begin, max(_time(end), begin))
        return self._made(work, launches, ranges, names, ranges_names)

    @staticmethod
    def _add(work: Records, name: int, kind: int, row: list[Any], size: int) -> None:
        start, end, device, stream, correlation, pid = row
        begin = _time(start)
        work.add(
            name,
            kind,
            whole_number(device, 0, 1023),
            whole_number(stream),
            begin,
            max(_time(end), begin),
            size,
            whole_number(correlation, 0, other=-1),
            whole_number(pid) >> 24,
        )

    def _made(
        self, work: Records, launches: Records, ranges: Records, names: Names, ranges_names: Names
    ) -> Trace:
        did, asked, named = work.columns(), launches.columns(), ranges.columns()
        zero = min(int(each["start"].min()) for each in (did, asked, named) if len(each["start"]))
        for each in (did, asked, named):
            each["start"], each["end"] = ((each[key] - zero) * 1e-9 for key in ("start", "end"))
        launch_of = _launch_of(did, asked)
        # An op is a launch that something on the device came of; what nobody launched is an op of the device's time.
        has_launch = launch_of >= 0
        op_key = np.where(has_launch, launch_of, len(asked["start"]) + np.arange(len(launch_of)))
        _, first, op_number = np.unique(op_key, return_index=True, return_inverse=True)
        del op_key
        start = np.where(has_launch, np.append(asked["start"], 0.0)[launch_of], did["start"])[first]
        end = np.where(has_launch, np.append(asked["end"], 0.0)[launch_of], did["end"])[first]
        thread = np.where(has_launch, np.append(asked["thread"], -1)[launch_of], -1)[first]
        order = np.argsort(start, kind="stable")
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        op = place[op_number]
        start, end, thread, name = start[order], end[order], thread[order], did["name"][first][order]
        n = len(order)
        columns = (did["name"], op, did["device"], did["stream"], did["start"], did["end"])
        kind = did["kind"]
        direction = np.select(
            [kind == 1, kind == 2], [int(Direction.IN), int(Direction.OUT)], default=NO_DIRECTION
        )
        issue_s = np.where(has_launch, np.append(asked["start"], 0.0)[launch_of], np.nan)
        copies = Copies(*columns, direction, limited(did["bytes"]), issue_s).taken(kind != 0)
        kernels = Work(*columns).taken(kind == 0)
        modules, module = _modules(named, ranges_names.texts(), thread, start)
        duration_s = float(max(end.max(), did["end"].max(), named["end"].max(initial=0.0)))
        ops = filled(
            Ops,
            n,
            name=name,
            module=module,
            thread=np.unique(thread, return_inverse=True)[1],
            stack=constant(-1, n, "int32"),
            start_s=start,
            duration_s=end - start,
            device_s=device_seconds(kernels, n),
            live_peak_bytes=constant(0, n, "int64"),
            resident_peak_bytes=constant(0, n, "int64"),
        )
        by_end = np.argsort(named["end"], kind="stable")
        marks = filled(
            Marks,
            len(by_end),
            name=named["name"][by_end],
            from_op=np.searchsorted(start, named["start"][by_end]),
            to_op=np.searchsorted(start, named["end"][by_end]),
            start_s=named["start"][by_end],
            duration_s=(named["end"] - named["start"])[by_end],
        )
        devices, counts = np.unique(did["device"], return_counts=True)
        step = made_step(
            0,
            self._begin_s(zero),
            duration_s,
            ops,
            Storages.none(),
            names=names.texts(),
            modules=modules,
            kernels=kernel_table(kernels),
            transfers=transfer_table(copies, n),
            stalls=stall_table(copies, kernels),
            marks=marks,
            mark_names=ranges_names.texts(),
            lacks=LACKS,
        )
        meta: dict[str, Any] = {"format": FORMAT, "device": f"cuda:{devices[counts.argmax()]}"}
        for (text,) in self._rows("TARGET_INFO_GPU", "name"):
            if type(text) is str and text:
                meta["kernels"] = clean(text, 200)
                break
        return Trace([step], meta)

    def _begin_s(self, zero: int) -> float:
        """Unix time of the first event, where the file says when its session began."""
        for (nanoseconds,) in self._rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            return (whole_number(nanoseconds) + zero) * 1e-9
        return 0.0


def _launch_of(did: dict[str, np.ndarray], asked: dict[str, np.ndarray]) -> np.ndarray:
    """The row of the host's call that asked for each piece of work; -1: none. Numbers are those of a process."""
    count = len(asked["pid"])
    pids = np.unique(np.append(asked["pid"], did["pid"]), return_inverse=True)[1]
    found, numbers = np.unique(np.append(asked["correlation"], did["correlation"]), return_inverse=True)
    key = np.where(found[numbers] >= 0, pids * np.int64(len(found)) + numbers, -1)
    return lookup(key[:count], np.arange(count), key[count:])


def _modules(
    named: dict[str, np.ndarray], texts: tuple[str, ...], thread: np.ndarray, start: np.ndarray
) -> tuple[tuple[str, ...], np.ndarray]:
    """Of each op the path of the NVTX ranges that it lies in."""
    if not len(named["name"]):
        return (), np.full(len(start), -1, dtype=np.int32)
    inside, parent = innermost(named["thread"], named["start"], named["end"], thread, start)
    paths, known = Names(), {-1: -1}
    parents, names = parent.tolist(), named["name"].tolist()
    for row in np.unique(inside).tolist():
        parts: list[str] = []
        at = row
        while at >= 0 and len(parts) < _MOST_DEPTH:
            parts.append(texts[names[at]])
            at = parents[at]
        if row >= 0:
            known[row] = paths.number(".".join(reversed(parts)))
    return paths.texts(), np.array([known[row] for row in inside.tolist()], dtype=np.int32)


def _time(value: Any) -> int:
    """Nanoseconds, at most some decades."""
    return whole_number(value, 0, 1 << 60)


def _only_reads(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """SQLite asks before it prepares a statement: nothing but reading rows, and the functions of ours."""
    allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = first == "table_info"
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
