// What is under the pointer.

import type { Track } from '../protocol';
import type { ITrackBox, Layout, TrackName } from './layout';
import { trackAt } from './layout';
import type { Scale } from './scale';
import { type IBars, type IView, lastAtMost } from './tables';

export interface IHit {
  track: TrackName;
  /** What to ask the kernel about, where there is something. */
  point?: { track: Track; row: number };
  /** How many things the bar under the pointer stands for. */
  count: number;
  /** Position in its table of the view. */
  index: number;
  x0: number;
  x1: number;
}

const REACH_PX = 3;
/** Bars before the nearest one that may still be long enough to reach the pointer. */
const LOOK_BACK = 64;

const SPANS = ['stages', 'layers', 'modules', 'marks'] as const;
const POINTS = ['ops', 'out', 'in', 'stalls', 'replays'] as const;

/** What lies at a pixel of the drawing, or null outside the tracks. */
export function hitTest(
  view: IView,
  layout: Layout,
  scale: Scale,
  x: number,
  y: number
): IHit | null {
  const track = trackAt(layout, y);
  if (!track) {
    return null;
  }
  const at = scale.at(x);
  const hit =
    track === 'blocks'
      ? blockAt(view, layout.blocks, at, y)
      : barAt(view, track, at, (REACH_PX * scale.span) / scale.width);
  return hit ?? { track, count: 0, index: -1, x0: 0, x1: 0 };
}

/** The bar of a track at a place of the axis, or within reach of it; null of a track without bars. */
function barAt(view: IView, track: TrackName, at: number, reach: number): IHit | null {
  const asks = POINTS.find(name => name === track);
  const bars = asks ?? SPANS.find(name => name === track);
  if (!bars) {
    return null;
  }
  const table = view[bars];
  const index = nearest(table, at, reach);
  if (index < 0) {
    return null;
  }
  return {
    track,
    index,
    count: table.count[index],
    x0: table.x0[index],
    x1: table.x1[index],
    ...(asks ? { point: { track: asks, row: table.row[index] } } : {})
  };
}

/** The block at a place of the axis and a height of the map; one thinner than a pixel is as high as that. */
function blockAt(
  { blocks, start, map_bytes }: IView,
  box: ITrackBox,
  at: number,
  y: number
): IHit | null {
  const bytes = ((box.top + box.height - y) / box.height) * map_bytes;
  const hair = map_bytes / box.height;
  for (let i = blocks.x0.length - 1; i >= 0; i--) {
    const [x0, x1] = [blocks.x0[i] + start, blocks.x1[i] + start];
    const low = blocks.y0[i] - hair / 2;
    const high = Math.max(blocks.y1[i], blocks.y0[i] + hair);
    if (at >= x0 && at <= x1 && bytes >= low && bytes <= high) {
      const uid = blocks.uid[i];
      const hit: IHit = { track: 'blocks', index: i, count: 0, x0, x1 };
      return uid < 0 ? hit : { ...hit, count: 1, point: { track: 'blocks', row: uid } };
    }
  }
  return null;
}

/** The bar that holds `at`, else the nearest one within reach; -1 without any. */
function nearest(bars: IBars, at: number, reach: number): number {
  const last = lastAtMost(bars.x0, at + reach);
  let [best, distance] = [-1, reach];
  for (let i = last; i >= 0 && i > last - LOOK_BACK; i--) {
    const away = Math.max(0, bars.x0[i] - at, at - bars.x1[i]);
    if (away < distance || (away === 0 && best < 0)) {
      [best, distance] = [i, away];
    }
    if (away === 0) {
      break;
    }
  }
  return best;
}
