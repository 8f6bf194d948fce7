"""A step's memory as a function of the op index, and the savings of each storage's absence.

A storage that is swapped out in a gap is away during the ops ``free_op <= i < in_op``. The frees and
allocations of a plan happen in program order, so resident bytes at op ``i`` are the live bytes measured there
less the blocks that are away: op indices alone decide them, and no time does. Everything in
:mod:`chameleon_lab.policy` that says "bytes at an op" means this sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ..errors import BelowFloorError
from ..policy.model import NEVER
from ..trace import Stage, StepTrace, Trace
from ..trace.collective_ops import launch_ops
from ..trace.list_ops import part_limit_bytes
from ..trace.trace import newest_step
from ..util.units import format_bytes
from .arguments import checked_min_swap

MIN_SWAP_BYTES = 16 * 1024
"""Storages with smaller blocks stay where the capacity allows it: a copy costs more to issue than it frees."""

LEAST_SWAP_BYTES = 512
"""Smaller ones never leave, and do not count."""

_UNWRITTEN = ("empty", "new_empty")


@dataclass(frozen=True)
class Floor:
    """The smallest capacity that any policy can run a step in, and the op that sets it."""

    bytes: int
    op: int
    op_name: str
    module: str
    """Path of the module that ran the op; empty outside any."""
    stage: str
    working_set_bytes: int
    """Blocks that the op itself uses at once. The rest of ``bytes`` cannot move, or is the op's scratch memory."""
    work_space_bytes: int = 0
    """What the op takes at its peak beside its inputs and outputs: blocks that its kernel makes and frees, and bytes of
    no storage. Another kernel may want others."""
    kernels: str | None = None
    """Whose kernels ran (the CPU with its instructions, or the GPU); "" where none did, None where it is not known."""

    @property
    def measured_on(self) -> str:
        """In words: what the floor was measured on, and what of it another device's kernels may change."""
        if self.kernels is None:
            return "of kernels that the trace does not name"
        if not self.kernels:
            return "from shapes alone, without the work space that kernels want"
        space = (
            f"{format_bytes(self.work_space_bytes)} of the op's is work space"
            if self.work_space_bytes
            else "the op has no work space"
        )
        return f"measured on {self.kernels}; {space}, other kernels may want another"


@dataclass(frozen=True)
class StepMemory:
    """One step as the planner sees it: candidates (storages that may leave the device), their uses and their gaps.

    Shapes: ``ops`` ops, ``C`` candidates, ``U`` uses of candidates, ``G`` gaps. A candidate is a movable
    storage whose block has at least ``min_swap_bytes``. A gap lies between two consecutive uses ``u < v``;
    the birth counts as a use. The gap after the last use of a persistent storage (alive when the step began
    and when it ended) reaches its first use in the next step, so there ``v >= ops``. After the last use of any
    other storage comes dead time: a gap too, from which nothing returns. Gradients between the optimizer and
    ``zero_grad`` are the usual case.

    Storages that the step before left behind, and that die in this one, are no candidates: the executor could not
    tell them from one another. Eviction can, and so what is left of them where the capacity has no room for it does not
    count. Nor do the elements of list ops beyond the part that runs: see :mod:`~chameleon_lab.trace.list_ops`.
    """

    ops: int
    live_bytes: np.ndarray
    """int64 (ops,): bytes of the device with every storage resident, but for what yields to the capacity by itself."""
    row: np.ndarray
    """int64 (C,): row of the candidate in ``StepTrace.storages``."""
    block_bytes: np.ndarray
    """int64 (C,)"""
    persistent: np.ndarray
    """bool (C,)"""
    uses_offset: np.ndarray
    """int64 (C+1,): the uses of candidate ``c`` are ``uses_op[uses_offset[c]:uses_offset[c+1]]``."""
    uses_op: np.ndarray
    """int64 (U,): ascending for each candidate."""
    uses_write: np.ndarray
    """bool (U,): does that use write, or end the storage's copy on the host all the same?"""
    gap_storage: np.ndarray
    """int64 (G,): candidate"""
    gap_ordinal: np.ndarray
    """int64 (G,): ordinal, among the uses of the candidate, of the use that the gap follows."""
    gap_out: np.ndarray
    """int64 (G,): op of that use, ``u``"""
    gap_use: np.ndarray
    """int64 (G,): op of the use that ends the gap, ``v`` (``>= ops`` in the next step); of dead time, the op after
    that during which the storage dies, which is in the next step where that is known"""
    gap_returns: np.ndarray
    """bool (G,): false for dead time"""
    dormant: np.ndarray
    """int64 (D,): persistent candidates that no op of the step uses."""

    @property
    def gap_bytes(self) -> np.ndarray:
        """int64 (G,): what is saved while the gap's storage is away."""
        saved: np.ndarray = self.block_bytes[self.gap_storage]
        return saved

    def away_bytes(self, storage: np.ndarray, free_op: np.ndarray, in_op: np.ndarray) -> np.ndarray:
        """Bytes away at each op, int64 (ops,), if each ``storage`` (candidates) is away for ``free_op <= i < in_op``.

        An ``in_op`` below 0 means that the storage never comes back: away at every op.
        """
        n = self.ops
        size = self.block_bytes[storage]
        forever = in_op < 0
        change = np.zeros(2 * n + 2, dtype=np.int64)
        np.add.at(change, free_op[~forever], size[~forever])
        np.subtract.at(change, in_op[~forever], size[~forever])
        away = np.cumsum(change)[: 2 * n]
        return away[:n] + away[n:] + int(size[forever].sum())

    def least_bytes(self) -> np.ndarray:
        """Bytes at each op, int64 (ops,), if everything that can be away there is."""
        away = self.away_bytes(self.gap_storage, self.gap_out + 1, self.gap_use)
        least: np.ndarray = self.live_bytes - away - int(self.block_bytes[self.dormant].sum())
        return least

    def swaps(self, gaps: np.ndarray, free_op: np.ndarray, in_op: np.ndarray, dormant: np.ndarray) -> Swaps:
        """Swaps of some gaps, each away for ``free_op <= i < in_op``, and of dormant candidates, away for good."""
        never = np.full(len(dormant), NEVER, dtype=np.int64)
        columns = (
            (dormant, self.gap_storage[gaps]),
            (never, self.gap_ordinal[gaps]),
            (never + 1, self.gap_out[gaps]),
            (never + 2, free_op),
            (never, in_op),
            (never, self.gap_use[gaps]),
            (never >= 0, self.gap_returns[gaps]),
        )
        return Swaps(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True)
