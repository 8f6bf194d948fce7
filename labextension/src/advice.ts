// What the panel says about a kernel.

import type { IFrontKernel } from './kernelFollower';
import { trans } from './texts';

export interface IAdvice {
  title: string;
  text: string;
  /** Whether Chameleon Lab can be used in this notebook, so that the steps are worth showing. */
  usable: boolean;
}

/** Say what can be done with the kernel in front, and what must happen first. */
export function advise(front: IFrontKernel | null): IAdvice {
  if (!front) {
    return {
      title: trans.__('No notebook in front'),
      text: trans.__('Open a notebook that trains a PyTorch model. This panel follows it.'),
      usable: false
    };
  }
  const { notebook, kernel, language, status } = front;
  if (!kernel) {
    return {
      title: notebook,
      text: trans.__('This notebook has no kernel. Choose a Python kernel for it first.'),
      usable: false
    };
  }
  if (language && language !== 'python') {
    return {
      title: `${notebook} · ${kernel}`,
      text: trans.__('Chameleon Lab watches PyTorch, so it needs a Python kernel.'),
      usable: false
    };
  }
  const [word, text, usable] = describe(status);
  return { title: `${notebook} · ${kernel} · ${word}`, text, usable };
}

/** What a kernel is doing, in a word. */
export function statusWord(status: IFrontKernel['status']): string {
  return describe(status)[0];
}

function describe(status: IFrontKernel['status']): [word: string, text: string, usable: boolean] {
  switch (status) {
    case 'idle':
      return [trans._p('kernel', 'idle'), trans.__('The kernel is free.'), true];
    case 'busy':
      return [
        trans._p('kernel', 'busy'),
        trans.__('A cell is running; a report waits for it to end.'),
        true
      ];
    case 'restarting':
    case 'autorestarting':
      return [
        trans.__('restarting'),
        trans.__('A restarted kernel has no session: load the extension again.'),
        true
      ];
    case 'dead':
    case 'terminating':
      return [trans.__('not running'), trans.__('Restart the kernel from the Kernel menu.'), false];
    case 'connecting':
    case 'disconnected':
      return [
        trans.__('not connected'),
        trans.__('JupyterLab is trying to reach the kernel.'),
        false
      ];
    default:
      return [trans.__('starting'), trans.__('The kernel is not ready yet.'), true];
  }
}
