"""A session's report: figures as attributes, and as a table in a terminal or a notebook."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .._lazy import at_first_use
from ..planner import Floor
from ..ranks.identity import ALONE, Identity
from ..trace import Divergence
from ..trace.overlap import DEFINITION
from ..trace.stall_parts import WORDS
from ..util.units import NOTHING, format_bytes, format_percent, format_seconds
from .disk_summary import DiskSummary
from .enough import above, typed

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MUCH_SPLIT = 0.05
"""Share of what is reserved that is worth a remark when it lies in split segments."""
_LEAST_PART = 5e-4
"""Smallest share of the stall that gets a line."""
_MOST_REASONS = 2
"""Why ops are not replayed: so many lines at most."""
_NOT_IMPLEMENTED = "not implemented on"
"""A reason that hides an op from a report."""


@dataclass(frozen=True)
class StepSummary:
    """One finished step in a few figures."""

    index: int
    stage: str
    step_s: float
    stall_s: float
    peak_bytes: int
    swapped_out_bytes: int
    swapped_in_bytes: int
    evictions: int
    evicted_bytes: int
    demand_swap_ins: int
    """Storages that an op found away."""
    late_prefetches: int
    """Planned swap-ins that an op had to wait for."""
    dropped_triggers: int
    """Planned swap-outs and frees without effect: the storage was gone, in use, or already away."""
    ops: int
    matched_ops: int
    plan: int = -1
    """The plan that was followed when the step ended; -1 for none."""
    divergences: int = 0
    """Places where the ops differ from the plan's."""
    due_bytes: int = 0
    """Bytes of planned swap-outs and drops whose ops ran, without storages that had died by then."""
    fired_bytes: int = 0
    """Bytes of ``due_bytes`` that left the device."""
    drops: int = 0
    """Storages freed for rematerialization."""
    dropped_bytes: int = 0
    replays: int = 0
    """Ops replayed to restore them."""
    replay_s: float = 0.0
    """Time of the replays; part of the step's time."""
    declined_drops: int = 0
    """Planned drops of storages that could not have been rematerialized."""
    overlap: float | None = None
    """Share of the copies' time in which compute did not wait for their direction; None without copies."""
    refusals: int = 0
    """Memory requests within the capacity for which torch's allocator had no contiguous block. Planned swap-ins wait
    instead, and are not counted. This and the following fields are of GPUs."""
    soft_ooms: int = 0
    """Refused requests that torch raised as an out-of-memory error. The session frees memory and retries; torch counts
    them in ``num_ooms``."""
    alloc_retries: int = 0
    """Times that torch's allocator flushed its cache to the GPU and waited."""
    device_allocs: int = 0
    """Segments, or pages of expandable segments, that it allocated."""
    device_frees: int = 0
    """Segments or pages that it freed."""
    device_syncs: int = 0
    """Times that it waited for all streams. 0 where torch does not count them."""
    useless_bytes: int = 0
    """Most bytes that were free, in pieces or in segments of other sizes, when a request for less found no room."""
    paused_s: float = 0.0
    """Pauses without ops, outside of the loop; not part of ``step_s``. Includes ``loading_s``."""
    loading_s: float = 0.0
    """Time of DataLoaders in which no op ran."""

    @classmethod
    def none(cls) -> StepSummary:
        """The summary before the first step has ended: every figure is zero."""
        return cls(-1, "", 0.0, 0.0, *[0] * 10)

    @property
    def trigger_recall(self) -> float:
        """Share of the due bytes of planned swap-outs and drops that left the device; 1.0 where none were due."""
        return self.fired_bytes / self.due_bytes if self.due_bytes else 1.0

    @property
    def match_rate(self) -> float:
        """Share of the step's ops that were found in the sequence the policy was made for."""
        return self.matched_ops / self.ops if self.ops else 0.0


@dataclass(frozen=True)
class PlanSummary:
    """One plan of a session: its op sequence, why it was made, and its use."""

    plan: int
    fingerprint: str
    """Hash of the tokens of its ops, 16 hex digits. Plans of equal fingerprint are for different sizes."""
    ops: int
    live_peak_bytes: int
    decisions: int
    made_from_step: int
    why: str
    followed_steps: int = 0
    last_step: int = -1
    """The newest step that followed it; -1 before the first."""
    dropped: str = ""
    """Why it left the cache; empty while it is cached."""
    host_pool_bytes: int = 0
    """Host bytes that its copies need with their layout."""
    host_peak_bytes: int = 0
    """Most host bytes of copies at once: the lower bound of any layout."""
    search_s: float = 0.0
    """Of a processor: the search that found it in place of a first plan, or that found none better than it; 0 before
    it has ended, and where no search can find a better one."""
    gained_s: float = 0.0
    """Seconds that a step is predicted to take less than under the plan that it replaced; 0 where none was."""


