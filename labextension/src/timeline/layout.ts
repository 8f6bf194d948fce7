// Where each track lies, from the top.

export type TrackName =
  | 'minimap'
  | 'ruler'
  | 'stages'
  | 'layers'
  | 'modules'
  | 'ops'
  | 'out'
  | 'in'
  | 'stalls'
  | 'replays'
  | 'selected'
  | 'resident'
  | 'away'
  | 'blocks';

export interface ITrackBox {
  top: number;
  height: number;
}

export type Layout = Record<TrackName, ITrackBox> & { bottom: number };

const FIXED: [TrackName, height: number, gap: number][] = [
  ['minimap', 32, 3],
  ['ruler', 19, 2],
  ['stages', 15, 1],
  ['layers', 15, 1],
  ['modules', 15, 2],
  ['ops', 18, 7],
  ['out', 16, 3],
  ['in', 16, 4],
  ['stalls', 13, 5],
  ['replays', 13, 5],
  ['selected', 18, 7]
];
const LEAST_RESIDENT = 96;
const AWAY = 22;
const LEAST_BLOCKS = 56;

/**
 * Lay the tracks out in a timeline of this height; it grows beyond it where that is too little for all of them.
 * Steps without `replays` have no track for them: its height is 0.
 */
export function layTracks(height: number, replays: boolean): Layout {
  const layout = {} as Layout;
  let top = 4;
  for (const [name, tall, gap] of FIXED) {
    if (name === 'replays' && !replays) {
      layout[name] = { top, height: 0 };
      continue;
    }
    layout[name] = { top, height: tall };
    top += tall + gap;
  }
  const left = height - top - AWAY - 24;
  const resident = Math.max(LEAST_RESIDENT, Math.min(160, Math.round(left * 0.45)));
  layout.resident = { top, height: resident };
  top += resident + 8;
  layout.away = { top, height: AWAY };
  top += AWAY + 8;
  layout.blocks = { top, height: Math.max(LEAST_BLOCKS, height - top - 6) };
  layout.bottom = top + layout.blocks.height + 6;
  return layout;
}

/** Which track a height belongs to, or null between tracks. */
export function trackAt(layout: Layout, y: number): TrackName | null {
  for (const [name, box] of Object.entries(layout)) {
    if (typeof box === 'object' && box.height && y >= box.top - 1 && y < box.top + box.height + 1) {
      return name as TrackName;
    }
  }
  return null;
}

/**
 * The height of bytes in the resident track: 70 % of it is linear up to 1.04 times the capacity, the rest linear
 * from there to what a run without swapping would need. At a quarter of the peak, a plain axis would leave the part
 * one can act on a quarter of the track.
 */
export function residentY(
  box: ITrackBox,
  capacity: number | null,
  live: number
): (bytes: number) => number {
  const bottom = box.top + box.height;
  if (capacity === null || live <= capacity * 1.04) {
    const most = Math.max(live, capacity ?? 0, 1) * 1.06;
    return bytes => bottom - (bytes / most) * box.height;
  }
  const knee = capacity * 1.04;
  return bytes =>
    bytes <= knee
      ? bottom - (bytes / knee) * box.height * 0.7
      : bottom - box.height * (0.7 + (0.28 * (bytes - knee)) / (live - knee));
}
