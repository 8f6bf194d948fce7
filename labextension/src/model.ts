// What the panel knows and shows, and the one place that asks the kernel. Views listen to `changed`.

import { type ISignal, Signal } from '@lumino/signaling';

import type { IAnswer, KernelClient } from './client';
import {
  type Axis,
  type IAlive,
  type IBox,
  type IBoxed,
  type IHello,
  type IMethods,
  type INote,
  type IOp,
  type IPoint,
  type IScene,
  type ISearch,
  type IStatus,
  type IStepEntry,
  type ISteps,
  type IStorage,
  type IStorageDetail,
  type ISummary,
  type ITouchingOp,
  LabError,
  type Method,
  type Rows,
  type Track
} from './protocol';
import { trans } from './texts';
import type { TrackName } from './timeline/layout';
import { carried, clamp, type IStretch } from './timeline/scale';
import { readView } from './timeline/tables';
import { ViewStore } from './timeline/viewStore';

export interface IPreferences {
  axis: Axis;
  rows: Rows;
  follow: boolean;
}

/** Shorter stretches than this share of the axis are not shown. */
const CLOSEST = 1e-7;
/** New steps are shown at most this often. */
const FOLLOW_MS = 1000;

export type Drawn = 'measured' | 'draft';

/** Steps as the kernel gives them to be drawn, on an axis of this length. */
interface IDrawing {
  scene: IScene;
  length: number;
  reply: IAnswer<'view'>;
}

/** What changed: `scene` redraws all, `view` the drawing, `overlay` what lies over it, `side` the figures round it. */
export type Change = 'scene' | 'view' | 'overlay' | 'side';

export class LabModel {
  constructor(preferences: IPreferences) {
    this.axis = preferences.axis;
    this.rows = preferences.rows;
    this.follow = this._wish = preferences.follow;
  }

  hello: IHello | null = null;
  status: IStatus | null = null;
  /** The steps that are drawn, or null before there are any. */
  steps: ISteps | null = null;
  scene: IScene | null = null;
  axis: Axis;
  rows: Rows;
  /** Whether the newest step of the session replaces what is drawn. */
  follow: boolean;
  /** What is drawn of the steps: what ran, or what is predicted of their source's draft. */
  drawn: Drawn = 'measured';
  /** Whether there is a draft to draw. */
  draftable = false;
  shown: IStretch = { start: 0, end: 1 };
  cursor: number | null = null;
  selected: IStorageDetail | null = null;
  found: ISearch | null = null;
  /** Which of the ops found is selected, from 1; 0: none. */
  foundNumber = 0;
  query = '';
  summary: ISummary | null = null;
  brush: IStretch | null = null;
  /** The rectangle of the block map that was drawn, and what lies in it. */
  box: IBox | null = null;
  boxed: IBoxed | null = null;
  /** The op that was clicked. */
  op: ITouchingOp | null = null;
  /** Tracks that the person has folded away. */
  readonly folded = new Set<TrackName>();
  /** Tracks that stay in sight at the top. */
  readonly pinned = new Set<TrackName>();
  /** Those in the drawn steps. */
  notes: INote[] = [];
  alive: IAlive | null = null;
  /** Counts the times that the person asked what is alive. */
  asked = 0;
  stallNumber = 0;
  peakNumber = 0;
  error: LabError | null = null;
  readonly views = new ViewStore();
  /** The drawing's size, which decides how fine the views are. */
  width = 800;
  height = 200;

  get changed(): ISignal<this, Change> {
    return this._changed;
  }

  /** The line to the kernel, or null where there is none. */
  get client(): KernelClient | null {
    return this._client;
  }

  /** Called with what the kernel says unasked, but for its status. */
  onNews: (name: string, body: unknown) => void = () => undefined;

  /** Answers that are waited for. */
  get waiting(): number {
    return this._client?.waiting ?? 0;
  }

