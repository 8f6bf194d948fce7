// Draws the tracks of a view. What moves with the pointer is overlay.ts.

import { formatBytes } from '../format';
import type { IScene } from '../protocol';
import { trans } from '../texts';
import { BANDS, bandOf, endOf, measuredOn, shortOp } from '../words';
import type { IColors } from './colors';
import { type ITrackBox, type Layout, residentTicks, residentY } from './layout';
import { Scale, tickLabel, ticks } from './scale';
import { type IBars, type ILine, type ISpans, type IView, lastAtMost, PLACE } from './tables';

export interface IPicture {
  context: CanvasRenderingContext2D;
  colors: IColors;
  layout: Layout;
  scale: Scale;
  scene: IScene;
  /** What is drawn; covers the scale's stretch. */
  view: IView;
  /** The whole axis, for the minimap. */
  overview: IView;
  /** Whether it is a draft, which has not run. */
  predicted: boolean;
}

/** Of the lane's height, by kind: matmuls and attention, the rest of arithmetic, what only moves bytes. */
const OP_HEIGHTS = [1, 0.72, 0.39];
const OP_COLOURS = ['op1', 'op2', 'op3'] as const;
/** How strong a block is, by `PLACE`: what is not on the device is paler. */
const ALPHA_OF_PLACE = [1, 0.5, 0.8];
const LEAST_PX = 0.7;
const FONT_PX = 10;
/** From this width on the floor's label says what it was measured on. */
const ROOM_FOR_MEASURED_PX = 640;

/** A block of the map, in pixels. */
export interface IBlockShape {
  left: number;
  top: number;
  width: number;
  height: number;
  alpha: number;
}

/** Draw everything that the data decide. */
export function drawTracks(picture: IPicture): void {
  const { context: c, colors, layout, scale } = picture;
  c.clearRect(0, 0, scale.width, layout.bottom);
  c.textBaseline = 'middle';
  drawMinimap(picture);
  drawRuler(picture);
  drawSpans(picture, 'stages', picture.scene.stages, ['op2', 'op1', 'op3', 'op3'], 0.55);
  drawSpans(picture, 'layers', picture.scene.layers, ['op3', 'op2'], 0.5);
  drawSpans(picture, 'modules', picture.scene.modules, ['op3', 'op2'], 0.32);
  drawMarks(picture);
  drawOps(picture);
  drawTransfers(picture, 'out');
  drawTransfers(picture, 'in');
  drawStalls(picture);
  drawReplays(picture);
  drawResident(picture);
  drawAway(picture);
  drawBlocks(picture);
  // The steps' ends, through all tracks.
  const axis = picture.view.axis;
  c.fillStyle = colors.of['ink-3'];
  for (const step of picture.scene.steps.slice(1)) {
    const x = Math.round(scale.x(step.begin[axis]));
    c.fillRect(x, layout.ruler.top, 1, layout.bottom - layout.ruler.top);
  }
  if (picture.predicted) {
    drawPredicted(picture);
  }
}

/** A draft may end before what ran, whose axis it is drawn on: what held at its end does not go on. */
function coverBeyond(
  { context: c, colors, scene, view }: IPicture,
  box: ITrackBox,
  scale: Scale
): void {
  const end = scale.x(scene.length[view.axis]);
  if (end < scale.width) {
    c.fillStyle = colors.of['bg-sunk'];
    c.fillRect(end, box.top, scale.width - end, box.height);
  }
}

/** Say that nothing of this has run: a violet dash under the ruler, and a word on it. */
function drawPredicted({ context: c, colors, layout, scale }: IPicture): void {
  const { top, height } = layout.ruler;
  c.strokeStyle = colors.of.draft;
  c.lineWidth = 2;
  c.setLineDash([7, 4]);
  c.beginPath();
  c.moveTo(0, top + height);
  c.lineTo(scale.width, top + height);
  c.stroke();
  c.setLineDash([]);
  c.font = `600 ${FONT_PX}px ${colors.font}`;
  const text = trans.__('Draft, predicted');
  const width = c.measureText(text).width + 12;
  c.fillStyle = colors.of.draft;
  c.fillRect(scale.width - width, top, width, height - 2);
  c.fillStyle = colors.of.bg;
  c.fillText(text, scale.width - width + 6, top + height / 2 - 0.5);
}

