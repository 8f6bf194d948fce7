// The top of the panel: which notebook and kernel, where the session stands, and its figures.

import { statusWord } from '../advice';
import { button, h } from '../dom';
import type { IFrontKernel } from '../kernelFollower';
import type { Bindings } from '../keys/bindings';
import type { LabModel } from '../model';
import { trans } from '../texts';
import { figureNode, headerFigures } from './headerFigures';

const STAGES = ['WarmUp', 'Profile', 'Stable'];

export class Header {
  readonly node = h('section', { class: 'cl-header', 'aria-label': trans.__('Session') });

  constructor(
    private readonly _model: LabModel,
    open: () => void,
    compare: () => void,
    showKeys: () => void,
    lanes: (at: HTMLElement) => void,
    save: (at: HTMLElement) => void,
    keys: Bindings
  ) {
    this._compare = button(
      trans.__('Compare…'),
      trans.__('Two steps or policies, side by side'),
      compare
    );
    this._open = button(
      trans.__('Open trace…'),
      trans.__('Draw a saved trace file (.parquet)'),
      open
    );
    this._lanes = button(
      trans.__('Lanes…'),
      trans.__('Fold tracks of the drawing away, or show them again'),
      () => lanes(this._lanes),
      'cl-roomy'
    );
    this._lanes.setAttribute('aria-haspopup', 'menu');
    this._save = button(
      trans.__('Save…'),
      trans.__('Save the trace or a picture of it, or keep a note'),
      () => save(this._save)
    );
    this._save.setAttribute('aria-haspopup', 'menu');
    const help = button('?', '', showKeys, 'cl-square');
    help.setAttribute('aria-label', trans.__('Keys'));
    keys.follow(() => {
      help.title = keys.hint(trans.__('Keys of the panel'), 'show-keys');
    });
    // The buttons stay while what is said changes: one that goes under a pressed button has no click.
    const top = h(
      'div',
      { class: 'cl-row' },
      this._said,
      this._lanes,
      this._compare,
      this._open,
      this._save,
      help
    );
    this.node.append(top, this._figures);
  }

  update(front: IFrontKernel | null): void {
    const { status, hello, steps, scene, drawn } = this._model;
    const session = status?.session;
    const file = status?.files.find(({ source }) => source === steps?.source);
    const busy = front?.status === 'busy';
    this._compare.hidden = !hello || !status;
    this._open.hidden = !hello;
    this._save.hidden = this._lanes.hidden = !hello || !scene;
    const followed = front
      ? `${front.notebook} · ${front.kernel ?? trans.__('no kernel')} · ${statusWord(front.status)}`
      : null;
    const said = [
      h('b', { class: 'cl-product' }, 'Chameleon Lab'),
      h('span', { class: `cl-dot ${busy ? 'cl-busy' : ''}`, 'aria-hidden': 'true' }),
      h('span', { class: 'cl-front', title: followed ?? '' }, followed ?? trans.__('No notebook')),
      session &&
        !file &&
        h(
          'ol',
          { class: 'cl-stages', 'aria-label': trans.__('Stage of the session') },
          ...STAGES.map(stage =>
            h('li', { 'aria-current': stage === session.stage ? 'step' : 'false' }, stage)
          )
        ),
      file &&
        h(
          'span',
          { class: 'cl-live', title: file.path },
          trans.__('Trace file %1', file.path.split('/').at(-1))
        ),
      session &&
        !file &&
        h(
          'span',
          { class: 'cl-live' },
          session.open
            ? trans._n('Live · %1 steps', 'Live · %1 steps', session.step_count)
            : trans._n('Ended · %1 steps', 'Ended · %1 steps', session.step_count)
        ),
      h('span', { class: 'cl-grow' }),
      hello &&
        h(
          'span',
          { class: 'cl-dim cl-how', title: this._how(busy, hello.subshell) },
          this._how(busy, hello.subshell)
        )
    ];
    this._said.replaceChildren(...said.filter(node => node instanceof HTMLElement));
    this._figures.hidden = !session && !scene;
    this._figures.replaceChildren(
      ...headerFigures(session ?? null, steps, scene, drawn).map(figureNode)
    );
  }

  /** How the panel gets its answers while a cell runs. */
  private _how(busy: boolean, subshell: boolean): string {
    if (!busy) {
      return subshell
        ? trans.__('Answered from a kernel subshell')
        : trans.__('Answered from the kernel');
    }
    const { waiting } = this._model;
    return subshell
      ? trans.__('A cell is running. Answered from a kernel subshell')
      : trans._n(
          'Kernel busy. Live figures are pushed; answers come when the cell ends (%1 waiting)',
          'Kernel busy. Live figures are pushed; answers come when the cell ends (%1 waiting)',
          waiting
        );
  }

  private readonly _said = h('div', { class: 'cl-row cl-about-front' });
  private readonly _compare: HTMLButtonElement;
  private readonly _open: HTMLButtonElement;
  private readonly _lanes: HTMLButtonElement;
  private readonly _save: HTMLButtonElement;
  private readonly _figures = h('dl', { class: 'cl-figures' });
}
