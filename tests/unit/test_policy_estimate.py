"""Estimates: what edits do by themselves, before anything is planned around them."""

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.planner import plan, simulate
from chameleon_lab.planner.estimate import Deciders, estimate
from chameleon_lab.planner.memory import step_memory, step_op_times
from chameleon_lab.planner.replay import ReplayChains
from chameleon_lab.policy import Edit, EditAction, Link
from chameleon_lab.policy.edits import StorageIndex

STEP = gpt_step(layers=6)
LINK = Link(4e9, 4e9)
TIMES = step_op_times(STEP)
MADE = plan(STEP, int(0.6 * STEP.live_peak_bytes), LINK, op_times=TIMES)
SWAPPED = MADE.swaps[0].storage


def looked_at(*edits, made=MADE):
    return estimate(STEP, made, edits, made.capacity_bytes, LINK, TIMES)


def test_without_edits_it_is_the_plan():
    assert looked_at().decisions == MADE.decisions


@pytest.mark.parametrize("action", [EditAction.KEEP, EditAction.NEVER_TOUCH])
def test_what_is_kept_stays_and_the_peak_says_what_that_costs(action):
    kept = looked_at(Edit(action, SWAPPED))
    assert SWAPPED not in {decision.storage for decision in kept.decisions}
    assert len(kept.decisions) < len(MADE.decisions)
    before, after = (simulate(STEP, policy, op_times=TIMES) for policy in (MADE, kept))
    assert after.peak_bytes >= before.peak_bytes
    assert after.swapped_out_bytes < before.swapped_out_bytes


def test_a_rule_keeps_all_that_it_means():
    kept = looked_at(Edit(EditAction.KEEP, category="activation"))
    assert "activation" in {decision.category for decision in MADE.decisions}
    assert "activation" not in {decision.category for decision in kept.decisions}


def test_what_is_to_swap_leaves_in_its_longest_gap():
    free = next(
        key
        for key, category in zip(STEP.storage_keys, StorageIndex(STEP).category, strict=True)
        if category == "activation" and key not in {decision.storage for decision in MADE.decisions}
    )
    (forced,) = [d for d in looked_at(Edit(EditAction.SWAP, free)).decisions if d.storage == free]
    planned = plan(STEP, MADE.capacity_bytes, LINK, op_times=TIMES, edits=(Edit(EditAction.SWAP, free),))
    (own,) = [d for d in planned.decisions if d.storage == free]
    assert (forced.gap, forced.out_op, forced.use_op) == (own.gap, own.out_op, own.use_op)
    assert forced.decided_by == "user"
    assert simulate(STEP, looked_at(Edit(EditAction.SWAP, free)), op_times=TIMES).unmatched == ()


def test_one_gap_can_be_kept_while_the_others_go_on():
    gap = MADE.swaps[0].gap
    kept = looked_at(Edit(EditAction.KEEP, SWAPPED, gap=gap))
    left = [(d.storage, d.gap) for d in MADE.decisions if (d.storage, d.gap) != (SWAPPED, gap)]
    assert [(d.storage, d.gap) for d in kept.decisions] == left


def test_a_prefetch_moves_within_its_gap_and_once():
    edit = Edit(EditAction.PREFETCH, SWAPPED, ops_earlier=1)
    moved = {(d.storage, d.gap): d for d in looked_at(edit).decisions}
    for old in MADE.decisions:
        new = moved[old.storage, old.gap]
        if old.storage != SWAPPED or old.in_op < 0:
            assert new == old
        else:
            assert new.in_op == max(old.in_op - 1, old.free_op)
    planned = plan(STEP, MADE.capacity_bytes, LINK, op_times=TIMES, edits=(edit,))
    again = estimate(STEP, planned, (edit,), planned.capacity_bytes, LINK, TIMES)
    assert again.decisions == planned.decisions


def test_precedence_is_that_of_plans():
    index = StorageIndex(STEP)
    edits = (
        Edit(EditAction.KEEP, SWAPPED),
        Edit(EditAction.SWAP, category="activation"),
        Edit(EditAction.PREFETCH, category="activation", ops_earlier=2),
        Edit(EditAction.SWAP, SWAPPED, gap=0),
    )
    deciders = Deciders(index, edits)
    row = index.row_of[SWAPPED]
    assert deciders.residence[row] == 0
    assert deciders.gaps == {(SWAPPED, 0): 3}
    others = np.flatnonzero(np.array(index.category) == "activation")
    assert set(deciders.prefetch[others].tolist()) == {2}
    assert set(deciders.residence[others[others != row]].tolist()) == {1}


MIXED = plan(STEP, int(0.6 * STEP.live_peak_bytes), Link(3e8, 3e8), op_times=TIMES, rematerialize=True)
REPLAYABLE = ReplayChains(STEP, step_memory(STEP), TIMES)


def with_replays(*edits, made=MIXED):
    return estimate(STEP, made, edits, made.capacity_bytes, made.link, TIMES, replayable=REPLAYABLE)


def test_what_is_to_be_rematerialized_is_dropped_where_the_plan_would_drop_it():
    memory = step_memory(STEP)
    rows = memory.row[memory.gap_storage[REPLAYABLE.gaps()]]
    free = next(
        key
        for key in (STEP.storage_keys[row] for row in rows)
        if key not in {d.storage for d in MADE.decisions}
    )
    edit = Edit(EditAction.REMATERIALIZE, free)
    (forced,) = [d for d in with_replays(edit, made=MADE).decisions if d.storage == free]
    planned = plan(STEP, MADE.capacity_bytes, LINK, op_times=TIMES, edits=(edit,), rematerialize=True)
    (own,) = [d for d in planned.decisions if d.storage == free]
    assert (forced.action, forced.gap, forced.out_op, forced.free_op) == (
        own.action,
        own.gap,
        own.out_op,
        own.free_op,
    )
    assert forced.action == "rematerialize" and forced.decided_by == "user"
    before, after = (
        simulate(STEP, policy, op_times=TIMES) for policy in (MADE, with_replays(edit, made=MADE))
    )
    assert after.replay_s > before.replay_s and after.unmatched == ()
    assert free not in {d.storage for d in looked_at(edit).decisions}, "replays are switched off there"


def test_what_is_never_rematerialized_stays_and_takes_precedence_as_in_plans():
    assert MIXED.drops
    dropped = MIXED.drops[0].storage
    never = Edit(EditAction.NEVER_REMATERIALIZE, dropped)
    assert dropped not in {d.storage for d in with_replays(never).drops}
    assert not with_replays(Edit(EditAction.NEVER_REMATERIALIZE, category="activation")).drops
    again = with_replays(never, Edit(EditAction.REMATERIALIZE, dropped))
    assert dropped in {d.storage for d in again.drops}
    assert dropped not in {
        d.storage for d in with_replays(Edit(EditAction.REMATERIALIZE, dropped), never).drops
    }
