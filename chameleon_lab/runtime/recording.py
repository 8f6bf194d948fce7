"""From the core's step logs to traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..trace.columns import (
    Declined,
    Makings,
    Marks,
    Ops,
    Pauses,
    Replays,
    Residencies,
    Stalls,
    StepTrace,
    Storages,
    Transfers,
    Uses,
)
from ..trace.stall_parts import stall_parts
from . import core
from .pause_times import PauseTimes, pause_times


def step_trace(
    log: core.StepLog,
    session_stage: str,
    modules: Sequence[str],
    labels: Sequence[str],
    keeps_host_copies: bool = True,
    stacks_of: core.StepLog | None = None,
) -> StepTrace:
    """The columns of one finished step. Copies that have not ended yet get NaN times.

    ``stacks_of``: a step with the same ops whose Python stacks are this one's too. None: its own.
    """
    ops, storages, uses = log.ops(), log.storages(), log.uses()
    replays, declined, makings, marks = log.replays(), log.declined(), log.makings(), log.marks()
    stacked = log if stacks_of is None else stacks_of
    paused = pause_times(log)
    since_start, when_done, tick_s = _clock(log, paused)

    forms, form = _forms(storages["dtype"], storages["shape"])
    return StepTrace(
        index=log.index,
        session_stage=session_stage,
        keeps_host_copies=keeps_host_copies,
        start_s=core.seconds(log.start_ticks),
        duration_s=(log.end_ticks - log.start_ticks - paused.ticks) * tick_s,
        names=tuple(core.op_names()),
        modules=tuple(modules),
        labels=tuple(labels),
        stacks=tuple(stacked.stacks()),
        ops=Ops(
            name=ops["name"].copy(),
            module=ops["module"].copy(),
            stage=ops["stage"].copy(),
            sequence_nr=ops["sequence_nr"].copy(),
            thread=ops["thread"].copy(),
            stack=stacked.ops()["stack"].copy(),
            start_s=since_start(ops["start_ticks"]),
            duration_s=(ops["end_ticks"] - ops["start_ticks"]) * tick_s,
            stall_s=ops["stall_ticks"] * tick_s,
            device_s=np.where(ops["device_ticks"] < 0, np.nan, ops["device_ticks"] * tick_s),
            live_peak_bytes=ops["live_peak_bytes"].copy(),
            resident_peak_bytes=ops["resident_peak_bytes"].copy(),
            token=ops["token"].copy(),
            plan_op=ops["plan_op"].copy(),
        ),
        storages=Storages(
            uid=storages["uid"].copy(),
            bytes=storages["bytes"].copy(),
            block_bytes=storages["block_bytes"].copy(),
            category=storages["category"].copy(),
            module=storages["module"].copy(),
            name=storages["label"].copy(),
            birth_op=storages["birth_op"].copy(),
            birth_ordinal=storages["birth_ordinal"].copy(),
            death_op=storages["death_op"].copy(),
            movable=storages["movable"].astype(bool),
            form=form,
        ),
        uses=Uses(
            op=uses["op"].copy(),
            storage=uses["storage"].copy(),
            reads=uses["reads"].astype(bool),
            writes=uses["writes"].astype(bool),
            part=uses["part"].copy(),
        ),
        transfers=_transfers(log.transfers(), when_done, since_start),
        stalls=_stalls(log.stalls(), when_done, since_start, tick_s),
        residencies=_residencies(log.residencies(), since_start),
        replays=Replays(
            op=replays["op"].copy(),
            storage=replays["storage"].copy(),
            name=replays["name"].copy(),
            cause=replays["cause"].copy(),
            bytes=replays["bytes"].copy(),
            start_s=since_start(replays["start_ticks"]),
            duration_s=(replays["end_ticks"] - replays["start_ticks"]) * tick_s,
        ),
        declined=Declined(
            op=declined["op"].copy(),
            storage=declined["storage"].copy(),
            name=declined["name"].copy(),
            refusal=declined["refusal"].copy(),
        ),
        makings=Makings(
            making=makings["making"].copy(),
            op=makings["op"].copy(),
            storage=makings["storage"].copy(),
            name=makings["name"].copy(),
            input=makings["input"].copy(),
            refusal=makings["refusal"].copy(),
        ),
        pauses=Pauses(
            op=np.searchsorted(ops["start_ticks"], paused.start_ticks, side="right").astype(np.int32),
            kind=paused.kind,
            at_s=since_start(paused.start_ticks),
            duration_s=(paused.end_ticks - paused.start_ticks) * tick_s,
        ),
        forms=forms,
        mark_names=tuple(core.mark_names()),
        marks=Marks(
            name=marks["name"].copy(),
            thread=marks["thread"].copy(),
            from_op=marks["from_op"].copy(),
            to_op=marks["to_op"].copy(),
            start_s=np.maximum(since_start(marks["start_ticks"]), 0.0),
            duration_s=since_start(marks["end_ticks"]) - np.maximum(since_start(marks["start_ticks"]), 0.0),
        ),
        truncated_ops=log.truncated_ops,
        refusals=log.refusals,
        soft_ooms=log.soft_ooms,
        alloc_retries=log.alloc_retries,
        device_allocs=log.device_allocs,
        device_frees=log.device_frees,
        device_syncs=log.device_syncs,
        useless_bytes=log.useless_bytes,
    )


_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""torch's names of what c10 calls otherwise than by the lower case of it."""


