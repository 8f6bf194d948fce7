"""The policy of a session: the active one, the given one, and switches by trial, enabling and rollback."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from ..errors import PolicyError, SessionError
from ..planner.draft import Draft
from ..policy import Policy
from ..policy.edits import Edit, EditAction
from ..report.dry_run import DryRun, Measured
from ..report.session_report import StepSummary
from ..util.progress import bar, tick
from ..util.units import format_bytes

_MOST_BEFORE = 16  # a policy holds a step: a run that enables many must not keep them all


class PolicyController:
    """The policies of one session. A switch is asked for at any time, and happens at the next step border.

    The thread that ends the steps switches at once where it is between two of them. Any other thread (a panel's, while
    a cell trains or none does) leaves the switch to the end of the next step: nothing may change under a step that
    could begin meanwhile.

    Args:
        given: the user's policy, if there is one.
        switch: binds a policy and follows it from here on; called at a border alone. It calls :meth:`follow`.
        at_border: is this moment between two steps?
        require_open: raises SessionError, naming the call, where the session is not open.
        capacities: the device bytes in force, and those that the session was made with; None: no limit.
        history: the finished steps in figures, oldest first.
        step_count: how many steps have ended.
        whole_steps: how many it takes until a policy is in force.
    """

    def __init__(
        self,
        given: Policy | None,
        *,
        switch: Callable[[Policy], None],
        at_border: Callable[[], bool],
        require_open: Callable[[str], None],
        capacities: Callable[[], tuple[int | None, int | None]],
        history: Callable[[], Sequence[StepSummary]],
        step_count: Callable[[], int],
        whole_steps: int,
    ) -> None:
        self.lock = threading.RLock()
        """Held while a step ends, and by whoever asks for a switch."""
        self._bind = switch
        self._at_border = at_border
        self._require_open = require_open
        self._capacities = capacities
        self._history = history
        self._step_count = step_count
        self._whole_steps = whole_steps
        self._active = given
        self._given = given
        self._unstarted = given  # given, and the first step has not ended yet
        self._unmatched: tuple[str, ...] = ()
        self._bound = False
        self._stepper: int | None = None  # the thread that ended the newest step
        self._next: Policy | None = None
        self._before: deque[Policy] = deque(maxlen=_MOST_BEFORE)
        self._trial: DryRun | None = None
        self._trial_left = 0
        self._trial_running = False
        self._base: Policy | None = None  # goes on after the trial

    # ------------------------------------------------------------------------------------------------ what there is

    @property
    def active(self) -> Policy | None:
        """The policy that is followed now, in a dry run too; None before there is one."""
        return self._active

    @property
    def given(self) -> Policy | None:
        """The one that the user wants: it is followed wherever it fits, and its edits hold where it does not."""
        return self._given

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Those of the policy that is followed now: other plans obey them as well."""
        return self._active.edits if self._active is not None else ()

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Which of its decisions have found no storage in the step."""
        return self._unmatched

    @property
    def is_bound(self) -> bool:
        """Has a policy been bound to the ops of a step, since one was given last?"""
        return self._bound

    @property
    def in_force(self) -> Policy | None:
        """The policy that is in force for good, or will be at the border; None before there is one."""
        with self.lock:
            return self._base if self._trial is not None else self._next or self._active

    @property
    def is_waiting(self) -> bool:
        """Does a switch wait for the border?"""
        return self._next is not None

    @property
    def can_roll_back(self) -> bool:
        """Has something been enabled that can be taken back?"""
        return bool(self._before)

    def measured_now(self) -> Measured | None:
        """The median of the newest steps that followed the plan of the newest one, at most 8; None before the first.

        Steps of a dry run are none of them: while one runs it is what was measured before it.
        """
        trial = self._trial
        if trial is not None and trial.before is not None:
            return trial.before
        return Measured.newest(self._history())

    # ------------------------------------------------------------------------------------------------ by the session

    def give(self, policy: Policy) -> None:
        """Take a policy of the user's, to be bound to the next step's ops."""
        self._active = self._given = policy
        self._bound = False

    def take_unstarted(self) -> Policy | None:
        """The policy that the session was made with, if it is still the given one: once, when the first step ends."""
        policy, self._unstarted = self._unstarted, None
        return policy if policy is self._given else None

    def prefer(self, policy: Policy | None) -> None:
        """From now on this is the given one, or none is. What is followed changes with :meth:`follow`."""
        self._given = policy

    def follow(self, policy: Policy, unmatched: tuple[str, ...]) -> None:
        """This one is followed now; these decisions of it have found no storage."""
        self._active, self._unmatched = policy, unmatched

    def bound(self) -> None:
        """The first plan has been made, or the given policy has been bound."""
        self._bound = True

    # ------------------------------------------------------------------------------------------------ asking

    def enable(self, chosen: Draft | Policy) -> None:
        """Switch to a draft or policy for good."""
        policy = self._checked(chosen, "enable")
        with self.lock:
            before = self._required("enable")
            self._end_trial("another policy was enabled")
            self._before.append(before)
            self._ask(policy)

    def rollback(self) -> Policy:
        """Switch back to what was in force before the last enable, and return it. The last 16 can be taken back."""
        with self.lock:
            self._required("rollback")
            if not self._before:
                raise SessionError("session.rollback(): nothing is left to take back: there is no way back")
            self._end_trial("rolled back")
            policy = self._before.pop()
            self._ask(policy)
        return policy

    def dry_run(self, draft: Draft, step_fn: Callable[[], object] | None, steps: int, settle: int) -> DryRun:
        """Try a draft for a few steps, and go back."""
        for name, value, least in (("steps", steps, 1), ("settle", settle, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a number of steps from {least} up, got {value!r}")
        if not isinstance(draft, Draft):
            raise TypeError(
                f"dry_run takes a draft, not {type(draft).__name__}: make one with policy.draft()"
            )
        policy = self._checked(draft, "dry_run")
        trial = DryRun(policy, draft.predict(), steps, settle, self.measured_now())
        with self.lock:
            base = self._required("dry_run")
            self._end_trial("another dry run began")
            self._base, self._trial = base, trial
            self._trial_left = settle + steps
            self._ask(policy)
        if step_fn is not None:
            self._drive(trial, step_fn)
        return trial

    def end_dry_run(self) -> None:
        """Go back to the policy of before, without waiting for the steps that are left."""
        with self.lock:
            self._end_trial("stopped")

    def _drive(self, trial: DryRun, step_fn: Callable[[], object]) -> None:
        try:
            with bar("Dry run", trial.settle + trial.steps, "step"):
                while not trial.done:
                    before = self._step_count()
                    step_fn()
                    if self._step_count() == before:
                        raise SessionError(
                            "dry_run: step_fn ran and no step ended: let it train one whole step, or call "
                            "session.step() at its end"
                        )
                    tick()
        finally:
            with self.lock:
                if not trial.done:
                    self._end_trial("step_fn failed")

    def _checked(self, chosen: Draft | Policy, call: str) -> Policy:
        self._require_open(call)
        policy = chosen.policy() if isinstance(chosen, Draft) else chosen
        if not isinstance(policy, Policy):
            raise TypeError(f"{call} takes a draft or a policy, not {type(chosen).__name__}")
        if not policy.is_current:
            raise PolicyError(
                f"session.{call}(): the edits of this policy changed after its decisions were made: "
                "use policy.draft() to replan"
            )
        _, own = self._capacities()
        asked = any(edit.action is EditAction.CAPACITY for edit in policy.edits)
        if own is not None and policy.capacity_bytes > own and not asked:
            raise PolicyError(
                f"session.{call}(): the policy was made for {format_bytes(policy.capacity_bytes)}, and the session "
                f"has {format_bytes(own)}: ask for the capacity in a draft, draft.set_capacity({policy.capacity_bytes})"
            )
        return policy

    def _required(self, call: str) -> Policy:
        """The policy that is in force for good, or will be at the border."""
        self._require_open(call)
        if self._capacities()[0] is None:
            raise PolicyError("this session only records, it has no capacity: give one to use a policy")
        policy = self.in_force
        if policy is None:
            raise SessionError(
                f"session.{call}(): no policy is in force yet: train {self._whole_steps} whole steps first"
            )
        return policy

    # ------------------------------------------------------------------------------------------------ the border

    def step_ended(self, summary: StepSummary, *, is_stable: bool) -> None:
        """A step has ended: note what a trial measured, and switch if somebody asked for it. Takes no lock: the session
        holds it while a step ends.

        ``is_stable``: a plan serves the step's ops.
        """
        self._stepper = threading.get_ident()
        trial = self._trial
        if trial is not None and self._trial_running:
            self._trial_left -= 1
            if self._trial_left < trial.steps:
                trial.measured.append(Measured.of(summary))
            if not is_stable:
                self._end_trial("the ops changed")
            elif self._trial_left == 0:
                self._end_trial("")
        self._switch()

    def _ask(self, policy: Policy) -> None:
        self._next = policy
        if self._between_steps():
            self._switch()

    def _between_steps(self) -> bool:
        return threading.get_ident() == self._stepper and self._at_border()

    def _switch(self) -> None:
        policy, self._next = self._next, None
        if policy is not None:
            self._bind(policy)
            self._trial_running = self._trial is not None and policy is self._trial.policy

    def _end_trial(self, note: str) -> None:
        """Go back to the policy of before, at once where this is a border."""
        trial, self._trial = self._trial, None
        if trial is None:
            return
        trial.done, trial.note = True, note
        self._next = self._base
        self._trial_running = False
        self._base = None
        if self._between_steps():
            self._switch()
