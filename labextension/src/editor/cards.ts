// What can be done with the selected storage: one card an action, with its effect on the draft; and its gaps.

import { counted } from '../counts';
import { button, h, swatch } from '../dom';
import { formatBytes, formatCount, formatSeconds } from '../format';
import type { Bindings } from '../keys/bindings';
import type { IChoices, ICost, IGap, IOption } from '../protocol';
import { trans } from '../texts';
import { BANDS, bandOf, inWords, shortOp } from '../words';
import { LEAD, nameOf } from './decisions';
import { keepingFocus } from './focus';
import { type Editor, NEVER_REPLAY } from './state';
import { actionMark, actionName, who } from './words';

const SHOWN_GAPS = 4;
/** Of the capacity: a peak that changes by less is not worth a word. */
const LEAST_SHARE = 0.005;

export class Cards {
  readonly node = h('section', {
    class: 'cl-cards',
    'aria-label': trans.__('Decision about the selected storage')
  });

  constructor(
    private readonly _editor: Editor,
    private readonly _rule: (module: string) => void,
    private readonly _drawn: () => string | null,
    private readonly _keys: Bindings
  ) {
    _editor.changed.connect((_, change) => {
      if (change === 'choices' || change === 'draft') {
        this.update();
      }
    });
    this.update();
  }

  update(): void {
    const { choices, selected, open } = this._editor;
    this.node.hidden = !open || selected === null;
    if (this.node.hidden) {
      return;
    }
    keepingFocus(this.node, () => {
      this.node.replaceChildren(
        ...(choices
          ? choices.row
            ? this._decided(choices)
            : [
                h('h2', {}, trans.__('Decision')),
                h('p', { class: 'cl-hint' }, inWords(choices.why))
              ]
          : [h('p', { class: 'cl-hint' }, trans.__('Looking at what can be done…'))])
      );
    });
  }

  private _decided(choices: IChoices): HTMLElement[] {
    const row = choices.row;
    if (!row) {
      return [];
    }
    const own = row.by === 'you';
    const clock = this._editor.open?.clock ?? '';
    const title = trans.__('Against a plan made anew without it; %1', clock);
    const by = h(
      'span',
      { class: 'cl-dim', title },
      trans.__('by %1 · effect of the edit alone', who(row))
    );
    // Where the storage is in the drawing, the inspector above says what it is.
    const named = this._drawn() === row.storage;
    const head = h(
      'div',
      { class: 'cl-row' },
      named ? null : swatch(BANDS[bandOf(row.category)].id),
      h(
        'h2',
        { class: 'cl-title', title: row.storage },
        named ? trans.__('Decision') : nameOf(row)
      ),
      h('span', { class: 'cl-grow' }),
      by
    );
    const more = h(
      'div',
      { class: 'cl-row cl-card-more' },
      own &&
        focusable(
          button(
            trans.__('Leave to the planner'),
            this._keys.hint(trans.__('Take back the edits of this storage'), 'leave-to-planner'),
            () => void this._editor.decide([choices.storage], null)
          ),
          'release'
        ),
      row.module &&
        focusable(
          button(
            trans.__('Rule for its module…'),
            trans.__('A rule for all of %1', row.module),
            () => this._rule(row.module)
          ),
          'rule'
        )
    );
    return [
      head,
      h(
        'div',
        { class: 'cl-choices', role: 'radiogroup', 'aria-label': trans.__('Decision') },
        ...choices.options.map(option => this._card(choices, option))
      ),
      more,
      ...this._gaps(choices.gaps)
    ];
  }

  private _card(choices: IChoices, option: IOption): HTMLElement {
    const radio = h('input', {
      type: 'radio',
      name: 'cl-choice',
      'data-focus': `choice-${option.action}`,
      disabled: !option.possible && !option.chosen,
      change: () => void this._editor.decide([choices.storage], option.action)
    });
    radio.checked = option.chosen;
    const swapped = choices.gaps.find(gap => gap.action === 'swap' && gap.lead_ops !== null);
    return h(
      'div',
      { class: `cl-card ${option.chosen ? 'cl-chosen' : ''}`, 'data-action': option.action },
      h(
        'label',
        { class: 'cl-row' },
        radio,
        h('b', {}, `${actionMark(option.action)} ${actionName(option.action)}`),
        h('span', { class: 'cl-grow' }),
        effect(option, this._editor.open?.capacity_bytes ?? 0)
      ),
      this._hint(choices, option),
      option.action === 'swap' && option.chosen && swapped && this._lead(choices.storage, swapped),
      option.action === 'rematerialize' &&
        (option.possible || choices.row?.never_rematerialize) &&
        this._never(choices)
    );
  }

  /** What doing so takes, copies beside replays; what else it changes; and why the runtime would not do it. */
  private _hint({ cost, row }: IChoices, option: IOption): HTMLElement | null {
    if (!option.possible && !option.chosen) {
      return option.why ? h('p', { class: 'cl-hint' }, inWords(option.why)) : null;
    }
    const said = [];
    if (cost && option.action === 'swap') {
      said.push(trans.__('Copies take %1', formatSeconds(cost.copy_s)));
    } else if (cost && option.action === 'rematerialize') {
      said.push(
        cost.replay_s === null
          ? trans.__('Not in its longest gap: %1', inWords(cost.why_not_replay))
          : trans.__(
              'A replay takes %1: %2',
              formatSeconds(cost.replay_s),
              cost.replay_ops.map(shortOp).join(' → ')
            )
      );
    }
    if (cost && option.chosen) {
      said.push(...retention(cost, option.action));
    }
    if (option.effect?.others) {
      said.push(
        trans._n(
          'the planner then decides anew about %2 other storage',
          'the planner then decides anew about %2 other storages',
          option.effect.others,
          formatCount(option.effect.others)
        )
      );
    }
    const declined =
      option.action === 'rematerialize' && row?.declined
        ? h(
            'b',
            {},
            (said.length ? '; ' : '') +
              trans.__('declined by the runtime: %1', inWords(row.declined))
          )
        : null;
    return said.length || declined
      ? h('p', { class: 'cl-hint', 'data-cost': option.action }, said.join('; '), declined)
      : null;
  }

