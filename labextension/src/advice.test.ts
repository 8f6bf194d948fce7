import { expect, test } from 'vitest';

import { advise } from './advice';
import type { IFrontKernel } from './kernelFollower';

const python: IFrontKernel = {
  notebook: 'train.ipynb',
  kernel: 'Python 3 (ipykernel)',
  language: 'python',
  status: 'idle'
};

test('no notebook: asks for one', () => {
  expect(advise(null)).toMatchObject({ title: 'No notebook in front', usable: false });
});

test('an idle Python kernel is named and usable', () => {
  expect(advise(python)).toMatchObject({
    title: 'train.ipynb · Python 3 (ipykernel) · idle',
    usable: true
  });
});

test('a notebook without a kernel is not usable', () => {
  expect(advise({ ...python, kernel: undefined, language: undefined })).toMatchObject({
    title: 'train.ipynb',
    usable: false
  });
});

test('a kernel of another language is not usable', () => {
  const advice = advise({ ...python, kernel: 'R', language: 'r' });
  expect(advice.usable).toBe(false);
  expect(advice.text).toContain('Python kernel');
});

test('a kernel whose language is not known yet counts as Python', () => {
  expect(advise({ ...python, language: undefined }).usable).toBe(true);
});

test.each([
  ['busy', 'busy', true],
  ['autorestarting', 'restarting', true],
  ['dead', 'not running', false],
  ['disconnected', 'not connected', false],
  ['initializing', 'starting', true]
] as const)('status %s reads "%s"', (status, word, usable) => {
  const advice = advise({ ...python, status });
  expect(advice.title.endsWith(`· ${word}`)).toBe(true);
  expect(advice.usable).toBe(usable);
});
