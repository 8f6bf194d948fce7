// The list of the panel's keys, as the settings have them now.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import { h } from '../dom';
import { ACTIONS } from '../keys/actions';
import type { Bindings } from '../keys/bindings';

/** Keys that tables, menus, sliders and bars have everywhere, which the settings do not change. */
const FIXED: [keys: string[], what: string][] = [
  [
    ['↑', '↓', 'Page up', 'Page down', 'Home', 'End'],
    'Walk the rows of a table; with Shift, select'
  ],
  [['Space'], 'Add a row to those selected'],
  [['Ctrl+A'], 'Select all rows'],
  [['Enter'], 'Show the storage of a row'],
  [['Shift+F10'], 'Menu of a row'],
  [['Escape'], 'Leave a field, a menu or a table'],
  [['←', '→'], "Move a splitter or the curve's capacity"]
];

/** Show the keys; true where the person would rather change them. */
export async function showKeys(bindings: Bindings): Promise<boolean> {
  const { button } = await showDialog({
    title: 'Keys of the panel',
    body: new Widget({ node: h('div', {}, keyTable(bindings)) }),
    buttons: [Dialog.createButton({ label: 'Change…', actions: ['change'] }), Dialog.okButton()]
  });
  return button.actions.includes('change');
}

function keyTable(bindings: Bindings): HTMLElement {
  const node = h('div', { class: 'cl-keys' });
  const groups = new Map<string, HTMLElement>();
  const line = (group: string, keys: string[], what: string) => {
    let list = groups.get(group);
    if (!list) {
      list = h('dl', { class: 'cl-key-list' });
      groups.set(group, list);
      node.append(h('section', { class: 'cl-key-group' }, h('h3', {}, group), list));
    }
    const each = keys.map(key => h('kbd', {}, key));
    list.append(h('dt', {}, ...(each.length ? each : ['–'])), h('dd', {}, what));
  };
  for (const [name, { group, label }] of Object.entries(ACTIONS)) {
    line(group, bindings.of(name), label);
  }
  for (const [keys, what] of FIXED) {
    line('Tables, menus and sliders', keys, what);
  }
  return node;
}
