import type { Kernel } from '@jupyterlab/services';
import { expect, test } from 'vitest';

import { openChannel } from './channel';

/** A kernel whose one comm is played by hand. */
function kernel() {
  const comm = {
    isDisposed: false,
    closings: 0,
    open: () => undefined,
    send: () => undefined,
    close() {
      this.closings += 1;
      this.isDisposed = true;
    },
    onMsg: (_: unknown): void => undefined,
    onClose: (): void => undefined
  };
  const connection = { isDisposed: false, supportsSubshells: false, createComm: () => comm };
  return { comm, connection: connection as unknown as Kernel.IKernelConnection };
}

const message = { content: { data: { heard: true } }, buffers: [] };

test('a channel that was answered is closed at once', async () => {
  const { comm, connection } = kernel();
  const channel = await openChannel(connection);
  const heard: unknown[] = [];
  channel.onMessage = data => heard.push(data);
  comm.onMsg(message);
  channel.close();
  expect(heard).toEqual([{ heard: true }]);
  expect(comm.closings).toBe(1);
});

test('one that was not waits for the answer, tells nobody of it, and is closed by one side alone', async () => {
  for (const loaded of [true, false]) {
    const { comm, connection } = kernel();
    const channel = await openChannel(connection);
    let told = 0;
    channel.onMessage = channel.onClose = () => {
      told += 1;
    };
    channel.close();
    expect(comm.closings).toBe(0);
    if (loaded) {
      comm.onMsg(message);
    } else {
      comm.onClose();
    }
    expect(told).toBe(0);
    expect(comm.closings).toBe(loaded ? 1 : 0);
  }
});
