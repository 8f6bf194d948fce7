"""From the core's step logs to traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..trace.columns import (
    KINDS,
    Declined,
    Makings,
    Marks,
    Ops,
    Pauses,
    Replays,
    Residencies,
    Stalls,
    Storages,
    Transfers,
    Uses,
)
from ..trace.stall_parts import stall_parts
from ..trace.step import StepTrace
from ..trace.table import StepTable
from . import core
from .pause_times import PauseTimes, pause_times

_COUNTERS = [name for name, kind in KINDS.items() if kind is int and name not in ("index", "truncated_ops")]

_T = TypeVar("_T", bound=StepTable)


def step_trace(
    runtime: core.Runtime,
    log: core.StepLog,
    session_stage: str,
    modules: Sequence[str],
    labels: Sequence[str],
    keeps_host_copies: bool = True,
    stacks_of: core.StepLog | None = None,
) -> StepTrace:
    """The columns of one finished step of a runtime. Copies that have not ended yet get NaN times.

    ``stacks_of``: a step with the same ops whose Python stacks are this one's too. None: its own.
    """
    ops, storages, marks, counts = log.ops(), log.storages(), log.marks(), log.counts()
    stacked = log if stacks_of is None else stacks_of
    paused = pause_times(log)
    clock = _Clock(log, paused)
    forms, form = _forms(runtime, storages["dtype"], storages["shape"])
    marked_s = np.maximum(clock.since_start(marks["start_ticks"]), 0.0)
    return StepTrace(
        session_stage=session_stage,
        keeps_host_copies=keeps_host_copies,
        index=log.index,
        start_s=core.seconds(log.start_ticks),
        duration_s=(log.end_ticks - log.start_ticks - paused.ticks) * clock.tick_s,
        names=tuple(core.op_names()),
        modules=tuple(modules),
        labels=tuple(labels),
        stacks=tuple(stacked.stacks()),
        reasons=core.REFUSALS,
        ops=_table(
            Ops,
            ops,
            clock,
            stack=stacked.ops()["stack"].copy(),
            stall_s=ops["stall_ticks"] * clock.tick_s,
            device_s=np.where(ops["device_ticks"] < 0, np.nan, ops["device_ticks"] * clock.tick_s),
        ),
        storages=_table(Storages, storages, clock, name=storages["label"].copy(), form=form),
        uses=_table(Uses, log.uses(), clock),
        transfers=_table(Transfers, log.transfers(), clock),
        stalls=_table(Stalls, log.stalls(), clock),
        residencies=_table(Residencies, log.residencies(), clock),
        replays=_table(Replays, log.replays(), clock),
        declined=_table(Declined, log.declined(), clock),
        makings=_table(Makings, log.makings(), clock),
        pauses=Pauses(
            op=np.searchsorted(ops["start_ticks"], paused.start_ticks, side="right").astype(np.int32),
            kind=paused.kind,
            at_s=clock.since_start(paused.start_ticks),
            duration_s=(paused.end_ticks - paused.start_ticks) * clock.tick_s,
        ),
        forms=forms,
        mark_names=tuple(runtime.mark_names()),
        marks=_table(
            Marks,
            marks,
            clock,
            start_s=marked_s,
            duration_s=clock.since_start(marks["end_ticks"]) - marked_s,
        ),
        truncated_ops=log.truncated_ops,
        lacks=log.lost_to and f"records of it were lost ({log.lost_to}): record it again",
        **_counters(counts),
    )


def _counters(counts: Mapping[str, int]) -> dict[str, Any]:
    return {name: counts[name] for name in _COUNTERS}


def _table(kind: type[_T], rows: np.ndarray, clock: _Clock, **known: Any) -> _T:
    """The core's rows as a table: what is in seconds there is in ticks here, and 0 where nobody knows when."""
    for name, column in kind.declared().items():
        if name in known:
            continue
        if column.unit != "s":
            known[name] = rows[name].astype(column.dtype)
        elif name == "duration_s":
            known[name] = (rows["end_ticks"] - rows["start_ticks"]) * clock.tick_s
        else:
            ticks = rows[name.removesuffix("_s") + "_ticks"]
            known[name] = clock.when_done(ticks) if column.unknown else clock.since_start(ticks)
    return kind(**known)


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


def _forms(runtime: core.Runtime, dtype: np.ndarray, shape: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """Dtypes and shapes in words, those that occur; and of each storage the index of its own, -1 unknown."""
    shapes = runtime.shapes() if len(shape) and shape.max() >= 0 else []
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


class _Clock:
    """Ticks as seconds of the step, on a clock that stands still in pauses."""

    def __init__(self, log: core.StepLog, paused: PauseTimes) -> None:
        self.tick_s = core.seconds_per_tick()
        self._start = log.start_ticks
        self._stands_still: Callable[[np.ndarray], np.ndarray] | None = (
            paused.before() if len(paused.kind) else None
        )

    def since_start(self, ticks: np.ndarray) -> np.ndarray:
        still = 0 if self._stands_still is None else self._stands_still(ticks)
        return (ticks - self._start - still) * self.tick_s

    def when_done(self, ticks: np.ndarray) -> np.ndarray:
        """NaN where it has not happened."""
        return np.where(ticks == 0, np.nan, self.since_start(ticks))


def stall_totals(log: core.StepLog) -> dict[str, float]:
    """Why a step stalled, in seconds: see :mod:`chameleon_lab.trace.stall_parts`. Reads no more than that takes."""
    clock = _Clock(log, pause_times(log))
    return stall_parts(
        _table(Stalls, log.stalls(), clock),
        _table(Transfers, log.transfers(), clock),
        _table(Residencies, log.residencies(), clock),
        log.op_count,
    ).totals()
