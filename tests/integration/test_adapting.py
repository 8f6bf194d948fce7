"""Op sequences that change while the session runs: the numbers stay, the capacity holds, and plans are found again."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from training import Gpt, Moe, adamw, raw, reference, state_bytes

import chameleon_lab as cl
from chameleon_lab import plans
from chameleon_lab.report import Report

STEPS = 24


class Trainer:
    """A model with its optimizer; ``step`` trains once, in the usual pieces."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = adamw(model.parameters())
        self.generator = torch.Generator().manual_seed(0)
        self.losses: list[bytes] = []

    def micro_batch(self, scale: float = 1.0, **kwargs: Any) -> None:
        """Forward and backward."""
        loss = self.model(self.model.batch(self.generator, **kwargs)) * scale  # type: ignore[operator]
        loss.backward()
        self.losses.append(raw(loss))

    def evaluate(self, **kwargs: Any) -> None:
        """Forward without gradients."""
        self.model.eval()
        with torch.no_grad():
            self.losses.append(raw(self.model(self.model.batch(self.generator, **kwargs))))  # type: ignore[operator]
        self.model.train()

    def update(self) -> None:
        """The optimizer's part."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def lengths(t: Trainer, number: int) -> None:
    t.micro_batch(time=random.Random(number).choice(range(24, 65, 8)))
    t.update()


def evaluation(t: Trainer, number: int) -> None:
    if number % 5 == 4:
        t.evaluate()
        t.evaluate()
    t.micro_batch()
    t.update()


def ragged_accumulation(t: Trainer, number: int) -> None:
    for _ in range(2 if number % 4 == 3 else 4):
        t.micro_batch(0.25, size=2)
    t.update()


def skipped_updates(t: Trainer, number: int) -> None:
    t.micro_batch()
    if number % 6 == 5:
        t.optimizer.zero_grad()  # what a scaler does after an overflow
    else:
        t.update()


def dropped_layers(t: Trainer, number: int) -> None:
    t.model.skip = random.Random(number).choice([None, 0, 2, 4])  # type: ignore[assignment]
    t.micro_batch()
    t.update()


def frozen_half(t: Trainer, number: int) -> None:
    if number == STEPS // 2:
        t.model.blocks[:3].requires_grad_(False)  # type: ignore[index, union-attr]
    t.micro_batch()
    t.update()


def larger_batch(t: Trainer, number: int) -> None:
    t.micro_batch(size=8 if number >= STEPS // 2 else 4)
    t.update()


def rare_branch(t: Trainer, number: int) -> None:
    t.micro_batch()
    if number % 7 == 6:
        norm = sum(p.detach().pow(2).sum() for p in t.model.parameters())
        t.losses.append(raw(torch.as_tensor(norm)))
    t.update()


def rerouted(t: Trainer, number: int) -> None:
    t.micro_batch()
    t.update()


Change = Callable[[Trainer, int], None]
CHANGES: dict[str, tuple[Change, Callable[[], nn.Module]]] = {
    change.__name__: (change, Moe if change is rerouted else Gpt)
    for change in (
        lengths, evaluation, ragged_accumulation, skipped_updates, dropped_layers, frozen_half, larger_batch,
        rare_branch, rerouted,
    )
}  # fmt: skip


def run(
    change: Change,
    factory: Callable[[], nn.Module] = Gpt,
    capacity: int | None = None,
    steps: int = STEPS,
    wait: bool = False,
    each: Callable[[int, cl.Session | None], None] | None = None,
) -> tuple[tuple[list[bytes], dict[str, bytes]], Report | None]:
    """Train; with ``capacity`` in a session. ``wait``: let every plan be ready at the next border."""
    torch.manual_seed(0)
    model = factory()
    session = None if capacity is None else cl.Session(capacity)
    with session or nullcontext():
        trainer = Trainer(model)
        if session:
            session.step()  # step N + 1 of the session is then step N of the loop, and no optimizer marks another end
        for number in range(steps):
            change(trainer, number)
            if session:
                session.step()
                if wait:
                    session._plans.wait()
            if each:
                each(number, session)
        report = session.report() if session else None
    return (trainer.losses, state_bytes(model, trainer.optimizer)), report


@pytest.mark.parametrize("name", CHANGES)
def test_changing_ops_leave_numbers_and_capacity_alone(name: str) -> None:
    change, factory = CHANGES[name]
    _, live_peak = reference(factory)
    want, _ = run(change, factory)
    got, report = run(change, factory, live_peak // 3)
    assert got == want
    assert report is not None
    assert max(step.peak_bytes for step in report.history) <= live_peak // 3
    assert [step.stage for step in report.history][1:3] == ["WarmUp", "Profile"]
    assert all(plan.why for plan in report.plans)


@pytest.mark.parametrize("name", ["evaluation", "rare_branch", "skipped_updates", "ragged_accumulation"])
def test_what_the_matcher_follows_is_followed_from_the_first_time(name: str) -> None:
    """No plan fits these steps when they first come, and still most of their ops are found in the one there is."""
    change, factory = CHANGES[name]
    _, live_peak = reference(factory)
    _, report = run(change, factory, live_peak // 2)
    assert report is not None
    odd = {"evaluation": 4, "rare_branch": 6, "skipped_updates": 5, "ragged_accumulation": 3}[name] + 1
    step = report.history[odd]
    usual = report.history[odd - 1].ops if name in ("evaluation", "rare_branch") else step.ops
    assert step.matched_ops >= 0.99 * usual, step  # the ops of the branch and of evaluation are nobody's
    assert report.history[odd + 1].match_rate == 1.0


def test_each_length_keeps_its_plan_and_none_is_made_twice() -> None:
    _, live_peak = reference(Gpt)

    def cycle(t: Trainer, number: int) -> None:
        t.micro_batch(time=(64, 40, 24)[number % 3])
        t.update()

    _, report = run(cycle, Gpt, live_peak // 3, steps=30, wait=True)
    assert report is not None
    made = [plan for plan in report.plans if plan.decisions or plan.made_from_step > 0]
    sizes = {round(plan.live_peak_bytes / 1e5) for plan in made if not plan.dropped}
    assert len(sizes) >= 3, report.plans
    late = report.history[-6:]
    assert len({step.plan for step in late}) == 3, "one plan a length"
    assert not any(plan.made_from_step > 15 for plan in report.plans), "nothing is planned again"
    assert all(step.match_rate == 1.0 for step in late) and report.lacking is None


def test_training_and_evaluation_alternate_without_planning_again() -> None:
    _, live_peak = reference(Gpt)

    def alternate(t: Trainer, number: int) -> None:
        if number % 2:
            t.evaluate(size=24)
        else:
            t.micro_batch()
            t.update()

    _, report = run(alternate, Gpt, live_peak // 3, steps=24, wait=True)
    assert report is not None
    late = report.history[12:]
    assert all(step.match_rate == 1.0 for step in late), [step.match_rate for step in late]
    assert len({step.plan for step in late}) == 2
    assert not any(plan.made_from_step >= 12 for plan in report.plans)


def test_a_lasting_change_gets_a_plan_of_its_own_although_the_old_one_serves() -> None:
    change, factory = CHANGES["frozen_half"]
    _, live_peak = reference(factory)
    _, report = run(change, factory, live_peak // 3, wait=True)
    assert report is not None
    steps = report.history[STEPS // 2 + 1 :]
    assert min(step.match_rate for step in steps) > 0.99
    assert {step.match_rate for step in steps[5:]} == {1.0}
    assert steps[-1].plan != report.history[STEPS // 2].plan
    assert report.departures == () and report.lacking is None


def test_the_report_says_where_the_ops_departed() -> None:
    def logs_once(t: Trainer, number: int) -> None:
        t.micro_batch()
        if number == 10:
            for _ in range(3):
                t.losses.append(raw(torch.linspace(0.0, 1.0, 512).std()))
        t.update()

    _, live_peak = reference(Gpt)
    found: list[Report] = []

    def look(number: int, session: cl.Session | None) -> None:
        if number == 10 and session:
            found.append(session.report())

    _, last = run(logs_once, Gpt, live_peak // 2, steps=16, each=look)
    (report,) = found
    assert last is not None and last.departures == (), "the newest steps match whole"
    assert {departure.step for departure in report.departures} == {11}
    assert "aten::linspace" in {departure.op_name for departure in report.departures}
    assert sum(departure.extra_ops for departure in report.departures) >= 6  # linspace and std, three times
    assert str(report.departures[-1]) in str(report)
    assert report.history[11].departures == len(report.departures)
    plan = report.plans[-1]
    followed = sum(p.followed_steps for p in report.plans if p.fingerprint == plan.fingerprint)
    assert followed >= 7 and plan.last_step == 11 and not plan.dropped


def test_plans_are_bounded_and_the_one_followed_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 2)
    _, live_peak = reference(Gpt)

    def cycle(t: Trainer, number: int) -> None:
        t.micro_batch(time=(64, 48, 32, 24)[number % 4])
        t.update()

    want, _ = run(cycle, Gpt, steps=16)
    got, report = run(cycle, Gpt, live_peak // 3, steps=16, wait=True)
    assert got == want and report is not None
    kept = [plan for plan in report.plans if not plan.dropped]
    gone = [plan for plan in report.plans if "longest ago" in plan.dropped]
    assert len(kept) <= 2 and gone


def test_a_failed_plan_is_noted_once_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from chameleon_lab import session as session_module

    change, factory = CHANGES["larger_batch"]
    _, live_peak = reference(factory)
    want, _ = run(change, factory)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("made up")

    def breaks(number: int, _: cl.Session | None) -> None:
        if number == 4:
            monkeypatch.setattr(session_module, "plan_obeying", broken)

    got, report = run(change, factory, live_peak // 2, wait=True, each=breaks)
    assert got == want and report is not None
    assert sum("planning failed" in note and "made up" in note for note in report.notes) == 1
    assert max(step.peak_bytes for step in report.history) <= live_peak // 2


def test_stopping_while_a_plan_is_made_is_harmless() -> None:
    _, live_peak = reference(Gpt)
    for steps in (STEPS // 2 + 1, STEPS // 2 + 2):
        run(partial(frozen_half), Gpt, live_peak // 3, steps=steps)
    with cl.Session(live_peak // 3) as session:
        assert session.report().plans == ()