  /** A draft is drawn on the axis of what ran, which may reach further. */
  get length(): number {
    const own = this.scene?.length[this.axis] ?? 1;
    return this.drawn === 'draft' ? Math.max(own, this._measured?.[this.axis] ?? 0) : own;
  }

  /** The steps of the source that is drawn. */
  get entries(): IStepEntry[] {
    const source = this.steps?.source;
    if (!this.status || !source) {
      return [];
    }
    if (this.status.session?.source === source) {
      return this.status.session.steps;
    }
    return this.status.files.find(file => file.source === source)?.steps ?? [];
  }

  /** What the file that is drawn has lost, in words; null: nothing. */
  get lost(): string | null {
    const drawn = this.steps?.source;
    return this.status?.files.find(file => file.source === drawn)?.lost ?? null;
  }

  // ------------------------------------------------------------------------------------------------ the line

  /** Take a line to a kernel, and what it said of itself; null when it is gone. What was drawn goes with it. */
  connect(client: KernelClient | null, hello?: IHello | LabError): void {
    this._client = client;
    this._generation++;
    this._session = null;
    this.follow = this._wish;
    this.hello = null;
    this.status = null;
    this._drop();
    if (!client) {
      this._emit('scene');
      return;
    }
    client.onEvent = (name, body) => {
      if (name === 'status') {
        this._heard(body as IStatus);
      } else {
        this.onNews(name, body);
      }
    };
    client.onError = error => this._fail(error);
    if (hello instanceof LabError) {
      this._fail(hello);
      return;
    }
    this.hello = hello ?? null;
    void this._ask(async () => this._heard((await client.request('status', {})).result));
  }

  private _drop(): void {
    this.drawn = 'measured';
    this.steps = null;
    this.scene = null;
    this.views.clear();
    this.selected = null;
    this.found = null;
    this.notes = [];
    this.cursor = null;
    this.error = null;
    this._forgetAnswers();
  }

  private _heard(status: IStatus): void {
    this.status = status;
    const newest = status.session?.steps.at(-1);
    const session = status.session?.source;
    const drawn = this.steps;
    const lost = drawn !== null && !this._knows(drawn.source);
    if (session && session !== this._session) {
      // A session that begins is what the person looks at next; an opened file or an older step had stopped that.
      this._resumes = this._session !== null || this._heardOnce;
      this._session = session;
    }
    this._heardOnce = true;
    const resumed = this._resumes && this._wish && newest !== undefined;
    if (resumed && !this._choosing) {
      this._resumes = false;
      this.follow = true;
    }
    if (this._choosing) {
      // What the person chose is on its way, and comes first.
    } else if (
      newest &&
      session &&
      (drawn === null ||
        lost ||
        resumed ||
        (this.follow && drawn.source === session && this.drawn === 'measured'))
    ) {
      if (!drawn || lost || drawn.source !== session || drawn.last !== newest.index) {
        this._followLater({ source: session, first: newest.index, last: newest.index });
      }
    } else if (lost) {
      this._drop();
      this._emit('scene');
    }
    this._emit('side');
  }

  private _knows(source: string): boolean {
    const { session, files } = this.status ?? { session: null, files: [] };
    return session?.source === source || files.some(file => file.source === source);
  }

  /** Steps may come faster than anyone can look, or than a busy kernel can prepare them: one at a time. */
  private _followLater(steps: ISteps): void {
    this._next = steps;
    if (this._following) {
      return;
    }
    this._following = true;
    const wait = this.scene ? Math.max(0, this._followedAt + FOLLOW_MS - Date.now()) : 0;
    this._followTimer = window.setTimeout(async () => {
      const next = this._next;
      this._next = null;
      if (next && this._client) {
        await this.show(next, true, 'measured');
      }
      this._followedAt = Date.now();
      this._following = false;
      if (this._next && this.follow) {
        this._followLater(this._next);
      }
    }, wait);
  }

  dispose(): void {
    window.clearTimeout(this._followTimer);
    window.clearTimeout(this._detailTimer);
    Signal.clearData(this);
  }

