"""A draft drawn as a step: its columns say what the simulator says."""

from itertools import product

import numpy as np
import pytest
from synthetic import dropped_step, gpt_step

from chameleon_lab.lab.panel import views
from chameleon_lab.lab.panel.compare import predicted_side
from chameleon_lab.lab.panel.predicted import predicted_step
from chameleon_lab.lab.panel.scene import Scene
from chameleon_lab.planner import plan, simulate
from chameleon_lab.planner.memory import step_op_times
from chameleon_lab.policy import Link
from chameleon_lab.trace import Direction
from chameleon_lab.trace.check import check_step
from chameleon_lab.trace.occupancy import resident_by_category
from chameleon_lab.trace.overlap import overlap_of

STEP = gpt_step(layers=6)
TIMES = step_op_times(STEP)


def made(link, rematerialize, share=0.6):
    policy = plan(
        STEP,
        int(share * STEP.live_peak_bytes),
        Link(link, link),
        op_times=TIMES,
        rematerialize=rematerialize,
    )
    return policy, simulate(STEP, policy, op_times=TIMES), predicted_step(policy, STEP, TIMES)


@pytest.mark.parametrize("link", [4e9, 3e8])
@pytest.mark.parametrize("rematerialize", [False, True])
def test_a_predicted_step_takes_moves_waits_and_replays_what_was_predicted(link, rematerialize):
    policy, found, step = made(link, rematerialize)
    check_step(step)
    assert step.duration_s == pytest.approx(found.step_s)
    assert step.stalls.duration_s.sum() == pytest.approx(found.stall_s)
    assert step.replays.duration_s.sum() == pytest.approx(found.replay_s)
    assert bool(policy.drops) == bool(len(step.replays)) and (
        policy.drops or not rematerialize or link == 4e9
    )
    assert step.peak_bytes == found.peak_bytes and len(step.declined) == 0
    for direction, size in ((Direction.OUT, found.swapped_out_bytes), (Direction.IN, found.swapped_in_bytes)):
        own = step.transfers.direction == direction
        assert int(step.transfers.bytes[own].sum()) == size
        starts, ends = step.transfers.start_s[own], step.transfers.end_s[own]
        order = np.argsort(starts)
        assert (starts[order][1:] >= ends[order][:-1] - 1e-9).all(), "a direction takes one copy at a time"
    waits, moved = step.stalls, step.transfers
    ends = waits.start_s + waits.duration_s
    assert (ends <= (step.ops.start_s + step.ops.duration_s)[waits.op] + 1e-9).all()
    # Nothing runs before the copy that it waits for has ended, and then at once.
    for row, way, end in zip(waits.storage.tolist(), waits.direction.tolist(), ends.tolist(), strict=True):
        own = (moved.storage == row) & (moved.direction == way)
        assert np.abs(moved.end_s[own] - end).min() < 1e-9
    again = step.replays
    for start, end in zip(again.start_s.tolist(), (again.start_s + again.duration_s).tolist(), strict=True):
        assert not ((waits.start_s < end - 1e-9) & (ends > start + 1e-9)).any(), "it replays, or it waits"


@pytest.mark.parametrize("rematerialize", [False, True])
@pytest.mark.parametrize("recorded", [STEP, dropped_step(layers=6)[0]], ids=["gpt", "mixed"])
def test_the_overlap_that_is_predicted_is_that_of_the_step_that_is_drawn(recorded, rematerialize):
    times, seen = step_op_times(recorded), set()
    for link, share in product((2e8, 5e8, 1e9, 4e9, None), (0.5, 0.6, 0.8, 1.0)):
        capacity = int(share * recorded.live_peak_bytes)
        policy = plan(recorded, capacity, Link(link, link), op_times=times, rematerialize=rematerialize)
        found, drawn = simulate(recorded, policy, op_times=times), predicted_step(policy, recorded, times)
        others = (
            overlap_of(drawn),
            views.describe(Scene([drawn], {}))["overlap"],
            policy.predicted["overlap"],
            predicted_side(policy, recorded).figures["overlap"],
        )
        seen.add(found.overlap)
        if found.overlap is None:
            assert found.transfer_s == 0.0 and others == (None,) * 4
        else:
            assert found.transfer_s > 0.0 and others == pytest.approx([found.overlap] * 4, abs=1e-9)
            assert found.stall_s > 0.0 or found.overlap == 1.0
    assert None in seen and 1.0 in seen and len(seen) > 3  # copies that hide in part, too


@pytest.mark.parametrize("rematerialize", [False, True])
def test_what_is_on_the_device_adds_up_to_the_prediction_but_for_the_scratch_of_ops(rematerialize):
    _, found, step = made(3e8, rematerialize)
    times, levels = resident_by_category(step)
    at = np.searchsorted(times, step.ops.start_s + 1e-12, side="right") - 1
    held = levels[at].sum(axis=1)
    assert (held <= found.resident_bytes).all()
    bare, kept = resident_by_category(STEP)
    before = kept[np.searchsorted(bare, STEP.ops.start_s + 1e-12, side="right") - 1].sum(axis=1)
    # What is away is what the storages' own levels lack; ops that replay hold more for a moment.
    lacks, away = before - held, STEP.ops.live_peak_bytes - found.resident_bytes
    quiet = np.ones(len(step.ops), dtype=bool)
    quiet[step.replays.op] = False
    assert lacks[quiet].tolist() == away[quiet].tolist()


def test_the_panel_draws_it_as_it_draws_steps():
    policy, found, step = made(3e8, True)
    scene = Scene([step], {"capacity_bytes": policy.capacity_bytes})
    assert int(scene.away["dropped"].sum()) == len(policy.drops)
    whole = views.describe(scene)
    assert whole["steps"][0]["stage"] == "Draft" and whole["peak_bytes"] == found.peak_bytes
    assert whole["replay_s"] == pytest.approx(found.replay_s)
    key = policy.drops[0].storage
    row = scene.storage_keys.index(key)
    detail = views.storage(scene, "op", int(scene.storage_uid[row]))
    assert detail["dropped"] == [[policy.drops[0].free_op, policy.drops[0].in_op]]
    views.view(scene, "time", 0.0, scene.length("time"), 800, 200, "storage")


def test_drops_that_were_declined_in_the_recorded_step_are_not_of_the_draft():
    recorded, _ = dropped_step()
    policy = plan(recorded, recorded.live_peak_bytes, Link(4e9, 4e9))
    step = predicted_step(policy, recorded, step_op_times(recorded))
    assert (
        len(recorded.declined) and not len(step.declined) and not len(step.replays) and not len(step.stalls)
    )
