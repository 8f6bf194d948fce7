// What is under the pointer.

import type { Track } from '../protocol';
import type { Layout, TrackName } from './layout';
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
  const empty: IHit = { track, count: 0, index: -1, x0: 0, x1: 0 };
  const at = scale.at(x);
  const asks = POINTS.find(name => name === track);
  const bars = asks ?? SPANS.find(name => name === track);
  if (bars) {
    const reach = (REACH_PX * scale.span) / scale.width;
    const index = nearest(view[bars], at, reach);
    if (index < 0) {
      return empty;
    }
    const table = view[bars];
    return {
      track,
      index,
      count: table.count[index],
      x0: table.x0[index],
      x1: table.x1[index],
      ...(asks ? { point: { track: asks, row: table.row[index] } } : {})
    };
  }
  if (track === 'blocks') {
    const box = layout.blocks;
    const bytes = ((box.top + box.height - y) / box.height) * view.map_bytes;
    const blocks = view.blocks;
    const hair = view.map_bytes / box.height;
    for (let i = blocks.x0.length - 1; i >= 0; i--) {
      const inside = at >= blocks.x0[i] + view.start && at <= blocks.x1[i] + view.start;
      if (
        inside &&
        bytes >= blocks.y0[i] - hair / 2 &&
        bytes <= Math.max(blocks.y1[i], blocks.y0[i] + hair)
      ) {
        const uid = blocks.uid[i];
        return {
          track,
          index: i,
          count: uid < 0 ? 0 : 1,
          x0: blocks.x0[i] + view.start,
          x1: blocks.x1[i] + view.start,
          ...(uid < 0 ? {} : { point: { track: 'blocks', row: uid } })
        };
      }
    }
  }
  return empty;
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
