"""Causes of stalls, in seconds: the copy, the queue before it, missing room, and a late trigger.

A wait ends when its copy does. The copy was asked for (*due*), was issued when its block had room, began when the link
was done with those before it, and took its time. Had nothing been in its way, a trigger early enough would have hidden
all of it. So of the time waited:

- what an undisturbed copy would have left over is *late*: the trigger came so much too late. For a storage that had
  left only just before, no trigger could have been earlier: that much is the *copy*'s own time. The same of a copy out
  that the plan began as soon as it could;
- the rest came of waiting for *room* for the block and in the *queue*, in proportion to how long each took. What
  pressure sends out when its block is needed is all a matter of room;
- what compute took to go on after the copy had ended, and what nobody knows the copy of, is *other*.

The five add up to the stall.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..util.units import format_bytes, format_seconds
from .columns import Cause, Direction, Residencies, Stalls, Transfers
from .step import StepTrace

_SAME_S = 1e-9  # two ways to one moment differ by rounding

PARTS = ("copy", "queue", "room", "late", "other")
"""In this order, here and in what is drawn."""

WORDS = {
    "copy": "the copy itself",
    "queue": "the queue before it",
    "room": "no room",
    "late": "triggered late",
    "other": "compute went on later, or the copy is not recorded",
}
"""What each part is called."""


@dataclass(frozen=True)
class StallParts:
    """Seconds of each part, columns of shape (stalls,)."""

    copy_s: np.ndarray
    queue_s: np.ndarray
    room_s: np.ndarray
    late_s: np.ndarray
    other_s: np.ndarray

    def totals(self) -> dict[str, float]:
        """Seconds of each part over all stalls, by the names of :data:`PARTS`."""
        return {name: float(getattr(self, f"{name}_s").sum()) for name in PARTS}

    def of(self, stall: int) -> dict[str, float]:
        """The same of one."""
        return {name: float(getattr(self, f"{name}_s")[stall]) for name in PARTS}


def parts_of_step(step: StepTrace) -> StallParts:
    """The parts of each stall of a step."""
    return stall_parts(step.stalls, step.transfers, step.residencies, len(step.ops))


def stall_parts(stalls: Stalls, transfers: Transfers, residencies: Residencies, ops: int) -> StallParts:
    """The parts of stalls, by the tables of their step and the number of its ops."""
    due, issue, begin, end = _copies(stalls, transfers)
    start, last = stalls.start_s, stalls.start_s + stalls.duration_s
    known = np.isfinite(end)
    due, issue, begin, end = (np.where(known, times, start) for times in (due, issue, begin, end))
    stop = np.clip(end, start, last)
    waited = stop - start
    own, queued = np.maximum(end - begin, 0.0), np.maximum(begin - issue, 0.0)
    roomless = np.maximum(issue - due, 0.0)
    # A planned copy that the waiting thread made itself: an earlier trigger would have hidden none of it.
    planned = known & (stalls.cause == Cause.PLANNED)
    at_once = planned & (np.abs(begin - start) < _SAME_S) & (np.abs(end - last) < _SAME_S)
    lead = np.where(at_once, 0.0, np.maximum(start - due, 0.0))
    # What would have been left of the copy alone, and how much of that any trigger would have left.
    exposed = np.clip(own - lead, 0.0, waited)
    out = stalls.direction == Direction.OUT
    pressed = out & (stalls.cause == Cause.EVICT)
    away = _away_since(stalls, residencies, ops, due)
    least = np.where(out | at_once, own, np.clip(own - (start - away), 0.0, None))
    copy = np.where(pressed, 0.0, np.minimum(exposed, least))
    rest = waited - exposed
    blocked = queued + roomless
    share = np.divide(queued, blocked, out=np.ones(len(rest)), where=blocked > 0)
    queue = rest * share
    return StallParts(
        copy_s=copy,
        queue_s=queue,
        room_s=rest - queue + np.where(pressed, exposed, 0.0),
        late_s=np.where(pressed, 0.0, exposed - copy),
        other_s=stalls.duration_s - waited,
    )


def _copies(stalls: Stalls, rows: Transfers) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each stall's copy: due, issue, start and end; NaN: unknown. Predicted transfers have all but the first."""
    found = [
        np.array(column, dtype=np.float64)
        for column in (stalls.due_s, stalls.issue_s, stalls.copy_start_s, stalls.copy_end_s)
    ]
    unknown = np.flatnonzero(~np.isfinite(found[3]))
    if len(unknown):
        by_copy: dict[tuple[int, int], list[int]] = {}
        keys = zip(rows.storage.tolist(), rows.direction.tolist(), strict=True)
        for row, key in enumerate(keys):
            by_copy.setdefault(key, []).append(row)
        for stall in unknown.tolist():
            key = (int(stalls.storage[stall]), int(stalls.direction[stall]))
            until = float(stalls.start_s[stall] + stalls.duration_s[stall])
            past = [row for row in by_copy.get(key, ()) if rows.issue_s[row] <= until]
            if key[0] < 0 or not past:
                continue
            row = past[-1]
            times = (rows.due_s, rows.issue_s, rows.start_s, rows.end_s)
            for column, time in zip(found, times, strict=True):
                column[stall] = time[row]
    due, issue, begin, end = found
    due = np.where(np.isfinite(due), due, issue)
    whole = np.isfinite(due) & np.isfinite(begin)
    return due, issue, begin, np.where(whole, end, np.nan)


