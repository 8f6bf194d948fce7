import { beforeEach, expect, test, vi } from 'vitest';

import type { KernelClient } from '../client';
import { type IDecision, type IEdit, type IOpenDraft, LabError } from '../protocol';
import { type IStore, Keeper, PREFIX } from './keeper';
import { chunks, Editor, joined, PAGE } from './state';

const FILE = 'session:1';
const NAME = 'train.ipynb|session';

/** A kernel that holds a draft, as little of it as the editor looks at. */
class FakeKernel {
  edits: IEdit[] = [];
  inForce: IEdit[] = [];
  past: IEdit[][] = [];
  rows = 1234;
  news = 1;
  dead = false;
  readonly asked: [string, Record<string, unknown>][] = [];

  draft(): IOpenDraft {
    const same = JSON.stringify(this.edits) === JSON.stringify(this.inForce);
    return {
      source: FILE,
      editable: true,
      news: this.news,
      actions: ['keep', 'swap'],
      edits: this.edits.map(edit => ({ edit, text: 'edit', staged: !this.inForce.includes(edit) })),
      staged: this.edits.length - this.inForce.length,
      same,
      rows: this.rows,
      capacity_bytes: 100
    } as unknown as IOpenDraft;
  }

  async request(method: string, params: Record<string, unknown>): Promise<object> {
    this.asked.push([method, params]);
    if (this.dead) {
      throw new LabError('closed', 'The kernel hung up.');
    }
    if (method === 'edit') {
      const edits = params.edits as IEdit[];
      if (edits.some(edit => edit.storage === 'bad')) {
        throw new LabError('bad_edit', 'there is no such edit');
      }
      this.past.push(this.edits);
      if (params.change === 'add') {
        this.edits = joined(this.edits, edits);
      } else if (params.change === 'set') {
        this.edits = edits;
      } else if (params.change === 'remove') {
        this.edits = this.edits.filter((_, i) => i !== params.index);
      } else if (params.change === 'undo') {
        this.past.pop();
        this.edits = this.past.pop() ?? [];
      }
      return { result: this.draft() };
    }
    if (method === 'decisions') {
      if (params.query === '>lots') {
        throw new LabError('query', "'lots' is not a size");
      }
      const [start, count] = [params.first_row as number, params.count as number];
      const rows = Array.from({ length: Math.min(count, this.rows - start) }, (_, i) => ({
        storage: `${params.sort}-${start + i}`
      }));
      return { result: { total: this.rows, bytes: 5, all: this.rows, start, rows } };
    }
    if (method === 'choices') {
      return { result: { storage: params.storage, options: [] } };
    }
    if (method === 'save') {
      if (!params.overwrite) {
        throw new LabError('exists', 'it is there already');
      }
      return { result: { path: '/tmp/policy.json', bytes: 9 } };
    }
    return { result: this.draft() };
  }

  count(method: string): number {
    return this.asked.filter(([name]) => name === method).length;
  }
}

/** JupyterLab's state, which outlives pages. */
class FakeStore implements IStore {
  readonly values = new Map<string, string>();
  async fetch(id: string): Promise<unknown> {
    return JSON.parse(this.values.get(id) ?? 'null');
  }
  async save(id: string, value: unknown): Promise<void> {
    this.values.set(id, JSON.stringify(value));
  }
  async remove(id: string): Promise<void> {
    this.values.delete(id);
  }
}

let kernel: FakeKernel;
let store: FakeStore;
let editor: Editor;

const settle = () => vi.waitFor(() => expect(editor.busy).toBe(false));
const client = (of = kernel) => of as unknown as KernelClient;
const attach = async (of = kernel) => {
  editor.attach(client(of), FILE, NAME);
  await vi.waitFor(() => expect(editor.open).not.toBeNull());
};
const keep = (storage: string): IEdit => ({ action: 'keep', storage });

beforeEach(async () => {
  kernel = new FakeKernel();
  store = new FakeStore();
  editor = new Editor(new Keeper(store));
  await attach();
});

