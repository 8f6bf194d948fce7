"""What edits come to at a glance: the plan as it stands with the edits forced on it, and nothing planned around them.

Planning anew takes the longer the more ops a step has. Until it is done, this says what an edit does by itself: a kept
storage no longer leaves, a swapped one leaves in its longest gap. What the planner would do about it is not in it, so
an estimate may exceed the capacity where the plan will not, and wait where the plan will find a way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..trace import Category, StepTrace
from .edits import Edit, EditAction, StorageIndex
from .link import Link
from .memory import MIN_SWAP_BYTES, StepMemory, step_memory
from .model import USER, Action, Decision, Policy

_ESTIMATED = frozenset(
    (
        EditAction.KEEP,
        EditAction.SWAP,
        EditAction.NEVER_TOUCH,
        EditAction.PREFETCH,
        EditAction.CAPACITY,
        EditAction.LINK,
    )
)


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
        self.gaps: dict[tuple[str, int], int] = {}
        """By storage and gap: the edit that decides about that gap alone."""
        for k in sorted(
            range(len(edits)), key=lambda k: edits[k].specificity
        ):  # stable: the later one decides
            edit = edits[k]
            if not edit.is_residence and edit.action is not EditAction.PREFETCH:
                continue
            if edit.gap is not None:
                if edit.is_residence:
                    self.gaps[edit.storage or "", edit.gap] = k
                continue
            decided = self.prefetch if edit.action is EditAction.PREFETCH else self.residence
            decided[index.rows(edit)] = k


def can_estimate(edits: Sequence[Edit]) -> bool:
    """Does an estimate know what these edits do by themselves?"""
    return all(edit.action in _ESTIMATED for edit in edits)


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

    Returns:
        A policy to simulate and to show, and not to run: it need not fit its capacity.
    """
    index = index or StorageIndex(step)
    memory = memory or step_memory(step, int(made.assumed.get("min_swap_bytes", MIN_SWAP_BYTES)))
    deciders = Deciders(index, edits)
    decisions: list[Decision] = []
    for decision in made.decisions:
        row = index.row_of.get(decision.storage)
        k = deciders.gaps.get(
            (decision.storage, decision.gap), -1 if row is None else deciders.residence[row]
        )
        if k < 0 or edits[k].action.value == decision.action.value:
            decisions.append(decision)
    decisions = [_moved(decision, made.edits, edits, index, deciders) for decision in decisions]
    forced = _forced(step, edits, link, index, memory, deciders, decisions, op_times)
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
) -> list[Decision]:
    """Swaps that edits ask for and the decisions lack, each from right after its use to one copy before the next."""
    swapped = {decision.storage for decision in decisions}
    done = {(decision.storage, decision.gap) for decision in decisions}
    start = np.concatenate([[0.0], np.cumsum(np.tile(times, 3))])
    candidate_of = {int(row): candidate for candidate, row in enumerate(memory.row.tolist())}
    wanted: list[int] = []
    for row in np.flatnonzero(deciders.residence >= 0).tolist():
        if edits[deciders.residence[row]].action is not EditAction.SWAP or index.keys[row] in swapped:
            continue
        if row in candidate_of:
            own = np.flatnonzero((memory.gap_storage == candidate_of[row]) & memory.gap_returns)
            if len(own):
                wanted.append(int(own[(memory.gap_use - memory.gap_out)[own].argmax()]))
    for (key, ordinal), k in deciders.gaps.items():
        candidate = candidate_of.get(index.row_of.get(key, -1))
        if edits[k].action is EditAction.SWAP and candidate is not None and (key, ordinal) not in done:
            here = (memory.gap_storage == candidate) & (memory.gap_ordinal == ordinal) & memory.gap_returns
            wanted.extend(np.flatnonzero(here).tolist())
    found = []
    for gap in wanted:
        candidate = int(memory.gap_storage[gap])
        row, size = int(memory.row[candidate]), int(memory.block_bytes[candidate])
        out, use = int(memory.gap_out[gap]), int(memory.gap_use[gap])
        back = int(np.searchsorted(start, start[use] - link.in_s(size), "right")) - 1
        back = min(max(back, out + 1), use)
        free = int(np.searchsorted(start, start[out + 1] + link.out_s(size), "left"))
        found.append(
            Decision(
                storage=index.keys[row],
                category=Category(int(step.storages.category[row])).name.lower(),
                module=step.module_path(int(step.storages.module[row])),
                bytes=size,
                action=Action.SWAP,
                gap=int(memory.gap_ordinal[gap]),
                out_op=out,
                free_op=min(max(free, out + 1), back),
                in_op=back,
                use_op=use,
                decided_by=USER,
            )
        )
    return found
