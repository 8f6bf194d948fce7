// Draws what moves with the person: crosshair, selection, search marks, brush, the minimap's frame.

import type { IBox, IOp, IStorageDetail, ITransfer } from '../protocol';
import { trans } from '../texts';
import { BANDS, type BandId, bandOf } from '../words';
import type { IColors } from './colors';
import { fitText, rulerLabels } from './draw';
import type { IHit } from './hit';
import type { ITrackBox, Layout } from './layout';
import { formatAt, type IStretch, Scale } from './scale';
import type { IView } from './tables';

const NOTE_PX = 10;
const NOTE_ROOM_PX = 160;

export interface IOverlay {
  context: CanvasRenderingContext2D;
  colors: IColors;
  layout: Layout;
  scale: Scale;
  length: number;
  view: IView | null;
  cursor: number | null;
  hover: IHit | null;
  selected: IStorageDetail | null;
  marks: number[];
  brush: IStretch | null;
  box: IBox | null;
  op: IOp | null;
  notes: { x: number; text: string }[];
  focused: boolean;
}

export function drawOverlay(overlay: IOverlay): void {
  const { context: c, layout, scale } = overlay;
  c.clearRect(0, 0, scale.width, layout.bottom);
  drawFrame(overlay);
  drawBrush(overlay);
  drawMarks(overlay);
  drawSelection(overlay);
  drawOp(overlay);
  drawBox(overlay);
  drawNotes(overlay);
  drawHover(overlay);
  drawCursor(overlay);
}

/** The part of the axis that is shown, on the minimap. */
function drawFrame({ context: c, colors, layout, scale, length }: IOverlay): void {
  const { top, height } = layout.minimap;
  const whole = new Scale(0, length, scale.width);
  const [left, right] = [whole.x(scale.start), whole.x(scale.end)];
  c.fillStyle = colors.of.bg;
  c.globalAlpha = 0.6;
  c.fillRect(0, top, left, height);
  c.fillRect(right, top, scale.width - right, height);
  c.globalAlpha = 1;
  c.strokeStyle = colors.of['ink-2'];
  c.lineWidth = 1;
  c.strokeRect(Math.round(left) + 0.5, top + 0.5, Math.max(right - left - 1, 2), height - 1);
}

function drawBrush({ context: c, colors, layout, scale, brush }: IOverlay): void {
  if (!brush) {
    return;
  }
  const [left, right] = [scale.x(brush.start), scale.x(brush.end)];
  c.globalAlpha = 0.13;
  c.fillStyle = colors.of.accent;
  c.fillRect(left, layout.ruler.top, right - left, layout.bottom - layout.ruler.top);
  c.globalAlpha = 1;
  for (const x of [left, right]) {
    c.fillRect(Math.round(x), layout.ruler.top, 1, layout.bottom - layout.ruler.top);
  }
}

/** A flag at each note, with its text as far as there is room before the next one. */
function drawNotes({ context: c, colors, layout, scale, notes }: IOverlay): void {
  const { top, height } = layout.ruler;
  const shown = notes
    .map(({ x, text }) => ({ x: scale.x(x), text }))
    .filter(({ x }) => x >= 0 && x <= scale.width)
    .sort((a, b) => a.x - b.x);
  c.font = `${NOTE_PX}px ${colors.font}`;
  c.textBaseline = 'middle';
  shown.forEach(({ x, text }, i) => {
    const room = Math.min(NOTE_ROOM_PX, (shown[i + 1]?.x ?? scale.width) - x - 4);
    const width = Math.min(room, c.measureText(text).width + 8);
    c.fillStyle = colors.of.draft;
    c.fillRect(Math.round(x), top, 1, layout.bottom - top);
    if (width > 14) {
      c.fillRect(x, top, width, height - 2);
      c.fillStyle = colors.of.bg;
      fitText(c, text, x + 4, top + (height - 2) / 2 + 0.5, width - 6);
    } else {
      c.fillRect(x, top, 5, 5);
    }
  });
}

/** The op that was clicked. */
function drawOp({ context: c, colors, layout, scale, op }: IOverlay): void {
  if (op) {
    const { top, height } = layout.ops;
    const left = scale.x(op.x0);
    outline(c, colors, left, top, Math.max(scale.x(op.x1) - left, 2), height);
  }
}

