"""Checkpointing of blocks, with what it keeps swapped by the planner's own passes: what people do without plans.

- **block**: ``torch.utils.checkpoint`` around every block: its input is kept, and its forward runs again as a whole.
- **selective**: the results of matrix products and attention are kept too, and only the other ops run again.
- **offload**: as **block**, with the blocks' inputs on the host until the block before has run its backward.

A block's forward runs right before the first op of its backward, and all that it makes is there at once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chameleon_lab.planner import Prediction
from chameleon_lab.planner.constraints import joined
from chameleon_lab.planner.memory import StepMemory, Swaps, no_swaps, step_memory
from chameleon_lab.planner.passes import Way, plan_swaps
from chameleon_lab.planner.replay import PlannedReplays, ReplayChains
from chameleon_lab.planner.retention import retaining
from chameleon_lab.planner.simulate import simulate_swaps
from chameleon_lab.policy import Link
from chameleon_lab.trace import Stage, StepTrace

KINDS = ("block", "selective", "offload")

KEPT = frozenset(
    f"aten::{name}"
    for name in (
        "linear",
        "addmm",
        "mm",
        "matmul",
        "bmm",
        "baddbmm",
        "convolution",
        "scaled_dot_product_attention",
    )
)
"""Ops whose results selective checkpointing keeps."""

_BLOCK = re.compile(r"^(.*?\.)?(\d+)(?=\.|$)")
"""The outermost numbered part of a module's path."""

_WAYS = [Way(early, longest) for early in (False, True) for longest in (False, True)]


@dataclass(frozen=True)
class _Block:
    backward: int
    """The op before which its forward runs again."""
    dropped: tuple[int, ...]
    """Rows of what is made again."""
    read: tuple[int, ...]
    """Rows of what that reads."""
    seconds: float
    transient_bytes: int


def checkpointed(
    kind: str, step: StepTrace, capacity_bytes: int, link: Link, times: np.ndarray
) -> Prediction | None:
    """What a step takes with its blocks checkpointed; None where that does not fit the capacity, or has no blocks."""
    blocks, until = _plan(step, times, kind == "selective")
    if not blocks:
        return None
    seen = retaining(step, until)
    memory = step_memory(seen, capacity_bytes=capacity_bytes)
    chains = ReplayChains(seen, memory, times)
    replays, inputs = _replays(blocks, memory, chains)
    view, forced = replays.applied(memory), no_swaps()
    if kind == "offload":
        forced = _offloaded(inputs, sorted(block.backward for block in blocks), view, link, times)
        gap = inputs_of(forced, memory)
        use = view.gap_use.copy()
        use[gap] = view.gap_out[gap] + 1
        away = memory.away_bytes(forced.storage, forced.free_op, forced.in_op)
        view = dataclasses.replace(view, live_bytes=view.live_bytes - away, gap_use=use)
    if int(view.least_bytes().max()) > capacity_bytes:
        return None

    def judged(clock: np.ndarray, way: Way) -> Prediction:
        swaps = joined(forced, plan_swaps(view, capacity_bytes, link, clock, way))
        return simulate_swaps(memory, swaps, capacity_bytes, link, times, replays)

    clock = times + replays.seconds
    best = min((judged(clock, way) for way in _WAYS), key=lambda found: found.step_s)
    later = (clock + best.stall_op_s, np.full(len(clock), float(clock.mean())))
    again = [judged(other, way) for other in later for way in _WAYS]
    return min([best, *again], key=lambda found: found.step_s)


