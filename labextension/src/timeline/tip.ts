// What the tip says of what is under the pointer: a function a kind.

import { formatBytes, formatCount, formatPercent, formatSeconds } from '../format';
import type { Axis, IPoint, IScene } from '../protocol';
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
const WHERE = ['on the device', 'away, on the host', 'dropped, until a replay makes it again'];

/** The tip for what was hit, and for what the kernel knows of it, where it was asked. */
export function tipOf(hit: IHit, point: IPoint, drawn: IDrawn): ITip {
  const { title, rows } = tellPoint(point, hit, drawn) ?? tellDrawn(hit, drawn);
  return hit.count > 1
    ? {
        title,
        rows: [...rows, ['Here', `${formatCount(hit.count)} in this pixel; this is the longest`]]
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
    ['Module', op.module || 'outside any'],
    ['Stage', `${op.stage}, op ${formatCount(op.op)} of step ${op.step}`],
    ['Time', opTime(op)],
    ['Touches', `${op.touches.count} storages, ${formatBytes(op.touches.bytes)}`]
  ];
  if (op.stack.length) {
    rows.push(['Stack', ownFrames(op.stack)[0] ?? op.stack[0]]);
  }
  return { title: op.name, rows };
}

/** What an op took, and what of that it did not compute in. */
export function opTime(op: { duration_s: number; stall_s: number; replay_s: number }): string {
  const stall = op.stall_s ? `, of which stall ${formatSeconds(op.stall_s)}` : '';
  const replays = op.replay_s ? `, replays ${formatSeconds(op.replay_s)}` : '';
  return formatSeconds(op.duration_s) + stall + replays;
}

function tellTransfer(transfer: Told<'transfer'>): ITip {
  const { storage, direction, cause, bytes, duration_s, hidden, waited_s } = transfer;
  return {
    title: `${direction === 'out' ? 'Swap-out' : 'Swap-in'}, ${cause}`,
    rows: [
      ['Storage', storage ? storageName(storage) : 'died before the step'],
      ['Bytes', formatBytes(bytes)],
      ['Time', `${formatSeconds(duration_s)}, ${formatPercent(hidden)} hidden`],
      ['Queued', formatSeconds(waited_s)]
    ]
  };
}

function tellStall({ duration_s, direction, cause, why, storage, op }: Told<'stall'>): ITip {
  const parts = why.split('; ').filter(Boolean);
  return {
    title: `Stall ${formatSeconds(duration_s)}`,
    rows: [
      ['Waits for', direction === 'out' ? 'a swap-out' : 'a swap-in'],
      ['Cause', cause],
      ...parts.map((part): [string, string] => ['Of it', part]),
      ['Storage', storage ? storageName(storage) : 'unknown'],
      ['Op', op ? `${op.name} ${op.module}` : 'outside any']
    ]
  };
}

function tellReplay({ name, storage, bytes, duration_s, cause, op }: Told<'replay'>): ITip {
  return {
    title: `↻ ${name}, replayed`,
    rows: [
      ['Makes', storage ? storageName(storage) : 'what died before the step'],
      ['Module', storage?.module || 'none'],
      ['Bytes', formatBytes(bytes)],
      ['Time', formatSeconds(duration_s)],
      ['Cause', cause],
      ['For', op ? `${op.name} ${op.module}` : 'outside any op']
    ]
  };
}

function tellStorage(storage: Told<'storage'>, hit: IHit, { view }: IDrawn): ITip {
  return {
    title: storageName(storage),
    rows: [
      ['Module', storage.module || 'none'],
      ['Bytes', formatBytes(storage.bytes)],
      ['Here', WHERE[view?.blocks.place[hit.index] ?? 0]]
    ]
  };
}

function tellFloor({ bytes, op, module, measured_on }: IScene['floor']): ITip {
  return {
    title: `Floor ${formatBytes(bytes)}`,
    rows: [
      ['Set by', `${op} ${module}`],
      ['Here', measured_on]
    ]
  };
}

function tellSpan(hit: IHit, drawn: IDrawn): ITip {
  const length = hit.x1 - hit.x0;
  return {
    title: spanName(hit, drawn),
    rows: [
      drawn.axis === 'time'
        ? ['Time', formatSeconds(length)]
        : ['Ops', formatCount(Math.round(length))],
      ['Click', 'sums it up']
    ]
  };
}
