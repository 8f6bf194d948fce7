// What the panel's keys do: each is a command of JupyterLab's with its default key in schema/plugin.json, so that a
// person can give it another one in the settings.

import type { CommandRegistry } from '@lumino/commands';

import type { ComparePage } from '../compare/comparePage';
import { LEAD } from '../editor/decisions';
import type { EditorView } from '../editor/view';
import type { LabModel } from '../model';
import { trans } from '../texts';
import type { Timeline } from '../timeline/timeline';
import { PREFIX } from './bindings';

/** Of a drawing's width, for one key press. */
const STEP = 0.15;
const ALL = 1e9;
const CLOSER = 0.6;

export type Group = 'drawing' | 'goto' | 'box' | 'decide' | 'panel';

const GROUPS: Record<Group, () => string> = {
  drawing: () => trans.__('Drawing'),
  goto: () => trans.__('Go to'),
  box: () => trans.__('Box in the block map'),
  decide: () => trans.__('Decide'),
  panel: () => trans.__('Panel')
};

/** What a group of actions is called. */
export function groupName(group: Group): string {
  return GROUPS[group]();
}

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
  /** What it does, in the person's language. */
  label(): string;
  /** Whether it would do anything now. */
  enabled(panel: IActed): boolean;
  run(panel: IActed): void;
}

const drawn = ({ model, comparing }: IActed) => comparing.isShown || model.scene !== null;
const alone = (panel: IActed) => panel.model.scene !== null && !panel.comparing.isShown;
const boxing = (panel: IActed) => alone(panel) && panel.timeline.isBoxing;

type Label = IAction['label'];

function define(
  group: Group,
  label: Label,
  enabled: IAction['enabled'],
  run: IAction['run']
): IAction {
  return { group, label, enabled, run };
}

function view(label: Label, run: (drawing: Timeline | ComparePage) => void): IAction {
  return define('drawing', label, drawn, ({ comparing, timeline }) =>
    run(comparing.isShown ? comparing : timeline)
  );
}

function go(label: Label, run: (panel: IActed) => void): IAction {
  return define('goto', label, alone, run);
}

function box(label: Label, x: number, y: number, grows: boolean): IAction {
  return define('box', label, boxing, ({ timeline }) => timeline.shiftBox(x, y, grows));
}

/** One of the actions that the kernel has, for the storages that are selected. */
function decide(label: Label, action: string): IAction {
  return define(
    'decide',
    label,
    ({ editing: { editor } }) =>
      editor.chosen.length > 0 && Boolean(editor.open?.actions.includes(action)),
    ({ editing: { editor } }) => void editor.decide(editor.chosen, action)
  );
}

function shift(label: Label, ops: number): IAction {
  return define(
    'decide',
    label,
    ({ editing: { editor } }) => editor.open !== null && editor.chosen.length > 0,
    ({ editing: { editor } }) => void editor.earlier(editor.chosen, ops)
  );
}

