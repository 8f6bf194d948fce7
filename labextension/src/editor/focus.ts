// Rebuilding a part of the page without losing the control that the person is on.

/** Run `rebuild`, then give the focus back to the control of `node` with the same `data-focus`. */
export function keepingFocus(node: HTMLElement, rebuild: () => void): void {
  const active = document.activeElement as HTMLElement | null;
  const name = active && node.contains(active) ? active.dataset.focus : undefined;
  rebuild();
  if (name !== undefined) {
    const again = [...node.querySelectorAll<HTMLElement>('[data-focus]')].find(
      element => element.dataset.focus === name
    );
    again?.focus({ preventScroll: true });
  }
}
