"""Swapping and rematerializing together: which gaps to drop and replay on a saturated link.

Swapping is free as long as copies hide behind compute, so it is what a plan begins with. Where that stalls, dropping
takes bytes off the link for the time of a replay. Candidates that are idle at the peak come first, then those of the
cheapest bytes; how many of them to take is a search over plans, each of which drops some and swaps the rest by
:mod:`~chameleon_lab.planner.generate`'s passes, and is judged by the simulator. Capuchin (ASPLOS 2020) ranks in a
similar way, tensor by tensor and against an estimate of the stall. The ranking knows nothing of what a plan needs
where: of the plan found, the dearest replays are taken back one by one, as long as that makes it cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ..policy.link import Link
from .constraints import joined
from .host_room import HostRoom
from .memory import StepMemory, Swaps, no_swaps
from .native import RangeMax
from .passes import Way
from .replay import Chain, PlannedReplays, ReplayChains
from .simulate import Prediction, simulate_swaps

_MOST_PLANS, _LEAST_PLANS = 9, 3
"""Plans that the search over the ranking makes."""

_SPREAD_PLANS = 8
"""Plans evenly spread over the ranking, for steps that are not too long: cost has several minima along it."""

_MOST_RETRACTIONS = 40
"""Plans made after those, each without one of the drops."""

_PLANNED_OPS = 60_000
"""Ops of all plans together, for steps so long that this makes them fewer."""

_CHEAP = 0.01
"""Share of the compute time. A plan that costs less is good enough to stop at."""

WAYS = Way(), Way(frees_early=True)
"""That the search goes, one after the other."""

PlanSwaps = Callable[[StepMemory, np.ndarray, Way], Swaps]
"""Plans the swaps of a step: for its memory, on a clock, in one way."""


@dataclass(frozen=True)
class Mixed:
    """A plan of both kinds, and what the simulator says of it."""

    swaps: Swaps
    replays: PlannedReplays
    prediction: Prediction

    @property
    def overhead_s(self) -> float:
        """Stalls and replays."""
        return self.prediction.stall_s + self.prediction.replay_s

    @property
    def cost(self) -> tuple[int, float]:
        """What a plan is judged by: bytes that the host, or the device for its sake, has no room for; then time."""
        predicted = self.prediction
        if predicted.host_capacity_bytes is None:
            return 0, self.overhead_s
        over = max(predicted.peak_bytes - predicted.capacity_bytes, 0)
        return over + predicted.host_short_bytes, self.overhead_s


class Mixer:
    """The search for one step and capacity.

    ``planned`` makes the swaps for a memory and a clock. ``may_drop`` are the gaps to choose from, ``must_drop`` those
    that edits demand; ``forced`` are swaps that edits demand, in the gaps ``fixed``, and ``narrowed`` takes from a
    memory what they and other edits have decided. ``host`` is given where its room is what is short: then a plan that
    fits comes first, whatever its replays take.
    """

    def __init__(
        self,
        memory: StepMemory,
        replayable: ReplayChains,
        capacity: int,
        link: Link,
        times: np.ndarray,
        planned: PlanSwaps,
        *,
        may_drop: Sequence[int],
        must_drop: Sequence[int] = (),
        forced: Swaps | None = None,
        fixed: Collection[int] = (),
        narrowed: Callable[[StepMemory], StepMemory] = lambda memory: memory,
        host: HostRoom | None = None,
    ) -> None:
        self.memory, self.replayable, self.capacity = memory, replayable, capacity
        self.link, self.times, self.planned, self.host = link, times, planned, host
        self.must_drop, self.fixed, self.narrowed = tuple(must_drop), fixed, narrowed
        self.may_drop = may_drop
        self.forced = no_swaps() if forced is None else forced
        over = memory.live_bytes > capacity
        self.useful = np.concatenate([[0], np.cumsum(over)])
        self.ranked = self._ranked(may_drop)
        self.total_bytes = np.concatenate([[0], np.cumsum(memory.gap_bytes[self.ranked])])
        self.way = Way()
        self._tried: dict[int, Mixed] = {}

    def _ranked(self, gaps: Sequence[int]) -> list[int]:
        """The gaps worth a replay, best first: those idle at the peak, then of the cheapest bytes, then the longest."""
        memory, useful, byte = self.memory, self.useful, 1 << 30
        summit = int(memory.live_bytes.argmax())
        # A byte that is dropped saves its way out and its way back at most.
        most_s = (self.link.out_s(byte) + self.link.in_s(byte)) / byte
        forced, fixed = set(self.must_drop), set(self.fixed)
        ranked = []
        for gap in gaps:
            begin, use = int(memory.gap_out[gap]) + 1, int(memory.gap_use[gap])
            if (
                gap in forced
                or useful[use] == useful[begin]
                or not fixed.isdisjoint(self.replayable.needs(gap))
            ):
                continue
            chain = self.chain(gap)
            size = int(memory.block_bytes[memory.gap_storage[gap]])
            if chain.seconds < most_s * size or self.host is not None:
                ranked.append((not begin <= summit < use, chain.seconds / size, begin - use, gap))
        return [gap for *_, gap in sorted(ranked)]

    def chain(self, gap: int) -> Chain:
        """What a replay at a gap's use takes."""
        memory = self.memory
        chain = self.replayable.chain(int(memory.row[memory.gap_storage[gap]]), int(memory.gap_use[gap]))
        assert chain is not None
        return chain

    # ------------------------------------------------------------------------------------------------- search

    def best(self, alone: Mixed) -> Mixed:
        """The plan that costs least. ``alone``: swapping alone, where that can do."""
        found = []
        for self.way in WAYS:  # each leads the search elsewhere
            self._tried = {} if self.must_drop else {0: alone}
            found.append((self._searched(), self.way))
        best, self.way = min(found, key=lambda one: one[0].cost)
        return best

    def _searched(self) -> Mixed:
        most = min(max(_PLANNED_OPS // self.memory.ops, _LEAST_PLANS), _MOST_PLANS)
        first = min(self._first_fitting(), self._spread(), key=self._cost)
        most += len(self._tried)
        best = self._narrowed_down(min(first, self._first_tries(most), key=self._cost), most)
        left = _PLANNED_OPS // self.memory.ops - len(self._tried)
        return self._retracted(self._pruned(self._at(best)), min(left, _MOST_RETRACTIONS))

    def _first_fitting(self) -> int:
        """Drop more and more until the rest fits the host; the best of that."""
        count = best = 0
        while self.host is not None and (short := self._at(count).cost[0]) and count < len(self.ranked):
            wanted = float(self.total_bytes[count]) + max(short, 0.25 * float(self.total_bytes[count]))
            count = max(self._count(wanted), count + 1)
            best = min(best, count, key=self._cost)
        return best

    def _spread(self) -> int:
        """Drop evenly spaced shares of the ranking; the best of that."""
        plans = _SPREAD_PLANS if (_SPREAD_PLANS + _LEAST_PLANS) * self.memory.ops <= _PLANNED_OPS else 0
        counts = {round(len(self.ranked) * k / _SPREAD_PLANS) for k in range(1, plans + 1)}
        return min(counts | {0}, key=self._cost)

    def _first_tries(self, most: int) -> int:
        """Drop what would end the stall if every byte dropped were a byte less to copy, and again; the best of that."""
        speed = self.link.out_bytes_per_s or self.link.in_bytes_per_s or np.inf
        count, best = 0, 0
        while 2 * len(self._tried) <= most:
            wanted = float(self.total_bytes[count]) + self._at(count).prediction.stall_s * speed
            count = self._count(wanted) if np.isfinite(wanted) else len(self.ranked)
            if count in self._tried:
                break
            best = min(best, count, key=self._cost)
        return best

    def _narrowed_down(self, best: int, most: int) -> int:
        """Go on between the best so far and its neighbors, on the wider side first."""
        while len(self._tried) < most:
            tried = sorted({*self._tried, len(self.ranked)})
            below = max((count for count in tried if count < best), default=best)
            above = min((count for count in tried if count > best), default=best)
            middle = (best + above + 1) // 2 if above - best >= best - below else (below + best) // 2
            if middle in self._tried:
                break
            best = min(best, middle, key=self._cost)
        return best

    def _count(self, size: float) -> int:
        """How many candidates it takes to drop so many bytes."""
        return min(int(np.searchsorted(self.total_bytes, size)), len(self.ranked))

    def _cost(self, count: int) -> tuple[tuple[int, float], int]:
        return self._at(count).cost, count

    def _at(self, count: int) -> Mixed:
        if count not in self._tried:
            self._tried[count] = self.made(self.ranked[:count])
        return self._tried[count]

    def made(self, gaps: Sequence[int]) -> Mixed:
        """The plan that drops ``gaps`` as far as they can be, and those that must be, and swaps the rest."""
        replays = self.fitting(gaps)
        return self.swapped(self.view(replays), self.times + replays.seconds, replays)

    def swapped(self, seen: StepMemory, clock: np.ndarray, replays: PlannedReplays) -> Mixed:
        """The plan that swaps ``seen`` on a clock beside some replays."""
        return self.judged(self.planned(seen, clock, self.way), replays)

    def judged(self, swaps: Swaps, replays: PlannedReplays) -> Mixed:
        """A plan with its prediction."""
        swaps = joined(self.forced, swaps)
        prediction = simulate_swaps(
            self.memory, swaps, self.capacity, self.link, self.times, replays, host=self.host
        )
        return Mixed(swaps, replays, prediction)

    def view(self, replays: PlannedReplays) -> StepMemory:
        """What is left to swapping."""
        return self.narrowed(replays.applied(self.memory))

    def fitting(self, gaps: Sequence[int]) -> PlannedReplays:
        """The drops of ``gaps``, less those that one which edits demand cannot be beside, and those whose replays find
        no room for what they read and make on the way.
        """
        must, chosen = set(self.must_drop), set(gaps)
        while True:
            replays = self.replayable.resolve(sorted(must | chosen), self.fixed, self.useful, must)
            lost = must.intersection(replays.declined)
            if lost and chosen:
                chosen -= self._beside(lost, chosen) or chosen
                continue
            least = self.view(replays).least_bytes()
            over = np.flatnonzero(least > self.capacity)
            chosen = {gap for gap in replays.gap.tolist() if gap not in must}
            if not len(over) or not chosen:
                return replays
            free = replays.gap[~np.isin(replays.gap, list(must))]
            ops = np.unique(replays.in_op[np.isin(replays.gap, free)])
            # Of each op without room: what is replayed last before it.
            for op in ops[np.unique(np.maximum(np.searchsorted(ops, over, "right") - 1, 0))].tolist():
                together = replays.gap[replays.in_op == op]
                chosen.discard(self._separator([gap for gap in together.tolist() if gap not in must], op))

    def _separator(self, gaps: list[int], op: int) -> int:
        """Of the gaps that are replayed before one op, the one to keep: then the fewest others are replayed there.

        ``gaps`` come in the order of their replays. Where none is made from those before a storage but through it,
        those are no longer replayed before ``op``: nearest the middle, that makes two halves of them. It is how
        checkpointing keeps a block's input.
        """
        place = {gap: k for k, gap in enumerate(gaps)}
        passing = np.zeros(len(gaps) + 1, dtype=np.int64)  # reads that go past each of them
        for gap in gaps:
            for other in self.replayable.needs(gap, op):
                if (k := place.get(other, len(gaps))) < place[gap]:
                    passing[k + 1] += 1
                    passing[place[gap]] -= 1
        passing = np.cumsum(passing)[: len(gaps)]
        from_middle = np.abs(np.arange(len(gaps)) - len(gaps) / 2)
        inner = np.flatnonzero(from_middle <= max(0.375 * len(gaps), 1.0))
        return gaps[int(inner[np.lexsort((from_middle[inner], passing[inner]))[0]])]

    def _beside(self, gaps: Collection[int], others: Collection[int]) -> set[int]:
        """Those of ``others`` whose replay reads a storage of ``gaps`` there, or the other way round."""
        read = {other for gap in gaps for other in self.replayable.needs(gap)}
        return {
            other for other in others if other in read or not self.replayable.needs(other).isdisjoint(gaps)
        }

    def _pruned(self, mixed: Mixed) -> Mixed:
        """Without the drops that nobody needs, the dearest first: their storages fit where they are."""
        replays, memory = mixed.replays, self.memory
        profile = RangeMax(mixed.prediction.resident_bytes)
        size = memory.block_bytes[replays.storage]
        must = set(self.must_drop)
        kept = set(replays.gap.tolist())
        for k in np.lexsort((replays.gap, size)).tolist():
            begin, end, block = int(replays.out_op[k]) + 1, int(replays.in_op[k]), int(size[k])
            gap = int(replays.gap[k])
            if gap not in must and profile.last_above(begin, end, self.capacity - block) < begin:
                profile.add(begin, end, block)
                kept.discard(gap)
        if len(kept) == len(replays):
            return mixed
        fewer = self.made(sorted(kept))
        return min(mixed, fewer, key=lambda plan: plan.cost)

    def _retracted(self, mixed: Mixed, most: int) -> Mixed:
        """Without the drops whose replays cost more than the swaps in their place, the dearest tried first."""
        must = set(self.must_drop)
        gaps = [gap for gap in mixed.replays.gap.tolist() if gap not in must]
        cost_s = {gap: self.chain(gap).seconds for gap in gaps}
        for gap in sorted(gaps, key=lambda gap: (-cost_s[gap], gap))[: max(most, 0)]:
            if mixed.overhead_s <= _CHEAP * float(self.times.sum()):
                break
            others = [other for other in mixed.replays.gap.tolist() if other != gap]
            mixed = min(mixed, self.made(others), key=lambda plan: plan.cost)
        return mixed
