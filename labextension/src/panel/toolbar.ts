// The timeline's controls: which steps, which axis, zoom, stalls, and the search field.

import { button, h, segment } from '../dom';
import { formatCount, formatSeconds } from '../format';
import type { Bindings } from '../keys/bindings';
import type { Drawn, LabModel } from '../model';
import type { Axis, Rows } from '../protocol';
import { trans } from '../texts';
import type { Timeline } from '../timeline/timeline';
import { stepsName } from '../words';

const SEARCH_MS = 150;
const MOST_STEPS = 16;

export class Toolbar {
  readonly node = h('div', {
    class: 'cl-toolbar',
    role: 'toolbar',
    'aria-label': trans.__('Timeline')
  });

  constructor(
    private readonly _model: LabModel,
    timeline: Timeline,
    keys: Bindings
  ) {
    this._steps = h('select', {
      'aria-label': trans.__('Steps drawn'),
      change: () => this._choose()
    });
    this._follow = h('input', {
      type: 'checkbox',
      change: () => _model.setFollow(this._follow.checked)
    });
    this._axis = segment<Axis>(
      trans.__('Axis'),
      [
        ['time', trans.__('Time'), trans.__('Seconds since the step began')],
        ['op', trans.__('Op'), trans.__('Op index')]
      ],
      axis => void _model.setAxis(axis)
    );
    this._drawn = segment<Drawn>(
      trans.__('What is drawn'),
      [
        ['measured', trans.__('Measured'), trans.__('What ran')],
        [
          'draft',
          trans.__('Draft'),
          trans.__('What the draft is predicted to do, on the same axis')
        ]
      ],
      drawn => void _model.setDrawn(drawn)
    );
    this._rows = segment<Rows>(
      trans.__('Block map rows'),
      [
        [
          'storage',
          trans.__('By storage'),
          trans.__('Each storage keeps its rows while it is away')
        ],
        ['packed', trans.__('Packed'), trans.__('Only what is on the device, packed')]
      ],
      rows => void _model.setRows(rows)
    );
    this._search = h('input', {
      type: 'search',
      placeholder: 'layer.3 attn >4MiB',
      'aria-label': trans.__('Search ops, modules and storages'),
      spellcheck: 'false',
      input: () => this._searchLater(),
      blur: () => this._timer !== undefined && this._searchNow(),
      keydown: (event: KeyboardEvent) => {
        if (event.key === 'Escape') {
          this._search.value = '';
          this._searchNow();
          timeline.focus();
        } else if (event.key === 'Enter') {
          const direction = event.shiftKey ? -1 : 1;
          void this._searchNow().then(() => _model.seekFound(direction));
        }
      }
    });
    this._stalls = h('span', { class: 'cl-dim', 'aria-live': 'polite' });
    this._peak = button(trans.__('Peak'), '', () => void _model.goToPeak());
    this._box = button(trans.__('Box'), '', () => timeline.drawBox(), 'cl-roomy');
    timeline.onBox = drawing => this._box.setAttribute('aria-pressed', String(drawing));
    const keyed = (
      text: string,
      title: string,
      action: string,
      run: () => void,
      kind = 'cl-square'
    ) => {
      const element = button(text, title, run, kind);
      if (text.length === 1) {
        element.setAttribute('aria-label', title);
      }
      keys.follow(() => {
        element.title = keys.hint(title, action);
      });
      return element;
    };
    this.node.append(
      h('span', { class: 'cl-steps' }, this._drawnSteps, this._steps),
      h(
        'label',
        { class: 'cl-follow', title: trans.__('Show each new step of the session') },
        this._follow,
        trans.__('Follow')
      ),
      this._axis.node,
      this._drawn.node,
      h(
        'span',
        { class: 'cl-group cl-zooms' },
        keyed('+', trans.__('Zoom in'), 'zoom-in', () => timeline.zoomBy(0.6)),
        keyed('−', trans.__('Zoom out'), 'zoom-out', () => timeline.zoomBy(1 / 0.6))
      ),
      keyed(trans.__('Fit'), trans.__('Show all'), 'fit', () => _model.fit(), ''),
      h(
        'span',
        { class: 'cl-group' },
        keyed('‹', trans.__('Previous peak'), 'previous-peak', () => void _model.seekPeak(-1)),
        this._peak,
        keyed('›', trans.__('Next peak'), 'next-peak', () => void _model.seekPeak(1))
      ),
      h(
        'span',
        { class: 'cl-group' },
        keyed('‹', trans.__('Previous stall'), 'previous-stall', () => void _model.seek(-1)),
        this._stalls,
        keyed('›', trans.__('Next stall'), 'next-stall', () => void _model.seek(1))
      ),
      this._rows.node,
      this._box,
      h('span', { class: 'cl-search' }, this._search, this._matches)
    );
    this._matches.append(
      keyed('‹', trans.__('Previous op found'), 'previous-found', () => void _model.seekFound(-1)),
      this._match,
      keyed('›', trans.__('Next op found'), 'next-found', () => void _model.seekFound(1))
    );
    keys.follow(() => {
      const words = trans.__('Words, %1', 'layer.3-5, >4MiB, stage:backward, category:act');
      this._search.title = keys.hint(words, 'search');
      const peak = trans.__('Go to the highest peak, and list what is alive there');
      this._peak.title = keys.hint(peak, 'peak');
      const draw = keys.first('draw-box');
      this._box.title = draw
        ? trans.__('Draw a box in the block map to list what lies inside (%1, or Alt+drag)', draw)
        : trans.__('Draw a box in the block map to list what lies inside (Alt+drag)');
      const switched = keys.first('switch-drawn');
      this._drawn.node.title = switched ? trans.__('%1 switches', switched) : '';
    });
    timeline.onSearch = () => {
      this._search.focus();
      this._search.select();
    };
  }

