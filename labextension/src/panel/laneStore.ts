// Which lanes are folded and pinned, kept in JupyterLab's state for the next time that the panel is opened.

import type { IStore } from '../editor/keeper';
import type { LabModel } from '../model';
import { FOLDABLE, PINNABLE, type TrackName } from '../timeline/layout';
import type { Timeline } from '../timeline/timeline';

/** Not `chameleon-lab:`, which is the tracker's. */
const KEY = 'chameleon-lab-lanes';

/** Take over what was kept, and keep what the person changes from now on. */
export async function keepLanes(
  { folded, pinned }: Pick<LabModel, 'folded' | 'pinned'>,
  timeline: Pick<Timeline, 'onLanes' | 'takeLanes'>,
  store: IStore | null
): Promise<void> {
  let changed = false;
  timeline.onLanes = () => {
    changed = true;
    void store?.save(KEY, { folded: [...folded], pinned: [...pinned] }).catch(() => undefined);
  };
  const kept = (await store?.fetch(KEY).catch(() => null)) as Record<string, unknown> | null;
  if (!changed && kept) {
    const foldable = new Set(FOLDABLE.map(([track]) => track));
    timeline.takeLanes(tracks(kept.folded, foldable), tracks(kept.pinned, PINNABLE));
  }
}

/** Those that are lanes: what a browser has kept is not trusted. */
function tracks(value: unknown, known: ReadonlySet<TrackName>): TrackName[] {
  return Array.isArray(value) ? value.filter(name => known.has(name as TrackName)) : [];
}
