"""Sessions that plan swaps and replays together: the numbers of the run without them, and what reports say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from training import ConvNet, Gpt, Loop, Moe, adamw, reference, sgd, train

import chameleon_lab as cl
import chameleon_lab.session
from chameleon_lab.plans import Plans
from chameleon_lab.policy.memory import step_op_times
from chameleon_lab.runtime import core

pytestmark = pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")

SLOW = {"link": "64MiB/s", "min_swap": "4KiB"}
"""Copies take so long that replays are worth their while."""


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that take the same time whatever else the machine does: plans depend on it."""
    monkeypatch.setattr(chameleon_lab.session, "step_op_times", lambda step: np.full(len(step.ops), 2e-5))


MODELS: dict[str, tuple[Any, Any, Loop]] = {
    "gpt": (Gpt, adamw, Loop()),
    "gpt with dropout": (lambda: Gpt(dropout=0.1), adamw, Loop(clip=True)),
    "gpt autocast": (Gpt, adamw, Loop(autocast=True)),
    "conv": (lambda: ConvNet(blocks=12), sgd, Loop()),
    "moe": (Moe, adamw, Loop()),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_mixed_policy_is_bit_identical(name: str) -> None:
    model, optimizer, loop = MODELS[name]
    bare, live_peak = reference(model, optimizer, 7, loop)
    capacity = int(0.6 * live_peak)
    mixed = train(model, optimizer, 7, {"capacity": capacity, **SLOW}, loop=loop)
    assert mixed.same(bare)
    report = mixed.report
    assert report is not None and report.peak_bytes <= capacity
    assert sum(step.drops for step in report.history) > 0, report
    assert sum(step.replays for step in report.history) > 0, report


def test_a_mixed_policy_moves_fewer_bytes_than_swaps_alone() -> None:
    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), **SLOW}
    mixed = train(Gpt, adamw, 6, settings).report
    swapping = train(Gpt, adamw, 6, settings | {"rematerialise": False}).report
    assert mixed is not None and swapping is not None
    assert swapping.drops == swapping.replays == 0
    assert not any(step.drops or step.replays for step in swapping.history)
    assert mixed.history[-1].swapped_out_bytes < swapping.history[-1].swapped_out_bytes


def test_the_policy_says_what_is_dropped_and_the_trace_what_was_replayed() -> None:
    _, live_peak = reference(Gpt)
    seen = {}

    def look(number: int, model: Any, session: cl.Session) -> None:
        if session is not None and number == 5:
            seen.update(policy=session.policy, trace=session.trace())

    train(Gpt, adamw, 7, {"capacity": int(0.6 * live_peak), **SLOW}, each_step=look)
    policy, trace = seen["policy"], seen["trace"]
    assert policy.drops and policy.assumed["rematerialise"] == trace.meta["replay_class"] == 2
    dropped = {decision.storage for decision in policy.drops}
    step = trace.last
    replayed = {step.storage_keys[row] for row in step.replays.storage.tolist() if row >= 0}
    assert replayed & dropped


def test_drops_that_the_runtime_declines_are_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner trusts the trace; where the core knows better, the next plan goes without those drops."""
    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), **SLOW}
    allow = core.allow_replays
    without = lambda dtypes: allow({name: d for name, d in dtypes.items() if name != "aten::gelu"})  # noqa: E731
    monkeypatch.setattr(core, "allow_replays", without)
    monkeypatch.setattr(
        core, "keep_producers", lambda on: None
    )  # nor does the first trace say how values are made

    def wait(number: int, model: Any, session: cl.Session) -> None:
        if session is not None:
            session._plans.wait()

    bare, _ = reference(Gpt, adamw, 10)
    run = train(Gpt, adamw, 10, settings, each_step=wait)
    assert run.same(bare)
    report = run.report
    assert report is not None
    declined = [step.declined_drops for step in report.history]
    assert max(declined) > 0, declined
    assert declined[-1] == 0, declined
    assert report.history[-1].drops > 0
    assert any("declined" in plan.why for plan in report.plans), report.plans


@pytest.mark.parametrize("slow_steps", [0, 7])
def test_a_plan_that_was_made_for_slower_ops_is_made_again(
    slow_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step under eviction may take far longer than its ops: what seems to hide copies then does not.

    So may the first few under the plan, if another program has the cores.
    """
    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), **SLOW}
    told: list[int] = []

    def times(step: Any) -> Any:
        told.append(step.index)
        return step_op_times(step) * (1000.0 if len(told) == 1 else 1.0)

    def judged(plans: Plans, log: Any, summary: Any) -> None:
        if log.index <= slow_steps:
            summary = replace(summary, step_s=1e4 * summary.step_s)
        step_ended(plans, log, summary)

    step_ended = Plans.step_ended
    monkeypatch.setattr("chameleon_lab.session.step_op_times", times)
    monkeypatch.setattr(Plans, "step_ended", judged)
    policies: list[Any] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        if session is not None:
            session._plans.wait()
            policies.append(session.policy)

    bare, _ = reference(Gpt, adamw, 14)
    run = train(Gpt, adamw, 14, settings, each_step=look)
    assert run.same(bare)
    report = run.report
    assert report is not None and report.peak_bytes <= settings["capacity"]
    first = next(policy for policy in policies if policy is not None)
    assert first.predicted["step_s"] > 10 * policies[-1].predicted["step_s"]
    assert not first.drops and policies[-1].drops
    again = [plan.why for plan in report.plans if "it was made for" in plan.why]
    assert 1 <= len(again) <= 3, report.plans


