"""The link that plans are made for, as the copies of a step found it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import gpt_step

from chameleon_lab.errors import PolicyError
from chameleon_lab.policy import Link
from chameleon_lab.trace import Direction, StepTrace, Transfers

MIB = 1 << 20


def step_with(*copies: tuple[Direction, int, float, float]) -> StepTrace:
    """A step that made these copies: direction, bytes, start and end in seconds."""
    direction, size, start_s, end_s = (np.array(column) for column in zip(*copies, strict=True))
    n = len(copies)
    return dataclasses.replace(
        gpt_step(),
        transfers=Transfers(
            storage=np.zeros(n, np.int32),
            direction=direction.astype(np.uint8),
            cause=np.zeros(n, np.uint8),
            bytes=size.astype(np.int64),
            issue_op=np.zeros(n, np.int32),
            issue_s=start_s.astype(float),
            start_s=start_s.astype(float),
            end_s=end_s.astype(float),
        ),
    )


def test_bytes_over_the_time_that_the_copies_took_each_way() -> None:
    step = step_with(
        (Direction.OUT, 4 * MIB, 0.0, 1.0),
        (Direction.OUT, 2 * MIB, 3.0, 4.0),
        (Direction.IN, 8 * MIB, 0.0, 2.0),
    )
    assert Link(1e9, 2e9).under_load(step.transfers) == Link(3 * MIB, 4 * MIB)


@pytest.mark.parametrize(
    "copy",
    [
        (Direction.IN, MIB // 2, 0.0, 1.0),  # too little to tell
        (Direction.IN, 8 * MIB, 5.0, 0.0),  # still under way when the step was read
    ],
)
def test_what_a_step_does_not_tell_stays(copy: tuple[Direction, int, float, float]) -> None:
    step = step_with((Direction.OUT, 4 * MIB, 0.0, 1.0), copy)
    assert Link(1e9, 2e9).under_load(step.transfers) == Link(4 * MIB, 2e9)


def test_a_step_without_copies_tells_nothing() -> None:
    assert Link(1e9, None).under_load(gpt_step().transfers) == Link(1e9, None)


def test_less_of_a_link_is_less_in_both_directions() -> None:
    assert Link(1e9, 2e9).reduced("25%") == Link(0.75e9, 1.5e9)
    assert Link(None, 2e9).reduced(0) == Link(None, 2e9)
    with pytest.raises(PolicyError, match="out_bytes_per_s is 0"):
        Link(1e9, 2e9).reduced(1.0)
