// Questions about a page's step, answered as chameleon_lab/lab/panel/views.py answers them in the kernel.

import {
  type Axis,
  CATEGORIES,
  type IAlive,
  type IBoxed,
  type IBoxRequest,
  type IFoundStorage,
  type IOpName,
  type IPoint,
  type ISearch,
  type ISeek,
  type ISeekRequest,
  type IStorageDetail,
  type ISummary,
  type ITotal,
  LabError,
  type Track
} from '../protocol';
import { lastAtMost } from '../timeline/tables';
import {
  declinedFacts,
  opFacts,
  replayFacts,
  stallFacts,
  storageFacts,
  touchingOp,
  transferFacts
} from './facts';
import { sorted } from './lod';
import type { PageScene } from './pageScene';
import { asksStoragesAlone, fitsText, type IQuery, parseQuery } from './query';
import { CAUSES, PARTS } from './words';

const [MOST_ROWS, MOST_USES, MOST_MARKS, MOST_MOVED] = [200, 400, 2000, 10];
/** Smaller storages are not said to be able to leave. */
const LEAST_TO_LEAVE = 16 * 1024;

function missing(what: string): LabError {
  return new LabError('not_found', `there is no ${what} in these steps`);
}

/** Rows of a table that a test holds for. */
function rowsWhere(count: number, holds: (row: number) => boolean): number[] {
  const found: number[] = [];
  for (let row = 0; row < count; row++) {
    if (holds(row)) {
      found.push(row);
    }
  }
  return found;
}

function total(rows: Iterable<number>, value: (row: number) => number): number {
  let sum = 0;
  for (const row of rows) {
    sum += value(row);
  }
  return sum;
}

/** Rows in descending order of a value; equal ones stay in theirs. */
function largest(rows: number[], value: (row: number) => number): number[] {
  return [...rows].sort((a, b) => value(b) - value(a));
}

function durations(scene: PageScene, table: 'stall' | 'replay'): (row: number) => number {
  const [start, end] = [scene.col(`${table}_start`), scene.col(`${table}_end`)];
  return row => end[row] - start[row];
}

export function pointAt(scene: PageScene, axis: Axis, track: Track, row: number): IPoint {
  const within = (table: string, what: string) => {
    if (!(row >= 0 && row < scene.count(table))) {
      throw missing(`${what} ${row}`);
    }
  };
  switch (track) {
    case 'ops':
      within('op', 'op');
      return { op: touchingOp(scene, axis, row) };
    case 'out':
    case 'in':
      within('transfer', 'transfer');
      return { transfer: transferFacts(scene, axis, row) };
    case 'replays':
      within('replay', 'replay');
      return { replay: replayFacts(scene, axis, row) };
    case 'stalls':
      within('stall', 'stall');
      return { stall: stallFacts(scene, axis, row) };
    default:
      return { storage: storageFacts(scene, rowOf(scene, row)) };
  }
}

function rowOf(scene: PageScene, uid: number): number {
  const row = scene.col('storage_uid').lastIndexOf(uid);
  if (row < 0) {
    throw missing(`storage #${uid}`);
  }
  return row;
}

/** Where a storage begins and ends on an axis. */
function lifeOf(scene: PageScene, axis: Axis, row: number): [number, number] {
  return axis === 'op'
    ? [scene.col('storage_birth')[row], scene.col('storage_death')[row]]
    : [scene.col('storage_from_s')[row], scene.col('storage_to_s')[row]];
}

