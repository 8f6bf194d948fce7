"""The trace model: a recorded training step as columns.

A :class:`~chameleon_lab.trace.trace.Trace` is a list of recorded steps. Each holds thirteen tables of equally long
numpy columns. Rows refer to each other by row number within the same step: ``uses.storage`` is a row of ``storages``,
``uses.op`` a row of ``ops``. Bytes are ``*_bytes``, seconds ``*_s`` (from the step's start), op indices ``*_op``.
The declaration of a column is all that there is of it: its file, its recording and its checks follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, get_type_hints

import numpy as np

from .table import StepTable, code, column, index, seconds, size


class Stage(IntEnum):
    """What part of a training step an op belongs to."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    NO_GRAD = 3


class Category(IntEnum):
    """What a storage is for."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    ACTIVATION = 3
    INPUT = 4
    OTHER = 5


class Direction(IntEnum):
    """Which way a transfer goes: off the device, or onto it."""

    OUT = 0
    IN = 1


class Cause(IntEnum):
    """Why a transfer happened, or what a stall waited for."""

    PLANNED = 0  # a decision of the policy
    EVICT = 1  # pressure: room was needed at once
    DEMAND = 2  # an op needed a storage that nothing had prefetched
    ACCESS = 3  # something outside the dispatcher reached for a storage that was away


class Pause(IntEnum):
    """Why no op ran for a while."""

    IDLE = 0  # nobody said: sleep, the loop's own Python, a file that is written
    LOADING = 1  # a DataLoader was asked for a batch
    CELLS = 2  # no cell of the notebook ran


@dataclass(frozen=True)
class Ops(StepTable):
    """One row per outermost dispatcher op, in program order."""

    name: np.ndarray = index("names", "such as aten::mm")
    module: np.ndarray = index("modules", "-1 outside any module", low=-1)
    stage: np.ndarray = code(Stage)
    sequence_nr: np.ndarray = column(
        "int64", "autograd's; a backward op carries its forward op's; -1 unknown", missing=-1
    )
    thread: np.ndarray = column("int32", "its thread, from 0 in order of appearance", missing=0)
    stack: np.ndarray = index("stacks", "-1 where stacks were not recorded", low=-1, missing=-1)
    start_s: np.ndarray = seconds("host time")
    duration_s: np.ndarray = seconds("host time, stalls included")
    stall_s: np.ndarray = seconds("the part of duration_s spent waiting for transfers", missing=0)
    device_s: np.ndarray = seconds(
        "its measured time on the device; NaN if not measured, and on the cpu device",
        unknown=True,
        missing=np.nan,
    )
    live_peak_bytes: np.ndarray = size("most bytes alive, resident or away, until the next op starts")
    resident_peak_bytes: np.ndarray = size("most bytes on the device until the next op starts")
    token: np.ndarray = column(
        "uint32",
        "hash of name, ranks, dtypes, stage, module, named storages, for matching",
        missing=0,
    )
    plan_op: np.ndarray = column("int32", "the matched op of the plan; -1 if none", missing=-1)


@dataclass(frozen=True)
class Storages(StepTable):
    """One row per storage that was alive at any time in the step."""

    uid: np.ndarray = column("int64", "the same in all steps of a session", missing=-1)
    bytes: np.ndarray = size("requested by its tensors")
    block_bytes: np.ndarray = size("taken on the device")
    category: np.ndarray = code(Category)
    module: np.ndarray = index("modules", "of the op that made it, or -1", low=-1)
    name: np.ndarray = index("labels", "of parameters, gradients, optimizer states; else -1", low=-1)
    birth_op: np.ndarray = index("ops", "that allocated it; -1 if alive when the step began", low=-1)
    birth_ordinal: np.ndarray = column("int32", "its number among that op's allocations; -1 as birth_op")
    death_op: np.ndarray = index(
        "ops", "during (or right after) which it died; len(ops) if alive at the step's end", low=-1, past=1
    )
    movable: np.ndarray = column(
        "bool", "may it leave the device? (known to the dispatcher, no raw pointer has escaped)"
    )
    form: np.ndarray = index(
        "forms", "dtype and shape of the first tensor seen of it; -1 unknown", low=-1, missing=-1
    )


@dataclass(frozen=True)
class Uses(StepTable):
    """One row per (op, storage) pair that touched, sorted by op. A birth counts as a write."""

    op: np.ndarray = index("ops")
    storage: np.ndarray = index("storages")
    reads: np.ndarray = column("bool")
    writes: np.ndarray = column("bool")
    part: np.ndarray = index(
        1 << 20,
        "in a list op that may run in parts, the storage's element of the lists; -1: all of "
        "them, or another op",
        low=-1,
        missing=-1,
    )


@dataclass(frozen=True)
class Transfers(StepTable):
    """One row per copy between device and host, in order of issue."""

    storage: np.ndarray = index("storages", "-1 if it died before the step", low=-1)
    direction: np.ndarray = code(Direction)
    cause: np.ndarray = code(Cause)
    bytes: np.ndarray = size()
    issue_op: np.ndarray = index("ops", low=-1, past=1)
    issue_s: np.ndarray = seconds()
    start_s: np.ndarray = seconds("when the copy engine took it up; NaN: it has not", unknown=True)
    end_s: np.ndarray = seconds("NaN: it has not ended", unknown=True)
    due_s: np.ndarray = seconds(
        "when it was asked for: before its issue, where there was no room",
        unknown=True,
        missing=np.nan,
    )


@dataclass(frozen=True)
class Stalls(StepTable):
    """One row per wait of the compute stream for a transfer."""

    op: np.ndarray = index("ops", "that had to wait", low=-1, past=1)
    storage: np.ndarray = index("storages", "or -1", low=-1)
    direction: np.ndarray = code(Direction, "of the transfer waited for")
    cause: np.ndarray = code(Cause, "of the transfer waited for")
    start_s: np.ndarray = seconds()
    duration_s: np.ndarray = seconds()
    due_s: np.ndarray = seconds("as in Transfers; NaN unknown", unknown=True, missing=np.nan)
    issue_s: np.ndarray = seconds("of the transfer", unknown=True, missing=np.nan)
    copy_start_s: np.ndarray = seconds(unknown=True, missing=np.nan)
    copy_end_s: np.ndarray = seconds(unknown=True, missing=np.nan)
    room_bytes: np.ndarray = size("of the block that needed the room; 0: none", missing=0)
    room_storage: np.ndarray = index("storages", "storage of that block; -1: a new one", low=-1, missing=-1)


@dataclass(frozen=True)
class Residencies(StepTable):
    """One row per stretch of time that a storage's block was on the device, in order of their ends."""

    storage: np.ndarray = index("storages")
    from_op: np.ndarray = index("ops", "0 if it was there when the step began", low=-1, past=1)
    to_op: np.ndarray = index(
        "ops", "the first op without it; len(ops) if it was there when the step ended", low=-1, past=2
    )
    from_s: np.ndarray = seconds()
    to_s: np.ndarray = seconds()


