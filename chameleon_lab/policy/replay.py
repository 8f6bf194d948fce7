"""Rematerialising as planners see it: which storages can be made again, what that takes, and what it asks of others.

A *drop* gives a block back right after the use that its gap begins with, and copies nothing. Before op ``in_op`` a
block is taken and the op that made the storage is *replayed* from its inputs. Those must be there by then:

- An input that is alive is one more thing that is needed at ``in_op``. If it is swapped in a gap around that op, it
  has to be back by then; if it is dropped too, it is replayed right before, and stays until its own use.
- An input that has died is replayed as well, first, into memory that is given back at once: it makes a *chain* with
  the ops that follow it, of :data:`CHAIN` ops at most. Two replays that go back to one dead input make it twice.

A replay is refused here wherever it might give other bytes: where the storage or an input was written in between, or
where an op in its chain is not listed in :data:`~chameleon_lab.trace.replay_ops.REPLAY_CLASS`.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..trace import StepTrace
from ..trace.replay_ops import REPLAY_CLASS
from .memory import StepMemory, Swaps

CHAIN = 4
"""Ops that one replay may take in a row: the runtime declines a drop that would need more."""

HIGHEST_CLASS = max(REPLAY_CLASS.values())


@dataclass(frozen=True)
class Chain:
    """The ops that make a storage again at one op of the step."""

    made: tuple[int, ...]
    """Rows of the storages that are made on the way, in order; the storage itself is the last."""
    inputs: tuple[int, ...]
    """Rows of the living storages that the ops read, beside what they make."""
    seconds: float
    transient_bytes: int
    """Device memory that the ops take beside the storage itself, at most."""


class Replayable:
    """What can be replayed in a step, by ops up to a class.

    ``seconds`` are those of each op, shape (ops,). Where the step has replays already, they say what a replay of each
    kind of op takes: mostly less than the op, whose time holds its autograd and its casts too. ``refused`` holds names
    of ops and keys of storages that the runtime has declined to replay.
    """

    def __init__(
        self,
        step: StepTrace,
        memory: StepMemory,
        seconds: np.ndarray,
        replay_class: int = HIGHEST_CLASS,
        refused: Collection[str] = (),
    ) -> None:
        self.memory, self.seconds = memory, seconds
        storages, uses, n = step.storages, step.uses, memory.ops
        self._birth: list[int] = storages.birth_op.tolist()
        self._death: list[int] = np.where(storages.death_op >= n, 2 * n, storages.death_op).tolist()
        self._block: list[int] = storages.block_bytes.tolist()
        born = storages.birth_op >= 0
        newborn = storages.birth_op[uses.storage] == uses.op
        # Ops that may be replayed: of a class, and writing nothing but what they make.
        fits = np.array(
            [name not in refused and 0 < REPLAY_CLASS.get(name, 0) <= replay_class for name in step.names]
        )
        self._op_fits = fits[step.ops.name]
        self._op_fits[uses.op[uses.writes & ~newborn]] = False
        declined = np.zeros(len(storages), dtype=bool)
        if refused:
            declined[[row for row, key in enumerate(step.storage_keys) if key in refused]] = True
        possible = np.zeros(len(storages), dtype=bool)
        possible[born] = self._op_fits[storages.birth_op[born]]
        self._possible: list[bool] = (possible & storages.movable & ~declined).tolist()
        # What an op reads beside what it makes: rows reads[offset[op]:offset[op + 1]].
        read = np.flatnonzero(uses.reads & ~newborn)
        self._reads: list[int] = uses.storage[read].tolist()
        self._reads_offset: list[int] = np.searchsorted(uses.op[read], np.arange(n + 1)).tolist()
        # Ops that write a storage after its birth, ascending.
        self._writes: dict[int, list[int]] = {}
        for at in np.flatnonzero(uses.writes & ~newborn).tolist():
            self._writes.setdefault(int(uses.storage[at]), []).append(int(uses.op[at]))
        # Memory of an op beside its inputs: all that it makes, and what no storage stands for.
        made = np.bincount(storages.birth_op[born], weights=storages.block_bytes[born], minlength=n)
        alive = _alive_bytes(step, np.maximum(storages.birth_op, 0), storages.death_op + 1)
        self._op_bytes: list[int] = (
            (made + np.maximum(memory.live_bytes - alive, 0)).astype(np.int64).tolist()
        )
        # Bytes alive right before an op, when its replays run.
        before = _alive_bytes(step, storages.birth_op + 1, storages.death_op + 1)
        self.bytes_before = np.minimum(before, memory.live_bytes)
        self._candidate_of = np.full(len(storages), -1, dtype=np.int64)
        self._candidate_of[memory.row] = np.arange(len(memory.row))
        self._gap_offset: list[int] = np.searchsorted(
            memory.gap_storage, np.arange(len(memory.row) + 1)
        ).tolist()
        self._gap_row: list[int] = memory.row[memory.gap_storage].tolist()
        self._gap_out: list[int] = memory.gap_out.tolist()
        self._gap_use: list[int] = memory.gap_use.tolist()
        self._chains: dict[tuple[int, int], Chain | None] = {}
        self._needs: dict[int, tuple[int, dict[int, int]]] = {}
        if len(step.replays):
            self.seconds = seconds * self._measured(step)[step.ops.name]
            self._chains.clear()

    def _measured(self, step: StepTrace) -> np.ndarray:
        """What replays took in the step, by the name of the op that made the storage, to the time of their ops.

        float64 (names,); of names that were not replayed it is that of all together.
        """
        rows = step.replays.storage
        took_s = np.bincount(rows[rows >= 0], step.replays.duration_s[rows >= 0], len(self._birth))
        measured, told = np.zeros((2, len(step.names)))
        for row, op in dict(zip(rows.tolist(), step.replays.op.tolist(), strict=True)).items():
            chain = self.chain(row, op) if row >= 0 and self._birth[row] >= 0 else None
            if chain is not None:
                name = step.ops.name[self._birth[row]]
                measured[name] += took_s[row]
                told[name] += chain.seconds
        if not told.sum() or not measured.sum():
            return np.ones(len(step.names))
        known = (told > 0.0) & (measured > 0.0)
        shares = np.full(len(step.names), measured.sum() / told.sum())
        shares[known] = measured[known] / told[known]
        return shares

    def gaps(self) -> list[int]:
        """The gaps whose storage can be dropped and replayed before their use, ascending."""
        memory = self.memory
        returns = memory.gap_returns & (memory.gap_use < memory.ops) & ~memory.persistent[memory.gap_storage]
        return [gap for gap in np.flatnonzero(returns).tolist() if self.why_not(gap) is None]

    def why_not(self, gap: int) -> str | None:
        """Why a gap cannot be dropped; None if it can."""
        row, n = self._gap_row[gap], self.memory.ops
        birth, use = self._birth[row], self._gap_use[gap]
        if birth < 0:
            return "no op of the step makes it"
        if not self.memory.gap_returns[gap] or use >= n:
            return "it is not used again in the step"
        if not self._possible[row]:
            return "the op that makes it cannot be replayed"
        if not self._unwritten(row, birth, self._gap_out[gap] + 1):
            return "it is written after the op that makes it"
        if self.chain(row, use) is None:
            return f"an input is gone or written by then, and no chain of {CHAIN} ops makes it again"
        return None

    def chain(self, row: int, op: int) -> Chain | None:
        """How to make a storage again before ``op``; None if it cannot be done."""
        key = (row, op)
        if key not in self._chains:
            made: dict[int, int] = {}
            inputs: dict[int, None] = {}
            self._chains[key] = self._chained(made, inputs) if self._visit(row, op, made, inputs) else None
        return self._chains[key]

    def _chained(self, made: dict[int, int], inputs: dict[int, None]) -> Chain:
        rows = tuple(made)
        ops = [self._birth[row] for row in rows]
        *dead, last = rows
        work = max(self._op_bytes[op] - self._block[row] for op, row in zip(ops, rows, strict=True))
        return Chain(
            made=rows,
            inputs=tuple(inputs),
            seconds=sum(float(self.seconds[op]) for op in ops),
            transient_bytes=sum(self._block[row] for row in dead) + work,
        )

    def _visit(self, row: int, op: int, made: dict[int, int], inputs: dict[int, None]) -> int:
        """Put what it takes to make ``row`` before ``op`` into ``made`` and ``inputs``; ops in a row, 0 if too many."""
        if not self._possible[row]:
            return 0
        birth, level = self._birth[row], 1
        for read in self._reads[self._reads_offset[birth] : self._reads_offset[birth + 1]]:
            if read in made:
                level = max(level, made[read] + 1)
            elif self._death[read] >= op:
                if not self._unwritten(read, birth, op):
                    return 0
                inputs[read] = None
            else:
                # It is made as it was at its birth: it must have stayed so until it died.
                before = self._unwritten(read, self._birth[read], op) and self._visit(read, op, made, inputs)
                if not before:
                    return 0
                level = max(level, before + 1)
        if level > CHAIN:
            return 0
        made[row] = level
        return level

    def _unwritten(self, row: int, after: int, before: int) -> bool:
        """Is there no write to a storage at the ops ``after < op < before``?"""
        writes = self._writes.get(row)
        if writes is None:
            return True
        at = bisect_right(writes, after)
        return at == len(writes) or writes[at] >= before

    def gap_around(self, row: int, op: int) -> tuple[int, int] | None:
        """The gap of a storage in which, or at whose end, ``op`` lies, and ``op`` as that gap counts; None if none."""
        candidate = self._candidate_of[row]
        if candidate < 0:
            return None
        begin, end = self._gap_offset[candidate], self._gap_offset[candidate + 1]
        for at in (op, op + self.memory.ops):
            gap = bisect_right(self._gap_out, at - 1, begin, end) - 1
            if gap >= begin and self._gap_out[gap] < at <= self._gap_use[gap]:
                return gap, at
        return None

    # ---------------------------------------------------------------------------------------------- together

    def resolve(
        self,
        gaps: Iterable[int],
        fixed: Collection[int] = (),
        useful: np.ndarray | None = None,
        must: Collection[int] = (),
    ) -> Replays:
        """What dropping these gaps (of :meth:`gaps`) together asks for.

        Left out, and listed in ``declined``, are those whose chain gets too long since its inputs are dropped too,
        those that need an input in one of the gaps ``fixed``, which others decide about, and those that are replayed so
        soon that they are away at no ``useful`` op, int64 (ops + 1,) of how many of those come before each op. Those of
        ``must`` need not be useful.
        """
        asked, fixed, must = list(gaps), set(fixed), set(must)
        too_long: set[int] = set()
        while True:
            replays = self._resolved([gap for gap in asked if gap not in too_long], fixed, useful, must)
            more = self._too_long(replays)
            if not more:
                break
            too_long |= more
        return dataclasses.replace(replays, declined=tuple(sorted({*replays.declined, *too_long})))

    def _too_long(self, replays: Replays) -> set[int]:
        """Drops that the runtime would decline: at some op between a drop and its replay its chain is too long.

        A replay may come before the use, for another one, when inputs that are back by the use are still away; and an
        input may be dropped while what is made of it is away. The runtime declines what is dropped last.
        """
        back = dict(zip(replays.gap.tolist(), replays.in_op.tolist(), strict=True))
        gaps_of_row: dict[int, list[int]] = {}
        for gap in back:
            gaps_of_row.setdefault(self._gap_row[gap], []).append(gap)
        found: set[int] = set()

        def ops_in_a_row(gap: int, op: int, inputs: set[int], most: int = CHAIN + 1) -> int:
            chain = self.chain(self._gap_row[gap], op)
            if chain is None or most <= 0:
                return CHAIN + 1
            own, read = self._ops_from(chain)
            longest = own
            for row, ops in read.items():
                inputs.add(row)
                around = self.gap_around(row, op)
                if around is not None and around[1] <= back.get(around[0], -1) and around[0] not in found:
                    longest = max(longest, ops + ops_in_a_row(around[0], op, inputs, most - ops))
            return longest

        for gap in back:
            begin, inputs = self._gap_out[gap] + 1, set[int]()
            if max(ops_in_a_row(gap, op, inputs) for op in (begin, back[gap])) > CHAIN:
                found.add(gap)
                continue
            for row in inputs:
                for other in gaps_of_row.get(row, ()):
                    later = self._gap_out[other] + 1
                    between = other not in found and begin < later < back[gap]
                    if between and ops_in_a_row(gap, later, set()) > CHAIN:
                        found.add(other)
        return found

    def _resolved(
        self, gaps: Iterable[int], fixed: set[int], useful: np.ndarray | None, must: set[int]
    ) -> Replays:
        """:meth:`resolve`, as far as chains at the uses tell."""
        row_of, birth = self._gap_row, self._birth
        order = sorted(gaps, key=lambda gap: (birth[row_of[gap]], gap))
        declined = []
        lengths: dict[int, int] = {}
        for gap in order:
            length = self.length(gap, lengths)
            if length > CHAIN or not fixed.isdisjoint(self.needs(gap)[1]):
                declined.append(gap)
            else:
                lengths[gap] = length
        n = self.memory.ops
        needed: dict[int, int] = {}
        stays: set[int] = set()
        replayed_at: dict[int, int] = {}
        seconds, transient = np.zeros(n), np.zeros(n, dtype=np.int64)
        for gap in reversed(order):  # a storage comes before all that is made of it
            if gap not in lengths:
                continue
            op = needed.get(gap, self._gap_use[gap])
            begin = self._gap_out[gap] + 1
            if op <= begin or (useful is not None and gap not in must and useful[op] == useful[begin]):
                declined.append(gap)
                continue
            needed.pop(gap, None)
            chain = self.chain(row_of[gap], op)
            assert chain is not None  # what is alive at the use is so before it
            seconds[op] += chain.seconds
            transient[op] = max(int(transient[op]), chain.transient_bytes)
            for row in chain.inputs:
                around = self.gap_around(row, op)
                if around is None:
                    continue
                other, at = around
                if self.memory.gap_returns[other]:
                    needed[other] = min(needed.get(other, at), at)
                else:
                    stays.add(other)
            replayed_at[gap] = op
        # A storage before what is made of it.
        taken = np.array([gap for gap in order if gap in replayed_at], dtype=np.int64)
        memory = self.memory
        return Replays(
            gap=taken,
            storage=memory.gap_storage[taken],
            ordinal=memory.gap_ordinal[taken],
            out_op=memory.gap_out[taken],
            in_op=np.array([replayed_at[gap] for gap in taken.tolist()], dtype=np.int64),
            use_op=memory.gap_use[taken],
            seconds=seconds,
            transient_bytes=transient,
            bytes_before=self.bytes_before,
            needed=needed,
            stays=frozenset(stays),
            declined=tuple(sorted(declined)),
        )

    def needs(self, gap: int) -> tuple[int, dict[int, int]]:
        """How long the chain of a gap is at its use, in ops in a row; and the gaps of its inputs around there.

        Those come with the ops in a row from the one that reads them on: if one is dropped too, its own chain adds up.
        """
        if gap not in self._needs:
            op = self._gap_use[gap]
            chain = self.chain(self._gap_row[gap], op)
            assert chain is not None
            own, read = self._ops_from(chain)
            inputs: dict[int, int] = {}
            for row, ops in read.items():
                if (around := self.gap_around(row, op)) is not None:
                    inputs[around[0]] = max(inputs.get(around[0], 0), ops)
            self._needs[gap] = own, inputs
        return self._needs[gap]

    def _ops_from(self, chain: Chain) -> tuple[int, dict[int, int]]:
        """How many ops in a row a chain has; and by input those from the one that reads it on."""
        # From the last op to the first: what an op reads is made by one that comes before it.
        ops_from = {chain.made[-1]: 1}
        inputs: dict[int, int] = {}
        for row in reversed(chain.made):
            length, birth = ops_from[row], self._birth[row]
            for read in self._reads[self._reads_offset[birth] : self._reads_offset[birth + 1]]:
                if read in chain.made:
                    ops_from[read] = max(ops_from.get(read, 0), length + 1)
                else:
                    inputs[read] = max(inputs.get(read, 0), length)
        return max(ops_from.values()), inputs

    def length(self, gap: int, lengths: Mapping[int, int]) -> int:
        """Ops in a row that a replay of a gap takes, where other drops take ``lengths``."""
        own, inputs = self.needs(gap)
        return max([own, *(ops + lengths[other] for other, ops in inputs.items() if other in lengths)])


@dataclass(frozen=True)
class Replays:
    """Drops of a step, bound to the gaps of its memory, with all that follows from them together.

    ``R`` drops, a storage before those that are made of it. The op indices are those of
    :class:`~chameleon_lab.policy.Decision`; ``free_op`` is ``out_op + 1``.
    """

    gap: np.ndarray
    """int64 (R,): gap of the StepMemory"""
    storage: np.ndarray
    """int64 (R,): candidate"""
    ordinal: np.ndarray
    """int64 (R,)"""
    out_op: np.ndarray
    """int64 (R,)"""
    in_op: np.ndarray
    """int64 (R,): the op before which it is replayed: its use, or the first replay that reads it"""
    use_op: np.ndarray
    """int64 (R,)"""
    seconds: np.ndarray
    """float64 (ops,): time of the replays that run right before each op"""
    transient_bytes: np.ndarray
    """int64 (ops,): device memory that those take beside what they make, at most"""
    bytes_before: np.ndarray
    """int64 (ops,): bytes alive right before each op"""
    needed: dict[int, int]
    """Other gaps, by the op inside them, or at their end, before which a replay reads their storage first."""
    stays: frozenset[int]
    """Gaps of dead time whose storage a replay still reads: it must not leave."""
    declined: tuple[int, ...]
    """Gaps that were asked for and are not dropped."""

    def __len__(self) -> int:
        return len(self.gap)

    @classmethod
    def none(cls, ops: int) -> Replays:
        """No drop at all, in a step of so many ops."""
        nothing, zeros = np.empty(0, dtype=np.int64), np.zeros(ops, dtype=np.int64)
        return cls(*([nothing] * 6), np.zeros(ops), zeros, zeros, {}, frozenset(), ())

    def applied(self, memory: StepMemory) -> StepMemory:
        """The step as swapping sees it: with the drops made, and gaps that end where a replay reads their storage.

        Gaps that are not left to swapping keep their index, and have no op inside.
        """
        if not len(self):
            return memory
        use = memory.gap_use.copy()
        for gap, op in self.needed.items():
            use[gap] = op
        closed = np.concatenate([self.gap, np.array(sorted(self.stays), dtype=np.int64)])
        use[closed] = memory.gap_out[closed] + 1
        away = memory.away_bytes(self.storage, self.out_op + 1, self.in_op)
        live = np.maximum(memory.live_bytes, self.bytes_before + self.transient_bytes) - away
        return dataclasses.replace(memory, live_bytes=live, gap_use=use)

    def served(self, memory: StepMemory, swaps: Swaps) -> tuple[Swaps, np.ndarray]:
        """The swaps, back in time for the replays that read them; and which those are, bool (swaps,).

        A storage of ``stays`` does not leave.
        """
        if not len(self):
            return swaps, np.zeros(len(swaps), dtype=bool)
        gap = gaps_of(memory, swaps)
        kept = ~np.isin(gap, list(self.stays))
        if not kept.all():
            swaps, gap = swaps.taken(kept), gap[kept]
        needed = np.full(len(memory.gap_use) + 1, 2 * memory.ops, dtype=np.int64)
        needed[list(self.needed)] = list(self.needed.values())
        use = np.minimum(swaps.use_op, needed[gap])  # of gap -1, the last: no limit
        early = needed[gap] <= swaps.use_op
        back = np.where(early, np.minimum(swaps.in_op, use), swaps.in_op)
        free = np.where(early, np.minimum(swaps.free_op, back), swaps.free_op)
        return dataclasses.replace(swaps, free_op=free, in_op=back, use_op=use), early


def gaps_of(memory: StepMemory, swaps: Swaps) -> np.ndarray:
    """The gap of each swap, int64 (swaps,); -1 where there is none."""
    most = int(memory.gap_ordinal.max(initial=0)) + 2
    key = memory.gap_storage * most + memory.gap_ordinal + 1
    wanted = swaps.storage * most + swaps.ordinal + 1
    if not len(key):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where(key[at] == wanted, at, -1)


def _alive_bytes(step: StepTrace, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Bytes of the blocks at each op, int64 (ops,), if each is there for ``begin <= op < end``."""
    n = len(step.ops)
    change = np.zeros(n + 2, dtype=np.int64)
    np.add.at(change, np.minimum(begin, n + 1), step.storages.block_bytes)
    np.subtract.at(change, np.minimum(end, n + 1), step.storages.block_bytes)
    return np.cumsum(change)[:n]
