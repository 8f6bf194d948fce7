// The tables below the drawing, which say in text what it shows: the storages found, the ops found, what is alive.

import { button, h, named, swatch } from '../dom';
import { formatBytes, formatCount, formatSeconds } from '../format';
import type { LabModel } from '../model';
import {
  CATEGORIES,
  type IAlive,
  type IAliveStorage,
  type IFoundStorage,
  type IOp,
  type ISearch,
  type IStorage
} from '../protocol';
import { trans } from '../texts';
import { BANDS, bandOf, categoryName, inWords, nameBeside, shortOp, storageName } from '../words';
import { type IColumn, SortableTable } from './sortableTable';
import { hasReplays, tabInFront, tableSaid } from './tableWords';

/** A tab that another part of the panel brings along. */
export interface IExtraTab {
  id: string;
  name(): string;
  /** A number beside the name, or null. */
  count(): number | null;
  /** What the tab shows; they stay as they are while it is in front. */
  nodes: HTMLElement[];
  /** Whether there is nothing to show in it now. */
  hidden?(): boolean;
  /** What stands at the end of the row of tabs. */
  beside?: HTMLElement;
  said(): string;
  /** Called when the tab comes to the front, and when it leaves it. */
  shown(on: boolean): void;
}

/** A replay, or a drop that was declined. */
interface IReplayRow {
  declined: boolean;
  name: string;
  cause: string;
  duration_s: number;
  op: IOp | null;
  storage: IStorage | null;
  x0: number;
}

const SHOWN_TOTALS = 6;
const NONE: never[] = [];

export class Tables {
  readonly node = h('section', { class: 'cl-tables' });

