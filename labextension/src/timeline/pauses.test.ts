import { expect, test } from 'vitest';

import type { IPause } from '../protocol';
import { pauseMarks } from './pauses';
import { Scale } from './scale';

const PAUSES: IPause[] = [
  { kind: 'loading', duration_s: 0.2, at: { time: 0, op: 0 } },
  { kind: 'loading', duration_s: 0.1, at: { time: 0.001, op: 1 } },
  { kind: 'cells', duration_s: 3.01, at: { time: 0.5, op: 50 } },
  { kind: 'idle', duration_s: 1e-5, at: { time: 0.9, op: 90 } }
];

test('a pause is a mark with its time and name, and takes no room on the axis', () => {
  const marks = pauseMarks(PAUSES, 'time', new Scale(0, 1, 1000), 1);
  expect(marks).toEqual([
    { x: 0, text: '⏸ 300 ms data loading' },
    { x: 500, text: '⏸ 3.01 s between cells' }
  ]);
  expect(pauseMarks(PAUSES, 'op', new Scale(0, 100, 1000), 1).map(({ text }) => text)).toContain(
    '⏸ 3.01 s between cells'
  );
});

test('what is not shown has no mark', () => {
  expect(pauseMarks(PAUSES, 'time', new Scale(0.6, 0.8, 1000), 1)).toEqual([]);
});
