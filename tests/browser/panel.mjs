// Trains in a notebook with the panel beside it: tracks, zoom, search, selection, a running cell, files, a restart.
import {
  besidePanel,
  colorsByTrack,
  drawn,
  longestBar,
  redrawn,
  restartKernel,
  settled,
  stepChosen,
  theme,
  writeFile
} from './lab.mjs';

await besidePanel('train', async ({ page, picture, panel, run, look, found }) => {
  const notebook = page.locator('.jp-NotebookPanel:visible');
  found.before = await panel.locator('.cl-notice h2').textContent();

  const listed = panel.locator('.cl-tabs [role="status"]').getByText(/^[1-9]\d* storages?, /);

  found.loaded = await run(0);
  await panel.getByText('No session yet').waitFor();
  found.trained = await run(1);
  const overlay = panel.locator('.cl-overlay');
  await panel.getByText(/Live · 6 steps/).waitFor();
  await page.waitForFunction(() => document.querySelector('.cl-tracks')?.width > 100);
  await panel.getByRole('combobox', { name: 'Steps drawn' }).waitFor();
  await stepChosen(page, 5);
  await settled(page);
  found.answers = await panel.locator('.cl-how').textContent();
  found.colors = await colorsByTrack(page);
  await picture('light');

  // Zoom with the keys and with the wheel; what is drawn changes, and Fit brings it back.
  const whole = await fingerprint(page);
  const narrower = async span => {
    await page.waitForFunction(span => {
      const { model } = [...window.jupyterapp.shell.widgets('main')].find(
        w => w.id === 'chameleon-lab-panel'
      ).content;
      return model.shown.end - model.shown.start < span;
    }, span);
    await settled(page);
    return look(({ model }) => model.shown.end - model.shown.start);
  };
  const span = await look(({ model }) => model.shown.end - model.shown.start);
  await overlay.focus();
  await page.keyboard.press('+');
  await page.keyboard.press('+');
  const closer = await narrower(span);
  const zoomed = await fingerprint(page);
  const box = await overlay.boundingBox();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 140);
  await page.mouse.wheel(0, -300);
  await narrower(closer);
  const wheeled = await fingerprint(page);
  await page.keyboard.press('f');
  await settled(page);
  found.zooms = [zoomed !== whole, wheeled !== zoomed, (await fingerprint(page)) === whole];

  // Search: the tables list what fits.
  await page.keyboard.press('/');
  await page.keyboard.type('layer.3 gelu >500KiB');
  await listed.waitFor();
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.cl-tables tbody tr')].every(row =>
      row.innerText.includes('h.3')
    )
  );
  found.searched = await panel.locator('.cl-tables tbody tr').first().innerText();

  // Select from the table: it is outlined in the block map, and its life is told.
  const unselected = await fingerprint(page, '.cl-overlay');
  await panel.locator('.cl-tables tbody tr').first().click();
  await panel.getByText('Python stack of its making').waitFor();
  found.selected = await panel.locator('.cl-inspector h2').textContent();
  found.lit = (await redrawn(page, '.cl-overlay', unselected)) !== unselected;
  await picture('selected');

  // Point at an op, at a block; brush a range.
  const op = await longestBar(page, 'ops');
  await page.mouse.move(op.x, op.y);
  await panel.locator('.cl-tip').waitFor();
  found.tip = await panel.locator('.cl-tip b').textContent();
  await page.keyboard.down('Shift');
  await page.mouse.move(box.x + box.width * 0.2, box.y + 150);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 160, { steps: 4 });
  await page.mouse.up();
  await page.keyboard.up('Shift');
  await panel.getByText('Modules by op time').waitFor();
  found.range = await panel.locator('.cl-inspector .cl-facts').first().innerText();

  // The floor says what it was measured on.
  const line = await look(({ timeline, model }) => {
    const { resident } = timeline._layout;
    const { floor, capacity_bytes } = model.scene; // alive is more than the capacity: the lane's axis breaks above it
    return resident.top + resident.height * (1 - (0.7 * floor.bytes) / (capacity_bytes * 1.04));
  });
  await page.mouse.move(box.x + box.width * 0.3, box.y + line);
  await panel.locator('.cl-tip').getByText('measured on').waitFor();
  found.floor = await panel.locator('.cl-tip').innerText();
  found.capacity = await panel.locator('[data-figure="Capacity"]').getAttribute('title');

  // A bad query is said, and goes with the next good one.
  await panel.getByRole('searchbox').fill('>lots');
  await panel.locator('.cl-banner[role=alert]').getByText('is not a size').waitFor();
  await panel.getByRole('searchbox').fill('');
  await panel.locator('.cl-banner[role=alert]').waitFor({ state: 'hidden' });

  // Stalls and the peak.
  await overlay.focus();
  await page.keyboard.press(']');
  await panel.getByText(/Stall 1 of \d+/).waitFor();
  found.stalls = Number(/of (\d+)/.exec(await panel.locator('.cl-toolbar').innerText())[1]);
  await page.keyboard.press('f');
  await panel.getByRole('tab', { name: 'Why is the peak here?' }).click();
  await panel.getByText('By category').waitFor();
  found.alive = await panel.locator('.cl-tabs [role="status"]').textContent();
  await picture('peak');

  // The other axis, packed rows, several steps.
  await panel.getByRole('button', { name: 'Op', exact: true }).click();
  await panel.getByRole('button', { name: 'Packed' }).click();
  await settled(page);
  const steps = panel.getByRole('combobox', { name: 'Steps drawn' });
  const several = await steps.locator('option', { hasText: 'steps' }).first().getAttribute('value');
  await steps.selectOption(several);
  await panel.getByText('All steps').waitFor();
  await settled(page);
  found.several = await colorsByTrack(page);
  await picture('steps');
  await panel.getByRole('button', { name: 'Time', exact: true }).click();
  await panel.getByRole('button', { name: 'By storage' }).click();

  // While a cell runs: the panel is answered, and follows the steps.
  await panel.getByLabel('Follow').check();
  let ended = false;
  const training = run(2).finally(() => {
    ended = true;
  });
  await panel.getByText('A cell is running. Answered from a kernel subshell').waitFor();
  await panel.getByText(/Live · (8|9|\d\d) steps/).waitFor();
  await panel.getByRole('searchbox').fill('layer.5');
  await listed.waitFor();
  found.whileRunning = !ended; // the cell runs until there is a file, so that the answer came beside it
  // What was typed counts, also where the field is left at once.
  await panel.getByRole('searchbox').fill('gelu');
  await page.keyboard.press('Enter');
  found.entered = await look(({ model }) => model.query);
  await panel.getByRole('searchbox').fill('');
  // A row that has the focus keeps it, and a button that is held down is clicked, over the steps that come in.
  const stepCount = () => look(({ model }) => model.status.session.step_count);
  const another = async () => {
    const before = await stepCount();
    while (!ended && (await stepCount()) < before + 2) {
      await page.waitForTimeout(50);
    }
  };
  await panel.getByLabel('Follow').uncheck(); // another step has other rows
  await another(); // one may have been on its way
  await panel.getByRole('tab', { name: 'Storages' }).click();
  await panel.locator('.cl-table-body tbody tr').first().focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Enter');
  await panel.locator('.cl-table-body tr[aria-selected="true"]').waitFor();
  await another();
  found.focused = await page.evaluate(() => document.activeElement.getAttribute('aria-selected'));
  const place = await panel.getByRole('button', { name: 'Compare…' }).boundingBox();
  await page.mouse.move(place.x + 8, place.y + 8);
  await page.mouse.down();
  await another();
  await page.mouse.up();
  await panel.locator('.cl-compare').waitFor();
  await page.keyboard.press('Escape');
  await panel.locator('.cl-compare').waitFor({ state: 'detached' });
  await writeFile(page, 'trained.txt');
  found.ran = await training;

  // Trace files: a whole one, and one that ends early.
  await run(3);
  const openFile = async name => {
    await panel.getByRole('button', { name: 'Open trace…' }).click();
    const dialog = page.locator('.jp-Dialog');
    await dialog.locator('input').fill(name);
    await dialog.locator('.jp-mod-accept').click();
    await dialog.waitFor({ state: 'detached' }); // or the next one's input may be this one's
  };
  await openFile('half.parquet');
  await panel.locator('.cl-banner[role=alert]').getByText('truncated').waitFor();
  await panel.getByRole('button', { name: '×' }).click();
  await openFile('run.parquet');
  await page.waitForFunction(() =>
    document.querySelector('.cl-toolbar select').value.includes('file:')
  );
  found.file = await steps.locator('option:checked').textContent();

  // The dark theme.
  await theme(page, 'Dark');
  do {
    await drawn(page); // the file's steps may come after the theme
    found.dark = await colorsByTrack(page);
  } while (!found.dark['Whole step'].drawn);
  await picture('dark');

  // A kernel that restarts has nothing to draw, until the extension is loaded again.
  await restartKernel(page, 'train');
  await panel.getByText('This kernel has not loaded Chameleon Lab').waitFor();
  await run(0);
  await panel.getByText('No session yet').waitFor();
  found.restarted = true;

  // %chameleon panel brings it back after it was closed.
  await page.evaluate(() => {
    for (const widget of window.jupyterapp.shell.widgets('main')) {
      if (widget.id === 'chameleon-lab-panel') {
        widget.close();
      }
    }
  });
  await panel.waitFor({ state: 'detached' });
  await notebook.click();
  await run(4);
  await panel.getByText('No session yet').waitFor();
  found.called = true;
});

/** Changes when what is drawn does. */
function fingerprint(page, selector = '.cl-tracks') {
  return page.evaluate(selector => document.querySelector(selector).toDataURL(), selector);
}