/** Call with each bar that is in sight: its ends in pixels, and its position in the table. */
export function eachBar(
  bars: IBars,
  scale: Scale,
  draw: (x: number, width: number, index: number) => void
): void {
  for (let i = 0; i < bars.x0.length; i++) {
    const x = scale.x(bars.x0[i]);
    if (x > scale.width) {
      break; // bars ascend
    }
    const end = scale.x(bars.x1[i]);
    if (end >= 0) {
      draw(Math.max(x, -2), Math.min(end, scale.width + 2) - Math.max(x, -2), i);
    }
  }
}

/** A text that fits, cut where it does not; nothing where even three letters would not. */
export function fitText(
  c: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  width: number
): void {
  if (width < 14) {
    return;
  }
  let shown = text;
  if (c.measureText(shown).width > width) {
    const letters = Math.floor((text.length * (width - 6)) / c.measureText(text).width);
    if (letters < 2) {
      return;
    }
    shown = `${text.slice(0, letters)}…`;
  }
  c.fillText(shown, x, y);
}

/** The end of a dotted name, as much of it as fits: there is the number that tells layers apart. */
function fitEnd(
  c: CanvasRenderingContext2D,
  name: string,
  x: number,
  y: number,
  width: number
): void {
  if (width >= 6 && name) {
    const letter = c.measureText(name).width / name.length;
    const shown = endOf(name, text => text.length * letter <= width);
    if (shown && c.measureText(shown).width <= width + 2) {
      c.fillText(shown, x, y);
    }
  }
}

/** A text on a patch of the background, so that it can be read over a drawing. */
export function label(
  picture: Pick<IPicture, 'context' | 'colors'>,
  text: string,
  x: number,
  y: number,
  align: 'left' | 'right',
  ink: 'ink' | 'ink-2' | 'lost' = 'ink-2',
  weight = 400
): void {
  const { context: c, colors } = picture;
  c.font = `${weight} ${FONT_PX}px ${colors.font}`;
  const width = c.measureText(text).width;
  const left = align === 'right' ? x - width : x;
  c.globalAlpha = 0.82;
  c.fillStyle = colors.of.bg;
  c.fillRect(left - 3, y - 7, width + 6, 14);
  c.globalAlpha = 1;
  c.fillStyle = colors.of[ink];
  c.fillText(text, left, y);
}

function drawMinimap(picture: IPicture): void {
  const { context: c, colors, layout, scene, overview, scale } = picture;
  const { top, height } = layout.minimap;
  const whole = new Scale(0, overview.end, scale.width);
  const most = Math.max(scene.live_peak_bytes, scene.capacity_bytes ?? 0, 1);
  const y = (bytes: number) => top + height - (bytes / most) * (height - 6);
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, top, scale.width, height);
  c.fillStyle = colors.of.op3;
  fillUnder(c, overview.live, whole, y, top + height);
  c.fillStyle = colors.of.op2;
  const { x, bands } = overview.resident;
  const total = new Float64Array(x.length);
  for (const band of bands) {
    for (let i = 0; i < total.length; i++) {
      total[i] += band[i];
    }
  }
  fillUnder(c, { x, bytes: total }, whole, y, top + height);
  coverBeyond(picture, layout.minimap, whole);
  c.fillStyle = colors.of.lost;
  eachBar(overview.stalls, whole, (left, width) => c.fillRect(left, top, Math.max(width, 1), 4));
}

/** Fill below a step function. */
export function fillUnder(
  c: CanvasRenderingContext2D,
  line: ILine,
  scale: Scale,
  y: (bytes: number) => number,
  bottom: number
): void {
  c.beginPath();
  c.moveTo(0, bottom);
  tracePath(c, line, scale, y);
  c.lineTo(scale.width, bottom);
  c.closePath();
  c.fill();
}

/**
 * Trace a step function across the drawing. Of what changes within a pixel only what lies furthest from zero is drawn:
 * each corner of a path costs, dashed ones most.
 */
