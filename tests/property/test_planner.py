"""Promises of the planner, on arbitrary small steps: it fits, it restores before use, it is deterministic."""

from __future__ import annotations

import random as stdlib_random
import tempfile
from itertools import product

import numpy as np
import pytest
from examples import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st
from synthetic import random_step

from chameleon_lab.errors import BelowFloorError
from chameleon_lab.lab.panel.predicted import predicted_step
from chameleon_lab.planner import floor, lower_bound, plan, simulate
from chameleon_lab.planner.memory import LEAST_SWAP_BYTES, StepMemory, Swaps, step_memory, step_op_times
from chameleon_lab.planner.native import RangeMax
from chameleon_lab.planner.passes import Way, plan_swaps
from chameleon_lab.planner.program import FREE, SWAP_IN, Program, compile_program
from chameleon_lab.planner.simulate import simulate_swaps
from chameleon_lab.policy import Link, Policy
from chameleon_lab.trace import StepTrace, Trace
from chameleon_lab.trace.overlap import overlap_of

LINKS = [Link(None, None), Link(1e9, 1e9), Link(1e6, 3e6), Link(2e7, None)]

steps = st.builds(
    random_step, seed=st.integers(0, 10**6), ops=st.integers(1, 40), storages=st.integers(1, 14)
)


def capacity_of(step: StepTrace, share: float) -> int:
    """A capacity between the floor (share 0) and the live peak (share 1)."""
    lowest = int(
        step_memory(step, LEAST_SWAP_BYTES).least_bytes().max()
    )  # of policies alone, without eviction
    return max(1, lowest + int(share * (step.live_peak_bytes - lowest)))


def replay(program: Program, step: StepTrace, periods: int = 4) -> np.ndarray:
    """Run the actions over and over, as the executor does; the bytes at each op of the last step.

    Knows nothing of gaps: only storages, their uses, and the three kinds of action.
    """
    n = program.ops
    persistent = program.uid >= 0
    uses = [
        set(program.uses_op[program.uses_offset[s] : program.uses_offset[s + 1]].tolist())
        for s in range(len(program.storage_row))
    ]
    death = step.storages.death_op[program.storage_row]
    away: set[int] = set()
    copied: set[int] = set()
    resident = np.zeros(n, dtype=np.int64)
    actions = list(zip(program.action_op, program.action_kind, program.action_storage, strict=True))
    for _ in range(periods):
        for op in range(n):
            for at, kind, s in actions:
                if at == op and kind == FREE and s in copied:
                    copied.discard(s)
                    away.add(s)
                elif at == op and kind == SWAP_IN:
                    away.discard(s)
            away -= {s for s in away if not persistent[s] and op > death[s]}  # it dies away
            for s in away:
                assert op not in uses[s], f"op {op} uses storage {s}, which is away"
                assert program.birth_op[s] < op <= death[s] or persistent[s], (
                    f"storage {s} is away at op {op} without being alive"
                )
            gone = sum(int(program.block_bytes[s]) for s in away)
            resident[op] = int(step.ops.live_peak_bytes[op]) - gone
            for at, kind, s in actions:
                if at == op and kind not in (FREE, SWAP_IN) and s not in away:
                    copied.add(s)
        away = {s for s in away if persistent[s]}  # the others are new ones in the next step
        copied = {s for s in copied if persistent[s]}
    return resident


# These need the repair pass: by new swaps, by freeing earlier, by coming back later.
@example(step=random_step(279, 8, 10), share=0.2, link=Link(None, None))
@example(step=random_step(449, 8, 10), share=0.8, link=Link(None, None))
@example(step=random_step(1206, 8, 10), share=0.0, link=Link(1e6, 3e6))
@example(step=random_step(2694, 8, 10), share=0.0, link=Link(1e6, 3e6))
@example(step=random_step(189, 20, 10), share=0.2, link=Link(1e6, 3e6))
@examples(1000)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(LINKS))
def test_plan_fits_and_restores_before_use(step: StepTrace, share: float, link: Link) -> None:
    capacity = capacity_of(step, share)
    policy = plan(step, capacity, link)
    program = compile_program(policy, step)
    assert program.unmatched == ()
    resident = replay(program, step)
    assert resident.max() <= capacity
    prediction = simulate(step, policy)
    np.testing.assert_array_equal(prediction.resident_bytes, resident)
    assert prediction.fits
    assert prediction.stall_s >= 0
    drawn = overlap_of(predicted_step(policy, step, step_op_times(step)))
    assert prediction.overlap == (None if drawn is None else pytest.approx(drawn, abs=1e-6))


@examples(300)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(LINKS), seed=st.integers(0, 100))
def test_swaps_fit_in_every_way(step: StepTrace, share: float, link: Link, seed: int) -> None:
    capacity, memory = capacity_of(step, share), step_memory(step, LEAST_SWAP_BYTES)
    times = np.random.default_rng(seed).random(memory.ops) * 1e-3
    for way in (Way(early, longest) for early, longest in product((False, True), repeat=2)):
        swaps = plan_swaps(memory, capacity, link, times, way)
        moves = swaps.taken(swaps.in_op >= 0)
        assert (moves.out_op < moves.free_op).all() and (moves.free_op <= moves.in_op).all()
        assert (moves.in_op <= moves.use_op).all()
        assert simulate_swaps(memory, swaps, capacity, link, times).fits


