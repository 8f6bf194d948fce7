// What the policy editor calls things, and what it says of a draft.

import { formatBytes, formatCount, formatPercent, formatSeconds, plural } from '../format';
import type { IDecision, IDryRun, IEdit, IFigures, IOpenDraft } from '../protocol';
import { inWords } from '../words';

/** An action by its name; the kernel may know more of them than this panel. */
export function actionName(action: string): string {
  const words = action.replaceAll('_', ' ');
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const MARKS: Record<string, string> = {
  keep: '▪',
  swap: '⇄',
  never_touch: '⚓',
  rematerialize: '↻',
  never_rematerialize: '⊘'
};

/** A mark that tells actions apart without color. */
export function actionMark(action: string): string {
  return MARKS[action] ?? '•';
}

const WHO: Record<IDecision['by'], string> = {
  you: 'you',
  rule: 'you, rule',
  follows: 'follows',
  planner: 'planner'
};

/** Who decided. */
export function who(row: IDecision): string {
  return WHO[row.by];
}

/** What the draft does with a storage, in the table's words. */
export function decisionText(row: IDecision): string {
  const both = row.swaps > 0 && row.drops > 0;
  const count = Math.max(row.swaps, row.drops);
  const times = count > 1 ? ` ×${count}` : '';
  const other = both
    ? row.drops > row.swaps
      ? `, swap ×${row.swaps}`
      : `, rematerialize ×${row.drops}`
    : '';
  const never = row.never_rematerialize ? ', never rematerialize' : '';
  const ops = row.ops_earlier;
  const lead = ops ? `, ${plural(Math.abs(ops), 'op')} ${ops > 0 ? 'earlier' : 'later'}` : '';
  return `${actionName(row.after)}${times}${other}${lead}${never}`;
}

/** An edit without a storage, as its chip says it. */
export function ruleText(edit: IEdit): string {
  const parts = [
    edit.module,
    edit.category?.replaceAll('_', ' '),
    edit.stage,
    edit.min_bytes !== undefined && `≥ ${formatBytes(edit.min_bytes)}`,
    edit.max_bytes !== undefined && `≤ ${formatBytes(edit.max_bytes)}`
  ].filter(Boolean);
  const ops = edit.ops_earlier;
  const what = ops
    ? `${plural(Math.abs(ops), 'op')} ${ops > 0 ? 'earlier' : 'later'}`
    : actionName(edit.action).toLowerCase();
  return `${parts.join(' ') || 'everything'} ${what}`;
}

export interface ISaid {
  text: string;
  /** `lost`: it stops the draft. `draft`: staged. `good`: nothing is in the way. */
  kind: 'lost' | 'draft' | 'good' | 'dim';
}

/** One line on where the draft stands. */
export function standing(draft: IOpenDraft): ISaid {
  const changes = `${plural(draft.staged, 'change')} by you`;
  const mine = draft.follows ? `${changes}, ${formatCount(draft.follows)} follow` : changes;
  const running = draft.dry_run && !draft.dry_run.done ? draft.dry_run : null;
  if (running) {
    return { text: progress(running), kind: 'draft' };
  }
  if (!draft.exact) {
    const how = draft.plan_s > 0.05 ? ` (about ${formatSeconds(draft.plan_s)})` : '';
    return {
      text: `${mine}. Estimate: the plan as it was, with your edits alone. Planning${how}…`,
      kind: 'draft'
    };
  }
  if (!draft.fits) {
    return {
      text: `The draft does not fit, so dry run and enable stay off. ${reason(draft)}`,
      kind: 'lost'
    };
  }
  if (draft.waiting) {
    return { text: 'In force from the next step border on.', kind: 'good' };
  }
  const ended = draft.dry_run?.of_draft && draft.dry_run.note;
  if (ended) {
    return { text: `The dry run ended early: ${ended}.`, kind: 'lost' };
  }
  const faults = new Set(draft.findings.map(finding => finding.index)).size;
  const warned = faults ? `${plural(faults, 'edit')} cannot be obeyed in full: see Changes. ` : '';
  if (draft.same) {
    return { text: `${warned}No changes: the draft is what is in force.`, kind: 'dim' };
  }
  return {
    text: `${mine}. ${warned || 'Valid: fits at every op. '}${draft.why_not_enable || 'Nothing runs with it before Enable.'}`,
    kind: faults ? 'draft' : 'good'
  };
}

function reason(draft: IOpenDraft): string {
  if (draft.capacity_bytes < draft.floor.bytes) {
    return `${formatBytes(draft.capacity_bytes)} is below the floor, ${formatBytes(draft.floor.bytes)}: ${draft.floor.op} needs it at once (${draft.floor.measured_on}).`;
  }
  const finding = draft.findings.find(finding => finding.is_error);
  return finding ? `${capital(inWords(finding.why))}.` : inWords(draft.error);
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** How far a dry run has come. */
export function progress(run: IDryRun): string {
  if (!run.started) {
    return 'Dry run: begins at the next step border. Train in a cell, or let the one that runs go on.';
  }
  return run.measured
    ? 'Dry run: measured.'
    : `Dry run: ${plural(run.settle, 'step')} to settle, then ${plural(run.steps, 'step')} measured…`;
}

export interface IFigureColumn {
  name: string;
  /** Null where it was not measured, or means nothing. */
  value(figures: IFigures): number | null;
  format(value: number): string;
  /** How a difference is written. */
  apart(difference: number): string;
  /** Whether more is worse: 1, better: -1, or neither: 0. */
  worse: 1 | -1 | 0;
  /** Columns that stand only where one of the figures has something to show. */
  shown?(figures: IFigures): boolean;
}

/** The columns of the comparison, as the bottom bar and the kernel's dry run have them. */
export const FIGURES: IFigureColumn[] = [
  {
    name: 'Peak',
    value: f => f.peak_bytes,
    format: formatBytes,
    apart: formatBytes,
    worse: 1
  },
  {
    name: 'Step time',
    value: f => f.step_s,
    format: formatSeconds,
    apart: formatSeconds,
    worse: 1
  },
  { name: 'Stall', value: f => f.stall_s, format: formatSeconds, apart: formatSeconds, worse: 1 },
  {
    name: 'Replays',
    value: f => f.replay_s,
    format: formatSeconds,
    apart: formatSeconds,
    worse: 1,
    shown: f => f.replay_s > 0
  },
  {
    name: 'Overlap',
    value: f => f.overlap,
    format: formatPercent,
    apart: share => `${(100 * share).toFixed(1)} pt`,
    worse: -1
  },
  {
    name: 'Moved',
    value: f => f.swapped_out_bytes + f.swapped_in_bytes,
    format: formatBytes,
    apart: formatBytes,
    worse: 0
  }
];

/** One row of the bottom bar: figures, and those that they are judged by. */
export interface IVersus {
  name: string;
  kind: string;
  figures: IFigures | null;
  against: IFigures | null;
  title: string;
}

/** The rows of the bottom bar: predictions against each other, and what was measured against what was measured. */
export function versus(open: IOpenDraft): IVersus[] {
  const { dry_run: run } = open;
  const tried = run?.of_draft && run.measured ? run.measured : null;
  const predicted = `Predicted: ${open.clock}`;
  const rows: IVersus[] = [
    { name: 'Current', kind: 'cl-current', figures: open.current, against: null, title: predicted },
    {
      name: 'Draft',
      kind: open.exact ? 'cl-draft-row' : 'cl-draft-row cl-estimate',
      figures: open.draft,
      against: open.current,
      title: predicted
    }
  ];
  if (tried) {
    rows.push(
      {
        name: 'Now, measured',
        kind: 'cl-now',
        figures: run?.before ?? null,
        against: null,
        title: 'Measured: the median of the newest steps before the dry run'
      },
      {
        name: 'Dry run, measured',
        kind: 'cl-tried',
        figures: tried,
        against: run?.before ?? null,
        title: 'Measured, and judged by what was measured before it'
      }
    );
  }
  return rows;
}

export interface IDelta {
  text: string;
  kind: 'good' | 'lost' | 'dim';
}

/** How a figure differs from the one that it is judged by; null where it does not, or one is unknown. */
export function delta(column: IFigureColumn, now: IFigures, then: IFigures): IDelta | null {
  const [before, after] = [column.value(now), column.value(then)];
  if (before === null || after === null) {
    return null;
  }
  const difference = after - before;
  if (Math.abs(difference) < Math.abs(before) * 5e-4 + 1e-9) {
    return null;
  }
  const up = difference > 0;
  const kind = column.worse === 0 ? 'dim' : up === (column.worse === 1) ? 'lost' : 'good';
  return { text: `${up ? '▲' : '▼'} ${column.apart(Math.abs(difference))}`, kind };
}

/** The smallest capacity that the step can run in, with the edits as far as that is known. */
export function needed({ floor, findings }: IOpenDraft): number {
  return Math.max(floor.bytes, ...findings.map(finding => finding.least_bytes ?? 0));
}

/** A capacity of at least so many bytes, as it is offered: in steps of 64 KiB, and in whole MiB from 64 MiB on. */
export function atLeast(bytes: number): number {
  const unit = bytes < 64 * 1024 ** 2 ? 64 * 1024 : 1024 ** 2;
  return Math.ceil(bytes / unit) * unit;
}

const NUMBER = /^\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-z%]*)\s*$/i;
const UNIT = /^(?:([kmgt])(i?)(b?)|b?)$/;
/** A number that is not whole and has no unit is bytes from here up: below, it may be a fraction that went wrong. */
const FEWEST_BYTES = 1024;

