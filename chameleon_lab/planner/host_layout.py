"""The layout of a policy's host copies, packed by lifetime, so that their memory is pinned once."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trace import StepTrace
from .memory import StepMemory, Swaps

PAGE_BYTES = 4096
"""Copies begin and end at whole pages."""


@dataclass(frozen=True)
class HostLayout:
    """A place in the host pool for every candidate that a policy swaps; the steps of a run all use the same."""

    place: np.ndarray
    """int64 (C,): where the copy of a candidate of :class:`StepMemory` begins; -1 if it is never swapped"""
    kept: np.ndarray
    """bool (C,): does the copy outlive the swap-in, so that the next swap-out needs none? Else its bytes are free when
    the storage is used."""
    pool_bytes: int
    """What the pool needs for it"""
    peak_bytes: int
    """Most bytes of copies that exist at once: no layout needs less"""


@dataclass(frozen=True)
class HostCopies:
    """The lifetimes of copies in a steady step, ``L`` of them; a storage may have several, which do not meet.

    A copy exists from the swap-out that makes it until an op writes the storage or the storage dies: it outlives the
    swap-in, so that the next swap-out needs no copy. Where host memory is short, it goes when the storage is used. Here
    it is there when op ``i`` has ended for ``begin <= i < end``: the op that writes the storage leaves none. A lifetime
    over the step's end is two.
    """

    storage: np.ndarray
    """int64 (L,): candidate, ascending"""
    begin: np.ndarray
    """int64 (L,): in [0, ops)"""
    end: np.ndarray
    """int64 (L,): in (begin, ops]"""
    bytes: np.ndarray
    """int64 (L,): whole pages"""

    def peak_bytes(self, ops: int) -> int:
        """Most bytes that exist at once in a step of so many ops."""
        change = np.zeros(ops + 1, dtype=np.int64)
        np.add.at(change, self.begin, self.bytes)
        np.subtract.at(change, self.end, self.bytes)
        return int(np.cumsum(change).max(initial=0))


def host_copies(
    memory: StepMemory, swaps: Swaps, step: StepTrace, kept: np.ndarray | None = None
) -> HostCopies:
    """The lifetimes of the copies that swaps make in a steady step, unrolled over the steps around it.

    ``kept``, bool (C,): of which candidates the copies outlive the swap-in; None: of all. What pressure evicts beside
    them comes on top.
    """
    n = memory.ops
    dies = step.storages.death_op[memory.row].astype(np.int64)
    # Of what is left to the next step: until the next one of its kind is made, or when its dead time ends.
    dies = np.where(dies < n, dies, n + step.storages.birth_op[memory.row])
    dead = ~memory.gap_returns & (memory.gap_use > n)
    dies[memory.gap_storage[dead]] = memory.gap_use[dead]
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for place in np.lexsort((swaps.ordinal, swaps.storage)).tolist():
        storage, out = int(swaps.storage[place]), int(swaps.out_op[place])
        begin = out % n  # eviction may come in the step after that of the use
        if swaps.in_op[place] < 0:
            taken[storage].append((0, n))  # away through every step
            continue
        if kept is not None and swaps.returns[place] and not kept[storage]:
            end = int(swaps.use_op[place]) - (out - begin)
            taken[storage] += [(begin, min(end, n)), (0, end - n)]
            continue
        uses = slice(memory.uses_offset[storage], memory.uses_offset[storage + 1])
        writes = memory.uses_op[uses][memory.uses_write[uses]].tolist()
        later = bisect_right(writes, begin)
        if later < len(writes):
            end = writes[later]
        elif memory.persistent[storage]:
            end = (writes[0] if writes else begin) + n
        else:
            end = int(dies[storage]) + 1  # most die between that op and the next
        end = min(end, begin + n)
        taken[storage] += [(begin, min(end, n)), (0, end - n)]
    rows = [(storage, begin, end) for storage in sorted(taken) for begin, end in _joined(taken[storage])]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return HostCopies(table[:, 0], table[:, 1], table[:, 2], host_bytes(memory, step)[table[:, 0]])


def host_bytes(memory: StepMemory, step: StepTrace) -> np.ndarray:
    """What a copy of each candidate takes on the host, int64 (C,): whole pages."""
    pages: np.ndarray = -(-step.storages.bytes[memory.row].astype(np.int64) // PAGE_BYTES)
    return pages * PAGE_BYTES


def host_layout(
    memory: StepMemory, swaps: Swaps, step: StepTrace, kept: np.ndarray | None = None
) -> HostLayout:
    """Pack the host copies of a policy's swaps. Of equal inputs it makes equal layouts.

    ``kept`` as for :func:`host_copies`.

    Storages are placed one after another, each in the tightest gap between those placed that exist while it does: as
    memory planners of inference engines do, largest first. Orders by bytes times lifetime, and by lifetime, are tried
    too where that leaves waste, and the smallest pool is taken.
    """
    copies = host_copies(memory, swaps, step, kept)
    kept = np.ones(len(memory.row), dtype=bool) if kept is None else kept
    place = np.full(len(memory.row), -1, dtype=np.int64)
    peak_bytes = copies.peak_bytes(memory.ops)
    storages, first = np.unique(copies.storage, return_index=True)
    if not len(storages):
        return HostLayout(place, kept, 0, 0)
    size = copies.bytes[first]
    length = np.add.reduceat(copies.end - copies.begin, first)
    begin = copies.begin[first]
    best: tuple[int, np.ndarray] | None = None
    for keys in ((begin, -length, -size), (begin, -size * length), (begin, -size, -length)):
        packed = pack(copies, np.lexsort(keys))
        pool_bytes = int((packed + size).max())
        if best is None or pool_bytes < best[0]:
            best = pool_bytes, packed
        if best[0] == peak_bytes:
            break
    assert best is not None
    place[storages] = best[1]
    return HostLayout(place, kept, best[0], peak_bytes)


def pack(copies: HostCopies, order: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where each storage of the copies begins, int64 (storages,), if they are placed in this order."""
    storages, first = np.unique(copies.storage, return_index=True)
    last = np.append(first[1:], len(copies.storage))
    place = np.full(len(storages), -1, dtype=np.int64)
    # The lifetimes of what is placed, and where.
    begin, end, low, high = (np.empty(len(copies.storage), dtype=np.int64) for _ in range(4))
    placed = 0
    for one in np.asarray(order).tolist():
        own = slice(int(first[one]), int(last[one]))
        size = int(copies.bytes[own.start])
        meets = np.zeros(placed, dtype=bool)
        for b, e in zip(copies.begin[own].tolist(), copies.end[own].tolist(), strict=True):
            meets |= (begin[:placed] < e) & (b < end[:placed])
        lows, highs = low[:placed][meets], high[:placed][meets]
        by_low = np.argsort(lows, kind="stable")
        gap = np.append(0, np.maximum.accumulate(highs[by_low]))
        room = np.append(lows[by_low], np.iinfo(np.int64).max) - gap
        at = int(gap[np.where(room >= size, room, np.iinfo(np.int64).max).argmin()])
        place[one] = at
        count = own.stop - own.start
        new = slice(placed, placed + count)
        begin[new], end[new] = copies.begin[own], copies.end[own]
        low[new], high[new] = at, at + size
        placed += count
    return place


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same ops in spans that do not meet, ascending, and none empty."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if begin >= end:
            continue
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
