"""SQLite exports of Nsight Systems as traces. The files are made by hand, by the documented schema."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_use import memory_use

from chameleon_lab.errors import TraceError
from chameleon_lab.planner import plan
from chameleon_lab.policy import Link
from chameleon_lab.report.trace_report import TraceReport
from chameleon_lab.trace import Direction, Trace
from chameleon_lab.trace.check import check_step
from chameleon_lab.trace.overlap import overlap_of

PID = 42 << 24
THREAD = PID | 42
EPOCH_NS = 1_700_000_000_000_000_000
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
  globalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
"""


def rows() -> dict[str, list[tuple[Any, ...]]]:
    """Two kernels, a copy each way; compute at 100 to 150 and 180 to 220 microseconds after the session's start."""

    def us(*times: float) -> tuple[int, ...]:
        return tuple(int(1000 * time) for time in times)

    return {
        "StringIds": [(1, "void gemm<float>(int)"), (2, "gemm"), (3, "cudaLaunchKernel"), (4, "backward")],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            (*us(180, 220), 0, 1, 7, 4, PID, 1, 2),
            (*us(100, 150), 0, 1, 7, 1, PID, 1, 2),
        ],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [
            (*us(140, 190), 0, 1, 20, 3, PID, 4096, 1),
            (*us(200, 240), 0, 1, 21, 5, PID, 8192, 2),
            (*us(250, 260), 0, 1, 22, 6, PID, 512, 8),
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (*us(10 + 10 * i, 12 + 10 * i), 0, THREAD, i, 3, 0) for i in (1, 3, 4, 5, 6)
        ],
        "NVTX_EVENTS": [
            (*us(5, 65), 59, "step", THREAD, None, 0),
            (*us(15, 45), 59, "forward", THREAD, None, 0),
            (*us(46, 62), 59, None, THREAD, 4, 0),
            (us(1)[0], None, 34, "a mark without an end", THREAD, None, 0),
        ],
        "TARGET_INFO_GPU": [(0, "NVIDIA H100 80GB HBM3")],
        "TARGET_INFO_SESSION_START_TIME": [(EPOCH_NS,)],
    }


def export(path: Path, tables: dict[str, list[tuple[Any, ...]]], schema: str = SCHEMA) -> Path:
    path.unlink(missing_ok=True)
    file = sqlite3.connect(path)
    file.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = MEMORY;")
    file.executescript(schema)
    for name, values in tables.items():
        if values:
            places = ", ".join("?" * len(values[0]))
            file.executemany(f"INSERT INTO {name} VALUES ({places})", values)
    file.commit()
    file.close()
    return path


def test_kernels_copies_and_ranges(tmp_path: Path) -> None:
    path = export(tmp_path / "report", rows())
    before = path.read_bytes()
    trace = Trace.open(path)
    step = trace.last
    check_step(step)
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["report"]
    assert trace.meta == {
        "format": "Nsight Systems SQLite export",
        "device": "cuda:0",
        "kernels": "NVIDIA H100 80GB HBM3",
    }
    assert [step.op_name(op) for op in range(len(step.ops))] == [
        "gemm",
        "Memcpy HtoD",
        "gemm",
        "Memcpy DtoH",
        "Memcpy on the device",
    ]
    assert [step.module_path(int(module)) for module in step.ops.module] == [
        "step.forward",
        "step.forward",
        "step.backward",
        "step.backward",
        "",
    ]
    # The last launch lies behind all ranges, at 70 microseconds.
    # What stays on the device, such as the last copy, is its work as kernels are.
    assert step.kernels.op.tolist() == [0, 2, 4] and step.kernels.stream.tolist() == [7, 7, 22]
    assert step.transfers.direction.tolist() == [Direction.IN, Direction.OUT]
    assert step.transfers.bytes.tolist() == [4096, 8192]
    np.testing.assert_allclose(step.stalls.duration_s, [30e-6, 20e-6], rtol=1e-6)
    assert overlap_of(step) == pytest.approx(1 - 50 / 90)
    assert set(step.mark_names) == {"step", "forward", "backward"}
    assert step.start_s == pytest.approx(EPOCH_NS * 1e-9, abs=1e-3)
    assert TraceReport.of(trace).kernels == 3
    with pytest.raises(TraceError, match="no storages: can't plan"):
        plan(trace, "50%", Link(1e9, 1e9))