export function storageAt(scene: PageScene, axis: Axis, uid: number): IStorageDetail {
  const row = rowOf(scene, uid);
  const of = (table: string, holds: (at: number) => boolean = () => true) => {
    const storage = scene.col(`${table}_storage`);
    return rowsWhere(storage.length, at => storage[at] === row && holds(at));
  };
  const dropped = scene.col('away_dropped');
  const stretches = (table: 'resident' | 'away', rows: number[]) =>
    rows.map(at => scene.stretch(axis, table, at)).sort((a, b) => a[0] - b[0]);
  const uses = of('use').map(at => scene.col('use_op')[at]);
  const born = scene.col('storage_born')[row];
  const [x0, x1] = lifeOf(scene, axis, row);
  return {
    ...storageFacts(scene, row),
    born: born >= 0 ? opFacts(scene, axis, born) : null,
    x0,
    x1,
    uses: uses.slice(0, MOST_USES).map(op => opFacts(scene, axis, op)),
    use_count: uses.length,
    transfers: of('transfer')
      .slice(0, MOST_USES)
      .map(at => transferFacts(scene, axis, at)),
    stalls: of('stall')
      .slice(0, MOST_USES)
      .map(at => stallFacts(scene, axis, at)),
    replays: of('replay')
      .slice(0, MOST_USES)
      .map(at => replayFacts(scene, axis, at)),
    declined: of('declined')
      .slice(0, MOST_USES)
      .map(at => declinedFacts(scene, axis, at)),
    resident: stretches('resident', of('resident')),
    away: stretches(
      'away',
      of('away', at => !dropped[at])
    ),
    dropped: stretches(
      'away',
      of('away', at => Boolean(dropped[at]))
    )
  };
}

/** Bytes on the device and away by label, most bytes first. */
function totals(
  rows: number[],
  label: (row: number) => string,
  size: (row: number) => number,
  resident: (row: number) => boolean
): ITotal[] {
  const found = new Map<string, ITotal>();
  for (const row of rows) {
    const name = label(row);
    const sum = found.get(name) ?? { label: name, resident_bytes: 0, away_bytes: 0 };
    found.set(name, sum);
    sum[resident(row) ? 'resident_bytes' : 'away_bytes'] += size(row);
  }
  return [...found.values()]
    .filter(sum => sum.resident_bytes + sum.away_bytes > 0)
    .sort((a, b) => b.resident_bytes + b.away_bytes - a.resident_bytes - a.away_bytes)
    .slice(0, MOST_ROWS);
}

function moduleOf(scene: PageScene): (row: number) => string {
  const [paths, module] = [scene.texts('storage_modules'), scene.col('storage_module')];
  return row => paths[module[row]] ?? '';
}

function categoryOf(scene: PageScene): (row: number) => string {
  const category = scene.col('storage_category');
  return row => CATEGORIES[category[row]];
}

/** Of each storage: the op of its last use before an op, of the first one after it, and whether the op uses it. */
function neighborUses(scene: PageScene, op: number) {
  const [ops, storages] = [scene.col('use_op'), scene.col('use_storage')];
  const count = scene.col('storage_uid').length;
  const before = new Int32Array(count).fill(-1);
  const after = new Int32Array(count).fill(scene.ops);
  const inUse = new Uint8Array(count);
  for (let at = 0; at < ops.length; at++) {
    const storage = storages[at];
    if (ops[at] < op) {
      before[storage] = Math.max(before[storage], ops[at]);
    } else if (ops[at] > op) {
      after[storage] = Math.min(after[storage], ops[at]);
    } else {
      inUse[storage] = 1;
    }
  }
  return { before, after, inUse };
}

