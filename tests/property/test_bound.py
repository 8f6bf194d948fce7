"""The lower bound against every policy there is, on steps that are small enough to try them all."""

from __future__ import annotations

import itertools

import numpy as np
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from placements import every_choice, swaps_of
from synthetic import random_step

from chameleon_lab.planner import lower_bound, plan, simulate
from chameleon_lab.planner.memory import step_memory
from chameleon_lab.planner.simulate import simulate_swaps
from chameleon_lab.policy import Link
from chameleon_lab.trace import StepTrace

MOST_POLICIES = 1500


def policies_of(step: StepTrace) -> float:
    """How many policies a step has."""
    return float(np.prod([len(choice) for choice in every_choice(step_memory(step))], dtype=float))


def best_by_capacity(step: StepTrace, link: Link) -> dict[int, float]:
    """The least stall of all policies at each capacity that makes a difference."""
    memory = step_memory(step)
    choices = every_choice(memory)
    by_peak: dict[int, float] = {}
    for places in itertools.product(*choices):
        predicted = simulate_swaps(memory, swaps_of(memory, places), 0, link, step.ops.duration_s)
        by_peak[predicted.peak_bytes] = min(by_peak.get(predicted.peak_bytes, np.inf), predicted.stall_s)
    best: dict[int, float] = {}
    least = np.inf
    for peak in sorted(by_peak):
        least = best[peak] = min(least, by_peak[peak])
    return best


def test_the_bound_is_no_idle_one() -> None:
    """Zero is a bound, too. Where the best policy stalls, this one is mostly above it, and near the best somewhere."""
    shares = []
    for seed in range(160):
        step = random_step(seed=seed, ops=3 + seed % 4, storages=1 + seed % 3)
        link = [Link(2e7, 3e7), Link(1e7, None), Link(None, 1e7)][seed % 3]
        if policies_of(step) > MOST_POLICIES:
            continue
        for capacity, best_s in best_by_capacity(step, link).items():
            if best_s > 1e-6 * (1.0 + step.duration_s):
                bound = lower_bound(step, capacity, link, step.ops.duration_s, checkpoints=len(step.ops))
                shares.append(bound.stall_s / best_s)
    assert len(shares) > 10
    assert np.mean(np.array(shares) > 1e-6) > 0.5 and max(shares) > 0.7


@examples(80)
@given(
    step=st.builds(
        random_step, seed=st.integers(0, 10**6), ops=st.integers(3, 6), storages=st.integers(1, 3)
    ),
    link=st.sampled_from([Link(2e7, 3e7), Link(1e7, None), Link(None, 1e7)]),
)
def test_no_policy_at_all_beats_the_bound_nor_the_plan_the_best(step: StepTrace, link: Link) -> None:
    assume(1 < policies_of(step) <= MOST_POLICIES)
    times = step.ops.duration_s
    tolerance = 1e-6 * (1.0 + step.duration_s)
    for capacity, best_s in best_by_capacity(step, link).items():
        bound_s = lower_bound(step, capacity, link, times, checkpoints=len(step.ops)).stall_s
        assert bound_s <= best_s + tolerance
        planned = simulate(step, plan(step, capacity, link, op_times=times), op_times=times)
        assert planned.fits
        assert planned.stall_s >= best_s - tolerance
