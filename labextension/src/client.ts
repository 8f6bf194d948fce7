// Requests to the kernel and their answers, over any channel that carries messages both ways.

import {
  type IMethods,
  type IRequest,
  LabError,
  type Method,
  parseMessage,
  VERSION
} from './protocol';
import { trans } from './texts';

/** One line to a kernel; `channel.ts` makes it of a comm. */
export interface IChannel {
  send(message: IRequest): void;
  close(): void;
  onMessage: (data: unknown, buffers: Uint8Array[]) => void;
  onClose: () => void;
}

export interface IAnswer<M extends Method> {
  result: IMethods[M][1];
  buffers: Uint8Array[];
}

interface IWaiting {
  resolve(answer: { result: unknown; buffers: Uint8Array[] }): void;
  reject(error: LabError): void;
}

export class KernelClient {
  constructor(private readonly _channel: IChannel) {
    _channel.onMessage = (data, buffers) => this._receive(data, buffers);
    _channel.onClose = () => this._end(new LabError('closed', trans.__('The kernel hung up.')));
  }

  /** Called with what the kernel says unasked. */
  onEvent: (name: string, body: unknown) => void = () => undefined;
  /** Called with an error that answers no request. */
  onError: (error: LabError) => void = () => undefined;
  /** Called once, when the line is down. */
  onClose: () => void = () => undefined;

  /** Requests without an answer yet. */
  get waiting(): number {
    return this._waiting.size;
  }

  /** Ask; rejects with a LabError where the kernel cannot answer, or hangs up before it does. */
  request<M extends Method>(method: M, params: IMethods[M][0]): Promise<IAnswer<M>> {
    if (this._ended) {
      return Promise.reject(new LabError('closed', trans.__('There is no line to the kernel.')));
    }
    const id = this._next++;
    return new Promise((resolve, reject) => {
      this._waiting.set(id, { resolve: resolve as IWaiting['resolve'], reject });
      this._channel.send({ version: VERSION, type: 'request', id, method, params });
    });
  }

  /** Hang up. */
  dispose(): void {
    if (!this._ended) {
      this._end(new LabError('closed', trans.__('The panel hung up.')));
      this._channel.close();
    }
  }

  private _receive(data: unknown, buffers: Uint8Array[]): void {
    let message: ReturnType<typeof parseMessage>;
    try {
      message = parseMessage(data);
    } catch (error) {
      // Whoever waits for this answer would wait for ever.
      const id = (data as { id?: unknown } | null)?.id;
      if (typeof id === 'number' && this._waiting.has(id)) {
        this._take(id)?.reject(error as LabError);
      } else {
        this.onError(error as LabError);
      }
      return;
    }
    switch (message.type) {
      case 'reply':
        this._take(message.id)?.resolve({ result: message.result, buffers });
        break;
      case 'event':
        this.onEvent(message.name, message.body);
        break;
      case 'error': {
        const waiting = message.id === null ? undefined : this._take(message.id);
        if (waiting) {
          waiting.reject(message.error);
        } else {
          this.onError(message.error);
        }
      }
    }
  }

  private _take(id: number): IWaiting | undefined {
    const waiting = this._waiting.get(id);
    this._waiting.delete(id);
    return waiting;
  }

  private _end(error: LabError): void {
    if (this._ended) {
      return;
    }
    this._ended = true;
    const waiting = [...this._waiting.values()];
    this._waiting.clear();
    for (const { reject } of waiting) {
      reject(error);
    }
    this.onClose();
  }

  private _next = 1;
  private _ended = false;
  private readonly _waiting = new Map<number, IWaiting>();
}
