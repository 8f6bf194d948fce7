"""What the edits of a draft come to: their plan, and what it does with each row.

These functions take long. They are called in the planner's process. What they return is without the step, which
whoever asks has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import BelowFloorError
from ...planner import Draft, Prediction, plan
from ...planner.memory import MIN_SWAP_BYTES
from ...policy import Edit, EditsUnreachableError, Finding, Link, Policy
from ...trace import Trace
from .decisions import Candidates, Judged, RowActions


@dataclass(frozen=True, eq=False)
class DraftPlan:
    """What some edits come to.

    Attributes:
        edits: the edits.
        exact: planned; else it is an estimate, and a plan follows.
        policy, figures: None where no policy fits the capacity.
        findings: what is wrong with the edits. Known of a plan alone.
        error: why no policy fits, or an empty string.
        draft: the draft that planned it, which a dry run takes.
    """

    edits: tuple[Edit, ...]
    exact: bool
    policy: Policy | None
    figures: Judged | None
    findings: tuple[Finding, ...] = ()
    error: str = ""
    draft: Draft | None = None

    @property
    def prediction(self) -> Prediction | None:
        """What a step takes under it."""
        return None if self.figures is None else self.figures.prediction

    @property
    def rows(self) -> RowActions | None:
        """What it does with each row."""
        return None if self.figures is None else self.figures.rows


def candidates_of(draft: Draft) -> Candidates:
    """The rows of a draft's table: what a policy made under the conditions of its base can decide about."""
    options = draft.base.plan_options
    return Candidates(
        draft.step,
        draft.op_times,
        options.get("min_swap_bytes", MIN_SWAP_BYTES),
        options["rematerialize"],
        tuple(options["refused"]),
    )


def first_plan(trace: Trace, capacity_bytes: int, link: Link, **options: Any) -> Policy:
    """:func:`~chameleon_lab.planner.plan`, without the policy's ``source``."""
    return replace(plan(trace, capacity_bytes, link, **options), source=None)


def planned(draft: Draft, *, anew: bool) -> DraftPlan:
    """Plan for a draft; the policy has no ``source``. ``anew``: as :meth:`Draft.planned_anew` does."""
    try:
        policy = draft.planned_anew() if anew else draft.policy()
    except EditsUnreachableError as error:
        return DraftPlan(draft.edits, True, None, None, error.all_findings, str(error))
    except BelowFloorError as error:
        return DraftPlan(draft.edits, True, None, None, (), str(error))
    (figures,) = judged(draft, [policy])
    return DraftPlan(draft.edits, True, replace(policy, source=None), figures, policy.findings)


def judged(draft: Draft, policies: Sequence[Policy]) -> list[Judged]:
    """What policies come to on a draft's op times."""
    candidates = candidates_of(draft)
    found = map(candidates.judged, policies)
    return [one.with_step(None) for one in found]
