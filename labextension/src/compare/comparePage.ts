// The page that compares two steps or policies: one axis, the figures, modules and decisions that differ.

import { counted } from '../counts';
import { button, h, segment, swatch } from '../dom';
import { formatBytes, formatSeconds } from '../format';
import type { Bindings } from '../keys/bindings';
import type { LabModel } from '../model';
import { type IColumn, SortableTable } from '../panel/sortableTable';
import {
  type Axis,
  CATEGORIES,
  type IDecisionPair,
  type IModulePair,
  type IStorage
} from '../protocol';
import { trans } from '../texts';
import { type IColors, readColors } from '../timeline/colors';
import { pan, Scale, wheeled, zoom } from '../timeline/scale';
import { BANDS, bandOf, storageName } from '../words';
import { type CompareLayout, drawComparison, layLanes, levelAt } from './compareDrawing';
import { CompareModel, sameSide } from './compareModel';
import { conditionLines, decisionText, figureRows, type IFigureRow, signed } from './differences';

type Tab = 'modules' | 'decisions';

const GUTTER = 150;

export class ComparePage {
  readonly node = h('section', { class: 'cl-compare', 'aria-label': trans.__('Compare') });

  constructor(
    lab: LabModel,
    private readonly _actions: { open(): void; close(): void },
    private readonly _keys: Bindings
  ) {
    this._model = new CompareModel(lab, drawingAlone => {
      if (!drawingAlone) {
        this._fill();
      }
      this._draw();
    });
    this._a = this._select('a', trans.__('A: What is compared'));
    this._b = this._select('b', trans.__('B: What it is compared with'));
    this._axis = segment<Axis>(
      trans.__('Axis'),
      [
        ['time', trans.__('Time'), trans.__('Seconds since the step began')],
        [
          'op',
          trans.__('Op'),
          trans.__('Op index: the same place in both, where they ran the same ops')
        ]
      ],
      axis => void this._model.setAxis(axis)
    );
    this._modules = moduleTable();
    this._decisions = decisionTable();
    for (const tab of ['modules', 'decisions'] as const) {
      const element = h('button', { type: 'button', role: 'tab', click: () => this._show(tab) });
      this._tabs.set(tab, element);
    }
    const toolbar = h(
      'div',
      { class: 'cl-toolbar', role: 'toolbar', 'aria-label': trans.__('Compare') },
      h('b', {}, trans.__('Compare')),
      this._a,
      button('⇄', trans.__('Swap the two'), () => void this._model.swap(), 'cl-square'),
      this._b,
      this._axis.node,
      this._fit,
      this._said,
      h('span', { class: 'cl-grow' }),
      button(trans.__('Open file…'), trans.__('Open a trace (.parquet) or a policy (.json)'), () =>
        _actions.open()
      ),
      this._close
    );
    _keys.follow(() => {
      this._fit.title = _keys.hint(trans.__('Show all'), 'fit');
      this._close.title = _keys.hint(trans.__('Back to the timeline'), 'close-comparison');
      this._nameDrawing();
    });
    this._canvas.tabIndex = 0;
    this._canvas.setAttribute('role', 'application');
    this._drawing.append(this._gutter, this._canvas);
    this.node.append(
      toolbar,
      h(
        'div',
        { class: 'cl-compare-main' },
        h(
          'div',
          { class: 'cl-compare-left' },
          this._drawing,
          h(
            'section',
            { class: 'cl-tables' },
            h(
              'div',
              { class: 'cl-tabs' },
              h('div', { role: 'tablist' }, ...this._tabs.values()),
              h('span', { class: 'cl-grow' }),
              this._count
            ),
            this._body
          )
        ),
        h('aside', { class: 'cl-inspector', 'aria-label': trans.__('Differences') }, this._figures)
      )
    );
    this._listen();
    this._observer = new ResizeObserver(() => this._resize());
    this._observer.observe(this._drawing);
  }

  /** A draft has changed. */
  redraft(): void {
    if (this.isShown) {
      void this._model.redraft();
    }
  }

  get isShown(): boolean {
    return this.node.isConnected;
  }

  /** Show it at the end of an element. `source`: what has just been opened, and is to be compared. */
  show(parent: HTMLElement, source?: string): void {
    parent.append(this.node);
    this._canvas.focus({ preventScroll: true });
    this.update();
    void this._model.begin(source);
  }

  hide(): void {
    this.node.remove();
  }

