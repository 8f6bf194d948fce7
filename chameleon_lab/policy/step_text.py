"""A step as text in a policy file: the columns for binding, planning and predicting, without measurements.

The text is base64 of zlib-compressed bytes: the length of a JSON header (little-endian uint32), the header, then
every column as int64. A column is stored as differences of neighbors, one plane a byte, which compresses well.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

import numpy as np

from ..errors import PolicyError
from ..trace import Makings, StepTrace
from ..trace.check import check_step
from ..trace.columns import TABLES

_KEPT = {
    "ops": ("name", "module", "stage", "live_peak_bytes", "token"),
    "storages": ("bytes", "block_bytes", "category", "module", "name")
    + ("birth_op", "birth_ordinal", "death_op", "movable"),
    "uses": ("op", "storage", "reads", "writes"),
    "makings": tuple(Makings.declared()),
}
_MOST_BYTES = 1 << 30  # of a file that someone made to fill the memory
_DAMAGES = (
    *(binascii.Error, zlib.error, ValueError, KeyError, TypeError, IndexError, AttributeError),
    *(OverflowError, RecursionError),
)


def encode(step: StepTrace) -> str:
    """The step as text. The same step gives the same text."""
    made_by = step.makings.name[step.makings.name >= 0]
    used = np.unique(np.concatenate([step.ops.name, made_by]))
    columns = {
        f"{table}.{name}": getattr(getattr(step, table), name)
        for table, names in _KEPT.items()
        for name in names
        if table != "makings" or len(step.makings)
    }
    columns["ops.name"] = np.searchsorted(used, step.ops.name)
    if (step.uses.part >= 0).any():
        columns["uses.part"] = step.uses.part
    if len(step.makings):
        known = step.makings.name >= 0
        columns["makings.name"] = np.where(known, np.searchsorted(used, step.makings.name), -1)
    header = {
        "index": step.index,
        "compute_s": max(float(step.duration_s) - float(step.ops.stall_s.sum()), 0.0),
        "names": [step.names[name] for name in used.tolist()],
        "modules": list(step.modules),
        "labels": list(step.labels),
        "columns": {name: len(column) for name, column in columns.items()},
    }
    if len(step.makings):
        header["reasons"] = list(step.reasons)
    if not step.keeps_host_copies:
        header["keeps_host_copies"] = False
    head = json.dumps(header, separators=(",", ":")).encode()
    planes = [_planes(column) for column in columns.values()]
    data = b"".join([len(head).to_bytes(4, "little"), head, *planes])
    return base64.b64encode(zlib.compress(data, 6)).decode()


def decode(text: str) -> StepTrace:
    """The step behind :func:`encode`'s text. It has no times but its duration, no uids and no transfers.

    Raises PolicyError if the text is damaged.
    """
    try:
        engine = zlib.decompressobj()
        data = engine.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if not engine.eof:
            raise ValueError("it ends too soon, or is too large")
        begin = 4 + int.from_bytes(data[:4], "little")
        header: dict[str, Any] = json.loads(data[4:begin])
        columns = {}
        for name, length in header["columns"].items():
            columns[name] = _column(data[begin : begin + 8 * length], length)
            begin += 8 * length
        step = _step(header, columns)
        check_step(step)
        return step
    except _DAMAGES as error:
        raise PolicyError(f'step is damaged ({error}): make it "", and the step is recorded anew') from error


def _step(header: dict[str, Any], columns: dict[str, np.ndarray]) -> StepTrace:
    tables = {
        table: {
            name: columns[f"{table}.{name}"].astype(column.dtype)
            for name, column in kind.declared().items()
            if f"{table}.{name}" in columns
        }
        for table, kind in TABLES.items()
    }
    zeros = np.zeros(len(tables["ops"]["name"]))
    tables["ops"] |= {"start_s": zeros, "duration_s": zeros}
    tables["ops"]["resident_peak_bytes"] = tables["ops"]["live_peak_bytes"]
    recorded: dict[str, Any] = {
        name: kind(**tables[name]) if tables[name] else kind.none() for name, kind in TABLES.items()
    }
    return StepTrace(
        index=int(header["index"]),
        session_stage="Profile",
        start_s=0.0,
        duration_s=float(header["compute_s"]),
        names=tuple(map(str, header["names"])),
        modules=tuple(map(str, header["modules"])),
        labels=tuple(map(str, header["labels"])),
        reasons=tuple(map(str, header.get("reasons", ("",)))),
        keeps_host_copies=bool(header.get("keeps_host_copies", True)),
        **recorded,
    )


def _planes(column: np.ndarray) -> bytes:
    steps = np.diff(column.astype("<i8"), prepend=0).astype("<i8")
    return steps.view(np.uint8).reshape(len(column), 8).T.tobytes()


def _column(planes: bytes, length: int) -> np.ndarray:
    steps = np.frombuffer(planes, dtype=np.uint8).reshape(8, length).T.copy().view("<i8")
    return np.cumsum(steps.reshape(length)).astype(np.int64)
