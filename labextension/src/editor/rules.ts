// Rules: edits of all storages of a module, category, size or stage. Their chips, and the form that makes one.

import { button, h } from '../dom';
import { formatBytes, formatCount } from '../format';
import { CATEGORIES, type IEdit } from '../protocol';
import { trans } from '../texts';
import { categoryName, inWords } from '../words';
import { type Editor, NEVER_REPLAY } from './state';
import { actionName, parseSize, ruleOfFilter, ruleText } from './words';

type Option = [value: string, name: string];

const ASK_MS = 200;
const STAGES = ['forward', 'backward', 'optimizer', 'no_grad'];

export class Rules {
  readonly node = h('div', { class: 'cl-rules' });

  constructor(private readonly _editor: Editor) {
    const field = (name: string, node: HTMLElement) => h('label', {}, h('span', {}, name), node);
    const text = (placeholder: string) =>
      h('input', { type: 'text', placeholder, spellcheck: 'false', input: () => this._askLater() });
    const select = (options: [string, string][]) =>
      h(
        'select',
        { change: () => this._askLater() },
        ...options.map(([value, name]) => h('option', { value }, name))
      );
    this._module = text('h.*.mlp');
    this._least = text('4MiB');
    this._most = text(trans.__('any'));
    this._category = select([
      ['', trans.__('any')],
      ...CATEGORIES.map((c): [string, string] => [c, categoryName(c)])
    ]);
    this._stage = select([
      ['', trans.__('any')],
      ...STAGES.map((s): [string, string] => [s, s.replace('_', ' ')])
    ]);
    this._action = select([]);
    this._ops = h('input', { type: 'number', value: '5', min: '1', input: () => this._askLater() });
    this._opsField = field(trans.__('Ops'), this._ops);
    this._form = h(
      'form',
      {
        class: 'cl-rule-form',
        hidden: true,
        'aria-label': trans.__('New rule'),
        submit: (event: Event) => {
          event.preventDefault();
          void this._add();
        },
        keydown: (event: KeyboardEvent) => {
          if (event.key === 'Escape') {
            this._close();
          }
          event.stopPropagation();
        }
      },
      field(trans.__('Action'), this._action),
      this._opsField,
      field(trans.__('Module'), this._module),
      field(trans.__('Category'), this._category),
      field(trans.__('Made in'), this._stage),
      field(trans.__('At least'), this._least),
      field(trans.__('At most'), this._most),
      this._said,
      h('button', { type: 'submit', class: 'cl-button cl-primary' }, trans.__('Add rule')),
      button(trans.__('Cancel'), trans.__('Close the form (Esc)'), () => this._close())
    );
    this._new = button(
      trans.__('+ Rule…'),
      trans.__('A rule for a module, category, size or stage; the filter fills it in'),
      () => this.begin(ruleOfFilter(this._editor.filter.query))
    );
    this.node.append(
      h(
        'div',
        { class: 'cl-chips' },
        h('span', { class: 'cl-dim' }, trans.__('Rules')),
        this._chips,
        this._new
      ),
      this._form
    );
    _editor.changed.connect((_, change) => {
      if (change === 'draft') {
        this.update();
      }
    });
  }

  /** Open the form with these conditions filled in. */
  begin(rule: Partial<IEdit>): void {
    const known = this._editor.open?.actions ?? [];
    const actions: Option[] = [
      ...known.map((a): [string, string] => [a, actionName(a)]),
      ...(known.includes('rematerialize')
        ? [[NEVER_REPLAY, actionName(NEVER_REPLAY)] as Option]
        : []),
      ['earlier', trans.__('Prefetch earlier')],
      ['later', trans.__('Prefetch later')]
    ];
    this._action.replaceChildren(...actions.map(([value, name]) => h('option', { value }, name)));
    this._module.value = rule.module ?? '';
    this._category.value = rule.category ?? '';
    this._stage.value = rule.stage ?? '';
    this._least.value = rule.min_bytes === undefined ? '' : sizeText(rule.min_bytes);
    this._most.value = rule.max_bytes === undefined ? '' : sizeText(rule.max_bytes);
    this._form.hidden = false;
    this._action.focus();
    this._askLater();
  }

