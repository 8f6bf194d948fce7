"""Planning: which gaps to swap, and at which ops to free and to allocate, so that a step fits its capacity.

The choice follows Belady's MIN (1966): when memory runs out, evict what is used furthest in the future. A
copy to the host is issued as early as it can be, a block is freed as late as memory allows, and its copy back
is issued as early as memory allows. Because frees and allocations happen in program order, whether a plan
fits is a matter of op indices; times only decide how long the stalls are, and uniform op times do nearly as
well as true ones. The problem is that of Chameleon (arXiv 2509.11076); its layer-granular search is not used.

One plan is that of :mod:`~chameleon_lab.planner.passes`. Where it stalls in the simulator, a few others are made, and
the one that stalls least is taken. Where replays are allowed and swapping alone stalls,
:mod:`~chameleon_lab.planner.mix` looks for gaps to rematerialize.

Where the copies of such a plan need more host memory than there is, it is made again within it: see
:mod:`~chameleon_lab.planner.host_room`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import BelowFloorError, TraceError
from ..policy.edits import CATEGORIES, Edit, EditAction, EditsUnreachableError, Fault, Finding, digest
from ..policy.link import Link
from ..policy.model import NEVER, PLANNER, USER, Action, Decision, Policy, fingerprint
from ..trace import StepTrace, Trace
from ..trace.trace import plannable_step
from ..util.progress import bar
from ..util.torch_version import installed
from ..util.units import format_bytes, parse_bytes
from .arguments import (
    checked_capacity,
    checked_host_capacity,
    checked_link,
    checked_margin,
    checked_min_swap,
)
from .constraints import Constraints, conditions, joined
from .host_room import HostRoom
from .local_search import improved, starting_points
from .memory import (
    LEAST_SWAP_BYTES,
    MIN_SWAP_BYTES,
    Floor,
    StepMemory,
    Swaps,
    below_floor,
    below_floor_words,
    fitting_memory,
    floor,
    floor_of,
    kernels_in,
    memory_under,
    step_memory,
    step_op_times,
)
from .mix import WAYS, Mixed, Mixer, PlanSwaps
from .passes import Way, plan_swaps
from .replay import HIGHEST_CLASS, PlannedReplays, ReplayChains, gaps_of
from .retention import affordable, read_by, retaining, worth_retaining
from .retime import retimed
from .simulate import Prediction, simulate_swaps

_RETENTIONS = 10
"""Plans in which what no replay reads is taken back, until there is no such thing."""

_PACKINGS = 6
"""Plans made for less and less host memory, until one fits when its copies are packed."""

_OTHER_WAYS = Way(frees_early=True), Way(longest_first=True), Way(frees_early=True, longest_first=True)

_NEEDLESS_STALL = 0.01
"""Share of the compute time. A first plan that stalls less is good enough to stop at."""


def plan(
    trace: Trace | StepTrace,
    capacity_bytes: int | float | str,
    link: Link | float | str | tuple[float | str, float | str],
    *,
    op_times: Sequence[float] | np.ndarray | None = None,
    min_swap_bytes: int | str = MIN_SWAP_BYTES,
    margin: float | str = 0.0,
    link_margin: float | str = 0.0,
    reserve_bytes: int | str = 0,
    edits: Sequence[Edit] = (),
    rematerialize: bool | int | str | None = None,
    refused: Collection[str] | None = None,
    host_capacity_bytes: int | float | str | None = None,
    quick: bool = False,
) -> Policy:
    """Generate a policy for a step (the newest of a trace) that never holds more than ``capacity_bytes``.

    Sizes are bytes or text such as ``"512MiB"``, and capacities may be fractions of what the step keeps alive, such as
    ``0.6`` or ``"60%"``. A link is a :class:`Link`, ``"8GiB/s"``, a pair (out, in) or ``"OUT,IN"``.

    ``host_capacity_bytes`` bounds the copies on the host, in whole pages: at any op, and packed as they will lie there.
    What finds no room there stays on the device, or is rematerialized. None: no limit.

    ``op_times`` are compute seconds of each op, shape (ops,); by default every op takes the same time.
    Storages with blocks below ``min_swap_bytes`` stay, unless the capacity cannot do without them. ``margin``, 0 to 1,
    is a share of the capacity to leave free, as far as the floor allows: it absorbs decisions that miss their op.
    ``reserve_bytes`` are left free beside it, likewise: they absorb what the device's allocator cannot use, since it
    lies in pieces. ``link_margin``, 0 to 1, is a share of the link's bandwidth to do without: copies are given time as
    on a link that is slower by it, since a plan loses far more on a link slower than it knew than on a faster one. What
    is ``predicted`` is on the whole link. ``edits`` are obeyed, and the rest is planned around them; what is wrong with
    them stands in ``Policy.findings``. An edit of the capacity or the link takes the place of the argument.

    ``rematerialize`` is the highest class of ops that the runtime can replay (see
    :data:`~chameleon_lab.trace.replay_ops.REPLAY_CLASS`), False for none, True for all
    (``"no"``, ``"cheap"``, ``"all"`` are 0, 1, 2), None for what the trace's ``meta["replay_class"]`` says, which is
    none where it is missing; ``refused`` holds names of ops and keys of
    storages that the runtime does not replay, None for those of the trace: its ``meta["refused"]``, and what was
    declined in the step. Choosing between copies and replays needs op times: ``op_times`` are then
    the recorded ones by default.

    ``quick=True`` tries swapping alone, and swapping combined with a few checkpointing schemes, and takes what costs
    least; where neither fits, it searches all the same. The search takes many times as long.

    The same arguments give the same policy. Raises BelowFloorError if no policy fits the capacity, or none was found
    that fits the host's,
    EditsUnreachableError if one would without the edits, TraceError if the step has no ops or has lost some,
    ValueError if ``capacity_bytes``, ``op_times``, ``margin``, ``link_margin``, ``reserve_bytes`` or ``rematerialize``
    does not fit, TypeError if the trace, the capacity or the link is something else.
    """
    margin, min_swap_bytes = checked_margin(margin), checked_min_swap(min_swap_bytes)
    link_margin = checked_margin(link_margin, "link_margin")
    reserve_bytes = parse_bytes(reserve_bytes, "reserve_bytes", none=True)
    step = plannable_step(trace)
    capacity_bytes, link = checked_capacity(capacity_bytes, step), checked_link(link)
    host_bytes = checked_host_capacity(host_capacity_bytes, step)
    replay_class, refused = replay_class_of(rematerialize, trace), refused_of(refused, trace)
    if step.truncated_ops:
        raise TraceError(
            f"step {step.index} has lost {step.truncated_ops} ops, so its bytes are unknown there: "
            "record it again with a larger recorder buffer"
        )
    given = {"capacity_bytes": capacity_bytes, "link": link.to_dict()}
    capacity_bytes, link, findings = conditions(edits, capacity_bytes, link)
    lowest = floor(trace)
    if capacity_bytes < lowest.bytes:
        others = Constraints(step, step_memory(step, min_swap_bytes), edits).findings
        raise _no_room(capacity_bytes, lowest, edits, [*findings, *others])
    memory, min_swap_bytes = fitting_memory(step, min_swap_bytes, capacity_bytes, kernels_in(trace))
    if op_times is None and not replay_class:
        compute_s = max(float(step.duration_s) - float(step.ops.stall_s.sum()), 0.0)
        times = np.full(memory.ops, compute_s / memory.ops)
    else:
        times = step_op_times(step, op_times)
    target = max(int(capacity_bytes * (1.0 - margin)) - reserve_bytes, 1)
    has_op_times = op_times is not None or bool(replay_class)
    asked = findings
    with bar(f"Planning {memory.ops} ops", unit="pass"):
        while True:
            replayable = ReplayChains(step, memory, times, replay_class, refused) if replay_class else None
            constraints = Constraints(step, memory, edits, replayable) if edits else None
            if constraints is not None:
                constraints.findings += asked
                findings = constraints.findings
            search = _Search(
                step,
                memory,
                capacity_bytes,
                target,
                link.reduced(link_margin),
                times,
                has_op_times,
                replayable,
                constraints,
                kernels_in(trace),
            )
            try:
                made = _quick(search, host_bytes) if quick else None
                if made is None:
                    search, made = _searched(search, min_swap_bytes, host_bytes)
                break
            except EditsUnreachableError:  # smaller storages may make room for what the edits keep
                if min_swap_bytes <= LEAST_SWAP_BYTES:
                    raise
                smaller = max(min_swap_bytes // 2, LEAST_SWAP_BYTES)
                memory, min_swap_bytes = fitting_memory(step, smaller, capacity_bytes, kernels_in(trace))
    prediction = made.prediction
    if link_margin:
        prediction = search.predicted(made, link, host_bytes)
    return Policy(
        capacity_bytes=capacity_bytes,
        link=link,
        decisions=_decisions(step, search.memory, made.swaps, made.replays, made.by_user, search.until),
        assumed={
            "fingerprint": fingerprint(step),
            "ops": memory.ops,
            "live_peak_bytes": step.live_peak_bytes,
            "min_swap_bytes": int(min_swap_bytes),
            "margin": margin,
        }
        | ({"link_margin": link_margin} if link_margin else {})
        | ({} if (version := _torch_of(trace)) is None else {"torch": version})
        | ({"reserve_bytes": int(reserve_bytes)} if reserve_bytes else {})
        | ({} if host_bytes is None else {"host_capacity_bytes": host_bytes})
        | ({"rematerialize": replay_class, "refused": sorted(refused)} if replay_class else {})
        | ({"edits": digest(edits), "without_edits": given} if edits else {}),
        predicted={
            "peak_bytes": prediction.peak_bytes,
            "host_peak_bytes": prediction.host_peak_bytes,
            "step_s": prediction.step_s,
            "stall_s": prediction.stall_s,
            "overlap": prediction.overlap,
            "swapped_out_bytes": prediction.swapped_out_bytes,
            "swapped_in_bytes": prediction.swapped_in_bytes,
        }
        | (
            {"replay_s": prediction.replay_s, "replayed_bytes": prediction.replayed_bytes}
            if replay_class
            else {}
        ),
        edits=tuple(edits),
        findings=tuple(sorted(findings, key=lambda finding: finding.index)),
        source=step,
        op_times=times.copy() if has_op_times else None,
    )


def worth_searching(policy: Policy) -> bool:
    """May a search find a better plan than this one, which was made with ``quick=True``?"""
    if policy.assumed.get("link_margin", 0.0) > _NEEDLESS_STALL and policy.swaps:
        return bool(policy.assumed.get("rematerialize"))  # what it costs on less of the link is not predicted
    cost_s = policy.predicted.get("stall_s", 0.0) + policy.predicted.get("replay_s", 0.0)
    compute_s = policy.predicted.get("step_s", 0.0) - cost_s
    return bool(policy.assumed.get("rematerialize")) and cost_s > _NEEDLESS_STALL * compute_s


REPLAY_CLASS_NAMES = ("no", "cheap", "all")
"""The classes of ops to replay up to, as people write them."""


def _torch_of(trace: Trace | StepTrace) -> str | None:
    """The torch that a step was recorded with: a trace knows it; else the one that is installed here, if one is."""
    recorded = trace.meta.get("torch") if isinstance(trace, Trace) else None
    return recorded if isinstance(recorded, str) and recorded else installed()


def replay_class_of(rematerialize: bool | int | str | None, trace: Trace | StepTrace) -> int:
    """The highest class of ops to replay: 0 for none. Raises ValueError if there is no such class."""
    if isinstance(rematerialize, str) and rematerialize in REPLAY_CLASS_NAMES:
        return REPLAY_CLASS_NAMES.index(rematerialize)
    if rematerialize is None:
        rematerialize = trace.meta.get("replay_class", 0) if isinstance(trace, Trace) else 0
    if rematerialize is True:
        return HIGHEST_CLASS
    if not isinstance(rematerialize, int) or not 0 <= rematerialize <= HIGHEST_CLASS:
        raise ValueError(
            f"rematerialize is {rematerialize!r}: give False, True, "
            f'or the highest class of ops to replay, 1 to {HIGHEST_CLASS}; or "no", "cheap", "all"'
        )
    return int(rematerialize)


def refused_of(refused: Collection[str] | None, trace: Trace | StepTrace) -> frozenset[str]:
    """Names of ops and keys of storages that are not replayed: what is given, or None for what the trace knows.

    Raises TraceError if the trace's ``meta["refused"]`` is no list of texts, ValueError if the trace is empty.
    """
    if refused is not None:
        return frozenset(refused)
    declared = trace.meta.get("refused", ()) if isinstance(trace, Trace) else ()
    if not isinstance(declared, list | tuple) or not all(isinstance(name, str) for name in declared):
        raise TraceError(
            f"the trace's meta says that {declared!r} is refused, and not a list of names: give refused=..."
        )
    step = plannable_step(trace)
    keys = step.storage_keys
    return frozenset(declared).union(keys[row] for row in step.declined.storage.tolist())


@dataclass(frozen=True)
class _Found:
    """A plan, what the simulator says of it, and the (candidate, gap ordinal) pairs that follow from edits."""

    swaps: Swaps
    replays: PlannedReplays
    prediction: Prediction
    by_user: set[tuple[int, int]]


@dataclass(frozen=True)
class _Search:
    """The conditions that a step is planned under.

    ``target`` is the capacity less its margin, and ``link`` the link less its own; ``has_op_times``: the op ``times``
    are given, not guessed. ``replayable`` is None if nothing may be dropped, ``constraints`` None without edits.
    ``step``, ``memory`` and those two know what is retained, see :mod:`~chameleon_lab.planner.retention`.
    """

    step: StepTrace
    memory: StepMemory
    capacity: int
    target: int
    link: Link
    times: np.ndarray
    has_op_times: bool
    replayable: ReplayChains | None
    constraints: Constraints | None
    kernels: str | None
    """Of the floor."""
    until: dict[int, int] = field(default_factory=dict)
    """What is retained: rows of storages, and the op until which each is."""
    drops: frozenset[tuple[int, int]] | None = None
    """The drops to begin with, as rows of storages and ordinals of gaps; None: they are searched for."""
    improves: bool = True
    """Does it look for better drops near those?"""
    quick: bool = False
    """Are drops no more than those of a few schemes of checkpointing?"""

    def within(self, host_bytes: int | None) -> _Found:
        """The best plan whose copies take at most so many bytes on the host."""
        found, room = self._best(None), HostRoom(self.step, host_bytes)
        allowed = host_bytes
        for _ in range(_PACKINGS):
            wasted = self._overflow(found, room)
            if wasted <= 0 or allowed is None:
                break
            # Until a plan was made for less, what is too much are the copies themselves; then, what packing wastes.
            allowed = allowed if found.prediction.host_capacity_bytes is None else allowed - wasted
            found = self._best(HostRoom(self.step, max(allowed, 1)))
            self._require_room(found, room)
        if self._overflow(found, room) > 0:
            text = _no_host_room(self.capacity, room, found.prediction)
            raise BelowFloorError(text, capacity_bytes=self.capacity)
        return replace(found, prediction=self.predicted(found, self.link, host_bytes))

    def predicted(self, found: _Found, link: Link, host_bytes: int | None) -> Prediction:
        """What a plan takes on a link, with at most so many bytes of copies on the host."""
        return simulate_swaps(
            self.memory,
            found.swaps,
            found.prediction.capacity_bytes,
            link,
            self.times,
            found.replays,
            host=HostRoom(self.step, host_bytes),
        )

    def _overflow(self, found: _Found, room: HostRoom) -> int:
        """What the packed copies take beyond the host's room; at most 0: they fit."""
        if room.limit_bytes is None:
            return 0
        served, _ = found.replays.served(self.memory, found.swaps)
        if 2 * room.peak_bytes(self.memory, served) <= room.limit_bytes:  # packing never wastes as much
            return 0
        return room.layout(self.memory, served).pool_bytes - room.limit_bytes

    def _require_room(self, found: _Found, room: HostRoom) -> None:
        """Raises BelowFloorError or EditsUnreachableError for a plan that the host or the device has no room for."""
        predicted = found.prediction
        if predicted.peak_bytes <= self.capacity and not predicted.host_short_bytes:
            return
        text = _no_host_room(self.capacity, room, predicted)
        if self.constraints is None:
            raise BelowFloorError(text, capacity_bytes=self.capacity)
        op = int(predicted.resident_bytes.argmax())
        blamed = self.constraints.blame(op, int(predicted.resident_bytes[op]), self.capacity)
        if not blamed:
            raise BelowFloorError(text, capacity_bytes=self.capacity)
        raise EditsUnreachableError(
            text, tuple(blamed), tuple(self.constraints.findings), capacity_bytes=self.capacity
        )

    def _best(self, host: HostRoom | None) -> _Found:
        return self._free(host) if self.constraints is None else self._around(self.constraints, host)

    def _free(self, host: HostRoom | None) -> _Found:
        """The best plan without edits."""
        memory, link, times = self.memory, self.link, self.times
        target = max(self.target, int(memory.least_bytes().max()))
        swaps, prediction = _best(memory, target, link, times, self.has_op_times, host)
        mixed = Mixed(swaps, PlannedReplays.none(memory.ops), prediction)
        if self.replayable is not None and (mixed.cost[0] or _stalls(prediction, times)):
            mixer = Mixer(
                memory,
                self.replayable,
                target,
                link,
                times,
                _passes(target, link, host),
                may_drop=self.replayable.gaps(),
                host=host,
            )
            mixed = self._mixed(mixer, mixed)
        return _Found(mixed.swaps, mixed.replays, mixed.prediction, set())

    def _around(self, constraints: Constraints, host: HostRoom | None) -> _Found:
        """The best plan that obeys edits."""
        memory, link, times = self.memory, self.link, self.times
        forced = constraints.forced_swaps(link, times)
        narrowed = constraints.narrowed(forced)
        lowest = floor_of(constraints.step, narrowed, self.kernels)
        if lowest.bytes > self.capacity:
            forced = constraints.forced_swaps(link, times, widest=True)
            narrowed = constraints.narrowed(forced)
            lowest = floor_of(constraints.step, narrowed, self.kernels)
        if lowest.bytes > self.capacity:
            blamed = constraints.blame(lowest.op, lowest.bytes, self.capacity, lowest.measured_on)
            text = "\n".join(str(finding) for finding in blamed)
            raise EditsUnreachableError(
                text,
                tuple(blamed),
                tuple(constraints.findings),
                capacity_bytes=self.capacity,
                needed_bytes=lowest.bytes,
                op_name=lowest.op_name,
            )
        if host is not None:
            host = HostRoom(self.step, host.limit_bytes, forced)
        target = max(self.target, lowest.bytes)
        swaps, prediction = _best(narrowed, target, link, times, self.has_op_times, host)
        swaps, replays = joined(forced, swaps), PlannedReplays.none(memory.ops)
        must_drop, may_drop = constraints.drops(target, forced)
        alone = Mixed(swaps, replays, simulate_swaps(memory, swaps, target, link, times, host=host))
        if must_drop or (may_drop and (alone.cost[0] or _stalls(prediction, times))):
            assert constraints.replayable is not None
            mixer = Mixer(
                memory,
                constraints.replayable,
                target,
                link,
                times,
                _passes(target, link, host),
                may_drop=may_drop,
                must_drop=must_drop,
                forced=forced,
                fixed=gaps_of(memory, forced).tolist(),
                narrowed=lambda seen: constraints.narrowed(forced, seen),
                host=host,
            )
            mixed = self._mixed(mixer, alone)
            swaps, replays = mixed.swaps, mixed.replays
        swaps, moved = constraints.shifted(swaps, target, replays)
        by_user = moved | set(zip(forced.storage.tolist(), forced.ordinal.tolist(), strict=True))
        by_user |= set(constraints.named(must_drop))
        prediction = simulate_swaps(memory, swaps, target, link, times, replays, host=host)
        return _Found(swaps, replays, prediction, by_user)

    def _mixed(self, mixer: Mixer, alone: Mixed) -> Mixed:
        """The better of swapping ``alone`` and of swapping and rematerializing; what edits demand is dropped anyhow."""
        if self.drops is None:
            quick = mixer.made([]) if mixer.must_drop else alone
            best = quick if self.quick else mixer.best(alone)
            if _stalls_or_replays(best, mixer.times):
                best = _started(mixer, best, starting_points(mixer, self.step))
        else:
            memory, allowed = self.memory, set(mixer.may_drop)
            rows, ordinals = memory.row[memory.gap_storage].tolist(), memory.gap_ordinal.tolist()
            drops = enumerate(zip(rows, ordinals, strict=True))
            given = [gap for gap, drop in drops if drop in self.drops and gap in allowed]
            # Alone, it would not drop what edits demand.
            best = _started(mixer, mixer.made(given) if mixer.must_drop else alone, [given])
        if self.improves and _stalls_or_replays(best, mixer.times):
            best = improved(mixer, best, self.step)
        return _finished(mixer, best)

    def beginning_with(self, found: _Found, *, improves: bool) -> _Search:
        """The search near the drops of a plan, or for these alone."""
        rows = self.memory.row[found.replays.storage].tolist()
        drops = frozenset(zip(rows, found.replays.ordinal.tolist(), strict=True))
        return replace(self, drops=drops, improves=improves)


