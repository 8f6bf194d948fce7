"""Clocks of ranks, from their traces alone: collectives bracket how far each is from the first one's.

A collective that needs all ranks cannot end on one of them before another one has begun it. So of two ranks' clocks,
and of each collective, begin on one <= end on the other; all of them together leave a bracket for the offset. The
bracket is certain. Within it the likeliest place is where the collectives end at the same time on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .side import RankSide


@dataclass(frozen=True)
class Offset:
    """How far a rank's clock is ahead of the first rank's."""

    seconds: float
    """The likeliest."""
    low_s: float
    """It is this at least."""
    high_s: float
    """It is this at most."""

    @property
    def error_s(self) -> float:
        """How wrong the likeliest can be."""
        return max(self.high_s - self.seconds, self.seconds - self.low_s)


@dataclass(frozen=True)
class Alignment:
    """The offsets of ranks' clocks, in the order of the ranks."""

    offsets: tuple[Offset | None, ...]
    """None: nothing is known, and the clock is taken as it is."""
    matched: int
    """Collectives that were matched, of all steps."""
    why_not: str = ""
    """Why clocks are not aligned, where some are not."""
    contradicts: bool = False
    """Do the collectives leave no offset that fits all of them?"""

    def seconds(self) -> np.ndarray:
        """float64 (ranks,): what to take off each rank's clock; 0 where nothing is known."""
        return np.array([0.0 if each is None else each.seconds for each in self.offsets])


def align(sides: Sequence[RankSide]) -> Alignment:
    """Align the clocks of ranks with that of the first. They have one offset for all steps: drift is none of it."""
    count = len(sides)
    unknown: tuple[Offset | None, ...] = (Offset(0.0, 0.0, 0.0), *[None] * (count - 1))[:count]
    if count < 2:
        return Alignment(unknown, 0)
    if any(not side.is_synchronous for side in sides):
        device = next(side.device for side in sides if not side.is_synchronous)
        why = f"on {device} the host does not wait for collectives, so that its times say nothing of other clocks"
        return Alignment(unknown, 0, why)
    most, matched, ends = _most_ahead(sides)
    if not matched:
        return Alignment(unknown, 0, "no collective of one rank was found on another one")
    for middle in range(count):
        np.minimum(most, most[:, middle, None] + most[None, middle, :], out=most)
    if (np.diag(most) < 0).any():
        why = "the collectives contradict each other: ranks came to them in different orders, or a clock was set"
        return Alignment(unknown, matched, why, contradicts=True)
    found = tuple(
        _within(-float(most[k, 0]), float(most[0, k]), ends_apart_s) for k, ends_apart_s in enumerate(ends)
    )
    alone = [side.name for side, offset in zip(sides, found, strict=True) if offset is None]
    why = f"no collective ties {', '.join(alone)} to {sides[0].name}" if alone else ""
    return Alignment(found, matched, why)


def _within(low_s: float, high_s: float, ends_apart_s: list[np.ndarray]) -> Offset | None:
    if not np.isfinite((low_s, high_s)).all():
        return None
    apart_s = np.concatenate([np.zeros(0), *ends_apart_s])
    likeliest = float(np.median(apart_s)) if len(apart_s) else (low_s + high_s) / 2
    return Offset(min(max(likeliest, low_s), high_s), low_s, high_s)


def _most_ahead(sides: Sequence[RankSide]) -> tuple[np.ndarray, int, list[list[np.ndarray]]]:
    """Of pairs of ranks float64 (ranks, ranks), how far the second's clock may be ahead of the first's; how many
    collectives were matched; and of each rank, how much later than on the first rank they ended by its clock.
    """
    ends: list[list[np.ndarray]] = [[] for _ in sides]
    count = len(sides)
    most = np.full((count, count), np.inf)
    np.fill_diagonal(most, 0.0)
    allowed = np.array([[meets(one, other) for other in sides] for one in sides])
    matched = 0
    for each in matched_collectives(sides):
        rows = each.rows
        matched += each.begin_s.shape[1]
        for place, row in enumerate(rows):
            ahead = each.done_s - each.begin_s[place]  # (ranks, collectives)
            least = np.min(ahead, axis=1, where=~np.isnan(ahead), initial=np.inf)
            least[place] = 0.0
            fitting = allowed[row, rows]
            most[row, rows] = np.where(fitting, np.minimum(most[row, rows], least), most[row, rows])
            if each.rows[0] == 0 and allowed[0, row]:
                apart_s = each.done_s[place] - each.done_s[0]
                ends[row].append(apart_s[~np.isnan(apart_s)])
    return most, matched, ends


class Matched(NamedTuple):
    """The collectives of one step that some ranks have in common. Arrays are (ranks, collectives)."""

    rows: np.ndarray
    begin_s: np.ndarray
    needed_s: np.ndarray
    done_s: np.ndarray
    user_op: np.ndarray


def matched_collectives(sides: Sequence[RankSide]) -> list[Matched]:
    """By step and by sequence of collectives, where two ranks or more have it."""
    found = []
    for index in sorted({step.index for side in sides for step in side.steps}):
        alike: dict[tuple[str, ...], list[int]] = {}
        for row, side in enumerate(sides):
            if (step := side.step(index)) is not None and len(step.collectives):
                alike.setdefault(step.collectives.names, []).append(row)
        for rows in alike.values():
            if len(rows) > 1:
                of = [sides[row].at(index).collectives for row in rows]
                columns = [np.stack([getattr(each, name) for each in of]) for name in Matched._fields[1:]]
                found.append(Matched(np.array(rows), *columns))
    return found


def meets(one: RankSide, other: RankSide) -> bool:
    """Are all collectives of two ranks common to both? A trace does not say which group one is of."""
    if not one.groups or not other.groups:
        return True
    return all(other.who.rank in group for group in one.groups) and all(
        one.who.rank in group for group in other.groups
    )
