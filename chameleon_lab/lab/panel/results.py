"""The types of what the kernel answers and says unasked, as JSON: each field once, for Python and for the panel.

``scripts/protocol.py`` writes the panel's types from these and from the requests in :mod:`.protocol`. Bytes are
``*_bytes``, seconds ``*_s``; ``x0`` and ``x1`` are positions on the axis that was asked for.
"""

# ruff: noqa: D101  # most of the names say it all

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Axis = Literal["time", "op"]
Rows = Literal["storage", "packed"]
Track = Literal["ops", "out", "in", "stalls", "replays", "blocks"]
TreeOf = Literal["module", "stack"]
Change = Literal["add", "set", "replace", "remove", "undo", "redo", "discard"]
DecisionSort = Literal["name", "module", "bytes", "idle_s", "decision", "hidden", "stall_s", "replay_s", "by"]


class PerAxis(TypedDict):
    """A position or a length, on each axis."""

    time: float
    op: float


class Nothing(TypedDict):
    """No more than that it is done."""


class Opened(TypedDict):
    source: str
    """The file's name from now on."""


class Saved(TypedDict):
    path: str
    bytes: int


class SavedTrace(Saved):
    steps: int


class Files(TypedDict):
    paths: list[str]
    """Traces and policies below the kernel's folder, the newest first."""


class Notes(TypedDict):
    notes: list[Note]


class Located(TypedDict):
    uid: int | None


class Matched(TypedDict):
    """The storages that an edit means."""

    storages: int
    movable: int
    bytes: int


class DraftNews(TypedDict):
    source: str
    news: int


class Hello(TypedDict):
    subshell: bool
    """Whether a thread other than the kernel's main one answers, so that it can while a cell runs."""


class StepEntry(TypedDict):
    index: int
    stage: str
    duration_s: float


class SessionStatus(TypedDict):
    source: str
    open: bool
    stage: str
    step_count: int
    capacity_bytes: int | None
    peak_bytes: int
    host_bytes: int
    host_peak_bytes: int
    step_s: float
    swaps: int
    """Of the policy in force."""
    drops: int
    declined_drops: dict[str, int]
    """Planned drops of the newest step that were declined, by reason."""
    steps: list[StepEntry]


class FileStatus(TypedDict):
    source: str
    path: str
    steps: list[StepEntry]
    lost: str | None
    """What a file whose end is missing has lost, in words."""


class PolicyStatus(TypedDict):
    source: str
    name: str
    swaps: int
    drops: int


class Status(TypedDict):
    session: SessionStatus | None
    files: list[FileStatus]
    policies: list[PolicyStatus]
    """What can be a side of a comparison: the one in force, drafts, files."""


class Pause(TypedDict):
    kind: Literal["idle", "loading", "cells"]
    duration_s: float
    at: PerAxis


class Floor(TypedDict):
    """The smallest capacity that any policy can run a step in, and the op that sets it."""

    bytes: int
    op: str
    module: str
    measured_on: str
    """In words: what it was measured on."""


class SceneStep(TypedDict):
    index: int
    stage: str
    duration_s: float
    begin: PerAxis


class Scene(TypedDict):
    steps: list[SceneStep]
    length: PerAxis
    names: list[str]
    stages: list[str]
    layers: list[str]
    modules: list[str]
    mark_names: list[str]
    """What the user's own code calls its stretches; `marks`: how many of those there are."""
    marks: int
    storages: int
    ops: int
    moved_bytes: tuple[int, int]
    """Out and in."""
    hidden: tuple[float | None, float | None]
    """Share of the copies out, and of those in, behind which compute went on; null where there are none."""
    stalls: int
    stall_s: float
    pauses: list[Pause]
    """The longest stretches in which no op ran outside of the loop; they are no part of the axis."""
    replays: int
    replay_s: float
    dropped_bytes: int
    declined: int
    """Planned drops that the runtime declined."""
    overlap: float | None
    """See OVERLAP in words.ts; null where nothing was copied."""
    match_rate: float | None
    """Share of the ops that were found in the plan; null where none was followed."""
    capacity_bytes: int | None
    peak_bytes: int
    live_peak_bytes: int
    away_peak_bytes: int
    peak: PerAxis
    floor: Floor


class ViewReply(TypedDict):
    axis: Axis
    start: float
    end: float
    rows: Rows
    map_bytes: int
    tables: list[str]


class Op(TypedDict):
    row: int
    name: str
    module: str
    stage: str
    step: int
    op: int
    duration_s: float
    stall_s: float
    replay_s: float
    """What the replays for it took; part of its time."""
    stack: list[str]
    x0: float
    x1: float


