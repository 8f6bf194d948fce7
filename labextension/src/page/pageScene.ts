// One step of a page on its two axes, as chameleon_lab/lab/panel/scene.py has it in the kernel.

import type { Axis, Rows } from '../protocol';
import { lastAtMost } from '../timeline/tables';
import type { IStorageSums } from './answers';
import { type Column, Intervals, type IRectangles, noRectangles } from './lod';
import type { StepData } from './pageData';

const [ON_DEVICE, ON_HOST, DROPPED] = [0, 1, 2];

export class PageScene {
  constructor(readonly data: StepData) {
    this.clock = this.col('clock') as Float64Array;
    this.ops = this.clock.length - 1;
  }

  /** Where each op begins, and the step's end. */
  readonly clock: Float64Array;
  readonly ops: number;

  col(name: string): Column {
    let column = this._columns.get(name);
    if (!column) {
      column = this.data.column(name);
      this._columns.set(name, column);
    }
    return column;
  }

  texts(name: string): string[] {
    return this.data.strings(name);
  }

  get length(): Record<Axis, number> {
    return this.data.packed.scene.length;
  }

  xOfTime(axis: Axis, seconds: number): number {
    if (axis === 'time') {
      return seconds;
    }
    const at = lastAtMost(this.clock, seconds);
    if (at < 0) {
      return 0;
    }
    if (at >= this.ops) {
      return this.ops;
    }
    return at + (seconds - this.clock[at]) / (this.clock[at + 1] - this.clock[at]);
  }

  xOfOp(axis: Axis, op: number): number {
    return axis === 'op' ? op : this.clock[op];
  }

  secondsAt(axis: Axis, x: number): number {
    if (axis === 'time') {
      return x;
    }
    const at = Math.min(Math.max(Math.floor(x), 0), this.ops - 1);
    const share = Math.min(Math.max(x - at, 0), 1);
    return this.clock[at] + share * (this.clock[at + 1] - this.clock[at]);
  }

  /** The newest op that has begun at a position. */
  opAt(axis: Axis, x: number): number {
    const op = axis === 'op' ? Math.trunc(x) : lastAtMost(this.clock, x);
    return Math.min(Math.max(op, 0), this.ops - 1);
  }

  /** A function of rows: where a column of times lies on an axis. */
  at(axis: Axis, column: string): (row: number) => number {
    const values = this.col(column);
    return row => this.xOfTime(axis, values[row]);
  }

  /** Rows with a beginning and an end on an axis; `rows`: only these. */
  intervals(axis: Axis, table: string, rows?: Int32Array): Intervals {
    const key = `${axis} ${table}`;
    let found = this._intervals.get(key);
    if (!found) {
      const [from, to] = this._ends(axis, table);
      const count = rows?.length ?? this.count(table);
      const row = (at: number) => rows?.[at] ?? at;
      const index = Float64Array.from({ length: count }, (_, at) => from(row(at)));
      found = new Intervals(
        index,
        index.map((_, at) => to(row(at)))
      );
      this._intervals.set(key, found);
    }
    return found;
  }

  count(table: string): number {
    return this.col(FIRST_COLUMN[table] ?? `${table}_storage`).length;
  }

  private _ends(axis: Axis, table: string): [(row: number) => number, (row: number) => number] {
    if (table === 'op') {
      return axis === 'op'
        ? [row => row, row => row + 1]
        : [this.at('time', 'op_start'), this.at('time', 'op_end')];
    }
    if (table in FIRST_COLUMN) {
      const marks = table === 'mark' && axis === 'time';
      if (marks) {
        return [this.at('time', 'mark_start'), this.at('time', 'mark_end')];
      }
      const [first, end] = [this.col(`${table}_from_op`), this.col(`${table}_to_op`)];
      return [row => this.xOfOp(axis, first[row]), row => this.xOfOp(axis, end[row])];
    }
    const name = table === 'out' || table === 'in' ? 'transfer' : table;
    return [this.at(axis, `${name}_start`), this.at(axis, `${name}_end`)];
  }

  /** Rows of the transfers of one way. */
  way(direction: number): Int32Array {
    const column = this.col('transfer_direction');
    return Int32Array.from([...column.keys()].filter(row => column[row] === direction));
  }

  /** Where a stretch begins and ends: of residencies, or of times away. */
  stretch(axis: Axis, table: 'resident' | 'away', row: number): [number, number] {
    const unit = axis === 'op' ? 'op' : 's';
    return [this.col(`${table}_from_${unit}`)[row], this.col(`${table}_to_${unit}`)[row]];
  }

  /** The rectangles of the block map. */
  blocks(axis: Axis, rows: Rows): IRectangles {
    const key = `${axis} ${rows}`;
    let found = this._blocks.get(key);
    if (!found) {
      found = this._makeBlocks(axis, rows);
      this._blocks.set(key, found);
    }
    return found;
  }

  private _makeBlocks(axis: Axis, rows: Rows): IRectangles {
    const found = noRectangles();
    const [sizes, category] = [this.col('storage_bytes'), this.col('storage_category')];
    const [rowOf, packed] = [this.col('storage_row'), this.col('resident_packed')];
    const dropped = this.col('away_dropped');
    const add = (table: 'resident' | 'away', row: number) => {
      const storage = this.col(`${table}_storage`)[row];
      const [x0, x1] = this.stretch(axis, table, row);
      const y0 = rows === 'packed' ? packed[row] : rowOf[storage];
      found.x0.push(x0);
      found.x1.push(x1);
      found.y0.push(y0);
      found.y1.push(y0 + sizes[storage]);
      found.category.push(category[storage]);
      found.place.push(table === 'resident' ? ON_DEVICE : dropped[row] ? DROPPED : ON_HOST);
      found.storage.push(storage);
      found.fill.push(1);
    };
    for (let row = 0; row < this.count('resident'); row++) {
      add('resident', row);
    }
    if (rows !== 'packed') {
      for (let row = 0; row < this.count('away'); row++) {
        add('away', row);
      }
    }
    return found;
  }

  /** Sums by storage, once somebody has searched. */
  sums: IStorageSums | undefined;
  private readonly _columns = new Map<string, Column>();
  private readonly _intervals = new Map<string, Intervals>();
  private readonly _blocks = new Map<string, IRectangles>();
}

/** Tables that lie on ops: what counts their rows. */
const FIRST_COLUMN: Record<string, string> = {
  op: 'op_start',
  stages: 'stages_label',
  layers: 'layers_label',
  modules: 'modules_label',
  mark: 'mark_label'
};