def _away_since(stalls: Stalls, rows: Residencies, ops: int, due: np.ndarray) -> np.ndarray:
    """Since when each stall's storage had been away when its copy was due; -inf: since before the step."""
    since = np.full(len(due), -np.inf)
    left: dict[int, list[float]] = {}
    for storage, end_s, to_op in zip(
        rows.storage.tolist(), rows.to_s.tolist(), rows.to_op.tolist(), strict=True
    ):
        if to_op < ops:
            left.setdefault(storage, []).append(end_s)
    for stall, (storage, at) in enumerate(zip(stalls.storage.tolist(), due.tolist(), strict=True)):
        since[stall] = max((end_s for end_s in left.get(storage, ()) if end_s <= at), default=-np.inf)
    return since


def explained(step: StepTrace, stall: int, parts: StallParts | None = None) -> str:
    """Why a stall was, in words: the parts that it has, longest first, with what room was for and what came late."""
    rows = step.stalls
    seconds = (parts_of_step(step) if parts is None else parts).of(stall)
    out = rows.direction[stall] == Direction.OUT
    said = []
    for name, took in sorted(seconds.items(), key=lambda item: -item[1]):
        if took < 0.005 * float(rows.duration_s[stall]) or took <= 0.0:
            continue
        what = WORDS[name]
        if name == "room":
            size, whose = int(rows.room_bytes[stall]), int(rows.room_storage[stall])
            if not out:
                size, whose = int(step.storages.block_bytes[rows.storage[stall]]), -2
            what = "no room"
            if size:
                named = "its own block" if whose == -2 else "a new storage"
                if whose >= 0:
                    named = step.storage_keys[whose]
                what += f" for {format_bytes(size)}, {named}"
        elif name == "late":
            what = f"triggered late, {trigger_of(step, stall)}"
        said.append(f"{format_seconds(took)} {what}")
    return "; ".join(said)


def trigger_of(step: StepTrace, stall: int) -> str:
    """What asked for the copy that a stall waited for, in words."""
    rows = step.stalls
    cause, due = Cause(int(rows.cause[stall])), float(_copies(rows, step.transfers)[0][stall])
    if cause is Cause.DEMAND:
        return "at its use: nothing had asked for it before"
    if cause is Cause.ACCESS:
        return "by an access outside of any op"
    if cause is Cause.EVICT:
        return "by pressure"
    if not np.isfinite(due):
        return "by the plan"
    op = max(int(np.searchsorted(step.ops.start_s, due, side="right")) - 1, 0)
    ahead = max(int(rows.op[stall]) - op, 0)
    name = step.op_name(op).removeprefix("aten::")
    return f"by the plan at op {op}, {name}, {ahead} op{'s' * (ahead != 1)} before"
