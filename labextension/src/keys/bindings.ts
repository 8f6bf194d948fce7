// Which keys the panel's commands have, as a person reads them: their defaults, or what the settings say instead.

import { CommandRegistry } from '@lumino/commands';

/** Before the names of all the panel's commands. */
export const PREFIX = 'chameleon-lab:';

/** What is read of JupyterLab's commands. */
export type Registry = Pick<CommandRegistry, 'keyBindings' | 'keyBindingChanged'>;

export class Bindings {
  constructor(private readonly _registry: Registry) {
    _registry.keyBindingChanged.connect(this._heard, this);
  }

  dispose(): void {
    this._registry.keyBindingChanged.disconnect(this._heard, this);
    globalThis.clearTimeout(this._timer);
    this._followers.length = 0;
  }

  /** The keys of a command, the one to name first; none where the person has taken them away. */
  of(action: string): string[] {
    const keys = this._registry.keyBindings
      .filter(binding => binding.command === PREFIX + action)
      .map(binding => CommandRegistry.formatKeystroke(binding.keys));
    return [...new Set(keys)];
  }

  /** The key to name for a command, or nothing. */
  first(action: string): string {
    return this.of(action)[0] ?? '';
  }

  /** A text with the key of a command in brackets. */
  hint(text: string, action: string): string {
    const key = this.first(action);
    return key ? `${text} (${key})` : text;
  }

  /** Call a function now, and whenever keys may be others. */
  follow(write: () => void): void {
    this._followers.push(write);
    write();
  }

  /** Settings come one binding at a time: they are written once. */
  private _heard(): void {
    this._timer ??= globalThis.setTimeout(() => {
      this._timer = undefined;
      for (const write of this._followers) {
        write();
      }
    }, 0);
  }

  private readonly _followers: (() => void)[] = [];
  private _timer: ReturnType<typeof setTimeout> | undefined;
}