  // ------------------------------------------------------------------------------------------------ what is drawn

  /**
   * Draw these steps. What was selected, searched and zoomed to stays, where it is there too. `following`: for the
   * session's newest step and not for the person, whose last error then stays to be read.
   */
  async show(steps: ISteps, following = false, as = this.drawn): Promise<void> {
    const client = this._client;
    if (!client) {
      return;
    }
    const turn = ++this._showing;
    const asked = this._asked(steps, as);
    await this._ask(async () => {
      const answer = await this._drawing(client, asked, as);
      const sameSource = this.steps?.source === steps.source;
      const chosen = this.selected;
      const selected = chosen && sameSource ? await this._again(client, asked) : null;
      if (turn !== this._showing) {
        return;
      }
      const hadAlive = this.alive !== null;
      const newer = this.selected !== chosen ? this.selected?.key : undefined; // selected while the kernel answered
      const clears = !following || this._failedFollowing;
      this._take(steps, as, answer, clears);
      this.selected = selected;
      this._emit('scene');
      if (newer !== undefined && sameSource) {
        await this.selectKey(newer);
      }
      await this._askAgain(hadAlive);
    }, following);
  }

  /** What there is to draw of steps, as a whole. */
  private async _drawing(client: KernelClient, asked: ISteps, as: Drawn): Promise<IDrawing> {
    const { result: scene } = await client.request('scene', asked);
    const own = scene.length[this.axis];
    // A draft is drawn on the axis of what ran, which may reach further.
    const length = as === 'draft' ? Math.max(own, this._measured?.[this.axis] ?? 0) : own;
    const reply = await client.request('view', {
      ...asked,
      axis: this.axis,
      start: 0,
      end: length,
      width: this.width,
      height: this.height,
      rows: this.rows
    });
    return { scene, length, reply };
  }

  /** Have these steps take the place of what is drawn. `clears`: the last error goes with that. */
  private _take(
    steps: ISteps,
    as: Drawn,
    { scene, length, reply }: IDrawing,
    clears: boolean
  ): void {
    const before = this.scene && this.steps?.source === steps.source ? this.length : null;
    const shown = carried(this.shown, before, length, as !== this.drawn);
    this.drawn = as;
    if (as === 'measured') {
      this._measured = scene.length;
    }
    this.steps = steps;
    this.scene = scene;
    this.views.clear();
    this.views.overview = readView(reply.result, reply.buffers);
    if (clears) {
      this.error = null;
    }
    this._forgetAnswers();
    this.shown = this._clamped(shown);
  }

  /** Forget what was said of the steps that were drawn. */
  private _forgetAnswers(): void {
    this.brush = null;
    this.summary = null;
    this.box = null;
    this.boxed = null;
    this.op = null;
    this.alive = null;
    this.stallNumber = 0;
    this.peakNumber = 0;
    this.foundNumber = 0;
  }

  /** Ask of the steps that are drawn now what was known of those before. */
  private async _askAgain(alive: boolean): Promise<void> {
    await this._readNotes();
    await this.search(this.query);
    if (alive) {
      await this.ask(undefined, true);
    }
    this._wantDetail();
  }

  /** The selected storage in other steps, where most have another uid; null where they do not have it. */
  private async _again(client: KernelClient, steps: ISteps): Promise<IStorageDetail | null> {
    const storage = this.selected?.key ?? '';
    const { uid } = (await client.request('locate', { ...steps, storage })).result;
    return uid === null
      ? null
      : (await client.request('storage', { ...steps, axis: this.axis, uid })).result;
  }

  /** Ask for the same steps again: on another axis, with other rows, or for another size. */
  async reshow(): Promise<void> {
    if (this.steps) {
      await this.show(this.steps);
    }
  }

