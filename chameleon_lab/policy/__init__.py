"""What should happen: policies, and the pure functions that generate, simulate, edit and compile them."""

from .diff import PolicyDiff, diff
from .draft import Draft
from .edits import Edit, EditAction, Fault, Finding
from .generate import plan
from .memory import Floor, floor
from .model import Decision, Link, Policy
from .simulate import Prediction, simulate

__all__ = [
    "Decision",
    "Draft",
    "Edit",
    "EditAction",
    "Fault",
    "Finding",
    "Floor",
    "Link",
    "Policy",
    "PolicyDiff",
    "Prediction",
    "diff",
    "floor",
    "plan",
    "simulate",
]
