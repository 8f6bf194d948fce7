// What can be kept of what is drawn: the trace with its notes, a picture, a note at the crosshair.

import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';

import { openMenu } from '../editor/menu';
import type { LabModel } from '../model';
import { LabError } from '../protocol';
import { trans } from '../texts';
import { formatAt } from '../timeline/scale';
import type { Timeline } from '../timeline/timeline';

/** Open the menu of what can be saved, at a button. */
export function openSaveMenu(
  host: HTMLElement,
  at: HTMLElement,
  model: LabModel,
  timeline: Timeline
): void {
  const { left, bottom } = at.getBoundingClientRect();
  const drawn = model.scene !== null;
  openMenu(
    host,
    trans.__('Save'),
    [
      {
        text: trans.__('Trace, with its notes…'),
        enabled: drawn,
        run: () => void saveTrace(model)
      },
      {
        text: trans.__('Picture of the drawing'),
        enabled: drawn,
        run: () => void savePicture(model, timeline)
      },
      null,
      {
        text: trans.__('Note at the crosshair…'),
        enabled: drawn,
        run: () => void addNote(model)
      }
    ],
    left,
    bottom + 2
  );
}

/** Ask for a name, and let the kernel write the recorded steps; what is there already is asked about. */
export async function saveTrace(model: LabModel): Promise<void> {
  const source = model.steps?.source;
  if (!source) {
    return;
  }
  const { value, button } = await InputDialog.getText({
    title: trans.__('Save the trace'),
    label: trans.__(
      'Path of a .parquet file, as the kernel sees it: all recorded steps, and the notes'
    ),
    text: 'trace.parquet',
    okLabel: trans.__('Save')
  });
  const path = value?.trim();
  if (!button.accept || !path) {
    return;
  }
  for (const overwrite of [false, true]) {
    try {
      const { result } = await model.attempt('save_trace', { source, path, overwrite });
      const said = trans._n(
        'Saved %1 steps to %2.',
        'Saved %1 steps to %2.',
        result.steps,
        result.path
      );
      Notification.success(said, { autoClose: 5000 });
      return;
    } catch (error) {
      if (!(error instanceof LabError) || error.code !== 'exists') {
        model.fail(error);
        return;
      }
      const { button } = await showDialog({
        title: trans.__('Overwrite the file?'),
        body: error.message,
        buttons: [Dialog.cancelButton(), Dialog.warnButton({ label: trans.__('Overwrite') })]
      });
      if (!button.accept) {
        return;
      }
    }
  }
}

/** Hand the drawing, as it is, to the browser as a PNG file. */
export async function savePicture(model: LabModel, timeline: Timeline): Promise<void> {
  const picture = timeline.picture();
  const blob = await new Promise<Blob | null>(done => picture.toBlob(done, 'image/png'));
  if (!blob) {
    model.fail(
      new LabError('internal', trans.__('The browser could not make a picture of the drawing.'))
    );
    return;
  }
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  const step = model.scene?.steps[model.scene.steps.length - 1].index ?? 0;
  link.download = `chameleon-step-${step}.png`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Ask for a text, and keep it at the crosshair, or at the peak where there is none. */
export async function addNote(model: LabModel): Promise<void> {
  const at = model.cursor ?? model.scene?.peak[model.axis];
  if (at === undefined) {
    return;
  }
  const where =
    model.axis === 'time' ? formatAt(at, model.length) : trans.__('op %1', Math.floor(at));
  const { value, button } = await InputDialog.getText({
    title: trans.__('A note'),
    label:
      model.cursor === null
        ? trans.__('At %1, the peak. Save… writes notes into the trace', where)
        : trans.__('At %1, the crosshair. Save… writes notes into the trace', where),
    okLabel: trans._p('note', 'Keep')
  });
  if (button.accept && value?.trim()) {
    await model.addNote(at, value.trim());
  }
}
