// Written by scripts/protocol.py from chameleon_lab/lab/panel/protocol.py and results.py: change those.

/** Version of the protocol. Both sides name theirs in every message, and answer no other. */
export const VERSION = 1;

/** The comm target that the kernel registers and the panel opens. */
export const TARGET = 'chameleon_lab';

/** The comm target that the panel's extension registers, through which the kernel calls for it. */
export const PANEL_TARGET = 'chameleon_lab:panel';

/** Categories as the kernel numbers them. */
export const CATEGORIES = [
  'parameter',
  'gradient',
  'optimizer_state',
  'activation',
  'input',
  'other'
] as const;

export type Axis = 'time' | 'op';

export type Rows = 'storage' | 'packed';

export type Track = 'ops' | 'out' | 'in' | 'stalls' | 'replays' | 'blocks';

export type TreeOf = 'module' | 'stack';

export type Change = 'add' | 'set' | 'replace' | 'remove' | 'undo' | 'redo' | 'discard';

export type DecisionSort =
  | 'name'
  | 'module'
  | 'bytes'
  | 'idle_s'
  | 'decision'
  | 'hidden'
  | 'stall_s'
  | 'replay_s'
  | 'by';

/** A position or a length, on each axis. */
export interface IPerAxis {
  time: number;
  op: number;
}

export interface IOpened {
  /** The file's name from now on. */
  source: string;
}

export interface ISaved {
  path: string;
  bytes: number;
}

export interface ISavedTrace extends ISaved {
  steps: number;
}

export interface IFiles {
  /** Traces and policies below the kernel's folder, the newest first. */
  paths: string[];
}

export interface INotes {
  notes: INote[];
}

export interface ILocated {
  uid: number | null;
}

/** The storages that an edit means. */
export interface IMatched {
  storages: number;
  movable: number;
  bytes: number;
}

export interface IDraftNews {
  source: string;
  news: number;
}

export interface IHello {
  /**
   * Whether a thread other than the kernel's main one answers, so that it can while a cell runs.
   */
  subshell: boolean;
}

export interface IStepEntry {
  index: number;
  stage: string;
  duration_s: number;
}

export interface ISessionStatus {
  source: string;
  open: boolean;
  stage: string;
  step_count: number;
  capacity_bytes: number | null;
  peak_bytes: number;
  host_bytes: number;
  host_peak_bytes: number;
  step_s: number;
  /** Of the policy in force. */
  swaps: number;
  drops: number;
  /** Planned drops of the newest step that were declined, by reason. */
  declined_drops: Record<string, number>;
  steps: IStepEntry[];
}

export interface IFileStatus {
  source: string;
  path: string;
  steps: IStepEntry[];
  /** What a file whose end is missing has lost, in words. */
  lost: string | null;
}

export interface IPolicyStatus {
  source: string;
  name: string;
  swaps: number;
  drops: number;
}

export interface IStatus {
  session: ISessionStatus | null;
  files: IFileStatus[];
  /** What can be a side of a comparison: the one in force, drafts, files. */
  policies: IPolicyStatus[];
}

export interface IPause {
  kind: 'idle' | 'loading' | 'cells';
  duration_s: number;
  at: IPerAxis;
}

/** The smallest capacity that any policy can run a step in, and the op that sets it. */
export interface IFloor {
  bytes: number;
  op: string;
  module: string;
  /** In words: what it was measured on. */
  measured_on: string;
}

export interface ISceneStep {
  index: number;
  stage: string;
  duration_s: number;
  begin: IPerAxis;
}

export interface IScene {
  steps: ISceneStep[];
  length: IPerAxis;
  names: string[];
  stages: string[];
  layers: string[];
  modules: string[];
  /** What the user's own code calls its stretches; `marks`: how many of those there are. */
  mark_names: string[];
  marks: number;
  storages: number;
  ops: number;
  /** Out and in. */
  moved_bytes: [number, number];
  /**
   * Share of the copies out, and of those in, behind which compute went on; null where there are
   * none.
   */
  hidden: [number | null, number | null];
  stalls: number;
  stall_s: number;
  /** The longest stretches in which no op ran outside of the loop; they are no part of the axis. */
  pauses: IPause[];
  replays: number;
  replay_s: number;
  dropped_bytes: number;
  /** Planned drops that the runtime declined. */
  declined: number;
  /** See OVERLAP in words.ts; null where nothing was copied. */
  overlap: number | null;
  /** Share of the ops that were found in the plan; null where none was followed. */
  match_rate: number | null;
  capacity_bytes: number | null;
  peak_bytes: number;
  live_peak_bytes: number;
  away_peak_bytes: number;
  peak: IPerAxis;
  floor: IFloor;
}

