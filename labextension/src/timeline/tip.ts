// What the tip says of what is under the pointer: a function a kind.

import { formatBytes, formatCount, formatPercent, formatSeconds } from '../format';
import type { Axis, IPoint, IScene } from '../protocol';
import { trans } from '../texts';
import { ownFrames, storageName } from '../words';
import type { IHit } from './hit';
import type { IView } from './tables';

export interface ITip {
  title: string;
  rows: [name: string, value: string][];
}

/** What is drawn, as far as a tip tells of it. */
export interface IDrawn {
  scene: IScene | null;
  view: IView | null;
  axis: Axis;
}

type Told<Kind extends keyof IPoint> = NonNullable<IPoint[Kind]>;

/** What a block says of its bytes, by `PLACE`. */
const WHERE = [
  () => trans.__('on the device'),
  () => trans.__('away, on the host'),
  () => trans.__('dropped, until a replay makes it again')
];

/** The tip for what was hit, and for what the kernel knows of it, where it was asked. */
export function tipOf(hit: IHit, point: IPoint, drawn: IDrawn): ITip {
  const { title, rows } = tellPoint(point, hit, drawn) ?? tellDrawn(hit, drawn);
  return hit.count > 1
    ? {
        title,
        rows: [
          ...rows,
          [
            trans.__('Here'),
            trans._n(
              '%2 in this pixel; this is the longest',
              '%2 in this pixel; this is the longest',
              hit.count,
              formatCount(hit.count)
            )
          ]
        ]
      }
    : { title, rows };
}

/** What the stage, layer, module or marker of a hit is called; empty for anything else. */
export function spanName({ track, index }: IHit, { scene, view }: IDrawn): string {
  if (index < 0 || !scene || !view) {
    return '';
  }
  if (track === 'marks') {
    return scene.mark_names[view.marks.label[index]] ?? '';
  }
  if (track === 'stages' || track === 'layers' || track === 'modules') {
    return scene[track][view[track].label[index]] ?? '';
  }
  return '';
}

function tellPoint(point: IPoint, hit: IHit, drawn: IDrawn): ITip | null {
  if (point.op) {
    return tellOp(point.op);
  }
  if (point.transfer) {
    return tellTransfer(point.transfer);
  }
  if (point.stall) {
    return tellStall(point.stall);
  }
  if (point.replay) {
    return tellReplay(point.replay);
  }
  return point.storage ? tellStorage(point.storage, hit, drawn) : null;
}

/** What the drawing says without the kernel: the floor's line, or a span. */
function tellDrawn(hit: IHit, drawn: IDrawn): ITip {
  return hit.track === 'resident' && drawn.scene
    ? tellFloor(drawn.scene.floor)
    : tellSpan(hit, drawn);
}

function tellOp(op: Told<'op'>): ITip {
  const rows: ITip['rows'] = [
    [trans.__('Module'), op.module || trans.__('outside any')],
    [trans.__('Stage'), opPlace(op)],
    [trans.__('Time'), opTime(op)],
    [
      trans.__('Touches'),
      trans._n(
        '%1 storages, %2',
        '%1 storages, %2',
        op.touches.count,
        formatBytes(op.touches.bytes)
      )
    ]
  ];
  if (op.stack.length) {
    rows.push([trans.__('Stack'), ownFrames(op.stack)[0] ?? op.stack[0]]);
  }
  return { title: op.name, rows };
}

/** Where in the run an op is. */
export function opPlace({ stage, op, step }: { stage: string; op: number; step: number }): string {
  return trans.__('%1, op %2 of step %3', stage, formatCount(op), step);
}

/** What an op took, and what of that it did not compute in. */
export function opTime(op: { duration_s: number; stall_s: number; replay_s: number }): string {
  const [all, stall, replays] = [op.duration_s, op.stall_s, op.replay_s].map(formatSeconds);
  if (op.stall_s) {
    return op.replay_s
      ? trans.__('%1, of which stall %2, replays %3', all, stall, replays)
      : trans.__('%1, of which stall %2', all, stall);
  }
  return op.replay_s ? trans.__('%1, replays %2', all, replays) : all;
}

function tellTransfer(transfer: Told<'transfer'>): ITip {
  const { storage, direction, cause, bytes, duration_s, hidden, waited_s } = transfer;
  return {
    title: direction === 'out' ? trans.__('Swap-out, %1', cause) : trans.__('Swap-in, %1', cause),
    rows: [
      [trans.__('Storage'), storage ? storageName(storage) : trans.__('died before the step')],
      [trans.__('Bytes'), formatBytes(bytes)],
      [
        trans.__('Time'),
        trans.__('%1, %2 hidden', formatSeconds(duration_s), formatPercent(hidden))
      ],
      [trans.__('Queued'), formatSeconds(waited_s)]
    ]
  };
}

function tellStall({ duration_s, direction, cause, why, storage, op }: Told<'stall'>): ITip {
  const parts = why.split('; ').filter(Boolean);
  return {
    title: trans.__('Stall %1', formatSeconds(duration_s)),
    rows: [
      [trans.__('Waits for'), direction === 'out' ? trans.__('a swap-out') : trans.__('a swap-in')],
      [trans.__('Cause'), cause],
      ...parts.map((part): [string, string] => [trans.__('Of it'), part]),
      [trans.__('Storage'), storage ? storageName(storage) : trans.__('unknown')],
      [trans.__('Op'), op ? `${op.name} ${op.module}` : trans.__('outside any')]
    ]
  };
}

function tellReplay({ name, storage, bytes, duration_s, cause, op }: Told<'replay'>): ITip {
  return {
    title: trans.__('↻ %1, replayed', name),
    rows: [
      [trans.__('Makes'), storage ? storageName(storage) : trans.__('what died before the step')],
      [trans.__('Module'), storage?.module || trans._p('module', 'none')],
      [trans.__('Bytes'), formatBytes(bytes)],
      [trans.__('Time'), formatSeconds(duration_s)],
      [trans.__('Cause'), cause],
      [trans.__('For'), op ? `${op.name} ${op.module}` : trans.__('outside any op')]
    ]
  };
}

function tellStorage(storage: Told<'storage'>, hit: IHit, { view }: IDrawn): ITip {
  return {
    title: storageName(storage),
    rows: [
      [trans.__('Module'), storage.module || trans._p('module', 'none')],
      [trans.__('Bytes'), formatBytes(storage.bytes)],
      [trans.__('Here'), WHERE[view?.blocks.place[hit.index] ?? 0]?.() ?? '']
    ]
  };
}

function tellFloor({ bytes, op, module, measured_on }: IScene['floor']): ITip {
  return {
    title: trans.__('Floor %1', formatBytes(bytes)),
    rows: [
      [trans.__('Set by'), `${op} ${module}`],
      [trans.__('Here'), measured_on]
    ]
  };
}

function tellSpan(hit: IHit, drawn: IDrawn): ITip {
  const length = hit.x1 - hit.x0;
  return {
    title: spanName(hit, drawn),
    rows: [
      drawn.axis === 'time'
        ? [trans.__('Time'), formatSeconds(length)]
        : [trans.__('Ops'), formatCount(Math.round(length))],
      [trans.__('Click'), trans.__('sums it up')]
    ]
  };
}