  constructor(private readonly _model: LabModel) {
    const seconds = (value: number) => (value ? formatSeconds(value) : '0');
    const storage: IColumn<IStorage>[] = [
      {
        name: trans.__('Storage'),
        of: row => storageName(row),
        node: row => storageCell(row)
      },
      {
        name: trans.__('Module'),
        of: row => row.module,
        node: row => named(row.module),
        kind: 'dim'
      },
      { name: trans.__('Category'), of: row => categoryName(row.category), kind: 'dim' },
      {
        name: trans.__('Size'),
        of: row => row.bytes,
        text: row => formatBytes(row.bytes),
        kind: 'number',
        first: 'down'
      }
    ];
    this._storages = new SortableTable<IFoundStorage>(
      trans.__('Storages, as the search finds them'),
      [
        ...storage,
        {
          name: trans.__('Away'),
          of: row => row.away_s,
          text: row => seconds(row.away_s),
          kind: 'number'
        },
        {
          name: trans.__('Dropped'),
          of: row => row.dropped_s,
          text: row => seconds(row.dropped_s),
          kind: 'number'
        },
        { name: trans.__('Transfers'), of: row => row.transfers, kind: 'number' },
        {
          name: trans.__('Stall'),
          of: row => row.stall_s,
          text: row => seconds(row.stall_s),
          kind: 'lost'
        }
      ],
      row => void _model.selectFound(row),
      row => row.uid === _model.selected?.uid
    );
    this._ops = new SortableTable<IOp>(
      trans.__('Ops, as the search finds them'),
      [
        {
          name: trans.__('Op'),
          of: row => row.op,
          text: row => `${row.step} / ${formatCount(row.op)}`,
          kind: 'number',
          first: 'up'
        },
        { name: trans.__('Name'), of: row => row.name },
        {
          name: trans.__('Module'),
          of: row => row.module,
          node: row => named(row.module),
          kind: 'dim'
        },
        { name: trans.__('Stage'), of: row => row.stage, kind: 'dim' },
        {
          name: trans.__('Time'),
          of: row => row.duration_s,
          text: row => seconds(row.duration_s),
          kind: 'number'
        },
        {
          name: trans.__('Stall'),
          of: row => row.stall_s,
          text: row => seconds(row.stall_s),
          kind: 'lost'
        }
      ],
      row => void _model.showOp(row, (_model.found?.ops.indexOf(row) ?? -1) + 1),
      row => row.row === _model.op?.row
    );
    this._alive = new SortableTable<IAliveStorage>(
      trans.__('Storages alive at the crosshair'),
      [
        storage[0],
        storage[3],
        storage[1],
        {
          name: trans.__('Where'),
          of: row => whereIs(row),
          kind: 'dim'
        },
        {
          name: trans.__('Could leave'),
          of: row => (row.can_leave ? 2 : row.in_use ? 1 : 0),
          text: row => canLeave(row)
        },
        {
          name: trans.__('Unused for'),
          of: row => row.idle_s,
          text: row => seconds(row.idle_s),
          kind: 'number'
        },
        {
          name: trans.__('Ops'),
          of: row => row.idle_ops,
          text: row => formatCount(row.idle_ops),
          kind: 'number'
        }
      ],
      row => void _model.select(row.uid),
      row => row.uid === _model.selected?.uid
    );
    this._replays = new SortableTable<IReplayRow>(
      trans.__('Replays and declined drops, of the storages that the search finds'),
      [
        {
          name: trans.__('Op'),
          of: row => row.op?.op ?? -1,
          text: row => (row.op ? `${row.op.step} / ${formatCount(row.op.op)}` : ''),
          kind: 'number',
          first: 'up'
        },
        {
          name: trans.__('Replayed'),
          of: row => `${row.declined ? '✕' : '↻'} ${shortOp(row.name)}`
        },
        {
          name: trans.__('Storage'),
          of: row => (row.storage ? storageName(row.storage) : trans.__('died before the step')),
          node: row =>
            row.storage ? storageCell(row.storage) : h('span', {}, trans.__('died before the step'))
        },
        {
          name: trans.__('Module'),
          of: row => row.storage?.module ?? '',
          node: row => named(row.storage?.module ?? ''),
          kind: 'dim'
        },
        {
          name: trans.__('Size'),
          of: row => row.storage?.bytes ?? 0,
          text: row => formatBytes(row.storage?.bytes ?? 0),
          kind: 'number'
        },
        {
          name: trans.__('Time'),
          of: row => row.duration_s,
          text: row => (row.declined ? '' : seconds(row.duration_s)),
          kind: 'number'
        },
        { name: trans.__('For'), of: row => (row.declined ? '' : shortOp(row.op?.name ?? '')) },
        { name: trans.__('Cause'), of: row => row.cause, kind: 'dim' }
      ],
      row => {
        _model.setCursor(row.x0);
        if (row.storage) {
          void _model.selectFound(row.storage);
        }
      },
      () => false
    );
    this.node.append(
      h(
        'div',
        { class: 'cl-tabs' },
        this._list,
        h('span', { class: 'cl-grow' }),
        this._said,
        this._beside
      ),
      this._body
    );
    this._aliveScroll.append(this._alive.node);
    this._addTab('storages', trans.__('Storages'));
    this._addTab('ops', trans.__('Ops'));
    this._addTab('replays', trans.__('Replays'));
    this._addTab('alive', trans.__('Why is the peak here?'));
  }

  /** Add a tab behind the others. */
  add(tab: IExtraTab): void {
    this._extra.set(tab.id, tab);
    this._addTab(tab.id, tab.name());
  }

  private _addTab(id: string, text: string): void {
    const element = h('button', { type: 'button', role: 'tab', click: () => this.show(id) }, text);
    this._tabs.set(id, element);
    this._list.append(element);
  }

  /** Bring a table to the front; the list of what is alive begins at the peak. */
  show(tab: string): void {
    this._tab = tab;
    this.onShow();
    if (tab === 'alive' && !this._model.alive) {
      void this._model.ask();
    }
    this.update();
  }

  /** Called when a table comes to the front. */
  onShow: () => void = () => undefined;

