// Step time against capacity, with the capacity in force and a handle that changes the draft's.

import { button, h } from '../dom';
import { formatBytes } from '../format';
import { trans } from '../texts';
import { floorWords } from '../words';
import { axesOf, curveWords, draftPoint, HEIGHT, plotCurve } from './curvePlot';
import type { Editor } from './state';
import { parseCapacity } from './words';

const KEY_MS = 300;
/** Keys move the capacity by this share of the range. */
const STEPS = 64;

export class Curve {
  readonly node = h('section', {
    class: 'cl-curve',
    'aria-label': trans.__('Step time by capacity')
  });

  constructor(private readonly _editor: Editor) {
    this._field = h('input', {
      type: 'text',
      class: 'cl-capacity',
      'aria-label': trans.__("The draft's capacity"),
      title: trans.__(
        'The capacity of the draft, such as %1, or %2 of what the step keeps alive',
        '512MiB',
        '60%'
      ),
      spellcheck: 'false',
      change: () => this._typed(),
      keydown: (event: KeyboardEvent) => event.stopPropagation()
    });
    this._begin = button(
      trans.__('Work out the curve'),
      trans.__('Plan for 13 capacities, in the kernel'),
      () => void _editor.askCurve(true)
    );
    this._begin.classList.add('cl-outlined');
    this._handle.addEventListener('pointerdown', event => this._grab(event));
    this._handle.addEventListener('keydown', event => this._keyed(event));
    this.node.append(
      h(
        'div',
        { class: 'cl-row' },
        h('h2', { title: trans.__('Step time by capacity') }, trans.__('Step time by capacity')),
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

  private _draw(): void {
    const { open, curve } = this._editor;
    this.node.hidden = !open;
    if (!open) {
      return;
    }
    const axes = axesOf(open, curve, Math.max(160, this.node.clientWidth - 24));
    const draft = draftPoint(open, curve, this._dragged, axes);
    const { low, high, x } = axes;
    this._scale = { left: x(low), right: x(high), low, high };
    const { svg, key } = plotCurve(open, curve, draft, axes);
    this._svg.setAttribute('viewBox', `0 0 ${axes.width} ${HEIGHT}`);
    this._svg.setAttribute('width', String(axes.width));
    this._svg.setAttribute('height', String(HEIGHT));
    this._svg.innerHTML = svg;
    this._key.innerHTML = key;
    this._floor.textContent = trans._p('measured on', 'Floor %1', open.floor.measured_on);
    this._floor.title = floorWords(open.floor);

    const { capacity_bytes } = draft;
    const { ratio, handle, progress, canBegin } = curveWords(open, curve, draft);
    const isOther = capacity_bytes !== open.current.capacity_bytes;
    this._ratio.textContent = ratio;
    this._ratio.classList.toggle('cl-draft', isOther);
    this._field.classList.toggle('cl-draft', isOther);
    if (document.activeElement !== this._field) {
      this._field.value = formatBytes(capacity_bytes);
    }
    this._handle.style.left = `${draft.at}px`;
    this._handle.setAttribute('aria-valuemin', String(low));
    this._handle.setAttribute('aria-valuemax', String(high));
    this._handle.setAttribute('aria-valuenow', String(Math.round(capacity_bytes)));
    this._handle.setAttribute('aria-valuetext', handle);
    this._begin.hidden = !canBegin;
    this._progress.textContent = progress;
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
      this._progress.textContent = trans.__(
        '%1 is no capacity: write it like %2, or %3 of what the step keeps alive',
        this._field.value,
        '512MiB',
        '60%'
      );
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
  private readonly _key = h('ul', {
    class: 'cl-curve-key',
    'aria-label': trans.__('Marks of the curve')
  });
  private readonly _svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  private readonly _handle = h('div', {
    class: 'cl-handle',
    role: 'slider',
    tabindex: '0',
    'aria-label': trans.__("The draft's capacity"),
    title: trans.__('Drag, or use the arrow keys')
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
