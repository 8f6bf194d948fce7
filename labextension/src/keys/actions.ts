// What the panel's keys do: each is a command of JupyterLab's with its default key in schema/plugin.json, so that a
// person can give it another one in the settings.

import type { CommandRegistry } from '@lumino/commands';

import type { ComparePage } from '../compare/comparePage';
import { LEAD } from '../editor/decisions';
import type { EditorView } from '../editor/view';
import type { LabModel } from '../model';
import type { Timeline } from '../timeline/timeline';
import { PREFIX } from './bindings';

/** Of a drawing's width, for one key press. */
const STEP = 0.15;
const ALL = 1e9;
const CLOSER = 0.6;

export type Group = 'Drawing' | 'Go to' | 'Box in the block map' | 'Decide' | 'Panel';

/** The parts of the panel that keys act on. */
export interface IActed {
  readonly model: LabModel;
  readonly timeline: Timeline;
  readonly editing: EditorView;
  readonly comparing: ComparePage;
  /** Show which keys there are. */
  showKeys(): void;
}

export interface IAction {
  group: Group;
  label: string;
  /** Whether it would do anything now. */
  enabled(panel: IActed): boolean;
  run(panel: IActed): void;
}

const drawn = ({ model, comparing }: IActed) => comparing.isShown || model.scene !== null;
const alone = (panel: IActed) => panel.model.scene !== null && !panel.comparing.isShown;
const boxing = (panel: IActed) => alone(panel) && panel.timeline.isBoxing;

function act(
  group: Group,
  label: string,
  enabled: IAction['enabled'],
  run: IAction['run']
): IAction {
  return { group, label, enabled, run };
}

function view(label: string, run: (drawing: Timeline | ComparePage) => void): IAction {
  return act('Drawing', label, drawn, ({ comparing, timeline }) =>
    run(comparing.isShown ? comparing : timeline)
  );
}

function go(label: string, run: (panel: IActed) => void): IAction {
  return act('Go to', label, alone, run);
}

function box(label: string, x: number, y: number, grows: boolean): IAction {
  return act('Box in the block map', label, boxing, ({ timeline }) =>
    timeline.shiftBox(x, y, grows)
  );
}

/** One of the actions that the kernel has, for the storages that are selected. */
function decide(label: string, action: string): IAction {
  return act(
    'Decide',
    label,
    ({ editing: { editor } }) =>
      editor.chosen.length > 0 && Boolean(editor.open?.actions.includes(action)),
    ({ editing: { editor } }) => void editor.decide(editor.chosen, action)
  );
}

function shift(label: string, ops: number): IAction {
  return act(
    'Decide',
    label,
    ({ editing: { editor } }) => editor.open !== null && editor.chosen.length > 0,
    ({ editing: { editor } }) => void editor.earlier(editor.chosen, ops)
  );
}

