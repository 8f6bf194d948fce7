// What a key means in the table of decisions.

/** What is asked of the table. */
export type TableAct =
  | { does: 'pick all' | 'toggle' | 'unpick' | 'leave' }
  | { does: 'show' | 'menu'; storage: string }
  | { does: 'move'; from: number | null; to: number; picks: boolean };

/** Where the table stands. */
export interface ITablePlace {
  total: number;
  /** Rows that a page up or down goes by. */
  page: number;
  /** The storage that is selected, and its row, where it has one. */
  selected: string | null;
  position: number | null;
  hasPicked: boolean;
}

type Key = Pick<KeyboardEvent, 'key' | 'ctrlKey' | 'metaKey' | 'altKey' | 'shiftKey'>;

/** Null where the key is not the table's. */
export function tableAct(key: Key, place: ITablePlace): TableAct | null {
  if ((key.ctrlKey || key.metaKey) && key.key === 'a') {
    return { does: 'pick all' };
  }
  if (key.ctrlKey || key.metaKey || key.altKey) {
    return null;
  }
  return moveOf(key, place) ?? actOnRow(key, place);
}

function moveOf({ key, shiftKey }: Key, { total, page, position }: ITablePlace): TableAct | null {
  const steps: Record<string, number> = {
    ArrowDown: 1,
    ArrowUp: -1,
    PageDown: page,
    PageUp: -page,
    Home: -total,
    End: total
  };
  const step = steps[key];
  if (step === undefined || !total) {
    return null;
  }
  const first = step > 0 ? 0 : total - 1;
  const to = position === null ? first : position + step;
  return {
    does: 'move',
    from: position,
    to: Math.min(Math.max(to, 0), total - 1),
    picks: shiftKey
  };
}

function actOnRow({ key, shiftKey }: Key, { selected, hasPicked }: ITablePlace): TableAct | null {
  if (key === ' ') {
    return { does: 'toggle' };
  }
  if (key === 'Escape') {
    return { does: hasPicked ? 'unpick' : 'leave' };
  }
  if (selected && key === 'Enter') {
    return { does: 'show', storage: selected };
  }
  const asksForMenu = key === 'ContextMenu' || (key === 'F10' && shiftKey);
  return selected && asksForMenu ? { does: 'menu', storage: selected } : null;
}
