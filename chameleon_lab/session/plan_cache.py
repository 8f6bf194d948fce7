"""The plans of a session, and the decision when to make another one.

Every plan belongs to one op sequence at one size. The executor follows the plan that fits the running step, and changes
over in the middle of one. What it cannot follow well is planned for in a background thread, from the step as it was
recorded, while eviction keeps the run alive; the new plan joins the others at the next step's border. Nothing here is
final: every step is judged, for as long as the session lives.

New ops get a plan at once that was not searched for long. Where that one costs anything, a search for a better one
follows in a second background thread.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ..planner.process import PlannerProcessError
from ..planner.program import Program
from ..policy import Policy
from ..report.session_report import PlanSummary, StepSummary
from ..runtime import core
from ..trace import StepTrace
from ..util.units import format_bytes, format_percent, format_seconds

MOST_PLANS = 24
"""Plans kept; beyond, the one that was followed longest ago goes."""

_LEAST_MATCH_RATE = 0.9
_LEAST_RECALL = 0.9
_LEAST_RECENT_OPS = 128
"""Too few to judge a running step by."""
_MOST_EVICTED = 0.05
"""Share of the capacity that may be evicted in a step without need of a plan."""
_SAME_PEAK = 0.04
"""Live peaks that differ by less than this share are of one size."""
_STEADY_STEPS = 4
"""A sequence seen so often in a row gets a plan of its own, however well another one serves it."""
_HOST_HEADROOM = 1.125  # for what eviction takes beside the plan
_LONGEST_PAUSE = 64
_MOST_ANSWERS = 4
"""Times that a sequence is planned for anew because the runtime declined drops."""
_TRIAL_STEPS = 3
"""Steps that a new plan is followed in which one is enough to show that its ops take less time than it was made for."""
_QUICK_STEPS = 4
"""Steps in a row that it takes later."""
_MOST_REFINEMENTS = 3
"""Times that a sequence is planned for anew because its ops take less time."""
_LINK_STEPS = 16
"""A plan is held against the link that copies find once in so many of its steps."""
_MOST_RELINKS = 2
"""Times that a sequence is planned for anew because copies find another link."""
_MOST_RENEWALS = 16
_ENOUGH_RENEWALS = 2
"""So many plans for the same ops, none of which fared better: the next one is not waited for."""
_MOST_FAILED = 256
_SAME_TIME = 0.05
"""Compute times that differ by less than this share are no reason to."""
_LIKELY = 0.95
"""Likeness of a step and a plan's from which on the plan is given a try."""
_CHEAP = 0.02
"""Share of the compute time that a plan may cost without being worth another look."""
_LEAST_GAIN = 0.005
"""Share of the step that a searched plan has to save: switching plans moves storages, which costs time."""
_MOST_LOST_SEARCHES = 2
"""Searches whose process has ended, or could not be started, until no more are begun."""
_MOST_UNFINISHED = 16
"""Policies that are remembered because the search for a better one was cut short."""


Grams = tuple[np.ndarray, np.ndarray]
"""Runs of three ops, as numbers in ascending order, and how often each comes."""


@dataclass
class Plan:
    """A policy bound to the ops of one step."""

    policy: Policy | None
    """None: no policy fits, and the program only tells eviction what is used when."""
    program: Program
    ready: core.Program
    """The program as the core takes it."""
    live_peak_bytes: int
    summary: PlanSummary
    grams: Grams
    """Of the tokens of its ops."""
    answers: int = 0
    """How many plans for the same ops came before, each of whose drops were declined."""
    refinements: int = 0
    """How many plans for the same ops came before, each made for ops that take longer."""
    relinks: int = 0
    """How many plans for the same ops came before, each made for another link."""
    quick_steps: int = 0
    """Steps in a row, up to the newest, whose ops took less time than it was made for."""
    renewals: int = 0
    """How many plans for the same ops came before, in a row, each of which moved too little of what it should."""
    good_steps: int = 0
    """Steps in a row, up to the newest, in which it moved what it should."""
    spent_s: float = 0.0
    """Of a processor, to make it."""
    replaces: int = -1
    """The plan for the same ops that it took the place of."""
    search_from: core.StepLog | None = None
    """The step that it was made from, if a search from there may still find a better one."""

    @property
    def fingerprint(self) -> int:
        """Of the tokens of its ops."""
        return self.ready.fingerprint


