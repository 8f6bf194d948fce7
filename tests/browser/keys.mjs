// The panel's keys: what they do, where they hold, and that the settings can give others.
import { besidePanel, execute } from './lab.mjs';

const SHORTCUTS = '@jupyterlab/shortcuts-extension:shortcuts';

await besidePanel('keys', async ({ page, picture, panel, run, look, found }) => {
  const press = key => page.keyboard.press(key);
  await run(0);
  await run(1);
  await panel.getByText('Live · 4 steps').waitFor();
  const overlay = panel.locator('.cl-left .cl-overlay');
  const fit = panel.locator('.cl-left').getByRole('button', { name: 'Fit' });
  const shown = () => look(({ model }) => model.shown.end - model.shown.start);
  const drawn = () => look(({ model }) => model.scene !== null);
  await page.waitForFunction(() => document.querySelector('.cl-toolbar select')?.value);
  found.drawn = await drawn();

  // In the drawing they zoom; in a text field they are text.
  await overlay.focus();
  const whole = await shown();
  await press('w');
  found.closer = (await shown()) < whole;
  await press('/');
  await page.keyboard.type('wfp');
  found.typed = await panel.getByRole('searchbox', { name: /^Search/ }).inputValue();
  found.still = (await shown()) < whole;
  await press('Escape'); // leaves the field, for the drawing
  await press('f');
  found.fitted = (await shown()) === whole;

  // The list of them, by its key; a command that would do nothing is off.
  await press('Shift+?');
  const list = page.locator('.jp-Dialog .cl-keys');
  await list.waitFor();
  found.listed = await list
    .locator('dd', { hasText: 'Show all' })
    .evaluate(node => node.previousSibling.textContent);
  found.groups = await list.locator('h3').allTextContents();
  await picture('list');
  await page.locator('.jp-Dialog .jp-mod-accept').last().click();
  await list.waitFor({ state: 'detached' });
  found.focused = await page.evaluate(() => document.activeElement.className);
  const enabled = id =>
    page.evaluate(id => window.jupyterapp.commands.isEnabled(`chameleon-lab:${id}`), id);
  found.enabled = [await enabled('fit'), await enabled('close-comparison'), await enabled('keep')];

  // Comparing, the same keys act on what is compared, and Escape goes back.
  await panel.getByRole('button', { name: 'Compare…' }).click();
  await panel.locator('.cl-compare canvas').focus();
  found.comparing = [await enabled('close-comparison'), await enabled('peak')];
  await press('Escape');
  await panel.locator('.cl-compare').waitFor({ state: 'detached' });

  // The settings take one key away and give another; the panel says so, after a reload too.
  const rebind = raw =>
    page.evaluate(
      ([id, raw]) => window.jupyterapp.serviceManager.settings.save(id, raw),
      [SHORTCUTS, raw]
    );
  const selector = '.cl-panel .cl-overlay:focus';
  const command = 'chameleon-lab:fit';
  await rebind(
    JSON.stringify({
      shortcuts: [
        { command, keys: ['F'], selector, disabled: true },
        { command, keys: ['Q'], selector }
      ]
    })
  );
  await execute(page, 'docmanager:save');
  await page.reload();
  await page.waitForFunction(() => window.jupyterapp?.restored);
  await panel.getByText('Live · 4 steps').waitFor();
  await page.waitForFunction(() => document.querySelector('.cl-toolbar select')?.value);
  await page.waitForFunction(() =>
    [...document.querySelectorAll('.cl-left button')].some(b => b.title === 'Show all (Q)')
  );
  found.title = await fit.getAttribute('title');
  await overlay.focus();
  await press('w');
  const narrow = await shown();
  await press('f');
  found.gone = (await shown()) === narrow;
  await press('q');
  found.given = (await shown()) > narrow;
  await rebind('{}');
});
