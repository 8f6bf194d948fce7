// What the curve of step time against capacity shows: the marks, where they lie, and what is said beside them.

import { formatBytes, formatSeconds } from '../format';
import type { ICurve, ICurvePoint, IOpenDraft } from '../protocol';
import { trans } from '../texts';

export const HEIGHT = 150;
const LEFT = 38;
const RIGHT = 12;
const TOP = 16;
const BOTTOM = 30;
const FLOOR_Y = HEIGHT - BOTTOM;
/** The room that the middle of the range needs to be written beside the floor. */
const MIDDLE_PX = 110;
/** Hatches what is below the floor. */
const PATTERN =
  '<defs><pattern id="cl-below" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="cl-hatch" x1="0" y1="0" x2="0" y2="5"/></pattern></defs>';

/** A text as the drawing can hold it: a translation may have any letters. */
function escaped(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
}

/** Where capacities and step times lie in the drawing. */
export interface IAxes {
  width: number;
  /** The range of capacities. */
  low: number;
  high: number;
  /** The longest step time drawn, as a multiple of what it computes. */
  most: number;
  x(bytes: number): number;
  y(step_s: number): number;
}

/** The draft's capacity, or the one it is dragged to; its step time is null where nobody knows it. */
export interface IDraftPoint {
  capacity_bytes: number;
  step_s: number | null;
  isDragged: boolean;
  /** Where it lies, kept within the drawing. */
  at: number;
}

export interface ICurvePlot {
  /** Of the drawing. */
  svg: string;
  /** What each mark is; those that are drawn. */
  key: string;
}

export interface ICurveWords {
  /** The step time as a multiple of what it computes; empty where nobody knows it. */
  ratio: string;
  /** What the handle is at, to whom cannot see it. */
  handle: string;
  progress: string;
  /** Whether the curve is still to be asked for. */
  canBegin: boolean;
}

export function axesOf(open: IOpenDraft, curve: ICurve | null, width: number): IAxes {
  const low = open.floor.bytes;
  const high = Math.max(open.live_peak_bytes, open.capacity_bytes, low + 1);
  const margin = (high - low) * 0.06;
  const [x0, x1] = [low - margin, high + margin * 0.4];
  const times = [open.current.step_s, open.draft?.step_s ?? 0, ...pointsOf(curve).map(timeOf)];
  const ratios = times.map(step_s => ratioOf(open, step_s)).filter(Number.isFinite);
  const most = Math.max(1.05, ...ratios) * 1.02;
  return {
    width,
    low,
    high,
    most,
    x: bytes => LEFT + ((bytes - x0) / (x1 - x0)) * (width - LEFT - RIGHT),
    y: step_s => TOP + (1 - (ratioOf(open, step_s) - 1) / (most - 1)) * (HEIGHT - TOP - BOTTOM)
  };
}

export function draftPoint(
  open: IOpenDraft,
  curve: ICurve | null,
  dragged: number | null,
  axes: IAxes
): IDraftPoint {
  const isDragged = dragged !== null;
  const capacity_bytes = dragged ?? open.capacity_bytes;
  return {
    capacity_bytes,
    step_s: isDragged ? between(curve, capacity_bytes) : (open.draft?.step_s ?? null),
    isDragged,
    at: Math.min(Math.max(axes.x(capacity_bytes), LEFT), axes.width - RIGHT)
  };
}

export function plotCurve(
  open: IOpenDraft,
  curve: ICurve | null,
  draft: IDraftPoint,
  axes: IAxes
): ICurvePlot {
  const points = pointsOf(curve);
  const knee = points.find(p => p.capacity_bytes === curve?.knee_bytes);
  const marks: [mark: string, name: string, drawn: boolean][] = [
    ['<path class="cl-line" d="M0,5 L14,5"/>', trans.__('planned, no edits'), points.length > 1],
    ['<circle class="cl-now" cx="7" cy="5" r="4"/>', trans.__('in force'), true],
    [
      '<circle class="cl-draft-dot" cx="7" cy="5" r="4"/>',
      trans.__('draft'),
      draft.step_s !== null
    ],
    ['<path class="cl-knee" d="M2,5 L7,0 L12,5 L7,10 Z"/>', trans.__('knee'), Boolean(knee)]
  ];
  return {
    svg: [
      ...gridOf(open, axes),
      ...rangeOf(axes),
      ...lineOf(points, axes),
      ...(knee && curve ? kneeOf(knee, curve.within, axes) : []),
      inForce(open, axes),
      ...draftOf(draft, axes)
    ].join(''),
    key: marks
      .filter(([, , drawn]) => drawn)
      .map(
        ([mark, name]) =>
          `<li><svg viewBox="0 0 14 10" aria-hidden="true">${mark}</svg>${escaped(name)}</li>`
      )
      .join('')
  };
}

export function curveWords(
  open: IOpenDraft,
  curve: ICurve | null,
  { capacity_bytes, step_s, isDragged }: IDraftPoint
): ICurveWords {
  const ratio = step_s === null ? '' : `${ratioOf(open, step_s).toFixed(2)}×`;
  return {
    ratio: ratio && isDragged ? trans.__('by the curve %1', ratio) : ratio,
    handle: ratio
      ? trans.__('%1, step %2', formatBytes(capacity_bytes), ratio)
      : formatBytes(capacity_bytes),
    progress: progressOf(open, curve),
    canBegin: !curve || (curve.left <= 0 && curve.points.length <= 1)
  };
}

