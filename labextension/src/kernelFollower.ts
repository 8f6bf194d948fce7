// Which kernel the panel talks about: the one of the notebook in front.

import type { ISessionContext } from '@jupyterlab/apputils';
import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

/** What is known of a notebook's kernel without asking the kernel itself. */
export interface IFrontKernel {
  /** The notebook's name in its tab. */
  notebook: string;
  /** The kernel's display name, or undefined where the notebook has none. */
  kernel?: string;
  /** The kernel's language in lower case, or undefined while it is not known. */
  language?: string;
  status: ISessionContext.KernelDisplayStatus;
}

/** Follows the notebook in front, and its kernel through changes and restarts. */
export class KernelFollower implements IDisposable {
  constructor(private readonly _notebooks: INotebookTracker) {
    _notebooks.currentChanged.connect(this._follow, this);
    this._follow(_notebooks, _notebooks.currentWidget);
  }

  /** The kernel in front, or null where no notebook is open. */
  get current(): IFrontKernel | null {
    const panel = this._panel;
    if (!panel) {
      return null;
    }
    const context = panel.sessionContext;
    const name = context.session?.kernel?.name;
    const spec = name ? context.specsManager.specs?.kernelspecs[name] : undefined;
    return {
      notebook: panel.title.label,
      kernel: name && (spec?.display_name ?? name),
      language: spec?.language.toLowerCase(),
      status: this._status(context.kernelDisplayStatus)
    };
  }

  /** Answering the panel on a subshell makes a kernel look busy or idle; only its cells count. */
  private _status(shown: IFrontKernel['status']): IFrontKernel['status'] {
    const follows = this._cellRuns !== null && (shown === 'busy' || shown === 'idle');
    return follows ? (this._cellRuns ? 'busy' : 'idle') : shown;
  }

  private _heard(_: ISessionContext, message: KernelMessage.IMessage): void {
    const parent = message.parent_header as { msg_type?: string };
    if (message.header.msg_type === 'status' && parent.msg_type === 'execute_request') {
      const state = (message as KernelMessage.IStatusMsg).content.execution_state;
      this._cellRuns = state === 'busy';
      this._emit();
    }
  }

  private _changedKernel(): void {
    this._cellRuns = null;
    this._emit();
  }

  /** A kernel that dies in the midst of a cell never says that the cell has ended. */
  private _changedStatus(): void {
    const status = this._panel?.sessionContext.kernelDisplayStatus;
    if (status !== 'busy' && status !== 'idle') {
      this._cellRuns = null;
    }
    this._emit();
  }

  /** The line to the kernel in front, or null where there is none. */
  get kernel(): Kernel.IKernelConnection | null {
    return this._panel?.sessionContext.session?.kernel ?? null;
  }

  /** The path of the notebook in front, which stays while its kernels come and go. */
  get path(): string | null {
    return this._panel?.sessionContext.path ?? null;
  }

  /** Emitted when `current` may read differently. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._leave();
    this._notebooks.currentChanged.disconnect(this._follow, this);
    Signal.clearData(this);
  }

  private _follow(_: INotebookTracker, panel: NotebookPanel | null): void {
    if (panel !== this._panel) {
      this._leave();
      this._panel = panel;
      this._cellRuns = null;
      panel?.title.changed.connect(this._emit, this);
      panel?.sessionContext.kernelChanged.connect(this._changedKernel, this);
      panel?.sessionContext.iopubMessage.connect(this._heard, this);
      panel?.sessionContext.statusChanged.connect(this._changedStatus, this);
      panel?.sessionContext.connectionStatusChanged.connect(this._emit, this);
      panel?.sessionContext.specsManager.specsChanged.connect(this._emit, this);
    }
    this._emit();
  }

  private _leave(): void {
    const panel = this._panel;
    this._panel = null;
    panel?.title.changed.disconnect(this._emit, this);
    panel?.sessionContext.kernelChanged.disconnect(this._changedKernel, this);
    panel?.sessionContext.iopubMessage.disconnect(this._heard, this);
    panel?.sessionContext.statusChanged.disconnect(this._changedStatus, this);
    panel?.sessionContext.connectionStatusChanged.disconnect(this._emit, this);
    panel?.sessionContext.specsManager.specsChanged.disconnect(this._emit, this);
  }

  private _emit(): void {
    this._changed.emit();
  }

  private _panel: NotebookPanel | null = null;
  /** Whether a cell runs, or null before the kernel has said so. */
  private _cellRuns: boolean | null = null;
  private _isDisposed = false;
  private readonly _changed = new Signal<this, void>(this);
}
