"""Dry runs: measurements of a draft in a few steps, beside its prediction."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..planner import Prediction
from ..policy import Policy
from ..util.units import NOTHING, format_bytes, format_percent, format_seconds
from .session_report import StepSummary

_MOST_NOW = 8


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

    @classmethod
    def of(cls, summary: StepSummary) -> Measured:
        """What was measured in a finished step."""
        return cls(
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

    @classmethod
    def newest(cls, history: Sequence[StepSummary]) -> Measured | None:
        """The median of the newest steps that followed the plan of the newest one, at most 8; None before the first."""
        history = history[-_MOST_NOW:]
        same = []
        for step in reversed(history):
            if (step.stage, step.plan) != (history[-1].stage, history[-1].plan) or not step.ops:
                break
            same.append(cls.of(step))
        if not same:
            return None
        figures = {figure.name: _median(same, figure.name) for figure in fields(cls)}
        return cls(**figures)  # type: ignore[arg-type]  # None for what may be None alone


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
        for what, name, shown in FIGURES:
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
        names = [name for _, name, _ in FIGURES]
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

FIGURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("Peak", "peak_bytes", format_bytes),
    ("Step", "step_s", format_seconds),
    ("Stall", "stall_s", format_seconds),
    ("Replays", "replay_s", format_seconds),
    ("Overlap", "overlap", format_percent),
    ("Out", "swapped_out_bytes", format_bytes),
    ("In", "swapped_in_bytes", format_bytes),
)
"""What a plan costs: each figure's label, its name in a prediction, and how it is written."""


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
