// Opens a notebook, finds the command in the palette, opens the panel, and reads what it says.
import { HANGS_AFTER_MS, inLab } from './lab.mjs';

const COMMAND = 'chameleon-lab:open';

await inLab(async page => {
  const execute = id => page.evaluate(id => window.jupyterapp.commands.execute(id), id);

  await page.waitForSelector(
    '.jp-NotebookPanel .jp-Notebook-ExecutionIndicator[data-status="idle"]'
  );
  const registered = await page.evaluate(id => window.jupyterapp.commands.hasCommand(id), COMMAND);
  const label = await labelInPalette(page, execute);

  // The launcher and the notebook's toolbar open it too. Closed before the kernel has answered, it leaves no trace.
  const panel = page.locator('.cl-panel');
  const opened = [];
  const close = async () => {
    await panel.waitFor();
    await page.evaluate(() => {
      for (const widget of window.jupyterapp.shell.widgets('main')) {
        if (widget.id === 'chameleon-lab-panel' || widget.title.label === 'Launcher') {
          widget.close();
        }
      }
    });
    await panel.waitFor({ state: 'detached' });
  };
  await page.locator('.jp-NotebookPanel-toolbar [title="Open Chameleon Lab"]').click();
  await close();
  opened.push('toolbar');
  await execute('launcher:create');
  await page.locator('.jp-LauncherCard', { hasText: 'Chameleon Lab' }).click();
  await close();
  opened.push('launcher');

  await execute(COMMAND);
  await panel.getByText('This kernel has not loaded').waitFor();
  const title = await panel.locator('.cl-front', { hasText: '· idle' }).textContent();
  await panel.getByRole('button', { name: 'Copy' }).click();
  const copied = await page.evaluate(() => navigator.clipboard.readText());

  // A second call shows the panel that is there.
  await execute(COMMAND);
  return { registered, label, opened, title, copied, panels: await panel.count() };
});

/** The command's label in the palette, which closes when a loading notebook takes the focus. */
async function labelInPalette(page, execute) {
  const entry = page.locator(`.lm-CommandPalette-item[data-command="${COMMAND}"]`);
  const until = Date.now() + HANGS_AFTER_MS;
  while (Date.now() < until) {
    try {
      await execute('apputils:activate-command-palette');
      await page.locator('.lm-CommandPalette-input').fill('Chameleon', { timeout: 3000 });
      const label = entry.locator('.lm-CommandPalette-itemLabel');
      const text = await label.textContent({ timeout: 3000 });
      await page.keyboard.press('Escape');
      return text;
    } catch (error) {
      if (error.name !== 'TimeoutError') {
        throw error;
      }
    }
  }
  return null;
}
