// Two browser windows on one kernel: each has its panel, and they share one draft.
import { besidePanel, execute, kernelIdle, settled } from './lab.mjs';

await besidePanel('two', async ({ page, panel, run, found }) => {
  found.trained = [await run(0), await run(1)];
  await panel.getByText(/Live · 4 steps/).waitFor();
  await settled(page);

  const other = await page.context().newPage();
  other.setDefaultTimeout(0);
  const [url] = process.argv.slice(2);
  await other.goto(url.replace('/lab/tree/', '/lab/workspaces/other/tree/'));
  await other.waitForFunction(() => window.jupyterapp?.restored);
  await kernelIdle(other);
  await execute(other, 'chameleon-lab:open');
  const second = other.locator('.cl-panel');
  await second.getByText(/Live · 4 steps/).waitFor();

  // An edit in the one is a change in the other, which enables it.
  for (const each of [second, panel]) {
    await each.page().bringToFront();
    await each.getByRole('tab', { name: /Decisions \d+/ }).click();
    await each.locator('.cl-rows .cl-cells[data-storage]').first().waitFor();
  }
  await panel.locator('.cl-rows .cl-cells[data-storage]').first().click();
  await panel.locator('.cl-cards .cl-card[data-action="never_touch"]').getByRole('radio').click();
  await panel
    .locator('.cl-bar-bottom')
    .getByText(/1 change by you/)
    .waitFor();
  await other.bringToFront();
  await second
    .locator('.cl-bar-bottom')
    .getByText(/1 change by you/)
    .waitFor();
  await second.locator('.cl-bar-bottom').getByRole('button', { name: 'Enable' }).click();
  await second.getByText('In force from the next step border on.').waitFor();
  found.reached = await run(2);

  // The one goes, and the other goes on.
  await other.close();
  await page.bringToFront();
  await panel.getByText(/Live · 5 steps/).waitFor();
});
