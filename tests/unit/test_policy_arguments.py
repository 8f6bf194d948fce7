"""What the public functions say of arguments that are none."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import gpt_step

from chameleon_lab.policy import Link, floor, lower_bound, plan, simulate, sweep

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
        assert plan(STEP, same, LINK) == plan(STEP, HALF, LINK)  # type: ignore[arg-type]


@pytest.mark.parametrize("link", [None, 25e9, "8GiB/s", (1e9, 1e9)])
def test_a_link_that_is_none(link: Any) -> None:
    for function in (plan, lower_bound):
        with pytest.raises(TypeError, match="give a Link"):
            function(STEP, HALF, link)
    with pytest.raises(TypeError, match="give a Link"):
        sweep(STEP, None, link)
    if link is not None:
        with pytest.raises(TypeError, match="give a Link"):
            simulate(STEP, plan(STEP, HALF, LINK), link=link)


@pytest.mark.parametrize("trace", [None, [], {"ops": 3}])
def test_a_trace_that_is_none(trace: Any) -> None:
    for call in (lambda: plan(trace, HALF, LINK), lambda: floor(trace), lambda: sweep(trace, None, LINK)):
        with pytest.raises(TypeError, match="no trace"):
            call()


def test_a_policy_that_is_none() -> None:
    with pytest.raises(TypeError, match="give a Policy"):
        simulate(STEP, None)  # type: ignore[arg-type]
