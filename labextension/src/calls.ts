// What a kernel calls for: that the panel is shown, or that it looks again.

import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';

import { PANEL_TARGET } from './protocol';

/** Listen to the kernels of a notebook, one after the other; the answer stops it. */
export function listenForCalls(
  context: ISessionContext,
  onCall: (action: string, kernel: Kernel.IKernelConnection) => void
): () => void {
  const listen = () => {
    const kernel = context.session?.kernel;
    kernel?.registerCommTarget(
      PANEL_TARGET,
      (comm: Kernel.IComm, message: KernelMessage.ICommOpenMsg) => {
        const { action } = message.content.data as { action?: unknown };
        if (typeof action === 'string') {
          onCall(action, kernel);
        }
        comm.onMsg = () => undefined;
      }
    );
  };
  context.kernelChanged.connect(listen);
  listen();
  return () => context.kernelChanged.disconnect(listen);
}
