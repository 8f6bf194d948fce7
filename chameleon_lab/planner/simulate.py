"""The effect of a policy on a step: exact resident bytes at each op, and stalls from op times and a link.

The simulator follows the executor op by op. Before an op the compute stream waits for the copies of the
blocks that are freed there, then blocks are allocated and copies back issued, then replays run once what they read
is there, then the op waits for the copies of what it uses; after the op copies to the host are issued and blocks are
dropped. Replays are compute, beside that of the ops: time that was not needed without a policy. Each direction of the
link takes one copy at a time, in order of issue. A copy back never starts before its copy out has ended: the free in
between has waited for that.

Steps are simulated in a row until they repeat: what counts is a long run, not its first steps, in which a
backlog of copies may still grow.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from ..policy.model import Link, Policy
from ..trace import Direction, Stage, StepTrace, Trace
from ..trace.overlap import exposed_share, hidden_share
from ..trace.table import Table
from ..trace.trace import plannable_step
from ..util.units import format_bytes, format_percent, format_seconds
from . import native
from .arguments import checked_capacity, checked_host_capacity, checked_link
from .host_room import HostRoom
from .memory import StepMemory, Swaps, step_op_times
from .pressure import with_evictions
from .program import bind
from .replay import PlannedReplays
from .retention import as_planned


class StallCause(StrEnum):
    """What the compute stream waits for."""

    SWAP_OUT = "swap-out"
    """The end of a copy to the host, before its block is freed: memory is needed sooner than the link is done."""
    PREFETCH = "late prefetch"
    """The end of a copy to the device that was issued ahead of the use, but not far enough."""
    DEMAND = "demand"
    """A whole copy to the device: there was no room for the block before the op that uses it."""


_CAUSES = tuple(StallCause)
_SWAP_OUT_WAIT, _PREFETCH_WAIT, _DEMAND_WAIT = range(3)


@dataclass(frozen=True)
class Waits(Table):
    """One row per wait of the compute stream in a step, in program order. Where steps alternate, their average."""

    op: np.ndarray  # int64: op that has to wait
    storage: np.ndarray  # int64: row of StepTrace.storages
    cause: np.ndarray  # uint8: index into StallCause, in the order of its declaration
    duration_s: np.ndarray  # float64
    after_replays: np.ndarray  # bool: does it come after the replays before its op, or before them?

    @property
    def direction(self) -> np.ndarray:
        """uint8 (waits,): Direction of the copy that is waited for."""
        return np.where(self.cause == _SWAP_OUT_WAIT, Direction.OUT, Direction.IN).astype(np.uint8)


@dataclass(frozen=True)
class Copies(Table):
    """One row per copy of a step, those of each direction in the order of their storages' swaps."""

    storage: np.ndarray  # int64: row of StepTrace.storages
    direction: np.ndarray  # uint8: Direction
    bytes: np.ndarray  # int64
    issue_op: np.ndarray  # int64
    start_s: np.ndarray  # float64: from the step's start on, stalls and replays counted in
    end_s: np.ndarray  # float64


