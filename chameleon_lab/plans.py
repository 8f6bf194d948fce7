"""Which plans a session knows, and when it needs another one.

Every plan belongs to one op sequence at one size. The executor follows the plan that fits the running step, and changes
over in the middle of one. What it cannot follow well is planned for in a background thread, from the step as it was
recorded, while eviction keeps the run alive; the new plan joins the others at the next step's border. Nothing here is
final: every step is judged, for as long as the session lives.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from .policy import Policy
from .policy.program import Program
from .report import PlanSummary, StepSummary
from .runtime import core
from .trace import StepTrace
from .units import format_bytes, format_percent, format_seconds

MOST_PLANS = 24
"""Plans kept; beyond, the one that was followed longest ago goes."""

_LEAST_MATCH_RATE = 0.9
_LEAST_RECALL = 0.9
_MOST_EVICTED = 0.05
"""Share of the capacity that may be evicted in a step without need of a plan."""
_SAME_PEAK = 0.04
"""Live peaks that differ by less than this share are of one size."""
_STEADY_STEPS = 4
"""A sequence seen so often in a row gets a plan of its own, however well another one serves it."""
_LONGEST_PAUSE = 64
_MOST_ANSWERS = 4
"""Times that a sequence is planned for anew because the runtime declined drops."""
_TRIAL_STEPS = 3
"""Steps that a plan is followed in which its ops may turn out to take less time than it was made for."""
_SAME_TIME = 0.1
"""Compute times that differ by less than this share are no reason to."""
_CHEAP = 0.02
"""Share of the compute time that a plan may cost without being worth another look."""


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
    answers: int = 0
    """How many plans for the same ops came before, each of whose drops were declined."""
    refined: bool = False
    """Was it made again because its ops take less time than the one before was made for?"""
    replaces: int = -1
    """The plan for the same ops that it took the place of."""

    @property
    def fingerprint(self) -> int:
        """Of the tokens of its ops."""
        return self.ready.fingerprint


@dataclass(frozen=True)
class Made:
    """What the session's planning gives for a step."""

    policy: Policy | None
    program: Program
    step: StepTrace


class _Job(threading.Thread):
    """Plans for one step. The thread shares the interpreter with the training loop, which goes on between."""

    def __init__(self, work: Callable[[], Plan], key: tuple[int, int]) -> None:
        super().__init__(name="chameleon-lab-planner", daemon=True)
        self.key = key
        self.result: Plan | None = None
        self.error: Exception | None = None
        self._work = work
        self.start()

    def run(self) -> None:
        """Plan."""
        try:
            self.result = self._work()
        except Exception as error:  # a failed plan must not end the run: the session notes it
            self.error = error


