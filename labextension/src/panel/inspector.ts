// What is selected: a storage, what made it, what used and moved it; and the figures of a brushed range.

import { counted } from '../counts';
import { button, h, swatch } from '../dom';
import { formatBytes, formatCount, formatPercent, formatSeconds } from '../format';
import type { Bindings } from '../keys/bindings';
import type { LabModel } from '../model';
import {
  CATEGORIES,
  type IBoxed,
  type IStorage,
  type IStorageDetail,
  type ISummary,
  type ITotal,
  type ITouchingOp
} from '../protocol';
import { trans } from '../texts';
import { formatAt } from '../timeline/scale';
import { opPlace, opTime } from '../timeline/tip';
import {
  BANDS,
  bandOf,
  categoryName,
  ownFrames,
  placedName,
  stallPart,
  storageName
} from '../words';
import { lifeEvents } from './lifeEvents';

const SHOWN_EVENTS = 60;
const SHOWN_FRAMES = 12;
const SHOWN_BOXED = 15;
const SHOWN_TOTALS = 6;

export class Inspector {
  readonly node = h('aside', { class: 'cl-inspector', 'aria-label': trans.__('Selection') });
  /** What happened to the selected storage; apart, so that what can be decided about it stands before. */
  readonly story = h('section', {
    class: 'cl-story',
    'aria-label': trans.__('Life of the selected storage')
  });

  constructor(
    private readonly _model: LabModel,
    private readonly _zoom: () => void,
    private readonly _keys: Bindings
  ) {}

  update(): void {
    const { summary, selected, brush, box, boxed, op, drawn, axis } = this._model;
    const shown = [summary, selected, brush, box, boxed, op, drawn, axis];
    if (shown.every((part, i) => part === this._shown[i]) && this._shown.length) {
      return; // or a link that is pressed, or has the focus, would be taken away by each step that ends
    }
    this._shown = shown;
    this.story.hidden = !selected;
    this.story.replaceChildren(...(selected ? this._life(selected) : []));
    const predicted = h('p', { class: 'cl-draft' }, trans.__('Of the draft, predicted'));
    this.node.replaceChildren(
      ...(drawn === 'draft' ? [predicted] : []),
      ...(brush ? [this._range(summary)] : []),
      ...(box ? [this._box(boxed)] : []),
      ...(op ? [this._op(op)] : []),
      ...(selected
        ? [this._storage(selected)]
        : [
            h(
              'p',
              { class: 'cl-hint' },
              trans.__(
                'Click a block, an op, a transfer or a stall to see its storage. Shift+drag sums up a range, Alt+drag lists what lies in a box of the block map. Click in the resident track to see what is alive there.'
              )
            )
          ])
    );
  }

  private _shown: unknown[] = [];

  /** A section under its title, with a button that forgets what it is about. */
  private _section(title: HTMLElement, hint: string, forget: () => void): HTMLElement {
    return h(
      'section',
      {},
      h(
        'div',
        { class: 'cl-row' },
        title,
        h('span', { class: 'cl-grow' }),
        button(trans.__('Clear'), this._keys.hint(hint, 'clear'), forget)
      )
    );
  }

  private _range(summary: ISummary | null): HTMLElement {
    const node = this._section(
      h('h2', {}, trans.__('Range')),
      trans.__('Forget the range'),
      () => void this._model.summarize(null)
    );
    if (!summary) {
      node.append(h('p', { class: 'cl-hint' }, trans.__('Summing up…')));
      return node;
    }
    const causes = Object.entries(summary.stall_causes).map(
      ([cause, s]) => `${cause} ${formatSeconds(s)}`
    );
    const parts = Object.entries(summary.stall_parts)
      .sort(([, a], [, b]) => b - a)
      .map(([part, s]) => `${stallPart(part)} ${formatSeconds(s)}`);
    node.append(
      facts([
        [trans.__('Length'), `${formatSeconds(summary.duration_s)}, ${counted.ops(summary.ops)}`],
        [
          trans.__('Moved'),
          trans.__('%1 out, %2 in', formatBytes(summary.out_bytes), formatBytes(summary.in_bytes))
        ],
        [
          trans.__('Transfers'),
          trans.__('%1 out, %2 in', summary.transfers[0], summary.transfers[1])
        ],
        [
          trans.__('Overlap'),
          summary.overlap === null ? trans.__('–, nothing moved') : formatPercent(summary.overlap)
        ],
        [
          trans.__('Stalls'),
          summary.stalls
            ? `${formatCount(summary.stalls)}, ${formatSeconds(summary.stall_s)}${causes.length ? ` (${causes.join(', ')})` : ''}`
            : trans._p('stalls', 'none')
        ],
        ...(parts.length ? [[trans.__('· why'), parts.join(', ')] as [string, string]] : []),
        ...(summary.replays
          ? [
              [
                trans.__('Replays'),
                trans.__(
                  '%1, %2, %3 made again',
                  formatCount(summary.replays),
                  formatSeconds(summary.replay_s),
                  formatBytes(summary.replayed_bytes)
                )
              ] as [string, string]
            ]
          : []),
        [trans.__('Peak'), formatBytes(summary.peak_bytes)]
      ])
    );
    if (summary.storages.length) {
      const list = h('ul', { class: 'cl-list' });
      for (const storage of summary.storages) {
        list.append(this._link(storage, formatBytes(storage.moved_bytes)));
      }
      node.append(h('h3', {}, trans.__('Moved most')), list);
    }
    if (summary.modules.length) {
      const list = h('ul', { class: 'cl-list' });
      for (const { module, busy_s } of summary.modules) {
        list.append(
          h(
            'li',
            {},
            h('span', { class: 'cl-mono' }, module || trans.__('outside any')),
            h('span', { class: 'cl-number' }, formatSeconds(busy_s))
          )
        );
      }
      node.append(h('h3', {}, trans.__('Modules by op time')), list);
    }
    return node;
  }

