"""Every place that the blocks of a small step's gaps can have: what brute force goes through."""

from __future__ import annotations

import numpy as np

from chameleon_lab.planner.memory import StepMemory, Swaps


def every_choice(memory: StepMemory) -> list[list[tuple[int, int] | None]]:
    """Of each gap: keep it, or free its block and have it back at any ops."""
    choices = []
    gaps = zip(memory.gap_out.tolist(), memory.gap_use.tolist(), memory.gap_returns.tolist(), strict=True)
    for out, use, returns in gaps:
        places = [
            (free, back)
            for free in range(out + 1, use + 1)
            for back in (range(free, use + 1) if returns else (use,))
        ]
        choices.append([None, *places])
    return choices


def swaps_of(memory: StepMemory, places: tuple[tuple[int, int] | None, ...]) -> Swaps:
    gaps = np.array([gap for gap, place in enumerate(places) if place], dtype=np.int64)
    free, back = np.array([place for place in places if place], dtype=np.int64).reshape(-1, 2).T
    return memory.swaps(gaps, free, back, memory.dormant)
