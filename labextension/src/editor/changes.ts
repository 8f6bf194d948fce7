// The draft's edits one by one, with what is wrong with each beside it; and what they change in the plan.

import { button, h, swatch } from '../dom';
import { formatBytes, formatCount } from '../format';
import type { IChangeRow } from '../protocol';
import { trans } from '../texts';
import { BANDS, bandOf, inWords } from '../words';
import { nameOf } from './decisions';
import { keepingFocus } from './focus';
import type { Editor } from './state';
import { actionMark, actionName } from './words';

export class Changes {
  readonly node = h('div', { class: 'cl-changes' });

  constructor(
    private readonly _editor: Editor,
    private readonly _show: (storage: string) => void
  ) {
    _editor.changed.connect((_, change) => {
      if (change === 'draft' || change === 'changes') {
        this.update();
      }
    });
  }

  said(): string {
    const { changes } = this._editor;
    if (!changes) {
      return '';
    }
    const [added, removed, changed] = changes.counts;
    if (!(added + removed + changed)) {
      return trans.__('The plan is the one in force');
    }
    const told = trans._n(
      '%2 decision added, %3 removed, %4 changed',
      '%2 decisions added, %3 removed, %4 changed',
      added,
      formatCount(added),
      formatCount(removed),
      formatCount(changed)
    );
    return changes.exact ? told : trans.__('%1 (estimate)', told);
  }

  update(): void {
    const { open, changes } = this._editor;
    if (!open) {
      this.node.replaceChildren();
      return;
    }
    keepingFocus(this.node, () => {
      const edits = open.edits.map((entry, index) => {
        const faults = open.findings.filter(finding => finding.index === index);
        const take = button(
          '×',
          trans.__('Take back: %1', inWords(entry.text)),
          () => void this._editor.edit('remove', [], index)
        );
        take.dataset.focus = `take-${index}`;
        take.classList.add('cl-square');
        return h(
          'li',
          { class: entry.staged ? 'cl-staged' : '' },
          h('span', { class: 'cl-dim cl-number' }, String(index + 1)),
          h(
            'div',
            {},
            h(
              'span',
              { class: entry.staged ? 'cl-draft' : '', title: entry.text },
              inWords(entry.text)
            ),
            !entry.staged && h('span', { class: 'cl-dim' }, ` ${trans.__('in force')}`),
            ...faults.map(finding =>
              h(
                'p',
                { class: finding.is_error ? 'cl-lost' : 'cl-warned' },
                h('b', {}, `${finding.fault}: `),
                // Below the floor the bar says why, once.
                finding.is_error && open.capacity_bytes < open.floor.bytes
                  ? finding.way_out
                  : `${inWords(finding.why)}; ${finding.way_out}`
              )
            )
          ),
          take
        );
      });
      this.node.replaceChildren(
        h(
          'h3',
          {},
          edits.length
            ? trans.__('Edits, in order: later ones decide over earlier ones')
            : trans.__('No edits')
        ),
        h('ol', { class: 'cl-edit-list' }, ...edits),
        ...(changes?.rows.length
          ? [h('h3', {}, trans.__('What changes in the plan')), this._rows(changes.rows)]
          : []),
        ...(changes && changes.counts.reduce((a, b) => a + b) > changes.rows.length
          ? [
              h(
                'p',
                { class: 'cl-hint' },
                trans._n(
                  'The largest %1 are listed.',
                  'The largest %1 are listed.',
                  changes.rows.length
                )
              )
            ]
          : [])
      );
    });
  }

  private _rows(rows: IChangeRow[]): HTMLElement {
    const SIGNS = { added: '+', removed: '−', changed: '~' };
    return h(
      'table',
      {},
      h(
        'caption',
        { class: 'cl-hidden' },
        trans.__('Decisions that the draft adds, removes and changes')
      ),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          ...[
            ['', ''],
            [trans.__('Storage'), ''],
            [trans.__('Module'), ''],
            [trans.__('Size'), 'cl-number'],
            [trans.__('Decision'), ''],
            [trans.__('Ops'), ''],
            [trans.__('By'), '']
          ].map(([name, kind]) => h('th', { scope: 'col', class: kind }, h('span', {}, name)))
        )
      ),
      h(
        'tbody',
        {},
        ...rows.map(row =>
          h(
            'tr',
            { click: () => this._show(row.storage) },
            h('td', { title: row.kind, class: 'cl-draft' }, SIGNS[row.kind]),
            h('td', { title: row.storage }, swatch(BANDS[bandOf(row.category)].id), nameOf(row)),
            h('td', { class: 'cl-dim' }, row.module),
            h('td', { class: 'cl-number' }, formatBytes(row.bytes)),
            h('td', {}, `${actionMark(row.action)} ${actionName(row.action)}`),
            h('td', {}, ops(row)),
            h(
              'td',
              { class: row.by === 'user' ? 'cl-draft' : 'cl-dim' },
              row.by === 'user' ? trans.__('you') : row.by
            )
          )
        )
      )
    );
  }
}

/** Out, free, in and use ops, as they were and as they will be. */
function ops(row: IChangeRow): string {
  const told = (at: [number, number, number, number] | null) =>
    at
      ? at[2] < 0
        ? trans.__('away from %1 to its end', at[1])
        : trans.__('away from %1 to %2', at[1], at[2])
      : '';
  if (row.kind !== 'changed') {
    return told(row.after ?? row.before);
  }
  const [before, after] = [told(row.before), told(row.after)];
  return before === after ? after : `${before} → ${after}`;
}
