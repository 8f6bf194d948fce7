"""Compiles a policy for the C++ executor: integer arrays bound to the storages and ops of one step.

A decision names a storage by its key and a gap by its ordinal, so it can be bound to a step other than the
one it was made for. What does not fit is reported, and never guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..policy.model import NEVER, Action, Decision, Policy, fingerprint
from ..trace import StepTrace
from ..trace.replay_ops import REPLAY_CLASS
from .constraints import evict_last_rows
from .host_layout import HostLayout
from .host_room import HostRoom
from .memory import MIN_SWAP_BYTES, StepMemory, Swaps, memory_under, step_op_times
from .replay import HIGHEST_CLASS, Chain, PlannedReplays, ReplayChains
from .retention import as_planned, retained_by, retaining

FREE, SWAP_IN, SWAP_OUT, DROP, REPLAY, RELEASE = 0, 1, 2, 3, 4, 5
"""Kinds of action. FREE, SWAP_IN and REPLAY fire before their op, in this order, SWAP_OUT, DROP and RELEASE after it.

DROP gives a block back without a copy; REPLAY takes a block and runs the op that made the storage again. RELEASE lets
go of a storage that has died and was retained until then.
"""


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
    """uint8 (A,): FREE, SWAP_IN, SWAP_OUT, DROP, REPLAY or RELEASE"""
    action_storage: np.ndarray
    """int32 (A,): plan storage"""
    host: HostLayout
    """Where the copies lie, and which are kept; its columns are of shape (S,)"""
    unmatched: tuple[str, ...]
    """Decisions that found no gap in the step, and why"""


def compile_program(policy: Policy, step: StepTrace) -> Program:
    """Bind a policy to a step, the one it was made for or another.

    Actions are sorted by op, then kind; copies issued at one op go in the order in which they will be needed, and
    replays before one op so that a storage comes before what is made of it. Where a decision's uses are at other ops
    than it says, its free and its swap-in keep their relative place in the gap.
    """
    memory, swaps, replays, unmatched = bind(policy, step)
    swaps, _ = replays.served(memory, swaps)
    returns = swaps.returns
    candidate_of = {row: candidate for candidate, row in enumerate(memory.row.tolist())}
    until = {candidate_of[row]: op for row, op in retained_by(policy, step).items() if row in candidate_of}
    # At one op and kind, the more urgent copy first: the nearest use of a swap-in, the nearest free of a
    # swap-out.
    op = np.concatenate([swaps.free_op, swaps.in_op[returns], swaps.out_op, replays.out_op, replays.in_op])
    op = np.concatenate([op, np.array(list(until.values()), dtype=np.int64)])
    kind = np.repeat(
        [FREE, SWAP_IN, SWAP_OUT, DROP, REPLAY, RELEASE],
        [len(swaps), int(returns.sum()), len(swaps), len(replays), len(replays), len(until)],
    )
    storage = np.concatenate(
        [swaps.storage, swaps.storage[returns], swaps.storage, replays.storage, replays.storage]
        + [np.array(list(until), dtype=np.int64)]
    )
    urgency = np.concatenate(
        [
            np.zeros(len(swaps), dtype=np.int64),
            (swaps.use_op - swaps.in_op)[returns],
            swaps.free_op - swaps.out_op,
            np.zeros(len(replays), dtype=np.int64),
            np.arange(len(replays)),
            np.zeros(len(until), dtype=np.int64),
        ]
    )
    op %= memory.ops
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
        evict_last=evict_last_rows(step, policy.edits)[memory.row],
        action_op=op[order].astype(np.int32),
        action_kind=kind[order].astype(np.uint8),
        action_storage=storage[order].astype(np.int32),
        host=HostRoom(as_planned(policy, step), policy.host_capacity_bytes).layout(memory, swaps),
        unmatched=tuple(unmatched),
    )


def bind(
    policy: Policy, step: StepTrace, op_times: np.ndarray | None = None
) -> tuple[StepMemory, Swaps, PlannedReplays, list[str]]:
    """The memory of a step, a policy's swaps and drops bound to it, and a line for each decision that does not fit.

    The memory knows what the policy retains, see :func:`~chameleon_lab.planner.retention.as_planned`. Replays take the
    ``op_times`` of their ops: by default those that were recorded.
    """
    until = retained_by(policy, step)
    memory = _memory_of(policy, seen := retaining(step, until))
    row_of = {key: row for row, key in enumerate(step.storage_keys)}
    candidate_of = {row: candidate for candidate, row in enumerate(memory.row.tolist())}
    pairs = zip(memory.gap_storage.tolist(), memory.gap_ordinal.tolist(), strict=True)
    gap_of = {pair: gap for gap, pair in enumerate(pairs)}
    dormant = set(memory.dormant.tolist())
    replayable = None
    if policy.drops:
        replayable = ReplayChains(
            step, memory if seen is step else _memory_of(policy, step), step_op_times(step, op_times)
        )
        replayable = replayable if seen is step else replayable.retaining(seen, memory, until)

    bound: list[tuple[int, ...]] = []
    dropped: dict[int, Decision] = {}
    unmatched = []

    def misfit(decision: Decision, reason: str) -> None:
        unmatched.append(f"{decision.storage}, gap {decision.gap} ({decision.bytes} bytes): {reason}")

    for decision in policy.decisions:
        if decision.action is Action.KEEP:
            continue
        row = row_of.get(decision.storage)
        candidate = None if row is None else candidate_of.get(row)
        gap = None if candidate is None else gap_of.get((candidate, decision.gap))
        if row is None:
            misfit(decision, "the step has no such storage")
        elif candidate is None:
            misfit(decision, "the storage must stay on the device, or is too small to move")
        elif decision.gap == NEVER:
            if candidate in dormant:
                bound.append((candidate, NEVER, 0, 1, NEVER, NEVER, False))
            else:
                misfit(decision, "an op of the step uses the storage")
        elif gap is None:
            misfit(decision, "the storage has no such gap, or must stay in it")
        elif decision.action is Action.REMATERIALIZE:
            assert replayable is not None
            if (reason := replayable.why_not(gap)) is None:
                dropped[gap] = decision
            else:
                misfit(decision, reason)
        elif bool(memory.gap_returns[gap]) != (decision.use_op != NEVER):
            misfit(
                decision, "the storage is " + ("used again" if memory.gap_returns[gap] else "not used again")
            )
        else:
            span = (int(memory.gap_out[gap]), int(memory.gap_use[gap]), bool(memory.gap_returns[gap]))
            bound.append((candidate, decision.gap, *_placed(decision, *span)))
    replays = PlannedReplays.none(memory.ops) if replayable is None else replayable.resolve(dropped)
    for gap in replays.declined:
        misfit(dropped[gap], "with the other drops, its chain of replays would be too long")
    storage, ordinal, out, free, back, use, returns = np.array(bound, dtype=np.int64).reshape(-1, 7).T
    swaps = Swaps(storage, ordinal, out, free, back, use, returns.astype(bool))
    return memory, swaps, replays, unmatched


def unreplayable(
    policy: Policy, step: StepTrace, replay_class: int, refused: Mapping[str, str]
) -> dict[Decision, str]:
    """The drops of a policy that a session cannot replay, and why.

    ``replay_class`` is the highest class of ops that it replays; ``refused`` says of names of ops and keys of storages
    why they are not replayed. Looked at is the step that the policy was made for, where it holds one, and else
    ``step``. What fits neither is left to :func:`bind`.
    """
    step = step if policy.source is None else policy.source
    known = refused.keys()
    if not policy.drops or (
        replay_class == HIGHEST_CLASS and known.isdisjoint(step.names) and known.isdisjoint(step.storage_keys)
    ):
        return {}
    memory, times = _memory_of(policy, step), np.zeros(len(step.ops))
    anywhere = ReplayChains(step, memory, times)
    here = ReplayChains(step, memory, times, replay_class, known)
    if until := retained_by(policy, step):
        seen = retaining(step, until)
        memory = _memory_of(policy, seen)
        anywhere, here = (chains.retaining(seen, memory, until) for chains in (anywhere, here))
    keys, rows = step.storage_keys, memory.row[memory.gap_storage].tolist()
    gap_of = {
        (keys[row], ordinal): gap
        for gap, (row, ordinal) in enumerate(zip(rows, memory.gap_ordinal.tolist(), strict=True))
    }
    found = {}
    for decision in policy.drops:
        gap = gap_of.get((decision.storage, decision.gap))
        if gap is None or anywhere.why_not(gap) is not None or (why := here.why_not(gap)) is None:
            continue
        chain = anywhere.chain(rows[gap], int(memory.gap_use[gap]))
        assert chain is not None  # there is nothing against the gap elsewhere
        found[decision] = _why_refused(chain, step, replay_class, refused) or why
    return found


def _why_refused(chain: Chain, step: StepTrace, replay_class: int, refused: Mapping[str, str]) -> str:
    """Of a chain that cannot be replayed here: why the last op that cannot be is not; empty where nobody knows."""
    for row, number in zip(reversed(chain.made), reversed(chain.names), strict=True):
        key, name = step.storage_keys[row], step.names[number]
        if key in refused:
            return refused[key]
        if name in refused:
            return f"{name} is not replayed here, {refused[name]}"
        if REPLAY_CLASS[name] > replay_class:
            return f"{name} is not replayed here, nor is any op of class {REPLAY_CLASS[name]}"
    return ""


def _memory_of(policy: Policy, step: StepTrace) -> StepMemory:
    minimum = policy.assumed.get("min_swap_bytes", MIN_SWAP_BYTES)
    minimum = minimum if isinstance(minimum, int) else MIN_SWAP_BYTES
    return memory_under(step, minimum, policy.capacity_bytes)[0]


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
