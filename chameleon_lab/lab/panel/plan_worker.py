"""Plans for the edits of a draft, made in another process and cached, with estimates until then."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...planner import Draft, Sweep, floor
from ...planner.estimate import estimate
from ...planner.process import PlannerInterruptedError, PlannerProcess
from ...planner.sweep import POINTS, sweep
from ...policy import Edit, Policy
from ...policy.model import fingerprint
from ...trace import Trace
from .decisions import Candidates, Judged
from .planned import DraftPlan, candidates_of, judged, planned

_AT_ONCE_S = 0.08
"""An edit's answer waits so long for its plan, where plans take no longer."""

_GUESSED_S_PER_OP = 2e-5
"""What a plan takes, until the first one has been timed."""

_KEPT = 24
"""Plans remembered."""

_ANEW = "anew"

Edits = tuple[Edit | str, ...]
"""Edits, and :data:`_ANEW` behind them where the plan that is in force under them does not count."""


def _edits_of(key: Edits) -> tuple[Edit, ...]:
    """Without what may stand behind them."""
    return tuple(edit for edit in key if isinstance(edit, Edit))


class PlanWorker:
    """Where the edits of one draft are planned for. May be asked from several threads at once.

    Args:
        draft: whose base, step and op times hold; its edits are not looked at.
        policy: the policy in force, of the same step.
        meta: what the trace of that step says of itself.
        planner: where plans are made.
        news: called in the worker's thread, when something new is known.
        is_measuring: says when no time may be taken from the steps for what can wait.
    """

    def __init__(
        self,
        draft: Draft,
        policy: Policy,
        meta: dict[str, Any],
        planner: PlannerProcess,
        news: Callable[[], None],
        is_measuring: Callable[[], bool],
    ) -> None:
        self.step, self.base = draft.step, draft.base
        self.op_times, self.candidates = draft.op_times, candidates_of(draft)
        self.fingerprint = fingerprint(self.step)
        self.floor = floor(Trace([self.step], meta))
        self.plan_s = _GUESSED_S_PER_OP * len(self.step.ops)
        """What the newest plan took."""
        self._planner, self._news, self._is_measuring = planner, news, is_measuring
        self._lock = threading.RLock()
        self._made = threading.Condition(self._lock)
        """Told when a plan is there."""
        self._known: OrderedDict[Edits, DraftPlan] = OrderedDict()
        self._wanted: list[Edits] = []
        self._planning: Edits | None = None
        self._moving_to: tuple[np.ndarray, Callable[[list[tuple[Policy, Judged]]], None]] | None = None
        self._stopped = False
        self._estimate: DraftPlan | None = None
        self._sweep: Sweep | None = None
        self._sweep_left: list[int] = []
        self._sweep_link = draft.link
        self._worker: threading.Thread | None = None
        self.newest = self.in_force = self.take(policy)
        """``newest``: the plan made last that fits. ``in_force``: what the session runs."""

    def move_to(self, op_times: np.ndarray, and_then: Callable[[list[tuple[Policy, Judged]]], None]) -> None:
        """Find, in the worker's thread, what :meth:`retime` needs to know for these op times, and call ``and_then``."""
        with self._lock:
            self._moving_to = op_times, and_then
        self.wake()

    def _judged_on(self, op_times: np.ndarray) -> list[tuple[Policy, Judged]]:
        """The policies in force and of the newest plan, with what they come to."""
        with self._lock:
            policies = {id(made.policy): made.policy for made in (self.in_force, self.newest)}
        kept = [policy for policy in policies.values() if policy is not None]
        draft = Draft(self.base, self.step, op_times)
        bare = [replace(policy, source=None) for policy in kept]
        return list(zip(kept, self._planner.call_or_run(judged, draft, bare), strict=True))

    def retime(self, draft: Draft, known: Sequence[tuple[Policy, Judged]] = ()) -> None:
        """Predict on other op times, those of ``draft``, from now on: what is in force, and its plan if it has one.

        Effects of edits and the curve are worked out again when they are asked for. ``known``: what policies come to
        then.
        """
        figures = {id(policy): found.with_step(self.step) for policy, found in known}
        with self._lock:
            kept = [self.in_force] + ([made] if (made := self._known.get(draft.edits)) is not None else [])
            self.op_times, self.candidates = draft.op_times, candidates_of(draft)
            self._known.clear()
            self._wanted.clear()
            self._estimate, self._sweep, self._sweep_left = None, None, []
            again: dict[Edits, DraftPlan] = {}
            for old in kept:
                if old.policy is None:
                    again[old.edits] = old
                    continue
                twin = draft.retimed(draft.op_times, old.policy) if old.edits == draft.edits else None
                found = figures.get(id(old.policy)) or self.candidates.judged(old.policy)
                again[old.edits] = DraftPlan(old.edits, True, old.policy, found, old.findings, draft=twin)
            self._known.update(again)
            self.in_force = again[self.in_force.edits]
            self.newest = again.get(draft.edits, self.in_force)
            if self.newest.policy is None:
                self.newest = self.in_force

    def take(self, policy: Policy) -> DraftPlan:
        """What a policy that was made elsewhere comes to; it is in force from now on."""
        with self._lock:
            known = next((made for made in self._known.values() if made.policy is policy), None)
        if known is None:
            known = DraftPlan(policy.edits, True, policy, self.candidates.judged(policy), policy.findings)
        with self._lock:
            self.in_force = self._known[policy.edits] = known
        return known

    # ------------------------------------------------------------------------------------------------ plans

    @property
    def is_at_work(self) -> bool:
        """Is something being planned in the thread?"""
        return self._worker is not None

    def get(self, edits: Edits) -> DraftPlan | None:
        """The plan under these edits, if it is known."""
        with self._lock:
            return self._known.get(edits)

    def look(self, draft: Draft) -> DraftPlan:
        """What a draft comes to: planned where that is known or quick, else estimated, with a plan wanted."""
        edits = draft.edits
        with self._lock:
            if (made := self._known.get(edits)) is not None:
                return made
            self.want(edits, first=True)
            if self._estimate is not None and self._estimate.edits == edits:
                return self._estimate
            self.wake()
            newest, candidates, op_times = self.newest, self.candidates, self.op_times
            until_s = time.monotonic() + (_AT_ONCE_S if self.plan_s < _AT_ONCE_S else 0.0)
        estimated = self._estimated(draft, edits, newest, candidates, op_times)
        with self._lock:
            if self._made.wait_for(lambda: edits in self._known, max(until_s - time.monotonic(), 0.0)):
                return self._known[edits]
            if op_times is self.op_times:  # it was made without the lock
                self._estimate = estimated
            return estimated

    def _estimated(
        self,
        draft: Draft,
        edits: tuple[Edit, ...],
        newest: DraftPlan,
        candidates: Candidates,
        op_times: np.ndarray,
    ) -> DraftPlan:
        assert newest.policy is not None
        policy = estimate(
            self.step,
            newest.policy,
            edits,
            draft.capacity_bytes,
            draft.link,
            op_times,
            index=candidates.index,
            memory=candidates.memory,
            replayable=candidates.replayable,
        )
        return DraftPlan(edits, False, policy, candidates.judged(policy, at_half=False))

    def anew(self, edits: tuple[Edit, ...]) -> DraftPlan | None:
        """The plan that is made under these edits now, whatever is in force; None, and wanted, before it is known."""
        key: Edits = (*edits, _ANEW)
        made = self.get(key)
        if made is None:
            self.want(key)
        return made

    def plan(self, key: Edits) -> DraftPlan:
        """Plan under these edits now, and remember it."""
        begin = time.perf_counter()
        anew = key[-1:] == (_ANEW,)
        op_times = self.op_times
        twin = Draft(self.base, self.step, op_times)
        twin.edits = _edits_of(key)
        made = self._planner.call_or_run(planned, twin, anew=anew)
        if made.policy is not None:
            assert made.figures is not None
            policy = self.base if twin.is_base and not anew else replace(made.policy, source=self.step)
            figures, draft = made.figures.with_step(self.step), twin.retimed(op_times, policy)
            made = replace(made, policy=policy, figures=figures, draft=draft)
        with self._lock:
            self.plan_s = time.perf_counter() - begin
            if op_times is not self.op_times:
                return made  # on op times of before
            self._known[key] = made
            self._made.notify_all()
            if made.policy is not None and not anew:
                self.newest = made
            while len(self._known) > _KEPT:
                oldest = next(key for key, kept in self._known.items() if kept is not self.in_force)
                del self._known[oldest]
        return made

    def want(self, edits: Edits, first: bool = False) -> None:
        """Put them on the list of what :meth:`wake` plans for; ``first``: before what else is wanted."""
        with self._lock:
            if edits == self._planning:
                return
            if edits in self._wanted:
                self._wanted.remove(edits)
            self._wanted.insert(0 if first else len(self._wanted), edits)

    def drop_wanted(self) -> None:
        """Forget what is wanted: it was about edits that have changed."""
        with self._lock:
            self._wanted.clear()

    # ------------------------------------------------------------------------------------------------ the curve

    def curve(self, draft: Draft, begin: bool) -> dict[str, Any]:
        """Step time against capacity, as far as it is known; ``begin``: work it out, if nobody has yet."""
        with self._lock:
            if self._sweep is not None and self._sweep.link != draft.link:
                self._sweep, self._sweep_left = None, []
            if begin and self._sweep is None and not self._sweep_left:
                low, high = self.floor.bytes, max(self.step.live_peak_bytes, self.floor.bytes)
                capacities = [int(capacity) for capacity in np.linspace(low, high, POINTS)]
                # Coarse first, so that the curve's shape shows early.
                order = sorted(range(POINTS), key=lambda k: -math.gcd(k, POINTS - 1))
                self._sweep_left = list(dict.fromkeys(capacities[k] for k in order))
                self._sweep_link = draft.link
                self.wake()
            found = self._sweep
            points = () if found is None else found.points
            knee = found.knee if found is not None and not self._sweep_left else None
            return {
                "points": [
                    {"capacity_bytes": point.capacity_bytes, "step_s": point.step_s, "stall_s": point.stall_s}
                    for point in points
                ],
                "left": len(self._sweep_left),
                "of": len(self._sweep_left) + len(points),
                "knee_bytes": None if knee is None else knee.capacity_bytes,
                "within": 0.0 if found is None else found.within,
            }

    def _sweep_at(self, capacity: int) -> None:
        link = self._sweep_link
        part = self._planner.call_or_run(
            sweep,
            self.step,
            [capacity],
            link,
            op_times=self.op_times,
            **self.base.plan_options,
        )
        with self._lock:
            if capacity not in self._sweep_left or link != self._sweep_link:
                return
            self._sweep_left.remove(capacity)
            before = () if self._sweep is None else self._sweep.points
            points = sorted((*before, *part.points), key=lambda point: point.capacity_bytes)
            self._sweep = replace(part, points=tuple(points))

    # ------------------------------------------------------------------------------------------------ the thread

    def wake(self) -> None:
        """Go on with what is wanted, in the thread."""
        with self._lock:
            if self._stopped:
                return
            if self._worker is None and (self._wanted or self._sweep_left or self._moving_to):
                worker = threading.Thread(target=self._work, name="chameleon-lab-editor", daemon=True)
                worker.start()
                self._worker = worker

    def stop(self) -> None:
        """Plan for nothing more: another worker has taken its place, or the draft is gone."""
        with self._lock:
            self._stopped = True
            self._wanted.clear()
            self._sweep_left, self._moving_to = [], None

    def _work(self) -> None:
        """Move to other op times, plan for what is wanted, then go on with the curve. Ends when nothing is left."""
        while True:
            with self._lock:
                move, self._moving_to = self._moving_to, None
                key = self._planning = self._wanted.pop(0) if self._wanted and move is None else None
                wait = not self._sweep_left or self._is_measuring()
                capacity = None if wait else self._sweep_left[0]
                if move is None and key is None and capacity is None:
                    self._worker = None
                    return
            try:
                if move is not None:
                    op_times, and_then = move
                    and_then(self._judged_on(op_times))
                elif key is not None:
                    self.plan(key)
                elif capacity is not None:
                    self._sweep_at(capacity)
            except PlannerInterruptedError:  # the panel is gone
                self.stop()
            except Exception as error:  # the panel shows it, and a thread has nobody else to tell
                why = f"planning failed: {type(error).__name__}: {error}"
                with self._lock:
                    if key is not None:
                        self._known[key] = DraftPlan(_edits_of(key), True, None, None, (), why)
                        self._made.notify_all()
                    elif move is None:
                        self._sweep_left = []
            with self._lock:
                self._planning = None
            self._news()