  /** Draw what ran, or what is predicted of the draft; what is zoomed to and selected stays. */
  async setDrawn(drawn: Drawn): Promise<void> {
    if (drawn !== this.drawn && this.steps) {
      await this.show({ ...this.steps }, false, drawn);
      if (drawn === 'measured' && this.status) {
        this._heard(this.status); // steps may have ended meanwhile
      }
      this._emit('side');
    }
  }

  /** The draft has changed: draw it anew, if it is what is drawn. */
  redraft(): void {
    if (this.drawn === 'draft' && this.steps) {
      void this.show({ ...this.steps }, true);
    }
  }

  async setAxis(axis: Axis): Promise<void> {
    if (axis !== this.axis) {
      this.axis = axis;
      this.shown = { start: 0, end: this.length };
      this.cursor = null;
      await this.reshow();
    }
  }

  async setRows(rows: Rows): Promise<void> {
    if (rows !== this.rows) {
      this.rows = rows;
      await this.reshow();
    }
  }

  setFollow(follow: boolean): void {
    this.follow = this._wish = follow;
    if (this.status) {
      this._heard(this.status);
    }
  }

  /** Draw another source's newest step, or these steps of it. */
  async choose(source: string, first?: number, last?: number): Promise<void> {
    const entries =
      this.status?.session?.source === source
        ? this.status.session.steps
        : (this.status?.files.find(file => file.source === source)?.steps ?? []);
    const newest = entries.at(-1);
    if (newest) {
      this.follow = first === undefined && this.status?.session?.source === source;
      this._next = null;
      this._choosing += 1;
      try {
        await this.show(
          { source, first: first ?? newest.index, last: last ?? first ?? newest.index },
          false,
          'measured'
        );
      } finally {
        this._choosing -= 1;
      }
    }
  }

  /** Read a trace and draw it, or a policy, which has no steps to draw; its name as a source. */
  async openFile(path: string): Promise<string | undefined> {
    const client = this._client;
    if (!client) {
      this._fail(
        new LabError(
          'no_kernel',
          trans.__('A kernel reads the file: open a notebook and load the extension.')
        )
      );
      return undefined;
    }
    return this._ask(async () => {
      const { source } = (await client.request('open', { path })).result;
      this.error = null; // of the file before
      this.status = (await client.request('status', {})).result;
      await this.choose(source);
      this._emit('side');
      return source;
    });
  }

  /** Show another stretch of the axis. */
  look(stretch: IStretch): void {
    this.shown = this._clamped(stretch);
    this._emit('view');
    this._wantDetail();
  }

  fit(): void {
    this.look({ start: 0, end: this.length });
  }

  private _clamped(stretch: IStretch): IStretch {
    return clamp(stretch, this.length, Math.max(this.length * CLOSEST, this.axis === 'op' ? 2 : 0));
  }

  /** Ask for a closer look once the zooming pauses; the newest wish wins. */
  private _wantDetail(): void {
    window.clearTimeout(this._detailTimer);
    const wanted = this.views.wanted(this.shown, this.length);
    const { steps } = this;
    const client = this._client;
    if (!wanted || !steps || !client) {
      return;
    }
    this._detailTimer = window.setTimeout(() => {
      const turn = ++this._detailing;
      const shares = (wanted.end - wanted.start) / (this.shown.end - this.shown.start);
      void this._ask(async () => {
        const reply = await client.request('view', {
          ...this._asked(steps),
          axis: this.axis,
          ...wanted,
          width: Math.min(Math.ceil(this.width * shares), 16384),
          height: this.height,
          rows: this.rows
        });
        if (turn === this._detailing && steps === this.steps) {
          this.views.detail = readView(reply.result, reply.buffers);
          this._emit('view');
        }
      });
    }, 60);
  }

  // ------------------------------------------------------------------------------------------------ questions

  setCursor(at: number | null): void {
    this.cursor = at;
    this._emit('overlay');
  }

  async point(track: Track, row: number): Promise<IPoint | null> {
    const answer = await this._onScene(async (client, steps) => {
      return (await client.request('point', { ...steps, axis: this.axis, track, row })).result;
    });
    return answer ?? null;
  }

