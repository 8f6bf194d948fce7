// The tracks of a view, as typed arrays out of the kernel's Arrow streams.

import { tableFromIPC } from '@uwdata/flechette';

import { type IViewReply, LabError } from '../protocol';
import { trans } from '../texts';

type Numbers = Float64Array | Float32Array | Int32Array | Uint16Array | Uint8Array;

export interface IBars {
  x0: Numbers;
  x1: Numbers;
  row: Numbers;
  count: Numbers;
  fill: Numbers;
}
export interface ISpans extends IBars {
  label: Numbers;
}
/** Stretches that the user has named; `depth`: how many of them they lie in. */
export interface IMarks extends ISpans {
  depth: Numbers;
}
export interface IOps extends IBars {
  kind: Numbers;
  name: Numbers;
}
export interface ITransfers extends IBars {
  category: Numbers;
  exposed: Numbers;
}
export interface IStalls extends IBars {
  direction: Numbers;
  cause: Numbers;
}
export interface IReplays extends IBars {
  category: Numbers;
  name: Numbers;
  cause: Numbers;
}
export interface ILevels {
  x: Numbers;
  /** One column a band. */
  bands: Numbers[];
}
export interface ILine {
  x: Numbers;
  bytes: Numbers;
}
/** Where a storage's bytes are, as the kernel numbers it: of a dropped one nowhere. */
export const PLACE = { device: 0, host: 1, dropped: 2 } as const;

export interface IBlocks {
  /** From the view's start on. */
  x0: Numbers;
  x1: Numbers;
  y0: Numbers;
  y1: Numbers;
  category: Numbers;
  /** Where the bytes are: `PLACE`. */
  place: Numbers;
  /** -1: a cell of the raster. */
  uid: Numbers;
  fill: Numbers;
}

export interface IView extends IViewReply {
  /** Whether nothing was merged or left out, so that no closer look shows more. */
  exact: boolean;
  bytes: number;
  stages: ISpans;
  layers: ISpans;
  modules: ISpans;
  marks: IMarks;
  ops: IOps;
  out: ITransfers;
  in: ITransfers;
  stalls: IStalls;
  replays: IReplays;
  resident: ILevels;
  live: ILine;
  away: ILine;
  blocks: IBlocks;
}

const COLUMNS: Record<string, string[]> = {
  stages: ['x0', 'x1', 'row', 'count', 'fill', 'label'],
  layers: ['x0', 'x1', 'row', 'count', 'fill', 'label'],
  modules: ['x0', 'x1', 'row', 'count', 'fill', 'label'],
  marks: ['x0', 'x1', 'row', 'count', 'fill', 'label', 'depth'],
  ops: ['x0', 'x1', 'row', 'count', 'fill', 'kind', 'name'],
  out: ['x0', 'x1', 'row', 'count', 'fill', 'category', 'exposed'],
  in: ['x0', 'x1', 'row', 'count', 'fill', 'category', 'exposed'],
  stalls: ['x0', 'x1', 'row', 'count', 'fill', 'direction', 'cause'],
  replays: ['x0', 'x1', 'row', 'count', 'fill', 'category', 'name', 'cause'],
  resident: ['x', 'band0', 'band1', 'band2', 'band3', 'band4'],
  live: ['x', 'bytes'],
  away: ['x', 'bytes'],
  blocks: ['x0', 'x1', 'y0', 'y1', 'category', 'place', 'uid', 'fill']
};

/** Read these columns of tables, each in the buffer that `order` says; throws a LabError where one is missing. */
export function readTables(
  wanted: Record<string, string[]>,
  order: string[],
  buffers: Uint8Array[]
): Record<string, Record<string, Numbers>> {
  const found: Record<string, Record<string, Numbers>> = {};
  for (const [name, columns] of Object.entries(wanted)) {
    const buffer = buffers[order.indexOf(name)];
    if (!buffer) {
      throw new LabError('malformed', trans.__("The kernel's view has no table %1.", name));
    }
    const table = tableFromIPC(buffer);
    found[name] = {};
    for (const column of columns) {
      const values = table.getChild(column);
      if (!values) {
        throw new LabError(
          'malformed',
          trans.__("The kernel's table %1 has no column %2.", name, column)
        );
      }
      found[name][column] = values.toArray() as Numbers;
    }
  }
  return found;
}

/** Read a view; throws a LabError where a table or column is missing. */
export function readView(reply: IViewReply, buffers: Uint8Array[]): IView {
  const found = readTables(COLUMNS, reply.tables, buffers);
  const { resident } = found;
  const merged = Object.values(found).some(table =>
    table.count?.some((count: number) => count > 1)
  );
  const rasterised = found.blocks.uid.some((uid: number) => uid < 0);
  return {
    ...reply,
    ...(found as unknown as Omit<IView, keyof IViewReply | 'resident' | 'exact' | 'bytes'>),
    resident: {
      x: resident.x,
      bands: [0, 1, 2, 3, 4].map(band => resident[`band${band}`])
    },
    exact: !merged && !rasterised,
    bytes: buffers.reduce((sum, buffer) => sum + buffer.byteLength, 0)
  };
}

/** The last index whose value is at most `at`, or -1. */
export function lastAtMost(values: Numbers, at: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}
