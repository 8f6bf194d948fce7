"""Resident bytes over a step, by category."""

from __future__ import annotations

import numpy as np

from .columns import Category
from .step import StepTrace


def resident_by_category(step: StepTrace) -> tuple[np.ndarray, np.ndarray]:
    """The resident bytes of each category over a step, exactly.

    Returns:
        Times in seconds, shape (T,), ascending; and the bytes of every Category from each time on, shape
        (T, len(Category)). Both start at 0 s. Changes at the same instant are one row.
    """
    rows = step.residencies
    sizes = step.storages.block_bytes[rows.storage]
    categories = step.storages.category[rows.storage].astype(np.int64)
    # What is there when the step ends does not leave: the drawing ends with it on the device.
    leaves = rows.to_op < len(step.ops)
    times = np.maximum(np.concatenate([[0.0], rows.from_s, rows.to_s[leaves]]), 0.0)
    changes = np.zeros((len(times), len(Category)), dtype=np.int64)
    changes[np.arange(1, 1 + len(rows)), categories] = sizes
    changes[np.arange(1 + len(rows), len(times)), categories[leaves]] = -sizes[leaves]
    order = np.argsort(times, kind="stable")
    times, levels = times[order], np.cumsum(changes[order], axis=0)
    last_of_instant = np.append(np.diff(times) > 0, True)
    return times[last_of_instant], levels[last_of_instant]
