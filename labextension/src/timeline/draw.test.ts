import { expect, test } from 'vitest';

import { blockShape, tracePath } from './draw';
import { Scale } from './scale';
import { type IView, PLACE } from './tables';

/** The corners of a traced line, over ten pixels of an axis that is ten long. */
function corners(x: number[], bytes: number[], scale = new Scale(0, 10, 10)) {
  const found: [number, number][] = [];
  const line = { x: Float64Array.from(x), bytes: Float64Array.from(bytes) };
  tracePath({ lineTo: (left, y) => found.push([left, y]) }, line, scale, of => of);
  return found;
}

test('traces each change where pixels tell them apart', () => {
  expect(corners([0, 4, 7], [5, 2, 9])).toEqual([
    [0, 0],
    [0, 5],
    [4, 5],
    [4, 2],
    [7, 2],
    [7, 9],
    [10, 9]
  ]);
});

test('draws the peak of a pixel, and goes on with its last value', () => {
  expect(corners([0, 4.1, 4.2, 4.3, 8], [1, 3, 7, 2, 4])).toEqual([
    [0, 0],
    [0, 1],
    [4.1, 1],
    [4.1, 7],
    [5, 7],
    [5, 2],
    [8, 2],
    [8, 4],
    [10, 4]
  ]);
  expect(corners([0, 4.1, 4.2], [0, -7, -2])).toContainEqual([4.1, -7]);
});

test('has two corners a pixel at most where every pixel has many changes', () => {
  const x = Array.from({ length: 1000 }, (_, i) => i / 100);
  const bytes = x.map((_, i) => (i === 537 ? 99 : i % 7));
  const found = corners(x, bytes);
  expect(found.length).toBeLessThanOrEqual(2 * 10 + 3); // the last value, and the end
  expect(Math.max(...found.map(([, y]) => y))).toBe(99);
  expect(found.at(-1)?.[0]).toBe(10);
});

test('begins with what holds where the stretch begins', () => {
  expect(corners([0, 90], [6, 8], new Scale(50, 100, 10))[1]).toEqual([0, 6]);
});

/** A block of a map that is 100 bytes and 100 pixels high, over a hundred pixels of an axis that is ten long. */
function shape(change: object) {
  const block = { x0: 2, x1: 6, y0: 20, y1: 50, place: PLACE.device, uid: 7, fill: 0, ...change };
  const blocks = Object.fromEntries(Object.entries(block).map(([name, value]) => [name, [value]]));
  const view = { blocks, start: 0, map_bytes: 100 } as unknown as IView;
  return blockShape(view, { top: 10, height: 100 }, new Scale(0, 10, 100), 0);
}

test.each<[string, object, object]>([
  ['a storage', {}, { left: 20, top: 60.7, width: 39.5, height: 29.3, alpha: 1 }],
  ['one on the host', { place: PLACE.host }, { left: 20, width: 40, alpha: 0.5 }],
  ['a dropped one', { place: PLACE.dropped }, { left: 20, width: 40, alpha: 0.8 }],
  ['a low one', { y1: 22 }, { top: 88, width: 40, height: 2 }],
  ['one too low to be seen', { y1: 20.1 }, { height: 0.5 }],
  ['one too short to be seen', { x1: 2.01 }, { width: 0.6 }],
  ['one that reaches beyond both ends', { x0: -5, x1: 50 }, { left: -2, width: 103.5 }],
  ['a cell', { uid: -1, fill: 0.6 }, { left: 20, top: 60, width: 40, height: 30, alpha: 0.6 }],
  ['a cell that is nearly empty', { uid: -1, fill: 0.01 }, { alpha: 0.25 }],
  ['a cell of the host', { uid: -1, fill: 0.6, place: PLACE.host }, { alpha: 0.3 }]
])('a block of the map is drawn in its place: %s', (_, change, wanted) => {
  const found = shape(change);
  for (const [name, value] of Object.entries(wanted)) {
    expect(found?.[name as keyof typeof found], name).toBeCloseTo(value);
  }
});

test.each([
  [-3, -1],
  [11, 12]
])('a block from %d to %d is out of sight', (x0, x1) => {
  expect(shape({ x0, x1 })).toBeNull();
});
