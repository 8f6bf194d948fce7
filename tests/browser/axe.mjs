// What axe-core finds in the panel: each of its tables and pages, at three sizes, in both themes.
import { readFileSync } from 'node:fs';

import { cellRunner, inLab, insight, openPanel, theme } from './lab.mjs';
import { resize, SIZES, still } from './looks.mjs';

const AXE = readFileSync(
  new URL('../../node_modules/axe-core/axe.min.js', import.meta.url),
  'utf8'
);

await inLab(async (page, picture) => {
  await page.setViewportSize({ width: 1700, height: 1040 });
  const found = { violations: [], checked: 0, seen: [] };
  const look = insight(page);
  const panel = await openPanel(page);
  await page.evaluate(AXE);
  const check = async where => {
    await still(page);
    const { violations, passes } = await page.evaluate(() => window.axe.run('.cl-panel'));
    found.checked += passes.length;
    found.seen.push(where);
    for (const { id, impact, nodes } of violations) {
      const what = nodes.slice(0, 3).map(node => node.html.slice(0, 160));
      found.violations.push(`${where}: ${id} (${impact}): ${what.join(' || ')}`);
    }
  };
  const tab = name => panel.getByRole('tab', { name }).click();
  await check('no extension');
  await cellRunner(page, 'axe')(0);
  await panel.getByText('No session yet').waitFor();
  await look(({ model }) => model.openFile('blocks.parquet'));
  await tab(/^Decisions/);
  await panel.locator('.cl-rows [data-storage]').first().click();
  await panel.locator('.cl-choices').waitFor();
  await check('decisions');
  await panel.locator('.cl-overlay').focus();
  await panel.getByRole('searchbox', { name: 'Search' }).fill('gelu');
  await page.keyboard.press('Enter');
  await panel.getByText('1 of 18').waitFor();
  await page.keyboard.press('Enter');
  await panel.getByText('2 of 18').waitFor();
  await page.keyboard.press('Shift+Enter');
  await panel.getByText('1 of 18').waitFor();
  await panel.locator('.cl-inspector .cl-title', { hasText: 'aten::gelu' }).waitFor(); // both come after the number
  await panel.locator('.cl-inspector .cl-title', { hasText: 'output of linear' }).waitFor(); // what it reads, as large
  found.foundOp = await look(({ model }) => [model.op.name, model.selected.key]);
  await tab('Ops');
  await panel.locator('.cl-table-body tbody tr').nth(2).click();
  await panel.getByText('3 of 18').waitFor();
  await page.waitForFunction(
    () =>
      document.querySelector('.cl-table-body tr:nth-child(3)').getAttribute('aria-selected') ===
      'true'
  );
  await picture('found');
  await check('ops');
  await panel.getByRole('button', { name: 'Next op found' }).click();
  await panel.getByText('4 of 18').waitFor();
  await panel.getByRole('searchbox', { name: 'Search' }).fill('');
  await panel.getByText('of 18').waitFor({ state: 'hidden' });

  // One tab stop a table: the arrow keys walk rows and head, and the Tab key leaves.
  await tab('Storages');
  const stops = () =>
    page.evaluate(
      () =>
        [...document.querySelectorAll('.cl-table-body *')].filter(
          node => node.tabIndex >= 0 && node.checkVisibility()
        ).length
    );
  found.stops = await stops();
  const focused = () =>
    page.evaluate(() => {
      const { activeElement: node } = document;
      const row = node.closest('tbody tr');
      return row ? [...row.parentElement.children].indexOf(row) : node.textContent;
    });
  await panel.locator('.cl-table-body tbody tr').first().focus();
  const walked = [];
  for (const key of [
    'ArrowDown',
    'ArrowDown',
    'End',
    'Home',
    'ArrowUp',
    'ArrowRight',
    'ArrowDown'
  ]) {
    await page.keyboard.press(key);
    walked.push(await focused());
  }
  found.walked = walked;
  await page.keyboard.press('ArrowDown');
  found.stopsAfter = await stops();
  await page.keyboard.press('Tab');
  found.left = await page.evaluate(() => !document.activeElement.closest('.cl-table-body'));
  await check('storages');
  await tab('Why is the peak here?');
  await panel.getByText('By category').waitFor();
  await check('peak');
  await tab('Changes');
  await check('changes');
  await tab('Flame');
  await panel.locator('.cl-flame-node').first().waitFor();
  await check('flame');
  await tab('Growth');
  await panel.locator('.cl-none, .cl-table-body tbody tr').first().waitFor();
  await check('growth');
  for (const size of ['1280', '400']) {
    await resize(page, SIZES[size]);
    await tab(/^Decisions/);
    await check(`decisions at ${size}`);
  }
  await panel.locator('.cl-pages').getByRole('button', { name: 'Selection' }).click();
  await check('selection at 400');
  await theme(page, 'Dark');
  await check('selection at 400, dark');
  await resize(page, SIZES[1600]);
  await check('decisions, dark');
  await tab('Why is the peak here?');
  await check('peak, dark');
  await tab('Flame');
  await check('flame, dark');
  await panel.getByRole('button', { name: 'Compare…' }).click();
  await panel.locator('.cl-compare').waitFor();
  await check('compare, dark');
  await theme(page, 'Light');
  await check('compare');

  // Files that cannot be read are named as what they are, and what was said goes with the next good one.
  await page.keyboard.press('Escape');
  const said = async path => {
    await look(({ model }, path) => model.openFile(path), path);
    return panel.locator('.cl-banner[role=alert]').innerText();
  };
  found.missing = await said('none.parquet');
  found.cut = await said('cut.parquet');
  found.other = await said('axe.ipynb');
  await picture('banner');
  await check('banner');
  // Of a cut one, what is whole is drawn, and said as long as it is.
  await look(({ model }) => model.openFile('part.parquet'));
  await panel.locator('.cl-banner[role=alert]').waitFor({ state: 'hidden' });
  found.part = await panel.locator('.cl-lost').innerText();
  found.partSteps = await look(({ model }) => model.entries.map(entry => entry.index));
  await picture('cut');
  await check('cut file');
  await look(({ model }) => model.openFile('blocks.parquet'));
  await panel.locator('.cl-lost').waitFor({ state: 'hidden' });
  return found;
});