@dataclass(frozen=True)
class Replays(StepTable):
    """One row per op that ran again to give a dropped storage its bytes back, in order of their ends.

    Replays are no ops of the step: they have no rows in ``ops``, ``uses`` or ``storages``. The time that one takes is
    part of the duration of the op that it was replayed for, where it was replayed for one.
    """

    op: np.ndarray = index("ops", "that it was replayed for")
    storage: np.ndarray = index(
        "storages", "whose bytes; a chain has several rows for one storage; -1: it died", low=-1
    )
    name: np.ndarray = index("names", "the op that was replayed")
    cause: np.ndarray = code(Cause)
    bytes: np.ndarray = size("of what it made")
    start_s: np.ndarray = seconds()
    duration_s: np.ndarray = seconds()


@dataclass(frozen=True)
class Declined(StepTable):
    """One row per planned drop that the runtime declined: the storage stayed, or was swapped out instead."""

    op: np.ndarray = index("ops", "after which it was due")
    storage: np.ndarray = index("storages")
    name: np.ndarray = index("names", "the op that made the storage; -1 unknown", low=-1)
    refusal: np.ndarray = column("uint8", "why", into="reasons")


@dataclass(frozen=True)
class Makings(StepTable):
    """How storages came to the values that they held, in the order in which the ops ended.

    One row per value and storage that it was made from: those of one value follow each other, and share their
    ``making``; a value that was made from nothing has one row. Ops inside of the step's are told apart, and so are
    those in place: it is them that replays run. Recorded of whole steps while the runtime keeps what replays need; a
    step without rows says nothing.
    """

    making: np.ndarray = index("makings", "the value's number in the step, ascending")
    op: np.ndarray = index("ops", "in which it was made")
    storage: np.ndarray = index("storages", "that held it from then on")
    name: np.ndarray = index("names", "the op that made it; -1: a write that cannot be replayed", low=-1)
    input: np.ndarray = index(
        "storages", "an input of it; its own storage after an in-place op; -1 none", low=-1
    )
    refusal: np.ndarray = column("uint8", "why it cannot be made again; 0 it can", into="reasons")


