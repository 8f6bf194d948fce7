// What every browser check shares: JupyterLab in Chromium, and one JSON line as the answer.
//
// Run as `node CHECK.mjs URL SCREENSHOT PROFILE`. Exit status 3 says that Chromium itself died, which
// a loaded machine sees now and then: worth another try. Any other failure is a finding.
import { chromium } from 'playwright-core';

const BROWSER_DIED = 3;
/** Anything that is waited for longer than this will never come, however slow or loaded the machine is. */
export const HANGS_AFTER_MS = 1000 * Number(process.env.HANGS_AFTER_S ?? 900);
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
  return page.waitForFunction(idle, undefined);
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

/** Restart the kernel of a notebook; resolves when it has. */
export function restartKernel(page, notebook) {
  return page.evaluate(async notebook => {
    const panel = [...window.jupyterapp.shell.widgets('main')].find(
      w => w.title.label === `${notebook}.ipynb`
    );
    await panel.sessionContext.restartKernel();
  }, notebook);
}

/** Run a command of JupyterLab's. */
export function execute(page, id, args) {
  return page.evaluate(
    ([id, args]) => window.jupyterapp.commands.execute(id, args),
    [id, args ?? {}]
  );
}

/** Turn JupyterLab `Light` or `Dark`, and wait until what it draws is. */
export async function theme(page, name) {
  const light = String(name === 'Light');
  if ((await page.evaluate(() => document.body.dataset.jpThemeLight)) === light) {
    return;
  }
  await execute(page, 'apputils:change-theme', { theme: `JupyterLab ${name}` });
  await page.waitForFunction(light => document.body.dataset.jpThemeLight === light, light);
  await drawn(page); // the panel reads its colors a frame later, and draws at the next one
  await drawn(page);
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

/** Open the panel, wide, beside the notebook in front, whose kernel has not loaded the extension; its element. */
export async function openPanel(page) {
  const panel = page.locator('.cl-panel');
  await kernelIdle(page);
  await execute(page, 'chameleon-lab:open');
  await widen(page);
  await panel.getByText('This kernel has not loaded Chameleon Lab').waitFor();
  return panel;
}

/** A function that looks into the panel's own state: it runs another one in the page, on the panel. */
export function insight(page) {
  return (what, argument) =>
    page.evaluate(
      ([what, argument]) => {
        const widget = [...window.jupyterapp.shell.widgets('main')].find(
          w => w.id === 'chameleon-lab-panel'
        );
        // biome-ignore lint/security/noGlobalEval: the check's own words
        return eval(`(${what})`)(widget.content, argument);
      },
      [String(what), argument ?? null]
    );
}

/** Resolves when the list of steps in the panel stands at one of them. */
export function stepChosen(page, step) {
  return page.waitForFunction(
    step => document.querySelector('.cl-toolbar select').value.includes(`,${step},${step}]`),
    step
  );
}

/** Write a file into the folder of the notebooks: loops in them end when theirs is there. */
export function writeFile(page, path) {
  return page.evaluate(
    path =>
      window.jupyterapp.serviceManager.contents.save(path, {
        type: 'file',
        format: 'text',
        content: 'enough'
      }),
    path
  );
}

/** Resolves when what the panel knows by now is in its drawing: it draws at the next frame. */
export function drawn(page) {
  return page.evaluate(
    () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))
  );
}

/** Resolves when JupyterLab has saved that the panel is open, which it does a while after. */
export function layoutSaved(page) {
  return page.waitForFunction(
    async () => {
      const { workspaces } = window.jupyterapp.serviceManager;
      const { data } = await workspaces.fetch('default');
      return JSON.stringify(data['layout-restorer:data'] ?? {}).includes('chameleon-lab');
    },
    undefined,
    { polling: 250 }
  );
}

/** Resolves when the panel awaits no answer, shows what it shows as finely as it can, and has drawn that. */
export async function settled(page) {
  await page.waitForFunction(() => {
    const widget = [...window.jupyterapp.shell.widgets('main')].find(
      w => w.id === 'chameleon-lab-panel'
    );
    const { model } = widget.content;
    return !model.waiting && !model.views.wanted(model.shown, model.length);
  });
  await drawn(page);
}

/** Resolves when a canvas shows something else than each of these pictures of it; its picture then. */
export async function redrawn(page, selector, ...before) {
  const picture = await page.waitForFunction(
    ([selector, before]) => {
      const now = document.querySelector(selector).toDataURL();
      return before.includes(now) ? null : now;
    },
    [selector, before]
  );
  return picture.jsonValue();
}

/** Where, on the page, the longest bar of a track lies: what is at a fixed place depends on how long ops took. */
export async function longestBar(page, track) {
  const [x, y] = await insight(page)(({ timeline, model }, track) => {
    const { x0, x1 } = model.views.best(model.shown)[track];
    const { start, end } = model.shown;
    const seen = i => Math.min(x1[i], end) - Math.max(x0[i], start);
    const longest = x0.reduce((best, _, i) => (seen(i) > seen(best) ? i : best), 0);
    const middle = (Math.max(x0[longest], start) + Math.min(x1[longest], end)) / 2;
    const { top, height } = timeline._layout[track];
    return [timeline._scale.x(middle), top + height / 2];
  }, track);
  const box = await page.locator('.cl-panel .cl-overlay').boundingBox();
  return { x: box.x + x, y: box.y + y };
}