class Storage(TypedDict):
    uid: int
    key: str
    bytes: int
    category: int
    module: str
    movable: bool
    form: str
    """Dtype and shape, such as `float32 [64, 256]`; empty where nobody has seen a tensor of it."""


class Transfer(TypedDict):
    row: int
    direction: Literal["out", "in"]
    cause: str
    bytes: int
    duration_s: float
    waited_s: float
    hidden: float
    storage: Storage | None
    x0: float
    x1: float


class Stall(TypedDict):
    row: int
    direction: Literal["out", "in"]
    cause: str
    duration_s: float
    why: str
    """Its parts in seconds, in words: the copy, the queue, missing room, a late trigger."""
    op: Op | None
    storage: Storage | None
    x0: float
    x1: float


class Replay(TypedDict):
    """An op that ran again, to give a dropped storage its bytes back."""

    row: int
    name: str
    cause: str
    bytes: int
    duration_s: float
    op: Op | None
    """The op that it was replayed for."""
    storage: Storage | None
    x0: float
    x1: float


class Declined(TypedDict):
    """A planned drop that did not take place: the storage stayed, or was swapped out instead."""

    name: str
    """The op that made the storage, or empty."""
    why: str
    op: Op
    storage: Storage | None
    x0: float


class StorageDetail(Storage):
    born: Op | None
    x0: float
    x1: float
    uses: list[Op]
    use_count: int
    transfers: list[Transfer]
    stalls: list[Stall]
    replays: list[Replay]
    declined: list[Declined]
    resident: list[tuple[float, float]]
    away: list[tuple[float, float]]
    """On the host."""
    dropped: list[tuple[float, float]]
    """Nowhere, until a replay makes the bytes again."""


class Touched(TypedDict):
    count: int
    bytes: int
    storages: list[Storage]


class TouchingOp(Op):
    touches: Touched


class Point(TypedDict):
    op: NotRequired[TouchingOp]
    transfer: NotRequired[Transfer]
    stall: NotRequired[Stall]
    replay: NotRequired[Replay]
    storage: NotRequired[Storage]


class Total(TypedDict):
    label: str
    resident_bytes: int
    away_bytes: int


class AliveStorage(Storage):
    resident: bool
    dropped: bool
    can_leave: bool
    in_use: bool
    idle_ops: int
    idle_s: float


class Alive(TypedDict):
    at: float
    op: Op
    count: int
    resident_bytes: int
    away_bytes: int
    dropped_bytes: int
    can_leave_bytes: int
    categories: list[Total]
    modules: list[Total]
    storages: list[AliveStorage]


class MovedStorage(Storage):
    moved_bytes: int
    stall_s: float


class BusyModule(TypedDict):
    module: str
    busy_s: float


class Summary(TypedDict):
    start: float
    end: float
    duration_s: float
    ops: int
    transfers: tuple[int, int]
    """Out and in."""
    out_bytes: int
    in_bytes: int
    overlap: float | None
    stalls: int
    stall_s: float
    stall_causes: dict[str, float]
    stall_parts: dict[str, float]
    """The same stall by why it was, in seconds."""
    replays: int
    replay_s: float
    replayed_bytes: int
    peak_bytes: int
    storages: list[MovedStorage]
    modules: list[BusyModule]
    op_names: list[OpName]
    """The ops by their name, those that took longest first."""


class OpName(TypedDict):
    name: str
    count: int
    busy_s: float
    stall_s: float
    replay_s: float
    made_bytes: int


class Node(TypedDict):
    """One name in a tree of bytes; its children follow it, one deeper."""

    name: str
    depth: int
    start_bytes: float
    """Where it begins in the row of its depth."""
    bytes: int
    count: int
    category: int
    """Of most of its bytes."""
    uid: int
    """Of its storage, where it is one alone; else -1."""


class Icicle(TypedDict):
    by: TreeOf
    step: int
    op: int
    op_name: str
    bytes: int
    count: int
    has_stacks: bool
    nodes: list[Node]


class Grown(TypedDict):
    """Storages of one origin that have not stopped growing."""

    origin: str
    module: str
    category: str
    bytes: list[int]
    """Alive at the end of each step."""
    counts: list[int]
    bytes_per_step: float
    stack: list[str]
    uid: int


class Growth(TypedDict):
    steps: list[int]
    bytes: list[int]
    """All that was alive at the end of each."""
    count: int
    rows: list[Grown]


class Note(TypedDict):
    """What a person has written down of a time."""

    index: int
    step: int
    op: int
    text: str
    at: PerAxis


