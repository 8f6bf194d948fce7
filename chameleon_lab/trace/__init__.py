"""What happened: recorded steps as columns, and their files."""

from .columns import (
    Category,
    Cause,
    Declined,
    Direction,
    Makings,
    Ops,
    Pause,
    Pauses,
    Replays,
    Residencies,
    Stage,
    Stalls,
    StepTrace,
    Storages,
    Trace,
    Transfers,
    Uses,
)
from .departures import Departure

__all__ = [
    "Category",
    "Cause",
    "Declined",
    "Departure",
    "Makings",
    "Direction",
    "Ops",
    "Pause",
    "Pauses",
    "Replays",
    "Residencies",
    "Stage",
    "Stalls",
    "StepTrace",
    "Storages",
    "Trace",
    "Transfers",
    "Uses",
]
