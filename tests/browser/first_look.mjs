// The panel opens beside a notebook that trains, draws its steps, and an edit reaches the kernel.
import { besidePanel, colorsByTrack, settled } from './lab.mjs';

await besidePanel('first-look', async ({ page, panel, run, found }) => {
  const bar = panel.locator('.cl-bar-bottom');
  found.trained = [await run(0), await run(1)];
  await panel.getByText(/Live · 4 steps/).waitFor();
  await settled(page);
  const tracks = await colorsByTrack(page);
  found.drawn = Object.keys(tracks).filter(name => tracks[name].drawn > 0);

  await panel.getByRole('tab', { name: /Decisions \d+/ }).click();
  await panel.locator('.cl-rows .cl-cells[data-storage]').first().click();
  await panel.locator('.cl-cards .cl-card[data-action="never_touch"]').getByRole('radio').click();
  await bar.getByText(/1 change by you/).waitFor();
  await bar.getByRole('button', { name: 'Enable' }).click();
  await bar.getByText('In force from the next step border on.').waitFor();
  found.reached = await run(2);
});