class Plans:
    """The plans of one session. All methods are for the thread that ends the steps.

    Args:
        make: plans for a recorded step; it runs in the background too.
        note: tells the session's user something.
        capacity_bytes: of the device, asked for anew each time.
    """

    def __init__(
        self,
        make: Callable[[core.StepLog], Made],
        note: Callable[[str], None],
        capacity_bytes: Callable[[], int],
    ) -> None:
        self._make = make
        self._note = note
        self._capacity_bytes = capacity_bytes
        self._plans: dict[int, Plan] = {}
        self._gone: list[PlanSummary] = []
        self._ids = itertools.count()
        self._job: _Job | None = None
        self._failed: set[tuple[int, int]] = set()
        self._newest = (0, 0)
        self._in_a_row = 0
        self._pause = self._next_pause = 0
        self.lacking: str | None = None
        """Why the newest step needs a plan that is not there yet; None if it is served."""

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, plan: int) -> Plan | None:
        """A plan by its number, if it is still known."""
        return self._plans.get(plan)

    def summaries(self) -> Iterator[PlanSummary]:
        """Of all plans in the order in which they were made, those that were dropped too."""
        yield from sorted([*self._gone, *(p.summary for p in self._plans.values())], key=lambda s: s.plan)

    def force(self, made: Made, fingerprint_step: int, why: str) -> Plan:
        """Make this the only plan, from the next step on. Call it between two steps."""
        self.clear(f"replaced: {why}")
        plan = self._finish(made, fingerprint_step, why)
        self._add(plan)
        core.use_program(plan.summary.plan)
        self._pause = self._next_pause = 0
        self.lacking = None
        return plan

    def clear(self, why: str) -> None:
        """Drop all plans, and what is being planned."""
        self._job = None
        for plan in list(self._plans):
            self._drop(plan, why)
        self._failed.clear()

    def step_ended(self, log: core.StepLog, summary: StepSummary) -> None:
        """Judge the step that has ended, and see that the next ones are served."""
        key = (log.fingerprint, log.live_peak_bytes)
        same = key[0] == self._newest[0] and _alike(key[1], self._newest[1])
        self._in_a_row = self._in_a_row + 1 if same else 1
        self._newest = key
        self._pause = max(0, self._pause - 1)
        arrived = self._collect()
        own = self._known(*key)
        if own is not None:
            if own.summary.made_from_step < log.index and own is not arrived:
                self._next_pause = 0  # plans are worth their making: sequences come again
            steps = own.summary.followed_steps + (log.program == own.summary.plan)
            own.summary = replace(own.summary, followed_steps=steps, last_step=log.index)
            self.lacking = None
            if log.program != own.summary.plan:
                core.use_program(own.summary.plan)
            elif self._job is None:
                if summary.declined_drops and own.answers < _MOST_ANSWERS:
                    self._answer(own, log, summary)
                elif not own.refined and own.summary.followed_steps <= _TRIAL_STEPS:
                    self._refine(own, log, summary)
            return
        followed = self._plans.get(log.program)
        if arrived is not None and arrived.replaces == log.program >= 0:
            followed = arrived
            core.use_program(arrived.summary.plan)
        if followed is not None:
            steps = followed.summary.followed_steps + 1
            followed.summary = replace(followed.summary, followed_steps=steps, last_step=log.index)
        self.lacking = self._lack(summary, key, followed)
        if self.lacking is None:
            return
        if arrived is not None:  # of a step or two ago: nearer to this one than what has just failed
            core.use_program(arrived.summary.plan)
        if self._job is None and self._pause == 0 and key not in self._failed and not log.truncated_ops:
            why, step = self.lacking, log.index
            self._job = _Job(lambda: self._finish(self._make(log), step, why), key)
            self._pause = self._next_pause
            self._next_pause = min(max(1, 2 * self._next_pause), _LONGEST_PAUSE)

    def wait(self, timeout_s: float = 60.0) -> bool:
        """Wait until nothing is being planned any more. The plan is there from the next step's border on."""
        if self._job is not None:
            self._job.join(timeout_s)
        return self._job is None or not self._job.is_alive()

    # ---------------------------------------------------------------------------------------------------- inside

    def _answer(self, own: Plan, log: core.StepLog, summary: StepSummary) -> None:
        """Some of its drops cannot be replayed, as the recorded step says: plan without those."""
        why, step = f"{summary.declined_drops} of its drops were declined", log.index
        answers, own.answers = own.answers + 1, _MOST_ANSWERS  # it is asked for once
        self._job = _Job(
            lambda: replace(self._finish(self._make(log), step, why), answers=answers, refined=own.refined),
            (log.fingerprint, log.live_peak_bytes),
        )

    def _refine(self, own: Plan, log: core.StepLog, summary: StepSummary) -> None:
        """Under eviction ops take longer than under a plan, and copies seem to hide behind them that do not.

        Plan again once a step has shown how long they take, where the plan costs anything. A step that took longer
        says nothing: other programs do that.
        """
        if own.policy is None or summary.evictions or log.truncated_ops:
            return
        foretold = own.policy.predicted
        planned_s = foretold.get("step_s", 0.0) - foretold.get("stall_s", 0.0) - foretold.get("replay_s", 0.0)
        cost_s = summary.stall_s + summary.replay_s
        compute_s = summary.step_s - cost_s
        if compute_s > (1.0 - _SAME_TIME) * planned_s or cost_s < _CHEAP * compute_s:
            return
        why = f"its ops take {format_seconds(compute_s)}, it was made for {format_seconds(planned_s)}"
        own.refined, step = True, log.index

        def make() -> Plan:
            made = self._make(log)
            if made.policy is None or made.policy is own.policy:  # the user's own, whatever it costs
                return own
            return replace(self._finish(made, step, why), answers=own.answers, refined=True)

        self._job = _Job(make, (log.fingerprint, log.live_peak_bytes))

    def _lack(self, summary: StepSummary, key: tuple[int, int], followed: Plan | None) -> str | None:
        if followed is None:
            return "no plan is known for its ops"
        if summary.match_rate < _LEAST_MATCH_RATE:
            return f"the ops changed: {format_percent(summary.match_rate)} matched"
        if summary.trigger_recall < _LEAST_RECALL:
            return f"{format_percent(summary.trigger_recall)} of the planned bytes left the device"
        if summary.evicted_bytes > _MOST_EVICTED * self._capacity_bytes():
            return f"{format_bytes(summary.evicted_bytes)} were evicted"
        if key[0] == followed.fingerprint:
            return (
                f"{format_bytes(key[1])} alive at once, planned for {format_bytes(followed.live_peak_bytes)}"
            )
        if self._in_a_row >= _STEADY_STEPS:
            return f"the same new ops {self._in_a_row} times in a row"
        return None

    def _known(self, fingerprint: int, live_peak_bytes: int) -> Plan | None:
        alike = [
            plan
            for plan in self._plans.values()
            if plan.fingerprint == fingerprint and _alike(plan.live_peak_bytes, live_peak_bytes)
        ]
        return min(alike, key=lambda plan: abs(plan.live_peak_bytes - live_peak_bytes), default=None)

    def _collect(self) -> Plan | None:
        """Take over what the background thread has planned, if it is ready."""
        job = self._job
        if job is None or job.is_alive():
            return None
        self._job = None
        if job.result is None:
            self._failed.add(job.key)
            self._note(f"planning failed, eviction goes on: {type(job.error).__name__}: {job.error}")
            return None
        replaced = self._known(job.result.fingerprint, job.result.live_peak_bytes)
        if replaced is job.result:
            return None
        if replaced is not None:
            job.result.replaces = replaced.summary.plan
            self._drop(replaced.summary.plan, f"replaced: {job.result.summary.why}")
        self._add(job.result)
        return job.result

    def _finish(self, made: Made, step: int, why: str) -> Plan:
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
            ),
        )

    def _add(self, plan: Plan) -> None:
        while len(self._plans) >= MOST_PLANS:
            oldest = min(self._plans.values(), key=lambda p: (p.summary.last_step, p.summary.plan))
            self._drop(oldest.summary.plan, f"{MOST_PLANS} plans are kept, and it was followed longest ago")
        self._plans[plan.summary.plan] = plan
        core.add_program(plan.summary.plan, plan.ready)

    def _drop(self, plan: int, why: str) -> None:
        core.drop_program(plan)
        self._gone.append(replace(self._plans.pop(plan).summary, dropped=why))
        del self._gone[:-256]


def _alike(a: int, b: int) -> bool:
    return abs(a - b) <= _SAME_PEAK * max(a, b)
