import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Signal } from '@lumino/signaling';
import { expect, test } from 'vitest';

import { KernelFollower } from './kernelFollower';

const specsManager = {
  specs: { kernelspecs: { python3: { display_name: 'Python 3 (ipykernel)', language: 'Python' } } },
  specsChanged: new Signal<object, void>({})
};

function fakeNotebook(label: string, kernelName?: string) {
  const sender = {};
  const panel = {
    title: { label, changed: new Signal<object, void>(sender) },
    sessionContext: {
      session: kernelName ? { kernel: { name: kernelName } } : null,
      specsManager,
      kernelDisplayStatus: 'idle',
      kernelChanged: new Signal<object, void>(sender),
      statusChanged: new Signal<object, void>(sender),
      connectionStatusChanged: new Signal<object, void>(sender),
      iopubMessage: new Signal<object, unknown>(sender)
    }
  };
  return panel as typeof panel & NotebookPanel;
}

function fakeTracker(first: NotebookPanel | null) {
  const tracker = {
    currentWidget: first,
    currentChanged: new Signal<object, NotebookPanel | null>({}),
    show(panel: NotebookPanel | null) {
      this.currentWidget = panel;
      this.currentChanged.emit(panel);
    }
  };
  return tracker as unknown as typeof tracker & INotebookTracker;
}

function countChanges(follower: KernelFollower) {
  const count = { changes: 0 };
  follower.changed.connect(() => {
    count.changes += 1;
  });
  return count;
}

test('reads the kernel of the notebook in front', () => {
  const follower = new KernelFollower(fakeTracker(fakeNotebook('a.ipynb', 'python3')));
  expect(follower.current).toEqual({
    notebook: 'a.ipynb',
    kernel: 'Python 3 (ipykernel)',
    language: 'python',
    status: 'idle'
  });
});

test('names a kernel that has no spec by its own name', () => {
  const follower = new KernelFollower(fakeTracker(fakeNotebook('a.ipynb', 'remote')));
  expect(follower.current).toMatchObject({ kernel: 'remote', language: undefined });
});

test('leaves the old notebook when another comes to the front', () => {
  const [a, b] = [fakeNotebook('a.ipynb', 'python3'), fakeNotebook('b.ipynb')];
  const tracker = fakeTracker(a);
  const follower = new KernelFollower(tracker);
  const count = countChanges(follower);

  tracker.show(b);
  expect(follower.current).toMatchObject({ notebook: 'b.ipynb', kernel: undefined });
  expect(count.changes).toBe(1);
  a.sessionContext.statusChanged.emit();
  expect(count.changes).toBe(1);
  b.sessionContext.statusChanged.emit();
  expect(count.changes).toBe(2);

  tracker.show(null);
  expect(follower.current).toBeNull();
});

test('only cells make a kernel busy, not what a subshell answers', () => {
  const a = fakeNotebook('a.ipynb', 'python3');
  const follower = new KernelFollower(fakeTracker(a));
  const say = (state: string, parent: string) =>
    (a.sessionContext.iopubMessage as unknown as Signal<object, unknown>).emit({
      header: { msg_type: 'status' },
      parent_header: { msg_type: parent },
      content: { execution_state: state }
    });
  say('busy', 'execute_request');
  expect(follower.current?.status).toBe('busy');
  say('idle', 'comm_msg');
  expect(follower.current?.status).toBe('busy');
  say('idle', 'execute_request');
  say('busy', 'comm_msg');
  expect(follower.current?.status).toBe('idle');
});

test('a kernel that dies in the midst of a cell is not busy for ever', () => {
  const a = fakeNotebook('a.ipynb', 'python3');
  const follower = new KernelFollower(fakeTracker(a));
  (a.sessionContext.iopubMessage as unknown as Signal<object, unknown>).emit({
    header: { msg_type: 'status' },
    parent_header: { msg_type: 'execute_request' },
    content: { execution_state: 'busy' }
  });
  for (const status of ['autorestarting', 'starting', 'idle'] as const) {
    a.sessionContext.kernelDisplayStatus = status;
    a.sessionContext.statusChanged.emit();
    expect(follower.current?.status).toBe(status);
  }
});

test('hears nothing after it is disposed', () => {
  const a = fakeNotebook('a.ipynb', 'python3');
  const tracker = fakeTracker(a);
  const follower = new KernelFollower(tracker);
  const count = countChanges(follower);
  follower.dispose();
  a.sessionContext.kernelChanged.emit();
  tracker.show(null);
  expect(count.changes).toBe(0);
  expect(follower.isDisposed).toBe(true);
});
