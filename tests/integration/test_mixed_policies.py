"""Sessions that plan swaps and replays together: the numbers of the run without them, and what reports say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import ConvNet, Gpt, Loop, Moe, adamw, of_the_gate, reference, sgd, train

import chameleon_lab as cl
import chameleon_lab.session.session
from chameleon_lab.planner import plan
from chameleon_lab.policy import Edit, EditAction, Policy
from chameleon_lab.runtime import core
from chameleon_lab.runtime.replay_check import Replayable, replayable
from chameleon_lab.testing import ModeledTime, modeled_time, wait_for_plans
from chameleon_lab.trace import Trace
from chameleon_lab.trace.replay_ops import REPLAY_CLASS

pytestmark = pytest.mark.skipif(not core.SEES_RAW_ACCESS, reason="nothing is replayed before torch 2.13")

SLOW = {"link": "64MiB/s", "min_swap": "4KiB"}
"""Copies take so long that replays are worth their while."""


@pytest.fixture(autouse=True)
def steady() -> Iterator[ModeledTime]:
    """Ops that take the same time whatever else the machine does: plans depend on it."""
    with modeled_time() as time:
        yield time


class Critic(nn.Module):
    """A loss with the norm of a gradient in it: its backward goes through a backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 96))
            for _ in range(5)
        )
        self.score = nn.Linear(96, 1)

    def batch(self, generator: torch.Generator) -> torch.Tensor:
        return torch.randn(256, 96, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = first = x.requires_grad_()
        for block in self.blocks:
            x = x + block(x)
        score = self.score(x)
        (slope,) = torch.autograd.grad(score.sum(), first, create_graph=True)
        return score.square().mean() + (slope.norm(dim=1) - 1.0).square().mean()


MODELS: dict[str, tuple[Any, Any, Loop]] = {
    "gpt": (Gpt, adamw, Loop()),
    "gpt with dropout": (lambda: Gpt(dropout=0.1), adamw, Loop(clip=True)),
    "gpt autocast": (Gpt, adamw, Loop(autocast=True)),
    "conv": (lambda: ConvNet(blocks=12), sgd, Loop()),
    "moe": (Moe, adamw, Loop()),
    "gradient penalty": (Critic, adamw, Loop()),
}


@pytest.mark.bits
@pytest.mark.parametrize("name", of_the_gate("gpt", "conv", "gradient penalty", all_of=MODELS))
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
    swapping = train(Gpt, adamw, 6, settings | {"rematerialize": False}).report
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
    assert policy.drops and policy.assumed["rematerialize"] == trace.meta["replay_class"] == 2
    dropped = {decision.storage for decision in policy.drops}
    step = trace.last
    replayed = {step.storage_keys[row] for row in step.replays.storage.tolist() if row >= 0}
    assert replayed & dropped


@pytest.mark.bits
def test_drops_that_the_runtime_declines_are_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner trusts the trace; where the core knows better, the next plan goes without those drops."""
    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), **SLOW}
    allow = core.of().allow_replays
    without = lambda _, dtypes: allow({name: d for name, d in dtypes.items() if name != "aten::gelu"})  # noqa: E731
    monkeypatch.setattr(core.Runtime, "allow_replays", without)
    monkeypatch.setattr(
        core.Runtime, "keep_producers", lambda runtime, on: None
    )  # nor does the first trace say how values are made

    def wait(number: int, model: Any, session: cl.Session) -> None:
        if session is not None:
            wait_for_plans(session)

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


@pytest.mark.bits
@pytest.mark.parametrize("slow_steps", [0, 7])
def test_a_plan_that_was_made_for_slower_ops_is_made_again(slow_steps: int, steady: ModeledTime) -> None:
    """A step under eviction may take far longer than its ops: what seems to hide copies then does not.

    So may the first few under the plan, if another program has the cores.
    """
    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), **SLOW}

    policies: list[Any] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        steady.op_s = 2e-2 if number <= max(1, slow_steps) else 2e-5
        if session is not None:
            policies.append(session.policy)

    bare, _ = reference(Gpt, adamw, 16)
    run = train(Gpt, adamw, 16, settings, each_step=look)
    assert run.same(bare)
    report = run.report
    assert report is not None and report.peak_bytes <= settings["capacity"]
    first = next(policy for policy in policies if policy is not None)
    assert first.predicted["step_s"] > 10 * policies[-1].predicted["step_s"]
    assert not first.drops and policies[-1].drops
    again = [plan.why for plan in report.plans if ", planned for" in plan.why and "its ops take" in plan.why]
    assert 1 <= len(again) <= 3, report.plans


def test_a_given_policy_is_not_made_again() -> None:
    _, live_peak = reference(Gpt)
    settings = {"capacity": int(0.6 * live_peak), **SLOW}
    seen: list[Any] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        if session is not None:
            wait_for_plans(session)
            seen.append(session.policy)

    train(Gpt, adamw, 6, settings, each_step=look)
    slow = replace(seen[-1], predicted={**seen[-1].predicted, "step_s": 1000.0})
    seen.clear()
    run = train(Gpt, adamw, 8, settings | {"policy": slow}, each_step=look)
    assert run.report is not None and seen[-1] is slow
    assert not any("its ops take" in plan.why for plan in run.report.plans), run.report.plans


def settings_of(share: float = 0.6) -> dict[str, Any]:
    """A capacity of which the rest cannot be hidden behind copies."""
    return {"capacity": int(share * reference(Gpt)[1]), **SLOW}


@cache
def mixed_policy() -> Policy:
    """What a session plans that may replay."""
    return run_of({})[1][-1]


def run_of(kwargs: dict[str, Any], steps: int = 8) -> tuple[Any, list[Any]]:
    """A run, and the policy in force after each step."""
    seen: list[Any] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        wait_for_plans(session)
        seen.append(session.policy)

    return train(Gpt, adamw, steps, settings_of() | kwargs, each_step=look), seen


@pytest.mark.bits
@pytest.mark.parametrize("how", of_the_gate("file", all_of=["file", "object", "assigned", "enabled"]))
def test_a_policy_with_drops_is_planned_anew_where_nothing_is_replayed(how: str, tmp_path: Path) -> None:
    """As it is, it would leave to eviction what it drops."""
    policy, path = mixed_policy(), tmp_path / "policy.json"
    policy.save(path)
    swaps_alone, _ = run_of({"rematerialize": False})
    seen: list[Any] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        if session is None:
            return
        wait_for_plans(session)
        seen.append(session.policy)
        if number == 4 and how == "assigned":
            session.policy = path
        elif number == 4 and how == "enabled":
            session.enable(Policy.load(path))

    given: dict[str, Callable[[], Any]] = {"file": lambda: path, "object": lambda: policy}
    kwargs = {"rematerialize": False} | ({"policy": given[how]()} if how in given else {})
    bare, _ = reference(Gpt, adamw, 10)
    run = train(Gpt, adamw, 10, settings_of() | kwargs, each_step=look)
    report = run.report
    assert run.same(bare) and report is not None
    assert seen[-1] is not policy and seen[-1].swaps and not seen[-1].drops
    assert report.unmatched_decisions == () and not report.declined_drops
    lost = f"{len(policy.drops)} of its {len(policy.decisions)} decisions cannot be obeyed"
    assert any(lost in note and "rematerialize=False" in note for note in report.notes), report.notes
    assert [step.evictions for step in report.history[-2:]] == [0, 0], report
    assert report.history[-1].swapped_out_bytes <= 1.1 * swaps_alone.report.history[-1].swapped_out_bytes


@pytest.mark.bits
@pytest.mark.parametrize("refused", ["aten::gelu", "class 2"])
def test_a_policy_with_drops_that_the_self_check_refuses_is_planned_anew(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = mixed_policy()
    of_it = {name for name, kind in REPLAY_CLASS.items() if kind == 2} if refused == "class 2" else {refused}

    def without(*args: Any, **kwargs: Any) -> Replayable:
        known = replayable(*args, **kwargs)
        here = {name: dtypes for name, dtypes in known.dtypes.items() if name not in of_it}
        return Replayable(here, known.refused | dict.fromkeys(of_it, "repeated runs are not bit-identical"))

    monkeypatch.setattr(chameleon_lab.session.session, "replayable", without)
    bare, _ = reference(Gpt, adamw, 8)
    run, seen = run_of({"policy": policy})
    report = run.report
    assert run.same(bare)
    assert seen[-1] is not policy and seen[-1].drops
    assert set(seen[-1].assumed["refused"]) >= of_it
    assert any("cannot be obeyed" in note and "not bit-identical" in note for note in report.notes), (
        report.notes
    )
    assert report.history[-1].replays and not report.declined_drops and report.unmatched_decisions == ()


@pytest.mark.bits
def test_a_given_policy_goes_where_the_runtime_declines_its_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session thought that it could: the next plan is without those drops, and keeps the others."""
    policy = mixed_policy()
    allow = core.of().allow_replays
    without = lambda _, dtypes: allow({name: d for name, d in dtypes.items() if name != "aten::gelu"})  # noqa: E731
    monkeypatch.setattr(core.Runtime, "allow_replays", without)
    bare, _ = reference(Gpt, adamw, 10)
    run, seen = run_of({"policy": policy}, steps=10)
    report = run.report
    assert run.same(bare)
    assert seen[1] is policy and seen[-1] is not policy and seen[-1].drops
    declined = [step.declined_drops for step in report.history]
    assert max(declined) > 0 and declined[-1] == 0, declined
    gone = set(seen[-1].assumed["refused"]) & {decision.storage for decision in policy.drops}
    assert gone and gone.isdisjoint(decision.storage for decision in seen[-1].drops)
    assert any("cannot be obeyed" in note and "is not replayed" in note for note in report.notes), (
        report.notes
    )


def test_planning_offline_knows_what_the_session_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the trace says is refused is what the session plans without."""
    given = mixed_policy()
    allow = core.of().allow_replays
    without = lambda _, dtypes: allow({name: d for name, d in dtypes.items() if name != "aten::gelu"})  # noqa: E731
    monkeypatch.setattr(core.Runtime, "allow_replays", without)
    path, seen = tmp_path / "t.parquet", []

    def look(number: int, model: Any, session: cl.Session) -> None:
        wait_for_plans(session)
        if number == 9:
            session.trace().save(path)
            seen.append(session.policy)

    train(Gpt, adamw, 10, settings_of() | {"policy": given}, each_step=look)
    (policy,) = seen
    trace = Trace.load(path)
    refused = policy.assumed["refused"]
    assert "aten::_scaled_dot_product_flash_attention" in refused and any("gelu" in key for key in refused)
    assert trace.meta["refused"] == refused
    made = plan(trace, policy.capacity_bytes, policy.link, min_swap_bytes=4096)
    assert made.assumed["refused"] == refused and made.assumed["rematerialize"] == 2
    off, _ = run_of({"rematerialize": False}, steps=1)
    assert off.report.not_replayed == {}


class Complex(torch.nn.Module):
    """Matrix products of complex numbers, which backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList(torch.randn(64, 64, 2) / 11 for _ in range(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, 64, 2) to a loss."""
        z = torch.view_as_complex(x)
        for layer in self.layers:
            z = z @ torch.view_as_complex(layer)
        return z.abs().square().mean()

    def batch(self, generator: torch.Generator) -> torch.Tensor:
        """Random numbers."""
        return torch.randn(256, 64, 2, generator=generator)


@pytest.mark.bits
def test_reports_tell_why_a_dtype_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        core.Runtime, "keep_producers", lambda runtime, on: None
    )  # nothing says so beforehand
    bare, live_peak = reference(Complex, adamw, 8)
    declined: dict[str, int] = {}
    texts: list[str] = []

    def look(number: int, model: Any, session: cl.Session) -> None:
        wait_for_plans(session)
        report = session.report()
        declined.update(report.declined_drops)
        texts.append(str(report))

    run = train(Complex, adamw, 8, {"capacity": int(0.5 * live_peak), **SLOW}, each_step=look)
    assert run.same(bare)
    reason = "aten::mm is replayed only with float32, bfloat16, float16, float64"
    assert any(why.startswith(reason) for why in declined), declined
    assert any(reason in text for text in texts)
    assert "Not replayed" not in texts[-1], "what the device does not implement is missed by nobody"


def test_drops_that_edits_demand_and_nothing_replays_are_findings() -> None:
    edit = Edit(EditAction.REMATERIALIZE, category="activation", module="blocks.1")
    draft = mixed_policy().draft()
    policy = draft.add(edit).policy()
    assert any(decision.decided_by == "user" for decision in policy.drops)
    run, seen = run_of({"policy": policy, "rematerialize": False})
    assert seen[-1].edits == (edit,) and not seen[-1].drops
    assert any(str(edit) in note and "switched off" in note for note in run.report.notes), run.report.notes


def test_a_policy_whose_drops_can_be_replayed_is_taken_as_it_is() -> None:
    policy = mixed_policy()
    run, seen = run_of({"policy": policy})
    assert all(each is policy for each in seen)
    assert not any("cannot" in note for note in run.report.notes), run.report.notes
    assert run.report.history[-1].drops == len(policy.drops)


@pytest.mark.bits
@pytest.mark.parametrize("share", of_the_gate(0.5, all_of=[0.5, 0.25]))
@pytest.mark.parametrize("autocast", of_the_gate(True, all_of=[False, True]))
def test_masks_of_dropout_are_drawn_again(autocast: bool, share: float) -> None:
    """In attention and in the MLP, and casts beside them: no drop of the plan is declined, and no state is touched."""
    loop, states = Loop(autocast=autocast), []

    def model() -> Gpt:
        return Gpt(dropout=0.1)

    def look(number: int, model: Any, session: cl.Session) -> None:
        states.append(torch.get_rng_state().tolist())
        if session is not None:
            wait_for_plans(session)
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


@pytest.mark.bits
def test_a_policy_file_holds_how_values_are_made(tmp_path: Any) -> None:
    """Drops of what ops inside of others make are found again, in force from the second step on."""
    settings = {"capacity": int(0.5 * reference(Gpt)[1]), **SLOW}

    def model() -> Gpt:
        return Gpt(dropout=0.1)

    def keep(number: int, model: Any, session: cl.Session) -> None:
        wait_for_plans(session)
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
