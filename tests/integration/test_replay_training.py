"""Training with storages dropped and replayed by hand-made programs: the numbers of the run without them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from torch import nn
from training import ConvNet, Gpt, GroupedMoe, Loop, Moe, adamw, call_here, of_the_gate, sgd, train

import chameleon_lab.session.session
from chameleon_lab.planner import obey, program
from chameleon_lab.planner.process import PlannerProcess
from chameleon_lab.planner.program import Program
from chameleon_lab.runtime import core
from chameleon_lab.trace import Category, StepTrace
from chameleon_lab.trace.replay_ops import REPLAY_CLASS

pytestmark = [
    pytest.mark.bits,
    pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13"),
]

FREE, SWAP_IN, SWAP_OUT, DROP, REPLAY = 0, 1, 2, 3, 4


def dropping(compiled: Program, step: StepTrace, share: int) -> Program:
    """The program with the swaps of every ``share``-th activation made drops and replays."""
    activations = step.storages.category[compiled.storage_row] == Category.ACTIVATION
    chosen = activations & (np.arange(len(activations)) % share == 0)
    on = chosen[compiled.action_storage]
    kind = compiled.action_kind.copy()
    kind[on & (kind == SWAP_OUT)] = DROP
    kind[on & (kind == SWAP_IN)] = REPLAY
    keep = ~(on & (kind == FREE))
    return dataclasses.replace(
        compiled,
        action_op=compiled.action_op[keep],
        action_kind=kind[keep],
        action_storage=compiled.action_storage[keep],
    )


@pytest.fixture(params=[1, 2], ids=["all", "every other"])
def drops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions drop where they would swap activations."""
    real = program.compile_program
    for module in (chameleon_lab.session.session, obey):
        monkeypatch.setattr(
            module, "compile_program", lambda policy, step: dropping(real(policy, step), step, request.param)
        )
    monkeypatch.setattr(PlannerProcess, "call", call_here)


MODELS: dict[str, tuple[Any, Any, Loop, float]] = {
    "gpt": (lambda: Gpt(layers=4), adamw, Loop(), 0.6),
    "gpt with dropout": (lambda: Gpt(layers=3, dropout=0.1), adamw, Loop(clip=True), 0.6),
    "gpt autocast": (lambda: Gpt(layers=4), adamw, Loop(autocast=True), 0.4),
    "gpt accumulating": (lambda: Gpt(layers=3), sgd, Loop(accumulate=2), 0.6),
    "conv": (lambda: ConvNet(blocks=12), sgd, Loop(), 0.6),
    "moe": (Moe, adamw, Loop(), 0.6),
    "grouped moe": (GroupedMoe, adamw, Loop(), 0.6),
}
"""Model, optimizer, loop, and the capacity as a share of the peak."""


@pytest.mark.parametrize("name", of_the_gate("gpt with dropout", "conv", "moe", all_of=MODELS))
def test_training_is_bit_identical(drops: None, name: str) -> None:
    model, optimizer, loop, share = MODELS[name]
    plain = train(model, optimizer, 5, loop=loop)
    peak = train(model, optimizer, 3, {"capacity": "1GiB"}, loop=loop).report.live_peak_bytes
    capacity = int(share * peak)
    replayed: set[str] = set()

    def look(number: int, model: nn.Module, session: Any) -> None:
        if session is not None and number > 2:
            last = session.trace().last
            replayed.update(last.names[name] for name in last.replays.name.tolist())

    options = {"capacity": capacity, "min_swap": "4KiB"}
    mixed = train(model, optimizer, 5, options, loop=loop, each_step=look)
    assert mixed.same(plain)
    report = mixed.report
    assert report is not None and report.peak_bytes <= capacity
    steps = [step for step in report.history if step.drops]
    assert steps, report.notes
    assert sum(step.replays for step in steps) > 0
    if name == "grouped moe":
        assert "aten::_grouped_mm" in replayed
    if name == "conv":
        # What relu changes in place are results of batch norm, which is not replayed.
        assert any("cannot be made again" in why for why in report.declined_drops), report.declined_drops


def test_replays_are_in_the_trace_and_nowhere_else(drops: None) -> None:
    seen: list[StepTrace] = []

    def look(number: int, model: nn.Module, session: Any) -> None:
        if session is not None and number > 2:
            seen.append(session.trace().last)

    peak = train(Gpt, adamw, 3, {"capacity": "1GiB"}).report.live_peak_bytes
    train(Gpt, adamw, 7, {"capacity": int(0.6 * peak), "min_swap": "4KiB"}, each_step=look)
    newest = seen[-1]
    assert len(newest.replays) > 0
    assert len({len(step.ops) for step in seen}) == 1, "replays are no ops of the step"
    assert (newest.ops.plan_op >= 0).mean() > 0.99, "nor does the matcher see them"
    assert (newest.replays.duration_s > 0).all()
    assert set(newest.replays.op.tolist()) <= set(range(len(newest.ops)))
    names = {newest.names[name] for name in newest.replays.name.tolist()}
    assert len(names) > 1 and names <= REPLAY_CLASS.keys()  # which ones is the plan's choice
    assert len({step.storages.uid.size for step in seen[-2:]}) == 1
    assert newest.ops.resident_peak_bytes.max() <= 0.6 * peak
