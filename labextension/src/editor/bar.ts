// The bottom bar: what is in force, the draft and its dry run side by side, and what can be done with the draft.

import { button, h } from '../dom';
import { formatBytes, orNothing } from '../format';
import type { Bindings } from '../keys/bindings';
import type { IOpenDraft } from '../protocol';
import { OVERLAP } from '../words';
import type { Editor } from './state';
import { atLeast, delta, FIGURES, type IVersus, needed, standing, versus } from './words';

export interface IBarActions {
  save(): void;
  load(): void;
}

export class Bar {
  readonly node = h('section', { class: 'cl-bar-bottom', 'aria-label': 'Draft', tabindex: '-1' });

  constructor(
    private readonly _editor: Editor,
    actions: IBarActions,
    keys: Bindings
  ) {
    const act = (text: string, title: string, run: () => void, kind = '') => {
      const element = button(text, title, run, kind);
      this._buttons.append(element);
      return element;
    };
    this._lift = act('', 'The least that the draft can run this step in', () => {
      const { open } = _editor;
      if (open) {
        void _editor.setCapacity(atLeast(needed(open)));
      }
    });
    this._undo = act('↶', 'Undo', () => void _editor.edit('undo'), 'cl-square');
    this._redo = act('↷', 'Redo', () => void _editor.edit('redo'), 'cl-square');
    this._discard = act(
      'Discard',
      'Back to the edits in force; can be undone',
      () => void _editor.edit('discard')
    );
    this._load = act('Load…', 'Take the edits of a policy file', actions.load);
    this._save = act('Save…', 'Write the policy to a file', actions.save);
    this._rollBack = act(
      'Roll back',
      'Use what was in force before',
      () => void _editor.rollBack()
    );
    this._dryRun = act('Dry run 1 step', '', () => this._try());
    this._enable = act('Enable', '', () => void _editor.enable());
    keys.follow(() => {
      this._undo.title = keys.hint('Undo', 'undo');
      this._redo.title = keys.hint('Redo', 'redo');
    });
    this.node.append(
      this._table,
      h('div', { class: 'cl-bar-side' }, this._standing, this._buttons)
    );
    _editor.changed.connect((_, change) => {
      if (change === 'draft') {
        this.update();
      }
    });
    this.update();
  }

  update(): void {
    const { draft, open, busy, said } = this._editor;
    this.node.hidden = !draft;
    if (!draft) {
      return;
    }
    if (!open) {
      this._table.replaceChildren();
      this._say(draft.why, 'dim');
      this._buttons.hidden = true;
      return;
    }
    this._buttons.hidden = false;
    this._fill(open);
    const { text, kind } = standing(open);
    this._say(said ? `${said} ${text}` : text, kind);
    const running = open.dry_run !== null && !open.dry_run.done;
    const may = open.fits && !open.why_not_enable && !busy;
    const least = needed(open);
    const below = open.capacity_bytes < least;
    this._lift.hidden = !below;
    this._lift.textContent = `Set capacity to ${formatBytes(atLeast(least))}`;
    this._lift.classList.toggle('cl-primary', below);
    this._enabled(this._lift, below && !busy);
    const tried = Boolean(open.dry_run?.done && open.dry_run.of_draft && open.dry_run.measured);
    this._enabled(this._undo, open.can_undo && !busy);
    this._enabled(this._redo, open.can_redo && !busy);
    this._enabled(this._discard, !open.same && !busy);
    this._enabled(this._load, !busy);
    this._enabled(this._save, open.fits && !busy);
    this._enabled(this._rollBack, open.can_roll_back && !busy);
    this._rollBack.hidden = !open.can_roll_back;
    this._dryRun.textContent = running ? 'Stop the dry run' : 'Dry run 1 step';
    this._enabled(this._dryRun, running || (may && open.exact && !open.same));
    this._enabled(this._enable, may && open.exact && !open.same);
    this._dryRun.title = open.why_not_enable || 'Try the draft for the next steps, and go back';
    this._enable.title = open.why_not_enable || 'Use the draft from the next step border on';
    this._dryRun.classList.toggle('cl-primary', !tried && !this._dryRun.disabled && !running);
    this._enable.classList.toggle('cl-primary', tried && !this._enable.disabled);
  }

  private _enabled(element: HTMLButtonElement, on: boolean): void {
    if (!on && document.activeElement === element) {
      // A button that turns off would drop the focus to the page: the panel's keys go on working.
      this.node.focus();
    }
    element.disabled = !on;
  }

  private _try(): void {
    const { open } = this._editor;
    void (open?.dry_run && !open.dry_run.done ? this._editor.endDryRun() : this._editor.dryRun());
  }

  private _say(text: string, kind: string): void {
    const mark = { good: '✓ ', lost: '! ', draft: '', dim: '' }[kind] ?? '';
    this._standing.className = `cl-standing cl-said-${kind}`;
    const whole = mark + text;
    if (this._standing.textContent !== whole) {
      this._standing.textContent = whole;
      this._standing.title = whole;
    }
  }

  private _fill(open: IOpenDraft): void {
    const rows = versus(open);
    const all = rows.map(({ figures }) => figures).filter(figures => figures !== null);
    const columns = FIGURES.filter(column => !column.shown || all.some(column.shown));
    const row = ({ name, kind, figures, against, title }: IVersus) =>
      h(
        'tr',
        { class: kind },
        h('th', { scope: 'row', title }, name),
        ...columns.map(column => {
          const apart = figures && against ? delta(column, against, figures) : null;
          const value = figures ? column.value(figures) : null;
          return h(
            'td',
            { 'data-figure': column.name },
            h('span', { class: 'cl-figure' }, orNothing(value, column.format)),
            h('span', { class: `cl-delta cl-${apart?.kind ?? 'dim'}` }, apart?.text ?? '')
          );
        })
      );
    this._table.replaceChildren(
      h(
        'thead',
        {},
        h(
          'tr',
          {},
          h(
            'th',
            { scope: 'col', class: 'cl-clock', title: open.clock },
            `${open.exact ? 'Predicted' : 'Estimate'}, ${open.clock}`
          ),
          ...columns.map(column =>
            h(
              'th',
              {
                scope: 'col',
                'data-figure': column.name,
                title: column.name === 'Overlap' ? OVERLAP : ''
              },
              column.name
            )
          )
        )
      ),
      h('tbody', {}, ...rows.map(row))
    );
  }

  private readonly _table = h('table', {
    class: 'cl-versus',
    'aria-label': 'In force beside the draft'
  });
  private readonly _standing = h('p', {
    class: 'cl-standing',
    role: 'status',
    'aria-live': 'polite'
  });
  private readonly _buttons = h('div', { class: 'cl-actions' });
  private readonly _lift: HTMLButtonElement;
  private readonly _undo: HTMLButtonElement;
  private readonly _redo: HTMLButtonElement;
  private readonly _discard: HTMLButtonElement;
  private readonly _load: HTMLButtonElement;
  private readonly _save: HTMLButtonElement;
  private readonly _rollBack: HTMLButtonElement;
  private readonly _dryRun: HTMLButtonElement;
  private readonly _enable: HTMLButtonElement;
}
