// The policy editor's parts, and how they hang together with the rest of the panel.

import { Dialog, InputDialog, showDialog } from '@jupyterlab/apputils';

import { button, h } from '../dom';
import { formatCount } from '../format';
import type { Bindings } from '../keys/bindings';
import type { LabModel } from '../model';
import type { Tables } from '../panel/tables';
import type { IOpenDraft } from '../protocol';
import { trans } from '../texts';
import { explained } from '../words';
import { Bar } from './bar';
import { Cards } from './cards';
import { Changes } from './changes';
import { Curve } from './curve';
import { DecisionTable, LEAD, nameOf } from './decisions';
import { type IStore, Keeper } from './keeper';
import { type IMenuItem, openMenu } from './menu';
import { Rules } from './rules';
import { Editor, NEVER_REPLAY } from './state';
import { actionName } from './words';

export class EditorView {
  constructor(
    private readonly _model: LabModel,
    private readonly _host: HTMLElement,
    store: IStore | null,
    private readonly _notebook: () => string,
    focusTimeline: () => void,
    private readonly _keys: Bindings
  ) {
    const editor = new Editor(new Keeper(store));
    this.editor = editor;
    this.table = new DecisionTable(
      editor,
      {
        show: storage => void this.show(storage),
        menu: (storage, x, y) => this.menu(storage, x, y),
        leave: focusTimeline
      },
      _keys
    );
    this.cards = new Cards(
      editor,
      module => this._ruleFor(module),
      () => _model.selected?.key ?? null,
      _keys
    );
    this.curve = new Curve(editor);
    const files = { save: () => void this._save(), load: () => void this._load() };
    this.bar = new Bar(editor, files, _keys);
    this._rules = new Rules(editor);
    this._changes = new Changes(editor, storage => void this.show(storage));
    editor.changed.connect((_, change) => {
      if (change === 'draft') {
        this._drawDraft();
      }
      if (change === 'draft' || change === 'rows' || change === 'changes') {
        this._update();
      }
    });
    _model.changed.connect(this._follow, this);
    _model.onNews = (name, body) => {
      if (name === 'draft') {
        editor.heard(body as { source?: unknown; news?: unknown });
      }
    };
    this._follow();
  }

  readonly editor: Editor;
  readonly table: DecisionTable;
  readonly cards: Cards;
  readonly curve: Curve;
  readonly bar: Bar;
  /** What is said above everything else: of kept drafts, of other plans, and of what went wrong. */
  readonly banner = h('div', { class: 'cl-offer', hidden: true, role: 'status' });

  /** Give the tables the editor's own tabs. */
  addTabs(tables: Tables): void {
    this._tables = tables;
    tables.add({
      id: 'decisions',
      name: () => trans.__('Decisions'),
      count: () => this.editor.open?.rows ?? null,
      nodes: [this._rules.node, this.table.node],
      beside: this.table.filter,
      said: () => this.table.said(),
      shown: () => this.table.reveal()
    });
    tables.add({
      id: 'changes',
      name: () => trans.__('Changes'),
      count: () => this.editor.open?.staged || null,
      nodes: [this._changes.node],
      said: () => this._changes.said(),
      shown: on => {
        this.editor.wantsChanges = on;
        if (on) {
          void this.editor.askChanges();
        }
      }
    });
  }

  dispose(): void {
    this._model.changed.disconnect(this._follow, this);
    this.table.dispose();
    this.curve.dispose();
    this.editor.dispose();
  }

