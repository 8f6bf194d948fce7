// What is said beside the tabs of the tables, and which table is in front.

import { counted } from '../counts';
import { formatBytes, formatCount } from '../format';
import type { IAlive, IScene, ISearch } from '../protocol';
import { trans } from '../texts';

/** What the tables list, as far as it is known. */
export interface IListed {
  found: ISearch | null;
  alive: IAlive | null;
  query: string;
  scene: IScene | null;
}

/** Of the table in front. */
export function tableSaid(tab: string, { found, alive, query, scene }: IListed): string {
  switch (tab) {
    case 'alive':
      return alive ? aliveSaid(alive) : '';
    case 'replays':
      return replaysSaid(found?.replay_count ?? 0, found?.declined_count ?? 0);
    case 'ops':
      return query.trim()
        ? trans._p(
            'ops found',
            '%1 of %2',
            counted.ops(found?.op_count ?? 0),
            formatCount(scene?.ops ?? 0)
          )
        : trans.__('Search to list ops');
    default:
      return storagesSaid(found);
  }
}

function aliveSaid(alive: IAlive): string {
  const { op, resident_bytes, away_bytes, dropped_bytes, can_leave_bytes } = alive;
  const where = op.module ? trans.__('%1 in %2', op.name, op.module) : op.name;
  const [resident, away, dropped, leaves] = [
    resident_bytes,
    away_bytes,
    dropped_bytes,
    can_leave_bytes
  ].map(formatBytes);
  return dropped_bytes
    ? trans.__(
        'At %1: %2 on the device, %3 away, %4 dropped, %5 could leave',
        where,
        resident,
        away,
        dropped,
        leaves
      )
    : trans.__('At %1: %2 on the device, %3 away, %4 could leave', where, resident, away, leaves);
}

function replaysSaid(count: number, declined: number): string {
  const replays = trans._n('%2 replay', '%2 replays', count, formatCount(count));
  return declined
    ? trans.__('%1, %2 declined of the storages found', replays, counted.drops(declined))
    : trans.__('%1 of the storages found', replays);
}

function storagesSaid(found: ISearch | null): string {
  const shown = found?.storages.length ?? 0;
  const count = found?.storage_count ?? 0;
  const all = `${counted.storages(count)}, ${formatBytes(found?.storage_bytes ?? 0)}`;
  return shown < count
    ? trans._n('%2; the largest %1 are listed', '%2; the largest %1 are listed', shown, all)
    : all;
}

/** Whether steps have replays, or drops that were declined. */
export function hasReplays(scene: IScene | null): boolean {
  return Boolean(scene && (scene.replays || scene.declined));
}

/** A tab that is hidden gives its place to the storages; that of replays not before steps are known. */
export function tabInFront(tab: string, hidden: ReadonlySet<string>, known: boolean): string {
  const stays = tab === 'replays' && !known;
  return hidden.has(tab) && !stays ? 'storages' : tab;
}