  /** Read again what there is to choose from. */
  update(): void {
    if (!this.isShown) {
      return;
    }
    const { choices } = this._model;
    const written = JSON.stringify(choices);
    if (written !== this._written) {
      this._written = written;
      for (const select of [this._a, this._b]) {
        select.replaceChildren(
          ...choices.map(({ side, name }) => h('option', { value: JSON.stringify(side) }, name))
        );
      }
    }
    for (const [select, side] of [
      [this._a, this._model.a],
      [this._b, this._model.b]
    ] as const) {
      if (side && !choices.some(choice => sameSide(choice.side, side))) {
        select.prepend(
          h('option', { value: JSON.stringify(side) }, trans.__('no longer recorded'))
        );
        this._written = '';
      }
      select.value = JSON.stringify(side);
    }
  }

  recolor(): void {
    this._colors = null;
    this._draw();
  }

  dispose(): void {
    this._observer.disconnect();
    this._model.dispose();
    cancelAnimationFrame(this._frame);
  }

  // ------------------------------------------------------------------------------------------------ what is said

  private _fill(): void {
    const { result, axis } = this._model;
    this.update();
    this._axis.press(axis);
    this._said.textContent = !result
      ? trans.__('Two steps or policies are needed')
      : result.same_ops
        ? trans.__('The same sequence of ops')
        : trans.__('The sequences of ops differ: op indices do not name the same ops');
    const decisions = result?.decisions;
    const tab = this._tabs.get('decisions') as HTMLElement;
    tab.hidden = !decisions;
    const differ = decisions ? decisions.added + decisions.removed + decisions.changed : 0;
    tab.textContent = trans.__('Decisions that differ %1', differ);
    (this._tabs.get('modules') as HTMLElement).textContent = trans.__(
      'Modules %1',
      result?.module_count ?? 0
    );
    this._modules.fill(result?.modules ?? []);
    this._decisions.fill(decisions?.rows ?? []);
    this._list();
    const rows = result ? figureRows(result.a.figures, result.b.figures) : [];
    const cell = (text: string, kind = '') => h('td', { class: `cl-number ${kind}` }, text);
    const kinds = (side: 'a' | 'b') => (result ? result[side].kind : '');
    const clock = (side: 'a' | 'b') => (result ? result[side].clock : '');
    this._figures.replaceChildren(
      h(
        'table',
        { class: 'cl-differences' },
        h('caption', { class: 'cl-hidden' }, trans.__('Figures of both, and the difference')),
        h(
          'thead',
          {},
          h(
            'tr',
            {},
            h('td'),
            h('th', { scope: 'col', class: 'cl-number', title: clock('a') }, `A, ${kinds('a')}`),
            h('th', { scope: 'col', class: 'cl-number', title: clock('b') }, `B, ${kinds('b')}`)
          )
        ),
        h(
          'tbody',
          {},
          ...rows.flatMap(row => [
            h('tr', {}, h('th', { scope: 'row' }, row.name), cell(row.a), cell(row.b)),
            row.apart &&
              h(
                'tr',
                { class: 'cl-apart' },
                h('td', {}),
                h(
                  'td',
                  { class: `cl-number cl-${row.verdict || 'dim'}`, colspan: '2' },
                  judged(row)
                )
              )
          ])
        )
      ),
      ...(decisions ? conditionLines(decisions) : []).map(line =>
        h('p', { class: 'cl-hint' }, line)
      )
    );
  }

  private _nameDrawing(): void {
    const keys = (['move-left', 'move-right', 'zoom-in', 'zoom-out', 'fit'] as const)
      .map(action => this._keys.first(action))
      .filter(Boolean);
    this._canvas.setAttribute(
      'aria-label',
      trans.__(
        'Resident bytes of both under one axis. Keys to move left and right, zoom in and out, and show all: %1. The table beside it lists the figures.',
        keys.join(', ')
      )
    );
  }

  private _show(tab: Tab): void {
    this._tab = tab;
    this._list();
  }

  private _list(): void {
    const tab = this._model.result?.decisions ? this._tab : 'modules';
    for (const [id, element] of this._tabs) {
      element.setAttribute('aria-selected', String(id === tab));
    }
    const { result } = this._model;
    const shown = tab === 'modules' ? result?.modules.length : result?.decisions?.rows.length;
    const { decisions, module_count: modules } = result ?? {};
    const all =
      tab === 'modules'
        ? (modules ?? 0)
        : decisions
          ? decisions.added + decisions.removed + decisions.changed
          : 0;
    const told =
      tab === 'modules'
        ? counted.modules(all)
        : trans.__(
            '%1 in B alone, %2 in A alone, %3 changed',
            decisions?.added ?? 0,
            decisions?.removed ?? 0,
            decisions?.changed ?? 0
          );
    this._count.textContent =
      shown !== undefined && shown < all
        ? trans._n('%2; the first %1 are listed', '%2; the first %1 are listed', shown, told)
        : told;
    this._body.replaceChildren((tab === 'modules' ? this._modules : this._decisions).node);
  }