  private _box(boxed: IBoxed | null): HTMLElement {
    const node = this._section(
      h('h2', {}, trans.__('Box')),
      trans.__('Forget the box'),
      () => void this._model.enclose(null)
    );
    if (!boxed) {
      node.append(h('p', { class: 'cl-hint' }, trans.__('Listing what lies inside…')));
      return node;
    }
    node.append(
      facts([
        [trans.__('Inside'), `${counted.storages(boxed.count)}, ${formatBytes(boxed.bytes)}`],
        [
          trans.__('Away'),
          boxed.away_bytes
            ? trans.__('%1 of it, all the while', formatBytes(boxed.away_bytes))
            : trans.__('none all the while')
        ]
      ])
    );
    const byCategory = boxed.categories.map(row => {
      const band = BANDS[bandOf(CATEGORIES.indexOf(row.label as never))].id;
      return totalLine(row, swatch(band), h('span', {}, categoryName(row.label)));
    });
    const byModule = boxed.modules.map(row =>
      totalLine(row, h('span', { class: 'cl-mono' }, row.label || trans.__('outside any')))
    );
    for (const [title, lines] of [
      [trans.__('By category'), byCategory],
      [trans.__('By module'), byModule]
    ] as const) {
      node.append(
        h('h3', {}, title),
        h('ul', { class: 'cl-list' }, ...lines.slice(0, SHOWN_TOTALS))
      );
      if (lines.length > SHOWN_TOTALS) {
        node.append(h('p', { class: 'cl-hint' }, trans.__('%1 more', lines.length - SHOWN_TOTALS)));
      }
    }
    const list = h('ul', { class: 'cl-list' });
    for (const storage of boxed.storages.slice(0, SHOWN_BOXED)) {
      list.append(this._link(storage, formatBytes(storage.bytes)));
    }
    node.append(h('h3', {}, trans.__('Storages, largest first')), list);
    if (boxed.count > SHOWN_BOXED) {
      node.append(
        h('p', { class: 'cl-hint' }, trans.__('%1 more', formatCount(boxed.count - SHOWN_BOXED)))
      );
    }
    return node;
  }

  /** One line of a list: a storage that can be selected, and a figure. */
  private _link(storage: IStorage, figure: string): HTMLElement {
    return h(
      'li',
      {},
      swatch(BANDS[bandOf(storage.category)].id),
      h(
        'button',
        { class: 'cl-link', type: 'button', click: () => void this._model.select(storage.uid) },
        placedName(storage)
      ),
      h('span', { class: 'cl-number' }, figure)
    );
  }

  private _op(op: ITouchingOp): HTMLElement {
    const title = h('h2', { class: 'cl-title', title: op.name }, op.name);
    const node = this._section(title, trans.__('Forget the op'), () => this._model.tell(null));
    node.append(
      facts([
        [trans.__('Module'), op.module || trans.__('outside any')],
        [trans.__('Stage'), opPlace(op)],
        [trans.__('Time'), opTime(op)],
        [
          trans.__('Touches'),
          `${counted.storages(op.touches.count)}, ${formatBytes(op.touches.bytes)}`
        ]
      ])
    );
    const list = h('ul', { class: 'cl-list' });
    for (const storage of op.touches.storages) {
      list.append(this._link(storage, formatBytes(storage.bytes)));
    }
    node.append(list);
    if (op.touches.count > op.touches.storages.length) {
      const left = op.touches.count - op.touches.storages.length;
      node.append(h('p', { class: 'cl-hint' }, trans.__('%1 more', formatCount(left))));
    }
    node.append(...stack(trans.__('Python stack'), op.stack));
    return node;
  }

