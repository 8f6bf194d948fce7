"""What the planner chooses, when it refuses, and how long it takes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from synthetic import StepBuilder, gpt_step

from chameleon_lab.errors import BelowFloorError, TraceError
from chameleon_lab.planner import floor, plan, simulate
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.policy import Link
from chameleon_lab.policy.model import Action, Policy, fingerprint
from chameleon_lab.trace import Category, StepTrace, Trace

BIG = 1 << 20
FAST = Link(None, None)


def activations(*, reuse: tuple[int, ...], ops: int) -> StepTrace:
    """Op k makes activation k, which op ``reuse[k]`` reads and frees."""
    step = StepBuilder()
    rows: list[int] = []
    for i in range(ops):
        used = tuple(row for k, row in enumerate(rows) if reuse[k] == i)
        makes = ((Category.ACTIVATION, BIG),) if i < len(reuse) else ()
        rows += step.op("aten::mm", reads=used, makes=makes)
        step.free(*used)
    return step.build()


def test_furthest_next_use_leaves_first() -> None:
    policy = plan(activations(reuse=(8, 14, 11), ops=16), 2 * BIG, FAST)
    assert [(d.out_op, d.use_op) for d in policy.decisions] == [(1, 14)]


def test_plan_fits_at_every_share_of_the_peak() -> None:
    step = gpt_step(layers=8, size=BIG, tokens=4)
    lowest = floor(step).bytes
    for capacity in np.linspace(lowest, step.live_peak_bytes, 9).astype(int).tolist():
        prediction = simulate(step, plan(step, capacity, Link(2e9, 2e9)))
        assert prediction.peak_bytes <= capacity
        assert prediction.fits


def test_prefetch_is_as_early_as_memory_allows() -> None:
    # Both activations fit but for op 3, where 2 MiB of scratch memory are needed.
    step = StepBuilder()
    (a,) = step.op("aten::mm", makes=((Category.ACTIVATION, BIG),))
    for i in range(1, 10):
        step.op("aten::mm", reads=(a,) if i == 9 else (), scratch=2 * BIG if i == 3 else 0)
    (decision,) = plan(step.build(), 2 * BIG, FAST).decisions
    assert (decision.out_op, decision.free_op, decision.in_op, decision.use_op) == (0, 3, 4, 9)


def test_optimizer_states_leave_over_the_end_of_the_step() -> None:
    step = gpt_step(layers=8, size=BIG, tokens=1)
    policy = plan(step, int(0.6 * step.live_peak_bytes), FAST)
    crossing = [d for d in policy.decisions if d.category == "optimizer_state" and d.use_op >= len(step.ops)]
    assert crossing


def test_dormant_storages_leave_first_and_never_return() -> None:
    step = StepBuilder()
    w = step.carried(Category.PARAMETER, BIG, "w")
    for name, size in (("small", 2), ("large", 4)):
        step.carried(Category.PARAMETER, size * BIG, name)
    for i in range(8):
        step.op("aten::mm", reads=(w,) if i % 4 == 0 else ())
    (decision,) = plan(step.build(), 3 * BIG, Link(1.0, 1.0)).decisions
    assert decision.storage == "parameter:large"
    assert (decision.gap, decision.out_op, decision.free_op, decision.in_op) == (-1, 0, 1, -1)
    assert len(plan(step.build(), BIG, FAST).decisions) == 2


def test_peak_needs_no_decisions() -> None:
    step = gpt_step()
    policy = plan(step, step.live_peak_bytes, FAST)
    assert policy.decisions == ()
    assert policy.predicted["peak_bytes"] == step.live_peak_bytes
    assert policy.predicted["overlap"] is None


def test_below_the_floor_names_op_bytes_and_way_out() -> None:
    step = gpt_step(layers=8, size=BIG, tokens=1, foreach=True)
    lowest = floor(step)
    with pytest.raises(BelowFloorError) as caught:
        plan(step, lowest.bytes - 1, FAST)
    message = str(caught.value)
    assert f"({lowest.bytes} bytes), set by aten::_foreach_addcdiv_ (op {lowest.op}, optimizer)" in message
    assert "foreach=False" in message and "measured on" not in message
    error = caught.value
    assert (error.capacity_bytes, error.needed_bytes) == (lowest.bytes - 1, lowest.bytes)
    assert error.op_name == "aten::_foreach_addcdiv_"
    with pytest.raises(
        BelowFloorError, match=r"its own \(measured on a CPU \(AVX2\); the op has no .*\): give"
    ):
        plan(Trace([step], {"kernels": "a CPU (AVX2)"}), lowest.bytes - 1, FAST)
    assert isinstance(caught.value, torch.OutOfMemoryError)
    with pytest.raises(BelowFloorError, match=r"aten::\w+ \(op \d+, backward, in h\.\d\).*batch"):
        plan(gpt_step(), BIG, FAST)


def test_what_it_was_made_for_is_written_down() -> None:
    step = gpt_step()
    policy = plan(
        Trace([gpt_step(layers=1), step]), int(0.7 * step.live_peak_bytes), FAST, min_swap_bytes=4096
    )
    assert policy.assumed == {
        "fingerprint": fingerprint(step),
        "ops": len(step.ops),
        "torch": torch.__version__,
        "live_peak_bytes": step.live_peak_bytes,
        "min_swap_bytes": 4096,
        "margin": 0.0,
    }
    for decision in policy.decisions:
        assert decision.action is Action.SWAP and decision.decided_by == "planner"
    assert {d.category for d in policy.decisions} <= {c.name.lower() for c in Category}
    order = [(d.out_op, d.free_op) for d in policy.decisions]
    assert order == sorted(order)


def test_prediction_is_that_of_the_simulator() -> None:
    step = gpt_step(layers=6)
    policy = plan(step, int(0.5 * step.live_peak_bytes), Link(5e8, 5e8))
    uniform = np.full(len(step.ops), step.duration_s / len(step.ops))
    prediction = simulate(step, policy, op_times=uniform)
    assert prediction.stall_s > 0
    for name, value in policy.predicted.items():
        assert getattr(prediction, name) == pytest.approx(value), name


def test_margin_leaves_room_down_to_the_floor() -> None:
    step = gpt_step(layers=8)
    capacity = int(0.8 * step.live_peak_bytes)
    assert plan(step, capacity, FAST, margin=0.1).predicted["peak_bytes"] <= 0.9 * capacity
    lowest = floor(step).bytes
    assert plan(step, lowest, FAST, margin=0.5).predicted["peak_bytes"] <= lowest
    reserved = plan(step, capacity, FAST, margin=0.1, reserve_bytes=capacity // 10)
    assert reserved.predicted["peak_bytes"] <= 0.8 * capacity and reserved.capacity_bytes == capacity
    assert reserved.assumed["reserve_bytes"] == capacity // 10
    assert reserved == Policy.from_json(reserved.to_json())
    assert plan(step, lowest, FAST, reserve_bytes=lowest).predicted["peak_bytes"] <= lowest
    with pytest.raises(ValueError, match="reserve_bytes must be positive, got -1"):
        plan(step, capacity, FAST, reserve_bytes=-1)
    for margin in (-0.1, 1.0):
        with pytest.raises(ValueError, match="margin"):
            plan(step, capacity, FAST, margin=margin)


def test_a_margin_of_the_link_plans_for_less_and_predicts_the_whole() -> None:
    step = gpt_step(layers=8)
    capacity, link = int(0.5 * step.live_peak_bytes), Link(2e9, 3e9)
    times = step_op_times(step)
    with_margin = plan(step, capacity, link, op_times=times, link_margin="25%")
    for_less = plan(step, capacity, Link(1.5e9, 2.25e9), op_times=times)
    assert with_margin.decisions == for_less.decisions
    assert with_margin.decisions != plan(step, capacity, link, op_times=times).decisions, (
        "it shows nothing here"
    )
    assert with_margin.link == link and with_margin.assumed["link_margin"] == 0.25
    predicted = simulate(step, with_margin, op_times=times)
    for name, value in with_margin.predicted.items():
        assert getattr(predicted, name) == pytest.approx(value), name
    assert with_margin == Policy.from_json(with_margin.to_json())
    assert (
        with_margin.draft(step, times).keep(with_margin.swaps[0].storage).policy().assumed["link_margin"]
        == 0.25
    )
    for margin in (-0.1, 1.0, "100%"):
        with pytest.raises(ValueError, match="link_margin"):
            plan(step, capacity, link, link_margin=margin)


def test_large_blocks_only_if_asked() -> None:
    step = gpt_step(layers=8, size=BIG, tokens=4)
    policy = plan(step, int(0.8 * step.live_peak_bytes), FAST, min_swap_bytes=2 * BIG)
    assert policy.decisions and min(d.bytes for d in policy.decisions) >= 2 * BIG


def test_swaps_stay_hidden_where_the_link_is_fast_enough() -> None:
    step = gpt_step(layers=16, size=BIG, tokens=4)
    policy = plan(step, int(0.7 * step.live_peak_bytes), Link(50e9, 50e9))
    assert policy.predicted["stall_s"] == 0.0
    assert policy.predicted["overlap"] == 1.0


def test_slow_link_is_not_thrashed() -> None:
    # A block takes 35 ms each way and an op 1 ms: no gap of the step leaves time for both copies, and the furthest
    # next use alone would move what is wanted back at once: it stalls for 1.8 times the excess.
    step = gpt_step(layers=8, size=BIG, tokens=1)
    lowest = floor(step).bytes
    capacity = lowest + int(0.8 * (step.live_peak_bytes - lowest))
    policy = plan(step, capacity, Link(3e7, 3e7))
    excess_s = (step.live_peak_bytes - capacity) / 3e7
    assert policy.predicted["stall_s"] < 1.4 * excess_s


def test_step_that_lost_ops_is_refused() -> None:
    step = dataclasses.replace(gpt_step(), truncated_ops=7)
    with pytest.raises(TraceError, match="lost 7 ops.*larger recorder buffer"):
        plan(step, step.live_peak_bytes, FAST)


def test_nine_thousand_ops_are_planned() -> None:
    """How long that takes is for ``benchmarks.planner`` to say."""
    step = gpt_step(layers=1280, size=BIG, tokens=4)
    assert 8_900 < len(step.ops) < 9_100
    policy = plan(step, int(0.3 * step.live_peak_bytes), Link(2e9, 2e9))
    assert simulate(step, policy).peak_bytes <= policy.capacity_bytes


def test_what_dies_soon_stays_if_others_are_away_for_longer() -> None:
    # Either may leave for op 2. The gradient dies before the peak, across which the state must be away anyway.
    step = StepBuilder()
    state = step.carried(Category.OPTIMIZER_STATE, BIG, "state")
    (gradient,) = step.op("aten::mm", reads=(state,), makes=((Category.GRADIENT, BIG),))
    for i in range(1, 20):
        step.op("aten::mm", reads=(state,) if i == 19 else (), scratch={2: BIG, 10: 2 * BIG}.get(i, 0))
        if i == 5:
            step.free(gradient)
    (decision,) = plan(step.build(), 2 * BIG, FAST).decisions
    assert decision.storage == "optimizer_state:state"
    assert (decision.out_op, decision.free_op, decision.in_op) == (0, 2, 11)


def test_copies_are_made_early_where_the_link_would_idle() -> None:
    # The state must be away at op 30. Its gap before the last one leaves time to go and come back, unseen.
    step = StepBuilder(op_s=1.0)
    state = step.carried(Category.OPTIMIZER_STATE, BIG, "state")
    for i in range(40):
        step.op(
            "aten::mul_",
            reads=(state,) if i == 28 else (),
            writes=(state,) if i == 5 else (),
            scratch=BIG if i == 30 else 0,
        )
    trace, link = step.build(), Link(BIG / 8.0, BIG / 4.0)
    told = plan(trace, BIG, link, op_times=trace.ops.duration_s)
    assert [(d.out_op, d.use_op) for d in told.decisions] == [(5, 28), (28, 45)]
    assert told.predicted["stall_s"] == 0.0 and told.predicted["peak_bytes"] == BIG
    untold = plan(trace, BIG, link)
    assert [(d.out_op, d.use_op) for d in untold.decisions] == [(28, 45)]
    assert untold.predicted["stall_s"] == pytest.approx(7.0)
