// The panel's colors for the canvas: read from its style sheet once per theme.

import { BANDS, type BandId } from '../words';

const NAMES = ['bg', 'bg-sunk', 'line', 'line-2', 'ink', 'ink-2', 'ink-3', 'lost', 'xfer'] as const;
const OPS = ['op1', 'op2', 'op3'] as const;
const MORE = ['accent', 'sel', 'draft'] as const;

type Name = (typeof NAMES)[number] | (typeof OPS)[number] | (typeof MORE)[number] | BandId;

export interface IColors {
  of: Record<Name, string>;
  /** Hatches: of each band for what is away, of `lost` for what was not hidden. */
  hatch: Record<BandId | 'lost', CanvasPattern | string>;
  /** Dots, of each band for what is dropped. */
  dots: Record<BandId, CanvasPattern | string>;
  font: string;
}

/** Read the colors that hold at an element. */
export function readColors(node: HTMLElement): IColors {
  const probe = document.createElement('i');
  node.append(probe);
  const of = {} as IColors['of'];
  for (const name of [...NAMES, ...OPS, ...MORE, ...BANDS.map(band => band.id)]) {
    probe.style.color = `var(--cl-${name})`;
    of[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  const hatch = { lost: stripes(of.bg, of.lost, 5, 1.1) } as IColors['hatch'];
  const dots = {} as IColors['dots'];
  for (const { id } of BANDS) {
    hatch[id] = stripes(of[id], null, 4, 0.8);
    dots[id] = dotted(of[id], 5, 0.9);
  }
  return { of, hatch, dots, font: getComputedStyle(node).fontFamily };
}

function dotted(color: string, gap: number, radius: number): CanvasPattern | string {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = gap * 2;
  const context = canvas.getContext('2d');
  if (!context) {
    return color;
  }
  context.fillStyle = color;
  for (const at of [0.5, 1.5]) {
    context.beginPath();
    context.arc(gap * at, gap * at, radius * 2, 0, 2 * Math.PI);
    context.fill();
  }
  const pattern = context.createPattern(canvas, 'repeat');
  pattern?.setTransform(new DOMMatrix().scale(0.5));
  return pattern ?? color;
}

function stripes(
  line: string,
  ground: string | null,
  gap: number,
  width: number
): CanvasPattern | string {
  const canvas = document.createElement('canvas');
  const size = gap * 2;
  canvas.width = canvas.height = size;
  const context = canvas.getContext('2d');
  if (!context) {
    return line;
  }
  if (ground) {
    context.fillStyle = ground;
    context.fillRect(0, 0, size, size);
  }
  context.strokeStyle = line;
  context.lineWidth = width * 2;
  context.beginPath();
  for (let k = -1; k < 3; k++) {
    context.moveTo(k * size - gap, gap * 3);
    context.lineTo(k * size + gap * 3, -gap);
  }
  context.stroke();
  const pattern = context.createPattern(canvas, 'repeat');
  pattern?.setTransform(new DOMMatrix().scale(0.5));
  return pattern ?? line;
}
