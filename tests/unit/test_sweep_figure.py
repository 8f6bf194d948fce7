"""`policy.sweep_figure()`: step time against capacity, with floor, knee and the policy's own place."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from synthetic import dropped_step, gpt_step

from chameleon_lab.errors import PolicyError
from chameleon_lab.lab.figures.packages import MissingPackageError
from chameleon_lab.lab.figures.sweep_figure import sweep_figure
from chameleon_lab.planner import floor, plan, simulate, sweep
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.planner.obey import plan_obeying
from chameleon_lab.policy import Edit, EditAction, Link, Policy
from chameleon_lab.trace import Trace

MIB = 1 << 20
STEP = gpt_step()
CAPACITY = int(0.6 * STEP.live_peak_bytes)
POLICY = plan(STEP, CAPACITY, Link(5e8, 5e8))


def drawn(figure, name):
    found = [trace for trace in figure.data if trace.name.startswith(name)]
    assert len(found) == 1, [trace.name for trace in figure.data]
    return found[0]


def test_it_draws_the_sweep_of_the_policys_own_step_and_link():
    found = sweep(STEP, None, POLICY.link)
    figure = POLICY.sweep_figure()
    line = drawn(figure, "Step, predicted")
    curve = {x: y for x, y in zip(line.x, line.y, strict=True) if x != CAPACITY / MIB}
    assert curve == {point.capacity_bytes / MIB: point.step_s for point in found.points}
    assert set(drawn(figure, "Without stalls").y) == {found.compute_s}
    knee = drawn(figure, "Knee")
    assert found.knee is not None and list(knee.x) == [found.knee.capacity_bytes / MIB]
    now = drawn(figure, "Now")
    assert list(now.x) == [CAPACITY / MIB] and list(now.y) == [simulate(STEP, POLICY).step_s]
    marked = {
        shape.x0: note.text
        for shape, note in zip(figure.layout.shapes, figure.layout.annotations, strict=False)
    }
    assert marked[floor(STEP).bytes / MIB].startswith("Floor")
    assert marked[STEP.live_peak_bytes / MIB].startswith("Peak")


def test_the_mark_of_a_policy_that_replays_lies_on_its_curve():
    step, _ = dropped_step(layers=6)
    trace = Trace([step], {"replay_class": 2, "refused": ["aten::gelu"]})
    capacity = int(0.6 * step.live_peak_bytes)
    policy = plan(trace, capacity, Link(3e8, 3e8), op_times=step_op_times(step), margin=0.02)
    assert policy.drops, "a policy that does not replay shows nothing here"
    for given in (None, trace, step):
        figure = policy.sweep_figure(given)
        line, now = drawn(figure, "Step, predicted"), drawn(figure, "Now")
        assert now.y[0] == simulate(step, policy).step_s
        assert dict(zip(line.x, line.y, strict=True))[now.x[0]] == pytest.approx(now.y[0])


def test_the_mark_lies_on_the_curve_of_the_op_times_margin_reserve_and_edits_that_it_was_planned_with():
    times = STEP.ops.duration_s * np.linspace(0.2, 2.0, len(STEP.ops))
    kept = [decision.storage for decision in POLICY.decisions]
    edits = [Edit(EditAction.KEEP, kept[0]), *(Edit(EditAction.SWAP, key) for key in kept[1:3])]
    edits += [Edit(EditAction.KEEP, module="*"), Edit(EditAction.CAPACITY, capacity_bytes=CAPACITY - MIB)]
    policy, remarks = plan_obeying(
        *(STEP, CAPACITY, Link(5e8, 5e8), edits),
        **{"op_times": times, "margin": 0.02, "link_margin": 0.6, "reserve_bytes": 2 * MIB},
    )
    assert (
        policy.decisions
        != plan_obeying(*(STEP, CAPACITY, Link(5e8, 5e8), edits), op_times=times)[0].decisions
    )
    assert policy.disobeyed and policy.capacity_bytes == CAPACITY - MIB and remarks
    other = replace(STEP, index=9, ops=replace(STEP.ops, duration_s=2.0 * STEP.ops.duration_s))
    for given in (None, STEP, other, Trace([other])):
        figure = policy.sweep_figure(given)
        line, now = drawn(figure, "Step, predicted"), drawn(figure, "Now")
        assert now.y[0] == pytest.approx(policy.predicted["step_s"], rel=1e-12)
        assert dict(zip(line.x, line.y, strict=True))[now.x[0]] == pytest.approx(now.y[0], rel=1e-12)
        assert "with the op times of the plan" in figure.layout.title.subtitle.text


def test_for_other_ops_it_takes_their_own_times_and_says_so():
    policy = plan(STEP, CAPACITY, Link(5e8, 5e8), op_times=STEP.ops.duration_s)
    other = replace(gpt_step(layers=6), index=7)
    figure = policy.sweep_figure(other)
    assert "with op times of step 7" in figure.layout.title.subtitle.text
    compute_s = float(step_op_times(other).sum())
    assert drawn(figure, "Without stalls").y[0] == pytest.approx(compute_s)


def test_a_capacity_at_which_nothing_moves_has_no_overlap_to_show():
    figure = POLICY.sweep_figure()
    hover = drawn(figure, "Step, predicted").hovertext
    assert "overlap –, 0 B out, 0 B in" in hover[-1] and "overlap –" not in hover[0]


def test_it_says_what_the_floor_was_measured_on():
    figure = POLICY.sweep_figure(Trace([STEP], {"kernels": "a CPU (AVX2)"}))
    assert "measured on a CPU (AVX2)" in figure.layout.title.subtitle.text
    (mark,) = [note for note in figure.layout.annotations if note.text.startswith("Floor")]
    assert "measured on a CPU (AVX2)" in mark.hovertext
    assert "the trace does not name" in POLICY.sweep_figure().layout.title.subtitle.text


def test_points_below_the_floor_are_not_drawn():
    lowest = floor(STEP).bytes
    found = sweep(STEP, [lowest - 1, lowest, 2 * lowest], Link(5e8, 5e8))
    figure = sweep_figure(found, capacity_bytes=(3 * lowest) // 2)
    line = drawn(figure, "Step, predicted")
    assert list(line.x) == [lowest / MIB, 2 * lowest / MIB]
    assert min(line.y) < drawn(figure, "Now").y[0] < max(line.y)
    with pytest.raises(
        ValueError, match=r"below the floor of .* \(of kernels that the trace does not name\)"
    ):
        sweep_figure(sweep(STEP, [lowest - 1], Link(5e8, 5e8)))


def test_a_policy_from_a_file_draws_from_the_step_in_it_or_a_given_one(tmp_path):
    POLICY.save(tmp_path / "p.json")
    loaded = Policy.load(tmp_path / "p.json")
    assert list(drawn(loaded.sweep_figure(), "Now").x) == [CAPACITY / MIB]
    bare = Policy(CAPACITY, Link(5e8, 5e8), ())
    with pytest.raises(PolicyError, match="has no step"):
        bare.sweep_figure()
    assert drawn(bare.sweep_figure(STEP), "Step, predicted").y


def test_without_plotly_it_says_what_to_install_before_it_plans(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(MissingPackageError, match="pip install plotly"):
        POLICY.sweep_figure()
