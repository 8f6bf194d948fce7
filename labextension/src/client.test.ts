import { expect, test } from 'vitest';

import { type IChannel, KernelClient } from './client';
import { type IRequest, LabError, parseMessage, VERSION } from './protocol';

function line() {
  const sent: IRequest[] = [];
  const channel: IChannel & { closed: boolean } = {
    closed: false,
    send: message => sent.push(message),
    close() {
      this.closed = true;
    },
    onMessage: () => undefined,
    onClose: () => undefined
  };
  return { client: new KernelClient(channel), channel, sent };
}

const reply = (id: number, result: object) => ({ version: VERSION, type: 'reply', id, result });

test('answers find their requests, in any order, with their buffers', async () => {
  const { client, channel, sent } = line();
  const first = client.request('open', { path: 'a' });
  const second = client.request('open', { path: 'b' });
  expect(sent.map(({ id, method, version }) => [id, method, version])).toEqual([
    [1, 'open', VERSION],
    [2, 'open', VERSION]
  ]);
  expect(client.waiting).toBe(2);
  channel.onMessage(reply(2, { source: 'file:b' }), [new Uint8Array([7])]);
  channel.onMessage(reply(1, { source: 'file:a' }), []);
  expect((await second).buffers[0][0]).toBe(7);
  expect((await first).result.source).toBe('file:a');
  expect(client.waiting).toBe(0);
});

test('an error in the envelope rejects its request, with code and hint', async () => {
  const { client, channel } = line();
  const asked = client.request('status', {});
  const error = { code: 'gone', message: 'session:1 is gone', hint: 'Choose another.' };
  channel.onMessage({ version: VERSION, type: 'error', id: 1, error }, []);
  await expect(asked).rejects.toMatchObject(error);
});

test('an error without a request, and news, reach their listeners', () => {
  const { client, channel } = line();
  const heard: unknown[] = [];
  client.onError = error => heard.push(error.code);
  client.onEvent = (name, body) => heard.push([name, body]);
  channel.onMessage({ version: VERSION, type: 'event', name: 'status', body: { files: [] } }, []);
  channel.onMessage(
    {
      version: VERSION,
      type: 'error',
      id: null,
      error: { code: 'internal', message: 'x', hint: '' }
    },
    []
  );
  channel.onMessage('what', []);
  expect(heard).toEqual([['status', { files: [] }], 'internal', 'malformed']);
});

test('an answer of another version rejects whoever waits for it', async () => {
  const { client, channel } = line();
  const asked = client.request('hello', {});
  channel.onMessage({ ...reply(1, {}), version: VERSION + 1 }, []);
  await expect(asked).rejects.toMatchObject({ code: 'version' });
});

test('a line that goes down rejects what waits, and what comes later', async () => {
  const { client, channel } = line();
  let closed = 0;
  client.onClose = () => {
    closed += 1;
  };
  const asked = client.request('status', {});
  channel.onClose();
  channel.onClose();
  await expect(asked).rejects.toMatchObject({ code: 'closed' });
  await expect(client.request('status', {})).rejects.toBeInstanceOf(LabError);
  expect(closed).toBe(1);
  client.dispose();
  expect(channel.closed).toBe(false);
});

test('hanging up closes the channel', () => {
  const { client, channel } = line();
  client.dispose();
  expect(channel.closed).toBe(true);
});

test.each([
  null,
  [],
  {},
  { version: VERSION },
  { version: VERSION, type: 'reply', id: '1', result: {} },
  { version: VERSION, type: 'reply', id: 1, result: null },
  { version: VERSION, type: 'event', name: 'status' },
  { version: VERSION, type: 'error', id: 1, error: { code: 'gone' } }
])('%j is no message', data => {
  expect(() => parseMessage(data)).toThrow(LabError);
});
