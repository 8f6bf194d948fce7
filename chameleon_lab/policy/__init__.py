"""What should happen: policies, and the pure functions that generate, simulate, bound and compile them."""

from .bound import Bound, lower_bound
from .diff import PolicyDiff, diff
from .generate import plan
from .memory import Floor, floor
from .model import Decision, Link, Policy
from .simulate import OpStall, Prediction, StallCause, simulate
from .sweep import Sweep, SweepPoint, sweep

__all__ = [
    "Bound",
    "Decision",
    "Floor",
    "Link",
    "OpStall",
    "Policy",
    "PolicyDiff",
    "Prediction",
    "StallCause",
    "Sweep",
    "SweepPoint",
    "diff",
    "floor",
    "lower_bound",
    "plan",
    "simulate",
    "sweep",
]
