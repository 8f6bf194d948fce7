// What every browser check shares: JupyterLab in Chromium, and one JSON line as the answer.
//
// Run as `node CHECK.mjs URL SCREENSHOT PROFILE`. Exit status 3 says that Chromium itself died, which
// a loaded machine sees now and then: worth another try. Any other failure is a finding.
import { chromium } from 'playwright-core';

const BROWSER_DIED = 3;
const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync'
];

/** Resolves when the notebook in front has an idle kernel. Its toolbar, where narrow, does not show that. */
export function kernelIdle(page) {
  const idle = () =>
    [...window.jupyterapp.shell.widgets('main')].some(widget => {
      const kernel = widget.isVisible && widget.content?.widgets && widget.sessionContext;
      return kernel?.session?.kernel?.status === 'idle';
    });
  return page.waitForFunction(idle, undefined, { timeout: 90000 });
}

/** A function that runs a cell of a notebook in its kernel; its answer, `ok` or `error`, comes when it has ended. */
export function cellRunner(page, notebook) {
  return cell =>
    page.evaluate(
      async ([notebook, cell]) => {
        const panel = [...window.jupyterapp.shell.widgets('main')].find(
          w => w.title.label === `${notebook}.ipynb`
        );
        const code = panel.content.widgets[cell].model.sharedModel.source;
        await panel.sessionContext.ready;
        const kernel = panel.sessionContext.session.kernel;
        const reply = await kernel.requestExecute({ code }).done;
        return reply.content.status;
      },
      [notebook, cell]
    );
}

/** Run a command of JupyterLab's. */
export function execute(page, id, args) {
  return page.evaluate(
    ([id, args]) => window.jupyterapp.commands.execute(id, args),
    [id, args ?? {}]
  );
}

/** Room for the panel: no side bar, and the notebook narrow. */
export async function widen(page) {
  await execute(page, 'application:toggle-left-area');
  const handle = await page.locator('.lm-DockPanel-handle:visible').boundingBox();
  await page.mouse.move(handle.x + handle.width / 2, 500);
  await page.mouse.down();
  await page.mouse.move(330, 500, { steps: 5 });
  await page.mouse.up();
}

/** How many different colours each track has, and how many pixels are not its ground. */
export function coloursByTrack(page) {
  return page.evaluate(() => {
    const canvas = document.querySelector('.cl-tracks');
    const context = canvas.getContext('2d');
    const ratio = canvas.width / canvas.clientWidth;
    const tracks = {};
    for (const name of document.querySelectorAll('.cl-track')) {
      const top = Math.round(name.offsetTop * ratio);
      const height = Math.round(name.offsetHeight * ratio);
      const { data } = context.getImageData(0, top, canvas.width, height);
      const counts = new Map();
      for (let i = 0; i < data.length; i += 4) {
        const key =
          (data[i] << 16) | (data[i + 1] << 8) | data[i + 2] | (data[i + 3] ? 0 : 1 << 24);
        counts.set(key, (counts.get(key) ?? 0) + 1);
      }
      const drawn = data.length / 4 - Math.max(...counts.values());
      const key = name.querySelector('.cl-name > span').textContent;
      tracks[key] = { colours: counts.size, drawn, pixels: data.length / 4 };
    }
    return tracks;
  });
}

/**
 * Open JupyterLab and hand `check` the page, and a function that keeps a named screenshot; print what it returns,
 * with the page's errors.
 */
export async function inLab(check) {
  const [url, screenshot, profile] = process.argv.slice(2);
  const errors = [];
  let browser;
  let died = false;
  try {
    browser = await chromium.launchPersistentContext(profile, {
      executablePath: '/usr/bin/chromium',
      args: FLAGS,
      viewport: { width: 1600, height: 1000 },
      permissions: ['clipboard-read', 'clipboard-write']
    });
    const page = await browser.newPage();
    page.on('console', message => {
      if (message.type() === 'error') {
        errors.push(`${message.text()} (${message.location().url})`);
      }
    });
    page.on('pageerror', error => errors.push(String(error.stack)));
    page.on('crash', () => {
      died = true;
    });
    browser.on('close', () => {
      died = true;
    });
    await page.goto(url);
    await page.waitForSelector('#jp-main-dock-panel', { timeout: 90000 });
    await page.waitForFunction(() => window.jupyterapp?.restored);
    const picture = name => page.screenshot({ path: screenshot.replace(/\.png$/, `-${name}.png`) });
    let found;
    try {
      found = await check(page, picture);
    } finally {
      await page.screenshot({ path: screenshot });
    }
    console.log(JSON.stringify({ ...found, errors }));
  } catch (error) {
    console.error(error, errors);
    process.exit(died || !browser ? BROWSER_DIED : 1);
  }
  await browser.close();
}
