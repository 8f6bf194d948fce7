"""Eviction where a policy leaves too much on the device: the executor's rule, simulated.

Policies run on steps other than their own: with another length, or other experts. What they do not foresee is evicted
at the op that has no room, furthest next use first, and comes back when an op asks for it.
"""

from __future__ import annotations

import numpy as np

from ..policy.model import NEVER
from .memory import StepMemory, Swaps


def with_evictions(memory: StepMemory, swaps: Swaps, capacity_bytes: int) -> Swaps:
    """The swaps, and those by which eviction keeps the step within ``capacity_bytes``, as far as it can.

    An evicted storage leaves right before the op that has no room, which waits for the copy, and returns at its next
    use, which waits as well. Swaps leave sooner where they can, and those for whose return there is no room yet return
    only at their use.
    """
    n = memory.ops
    resident = memory.live_bytes - memory.away_bytes(swaps.storage, swaps.free_op, swaps.in_op)
    if not (resident > capacity_bytes).any():
        return swaps
    # What can make room, a row each: gaps without a swap; swaps that could leave sooner; swaps that could return later.
    gaps, count = len(memory.gap_storage), len(swaps)
    planned = set(zip(swaps.storage.tolist(), swaps.ordinal.tolist(), strict=True))
    named = zip(memory.gap_storage.tolist(), memory.gap_ordinal.tolist(), strict=True)
    unplanned = np.array([gap not in planned for gap in named], dtype=bool)
    storage = np.concatenate([memory.gap_storage, swaps.storage, swaps.storage])
    size = memory.block_bytes[storage]
    since = np.concatenate(
        [np.where(unplanned, memory.gap_out, memory.gap_use), swaps.out_op, swaps.in_op - 1]
    )
    until = np.concatenate([memory.gap_use, swaps.free_op, swaps.use_op])
    use = np.concatenate([memory.gap_use, swaps.use_op, swaps.use_op])
    use[~np.concatenate([memory.gap_returns, swaps.returns, swaps.returns])] = 3 * n  # further than any use
    away = until.copy()  # from this op on, until the row's end, its storage is away
    # What no op uses leaves first, and stays away.
    idle = memory.dormant[~np.isin(memory.dormant, swaps.storage)]
    before = np.cumsum(memory.block_bytes[idle]) - memory.block_bytes[idle]
    idle = idle[before < resident.max() - capacity_bytes]
    resident -= int(memory.block_bytes[idle].sum())
    for op in np.flatnonzero(resident > capacity_bytes).tolist():
        excess = int(resident[op]) - capacity_bytes
        if excess <= 0:
            continue
        # A gap over the step's end is entered in one step and left in the next.
        at = np.where(since < op, op, op + n)
        inside = np.flatnonzero((since < at) & (at < away))
        furthest = inside[np.argsort((at - use)[inside], kind="stable")]
        gone = furthest[: int(np.searchsorted(np.cumsum(size[furthest]), excess)) + 1]
        begin = np.where(gone < gaps + count, at[gone], since[gone] + 1)
        resident -= memory.away_bytes(storage[gone], begin, away[gone])
        away[gone] = begin
    late = away[gaps + count :] < swaps.use_op
    gap = np.flatnonzero(away[:gaps] < memory.gap_use)
    at, back = away[gap], memory.gap_use[gap]
    none, never = np.zeros(len(idle), dtype=np.int64), np.full(len(idle), NEVER)
    return Swaps(
        storage=np.concatenate([swaps.storage, idle, memory.gap_storage[gap]]),
        ordinal=np.concatenate([swaps.ordinal, never, memory.gap_ordinal[gap]]),
        out_op=np.concatenate([swaps.out_op, none, at - 1]),
        free_op=np.concatenate([away[gaps : gaps + count], none + 1, at]),
        in_op=np.concatenate([np.where(late, swaps.use_op, swaps.in_op), never, back]),
        use_op=np.concatenate([swaps.use_op, never, back]),
        returns=np.concatenate([swaps.returns, none.astype(bool), memory.gap_returns[gap]]),
    )
