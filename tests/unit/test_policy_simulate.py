"""Stalls and bytes of hand-made plans, worked out by hand."""

from __future__ import annotations

import pytest
from synthetic import StepBuilder, gpt_step

from chameleon_lab.planner import StallCause, plan, simulate
from chameleon_lab.policy import Decision, Link, Policy
from chameleon_lab.policy.model import Action
from chameleon_lab.trace import Category, StepTrace

BIG = 1 << 20


def two_uses(*, ops: int = 10, first: int = 1, second: int = 8, writes: bool = True) -> StepTrace:
    """Ops of one second; a parameter used twice, and written by its second use."""
    step = StepBuilder(op_s=1.0)
    row = step.carried(Category.PARAMETER, BIG, "w")
    for i in range(ops):
        used = (row,) if i in (first, second) else ()
        step.op("aten::mm", reads=used, writes=used if writes and i == second else ())
    return step.build()


def swap(
    gap: int, out_op: int, free_op: int, in_op: int, use_op: int, storage: str = "parameter:w"
) -> Decision:
    return Decision(storage, "parameter", "", BIG, Action.SWAP, gap, out_op, free_op, in_op, use_op)


def policy_of(*decisions: Decision, out_s: float | None = None, in_s: float | None = None) -> Policy:
    """A link on which the block of one decision takes ``out_s`` and ``in_s`` seconds."""
    link = Link(None if out_s is None else BIG / out_s, None if in_s is None else BIG / in_s)
    return Policy(BIG, link, decisions)


def test_no_decisions_change_nothing() -> None:
    prediction = simulate(two_uses(), policy_of())
    assert (prediction.step_s, prediction.stall_s, prediction.overlap) == (10.0, 0.0, None)
    assert "overlap –, out 0 B, in 0 B" in str(prediction)
    assert prediction.resident_bytes.tolist() == [BIG] * 10
    assert prediction.swapped_out_bytes == prediction.swapped_in_bytes == 0


def test_hidden_copies_do_not_stall() -> None:
    prediction = simulate(two_uses(), policy_of(swap(0, 1, 4, 6, 8), out_s=2.0, in_s=2.0))
    assert prediction.stall_s == 0.0
    assert prediction.overlap == 1.0
    assert prediction.resident_bytes.tolist() == [BIG] * 4 + [0] * 2 + [BIG] * 4
    assert prediction.peak_bytes == BIG
    assert (prediction.swapped_out_bytes, prediction.swapped_in_bytes) == (BIG, BIG)


def test_early_free_waits_for_the_copy_out() -> None:
    prediction = simulate(two_uses(), policy_of(swap(0, 1, 3, 5, 8), out_s=3.5))
    assert prediction.stall_by_cause[StallCause.SWAP_OUT] == pytest.approx(2.5)
    assert prediction.stall_op_s[3] == pytest.approx(2.5)
    assert prediction.step_s == pytest.approx(12.5)
    assert prediction.overlap == pytest.approx(1 - 2.5 / 3.5)


def test_late_swap_in_waits_at_the_use() -> None:
    prediction = simulate(two_uses(), policy_of(swap(0, 1, 3, 7, 8), in_s=3.0))
    assert prediction.stall_by_cause[StallCause.PREFETCH] == pytest.approx(2.0)
    assert prediction.stall_op_s.tolist() == pytest.approx([0.0] * 8 + [2.0, 0.0])


def test_a_wait_counts_against_the_copies_of_its_direction_that_run_meanwhile() -> None:
    prediction = simulate(two_uses(), policy_of(swap(0, 1, 3, 5, 8), out_s=3.5, in_s=0.5))
    assert prediction.wait_start_s.tolist() == pytest.approx([3.0])
    assert prediction.overlap == pytest.approx(1 - 2.5 / 4.0), "nothing waits for the copy back"


def test_a_copy_counts_in_the_step_that_issues_it_and_a_wait_in_its_own_as_in_recorded_steps() -> None:
    decisions = [swap(0, 1, 3, 5, 8), swap(1, 8, 10, 11, 11)]  # the second is out from 9 to 12.5 of each step
    prediction = simulate(two_uses(), policy_of(*decisions, out_s=3.5))
    assert prediction.swapped_out_bytes == BIG and prediction.stall_op_s[0] == pytest.approx(2.5)
    assert prediction.copies.end_s[0] == pytest.approx(prediction.step_s + 2.5)
    assert prediction.overlap == 1.0


def test_gap_over_the_end_of_the_step_is_simulated() -> None:
    prediction = simulate(two_uses(), policy_of(swap(1, 8, 9, 11, 11), in_s=1.5))
    assert prediction.resident_bytes.tolist() == [0] + [BIG] * 8 + [0]
    assert prediction.stall_by_cause[StallCause.DEMAND] == pytest.approx(1.5)
    assert prediction.stall_op_s[1] == pytest.approx(1.5)


def test_clean_swap_out_copies_nothing_and_frees_at_once() -> None:
    both = (swap(0, 1, 2, 5, 8), swap(1, 8, 9, 10, 11))
    prediction = simulate(two_uses(), policy_of(*both, out_s=1.0))
    assert prediction.swapped_out_bytes == BIG, "only the swap after the write copies"
    assert prediction.swapped_in_bytes == 2 * BIG
    assert prediction.stall_op_s[2] == 0.0
    assert prediction.stall_op_s[9] == pytest.approx(1.0)
    alone = simulate(two_uses(), policy_of(both[0], out_s=1.0))
    assert alone.swapped_out_bytes == BIG, "op 8 has made the host copy stale"
    assert simulate(two_uses(writes=False), policy_of(both[0], out_s=1.0)).swapped_out_bytes == 0


