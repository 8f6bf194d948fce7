// The decisions as a table of any length: only the rows in view exist, and the kernel sorts and filters.

import { counted } from '../counts';
import { button, h, named, swatch } from '../dom';
import { formatBytes, formatCount, formatPercent, formatSeconds } from '../format';
import type { Bindings } from '../keys/bindings';
import type { DecisionSort, IDecision, IStorage } from '../protocol';
import { trans } from '../texts';
import { BANDS, bandOf, inWords, nameBeside, storageName } from '../words';
import { keepingFocus } from './focus';
import { type Editor, type EditorChange, NEVER_REPLAY } from './state';
import { type TableAct, tableAct } from './tableKeys';
import { actionMark, actionName, decisionText, who } from './words';

const ROW = 23;
const MARGIN = 6;
const FILTER_MS = 150;
/** Ops by which a key moves a prefetch. */
export const LEAD = 5;

/** What the filter understands. */
const FILTERS =
  'layer.3-5, >4MiB, stage:backward, category:act, keep, swap, remat, never, declined, by:you, by:rule, by:planner, by:follows, stall>0, staged';
/** The keys that the table says of itself. */
const DECIDED: [action: string, says: (key: string) => string][] = [
  ['keep', key => trans.__('%1 keeps it', key)],
  ['swap', key => trans.__('%1 swaps it', key)],
  ['never-touch', key => trans.__('%1 never touches it', key)],
  ['rematerialize', key => trans.__('%1 rematerializes it', key)],
  ['leave-to-planner', key => trans.__('%1 leaves it to the planner', key)],
  ['prefetch-earlier', key => trans.__('%1 brings it back earlier', key)],
  ['prefetch-later', key => trans.__('%1 brings it back later', key)]
];

interface IColumn {
  name(): string;
  id: string;
  sort?: DecisionSort;
  kind?: 'number';
}

const COLUMNS: IColumn[] = [
  { name: () => trans.__('Storage'), id: 'name', sort: 'name' },
  { name: () => trans.__('Module'), id: 'module', sort: 'module' },
  { name: () => trans.__('Size'), id: 'size', sort: 'bytes', kind: 'number' },
  { name: () => trans.__('Life'), id: 'life' },
  { name: () => trans.__('Idle'), id: 'idle', sort: 'idle_s', kind: 'number' },
  { name: () => trans.__('Decision'), id: 'decision', sort: 'decision' },
  { name: () => trans.__('Hidden'), id: 'hidden', sort: 'hidden', kind: 'number' },
  { name: () => trans.__('Stall'), id: 'stall', sort: 'stall_s', kind: 'number' },
  { name: () => trans.__('Replay'), id: 'replay', sort: 'replay_s', kind: 'number' },
  { name: () => trans.__('By'), id: 'by', sort: 'by' }
];

export interface IDecisionActions {
  /** Show a storage in the drawing. */
  show(storage: string): void;
  /** Offer what can be done with it, at a place of the window. */
  menu(storage: string, x: number, y: number): void;
  leave(): void;
}

export class DecisionTable {
  readonly node: HTMLElement;

