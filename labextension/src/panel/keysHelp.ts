// The list of the panel's keys, as the settings have them now.

import { Dialog, showDialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import { h } from '../dom';
import { ACTIONS, groupName } from '../keys/actions';
import type { Bindings } from '../keys/bindings';
import { trans } from '../texts';

/** Keys that tables, menus, sliders and bars have everywhere, which the settings do not change. */
const FIXED: [keys: string[], what: () => string][] = [
  [
    ['↑', '↓', 'Page up', 'Page down', 'Home', 'End'],
    () => trans.__('Walk the rows of a table; with Shift, select')
  ],
  [['Space'], () => trans.__('Add a row to those selected')],
  [['Ctrl+A'], () => trans.__('Select all rows')],
  [['Enter'], () => trans.__('Show the storage of a row')],
  [['Shift+F10'], () => trans.__('Menu of a row')],
  [['Escape'], () => trans.__('Leave a field, a menu or a table')],
  [['←', '→'], () => trans.__("Move a splitter or the curve's capacity")]
];

/** Show the keys; true where the person would rather change them. */
export async function showKeys(bindings: Bindings): Promise<boolean> {
  const { button } = await showDialog({
    title: trans.__('Keys of the panel'),
    body: new Widget({ node: h('div', {}, keyTable(bindings)) }),
    buttons: [
      Dialog.createButton({ label: trans.__('Change…'), actions: ['change'] }),
      Dialog.okButton()
    ]
  });
  return button.actions.includes('change');
}

function keyTable(bindings: Bindings): HTMLElement {
  const node = h('div', { class: 'cl-keys' });
  const groups = new Map<string, HTMLElement>();
  const line = (group: string, name: string, keys: string[], what: string) => {
    let list = groups.get(group);
    if (!list) {
      list = h('dl', { class: 'cl-key-list' });
      groups.set(group, list);
      node.append(h('section', { class: 'cl-key-group' }, h('h3', {}, name), list));
    }
    const each = keys.map(key => h('kbd', {}, key));
    list.append(h('dt', {}, ...(each.length ? each : ['–'])), h('dd', {}, what));
  };
  for (const [name, { group, label }] of Object.entries(ACTIONS)) {
    line(group, groupName(group), bindings.of(name), label());
  }
  for (const [keys, what] of FIXED) {
    line('fixed', trans.__('Tables, menus and sliders'), keys, what());
  }
  return node;
}
