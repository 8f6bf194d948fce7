// Where each track lies, from the top.

import { trans } from '../texts';

export type TrackName =
  | 'minimap'
  | 'ruler'
  | 'stages'
  | 'layers'
  | 'modules'
  | 'marks'
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

/** `head`: where those end that stay in sight, the pinned ones with minimap and ruler; 0: none is pinned. */
export type Layout = Record<TrackName, ITrackBox> & { bottom: number; head: number };

/** Each with its height and the gap after it, and with the least of both where room is short. */
const FIXED: [TrackName, height: number, gap: number, least: number, leastGap: number][] = [
  ['minimap', 32, 3, 20, 2],
  ['ruler', 19, 2, 16, 1],
  ['stages', 15, 1, 13, 1],
  ['layers', 15, 1, 13, 1],
  ['modules', 15, 2, 13, 1],
  ['marks', 15, 2, 11, 1],
  ['ops', 18, 7, 14, 5],
  ['out', 16, 3, 11, 2],
  ['in', 16, 4, 11, 2],
  ['stalls', 13, 5, 11, 2],
  ['replays', 13, 5, 11, 2],
  ['selected', 18, 7, 11, 4]
];
const NONE: ReadonlySet<TrackName> = new Set();

/** The tracks that can be folded away, and what they are called; the others are what the drawing is for. */
export const FOLDABLE: [TrackName, () => string][] = [
  ['stages', () => trans.__('Stage')],
  ['layers', () => trans.__('Layer')],
  ['modules', () => trans.__('Module')],
  ['marks', () => trans.__('Markers')],
  ['ops', () => trans.__('Ops')],
  ['out', () => trans.__('Swap-out')],
  ['in', () => trans.__('Swap-in')],
  ['stalls', () => trans.__('Stall')],
  ['replays', () => trans.__('Replays')],
  ['selected', () => trans.__('Selected')],
  ['away', () => trans.__('On the host')]
];

/** What can be pinned, beside those: at the top, where they stay in sight when the others scroll. */
export const PINNABLE: ReadonlySet<TrackName> = new Set([
  ...FOLDABLE.map(([track]) => track),
  'resident'
]);

const RESIDENT = [160, 54];
const AWAY = [22, 11];
const BLOCKS = [56, 36];
const GAP = [8, 4];
const TOP = 4;

/**
 * Lay the tracks out in a timeline of this height. They share it: where it is short they get lower, down to what can
 * still be read, so that all are in sight; only below that does the timeline grow beyond its height.
 * Steps without `replays` or `marks` have no track for them: its height is 0, and so is that of a `folded` one.
 * The `pinned` ones lie below the ruler, in their order.
 */
export function layTracks(
  height: number,
  replays: boolean,
  marks = false,
  folded: ReadonlySet<TrackName> = NONE,
  pinned: ReadonlySet<TrackName> = NONE
): Layout {
  const layout = {} as Layout;
  const absent = (name: TrackName) =>
    (name === 'replays' && !replays) || (name === 'marks' && !marks) || folded.has(name);
  const tracks = FIXED.filter(([name]) => !absent(name));
  const sum = (of: 0 | 1) =>
    tracks.reduce((all, [, tall, gap, low, narrow]) => all + (of ? low + narrow : tall + gap), 0);
  const host = (of: 0 | 1) => (folded.has('away') ? 0 : AWAY[of]);
  const rest = (of: 0 | 1) => host(of) + BLOCKS[of] + 3 * GAP[of] + (of ? RESIDENT[1] : 96);
  const [full, least] = [sum(0) + rest(0), sum(1) + rest(1)];
  const share = Math.min(1, Math.max(0, (height - TOP - least) / (full - least)));
  const between = (most: number, fewest: number) => Math.floor(fewest + (most - fewest) * share);
  const lanes = FIXED.map(([name, tall, after, low, narrow]) => ({
    name,
    height: absent(name) ? 0 : between(tall, low),
    gap: absent(name) ? 0 : between(after, narrow)
  }));
  const away = between(host(0), host(1));
  const gap = between(GAP[0], GAP[1]);
  const left =
    height - TOP - lanes.reduce((all, lane) => all + lane.height + lane.gap, 0) - away - 3 * gap;
  const resident = Math.max(RESIDENT[1], Math.min(RESIDENT[0], Math.round(left * 0.52)));
  lanes.push({ name: 'resident', height: resident, gap }, { name: 'away', height: away, gap });
  const stays = (name: TrackName) => pinned.has(name) && PINNABLE.has(name);
  const order = [
    ...lanes.slice(0, 2), // minimap and ruler
    ...lanes.slice(2).filter(({ name }) => stays(name)),
    ...lanes.slice(2).filter(({ name }) => !stays(name))
  ];
  let top = TOP;
  layout.head = 0;
  for (const lane of order) {
    layout[lane.name] = { top, height: lane.height };
    top += lane.height + lane.gap;
    if (stays(lane.name) && lane.height) {
      layout.head = top;
    }
  }
  layout.blocks = { top, height: Math.max(BLOCKS[1], height - top - gap) };
  layout.bottom = top + layout.blocks.height + gap;
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

/** The labels of the resident track's axis, one on each of its parts, and where it breaks; null: it does not. */
export function residentTicks(
  box: ITrackBox,
  capacity: number | null,
  live: number
): { ticks: { bytes: number; y: number }[]; breakY: number | null } {
  const y = residentY(box, capacity, live);
  const broken = capacity !== null && live > capacity * 1.04;
  const bytes = broken ? [live, capacity / 2] : [Math.max(live, capacity ?? 0)];
  if (!broken) {
    bytes.push(bytes[0] / 2);
  }
  return {
    ticks: bytes.map(value => ({ bytes: value, y: y(value) })),
    breakY: broken ? y(capacity * 1.04) : null
  };
}
