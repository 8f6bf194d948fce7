"""What should happen: policies, and the pure functions that generate, simulate and compile them."""

from .diff import PolicyDiff, diff
from .generate import plan
from .memory import Floor, floor
from .model import Decision, Link, Policy
from .simulate import Prediction, simulate

__all__ = [
    "Decision",
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
