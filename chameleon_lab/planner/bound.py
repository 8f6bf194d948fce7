"""A lower bound of the stall of any policy: a linear program over fractions of storages.

The step is cut at *checkpoints*, some of its ops; a segment is the time from the start of one checkpoint to the
start of the next, over the step's end too. The program keeps of a policy only what must hold in any steady state:

- At each checkpoint the bytes that are not away fit the capacity.
- What is away at a checkpoint was copied out before, in segments after the use that its gap begins with, and is
  copied back afterwards, in segments before the use that ends the gap.
- A version of a storage (what lies between two writes) is copied out once at most, however often it leaves.
- In a segment each direction of the link carries no more bytes than its time allows: compute, replays and stall.
- Where replays are allowed, what is away may also have been dropped right after the use that its gap begins with; then
  it is replayed afterwards, in segments before the use that ends the gap, for the time that the op takes that wrote it
  last. What that op reads may have been retained, so nothing else is counted.

Any policy, averaged over its steps, is a point of this program, so the smallest stall (and replay time) in the program
is a bound for all of them. Everything that it leaves out makes it lower: blocks may move and be replayed in parts,
copies wait for nothing but their link, a replay needs neither its inputs nor memory and is as good as at its use for
bytes, and these matter at checkpoints alone. More checkpoints make it tighter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ..policy.model import Link
from ..trace import StepTrace, Trace
from ..trace.trace import plannable_step
from ..util.units import format_seconds
from .arguments import checked_capacity, checked_link, checked_min_swap
from .generate import refused_of, replay_class_of
from .memory import MIN_SWAP_BYTES, StepMemory, fitting_memory, kernels_in, step_op_times
from .replay import ReplayChains
from .values import AT_FIRST

CHECKPOINTS = 48
"""Ops at which the program looks at the bytes, unless told otherwise. With more it takes seconds to solve."""


@dataclass(frozen=True)
class Bound:
    """What no policy can beat, at one capacity and link."""

    capacity_bytes: int
    compute_s: float
    stall_s: float
    """Of stalls; of stalls and replays together where those are allowed."""
    checkpoints: int
    """Ops at which the bytes were looked at; more of them may raise the bound."""
    rematerialize: int = 0
    """Highest class of ops that policies may replay; 0: they may only swap."""

    @property
    def step_s(self) -> float:
        """Compute, stall and replays."""
        return self.compute_s + self.stall_s

    @property
    def stall_share(self) -> float:
        """Stall as a share of the compute time; 0 without any."""
        return self.stall_s / self.compute_s if self.compute_s > 0 else 0.0

    def __str__(self) -> str:
        share = f" ({100 * self.stall_share:.1f} % of compute)" if self.compute_s > 0 else ""
        what = "stall and replays" if self.rematerialize else "stall"
        return (
            f"Lower bound: {what} {format_seconds(self.stall_s)}{share}, step {format_seconds(self.step_s)}, "
            f"from {self.checkpoints} checkpoints"
        )


def lower_bound(
    trace: Trace | StepTrace,
    capacity_bytes: int | float | str,
    link: Link | float | str | tuple[float | str, float | str],
    op_times: Sequence[float] | np.ndarray | None = None,
    *,
    checkpoints: int = CHECKPOINTS,
    min_swap_bytes: int | str = MIN_SWAP_BYTES,
    rematerialize: bool | int | str | None = None,
    refused: Collection[str] | None = None,
) -> Bound:
    """The least stall of any policy that swaps storages of at least ``min_swap_bytes``, in the steady state.

    Capacity and link are written as for :func:`~chameleon_lab.planner.plan`.

    With ``rematerialize`` (it and ``refused`` as for :func:`~chameleon_lab.planner.plan`), the least of stall and
    replays of any policy that swaps or drops them. ``op_times`` as for :func:`~chameleon_lab.planner.simulate`. With as
    many ``checkpoints`` as ops the bound is as tight as it gets. It has the tolerance of its solver: about 1e-7 of the
    step. Needs scipy, and seconds for a step of many storages.

    Raises BelowFloorError if no policy fits the capacity at all, TraceError if the trace holds no op, ValueError if
    ``capacity_bytes``, ``op_times``, ``checkpoints`` or ``rematerialize`` does not fit, TypeError if an argument is
    something else.
    """
    step = plannable_step(trace)
    capacity, link = checked_capacity(capacity_bytes, step), checked_link(link)
    min_swap_bytes = checked_min_swap(min_swap_bytes)
    replay_class, refused = replay_class_of(rematerialize, trace), refused_of(refused, trace)
    if checkpoints < 1:
        raise ValueError(f"checkpoints is {checkpoints}: give a number from 1 up")
    times = step_op_times(step, op_times)
    memory, _ = fitting_memory(step, min_swap_bytes, capacity, kernels_in(trace))
    at = _checkpoints(step, times, checkpoints)
    replayable = ReplayChains(step, memory, times, replay_class, refused) if replay_class else None
    stall_s = _Program(memory, at, capacity, link, times, replayable).least_stall_s()
    return Bound(capacity, float(times.sum()), stall_s, len(at), replay_class)


_Gap = tuple[int, int, bool, float]
"""A gap as the checkpoints see it: the first of them in it, the one after the last, does the storage return?, and
seconds a byte of its replay (infinite: it cannot be)."""


def _checkpoints(step: StepTrace, times: np.ndarray, count: int) -> np.ndarray:
    """Ops to look at, ascending: of slices of the step, equally long in time, the op of most bytes each.

    Borders at the peaks keep one stall from serving both the copies that must precede a peak and those that follow.
    The first ops of stages count too, as far as they are few: many storages may leave only from there on.
    """
    n = len(step.ops)
    if count >= n:
        return np.arange(n)
    borders = np.flatnonzero(np.diff(step.ops.stage)) + 1
    if len(borders) > count // 2:
        borders = borders[:0]
    total = float(times.sum())
    clock = (np.cumsum(times) - times) / total if total > 0 else np.arange(n) / n
    part = (clock * (count - len(borders))).astype(np.int64)
    by_bytes = np.lexsort((-step.ops.live_peak_bytes, part))
    _, first = np.unique(part[by_bytes], return_index=True)
    return np.union1d(by_bytes[first], borders)


class _Program:
    """The linear program. Bytes and seconds are scaled to be around 1.

    Checkpoint ``k`` lies at op ``at[k % K]`` of step ``k // K``, segment ``k`` follows it; storages that cross the
    step's end so have segments ``>= K``, whose flows count in segment ``k - K``.
    """

    def __init__(
        self,
        memory: StepMemory,
        at: np.ndarray,
        capacity: int,
        link: Link,
        times: np.ndarray,
        replayable: ReplayChains | None,
    ) -> None:
        self.memory, self.at, self.link = memory, at, link
        self.rate = _replay_rates(memory, replayable)
        self.unit_bytes = max(int(memory.live_bytes.max()), 1)
        clock = np.concatenate([[0.0], np.cumsum(times)])
        compute_s = float(clock[-1])
        copies_s = max(link.out_s(self.unit_bytes), link.in_s(self.unit_bytes))
        self.unit_s = max(compute_s, copies_s) or 1.0
        ends = np.append(clock[at[1:]], clock[at[0]] + compute_s)
        self.segment_s = ends - clock[at]
        dormant = int(memory.block_bytes[memory.dormant].sum())
        self.excess = memory.live_bytes[at] - dormant - capacity
        # Variables: the stall of each segment comes first.
        self.upper: list[float] = [np.inf] * len(at)
        # Rows of A_ub x <= b_ub and A_eq x = b_eq, as (variable, factor) lists.
        self.at_most: list[tuple[list[tuple[int, float]], float]] = []
        self.equal: list[tuple[list[tuple[int, float]], float]] = []
        self.out_flows: list[list[int]] = [[] for _ in at]
        self.in_flows: list[list[int]] = [[] for _ in at]
        self.away: list[list[int]] = [[] for _ in at]
        # How much is dropped in gaps, as (first checkpoint, the one after the last, variable, seconds of a unit's
        # replay); and how long replays run in each segment.
        self.drops: list[tuple[int, int, int, float]] = []
        self.replays: list[list[int]] = [[] for _ in at]

    def least_stall_s(self) -> float:
        """Solve it."""
        if not (self.excess > 0).any():
            return 0.0
        if self.link.out_bytes_per_s is None and self.link.in_bytes_per_s is None:
            return 0.0
        for (copied, gaps), size in self._versions().items():
            self._add_version(copied, gaps, size / self.unit_bytes)
        if self.drops:
            self._add_replays()
        for flows, copy_s in ((self.out_flows, self.link.out_s), (self.in_flows, self.link.in_s)):
            factor = copy_s(self.unit_bytes) / self.unit_s
            for k, flow in enumerate(flows if factor else ()):
                row = [(variable, factor) for variable in flow] + [(k, -1.0)]
                row += [(variable, -1.0) for variable in self.replays[k]]
                self.at_most.append((row, self.segment_s[k] / self.unit_s))
        for k, variables in enumerate(self.away):
            self.at_most.append(
                ([(variable, -1.0) for variable in variables], -self.excess[k] / self.unit_bytes)
            )
        try:
            from scipy.optimize import linprog
        except ImportError as error:
            raise ImportError(
                "a lower bound needs scipy, which is not installed: pip install scipy"
            ) from error

        cost = np.zeros(len(self.upper))
        cost[: len(self.at)] = 1.0
        for *_, drop, seconds in self.drops:
            cost[drop] = seconds
        result = linprog(
            cost,
            *self._matrix(self.at_most),
            *self._matrix(self.equal),
            bounds=np.column_stack([np.zeros(len(self.upper)), self.upper]),
            method="highs-ipm" if self.drops else "highs",
        )
        if result.status != 0:
            raise RuntimeError(f"the solver found no lower bound ({result.message}); try other checkpoints")
        return max(float(result.fun), 0.0) * self.unit_s

    def _versions(self) -> dict[tuple[bool, tuple[_Gap, ...]], int]:
        """Bytes of the versions that look alike from the checkpoints.

        The key: must it be copied out?, and the gaps in which checkpoints lie.
        """
        memory, n = self.memory, self.memory.ops
        # A gap begins in the first two steps of those that a version may span, and ends a step later at most.
        cyclic = np.concatenate([self.at + n * k for k in range(4)])
        spans: dict[tuple[int, int], list[_Gap]] = defaultdict(list)
        for gap, storage in enumerate(memory.gap_storage.tolist()):
            begin, end = memory.uses_offset[storage : storage + 2].tolist()
            writes = np.flatnonzero(memory.uses_write[begin:end])
            version, shift = int(np.searchsorted(writes, memory.gap_ordinal[gap], "right")), 0
            if version == 0 and len(writes):
                # What no use of this step has written yet, the last write of the step before has.
                version, shift = len(writes), n
            first = int(np.searchsorted(cyclic, memory.gap_out[gap] + shift, "right"))
            after = int(np.searchsorted(cyclic, memory.gap_use[gap] + shift, "left"))
            if first < after:
                span = (first, after, bool(memory.gap_returns[gap]), float(self.rate[gap]))
                spans[storage, version].append(span)
        alike: dict[tuple[bool, tuple[_Gap, ...]], int] = defaultdict(int)
        for (storage, version), gaps in spans.items():
            alike[version > 0, tuple(sorted(gaps))] += int(memory.block_bytes[storage])
        return alike

    def _add_version(self, copied: bool, gaps: tuple[_Gap, ...], size: float) -> None:
        """Variables and rows of a version of ``size``: how much of it is copied out, dropped, away and copied in."""
        copies: dict[int, int] = {}
        if copied:
            before = None
            for k in range(gaps[0][0], gaps[-1][1]):
                copies[k], flow = self._variable(size), self._variable(size)
                self.out_flows[(k - 1) % len(self.at)].append(flow)
                self._balance(copies[k], before, flow)
                before = copies[k]
        for first, after, returns, rate in gaps:
            dropped = None
            if np.isfinite(rate):
                dropped = self._variable(size)
                self.drops.append((first, after, dropped, rate * self.unit_bytes / self.unit_s))
            before = back = None
            for k in range(first, after):
                away, drop = self._variable(size), self._variable(size)
                self.away[k % len(self.at)].append(away)
                if dropped is not None:
                    self.away[k % len(self.at)].append(dropped)
                    self.at_most.append(([(away, 1.0), (dropped, 1.0)], size))
                self._balance(away, before, drop, back)
                if copied:
                    # What was away before and what is dropped since: all of it has been copied out by now.
                    gone = [(drop, 1.0)] if before is None else [(drop, 1.0), (before, 1.0)]
                    self.at_most.append(([*gone, (copies[k], -1.0)], 0.0))
                back = None
                if returns:
                    back = self._variable(size)
                    self.in_flows[k % len(self.at)].append(back)
                before = away
            if back is not None and before is not None:
                self._balance(None, before, back=back)

    def _add_replays(self) -> None:
        """How long replays run in each segment: for all drops together, and each of them within its gap."""
        run = [self._variable(np.inf) for _ in self.at]
        for k, seconds in enumerate(run):
            self.replays[k].append(seconds)
        for k in range(len(self.at)):
            # What runs up to here was dropped before; what runs from here on is used later.
            before = [(drop, -seconds) for first, _, drop, seconds in self.drops if first <= k]
            self.at_most.append(([*((variable, 1.0) for variable in run[: k + 1]), *before], 0.0))
            after = [(drop, -seconds) for _, after, drop, seconds in self.drops if after > k]
            self.at_most.append(([*((variable, 1.0) for variable in run[k:]), *after], 0.0))

    def _balance(
        self, now: int | None, before: int | None, more: int | None = None, back: int | None = None
    ) -> None:
        """``now = before + more - back``, where None is nothing."""
        terms = ((now, -1.0), (before, 1.0), (more, 1.0), (back, -1.0))
        self.equal.append(([(variable, factor) for variable, factor in terms if variable is not None], 0.0))

    def _variable(self, upper: float) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

    def _matrix(self, rows: list[tuple[list[tuple[int, float]], float]]) -> tuple[object, np.ndarray]:
        """The rows as a sparse matrix, and their right-hand sides."""
        from scipy.sparse import csr_array

        lengths = [len(row) for row, _ in rows]
        terms = np.array([term for row, _ in rows for term in row], dtype=np.float64).reshape(-1, 2)
        matrix = csr_array(
            (
                terms[:, 1],
                terms[:, 0].astype(np.int64),
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            ),
            shape=(len(rows), len(self.upper)),
        )
        return matrix, np.array([right for _, right in rows], dtype=np.float64)


def _replay_rates(memory: StepMemory, replayable: ReplayChains | None) -> np.ndarray:
    """Seconds a byte that a replay at each gap's end takes at least, float64 (G,); infinite where there is none."""
    rate = np.full(len(memory.gap_storage), np.inf)
    if replayable is None:
        return rate
    for gap in np.flatnonzero(memory.gap_returns & (memory.gap_use < memory.ops)).tolist():
        value = replayable.value_at(int(memory.row[memory.gap_storage[gap]]), int(memory.gap_use[gap]))
        if value != AT_FIRST and replayable.possible(value):
            rate[gap] = replayable.op_s(value) / int(memory.gap_bytes[gap])
    return rate
