// The box that is drawn in the block map: from pixels or keys to a stretch of the axis and of the map's bytes.

import type { IBox } from '../protocol';
import type { ITrackBox } from './layout';
import type { IStretch, Scale } from './scale';

interface IPlace {
  x: number;
  y: number;
}

/** Share of what is shown by which a key moves or resizes a box. */
const KEY_STEP = 0.05;

/** The box between two corners in pixels, cut off at the block map's edges and the axis' ends. */
export function boxOf(
  from: IPlace,
  to: IPlace,
  scale: Scale,
  track: ITrackBox,
  { length, mapBytes }: { length: number; mapBytes: number }
): IBox {
  const x = [from.x, to.x].map(x => Math.min(Math.max(scale.at(x), 0), length));
  const y = [from.y, to.y].map(y => {
    const share = (track.top + track.height - y) / track.height;
    return Math.min(Math.max(share, 0), 1) * mapBytes;
  });
  return {
    start: Math.min(...x),
    end: Math.max(...x),
    low: Math.min(...y),
    high: Math.max(...y)
  };
}

/** A box in the middle of what is shown, to begin with. */
export function middleBox({ start, end }: IStretch, mapBytes: number): IBox {
  const third = (end - start) / 3;
  return { start: start + third, end: end - third, low: mapBytes / 3, high: (2 * mapBytes) / 3 };
}

/** Move by steps to the right and up; it stays within what is shown. */
export function moveBox(box: IBox, right: number, up: number, shown: IStretch, mapBytes: number) {
  const [wide, tall] = [box.end - box.start, box.high - box.low];
  const x = box.start + right * KEY_STEP * (shown.end - shown.start);
  const y = box.low + up * KEY_STEP * mapBytes;
  const start = Math.min(Math.max(x, shown.start), shown.end - wide);
  const low = Math.min(Math.max(y, 0), mapBytes - tall);
  return { start, end: start + wide, low, high: low + tall };
}

/** Move the right and the upper edge. */
export function growBox(box: IBox, right: number, up: number, shown: IStretch, mapBytes: number) {
  const [across, along] = [KEY_STEP * (shown.end - shown.start), KEY_STEP * mapBytes];
  const end = Math.min(Math.max(box.end + right * across, box.start + across), shown.end);
  const high = Math.min(Math.max(box.high + up * along, box.low + along), mapBytes);
  return { ...box, end, high };
}