class _OfNewest:
    """Types of the figures that a report takes from its newest step."""

    stall_s: float
    swapped_out_bytes: int
    swapped_in_bytes: int
    evictions: int
    evicted_bytes: int
    demand_swap_ins: int
    late_prefetches: int
    dropped_triggers: int
    ops: int
    matched_ops: int
    plan: int
    due_bytes: int
    fired_bytes: int
    drops: int
    dropped_bytes: int
    replays: int
    replay_s: float
    overlap: float | None
    refusals: int
    soft_ooms: int
    alloc_retries: int
    device_allocs: int
    device_frees: int
    device_syncs: int
    useless_bytes: int
    paused_s: float
    match_rate: float


@dataclass(frozen=True, repr=False)
class Report(_OfNewest, Mapping[str, Any]):
    """A session so far; also a mapping from the names of its figures to their values.

    The figures of ``newest`` are attributes of the report as well: ``report.evictions``. ``step_s`` is the median over
    the newest steps of its stage.
    """

    newest: StepSummary
    """The newest finished step; before the first, all zeros."""

    device: str
    stage: str
    steps: int
    capacity_bytes: int | None
    peak_bytes: int
    """Most bytes resident at once, over the whole session."""
    live_peak_bytes: int
    """Most bytes alive at once in the newest step: its need without swapping."""
    resident_bytes: int
    host_bytes: int
    host_peak_bytes: int
    """Most host bytes of copies in the session."""
    step_s: float
    link: str
    """The bandwidth out and in, as it was given or measured."""
    link_margin: float
    """Share of it that plans do without."""
    decisions: int
    unmatched_decisions: tuple[str, ...]
    escaped_storages: int
    """Storages that stay on the device because a raw pointer to them left the dispatcher."""
    refused: dict[str, str]
    """Tensors that could not be adopted, and why."""
    notes: tuple[str, ...]
    """Decisions of the session, in words."""
    history: tuple[StepSummary, ...]
    plans: tuple[PlanSummary, ...] = ()
    """Every plan made, in order, also those that left the cache."""
    divergences: tuple[Divergence, ...] = ()
    """Where the recorded steps diverged from the plan that they followed."""
    capacity_peak_bytes: int | None = None
    """Most bytes resident at once in the finished steps since the capacity changed; None if it never has."""
    replan_reason: str | None = None
    """Why the newest step needs another plan, or how the running step is desynchronized from its plan; None if neither
    applies."""
    declined_drops: dict[str, int] = field(default_factory=dict)
    """Planned drops of the newest step that were declined, by reason: those storages were swapped out, or stayed."""
    not_replayed: dict[str, str] = field(default_factory=dict)
    """Replayable ops that this device does not replay, or not with every dtype, and why."""
    replays_off: str = ""
    """Why this session replays nothing; empty if it may replay."""
    reserved_bytes: int = 0
    """Device bytes of tensors, of cached blocks and of libraries."""
    recent_match_rate: float = 1.0
    """Share of the newest few hundred ops found in the plan, also in the middle of a step; 1.0 without a plan."""
    recent_trigger_recall: float = 1.0
    """Share of the bytes due in those ops that left the device; 1.0 where none were due."""
    loading_s: float = 0.0
    """Time of DataLoaders per step in which no op ran; not part of ``step_s``. A median, as ``step_s``."""
    stall_parts: dict[str, float] = field(default_factory=dict)
    """Why the newest step stalled, in seconds: see :mod:`chameleon_lab.trace.stall_parts`. Empty without a stall."""
    host_capacity_bytes: int | None = None
    """Most host bytes that copies may take; None: no limit."""
    host_pins: int | None = None
    """Allocations of pinned memory; 0 where an earlier session's was enough, None where copies need none."""
    host_pinning_s: float | None = None
    """Seconds that these took, of all threads together; None where copies need none."""
    split_bytes: int = 0
    """Free bytes in partly used segments. A larger request cannot use them (fragmentation)."""
    allocator: str = ""
    """The setting of torch's CUDA allocator that is in force: ``"default"`` or ``"expandable_segments"``; empty on the
    embedded device, which has none."""
    reserve_bytes: int = 0
    """Part of the capacity that plans leave free against fragmentation, beside the margin."""
    escaped_bytes: int = 0
    """Bytes of ``escaped_storages``."""
    unserved: str | None = None
    """Why the newest step's own plan moves too little, and a new plan would not help; None if it moves enough."""
    planning_s: float = 0.0
    """Core seconds spent on planning; large beside the step time in a short run of small steps."""
    floor: Floor | None = None
    """The highest floor of the first step and of the newest ones, and in a session without a capacity of the first 16
    sequences of ops: no capacity below its ``bytes`` runs them. None before a step has ended, and where more ops came
    than are recorded."""

    rank: Identity = ALONE
    """Which rank of its job the session ran in."""
    disk: DiskSummary | None = None
    """The disk that takes what is away; None: the host's memory does."""

    @property
    def enough_bytes(self) -> int | None:
        """A capacity that is enough for those steps; None if their floor is unknown."""
        return None if self.floor is None else above(self.floor.bytes)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in _OF_STEPS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.newest, name)

    def __getitem__(self, name: str) -> Any:
        if name not in _FIGURES:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_FIGURES)

    def __len__(self) -> int:
        return len(_FIGURES)

    def figure(self) -> go.Figure:
        """The time of each step, with its stall and its replays.

        See :func:`~chameleon_lab.lab.figures.step_figures.session_figure`, which says what is raised.
        """
        return at_first_use("session_figure")(self)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain Python values."""
        return asdict(self) | {name: self[name] for name in _OF_STEPS}

    def rows(self) -> list[tuple[str, str, str]]:
        """The table: name, value, remark."""
        capacity = "none" if self.capacity_bytes is None else format_bytes(self.capacity_bytes)
        share = ""
        if self.capacity_bytes and self.live_peak_bytes:
            part = self.capacity_bytes / self.live_peak_bytes
            share = f"{'more than' if part > 1 else format_percent(part, 0) + ' of'} the peak alive"
        since = ""
        if self.capacity_peak_bytes is not None:
            since = f"; {format_bytes(self.capacity_peak_bytes)} since the capacity changed"
        stall_share = f"{format_percent(self.stall_s / self.step_s)} of the step" if self.step_s else ""
        disk = [] if self.disk is None else [self.disk.place_row()]
        rows = [
            *disk,
            *self._rank_rows(),
            ("Stage", self.stage, f"{self.steps} steps on {self.device}"),
            ("Capacity", capacity, share),
            ("Peak resident", format_bytes(self.peak_bytes), f"whole session{since}"),
            (
                "Peak alive",
                self._measured(self.live_peak_bytes, format_bytes),
                "newest step; its need without swapping",
            ),
            *self._floor_rows(),
            *self._allocator_rows(),
            *self._fragmentation_rows(),
            *self._away_rows(),
            ("Step time", self._measured(self.step_s, format_seconds), self._step_s_of()),
            *self._pause_rows(),
            ("Stall", self._measured(self.stall_s, format_seconds), stall_share),
            *stall_rows(self.stall_parts),
            ("Overlap", *self._overlap_cells()),
            (
                "Moved per step",
                self._measured(self.swapped_out_bytes, lambda size: f"{format_bytes(size)} out"),
                self._measured(self.swapped_in_bytes, lambda size: f"{format_bytes(size)} in"),
            ),
            ("Link", self.link, self._link_words()),
            (
                "Evictions",
                str(self.evictions),
                f"{format_bytes(self.evicted_bytes)}; {self.demand_swap_ins} demand swap-ins",
            ),
            (
                "Planned moves",
                f"{self.late_prefetches} late",
                f"swap-ins that an op waited for; {self.dropped_triggers} triggers had no effect",
            ),
            *self._replay_rows(),
            (
                "Policy",
                f"{self.decisions} decisions",
                f"match rate {format_percent(self.match_rate)}{self._recent()}"
                if self.match_rate
                else "no plan was followed",
            ),
        ]
        if self.plans:
            kept = [plan for plan in self.plans if not plan.dropped]
            reused = sum(plan.followed_steps > 1 for plan in self.plans)
            rows.append(
                (
                    "Plans",
                    f"{len(self.plans)} made",
                    f"in {format_seconds(self.planning_s)} of one core; {len(kept)} cached, {reused} reused; "
                    f"reason for the newest: {self.plans[-1].why}",
                )
            )
        if self.replan_reason:
            rows.append(("Replanning", "needed", self.replan_reason))
        if self.unserved:
            rows.append(("Plan", "incomplete", self.unserved))
        if places := len(self.divergences):
            rows.append(("Diverged", f"{places} place{'s' * (places != 1)}", str(self.divergences[-1])))
        if self.unmatched_decisions:
            count = len(self.unmatched_decisions)
            rows.append(("Unmatched", f"{count} decision{'s' * (count != 1)}", self.unmatched_decisions[0]))
        if self.escaped_storages:
            held = f"{format_bytes(self.escaped_bytes)} stay on the device: a raw pointer to them is in use"
            rows.append(("Kept", f"{self.escaped_storages} storages", held))
        if self.refused:
            name, reason = next(iter(self.refused.items()))
            rows.append(("Not adopted", f"{len(self.refused)} tensors", f"{name}: {reason}"))
        rows.extend(("Note", note, "") for note in self.notes)
        return rows

    def _rank_rows(self) -> list[tuple[str, str, str]]:
        if self.rank.is_alone:
            return []
        local, on_host = self.rank.local_rank, self.rank.local_world_size
        among = "" if local is None or on_host is None else f", there rank {local} of {on_host}"
        return [("Rank", f"{self.rank.rank} of {self.rank.world_size}", f"on {self.rank.host}{among}")]

    def _measured(self, value: float, shown: Callable[[Any], str]) -> str:
        """A figure of a step, or a dash before the first step has ended."""
        return shown(value) if self.history else NOTHING

    def _link_words(self) -> str:
        less = f", plans do without {format_percent(self.link_margin)} of it" if self.link_margin else ""
        return f"out / in, assumed by policies{less}"

    def _step_s_of(self) -> str:
        return "median of the newest steps of this stage" if self.history else "no step has ended"

    def _pause_rows(self) -> list[tuple[str, str, str]]:
        rows = []
        if self.loading_s:
            rows.append(
                ("Data loading", format_seconds(self.loading_s), "per step; not counted in the step time")
            )
        other_s = self.paused_s - (self.history[-1].loading_s if self.history else 0.0)
        if other_s > 1e-9:
            rows.append(
                ("Paused", format_seconds(other_s), "newest step, no op ran; not counted in the step time")
            )
        return rows

    def _overlap_cells(self) -> tuple[str, str]:
        if self.overlap is None:
            return NOTHING, "no copies" if self.history else ""
        return format_percent(self.overlap), DEFINITION

    def _recent(self) -> str:
        """The match rate of the running step, where it differs from the newest finished step's."""
        rate, recall = format_percent(self.recent_match_rate), format_percent(self.recent_trigger_recall)
        if self.plans and (rate != format_percent(self.match_rate) or self.recent_trigger_recall < 1.0):
            return f"; recent ops: {rate}, with {recall} of the due bytes moved"
        return ""

    def _away_rows(self) -> list[tuple[str, str, str]]:
        """Of the place where storages are while they are away."""
        if self.disk is not None:
            return self.disk.rows(self.swapped_out_bytes, self.newest.step_s)
        remark = f"peak {format_bytes(self.host_peak_bytes)}{self._host_bound()}{self._laid_out()}"
        return [("Host pool", format_bytes(self.host_bytes), remark)]

    def _host_bound(self) -> str:
        bound = self.host_capacity_bytes
        if bound is None:
            return ""
        shares = self.rank.share_of_machine
        part = f", 1/{shares} of the machine's" if shares > 1 else ""
        return f" of {format_bytes(bound)} at most{part}"

    def _laid_out(self) -> str:
        """How well the newest plan packs its copies; empty where host memory is not laid out."""
        plan = next(
            (plan for plan in reversed(self.plans) if not plan.dropped and plan.host_pool_bytes), None
        )
        if plan is None or self.host_pins is None or self.host_pinning_s is None:
            return ""
        pool, least = format_bytes(plan.host_pool_bytes), format_bytes(plan.host_peak_bytes)
        return (
            f"; the plan needs {pool} for up to {least} of copies, pinned in {self.host_pins} pieces "
            f"in {format_seconds(self.host_pinning_s)}"
        )

    def _floor_rows(self) -> list[tuple[str, str, str]]:
        if self.floor is None or not self.floor.bytes:
            return []
        enough = f"a capacity of {typed(above(self.floor.bytes))} is enough"
        where = f" in {self.floor.module}" if self.floor.module else ""
        return [
            ("Floor", format_bytes(self.floor.bytes), f"set by {self.floor.op_name}{where}; {enough}"),
            ("", "", self.floor.measured_on),
        ]

    def _allocator_rows(self) -> list[tuple[str, str, str]]:
        """The setting of torch's allocator and its counts of the newest step; only on GPUs."""
        if not self.allocator:
            return []
        parts = [
            f"{self.refusals} refused requests"
            + (f" ({self.soft_ooms} counted in num_ooms)" if self.soft_ooms else ""),
            f"{self.alloc_retries} cache flushes",
            f"{self.device_allocs} segments allocated and {self.device_frees} freed in the newest step",
        ]
        if self.reserve_bytes:
            parts.append(f"plans leave {format_bytes(self.reserve_bytes)} free against fragmentation")
        return [("Allocator", self.allocator, "; ".join(parts))]

    def _fragmentation_rows(self) -> list[tuple[str, str, str]]:
        """Only where the device's allocator splits segments, as on a GPU."""
        if not self.split_bytes:
            return []
        free = max(0, self.reserved_bytes - self.resident_bytes)
        remark = f"{format_bytes(free)} unused; {format_bytes(self.split_bytes)} of it in split segments"
        if self.split_bytes > _MUCH_SPLIT * self.reserved_bytes and self.allocator != "expandable_segments":
            remark += ": PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes them usable"
        return [("Reserved", format_bytes(self.reserved_bytes), remark)]

    def _replay_rows(self) -> list[tuple[str, str, str]]:
        if self.replays_off:
            return [("Replays", "off", self.replays_off)]
        refused = not_replayed_rows(self.not_replayed)
        if not self.drops and not self.declined_drops:
            return refused
        declined = ", ".join(f"{count} ({reason})" for reason, count in self.declined_drops.items())
        return [
            (
                "Dropped",
                format_bytes(self.dropped_bytes),
                f"{self.drops} storages; {self.replays} ops replayed in {format_seconds(self.replay_s)}",
            ),
            *([("Declined", f"{sum(self.declined_drops.values())} drops", declined)] if declined else []),
            *refused,
        ]

    def __str__(self) -> str:
        rows = self.rows()
        wide = max(len(row[0]) for row in rows)
        value = max(len(row[1]) for row in rows if row[0] != "Note")
        lines = ["Chameleon Lab"]
        for name, text, remark in rows:
            lines.append(f"  {name:<{wide}}  {text:<{value}}  {remark}".rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><td style='text-align:left'>{html.escape(name)}</td>"
            f"<td style='text-align:right'><b>{html.escape(text)}</b></td>"
            f"<td style='text-align:left'>{html.escape(remark)}</td></tr>"
            for name, text, remark in self.rows()
        )
        return f"<table><caption>Chameleon Lab</caption>{cells}</table>"


