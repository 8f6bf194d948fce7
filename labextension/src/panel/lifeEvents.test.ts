import { expect, test } from 'vitest';

import type { IStorageDetail } from '../protocol';
import { lifeEvents } from './lifeEvents';

const NOTHING = {
  born: null,
  uses: [],
  transfers: [],
  stalls: [],
  replays: [],
  declined: []
} as unknown as IStorageDetail;
const GELU = { row: 4, name: 'aten::gelu', stage: 'forward', module: 'h.0', x0: 1 };
const MM = { row: 9, name: 'aten::mm', stage: 'backward', module: '', x0: 5 };

/** Each event as its mark, text and detail. */
function told(change: object): string[][] {
  return lifeEvents({ ...NOTHING, ...change } as IStorageDetail).map(({ mark, text, detail }) => [
    mark,
    text,
    detail
  ]);
}

test.each<[string, object, string[][]]>([
  ['nothing', {}, []],
  [
    'what makes it, and what uses it',
    { born: GELU, uses: [GELU, MM] },
    [
      ['◆', 'Made by gelu', 'forward, h.0'],
      ['▲', 'Used by mm', 'backward']
    ]
  ],
  ['a use of what was there before', { uses: [GELU] }, [['▲', 'Used by gelu', 'forward, h.0']]],
  [
    'a use by an op that did not make it',
    { born: MM, uses: [GELU] },
    [['▲', 'Used by gelu', 'forward, h.0']]
  ],
  [
    'its transfers',
    {
      transfers: [
        { x0: 2, direction: 'out', duration_s: 0.01, cause: 'planned', hidden: 1 },
        { x0: 3, direction: 'in', duration_s: 0.02, cause: 'prefetch', hidden: 0.5 }
      ]
    },
    [
      ['↓', 'Swapped out in 10.0 ms', 'planned, 100.0 % hidden'],
      ['↑', 'Swapped in in 20.0 ms', 'prefetch, 50.0 % hidden']
    ]
  ],
  [
    'its stalls',
    {
      stalls: [
        { x0: 2, duration_s: 0.1, op: MM },
        { x0: 3, duration_s: 0.1, op: null }
      ]
    },
    [
      ['!', 'Stall 100 ms', 'mm'],
      ['!', 'Stall 100 ms', '']
    ]
  ],
  [
    'its replays',
    {
      replays: [
        { x0: 2, name: 'aten::gelu', duration_s: 0.1, op: MM, cause: 'planned' },
        { x0: 3, name: 'aten::gelu', duration_s: 0.1, op: null, cause: 'pressure' }
      ]
    },
    [
      ['↻', 'Made again by gelu in 100 ms', 'for mm, planned'],
      ['↻', 'Made again by gelu in 100 ms', 'pressure']
    ]
  ],
  [
    'a drop that was declined',
    { declined: [{ x0: 2, why: 'h.0/aten::gelu.0 has changed' }] },
    [['✕', 'Drop declined', 'the output of gelu in h.0 has changed']]
  ]
])('the life of a storage tells of %s', (_, change, wanted) => {
  expect(told(change)).toEqual(wanted);
});

test('events are told in the order of the axis, and stalls as losses', () => {
  const events = lifeEvents({
    ...NOTHING,
    uses: [GELU, MM],
    stalls: [{ x0: 3, duration_s: 0.1, op: null }],
    transfers: [{ x0: 2, direction: 'out', duration_s: 0.01, cause: 'planned', hidden: 1 }]
  } as unknown as IStorageDetail);
  expect(events.map(({ mark }) => mark).join('')).toBe('▲↓!▲');
  expect(events.filter(({ isLoss }) => isLoss).map(({ mark }) => mark)).toEqual(['!']);
});
