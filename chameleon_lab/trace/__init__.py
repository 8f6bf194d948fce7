"""Recorded steps as columns, and their files."""

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
