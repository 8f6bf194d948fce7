// Draws the pauses: where no op ran outside of the loop. They are no part of the axis, so each is a mark at one place.

import { formatSeconds } from '../format';
import type { Axis, IPause } from '../protocol';
import { pauseName } from '../words';
import type { IColors } from './colors';
import type { Layout } from './layout';
import type { Scale } from './scale';

/** Shorter ones, as a share of what is shown, are no more than Python between two ops. */
const LEAST_SHARE = 0.002;
const APART = 3;

export interface IPauseMark {
  x: number;
  text: string;
}

/** The marks of what is shown, left to right; of those at one place, the longest pause with the sum of all. */
export function pauseMarks(
  pauses: IPause[],
  axis: Axis,
  scale: Scale,
  length_s: number
): IPauseMark[] {
  const marks: (IPauseMark & { kind: string; longest: number; seconds: number })[] = [];
  const least = LEAST_SHARE * (axis === 'time' ? scale.span : length_s);
  for (const { at, kind, duration_s } of pauses) {
    const x = scale.x(at[axis]);
    if (x < 0 || x > scale.width) {
      continue;
    }
    const last = marks.at(-1);
    if (last && x - last.x < APART) {
      last.seconds += duration_s;
      if (duration_s > last.longest) {
        last.longest = duration_s;
        last.kind = kind;
      }
    } else {
      marks.push({ x, text: '', kind, longest: duration_s, seconds: duration_s });
    }
  }
  return marks
    .filter(({ seconds }) => seconds >= least)
    .map(({ x, kind, seconds }) => ({ x, text: `⏸ ${formatSeconds(seconds)} ${pauseName(kind)}` }));
}

export function drawPauses(
  c: CanvasRenderingContext2D,
  colors: IColors,
  layout: Layout,
  marks: IPauseMark[],
  width: number
): void {
  c.font = `10px ${colors.font}`;
  c.textBaseline = 'middle';
  const { top, height } = layout.ops;
  let free = 0;
  for (const { x, text } of marks) {
    c.strokeStyle = colors.of['ink-2'];
    c.lineWidth = 1;
    c.setLineDash([4, 2, 1, 2]);
    c.beginPath();
    c.moveTo(Math.round(x) + 0.5, layout.ruler.top + layout.ruler.height);
    c.lineTo(Math.round(x) + 0.5, layout.bottom);
    c.stroke();
    c.setLineDash([]);
    const wide = c.measureText(text).width + 6;
    const left = Math.min(x + 3, width - wide);
    if (left < free) {
      continue; // the one before says more
    }
    free = left + wide;
    c.fillStyle = colors.of.bg;
    c.globalAlpha = 0.85;
    c.fillRect(left, top, wide, height);
    c.globalAlpha = 1;
    c.fillStyle = colors.of.ink;
    c.fillText(text, left + 3, top + height / 2);
  }
}
