// A table that sorts by its header cells and is walked with the arrow keys.

import { h } from '../dom';

export interface IColumn<T> {
  name: string;
  /** What rows are sorted by; shown where `text` and `node` say nothing else. */
  of(row: T): string | number;
  text?(row: T): string;
  node?(row: T): Node;
  kind?: 'number' | 'dim' | 'lost';
}

export class SortableTable<T> {
  readonly node: HTMLTableElement;

  /** `by`: the column sorted by until the person chooses one; null keeps the rows as they come. */
  constructor(
    caption: string,
    private readonly _columns: IColumn<T>[],
    by: string | null,
    private readonly _onChoose: (row: T) => void,
    private readonly _isChosen: (row: T) => boolean
  ) {
    this._heads = _columns.map(column =>
      h(
        'th',
        { scope: 'col', class: cellClass(column) },
        h('button', { type: 'button', click: () => this._sortBy(column) }, column.name)
      )
    );
    this._by = _columns.find(column => column.name === by) ?? null;
    this._down = this._by?.kind === 'number' && by !== 'Op';
    this.node = h(
      'table',
      {},
      h('caption', { class: 'cl-hidden' }, caption),
      h('thead', {}, h('tr', {}, ...this._heads)),
      this._body
    );
    this._body.addEventListener('keydown', event => this._key(event));
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
        tabindex: '0',
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
    const rows = [...this._body.children] as HTMLElement[];
    const at = rows.indexOf(event.target as HTMLElement);
    if (at < 0) {
      return;
    }
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault();
      rows[at + (event.key === 'ArrowDown' ? 1 : -1)]?.focus();
    } else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this._onChoose(this._sorted[at]);
    }
  }

  private _rows: T[] = [];
  private _sorted: T[] = [];
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