def test_copies_of_one_direction_queue() -> None:
    step = StepBuilder(op_s=1.0)
    rows = [step.carried(Category.PARAMETER, BIG, name) for name in ("a", "b")]
    for i in range(10):
        step.op("aten::mm", reads=tuple(rows) if i == 1 else (), writes=tuple(rows) if i == 8 else ())
    decisions = [swap(0, 1, 4, 6, 8, f"parameter:{name}") for name in ("a", "b")]
    prediction = simulate(step.build(), policy_of(*decisions, out_s=2.0, in_s=1.5))
    # Out: 2 to 6 on a link of 2 s a copy, but both blocks are wanted back at 4. In: from 6 + 2 to 11, used at 10.
    assert prediction.stall_by_cause[StallCause.SWAP_OUT] == pytest.approx(2.0)
    assert prediction.stall_by_cause[StallCause.PREFETCH] == pytest.approx(1.0)


def test_copy_back_starts_after_the_copy_out() -> None:
    # The block is only away at op 2, before which the copy out has to end.
    prediction = simulate(two_uses(second=4), policy_of(swap(0, 1, 2, 3, 4), out_s=4.0, in_s=4.0))
    assert prediction.stall_by_cause[StallCause.SWAP_OUT] == pytest.approx(4.0)
    assert prediction.stall_by_cause[StallCause.PREFETCH] == pytest.approx(3.0)


def test_dormant_storage_is_away_at_every_op_and_moves_nothing() -> None:
    step = two_uses(first=-1, second=-1)
    prediction = simulate(step, policy_of(swap(-1, 0, 1, -1, -1), out_s=9.0))
    assert prediction.resident_bytes.tolist() == [0] * 10
    assert prediction.stall_s == prediction.swapped_out_bytes == prediction.swapped_in_bytes == 0


def test_capacity_link_and_times_may_differ_from_the_policy() -> None:
    step, policy = two_uses(), policy_of(swap(0, 1, 4, 6, 8))
    assert not simulate(step, policy, capacity_bytes=BIG - 1).fits
    assert simulate(step, policy).fits
    assert simulate(step, policy, link=Link(BIG / 5.0, None)).stall_s == pytest.approx(3.0)
    assert simulate(step, policy, op_times=[2.0] * 10).step_s == pytest.approx(20.0)
    with pytest.raises(ValueError, match="10 finite seconds"):
        simulate(step, policy, op_times=[1.0])


def test_unmatched_decisions_are_reported() -> None:
    prediction = simulate(two_uses(), policy_of(swap(0, 1, 4, 6, 8, "parameter:gone")))
    assert len(prediction.unmatched) == 1 and "parameter:gone" in prediction.unmatched[0]


def test_stall_falls_with_bandwidth() -> None:
    step = gpt_step(layers=6, size=BIG, tokens=4)
    capacity = int(0.5 * step.live_peak_bytes)
    stalls = []
    for bandwidth in (1e9, 4e9, 16e9, None):
        link = Link(bandwidth, bandwidth)
        stalls.append(simulate(step, plan(step, capacity, link)).stall_s)
    assert stalls == sorted(stalls, reverse=True)
    assert stalls[0] > 0 and stalls[-1] == 0


def test_a_backlog_that_grows_slowly_is_seen_whole() -> None:
    # 10.01 s of copies in a step of 10 s. Both frees come seconds after the first copies, and wait for none of them
    # for the first hundred steps.
    step = StepBuilder(op_s=1.0)
    rows = {i: step.carried(Category.PARAMETER, BIG, name) for i, name in ((0, "a"), (5, "b"))}
    for i in range(10):
        used = (rows[i],) if i in rows else ()
        step.op("aten::mm", reads=used, writes=used)
    decisions = [swap(0, 0, 8, 10, 10, "parameter:a"), swap(0, 5, 14, 15, 15, "parameter:b")]
    prediction = simulate(step.build(), policy_of(*decisions, out_s=5.005))
    assert prediction.stall_s == pytest.approx(0.01)
    assert prediction.step_s == pytest.approx(10.01), "what the link needs for a step"


def test_causes_and_ops_add_up_to_the_stall() -> None:
    step = gpt_step(layers=6, size=BIG, tokens=4)
    link = Link(1e9, 1e9)
    prediction = simulate(step, plan(step, int(0.5 * step.live_peak_bytes), link))
    assert sum(prediction.stall_by_cause.values()) == pytest.approx(prediction.stall_s)
    assert prediction.stall_op_s.sum() == pytest.approx(prediction.stall_s)
    worst = prediction.worst_ops(1000)
    assert sum(op.stall_s for op in worst) == pytest.approx(prediction.stall_s)
    assert [op.stall_s for op in worst] == sorted((op.stall_s for op in worst), reverse=True)
    assert len(prediction.worst_ops(3)) == 3


def test_prediction_reads_well() -> None:
    prediction = simulate(two_uses(), policy_of(swap(0, 1, 3, 5, 8), out_s=3.5))
    text = str(prediction)
    assert "peak 1.00 MiB of 1.00 MiB" in text and "stall 2.50 s (25.0 % of compute)" in text
    assert "swap-out" in text and "op 3 aten::mm" in text and "parameter:w" in text
    (worst,) = prediction.worst_ops()
    assert (worst.op, worst.cause, worst.storage) == (3, StallCause.SWAP_OUT, "parameter:w")
    page = prediction._repr_html_()
    assert "<td>swap-out</td><td>2.50 s</td>" in page and "parameter:w" in page
    assert "table" not in simulate(two_uses(), policy_of())._repr_html_()
