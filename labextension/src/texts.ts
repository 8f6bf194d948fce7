// The panel's texts in the person's language, as JupyterLab's translator has them.

import type { TranslationBundle } from '@jupyterlab/translation';

/** In a text `%1`, `%2` … stand for the arguments; in one with a plural `%1` is the bare number, and they follow. */
export type Texts = Pick<TranslationBundle, '__' | '_n' | '_p'>;

/** Under which name language packs have the panel's texts. */
export const DOMAIN = 'chameleon_lab';

/** The texts as they are written. A page of its own has no others, and none of JupyterLab's code. */
export const english: Texts = {
  __: fill,
  _n: (one, many, count, ...args) => fill(count === 1 ? one : many, count, ...args),
  _p: (_, text, ...args) => fill(text, ...args)
};

/** The tool that collects the texts looks for calls of this name with literal texts. */
export let trans: Texts = english;

/** Show these texts from now on: before the first one is shown. */
export function speak(texts: Texts): void {
  trans = {
    __: (text, ...args) => filled(args, marks => texts.__(text, ...marks)),
    _n: (one, many, count, ...args) => filled(args, marks => texts._n(one, many, count, ...marks)),
    _p: (context, text, ...args) => filled(args, marks => texts._p(context, text, ...marks))
  };
}

/** JupyterLab reads `%% ` in an argument too: it gets marks, and the arguments come in their places after it. */
function filled(args: unknown[], say: (marks: string[]) => string): string {
  const text = say(args.map((_, place) => `\0${place}\0`));
  return text.replace(/\0(\d+)\0/g, (_, place) => String(args[place]));
}

function fill(text: string, ...args: unknown[]): string {
  return text.replace(/%%|%(\d+)/g, (_, place?: string) =>
    place ? String(args[Number(place) - 1]) : '%'
  );
}
