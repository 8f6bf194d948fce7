// The one axis: which stretch of it is shown, and where a position is on the screen.

export interface IStretch {
  start: number;
  end: number;
}

/** From positions on the axis to pixels, and back. */
export class Scale {
  constructor(
    readonly start: number,
    readonly end: number,
    readonly width: number
  ) {}

  get span(): number {
    return this.end - this.start;
  }

  x(at: number): number {
    return ((at - this.start) / this.span) * this.width;
  }

  at(x: number): number {
    return this.start + (x / this.width) * this.span;
  }
}

/** Keep a stretch within an axis of `length`, and at least `least` long; panning stops at the ends. */
export function clamp(stretch: IStretch, length: number, least: number): IStretch {
  const span = Math.min(length, Math.max(stretch.end - stretch.start, Math.min(least, length)));
  const middle = (stretch.start + stretch.end) / 2;
  const kept = stretch.end - stretch.start === span ? stretch.start : middle - span / 2;
  const start = Math.min(Math.max(kept, 0), length - span);
  return { start, end: start + span };
}

/** Zoom by a factor (below 1: in), so that `at` stays where it is on the screen. */
export function zoom(stretch: IStretch, factor: number, at: number): IStretch {
  return { start: at - (at - stretch.start) * factor, end: at + (stretch.end - at) * factor };
}

/** A stretch as long as this share of the axis is all of it. */
const WHOLE = 0.999;

/**
 * What to show of an axis that takes another's place: all of it where all was shown, else the same part of it; the
 * very same stretch where the same steps are drawn in another way (`redrawn`). `before`: the length of the axis that was
 * there; null: none was, or another source's.
 */
export function carried(
  shown: IStretch,
  before: number | null,
  length: number,
  redrawn: boolean
): IStretch {
  if (before === null || shown.end - shown.start > before * WHOLE || (!redrawn && !before)) {
    return { start: 0, end: length };
  }
  const share = redrawn ? 1 : length / before;
  return { start: shown.start * share, end: shown.end * share };
}

export function pan(stretch: IStretch, by: number): IStretch {
  return { start: stretch.start + by, end: stretch.end + by };
}

/** How much closer or wider a pixel of the wheel's turn makes it. */
const WHEEL = 0.0016;
/** What a line is, where a browser tells turns in lines. */
const LINE_PX = 16;
const DELTA_LINE = 1; // WheelEvent.DOM_DELTA_LINE

/**
 * What to show after a turn of the wheel: further along where it turns sideways or Shift is held, else closer or wider
 * around the pointer.
 */
export function wheeled(
  scale: Scale,
  event: Pick<WheelEvent, 'deltaX' | 'deltaY' | 'deltaMode' | 'shiftKey' | 'offsetX'>
): IStretch {
  const unit = event.deltaMode === DELTA_LINE ? LINE_PX : 1;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    return pan(scale, ((sideways * unit) / scale.width) * scale.span);
  }
  const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY * unit * WHEEL)));
  return zoom(scale, factor, scale.at(event.offsetX));
}

/** Round positions for the ruler, at least `gap` pixels apart: 1, 2 or 5 times a power of ten. */
export function ticks(scale: Scale, gap: number, whole = false): { at: number[]; step: number } {
  const rough = (scale.span * gap) / Math.max(scale.width, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * ([1, 2, 5, 10].find(factor => power * factor >= rough) ?? 10);
  if (whole) {
    step = Math.max(1, step);
  }
  const at = [];
  for (let i = Math.ceil(scale.start / step); i * step <= scale.end; i++) {
    at.push(i * step);
  }
  return { at, step };
}

const UNITS: [unit: string, size: number][] = [
  ['s', 1],
  ['ms', 1e-3],
  ['µs', 1e-6]
];

/**
 * A tick in seconds with the digits that the distance between ticks needs, in the unit that fits it; in a larger one
 * where the numbers up to `most` would get long.
 */
export function tickLabel(seconds: number, step: number, most = Math.abs(seconds)): string {
  let row = step >= 0.5 ? 0 : step >= 5e-4 ? 1 : 2;
  while (row > 0 && most / UNITS[row][1] >= 1000) {
    row -= 1;
  }
  const [unit, size] = UNITS[row];
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return `${(seconds / size).toFixed(Math.min(digits, 9)).replace('-', '−')} ${unit}`;
}

/** A time on an axis of which `span` seconds are in sight, so that what lies apart there reads differently. */
export function formatAt(seconds: number, span: number): string {
  const step = 10 ** Math.floor(Math.log10(span / 1000) + 1e-9);
  return tickLabel(seconds, step, Math.max(Math.abs(seconds), span / 10));
}
