"""The rules that the planner is compared with: they choose what they say, and get a fair chance to fit."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import StepBuilder, gpt_step

from benchmarks.baselines import checkpointing, greedy, mindspeed, naive
from benchmarks.baselines import mindspeed as rule_of_mindspeed
from benchmarks.baselines.checkpointing import checkpointed
from benchmarks.baselines.placement import Choice, place
from chameleon_lab.planner.memory import Swaps, step_memory
from chameleon_lab.planner.simulate import simulate_swaps
from chameleon_lab.policy import Link
from chameleon_lab.trace import Category, Stage, StepTrace

pytestmark = pytest.mark.full

BIG = 32 << 20
LINK = Link(1e12, 1e12)
STEP = gpt_step(layers=24, size=BIG, tokens=1)


def swaps_of(rule, step: StepTrace, capacity: int, link: Link = LINK) -> tuple[Swaps, np.ndarray]:
    memory = step_memory(step)
    swaps = rule(step, memory, capacity, link, step.ops.duration_s)
    return swaps, step.storages.category[memory.row[swaps.storage]]


def test_naive_takes_every_activation_that_backward_needs() -> None:
    swaps, category = swaps_of(naive, STEP, STEP.live_peak_bytes // 2)
    assert set(category.tolist()) == {Category.ACTIVATION}
    stage = STEP.ops.stage
    assert (stage[swaps.out_op] == Stage.FORWARD).all() and (stage[swaps.use_op] == Stage.BACKWARD).all()
    memory = step_memory(STEP)
    gaps = (stage[memory.gap_out] == Stage.FORWARD) & (stage[memory.gap_use % memory.ops] == Stage.BACKWARD)
    activation = STEP.storages.category[memory.row[memory.gap_storage]] == Category.ACTIVATION
    # Those at the turn from forward to backward come back before they have left.
    assert 0.8 * (gaps & activation).sum() <= len(swaps) <= (gaps & activation).sum()


def test_greedy_takes_no_more_than_it_needs() -> None:
    assert len(swaps_of(greedy, STEP, STEP.live_peak_bytes)[0]) == 0
    little, _ = swaps_of(greedy, STEP, int(0.9 * STEP.live_peak_bytes))
    much, _ = swaps_of(greedy, STEP, int(0.6 * STEP.live_peak_bytes))
    assert 0 < len(little) < len(much)


def test_mindspeed_leaves_small_storages_and_gradients_alone() -> None:
    small = gpt_step(layers=24, size=1 << 20, tokens=1)
    assert len(swaps_of(mindspeed, small, small.live_peak_bytes // 2)[0]) == 0, "all below 20 MB"
    swaps, category = swaps_of(mindspeed, STEP, int(0.8 * STEP.live_peak_bytes))
    assert len(swaps)
    assert set(category.tolist()) <= {Category.ACTIVATION, Category.OPTIMIZER_STATE}


@pytest.mark.parametrize("rule", [greedy, rule_of_mindspeed])
def test_rules_fit_where_little_is_asked_of_them(rule) -> None:
    capacity = int(0.9 * STEP.live_peak_bytes)
    swaps, _ = swaps_of(rule, STEP, capacity)
    assert simulate_swaps(step_memory(STEP), swaps, capacity, LINK, STEP.ops.duration_s).fits


def one_storage(peaks: tuple[int, ...]) -> StepTrace:
    """A parameter used at ops 0 and 19; scratch memory of its size at ``peaks``."""
    step = StepBuilder()
    row = step.carried(Category.PARAMETER, BIG, "w")
    for i in range(20):
        step.op("aten::mm", reads=(row,) if i in (0, 19) else (), scratch=BIG if i in peaks else 0)
    return step.build()


@pytest.mark.parametrize(
    ("asked", "peaks", "placed"),
    [
        ((5, 15), (), (5, 15)),
        ((8, 15), (6,), (6, 15)),  # memory runs out sooner
        ((5, 10), (10, 11), (5, 12)),  # no room when it should come back
        ((5, 8), (12,), (5, 13)),  # in the way of a later op
    ],
)
def test_placement(asked: tuple[int, int], peaks: tuple[int, ...], placed: tuple[int, int]) -> None:
    memory = step_memory(one_storage(peaks))
    (gap,) = np.flatnonzero(memory.gap_out == 0)
    choice = Choice(np.array([gap]), *(np.array([op]) for op in asked))
    swaps = place(memory, choice, BIG)
    assert (swaps.free_op.tolist(), swaps.in_op.tolist()) == ([placed[0]], [placed[1]])
    assert simulate_swaps(memory, swaps, BIG, LINK, np.ones(20)).fits


@pytest.mark.parametrize("kind", checkpointing.KINDS)
def test_a_checkpointed_step_runs_each_forward_twice_at_most(kind: str) -> None:
    capacity = int(0.8 * STEP.live_peak_bytes)
    found = checkpointed(kind, STEP, capacity, LINK, STEP.ops.duration_s)
    assert found is not None and found.fits
    forward_s = float(STEP.ops.duration_s[STEP.ops.stage == Stage.FORWARD].sum())
    assert found.replay_s <= forward_s
    assert (found.replay_s > 0.0) == (kind != "selective"), (
        "its blocks make nothing but products and their output"
    )
    assert found.resident_bytes.max() <= capacity


def test_selective_checkpointing_runs_no_matrix_product_again() -> None:
    capacity, times = int(0.8 * STEP.live_peak_bytes), STEP.ops.duration_s
    block, selective = (checkpointed(kind, STEP, capacity, LINK, times) for kind in ("block", "selective"))
    assert block is not None and selective is not None
    assert selective.replay_s < block.replay_s


def test_what_has_no_blocks_or_no_room_is_not_checkpointed() -> None:
    builder = StepBuilder()
    (made,) = builder.op("aten::mm", makes=((Category.ACTIVATION, BIG),))
    builder.op("aten::sum", reads=(made,), stage=Stage.BACKWARD)
    alone = builder.build()
    assert checkpointed("block", alone, alone.live_peak_bytes, LINK, alone.ops.duration_s) is None
    assert checkpointed("block", STEP, 1, LINK, STEP.ops.duration_s) is None