  update(): void {
    const open = this._editor.open;
    this.node.hidden = !open;
    if (!open) {
      return;
    }
    const chips: HTMLElement[] = [];
    open.edits.forEach((entry, index) => {
      const { edit } = entry;
      if (edit.storage === undefined && edit.action !== 'link') {
        const text =
          edit.action === 'capacity'
            ? trans.__('capacity %1', formatBytes(edit.capacity_bytes ?? 0))
            : ruleText(edit);
        const faults = open.findings.filter(finding => finding.index === index);
        chips.push(
          h(
            'span',
            {
              class: `cl-chip ${entry.staged ? 'cl-draft' : ''}`,
              title: [
                entry.text,
                ...faults.map(f => `${f.fault}: ${inWords(f.why)}; ${f.way_out}`)
              ].join('\n')
            },
            faults.length
              ? h('span', { class: 'cl-lost', 'aria-label': trans.__('not obeyed in full') }, '! ')
              : null,
            text,
            button(
              '×',
              trans.__('Take back: %1', entry.text),
              () => void this._editor.edit('remove', [], index),
              'cl-x'
            )
          )
        );
      }
    });
    this._chips.replaceChildren(
      ...(chips.length ? chips : [h('span', { class: 'cl-dim' }, trans._p('rules', 'none'))])
    );
  }

  private _close(): void {
    this._form.hidden = true;
    this._new.focus();
  }

  /** What the form says as an edit, or why it is none. */
  private _read(): IEdit | string {
    const edit: IEdit = { action: this._action.value };
    const moves = edit.action === 'earlier' || edit.action === 'later';
    this._opsField.hidden = !moves;
    if (moves) {
      const ops = Math.round(Number(this._ops.value));
      if (!(ops >= 1)) {
        return trans.__('Ops must be a number from 1 up');
      }
      edit.ops_earlier = edit.action === 'earlier' ? ops : -ops;
      edit.action = 'prefetch';
    }
    for (const [name, input] of [
      ['module', this._module],
      ['category', this._category],
      ['stage', this._stage]
    ] as const) {
      if (input.value.trim()) {
        edit[name] = input.value.trim();
      }
    }
    for (const [name, input] of [
      ['min_bytes', this._least],
      ['max_bytes', this._most]
    ] as const) {
      if (input.value.trim()) {
        const size = parseSize(input.value);
        if (size === null) {
          return trans.__('%1 is not a size: write it like %2', input.value, '4MiB');
        }
        edit[name] = size;
      }
    }
    if (Object.keys(edit).length === (moves ? 2 : 1)) {
      return trans.__('Say which storages: a module, category, stage or size');
    }
    return edit;
  }

  private _askLater(): void {
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => void this._ask(), ASK_MS);
  }

  private async _ask(): Promise<void> {
    const edit = this._read();
    if (typeof edit === 'string') {
      this._said.textContent = edit;
      return;
    }
    const turn = ++this._asked;
    const meant = await this._editor.matching(edit);
    if (turn === this._asked) {
      this._said.textContent = meant
        ? trans._n(
            '%2 storages, of which %3 (%4) can leave',
            '%2 storages, of which %3 (%4) can leave',
            meant.storages,
            formatCount(meant.storages),
            formatCount(meant.movable),
            formatBytes(meant.bytes)
          )
        : trans.__('The kernel cannot read this rule');
    }
  }

  private async _add(): Promise<void> {
    const edit = this._read();
    if (typeof edit === 'string') {
      this._said.textContent = edit;
      return;
    }
    this._close();
    await this._editor.edit('add', [edit]);
  }

  private readonly _module: HTMLInputElement;
  private readonly _least: HTMLInputElement;
  private readonly _most: HTMLInputElement;
  private readonly _ops: HTMLInputElement;
  private readonly _opsField: HTMLElement;
  private readonly _category: HTMLSelectElement;
  private readonly _stage: HTMLSelectElement;
  private readonly _action: HTMLSelectElement;
  private readonly _form: HTMLFormElement;
  private readonly _new: HTMLButtonElement;
  private readonly _chips = h('span', { class: 'cl-chip-list' });
  private readonly _said = h('span', { class: 'cl-dim', role: 'status' });
  private _timer: number | undefined;
  private _asked = 0;
}

function sizeText(bytes: number): string {
  const mib = bytes / 1024 ** 2;
  return Number.isInteger(mib) ? `${mib}MiB` : String(bytes);
}
