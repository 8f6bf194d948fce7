"""What the public functions say of arguments that are none."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import gpt_step

from chameleon_lab.planner import floor, lower_bound, plan, simulate, sweep
from chameleon_lab.policy import Link

STEP = gpt_step()
LINK = Link(1e9, 1e9)
HALF = STEP.live_peak_bytes // 2


@pytest.mark.parametrize("capacity", [float("nan"), float("inf"), -3, 0, True, None, "much", [HALF]])
def test_a_capacity_that_is_none(capacity: Any) -> None:
    policy = plan(STEP, HALF, LINK)
    with pytest.raises((ValueError, TypeError), match="capacity_bytes"):
        plan(STEP, capacity, LINK)
    with pytest.raises((ValueError, TypeError), match="capacity_bytes"):
        lower_bound(STEP, capacity, LINK)
    with pytest.raises((ValueError, TypeError), match="capacity_bytes"):
        sweep(STEP, [HALF, capacity], LINK)
    if capacity is not None:
        with pytest.raises((ValueError, TypeError), match="capacity_bytes"):
            simulate(STEP, policy, capacity)


def test_a_capacity_may_be_text_or_any_number() -> None:
    for same in (float(HALF), f"{HALF}"):
        assert plan(STEP, same, LINK) == plan(STEP, HALF, LINK)


@pytest.mark.parametrize("fraction", ["60%", "0.6", 0.6])
def test_a_capacity_may_be_a_fraction_of_what_the_step_keeps_alive(fraction: Any) -> None:
    size = int(0.6 * STEP.live_peak_bytes)
    policy = plan(STEP, size, LINK, host_capacity_bytes=size)
    assert plan(STEP, fraction, LINK, host_capacity_bytes=fraction) == policy
    assert simulate(STEP, policy, fraction).capacity_bytes == size
    assert sweep(STEP, [fraction], LINK).points[0].capacity_bytes == size
    assert lower_bound(STEP, fraction, LINK, checkpoints=8).capacity_bytes == size
    assert policy.draft().set_capacity(fraction).capacity_bytes == size


def test_other_sizes_and_fractions_may_be_text() -> None:
    policy = plan(STEP, HALF, LINK, margin=0.05, min_swap_bytes=1 << 16, rematerialize=1)
    assert plan(STEP, HALF, LINK, margin="5%", min_swap_bytes="64KiB", rematerialize="cheap") == policy
    assert sweep(STEP, [HALF], LINK, within="5%").within == 0.05


@pytest.mark.parametrize("link", ["1e9,2e9", (1e9, 2e9), ["1e9", 2e9], Link(1e9, 2e9), "1000000000 , 2GB/s"])
def test_a_link_may_be_written_in_many_ways(link: Any) -> None:
    for made in (plan(STEP, HALF, link), plan(STEP, HALF, LINK).draft().set_link(link)):
        assert made.link == Link(1e9, 2e9)
    assert sweep(STEP, [HALF], link).link == Link(1e9, 2e9)
    assert plan(STEP, HALF, "1GB/s").link == LINK


@pytest.mark.parametrize("link", [None, "8GiB", (1e9,), "1e9,2e9,3e9", 0, True])
def test_a_link_that_is_none(link: Any) -> None:
    for function in (plan, lower_bound):
        with pytest.raises((ValueError, TypeError), match="link"):
            function(STEP, HALF, link)
    with pytest.raises((ValueError, TypeError), match="link"):
        sweep(STEP, None, link)
    if link is not None:
        with pytest.raises((ValueError, TypeError), match="link"):
            simulate(STEP, plan(STEP, HALF, LINK), link=link)


@pytest.mark.parametrize("trace", [None, [], {"ops": 3}])
def test_a_trace_that_is_none(trace: Any) -> None:
    for call in (lambda: plan(trace, HALF, LINK), lambda: floor(trace), lambda: sweep(trace, None, LINK)):
        with pytest.raises(TypeError, match="no trace"):
            call()


def test_a_policy_that_is_none() -> None:
    with pytest.raises(TypeError, match="give a Policy"):
        simulate(STEP, None)  # type: ignore[arg-type]