  update(): void {
    const { found } = this._model;
    if (this._model.asked !== this._lastAsked) {
      this._tab = 'alive';
      this.onShow();
    }
    this._lastAsked = this._model.asked;
    if (found?.query && found.query !== this._lastQuery && this._tab === 'alive') {
      this._tab = 'storages';
    }
    this._lastQuery = found?.query ?? '';
    if (!this.updateTabs()) {
      this._fill();
    }
    this._said.title = this._said.textContent ?? '';
  }

  private _fill(): void {
    const { found, alive } = this._model;
    this._said.textContent = tableSaid(this._tab, this._model);
    if (this._tab === 'alive') {
      this._alive.fill(alive?.storages ?? NONE);
      if (alive !== this._summed) {
        this._summed = alive;
        this._totals.replaceChildren(
          ...(alive ? [totals(alive, () => void this._model.ask())] : [])
        );
      }
      this._present(this._totals, this._aliveScroll);
    } else if (this._tab === 'replays') {
      if (found !== this._listed) {
        this._listed = found;
        this._replays.fill(replayRows(found));
      }
      this._present(this._replays.node);
    } else if (this._tab === 'ops') {
      this._ops.fill(found?.ops ?? NONE);
      this._present(this._ops.node);
    } else {
      this._storages.fill(found?.storages ?? NONE);
      this._present(this._storages.node);
    }
  }

  /** Show these elements; those that are shown stay, for what is taken out and put back loses the focus. */
  private _present(...nodes: HTMLElement[]): void {
    const { children } = this._body;
    this._body.classList.toggle('cl-body-split', nodes.length > 1);
    if (children.length !== nodes.length || nodes.some((node, i) => node !== children[i])) {
      this._body.replaceChildren(...nodes);
    }
  }

  /** Write the tabs anew; true where one in front is not of these tables. */
  updateTabs(): boolean {
    this._hideTabs();
    for (const [id, element] of this._tabs) {
      element.setAttribute('aria-selected', String(id === this._tab));
      const own = this._extra.get(id);
      if (own) {
        nameTab(element, own);
      }
    }
    const extra = this._extra.get(this._tab) ?? null;
    if (extra !== this._front) {
      this._bring(extra);
    }
    if (extra) {
      this._said.textContent = extra.said();
      this._said.title = this._said.textContent;
      this._body.classList.remove('cl-body-split');
    }
    return extra !== null;
  }

  /** Hide the tabs in which there is nothing to show. */
  private _hideTabs(): void {
    const { scene } = this._model;
    const hidden = new Set(
      [...this._extra.values()].filter(own => own.hidden?.()).map(own => own.id)
    );
    if (!hasReplays(scene)) {
      hidden.add('replays');
    }
    this._tab = tabInFront(this._tab, hidden, scene !== null);
    for (const [id, element] of this._tabs) {
      element.toggleAttribute('hidden', hidden.has(id));
    }
  }

  /** Bring another part's tab to the front; null: one of these tables. */
  private _bring(extra: IExtraTab | null): void {
    this._front?.shown(false);
    this._front = extra;
    this._body.classList.toggle('cl-body-own', extra !== null);
    this._beside.replaceChildren(...(extra?.beside ? [extra.beside] : []));
    this._body.replaceChildren(...(extra?.nodes ?? []));
    extra?.shown(true);
  }

  private _tab = 'storages';
  private _front: IExtraTab | null = null;
  private _lastAsked = 0;
  private _lastQuery = '';
  private readonly _list = h('div', { role: 'tablist' });
  private readonly _tabs = new Map<string, HTMLElement>();
  private readonly _extra = new Map<string, IExtraTab>();
  private readonly _beside = h('span', { class: 'cl-beside' });
  private readonly _said = h('span', { class: 'cl-dim', role: 'status' });
  private readonly _body = h('div', { class: 'cl-table-body' });
  private readonly _totals = h('div');
  private readonly _aliveScroll = h('div', { class: 'cl-table-scroll' });
  private _summed: IAlive | null = null;
  private _listed: ISearch | null = null;
  private readonly _storages: SortableTable<IFoundStorage>;
  private readonly _ops: SortableTable<IOp>;
  private readonly _replays: SortableTable<IReplayRow>;
  private readonly _alive: SortableTable<IAliveStorage>;
}

