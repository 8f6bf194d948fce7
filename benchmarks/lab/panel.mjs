// Measures the panel in JupyterLab, and the stacked polygons in a page of their own, over the same traces.
//
// Run by benchmarks/lab/__main__.py as `node panel.mjs URL SCREENSHOT PROFILE CASES`, where CASES is a file of JSON:
// [{name, trace, log}], the paths of a trace file and of an allocator's log; without a log the panel alone is measured.
import { readFileSync } from 'node:fs';
import { cellRunner, inLab, openPanel } from '../../tests/browser/lab.mjs';

const GESTURE_FRAMES = 90;
const MOST_POLYGONS = 15000;
const POLYGONS_WITHIN_MS = 240000;
const DRAWN_WITHIN_MS = 120000;
const cases = JSON.parse(readFileSync(process.argv[5], 'utf8'));

await inLab(async (page, picture) => {
  const panel = await openPanel(page);
  await cellRunner(page, 'bench')(0);
  await panel.getByText('No session yet').waitFor({ timeout: 300000 });
  await page.evaluate(defineMeasures);
  const devtools = await page.context().newCDPSession(page);
  await devtools.send('Performance.enable');
  const results = {};
  for (const { name, trace, log } of cases) {
    const before = await heap(devtools);
    const ready = await open(page, panel, trace);
    await picture(name);
    const gestures = await page.evaluate(
      frames => window.measures.gestures(frames),
      GESTURE_FRAMES
    );
    await picture(`${name}-zoomed`);
    results[name] = {
      panel: { ...ready, ...gestures, heap: await heap(devtools), heap_before: before },
      stacked: log ? await stacked(page.context(), log) : {}
    };
  }
  return { results, browser: (await devtools.send('Browser.getVersion')).product };
});

/** JavaScript's own heap, and the array buffers beside it, after a collection. */
async function heap(devtools) {
  await devtools.send('HeapProfiler.collectGarbage');
  const { usedSize, backingStorageSize } = await devtools.send('Runtime.getHeapUsage');
  return { used_bytes: usedSize, buffers_bytes: backingStorageSize ?? null };
}

/** Open a trace as a person does; seconds from the click until it is drawn, and until all is quiet. */
async function open(page, panel, path) {
  const button = panel.getByRole('button', { name: /^Open( a saved)? trace…$/ }).first();
  await button.click();
  const dialog = page.locator('.jp-Dialog');
  await dialog.locator('input').fill(path);
  const drawn = page.evaluate(
    ([path, within]) => window.measures.drawn(`file:${path}`, within),
    [path, DRAWN_WITHIN_MS]
  );
  await dialog.locator('.jp-mod-accept').click();
  try {
    return await drawn;
  } catch (error) {
    throw new Error(`${error.message} The panel says: ${await panel.innerText()}`);
  }
}

