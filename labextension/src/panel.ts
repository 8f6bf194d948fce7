// The panel: which notebook and kernel are in front, and how to get a report there.

import { Clipboard } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import { advise } from './advice';
import type { KernelFollower } from './kernelFollower';

const LOAD = '%load_ext chameleon_lab';
const COPIED_MS = 1500;

export class ChameleonPanel extends Widget {
  constructor(private readonly _follower: KernelFollower) {
    super();
    this.addClass('cl-panel');
    this.title.label = 'Chameleon Lab';
    this.title.closable = true;

    this._steps.append(
      item('Load the extension: ', code(LOAD), copyButton(LOAD)),
      item('Start a session: ', code('%chameleon start --capacity 256MiB'), ', then train.'),
      item('Read the report: ', code('%chameleon report'))
    );
    this._note.textContent =
      'The panel does not read the session; its figures are in the report, in the notebook.';
    this.node.append(this._title, this._text, this._steps, this._note);

    _follower.changed.connect(this.update, this);
    this.update();
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._follower.dispose();
    super.dispose();
  }

  protected override onUpdateRequest(): void {
    const advice = advise(this._follower.current);
    this._title.textContent = advice.title;
    this._text.textContent = advice.text;
    this._steps.hidden = !advice.usable;
    this._note.hidden = !advice.usable;
  }

  private readonly _title = document.createElement('h2');
  private readonly _text = document.createElement('p');
  private readonly _steps = document.createElement('ol');
  private readonly _note = document.createElement('p');
}

function item(...parts: (string | Node)[]): HTMLLIElement {
  const li = document.createElement('li');
  li.append(...parts);
  return li;
}

function code(text: string): HTMLElement {
  const element = document.createElement('code');
  element.textContent = text;
  return element;
}

function copyButton(text: string): HTMLButtonElement {
  const button = document.createElement('button');
  button.className = 'jp-mod-styled jp-mod-reject';
  button.textContent = 'Copy';
  button.onclick = () => {
    Clipboard.copyToSystem(text);
    button.textContent = 'Copied';
    setTimeout(() => {
      button.textContent = 'Copy';
    }, COPIED_MS);
  };
  return button;
}
