"""Numbers that the C++ core and Python both give names to mean the same on both sides."""

from __future__ import annotations

import inspect
import re
from enum import IntEnum

import pytest

import chameleon_lab as cl
from chameleon_lab import _C
from chameleon_lab.planner import program, replay
from chameleon_lab.planner.memory import MIN_SWAP_BYTES
from chameleon_lab.runtime import core
from chameleon_lab.trace.columns import Category, Cause, Direction, Pause, Stage
from chameleon_lab.util.units import parse_bytes


def in_capitals(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("Stage", Stage),
        ("Category", Category),
        ("Direction", Direction),
        ("Cause", Cause),
        ("PauseKind", Pause),
    ],
)
def test_enums_have_the_numbers_of_the_core(name: str, ours: type[IntEnum]) -> None:
    assert {value.name: value.value for value in ours} == {
        in_capitals(value): number for value, number in _C.ENUMS[name].items()
    }


def test_actions_have_the_numbers_of_the_core() -> None:
    for value, number in _C.ENUMS["ActionKind"].items():
        assert getattr(program, in_capitals(value)) == number


def test_refusals_are_told_by_their_numbers() -> None:
    assert len(core.REFUSALS) == len(set(core.REFUSALS)) > _C.ENUMS["Refusal"]["Op"]
    assert core.REFUSALS[_C.ENUMS["Refusal"]["None"]] == ""
    assert "not replayed" in core.REFUSALS[core.OP_NOT_REPLAYED]


def test_limits_and_defaults_are_the_cores() -> None:
    options, arguments = core.Options(), inspect.signature(cl.Session).parameters
    assert replay.CHAIN == core.LONGEST_CHAIN
    assert options.min_swap_bytes == MIN_SWAP_BYTES == parse_bytes(arguments["min_swap"].default, "min_swap")
    assert options.max_ops == arguments["max_ops"].default
