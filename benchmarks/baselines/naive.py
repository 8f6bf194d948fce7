"""Swap all activations, as activation offloading does."""

from __future__ import annotations

import numpy as np

from chameleon_lab.planner.memory import StepMemory, Swaps
from chameleon_lab.policy import Link
from chameleon_lab.trace import Stage, StepTrace

from .placement import Choice, copied_out_op, place

PREFETCH_OPS = 40
"""How many ops before its use a block is brought back."""

LEAST_BYTES = 1 << 20


def naive(step: StepTrace, memory: StepMemory, capacity_bytes: int, link: Link, times: np.ndarray) -> Swaps:
    """Every activation leaves after its last use in forward, and comes back for its first use in backward."""
    gap = forward_to_backward(step, memory, LEAST_BYTES)
    in_op = np.maximum(memory.gap_use[gap] - PREFETCH_OPS, memory.gap_out[gap] + 1)
    return place(memory, Choice(gap, copied_out_op(memory, gap, link, times), in_op), capacity_bytes)


def forward_to_backward(step: StepTrace, memory: StepMemory, least_bytes: int) -> np.ndarray:
    """Gaps between forward and backward of what was made in this step, int64 rows of the memory's gaps."""
    stage = step.ops.stage
    made_here = step.storages.birth_op[memory.row[memory.gap_storage]] >= 0
    return np.flatnonzero(
        made_here
        & memory.gap_returns
        & (memory.gap_bytes >= least_bytes)
        & (stage[memory.gap_out] == Stage.FORWARD)
        & (stage[memory.gap_use % memory.ops] == Stage.BACKWARD)
    )
