"""The C++ extension, checked against the torch that is installed.

Everything else in the package reaches ``chameleon_lab._C`` through this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

import torch  # loads the libraries that _C is linked against

from ..util.torch_version import misfit


def _torch_has_cuda() -> bool:
    """Is it a build with CUDA? A module with the CUDA device loads beside such a one alone."""
    return Path(torch.__path__[0], "lib", "libc10_cuda.so").exists()


if TYPE_CHECKING:
    from chameleon_lab import _C as _C  # both modules have the types of its stub
else:
    try:
        if find_spec("chameleon_lab.with_cuda") and _torch_has_cuda():
            from chameleon_lab.with_cuda import _C
        else:
            from chameleon_lab import _C
    except ImportError as error:
        raise ImportError(
            f"chameleon_lab's C++ extension is missing or does not load ({error}): build it with `pip install .` "
            "in the project's folder"
        ) from error

if (_wrong := misfit(_C.built_for_torch, torch.__version__)) is not None:
    raise ImportError(_wrong)

SEES_RAW_ACCESS: bool = _C.sees_raw_access
"""Does this torch say when a storage's bytes are accessed outside of ops? Since 2.13."""

REFUSALS: tuple[str, ...] = _C.refusals
"""Why a storage could not be dropped, in words, by the number of the reason. 0: it could."""

OP_NOT_REPLAYED: int = _C.ENUMS["Refusal"]["Op"]
"""The refusal of a storage whose op is not replayed, or not with its dtype."""

LONGEST_CHAIN: int = _C.longest_chain
"""The most ops in a row that are replayed to restore one storage, for values that no storage holds any more."""

Matcher = _C.Matcher
Options = _C.Options
Program = _C.Program
StepLog = _C.StepLog
LeafCall = _C.LeafCall
TensorShape = _C.TensorShape

missing_device = _C.missing_device
total_bytes = _C.total_bytes
pooled_host_bytes = _C.pooled_host_bytes
release_host = _C.release_host
measure_pinning = _C.measure_pinning
copy_order = _C.copy_order
stand_aside = _C.stand_aside
begin_pause = _C.begin_pause
end_pause = _C.end_pause
begin_mark = _C.begin_mark
end_mark = _C.end_mark
SCALAR_TYPES: tuple[str, ...] = tuple(_C.scalar_types())
op_names = _C.op_names
make_program = _C.make_program
enter_module = _C.enter_module
enter_wait = _C.enter_wait
leave_wait = _C.leave_wait
begin_buckets = _C.begin_buckets
settle_buckets = _C.settle_buckets
leave_module = _C.leave_module
forget_module = _C.forget_module
hold = _C.hold
let_go = _C.let_go
identity = _C.identity
end_loan_with_capsule = _C.end_loan_with_capsule
Loan = _C.Loan
set_faults = _C.set_faults
set_disk_fault = _C.set_disk_fault
disk_faults_made = _C.disk_faults_made
refuse_direct_moves = _C.refuse_direct_moves
crc32c = _C.crc32c
hand_over_copies = _C.hand_over_copies
pretend_no_hook = _C.pretend_no_hook
begin_modeled_time = _C.begin_modeled_time
end_modeled_time = _C.end_modeled_time
time_is_modeled = _C.time_is_modeled
stand_in_front = _C.stand_in_front
torch_is_watched = _C.torch_is_watched
seconds = _C.seconds
seconds_per_tick = _C.seconds_per_tick


class DeviceTraits(TypedDict):
    """What is known of a kind of device before a session is open on it."""

    emulated: bool  # its memory is host memory under a budget, and its link as fast as it is told to be
    runs_behind: bool  # the host runs ahead of it: ops are not over when their calls return
    pinned_host: bool  # its copies need host memory that is pinned
    captures_graphs: bool  # torch captures graphs of its work, and lets others watch its allocator


def device_traits(device: str) -> DeviceTraits:
    """Of a device such as ``"cuda:0"``. Raises RuntimeError where this build has none of its kind."""
    return cast(DeviceTraits, _C.device_traits(device))


