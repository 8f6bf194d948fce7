"""Binding a policy to a step: its own, one that changed, and one that has nothing of it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import StepBuilder, gpt_step

from chameleon_lab.planner import plan
from chameleon_lab.planner.program import (
    FREE,
    SWAP_IN,
    SWAP_OUT,
    Program,
    compile_program,
    unreplayable,
)
from chameleon_lab.policy import Decision, Link, Policy
from chameleon_lab.policy.model import Action, fingerprint
from chameleon_lab.trace import Category, Stage, StepTrace

BIG = 1 << 20


def step_with(*uses: int, ops: int, name: str = "w", size: int = BIG, movable: bool = True) -> StepTrace:
    step = StepBuilder()
    row = step.carried(Category.PARAMETER, size, name, movable=movable)
    for i in range(ops):
        step.op("aten::mm", reads=(row,) if i in uses else ())
    return step.build()


def swap(gap: int, out_op: int, free_op: int, in_op: int, use_op: int) -> Policy:
    decision = Decision("parameter:w", "parameter", "", BIG, Action.SWAP, gap, out_op, free_op, in_op, use_op)
    return Policy(BIG, Link(None, None), (decision,))


def actions(program: Program) -> list[tuple[int, int, int]]:
    columns = (program.action_op, program.action_kind, program.action_storage)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_actions_are_wrapped_and_sorted() -> None:
    program = compile_program(swap(1, 8, 10, 12, 13), step_with(3, 8, ops=10))
    assert actions(program) == [(0, FREE, 0), (2, SWAP_IN, 0), (8, SWAP_OUT, 0)]
    assert program.unmatched == ()


def test_every_storage_that_may_move_is_in_the_program() -> None:
    step = gpt_step(layers=3)
    program = compile_program(Policy(1, Link(None, None), ()), step)
    assert program.action_op.size == 0
    assert len(program.storage_row) == len(step.storages)
    assert program.ops == len(step.ops) and program.fingerprint == fingerprint(step)
    persistent = (step.storages.birth_op < 0) & (step.storages.death_op == len(step.ops))
    np.testing.assert_array_equal(program.uid, np.where(persistent, step.storages.uid, -1))
    np.testing.assert_array_equal(program.birth_op, step.storages.birth_op)
    np.testing.assert_array_equal(program.birth_ordinal, step.storages.birth_ordinal)
    np.testing.assert_array_equal(program.block_bytes, step.storages.block_bytes)
    for row in range(len(step.storages)):
        uses = program.uses_op[program.uses_offset[row] : program.uses_offset[row + 1]]
        np.testing.assert_array_equal(uses, step.uses.op[step.uses.storage == row])


def test_columns_are_integers_of_fixed_width() -> None:
    step = gpt_step()
    program = compile_program(plan(step, int(0.6 * step.live_peak_bytes), Link(None, None)), step)
    flags = {"action_kind": "uint8", "evict_last": "bool"}
    wide = {"uid", "block_bytes", "uses_offset"}
    for field in dataclasses.fields(program):
        column = getattr(program, field.name)
        if isinstance(column, np.ndarray):
            expected = flags.get(field.name, "int64" if field.name in wide else "int32")
            assert column.dtype == expected, field.name
    assert program.action_op.min() >= 0 and program.action_op.max() < len(step.ops)


def test_own_step_keeps_the_ops_as_they_are() -> None:
    step = gpt_step(layers=6)
    policy = plan(step, int(0.5 * step.live_peak_bytes), Link(1e9, 1e9))
    program = compile_program(policy, step)
    n, keys = len(step.ops), step.storage_keys
    expected = []
    for decision in policy.decisions:
        storage = keys.index(decision.storage)
        expected.append((decision.free_op % n, FREE, storage))
        expected.append((decision.in_op % n, SWAP_IN, storage))
        expected.append((decision.out_op % n, SWAP_OUT, storage))
    assert sorted(actions(program)) == sorted(expected)
    order = [(op, kind) for op, kind, _ in actions(program)]
    assert order == sorted(order)


def test_more_urgent_copies_go_first() -> None:
    step = StepBuilder()
    rows = [step.carried(Category.PARAMETER, BIG, name) for name in "abc"]
    for i in range(12):
        step.op("aten::mm", reads=tuple(rows) if i == 1 else tuple(row for row in rows if 10 - row == i))
    decisions = tuple(
        Decision(f"parameter:{name}", "parameter", "", BIG, Action.SWAP, 0, 1, 4 - k, 6, 10 - k)
        for k, name in enumerate("abc")
    )
    program = compile_program(Policy(BIG, Link(None, None), decisions), step.build())
    of_kind = {kind: [s for _, k, s in actions(program) if k == kind] for kind in (SWAP_IN, SWAP_OUT)}
    assert of_kind == {SWAP_IN: [2, 1, 0], SWAP_OUT: [2, 1, 0]}


def test_inserted_ops_move_the_decision_with_its_uses() -> None:
    policy = swap(0, 2, 4, 8, 12)
    assert actions(compile_program(policy, step_with(2, 12, ops=14))) == [(2, 2, 0), (4, 0, 0), (8, 1, 0)]
    # Three ops were inserted before the gap: same place in the gap.
    assert actions(compile_program(policy, step_with(5, 15, ops=17))) == [(5, 2, 0), (7, 0, 0), (11, 1, 0)]
    # The gap has doubled: same share of the gap.
    assert actions(compile_program(policy, step_with(2, 22, ops=24))) == [(2, 2, 0), (6, 0, 0), (14, 1, 0)]
    # The gap has one op left.
    assert actions(compile_program(policy, step_with(2, 4, ops=14))) == [(2, 2, 0), (3, 0, 0), (3, 1, 0)]


@pytest.mark.parametrize(
    "policy, step, reason",
    [
        (swap(0, 2, 3, 5, 6), step_with(2, 6, ops=8, name="v"), "no such storage"),
        (swap(0, 2, 3, 5, 6), step_with(2, 6, ops=8, movable=False), "must stay"),
        (swap(0, 2, 3, 5, 6), step_with(2, 6, ops=8, size=1024), "too small"),
        (swap(2, 2, 3, 5, 6), step_with(2, 6, ops=8), "no such gap"),
        (swap(0, 2, 3, 5, 6), step_with(2, 3, 6, ops=8), "or must stay in it"),
        (swap(-1, 0, 1, -1, -1), step_with(2, ops=8), "an op of the step uses"),
    ],
)
def test_what_does_not_fit_is_reported(policy: Policy, step: StepTrace, reason: str) -> None:
    program = compile_program(policy, step)
    assert program.action_op.size == 0
    assert len(program.unmatched) == 1 and reason in program.unmatched[0]
    assert f"parameter:{'w'}, gap {policy.decisions[0].gap}" in program.unmatched[0]


def test_dormant_storage_leaves_and_has_no_way_back() -> None:
    program = compile_program(swap(-1, 0, 1, -1, -1), step_with(ops=8))
    assert actions(program) == [(0, SWAP_OUT, 0), (1, FREE, 0)]


def test_kept_gaps_compile_to_nothing() -> None:
    policy = swap(0, 2, 3, 5, 6)
    kept = dataclasses.replace(
        policy, decisions=(dataclasses.replace(policy.decisions[0], action=Action.KEEP),)
    )
    program = compile_program(kept, step_with(2, 6, ops=8))
    assert program.action_op.size == 0 and program.unmatched == ()


def test_size_limit_of_the_policy_holds() -> None:
    step = step_with(2, 6, ops=8, size=8192)
    assert len(compile_program(swap(0, 2, 3, 5, 6), step).storage_row) == 0
    small = dataclasses.replace(swap(0, 2, 3, 5, 6), assumed={"min_swap_bytes": 4096})
    assert len(compile_program(small, step).storage_row) == 1


def dropping() -> tuple[Policy, StepTrace]:
    """Drops of what a gelu and a matrix product make, the second from the first."""
    builder = StepBuilder()
    x = builder.carried(Category.INPUT, BIG, "x")
    (a,) = builder.op("aten::gelu", reads=(x,), makes=((Category.ACTIVATION, BIG),))
    (b,) = builder.op("aten::mm", reads=(a,), makes=((Category.ACTIVATION, BIG),))
    builder.op("aten::sum", reads=(a, b))
    for _ in range(4):
        builder.op("aten::unrelated")
    builder.op("aten::backward", reads=(a, b), stage=Stage.BACKWARD)
    step = builder.build()
    uses = {a: 2, b: 1}
    decisions = tuple(
        Decision(step.storage_keys[row], "activation", "", BIG, Action.REMATERIALIZE, gap, 2, 3, 7, 7)
        for row, gap in uses.items()
    )
    return Policy(BIG, Link(None, None), decisions, source=step), step


@pytest.mark.parametrize(
    ("replay_class", "refused", "lost"),
    [
        (2, {}, {}),
        (2, {"aten::conv2d": "it differs", "activation:gone": "it differs"}, {}),
        (2, {"aten::gelu": "it differs"}, {0: "aten::gelu is not replayed here, it differs"}),
        (2, {"aten::mm": "it differs"}, {1: "aten::mm is not replayed here, it differs"}),
        (1, {}, {1: "aten::mm is not replayed here, nor is any op of class 2"}),
        (2, {"{1}": "it was written"}, {1: "it was written"}),
    ],
)
def test_drops_that_a_session_cannot_replay(
    replay_class: int, refused: dict[str, str], lost: dict[int, str]
) -> None:
    policy, step = dropping()
    keys = [decision.storage for decision in policy.decisions]
    refused = {name.format(*keys): why for name, why in refused.items()}
    found = unreplayable(policy, step, replay_class, refused)
    assert found == {policy.decisions[index]: why for index, why in lost.items()}
    without = dataclasses.replace(policy, source=None)
    assert unreplayable(without, step, replay_class, refused) == found
    assert unreplayable(without, gpt_step(), replay_class, refused) == {}, "nothing of it is in the step"


def test_the_step_that_a_policy_was_made_for_tells_what_it_drops() -> None:
    """A live step need not say how values are made: where nothing is replayed, nobody has watched."""
    policy, _ = dropping()
    assert len(unreplayable(policy, gpt_step(), 1, {})) == 1
