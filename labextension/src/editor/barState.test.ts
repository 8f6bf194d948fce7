import { expect, test } from 'vitest';

import type { IOpenDraft } from '../protocol';
import { type BarButton, barState, isRunning } from './barState';

const MIB = 1024 ** 2;
const DRAFT = {
  exact: true,
  fits: true,
  same: false,
  staged: 1,
  follows: 0,
  plan_s: 0.1,
  findings: [],
  error: '',
  why_not_enable: '',
  waiting: false,
  dry_run: null,
  can_undo: true,
  can_redo: false,
  can_roll_back: false,
  capacity_bytes: 100 * MIB,
  floor: { bytes: 64 * MIB, op: 'aten::mm', module: '', measured_on: 'measured on a CPU' }
} as unknown as IOpenDraft;
const MEASURED = { step_s: 1 };
const RUNNING = { done: false, started: false, of_draft: true, note: '', steps: 1, settle: 1 };
const TRIED = { ...RUNNING, done: true, measured: MEASURED };
const TRACE = 'This is a trace file.';

/** Which buttons a draft turns on, hides and makes the one that leads on. */
function of(change: object, busy = false) {
  const { buttons } = barState({ ...DRAFT, ...change } as IOpenDraft, '', busy);
  const those = (which: 'enabled' | 'hidden' | 'primary') =>
    (Object.keys(buttons) as BarButton[]).filter(name => buttons[name][which]).join(' ');
  return [those('enabled'), those('hidden'), those('primary')];
}

test.each([
  ['changed and valid', {}, 'undo discard load save dryRun enable', 'lift rollBack', 'dryRun'],
  ['tried', { dry_run: TRIED }, 'undo discard load save dryRun enable', 'lift rollBack', 'enable'],
  [
    'tried, and changed since',
    { dry_run: { ...TRIED, of_draft: false } },
    'undo discard load save dryRun enable',
    'lift rollBack',
    'dryRun'
  ],
  [
    'tried, and ended before anything was measured',
    { dry_run: { ...TRIED, measured: null } },
    'undo discard load save dryRun enable',
    'lift rollBack',
    'dryRun'
  ],
  [
    'being tried',
    { dry_run: RUNNING },
    'undo discard load save dryRun enable',
    'lift rollBack',
    ''
  ],
  [
    'being tried, where it may not be enabled',
    { dry_run: RUNNING, why_not_enable: TRACE },
    'undo discard load save dryRun',
    'lift rollBack',
    ''
  ],
  ['what is in force', { same: true, can_undo: false }, 'load save', 'lift rollBack', ''],
  ['an estimate', { exact: false }, 'undo discard load save', 'lift rollBack', ''],
  ['of a trace file', { why_not_enable: TRACE }, 'undo discard load save', 'lift rollBack', ''],
  [
    'below the floor',
    { fits: false, capacity_bytes: 32 * MIB },
    'lift undo discard load',
    'rollBack',
    'lift'
  ],
  [
    'undone, with something to roll back to',
    { can_redo: true, can_roll_back: true },
    'undo redo discard load save rollBack dryRun enable',
    'lift',
    'dryRun'
  ]
])('a draft that is %s offers its buttons', (_, change, enabled, hidden, primary) => {
  expect(of(change)).toEqual([enabled, hidden, primary]);
});

test('nothing can be done while the kernel is at work, but for ending a dry run', () => {
  const open = { can_redo: true, can_roll_back: true };
  expect(of(open, true)[0]).toBe('');
  expect(of({ ...open, dry_run: RUNNING }, true)[0]).toBe('dryRun');
  expect(of({ fits: false, capacity_bytes: MIB }, true)).toEqual(['', 'rollBack', 'lift']);
});

test('the buttons say what they do, or why they do not', () => {
  const { buttons } = barState(DRAFT, '', false);
  expect(buttons.dryRun.text).toBe('Dry run 1 step');
  expect(buttons.dryRun.title).toBe('Try the draft for the next steps, and go back');
  expect(buttons.enable.title).toBe('Use the draft from the next step border on');
  const other = { ...DRAFT, dry_run: RUNNING, why_not_enable: TRACE } as unknown as IOpenDraft;
  const off = barState(other, '', false).buttons;
  expect(off.dryRun.text).toBe('Stop the dry run');
  expect([off.dryRun.title, off.enable.title]).toEqual([TRACE, TRACE]);
});

test('below what is needed, the least is offered in whole MiB', () => {
  const findings = [{ index: 0, least_bytes: 70 * MIB + 1, is_error: true, why: '' }];
  const low = { ...DRAFT, capacity_bytes: 65 * MIB, findings } as unknown as IOpenDraft;
  expect(barState(low, '', false).buttons.lift).toMatchObject({
    text: 'Set capacity to 71.0 MiB',
    hidden: false
  });
});

test('what was done last comes before where the draft stands', () => {
  const text = 'No changes: the draft is what is in force.';
  const same = { ...DRAFT, same: true };
  expect(barState(same, '', false)).toMatchObject({ text, kind: 'dim' });
  expect(barState(same, 'Enabled.', false).text).toBe(`Enabled. ${text}`);
});

test.each([
  [null, false],
  [RUNNING, true],
  [TRIED, false]
])('with the dry run %j, one runs: %s', (dry_run, runs) => {
  expect(isRunning({ ...DRAFT, dry_run } as unknown as IOpenDraft)).toBe(runs);
});
