"""What runs next: policies that are tried, enabled and rolled back, each at a step border."""

from __future__ import annotations

import html
import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from .errors import PolicyError, SessionError
from .policy import Policy, Prediction
from .policy.draft import Draft
from .policy.edits import EditAction
from .progress import bar, tick
from .report import StepSummary
from .units import NOTHING, format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from .session import Session

_MOST_NOW = 8
_MOST_BEFORE = 16  # a policy holds a step: a run that enables many must not keep them all


@dataclass(frozen=True)
class Measured:
    """One step of a dry run, in the figures of a Prediction."""

    peak_bytes: int
    step_s: float
    stall_s: float
    overlap: float | None
    swapped_out_bytes: int
    swapped_in_bytes: int
    evictions: int
    demand_swap_ins: int
    match_rate: float
    replay_s: float = 0.0
    replayed_bytes: int = 0


@dataclass(repr=False)
class DryRun:
    """A draft at work for a few steps: what was measured beside what was predicted.

    ``done`` turns True at the border of the last measured step; the policy of before is in force again then.
    """

    policy: Policy
    prediction: Prediction
    steps: int
    """Steps to measure."""
    settle: int
    """Steps before them, in which the storages take their new places."""
    before: Measured | None = None
    """The median of the newest steps before it, which ran under one plan; None where none has."""
    measured: list[Measured] = field(default_factory=list)
    done: bool = False
    note: str = ""
    """Why it ended early, if it did."""

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The table: what, before, measured (the median of the steps), how it differs from before, and predicted."""
        if not self.measured:
            return []
        rows = []
        for what, name, shown in _FIGURES:
            predicted = getattr(self.prediction, name)
            measured = _median(self.measured, name)
            before = None if self.before is None else getattr(self.before, name)
            if name == "replay_s" and not predicted and not measured and not before:
                continue
            cells = (NOTHING if value is None else shown(value) for value in (before, measured, predicted))
            was, now, hoped = cells
            rows.append((what, was, now, _apart(before, measured, name == "overlap"), hoped))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The dry run as plain JSON values."""
        names = [name for _, name, _ in _FIGURES]
        return {
            "done": self.done,
            "note": self.note,
            "steps": self.steps,
            "settle": self.settle,
            "predicted": {name: getattr(self.prediction, name) for name in names},
            "before": None if self.before is None else asdict(self.before),
            "measured": [asdict(step) for step in self.measured],
        }

    def __str__(self) -> str:
        lines = [self._headline()]
        rows = [_HEADS, *self.rows()]
        if len(rows) > 1:
            lines += ["  " + f"{row[0]:<9}" + "".join(f" {cell:>12}" for cell in row[1:]) for row in rows]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:right'>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in self.rows()
        )
        head = f"<tr>{''.join(f'<th>{name}</th>' for name in _HEADS)}</tr>" if rows else ""
        return f"<table><caption>{html.escape(self._headline())}</caption>{head}{rows}</table>"

    def _headline(self) -> str:
        state = "" if self.done else ", waiting for steps"
        ended = f" ({self.note})" if self.note else ""
        return f"Dry run: {len(self.measured)} of {self.steps} steps measured{state}{ended}"


_HEADS = ("", "before", "measured", "change", "predicted")

_FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Peak", "peak_bytes", format_bytes),
    ("Step", "step_s", format_seconds),
    ("Stall", "stall_s", format_seconds),
    ("Replays", "replay_s", format_seconds),
    ("Overlap", "overlap", format_percent),
    ("Out", "swapped_out_bytes", format_bytes),
    ("In", "swapped_in_bytes", format_bytes),
)


