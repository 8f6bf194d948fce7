"""Plans for the edits of a draft, made in a thread and cached, with estimates until then."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import BelowFloorError
from ...planner import Draft, Prediction, Sweep, floor
from ...planner.estimate import estimate
from ...planner.memory import MIN_SWAP_BYTES
from ...planner.sweep import POINTS, sweep
from ...policy import Edit, EditsUnreachableError, Finding, Policy
from ...policy.model import fingerprint
from ...trace import Trace
from .decisions import Candidates, RowActions

_AT_ONCE_S = 0.08
"""Plans that take less are made before an edit is answered."""

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


@dataclass(frozen=True, eq=False)
class DraftPlan:
    """What some edits come to.

    Attributes:
        edits: the edits.
        exact: planned; else it is an estimate, and a plan follows.
        policy, prediction, rows: None where no policy fits the capacity. ``rows``: what it does with each row.
        findings: what is wrong with the edits. Known of a plan alone.
        error: why no policy fits, or an empty string.
        draft: the draft that planned it, which a dry run takes.
    """

    edits: tuple[Edit, ...]
    exact: bool
    policy: Policy | None
    prediction: Prediction | None
    rows: RowActions | None
    findings: tuple[Finding, ...] = ()
    error: str = ""
    draft: Draft | None = None


class PlanWorker:
    """Where the edits of one draft are planned for. May be asked from several threads at once.

    Args:
        draft: whose base, step and op times hold; its edits are not looked at.
        policy: the policy in force, of the same step.
        meta: what the trace of that step says of itself.
        news: called in the thread, when something new is known.
        is_measuring: says when no time may be taken from the steps for what can wait.
    """

    def __init__(
        self,
        draft: Draft,
        policy: Policy,
        meta: dict[str, Any],
        news: Callable[[], None],
        is_measuring: Callable[[], bool],
    ) -> None:
        self.step, self.base = draft.step, draft.base
        self.least_bytes = int(policy.assumed.get("min_swap_bytes", MIN_SWAP_BYTES))
        """Storages with smaller blocks stay."""
        self._replay_class = int(policy.assumed.get("rematerialize", 0))
        self._refused = tuple(policy.assumed.get("refused", ()))
        self._clock_by(draft.op_times)
        self.fingerprint = fingerprint(self.step)
        self.floor = floor(Trace([self.step], meta))
        self.plan_s = self._longest_s = _GUESSED_S_PER_OP * len(self.step.ops)
        """What the newest plan took."""
        self._news, self._is_measuring = news, is_measuring
        self._lock = threading.RLock()
        self._known: OrderedDict[Edits, DraftPlan] = OrderedDict()
        self._wanted: list[Edits] = []
        self._planning: Edits | None = None
        self._estimate: DraftPlan | None = None
        self._sweep: Sweep | None = None
        self._sweep_left: list[int] = []
        self._sweep_link = draft.link
        self._worker: threading.Thread | None = None
        self.newest = self.in_force = self.take(policy)
        """``newest``: the plan made last that fits. ``in_force``: what the session runs."""

    def _clock_by(self, op_times: np.ndarray) -> None:
        self.op_times = op_times
        self.candidates = Candidates(self.step, op_times, self.least_bytes, self._replay_class, self._refused)

    def retime(self, draft: Draft) -> None:
        """Predict on other op times, those of ``draft``, from now on: what is in force, and its plan if it has one.

        Effects of edits and the curve are worked out again when they are asked for.
        """
        with self._lock:
            kept = [self.in_force] + ([made] if (made := self._known.get(draft.edits)) is not None else [])
            self._clock_by(draft.op_times)
            self._known.clear()
            self._wanted.clear()
            self._estimate, self._sweep, self._sweep_left = None, None, []
            again: dict[Edits, DraftPlan] = {}
            for old in kept:
                if old.policy is None:
                    again[old.edits] = old
                    continue
                twin = draft.retimed(draft.op_times, old.policy) if old.edits == draft.edits else None
                judged = self.candidates.judged(old.policy)
                again[old.edits] = DraftPlan(old.edits, True, old.policy, *judged, old.findings, draft=twin)
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
            known = DraftPlan(policy.edits, True, policy, *self.candidates.judged(policy), policy.findings)
        with self._lock:
            self.in_force = self._known[policy.edits] = known
        return known

    # ------------------------------------------------------------------------------------------------ plans

    def get(self, edits: Edits) -> DraftPlan | None:
        """The plan under these edits, if it is known."""
        with self._lock:
            return self._known.get(edits)

    def look(self, draft: Draft) -> DraftPlan:
        """What a draft comes to: planned where that is known or quick, else estimated, with a plan wanted."""
        edits = draft.edits
        made = self.get(edits)
        if made is None and self._longest_s < _AT_ONCE_S:
            made = self.plan(edits)
        if made is not None:
            return made
        self.want(edits, first=True)
        with self._lock:
            if self._estimate is None or self._estimate.edits != edits:
                self._estimate = self._estimated(draft)
            return self._estimate

    def _estimated(self, draft: Draft) -> DraftPlan:
        edits, newest = draft.edits, self.newest
        assert newest.policy is not None
        policy = estimate(
            self.step,
            newest.policy,
            edits,
            draft.capacity_bytes,
            draft.link,
            self.op_times,
            index=self.candidates.index,
            memory=self.candidates.memory,
            replayable=self.candidates.replayable,
        )
        return DraftPlan(edits, False, policy, *self.candidates.judged(policy))

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
        edits = _edits_of(key)
        candidates = self.candidates
        twin = Draft(self.base, self.step, candidates.op_times)
        twin.edits = edits
        try:
            policy = twin.planned_anew() if anew else twin.policy()
            made = DraftPlan(edits, True, policy, *candidates.judged(policy), policy.findings, draft=twin)
        except EditsUnreachableError as error:
            made = DraftPlan(edits, True, None, None, None, error.all_findings, str(error))
        except BelowFloorError as error:
            made = DraftPlan(edits, True, None, None, None, (), str(error))
        with self._lock:
            self.plan_s = time.perf_counter() - begin
            self._longest_s = max(self._longest_s, self.plan_s)
            if candidates is not self.candidates:
                return made  # on op times of before
            self._known[key] = made
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
        part = sweep(
            self.step,
            [capacity],
            link,
            op_times=self.op_times,
            min_swap_bytes=self.least_bytes,
            rematerialize=self._replay_class,
            refused=self._refused,
            host_capacity_bytes=self.base.host_capacity_bytes,
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
        """Go on with what is wanted, in the thread. Call it last: the thread slows down whoever works beside it."""
        with self._lock:
            if self._worker is None and (self._wanted or self._sweep_left):
                worker = threading.Thread(target=self._work, name="chameleon-lab-editor", daemon=True)
                worker.start()
                self._worker = worker

    def _work(self) -> None:
        """Plan for what is wanted; then go on with the curve. Ends when there is nothing left."""
        while True:
            with self._lock:
                key = self._planning = self._wanted.pop(0) if self._wanted else None
                wait = not self._sweep_left or self._is_measuring()
                capacity = None if wait else self._sweep_left[0]
                if key is None and capacity is None:
                    self._worker = None
                    return
            try:
                if key is not None:
                    self.plan(key)
                elif capacity is not None:
                    self._sweep_at(capacity)
            except Exception as error:  # the panel shows it, and a thread has nobody else to tell
                why = f"planning failed: {type(error).__name__}: {error}"
                with self._lock:
                    if key is not None:
                        self._known[key] = DraftPlan(_edits_of(key), True, None, None, None, (), why)
                    else:
                        self._sweep_left = []
            with self._lock:
                self._planning = None
            self._news()
