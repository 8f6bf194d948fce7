// The tab with a flame graph of what is alive at a point: by module, or by the Python lines that made it.

import { counted } from '../counts';
import { button, h, segment } from '../dom';
import { formatBytes, formatPercent } from '../format';
import type { LabModel } from '../model';
import type { IIcicle, INode, TreeOf } from '../protocol';
import { trans } from '../texts';
import { BANDS, bandOf, shortOp } from '../words';
import type { IExtraTab } from './tables';

const ROW_PX = 21;
/** Narrower nodes have no room for even a letter, and are drawn without one. */
const LEAST_TEXT_PX = 26;
/** Narrower ones are left out. */
const LEAST_PX = 0.6;

/** A node that is drawn: where, in shares of the width, and how deep below the root. */
export interface IPlaced {
  index: number;
  left: number;
  width: number;
  depth: number;
}

/** Where the nodes below `root` (and those that it lies in, at full width) are drawn. */
export function place(nodes: INode[], root: number): IPlaced[] {
  const top = nodes[root];
  if (!top?.bytes) {
    return [];
  }
  const around: number[] = [];
  let depth = top.depth;
  for (let i = root - 1; i >= 0 && depth > 0; i--) {
    if (nodes[i].depth < depth) {
      around.unshift(i);
      depth = nodes[i].depth;
    }
  }
  const placed = around.map(index => ({ index, left: 0, width: 1, depth: nodes[index].depth }));
  for (let i = root; i < nodes.length && (i === root || nodes[i].depth > top.depth); i++) {
    placed.push({
      index: i,
      left: (nodes[i].start_bytes - top.start_bytes) / top.bytes,
      width: nodes[i].bytes / top.bytes,
      depth: nodes[i].depth
    });
  }
  return placed;
}

/** A frame without its folders; what it is in full is its title. */
export function shortName(name: string): string {
  return name.includes('::') ? shortOp(name) : name.replace(/^.*\/(?=[^/]+\.py:\d)/, '');
}

export class FlameTab {
  constructor(private readonly _model: LabModel) {
    this._ways = segment<TreeOf>(
      trans.__('Flame graph by'),
      [
        ['module', trans.__('By module'), trans.__('The modules that made what is alive')],
        ['stack', trans.__('By stack'), trans.__('The Python lines that made what is alive')]
      ],
      by => {
        this._by = by;
        this._root = 0;
        void this._ask();
      }
    );
    this._ways.press(this._by);
    this._all = button(trans.__('All'), trans.__('Show the whole tree again'), () =>
      this._enter(0)
    );
    this._graph.addEventListener('keydown', event => this._key(event));
    this._observer = new ResizeObserver(() => this._draw());
    this._observer.observe(this._graph);
    this._body.append(
      h(
        'div',
        { class: 'cl-row cl-flame-head' },
        this._ways.node,
        this._peak,
        this._all,
        this._hint
      ),
      h('div', { class: 'cl-flame-scroll' }, this._graph)
    );
  }

  get tab(): IExtraTab {
    return {
      id: 'flame',
      name: () => trans.__('Flame'),
      count: () => null,
      nodes: [this._body],
      said: () => this._said(),
      shown: on => {
        this._isShown = on;
        this.update();
      }
    };
  }

  /** Ask for the tree where what is drawn, or the place that was asked about, has changed. */
  update(): void {
    const { steps, drawn, axis, alive, scene } = this._model;
    const at = alive?.at ?? null;
    const wanted = JSON.stringify([steps, drawn, axis, at, scene?.ops]);
    if (this._isShown && steps && wanted !== this._wanted) {
      this._wanted = wanted;
      this._root = 0;
      void this._ask();
    }
  }

  dispose(): void {
    this._observer.disconnect();
  }

  private _said(): string {
    const found = this._found;
    return found
      ? trans.__(
          '%1 in %2 at op %3 of step %4, %5',
          formatBytes(found.bytes),
          counted.storages(found.count),
          found.op,
          found.step,
          shortOp(found.op_name)
        )
      : '';
  }

  private async _ask(): Promise<void> {
    const { scene, alive, axis } = this._model;
    const steps = this._model.drawnSteps;
    if (!steps || !scene) {
      return;
    }
    const turn = ++this._turn;
    const at = alive?.at ?? scene.peak[axis];
    const answer = await this._model.request('icicle', {
      ...steps,
      axis,
      at,
      by: this._by
    });
    if (answer && turn === this._turn) {
      this._found = answer.result;
      this._ways.press(this._by);
      this._draw();
      this.onNews();
    }
  }

  /** Called when there is something new to say. */
  onNews: () => void = () => undefined;

  private _enter(index: number): void {
    this._root = index;
    this._draw();
    this._nodeAt(index)?.focus();
  }

