"""Planning for a running session: obeys as many edits as the capacity allows, and names the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..policy.edits import Edit, EditAction, EditsUnreachableError, digest
from ..policy.link import Link
from ..policy.model import Policy
from ..trace import StepTrace
from ..util.units import format_bytes
from .generate import plan
from .program import Program, compile_program
from .simulate import simulate


def plan_obeying(
    step: StepTrace, capacity_bytes: int, link: Link, edits: Sequence[Edit], **options: Any
) -> tuple[Policy, list[str]]:
    """The plan under the edits, less those that no plan can obey; and a line for everything wrong with them.

    An edit that asks for more than ``capacity_bytes`` is left out; then, until a plan fits, the edit that keeps most.
    All edits stay in the policy, which names those that were left out in ``disobeyed``: they are tried again where
    somebody plans next. ``options`` go to :func:`~chameleon_lab.planner.plan`.

    Raises BelowFloorError if no policy fits even without edits.
    """
    remarks, obeyed = [], []
    for number, edit in enumerate(edits, 1):
        if edit.action is EditAction.CAPACITY and (edit.capacity_bytes or 0) > capacity_bytes:
            remarks.append(f"edit {number} ({edit}) is not obeyed: there are {format_bytes(capacity_bytes)}")
        else:
            obeyed.append((number, edit))
    while True:
        try:
            made = plan(step, capacity_bytes, link, edits=[edit for _, edit in obeyed], **options)
        except EditsUnreachableError as error:
            worst = error.findings[0]
            number, _ = obeyed.pop(worst.index)
            remarks.append(f"not obeyed: {dataclasses.replace(worst, index=number - 1)}")
            continue
        findings = [dataclasses.replace(f, index=obeyed[f.index][0] - 1) for f in made.findings]
        remarks += [str(finding) for finding in findings]
        assumed = dict(made.assumed)
        if left_out := sorted(set(range(len(edits))) - {number - 1 for number, _ in obeyed}):
            assumed |= {"edits": digest(edits), "disobeyed": left_out}
        made = dataclasses.replace(made, edits=tuple(edits), assumed=assumed, findings=tuple(findings))
        return made, remarks


@dataclass(frozen=True)
class BoundPlan:
    """A policy without its ``source``, bound to the step that it was made from."""

    policy: Policy
    program: Program
    remarks: tuple[str, ...]
    """What is wrong with the edits."""
    gained_s: float
    """Seconds that a step is predicted to take less than under the policy ``before``, on the link less its margin; 0
    without one."""
    quick: bool
    """Was it made without a long search, so that one may find a better plan?"""


def plan_and_bind(
    step: StepTrace,
    capacity_bytes: int,
    link: Link,
    edits: Sequence[Edit],
    *,
    before: Policy | None = None,
    quick: bool = False,
    **options: Any,
) -> BoundPlan:
    """:func:`plan_obeying`, and the policy bound to the step. It can be called in another process: what it returns
    holds all that the caller needs.
    """
    made, remarks = plan_obeying(step, capacity_bytes, link, edits, quick=quick, **options)
    program, gained_s = compile_program(made, step), 0.0
    if before is not None:
        link = made.link.reduced(made.assumed.get("link_margin", 0.0))
        old, new = (simulate(step, policy, link=link, op_times=made.op_times) for policy in (before, made))
        gained_s = old.step_s - new.step_s
    return BoundPlan(dataclasses.replace(made, source=None), program, tuple(remarks), gained_s, quick)
