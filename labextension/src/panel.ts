// The panel: header, timeline, tables and inspector round one model, on the line with the kernel in front.

import { InputDialog, type IThemeManager } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';
import type { CommandRegistry } from '@lumino/commands';
import { Widget } from '@lumino/widgets';

import { ComparePage } from './compare/comparePage';
import { Connection } from './connection';
import { button, h, segment } from './dom';
import type { IStore } from './editor/keeper';
import { EditorView } from './editor/view';
import type { KernelFollower } from './kernelFollower';
import { Bindings } from './keys/bindings';
import { type Change, type IPreferences, LabModel } from './model';
import { FlameTab } from './panel/flame';
import { Header } from './panel/header';
import { Inspector } from './panel/inspector';
import { showKeys } from './panel/keysHelp';
import { openLaneMenu } from './panel/laneMenu';
import { keepLanes } from './panel/laneStore';
import { GrowthTab, notesTab, rangeTab } from './panel/moreTabs';
import { notice } from './panel/notice';
import { openSaveMenu } from './panel/saving';
import { splitter } from './panel/splitter';
import { Tables } from './panel/tables';
import { Toolbar } from './panel/toolbar';
import { trans } from './texts';
import { Timeline } from './timeline/timeline';
import { errorTitle, explained } from './words';

type Page = 'timeline' | 'tables' | 'selection';

export class ChameleonPanel extends Widget {
  constructor(
    private readonly _follower: KernelFollower,
    preferences: IPreferences,
    private readonly _themes: IThemeManager | null,
    store: IStore | null,
    private readonly _commands: CommandRegistry,
    /** What JupyterLab calls the settings of keys. */
    private readonly _shortcuts: string
  ) {
    super();
    this.addClass('cl-panel');
    this.title.label = 'Chameleon Lab';
    this.title.closable = true;

    this.model = new LabModel(preferences);
    this._keys = new Bindings(_commands);
    this.timeline = new Timeline(this.model, this._keys);
    this._header = new Header(
      this.model,
      () => void this._openFile(),
      () => this._compareSides(),
      () => this.showKeys(),
      at => openLaneMenu(this.node, at, this.model, this.timeline),
      at => openSaveMenu(this.node, at, this.model, this.timeline),
      this._keys
    );
    void keepLanes(this.model, this.timeline, store);
    this._toolbar = new Toolbar(this.model, this.timeline, this._keys);
    const zoom = () => this.timeline.showSelected();
    this._inspector = new Inspector(this.model, zoom, this._keys);
    this._tables = new Tables(this.model);
    this._flame = new FlameTab(this.model);
    this._growth = new GrowthTab(this.model);
    this._range = rangeTab(this.model);
    this._notes = notesTab(this.model);
    const leave = { open: () => void this._openFile(), close: () => this._leaveComparison() };
    this.comparing = new ComparePage(this.model, leave, this._keys);
    this.editing = new EditorView(
      this.model,
      this.node,
      store,
      () => _follower.path ?? '',
      () => this.timeline.focus(),
      this._keys
    );
    this.editing.addTabs(this._tables);
    for (const { tab } of [this._flame, this._growth]) {
      this._tables.add(tab);
    }
    for (const tab of [this._range, this._notes]) {
      this._tables.add(tab);
    }
    this._flame.onNews = this._growth.onNews = () => this._tables.update();
    this.editing.onDraftable = () => this.update();
    this.editing.onRedraft = () => this.comparing.redraft();
    this.timeline.onMenu = (uid, x, y) => void this.editing.menuOf(uid, x, y);
    this._pages = segment<Page>(
      trans.__('Part of the panel'),
      [
        ['timeline', trans.__('Timeline'), trans.__('The drawing')],
        ['tables', trans.__('Tables'), trans.__('Storages, ops and decisions')],
        [
          'selection',
          trans.__('Selection'),
          trans.__('What is selected, and what can be decided about it')
        ]
      ],
      page => this._turnTo(page)
    );
    this._pages.node.classList.add('cl-pages');
    this._tables.onShow = () => this._turnTo('tables');
    this._turnTo('timeline');
    const left = h('div', { class: 'cl-left' });
    const tables = this._tables.node;
    left.append(
      this._toolbar.node,
      this.timeline.node,
      splitter(left, 'y', '--cl-lower', trans.__('Height of the tables'), () => tables),
      tables
    );
    const side = h(
      'div',
      { class: 'cl-side' },
      h(
        'div',
        { class: 'cl-about' },
        this._inspector.node,
        this.editing.cards.node,
        this._inspector.story
      ),
      this.editing.curve.node
    );
    this._main.append(
      left,
      splitter(this._main, 'x', '--cl-side', trans.__('Width of the inspector'), () => side, 160),
      side
    );
    this.node.append(
      this._header.node,
      this._banner,
      this._lost,
      this.editing.banner,
      this._notice,
      this._pages.node,
      this._main,
      this.editing.bar.node
    );

    this.model.changed.connect(this._onChange, this);
    this._connection = new Connection(_follower, this.model, () => this.update());
    _themes?.themeChanged.connect(this._recolor, this);
    this.update();
  }

