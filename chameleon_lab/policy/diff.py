"""The differences between two policies: decisions by storage and gap, edits, and conditions."""

from __future__ import annotations

import difflib
import html
from dataclasses import asdict, dataclass
from typing import Any

from ..util.units import format_bytes
from .edits import Edit
from .link import Link
from .model import Action, Decision, Policy

_SHOWN = 20
"""Decisions of each kind that the text and the HTML list; ``to_dict`` holds all."""


@dataclass(frozen=True, repr=False)
class PolicyDiff:
    """The way from policy ``a`` to policy ``b``. False where there is no difference."""

    added: tuple[Decision, ...]
    """Decisions of ``b`` on gaps that ``a`` leaves alone."""
    removed: tuple[Decision, ...]
    """Decisions of ``a`` on gaps that ``b`` leaves alone."""
    changed: tuple[tuple[Decision, Decision], ...]
    """Decisions on the same gap that differ, as (of ``a``, of ``b``)."""
    conditions: dict[str, tuple[Any, Any]]
    """What else differs, by name (``capacity_bytes``, ``link``, ``assumed.*``, ``predicted.*``), as (of ``a``, of
    ``b``); None where one has no such value."""
    edits_added: tuple[Edit, ...] = ()
    """Edits of ``b`` that ``a`` does not have there. One that stands elsewhere is removed and added: order decides."""
    edits_removed: tuple[Edit, ...] = ()
    """Edits of ``a`` that ``b`` does not have there."""

    def __bool__(self) -> bool:
        return bool(
            self.added
            or self.removed
            or self.changed
            or self.conditions
            or self.edits_added
            or self.edits_removed
        )

    def to_dict(self) -> dict[str, Any]:
        """The difference as plain JSON values."""
        return {
            "edits_added": [edit.to_dict() for edit in self.edits_added],
            "edits_removed": [edit.to_dict() for edit in self.edits_removed],
            "added": [asdict(decision) for decision in self.added],
            "removed": [asdict(decision) for decision in self.removed],
            "changed": [{"from": asdict(before), "to": asdict(after)} for before, after in self.changed],
            "conditions": {
                name: {"from": before, "to": after} for name, (before, after) in self.conditions.items()
            },
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """The table: sign (``+``, ``-``, ``~``), what, and how it differs. All rows, in order."""
        rows = [
            ("~", name, f"{_shown(name, before)} -> {_shown(name, after)}")
            for name, (before, after) in self.conditions.items()
        ]
        rows += [("-", "edit", _noted(edit)) for edit in self.edits_removed]
        rows += [("+", "edit", _noted(edit)) for edit in self.edits_added]
        rows += [("-", _gap(decision), _described(decision)) for decision in self.removed]
        rows += [("+", _gap(decision), _described(decision)) for decision in self.added]
        rows += [("~", _gap(after), _change(before, after)) for before, after in self.changed]
        return rows

    def __str__(self) -> str:
        if not self:
            return "The policies are the same"
        lines = [self._headline()]
        lines += [f"  {sign} {what}: {how}" for sign, what, how in self._listed()]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self:
            return "<p>The policies are the same</p>"
        rows = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in self._listed()
        )
        return f"<table><caption>{html.escape(self._headline())}</caption>{rows}</table>"

    def _headline(self) -> str:
        swapped, dropped = self._more(Action.SWAP), self._more(Action.REMATERIALIZE)
        replays = f", {_signed(dropped)} rematerialized" if dropped else ""
        count = len(self.edits_added), len(self.edits_removed)
        edits = f"; {count[0]} edits added, {count[1]} removed" if any(count) else ""
        return (
            f"Policies differ: {len(self.added)} decisions added, {len(self.removed)} removed, "
            f"{len(self.changed)} changed ({_signed(swapped)} swapped{replays}){edits}"
        )

    def _more(self, action: Action) -> int:
        """Bytes of the decisions of ``action``: how many more ``b`` has."""
        after = [*self.added, *(decision for _, decision in self.changed)]
        before = [*self.removed, *(decision for decision, _ in self.changed)]
        return sum(d.bytes for d in after if d.action is action) - sum(
            d.bytes for d in before if d.action is action
        )

    def _listed(self) -> list[tuple[str, str, str]]:
        """The rows, with all but the first few of each kind counted in one."""
        listed: list[tuple[str, str, str]] = []
        whole = (self.conditions, self.edits_removed, self.edits_added)
        kinds = (*whole, self.removed, self.added, self.changed)
        rows = iter(self.rows())
        for kind in kinds:
            mine = [next(rows) for _ in kind]
            if not any(kind is one for one in whole) and len(mine) > _SHOWN:
                mine[_SHOWN:] = [(mine[0][0], f"{len(mine) - _SHOWN} more", "see to_dict()")]
            listed += mine
        return listed


