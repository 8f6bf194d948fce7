"""One plan that swaps: the passes over a step's gaps, on one clock.

A plan takes these passes, each O((ops + gaps) log gaps), most of them in C++ (``csrc/planner/swap_passes.cpp``):

1. *Choose*: sweep the ops; where bytes exceed the capacity, evict the idle gap with the furthest next use, or the
   longest one: that often copies less, since what is used twice in a row stays.
2. *Refine*: sweep again with the chosen gaps alone, freeing blocks in the order in which their copies out are
   issued, which is that in which they end. Belady's order would often wait for the copy issued last.
3. *Repair*: a sweep knows the steps before only as far as it has come. The pass takes the step as a cycle, and mends
   what still exceeds the capacity by longer or further swaps; at or above the floor that always succeeds.
4. *Free*, where asked for: free each block as soon as its copy out should have ended, not as late as memory allows.
   That makes room for copies back while the link in would idle. Where op times are off, the frees wait for their
   copies.
5. *Prefetch*: in the order of their next uses, allocate blocks at the earliest op from which they fit for
   good.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..policy.link import Link
from ..util.progress import tick
from . import native
from .memory import StepMemory, Swaps


class Way(NamedTuple):
    """How the passes choose. None is the best for every step."""

    frees_early: bool = False
    """Is there a *Free* pass?"""
    longest_first: bool = False
    """Do the longest gaps leave first, not those with the furthest next use?"""


def plan_swaps(
    memory: StepMemory,
    capacity_bytes: int,
    link: Link,
    times: np.ndarray,
    way: Way = Way(),  # noqa: B008
) -> Swaps:
    """The swaps that keep a step within a capacity, which must not be below the floor.

    ``times`` are seconds of each op, float64 (ops,): they tell how early a copy has to be issued.
    """
    stays_away, op_bytes = _dormant_away(memory, capacity_bytes)
    start = np.concatenate([[0.0], np.cumsum(times)])
    # Start of each op over all swept steps and the one after, in which their last gaps end.
    start_s = np.concatenate([start[:-1] + k * start[-1] for k in range(native.PERIODS + 1)])
    in_s = np.where(memory.gap_returns, link.in_s(memory.gap_bytes), 0.0)
    out_s = link.out_s(memory.gap_bytes)
    # The last op at which a copy back can be issued and end before its use, were the link its own.
    latest = np.searchsorted(start_s, start_s[memory.gap_use] - in_s, "right") - 1
    gaps = (
        memory.gap_bytes,
        memory.gap_out,
        memory.gap_use,
        np.clip(latest, memory.gap_out + 1, memory.gap_use),
        # With less time than this left until its use, a swap saves too little to be worth its transfers.
        in_s + 0.5 * np.maximum(in_s, out_s),
        memory.gap_returns,
        op_bytes,
    )
    free, back = native.choose_swaps(*gaps, start_s, capacity_bytes, way.longest_first)
    if way.frees_early:
        _free_early(memory, link, start_s, free, back)
    free, back = native.prefetch(*gaps, free, back, capacity_bytes)
    tick()
    taken = np.flatnonzero(free >= 0)
    return memory.swaps(taken, free[taken], back[taken], stays_away)


def _free_early(
    memory: StepMemory, link: Link, start_s: np.ndarray, free: np.ndarray, back: np.ndarray
) -> None:
    """Free each block as soon as its copy out should have ended, in place in ``free``."""
    taken = np.flatnonzero(free >= 0)
    taken = taken[np.argsort(memory.gap_out[taken], kind="stable")]
    swaps = memory.swaps(taken, free[taken], back[taken], memory.dormant[:0])
    copied = swaps.needs_copy(memory)
    out_s = link.out_s(memory.gap_bytes[taken]) * copied
    # One link takes the copies in order of issue: each starts at its issue, or when the one before it has ended. The
    # second of two steps inherits what the first leaves.
    step_s = start_s[memory.ops]
    issued_s = start_s[memory.gap_out[taken] + 1]
    ends_s = issued_s.copy()
    queued_s, took_s = (
        np.concatenate([issued_s[copied], issued_s[copied] + step_s]),
        np.tile(out_s[copied], 2),
    )
    before_s = np.cumsum(took_s) - took_s
    queue_ends_s = before_s + took_s + np.maximum.accumulate(queued_s - before_s)
    ends_s[copied] = queue_ends_s[copied.sum() :] - step_s
    first = np.searchsorted(start_s, ends_s - 1e-9 * step_s, "left")
    free[taken] = np.minimum(free[taken], np.maximum(first, memory.gap_out[taken] + 1))


def _dormant_away(memory: StepMemory, capacity_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """The storages without a use that leave for good, largest first, as far as there is need: it costs one copy, once.

    Returns them, int64 (dormant,), and the bytes at each op that remain, int64 (ops,).
    """
    dormant = memory.dormant
    size = memory.block_bytes[dormant]
    order = np.argsort(-size, kind="stable")
    over = int(memory.live_bytes.max()) - capacity_bytes
    away = np.concatenate([[0], np.cumsum(size[order])])
    count = min(int(np.searchsorted(away, over)), len(order)) if over > 0 else 0
    return dormant[order[:count]], memory.live_bytes - int(away[count])