export function aliveAt(scene: PageScene, axis: Axis, at: number): IAlive {
  const op = scene.opAt(axis, at);
  const [birth, death] = [scene.col('storage_birth'), scene.col('storage_death')];
  const sizes = scene.col('storage_bytes');
  const size = (row: number) => sizes[row];
  const there = (table: 'resident' | 'away', holds: (row: number) => boolean = () => true) => {
    const storage = scene.col(`${table}_storage`);
    const x = axis === 'op' ? op : at;
    return new Set(
      rowsWhere(storage.length, row => {
        const [from, to] = scene.stretch(axis, table, row);
        return from <= x && x < to && holds(row);
      }).map(row => storage[row])
    );
  };
  const lost = scene.col('away_dropped');
  const resident = there('resident');
  const dropped = there('away', row => Boolean(lost[row]));
  const here = rowsWhere(birth.length, row => birth[row] <= op && op < death[row]);
  const { before, after, inUse } = neighborUses(scene, op);
  const movable = scene.col('storage_movable');
  const canLeave = (row: number) =>
    resident.has(row) && Boolean(movable[row]) && !inUse[row] && sizes[row] >= LEAST_TO_LEAVE;
  const order = [...here].sort(
    (a, b) => Number(resident.has(b)) - Number(resident.has(a)) || sizes[b] - sizes[a]
  );
  const isOn = (row: number) => resident.has(row);
  return {
    at,
    op: opFacts(scene, axis, op),
    count: here.length,
    resident_bytes: total(here.filter(isOn), size),
    away_bytes: total(
      here.filter(row => !resident.has(row) && !dropped.has(row)),
      size
    ),
    dropped_bytes: total(
      here.filter(row => dropped.has(row)),
      size
    ),
    can_leave_bytes: total(here.filter(canLeave), size),
    categories: totals(here, categoryOf(scene), size, isOn),
    modules: totals(here, moduleOf(scene), size, isOn),
    storages: order.slice(0, MOST_ROWS).map(row => {
      const [from, to] = [Math.max(before[row], 0), Math.min(after[row], scene.ops)];
      return {
        ...storageFacts(scene, row),
        resident: resident.has(row),
        dropped: dropped.has(row),
        can_leave: canLeave(row),
        in_use: Boolean(inUse[row]),
        idle_ops: inUse[row] ? 0 : to - from,
        idle_s: inUse[row] ? 0 : scene.clock[to] - scene.clock[from]
      };
    })
  };
}

/** Share of an interval that lies in a stretch; of one without length, whether it does. */
function share(x0: number, x1: number, start: number, end: number): number {
  const inside = Math.max(Math.min(x1, end) - Math.max(x0, start), 0);
  return x1 > x0 ? inside / (x1 - x0) : Number(x0 >= start && x0 <= end);
}

function opsByName(scene: PageScene, ops: number[]): IOpName[] {
  const [names, name] = [scene.texts('op_names'), scene.col('op_name')];
  const [start, end] = [scene.col('op_start'), scene.col('op_end')];
  const [stall, replay, made] = [
    scene.col('op_stall'),
    scene.col('op_replay'),
    scene.col('op_made')
  ];
  const found = new Map<number, IOpName>();
  for (const op of ops) {
    const sum = found.get(name[op]) ?? {
      name: names[name[op]],
      count: 0,
      busy_s: 0,
      stall_s: 0,
      replay_s: 0,
      made_bytes: 0
    };
    found.set(name[op], sum);
    sum.count += 1;
    sum.busy_s += end[op] - start[op];
    sum.stall_s += stall[op];
    sum.replay_s += replay[op];
    sum.made_bytes += made[op];
  }
  return [...found.values()].sort((a, b) => b.busy_s - a.busy_s).slice(0, MOST_ROWS);
}