  /** Look at the kernel's draft of what is drawn, and at the storage that is selected. */
  private _follow(): void {
    const { client, steps, selected, status } = this._model;
    const source = steps?.source ?? null;
    const kind = source?.startsWith('file:') ? source : 'session';
    this.editor.attach(client, source, client ? `${this._notebook()}|${kind}` : '');
    const count = status?.session?.step_count ?? 0;
    if (count !== this._stepCount) {
      this._stepCount = count;
      void this.editor.look();
    }
    const key = selected?.key ?? null;
    if (key !== this._selectedKey) {
      this._selectedKey = key;
      if (key !== null && key !== this.editor.selected) {
        void this.editor.choose(key);
      } else if (key === null && !this._locating) {
        void this.editor.choose(null);
      }
      this.cards.update();
    }
    if (this.editor.orphaned || !this.banner.hidden) {
      this._update();
    }
  }

  /** Have the draft drawn anew where it is what is drawn. */
  private _drawDraft(): void {
    const { open } = this.editor;
    const draftable = open !== null;
    if (draftable !== this._model.draftable) {
      this._model.draftable = draftable;
      this.onDraftable();
    }
    if (open && open !== this._drawnDraft && !this.editor.busy) {
      this._drawnDraft = open;
      this._model.redraft();
      this.onRedraft();
    }
  }

  /** Called when the draft has something new to show. */
  onRedraft: () => void = () => undefined;
  /** Called when there begins, or ceases, to be a draft. */
  onDraftable: () => void = () => undefined;

  /** Select a storage of the table in the drawing too. */
  async show(storage: string): Promise<void> {
    this._locating = true;
    try {
      await this.editor.choose(storage);
      if (this.editor.selected === storage) {
        await this._model.selectKey(storage);
      }
    } finally {
      this._locating = false;
    }
  }

  /** Offer what can be done with a storage, at a place of the window. */
  menu(storage: string, x: number, y: number): void {
    const { open, choices } = this.editor;
    if (!open) {
      return;
    }
    const row = choices?.storage === storage ? choices.row : null;
    const several = this.editor.picked.size > 1 && this.editor.picked.has(storage);
    const those = several ? this.editor.chosen : [storage];
    const items: (IMenuItem | null)[] = open.actions.map(action => ({
      text: actionName(action),
      key: this._keys.first(action.replaceAll('_', '-')),
      checked: !several && row?.after === action,
      run: () => void this.editor.decide(those, action)
    }));
    if (open.actions.includes('rematerialize')) {
      const forbidden = Boolean(row?.never_rematerialize);
      items.push(null, {
        text: actionName(NEVER_REPLAY),
        checked: forbidden,
        run: () => void this.editor.forbidReplay(those, !forbidden)
      });
    }
    const own = open.edits.some(({ edit }) => those.includes(edit.storage ?? ''));
    items.push(
      null,
      {
        text: trans._n('Prefetch %1 op earlier', 'Prefetch %1 ops earlier', LEAD),
        key: this._keys.first('prefetch-earlier'),
        run: () => void this.editor.earlier(those, LEAD)
      },
      {
        text: trans._n('Prefetch %1 op later', 'Prefetch %1 ops later', LEAD),
        key: this._keys.first('prefetch-later'),
        run: () => void this.editor.earlier(those, -LEAD)
      },
      null,
      {
        text: trans.__('Leave to the planner'),
        key: this._keys.first('leave-to-planner'),
        enabled: own,
        run: () => void this.editor.decide(those, null)
      },
      {
        text: trans.__('Rule for its module…'),
        enabled: Boolean(row?.module),
        run: () => this._ruleFor(row?.module ?? '')
      }
    );
    const name = several
      ? trans._n('%1 storage', '%1 storages', those.length)
      : row
        ? nameOf(row)
        : storage;
    openMenu(this._host, name, items, x, y);
  }

  /** A block of the drawing was asked for its menu. */
  async menuOf(uid: number, x: number, y: number): Promise<void> {
    await this._model.select(uid);
    const key = this._model.selected?.key;
    if (key) {
      await this.editor.choose(key);
      this.menu(key, x, y);
    }
  }

  private _ruleFor(module: string): void {
    this._tables?.show('decisions');
    this._rules.begin({ module });
  }