/** By the name of their command, without its prefix, in the order in which they are listed. */
export const ACTIONS: Record<string, IAction> = {
  'zoom-in': view('Zoom in', drawing => drawing.zoomBy(CLOSER)),
  'zoom-out': view('Zoom out', drawing => drawing.zoomBy(1 / CLOSER)),
  'move-left': view('Move to the left', drawing => drawing.panBy(-STEP)),
  'move-right': view('Move to the right', drawing => drawing.panBy(STEP)),
  'move-to-start': view('Move to the start', drawing => drawing.panBy(-ALL)),
  'move-to-end': view('Move to the end', drawing => drawing.panBy(ALL)),
  fit: view('Show all', drawing => drawing.fit()),
  'show-selected': act(
    'Drawing',
    'Show the life of the selected storage',
    panel => alone(panel) && panel.model.selected !== null,
    ({ timeline }) => timeline.showSelected()
  ),
  'switch-drawn': act(
    'Drawing',
    'Switch between what ran and the draft',
    panel => alone(panel) && panel.model.draftable,
    ({ model }) => void model.setDrawn(model.drawn === 'draft' ? 'measured' : 'draft')
  ),
  clear: act('Drawing', 'Forget crosshair, range, box and selection', alone, ({ timeline }) =>
    timeline.clear()
  ),

  peak: go('Highest peak', ({ model }) => void model.goToPeak()),
  'next-peak': go('Next peak', ({ model }) => void model.seekPeak(1)),
  'previous-peak': go('Previous peak', ({ model }) => void model.seekPeak(-1)),
  'next-stall': go('Next stall', ({ model }) => void model.seek(1)),
  'previous-stall': go('Previous stall', ({ model }) => void model.seek(-1)),
  'next-found': go('Next op found', ({ model }) => void model.seekFound(1)),
  'previous-found': go('Previous op found', ({ model }) => void model.seekFound(-1)),
  search: go('Search field', ({ timeline }) => timeline.onSearch()),
  filter: act(
    'Go to',
    'Filter of the decisions',
    panel => alone(panel) && panel.editing.editor.open !== null,
    ({ editing }) => editing.goToFilter()
  ),

  'draw-box': act('Box in the block map', 'Draw a box, or leave it', alone, ({ timeline }) =>
    timeline.drawBox()
  ),
  'box-left': box('Move the box to the left', -1, 0, false),
  'box-right': box('Move the box to the right', 1, 0, false),
  'box-up': box('Move the box up', 0, 1, false),
  'box-down': box('Move the box down', 0, -1, false),
  'box-narrower': box('Make the box narrower', -1, 0, true),
  'box-wider': box('Make the box wider', 1, 0, true),
  'box-taller': box('Make the box taller', 0, 1, true),
  'box-shorter': box('Make the box shorter', 0, -1, true),
  'list-box': act('Box in the block map', 'List what lies in the box', boxing, ({ timeline }) =>
    timeline.listBox()
  ),
  'leave-box': act('Box in the block map', 'Leave the box', boxing, ({ timeline }) =>
    timeline.leaveBox()
  ),

  keep: decide('Keep the selected storages', 'keep'),
  swap: decide('Swap the selected storages', 'swap'),
  rematerialize: decide('Rematerialize the selected storages', 'rematerialize'),
  'never-touch': decide('Never touch the selected storages', 'never_touch'),
  'leave-to-planner': act(
    'Decide',
    'Leave the selected storages to the planner',
    ({ editing: { editor } }) => editor.open !== null && editor.chosen.length > 0,
    ({ editing: { editor } }) => void editor.decide(editor.chosen, null)
  ),
  'prefetch-earlier': shift(`Prefetch ${LEAD} ops earlier`, LEAD),
  'prefetch-later': shift(`Prefetch ${LEAD} ops later`, -LEAD),
  undo: act(
    'Decide',
    'Undo the last edit of the draft',
    ({ editing: { editor } }) => Boolean(editor.open?.can_undo),
    ({ editing: { editor } }) => void editor.edit('undo')
  ),
  redo: act(
    'Decide',
    'Redo the edit of the draft',
    ({ editing: { editor } }) => Boolean(editor.open?.can_redo),
    ({ editing: { editor } }) => void editor.edit('redo')
  ),

  'close-comparison': act(
    'Panel',
    'Close the comparison',
    ({ comparing }) => comparing.isShown,
    ({ comparing }) => comparing.close()
  ),
  'show-keys': act(
    'Panel',
    'Show the keys',
    () => true,
    panel => panel.showKeys()
  )
};

/** Make the actions commands of JupyterLab's. `panel`: the one that is open, or nothing. */
export function addActions(
  commands: Pick<CommandRegistry, 'addCommand'>,
  panel: () => IActed | null | undefined
): void {
  for (const [name, action] of Object.entries(ACTIONS)) {
    commands.addCommand(PREFIX + name, {
      label: action.label,
      isVisible: () => Boolean(panel()),
      isEnabled: () => {
        const open = panel();
        return Boolean(open && action.enabled(open));
      },
      execute: () => {
        const open = panel();
        if (open) {
          action.run(open);
        }
      }
    });
  }
}
