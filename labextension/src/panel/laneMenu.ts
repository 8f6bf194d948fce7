// Which tracks of the drawing are shown.

import { openMenu } from '../editor/menu';
import type { LabModel } from '../model';
import { trans } from '../texts';
import { FOLDABLE, type TrackName } from '../timeline/layout';
import type { Timeline } from '../timeline/timeline';

/** The tracks that the drawn steps have, each to be folded or shown. */
export function openLaneMenu(
  host: HTMLElement,
  at: HTMLElement,
  { scene, folded }: LabModel,
  timeline: Timeline
): void {
  const { left, bottom } = at.getBoundingClientRect();
  const there: Partial<Record<TrackName, unknown>> = {
    marks: scene?.marks,
    replays: scene?.replays
  };
  const items = FOLDABLE.filter(([track]) => !(track in there) || there[track]);
  openMenu(
    host,
    trans.__('Lanes shown'),
    items.map(([track, name]) => ({
      text: name(),
      checked: !folded.has(track),
      many: true,
      run: () => timeline.fold(track)
    })),
    left,
    bottom + 2
  );
}
