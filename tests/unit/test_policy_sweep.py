"""Step time against capacity."""

from __future__ import annotations

import html

import pytest
from synthetic import gpt_step

import chameleon_lab as cl
from chameleon_lab.cli.sweep import sweep_values
from chameleon_lab.planner import floor, plan, simulate, sweep
from chameleon_lab.policy import Link
from chameleon_lab.trace.overlap import DEFINITION

STEP = gpt_step(layers=6, size=1 << 20, tokens=4)
LINK = Link(1e9, 1e9)


def test_points_are_what_the_simulator_says_of_the_plans() -> None:
    peak = STEP.live_peak_bytes
    found = sweep(STEP, [peak, peak // 2], LINK)
    assert [point.capacity_bytes for point in found.points] == [peak // 2, peak], "ascending"
    predicted = simulate(
        STEP, plan(STEP, peak // 2, LINK, op_times=STEP.ops.duration_s), op_times=STEP.ops.duration_s
    )
    assert found.points[0].step_s == pytest.approx(predicted.step_s)
    assert found.points[0].stall_s == pytest.approx(predicted.stall_s) and predicted.stall_s > 0
    assert found.points[1].stall_s == 0.0 and found.points[1].swapped_out_bytes == 0


def test_goes_from_the_floor_to_the_peak_unless_told() -> None:
    found = sweep(STEP, None, LINK)
    capacities = [point.capacity_bytes for point in found.points]
    assert (capacities[0], capacities[-1]) == (floor(STEP).bytes, STEP.live_peak_bytes)
    assert all(point.feasible for point in found.points)
    assert found.points[0].step_s > found.points[-1].step_s == pytest.approx(found.compute_s)


def test_knee_is_the_smallest_capacity_that_costs_next_to_nothing() -> None:
    found = sweep(STEP, None, LINK)
    knee = found.knee
    assert knee is not None and knee.step_s <= 1.05 * found.compute_s
    below = [point for point in found.points if point.capacity_bytes < knee.capacity_bytes]
    assert below and below[-1].step_s > 1.05 * found.compute_s
    anything = sweep(STEP, None, LINK, within=1e9).knee
    assert anything is not None and anything.capacity_bytes == floor(STEP).bytes
    assert sweep(STEP, [floor(STEP).bytes], LINK).knee is None


def test_below_the_floor_it_says_so() -> None:
    lowest = floor(STEP).bytes
    found = sweep(STEP, [lowest - 1, lowest], LINK)
    assert [point.feasible for point in found.points] == [False, True]
    assert str(found).count("below the floor") == 1 and "below the floor" in found._repr_html_()


def test_where_nothing_is_copied_there_is_no_overlap() -> None:
    lowest = floor(STEP).bytes
    found = sweep(STEP, [lowest - 1, lowest, STEP.live_peak_bytes], LINK)
    below, low, whole = found.points
    assert (below.overlap, whole.overlap) == (None, None) and 0.0 < low.overlap < 1.0
    assert " ".join(str(found).splitlines()[-1].split()).endswith("0.0 % 0.0 % – 0 B 0 B 0 B knee")
    assert DEFINITION in str(found) and html.escape(DEFINITION) in found._repr_html_()
    values = sweep_values(found)["points"]
    assert [point["overlap"] for point in values] == [None, low.overlap, None]


def test_reads_well() -> None:
    text = str(sweep(STEP, None, LINK))
    assert "Floor:" in text and "within 5 % of uncapped from" in text and text.count("knee") == 1
    assert "at none of these capacities" in str(sweep(STEP, [floor(STEP).bytes], LINK))


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="capacities is empty"):
        sweep(STEP, [], LINK)
    with pytest.raises(ValueError, match="within -1 is no fraction from 0 up"):
        sweep(STEP, None, LINK, within=-1)


def test_the_planner_is_at_hand_in_the_package() -> None:
    assert cl.sweep is sweep and cl.plan is plan and cl.floor is floor and cl.simulate is simulate
