import { expect, test } from 'vitest';

import type { IOp, IPoint, IScene, IStorage } from '../protocol';
import type { IHit } from './hit';
import type { IView } from './tables';
import { type IDrawn, opTime, spanName, tipOf } from './tip';

const STORAGE = {
  uid: 7,
  key: 'h.0/aten::gelu.0',
  bytes: 2048,
  module: 'h.0',
  category: 3
} as IStorage;
const OP = {
  name: 'aten::gelu',
  module: 'h.0',
  stage: 'forward',
  step: 5,
  op: 1200,
  duration_s: 0.5,
  stall_s: 0,
  replay_s: 0,
  stack: [] as string[]
} as IOp;
const TOUCHES = { count: 2, bytes: 4096, storages: [] };
const DRAWN: IDrawn = {
  scene: {
    stages: ['forward', 'backward'],
    layers: ['h.0'],
    modules: ['h.0.up'],
    mark_names: ['my step'],
    floor: { bytes: 1024, op: 'aten::mm', module: 'h.1', measured_on: 'measured on a CPU' }
  } as unknown as IScene,
  view: {
    stages: { label: [1] },
    layers: { label: [0] },
    modules: { label: [0] },
    marks: { label: [0] },
    blocks: { place: [0, 1, 2, 9] }
  } as unknown as IView,
  axis: 'time'
};

function hit(track: IHit['track'], more: Partial<IHit> = {}): IHit {
  return { track, count: 1, index: 0, x0: 1, x1: 1.25, ...more };
}

test.each<[string, IHit, object, string, [string, string][]]>([
  [
    'an op',
    hit('ops'),
    { op: { ...OP, touches: TOUCHES } },
    'aten::gelu',
    [
      ['Module', 'h.0'],
      ['Stage', 'forward, op 1,200 of step 5'],
      ['Time', '500 ms'],
      ['Touches', '2 storages, 4.00 KiB']
    ]
  ],
  [
    'an op outside of any module, with the line that the person wrote',
    hit('ops'),
    {
      op: {
        ...OP,
        module: '',
        stack: ['/lib/python3.11/site-packages/torch/nn.py:1', '/home/me/train.py:9'],
        touches: TOUCHES
      }
    },
    'aten::gelu',
    [
      ['Module', 'outside any'],
      ['Stage', 'forward, op 1,200 of step 5'],
      ['Time', '500 ms'],
      ['Touches', '2 storages, 4.00 KiB'],
      ['Stack', '/home/me/train.py:9']
    ]
  ],
  [
    'a swap-out',
    hit('out'),
    {
      transfer: {
        direction: 'out',
        cause: 'planned',
        storage: STORAGE,
        bytes: 2048,
        duration_s: 0.25,
        hidden: 0.5,
        waited_s: 0.001
      }
    },
    'Swap-out, planned',
    [
      ['Storage', 'output of gelu'],
      ['Bytes', '2.00 KiB'],
      ['Time', '250 ms, 50.0 % hidden'],
      ['Queued', '1.00 ms']
    ]
  ],
  [
    'a swap-in of what has died',
    hit('in'),
    {
      transfer: {
        direction: 'in',
        cause: 'prefetch',
        storage: null,
        bytes: 2048,
        duration_s: 0.25,
        hidden: 1,
        waited_s: 0.001
      }
    },
    'Swap-in, prefetch',
    [
      ['Storage', 'died before the step'],
      ['Bytes', '2.00 KiB'],
      ['Time', '250 ms, 100.0 % hidden'],
      ['Queued', '1.00 ms']
    ]
  ],
  [
    'a stall, with its parts',
    hit('stalls'),
    {
      stall: {
        duration_s: 0.1,
        direction: 'in',
        cause: 'late',
        why: 'the copy 60 ms; the queue 40 ms',
        storage: STORAGE,
        op: OP
      }
    },
    'Stall 100 ms',
    [
      ['Waits for', 'a swap-in'],
      ['Cause', 'late'],
      ['Of it', 'the copy 60 ms'],
      ['Of it', 'the queue 40 ms'],
      ['Storage', 'output of gelu'],
      ['Op', 'aten::gelu h.0']
    ]
  ],
  [
    'a stall of which nothing is known',
    hit('stalls'),
    {
      stall: {
        duration_s: 0.1,
        direction: 'out',
        cause: 'room',
        why: '',
        storage: null,
        op: null
      }
    },
    'Stall 100 ms',
    [
      ['Waits for', 'a swap-out'],
      ['Cause', 'room'],
      ['Storage', 'unknown'],
      ['Op', 'outside any']
    ]
  ],
  [
    'a replay',
    hit('replays'),
    {
      replay: {
        name: 'aten::gelu',
        cause: 'planned',
        bytes: 2048,
        duration_s: 0.1,
        storage: STORAGE,
        op: OP
      }
    },
    '↻ aten::gelu, replayed',
    [
      ['Makes', 'output of gelu'],
      ['Module', 'h.0'],
      ['Bytes', '2.00 KiB'],
      ['Time', '100 ms'],
      ['Cause', 'planned'],
      ['For', 'aten::gelu h.0']
    ]
  ],
  [
    'a replay of what has died',
    hit('replays'),
    {
      replay: {
        name: 'aten::gelu',
        cause: 'planned',
        bytes: 2048,
        duration_s: 0.1,
        storage: null,
        op: null
      }
    },
    '↻ aten::gelu, replayed',
    [
      ['Makes', 'what died before the step'],
      ['Module', 'none'],
      ['Bytes', '2.00 KiB'],
      ['Time', '100 ms'],
      ['Cause', 'planned'],
      ['For', 'outside any op']
    ]
  ],
  [
    'a storage on the host',
    hit('blocks', { index: 1 }),
    { storage: STORAGE },
    'output of gelu',
    [
      ['Module', 'h.0'],
      ['Bytes', '2.00 KiB'],
      ['Here', 'away, on the host']
    ]
  ],
  [
    'a storage that is dropped',
    hit('blocks', { index: 2 }),
    { storage: { ...STORAGE, module: '' } },
    'output of gelu',
    [
      ['Module', 'none'],
      ['Bytes', '2.00 KiB'],
      ['Here', 'dropped, until a replay makes it again']
    ]
  ],
  [
    'a storage where no panel knows one',
    hit('blocks', { index: 3 }),
    { storage: STORAGE },
    'output of gelu',
    [
      ['Module', 'h.0'],
      ['Bytes', '2.00 KiB'],
      ['Here', '']
    ]
  ],
  [
    'the floor',
    hit('resident'),
    {},
    'Floor 1.00 KiB',
    [
      ['Set by', 'aten::mm h.1'],
      ['Here', 'measured on a CPU']
    ]
  ],
  [
    'a stage',
    hit('stages'),
    {},
    'backward',
    [
      ['Time', '250 ms'],
      ['Click', 'sums it up']
    ]
  ]
])('the tip tells of %s', (_, at, point, title, rows) => {
  expect(tipOf(at, point as IPoint, DRAWN)).toEqual({ title, rows });
});

