"""Planning that must go on: what cannot be obeyed is left out of the plan, told, and stays in the policy."""

from __future__ import annotations

import pytest
from synthetic import gpt_step

from chameleon_lab.errors import BelowFloorError
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.planner.obey import plan_and_bind, plan_obeying
from chameleon_lab.policy import Edit, EditAction, EditsUnreachableError, Fault, Link, Policy
from chameleon_lab.session.policy_fit import misfit

STEP = gpt_step(layers=4)
LINK = Link(4e9, 4e9)
LOWEST = floor(STEP).bytes
EDITS = (
    Edit(EditAction.CAPACITY, capacity_bytes=STEP.live_peak_bytes),
    Edit(EditAction.KEEP, "nothing"),
    Edit(EditAction.NEVER_TOUCH, category="activation"),
    Edit(EditAction.KEEP, "optimizer_state:exp_avg of h.0.weight"),
    Edit(EditAction.SWAP, "parameter:h.0.weight", gap=0),
)


def test_the_edits_that_keep_most_are_left_out_until_a_plan_fits() -> None:
    policy, remarks = plan_obeying(STEP, LOWEST, LINK, EDITS)
    assert policy.edits == EDITS and policy.is_current and policy.capacity_bytes == LOWEST
    assert policy.disobeyed == (0, 2, 3)
    assert Policy.from_json(policy.to_json()) == policy
    assert policy.predicted["peak_bytes"] <= LOWEST
    assert remarks[0].startswith("edit 1 (capacity")
    assert remarks[1].startswith("not obeyed: edit 3 (never touch all of category activation) is unreachable")
    assert remarks[-1].startswith("edit 2 (keep nothing) is unmatched")
    assert [(finding.fault, finding.index) for finding in policy.findings] == [(Fault.UNMATCHED, 1)]
    assert ("parameter:h.0.weight", 0) in {(d.storage, d.gap) for d in policy.swaps}


def test_with_room_enough_it_is_the_plan_under_all_edits() -> None:
    policy, remarks = plan_obeying(STEP, STEP.live_peak_bytes, LINK, EDITS[2:], margin=0.02)
    assert policy == plan(STEP, STEP.live_peak_bytes, LINK, edits=EDITS[2:], margin=0.02)
    assert remarks == [] and policy.is_current and policy.disobeyed == ()


def test_below_the_floor_it_is_not_the_edits_fault() -> None:
    with pytest.raises(BelowFloorError, match="below the floor"):
        plan_obeying(STEP, LOWEST - 1, LINK, EDITS)


def test_errors_of_edits_and_of_the_host_have_their_figures() -> None:
    edits = [Edit(EditAction.KEEP, category=category) for category in ("activation", "optimizer_state")]
    with pytest.raises(EditsUnreachableError) as caught:
        plan(STEP, LOWEST, LINK, edits=edits)
    error = caught.value
    assert error.capacity_bytes == LOWEST and (error.needed_bytes or 0) > LOWEST and error.op_name
    with pytest.raises(BelowFloorError) as of_host:
        plan(STEP, LOWEST, LINK, host_capacity_bytes=4096)
    assert of_host.value.capacity_bytes == LOWEST


def test_with_the_same_capacity_it_starts_again_and_with_more_the_edits_are_tried_again() -> None:
    policy, _ = plan_obeying(STEP, LOWEST, LINK, EDITS)
    assert misfit(policy, STEP, LOWEST) is None
    reason = misfit(policy, STEP, STEP.live_peak_bytes)
    assert reason is not None and reason.startswith("it could not obey edit 1, 3, 4 in")


def test_what_a_search_gains_counts_on_the_link_that_is_planned_for() -> None:
    """A plan with a margin may take longer on the whole link, and is made for less of it."""
    capacity, times = int(0.6 * STEP.live_peak_bytes), step_op_times(STEP)
    before = plan(STEP, capacity, "200MB/s", op_times=times)
    made = plan_and_bind(STEP, capacity, Link(2e8, 2e8), (), before=before, op_times=times, link_margin=0.5)
    old, new = (simulate(STEP, policy, link="100MB/s", op_times=times) for policy in (before, made.policy))
    assert made.gained_s == old.step_s - new.step_s != 0.0
