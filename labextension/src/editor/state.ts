// The policy editor's state: the kernel's draft as it was last answered, the rows in view, and what is kept of it here.

import { type ISignal, Signal } from '@lumino/signaling';

import type { KernelClient } from '../client';
import {
  type Change,
  type DecisionSort,
  type IChanges,
  type IChoices,
  type ICurve,
  type IDecision,
  type IDraft,
  type IEdit,
  type IMethods,
  type IOpenDraft,
  LabError
} from '../protocol';
import { trans } from '../texts';
import type { IKept, Keeper } from './keeper';

/** Rows that are asked for at once. */
export const PAGE = 100;
/** Characters of edits in one request; the kernel takes 64 KiB. */
const CHUNK = 48 * 1024;
/** Rows that can be selected together. */
const MOST_PICKED = 2000;

/** The edit that forbids the planner to rematerialize; whether and how a storage leaves is another question. */
export const NEVER_REPLAY = 'never_rematerialize';

/** What changed: `draft` its figures and edits, the others what their name says. */
export type EditorChange = 'draft' | 'rows' | 'choices' | 'changes' | 'curve';

export interface IFilter {
  query: string;
  sort: DecisionSort;
  down: boolean;
}

export class Editor {
  constructor(private readonly _keeper: Keeper) {}

  /** The draft, or null where no kernel has answered yet. */
  draft: IDraft | null = null;
  /** Edits that were kept when their kernel went, and that can be put back. */
  offered: IKept | null = null;
  filter: IFilter = { query: '', sort: 'bytes', down: true };
  total = 0;
  bytes = 0;
  /** What is selected, by its key. */
  selected: string | null = null;
  /** Rows that were selected together, by their storages; with one selected alone it is empty. */
  readonly picked = new Map<string, IDecision>();
  choices: IChoices | null = null;
  changes: IChanges | null = null;
  curve: ICurve | null = null;
  error: LabError | null = null;
  /** What was done last, to be said. */
  said = '';
  /** Milliseconds from the newest edit to its first figures. */
  answeredMs = 0;
  /** Whether the list of changes is looked at, and so worth asking for. */
  wantsChanges = false;

  get changed(): ISignal<this, EditorChange> {
    return this._changed;
  }

  /** The storages that a decision is about. */
  get chosen(): string[] {
    return this.picked.size
      ? [...this.picked.keys()]
      : this.selected === null
        ? []
        : [this.selected];
  }

  get open(): IOpenDraft | null {
    return this.draft?.editable ? this.draft : null;
  }

  /** Whether an answer to an edit is waited for. */
  get busy(): boolean {
    return this._busy > 0;
  }

  /** Changes that are kept here while there is no kernel to hold them. */
  get orphaned(): IKept | null {
    return this._client ? null : this._name ? this._keeper.has(this._name) : null;
  }

  // ------------------------------------------------------------------------------------------------ the line

  /**
   * Edit the policy of this source over this line; null where there is none. `name` is that of the notebook and the
   * kind of source, under which its edits are kept.
   */
  attach(client: KernelClient | null, source: string | null, name: string): void {
    if (client === this._client && source === this._source && name === this._name) {
      return;
    }
    this._client = client;
    this._source = source;
    if (client || name) {
      this._name = name;
    }
    this._generation++;
    this._meeting = null;
    this.draft = null;
    this.offered = null;
    this.choices = null;
    this.changes = null;
    this.curve = null;
    this.error = null;
    this.said = '';
    this.picked.clear();
    this._rows.clear();
    this.total = 0;
    this._emit('draft');
    this._emit('rows');
    this._emit('choices');
    this._emit('curve');
    if (client && source) {
      void this.refresh();
    }
  }

  /** The kernel has something new to say of a draft. */
  heard(body: { source?: unknown; news?: unknown }): void {
    if (body.source === this._source && body.news !== this.draft?.news) {
      void this.refresh();
    }
  }

  /** The session has moved on: what could not be edited may be now. */
  async look(): Promise<void> {
    if (this._client && this._source && !this.draft?.editable) {
      await this.refresh();
    }
  }

