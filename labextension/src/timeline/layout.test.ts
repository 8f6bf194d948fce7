import { describe, expect, test } from 'vitest';

import { layTracks, residentTicks, residentY, trackAt } from './layout';

describe('the lanes share the height', () => {
  test.each([
    [false, false, 300],
    [true, false, 300],
    [true, true, 312]
  ])(
    'all of them are in sight, replays: %s, marks: %s, from %s pixels on',
    (replays, marks, least) => {
      for (let height = least; height < 900; height += 7) {
        const layout = layTracks(height, replays, marks);
        expect(layout.bottom).toBeLessThanOrEqual(height);
        expect(layout.resident.height).toBeGreaterThanOrEqual(54);
        expect(layout.blocks.height).toBeGreaterThanOrEqual(36);
      }
    }
  );

  test('a folded one takes no room, and gives its own to the block map', () => {
    const all = layTracks(400, true, true);
    const few = layTracks(400, true, true, new Set(['out', 'away', 'marks'] as const));
    expect([few.out.height, few.away.height, few.marks.height]).toEqual([0, 0, 0]);
    expect(few.blocks.height + few.resident.height).toBeGreaterThan(
      all.blocks.height + all.resident.height
    );
    expect(trackAt(few, few.in.top + 2)).toBe('in');
    expect(few.bottom).toBeLessThanOrEqual(400);
  });

  test('a pinned one lies below the ruler, with those in order, and takes the room that it took', () => {
    const plain = layTracks(400, true, true);
    expect(plain.head).toBe(0);
    const pinned = new Set(['resident', 'stalls', 'in', 'blocks', 'minimap'] as const);
    const layout = layTracks(400, true, true, new Set(['modules'] as const), pinned);
    const order = [
      'minimap',
      'ruler',
      'in',
      'stalls',
      'resident',
      'stages',
      'ops',
      'away',
      'blocks'
    ];
    const tops = order.map(name => layout[name as 'in'].top);
    expect(tops).toEqual([...tops].sort((a, b) => a - b));
    expect(layout.head).toBeGreaterThanOrEqual(layout.resident.top + layout.resident.height);
    expect(layout.head).toBeLessThanOrEqual(layout.stages.top);
    expect(layTracks(400, true, true, undefined, pinned).bottom).toBe(plain.bottom);
    expect(trackAt(layout, layout.stalls.top + 2)).toBe('stalls');
    // What is folded away stays so.
    expect(
      layTracks(400, true, true, new Set(['in'] as const), new Set(['in'] as const)).head
    ).toBe(0);
  });

  test('none lies on another, and each can be pointed at', () => {
    for (const height of [200, 300, 360, 500]) {
      const layout = layTracks(height, true, true);
      const boxes = Object.entries(layout).filter(
        ([name]) => name !== 'bottom' && name !== 'head'
      ) as [keyof typeof layout, { top: number; height: number }][];
      boxes.sort((a, b) => a[1].top - b[1].top);
      boxes.forEach(([name, box], i) => {
        expect(box.height).toBeGreaterThanOrEqual(8);
        expect(trackAt(layout, box.top + box.height / 2)).toBe(name);
        if (i) {
          const before = boxes[i - 1][1];
          expect(box.top).toBeGreaterThanOrEqual(before.top + before.height);
        }
      });
    }
  });

  test('a tall timeline has the full ones', () => {
    const layout = layTracks(620, false);
    expect(layout.minimap.height).toBe(32);
    expect(layout.ops.height).toBe(18);
    expect(layout.resident.height).toBe(160);
  });
});

describe('the axis of the resident lane', () => {
  const box = { top: 100, height: 100 };

  test('is labeled on both of its parts where it breaks', () => {
    const { ticks, breakY } = residentTicks(box, 100, 400);
    const y = residentY(box, 100, 400);
    expect(ticks.map(tick => tick.bytes)).toEqual([400, 50]);
    for (const tick of ticks) {
      expect(tick.y).toBeCloseTo(y(tick.bytes));
    }
    expect(breakY).toBeCloseTo(y(104));
  });

  test('has no break where all of it is linear', () => {
    const { ticks, breakY } = residentTicks(box, null, 400);
    expect(breakY).toBeNull();
    expect(ticks.map(tick => tick.bytes)).toEqual([400, 200]);
  });
});
