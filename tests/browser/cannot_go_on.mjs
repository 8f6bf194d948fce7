// Checks that wait for what never comes, each in a way that has no limit of its own; the fourth argument names it.
import { inLab } from './lab.mjs';

const LIMIT_MS = 5000;
const kind = process.argv[5];

await inLab(
  async page => {
    if (kind === 'a promise of the page') {
      await page.evaluate(() => new Promise(() => undefined));
    } else if (kind === 'an element') {
      await page.locator('.never').waitFor();
    } else if (kind === 'a busy page') {
      await page.evaluate(() => {
        for (;;) {
          document.title = 'busy';
        }
      });
    } else if (kind === 'a loop') {
      while (!(await page.locator('.never').count())) {
        await page.waitForTimeout(50);
      }
    } else if (kind === 'a promise of the check') {
      await new Promise(() => undefined);
    } else if (kind === 'a busy check') {
      for (;;) {
        process.title = 'busy';
      }
    }
    return {};
  },
  { limit_ms: LIMIT_MS }
);
