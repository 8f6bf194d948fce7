// What storages, ops and stages are called, and which of the panel's colours a category has.

import { CATEGORIES, type IStorage } from './protocol';

/** The categories' bands, bottom first: as `BANDS` in chameleon_lab/lab/scene.py. */
export const BANDS = [
  { id: 'param', name: 'Parameters' },
  { id: 'opt', name: 'Optimizer states' },
  { id: 'grad', name: 'Gradients' },
  { id: 'act', name: 'Activations' },
  { id: 'work', name: 'Inputs, other' }
] as const;

export type BandId = (typeof BANDS)[number]['id'];

const BAND_OF_CATEGORY = [0, 2, 1, 3, 4, 4];

/** Which band a category is in. */
export function bandOf(category: number): number {
  return BAND_OF_CATEGORY[category] ?? 4;
}

export function categoryName(category: number | string): string {
  const id = typeof category === 'number' ? CATEGORIES[category] : category;
  return (id ?? 'other').replaceAll('_', ' ');
}

/** An op's name without its namespace. */
export function shortOp(name: string): string {
  return name.replace(/^aten::/, '');
}

/** What a storage is called, and the module it is in where the name does not say so. */
export function placedName(storage: IStorage): string {
  const name = storageName(storage);
  return name.includes(storage.module) ? name : `${name}, ${storage.module}`;
}

/** The frames of a stack that the person wrote: not torch's, the notebook's or Python's own. */
export function ownFrames(stack: string[]): string[] {
  return stack.filter(frame => !/\/(site|dist)-packages\/|\/lib\/python\d|<frozen /.test(frame));
}

/** `parameter:h.0.weight` reads `h.0.weight`; `h.0/aten::gelu.0#1` reads `output of gelu`, for it is in module h.0. */
export function storageName(storage: IStorage): string {
  const label = /^[a-z_]+:(.*)$/.exec(storage.key);
  if (label && !storage.key.includes('/')) {
    return label[1].startsWith('carried') ? `carried ${categoryName(storage.category)}` : label[1];
  }
  const made = /\/([^/]+?)\.(\d+)(?:@\w+)?(?:#\d+)?$/.exec(storage.key);
  if (!made) {
    return storage.key;
  }
  const [, op, ordinal] = made;
  return `${ordinal === '0' ? 'output' : `output ${Number(ordinal) + 1}`} of ${shortOp(op)}`;
}