  private _select(which: 'a' | 'b', label: string): HTMLSelectElement {
    const select: HTMLSelectElement = h('select', {
      'aria-label': label,
      change: () => void this._model.choose(which, JSON.parse(select.value))
    });
    return select;
  }

  // ------------------------------------------------------------------------------------------------ the drawing

  private _resize(): void {
    const { clientWidth, clientHeight } = this._drawing;
    if (clientWidth < 20 || clientHeight < 20) {
      return;
    }
    const ratio = window.devicePixelRatio || 1;
    this._layout = layLanes(clientHeight);
    this._width = Math.max(50, clientWidth - GUTTER);
    this._model.width = Math.round(this._width);
    this._canvas.width = Math.round(this._width * ratio);
    this._canvas.height = Math.round(this._layout.bottom * ratio);
    this._canvas.style.left = `${GUTTER}px`;
    this._canvas.style.width = `${this._width}px`;
    this._canvas.style.height = `${this._layout.bottom}px`;
    this._canvas.getContext('2d')?.setTransform(ratio, 0, 0, ratio, 0, 0);
    this._gutter.style.width = `${GUTTER}px`;
    this._gutter.style.height = `${this._layout.bottom}px`;
    const lane = (name: 'a' | 'b' | 'difference', text: string, hue: string) => {
      const { top, height } = this._layout[name];
      const value = h('span', { class: 'cl-value' });
      this._values.set(name, value);
      return h(
        'div',
        { class: 'cl-track', style: `top: ${top}px; height: ${height}px` },
        h('div', { class: 'cl-name' }, h('span', {}, swatch(hue), text), value)
      );
    };
    this._gutter.replaceChildren(
      lane('a', 'A', 'op2'),
      lane('b', 'B', 'act'),
      lane('difference', 'B − A', 'op1')
    );
    this._draw();
  }

  private _draw(): void {
    cancelAnimationFrame(this._frame);
    this._frame = requestAnimationFrame(() => {
      const context = this._canvas.getContext('2d');
      const { result, tables, cursor, axis } = this._model;
      if (!context || this._width <= 0 || !this.isShown) {
        return;
      }
      if (!result) {
        context.clearRect(0, 0, this._width, this._layout.bottom);
        return;
      }
      this._colors ??= readColors(this.node);
      drawComparison({
        context,
        colors: this._colors,
        layout: this._layout,
        scale: this._scale,
        axis,
        result,
        tables,
        cursor
      });
      const at = cursor;
      const say = (lane: string, text: string) => {
        const value = this._values.get(lane);
        if (value) {
          value.textContent = text;
        }
      };
      const level = (line: 'a' | 'b') =>
        tables && at !== null && at <= result[line].length[axis]
          ? levelAt(tables[line].resident, at)
          : null;
      const [a, b] = [level('a'), level('b')];
      const peak = (facts: typeof result.a) =>
        trans.__('peak %1', formatBytes(facts.figures.peak_bytes));
      say('a', at === null ? peak(result.a) : a === null ? trans.__('ended') : formatBytes(a));
      say('b', at === null ? peak(result.b) : b === null ? trans.__('ended') : formatBytes(b));
      say('difference', a === null || b === null ? '' : signed(b - a, formatBytes));
    });
  }

  private get _scale(): Scale {
    const { start, end } = this._model.shown;
    return new Scale(start, end, this._width);
  }

  fit(): void {
    this._model.look({ start: 0, end: this._model.length });
  }

  /** Zoom round the middle. */
  zoomBy(factor: number): void {
    const { start, end } = this._model.shown;
    this._model.look(zoom({ start, end }, factor, (start + end) / 2));
  }

  /** Move by a share of what is shown. */
  panBy(share: number): void {
    const { start, end } = this._model.shown;
    this._model.look(pan({ start, end }, share * (end - start)));
  }

  /** Go back to the timeline. */
  close(): void {
    this._actions.close();
  }

