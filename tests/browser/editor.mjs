// Edits a policy beside a notebook that trains: table, block map, draft, dry run, enable, files, and a kernel that dies.
import { besidePanel, kernelIdle, restartKernel, settled, theme, writeFile } from './lab.mjs';

await besidePanel('edit', async ({ page, picture, panel, run, look, found }) => {
  const bar = panel.locator('.cl-bar-bottom');
  const figures = async row =>
    (await bar.locator(`tr.${row} .cl-figure`).allTextContents()).map(text => text.trim());
  const planned = () =>
    page.waitForFunction(() => {
      const standing = document.querySelector('.cl-standing')?.textContent ?? '';
      const busy = document.querySelector('.cl-actions button')?.closest('.cl-bar-bottom')?.hidden;
      return standing && !busy && !standing.includes('Estimate') && !standing.includes('Planning');
    });
  const dialog = async (text, button = '.jp-mod-accept, .jp-mod-warn') => {
    const box = page.locator('.jp-Dialog');
    await box.waitFor();
    if (text !== null) {
      await box.locator('input').fill(text);
    }
    const element = await box.elementHandle(); // the next dialog may come at once
    await box.locator(button).last().click();
    await element.waitForElementState('hidden');
  };

  found.trained = [await run(0), await run(1)];
  await panel.getByText(/Live · 4 steps/).waitFor();

  // The draft is what is in force; the table lists what can leave.
  await bar.getByText('No changes: the draft is what is in force.').waitFor();
  found.untouched = [await figures('cl-current'), await figures('cl-draft-row')];
  await panel.getByRole('tab', { name: /Decisions \d+/ }).click();
  const rows = panel.locator('.cl-rows .cl-cells[data-storage]');
  await rows.first().waitFor();
  found.listed = Number(
    /\d+/.exec(await panel.getByRole('tab', { name: /Decisions/ }).textContent())[0]
  );
  await picture('light');

  // Sort and filter; walk with the keys.
  await panel.locator('.cl-heads').getByRole('button', { name: 'Idle' }).click();
  await page.waitForFunction(
    () =>
      document.querySelector('.cl-heads .cl-col-idle').getAttribute('aria-sort') === 'descending'
  );
  const filter = panel.locator('.cl-filter');
  await filter.fill('swap >500KiB');
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.cl-space .cl-col-decision')].every(cell =>
      cell.innerText.includes('Swap')
    )
  );
  await panel
    .locator('.cl-tabs [role="status"]')
    .getByText(/^\d+ of \d+ storages/)
    .waitFor();
  await filter.press('Enter');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowDown');
  await panel.locator('.cl-rows [aria-selected="true"]').waitFor();
  await page.keyboard.press('Enter');
  await panel.locator('.cl-cards .cl-card').first().waitFor();
  await page.waitForFunction(
    () =>
      [...document.querySelectorAll('.cl-cards .cl-card')].length >= 3 &&
      !document.querySelector('.cl-cards').innerText.includes('planning…')
  );
  found.cards = await panel.locator('.cl-cards .cl-choices').innerText();
  found.selected = await look(content => content.editing.editor.selected);
  await page.waitForFunction(() => document.querySelector('.cl-inspector .cl-title'));
  await settled(page);

  // Keep it, by its block in the block map.
  const place = await look(content => {
    const { timeline, model } = content;
    const { top, height } = timeline._layout.blocks;
    for (let y = top + 0.5; y < top + height; y += 0.5) {
      for (let x = 1; x < timeline._width; x += 2) {
        const point = timeline._hitAt(x, y)?.point;
        if (point?.track === 'blocks' && point.row === model.selected?.uid) {
          return [x, y];
        }
      }
    }
    return null;
  });
  const box = await panel.locator('.cl-overlay').boundingBox();
  await page.mouse.click(box.x + place[0], box.y + place[1], { button: 'right' });
  const menu = panel.locator('.cl-menu');
  await menu.getByRole('menuitemradio', { name: /^Keep/ }).waitFor();
  await picture('menu');
  await menu.getByRole('menuitemradio', { name: /^Keep/ }).click();
  await bar.getByText(/1 change by you/).waitFor();
  await planned();
  found.answeredMs = await look(content => content.editing.editor.answeredMs);
  found.kept = await look(({ editing: { editor } }) => [editor.open.current, editor.open.draft]);
  await filter.fill('by:you');
  await page.waitForFunction(() => document.querySelectorAll('.cl-rows .cl-staged').length === 1);
  found.row = await rows.first().innerText();
  await filter.fill('');

  // Undo and redo with the keys; a rule with its form.
  await panel.locator('.cl-rows').focus();
  await page.keyboard.press('Control+z');
  await bar.getByText('No changes: the draft is what is in force.').waitFor();
  await page.keyboard.press('Control+Shift+z');
  await bar.getByText(/1 change by you/).waitFor();
  await panel.getByRole('button', { name: '+ Rule…' }).click();
  const form = panel.locator('.cl-rule-form');
  await form.locator('select').first().selectOption('never_touch');
  await form.locator('input[placeholder="h.*.mlp"]').fill('h.nowhere');
  await form
    .getByRole('status')
    .getByText(/^0 storages/)
    .waitFor();
  await form.locator('input[placeholder="h.*.mlp"]').fill('h.0');
  await form
    .getByRole('status')
    .getByText(/^[1-9]\d* storages, of which/)
    .waitFor();
  await picture('rule');
  await form.getByRole('button', { name: 'Add rule' }).click();
  await panel.locator('.cl-chip').waitFor();
  await bar.getByText(/2 changes by you/).waitFor();
  await planned();

  // Less capacity by the curve's handle: the prediction follows.
  await panel.getByRole('button', { name: 'Work out the curve' }).click();
  await panel.locator('.cl-curve').getByText('Without edits').waitFor();
  const slider = panel.getByRole('slider', { name: "The draft's capacity" });
  const before = Number(await slider.getAttribute('aria-valuenow'));
  await slider.focus();
  for (let i = 0; i < 4; i++) {
    await page.keyboard.press('ArrowLeft');
  }
  await bar.getByText(/3 changes by you/).waitFor();
  await planned();
  found.capacities = [before, Number(await slider.getAttribute('aria-valuenow'))];
  found.lowered = [await figures('cl-current'), await figures('cl-draft-row')];
  found.predicted = await look(content => content.editing.editor.open.draft.peak_bytes);

  // Below the floor, with the way out; then with the edits, which need more.
  const field = panel.locator('.cl-curve input');
  const lift = bar.getByRole('button', { name: /^Set capacity to/ });
  found.offered = [];
  await field.fill('1MiB');
  await field.press('Enter');
  await bar.getByText(/is below the floor/).waitFor();
  found.offered.push(await lift.innerText());
  await panel.locator('.cl-card').getByText('not possible').first().waitFor();
  const said = async () => (await panel.innerText()).match(/below the floor|unreachable/g);
  found.said = [await said()];
  await panel.getByRole('tab', { name: /Changes/ }).click();
  await panel.locator('.cl-edit-list').getByText('unreachable').waitFor();
  found.said.push(await said());
  await picture('below-floor');
  await panel.getByRole('tab', { name: /Decisions/ }).click();
  await lift.click();
  await bar.getByText(/With the edits no policy fits/).waitFor();
  found.offered.push(await lift.innerText());
  await lift.click();
  await bar.getByText(/Valid: fits at every op/).waitFor();
  await lift.waitFor({ state: 'hidden' });
  const undo = bar.getByRole('button', { name: '↶' });
  for (const text of [/With the edits no policy fits/, /is below the floor/, /3 changes by you/]) {
    await undo.click();
    await bar.getByText(text).waitFor();
  }
  await planned();
  await panel.getByRole('tab', { name: /Changes 3/ }).click();
  await panel.getByText('What changes in the plan').waitFor();
  found.changes = await panel.locator('.cl-edit-list').innerText();
  await picture('changes');
  await panel.getByRole('tab', { name: /Decisions/ }).click();

  found.peakBefore = await look(content => content.model.status.session.peak_bytes);
  // A dry run while a cell trains, then for good.
  let ended = false;
  const training = run(2).finally(() => {
    ended = true;
  });
  await panel.getByText('A cell is running. Answered from a kernel subshell').waitFor();
  await bar.getByRole('button', { name: 'Dry run 1 step' }).click();
  await bar.locator('tr.cl-tried').waitFor();
  found.tried = await figures('cl-tried');
  await picture('dry-run');
  await bar.getByRole('button', { name: 'Enable' }).click();
  await bar.getByText('No changes: the draft is what is in force.').waitFor();
  const steps = await look(content => content.model.status.session.step_count);
  await page.waitForFunction(steps => {
    const widget = [...window.jupyterapp.shell.widgets('main')].find(
      w => w.id === 'chameleon-lab-panel'
    );
    return widget.content.model.status.session.step_count > steps + 3;
  }, steps);
  found.peakAfter = await look(content => content.model.status.session.peak_bytes);
  found.current = await figures('cl-current');
  found.whileRunning = !ended;

  // Undo, save, and save again over it.
  await bar.getByRole('button', { name: '↶' }).click();
  await bar.getByText(/1 change by you/).waitFor();
  await planned();
  for (const again of [false, true]) {
    await bar.getByRole('button', { name: 'Save…' }).click();
    await dialog('policy.json', '.jp-mod-accept');
    if (again) {
      await page.getByText('Overwrite the file?').waitFor();
      await dialog(null, '.jp-mod-warn');
    }
    await bar.getByText(/Saved to .*policy\.json\./).waitFor();
    await bar.getByRole('button', { name: '↷' }).click();
    await bar.getByText('No changes: the draft is what is in force.').waitFor();
    await bar.getByRole('button', { name: '↶' }).click();
    await bar.getByText(/1 change by you/).waitFor();
  }
  await writeFile(page, 'enough.txt');
  found.ran = await training;
  await bar.getByRole('button', { name: 'Roll back' }).click();
  await bar.getByText('In force from the next step border on.').waitFor();

  // The dark theme.
  await theme(page, 'Dark');
  await picture('dark');

  // Another kernel: the draft that was not enabled is offered; the file brings its edits.
  await restartKernel(page, 'edit');
  await panel.getByText('This kernel has not loaded Chameleon Lab').waitFor();
  const offer = panel.locator('.cl-offer');
  await offer.getByText(/kept in this panel/).waitFor();
  await picture('gone');
  await run(0);
  await run(1);
  await panel.getByText(/Live · 4 steps/).waitFor();
  await offer.getByRole('button', { name: 'Discard' }).click();
  await bar.getByRole('button', { name: 'Load…' }).click();
  await dialog('policy.json', '.jp-mod-accept');
  await bar.getByText(/Loaded policy\.json: 2 edits\./).waitFor();
  await planned();
  found.loaded = await look(content => content.editing.editor.open.edits.map(entry => entry.edit));

  // The kernel dies in the midst of it: nothing is lost.
  void run(3).catch(() => undefined);
  await page.locator('.jp-Dialog').waitFor();
  await dialog(null, '.jp-mod-accept');
  await offer.getByText(/Your draft is safe/).waitFor();
  await kernelIdle(page);
  await run(0);
  await run(1);
  await panel.getByText(/Live · 4 steps/).waitFor();
  await offer.getByRole('button', { name: /Put 2 changes back/ }).click();
  await bar.getByText(/2 changes are back/).waitFor();
  await planned();
  found.back = await look(content => content.editing.editor.open.edits.map(entry => entry.edit));

  // Splitters, with the keys.
  const height = () => panel.locator('.cl-tables').evaluate(node => node.clientHeight);
  await panel.getByRole('separator', { name: 'Height of the tables' }).focus();
  await page.keyboard.press('ArrowUp'); // until then the height changes with what is below the tables
  const low = await height();
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('ArrowUp');
  found.grown = (await height()) - low;
});