class FoundStorage(Storage):
    x0: float
    x1: float
    away_s: float
    dropped_s: float
    replays: int
    transfers: int
    stall_s: float


class Search(TypedDict):
    query: str
    storage_count: int
    storage_bytes: int
    storages: list[FoundStorage]
    op_count: int
    ops: list[Op]
    replay_count: int
    """Of the storages found."""
    replays: list[Replay]
    declined_count: int
    declined: list[Declined]
    marks: list[float]
    """Where on the axis ops and storages that fit lie."""


class Peak(TypedDict):
    at: float
    bytes: int
    op: Op


class Seek(TypedDict):
    stall: Stall | None
    peak: Peak | None
    op: Op | None
    number: int
    count: int


class Link(TypedDict):
    out_bytes_per_s: float | None
    in_bytes_per_s: float | None


class Edit(TypedDict):
    """One edit, as the kernel's Edit.to_dict writes it. What does not apply is left out."""

    action: str
    storage: NotRequired[str]
    gap: NotRequired[int]
    module: NotRequired[str]
    category: NotRequired[str]
    stage: NotRequired[str]
    min_bytes: NotRequired[int]
    max_bytes: NotRequired[int]
    ops_earlier: NotRequired[int]
    capacity_bytes: NotRequired[int]
    link: NotRequired[Link]
    note: NotRequired[str]


class DraftEdit(TypedDict):
    edit: Edit
    text: str
    staged: bool
    """Not in force."""


class Finding(TypedDict):
    fault: str
    index: int
    """Position of the edit."""
    why: str
    way_out: str
    least_bytes: int | None
    """Where the edits leave no room: the smallest capacity that they can be obeyed in."""
    is_error: bool


class Figures(TypedDict):
    """What a step takes under a policy, predicted or measured."""

    peak_bytes: int
    step_s: float
    stall_s: float
    overlap: float | None
    swapped_out_bytes: int
    swapped_in_bytes: int
    replay_s: float
    replayed_bytes: int


class PlanFigures(Figures):
    """What a policy is predicted to take, and its decisions."""

    half_link_step_s: float | None
    """What a step would take were the link half as fast; null in an estimate."""
    capacity_bytes: int
    swaps: int
    drops: int


class DryRun(TypedDict):
    done: bool
    note: str
    """Why it ended early, or empty."""
    steps: int
    settle: int
    started: bool
    """Whether the step border has come, so that steps run under the draft."""
    of_draft: bool
    """Whether the draft is still the one that is tried."""
    before: Figures | None
    """What was measured before it, which it is judged against."""
    measured: Figures | None


class NoDraft(TypedDict):
    """There is nothing to edit (yet), and why."""

    source: str
    editable: Literal[False]
    why: str
    news: int


class OpenDraft(TypedDict):
    source: str
    editable: Literal[True]
    why: str
    news: int
    """Counts what became new; the event `draft` says when."""
    actions: list[str]
    """What can be decided about a storage."""
    edits: list[DraftEdit]
    staged: int
    """Edits that are not in force, and those in force that the draft takes back."""
    follows: int
    """Storages that the planner treats otherwise because of edits of others."""
    can_undo: bool
    can_redo: bool
    same: bool
    """Whether the draft is what is in force."""
    exact: bool
    """Planned; else the figures are an estimate, and a plan follows."""
    fits: bool
    error: str
    findings: list[Finding]
    plan_s: float
    clock: str
    """Which op times all predictions use, in words."""
    now: Figures | None
    """Measured: the median of the newest steps, beside a dry run of those before it; null where none has ended."""
    current: PlanFigures
    draft: PlanFigures | None
    capacity_bytes: int
    live_peak_bytes: int
    compute_s: float
    floor: Floor
    ops: int
    rows: int
    storages: int
    why_not_enable: str
    """Why nothing can be dry-run or enabled; empty where it can."""
    can_roll_back: bool
    waiting: bool
    """Whether a switch waits for the step border."""
    other_ops: int
    """Ops of the plan in force where it is for other ops than the draft, else 0."""
    dry_run: DryRun | None


class Decision(TypedDict):
    """One row of the policy editor: a storage that can be decided about."""

    storage: str
    category: int
    module: str
    bytes: int
    idle_s: float
    idle_ops: int
    gaps: int
    before: str
    """What is in force does this, and the draft does that."""
    after: str
    swaps: int
    """Gaps in which the draft swaps it, and in which it drops it."""
    drops: int
    moved_bytes: int
    hidden: float | None
    stall_s: float
    replay_s: float
    """What its replays take, and what one for its longest gap would; null where it cannot be made again."""
    replay_cost_s: float | None
    never_rematerialize: bool
    """Whether an edit forbids to rematerialize it."""
    declined: str
    """Why the runtime has declined to drop it, or empty."""
    by: Literal["you", "rule", "follows", "planner"]
    edit: int
    """Position of the edit that decides, -1 for none."""
    ops_earlier: int
    staged: bool
    life: tuple[float, float]
    """From birth to death, and the longest gap: shares of the step, above 1 in the next one."""
    idle: tuple[float, float]


