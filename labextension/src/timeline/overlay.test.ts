import { expect, test } from 'vitest';

import { roundTrips } from './overlay';

test.each<[string, [number, number][]]>([
  ['', []],
  ['out', []],
  ['in', []],
  ['out in', [[1, 0]]],
  ['in out in', [[2, 1]]],
  ['out in in', [[1, 0]]],
  ['out out in', [[2, 1]]],
  [
    'out in out in out',
    [
      [1, 0],
      [3, 2]
    ]
  ]
])('of the transfers %j, ways back follow ways out', (directions, wanted) => {
  const transfers = directions
    .split(' ')
    .filter(Boolean)
    .map(direction => ({ direction: direction as 'out' | 'in' }));
  const trips = [...roundTrips(transfers)];
  expect(trips.map(pair => pair.map(one => transfers.indexOf(one)))).toEqual(wanted);
});