export interface IViewReply {
  axis: Axis;
  start: number;
  end: number;
  rows: Rows;
  map_bytes: number;
  tables: string[];
}

export interface IOp {
  row: number;
  name: string;
  module: string;
  stage: string;
  step: number;
  op: number;
  duration_s: number;
  stall_s: number;
  /** What the replays for it took; part of its time. */
  replay_s: number;
  stack: string[];
  x0: number;
  x1: number;
}

export interface IStorage {
  uid: number;
  key: string;
  bytes: number;
  category: number;
  module: string;
  movable: boolean;
  /** Dtype and shape, such as `float32 [64, 256]`; empty where nobody has seen a tensor of it. */
  form: string;
}

export interface ITransfer {
  row: number;
  direction: 'out' | 'in';
  cause: string;
  bytes: number;
  duration_s: number;
  waited_s: number;
  hidden: number;
  storage: IStorage | null;
  x0: number;
  x1: number;
}

export interface IStall {
  row: number;
  direction: 'out' | 'in';
  cause: string;
  duration_s: number;
  /** Its parts in seconds, in words: the copy, the queue, missing room, a late trigger. */
  why: string;
  op: IOp | null;
  storage: IStorage | null;
  x0: number;
  x1: number;
}

/** An op that ran again, to give a dropped storage its bytes back. */
export interface IReplay {
  row: number;
  name: string;
  cause: string;
  bytes: number;
  duration_s: number;
  /** The op that it was replayed for. */
  op: IOp | null;
  storage: IStorage | null;
  x0: number;
  x1: number;
}

/** A planned drop that did not take place: the storage stayed, or was swapped out instead. */
export interface IDeclined {
  /** The op that made the storage, or empty. */
  name: string;
  why: string;
  op: IOp;
  storage: IStorage | null;
  x0: number;
}

export interface IStorageDetail extends IStorage {
  born: IOp | null;
  x0: number;
  x1: number;
  uses: IOp[];
  use_count: number;
  transfers: ITransfer[];
  stalls: IStall[];
  replays: IReplay[];
  declined: IDeclined[];
  resident: [number, number][];
  /** On the host. */
  away: [number, number][];
  /** Nowhere, until a replay makes the bytes again. */
  dropped: [number, number][];
}

export interface ITouched {
  count: number;
  bytes: number;
  storages: IStorage[];
}

export interface ITouchingOp extends IOp {
  touches: ITouched;
}

export interface IPoint {
  op?: ITouchingOp;
  transfer?: ITransfer;
  stall?: IStall;
  replay?: IReplay;
  storage?: IStorage;
}

export interface ITotal {
  label: string;
  resident_bytes: number;
  away_bytes: number;
}

export interface IAliveStorage extends IStorage {
  resident: boolean;
  dropped: boolean;
  can_leave: boolean;
  in_use: boolean;
  idle_ops: number;
  idle_s: number;
}

export interface IAlive {
  at: number;
  op: IOp;
  count: number;
  resident_bytes: number;
  away_bytes: number;
  dropped_bytes: number;
  can_leave_bytes: number;
  categories: ITotal[];
  modules: ITotal[];
  storages: IAliveStorage[];
}

export interface IMovedStorage extends IStorage {
  moved_bytes: number;
  stall_s: number;
}

export interface IBusyModule {
  module: string;
  busy_s: number;
}

export interface ISummary {
  start: number;
  end: number;
  duration_s: number;
  ops: number;
  /** Out and in. */
  transfers: [number, number];
  out_bytes: number;
  in_bytes: number;
  overlap: number | null;
  stalls: number;
  stall_s: number;
  stall_causes: Record<string, number>;
  /** The same stall by why it was, in seconds. */
  stall_parts: Record<string, number>;
  replays: number;
  replay_s: number;
  replayed_bytes: number;
  peak_bytes: number;
  storages: IMovedStorage[];
  modules: IBusyModule[];
  /** The ops by their name, those that took longest first. */
  op_names: IOpName[];
}

export interface IOpName {
  name: string;
  count: number;
  busy_s: number;
  stall_s: number;
  replay_s: number;
  made_bytes: number;
}

