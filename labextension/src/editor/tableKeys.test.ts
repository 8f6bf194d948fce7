import { expect, test } from 'vitest';

import { type ITablePlace, type TableAct, tableAct } from './tableKeys';

const PLACE: ITablePlace = { total: 100, page: 10, selected: 'a', position: 50, hasPicked: false };
const NONE: ITablePlace = { ...PLACE, selected: null, position: null };

function act(keys: string, place = PLACE): TableAct | null {
  const parts = keys.split('+');
  return tableAct(
    {
      key: parts.at(-1) ?? '',
      ctrlKey: parts.includes('Ctrl'),
      metaKey: parts.includes('Meta'),
      altKey: parts.includes('Alt'),
      shiftKey: parts.includes('Shift')
    },
    place
  );
}

test.each([
  ['ArrowDown', 51],
  ['ArrowUp', 49],
  ['PageDown', 60],
  ['PageUp', 40],
  ['Home', 0],
  ['End', 99]
])('%s goes to row %d, and with Shift picks all the way', (key, to) => {
  expect(act(key)).toEqual({ does: 'move', from: 50, to, picks: false });
  expect(act(`Shift+${key}`)).toEqual({ does: 'move', from: 50, to, picks: true });
});

test.each([
  ['ArrowDown', 99, 99],
  ['PageDown', 95, 99],
  ['ArrowUp', 0, 0],
  ['PageUp', 3, 0]
])('%s from row %d stays within the table, at %d', (key, position, to) => {
  expect(act(key, { ...PLACE, position })).toMatchObject({ from: position, to });
});

test.each([
  ['ArrowDown', 0],
  ['End', 0],
  ['ArrowUp', 99],
  ['Home', 99]
])('%s where no row is selected begins at row %d', (key, to) => {
  expect(act(key, NONE)).toEqual({ does: 'move', from: null, to, picks: false });
});

test.each<[string, ITablePlace, TableAct | null]>([
  ['Ctrl+a', PLACE, { does: 'pick all' }],
  ['Meta+a', NONE, { does: 'pick all' }],
  ['a', PLACE, null],
  ['Alt+a', PLACE, null],
  ['Ctrl+ArrowDown', PLACE, null],
  ['Alt+ArrowDown', PLACE, null],
  ['ArrowDown', { ...NONE, total: 0 }, null],
  [' ', PLACE, { does: 'toggle' }],
  [' ', NONE, { does: 'toggle' }],
  ['Escape', PLACE, { does: 'leave' }],
  ['Escape', { ...PLACE, hasPicked: true }, { does: 'unpick' }],
  ['Enter', PLACE, { does: 'show', storage: 'a' }],
  ['Enter', NONE, null],
  ['ContextMenu', PLACE, { does: 'menu', storage: 'a' }],
  ['Shift+F10', PLACE, { does: 'menu', storage: 'a' }],
  ['F10', PLACE, null],
  ['ContextMenu', NONE, null],
  ['Tab', PLACE, null]
])('%s in %j means %j', (keys, place, wanted) => {
  expect(act(keys, place)).toEqual(wanted);
});
