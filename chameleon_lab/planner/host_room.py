"""Planning within bounded host memory: swaps whose copies always have room.

A copy takes host memory from its swap-out until its storage is used again, and longer where it is kept for the next
swap-out. A plan that would need more than there is first gives up copies that are only kept; then swapping is left a
choice of gaps whose copies fit, whichever of them it takes. What the device still has no room for is rematerialized.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import numpy as np

from ..trace import StepTrace, Trace
from ..trace.trace import plannable_step
from .constraints import joined
from .host_layout import HostLayout, host_bytes, host_copies, host_layout
from .memory import (
    LEAST_SWAP_BYTES,
    Floor,
    StepMemory,
    Swaps,
    floor,
    floor_of,
    kernels_in,
    no_swaps,
    step_memory,
)
from .native import RangeMax
from .replay import ReplayChains, gaps_of


def floor_within(
    trace: Trace | StepTrace,
    host_capacity_bytes: int | None,
    *,
    min_swap_bytes: int = LEAST_SWAP_BYTES,
    replayable: ReplayChains | None = None,
) -> Floor:
    """The smallest device capacity that any policy can run the step in whose copies take so much host memory.

    At each op what is away is on the host, or can be made again there: ``replayable`` says what, None: nothing. No
    policy does with less; that one does with as much is not said, since what yields by itself (see
    :class:`StepMemory`) takes host memory that is not counted here. Raises TraceError if the step holds no op.
    """
    if host_capacity_bytes is None:
        return floor(trace, min_swap_bytes=min_swap_bytes)
    step = plannable_step(trace)
    without_limit = floor(trace, min_swap_bytes=min_swap_bytes).bytes
    memory = step_memory(step, min_swap_bytes, without_limit, yields_all=True)
    least = memory.least_bytes()
    # A block may be larger than its copy.
    largest = float((memory.block_bytes / host_bytes(memory, step)).max(initial=1.0))
    on_host = int(host_capacity_bytes * largest)
    dropped = np.zeros(memory.ops, dtype=np.int64)
    if replayable is not None:
        gaps = np.array(replayable.gaps(), dtype=np.int64)
        of = replayable.memory
        dropped = of.away_bytes(of.gap_storage[gaps], of.gap_out[gaps] + 1, of.gap_use[gaps])
    away = np.minimum(memory.live_bytes - least, on_host + dropped)
    return floor_of(step, memory, kernels_in(trace), memory.live_bytes - away)


class HostRoom:
    """The host memory that copies may take in one step.

    Args:
        step: that is planned for.
        limit_bytes: the most bytes of copies at once; None: no limit.
        forced: swaps that are made whatever else is: theirs come first.
    """

    def __init__(self, step: StepTrace, limit_bytes: int | None, forced: Swaps | None = None) -> None:
        self.step, self.limit_bytes = step, limit_bytes
        self.forced = no_swaps() if forced is None else forced

    def peak_bytes(self, memory: StepMemory, swaps: Swaps) -> int:
        """Most bytes of copies at once, as the runtime holds them."""
        return host_copies(memory, swaps, self.step, self.kept(memory, swaps)).peak_bytes(memory.ops)

    def layout(self, memory: StepMemory, swaps: Swaps) -> HostLayout:
        """Where the copies lie. Copies are kept as far as they fit when packed."""
        kept = self.kept(memory, swaps)
        layout = host_layout(memory, swaps, self.step, kept)
        if self.limit_bytes is None or layout.pool_bytes <= self.limit_bytes or not kept.any():
            return layout
        return host_layout(memory, swaps, self.step, np.zeros_like(kept))

    def kept(self, memory: StepMemory, swaps: Swaps) -> np.ndarray:
        """Of which candidates copies outlive the swap-in, bool (C,): of all, or those that save most where they fit."""
        every = np.ones(len(memory.row), dtype=bool)
        n = memory.ops
        if self.limit_bytes is None or not len(swaps):
            return every
        if host_copies(memory, swaps, self.step, every).peak_bytes(n) <= self.limit_bytes:
            return every
        none = ~every
        profile = RangeMax(np.zeros(n, dtype=np.int64))
        changes: dict[int, list[tuple[int, int, int]]] = defaultdict(
            list
        )  # of the profile, if a storage's are kept
        for kept, sign in ((none, -1), (every, 1)):
            copies = host_copies(memory, swaps, self.step, kept)
            columns = (copies.storage, copies.begin, copies.end, copies.bytes)
            for storage, begin, end, size in zip(*(column.tolist() for column in columns), strict=True):
                changes[storage].append((begin, end, sign * size))
                if sign < 0:
                    profile.add(begin, end, size)
        saves = swaps.needs_copy(memory, none) & ~swaps.needs_copy(memory, every)
        sizes = host_bytes(memory, self.step)
        saved = np.bincount(swaps.storage[saves], minlength=len(sizes))
        kept = none.copy()
        for storage in np.lexsort((np.arange(len(sizes)), sizes, -saved)).tolist():
            if not saved[storage]:
                break
            for begin, end, change in changes[storage]:
                profile.add(begin, end, change)
            if profile.last_above(0, n, self.limit_bytes) < 0:
                kept[storage] = True
                continue
            for begin, end, change in changes[storage]:
                profile.add(begin, end, -change)
        return kept

    def fits(self, memory: StepMemory, swaps: Swaps) -> bool:
        """Is there room for these swaps' copies beside those of the forced ones, if none is kept?"""
        if self.limit_bytes is None:
            return True
        none = np.zeros(len(memory.row), dtype=bool)
        copies = host_copies(memory, joined(self.forced, swaps), self.step, none)
        return copies.peak_bytes(memory.ops) <= self.limit_bytes

    # ------------------------------------------------------------------------------------------------- choosing

    def narrowed(self, memory: StepMemory, capacity: int, first: Swaps) -> StepMemory:
        """The memory with gaps that swapping may take all at once: of ``first`` if that can do, and others.

        The gaps that are left out keep their index, and have no op inside.
        """
        found = None
        for preferred, longest in ((first, True), (no_swaps(), True), (no_swaps(), False)):
            choice = _Choice(self, memory, capacity)
            choice.take(gaps_of(memory, preferred))
            choice.cover(longest=longest)
            choice.fill()
            if found is None or choice.short_bytes < found.short_bytes:
                found = choice
            if not found.short_bytes:
                break
        assert found is not None
        use = np.where(found.chosen, memory.gap_use, memory.gap_out + 1)
        return dataclasses.replace(memory, gap_use=use, dormant=memory.dormant[found.dormant])


