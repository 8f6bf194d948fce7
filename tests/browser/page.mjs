// Opens a page that holds the panel's timeline, asks its data what Python asked the kernel's, and zooms, searches and
// selects as a person does.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { drawn, inLab, redrawn } from './lab.mjs';

const requests = JSON.parse(
  readFileSync(fileURLToPath(process.argv[2]).replace(/\.html$/, '.json'), 'utf8')
);

const arrive = page => page.waitForFunction(() => window.chameleonPage?.model.scene);

await inLab(
  async (page, picture) => {
    const found = {};
    found.answers = await page.evaluate(
      requests =>
        requests.map(({ method, params }) => {
          try {
            const { result, buffers } = window.chameleonLine.answer(method, params);
            const coded = (buffers ?? []).map(bytes =>
              btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(''))
            );
            return { result, buffers: coded };
          } catch (error) {
            return { error: error.code ?? String(error) };
          }
        }),
      requests
    );
    /** The model's state, once no answer is awaited and what it says is drawn. */
    const settled = async () => {
      await page.waitForFunction(() => {
        const { model } = window.chameleonPage;
        return !model.waiting && !model.views.wanted(model.shown, model.length);
      });
      await drawn(page);
    };
    const shown = () => page.evaluate(() => window.chameleonPage.model.shown);
    await settled();
    found.title = await page.title();
    found.figures = await page.locator('[data-figure] dd').allTextContents();
    found.length = (await shown()).end;

    const canvas = '.cl-tracks';
    const whole = await page.$eval(canvas, element => element.toDataURL());
    await page.locator('.cl-overlay').focus();
    await page.keyboard.press('w');
    await page.keyboard.press('w');
    await redrawn(page, canvas, whole);
    await settled();
    found.zoomed = await shown();
    await page.getByRole('button', { name: 'Fit', exact: true }).click();
    await settled();
    found.fit = await shown();

    await page.getByRole('searchbox').fill(requests.at(-1).params.query);
    await page.waitForFunction(
      query => window.chameleonPage.model.found?.query === query,
      requests.at(-1).params.query
    );
    await settled();
    found.matches = await page.evaluate(() => window.chameleonPage.model.found.storage_count);
    await page.locator('.cl-tables tbody tr').first().click();
    await page.waitForFunction(() => window.chameleonPage.model.selected);
    await settled();
    found.selected = await page.evaluate(() => window.chameleonPage.model.selected.key);
    found.inspector = await page.locator('.cl-about').innerText();
    await picture('selected');

    await page.getByRole('searchbox').fill('');
    await page.getByRole('button', { name: 'Op', exact: true }).click();
    await page.waitForFunction(() => window.chameleonPage.model.axis === 'op');
    await settled();
    found.ops = (await shown()).end;
    await page.getByRole('button', { name: 'Keys' }).click();
    found.keys = await page.getByRole('dialog').innerText();
    await page.keyboard.press('Escape');
    await page.getByRole('searchbox').fill('> 4MiB');
    await page.getByText('write it like').waitFor();
    found.refused = await page.locator('.cl-banner[role=alert]').innerText();
    return found;
  },
  { arrive }
);