  readonly model: LabModel;
  readonly timeline: Timeline;
  readonly editing: EditorView;
  readonly comparing: ComparePage;

  /** Show which keys there are, and the way to change them. */
  showKeys(): void {
    const before = document.activeElement as HTMLElement | null;
    void showKeys(this._keys).then(change => {
      if (change) {
        void this._commands.execute('settingeditor:open', { query: this._shortcuts });
      } else {
        before?.focus({ preventScroll: true });
      }
    });
  }

  /** The kernel says that the extension is loaded there. */
  loaded(kernel: Kernel.IKernelConnection): void {
    this._connection.retry(kernel);
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this._themes?.themeChanged.disconnect(this._recolor, this);
    this._connection.dispose();
    this.editing.dispose();
    this._flame.dispose();
    this.timeline.dispose();
    this.comparing.dispose();
    this.model.dispose();
    this._keys.dispose();
    this._follower.dispose();
    super.dispose();
  }

  protected override onUpdateRequest(): void {
    const front = this._follower.current;
    const { model } = this;
    this._header.update(front);
    if (this._connection.state !== 'open') {
      this.comparing.hide();
    }
    const comparing = this.comparing.isShown;
    const page = notice(this._connection.state, front, model, {
      load: () =>
        this._follower.kernel?.requestExecute({ code: '%load_ext chameleon_lab', silent: false }),
      open: () => void this._openFile()
    });
    this._notice.replaceChildren(...(page ? [page] : []));
    this._notice.hidden = page === null || comparing;
    this._main.hidden = page !== null || comparing;
    this._pages.node.hidden = this._main.hidden;
    this._sayError();
    this._sayLost(page === null && !comparing);
    this.comparing.update();
    if (page === null) {
      this._toolbar.update();
      this._inspector.update();
      this._tables.update();
      for (const part of [this._flame, this._growth, this._range, this._notes]) {
        part.update();
      }
    }
  }

  protected override onActivateRequest(): void {
    this.timeline.focus();
  }

  private _onChange(_: LabModel, change: Change): void {
    if (change === 'scene') {
      this.timeline.nameTracks();
    }
    if (change !== 'side') {
      this.timeline.draw(change !== 'overlay');
    }
    if (change === 'scene' || change === 'side') {
      this.update();
    }
  }

  private _sayError(): void {
    const { error } = this.model;
    this._banner.hidden = !error;
    if (error) {
      this._banner.replaceChildren(
        h('b', {}, `${errorTitle(error.code)} `),
        h('span', {}, explained(error)),
        h('span', { class: 'cl-grow' }),
        button('×', trans.__('Dismiss'), () => this.model.dismissError(), 'cl-square')
      );
    }
  }

  /** What is missing of the file that is drawn stays to be read as long as it is. */
  private _sayLost(drawing: boolean): void {
    const lost = drawing ? this.model.lost : null;
    this._lost.hidden = lost === null;
    this._lost.replaceChildren(
      ...(lost === null ? [] : [h('b', {}, `${errorTitle('cut_file')} `), h('span', {}, lost)])
    );
  }

  private async _openFile(): Promise<void> {
    const known = await this.model.request('files', {});
    const { value, button: pressed } = await InputDialog.getItem({
      title: trans.__('Open a trace or a policy'),
      label: trans.__(
        'Path of a trace, of a recording of PyTorch or Nsight Systems, or of a policy to compare, as the kernel sees it: from its folder, or from the root'
      ),
      items: known?.result.paths ?? [],
      editable: true,
      current: '',
      placeholder: 'run.parquet',
      okLabel: trans.__('Open')
    });
    if (pressed.accept && value?.trim()) {
      const source = await this.model.openFile(value.trim());
      if (source && (this.comparing.isShown || source.startsWith('policy:'))) {
        this._compareSides(source);
      }
    }
  }

  /** Where there is room for one part alone, show this one. */
  private _turnTo(page: Page): void {
    this._main.dataset.page = page;
    this._pages.press(page);
  }

  private _compareSides(source?: string): void {
    this.comparing.show(this.node, source);
    this.update();
  }

  private _leaveComparison(): void {
    this.comparing.hide();
    this.update();
    this.timeline.focus();
  }

  private _recolor(): void {
    // The theme's style sheet is in place one frame after it is said to be.
    requestAnimationFrame(() => {
      this.timeline.recolor();
      this.comparing.recolor();
    });
  }

  private readonly _pages: ReturnType<typeof segment<Page>>;
  private readonly _header: Header;
  private readonly _toolbar: Toolbar;
  private readonly _inspector: Inspector;
  private readonly _tables: Tables;
  private readonly _flame: FlameTab;
  private readonly _growth: GrowthTab;
  private readonly _range: ReturnType<typeof rangeTab>;
  private readonly _notes: ReturnType<typeof notesTab>;
  private readonly _keys: Bindings;
  private readonly _connection: Connection;
  private readonly _banner = h('div', { class: 'cl-banner', role: 'alert', hidden: true });
  private readonly _lost = h('div', { class: 'cl-banner cl-lost', role: 'status', hidden: true });
  private readonly _notice = h('div', { class: 'cl-notice-page' });
  private readonly _main = h('div', { class: 'cl-main' });
}
