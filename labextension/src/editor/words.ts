// What the policy editor calls things, and what it says of a draft.

import { counted } from '../counts';
import { formatBytes, formatCount, formatPercent, formatSeconds } from '../format';
import type { IDecision, IDryRun, IEdit, IFigures, IOpenDraft, IPlanFigures } from '../protocol';
import { trans } from '../texts';
import { categoryName, inWords, overlapWords } from '../words';

const ACTION_NAMES: Record<string, () => string> = {
  keep: () => trans._p('decision', 'Keep'),
  swap: () => trans.__('Swap'),
  never_touch: () => trans.__('Never touch'),
  rematerialize: () => trans.__('Rematerialize'),
  never_rematerialize: () => trans.__('Never rematerialize')
};

/** An action by its name; the kernel may know more of them than this panel. */
export function actionName(action: string): string {
  return ACTION_NAMES[action]?.() ?? capital(action.replaceAll('_', ' '));
}

/** As a rule's chip says it, after what it is for. */
const RULED: Record<string, () => string> = {
  keep: () => trans.__('keep'),
  swap: () => trans.__('swap'),
  never_touch: () => trans.__('never touch'),
  rematerialize: () => trans.__('rematerialize'),
  never_rematerialize: () => trans.__('never rematerialize')
};

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

const WHO: Record<IDecision['by'], () => string> = {
  you: () => trans.__('you'),
  rule: () => trans.__('you, rule'),
  follows: () => trans.__('follows'),
  planner: () => trans.__('planner')
};

/** Who decided. */
export function who(row: Pick<IDecision, 'by'>): string {
  return WHO[row.by]?.() ?? row.by;
}

/** How much earlier or later the bytes come back. */
function leadText(ops: number): string {
  const count = counted.ops(Math.abs(ops));
  return ops > 0 ? trans.__('%1 earlier', count) : trans.__('%1 later', count);
}

/** What the draft does with a storage, in the table's words. */
export function decisionText(row: IDecision): string {
  const both = row.swaps > 0 && row.drops > 0;
  const count = Math.max(row.swaps, row.drops);
  const times = count > 1 ? ` ×${count}` : '';
  const other =
    row.drops > row.swaps
      ? trans.__('swap ×%1', row.swaps)
      : trans.__('rematerialize ×%1', row.drops);
  return [
    actionName(row.after) + times,
    both && other,
    row.ops_earlier && leadText(row.ops_earlier),
    row.never_rematerialize && trans.__('never rematerialize')
  ]
    .filter(Boolean)
    .join(', ');
}

/** An edit without a storage, as its chip says it. */
export function ruleText(edit: IEdit): string {
  const parts = [
    edit.module,
    edit.category && categoryName(edit.category),
    edit.stage,
    edit.min_bytes !== undefined && `≥ ${formatBytes(edit.min_bytes)}`,
    edit.max_bytes !== undefined && `≤ ${formatBytes(edit.max_bytes)}`
  ].filter(Boolean);
  const { action, ops_earlier: ops } = edit;
  const what = ops ? leadText(ops) : (RULED[action]?.() ?? action.replaceAll('_', ' '));
  return `${parts.join(' ') || trans.__('everything')} ${what}`;
}

export interface ISaid {
  text: string;
  /** `lost`: it stops the draft. `draft`: staged. `good`: nothing is in the way. */
  kind: 'lost' | 'draft' | 'good' | 'dim';
}

