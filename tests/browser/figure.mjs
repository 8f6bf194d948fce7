// Shows a trace's figure in a cell, and its page of its own: both as wide as the room they have.
import { HANGS_AFTER_MS, inLab, kernelIdle } from './lab.mjs';

await inLab(async (page, picture) => {
  const found = {};
  await page.evaluate(() => window.jupyterapp.commands.execute('application:toggle-left-area'));
  await kernelIdle(page);
  await page.evaluate(() => window.jupyterapp.commands.execute('notebook:run-all-cells'));
  const output = page.locator('.jp-NotebookPanel .jp-Cell').last().locator('.jp-OutputArea-output');
  const drawing = output.locator('.main-svg').first();
  await drawing.waitFor();
  /** The widths of the figure and of its room, once the one has come near to the other. */
  const widths = async (drawing, room) => {
    let both = [];
    const until = Date.now() + HANGS_AFTER_MS;
    while (Date.now() < until) {
      both = [drawing, room].map(locator => locator.boundingBox());
      both = (await Promise.all(both)).map(box => Math.round(box?.width ?? 0));
      if (both[0] > both[1] - 60 && both[0] <= both[1]) {
        break;
      }
      await page.waitForTimeout(200);
    }
    return both;
  };
  found.cell = await widths(drawing, output);
  // A splitter or a side bar changes its room, and not the window.
  await page.evaluate(() => window.jupyterapp.commands.execute('application:toggle-left-area'));
  await page.waitForFunction(
    wide => [...document.querySelectorAll('.jp-OutputArea-output')].at(-1).clientWidth < wide - 100,
    found.cell[1]
  );
  found.beside = await widths(drawing, output);
  await page.evaluate(() => window.jupyterapp.commands.execute('application:toggle-left-area'));
  await page.waitForFunction(
    wide => [...document.querySelectorAll('.jp-OutputArea-output')].at(-1).clientWidth > wide + 100,
    found.beside[1]
  );
  found.again = await widths(drawing, output);
  found.words = await page.evaluate(() => {
    const { content } = window.jupyterapp.shell.currentWidget;
    const { outputs } = content.widgets.at(-1).model;
    return outputs.get(outputs.length - 1).data['text/plain'];
  });
  await page.setViewportSize({ width: 1200, height: 900 });
  found.smaller = await widths(drawing, output);
  await picture('cell');

  const html = await page.evaluate(async () => {
    const { contents } = window.jupyterapp.serviceManager;
    return (await contents.get('figure.html', { type: 'file', format: 'text', content: true }))
      .content;
  });
  await page.goto('about:blank');
  await page.setContent(html);
  const alone = page.locator('.main-svg').first();
  await alone.waitFor();
  found.page = await widths(alone, page.locator('body'));
  await picture('page');
  return found;
});
