"""Policies as documents. The planner generates, simulates and bounds them."""

from __future__ import annotations

from .._lazy import at_first_use, names_in
from .decision import Decision
from .diff import PolicyDiff, diff
from .edits import Edit, EditAction, EditsUnreachableError, Fault, Finding
from .link import Link
from .model import Policy

__all__ = [
    "Decision",
    "Edit",
    "EditAction",
    "EditsUnreachableError",
    "Fault",
    "Finding",
    "Link",
    "Policy",
    "PolicyDiff",
    "diff",
]

_IN_PLANNER = names_in("planner")
"""They were offered here before the planner had a package of its own."""


def __getattr__(name: str) -> object:
    if name not in _IN_PLANNER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return at_first_use(name)