class Swaps:
    """Swaps bound to the candidates of a StepMemory. All columns are int64 of shape (swaps,).

    The op indices are those of :class:`~chameleon_lab.policy.Decision`, but that ``in_op`` and ``use_op`` of a swap
    in dead time are the op after that during which the storage dies. Of a dormant storage ``ordinal``, ``in_op`` and
    ``use_op`` are -1.
    """

    storage: np.ndarray
    ordinal: np.ndarray
    out_op: np.ndarray
    free_op: np.ndarray
    in_op: np.ndarray
    use_op: np.ndarray
    returns: np.ndarray
    """bool (swaps,): does the storage come back?"""

    def __len__(self) -> int:
        return len(self.storage)

    def taken(self, which: np.ndarray) -> Swaps:
        """Some of the swaps: ``which`` is an index or a mask."""
        return Swaps(*(getattr(self, f.name)[which] for f in fields(self)))

    def needs_copy(self, memory: StepMemory, kept: np.ndarray | None = None) -> np.ndarray:
        """Which swap-outs have to copy in the steady state, bool (swaps,).

        The host copy stays after a swap-in until the storage is written or dies. A swap-out is clean, and
        copies nothing, if no use between the storage's swap before it (the last one of the previous step, for
        the first of a persistent storage) and this one writes. ``kept``, bool (C,): of which candidates copies stay;
        None: of all.
        """
        writes_before = np.concatenate([[0], np.cumsum(memory.uses_write)])
        needed = np.ones(len(self), dtype=bool)
        needed[self.in_op < 0] = False
        order = np.lexsort((self.ordinal, self.storage))
        order = order[self.in_op[order] >= 0]
        if not len(order):
            return needed
        storage = self.storage[order]
        begin = memory.uses_offset[storage]
        # First use not yet covered by a host copy, and the use that this swap-out follows.
        here = begin + self.ordinal[order] + 1
        same = np.append(False, storage[1:] == storage[:-1])
        before = np.where(same, np.roll(here, 1), begin)
        written = writes_before[here] - writes_before[before]
        first, last = np.flatnonzero(~same), np.flatnonzero(np.append(~same[1:], True))
        end = memory.uses_offset[storage[first] + 1]
        written[first] += writes_before[end] - writes_before[here[last]]
        clean = (written == 0) & (same | memory.persistent[storage])
        if kept is not None:
            clean &= kept[storage]
        needed[order[clean]] = False
        return needed


