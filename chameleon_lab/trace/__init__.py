"""What happened: recorded steps as columns, and their files."""

from .columns import (
    Category,
    Cause,
    Declined,
    Direction,
    Makings,
    Marks,
    Ops,
    Pause,
    Pauses,
    Replays,
    Residencies,
    Stage,
    Stalls,
    Storages,
    Transfers,
    Uses,
)
from .departures import Departure
from .step import StepTrace
from .trace import Trace

__all__ = [
    "Category",
    "Cause",
    "Declined",
    "Departure",
    "Makings",
    "Marks",
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
