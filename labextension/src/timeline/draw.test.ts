import { expect, test } from 'vitest';

import { tracePath } from './draw';
import { Scale } from './scale';

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