  constructor(
    private readonly _editor: Editor,
    private readonly _actions: IDecisionActions,
    keys: Bindings
  ) {
    this._heads = COLUMNS.map(column =>
      h(
        'div',
        { class: `cl-cell cl-col-${column.id}`, role: 'columnheader' },
        column.sort
          ? h(
              'button',
              { type: 'button', tabindex: '-1', click: () => this._sortBy(column) },
              column.name()
            )
          : column.name()
      )
    );
    this._scroller = h(
      'div',
      {
        class: 'cl-rows',
        tabindex: '0',
        role: 'grid',
        'aria-multiselectable': 'true',
        scroll: () => this._scrolled(),
        keydown: (event: KeyboardEvent) => this._key(event),
        // Not `click`: rows are drawn anew with every answer, and one that goes under a pressed button has no click.
        mousedown: (event: MouseEvent) => this._pressed(event),
        dblclick: () => this._editor.selected && this._actions.show(this._editor.selected),
        contextmenu: (event: MouseEvent) => this._menu(event)
      },
      h(
        'div',
        { class: 'cl-head-group', role: 'rowgroup' },
        h('div', { class: 'cl-cells cl-heads', role: 'row', 'aria-rowindex': '1' }, ...this._heads)
      ),
      this._space
    );
    this.filter = h('input', {
      type: 'search',
      class: 'cl-filter',
      placeholder: 'layer.3 >4MiB swap by:you',
      'aria-label': trans.__('Filter the decisions'),
      spellcheck: 'false',
      input: () => this._filterLater(),
      keydown: (event: KeyboardEvent) => {
        if (event.key === 'Escape') {
          this.filter.value = '';
          void this._editor.setFilter({ query: '' });
          this._scroller.focus();
        } else if (event.key === 'ArrowDown' || event.key === 'Enter') {
          this._scroller.focus();
        }
      }
    });
    this.node = h('div', { class: 'cl-decisions' }, this._together, this._scroller);
    keys.follow(() => {
      this.filter.title = keys.hint(trans.__('Words, %1', FILTERS), 'filter');
      const said = DECIDED.flatMap(([action, says]) => {
        const key = keys.first(action);
        return key ? [says(key)] : [];
      });
      this._scroller.setAttribute(
        'aria-label',
        trans.__(
          'Decisions. Arrow keys walk the rows, with Shift they select several, the space bar adds one, Control+A selects all, Enter shows the storage. %1.',
          said.join(', ')
        )
      );
    });
    this._observer = new ResizeObserver(() => this._scrolled());
    this._observer.observe(this._scroller);
    _editor.changed.connect(this._onChange, this);
  }

  /** The filter's field, which stands beside the tabs. */
  readonly filter: HTMLInputElement;

  /** How many rows there are, in words. */
  said(): string {
    const { open, total, bytes, filter } = this._editor;
    if (!open) {
      return this._editor.draft?.why ?? '';
    }
    const [all, size] = [formatCount(open.rows), formatBytes(bytes)];
    const stay = counted.storages(open.storages - open.rows);
    return filter.query.trim()
      ? trans._n(
          '%3 of %2 storages, %4; %5 cannot leave',
          '%3 of %2 storages, %4; %5 cannot leave',
          open.rows,
          all,
          formatCount(total),
          size,
          stay
        )
      : trans._n(
          '%2 storages, %3; %4 cannot leave',
          '%2 storages, %3; %4 cannot leave',
          open.rows,
          all,
          size,
          stay
        );
  }

  dispose(): void {
    this._observer.disconnect();
    window.clearTimeout(this._filterTimer);
    cancelAnimationFrame(this._frame);
  }

  /** Bring the selected row into view, where it is known. */
  reveal(): void {
    const position = this._position();
    if (position !== null) {
      this._goTo(position);
    }
  }

  private _onChange(_: Editor, change: EditorChange): void {
    if (change === 'rows' || change === 'draft' || change === 'choices') {
      this._draw();
    }
  }

  private _sortBy(column: IColumn): void {
    const { sort, down } = this._editor.filter;
    const numeric = column.kind === 'number';
    void this._editor.setFilter({
      sort: column.sort,
      down: sort === column.sort ? !down : numeric
    });
    this._scroller.scrollTop = 0;
  }

  private _filterLater(): void {
    window.clearTimeout(this._filterTimer);
    this._filterTimer = window.setTimeout(() => {
      this._scroller.scrollTop = 0;
      void this._editor.setFilter({ query: this.filter.value });
    }, FILTER_MS);
  }

  private _scrolled(): void {
    const first = Math.max(0, Math.floor(this._scroller.scrollTop / ROW) - MARGIN);
    const count = Math.ceil(this._scroller.clientHeight / ROW) + 2 * MARGIN;
    void this._editor.want(first, count);
    this._draw();
  }

