// Replays beside swaps: drawn, edited, tried and enabled; the draft as it is drawn, in a narrow panel, after a reload.
import {
  cellRunner,
  colorsByTrack,
  drawn,
  inLab,
  insight,
  kernelIdle,
  layoutSaved,
  longestBar,
  openPanel,
  settled,
  theme
} from './lab.mjs';

await inLab(async (page, picture) => {
  const found = {};
  const run = cellRunner(page, 'replays');
  const panel = await openPanel(page);
  const bar = panel.locator('.cl-bar-bottom');
  const look = insight(page);
  const planned = count =>
    page.waitForFunction(count => {
      const standing = document.querySelector('.cl-standing')?.textContent ?? '';
      return standing.includes(count) && !/Estimate|Planning/.test(standing);
    }, count);
  const train = async () => {
    const ran = [await run(0), await run(1)];
    await panel.getByText(/Live · 6 steps/).waitFor();
    return ran;
  };
  found.trained = await train();
  await page.waitForFunction(() =>
    document.querySelector('.cl-toolbar select').value.includes(',5,5]')
  );
  await settled(page);

  // Nothing is cut off: here, in half of the window, and narrow.
  found.cut = { wide: await cutOff(panel) };

  found.banner = await panel.locator('.cl-banner[role=alert]').innerText(); // nothing went wrong while the session began

  // Their own track, dots in the block map, and words at the pointer.
  found.tracks = await colorsByTrack(page);
  found.legend = await panel.locator('.cl-key').innerText();
  const replay = await longestBar(page, 'replays');
  await page.mouse.move(replay.x, replay.y);
  await panel
    .locator('.cl-tip')
    .getByText(/replayed$/)
    .waitFor();
  found.tip = await panel.locator('.cl-tip').innerText();
  await panel.getByRole('tab', { name: 'Replays' }).click();
  found.listed = await panel.locator('.cl-tables tbody tr').count();
  await panel.locator('.cl-tables tbody tr', { hasText: '↻' }).first().click(); // not a declined drop
  await panel.locator('.cl-events').getByText('Made again by').first().waitFor(); // a storage may be dropped twice
  found.drawn = await look(({ model: { scene, selected } }) => [
    scene.replays,
    scene.declined,
    selected.dropped.length
  ]);
  await picture('light');

  // Several rows, decided about together, and taken back together.
  await panel.getByRole('tab', { name: /Decisions \d+/ }).click();
  const filter = panel.locator('.cl-filter');
  const rows = panel.locator('.cl-rows .cl-cells[data-storage]');
  await filter.fill('remat');
  await page.waitForFunction(() => {
    const cells = [...document.querySelectorAll('.cl-space .cl-col-decision')];
    return cells.length > 2 && cells.every(cell => cell.innerText.includes('Rematerialize'));
  });
  await rows.nth(0).click();
  await rows.nth(2).click({ modifiers: ['Shift'] });
  const together = panel.locator('.cl-together');
  await together.getByText('3 selected').waitFor();
  await picture('together');
  await together.getByRole('button', { name: 'Never rematerialize' }).click();
  await planned('3 changes by you');
  await filter.fill('by:you');
  await panel
    .locator('.cl-tabs [role="status"]')
    .getByText(/^3 of \d+ storages/)
    .waitFor();
  found.together = await look(({ editing: { editor } }) => [
    [0, 1, 2].map(position => editor.row(position).drops),
    editor.open.edits.map(entry => entry.edit.action)
  ]);
  await panel.locator('.cl-rows').focus();
  await page.keyboard.press('Control+z');
  await bar.getByText('No changes: the draft is what is in force.').waitFor();

  // One that the planner does not rematerialize, from its card.
  const other = await look(async ({ editing: { editor } }) => {
    await editor.setFilter({ query: 'category:act' });
    const { rows } = (
      await editor._client.request('decisions', {
        ...editor.filter,
        source: editor._source,
        first_row: 0,
        count: 100
      })
    ).result;
    return rows.find(row => row.replay_cost_s && !row.drops).storage;
  });
  await look(({ editing }, storage) => editing.show(storage), other);
  const card = panel.locator('.cl-card[data-action="rematerialize"]');
  await card.getByText(/^A replay takes/).waitFor();
  await page.waitForFunction(
    () => !document.querySelector('.cl-cards').innerText.includes('planning…')
  );
  found.cards = await panel.locator('.cl-choices').innerText();
  await card.getByRole('radio').check();
  await planned('1 change by you');
  found.draft = await look(({ editing: { editor } }) => [editor.open.current, editor.open.draft]);

  // The draft in the place of what ran, on the same axis.
  const overlay = panel.locator('.cl-overlay');
  const made = () =>
    look(async ({ model }, storage) => {
      await model.selectKey(storage);
      return model.selected.replays.length;
    }, other);
  found.made = [await made()];
  await drawn(page);
  const measured = await colorsByTrack(page);
  await panel.getByRole('button', { name: 'Draft', exact: true }).click();
  await page.waitForFunction(() =>
    document.querySelector('.cl-overlay').getAttribute('aria-label').includes('predicted')
  );
  found.made.push(await made());
  await drawn(page);
  const predicted = await colorsByTrack(page);
  found.differs = Object.keys(measured).filter(
    name => measured[name].hash !== predicted[name].hash
  );
  found.predicted = await look(({ model }) => [
    model.scene.replays,
    model.scene.peak_bytes,
    model.steps.source
  ]);
  await picture('draft');
  await overlay.focus();
  await page.keyboard.press('m');
  await page.waitForFunction(
    () => !document.querySelector('.cl-overlay').getAttribute('aria-label').includes('predicted')
  );

  // It can be compared with.
  await panel.getByRole('button', { name: 'Compare…' }).click();
  const sides = panel.locator('.cl-compare select');
  const options = await sides.last().locator('option').allTextContents();
  found.compared = options.find(text => text.startsWith('Policy draft'));
  await sides.last().selectOption({ label: found.compared });
  await panel.locator('.cl-differences').getByText('Made again').waitFor();
  await page.keyboard.press('Escape');
  await panel.locator('.cl-compare').waitFor({ state: 'detached' });

  // Tried and enabled, it runs.
  await bar.getByRole('button', { name: 'Dry run 1 step' }).click();
  await bar.getByText('begins at the next step border').waitFor();
  found.ran = [await run(2)];
  await bar.locator('tr.cl-tried').waitFor();
  found.tried = await look(({ editing: { editor } }) => editor.open.dry_run.measured);
  await bar.getByRole('button', { name: 'Enable' }).click();
  await bar.getByText('In force from the next step border on.').waitFor();
  found.ran.push(await run(2));
  await bar.getByText('No changes: the draft is what is in force.').waitFor();
  found.replayed = await look(async ({ model }, storage) => {
    const { source, steps } = model.status.session;
    await model.choose(source, steps.at(-1).index);
    await model.selectKey(storage);
    return model.selected.replays.length;
  }, other);

  const moveTo = async x => {
    const handle = await page.locator('.lm-DockPanel-handle:visible').boundingBox();
    await page.mouse.move(handle.x + handle.width / 2, 500);
    await page.mouse.down();
    await page.mouse.move(x, 500, { steps: 5 });
    await page.mouse.up();
  };
  const pages = panel.locator('.cl-pages');
  await moveTo(880);
  await page.waitForFunction(() => document.querySelector('.cl-panel').clientWidth < 720);
  await pages.getByRole('button', { name: 'Timeline' }).click();
  await settled(page);
  found.cut.half = await cutOff(panel);
  await picture('half');

  // Narrow, in the dark: one part at a time.
  await moveTo(1200);
  await page.waitForFunction(() => document.querySelector('.cl-panel').clientWidth < 400);
  await theme(page, 'Dark');
  found.narrow = {};
  for (const [name, part] of [
    ['Selection', '.cl-cards'],
    ['Tables', '.cl-rows'],
    ['Timeline', '.cl-timeline']
  ]) {
    await pages.getByRole('button', { name }).click();
    await settled(page);
    const { width, height } = await panel.locator(part).boundingBox();
    found.narrow[name] = [width, height];
    await picture(`narrow-${name.toLowerCase()}`);
  }
  found.cut.narrow = await cutOff(panel);

  // A draft that nobody saved outlives its kernel and its page: what JupyterLab keeps of it is offered.
  await theme(page, 'Light');
  await look(({ editing: { editor } }, storage) => editor.decide([storage], 'keep'), other);
  await bar.getByText(/change.? by you/).waitFor();
  await page.waitForFunction(
    async () => {
      const { workspaces } = window.jupyterapp.serviceManager;
      const { data } = await workspaces.fetch('default');
      const kept = data['chameleon-lab-draft:replays.ipynb|session'];
      return JSON.stringify(kept ?? '').includes('"keep"');
    },
    undefined,
    { polling: 250 }
  );
  await layoutSaved(page);
  await page.evaluate(async () => {
    const notebook = [...window.jupyterapp.shell.widgets('main')].find(
      w => w.title.label === 'replays.ipynb'
    );
    await notebook.context.save();
    await notebook.sessionContext.restartKernel();
  });
  const address = new URL(page.url());
  address.searchParams.delete('reset');
  await page.goto(address.href);
  await page.waitForFunction(() => window.jupyterapp?.restored);
  await panel.waitFor();
  await kernelIdle(page);
  await train();
  const offer = panel.locator('.cl-offer');
  await offer.getByRole('button', { name: /^Put \d+ changes? back/ }).click();
  await bar.getByText(/back\./).waitFor();
  found.back = await look(({ editing: { editor } }) => editor.open.edits.map(entry => entry.edit));
  found.other = other;
  return found;
});

/** The bars of the panel that are wider than their room, and the legend of the block map where one has to scroll to it. */
function cutOff(panel) {
  return panel.evaluate(node => {
    const bars =
      '.cl-header, .cl-figures, .cl-pages, .cl-toolbar, .cl-timeline, .cl-tabs, .cl-bar-bottom';
    const cut = [...node.querySelectorAll(bars)]
      .filter(part => part.scrollWidth > part.clientWidth)
      .map(part => part.className);
    const [key, timeline] = ['.cl-key', '.cl-timeline'].map(part =>
      node.querySelector(part).getBoundingClientRect()
    );
    return key.bottom > timeline.bottom ? [...cut, 'cl-key'] : cut;
  });
}
