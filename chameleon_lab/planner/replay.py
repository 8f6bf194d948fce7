"""Rematerialization for planners: replayable storages, their cost, and their inputs.

A *drop* gives a block back right after the use that its gap begins with, and copies nothing. Before op ``in_op`` a
block is taken and the op that made the storage is *replayed* from its inputs. Those must be there by then:

- An input that is alive is one more thing that is needed at ``in_op``. If it is swapped in a gap around that op, it
  has to be back by then; if it is dropped too, it is replayed right before, and stays until its own use.
- An input that has died, or holds another value by then, is made again as well, first, into memory that is given back
  at once: it makes a *chain* with the ops that follow it, of :data:`CHAIN` ops in a row at most. Two replays that go
  back to one such input make it twice. What an op in place has changed is made first too, in the memory of its result.

What a replay makes are :class:`~chameleon_lab.planner.values.Values`. It is refused here wherever it might give other
bytes: where nobody knows what wrote a value in its chain, or where an op of it is not listed in
:data:`~chameleon_lab.trace.replay_ops.REPLAY_CLASS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..trace import StepTrace
from ..trace.alive_bytes import bytes_between
from ..trace.replay_ops import REPLAY_CLASS
from . import native
from .memory import StepMemory, Swaps
from .values import AT_FIRST, Values, values_of

CHAIN = 12
"""Ops in a row that one replay may take for values that have died: the runtime declines a drop that would need more."""

HIGHEST_CLASS = max(REPLAY_CLASS.values())


@dataclass(frozen=True)
class Chain:
    """The ops that make a storage again at one op of the step."""

    values: tuple[int, ...]
    """What is made on the way, in order: indices into the step's :class:`~chameleon_lab.planner.values.Values`. That of
    the storage itself is the last."""
    made: tuple[int, ...]
    """Rows of the storages that held those."""
    names: tuple[int, ...]
    """The ops that make them: indices into ``StepTrace.names``."""
    inputs: tuple[int, ...]
    """Rows of the living storages that the ops read, beside what they make."""
    op_seconds: tuple[float, ...]
    """What each op takes."""
    seconds: float
    """What all of them take."""
    transient_bytes: int
    """Device memory that the ops take beside the storage itself, at most."""


class ReplayChains:
    """What can be replayed in a step, by ops up to a class.

    ``seconds`` are those of each op, shape (ops,). Where the step has replays already, they say what a replay of each
    kind of op takes: mostly less than the op, whose time holds its autograd and its casts too. ``refused`` holds names
    of ops and keys of storages that the runtime has declined to replay. Where the step retains storages (rows, each
    ``until`` an op; see :mod:`~chameleon_lab.planner.retention`), ``values`` are those of the step without that.
    """

    def __init__(
        self,
        step: StepTrace,
        memory: StepMemory,
        seconds: np.ndarray,
        replay_class: int = HIGHEST_CLASS,
        refused: Collection[str] = (),
        *,
        values: Values | None = None,
        until: Mapping[int, int] | None = None,
    ) -> None:
        self.memory = memory
        self._given = seconds, replay_class, refused
        self._until = until or {}
        storages = step.storages
        self._birth: list[int] = storages.birth_op.tolist()
        fits = np.array(
            [name not in refused and 0 < REPLAY_CLASS.get(name, 0) <= replay_class for name in step.names],
            dtype=bool,
        )
        declined = np.zeros(len(storages), dtype=bool)
        if refused:
            declined[[row for row, key in enumerate(step.storage_keys) if key in refused]] = True
        self.values = values_of(step, fits) if values is None else values
        may_replay = (storages.movable & ~declined).tolist()
        self._possible = [
            fits and may_replay[row] for fits, row in zip(self.values.fits, self.values.row, strict=True)
        ]
        # Bytes alive right before an op, when its replays run.
        before = bytes_between(
            len(step.ops), storages.birth_op + 1, storages.death_op + 1, storages.block_bytes
        )
        self.bytes_before = np.minimum(before, memory.live_bytes)
        self._gap_row: list[int] = memory.row[memory.gap_storage].tolist()
        self._gap_use: list[int] = memory.gap_use.tolist()
        self._returns: list[bool] = memory.gap_returns.tolist()
        value_s = np.array(self.values.share) * seconds[self.values.op]
        self._begin(step, value_s)
        if len(step.replays):
            self._begin(step, value_s * self._measured(step)[self.values.name])

    def _begin(self, step: StepTrace, value_s: np.ndarray) -> None:
        """With no chain found yet, where the ops of the values take so long: float64 (values,)."""
        memory, storages, values = self.memory, step.storages, self.values
        begin, end, input_row, input_value = values.inputs_table
        self._value_s: list[float] = value_s.tolist()
        self._chains: dict[tuple[int, int], Chain | None] = {}
        self._needs: dict[tuple[int, int], frozenset[int]] = {}
        self._native = native.ReplayChains(
            value_row=values.row,
            value_op=values.op,
            inputs_begin=begin,
            inputs_end=end,
            input_row=input_row,
            input_value=input_value,
            possible=self._possible,
            seconds=value_s,
            beside_bytes=values.beside_bytes,
            death_op=np.where(storages.death_op >= memory.ops, 2 * memory.ops, storages.death_op),
            block_bytes=storages.block_bytes,
            gap_row=self._gap_row,
            out_op=memory.gap_out,
            use_op=memory.gap_use,
            returns=memory.gap_returns,
            ops=memory.ops,
            longest=CHAIN,
        )

    def _measured(self, step: StepTrace) -> np.ndarray:
        """What replays took in the step, by the name of the op that makes the value, to the time of their ops.

        float64 (names,); of names that were not replayed it is that of all together.
        """
        rows = step.replays.storage
        took_s = np.bincount(rows[rows >= 0], step.replays.duration_s[rows >= 0], len(self._birth))
        measured, planned_s = np.zeros((2, len(step.names)))
        for row, op in dict(zip(rows.tolist(), step.replays.op.tolist(), strict=True)).items():
            chain = self.chain(row, op) if row >= 0 and self._birth[row] >= 0 else None
            if chain is not None:
                name = chain.names[-1]
                measured[name] += took_s[row]
                planned_s[name] += chain.seconds
        if not planned_s.sum() or not measured.sum():
            return np.ones(len(step.names))
        known = (planned_s > 0.0) & (measured > 0.0)
        shares = np.full(len(step.names), measured.sum() / planned_s.sum())
        shares[known] = measured[known] / planned_s[known]
        return shares

    def retaining(self, step: StepTrace, memory: StepMemory, until: Mapping[int, int]) -> ReplayChains:
        """The same in a step, and its memory, that retains storages until some ops."""
        seconds, replay_class, refused = self._given
        return ReplayChains(step, memory, seconds, replay_class, refused, values=self.values, until=until)

    def gaps(self) -> list[int]:
        """The gaps whose storage can be dropped and replayed before their use, ascending."""
        memory = self.memory
        returns = memory.gap_returns & (memory.gap_use < memory.ops) & ~memory.persistent[memory.gap_storage]
        return [gap for gap in np.flatnonzero(returns).tolist() if self.why_not(gap) is None]

    def value_at(self, row: int, op: int) -> int:
        """What a storage holds right before ``op``: index into ``values``, or AT_FIRST."""
        return self._native.value_at(row, op)

    def possible(self, value: int) -> bool:
        """May the op that makes a value be replayed, and its storage dropped?"""
        return self._possible[value]

    def op_s(self, value: int) -> float:
        """Seconds of the op that makes a value."""
        return self._value_s[value]

    def retained(self, gap: int) -> bool:
        """Is a gap's storage dead in it, and retained for what is made from it?"""
        return self._until.get(self._gap_row[gap]) == self._gap_use[gap]

    def why_not(self, gap: int) -> str | None:
        """Why a gap cannot be dropped; None if it can."""
        row, use = self._gap_row[gap], self._gap_use[gap]
        if self._birth[row] < 0:
            return "no op of the step makes it"
        if not self._returns[gap] or use >= self.memory.ops:
            return "it is not used again in the step"
        value = self.value_at(row, use)
        if value == AT_FIRST or not self._possible[value]:
            written = value != AT_FIRST and self.values.op[value] > self._birth[row]
            return f"the op that {'wrote it last' if written else 'makes it'} cannot be replayed"
        if self.chain(row, use) is None:
            return f"an input is gone or written by then, and no chain of {CHAIN} ops makes it again"
        return None

    def chain(self, row: int, op: int) -> Chain | None:
        """How to make what a storage holds before ``op`` again; None if it cannot be done."""
        key = self.value_at(row, op), op
        if key not in self._chains:
            made, inputs, seconds, transient_bytes = self._native.chain(row, op)
            values = made.tolist()
            self._chains[key] = (
                None
                if not values
                else Chain(
                    values=tuple(values),
                    made=tuple(self.values.row[value] for value in values),
                    names=tuple(self.values.name[value] for value in values),
                    inputs=tuple(inputs.tolist()),
                    op_seconds=tuple(self._value_s[value] for value in values),
                    seconds=seconds,
                    transient_bytes=transient_bytes,
                )
            )
        return self._chains[key]

    def gap_around(self, row: int, op: int) -> tuple[int, int] | None:
        """The gap of a storage in which, or at whose end, ``op`` lies, and ``op`` as that gap counts; None if none."""
        gap, at = self._native.gap_around(row, op)
        return None if gap < 0 else (gap, at)

    # ---------------------------------------------------------------------------------------------- together

    def resolve(
        self,
        gaps: Iterable[int],
        fixed: Collection[int] = (),
        useful: np.ndarray | None = None,
        must: Collection[int] = (),
    ) -> PlannedReplays:
        """What dropping these gaps (of :meth:`gaps`) together asks for.

        Left out, and listed in ``declined``, are those that need an input in one of the gaps ``fixed``, which others
        decide about, and those that are replayed so soon that they are away at no ``useful`` op, int64 (ops + 1,) of
        how many of those come before each op. Those of ``must`` need not be useful.
        """
        memory = self.memory
        taken, in_op, seconds, transient_bytes, needed_gap, needed_op, stays, declined = self._native.resolve(
            list(gaps),
            [gap for gap in fixed if gap >= 0],  # a storage that no op uses leaves in no gap
            () if useful is None else useful,
            list(must),
        )
        return PlannedReplays(
            gap=taken,
            storage=memory.gap_storage[taken],
            ordinal=memory.gap_ordinal[taken],
            out_op=memory.gap_out[taken],
            in_op=in_op,
            use_op=memory.gap_use[taken],
            seconds=seconds,
            transient_bytes=transient_bytes,
            bytes_before=self.bytes_before,
            needed=dict(zip(needed_gap.tolist(), needed_op.tolist(), strict=True)),
            stays=frozenset(stays.tolist()),
            declined=tuple(declined.tolist()),
            made_by=self,
        )

    def needs(self, gap: int, op: int | None = None) -> frozenset[int]:
        """The gaps, around ``op``, of what a replay of a gap's storage reads there; at the gap's use by default."""
        op = self._gap_use[gap] if op is None else op
        key = gap, op
        if key not in self._needs:
            self._needs[key] = frozenset(self._native.needs(gap, op).tolist())
        return self._needs[key]


@dataclass(frozen=True)
class PlannedReplays:
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
    made_by: ReplayChains | None = None
    """What knows the replays' chains; None where there are no replays, or where the chains do not matter."""

    def __len__(self) -> int:
        return len(self.gap)

    @cached_property
    def chains(self) -> tuple[Chain, ...]:
        """What each replay runs."""
        if self.made_by is None:
            return ()
        rows = self.made_by.memory.row[self.storage].tolist()
        chains = []
        for row, op in zip(rows, self.in_op.tolist(), strict=True):
            chain = self.made_by.chain(row, op)
            assert chain is not None  # else it would not be replayed
            chains.append(chain)
        return tuple(chains)

    @classmethod
    def none(cls, ops: int) -> PlannedReplays:
        """No drop at all, in a step of so many ops."""
        nothing, zeros = np.empty(0, dtype=np.int64), np.zeros(ops, dtype=np.int64)
        seconds = np.zeros(ops)
        return cls(
            nothing, nothing, nothing, nothing, nothing, nothing, seconds, zeros, zeros, {}, frozenset(), ()
        )

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