export function tracePath(
  c: Pick<CanvasRenderingContext2D, 'lineTo'>,
  { x, bytes }: ILine,
  scale: Scale,
  y: (bytes: number) => number
): void {
  let height = y(0);
  let i = Math.max(0, lastAtMost(x, scale.start));
  while (i < x.length && x[i] <= scale.end) {
    const left = Math.max(0, scale.x(x[i]));
    const pixelEnd = Math.floor(left) + 1;
    let most = bytes[i];
    let next = i + 1;
    while (next < x.length && x[next] <= scale.end && scale.x(x[next]) < pixelEnd) {
      most = Math.abs(bytes[next]) > Math.abs(most) ? bytes[next] : most;
      next++;
    }
    c.lineTo(left, height);
    height = y(most);
    c.lineTo(left, height);
    const goesOn = next === x.length || scale.x(x[next]) >= pixelEnd + 1;
    if (goesOn && most !== bytes[next - 1]) {
      c.lineTo(pixelEnd, height);
      height = y(bytes[next - 1]);
      c.lineTo(pixelEnd, height);
    }
    i = next;
  }
  c.lineTo(scale.width, height);
}

/** The texts of the ruler, where they begin, and the ticks that have none. */
export function rulerLabels(scale: Scale, axis: string): { x: number; text: string }[] {
  const { at, step } = ticks(scale, 90, axis === 'op');
  return at.map(tick => {
    const x = Math.round(scale.x(tick));
    const text =
      axis === 'op'
        ? trans.__('op %1', tick.toLocaleString('en'))
        : tickLabel(tick, step, scale.end);
    return { x, text: x < scale.width - 40 ? text : '' };
  });
}

function drawRuler(picture: IPicture): void {
  const { context: c, colors, layout, scale, view } = picture;
  c.font = `${FONT_PX}px ${colors.font}`;
  for (const { x, text } of rulerLabels(scale, view.axis)) {
    c.fillStyle = colors.of.line;
    c.fillRect(x, layout.ruler.top + 2, 1, layout.bottom - layout.ruler.top - 2);
    c.fillStyle = colors.of['ink-2'];
    c.fillText(text, x + 4, layout.ruler.top + layout.ruler.height / 2);
  }
}

function drawSpans(
  picture: IPicture,
  track: 'stages' | 'layers' | 'modules',
  labels: string[],
  shades: ('op1' | 'op2' | 'op3')[],
  strength: number
): void {
  const { context: c, colors, layout, scale, view } = picture;
  const { top, height } = layout[track];
  if (!height) {
    return;
  }
  const spans: ISpans = view[track];
  c.font = `${FONT_PX}px ${colors.font}`;
  eachBar(spans, scale, (x, width, i) => {
    const shade = track === 'stages' ? spans.label[i] : spans.row[i];
    c.globalAlpha = strength * (spans.count[i] > 1 ? 0.4 + 0.6 * spans.fill[i] : 1);
    c.fillStyle = colors.of[shades[shade % shades.length]];
    c.fillRect(x, top, Math.max(width - 1, LEAST_PX), height);
    c.globalAlpha = 1;
    if (spans.count[i] === 1) {
      c.fillStyle = colors.of.ink;
      const name = labels[spans.label[i]] ?? '';
      const inset = width < 24 ? 2 : 4;
      const write = track === 'stages' ? fitText : fitEnd;
      write(c, name, x + inset, top + height / 2 + 0.5, width - inset - 2);
    }
  });
}

/** Stretches that the user has named: one in another is darker, and lies on it. */
function drawMarks({ context: c, colors, layout, scale, view, scene }: IPicture): void {
  const { top, height } = layout.marks;
  if (!height) {
    return;
  }
  const { marks } = view;
  const order = Array.from(marks.x0, (_, i) => i).sort((a, b) => marks.depth[a] - marks.depth[b]);
  c.font = `${FONT_PX}px ${colors.font}`;
  for (const i of order) {
    const [left, right] = [scale.x(marks.x0[i]), scale.x(marks.x1[i])];
    if (right < 0 || left > scale.width) {
      continue;
    }
    const x = Math.max(left, -2);
    const width = Math.max(Math.min(right, scale.width + 2) - x - 1, LEAST_PX);
    const inset = Math.min(marks.depth[i], 3) * 2;
    c.fillStyle = colors.of.bg;
    c.fillRect(x, top + inset, width, height - inset);
    c.globalAlpha = (0.25 + 0.15 * Math.min(marks.depth[i], 3)) * (marks.count[i] > 1 ? 0.7 : 1);
    c.fillStyle = colors.of.accent;
    c.fillRect(x, top + inset, width, height - inset);
    c.globalAlpha = 1;
    if (marks.count[i] === 1) {
      c.fillStyle = colors.of.ink;
      const name = scene.mark_names[marks.label[i]] ?? '';
      fitText(c, name, x + 4, top + inset + (height - inset) / 2 + 0.5, width - 6);
    }
  }
}

