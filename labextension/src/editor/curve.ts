// Step time against capacity, with the capacity in force and a handle that changes the draft's.

import { button, h } from '../dom';
import { formatBytes, formatSeconds } from '../format';
import type { ICurve, IOpenDraft } from '../protocol';
import { floorWords } from '../words';
import type { Editor } from './state';
import { parseCapacity } from './words';

const KEY_MS = 300;
const HEIGHT = 150;
const LEFT = 38;
const RIGHT = 12;
const TOP = 16;
const BOTTOM = 30;
/** Keys move the capacity by this share of the range. */
const STEPS = 64;

export class Curve {
  readonly node = h('section', { class: 'cl-curve', 'aria-label': 'Step time by capacity' });

  constructor(private readonly _editor: Editor) {
    this._field = h('input', {
      type: 'text',
      class: 'cl-capacity',
      'aria-label': "The draft's capacity",
      title: 'The capacity of the draft, such as 512MiB, or 60% of what the step keeps alive',
      spellcheck: 'false',
      change: () => this._typed(),
      keydown: (event: KeyboardEvent) => event.stopPropagation()
    });
    this._begin = button(
      'Work out the curve',
      'Plan for 13 capacities, in the kernel',
      () => void _editor.askCurve(true)
    );
    this._begin.classList.add('cl-outlined');
    this._handle.addEventListener('pointerdown', event => this._grab(event));
    this._handle.addEventListener('keydown', event => this._keyed(event));
    this.node.append(
      h(
        'div',
        { class: 'cl-row' },
        h('h2', { title: 'Step time by capacity' }, 'Step time by capacity'),
        h('span', { class: 'cl-grow' }),
        this._ratio,
        this._field
      ),
      h('div', { class: 'cl-curve-box' }, this._svg, this._handle),
      this._key,
      this._floor,
      h(
        'div',
        { class: 'cl-row cl-curve-foot' },
        this._progress,
        h('span', { class: 'cl-grow' }),
        this._begin
      )
    );
    this._observer = new ResizeObserver(() => this._draw());
    this._observer.observe(this.node);
    _editor.changed.connect((_, change) => {
      if (change === 'draft' || change === 'curve') {
        this._draw();
      }
    });
    this._draw();
  }

  dispose(): void {
    this._observer.disconnect();
    window.clearTimeout(this._timer);
  }

  private _range(open: IOpenDraft): [low: number, high: number] {
    const low = open.floor.bytes;
    return [low, Math.max(open.live_peak_bytes, open.capacity_bytes, low + 1)];
  }