def test_two_processes_have_numbers_of_their_own(tmp_path: Path) -> None:
    tables, other = rows(), 43 << 24
    tables["CUPTI_ACTIVITY_KIND_KERNEL"].append((300_000, 310_000, 1, 1, 7, 1, other, 1, 2))
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append((290_000, 291_000, 0, other | 43, 1, 3, 0))
    step = Trace.open(export(tmp_path / "r.sqlite", tables)).last
    check_step(step)
    assert step.kernels.op.tolist() == [0, 2, 4, 5] and step.kernels.device.tolist() == [0, 0, 0, 1]


def test_a_file_with_few_tables_and_older_columns(tmp_path: Path) -> None:
    schema = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, shortName);"
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": [(10, 20, 0, 7, 1)]}
    step = Trace.open(export(tmp_path / "r.sqlite", tables, schema)).last
    check_step(step)
    assert step.op_name(0) == "kernel" and step.kernels.op.tolist() == [0]


def test_computed_columns_are_not_computed(tmp_path: Path) -> None:
    schema = (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end AS (abs(deviceId) + 7), deviceId);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, deviceId) VALUES (1, 2);"
    )
    step = Trace.open(export(tmp_path / "r.sqlite", {}, schema)).last
    assert step.kernels.duration_s.tolist() == [0.0] and step.kernels.device.tolist() == [2]


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE other (a);",
        # A view in a table's place would run what its author wrote.
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT load_extension('/tmp/x.so') AS start;",
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start "
        "FROM r) SELECT start FROM r;",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end);",
    ],
)
def test_a_schema_is_never_trusted(schema: str, tmp_path: Path) -> None:
    path = export(tmp_path / "r.sqlite", {}, schema)
    with pytest.raises(TraceError) as raised:
        Trace.open(path)
    assert str(path) in str(raised.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = export(tmp_path / "r.sqlite", rows()).read_bytes()
    path = tmp_path / "d.sqlite"
    for at in range(16, len(whole), 997):
        for damaged in (whole[:at], whole[:at] + b"\xff" * 40 + whole[at + 40 :]):
            path.write_bytes(damaged)
            try:
                trace = Trace.open(path)
            except TraceError as error:
                assert str(path) in str(error)
                continue
            for step in trace:
                check_step(step)


def test_odd_values_anywhere_do_no_harm(tmp_path: Path) -> None:
    loose = (
        SCHEMA.replace(" INTEGER", "")
        .replace(" TEXT", "")
        .replace(" NOT NULL", "")
        .replace(" PRIMARY KEY", "")
    )
    path = tmp_path / "r.sqlite"
    for odd in (None, (1 << 63) - 1, -(1 << 63), 1e308, "x", b"\xff"):
        for name, values in rows().items():
            for column in range(len(values[0])):
                tables = rows()
                tables[name][0] = (*values[0][:column], odd, *values[0][column + 1 :])
                try:
                    trace = Trace.open(export(path, tables, loose))
                except TraceError:
                    continue
                check_step(trace.last)


@pytest.mark.full
def test_a_large_export_is_read_row_by_row(tmp_path: Path) -> None:
    tables = rows()
    kernel, launch = tables["CUPTI_ACTIVITY_KIND_KERNEL"][0], tables["CUPTI_ACTIVITY_KIND_RUNTIME"][0]
    count = 150_000
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = [
        (1000 * i, 1000 * i + 900, *kernel[2:5], i, *kernel[6:]) for i in range(count)
    ]
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"] = [
        (1000 * i, 1000 * i + 90, *launch[2:4], i, *launch[5:]) for i in range(count)
    ]
    path = export(tmp_path / "r.sqlite", tables)
    taken, ops = memory_use(path)
    # SQLite packs numbers: an event is 30 bytes here, and more in a real file, whose rows have more columns.
    assert ops == count and taken < 10 * path.stat().st_size + (64 << 20)
