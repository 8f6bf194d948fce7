"""The reserve of plans against fragmentation in the device's own allocator.

Torch's CUDA allocator cuts blocks from segments. What is free in a segment whose rest is in use, or kept in another
size, does not serve a larger request; near the limit it then gives all that it keeps back to the GPU, and waits
for it, in every step. How much that is depends on the model, so it is learned, from steps that follow a plan: it grows
while such steps are refused memory, to a bound, and never shrinks. It depends on counts and bytes alone, not on times.

Segments last. Those that a plan finds have the sizes of what ran before it, and are in use in parts, so that they may
serve it badly and never go back. Where the bound does not suffice, all that is free goes back to the GPU between two
steps, once for each plan: the next steps cut their blocks from segments of their own.
"""

from __future__ import annotations

from ..report.session_report import StepSummary

_MOST = 4
"""The reserve is at most the capacity over this; what is lost beyond is rather paid in flushes and evictions."""
_MOST_AT_ONCE = 8
"""It grows by the capacity over this at most: what lay useless under one plan does not all do so under the next."""
_STEP = 64
"""It grows by the capacity over this, or more."""
_IN_A_ROW = 2
"""Steps under one plan that must be refused memory: the first still has segments in the sizes of what came before."""


class Reserve:
    """The bytes that plans leave free beside the margin, ``bytes``."""

    def __init__(self) -> None:
        self.bytes = 0
        self.flush = False
        """Since the newest step: should what the allocator keeps go back to the GPU before the next one?"""
        self._plan, self._refused_steps, self._flushed = -1, 0, False

    def learn(self, summary: StepSummary, capacity_bytes: int, margin: float) -> bool:
        """Take in a step that has followed a plan. Returns whether the reserve has grown: its ops need a new plan.

        Args:
            summary: of the step.
            capacity_bytes: of the device.
            margin: the share of it that plans leave free anyway.
        """
        if summary.plan != self._plan:
            self._plan, self._refused_steps, self._flushed = summary.plan, 0, False
        self.flush = False
        missed = summary.useless_bytes and (summary.demand_swap_ins or summary.evictions)
        if not (summary.refusals or summary.alloc_retries or missed):
            self._refused_steps = 0
            return False
        self._refused_steps += 1
        most, step = capacity_bytes // _MOST, max(1, capacity_bytes // _STEP)
        if self._refused_steps < _IN_A_ROW:
            return False
        self._refused_steps = 0
        if self.bytes >= most:
            self.flush, self._flushed = not self._flushed, True
            return False
        useless = summary.useless_bytes - int(margin * capacity_bytes)
        wanted = max(self.bytes + step, -(-useless // step) * step)
        self.bytes = min(wanted, self.bytes + capacity_bytes // _MOST_AT_ONCE, most)
        return True
