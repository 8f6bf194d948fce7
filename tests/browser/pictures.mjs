// Pictures of the panel at three sizes, light and dark, of a trace that is the same on every machine.
import { cellRunner, inLab, insight, openPanel, theme } from './lab.mjs';
import { resize, SIZES, sameFont, still, unreadable } from './looks.mjs';

/** What the pictures leave out: figures of the planner, which may get better. */
const PLANNED = ['.cl-header', '.cl-bar-bottom', '.cl-cards', '.cl-curve', '.cl-tabs'];

await inLab(async (page, picture) => {
  await page.setViewportSize({ width: 1700, height: 1040 });
  const found = {};
  const look = insight(page);
  const panel = await openPanel(page);
  await sameFont(page);
  await cellRunner(page, 'file')(0);
  await panel.getByText('No session yet').waitFor();
  await look(({ model }) => model.openFile('blocks.parquet'));
  await panel.getByRole('tab', { name: /^Decisions/ }).click();
  await panel.locator('.cl-filter').fill('swap');
  await panel.locator('.cl-rows [data-storage]').first().waitFor();
  await panel.getByRole('button', { name: 'Work out the curve' }).click();
  await panel.getByText(/Without edits\./).waitFor();
  await look(async ({ model }) => {
    await model.selectKey('model.blocks.2.mlp.gelu/aten::gelu.0#0');
  });
  await panel.locator('.cl-choices').waitFor();
  await look(({ timeline }) => timeline.recolor()); // in the font of the tests

  const mask = PLANNED.map(part => panel.locator(part));
  const shoot = async (name, compared = true) => {
    await still(page);
    found[name] = await unreadable(page);
    await picture(`whole-${name}`, panel);
    if (compared) {
      await picture(name, panel, { mask, maskColor: '#808080' });
    }
  };
  const tab = name => panel.getByRole('tab', { name });
  const part = name => panel.locator('.cl-pages').getByRole('button', { name });

  await resize(page, SIZES[1600]);
  await shoot('1600-decisions', false);
  await tab('Storages').click();
  await shoot('1600-light');
  await resize(page, SIZES[1280]);
  await shoot('1280-light');
  await tab(/^Decisions/).click();
  await shoot('1280-decisions', false);
  await tab('Why is the peak here?').click();
  await panel.getByText('By category').waitFor();
  await shoot('1280-peak-light');
  await resize(page, SIZES[400]);
  await part('Timeline').click();
  await shoot('400-timeline-light');
  await part('Selection').click();
  await shoot('400-selection-light');
  await part('Tables').click();
  await shoot('400-peak', false);
  await tab(/^Decisions/).click();
  await shoot('400-decisions', false);
  await tab('Storages').click();
  await shoot('400-tables-light');

  await theme(page, 'Dark');
  await shoot('400-tables-dark');
  await part('Timeline').click();
  await shoot('400-timeline-dark');
  await resize(page, SIZES[1280]);
  await shoot('1280-dark');
  await resize(page, SIZES[1600]);
  await shoot('1600-dark');

  // The pictures of the documentation and of the first tutorial.
  await theme(page, 'Light');
  await resize(page, SIZES.docs);
  const show = async name => {
    await still(page);
    await picture(`see-${name}`, panel);
  };
  await look(({ model }) => model.select(null));
  await tab('Storages').click();
  await show('step');
  await panel.locator('.cl-overlay').focus();
  await page.keyboard.press(']');
  await panel.getByText(/Stall 1 of/).waitFor();
  await panel.locator('.cl-choices').waitFor();
  await show('stall');
  await page.keyboard.press('f');
  await look(({ model }) => model.selectKey('model.blocks.2.mlp.gelu/aten::gelu.0#0'));
  await look(({ model }) => model.ask(undefined, true));
  await tab('Flame').click();
  await panel.locator('.cl-flame-node').first().waitFor();
  await show('flame');
  await tab(/^Decisions/).click();
  await panel.locator('.cl-card[data-action="swap"]').getByRole('radio').check();
  await page.waitForFunction(() => {
    const standing = document.querySelector('.cl-standing')?.textContent ?? '';
    return standing.includes('1 change by you') && !/Estimate|Planning/.test(standing);
  });
  await page.waitForFunction(
    () => !document.querySelector('.cl-cards').innerText.includes('planning…')
  );
  await show('decide');
  await panel.getByRole('button', { name: 'Draft', exact: true }).click();
  await page.waitForFunction(() =>
    document.querySelector('.cl-overlay').getAttribute('aria-label').includes('predicted')
  );
  await show('draft');
  return { looks: found };
});