/** One name in a tree of bytes; its children follow it, one deeper. */
export interface INode {
  name: string;
  depth: number;
  /** Where it begins in the row of its depth. */
  start_bytes: number;
  bytes: number;
  count: number;
  /** Of most of its bytes. */
  category: number;
  /** Of its storage, where it is one alone; else -1. */
  uid: number;
}

export interface IIcicle {
  by: TreeOf;
  step: number;
  op: number;
  op_name: string;
  bytes: number;
  count: number;
  has_stacks: boolean;
  nodes: INode[];
}

/** Storages of one origin that have not stopped growing. */
export interface IGrown {
  origin: string;
  module: string;
  category: string;
  /** Alive at the end of each step. */
  bytes: number[];
  counts: number[];
  bytes_per_step: number;
  stack: string[];
  uid: number;
}

export interface IGrowth {
  steps: number[];
  /** All that was alive at the end of each. */
  bytes: number[];
  count: number;
  rows: IGrown[];
}

/** What a person has written down of a time. */
export interface INote {
  index: number;
  step: number;
  op: number;
  text: string;
  at: IPerAxis;
}

export interface IFoundStorage extends IStorage {
  x0: number;
  x1: number;
  away_s: number;
  dropped_s: number;
  replays: number;
  transfers: number;
  stall_s: number;
}

export interface ISearch {
  query: string;
  storage_count: number;
  storage_bytes: number;
  storages: IFoundStorage[];
  op_count: number;
  ops: IOp[];
  /** Of the storages found. */
  replay_count: number;
  replays: IReplay[];
  declined_count: number;
  declined: IDeclined[];
  /** Where on the axis ops and storages that fit lie. */
  marks: number[];
}

export interface IPeak {
  at: number;
  bytes: number;
  op: IOp;
}

export interface ISeek {
  stall: IStall | null;
  peak: IPeak | null;
  op: IOp | null;
  number: number;
  count: number;
}

export interface ILink {
  out_bytes_per_s: number | null;
  in_bytes_per_s: number | null;
}

/** One edit, as the kernel's Edit.to_dict writes it. What does not apply is left out. */
export interface IEdit {
  action: string;
  storage?: string;
  gap?: number;
  module?: string;
  category?: string;
  stage?: string;
  min_bytes?: number;
  max_bytes?: number;
  ops_earlier?: number;
  capacity_bytes?: number;
  link?: ILink;
  note?: string;
}

export interface IDraftEdit {
  edit: IEdit;
  text: string;
  /** Not in force. */
  staged: boolean;
}

export interface IFinding {
  fault: string;
  /** Position of the edit. */
  index: number;
  why: string;
  way_out: string;
  /** Where the edits leave no room: the smallest capacity that they can be obeyed in. */
  least_bytes: number | null;
  is_error: boolean;
}

/** What a step takes under a policy, predicted or measured. */
export interface IFigures {
  peak_bytes: number;
  step_s: number;
  stall_s: number;
  overlap: number | null;
  swapped_out_bytes: number;
  swapped_in_bytes: number;
  replay_s: number;
  replayed_bytes: number;
}

/** What a policy is predicted to take, and its decisions. */
export interface IPlanFigures extends IFigures {
  /** What a step would take were the link half as fast; null in an estimate. */
  half_link_step_s: number | null;
  capacity_bytes: number;
  swaps: number;
  drops: number;
}

export interface IDryRun {
  done: boolean;
  /** Why it ended early, or empty. */
  note: string;
  steps: number;
  settle: number;
  /** Whether the step border has come, so that steps run under the draft. */
  started: boolean;
  /** Whether the draft is still the one that is tried. */
  of_draft: boolean;
  /** What was measured before it, which it is judged against. */
  before: IFigures | null;
  measured: IFigures | null;
}

/** There is nothing to edit (yet), and why. */
export interface INoDraft {
  source: string;
  editable: false;
  why: string;
  news: number;
}