def _quick(search: _Search, host_bytes: int | None) -> _Found | None:
    """The best plan without a search; None if none fits."""
    try:
        return replace(search, quick=True, improves=False).within(host_bytes)
    except BelowFloorError:
        return None


def _searched(search: _Search, min_swap_bytes: int, host_bytes: int | None) -> tuple[_Search, _Found]:
    """The best plan, which may retain storages for its replays, and the search that it belongs to."""
    if search.replayable is None:
        return search, search.within(host_bytes)
    replayable, search = search.replayable, replace(search, improves=False)
    found = search.within(host_bytes)
    if not _costs(found, search.times):
        return search, found
    best = search, found
    until = worth_retaining(search.step, replayable, search.capacity)
    with_retention = _retained(search, until, min_swap_bytes, host_bytes)
    if with_retention is not None and _cost(with_retention[1].prediction) < _cost(found.prediction):
        best = with_retention
    near = best[0].beginning_with(best[1], improves=True)
    best = min(best, (near, near.within(host_bytes)), key=lambda one: _cost(one[1].prediction))
    if not best[0].until:
        return best
    pruned = _only_what_is_read(search, best, min_swap_bytes, host_bytes)
    return min((search, found), pruned or (search, found), key=lambda one: _cost(one[1].prediction))


def _retained(
    search: _Search, until: dict[int, int], min_swap_bytes: int, host_bytes: int | None
) -> tuple[_Search, _Found] | None:
    """The plan with storages retained; None if there is none."""
    other = _retaining(search, until, min_swap_bytes)
    if other is None:
        return None
    try:
        return other, other.within(host_bytes)
    except BelowFloorError:
        return None