/** The box that is or was drawn in the block map. */
function drawBox({ context: c, colors, layout, scale, box, view }: IOverlay): void {
  if (!box || !view) {
    return;
  }
  const { top, height } = layout.blocks;
  const perByte = height / view.map_bytes;
  const [left, right] = [scale.x(box.start), scale.x(box.end)];
  const [high, low] = [box.high, box.low].map(bytes => top + height - bytes * perByte);
  c.fillStyle = colors.of.accent;
  c.globalAlpha = 0.13;
  c.fillRect(left, high, right - left, low - high);
  c.globalAlpha = 1;
  c.strokeStyle = colors.of.accent;
  c.lineWidth = 1.5;
  c.setLineDash([5, 3]);
  c.strokeRect(left, high, right - left, low - high);
  c.setLineDash([]);
}

/** The ops that a search found, as small marks under them. */
function drawMarks({ context: c, colors, layout, scale, marks }: IOverlay): void {
  const y = layout.ops.top + layout.ops.height + 1;
  c.fillStyle = colors.of.accent;
  for (const mark of marks) {
    const x = scale.x(mark);
    if (x >= -2 && x <= scale.width + 2) {
      c.fillRect(x - 1, y, 2.5, 4);
    }
  }
}

function drawSelection(overlay: IOverlay): void {
  const { selected } = overlay;
  if (!selected) {
    return;
  }
  const { id } = BANDS[bandOf(selected.category)];
  drawUses(overlay, selected);
  drawTransfers(overlay, selected, id);
  outlineBars(overlay, selected.stalls, overlay.layout.stalls);
  outlineBars(overlay, selected.replays, overlay.layout.replays);
  drawLife(overlay, selected, id);
  drawOwnBlocks(overlay, selected.uid);
}

/** Uses: a hairline through all tracks, a mark under the op. */
function drawUses({ context: c, colors, layout, scale }: IOverlay, { uses }: IStorageDetail): void {
  const below = layout.ops.top + layout.ops.height;
  for (const use of uses) {
    const [left, right] = [scale.x(use.x0), scale.x(use.x1)];
    if (right < 0 || left > scale.width) {
      continue;
    }
    outline(c, colors, left, layout.ops.top, right - left, layout.ops.height);
    const middle = (left + right) / 2;
    c.fillStyle = colors.of.sel;
    c.globalAlpha = 0.35;
    c.fillRect(Math.round(middle), below, 1, layout.bottom - below);
    c.globalAlpha = 1;
    c.beginPath();
    c.moveTo(middle, below);
    c.lineTo(middle - 4, below + 6);
    c.lineTo(middle + 4, below + 6);
    c.fill();
  }
}

/** Transfers in the category's color, joined by a line from each way out to the way back. */
function drawTransfers(
  { context: c, colors, layout, scale }: IOverlay,
  { transfers }: IStorageDetail,
  id: BandId
): void {
  const trips = roundTrips(transfers);
  for (const transfer of transfers) {
    const box = layout[transfer.direction];
    const [left, right] = [scale.x(transfer.x0), scale.x(transfer.x1)];
    if (right >= -4 && left <= scale.width + 4) {
      const width = widthOf(left, right);
      c.fillStyle = colors.of[id];
      c.fillRect(left, box.top, width, box.height);
      outline(c, colors, left, box.top, width, box.height);
    }
    const out = trips.get(transfer);
    if (out) {
      const from = scale.x(out.x0);
      c.strokeStyle = colors.of['ink-2'];
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(from + widthOf(from, scale.x(out.x1)), middleOf(layout.out));
      c.lineTo(left, middleOf(box));
      c.stroke();
    }
  }
}

/** Each way back with the way out before it; one that returns what did not leave here has none. */
export function roundTrips<Transfer extends Pick<ITransfer, 'direction'>>(
  transfers: Transfer[]
): Map<Transfer, Transfer> {
  const trips = new Map<Transfer, Transfer>();
  let out: Transfer | null = null;
  for (const transfer of transfers) {
    if (transfer.direction === 'out') {
      out = transfer;
    } else if (out) {
      trips.set(transfer, out);
      out = null;
    }
  }
  return trips;
}

function outlineBars(
  { context: c, colors, scale }: IOverlay,
  bars: { x0: number; x1: number }[],
  { top, height }: ITrackBox
): void {
  for (const { x0, x1 } of bars) {
    const left = scale.x(x0);
    outline(c, colors, left, top, widthOf(left, scale.x(x1)), height);
  }
}

/** A storage's blocks in the map. */
function drawOwnBlocks({ context: c, colors, layout, scale, view }: IOverlay, own: number): void {
  if (!view) {
    return;
  }
  const { x0, x1, y0, y1, uid } = view.blocks;
  const box = layout.blocks;
  const perByte = box.height / view.map_bytes;
  for (let i = 0; i < uid.length; i++) {
    if (uid[i] === own) {
      const left = scale.x(x0[i] + view.start);
      const width = widthOf(left, scale.x(x1[i] + view.start));
      const tall = Math.max((y1[i] - y0[i]) * perByte, 3);
      outline(c, colors, left, box.top + box.height - y0[i] * perByte - tall, width, tall);
    }
  }
}