  /** Select a storage, or nothing. `quiet`: one that is not in these steps is no error. */
  async select(uid: number | null, quiet = false): Promise<void> {
    if (uid === null) {
      this.selected = null;
      this._emit('overlay');
      this._emit('side');
      return;
    }
    const client = this._client;
    const steps = this.steps;
    if (!client || !steps) {
      return;
    }
    try {
      const params = { ...this._asked(steps), axis: this.axis, uid };
      const { result } = await client.request('storage', params);
      if (steps !== this.steps) {
        await this.selectKey(result.key); // others are drawn by now, in which it may have another uid
        return;
      }
      this.selected = result;
    } catch (error) {
      if (!quiet) {
        this._fail(error);
      }
      this.selected = null;
    }
    this._emit('overlay');
    this._emit('side');
  }

  /** Select a storage that the search found; the steps it found it in may be drawn no more. */
  async selectFound({ uid, key }: IStorage): Promise<void> {
    await (this._foundIn === this.steps ? this.select(uid) : this.selectKey(key));
  }

  /** Select a storage by its key, in whatever steps are drawn when the kernel has answered. */
  async selectKey(storage: string): Promise<void> {
    let asked: ISteps | null;
    do {
      asked = this.steps;
      const uid = await this.locate(storage);
      if (asked === this.steps) {
        await this.select(uid, true);
      }
    } while (asked !== this.steps);
  }

  /** The uid that a storage has in the drawn steps, by its key; null where they do not have it. */
  async locate(storage: string): Promise<number | null> {
    const answer = await this._onScene(async (client, steps) => {
      return (await client.request('locate', { ...steps, storage })).result.uid;
    });
    return answer ?? null;
  }

  async search(query: string): Promise<void> {
    if (query !== this.query) {
      this.foundNumber = 0;
    }
    this.query = query;
    const turn = ++this._searching;
    const drawn = this.steps;
    await this._onScene(async (client, steps) => {
      const { result } = await client.request('search', { ...steps, axis: this.axis, query });
      if (turn === this._searching) {
        this.found = result;
        this._foundIn = drawn;
        if (this.error?.code === 'query') {
          this.error = null;
        }
        this._emit('overlay');
        this._emit('side');
      }
    });
  }

  /** Sum up a stretch of the axis, or forget it. */
  async summarize(stretch: IStretch | null): Promise<void> {
    this.brush = stretch;
    this.summary = null;
    this._emit('overlay');
    this._emit('side');
    if (stretch) {
      await this._onScene(async (client, steps) => {
        const { result } = await client.request('range', { ...steps, axis: this.axis, ...stretch });
        if (this.brush === stretch) {
          this.summary = result;
          this._emit('side');
        }
      });
    }
  }

  /** List what lies in a rectangle of the block map, or forget it. */
  async enclose(box: IBox | null): Promise<void> {
    this.box = box;
    this.boxed = null;
    this._emit('overlay');
    this._emit('side');
    if (box) {
      await this._onScene(async (client, steps) => {
        const params = { ...steps, axis: this.axis, rows: this.rows, ...box };
        const { result } = await client.request('box', params);
        if (this.box === box) {
          this.boxed = result;
          this._emit('side');
        }
      });
    }
  }

  /** Select an op and the first storage that it touches, as a click on it does, and bring it into sight. */
  async showOp({ row, x0, x1 }: Pick<IOp, 'row' | 'x0' | 'x1'>, number = 0): Promise<void> {
    const span = Math.max((x1 - x0) * 20, this.length / 200);
    const [start, end] = [this.shown.start, this.shown.end];
    if (end - start > 2 * span || x0 < start || x1 > end) {
      this.look({ start: (x0 + x1) / 2 - span / 2, end: (x0 + x1) / 2 + span / 2 });
    }
    this.cursor = this._foundAt = (x0 + x1) / 2;
    this.foundNumber = number;
    const op = (await this.point('ops', row))?.op ?? null;
    this.tell(op);
    const storage = op?.touches.storages[0];
    if (storage) {
      await this.select(storage.uid);
    }
  }

