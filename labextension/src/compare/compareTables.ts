// The curves of two sides, as typed arrays out of the kernel's Arrow streams.

import type { ICompareView } from '../protocol';
import { type IBars, type ILine, type ISpans, readTables } from '../timeline/tables';

export interface ISideTables {
  resident: ILine;
  live: ILine;
  stages: ISpans;
  stalls: IBars;
}

export interface ICompareTables extends ICompareView {
  a: ISideTables;
  b: ISideTables;
  difference: ILine;
}

const BARS = ['x0', 'x1', 'row', 'count', 'fill'];
const SIDE: Record<string, string[]> = {
  resident: ['x', 'bytes'],
  live: ['x', 'bytes'],
  stages: [...BARS, 'label'],
  stalls: BARS
};

/** Read the answer to `compare_view`; throws a LabError where a table or column is missing. */
export function readCompareView(reply: ICompareView, buffers: Uint8Array[]): ICompareTables {
  const side = (name: string) => {
    const wanted = Object.entries(SIDE).map(([table, columns]) => [`${name}_${table}`, columns]);
    const found = readTables(Object.fromEntries(wanted), reply.tables, buffers);
    return Object.fromEntries(
      Object.keys(SIDE).map(table => [table, found[`${name}_${table}`]])
    ) as unknown as ISideTables;
  };
  const { difference } = readTables({ difference: ['x', 'bytes'] }, reply.tables, buffers);
  return { ...reply, a: side('a'), b: side('b'), difference: difference as unknown as ILine };
}