  private _never(choices: IChoices): HTMLElement {
    const box = h('input', {
      type: 'checkbox',
      'data-focus': 'never-replay',
      change: () => void this._editor.forbidReplay([choices.storage], box.checked)
    });
    box.checked = Boolean(choices.row?.never_rematerialize);
    const { open } = this._editor;
    const byRule =
      box.checked &&
      !open?.edits.some(
        ({ edit }) => edit.action === NEVER_REPLAY && edit.storage === choices.storage
      );
    box.disabled = byRule;
    return h(
      'label',
      { class: 'cl-row cl-never' },
      box,
      h(
        'span',
        {},
        byRule ? trans.__('Never rematerialize (a rule says so)') : trans.__('Never rematerialize')
      )
    );
  }

  private _lead(storage: string, gap: IGap): HTMLElement {
    const lead =
      gap.lead_ops && gap.lead_s !== null
        ? trans.__('%1, %2 before use', counted.ops(gap.lead_ops), formatSeconds(gap.lead_s))
        : trans.__('at its use');
    return h(
      'div',
      { class: 'cl-row cl-lead' },
      h('span', {}, `${trans.__('Swap-in starts')} `, h('b', {}, lead)),
      h('span', { class: 'cl-grow' }),
      focusable(
        button(
          trans.__('Earlier'),
          this._keys.hint(
            trans._n('Bring it back %1 op earlier', 'Bring it back %1 ops earlier', LEAD),
            'prefetch-earlier'
          ),
          () => void this._editor.earlier([storage], LEAD)
        ),
        'earlier'
      ),
      focusable(
        button(
          trans.__('Later'),
          this._keys.hint(
            trans._n('Bring it back %1 op later', 'Bring it back %1 ops later', LEAD),
            'prefetch-later'
          ),
          () => void this._editor.earlier([storage], -LEAD)
        ),
        'later'
      )
    );
  }

  private _gaps(gaps: IGap[]): HTMLElement[] {
    if (!gaps.length) {
      return [];
    }
    return [
      h('h3', {}, trans.__('Longest of its gaps')),
      h(
        'ol',
        { class: 'cl-gaps' },
        ...gaps
          .slice(0, SHOWN_GAPS)
          .map(gap =>
            h(
              'li',
              {},
              h('span', { 'aria-hidden': 'true' }, actionMark(gap.action)),
              h(
                'span',
                { title: trans.__('gap %1, after op %2', gap.gap, gap.after.op) },
                gap.before
                  ? trans.__(
                      'after %1, before %2',
                      shortOp(gap.after.name),
                      shortOp(gap.before.name)
                    )
                  : trans.__('after %1, until it dies', shortOp(gap.after.name))
              ),
              h('span', { class: 'cl-number' }, formatSeconds(gap.seconds))
            )
          )
      )
    ];
  }
}

function focusable<E extends HTMLElement>(element: E, name: string): E {
  element.dataset.focus = name;
  return element;
}

/** What the plan keeps after its death, for this storage's replays or of this storage for others'. */
function retention({ retains, retained_for }: ICost, action: string): string[] {
  const said = [];
  if (action === 'rematerialize' && retains.length) {
    said.push(trans.__('kept for it after their death: %1', retains.join(', ')));
  }
  if (retained_for.length) {
    said.push(trans.__('its bytes outlive it until the replay of %1', retained_for.join(', ')));
  }
  return said;
}

/** What choosing this would change of the draft's step and peak. */
function effect(option: IOption, capacity: number): HTMLElement {
  if (option.chosen) {
    return h('span', { class: 'cl-dim' }, trans.__('in the draft'));
  }
  if (!option.possible) {
    return h('span', { class: 'cl-dim' }, trans.__('not possible'));
  }
  if (!option.ready) {
    return h('span', { class: 'cl-dim' }, trans.__('planning…'));
  }
  if (!option.effect) {
    return h('span', {});
  }
  const { step_s, peak_bytes } = option.effect;
  const tells = Math.abs(peak_bytes) >= LEAST_SHARE * capacity;
  const least = 1e-7;
  const step =
    Math.abs(step_s) < least
      ? trans.__('step ±0')
      : trans.__('%1 step %2', step_s > 0 ? '▲' : '▼', formatSeconds(Math.abs(step_s)));
  const kind = Math.abs(step_s) < least ? 'cl-dim' : step_s > 0 ? 'cl-lost' : 'cl-good';
  const peak = tells
    ? `, ${trans.__('peak %1', (peak_bytes > 0 ? '+' : '−') + formatBytes(Math.abs(peak_bytes)))}`
    : '';
  return h('span', { class: kind }, step, h('span', { class: 'cl-dim' }, peak));
}