class _Choice:
    """Gaps, and storages that no op uses, whose copies fit the host together."""

    def __init__(self, room: HostRoom, memory: StepMemory, capacity: int) -> None:
        assert room.limit_bytes is not None
        n = self.n = memory.ops
        self.memory, self.limit = memory, room.limit_bytes
        sizes = host_bytes(memory, room.step)
        self.size = sizes[memory.gap_storage].tolist()
        self.out, self.use = memory.gap_out.tolist(), memory.gap_use.tolist()
        self.block = memory.gap_bytes.tolist()
        # Of dead time the copy is there in the op that it ends in, too.
        self.end = np.minimum(memory.gap_use + ~memory.gap_returns, memory.gap_out + n).tolist()
        self.host = RangeMax(np.zeros(n, dtype=np.int64))
        none = np.zeros(len(memory.row), dtype=bool)
        forced = host_copies(memory, room.forced, room.step, none)
        for begin, end, size in zip(
            forced.begin.tolist(), forced.end.tolist(), forced.bytes.tolist(), strict=True
        ):
            self.host.add(begin, end, size)
        self.short = memory.live_bytes - capacity
        """Bytes that still have to be away at each op."""
        self.chosen = np.zeros(len(self.size), dtype=bool)
        self.refused = memory.gap_use <= memory.gap_out + 1
        self.short_bytes = 0
        """What could not be covered where most is missing; 0 if the device has room at every op."""
        self.dormant = np.zeros(len(memory.dormant), dtype=bool)
        over = int(self.short.max())
        for place in np.argsort(-memory.block_bytes[memory.dormant], kind="stable").tolist():
            storage = int(memory.dormant[place])
            if over <= 0:
                break
            if self.host.last_above(0, n, self.limit - int(sizes[storage])) < 0:
                self.host.add(0, n, int(sizes[storage]))
                self.dormant[place] = True
                over -= int(memory.block_bytes[storage])
                self.short -= int(memory.block_bytes[storage])
        self.over = np.concatenate([[0], np.cumsum(np.tile(self.short > 0, 2))])

    def _useful(self, gaps: np.ndarray) -> np.ndarray:
        """At how many ops that have no room each gap is idle."""
        memory = self.memory
        last = np.minimum(memory.gap_use[gaps], 2 * self.n)
        return np.asarray(self.over[last] - self.over[np.minimum(memory.gap_out[gaps] + 1, last)])

    def take(self, gaps: np.ndarray) -> None:
        """Choose those of the gaps that fit, the longest over the capacity first."""
        gaps = gaps[gaps >= 0]
        for gap in gaps[np.lexsort((gaps, -self._useful(gaps)))].tolist():
            self._put(gap)

    def cover(self, *, longest: bool) -> None:
        """Choose until the device has room at every op, as far as that goes: where most is missing first."""
        memory, n = self.memory, self.n
        everything = np.arange(len(self.size))
        score = self._useful(everything).astype(np.float64)
        if not longest:
            score /= np.maximum(memory.gap_use - memory.gap_out, 1)
        while len(self.short) and (most := int(self.short.max())) > 0:
            op = int(self.short.argmax())
            idle = ((memory.gap_out < op) & (op < memory.gap_use)) | (
                (memory.gap_out < op + n) & (op + n < memory.gap_use)
            )
            gaps = np.flatnonzero(idle & ~self.chosen & ~self.refused)
            for gap in gaps[np.lexsort((gaps, -score[gaps]))].tolist():
                self._put(gap)
                if self.short[op] <= 0:
                    break
            else:
                self.short_bytes = int(self.short[op])
                return
            assert self.short[op] < most

    def fill(self) -> None:
        """Whatever else fits: swapping has more to choose from then."""
        rest = np.flatnonzero(~self.chosen & ~self.refused)
        useful = self._useful(rest)
        rest, useful = rest[useful > 0], useful[useful > 0]
        for gap in rest[np.lexsort((rest, -useful))].tolist():
            self._put(gap)

    def _put(self, gap: int) -> None:
        """Choose a gap, unless its copy finds no room."""
        if self.chosen[gap] or self.refused[gap]:
            return
        n, size = self.n, self.size[gap]
        parts = ((self.out[gap], min(self.end[gap], n)), (0, self.end[gap] - n))
        if any(self.host.last_above(begin, end, self.limit - size) >= begin for begin, end in parts):
            self.refused[gap] = True
            return
        for begin, end in parts:
            self.host.add(begin, end, size)
        self.chosen[gap] = True
        begin, end = self.out[gap] + 1, min(self.use[gap], 2 * n)
        self.short[begin : min(end, n)] -= self.block[gap]
        self.short[max(begin - n, 0) : max(end - n, 0)] -= self.block[gap]