function drawOps({ context: c, colors, layout, scale, view, scene }: IPicture): void {
  const { top, height } = layout.ops;
  if (!height) {
    return;
  }
  const ops = view.ops;
  c.font = `${FONT_PX}px ${colors.font}`;
  eachBar(ops, scale, (x, width, i) => {
    const kind = ops.kind[i];
    const tall = Math.round(height * (OP_HEIGHTS[kind] ?? OP_HEIGHTS[1]));
    c.globalAlpha = ops.count[i] > 1 ? 0.35 + 0.65 * ops.fill[i] : 1;
    c.fillStyle = colors.of[OP_COLOURS[kind] ?? 'op2'];
    c.fillRect(x, top + height - tall, Math.max(width - (width > 3 ? 0.7 : 0), LEAST_PX), tall);
    c.globalAlpha = 1;
    if (width > 22 && kind < 2 && ops.count[i] === 1) {
      c.fillStyle = kind === 0 ? colors.of.bg : colors.of.ink;
      fitText(
        c,
        shortOp(scene.names[ops.name[i]] ?? ''),
        x + 4,
        top + height - tall / 2,
        width - 7
      );
    }
  });
}

function drawTransfers(
  { context: c, colors, layout, scale, view }: IPicture,
  track: 'out' | 'in'
): void {
  const { top, height } = layout[track];
  if (!height) {
    return;
  }
  const bars = view[track];
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, top, scale.width, height);
  eachBar(bars, scale, (x, width, i) => {
    const wide = Math.max(width - (width > 4 ? 0.6 : 0), 1);
    // The part that compute waited for stands at the end: that is where it waited.
    const exposed = bars.exposed[i] > 0.005 ? Math.max(wide * bars.exposed[i], 1) : 0;
    c.globalAlpha = bars.count[i] > 1 ? 0.4 + 0.6 * bars.fill[i] : 1;
    c.fillStyle = colors.of.xfer;
    c.fillRect(x, top + 2, Math.max(wide - exposed, 0), height - 4);
    if (exposed) {
      c.fillStyle = exposed > 4 ? colors.hatch.lost : colors.of.lost;
      c.fillRect(x + wide - exposed, top, exposed, height);
    }
    c.globalAlpha = 1;
  });
}

function drawStalls({ context: c, colors, layout, scale, view }: IPicture): void {
  const { top, height } = layout.stalls;
  if (!height) {
    return;
  }
  c.fillStyle = colors.of.lost;
  eachBar(view.stalls, scale, (x, width, i) => {
    c.globalAlpha = view.stalls.count[i] > 1 ? 0.45 + 0.55 * view.stalls.fill[i] : 1;
    c.fillRect(x, top, Math.max(width, 1.2), height);
  });
  c.globalAlpha = 1;
}

/** In the color of what is made again; the mark stands in those that are long enough. */
function drawReplays({ context: c, colors, layout, scale, view, scene }: IPicture): void {
  const { top, height } = layout.replays;
  if (!height) {
    return;
  }
  const { replays } = view;
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, top, scale.width, height);
  c.font = `${FONT_PX}px ${colors.font}`;
  eachBar(replays, scale, (x, width, i) => {
    c.globalAlpha = replays.count[i] > 1 ? 0.45 + 0.55 * replays.fill[i] : 1;
    c.fillStyle = colors.of[BANDS[bandOf(replays.category[i])].id];
    c.fillRect(x, top, Math.max(width - (width > 3 ? 0.7 : 0), 1.5), height);
    c.globalAlpha = 1;
    if (width > 14 && replays.count[i] === 1) {
      c.fillStyle = colors.of.bg;
      const name = shortOp(scene.names[replays.name[i]] ?? '');
      fitText(c, `↻ ${name}`, x + 3, top + height / 2 + 0.5, width - 5);
    }
  });
}

