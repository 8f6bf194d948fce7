// Tabs of what is summed up: the ops of a range by their name, what grows from step to step, and a person's notes.

import { counted } from '../counts';
import { button, h, named } from '../dom';
import { formatBytes, formatCount, formatSeconds } from '../format';
import type { LabModel } from '../model';
import type { IGrown, IGrowth, INote, IOpName } from '../protocol';
import { trans } from '../texts';
import { categoryName, shortOp } from '../words';
import { SortableTable } from './sortableTable';
import type { IExtraTab } from './tables';

const NONE: never[] = [];

/** The ops of the range that is brushed, summed up by name. */
export function rangeTab(model: LabModel): IExtraTab & { update(): void } {
  const seconds = (value: number) => (value ? formatSeconds(value) : '0');
  const table = new SortableTable<IOpName>(
    trans.__('Ops of the range, by name'),
    [
      { name: trans.__('Op'), of: row => row.name },
      {
        name: trans.__('Count'),
        of: row => row.count,
        text: row => formatCount(row.count),
        kind: 'number'
      },
      {
        name: trans.__('Time'),
        of: row => row.busy_s,
        text: row => seconds(row.busy_s),
        kind: 'number',
        first: 'down'
      },
      {
        name: trans.__('Mean'),
        of: row => row.busy_s / row.count,
        text: row => seconds(row.busy_s / row.count),
        kind: 'number'
      },
      {
        name: trans.__('Stall'),
        of: row => row.stall_s,
        text: row => seconds(row.stall_s),
        kind: 'lost'
      },
      {
        name: trans.__('Replays'),
        of: row => row.replay_s,
        text: row => seconds(row.replay_s),
        kind: 'number'
      },
      {
        name: trans.__('Makes'),
        of: row => row.made_bytes,
        text: row => formatBytes(row.made_bytes),
        kind: 'number'
      }
    ],
    row => void model.search(shortOp(row.name)),
    () => false
  );
  return {
    id: 'range',
    name: () => trans.__('Range'),
    count: () => null,
    nodes: [h('div', { class: 'cl-own-scroll' }, table.node)],
    hidden: () => model.brush === null,
    said: () =>
      model.summary
        ? trans._n(
            '%2 of %3 names in %4; a click searches',
            '%2 of %3 names in %4; a click searches',
            model.summary.op_names.length,
            counted.ops(model.summary.ops),
            formatCount(model.summary.op_names.length),
            formatSeconds(model.summary.duration_s)
          )
        : trans.__('Summing up…'),
    shown: () => undefined,
    update: () => table.fill(model.summary?.op_names ?? NONE)
  };
}

/** What has not stopped growing over the recorded steps. */
export class GrowthTab {
  constructor(private readonly _model: LabModel) {
    this._table = new SortableTable<IGrown>(
      trans.__('What grows from step to step'),
      [
        { name: trans.__('Made by'), of: row => row.origin, node: row => named(originName(row)) },
        {
          name: trans.__('Line'),
          of: row => row.stack[0] ?? '',
          node: row => h('span', { title: row.stack.join('\n') }, shortFrame(row.stack[0] ?? '–')),
          kind: 'dim'
        },
        { name: trans.__('Category'), of: row => categoryName(row.category), kind: 'dim' },
        {
          name: trans.__('A step'),
          of: row => row.bytes_per_step,
          text: row => `+${formatBytes(row.bytes_per_step)}`,
          kind: 'number',
          first: 'down'
        },
        {
          name: trans.__('Now'),
          of: row => row.bytes[row.bytes.length - 1],
          text: row => formatBytes(row.bytes[row.bytes.length - 1]),
          kind: 'number'
        },
        {
          name: trans.__('Storages'),
          of: row => row.counts[row.counts.length - 1],
          kind: 'number'
        },
        { name: trans.__('By step'), of: row => row.bytes_per_step, node: row => bars(row.bytes) }
      ],
      row => void _model.select(row.uid, true),
      row => row.uid === _model.selected?.uid
    );
  }

  get tab(): IExtraTab {
    return {
      id: 'growth',
      name: () => trans.__('Growth'),
      count: () => null,
      nodes: [h('div', { class: 'cl-own-scroll' }, this._table.node, this._empty)],
      said: () => growthWords(this._found),
      shown: on => {
        this._isShown = on;
        this.update();
      }
    };
  }

