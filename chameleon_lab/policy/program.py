"""From a policy to what the C++ executor runs: integer arrays bound to the storages and ops of one step.

A decision names a storage by its key and a gap by its ordinal, so it can be bound to a step other than the
one it was made for. What does not fit is reported, and never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace import StepTrace
from .constraints import untouched
from .memory import MIN_SWAP_BYTES, StepMemory, Swaps, step_memory
from .model import NEVER, Decision, Policy, fingerprint

FREE, SWAP_IN, SWAP_OUT = 0, 1, 2
"""Kinds of action, in the order in which they fire. FREE and SWAP_IN fire before their op, SWAP_OUT after it."""


@dataclass(frozen=True)
class Program:
    """A compiled policy: ``S`` plan storages, ``U`` uses of theirs, ``A`` actions.

    Plan storages are all that are movable and big enough, with decisions or without, since eviction under pressure
    asks for the next use of each.
    """

    ops: int
    fingerprint: str
    """Of the step that the positions belong to, see :func:`chameleon_lab.policy.model.fingerprint`."""
    storage_row: np.ndarray
    """int32 (S,): row in ``StepTrace.storages``"""
    birth_op: np.ndarray
    """int32 (S,): -1 if alive when the step began"""
    birth_ordinal: np.ndarray
    """int32 (S,): number among the allocations of the birth op, or -1"""
    uid: np.ndarray
    """int64 (S,): of persistent storages; -1 for the rest, which have another uid in each step"""
    block_bytes: np.ndarray
    """int64 (S,)"""
    uses_offset: np.ndarray
    """int64 (S+1,): the uses of plan storage ``s`` are ``uses_op[uses_offset[s]:uses_offset[s+1]]``"""
    uses_op: np.ndarray
    """int32 (U,): ascending for each storage; the birth is one"""
    evict_last: np.ndarray
    """bool (S,): eviction under pressure takes these only where nothing else is left"""
    action_op: np.ndarray
    """int32 (A,): in [0, ops); actions past the step's end are wrapped into the next step"""
    action_kind: np.ndarray
    """uint8 (A,): FREE, SWAP_IN or SWAP_OUT"""
    action_storage: np.ndarray
    """int32 (A,): plan storage"""
    unmatched: tuple[str, ...]
    """Decisions that found no gap in the step, and why"""


def compile_program(policy: Policy, step: StepTrace) -> Program:
    """Bind a policy to a step, the one it was made for or another.

    Actions are sorted by op, then kind; copies issued at one op go in the order in which they will be needed.
    Where a decision's uses are at other ops than it says, its free and its swap-in keep their relative place
    in the gap.
    """
    memory, swaps, unmatched = bind(policy, step)
    returns = swaps.returns
    # At one op and kind, the more urgent copy first: the nearest use of a swap-in, the nearest free of a
    # swap-out.
    op = np.concatenate([swaps.free_op, swaps.in_op[returns], swaps.out_op]) % memory.ops
    kind = np.repeat([FREE, SWAP_IN, SWAP_OUT], [len(swaps), int(returns.sum()), len(swaps)])
    storage = np.concatenate([swaps.storage, swaps.storage[returns], swaps.storage])
    urgency = np.concatenate(
        [
            np.zeros(len(swaps), dtype=np.int64),
            (swaps.use_op - swaps.in_op)[returns],
            swaps.free_op - swaps.out_op,
        ]
    )
    order = np.lexsort((storage, urgency, kind, op))
    columns = step.storages
    return Program(
        ops=memory.ops,
        fingerprint=fingerprint(step),
        storage_row=memory.row.astype(np.int32),
        birth_op=columns.birth_op[memory.row].astype(np.int32),
        birth_ordinal=columns.birth_ordinal[memory.row].astype(np.int32),
        uid=np.where(memory.persistent, columns.uid[memory.row], -1).astype(np.int64),
        block_bytes=memory.block_bytes,
        uses_offset=memory.uses_offset.astype(np.int64),
        uses_op=memory.uses_op.astype(np.int32),
        evict_last=untouched(step, policy.edits)[memory.row],
        action_op=op[order].astype(np.int32),
        action_kind=kind[order].astype(np.uint8),
        action_storage=storage[order].astype(np.int32),
        unmatched=tuple(unmatched),
    )


def bind(policy: Policy, step: StepTrace) -> tuple[StepMemory, Swaps, list[str]]:
    """The memory of a step, a policy's swaps bound to it, and a line for each decision that does not fit."""
    minimum = policy.assumed.get("min_swap_bytes", MIN_SWAP_BYTES)
    memory = step_memory(step, minimum if isinstance(minimum, int) else MIN_SWAP_BYTES)
    row_of = {key: row for row, key in enumerate(step.storage_keys)}
    candidate_of = {row: candidate for candidate, row in enumerate(memory.row.tolist())}
    pairs = zip(memory.gap_storage.tolist(), memory.gap_ordinal.tolist(), strict=True)
    spans = zip(memory.gap_out.tolist(), memory.gap_use.tolist(), memory.gap_returns.tolist(), strict=True)
    span_of = dict(zip(pairs, spans, strict=True))
    dormant = set(memory.dormant.tolist())

    bound: list[tuple[int, ...]] = []
    unmatched = []
    for decision in policy.swaps:
        row = row_of.get(decision.storage)
        candidate = None if row is None else candidate_of.get(row)
        if row is None:
            reason = "the step has no such storage"
        elif candidate is None:
            reason = "the storage must stay on the device, or is too small to move"
        elif decision.gap == NEVER:
            if candidate in dormant:
                bound.append((candidate, NEVER, 0, 1, NEVER, NEVER, False))
                continue
            reason = "an op of the step uses the storage"
        elif (span := span_of.get((candidate, decision.gap))) is None:
            reason = "the storage has no such gap, or none in which it can be away"
        elif span[2] != (decision.use_op != NEVER):
            reason = "the storage is used again" if span[2] else "the storage is not used again"
        else:
            bound.append((candidate, decision.gap, *_placed(decision, *span)))
            continue
        unmatched.append(f"{decision.storage}, gap {decision.gap} ({decision.bytes} bytes): {reason}")
    table = np.array(bound, dtype=np.int64).reshape(-1, 7)
    return memory, Swaps(*table.T[:6], table.T[6].astype(bool)), unmatched


def _placed(decision: Decision, u: int, v: int, returns: bool) -> tuple[int, int, int, int, bool]:
    """The decision's out, free, in and use ops in the gap from use ``u`` to use ``v``."""
    if not returns:
        return u, min(u + decision.free_op - decision.out_op, v), v, v, False
    if (u, v) == (decision.out_op, decision.use_op):
        return u, decision.free_op, decision.in_op, v, True
    scale = (v - u) / (decision.use_op - decision.out_op)
    free = min(u + max(1, round((decision.free_op - decision.out_op) * scale)), v)
    back = max(v - round((decision.use_op - decision.in_op) * scale), free)
    return u, free, back, v, True
