"""Recorded steps as columns, and their files."""

from ..util.renamed import warn_of_old_name
from .columns import (
    Category,
    Cause,
    Declined,
    Direction,
    Kernels,
    Makings,
    Marks,
    Ops,
    Pause,
    Pauses,
    Replays,
    Residencies,
    Segments,
    Stage,
    Stalls,
    Storages,
    Transfers,
    Uses,
)
from .divergences import Divergence
from .step import StepTrace
from .trace import Trace

__all__ = [
    "Category",
    "Cause",
    "Declined",
    "Divergence",
    "Makings",
    "Marks",
    "Direction",
    "Kernels",
    "Ops",
    "Pause",
    "Pauses",
    "Replays",
    "Residencies",
    "Segments",
    "Stage",
    "Stalls",
    "StepTrace",
    "Storages",
    "Trace",
    "Transfers",
    "Uses",
]


def __getattr__(name: str) -> object:
    if name == "Departure":
        warn_of_old_name("trace.", "Departure", "Divergence")
        return Divergence
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
