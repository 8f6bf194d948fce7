"""A step as a policy should run it, in the columns of a recorded one: so the panel draws drafts as it draws steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...planner import StallCause, simulate
from ...planner.memory import StepMemory
from ...planner.program import bind
from ...planner.replay import PlannedReplays
from ...planner.simulate import Prediction
from ...policy import Policy
from ...policy.model import NEVER
from ...trace import (
    Cause,
    Declined,
    Direction,
    Pauses,
    Replays,
    Residencies,
    Stalls,
    StepTrace,
    Transfers,
)

_Stretches = dict[int, list[tuple[int, int]]]
"""Of each storage, ops from which on and up to which."""

STAGE = "Draft"
"""What stands in the place of the session's stage."""


def predicted_step(policy: Policy, step: StepTrace, op_times: np.ndarray) -> StepTrace:
    """The step in the steady state under a policy; see :func:`~chameleon_lab.planner.simulate`.

    Ops, storages and uses are those of ``step``, at the times that ``op_times`` (compute seconds of each, shape (ops,))
    and the predicted stalls and replays give them; what moved, waited and ran again is the prediction.
    """
    memory, swaps, replays, _ = bind(policy, step, op_times)
    served, _ = replays.served(memory, swaps)
    found = simulate(step, policy, op_times=op_times)
    waits = found.waits
    waited_s = np.bincount(waits.op, waits.duration_s * ~waits.after_replays, minlength=memory.ops)
    n = memory.ops
    took = op_times + found.stall_op_s + found.replay_op_s
    starts = np.concatenate([[0.0], np.cumsum(took)])
    # What no op uses has left in an earlier step.
    free_op = np.where(served.ordinal == NEVER, 0, served.free_op)
    away = _away_stretches(
        memory.row[np.concatenate([served.storage, replays.storage])],
        np.concatenate([free_op, replays.out_op + 1]),
        np.concatenate([served.in_op, replays.in_op]),
        n,
    )
    return replace(
        step,
        session_stage=STAGE,
        duration_s=float(starts[-1]),
        ops=replace(
            step.ops,
            start_s=starts[:-1],
            duration_s=took,
            stall_s=found.stall_op_s,
            resident_peak_bytes=found.resident_bytes,
        ),
        transfers=_transfers(found, starts),
        stalls=_stalls(found),
        residencies=_residencies(step, away, starts),
        replays=_replays(step, replays, memory, starts[:-1] + waited_s),
        pauses=Pauses.none(),
        declined=Declined.none(),
    )


def _away_stretches(row: np.ndarray, free_op: np.ndarray, in_op: np.ndarray, ops: int) -> _Stretches:
    """By storage, the ops from which on and up to which it is off the device, ascending; cut at the step's ends."""
    found: _Stretches = {}
    for storage, free, back in zip(row.tolist(), free_op.tolist(), in_op.tolist(), strict=True):
        back = ops if back == NEVER else back
        pieces = [(free, min(back, ops)), (max(free - ops, 0), back - ops)]
        found.setdefault(storage, []).extend((start, end) for start, end in pieces if start < end)
    return {storage: sorted(pieces) for storage, pieces in found.items()}


def _residencies(step: StepTrace, away: _Stretches, starts: np.ndarray) -> Residencies:
    """What is left of each storage's life."""
    n, storages = len(step.ops), step.storages
    begin = np.maximum(storages.birth_op, 0).tolist()
    end = np.minimum(storages.death_op.astype(np.int64) + 1, n).tolist()
    rows: list[tuple[int, int, int]] = []
    for row in range(len(storages)):
        at = begin[row]
        for start, stop in away.get(row, ()):
            if start > at:
                rows.append((row, at, min(start, end[row])))
            at = max(at, stop)
        if at < end[row]:
            rows.append((row, at, end[row]))
    storage, from_op, to_op = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    order = np.argsort(to_op, kind="stable")
    storage, from_op, to_op = storage[order], from_op[order], to_op[order]
    return Residencies(
        storage.astype(np.int32),
        from_op.astype(np.int32),
        to_op.astype(np.int32),
        starts[from_op],
        starts[to_op],
    )


def _transfers(found: Prediction, starts: np.ndarray) -> Transfers:
    copies = found.copies
    out = copies.direction == Direction.OUT
    issue_s = starts[np.where(out, copies.issue_op + 1, copies.issue_op)]
    order = np.lexsort((copies.start_s, issue_s))
    # What the step before has left the link to do is shown from the step's start on.
    start_s, end_s = np.maximum(copies.start_s, 0.0), np.maximum(copies.end_s, 0.0)
    return Transfers(
        storage=copies.storage[order].astype(np.int32),
        direction=copies.direction[order],
        cause=np.full(len(order), Cause.PLANNED, dtype=np.uint8),
        bytes=copies.bytes[order],
        issue_op=copies.issue_op[order].astype(np.int32),
        issue_s=np.minimum(issue_s, start_s)[order],
        start_s=start_s[order],
        end_s=end_s[order],
    )


def _stalls(found: Prediction) -> Stalls:
    waits = found.waits
    demand = waits.cause == list(StallCause).index(StallCause.DEMAND)
    return Stalls(
        op=waits.op.astype(np.int32),
        storage=waits.storage.astype(np.int32),
        direction=waits.direction,
        cause=np.where(demand, Cause.DEMAND, Cause.PLANNED).astype(np.uint8),
        start_s=found.wait_start_s,
        duration_s=waits.duration_s,
    )


def _replays(step: StepTrace, drops: PlannedReplays, memory: StepMemory, begin_s: np.ndarray) -> Replays:
    """The ops that run again, one after the other, before the op that they run for: from its ``begin_s`` on."""
    rows: list[tuple[int, int, int, int, float, float]] = []
    at: dict[int, float] = {}
    sizes = step.storages.block_bytes.tolist()
    order = np.argsort(drops.in_op, kind="stable").tolist()
    storages, ops = memory.row[drops.storage].tolist(), drops.in_op.tolist()
    for storage, op, chain in ((storages[k], ops[k], drops.chains[k]) for k in order):
        for made, name, seconds in zip(chain.made, chain.names, chain.op_seconds, strict=True):
            start = at.setdefault(op, float(begin_s[op]))
            rows.append((op, storage, name, sizes[made], start, seconds))
            at[op] = start + seconds
    return Replays(
        op=np.array([row[0] for row in rows], dtype=np.int32),
        storage=np.array([row[1] for row in rows], dtype=np.int32),
        name=np.array([row[2] for row in rows], dtype=np.int32),
        cause=np.full(len(rows), Cause.PLANNED, dtype=np.uint8),
        bytes=np.array([row[3] for row in rows], dtype=np.int64),
        start_s=np.array([row[4] for row in rows], dtype=np.float64),
        duration_s=np.array([row[5] for row in rows], dtype=np.float64),
    )
