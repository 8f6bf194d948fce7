// The messages between panel and kernel. docs/protocol.md describes them; chameleon_lab/lab/protocol.py is the other side.

export const VERSION = 1;
/** The comm target that the kernel registers and the panel opens. */
export const TARGET = 'chameleon_lab';
/** The comm target that this extension registers, through which the kernel calls for the panel. */
export const PANEL_TARGET = 'chameleon_lab:panel';

export type Axis = 'time' | 'op';
export type Rows = 'storage' | 'packed';
export type Track = 'ops' | 'out' | 'in' | 'stalls' | 'replays' | 'blocks';
type PerAxis = Record<Axis, number>;

/** Categories as the kernel numbers them. */
export const CATEGORIES = [
  'parameter',
  'gradient',
  'optimizer_state',
  'activation',
  'input',
  'other'
] as const;

export interface ISteps {
  source: string;
  first: number;
  last: number;
}

export interface IHello {
  protocol: number;
  package: string;
  /** Whether a thread other than the kernel's main one answers, so that it can while a cell runs. */
  subshell: boolean;
}

export interface IStepEntry {
  index: number;
  stage: string;
  duration_s: number;
  stall_s: number;
  peak_bytes: number;
  ops: number;
}

export interface ISessionStatus {
  source: string;
  open: boolean;
  stage: string;
  device: string;
  step_count: number;
  warmup_steps: number;
  planning: boolean;
  capacity_bytes: number | null;
  peak_bytes: number;
  live_peak_bytes: number;
  host_bytes: number;
  host_peak_bytes: number;
  step_s: number;
  stall_s: number;
  overlap: number | null;
  swapped_out_bytes: number;
  swapped_in_bytes: number;
  evictions: number;
  match_rate: number;
  /** Decisions of the policy in force. */
  swaps: number;
  drops: number;
  /** Ops that ran again in the newest step, and what that took. */
  replays: number;
  replay_s: number;
  dropped_bytes: number;
  /** Planned drops of the newest step that were declined, by reason. */
  declined_drops: Record<string, number>;
  notes: string[];
  steps: IStepEntry[];
}

export interface IStatus {
  session: ISessionStatus | null;
  /** `lost`: what a file whose end is missing has lost, in words. */
  files: { source: string; path: string; steps: IStepEntry[]; lost: string | null }[];
  /** What can be a side of a comparison: the one in force, drafts, files. */
  policies: { source: string; name: string; swaps: number; drops: number }[];
}

export interface IPause {
  kind: 'idle' | 'loading' | 'cells';
  duration_s: number;
  at: PerAxis;
}

/** The smallest capacity that any policy can run a step in, and the op that sets it. */
export interface IFloor {
  bytes: number;
  op: string;
  module: string;
  stage: string;
  /** What of it is the op's own work space: other kernels may want another. */
  work_space_bytes: number;
  /** In words: what it was measured on. */
  measured_on: string;
}