  private _draw(): void {
    const { open, curve } = this._editor;
    this.node.hidden = !open;
    if (!open) {
      return;
    }
    const width = Math.max(160, this.node.clientWidth - 24);
    const [low, high] = this._range(open);
    const margin = (high - low) * 0.06;
    const [x0, x1] = [low - margin, high + margin * 0.4];
    const x = (bytes: number) => LEFT + ((bytes - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const ratios = [
      open.current.step_s,
      open.draft?.step_s ?? 0,
      ...(curve?.points ?? []).map(p => p.step_s)
    ].map(step_s => step_s / (open.compute_s || 1));
    const most = Math.max(1.05, ...ratios.filter(Number.isFinite)) * 1.02;
    const y = (step_s: number) =>
      TOP + (1 - (step_s / (open.compute_s || 1) - 1) / (most - 1)) * (HEIGHT - TOP - BOTTOM);
    const parts: string[] = [];
    for (const share of [0, 0.5, 1]) {
      const ratio = 1 + (most - 1) * share;
      const at = y(ratio * open.compute_s);
      parts.push(
        `<line class="cl-grid" x1="${LEFT}" x2="${width - RIGHT}" y1="${at}" y2="${at}"/>`,
        `<text class="cl-tick" x="${LEFT - 4}" y="${at + 3}" text-anchor="end">${ratio.toFixed(2)}×</text>`
      );
    }
    const bottom = HEIGHT - BOTTOM;
    parts.push(
      '<defs><pattern id="cl-below" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="cl-hatch" x1="0" y1="0" x2="0" y2="5"/></pattern></defs>',
      `<rect x="${LEFT}" y="${TOP}" width="${Math.max(0, x(low) - LEFT)}" height="${bottom - TOP}" fill="url(#cl-below)"/>`,
      `<line class="cl-floor" x1="${x(low)}" x2="${x(low)}" y1="${TOP}" y2="${bottom}"/>`,
      `<text class="cl-tick cl-strong" x="${Math.max(LEFT, x(low) - 8)}" y="${bottom + 12}">floor ${formatBytes(low)}</text>`,
      `<text class="cl-tick" x="${width - RIGHT}" y="${bottom + 12}" text-anchor="end">${formatBytes(high)}</text>`,
      ...(x((low + high) / 2) - x(low) > 110
        ? [
            `<text class="cl-tick" x="${x((low + high) / 2)}" y="${bottom + 12}" text-anchor="middle">${formatBytes((low + high) / 2)}</text>`
          ]
        : [])
    );
    const points = (curve?.points ?? []).filter(p => Number.isFinite(p.step_s));
    if (points.length > 1) {
      const line = points
        .map(p => `${x(p.capacity_bytes).toFixed(1)},${y(p.step_s).toFixed(1)}`)
        .join(' ');
      parts.push(`<polyline class="cl-line" points="${line}"/>`);
    }
    const knee = points.find(p => p.capacity_bytes === curve?.knee_bytes);
    if (knee && curve) {
      const [kx, ky] = [x(knee.capacity_bytes), y(knee.step_s)];
      const end = kx > width * 0.6;
      parts.push(
        `<path class="cl-knee" d="M${kx - 5},${ky} L${kx},${ky - 5} L${kx + 5},${ky} L${kx},${ky + 5} Z"><title>From ${formatBytes(knee.capacity_bytes)} on a step takes at most ${(100 * curve.within).toFixed(0)} % longer than without a limit</title></path>`,
        `<text class="cl-tick" x="${end ? kx - 8 : kx + 8}" y="${ky - 6}" text-anchor="${end ? 'end' : 'start'}">knee ${formatBytes(knee.capacity_bytes)}</text>`
      );
    }
    const now = [x(open.current.capacity_bytes), y(open.current.step_s)];
    parts.push(
      `<circle class="cl-now" cx="${now[0]}" cy="${now[1]}" r="4.5"><title>In force: ${formatBytes(open.current.capacity_bytes)}, ${formatSeconds(open.current.step_s)}</title></circle>`
    );
    const capacity = this._dragged ?? open.capacity_bytes;
    const at = Math.min(Math.max(x(capacity), LEFT), width - RIGHT);
    parts.push(
      `<line class="cl-draft-line" x1="${at}" x2="${at}" y1="${TOP - 4}" y2="${bottom}"/>`
    );
    const step_s = this._dragged === null ? (open.draft?.step_s ?? null) : between(curve, capacity);
    if (step_s !== null) {
      parts.push(`<circle class="cl-draft-dot" cx="${at}" cy="${y(step_s)}" r="4"/>`);
    }
    // What each mark is; those that are drawn.
    const marks: [string, string, boolean][] = [
      ['<path class="cl-line" d="M0,5 L14,5"/>', 'planned, no edits', points.length > 1],
      ['<circle class="cl-now" cx="7" cy="5" r="4"/>', 'in force', true],
      ['<circle class="cl-draft-dot" cx="7" cy="5" r="4"/>', 'draft', step_s !== null],
      ['<path class="cl-knee" d="M2,5 L7,0 L12,5 L7,10 Z"/>', 'knee', Boolean(knee)]
    ];
    this._key.innerHTML = marks
      .filter(([, , drawn]) => drawn)
      .map(
        ([mark, name]) =>
          `<li><svg viewBox="0 0 14 10" aria-hidden="true">${mark}</svg>${name}</li>`
      )
      .join('');
    this._floor.textContent = `Floor ${open.floor.measured_on}`;
    this._floor.title = floorWords(open.floor);
    this._svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    this._svg.setAttribute('width', String(width));
    this._svg.setAttribute('height', String(HEIGHT));
    this._svg.innerHTML = parts.join('');
    this._scale = { left: x(low), right: x(high), low, high };

    const ratio = step_s === null ? '' : `${(step_s / (open.compute_s || 1)).toFixed(2)}×`;
    this._ratio.textContent =
      ratio && `${this._dragged === null || step_s === null ? '' : 'by the curve '}${ratio}`;
    this._ratio.classList.toggle('cl-draft', capacity !== open.current.capacity_bytes);
    this._field.classList.toggle('cl-draft', capacity !== open.current.capacity_bytes);
    if (document.activeElement !== this._field) {
      this._field.value = formatBytes(capacity);
    }
    this._handle.style.left = `${at}px`;
    for (const [name, value] of Object.entries({
      'aria-valuemin': low,
      'aria-valuemax': high,
      'aria-valuenow': Math.round(capacity)
    })) {
      this._handle.setAttribute(name, String(value));
    }
    this._handle.setAttribute(
      'aria-valuetext',
      `${formatBytes(capacity)}${ratio ? `, step ${ratio}` : ''}`
    );
    this._begin.hidden = Boolean(curve && (curve.left > 0 || curve.points.length > 1));
    this._progress.textContent =
      curve && curve.left > 0
        ? `Planning for ${curve.of} capacities: ${curve.of - curve.left} done`
        : curve && curve.points.length > 1
          ? `Without edits. Uncapped ${formatSeconds(open.compute_s)}${curve.knee_bytes === null ? '; no knee in this range' : ''}`
          : '';
  }

  private _grab(event: PointerEvent): void {
    const { open } = this._editor;
    if (!open || event.button !== 0) {
      return;
    }
    event.preventDefault();
    this._handle.focus();
    this._handle.setPointerCapture(event.pointerId);
    const box = this._svg.getBoundingClientRect();
    const move = (event: PointerEvent) => {
      const { left, right, low, high } = this._scale;
      const share = (event.clientX - box.left - left) / (right - left || 1);
      this._dragged = this._clamped(low + share * (high - low));
      this._draw();
    };
    const up = (event: PointerEvent) => {
      this._handle.removeEventListener('pointermove', move);
      this._handle.removeEventListener('pointerup', up);
      this._handle.removeEventListener('pointercancel', up);
      if (event.type === 'pointercancel') {
        this._dragged = null;
        this._draw();
      } else {
        void this._send();
      }
    };
    this._handle.addEventListener('pointermove', move);
    this._handle.addEventListener('pointerup', up);
    this._handle.addEventListener('pointercancel', up);
  }

  private _keyed(event: KeyboardEvent): void {
    const { open } = this._editor;
    const direction = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    const end = { Home: 'low', End: 'high' }[event.key] as 'low' | 'high' | undefined;
    if (
      !open ||
      (direction === undefined && !end) ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey
    ) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    const { low, high } = this._scale;
    const from = this._dragged ?? open.capacity_bytes;
    const step = ((high - low) / STEPS) * (event.shiftKey ? 8 : 1);
    this._dragged = end ? this._scale[end] : this._clamped(from + (direction ?? 0) * step);
    this._draw();
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => void this._send(), KEY_MS);
  }

  private async _send(): Promise<void> {
    window.clearTimeout(this._timer);
    const capacity = this._dragged;
    if (capacity !== null) {
      await this._editor.setCapacity(capacity);
      if (this._dragged === capacity) {
        this._dragged = null;
        this._draw();
      }
    }
  }

  private _typed(): void {
    const whole = this._editor.open?.live_peak_bytes ?? 0;
    const size = parseCapacity(this._field.value, whole);
    if (size === null) {
      this._progress.textContent = `${this._field.value} is no capacity: write it like 512MiB, or 60% of what the step keeps alive`;
      return;
    }
    void this._editor.setCapacity(size);
  }

  /** Within the range, and a round number of 64 KiB. */
  private _clamped(bytes: number): number {
    const { low, high } = this._scale;
    const round = 64 * 1024;
    return Math.min(Math.max(Math.round(bytes / round) * round, low), high);
  }

  private readonly _floor = h('p', { class: 'cl-dim cl-curve-floor' });
  private readonly _key = h('ul', { class: 'cl-curve-key', 'aria-label': 'Marks of the curve' });
  private readonly _svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  private readonly _handle = h('div', {
    class: 'cl-handle',
    role: 'slider',
    tabindex: '0',
    'aria-label': "The draft's capacity",
    title: 'Drag, or use the arrow keys'
  });
  private readonly _ratio = h('b', {});
  private readonly _field: HTMLInputElement;
  private readonly _begin: HTMLButtonElement;
  private readonly _progress = h('span', { class: 'cl-dim', role: 'status' });
  private readonly _observer: ResizeObserver;
  private _scale = { left: 0, right: 1, low: 0, high: 1 };
  private _dragged: number | null = null;
  private _timer: number | undefined;
}

/** The step time at a capacity, on the line between the curve's points; null where there are none. */
export function between(curve: ICurve | null, capacity: number): number | null {
  const points = (curve?.points ?? []).filter(p => Number.isFinite(p.step_s));
  for (let i = 1; i < points.length; i++) {
    const [a, b] = [points[i - 1], points[i]];
    if (capacity >= a.capacity_bytes && capacity <= b.capacity_bytes) {
      const share = (capacity - a.capacity_bytes) / (b.capacity_bytes - a.capacity_bytes || 1);
      return a.step_s + share * (b.step_s - a.step_s);
    }
  }
  return null;
}