  private _update(): void {
    this._tables?.updateTabs();
    const { editor } = this;
    const { open, offered, orphaned, error } = editor;
    const parts: (Node | string)[] = [];
    if (error) {
      parts.push(
        h('b', { class: 'cl-lost' }, `${trans.__('Not done.')} `),
        h('span', {}, explained(error)),
        h('span', { class: 'cl-grow' }),
        button('×', trans.__('Dismiss'), () => editor.dismissError(), 'cl-square')
      );
    } else if (offered) {
      const { staged } = offered;
      parts.push(
        h('b', {}, `${trans.__('Your draft is safe.')} `),
        h(
          'span',
          {},
          trans._n(
            '%2 change was kept here when the kernel went.',
            '%2 changes were kept here when the kernel went.',
            staged,
            formatCount(staged)
          )
        ),
        h('span', { class: 'cl-grow' }),
        button(
          trans._n('Put %2 change back', 'Put %2 changes back', staged, formatCount(staged)),
          trans.__('Set the kept edits on this draft'),
          () => void editor.putBack(),
          'cl-primary'
        ),
        button(trans.__('Discard'), trans.__('Forget the kept edits'), () => editor.discardKept())
      );
    } else if (orphaned) {
      const { staged } = orphaned;
      parts.push(
        h('b', {}, `${trans.__('Your draft is safe.')} `),
        h(
          'span',
          {},
          trans._n(
            '%2 change is kept in this panel, and offered again when a session with a policy runs.',
            '%2 changes are kept in this panel, and offered again when a session with a policy runs.',
            staged,
            formatCount(staged)
          )
        )
      );
    } else if (open?.other_ops) {
      parts.push(
        h('b', {}, `${trans.__('The session follows another plan now,')} `),
        h(
          'span',
          {},
          trans._n(
            'for a step of %1 ops. The draft is for one of %2.',
            'for a step of %1 ops. The draft is for one of %2.',
            open.other_ops,
            open.ops
          )
        ),
        h('span', { class: 'cl-grow' }),
        button(
          trans.__('Edit that one'),
          trans.__('Take the edits over to the plan in force'),
          () => void editor.refresh(true)
        )
      );
    }
    this.banner.hidden = parts.length === 0;
    this.banner.replaceChildren(...parts);
  }

  private async _save(): Promise<void> {
    const { value, button: pressed } = await InputDialog.getText({
      title: trans.__('Save the policy'),
      label: trans.__(
        'Path of a .json file, as the kernel sees it: from its folder, or from the root'
      ),
      text: this._path,
      okLabel: trans.__('Save')
    });
    const path = value?.trim();
    if (!pressed.accept || !path) {
      return;
    }
    this._path = path;
    if (!(await this.editor.save(path, false))) {
      const answer = await showDialog({
        title: trans.__('Overwrite the file?'),
        body: trans.__('%1 is there already.', path),
        buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Overwrite') })]
      });
      if (answer.button.accept) {
        await this.editor.save(path, true);
      }
    }
  }

  private async _load(): Promise<void> {
    const { value, button: pressed } = await InputDialog.getText({
      title: trans.__('Load a policy'),
      label: trans.__(
        'Path of a policy file, as the kernel sees it. Its edits take the place of the draft’s; undo brings those back'
      ),
      text: this._path,
      okLabel: trans.__('Load')
    });
    const path = value?.trim();
    if (pressed.accept && path) {
      this._path = path;
      await this.editor.load(path);
    }
  }

  /** Bring the decisions to the front, and the focus into their filter. */
  goToFilter(): void {
    this._tables?.show('decisions');
    this.table.filter.focus();
    this.table.filter.select();
  }

  private readonly _rules: Rules;
  private readonly _changes: Changes;
  private _tables: Tables | null = null;
  private _path = 'policy.json';
  private _stepCount = -1;
  private _drawnDraft: IOpenDraft | null = null;
  private _selectedKey: string | null = null;
  private _locating = false;
}