def diff(a: Policy, b: Policy) -> PolicyDiff:
    """What has to change in ``a`` to get ``b``. Decisions are compared by storage and gap, in program order."""
    before = {(decision.storage, decision.gap): decision for decision in a.decisions}
    after = {(decision.storage, decision.gap): decision for decision in b.decisions}
    edits_added, edits_removed = _edits(a.edits, b.edits)
    return PolicyDiff(
        added=tuple(decision for gap, decision in after.items() if gap not in before),
        removed=tuple(decision for gap, decision in before.items() if gap not in after),
        changed=tuple(
            (before[gap], decision)
            for gap, decision in after.items()
            if gap in before and before[gap] != decision
        ),
        conditions=_conditions(a, b),
        edits_added=edits_added,
        edits_removed=edits_removed,
    )


def _edits(a: tuple[Edit, ...], b: tuple[Edit, ...]) -> tuple[tuple[Edit, ...], tuple[Edit, ...]]:
    """Edits added and removed on the way from ``a`` to ``b``, each in order."""
    steps = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    changed = [step for step in steps if step[0] != "equal"]
    added = [edit for _, _, _, begin, end in changed for edit in b[begin:end]]
    removed = [edit for _, begin, end, _, _ in changed for edit in a[begin:end]]
    return tuple(added), tuple(removed)


def _noted(edit: Edit) -> str:
    return f"{edit} ({edit.note})" if edit.note else str(edit)


def _conditions(a: Policy, b: Policy) -> dict[str, tuple[Any, Any]]:
    pairs: dict[str, tuple[Any, Any]] = {
        "capacity_bytes": (a.capacity_bytes, b.capacity_bytes),
        "link": (asdict(a.link), asdict(b.link)),
    }
    for name in ("assumed", "predicted"):
        one, other = getattr(a, name), getattr(b, name)
        pairs |= {f"{name}.{key}": (one.get(key), other.get(key)) for key in {**one, **other}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _signed(size: int) -> str:
    return ("-" if size < 0 else "+") + format_bytes(abs(size))


def _gap(decision: Decision) -> str:
    return f"{decision.storage}, gap {decision.gap}"


def _described(decision: Decision) -> str:
    return (
        f"{decision.action} {format_bytes(decision.bytes)}, out {decision.out_op}, free {decision.free_op}, "
        f"in {decision.in_op}, use {decision.use_op}, by {decision.decided_by}"
        + (f", retains {', '.join(decision.retains)}" if decision.retains else "")
    )


def _change(before: Decision, after: Decision) -> str:
    old, new = asdict(before), asdict(after)
    return ", ".join(
        f"{name} {_shown(name, old[name])} -> {_shown(name, new[name])}"
        for name in old
        if old[name] != new[name]
    )


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool | str | None):
        return "none" if value is None else str(value)
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    if isinstance(value, dict):
        return str(Link(**value)) if name == "link" else str(value)
    if name.endswith("bytes"):
        return f"{format_bytes(value)} ({value})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