def _plan(step: StepTrace, times: np.ndarray, selective: bool) -> tuple[list[_Block], dict[int, int]]:
    """The blocks, and what is kept until when though it dies before."""
    storages, uses = step.storages, step.uses
    ops_of: dict[str, tuple[list[int], list[int]]] = {}
    for op, stage in enumerate(step.ops.stage.tolist()):
        match = _BLOCK.match(step.module_path(int(step.ops.module[op])))
        if match and stage in (Stage.FORWARD, Stage.BACKWARD):
            ops_of.setdefault(match.group(), ([], []))[stage == Stage.BACKWARD].append(op)
    reads: dict[int, list[int]] = {}
    used_at: dict[int, list[int]] = {}
    for op, row in zip(uses.op.tolist(), uses.storage.tolist(), strict=True):
        reads.setdefault(row, []).append(op)
        used_at.setdefault(op, []).append(row)
    born: dict[int, list[int]] = {}
    births = storages.birth_op.tolist()
    for row, birth in enumerate(births):
        born.setdefault(birth, []).append(row)
    blocks, until = [], {}
    for forward, backward in ops_of.values():
        if not forward or not backward or min(backward) < max(forward):
            continue
        first, last, begin = min(forward), max(forward), min(backward)
        inside = [row for op in range(first, last + 1) for row in born.get(op, [])]
        goes_on = {row for row in inside if any(last < op < begin for op in reads.get(row, []))}
        needed = [row for row in inside if row not in goes_on and max(reads.get(row, [0])) >= begin]
        read = {row for op in range(first, last + 1) for row in used_at.get(op, []) if births[row] < first}
        for row in read:
            if births[row] >= 0:
                until[row] = max(until.get(row, 0), begin)
        again = list(range(first, last + 1))
        if selective:
            again = [op for op in again if step.op_name(op) not in KEPT]
            kept = {row for row in inside if step.op_name(births[row]) in KEPT}
            needed = [row for row in needed if row not in kept]
            until |= {row: max(until.get(row, 0), begin) for row in kept - goes_on}
        end = max((births[row] for row in needed), default=first)
        held = np.zeros(last + 1 - first, dtype=np.int64)
        for row in inside:
            if row in goes_on or max(reads.get(row, [0])) >= begin:
                held[births[row] - first :] += int(storages.block_bytes[row])
        rise = step.ops.live_peak_bytes[first : last + 1] - step.ops.live_peak_bytes[max(first - 1, 0)] - held
        seconds = float(sum(times[op] for op in again if op <= end))
        blocks.append(_Block(begin, tuple(needed), tuple(read), seconds, max(int(rise.max()), 0)))
    return blocks, {row: op for row, op in until.items() if op > int(storages.death_op[row])}


def _replays(
    blocks: Sequence[_Block], memory: StepMemory, chains: ReplayChains
) -> tuple[PlannedReplays, list[tuple[int, int]]]:
    """The drops of all blocks; and the gaps of their inputs, with the op before which each is read."""
    n = memory.ops
    seconds, transient = np.zeros(n), np.zeros(n, dtype=np.int64)
    back: dict[int, int] = {}
    needed: dict[int, int] = {}
    inputs = []
    for block in blocks:
        op = block.backward
        seconds[op] += block.seconds
        transient[op] = max(int(transient[op]), block.transient_bytes)
        for row in block.dropped:
            around = chains.gap_around(row, op)
            if around and memory.gap_returns[around[0]] and op > int(memory.gap_out[around[0]]) + 1:
                back[around[0]] = op
        for row in block.read:
            around = chains.gap_around(row, op)
            if around and memory.gap_returns[around[0]]:
                needed[around[0]] = min(needed.get(around[0], around[1]), around[1])
                if not memory.persistent[memory.gap_storage[around[0]]]:
                    inputs.append((around[0], op))
    gap = np.array(sorted(back), dtype=np.int64)
    replays = PlannedReplays(
        gap=gap,
        storage=memory.gap_storage[gap],
        ordinal=memory.gap_ordinal[gap],
        out_op=memory.gap_out[gap],
        in_op=np.array([back[one] for one in gap.tolist()], dtype=np.int64),
        use_op=memory.gap_use[gap],
        seconds=seconds,
        transient_bytes=transient,
        bytes_before=chains.bytes_before,
        needed={one: op for one, op in needed.items() if one not in back},
        stays=frozenset(),
        declined=(),
    )
    return replays, [(one, op) for one, op in inputs if one not in back]


def _offloaded(
    inputs: Sequence[tuple[int, int]],
    backwards: Sequence[int],
    view: StepMemory,
    link: Link,
    times: np.ndarray,
) -> Swaps:
    """Swaps of the blocks' inputs, back when the block before in backward begins."""
    start = np.concatenate([[0.0], np.cumsum(times)])
    found: dict[int, int] = {}
    for gap, op in inputs:
        before = backwards[max(backwards.index(op) - 1, 0)]
        if view.gap_use[gap] >= view.gap_out[gap] + 2:
            found[gap] = max(int(view.gap_out[gap]) + 1, min(before, op))
    gap = np.array(sorted(found), dtype=np.int64)
    back = np.array([found[one] for one in gap.tolist()], dtype=np.int64)
    out = view.gap_out[gap]
    ends_s = start[out + 1] + 1.5 * link.out_s(view.gap_bytes[gap])
    free = np.maximum(np.minimum(np.searchsorted(start, ends_s, "left"), back), out + 1)
    return view.swaps(gap, free, np.maximum(back, free), view.dormant[:0])


def inputs_of(swaps: Swaps, memory: StepMemory) -> np.ndarray:
    """The gaps of swaps, int64 (swaps,)."""
    pairs = zip(memory.gap_storage.tolist(), memory.gap_ordinal.tolist(), strict=True)
    index = {pair: gap for gap, pair in enumerate(pairs)}
    own = zip(swaps.storage.tolist(), swaps.ordinal.tolist(), strict=True)
    return np.array([index[pair] for pair in own], dtype=np.int64)
