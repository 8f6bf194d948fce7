"""What some of a step's storages take."""

from __future__ import annotations

import numpy as np

from ...trace import StepTrace
from ...trace.alive_bytes import alive_bytes


def chosen_bytes(step: StepTrace, chosen: np.ndarray) -> np.ndarray:
    """Blocks of the chosen storages that are alive at each op, int64 (ops,). ``chosen``: bool (storages,)."""
    storages = step.storages
    return alive_bytes(
        len(step.ops), storages.birth_op[chosen], storages.death_op[chosen], storages.block_bytes[chosen]
    )
