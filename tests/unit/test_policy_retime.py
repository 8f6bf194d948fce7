"""Plans that give memory back sooner and take it later, where copies have time for that."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.planner.generate import plan
from chameleon_lab.planner.memory import StepMemory, Swaps
from chameleon_lab.planner.retime import RESERVE, retimed
from chameleon_lab.planner.simulate import simulate
from chameleon_lab.policy import Link

MIB = 1 << 20


def _memory(ops: int, gaps: list[tuple[int, int]]) -> StepMemory:
    """Storages of 1 MiB, each with one gap between two reads."""
    count = len(gaps)
    out, use = np.array(gaps, dtype=np.int64).T
    return StepMemory(
        ops=ops,
        live_bytes=np.full(ops, count * MIB),
        row=np.arange(count),
        block_bytes=np.full(count, MIB),
        persistent=np.zeros(count, dtype=bool),
        uses_offset=2 * np.arange(count + 1),
        uses_op=np.array(gaps, dtype=np.int64).ravel(),
        uses_write=np.tile([True, False], count),
        gap_storage=np.arange(count),
        gap_ordinal=np.zeros(count, dtype=np.int64),
        gap_out=out,
        gap_use=use,
        gap_returns=np.ones(count, dtype=bool),
        dormant=np.empty(0, dtype=np.int64),
    )


def _swaps(gaps: list[tuple[int, int]], free_op: int, in_op: int) -> Swaps:
    out, use = np.array(gaps, dtype=np.int64).T
    alike = np.ones(len(gaps), dtype=np.int64)
    return Swaps(
        np.arange(len(gaps)), 0 * alike, out, free_op * alike, in_op * alike, use, alike.astype(bool)
    )


CLOCK = np.full(100, 0.01)  # a step of a second
TENTH = round(RESERVE * 100)


def test_a_block_leaves_after_its_copy_and_returns_before_its_use_with_a_reserve() -> None:
    gaps = [(5, 80)]
    new = retimed(_memory(100, gaps), _swaps(gaps, 40, 41), Link(MIB / 0.045, MIB / 0.045), CLOCK)
    # Copies of four and a half ops: the one out ends within op 10, and the one back has to begin within op 75.
    assert new.free_op.tolist() == [11 + TENTH]
    assert new.in_op.tolist() == [75 - TENTH]


def test_copies_queue() -> None:
    gaps = [(5, 80), (6, 81), (7, 82)]
    new = retimed(_memory(100, gaps), _swaps(gaps, 40, 41), Link(MIB / 0.095, MIB / 0.095), CLOCK)
    assert new.free_op.tolist() == [16 + TENTH, 25 + TENTH, 40], "none leaves later than before"
    assert new.in_op.tolist() == [53 - TENTH, 63 - TENTH, 72 - TENTH]


def test_nothing_is_held_longer_than_before() -> None:
    gaps = [(5, 30), (6, 31)]
    old = _swaps(gaps, 8, 29)
    new = retimed(_memory(100, gaps), old, Link(MIB / 0.2, MIB / 0.2), CLOCK)
    assert (new.free_op == old.free_op).all() and (new.in_op == old.in_op).all()


def test_a_use_in_the_next_step_counts_from_there() -> None:
    gaps = [(90, 120)]
    new = retimed(_memory(100, gaps), _swaps(gaps, 95, 96), Link(None, MIB / 0.045), CLOCK)
    assert new.in_op.tolist() == [115 - TENTH]
    assert new.free_op.tolist() == [95]


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_a_plan_with_op_times_leaves_more_room_and_stalls_no_more(share: float) -> None:
    step = gpt_step()
    capacity, link = int(share * step.live_peak_bytes), Link(2e9, 2e9)
    times = np.asarray(step.ops.duration_s, dtype=np.float64)
    told, guessed = plan(step, capacity, link, op_times=times), plan(step, capacity, link)
    with_times, without = (simulate(step, policy, op_times=times) for policy in (told, guessed))
    assert with_times.peak_bytes <= capacity
    assert with_times.stall_s <= without.stall_s + 1e-9
    assert with_times.resident_bytes.sum() < without.resident_bytes.sum()
