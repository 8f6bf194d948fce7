// What happened to a storage, in the order of the axis.

import { formatPercent, formatSeconds } from '../format';
import type { IStorageDetail } from '../protocol';
import { trans } from '../texts';
import { inWords, shortOp } from '../words';

export interface ILifeEvent {
  x: number;
  /** A letter's width, for whoever looks. */
  mark: string;
  text: string;
  detail: string;
  isLoss?: boolean;
}

export function lifeEvents(storage: IStorageDetail): ILifeEvent[] {
  const events = [
    ...usesOf(storage),
    ...transfersOf(storage),
    ...stallsOf(storage),
    ...replaysOf(storage),
    ...declinedOf(storage)
  ];
  return events.sort((a, b) => a.x - b.x);
}

/** The first use makes it, where it was not there before. */
function usesOf({ uses, born }: IStorageDetail): ILifeEvent[] {
  return uses.map((use, i) => {
    const makes = i === 0 && born?.row === use.row;
    return {
      x: use.x0,
      mark: makes ? '◆' : '▲',
      text: makes
        ? trans.__('Made by %1', shortOp(use.name))
        : trans.__('Used by %1', shortOp(use.name)),
      detail: [use.stage, use.module].filter(Boolean).join(', ')
    };
  });
}

function transfersOf({ transfers }: IStorageDetail): ILifeEvent[] {
  return transfers.map(({ x0, direction, duration_s, cause, hidden }) => {
    const out = direction === 'out';
    return {
      x: x0,
      mark: out ? '↓' : '↑',
      text: out
        ? trans.__('Swapped out in %1', formatSeconds(duration_s))
        : trans.__('Swapped in in %1', formatSeconds(duration_s)),
      detail: trans.__('%1, %2 hidden', cause, formatPercent(hidden))
    };
  });
}

function stallsOf({ stalls }: IStorageDetail): ILifeEvent[] {
  return stalls.map(({ x0, duration_s, op }) => ({
    x: x0,
    mark: '!',
    text: trans.__('Stall %1', formatSeconds(duration_s)),
    detail: op ? shortOp(op.name) : '',
    isLoss: true
  }));
}

function replaysOf({ replays }: IStorageDetail): ILifeEvent[] {
  return replays.map(({ x0, name, duration_s, op, cause }) => ({
    x: x0,
    mark: '↻',
    text: trans.__('Made again by %1 in %2', shortOp(name), formatSeconds(duration_s)),
    detail: op ? trans.__('for %1, %2', shortOp(op.name), cause) : cause
  }));
}

function declinedOf({ declined }: IStorageDetail): ILifeEvent[] {
  return declined.map(({ x0, why }) => ({
    x: x0,
    mark: '✕',
    text: trans.__('Drop declined'),
    detail: inWords(why)
  }));
}
