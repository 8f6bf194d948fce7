// The draft's edits one by one, with what is wrong with each beside it; and what they change in the plan.

import { button, h, swatch } from '../dom';
import { formatBytes, formatCount, plural } from '../format';
import type { IChangeRow } from '../protocol';
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
    return added + removed + changed
      ? `${plural(added, 'decision')} added, ${formatCount(removed)} removed, ${formatCount(changed)} changed${changes.exact ? '' : ' (estimate)'}`
      : 'The plan is the one in force';
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
          `Take back: ${inWords(entry.text)}`,
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
            !entry.staged && h('span', { class: 'cl-dim' }, ' in force'),
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
          edits.length ? 'Edits, in order: later ones decide over earlier ones' : 'No edits'
        ),
        h('ol', { class: 'cl-edit-list' }, ...edits),
        ...(changes?.rows.length
          ? [h('h3', {}, 'What changes in the plan'), this._rows(changes.rows)]
          : []),
        ...(changes && changes.counts.reduce((a, b) => a + b) > changes.rows.length
          ? [h('p', { class: 'cl-hint' }, `The largest ${changes.rows.length} are listed.`)]
          : [])
      );
    });
  }

  private _rows(rows: IChangeRow[]): HTMLElement {
    const SIGNS = { added: '+', removed: '−', changed: '~' };
    return h(
      'table',
      {},
      h('caption', { class: 'cl-hidden' }, 'Decisions that the draft adds, removes and changes'),
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          ...['', 'Storage', 'Module', 'Size', 'Decision', 'Ops', 'By'].map(name =>
            h(
              'th',
              { scope: 'col', class: name === 'Size' ? 'cl-number' : '' },
              h('span', {}, name)
            )
          )
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
              row.by === 'user' ? 'you' : row.by
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
    at ? `away from ${at[1]} to ${at[2] < 0 ? 'its end' : at[2]}` : '';
  if (row.kind !== 'changed') {
    return told(row.after ?? row.before);
  }
  const [before, after] = [told(row.before), told(row.after)];
  return before === after ? after : `${before} → ${after}`;
}