def _only_what_is_read(
    search: _Search, best: tuple[_Search, _Found], min_swap_bytes: int, host_bytes: int | None
) -> tuple[_Search, _Found] | None:
    """The plan with its drops that retains what its replays read, and nothing else; None if there is none."""
    for _ in range(_RETENTIONS):
        read, _ = read_by(best[1].replays, best[0].until)
        if read == best[0].until:
            return best
        if not read:
            return None
        same = best[0].beginning_with(best[1], improves=False)
        found = _retained(replace(search, drops=same.drops), read, min_swap_bytes, host_bytes)
        if found is None:
            return None
        best = found
    return None


def _retaining(search: _Search, until: dict[int, int], min_swap_bytes: int) -> _Search | None:
    """The same search with some storages retained, as far as there is room for them; None if for none."""
    assert search.replayable is not None
    while until:
        step = retaining(search.step, until)
        memory, size = memory_under(step, min_swap_bytes, search.capacity)
        kept = affordable(until, memory, search.capacity)
        if len(kept) == len(until) and size == min_swap_bytes:
            break
        until = kept if len(kept) < len(until) else {}
    if not until:
        return None
    replayable = search.replayable.retaining(step, memory, until)
    constraints = search.constraints
    if constraints is not None:
        constraints = Constraints(step, memory, constraints.edits, replayable)
    return replace(
        search,
        step=step,
        memory=memory,
        replayable=replayable,
        constraints=constraints,
        until=until,
    )