@dataclass(frozen=True)
class StepPlan:
    """What the session's planning gives for a step."""

    policy: Policy | None
    program: Program
    step: StepTrace
    spent_s: float = 0.0
    """Of a processor."""
    gained_s: float = 0.0
    """Seconds that a step is predicted to take less than under the policy ``before``; 0 without one."""
    search_from: core.StepLog | None = None
    """The step that it was made from, if it was made quickly and a search from there may find a better one."""


class MakePlan(Protocol):
    """Plans for a recorded step. ``quick``: without a long search. ``before``: the policy that the plan may replace."""

    def __call__(self, log: core.StepLog, *, quick: bool = False, before: Policy | None = None) -> StepPlan:
        """The plan."""


class _Job(threading.Thread):
    """Plans for one step, beside the training loop.

    With ``gives_to_core`` the core knows the plan as soon as it is made: a step that began as it says, and has parted
    from the plan that it follows, changes over at once.
    """

    def __init__(
        self,
        runtime: core.Runtime,
        work: Callable[[], Plan | None],
        key: tuple[int, int],
        gives_to_core: bool = True,
    ) -> None:
        super().__init__(name="chameleon-lab-planner", daemon=True)
        self.key = key
        self.result: Plan | None = None
        self.error: Exception | None = None
        self.done = False
        self._runtime, self._gives_to_core = runtime, gives_to_core
        self._work = work
        self._lock = threading.Lock()
        self._abandoned = False
        try:
            self.start()
        except RuntimeError as failure:  # the system has no thread left: that is a failed plan too
            self.error, self.done = failure, True

    def run(self) -> None:
        """Plan."""
        result = error = None
        try:
            self._runtime.own_work(True)
            try:
                result = self._work()
            finally:
                self._runtime.own_work(False)
        except Exception as failure:  # a failed plan must not end the run: the session notes it
            error = failure
        with self._lock:
            if result is not None and self._gives_to_core and not self._abandoned:
                _give_to_core(self._runtime, result)
            self.result, self.error, self.done = result, error, True

    def abandon(self) -> None:
        """Nobody wants the plan any more."""
        with self._lock:
            self._abandoned = True
            if self.result is not None and self._gives_to_core:
                self._runtime.drop_program(self.result.summary.plan)


@dataclass
class _Search:
    """For a better plan than one that is followed."""

    plan: Plan
    log: core.StepLog
    job: _Job
    given_up: bool = False


