"""Promises of planning within bounded host memory: copies never take more, at any op and packed, and the device's
capacity holds all the same."""

from __future__ import annotations

import numpy as np
from examples import examples
from host_walk import deaths, walk
from hypothesis import given
from hypothesis import strategies as st
from synthetic import gpt_step, random_calls_step, random_step

from chameleon_lab.errors import BelowFloorError
from chameleon_lab.planner import floor, plan, simulate, sweep
from chameleon_lab.planner.host_room import floor_within
from chameleon_lab.planner.program import SWAP_OUT, compile_program
from chameleon_lab.policy import Link, Policy
from chameleon_lab.trace import StepTrace

FAST, SLOW = Link(None, None), Link(3e8, 3e8)


def capacity_of(step: StepTrace, share: float) -> int:
    lowest = floor(step, min_swap_bytes=1).bytes
    return max(1, lowest + int(share * (step.live_peak_bytes - lowest)))


def check(step: StepTrace, capacity: int, host_bytes: int, link: Link, **options) -> bool:
    """Is there a plan? If so, it keeps both promises."""
    try:
        policy = plan(step, capacity, link, min_swap_bytes=1, host_capacity_bytes=host_bytes, **options)
    except BelowFloorError as error:
        assert "host_capacity" in str(error)
        return False
    program = compile_program(policy, step)
    most = walk(program, step, deaths(program, step))
    assert most <= program.host.peak_bytes <= program.host.pool_bytes <= host_bytes
    predicted = simulate(step, policy)
    assert predicted.fits and predicted.peak_bytes <= capacity
    assert predicted.host_capacity_bytes == host_bytes >= predicted.host_peak_bytes
    assert policy.predicted["host_peak_bytes"] == predicted.host_peak_bytes
    return True


@examples(100)
@given(
    step=st.builds(
        random_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40), storages=st.integers(1, 14)
    ),
    share=st.floats(0, 0.9),
    host_share=st.floats(0.05, 1.2),
    link=st.sampled_from([FAST, SLOW]),
)
def test_copies_never_take_more_than_the_host_has(
    step: StepTrace, share: float, host_share: float, link: Link
) -> None:
    capacity = capacity_of(step, share)
    free = compile_program(plan(step, capacity, link, min_swap_bytes=1), step).host.pool_bytes
    check(step, capacity, max(1, int(host_share * free)), link)


@examples(60)
@given(
    step=st.builds(random_calls_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40)),
    share=st.floats(0, 0.9),
    host_share=st.floats(0.05, 1.2),
)
def test_what_the_host_has_no_room_for_is_made_again(
    step: StepTrace, share: float, host_share: float
) -> None:
    capacity = capacity_of(step, share)
    free = plan(step, capacity, SLOW, min_swap_bytes=1, rematerialize=True)
    pool_bytes = compile_program(free, step).host.pool_bytes
    check(step, capacity, max(1, int(host_share * pool_bytes)), SLOW, rematerialize=True)


def test_as_many_bytes_as_have_to_leave_are_enough() -> None:
    """Without replays as many copies have to be there as the device has too little; a plan needs hardly more."""
    step = gpt_step()
    for share in (0.3, 0.5, 0.7, 0.85):
        capacity = int(share * step.live_peak_bytes)
        least = step.live_peak_bytes - capacity
        assert check(step, capacity, int(1.08 * least), SLOW)
        assert not check(step, capacity, int(0.99 * least), SLOW)


@examples(60)
@given(
    step=st.builds(
        random_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40), storages=st.integers(1, 14)
    ),
    share=st.floats(0, 0.9),
    host_bytes=st.integers(1, 1 << 19),
)
def test_no_plan_goes_below_the_floor(step: StepTrace, share: float, host_bytes: int) -> None:
    capacity = capacity_of(step, share)
    lowest = floor_within(step, host_bytes, min_swap_bytes=1)
    assert lowest.bytes >= floor(step, min_swap_bytes=1).bytes
    if check(step, capacity, host_bytes, FAST):
        assert capacity >= lowest.bytes


def test_a_limit_that_is_not_reached_changes_no_plan() -> None:
    step = gpt_step()
    capacity = int(0.5 * step.live_peak_bytes)
    free = plan(step, capacity, SLOW)
    pool_bytes = compile_program(free, step).host.pool_bytes
    same = plan(step, capacity, SLOW, host_capacity_bytes=pool_bytes)
    assert same.decisions == free.decisions
    assert compile_program(same, step).host.kept.all()


def test_copies_that_are_only_kept_go_first() -> None:
    """A little less than all: the same bytes leave, and some copies are made again."""
    step = gpt_step()
    capacity = int(0.3 * step.live_peak_bytes)
    free = plan(step, capacity, FAST)
    host = compile_program(free, step).host
    tight = plan(step, capacity, FAST, host_capacity_bytes=int(0.97 * host.pool_bytes))
    program = compile_program(tight, step)
    swapped = np.unique(program.action_storage[program.action_kind == SWAP_OUT])
    assert not program.host.kept[swapped].all()
    assert simulate(step, tight).swapped_out_bytes >= simulate(step, free).swapped_out_bytes


def test_a_sweep_knows_the_host() -> None:
    step = gpt_step()
    free = sweep(step, None, SLOW)
    most = max(point.host_peak_bytes for point in free.points)
    bounded = sweep(step, [p.capacity_bytes for p in free.points], SLOW, host_capacity_bytes=most // 2)
    assert bounded.floor.bytes > free.floor.bytes
    assert 0 < sum(point.feasible for point in bounded.points) < len(free.points)
    assert all(point.host_peak_bytes <= most // 2 for point in bounded.points)
    assert "On the host" in str(bounded) and "below the floor" in str(bounded)


def test_a_policy_file_says_what_it_was_planned_within(tmp_path) -> None:
    step = gpt_step()
    made = plan(step, int(0.5 * step.live_peak_bytes), SLOW, host_capacity_bytes=1 << 26)
    made.save(tmp_path / "policy.json")
    assert Policy.load(tmp_path / "policy.json").host_capacity_bytes == 1 << 26
    assert simulate(step, made, host_capacity_bytes=1 << 20).fits is False
