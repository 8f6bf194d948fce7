// Level of detail, as chameleon_lab/lab/panel/lod.py and blocks.py make it in the kernel.

import { lastAtMost } from '../timeline/tables';

export type Column = Float64Array | Float32Array | Int32Array | Uint8Array;

/** Intervals to draw; a merged bar stands for the short ones that begin in one pixel. */
export interface ICut {
  x0: Float64Array;
  x1: Float64Array;
  row: Int32Array;
  count: Int32Array;
  fill: Float32Array;
}

/** Positions in ascending order of their keys; equal ones stay in theirs. */
export function sorted(count: number, key: (row: number) => number): Int32Array {
  return Int32Array.from({ length: count }, (_, row) => row).sort((a, b) => key(a) - key(b));
}

/** Intervals in an order that finds those in a viewport by binary search. */
export class Intervals {
  readonly order: Int32Array;
  readonly x0: Float64Array;
  readonly x1: Float64Array;

  constructor(x0: ArrayLike<number>, x1: ArrayLike<number>) {
    this.order = sorted(x0.length, row => x0[row]);
    this.x0 = Float64Array.from(this.order, row => x0[row]);
    this.x1 = Float64Array.from(this.order, row => x1[row]);
    let reach = Number.NEGATIVE_INFINITY;
    this._reach = this.x1.map(end => {
      reach = Math.max(reach, end);
      return reach;
    });
  }

  /** Positions in `order` of those that touch a stretch. */
  between(start: number, end: number): number[] {
    const found: number[] = [];
    const high = lastAtMost(this.x0, end);
    for (let at = firstAtLeast(this._reach, start); at <= high; at++) {
      if (this.x1[at] >= start) {
        found.push(at);
      }
    }
    return found;
  }

  /** What to draw: all where at most `most` are there, else those of a pixel's width, and the others merged. */
  bars(start: number, end: number, pixels: number, most: number): ICut {
    const here = this.between(start, end);
    const pixel = (end - start) / pixels;
    const bars: { x0: number; x1: number; row: number; count: number; fill: number }[] = [];
    const busy = new Map<number, { count: number; time: number; longest: number; row: number }>();
    for (const at of here) {
      const [x0, x1, row] = [this.x0[at], this.x1[at], this.order[at]];
      const width = x1 - x0;
      if (here.length <= most || width >= pixel) {
        bars.push({ x0, x1, row, count: 1, fill: 1 });
        continue;
      }
      const column = Math.min(Math.max(Math.trunc((x0 - start) / pixel), 0), pixels - 1);
      const sum = busy.get(column);
      if (!sum) {
        busy.set(column, { count: 1, time: width, longest: width, row });
      } else {
        sum.count += 1;
        sum.time += width;
        if (width >= sum.longest) {
          [sum.longest, sum.row] = [width, row];
        }
      }
    }
    for (const [column, { count, time, row }] of busy) {
      const x0 = start + column * pixel;
      bars.push({ x0, x1: x0 + pixel, row, count, fill: Math.min(time / pixel, 1) });
    }
    bars.sort((a, b) => a.x0 - b.x0);
    return {
      x0: Float64Array.from(bars, bar => bar.x0),
      x1: Float64Array.from(bars, bar => bar.x1),
      row: Int32Array.from(bars, bar => bar.row),
      count: Int32Array.from(bars, bar => bar.count),
      fill: Float32Array.from(bars, bar => bar.fill)
    };
  }

  private readonly _reach: Float64Array;
}

/** The first index whose value is at least `at`, or the length. */
export function firstAtLeast(values: ArrayLike<number>, at: number): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** Which points of a step function to draw: the lowest, the highest and the last of each pixel, and what holds first. */
export function stepsBetween(
  x: Float64Array,
  value: (point: number) => number,
  start: number,
  end: number,
  pixels: number
): Int32Array {
  const low = Math.max(0, lastAtMost(x, start));
  const high = lastAtMost(x, end) + 1;
  if (high - low <= 3 * pixels) {
    return Int32Array.from({ length: Math.max(high - low, 0) }, (_, i) => low + i);
  }
  const kept = new Set<number>([low]);
  let first = low;
  for (let pixel = 1; pixel <= pixels; pixel++) {
    const edge = start + ((end - start) * pixel) / pixels;
    const next = pixel === pixels ? high : Math.min(Math.max(firstAtLeast(x, edge), first), high);
    if (next > first) {
      let [lowest, highest] = [first, first];
      for (let point = first; point < next; point++) {
        lowest = value(point) < value(lowest) ? point : lowest;
        highest = value(point) >= value(highest) ? point : highest;
      }
      kept
        .add(lowest)
        .add(highest)
        .add(next - 1);
    }
    first = next;
  }
  return Int32Array.from(kept).sort();
}

