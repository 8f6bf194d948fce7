"""The values that storages hold in a step, and their inputs: the basis of replays.

A storage holds a value from one write to the next. Where the runtime has recorded how values were made (the trace's
``makings``), they are those of the ops that a replay runs, which may be inside of the step's ops, and in place; else
each op of the step stands for all that it makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..trace import StepTrace
from ..trace.alive_bytes import alive_bytes

AT_FIRST = -1
"""In the place of a value: what a storage held before the first that is known."""


@dataclass(frozen=True)
class Values:
    """The ``V`` values of a step, in the order in which they are made. All columns are of that length."""

    row: list[int]
    """Of the storage that holds each, in ``StepTrace.storages``."""
    op: list[int]
    """Of the step, that makes each, or holds the op that does."""
    name: list[int]
    """Of the op that a replay runs: index into ``StepTrace.names``."""
    inputs: list[tuple[tuple[int, int], ...]]
    """What each is made from: rows of storages, and the value of each, which may be AT_FIRST."""
    fits: list[bool]
    """May its op be replayed?"""
    share: list[float]
    """Of the time of the step's op: by the bytes that the ops inside read and make, all that is known of them."""
    beside_bytes: list[int]
    """What its op makes beside it: other results, and blocks that nobody has seen the making of."""

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def inputs_table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Four columns, int64: where the inputs of each value begin and end, (V,) each, and the rows and values of all
        inputs. Values that do not fit have none. The results of one op share a range.
        """
        begins: list[int] = []
        ends: list[int] = []
        pairs: list[tuple[int, int]] = []
        newest: tuple[tuple[int, int], ...] = ()
        begin = 0
        for inputs, fits in zip(self.inputs, self.fits, strict=True):
            if fits and inputs is not newest:
                newest, begin = inputs, len(pairs)
                pairs += inputs
            begins.append(begin)
            ends.append(begin + len(newest) if fits else begin)
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64), table[:, 0], table[:, 1]


@dataclass
class _ValueColumns:
    """Columns of :class:`Values` on their way."""

    row: list[int]
    op: list[int]
    name: list[int]
    inputs: list[tuple[tuple[int, int], ...]]
    fits: list[bool]
    call: list[int]
    """Which values are results of one call: a number that they share."""


def values_of(step: StepTrace, fits: np.ndarray) -> Values:
    """Collect them. ``fits``: may an op of that name be replayed, bool (names,)?"""
    made = _recorded(step, fits) if len(step.makings) else _by_ops(step, fits)
    block = step.storages.block_bytes.tolist()
    births = step.storages.birth_op.tolist()
    known = [0] * len(step.ops)  # bytes of what was born at each op and has a value
    calls = max(made.call, default=-1) + 1
    results, moved, op_of_call = [0] * calls, [0] * calls, [0] * calls
    first: dict[int, int] = {}
    for value, (row, op, call) in enumerate(zip(made.row, made.op, made.call, strict=True)):
        if births[row] == op and first.get(row) != op:
            known[op] += block[row]
        first.setdefault(row, op)
        if not results[call]:
            moved[call] = sum(block[read] for read, _ in made.inputs[value])
        moved[call] += block[row]
        results[call] += block[row]
        op_of_call[call] = op
    in_op = [0] * len(step.ops)
    for op, size in zip(op_of_call, moved, strict=True):
        in_op[op] += size
    beside = _op_bytes(step)
    return Values(
        row=made.row,
        op=made.op,
        name=made.name,
        inputs=made.inputs,
        fits=made.fits,
        share=[
            moved[call] / in_op[op] if in_op[op] else 1.0 for op, call in zip(made.op, made.call, strict=True)
        ],
        beside_bytes=[
            beside[op] - known[op] + results[call] - block[row]
            for row, op, call in zip(made.row, made.op, made.call, strict=True)
        ],
    )


def _recorded(step: StepTrace, fits: np.ndarray) -> _ValueColumns:
    """From the makings of a step, which come in the order in which the ops ended."""
    makings, births = step.makings, step.storages.birth_op.tolist()
    columns = (makings.making, makings.op, makings.storage, makings.name, makings.input, makings.refusal)
    listed: list[tuple[int, int, int, int, list[int]]] = []
    newest = -1
    for making, op, row, name, read, refusal in zip(*(c.tolist() for c in columns), strict=True):
        if making != newest:
            newest = making
            listed.append((op, row, name, refusal, []))
        if read >= 0:
            listed[-1][4].append(read)
    listed.sort(key=lambda one: one[0])  # ops of other threads may have ended in between
    made = _ValueColumns([], [], [], [], [], [])
    may = fits.tolist()
    holds: dict[int, int] = {}
    last: tuple[int, int, tuple[tuple[int, int], ...]] | None = None
    for op, row, name, refusal, read in listed:
        inputs = tuple((other, holds.get(other, AT_FIRST)) for other in read)
        # Results of one call follow each other, and are made from the same; one in place has a single result.
        same = last == (op, name, inputs) and row not in read
        if same and last is not None:
            inputs = last[2]
        last = (op, name, inputs)
        made.call.append(made.call[-1] + (not same) if made.call else 0)
        holds[row] = len(made.row)
        made.row.append(row)
        made.op.append(op)
        made.name.append(max(name, 0))
        made.inputs.append(inputs)
        made.fits.append(name >= 0 and not refusal and may[name] and births[row] >= 0)
    return made


def _by_ops(step: StepTrace, fits: np.ndarray) -> _ValueColumns:
    """From what each op uses: it makes all that is born there from all that it reads, if it writes nothing else."""
    uses, births = step.uses, step.storages.birth_op
    newborn = births[uses.storage] == uses.op
    may = fits[step.ops.name]
    may[uses.op[uses.writes & ~newborn]] = False
    read = np.flatnonzero(uses.reads & ~newborn)
    reads = uses.storage[read].tolist()
    reads_offset = np.searchsorted(uses.op[read], np.arange(len(step.ops) + 1)).tolist()
    # What is made, by op: storages that are born there, and those that are written, which nothing can make again.
    written = np.flatnonzero(uses.writes & ~newborn)
    born = np.flatnonzero(births >= 0)
    op = np.concatenate([births[born], uses.op[written]])
    row = np.concatenate([born, uses.storage[written]])
    order = np.argsort(op, kind="stable")
    op, row = op[order], row[order]
    made = _ValueColumns(
        row.tolist(), op.tolist(), step.ops.name[op].tolist(), [], may[op].tolist(), op.tolist()
    )
    holds: dict[int, int] = {}
    inputs: tuple[tuple[int, int], ...] = ()
    newest = -1
    for value, (at, holder) in enumerate(zip(made.op, made.row, strict=True)):
        if at != newest:
            newest = at
            inputs = tuple(
                (other, holds.get(other, AT_FIRST))
                for other in reads[reads_offset[at] : reads_offset[at + 1]]
            )
        made.inputs.append(inputs)
        holds[holder] = value
    return made


def _op_bytes(step: StepTrace) -> list[int]:
    """By op: the bytes of all that it makes, and of what no storage stands for."""
    storages, n = step.storages, len(step.ops)
    born = storages.birth_op >= 0
    made = np.bincount(storages.birth_op[born], weights=storages.block_bytes[born], minlength=n)
    alive = alive_bytes(n, storages.birth_op, storages.death_op, storages.block_bytes)
    total: list[int] = (made + np.maximum(step.ops.live_peak_bytes - alive, 0)).astype(np.int64).tolist()
    return total
