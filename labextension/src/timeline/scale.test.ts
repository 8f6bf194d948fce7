import { describe, expect, test } from 'vitest';

import { carried, clamp, formatAt, pan, Scale, tickLabel, ticks, wheeled, zoom } from './scale';

test('positions and pixels are each other’s inverse', () => {
  const scale = new Scale(10, 30, 400);
  expect(scale.x(10)).toBe(0);
  expect(scale.x(30)).toBe(400);
  expect(scale.at(scale.x(17.3))).toBeCloseTo(17.3);
});

test('zooming keeps what is under the pointer where it is', () => {
  const before = { start: 2, end: 10 };
  const after = zoom(before, 0.5, 4);
  expect(after).toEqual({ start: 3, end: 7 });
  expect(new Scale(after.start, after.end, 100).x(4)).toBeCloseTo(new Scale(2, 10, 100).x(4));
});

describe('the wheel', () => {
  const scale = new Scale(0, 100, 400);
  const still = { deltaX: 0, deltaY: 0, deltaMode: 0, shiftKey: false, offsetX: 100 };
  test('zooms around the pointer, as far in lines as in pixels', () => {
    const closer = wheeled(scale, { ...still, deltaY: -160 });
    expect(closer.end - closer.start).toBeCloseTo(100 * Math.exp(-0.256));
    expect(new Scale(closer.start, closer.end, 400).at(100)).toBeCloseTo(25);
    expect(wheeled(scale, { ...still, deltaY: -10, deltaMode: 1 })).toEqual(closer);
  });
  test('pans sideways, and with Shift', () => {
    const along = { start: 10, end: 110 };
    expect(wheeled(scale, { ...still, deltaX: 40, deltaY: 3 })).toEqual(along);
    expect(wheeled(scale, { ...still, deltaY: 40, shiftKey: true })).toEqual(along);
  });
});

describe('clamp', () => {
  test('stops panning at both ends, and keeps the length', () => {
    expect(clamp({ start: -5, end: 5 }, 100, 0)).toEqual({ start: 0, end: 10 });
    expect(clamp(pan({ start: 95, end: 100 }, 20), 100, 0)).toEqual({ start: 95, end: 100 });
  });
  test('never shows more than there is, nor less than the least', () => {
    expect(clamp({ start: -50, end: 500 }, 100, 0)).toEqual({ start: 0, end: 100 });
    expect(clamp({ start: 50, end: 50.1 }, 100, 2)).toEqual({ start: 49.05, end: 51.05 });
  });
});

test('ticks are round, within sight and at least a gap apart', () => {
  for (const [start, end] of [
    [0, 1.83],
    [0.2471, 0.2473],
    [17, 90000]
  ]) {
    const scale = new Scale(start, end, 800);
    const { at, step } = ticks(scale, 90);
    expect(at.length).toBeGreaterThan(1);
    expect(at.every(x => x >= start && x <= end)).toBe(true);
    expect((step / scale.span) * 800).toBeGreaterThanOrEqual(90);
    expect([1, 2, 5]).toContain(Math.round(step / 10 ** Math.floor(Math.log10(step * 1.0001))));
  }
});

test('ticks between ops would name no op', () => {
  expect(ticks(new Scale(0, 3, 800), 90, true).step).toBe(1);
});

test('tick labels have as many digits as the distance between them needs', () => {
  expect(tickLabel(1.5, 0.5)).toBe('1.5 s');
  expect(tickLabel(0.2, 0.05)).toBe('200 ms');
  expect(tickLabel(0.2, 1e-3, 0.9)).toBe('200 ms');
  expect(tickLabel(0, 0.05)).toBe('0 ms');
  expect(tickLabel(2e-5, 1e-5)).toBe('20 µs');
});

test('deep in a step they keep the step’s unit, so that no number is long', () => {
  expect(tickLabel(0.291832, 5e-6)).toBe('291.832 ms');
  expect(tickLabel(1.8351, 1e-4)).toBe('1.8351 s');
  expect(tickLabel(0.24712, 1e-5)).toBe('247.12 ms');
});

test('times are told apart at every zoom', () => {
  expect(formatAt(1.8423, 10)).toBe('1.84 s');
  expect(formatAt(1.8423, 0.16)).toBe('1.8423 s');
  expect(formatAt(0.0446, 0.56)).toBe('44.6 ms');
  expect(formatAt(0, 0.56)).toBe('0.0 ms');
  const shown = new Scale(1.84, 2, 900);
  const texts = new Set(Array.from({ length: 900 }, (_, x) => formatAt(shown.at(x), shown.span)));
  expect(texts.size).toBeGreaterThan(850);
});

test.each<[string, [number, number], number | null, number, boolean, [number, number]]>([
  ['nothing was drawn', [0, 1], null, 20, false, [0, 20]],
  ['all was shown', [0, 10], 10, 20, false, [0, 20]],
  ['nearly all was shown', [0.001, 10], 10, 20, false, [0, 20]],
  ['a part was shown', [2, 5], 10, 20, false, [4, 10]],
  ['a part of a longer step was shown', [4, 10], 20, 10, false, [2, 5]],
  ['a part is drawn in another way', [2, 5], 10, 20, true, [2, 5]],
  ['all is drawn in another way', [0, 10], 10, 20, true, [0, 20]],
  ['a step that took no time was shown', [0, 0], 0, 20, false, [0, 20]]
])('where %s, that part of the next steps is', (_, [start, end], before, length, redrawn, to) => {
  expect(carried({ start, end }, before, length, redrawn)).toEqual({ start: to[0], end: to[1] });
});