def _cost(predicted: Prediction) -> tuple[int, float]:
    over = max(predicted.peak_bytes - predicted.capacity_bytes, 0) + predicted.host_short_bytes
    return over, predicted.stall_s + predicted.replay_s


def _costs(found: _Found, times: np.ndarray) -> bool:
    over, overhead_s = _cost(found.prediction)
    return bool(over) or overhead_s > _NEEDLESS_STALL * float(times.sum())


def _stalls(prediction: Prediction, times: np.ndarray) -> bool:
    """Is there a stall that is worth planning for?"""
    return prediction.stall_s > _NEEDLESS_STALL * float(times.sum())


def _stalls_or_replays(plan: Mixed, times: np.ndarray) -> bool:
    """Does a plan cost what is worth planning for?"""
    return bool(plan.cost[0]) or plan.overhead_s > _NEEDLESS_STALL * float(times.sum())


def _passes(capacity: int, link: Link, host: HostRoom | None = None) -> PlanSwaps:
    """One plan for a memory, on a clock. ``host``: what its copies have to fit; None: anything."""

    def planned(memory: StepMemory, clock: np.ndarray, way: Way) -> Swaps:
        swaps = plan_swaps(memory, capacity, link, clock, way)
        if host is None or host.fits(memory, swaps):
            return swaps
        narrowed = host.narrowed(memory, capacity, swaps)
        return plan_swaps(narrowed, capacity, link, clock, way)

    return planned