export function rangeOf(scene: PageScene, axis: Axis, start: number, end: number): ISummary {
  const inside = scene.intervals(axis, 'op');
  const ops = inside
    .between(start, end)
    .filter(at => inside.x0[at] < end)
    .map(at => inside.order[at]);
  const parts = (table: 'transfer' | 'stall' | 'replay') => {
    const [from, to] = [scene.at(axis, `${table}_start`), scene.at(axis, `${table}_end`)];
    return Float64Array.from({ length: scene.count(table) }, (_, row) =>
      share(from(row), to(row), start, end)
    );
  };
  const [moved, stalled, replayed] = [parts('transfer'), parts('stall'), parts('replay')];
  const of = (column: string) => scene.col(column);
  const movedBytes = (row: number) => of('transfer_bytes')[row] * moved[row];
  const time = (row: number) => (of('transfer_end')[row] - of('transfer_start')[row]) * moved[row];
  const all = [...moved.keys()];
  const ways = [0, 1].map(way => all.filter(row => of('transfer_direction')[row] === way));
  const timeSum = total(all, time);
  const exposedSum = total(all, row => time(row) * of('transfer_exposed')[row]);
  const stallTime = durations(scene, 'stall');
  const stallS = (row: number) => stallTime(row) * stalled[row];
  const stalls = [...stalled.keys()];
  const replays = [...replayed.keys()];
  const replayTime = durations(scene, 'replay');
  const named = (entries: [string, number][]) =>
    Object.fromEntries(entries.filter(([, seconds]) => seconds > 0));
  const times = scene.col('level_time');
  const x = Float64Array.from(times, seconds => scene.xOfTime(axis, seconds));
  const low = Math.max(0, lastAtMost(x, start));
  const high = Math.max(low + 1, lastAtMost(x, end) + 1);
  let peak = 0;
  for (let point = low; point < high; point++) {
    peak = Math.max(
      peak,
      total([0, 1, 2, 3, 4, 5], category => of(`level_${category}`)[point])
    );
  }
  return {
    start,
    end,
    duration_s: scene.secondsAt(axis, end) - scene.secondsAt(axis, start),
    ops: ops.length,
    transfers: ways.map(rows => rows.filter(row => moved[row] > 0).length) as [number, number],
    out_bytes: Math.trunc(total(ways[0], movedBytes)),
    in_bytes: Math.trunc(total(ways[1], movedBytes)),
    overlap: timeSum > 0 ? Math.min(Math.max(1 - exposedSum / timeSum, 0), 1) : null,
    stalls: stalls.filter(row => stalled[row] > 0).length,
    stall_s: total(stalls, stallS),
    stall_causes: named(
      CAUSES.map((cause, number) => [
        cause,
        total(
          stalls.filter(row => of('stall_cause')[row] === number),
          stallS
        )
      ])
    ),
    stall_parts: named(
      PARTS.map(part => [part, total(stalls, row => of(`stall_${part}`)[row] * stalled[row])])
    ),
    replays: replays.filter(row => replayed[row] > 0).length,
    replay_s: total(replays, row => replayTime(row) * replayed[row]),
    replayed_bytes: Math.trunc(total(replays, row => of('replay_bytes')[row] * replayed[row])),
    peak_bytes: peak,
    storages: movedStorages(scene, movedBytes, stallS),
    op_names: opsByName(scene, ops),
    modules: busyModules(scene, ops)
  };
}

function movedStorages(
  scene: PageScene,
  movedBytes: (row: number) => number,
  stallS: (row: number) => number
): ISummary['storages'] {
  const sizes = scene.col('storage_bytes');
  const [moved, waited] = [new Float64Array(sizes.length), new Float64Array(sizes.length)];
  for (const [sums, table, value] of [
    [moved, 'transfer', movedBytes],
    [waited, 'stall', stallS]
  ] as const) {
    for (const [row, storage] of scene.col(`${table}_storage`).entries()) {
      if (storage >= 0) {
        sums[storage] += value(row);
      }
    }
  }
  const weight = (row: number) => moved[row] + 1e-9 * sizes[row] * Number(moved[row] > 0);
  return largest(
    rowsWhere(moved.length, row => moved[row] > 0),
    weight
  )
    .slice(0, MOST_MOVED)
    .map(row => ({
      ...storageFacts(scene, row),
      moved_bytes: Math.trunc(moved[row]),
      stall_s: waited[row]
    }));
}

function busyModules(scene: PageScene, ops: number[]): ISummary['modules'] {
  const [paths, module] = [scene.texts('op_modules'), scene.col('op_module')];
  const [start, end] = [scene.col('op_start'), scene.col('op_end')];
  const busy = new Map<string, number>();
  for (const op of ops) {
    const path = paths[module[op]] ?? '';
    busy.set(path, (busy.get(path) ?? 0) + end[op] - start[op]);
  }
  return [...busy]
    .filter(([, busy_s]) => busy_s > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, MOST_MOVED)
    .map(([path, busy_s]) => ({ module: path, busy_s }));
}

export function seekFrom(
  scene: PageScene,
  {
    axis,
    at,
    direction,
    what = 'stall',
    query = ''
  }: Omit<ISeekRequest, 'source' | 'first' | 'last'>
): ISeek {
  const { rows, middle } = places(scene, axis, what, query);
  const found: ISeek = { stall: null, peak: null, op: null, number: 0, count: rows.length };
  if (!rows.length) {
    return found;
  }
  const hair = scene.length[axis] * 1e-9;
  let place = direction > 0 ? middle.findIndex(x => x > at + hair) : -1;
  if (direction > 0) {
    place = place < 0 ? 0 : place;
  } else {
    place = middle.length - 1;
    while (place >= 0 && middle[place] >= at - hair) {
      place--;
    }
    place = place < 0 ? middle.length - 1 : place;
  }
  found.number = place + 1;
  if (what === 'op') {
    found.op = opFacts(scene, axis, rows[place]);
  } else if (what === 'peak') {
    const op = rows[place];
    const bytes = scene.col('op_resident')[op];
    found.peak = { at: middle[place], bytes, op: opFacts(scene, axis, op) };
  } else {
    found.stall = stallFacts(scene, axis, rows[place]);
  }
  return found;
}