def no_swaps() -> Swaps:
    """None at all."""
    nothing = np.empty(0, dtype=np.int64)
    return Swaps(nothing, nothing, nothing, nothing, nothing, nothing, np.empty(0, dtype=bool))


def step_memory(
    step: StepTrace,
    min_swap_bytes: int = MIN_SWAP_BYTES,
    capacity_bytes: int | None = None,
    *,
    left_yields: bool = True,
    yields_all: bool = False,
) -> StepMemory:
    """Collect the candidates of a step, with their uses and gaps.

    Under a capacity, what yields to it by itself does not count where it does not fit (``yields_all``: nowhere); see
    :class:`StepMemory`. Unless ``left_yields``, what the step before left behind does not yield.

    Gaps without an op between their uses are left out, and so is the gap after a birth in an op that only
    allocates (``aten::empty`` and kin): ``torch.tensor`` and others write into that memory after the op,
    where nobody sees it. What a collective was given is in use until it is waited for, which is its next use.
    """
    n, storages, uses = len(step.ops), step.storages, step.uses
    left_behind = (storages.birth_op < 0) & (storages.death_op < n)
    row = np.flatnonzero(storages.movable & ~left_behind & (storages.block_bytes >= min_swap_bytes))
    block_bytes = storages.block_bytes[row].astype(np.int64)
    birth = storages.birth_op[row].astype(np.int64)
    persistent = (birth < 0) & (storages.death_op[row] >= n)
    candidate = np.full(len(storages), -1, dtype=np.int64)
    candidate[row] = np.arange(len(row))

    # One row per (candidate, op), births included: the key sorts by candidate, then by op.
    used = candidate[uses.storage] >= 0
    born = np.flatnonzero(birth >= 0)
    key = np.concatenate([candidate[uses.storage[used]] * n + uses.op[used], born * n + birth[born]])
    write = np.concatenate([uses.writes[used], np.ones(len(born), dtype=bool)])
    key, position = np.unique(key, return_inverse=True)
    uses_write = np.zeros(len(key), dtype=bool)
    np.logical_or.at(uses_write, position, write)
    if not step.keeps_host_copies:  # as if every use wrote: the copy goes when the storage comes back for it
        uses_write[:] = True
    owner, uses_op = np.divmod(key, n)
    uses_offset = np.searchsorted(owner, np.arange(len(row) + 1))

    first, end = uses_offset[:-1], uses_offset[1:]
    next_op = np.append(uses_op[1:], 0)
    has_use = end > first
    last = end[has_use] - 1
    dies = np.minimum(storages.death_op[row][has_use], n).astype(np.int64)
    dies += dies < n  # it takes its block to the end of that op
    # A gradient that zero_grad frees early in the next step: the last step's one shows when.
    freed_next = {
        (int(storages.category[s]), int(storages.name[s])): s
        for s in np.flatnonzero(left_behind & (storages.name >= 0)).tolist()
    }
    succeeded = np.zeros(len(storages), dtype=bool)
    for c in np.flatnonzero((dies == n) & ~persistent[has_use]).tolist():
        s = row[has_use][c]
        before = freed_next.get((int(storages.category[s]), int(storages.name[s])))
        if before is not None:
            succeeded[before] = True
            # From its birth on, the next step's own one is what the executor knows by its key.
            dies[c] += min(int(storages.death_op[before]) + 1, int(birth[has_use][c]))
    next_op[last] = np.where(persistent[has_use], uses_op[first[has_use]] + n, dies)
    returns = np.ones(len(key), dtype=bool)
    returns[last] = persistent[has_use]
    allocates_only = np.array([_only_allocates(name) for name in step.names], dtype=bool)
    unwritten = (uses_op == birth[owner]) & allocates_only[step.ops.name[uses_op]]
    in_flight = launch_ops(step)[uses_op]
    gap = np.flatnonzero((next_op > uses_op + 1) & ~unwritten & ~in_flight)
    live_bytes = step.ops.live_peak_bytes.astype(np.int64)
    if capacity_bytes is not None:
        yielding = _beyond_parts(step, capacity_bytes)
        if left_yields:
            yielding += _idle_bytes(step, left_behind & ~succeeded)
        excess = live_bytes if yields_all else np.maximum(live_bytes - capacity_bytes, 0)
        live_bytes = live_bytes - np.minimum(yielding, excess)
    return StepMemory(
        ops=n,
        live_bytes=live_bytes,
        row=row,
        block_bytes=block_bytes,
        persistent=persistent,
        uses_offset=uses_offset,
        uses_op=uses_op,
        uses_write=uses_write,
        gap_storage=owner[gap],
        gap_ordinal=gap - first[owner[gap]],
        gap_out=uses_op[gap],
        gap_use=next_op[gap],
        gap_returns=returns[gap],
        dormant=np.flatnonzero(persistent & ~has_use),
    )