/** By the name of their command, without its prefix, in the order in which they are listed. */
export const ACTIONS: Record<string, IAction> = {
  'zoom-in': view(
    () => trans.__('Zoom in'),
    drawing => drawing.zoomBy(CLOSER)
  ),
  'zoom-out': view(
    () => trans.__('Zoom out'),
    drawing => drawing.zoomBy(1 / CLOSER)
  ),
  'move-left': view(
    () => trans.__('Move to the left'),
    drawing => drawing.panBy(-STEP)
  ),
  'move-right': view(
    () => trans.__('Move to the right'),
    drawing => drawing.panBy(STEP)
  ),
  'move-to-start': view(
    () => trans.__('Move to the start'),
    drawing => drawing.panBy(-ALL)
  ),
  'move-to-end': view(
    () => trans.__('Move to the end'),
    drawing => drawing.panBy(ALL)
  ),
  fit: view(
    () => trans.__('Show all'),
    drawing => drawing.fit()
  ),
  'show-selected': define(
    'drawing',
    () => trans.__('Show the life of the selected storage'),
    panel => alone(panel) && panel.model.selected !== null,
    ({ timeline }) => timeline.showSelected()
  ),
  'switch-drawn': define(
    'drawing',
    () => trans.__('Switch between what ran and the draft'),
    panel => alone(panel) && panel.model.draftable,
    ({ model }) => void model.setDrawn(model.drawn === 'draft' ? 'measured' : 'draft')
  ),
  clear: define(
    'drawing',
    () => trans.__('Forget crosshair, range, box and selection'),
    alone,
    ({ timeline }) => timeline.clear()
  ),

  peak: go(
    () => trans.__('Highest peak'),
    ({ model }) => void model.goToPeak()
  ),
  'next-peak': go(
    () => trans.__('Next peak'),
    ({ model }) => void model.seekPeak(1)
  ),
  'previous-peak': go(
    () => trans.__('Previous peak'),
    ({ model }) => void model.seekPeak(-1)
  ),
  'next-stall': go(
    () => trans.__('Next stall'),
    ({ model }) => void model.seek(1)
  ),
  'previous-stall': go(
    () => trans.__('Previous stall'),
    ({ model }) => void model.seek(-1)
  ),
  'next-found': go(
    () => trans.__('Next op found'),
    ({ model }) => void model.seekFound(1)
  ),
  'previous-found': go(
    () => trans.__('Previous op found'),
    ({ model }) => void model.seekFound(-1)
  ),
  search: go(
    () => trans.__('Search field'),
    ({ timeline }) => timeline.onSearch()
  ),
  filter: define(
    'goto',
    () => trans.__('Filter of the decisions'),
    panel => alone(panel) && panel.editing.editor.open !== null,
    ({ editing }) => editing.goToFilter()
  ),

  'draw-box': define(
    'box',
    () => trans.__('Draw a box, or leave it'),
    alone,
    ({ timeline }) => timeline.drawBox()
  ),
  'box-left': box(() => trans.__('Move the box to the left'), -1, 0, false),
  'box-right': box(() => trans.__('Move the box to the right'), 1, 0, false),
  'box-up': box(() => trans.__('Move the box up'), 0, 1, false),
  'box-down': box(() => trans.__('Move the box down'), 0, -1, false),
  'box-narrower': box(() => trans.__('Make the box narrower'), -1, 0, true),
  'box-wider': box(() => trans.__('Make the box wider'), 1, 0, true),
  'box-taller': box(() => trans.__('Make the box taller'), 0, 1, true),
  'box-shorter': box(() => trans.__('Make the box shorter'), 0, -1, true),
  'list-box': define(
    'box',
    () => trans.__('List what lies in the box'),
    boxing,
    ({ timeline }) => timeline.listBox()
  ),
  'leave-box': define(
    'box',
    () => trans.__('Leave the box'),
    boxing,
    ({ timeline }) => timeline.leaveBox()
  ),

  keep: decide(() => trans.__('Keep the selected storages'), 'keep'),
  swap: decide(() => trans.__('Swap the selected storages'), 'swap'),
  rematerialize: decide(() => trans.__('Rematerialize the selected storages'), 'rematerialize'),
  'never-touch': decide(() => trans.__('Never touch the selected storages'), 'never_touch'),
  'leave-to-planner': define(
    'decide',
    () => trans.__('Leave the selected storages to the planner'),
    ({ editing: { editor } }) => editor.open !== null && editor.chosen.length > 0,
    ({ editing: { editor } }) => void editor.decide(editor.chosen, null)
  ),
  'prefetch-earlier': shift(
    () => trans._n('Prefetch %1 op earlier', 'Prefetch %1 ops earlier', LEAD),
    LEAD
  ),
  'prefetch-later': shift(
    () => trans._n('Prefetch %1 op later', 'Prefetch %1 ops later', LEAD),
    -LEAD
  ),
  undo: define(
    'decide',
    () => trans.__('Undo the last edit of the draft'),
    ({ editing: { editor } }) => Boolean(editor.open?.can_undo),
    ({ editing: { editor } }) => void editor.edit('undo')
  ),
  redo: define(
    'decide',
    () => trans.__('Redo the edit of the draft'),
    ({ editing: { editor } }) => Boolean(editor.open?.can_redo),
    ({ editing: { editor } }) => void editor.edit('redo')
  ),

  'close-comparison': define(
    'panel',
    () => trans.__('Close the comparison'),
    ({ comparing }) => comparing.isShown,
    ({ comparing }) => comparing.close()
  ),
  'show-keys': define(
    'panel',
    () => trans.__('Show the keys'),
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