/** What is walked from one to the next, in order, and where each lies. */
function places(scene: PageScene, axis: Axis, what: string, query: string) {
  let rows: number[];
  let x: (row: number) => number;
  if (what === 'op') {
    rows = opsFound(scene, query);
    const [start, end] = [scene.col('op_start'), scene.col('op_end')];
    x = axis === 'op' ? op => op + 0.5 : op => (start[op] + end[op]) / 2;
  } else if (what === 'peak') {
    rows = [...scene.col('peaks')];
    x = op => scene.xOfOp(axis, op);
  } else {
    const [from, to] = [scene.at(axis, 'stall_start'), scene.at(axis, 'stall_end')];
    rows = [...scene.intervals(axis, 'stall').order];
    x = row => (from(row) + to(row)) / 2;
  }
  const order = sorted(rows.length, at => x(rows[at]));
  const walked = Array.from(order, at => rows[at]);
  return { rows: walked, middle: walked.map(x) };
}

function opsFound(scene: PageScene, text: string): number[] {
  const query = parseQuery(text);
  if (asksStoragesAlone(query) || !text.trim()) {
    return [];
  }
  const [names, name] = [scene.texts('op_names'), scene.col('op_name')];
  const [paths, module] = [scene.texts('op_modules'), scene.col('op_module')];
  const stage = scene.col('op_stage');
  const known = new Map<number, boolean>(); // few pairs of name and module occur
  return rowsWhere(scene.ops, op => {
    const pair = name[op] * (paths.length + 1) + module[op] + 1;
    let fits = known.get(pair);
    if (fits === undefined) {
      fits = fitsText(query, paths[module[op]] ?? '', names[name[op]]);
      known.set(pair, fits);
    }
    return fits && (query.stage === null || stage[op] === query.stage);
  });
}

function storagesFound(scene: PageScene, query: IQuery): number[] {
  const [keys, sizes] = [scene.texts('keys'), scene.col('storage_bytes')];
  const [born, stage] = [scene.col('storage_born'), scene.col('op_stage')];
  const [category, module] = [scene.col('storage_category'), moduleOf(scene)];
  return rowsWhere(
    keys.length,
    row =>
      (query.atLeast === null || sizes[row] >= query.atLeast) &&
      (query.atMost === null || sizes[row] <= query.atMost) &&
      (query.category === null || category[row] === query.category) &&
      (query.stage === null || (born[row] >= 0 && stage[born[row]] === query.stage)) &&
      fitsText(query, module(row), `${keys[row]} ${CATEGORIES[category[row]].replace('_', ' ')}`)
  );
}

export function searchFor(scene: PageScene, axis: Axis, text: string): ISearch {
  const storages = storagesFound(scene, parseQuery(text));
  const sizes = scene.col('storage_bytes');
  const size = (row: number) => sizes[row];
  const ops = opsFound(scene, text);
  const marks = Math.min(ops.length, MOST_MARKS);
  const spread = (at: number) =>
    ops[marks > 1 ? Math.trunc((at * (ops.length - 1)) / (marks - 1)) : 0];
  return {
    query: text,
    storage_count: storages.length,
    storage_bytes: total(storages, size),
    storages: largest(storages, size)
      .slice(0, MOST_ROWS)
      .map(row => foundStorage(scene, axis, row)),
    op_count: ops.length,
    ops: ops.slice(0, MOST_ROWS).map(op => opFacts(scene, axis, op)),
    marks: Array.from({ length: marks }, (_, at) => scene.xOfOp(axis, spread(at))),
    ...replaysFound(scene, axis, storages)
  };
}

