// What the bottom bar says of the draft, and what each of its buttons may do.

import { formatBytes } from '../format';
import type { IOpenDraft } from '../protocol';
import { trans } from '../texts';
import { atLeast, needed, standing } from './words';

export interface IButtonState {
  enabled: boolean;
  hidden?: boolean;
  /** The one that leads on. */
  primary?: boolean;
  text?: string;
  title?: string;
}

export type BarButton =
  | 'lift'
  | 'undo'
  | 'redo'
  | 'discard'
  | 'load'
  | 'save'
  | 'rollBack'
  | 'dryRun'
  | 'enable';

export interface IBarState {
  text: string;
  kind: string;
  buttons: Record<BarButton, IButtonState>;
}

/** The bar of an open draft. `said`: what comes before where it stands; `busy`: the kernel is at work on it. */
export function barState(open: IOpenDraft, said: string, busy: boolean): IBarState {
  const { text, kind } = standing(open);
  return {
    text: said ? `${said} ${text}` : text,
    kind,
    buttons: {
      lift: liftState(open, busy),
      undo: { enabled: open.can_undo && !busy },
      redo: { enabled: open.can_redo && !busy },
      discard: { enabled: !open.same && !busy },
      load: { enabled: !busy },
      save: { enabled: open.fits && !busy },
      rollBack: { enabled: open.can_roll_back && !busy, hidden: !open.can_roll_back },
      ...useStates(open, busy)
    }
  };
}

/** Whether steps run under the draft, or will from the next border on, to try it. */
export function isRunning({ dry_run }: IOpenDraft): boolean {
  return dry_run !== null && !dry_run.done;
}

function liftState(open: IOpenDraft, busy: boolean): IButtonState {
  const least = needed(open);
  const below = open.capacity_bytes < least;
  return {
    enabled: below && !busy,
    hidden: !below,
    primary: below,
    text: trans.__('Set capacity to %1', formatBytes(atLeast(least)))
  };
}

/** A draft is tried first: the dry run leads on until it has measured this very draft. */
function useStates(open: IOpenDraft, busy: boolean): Record<'dryRun' | 'enable', IButtonState> {
  const { dry_run, why_not_enable } = open;
  const running = isRunning(open);
  const tried = Boolean(dry_run?.done && dry_run.of_draft && dry_run.measured);
  const may = open.fits && !why_not_enable && !busy && open.exact && !open.same;
  return {
    dryRun: {
      enabled: running || may,
      primary: may && !tried && !running,
      text: running ? trans.__('Stop the dry run') : trans.__('Dry run 1 step'),
      title: why_not_enable || trans.__('Try the draft for the next steps, and go back')
    },
    enable: {
      enabled: may,
      primary: may && tried,
      title: why_not_enable || trans.__('Use the draft from the next step border on')
    }
  };
}
