import { expect, test } from 'vitest';

import type { TrackName } from '../timeline/layout';
import { keepLanes } from './laneStore';

function panel() {
  const model = { folded: new Set<TrackName>(), pinned: new Set<TrackName>() };
  const timeline = {
    onLanes: (): void => undefined,
    takeLanes: (folded: Iterable<TrackName>, pinned: Iterable<TrackName>) => {
      model.folded = new Set(folded);
      model.pinned = new Set(pinned);
    }
  };
  return { model, timeline };
}

function store(values: Record<string, unknown> = {}) {
  return {
    values,
    fetch: async (id: string) => values[id],
    save: async (id: string, value: unknown) => {
      values[id] = structuredClone(value);
    },
    remove: async () => undefined
  };
}

test('lanes are as they were when the panel is opened again', async () => {
  const kept = store();
  const first = panel();
  await keepLanes(first.model, first.timeline, kept);
  first.model.folded.add('modules');
  first.model.pinned.add('resident').add('stalls');
  first.timeline.onLanes();
  const next = panel();
  await keepLanes(next.model, next.timeline, kept);
  expect([...next.model.folded]).toEqual(['modules']);
  expect([...next.model.pinned]).toEqual(['resident', 'stalls']);
});

test('what no lane is called is left out, and nonsense is nothing', async () => {
  const { model, timeline } = panel();
  const odd = { folded: ['blocks', 'ops', 7], pinned: { in: true } };
  await keepLanes(model, timeline, store({ 'chameleon-lab-lanes': odd }));
  expect([[...model.folded], [...model.pinned]]).toEqual([['ops'], []]);
});

test('what the person has done meanwhile stays', async () => {
  const { model, timeline } = panel();
  const kept = store({ 'chameleon-lab-lanes': { folded: ['ops'], pinned: ['ops'] } });
  const taken = keepLanes(model, timeline, kept);
  model.pinned.add('in');
  timeline.onLanes();
  await taken;
  expect([[...model.folded], [...model.pinned]]).toEqual([[], ['in']]);
  await keepLanes(panel().model, panel().timeline, null); // and without a store
});