function replaysFound(scene: PageScene, axis: Axis, storages: number[]) {
  const chosen = new Set(storages);
  const every = storages.length === scene.col('storage_uid').length;
  const [owner, left, sizes] = [
    scene.col('replay_storage'),
    scene.col('declined_storage'),
    scene.col('storage_bytes')
  ];
  const own = rowsWhere(owner.length, row => chosen.has(owner[row]) || (owner[row] < 0 && every));
  const declined = rowsWhere(left.length, row => chosen.has(left[row]));
  return {
    replay_count: own.length,
    replays: largest(own, durations(scene, 'replay'))
      .slice(0, MOST_ROWS)
      .map(row => replayFacts(scene, axis, row)),
    declined_count: declined.length,
    declined: largest(declined, row => sizes[left[row]])
      .slice(0, MOST_ROWS)
      .map(row => declinedFacts(scene, axis, row))
  };
}

/** A storage with where it lives, how long it was away, its transfers and what was lost on it. */
function foundStorage(scene: PageScene, axis: Axis, row: number): IFoundStorage {
  const [x0, x1] = lifeOf(scene, axis, row);
  scene.sums ??= sumsByStorage(scene);
  const { sums } = scene;
  return {
    ...storageFacts(scene, row),
    x0,
    x1,
    away_s: sums.away[row],
    dropped_s: sums.dropped[row],
    replays: sums.replays[row],
    transfers: sums.transfers[row],
    stall_s: sums.stall[row]
  };
}

export interface IStorageSums {
  away: Float64Array;
  dropped: Float64Array;
  replays: Float64Array;
  transfers: Float64Array;
  stall: Float64Array;
}

function sumsByStorage(scene: PageScene): IStorageSums {
  const count = scene.col('storage_uid').length;
  const sum = (table: string, value: (row: number) => number) => {
    const sums = new Float64Array(count);
    for (const [row, storage] of scene.col(`${table}_storage`).entries()) {
      if (storage >= 0) {
        sums[storage] += value(row);
      }
    }
    return sums;
  };
  const [from, to, dropped] = ['from_s', 'to_s', 'dropped'].map(name => scene.col(`away_${name}`));
  return {
    away: sum('away', row => (dropped[row] ? 0 : to[row] - from[row])),
    dropped: sum('away', row => (dropped[row] ? to[row] - from[row] : 0)),
    replays: sum('replay', () => 1),
    transfers: sum('transfer', () => 1),
    stall: sum('stall', durations(scene, 'stall'))
  };
}

export function locateIn(scene: PageScene, storage: string): { uid: number | null } {
  const row = scene.texts('keys').lastIndexOf(storage);
  return { uid: row < 0 ? null : scene.col('storage_uid')[row] };
}

export function boxIn(
  scene: PageScene,
  { axis, start, end, low, high, rows }: Omit<IBoxRequest, 'source' | 'first' | 'last'>
): IBoxed {
  const blocks = scene.blocks(axis, rows);
  const on = new Set<number>();
  const hit = new Set<number>();
  for (let at = 0; at < blocks.x0.length; at++) {
    const inside = blocks.x1[at] >= start && blocks.x0[at] <= end;
    if (inside && blocks.y1[at] > low && blocks.y0[at] < high) {
      hit.add(blocks.storage[at]);
      if (blocks.place[at] === 0) {
        on.add(blocks.storage[at]);
      }
    }
  }
  const storages = [...hit].sort((a, b) => a - b);
  const sizes = scene.col('storage_bytes');
  const size = (row: number) => sizes[row];
  const isOn = (row: number) => on.has(row);
  return {
    start,
    end,
    low,
    high: Math.min(high, scene.data.packed.map_bytes[rows]),
    rows,
    count: storages.length,
    bytes: total(storages, size),
    away_bytes: total(
      storages.filter(row => !isOn(row)),
      size
    ),
    categories: totals(storages, categoryOf(scene), size, isOn),
    modules: totals(storages, moduleOf(scene), size, isOn),
    storages: largest(storages, size)
      .slice(0, MOST_ROWS)
      .map(row => ({ ...storageFacts(scene, row), resident: isOn(row) }))
  };
}