/** Put into the page what measures from within: clocks of the test's own process would add its latency. */
function defineMeasures() {
  const widget = [...window.jupyterapp.shell.widgets('main')].find(
    w => w.id === 'chameleon-lab-panel'
  );
  const { model } = widget.content;
  const frame = () => new Promise(resolve => requestAnimationFrame(resolve));
  const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
  const canvases = () => document.querySelectorAll('.cl-main .cl-tracks, .cl-main .cl-overlay');
  /** Have what was drawn rasterised now: reading a pixel back waits for it. */
  const flush = () => {
    for (const canvas of canvases()) {
      canvas.getContext('2d').getImageData(0, 0, 1, 1);
    }
  };
  const quiet = async () => {
    do {
      await pause(150);
    } while (model.waiting > 0);
    await frame();
  };
  const share = (values, part) => {
    const sorted = [...values].sort((a, b) => a - b);
    return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))];
  };
  const told = values => ({
    p50_ms: share(values, 0.5),
    p95_ms: share(values, 0.95),
    most_ms: Math.max(...values),
    frames: values.length
  });
  let bytes = 0;
  const watchBytes = () => {
    bytes = Math.max(bytes, model.views.overview?.bytes ?? 0, model.views.detail?.bytes ?? 0);
  };

  /** Show stretches one a frame: what each costs until its pixels are there, and the time between frames. */
  const play = async stretches => {
    const work = [];
    const starts = [];
    for (const stretch of stretches) {
      await new Promise(resolve => {
        let began = 0;
        requestAnimationFrame(() => {
          began = performance.now();
          starts.push(began);
        });
        const asked = performance.now();
        model.look(stretch); // draws at the next frame, behind the callback above
        const looking = performance.now() - asked;
        requestAnimationFrame(() => {
          flush();
          work.push(looking + performance.now() - began);
          watchBytes();
          resolve();
        });
      });
    }
    return { work, between: starts.slice(1).map((start, i) => start - starts[i]) };
  };

  window.measures = {
    async drawn(source, within) {
      const clicked = await new Promise(resolve => {
        const listen = event => {
          if (event.target.closest('.jp-mod-accept')) {
            document.removeEventListener('click', listen, true);
            resolve(performance.now());
          }
        };
        document.addEventListener('click', listen, true);
      });
      while (model.steps?.source !== source || !model.views.overview) {
        if (performance.now() - clicked > within) {
          throw new Error(`${source} was not drawn within ${within / 1e3} s.`);
        }
        await frame();
      }
      await frame(); // the drawing's own callback of this frame may have come before this one
      await frame();
      flush();
      const ready = performance.now() - clicked;
      await quiet();
      watchBytes();
      return { ready_s: ready / 1e3, settled_s: (performance.now() - clicked) / 1e3 };
    },

    async gestures(count) {
      const { length } = model;
      const ways = Array.from({ length: count }, (_, i) => i / (count - 1));
      const round = (middle, span) => ({
        start: middle * (length - span),
        end: middle * (length - span) + span
      });
      const found = {};
      const all = { work: [], between: [] };
      const run = async (name, stretches) => {
        await quiet();
        const { work, between } = await play(stretches);
        found[name] = { work: told(work), between: told(between) };
        all.work.push(...work);
        all.between.push(...between);
      };
      await run(
        'zoom in',
        ways.map(way => round(0.37, length * 0.001 ** way))
      );
      await run(
        'zoom out',
        ways.map(way => round(0.37, length * 0.001 ** (1 - way)))
      );
      for (const [name, part] of [
        ['pan, a half shown', 2],
        ['pan, a tenth shown', 10],
        ['pan, a 200th shown', 200]
      ]) {
        model.look(round(0.2, length / part));
        await run(
          name,
          ways.map(way => round(0.2 + 0.6 * way, length / part))
        );
      }
      // Pauses between, in which closer looks arrive and are read.
      for (let i = 0; i < 12; i++) {
        model.look(round(0.1 + i / 15, length / (3 + 9 * i)));
        await quiet();
        watchBytes();
      }
      model.look(round(0.37, length / 50));
      await quiet();
      found.all = { work: told(all.work), between: told(all.between) };
      return { gestures: found, view_bytes: bytes };
    }
  };
}

/** Build, draw, zoom and pan the stacked polygons of an allocator's log. */
async function stacked(context, log) {
  const page = await context.newPage();
  const devtools = await context.newCDPSession(page);
  try {
    await page.setViewportSize({ width: 1600, height: 1000 });
    await page.addScriptTag({ path: new URL('stacked_polygons.js', import.meta.url).pathname });
    const work = page.evaluate(
      async ([text, most, frames]) => {
        const { stackPolygons, drawPolygons } = window;
        const frame = () =>
          new Promise(resolve => requestAnimationFrame(() => resolve(performance.now())));
        const log = JSON.parse(text);
        await frame();
        const began = performance.now();
        const stack = stackPolygons(log, most);
        const built = performance.now();
        const group = drawPolygons(stack, 1200, 600);
        await frame();
        const shown = await frame();
        const times = [];
        let last = shown;
        for (let i = 0; i < frames; i++) {
          const zoom = 1 + 4 * Math.abs(Math.sin(i / 20));
          group.setAttribute('transform', `translate(${-300 * (zoom - 1)} 0) scale(${zoom} 1)`);
          const now = await frame();
          times.push(now - last);
          last = now;
        }
        times.sort((a, b) => a - b);
        return {
          polygons: stack.polygons.length,
          corners: 2 * stack.polygons.reduce((sum, polygon) => sum + polygon.x.length, 0),
          build_s: (built - began) / 1e3,
          ready_s: (shown - began) / 1e3,
          between: {
            p50_ms: times[times.length >> 1],
            p95_ms: times[Math.floor(times.length * 0.95)],
            most_ms: times.at(-1),
            frames
          }
        };
      },
      [readFileSync(log, 'utf8'), MOST_POLYGONS, 30]
    );
    let timer;
    const late = new Promise(resolve => {
      timer = setTimeout(() => resolve(null), POLYGONS_WITHIN_MS);
    });
    const found = await Promise.race([work, late]);
    clearTimeout(timer);
    work.catch(() => undefined);
    return found
      ? { ...found, heap: await heap(devtools) }
      : { failed: `not drawn within ${POLYGONS_WITHIN_MS / 1000} s` };
  } catch (error) {
    return { failed: String(error).split('\n')[0] };
  } finally {
    await page.close().catch(() => undefined);
  }
}
