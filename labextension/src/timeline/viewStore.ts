// Two levels of detail: the whole axis, and a closer look round what is shown. The kernel makes both.

import type { IStretch } from './scale';
import type { IView } from './tables';

/** How much of the axis a closer look holds on each side of what is shown, so that panning finds it there. */
const MARGIN = 1;
/** A closer look that holds more than this many times what is shown is too coarse. */
const COARSE = 8;

export class ViewStore {
  overview: IView | null = null;
  detail: IView | null = null;

  clear(): void {
    this.overview = null;
    this.detail = null;
  }

  /** The finest view that covers all of what is shown. */
  best(shown: IStretch): IView | null {
    return this.detail && covers(this.detail, shown) ? this.detail : this.overview;
  }

  /** What to ask the kernel for so that this stretch is drawn as finely as the screen can show, or null. */
  wanted(shown: IStretch, length: number): IStretch | null {
    const { overview, detail } = this;
    if (!overview || overview.exact || shown.end - shown.start >= length * 0.9) {
      return null;
    }
    const span = shown.end - shown.start;
    if (detail && covers(detail, shown)) {
      const held = detail.end - detail.start;
      const near = Math.min(shown.start - detail.start, detail.end - shown.end) < span * 0.25;
      const atEnd = detail.start <= 0 || detail.end >= length;
      if ((detail.exact || held <= span * COARSE) && (!near || atEnd)) {
        return null;
      }
    }
    return {
      start: Math.max(0, shown.start - span * MARGIN),
      end: Math.min(length, shown.end + span * MARGIN)
    };
  }
}

function covers(view: IView, shown: IStretch): boolean {
  const hair = (shown.end - shown.start) * 1e-6;
  return view.start <= shown.start + hair && view.end >= shown.end - hair;
}