  private _draw(): void {
    cancelAnimationFrame(this._frame);
    this._frame = requestAnimationFrame(() => {
      const { filter, total, selected } = this._editor;
      COLUMNS.forEach((column, i) => {
        const sorted =
          column.sort === filter.sort ? (filter.down ? 'descending' : 'ascending') : 'none';
        this._heads[i].setAttribute('aria-sort', sorted);
      });
      this._space.style.height = `${total * ROW}px`;
      this._scroller.setAttribute('aria-rowcount', String(total + 1));
      const first = Math.max(0, Math.floor(this._scroller.scrollTop / ROW) - MARGIN);
      const last = Math.min(
        total,
        first + Math.ceil(this._scroller.clientHeight / ROW) + 2 * MARGIN
      );
      const rows = [];
      let active = '';
      for (let position = first; position < last; position++) {
        const row = this._editor.row(position);
        const id = `cl-decision-${position}`;
        if (row && row.storage === selected) {
          active = id;
        }
        rows.push(this._row(row, position, id));
      }
      this._space.replaceChildren(...rows);
      this._sayTogether();
      this._scroller.setAttribute('aria-activedescendant', active);
    });
  }

  private _row(row: IDecision | undefined, position: number, id: string): HTMLElement {
    const node = h('div', {
      class: 'cl-cells',
      role: 'row',
      id,
      'aria-rowindex': String(position + 2),
      'data-position': String(position),
      style: `top: ${position * ROW}px`
    });
    if (!row) {
      node.append(h('div', { class: 'cl-cell cl-dim' }, '…'));
      return node;
    }
    node.dataset.storage = row.storage;
    const { picked, selected } = this._editor;
    const chosen = picked.size ? picked.has(row.storage) : row.storage === selected;
    node.setAttribute('aria-selected', String(chosen));
    if (row.staged) {
      node.classList.add(row.by === 'follows' || row.by === 'planner' ? 'cl-follows' : 'cl-staged');
    }
    const decision = h(
      'span',
      { class: row.staged ? 'cl-draft' : '' },
      `${actionMark(row.after)} ${decisionText(row)}`
    );
    const contents: (Node | string)[] = [
      named(
        nameBeside(nameOf(row), row.module),
        swatch(BANDS[bandOf(row.category)].id),
        nameOf(row)
      ),
      named(row.module),
      formatBytes(row.bytes),
      life(row),
      formatSeconds(row.idle_s),
      row.before !== row.after
        ? h(
            'span',
            { title: `${actionName(row.before)} → ${decisionText(row)}` },
            h('s', { class: 'cl-dim cl-was' }, actionName(row.before)),
            h('span', { class: 'cl-was' }, ' → '),
            decision
          )
        : decision,
      row.hidden === null ? '' : formatPercent(row.hidden),
      row.swaps ? (row.stall_s ? formatSeconds(row.stall_s) : '0') : '',
      replayText(row),
      who(row)
    ];
    COLUMNS.forEach((column, i) => {
      const lost = column.id === 'stall' && row.stall_s > 0 ? ' cl-lost' : '';
      const staged = column.id === 'by' && row.by !== 'planner' ? ' cl-draft' : '';
      node.append(
        h(
          'div',
          {
            class: `cl-cell cl-col-${column.id}${lost}${staged}`,
            role: 'gridcell',
            title:
              column.id === 'idle'
                ? counted.ops(row.idle_ops)
                : column.id === 'replay'
                  ? replayTitle(row)
                  : ''
          },
          contents[i]
        )
      );
    });
    return node;
  }

  /** What can be done with all rows that are selected together. */
  private _sayTogether(): void {
    const { picked, open } = this._editor;
    this._together.hidden = picked.size < 2;
    if (this._together.hidden || !open) {
      return;
    }
    const bytes = [...picked.values()].reduce((sum, row) => sum + row.bytes, 0);
    const decide = (action: string | null) => void this._editor.decide(this._editor.chosen, action);
    const forbid = () => void this._editor.forbidReplay(this._editor.chosen, true);
    const act = (id: string, text: string, run: () => void) => {
      const element = button(text, trans.__('%1: all that are selected', text), run);
      element.dataset.focus = id;
      return element;
    };
    keepingFocus(this._together, () =>
      this._together.replaceChildren(
        h('b', {}, trans._n('%2 selected', '%2 selected', picked.size, formatCount(picked.size))),
        h('span', { class: 'cl-dim' }, formatBytes(bytes)),
        ...open.actions.map(action =>
          act(action, `${actionMark(action)} ${actionName(action)}`, () => decide(action))
        ),
        ...(open.actions.includes('rematerialize')
          ? [act(NEVER_REPLAY, `${actionMark(NEVER_REPLAY)} ${actionName(NEVER_REPLAY)}`, forbid)]
          : []),
        act('leave', trans.__('Leave to the planner'), () => decide(null)),
        act('unpick', '×', () => this._editor.unpick())
      )
    );
  }

