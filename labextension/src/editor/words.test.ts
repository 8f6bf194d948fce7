import { expect, test } from 'vitest';

import spellings from '../../../tests/unit/spellings.json?raw';
import type { IDecision, IFigures, IOpenDraft } from '../protocol';
import {
  actionName,
  atLeast,
  decisionText,
  delta,
  FIGURES,
  needed,
  parseCapacity,
  parseSize,
  ruleOfFilter,
  ruleText,
  standing,
  versus,
  who
} from './words';

const MIB = 1024 ** 2;
const DRAFT = {
  editable: true,
  exact: true,
  fits: true,
  same: false,
  staged: 2,
  follows: 3,
  plan_s: 0.4,
  findings: [],
  error: '',
  why_not_enable: '',
  waiting: false,
  dry_run: null,
  capacity_bytes: 100 * MIB,
  floor: {
    bytes: 64 * MIB,
    op: 'aten::mm',
    module: '',
    stage: 'forward',
    measured_on: 'measured on a CPU (AVX2)'
  }
} as unknown as IOpenDraft;

test.each([
  [{}, 'good', '2 changes by you, 3 follow. Valid: fits at every op. Nothing runs'],
  [{ same: true }, 'dim', 'No changes'],
  [
    { exact: false },
    'draft',
    'Estimate: the plan as it was, with your edits alone. Planning (about 400 ms)'
  ],
  [
    { fits: false, capacity_bytes: 32 * MIB },
    'lost',
    '32.0 MiB is below the floor, 64.0 MiB: aten::mm needs it at once (measured on a CPU (AVX2)).'
  ],
  [{ waiting: true }, 'good', 'In force from the next step border on'],
  [{ why_not_enable: 'This is a trace file.' }, 'good', 'This is a trace file.'],
  [
    {
      findings: [
        { fault: 'unmatched', index: 0, why: '', way_out: '', least_bytes: null, is_error: false }
      ]
    },
    'draft',
    '1 edit cannot be obeyed in full'
  ],
  [
    {
      dry_run: {
        done: false,
        started: false,
        of_draft: true,
        note: '',
        measured: null,
        steps: 1,
        settle: 1
      }
    },
    'draft',
    'begins at the next step border'
  ],
  [
    {
      dry_run: {
        done: true,
        started: true,
        of_draft: true,
        note: 'the ops changed',
        measured: null
      }
    },
    'lost',
    'ended early: the ops changed'
  ]
])('a draft with %j stands so', (change, kind, text) => {
  const said = standing({ ...DRAFT, ...change } as IOpenDraft);
  expect(said.kind).toBe(kind);
  expect(said.text).toContain(text);
});

test('differences are good or bad by what the figure means', () => {
  const now: IFigures = {
    peak_bytes: 100 * MIB,
    step_s: 1,
    stall_s: 0.1,
    overlap: 0.9,
    swapped_out_bytes: 0,
    swapped_in_bytes: 0,
    replay_s: 0,
    replayed_bytes: 0
  };
  const then = { ...now, peak_bytes: 90 * MIB, step_s: 1.1, overlap: 0.95, swapped_in_bytes: MIB };
  expect(FIGURES.map(column => delta(column, now, then))).toEqual([
    { text: '▼ 10.0 MiB', kind: 'good' },
    { text: '▲ 100 ms', kind: 'lost' },
    null,
    null,
    null,
    { text: '▲ 5.0 pt', kind: 'good' },
    { text: '▲ 1.00 MiB', kind: 'dim' }
  ]);
});

test('a dry run is judged by what was measured before it, and a draft by what is predicted', () => {
  const figures = (step_s: number): IFigures => ({
    peak_bytes: 100 * MIB,
    step_s,
    stall_s: 0.1,
    overlap: null,
    swapped_out_bytes: 0,
    swapped_in_bytes: 0,
    replay_s: 0,
    replayed_bytes: 0
  });
  const open = {
    exact: true,
    clock: 'op times of step 3',
    current: figures(1.3),
    draft: figures(1.3),
    dry_run: { of_draft: true, done: true, measured: figures(1.4), before: figures(1.5) }
  } as unknown as IOpenDraft;
  const rows = versus(open);
  expect(rows.map(row => row.name)).toEqual([
    'Current',
    'Draft',
    'Now, measured',
    'Dry run, measured'
  ]);
  const [current, draft, now, tried] = rows;
  expect([current.against, draft.against, now.against]).toEqual([null, open.current, null]);
  expect(current.title).toContain('op times of step 3');
  const step = FIGURES.find(column => column.id === 'Step time');
  expect(step && delta(step, tried.against as IFigures, tried.figures as IFigures)).toEqual({
    text: '▼ 100 ms',
    kind: 'good'
  });
  const overlap = FIGURES.find(column => column.id === 'Overlap');
  expect(overlap && delta(overlap, open.current, figures(1))).toBeNull();
  expect(versus({ ...open, dry_run: null }).map(row => row.name)).toEqual(['Current', 'Draft']);
});

