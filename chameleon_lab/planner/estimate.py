"""Quick estimates of edits: the current plan with the edits forced on it, without replanning.

Planning anew takes the longer the more ops a step has. Until it is done, this says what an edit does by itself: a kept
storage no longer leaves, a swapped one leaves in its longest gap, a rematerialized one is dropped there. What the
planner would do about it is not in it, so an estimate may exceed the capacity where the plan will not, and wait where
the plan will find a way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..policy.edits import Edit, EditAction, StorageIndex
from ..policy.link import Link
from ..policy.model import USER, Action, Decision, Policy
from ..trace import Category, StepTrace
from .memory import MIN_SWAP_BYTES, StepMemory, memory_under
from .replay import ReplayChains


class Deciders:
    """Which edit decides about each storage of a step, by the order of precedence that edits have.

    Args:
        index: the storages.
        edits: in their order.
    """

    def __init__(self, index: StorageIndex, edits: Sequence[Edit]) -> None:
        count = len(index.keys)
        self.residence = np.full(count, -1)
        """int64 (storages,): the edit that says whether the storage may be away, -1 for none."""
        self.prefetch = np.full(count, -1)
        """int64 (storages,): the edit that moves its prefetches, -1 for none."""
        self.replay = np.full(count, -1)
        """int64 (storages,): the edit that says that it is, or never is, rematerialized, -1 for none."""
        self.gaps: dict[tuple[str, int], int] = {}
        """By storage and gap: the edit that decides about that gap alone."""
        for k in sorted(
            range(len(edits)), key=lambda k: edits[k].specificity
        ):  # stable: the later one decides
            edit = edits[k]
            if edit.gap is not None:
                if edit.is_residence:
                    self.gaps[edit.storage or "", edit.gap] = k
                continue
            for decided, asked in (
                (self.residence, edit.is_residence),
                (self.prefetch, edit.action is EditAction.PREFETCH),
                (self.replay, edit.action in (EditAction.REMATERIALIZE, EditAction.NEVER_REMATERIALIZE)),
            ):
                if asked:
                    decided[index.rows(edit)] = k
        self._never = np.array([edit.action is EditAction.NEVER_REMATERIALIZE for edit in edits] + [False])

    @property
    def never_replayed(self) -> np.ndarray:
        """Is the planner not to rematerialize it? Bool (storages,)."""
        never: np.ndarray = self._never[self.replay]
        return never


def estimate(
    step: StepTrace,
    made: Policy,
    edits: Sequence[Edit],
    capacity_bytes: int,
    link: Link,
    op_times: np.ndarray,
    *,
    index: StorageIndex | None = None,
    memory: StepMemory | None = None,
    replayable: ReplayChains | None = None,
) -> Policy:
    """The policy ``made`` with the decisions that ``edits`` forbid left out, and those that they demand added.

    Args:
        step: the step that the policy is for.
        made: a planned policy, under whatever edits.
        edits: those to obey.
        capacity_bytes: what the edits ask for, or else what holds without them.
        link: likewise.
        op_times: compute seconds of each op, shape (ops,).
        index: of the step, where the caller has it at hand.
        memory: likewise, under the policy's own smallest size.
        replayable: what can be replayed in the step; None where replays are switched off.

    Returns:
        A policy to simulate and to show, and not to run: it need not fit its capacity.
    """
    index = index or StorageIndex(step)
    least = int(made.assumed.get("min_swap_bytes", MIN_SWAP_BYTES))
    memory = memory or memory_under(step, least, capacity_bytes)[0]
    deciders = Deciders(index, edits)
    residence, never_replayed = deciders.residence.tolist(), deciders.never_replayed.tolist()
    decisions: list[Decision] = []
    for decision in made.decisions:
        row = index.row_of.get(decision.storage)
        k = deciders.gaps.get((decision.storage, decision.gap), -1 if row is None else residence[row])
        never = row is not None and never_replayed[row] and decision.action is Action.REMATERIALIZE
        if (k < 0 or edits[k].action.value == decision.action.value) and not never:
            decisions.append(decision)
    decisions = [_moved(decision, made.edits, edits, index, deciders) for decision in decisions]
    forced = _forced(step, edits, link, index, memory, deciders, decisions, op_times, replayable)
    return replace(
        made, capacity_bytes=capacity_bytes, link=link, decisions=(*decisions, *forced), edits=tuple(edits)
    )


def _moved(
    decision: Decision, before: Sequence[Edit], edits: Sequence[Edit], index: StorageIndex, deciders: Deciders
) -> Decision:
    """The decision with its prefetch moved, if an edit asks for it that the plan did not know."""
    row = index.row_of.get(decision.storage)
    k = -1 if row is None else int(deciders.prefetch[row])
    if k < 0 or decision.in_op < 0 or edits[k] in before:
        return decision
    back = decision.in_op - (edits[k].ops_earlier or 0)
    back = min(max(back, decision.free_op), decision.use_op)
    return replace(decision, in_op=back, decided_by=USER)


def _forced(
    step: StepTrace,
    edits: Sequence[Edit],
    link: Link,
    index: StorageIndex,
    memory: StepMemory,
    deciders: Deciders,
    decisions: Sequence[Decision],
    times: np.ndarray,
    replayable: ReplayChains | None,
) -> list[Decision]:
    """What edits ask for and the decisions lack: swaps, each from right after its use to one copy before the next, and
    drops up to the next use."""
    never_replayed = deciders.never_replayed
    there = {(decision.storage, decision.action.value) for decision in decisions}
    done = {(decision.storage, decision.gap) for decision in decisions}
    start = np.concatenate([[0.0], np.cumsum(np.tile(times, 3))])
    candidate_of = {int(row): candidate for candidate, row in enumerate(memory.row.tolist())}
    wanted: list[tuple[int, Action]] = []

    def can(gap: int, action: Action) -> bool:
        return action is Action.SWAP or (replayable is not None and replayable.why_not(gap) is None)

    for row in np.flatnonzero(deciders.residence >= 0).tolist():
        edit = edits[deciders.residence[row]]
        if not edit.leaves or (index.keys[row], edit.action.value) in there or row not in candidate_of:
            continue
        if edit.action is EditAction.REMATERIALIZE and never_replayed[row]:
            continue
        action = Action(edit.action.value)
        own = np.flatnonzero((memory.gap_storage == candidate_of[row]) & memory.gap_returns).tolist()
        own = [gap for gap in own if can(gap, action)]
        if own:
            wanted.append((max(own, key=lambda gap: memory.gap_use[gap] - memory.gap_out[gap]), action))
    for (key, ordinal), k in deciders.gaps.items():
        candidate = candidate_of.get(index.row_of.get(key, -1))
        if edits[k].leaves and candidate is not None and (key, ordinal) not in done:
            action = Action(edits[k].action.value)
            here = (memory.gap_storage == candidate) & (memory.gap_ordinal == ordinal) & memory.gap_returns
            wanted += [(gap, action) for gap in np.flatnonzero(here).tolist() if can(gap, action)]
    found = []
    for gap, action in wanted:
        candidate = int(memory.gap_storage[gap])
        row, size = int(memory.row[candidate]), int(memory.block_bytes[candidate])
        out, use = int(memory.gap_out[gap]), int(memory.gap_use[gap])
        back = int(np.searchsorted(start, start[use] - link.in_s(size), "right")) - 1
        back = min(max(back, out + 1), use)
        free = int(np.searchsorted(start, start[out + 1] + link.out_s(size), "left"))
        free = min(max(free, out + 1), back)
        if action is Action.REMATERIALIZE:
            free, back = out + 1, use
        found.append(
            Decision(
                storage=index.keys[row],
                category=Category(int(step.storages.category[row])).name.lower(),
                module=step.module_path(int(step.storages.module[row])),
                bytes=size,
                action=action,
                gap=int(memory.gap_ordinal[gap]),
                out_op=out,
                free_op=free,
                in_op=back,
                use_op=use,
                decided_by=USER,
            )
        )
    return found