def _started(mixer: Mixer, best: Mixed, starts: Iterable[Sequence[int]]) -> Mixed:
    """The best of a plan and of those that drop some gaps, each with the swaps made in every way."""
    found = [(best, mixer.way)]
    for gaps in starts:
        for mixer.way in WAYS:
            found.append((mixer.made(gaps), mixer.way))
    best, mixer.way = min(found, key=lambda one: one[0].cost)
    return best


def _finished(mixer: Mixer, best: Mixed) -> Mixed:
    """A plan with its swaps made again on its own clock, where that is better."""
    if not len(best.replays):
        return best
    seen, clock = mixer.view(best.replays), mixer.times + best.replays.seconds
    way = mixer.way
    for mixer.way in (Way(longest_first=True), Way(frees_early=True, longest_first=True), way):
        best = min(best, mixer.swapped(seen, clock, best.replays), key=lambda plan: plan.cost)
    for later in (clock + best.prediction.stall_op_s, np.full(len(clock), float(clock.mean()))):
        best = min(best, mixer.swapped(seen, later, best.replays), key=lambda plan: plan.cost)
    own = best.swaps.taken(np.arange(len(mixer.forced), len(best.swaps)))
    early = _with_early_copies(seen, own, mixer.link, clock + best.prediction.stall_op_s)
    if len(early) > len(own):
        best = min(best, mixer.judged(early, best.replays), key=lambda plan: plan.cost)
    own = best.swaps.taken(np.arange(len(mixer.forced), len(best.swaps)))
    roomy = mixer.judged(retimed(seen, own, mixer.link, clock + best.prediction.stall_op_s), best.replays)
    return roomy if _no_slower(roomy.prediction, best.prediction) else best


