"""Candidates, gaps, the bytes at each op, and the floor."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from synthetic import StepBuilder, gpt_step

from chameleon_lab.errors import BelowFloorError, TraceError
from chameleon_lab.planner import floor, plan
from chameleon_lab.planner.memory import Swaps, step_memory, step_op_times
from chameleon_lab.policy import Link
from chameleon_lab.trace import Category, Stage, StepTrace, Trace
from chameleon_lab.trace.trace import newest_step

BIG = 1 << 20


def gaps(step: StepTrace) -> list[tuple[int, int, int, int]]:
    """(storage row, ordinal, u, v) of every gap."""
    memory = step_memory(step)
    columns = (memory.row[memory.gap_storage], memory.gap_ordinal, memory.gap_out, memory.gap_use)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def step_with(*uses: int, ops: int = 8, **changes: object) -> StepTrace:
    """``ops`` ops, and a persistent parameter that is read in ``uses``."""
    step = StepBuilder()
    row = step.carried(Category.PARAMETER, BIG, "w", **changes)
    for i in range(ops):
        step.op("aten::mm", reads=(row,) if i in uses else ())
    return step.build()


def test_persistent_storage_has_a_gap_over_the_end_of_the_step() -> None:
    assert gaps(step_with(2, 5)) == [(0, 0, 2, 5), (0, 1, 5, 10)]


def test_single_use_leaves_a_gap_of_a_whole_step() -> None:
    assert gaps(step_with(3)) == [(0, 0, 3, 11)]


def test_neighboring_uses_leave_no_gap() -> None:
    assert gaps(step_with(3, 4)) == [(0, 1, 4, 11)]
    assert gaps(step_with(*range(8))) == []


@pytest.mark.parametrize("size, movable", [(1 << 13, True), (BIG, False)])
def test_small_and_pinned_storages_are_no_candidates(size: int, movable: bool) -> None:
    step = StepBuilder()
    row = step.carried(Category.PARAMETER, size, movable=movable)
    for i in range(6):
        step.op("aten::mm", reads=(row,) if i in (0, 5) else ())
    memory = step_memory(step.build())
    assert len(memory.row) == 0
    assert memory.least_bytes().tolist() == [size] * 6


def test_min_swap_bytes_is_inclusive() -> None:
    step = step_with(0, 4)
    assert len(step_memory(step, BIG).row) == 1
    assert len(step_memory(step, BIG + 1).row) == 0


def test_storage_left_behind_by_the_step_before_is_no_candidate() -> None:
    step = StepBuilder()
    row = step.carried(Category.GRADIENT, BIG)
    for i in range(8):
        step.op("aten::mm", reads=(row,) if i in (2, 5) else ())
        if i == 6:
            step.free(row)
    assert gaps(step.build()) == []


def test_dead_time_is_a_gap_without_a_return() -> None:
    step = StepBuilder()
    (row,) = step.op("aten::mm", makes=((Category.GRADIENT, BIG),))
    for i in range(1, 8):
        step.op("aten::mm", reads=(row,) if i == 4 else ())
    assert gaps(step.build()) == [(0, 0, 0, 4), (0, 1, 4, 8)]
    assert step_memory(step.build()).gap_returns.tolist() == [True, False]


def test_birth_in_an_allocating_op_opens_no_gap() -> None:
    step = StepBuilder()
    (row,) = step.op("aten::empty", makes=((Category.INPUT, BIG),))
    for i in range(1, 8):
        step.op("aten::mm", reads=(row,) if i in (3, 7) else ())
    assert gaps(step.build()) == [(0, 1, 3, 7)]


def test_birth_counts_as_a_use_even_if_the_recorder_missed_it() -> None:
    step = StepBuilder()
    (row,) = step.op("aten::mm", makes=((Category.ACTIVATION, BIG),))
    for i in range(1, 6):
        step.op("aten::mm", reads=(row,) if i == 5 else ())
    step.uses.pop((0, row))
    memory = step_memory(step.build())
    assert memory.uses_op.tolist() == [0, 5]
    assert memory.uses_write.tolist() == [True, False]


def test_dormant_storages_are_found() -> None:
    memory = step_memory(step_with())
    assert memory.dormant.tolist() == [0]
    assert memory.least_bytes().tolist() == [0] * 8


def test_away_bytes_wrap_into_the_next_step() -> None:
    memory = step_memory(step_with(5, 2))
    away = memory.away_bytes(np.array([0]), np.array([6]), np.array([9]))
    assert (away // BIG).tolist() == [1, 0, 0, 0, 0, 0, 1, 1]
    after_the_end = memory.away_bytes(np.array([0]), np.array([8]), np.array([10]))
    assert (after_the_end // BIG).tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    forever = memory.away_bytes(np.array([0]), np.array([1]), np.array([-1]))
    assert (forever // BIG).tolist() == [1] * 8


def test_clean_swaps_are_told_from_dirty_ones() -> None:
    step = StepBuilder()
    written = step.carried(Category.PARAMETER, BIG, "w")
    frozen = step.carried(Category.PARAMETER, BIG, "frozen")
    for i in range(12):
        used = i in (0, 4, 8)
        step.op("aten::mm", reads=(written, frozen) if used else (), writes=(written,) if i == 8 else ())
    memory = step_memory(step.build())
    assert memory.gap_storage.tolist() == [0, 0, 0, 1, 1, 1]

    def needs_copy(*taken: int) -> list[bool]:
        columns = (memory.gap_storage, memory.gap_ordinal, memory.gap_out, memory.gap_out + 1)
        columns = (*columns, memory.gap_use, memory.gap_use, memory.gap_returns)
        return Swaps(*(column[list(taken)] for column in columns)).needs_copy(memory).tolist()

    # After the write at op 8 the host copy is stale; from then on it stays good until op 8 of the next step.
    assert needs_copy(0, 1, 2) == [False, False, True]
    assert needs_copy(0, 1) == [True, False]
    assert needs_copy(1) == [True]
    # What is never written is copied once, in the first step.
    assert needs_copy(3, 5) == [False, False]
    assert needs_copy(2, 3) == [True, False]
    # Where no copy outlives its storage's stay on the host, all have to copy.
    memory = step_memory(replace(step.build(), keeps_host_copies=False))
    assert needs_copy(0, 1, 2) == [True] * 3 and needs_copy(3, 5) == [True] * 2
    assert needs_copy() == []


def test_floor_is_the_working_set_and_what_has_no_next_use_may_leave() -> None:
    lowest = floor(gpt_step(layers=4, size=BIG, tokens=4))
    # Three activations. Of the next op, a mm, the layer's input has had its last use, and dies while the op runs.
    assert (lowest.op_name, lowest.stage) == ("aten::gelu_backward", "backward")
    assert lowest.bytes == lowest.working_set_bytes == 3 * 4 * BIG


def test_what_dies_in_an_op_that_does_not_use_it_may_leave_before() -> None:
    """As gradients do in the most common loop: zero_grad comes first, and reads of the loss before it."""
    step = StepBuilder()
    gradient = step.carried(Category.GRADIENT, 8 * BIG)
    loss = step.carried(Category.ACTIVATION, BIG)
    step.op("aten::item", reads=(loss,))
    step.free(gradient)
    step.op("aten::mm", makes=((Category.ACTIVATION, 2 * BIG),))
    lowest = floor(step.build())
    assert (lowest.op_name, lowest.bytes) == ("aten::mm", 2 * BIG)
    policy = plan(step.build(), 3 * BIG, Link(1e9, 1e9))
    assert policy.predicted["peak_bytes"] <= 3 * BIG


def test_a_list_op_needs_its_largest_element_alone() -> None:
    """And from eight times the bytes of a part on, no more than the part that runs."""
    step = StepBuilder()
    sizes = (BIG, 4 * BIG, BIG, BIG)
    weights = [step.carried(Category.PARAMETER, size, f"w{k}") for k, size in enumerate(sizes)]
    step.op("aten::_foreach_mul_", reads=tuple(weights), writes=tuple(weights), stage=Stage.OPTIMIZER)
    step.op("aten::relu")
    whole = step.build()
    assert floor(whole).bytes == sum(sizes)
    parts = dataclasses.replace(whole, uses=dataclasses.replace(whole.uses, part=np.arange(4)))
    assert floor(parts).bytes == floor(parts).working_set_bytes == 4 * BIG
    policy = plan(parts, 4 * BIG, Link(1e9, 1e9))
    assert policy.predicted["peak_bytes"] == 4 * BIG
    with pytest.raises(BelowFloorError):
        plan(parts, 4 * BIG - 1, Link(1e9, 1e9))


def test_planning_near_the_floor_takes_smaller_storages_too() -> None:
    step = StepBuilder()
    small = [step.carried(Category.PARAMETER, 4096, f"w{k}") for k in range(40)]
    for _ in range(2):
        for weight in small:
            step.op("aten::mul", reads=(weight,))
    lowest = floor(step.build())
    assert lowest.bytes == 4096
    policy = plan(step.build(), 10 * 4096, Link(1e9, 1e9))
    assert policy.assumed["min_swap_bytes"] == 4096 and policy.predicted["peak_bytes"] <= 10 * 4096


def test_foreach_optimizer_sets_the_floor() -> None:
    lowest = floor(gpt_step(layers=8, size=BIG, tokens=1, foreach=True))
    assert lowest.op_name == "aten::_foreach_addcdiv_"
    assert lowest.working_set_bytes == lowest.bytes == 8 * 4 * BIG
    assert floor(gpt_step(layers=8, size=BIG, tokens=1)).bytes < lowest.bytes


def test_floor_counts_scratch_and_what_cannot_move() -> None:
    step = StepBuilder()
    step.carried(Category.OTHER, BIG, movable=False)
    step.op("aten::mm", scratch=BIG, module="h.0", stage=Stage.BACKWARD)
    lowest = floor(step.build())
    assert (lowest.bytes, lowest.working_set_bytes, lowest.module) == (2 * BIG, 0, "h.0")
    assert lowest.work_space_bytes == BIG


def test_the_floor_says_what_it_was_measured_on_and_what_other_kernels_may_change() -> None:
    step = StepBuilder()
    step.op("aten::conv2d", reads=(step.carried(Category.PARAMETER, BIG, "w"),), scratch=2 * BIG)
    seen = step.build()
    measured = floor(Trace([seen], {"kernels": "a CPU (AVX2, 1 op thread)"}))
    assert measured.measured_on == (
        "measured on a CPU (AVX2, 1 op thread); 2.00 MiB of the op's is work space, other kernels may want another"
    )
    assert "without the work space" in floor(Trace([seen], {"kernels": ""})).measured_on
    for unknown in (floor(seen), floor(Trace([seen])), floor(Trace([seen], {"kernels": 7}))):
        assert unknown.kernels is None and "does not name" in unknown.measured_on
    assert floor(step_with(2, 5)).work_space_bytes == 0


def test_of_ops_that_need_the_same_the_floor_names_the_one_that_uses_most() -> None:
    """What cannot move is there at each of them; an op that uses nothing is no reason."""
    step = StepBuilder()
    held = step.carried(Category.OTHER, BIG, movable=False)
    step.op("aten::zeros")
    step.op("aten::mm", reads=(held,))
    lowest = floor(step.build())
    assert (lowest.op, lowest.op_name, lowest.bytes, lowest.working_set_bytes) == (1, "aten::mm", BIG, BIG)


def test_a_trace_stands_for_its_newest_step() -> None:
    old, new = gpt_step(layers=2), gpt_step(layers=3)
    assert newest_step(Trace([old, new])) is new
    assert floor(Trace([old, new])) == floor(new)
    with pytest.raises(TraceError, match="no op"):
        floor(StepBuilder().build())


def test_op_times_are_scaled_to_the_step_without_stalls() -> None:
    step = gpt_step(layers=1)
    stall = np.zeros(len(step.ops))
    stall[3] = 4e-3
    ops = dataclasses.replace(step.ops, duration_s=step.ops.duration_s + stall, stall_s=stall)
    slower = dataclasses.replace(step, ops=ops, duration_s=2 * step.duration_s + 4e-3)
    np.testing.assert_allclose(step_op_times(slower), 2 * step.ops.duration_s)
    still = dataclasses.replace(step, ops=dataclasses.replace(step.ops, duration_s=np.zeros(len(step.ops))))
    np.testing.assert_allclose(step_op_times(still), step.duration_s / len(step.ops))


@pytest.mark.parametrize("times", [[1.0], [-1.0] * 3, [float("nan")] * 3])
def test_op_times_that_do_not_fit_are_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match="3 finite seconds"):
        step_op_times(step_with(0, ops=3), times)


def test_times_of_the_device_count_where_most_ops_have_one() -> None:
    """A host that runs ahead clocks what handing an op over takes."""
    step = gpt_step(layers=2)
    n = len(step.ops)
    truth = np.linspace(1.0, 2.0, n)
    truth *= step.duration_s / truth.sum()

    def times(device_s: np.ndarray) -> np.ndarray:
        return step_op_times(dataclasses.replace(step, ops=dataclasses.replace(step.ops, device_s=device_s)))

    np.testing.assert_allclose(times(truth), truth)
    few = np.where(np.arange(n) < n // 3, truth, np.nan)
    np.testing.assert_allclose(times(few), step_op_times(step))
    most = np.where(np.arange(n) % 4 > 0, truth, np.nan)
    known = np.isfinite(most)
    assert np.corrcoef(times(most)[known], truth[known])[0, 1] > 0.999
    assert times(most)[~known].max() <= np.median(times(most)[known]) * 1.001
