// The plugin: one command, which opens the panel.

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';

import { KernelFollower } from './kernelFollower';
import { ChameleonPanel } from './panel';

const OPEN = 'chameleon-lab:open';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'chameleon-lab:plugin',
  description: 'The Chameleon Lab panel, beside the notebook that trains.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    restorer: ILayoutRestorer | null
  ) => {
    const tracker = new WidgetTracker<MainAreaWidget<ChameleonPanel>>({
      namespace: 'chameleon-lab'
    });

    app.commands.addCommand(OPEN, {
      label: 'Open Chameleon Lab',
      caption: 'Show the panel that follows the notebook in front',
      execute: () => {
        let widget = tracker.currentWidget;
        if (!widget) {
          const content = new ChameleonPanel(new KernelFollower(notebooks));
          widget = new MainAreaWidget({ content });
          widget.id = 'chameleon-lab-panel';
          void tracker.add(widget);
          app.shell.add(widget, 'main', { mode: 'split-right' });
        }
        app.shell.activateById(widget.id);
      }
    });

    palette?.addItem({ command: OPEN, category: 'Chameleon Lab' });
    void restorer?.restore(tracker, { command: OPEN, name: () => 'panel' });
  }
};

export default plugin;