  /** Ask for the draft again, and for what is shown of it. One answer serves all who ask meanwhile. */
  async refresh(rebase = false): Promise<void> {
    if (this._asking && !rebase) {
      this._again = true;
      return;
    }
    this._asking = true;
    try {
      const draft = await this._request('draft', { rebase });
      if (draft) {
        await this._take(draft);
      }
    } finally {
      this._asking = false;
    }
    if (this._again) {
      this._again = false;
      await this.refresh();
    }
  }

  private async _take(draft: IDraft): Promise<void> {
    this.draft = draft;
    this._stale++;
    const open = this.open;
    if (open) {
      await this._remember(open);
    }
    this._emit('draft');
    await Promise.all([
      this._askRows(),
      this._askChoices(),
      this.wantsChanges ? this.askChanges() : undefined,
      this.curve && this.curve.left > 0 ? this.askCurve(false) : undefined
    ]);
  }

  // ------------------------------------------------------------------------------------------------ kept edits

  private async _remember(open: IOpenDraft): Promise<void> {
    const [name, generation] = [this._name, this._generation];
    // JupyterLab's state may be slow to answer, and the kernel may have more to say meanwhile: nothing is written before.
    this._meeting ??= this._meet(open, name);
    await this._meeting;
    if (this.offered || generation !== this._generation) {
      return; // offered: until the person says what shall become of it
    }
    if (open.same) {
      this._keeper.forget(name);
    } else {
      this._keeper.keep(name, {
        edits: open.edits.map(entry => entry.edit),
        staged: open.staged
      });
    }
  }

  /** Compare a draft that is seen for the first time with what is kept under its name. */
  private async _meet(open: IOpenDraft, name: string): Promise<void> {
    const generation = this._generation;
    const kept = await this._keeper.find(name);
    const edits = open.edits.map(entry => entry.edit);
    // A kernel that still holds the draft needs no help.
    const isNews = kept && open.same && JSON.stringify(kept.edits) !== JSON.stringify(edits);
    if (isNews && generation === this._generation) {
      this.offered = kept;
    }
  }

  /** Put the kept edits on the draft. */
  async putBack(): Promise<void> {
    const { offered } = this;
    if (offered) {
      this.offered = null;
      await this._setAll(offered.edits);
      const { staged } = offered;
      this.said =
        staged === 1
          ? trans.__('The change is back.')
          : trans._n('%1 change is back.', '%1 changes are back.', staged);
      this._emit('draft');
    }
  }

  /** Forget the kept edits. */
  discardKept(): void {
    this.offered = null;
    if (this.open) {
      void this._remember(this.open);
    } else {
      this._keeper.forget(this._name);
    }
    this._emit('draft');
  }

  /** Set edits, in as many requests as they need. */
  private async _setAll(edits: IEdit[]): Promise<void> {
    let change: Change = 'set';
    for (const chunk of chunks(edits, CHUNK)) {
      await this.edit(change, chunk);
      change = 'add';
    }
  }

  // ------------------------------------------------------------------------------------------------ rows

  /** The row at a position of the table, or undefined while it is asked for. */
  row(position: number): IDecision | undefined {
    return this._rows.get(position)?.row;
  }

  /** Say which rows are in view. */
  async want(first: number, count: number): Promise<void> {
    this._first = Math.max(0, first);
    this._count = count;
    await this._askRows();
  }

  async setFilter(filter: Partial<IFilter>): Promise<void> {
    if (filter.query !== undefined && filter.query !== this.filter.query) {
      this.picked.clear(); // nothing is decided about that is out of sight
    }
    this.filter = { ...this.filter, ...filter };
    this._stale++;
    this._first = 0;
    await this._askRows();
  }

