import { nullTranslator } from '@jupyterlab/translation/lib/base';
import { afterEach, describe, expect, test } from 'vitest';

import schema from '../schema/plugin.json?raw';
import { statusWord } from './advice';
import { actionName, ruleText, who } from './editor/words';
import { CATEGORIES } from './protocol';
import { DOMAIN, english, speak, type Texts, trans } from './texts';
import { categoryName, errorTitle, pauseName, stallPart } from './words';

afterEach(() => speak(english));

/** Not of `trans`: the tool that collects the panel's texts would take them for some. */
type Said = (texts: Texts) => string;

describe.each([
  ['our own', () => english],
  [
    "JupyterLab's, as the panel has it",
    () => {
      speak(nullTranslator.load(DOMAIN));
      return trans;
    }
  ]
])('English: %s', (_, textsOf) => {
  test.each<[text: string, said: Said]>([
    ['Show all', texts => texts.__('Show all')],
    ['3 of ops, 3', texts => texts.__('%2 of %1, %2', 'ops', 3)],
    ['%2 and $&', texts => texts.__('%1 and %2', '%2', '$&')],
    ['a%% b%1 %%', texts => texts.__('%1 %%%%', 'a%% b%1')],
    ['100% of 5%, %load_ext', texts => texts.__('100%% of 5%, %load_ext')],
    ['1 op', texts => texts._n('%1 op', '%1 ops', 1)],
    ['0 ops', texts => texts._n('%1 op', '%1 ops', 0)],
    ['1,200 ops in all', texts => texts._n('%2 op in %3', '%2 ops in %3', 1200, '1,200', 'all')],
    ['2 late', texts => texts._p('a stall', '%1 late', 2)]
  ])('%s', (text, said) => {
    expect(said(textsOf())).toBe(text);
  });
});

test('the settings are translated with the panel, where JupyterLab would look into its own texts', () => {
  expect(JSON.parse(schema)['jupyter.lab.internationalization']).toEqual({ domain: DOMAIN });
});

const ACTIONS = ['keep', 'swap', 'never_touch', 'rematerialize', 'never_rematerialize'];

/** Words of the kernel's and of JupyterLab's code, as the panel calls them. */
test.each<[string, () => string[]]>([
  ['categories', () => CATEGORIES.map(categoryName)],
  ['parts of stalls', () => ['copy', 'queue', 'room', 'late', 'other'].map(stallPart)],
  ['pauses', () => ['idle', 'loading', 'cells'].map(pauseName)],
  ['errors', () => ['bad_file', 'no_file', 'cut_file', 'query', 'no_kernel', ''].map(errorTitle)],
  ['actions', () => ACTIONS.map(actionName)],
  ['rules', () => ACTIONS.map(action => ruleText({ action }))],
  ['who decides', () => (['you', 'rule', 'follows', 'planner'] as const).map(by => who({ by }))],
  [
    'kernels',
    () => (['idle', 'busy', 'restarting', 'dead', 'connecting', 'unknown'] as const).map(statusWord)
  ]
])('each word is translated: %s', (_, said) => {
  const foreign = (text: string) => text.replace(/\p{L}/gu, 'ж');
  speak({ ...english, __: foreign, _p: (_, text) => foreign(text) });
  expect(said().filter(text => /[a-z]/i.test(text))).toEqual([]);
});
