"""Staged editing: change a copy of a policy, predict its effect, and only then run it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._lazy import at_first_use
from ..errors import BelowFloorError, PolicyError
from ..policy.diff import PolicyDiff, diff
from ..policy.edits import Edit, EditAction, EditsUnreachableError, Finding
from ..policy.link import Link
from ..policy.model import Policy
from ..trace import StepTrace, Trace
from ..trace.trace import plannable_step
from .arguments import checked_capacity, checked_link
from .constraints import conditions
from .generate import plan, refused_of
from .memory import step_op_times
from .simulate import Prediction, simulate


class Draft:
    """A policy being edited. Nothing runs under it before ``session.dry_run`` or ``session.enable``.

    Changes add an edit to the list, or take some away; each can be undone. The decisions are generated anew under
    the edits when somebody asks for them, and are then remembered.

    Args:
        base: the policy that is edited. It never changes.
        trace: the step (the newest of a trace) to plan for; None: the one that the policy was made for.
        op_times: compute seconds of each op, shape (ops,), for planning and predicting; None: those of the step.

    Raises:
        PolicyError: there is no step to plan for.
        ValueError: ``op_times`` does not fit the step.
    """

    def __init__(
        self,
        base: Policy,
        trace: Trace | StepTrace | None = None,
        op_times: Sequence[float] | np.ndarray | None = None,
    ) -> None:
        given_step = base.source if trace is None else trace
        if given_step is None:
            raise PolicyError("the policy has no step: give one, draft(session.trace())")
        self.base = base
        self.step = plannable_step(given_step)
        # Of its own step the base knows what is not replayed.
        refused = frozenset() if trace is None or self.step is base.source else refused_of(None, trace)
        self._refused = refused.union(base.assumed.get("refused", ()))
        recorded = trace.meta.get("torch") if isinstance(trace, Trace) else None
        self._torch = recorded or (base.assumed.get("torch") if trace is None else None)
        self._op_times = step_op_times(self.step, op_times)
        # A policy file's step has none.
        self._knows_times = op_times is not None or bool(self.step.ops.duration_s.any())
        given = base.assumed.get("without_edits") or {}
        self._capacity_bytes = int(given.get("capacity_bytes", base.capacity_bytes))
        self._link = Link(**given["link"]) if "link" in given else base.link
        self._edits = base.edits
        self._past: list[tuple[Edit, ...]] = []
        self._future: list[tuple[Edit, ...]] = []
        self._made: tuple[tuple[Edit, ...], Policy] | None = None

    def rebase(
        self,
        base: Policy,
        trace: Trace | StepTrace | None = None,
        op_times: Sequence[float] | np.ndarray | None = None,
    ) -> Draft:
        """A draft of another policy with the same edits, and the same changes to take back. Arguments as for a new
        draft."""
        other = Draft(base, trace, op_times)
        other._edits, other._past, other._future = self._edits, list(self._past), list(self._future)
        return other

    def retimed(self, op_times: Sequence[float] | np.ndarray, policy: Policy | None = None) -> Draft:
        """The same draft on other op times, with the same changes to take back.

        ``policy``: what its edits were planned to be, which then stays; else they are planned for anew.
        """
        other = self.rebase(self.base, self.step, op_times)
        if policy is not None:
            other._made = (self._edits, policy)
        return other

    @property
    def op_times(self) -> np.ndarray:
        """Compute seconds of each op that plans and predictions assume, float64 (ops,)."""
        return self._op_times

    # ------------------------------------------------------------------------------------------------ change

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits as they stand, in order. Later ones decide over earlier ones of the same rank."""
        return self._edits

    @edits.setter
    def edits(self, edits: Sequence[Edit]) -> None:
        edits = tuple(edits)
        wrong = next((edit for edit in edits if not isinstance(edit, Edit)), None)
        if wrong is not None:
            raise TypeError(f"edits are Edit objects, not {type(wrong).__name__}: make one with Edit(...)")
        if edits != self._edits:
            self._past.append(self._edits)
            self._future.clear()
            self._edits = edits

    def add(self, edit: Edit) -> Draft:
        """Put an edit behind the others."""
        self.edits = (*self._edits, edit)
        return self

    def keep(self, storage: str | None = None, **target: Any) -> Draft:
        """Keep a storage, or those of a rule, on the device. ``target``: the selectors of :class:`Edit`."""
        return self.add(Edit(EditAction.KEEP, storage, **target))

    def swap(self, storage: str | None = None, **target: Any) -> Draft:
        """Swap a storage, or those of a rule, in the gap named or the longest one."""
        return self.add(Edit(EditAction.SWAP, storage, **target))

    def never_touch(self, storage: str | None = None, **target: Any) -> Draft:
        """Keep a storage, or those of a rule, and evict it last of all."""
        return self.add(Edit(EditAction.NEVER_TOUCH, storage, **target))

    def rematerialize(self, storage: str | None = None, **target: Any) -> Draft:
        """Drop a storage, or those of a rule, in the gap named or the longest one, and replay what made it."""
        return self.add(Edit(EditAction.REMATERIALIZE, storage, **target))

    def never_rematerialize(self, storage: str | None = None, **target: Any) -> Draft:
        """Never drop a storage, or those of a rule: it stays or is swapped."""
        return self.add(Edit(EditAction.NEVER_REMATERIALIZE, storage, **target))

    def prefetch(self, storage: str | None = None, *, ops_earlier: int, **target: Any) -> Draft:
        """Bring back earlier by so many ops, or later where it is negative."""
        return self.add(Edit(EditAction.PREFETCH, storage, ops_earlier=ops_earlier, **target))

    def set_capacity(self, capacity: int | float | str) -> Draft:
        """Plan for another capacity: ``"512MiB"``, say, or ``"60%"`` of what the step keeps alive."""
        size = checked_capacity(capacity, self.step, "capacity")
        return self._set(Edit(EditAction.CAPACITY, capacity_bytes=size))

    def set_link(self, link: Link | float | str | tuple[float | str, float | str]) -> Draft:
        """Plan for another link: one bandwidth, such as ``"8GiB/s"``, a pair (out, in) or ``"OUT,IN"``."""
        return self._set(Edit(EditAction.LINK, link=checked_link(link)))

    def _set(self, edit: Edit) -> Draft:
        self.edits = (*(other for other in self._edits if other.action is not edit.action), edit)
        return self

    def remove(self, edit: int | Edit) -> Draft:
        """Take back an edit, by its position or itself. Raises PolicyError if there is no such edit."""
        index = (
            edit if isinstance(edit, int) else next((k for k, e in enumerate(self._edits) if e == edit), None)
        )
        if index is None or not 0 <= index < len(self._edits):
            raise PolicyError(f"the draft has {len(self._edits)} edits, and not {edit}: see draft.edits")
        self.edits = self._edits[:index] + self._edits[index + 1 :]
        return self

    def replace(self, index: int, edit: Edit) -> Draft:
        """Put an edit in the place of another. Raises PolicyError if there is none at ``index``."""
        if not 0 <= index < len(self._edits):
            raise PolicyError(f"the draft has {len(self._edits)} edits, and none at {index}: see draft.edits")
        self.edits = (*self._edits[:index], edit, *self._edits[index + 1 :])
        return self

    def undo(self) -> bool:
        """Take back the last change. False where there is none."""
        return self._go(self._past, self._future)

    def redo(self) -> bool:
        """Make the change again that was undone last. False where there is none."""
        return self._go(self._future, self._past)

    def _go(self, source: list[tuple[Edit, ...]], target: list[tuple[Edit, ...]]) -> bool:
        if not source:
            return False
        target.append(self._edits)
        self._edits = source.pop()
        return True

    @property
    def can_undo(self) -> bool:
        """Is there a change to take back?"""
        return bool(self._past)

    @property
    def can_redo(self) -> bool:
        """Is there an undone change?"""
        return bool(self._future)

    # ------------------------------------------------------------------------------------------------ look

    @property
    def capacity_bytes(self) -> int:
        """What it plans for: what the last edit of the capacity asks for, else what held without edits."""
        return conditions(self._edits, self._capacity_bytes, self._link)[0]

    @property
    def link(self) -> Link:
        """The link that it plans for, found as :attr:`capacity_bytes` is."""
        return conditions(self._edits, self._capacity_bytes, self._link)[1]

    def policy(self) -> Policy:
        """The policy that the draft stands for. The base itself where nothing was changed and the step is its own.

        Raises BelowFloorError if no policy fits the capacity; EditsUnreachableError if it is the edits' fault.
        """
        return self.base if self.is_base else self._planned()

    @property
    def is_base(self) -> bool:
        """Does it stand for the base itself? Nothing was changed then, and the step is the base's own."""
        unchanged = self._edits == self.base.edits and self.step is self.base.source
        return unchanged and self.base.is_current and not self.base.disobeyed

    def planned_anew(self) -> Policy:
        """:meth:`policy`, but planned on the draft's op times where nothing was changed too.

        Raises what :meth:`policy` does.
        """
        return self._planned()

    def _planned(self) -> Policy:
        if self._made is None or self._made[0] != self._edits:
            made = plan(
                self.step,
                self._capacity_bytes,
                self._link,
                op_times=self._op_times if self._knows_times else None,
                edits=self._edits,
                **self.base.plan_options | {"refused": self._refused},
            )
            if self._torch:
                made = replace(made, assumed=made.assumed | {"torch": self._torch})
            self._made = (self._edits, made)
        return self._made[1]

    def validate(self) -> tuple[Finding, ...]:
        """What is wrong with the edits, one finding an edit and fault. Empty: every edit is obeyed in full.

        Raises BelowFloorError if the capacity is below the floor whatever the edits say.
        """
        try:
            return self._planned().findings  # a file does not hold those of the base
        except EditsUnreachableError as error:
            return error.all_findings

    def predict(self) -> Prediction:
        """What a step would take under the draft. Raises BelowFloorError as :meth:`policy` does."""
        return simulate(self.step, self.policy(), op_times=self._op_times)

    def diff(self) -> PolicyDiff:
        """What the draft changes in its base. Raises BelowFloorError as :meth:`policy` does."""
        return diff(self.base, self.policy())

    def gantt(self) -> Any:
        """The draft as bars over the ops of its step, to edit by selecting them: a widget, and a page of HTML.

        A :class:`~chameleon_lab.lab.figures.draft_gantt.DraftGantt`.
        Raises MissingPackageError without bokeh; BelowFloorError as :meth:`policy` does.
        """
        return at_first_use("DraftGantt")(self)

    def save(self, path: str) -> None:
        """Write :meth:`policy` to a file."""
        self.policy().save(path)

    def __str__(self) -> str:
        lines = [f"Draft: {len(self._edits)} edits"]
        lines += [f"  {number}. {edit}" for number, edit in enumerate(self._edits, 1)]
        try:
            lines += [f"  {finding}" for finding in self.validate()]
            lines.append(f"  {self.predict()}")
        except BelowFloorError as error:
            lines.append(f"  {error}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rest = str(self).splitlines()
        items = "".join(f"<li>{html.escape(line.strip())}</li>" for line in rest)
        return f"<div><p>{html.escape(head)}</p><ul>{items}</ul></div>"
