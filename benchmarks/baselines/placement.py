"""Where the chosen gaps of a baseline are freed and allocated: as a runtime with room for luck would do it."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np

from chameleon_lab.planner.memory import StepMemory, Swaps
from chameleon_lab.policy import Link

_PERIODS = 3
"""Steps gone over; what begins in the middle one is the plan."""


@dataclass(frozen=True)
class Choice:
    """Gaps to swap. Op indices count from the start of the step that the gap begins in."""

    gap: np.ndarray
    """int64 (chosen,): rows of the memory's gaps, of those that return"""
    free_op: np.ndarray
    """int64 (chosen,): free the block here at the latest"""
    in_op: np.ndarray
    """int64 (chosen,): bring it back here, or as soon after as there is room"""


def place(memory: StepMemory, choice: Choice, capacity_bytes: int) -> Swaps:
    """Go over the ops: free blocks where asked, or sooner and first issued first where memory runs out.

    A block comes back where asked, or as soon after as it fits, at its use at the latest; if it turns out to be in the
    way before its use, it comes later after all. What was never freed until its use was no swap, and is left out. Where
    all that does not suffice the swaps exceed the capacity.
    """
    n, size = memory.ops, memory.gap_bytes[choice.gap].tolist()
    out, use = memory.gap_out[choice.gap].tolist(), memory.gap_use[choice.gap].tolist()
    due: dict[str, dict[int, list[tuple[int, int]]]] = {
        name: defaultdict(list) for name in ("issue", "free", "back", "use")
    }
    free_op, in_op = choice.free_op.tolist(), choice.in_op.tolist()
    for k in range(len(size)):
        for shift in range(-n, _PERIODS * n, n):
            due["issue"][out[k] + 1 + shift].append((k, shift))
            due["free"][free_op[k] + shift].append((k, shift))
            due["back"][in_op[k] + shift].append((k, shift))
            due["use"][use[k] + shift].append((k, shift))
    live = memory.live_bytes.tolist()
    free, back = [-1] * len(size), [-1] * len(size)
    leaving: dict[tuple[int, int], None] = {}  # in order of issue
    away: set[tuple[int, int]] = set()
    early: dict[tuple[int, int], None] = {}  # back, and not used yet
    waiting: deque[tuple[int, int]] = deque()
    away_bytes = 0

    def leave(swap: tuple[int, int], op: int) -> None:
        nonlocal away_bytes
        del leaving[swap]
        away.add(swap)
        away_bytes += size[swap[0]]
        if swap[1] == n:
            free[swap[0]] = op - n

    def come(swap: tuple[int, int], op: int) -> None:
        nonlocal away_bytes
        away.remove(swap)
        away_bytes -= size[swap[0]]
        if swap[1] == n:
            back[swap[0]] = op - n

    for i in range(-n, _PERIODS * n):
        leaving |= dict.fromkeys(due["issue"].pop(i, ()))
        for swap in due["use"].pop(i, ()):
            leaving.pop(swap, None)
            early.pop(swap, None)
            if swap in away:
                come(swap, i)
        for swap in due["free"].pop(i, ()):
            if swap in leaving:
                leave(swap, i)
        while leaving and live[i % n] - away_bytes > capacity_bytes:
            leave(next(iter(leaving)), i)
        while early and live[i % n] - away_bytes > capacity_bytes:
            swap, _ = early.popitem()
            away.add(swap)
            away_bytes += size[swap[0]]
            waiting.appendleft(swap)
        waiting.extend(due["back"].pop(i, ()))
        while waiting:
            swap = waiting[0]
            if swap in away:
                if live[i % n] - away_bytes + size[swap[0]] > capacity_bytes:
                    break
                come(swap, i)
                early[swap] = None
            waiting.popleft()
    taken = np.flatnonzero((np.array(free, dtype=np.int64) >= 0) & (np.array(back, dtype=np.int64) >= 0))
    free_op, in_op = np.array(free, dtype=np.int64)[taken], np.array(back, dtype=np.int64)[taken]
    return memory.swaps(choice.gap[taken], free_op, in_op, memory.dormant)


def copied_out_op(memory: StepMemory, gap: np.ndarray, link: Link, times: np.ndarray) -> np.ndarray:
    """The op before which the copy out of each gap has ended, on a clock without stalls and a link of its own."""
    n = memory.ops
    start = np.concatenate([[0.0], np.cumsum(times)])
    starts = np.concatenate([start[:-1], start[:-1] + start[-1], [2 * start[-1]]])
    order = np.argsort(memory.gap_out[gap], kind="stable")
    ends = np.empty(len(gap))
    busy = 0.0
    for k in order.tolist():
        busy = max(busy, start[memory.gap_out[gap[k]] + 1]) + link.out_s(int(memory.gap_bytes[gap[k]]))
        ends[k] = busy
    op = np.searchsorted(starts, ends, "left")
    return np.minimum(np.clip(op, memory.gap_out[gap] + 1, 2 * n), memory.gap_use[gap])