_OF_STEPS = frozenset(_OfNewest.__annotations__)
"""Figures that a report takes from its newest step."""
_FIGURES = (*Report.__dataclass_fields__, *sorted(_OF_STEPS))


def stall_rows(parts: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """A row of a report for each part of the stall, the longest first."""
    whole = sum(parts.values())
    rows = sorted(parts.items(), key=lambda item: -item[1])
    return [
        (
            f"  {name}",
            format_seconds(seconds),
            f"{format_percent(seconds / whole)} of the stall: {WORDS[name]}",
        )
        for name, seconds in rows
        if whole and seconds >= _LEAST_PART * whole
    ]


def not_replayed_rows(refused: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """At most two rows of a report: ops that are not replayed, or not with every dtype, and why."""
    names: dict[str, list[str]] = {}
    for name, why in refused.items():
        # An op that the device does not implement cannot occur.
        parts = [part for part in why.split("; ") if _NOT_IMPLEMENTED not in part]
        if parts:
            names.setdefault("; ".join(parts), []).append(name)
    reasons = sorted(names, key=lambda why: -len(names[why]))
    rows = []
    for why in reasons[:_MOST_REASONS]:
        first, *others = names[why]
        also = f" and {len(others)} more" if others else ""
        rows.append(("Not replayed", f"{len(names[why])} op{'s' * bool(others)}", f"{first}{also} ({why})"))
    if left := len(reasons) - len(rows):
        *rows, (head, value, remark) = rows
        rows.append((head, value, f"{remark}; {left} other reason{'s' * (left > 1)} in not_replayed"))
    return rows
