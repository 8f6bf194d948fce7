// Keeps the model on the line with the kernel in front: through restarts, other notebooks, and late loading.

import type { Kernel } from '@jupyterlab/services';

import { openChannel } from './channel';
import { KernelClient } from './client';
import type { KernelFollower } from './kernelFollower';
import type { LabModel } from './model';
import type { LabError } from './protocol';

/** `absent`: the kernel has not loaded the extension. */
export type LineState = 'none' | 'connecting' | 'absent' | 'open';

const SETTLE_MS = 600;
const DOWN = new Set(['restarting', 'autorestarting', 'dead', 'terminating', 'unknown']);

export class Connection {
  constructor(
    private readonly _follower: KernelFollower,
    private readonly _model: LabModel,
    private readonly _changed: () => void
  ) {
    _follower.changed.connect(this._check, this);
    this._check();
  }

  get state(): LineState {
    return this._state;
  }

  /** Try again: the kernel says that the extension is there now. */
  retry(kernel: Kernel.IKernelConnection): void {
    if (kernel.id === this._follower.kernel?.id && this._state !== 'open') {
      this._hangUp();
      this._check();
    }
  }

  dispose(): void {
    this._follower.changed.disconnect(this._check, this);
    window.clearTimeout(this._settling);
    this._hangUp();
  }

  private _check(): void {
    const kernel = this._follower.kernel;
    const language = this._follower.current?.language;
    const usable = kernel && !kernel.isDisposed && (!language || language === 'python');
    if (!usable) {
      window.clearTimeout(this._settling);
      this._settling = undefined;
      if (this._kernel) {
        this._hangUp();
      }
      this._set('none');
    } else if (DOWN.has(kernel.status)) {
      if (this._kernel) {
        this._hangUp();
      }
      this._set('none');
      if (kernel.status !== 'dead') {
        this._settle(kernel);
      }
    } else if (kernel !== this._kernel && this._settling === undefined) {
      this._hangUp();
      // Before a kernel has said that it is there, a comm to it would be lost.
      if (kernel.status !== 'starting' && kernel.connectionStatus === 'connected') {
        this._kernel = kernel;
        void this._dial(kernel);
      }
    }
    this._changed();
  }

  /**
   * Wait for a kernel that restarts. It says "idle" before JupyterLab clears its line, and a comm opened before that
   * would be lost: so it has to answer first, and it can, as no cell runs yet.
   */
  private _settle(kernel: Kernel.IKernelConnection): void {
    window.clearTimeout(this._settling);
    this._settling = window.setTimeout(async () => {
      const turn = this._settling;
      await kernel.requestKernelInfo().catch(() => undefined); // it died again: its status will say so
      if (turn === this._settling) {
        this._settling = undefined;
        this._check();
      }
    }, SETTLE_MS);
  }

  private async _dial(kernel: Kernel.IKernelConnection): Promise<void> {
    const turn = ++this._turn;
    this._set('connecting');
    try {
      await kernel.info;
      const client = new KernelClient(await openChannel(kernel));
      // An answer that the panel cannot read, of another version say, is an answer too: the model shows it.
      const asked = client.request('hello', {}).then(
        answer => answer.result,
        error => error as LabError
      );
      if (turn !== this._turn) {
        client.dispose();
        return;
      }
      this._client = client;
      client.onClose = () => {
        if (this._client === client) {
          this._client = null;
          this._model.connect(null);
          this._set('absent');
        }
      };
      const hello = await asked;
      if (turn === this._turn && this._client === client) {
        this._model.connect(client, hello);
        this._set('open');
      }
    } catch {
      if (turn === this._turn) {
        this._set('absent');
      }
    }
  }

  private _hangUp(): void {
    this._turn++;
    this._kernel = null;
    const client = this._client;
    this._client = null;
    if (client) {
      client.onClose = () => undefined;
      client.dispose();
      this._model.connect(null);
    }
  }

  private _set(state: LineState): void {
    if (state !== this._state) {
      this._state = state;
      this._changed();
    }
  }

  private _state: LineState = 'none';
  private _kernel: Kernel.IKernelConnection | null = null;
  private _client: KernelClient | null = null;
  private _turn = 0;
  private _settling: number | undefined;
}
