// What is compared: the two sides chosen, the kernel's answer, and the stretch of the axis that is shown.

import type { LabModel } from '../model';
import type { Axis, IComparison, ISide } from '../protocol';
import { trans } from '../texts';
import { clamp, type IStretch } from '../timeline/scale';
import { type ICompareTables, readCompareView } from './compareTables';

export interface IChoice {
  side: ISide;
  name: string;
}

/** Shorter stretches than this share of the axis are not shown. */
const CLOSEST = 1e-6;
const DETAIL_MS = 60;

/** Every step and policy that can be one of the two, the session's newest first. */
export function choicesOf(status: LabModel['status']): IChoice[] {
  const choices: IChoice[] = [];
  const steps = (prefix: string, source: string, entries: { index: number; stage: string }[]) => {
    for (const { index, stage } of [...entries].reverse()) {
      choices.push({
        side: { source, step: index },
        name: prefix + trans.__('step %1 · %2', index, stage)
      });
    }
  };
  for (const { source, name, swaps, drops } of status?.policies ?? []) {
    const file = name.split('/').at(-1);
    const called = name.startsWith('draft') && file !== name ? trans.__('draft of %1', file) : file;
    const made = [trans._n('%1 swaps', '%1 swaps', swaps)];
    if (drops) {
      made.push(trans._n('%1 drops', '%1 drops', drops));
    }
    const text = trans.__('Policy %1 · %2, predicted', called, made.join(', '));
    choices.push({ side: { source, step: 0 }, name: text });
  }
  if (status?.session) {
    steps('', status.session.source, status.session.steps);
  }
  for (const { source, path, steps: entries } of status?.files ?? []) {
    steps(`${path.split('/').at(-1)} · `, source, entries);
  }
  return choices;
}

export function sameSide(a: ISide | null, b: ISide | null): boolean {
  return a?.source === b?.source && a?.step === b?.step;
}

export class CompareModel {
  constructor(
    private readonly _lab: LabModel,
    private readonly _changed: (drawingAlone: boolean) => void
  ) {}

  a: ISide | null = null;
  b: ISide | null = null;
  axis: Axis = 'time';
  shown: IStretch = { start: 0, end: 1 };
  cursor: number | null = null;
  result: IComparison | null = null;
  tables: ICompareTables | null = null;
  width = 800;

  get choices(): IChoice[] {
    return choicesOf(this._lab.status);
  }

  get length(): number {
    const { result, axis } = this;
    return result ? Math.max(result.a.length[axis], result.b.length[axis]) : 1;
  }

  /** Begin with a source, or with what is drawn, and with the first other one: the policy in force, if there is. */
  async begin(source?: string): Promise<void> {
    const { choices } = this;
    const opened = source && choices.find(choice => choice.side.source === source);
    if (opened) {
      this.b = opened.side;
    }
    const known = (side: ISide | null) => choices.some(choice => sameSide(choice.side, side));
    const steps = this._lab.steps;
    const drawn = steps && { source: steps.source, step: steps.last };
    if (!known(this.b)) {
      this.b = known(drawn) ? drawn : (choices[0]?.side ?? null);
    }
    if (!known(this.a) || sameSide(this.a, this.b)) {
      this.a = choices.find(choice => !sameSide(choice.side, this.b))?.side ?? this.b;
    }
    await this.compare();
  }

  async choose(which: 'a' | 'b', side: ISide): Promise<void> {
    this[which] = side;
    await this.compare();
  }

  /** A draft has changed: what is compared with it has, too. */
  async redraft(): Promise<void> {
    if ([this.a, this.b].some(side => side?.source.startsWith('policy:draft'))) {
      await this.compare();
    }
  }

  async swap(): Promise<void> {
    [this.a, this.b] = [this.b, this.a];
    await this.compare();
  }

  /** Ask for the figures, then for the curves. */
  async compare(): Promise<void> {
    const { a, b } = this;
    const turn = ++this._comparing;
    if (!a || !b) {
      this.result = null;
      this.tables = null;
      this._changed(false);
      return;
    }
    const answer = await this._lab.request('compare', { a, b });
    if (turn !== this._comparing) {
      return;
    }
    this.result = answer?.result ?? null;
    this.tables = null;
    this.cursor = null;
    this.shown = { start: 0, end: this.length };
    this._changed(false);
    await this._fetch();
  }

  async setAxis(axis: Axis): Promise<void> {
    if (axis !== this.axis) {
      this.axis = axis;
      this.shown = { start: 0, end: this.length };
      this.cursor = null;
      this.tables = null;
      this._changed(false);
      await this._fetch();
    }
  }

  /** Show another stretch of the axis; a closer look is asked for once the zooming pauses. */
  look(stretch: IStretch): void {
    const least = Math.max(this.length * CLOSEST, this.axis === 'op' ? 2 : 0);
    this.shown = clamp(stretch, this.length, least);
    this._changed(true);
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => void this._fetch(), DETAIL_MS);
  }

  dispose(): void {
    window.clearTimeout(this._timer);
  }

  private async _fetch(): Promise<void> {
    const { a, b, axis, shown, result } = this;
    if (!a || !b || !result) {
      return;
    }
    const turn = ++this._fetching;
    // A margin on each side, so that panning finds something to draw.
    const span = shown.end - shown.start;
    const start = Math.max(0, shown.start - span);
    const end = Math.min(this.length, shown.end + span);
    const width = Math.min(Math.ceil((this.width * (end - start)) / span), 16384);
    const answer = await this._lab.request('compare_view', { a, b, axis, start, end, width });
    if (answer && turn === this._fetching && result === this.result && axis === this.axis) {
      this.tables = readCompareView(answer.result, answer.buffers);
      this._changed(true);
    }
  }

  private _comparing = 0;
  private _fetching = 0;
  private _timer: number | undefined;
}