function drawResident(picture: IPicture): void {
  const { context: c, colors, layout, scale, view, scene } = picture;
  const box = layout.resident;
  const y = residentY(box, scene.capacity_bytes, scene.live_peak_bytes);
  const bottom = box.top + box.height;
  const capacityY = scene.capacity_bytes === null ? null : y(scene.capacity_bytes);
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, box.top, scale.width, box.height);
  c.save();
  c.beginPath();
  c.rect(0, box.top, scale.width, box.height);
  c.clip();
  c.globalAlpha = 0.4;
  c.fillStyle = colors.of.op3;
  fillUnder(c, view.live, scale, y, bottom);
  c.globalAlpha = 1;
  // From the top of the stack down: each band is filled from its upper edge to the bottom, and the next covers it.
  const { x, bands } = view.resident;
  const sums = bands.map(() => new Float64Array(x.length));
  for (let i = 0; i < x.length; i++) {
    let sum = 0;
    for (let band = 0; band < bands.length; band++) {
      sum += bands[band][i];
      sums[band][i] = sum;
    }
  }
  for (let band = bands.length - 1; band >= 0; band--) {
    c.fillStyle = colors.of[BANDS[band].id];
    fillUnder(c, { x, bytes: sums[band] }, scale, y, bottom);
  }
  coverBeyond(picture, box, scale);
  c.setLineDash([3, 3]);
  c.strokeStyle = colors.of['ink-2'];
  c.lineWidth = 1.2;
  c.beginPath();
  tracePath(c, view.live, scale, y);
  c.stroke();
  c.setLineDash([1, 3]);
  c.strokeStyle = colors.of.ink;
  c.lineWidth = 1;
  const floorY = Math.round(y(scene.floor.bytes)) + 0.5;
  c.beginPath();
  c.moveTo(0, floorY);
  c.lineTo(scale.width, floorY);
  c.stroke();
  c.setLineDash([]);
  if (capacityY !== null) {
    c.fillStyle = colors.of.ink;
    c.fillRect(0, Math.round(capacityY) - 1, scale.width, 2);
  }
  c.restore();
  drawResidentLabels(picture, box, y, floorY);
}

function drawResidentLabels(
  picture: IPicture,
  box: ITrackBox,
  y: (bytes: number) => number,
  floorY: number
): void {
  const { scene, scale } = picture;
  const capacity = scene.capacity_bytes;
  const right = scale.width - 6;
  const axis = residentTicks(box, capacity, scene.live_peak_bytes);
  if (axis.breakY !== null) {
    drawBreak(picture, axis.breakY);
  }
  let start = 8;
  for (const tick of axis.ticks) {
    const y = Math.max(tick.y, box.top + 8);
    picture.context.fillStyle = picture.colors.of['ink-2'];
    picture.context.fillRect(0, Math.round(tick.y), 4, 1);
    label(picture, formatBytes(tick.bytes), 8, y, 'left');
    start = Math.max(start, 8 + picture.context.measureText(formatBytes(tick.bytes)).width + 12);
  }
  if (scale.width > 340) {
    label(picture, trans.__('Without swapping'), start, box.top + 8, 'left');
  }
  if (capacity !== null) {
    label(
      picture,
      trans.__('Capacity %1', formatBytes(capacity)),
      right,
      y(capacity) - 9,
      'right',
      'ink',
      600
    );
  }
  const op = shortOp(scene.floor.op);
  const of = scale.width > ROOM_FOR_MEASURED_PX ? ` · ${measuredOn(scene.floor)}` : '';
  const text = `${trans.__('Floor %1', formatBytes(scene.floor.bytes))}${op ? ` · ${op}` : ''}${of}`;
  const clear = capacity === null || Math.abs(floorY - y(capacity)) > 22;
  label(
    picture,
    text,
    right,
    floorY + (clear && floorY > box.top + box.height - 16 ? -8 : 9),
    'right',
    'ink'
  );
}