  update(): void {
    const {
      scene,
      steps,
      status,
      follow,
      axis,
      rows,
      stallNumber,
      peakNumber,
      foundNumber,
      query
    } = this._model;
    this._axis.press(axis);
    this._drawn.press(this._model.drawn);
    this._drawn.node.hidden = !this._model.draftable;
    this._rows.press(rows);
    this._follow.checked = follow;
    this._peak.textContent = peakNumber ? trans.__('Peak %1', peakNumber) : trans.__('Peak');
    this._stalls.textContent = trans.__('Stall %1 of %2', stallNumber || '–', scene?.stalls ?? 0);
    const count = this._model.found?.op_count ?? 0;
    this._matches.hidden = !count || !query.trim();
    this._match.textContent = trans._p(
      'which op found',
      '%1 of %2',
      foundNumber || '–',
      formatCount(count)
    );
    if (document.activeElement !== this._search && this._search.value !== query) {
      this._search.value = query;
    }
    const options: [string, string][] = [];
    const add = (
      name: string,
      source: string,
      entries: { index: number; stage: string; duration_s: number }[]
    ) => {
      for (const entry of [...entries].reverse()) {
        const { index, stage } = entry;
        const text = trans.__('step %1 · %2 · %3', index, stage, formatSeconds(entry.duration_s));
        options.push([JSON.stringify([source, index, index]), name + text]);
      }
      const last = entries.slice(-MOST_STEPS);
      if (last.length > 1) {
        const [first, end] = [last[0].index, last[last.length - 1].index];
        options.push([JSON.stringify([source, first, end]), name + stepsName(first, end)]);
      }
    };
    if (status?.session) {
      add('', status.session.source, status.session.steps);
    }
    for (const file of status?.files ?? []) {
      add(`${file.path.split('/').at(-1)} · `, file.source, file.steps);
    }
    const value = steps ? JSON.stringify([steps.source, steps.first, steps.last]) : '';
    if (steps && !options.some(([key]) => key === value)) {
      options.unshift([value, trans.__('step %1 · no longer recorded', steps.last)]);
    }
    const written = JSON.stringify(options);
    if (written !== this._written) {
      this._written = written;
      this._steps.replaceChildren(
        ...options.map(([key, text]) => h('option', { value: key }, text))
      );
    }
    this._steps.value = value;
    const file = status?.files.find(({ source }) => source === steps?.source);
    const place = file ? `${file.path.split('/').at(-1)} · ` : '';
    const which =
      steps &&
      (steps.first === steps.last
        ? trans.__('step %1', steps.last)
        : trans.__('steps %1–%2', steps.first, steps.last));
    this._drawnSteps.textContent = which ? place + which : trans.__('no step');
    this._steps.title = this._steps.selectedOptions[0]?.textContent ?? '';
    this._drawnSteps.title = this._steps.title;
  }

  private _choose(): void {
    const [source, first, last] = JSON.parse(this._steps.value) as [string, number, number];
    void this._model.choose(source, first, last);
  }

  private _searchLater(): void {
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => this._searchNow(), SEARCH_MS);
  }

  private async _searchNow(): Promise<void> {
    window.clearTimeout(this._timer);
    this._timer = undefined;
    if (this._search.value !== this._model.found?.query) {
      await this._model.search(this._search.value);
    }
  }

  private readonly _steps: HTMLSelectElement;
  private readonly _drawnSteps = h('span', { 'aria-hidden': 'true' });
  private readonly _follow: HTMLInputElement;
  private readonly _axis: ReturnType<typeof segment<Axis>>;
  private readonly _drawn: ReturnType<typeof segment<Drawn>>;
  private readonly _rows: ReturnType<typeof segment<Rows>>;
  private readonly _search: HTMLInputElement;
  private readonly _matches = h('span', { class: 'cl-group cl-matches', hidden: true });
  private readonly _match = h('span', { class: 'cl-dim', 'aria-live': 'polite' });
  private readonly _stalls: HTMLElement;
  private readonly _peak: HTMLElement;
  private readonly _box: HTMLElement;
  private _timer: number | undefined;
  private _written = '';
}
