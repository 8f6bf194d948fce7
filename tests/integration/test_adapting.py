"""Op sequences that change while the session runs: the numbers stay, the capacity holds, and plans are found again."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hangs import HANGS_AFTER_S
from torch import nn
from training import Gpt, Moe, adamw, call_here, raw, reference, state_bytes

import chameleon_lab as cl
from chameleon_lab.planner import process as planner_process
from chameleon_lab.planner import simulate
from chameleon_lab.planner.process import PlannerInterruptedError, PlannerProcess, PlannerProcessError
from chameleon_lab.report.session_report import Report
from chameleon_lab.run_files import RunFiles
from chameleon_lab.session import plan_cache
from chameleon_lab.testing import wait_for_plans
from chameleon_lab.trace import StepTrace
from chameleon_lab.util.units import format_seconds

pytestmark = pytest.mark.full

STEPS = 24


@pytest.fixture(autouse=True)
def no_second_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long ops take on a busy machine must not decide how many plans there are."""
    monkeypatch.setattr(plan_cache, "_MOST_REFINEMENTS", 0)
    monkeypatch.setattr(plan_cache, "_MOST_RELINKS", 0)
    monkeypatch.setattr(plan_cache, "_MOST_ANSWERS", 0)


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
    rematerialize: bool = True,
) -> tuple[tuple[list[bytes], dict[str, bytes]], Report | None]:
    """Train; with ``capacity`` in a session. ``wait``: let every plan be ready at the next border."""
    torch.manual_seed(0)
    model = factory()
    session = None if capacity is None else cl.Session(capacity, rematerialize=rematerialize)
    with session or nullcontext():
        trainer = Trainer(model)
        if session:
            session.step()  # step N + 1 of the session is then step N of the loop, and no optimizer marks another end
        for number in range(steps):
            change(trainer, number)
            if session:
                session.step()
                if wait:
                    wait_for_plans(session)
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
    assert all(step.match_rate == 1.0 for step in late) and report.replan_reason is None


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


