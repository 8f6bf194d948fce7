// Notebook 7: the panel opens in the side bar beside a notebook that trains, draws its steps, and an edit reaches the
// kernel.
import { cellRunner, colorsByTrack, execute, inLab, kernelIdle } from './lab.mjs';

async function inNotebook(page) {
  await page.waitForSelector('.jp-NotebookPanel');
  await page.waitForFunction(() => window.jupyterapp?.restored);
}

await inLab(
  async page => {
    const panel = page.locator('.cl-panel');
    const bar = panel.locator('.cl-bar-bottom');
    const run = cellRunner(page, 'notebook-7');
    await kernelIdle(page);
    await page.locator('.jp-NotebookPanel-toolbar [title="Open Chameleon Lab"]').click();
    await panel.getByText('This kernel has not loaded Chameleon Lab').waitFor();
    // As wide as the notebook: the side bar opens narrow.
    const handle = await page.locator('.lm-SplitPanel-handle:visible').last().boundingBox();
    await page.mouse.move(handle.x + handle.width / 2, 500);
    await page.mouse.down();
    await page.mouse.move(500, 500, { steps: 5 });
    await page.mouse.up();

    const trained = [await run(0), await run(1)];
    await panel.getByText(/Live · 4 steps/).waitFor();
    await page.waitForFunction(
      () => document.querySelector('.cl-tracks')?.clientWidth && document.querySelector('.cl-track')
    );
    let drawn = [];
    while (!drawn.includes('Resident')) {
      const tracks = await colorsByTrack(page);
      drawn = Object.keys(tracks).filter(name => tracks[name].drawn > 0);
    }
    await panel.getByRole('tab', { name: /Decisions \d+/ }).click();
    await panel.locator('.cl-rows .cl-cells[data-storage]').first().click();
    await panel.locator('.cl-cards .cl-card[data-action="never_touch"]').getByRole('radio').click();
    await bar.getByText(/1 change by you/).waitFor();
    await bar.getByRole('button', { name: 'Enable' }).click();
    await bar.getByText('In force from the next step border on.').waitFor();
    const reached = await run(2);
    const panels = [await panel.count()];
    await execute(page, 'chameleon-lab:open'); // shows the panel that is there
    panels.push(await panel.count());
    return { trained, drawn, reached, panels, seen: await panel.isVisible() };
  },
  { arrive: inNotebook }
);
