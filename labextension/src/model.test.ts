import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { KernelClient } from './client';
import { LabModel } from './model';
import { type IStatus, type ISteps, type IStorage, LabError } from './protocol';

vi.mock('./timeline/tables', () => ({ readView: () => ({ start: 0, end: 1, exact: true }) }));

const SESSION = 'session:1';
const FILE = 'file:run.parquet';

/** A kernel whose session has made this many steps, with one whole trace file at hand. */
class FakeKernel {
  stepCount = 1;
  /** What happens while the kernel looks a storage up. */
  beforeStorage: (() => Promise<void>) | undefined;
  draftLength = 2;
  noDraft = false;
  /** Searches get no answer. */
  hold = false;
  readonly asked: [string, object][] = [];
  private _opened = false;
  onEvent: (name: string, body: unknown) => void = () => undefined;
  onError: (error: LabError) => void = () => undefined;
  readonly waiting = 0;

  get status(): IStatus {
    const entry = (index: number) => ({ index, stage: 'stable' });
    return {
      session: { source: SESSION, steps: [entry(this.stepCount)] },
      files: this._opened ? [{ source: FILE, path: 'run.parquet', steps: [entry(0)] }] : []
    } as unknown as IStatus;
  }

  async request(method: string, params: object): Promise<object> {
    if (method === 'open') {
      if ((params as { path: string }).path !== 'run.parquet') {
        throw new LabError('trace', 'half.parquet is truncated.');
      }
      this._opened = true;
      return { result: { source: FILE } };
    }
    if (method === 'status') {
      return { result: this.status };
    }
    if (method === 'locate') {
      return { result: { uid: 100 + (params as ISteps).last } };
    }
    if (method === 'storage') {
      const { uid } = params as { uid: number };
      await this.beforeStorage?.();
      return { result: { uid, key: 'h.0/aten::gelu.0#0' } };
    }
    if (method === 'search' && this.hold) {
      return new Promise(() => undefined);
    }
    const ofDraft = String((params as ISteps).source).startsWith('draft:');
    if (ofDraft && this.noDraft) {
      throw new LabError('gone', 'the draft is gone.');
    }
    this.asked.push([method, params]);
    const time = ofDraft ? this.draftLength : 1;
    const scene = { length: { time, op: 1 }, peak: { time: 0, op: 0 } };
    return { result: { ...scene, rows: [] }, buffers: [] };
  }

  /** One more step of the session, told to the panel. */
  step(): void {
    this.stepCount += 1;
    this.onEvent('status', this.status);
  }
}

let kernel: FakeKernel;
let model: LabModel;

beforeEach(async () => {
  vi.useFakeTimers();
  vi.stubGlobal('window', globalThis);
  kernel = new FakeKernel();
  model = new LabModel({ axis: 'time', rows: 'storage', follow: true });
  model.connect(kernel as unknown as KernelClient);
  await vi.advanceTimersByTimeAsync(5000);
});

afterEach(() => {
  model.dispose();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const drawn = (): Partial<ISteps> => model.steps ?? {};

test('the newest step is followed', async () => {
  expect(drawn()).toMatchObject({ source: SESSION, last: 1 });
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn()).toMatchObject({ source: SESSION, last: 2 });
});

test('what went wrong stays to be read while steps come in', async () => {
  await model.openFile('half.parquet');
  expect(model.error?.message).toContain('truncated');
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().last).toBe(2);
  expect(model.error?.message).toContain('truncated');
  model.dismissError();
  expect(model.error).toBeNull();
});

test('a step that was about to be drawn does not take the place of an opened file', async () => {
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  kernel.step(); // waits for its turn
  await model.openFile('run.parquet');
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().source).toBe(FILE);
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().source).toBe(FILE);
});

test('what is selected while other steps come to be drawn is selected there', async () => {
  kernel.beforeStorage = async () => {
    kernel.beforeStorage = undefined;
    await model.show({ source: SESSION, first: 7, last: 7 });
  };
  await model.selectKey('h.0/aten::gelu.0#0');
  expect(drawn().last).toBe(7);
  expect(model.selected?.uid).toBe(107);
  kernel.beforeStorage = async () => {
    kernel.beforeStorage = undefined;
    await model.show({ source: SESSION, first: 8, last: 8 });
  };
  await model.select(107);
  expect(model.selected?.uid).toBe(108);
});

test('a row found in other steps selects the same storage in those drawn', async () => {
  await model.search('gelu');
  const row = { uid: 103, key: 'h.0/aten::gelu.0#0' } as IStorage;
  await model.selectFound(row);
  expect(model.selected?.uid).toBe(103);
  kernel.hold = true; // the new steps are drawn, and the search in them has no answer yet
  void model.show({ source: SESSION, first: 7, last: 7 });
  await vi.advanceTimersByTimeAsync(0);
  expect(drawn().last).toBe(7);
  await model.selectFound(row);
  expect(model.selected?.uid).toBe(107);
});

test('a draft is drawn on the axis of what ran, and what is zoomed to stays', async () => {
  model.look({ start: 0.25, end: 0.5 });
  await model.setDrawn('draft');
  expect(model.drawn).toBe('draft');
  expect(kernel.asked.at(-1)?.[1]).toMatchObject({ source: `draft:${SESSION}` });
  expect(drawn().source).toBe(SESSION);
  expect([model.shown, model.length]).toEqual([{ start: 0.25, end: 0.5 }, 2]);
  kernel.draftLength = 0.5; // shorter than what ran
  model.redraft();
  await vi.advanceTimersByTimeAsync(100);
  expect(model.length).toBe(1);
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().last).toBe(1); // nobody is taken away from the draft
  await model.setDrawn('measured');
  await vi.advanceTimersByTimeAsync(5000);
  expect([model.drawn, drawn().last]).toEqual(['measured', 2]);
});

test('all of a step stays all of it, also where the draft takes longer', async () => {
  await model.setDrawn('draft');
  expect(model.shown).toEqual({ start: 0, end: 2 });
  await model.setDrawn('measured');
  expect(model.shown).toEqual({ start: 0, end: 1 });
});

test('a draft that cannot be drawn leaves what ran, and says so', async () => {
  kernel.noDraft = true;
  await model.setDrawn('draft');
  expect(model.drawn).toBe('measured');
  expect(model.error?.message).toContain('gone');
  model.redraft();
  await model.choose(SESSION);
  expect(model.drawn).toBe('measured');
});
