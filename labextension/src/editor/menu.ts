// A small menu of what can be done with a storage: walked with the arrow keys, closed with Escape or a click elsewhere.

import { h } from '../dom';

export interface IMenuItem {
  text: string;
  key?: string;
  checked?: boolean;
  /** Whether several of its like may be checked. */
  many?: boolean;
  enabled?: boolean;
  run(): void;
}

/** Open a menu at a place of the window, inside `host`; the focus comes back to where it was. */
export function openMenu(
  host: HTMLElement,
  title: string,
  items: (IMenuItem | null)[],
  x: number,
  y: number
): void {
  host.querySelector('.cl-menu')?.remove();
  const before = document.activeElement as HTMLElement | null;
  const close = () => {
    document.removeEventListener('pointerdown', outside, true);
    menu.remove();
    before?.focus({ preventScroll: true });
  };
  const outside = (event: Event) => {
    if (!menu.contains(event.target as Node)) {
      close();
    }
  };
  const buttons: HTMLButtonElement[] = [];
  const menu = h(
    'div',
    {
      class: 'cl-menu',
      'data-lm-suppress-shortcuts': 'true', // its keys are its own
      role: 'menu',
      'aria-label': title,
      keydown: (event: KeyboardEvent) => {
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (event.key === 'Escape' || event.key === 'Tab') {
          close();
        } else if (step) {
          const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
          buttons[(at + step + buttons.length) % buttons.length].focus();
        } else if (event.key !== 'Enter' && event.key !== ' ') {
          return;
        }
        event.stopPropagation();
        if (event.key !== 'Enter' && event.key !== ' ') {
          event.preventDefault();
        }
      },
      contextmenu: (event: Event) => event.preventDefault()
    },
    h('div', { class: 'cl-menu-title' }, title)
  );
  for (const item of items) {
    if (!item) {
      menu.append(h('hr'));
      continue;
    }
    const element = h(
      'button',
      {
        type: 'button',
        role:
          item.checked === undefined
            ? 'menuitem'
            : item.many
              ? 'menuitemcheckbox'
              : 'menuitemradio',
        disabled: item.enabled === false,
        click: () => {
          close();
          item.run();
        }
      },
      h('span', {}, item.text),
      h('kbd', {}, item.key ?? '')
    );
    if (item.checked !== undefined) {
      element.setAttribute('aria-checked', String(item.checked));
    }
    buttons.push(element);
    menu.append(element);
  }
  host.append(menu);
  const box = host.getBoundingClientRect();
  menu.style.left = `${Math.max(4, Math.min(x - box.left, box.width - menu.offsetWidth - 4))}px`;
  menu.style.top = `${Math.max(4, Math.min(y - box.top, box.height - menu.offsetHeight - 4))}px`;
  buttons.find(element => !element.disabled)?.focus({ preventScroll: true });
  document.addEventListener('pointerdown', outside, true);
}