@dataclass(frozen=True)
class OpStall:
    """An op that has to wait, and what for."""

    op: int
    name: str
    module: str
    """Path of the module that ran the op; empty outside any."""
    stage: str
    stall_s: float
    cause: StallCause
    """Of the longest of its waits."""
    storage: str
    """Key of the storage that it waits for longest, see StepTrace.storage_keys."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """One step in the steady state, as a policy should run it."""

    capacity_bytes: int
    peak_bytes: int
    """Most bytes on the device at once."""
    step_s: float
    """Compute, replays and stalls."""
    stall_s: float
    transfer_s: float
    """Time that the link is busy, both directions added up."""
    swapped_out_bytes: int
    """Bytes copied to the host in a step. Clean swap-outs copy none."""
    swapped_in_bytes: int
    resident_bytes: np.ndarray
    """int64 (ops,): bytes on the device until the next op starts."""
    stall_op_s: np.ndarray
    """float64 (ops,): stall right before each op."""
    waits: Waits
    """Every wait that ``stall_s`` is made of."""
    copies: Copies
    """When the link does what. Where steps alternate, in the last of them."""
    replay_op_s: np.ndarray
    """float64 (ops,): time of the replays right before each op."""
    unstalled_s: np.ndarray
    """float64 (ops+1,): when each op's replays, then the op, would begin were there no stalls; then the step's end."""
    replay_s: float = 0.0
    """Time of the replays of what was dropped."""
    replayed_bytes: int = 0
    """Blocks that are dropped and replayed in a step."""
    host_peak_bytes: int = 0
    """Most bytes of copies on the host at once; 0 where nobody asked."""
    host_capacity_bytes: int | None = None
    """What they may take; None: no limit."""
    unmatched: tuple[str, ...] = ()
    """Decisions that found no gap in the step, and why."""
    step: StepTrace | None = field(default=None, repr=False)
    """The step that it is about, for the names of ops and storages."""

    @property
    def stall_by_cause(self) -> dict[StallCause, float]:
        """Seconds of each cause. They add up to ``stall_s``."""
        total_s = np.bincount(self.waits.cause, weights=self.waits.duration_s, minlength=len(_CAUSES))
        return dict(zip(_CAUSES, total_s.tolist(), strict=True))

    @property
    def compute_s(self) -> float:
        """The step without stalls and replays: what it takes without any policy."""
        return self.step_s - self.stall_s - self.replay_s

    @property
    def stall_share(self) -> float:
        """Stall as a share of the compute time; 0 without any."""
        return self.stall_s / self.compute_s if self.compute_s > 0 else 0.0

    @property
    def replay_share(self) -> float:
        """Replays as a share of the compute time; 0 without any."""
        return self.replay_s / self.compute_s if self.compute_s > 0 else 0.0

    @property
    def overhead_share(self) -> float:
        """What the policy costs, stalls and replays, as a share of the compute time."""
        return self.stall_share + self.replay_share

    @cached_property
    def wait_start_s(self) -> np.ndarray:
        """float64 (waits,): when each begins, in seconds from the step's start on, stalls and replays counted in."""
        waits = self.waits
        begin_s = self.unstalled_s[waits.op] + self.replay_op_s[waits.op] * waits.after_replays
        start_s: np.ndarray = begin_s + np.cumsum(waits.duration_s) - waits.duration_s
        return start_s

    @cached_property
    def overlap(self) -> float | None:
        """Share of the copies' time in which compute does not wait for their direction, 0 to 1, as
        :mod:`chameleon_lab.trace.overlap` says it of recorded steps; None where no copy takes any time.

        As in a recorded step, copies are those that it issues, and waits those of its own ops.
        """
        copies, waits, begin_s = self.copies, self.waits, self.wait_start_s
        end_s = begin_s + waits.duration_s
        exposed = exposed_share(
            copies.direction, copies.start_s, copies.end_s, waits.direction, begin_s, end_s
        )
        return hidden_share(exposed, copies.end_s - copies.start_s)

    @property
    def fits(self) -> bool:
        """Are the peaks within the capacities, of the device and of the host?"""
        return self.peak_bytes <= self.capacity_bytes and self.host_short_bytes == 0

    @property
    def host_short_bytes(self) -> int:
        """What the host's capacity lacks at the peak."""
        return (
            0 if self.host_capacity_bytes is None else max(self.host_peak_bytes - self.host_capacity_bytes, 0)
        )

    def worst_ops(self, count: int = 10) -> tuple[OpStall, ...]:
        """The ``count`` ops that wait longest, longest first."""
        if self.step is None:
            return ()
        step, waits = self.step, self.waits
        worst = []
        for op in np.argsort(-self.stall_op_s, kind="stable")[:count].tolist():
            if self.stall_op_s[op] <= 0.0:
                break
            own = np.flatnonzero(waits.op == op)
            longest = int(own[waits.duration_s[own].argmax()])
            worst.append(
                OpStall(
                    op=op,
                    name=step.op_name(op),
                    module=step.module_path(int(step.ops.module[op])),
                    stage=Stage(int(step.ops.stage[op])).name.lower(),
                    stall_s=float(self.stall_op_s[op]),
                    cause=_CAUSES[int(waits.cause[longest])],
                    storage=step.storage_keys[int(waits.storage[longest])],
                )
            )
        return tuple(worst)

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"  {cause:<14} {format_seconds(stall_s):>9}" for cause, stall_s in self._causes()]
        lines += [
            f"  op {worst.op} {worst.name} {worst.module} ({worst.stage}): {format_seconds(worst.stall_s)}, "
            f"{worst.cause} of {worst.storage}"
            for worst in self.worst_ops(5)
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        causes = "".join(
            f"<tr><td>{cause}</td><td>{format_seconds(stall_s)}</td></tr>"
            for cause, stall_s in self._causes()
        )
        ops = "".join(
            f"<tr><td>{worst.op}</td><td>{html.escape(worst.name)}</td><td>{html.escape(worst.module)}</td>"
            f"<td>{worst.stage}</td><td>{format_seconds(worst.stall_s)}</td><td>{worst.cause}</td>"
            f"<td>{html.escape(worst.storage)}</td></tr>"
            for worst in self.worst_ops(5)
        )
        if causes:
            causes = f"<table><tr><th>stall by cause</th><th></th></tr>{causes}</table>"
        if ops:
            heads = "".join(
                f"<th>{head}</th>" for head in ("op", "name", "module", "stage", "stall", "cause", "storage")
            )
            ops = f"<table><tr>{heads}</tr>{ops}</table>"
        return f"<div><p>{html.escape(self._headline())}</p>{causes}{ops}</div>"

    def _causes(self) -> list[tuple[StallCause, float]]:
        return [(cause, stall_s) for cause, stall_s in self.stall_by_cause.items() if stall_s > 0.0]

    def _headline(self) -> str:
        share = f" ({format_percent(self.stall_share)} of compute)" if self.compute_s > 0 else ""
        replays = ""
        if self.replayed_bytes:
            replays = (
                f"replays {format_seconds(self.replay_s)} ({format_percent(self.replay_share)}) of "
                f"{format_bytes(self.replayed_bytes)}, "
            )
        over = "" if self.peak_bytes <= self.capacity_bytes else ", which is too little"
        host = ""
        if self.host_capacity_bytes is not None:
            host = f", host {format_bytes(self.host_peak_bytes)} of {format_bytes(self.host_capacity_bytes)}"
            host += ", which is too little" if self.host_short_bytes else ""
        unmatched = f", {len(self.unmatched)} decisions unmatched" if self.unmatched else ""
        return (
            f"Prediction: peak {format_bytes(self.peak_bytes)} of {format_bytes(self.capacity_bytes)}{over}{host}, "
            f"step {format_seconds(self.step_s)}, stall {format_seconds(self.stall_s)}{share}, {replays}"
            f"overlap {format_percent(self.overlap)}, out {format_bytes(self.swapped_out_bytes)}, "
            f"in {format_bytes(self.swapped_in_bytes)}{unmatched}"
        )


def simulate(
    trace: Trace | StepTrace,
    policy: Policy,
    capacity_bytes: int | float | str | None = None,
    link: Link | float | str | tuple[float | str, float | str] | None = None,
    op_times: Sequence[float] | np.ndarray | None = None,
    *,
    evict: bool = False,
    host_capacity_bytes: int | float | str | None = None,
) -> Prediction:
    """Predict a step of ``trace`` (the newest) under ``policy``, in the steady state.

    ``capacity_bytes`` and ``link``, written as for :func:`~chameleon_lab.planner.plan`, default to the policy's;
    ``op_times`` (compute seconds of each op, shape (ops,)) to the recorded durations less stalls. Decisions are
    bound to the step as the executor binds them,
    and those that do not fit are left out and listed in ``unmatched``. A plan over capacity is simulated too:
    see ``Prediction.fits``. ``host_capacity_bytes`` bounds what copies take on the host; it defaults to what the policy
    was planned within. With ``evict``, what is too much is evicted, as the executor does; see
    :func:`~chameleon_lab.planner.pressure.with_evictions`.

    Raises TraceError if the trace holds no op, ValueError if ``capacity_bytes`` or ``op_times`` does not fit, TypeError
    if an argument is something else.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {policy!r}: give a Policy, such as plan(...) or Policy.load(...) returns")
    step = plannable_step(trace)
    capacity_bytes = (
        policy.capacity_bytes if capacity_bytes is None else checked_capacity(capacity_bytes, step)
    )
    link = policy.link if link is None else checked_link(link)
    host_bytes = policy.host_capacity_bytes if host_capacity_bytes is None else host_capacity_bytes
    times = step_op_times(step, op_times)
    memory, swaps, replays, unmatched = bind(policy, step, times)
    if evict:
        served, _ = replays.served(memory, swaps)
        swaps = with_evictions(replays.applied(memory), served, capacity_bytes)
    return simulate_swaps(
        memory,
        swaps,
        capacity_bytes,
        link,
        times,
        replays,
        host=HostRoom(as_planned(policy, step), checked_host_capacity(host_bytes, step)),
        unmatched=tuple(unmatched),
        step=step,
    )


def simulate_swaps(
    memory: StepMemory,
    swaps: Swaps,
    capacity_bytes: int,
    link: Link,
    op_times: np.ndarray,
    replays: PlannedReplays | None = None,
    *,
    host: HostRoom | None = None,
    unmatched: tuple[str, ...] = (),
    step: StepTrace | None = None,
) -> Prediction:
    """:func:`simulate`, for swaps that are bound to a step's memory, and replays of that memory.

    ``host``: where copies lie; None leaves out what that takes, and keeps them all.
    """
    early = np.zeros(len(swaps), dtype=bool)
    replay_s, replayed_bytes = np.zeros(len(op_times)), 0
    if replays is not None:
        swaps, early = replays.served(memory, swaps)
        replay_s, replayed_bytes = replays.seconds, int(memory.block_bytes[replays.storage].sum())
    kept = None if host is None else host.kept(memory, swaps)
    host_peak_bytes = 0 if host is None else host.peak_bytes(memory, swaps)
    if replays is not None:
        memory = replays.applied(memory)
    size = memory.block_bytes[swaps.storage]
    needs_copy = swaps.needs_copy(memory, kept)
    out_s, in_s = link.out_s(size) * needs_copy, link.in_s(size) * swaps.returns
    clock = _Clock(swaps, early, needs_copy, out_s, in_s, op_times, replay_s)
    stall_op_s = np.bincount(clock.op, weights=clock.duration_s, minlength=memory.ops)
    resident = memory.live_bytes - memory.away_bytes(swaps.storage, swaps.free_op, swaps.in_op)
    stall_s = float(clock.duration_s.sum())
    return Prediction(
        capacity_bytes=int(capacity_bytes),
        peak_bytes=int(resident.max()),
        step_s=float(op_times.sum() + replay_s.sum()) + stall_s,
        stall_s=stall_s,
        transfer_s=float(out_s.sum() + in_s.sum()),
        swapped_out_bytes=int(size[needs_copy].sum()),
        swapped_in_bytes=int(size[swaps.returns].sum()),
        resident_bytes=resident,
        stall_op_s=stall_op_s,
        waits=Waits(
            clock.op,
            memory.row[swaps.storage[clock.swap]],
            clock.cause.astype(np.uint8),
            clock.duration_s,
            clock.after_replays,
        ),
        copies=_copies(memory, swaps, clock, needs_copy, out_s, in_s),
        replay_op_s=replay_s,
        unstalled_s=clock.starts_s,
        replay_s=float(replay_s.sum()),
        replayed_bytes=replayed_bytes,
        host_peak_bytes=host_peak_bytes,
        host_capacity_bytes=None if host is None else host.limit_bytes,
        unmatched=unmatched,
        step=step,
    )


class _Clock:
    """The compute stream and the two directions of the link, over steps in a row until they repeat.

    The loop itself is in C++ (``csrc/planner/stall_clock.cpp``).
    """

    def __init__(
        self,
        swaps: Swaps,
        early: np.ndarray,
        needs_copy: np.ndarray,
        out_s: np.ndarray,
        in_s: np.ndarray,
        op_times: np.ndarray,
        replay_s: np.ndarray,
    ) -> None:
        self.starts_s = np.concatenate([[0.0], np.cumsum(op_times + replay_s)])
        """When the replays before each op would start, were there no stalls; then the step's end."""
        op_start_s = self.starts_s[:-1] + replay_s
        op, kind, swap = _events(swaps, early, len(op_times))
        at_op, of_swap, outward, duration_s, cycle, out_end_s, in_end_s, step_s = native.run_until_steady(
            op, kind, swap, self.starts_s, op_start_s, out_s, in_s, needs_copy
        )
        self.step_s = step_s
        """What the newest step took; the ends of its copies count from the end of it."""
        self.out_end_s, self.in_end_s = out_end_s, in_end_s
        issued_at_use = swaps.in_op[of_swap] == swaps.use_op[of_swap]
        cause = np.where(outward, _SWAP_OUT_WAIT, np.where(issued_at_use, _DEMAND_WAIT, _PREFETCH_WAIT))
        after_replays = ~outward & ~early[of_swap]
        order = np.lexsort((of_swap, cause, after_replays, at_op)) if cycle > 1 else np.arange(len(at_op))
        self.op, self.swap, self.cause = at_op[order], of_swap[order], cause[order]
        self.duration_s, self.after_replays = duration_s[order] / cycle, after_replays[order]
        """One row per wait of the compute stream, averaged where steps alternate; the last says whether it comes after
        the op's replays."""


def _copies(
    memory: StepMemory,
    swaps: Swaps,
    clock: _Clock,
    needs_copy: np.ndarray,
    out_s: np.ndarray,
    in_s: np.ndarray,
) -> Copies:
    """The copies of the last step that a clock has run: it knows their ends, and each takes the link for itself."""
    parts = []
    for way, ends, seconds, op, moves in (
        (Direction.OUT, clock.out_end_s, out_s, swaps.out_op, needs_copy),
        (Direction.IN, clock.in_end_s, in_s, swaps.in_op, swaps.returns),
    ):
        end_s = ends + clock.step_s
        chosen = np.flatnonzero(moves & np.isfinite(end_s))
        parts.append(
            (
                memory.row[swaps.storage[chosen]],
                np.full(len(chosen), way, dtype=np.uint8),
                memory.block_bytes[swaps.storage[chosen]],
                op[chosen] % memory.ops,
                (end_s - seconds)[chosen],
                end_s[chosen],
            )
        )
    return Copies(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _events(swaps: Swaps, early: np.ndarray, ops: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Op, kind and swap of each event of one step, in the order in which the executor fires them.

    ``early`` swaps are waited for by a replay before their ``use_op``, the others by that op. Dormant storages have no
    event in the steady state: they left in the first step.
    """
    leaves, returns = np.flatnonzero(swaps.in_op >= 0), np.flatnonzero(swaps.returns)
    columns = (swaps.free_op[leaves], swaps.in_op[returns], swaps.use_op[returns], swaps.out_op[leaves])
    # Copies issued at one op go in the order in which they will be needed.
    urgency = (
        np.zeros(len(leaves), dtype=np.int64),
        (swaps.use_op - swaps.in_op)[returns],
        np.zeros(len(returns), dtype=np.int64),
        (swaps.free_op - swaps.out_op)[leaves],
    )
    op = np.concatenate(columns) % ops
    kind = np.concatenate(
        [
            np.full(len(leaves), native.FREE),
            np.full(len(returns), native.SWAP_IN),
            np.where(early[returns], native.REPLAY_READ, native.USE),
            np.full(len(leaves), native.SWAP_OUT),
        ]
    )
    index = np.concatenate([leaves, returns, returns, leaves])
    storage = swaps.storage[index]
    order = np.lexsort((storage, np.concatenate(urgency), kind, op))
    return op[order], kind[order], index[order]