class PlanCache:
    """The plans of one session. All methods are for the thread that ends the steps.

    Args:
        runtime: follows them.
        make: plans for a recorded step. It runs in the background.
        search: as ``make``, for searches, which go on beside other plans.
        note: tells the session's user something.
        capacity_bytes: of the device, asked for anew each time.
        interrupt: ends what ``make`` does in the background.
        interrupt_search: ends what ``search`` does.
        reserve_grows: takes in a step that has followed its own plan, and says whether plans leave more free from now
            on, so that its ops need another.
        other_link: how the link differs from the one that a plan was made for, if that matters; None: it does not.
    """

    def __init__(
        self,
        runtime: core.Runtime,
        make: MakePlan,
        search: MakePlan,
        note: Callable[[str], None],
        capacity_bytes: Callable[[], int],
        interrupt: Callable[[], None] = lambda: None,
        interrupt_search: Callable[[], None] = lambda: None,
        reserve_grows: Callable[[StepSummary], bool] = lambda _: False,
        other_link: Callable[[Plan], str | None] = lambda _: None,
    ) -> None:
        self._runtime = runtime
        self._make = make
        self._make_searched = search
        self._note = note
        self._capacity_bytes = capacity_bytes
        self._interrupt = interrupt
        self._interrupt_search = interrupt_search
        self._reserve_grows = reserve_grows
        self._other_link = other_link
        self._plans: dict[int, Plan] = {}
        self._gone: list[PlanSummary] = []
        self._ids = itertools.count()
        self._job: _Job | None = None
        self._search: _Search | None = None
        self._lost_searches = 0
        self._unfinished: list[tuple[Policy, core.StepLog]] = []
        self._failed: dict[tuple[int, int], tuple[int, int]] = {}
        """By fingerprint and live peak: the step from which planning may be tried again, and the pause before it."""
        self._newest = (0, 0)
        self._in_a_row = 0
        self._agreed: int | None = None  # the fingerprint of the plan that other ranks follow too
        self._pause = self._next_pause = 0
        self.spent_s = 0.0
        """Of a processor, for all plans that have been taken over: what is given up does not count."""
        self.replan_reason: str | None = None
        """Why the newest step needs another plan; None if it has one that serves it."""
        self.unserved: str | None = None
        """Why the newest step's own plan moves too little, and a new plan would not help; None if it moves enough."""

    @staticmethod
    def desynchronized(counters: core.Counters) -> str | None:
        """Why the running step counts as desynchronized from its plan; None while the matcher follows it."""
        recent, matched = counters["recent_ops"], counters["recent_matched_ops"]
        due, fired = counters["recent_due_bytes"], counters["recent_fired_bytes"]
        if recent >= _LEAST_RECENT_OPS and matched < _LEAST_MATCH_RATE * recent:
            return f"{matched} of the newest {recent} ops are in the plan"
        if recent >= _LEAST_RECENT_OPS and fired < _LEAST_RECALL * due:
            return (
                f"{format_bytes(fired)} of {format_bytes(due)} due in the newest {recent} ops left the device"
            )
        return None

    def __len__(self) -> int:
        return len(self._plans)

    def serving(self, plan: int) -> Plan | None:
        """The plan with this number, or the one that has just taken its place, if either is known."""
        heirs = (other for other in self._plans.values() if other.replaces == plan >= 0)
        return self._plans.get(plan) or next(heirs, None)

    def summaries(self) -> Iterator[PlanSummary]:
        """Of all plans in the order in which they were made, those that were dropped too."""
        yield from sorted([*self._gone, *(p.summary for p in self._plans.values())], key=lambda s: s.plan)

    def force(self, made: StepPlan, fingerprint_step: int, why: str, *, agreed: bool = False) -> Plan:
        """Make this the only plan, from the next step on. Call it between two steps.

        ``agreed``: other ranks follow it too, so that no guess of this one about its own clock replaces it.
        """
        self.clear(f"replaced: {why}")
        plan = self._finish(made, fingerprint_step, why)
        self.spent_s += plan.spent_s
        self._agreed = plan.fingerprint if agreed else None
        if agreed:
            plan.refinements, plan.relinks = _MOST_REFINEMENTS, _MOST_RELINKS
        self._add(plan)
        self._runtime.use_program(plan.summary.plan)
        self._pause = self._next_pause = 0
        self.replan_reason = None
        self._begin_search(plan)
        return plan

    def clear(self, why: str) -> None:
        """Drop all plans, and what is being planned."""
        self.abandon()
        for plan in list(self._plans):
            self._drop(plan, why)
        self._failed.clear()

    def abandon(self) -> None:
        """Forget what is being planned."""
        job, self._job = self._job, None
        if job is not None:
            job.abandon()
            if not job.done:
                self._interrupt()
        self._abandon_search()

    def _abandon_search(self) -> None:
        if self._search is None or self._search.given_up:
            return
        self._search.given_up = True
        self._search.plan.search_from = self._search.log
        self._search.job.abandon()
        if not self._search.job.done:
            self._interrupt_search()

    def step_ended(self, log: core.StepLog, summary: StepSummary, least_compute_s: float = math.inf) -> None:
        """Judge the step that has ended, and see that the next ones are served.

        ``least_compute_s``: the fewest seconds that its ops have taken in any step, if that is known.
        """
        key = (log.fingerprint, log.live_peak_bytes)
        same = key[0] == self._newest[0] and _alike(key[1], self._newest[1])
        self._in_a_row = self._in_a_row + 1 if same else 1
        self._newest = key
        self._pause = max(0, self._pause - 1)
        arrived = self._collect(log.index)
        self._collect_search()
        own = self._known(*key)
        if own is not None:
            if own.summary.made_from_step < log.index and own is not arrived:
                self._next_pause = 0  # plans are worth their making: sequences come again
            steps = own.summary.followed_steps + (log.program == own.summary.plan)
            own.summary = replace(own.summary, followed_steps=steps, last_step=log.index)
            self.replan_reason = None
            if log.program != own.summary.plan:
                self._runtime.use_program(own.summary.plan)
                return
            self.unserved = self._unserved(own, summary)
            poor = summary.trigger_recall < _LEAST_RECALL
            if poor:  # its storages have been replaced by others, say
                self.replan_reason = _left(summary) if own.renewals < _ENOUGH_RENEWALS else None
                own.good_steps = 0
            else:
                own.good_steps += 1
                if own.good_steps >= _LONGEST_PAUSE:
                    own.renewals = 0
            if self._job is None:
                if poor:
                    self._renew(own, log, summary)
                elif summary.declined_drops and own.answers < _MOST_ANSWERS:
                    self._answer(own, log, summary)
                elif own.policy is not None and not log.truncated_ops and self._reserve_grows(summary):
                    self._reserve_more(own, log, summary)
                elif not self._searches(own) and own.refinements < _MOST_REFINEMENTS:
                    self._refine(own, log, summary, least_compute_s)
            if self._job is None and not poor and not self._searches(own):
                self._relink(own, log)
            self._begin_search(own)
            return
        self.unserved = None
        followed = self.serving(log.program)
        if followed is not None and followed.summary.plan != log.program:
            self._runtime.use_program(followed.summary.plan)
        if followed is not None:
            steps = followed.summary.followed_steps + 1
            followed.summary = replace(followed.summary, followed_steps=steps, last_step=log.index)
        self.replan_reason = self._replan_reason(summary, key, followed)
        if self.replan_reason is None:
            return
        nearest = self._nearest(log)
        if nearest is not None and nearest.summary.plan != log.program:
            self._runtime.use_program(nearest.summary.plan)
        # Where a new plan came in the step's middle, what was evicted before it says nothing about it.
        newcomer_grams = arrived.grams if arrived is not None and nearest is arrived else None
        if newcomer_grams and _likeness(_grams(log.ops()["token"]), newcomer_grams) >= _LIKELY:
            return
        waits = log.fingerprint == self._agreed and self._in_a_row < _STEADY_STEPS
        may_try = self._pause == 0 and not waits and self._may_try(key, log.index)
        if self._job is None and may_try and not log.truncated_ops:
            why, step = self.replan_reason, log.index
            self._job = _Job(self._runtime, lambda: self._finish(self._make(log, quick=True), step, why), key)
            self._pause = self._next_pause
            self._next_pause = min(max(1, 2 * self._next_pause), _LONGEST_PAUSE)

    def unfinished(self, policy: Policy) -> core.StepLog | None:
        """The step from which to search for a better plan than this one; None if that is done, or of no use."""
        if self._search is not None and self._search.plan.policy is policy:
            return self._search.log
        known = [(plan.policy, plan.search_from) for plan in self._plans.values()]
        return next((log for other, log in [*known, *self._unfinished] if other is policy), None)

    def wait(self) -> None:
        """Wait until nothing is being planned any more. The plan is there from the next step's border on."""
        for job in (self._job, None if self._search is None else self._search.job):
            if job is not None and job.ident is not None:
                job.join()

    # ---------------------------------------------------------------------------------------------------- inside

    def _unserved(self, own: Plan, summary: StepSummary) -> str | None:
        """Why a plan for these very ops moves too little, where a new plan would not help; None if it moves enough."""
        if own.policy is None:
            return "no policy fits the capacity beside the storages that cannot leave: eviction only"
        if summary.trigger_recall < _LEAST_RECALL and own.renewals >= _ENOUGH_RENEWALS:
            return (
                f"{_left(summary)}, with {own.renewals + 1} plans for the same ops: the step replaces the planned "
                "storages each time; eviction moves the new ones"
            )
        if summary.evicted_bytes > _MOST_EVICTED * self._capacity_bytes():
            return f"{format_bytes(summary.evicted_bytes)} evicted beside the plan: storages unknown to it"
        return None

    def _renew(self, own: Plan, log: core.StepLog, summary: StepSummary) -> None:
        """Its ops come as they are planned, and what it moves does not. Where a new plan fares no better, the next one
        waits eight times as long: a step after one of another kind may find other storages each time.
        """
        step, why, renewals = log.index, _left(summary), own.renewals + 1
        key = (log.fingerprint, log.live_peak_bytes)
        if log.truncated_ops or not self._may_try(key, step):
            return
        if step < own.summary.made_from_step + min(1 << 3 * own.renewals, _LONGEST_PAUSE):
            return
        self._job = _Job(
            self._runtime,
            lambda: replace(
                self._finish(self._make(log), step, why),
                renewals=min(renewals, _MOST_RENEWALS),
                relinks=own.relinks,
            ),
            key,
        )

    def _answer(self, own: Plan, log: core.StepLog, summary: StepSummary) -> None:
        """Some of its drops cannot be replayed, as the recorded step says: plan without those."""
        why, step = f"{summary.declined_drops} of its drops were declined", log.index
        answers, own.answers = own.answers + 1, _MOST_ANSWERS  # it is asked for once
        self._job = _Job(
            self._runtime,
            lambda: replace(
                self._finish(self._make(log), step, why),
                answers=answers,
                refinements=own.refinements,
                relinks=own.relinks,
            ),
            (log.fingerprint, log.live_peak_bytes),
        )

    def _reserve_more(self, own: Plan, log: core.StepLog, summary: StepSummary) -> None:
        """The allocator is too fragmented for the bytes that the plan left free: plan with a larger reserve."""
        counts = f"{summary.refusals} refused requests, {summary.alloc_retries} cache flushes"
        why = f"the allocator is fragmented: {counts}"
        step = log.index
        self._job = _Job(
            self._runtime,
            lambda: replace(
                self._finish(self._make(log), step, why),
                answers=own.answers,
                refinements=own.refinements,
                relinks=own.relinks,
            ),
            (log.fingerprint, log.live_peak_bytes),
        )

    def _relink(self, own: Plan, log: core.StepLog) -> None:
        """Copies find another link than the plan was made for: plan for that one."""
        due = own.summary.followed_steps % _LINK_STEPS == 0 and own.relinks < _MOST_RELINKS
        if not due or own.policy is None or log.truncated_ops:
            return
        if not self._may_try((log.fingerprint, log.live_peak_bytes), log.index):
            return
        if (why := self._other_link(own)) is not None:
            relinks, own.relinks = own.relinks + 1, _MOST_RELINKS  # it is asked for once
            self._make_again(own, log, why, own.refinements, relinks)

    def _make_again(self, own: Plan, log: core.StepLog, why: str, refinements: int, relinks: int) -> None:
        """Plan for the ops of a plan anew, in the background. Where that gives the same policy, as it does where the
        user's own still fits, nothing comes of it.
        """
        step, answers, renewals = log.index, own.answers, own.renewals

        def make() -> Plan | None:
            made = self._make(log)
            if made.policy is None or made.policy is own.policy:
                return None
            again = self._finish(made, step, why)
            return replace(
                again, answers=answers, renewals=renewals, refinements=refinements, relinks=relinks
            )

        self._job = _Job(self._runtime, make, (log.fingerprint, log.live_peak_bytes))

    def _refine(self, own: Plan, log: core.StepLog, summary: StepSummary, least_compute_s: float) -> None:
        """Under eviction, or beside other programs, ops take longer, and copies seem to hide behind them that do not.

        Plan again once steps have shown how long they take, where the plan costs anything. A step that took longer
        says nothing: other programs do that. Steps before this one count in, too.
        """
        before, own.quick_steps = own.quick_steps, 0
        if own.policy is None or summary.evictions or log.truncated_ops:
            return
        foretold = own.policy.predicted
        planned_s = foretold.get("step_s", 0.0) - foretold.get("stall_s", 0.0) - foretold.get("replay_s", 0.0)
        cost_s = summary.stall_s + summary.replay_s
        compute_s = min(summary.step_s - cost_s, least_compute_s)
        if compute_s > (1.0 - _SAME_TIME) * planned_s or cost_s < _CHEAP * compute_s:
            return
        own.quick_steps = before + 1
        on_trial = own.summary.followed_steps <= _TRIAL_STEPS and not own.refinements
        if not on_trial and own.quick_steps < _QUICK_STEPS:
            return
        why = f"its ops take {format_seconds(compute_s)}, planned for {format_seconds(planned_s)}"
        refinements, own.refinements = own.refinements + 1, _MOST_REFINEMENTS  # it is asked for once
        self._make_again(own, log, why, refinements, own.relinks)

    def _searches(self, own: Plan) -> bool:
        """Is a better plan than this one, or than another, searched for, or about to be?"""
        return self._search is not None or (self._may_search() and own.search_from is not None)

    def _may_search(self) -> bool:
        return self._lost_searches < _MOST_LOST_SEARCHES

    def _begin_search(self, own: Plan) -> None:
        """Look for a better plan than the one that was made quickly, from the same step. One search at a time."""
        if self._search is not None and (not self._search.given_up or self._search.job.is_alive()):
            return
        self._search, log = None, own.search_from
        if log is None or not self._may_search():
            return
        own.search_from = None

        def make() -> Plan:
            made = self._make_searched(log, before=own.policy)
            why = (
                f"a search of {format_seconds(made.spent_s)} has found "
                f"{format_seconds(made.gained_s)} a step to save"
            )
            found = self._finish(made, own.summary.made_from_step, why)
            found.summary = replace(found.summary, search_s=made.spent_s, gained_s=made.gained_s)
            return found

        key = own.fingerprint, own.live_peak_bytes
        self._search = _Search(own, log, _Job(self._runtime, make, key, gives_to_core=False))

    def _collect_search(self) -> None:
        """Take over what the search has found, if it has ended and that is worth it."""
        search = self._search
        if search is None or search.given_up or not search.job.done:
            return
        self._search, own, found = None, search.plan, search.job.result
        if found is None and isinstance(search.job.error, PlannerProcessError):
            own.search_from = search.log
            self._lost_searches += 1
            if not self._may_search():
                self._note(
                    f"no better plans are searched for, the first ones are followed: {search.job.error}"
                )
            return
        if found is None:
            self._note(f"the search for a better plan failed, the first one is followed: {search.job.error}")
            return
        self.spent_s += found.spent_s
        own.summary = replace(own.summary, search_s=found.summary.search_s)
        planned_s = found.policy.predicted["step_s"] if found.policy is not None else math.inf
        if found.summary.gained_s < _LEAST_GAIN * planned_s:
            return
        found.answers, found.refinements, found.relinks = own.answers, own.refinements, own.relinks
        self._hand_over(own, found)
        _give_to_core(self._runtime, found)

    def _replan_reason(self, summary: StepSummary, key: tuple[int, int], followed: Plan | None) -> str | None:
        if followed is None:
            return "no plan for these ops"
        if summary.match_rate < _LEAST_MATCH_RATE:
            return f"the ops changed: {format_percent(summary.match_rate)} matched"
        if summary.trigger_recall < _LEAST_RECALL:
            return _left(summary)
        if summary.evicted_bytes > _MOST_EVICTED * self._capacity_bytes():
            return f"{format_bytes(summary.evicted_bytes)} evicted"
        if key[0] == followed.fingerprint:
            return f"{format_bytes(key[1])} alive at the peak, planned for {format_bytes(followed.live_peak_bytes)}"
        if self._in_a_row >= _STEADY_STEPS:
            return f"the same new ops {self._in_a_row} times in a row"
        return None

    def _nearest(self, log: core.StepLog) -> Plan | None:
        """The plan whose ops are most like the step's: a step like that one is followed best by it."""
        grams = _grams(log.ops()["token"])
        likeness = {plan.summary.plan: _likeness(grams, plan.grams) for plan in self._plans.values()}
        return max(
            self._plans.values(),
            key=lambda plan: (round(likeness[plan.summary.plan], 3), plan.summary.made_from_step),
            default=None,
        )

    def _known(self, fingerprint: int, live_peak_bytes: int) -> Plan | None:
        alike = [
            plan
            for plan in self._plans.values()
            if plan.fingerprint == fingerprint and _alike(plan.live_peak_bytes, live_peak_bytes)
        ]
        return min(alike, key=lambda plan: abs(plan.live_peak_bytes - live_peak_bytes), default=None)

    def failed(self, key: tuple[int, int], step: int, failure: Exception) -> None:
        """Planning for these ops has failed, in this step: say so once, and leave them alone for a while."""
        if key not in self._failed:
            self._note(f"planning failed, eviction goes on: {type(failure).__name__}: {failure}")
        _, pause = self._failed.pop(key, (0, 0))
        pause = min(max(1, 2 * pause), _LONGEST_PAUSE)
        self._failed[key] = (step + pause, pause)
        while len(self._failed) > _MOST_FAILED:
            self._failed.pop(next(iter(self._failed)))

    def _may_try(self, key: tuple[int, int], step: int) -> bool:
        return step >= self._failed.get(key, (step, 0))[0]

    def _collect(self, step: int) -> Plan | None:
        """Take over what the background thread has planned, if it is ready."""
        job = self._job
        if job is None or not job.done:
            return None
        self._job = None
        if job.error is not None:
            self.failed(job.key, step, job.error)
            return None
        self._failed.pop(job.key, None)
        if job.result is None:
            return None
        self.spent_s += job.result.spent_s
        replaced = self._known(job.result.fingerprint, job.result.live_peak_bytes)
        if replaced is not None:
            self._hand_over(replaced, job.result)
        else:
            self._keep(job.result)
        return job.result

    def _hand_over(self, old: Plan, new: Plan) -> None:
        """A plan takes the place of another for the same ops."""
        new.replaces = old.summary.plan
        new.summary = replace(new.summary, last_step=old.summary.last_step)
        self._drop(old.summary.plan, f"replaced: {new.summary.why}")
        self._keep(new)

    def _finish(self, made: StepPlan, step: int, why: str) -> Plan:
        program, rows = made.program, made.program.storage_row
        ready = core.make_program(
            made.step.ops.token,
            program.uid,
            program.birth_op,
            program.birth_ordinal,
            made.step.storages.bytes[rows],
            made.step.storages.category[rows],
            made.step.storages.name[rows],
            program.uses_offset.astype(np.uint32),
            program.uses_op,
            program.evict_last,
            program.host.place,
            program.host.kept,
            program.action_op,
            program.action_kind,
            program.action_storage,
        )
        return Plan(
            policy=made.policy,
            program=program,
            ready=ready,
            live_peak_bytes=made.step.live_peak_bytes,
            summary=PlanSummary(
                plan=next(self._ids),
                fingerprint=f"{ready.fingerprint:016x}",
                ops=program.ops,
                live_peak_bytes=made.step.live_peak_bytes,
                decisions=len(made.policy.decisions) if made.policy else 0,
                made_from_step=step,
                why=why,
                host_pool_bytes=program.host.pool_bytes,
                host_peak_bytes=program.host.peak_bytes,
            ),
            grams=_grams(made.step.ops.token),
            spent_s=made.spent_s,
            search_from=made.search_from,
        )

    def _add(self, plan: Plan) -> None:
        self._keep(plan)
        _give_to_core(self._runtime, plan)

    def _keep(self, plan: Plan) -> None:
        while len(self._plans) >= MOST_PLANS:
            oldest = min(self._plans.values(), key=lambda p: (p.summary.last_step, p.summary.plan))
            self._drop(oldest.summary.plan, f"{MOST_PLANS} plans are kept, and it was followed longest ago")
        self._plans[plan.summary.plan] = plan

    def _drop(self, plan: int, why: str) -> None:
        if self._search is not None and self._search.plan.summary.plan == plan:
            self._abandon_search()
        self._runtime.drop_program(plan)
        dropped = self._plans.pop(plan)
        if dropped.policy is not None and dropped.search_from is not None:
            self._unfinished.append((dropped.policy, dropped.search_from))
            del self._unfinished[:-_MOST_UNFINISHED]
        self._gone.append(replace(dropped.summary, dropped=why))
        del self._gone[:-256]


