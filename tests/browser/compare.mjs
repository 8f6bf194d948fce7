// Draws boxes in the block map, points at ops and modules, steps through peaks, and compares steps and policies.
import { besidePanel, longestBar, redrawn, settled, stepChosen, theme } from './lab.mjs';

await besidePanel('compare', async ({ page, picture, panel, run, found }) => {
  found.ran = [await run(0), await run(1), await run(2)];
  await panel.getByText(/Live · 6 steps/).waitFor();
  await stepChosen(page, 5);
  await settled(page);
  const overlay = panel.locator('.cl-main .cl-overlay');
  const inspector = panel.locator('.cl-main .cl-inspector');
  const canvas = await overlay.boundingBox();
  const track = name =>
    panel.locator('.cl-main .cl-track', { hasText: name }).first().boundingBox();

  // A box by the pointer over all of the block map holds every storage that is listed.
  const all = /([\d,]+) storages/.exec(
    await panel.locator('.cl-main .cl-tabs [role="status"]').textContent()
  )[1];
  const drag = async (x0, y0, x1, y1) => {
    await page.mouse.move(x0, y0);
    await page.mouse.down();
    await page.mouse.move(x1, y1, { steps: 4 });
    await page.mouse.up();
  };
  const listed = inspector.getByText('Storages, largest first');
  // From below to above the map: the smallest lie on top, many in a pixel. Its legend may reach beyond what is seen.
  const blocks = await track('Block map');
  const tables = await panel.locator('.cl-main .cl-tabs').boundingBox();
  const bottom = Math.min(blocks.y + blocks.height, tables.y - 8);
  await page.keyboard.down('Alt');
  await drag(canvas.x + 1, bottom - 1, canvas.x + canvas.width - 1, blocks.y - 5);
  await page.keyboard.up('Alt');
  await listed.waitFor();
  found.boxed = [all, await inspector.locator('.cl-facts dd').first().textContent()];

  // A box by the keys: smaller, moved, listed; a storage of it is selected.
  await overlay.focus();
  await page.keyboard.press('b');
  found.pressed = await panel.getByRole('button', { name: 'Box' }).getAttribute('aria-pressed');
  for (const key of ['Shift+ArrowLeft', 'Shift+ArrowDown', 'ArrowLeft', 'ArrowDown']) {
    await page.keyboard.press(key);
  }
  await picture('drawing');
  await page.keyboard.press('Enter');
  await page.waitForFunction(before => {
    const inside = document.querySelector('.cl-main .cl-inspector .cl-facts dd');
    return inside && inside.textContent !== before;
  }, found.boxed[1]);
  found.keyed = await inspector.locator('.cl-facts dd').first().textContent();
  await inspector.locator('.cl-list .cl-link').first().click();
  await inspector.locator('.cl-title').waitFor();
  await picture('box');
  await overlay.focus();
  await page.keyboard.press('Escape');
  await inspector.getByText('Click a block').waitFor();

  // An op, with what it touches and its stack; a layer's own figures; peak after peak.
  const ops = await track('Ops');
  const stack = inspector.getByText('Python stack', { exact: true });
  for (let x = canvas.x + 6; !(await stack.isVisible()) && x < canvas.x + canvas.width; x += 12) {
    await page.mouse.click(x, ops.y + ops.height - 4); // where an op lies depends on how long it took
    await settled(page);
  }
  await stack.waitFor();
  found.op = await inspector.locator('h2').first().textContent();
  await page.keyboard.press('Escape');
  const layer = await longestBar(page, 'layers');
  await page.mouse.move(layer.x, layer.y);
  await panel.locator('.cl-main .cl-tip').getByText('sums it up').waitFor();
  found.layer = await panel.locator('.cl-main .cl-tip b').textContent();
  await page.mouse.click(layer.x, layer.y);
  await inspector.getByText('Modules by op time').waitFor();
  await page.keyboard.press('Escape');
  await page.keyboard.press('j');
  await panel.getByText('Peak 1', { exact: true }).waitFor();
  await panel.getByText('By category').waitFor();
  await picture('peak');
  await page.keyboard.press('f');

  // Compare the step with the policy in force.
  await panel.getByRole('button', { name: 'Compare…' }).click();
  const compare = panel.locator('.cl-compare');
  const differences = compare.locator('.cl-differences');
  const figure = async name =>
    (
      await differences.locator('tr', { hasText: name }).first().locator('td').allTextContents()
    ).map(text => text.trim());
  const a = compare.getByRole('combobox', { name: /^A/ });
  const b = compare.getByRole('combobox', { name: /^B/ });
  const choose = async (select, text) => {
    const value = await select.locator('option', { hasText: text }).first().getAttribute('value');
    await select.selectOption(value);
  };
  await differences.getByText('A, predicted').waitFor();
  await settled(page);
  found.kinds = await differences.locator('thead').innerText();
  found.peaks = await figure('Peak');
  found.sameOps = await compare.locator('.cl-toolbar [role="status"]').textContent();
  found.modules = await compare.locator('.cl-tables tbody tr').count();
  found.lanes = await lanes(page);
  await picture('measured');

  // Zoom, the other axis, and back.
  const drawn = await compare.locator('canvas').evaluate(canvas => canvas.toDataURL());
  await compare.locator('canvas').focus();
  await page.keyboard.press('+');
  await page.keyboard.press('+');
  const zoomed = await redrawn(page, '.cl-compare canvas', drawn);
  await compare.getByRole('button', { name: 'Op', exact: true }).click();
  const onOps = await redrawn(page, '.cl-compare canvas', drawn, zoomed);
  found.redrawn = new Set([drawn, zoomed, onOps]).size;

  // A policy from a file beside the one in force: the decisions that differ.
  const open = async path => {
    await compare.getByRole('button', { name: 'Open file…' }).click();
    const dialog = page.locator('.jp-Dialog');
    await dialog.locator('input').fill(path);
    await dialog.locator('.jp-mod-accept').click();
    await dialog.waitFor({ state: 'detached' });
  };
  await open('kept.json');
  await compare.getByRole('tab', { name: /Decisions that differ [1-9]/ }).waitFor();
  await differences.getByText('B, predicted').waitFor();
  await settled(page);
  found.decisions = await compare.getByRole('tab', { name: /Decisions/ }).textContent();
  found.rows = await compare.locator('.cl-tables tbody tr').count();
  found.told = await compare.locator('.cl-tabs [role="status"]').textContent();
  await picture('policies');

  // A trace file beside a live step; a file that is not there is said.
  await open('before.parquet');
  await choose(a, /^step 5/);
  await differences.getByText('A, measured').waitFor();
  await differences.getByText('B, measured').waitFor();
  found.chosen = await b.locator('option:checked').textContent();
  await open('nowhere.parquet');
  await panel.locator('.cl-banner[role=alert]').getByText('nowhere.parquet').waitFor();
  await panel.locator('.cl-banner[role=alert]').getByRole('button', { name: '×' }).click();
  await theme(page, 'Dark');
  await picture('dark');
  await compare.getByRole('button', { name: 'Close' }).click();
  await overlay.waitFor();
  found.closed = await compare.isHidden();
});

/** Share of each lane of the comparison that is not its most common color. */
function lanes(page) {
  return page.evaluate(() => {
    const canvas = document.querySelector('.cl-compare canvas');
    const context = canvas.getContext('2d');
    const ratio = canvas.width / canvas.clientWidth;
    return [...document.querySelectorAll('.cl-compare .cl-track')].map(name => {
      const [top, height] = [name.offsetTop, name.offsetHeight].map(px => Math.round(px * ratio));
      const { data } = context.getImageData(0, top, canvas.width, height);
      const counts = new Map();
      for (let i = 0; i < data.length; i += 4) {
        const key = (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];
        counts.set(key, (counts.get(key) ?? 0) + 1);
      }
      return 1 - Math.max(...counts.values()) / (data.length / 4);
    });
  });
}
