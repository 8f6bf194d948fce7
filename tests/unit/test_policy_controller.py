"""Which policy is in force, and what is tried, enabled and rolled back: without a session."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from synthetic import gpt_step

from chameleon_lab.errors import PolicyError, SessionError
from chameleon_lab.planner import plan
from chameleon_lab.policy import Edit, EditAction, Link, Policy
from chameleon_lab.report.session_report import StepSummary
from chameleon_lab.session.capacity import Capacity
from chameleon_lab.session.policy_controller import PolicyController

STEP = gpt_step(layers=2)
CAPACITY = int(0.7 * STEP.live_peak_bytes)
BASE = plan(STEP, CAPACITY, Link(4e9, 4e9))


class Loop:
    """A training loop, and a session that puts in force whatever it is told to."""

    def __init__(self, given: Policy | None = None, policy: Policy | None = BASE) -> None:
        self.history: list[StepSummary] = []
        self.switched: list[Policy] = []
        self.at_border = True
        self.is_open = True
        self.capacity_bytes: int | None = CAPACITY
        self.policies = PolicyController(
            given,
            switch=self.switch,
            at_border=lambda: self.at_border,
            require_open=self.require_open,
            capacities=lambda: (self.capacity_bytes, self.capacity_bytes),
            history=lambda: self.history,
            step_count=lambda: len(self.history),
            whole_steps=2,
        )
        if policy is not None:
            self.policies.follow(policy, ())

    def switch(self, policy: Policy) -> None:
        assert self.at_border
        self.switched.append(policy)
        self.policies.follow(policy, ())

    def require_open(self, call: str) -> None:
        if not self.is_open:
            raise SessionError(f"session.{call}()")

    def step(self, *, is_stable: bool = True) -> None:
        self.at_border = True
        index = len(self.history)
        self.history.append(replace(StepSummary.none(), index=index, ops=7, step_s=1.0 + index))
        self.policies.step_ended(self.history[-1], is_stable=is_stable)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step()


def other() -> Policy:
    return replace(BASE)


def test_the_loops_thread_switches_at_a_border_and_nobody_within_a_step() -> None:
    loop, chosen, later = Loop(), other(), other()
    loop.step()
    loop.policies.enable(chosen)
    assert loop.switched == [chosen] and loop.policies.active is chosen and not loop.policies.is_waiting
    loop.at_border = False
    loop.policies.enable(later)
    assert loop.policies.is_waiting and loop.policies.active is chosen and loop.policies.in_force is later
    loop.step()
    assert loop.policies.active is later and not loop.policies.is_waiting


def test_another_thread_waits_for_the_next_border_though_this_is_one() -> None:
    loop, chosen = Loop(), other()
    loop.step()
    thread = threading.Thread(target=loop.policies.enable, args=(chosen,))
    thread.start()
    thread.join()
    assert loop.policies.is_waiting and loop.switched == [] and loop.policies.in_force is chosen
    loop.step()
    assert loop.switched == [chosen]


def test_what_was_enabled_is_taken_back_one_after_another_sixteen_times() -> None:
    loop, chosen = Loop(), [other() for _ in range(20)]
    loop.step()
    for policy in chosen:
        loop.policies.enable(policy)
    taken = []
    while loop.policies.can_roll_back:
        taken.append(loop.policies.rollback())
    assert [id(policy) for policy in taken] == [id(policy) for policy in chosen[-2:2:-1]]
    assert loop.policies.active is taken[-1] and len(taken) == 16
    with pytest.raises(SessionError, match="nothing is left to take back"):
        loop.policies.rollback()


def test_a_dry_run_measures_after_it_has_settled_and_goes_back() -> None:
    loop = Loop()
    loop.train(2)
    draft = BASE.draft()
    draft.keep(BASE.swaps[0].storage)
    trial = loop.policies.dry_run(draft, None, 2, 1)
    assert loop.policies.active is trial.policy and loop.policies.in_force is BASE
    assert trial.before is not None and trial.before.step_s == 1.5
    loop.train(2)
    assert not trial.done and loop.policies.measured_now() is trial.before
    loop.step()
    assert trial.done and trial.note == "" and [step.step_s for step in trial.measured] == [4.0, 5.0]
    assert loop.policies.active is BASE and loop.policies.in_force is BASE
    assert not loop.policies.can_roll_back, "a dry run is nothing to take back"


def test_a_dry_run_ends_where_the_ops_change_and_where_something_else_is_asked_for() -> None:
    loop, chosen = Loop(), other()
    loop.step()
    changed = loop.policies.dry_run(BASE.draft(), None, 3, 0)
    loop.step(is_stable=False)
    assert changed.done and changed.note == "the ops changed" and loop.policies.active is BASE
    for note, end in (
        ("another dry run began", lambda: loop.policies.dry_run(BASE.draft(), None, 1, 0)),
        ("stopped", loop.policies.end_dry_run),
        ("another policy was enabled", lambda: loop.policies.enable(chosen)),
        ("rolled back", loop.policies.rollback),
    ):
        trial = loop.policies.dry_run(BASE.draft(), None, 3, 0)
        end()
        assert trial.done and trial.note == note and trial.measured == []
    assert loop.policies.in_force is BASE


def test_step_functions_drive_a_dry_run_and_leave_none_behind_where_they_fail() -> None:
    loop = Loop()
    loop.step()
    trial = loop.policies.dry_run(BASE.draft(), loop.step, 2, 1)
    assert trial.done and len(trial.measured) == 2 and len(loop.history) == 4
    with pytest.raises(SessionError, match="step_fn ran and no step ended"):
        loop.policies.dry_run(BASE.draft(), lambda: None, 1, 0)
    with pytest.raises(ZeroDivisionError):
        loop.policies.dry_run(BASE.draft(), lambda: 1 / 0, 1, 0)
    assert loop.policies.in_force is BASE and loop.policies.active is BASE


def test_what_cannot_be_put_in_force_is_refused_before_anything_changes() -> None:
    loop = Loop()
    loop.step()
    stale = replace(BASE, edits=(Edit(EditAction.KEEP, BASE.swaps[0].storage),))
    with pytest.raises(PolicyError, match="edits of this policy changed"):
        loop.policies.enable(stale)
    with pytest.raises(PolicyError, match="ask for the capacity in a draft"):
        loop.policies.enable(replace(BASE, capacity_bytes=CAPACITY + 1))
    with pytest.raises(TypeError, match="takes a draft or a policy, not str"):
        loop.policies.enable("policy.json")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a draft, not Policy"):
        loop.policies.dry_run(BASE, None, 1, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be a number of steps from 1 up, got 0"):
        loop.policies.dry_run(BASE.draft(), None, 0, 0)
    loop.capacity_bytes = None
    with pytest.raises(PolicyError, match="only records"):
        loop.policies.enable(BASE)
    loop.is_open = False
    with pytest.raises(SessionError, match=r"session.rollback\(\)"):
        loop.policies.rollback()
    assert loop.switched == [] and not loop.policies.can_roll_back
    with pytest.raises(SessionError, match="train 2 whole steps first"):
        Loop(policy=None).policies.enable(BASE)


def test_a_policy_that_was_given_at_the_start_counts_until_another_one_is() -> None:
    loop = Loop(given=BASE, policy=None)
    assert loop.policies.active is BASE and loop.policies.given is BASE and not loop.policies.is_bound
    assert loop.policies.take_unstarted() is BASE and loop.policies.take_unstarted() is None
    loop = Loop(given=BASE, policy=None)
    loop.policies.bound()
    later = other()
    loop.policies.give(later)
    assert loop.policies.given is later and loop.policies.active is later and not loop.policies.is_bound
    assert loop.policies.take_unstarted() is None, "it is not the given one any more"


def test_a_plan_is_followed_beside_the_given_policy_and_says_what_it_has_not_found() -> None:
    loop = Loop(given=BASE, policy=None)
    edited = replace(BASE, edits=(Edit(EditAction.KEEP, BASE.swaps[0].storage),))
    loop.policies.follow(edited, ("h.0",))
    assert loop.policies.given is BASE and loop.policies.edits == edited.edits
    assert loop.policies.unmatched == ("h.0",)
    loop.policies.prefer(edited)
    assert loop.policies.given is edited
    assert Loop(policy=None).policies.edits == ()


def test_a_capacity_tells_the_device_of_changes_alone() -> None:
    told: list[int] = []
    capacity = Capacity(100, told.append)
    capacity.change(100, 3)
    assert told == [] and capacity.changed_before_step is None
    capacity.change(80, 5)
    assert told == [80] and (capacity.bytes, capacity.own_bytes) == (80, 100)
    assert capacity.limit_bytes == 80 and capacity.changed_before_step == 5
    capacity.change(60, 9, own=True)
    assert told == [80, 60] and (capacity.bytes, capacity.own_bytes) == (60, 60)
    capacity.measured(50)
    assert told == [80, 60] and (capacity.bytes, capacity.own_bytes) == (50, 50)
    assert Capacity(None, told.append).bytes is None