/** One line on where the draft stands. */
export function standing(draft: IOpenDraft): ISaid {
  const changes = counted.changes(draft.staged);
  const mine = draft.follows
    ? trans._n(
        '%2 by you, %3 follow',
        '%2 by you, %3 follow',
        draft.follows,
        changes,
        formatCount(draft.follows)
      )
    : trans.__('%1 by you', changes);
  const running = draft.dry_run && !draft.dry_run.done ? draft.dry_run : null;
  if (running) {
    return { text: progress(running), kind: 'draft' };
  }
  if (!draft.exact) {
    const estimate = trans.__('%1. Estimate: the plan as it was, with your edits alone.', mine);
    const planning =
      draft.plan_s > 0.05
        ? trans.__('Planning (about %1)…', formatSeconds(draft.plan_s))
        : trans.__('Planning…');
    return { text: `${estimate} ${planning}`, kind: 'draft' };
  }
  if (!draft.fits) {
    return {
      text: `${trans.__('The draft does not fit, so dry run and enable stay off.')} ${reason(draft)}`,
      kind: 'lost'
    };
  }
  if (draft.waiting) {
    return { text: trans.__('In force from the next step border on.'), kind: 'good' };
  }
  const ended = draft.dry_run?.of_draft && draft.dry_run.note;
  if (ended) {
    return { text: trans.__('The dry run ended early: %1.', ended), kind: 'lost' };
  }
  const faults = new Set(draft.findings.map(finding => finding.index)).size;
  const warned = faults
    ? trans._n(
        '%2 edit cannot be obeyed in full: see Changes.',
        '%2 edits cannot be obeyed in full: see Changes.',
        faults,
        formatCount(faults)
      )
    : '';
  if (draft.same) {
    const same = trans.__('No changes: the draft is what is in force.');
    return { text: warned ? `${warned} ${same}` : same, kind: 'dim' };
  }
  const fits = warned || trans.__('Valid: fits at every op.');
  const next = draft.why_not_enable || trans.__('Nothing runs with it before Enable.');
  return { text: `${mine}. ${fits} ${next}`, kind: faults ? 'draft' : 'good' };
}

function reason(draft: IOpenDraft): string {
  if (draft.capacity_bytes < draft.floor.bytes) {
    return trans.__(
      '%1 is below the floor, %2: %3 needs it at once (%4).',
      formatBytes(draft.capacity_bytes),
      formatBytes(draft.floor.bytes),
      draft.floor.op,
      draft.floor.measured_on
    );
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
    return trans.__(
      'Dry run: begins at the next step border. Train in a cell, or let the one that runs go on.'
    );
  }
  return run.measured
    ? trans.__('Dry run: measured.')
    : trans.__(
        'Dry run: %1 to settle, then %2 measured…',
        counted.steps(run.settle),
        counted.steps(run.steps)
      );
}

export interface IFigureColumn {
  /** What style sheets call it. */
  id: string;
  name(): string;
  /** What its head says on hover. */
  hint?(): string;
  /** Null where it was not measured, or means nothing. */
  value(figures: IFigures & Partial<IPlanFigures>): number | null;
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
    id: 'Peak',
    name: () => trans.__('Peak'),
    value: f => f.peak_bytes,
    format: formatBytes,
    apart: formatBytes,
    worse: 1
  },
  {
    id: 'Step time',
    name: () => trans.__('Step time'),
    value: f => f.step_s,
    format: formatSeconds,
    apart: formatSeconds,
    worse: 1
  },
  {
    id: 'Half link',
    name: () => trans.__('At half the link'),
    hint: () =>
      trans.__('What a step is predicted to take while others use half of the link to the host'),
    value: f => f.half_link_step_s ?? null,
    format: formatSeconds,
    apart: formatSeconds,
    worse: 1,
    shown: f => f.swapped_out_bytes + f.swapped_in_bytes > 0
  },
  {
    id: 'Stall',
    name: () => trans.__('Stall'),
    value: f => f.stall_s,
    format: formatSeconds,
    apart: formatSeconds,
    worse: 1
  },
  {
    id: 'Replays',
    name: () => trans.__('Replays'),
    value: f => f.replay_s,
    format: formatSeconds,
    apart: formatSeconds,
    worse: 1,
    shown: f => f.replay_s > 0
  },
  {
    id: 'Overlap',
    name: () => trans.__('Overlap'),
    hint: overlapWords,
    value: f => f.overlap,
    format: formatPercent,
    apart: share => trans.__('%1 pt', (100 * share).toFixed(1)),
    worse: -1
  },
  {
    id: 'Moved',
    name: () => trans.__('Moved'),
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
  const predicted = trans.__('Predicted: %1', open.clock);
  const rows: IVersus[] = [
    {
      name: trans.__('Current'),
      kind: 'cl-current',
      figures: open.current,
      against: null,
      title: predicted
    },
    {
      name: trans.__('Draft'),
      kind: open.exact ? 'cl-draft-row' : 'cl-draft-row cl-estimate',
      figures: open.draft,
      against: open.current,
      title: predicted
    }
  ];
  if (tried) {
    rows.push(
      {
        name: trans.__('Now, measured'),
        kind: 'cl-now',
        figures: run?.before ?? null,
        against: null,
        title: trans.__('Measured: the median of the newest steps before the dry run')
      },
      {
        name: trans.__('Dry run, measured'),
        kind: 'cl-tried',
        figures: tried,
        against: run?.before ?? null,
        title: trans.__('Measured, and judged by what was measured before it')
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
