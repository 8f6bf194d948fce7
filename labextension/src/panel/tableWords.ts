// What is said beside the tabs of the tables, and which table is in front.

import { formatBytes, formatCount, plural } from '../format';
import type { IAlive, IScene, ISearch } from '../protocol';

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
        ? `${plural(found?.op_count ?? 0, 'op')} of ${formatCount(scene?.ops ?? 0)}`
        : 'Search to list ops';
    default:
      return storagesSaid(found);
  }
}

function aliveSaid(alive: IAlive): string {
  const { op, resident_bytes, away_bytes, dropped_bytes, can_leave_bytes } = alive;
  const where = op.module ? ` in ${op.module}` : '';
  const dropped = dropped_bytes ? ` ${formatBytes(dropped_bytes)} dropped,` : '';
  return `At ${op.name}${where}: ${formatBytes(resident_bytes)} on the device, ${formatBytes(away_bytes)} away,${dropped} ${formatBytes(can_leave_bytes)} could leave`;
}

function replaysSaid(count: number, declined: number): string {
  const drops = declined ? `, ${plural(declined, 'drop')} declined` : '';
  return `${plural(count, 'replay')}${drops} of the storages found`;
}

function storagesSaid(found: ISearch | null): string {
  const shown = found?.storages.length ?? 0;
  const count = found?.storage_count ?? 0;
  const largest = shown < count ? `; the largest ${shown} are listed` : '';
  return `${plural(count, 'storage')}, ${formatBytes(found?.storage_bytes ?? 0)}${largest}`;
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
