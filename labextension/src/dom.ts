// Elements, in few words.

import { splitName } from './words';

type Child = Node | string | null | undefined | false;

/** An element with attributes and children; `class` and `text` are attributes like the others. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | boolean | ((event: never) => void)> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') {
      element.addEventListener(name, value as (event: Event) => void);
    } else if (typeof value === 'boolean') {
      element.toggleAttribute(name, value);
    } else {
      element.setAttribute(name, value);
    }
  }
  for (const child of children) {
    if (child) {
      element.append(child);
    }
  }
  return element;
}

/** A name that keeps its end where it is cut: there is the number that tells it from its neighbors. */
export function named(name: string, mark?: Node, whole = name): HTMLElement {
  const [start, end] = splitName(name);
  return h(
    'span',
    { class: 'cl-named', title: whole },
    mark,
    h(
      'span',
      { class: 'cl-parts' },
      h('span', { class: 'cl-start' }, start),
      end && h('span', { class: 'cl-end' }, h('bdi', {}, end))
    )
  );
}

/** A square of a category's color. */
export function swatch(band: string): HTMLElement {
  return h('i', {
    class: 'cl-swatch',
    style: `background: var(--cl-${band})`,
    'aria-hidden': 'true'
  });
}

export function button(
  text: string,
  title: string,
  onClick: () => void,
  kind = ''
): HTMLButtonElement {
  return h('button', { class: `cl-button ${kind}`, type: 'button', title, click: onClick }, text);
}

/** Two or more buttons of which one is pressed. */
export function segment<T extends string>(
  name: string,
  choices: [T, string, string][],
  onChoose: (value: T) => void
): { node: HTMLElement; press(value: T): void } {
  const buttons = choices.map(([value, text, title]) =>
    h('button', { type: 'button', title, 'data-value': value, click: () => onChoose(value) }, text)
  );
  return {
    node: h('div', { class: 'cl-segment', role: 'group', 'aria-label': name }, ...buttons),
    press(value) {
      for (const element of buttons) {
        element.setAttribute('aria-pressed', String(element.dataset.value === value));
      }
    }
  };
}
