"""Checks the consistency of every step from a file: files are untrusted."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from .columns import TABLES
from .step import StepTrace
from .table import MOST_BYTES


def check_step(step: StepTrace) -> None:
    """Raises ValueError, naming column and range, where a column is not what it is declared to be."""
    for name in ("start_s", "duration_s"):
        if not np.isfinite(getattr(step, name)):
            raise ValueError(f"{name} is no finite number")
    for table, kind in TABLES.items():
        for name, column in kind.declared().items():
            values = getattr(getattr(step, table), name)
            if not len(values):
                continue
            if column.into is not None:
                high = _count(step, column.into) + column.past
                if not (column.low <= int(values.min()) and int(values.max()) < high):
                    raise ValueError(f"{table}.{name} is outside {column.low} to {high - 1}")
            if column.unit == "s" and (np.isinf(values) if column.unknown else ~np.isfinite(values)).any():
                raise ValueError(f"{table}.{name} has values that are not times")
    if int(step.storages.block_bytes.astype(np.float64).sum()) >= MOST_BYTES:
        raise ValueError(f"storages.block_bytes add up to more than {MOST_BYTES}")
    if (step.ops.device_s < 0).any():
        raise ValueError("ops.device_s has values that are not durations")


def _count(step: StepTrace, into: str | int | type[IntEnum]) -> int:
    """How many there are of what a column points into."""
    if isinstance(into, int):
        return into
    if isinstance(into, type):
        return len(into)
    if into == "borders":  # of ops: where each begins, and the step's end
        return len(step.ops) + 1
    # What happens before a step's first op is written down as if in it.
    return max(len(step.ops), 1) if into == "ops" else len(getattr(step, into))
