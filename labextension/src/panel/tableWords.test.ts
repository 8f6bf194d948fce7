import { expect, test } from 'vitest';

import type { IAlive, IScene, ISearch } from '../protocol';
import { hasReplays, tabInFront, tableSaid } from './tableWords';

const MIB = 1024 ** 2;
const ALIVE = {
  op: { name: 'aten::mm', module: 'h.0' },
  resident_bytes: 3 * MIB,
  away_bytes: 2 * MIB,
  dropped_bytes: 0,
  can_leave_bytes: MIB
} as IAlive;
const FOUND = {
  storages: [{}, {}],
  storage_count: 2,
  storage_bytes: 3 * MIB,
  op_count: 4,
  replay_count: 1,
  declined_count: 0
} as ISearch;
const LISTED = { found: FOUND, alive: ALIVE, query: '', scene: { ops: 1200 } as IScene };
const NOTHING = { found: null, alive: null, query: '', scene: null };

test.each<[string, object, string]>([
  [
    'alive',
    LISTED,
    'At aten::mm in h.0: 3.00 MiB on the device, 2.00 MiB away, 1.00 MiB could leave'
  ],
  [
    'alive',
    {
      ...LISTED,
      alive: { ...ALIVE, op: { name: 'aten::mm', module: '' }, dropped_bytes: 5 * MIB }
    },
    'At aten::mm: 3.00 MiB on the device, 2.00 MiB away, 5.00 MiB dropped, 1.00 MiB could leave'
  ],
  ['alive', NOTHING, ''],
  ['replays', LISTED, '1 replay of the storages found'],
  [
    'replays',
    { ...LISTED, found: { ...FOUND, replay_count: 3, declined_count: 1 } },
    '3 replays, 1 drop declined of the storages found'
  ],
  ['replays', NOTHING, '0 replays of the storages found'],
  ['ops', LISTED, 'Search to list ops'],
  ['ops', { ...LISTED, query: '  ' }, 'Search to list ops'],
  ['ops', { ...LISTED, query: 'mm' }, '4 ops of 1,200'],
  ['ops', { ...NOTHING, query: 'mm' }, '0 ops of 0'],
  ['storages', LISTED, '2 storages, 3.00 MiB'],
  [
    'storages',
    { ...LISTED, found: { ...FOUND, storage_count: 700 } },
    '700 storages, 3.00 MiB; the largest 2 are listed'
  ],
  ['storages', NOTHING, '0 storages, 0 B']
])('the table of %s: %#', (tab, listed, said) => {
  expect(tableSaid(tab, listed as typeof LISTED)).toBe(said);
});

test.each<[object | null, boolean]>([
  [null, false],
  [{ replays: 0, declined: 0 }, false],
  [{ replays: 2, declined: 0 }, true],
  [{ replays: 0, declined: 1 }, true]
])('of %j, replays are shown: %s', (scene, shown) => {
  expect(hasReplays(scene as IScene | null)).toBe(shown);
});

test.each([
  ['ops', [], true, 'ops'],
  ['replays', ['replays'], true, 'storages'],
  ['replays', ['replays'], false, 'replays'],
  ['replays', [], true, 'replays'],
  ['range', ['range', 'replays'], true, 'storages'],
  ['range', ['range', 'replays'], false, 'storages']
])(
  '%s in front, with %j hidden (steps known: %s), leaves %s there',
  (tab, hidden, known, front) => {
    expect(tabInFront(tab, new Set(hidden), known)).toBe(front);
  }
);
