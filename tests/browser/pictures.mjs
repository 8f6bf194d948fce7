// Pictures of the panel at three sizes, light and dark, of a trace that is the same on every machine.
import { cellRunner, inLab, insight, openPanel, theme } from './lab.mjs';
import { resize, SIZES, sameFont, settled, unreadable } from './looks.mjs';

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
  await look(({ timeline }) => timeline.recolour()); // in the font of the tests

  const mask = PLANNED.map(part => panel.locator(part));
  const shoot = async (name, compared = true) => {
    await settled(page);
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
  return { looks: found };
});
