"""Growth from step to step: bytes left after a step, by producer. It shows leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..util.units import format_bytes
from .columns import Category
from .flame import own_frames
from .step import StepTrace

_SHOWN = 20


@dataclass(frozen=True)
class Grown:
    """Storages with one origin: a name, or the op and the line that made them.

    Attributes:
        origin: what made them, as in ``step.storage_keys`` but for the number in the step.
        module: path of the module that made them; empty outside any.
        category: name of their Category, of the newest.
        bytes: what was alive of them when each step ended.
        counts: how many that were.
        stack: frames of the Python stack that made the newest, innermost first; empty where none was recorded.
        uid: of the newest one.
    """

    origin: str
    module: str
    category: str
    bytes: tuple[int, ...]
    counts: tuple[int, ...]
    stack: tuple[str, ...]
    uid: int

    @property
    def bytes_per_step(self) -> float:
        """By how much they have grown, on average of the steps."""
        return (self.bytes[-1] - self.bytes[0]) / max(1, len(self.bytes) - 1)


@dataclass(frozen=True, repr=False)
class Growth:
    """What grew over steps, the fastest first. Made by ``trace.growth()``."""

    steps: tuple[int, ...]
    bytes: tuple[int, ...]
    """All that was alive when each step ended."""
    rows: tuple[Grown, ...]

    def __str__(self) -> str:
        if len(self.steps) < 2:
            return "Growth needs two steps or more."
        span = f"from step {self.steps[0]} to {self.steps[-1]}"
        change = self.bytes[-1] - self.bytes[0]
        sign = "−" if change < 0 else "+"
        lines = [
            f"At the end of a step {format_bytes(self.bytes[-1])} are alive: {sign}{format_bytes(abs(change))} {span}."
        ]
        if not self.rows:
            lines.append("Nothing has grown in every step.")
        for row in self.rows[:_SHOWN]:
            where = f"  {row.stack[0]}" if row.stack else ""
            lines.append(
                f"  +{format_bytes(round(row.bytes_per_step))} a step  {row.origin} ({row.category}), "
                f"{format_bytes(row.bytes[-1])} in {row.counts[-1]}{where}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def growth(steps: Sequence[StepTrace]) -> Growth:
    """What was alive at the end of each of these steps and has not stopped growing, by origin.

    A storage that was made in one of the steps keeps its origin in the later ones, by its uid. Only origins count
    whose bytes never fell and were more at the end than at the begin, and more than in the step before: states that
    an optimizer makes in its first step grow once, and a leak grows on.
    """
    steps = [step for step in steps if len(step.ops)]
    origins: dict[int, tuple[str, str, tuple[str, ...]]] = {}
    sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    newest: dict[str, tuple[int, str, str, tuple[str, ...]]] = {}
    totals = []
    for position, step in enumerate(steps):
        storages = step.storages
        left = np.flatnonzero(storages.death_op >= len(step.ops))
        totals.append(int(storages.block_bytes[left].sum()))
        for row in left.tolist():
            uid, size = int(storages.uid[row]), int(storages.block_bytes[row])
            if uid not in origins or int(storages.birth_op[row]) >= 0:
                origins[uid] = _origin(step, row)
            origin, module, stack = origins[uid]
            if origin not in sums:
                sums[origin] = np.zeros(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=np.int64)
            sums[origin][0][position] += size
            sums[origin][1][position] += 1
            category = Category(int(storages.category[row])).name.lower()
            if origin not in newest or uid >= newest[origin][0]:
                newest[origin] = uid, module, category, stack
    rows = [
        Grown(
            origin,
            newest[origin][1],
            newest[origin][2],
            tuple(size.tolist()),
            tuple(count.tolist()),
            newest[origin][3],
            newest[origin][0],
        )
        for origin, (size, count) in sums.items()
        if len(size) > 1 and (np.diff(size) >= 0).all() and size[-1] > size[-2]
    ]
    rows.sort(key=lambda row: (-row.bytes_per_step, row.origin))
    return Growth(tuple(step.index for step in steps), tuple(totals), tuple(rows))


def _origin(step: StepTrace, row: int) -> tuple[str, str, tuple[str, ...]]:
    storages = step.storages
    module = step.module_path(int(storages.module[row]))
    birth = int(storages.birth_op[row])
    key = step.storage_keys[row]
    if int(storages.name[row]) >= 0:
        return key, module, ()
    if birth < 0:
        return key.rpartition("#")[0], module, ()  # all that was there before the first step, by category
    stack = int(step.ops.stack[birth])
    frames = tuple(own_frames(step.stacks[stack])[::-1]) if 0 <= stack < len(step.stacks) else ()
    origin = key.rpartition("#")[0]
    return (f"{origin} at {frames[0]}" if frames else origin), module, frames
