// Single items of a page's step in words and figures: ops, storages, transfers, stalls, replays.

import type {
  Axis,
  IDeclined,
  IOp,
  IReplay,
  IStall,
  IStorage,
  ITouchingOp,
  ITransfer
} from '../protocol';
import { firstAtLeast } from './lod';
import type { PageScene } from './pageScene';
import { CAUSES, STAGES, WAYS } from './words';

const MOST_TOUCHED = 24;

export function opFacts(scene: PageScene, axis: Axis, op: number): IOp {
  const module = scene.col('op_module')[op];
  const stack = scene.col('op_stack')[op];
  const [start, end] = [scene.col('op_start')[op], scene.col('op_end')[op]];
  return {
    row: op,
    name: scene.texts('op_names')[scene.col('op_name')[op]],
    module: module >= 0 ? scene.texts('op_modules')[module] : '',
    stage: STAGES[scene.col('op_stage')[op]],
    step: scene.data.packed.index,
    op,
    duration_s: end - start,
    stall_s: scene.col('op_stall')[op],
    replay_s: scene.col('op_replay')[op],
    stack: scene.texts('stacks')[stack]?.split('\n') ?? [],
    x0: axis === 'op' ? op : start,
    x1: axis === 'op' ? op + 1 : end
  };
}

export function storageFacts(scene: PageScene, row: number): IStorage {
  const module = scene.col('storage_module')[row];
  return {
    uid: scene.col('storage_uid')[row],
    key: scene.texts('keys')[row],
    bytes: scene.col('storage_bytes')[row],
    category: scene.col('storage_category')[row],
    module: module >= 0 ? scene.texts('storage_modules')[module] : '',
    movable: Boolean(scene.col('storage_movable')[row]),
    form: scene.texts('forms')[scene.col('storage_form')[row]] ?? ''
  };
}

function storageOf(scene: PageScene, row: number): IStorage | null {
  return row >= 0 ? storageFacts(scene, row) : null;
}

export function transferFacts(scene: PageScene, axis: Axis, row: number): ITransfer {
  const of = (column: string) => scene.col(`transfer_${column}`)[row];
  return {
    row,
    direction: WAYS[of('direction')],
    cause: CAUSES[of('cause')],
    bytes: of('bytes'),
    duration_s: of('end') - of('start'),
    waited_s: of('start') - of('issue'),
    hidden: 1 - of('exposed'),
    storage: storageOf(scene, of('storage')),
    x0: scene.xOfTime(axis, of('start')),
    x1: scene.xOfTime(axis, of('end'))
  };
}

/** What stalls and replays have in common. */
function eventFacts(scene: PageScene, axis: Axis, table: 'stall' | 'replay', row: number) {
  const of = (column: string) => scene.col(`${table}_${column}`)[row];
  const op = of('op');
  return {
    row,
    cause: CAUSES[of('cause')] as string,
    duration_s: of('end') - of('start'),
    op: op >= 0 && op < scene.ops ? opFacts(scene, axis, op) : null,
    storage: storageOf(scene, of('storage')),
    x0: scene.xOfTime(axis, of('start')),
    x1: scene.xOfTime(axis, of('end'))
  };
}

export function stallFacts(scene: PageScene, axis: Axis, row: number): IStall {
  return {
    ...eventFacts(scene, axis, 'stall', row),
    direction: WAYS[scene.col('stall_direction')[row]],
    why: scene.texts('why')[row]
  };
}

export function replayFacts(scene: PageScene, axis: Axis, row: number): IReplay {
  return {
    ...eventFacts(scene, axis, 'replay', row),
    name: scene.texts('op_names')[scene.col('replay_name')[row]],
    bytes: scene.col('replay_bytes')[row]
  };
}

export function declinedFacts(scene: PageScene, axis: Axis, row: number): IDeclined {
  const of = (column: string) => scene.col(`declined_${column}`)[row];
  return {
    name: scene.texts('op_names')[of('name')] ?? '',
    why: scene.texts('reasons')[of('reason')],
    op: opFacts(scene, axis, of('op')),
    storage: storageOf(scene, of('storage')),
    x0: scene.xOfOp(axis, of('op'))
  };
}

export function touchingOp(scene: PageScene, axis: Axis, op: number): ITouchingOp {
  const [ops, storages] = [scene.col('use_op'), scene.col('use_storage')];
  const sizes = scene.col('storage_bytes');
  const rows = [...storages.slice(firstAtLeast(ops, op), firstAtLeast(ops, op + 1))];
  rows.sort((a, b) => sizes[b] - sizes[a]);
  return {
    ...opFacts(scene, axis, op),
    touches: {
      count: rows.length,
      bytes: rows.reduce((sum, row) => sum + sizes[row], 0),
      storages: rows.slice(0, MOST_TOUCHED).map(row => storageFacts(scene, row))
    }
  };
}
