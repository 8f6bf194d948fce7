"""Eviction in the simulator: what a policy leaves behind leaves, furthest next use first."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import StepBuilder, gpt_step, random_step

from chameleon_lab.planner import StallCause, floor, plan, simulate
from chameleon_lab.policy import Link, Policy
from chameleon_lab.trace import Category

MIB = 1 << 20


def no_policy(capacity: int) -> Policy:
    return Policy(capacity, Link(None, None), ())


def test_what_is_used_furthest_in_the_future_leaves() -> None:
    maker = StepBuilder()
    (near,) = maker.op("near", makes=((Category.ACTIVATION, MIB),))
    (far,) = maker.op("far", makes=((Category.ACTIVATION, MIB),))
    maker.op("rest")
    (new,) = maker.op("new", makes=((Category.ACTIVATION, MIB),))
    maker.free(new)
    maker.op("use near", reads=(near,))
    maker.op("use far", reads=(far,))
    maker.free(near, far)
    prediction = simulate(maker.build(), no_policy(2 * MIB), link=Link(MIB, MIB), evict=True)
    assert prediction.peak_bytes == 2 * MIB
    assert prediction.swapped_out_bytes == prediction.swapped_in_bytes == MIB
    assert prediction.stall_by_cause[StallCause.SWAP_OUT] == pytest.approx(1.0)
    assert prediction.stall_by_cause[StallCause.DEMAND] == pytest.approx(1.0)
    waited = {prediction.waits.op[k]: prediction.waits.storage[k] for k in range(len(prediction.waits))}
    assert waited == {3: far, 5: far}


@pytest.mark.parametrize("seed", range(20))
def test_from_the_floor_on_eviction_alone_keeps_within_the_capacity(seed: int) -> None:
    step = random_step(seed, 30, 12)
    for share in (0.0, 0.4, 0.8):
        least = floor(step).bytes
        capacity = int(least + share * (step.live_peak_bytes - least))
        without = simulate(step, no_policy(capacity))
        prediction = simulate(step, no_policy(capacity), evict=True)
        assert prediction.fits
        assert np.all(prediction.resident_bytes <= without.resident_bytes)


def test_a_plan_that_fits_needs_none() -> None:
    step = gpt_step()
    capacity = int(0.6 * step.live_peak_bytes)
    policy = plan(step, capacity, Link(1e9, 1e9))
    assert simulate(step, policy).step_s == simulate(step, policy, evict=True).step_s


def test_a_plan_for_a_shorter_sequence_is_made_up_for() -> None:
    short, long = gpt_step(tokens=4), gpt_step(tokens=8)
    capacity = int(1.2 * floor(long).bytes)
    policy = plan(short, min(capacity, int(0.9 * short.live_peak_bytes)), Link(1e9, 1e9))
    assert not simulate(long, policy, capacity).fits
    assert simulate(long, policy, capacity, evict=True).fits