test('edits go to the kernel, and its draft is what is shown', async () => {
  await editor.decide(['a'], 'keep');
  await editor.decide(['b'], 'swap');
  expect(editor.open?.edits.map(entry => entry.edit)).toEqual([
    keep('a'),
    { action: 'swap', storage: 'b' }
  ]);
  await editor.edit('undo');
  expect(editor.open?.edits).toHaveLength(1);
  await editor.decide(['a'], null);
  expect(editor.open?.edits).toHaveLength(0);
});

test('prefetches add up, and vanish where nothing is left of them', async () => {
  await editor.earlier(['a'], 5);
  await editor.earlier(['a'], 5);
  expect(kernel.edits).toEqual([{ action: 'prefetch', storage: 'a', ops_earlier: 10 }]);
  await editor.earlier(['a'], -10);
  expect(kernel.edits).toEqual([]);
});

test('a capacity that is not changed is no edit', async () => {
  await editor.setCapacity(100);
  expect(kernel.edits).toEqual([]);
  await editor.setCapacity(99.6);
  await editor.setCapacity(80);
  expect(kernel.edits).toEqual([{ action: 'capacity', capacity_bytes: 80 }]);
});

test('only the pages in view are asked for, and once', async () => {
  const before = kernel.count('decisions');
  await editor.want(0, 40);
  expect(kernel.count('decisions')).toBe(before); // they came with the draft
  await editor.want(3 * PAGE - 10, 20);
  expect(kernel.count('decisions')).toBe(before + 2);
  expect(editor.row(3 * PAGE)?.storage).toBe(`bytes-${3 * PAGE}`);
  expect(editor.row(6 * PAGE)).toBeUndefined();
  await editor.want(3 * PAGE - 5, 20);
  expect(kernel.count('decisions')).toBe(before + 2);
});

test('rows stay in view while fresh ones come, and go where there are fewer', async () => {
  await editor.setFilter({ sort: 'name' });
  expect(editor.row(0)?.storage).toBe('name-0');
  kernel.rows = 3;
  const seen: (IDecision | undefined)[] = [];
  editor.changed.connect((_, change) => change === 'draft' && seen.push(editor.row(0)));
  await editor.decide(['a'], 'keep');
  expect(seen).not.toContain(undefined);
  expect(editor.total).toBe(3);
  expect(editor.row(3)).toBeUndefined();
});

test('a filter that cannot be read is said, and forgiven with the next', async () => {
  await editor.setFilter({ query: '>lots' });
  expect(editor.error?.code).toBe('query');
  await editor.setFilter({ query: '' });
  expect(editor.error).toBeNull();
});

test('news of the draft are asked for, of others not', async () => {
  const before = kernel.count('draft');
  editor.heard({ source: 'file:other', news: 9 });
  editor.heard({ source: FILE, news: kernel.news });
  expect(kernel.count('draft')).toBe(before);
  kernel.news = 2;
  editor.heard({ source: FILE, news: 2 });
  editor.heard({ source: FILE, news: 2 }); // while the answer is on its way
  await vi.waitFor(() => expect(editor.draft?.news).toBe(2));
  expect(kernel.count('draft')).toBeLessThanOrEqual(before + 2);
});

test('what a choice was asked for and left is not shown', async () => {
  const first = editor.choose('a');
  await editor.choose('b');
  await first;
  expect(editor.choices?.storage).toBe('b');
});

test('an edit that is refused is said, and the draft stays', async () => {
  await editor.decide(['bad'], 'keep');
  expect(editor.error?.code).toBe('bad_edit');
  expect(editor.open?.edits).toEqual([]);
  await editor.decide(['a'], 'keep');
  expect(editor.error).toBeNull();
});

test('a file is overwritten only when asked to', async () => {
  expect(await editor.save('policy.json', false)).toBe(false);
  expect(editor.error).toBeNull();
  expect(await editor.save('policy.json', true)).toBe(true);
  expect(editor.said).toContain('/tmp/policy.json');
});

