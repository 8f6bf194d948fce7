"""List ops, such as ``aten::_foreach_mul_``: their parts, and the storages of each part.

A list op does the same for each element of its lists, so a session runs it in parts, of a size that follows from its
capacity. A trace that was recorded at a larger capacity has larger parts than a smaller one would see. The recorder
says which storages belong to which element (``uses.part``), and from that follows what an op needs with smaller parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .columns import Stage, StepColumns

_FEWEST_PARTS, _MOST_PARTS = 8, 64
"""Parts of a list op that touches as much as the capacity holds."""

_ENOUGH_BYTES = 64 << 20
"""Plans need no smaller parts than this: to launch their kernels would take about as long as to run them."""


def part_limit_bytes(capacity_bytes: int) -> int:
    """The most bytes that one part of a list op should touch; a single element is never split.

    An eighth of the capacity, or where that is more than 64 MiB, the larger of 64 MiB and a 64th of the capacity. The
    eighth bounds what has to be there at once; a part's temporaries take about half again. Smaller parts give a plan
    room: the next part's storages come in while this one runs, and the last one's leave.
    """
    return max(1, min(capacity_bytes // _FEWEST_PARTS, max(capacity_bytes // _MOST_PARTS, _ENOUGH_BYTES)))


def spans(sizes: Sequence[int], limit_bytes: int) -> list[tuple[int, int]]:
    """Consecutive ranges whose sizes add up to at most the limit, or hold a single element."""
    found = []
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit_bytes:
            found.append((start, index))
            start, total = index, 0
        total += size
    if start < len(sizes):
        found.append((start, len(sizes)))
    return found


@dataclass(frozen=True)
class ListRun:
    """List ops that an optimizer runs one after another on the same elements, and splits alike; or one alone."""

    ops: tuple[int, ...]
    uses: tuple[np.ndarray, ...]
    """For each op, the rows of ``uses`` that belong to elements."""
    element_bytes: tuple[int, ...]
    """What the run touches for each element, of what was there before: parts are cut by it."""

    def beyond_one_part(self, step: StepColumns, limit_bytes: int, counted: np.ndarray) -> np.ndarray:
        """For each op, the bytes that it does not need at once if parts touch at most ``limit_bytes``: int64 (ops,).

        ``counted``, bool (storages,): those that may leave while another part runs.
        """
        cut = np.array([start for start, _ in spans(self.element_bytes, limit_bytes)])
        beyond = np.zeros(len(self.ops), dtype=np.int64)
        for k, rows in enumerate(self.uses):
            rows = rows[counted[step.uses.storage[rows]]]
            part = np.searchsorted(cut, step.uses.part[rows], "right") - 1
            sizes = np.bincount(part, step.storages.block_bytes[step.uses.storage[rows]], minlength=1)
            beyond[k] = int(sizes.sum() - sizes.max())
        return beyond


def list_runs(step: StepColumns) -> tuple[ListRun, ...]:
    """The runs of list ops in a step, in program order. An op whose lists have one element is none."""
    rows = np.flatnonzero(step.uses.part >= 0)
    ops, first = np.unique(step.uses.op[rows], return_index=True)
    runs: list[ListRun] = []
    open_ops: list[int] = []
    open_uses: list[np.ndarray] = []
    part_of: dict[int, int] = {}
    first_what: tuple[int, ...] = ()

    def close() -> None:
        if open_ops:
            sizes = [0] * (max(part_of.values()) + 1)
            for storage, part in part_of.items():
                if step.storages.birth_op[storage] < open_ops[0]:
                    sizes[part] += int(step.storages.block_bytes[storage])
            runs.append(ListRun(tuple(open_ops), tuple(open_uses), tuple(sizes)))
        open_ops.clear()
        open_uses.clear()
        part_of.clear()

    for op, uses in zip(ops.tolist(), np.split(rows, first[1:]) if len(rows) else (), strict=True):
        storages = step.uses.storage[uses]
        own = dict(zip(storages.tolist(), step.uses.part[uses].tolist(), strict=True))
        known = [part_of[storage] == part for storage, part in own.items() if storage in part_of]
        what = (int(step.ops.name[op]), *np.unique(step.storages.category[storages]).tolist())
        again = not known and open_ops and what == first_what  # the optimizer's next group begins
        if step.ops.stage[op] != Stage.OPTIMIZER or again or not all(known):
            close()
        if not open_ops:
            first_what = what
        open_ops.append(op)
        open_uses.append(uses)
        part_of.update(own)
    close()
    return tuple(runs)
