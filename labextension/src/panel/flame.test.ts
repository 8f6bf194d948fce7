import { expect, test } from 'vitest';

import type { INode } from '../protocol';
import { place, shortName } from './flame';
import { growthWords, originName } from './moreTabs';

function node(name: string, depth: number, start_bytes: number, bytes: number): INode {
  return { name, depth, start_bytes, bytes, count: 1, category: 3, uid: -1 };
}

const NODES = [
  node('All', 0, 0, 100),
  node('a', 1, 0, 60),
  node('a.x', 2, 0, 40),
  node('a.y', 2, 40, 20),
  node('b', 1, 60, 40),
  node('b.z', 2, 60, 40)
];

test('the whole tree fills the width, each node under its parent', () => {
  expect(place(NODES, 0).map(({ index, left, width }) => [index, left, width])).toEqual([
    [0, 0, 1],
    [1, 0, 0.6],
    [2, 0, 0.4],
    [3, 0.4, 0.2],
    [4, 0.6, 0.4],
    [5, 0.6, 0.4]
  ]);
});

test('an entered node fills the width, below those that it lies in', () => {
  expect(place(NODES, 4)).toEqual([
    { index: 0, left: 0, width: 1, depth: 0 },
    { index: 4, left: 0, width: 1, depth: 1 },
    { index: 5, left: 0, width: 1, depth: 2 }
  ]);
  expect(place([], 0)).toEqual([]);
});

test('a frame loses its folders, an op its namespace, a path nothing', () => {
  expect(shortName('/home/a/train.py:12 step')).toBe('train.py:12 step');
  expect(shortName('aten::mm')).toBe('mm');
  expect(shortName('parameter:h.0.weight')).toBe('parameter:h.0.weight');
});

test('growth is told with its sign and its steps, an origin without its line', () => {
  const found = { steps: [3, 4, 6], bytes: [1024, 2048, 4096], count: 0, rows: [] };
  expect(growthWords(found)).toBe('4.00 KiB left when a step ends, +3.00 KiB from step 3 to 6');
  expect(growthWords({ ...found, bytes: [4096, 0, 1024] })).toContain('−3.00 KiB');
  expect(growthWords({ ...found, steps: [3] })).toBe('');
  const stack = ['a.py:3 f', 'b.py:9 g'];
  expect(originName({ origin: 'h/aten::mul.0 at a.py:3 f', stack })).toBe('h/aten::mul.0');
});
