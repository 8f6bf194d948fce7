import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import type { KernelClient } from './client';
import { LabModel } from './model';
import {
  type INote,
  type IOp,
  type IStatus,
  type ISteps,
  type IStorage,
  LabError
} from './protocol';

vi.mock('./timeline/tables', () => ({ readView: () => ({ start: 0, end: 1, exact: true }) }));

const SESSION = 'session:1';
const FILE = 'file:run.parquet';

/** A kernel whose session has made this many steps, with one whole trace file at hand. */
class FakeKernel {
  stepCount = 1;
  session = SESSION;
  found = 3;
  /** What happens while the kernel looks a storage up. */
  beforeStorage: (() => Promise<void>) | undefined;
  draftLength = 2;
  noDraft = false;
  /** Searches get no answer. */
  hold = false;
  readonly notes: INote[] = [];
  readonly asked: [string, object][] = [];
  /** What the file has lost. */
  lost: string | null = null;
  private _opened = false;
  onEvent: (name: string, body: unknown) => void = () => undefined;
  onError: (error: LabError) => void = () => undefined;
  readonly waiting = 0;

  get status(): IStatus {
    const entry = (index: number) => ({ index, stage: 'stable' });
    return {
      session: { source: this.session, steps: this.stepCount ? [entry(this.stepCount)] : [] },
      files: this._opened
        ? [{ source: FILE, path: 'run.parquet', steps: [entry(0)], lost: this.lost }]
        : []
    } as unknown as IStatus;
  }

  async request(method: string, params: object): Promise<object> {
    const answer = this._answers[method];
    return answer ? answer(params as never) : this._drawn(method, params as ISteps);
  }

  private readonly _answers: Record<string, (params: never) => object | Promise<object>> = {
    open: ({ path }: { path: string }) => {
      if (path === 'good.json') {
        return { result: { source: `policy:${path}` } };
      }
      if (path !== 'run.parquet') {
        throw new LabError('trace', 'half.parquet is truncated.');
      }
      this._opened = true;
      return { result: { source: FILE } };
    },
    status: () => ({ result: this.status }),
    locate: ({ last }: ISteps) => ({ result: { uid: 100 + last } }),
    storage: async ({ uid }: { uid: number }) => {
      await this.beforeStorage?.();
      return { result: { uid, key: 'h.0/aten::gelu.0#0' } };
    },
    search: (params: ISteps) =>
      this.hold ? new Promise(() => undefined) : this._drawn('search', params),
    point: ({ row }: { row: number }) => {
      const touches = { count: 1, bytes: 1, storages: [{ uid: 50 + row }] };
      return { result: { op: { ...opOf(row), touches } } };
    },
    seek: ({ at, direction }: { at: number; direction: number }) => {
      const rows = Array.from({ length: this.found }, (_, i) => i * 3);
      const middle = (row: number) => row / 10 + 0.025;
      const next = rows.filter(row => (middle(row) - at) * direction > 1e-9);
      const all = next.length ? next : rows;
      const row = direction > 0 ? all[0] : all[all.length - 1];
      return { result: { op: opOf(row), number: rows.indexOf(row) + 1, count: this.found } };
    },
    notes: () => ({ result: { notes: [...this.notes] } }),
    note: ({ text }: { text: string }) => {
      const at = { time: 0.5, op: 1 };
      this.notes.push({ index: this.notes.length, step: 1, op: 1, text, at });
      return { result: { notes: [...this.notes] } };
    },
    forget_note: ({ index }: { index: number }) => {
      this.notes.splice(index, 1);
      return { result: { notes: [...this.notes] } };
    }
  };

  /** What is drawn of steps, and what is found in them. */
  private _drawn(method: string, params: ISteps): object {
    const ofDraft = String(params.source).startsWith('draft:');
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

/** An op of a row, a twentieth of the axis long. */
function opOf(row: number) {
  return { row, x0: row / 10, x1: row / 10 + 0.05 };
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

test('notes are kept by the kernel, and read again with the steps that they are in', async () => {
  await model.addNote(0.5, 'here');
  expect(model.notes.map(note => note.text)).toEqual(['here']);
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().last).toBe(2);
  expect(model.notes).toHaveLength(1);
  model.goTo(0.5);
  expect(model.cursor).toBe(0.5);
  await model.forgetNote(0);
  expect(model.notes).toEqual([]);
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

test('what a file has lost is known as long as it is drawn', async () => {
  kernel.lost = 'run.parquet: cut after 9 bytes; 1 of its 2 steps can be read';
  expect(model.lost).toBeNull();
  await model.openFile('run.parquet');
  expect(model.lost).toBe(kernel.lost);
  await model.choose(SESSION);
  expect(model.lost).toBeNull();
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

test('following goes on when a new session starts after a file was opened', async () => {
  await model.openFile('run.parquet');
  expect(model.follow).toBe(false);
  kernel.session = 'session:2';
  kernel.stepCount = 0; // it has begun, and no step has ended
  kernel.onEvent('status', kernel.status);
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().source).toBe(FILE);
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn()).toMatchObject({ source: 'session:2', last: 1 });
  expect(model.follow).toBe(true);
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().last).toBe(2);
});

test('and when the kernel has begun anew', async () => {
  await model.openFile('run.parquet');
  const next = new FakeKernel();
  model.connect(null);
  model.connect(next as unknown as KernelClient);
  await vi.advanceTimersByTimeAsync(5000);
  next.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn()).toMatchObject({ source: SESSION, last: 2 });
});

test('who has turned following off is left alone', async () => {
  model.setFollow(false);
  kernel.session = 'session:2';
  await model.openFile('run.parquet');
  kernel.step();
  await vi.advanceTimersByTimeAsync(5000);
  expect(drawn().source).toBe(FILE);
});

test('a found op is selected, and the next and the one before are counted', async () => {
  await model.search('gelu');
  await model.seekFound(1);
  expect([model.foundNumber, model.op?.row, model.selected?.uid]).toEqual([1, 0, 50]);
  await model.seekFound(1);
  expect([model.foundNumber, model.op?.row, model.selected?.uid]).toEqual([2, 3, 53]);
  await model.seekFound(-1);
  await model.seekFound(-1);
  expect([model.foundNumber, model.op?.row]).toEqual([3, 6]); // round at the ends
  expect(model.shown.start).toBeLessThanOrEqual(0.6);
  expect(model.shown.end).toBeGreaterThanOrEqual(0.65);
  await model.search('mm');
  expect(model.foundNumber).toBe(0);
});

test('keys pressed quickly walk the ops found one by one', async () => {
  await model.search('gelu');
  await Promise.all([model.seekFound(1), model.seekFound(1), model.seekFound(1)]);
  expect(model.foundNumber).toBe(3);
  await Promise.all([model.seekFound(-1), model.seekFound(-1)]);
  expect([model.foundNumber, model.op?.row]).toEqual([1, 0]);
});

test('an op of a row is selected as one in the drawing is', async () => {
  await model.showOp({ row: 4, x0: 0.4, x1: 0.45 } as IOp, 5);
  expect([model.foundNumber, model.op?.row, model.selected?.uid]).toEqual([5, 4, 54]);
  expect(model.cursor).toBeCloseTo(0.425);
});

test('an error goes with the next file that can be read, also where it is a policy', async () => {
  await model.openFile('half.parquet');
  expect(model.error?.message).toContain('truncated');
  await model.openFile('good.json');
  expect(model.error).toBeNull();
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