  /** Go to the next op that the search found, or to the one before; round at the ends. */
  seekFound(direction: -1 | 1): Promise<void> {
    // One after the other: each goes on from where the one before has led.
    this._walk = this._walk.then(() => this._seekFound(direction));
    return this._walk;
  }

  private async _seekFound(direction: -1 | 1): Promise<void> {
    await this._onScene(async (client, steps) => {
      const at = this.foundNumber ? this._foundAt : direction > 0 ? -1e-9 : this.length;
      const params = { ...steps, axis: this.axis, at, direction, what: 'op' as const };
      const { op, number } = (await client.request('seek', { ...params, query: this.query }))
        .result;
      if (op) {
        await this.showOp(op, number);
      }
    });
  }

  /** Tell of an op beside what is selected, or forget it. */
  tell(op: ITouchingOp | null): void {
    this.op = op;
    this._emit('overlay');
    this._emit('side');
  }

  /** List the storages alive at a position, by default at the peak. `again`: for new steps, not for the person. */
  async ask(at?: number, again = false): Promise<void> {
    await this._onScene(async (client, steps) => {
      const where = at ?? this.scene?.peak[this.axis] ?? 0;
      const { result } = await client.request('alive', { ...steps, axis: this.axis, at: where });
      this.alive = result;
      if (!again) {
        this.asked += 1;
        this.cursor = where;
      }
      this._emit('overlay');
      this._emit('side');
    });
  }

  /** Go to the next stall, or the one before; selects what was waited for. */
  async seek(direction: -1 | 1): Promise<void> {
    await this._onScene(async (client, steps) => {
      const from =
        this.stallNumber && this.cursor !== null
          ? this.cursor
          : direction > 0
            ? -1e-9
            : this.length;
      const { stall, number } = (
        await client.request('seek', { ...steps, axis: this.axis, at: from, direction })
      ).result;
      if (!stall) {
        return;
      }
      this.stallNumber = number;
      this.cursor = (stall.x0 + stall.x1) / 2;
      const span = Math.max((stall.x1 - stall.x0) * 12, this.length / 60);
      this.look({ start: this.cursor - span / 2, end: this.cursor + span / 2 });
      await this.select(stall.storage?.uid ?? null);
    });
  }

  /** Show the highest peak, and what is alive there. */
  async goToPeak(): Promise<void> {
    const at = this.scene?.peak[this.axis];
    if (at !== undefined) {
      this.peakNumber = 0;
      await this._showPeak(at);
    }
  }

  /** Go to the next place where the bytes on the device are high, or the one before, and list what is alive there. */
  async seekPeak(direction: -1 | 1): Promise<void> {
    await this._onScene(async (client, steps) => {
      const at = this.cursor ?? (direction > 0 ? -1e-9 : this.length);
      const params = { ...steps, axis: this.axis, at, direction, what: 'peak' as const };
      const { peak, number } = (await client.request('seek', params)).result;
      if (peak) {
        this.peakNumber = number;
        await this._showPeak(peak.at);
      }
    });
  }

  private async _showPeak(at: number): Promise<void> {
    const span = Math.min(this.shown.end - this.shown.start, this.length / 8);
    this.look({ start: at - span / 2, end: at + span / 2 });
    await this.ask(at);
  }

  /** Ask what the model itself does not keep; undefined where the kernel could not answer, which is shown. */
  async request<M extends Method>(
    method: M,
    params: IMethods[M][0]
  ): Promise<IAnswer<M> | undefined> {
    const client = this._client;
    return client ? this._ask(() => client.request(method, params)) : undefined;
  }

  /** The drawn steps as the kernel knows them, or null. */
  get drawnSteps(): ISteps | null {
    return this.steps && this._asked(this.steps);
  }