  private _storageAt(event: MouseEvent): string | null {
    const row = (event.target as HTMLElement).closest<HTMLElement>('[data-storage]');
    return row?.dataset.storage ?? null;
  }

  private _pressed(event: MouseEvent): void {
    const storage = this._storageAt(event);
    const position = this._positionAt(event);
    if (!storage || position === null || event.button !== 0) {
      return;
    }
    event.preventDefault(); // Shift would select text
    this._scroller.focus({ preventScroll: true });
    if (event.shiftKey) {
      void this._editor.pickRange(this._anchor ?? position, position);
      return;
    }
    this._anchor = position;
    const row = this._editor.row(position);
    if ((event.ctrlKey || event.metaKey) && row) {
      this._editor.toggle(row);
      return;
    }
    this._editor.unpick();
    void this._editor.choose(storage);
    this._actions.show(storage);
  }

  private _positionAt(event: MouseEvent): number | null {
    const row = (event.target as HTMLElement).closest<HTMLElement>('[data-position]');
    return row ? Number(row.dataset.position) : null;
  }

  private _menu(event: MouseEvent): void {
    const storage = this._storageAt(event);
    if (storage) {
      event.preventDefault();
      event.stopPropagation();
      void this._editor.choose(storage);
      this._actions.menu(storage, event.clientX, event.clientY);
    }
  }

  /** Where the selected row is, among those that are known. */
  private _position(): number | null {
    const { selected, total } = this._editor;
    if (selected === null) {
      return null;
    }
    const near = Math.floor(this._scroller.scrollTop / ROW);
    for (let away = 0; away < total; away++) {
      for (const position of [near + away, near - away]) {
        if (position >= 0 && this._editor.row(position)?.storage === selected) {
          return position;
        }
      }
      if (away > 400) {
        break;
      }
    }
    return null;
  }

  private _goTo(position: number): void {
    const { clientHeight, scrollTop } = this._scroller;
    const top = position * ROW;
    if (top < scrollTop) {
      this._scroller.scrollTop = top;
    } else if (top + 2 * ROW > scrollTop + clientHeight) {
      this._scroller.scrollTop = top + 2 * ROW - clientHeight; // the head covers a row
    }
    const row = this._editor.row(position);
    if (row) {
      void this._editor.choose(row.storage);
    } else {
      this._scrolled();
    }
  }

  /** The head's buttons are no tab stops: up from the first row leads to them, and the arrows from one to the next. */
  private _keyInHead(event: KeyboardEvent): boolean {
    const heads = [...this.node.querySelectorAll<HTMLElement>('.cl-heads button')].filter(head =>
      head.checkVisibility()
    );
    const at = heads.indexOf(event.target as HTMLElement);
    if (at < 0) {
      if (event.key !== 'ArrowUp' || event.shiftKey || (this._position() ?? 0) > 0) {
        return false;
      }
      heads[0]?.focus();
      return true;
    }
    const next = { ArrowLeft: heads[at - 1], ArrowRight: heads[at + 1] }[event.key];
    if (event.key === 'ArrowDown' || event.key === 'Escape') {
      this._scroller.focus();
    } else {
      next?.focus();
    }
    return event.key !== 'Tab';
  }

  private _key(event: KeyboardEvent): void {
    const { total, selected, picked } = this._editor;
    if (!event.ctrlKey && !event.metaKey && !event.altKey && this._keyInHead(event)) {
      if (event.key !== 'Enter' && event.key !== ' ') {
        event.preventDefault();
      }
      event.stopPropagation();
      return;
    }
    const act = tableAct(event, {
      total,
      page: Math.max(1, Math.floor(this._scroller.clientHeight / ROW) - 1),
      selected,
      position: this._position(),
      hasPicked: picked.size > 0
    });
    if (act) {
      this._act(act);
      event.preventDefault();
      event.stopPropagation();
    }
  }

