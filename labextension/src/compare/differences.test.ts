import { expect, test } from 'vitest';

import type { ISideFigures } from '../protocol';
import { conditionLines, decisionText, figureRows } from './differences';

const MIB = 1024 ** 2;
const A: ISideFigures = {
  capacity_bytes: null,
  peak_bytes: 100 * MIB,
  live_peak_bytes: 200 * MIB,
  step_s: 0.1,
  stall_s: 0.02,
  stall_out_s: 0.02,
  stall_prefetch_s: 0,
  stall_demand_s: 0,
  overlap: 0.9,
  out_bytes: 50 * MIB,
  in_bytes: 50 * MIB,
  replay_s: 0,
  replayed_bytes: 0,
  ops: 1000,
  storages: 300
};

const row = (b: Partial<ISideFigures>, name: string) =>
  figureRows(A, { ...A, ...b }).find(row => row.name === name);

test('alike figures have no difference', () => {
  expect(figureRows(A, A).every(row => row.apart === '' && row.verdict === '')).toBe(true);
});

test('less peak and stall are better, less overlap is worse', () => {
  expect(row({ peak_bytes: 75 * MIB }, 'Peak')).toEqual({
    name: 'Peak',
    a: '100 MiB',
    b: '75.0 MiB',
    apart: '−25.0 MiB (−25.0 %)',
    verdict: 'better'
  });
  expect(row({ stall_s: 0.025 }, 'Stall')).toMatchObject({
    apart: '+5.00 ms (+25.0 %)',
    verdict: 'worse'
  });
  expect(row({ overlap: 0.8 }, 'Overlap')).toMatchObject({ apart: '−10.0 pt', verdict: 'worse' });
  expect(row({ ops: 1200 }, 'Ops')).toMatchObject({ apart: '+200 (+20.0 %)', verdict: '' });
});

test('replays are told where one of them has any', () => {
  expect(row({}, 'Replays')).toBeUndefined();
  expect(row({ replay_s: 0.001 }, 'Replays')).toMatchObject({ a: '0', verdict: 'worse' });
});

test('of what was not copied there is no overlap to tell, and none to judge', () => {
  const still = row({ overlap: null }, 'Overlap');
  expect(still).toEqual({ name: 'Overlap', a: '90.0 %', b: '–', apart: '', verdict: '' });
});

test('what one of them does not have is none', () => {
  expect(row({ capacity_bytes: MIB }, 'Capacity')).toMatchObject({ a: 'none', apart: '' });
  expect(row({ stall_prefetch_s: 0.001 }, '· late prefetches')).toMatchObject({
    apart: '+1.00 ms'
  });
});

test('decisions and conditions are told in words', () => {
  const swap = { action: 'swap', out_op: 1200, free_op: 1201, in_op: 1300, use_op: 1310 };
  expect(decisionText({ ...swap, decided_by: 'planner' })).toBe(
    'swap, out after op 1,200, in before op 1,300'
  );
  expect(decisionText({ ...swap, in_op: -1, decided_by: 'user' })).toBe('swap, out after op 1,200');
  expect(decisionText({ ...swap, action: 'rematerialize', decided_by: 'user' })).toBe(
    'drop after op 1,200, replay before op 1,300'
  );
  expect(decisionText(null)).toBe('keep');
  const conditions = [
    { name: 'capacity_bytes', a: MIB, b: 2 * MIB },
    { name: 'assumed.torch', a: '2.13', b: null }
  ];
  expect(conditionLines({ added: 0, removed: 0, changed: 0, rows: [], conditions })).toEqual([
    'capacity_bytes: 1.00 MiB → 2.00 MiB',
    'made for torch: 2.13 → null'
  ]);
});
