import { expect, test } from 'vitest';

import type { IView } from './tables';
import { ViewStore } from './viewStore';

const view = (start: number, end: number, exact = false) => ({ start, end, exact }) as IView;

test('draws the closer look where it covers what is shown, else the whole', () => {
  const store = new ViewStore();
  store.overview = view(0, 100);
  store.detail = view(10, 30);
  expect(store.best({ start: 12, end: 20 })).toBe(store.detail);
  expect(store.best({ start: 25, end: 35 })).toBe(store.overview);
});

test('asks for no more where the whole shows everything', () => {
  const store = new ViewStore();
  expect(store.wanted({ start: 1, end: 2 }, 100)).toBeNull();
  store.overview = view(0, 100, true);
  expect(store.wanted({ start: 1, end: 2 }, 100)).toBeNull();
});

test('asks for a margin on both sides, within the axis', () => {
  const store = new ViewStore();
  store.overview = view(0, 100);
  expect(store.wanted({ start: 40, end: 50 }, 100)).toEqual({ start: 30, end: 60 });
  expect(store.wanted({ start: 2, end: 12 }, 100)).toEqual({ start: 0, end: 22 });
  expect(store.wanted({ start: 0, end: 95 }, 100)).toBeNull();
});

test('asks again near the edge of the closer look, and when it has become coarse', () => {
  const store = new ViewStore();
  store.overview = view(0, 100);
  store.detail = view(30, 60);
  expect(store.wanted({ start: 41, end: 51 }, 100)).toBeNull();
  expect(store.wanted({ start: 31, end: 41 }, 100)).toEqual({ start: 21, end: 51 });
  expect(store.wanted({ start: 44, end: 45 }, 100)).toEqual({ start: 43, end: 46 });
  store.detail = view(30, 60, true);
  expect(store.wanted({ start: 44, end: 45 }, 100)).toBeNull();
});
