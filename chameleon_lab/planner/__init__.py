"""The planner: pure functions on traces that generate, simulate, bound, edit and compile policies."""

from .bound import Bound, lower_bound
from .draft import Draft
from .generate import plan
from .memory import Floor, floor
from .simulate import OpStall, Prediction, StallCause, simulate
from .suggest import Suggestion, suggest
from .sweep import Sweep, SweepPoint, sweep

__all__ = [
    "Bound",
    "Draft",
    "Floor",
    "OpStall",
    "Prediction",
    "StallCause",
    "Suggestion",
    "Sweep",
    "SweepPoint",
    "floor",
    "lower_bound",
    "plan",
    "simulate",
    "suggest",
    "sweep",
]