test('a kernel that dies leaves the edits here, and they are offered to the next', async () => {
  await editor.decide(['a'], 'keep');
  editor.attach(null, null, '');
  expect(editor.orphaned?.edits).toEqual([keep('a')]);
  expect(editor.open).toBeNull();
  const next = new FakeKernel();
  await attach(next);
  expect(editor.offered?.edits).toEqual([keep('a')]);
  expect(next.edits).toEqual([]);
  await editor.putBack();
  expect(editor.said).toBe('The change is back.');
  expect(next.edits).toEqual([keep('a')]);
  expect(editor.offered).toBeNull();
});

test('an edit on its way when the kernel dies is not lost', async () => {
  await editor.decide(['a'], 'keep');
  kernel.dead = true;
  await editor.decide(['b'], 'keep');
  await settle();
  expect(editor.error).toBeNull(); // the connection says so itself
  editor.attach(null, null, '');
  await attach(new FakeKernel());
  expect(editor.offered?.edits).toEqual([keep('a'), keep('b')]);
});

test('the edits outlive the page', async () => {
  await editor.decide(['a'], 'keep');
  editor = new Editor(new Keeper(store));
  await attach(new FakeKernel());
  expect(editor.offered?.edits).toEqual([keep('a')]);
});

test('a kernel that still has the draft is offered nothing', async () => {
  await editor.decide(['a'], 'keep');
  editor = new Editor(new Keeper(store));
  await attach();
  expect(editor.offered).toBeNull();
  expect(editor.open?.edits).toHaveLength(1);
});

test('what is enabled or discarded is not kept', async () => {
  await editor.decide(['a'], 'keep');
  kernel.inForce = kernel.edits;
  await editor.enable();
  expect(store.values.size).toBe(0);
  editor.attach(null, null, '');
  await attach(new FakeKernel());
  expect(editor.offered).toBeNull();
});

test('kept edits go when the person lets them go', async () => {
  await editor.decide(['a'], 'keep');
  editor.attach(null, null, '');
  await attach(new FakeKernel());
  editor.discardKept();
  expect(editor.offered).toBeNull();
  await vi.waitFor(() => expect(store.values.size).toBe(0));
});

test('another notebook has a draft of its own', async () => {
  await editor.decide(['a'], 'keep');
  editor.attach(client(new FakeKernel()), FILE, 'other.ipynb|session');
  await vi.waitFor(() => expect(editor.open).not.toBeNull());
  expect(editor.offered).toBeNull();
});

test('a store that holds nonsense is not believed', async () => {
  for (const nonsense of [
    7,
    'text',
    { edits: 'keep' },
    { edits: [null], staged: 1 },
    { staged: 1 }
  ]) {
    await store.save(`${PREFIX}x`, nonsense);
    expect(await new Keeper(store).find('x')).toBeNull();
  }
});

test('many edits are put back in requests that the kernel takes', async () => {
  const edits = Array.from({ length: 2000 }, (_, i) => keep(`h.${i}.mlp/aten::gelu.0#0`));
  const runs = chunks(edits, 48 * 1024);
  expect(runs.length).toBeGreaterThan(1);
  expect(runs.flat()).toEqual(edits);
  for (const run of runs) {
    expect(JSON.stringify(run).length).toBeLessThan(50 * 1024);
  }
  expect(chunks([], 10)).toEqual([[]]);
});

test('an edit replaces the one that answers the same question', () => {
  const rule = { action: 'keep', module: 'h.0', category: 'activation' };
  const before = [keep('a'), rule, { action: 'capacity', capacity_bytes: 1 }];
  expect(joined(before, [{ action: 'swap', storage: 'a' }])).toEqual([
    rule,
    { action: 'capacity', capacity_bytes: 1 },
    { action: 'swap', storage: 'a' }
  ]);
  expect(joined(before, [{ action: 'swap', storage: 'a', gap: 1 }])).toHaveLength(4);
  expect(joined(before, [{ action: 'prefetch', storage: 'a', ops_earlier: 1 }])).toHaveLength(4);
  expect(joined(before, [{ category: 'activation', module: 'h.0', action: 'swap' }])).toHaveLength(
    3
  );
  expect(joined(before, [{ action: 'capacity', capacity_bytes: 2 }])).toHaveLength(3);
});

