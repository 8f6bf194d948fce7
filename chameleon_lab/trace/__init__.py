"""What happened: recorded steps as columns, and their files."""

from .columns import (
    Category,
    Cause,
    Declined,
    Direction,
    Ops,
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

__all__ = [
    "Category",
    "Cause",
    "Declined",
    "Direction",
    "Ops",
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
