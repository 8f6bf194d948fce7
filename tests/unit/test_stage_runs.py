"""Where a drawing marks the stages of a step."""

from dataclasses import fields, replace

import numpy as np
from synthetic import gpt_step

from chameleon_lab.lab.figures.stage_runs import stage_runs
from chameleon_lab.trace import Stage
from chameleon_lab.trace.columns import Ops

FORWARD, BACKWARD, OPTIMIZER, NO_GRAD = Stage


def marked(*runs: tuple[Stage, int]) -> list[tuple[Stage, int]]:
    """What is marked of a step whose ops have these stages, so many each."""
    stages = np.concatenate([np.full(count, stage, dtype=np.uint8) for stage, count in runs])
    step = gpt_step(layers=1)
    ops = {column.name: np.resize(getattr(step.ops, column.name), len(stages)) for column in fields(step.ops)}
    return stage_runs(replace(step, ops=Ops(**ops | {"stage": stages})))


def test_each_turn_is_marked_at_its_first_op():
    assert marked((FORWARD, 10), (BACKWARD, 20), (FORWARD, 10), (BACKWARD, 20), (OPTIMIZER, 900)) == [
        (FORWARD, 0),
        (BACKWARD, 10),
        (FORWARD, 30),
        (BACKWARD, 40),
        (OPTIMIZER, 60),
    ]


def test_ops_outside_autograd_are_none_of_their_own():
    assert marked((NO_GRAD, 2), (FORWARD, 10), (NO_GRAD, 5), (FORWARD, 10), (BACKWARD, 900)) == [
        (FORWARD, 2),
        (BACKWARD, 27),
    ]


def test_a_few_ops_of_an_earlier_stage_split_none():
    assert marked(
        (FORWARD, 50), (BACKWARD, 30), (FORWARD, 1), (BACKWARD, 30), (FORWARD, 2), (OPTIMIZER, 900)
    ) == [
        (FORWARD, 0),
        (BACKWARD, 50),
        (OPTIMIZER, 113),
    ]


def test_a_later_stage_of_one_op_is_a_stage():
    assert marked((FORWARD, 500), (BACKWARD, 400), (OPTIMIZER, 1))[-1] == (OPTIMIZER, 900)


def test_too_many_turns_are_not_marked():
    assert marked(*[(FORWARD, 10), (BACKWARD, 10)] * 20) == []