export interface IScene {
  steps: {
    index: number;
    stage: string;
    ops: number;
    duration_s: number;
    begin: PerAxis;
    truncated_ops: number;
  }[];
  length: PerAxis;
  names: string[];
  stages: string[];
  layers: string[];
  modules: string[];
  /** What the user's own code calls its stretches, and how many of those there are. */
  mark_names: string[];
  marks: number;
  storages: number;
  ops: number;
  transfers: [out: number, in_: number];
  moved_bytes: [out: number, in_: number];
  hidden: [out: number | null, in_: number | null];
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
  peak: PerAxis;
  floor: IFloor;
  stacks: boolean;
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

export interface ITouchingOp extends IOp {
  touches: { count: number; bytes: number; storages: IStorage[] };
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

export interface ISummary {
  start: number;
  end: number;
  duration_s: number;
  ops: number;
  transfers: [out: number, in_: number];
  out_bytes: number;
  in_bytes: number;
  transfer_s: number;
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
  storages: (IStorage & { moved_bytes: number; stall_s: number })[];
  modules: { module: string; busy_s: number }[];
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

export type TreeOf = 'module' | 'stack';

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
  at: number;
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
  at: PerAxis;
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
  marks: number[];
}

export interface ISeek {
  stall: IStall | null;
  peak: { at: number; bytes: number; op: IOp } | null;
  op: IOp | null;
  number: number;
  count: number;
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
  link?: { out_bytes_per_s: number | null; in_bytes_per_s: number | null };
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
  predicted: IFigures;
  /** What was measured before it, which it is judged against. */
  before: IFigures | null;
  measured: (IFigures & { match_rate: number; evictions: number }) | null;
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
  /** Measured: the median of the newest steps, beside a dry run of those before it; null where none has ended. */
  now: IFigures | null;
  current: IPlanFigures;
  draft: IPlanFigures | null;
  capacity_bytes: number;
  own_capacity_bytes: number | null;
  live_peak_bytes: number;
  compute_s: number;
  floor: IFloor;
  /** Whether nobody knows how fast the link is. */
  link_assumed: boolean;
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

export type IDraft = INoDraft | IOpenDraft;

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
  /** What its replays take, and what one for its longest gap would; null where it cannot be made again. */
  replay_s: number;
  replay_cost_s: number | null;
  /** Whether an edit forbids to rematerialise it. */
  never_rematerialise: boolean;
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
  news: number;
  total: number;
  bytes: number;
  /** Without the filter. */
  all: number;
  start: number;
  rows: IDecision[];
}

export interface IGap {
  gap: number;
  after: { op: number; name: string; module: string };
  before: { op: number; name: string; module: string } | null;
  ops: number;
  seconds: number;
  action: string;
  lead_ops: number | null;
  lead_s: number | null;
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
  effect: {
    step_s: number;
    stall_s: number;
    replay_s: number;
    peak_bytes: number;
    others: number;
  } | null;
}

/** What moving a storage out and in takes of the link, beside what making it again takes of the device. */
export interface ICost {
  copy_s: number;
  replay_s: number | null;
  /** Ops that run again, in order. */
  replay_ops: string[];
  why_not_replay: string;
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
  counts: [added: number, removed: number, changed: number];
  rows: IChangeRow[];
  conditions: string[];
}

export interface ICurve {
  points: { capacity_bytes: number; step_s: number; stall_s: number }[];
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

export interface IBoxed extends IBox {
  rows: Rows;
  count: number;
  bytes: number;
  away_bytes: number;
  categories: ITotal[];
  modules: ITotal[];
  storages: (IStorage & { resident: boolean })[];
}

/** One of two that are compared: a step of a source, or a policy (whose `step` says nothing). */
export interface ISide {
  source: string;
  step: number;
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
  step: number;
  stage: string;
  length: PerAxis;
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
  free_op: number;
  in_op: number;
  use_op: number;
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

export interface IComparison {
  a: ISideFacts;
  b: ISideFacts;
  /** Whether both ran the same sequence of ops. */
  same_ops: boolean;
  module_count: number;
  modules: IModulePair[];
  /** Null where one of the two is no policy. */
  decisions: {
    removed: number;
    added: number;
    changed: number;
    rows: IDecisionPair[];
    conditions: {
      name: string;
      a: string | number | boolean | null;
      b: string | number | boolean | null;
    }[];
  } | null;
}

export interface ICompareView {
  axis: Axis;
  start: number;
  end: number;
  tables: string[];
}

type OnScene<P> = ISteps & P;
type OnDraft<P> = { source: string } & P;

/** Every method: its parameters and its result. */
export interface IMethods {
  hello: [Record<string, never>, IHello];
  status: [Record<string, never>, IStatus];
  open: [{ path: string }, { source: string }];
  close: [{ source: string }, Record<string, never>];
  scene: [ISteps, IScene];
  view: [
    OnScene<{ axis: Axis; start: number; end: number; width: number; height: number; rows: Rows }>,
    IViewReply
  ];
  point: [OnScene<{ axis: Axis; track: Track; row: number }>, IPoint];
  storage: [OnScene<{ axis: Axis; uid: number }>, IStorageDetail];
  alive: [OnScene<{ axis: Axis; at: number }>, IAlive];
  icicle: [OnScene<{ axis: Axis; at: number; by: TreeOf }>, IIcicle];
  growth: [{ source: string }, IGrowth];
  notes: [ISteps, { notes: INote[] }];
  note: [OnScene<{ axis: Axis; at: number; text: string }>, { notes: INote[] }];
  forget_note: [OnScene<{ index: number }>, { notes: INote[] }];
  save_trace: [
    { source: string; path: string; overwrite?: boolean },
    { path: string; bytes: number; steps: number }
  ];
  files: [Record<string, never>, { paths: string[] }];
  range: [OnScene<{ axis: Axis; start: number; end: number }>, ISummary];
  seek: [
    OnScene<{
      axis: Axis;
      at: number;
      direction: -1 | 1;
      what?: 'stall' | 'peak' | 'op';
      query?: string;
    }>,
    ISeek
  ];
  search: [OnScene<{ axis: Axis; query: string }>, ISearch];
  locate: [OnScene<{ storage: string }>, { uid: number | null }];
  draft: [OnDraft<{ rebase?: boolean }>, IDraft];
  edit: [OnDraft<{ change: Change; edits?: IEdit[]; index?: number }>, IDraft];
  decisions: [
    OnDraft<{ query: string; sort: DecisionSort; down: boolean; first_row: number; count: number }>,
    IPage
  ];
  choices: [OnDraft<{ storage: string }>, IChoices];
  matching: [OnDraft<{ edit: IEdit }>, { storages: number; movable: number; bytes: number }];
  changes: [{ source: string }, IChanges];
  curve: [OnDraft<{ begin: boolean }>, ICurve];
  dry_run: [{ source: string }, IDraft];
  end_dry_run: [{ source: string }, IDraft];
  enable: [{ source: string }, IDraft];
  roll_back: [{ source: string }, IDraft];
  save: [OnDraft<{ path: string; overwrite?: boolean }>, { path: string; bytes: number }];
  load: [OnDraft<{ path: string }>, IDraft];
  box: [OnScene<IBox & { axis: Axis; rows: Rows }>, IBoxed];
  compare: [{ a: ISide; b: ISide }, IComparison];
  compare_view: [
    { a: ISide; b: ISide; axis: Axis; start: number; end: number; width: number },
    ICompareView
  ];
}

export type Method = keyof IMethods;

export interface IRequest {
  version: number;
  type: 'request';
  id: number;
  method: Method;
  params: object;
}

export type Message =
  | { type: 'reply'; id: number; result: unknown }
  | { type: 'error'; id: number | null; error: LabError }
  | { type: 'event'; name: string; body: unknown };

/** What the kernel could not do, or what is wrong with its message; made to be shown. */
export class LabError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly hint = ''
  ) {
    super(message);
  }
}

/** Check a message from the kernel; throws a LabError for one that is malformed or of another version. */
export function parseMessage(data: unknown): Message {
  if (!isObject(data)) {
    throw new LabError('malformed', 'The kernel sent something that is no message.');
  }
  const { version, type, id } = data;
  if (version !== VERSION) {
    throw new LabError(
      'version',
      `The panel speaks protocol version ${VERSION} and the kernel ${String(version)}.`,
      'Install the same chameleon-lab for JupyterLab and for the kernel, restart the kernel and reload the page.'
    );
  }
  if (type === 'reply' && typeof id === 'number' && isObject(data.result)) {
    return { type, id, result: data.result };
  }
  if (type === 'event' && typeof data.name === 'string' && isObject(data.body)) {
    return { type, name: data.name, body: data.body };
  }
  if (type === 'error' && (typeof id === 'number' || id === null) && isObject(data.error)) {
    const { code, message, hint } = data.error;
    if (typeof code === 'string' && typeof message === 'string' && typeof hint === 'string') {
      return { type, id, error: new LabError(code, message, hint) };
    }
  }
  throw new LabError(
    'malformed',
    `The kernel sent a message of type ${String(type)} that cannot be read.`
  );
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
