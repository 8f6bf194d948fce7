"""The lower bound on hand-made steps, where the least stall can be worked out."""

from __future__ import annotations

import subprocess
import sys

import pytest
from synthetic import StepBuilder, gpt_step

from chameleon_lab.errors import BelowFloorError
from chameleon_lab.planner import floor, lower_bound, plan, simulate
from chameleon_lab.policy import Link
from chameleon_lab.trace import Category, Stage, StepTrace

BIG = 1 << 20


def one_peak(*, writes: bool = True, ops: int = 100, peak: int = 50) -> StepTrace:
    """A parameter used by the first op and the last; an op between them needs as many bytes as scratch memory."""
    step = StepBuilder(op_s=0.1)
    row = step.carried(Category.PARAMETER, BIG, "w")
    for i in range(ops):
        used = (row,) if i in (0, ops - 1) else ()
        step.op("aten::mm", reads=used, writes=used if writes else (), scratch=BIG if i == peak else 0)
    return step.build()


def test_no_stall_where_everything_fits_or_the_link_is_free() -> None:
    step = one_peak()
    assert lower_bound(step, step.live_peak_bytes, Link(1.0, 1.0)).stall_s == 0.0
    assert lower_bound(step, BIG, Link(None, None)).stall_s == 0.0


@pytest.mark.parametrize(("link", "least_s"), [(Link(BIG / 10.0, None), 5.1), (Link(None, BIG / 10.0), 5.2)])
def test_a_block_must_leave_before_the_peak_and_return_after_it(link: Link, least_s: float) -> None:
    # 49 ops of 0.1 s between the first use and the peak, 48 between the peak and the last use; a copy takes 10 s.
    step = one_peak()
    bound = lower_bound(step, BIG, link, checkpoints=100)
    planned = simulate(step, plan(step, BIG, link))
    assert planned.stall_s == pytest.approx(least_s)
    assert least_s - 0.11 <= bound.stall_s <= least_s + 1e-6, "exact but for the op at either border"
    assert bound.step_s == pytest.approx(10.0 + bound.stall_s)


def test_a_storage_that_nothing_writes_is_never_copied_out() -> None:
    step = one_peak(writes=False)
    assert lower_bound(step, BIG, Link(BIG / 1000.0, None)).stall_s == pytest.approx(0.0, abs=1e-5)
    assert simulate(step, plan(step, BIG, Link(BIG / 1000.0, None))).stall_s == 0.0


def test_a_version_is_copied_out_once_for_all_its_gaps() -> None:
    # Written once, then read twice, with a peak in each gap: one copy out, two copies in, each way 3 s a copy.
    step = StepBuilder(op_s=0.1)
    row = step.carried(Category.PARAMETER, BIG, "w")
    for i in range(90):
        step.op(
            "aten::mm",
            reads=(row,) if i in (30, 60) else (),
            writes=(row,) if i == 0 else (),
            scratch=BIG if i in (15, 45, 75) else 0,
        )
    trace = step.build()
    out, into = Link(BIG / 20.0, None), Link(None, BIG / 4.0)
    bound = lower_bound(trace, BIG, out, checkpoints=90)
    # The copy out has the 14 ops between the write and the first peak; later gaps need none.
    assert bound.stall_s == pytest.approx(20.0 - 1.4, abs=0.11)
    assert simulate(trace, plan(trace, BIG, out)).stall_s == pytest.approx(20.0 - 1.4, abs=0.11)
    # In the reading direction every gap has its own copy, and 14 ops for it.
    assert lower_bound(trace, BIG, into, checkpoints=90).stall_s == pytest.approx(3 * (4.0 - 1.4), abs=0.35)
    assert simulate(trace, plan(trace, BIG, into)).stall_s == pytest.approx(3 * (4.0 - 1.4), abs=0.35)


def test_a_version_goes_on_over_the_end_of_the_step() -> None:
    # Written by op 60, read by op 30 of the next step. Peaks at op 62, right after the write, and at op 58.
    step = StepBuilder(op_s=0.1)
    row = step.carried(Category.PARAMETER, BIG, "w")
    for i in range(90):
        step.op(
            "aten::mm",
            reads=(row,) if i == 30 else (),
            writes=(row,) if i == 60 else (),
            scratch=BIG if i in (58, 62) else 0,
        )
    bound = lower_bound(step.build(), BIG, Link(BIG / 20.0, None), checkpoints=90)
    assert bound.stall_s == pytest.approx(20.0 - 0.1, abs=0.11)


