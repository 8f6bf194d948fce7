import { expect, test } from 'vitest';

import { hitTest, type IHit } from './hit';
import { layTracks, residentY, type TrackName, trackAt } from './layout';
import { Scale } from './scale';
import { type IView, lastAtMost } from './tables';

const layout = layTracks(500, true, true);
const none = { x0: [], x1: [], row: [], count: [], fill: [] };
const view = {
  start: 0,
  map_bytes: 100,
  stages: none,
  layers: none,
  modules: none,
  ops: { x0: [0, 10, 20], x1: [9, 19, 20.001], row: [4, 5, 6], count: [1, 1, 3], fill: [1, 1, 1] },
  out: none,
  in: none,
  stalls: none,
  replays: { x0: [30], x1: [34], row: [2], count: [1], fill: [1] },
  blocks: { x0: [0, 50], x1: [40, 90], y0: [0, 50], y1: [50, 100], uid: [7, -1] }
} as unknown as IView;
const scale = new Scale(0, 100, 1000);
const at = (track: 'ops' | 'replays' | 'blocks', share = 0.5) =>
  layout[track].top + layout[track].height * share;

test('finds the op under the pointer, and a thin one near it', () => {
  expect(hitTest(view, layout, scale, 150, at('ops'))).toMatchObject({
    point: { track: 'ops', row: 5 },
    count: 1
  });
  expect(hitTest(view, layout, scale, 202, at('ops'))).toMatchObject({
    point: { track: 'ops', row: 6 },
    count: 3
  });
  expect(hitTest(view, layout, scale, 400, at('ops'))).toMatchObject({ track: 'ops', index: -1 });
});

test('finds replays in their own track, which is not there without any', () => {
  expect(hitTest(view, layout, scale, 320, at('replays'))?.point).toEqual({
    track: 'replays',
    row: 2
  });
  const without = layTracks(500, false);
  expect(without.replays.height).toBe(0);
  expect(without.resident.top).toBeLessThan(layout.resident.top);
  for (let y = 0; y < without.bottom; y++) {
    expect(trackAt(without, y)).not.toBe('replays');
  }
});

test('finds blocks by bytes, bottom up; a cell of the raster names no storage', () => {
  expect(hitTest(view, layout, scale, 100, at('blocks', 0.75))?.point).toEqual({
    track: 'blocks',
    row: 7
  });
  const cell = hitTest(view, layout, scale, 700, at('blocks', 0.25));
  expect(cell).toMatchObject({ track: 'blocks', index: 1 });
  expect(cell?.point).toBeUndefined();
});

test.each<[string, TrackName, number, number, Partial<IHit>]>([
  ['the left part of an op', 'ops', 0.4, 10, { index: 0, x0: 0, x1: 9, count: 1 }],
  ['nothing near an op', 'ops', 0.5, 500, { index: -1, count: 0 }],
  ['a layer, which the kernel is not asked about', 'layers', 0.5, 55, { index: 0, count: 1 }],
  ['no bar of a track without any', 'resident', 0.5, 100, { index: -1, count: 0 }],
  ['the ruler', 'ruler', 0.5, 100, { index: -1, count: 0 }],
  ['a block', 'blocks', 0.75, 100, { index: 0, x0: 0, x1: 40, count: 1 }],
  ['a cell, which is no storage', 'blocks', 0.25, 700, { index: 1, count: 0 }],
  ['no block at a time without one', 'blocks', 0.75, 450, { index: -1 }],
  ['no block at bytes without one', 'blocks', 0.25, 100, { index: -1 }]
])('what is hit is %s', (what, track, share, x, wanted) => {
  const y = layout[track].top + layout[track].height * share;
  const layers = { ...none, x0: [5], x1: [8], row: [3], count: [1], fill: [1] };
  const found = hitTest({ ...view, layers } as unknown as IView, layout, scale, x, y);
  expect(found).toMatchObject({ track, ...wanted });
  expect(found?.point !== undefined).toBe(/^(the left part of an op|a block)$/.test(what));
});

test('a block that is thinner than a pixel is hit where it is drawn; the upper of two is', () => {
  const thin = { x0: [0, 0], x1: [40, 40], y0: [50, 50], y1: [50.001, 50.001], uid: [7, 8] };
  const found = hitTest(
    { ...view, blocks: thin } as unknown as IView,
    layout,
    scale,
    100,
    at('blocks', 0.5)
  );
  expect(found?.point).toEqual({ track: 'blocks', row: 8 });
});

test('outside the tracks nothing is hit', () => {
  expect(hitTest(view, layout, scale, 100, layout.bottom + 50)).toBeNull();
});

test('tracks follow each other without overlap, and all have room in a low panel', () => {
  for (const height of [200, 420, 900]) {
    const low = layTracks(height, true, true);
    let bottom = 0;
    for (const box of Object.values(low)) {
      if (typeof box === 'object') {
        expect(box.top).toBeGreaterThanOrEqual(bottom);
        expect(box.height).toBeGreaterThan(10);
        bottom = box.top + box.height;
      }
    }
    expect(low.bottom).toBeGreaterThanOrEqual(bottom);
  }
  expect(trackAt(layout, layout.out.top + 3)).toBe('out');
  expect(trackAt(layout, -20)).toBeNull();
});

test('the resident track is linear to the capacity, and holds the unswapped peak above it', () => {
  const box = { top: 100, height: 100 };
  const y = residentY(box, 50, 400);
  expect(y(0)).toBe(200);
  expect(y(25) - y(50)).toBeCloseTo(y(0) - y(25));
  expect(y(50)).toBeGreaterThan(130);
  expect(y(400)).toBeGreaterThan(100);
  expect(y(400)).toBeLessThan(y(200));
  expect(residentY(box, null, 100)(100)).toBeGreaterThan(100);
});

test('lastAtMost searches a sorted column', () => {
  const column = Float64Array.from([1, 2, 2, 5]);
  expect([0, 1, 2, 3, 9].map(x => lastAtMost(column, x))).toEqual([-1, 0, 2, 2, 3]);
});