@examples(100)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(LINKS))
def test_plan_is_deterministic_and_survives_its_file(step: StepTrace, share: float, link: Link) -> None:
    policy = plan(step, capacity_of(step, share), link)
    assert plan(step, capacity_of(step, share), link) == policy
    assert Policy.from_json(policy.to_json()) == policy


@examples(25)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(LINKS))
def test_saved_and_loaded_both_trace_and_policy_say_the_same(
    step: StepTrace, share: float, link: Link
) -> None:
    capacity = capacity_of(step, share)
    policy = plan(step, capacity, link)
    with tempfile.TemporaryDirectory() as folder:
        Trace([step]).save(f"{folder}/trace.parquet")
        policy.save(f"{folder}/policy.json")
        trace, again = Trace.load(f"{folder}/trace.parquet"), Policy.load(f"{folder}/policy.json")
    assert plan(trace, capacity, link) == policy == again
    assert str(simulate(trace, again)) == str(simulate(step, policy))


@examples(200)
@given(step=steps, link=st.sampled_from(LINKS))
def test_floor_is_the_border(step: StepTrace, link: Link) -> None:
    lowest = floor(step)
    assume(lowest.bytes > 1)
    assert plan(step, lowest.bytes, link).predicted["peak_bytes"] <= lowest.bytes
    with pytest.raises(BelowFloorError, match=f"op {lowest.op},"):
        plan(step, lowest.bytes - 1, link)


@examples(50)
@given(step=steps, above=st.integers(0, 10**6), link=st.sampled_from(LINKS))
def test_capacity_of_the_peak_needs_no_decisions(step: StepTrace, above: int, link: Link) -> None:
    assert plan(step, step.live_peak_bytes + above, link).decisions == ()


def random_swaps(memory: StepMemory, random: np.random.Generator, share: float) -> Swaps:
    """Any swaps at all: about ``share`` of the gaps, freed and back at any ops."""
    gaps = np.flatnonzero(random.random(len(memory.gap_out)) < share)
    use = memory.gap_use[gaps]
    free = random.integers(memory.gap_out[gaps] + 1, use + 1)
    back = np.where(memory.gap_returns[gaps], random.integers(free, use + 1), use)
    return memory.swaps(gaps, free, back, memory.dormant)


def assert_not_beaten(
    bound_s: float, stall_s: float, step: StepTrace, memory: StepMemory, link: Link
) -> None:
    """The solver is exact to about 1e-7 of a step's compute and copies."""
    copies_s = link.out_s(int(memory.live_bytes.max())) + link.in_s(int(memory.live_bytes.max()))
    assert stall_s >= bound_s - 1e-6 * (step.duration_s + copies_s)


@examples(500)
@given(step=steps, share=st.floats(0, 1), link=st.sampled_from(LINKS), checkpoints=st.integers(1, 40))
def test_no_plan_beats_the_lower_bound(step: StepTrace, share: float, link: Link, checkpoints: int) -> None:
    capacity = capacity_of(step, share)
    times = step.ops.duration_s
    prediction = simulate(step, plan(step, capacity, link), op_times=times)
    bound = lower_bound(step, capacity, link, times, checkpoints=checkpoints)
    assert_not_beaten(bound.stall_s, prediction.stall_s, step, step_memory(step), link)


@examples(1000)
@given(
    step=steps,
    link=st.sampled_from(LINKS),
    share=st.floats(0, 1),
    checkpoints=st.integers(1, 40),
    seed=st.integers(0, 10**6),
)
def test_no_swaps_beat_the_lower_bound(
    step: StepTrace, link: Link, share: float, checkpoints: int, seed: int
) -> None:
    memory, times = step_memory(step), step.ops.duration_s
    swaps = random_swaps(memory, np.random.default_rng(seed), share)
    prediction = simulate_swaps(memory, swaps, 0, link, times)
    bound = lower_bound(step, max(1, prediction.peak_bytes), link, times, checkpoints=checkpoints)
    assert_not_beaten(bound.stall_s, prediction.stall_s, step, memory, link)


@examples(100)
@given(made_for=steps, run=steps, share=st.floats(0, 1))
def test_policy_of_another_step_is_safe(made_for: StepTrace, run: StepTrace, share: float) -> None:
    policy = plan(made_for, capacity_of(made_for, share), Link(None, None))
    program = compile_program(policy, run)
    replay(program, run)
    compiled = int((program.action_kind == FREE).sum())
    assert compiled + len(program.unmatched) == len(policy.decisions)


@examples(100)
@given(values=st.lists(st.integers(-50, 50), min_size=1, max_size=40), seed=st.integers(0, 10**6))
def test_range_max_agrees_with_a_list(values: list[int], seed: int) -> None:
    random = stdlib_random.Random(seed)
    tree, plain = RangeMax(values), list(values)
    for _ in range(20):
        begin, end = sorted((random.randint(0, len(values)), random.randint(0, len(values))))
        amount, bound = random.randint(-20, 20), random.randint(-60, 60)
        tree.add(begin, end, amount)
        plain[begin:end] = [value + amount for value in plain[begin:end]]
        begin, end = sorted((random.randint(0, len(values)), random.randint(0, len(values))))
        found = [i for i in range(begin, end) if plain[i] > bound]
        assert tree.last_above(begin, end, bound) == (found[-1] if found else begin - 1)
