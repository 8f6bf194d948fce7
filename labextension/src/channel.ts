// A channel to the kernel over a Jupyter comm, on a kernel subshell where there is one.

import type { Kernel } from '@jupyterlab/services';

import type { IChannel } from './client';
import { TARGET } from './protocol';

const SUBSHELL_MS = 3000;

/** Open a line to what `%load_ext chameleon_lab` registered. A kernel that has not loaded it closes it at once. */
export async function openChannel(kernel: Kernel.IKernelConnection): Promise<IChannel> {
  const comm = kernel.createComm(TARGET);
  let answered = false;
  let leaving = false;
  const channel: IChannel = {
    send: message => {
      if (!comm.isDisposed) {
        comm.send(message as never);
      }
    },
    close: () => {
      if (!comm.isDisposed && !kernel.isDisposed) {
        // A kernel without the extension is about to close the comm: JupyterLab complains of a comm closed twice.
        leaving = !answered;
        if (answered) {
          comm.close();
        }
      }
    },
    onMessage: () => undefined,
    onClose: () => undefined
  };
  comm.onMsg = message => {
    answered = true;
    if (leaving) {
      comm.close();
    } else {
      channel.onMessage(message.content.data, (message.buffers ?? []).map(bytes));
    }
  };
  comm.onClose = () => {
    if (!leaving) {
      channel.onClose();
    }
  };
  // Sent before the subshell stands, the opening would go to the main thread, and wait for the running cell.
  const started = (comm as { subshellStarted?: Promise<void> }).subshellStarted;
  if (started && kernel.supportsSubshells) {
    await Promise.race([started, new Promise(resolve => setTimeout(resolve, SUBSHELL_MS))]);
  }
  if (!comm.isDisposed) {
    comm.open({});
  }
  return channel;
}

/** A buffer of its own: views may begin anywhere, and Arrow wants its columns aligned. */
function bytes(buffer: ArrayBuffer | ArrayBufferView): Uint8Array {
  return ArrayBuffer.isView(buffer)
    ? new Uint8Array(buffer.buffer as ArrayBuffer, buffer.byteOffset, buffer.byteLength).slice()
    : new Uint8Array(buffer);
}
