"""Edits as constraints on one step: gaps that stay, forced swaps and drops, and moved prefetches.

The planner sees a step whose kept gaps do not exist and whose forced swaps have been made, and plans the rest
around them; then the prefetches move. An edit that cannot be obeyed, or not wholly, leaves a Finding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..policy.edits import Edit, EditAction, Fault, Finding, StorageIndex, means_named
from ..policy.link import Link
from ..policy.model import NEVER
from ..trace import Category, StepTrace
from ..util.units import format_bytes
from .memory import StepMemory, Swaps
from .replay import PlannedReplays, ReplayChains, gaps_of


def conditions(edits: Sequence[Edit], capacity_bytes: int, link: Link) -> tuple[int, Link, list[Finding]]:
    """Capacity and link to plan for: those of the last edit of each kind, else the ones given."""
    findings = []
    last: dict[EditAction, int] = {}
    for index, edit in enumerate(edits):
        if edit.action not in (EditAction.CAPACITY, EditAction.LINK):
            continue
        before = last.get(edit.action)
        if before is not None and _asked(edits[before]) != _asked(edit):
            findings.append(_contradicted(before, edits[before], edit, "the whole plan"))
        last[edit.action] = index
        capacity_bytes = edit.capacity_bytes or capacity_bytes
        link = edit.link or link
    return capacity_bytes, link, findings


def evict_last_rows(step: StepTrace, edits: Sequence[Edit]) -> np.ndarray:
    """Storages that eviction should take last, bool (storages,)."""
    index = StorageIndex(step) if edits else None
    evict_last = np.zeros(len(step.storages), dtype=bool)
    for edit in _about_eviction(edits):
        assert index is not None
        evict_last[index.rows(edit)] = edit.action is EditAction.NEVER_TOUCH
    return evict_last


class EvictLastByName:
    """Whether eviction should take a named storage last: known before any step has been recorded."""

    def __init__(self) -> None:
        self._edits: tuple[Edit, ...] = ()
        self._known: dict[tuple[Category, str, int], bool] = {}

    def __call__(self, edits: tuple[Edit, ...], category: Category, label: str, block_bytes: int) -> bool:
        """Should eviction take the storage last? ``label`` is a name such as ``exp_avg of h.0.weight``."""
        if not edits:
            return False
        if edits is not self._edits:
            self._edits, self._known = edits, {}
        asked = (category, label, block_bytes)
        if asked not in self._known:
            fitting = [edit for edit in _about_eviction(edits) if means_named(edit, *asked)]
            self._known[asked] = bool(fitting) and fitting[-1].action is EditAction.NEVER_TOUCH
        return self._known[asked]


def _about_eviction(edits: Sequence[Edit]) -> list[Edit]:
    """The edits that decide about eviction order, in ascending rank.

    Eviction knows no gaps: a storage that must not be touched in one of them is taken last at any time.
    """
    whole = [e for e in edits if e.is_residence and (e.gap is None or e.action is EditAction.NEVER_TOUCH)]
    return sorted(whole, key=lambda edit: edit.specificity)  # stable: the later one still decides


class Constraints:
    """Edits bound to the gaps of a step, each question decided by the edit of the highest rank.

    A *place* is a gap, or a dormant storage (one that no op uses): shape (G + D,).
    """

    def __init__(
        self,
        step: StepTrace,
        memory: StepMemory,
        edits: Sequence[Edit],
        replayable: ReplayChains | None = None,
    ) -> None:
        self.step, self.memory, self.edits = step, memory, tuple(edits)
        self.replayable = replayable
        self.findings: list[Finding] = []
        gaps, dormant = len(memory.gap_storage), len(memory.dormant)
        self._places = gaps + dormant
        self._owner = np.concatenate([memory.gap_storage, memory.dormant])
        self._ordinal = np.concatenate([memory.gap_ordinal, np.full(dormant, NEVER)])
        # The edit that decides at each place, or -1: about being away, about being replayed, and about the prefetch.
        self._residence = np.full(self._places, -1)
        self._replay = np.full(self._places, -1)
        self._prefetch = np.full(self._places, -1)
        if any(edit.action not in (EditAction.CAPACITY, EditAction.LINK) for edit in self.edits):
            self._decide()
        self.forced = self._decided(self._residence, EditAction.SWAP)
        """bool (G + D,): must be swapped."""
        self.dropped = self._decided(self._residence, EditAction.REMATERIALIZE)
        """bool (G + D,): must be dropped and replayed, as far as they can be."""
        self.stay = (self._residence >= 0) & ~self.forced & ~self.dropped
        """bool (G + D,): must not leave."""

    def _decided(self, by: np.ndarray, action: EditAction) -> np.ndarray:
        """The places at which an edit of ``action`` decides, bool (G + D,)."""
        is_it = np.array([edit.action is action for edit in self.edits] + [False])
        decided: np.ndarray = is_it[by]  # -1 is the last
        return decided

    # ------------------------------------------------------------------------------------------------ deciding

    def _decide(self) -> None:
        index = StorageIndex(self.step)
        candidate_of = np.full(len(self.step.storages), -1, dtype=np.int64)
        candidate_of[self.memory.row] = np.arange(len(self.memory.row))
        meant: dict[int, np.ndarray] = {}
        lost: dict[tuple[int, int], list[int]] = {}
        order = sorted(range(len(self.edits)), key=lambda k: (self.edits[k].specificity, k))
        for k in order:
            edit = self.edits[k]
            if edit.action in (EditAction.CAPACITY, EditAction.LINK):
                continue
            rows = index.rows(edit)
            if not len(rows):
                self.findings.append(index.unmatched(k, edit))
                continue
            candidates = candidate_of[rows]
            meant[k] = self._meant(k, edit, rows, candidates[candidates >= 0])
            for decided in self._questions(edit):
                for place in meant[k].tolist():
                    before = int(decided[place])
                    if before >= 0 and _opposed(self.edits[before], edit):
                        lost.setdefault((before, k), []).append(place)
                decided[meant[k]] = k
        never = self._decided(self._replay, EditAction.NEVER_REMATERIALIZE)
        self._residence[never & self._decided(self._residence, EditAction.REMATERIALIZE)] = -1
        self._report_losers(meant, lost)

    def _questions(self, edit: Edit) -> list[np.ndarray]:
        """What an edit has a say in: the edits that decide at each place, the first question being its own."""
        own = {EditAction.PREFETCH: self._prefetch, EditAction.NEVER_REMATERIALIZE: self._replay}
        questions = [own.get(edit.action, self._residence)]
        return [*questions, self._replay] if edit.action is EditAction.REMATERIALIZE else questions

    def _uses(self, rows: np.ndarray) -> int:
        """How often the step uses storages, their births among it."""
        births = int((self.step.storages.birth_op[rows] >= 0).sum())
        return births + int(np.isin(self.step.uses.storage, rows).sum())

    def _meant(self, k: int, edit: Edit, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """The places that an edit means: it names ``rows``, and of them ``candidates`` can leave."""
        keeps = not edit.leaves and edit.action is not EditAction.PREFETCH
        if not len(candidates):
            if not keeps:  # what cannot leave is kept anyway
                why = "its storages must stay on the device, or are too small to move"
                self._impossible(k, why)
            elif edit.gap is not None and edit.gap >= (uses := self._uses(rows)):
                self._impossible(k, f"the step uses it {uses} times: there is no gap {edit.gap}")
            return np.empty(0, dtype=np.int64)
        places = np.flatnonzero(np.isin(self._owner, candidates))
        if edit.gap is not None:
            own = places[self._ordinal[places] == edit.gap]
            if not len(own):
                gaps = ", ".join(str(gap) for gap in self._ordinal[places].tolist() if gap != NEVER)
                self._impossible(
                    k, f"it has no gap {edit.gap} in which it could be away; it has {gaps or 'none'}"
                )
            return self._returning(k, own) if edit.action is EditAction.PREFETCH else own
        if edit.leaves:
            own = self._longest(places)
            if not len(own):
                self._impossible(k, "its storages are in use all the time")
            return own
        if edit.action is EditAction.PREFETCH:
            return self._returning(k, places)
        return places

    def _returning(self, k: int, places: np.ndarray) -> np.ndarray:
        """Those of the places of a prefetch from which a storage would come back."""
        gaps = places[places < len(self.memory.gap_storage)]
        returning: np.ndarray = gaps[self.memory.gap_returns[gaps]]
        if not len(returning):
            self._impossible(k, "it has no swap-in, so there is no prefetch to move")
        return returning

    def _longest(self, places: np.ndarray) -> np.ndarray:
        """Of each storage the longest gap; dead time only where there is nothing else."""
        memory, gaps = self.memory, len(self.memory.gap_storage)
        length = np.concatenate([memory.gap_use - memory.gap_out, np.zeros(self._places - gaps)])
        returns = np.concatenate([memory.gap_returns, np.zeros(self._places - gaps, dtype=bool)])
        order = places[np.lexsort((length[places], returns[places], self._owner[places]))]
        last = np.append(self._owner[order][1:] != self._owner[order][:-1], True)[: len(order)]
        longest: np.ndarray = order[last]
        return longest

    def _report_losers(self, meant: dict[int, np.ndarray], lost: dict[tuple[int, int], list[int]]) -> None:
        contradicted = set()
        for (loser, winner), places in lost.items():
            if self.edits[loser].specificity == self.edits[winner].specificity:
                contradicted.add(loser)
                where = f"{len(places)} gaps, the first of {self._key(places[0])}"
                self.findings.append(_contradicted(loser, self.edits[loser], self.edits[winner], where))
        for k, asked in meant.items():
            decided = self._questions(self.edits[k])[0]
            if len(asked) and k not in contradicted and not (decided[asked] == k).any():
                place = asked[0]
                winner = int(decided[place] if decided[place] >= 0 else self._replay[place])
                why = f"{self.edits[winner]} and the like decide everywhere it speaks of"
                self.findings.append(
                    Finding(Fault.OVERRIDDEN, k, self.edits[k], why, "remove it, or the overriding edits")
                )

    # ------------------------------------------------------------------------------------------------ planning

    def narrowed(self, forced: Swaps, memory: StepMemory | None = None) -> StepMemory:
        """The step (or ``memory``) as the planner shall see it: the forced swaps made, and only the free gaps left."""
        memory = self.memory if memory is None else memory
        gaps = len(memory.gap_storage)
        free = ~(self.stay | self.forced)
        columns = ("gap_storage", "gap_ordinal", "gap_out", "gap_use", "gap_returns")
        return dataclasses.replace(
            memory,
            live_bytes=memory.live_bytes - memory.away_bytes(forced.storage, forced.free_op, forced.in_op),
            dormant=memory.dormant[free[gaps:]],
            **{name: getattr(memory, name)[free[:gaps]] for name in columns},
        )

    def forced_swaps(self, link: Link, times: np.ndarray, *, widest: bool = False) -> Swaps:
        """The swaps that edits demand: freed once the copy out has had its time, back one copy before the use.

        ``widest``: away for the whole gap instead, whatever the stalls.
        """
        memory, gaps = self.memory, len(self.memory.gap_storage)
        taken = np.flatnonzero(self.forced[:gaps])
        out, use, returns = memory.gap_out[taken], memory.gap_use[taken], memory.gap_returns[taken]
        size = memory.gap_bytes[taken].tolist()
        free, back = out + 1, use.copy()
        if not widest:
            start = np.concatenate([[0.0], np.cumsum(np.tile(times, 3))])
            in_s, out_s = np.array([link.in_s(b) for b in size]), np.array([link.out_s(b) for b in size])
            latest = np.searchsorted(start, start[use] - in_s, "right") - 1
            back = np.where(returns, np.clip(latest, out + 1, use), use)
            free = np.clip(np.searchsorted(start, start[out + 1] + out_s, "left"), out + 1, back)
        return memory.swaps(taken, free, back, memory.dormant[self.forced[gaps:]])

    def drops(self, capacity_bytes: int, forced: Swaps) -> tuple[list[int], list[int]]:
        """The gaps that edits demand to be dropped, as far as they can be, and those that the planner may drop."""
        asked = np.flatnonzero(self.dropped[: len(self.memory.gap_storage)]).tolist()
        why: dict[int, str] = {}
        if self.replayable is None:
            why = dict.fromkeys(asked, "replaying is switched off")
        else:
            why = {gap: reason for gap in asked if (reason := self.replayable.why_not(gap)) is not None}
            why |= self._without_room([gap for gap in asked if gap not in why], capacity_bytes, forced)
        self._report_drops(why)
        must = [gap for gap in asked if gap not in why]
        if self.replayable is None:
            return must, []
        barred = self.stay | self.forced | self._decided(self._replay, EditAction.NEVER_REMATERIALIZE)
        barred[must] = True
        return must, [gap for gap in self.replayable.gaps() if not barred[gap]]

    def _without_room(self, gaps: list[int], capacity_bytes: int, forced: Swaps) -> dict[int, str]:
        """Of gaps that could be dropped one by one: those that cannot be together, and why."""
        assert self.replayable is not None
        fixed = gaps_of(self.memory, forced).tolist()
        why: dict[int, str] = {}
        while True:
            replays = self.replayable.resolve([gap for gap in gaps if gap not in why], fixed)
            for gap in replays.declined:
                why[gap] = (
                    "with the other edits, its inputs are away or too many ops would be replayed in a row"
                )
            over = np.flatnonzero(
                self.narrowed(forced, replays.applied(self.memory)).least_bytes() > capacity_bytes
            )
            if not len(over) or not len(replays):
                return why
            before = replays.in_op[replays.in_op <= over[0]]
            op = int(before.max()) if len(before) else int(replays.in_op.max())
            for gap in replays.gap[replays.in_op == op].tolist():
                why[gap] = f"its replay before op {op} has no room for its inputs and results"

    def _report_drops(self, why: dict[int, str]) -> None:
        """Of each edit that demands drops: what of it is not obeyed."""
        gaps = len(self.memory.gap_storage)
        for k in sorted({int(edit) for edit in self._residence[self.dropped].tolist()}):
            places = np.flatnonzero(self.dropped & (self._residence == k)).tolist()
            failed = [place for place in places if place in why or place >= gaps]
            if not failed:
                continue
            reason = why.get(failed[0], "no op of the step uses it")
            if len(failed) == len(places):
                self._impossible(k, f"{self._key(failed[0])} cannot be replayed: {reason}")
            else:
                count, first = f"{len(failed)} of {len(places)}", self._key(failed[0])
                reason = f"{count} gaps cannot be dropped, that of {first}: {reason}"
                self.findings.append(
                    Finding(Fault.CLIPPED, k, self.edits[k], reason, "name only replayable storages")
                )

    def named(self, gaps: Sequence[int]) -> list[tuple[int, int]]:
        """The (candidate, ordinal) of gaps."""
        memory = self.memory
        return [(int(memory.gap_storage[gap]), int(memory.gap_ordinal[gap])) for gap in gaps]

    def shifted(
        self, swaps: Swaps, capacity_bytes: int, replays: PlannedReplays
    ) -> tuple[Swaps, set[tuple[int, int]]]:
        """Move the prefetches that edits speak of, as far as the capacity and the replays allow.

        Returns the swaps, and the (storage, ordinal) of those that moved.
        """
        memory, n = self.memory, self.memory.ops
        wanted = {
            (int(self._owner[place]), int(self._ordinal[place])): int(self._prefetch[place])
            for place in np.flatnonzero(self._prefetch >= 0).tolist()
        }
        if not wanted:
            return swaps, set()
        in_op = swaps.in_op.copy()
        resident = replays.applied(memory).live_bytes - memory.away_bytes(
            swaps.storage, swaps.free_op, swaps.in_op
        )
        found: dict[int, int] = dict.fromkeys(wanted.values(), 0)
        short: dict[int, list[tuple[str, int]]] = {}
        moved = set()
        for k in range(len(swaps)):
            gap = (int(swaps.storage[k]), int(swaps.ordinal[k]))
            if gap not in wanted or not swaps.returns[k]:
                continue
            edit = wanted[gap]
            found[edit] += 1
            asked, old = self.edits[edit].ops_earlier or 0, int(in_op[k])
            size = int(memory.block_bytes[gap[0]])
            new = min(max(old - asked, int(swaps.free_op[k])), int(swaps.use_op[k]))
            if new < old:
                between = np.arange(new, old) % n
                full = np.flatnonzero(resident[between] + size > capacity_bytes)
                new += int(full[-1]) + 1 if len(full) else 0
                np.add.at(resident, np.arange(new, old) % n, size)
            else:
                np.subtract.at(resident, np.arange(old, new) % n, size)
            in_op[k] = new
            if new != old:
                moved.add(gap)
            if old - new != asked:
                short.setdefault(edit, []).append((self._key_of(gap[0]), abs(old - new)))
        self._report_prefetches(found, short)
        return dataclasses.replace(swaps, in_op=in_op), moved

    def _report_prefetches(self, found: dict[int, int], short: dict[int, list[tuple[str, int]]]) -> None:
        for k, count in sorted(found.items()):
            edit, asked = self.edits[k], abs(self.edits[k].ops_earlier or 0)
            if not count:
                self._impossible(k, "none of its storages is swapped, so there is no prefetch to move")
            elif k in short:
                key, ops = short[k][0]
                why = (
                    f"{len(short[k])} of {count} prefetches move less far: that of {key} by {ops} of {asked} ops, "
                    "where its gap or the capacity ends"
                )
                self.findings.append(
                    Finding(Fault.CLIPPED, k, edit, why, "ask for fewer ops, or raise the capacity")
                )

    def blame(
        self, op: int, floor_bytes: int, capacity_bytes: int, measured_on: str | None = None
    ) -> list[Finding]:
        """The edits that make the floor exceed the capacity at ``op``, those that keep most there first.

        ``measured_on`` is that of the floor; None where ``floor_bytes`` are not measured but planned.
        """
        memory, gaps = self.memory, len(self.memory.gap_storage)
        n = memory.ops
        kept: dict[int, int] = {}
        covers = np.zeros(self._places, dtype=bool)
        for at in (op, op + n):
            covers[:gaps] |= (memory.gap_out < at) & (at < memory.gap_use)
        covers[gaps:] = True
        for place in np.flatnonzero(covers & self.stay).tolist():
            k = int(self._residence[place])
            kept[k] = kept.get(k, 0) + int(memory.block_bytes[self._owner[place]])
        return [
            Finding(
                Fault.UNREACHABLE,
                k,
                self.edits[k],
                f"with the edits no policy fits {format_bytes(capacity_bytes)}: the floor is "
                f"{format_bytes(floor_bytes)} at op {op} ({self.step.op_name(op)}), and this edit keeps "
                f"{format_bytes(size)} there"
                + ("" if measured_on is None else f" (the floor is {measured_on})"),
                f"take it back, or give at least {floor_bytes} bytes",
                floor_bytes,
            )
            for k, size in sorted(kept.items(), key=lambda item: (-item[1], item[0]))
        ]

    def _impossible(self, k: int, why: str) -> None:
        self.findings.append(Finding(Fault.IMPOSSIBLE, k, self.edits[k], why, "mend it, or take it back"))

    def _key(self, place: int) -> str:
        return self._key_of(int(self._owner[place]))

    def _key_of(self, candidate: int) -> str:
        return self.step.storage_keys[int(self.memory.row[candidate])]


def joined(*parts: Swaps) -> Swaps:
    """Several swaps as one."""
    names = [f.name for f in dataclasses.fields(Swaps)]
    return Swaps(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _opposed(one: Edit, other: Edit) -> bool:
    """Is ``one`` not obeyed where ``other`` decides?"""
    if one.action is EditAction.PREFETCH:
        return one.ops_earlier != other.ops_earlier
    if one.action is EditAction.NEVER_TOUCH and other.action is EditAction.KEEP:
        return True  # both keep it in the plan, and eviction may take it all the same
    return (one.action if one.leaves else None) is not (other.action if other.leaves else None)


def _asked(edit: Edit) -> tuple[int | None, Link | None]:
    return edit.capacity_bytes, edit.link


def _contradicted(loser: int, edit: Edit, other: Edit, where: str) -> Finding:
    why = f"{other} comes later and decides for {where}"
    return Finding(Fault.CONTRADICTED, loser, edit, why, "take one of the two back")