def _idle_bytes(step: StepTrace, which: np.ndarray) -> np.ndarray:
    """Blocks of some movable storages, bool (storages,), that no op uses while they are alive: int64 (ops,)."""
    n, storages, uses = len(step.ops), step.storages, step.uses
    rows = np.flatnonzero(which & storages.movable)
    change = np.zeros(n + 2, dtype=np.int64)
    np.add.at(change, np.maximum(storages.birth_op[rows], 0), storages.block_bytes[rows])
    np.subtract.at(change, np.minimum(storages.death_op[rows], n) + 1, storages.block_bytes[rows])
    used = (which & storages.movable)[uses.storage]
    busy = np.bincount(uses.op[used], storages.block_bytes[uses.storage[used]], minlength=n)[:n]
    return np.cumsum(change)[:n] - busy.astype(np.int64)


def _beyond_parts(step: StepTrace, capacity_bytes: int) -> np.ndarray:
    """What list ops do not need at once where they run in the parts that suit a capacity: int64 (ops,)."""
    beyond = np.zeros(len(step.ops), dtype=np.int64)
    limit = part_limit_bytes(capacity_bytes)
    for run in step.list_runs:
        beyond[list(run.ops)] = run.beyond_one_part(step, limit, step.storages.movable)
    return beyond


def fitting_memory(
    step: StepTrace, min_swap_bytes: int, capacity_bytes: int, kernels: str | None = None
) -> tuple[StepMemory, int]:
    """The memory of a step, with smaller storages among its candidates where the capacity cannot do without them.

    Returns it with the size of the smallest candidates. Raises BelowFloorError if no policy fits the capacity.
    """
    memory, min_swap_bytes = memory_under(step, min_swap_bytes, capacity_bytes)
    if int(memory.least_bytes().max()) > capacity_bytes:
        raise below_floor(capacity_bytes, replace(floor(step), kernels=kernels))
    return memory, min_swap_bytes