def test_dead_time_needs_no_way_back() -> None:
    step = StepBuilder(op_s=0.1)
    (gradient,) = step.op("aten::mm", makes=((Category.GRADIENT, BIG),), stage=Stage.BACKWARD)
    for i in range(20):
        step.op("aten::mm", scratch=BIG if i == 10 else 0)
    step.free(gradient)
    trace = step.build()
    assert lower_bound(trace, BIG, Link(None, 1.0)).stall_s == pytest.approx(0.0, abs=1e-5)
    assert lower_bound(trace, BIG, Link(BIG / 5.0, None), checkpoints=21).stall_s == pytest.approx(
        4.0, abs=0.11
    )


def test_storages_that_no_op_uses_cost_nothing() -> None:
    step = StepBuilder()
    step.carried(Category.OPTIMIZER_STATE, BIG, "dormant")
    for _ in range(5):
        step.op("aten::mm", scratch=BIG)
    assert lower_bound(step.build(), BIG, Link(1.0, 1.0)).stall_s == 0.0


def test_more_checkpoints_only_help_and_the_plan_is_near() -> None:
    step, link = gpt_step(layers=12, size=BIG, tokens=4), Link(4e9, 4e9)
    capacity = int(0.6 * step.live_peak_bytes)
    planned = simulate(step, plan(step, capacity, link)).stall_s
    fine = lower_bound(step, capacity, link, checkpoints=len(step.ops)).stall_s
    assert 0.85 * planned <= fine <= planned
    assert lower_bound(step, capacity, link, checkpoints=10).stall_s <= fine * (1 + 1e-6)


def test_bad_arguments_are_refused() -> None:
    step = one_peak()
    with pytest.raises(BelowFloorError, match="below the floor"):
        lower_bound(step, floor(step).bytes - 1, Link(None, None))
    with pytest.raises(ValueError, match="checkpoints is 0"):
        lower_bound(step, BIG, Link(None, None), checkpoints=0)
    with pytest.raises(ValueError, match="100 finite seconds"):
        lower_bound(step, BIG, Link(None, None), [1.0])


def test_a_plan_that_retains_what_its_replays_read_does_not_beat_the_bound() -> None:
    """No op makes the small storages again, which die at once: what is made of them is replayed where they stay."""
    builder, copies = StepBuilder(), []
    weight = builder.carried(Category.PARAMETER, BIG // 4)
    for k in range(8):
        (small,) = builder.op(
            "aten::bernoulli", reads=(weight,), makes=((Category.ACTIVATION, BIG),), module=f"h.{k}"
        )
        (copy,) = builder.op(
            "aten::to", reads=(small,), makes=((Category.ACTIVATION, 4 * BIG),), module=f"h.{k}"
        )
        builder.op("aten::sum", reads=(copy,), module=f"h.{k}")
        builder.free(small)
        copies.append(copy)
    for copy in reversed(copies):
        builder.op("aten::native_layer_norm_backward", reads=(copy, weight), stage=Stage.BACKWARD)
        builder.free(copy)
    step = builder.build()
    times, capacity, link = step.ops.duration_s, int(0.6 * step.live_peak_bytes), Link(1e8, 1e8)
    policy = plan(step, capacity, link, op_times=times, rematerialize=True)
    assert any(drop.retains for drop in policy.drops), "it shows nothing here"
    cost_s = policy.predicted["stall_s"] + policy.predicted["replay_s"]
    bound = lower_bound(step, capacity, link, times, rematerialize=True, checkpoints=len(step.ops))
    assert 0.0 < bound.stall_s <= cost_s
    assert bound.stall_s < lower_bound(step, capacity, link, times, checkpoints=len(step.ops)).stall_s


def test_reads_well() -> None:
    text = str(lower_bound(one_peak(), BIG, Link(BIG / 10.0, None), checkpoints=100))
    assert "stall 5." in text and "% of compute" in text and "100 checkpoints" in text


def test_the_solver_is_imported_at_first_use() -> None:
    code = "import sys, chameleon_lab.policy; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_solver_that_is_missing_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "scipy.optimize", "scipy.sparse"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="needs scipy, which is not installed: pip install scipy"):
        lower_bound(one_peak(), BIG, Link(BIG / 10.0, None), checkpoints=100)