@dataclass(frozen=True)
class Pauses(StepTable):
    """One row per stretch of time in which no op ran, outside of the loop, in order.

    They are no part of the step: its ``duration_s`` and all its times are those of a clock that stands still meanwhile.
    """

    op: np.ndarray = index("borders", "the op that came next; len(ops) at the step's end")
    kind: np.ndarray = code(Pause)
    at_s: np.ndarray = seconds("where it lies in the step")
    duration_s: np.ndarray = seconds()


@dataclass(frozen=True)
class Marks(StepTable):
    """One row per stretch that the user's own code has named (``record_function``), in order of their ends.

    Optimizers and data loaders of torch name theirs too. One that goes on over a step's end has a part in each step.
    """

    name: np.ndarray = index("mark_names")
    thread: np.ndarray = column("int32", "as in Ops")
    from_op: np.ndarray = index("borders", "the first op in it")
    to_op: np.ndarray = index("borders", "the first op after it; equal to from_op where no op ran")
    start_s: np.ndarray = seconds()
    duration_s: np.ndarray = seconds()


@dataclass(frozen=True)
class Kernels(StepTable):
    """One row per kernel on a device, in order of their starts. Read from profilers; a session records none."""

    name: np.ndarray = index("names")
    op: np.ndarray = index("ops", "that launched it; -1 unknown", low=-1)
    device: np.ndarray = column("int32", "number of the device")
    stream: np.ndarray = column("int64", "number of the stream on its device")
    start_s: np.ndarray = seconds("device time")
    duration_s: np.ndarray = seconds("device time")


@dataclass(frozen=True)
class Segments(StepTable):
    """One row per segment that the device's allocator held when the step ended. Read from memory snapshots."""

    address: np.ndarray = column("uint64")
    total_bytes: np.ndarray = size("reserved on the device")
    allocated_bytes: np.ndarray = size("of these in blocks that are in use")
    gaps: np.ndarray = column("int64", "stretches of it that are not in use")
    largest_gap_bytes: np.ndarray = size("the longest of them")
    stream: np.ndarray = column("int64", "the stream that allocates from it")
    kind: np.ndarray = index("names", "such as large, small, or large, expandable")


