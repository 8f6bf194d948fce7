import { expect, test } from 'vitest';

import type { IScene, ISessionStatus } from '../protocol';
import { headerFigures, unitApart } from './headerFigures';

const MIB = 1024 ** 2;
const SESSION = {
  source: 'session:1',
  capacity_bytes: 16 * MIB,
  step_s: 0.7,
  stall_s: 0,
  overlap: 1,
  match_rate: 1,
  host_bytes: 2 * MIB,
  host_peak_bytes: 4 * MIB,
  swaps: 3,
  drops: 0,
  declined_drops: {}
} as unknown as ISessionStatus;
const SCENE = {
  steps: [{ index: 7, duration_s: 0.5 }],
  capacity_bytes: MIB / 2,
  peak_bytes: MIB / 4,
  live_peak_bytes: 2 * MIB,
  stall_s: 0.1,
  overlap: 0.9,
  moved_bytes: [MIB, MIB],
  match_rate: 0.5,
  replays: 0,
  replay_s: 0,
  dropped_bytes: 0,
  declined: 0,
  floor: {
    bytes: MIB / 8,
    op: 'aten::addmm',
    module: 'h.0.up',
    measured_on:
      'measured on a CPU (AVX2); the op has no work space, other kernels may want another'
  }
} as unknown as IScene;

function values(...given: Parameters<typeof headerFigures>): Record<string, string> {
  return Object.fromEntries(headerFigures(...given).map(({ name, value }) => [name, value]));
}

test('the figures are those of what is drawn, not of the session beside it', () => {
  const file = { source: 'file:a.parquet', first: 7, last: 7 };
  expect(values(SESSION, file, SCENE, 'measured')).toMatchObject({
    Capacity: '512 KiB',
    'Peak, measured': '256 KiB',
    'Step time': '500 ms',
    Stall: '100 ms',
    Overlap: '90.0 %',
    Moved: '2.00 MiB',
    'Host pool': '–',
    'Match rate': '50.0 %'
  });
  const own = { ...file, source: 'session:1' };
  expect(values(SESSION, own, SCENE, 'measured')['Host pool']).toBe('2.00 MiB');
  const step = headerFigures(SESSION, own, SCENE, 'measured').find(f => f.name === 'Step time');
  expect(step?.more).toBe('step 7; median 700 ms');
});

test('what nobody has measured is a dash, and neither 100 % nor 0', () => {
  const before = headerFigures(SESSION, null, null, 'measured');
  for (const { name, value } of before.filter(({ name }) => name !== 'Capacity')) {
    expect(value, name).toBe('–');
  }
  const still = { ...SCENE, overlap: null, match_rate: null };
  const own = { source: 'session:1', first: 7, last: 7 };
  expect(values(SESSION, own, still, 'measured')).toMatchObject({
    Overlap: '–',
    'Match rate': '–'
  });
});

test('a drawn draft is called predicted', () => {
  const own = { source: 'session:1', first: 7, last: 7 };
  const found = headerFigures(SESSION, own, SCENE, 'draft');
  expect(found.map(({ name }) => name)).toContain('Peak, predicted');
  expect(found.find(({ name }) => name === 'Stall')?.more).toBe('draft, predicted');
});

test('the capacity says what the floor is, and what it was measured on', () => {
  const [capacity] = headerFigures(SESSION, null, SCENE, 'measured');
  expect(capacity.title).toBe(
    'Floor 128 KiB, set by addmm in h.0.up; measured on a CPU (AVX2); the op has no work space, other kernels may want another'
  );
});

test.each<[object, object | null, boolean, string | undefined, string | undefined]>([
  [{}, {}, true, undefined, undefined],
  [{}, null, true, undefined, undefined],
  [{ declined_drops: { a: 2, b: 1 } }, {}, true, '–', '3 declined'],
  [{ declined_drops: { a: 2, b: 1 } }, {}, false, undefined, undefined],
  [
    {},
    { replays: 2, dropped_bytes: MIB, replay_s: 0.1 },
    false,
    '100 ms',
    '2, 1.00 MiB made again'
  ],
  [
    { declined_drops: { a: 2 } },
    { replays: 2, dropped_bytes: MIB, replay_s: 0.1, declined: 1 },
    true,
    '100 ms',
    '2, 1.00 MiB made again; 1 declined'
  ],
  [{}, { declined: 4 }, true, '0', '0, 0 B made again; 4 declined']
])(
  '%#: replays are told where there are some, or should be',
  (session, scene, own, value, more) => {
    const found = headerFigures(
      { ...SESSION, ...session } as ISessionStatus,
      { source: own ? 'session:1' : 'file:a.parquet', first: 7, last: 7 },
      scene && ({ ...SCENE, ...scene } as IScene),
      'measured'
    ).find(({ name }) => name === 'Replays');
    expect([found?.value, found?.more]).toEqual([value, more]);
  }
);

test.each<[object[], string, string, string]>([
  [[{ index: 7, duration_s: 0.5 }], 'file:a.parquet', '500 ms', 'step 7'],
  [[{ index: 7, duration_s: 0.5 }], 'session:1', '500 ms', 'step 7; median 700 ms'],
  [
    [
      { index: 6, duration_s: 0.5 },
      { index: 7, duration_s: 0.7 }
    ],
    'session:1',
    '600 ms',
    'mean of steps 6 to 7'
  ]
])('%#: the step time is the mean of what is drawn', (steps, source, value, more) => {
  const scene = { ...SCENE, steps } as IScene;
  const found = headerFigures(
    SESSION,
    { source, first: 8 - steps.length, last: 7 },
    scene,
    'measured'
  );
  expect(found.find(({ name }) => name === 'Step time')).toEqual({
    id: 'Step time',
    name: 'Step time',
    value,
    more
  });
});

test.each([
  ['12.0 MiB', '12.0', 'MiB'],
  ['90.1 %', '90.1', '%'],
  ['–', '–', ''],
  ['без предела', 'без предела', '']
])('of %s the number is %s, and the unit %j', (value, number, unit) => {
  expect(unitApart(value)).toEqual([number, unit]);
});
