// What the panel says where it has nothing to draw: what happened, what it means, the one thing to do.

import { Clipboard } from '@jupyterlab/apputils';

import { advise } from '../advice';
import type { LineState } from '../connection';
import { button, h } from '../dom';
import type { IFrontKernel } from '../kernelFollower';
import type { LabModel } from '../model';
import { trans } from '../texts';

const LOAD = '%load_ext chameleon_lab';
const START = '%chameleon start --capacity 256MiB';

export interface INoticeActions {
  load(): void;
  open(): void;
}

/** The notice for this state, or null where there are steps to draw. */
export function notice(
  line: LineState,
  front: IFrontKernel | null,
  model: LabModel,
  actions: INoticeActions
): HTMLElement | null {
  if (model.scene) {
    return null;
  }
  const open = button(
    trans.__('Open a saved trace…'),
    trans.__('Draw a trace file (.parquet)'),
    actions.open
  );
  const advice = advise(front);
  if (line === 'none' || !advice.usable) {
    return page(advice.title, advice.text);
  }
  if (line === 'connecting') {
    return page(
      trans.__('Reaching the kernel'),
      trans.__('A running cell may have to end first, where the kernel has no subshells.')
    );
  }
  if (line === 'absent') {
    const busy = front?.status === 'busy';
    return page(
      trans.__('This kernel has not loaded Chameleon Lab'),
      trans.__('Run this in a cell. The panel fills in by itself.'),
      command(LOAD),
      busy
        ? h('p', { class: 'cl-hint' }, trans.__('A cell is running: the line can run after it.'))
        : button(
            trans.__('Run it for me'),
            trans.__('Run the line in the kernel'),
            actions.load,
            'cl-primary'
          )
    );
  }
  const session = model.status?.session;
  if (!session) {
    return page(
      trans.__('No session yet'),
      trans.__('Begin one, then train. Or draw a trace that was saved.'),
      command(START),
      open
    );
  }
  if (!session.steps.length) {
    return page(
      trans.__('%1: no step has ended', session.stage),
      trans.__(
        "An optimizer's %1 ends one; without an optimizer, call %2. The first step is drawn as soon as it has ended.",
        'step()',
        'chameleon_lab.current_session().step()'
      ),
      open
    );
  }
  return page(trans.__('Reading the newest step'), trans.__('The kernel prepares it.'));
}

function page(title: string, text: string, ...more: HTMLElement[]): HTMLElement {
  return h(
    'div',
    { class: 'cl-notice', role: 'status' },
    h('h2', {}, title),
    h('p', {}, text),
    ...more
  );
}

function command(text: string): HTMLElement {
  const copy = button(trans.__('Copy'), trans.__('Copy this line'), () => {
    Clipboard.copyToSystem(text);
    copy.textContent = trans.__('Copied');
    setTimeout(() => {
      copy.textContent = trans.__('Copy');
    }, 1500);
  });
  return h('div', { class: 'cl-command' }, h('code', {}, text), copy);
}