class Page(TypedDict):
    total: int
    bytes: int
    all: int
    """Without the filter."""
    start: float
    rows: list[Decision]


class GapEnd(TypedDict):
    op: int
    name: str
    module: str


class Gap(TypedDict):
    gap: int
    after: GapEnd
    before: GapEnd | None
    ops: int
    seconds: float
    action: str
    lead_ops: int | None
    lead_s: float | None


class Effect(TypedDict):
    step_s: float
    peak_bytes: int
    others: int


class Option(TypedDict):
    action: str
    chosen: bool
    """Whether the draft does this."""
    own: bool
    """Whether an edit of this storage says so."""
    ready: bool
    """Whether the effect is known; the event `draft` says when."""
    possible: bool
    why: str
    effect: Effect | None


class Cost(TypedDict):
    """What moving a storage out and in takes of the link, beside what making it again takes of the device."""

    copy_s: float
    replay_s: float | None
    replay_ops: list[str]
    """Ops that run again, in order."""
    why_not_replay: str
    retains: list[str]
    """Keys of what the plan keeps after its death for the storage's replays."""
    retained_for: list[str]
    """Keys of what the plan replays from the storage after its death: until then it is kept."""


class Choices(TypedDict):
    storage: str
    row: Decision | None
    why: str
    gaps: list[Gap]
    options: list[Option]
    cost: Cost | None


class ChangeRow(TypedDict):
    kind: Literal["added", "removed", "changed"]
    storage: str
    category: int
    module: str
    bytes: int
    gap: int
    action: str
    by: str
    before: tuple[int, int, int, int] | None
    """Ops: out, free, in, use."""
    after: tuple[int, int, int, int] | None


class Changes(TypedDict):
    exact: bool
    counts: tuple[int, int, int]
    """Added, removed and changed."""
    rows: list[ChangeRow]


class CurvePoint(TypedDict):
    capacity_bytes: int
    step_s: float
    stall_s: float


class Curve(TypedDict):
    points: list[CurvePoint]
    left: int
    of: int
    knee_bytes: int | None
    within: float


class Box(TypedDict):
    """A rectangle of the block map: a stretch of the axis, and of the bytes of its rows."""

    start: float
    end: float
    low: float
    high: float


class BoxedStorage(Storage):
    resident: bool


class Boxed(Box):
    rows: Rows
    count: int
    bytes: int
    away_bytes: int
    categories: list[Total]
    modules: list[Total]
    storages: list[BoxedStorage]


class SideFigures(TypedDict):
    capacity_bytes: int | None
    peak_bytes: int
    live_peak_bytes: int
    step_s: float
    stall_s: float
    stall_out_s: float
    stall_prefetch_s: float
    stall_demand_s: float
    overlap: float | None
    out_bytes: int
    in_bytes: int
    replay_s: float
    replayed_bytes: int
    ops: int
    storages: int


class SideFacts(TypedDict):
    kind: Literal["measured", "predicted"]
    clock: str
    """Of a prediction: which op times it takes."""
    stage: str
    length: PerAxis
    stages: list[str]
    figures: SideFigures


class ModuleFigures(TypedDict):
    peak_bytes: int
    moved_bytes: int
    stall_s: float


class ModulePair(TypedDict):
    module: str
    a: ModuleFigures
    b: ModuleFigures


class SideDecision(TypedDict):
    action: str
    out_op: int
    in_op: int
    decided_by: str


class DecisionPair(TypedDict):
    storage: str
    category: str
    module: str
    bytes: int
    gap: int
    a: SideDecision | None
    b: SideDecision | None


class Condition(TypedDict):
    name: str
    a: str | float | bool | None
    b: str | float | bool | None


class DecisionsCompared(TypedDict):
    removed: int
    added: int
    changed: int
    rows: list[DecisionPair]
    conditions: list[Condition]


class Comparison(TypedDict):
    a: SideFacts
    b: SideFacts
    same_ops: bool
    """Whether both ran the same sequence of ops."""
    module_count: int
    modules: list[ModulePair]
    decisions: DecisionsCompared | None
    """Null where one of the two is no policy."""


class CompareView(TypedDict):
    tables: list[str]


Draft = NoDraft | OpenDraft