/**
 * A size that a person wrote, such as `512MiB`, `1.5 GiB` or `1e9`, in bytes; null where it is none. It reads what
 * `parse_bytes` in chameleon_lab/util/units.py reads.
 */
export function parseSize(text: string): number | null {
  const [, number, unit] = NUMBER.exec(text) ?? [];
  const named = number === undefined ? null : UNIT.exec(unit.toLowerCase());
  if (!named) {
    return null;
  }
  const [, letter, binary, b] = named;
  const scale = letter ? (b && !binary ? 1000 : 1024) ** ' kmgt'.indexOf(letter) : 1;
  const size = Number(number) * scale;
  if (!unit && !/^[0-9]+$/.test(number) && size < FEWEST_BYTES) {
    return null;
  }
  return size >= 1 && size < 2 ** 53 ? Math.trunc(size) : null;
}

/**
 * A capacity in bytes: a size, or a fraction of `whole`, such as `60%` or `0.6`; null where it is neither. It reads
 * what `parse_capacity` in chameleon_lab/util/units.py reads.
 */
export function parseCapacity(text: string, whole: number): number | null {
  const [, number, unit] = NUMBER.exec(text) ?? [];
  if (number !== undefined && (unit === '%' || (!unit && !/^[0-9]+$/.test(number)))) {
    const fraction = Number(number) / (unit ? 100 : 1);
    if (fraction > 0 && fraction <= 1) {
      return Math.max(Math.trunc(fraction * whole), 1);
    }
  }
  return parseSize(text);
}