/** Rectangles of the block map; `storage` -1: a cell of the raster. */
export interface IRectangles {
  x0: number[];
  x1: number[];
  y0: number[];
  y1: number[];
  category: number[];
  place: number[];
  storage: number[];
  fill: number[];
}

export function noRectangles(): IRectangles {
  return { x0: [], x1: [], y0: [], y1: [], category: [], place: [], storage: [], fill: [] };
}

/** Categories and places: what a cell of the raster can be. */
const KINDS = 18;
const PLACES = 3;

function clip(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}

/** The `most` largest stay, the others become cells with the category and place that cover most of each. */
export function rasterise(
  rects: IRectangles,
  start: number,
  end: number,
  height: number,
  columns: number,
  lines: number,
  most: number
): IRectangles {
  const count = rects.x0.length;
  if (count <= most) {
    return rects;
  }
  const wide = (row: number) => Math.min(rects.x1[row], end) - Math.max(rects.x0[row], start);
  const area = (row: number) => Math.max(wide(row), 0) * (rects.y1[row] - rects.y0[row]);
  const order = sorted(count, row => -area(row));
  const raster = new Raster(start, (end - start) / columns, height / lines, columns, lines);
  for (const row of order.slice(most)) {
    raster.cover(rects, row, end);
  }
  const found = raster.cells();
  for (const name of Object.keys(found) as (keyof IRectangles)[]) {
    for (const row of order.slice(0, most).sort()) {
      found[name].push(rects[name][row]);
    }
  }
  return found;
}

/** How much of each cell each kind of rectangle covers. */
class Raster {
  constructor(
    private readonly _start: number,
    private readonly _cellX: number,
    private readonly _cellY: number,
    private readonly _columns: number,
    private readonly _lines: number
  ) {
    this._cover = new Float64Array(KINDS * _lines * _columns);
  }

  cover(rects: IRectangles, row: number, end: number): void {
    const from = (Math.max(rects.x0[row], this._start) - this._start) / this._cellX;
    const to = (Math.min(rects.x1[row], end) - this._start) / this._cellX;
    const low = clip(Math.trunc(from), 0, this._columns - 1);
    const high = clip(Math.trunc(to), low, this._columns - 1);
    const middle = (rects.y0[row] + rects.y1[row]) / 2;
    const line = clip(Math.trunc(middle / this._cellY), 0, this._lines - 1);
    const kind = rects.category[row] * PLACES + rects.place[row];
    const base = (kind * this._lines + line) * this._columns;
    const tall = (rects.y1[row] - rects.y0[row]) / this._cellY;
    for (let column = low; column <= high; column++) {
      this._cover[base + column] += tall;
    }
    this._cover[base + low] -= tall * (from - low);
    this._cover[base + high] -= tall * clip(high + 1 - to, 0, 1);
  }

  /** The kind that covers most of a cell, and how many quarters all do; -1: nothing. */
  private _code(line: number, column: number): number {
    let [total, best, most] = [0, 0, 0];
    for (let kind = 0; kind < KINDS; kind++) {
      const part = this._cover[(kind * this._lines + line) * this._columns + column];
      total += part;
      [best, most] = part > most ? [kind, part] : [best, most];
    }
    return total > 1e-3 ? best * 8 + Math.ceil(clip(total, 0, 1) * 4) : -1;
  }

  /** The cells that are covered; those alike in a line are joined. */
  cells(): IRectangles {
    const found = noRectangles();
    for (let line = 0; line < this._lines; line++) {
      let [begin, code] = [0, -1];
      for (let column = 0; column <= this._columns; column++) {
        const here = column < this._columns ? this._code(line, column) : -1;
        if (here === code) {
          continue;
        }
        if (code >= 0) {
          const kind = Math.trunc(code / 8);
          found.x0.push(this._start + begin * this._cellX);
          found.x1.push(this._start + column * this._cellX);
          found.y0.push(line * this._cellY);
          found.y1.push((line + 1) * this._cellY);
          found.category.push(Math.trunc(kind / PLACES));
          found.place.push(kind % PLACES);
          found.storage.push(-1);
          found.fill.push((code % 8) / 4);
        }
        [begin, code] = [column, here];
      }
    }
    return found;
  }

  private readonly _cover: Float64Array;
}
