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
