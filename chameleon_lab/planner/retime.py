"""Frees a plan's memory sooner and takes it later, where copies have time for that.

The passes of :mod:`~chameleon_lab.planner.generate` free a block as late, and bring it back as early, as memory allows.
That needs no op times, and leaves the device full throughout a step: on a full device, a block for an op has to be put
together from the pages of several smaller ones, and caches find nothing again. Where op times are known, a block can
leave as soon as its copy should have ended, and come back when its copy should begin to be there in time, both with a
reserve. Memory only gets emptier by that: what has fitted still fits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..policy.link import Link
from .memory import StepMemory, Swaps

RESERVE = 0.1
"""Share of the step's time that a copy is given beyond its own: so much may op times be off before plans are made
again."""


def retimed(memory: StepMemory, swaps: Swaps, link: Link, clock: np.ndarray) -> Swaps:
    """The swaps, each away as long as its copies allow on ``clock`` (seconds of each op, stalls and replays included).

    Copies out run in order of issue, copies back in order of use; the step repeats.
    """
    n = memory.ops
    start = np.concatenate([[0.0], np.cumsum(clock)])
    step_s, reserve_s = float(start[-1]), RESERVE * float(start[-1])
    starts = np.concatenate([start[:-1] + k * step_s for k in range(3)] + [[3 * step_s]])
    size = memory.block_bytes[swaps.storage]
    copied = swaps.needs_copy(memory)
    out_s, in_s = link.out_s(size) * copied, link.in_s(size) * swaps.returns
    free_op, in_op = swaps.free_op.copy(), swaps.in_op.copy()
    leaves = np.flatnonzero(swaps.in_op >= 0)

    order = leaves[np.argsort(swaps.out_op[leaves], kind="stable")]
    link_free_s = 0.0
    for period in (0, 1):  # the second inherits what the first has left over
        for k in order.tolist():
            issued_s = starts[swaps.out_op[k] + 1] + period * step_s
            if copied[k]:
                issued_s = link_free_s = max(link_free_s, issued_s) + out_s[k]
            if period:
                first = int(np.searchsorted(starts, issued_s - step_s + reserve_s, "left"))
                free_op[k] = min(free_op[k], max(first, swaps.out_op[k] + 1))

    back = leaves[swaps.returns[leaves]]
    use = swaps.use_op[back] % n
    order = back[np.lexsort((back, use))[::-1]]
    link_busy_s = np.inf
    for period in (2, 1):  # backwards, from the next step's uses on
        for k in order.tolist():
            wanted_s = starts[swaps.use_op[k] % n] + period * step_s
            link_busy_s = min(link_busy_s, wanted_s) - in_s[k]
            if period == 1:
                last = int(np.searchsorted(starts, link_busy_s - reserve_s, "right")) - 1
                last = int(swaps.use_op[k] - (swaps.use_op[k] % n + n - last))
                in_op[k] = max(in_op[k], min(last, swaps.use_op[k]))
    return replace(swaps, free_op=free_op, in_op=in_op)