/** How many different colors each track has, and how many pixels are not its ground. */
export function colorsByTrack(page) {
  return page.evaluate(() => {
    const canvas = document.querySelector('.cl-tracks');
    const context = canvas.getContext('2d');
    const ratio = canvas.width / canvas.clientWidth;
    const tracks = {};
    const hashOf = bytes => bytes.reduce((hash, byte) => (Math.imul(hash, 31) + byte) | 0, 7);
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
      tracks[key] = { colors: counts.size, drawn, pixels: data.length / 4, hash: hashOf(data) };
    }
    return tracks;
  });
}

/** What a check may take from its start on; Python, which can only kill it, waits longer. */
const CHECK_ENDS_WITHIN_MS = 1000 * Number(process.env.CHECK_ENDS_WITHIN_S ?? 1200);
/** What the last picture, and then the browser's end, may take once a check has failed. */
const CLOSES_WITHIN_MS = 10000;

/**
 * The one limit of all that is waited for. Many calls of the browser's have none of their own (`evaluate`, the mouse,
 * the browser's start and end). When the time is over, the browser is closed: what waits for it then fails, and says
 * in which line. The process ends in any case.
 */
class Limit {
  constructor(beforeClosing) {
    this._beforeClosing = beforeClosing;
  }

  /** Null while there is time; then what is to be said. */
  passed = null;
  browser = null;

  /** From now on, `what` may take so long. */
  begin(what, limit_ms) {
    clearTimeout(this._timer);
    this._timer = setTimeout(
      () => this._end(`${what} does not end within ${Math.round(limit_ms / 1000)} s.`),
      limit_ms
    );
  }

  end() {
    clearTimeout(this._timer);
  }

  async _end(passed) {
    this.passed = passed;
    setTimeout(() => {
      console.error(
        `${passed} It waits for nothing of the browser, or the browser does not close.`
      );
      process.exit(1); // Playwright kills Chromium then
    }, 2 * CLOSES_WITHIN_MS);
    await this._beforeClosing();
    await this.browser?.close();
  }
}

/** Resolves when JupyterLab is there. */
async function inJupyterLab(page) {
  await page.waitForSelector('#jp-main-dock-panel');
  await page.waitForFunction(() => window.jupyterapp?.restored);
  await theme(page, 'Light'); // whatever the check before this one left
}

/**
 * Open JupyterLab, or another page that `arrive` waits for, and hand `check` the page, and a function that keeps a named screenshot; print what it returns,
 * with the page's errors.
 */
export async function inLab(check, { limit_ms = null, arrive = inJupyterLab } = {}) {
  const [url, screenshot, profile] = process.argv.slice(2);
  const errors = [];
  let page;
  let died = false;
  const lastPicture = () =>
    page?.screenshot({ path: screenshot, timeout: CLOSES_WITHIN_MS }).catch(() => undefined);
  const limit = new Limit(lastPicture);
  limit.begin('The start of the browser', CHECK_ENDS_WITHIN_MS);
  try {
    const browser = await chromium.launchPersistentContext(profile, {
      executablePath: '/usr/bin/chromium',
      args: FLAGS,
      timeout: HANGS_AFTER_MS,
      viewport: { width: 1600, height: 1000 },
      permissions: ['clipboard-read', 'clipboard-write']
    });
    limit.browser = browser;
    page = await browser.newPage();
    page.setDefaultTimeout(HANGS_AFTER_MS);
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
    await arrive(page);
    const picture = (name, part = page, options = {}) =>
      part.screenshot({ path: screenshot.replace(/\.png$/, `-${name}.png`), ...options });
    limit.begin('The check', limit_ms ?? CHECK_ENDS_WITHIN_MS - performance.now());
    const found = await check(page, picture);
    await page.screenshot({ path: screenshot });
    console.log(JSON.stringify({ ...found, errors }));
    await browser.close();
    limit.end();
  } catch (error) {
    if (limit.passed) {
      console.error(`${limit.passed} It waits for:`);
    } else {
      await lastPicture();
    }
    console.error(error, errors);
    process.exit((died || !limit.browser) && !limit.passed ? BROWSER_DIED : 1);
  }
}

/**
 * `inLab`, with the panel open beside a notebook. `check` gets the page, the panel's element, functions that run a cell
 * of that notebook, look into the panel and keep a screenshot, and an object for what it finds, which is its answer.
 */
export function besidePanel(notebook, check) {
  return inLab(async (page, picture) => {
    const panel = await openPanel(page);
    const found = {};
    const run = cellRunner(page, notebook);
    await check({ page, picture, panel, run, look: insight(page), found });
    return found;
  });
}
