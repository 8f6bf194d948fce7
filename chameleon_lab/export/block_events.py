"""Blocks that come to the device and leave it, over all steps of a trace, at made-up addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..trace import StepTrace, Trace
from .timeline import step_starts_s

_FIRST_ADDRESS = 1 << 44
_ALIGNMENT = 512


class BlockEvent(NamedTuple):
    """A block that comes (``bytes`` above 0) or leaves. A trace knows no addresses: blocks that are there at once
    share none of these, and a block takes the place of one of its size that has left."""

    time_ns: int
    address: int
    bytes: int
    step: StepTrace
    storage: int


def block_events(trace: Trace) -> Iterator[BlockEvent]:
    """All of them in order; at one moment those that leave come first."""
    there: dict[int, BlockEvent] = {}
    free: dict[int, list[int]] = {}
    top = _FIRST_ADDRESS
    for number, (step, at_s) in enumerate(zip(trace.steps, step_starts_s(trace.steps), strict=True)):
        uids = step.storages.uid.astype(np.int64)
        # The traces of other tools do not say which storages are the same in two steps.
        unnamed = uids < 0
        uids[unnamed] = -1 - (number << 32) - np.flatnonzero(unnamed)
        rows = step.residencies
        here = {int(uid) for uid in uids[rows.storage[rows.from_op == 0]]}
        begin_ns = round(at_s * 1e9)
        for uid in [uid for uid in there if uid not in here]:  # gone between two steps
            gone = there.pop(uid)
            free.setdefault(gone.bytes, []).append(gone.address)
            yield gone._replace(time_ns=begin_ns, bytes=-gone.bytes)
        for at, row, comes in _changes(step, at_s):
            uid, size = int(uids[row]), int(step.storages.block_bytes[row])
            if comes == (uid in there):
                continue  # it was there at the step's beginning, and at the end of the one before
            if comes:
                address = places.pop() if (places := free.get(size)) else top
                if address == top:
                    top += -(-size // _ALIGNMENT) * _ALIGNMENT
                there[uid] = BlockEvent(at, address, size, step, row)
                yield there[uid]
            else:
                gone = there.pop(uid)
                free.setdefault(gone.bytes, []).append(gone.address)
                yield gone._replace(time_ns=at, bytes=-gone.bytes)


def _changes(step: StepTrace, at_s: float) -> Iterator[tuple[int, int, bool]]:
    """Time, storage, and whether its block comes or leaves. What is there when the step ends stays."""
    rows = step.residencies
    begin, end = (np.rint((times + at_s) * 1e9).astype(np.int64) for times in (rows.from_s, rows.to_s))
    stays = rows.to_op >= len(step.ops)
    seen = (stays | (end > begin)) & (step.storages.block_bytes[rows.storage] > 0)
    comes, leaves = np.flatnonzero(seen), np.flatnonzero(seen & ~stays)
    times = np.concatenate([begin[comes], end[leaves]])
    storages = rows.storage[np.concatenate([comes, leaves])]
    kind = np.repeat([True, False], [len(comes), len(leaves)])
    order = np.lexsort((kind, times))
    yield from zip(times[order].tolist(), storages[order].tolist(), kind[order].tolist(), strict=True)
