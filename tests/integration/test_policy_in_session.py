"""Policies at work: made after Profile, kept in files, given to other runs, and no hindrance where the ops change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import ConvNet, Gpt, Loop, MiB, Moe, adamw, of_the_gate, raw, reference, state_bytes, train

import chameleon_lab as cl
from chameleon_lab.policy import Link, Policy
from chameleon_lab.session import plan_cache
from chameleon_lab.session import session as session_module
from chameleon_lab.session.link_under_load import LinkUnderLoad
from chameleon_lab.testing import modeled_time, wait_for_plans

STEPS = 8
_OP_S = 2e-5
_LINK = Link(8 << 30, 8 << 30)


@pytest.fixture(autouse=True)
def steady() -> Iterator[None]:
    """Plans that no clock decides: ops and copies take what they take everywhere."""
    with modeled_time(_OP_S, link="8GiB/s"):
        yield


def policy_of(model: Any, capacity: int, link: str | None = None) -> Policy:
    """The policy that a run of the model makes."""
    found: list[Policy | None] = []

    def keep(number: int, _: nn.Module, session: cl.Session | None) -> None:
        assert session is not None
        found.append(session.policy)

    train(model, steps=5, session_kwargs={"capacity": capacity, "link": link}, each_step=keep)
    assert found[1] is None and found[2] is not None
    return found[-1]  # type: ignore[return-value]


def test_of_several_policies_the_one_of_the_program_is_taken(tmp_path: Path) -> None:
    """Whichever rank saved it, and however many there were. Where none fits, the first op that differs is named."""
    _, live_peak = reference(Gpt)
    capacity = live_peak // 2
    own, other = policy_of(Gpt, capacity), policy_of(partial(Gpt, layers=8), capacity)
    other.save(tmp_path / "p.rank0.json")
    own.save(tmp_path / "p.rank3.json")
    for given in (tmp_path, tmp_path / "p.json", tmp_path / "p.*.json", [other, own]):
        run = train(Gpt, steps=4, session_kwargs={"capacity": capacity, "policy": given})
        assert run.report is not None
        assert "the given policy fits: in force from the second step on" in run.report.notes, given
    (tmp_path / "p.rank3.json").unlink()
    policy_of(partial(Gpt, layers=4), capacity).save(tmp_path / "p.rank1.json")
    run = train(Gpt, steps=4, session_kwargs={"capacity": capacity, "policy": tmp_path / "p.json"})
    assert run.report is not None
    (note,) = [note for note in run.report.notes if "does not fit" in note]
    # Layer 7 of the longer one comes where this model has its last norm.
    assert "none of 2 policies fits; the nearest is" in note and "rank0.json" in note, note
    assert ": op " in note and "in blocks.6.ln1" in note and "in ln" in note, note
    with pytest.raises(ValueError, match="holds no policy"):
        cl.Session("1MiB", device="cpu", policy=[])
    with pytest.raises(FileNotFoundError):
        cl.Session("1MiB", device="cpu", policy=tmp_path / "gone.json")


def test_a_steady_run_is_stable_and_never_waits_for_a_demand() -> None:
    """At half the peak the plan foresees every use: no swap-in on demand, no eviction, once it is in force."""
    _, live_peak = reference(Gpt)
    run = train(Gpt, steps=12, session_kwargs={"capacity": live_peak // 2})
    report = run.report
    assert report is not None and report.stage == "Stable" and report.notes == ()
    assert [step.stage for step in report.history] == ["WarmUp", "Profile"] + ["Stable"] * 10
    assert report.decisions > 0 and report.unmatched_decisions == ()
    for step in report.history[4:]:
        assert (step.demand_swap_ins, step.evictions) == (0, 0), step
        assert step.match_rate == 1.0
        assert step.swapped_in_bytes > 0 and step.swapped_out_bytes > 0
        assert step.peak_bytes <= live_peak // 2
    # A step changes over from the plan before: it is the ones after it that are alike.
    alike = [
        {(step.peak_bytes, step.swapped_in_bytes) for before, step in pairwise(report.history[4:])
         if before.plan == step.plan == plan.plan}
        for plan in report.plans
    ]  # fmt: skip
    assert any(alike) and all(len(found) <= 1 for found in alike), "resident bytes depend on op indices alone"


@pytest.mark.parametrize("share", [0.75, 0.5, 0.35, 0.25])
def test_the_plan_keeps_what_it_promises(share: float) -> None:
    """Planned peak and planned bytes are those of the run."""
    _, live_peak = reference(Gpt)
    capacity = int(share * live_peak)
    made: list[Policy | None] = []
    run = train(
        Gpt,
        steps=9,
        session_kwargs={"capacity": capacity},
        each_step=lambda number, model, session: made.append(session.policy if session else None),
    )
    policy, report = made[-1], run.report
    assert policy is not None and report is not None and len(policy) > 0
    assert policy.predicted["peak_bytes"] <= capacity * 0.98
    newest = report.history[-1]
    assert newest.demand_swap_ins <= 0.02 * len(policy)
    assert newest.peak_bytes == pytest.approx(policy.predicted["peak_bytes"], rel=0.03)
    assert newest.swapped_in_bytes == pytest.approx(policy.predicted["swapped_in_bytes"], rel=0.05)


@pytest.mark.bits
def test_a_policy_file_serves_a_new_run_of_the_same_script(tmp_path: Path) -> None:
    bare, live_peak = reference(Gpt, steps=STEPS)
    capacity = live_peak // 2
    policy = policy_of(Gpt, capacity)
    path = tmp_path / "policy.json"
    policy.save(path)
    assert Policy.load(path) == policy
    for given in (path, str(path), Policy.load(path)):
        run = train(Gpt, steps=STEPS, session_kwargs={"capacity": capacity, "policy": given})
        report = run.report
        assert run.same(bare) and report is not None
        assert report.unmatched_decisions == () and report.decisions == len(policy)
        assert report.history[-1].demand_swap_ins == 0
        assert report.history[-1].swapped_in_bytes > 0


@pytest.mark.bits
@pytest.mark.parametrize("model", of_the_gate(Gpt, all_of=[Gpt, ConvNet, Moe]))
@pytest.mark.parametrize("other", ["larger gpt", "smaller gpt", "conv", "capacity x4", "empty"])
def test_a_policy_for_something_else_costs_time_alone(model: Any, other: str) -> None:
    bare, live_peak = reference(model, steps=STEPS)
    capacity = live_peak // 3
    policy = {
        "larger gpt": lambda: policy_of(partial(Gpt, layers=11), 4 << 20),
        "smaller gpt": lambda: policy_of(partial(Gpt, layers=3, dim=32), 1 << 20),
        "conv": lambda: policy_of(ConvNet, 5 << 20),
        "capacity x4": lambda: policy_of(model, 2 * live_peak // 3),
        "empty": lambda: Policy(1, policy_of(model, live_peak // 2).link, ()),
    }[other]()
    policy = dataclasses.replace(policy, assumed={}, source=None)  # it does not say what it was made for
    run = train(model, adamw, STEPS, {"capacity": capacity, "policy": policy, "min_swap": "2KiB"})
    assert run.same(bare)
    report = run.report
    assert report is not None and report.decisions == len(policy)
    assert max(step.peak_bytes for step in report.history) <= capacity
    foreign = {"larger gpt": model is not Gpt, "smaller gpt": model is not Gpt, "conv": model is not ConvNet}
    if foreign.get(other) and len(policy):
        assert report.unmatched_decisions and str(len(report.unmatched_decisions)) in str(report)


@pytest.mark.bits
def test_assigning_a_policy_takes_force_at_the_next_step() -> None:
    bare, live_peak = reference(Gpt, steps=STEPS)
    capacity = live_peak // 2
    own = policy_of(Gpt, capacity)
    few = Policy(own.capacity_bytes, own.link, own.decisions[: len(own) // 2], own.assumed)

    def edit(number: int, model: nn.Module, session: cl.Session | None) -> None:
        assert session is not None
        if number == 4:
            assert session.stage is cl.SessionStage.STABLE
            session.policy = few
        if number == 5:
            assert session.stage is cl.SessionStage.STABLE and session.policy is few
        if number == 6:
            session.policy = own

    run = train(Gpt, steps=STEPS, session_kwargs={"capacity": capacity}, each_step=edit)
    assert run.same(bare) and run.report is not None
    history = run.report.history
    assert max(step.peak_bytes for step in history) <= capacity
    assert history[5].demand_swap_ins > 0 == history[3].demand_swap_ins, "half of the decisions are gone"
    assert history[-1].stage == "Stable" and run.report.decisions == len(own)


def evaluates(number: int, model: Any) -> None:
    with torch.no_grad():
        model(model.batch(torch.Generator().manual_seed(number)))


def lengthens(number: int, model: Any) -> None:
    if number >= 3:
        model.batch = partial(Gpt.batch, model, time=64 - 7 * (number % 4))


def grows(number: int, model: Any) -> None:
    if number >= 4:
        model.batch = partial(Gpt.batch, model, size=4 + number % 2)


def skips(number: int, model: Any) -> None:
    model.skip = (number * 3) % 6 if number >= 3 and number % 2 else None


def freezes(number: int, model: Any) -> None:
    if number == 4:
        model.blocks[0].requires_grad_(False)
        model.tokens.requires_grad_(False)


def saves(number: int, model: Any) -> None:
    if number in (3, 6):
        state_bytes(model)


def wanders(number: int, model: Any) -> None:
    extra = torch.full((5000 * (number % 3 + 1),), 1.0)
    for _ in range(number * 7 % 5):
        extra = extra * 2


CHANGES = {f.__name__: f for f in (evaluates, lengthens, grows, skips, freezes, saves, wanders)}


@pytest.mark.bits
@pytest.mark.parametrize("part", of_the_gate(4, all_of=[2, 4]))
@pytest.mark.parametrize("change", CHANGES)
def test_changed_ops_stay_right_and_within_the_capacity(change: str, part: int) -> None:
    def each(number: int, model: nn.Module, session: cl.Session | None) -> None:
        CHANGES[change](number, model)

    _, live_peak = reference(Gpt)
    bare = train(Gpt, steps=12, each_step=each, loop=Loop(clip=True))
    run = train(
        Gpt, steps=12, each_step=each, session_kwargs={"capacity": live_peak // part}, loop=Loop(clip=True)
    )
    assert run.same(bare)
    assert run.report is not None
    assert max(step.peak_bytes for step in run.report.history) <= live_peak // part
    assert run.report.escaped_storages == 0


def test_a_lasting_change_is_profiled_again() -> None:
    """Another model in the same session: back to Profile, a new policy, and no demand once it is in force."""
    _, live_peak = reference(Gpt)
    torch.manual_seed(0)
    models: list[Any] = [Gpt(), Gpt(layers=5, dropout=0.1)]
    generator = torch.Generator().manual_seed(0)
    with cl.Session(live_peak // 2) as session:
        policies = []
        for model in models:
            optimizer = adamw(model.parameters())
            for _ in range(9):
                loss = model(model.batch(generator))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                session.step()
            policies.append(session.policy)
            del optimizer, loss
        report = session.report()
    stages = [step.stage for step in report.history]
    assert "Profile" in stages[9:] and stages[-1] == "Stable"
    assert policies[0] is not policies[1] and report.notes
    assert report.history[-1].match_rate == 1.0


def test_two_optimizers_and_a_policy() -> None:
    """A GAN under half of its peak."""

    def run(capacity: int | None, bare: bool = False) -> tuple[list[bytes], cl.Report | None]:
        torch.manual_seed(0)
        maker = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(128, 128), nn.Tanh())])
        judge = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(128, 128), nn.Tanh())])
        optimizers = adamw(judge.parameters()), adamw(maker.parameters())
        losses = []

        def loop() -> None:
            for _ in range(STEPS):
                noise = torch.randn(256, 128)
                loss = judge(maker(noise).detach()).pow(2).mean()
                loss.backward()
                optimizers[0].step(), optimizers[0].zero_grad()
                losses.append(raw(loss))
                loss = -judge(maker(noise)).mean()
                loss.backward()
                optimizers[1].step(), optimizers[1].zero_grad(), optimizers[0].zero_grad()
                losses.append(raw(loss))

        if bare:
            loop()
            return losses, None
        with cl.Session(capacity, warmup_steps=2) as session:  # both optimizers have their states by then
            loop()
            return losses, session.report()

    want, _ = run(None, bare=True)
    _, recorded = run(None)
    assert recorded is not None
    got, report = run(recorded.live_peak_bytes // 2)
    assert got == want and report is not None
    assert report.stage == "Stable" and report.history[-1].match_rate == 1.0
    assert report.peak_bytes <= recorded.live_peak_bytes // 2


def test_a_plan_spares_what_eviction_alone_waits_for() -> None:
    """At a quarter of the peak: eviction fetches storages when ops need them, a plan before."""
    _, live_peak = reference(Gpt, steps=STEPS)
    capacity = live_peak // 4
    planned = train(Gpt, steps=STEPS, session_kwargs={"capacity": capacity}).report
    evicted = train(Gpt, steps=STEPS, session_kwargs={"capacity": capacity, "planning": False}).report
    assert planned is not None and evicted is not None
    assert evicted.decisions == 0 and evicted.evictions > 0 and evicted.demand_swap_ins > 10
    assert planned.decisions > 0 and planned.demand_swap_ins <= 0.1 * evicted.demand_swap_ins
    assert planned.evictions <= 0.1 * evicted.evictions


def test_eviction_alone_knows_when_storages_are_used_next() -> None:
    """Belady's choice moves fewer bytes than the least recently used would: what a loop reads again and again in
    the same order, the one read last is the one to keep."""
    parts = [torch.zeros(MiB // 4) for _ in range(8)]
    with cl.Session("6MiB", planning=False) as session:
        session.adopt(*parts)
        for _ in range(5):
            for part in parts:
                part.add_(1)
            session.step()
        history = session.report().history
        assert all(int(part[7]) == 5 for part in parts)
    # Least recently used: all 8 come and go in every step. The optimum for 8 blocks in 6 brings in 2 or 3 a step.
    assert all(2 <= step.demand_swap_ins <= 4 for step in history[3:]), history
    assert {step.evictions for step in history[3:]} <= {2, 3, 4}


@pytest.mark.parametrize("change", ["ops more", "a layer less"])
def test_the_match_survives_small_changes(change: str) -> None:
    """The step with the change matches but for what changed, and the next one matches whole."""
    _, live_peak = reference(Gpt, steps=STEPS)

    def alter(number: int, model: nn.Module, _: cl.Session | None) -> None:
        assert isinstance(model, Gpt)
        model.skip = 3 if number == 5 and change == "a layer less" else None
        if number == 5 and change == "ops more":
            for _ in range(3):
                torch.linspace(0.0, 1.0, 512).std()  # what a person logs before a step

    report = train(Gpt, steps=STEPS, session_kwargs={"capacity": live_peak // 2}, each_step=alter).report
    assert report is not None
    rates = [step.match_rate for step in report.history]
    assert rates[3] == rates[4] == rates[6] == rates[7] == 1.0, rates
    assert 0.85 < rates[5] < 1.0, rates
    assert report.notes == ()


def test_the_link_is_measured_again_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy is made for what the copies of its own step reached, unless a link was given."""
    monkeypatch.undo()  # of this machine
    _, live_peak = reference(Gpt)
    links: list[cl.Link] = []

    def look(number: int, _: nn.Module, session: cl.Session | None) -> None:
        assert session is not None
        links.append(session.link)
        if number == 2:  # the first step warms up, and the policy is made from the second
            assert session.policy is not None
            profiled = session.recorded_step(1)
            assert len(profiled.transfers) > 0
            assert session.policy.link == session.link != links[0]
            copies = profiled.transfers
            for direction, found in enumerate((session.link.out_bytes_per_s, session.link.in_bytes_per_s)):
                mine = copies.direction == direction
                took_s = (copies.end_s - copies.start_s)[
                    mine
                ].sum()  # a tick's length is measured ever more exactly
                assert found == pytest.approx(copies.bytes[mine].sum() / took_s, rel=1e-3)

    train(Gpt, steps=3, session_kwargs={"capacity": live_peak // 3}, each_step=look)
    assert links[0] == links[1] and len(links) == 3
    given = policy_of(Gpt, live_peak // 3, "3GiB/s").link
    assert given == cl.Link(3 << 30, 3 << 30)


def test_plans_leave_a_margin_of_the_link() -> None:
    """The one that was given; where the link is measured, what the slowest steps had less of it."""
    _, live_peak = reference(Gpt)
    capacity = {"capacity": live_peak // 3}
    for options, wanted in (({"link": "8GiB/s", "link_margin": "20%"}, 0.2), ({"link": "8GiB/s"}, 0.0)):
        seen: list[tuple[float, dict[str, Any]]] = []

        def look(
            _: int,
            __: nn.Module,
            session: cl.Session | None,
            seen: list[tuple[float, dict[str, Any]]] = seen,
        ) -> None:
            assert session is not None
            if session.policy is not None:
                seen.append((session.link_margin, session.policy.assumed))

        trained = train(Gpt, session_kwargs=capacity | options, each_step=look)
        assert trained.same(reference(Gpt)[0]) and seen
        assert all(margin == wanted == assumed.get("link_margin", 0.0) for margin, assumed in seen)
        report = trained.report
        assert report is not None and report.link_margin == wanted
        (link,) = [remark for name, _, remark in report.rows() if name == "Link"]
        assert ("do without 20" in link) == bool(wanted)


class MeasuredLink:
    """In the place of what copies find: a link, and how many steps have told of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()  # of this machine
        self.found = cl.Link(64 * MiB, 64 * MiB), 0.0
        self.told: list[int] = []
        monkeypatch.setattr(LinkUnderLoad, "learn", lambda _, log: self.told.append(log.index))
        monkeypatch.setattr(LinkUnderLoad, "typical", lambda *_: self.found)
        monkeypatch.setattr(LinkUnderLoad, "is_settled", True)
        monkeypatch.setattr(session_module, "_LEAST_COST", -math.inf)  # whatever the plan costs
        monkeypatch.setattr(plan_cache, "_MOST_REFINEMENTS", 0)  # this machine's clock decides about those

    def train(self, steps: int, **options: Any) -> tuple[cl.Session, list[float]]:
        """Train; from the fifth step on copies find a quarter of the link. The margin of the plan at each step."""
        margins, sessions = [], []

        def look(number: int, _: nn.Module, session: cl.Session | None) -> None:
            assert session is not None
            sessions.append(session)
            wait_for_plans(session)
            if number == 5:
                self.found = cl.Link(16 * MiB, 16 * MiB), 0.25
            margins.append(session.policy.assumed.get("link_margin", 0.0) if session.policy else -1.0)

        _, live_peak = reference(Gpt)
        options = {"capacity": live_peak // 3, "rematerialize": False} | options
        train(Gpt, steps=steps, session_kwargs=options, each_step=look)
        return sessions[0], margins


def test_a_plan_is_made_anew_where_copies_find_another_link(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = MeasuredLink(monkeypatch)
    session, margins = measured.train(24)
    assert margins[3] == 0.0 and margins[-1] == 0.25
    assert measured.told == list(range(24)), "each step that has ended"
    plans = session.report().plans
    (anew,) = [plan for plan in plans if plan.why.startswith("copies find")]
    assert anew.why == "copies find 12.0 MiB/s / 12.0 MiB/s of the link, planned for 64.0 MiB/s / 64.0 MiB/s"
    link = next(row for row in session.report().rows() if row[0] == "Link")
    assert link[1:] == (
        "16.0 MiB/s / 16.0 MiB/s",
        "out / in, assumed by policies, plans do without 25.0 % of it",
    )


def test_a_policy_or_a_link_that_somebody_asked_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    _, live_peak = reference(Gpt)
    given = policy_of(Gpt, live_peak // 3, "64MiB/s")
    session, _ = MeasuredLink(monkeypatch).train(24, policy=given, rematerialize=True)
    assert session.policy is not None and session.policy.decisions == given.decisions
    edited = replace(given.draft().set_link("64MiB/s").policy(), source=given.source)
    session, _ = MeasuredLink(monkeypatch).train(24, policy=edited, rematerialize=True)
    assert not any(plan.why.startswith("copies find") for plan in session.report().plans)


def test_a_margin_that_was_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    session, margins = MeasuredLink(monkeypatch).train(24, link_margin=0.1)
    assert set(margins[3:]) == {0.1} and session.link_margin == 0.1
    assert session.policy is not None and session.policy.link == cl.Link(16 * MiB, 16 * MiB)
