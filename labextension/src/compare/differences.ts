// The figures of two sides and what lies between them, in words; and which way is the better one.

import { formatBytes, formatCount, formatPercent, formatSeconds, NOTHING } from '../format';
import type { IComparison, ISideDecision, ISideFigures } from '../protocol';
import { trans } from '../texts';

type Kind = 'bytes' | 'seconds' | 'share' | 'count';

/** `less`: the smaller one is better; `more`: the larger; `neither`. */
type Better = 'less' | 'more' | 'neither';

const FIGURES: [name: () => string, key: keyof ISideFigures, kind: Kind, better: Better][] = [
  [() => trans.__('Peak'), 'peak_bytes', 'bytes', 'less'],
  [() => trans.__('Unswapped'), 'live_peak_bytes', 'bytes', 'neither'],
  [() => trans.__('Capacity'), 'capacity_bytes', 'bytes', 'neither'],
  [() => trans.__('Step time'), 'step_s', 'seconds', 'less'],
  [() => trans.__('Stall'), 'stall_s', 'seconds', 'less'],
  [() => trans.__('· for swap-outs'), 'stall_out_s', 'seconds', 'less'],
  [() => trans.__('· late prefetches'), 'stall_prefetch_s', 'seconds', 'less'],
  [() => trans.__('· on demand'), 'stall_demand_s', 'seconds', 'less'],
  [() => trans.__('Replays'), 'replay_s', 'seconds', 'less'],
  [() => trans.__('Made again'), 'replayed_bytes', 'bytes', 'neither'],
  [() => trans.__('Overlap'), 'overlap', 'share', 'more'],
  [() => trans.__('Swapped out'), 'out_bytes', 'bytes', 'neither'],
  [() => trans.__('Swapped in'), 'in_bytes', 'bytes', 'neither'],
  [() => trans.__('Ops'), 'ops', 'count', 'neither'],
  [() => trans.__('Storages'), 'storages', 'count', 'neither']
];

/** Not worth a line where neither side has any. */
const OPTIONAL = new Set<keyof ISideFigures>(['replay_s', 'replayed_bytes']);

export interface IFigureRow {
  name: string;
  a: string;
  b: string;
  /** How far b is from a, or empty where they are alike. */
  apart: string;
  verdict: 'better' | 'worse' | '';
}

const WRITE: Record<Kind, (value: number) => string> = {
  bytes: formatBytes,
  seconds: formatSeconds,
  share: formatPercent,
  count: formatCount
};

/** With its sign; the minus is a real one. */
export function signed(value: number, write: (value: number) => string): string {
  return value === 0 ? '0' : `${value > 0 ? '+' : '−'}${write(Math.abs(value))}`;
}

export function figureRows(a: ISideFigures, b: ISideFigures): IFigureRow[] {
  const told = FIGURES.filter(([, key]) => !OPTIONAL.has(key) || a[key] || b[key]);
  return told.map(([name, key, kind, better]) => {
    const [x, y] = [a[key], b[key]];
    // A capacity that nobody set is none; a share of nothing is no figure.
    const write = (value: number | null) =>
      value === null
        ? kind === 'share'
          ? NOTHING
          : trans._p('capacity', 'none')
        : WRITE[kind](value);
    const row: IFigureRow = { name: name(), a: write(x), b: write(y), apart: '', verdict: '' };
    if (x === null || y === null || x === y) {
      return row;
    }
    const by = y - x;
    if (kind === 'share') {
      row.apart = trans.__(
        '%1 pt',
        signed(100 * by, value => value.toFixed(1))
      );
    } else {
      const share = x ? ` (${signed((100 * by) / x, value => value.toFixed(1))} %)` : '';
      row.apart = `${signed(by, WRITE[kind])}${share}`;
    }
    if (better !== 'neither') {
      row.verdict = by < 0 === (better === 'less') ? 'better' : 'worse';
    }
    return row;
  });
}

/** A decision in few words; none at all means that the storage is kept. */
export function decisionText(decision: ISideDecision | null): string {
  if (!decision || decision.action === 'keep') {
    return trans.__('keep');
  }
  const { action, out_op: out, in_op: back } = decision;
  if (action === 'rematerialize') {
    return trans.__('drop after op %1, replay before op %2', formatCount(out), formatCount(back));
  }
  if (action !== 'swap') {
    return action;
  }
  return back < 0
    ? trans.__('swap, out after op %1', formatCount(out))
    : trans.__('swap, out after op %1, in before op %2', formatCount(out), formatCount(back));
}

/** What else differs between two policies, as lines of text. */
export function conditionLines(decisions: NonNullable<IComparison['decisions']>): string[] {
  const write = (name: string, value: string | number | boolean | null) =>
    typeof value === 'number' && name.endsWith('bytes') ? formatBytes(value) : String(value);
  return decisions.conditions.map(({ name, a, b }) => {
    const assumed = /^assumed\.(.*)$/.exec(name);
    const told = assumed ? trans.__('made for %1', assumed[1]) : name;
    return `${told}: ${write(name, a)} → ${write(name, b)}`;
  });
}
