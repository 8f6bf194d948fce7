// The envelope of the messages between panel and kernel; messages.ts has what is in them, docs/protocol.md describes both.

import { type Method, VERSION } from './messages';
import { trans } from './texts';

export * from './messages';

export interface IRequest {
  version: number;
  type: 'request';
  id: number;
  method: Method;
  params: object;
}

export type Message =
  | { type: 'reply'; id: number; result: unknown }
  | { type: 'error'; id: number | null; error: LabError }
  | { type: 'event'; name: string; body: unknown };

/** What the kernel could not do, or what is wrong with its message; made to be shown. */
export class LabError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly hint = ''
  ) {
    super(message);
  }
}

/** Check a message from the kernel; throws a LabError for one that is malformed or of another version. */
export function parseMessage(data: unknown): Message {
  if (!isObject(data)) {
    throw new LabError('malformed', trans.__('The kernel sent something that is no message.'));
  }
  const { version, type, id } = data;
  if (version !== VERSION) {
    throw new LabError(
      'version',
      trans.__('The panel speaks protocol version %1 and the kernel %2.', VERSION, String(version)),
      trans.__(
        'Install the same chameleon-lab for JupyterLab and for the kernel, restart the kernel and reload the page.'
      )
    );
  }
  if (type === 'reply' && typeof id === 'number' && isObject(data.result)) {
    return { type, id, result: data.result };
  }
  if (type === 'event' && typeof data.name === 'string' && isObject(data.body)) {
    return { type, name: data.name, body: data.body };
  }
  if (type === 'error' && (typeof id === 'number' || id === null) && isObject(data.error)) {
    const { code, message, hint } = data.error;
    if (typeof code === 'string' && typeof message === 'string' && typeof hint === 'string') {
      return { type, id, error: new LabError(code, message, hint) };
    }
  }
  throw new LabError(
    'malformed',
    trans.__('The kernel sent a message of type %1 that cannot be read.', String(type))
  );
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