export interface IOpenDraft {
  source: string;
  editable: true;
  why: string;
  /** Counts what became new; the event `draft` says when. */
  news: number;
  /** What can be decided about a storage. */
  actions: string[];
  edits: IDraftEdit[];
  /** Edits that are not in force, and those in force that the draft takes back. */
  staged: number;
  /** Storages that the planner treats otherwise because of edits of others. */
  follows: number;
  can_undo: boolean;
  can_redo: boolean;
  /** Whether the draft is what is in force. */
  same: boolean;
  /** Planned; else the figures are an estimate, and a plan follows. */
  exact: boolean;
  fits: boolean;
  error: string;
  findings: IFinding[];
  plan_s: number;
  /** Which op times all predictions use, in words. */
  clock: string;
  /**
   * Measured: the median of the newest steps, beside a dry run of those before it; null where none
   * has ended.
   */
  now: IFigures | null;
  current: IPlanFigures;
  draft: IPlanFigures | null;
  capacity_bytes: number;
  live_peak_bytes: number;
  compute_s: number;
  floor: IFloor;
  ops: number;
  rows: number;
  storages: number;
  /** Why nothing can be dry-run or enabled; empty where it can. */
  why_not_enable: string;
  can_roll_back: boolean;
  /** Whether a switch waits for the step border. */
  waiting: boolean;
  /** Ops of the plan in force where it is for other ops than the draft, else 0. */
  other_ops: number;
  dry_run: IDryRun | null;
}

/** One row of the policy editor: a storage that can be decided about. */
export interface IDecision {
  storage: string;
  category: number;
  module: string;
  bytes: number;
  idle_s: number;
  idle_ops: number;
  gaps: number;
  /** What is in force does this, and the draft does that. */
  before: string;
  after: string;
  /** Gaps in which the draft swaps it, and in which it drops it. */
  swaps: number;
  drops: number;
  moved_bytes: number;
  hidden: number | null;
  stall_s: number;
  /**
   * What its replays take, and what one for its longest gap would; null where it cannot be made
   * again.
   */
  replay_s: number;
  replay_cost_s: number | null;
  /** Whether an edit forbids to rematerialize it. */
  never_rematerialize: boolean;
  /** Why the runtime has declined to drop it, or empty. */
  declined: string;
  by: 'you' | 'rule' | 'follows' | 'planner';
  /** Position of the edit that decides, -1 for none. */
  edit: number;
  ops_earlier: number;
  staged: boolean;
  /** From birth to death, and the longest gap: shares of the step, above 1 in the next one. */
  life: [number, number];
  idle: [number, number];
}

export interface IPage {
  total: number;
  bytes: number;
  /** Without the filter. */
  all: number;
  start: number;
  rows: IDecision[];
}

export interface IGapEnd {
  op: number;
  name: string;
  module: string;
}

export interface IGap {
  gap: number;
  after: IGapEnd;
  before: IGapEnd | null;
  ops: number;
  seconds: number;
  action: string;
  lead_ops: number | null;
  lead_s: number | null;
}

export interface IEffect {
  step_s: number;
  peak_bytes: number;
  others: number;
}

export interface IOption {
  action: string;
  /** Whether the draft does this. */
  chosen: boolean;
  /** Whether an edit of this storage says so. */
  own: boolean;
  /** Whether the effect is known; the event `draft` says when. */
  ready: boolean;
  possible: boolean;
  why: string;
  effect: IEffect | null;
}

/**
 * What moving a storage out and in takes of the link, beside what making it again takes of the
 * device.
 */
export interface ICost {
  copy_s: number;
  replay_s: number | null;
  /** Ops that run again, in order. */
  replay_ops: string[];
  why_not_replay: string;
  /** Keys of what the plan keeps after its death for the storage's replays. */
  retains: string[];
  /** Keys of what the plan replays from the storage after its death: until then it is kept. */
  retained_for: string[];
}

export interface IChoices {
  storage: string;
  row: IDecision | null;
  why: string;
  gaps: IGap[];
  options: IOption[];
  cost: ICost | null;
}

export interface IChangeRow {
  kind: 'added' | 'removed' | 'changed';
  storage: string;
  category: number;
  module: string;
  bytes: number;
  gap: number;
  action: string;
  by: string;
  /** Ops: out, free, in, use. */
  before: [number, number, number, number] | null;
  after: [number, number, number, number] | null;
}

export interface IChanges {
  exact: boolean;
  /** Added, removed and changed. */
  counts: [number, number, number];
  rows: IChangeRow[];
}

export interface ICurvePoint {
  capacity_bytes: number;
  step_s: number;
  stall_s: number;
}

export interface ICurve {
  points: ICurvePoint[];
  left: number;
  of: number;
  knee_bytes: number | null;
  within: number;
}

/** A rectangle of the block map: a stretch of the axis, and of the bytes of its rows. */
export interface IBox {
  start: number;
  end: number;
  low: number;
  high: number;
}