/** The rule that a filter text asks for, as far as a rule can say it. */
export function ruleOfFilter(query: string): Partial<IEdit> {
  let rule: Partial<IEdit> = {};
  for (const term of query.split(/\s+/).filter(Boolean)) {
    rule = { ...rule, ...(ruleOfTerm(term) ?? ruleOfWord(term, rule)) };
  }
  return rule;
}

/** Of a size, a field or a layer, the last one counts; null for another term. */
function ruleOfTerm(term: string): Partial<IEdit> | null {
  const size = /^([<>])(=?)(.+)$/.exec(term);
  if (size) {
    return ruleOfSize(size[1] === '>', size[2] !== '', parseSize(size[3]));
  }
  const field = /^(stage|category):(.+)$/.exec(term);
  if (field) {
    return { [field[1]]: field[2] };
  }
  const layer = /^([A-Za-z_]\w*)\.(\d+)$/.exec(term);
  if (layer) {
    return { module: layer[1] === 'layer' ? `*.${layer[2]}` : `*${layer[1]}.${layer[2]}` };
  }
  return null;
}

function ruleOfSize(larger: boolean, orEqual: boolean, bytes: number | null): Partial<IEdit> {
  if (bytes === null) {
    return {};
  }
  const apart = orEqual ? 0 : 1;
  return larger ? { min_bytes: bytes + apart } : { max_bytes: bytes - apart };
}

/** A word is part of a module's name, where none is asked for yet; what is decided about a storage is no word. */
function ruleOfWord(term: string, rule: Partial<IEdit>): Partial<IEdit> {
  const decided = /:|^stall>|^(keep|swap|never\w*|remat\w*|staged|declined)$/.test(term);
  return decided || rule.module ? {} : { module: `*${term}*` };
}
