// The drawing: two canvases, the names of the tracks beside them, and what pointer and keys do.

import { h, swatch } from '../dom';
import { formatBytes, formatCount, formatPercent, formatSeconds } from '../format';
import type { Bindings } from '../keys/bindings';
import type { LabModel } from '../model';
import type { IBox, IPoint } from '../protocol';
import { trans } from '../texts';
import { BANDS, shortOp, stepsName } from '../words';
import { boxOf, growBox, middleBox, moveBox } from './box';
import { type IColors, readColors } from './colors';
import { drawTracks } from './draw';
import { hitTest, type IHit } from './hit';
import { FOLDABLE, type Layout, layTracks, PINNABLE, residentY, type TrackName } from './layout';
import { drawOverlay } from './overlay';
import { drawPauses, pauseMarks } from './pauses';
import { type IStretch, pan, Scale, wheeled, zoom } from './scale';
import { type IMarks, lastAtMost } from './tables';
import { type IDrawn, spanName, tipOf } from './tip';

const POINT_MS = 90;
const CLICK_PX = 3;
/** Under which name the figure beside a track is written, where that is not the track's. */
const VALUES: Partial<Record<TrackName, string>> = {
  stages: 'stage',
  layers: 'layer',
  modules: 'module'
};
/** Pinned tracks take at most this share of the timeline's height. */
const MOST_PINNED = 0.7;
/** How near to the floor's line the pointer tells of it. */
const NEAR_PX = 5;
/** The height of a resident track's legend with a line a band, under the track's name. */
const LEGEND_PX = 90;
/** The keys that the drawing says of itself, to whom cannot see it. */
const SAID: [action: string, says: (key: string) => string][] = [
  ['move-left', key => trans.__('%1 moves left', key)],
  ['move-right', key => trans.__('%1 moves right', key)],
  ['zoom-in', key => trans.__('%1 zooms in', key)],
  ['zoom-out', key => trans.__('%1 zooms out', key)],
  ['fit', key => trans.__('%1 shows all', key)],
  ['next-stall', key => trans.__('%1 goes to the next stall', key)],
  ['next-peak', key => trans.__('%1 goes to the next peak', key)],
  ['draw-box', key => trans.__('%1 draws a box', key)],
  ['switch-drawn', key => trans.__('%1 switches between what ran and the draft', key)],
  ['show-keys', key => trans.__('%1 lists all keys', key)]
];

type Drag = {
  kind: 'pan' | 'brush' | 'minimap' | 'box';
  x: number;
  y: number;
  moved: boolean;
  from: number;
  shown: IStretch;
};

export class Timeline {
  constructor(
    private readonly _model: LabModel,
    private readonly _keys: Bindings
  ) {
    _keys.follow(() => this.nameTracks());
    this._overlay.tabIndex = 0;
    this._overlay.setAttribute('role', 'application');
    this._pins.append(this._pinGutter, this._pinCanvas);
    this._room.append(this._pins);
    this.node.append(this._room, this._gutter, this._canvas, this._overlay, this._tip);
    this.node.addEventListener('scroll', () => this._stick());
    for (const gutter of [this._gutter, this._pinGutter]) {
      gutter.addEventListener('keydown', event => this._walkPins(event));
      gutter.addEventListener('focusin', event => this._stopAt(event.target as HTMLElement));
    }
    this._listen();
    this._observer = new ResizeObserver(() => this._resize());
    this._observer.observe(this.node);
  }

  readonly node = h('div', { class: 'cl-timeline' });

  dispose(): void {
    this._observer.disconnect();
    window.clearTimeout(this._pointTimer);
    cancelAnimationFrame(this._frame);
  }

  /** Read the theme's colors again. */
  recolor(): void {
    this._colors = null;
    this.draw(true);
  }