export interface IBoxedStorage extends IStorage {
  resident: boolean;
}

export interface IBoxed extends IBox {
  rows: Rows;
  count: number;
  bytes: number;
  away_bytes: number;
  categories: ITotal[];
  modules: ITotal[];
  storages: IBoxedStorage[];
}

export interface ISideFigures {
  capacity_bytes: number | null;
  peak_bytes: number;
  live_peak_bytes: number;
  step_s: number;
  stall_s: number;
  stall_out_s: number;
  stall_prefetch_s: number;
  stall_demand_s: number;
  overlap: number | null;
  out_bytes: number;
  in_bytes: number;
  replay_s: number;
  replayed_bytes: number;
  ops: number;
  storages: number;
}

export interface ISideFacts {
  kind: 'measured' | 'predicted';
  /** Of a prediction: which op times it takes. */
  clock: string;
  stage: string;
  length: IPerAxis;
  stages: string[];
  figures: ISideFigures;
}

export interface IModuleFigures {
  peak_bytes: number;
  moved_bytes: number;
  stall_s: number;
}

export interface IModulePair {
  module: string;
  a: IModuleFigures;
  b: IModuleFigures;
}

export interface ISideDecision {
  action: string;
  out_op: number;
  in_op: number;
  decided_by: string;
}

export interface IDecisionPair {
  storage: string;
  category: string;
  module: string;
  bytes: number;
  gap: number;
  a: ISideDecision | null;
  b: ISideDecision | null;
}

export interface ICondition {
  name: string;
  a: string | number | boolean | null;
  b: string | number | boolean | null;
}

export interface IDecisionsCompared {
  removed: number;
  added: number;
  changed: number;
  rows: IDecisionPair[];
  conditions: ICondition[];
}

export interface IComparison {
  a: ISideFacts;
  b: ISideFacts;
  /** Whether both ran the same sequence of ops. */
  same_ops: boolean;
  module_count: number;
  modules: IModulePair[];
  /** Null where one of the two is no policy. */
  decisions: IDecisionsCompared | null;
}

export interface ICompareView {
  tables: string[];
}

export type IDraft = INoDraft | IOpenDraft;

/** Read a trace file. */
export interface IOpenFileRequest {
  path: string;
}

/** Forget a trace file. */
export interface ICloseFileRequest {
  source: string;
}

/** What all questions about drawn steps name: the source, and its steps from `first` to `last`. */
export interface ISteps {
  source: string;
  first: number;
  last: number;
}

/** The tracks of a viewport of `width` x `height` pixels, from `start` to `end` on the axis. */
export interface IViewRequest extends ISteps {
  axis: Axis;
  start: number;
  end: number;
  width: number;
  height: number;
  rows: Rows;
}

/** One row of a track. */
export interface IPointRequest extends ISteps {
  axis: Axis;
  track: Track;
  row: number;
}

/** One storage, in all the drawn steps. */
export interface IStorageOfRequest extends ISteps {
  axis: Axis;
  uid: number;
}

/** The storages that are alive at a position of the axis. */
export interface IAliveRequest extends ISteps {
  axis: Axis;
  at: number;
}

/** The storages alive at a position, as a tree `by` module or by Python stack. */
export interface IIcicleRequest extends IAliveRequest {
  by: TreeOf;
}

/** What grows over all recorded steps of a source. */
export interface IGrowthOfRequest {
  source: string;
}

/** A note at a position of the axis. */
export interface INewNoteRequest extends ISteps {
  axis: Axis;
  at: number;
  text: string;
}

/** One of the notes of a source, by its number. */
export interface INoteOfRequest extends ISteps {
  index: number;
}

/** Write the recorded steps of a source, with its notes, to a file. */
export interface ISaveTraceRequest {
  source: string;
  path: string;
  overwrite?: boolean;
}

/** A stretch of the axis, to be summed up. */
export interface IRangeRequest extends ISteps {
  axis: Axis;
  start: number;
  end: number;
}

/**
 * The stall, peak or op that a query fits after (`direction` 1) or before (-1) a position of the
 * axis.
 */
export interface ISeekRequest extends ISteps {
  axis: Axis;
  at: number;
  direction: -1 | 1;
  what?: 'stall' | 'peak' | 'op';
  query?: string;
}

/** Ops and storages that a query fits. */
export interface ISearchRequest extends ISteps {
  axis: Axis;
  query: string;
}

