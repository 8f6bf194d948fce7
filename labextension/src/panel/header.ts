// The top of the panel: which notebook and kernel, where the session stands, and its figures.

import { button, h } from '../dom';
import { formatBytes, formatCount, formatPercent, formatSeconds, plural } from '../format';
import type { IFrontKernel } from '../kernelFollower';
import type { Bindings } from '../keys/bindings';
import type { LabModel } from '../model';

const STAGES = ['WarmUp', 'Profile', 'Stable'];

export class Header {
  readonly node = h('header', { class: 'cl-header' });

  constructor(
    private readonly _model: LabModel,
    open: () => void,
    compare: () => void,
    showKeys: () => void,
    keys: Bindings
  ) {
    this._compare = button('Compare…', 'Two steps or policies, side by side', compare);
    this._open = button('Open trace…', 'Draw a saved trace file (.parquet)', open);
    const help = button('?', '', showKeys, 'cl-square');
    help.setAttribute('aria-label', 'Keys');
    keys.follow(() => {
      help.title = keys.hint('Keys of the panel', 'show-keys');
    });
    // The buttons stay while what is said changes: one that goes under a pressed button has no click.
    const top = h('div', { class: 'cl-row' }, this._said, this._compare, this._open, help);
    this.node.append(top, this._figures);
  }

  update(front: IFrontKernel | null): void {
    const { status, hello } = this._model;
    const session = status?.session;
    const busy = front?.status === 'busy';
    this._compare.hidden = !hello || !status;
    this._open.hidden = !hello;
    const said = [
      h('b', { class: 'cl-product' }, 'Chameleon Lab'),
      h('span', { class: `cl-dot ${busy ? 'cl-busy' : ''}`, 'aria-hidden': 'true' }),
      h(
        'span',
        { class: 'cl-front' },
        front
          ? `${front.notebook} · ${front.kernel ?? 'no kernel'} · ${front.status}`
          : 'No notebook'
      ),
      session &&
        h(
          'ol',
          { class: 'cl-stages', 'aria-label': 'Stage of the session' },
          ...STAGES.map(stage =>
            h('li', { 'aria-current': stage === session.stage ? 'step' : 'false' }, stage)
          )
        ),
      session &&
        h(
          'span',
          { class: 'cl-live' },
          `${session.open ? 'Live' : 'Ended'} · ${session.step_count} steps`
        ),
      h('span', { class: 'cl-grow' }),
      hello && h('span', { class: 'cl-dim cl-how' }, this._how(busy, hello.subshell))
    ];
    this._said.replaceChildren(...said.filter(node => node instanceof HTMLElement));
    this._figures.hidden = !session;
    if (!session) {
      return;
    }
    const declined = Object.values(session.declined_drops).reduce((sum, count) => sum + count, 0);
    const figures: [string, string, string][] = [
      [
        'Capacity',
        session.capacity_bytes === null ? 'none' : formatBytes(session.capacity_bytes),
        session.capacity_bytes === null
          ? 'recording only'
          : !session.live_peak_bytes
            ? ''
            : session.capacity_bytes >= session.live_peak_bytes
              ? `more than the ${formatBytes(session.live_peak_bytes)} alive`
              : `${formatPercent(session.capacity_bytes / session.live_peak_bytes)} of ${formatBytes(session.live_peak_bytes)}`
      ],
      ['Peak, measured', formatBytes(session.peak_bytes), 'newest step'],
      ['Step time', formatSeconds(session.step_s), 'median'],
      ['Stall', formatSeconds(session.stall_s), 'newest step'],
      ['Overlap', formatPercent(session.overlap), ''],
      [
        'Moved',
        formatBytes(session.swapped_out_bytes + session.swapped_in_bytes),
        'a step, both ways'
      ],
      [
        'Host pool',
        formatBytes(session.host_bytes),
        `peak ${formatBytes(session.host_peak_bytes)}`
      ],
      [
        'Match rate',
        formatPercent(session.match_rate),
        [
          session.swaps && plural(session.swaps, 'swap'),
          session.drops && plural(session.drops, 'drop')
        ]
          .filter(Boolean)
          .join(', ') || 'no policy'
      ]
    ];
    if (session.drops || session.replays || declined) {
      figures.splice(6, 0, [
        'Replays',
        formatSeconds(session.replay_s),
        `${formatCount(session.replays)}, ${formatBytes(session.dropped_bytes)} made again${declined ? `; ${formatCount(declined)} declined` : ''}`
      ]);
    }
    this._figures.replaceChildren(
      ...figures.map(([name, value, more]) => {
        const [number, unit = ''] = value.split(' ');
        return h(
          'div',
          { 'data-figure': name },
          h('dt', {}, name),
          h('dd', {}, h('b', {}, number), ` ${unit} `, h('span', { class: 'cl-dim cl-more' }, more))
        );
      })
    );
  }

  /** How the panel gets its answers while a cell runs. */
  private _how(busy: boolean, subshell: boolean): string {
    if (!busy) {
      return subshell ? 'Answered from a kernel subshell' : 'Answered from the kernel';
    }
    const { waiting } = this._model;
    return subshell
      ? 'A cell is running. Answered from a kernel subshell'
      : `Kernel busy. Live figures are pushed; answers come when the cell ends (${waiting} waiting)`;
  }

  private readonly _said = h('div', { class: 'cl-row cl-about-front' });
  private readonly _compare: HTMLButtonElement;
  private readonly _open: HTMLButtonElement;
  private readonly _figures = h('dl', { class: 'cl-figures' });
}
