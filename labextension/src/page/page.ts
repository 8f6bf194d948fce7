// A page of its own, offline: the panel's timeline, tables and inspector on the data in the page.

import { CommandRegistry } from '@lumino/commands';

import schema from '../../schema/plugin.json';
import { KernelClient } from '../client';
import { button, h } from '../dom';
import { ACTIONS, addActions, type Group, type IActed } from '../keys/actions';
import { Bindings } from '../keys/bindings';
import { type Change, LabModel } from '../model';
import { figureNode, headerFigures } from '../panel/headerFigures';
import { Inspector } from '../panel/inspector';
import { openLaneMenu } from '../panel/laneMenu';
import { GrowthTab, rangeTab } from '../panel/moreTabs';
import { splitter } from '../panel/splitter';
import { Tables } from '../panel/tables';
import { Toolbar } from '../panel/toolbar';
import { trans } from '../texts';
import { Timeline } from '../timeline/timeline';
import { errorTitle, explained } from '../words';
import { readPacked } from './pageData';
import { PageLine } from './pageLine';

/** Groups of actions that a page has. */
const GROUPS = new Set<Group>(['drawing', 'goto', 'box']);

class Page {
  constructor(
    private readonly _node: HTMLElement,
    title: string
  ) {
    this._commands = new CommandRegistry();
    const acted = {
      model: this.model,
      editing: { editor: { chosen: [], open: null } },
      comparing: { isShown: false },
      showKeys: () => this._keysHelp.showModal()
    };
    // What a page cannot do is not enabled: there is no draft and no comparison.
    addActions(this._commands, () => ({ ...acted, timeline: this.timeline }) as unknown as IActed);
    for (const { command, keys, selector } of schema['jupyter.lab.shortcuts']) {
      this._commands.addKeyBinding({ command, keys, selector });
    }
    document.addEventListener('keydown', event => this._commands.processKeydownEvent(event), true);
    const keys = new Bindings(this._commands);
    this.timeline = new Timeline(this.model, keys);
    this._toolbar = new Toolbar(this.model, this.timeline, keys);
    this._inspector = new Inspector(this.model, () => this.timeline.showSelected(), keys);
    this._tables = new Tables(this.model);
    this._growth = new GrowthTab(this.model);
    this._range = rangeTab(this.model);
    this._tables.add(this._growth.tab);
    this._tables.add(this._range);
    this._growth.onNews = () => this._tables.update();
    this._keysHelp = keysHelp(keys);
    this._lay(title);
    this.model.changed.connect(this._onChange, this);
  }

  readonly model = new LabModel({ axis: 'time', rows: 'storage', follow: false });
  readonly timeline: Timeline;

  /** Draw the newest step of what the page holds. */
  async begin(line: PageLine): Promise<void> {
    const client = new KernelClient(line);
    const { result } = await client.request('hello', {});
    this.model.connect(client, result);
    this.model.status = (await client.request('status', {})).result;
    await this.model.choose(this.model.status.files[0].source);
    this._update();
  }

  /** The theme's colors are others now. */
  recolor(): void {
    this.timeline.recolor();
  }

  private _lay(title: string): void {
    const lanes: HTMLButtonElement = button(
      trans.__('Lanes…'),
      trans.__('Fold tracks of the drawing away, or show them again'),
      () => openLaneMenu(this._node, lanes, this.model, this.timeline)
    );
    lanes.setAttribute('aria-haspopup', 'menu');
    const help = button('?', trans.__('Keys'), () => this._keysHelp.showModal(), 'cl-square');
    help.setAttribute('aria-label', trans.__('Keys'));
    const top = h(
      'div',
      { class: 'cl-row' },
      h('b', { class: 'cl-product' }, 'Chameleon Lab'),
      h('span', { class: 'cl-front', title }, title),
      h('span', { class: 'cl-grow' }),
      lanes,
      help
    );
    const left = h('div', { class: 'cl-left' });
    const tables = this._tables.node;
    left.append(
      this._toolbar.node,
      this.timeline.node,
      splitter(left, 'y', '--cl-lower', trans.__('Height of the tables'), () => tables),
      tables
    );
    const main = h('div', { class: 'cl-main' });
    main.dataset.page = 'timeline';
    const side = h(
      'div',
      { class: 'cl-side' },
      h('div', { class: 'cl-about' }, this._inspector.node, this._inspector.story)
    );
    main.append(
      left,
      splitter(main, 'x', '--cl-side', trans.__('Width of the inspector'), () => side, 160),
      side
    );
    const header = h(
      'section',
      { class: 'cl-header', 'aria-label': trans.__('Trace') },
      top,
      this._figures
    );
    this._node.append(header, this._banner, this._lost, main, this._keysHelp);
  }

  private _onChange(_: LabModel, change: Change): void {
    if (change === 'scene') {
      this.timeline.nameTracks();
    }
    if (change !== 'side') {
      this.timeline.draw(change !== 'overlay');
    }
    if (change === 'scene' || change === 'side') {
      this._update();
    }
  }

  private _update(): void {
    const { steps, scene, drawn, error, lost } = this.model;
    this._banner.hidden = !error;
    if (error) {
      this._banner.replaceChildren(
        h('b', {}, `${errorTitle(error.code)} `),
        h('span', {}, explained(error)),
        h('span', { class: 'cl-grow' }),
        button('×', trans.__('Dismiss'), () => this.model.dismissError(), 'cl-square')
      );
    }
    this._lost.hidden = lost === null;
    this._lost.textContent = lost;
    this._figures.replaceChildren(...headerFigures(null, steps, scene, drawn).map(figureNode));
    this._toolbar.update();
    this._inspector.update();
    this._tables.update();
    this._growth.update();
    this._range.update();
  }

  private readonly _commands: CommandRegistry;
  private readonly _toolbar: Toolbar;
  private readonly _inspector: Inspector;
  private readonly _tables: Tables;
  private readonly _growth: GrowthTab;
  private readonly _range: ReturnType<typeof rangeTab>;
  private readonly _keysHelp: HTMLDialogElement;
  private readonly _figures = h('dl', { class: 'cl-figures' });
  private readonly _banner = h('div', { class: 'cl-banner', role: 'alert', hidden: true });
  private readonly _lost = h('div', { class: 'cl-banner cl-lost', role: 'status', hidden: true });
}

function keysHelp(keys: Bindings): HTMLDialogElement {
  const rows = Object.entries(ACTIONS)
    .filter(([name, { group }]) => GROUPS.has(group) && keys.first(name))
    .map(([name, { label }]) =>
      h('tr', {}, h('th', {}, label()), h('td', {}, keys.of(name).join(', ')))
    );
  const dialog = h(
    'dialog',
    { class: 'cl-page-keys', 'aria-label': trans.__('Keys') },
    h('table', {}, ...rows),
    button(trans.__('Close'), trans.__('Close'), () => dialog.close())
  );
  return dialog;
}

async function main(): Promise<void> {
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  const color = () => {
    document.body.dataset.jpThemeLight = String(!dark.matches);
  };
  color();
  const node = document.querySelector<HTMLElement>('.cl-panel');
  const data = document.getElementById('chameleon-data')?.textContent;
  if (!node || !data) {
    return;
  }
  const { packed, steps } = await readPacked(data);
  const page = new Page(node, document.title);
  dark.addEventListener('change', () => {
    color();
    page.recolor();
  });
  const line = new PageLine(packed, steps);
  Object.assign(window, { chameleonPage: page, chameleonLine: line });
  await page.begin(line);
}

void main();
