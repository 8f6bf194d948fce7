"""Greedy by score: the gaps with the most bytes times free time go first, as in AutoSwap (Zhang et al., 2019).

Copies back are scheduled backwards from their deadlines, one at a time. Knows true op times.
"""

from __future__ import annotations

import numpy as np

from chameleon_lab.planner.memory import StepMemory, Swaps
from chameleon_lab.policy import Link
from chameleon_lab.trace import StepTrace

from .placement import Choice, copied_out_op, place


def greedy(step: StepTrace, memory: StepMemory, capacity_bytes: int, link: Link, times: np.ndarray) -> Swaps:
    """Take gaps by falling score, each that lowers an op above the capacity, until none is above it."""
    n = memory.ops
    start = np.concatenate([[0.0], np.cumsum(times)])
    starts = np.concatenate([start[:-1], start[:-1] + start[-1], [2 * start[-1]]])
    size = memory.gap_bytes
    out_s = np.array([link.out_s(b) for b in size.tolist()])
    in_s = np.array([link.in_s(b) for b in size.tolist()])
    # From when the copy out has ended to when the copy in must begin.
    left_s, needed_s = start[memory.gap_out + 1] + out_s, starts[memory.gap_use] - in_s
    score = size * (needed_s - left_s)
    first = np.searchsorted(starts, left_s)
    last = np.searchsorted(starts, needed_s, "right") - 1
    bytes_at = memory.live_bytes - int(memory.block_bytes[memory.dormant].sum())
    chosen = []
    for gap in np.argsort(-score, kind="stable").tolist():
        if score[gap] <= 0 or (bytes_at <= capacity_bytes).all():
            break
        if not memory.gap_returns[gap] or last[gap] <= first[gap]:
            continue
        ops = np.arange(first[gap], last[gap]) % n
        if (bytes_at[ops] > capacity_bytes).any():
            bytes_at[ops] -= size[gap]
            chosen.append(gap)
    gap = np.array(chosen, dtype=np.int64)
    choice = Choice(gap, copied_out_op(memory, gap, link, times), _deadlines(memory, gap, in_s[gap], starts))
    return place(memory, choice, capacity_bytes)


def _deadlines(memory: StepMemory, gap: np.ndarray, in_s: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Ops at which to issue the copies back, the last use first, so that each ends before the next begins."""
    total_s = starts[-1] / 2
    use_s = starts[memory.gap_use[gap]] % total_s if total_s > 0 else np.zeros(len(gap))
    in_op = np.empty(len(gap), dtype=np.int64)
    following = np.inf
    # Twice around, so that the last copies of a step make way for the first of the next.
    for shift in (total_s, 0.0):
        for k in np.argsort(-use_s, kind="stable").tolist():
            begin = following = min(following, use_s[k] + shift) - in_s[k]
            before_use = use_s[k] + shift - begin
            due = starts[memory.gap_use[gap[k]]] - before_use
            in_op[k] = np.searchsorted(starts, due, "right") - 1
    return np.clip(in_op, memory.gap_out[gap] + 1, memory.gap_use[gap])
