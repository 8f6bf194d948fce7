// The panel's line to the kernel: two notebooks with two kernels, messages that are no good, a page that is reloaded.
import { cellRunner, execute, inLab, kernelIdle, layoutSaved, openPanel, settled } from './lab.mjs';

await inLab(async (page, picture) => {
  const found = {};
  const panel = await openPanel(page);
  const front = panel.locator('.cl-front');
  const [first, second] = ['first', 'second'].map(name => cellRunner(page, name));
  const show = async name => {
    // Beside the first notebook, and not over the panel.
    const ref = await page.evaluate(
      () =>
        [...window.jupyterapp.shell.widgets('main')].find(w => w.title.label === 'first.ipynb').id
    );
    const options = { ref, mode: 'tab-after' };
    await execute(page, 'docmanager:open', { path: `${name}.ipynb`, options });
    await kernelIdle(page);
  };
  await first(0);
  await first(1);
  await panel.getByText('Live · 4 steps').waitFor();

  // Another notebook comes to the front: its kernel is the one that counts, until the first comes back.
  await show('second');
  await front.getByText('second.ipynb').waitFor();
  await panel.getByText('This kernel has not loaded Chameleon Lab').waitFor();
  await second(0);
  await second(1);
  await panel.getByText('Live · 6 steps').waitFor();
  await page.waitForFunction(() =>
    document.querySelector('.cl-toolbar select').value.includes(',5,5]')
  );
  found.second = await describe(page);
  await picture('second');
  await page.locator('.lm-TabBar-tab', { hasText: 'first.ipynb' }).click();
  await front.getByText('first.ipynb').waitFor();
  await panel.getByText('Live · 4 steps').waitFor();
  await page.waitForFunction(() =>
    document.querySelector('.cl-toolbar select').value.includes(',3,3]')
  );
  found.first = await describe(page);

  // What a kernel of another version, or a broken one, might send: said where it matters, and the panel goes on.
  found.sent = await first(2);
  await panel
    .locator('.cl-banner[role=alert]')
    .getByText('sent something that is no message')
    .waitFor();
  await picture('banner');
  await panel.locator('.cl-banner[role=alert]').getByRole('button', { name: '×' }).click();
  await panel.getByRole('searchbox').fill('parameter');
  await panel
    .locator('.cl-tabs [role="status"]')
    .getByText(/^[1-9]\d* storages?, /)
    .waitFor();
  found.answers = await answersTo(page, [
    'nonsense',
    { version: 1, type: 'request', id: 1, method: 'launch', params: {} },
    { version: 7, type: 'request', id: 2, method: 'hello', params: {} },
    { version: 1, type: 'request', id: 3, method: 'open', params: { path: 'x'.repeat(100000) } },
    {
      version: 1,
      type: 'request',
      id: 4,
      method: 'scene',
      params: { source: 'session:99', first: 0, last: 0 }
    },
    {
      version: 1,
      type: 'request',
      id: 5,
      method: 'compare',
      params: { a: { source: 'session:99' }, b: { source: 'policy:gone' } }
    },
    { version: 1, type: 'request', id: 6, method: 'status', params: {} }
  ]);

  // The page is loaded anew: the panel comes back by itself, and finds its kernel and the session there.
  await layoutSaved(page);
  const address = new URL(page.url());
  address.searchParams.delete('reset');
  await page.goto(address.href);
  await page.waitForFunction(() => window.jupyterapp?.restored);
  await panel.waitFor();
  await page.locator('.lm-TabBar-tab', { hasText: 'first.ipynb' }).click();
  await front.getByText('first.ipynb').waitFor();
  await panel.getByText('Live · 4 steps').waitFor();
  await page.waitForFunction(() =>
    document.querySelector('.cl-toolbar select')?.value.includes(',3,3]')
  );
  found.reloaded = await describe(page);
  await picture('reloaded');

  // A session that ends stays to be looked at.
  await cellRunner(page, 'first')(3);
  await panel.getByText('Ended · 4 steps').waitFor();
  found.ended = await describe(page);
  await page.evaluate(async () => {
    const { kernels, sessions } = window.jupyterapp.serviceManager;
    await sessions.shutdownAll();
    await kernels.shutdownAll();
  });
  return found;
});

/** What the panel draws: its notebook, the ops and whether the timeline has more than one color. */
async function describe(page) {
  await settled(page);
  return page.evaluate(() => {
    const widget = [...window.jupyterapp.shell.widgets('main')].find(
      w => w.id === 'chameleon-lab-panel'
    );
    const { model } = widget.content;
    const canvas = document.querySelector('.cl-main .cl-tracks');
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return {
      notebook: document.querySelector('.cl-front').textContent.split(' ')[0],
      ops: model.scene.ops,
      drawn: new Set(new Uint32Array(data.buffer)).size > 8
    };
  });
}

/** The codes of the answers to raw messages, sent over a comm of their own; `closed` where it was hung up. */
function answersTo(page, messages) {
  return page.evaluate(async messages => {
    const panel = [...window.jupyterapp.shell.widgets('main')].find(
      w => w.title.label === 'first.ipynb'
    );
    const comm = panel.sessionContext.session.kernel.createComm('chameleon_lab');
    const answers = [];
    await new Promise(resolve => {
      comm.onMsg = ({ content: { data } }) => {
        if (data.type !== 'event') {
          answers.push([data.id, data.error?.code ?? data.type]);
        }
        if (answers.length === messages.length) {
          resolve();
        }
      };
      comm.onClose = () => resolve(answers.push('closed'));
      comm.open({});
      for (const message of messages) {
        comm.send(message);
      }
    });
    comm.onClose = () => undefined;
    comm.close();
    return answers.slice(0, messages.length);
  }, messages);
}