def _best(
    memory: StepMemory,
    capacity: int,
    link: Link,
    times: np.ndarray,
    has_op_times: bool,
    host: HostRoom | None,
) -> tuple[Swaps, Prediction]:
    """Of a few plans the one that stalls least in the simulator.

    The first are made on the clock of the ops, as given and as if they were equally long: neither is always
    better. On a slow link a step takes far longer than its ops, and gaps leave more time for copies than ``times``
    tell: the next is made on the clock of ops and stalls. The last adds early copies, which only pay where the clock
    is right: not where ``times`` are a guess. With ``has_op_times`` the plan that is taken
    is retimed too.
    """
    passes = _passes(capacity, link, host)

    def judged(swaps: Swaps) -> tuple[Swaps, Prediction]:
        return swaps, simulate_swaps(memory, swaps, capacity, link, times, host=host)

    def planned(clock: np.ndarray) -> tuple[Swaps, Prediction]:
        plan = judged(passes(memory, clock, Way()))
        for way in _OTHER_WAYS:
            if (has_op_times or not way.frees_early) and _stalls(plan[1], times):
                plan = min(plan, judged(passes(memory, clock, way)), key=cost)
        return plan

    def cost(plan: tuple[Swaps, Prediction]) -> tuple[int, float]:
        return Mixed(plan[0], PlannedReplays.none(memory.ops), plan[1]).cost

    best = planned(times)
    if _stalls(best[1], times):
        if has_op_times:
            even = np.full(memory.ops, float(times.mean()))
            best = min(best, planned(even), key=cost)
        best = min(best, planned(times + best[1].stall_op_s), key=cost)
        early = (
            _with_early_copies(memory, best[0], link, times + best[1].stall_op_s) if has_op_times else best[0]
        )
        if len(early) > len(best[0]):
            best = min(best, judged(early), key=cost)
    if has_op_times:
        roomy = judged(retimed(memory, best[0], link, times + best[1].stall_op_s))
        best = roomy if _no_slower(roomy[1], best[1]) else best
    return best