  /** Ask for the pages in view whose rows are missing or stale. */
  private async _askRows(): Promise<void> {
    if (!this.open) {
      return;
    }
    const turn = this._stale;
    const from = Math.floor(this._first / PAGE);
    const to = Math.floor((this._first + Math.max(this._count, 1) - 1) / PAGE);
    const wanted = [];
    for (let page = from; page <= to; page++) {
      const start = page * PAGE;
      if (start > 0 && start >= this.total) {
        break;
      }
      if (this._rows.get(start)?.turn !== turn && !this._paging.has(`${turn}:${page}`)) {
        wanted.push(page);
      }
    }
    await Promise.all(
      wanted.map(async page => {
        const key = `${turn}:${page}`;
        this._paging.add(key);
        const answer = await this._request('decisions', {
          ...this.filter,
          first_row: page * PAGE,
          count: PAGE
        });
        this._paging.delete(key);
        if (!answer || turn !== this._stale) {
          return;
        }
        if (answer.total !== this.total) {
          for (const position of [...this._rows.keys()]) {
            if (position >= answer.total) {
              this._rows.delete(position);
            }
          }
        }
        this.total = answer.total;
        this.bytes = answer.bytes;
        answer.rows.forEach((row, i) => {
          this._rows.set(answer.start + i, { row, turn });
        });
        if (this.error?.code === 'query') {
          this.error = null;
        }
        this._emit('rows');
      })
    );
  }

  // ------------------------------------------------------------------------------------------------ one storage

  /** Add a row to those selected together, or take it away. */
  toggle(row: IDecision): void {
    const first = this.selected === null ? undefined : this._known(this.selected);
    if (!this.picked.size && first) {
      this.picked.set(first.storage, first);
    }
    if (!this.picked.delete(row.storage)) {
      this.picked.set(row.storage, row);
    }
    this._emit('rows');
  }

  /** Select the rows of the table from one position to another together, the last ones at most. */
  async pickRange(from: number, to: number): Promise<void> {
    const [first, end] = [Math.min(from, to), Math.min(Math.max(from, to), this.total - 1)];
    const rows: IDecision[] = [];
    for (let at = first; at <= end && rows.length < MOST_PICKED; ) {
      const known = this.row(at);
      if (known) {
        rows.push(known);
        at += 1;
        continue;
      }
      const params = { ...this.filter, first_row: at, count: PAGE };
      const page = await this._request('decisions', params);
      if (!page?.rows.length) {
        break;
      }
      rows.push(...page.rows.slice(0, end - at + 1));
      at += page.rows.length;
    }
    this.picked.clear();
    for (const row of rows.slice(0, MOST_PICKED)) {
      this.picked.set(row.storage, row);
    }
    this._emit('rows');
  }

  /** Select no more than one. */
  unpick(): void {
    this.picked.clear();
    this._emit('rows');
  }

  private _known(storage: string): IDecision | undefined {
    for (const { row } of this._rows.values()) {
      if (row.storage === storage) {
        return row;
      }
    }
    return undefined;
  }

  /** Select a storage by its key, or nothing; others that are selected with it stay so. */
  async choose(storage: string | null): Promise<void> {
    if (storage === null || !this.picked.has(storage)) {
      this.picked.clear();
    }
    if (storage !== this.selected) {
      this.selected = storage;
      this.choices = null;
      this._emit('choices');
      this._emit('rows');
    }
    await this._askChoices();
  }

  private async _askChoices(): Promise<void> {
    const { selected } = this;
    if (!selected || !this.open) {
      return;
    }
    const choices = await this._request('choices', { storage: selected });
    if (choices && selected === this.selected) {
      this.choices = choices;
      this._emit('choices');
    }
  }

  async askChanges(): Promise<void> {
    if (this.open) {
      const changes = await this._request('changes', {});
      if (changes) {
        this.changes = changes;
        this._emit('changes');
      }
    }
  }

  /** Ask for the curve; `begin`: have it worked out. */
  async askCurve(begin: boolean): Promise<void> {
    if (this.open) {
      const curve = await this._request('curve', { begin });
      if (curve) {
        this.curve = curve;
        this._emit('curve');
      }
    }
  }

  // ------------------------------------------------------------------------------------------------ changes