def test_a_given_policy_is_not_made_again() -> None:
    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), **SLOW}
    seen: list[Any] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        if session is not None:
            session._plans.wait()
            seen.append(session.policy)

    train(Gpt, adamw, 6, settings, each_step=look)
    slow = replace(seen[-1], predicted={**seen[-1].predicted, "step_s": 1000.0})
    seen.clear()
    run = train(Gpt, adamw, 8, settings | {"policy": slow}, each_step=look)
    assert run.report is not None and seen[-1] is slow
    assert not any("it was made for" in plan.why for plan in run.report.plans), run.report.plans


@pytest.mark.parametrize("share", [0.5, 0.25], ids=["half", "quarter"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_masks_of_dropout_are_drawn_again(autocast: bool, share: float) -> None:
    """In attention and in the MLP, and casts beside them: no drop of the plan is declined, and no state is touched."""
    loop, states = Loop(autocast=autocast), []

    def model() -> Gpt:
        return Gpt(dropout=0.1)

    def look(number: int, model: Any, session: cl.Session) -> None:
        states.append(torch.get_rng_state().tolist())
        if session is not None:
            session._plans.wait()
            if number == 9:
                trace.append(session.trace().last)

    trace: list[Any] = []
    bare = train(model, adamw, 10, loop=loop, each_step=look)
    _, live_peak = reference(Gpt, adamw, 6, loop)
    kwargs = {"capacity": int(share * live_peak), **SLOW, "min_swap": "2KiB"}
    mixed = train(model, adamw, 10, kwargs, loop=loop, each_step=look)
    assert mixed.same(bare)
    assert states[:10] == states[10:]
    report = mixed.report
    assert report is not None and report.peak_bytes <= kwargs["capacity"]
    assert [step.declined_drops for step in report.history[-3:]] == [0, 0, 0], report.declined_drops
    step = trace[0]
    names = {step.names[name] for name in step.replays.name.tolist()}
    assert {"aten::bernoulli_", "aten::div_"} <= names, names
    assert not autocast or "aten::_to_copy" in names
    made = {step.names[name] for name in step.makings.name.tolist() if name >= 0}
    assert "aten::dropout" not in made and "aten::bernoulli_" in made


def test_a_policy_file_holds_how_values_are_made(tmp_path: Any) -> None:
    """Drops of what ops inside of others make are found again, in force from the second step on."""
    settings = {"capacity": int(0.5 * reference(Gpt)[1]), **SLOW}

    def model() -> Gpt:
        return Gpt(dropout=0.1)

    def keep(number: int, model: Any, session: cl.Session) -> None:
        session._plans.wait()
        if number == 7 and session.policy is not None:
            session.policy.save(tmp_path / "policy.json")

    train(model, adamw, 8, settings, each_step=keep)
    policy = cl.Policy.load(tmp_path / "policy.json")
    assert policy.source is not None and len(policy.source.makings)
    masks = [drop.storage for drop in policy.drops if "dropout" in drop.storage]
    assert masks, policy
    bare = train(model, adamw, 6)
    run = train(model, adamw, 6, settings | {"policy": policy})
    assert run.same(bare) and run.report is not None
    assert run.report.unmatched_decisions == () and run.report.history[-1].declined_drops == 0
    assert run.report.history[2].drops >= len(masks)