def _give_to_core(runtime: core.Runtime, plan: Plan) -> None:
    """From here on the executor may follow it, and sends storages to its places on the host."""
    pool_bytes = plan.program.host.pool_bytes
    runtime.reserve_host(pool_bytes, int(_HOST_HEADROOM * pool_bytes))
    runtime.add_program(plan.summary.plan, plan.ready)


def _left(summary: StepSummary) -> str:
    return f"{format_percent(summary.trigger_recall)} of the planned bytes left the device"


def _alike(a: int, b: int) -> bool:
    return abs(a - b) <= _SAME_PEAK * max(a, b)


def _grams(tokens: np.ndarray) -> Grams:
    """Runs of three tokens; see :data:`Grams`."""
    tokens = tokens.astype(np.uint64)
    mixed = (tokens[:-2] * np.uint64(0x9E3779B1) ^ tokens[1:-1]) * np.uint64(0x85EBCA77) ^ tokens[2:]
    found, counts = np.unique(mixed, return_counts=True)
    return found, counts


def _likeness(a: Grams, b: Grams) -> float:
    """Share of the runs of both that they have in common."""
    _, in_a, in_b = np.intersect1d(a[0], b[0], assume_unique=True, return_indices=True)
    return 2 * float(np.minimum(a[1][in_a], b[1][in_b]).sum()) / max(1, int(a[1].sum() + b[1].sum()))
