"""What a policy does to a step: the resident bytes at each op, exactly, and the stalls, from op times and a link.

The simulator follows the executor op by op. Before an op the compute stream waits for the copies of the
blocks that are freed there (an out wait), then blocks are allocated and copies back issued, then the op waits
for the copies of what it uses (an in wait); after the op copies to the host are issued. Each direction of the
link takes one copy at a time, in order of issue. A copy back
never starts before its copy out has ended: the free in between has waited for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trace import StepTrace, Trace
from ..units import format_bytes
from .memory import StepMemory, Swaps, newest_step, step_op_times
from .model import Link, Policy
from .program import bind

PERIODS = 4
"""Steps simulated in a row. The first starts with everything resident, and only a later one knows its stalls."""

_FREE, _SWAP_IN, _USE, _SWAP_OUT = range(4)


@dataclass(frozen=True)
class Prediction:
    """One step in the steady state, as a policy should run it."""

    capacity_bytes: int
    peak_bytes: int
    """Most bytes on the device at once."""
    step_s: float
    """Compute and stalls."""
    stall_s: float
    out_wait_s: float
    """Part of ``stall_s`` spent waiting for copies to the host, before blocks are freed."""
    in_wait_s: float
    """Part of ``stall_s`` spent waiting for copies to the device, before uses."""
    transfer_s: float
    """Time that the link is busy, both directions added up."""
    swapped_out_bytes: int
    """Bytes copied to the host in a step. Clean swap-outs copy none."""
    swapped_in_bytes: int
    resident_bytes: np.ndarray
    """int64 (ops,): bytes on the device until the next op starts."""
    stall_op_s: np.ndarray
    """float64 (ops,): stall right before each op."""
    unmatched: tuple[str, ...] = ()
    """Decisions that found no gap in the step, and why."""

    @property
    def overlap(self) -> float:
        """Share of the transfer time hidden behind compute, 0 to 1; 1 if nothing is transferred."""
        if self.transfer_s == 0.0:
            return 1.0
        return min(max(1.0 - self.stall_s / self.transfer_s, 0.0), 1.0)

    @property
    def fits(self) -> bool:
        """Is the peak within the capacity?"""
        return self.peak_bytes <= self.capacity_bytes

    def __str__(self) -> str:
        compute_s = self.step_s - self.stall_s
        share = f" ({100 * self.stall_s / compute_s:.1f} % of compute)" if compute_s > 0 else ""
        return (
            f"Prediction: peak {format_bytes(self.peak_bytes)} of {format_bytes(self.capacity_bytes)}, "
            f"step {self.step_s:.4g} s, stall {self.stall_s:.4g} s{share}, overlap {self.overlap:.2f}, "
            f"out {format_bytes(self.swapped_out_bytes)}, in {format_bytes(self.swapped_in_bytes)}"
        )


def simulate(
    trace: Trace | StepTrace,
    policy: Policy,
    capacity_bytes: int | None = None,
    link: Link | None = None,
    op_times: Sequence[float] | np.ndarray | None = None,
) -> Prediction:
    """Predict a step of ``trace`` (the newest) under ``policy``, in the steady state.

    ``capacity_bytes`` and ``link`` default to the policy's; ``op_times`` (compute seconds of each op, shape
    (ops,)) to the recorded durations less stalls. Decisions are bound to the step as the executor binds them,
    and those that do not fit are left out and listed in ``unmatched``. A plan over capacity is simulated too:
    see ``Prediction.fits``.

    Raises TraceError if the trace holds no op, ValueError if ``op_times`` does not fit.
    """
    step = newest_step(trace)
    memory, swaps, unmatched = bind(policy, step)
    return simulate_swaps(
        memory,
        swaps,
        policy.capacity_bytes if capacity_bytes is None else capacity_bytes,
        policy.link if link is None else link,
        step_op_times(step, op_times),
        tuple(unmatched),
    )


def simulate_swaps(
    memory: StepMemory,
    swaps: Swaps,
    capacity_bytes: int,
    link: Link,
    op_times: np.ndarray,
    unmatched: tuple[str, ...] = (),
) -> Prediction:
    """:func:`simulate`, for swaps that are bound to a step's memory."""
    n = memory.ops
    size = memory.block_bytes[swaps.storage]
    needs_copy = swaps.needs_copy(memory)
    returns = swaps.returns
    out_s = np.array(
        [link.out_s(b) if copy else 0.0 for b, copy in zip(size.tolist(), needs_copy, strict=True)]
    )
    in_s = np.array([link.in_s(b) for b in size.tolist()])

    stall_op_s = np.zeros(n)
    out_wait_s = in_wait_s = 0.0
    events = _events(swaps, n)
    if events:
        start = np.concatenate([[0.0], np.cumsum(op_times)])
        compute_s = float(start[-1])
        starts = start.tolist()
        copies, out_times, in_times = needs_copy.tolist(), out_s.tolist(), in_s.tolist()
        out_done: list[float | None] = [None] * len(swaps)
        in_done: list[float | None] = [None] * len(swaps)
        out_free = in_free = stall = 0.0
        for period in range(PERIODS):
            before = period * compute_s
            out_wait_s = in_wait_s = 0.0
            waits: dict[int, float] = {}
            for op, kind, k in events:
                if kind == _SWAP_OUT:
                    now = before + starts[op + 1] + stall
                    # A clean swap-out is done at once: it does not queue behind other copies.
                    out_done[k] = now if not copies[k] else (out_free := max(out_free, now) + out_times[k])
                    continue
                # None: this gap began before the first simulated step, so the storage never left.
                out_end = out_done[k]
                if out_end is None:
                    continue
                now = before + starts[op] + stall
                if kind == _FREE:
                    wait = out_end - now
                    if wait > 0.0:
                        out_wait_s += wait
                        stall += wait
                        waits[op] = waits.get(op, 0.0) + wait
                elif kind == _SWAP_IN:
                    in_done[k] = in_free = max(in_free, now) + in_times[k]
                else:
                    in_end = in_done[k]
                    if in_end is not None and in_end > now:
                        in_wait_s += in_end - now
                        stall += in_end - now
                        waits[op] = waits.get(op, 0.0) + in_end - now
        stall_op_s[list(waits)] = list(waits.values())
    resident = memory.live_bytes - memory.away_bytes(swaps.storage, swaps.free_op, swaps.in_op)
    stall_s = out_wait_s + in_wait_s
    return Prediction(
        capacity_bytes=int(capacity_bytes),
        peak_bytes=int(resident.max()),
        step_s=float(op_times.sum()) + stall_s,
        stall_s=stall_s,
        out_wait_s=out_wait_s,
        in_wait_s=in_wait_s,
        transfer_s=float(out_s.sum() + in_s[returns].sum()),
        swapped_out_bytes=int(size[needs_copy].sum()),
        swapped_in_bytes=int(size[returns].sum()),
        resident_bytes=resident,
        stall_op_s=stall_op_s,
        unmatched=unmatched,
    )


def _events(swaps: Swaps, ops: int) -> list[tuple[int, int, int]]:
    """(op, kind, swap) of one step, in the order in which the executor fires them.

    Dormant storages have no event in the steady state: they left in the first step.
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
    kind = np.repeat(np.arange(4), [len(leaves), len(returns), len(returns), len(leaves)])
    index = np.concatenate([leaves, returns, returns, leaves])
    storage = swaps.storage[index]
    order = np.lexsort((storage, np.concatenate(urgency), kind, op))
    return list(zip(op[order].tolist(), kind[order].tolist(), index[order].tolist(), strict=True))
