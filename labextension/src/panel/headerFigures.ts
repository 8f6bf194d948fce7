// The figures in the header: of what is drawn, and a dash where nobody has measured one.

import {
  formatBytes,
  formatCount,
  formatPercent,
  formatSeconds,
  NOTHING,
  orNothing,
  plural
} from '../format';
import type { Drawn } from '../model';
import type { IScene, ISessionStatus, ISteps } from '../protocol';
import { floorWords, OVERLAP } from '../words';

export interface IHeaderFigure {
  name: string;
  value: string;
  /** Beside it, smaller: what it is of. */
  more: string;
  title?: string;
}

/** What is drawn, in words: a step of the session, of a trace file, or of a draft. */
export function whatIsDrawn(steps: ISteps, scene: IScene, drawn: Drawn): string {
  const [first, last] = [scene.steps[0], scene.steps[scene.steps.length - 1]];
  if (drawn === 'draft') {
    return 'draft, predicted';
  }
  return steps.first === steps.last
    ? `step ${last.index}`
    : `steps ${first.index} to ${last.index}`;
}

/** The figures of what is drawn; before anything is, those of the session that are no measurement. */
export function headerFigures(
  session: ISessionStatus | null,
  steps: ISteps | null,
  scene: IScene | null,
  drawn: Drawn
): IHeaderFigure[] {
  const own = steps !== null && steps.source === session?.source ? session : null;
  const of = steps && scene ? whatIsDrawn(steps, scene, drawn) : 'no step has ended';
  return [
    capacityFigure(session, scene),
    {
      name: drawn === 'draft' ? 'Peak, predicted' : 'Peak, measured',
      value: orNothing(scene?.peak_bytes, formatBytes),
      more: of
    },
    stepTimeFigure(own, scene, of),
    { name: 'Stall', value: orNothing(scene?.stall_s, formatSeconds), more: of },
    { name: 'Overlap', value: orNothing(scene?.overlap, formatPercent), more: of, title: OVERLAP },
    {
      name: 'Moved',
      value: scene ? formatBytes(scene.moved_bytes[0] + scene.moved_bytes[1]) : NOTHING,
      more: 'both ways'
    },
    ...replaysFigure(own, scene),
    {
      name: 'Host pool',
      value: own ? formatBytes(own.host_bytes) : NOTHING,
      more: own ? `now; peak ${formatBytes(own.host_peak_bytes)}` : ''
    },
    {
      name: 'Match rate',
      value: drawn === 'draft' ? NOTHING : orNothing(scene?.match_rate, formatPercent),
      more: own ? decisions(own) : ''
    }
  ];
}

function capacityFigure(session: ISessionStatus | null, scene: IScene | null): IHeaderFigure {
  const capacity = scene ? scene.capacity_bytes : (session?.capacity_bytes ?? null);
  return {
    name: 'Capacity',
    value: capacity === null ? 'none' : formatBytes(capacity),
    more: capacityOf(capacity, scene?.live_peak_bytes ?? 0),
    title: scene ? floorWords(scene.floor) : ''
  };
}

/** The mean of several steps; of one of the session's, what its steps take otherwise stands beside it. */
function stepTimeFigure(
  own: ISessionStatus | null,
  scene: IScene | null,
  of: string
): IHeaderFigure {
  const name = 'Step time';
  if (!scene) {
    return { name, value: NOTHING, more: of };
  }
  const count = scene.steps.length;
  const seconds = scene.steps.reduce((sum, step) => sum + step.duration_s, 0);
  const value = formatSeconds(seconds / count);
  if (count > 1) {
    return { name, value, more: `mean of ${of}` };
  }
  return { name, value, more: own ? `${of}; median ${formatSeconds(own.step_s)}` : of };
}

/** None where nothing was dropped, and nothing should have been. */
function replaysFigure(own: ISessionStatus | null, scene: IScene | null): IHeaderFigure[] {
  const name = 'Replays';
  if (scene && (scene.replays || scene.declined || scene.dropped_bytes)) {
    const { replays, declined, dropped_bytes, replay_s } = scene;
    const made = `${formatCount(replays)}, ${formatBytes(dropped_bytes)} made again`;
    const more = declined ? `${made}; ${formatCount(declined)} declined` : made;
    return [{ name, value: formatSeconds(replay_s), more }];
  }
  const declined = Object.values(own?.declined_drops ?? {}).reduce((sum, n) => sum + n, 0);
  return declined ? [{ name, value: NOTHING, more: `${formatCount(declined)} declined` }] : [];
}

function capacityOf(capacity: number | null, alive: number): string {
  if (capacity === null) {
    return 'recording only';
  }
  if (!alive) {
    return '';
  }
  return capacity >= alive
    ? `more than the ${formatBytes(alive)} alive`
    : `${formatPercent(capacity / alive)} of ${formatBytes(alive)}`;
}

function decisions({ swaps, drops }: ISessionStatus): string {
  const parts = [swaps && plural(swaps, 'swap'), drops && plural(drops, 'drop')];
  return parts.filter(Boolean).join(', ') || 'no policy';
}
