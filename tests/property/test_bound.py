"""The lower bound against every policy there is, on steps that are small enough to try them all."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from synthetic import random_step

from chameleon_lab.policy import Link, lower_bound, plan, simulate
from chameleon_lab.policy.memory import StepMemory, Swaps, step_memory
from chameleon_lab.policy.simulate import simulate_swaps
from chameleon_lab.trace import StepTrace

MOST_POLICIES = 1500


def every_choice(memory: StepMemory) -> list[list[tuple[int, int] | None]]:
    """Of each gap: keep it, or free its block and have it back at any ops."""
    choices = []
    gaps = zip(memory.gap_out.tolist(), memory.gap_use.tolist(), memory.gap_returns.tolist(), strict=True)
    for out, use, returns in gaps:
        places = [
            (free, back)
            for free in range(out + 1, use + 1)
            for back in (range(free, use + 1) if returns else (use,))
        ]
        choices.append([None, *places])
    return choices


def swaps_of(memory: StepMemory, places: tuple[tuple[int, int] | None, ...]) -> Swaps:
    gaps = np.array([gap for gap, place in enumerate(places) if place], dtype=np.int64)
    free, back = np.array([place for place in places if place], dtype=np.int64).reshape(-1, 2).T
    d = memory.dormant
    never = np.full(len(d), -1, dtype=np.int64)
    columns = (
        (memory.gap_storage[gaps], d),
        (memory.gap_ordinal[gaps], never),
        (memory.gap_out[gaps], never + 1),
        (free, never + 2),
        (back, never),
        (memory.gap_use[gaps], never),
        (memory.gap_returns[gaps], never >= 0),
    )
    return Swaps(*(np.concatenate(column) for column in columns))


def best_by_capacity(step: StepTrace, link: Link) -> dict[int, float]:
    """The least stall of all policies at each capacity that makes a difference."""
    memory = step_memory(step)
    choices = every_choice(memory)
    assume(1 < np.prod([len(choice) for choice in choices], dtype=float) <= MOST_POLICIES)
    by_peak: dict[int, float] = {}
    for places in itertools.product(*choices):
        predicted = simulate_swaps(memory, swaps_of(memory, places), 0, link, step.ops.duration_s)
        by_peak[predicted.peak_bytes] = min(by_peak.get(predicted.peak_bytes, np.inf), predicted.stall_s)
    best: dict[int, float] = {}
    least = np.inf
    for peak in sorted(by_peak):
        least = best[peak] = min(least, by_peak[peak])
    return best


@settings(max_examples=80, deadline=None)
@given(
    step=st.builds(
        random_step, seed=st.integers(0, 10**6), ops=st.integers(3, 6), storages=st.integers(1, 3)
    ),
    link=st.sampled_from([Link(2e7, 3e7), Link(1e7, None), Link(None, 1e7)]),
)
def test_no_policy_at_all_beats_the_bound_nor_the_plan_the_best(step: StepTrace, link: Link) -> None:
    times = step.ops.duration_s
    tolerance = 1e-6 * (1.0 + step.duration_s)
    for capacity, best_s in best_by_capacity(step, link).items():
        assert (
            lower_bound(step, capacity, link, times, checkpoints=len(step.ops)).stall_s <= best_s + tolerance
        )
        planned = simulate(step, plan(step, capacity, link, op_times=times), op_times=times)
        assert planned.fits
        assert planned.stall_s >= best_s - tolerance