function nameTab(element: HTMLElement, tab: IExtraTab): void {
  const count = tab.count();
  const name = count === null ? tab.name() : `${tab.name()} ${formatCount(count)}`;
  if (element.textContent !== name) {
    element.textContent = name;
  }
}

/** A storage in a table that has a column for its module. */
function storageCell(storage: IStorage): HTMLElement {
  const name = storageName(storage);
  const mark = swatch(BANDS[bandOf(storage.category)].id);
  return named(nameBeside(name, storage.module), mark, name);
}

/** Where a storage that is alive has its bytes. */
function whereIs({ resident, dropped }: IAliveStorage): string {
  if (resident) {
    return trans.__('on the device');
  }
  return dropped ? trans.__('dropped') : trans.__('away');
}

/** Whether a storage that is alive could leave, or why it could not. */
function canLeave(row: IAliveStorage): string {
  if (row.can_leave) {
    return trans.__('yes');
  }
  if (!row.resident) {
    return row.dropped ? trans.__('is dropped') : trans.__('is away');
  }
  if (row.in_use) {
    return trans.__('in use');
  }
  return row.movable ? trans.__('too small') : trans.__('no');
}

function replayRows(found: ISearch | null): IReplayRow[] {
  return [
    ...(found?.declined ?? []).map(row => ({
      ...row,
      declined: true,
      cause: inWords(row.why),
      duration_s: 0
    })),
    ...(found?.replays ?? []).map(row => ({ ...row, declined: false }))
  ];
}

/** The first ones by what is shown of them: the bytes on the device. */
function mostOnDevice(rows: IAlive['modules']): IAlive['modules'] {
  return [...rows].sort((a, b) => b.resident_bytes - a.resident_bytes).slice(0, SHOWN_TOTALS);
}

/** The bytes alive by category and by module, as bars. */
function totals(alive: IAlive, toPeak: () => void): HTMLElement {
  const most = Math.max(
    1,
    ...[...alive.categories, ...alive.modules].map(t => t.resident_bytes + t.away_bytes)
  );
  const block = (
    name: string,
    rows: IAlive['modules'],
    words: (label: string) => string,
    hue: (label: string) => string
  ) =>
    h(
      'div',
      {},
      h('h3', {}, name),
      ...mostOnDevice(rows).map(row =>
        h(
          'div',
          { class: 'cl-total' },
          h('span', { class: 'cl-label' }, named(words(row.label))),
          h(
            'span',
            {
              class: 'cl-bar',
              style: `--cl-hue: var(--cl-${hue(row.label)})`,
              title: trans.__(
                '%1 on the device, %2 away',
                formatBytes(row.resident_bytes),
                formatBytes(row.away_bytes)
              )
            },
            h('i', { style: `width: ${(100 * row.resident_bytes) / most}%` }),
            h('i', { class: 'cl-away', style: `width: ${(100 * row.away_bytes) / most}%` })
          ),
          h('span', { class: 'cl-number' }, formatBytes(row.resident_bytes))
        )
      )
    );
  return h(
    'div',
    { class: 'cl-totals' },
    block(
      trans.__('By category'),
      alive.categories,
      label => categoryName(label),
      label => BANDS[bandOf(CATEGORIES.indexOf(label as never))].id
    ),
    block(
      trans.__('By module'),
      alive.modules,
      label => label || trans.__('outside any'),
      () => 'op1'
    ),
    button(trans.__('At the peak'), trans.__('List what is alive at the peak'), toPeak)
  );
}
