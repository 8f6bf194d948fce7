"""What happened: recorded steps as columns, and their files."""

from .columns import (
    Category,
    Cause,
    Direction,
    Ops,
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
    "Direction",
    "Ops",
    "Residencies",
    "Stage",
    "Stalls",
    "StepTrace",
    "Storages",
    "Trace",
    "Transfers",
    "Uses",
]
