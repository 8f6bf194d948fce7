"""What should happen: policies, and the pure functions that generate, simulate, bound, edit and compile them."""

from .bound import Bound, lower_bound
from .diff import PolicyDiff, diff
from .draft import Draft
from .edits import Edit, EditAction, EditsUnreachableError, Fault, Finding
from .generate import plan
from .memory import Floor, floor
from .model import Decision, Link, Policy
from .simulate import OpStall, Prediction, StallCause, simulate
from .suggest import Suggestion, suggest
from .sweep import Sweep, SweepPoint, sweep

__all__ = [
    "Bound",
    "Decision",
    "Draft",
    "Edit",
    "EditAction",
    "EditsUnreachableError",
    "Fault",
    "Finding",
    "Floor",
    "Link",
    "OpStall",
    "Policy",
    "PolicyDiff",
    "Prediction",
    "StallCause",
    "Suggestion",
    "Sweep",
    "SweepPoint",
    "diff",
    "floor",
    "lower_bound",
    "plan",
    "simulate",
    "suggest",
    "sweep",
]