class Counters(TypedDict):
    """What the device holds now: bytes and counts of the whole session, then where it is in the step, then how well the
    plan has been followed over the newest few hundred ops.
    """

    capacity_bytes: int
    resident_bytes: int
    cached_bytes: int
    peak_resident_bytes: int
    peak_reserved_bytes: int
    other_bytes: int
    split_bytes: int
    live_bytes: int
    storages: int
    escaped: int
    escaped_bytes: int
    dropped: int
    ghosts: int
    producers: int
    forward_nodes: int
    host_used_bytes: int
    host_reserved_bytes: int
    host_peak_bytes: int
    host_pinned_bytes: int
    host_pins: int
    host_pinning_s: float
    host_placed: int
    host_misplaced: int
    step: int
    ops_in_step: int
    recent_ops: int
    recent_matched_ops: int
    recent_due_bytes: int
    recent_fired_bytes: int


class DiskCounters(TypedDict):
    """What has become of a session's disk; see :class:`~chameleon_lab.report.disk_summary.DiskSummary`."""

    written_bytes: int
    read_bytes: int
    failed_writes: int
    failed_reads: int
    short_moves: int
    bad_checksums: int
    file_bytes: int
    direct: bool
    refusal: str


class Failure(TypedDict):
    """Why memory could not be had: the op, and what it needed at once."""

    op: str
    request_bytes: int
    pinned_bytes: int
    unmovable_bytes: int
    other_bytes: int  # under the capacity, and no storage's: libraries' work spaces
    useless_bytes: int  # free under the capacity, in no piece that is large enough
    needed_bytes: int  # all of these together
    capacity_bytes: int
    below_floor: bool  # else the host is full
    needs: str  # the first sentence of the error that was raised
    advice: str  # the rest of it, where no step is known that tells more
    step: int  # in which it was
    ops: int  # of that step, up to this one
    since: int  # of that step, up to the one before it that failed; 0: none did


def tensor_device(device: str) -> torch.device:
    """Where the tensors are that a session on the device owns."""
    return torch.device(_C.tensor_device(device))


class Runtime(_C.Runtime):
    """The core's side of the sessions on one device: a handle, of which there may be many.

    What follows a tensor or a storage is a function of this module: it finds the runtime by the tensor's device.
    """

    def counters(self) -> Counters:
        """What the device holds now."""
        return cast(Counters, self.count())  # the core's names are these: a test compares them

    def disk_counters(self) -> DiskCounters | None:
        """Of the disk, also when the session has ended; None where it has none."""
        return cast(DiskCounters | None, self.disk_count())

    def take_failure(self, message: str | None = None) -> Failure | None:
        """The last failed memory request, returned once. ``message``: only if this error message belongs to one."""
        return cast(Failure | None, self.taken_failure(message))

    def failure_of(self, message: str) -> Failure | None:
        """The one that an error with these words tells of; it can be asked for again."""
        return cast(Failure | None, self.known_failure(message))

    def adopt(
        self,
        tensor: torch.Tensor,
        category: int,
        label: int,
        owners: int = 1,
        trusted: bool = False,
        evict_last: bool = False,
    ) -> str:
        """Let the device own a tensor's storage.

        Args:
            tensor: a tensor with a storage of its own; its bytes move.
            category: a :class:`~chameleon_lab.trace.Category`.
            label: index of its name.
            owners: how many tensors are known to hold the storage. If more do, somebody may have its address, and it
                stays where it is.
            trusted: it moves all the same: the caller says that nobody has.
            evict_last: eviction takes it only where nothing else is left, until ``set_evict_last`` says otherwise.

        Returns ``"new"``, ``"known"``, ``"too small"``, ``"foreign"``, ``"shared"`` or ``"no room"``.
        """
        return self.adopt_at(tensor._cdata, category, label, owners, trusted, evict_last)

    def allow_replays(self, dtypes: dict[str, tuple[str, ...]]) -> None:
        """Which ops may be replayed from now on, by name, and with which dtypes (``"float32"``): any, if none is named.

        Where dtypes are named, the op has been checked under the settings that are in force now: what it makes under
        others (see :func:`numerics_key`) is not replayed.
        """
        self.allow({name: list(names) for name, names in dtypes.items()})


def of(device: str | torch.device = "cpu") -> Runtime:
    """The runtime of a device, open or not. Raises RuntimeError where there is no such device."""
    return Runtime(str(device))


