"""Op times on a synchronous device: the shortest of the times seen.

A plan is only as good as its clock. The steps that are there to plan from ran under eviction, while pages were faulted
in or other programs ran; all of that makes some ops take longer, and never one shorter.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ..runtime import core
from ..runtime.pause_times import pause_times
from ..trace import StepTrace

_MOST_SEQUENCES = 64
_ALL_OF_FIRST, _ONE_OF = 32, 8
"""Of a sequence's first steps each is looked at, and later on one of so many: to look costs a short step dear."""


@dataclass
class _Seen:
    least_op_s: np.ndarray  # float64 (ops,): of each op by itself
    least_s: float  # of a whole step
    steps: int = 0


class HostTimes:
    """Seconds of the ops of each sequence at one size, from the begin of an op to that of the next, less what stalls
    and replays took. Python between the ops belongs to the op before it, and what comes before the first one to that.

    No step has every op at its shortest: together they take what they took in the shortest step.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[int, int], _Seen] = OrderedDict()
        self._newest: tuple[tuple[int, int], _Seen] | None = None  # by what the core calls its ops

    def learn(self, log: core.StepLog) -> float:
        """Take in a finished step. Returns the fewest compute seconds of its sequence so far; inf if it lacks ops."""
        if log.truncated_ops or not log.op_count:
            return math.inf
        alike = (log.fingerprint, log.live_peak_bytes)
        if self._newest is not None and self._newest[0] == alike:
            seen = self._newest[1]
            seen.steps += 1
            if seen.steps > _ALL_OF_FIRST and seen.steps % _ONE_OF:
                return seen.least_s
        ops = log.ops()
        key = (hash(ops["token"].tobytes()), int(ops["live_peak_bytes"].max()))
        times = _op_times(log, ops)
        if key not in self._seen:
            seen = self._seen[key] = _Seen(times, float(times.sum()))
        else:
            seen = self._seen[key]
            seen.least_op_s = np.minimum(seen.least_op_s, times)
            seen.least_s = min(seen.least_s, float(times.sum()))
        self._seen.move_to_end(key)
        while len(self._seen) > _MOST_SEQUENCES:
            self._seen.popitem(last=False)
        self._newest = (alike, seen)
        return seen.least_s

    def least(self, step: StepTrace) -> np.ndarray | None:
        """Compute seconds of each op of a step, float64 (ops,); None if its like was never learned."""
        seen = self._seen.get((hash(step.ops.token.tobytes()), step.live_peak_bytes))
        if seen is None:
            return None
        op_s: np.ndarray = seen.least_op_s * (seen.least_s / max(float(seen.least_op_s.sum()), 1e-12))
        return op_s


def _op_times(log: core.StepLog, ops: np.ndarray) -> np.ndarray:
    starts = np.concatenate([[log.start_ticks], ops["start_ticks"][1:], [log.end_ticks]])
    # Ops of other threads may begin while one runs: the clock goes on, and never back.
    clock = np.maximum.accumulate(starts)
    ticks = np.diff(clock - pause_times(log).before()(clock)) - ops["stall_ticks"]
    replays = log.replays()
    replays = replays[replays["op"] < len(ops)]  # not those after the last op
    ticks -= np.bincount(replays["op"], replays["end_ticks"] - replays["start_ticks"], minlength=len(ops))
    op_s: np.ndarray = np.maximum(ticks, 0.0) * core.seconds_per_tick()
    return op_s
