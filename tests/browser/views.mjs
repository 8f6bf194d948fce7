// What is summed up beside the drawing: flame graph, ops of a range, growth, markers, notes; and what is kept of it.
import { besidePanel, drawn, execute, stepChosen, theme } from './lab.mjs';
import { resize, SIZES, still, unreadable } from './looks.mjs';

await besidePanel('views', async ({ page, picture, panel, run, look, found }) => {
  found.trained = [await run(0), await run(1)];
  await panel.getByText(/Live · 6 steps/).waitFor();
  await stepChosen(page, 5);
  const tab = name => panel.getByRole('tab', { name });
  const menu = panel.locator('.cl-menu');
  const said = panel.locator('.cl-tabs [role="status"]');
  const nodes = panel.locator('.cl-flame-node');
  const texts = () => nodes.evaluateAll(all => all.map(node => node.getAttribute('aria-label')));

  // The flame graph of a point, by module, then by the lines that made it; entered with a click, left by "All".
  await look(async ({ model }) => {
    await model.setAxis('op');
    await model.ask(25.5, true); // late in the forward, when the backward's inputs are there
  });
  await tab('Flame').click();
  await said.getByText(/at op 25 /).waitFor();
  found.byModule = await texts();
  found.at = await said.textContent();
  await picture('flame');
  await panel.getByRole('button', { name: 'By stack' }).click();
  await panel.locator('.cl-flame-node', { hasText: 'forward' }).first().waitFor();
  found.byStack = await texts();
  const before = await nodes.count();
  await panel.locator('.cl-flame-node', { hasText: 'Made before' }).click();
  found.entered = [before, await nodes.count()];
  await panel.getByRole('button', { name: 'All', exact: true }).click();
  found.left = await nodes.count();
  // The keys walk it: into the largest, to its neighbor, and out again.
  const focused = () => page.evaluate(() => document.activeElement.dataset.node);
  const walked = [await focused()];
  for (const key of ['ArrowDown', 'ArrowRight', 'ArrowUp']) {
    await page.keyboard.press(key);
    walked.push(await focused());
  }
  found.walked = walked;
  // A node that is one storage is selected, with its dtype and shape, and the line that made it.
  await panel.getByRole('button', { name: 'By module' }).click();
  await panel.locator('.cl-flame-node[aria-label^="h.3, "]').click();
  await panel.locator('.cl-flame-node[aria-label*="gelu"]').first().click();
  await panel.getByText('Python stack of its making').waitFor();
  found.selected = await panel.locator('.cl-inspector .cl-facts').last().innerText();
  found.stack = await panel.locator('.cl-stack').innerText();

  await look(({ model }) => model.setAxis('time'));

  // Markers: the lane, and the name at the pointer; a click sums it up, op by op.
  const marks = await look(({ timeline, model }) => {
    const { x0, x1, label } = model.views.best(model.shown).marks;
    const names = model.scene.mark_names;
    const i = label.findIndex(one => names[one] === 'my backward');
    const { top, height } = timeline._layout.marks;
    return [timeline._scale.x((x0[i] + x1[i]) / 2), top + height / 2];
  });
  const overlay = await panel.locator('.cl-overlay').boundingBox();
  await page.mouse.move(overlay.x + marks[0], overlay.y + marks[1]);
  await panel.locator('.cl-tip').getByText('my backward').waitFor();
  await picture('marker');
  await page.mouse.click(overlay.x + marks[0], overlay.y + marks[1]);
  await tab('Range').click();
  const rows = panel.locator('.cl-table-body tbody tr');
  await rows.first().waitFor();
  found.range = await rows.allInnerTexts();
  await picture('range');
  await panel.locator('.cl-inspector').getByRole('button', { name: 'Clear' }).first().click();
  found.rangeGone = await tab('Range').isHidden();

  // Lanes that are folded away give their room to the others, and come back.
  const lanes = () => look(({ timeline }) => timeline._layout.blocks.height);
  const laneNames = () => panel.locator('.cl-track .cl-name > span:first-child').allTextContents();
  const toggle = async name => {
    await panel.getByRole('button', { name: 'Lanes…' }).click();
    await menu.getByRole('menuitemcheckbox', { name }).click();
  };
  found.lanes = [await lanes()];
  found.laneNames = [await laneNames()];
  for (const name of ['Module', 'Swap-in']) {
    await toggle(name);
  }
  found.lanes.push(await lanes());
  found.laneNames.push(await laneNames());
  await drawn(page);
  await picture('folded');
  for (const name of ['Module', 'Swap-in']) {
    await toggle(name);
  }
  found.lanes.push(await lanes());

  // Lanes that are pinned lie at the top, and stay there when the others scroll under them.
  const pin = name => panel.getByRole('button', { name: `Pin ${name}`, exact: true });
  await pin('Stage').focus(); // the one stop of them all
  await page.keyboard.press('End');
  await page.keyboard.press('ArrowUp');
  found.pinFocus = await page.evaluate(() => document.activeElement.ariaLabel);
  await page.keyboard.press('Enter');
  found.pinFocus = [found.pinFocus, await page.evaluate(() => document.activeElement.ariaLabel)];
  await pin('Swap-in').click();
  found.pinStops = await panel.locator('.cl-pin[tabindex="0"]').count();
  found.pinnedNames = await laneNames();
  const timeline = panel.locator('.cl-timeline');
  const whole = await timeline.evaluate(node => node.style.cssText);
  await timeline.evaluate(node => {
    node.style.maxHeight = '230px';
  });
  await page.waitForFunction(() => {
    const { scrollHeight, clientHeight } = document.querySelector('.cl-timeline');
    return clientHeight <= 230 && scrollHeight > clientHeight + 40;
  });
  const seen = () =>
    look(({ timeline }) => {
      const top = timeline.node.getBoundingClientRect().top;
      const at = name =>
        [...timeline.node.querySelectorAll('.cl-name')]
          .find(node => node.textContent.startsWith(name))
          .getBoundingClientRect().top - top;
      return ['Resident', 'Swap-in', 'Ops'].map(name => Math.round(at(name)));
    });
  await drawn(page);
  found.unscrolled = await seen();
  await timeline.evaluate(node => node.scrollTo(0, 1000));
  await page.waitForFunction(() => document.querySelector('.cl-stuck'));
  await drawn(page);
  found.scrolled = await seen();
  await picture('pinned');
  // What lies there is drawn there, and answers to the pointer.
  found.pinnedHit = await look(({ timeline }) => {
    const { top, height } = timeline._layout.in;
    const at = timeline.node.getBoundingClientRect();
    const y = at.top + top + height / 2;
    const target = document.elementFromPoint(at.left + at.width / 2, y);
    const event = { offsetY: y - at.top + timeline.node.scrollTop };
    const c = timeline._pinCanvas;
    const { width } = c;
    const drawn = c
      .getContext('2d')
      .getImageData(0, 0, width, c.height)
      .data.some(v => v > 0);
    return [target.className, timeline._yOf(event) - (top + height / 2), drawn];
  });
  await timeline.evaluate((node, style) => {
    node.style.cssText = style;
  }, whole);
  await drawn(page);

  // What grows: the list that is never emptied, with its line.
  await tab('Growth').click();
  await rows.first().waitFor();
  found.grown = await rows.allInnerTexts();
  found.grew = await said.textContent();
  await picture('growth');

  // A note at the crosshair.
  const save = panel.getByRole('button', { name: 'Save…' }).first();
  const dialog = page.locator('.jp-Dialog');
  const answer = async (text, accept = '.jp-mod-accept') => {
    if (text !== null) {
      await dialog.locator('input').fill(text);
    }
    const asked = await dialog.elementHandle(); // the next one may open before anybody sees that this one is gone
    await dialog.locator(accept).click();
    await asked.waitForElementState('hidden');
  };
  await look(({ model }) => model.setCursor(model.length / 2));
  await save.click();
  await menu.getByText('Note at the crosshair').click();
  await answer('here it gets tight');
  await tab(/^Notes 1/).click();
  await rows.getByText('here it gets tight').waitFor();
  await drawn(page);
  await picture('note');

  // The trace with it, twice under one name; offered when one opens; and the picture.
  for (const again of [false, true]) {
    await save.click();
    await menu.getByText('Trace, with its notes').click();
    await answer('kept.parquet');
    if (again) {
      await page.getByText('Overwrite the file?').waitFor();
      await answer(null, '.jp-mod-warn');
    }
    await page
      .getByText(/Saved \d+ steps to kept\.parquet/)
      .first()
      .waitFor();
  }
  await panel.getByRole('button', { name: 'Open trace…' }).click();
  await dialog.locator('datalist option').first().waitFor({ state: 'attached' });
  found.offered = await dialog
    .locator('datalist option')
    .evaluateAll(all => all.map(option => option.value));
  await answer('kept.parquet');
  await page.waitForFunction(() =>
    document.querySelector('.cl-toolbar select').value.includes('file:kept')
  );
  await tab(/^Notes 1/).click();
  await rows.getByText('here it gets tight').waitFor();
  const download = page.waitForEvent('download');
  await save.click();
  await menu.getByText('Picture of the drawing').click();
  const file = await download;
  found.picture = file.suggestedFilename();
  await file.saveAs(process.argv[3].replace(/\.png$/, '-saved.png'));
  await panel.getByRole('button', { name: /^Forget the note/ }).click();
  await panel.getByText('here it gets tight').waitFor({ state: 'detached' });
  found.notes = await look(({ model }) => model.notes.length);

  // All of it at each size, light and dark.
  found.looks = {};
  await look(({ model }) => model.ask(undefined, true));
  for (const dark of ['Light', 'Dark']) {
    await theme(page, dark);
    for (const size of [1280, 400]) {
      await resize(page, SIZES[size]);
      if (size === 400) {
        await panel.locator('.cl-pages').getByRole('button', { name: 'Tables' }).click();
      }
      for (const name of ['Flame', 'Growth']) {
        await tab(name).click();
        await still(page);
        const { cut, clipped, overlapping } = await unreadable(page);
        found.looks[`${size}-${name}-${dark}`] = { cut, clipped, overlapping };
        await picture(`${size}-${name}-${dark}`.toLowerCase(), panel);
      }
    }
  }
  // The panel that is opened next has them pinned, too, until they are not.
  await look((_, id) => {
    const shell = window.jupyterapp.shell;
    [...shell.widgets('main')].find(widget => widget.id === id).close();
  }, 'chameleon-lab-panel');
  await panel.waitFor({ state: 'detached' });
  await execute(page, 'chameleon-lab:open');
  await panel.getByText('Step time').first().waitFor();
  await page.waitForFunction(() => document.querySelector('.cl-pin[aria-pressed="true"]'));
  found.reopened = await laneNames();
  for (const name of ['Resident', 'Swap-in']) {
    await pin(name).click();
  }
  found.unpinnedNames = await laneNames();
});
