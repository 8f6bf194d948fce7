"""Retention: a small storage that dies is kept until the op at which a larger one is made from it again.

A replay whose input has died makes that input again too, in a chain that may go back through the whole step. Where the
input is smaller than what is made from it, as a bfloat16 value is beside its float32 copy, keeping it costs less than
it saves. A plan says so with its drops (:attr:`~chameleon_lab.policy.Decision.retains`): the runtime keeps the bytes
when the last tensor dies, until the op that the drop's gap ends with.

To the planner a retained storage is one that lives until then, and that this op reads: it may be swapped meanwhile
like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ..policy.decision import Action
from ..policy.model import Policy
from ..trace import Stage, StepTrace
from ..trace.alive_bytes import bytes_between
from .memory import StepMemory
from .replay import PlannedReplays, ReplayChains

Until = Mapping[int, int]
"""Rows of storages that are retained, and the op until which each is."""


def retaining(step: StepTrace, until: Until) -> StepTrace:
    """The step in which storages live on until some op, which reads them. Those that live that long anyway stay."""
    storages, uses = step.storages, step.uses
    rows = np.array([row for row, op in until.items() if op > int(storages.death_op[row])], dtype=np.int64)
    if not len(rows):
        return step
    ops = np.array([until[row] for row in rows.tolist()], dtype=np.int64)
    death = storages.death_op.copy()
    more = bytes_between(len(step.ops), death[rows] + 1, ops + 1, storages.block_bytes[rows])
    death[rows] = ops
    live = step.ops.live_peak_bytes + more.astype(step.ops.live_peak_bytes.dtype)
    columns = {
        "op": ops,
        "storage": rows,
        "reads": np.ones(len(rows), dtype=bool),
        "writes": np.zeros(len(rows), dtype=bool),
        "part": np.full(len(rows), -1),
    }
    joined = {
        name: np.concatenate([column, columns[name].astype(column.dtype)])
        for name, column in uses.columns().items()
    }
    order = np.argsort(joined["op"], kind="stable")
    return replace(
        step,
        storages=replace(storages, death_op=death),
        ops=replace(step.ops, live_peak_bytes=live),
        uses=replace(uses, **{name: column[order] for name, column in joined.items()}),
    )


def retained_by(policy: Policy, step: StepTrace) -> dict[int, int]:
    """What a policy retains in a step, which need not be the one that it was made for."""
    wanted: dict[tuple[str, int], set[str]] = {}
    for decision in policy.decisions:
        if decision.action is Action.REMATERIALIZE and decision.retains:
            wanted[decision.storage, decision.gap] = set(decision.retains)
    if not wanted:
        return {}
    row_of = {key: row for row, key in enumerate(step.storage_keys)}
    uses = _Uses(step, {row_of[key] for key, _ in wanted if key in row_of})
    until: dict[int, int] = {}
    for (key, gap), retained in wanted.items():
        op = uses.after(row_of[key], gap) if key in row_of else None
        if op is None:
            continue
        for row in (row_of[name] for name in retained if name in row_of):
            if can_be_retained(step, row):
                until[row] = max(until.get(row, 0), op)
    return {row: op for row, op in until.items() if op > int(step.storages.death_op[row])}


def as_planned(policy: Policy, step: StepTrace) -> StepTrace:
    """The step with what the policy retains in it."""
    return retaining(step, retained_by(policy, step))


def can_be_retained(step: StepTrace, row: int) -> bool:
    """Is it made in the step by an op that it outlives, and may it leave the device?"""
    storages = step.storages
    return bool(storages.movable[row] and 0 <= storages.birth_op[row] < storages.death_op[row])


class _Uses:
    """The uses of some storages, births among them, as gaps count them."""

    def __init__(self, step: StepTrace, rows: Collection[int]) -> None:
        self._ops: dict[int, list[int]] = {}
        births = step.storages.birth_op
        taken = np.flatnonzero(np.isin(step.uses.storage, list(rows)))
        for row in rows:
            self._ops[row] = [int(births[row])] if births[row] >= 0 else []
        for op, row in zip(step.uses.op[taken].tolist(), step.uses.storage[taken].tolist(), strict=True):
            self._ops[row].append(op)
        for row, ops in self._ops.items():
            self._ops[row] = sorted(set(ops))

    def after(self, row: int, gap: int) -> int | None:
        """The use in the step that ends a gap; None if there is none."""
        ops = self._ops[row]
        return ops[gap + 1] if 0 <= gap < len(ops) - 1 else None


def worth_retaining(step: StepTrace, chains: ReplayChains, capacity_bytes: int) -> dict[int, int]:
    """What may pay: inputs that die before the backward pass needs a larger storage again that is made from them.

    ``chains`` are those of the step itself. Of gaps that begin in forward, end in backward, and lie where bytes exceed
    the capacity.
    """
    memory, values = chains.memory, chains.values
    stage = step.ops.stage
    blocks, deaths = step.storages.block_bytes, step.storages.death_op
    over = np.concatenate([[0], np.cumsum(memory.live_bytes > capacity_bytes)])
    row_of, use, out = memory.row[memory.gap_storage], memory.gap_use, memory.gap_out
    inside = memory.gap_returns & (use < memory.ops) & (step.storages.birth_op[row_of] >= 0)
    at_use = np.minimum(use, memory.ops - 1)
    inside &= (stage[out] == Stage.FORWARD) & (stage[at_use] == Stage.BACKWARD)
    inside &= over[at_use] > over[out + 1]
    known = set(memory.row.tolist())
    until: dict[int, int] = {}
    for gap in np.flatnonzero(inside).tolist():
        row, op = int(row_of[gap]), int(use[gap])
        value = chains.value_at(row, op)
        if value < 0 or not chains.possible(value):
            continue
        dying = {
            other
            for other, of in values.inputs[value]
            if other in known
            and deaths[other] < op
            and chains.value_at(other, 2 * memory.ops) == of
            and of >= 0
            and can_be_retained(step, other)
        }
        if dying and sum(int(blocks[other]) for other in dying) < int(blocks[row]):
            for other in dying:
                until[other] = max(until.get(other, 0), op)
    return until


def affordable(until: Until, memory: StepMemory, capacity_bytes: int) -> dict[int, int]:
    """Those at whose op the step, whose ``memory`` retains them all, keeps within a capacity."""
    least = memory.least_bytes()
    return {row: op for row, op in until.items() if least[op] <= capacity_bytes}


def read_by(replays: PlannedReplays, until: Until) -> tuple[dict[int, int], list[tuple[int, ...]]]:
    """What of that the replays of a step read.

    Returns the rows with the op until which each is retained for their sake, and the rows that each replay reads.
    """
    read: dict[int, int] = {}
    by_replay: list[tuple[int, ...]] = []
    for chain, use in zip(replays.chains, replays.use_op.tolist(), strict=True):
        rows = tuple(sorted(set(chain.inputs) & until.keys()))
        by_replay.append(rows)
        for row in rows:
            read[row] = max(read.get(row, 0), use)
    return read, by_replay