  private _act(act: TableAct): void {
    switch (act.does) {
      case 'pick all':
        void this._editor.pickRange(0, this._editor.total - 1);
        break;
      case 'move':
        this._moveTo(act.from, act.to, act.picks);
        break;
      case 'toggle': {
        const position = this._position();
        const row = position === null ? undefined : this._editor.row(position);
        if (row) {
          this._editor.toggle(row);
        }
        break;
      }
      case 'unpick':
        this._editor.unpick();
        break;
      case 'leave':
        this._actions.leave();
        break;
      case 'show':
        this._actions.show(act.storage);
        break;
      case 'menu': {
        const row = this._space.querySelector('[aria-selected="true"]')?.getBoundingClientRect();
        this._actions.menu(act.storage, (row?.left ?? 0) + 40, row?.bottom ?? 0);
        break;
      }
    }
  }

  /** Go to a row; `picks`: and pick all from where the range began. */
  private _moveTo(from: number | null, to: number, picks: boolean): void {
    if (picks) {
      this._anchor ??= from ?? to;
      void this._editor.pickRange(this._anchor, to).then(() => this._goTo(to));
    } else {
      this._anchor = to;
      this._editor.unpick();
      this._goTo(to);
    }
  }

  private readonly _heads: HTMLElement[];
  private readonly _scroller: HTMLElement;
  private readonly _together = h('div', { class: 'cl-together', role: 'toolbar', hidden: true });
  private readonly _space = h('div', { class: 'cl-space', role: 'rowgroup' });
  private readonly _observer: ResizeObserver;
  /** Where a range of rows begins. */
  private _anchor: number | null = null;
  private _filterTimer: number | undefined;
  private _frame = 0;
}

export function nameOf(row: {
  storage: string;
  category: number;
  module: string;
  bytes: number;
}): string {
  const storage: IStorage = {
    uid: -1,
    key: row.storage,
    bytes: row.bytes,
    category: row.category,
    module: row.module,
    movable: true,
    form: ''
  };
  return storageName(storage);
}

/** What its replays take; in brackets what one would, where it is not rematerialized. */
function replayText(row: IDecision): Node | string {
  const mark = row.declined ? '✕ ' : '';
  if (row.drops) {
    return mark + formatSeconds(row.replay_s);
  }
  const cost = row.replay_cost_s === null ? '' : `(${formatSeconds(row.replay_cost_s)})`;
  return h('span', { class: 'cl-dim' }, mark + cost);
}

function replayTitle(row: IDecision): string {
  const declined =
    row.declined &&
    `${trans.__('The runtime has declined to drop it: %1.', inWords(row.declined))} `;
  const cost =
    row.replay_cost_s === null
      ? trans.__('It cannot be made again in its longest gap.')
      : trans.__('A replay would take %1.', formatSeconds(row.replay_cost_s));
  return (
    declined + (row.drops ? trans.__('Its replays take %1.', formatSeconds(row.replay_s)) : cost)
  );
}

/** The life of a storage in the step, and in it the longest time that nothing uses it. */
function life(row: IDecision): HTMLElement {
  const place = (from: number, to: number) =>
    `left: ${(100 * from).toFixed(2)}%; width: ${(100 * Math.max(to - from, 0.012)).toFixed(2)}%`;
  const [birth, death] = row.life;
  const [from, to] = row.idle;
  const away = row.swaps ? 'cl-life-away' : row.drops ? 'cl-life-dropped' : 'cl-life-idle';
  const parts = [h('i', { style: place(birth, Math.min(death, 1)) })];
  parts.push(h('i', { class: away, style: place(Math.min(from, 1), Math.min(to, 1)) }));
  if (to > 1) {
    parts.push(h('i', { class: away, style: place(0, Math.min(to - 1, 1)) }));
  }
  return h(
    'span',
    {
      class: 'cl-life',
      style: `--cl-hue: var(--cl-${BANDS[bandOf(row.category)].id})`,
      'aria-hidden': 'true'
    },
    ...parts
  );
}
