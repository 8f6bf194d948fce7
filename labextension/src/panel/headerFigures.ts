// The figures in the header: of what is drawn, and a dash where nobody has measured one.

import { counted } from '../counts';
import { h } from '../dom';
import {
  formatBytes,
  formatCount,
  formatPercent,
  formatSeconds,
  NOTHING,
  orNothing
} from '../format';
import type { Drawn } from '../model';
import type { IScene, ISessionStatus, ISteps } from '../protocol';
import { trans } from '../texts';
import { floorWords, overlapWords, stepsName } from '../words';

export interface IHeaderFigure {
  /** What style sheets call it. */
  id: string;
  name: string;
  value: string;
  /** Beside it, smaller: what it is of. */
  more: string;
  title?: string;
}

/** A figure as the header shows it. */
export function figureNode({ id, name, value, more, title }: IHeaderFigure): HTMLElement {
  const [number, unit] = unitApart(value);
  return h(
    'div',
    { 'data-figure': id, title: title ?? '' },
    h('dt', {}, name),
    h('dd', {}, h('b', {}, number), ` ${unit} `, h('span', { class: 'cl-dim cl-more' }, more))
  );
}

/** A number and its unit; words stay together. */
export function unitApart(value: string): [number: string, unit: string] {
  const [, number, unit] = /^([^ ]*\d[^ ]*) (.*)$/.exec(value) ?? ['', value, ''];
  return [number, unit];
}

/** What is drawn, in words: a step of the session, of a trace file, or of a draft. */
export function whatIsDrawn(steps: ISteps, scene: IScene, drawn: Drawn): string {
  const [first, last] = [scene.steps[0], scene.steps[scene.steps.length - 1]];
  if (drawn === 'draft') {
    return trans.__('draft, predicted');
  }
  return steps.first === steps.last
    ? stepsName(last.index, last.index)
    : stepsName(first.index, last.index);
}

/** The figures of what is drawn; before anything is, those of the session that are no measurement. */
export function headerFigures(
  session: ISessionStatus | null,
  steps: ISteps | null,
  scene: IScene | null,
  drawn: Drawn
): IHeaderFigure[] {
  const own = steps !== null && steps.source === session?.source ? session : null;
  const of = steps && scene ? whatIsDrawn(steps, scene, drawn) : trans.__('no step has ended');
  return [
    capacityFigure(session, scene),
    {
      id: 'Peak',
      name: drawn === 'draft' ? trans.__('Peak, predicted') : trans.__('Peak, measured'),
      value: orNothing(scene?.peak_bytes, formatBytes),
      more: of
    },
    stepTimeFigure(own, scene, of),
    {
      id: 'Stall',
      name: trans.__('Stall'),
      value: orNothing(scene?.stall_s, formatSeconds),
      more: of
    },
    {
      id: 'Overlap',
      name: trans.__('Overlap'),
      value: orNothing(scene?.overlap, formatPercent),
      more: of,
      title: overlapWords()
    },
    {
      id: 'Moved',
      name: trans.__('Moved'),
      value: scene ? formatBytes(scene.moved_bytes[0] + scene.moved_bytes[1]) : NOTHING,
      more: trans.__('both ways')
    },
    ...replaysFigure(own, scene),
    {
      id: 'Host pool',
      name: trans.__('Host pool'),
      value: own ? formatBytes(own.host_bytes) : NOTHING,
      more: own ? trans.__('now; peak %1', formatBytes(own.host_peak_bytes)) : ''
    },
    {
      id: 'Match rate',
      name: trans.__('Match rate'),
      value: drawn === 'draft' ? NOTHING : orNothing(scene?.match_rate, formatPercent),
      more: own ? decisions(own) : ''
    }
  ];
}

function capacityFigure(session: ISessionStatus | null, scene: IScene | null): IHeaderFigure {
  const capacity = scene ? scene.capacity_bytes : (session?.capacity_bytes ?? null);
  return {
    id: 'Capacity',
    name: trans.__('Capacity'),
    value: capacity === null ? trans._p('capacity', 'none') : formatBytes(capacity),
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
  const figure = { id: 'Step time', name: trans.__('Step time') };
  if (!scene) {
    return { ...figure, value: NOTHING, more: of };
  }
  const count = scene.steps.length;
  const seconds = scene.steps.reduce((sum, step) => sum + step.duration_s, 0);
  const value = formatSeconds(seconds / count);
  if (count > 1) {
    return { ...figure, value, more: trans.__('mean of %1', of) };
  }
  const more = own ? trans.__('%1; median %2', of, formatSeconds(own.step_s)) : of;
  return { ...figure, value, more };
}

/** None where nothing was dropped, and nothing should have been. */
function replaysFigure(own: ISessionStatus | null, scene: IScene | null): IHeaderFigure[] {
  const figure = { id: 'Replays', name: trans.__('Replays') };
  if (scene && (scene.replays || scene.declined || scene.dropped_bytes)) {
    const { replays, declined, dropped_bytes, replay_s } = scene;
    const again = trans.__('%1, %2 made again', formatCount(replays), formatBytes(dropped_bytes));
    const more = declined ? `${again}; ${declinedWords(declined)}` : again;
    return [{ ...figure, value: formatSeconds(replay_s), more }];
  }
  const declined = Object.values(own?.declined_drops ?? {}).reduce((sum, n) => sum + n, 0);
  return declined ? [{ ...figure, value: NOTHING, more: declinedWords(declined) }] : [];
}

function declinedWords(drops: number): string {
  return trans._n('%2 declined', '%2 declined', drops, formatCount(drops));
}

function capacityOf(capacity: number | null, alive: number): string {
  if (capacity === null) {
    return trans.__('recording only');
  }
  if (!alive) {
    return '';
  }
  return capacity >= alive
    ? trans.__('more than the %1 alive', formatBytes(alive))
    : trans._p('share', '%1 of %2', formatPercent(capacity / alive), formatBytes(alive));
}

function decisions({ swaps, drops }: ISessionStatus): string {
  const parts = [swaps && counted.swaps(swaps), drops && counted.drops(drops)];
  return parts.filter(Boolean).join(', ') || trans.__('no policy');
}