/** What is too short to be seen is two pixels wide. */
function widthOf(left: number, right: number): number {
  return Math.max(right - left, 2);
}

function middleOf({ top, height }: ITrackBox): number {
  return top + height / 2;
}

/** The selected storage's own track: solid on the device, dashes away, dots where it is dropped. */
function drawLife(
  { context: c, colors, layout, scale }: IOverlay,
  selected: IStorageDetail,
  id: BandId
): void {
  const box = layout.selected;
  const middle = middleOf(box);
  const inset = Math.round(box.height * 0.22);
  const color = colors.of[id];
  c.fillStyle = color;
  for (const [start, end] of selected.resident) {
    const left = scale.x(start);
    c.fillRect(left, box.top + inset, Math.max(scale.x(end) - left, 1.5), box.height - 2 * inset);
  }
  c.strokeStyle = color;
  c.lineWidth = 1.5;
  for (const [stretches, dash] of [
    [selected.away, [3, 3]],
    [selected.dropped, [1.5, 4]]
  ] as const) {
    c.setLineDash(dash as unknown as number[]);
    for (const [start, end] of stretches) {
      c.beginPath();
      c.moveTo(scale.x(start), middle);
      c.lineTo(scale.x(end), middle);
      c.stroke();
    }
  }
  c.setLineDash([]);
  c.fillStyle = colors.of['ink-2'];
  c.font = `10px ${colors.font}`;
  c.textBaseline = 'middle';
  for (const [, end] of selected.dropped) {
    c.fillText('↻', scale.x(end) - 11, middle);
  }
}

/** Selection is ink with a halo of the background, not a hue. */
function outline(
  c: CanvasRenderingContext2D,
  colors: IColors,
  x: number,
  y: number,
  width: number,
  height: number
): void {
  const left = Math.max(x, -4);
  const wide = Math.min(x + width, c.canvas.width + 4) - left;
  c.strokeStyle = colors.of.bg;
  c.lineWidth = 2.5;
  c.strokeRect(left - 1, y - 1, wide + 2, height + 2);
  c.strokeStyle = colors.of.sel;
  c.lineWidth = 1.5;
  c.strokeRect(left, y, wide, height);
}

function drawHover({ context: c, colors, layout, scale, hover }: IOverlay): void {
  if (!hover || hover.index < 0 || hover.track === 'blocks') {
    return;
  }
  const box = layout[hover.track];
  const left = Math.max(scale.x(hover.x0), 0);
  c.strokeStyle = colors.of.ink;
  c.lineWidth = 1;
  c.strokeRect(
    left,
    box.top,
    Math.max(Math.min(scale.x(hover.x1), scale.width) - left, 2),
    box.height
  );
}

function drawCursor({ context: c, colors, layout, scale, cursor, view }: IOverlay): void {
  if (cursor === null || cursor < scale.start || cursor > scale.end) {
    return;
  }
  const x = Math.round(scale.x(cursor));
  c.fillStyle = colors.of.ink;
  c.globalAlpha = 0.75;
  c.fillRect(x, layout.ruler.top + layout.ruler.height, 1, layout.bottom);
  c.globalAlpha = 1;
  const axis = view?.axis ?? 'time';
  const text =
    axis === 'op'
      ? trans.__('op %1', Math.floor(cursor).toLocaleString('en'))
      : formatAt(cursor, scale.end - scale.start);
  const { top, height } = layout.ruler;
  c.font = `10px ${colors.font}`;
  const labels = rulerLabels(scale, axis).map(label => ({
    from: label.x + 2,
    to: label.x + 6 + c.measureText(label.text).width
  }));
  c.font = `600 10px ${colors.font}`;
  const width = c.measureText(text).width + 10;
  const left = Math.min(Math.max(x - width / 2, 0), scale.width - width);
  // A label of the ruler that the readout would leave a part of goes whole.
  c.fillStyle = colors.of.bg;
  for (const { from, to } of labels) {
    if (from < left + width + 2 && to > left - 2) {
      c.fillRect(from, top, to - from, height);
    }
  }
  c.fillStyle = colors.of.ink;
  c.fillRect(left, top + 1, width, height - 2);
  c.fillStyle = colors.of.bg;
  c.textBaseline = 'middle';
  c.fillText(text, left + 5, top + height / 2);
}
