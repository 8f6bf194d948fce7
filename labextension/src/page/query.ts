// The search language of the panel, as chameleon_lab/lab/panel/query.py reads it in the kernel.

import { CATEGORIES, LabError } from '../protocol';
import { STAGES } from './words';

export interface IQuery {
  words: string[];
  /** The first number in the module path, of this name; `layer` stands for any. */
  layers: [name: string, first: number, last: number][];
  atLeast: number | null;
  atMost: number | null;
  stage: number | null;
  category: number | null;
}

const UNITS: Record<string, number> = { '': 1, b: 1 };
for (const [power, letter] of ['k', 'm', 'g', 't'].entries()) {
  UNITS[letter] = UNITS[`${letter}ib`] = 1024 ** (power + 1);
  UNITS[`${letter}b`] = 1000 ** (power + 1);
}

function wrong(message: string): LabError {
  return new LabError('query', message, 'Such as: layer.3 attn >4MiB stage:backward');
}

/** Read a search text; throws a LabError that says how to write what cannot be read. */
export function parseQuery(text: string): IQuery {
  const query: IQuery = {
    words: [],
    layers: [],
    atLeast: null,
    atMost: null,
    stage: null,
    category: null
  };
  for (const term of text.split(/\s+/).filter(Boolean)) {
    const size = /^([<>]=?)(.+)$/.exec(term);
    const field = /^(stage|category):(.*)$/.exec(term);
    const layer = /^([A-Za-z_]\w*)\.(\d+)(?:-(\d+))?$/.exec(term);
    if (size) {
      takeSize(query, size[1], bytesOf(size[2], term));
    } else if (/^[<>]/.test(term)) {
      throw wrong(`'${term}' has no size: write it like >4MiB, without a space`);
    } else if (field) {
      const names = field[1] === 'stage' ? STAGES : CATEGORIES;
      query[field[1] as 'stage' | 'category'] = member(names, field[2], term);
    } else if (layer) {
      query.layers.push([layer[1].toLowerCase(), Number(layer[2]), Number(layer[3] ?? layer[2])]);
    } else {
      query.words.push(term.toLowerCase());
    }
  }
  return query;
}

function takeSize(query: IQuery, sign: string, limit: number): void {
  const strict = sign.endsWith('=') ? 0 : 1;
  if (sign.startsWith('>')) {
    query.atLeast = Math.max(query.atLeast ?? 0, limit + strict);
  } else {
    query.atMost = Math.min(limit - strict, query.atMost ?? limit);
  }
}

function bytesOf(text: string, term: string): number {
  const match = /^\s*((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*$/i.exec(text);
  const unit = match ? UNITS[match[2].toLowerCase()] : undefined;
  const size = match && unit ? Number(match[1]) * unit : 0;
  if (!(size >= 1)) {
    throw wrong(`the size in '${term}': '${text}' is not a size: write it like "512MiB"`);
  }
  return Math.trunc(size);
}

function member(names: readonly string[], text: string, term: string): number {
  const fits = names.filter(name => text && name.startsWith(text.toLowerCase()));
  if (fits.length !== 1) {
    throw wrong(`'${term}' is none of ${names.join(', ')}`);
  }
  return names.indexOf(fits[0]);
}

export function asksStoragesAlone({ atLeast, atMost, category }: IQuery): boolean {
  return atLeast !== null || atMost !== null || category !== null;
}

/** Whether the words and layers of a query fit what is called `text` in a module. */
export function fitsText(query: IQuery, path: string, text: string): boolean {
  const everything = `${path} ${text}`.toLowerCase();
  return (
    query.layers.every(layer => inLayers(path, layer)) &&
    query.words.every(word => everything.includes(word))
  );
}

function inLayers(path: string, [name, first, last]: IQuery['layers'][number]): boolean {
  const parts = path.toLowerCase().split('.');
  const at = parts.findIndex(part => /^\d+$/.test(part));
  const number = Number(parts[at]);
  return (
    at >= 0 &&
    first <= number &&
    number <= last &&
    (name === 'layer' || (at > 0 && parts[at - 1] === name))
  );
}