  /** Change the draft. The edits are kept here before the kernel has them, for it may die on the way. */
  async edit(change: Change, edits: IEdit[] = [], index = -1): Promise<void> {
    const open = this.open;
    if (open && !this.offered && (change === 'add' || change === 'set')) {
      const before = change === 'add' ? open.edits.map(entry => entry.edit) : [];
      this._keeper.keep(this._name, {
        edits: joined(before, edits),
        staged: open.staged + edits.length
      });
    }
    const began = performance.now();
    await this._act('edit', { change, edits, index });
    this.answeredMs = performance.now() - began;
  }

  /** Decide about storages in one change, or let the planner decide again (null). */
  async decide(storages: string[], action: string | null): Promise<void> {
    const open = this.open;
    if (!open || !storages.length) {
      return;
    }
    const edits = open.edits.map(entry => entry.edit);
    if (action === null) {
      const those = new Set(storages);
      await this._setAll(
        edits.filter(edit => edit.storage === undefined || !those.has(edit.storage))
      );
      return;
    }
    const added = storages.map(storage => ({ action, storage }));
    for (const chunk of chunks(added, CHUNK)) {
      await this.edit('add', chunk);
    }
  }

  /** Forbid that storages are rematerialized, or allow it again. */
  async forbidReplay(storages: string[], forbid: boolean): Promise<void> {
    if (forbid) {
      await this.decide(storages, NEVER_REPLAY);
      return;
    }
    const those = new Set(storages);
    const edits = this.open?.edits.map(entry => entry.edit) ?? [];
    await this._setAll(
      edits.filter(({ action, storage }) => action !== NEVER_REPLAY || !those.has(storage ?? ''))
    );
  }

  /** Move the prefetch of storages by so many ops, on top of what edits have moved it already. */
  async earlier(storages: string[], ops: number): Promise<void> {
    const edits = this.open?.edits.map(entry => entry.edit);
    if (!edits || !storages.length) {
      return;
    }
    const those = new Set(storages);
    const isOwn = (edit: IEdit) =>
      edit.action === 'prefetch' && edit.gap === undefined && those.has(edit.storage ?? '');
    const before = new Map(edits.filter(isOwn).map(edit => [edit.storage, edit.ops_earlier ?? 0]));
    const moved = storages
      .map(storage => ({
        action: 'prefetch',
        storage,
        ops_earlier: (before.get(storage) ?? 0) + ops
      }))
      .filter(edit => edit.ops_earlier !== 0);
    if (moved.length === storages.length) {
      await this.edit('add', moved);
    } else {
      await this._setAll([...edits.filter(edit => !isOwn(edit)), ...moved]);
    }
  }

  async setCapacity(capacity_bytes: number): Promise<void> {
    if (capacity_bytes !== this.open?.capacity_bytes) {
      await this.edit('add', [{ action: 'capacity', capacity_bytes: Math.round(capacity_bytes) }]);
    }
  }

  async dryRun(): Promise<void> {
    await this._act('dry_run', {});
  }

  async endDryRun(): Promise<void> {
    await this._act('end_dry_run', {});
  }

  async enable(): Promise<void> {
    if (await this._act('enable', {})) {
      this.said = trans.__('Enabled.');
      this._emit('draft');
    }
  }

  async rollBack(): Promise<void> {
    if (await this._act('roll_back', {})) {
      this.said = trans.__('Rolled back.');
      this._emit('draft');
    }
  }

  /** Write the policy; false where the file is there and may not be overwritten. */
  async save(path: string, overwrite: boolean): Promise<boolean> {
    this._busy++;
    this._emit('draft');
    try {
      const saved = await this._request('save', { path, overwrite }, 'exists');
      if (saved) {
        this.said = trans.__('Saved to %1.', saved.path);
        this.error = null;
      }
      return saved !== null || this._refused !== 'exists';
    } finally {
      this._busy--;
      this._emit('draft');
    }
  }

  async load(path: string): Promise<void> {
    if (await this._act('load', { path })) {
      const count = this.open?.edits.length ?? 0;
      this.said = trans._n('Loaded %2: %1 edit.', 'Loaded %2: %1 edits.', count, path);
      this._emit('draft');
    }
  }