  /** Called when there is something new to say. */
  onNews: () => void = () => undefined;

  update(): void {
    const { steps, status } = this._model;
    const source = steps?.source;
    const own = status?.session?.source === source ? status?.session?.step_count : 0;
    const wanted = `${source} ${own}`;
    if (this._isShown && source && wanted !== this._wanted) {
      this._wanted = wanted;
      void this._ask(source);
    }
  }

  private async _ask(source: string): Promise<void> {
    const turn = ++this._turn;
    const answer = await this._model.request('growth', { source });
    if (answer && turn === this._turn) {
      this._found = answer.result;
      this._table.fill(this._found.rows);
      this._table.node.hidden = !this._found.rows.length;
      this._empty.hidden = this._found.rows.length > 0;
      this._empty.textContent =
        this._found.steps.length < 2
          ? trans.__('Growth is told of two recorded steps or more.')
          : trans.__('Nothing that a step leaves behind has grown in every step.');
      this.onNews();
    }
  }

  private _turn = 0;
  private _isShown = false;
  private _wanted = '';
  private _found: IGrowth | null = null;
  private readonly _table: SortableTable<IGrown>;
  private readonly _empty = h(
    'p',
    { class: 'cl-hint cl-none' },
    trans.__('Looking at the recorded steps…')
  );
}

/** What has grown, in words. */
export function growthWords(found: IGrowth | null): string {
  if (!found || found.steps.length < 2) {
    return '';
  }
  const [first, last] = [found.bytes[0], found.bytes[found.bytes.length - 1]];
  const change = last - first;
  const by = `${change < 0 ? '−' : '+'}${formatBytes(Math.abs(change))}`;
  return trans.__(
    '%1 left when a step ends, %2 from step %3 to %4',
    formatBytes(last),
    by,
    found.steps[0],
    found.steps[found.steps.length - 1]
  );
}

/** An origin without the line, which has a column of its own. */
export function originName({ origin, stack }: Pick<IGrown, 'origin' | 'stack'>): string {
  const name = stack.length ? origin.replace(` at ${stack[0]}`, '') : origin;
  return name.replace(/^\//, '');
}

function shortFrame(frame: string): string {
  const [where, name] = frame.replace(/^.*\/(?=[^/]+$)/, '').split(' ');
  return name ? `${name} ${where}` : where;
}

function bars(values: number[]): HTMLElement {
  const most = Math.max(1, ...values);
  return h(
    'span',
    { class: 'cl-spark', title: values.map(formatBytes).join(', ') },
    ...values.map(value => h('i', { style: `height: ${Math.max(1, (14 * value) / most)}px` }))
  );
}

/** The notes in the drawn steps. */
export function notesTab(model: LabModel): IExtraTab & { update(): void } {
  const table = new SortableTable<INote>(
    trans.__('Notes'),
    [
      {
        name: trans.__('Op'),
        of: row => row.op,
        text: row => `${row.step} / ${formatCount(row.op)}`,
        kind: 'number'
      },
      {
        name: trans.__('Note'),
        of: row => row.text,
        node: row => h('span', { class: 'cl-note' }, row.text)
      },
      {
        name: trans.__('Forget'),
        of: row => row.index,
        node: row => {
          const forget = button(
            '×',
            trans.__('Forget the note: %1', row.text),
            () => undefined,
            'cl-square'
          );
          forget.setAttribute('aria-label', forget.title);
          forget.tabIndex = -1;
          forget.addEventListener('click', event => {
            event.stopPropagation();
            void model.forgetNote(row.index);
          });
          return forget;
        }
      }
    ],
    row => model.goTo(row.at[model.axis]),
    () => false
  );
  return {
    id: 'notes',
    name: () => trans.__('Notes'),
    count: () => model.notes.length || null,
    nodes: [h('div', { class: 'cl-own-scroll' }, table.node)],
    hidden: () => !model.notes.length,
    said: () =>
      trans._n(
        '%2 note in what is drawn; Save… writes them into the trace',
        '%2 notes in what is drawn; Save… writes them into the trace',
        model.notes.length,
        formatCount(model.notes.length)
      ),
    shown: () => undefined,
    update: () => table.fill(model.notes)
  };
}
