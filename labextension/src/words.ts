// What storages, ops and stages are called, and which of the panel's colors a category has.

import { formatBytes } from './format';
import { CATEGORIES, type IFloor, type IStorage } from './protocol';
import { trans } from './texts';

/** The categories' bands, bottom first: as `BANDS` in chameleon_lab/lab/panel/scene.py. */
export const BANDS = [
  { id: 'param', name: () => trans.__('Parameters'), short: () => trans.__('Params') },
  { id: 'opt', name: () => trans.__('Optimizer states'), short: () => trans.__('Optimizer') },
  { id: 'grad', name: () => trans.__('Gradients'), short: () => trans.__('Grads') },
  { id: 'act', name: () => trans.__('Activations'), short: () => trans.__('Activ.') },
  { id: 'work', name: () => trans.__('Inputs, other'), short: () => trans.__('Other') }
] as const;

/** What overlap means, where one is shown: as chameleon_lab/trace/overlap.py says it. */
export function overlapWords(): string {
  return trans.__("Share of the copies' time in which compute did not wait for their direction");
}

/** What the kernel names by a word of its code, as it is called here. */
type Names = Record<string, () => string>;

const STALL_PARTS: Names = {
  copy: () => trans.__('the copy itself'),
  queue: () => trans.__('queue before it'),
  room: () => trans.__('no room'),
  late: () => trans.__('triggered late'),
  other: () => trans._p('part of a stall', 'other')
};

/** Why stalls are, as chameleon_lab/trace/stall_parts.py tells their parts. */
export function stallPart(part: string): string {
  return STALL_PARTS[part]?.() ?? part;
}

const PAUSES: Names = {
  idle: () => trans.__('no op ran'),
  loading: () => trans.__('data loading'),
  cells: () => trans.__('between cells')
};

/** What a pause is called, the reason without its time. */
export function pauseName(kind: string): string {
  return PAUSES[kind]?.() ?? kind;
}

/** One step, or a run of them. */
export function stepsName(first: number, last: number): string {
  return first === last ? trans.__('step %1', last) : trans.__('steps %1 to %2', first, last);
}

export type BandId = (typeof BANDS)[number]['id'];

const BAND_OF_CATEGORY = [0, 2, 1, 3, 4, 4];

/** Which band a category is in. */
export function bandOf(category: number): number {
  return BAND_OF_CATEGORY[category] ?? 4;
}

const CATEGORY_NAMES: Names = {
  parameter: () => trans.__('parameter'),
  gradient: () => trans.__('gradient'),
  'optimizer state': () => trans.__('optimizer state'),
  activation: () => trans.__('activation'),
  input: () => trans.__('input'),
  other: () => trans._p('category', 'other')
};

/** A category where it stands by itself. */
export function categoryName(category: number | string): string {
  const own = categoryInName(category);
  return CATEGORY_NAMES[own]?.() ?? own;
}

/** A category in the name of a storage, which is the same in every language. */
function categoryInName(category: number | string): string {
  const id = typeof category === 'number' ? CATEGORIES[category] : category;
  return (id ?? 'other').replaceAll('_', ' ');
}

/** A floor, what sets it, and what it was measured on. */
export function floorWords({ bytes, op, module, measured_on }: IFloor): string {
  const floor = formatBytes(bytes);
  return module
    ? trans.__('Floor %1, set by %2 in %3; %4', floor, shortOp(op), module, measured_on)
    : trans.__('Floor %1, set by %2; %3', floor, shortOp(op), measured_on);
}