  /** How many storages an edit would mean; null where it is no edit. */
  async matching(edit: IEdit): Promise<IMethods['matching'][1] | null> {
    return this._request('matching', { edit }, 'bad_edit');
  }

  dismissError(): void {
    this.error = null;
    this._emit('draft');
  }

  dispose(): void {
    Signal.clearData(this);
  }

  // ------------------------------------------------------------------------------------------------ helpers

  /** Ask for something that changes the draft. False where it failed. */
  private async _act<
    M extends 'edit' | 'dry_run' | 'end_dry_run' | 'enable' | 'roll_back' | 'load'
  >(method: M, params: Omit<IMethods[M][0], 'source'>): Promise<boolean> {
    this._busy++;
    this.said = '';
    this._emit('draft');
    try {
      const draft = await this._request(method, params);
      if (!draft) {
        return false;
      }
      this.error = null;
      await this._take(draft as IDraft);
      return true;
    } finally {
      this._busy--;
      this._emit('draft');
    }
  }

  /** An answer, or null where there is none: its error is shown, but for the code that the caller `expects`. */
  private async _request<M extends keyof IMethods>(
    method: M,
    params: Omit<IMethods[M][0], 'source'>,
    expects = ''
  ): Promise<IMethods[M][1] | null> {
    const [client, source, generation] = [this._client, this._source, this._generation];
    this._refused = '';
    if (!client || !source) {
      return null;
    }
    try {
      const { result } = await client.request(method, {
        ...params,
        source
      } as unknown as IMethods[M][0]);
      return generation === this._generation ? result : null;
    } catch (error) {
      const known = error instanceof LabError ? error : new LabError('internal', String(error));
      this._refused = known.code;
      // The connection says itself that it closed; a source that is gone is replaced by the panel.
      const quiet = known.code === 'closed' || known.code === 'gone' || known.code === expects;
      if (generation === this._generation && !quiet) {
        this.error = known;
        this._emit('draft');
      }
      return null;
    }
  }

  private _emit(change: EditorChange): void {
    this._changed.emit(change);
  }

  private _client: KernelClient | null = null;
  private _source: string | null = null;
  private _name = '';
  private _generation = 0;
  /** The comparison of this draft with what is kept. */
  private _meeting: Promise<void> | null = null;
  private _asking = false;
  private _again = false;
  private _busy = 0;
  private _refused = '';
  private _first = 0;
  private _count = PAGE;
  /** Counts the times that all rows became stale. */
  private _stale = 0;
  private readonly _rows = new Map<number, { row: IDecision; turn: number }>();
  private readonly _paging = new Set<string>();
  private readonly _changed = new Signal<this, EditorChange>(this);
}

/** New edits behind the others; one that answers the same question takes the other's place, as in the kernel. */
export function joined(before: IEdit[], edits: IEdit[]): IEdit[] {
  const questions = (edit: IEdit) => {
    const { ops_earlier, capacity_bytes, link, note, action, ...target } = edit;
    const asks = [
      ['prefetch', 'capacity', 'link', NEVER_REPLAY].includes(action) ? action : 'residence'
    ];
    if (action === 'rematerialize' || action === NEVER_REPLAY) {
      asks.push('replay'); // of the two one decides
    }
    return asks.map(ask => JSON.stringify([ask, Object.entries(target).sort()]));
  };
  const asked = new Set(edits.flatMap(questions));
  return [...before.filter(edit => !questions(edit).some(ask => asked.has(ask))), ...edits];
}

/** Edits in runs of at most so many characters of JSON; one empty run where there are none. */
export function chunks(edits: IEdit[], most: number): IEdit[][] {
  const runs: IEdit[][] = [[]];
  let size = 0;
  for (const edit of edits) {
    const length = JSON.stringify(edit).length + 1;
    if (size + length > most && runs[runs.length - 1].length) {
      runs.push([]);
      size = 0;
    }
    runs[runs.length - 1].push(edit);
    size += length;
  }
  return runs;
}
