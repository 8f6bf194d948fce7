"""A step as text in a policy file: what binding, planning and predicting need of it, and nothing measured.

The text is base64 of zlib-compressed bytes: the length of a JSON header (little-endian uint32), the header, then
every column as int64. A column is stored as differences of neighbours, one plane a byte, which compresses well.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

import numpy as np

from ..errors import PolicyError
from ..trace import Makings, Ops, Residencies, Stalls, StepTrace, Storages, Transfers, Uses
from ..trace.check import check_step

_OPS = ("name", "module", "stage", "live_peak_bytes", "token")
_STORAGES = (
    "bytes",
    "block_bytes",
    "category",
    "module",
    "name",
    "birth_op",
    "birth_ordinal",
    "death_op",
    "movable",
)
_USES = ("op", "storage", "reads", "writes")
_MAKINGS = ("making", "op", "storage", "name", "input", "refusal")
_MOST_BYTES = 1 << 30  # of a file that someone made to fill the memory
_DAMAGES = (
    *(binascii.Error, zlib.error, ValueError, KeyError, TypeError, IndexError, AttributeError),
    *(OverflowError, RecursionError),
)


def encode(step: StepTrace) -> str:
    """The step as text. The same step gives the same text."""
    made_by = step.makings.name[step.makings.name >= 0]
    used = np.unique(np.concatenate([step.ops.name, made_by]))
    columns = {"ops.name": np.searchsorted(used, step.ops.name)}
    columns |= {f"ops.{name}": getattr(step.ops, name) for name in _OPS[1:]}
    columns |= {f"storages.{name}": getattr(step.storages, name) for name in _STORAGES}
    columns |= {f"uses.{name}": getattr(step.uses, name) for name in _USES}
    if (step.uses.part >= 0).any():
        columns["uses.part"] = step.uses.part
    if len(step.makings):
        columns |= {f"makings.{name}": getattr(step.makings, name) for name in _MAKINGS}
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
        raise PolicyError(
            f'step is damaged ({error}): make it "", and the step is recorded anew, or take an older file'
        ) from error


def _step(header: dict[str, Any], columns: dict[str, np.ndarray]) -> StepTrace:
    n, storages = len(columns["ops.name"]), len(columns["storages.bytes"])
    empty, zeros = np.empty(0, dtype=np.int32), np.zeros(n)
    return StepTrace(
        index=int(header["index"]),
        session_stage="Profile",
        start_s=0.0,
        duration_s=float(header["compute_s"]),
        names=tuple(map(str, header["names"])),
        modules=tuple(map(str, header["modules"])),
        labels=tuple(map(str, header["labels"])),
        keeps_host_copies=bool(header.get("keeps_host_copies", True)),
        ops=Ops(
            name=columns["ops.name"].astype(np.int32),
            module=columns["ops.module"].astype(np.int32),
            stage=columns["ops.stage"].astype(np.uint8),
            sequence_nr=np.full(n, -1, dtype=np.int64),
            thread=np.zeros(n, dtype=np.int32),
            stack=np.full(n, -1, dtype=np.int32),
            start_s=zeros,
            duration_s=zeros,
            stall_s=zeros,
            device_s=np.full(n, np.nan),
            live_peak_bytes=columns["ops.live_peak_bytes"],
            token=columns["ops.token"].astype(np.uint32),
            plan_op=np.full(n, -1, dtype=np.int32),
            resident_peak_bytes=columns["ops.live_peak_bytes"],
        ),
        storages=Storages(
            uid=np.full(storages, -1, dtype=np.int64),
            bytes=columns["storages.bytes"],
            block_bytes=columns["storages.block_bytes"],
            category=columns["storages.category"].astype(np.uint8),
            movable=columns["storages.movable"].astype(bool),
            **{
                name: columns[f"storages.{name}"].astype(np.int32)
                for name in ("module", "name", "birth_op", "birth_ordinal", "death_op")
            },
        ),
        uses=Uses(
            op=columns["uses.op"].astype(np.int32),
            storage=columns["uses.storage"].astype(np.int32),
            reads=columns["uses.reads"].astype(bool),
            writes=columns["uses.writes"].astype(bool),
            part=columns["uses.part"].astype(np.int32) if "uses.part" in columns else None,  # type: ignore[arg-type]
        ),
        transfers=Transfers(empty, empty, empty, empty, empty, zeros[:0], zeros[:0], zeros[:0]),
        stalls=Stalls(empty, empty, empty, empty, zeros[:0], zeros[:0]),
        residencies=Residencies(empty, empty, empty, zeros[:0], zeros[:0]),
        makings=Makings(  # the files of older versions have none
            **{name: columns.get(f"makings.{name}", empty).astype(np.int32) for name in _MAKINGS[:-1]},
            refusal=columns.get("makings.refusal", empty).astype(np.uint8),
        ),
    )


def _planes(column: np.ndarray) -> bytes:
    steps = np.diff(column.astype("<i8"), prepend=0).astype("<i8")
    return steps.view(np.uint8).reshape(len(column), 8).T.tobytes()


def _column(planes: bytes, length: int) -> np.ndarray:
    steps = np.frombuffer(planes, dtype=np.uint8).reshape(8, length).T.copy().view("<i8")
    return np.cumsum(steps.reshape(length)).astype(np.int64)
