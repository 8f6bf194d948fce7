"""Retention: small storages that are kept after their death, so that larger ones can be made from them again."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from synthetic import StepBuilder

from chameleon_lab.errors import PolicyError
from chameleon_lab.planner import generate, plan, simulate
from chameleon_lab.planner.memory import memory_under
from chameleon_lab.planner.program import RELEASE, bind, compile_program
from chameleon_lab.planner.replay import ReplayChains
from chameleon_lab.planner.retention import as_planned, retained_by, retaining, worth_retaining
from chameleon_lab.policy import Decision, Link, Policy, diff
from chameleon_lab.policy.model import Action
from chameleon_lab.trace import Category, Stage, StepTrace

MiB = 1 << 20
LINK = Link(1e8, 1e8)


def residual_step(layers: int = 12, more_ops: int = 0) -> StepTrace:
    """A bfloat16 residual stream: each block needs a float32 copy of its input in backward, and not the input."""
    builder = StepBuilder()
    weights = [builder.carried(Category.PARAMETER, MiB // 4, f"w.{k}") for k in range(layers)]
    (stream,) = builder.op("aten::embedding", reads=(weights[0],), makes=((Category.ACTIVATION, MiB),))
    copies = []
    for k, weight in enumerate(weights):
        where = f"h.{k}"
        (copy,) = builder.op(
            "aten::to", reads=(stream,), makes=((Category.ACTIVATION, 2 * MiB),), module=where
        )
        (norm,) = builder.op("aten::mul", reads=(copy,), makes=((Category.ACTIVATION, MiB),), module=where)
        (out,) = builder.op(
            "aten::mm", reads=(norm, weight), makes=((Category.ACTIVATION, MiB),), module=where, seconds=4e-3
        )
        for _ in range(more_ops):
            builder.op("aten::ones_like", reads=(weight,), module=where)
        (added,) = builder.op(
            "aten::add", reads=(stream, out), makes=((Category.ACTIVATION, MiB),), module=where
        )
        builder.free(stream, norm, out)
        copies.append(copy)
        stream = added
    (gradient,) = builder.op("aten::sum", reads=(stream,), makes=((Category.ACTIVATION, MiB),))
    builder.free(stream)
    for k in reversed(range(layers)):
        (passed,) = builder.op(
            "aten::native_layer_norm_backward",
            reads=(gradient, copies[k], weights[k]),
            makes=((Category.ACTIVATION, MiB),),
            stage=Stage.BACKWARD,
            module=f"h.{k}",
            seconds=4e-3,
        )
        builder.free(gradient, copies[k])
        gradient = passed
    builder.op("aten::add_", reads=(gradient, *weights), writes=tuple(weights), stage=Stage.OPTIMIZER)
    builder.free(gradient)
    return builder.build()


STEP = residual_step()
CAPACITY = int(0.5 * STEP.live_peak_bytes)


def planned(step: StepTrace = STEP, capacity: int = CAPACITY) -> Policy:
    return plan(step, capacity, LINK, op_times=step.ops.duration_s, rematerialize=True)


POLICY = planned()
RETAINED = sorted({key for drop in POLICY.drops for key in drop.retains})


def test_a_plan_retains_what_is_smaller_than_what_it_makes_and_costs_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert RETAINED
    prediction = simulate(STEP, POLICY, op_times=STEP.ops.duration_s)
    assert prediction.fits and prediction.unmatched == ()
    assert prediction.step_s == pytest.approx(POLICY.predicted["step_s"])
    monkeypatch.setattr(generate, "worth_retaining", lambda *_: {})
    without = planned()
    assert not any(drop.retains for drop in without.drops)
    assert POLICY.predicted["step_s"] < 0.95 * without.predicted["step_s"]


def test_every_retained_storage_is_read_by_the_replay_that_it_is_retained_for() -> None:
    until = retained_by(POLICY, STEP)
    keys = STEP.storage_keys
    assert sorted(keys[row] for row in until) == RETAINED
    memory, _, replays, _ = bind(POLICY, STEP)
    whole = ReplayChains(STEP, memory_under(STEP, 16384, CAPACITY)[0], STEP.ops.duration_s)
    chains = whole.retaining(as_planned(POLICY, STEP), memory, until)
    reads = {
        keys[int(memory.row[storage])]: {
            keys[row] for row in chains.chain(int(memory.row[storage]), op).inputs
        }
        for storage, op in zip(replays.storage.tolist(), replays.in_op.tolist(), strict=True)
    }
    for drop in POLICY.drops:
        assert set(drop.retains) <= reads[drop.storage]


def test_the_program_lets_go_at_the_op_that_the_gap_ends_with() -> None:
    program = compile_program(POLICY, STEP)
    released = program.action_kind == RELEASE
    rows = program.storage_row[program.action_storage[released]].tolist()
    assert dict(zip(rows, program.action_op[released].tolist(), strict=True)) == retained_by(POLICY, STEP)
    assert program.unmatched == ()


def test_it_binds_to_a_step_with_other_ops_between() -> None:
    other = residual_step(more_ops=2)
    until = retained_by(POLICY, other)
    assert sorted(other.storage_keys[row] for row in until) == RETAINED
    dropped = {drop.storage for drop in POLICY.drops}
    assert not [line for line in simulate(other, POLICY).unmatched if line.split(",")[0] in dropped]
    uses = other.uses
    for row, op in until.items():  # what the replay makes is used there
        made = [drop.storage for drop in POLICY.drops if other.storage_keys[row] in drop.retains]
        used = {other.storage_keys[other_row] for other_row in uses.storage[uses.op == op].tolist()}
        assert used & set(made)


def test_a_retained_storage_may_be_away_meanwhile() -> None:
    tight = planned(capacity=int(0.25 * STEP.live_peak_bytes))
    prediction = simulate(STEP, tight, op_times=STEP.ops.duration_s)
    assert prediction.fits and prediction.unmatched == ()
    until = retained_by(tight, STEP)
    keys = {STEP.storage_keys[row]: op for row, op in until.items()}
    moved = [d for d in (*tight.swaps, *tight.drops) if keys.get(d.storage) == d.use_op]
    assert moved and all(d.out_op < d.free_op <= d.in_op for d in moved)


def test_the_retained_step_has_the_bytes_until_the_op_and_not_beyond() -> None:
    until = retained_by(POLICY, STEP)
    seen = retaining(STEP, until)
    more = seen.ops.live_peak_bytes - STEP.ops.live_peak_bytes
    expected = np.zeros(len(STEP.ops), dtype=np.int64)
    for row, op in until.items():
        expected[int(STEP.storages.death_op[row]) + 1 : op + 1] += STEP.storages.block_bytes[row]
    assert (more == expected).all() and more.any()
    assert retaining(seen, until) is seen and seen.storage_keys == STEP.storage_keys


def test_what_is_as_large_as_what_it_makes_is_not_worth_it() -> None:
    memory = memory_under(STEP, 16384, CAPACITY)[0]
    chains = ReplayChains(STEP, memory, STEP.ops.duration_s)
    block = STEP.storages.block_bytes
    until = worth_retaining(STEP, chains, CAPACITY)
    assert until and all(block[row] == MiB for row in until)
    assert worth_retaining(STEP, chains, STEP.live_peak_bytes) == {}
    larger = dataclasses.replace(STEP.storages, block_bytes=np.full(len(block), MiB, dtype=block.dtype))
    even = dataclasses.replace(STEP, storages=larger)
    assert (
        worth_retaining(
            even, ReplayChains(even, memory_under(even, 16384, CAPACITY)[0], even.ops.duration_s), 1
        )
        == {}
    )


# ------------------------------------------------------------------------------------------------ the file


def test_the_file_says_what_is_retained_and_for_what() -> None:
    read = Policy.from_json(POLICY.to_json())
    assert read == POLICY
    entries = json.loads(POLICY.to_json())["decisions"]
    assert [entry.get("retains", []) for entry in entries] == [list(d.retains) for d in POLICY.decisions]
    assert all("retains" not in entry or entry["retains"] for entry in entries)


def test_a_diff_says_it() -> None:
    drop = next(drop for drop in POLICY.drops if drop.retains)
    changed = dataclasses.replace(
        POLICY,
        decisions=tuple(dataclasses.replace(d, retains=()) if d == drop else d for d in POLICY.decisions),
    )
    assert f"retains {drop.retains[0]} -> nothing" in str(diff(POLICY, changed))
    added = dataclasses.replace(POLICY, decisions=tuple(d for d in POLICY.decisions if d != drop))
    assert f"retains {drop.retains[0]}" in str(diff(added, POLICY))


@pytest.mark.parametrize(("action", "retains"), [(Action.SWAP, ("b",)), (Action.REMATERIALIZE, ("a",))])
def test_only_a_replay_retains_and_not_what_it_makes(action: Action, retains: tuple[str, ...]) -> None:
    with pytest.raises(
        PolicyError, match=r"'a', gap 1: it retains [ab]; only a rematerialize retains storages"
    ):
        Decision("a", "activation", "", 1, action, 1, 2, 3, 4, 4, retains=retains)


def test_text_that_is_no_list_of_keys_is_refused_with_its_place() -> None:
    text = POLICY.to_json().replace(f'"retains": ["{RETAINED[0]}"', '"retains": [""', 1)
    with pytest.raises(
        PolicyError, match=r"decisions\[\d+\]\.retains is \[\"\"\], but it must be an array of strings"
    ):
        Policy.from_json(text, "p.json")