  private _draw(): void {
    const found = this._found;
    const width = this._graph.clientWidth;
    this._all.hidden = this._root === 0;
    this._hint.textContent =
      found && found.by === 'stack' && !found.has_stacks
        ? trans.__(
            'No Python stacks: start the session with %1, as %2 does.',
            'stacks="once"',
            '%chameleon start'
          )
        : trans.__('Click enters, a single storage is selected');
    if (!found || !width) {
      return;
    }
    const placed = place(found.nodes, this._root).filter(one => one.width * width >= LEAST_PX);
    const deepest = placed.reduce((most, one) => Math.max(most, one.depth), 0);
    this._graph.style.height = `${(deepest + 1) * ROW_PX}px`;
    const focused = (document.activeElement as HTMLElement | null)?.closest('.cl-flame')
      ? (document.activeElement as HTMLElement).dataset.node
      : undefined;
    this._graph.replaceChildren(...placed.map(one => this._node(found, one, width)));
    if (focused !== undefined) {
      this._nodeAt(Number(focused))?.focus({ preventScroll: true });
    }
    this._nodeAt(this._root)?.setAttribute('tabindex', '0');
  }

  private _node(found: IIcicle, { index, left, width, depth }: IPlaced, room: number): HTMLElement {
    const node = found.nodes[index];
    const share = formatPercent(node.bytes / (found.bytes || 1));
    const text = index ? shortName(node.name) : trans.__('All %1', formatBytes(node.bytes));
    const wide = width * room;
    return h(
      'button',
      {
        type: 'button',
        class: `cl-flame-node ${depth < found.nodes[this._root].depth ? 'cl-flame-around' : ''} ${wide < LEAST_TEXT_PX ? 'cl-flame-thin' : ''}`,
        tabindex: '-1',
        'data-node': String(index),
        'data-band': BANDS[bandOf(node.category)].id,
        title: `${node.name}: ${formatBytes(node.bytes)}, ${share}, ${counted.storages(node.count)}`,
        'aria-label': `${node.name}, ${formatBytes(node.bytes)}, ${share}`,
        style: `left: ${100 * left}%; width: ${100 * width}%; top: ${depth * ROW_PX}px; --cl-hue: var(--cl-${BANDS[bandOf(node.category)].id})`,
        click: () => this._choose(index)
      },
      wide >= LEAST_TEXT_PX ? h('span', {}, text) : null,
      wide >= 160 && index ? h('span', { class: 'cl-flame-bytes' }, formatBytes(node.bytes)) : null
    );
  }

  private _nodeAt(index: number): HTMLElement | null {
    return this._graph.querySelector<HTMLElement>(`[data-node="${index}"]`);
  }

  private _choose(index: number): void {
    const node = this._found?.nodes[index];
    if (!node) {
      return;
    }
    if (node.uid >= 0) {
      void this._model.select(node.uid);
    }
    this._enter(index);
  }

  /** Down is into a node, up out of it, left and right are its neighbors. */
  private _key(event: KeyboardEvent): void {
    const nodes = this._found?.nodes;
    const at = Number((event.target as HTMLElement).dataset.node ?? -1);
    if (!nodes || at < 0 || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const { depth } = nodes[at];
    const neighbor = (step: number) => {
      for (let i = at + step; i >= 0 && i < nodes.length && nodes[i].depth >= depth; i += step) {
        if (nodes[i].depth === depth) {
          return i;
        }
      }
      return -1;
    };
    const parent = () => {
      for (let i = at - 1; i >= 0; i--) {
        if (nodes[i].depth < depth) {
          return i;
        }
      }
      return -1;
    };
    const moves: Record<string, () => number> = {
      ArrowDown: () => (nodes[at + 1]?.depth === depth + 1 ? at + 1 : -1),
      ArrowUp: parent,
      ArrowLeft: () => neighbor(-1),
      ArrowRight: () => neighbor(1)
    };
    const to = moves[event.key]?.();
    if (to === undefined) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    this._nodeAt(to)?.focus();
  }

  private _by: TreeOf = 'module';
  private _root = 0;
  private _turn = 0;
  private _isShown = false;
  private _wanted = '';
  private _found: IIcicle | null = null;
  private readonly _ways: ReturnType<typeof segment<TreeOf>>;
  private readonly _all: HTMLButtonElement;
  private readonly _peak = button(
    trans.__('At the peak'),
    trans.__('What is alive at the peak'),
    () => void this._model.ask(undefined, true)
  );
  private readonly _hint = h('span', { class: 'cl-dim cl-flame-hint' });
  private readonly _graph = h('div', {
    class: 'cl-flame',
    role: 'group',
    'aria-label': trans.__('Flame graph')
  });
  private readonly _body = h('div', { class: 'cl-flame-body' });
  private readonly _observer: ResizeObserver;
}