def memory_under(step: StepTrace, min_swap_bytes: int, capacity_bytes: int) -> tuple[StepMemory, int]:
    """The same, whether it fits or not."""
    sizes = [min_swap_bytes]
    while sizes[-1] > LEAST_SWAP_BYTES:
        sizes.append(max(sizes[-1] // 2, LEAST_SWAP_BYTES))
    for left_yields in (False, True):  # what a plan moves is there in time; what yields waits for its copy
        for size in sizes:
            memory = step_memory(step, size, capacity_bytes, left_yields=left_yields)
            if int(memory.least_bytes().max(initial=0)) <= capacity_bytes:
                return memory, size
    return memory, size


def floor(trace: Trace | StepTrace, *, min_swap_bytes: int | str = LEAST_SWAP_BYTES) -> Floor:
    """The smallest capacity that any policy, or eviction alone, can run the step in.

    At each op everything may be away that the op does not use and that has a gap there; list ops run in the parts that
    a session would run them in. The op that needs most even then sets the floor. ``min_swap_bytes`` is for a policy
    that moves nothing smaller: bytes, or text such as ``"16KiB"``. Raises TraceError if the step holds no op,
    ValueError or TypeError if the size is none.
    """
    step, min_swap_bytes = newest_step(trace), checked_min_swap(min_swap_bytes)
    capacity_bytes = 0
    while True:  # a larger capacity has larger parts
        lowest = floor_of(
            step, step_memory(step, min_swap_bytes, capacity_bytes, yields_all=True), kernels_in(trace)
        )
        if lowest.bytes <= capacity_bytes:
            return lowest
        capacity_bytes = lowest.bytes


def kernels_in(trace: Trace | StepTrace) -> str | None:
    """:attr:`Floor.kernels` of a trace. A step alone does not know it."""
    kernels = trace.meta.get("kernels") if isinstance(trace, Trace) else None
    return kernels if isinstance(kernels, str) else None


def floor_of(
    step: StepTrace, memory: StepMemory, kernels: str | None = None, least: np.ndarray | None = None
) -> Floor:
    """:func:`floor`, for a step whose memory has been collected.

    ``least``, int64 (ops,): the bytes that have to be there at each op.
    """
    least = memory.least_bytes() if least is None else least
    storages, uses = step.storages, step.uses
    lasts = (storages.birth_op[uses.storage] < uses.op) | (storages.death_op[uses.storage] > uses.op)
    used = np.bincount(uses.op[lasts], storages.block_bytes[uses.storage[lasts]], minlength=memory.ops)
    used = np.minimum(used, least)  # what an op makes and frees again, and parts that do not run: no more
    # Many ops need the same where most of it cannot move: the one to name is that which uses most.
    highest = np.flatnonzero(least == least.max())
    op = int(highest[used[highest].argmax()])
    return Floor(
        bytes=int(least[op]),
        op=op,
        op_name=step.op_name(op),
        module=step.module_path(int(step.ops.module[op])),
        stage=Stage(int(step.ops.stage[op])).name.lower(),
        working_set_bytes=int(used[op]),
        work_space_bytes=_work_space_bytes(step, op),
        kernels=kernels,
    )


def _work_space_bytes(step: StepTrace, op: int) -> int:
    blocks, birth, death = step.storages.block_bytes, step.storages.birth_op, step.storages.death_op
    lasts = (birth <= op) & (op <= death) & (birth < death)
    return max(int(step.ops.live_peak_bytes[op]) - int(blocks[lasts].sum()), 0)


def below_floor(capacity_bytes: int, lowest: Floor) -> BelowFloorError:
    """The error for a capacity below the floor."""
    return BelowFloorError(
        ": ".join(below_floor_words(capacity_bytes, lowest)),
        capacity_bytes=capacity_bytes,
        needed_bytes=lowest.bytes,
        op_name=lowest.op_name,
    )


def below_floor_words(capacity_bytes: int, lowest: Floor) -> tuple[str, str]:
    """What to say of a capacity below the floor: why, and the way out."""
    where = f"{lowest.op_name} (op {lowest.op}, {lowest.stage}" + (
        f", in {lowest.module})" if lowest.module else ")"
    )
    change = "make the op's tensors smaller (batch, sequence, vocabulary)"
    if "_foreach_" in lowest.op_name or "_fused_" in lowest.op_name:
        change = "build the optimizer with foreach=False and fused=False"
    measured = "" if lowest.kernels is None else f" ({lowest.measured_on})"
    beside = lowest.bytes - lowest.working_set_bytes
    why = (
        f"capacity {format_bytes(capacity_bytes)} ({capacity_bytes} bytes) is below the floor "
        f"{format_bytes(lowest.bytes)} ({lowest.bytes} bytes), set by {where}, which uses "
        f"{format_bytes(lowest.working_set_bytes)} of storages at once, beside {format_bytes(beside)} that cannot "
        f"leave or is its own{measured}"
    )
    return why, f"give the session at least that capacity, or {change}"


def step_op_times(step: StepTrace, op_times: Sequence[float] | np.ndarray | None = None) -> np.ndarray:
    """Compute seconds of each op, float64 (ops,).

    Unless given: what the ops took on the device, where that is known of most; else the recorded durations less the
    stalls and the replays in them. Scaled so that their sum is the step's duration less all stalls and replays (Python
    between the ops takes time too). Uniform if no op has a duration. Raises ValueError if the times given are not one
    finite, non-negative number an op.
    """
    n = len(step.ops)
    if op_times is not None:
        times = np.asarray(op_times, dtype=np.float64)
        if times.shape != (n,) or not np.isfinite(times).all() or (times < 0).any():
            raise ValueError(
                f"op_times needs {n} finite seconds >= 0, one for each op, got shape {times.shape}"
            )
        return times
    replayed_s = np.bincount(step.replays.op, step.replays.duration_s, minlength=n)[:n]
    other_s = step.ops.stall_s + replayed_s
    compute_s = max(float(step.duration_s) - float(other_s.sum()), 0.0)
    times = np.maximum(step.ops.duration_s.astype(np.float64) - other_s, 0.0)
    measured = np.isfinite(step.ops.device_s)
    if (
        2 * measured.sum() > n
    ):  # a host that runs ahead has clocked something else; of the rest it is all there is
        times = np.where(
            measured, step.ops.device_s, np.minimum(times, np.median(step.ops.device_s[measured]))
        )
    total = float(times.sum())
    if total == 0.0:
        return np.full(n, compute_s / n)
    return times * (compute_s / total) if compute_s else times


def _only_allocates(name: str) -> bool:
    return name.rpartition("::")[2].startswith(_UNWRITTEN)