def open(options: Options, device: str = "cpu") -> Runtime:
    """Begin a session on a device. Raises RuntimeError where there is one already."""
    opened = of(device)
    opened.open(options)
    return opened


def held_elsewhere(tensor: torch.Tensor, category: int) -> bool:
    """Does anything but Python and autograd hold the tensor itself, as a DLPack capsule does?

    ``category``: autograd holds a GRADIENT, and no tensor of another category.
    """
    return _C.held_elsewhere(tensor._cdata, int(category))


def storage_address(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage; 0 if it has none. No address of its bytes."""
    return _C.storage_address(tensor._cdata)


def block_bytes(tensor: torch.Tensor) -> int:
    """What a block for a tensor's storage takes on the device; 0 if it has none. Makes no owner of the storage."""
    return _C.block_bytes(tensor._cdata)


def restore(tensor: torch.Tensor) -> bool:
    """Bring a tensor's storage onto the device. False where there is no room."""
    return _C.restore(tensor._cdata)


def evict(tensor: torch.Tensor) -> bool:
    """Send a tensor's storage to the host now. False where it may not leave."""
    return _C.evict(tensor._cdata)


def see_through(names: Iterable[str] | None) -> None:
    """Which ops that are made of others alone (``"aten::lstm"``) count as those: for measuring, between sessions.

    None: those of the list in ``csrc/op_info.cpp`` (:func:`names_seen_through`).
    """
    _C.see_through(None if names is None else set(names))


def names_seen_through() -> frozenset[str]:
    """The ops whose insides are the step's, where nothing else was asked for."""
    return frozenset(_C.names_seen_through())


def numerics_key(device: torch.device) -> bytes:
    """Every setting of torch that an op's numbers may depend on, now: equal where ops get the same kernels.

    The number of op threads, the default dtype, deterministic algorithms and flushed denormals, and what is set for the
    libraries of the device. Not autocast's state: it changes from op to op.
    """
    return _C.numerics_key(str(device))


def drop(tensor: torch.Tensor) -> str:
    """Give the block of a tensor's storage back now, if its bytes can be made again; else why not, in words.

    What is used later is made again by itself. Only what was made while producers were kept can be: see
    ``keep_producers``.
    """
    return REFUSALS[_C.drop(tensor._cdata)]


def residency(tensor: torch.Tensor) -> str | None:
    """``"resident"``, ``"leaving"``, ``"away"``, ``"returning"``, ``"dropped"``; None if it is not the device's."""
    return _C.residency(_C.storage_address(tensor._cdata))


def storage_residency(storage: torch.UntypedStorage | torch.TypedStorage) -> str | None:
    """The same of a storage."""
    return _C.residency(storage._cdata)


def regions_depth() -> int:
    """How many regions this thread is in."""
    return _C.regions_depth()


def enter_region(name: str, read: Iterable[torch.Tensor], written: Iterable[torch.Tensor]) -> None:
    """An op of this name begins on this thread, made of what runs until it is left.

    What it reads and writes is on the device until then. No reference to a tensor is kept.
    """
    _C.enter_region(name, [t._cdata for t in read], [t._cdata for t in written])


def leave_regions(depth: int, results: Iterable[torch.Tensor] = ()) -> None:
    """Those end that were entered since this thread was in so many. The first of them has made these."""
    while _C.regions_depth() > depth + 1:
        _C.leave_region([])
    if _C.regions_depth() > depth:
        _C.leave_region([t._cdata for t in results])


def expose_tensor(tensor: torch.Tensor) -> None:
    """A raw pointer to a tensor's bytes is about to be handed out: they come in, and stay."""
    if address := storage_address(tensor):
        _C.expose(address)


def expose_storage(storage: torch.UntypedStorage) -> None:
    """The same of a storage."""
    _C.expose(storage._cdata)


def lend(tensor: torch.Tensor) -> Loan | None:
    """A raw pointer to a tensor's bytes is about to be handed out, whose end will be told: they come in, and stay until
    ``loan.end()``. Call :func:`let_go` with the storage's address when the pointer has been taken. None where the bytes
    are not the device's.

    Raises torch.OutOfMemoryError where they do not fit.
    """
    address = storage_address(tensor)
    return _C.lend(address) if address else None