test('the column of half the link stands where something is copied, and is not measured', () => {
  const half = FIGURES.find(column => column.id === 'Half link');
  const copied = { swapped_out_bytes: 0, swapped_in_bytes: 1 } as IFigures;
  expect(half?.shown?.(copied)).toBe(true);
  expect(half?.shown?.({ ...copied, swapped_in_bytes: 0 })).toBe(false);
  expect(half?.value(copied)).toBeNull();
  const [now, then] = [1, 1.5].map(half_link_step_s => ({ ...copied, half_link_step_s }));
  expect(half && delta(half, now, then)).toEqual({ text: '▲ 500 ms', kind: 'lost' });
});

test('the column of replays stands where there are some', () => {
  const replays = FIGURES.find(column => column.id === 'Replays');
  const none = { replay_s: 0 } as IFigures;
  expect(replays?.shown?.(none)).toBe(false);
  expect(replays?.shown?.({ ...none, replay_s: 1e-6 })).toBe(true);
});

interface ISpellings {
  sizes: [string, number][];
  no_sizes: string[];
  whole: number;
  fractions: [string, number][];
  no_capacities: string[];
}

/** What tests/unit/test_units.py asks of Python. */
const known = JSON.parse(spellings) as ISpellings;

test.each(known.sizes)('%j is a size of %s', (text, bytes) => {
  expect(parseSize(text)).toBe(bytes);
  expect(parseCapacity(text, known.whole)).toBe(bytes);
});

test.each(known.no_sizes)('%j is no size', text => {
  expect(parseSize(text)).toBeNull();
});

test.each(known.fractions)('%j of the whole is %s', (text, bytes) => {
  expect(parseCapacity(text, known.whole)).toBe(bytes);
});

test.each(known.no_capacities)('%j is no capacity', text => {
  expect(parseCapacity(text, known.whole)).toBeNull();
});

test.each<[string, object]>([
  [
    'h.3 >=4MiB category:activation swap',
    { module: '*h.3', min_bytes: 4 * MIB, category: 'activation' }
  ],
  ['layer.7 <1MiB', { module: '*.7', max_bytes: MIB - 1 }],
  ['>1MiB', { min_bytes: MIB + 1 }],
  ['<=1MiB', { max_bytes: MIB }],
  ['>much', {}],
  ['stage:backward', { stage: 'backward' }],
  ['stage:backward stage:forward', { stage: 'forward' }],
  ['mlp by:you stall>0 staged', { module: '*mlp*' }],
  ['mlp attn', { module: '*mlp*' }],
  ['mlp h.3', { module: '*h.3' }],
  ['keep never rematerialize declined', {}],
  ['', {}]
])('the filter %j fills in a rule as far as a rule can say it', (query, rule) => {
  expect(ruleOfFilter(query)).toEqual(rule);
});

test('rules and decisions are told in words', () => {
  expect(ruleText({ action: 'keep', module: 'h.0', min_bytes: MIB })).toBe('h.0 ≥ 1.00 MiB keep');
  expect(ruleText({ action: 'prefetch', category: 'optimizer_state', ops_earlier: -1 })).toBe(
    'optimizer state 1 op later'
  );
  const row = { after: 'swap', swaps: 2, drops: 0, ops_earlier: 5 } as IDecision;
  expect(decisionText(row)).toBe('Swap ×2, 5 ops earlier');
  expect(decisionText({ ...row, drops: 1, ops_earlier: 0 })).toBe('Swap ×2, rematerialize ×1');
  expect(decisionText({ ...row, after: 'rematerialize', drops: 3, swaps: 0, ops_earlier: 0 })).toBe(
    'Rematerialize ×3'
  );
  expect(decisionText({ ...row, swaps: 1, ops_earlier: 0, never_rematerialize: true })).toBe(
    'Swap, never rematerialize'
  );
  expect(actionName('never_touch')).toBe('Never touch');
  expect(ruleText({ action: 'never_touch' })).toBe('everything never touch');
});

test('what a newer kernel calls otherwise is shown as it is', () => {
  expect(actionName('hold_back')).toBe('Hold back');
  expect(ruleText({ action: 'hold_back' })).toBe('everything hold back');
  expect(who({ by: JSON.parse('"tuner"') })).toBe('tuner');
});

test('a capacity that is offered is never below what is needed', () => {
  expect(atLeast(3 * MIB + 1)).toBe(3 * MIB + 64 * 1024);
  expect(atLeast(100 * MIB + 1)).toBe(101 * MIB);
  expect(atLeast(100 * MIB)).toBe(100 * MIB);
});

test('what is needed is the floor, or more where edits keep more', () => {
  const finding = { fault: 'unreachable', index: 0, why: '', way_out: '', is_error: true };
  expect(needed(DRAFT)).toBe(64 * MIB);
  expect(needed({ ...DRAFT, findings: [{ ...finding, least_bytes: 80 * MIB }] })).toBe(80 * MIB);
});
