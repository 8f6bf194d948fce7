// What the panel says about a kernel.

import type { IFrontKernel } from './kernelFollower';

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
      title: 'No notebook in front',
      text: 'Open a notebook that trains a PyTorch model. This panel follows it.',
      usable: false
    };
  }
  const { notebook, kernel, language, status } = front;
  if (!kernel) {
    return {
      title: notebook,
      text: 'This notebook has no kernel. Choose a Python kernel for it first.',
      usable: false
    };
  }
  if (language && language !== 'python') {
    return {
      title: `${notebook} · ${kernel}`,
      text: 'Chameleon Lab watches PyTorch, so it needs a Python kernel.',
      usable: false
    };
  }
  const [word, text, usable] = describe(status);
  return { title: `${notebook} · ${kernel} · ${word}`, text, usable };
}

function describe(status: IFrontKernel['status']): [word: string, text: string, usable: boolean] {
  switch (status) {
    case 'idle':
      return ['idle', 'The kernel is free.', true];
    case 'busy':
      return ['busy', 'A cell is running; a report waits for it to end.', true];
    case 'restarting':
    case 'autorestarting':
      return ['restarting', 'A restarted kernel has no session: load the extension again.', true];
    case 'dead':
    case 'terminating':
      return ['not running', 'Restart the kernel from the Kernel menu.', false];
    case 'connecting':
    case 'disconnected':
      return ['not connected', 'JupyterLab is trying to reach the kernel.', false];
    default:
      return ['starting', 'The kernel is not ready yet.', true];
  }
}
