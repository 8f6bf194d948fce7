// Draws two sides under one axis: their stages, stalls and resident bytes, and below them the difference.

import { formatBytes, formatSeconds } from '../format';
import type { Axis, IComparison, ISideFacts } from '../protocol';
import { trans } from '../texts';
import type { IColors } from '../timeline/colors';
import { eachBar, fillUnder, fitText, label, tracePath } from '../timeline/draw';
import { type Scale, tickLabel, ticks } from '../timeline/scale';
import { type ILine, lastAtMost } from '../timeline/tables';
import type { ICompareTables, ISideTables } from './compareTables';

export type Lane = 'ruler' | 'a' | 'b' | 'difference';
export type CompareLayout = Record<Lane, { top: number; height: number }> & { bottom: number };

const RULER = 19;
const STAGES = 13;
const STALLS = 9;
const LEAST_CURVE = 64;
const LEAST_DIFFERENCE = 44;
const GAP = 9;
const FONT_PX = 10;

export interface IComparePicture {
  context: CanvasRenderingContext2D;
  colors: IColors;
  layout: CompareLayout;
  scale: Scale;
  axis: Axis;
  result: IComparison;
  tables: ICompareTables | null;
  cursor: number | null;
}

/** Lay the lanes out in this height; they grow beyond it where that is too little. */
export function layLanes(height: number): CompareLayout {
  const least = STAGES + STALLS + LEAST_CURVE;
  const room = height - RULER - 4 * GAP;
  const difference = Math.max(LEAST_DIFFERENCE, Math.round(room * 0.18));
  const side = Math.max(least, Math.floor((room - difference) / 2));
  const ruler = { top: 4, height: RULER };
  const a = { top: ruler.top + RULER + GAP / 2, height: side };
  const b = { top: a.top + side + GAP, height: side };
  const lower = { top: b.top + side + GAP, height: difference };
  return { ruler, a, b, difference: lower, bottom: lower.top + difference + GAP };
}

export function drawComparison(picture: IComparePicture): void {
  const { context: c, layout, scale, tables, result } = picture;
  c.clearRect(0, 0, scale.width, layout.bottom);
  c.textBaseline = 'middle';
  drawRuler(picture);
  if (!tables) {
    return;
  }
  const figures = [result.a.figures, result.b.figures];
  const most = Math.max(...figures.flatMap(f => [f.peak_bytes, f.capacity_bytes ?? 0]), 1) * 1.08;
  drawSide(picture, 'a', tables.a, result.a, most);
  drawSide(picture, 'b', tables.b, result.b, most);
  drawDifference(picture, tables.difference);
  drawCursor(picture);
}

/** What a step function holds at a position; null outside it. */
export function levelAt(line: ILine, at: number): number | null {
  const row = lastAtMost(line.x, at);
  return row < 0 ? null : line.bytes[row];
}

function drawRuler({ context: c, colors, layout, scale, axis }: IComparePicture): void {
  const { at, step } = ticks(scale, 90, axis === 'op');
  c.font = `${FONT_PX}px ${colors.font}`;
  for (const tick of at) {
    const x = Math.round(scale.x(tick));
    c.fillStyle = colors.of.line;
    c.fillRect(x, layout.ruler.top + 2, 1, layout.bottom - layout.ruler.top - 2);
    c.fillStyle = colors.of['ink-2'];
    if (x < scale.width - 40) {
      const text =
        axis === 'op' ? trans.__('op %1', tick.toLocaleString('en')) : tickLabel(tick, step);
      c.fillText(text, x + 4, layout.ruler.top + layout.ruler.height / 2);
    }
  }
}

