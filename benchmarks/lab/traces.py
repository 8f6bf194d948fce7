"""Traces of any size for the panel's benchmark: one real step, repeated on one time axis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import chameleon_lab as cl
from chameleon_lab.trace import Ops, Residencies, Stalls, StepTrace, Storages, Trace, Transfers, Uses

from .. import measure
from ..models import CASES

LINK = "1GiB/s"
FRACTION = 4
_STEPS = 5


def recorded(model: str, tiny: bool) -> Trace:
    """A step of a model that trains under a plan in a quarter of its peak, on the ``cpu`` device."""
    case = CASES[model]
    peak = measure.train(case, 1, lambda: cl.Session(None, device="cpu"), tiny=tiny).live_peak_bytes
    generator = torch.Generator().manual_seed(measure.SEED)
    with cl.Session(peak // FRACTION, device="cpu", link=LINK) as session:
        job = case.build(measure.SEED, tiny)
        for _ in range(measure.SKIPPED_STEPS + _STEPS):
            job.train_step(job.make_batch(generator))
        return Trace([session.trace().last], session.trace_meta())


def events(step: StepTrace) -> int:
    """What the panel has to draw or look up: ops, their uses of storages, transfers, stalls and residencies."""
    tables = (step.ops, step.uses, step.transfers, step.stalls, step.residencies)
    return sum(len(table) for table in tables)


def enlarged(step: StepTrace, least_events: int, least_storages: int = 0, least_ops: int = 0) -> StepTrace:
    """The step repeated until it has so many events, storages and ops."""

    def counts(of: StepTrace) -> tuple[int, int, int]:
        return events(of), len(of.storages), len(of.ops)

    once, twice, least = counts(step), counts(repeat(step, 2)), (least_events, least_storages, least_ops)
    # What lives through the step is there once, however often it is repeated.
    times = 1 + max(
        0, *(-(-(want - one) // (two - one)) for want, one, two in zip(least, once, twice, strict=True))
    )
    return repeat(step, times)


def repeat(step: StepTrace, times: int) -> StepTrace:
    """One step whose ops are those of ``step``, ``times`` over.

    What lives through the step stays the same storage all along; the others are made anew each time. What the step
    before had left behind, or this one leaves, begins and ends with its repetition.
    """
    n, storages = len(step.ops), step.storages
    stays = (storages.birth_op < 0) & (storages.death_op >= n)
    kept, made = np.flatnonzero(stays), np.flatnonzero(~stays)
    turn = np.arange(times)
    # Row of storage s in repetition r: those that stay come first.
    row = np.empty((times, len(storages) + 1), dtype=np.int64)
    row[:, kept] = np.arange(len(kept))
    row[:, made] = len(kept) + turn[:, None] * len(made) + np.arange(len(made))
    row[:, -1] = -1

    def tiled(values: np.ndarray, shift: float | int = 0) -> np.ndarray:
        moved = np.tile(values, times)
        if shift:
            by = np.repeat(turn * shift, len(values))
            # -1 says that there is none, in the columns that hold indices.
            moved = np.where(moved < 0, moved, moved + by) if values.dtype.kind == "i" else moved + by
        return moved.astype(values.dtype)

    def rows(values: np.ndarray) -> np.ndarray:
        return row[:, values].ravel().astype(np.int32)

    length = step.duration_s
    columns = {name: tiled(column) for name, column in step.ops.columns().items()}
    columns["start_s"] = tiled(step.ops.start_s, length)
    columns["sequence_nr"] = tiled(step.ops.sequence_nr, int(step.ops.sequence_nr.max(initial=0)) + 1)
    ends = n * times
    again = {
        name: np.concatenate([column[kept], np.tile(column[made], times)])
        for name, column in storages.columns().items()
    }
    begins = np.repeat(turn * n, len(made))
    birth, death = (np.tile(column[made], times) for column in (storages.birth_op, storages.death_op))
    again["birth_op"][len(kept) :] = np.maximum(birth, 0) + begins
    again["death_op"][len(kept) :] = np.minimum(death, n - 1) + begins
    again["death_op"][: len(kept)] = ends
    again["uid"] = np.arange(len(again["uid"]), dtype=np.int64)
    return replace(
        step,
        duration_s=length * times,
        ops=Ops(**columns),
        storages=Storages(**again),
        uses=Uses(
            tiled(step.uses.op, n),
            rows(step.uses.storage),
            *(tiled(getattr(step.uses, name)) for name in ("reads", "writes", "part")),
        ),
        transfers=Transfers(
            rows(step.transfers.storage),
            *(tiled(getattr(step.transfers, name)) for name in ("direction", "cause", "bytes")),
            tiled(step.transfers.issue_op, n),
            *(tiled(getattr(step.transfers, name), length) for name in ("issue_s", "start_s", "end_s")),
        ),
        stalls=Stalls(
            tiled(step.stalls.op, n),
            rows(step.stalls.storage),
            *(tiled(getattr(step.stalls, name)) for name in ("direction", "cause")),
            tiled(step.stalls.start_s, length),
            tiled(step.stalls.duration_s),
        ),
        residencies=_joined(
            rows(step.residencies.storage),
            *(tiled(getattr(step.residencies, name), n) for name in ("from_op", "to_op")),
            *(tiled(getattr(step.residencies, name), length) for name in ("from_s", "to_s")),
        ),
    )


def _joined(
    storage: np.ndarray, from_op: np.ndarray, to_op: np.ndarray, from_s: np.ndarray, to_s: np.ndarray
) -> Residencies:
    """Residencies of which those that go on over the end of a repetition are one."""
    order = np.lexsort((from_op, storage))
    storage, from_op, to_op, from_s, to_s = (
        column[order] for column in (storage, from_op, to_op, from_s, to_s)
    )
    begins = np.append(True, (storage[1:] != storage[:-1]) | (from_op[1:] != to_op[:-1]))
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(storage)) - 1
    rows = Residencies(storage[first], from_op[first], to_op[last], from_s[first], to_s[last])
    order = np.argsort(rows.to_op, kind="stable")
    return Residencies(**{name: column[order] for name, column in rows.columns().items()})


def allocations(step: StepTrace) -> list[tuple[int, int]]:
    """The residencies as an allocator's log, in order: (block, bytes) when one comes, (block, 0) when it goes."""
    rows = step.residencies
    lasts = np.flatnonzero(rows.to_op > rows.from_op)
    goes = lasts[rows.to_op[lasts] < len(step.ops)]  # what is there at the end stays
    block = np.concatenate([lasts, goes])
    size = np.concatenate(
        [step.storages.block_bytes[rows.storage[lasts]], np.zeros(len(goes), dtype=np.int64)]
    )
    op = np.concatenate([rows.from_op[lasts], rows.to_op[goes]])
    order = np.lexsort((size > 0, op))  # room is made before it is taken
    return list(zip(block[order].tolist(), size[order].tolist(), strict=True))
