// The tracks of a viewport, thinned to its pixels, as chameleon_lab/lab/panel/views.py makes them in the kernel.

import { float32, float64, int32, tableFromArrays, tableToIPC } from '@uwdata/flechette';

import type { IViewReply, IViewRequest } from '../protocol';
import { type ICut, noRectangles, rasterise, stepsBetween } from './lod';
import type { PageScene } from './pageScene';

const [MOST_SPANS, MOST_OPS, MOST_BARS, MOST_BLOCKS] = [1500, 3000, 1500, 6000];
const RASTER = [384, 48];
const OTHER = 5;
/** Categories as they are stacked, bottom first. */
const BANDS = [[0], [2], [1], [3], [4, 5]];

type Table = Record<string, Float64Array | Float32Array | Int32Array>;

export function viewOf(
  scene: PageScene,
  request: Omit<IViewRequest, 'source' | 'first' | 'last'>
): { result: IViewReply; buffers: Uint8Array[] } {
  const { axis, start, end, rows } = request;
  const tables = {
    ...barTables(scene, request),
    ...levelTables(scene, request),
    blocks: blockTable(scene, request)
  };
  const buffers = Object.values(tables).map(arrowStream);
  const map_bytes = scene.data.packed.map_bytes[rows];
  return { result: { axis, start, end, rows, map_bytes, tables: Object.keys(tables) }, buffers };
}

/** The kernel's views come as Arrow streams, and so do these: whoever reads the ones reads the others. */
function arrowStream(table: Table): Uint8Array {
  const typed = Object.entries(table).map(([name, values]) => [name, typeOf(values)]);
  const arrow = tableFromArrays(table, { types: Object.fromEntries(typed) });
  return tableToIPC(arrow, { format: 'stream' }) as Uint8Array;
}

/** Of an empty column, nothing else says the type. */
function typeOf(values: Table[string]) {
  if (values instanceof Int32Array) {
    return int32();
  }
  return values instanceof Float32Array ? float32() : float64();
}

type Request = Parameters<typeof viewOf>[1];

function pixelsOf({ width }: Request): number {
  return Math.max(16, Math.trunc(Math.min(width, 4096)));
}

function barTables(scene: PageScene, request: Request): Record<string, Table> {
  const { axis, start, end } = request;
  const tables: Record<string, Table> = {};
  const cut = (table: string, most: number, rows?: Int32Array): ICut =>
    scene.intervals(axis, table, rows).bars(start, end, pixelsOf(request), most);
  const taken = ({ row }: ICut, column: string) => {
    const values = scene.col(column);
    return Int32Array.from(row, at => values[at]);
  };
  const categories = ({ row }: ICut, column: string) => {
    const [storage, category] = [scene.col(column), scene.col('storage_category')];
    return Int32Array.from(row, at => (storage[at] >= 0 ? category[storage[at]] : OTHER));
  };
  for (const name of ['stages', 'layers', 'modules']) {
    const bars = cut(name, MOST_SPANS);
    tables[name] = { ...bars, label: taken(bars, `${name}_label`) };
  }
  const marks = cut('mark', MOST_SPANS);
  tables.marks = {
    ...marks,
    label: taken(marks, 'mark_label'),
    depth: taken(marks, 'mark_depth')
  };
  const ops = cut('op', MOST_OPS);
  tables.ops = { ...ops, kind: taken(ops, 'op_kind'), name: taken(ops, 'op_name') };
  for (const [direction, name] of ['out', 'in'].entries()) {
    const chosen = scene.way(direction);
    const bars = cut(name, MOST_BARS, chosen);
    bars.row = bars.row.map(at => chosen[at]);
    const exposed = scene.col('transfer_exposed');
    tables[name] = {
      ...bars,
      category: categories(bars, 'transfer_storage'),
      exposed: Float32Array.from(bars.row, at => exposed[at])
    };
  }
  const stalls = cut('stall', MOST_BARS);
  tables.stalls = {
    ...stalls,
    direction: taken(stalls, 'stall_direction'),
    cause: taken(stalls, 'stall_cause')
  };
  const replays = cut('replay', MOST_BARS);
  tables.replays = {
    ...replays,
    category: categories(replays, 'replay_storage'),
    name: taken(replays, 'replay_name'),
    cause: taken(replays, 'replay_cause')
  };
  return tables;
}

function levelTables(scene: PageScene, request: Request): Record<string, Table> {
  const { axis, start, end } = request;
  const pixels = pixelsOf(request);
  const line = (times: string, column: string): Table => {
    const x = Float64Array.from(scene.col(times), seconds => scene.xOfTime(axis, seconds));
    const values = scene.col(column);
    const kept = stepsBetween(x, point => values[point], start, end, pixels);
    return {
      x: Float64Array.from(kept, point => x[point]),
      bytes: Float64Array.from(kept, point => values[point])
    };
  };
  const levels = [0, 1, 2, 3, 4, 5].map(category => scene.col(`level_${category}`));
  const sum = (categories: number[], point: number) =>
    categories.reduce((bytes, category) => bytes + levels[category][point], 0);
  const x = Float64Array.from(scene.col('level_time'), seconds => scene.xOfTime(axis, seconds));
  const all = [0, 1, 2, 3, 4, 5];
  const kept = stepsBetween(x, point => sum(all, point), start, end, pixels);
  const resident: Table = { x: Float64Array.from(kept, point => x[point]) };
  for (const [band, categories] of BANDS.entries()) {
    resident[`band${band}`] = Float32Array.from(kept, point => sum(categories, point));
  }
  const live = scene.col('op_live');
  const opX = Float64Array.from(live, (_, op) => scene.xOfOp(axis, op));
  const liveKept = stepsBetween(opX, op => live[op], start, end, pixels);
  return {
    resident,
    live: {
      x: Float64Array.from(liveKept, op => opX[op]),
      bytes: Float64Array.from(liveKept, op => live[op])
    },
    away: line('host_time', 'host_bytes')
  };
}

function blockTable(scene: PageScene, { axis, start, end, width, height, rows }: Request): Table {
  const all = scene.blocks(axis, rows);
  const here = noRectangles();
  for (let row = 0; row < all.x0.length; row++) {
    if (all.x1[row] >= start && all.x0[row] <= end) {
      for (const name of Object.keys(here) as (keyof typeof here)[]) {
        here[name].push(all[name][row]);
      }
    }
  }
  const columns = Math.max(16, Math.trunc(Math.min(Math.floor(width / 2), RASTER[0])));
  const lines = Math.max(8, Math.min(Math.floor(height / 2), RASTER[1]));
  const map = scene.data.packed.map_bytes[rows];
  const shown = rasterise(here, start, end, map, columns, lines, MOST_BLOCKS);
  const uid = scene.col('storage_uid');
  return {
    x0: Float32Array.from(shown.x0, x => x - start),
    x1: Float32Array.from(shown.x1, x => x - start),
    y0: Float32Array.from(shown.y0),
    y1: Float32Array.from(shown.y1),
    category: Int32Array.from(shown.category),
    place: Int32Array.from(shown.place),
    uid: Float64Array.from(shown.storage, storage => (storage >= 0 ? uid[storage] : -1)),
    fill: Float32Array.from(shown.fill)
  };
}
