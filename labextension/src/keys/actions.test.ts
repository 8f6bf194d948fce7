import { CommandRegistry } from '@lumino/commands';
import { afterEach, expect, test, vi } from 'vitest';

import schema from '../../schema/plugin.json?raw';

import { english, speak } from '../texts';
import { ACTIONS, addActions, groupName, type IActed } from './actions';
import { Bindings, PREFIX } from './bindings';

interface IShortcut {
  command: string;
  keys: string[];
  selector: string;
}

const SHORTCUTS: IShortcut[] = JSON.parse(schema)['jupyter.lab.shortcuts'];

vi.hoisted(() => {
  // What Lumino asks of a browser at its import, and of a selector when a key is bound.
  vi.stubGlobal('navigator', { platform: 'Linux', userAgent: '' });
  vi.stubGlobal(
    'Element',
    class {
      matches() {}
    }
  );
  vi.stubGlobal('document', {
    createDocumentFragment: () => ({ querySelector: () => null }),
    createElement: () => ({ matches: () => false, querySelector: () => null })
  });
});

afterEach(() => speak(english));

/** The default keys, and a panel whose parts tell what they were asked. */
function registry(panel: unknown) {
  const commands = new CommandRegistry();
  addActions(commands, () => panel as IActed);
  const bound = SHORTCUTS.map(shortcut => commands.addKeyBinding(shortcut));
  return { commands, bound };
}

function panelOf(parts: { chosen?: string[]; actions?: string[] | null; comparing?: boolean }) {
  const editor = {
    chosen: parts.chosen ?? [],
    open: parts.actions === null ? null : { actions: parts.actions ?? [], can_undo: false },
    decide: vi.fn(),
    earlier: vi.fn()
  };
  return {
    model: { scene: {}, selected: null, draftable: false },
    timeline: { isBoxing: false, zoomBy: vi.fn(), panBy: vi.fn() },
    comparing: { isShown: parts.comparing ?? false, zoomBy: vi.fn(), panBy: vi.fn() },
    editing: { editor }
  };
}

test('every action has a default key, and every default key an action', () => {
  const bound = new Set(SHORTCUTS.map(({ command }) => command));
  expect([...bound].sort()).toEqual(
    Object.keys(ACTIONS)
      .map(name => PREFIX + name)
      .sort()
  );
});

test('default keys hold in the panel alone, outside text fields, and none twice at one place', () => {
  const places = SHORTCUTS.map(({ keys, selector }) => `${keys.join(' ')} at ${selector}`);
  expect(places.filter((place, i) => places.indexOf(place) !== i)).toEqual([]);
  for (const { command, selector } of SHORTCUTS) {
    expect(selector, command).toMatch(/^\.cl-panel .*:focus/);
    expect(selector, command).not.toContain(','); // JupyterLab refuses it
    if (!selector.endsWith('.cl-overlay:focus')) {
      expect(selector, command).toContain(':not(:read-write)');
    }
  }
});

test('nothing is enabled without a panel, and decisions only for what is selected and the kernel has', () => {
  const none = registry(null).commands;
  expect(Object.keys(ACTIONS).filter(name => none.isEnabled(PREFIX + name))).toEqual([]);
  expect(none.isVisible(`${PREFIX}keep`)).toBe(false);
  const enabled = (parts: Parameters<typeof panelOf>[0]) => {
    const { commands } = registry(panelOf(parts));
    return ['keep', 'rematerialize', 'prefetch-later', 'undo'].filter(name =>
      commands.isEnabled(PREFIX + name)
    );
  };
  expect(enabled({ actions: ['keep'] })).toEqual([]);
  expect(enabled({ chosen: ['a'], actions: null })).toEqual([]);
  expect(enabled({ chosen: ['a'], actions: ['keep'] })).toEqual(['keep', 'prefetch-later']);
});

test('what an action is called is said in the language that JupyterLab has', () => {
  const { commands } = registry(null);
  expect(commands.label(`${PREFIX}fit`)).toBe('Show all');
  speak({
    ...english,
    __: (text, ...args) => `⟦${english.__(text, ...args)}⟧`,
    _n: (...args) => `⟦${english._n(...args)}⟧`
  });
  const said = Object.entries(ACTIONS).flatMap(([name, { group }]) => [
    commands.label(PREFIX + name),
    groupName(group)
  ]);
  expect(said.filter(text => !/^⟦.+⟧$/.test(text))).toEqual([]);
});

test('an action acts on what is shown', async () => {
  const panel = panelOf({ chosen: ['a', 'b'], actions: ['swap', 'never_touch'] });
  const { commands } = registry(panel);
  await commands.execute(`${PREFIX}never-touch`);
  expect(panel.editing.editor.decide).toHaveBeenCalledWith(['a', 'b'], 'never_touch');
  await commands.execute(`${PREFIX}zoom-in`);
  expect(panel.timeline.zoomBy).toHaveBeenCalledOnce();
  panel.comparing.isShown = true;
  await commands.execute(`${PREFIX}zoom-in`);
  expect(panel.timeline.zoomBy).toHaveBeenCalledOnce();
  expect(panel.comparing.zoomBy).toHaveBeenCalledOnce();
  expect(commands.isEnabled(`${PREFIX}peak`)).toBe(false);
});

test('the keys that are named are those that are bound', async () => {
  const { commands, bound } = registry(null);
  const bindings = new Bindings(commands);
  const written = vi.fn();
  bindings.follow(written);
  expect(bindings.of('next-stall')).toEqual([']', '.']);
  expect(bindings.hint('Undo', 'undo')).toBe('Undo (Ctrl+Z)');
  for (const binding of bound) {
    binding.dispose();
  }
  expect(bindings.hint('Undo', 'undo')).toBe('Undo');
  commands.addKeyBinding({ command: `${PREFIX}undo`, keys: ['U'], selector: '.cl-panel' });
  expect(bindings.hint('Undo', 'undo')).toBe('Undo (U)');
  await new Promise(resolve => setTimeout(resolve, 5));
  expect(written).toHaveBeenCalledTimes(2); // at first, and once for all that changed
});