function drawSide(
  picture: IComparePicture,
  lane: 'a' | 'b',
  tables: ISideTables,
  facts: ISideFacts,
  most: number
): void {
  const { context: c, colors, layout, scale, axis } = picture;
  const { top, height } = layout[lane];
  const ends = Math.min(scale.x(facts.length[axis]), scale.width);
  const curve = top + STAGES + STALLS;
  const bottom = top + height;
  const y = (bytes: number) => bottom - (bytes / most) * (bottom - curve);
  c.save();
  c.beginPath();
  c.rect(0, top, Math.max(ends, 0), height);
  c.clip();
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, curve, scale.width, bottom - curve);
  c.font = `${FONT_PX}px ${colors.font}`;
  eachBar(tables.stages, scale, (x, width, i) => {
    c.globalAlpha = 0.55;
    c.fillStyle = colors.of[tables.stages.label[i] === 1 ? 'op1' : 'op2'];
    c.fillRect(x, top, Math.max(width - 1, 0.7), STAGES - 1);
    c.globalAlpha = 1;
    c.fillStyle = colors.of.ink;
    const text = facts.stages[tables.stages.label[i]] ?? '';
    fitText(c, text, x + 4, top + STAGES / 2, width - 6);
  });
  c.fillStyle = colors.of.lost;
  eachBar(tables.stalls, scale, (x, width, i) => {
    c.globalAlpha = tables.stalls.count[i] > 1 ? 0.45 + 0.55 * tables.stalls.fill[i] : 1;
    c.fillRect(x, top + STAGES, Math.max(width, 1.2), STALLS - 2);
  });
  c.globalAlpha = 0.75;
  c.fillStyle = colors.of[lane === 'a' ? 'op2' : 'act'];
  fillUnder(c, tables.resident, scale, y, bottom);
  c.globalAlpha = 1;
  c.setLineDash([3, 3]);
  c.strokeStyle = colors.of['ink-2'];
  c.lineWidth = 1;
  c.beginPath();
  tracePath(c, tables.live, scale, bytes => Math.max(y(bytes), curve + 1));
  c.stroke();
  c.setLineDash([]);
  const { capacity_bytes: capacity } = facts.figures;
  if (capacity !== null) {
    c.fillStyle = colors.of.ink;
    c.fillRect(0, Math.round(y(capacity)) - 1, scale.width, 2);
    const text = trans.__('Capacity %1', formatBytes(capacity));
    label(picture, text, Math.max(ends, 0) - 6, y(capacity) + 10, 'right', 'ink', 600);
  }
  c.restore();
}

/** Above the line: the second holds more; below: less. */
function drawDifference(picture: IComparePicture, line: ILine): void {
  const { context: c, colors, layout, scale } = picture;
  const { top, height } = layout.difference;
  const middle = top + height / 2;
  let most = 0;
  for (let i = 0; i < line.bytes.length; i++) {
    most = Math.max(most, Math.abs(line.bytes[i]));
  }
  const y = (bytes: number) => middle - (bytes / Math.max(most, 1)) * (height / 2 - 1);
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, top, scale.width, height);
  for (const [color, from, to] of [
    ['act', top, middle],
    ['op1', middle, top + height]
  ] as const) {
    c.save();
    c.beginPath();
    c.rect(0, from, scale.width, to - from);
    c.clip();
    c.fillStyle = colors.of[color];
    fillUnder(c, line, scale, y, middle);
    c.restore();
  }
  c.fillStyle = colors.of['ink-3'];
  c.fillRect(0, Math.round(middle), scale.width, 1);
  if (most === 0) {
    label(picture, trans.__('no difference'), 5, top + 7, 'left');
    return;
  }
  label(picture, `+${formatBytes(most)}`, 5, top + 7, 'left');
  label(picture, `−${formatBytes(most)}`, 5, top + height - 7, 'left');
}

function drawCursor({ context: c, colors, layout, scale, axis, cursor }: IComparePicture): void {
  if (cursor === null || cursor < scale.start || cursor > scale.end) {
    return;
  }
  const x = Math.round(scale.x(cursor));
  c.fillStyle = colors.of.ink;
  c.globalAlpha = 0.75;
  c.fillRect(x, layout.a.top, 1, layout.bottom - layout.a.top);
  c.globalAlpha = 1;
  const text = axis === 'op' ? trans.__('op %1', Math.floor(cursor)) : formatSeconds(cursor);
  c.font = `600 ${FONT_PX}px ${colors.font}`;
  const width = c.measureText(text).width + 10;
  const left = Math.min(Math.max(x - width / 2, 0), scale.width - width);
  c.fillRect(left, layout.ruler.top + 1, width, 16);
  c.fillStyle = colors.of.bg;
  c.fillText(text, left + 5, layout.ruler.top + 9.5);
}
