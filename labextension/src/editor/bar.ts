// The bottom bar: what is in force, the draft and its dry run side by side, and what can be done with the draft.

import { button, h } from '../dom';
import { formatBytes } from '../format';
import type { Bindings } from '../keys/bindings';
import type { IFigures, IOpenDraft } from '../protocol';
import type { Editor } from './state';
import { atLeast, delta, FIGURES, needed, standing } from './words';

export interface IBarActions {
  save(): void;
  load(): void;
}

export class Bar {
  readonly node = h('footer', { class: 'cl-bar-bottom', 'aria-label': 'Draft', tabindex: '-1' });

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
    const { dry_run } = open;
    const tried = dry_run?.of_draft && dry_run.measured ? dry_run.measured : null;
    const all = [open.current, open.draft, tried].filter(figures => figures !== null);
    const columns = FIGURES.filter(column => !column.shown || all.some(column.shown));
    const row = (name: string, kind: string, figures: IFigures | null, against: IFigures | null) =>
      h(
        'tr',
        { class: kind },
        h('th', { scope: 'row' }, name),
        ...columns.map(column => {
          const apart = figures && against ? delta(column, against, figures) : null;
          return h(
            'td',
            { 'data-figure': column.name },
            h('span', { class: 'cl-figure' }, figures ? column.format(column.value(figures)) : '–'),
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
          h('th', { scope: 'col' }, open.exact ? 'Predicted' : 'Estimate'),
          ...columns.map(column =>
            h('th', { scope: 'col', 'data-figure': column.name }, column.name)
          )
        )
      ),
      h(
        'tbody',
        {},
        row('Current', 'cl-current', open.current, null),
        row(
          'Draft',
          open.exact ? 'cl-draft-row' : 'cl-draft-row cl-estimate',
          open.draft,
          open.current
        ),
        tried && row('Dry run', 'cl-tried', tried, open.draft)
      )
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