/** What a floor was measured on, without the particulars. */
export function measuredOn({ measured_on }: IFloor): string {
  return measured_on.split(/ \(|[;,]/)[0];
}

/** An op's name without its namespace. */
export function shortOp(name: string): string {
  return name.replace(/^aten::/, '');
}

const SHORT_NAME = 14;

/** A long dotted name in two: the start, which may be cut, and the end, which tells it from its neighbors. */
export function splitName(name: string): [start: string, end: string] {
  const dots = /(?:\.\d+(?:\.[^\s.]+)*|\.[^\s.]+)$/.exec(name);
  return name.length <= SHORT_NAME || !dots || !dots.index
    ? [name, '']
    : [name.slice(0, dots.index), dots[0]];
}

/** As much of the end of a dotted name as fits, by whole parts where it can be; a number alone, or nothing of it. */
export function endOf(name: string, fits: (text: string) => boolean): string {
  if (fits(name)) {
    return name;
  }
  const parts = name.split('.');
  for (let first = 1; first < parts.length; first++) {
    const end = parts.slice(first).join('.');
    const shown = /^\d+$/.test(end) ? end : `…${end}`;
    if (fits(shown)) {
      return shown;
    }
  }
  const last = parts[parts.length - 1];
  for (let letters = last.length - 1; letters > 0 && !/^\d+$/.test(last); letters--) {
    if (fits(`…${last.slice(-letters)}`)) {
      return `…${last.slice(-letters)}`;
    }
  }
  return '';
}

/** What a storage is called, and the module it is in where the name does not say so. */
export function placedName(storage: IStorage): string {
  const name = storageName(storage);
  return name.includes(storage.module) ? name : `${name}, ${storage.module}`;
}

/** What a storage is called beside its module: `exp_avg of weight`, for the module says where. */
export function nameBeside(name: string, module: string): string {
  return module ? name.replace(`${module}.`, '') : name;
}

/** The frames of a stack that the person wrote: not torch's, the notebook's or Python's own. */
export function ownFrames(stack: string[]): string[] {
  return stack.filter(frame => !/\/(site|dist)-packages\/|\/lib\/python\d|<frozen /.test(frame));
}

/** `parameter:h.0.weight` reads `h.0.weight`; `h.0/aten::gelu.0#1` reads `output of gelu`, for it is in module h.0. */
export function storageName(storage: IStorage): string {
  const label = /^[a-z_]+:(.*)$/.exec(storage.key);
  if (label && !storage.key.includes('/')) {
    const name = nthOf(label[1]);
    return name.startsWith('carried') ? `carried ${categoryInName(storage.category)}` : name;
  }
  const made = /\/([^/]+?)\.(~?)(\d+)(?:@\w+)?(?:#\d+)?$/.exec(storage.key);
  return made ? madeName(made[1], made[2] !== '', Number(made[3])) : storage.key;
}

/** `grad of w#1` reads `grad of w (2)`: the second of that name in the step. */
function nthOf(label: string): string {
  return label.replace(/#(\d+)$/, (_, before: string) => ` (${Number(before) + 1})`);
}

/** What an op allocates as its output of this number, or for its own work. */
function madeName(op: string, work: boolean, number: number): string {
  const what = work ? 'work space' : 'output';
  return `${number ? `${what} ${number + 1}` : what} of ${shortOp(op)}`;
}

const LABELLED = new RegExp(
  `\\b(${CATEGORIES.join('|')}):((?:[\\w.]+ of )?[\\w.]*\\w(?:#\\d+)?)`,
  'g'
);
const MADE = /([\w.]*)\/(\w+::\w+)\.(~?)(\d+)(@\w+)?(?:#\d+)?/g;

/** What an error is about, before it says itself what went wrong. */
export function errorTitle(code: string): string {
  const titles: Names = {
    bad_file: () => trans.__('The file was not read.'),
    no_file: () => trans.__('There is no such file.'),
    cut_file: () => trans.__('The file ends early.'),
    query: () => trans.__('The search could not be read.'),
    no_kernel: () => trans.__('There is no kernel.')
  };
  return titles[code]?.() ?? trans.__('The kernel could not answer.');
}

/** What went wrong and the way out, as sentences. */
export function explained({ message, hint }: { message: string; hint: string }): string {
  const said = inWords(message);
  return hint ? `${said}${/\p{Sentence_Terminal}$/u.test(said) ? '' : '.'} ${hint}` : said;
}

/** A text of the kernel's with its storages' keys in words; the module is said, for nothing beside it does. */
export function inWords(text: string): string {
  return text
    .replace(LABELLED, (_, category: string, name: string) =>
      name.startsWith('carried') ? `a carried ${categoryInName(category)}` : nthOf(name)
    )
    .replace(
      MADE,
      (_, module: string, op: string, work: string, number: string, stage: string | undefined) => {
        const name = `the ${madeName(op, work !== '', Number(number))}`;
        return `${name}${module ? ` in ${module}` : ''}${stage ? `, ${stage.slice(1)}` : ''}`;
      }
    );
}
