"""A policy: a list of decisions on gaps, with its conditions and its prediction.

A policy is a hint. The executor obeys a decision where it still fits the live ops and skips it where it does
not, so that a stale or wrong policy costs time and never correctness. It has two layers: the edits of a person,
and the decisions that were generated under them. :mod:`chameleon_lab.policy.file` is its file format.
"""

from __future__ import annotations

import hashlib
import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import at_first_use
from ..errors import PolicyError
from ..trace import StepTrace, Trace
from ..trace.trace import newest_step
from ..util.files import invalid_name_reason, printable, unusable_reason, write_then_rename
from ..util.units import format_bytes
from . import file
from .decision import NEVER, PLANNER, USER, Action, Decision
from .edits import Edit, Finding, digest
from .file import VERSION
from .link import Link

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["NEVER", "PLANNER", "USER", "VERSION", "Action", "Decision", "Link", "Policy", "fingerprint"]

_MOST_BYTES = 1 << 30  # of a file
_PLAN_OPTIONS = (
    *("min_swap_bytes", "margin", "link_margin", "reserve_bytes"),
    *("rematerialize", "refused", "host_capacity_bytes"),
)
"""Keyword arguments of planning that a policy remembers in ``assumed``."""


@dataclass(frozen=True)
class Policy:
    """Decisions for a training step, the conditions they were made for, and what they should achieve.

    Gaps without a decision are kept. Raises PolicyError if two decisions name the same gap of the same
    storage.
    """

    capacity_bytes: int
    link: Link
    decisions: tuple[Decision, ...]
    assumed: dict[str, Any] = field(default_factory=dict)
    """The step it was made for: ``fingerprint`` (see :func:`fingerprint`), ``ops``, ``torch``,
    ``live_peak_bytes``, ``min_swap_bytes``, ``margin``; where there are such, ``link_margin``, ``reserve_bytes``; where
    host memory was bounded, ``host_capacity_bytes``; where replays were
    allowed, ``rematerialize`` (the highest class of ops)
    and ``refused`` (names of ops and keys of storages). Values are plain JSON."""
    predicted: dict[str, Any] = field(default_factory=dict)
    """What :func:`~chameleon_lab.planner.simulate` says of it: ``peak_bytes``, ``step_s``, ``stall_s``,
    ``overlap`` (None where nothing is copied), ``swapped_out_bytes``, ``swapped_in_bytes``, ``host_peak_bytes``; where
    replays were allowed, ``replay_s`` and ``replayed_bytes``. Values are plain JSON."""
    edits: tuple[Edit, ...] = ()
    """The user's layer, in order. The decisions are what the planner made of it, see :attr:`is_current`."""
    findings: tuple[Finding, ...] = field(default=(), compare=False)
    """What was wrong with the edits when the decisions were made, one entry an edit and fault. Not in the file."""
    source: StepTrace | None = field(default=None, compare=False, repr=False)
    """The step that the decisions were made for. The file holds what binding and planning need of it."""
    op_times: np.ndarray | None = field(default=None, compare=False, repr=False)
    """Compute seconds of each op that the decisions were made with, float64 (ops,); None where nobody told any. A
    session tells the fewest of several steps, which no step alone shows. Not in the file."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "decisions", tuple(self.decisions))
        object.__setattr__(self, "edits", tuple(self.edits))
        seen: set[tuple[str, int]] = set()
        for decision in self.decisions:
            gap = (decision.storage, decision.gap)
            if gap in seen:
                raise PolicyError(f"two decisions on {gap[0]!r}, gap {gap[1]}: delete one of them")
            seen.add(gap)

    def __len__(self) -> int:
        return len(self.decisions)

    @property
    def swaps(self) -> tuple[Decision, ...]:
        """The decisions that swap."""
        return tuple(decision for decision in self.decisions if decision.action is Action.SWAP)

    @property
    def drops(self) -> tuple[Decision, ...]:
        """The decisions that rematerialize."""
        return tuple(decision for decision in self.decisions if decision.action is Action.REMATERIALIZE)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to ``path``: to a file beside it first, which then takes its place.

        Raises PolicyError if ``assumed`` or ``predicted`` hold something that JSON cannot, or if no file can have this
        name, OSError if the file cannot be written.
        """
        wrong = invalid_name_reason(path) or ("" if Path(path).name else "this names no file")
        if wrong:
            raise PolicyError(f"{printable(path)}: {wrong}; give another name")
        text = self.to_json()
        with write_then_rename(path) as beside:
            beside.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read what :meth:`save` wrote.

        Raises PolicyError, naming file, place, value and way out, if the file is truncated, of another
        version, or has a field missing, unknown or of the wrong type; OSError if it cannot be read.
        """
        if (odd := unusable_reason(path, _MOST_BYTES)) is not None:
            raise PolicyError(f"{printable(path)}: {odd}; give a file that Policy.save wrote")
        with open(path, "rb") as opened:
            data = opened.read()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PolicyError(
                f"{path}, byte {error.start}: this is no policy file, its text is not UTF-8"
            ) from error
        return cls.from_json(text, source=str(path))

    def to_json(self) -> str:
        """The text of the policy file."""
        return file.to_json({name: getattr(self, name) for name in file.FIELDS})

    @classmethod
    def from_json(cls, text: str, source: str = "policy") -> Policy:
        """Read the text of a policy file; errors call it ``source``. Raises PolicyError as :meth:`load` does."""
        values = file.from_json(text, source)
        try:
            return cls(**values)
        except PolicyError as error:
            raise PolicyError(f"{source}: {error}") from error

    @property
    def is_current(self) -> bool:
        """Were the decisions made under these very edits? Not if somebody changed the edits in the file."""
        return bool(self.assumed.get("edits", digest(())) == digest(self.edits))

    @property
    def host_capacity_bytes(self) -> int | None:
        """Host bytes that its copies may take at once; None: no limit."""
        return self.assumed.get("host_capacity_bytes")

    @property
    def disobeyed(self) -> tuple[int, ...]:
        """Positions in ``edits`` of those that no plan could obey; the decisions were made without them."""
        return tuple(self.assumed.get("disobeyed", ()))

    @property
    def plan_options(self) -> dict[str, Any]:
        """The conditions that it was planned under, but for its edits and its op times, as keyword arguments of
        :func:`~chameleon_lab.planner.plan`."""
        return {"rematerialize": 0, "refused": ()} | {
            name: self.assumed[name] for name in _PLAN_OPTIONS if name in self.assumed
        }

    def draft(
        self, trace: Trace | StepTrace | None = None, op_times: Sequence[float] | np.ndarray | None = None
    ) -> Any:
        """A copy to edit, see :class:`~chameleon_lab.planner.draft.Draft`.

        Plans for the newest step of ``trace``, or the one that the policy was made for. ``op_times`` are those of
        :func:`~chameleon_lab.planner.simulate`. Raises PolicyError if neither step is there.
        """
        return at_first_use("Draft")(self, trace, op_times)

    def gantt(self, trace: Trace | StepTrace | None = None) -> Any:
        """The decisions as bars over the ops of a step: a widget in a notebook, and a page of HTML.

        A :class:`~chameleon_lab.lab.figures.gantt.Gantt`.
        ``trace`` is the step (the newest of a trace) to draw them over; None: the one that the policy was made for.
        To edit, use ``policy.draft().gantt()``. Raises PolicyError if neither step is there, MissingPackageError
        without bokeh.
        """
        return at_first_use("Gantt")(self, self._step(trace))

    def sweep_figure(self, trace: Trace | StepTrace | None = None) -> go.Figure:
        """Step time against capacity, predicted for the policy's link: the floor, the knee, and where this one is.

        ``trace`` as for :meth:`gantt`. Curve and policy are on one clock, which the figure names: the op times that the
        policy was planned with, see :attr:`op_times`; where it has none, or for other ops, those of the step. Raises
        PolicyError if neither step is there, MissingPackageError without plotly.
        """
        step = self._step(trace)
        return at_first_use("policy_sweep_figure")(self, trace if isinstance(trace, Trace) else step)

    def _step(self, trace: Trace | StepTrace | None) -> StepTrace:
        given = self.source if trace is None else trace
        if given is None:
            raise PolicyError("the policy has no step: give one, such as session.trace()")
        return newest_step(given)

    def summary(self, action: Action = Action.SWAP) -> list[tuple[str, int, int]]:
        """Per category: its name, how many gaps are swapped (or what ``action`` says), and the bytes of their blocks.

        Largest first.
        """
        totals: dict[str, tuple[int, int]] = {}
        for decision in self.decisions:
            if decision.action is action:
                count, size = totals.get(decision.category, (0, 0))
                totals[decision.category] = (count + 1, size + decision.bytes)
        rows = [(category, count, size) for category, (count, size) in totals.items()]
        return sorted(rows, key=lambda row: (-row[2], row[0]))

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [
            f"  {category:<16} {count:>6} gaps {format_bytes(size):>12}{how}"
            for category, count, size, how in self._rows()
        ]
        lines += [f"  edit {number}: {edit}" for number, edit in enumerate(self.edits, 1)]
        lines += [f"  {finding}" for finding in self.findings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(category.replace('_', ' '))}</td><td>{count}</td>"
            f"<td>{format_bytes(size)}{how}</td></tr>"
            for category, count, size, how in self._rows()
        )
        table = (
            f"<table><tr><th>category</th><th>gaps {'away' if self.drops else 'swapped'}</th><th>bytes</th></tr>"
            f"{rows}</table>"
            if rows
            else ""
        )
        edits = "".join(f"<li>{html.escape(str(edit))}</li>" for edit in self.edits)
        findings = "".join(f"<p>{html.escape(str(finding))}</p>" for finding in self.findings)
        edits = f"<ol>{edits}</ol>" if edits else ""
        return f"<div><p>{html.escape(self._headline())}</p>{table}{edits}{findings}</div>"

    def _rows(self) -> list[tuple[str, int, int, str]]:
        """Category, gaps, bytes of what is swapped, then of what is rematerialized; and which of the two, if both."""
        swapped, dropped = self.summary(), self.summary(Action.REMATERIALIZE)
        return [(*row, " swapped" if dropped else "") for row in swapped] + [
            (*row, " rematerialized") for row in dropped
        ]

    def _headline(self) -> str:
        what = f"{len(self.swaps)} swaps" + (f", {len(self.drops)} replays" if self.drops else "")
        text = f"Policy: {what}, capacity {format_bytes(self.capacity_bytes)}"
        peak = self.assumed.get("live_peak_bytes")
        if isinstance(peak, int):
            text += f" of {format_bytes(peak)} live"
        stall, step = self.predicted.get("stall_s"), self.predicted.get("step_s")
        replay = self.predicted.get("replay_s", 0.0)
        numbers = [value for value in (step, stall, replay) if isinstance(value, (int, float))]
        if len(numbers) == 3 and numbers[0] > numbers[1] + numbers[2]:
            step, stall, replay = numbers
            compute = step - stall - replay
            text += f", predicted stall {100 * stall / compute:.1f} % of compute"
            if replay:
                text += f" and replays {100 * replay / compute:.1f} %"
        return text


def fingerprint(step: StepTrace) -> str:
    """Hash of the op sequence of a step: names and stages in program order. 16 hex digits.

    Steps of equal fingerprint may still differ in shapes, and so in bytes.
    """
    sequence = hashlib.sha256("\n".join(step.names[name] for name in step.ops.name.tolist()).encode())
    sequence.update(step.ops.stage.astype("uint8").tobytes())
    return sequence.hexdigest()[:16]