/** A zigzag at the left edge: the bytes above it are on another scale. */
function drawBreak({ context: c, colors }: IPicture, y: number): void {
  c.lineWidth = 4;
  c.strokeStyle = colors.of.bg;
  for (let pass = 0; pass < 2; pass++) {
    c.beginPath();
    for (let i = 0; i <= 4; i++) {
      c.lineTo(i * 4, y - 4 + (i % 2 ? -3 : 3));
    }
    c.stroke();
    c.lineWidth = 1.2;
    c.strokeStyle = colors.of.ink;
  }
}

function drawAway(picture: IPicture): void {
  const { context: c, colors, layout, scale, view, scene } = picture;
  const { top, height } = layout.away;
  if (!height) {
    return;
  }
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, top, scale.width, height);
  c.fillStyle = colors.of.xfer;
  const most = Math.max(scene.away_peak_bytes, 1);
  c.globalAlpha = 0.7;
  fillUnder(
    c,
    view.away,
    scale,
    bytes => top + height - (bytes / most) * (height - 1),
    top + height
  );
  c.globalAlpha = 1;
  coverBeyond(picture, layout.away, scale);
}

function drawBlocks(picture: IPicture): void {
  const { context: c, colors, layout, scale, view } = picture;
  const { top, height } = layout.blocks;
  const { category, place } = view.blocks;
  c.save();
  c.beginPath();
  c.rect(0, top, scale.width, height);
  c.clip();
  c.fillStyle = colors.of['bg-sunk'];
  c.fillRect(0, top, scale.width, height);
  // One pass a kind: changing the fill between texture and color for each block is what costs.
  const fills = [colors.of, colors.hatch, colors.dots];
  for (let kind = 0; kind < BANDS.length * fills.length; kind++) {
    const [band, here] = [Math.floor(kind / fills.length), kind % fills.length];
    c.fillStyle = fills[here][BANDS[band].id];
    for (let i = 0; i < category.length; i++) {
      const shape =
        place[i] === here && bandOf(category[i]) === band
          ? blockShape(view, layout.blocks, scale, i)
          : null;
      if (shape) {
        c.globalAlpha = shape.alpha;
        c.fillRect(shape.left, shape.top, shape.width, shape.height);
      }
    }
  }
  c.globalAlpha = 1;
  drawCapacityInMap(picture);
  c.restore();
}

/** Where a block of the map lies, with a gap to its neighbors where it is large; null out of sight. */
export function blockShape(
  { blocks, start, map_bytes }: IView,
  box: ITrackBox,
  scale: Scale,
  i: number
): IBlockShape | null {
  const [x0, x1] = [scale.x(blocks.x0[i] + start), scale.x(blocks.x1[i] + start)];
  if (x1 < 0 || x0 > scale.width) {
    return null;
  }
  const perByte = box.height / map_bytes;
  const isStorage = blocks.uid[i] >= 0;
  const tall = (blocks.y1[i] - blocks.y0[i]) * perByte;
  const gap = isStorage && tall > 2.4 ? 0.7 : 0;
  const [left, right] = [Math.max(x0, -2), Math.min(x1, scale.width + 2)];
  const gapRight = gap && blocks.place[i] === PLACE.device ? 0.5 : 0;
  return {
    left,
    top: box.top + box.height - blocks.y1[i] * perByte + gap,
    width: Math.max(right - left - gapRight, 0.6),
    height: Math.max(tall - gap, 0.5),
    alpha: ALPHA_OF_PLACE[blocks.place[i]] * (isStorage ? 1 : Math.max(0.25, blocks.fill[i]))
  };
}

/** The capacity's line, where the map is that of the device and goes beyond it. */
function drawCapacityInMap({ context: c, colors, layout, scale, view, scene }: IPicture): void {
  const { top, height } = layout.blocks;
  const { capacity_bytes } = scene;
  if (view.rows === 'packed' && capacity_bytes !== null && capacity_bytes < view.map_bytes) {
    const y = top + height - capacity_bytes * (height / view.map_bytes);
    c.fillStyle = colors.of.ink;
    c.fillRect(0, Math.round(y), scale.width, 1);
  }
}
