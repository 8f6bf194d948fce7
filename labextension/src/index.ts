// The plugin: the command that opens the panel, the ways to it, and the kernel's calls for it.

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  ICommandPalette,
  IThemeManager,
  MainAreaWidget,
  ToolbarButton,
  WidgetTracker
} from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator } from '@jupyterlab/translation';
import { listenForCalls } from './calls';
import type { IStore } from './editor/keeper';
import { icon } from './icon';
import { KernelFollower } from './kernelFollower';
import { ACTIONS, addActions } from './keys/actions';
import { PREFIX } from './keys/bindings';
import type { IPreferences } from './model';
import { ChameleonPanel } from './panel';
import { DOMAIN, speak, trans } from './texts';

const OPEN = `${PREFIX}open`;
const PLUGIN = 'chameleon-lab:plugin';

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN,
  description: 'The Chameleon Lab panel, beside the notebook that trains.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [
    ICommandPalette,
    ILabShell,
    ILayoutRestorer,
    ILauncher,
    ISettingRegistry,
    IThemeManager,
    IStateDB,
    ITranslator
  ],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    lab: ILabShell | null,
    restorer: ILayoutRestorer | null,
    launcher: ILauncher | null,
    settings: ISettingRegistry | null,
    themes: IThemeManager | null,
    state: IStateDB | null,
    translator: ITranslator | null
  ) => {
    if (translator) {
      speak(translator.load(DOMAIN));
    }
    const tracker = new WidgetTracker<MainAreaWidget<ChameleonPanel>>({
      namespace: 'chameleon-lab'
    });
    // The tracker's current widget is known only once the layout has been saved; kernels call sooner.
    const opened = () => tracker.find(() => true);
    let preferences: IPreferences = { axis: 'time', rows: 'storage', follow: true };
    const read = settings?.load(PLUGIN).then(
      registry => {
        const take = () => {
          preferences = { ...preferences, ...(registry.composite as Partial<IPreferences>) };
        };
        registry.changed.connect(take);
        take();
      },
      () => undefined // the defaults serve
    );

    app.commands.addCommand(OPEN, {
      label: args => (args.isLauncher ? 'Chameleon Lab' : trans.__('Open Chameleon Lab')),
      caption: trans.__('Show the panel that follows the notebook in front'),
      icon: args => (args.isPalette ? undefined : icon),
      execute: async () => {
        await read;
        let widget = opened();
        if (!widget) {
          const content = new ChameleonPanel(
            new KernelFollower(notebooks),
            preferences,
            themes,
            state as IStore | null,
            app.commands,
            // As JupyterLab has the titles of settings.
            translator?.load('jupyterlab')._p('schema', 'Keyboard Shortcuts') ??
              'Keyboard Shortcuts'
          );
          widget = new MainAreaWidget({ content });
          widget.id = 'chameleon-lab-panel';
          widget.title.icon = icon;
          void tracker.add(widget);
          // Notebook 7 has room for one document, and none beside it but the side bar.
          app.shell.add(widget, lab ? 'main' : 'right', { mode: 'split-right' });
        }
        if (lab || !widget.isVisible) {
          app.shell.activateById(widget.id); // Notebook 7 would close a side bar that is open
        }
      }
    });

    addActions(app.commands, () => opened()?.content);
    for (const command of [OPEN, ...Object.keys(ACTIONS).map(name => PREFIX + name)]) {
      palette?.addItem({ command, category: 'Chameleon Lab' });
    }
    // Without a category it stands under "Other", whatever that is called in the person's language.
    launcher?.add({ command: OPEN, args: { isLauncher: true } });
    void restorer?.restore(tracker, { command: OPEN, name: () => 'panel' });

    app.docRegistry.addWidgetExtension('Notebook', {
      createNew: (panel: NotebookPanel) => {
        const toolbarButton = new ToolbarButton({
          icon,
          onClick: () => void app.commands.execute(OPEN),
          tooltip: trans.__('Open Chameleon Lab')
        });
        panel.toolbar.insertItem(12, 'chameleon-lab', toolbarButton);
        const stop = listenForCalls(panel.sessionContext, (action, kernel) => {
          if (action === 'show') {
            void app.commands.execute(OPEN);
          } else if (action === 'loaded') {
            opened()?.content.loaded(kernel);
          }
        });
        panel.disposed.connect(stop);
        return toolbarButton;
      }
    });
  }
};

export default plugin;