def _no_slower(new: Prediction, old: Prediction) -> bool:
    """Does a plan stall no longer than another, but for rounding?"""
    return new.stall_s <= old.stall_s + 1e-9 * old.step_s


def _with_early_copies(memory: StepMemory, swaps: Swaps, link: Link, clock: np.ndarray) -> Swaps:
    """The swaps, and swaps of the gaps right before them in which there is time to leave and return.

    A storage that leaves twice between two writes is copied out the first time alone. So the link has work while it
    would idle, where many storages are used twice in a row and leave then, as an optimizer's states do.
    """
    n = memory.ops
    start = np.concatenate([[0.0], np.cumsum(clock)])
    starts = np.concatenate([start[:-1], start[:-1] + start[-1], [2 * start[-1]]]).tolist()
    taken = set(zip(swaps.storage.tolist(), swaps.ordinal.tolist(), strict=True))
    dirty = swaps.needs_copy(memory)
    copied = set(zip(swaps.storage[dirty].tolist(), swaps.ordinal[dirty].tolist(), strict=True))
    out_free = in_free = 0.0
    added = []
    # Gaps that are swapped with a copy, and those right before them.
    use = memory.uses_offset[memory.gap_storage] + memory.gap_ordinal
    first = memory.uses_offset[swaps.storage[dirty]] + swaps.ordinal[dirty]
    matter = np.flatnonzero(np.isin(use, first) | np.isin(use + 1, first))
    for gap in matter[np.argsort(memory.gap_out[matter], kind="stable")].tolist():
        storage, ordinal = int(memory.gap_storage[gap]), int(memory.gap_ordinal[gap])
        u, v, size = int(memory.gap_out[gap]), int(memory.gap_use[gap]), int(memory.block_bytes[storage])
        if (storage, ordinal) in taken:
            if (storage, ordinal) in copied:
                out_free = max(out_free, starts[u + 1]) + link.out_s(size)
            continue
        following = int(memory.uses_offset[storage]) + ordinal + 1
        if (storage, ordinal + 1) not in copied or v >= n or memory.uses_write[following]:
            continue
        out_end = max(out_free, starts[u + 1]) + link.out_s(size)
        free = bisect_left(starts, out_end, u + 1, v + 1)
        in_end = max(in_free, starts[free]) + link.in_s(size)
        if free < v and in_end <= starts[v]:
            out_free, in_free = out_end, in_end
            copied.discard((storage, ordinal + 1))
            added.append((storage, ordinal, u, free, free, v))
    if not added:
        return swaps
    more = np.array(added, dtype=np.int64).T
    columns = (swaps.storage, swaps.ordinal, swaps.out_op, swaps.free_op, swaps.in_op, swaps.use_op)
    storages, ordinals, outs, frees, ins, uses = (
        np.concatenate(pair) for pair in zip(columns, more, strict=True)
    )
    returns = np.concatenate([swaps.returns, np.ones(len(added), dtype=bool)])
    return Swaps(storages, ordinals, outs, frees, ins, uses, returns)