class Staging:
    """The switches of one session. A switch is asked for at any time, and happens at the next step border.

    The thread that ends the steps switches at once where it is between two of them. Any other thread (a panel's, while
    a cell trains or none does) leaves the switch to the end of the next step: nothing may change under a step that
    could begin meanwhile.
    """

    def __init__(self, session: Session) -> None:
        self.lock = threading.RLock()
        """Held while a step ends, and by whoever asks for a switch."""
        self._session = session
        self._stepper: int | None = None  # the thread that ended the newest step
        self._next: Policy | None = None
        self._before: deque[Policy] = deque(maxlen=_MOST_BEFORE)
        self._trial: DryRun | None = None
        self._trial_left = 0
        self._trial_running = False
        self._base: Policy | None = None  # goes on after the trial

    # ------------------------------------------------------------------------------------------------ asking

    @property
    def in_force(self) -> Policy | None:
        """The policy that is in force for good, or will be at the border; None before there is one."""
        with self.lock:
            return self._base if self._trial is not None else self._next or self._session.policy

    @property
    def is_waiting(self) -> bool:
        """Does a switch wait for the border?"""
        return self._next is not None

    @property
    def can_roll_back(self) -> bool:
        """Has something been enabled that can be taken back?"""
        return bool(self._before)

    def enable(self, chosen: Draft | Policy) -> None:
        """Switch to a draft or policy for good."""
        policy = self._checked(chosen, "enable")
        with self.lock:
            before = self._in_force("enable")
            self._end_trial("another policy was enabled")
            self._before.append(before)
            self._ask(policy)

    def rollback(self) -> Policy:
        """Switch back to what was in force before the last enable, and return it. The last 16 can be taken back."""
        with self.lock:
            self._in_force("rollback")
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
            base = self._in_force("dry_run")
            self._end_trial("another dry run began")
            self._base, self._trial = base, trial
            self._trial_left = settle + steps
            self._ask(policy)
        if step_fn is not None:
            self._drive(trial, step_fn)
        return trial

    def measured_now(self) -> Measured | None:
        """The median of the newest steps that followed the plan of the newest one, at most 8; None before the first.

        Steps of a dry run are none of them: while one runs it is what was measured before it.
        """
        trial = self._trial
        if trial is not None and trial.before is not None:
            return trial.before
        history = self._session.history[-_MOST_NOW:]
        same = []
        for step in reversed(history):
            if (step.stage, step.plan) != (history[-1].stage, history[-1].plan) or not step.ops:
                break
            same.append(_measured(step))
        if not same:
            return None
        figures = {figure.name: _median(same, figure.name) for figure in fields(Measured)}
        return Measured(**figures)  # type: ignore[arg-type]

    def _drive(self, trial: DryRun, step_fn: Callable[[], object]) -> None:
        session = self._session
        try:
            with bar("Dry run", trial.settle + trial.steps, "step"):
                while not trial.done:
                    before = session._steps
                    step_fn()
                    if session._steps == before:
                        raise SessionError(
                            "dry_run: step_fn ran and no step ended: let it train one whole step, or call "
                            "session.step() at its end"
                        )
                    tick()
        finally:
            if not trial.done:
                self._end_trial("step_fn failed")

    def _checked(self, chosen: Draft | Policy, call: str) -> Policy:
        session = self._session
        session._require_open(call)
        policy = chosen.policy() if isinstance(chosen, Draft) else chosen
        if not isinstance(policy, Policy):
            raise TypeError(f"{call} takes a draft or a policy, not {type(chosen).__name__}")
        if not policy.is_current:
            raise PolicyError(
                f"session.{call}(): the edits of this policy were changed after its decisions were made: "
                "use policy.draft(), which plans them anew"
            )
        own = session.own_capacity_bytes
        asked = any(edit.action is EditAction.CAPACITY for edit in policy.edits)
        if own is not None and policy.capacity_bytes > own and not asked:
            raise PolicyError(
                f"session.{call}(): the policy was made for {format_bytes(policy.capacity_bytes)}, and the session "
                f"has {format_bytes(own)}: ask for the capacity in a draft, draft.set_capacity({policy.capacity_bytes})"
            )
        return policy

    def _in_force(self, call: str) -> Policy:
        """The policy that is in force for good, or will be at the border."""
        session = self._session
        session._require_open(call)
        if session.capacity_bytes is None:
            raise PolicyError("this session only records, it has no capacity: give one to use a policy")
        policy = self.in_force
        if policy is None:
            raise SessionError(
                f"session.{call}(): no policy is in force yet: train {session.warmup_steps + 1} whole steps first"
            )
        return policy

    # ------------------------------------------------------------------------------------------------ the border

    def _ask(self, policy: Policy) -> None:
        self._next = policy
        if self._between_steps():
            self._switch()

    def _between_steps(self) -> bool:
        return threading.get_ident() == self._stepper and self._session._at_border()

    def _switch(self) -> None:
        policy, self._next = self._next, None
        if policy is not None:
            self._session._enable(policy)
            self._trial_running = self._trial is not None and policy is self._trial.policy

    def step_ended(self, summary: StepSummary) -> None:
        """A step has ended: note what a trial measured, and switch if somebody asked for it. Takes no lock: the session
        holds it while a step ends."""
        self._stepper = threading.get_ident()
        trial = self._trial
        if trial is not None and self._trial_running:
            self._trial_left -= 1
            if self._trial_left < trial.steps:
                trial.measured.append(_measured(summary))
            if self._session.stage.value != "Stable":
                self._end_trial("the ops changed")
            elif self._trial_left == 0:
                self._end_trial("")
        self._switch()

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

    def end_dry_run(self) -> None:
        """Go back to the policy of before, without waiting for the steps that are left."""
        with self.lock:
            self._end_trial("stopped")


def _measured(summary: StepSummary) -> Measured:
    return Measured(
        peak_bytes=summary.peak_bytes,
        step_s=summary.step_s,
        stall_s=summary.stall_s,
        overlap=summary.overlap,
        swapped_out_bytes=summary.swapped_out_bytes,
        swapped_in_bytes=summary.swapped_in_bytes,
        evictions=summary.evictions,
        replay_s=summary.replay_s,
        replayed_bytes=summary.dropped_bytes,
        demand_swap_ins=summary.demand_swap_ins,
        match_rate=summary.match_rate,
    )


def _median(steps: Sequence[Measured], name: str) -> float | None:
    """The median of one figure; None where no step has it."""
    known = [value for step in steps if (value := getattr(step, name)) is not None]
    return statistics.median(known) if known else None


def _apart(before: float | None, after: float | None, is_share: bool) -> str:
    """How much more a figure is than it was; empty where one of them is unknown."""
    if before is None or after is None or (not is_share and not before):
        return ""
    apart = 100 * (after - before if is_share else after / before - 1)
    return f"{round(apart, 1) + 0.0:+.1f} {'points' if is_share else '%'}"