  /** Ask, and throw what the kernel answers instead. */
  async attempt<M extends Method>(method: M, params: IMethods[M][0]): Promise<IAnswer<M>> {
    if (!this._client) {
      throw new LabError('closed', trans.__('There is no kernel.'));
    }
    return this._client.request(method, params);
  }

  /** Show what went wrong. */
  fail(error: unknown): void {
    this._fail(error);
  }

  /** Keep a note at a position of the axis. */
  async addNote(at: number, text: string): Promise<void> {
    await this._onScene(async (client, steps) => {
      this._takeNotes(
        (await client.request('note', { ...steps, axis: this.axis, at, text })).result
      );
    });
  }

  async forgetNote(index: number): Promise<void> {
    await this._onScene(async (client, steps) => {
      this._takeNotes((await client.request('forget_note', { ...steps, index })).result);
    });
  }

  private async _readNotes(): Promise<void> {
    const drawn = this.steps;
    await this._onScene(async (client, steps) => {
      const { result } = await client.request('notes', steps);
      if (drawn === this.steps && (result.notes.length || this.notes.length)) {
        this._takeNotes(result);
      }
    });
  }

  private _takeNotes({ notes }: { notes: INote[] }): void {
    this.notes = notes;
    this._emit('overlay');
    this._emit('side');
  }

  /** Put the crosshair at a position, and bring it into sight. */
  goTo(at: number): void {
    const span = this.shown.end - this.shown.start;
    if (at < this.shown.start || at > this.shown.end) {
      this.look({ start: at - span / 2, end: at + span / 2 });
    }
    this.setCursor(at);
    this._emit('side');
  }

  dismissError(): void {
    this.error = null;
    this._emit('side');
  }

  // ------------------------------------------------------------------------------------------------ helpers

  private async _onScene<T>(
    work: (client: KernelClient, steps: ISteps) => Promise<T>
  ): Promise<T | undefined> {
    const client = this._client;
    const steps = this.steps;
    return client && steps ? this._ask(() => work(client, this._asked(steps))) : undefined;
  }

  /** The steps as the kernel knows what is drawn of them. */
  private _asked(steps: ISteps, as = this.drawn): ISteps {
    return as === 'draft' ? { ...steps, source: `draft:${steps.source}` } : steps;
  }

  /** Run a conversation with the kernel; its failure is shown, unless the line has changed meanwhile. */
  private async _ask<T>(work: () => Promise<T>, following = false): Promise<T | undefined> {
    const generation = this._generation;
    try {
      return await work();
    } catch (error) {
      if (generation === this._generation) {
        this._fail(error, following);
      }
      return undefined;
    }
  }

  private _fail(error: unknown, following = false): void {
    const known = error instanceof LabError ? error : new LabError('internal', String(error));
    if (known.code === 'closed') {
      return; // the connection says so itself
    }
    this.error = known;
    this._failedFollowing = following;
    this._emit('side');
  }

  private _emit(change: Change): void {
    this._changed.emit(change);
  }

  private _client: KernelClient | null = null;
  private _generation = 0;
  private _showing = 0;
  /** How long the axes of what ran are. */
  private _measured: IScene['length'] | null = null;
  private _detailing = 0;
  private _searching = 0;
  private _foundIn: ISteps | null = null;
  private _choosing = 0;
  private _walk: Promise<void> = Promise.resolve();
  /** Where on the axis the op found last is. */
  private _foundAt = 0;
  /** Whether the person wants the newest step, also while something else is drawn. */
  private _wish: boolean;
  /** The session heard of last. */
  private _session: string | null = null;
  private _heardOnce = false;
  private _resumes = false;
  private _failedFollowing = false;
  private _next: ISteps | null = null;
  private _followedAt = 0;
  private _following = false;
  private _followTimer: number | undefined;
  private _detailTimer: number | undefined;
  private readonly _changed = new Signal<this, Change>(this);
}