@dataclass(frozen=True, repr=False)
class StepColumns:
    """One recorded training step, but for what :class:`~chameleon_lab.trace.step.StepTrace` can be asked besides."""

    index: int  # the session's step number, from 0
    session_stage: str  # "WarmUp", "Profile" or "Stable"; "Imported" where another tool has recorded it
    start_s: float  # Unix time
    duration_s: float  # without its pauses
    names: tuple[str, ...]  # op names
    modules: tuple[str, ...]  # module paths
    labels: tuple[
        str, ...
    ]  # of parameters, gradients ("grad of ...") and optimizer states ("exp_avg of ...")
    ops: Ops
    storages: Storages
    uses: Uses
    transfers: Transfers
    stalls: Stalls
    residencies: Residencies
    truncated_ops: int = 0  # ops that the ring buffer had no room for
    # Do copies on the host last while their storages are resident and unwritten? Not where writes may go unseen.
    keeps_host_copies: bool = True
    stacks: tuple[str, ...] = ()  # Python stacks, innermost frame first, one "file:line function" a line
    replays: Replays = field(default_factory=Replays.none)
    declined: Declined = field(default_factory=Declined.none)
    makings: Makings = field(default_factory=Makings.none)
    # What the allocator below the session did, on a GPU; see :class:`~chameleon_lab.report.StepSummary`.
    refusals: int = 0
    soft_ooms: int = 0
    alloc_retries: int = 0
    device_allocs: int = 0
    device_frees: int = 0
    device_syncs: int = 0
    useless_bytes: int = 0
    pauses: Pauses = field(default_factory=Pauses.none)
    # Dtypes and shapes, such as "float32 [64, 256]"; a dtype alone where views differ.
    forms: tuple[str, ...] = ()
    mark_names: tuple[str, ...] = ()  # what the user's code calls its stretches
    marks: Marks = field(default_factory=Marks.none)
    reasons: tuple[str, ...] = ("",)  # why drops were declined, and values cannot be made again
    kernels: Kernels = field(default_factory=Kernels.none)
    segments: Segments = field(default_factory=Segments.none)
    lacks: str = ""  # what a plan needs and its file does not tell, in words; empty: nothing

    def __repr__(self) -> str:
        return (
            f"<StepTrace {self.index}, {self.session_stage}: {len(self.ops)} ops, {len(self.storages)} storages, "
            f"{len(self.transfers)} transfers, {self.duration_s:.3g} s>"
        )

    @cached_property
    def peak_bytes(self) -> int:
        """Most bytes on the device at once."""
        return int(self.ops.resident_peak_bytes.max(initial=0))

    @cached_property
    def live_peak_bytes(self) -> int:
        """Most bytes alive at once: the peak that a run without swapping would have."""
        return int(self.ops.live_peak_bytes.max(initial=0))

    def paused_s(self, kind: Pause | None = None) -> float:
        """Seconds of its pauses, or of those of one kind. No part of ``duration_s``."""
        rows = self.pauses
        return float(rows.duration_s[slice(None) if kind is None else rows.kind == kind].sum())

    @cached_property
    def used_bytes(self) -> np.ndarray:
        """int64 (ops,): the blocks that each op reads and writes."""
        rows = self.uses
        sums = np.bincount(rows.op, self.storages.block_bytes[rows.storage], minlength=len(self.ops))
        return sums.astype(np.int64)

    @cached_property
    def match_rate(self) -> float:
        """Share of the ops that were found in the plan that was followed; 0.0 where none was."""
        return float((self.ops.plan_op >= 0).mean()) if len(self.ops) else 0.0

    def form(self, storage: int) -> str:
        """Dtype and shape of a row of ``storages``, such as ``float32 [64, 256]``; empty where nobody has seen it."""
        index = int(self.storages.form[storage])
        return self.forms[index] if index >= 0 else ""

    def op_name(self, op: int) -> str:
        """The dispatcher's name of an op, such as ``aten::mm``."""
        return self.names[int(self.ops.name[op])]

    def module_path(self, module: int) -> str:
        """The module path behind an index into ``modules``; empty for -1."""
        return self.modules[module] if module >= 0 else ""

    @cached_property
    def storage_keys(self) -> tuple[str, ...]:
        """One stable, readable name per storage row: what made it, never an address or an op index.

        ``parameter:h.0.attn.weight`` for what has a name; ``h.0.mlp/aten::gelu.0#1`` (module, op, allocation of the
        op, occurrence of that triple in the step) for the rest. ``@backward`` and the like are added outside forward.
        Allocations that do not outlive their op are numbered apart, ``aten::gelu.~0``: they are a kernel's own work
        space, and another device's kernel may have none.
        """
        seen: dict[str, int] = {}
        keys = []
        lasts = self.storages.death_op > self.storages.birth_op
        kinds = {int(category): category.name.lower() for category in Category}
        outside = {int(stage): "" if stage is Stage.FORWARD else f"@{stage.name.lower()}" for stage in Stage}
        columns = (
            self.storages.name,
            self.storages.birth_op,
            self.storages.category,
            self.storages.module,
            lasts,
            self._number_in_op(lasts),
        )
        op_names, stages = (
            self.ops.name.tolist(),
            self.ops.stage.tolist(),
        )  # single values of arrays are slow to read
        for label, birth, category, module, last, number in zip(*(c.tolist() for c in columns), strict=True):
            if label >= 0:
                base = f"{kinds[category]}:{self.labels[label]}"
            elif birth < 0:
                base = f"{kinds[category]}:carried"
            else:
                mark = "" if last else "~"
                name = self.names[op_names[birth]]
                base = f"{self.module_path(module)}/{name}.{mark}{number}{outside[stages[birth]]}"
            count = seen.get(base, 0)
            seen[base] = count + 1
            keys.append(f"{base}#{count}" if count or label < 0 else base)
        return tuple(keys)

    def _number_in_op(self, lasts: np.ndarray) -> np.ndarray:
        """Each storage's number among those of its birth op that outlive it, or that don't: int64 (storages,)."""
        birth = self.storages.birth_op
        order = np.lexsort((self.storages.birth_ordinal, lasts, birth))
        new = np.append(
            True, (birth[order][1:] != birth[order][:-1]) | (lasts[order][1:] != lasts[order][:-1])
        )
        position = np.arange(len(order))
        number = np.empty(len(order), dtype=np.int64)
        number[order] = position - np.maximum.accumulate(np.where(new[: len(order)], position, 0))
        return number


KINDS: dict[str, Any] = get_type_hints(StepColumns)
"""What each field of a step is."""

TABLES: dict[str, type[StepTable]] = {
    name: kind for name, kind in KINDS.items() if isinstance(kind, type) and issubclass(kind, StepTable)
}
"""The tables of a step."""
