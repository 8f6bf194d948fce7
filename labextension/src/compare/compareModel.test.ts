import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { LabModel } from '../model';
import type { ISide } from '../protocol';
import { CompareModel, choicesOf, sameSide } from './compareModel';

vi.mock('./compareTables', () => ({ readCompareView: (reply: object) => reply }));

const STATUS = {
  session: { source: 'session:1', steps: [1, 2].map(index => ({ index, stage: 'Stable' })) },
  files: [
    {
      source: 'file:/x/run.parquet',
      path: '/x/run.parquet',
      steps: [{ index: 0, stage: 'Profile' }]
    }
  ],
  policies: [{ source: 'policy:in force', name: 'in force', swaps: 7, drops: 0 }]
};

class FakeLab {
  status: unknown = STATUS;
  steps: unknown = { source: 'session:1', first: 2, last: 2 };
  readonly asked: [string, { a: ISide; b: ISide; start?: number; end?: number }][] = [];

  async request(method: string, params: { a: ISide; b: ISide }) {
    this.asked.push([method, params]);
    const length = { time: params.a.source === 'session:1' ? 2 : 1, op: 10 };
    return method === 'compare'
      ? { result: { a: { length }, b: { length: { time: 1, op: 8 } } }, buffers: [] }
      : { result: params, buffers: [] };
  }
}

let lab: FakeLab;
let model: CompareModel;

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal('window', globalThis);
  lab = new FakeLab();
  model = new CompareModel(lab as unknown as LabModel, () => undefined);
});

afterEach(() => {
  model.dispose();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test('every step and policy is a choice', () => {
  expect(choicesOf(lab.status as LabModel['status']).map(choice => choice.name)).toEqual([
    'Policy in force · 7 swaps, predicted',
    'step 2 · Stable',
    'step 1 · Stable',
    'run.parquet · step 0 · Profile'
  ]);
});

test('it begins with what is drawn, beside the policy in force', async () => {
  await model.begin();
  expect(model.b).toEqual({ source: 'session:1', step: 2 });
  expect(model.a).toEqual({ source: 'policy:in force', step: 0 });
  expect(lab.asked.map(([method]) => method)).toEqual(['compare', 'compare_view']);
});

test('what was just opened is one of the two', async () => {
  await model.begin();
  await model.begin('file:/x/run.parquet');
  expect(model.b).toEqual({ source: 'file:/x/run.parquet', step: 0 });
  expect(model.a?.source).toBe('policy:in force');
});

test('a single step is compared with itself, and nothing with nothing', async () => {
  lab.status = { session: null, files: STATUS.files, policies: [] };
  lab.steps = null;
  await model.begin();
  expect(sameSide(model.a, model.b)).toBe(true);
  lab.status = { session: null, files: [], policies: [] };
  lab.asked.length = 0;
  const empty = new CompareModel(lab as unknown as LabModel, () => undefined);
  await empty.begin();
  expect(empty.result).toBeNull();
  expect(lab.asked).toEqual([]);
});

test('zooming asks once it pauses, and within the longer of the two', async () => {
  await model.begin();
  await model.swap();
  expect(model.length).toBe(2);
  lab.asked.length = 0;
  for (let i = 0; i < 5; i++) {
    model.look({ start: 0.5, end: 0.7 + i / 100 });
  }
  expect(lab.asked).toEqual([]);
  await vi.advanceTimersByTimeAsync(1000);
  expect(lab.asked.length).toBe(1);
  const [method, { start, end }] = lab.asked[0];
  expect(method).toBe('compare_view');
  expect(start).toBeLessThan(0.5);
  expect(end).toBeGreaterThan(0.74);
  model.look({ start: -5, end: 50 });
  expect(model.shown).toEqual({ start: 0, end: 2 });
});
