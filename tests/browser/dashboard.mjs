// Shows a session's dashboard in one cell and trains in the next: what is streamed must change while that one runs.
// Then opens a draft's chart, selects a bar with the mouse, keeps it on the device, and takes that back.
import { HANGS_AFTER_MS, inLab, writeFile } from './lab.mjs';

await inLab(async (page, picture) => {
  const found = {};
  await page.evaluate(() => window.jupyterapp.commands.execute('application:toggle-left-area'));
  await page.waitForSelector(
    '.jp-NotebookPanel .jp-Notebook-ExecutionIndicator[data-status="idle"]'
  );
  await page.evaluate(() => window.jupyterapp.shell.currentWidget.sessionContext.ready);
  await page.waitForFunction(
    () => window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'
  );
  const cell = number => page.locator('.jp-NotebookPanel .jp-Cell').nth(number);
  const state = () =>
    page.locator('.jp-Notebook-ExecutionIndicator').first().getAttribute('data-status');
  /** Run a cell of the notebook, as a person does; do not wait for its end. */
  const run = number =>
    page.evaluate(async number => {
      const panel = window.jupyterapp.shell.currentWidget;
      panel.content.activeCellIndex = number;
      panel.content.deselectAll();
      void window.jupyterapp.commands.execute('notebook:run-cell');
    }, number);
  const idle = () => page.waitForSelector('.jp-Notebook-ExecutionIndicator[data-status="idle"]');

  await run(0);
  await cell(0).locator('.jp-OutputArea-output').waitFor();
  await run(1);
  const canvases = cell(1).locator('canvas');
  await canvases.first().waitFor();
  await idle();

  await run(2);
  // As long as it takes: the cell ends when it is told to.
  const seen = new Set();
  found.stall = 0; // one is a pixel wide where steps are long: any picture may show it
  const until = Date.now() + HANGS_AFTER_MS;
  while (Date.now() < until && (seen.size < 3 || !found.stall)) {
    const shot = await pixels(cell(1));
    seen.add(shot.fingerprint);
    found.stall = Math.max(found.stall, shot.red);
    await page.waitForTimeout(500);
  }
  found.running = await state();
  found.pictures = seen.size;
  await picture('running');
  found.words = await cell(1).locator('.widget-html').first().innerText();
  await writeFile(page, 'drawn.txt');
  await idle();
  const left = cell(2).locator('.jp-OutputArea-output', { hasText: 'ended' });
  await left.waitFor();
  found.left = await left.innerText();
  await cell(1).getByText('ended').waitFor();

  // The chart of a draft: tap its uppermost bar, keep it, undo.
  await run(3);
  await cell(3).locator('canvas').first().waitFor();
  await idle();
  await cell(3).getByRole('button', { name: 'Keep' }).scrollIntoViewIfNeeded();
  found.told = await cell(3).locator('.widget-html').first().innerText();
  // The chart may be drawn, and what is above it grow, after the cell has ended.
  while (Date.now() < until && !(await cell(3).getByText('Selected:').isVisible())) {
    const bar = await firstBar(cell(3));
    if (bar) {
      await page.mouse.click(bar.x, bar.y);
    }
    await page.waitForTimeout(500);
  }
  await cell(3).getByText('Selected:').waitFor();
  const before = await pixels(cell(3));
  await cell(3).getByRole('button', { name: 'Keep' }).click();
  await cell(3).locator('li').first().waitFor();
  found.edit = await cell(3).locator('li').first().innerText();
  do {
    found.redrawn = (await pixels(cell(3))).fingerprint !== before.fingerprint;
  } while (Date.now() < until && !found.redrawn);
  await picture('draft');
  await cell(3).getByRole('button', { name: 'Undo' }).click();
  await cell(3).getByText('No edits.').waitFor();
  return found;
});

/** A fingerprint of every canvas in a cell, and how many pixels have the color of a stall. */
function pixels(cell) {
  return cell.evaluate(element => {
    let red = 0;
    const data = [...deep(element)].map(canvas => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      for (let i = 0; i < data.length; i += 4) {
        red += data[i] === 0xc7 && data[i + 1] === 0x22 && data[i + 2] === 0;
      }
      return canvas.toDataURL();
    });
    return { fingerprint: data.join(), red };

    /** Bokeh draws into shadow roots. */
    function* deep(node) {
      if (node instanceof HTMLCanvasElement && node.width) {
        yield node;
      }
      for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) {
        yield* deep(child);
      }
    }
  });
}

/** Where the first bar of a chart is on the page, if it is drawn: its uppermost pixel in the color of an activation. */
async function firstBar(cell) {
  return cell.evaluate(element => {
    const stack = [element];
    while (stack.length) {
      const node = stack.shift();
      if (node instanceof HTMLCanvasElement && node.width > 300) {
        const { data } = node.getContext('2d').getImageData(0, 0, node.width, node.height);
        for (let i = 0; i < data.length; i += 4) {
          const [r, g, b] = data.subarray(i, i + 3);
          if (Math.abs(r - 0x1e) < 14 && Math.abs(g - 0x88) < 14 && Math.abs(b - 0x85) < 14) {
            const box = node.getBoundingClientRect();
            const scale = node.width / box.width;
            const pixel = i / 4;
            return {
              x: box.x + (pixel % node.width) / scale + 2,
              y: box.y + Math.floor(pixel / node.width) / scale + 2
            };
          }
        }
      }
      stack.push(...(node.shadowRoot?.children ?? []), ...node.children);
    }
    return null;
  });
}
