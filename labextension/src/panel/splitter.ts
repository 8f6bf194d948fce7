// A bar between two areas that is dragged, or moved with the arrow keys, to give one of them more room.

import { h } from '../dom';
import { trans } from '../texts';

const KEY_PX = 16;

/**
 * A splitter that sizes the area after it, which grows as the bar moves towards the start.
 *
 * `axis`: `x` stands between columns, `y` between rows. `size` is the custom property of `host` that holds the size in
 * pixels; a double click takes it back, so that the style sheet's own size holds.
 */
export function splitter(
  host: HTMLElement,
  axis: 'x' | 'y',
  size: string,
  label: string,
  after: () => HTMLElement,
  least = 80
): HTMLElement {
  const measure = () => {
    const box = after().getBoundingClientRect();
    return axis === 'x' ? box.width : box.height;
  };
  const most = () => {
    const box = host.getBoundingClientRect();
    return Math.max(least, (axis === 'x' ? box.width : box.height) - 2 * least);
  };
  const set = (pixels: number) => {
    const kept = Math.round(Math.min(Math.max(pixels, least), most()));
    host.style.setProperty(size, `${kept}px`);
    bar.setAttribute('aria-valuenow', String(kept));
    bar.setAttribute('aria-valuemin', String(least));
    bar.setAttribute('aria-valuemax', String(Math.round(most())));
  };
  const bar = h('div', {
    class: `cl-splitter cl-splitter-${axis}`,
    role: 'separator',
    tabindex: '0',
    'aria-label': label,
    'aria-orientation': axis === 'x' ? 'vertical' : 'horizontal',
    title: trans.__('Drag, or use the arrow keys; double click for the usual size'),
    dblclick: () => host.style.removeProperty(size),
    pointerdown: (event: PointerEvent) => {
      if (event.button !== 0) {
        return;
      }
      event.preventDefault();
      bar.focus({ preventScroll: true });
      bar.setPointerCapture(event.pointerId);
      const [from, start] = [axis === 'x' ? event.clientX : event.clientY, measure()];
      const move = (event: PointerEvent) =>
        set(start + from - (axis === 'x' ? event.clientX : event.clientY));
      const up = () => {
        bar.removeEventListener('pointermove', move);
        bar.removeEventListener('pointerup', up);
        bar.removeEventListener('pointercancel', up);
      };
      bar.addEventListener('pointermove', move);
      bar.addEventListener('pointerup', up);
      bar.addEventListener('pointercancel', up);
    },
    keydown: (event: KeyboardEvent) => {
      const grow = axis === 'x' ? 'ArrowLeft' : 'ArrowUp';
      const shrink = axis === 'x' ? 'ArrowRight' : 'ArrowDown';
      if (event.key === grow || event.key === shrink) {
        event.preventDefault();
        event.stopPropagation();
        set(measure() + (event.key === grow ? KEY_PX : -KEY_PX));
      }
    }
  });
  bar.setAttribute('aria-valuenow', '0');
  return bar;
}
