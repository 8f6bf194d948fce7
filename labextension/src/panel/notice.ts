// What the panel says where it has nothing to draw: what happened, what it means, the one thing to do.

import { Clipboard } from '@jupyterlab/apputils';

import { advise } from '../advice';
import type { LineState } from '../connection';
import { button, h } from '../dom';
import type { IFrontKernel } from '../kernelFollower';
import type { LabModel } from '../model';

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
  const open = button('Open a saved trace…', 'Draw a trace file (.parquet)', actions.open);
  const advice = advise(front);
  if (line === 'none' || !advice.usable) {
    return page(advice.title, advice.text);
  }
  if (line === 'connecting') {
    return page(
      'Reaching the kernel',
      'A running cell may have to end first, where the kernel has no subshells.'
    );
  }
  if (line === 'absent') {
    const busy = front?.status === 'busy';
    return page(
      'This kernel has not loaded Chameleon Lab',
      'Run this in a cell. The panel fills in by itself.',
      command(LOAD),
      busy
        ? h('p', { class: 'cl-hint' }, 'A cell is running: the line can run after it.')
        : button('Run it for me', 'Run the line in the kernel', actions.load, 'cl-primary')
    );
  }
  const session = model.status?.session;
  if (!session) {
    return page(
      'No session yet',
      'Begin one, then train. Or draw a trace that was saved.',
      command(START),
      open
    );
  }
  if (!session.steps.length) {
    return page(
      `${session.stage}: no step has ended`,
      "An optimizer's step() ends one; without an optimizer, call chameleon_lab.current_session().step(). The first step is drawn as soon as it has ended.",
      open
    );
  }
  return page('Reading the newest step', 'The kernel prepares it.');
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
  const copy = button('Copy', 'Copy this line', () => {
    Clipboard.copyToSystem(text);
    copy.textContent = 'Copied';
    setTimeout(() => {
      copy.textContent = 'Copy';
    }, 1500);
  });
  return h('div', { class: 'cl-command' }, h('code', {}, text), copy);
}