  private _listen(): void {
    const canvas = this._canvas;
    canvas.addEventListener(
      'wheel',
      event => {
        event.preventDefault();
        this._model.look(wheeled(this._scale, event));
      },
      { passive: false }
    );
    let from: { x: number; shown: { start: number; end: number } } | null = null;
    canvas.addEventListener('pointerdown', event => {
      canvas.setPointerCapture(event.pointerId);
      from = { x: event.offsetX, shown: this._model.shown };
    });
    canvas.addEventListener('pointermove', event => {
      this._model.cursor = this._scale.at(event.offsetX);
      if (from) {
        const span = from.shown.end - from.shown.start;
        this._model.look(pan(from.shown, ((from.x - event.offsetX) / this._width) * span));
      } else {
        this._draw();
      }
    });
    for (const name of ['pointerup', 'pointercancel'] as const) {
      canvas.addEventListener(name, () => {
        from = null;
      });
    }
    canvas.addEventListener('pointerleave', () => {
      this._model.cursor = null;
      this._draw();
    });
  }

  private readonly _fit = button(trans.__('Fit'), '', () => this.fit());
  private readonly _close = button(trans.__('Close'), '', () => this.close());
  private readonly _model: CompareModel;
  private readonly _a: HTMLSelectElement;
  private readonly _b: HTMLSelectElement;
  private readonly _axis: ReturnType<typeof segment<Axis>>;
  private readonly _modules: SortableTable<IModulePair>;
  private readonly _decisions: SortableTable<IDecisionPair>;
  private readonly _said = h('span', { class: 'cl-dim', role: 'status' });
  private readonly _count = h('span', { class: 'cl-dim', role: 'status' });
  private readonly _tabs = new Map<Tab, HTMLElement>();
  private readonly _body = h('div', { class: 'cl-table-body' });
  private readonly _figures = h('div');
  private readonly _drawing = h('div', { class: 'cl-timeline' });
  private readonly _gutter = h('div', { class: 'cl-gutter', 'aria-hidden': 'true' });
  private readonly _canvas = h('canvas', { class: 'cl-overlay' });
  private readonly _values = new Map<string, HTMLElement>();
  private readonly _observer: ResizeObserver;
  private _colors: IColors | null = null;
  private _layout: CompareLayout = layLanes(300);
  private _width = 0;
  private _frame = 0;
  private _tab: Tab = 'decisions';
  private _written = '';
}

/** How far b is from a, and whether that is for the better. */
function judged({ apart, verdict }: IFigureRow): string {
  if (!verdict) {
    return apart;
  }
  return verdict === 'better' ? trans.__('%1 better', apart) : trans.__('%1 worse', apart);
}

function moduleTable(): SortableTable<IModulePair> {
  const three = (
    first: string,
    key: 'peak_bytes' | 'moved_bytes' | 'stall_s',
    write: (value: number) => string
  ): IColumn<IModulePair>[] => [
    { name: first, of: row => row.a[key], text: row => write(row.a[key]), kind: 'number' },
    { name: 'B', of: row => row.b[key], text: row => write(row.b[key]), kind: 'number' },
    {
      name: 'B − A',
      of: row => row.b[key] - row.a[key],
      text: row => signed(row.b[key] - row.a[key], write),
      kind: 'number'
    }
  ];
  return new SortableTable<IModulePair>(
    trans.__('Modules: bytes at the peak, bytes moved and stall of both'),
    [
      {
        name: trans.__('Module'),
        of: row => row.module || trans.__('outside any')
      },
      ...three(trans.__('At the peak, A'), 'peak_bytes', formatBytes),
      ...three(trans.__('Moved, A'), 'moved_bytes', formatBytes),
      ...three(trans.__('Stall, A'), 'stall_s', formatSeconds)
    ],
    () => undefined,
    () => false
  );
}

function decisionTable(): SortableTable<IDecisionPair> {
  const named = (row: IDecisionPair) =>
    storageName({
      key: row.storage,
      category: CATEGORIES.indexOf(row.category as never)
    } as IStorage);
  return new SortableTable<IDecisionPair>(
    trans.__('Decisions that differ'),
    [
      {
        name: trans.__('Storage'),
        of: named,
        node: row => {
          const band = BANDS[bandOf(CATEGORIES.indexOf(row.category as never))].id;
          return h('span', { title: row.storage }, swatch(band), named(row));
        }
      },
      { name: trans.__('Module'), of: row => row.module, kind: 'dim' },
      {
        name: trans.__('Size'),
        of: row => row.bytes,
        text: row => formatBytes(row.bytes),
        kind: 'number',
        first: 'down'
      },
      { name: trans.__('After use'), of: row => row.gap, kind: 'number' },
      { name: 'A', of: row => decisionText(row.a) },
      { name: 'B', of: row => decisionText(row.b) },
      { name: trans.__('By'), of: row => (row.b ?? row.a)?.decided_by ?? '', kind: 'dim' }
    ],
    () => undefined,
    () => false
  );
}
