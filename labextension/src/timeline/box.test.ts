import { expect, test } from 'vitest';

import { boxOf, growBox, middleBox, moveBox } from './box';
import { Scale } from './scale';

const TRACK = { top: 100, height: 50 };
const LIMITS = { length: 10, mapBytes: 1000 };

test('a box is the same from whichever corner it is drawn', () => {
  const scale = new Scale(0, 10, 100);
  const box = { start: 2, end: 6, low: 200, high: 800 };
  expect(boxOf({ x: 20, y: 110 }, { x: 60, y: 140 }, scale, TRACK, LIMITS)).toEqual(box);
  expect(boxOf({ x: 60, y: 140 }, { x: 20, y: 110 }, scale, TRACK, LIMITS)).toEqual(box);
});

test('a box ends at the edges of the map and of the axis', () => {
  const scale = new Scale(0, 10, 100);
  const box = boxOf({ x: -50, y: 0 }, { x: 500, y: 900 }, scale, TRACK, LIMITS);
  expect(box).toEqual({ start: 0, end: 10, low: 0, high: 1000 });
});

test('keys move and resize a box within what is shown', () => {
  const shown = { start: 0, end: 9 };
  const box = middleBox(shown, 900);
  expect(box).toEqual({ start: 3, end: 6, low: 300, high: 600 });
  const right = moveBox(box, 1, 0, shown, 900);
  expect(right.start).toBeCloseTo(3.45);
  expect(right.end - right.start).toBeCloseTo(3);
  let far = box;
  for (let i = 0; i < 40; i++) {
    far = moveBox(far, 1, 1, shown, 900);
  }
  expect(far.end).toBeCloseTo(9);
  expect(far.high).toBeCloseTo(900);
  let small = box;
  for (let i = 0; i < 40; i++) {
    small = growBox(small, -1, -1, shown, 900);
  }
  expect(small.end).toBeGreaterThan(small.start);
  expect(small.high).toBeGreaterThan(small.low);
});
