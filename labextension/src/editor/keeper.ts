// Drafts outlive the kernel that holds them: their edits are kept here, in JupyterLab's state, and offered again.

import type { IEdit } from '../protocol';

export interface IKept {
  /** The edits of the draft as they stood, those in force at that time among them. */
  edits: IEdit[];
  /** How many of them were not in force. */
  staged: number;
}

/** The part of JupyterLab's state database that is used. */
export interface IStore {
  fetch(id: string): Promise<unknown>;
  save(id: string, value: unknown): Promise<void>;
  remove(id: string): Promise<void>;
}

/** Not `chameleon-lab:`: what stands under a tracker's name is taken for its widgets, and removed when they are restored. */
export const PREFIX = 'chameleon-lab-draft:';

export class Keeper {
  constructor(private readonly _store: IStore | null) {}

  /** What is kept under a name, from this page or from before it was loaded. */
  async find(name: string): Promise<IKept | null> {
    const here = this._kept.get(name);
    if (here !== undefined) {
      return here;
    }
    const stored = await this._store?.fetch(PREFIX + name).catch(() => null);
    return this._kept.get(name) ?? (isKept(stored) ? stored : null);
  }

  keep(name: string, kept: IKept): void {
    this._kept.set(name, kept);
    void this._store?.save(PREFIX + name, kept).catch(() => undefined);
  }

  forget(name: string): void {
    if (this._kept.get(name) !== null) {
      this._kept.set(name, null);
      void this._store?.remove(PREFIX + name).catch(() => undefined);
    }
  }

  /** What this page keeps under a name, without asking the store. */
  has(name: string): IKept | null {
    return this._kept.get(name) ?? null;
  }

  private readonly _kept = new Map<string, IKept | null>();
}

function isKept(value: unknown): value is IKept {
  const kept = value as IKept | null | undefined;
  return (
    typeof kept === 'object' &&
    kept !== null &&
    typeof kept.staged === 'number' &&
    Array.isArray(kept.edits) &&
    kept.edits.every(
      edit => typeof edit === 'object' && edit !== null && typeof edit.action === 'string'
    )
  );
}