  /** The drawing as it is, with the names and figures beside it, as one canvas. */
  picture(): HTMLCanvasElement {
    const ratio = window.devicePixelRatio || 1;
    const colors = this._colors ?? readColors(this.node);
    const gutter = this._gutter.getBoundingClientRect();
    const canvas = document.createElement('canvas');
    canvas.width = Math.round(gutter.width * ratio) + this._canvas.width;
    canvas.height = this._canvas.height;
    const c = canvas.getContext('2d');
    if (!c) {
      return canvas;
    }
    c.fillStyle = colors.of.bg;
    c.fillRect(0, 0, canvas.width, canvas.height);
    for (const layer of [this._canvas, this._overlay]) {
      c.drawImage(layer, Math.round(gutter.width * ratio), 0);
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.textBaseline = 'middle';
    const pinned = this._pinGutter.getBoundingClientRect();
    const parts = [this._gutter, this._pinGutter].flatMap(side => [
      ...side.querySelectorAll<HTMLElement>('span, b, i')
    ]);
    for (const part of parts) {
      const box = part.getBoundingClientRect();
      const from = this._pinGutter.contains(part) ? pinned : gutter; // those do not scroll
      const [x, y] = [box.left - from.left, box.top - from.top];
      const style = getComputedStyle(part);
      if (part.tagName === 'I') {
        c.fillStyle = style.backgroundColor;
        c.fillRect(x, y, box.width, box.height);
      } else if (!part.children.length && part.textContent && box.width > 0) {
        c.font = `${style.fontWeight} ${style.fontSize} ${colors.font}`;
        c.fillStyle = style.color;
        c.fillText(part.textContent, x, y + box.height / 2);
      }
    }
    return canvas;
  }

  focus(): void {
    this._overlay.focus({ preventScroll: true });
  }

  /** Draw at the next frame; `tracks`: what the data decide too. */
  draw(tracks: boolean): void {
    this._dirty ||= tracks;
    cancelAnimationFrame(this._frame);
    this._frame = requestAnimationFrame(() => this._draw());
  }

  /** Milliseconds that the newest frames took to draw, for whoever measures. */
  readonly frames: number[] = [];

  private _draw(): void {
    const { scene, views } = this._model;
    const overview = views.overview;
    const tracks = this._canvas.getContext('2d');
    const over = this._overlay.getContext('2d');
    if (!scene || !overview || !tracks || !over || this._width <= 0) {
      tracks?.clearRect(0, 0, this._canvas.width, this._canvas.height);
      over?.clearRect(0, 0, this._overlay.width, this._overlay.height);
      return;
    }
    const began = performance.now();
    this._colors ??= readColors(this.node);
    const scale = this._scale;
    const view = views.best(this._model.shown) ?? overview;
    if (this._dirty) {
      this._dirty = false;
      const picture = {
        context: tracks,
        colors: this._colors,
        layout: this._layout,
        scale,
        scene,
        view,
        overview,
        predicted: this._model.drawn === 'draft'
      };
      drawTracks(picture);
    }
    drawOverlay({
      context: over,
      colors: this._colors,
      layout: this._layout,
      scale,
      length: this._model.length,
      view,
      cursor: this._pointerAt ?? this._model.cursor,
      hover: this._hover,
      selected: this._model.selected,
      marks: this._model.found?.marks ?? [],
      brush: this._brush ?? this._model.brush,
      box: this._box ?? this._model.box,
      op: this._model.op,
      notes: this._model.notes.map(({ at, text }) => ({ x: at[this._model.axis], text })),
      focused: document.activeElement === this._overlay
    });
    if (this._model.drawn === 'measured') {
      const { axis } = this._model;
      const marks = pauseMarks(scene.pauses, axis, scale, scene.length.time);
      drawPauses(over, this._colors, this._layout, marks, scale.width);
    }
    this._stick();
    this._readOut();
    this.frames.push(performance.now() - began);
    if (this.frames.length > 1000) {
      this.frames.shift();
    }
  }

  private get _scale(): Scale {
    const { start, end } = this._model.shown;
    return new Scale(start, end, this._width);
  }

  private _resize(): void {
    const box = this.node.getBoundingClientRect();
    if (box.width < 10 || box.height < 10) {
      return;
    }
    const wide = this.node.clientWidth;
    const gutter = wide < 480 ? 104 : wide < 700 ? 172 : 190;
    const ratio = window.devicePixelRatio || 1;
    this._width = Math.max(50, this.node.clientWidth - gutter);
    const { scene } = this._model;
    this._layout = layTracks(
      this.node.clientHeight,
      Boolean(scene?.replays),
      Boolean(scene?.marks),
      this._model.folded,
      this._model.pinned
    );
    // Where the pinned ones would leave no room, the lower ones of them scroll with the others.
    this._stuckPx = Math.min(this._layout.head, Math.floor(this.node.clientHeight * MOST_PINNED));
    this._room.style.height = `${this._layout.bottom}px`;
    this._pins.style.height = `${this._stuckPx}px`;
    this._pins.hidden = !this._stuckPx;
    this._pinGutter.style.width = `${gutter}px`;
    this._pinCanvas.style.left = `${gutter}px`;
    this._pinCanvas.style.width = `${this._width}px`;
    this._pinCanvas.style.height = `${this._stuckPx}px`;
    this._pinCanvas.width = Math.round(this._width * ratio);
    this._pinCanvas.height = Math.round(this._stuckPx * ratio);
    this._gutter.style.width = `${gutter}px`;
    this._gutter.style.height = `${this._layout.bottom}px`;
    for (const canvas of [this._canvas, this._overlay]) {
      canvas.width = Math.round(this._width * ratio);
      canvas.height = Math.round(this._layout.bottom * ratio);
      canvas.style.left = `${gutter}px`;
      canvas.style.width = `${this._width}px`;
      canvas.style.height = `${this._layout.bottom}px`;
      canvas.getContext('2d')?.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this._model.width = Math.round(this._width);
    this._model.height = Math.round(this._layout.blocks.height);
    this._nameTracks();
    this.draw(true);
  }

  // ------------------------------------------------------------------------------------------------ the gutter

  /** Write the tracks' names, and what the figures beside them say of the whole. */
  nameTracks(): void {
    const { scene, steps } = this._model;
    if (
      this._shows('replays', scene?.replays) !== this._layout.replays.height > 0 ||
      this._shows('marks', scene?.marks) !== this._layout.marks.height > 0
    ) {
      this._resize();
    }
    this._nameTracks();
    const { drawn } = this._model;
    this.node.classList.toggle('cl-predicted', drawn === 'draft');
    const which = steps ? stepsName(steps.first, steps.last) : '';
    const stalls = trans._n('%1 stalls', '%1 stalls', scene?.stalls ?? 0);
    const said = SAID.flatMap(([action, says]) => {
      const key = this._keys.first(action);
      return key ? [says(key)] : [];
    }).join(', ');
    this._overlay.setAttribute(
      'aria-label',
      drawn === 'draft'
        ? trans.__(
            'Timeline of the draft, predicted, for %1, with %2. Keys: %3. The tables below list the same storages.',
            which,
            stalls,
            said
          )
        : trans.__(
            'Timeline of %1, with %2. Keys: %3. The tables below list the same storages.',
            which,
            stalls,
            said
          )
    );
  }

  /** Whether a track that not all steps have is to be shown. */
  private _shows(track: TrackName, count: number | undefined): boolean {
    return Boolean(count) && !this._model.folded.has(track);
  }

  /** Fold a track away, or show it again. */
  fold(track: TrackName): void {
    const { folded } = this._model;
    if (!folded.delete(track)) {
      folded.add(track);
    }
    this._resize();
    this.nameTracks();
    this.onLanes();
  }

  /** Pin a track to the top, or let it scroll with the others again. */
  pin(track: TrackName): void {
    const { pinned } = this._model;
    if (!pinned.delete(track)) {
      pinned.add(track);
    }
    this._resize();
    this.nameTracks();
    this.onLanes();
  }

  /** Called when the person has folded or pinned a track. */
  onLanes: () => void = () => undefined;

  /** Lay folded and pinned tracks out as they were kept. */
  takeLanes(folded: Iterable<TrackName>, pinned: Iterable<TrackName>): void {
    for (const [tracks, kept] of [
      [this._model.folded, folded],
      [this._model.pinned, pinned]
    ] as const) {
      tracks.clear();
      for (const track of kept) {
        tracks.add(track);
      }
    }
    this._resize();
  }

  /** The pinned tracks in their place at the top: while it is scrolled, over what lies there. */
  private _stick(): void {
    const scrolled = this._stuckPx > 0 && this.node.scrollTop > 0;
    this._pins.classList.toggle('cl-stuck', scrolled);
    const c = this._pinCanvas.getContext('2d');
    if (scrolled && c) {
      const { width, height } = this._pinCanvas;
      c.clearRect(0, 0, width, height);
      for (const layer of [this._canvas, this._overlay]) {
        c.drawImage(layer, 0, 0, width, height, 0, 0, width, height);
      }
    }
  }

  /** How far down in the drawing an event is: one on a track that is stuck, as if nothing were scrolled. */
  private _yOf(event: MouseEvent): number {
    const inSight = event.offsetY - this.node.scrollTop;
    return inSight < this._stuckPx ? inSight : event.offsetY;
  }

  private get _pinButtons(): HTMLElement[] {
    return [this._pinGutter, this._gutter].flatMap(gutter => [
      ...gutter.querySelectorAll<HTMLElement>('.cl-pin')
    ]);
  }

  /** One stop for the tabulator key: the button that had the focus last. */
  private _stopAt(target: HTMLElement): void {
    this._pinStop = target.dataset.track ?? this._pinStop;
    const buttons = this._pinButtons;
    const stop = buttons.find(({ dataset }) => dataset.track === this._pinStop) ?? buttons[0];
    for (const one of buttons) {
      one.tabIndex = one === stop ? 0 : -1;
    }
  }

  private _walkPins(event: KeyboardEvent): void {
    const buttons = this._pinButtons;
    const at = buttons.indexOf(event.target as HTMLElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (at >= 0 && to !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      buttons[Math.min(Math.max(to, 0), buttons.length - 1)].focus();
    }
  }

  private _nameTracks(): void {
    const { scene, axis, rows, pinned } = this._model;
    const focused = document.activeElement;
    const held = this._pinButtons.includes(focused as HTMLElement) ? this._pinStop : null;
    const line = (track: keyof Layout, name: string, id: string, ...more: HTMLElement[]) => {
      const box = this._layout[track] as { top: number; height: number };
      const value = h('span', { class: 'cl-value' });
      this._values.set(id, value);
      const high = Math.min(Math.max(box.height, 13), 18);
      return h(
        'div',
        { class: 'cl-track', style: `top: ${box.top}px; height: ${box.height}px` },
        PINNABLE.has(track as TrackName) &&
          pinButton(track as TrackName, name, pinned.has(track as TrackName), high, () =>
            this.pin(track as TrackName)
          ),
        h(
          'div',
          { class: 'cl-name', 'aria-hidden': 'true', style: `line-height: ${high}px` },
          h('span', {}, name),
          value
        ),
        ...more
      );
    };
    this._values.clear();
    // Where room is short, a band has its short name, and at the crosshair its bytes in the place of the name.
    const tight = this._layout.resident.height < LEGEND_PX || this._gutter.clientWidth < 180;
    const legend = h('div', {
      'aria-hidden': 'true',
      class: `cl-legend ${this._layout.resident.height < LEGEND_PX ? 'cl-two' : ''} ${tight ? 'cl-tight' : ''}`
    });
    const item = (id: string, mark: HTMLElement, name: string, short: string) => {
      const value = h('b');
      this._values.set(id, value);
      legend.append(mark, h('span', { title: name }, tight ? short : name), value);
    };
    for (const band of [...BANDS].reverse()) {
      item(band.id, swatch(band.id), band.name(), band.short());
    }
    item(
      'live',
      h('i', { class: 'cl-swatch cl-ghost' }),
      trans.__('Unswapped'),
      trans.__('Unswap.')
    );
    const key = h(
      'div',
      { class: 'cl-key', 'aria-hidden': 'true' },
      h(
        'span',
        {},
        h('i', { class: 'cl-swatch', style: 'background: var(--cl-act)' }),
        trans.__('on the device')
      ),
      ...(rows === 'storage'
        ? [h('span', {}, h('i', { class: 'cl-swatch cl-away' }), trans.__('away'))]
        : []),
      ...(rows === 'storage' && scene?.dropped_bytes
        ? [h('span', {}, h('i', { class: 'cl-swatch cl-dropped' }), trans.__('dropped'))]
        : [])
    );
    const lines: [TrackName, HTMLElement][] = [
      [
        'minimap',
        line(
          'minimap',
          (scene?.steps.length ?? 1) > 1 ? trans.__('All steps') : trans.__('Whole step'),
          'whole'
        )
      ],
      ...FOLDABLE.filter(([track]) => track !== 'away' && this._layout[track].height).map(
        ([track, name]): [TrackName, HTMLElement] => [
          track,
          line(track, name(), VALUES[track] ?? track)
        ]
      ),
      ['resident', line('resident', trans.__('Resident'), 'resident', legend)],
      ...(this._layout.away.height
        ? [['away', line('away', trans.__('On the host'), 'away')] as [TrackName, HTMLElement]]
        : []),
      ['blocks', line('blocks', trans.__('Block map'), 'blocks', key)]
    ];
    lines.sort(([a], [b]) => this._layout[a].top - this._layout[b].top);
    const stuck = ([track]: [TrackName, HTMLElement]) =>
      this._layout[track].top + this._layout[track].height <= this._stuckPx;
    const [above, below] = [lines.filter(stuck), lines.filter(each => !stuck(each))];
    this._pinGutter.replaceChildren(...above.map(([, each]) => each));
    this._gutter.replaceChildren(...below.map(([, each]) => each));
    this._stopAt(this._gutter);
    if (held) {
      this._pinButtons.find(({ dataset }) => dataset.track === held)?.focus();
    }
    this._say(
      'whole',
      scene
        ? axis === 'time'
          ? formatSeconds(scene.length.time)
          : trans._n('%2 ops', '%2 ops', scene.ops, formatCount(scene.ops))
        : ''
    );
  }

  /** The figures at the crosshair, or of the whole where there is none. */
  private _readOut(): void {
    const { scene, views, shown, selected } = this._model;
    const view = views.best(shown);
    if (!scene || !view) {
      return;
    }
    const at = this._pointerAt ?? this._model.cursor;
    for (const gutter of [this._gutter, this._pinGutter]) {
      gutter.classList.toggle('cl-reading', this._pointerAt !== null);
    }
    const hidden = (share: number | null) =>
      share === null ? trans._p('copies', 'none') : trans.__('%1 hidden', formatPercent(share));
    this._say('selected', selected ? formatBytes(selected.bytes) : trans._p('storage', 'none'));
    if (at === null) {
      this._say('stage', '');
      this._say('layer', '');
      this._say('module', '');
      this._say('marks', formatCount(scene.marks));
      this._say('ops', formatCount(scene.ops));
      this._say('out', hidden(scene.hidden[0]));
      this._say('in', hidden(scene.hidden[1]));
      this._say(
        'stalls',
        scene.stalls
          ? `${formatCount(scene.stalls)} · ${formatSeconds(scene.stall_s)}`
          : trans._p('stalls', 'none')
      );
      this._say('replays', `${formatCount(scene.replays)} · ${formatSeconds(scene.replay_s)}`);
      this._say('resident', trans.__('peak %1', formatBytes(scene.peak_bytes)));
      this._say('away', trans.__('peak %1', formatBytes(scene.away_peak_bytes)));
      this._say('live', formatBytes(scene.live_peak_bytes));
      this._say(
        'blocks',
        trans._n('%2 storages', '%2 storages', scene.storages, formatCount(scene.storages))
      );
      for (const band of BANDS) {
        this._say(band.id, '');
      }
      return;
    }
    const here = (table: { x0: ArrayLike<number>; x1: ArrayLike<number> }) => {
      for (let i = table.x0.length - 1; i >= 0; i--) {
        if (table.x0[i] <= at) {
          return at <= table.x1[i] ? i : -1;
        }
      }
      return -1;
    };
    const span = (table: typeof view.stages, labels: string[]) => {
      const i = here(table);
      return i >= 0 && table.count[i] === 1 ? labels[table.label[i]] : '';
    };
    this._say('stage', span(view.stages, scene.stages));
    this._say('layer', span(view.layers, scene.layers));
    this._say('module', span(view.modules, scene.modules));
    this._say('marks', markAt(view.marks, at, scene.mark_names));
    const op = here(view.ops);
    this._say(
      'ops',
      op >= 0 ? shortOp(scene.names[view.ops.name[op]] ?? '') : trans._p('compute', 'idle')
    );
    this._say('out', here(view.out) >= 0 ? trans._p('copies', 'busy') : trans._p('copies', 'idle'));
    this._say('in', here(view.in) >= 0 ? trans._p('copies', 'busy') : trans._p('copies', 'idle'));
    this._say('stalls', here(view.stalls) >= 0 ? trans.__('waits') : trans._p('stalls', 'none'));
    const replay = here(view.replays);
    this._say(
      'replays',
      replay >= 0 ? shortOp(scene.names[view.replays.name[replay]]) : trans._p('replays', 'none')
    );
    const row = Math.max(0, lastAtMost(view.resident.x, at));
    let total = 0;
    BANDS.forEach((band, i) => {
      const bytes = view.resident.bands[i][row] ?? 0;
      total += bytes;
      this._say(band.id, formatBytes(bytes));
    });
    this._say('resident', formatBytes(total));
    this._say('live', formatBytes(view.live.bytes[Math.max(0, lastAtMost(view.live.x, at))] ?? 0));
    this._say('away', formatBytes(view.away.bytes[Math.max(0, lastAtMost(view.away.x, at))] ?? 0));
  }

  private _say(id: string, text: string): void {
    const value = this._values.get(id);
    if (value && value.textContent !== text) {
      value.textContent = text;
    }
  }

  // ------------------------------------------------------------------------------------------------ pointer and keys

  private _listen(): void {
    const surface = this._overlay;
    surface.addEventListener('wheel', event => this._wheel(event), { passive: false });
    surface.addEventListener('pointerdown', event => this._down(event));
    surface.addEventListener('pointermove', event => this._move(event));
    surface.addEventListener('pointerup', event => this._up(event));
    surface.addEventListener('pointercancel', () => {
      this._drag = null;
      this._brush = null;
      this.leaveBox();
      this.draw(false);
    });
    surface.addEventListener('pointerleave', () => {
      if (!this._drag) {
        this._pointerAt = null;
        this._hover = null;
        this._hideTip();
        this.draw(false);
      }
    });
    surface.addEventListener('dblclick', () => this.showSelected());
    surface.addEventListener('contextmenu', event => {
      const point = this._hitAt(event.offsetX, this._yOf(event))?.point;
      if (point?.track === 'blocks') {
        event.preventDefault();
        event.stopPropagation();
        this._hideTip();
        this.onMenu(point.row, event.clientX, event.clientY);
      }
    });
  }

  private _wheel(event: WheelEvent): void {
    if (!this._model.scene) {
      return;
    }
    event.preventDefault();
    this._model.look(wheeled(this._scale, event));
    this._hideTip();
  }

  private _down(event: PointerEvent): void {
    if (event.button !== 0 || !this._model.scene) {
      return;
    }
    this.focus();
    this._overlay.setPointerCapture(event.pointerId);
    const { minimap, blocks } = this._layout;
    const inMinimap = this._yOf(event) < minimap.top + minimap.height;
    const inBlocks = this._yOf(event) >= blocks.top;
    const boxes = inBlocks && (event.altKey || this._box !== null);
    this._drag = {
      kind: inMinimap ? 'minimap' : boxes ? 'box' : event.shiftKey ? 'brush' : 'pan',
      x: event.offsetX,
      y: this._yOf(event),
      moved: false,
      from: this._scale.at(event.offsetX),
      shown: this._model.shown
    };
    if (inMinimap) {
      this._center(event.offsetX);
    }
    this._hideTip();
  }

  /** Move what is shown so that its middle lies there on the minimap. */
  private _center(x: number): void {
    const { shown, length } = this._model;
    const middle = (x / this._width) * length;
    this._model.look(pan(shown, middle - (shown.start + shown.end) / 2));
  }

  private _move(event: PointerEvent): void {
    const drag = this._drag;
    if (!this._model.scene) {
      return;
    }
    if (!drag) {
      this._hoverAt(event.offsetX, this._yOf(event));
      return;
    }
    drag.moved ||=
      Math.abs(event.offsetX - drag.x) > CLICK_PX ||
      (drag.kind === 'box' && Math.abs(this._yOf(event) - drag.y) > CLICK_PX);
    if (!drag.moved) {
      return;
    }
    if (drag.kind === 'minimap') {
      this._center(event.offsetX);
    } else if (drag.kind === 'pan') {
      const span = drag.shown.end - drag.shown.start;
      this._model.look(pan(drag.shown, ((drag.x - event.offsetX) / this._width) * span));
    } else if (drag.kind === 'box') {
      const to = { x: event.offsetX, y: this._yOf(event) };
      const view = this._model.views.best(this._model.shown);
      const limits = { length: this._model.length, mapBytes: view?.map_bytes ?? 1 };
      this._box = boxOf(drag, to, this._scale, this._layout.blocks, limits);
      this.draw(false);
    } else {
      const at = Math.min(Math.max(this._scale.at(event.offsetX), 0), this._model.length);
      this._brush = { start: Math.min(drag.from, at), end: Math.max(drag.from, at) };
      this.draw(false);
    }
  }

  private _up(event: PointerEvent): void {
    const drag = this._drag;
    this._drag = null;
    if (!drag) {
      return;
    }
    if (drag.kind === 'brush') {
      const brush = this._brush;
      this._brush = null;
      void this._model.summarize(drag.moved && brush && brush.end > brush.start ? brush : null);
    } else if (drag.kind === 'box') {
      if (drag.moved) {
        this.listBox();
      }
    } else if (drag.kind === 'pan' && !drag.moved) {
      void this._click(event.offsetX, this._yOf(event));
    }
    this.draw(false);
  }

  private async _click(x: number, y: number): Promise<void> {
    this._model.setCursor(this._scale.at(x));
    const hit = this._hitAt(x, y);
    if (!hit?.point) {
      if (hit && (hit.track === 'resident' || hit.track === 'away')) {
        await this._model.ask(this._scale.at(x));
      } else if (hit && spanName(hit, this._drawn)) {
        await this._model.summarize({ start: hit.x0, end: hit.x1 });
      } else {
        await this._model.select(null);
      }
      return;
    }
    if (hit.point.track === 'blocks') {
      await this._model.select(hit.point.row);
      return;
    }
    const point = await this._model.point(hit.point.track, hit.point.row);
    this._model.tell(point?.op ?? null);
    const storage =
      point?.transfer?.storage ??
      point?.stall?.storage ??
      point?.replay?.storage ??
      point?.op?.touches.storages[0];
    if (storage) {
      await this._model.select(storage.uid);
    }
  }

  private _hitAt(x: number, y: number): IHit | null {
    const view = this._model.views.best(this._model.shown);
    return view ? hitTest(view, this._layout, this._scale, x, y) : null;
  }

  /** Whether a height of the drawing is that of the floor, or near it. */
  private _isOnFloor(y: number): boolean {
    const { scene } = this._model;
    if (!scene) {
      return false;
    }
    const at = residentY(this._layout.resident, scene.capacity_bytes, scene.live_peak_bytes);
    return Math.abs(at(scene.floor.bytes) - y) <= NEAR_PX;
  }

  /** What is drawn, as far as what is said of a hit depends on it. */
  private get _drawn(): IDrawn {
    const { scene, views, shown, axis } = this._model;
    return { scene, view: views.best(shown), axis };
  }

  private _hoverAt(x: number, y: number): void {
    this._pointerAt = this._scale.at(x);
    this._hover = this._hitAt(x, y);
    window.clearTimeout(this._pointTimer);
    const hit = this._hover;
    const span = hit && spanName(hit, this._drawn);
    if (hit && span) {
      window.clearTimeout(this._pointTimer);
      this._pointTimer = window.setTimeout(() => this._showTip(hit, {}, x, y), POINT_MS);
    } else if (hit?.track === 'resident' && this._isOnFloor(y)) {
      this._pointTimer = window.setTimeout(() => this._showTip(hit, {}, x, y), POINT_MS);
    } else if (!hit?.point) {
      this._hideTip();
    } else {
      const { track, row } = hit.point;
      this._pointTimer = window.setTimeout(() => {
        void this._model.point(track, row).then(point => {
          if (point && this._hover === hit) {
            this._showTip(hit, point, x, y);
          }
        });
      }, POINT_MS);
    }
    this.draw(false);
  }

  /** Forget crosshair, range, box and selection. */
  clear(): void {
    this._model.setCursor(null);
    void this._model.summarize(null);
    void this._model.enclose(null);
    this._model.tell(null);
    void this._model.select(null);
  }

  // ------------------------------------------------------------------------------------------------ the box

  /** Called when drawing a box begins and ends. */
  onBox: (drawing: boolean) => void = () => undefined;

  /** Put a box in the block map, to be moved by the keys or drawn anew by the pointer; again: leave it. */
  drawBox(): void {
    const view = this._model.views.best(this._model.shown);
    if (this._box || !view) {
      this.leaveBox();
    } else {
      this._box = middleBox(this._model.shown, view.map_bytes);
      this._sayBox(true);
      this.focus();
    }
    this.draw(false);
  }

  /** Whether a box is being drawn. */
  get isBoxing(): boolean {
    return this._box !== null;
  }

  /** Move the box by steps to the right and up; `grows`: its right and upper edge alone. */
  shiftBox(right: number, up: number, grows: boolean): void {
    const view = this._model.views.best(this._model.shown);
    if (this._box && view) {
      const change = grows ? growBox : moveBox;
      this._box = change(this._box, right, up, this._model.shown, view.map_bytes);
      this.draw(false);
    }
  }

  /** List what lies in the box. */
  listBox(): void {
    const box = this._box;
    this.leaveBox();
    void this._model.enclose(box);
  }

  leaveBox(): void {
    this._box = null;
    this._sayBox(false);
    this.draw(false);
  }

  private _sayBox(drawing: boolean): void {
    this.node.classList.toggle('cl-boxing', drawing);
    this.onBox(drawing);
  }

  /** Called when the person asks for the search field. */
  onSearch: () => void = () => undefined;

  /** Called when the person asks for the menu of a block: its storage, and where in the window. */
  onMenu: (uid: number, x: number, y: number) => void = () => undefined;

  /** Zoom round the crosshair, or the middle. */
  zoomBy(factor: number): void {
    const { shown, cursor } = this._model;
    const inside = cursor !== null && cursor >= shown.start && cursor <= shown.end;
    this._model.look(zoom(shown, factor, inside ? cursor : (shown.start + shown.end) / 2));
  }

  fit(): void {
    this._model.fit();
  }

  /** Show all of the selected storage's life. */
  showSelected(): void {
    const { selected } = this._model;
    if (selected) {
      const margin = Math.max((selected.x1 - selected.x0) * 0.05, this._model.length * 1e-6);
      this._model.look({ start: selected.x0 - margin, end: selected.x1 + margin });
    }
  }

  /** Move by a share of what is shown. */
  panBy(share: number): void {
    const { shown } = this._model;
    this._model.look(pan(shown, share * (shown.end - shown.start)));
  }

  // ------------------------------------------------------------------------------------------------ the tip

  private _showTip(hit: IHit, point: IPoint, x: number, y: number): void {
    const { title, rows } = tipOf(hit, point, this._drawn);
    const list = h('dl');
    for (const [name, value] of rows) {
      list.append(h('dt', {}, name), h('dd', {}, value));
    }
    this._tip.replaceChildren(h('b', {}, title), list);
    this._tip.hidden = false;
    const gutter = this.node.clientWidth - this._width;
    const left = Math.min(gutter + x + 14, this.node.clientWidth - this._tip.offsetWidth - 6);
    const { scrollTop } = this.node;
    const inSight = y < this._stuckPx ? y : y - scrollTop;
    const below = inSight + 18 + this._tip.offsetHeight < this.node.clientHeight;
    const top = below ? inSight + 18 : Math.max(0, inSight - 10 - this._tip.offsetHeight);
    this._tip.style.left = `${Math.max(gutter, left)}px`;
    this._tip.style.top = `${scrollTop + top}px`;
  }

  private _hideTip(): void {
    window.clearTimeout(this._pointTimer);
    this._tip.hidden = true;
  }

  private readonly _gutter = lanesOf(trans.__('Lanes'));
  private readonly _pinGutter = lanesOf(trans.__('Pinned lanes'));
  private readonly _pinCanvas = h('canvas');
  /** Over the drawing, and as wide: what stays when it scrolls. */
  private readonly _pins = h('div', { class: 'cl-pins', hidden: true });
  /** As high as the drawing, so that what is stuck in it can be so all the way. */
  private readonly _room = h('div', { class: 'cl-room' });
  private _stuckPx = 0;
  private _pinStop = '';
  private readonly _canvas = h('canvas', { class: 'cl-tracks' });
  private readonly _overlay = h('canvas', { class: 'cl-overlay' });
  private readonly _tip = h('div', { class: 'cl-tip', hidden: true });
  private readonly _values = new Map<string, HTMLElement>();
  private readonly _observer: ResizeObserver;
  private _colors: IColors | null = null;
  private _layout: Layout = layTracks(400, false);
  private _width = 0;
  private _frame = 0;
  private _dirty = true;
  private _drag: Drag | null = null;
  private _brush: IStretch | null = null;
  /** While it is being drawn. */
  private _box: IBox | null = null;
  private _hover: IHit | null = null;
  private _pointerAt: number | null = null;
  private _pointTimer: number | undefined;
}

/** What the innermost of the markers at a position is called; empty outside of any. */
function markAt(marks: IMarks, at: number, names: string[]): string {
  let found = -1;
  for (let i = 0; i < marks.x0.length && marks.x0[i] <= at; i++) {
    if (at <= marks.x1[i] && (found < 0 || marks.depth[i] >= marks.depth[found])) {
      found = i;
    }
  }
  return found < 0 ? '' : (names[marks.label[found]] ?? '');
}

/** The names beside tracks; their figures are said in the tables, too. */
function lanesOf(name: string): HTMLElement {
  return h('div', { class: 'cl-gutter', role: 'group', 'aria-label': name });
}

function pinButton(
  track: TrackName,
  name: string,
  pinned: boolean,
  high: number,
  pin: () => void
): HTMLElement {
  const what = pinned
    ? trans.__('Let %1 scroll with the others', name)
    : trans.__('Pin %1 to the top', name);
  const mark = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  mark.setAttribute('viewBox', '0 0 10 10');
  mark.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute(
    'd',
    'M2.5 0h5v1l-1 .6v2.6l1.7 1.6v1H5.5L5 10l-.5-3.2H1.8v-1l1.7-1.6V1.6l-1-.6z'
  );
  mark.append(path);
  return h(
    'button',
    {
      class: 'cl-pin',
      type: 'button',
      title: what,
      'aria-label': trans.__('Pin %1', name),
      'aria-pressed': String(pinned),
      'data-track': track,
      tabindex: '-1',
      style: `height: ${high}px`,
      click: pin
    },
    mark as unknown as Node
  );
}
