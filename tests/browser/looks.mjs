// How the panel looks, apart from what it does: the same font on every machine, sizes, and what is cut or overlaps.
import { readFileSync } from 'node:fs';

import { settled } from './lab.mjs';

const FONT = new URL('../../node_modules/@fontsource/inter/files/', import.meta.url);
/** The panel's sizes in pixels: beside a narrow notebook in a window of 1600 x 1000, of 1280 x 800, docked, and in docs. */
export const SIZES = { 1600: [1228, 860], 1280: [930, 690], 400: [400, 860], docs: [1180, 780] };

/** Write everything in one font that comes along with the tests, and turn off what moves. */
export function sameFont(page) {
  const faces = [400, 500, 600].map(weight => {
    const data = readFileSync(new URL(`inter-latin-${weight}-normal.woff2`, FONT)).toString(
      'base64'
    );
    return `@font-face { font-family: Fixed; font-weight: ${weight}; src: url(data:font/woff2;base64,${data}); }`;
  });
  const content = `${faces.join('\n')}
    body { --jp-ui-font-family: Fixed !important; --jp-code-font-family: Fixed !important; }
    .cl-panel *, .cl-panel *::before, .cl-panel *::after { transition: none !important; caret-color: transparent; }`;
  return page
    .addStyleTag({ content })
    .then(() =>
      page.evaluate(() =>
        Promise.all([400, 500, 600].map(w => document.fonts.load(`${w} 12px Fixed`)))
      )
    );
}

/** Give the panel a size, whatever room the dock has for it, and wait until it has been drawn for it. */
export async function resize(page, [width, height]) {
  await page.evaluate(
    ([width, height]) => {
      const { style } = document.querySelector('.cl-panel');
      style.setProperty('width', `${width}px`, 'important');
      style.setProperty('height', `${height}px`, 'important');
    },
    [width, height]
  );
  await page.mouse.move(2, 2);
  await still(page);
}

/** Wait until the panel awaits no answer, and then until it stays the same for a while. */
export async function still(page) {
  await settled(page);
  const look = () =>
    page.evaluate(() => {
      const canvas = document.querySelector('.cl-panel .cl-tracks');
      return [canvas?.width, canvas?.height, document.querySelector('.cl-panel').innerText].join();
    });
  let [before, same] = ['', 0];
  while (same < 4) {
    const now = await look();
    same = now === before ? same + 1 : 0;
    before = now;
    await page.waitForTimeout(120);
  }
}

/**
 * What of the panel's texts cannot be read: `cut`, where nothing else says the whole; `clipped`, outside of a box that
 * does not scroll; `overlapping` pairs; and how many rows some parts take.
 */
export function unreadable(page) {
  return page.evaluate(() => {
    const panel = document.querySelector('.cl-panel');
    const hidden = node => node.closest('.cl-hidden, [hidden], .cl-tip');
    const texts = [...panel.querySelectorAll('*')].filter(
      node =>
        !hidden(node) &&
        node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) &&
        ([...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()) ||
          node.matches('input, select'))
    );
    const named = node => node.textContent.trim().slice(0, 60) || node.value || node.className;
    const boxOf = node => {
      if (node.matches('input, select')) {
        return node.getBoundingClientRect();
      }
      const range = document.createRange();
      range.selectNodeContents(node);
      return range.getBoundingClientRect();
    };
    const [cut, clipped, overlapping, boxes] = [[], [], [], []];
    const isTold = node => {
      const told = node.closest('[title]')?.title || node.closest('label, button')?.title;
      const words = named(node).split(/\s+/);
      return Boolean(told) && words.every(word => told.includes(word));
    };
    /** What a box leaves of a text within it, and whether that loses some of it at the sides. */
    const within = (seen, up, style) => {
      const at = up.getBoundingClientRect();
      const slack = style.textOverflow === 'ellipsis' ? 0.6 : 1.5;
      const scrolls =
        ['auto', 'scroll'].includes(style.overflowX) && up.scrollWidth > up.clientWidth;
      return {
        loses: !scrolls && (seen.right > at.right + slack || seen.left < at.left - slack),
        left: {
          left: Math.max(seen.left, at.left),
          right: Math.min(seen.right, at.right),
          top: Math.max(seen.top, at.top),
          bottom: Math.min(seen.bottom, at.bottom)
        }
      };
    };
    /** The boxes round a text that do not let it out, the inner ones first. */
    const boundsOf = node => {
      const bounds = [];
      for (let up = node; up && up !== panel.parentElement; up = up.parentElement) {
        const style = getComputedStyle(up);
        if (style.overflowX !== 'visible' || style.overflowY !== 'visible') {
          bounds.push([up, style]);
        }
      }
      return bounds;
    };
    const findFault = (node, up, style) => {
      if (style.textOverflow !== 'ellipsis' && up !== node) {
        clipped.push(named(node));
      } else if (!isTold(node)) {
        cut.push(named(node));
      }
    };
    /** What can be seen of a text; fault is found with the first box that loses some of it. */
    const seenOf = node => {
      let seen = boxOf(node);
      let lost = false;
      for (const [up, style] of boundsOf(node)) {
        const { loses, left } = within(seen, up, style);
        if (loses && !lost) {
          lost = true;
          findFault(node, up, style);
        }
        seen = left;
      }
      return seen;
    };
    for (const node of texts) {
      const seen = seenOf(node);
      if (seen.right - seen.left > 1 && seen.bottom - seen.top > 4) {
        boxes.push([seen, node]);
      }
    }
    /** Lines of text touch; a sticky head covers the rows that are scrolled under it. */
    const overlap = ([a, one], [b, two]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      const apart = !one.contains(two) && !two.contains(one);
      return wide > 2 && tall > 5 && apart && !one.closest('thead') === !two.closest('thead');
    };
    boxes.forEach((one, i) => {
      for (const two of boxes.slice(i + 1)) {
        if (overlap(one, two)) {
          overlapping.push(`${named(one[1])} | ${named(two[1])}`);
        }
      }
    });
    const rows = selector => {
      const tops = [...panel.querySelectorAll(selector)]
        .filter(node => node.checkVisibility() && node.getBoundingClientRect().width > 0)
        .map(node => {
          const { top, height } = node.getBoundingClientRect();
          return Math.round((top + height / 2) / 8);
        });
      return new Set(tops).size;
    };
    const timeline = panel.querySelector('.cl-timeline');
    return {
      cut,
      clipped,
      overlapping,
      rows: { toolbar: rows('.cl-toolbar > *'), buttons: rows('.cl-actions > *') },
      belowFold: timeline.scrollHeight - timeline.clientHeight,
      sideways: [...panel.querySelectorAll('*')]
        .filter(
          node =>
            node.scrollWidth > node.clientWidth + 1 &&
            ['auto', 'scroll'].includes(getComputedStyle(node).overflowX)
        )
        .map(node => node.className)
    };
  });
}