def _forms(dtype: np.ndarray, shape: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Dtypes and shapes in words, those that occur; and of each storage the index of its own, -1 unknown."""
    shapes = core.shapes() if len(shape) and shape.max() >= 0 else []
    pairs, index = np.unique(dtype.astype(np.int64) << 32 | (shape.astype(np.int64) + 1), return_inverse=True)
    texts: list[str] = []
    numbers = []
    for pair in pairs.tolist():
        kind, number = pair >> 32, (pair & 0xFFFFFFFF) - 1
        if kind < 0:
            numbers.append(-1)
            continue
        name = core.SCALAR_TYPES[kind]
        sizes = f" [{', '.join(map(str, shapes[number]))}]" if number >= 0 else ""
        numbers.append(len(texts))
        texts.append(_DTYPES.get(name, name.lower()) + sizes)
    return tuple(texts), np.array(numbers, dtype=np.int32)[index] if len(numbers) else index.astype(np.int32)


_Times = Callable[[np.ndarray], np.ndarray]


def _clock(log: core.StepLog, paused: PauseTimes) -> tuple[_Times, _Times, float]:
    """Ticks as seconds of the step, on a clock that stands still in pauses; the same with NaN for 0; and a tick."""
    tick_s, stands_still = core.seconds_per_tick(), paused.before()

    def since_start(ticks: np.ndarray) -> np.ndarray:
        still = stands_still(ticks) if len(paused.kind) else 0
        return (ticks - log.start_ticks - still) * tick_s

    def when_done(ticks: np.ndarray) -> np.ndarray:
        return np.where(ticks == 0, np.nan, since_start(ticks))

    return since_start, when_done, tick_s


def stall_totals(log: core.StepLog) -> dict[str, float]:
    """Why a step stalled, in seconds: see :mod:`chameleon_lab.trace.stall_parts`. Reads no more than that takes."""
    since_start, when_done, tick_s = _clock(log, pause_times(log))
    return stall_parts(
        _stalls(log.stalls(), when_done, since_start, tick_s),
        _transfers(log.transfers(), when_done, since_start),
        _residencies(log.residencies(), since_start),
        log.op_count,
    ).totals()


def _transfers(rows: np.ndarray, when_done: _Times, since_start: _Times) -> Transfers:
    return Transfers(
        storage=rows["storage"].copy(),
        direction=rows["direction"].copy(),
        cause=rows["cause"].copy(),
        bytes=rows["bytes"].copy(),
        issue_op=rows["issue_op"].copy(),
        issue_s=since_start(rows["issue_ticks"]),
        start_s=when_done(rows["start_ticks"]),
        end_s=when_done(rows["end_ticks"]),
        due_s=when_done(rows["due_ticks"]),
    )


def _stalls(rows: np.ndarray, when_done: _Times, since_start: _Times, tick_s: float) -> Stalls:
    return Stalls(
        op=rows["op"].copy(),
        storage=rows["storage"].copy(),
        direction=rows["direction"].copy(),
        cause=rows["cause"].copy(),
        start_s=since_start(rows["start_ticks"]),
        duration_s=(rows["end_ticks"] - rows["start_ticks"]) * tick_s,
        due_s=when_done(rows["due_ticks"]),
        issue_s=when_done(rows["issue_ticks"]),
        copy_start_s=when_done(rows["copy_start_ticks"]),
        copy_end_s=when_done(rows["copy_end_ticks"]),
        room_bytes=rows["room_bytes"].copy(),
        room_storage=rows["room_storage"].copy(),
    )


def _residencies(rows: np.ndarray, since_start: _Times) -> Residencies:
    return Residencies(
        storage=rows["storage"].copy(),
        from_op=rows["from_op"].copy(),
        to_op=rows["to_op"].copy(),
        from_s=since_start(rows["from_ticks"]),
        to_s=since_start(rows["to_ticks"]),
    )