/** The step time at a capacity, on the line between the curve's points; null where there are none. */
export function between(curve: ICurve | null, capacity: number): number | null {
  const points = pointsOf(curve);
  for (let i = 1; i < points.length; i++) {
    const [a, b] = [points[i - 1], points[i]];
    if (capacity >= a.capacity_bytes && capacity <= b.capacity_bytes) {
      const share = (capacity - a.capacity_bytes) / (b.capacity_bytes - a.capacity_bytes || 1);
      return a.step_s + share * (b.step_s - a.step_s);
    }
  }
  return null;
}

/** The curve's points that a step can run in. */
function pointsOf(curve: ICurve | null): ICurvePoint[] {
  return (curve?.points ?? []).filter(p => Number.isFinite(p.step_s));
}

function timeOf({ step_s }: ICurvePoint): number {
  return step_s;
}

function ratioOf(open: IOpenDraft, step_s: number): number {
  return step_s / (open.compute_s || 1);
}

function progressOf(open: IOpenDraft, curve: ICurve | null): string {
  if (curve && curve.left > 0) {
    return trans._n(
      'Planning for %1 capacities: %2 done',
      'Planning for %1 capacities: %2 done',
      curve.of,
      curve.of - curve.left
    );
  }
  if (curve && curve.points.length > 1) {
    const uncapped = formatSeconds(open.compute_s);
    return curve.knee_bytes === null
      ? trans.__('Without edits. Uncapped %1; no knee in this range', uncapped)
      : trans.__('Without edits. Uncapped %1', uncapped);
  }
  return '';
}

/** Lines at the shortest step time, the longest and between. */
function gridOf(open: IOpenDraft, { width, most, y }: IAxes): string[] {
  return [0, 0.5, 1].flatMap(share => {
    const ratio = 1 + (most - 1) * share;
    const at = y(ratio * open.compute_s);
    return [
      `<line class="cl-grid" x1="${LEFT}" x2="${width - RIGHT}" y1="${at}" y2="${at}"/>`,
      `<text class="cl-tick" x="${LEFT - 4}" y="${at + 3}" text-anchor="end">${ratio.toFixed(2)}×</text>`
    ];
  });
}

/** The floor, what lies below it, and the range's capacities. */
function rangeOf({ width, low, high, x }: IAxes): string[] {
  const middle = (low + high) / 2;
  const parts = [
    PATTERN,
    `<rect x="${LEFT}" y="${TOP}" width="${Math.max(0, x(low) - LEFT)}" height="${FLOOR_Y - TOP}" fill="url(#cl-below)"/>`,
    `<line class="cl-floor" x1="${x(low)}" x2="${x(low)}" y1="${TOP}" y2="${FLOOR_Y}"/>`,
    `<text class="cl-tick cl-strong" x="${Math.max(LEFT, x(low) - 8)}" y="${FLOOR_Y + 12}">${escaped(trans.__('floor %1', formatBytes(low)))}</text>`,
    `<text class="cl-tick" x="${width - RIGHT}" y="${FLOOR_Y + 12}" text-anchor="end">${formatBytes(high)}</text>`
  ];
  if (x(middle) - x(low) > MIDDLE_PX) {
    parts.push(
      `<text class="cl-tick" x="${x(middle)}" y="${FLOOR_Y + 12}" text-anchor="middle">${formatBytes(middle)}</text>`
    );
  }
  return parts;
}

function lineOf(points: ICurvePoint[], { x, y }: IAxes): string[] {
  const line = points.map(p => `${x(p.capacity_bytes).toFixed(1)},${y(p.step_s).toFixed(1)}`);
  return points.length > 1 ? [`<polyline class="cl-line" points="${line.join(' ')}"/>`] : [];
}

function kneeOf(knee: ICurvePoint, within: number, { width, x, y }: IAxes): string[] {
  const [kx, ky] = [x(knee.capacity_bytes), y(knee.step_s)];
  const atEnd = kx > width * 0.6;
  const capacity = formatBytes(knee.capacity_bytes);
  const from = trans.__(
    'From %1 on a step takes at most %2 longer than without a limit',
    capacity,
    `${(100 * within).toFixed(0)} %`
  );
  return [
    `<path class="cl-knee" d="M${kx - 5},${ky} L${kx},${ky - 5} L${kx + 5},${ky} L${kx},${ky + 5} Z"><title>${escaped(from)}</title></path>`,
    `<text class="cl-tick" x="${atEnd ? kx - 8 : kx + 8}" y="${ky - 6}" text-anchor="${atEnd ? 'end' : 'start'}">${escaped(trans.__('knee %1', capacity))}</text>`
  ];
}

function inForce({ current }: IOpenDraft, { x, y }: IAxes): string {
  const [cx, cy] = [x(current.capacity_bytes), y(current.step_s)];
  const title = trans.__(
    'In force: %1, %2',
    formatBytes(current.capacity_bytes),
    formatSeconds(current.step_s)
  );
  return `<circle class="cl-now" cx="${cx}" cy="${cy}" r="4.5"><title>${escaped(title)}</title></circle>`;
}

function draftOf({ at, step_s }: IDraftPoint, { y }: IAxes): string[] {
  const line = `<line class="cl-draft-line" x1="${at}" x2="${at}" y1="${TOP - 4}" y2="${FLOOR_Y}"/>`;
  return step_s === null
    ? [line]
    : [line, `<circle class="cl-draft-dot" cx="${at}" cy="${y(step_s)}" r="4"/>`];
}
