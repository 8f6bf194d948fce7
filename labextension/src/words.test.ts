import { describe, expect, test } from 'vitest';

import { counted } from './counts';
import { formatBytes, formatCount, formatPercent, formatSeconds } from './format';
import type { IFloor, IStorage } from './protocol';
import {
  BANDS,
  bandOf,
  endOf,
  errorTitle,
  explained,
  inWords,
  measuredOn,
  nameBeside,
  ownFrames,
  placedName,
  splitName,
  storageName
} from './words';

const named = (key: string, module = '') => ({ key, module, category: 3 }) as IStorage;

test.each([
  ['parameter:h.0.weight', 'h.0.weight'],
  ['optimizer_state:exp_avg of h.0.weight', 'exp_avg of h.0.weight'],
  ['h.3.mlp/aten::gelu.0#1', 'output of gelu'],
  ['h.3/aten::native_layer_norm.2#0', 'output 3 of native_layer_norm'],
  ['/aten::mm.0@backward#4', 'output of mm'],
  ['/aten::gelu_backward.~0@backward', 'work space of gelu_backward'],
  ['optimizer_state:exp_avg.codes of h.0.weight', 'exp_avg.codes of h.0.weight'],
  ['gradient:grad of 3.weight#1', 'grad of 3.weight (2)'],
  ['activation:carried#2', 'carried activation']
])('%s reads "%s"', (key, name) => {
  expect(storageName(named(key))).toBe(name);
});

test.each([
  [
    'h.3.mlp/aten::gelu.0#1 cannot be replayed: no op of the step makes it',
    'the output of gelu in h.3.mlp cannot be replayed: no op of the step makes it'
  ],
  [
    'keep optimizer_state:exp_avg of h.0.weight, gap 1 comes later, that of /aten::mm.1@backward',
    'keep exp_avg of h.0.weight, gap 1 comes later, that of the output 2 of mm, backward'
  ],
  ['2 gaps, the first of activation:carried#2.', '2 gaps, the first of a carried activation.'],
  [
    'never_touch parameter:bytes.weight; see /tmp/run.1/policy.json at aten::mm',
    'never_touch bytes.weight; see /tmp/run.1/policy.json at aten::mm'
  ]
])('the keys in "%s" are said in words', (text, words) => {
  expect(inWords(text)).toBe(words);
});

test('an error about a file or a search is not the kernel’s', () => {
  expect(errorTitle('no_file')).toBe('There is no such file.');
  expect(errorTitle('cut_file')).toBe('The file ends early.');
  expect(errorTitle('query')).toContain('search');
  expect(errorTitle('internal')).toContain('kernel');
});

test('beside its module a name does not say it again', () => {
  const module = 'model.blocks.3.mlp.up';
  expect(nameBeside(`exp_avg of ${module}.weight`, module)).toBe('exp_avg of weight');
  expect(nameBeside('output of gelu', module)).toBe('output of gelu');
  expect(nameBeside('h.0.weight', '')).toBe('h.0.weight');
});

test('an error is followed by its way out', () => {
  expect(explained({ message: 'a.json: no such file', hint: 'Check the path.' })).toBe(
    'a.json: no such file. Check the path.'
  );
  expect(explained({ message: 'It is gone.', hint: '' })).toBe('It is gone.');
  expect(explained({ message: '没有内核。', hint: 'Start one.' })).toBe('没有内核。 Start one.');
  expect(explained({ message: '/aten::mm.0 is gone', hint: '' })).toBe('the output of mm is gone');
});

test('a name that holds its module does not say it twice', () => {
  expect(placedName(named('parameter:h.0.weight', 'h.0'))).toBe('h.0.weight');
  expect(placedName(named('h.3/aten::gelu.0#1', 'h.3'))).toBe('output of gelu, h.3');
});

test('categories have the color of their band', () => {
  expect([0, 1, 2, 3, 4, 5].map(category => BANDS[bandOf(category)].id)).toEqual([
    'param',
    'grad',
    'opt',
    'act',
    'work',
    'work'
  ]);
});

test('own frames are those of no package', () => {
  const stack = [
    '/x/lib/python3.11/site-packages/torch/nn/linear.py:1 f',
    '/home/me/train.py:3 step'
  ];
  expect(ownFrames(stack)).toEqual(['/home/me/train.py:3 step']);
});

test('numbers read as the kernel writes them', () => {
  expect(formatBytes(24 * 1024 ** 2)).toBe('24.0 MiB');
  expect(formatBytes(1.22 * 1024 ** 3)).toBe('1.22 GiB');
  expect(formatBytes(512)).toBe('512 B');
  expect(formatSeconds(0.0936)).toBe('93.6 ms');
  expect(formatSeconds(4.12e-4)).toBe('412 µs');
  expect(formatSeconds(0)).toBe('0');
  expect(formatPercent(0.901)).toBe('90.1 %');
  expect(formatCount(1234567)).toBe('1,234,567');
  expect([counted.ops(1), counted.ops(1200)]).toEqual(['1 op', '1,200 ops']);
});

describe('long names keep their end', () => {
  test('from the number of the layer on', () => {
    expect(splitName('model.blocks.3.mlp.up')).toEqual(['model.blocks', '.3.mlp.up']);
    expect(splitName('exp_avg of model.blocks.12.mlp.up.weight')).toEqual([
      'exp_avg of model.blocks',
      '.12.mlp.up.weight'
    ]);
    expect(splitName('transformer.decoder.layer.10')).toEqual(['transformer.decoder.layer', '.10']);
  });
  test('or the last part', () => {
    expect(splitName('encoder.final_projection.norm')).toEqual([
      'encoder.final_projection',
      '.norm'
    ]);
  });
  test('short ones are whole', () => {
    expect(splitName('h.3.mlp.up')).toEqual(['h.3.mlp.up', '']);
    expect(splitName('output of gelu')).toEqual(['output of gelu', '']);
  });
  test('in a lane, the parts that fit', () => {
    const fits = (most: number) => (text: string) => text.length <= most;
    expect(endOf('blocks.3', fits(8))).toBe('blocks.3');
    expect(endOf('blocks.3', fits(4))).toBe('3');
    expect(endOf('mlp.up', fits(3))).toBe('…up');
    expect(endOf('mlp.up', fits(2))).toBe('…p');
    expect(endOf('model.blocks.10.mlp', fits(8))).toBe('…10.mlp');
    expect(endOf('blocks.3', fits(0))).toBe('');
  });
});

test.each([
  [
    "measured on Intel(R) Xeon(R) Processor (AVX512, 2 op threads); 1.00 MiB of the op's is work space",
    'measured on Intel(R) Xeon(R) Processor'
  ],
  ['measured on NVIDIA H100; the op has no work space', 'measured on NVIDIA H100'],
  ['from shapes alone, without the work space that kernels want', 'from shapes alone'],
  ['of kernels that the trace does not name', 'of kernels that the trace does not name']
])('what a floor was measured on, in short: %s', (measured_on, short) => {
  expect(measuredOn({ measured_on } as IFloor)).toBe(short);
});
