import { afterEach, expect, test } from 'vitest';

import type { ICurve, IOpenDraft } from '../protocol';
import { english, speak } from '../texts';
import { axesOf, between, curveWords, draftPoint, plotCurve } from './curvePlot';

const MIB = 1024 ** 2;
const OPEN = {
  floor: { bytes: 64 * MIB, op: 'aten::mm', module: '', measured_on: 'measured on a CPU' },
  live_peak_bytes: 128 * MIB,
  capacity_bytes: 96 * MIB,
  compute_s: 1,
  current: { capacity_bytes: 80 * MIB, step_s: 1.2 },
  draft: { step_s: 1.1 }
} as unknown as IOpenDraft;
const CURVE = {
  points: [
    { capacity_bytes: 64 * MIB, step_s: Number.POSITIVE_INFINITY },
    { capacity_bytes: 72 * MIB, step_s: 1.5 },
    { capacity_bytes: 96 * MIB, step_s: 1.1 },
    { capacity_bytes: 128 * MIB, step_s: 1 }
  ],
  left: 0,
  of: 13,
  knee_bytes: 96 * MIB,
  within: 0.1
} as ICurve;
const FIRST = { ...CURVE, points: CURVE.points.slice(0, 1), left: 12, knee_bytes: null };

function drawn(change: object, curve: ICurve | null, dragged: number | null = null, width = 400) {
  const open = { ...OPEN, ...change } as IOpenDraft;
  const axes = axesOf(open, curve, width);
  const draft = draftPoint(open, curve, dragged, axes);
  const plot = plotCurve(open, curve, draft, axes);
  return { axes, draft, ...plot, words: curveWords(open, curve, draft) };
}

afterEach(() => speak(english));

test('the range goes from the floor to what is alive, or to the capacity above it', () => {
  expect(drawn({}, null).axes).toMatchObject({ low: 64 * MIB, high: 128 * MIB });
  expect(drawn({ capacity_bytes: 256 * MIB }, null).axes.high).toBe(256 * MIB);
  const { low, high, x } = drawn({ live_peak_bytes: 0, capacity_bytes: 0 }, null).axes;
  expect(high).toBe(low + 1);
  expect(x(high)).toBeGreaterThan(x(low));
});

test('more room is to the right, and a longer step is higher', () => {
  const { low, high, most, x, y } = drawn({}, CURVE).axes;
  expect(x(low)).toBeLessThan(x(high));
  expect(x(high)).toBeLessThan(400);
  expect(y(1.5)).toBeLessThan(y(1));
  expect(most).toBeCloseTo(1.5 * 1.02); // a step that cannot run makes the axis no longer
});

test.each<[string, object, ICurve | null, number | null, string[]]>([
  ['without a curve', {}, null, null, ['in force', 'draft']],
  ['of one point', {}, FIRST, null, ['in force', 'draft']],
  ['whole', {}, CURVE, null, ['planned, no edits', 'in force', 'draft', 'knee']],
  [
    'without a knee',
    {},
    { ...CURVE, knee_bytes: null },
    null,
    ['planned, no edits', 'in force', 'draft']
  ],
  ['of a draft that is not planned', { draft: null }, null, null, ['in force']],
  ['dragged to where no step runs', {}, CURVE, 65 * MIB, ['planned, no edits', 'in force', 'knee']]
])('the drawing %s has its marks, and a key of them', (_, change, curve, dragged, names) => {
  const { svg, key } = drawn(change, curve, dragged);
  expect([...key.matchAll(/<\/svg>([^<]+)</g)].map(([, name]) => name)).toEqual(names);
  const classes = {
    'planned, no edits': 'cl-line"',
    'in force': 'cl-now',
    draft: 'cl-draft-dot',
    knee: 'cl-knee'
  };
  for (const [name, kind] of Object.entries(classes)) {
    expect(svg.includes(kind), name).toBe(names.includes(name));
  }
});

test('what cannot run is no point of the line', () => {
  const [, points] = /polyline class="cl-line" points="([^"]+)"/.exec(drawn({}, CURVE).svg) ?? [];
  expect(points.split(' ')).toHaveLength(3);
});

test('the middle of the range is written where there is room', () => {
  expect(drawn({}, null, null, 400).svg).toContain('96.0 MiB');
  expect(drawn({}, null, null, 200).svg).not.toContain('96.0 MiB');
});

test('the name of a knee at the right end stands to its left', () => {
  expect(drawn({}, { ...CURVE, knee_bytes: 72 * MIB }).svg).toContain('start">knee 72.0 MiB');
  expect(drawn({}, { ...CURVE, knee_bytes: 128 * MIB }).svg).toContain('end">knee 128 MiB');
});

test.each([
  [null, 96, 1.1, false],
  [84 * MIB, 84, 1.3, true],
  [65 * MIB, 65, null, true]
])('dragged to %s, the draft is at %d MiB', (dragged, mib, step_s, isDragged) => {
  const { draft } = drawn({}, CURVE, dragged);
  expect(draft.capacity_bytes).toBe(mib * MIB);
  expect(draft.isDragged).toBe(isDragged);
  if (step_s === null) {
    expect(draft.step_s).toBeNull();
  } else {
    expect(draft.step_s).toBeCloseTo(step_s);
  }
});

test('the handle stays within the drawing', () => {
  const { axes, draft } = drawn({}, CURVE, 4096 * MIB);
  expect(draft.at).toBeLessThan(axes.width);
  expect(draft.at).toBeGreaterThan(axes.x(axes.high));
  expect(drawn({}, CURVE, 0).draft.at).toBeGreaterThan(0);
});

test.each<[object, ICurve | null, number | null, string, string, string, boolean]>([
  [{}, null, null, '1.10×', '96.0 MiB, step 1.10×', '', true],
  [{ draft: null }, null, null, '', '96.0 MiB', '', true],
  [{}, FIRST, null, '1.10×', '96.0 MiB, step 1.10×', 'Planning for 13 capacities: 1 done', false],
  [{}, { ...FIRST, left: 0 }, null, '1.10×', '96.0 MiB, step 1.10×', '', true],
  [
    {},
    CURVE,
    84 * MIB,
    'by the curve 1.30×',
    '84.0 MiB, step 1.30×',
    'Without edits. Uncapped 1.00 s',
    false
  ],
  [
    {},
    { ...CURVE, knee_bytes: null },
    65 * MIB,
    '',
    '65.0 MiB',
    'Without edits. Uncapped 1.00 s; no knee in this range',
    false
  ]
])('%#: beside the curve stands what is known', (change, curve, dragged, ...said) => {
  const { words } = drawn(change, curve, dragged);
  expect([words.ratio, words.handle, words.progress, words.canBegin]).toEqual(said);
});

test('the curve is read between its points', () => {
  expect(between(CURVE, 84 * MIB)).toBeCloseTo(1.3);
  expect(between(CURVE, 64 * MIB)).toBeNull();
  expect(between(CURVE, 200 * MIB)).toBeNull();
  expect(between(null, 84 * MIB)).toBeNull();
});

test('a letter of a translation that markup would read stands for itself in the drawing', () => {
  speak({ ...english, __: text => `<b>${text} & more` });
  expect(drawn({}, null).key).toContain('&lt;b>in force &amp; more');
});