  private _storage(storage: IStorageDetail): HTMLElement {
    const band = BANDS[bandOf(storage.category)].id;
    const unit = (length: number) =>
      this._model.axis === 'time' ? formatSeconds(length) : counted.ops(Math.round(length));
    const stretches = (all: [number, number][]) =>
      all.length
        ? trans._n(
            '%3 in %2 stretch',
            '%3 in %2 stretches',
            all.length,
            formatCount(all.length),
            unit(all.reduce((sum, [start, end]) => sum + end - start, 0))
          )
        : trans.__('never');
    const seconds = (all: { duration_s: number }[]) =>
      formatSeconds(all.reduce((sum, one) => sum + one.duration_s, 0));
    return h(
      'section',
      {},
      h(
        'div',
        { class: 'cl-row' },
        swatch(band),
        h('h2', { class: 'cl-title', title: storageName(storage) }, storageName(storage)),
        h('span', { class: 'cl-grow' }),
        button(
          trans.__('Zoom'),
          this._keys.hint(trans.__('Zoom to its life'), 'show-selected'),
          this._zoom
        )
      ),
      storage.module && h('div', { class: 'cl-mono cl-dim' }, storage.module),
      facts([
        [trans.__('Bytes'), formatBytes(storage.bytes)],
        ...(storage.form ? [[trans.__('Tensor'), storage.form] as [string, string]] : []),
        [trans.__('Category'), categoryName(storage.category)],
        [
          trans.__('Storage'),
          storage.movable ? `#${storage.uid}` : trans.__('#%1, may not leave', storage.uid)
        ],
        [trans.__('Life'), unit(storage.x1 - storage.x0)],
        [trans.__('Away'), stretches(storage.away)],
        ...(storage.dropped.length || storage.replays.length
          ? ([
              [trans.__('Dropped'), stretches(storage.dropped)],
              [
                trans.__('Replays'),
                `${counted.ops(storage.replays.length)}, ${seconds(storage.replays)}`
              ]
            ] as [string, string][])
          : []),
        [
          trans.__('Stalls'),
          storage.stalls.length ? seconds(storage.stalls) : trans._p('stalls', 'none')
        ]
      ])
    );
  }

  private _life(storage: IStorageDetail): HTMLElement[] {
    const events = lifeEvents(storage);
    const list = h('ol', { class: 'cl-events' });
    const shown = events.slice(0, SHOWN_EVENTS);
    const span = spanOf(
      shown.map(({ x }) => x),
      this._model.length
    );
    for (const { x, mark, text, detail, isLoss } of shown) {
      const at =
        this._model.axis === 'time'
          ? formatAt(x, span)
          : trans.__('op %1', formatCount(Math.floor(x)));
      list.append(
        h(
          'li',
          { class: isLoss ? 'cl-lost' : '' },
          h('span', { 'aria-hidden': 'true' }, mark),
          h('span', {}, text, ' ', h('span', { class: 'cl-dim' }, detail)),
          h('span', { class: 'cl-number' }, at)
        )
      );
    }
    const nodes: HTMLElement[] = [
      h('h3', {}, trans.__('Life')),
      events.length
        ? list
        : h('p', { class: 'cl-hint' }, trans.__('Nothing uses or moves it here.'))
    ];
    if (events.length > SHOWN_EVENTS || storage.use_count > storage.uses.length) {
      const left = events.length - SHOWN_EVENTS + storage.use_count - storage.uses.length;
      nodes.push(h('p', { class: 'cl-hint' }, trans.__('%1 more', formatCount(left))));
    }
    if (storage.born) {
      nodes.push(...stack(trans.__('Python stack of its making'), storage.born.stack));
    }
    return nodes;
  }
}

/** How closely to tell times of an axis of this length apart, as the span of a drawing that would: see `formatAt`. */
export function spanOf(times: number[], length: number): number {
  let least = length / 1000;
  for (let i = 1; i < times.length; i++) {
    if (times[i] > times[i - 1]) {
      least = Math.min(least, times[i] - times[i - 1]);
    }
  }
  return Math.max(least * 1000, length / 50);
}

function totalLine(total: ITotal, ...label: Node[]): HTMLElement {
  const figure = formatBytes(total.resident_bytes + total.away_bytes);
  return h('li', {}, ...label, h('span', { class: 'cl-number' }, figure));
}

/** A stack's own frames, or how to record one. */
function stack(title: string, frames: string[]): HTMLElement[] {
  if (!frames.length) {
    const text = trans.__(
      'No Python stacks: start the session with %1, or %2.',
      'stacks=True',
      '--stacks'
    );
    return [h('p', { class: 'cl-hint' }, text)];
  }
  const own = ownFrames(frames);
  const shown = (own.length ? own : frames).slice(0, SHOWN_FRAMES);
  const nodes: HTMLElement[] = [
    h('h3', {}, title),
    h(
      'ol',
      { class: 'cl-stack' },
      ...shown.map(frame => h('li', { title: frame }, frame.replace(/^.*\/(?=[^/]+$)/, '')))
    )
  ];
  const hidden = frames.length - shown.length;
  if (hidden > 0) {
    nodes.push(
      h('p', { class: 'cl-hint' }, trans._n('%1 frames hidden', '%1 frames hidden', hidden))
    );
  }
  return nodes;
}

function facts(rows: [string, string][]): HTMLElement {
  const list = h('dl', { class: 'cl-facts' });
  for (const [name, value] of rows) {
    list.append(h('dt', {}, name), h('dd', {}, value));
  }
  return list;
}
