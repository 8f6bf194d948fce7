"""Where a recorded step diverged from its plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import StepBuilder

from chameleon_lab.report.trace_report import TraceReport, followed
from chameleon_lab.trace import Category, StepTrace, Trace


def step_of(plan_ops: list[int]) -> StepTrace:
    """A step of ``op0`` in module ``m0``, ``op1`` in ``m1``, ..., matched to these ops of a plan."""
    builder = StepBuilder()
    for number in range(len(plan_ops)):
        builder.op(f"op{number}", makes=((Category.ACTIVATION, 512),), module=f"m{number}")
    step = builder.build(index=3)
    return replace(step, ops=replace(step.ops, plan_op=np.array(plan_ops, dtype=np.int32)))


@pytest.mark.parametrize(
    ("plan_ops", "expected"),
    [
        pytest.param([0, 1, 2], [], id="as planned"),
        pytest.param([-1, -1, -1], [], id="no plan"),
        pytest.param([], [], id="no ops"),
        pytest.param([0, -1, -1, 1], [(1, 3, 2, 0)], id="extra ops"),
        pytest.param([0, 3, 4], [(1, 1, 0, 2)], id="left out"),
        pytest.param([0, -1, 4, 5], [(1, 2, 1, 3)], id="other ops in their place"),
        pytest.param([0, 1, 2, 1, 2], [(3, 3, 0, -2)], id="again"),
        pytest.param([-1, 0, 1], [(0, 1, 1, 0)], id="at the beginning"),
        pytest.param([2, 3], [(0, 0, 0, 2)], id="the beginning left out"),
        pytest.param([0, 1, -1, -1], [(2, 4, 2, 0)], id="to the end"),
        pytest.param([-1, 0, -1, 2, 1], [(0, 1, 1, 0), (2, 3, 1, 1), (4, 4, 0, -2)], id="often"),
    ],
)
def test_divergences_are_the_runs_of_nobodys_ops_and_the_jumps(plan_ops, expected):
    step = step_of(plan_ops)
    found = step.divergences
    assert [(d.from_op, d.to_op, d.extra_ops, d.left_out_ops) for d in found] == expected
    assert all((d.step, d.op_name, d.module) == (3, f"op{d.from_op}", f"m{d.from_op}") for d in found)
    matched = sum(op >= 0 for op in plan_ops)
    assert step.match_rate == (matched / len(plan_ops) if plan_ops else 0.0)


def test_a_saved_trace_says_how_its_plan_was_followed(tmp_path):
    path = str(tmp_path / "t.parquet")
    parted = step_of([0, -1, 4, -1, 5, 8, -1, 9])
    Trace([step_of([-1, -1]), step_of([0, 1]), parted]).save(path)
    read = Trace.load(path)
    assert [step.divergences for step in read] == [(), (), parted.divergences]
    found = TraceReport.of(read)
    none, whole, last = (followed(step) for step in found.history)
    assert none == "Step 3: no plan was followed"
    assert whole == "Step 3: 100.0 % of the ops were found in the plan"
    assert "62.5 %" in last and "op 1, op1 in m1: 1 extra, 3 skipped; op 3, op3 in m3" in last
    assert last.endswith("op 5, op5 in m5: 0 extra, 2 skipped; and 1 more place")
    rows = {name: (value, remark) for name, value, remark in found.rows()}
    assert rows["Matched"] == ("62.5 %", "of the ops were found in the plan; diverged in 4 places")
    rows = {name: (value, remark) for name, value, remark in TraceReport.of(read, read.steps[0]).rows()}
    assert rows["Matched"] == ("none", "no plan was followed")