test('a span is told in ops on the axis of ops', () => {
  const { rows } = tipOf(hit('layers', { x0: 2, x1: 14 }), {}, { ...DRAWN, axis: 'op' });
  expect(rows).toEqual([
    ['Ops', '12'],
    ['Click', 'sums it up']
  ]);
});

test('one pixel may stand for several things', () => {
  const { rows } = tipOf(hit('stages', { count: 1500 }), {}, DRAWN);
  expect(rows.at(-1)).toEqual(['Here', '1,500 in this pixel; this is the longest']);
});

test.each<[IHit, string]>([
  [hit('stages'), 'backward'],
  [hit('layers'), 'h.0'],
  [hit('modules'), 'h.0.up'],
  [hit('marks'), 'my step'],
  [hit('ops'), ''],
  [hit('stages', { index: -1 }), ''],
  [hit('stages', { index: 3 }), '']
])('the span under %o is %j', (at, name) => {
  expect(spanName(at, DRAWN)).toBe(name);
  expect(spanName(at, { ...DRAWN, view: null })).toBe('');
});

test.each([
  [0, 0, '500 ms'],
  [0.1, 0, '500 ms, of which stall 100 ms'],
  [0, 0.2, '500 ms, replays 200 ms'],
  [0.1, 0.2, '500 ms, of which stall 100 ms, replays 200 ms']
])('of an op, stalls of %d s and replays of %d s are told', (stall_s, replay_s, text) => {
  expect(opTime({ duration_s: 0.5, stall_s, replay_s })).toBe(text);
});