def _decisions(
    step: StepTrace,
    memory: StepMemory,
    swaps: Swaps,
    replays: PlannedReplays,
    by_user: set[tuple[int, int]],
    until: Mapping[int, int],
) -> tuple[Decision, ...]:
    """The swaps and drops as decisions, in program order, with what the drops retain ``until`` their replays."""
    _, by_replay = read_by(replays, until)
    retained = [()] * len(swaps) + by_replay
    names = ("storage", "ordinal", "out_op", "in_op")
    storage, ordinal, out, back = (
        np.concatenate([getattr(swaps, name), getattr(replays, name)]) for name in names
    )
    free = np.concatenate([swaps.free_op, replays.out_op + 1])
    # A swap may be back early, for a replay; its use is that which ends the gap.
    gap, swap_use = gaps_of(memory, swaps), swaps.use_op.copy()
    swap_use[gap >= 0] = memory.gap_use[gap[gap >= 0]]
    use = np.concatenate([swap_use, replays.use_op])
    returns = np.concatenate([swaps.returns, np.ones(len(replays), dtype=bool)])
    order = np.lexsort((ordinal, storage, free, out))
    categories = [CATEGORIES[category] for category in step.storages.category.tolist()]
    decisions = []
    for k in order.tolist():
        row = int(memory.row[storage[k]])
        decisions.append(
            Decision(
                storage=step.storage_keys[row],
                category=categories[row],
                module=step.module_path(int(step.storages.module[row])),
                bytes=int(memory.block_bytes[storage[k]]),
                action=Action.SWAP if k < len(swaps) else Action.REMATERIALIZE,
                gap=int(ordinal[k]),
                out_op=int(out[k]),
                free_op=int(free[k]),
                in_op=int(back[k]) if returns[k] else NEVER,
                use_op=int(use[k]) if returns[k] else NEVER,
                decided_by=USER if (int(storage[k]), int(ordinal[k])) in by_user else PLANNER,
                retains=tuple(sorted(step.storage_keys[row] for row in retained[k])),
            )
        )
    return tuple(decisions)


def _no_host_room(capacity_bytes: int, room: HostRoom, predicted: Prediction) -> str:
    """What to say where no plan was found that fits both memories."""
    host_bytes = room.limit_bytes or 0
    over = int(predicted.resident_bytes.argmax())
    short = max(predicted.peak_bytes - capacity_bytes, 0) + predicted.host_short_bytes
    what = f"host_capacity {format_bytes(host_bytes)} ({host_bytes} bytes) is too little beside the capacity "
    return (
        f"{what}{format_bytes(capacity_bytes)}: no policy was found for both, and the best leaves "
        f"{format_bytes(short)} too much at op {over}: give at least {format_bytes(host_bytes + short)} of "
        f"host_capacity, or of capacity {format_bytes(capacity_bytes + short)}"
    )


def _no_room(
    capacity_bytes: int, lowest: Floor, edits: Sequence[Edit], others: Sequence[Finding]
) -> BelowFloorError:
    """The error for a capacity that no policy fits, edits or none. ``others``: what else is wrong with the edits."""
    asking = [k for k, edit in enumerate(edits) if edit.action is EditAction.CAPACITY]
    if not asking:
        return below_floor(capacity_bytes, lowest)
    why, way_out = below_floor_words(capacity_bytes, lowest)
    finding = Finding(Fault.UNREACHABLE, asking[-1], edits[asking[-1]], why, way_out)
    return EditsUnreachableError(
        str(finding),
        (finding,),
        tuple(others),
        capacity_bytes=capacity_bytes,
        needed_bytes=lowest.bytes,
        op_name=lowest.op_name,
    )