test('rows selected together are decided about in one change', async () => {
  await attach();
  await editor.want(0, 30);
  await vi.waitFor(() => expect(editor.row(0)).toBeDefined());
  await editor.choose('bytes-0');
  expect(editor.chosen).toEqual(['bytes-0']);
  editor.toggle(editor.row(2) as IDecision);
  editor.toggle(editor.row(5) as IDecision);
  expect(editor.chosen).toEqual(['bytes-0', 'bytes-2', 'bytes-5']);
  editor.toggle(editor.row(2) as IDecision);
  const asked = kernel.count('edit');
  await editor.decide(editor.chosen, 'swap');
  expect(kernel.count('edit')).toBe(asked + 1);
  expect(kernel.edits).toEqual([
    { action: 'swap', storage: 'bytes-0' },
    { action: 'swap', storage: 'bytes-5' }
  ]);
  await editor.earlier(editor.chosen, 5);
  await editor.earlier(['bytes-0'], -5);
  expect(kernel.edits.filter(edit => edit.action === 'prefetch')).toEqual([
    { action: 'prefetch', storage: 'bytes-5', ops_earlier: 5 }
  ]);
  await editor.decide(editor.chosen, null);
  expect(kernel.edits).toEqual([]);
  await editor.choose('bytes-7');
  expect(editor.chosen).toEqual(['bytes-7']);
});

test('a range of rows reaches beyond the pages that are known, and ends with the filter', async () => {
  await attach();
  await editor.want(0, 30);
  await vi.waitFor(() => expect(editor.total).toBe(kernel.rows));
  await editor.pickRange(950, 90);
  expect(editor.chosen).toHaveLength(861);
  expect(editor.chosen[0]).toBe('bytes-90');
  expect(editor.chosen.at(-1)).toBe('bytes-950');
  await editor.pickRange(0, 5000);
  expect(editor.chosen).toHaveLength(kernel.rows);
  await editor.setFilter({ query: 'attn' });
  expect(editor.chosen).toEqual([]);
});

test('never to rematerialize is another question than whether to leave, but not than to rematerialize', async () => {
  await attach();
  await editor.decide(['a'], 'swap');
  await editor.forbidReplay(['a', 'b'], true);
  expect(kernel.edits.map(edit => edit.action)).toEqual([
    'swap',
    'never_rematerialize',
    'never_rematerialize'
  ]);
  await editor.decide(['b'], 'rematerialize');
  expect(kernel.edits.filter(edit => edit.storage === 'b')).toEqual([
    { action: 'rematerialize', storage: 'b' }
  ]);
  await editor.forbidReplay(['a'], false);
  expect(kernel.edits.filter(edit => edit.storage === 'a')).toEqual([
    { action: 'swap', storage: 'a' }
  ]);
});

test('what is kept is offered although the kernel has more to say before the store answers', async () => {
  const kept = { edits: [keep('a')], staged: 1 };
  await store.save(`${PREFIX}${NAME}`, kept);
  let answer: () => void = () => undefined;
  const slow: IStore = {
    fetch: id =>
      new Promise(resolve => {
        answer = () => resolve(store.fetch(id));
      }),
    save: (id, value) => store.save(id, value),
    remove: id => store.remove(id)
  };
  editor = new Editor(new Keeper(slow)); // as after a reload of the page
  editor.attach(client(), FILE, NAME);
  await vi.waitFor(() => expect(editor.draft).not.toBeNull());
  const edited = editor.edit('discard');
  await vi.waitFor(() => expect(kernel.count('edit')).toBe(1));
  answer();
  await edited;
  await vi.waitFor(() => expect(editor.offered).toEqual(kept));
  expect(store.values.size).toBe(1);
});
