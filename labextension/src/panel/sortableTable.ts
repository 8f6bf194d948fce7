// A table that sorts by its header cells. It is one tab stop; the arrow keys walk its rows and its head.

import { h } from '../dom';

export interface IColumn<T> {
  name: string;
  /** What rows are sorted by; shown where `text` and `node` say nothing else. */
  of(row: T): string | number;
  text?(row: T): string;
  node?(row: T): Node;
  kind?: 'number' | 'dim' | 'lost';
  /** That rows are sorted by this column, and which way, until the person chooses one. */
  first?: 'up' | 'down';
}

const PAGE = 10;
const MOVES: Record<string, number> = {
  ArrowDown: 1,
  ArrowUp: -1,
  PageDown: PAGE,
  PageUp: -PAGE,
  Home: Number.NEGATIVE_INFINITY,
  End: Number.POSITIVE_INFINITY
};

export class SortableTable<T> {
  readonly node: HTMLTableElement;

  /** Without a column that is `first` the rows stay as they come. */
  constructor(
    caption: string,
    private readonly _columns: IColumn<T>[],
    private readonly _onChoose: (row: T) => void,
    private readonly _isChosen: (row: T) => boolean
  ) {
    this._heads = _columns.map(column =>
      h(
        'th',
        { scope: 'col', class: cellClass(column) },
        h(
          'button',
          { type: 'button', tabindex: '-1', click: () => this._sortBy(column) },
          column.name
        )
      )
    );
    this._by = _columns.find(column => column.first) ?? null;
    this._down = this._by?.first === 'down';
    this.node = h(
      'table',
      { role: 'grid' },
      h('caption', { class: 'cl-hidden' }, caption),
      h('thead', {}, h('tr', {}, ...this._heads)),
      this._body
    );
    this.node.addEventListener('keydown', event => this._key(event));
    this._body.addEventListener('focusin', event =>
      this._stopAt(this._rowsShown.indexOf(event.target as HTMLElement))
    );
  }

  /** Show these rows; the same ones again stay as they are, with the focus, and under a pressed button. */
  fill(rows: T[]): void {
    if (rows === this._rows) {
      this._choose();
    } else {
      this._rebuild(rows);
    }
  }

  private _choose(): void {
    this._sorted.forEach((row, i) => {
      this._body.children[i].setAttribute('aria-selected', String(this._isChosen(row)));
    });
    this._stopAt(this._stop);
  }

  private get _rowsShown(): HTMLElement[] {
    return [...this._body.children] as HTMLElement[];
  }

  /** Make this row the one that the Tab key comes to; that of the head, where there is none. */
  private _stopAt(row: number): void {
    const rows = this._rowsShown;
    const chosen = this._sorted.findIndex(this._isChosen);
    const at = row >= 0 && row < rows.length ? row : Math.max(0, chosen);
    rows[this._stop]?.setAttribute('tabindex', '-1');
    rows[at]?.setAttribute('tabindex', '0');
    this._stop = at;
    (this._heads[0].firstChild as HTMLElement).tabIndex = rows.length ? -1 : 0;
  }

  private _rebuild(rows: T[]): void {
    this._rows = rows;
    const column = this._by;
    const sign = this._down ? -1 : 1;
    this._sorted = [...rows];
    if (column) {
      this._sorted.sort((a, b) => {
        const [x, y] = [column.of(a), column.of(b)];
        return (
          sign *
          (typeof x === 'number' && typeof y === 'number'
            ? x - y
            : String(x).localeCompare(String(y)))
        );
      });
    }
    this._columns.forEach((head, i) => {
      const sorted = head === column ? (this._down ? 'descending' : 'ascending') : 'none';
      this._heads[i].setAttribute('aria-sort', sorted);
    });
    const focused = [...this._body.children].indexOf(document.activeElement as Element);
    this._body.replaceChildren(...this._sorted.map(row => this._row(row)));
    this._stopAt(focused);
    if (focused >= 0) {
      (this._body.children[focused] as HTMLElement | undefined)?.focus({ preventScroll: true });
    }
  }

  private _row(row: T): HTMLTableRowElement {
    const cells = this._columns.map(column => {
      const content = column.node?.(row) ?? column.text?.(row) ?? String(column.of(row));
      return h('td', { class: cellClass(column) }, content);
    });
    return h(
      'tr',
      {
        tabindex: '-1',
        'aria-selected': String(this._isChosen(row)),
        click: () => this._onChoose(row)
      },
      ...cells
    );
  }

  private _sortBy(column: IColumn<T>): void {
    this._down =
      this._by === column ? !this._down : column.kind === 'number' || column.kind === 'lost';
    this._by = column;
    this._rebuild(this._rows);
  }

  private _key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const rows = this._rowsShown;
    const heads = this._heads.map(head => head.firstChild as HTMLElement);
    const target = event.target as HTMLElement;
    const [at, head] = [rows.indexOf(target), heads.indexOf(target)];
    let next: HTMLElement | undefined;
    if (head >= 0) {
      const moves = { ArrowLeft: heads[head - 1], ArrowRight: heads[head + 1] };
      next = event.key === 'ArrowDown' ? rows[this._stop] : moves[event.key as keyof typeof moves];
      if (!next) {
        return;
      }
    } else if (at < 0) {
      return;
    } else if (event.key === 'Enter' || event.key === ' ') {
      this._onChoose(this._sorted[at]);
    } else if (event.key in MOVES) {
      const to = Math.min(Math.max(at + MOVES[event.key], -1), rows.length - 1);
      // Up from the first row is the head; a page up stops before it.
      next = to >= 0 ? rows[to] : event.key === 'ArrowUp' ? heads[0] : rows[0];
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    next?.focus();
  }

  private _rows: T[] = [];
  private _sorted: T[] = [];
  /** The row that is the table's tab stop. */
  private _stop = 0;
  private _by: IColumn<T> | null;
  private _down: boolean;
  private readonly _heads: HTMLTableCellElement[];
  private readonly _body = h('tbody');
}

function cellClass<T>(column: IColumn<T>): string {
  return column.kind === 'number' || column.kind === 'lost'
    ? 'cl-number'
    : column.kind === 'dim'
      ? 'cl-dim'
      : '';
}
