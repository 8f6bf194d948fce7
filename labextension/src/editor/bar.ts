// The bottom bar: what is in force, the draft and its dry run side by side, and what can be done with the draft.

import { button, h } from '../dom';
import { orNothing } from '../format';
import type { Bindings } from '../keys/bindings';
import type { IOpenDraft } from '../protocol';
import { trans } from '../texts';
import { type BarButton, barState, type IButtonState, isRunning } from './barState';
import type { Editor } from './state';
import { atLeast, delta, FIGURES, type IVersus, needed, versus } from './words';

export interface IBarActions {
  save(): void;
  load(): void;
}

export class Bar {
  readonly node = h('section', {
    class: 'cl-bar-bottom',
    'aria-label': trans.__('Draft'),
    tabindex: '-1'
  });

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
    this._of = {
      lift: act('', trans.__('The least that the draft can run this step in'), () => {
        const { open } = _editor;
        if (open) {
          void _editor.setCapacity(atLeast(needed(open)));
        }
      }),
      undo: act('↶', trans.__('Undo'), () => void _editor.edit('undo'), 'cl-square'),
      redo: act('↷', trans.__('Redo'), () => void _editor.edit('redo'), 'cl-square'),
      discard: act(
        trans.__('Discard'),
        trans.__('Back to the edits in force; can be undone'),
        () => void _editor.edit('discard')
      ),
      load: act(trans.__('Load…'), trans.__('Take the edits of a policy file'), actions.load),
      save: act(trans.__('Save…'), trans.__('Write the policy to a file'), actions.save),
      rollBack: act(
        trans.__('Roll back'),
        trans.__('Use what was in force before'),
        () => void _editor.rollBack()
      ),
      dryRun: act(trans.__('Dry run 1 step'), '', () => this._try()),
      enable: act(trans.__('Enable'), '', () => void _editor.enable())
    };
    keys.follow(() => {
      this._of.undo.title = keys.hint(trans.__('Undo'), 'undo');
      this._of.redo.title = keys.hint(trans.__('Redo'), 'redo');
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
    const { text, kind, buttons } = barState(open, said, busy);
    this._say(text, kind);
    for (const [name, state] of Object.entries(buttons)) {
      this._apply(this._of[name as BarButton], state);
    }
  }

  private _apply(element: HTMLButtonElement, state: IButtonState): void {
    if (state.text !== undefined) {
      element.textContent = state.text;
    }
    if (state.title !== undefined) {
      element.title = state.title;
    }
    element.hidden = state.hidden ?? false;
    element.classList.toggle('cl-primary', state.primary ?? false);
    this._enabled(element, state.enabled);
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
    void (open && isRunning(open) ? this._editor.endDryRun() : this._editor.dryRun());
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
            { 'data-figure': column.id },
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
            open.exact
              ? trans.__('Predicted, %1', open.clock)
              : trans.__('Estimate, %1', open.clock)
          ),
          ...columns.map(column =>
            h(
              'th',
              {
                scope: 'col',
                'data-figure': column.id,
                title: column.hint?.() ?? ''
              },
              column.name()
            )
          )
        )
      ),
      h('tbody', {}, ...rows.map(row))
    );
  }

  private readonly _table = h('table', {
    class: 'cl-versus',
    'aria-label': trans.__('In force beside the draft')
  });
  private readonly _standing = h('p', {
    class: 'cl-standing',
    role: 'status',
    'aria-live': 'polite'
  });
  private readonly _buttons = h('div', { class: 'cl-actions' });
  private readonly _of: Record<BarButton, HTMLButtonElement>;
}