/** The drawn storage with a key. */
export interface ILocateRequest extends ISteps {
  storage: string;
}

/** The draft of a source. */
export interface IDraftOfRequest {
  source: string;
}

/**
 * The draft of a source; `rebase`: of the policy that is in force now, with the edits of the draft
 * so far.
 */
export interface IOpenDraftRequest extends IDraftOfRequest {
  rebase?: boolean;
}

/** A change to a draft's edits; see chameleon_lab.lab.panel.editing.DraftEditor.edit. */
export interface IChangeDraftRequest extends IDraftOfRequest {
  change: Change;
  edits?: IEdit[];
  index?: number;
}

/** `count` rows of the draft's table from `first_row` on, of those that fit the query, sorted. */
export interface IPageRequest extends IDraftOfRequest {
  query: string;
  sort: DecisionSort;
  down: boolean;
  first_row: number;
  count: number;
}

/** What can be done with one storage, by its key. */
export interface IChoicesRequest extends IDraftOfRequest {
  storage: string;
}

/** Which storages an edit means. */
export interface IMatchingRequest extends IDraftOfRequest {
  edit: IEdit;
}

/** Step time against capacity; `begin`: work it out. */
export interface ICurveRequest extends IDraftOfRequest {
  begin: boolean;
}

/** Write the draft's policy to a file. */
export interface ISavePolicyRequest extends IDraftOfRequest {
  path: string;
  overwrite?: boolean;
}

/** Take the edits of a policy file. */
export interface ILoadPolicyRequest extends IDraftOfRequest {
  path: string;
}

/**
 * A rectangle of the block map: a stretch of the axis, and of the bytes of its rows from `low` to
 * `high`.
 */
export interface IBoxRequest extends ISteps {
  axis: Axis;
  start: number;
  end: number;
  low: number;
  high: number;
  rows: Rows;
}

/** One of two that are compared: a step of a source, or a policy, for which `step` says nothing. */
export interface ISide {
  source: string;
  step?: number;
}

/** Two sides, to be compared in figures. */
export interface ICompareRequest {
  a: ISide;
  b: ISide;
}

/** The curves of two sides in a viewport of `width` pixels, from `start` to `end` on the axis. */
export interface ICompareViewRequest extends ICompareRequest {
  axis: Axis;
  start: number;
  end: number;
  width: number;
}

/** Every method: its parameters and its result. */
export interface IMethods {
  hello: [Record<string, never>, IHello];
  status: [Record<string, never>, IStatus];
  open: [IOpenFileRequest, IOpened];
  close: [ICloseFileRequest, Record<string, never>];
  scene: [ISteps, IScene];
  view: [IViewRequest, IViewReply];
  point: [IPointRequest, IPoint];
  storage: [IStorageOfRequest, IStorageDetail];
  alive: [IAliveRequest, IAlive];
  icicle: [IIcicleRequest, IIcicle];
  growth: [IGrowthOfRequest, IGrowth];
  notes: [ISteps, INotes];
  note: [INewNoteRequest, INotes];
  forget_note: [INoteOfRequest, INotes];
  save_trace: [ISaveTraceRequest, ISavedTrace];
  files: [Record<string, never>, IFiles];
  range: [IRangeRequest, ISummary];
  seek: [ISeekRequest, ISeek];
  search: [ISearchRequest, ISearch];
  locate: [ILocateRequest, ILocated];
  draft: [IOpenDraftRequest, IDraft];
  edit: [IChangeDraftRequest, IDraft];
  decisions: [IPageRequest, IPage];
  choices: [IChoicesRequest, IChoices];
  matching: [IMatchingRequest, IMatched];
  changes: [IDraftOfRequest, IChanges];
  curve: [ICurveRequest, ICurve];
  dry_run: [IDraftOfRequest, IDraft];
  end_dry_run: [IDraftOfRequest, IDraft];
  enable: [IDraftOfRequest, IDraft];
  roll_back: [IDraftOfRequest, IDraft];
  save: [ISavePolicyRequest, ISaved];
  load: [ILoadPolicyRequest, IDraft];
  box: [IBoxRequest, IBoxed];
  compare: [ICompareRequest, IComparison];
  compare_view: [ICompareViewRequest, ICompareView];
}

export type Method = keyof IMethods;

/** What the kernel says unasked. */
export interface IEvents {
  status: IStatus;
  draft: IDraftNews;
}