def test_what_begins_like_one_plan_and_goes_on_like_another_is_followed_by_the_other() -> None:
    def prelude(t: Trainer) -> None:
        t.losses.append(raw(torch.linspace(0.0, 1.0, 512).std()))

    def changing(t: Trainer, number: int) -> None:
        if number in (8, 10, 15):
            prelude(t)
        if number in (8, 10):
            t.evaluate(size=24)
        else:
            t.micro_batch()
            t.update()

    _, live_peak = reference(Gpt)
    _, report = run(changing, Gpt, live_peak // 3, steps=17, wait=True)
    assert report is not None
    history = report.history
    evaluated, trained, mixed = history[11], history[15], history[16]
    assert evaluated.match_rate == trained.match_rate == 1.0 and evaluated.plan != trained.plan
    assert mixed.plan == trained.plan, "it diverged from there, to the plan with evaluation, and came back"
    assert mixed.matched_ops >= 0.98 * trained.ops, mixed
    assert mixed.divergences == 1 and mixed.trigger_recall > 0.9


def test_a_known_sequence_is_found_in_the_middle_of_a_step() -> None:
    """Ops that no plan knows come first, so that no plan begins as this step does; then what another plan is for."""

    def changing(t: Trainer, number: int) -> None:
        if number % 2 == 0 and number < 12:
            t.evaluate(size=24)
            return
        if number == 14:
            for _ in range(100):
                t.losses.append(raw(torch.linspace(0.0, 1.0, 512).std()))
            t.evaluate(size=24)
            return
        t.micro_batch()
        t.update()

    _, live_peak = reference(Gpt)
    _, report = run(changing, Gpt, live_peak // 3, steps=16, wait=True)
    assert report is not None
    evaluated, trained, odd = report.history[11], report.history[14], report.history[15]
    assert evaluated.plan != trained.plan
    assert odd.plan == evaluated.plan, "it was followed by the plan of the step before to its end"
    assert odd.matched_ops >= 0.7 * evaluated.ops
    assert report.history[16].plan == trained.plan and report.history[16].match_rate == 1.0


def test_how_well_a_step_is_followed_is_known_in_its_middle() -> None:
    looks: list[Report] = []
    sessions: list[cl.Session] = []

    def diverging(t: Trainer, number: int) -> None:
        if number == 12:
            looks.append(sessions[-1].report())
            for _ in range(300):
                t.losses.append(raw(torch.linspace(0.0, 1.0, 512).std()))
            looks.append(sessions[-1].report())
        t.micro_batch()
        t.update()
        if number == 12:
            looks.append(sessions[-1].report())

    _, live_peak = reference(Gpt)
    run(diverging, Gpt, live_peak // 3, steps=14, wait=True, each=lambda _, session: sessions.append(session))  # type: ignore[arg-type]
    before, amid, after = looks
    assert (
        before.recent_match_rate == 1.0
        and before.recent_trigger_recall == 1.0
        and before.replan_reason is None
    )
    assert amid.steps == before.steps and amid.history[-1].match_rate == 1.0, "no step has ended in between"
    assert amid.recent_match_rate < 0.5
    assert amid.replan_reason and "newest" in amid.replan_reason
    assert after.recent_match_rate > 0.9 and after.replan_reason is None


def test_triggers_that_find_nothing_where_their_op_ran_count_as_missed() -> None:
    """Every op is found, and yet what the plan moves is not there: such a plan must not pass for one that works."""
    _, live_peak = reference(Gpt)

    def forgetful(t: Trainer, number: int) -> None:
        if number == 10:
            with torch.no_grad():
                for parameter in t.model.parameters():  # new storages under the same names
                    parameter.data = parameter.data.clone()
                for state in t.optimizer.state.values():
                    for name in ("exp_avg", "exp_avg_sq"):
                        state[name] = state[name].clone()
        t.micro_batch()
        t.update()

    _, report = run(forgetful, Gpt, live_peak // 3, steps=16, wait=True)
    assert report is not None
    assert report.history[10].trigger_recall > 0.99
    assert report.history[11].trigger_recall < 0.9, report.history[11]
    assert report.plans[-1].made_from_step >= 11, "it was planned for anew"
    assert report.history[-1].trigger_recall > 0.99 and report.replan_reason is None


def test_what_was_fetched_for_ops_that_never_came_leaves_as_the_next_plan_says() -> None:
    """Blocks left out from one step on: the old plan still fetches their weights and states, and nothing uses them."""
    _, live_peak = reference(Gpt)

    def left_out(t: Trainer, number: int) -> None:
        t.model.skip = 4 if number >= 10 else None  # type: ignore[assignment]
        t.micro_batch()
        t.update()

    want, _ = run(left_out, Gpt, steps=20)
    # How long ops take decides what is replayed, and a plan's first step has not yet made what it would drop.
    got, report = run(left_out, Gpt, live_peak // 3, steps=20, wait=True, rematerialize=False)
    assert got == want and report is not None
    settled = report.history[-6:]
    assert all(step.match_rate == 1.0 for step in settled)
    assert all(step.trigger_recall == 1.0 for step in settled), [step.trigger_recall for step in settled]
    assert not any(step.evictions for step in settled), [step.evictions for step in settled]


def test_storages_that_are_replaced_for_ever_are_not_planned_for_for_ever() -> None:
    """A chunk of data on the device, loaded anew every 4 steps: a plan for each would be of use for three steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(128, 128), nn.GELU())])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with cl.Session("900KiB", min_swap="2KiB") as session:
        for number in range(80):
            if number % 4 == 0:
                chunk = [torch.randn(128, 128) for _ in range(8)]
            optimizer.zero_grad()
            out = model(chunk[0])
            sum((out - other).pow(2).mean() for other in chunk[1:]).backward()
            optimizer.step()
            wait_for_plans(session)
        report = session.report()
    made = [plan.made_from_step for plan in report.plans if plan.why.endswith("left the device")]
    assert len(made) >= 2, [plan.why for plan in report.plans]
    assert made[-1] - made[-2] >= 8 and len(made) <= 8, made


def test_a_failing_planner_is_asked_ever_more_rarely_for_what_does_not_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_cache, "_LEAST_RECALL", 1.1)
    _, live_peak = reference(Gpt)
    asked: list[int] = []

    def steady(t: Trainer, number: int) -> None:
        t.micro_batch()
        t.update()

    def break_planner(number: int, session: cl.Session | None) -> None:
        def refuse(log: Any) -> Any:
            asked.append(log.index)
            raise RuntimeError("no luck")

        if number == 6 and session:
            session._plans._make = refuse  # type: ignore[method-assign]

    _, report = run(steady, Gpt, live_peak // 3, steps=30, wait=True, each=break_planner)
    gaps = [after - before for before, after in pairwise(asked)]
    assert report is not None and 2 <= len(asked) <= 6 and gaps == sorted(gaps), asked
    assert sum("no luck" in note for note in report.notes) == 1


def test_a_session_that_is_just_starting_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The panel asks from another thread, and starting takes a while: replays are tried out."""
    from chameleon_lab.session import session as session_module

    asked: list[Report] = []
    real = session_module.replayable

    def replayable(*args: Any, **kwargs: Any) -> Any:
        session = cl.current_session()
        assert session is not None and session.recorded_steps() == ()
        asked.append(session.report())
        return real(*args, **kwargs)

    x = torch.ones(64)
    with cl.Session("8MiB") as before:
        (x + 1).sum()
        before.step()  # what it has recorded is no other session's
    monkeypatch.setattr(session_module, "replayable", replayable)
    with cl.Session("8MiB") as session:
        assert len(asked) == 1 and asked[0].steps == 0
    assert session.counters()["live_bytes"] >= 0


def test_ops_that_are_checked_anew_in_a_session_are_part_of_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script sets the number of op threads when its session is open: other kernels may repeat themselves or not."""
    from chameleon_lab.runtime import replay_check

    monkeypatch.setattr(replay_check, "_verdicts", {})
    x = torch.ones(20_000)
    with cl.Session("8MiB") as session:
        for threads in (3, 3, 2, 2):
            torch.set_num_threads(threads)
            assert (x * 2).sum() == 40_000
            session.step()
        held_bytes = session.counters()["live_bytes"]
    assert replay_check._verdicts, "nothing was checked"
    assert [step.ops for step in session.report().history] == [4] * 4
    assert held_bytes == 0


def test_a_session_knows_nothing_of_how_the_one_before_was_followed() -> None:
    _, live_peak = reference(Gpt)

    def diverging(t: Trainer, number: int) -> None:
        t.micro_batch()
        t.update()
        if number == 9:
            for _ in range(300):
                t.losses.append(raw(torch.linspace(0.0, 1.0, 512).std()))

    seen: list[float] = []

    def look(number: int, session: cl.Session | None) -> None:
        if number == 9 and session:
            seen.append(session.report().recent_match_rate)

    run(diverging, Gpt, live_peak // 3, steps=10, wait=True, each=look)
    with cl.Session() as session:
        torch.ones(64).sum()
        report = session.report()
    assert seen[0] < 0.9 and report.recent_match_rate == 1.0 and report.replan_reason is None


def test_plans_that_fare_no_better_are_made_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "_LEAST_RECALL", 1.1)  # no plan ever moves so much

    def steady(t: Trainer, number: int) -> None:
        t.micro_batch()
        t.update()

    _, live_peak = reference(Gpt)
    _, report = run(steady, Gpt, live_peak // 3, steps=90, wait=True)
    assert report is not None
    made = [plan.made_from_step for plan in report.plans if plan.why.endswith("left the device")]
    gaps = [after - before for before, after in pairwise(made)]
    assert len(made) >= 3 and gaps == sorted(gaps) and gaps[-1] >= 64, made
    assert report.replan_reason


def test_a_plan_that_is_ready_within_a_step_is_followed_from_there_on() -> None:
    waits: list[cl.Session] = []

    def larger(t: Trainer, number: int) -> None:
        if number == 13:
            hook = t.model.blocks[2].register_forward_pre_hook(lambda *_: wait_for_plans(waits[0]))
        t.micro_batch(size=8 if number >= 12 else 4)
        if number == 13:
            hook.remove()
        t.update()

    _, live_peak = reference(Gpt)
    _, report = run(larger, Gpt, live_peak // 2, steps=16, each=lambda _, session: waits.append(session))  # type: ignore[arg-type]
    assert report is not None
    (made,) = (plan for plan in report.plans if plan.made_from_step == 13)  # of the loop's step 12
    assert report.history[14].plan == made.plan, "the first step after it"
    assert report.history[13].plan != made.plan and report.history[15].plan == made.plan


def test_pressure_sends_out_ahead_and_what_is_read_before_it_has_left_stays() -> None:
    rows = 24
    with cl.Session(16 << 20, planning=False, link="64MiB/s") as session:
        tensors = [torch.full((1 << 18,), float(row)) for row in range(rows)]  # 1 MiB each
        for _ in range(40):  # what was used long ago is used late, as far as eviction knows
            tensors[-1].add_(0.0)
        more = [torch.zeros(1 << 18) for _ in range(2)]
        leaving = [row for row in range(rows) if session.where(tensors[row]) == "leaving"]
        assert leaving, "the ops waited for their own bytes alone"
        kept = [float(tensors[row].sum()) for row in leaving]
        assert kept == [float(row) * (1 << 18) for row in leaving]
        assert {session.where(tensors[row]) for row in leaving} == {"resident"}
        tensors[leaving[0]].add_(1.0)
        assert float(tensors[leaving[0]][7]) == leaving[0] + 1
        assert session.counters()["peak_resident_bytes"] <= 16 << 20
        del more
        assert [float(tensor[0]) for tensor in tensors[1 : leaving[0]]] == [
            float(r) for r in range(1, leaving[0])
        ]


def test_a_lasting_change_gets_a_plan_of_its_own_although_the_old_one_serves() -> None:
    change, factory = CHANGES["frozen_half"]
    _, live_peak = reference(factory)
    _, report = run(change, factory, live_peak // 3, wait=True)
    assert report is not None
    steps = report.history[STEPS // 2 + 1 :]
    assert min(step.match_rate for step in steps) > 0.99
    assert {step.match_rate for step in steps[5:]} == {1.0}
    assert steps[-1].plan != report.history[STEPS // 2].plan
    assert report.divergences == () and report.replan_reason is None


def test_the_report_says_where_the_ops_diverged() -> None:
    def logs_once(t: Trainer, number: int) -> None:
        t.micro_batch()
        if number == 10:
            for _ in range(3):
                t.losses.append(raw(torch.linspace(0.0, 1.0, 512).std()))
        t.update()

    _, live_peak = reference(Gpt)
    found: list[Report] = []
    traced: list[StepTrace] = []

    def look(number: int, session: cl.Session | None) -> None:
        if number == 10 and session:
            found.append(session.report())
            traced.append(session.trace().last)

    _, last = run(logs_once, Gpt, live_peak // 2, steps=16, each=look)
    (report,), (trace,) = found, traced
    assert last is not None and last.divergences == (), "the newest steps match whole"
    assert {divergence.step for divergence in report.divergences} == {11}
    assert "aten::linspace" in {divergence.op_name for divergence in report.divergences}
    assert (
        sum(divergence.extra_ops for divergence in report.divergences) >= 6
    )  # linspace and std, three times
    assert str(report.divergences[-1]) in str(report)
    assert report.history[11].divergences == len(report.divergences)
    assert trace.index == 11 and trace.match_rate == report.history[11].match_rate
    assert (
        sum(divergence.extra_ops for divergence in trace.divergences)
        == len(trace.ops) - report.history[11].matched_ops
    )
    assert {d.from_op for d in report.divergences} <= {d.from_op for d in trace.divergences}
    plan = report.plans[-1]
    followed = sum(p.followed_steps for p in report.plans if p.fingerprint == plan.fingerprint)
    assert followed >= 7 and plan.last_step == 11 and not plan.dropped


def test_the_report_counts_what_was_left_out_as_the_trace_does() -> None:
    """Ops that match while it is not yet sure where the run goes on are not left out."""

    def skips_once(t: Trainer, number: int) -> None:
        t.model.skip = 2 if number == 10 else None  # type: ignore[assignment]
        t.micro_batch()
        t.update()

    _, live_peak = reference(Gpt)
    found: list[tuple[Report, StepTrace, StepTrace]] = []

    def look(number: int, session: cl.Session | None) -> None:
        if number == 10 and session:
            steps = list(session.trace())
            found.append((session.report(), steps[-2], steps[-1]))

    run(skips_once, Gpt, live_peak // 2, steps=12, each=look)
    ((report, whole, shorter),) = found
    missing = len(whole.ops) - len(shorter.ops)
    assert missing > 0
    for divergences in (report.divergences, shorter.divergences):
        assert {divergence.step for divergence in divergences} == {shorter.index}
        assert sum(d.left_out_ops - d.extra_ops for d in divergences) == missing


def test_a_plan_that_no_new_one_would_better_is_not_made_again_each_time() -> None:
    """A skipped step, and the one after it, find other storages across the border than those planned for."""
    _, live_peak = reference(Gpt)
    scalers: dict[Trainer, torch.amp.GradScaler] = {}

    def scaled(t: Trainer, number: int) -> None:
        scaler = scalers.setdefault(t, torch.amp.GradScaler("cpu", init_scale=1024.0))
        loss = t.model(t.model.batch(t.generator))  # type: ignore[operator]
        (scaler.scale(loss) * (math.inf if number % 9 == 8 else 1.0)).backward()
        t.losses.append(raw(loss))
        scaler.step(t.optimizer)
        scaler.update()
        t.optimizer.zero_grad()

    want, _ = run(scaled, Gpt, steps=150)
    got, report = run(scaled, Gpt, live_peak // 2, steps=150, wait=True)
    assert got == want and report is not None
    again = [plan.made_from_step for plan in report.plans if "left the device" in plan.why]
    assert len(again) <= 6, again


def test_plans_are_bounded_and_the_one_followed_longest_ago_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST_PLANS", 2)
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


def test_a_failed_plan_is_noted_once_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, planned_here: None
) -> None:
    from chameleon_lab.session import session as session_module

    change, factory = CHANGES["larger_batch"]
    _, live_peak = reference(factory)
    want, _ = run(change, factory)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ArithmeticError("made up")

    def breaks(number: int, _: cl.Session | None) -> None:
        if number == 4:
            monkeypatch.setattr(session_module, "plan_and_bind", broken)

    got, report = run(change, factory, live_peak // 2, wait=True, each=breaks)
    assert got == want and report is not None
    assert sum("planning failed" in note and "made up" in note for note in report.notes) == 1
    assert max(step.peak_bytes for step in report.history) <= live_peak // 2


def test_a_thread_that_cannot_start_is_a_plan_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system has no memory left for its stack."""
    change, factory = CHANGES["larger_batch"]
    _, live_peak = reference(factory)
    want, _ = run(change, factory)
    start, refused = plan_cache._Job.start, []

    def scarce(job: plan_cache._Job) -> None:
        if not refused:
            refused.append(job)
            raise RuntimeError("can't start new thread")
        start(job)

    monkeypatch.setattr(plan_cache._Job, "start", scarce)
    got, report = run(change, factory, live_peak // 2, wait=True)
    assert got == want and report is not None and refused
    assert sum("planning failed" in note and "new thread" in note for note in report.notes) == 1
    assert report.plans[-1].made_from_step >= 12 and report.plans[-1].followed_steps > 0


@pytest.fixture
def planned_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlannerProcess, "call", call_here)


@pytest.mark.gate
def test_plans_beside_the_training_are_made_in_a_process_that_ends_with_the_session() -> None:
    change, factory = CHANGES["larger_batch"]
    _, live_peak = reference(factory)
    want, _ = run(change, factory)
    sessions: list[cl.Session] = []
    processes: set[Any] = set()

    def look(_: int, session: cl.Session | None) -> None:
        if session is not None:
            sessions[:] = [session]
            processes.add(session._planner._process)

    got, report = run(change, factory, live_peak // 2, wait=True, each=look)
    assert got == want and report is not None
    assert any(plan.made_from_step >= 12 and plan.followed_steps for plan in report.plans)
    (process,) = processes - {None}
    assert process.returncode is not None, "it has been waited for"
    assert sessions[0]._planner.spent_s > 0 and not any("beside" in note for note in report.notes)


@pytest.mark.gate
def test_where_no_process_plans_the_plans_come_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    change, factory = CHANGES["larger_batch"]
    _, live_peak = reference(factory)
    want, _ = run(change, factory)
    monkeypatch.setattr(planner_process, "_BEGIN", "raise SystemExit(3)")
    got, report = run(change, factory, live_peak // 2, wait=True)
    assert got == want and report is not None
    assert any(plan.made_from_step >= 12 and plan.followed_steps for plan in report.plans)
    assert sum("beside the training loop" in note and "ended with 3" in note for note in report.notes) == 1


@pytest.mark.gate
@pytest.mark.bits
def test_where_no_process_plans_the_loop_has_quick_plans_alone_beside_it(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    """A search would take the interpreter from the loop for seconds. It is made up for when the training has ended."""
    from chameleon_lab.session import session as session_module

    plan_and_bind = session_module.plan_and_bind
    made: list[tuple[bool, bool, bool]] = []

    def refuse(*_: Any, **__: Any) -> None:
        raise PlannerProcessError("no process can be started: made up")

    def look(*args: Any, quick: bool, before: cl.Policy | None, **kwargs: Any) -> Any:
        made.append((quick, before is not None, threading.current_thread() is threading.main_thread()))
        return plan_and_bind(*args, quick=quick, before=before, **kwargs)

    monkeypatch.setattr(PlannerProcess, "call", refuse)
    monkeypatch.setattr(session_module, "plan_and_bind", look)
    _, live_peak = reference(Gpt)
    want, _ = run(larger_batch, Gpt)
    got, session = slowly(larger_batch, STEPS, live_peak // 2, wait)
    report = session.report()
    assert got == want and max(step.peak_bytes for step in report.history) <= live_peak // 2
    assert made == [(True, False, True), (True, False, False)]
    assert [plan.followed_steps > 5 for plan in report.plans if plan.decisions] == [True, True]
    assert sorted(note for note in report.notes if "made up" in note) == [
        "no better plans are searched for, the first ones are followed: no process can be started: made up",
        "plans are made in a thread beside the training loop: no process can be started: made up",
    ]
    session.policy_to_save()
    assert made[2:] == [(False, True, True)]


def test_where_no_process_plans_a_search_is_made_up_for_after_a_plan_for_quicker_ops_too(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PlannerProcessError("made up")

    monkeypatch.setattr(PlannerProcess, "call", refuse)
    monkeypatch.setattr(plan_cache, "_MOST_REFINEMENTS", 1)
    monkeypatch.setattr(plan_cache, "_SAME_TIME", -math.inf)  # as if ops took less time in each step
    monkeypatch.setattr(plan_cache, "_CHEAP", -math.inf)
    _, live_peak = reference(Gpt)
    _, session = slowly(rerouted, 8, live_peak // 2, wait)
    first, second = (plan for plan in session.report().plans if plan.decisions)
    assert "its ops take" in second.why and first.dropped and second.followed_steps
    assert session.policy is not None and session._plans.unfinished(session.policy) is not None


def test_a_search_that_loses_its_process_once_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    lost: list[int] = []

    def call(_: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs["before"] is not None and not lost:
            lost.append(1)
            raise PlannerProcessError("the planner's process ended with -9")
        return function(*args, **kwargs)

    monkeypatch.setattr(PlannerProcess, "call", call)
    _, live_peak = reference(Gpt)
    _, session = slowly(rerouted, 8, live_peak // 2, wait)
    assert lost and any(plan.search_s for plan in session.report().plans)
    assert not any("ended with" in note for note in session.report().notes)


class Search:
    """In the place of the planner's processes: a search goes on until it is interrupted, and other plans are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.interrupted = threading.Event(), 0
        self._end = threading.Event()
        monkeypatch.setattr(PlannerProcess, "call", self._call)
        monkeypatch.setattr(PlannerProcess, "interrupt", self._interrupt)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs["before"] is None:
            return function(*args, **kwargs)
        end = self._end
        self.begun.set()
        assert end.wait(HANGS_AFTER_S)
        raise PlannerInterruptedError("interrupted")

    def _interrupt(self, *_: Any) -> None:
        self.interrupted += 1
        self._end.set()
        self._end = threading.Event()
        self.begun.clear()

    def wait_until_begun(self) -> None:
        """One goes on from here on."""
        assert self.begun.wait(HANGS_AFTER_S)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search follows every quick plan, whatever that one costs."""
    from chameleon_lab.session import session as session_module

    monkeypatch.setattr(session_module, "worth_searching", lambda _: True)


def slowly(
    change: Change, steps: int, capacity: int, each: Callable[[int, cl.Session], None], **settings: Any
) -> tuple[tuple[list[bytes], dict[str, bytes]], cl.Session]:
    """Train behind a slow link, on which swapping alone stalls."""
    torch.manual_seed(0)
    settings = {
        "device": "cpu",
        "link": "100MiB/s",
        "warmup_steps": 2,
    } | settings  # an optimizer's first step differs
    with cl.Session(capacity, **settings) as session:
        trainer = Trainer(Gpt())
        session.step()
        for number in range(steps):
            change(trainer, number)
            session.step()
            each(number, session)
    return (trainer.losses, state_bytes(trainer.model, trainer.optimizer)), session


def wait(_: int, session: cl.Session) -> None:
    wait_for_plans(session)


@pytest.mark.gate
@pytest.mark.bits
def test_a_first_plan_is_made_at_once_and_a_search_replaces_it(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    monkeypatch.setattr(plan_cache, "_LEAST_GAIN", -math.inf)
    _, live_peak = reference(Gpt)
    want, _ = run(rerouted, Gpt, steps=10)
    got, session = slowly(rerouted, 10, live_peak // 3, wait)
    report = session.report()
    assert got == want and max(step.peak_bytes for step in report.history) <= live_peak // 3
    first, searched = (plan for plan in report.plans if plan.decisions)
    assert first.why == "the profiled step" and "a search" in first.dropped and first.search_s > 0.0
    assert [step.plan for step in report.history[3:6]] == [first.plan, *[searched.plan] * 2]
    assert (searched.fingerprint, searched.made_from_step) == (first.fingerprint, first.made_from_step)
    assert searched.search_s > 0.0 and f"a search of {format_seconds(searched.search_s)}" in str(report)
    assert session.policy is session.policy_to_save() is not None


def test_what_a_search_has_found_is_in_force_from_the_border_on(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    monkeypatch.setattr(plan_cache, "_LEAST_GAIN", -math.inf)
    _, live_peak = reference(Gpt)
    seen: list[cl.Policy | None] = []

    def look(number: int, session: cl.Session) -> None:
        wait_for_plans(session)
        seen.append(session.policy)

    _, session = slowly(rerouted, 5, live_peak // 3, look)
    assert seen[1] is not None and seen[2] is not None and seen[1] is not seen[2]
    assert seen[2] is seen[3] is session.policy_to_save()


@pytest.mark.gate
def test_a_search_that_finds_nothing_better_says_so_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    monkeypatch.setattr(plan_cache, "_LEAST_GAIN", math.inf)
    _, live_peak = reference(Gpt)
    _, session = slowly(rerouted, 8, live_peak // 3, wait)
    (first,) = (plan for plan in session.report().plans if plan.decisions)
    assert first.search_s > 0.0 and first.gained_s == 0.0 and first.followed_steps >= 5 and not first.dropped
    assert session.report().planning_s > first.search_s


def test_a_search_that_fails_is_told_of_and_the_first_plan_goes_on(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    def call(_: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs["before"] is not None:
            raise MemoryError("made up")
        return function(*args, **kwargs)

    monkeypatch.setattr(PlannerProcess, "call", call)
    _, live_peak = reference(Gpt)
    _, session = slowly(rerouted, 8, live_peak // 3, wait)
    (first,) = (plan for plan in session.report().plans if plan.decisions)
    assert first.followed_steps >= 5 and not first.dropped
    assert [note for note in session.report().notes if "failed" in note] == [
        "the search for a better plan failed, the first one is followed: made up"
    ]


@pytest.mark.gate
@pytest.mark.bits
def test_new_ops_need_not_wait_for_the_end_of_a_search(
    monkeypatch: pytest.MonkeyPatch, searches: None
) -> None:
    search = Search(monkeypatch)
    _, live_peak = reference(Gpt)
    want, _ = run(larger_batch, Gpt)

    def look(number: int, session: cl.Session) -> None:
        if number == STEPS // 2 - 1:
            search.wait_until_begun()
        if (job := session._plans._job) is not None:
            job.join()

    got, session = slowly(larger_batch, STEPS, live_peak // 2, look)
    assert got == want
    report = session.report()
    before, after = (plan for plan in report.plans if plan.decisions)
    assert before.made_from_step < STEPS // 2 < after.made_from_step <= STEPS // 2 + 3
    assert after.followed_steps > 5 and not before.dropped and report.replan_reason is None
    assert search.begun.is_set() is False and before.search_s == 0.0, "it has gone on until the session's end"


def test_a_search_goes_on_after_a_dry_run(monkeypatch: pytest.MonkeyPatch, searches: None) -> None:
    search = Search(monkeypatch)
    _, live_peak = reference(Gpt)
    quick: list[cl.Policy] = []

    def look(number: int, session: cl.Session) -> None:
        if number == 3:
            search.wait_until_begun()
            assert session.policy is not None
            quick.append(session.policy)
            session.dry_run(session.policy.draft().keep(category="gradient"), steps=1, settle=1)
        elif number == 6:
            search.wait_until_begun()
            assert session.policy is quick[0] and session._policies.given is None
            monkeypatch.setattr(PlannerProcess, "call", call_here)
            monkeypatch.setattr(plan_cache, "_LEAST_GAIN", -math.inf)
            session._plans._abandon_search()
        elif number > 6:
            wait_for_plans(session)

    _, session = slowly(rerouted, 12, live_peak // 2, look)
    assert search.interrupted >= 2 and session.policy is not quick[0]
    assert any("a search" in plan.why and plan.followed_steps for plan in session.report().plans)


def test_a_policy_is_saved_when_its_search_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, searches: None
) -> None:
    search = Search(monkeypatch)
    _, live_peak = reference(Gpt)
    _, session = slowly(rerouted, 5, live_peak // 3, lambda *_: None)
    first, path = session.policy, tmp_path / "policy.json"
    assert first is not None and first.source is not None and first.decisions and search.interrupted
    assert all(plan.search_s == 0.0 for plan in session.report().plans)
    found = session.policy_to_save()
    assert found is not None and session.policy is first
    files = list(RunFiles(policy=path).write(session))
    assert all(written for written, _ in files) and len(files) == 1 + (found is not first)
    saved = cl.Policy.load(path)
    assert saved.decisions == found.decisions
    old, new = (simulate(first.source, policy, op_times=found.op_times).step_s for policy in (first, saved))
    assert (new < old) == (found is not first) and new <= old


def test_a_host_that_only_a_search_can_plan_for_is_planned_for_at_once() -> None:
    _, live_peak = reference(Gpt)
    want, _ = run(rerouted, Gpt, steps=8)
    got, session = slowly(rerouted, 8, live_peak // 2, wait, host_capacity=2_500_000)
    assert got == want and session.policy is not None and session.policy.decisions


@pytest.mark.parametrize("first", [2, 12])
def test_one_failure_of_the_planner_is_not_for_ever(
    first: int, monkeypatch: pytest.MonkeyPatch, planned_here: None
) -> None:
    """Of the very first plan, which is made within the loop, and of one in the background."""
    from chameleon_lab.session import session as session_module

    change, factory = CHANGES["larger_batch"]
    _, live_peak = reference(factory)
    want, _ = run(change, factory)
    planner, calls = session_module.plan_and_bind, []

    def once(step: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(step.index)
        if len(broken) < 1 and step.index >= first:
            broken.append(step.index)
            raise MemoryError("just now")
        return planner(step, *args, **kwargs)

    broken: list[int] = []
    monkeypatch.setattr(session_module, "plan_and_bind", once)
    got, report = run(change, factory, live_peak // 2, wait=True)
    assert got == want and report is not None and broken
    assert sum("just now" in note for note in report.notes) == 1
    assert report.replan_reason is None and report.stage == "Stable" and report.decisions > 0
    assert any(
        plan.made_from_step > broken[0] and plan.decisions and not plan.dropped for plan in report.plans
    )


def test_stopping_while_a_plan_is_made_is_harmless() -> None:
    _, live_peak = reference(Gpt)
    for steps in (STEPS // 2 + 1, STEPS // 2 + 2):
        run(partial(frozen_half), Gpt, live_peak // 3, steps=steps)
    with cl.Session(live_peak // 3) as session:
        assert session.report().plans == ()
