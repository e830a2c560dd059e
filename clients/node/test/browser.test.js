// The example, with the package as npm packs it, in headless Chromium: whatever happens to a
// page, its server or its user, what it says is true

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before } from 'node:test';
import { chromium } from 'playwright-core';
import { startServer, test } from './server.js';

const root = new URL('..', import.meta.url).pathname;
const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const scratch = mkdtempSync(join(tmpdir(), 'alx-'));
const app = join(root, 'example-packed');
let server, browser, running;

// Starts the example, on a port of before if one is given.  A short lease is for tests that lose it.
async function startApp({ ttl = '5 min', port = 0 } = {}) {
  const child = spawn(process.execPath, ['server.js', `postgresql://shop@${encodeURIComponent(server.socket)}/postgres`, String(port)],
    { cwd: app, env: { ...process.env, SECRET: 'of the tests', TTL: ttl, OFFER: '10 min' }, stdio: ['ignore', 'pipe', 'inherit'] });
  for await (const chunk of child.stdout) {
    port = Number(/localhost:(\d+)/.exec(String(chunk))[1]);
    break;
  }
  return {
    port,
    end: () => new Promise((resolve) => {
      child.on('exit', resolve);
      child.kill('SIGKILL');
    }),
  };
}

const launch = () => chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'], env: { ...process.env, HOME: scratch } });

before(async () => {
  server = await startServer({ settings: "atomic_lock.sweep_interval = '1s'", extension: false });
  for (const statement of readFileSync(join(root, 'example/setup.sql'), 'utf8').split(/;\n|\\gexec\n/)) {
    const sql = statement.replace(/^--.*$/gm, '').trim();
    if (/^SELECT 'CREATE ROLE/.test(sql)) await server.sql('CREATE ROLE shop LOGIN');
    else if (sql) await server.sql(sql);
  }
  rmSync(app, { recursive: true, force: true });
  cpSync(join(root, 'example'), app, { recursive: true });
  mkdirSync(join(app, 'node_modules/atomic-lock'), { recursive: true });
  execFileSync('npm', ['pack', '--silent', '--pack-destination', scratch], { cwd: root, env: { ...process.env, npm_config_cache: join(scratch, 'npm') } });
  execFileSync('tar', ['-xzf', join(scratch, 'atomic-lock-1.0.0.tgz'), '--strip-components=1', '-C', join(app, 'node_modules/atomic-lock')]);
  running = await startApp();
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await running?.end();
  await server.end();
  rmSync(app, { recursive: true });
  rmSync(scratch, { recursive: true, force: true });
});
const contexts = [];
afterEach(async () => {
  for (const context of contexts.splice(0)) await context.close();
  await server.sql("SELECT lock_try_force_release(key, 'the next test') FROM (SELECT DISTINCT key FROM lock_status()) AS held; DELETE FROM app_lock_queue WHERE ticket > 0");
  await server.sql("SET atomic_lock.enforce_guards = off; UPDATE orders SET note = 'ring twice' WHERE id = 42");
});

// A user with a browser of their own
async function user(name, { order = 42, of = browser, at = running } = {}) {
  const context = await of.newContext();
  contexts.push(context);
  context.setDefaultTimeout(120000); // for hangs
  const page = await context.newPage();
  await page.goto(`http://localhost:${at.port}/orders/${order}?user=${name}`);
  return page;
}
const says = (page, text) => page.locator('#state', { hasText: text }).waitFor({ timeout: 120000 });
const click = (page, name) => page.getByRole('button', { name, exact: true }).click();
const holder = async (order = 42) => (await server.sql('SELECT lock_holder($1) AS holder', [`order:${order}`]))[0].holder;
const picture = (page, name) => (process.env.PICTURES ? page.screenshot({ path: join(process.env.PICTURES, `${name}.png`) }) : undefined);

async function save(page, text) {
  await page.evaluate(() => { document.getElementById('saved').textContent = ''; });
  await page.locator('#note').fill(text);
  await click(page, 'Save');
  await page.locator('#saved', { hasText: /./ }).waitFor();
  return page.locator('#saved').textContent();
}
const note = async () => (await server.sql('SELECT note FROM orders WHERE id = 42'))[0].note;

test('Alice edits, Bob reads, and is told when she leaves', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  assert.equal(await save(alice, 'of Alice'), 'Saved');
  const bob = await user('Bob');
  await says(bob, 'Reading: Alice is editing');
  assert.equal(await bob.locator('#note').isEditable(), false);
  await picture(alice, 'editing');
  await picture(bob, 'reading');
  await click(bob, 'Ask for it');
  await alice.locator('#asked', { hasText: 'Bob: please finish' }).waitFor();
  await alice.close();
  await says(bob, 'nobody is editing');
  await click(bob, 'Edit');
  await says(bob, 'You are editing');
  assert.equal(await bob.locator('#note').inputValue(), 'of Alice');
  assert.equal(await save(bob, 'of Bob'), 'Saved');
  assert.equal(await note(), 'of Bob');
});

test('the list shows live who edits what', async () => {
  const list = await (await browser.newContext()).newPage();
  contexts.push(list.context());
  await list.goto(`http://localhost:${running.port}/?user=Dave`);
  await list.locator('#order-42', { hasText: 'Order 42' }).waitFor();
  const alice = await user('Alice');
  await list.locator('#order-42', { hasText: 'Alice' }).waitFor();
  const bob = await user('Bob', { order: 43 });
  await list.locator('#order-43', { hasText: 'Bob' }).waitFor();
  await picture(list, 'list');
  await alice.close();
  await list.locator('#order-42:not(.busy)').waitFor();
  await says(bob, 'You are editing');
});

test('twenty reloads, and never a false "You are editing"', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  for (let i = 0; i < 20; i++) {
    await alice.reload({ waitUntil: 'commit' });
    await says(alice, 'You are editing');
    assert.equal(await holder(), 'Alice');
    assert.equal(await save(alice, `reload ${i}`), 'Saved');
  }
  // The late requests of former pages have ended nothing.
  const bob = await user('Bob');
  await says(bob, 'Reading: Alice is editing');
  assert.equal(await save(alice, 'the last'), 'Saved');
});

test('two tabs, a duplicated tab, and back from the cache of the browser', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const tab = await alice.context().newPage();
  await tab.goto(alice.url());
  await says(tab, 'Reading: Alice is editing');
  // As a duplicated tab, it has the session and the storage of the other one.
  const [duplicate] = await Promise.all([alice.context().waitForEvent('page'), alice.evaluate(() => { open(location.href); })]);
  await says(duplicate, 'Reading: Alice is editing');
  await tab.close();
  await duplicate.close();
  assert.equal(await save(alice, 'still Alice'), 'Saved');
  await alice.goto(`http://localhost:${running.port}/`);
  await server.until("SELECT NOT locked FROM lock_status('order:42')");
  const bob = await user('Bob');
  await says(bob, 'You are editing');
  await alice.goBack();
  await says(alice, 'Reading: Bob is editing');
  await bob.close();
  await says(alice, 'nobody is editing');
});

test('in line: offered, taken, left, and given up by closing the page', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const [bob, carol, dave] = [await user('Bob'), await user('Carol'), await user('Dave')];
  for (const page of [bob, carol, dave]) await says(page, 'Alice is editing');
  await click(bob, 'Wait in line');
  await says(bob, 'In line, place 1');
  await click(carol, 'Wait in line');
  await says(carol, 'In line, place 2');
  await click(dave, 'Wait in line');
  await says(dave, 'In line, place 3');
  await picture(carol, 'queued');
  await click(alice, 'Done');
  await says(bob, 'It is your turn');
  await picture(bob, 'offered');
  await bob.close(); // gives up the offer
  await says(carol, 'It is your turn');
  await click(carol, 'Take it');
  await says(carol, 'You are editing');
  assert.equal(await save(carol, 'of Carol'), 'Saved');
  await click(dave, 'Leave the line');
  await says(dave, 'Reading: Carol is editing');
  await server.until("SELECT queued = 0 FROM lock_status('order:42')");
});

// A page without buttons, whose form is in the hands of the test; deaf: no event reaches it.  hold('answer') keeps
// back the next answer of the application, and hold('request') the next request: `there` resolves with what lets it go.
async function bare(name, { deaf } = {}) {
  const page = await user(name, { order: 43 });
  await page.goto(`http://localhost:${running.port}/style.css`);
  if (deaf) await page.route('**/lock', (route) => (route.request().method() === 'GET' ? route.abort() : route.continue()));
  const reached = (state) => page.waitForFunction((name) => form.state === name, state);
  await page.evaluate(async () => { window.form = (await import('/atomic-lock.js')).edit('/orders/42/lock'); });
  await page.waitForFunction(() => form.facts.holder);
  async function hold(what) {
    let come;
    const there = new Promise((resolve) => { come = resolve; });
    await page.route('**/lock', async (route) => {
      const response = what === 'answer' && await route.fetch();
      await new Promise((go) => { come(go); });
      await (response ? route.fulfill({ response }) : route.continue());
    }, { times: 1 });
    return { there };
  }
  return { page, hold, reached, act: (action) => page.evaluate((name) => form[name](), action) };
}

test('an offer and an answer that cross: the user takes the turn, and nobody else', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const { hold, act, reached } = await bare('Bob');

  // The first answer is late, and then a further one: both say that Bob stands in line.
  for (const before of ['reading', 'queued']) {
    await reached(before);
    const { there } = await hold('answer');
    const asked = act('queue');
    const go = await there;
    await click(alice, 'Done');
    await server.until("SELECT count(*) = 1 FROM lock_queue WHERE offered_until IS NOT NULL");
    if (before === 'queued') await reached('offered');
    go();
    await asked;
    await reached('offered');
    assert.equal(await holder(), null);
    if (before === 'queued') break;
    await act('leave');
    await click(alice, 'Edit');
    await says(alice, 'You are editing');
    assert.equal(await act('queue'), 'queued');
  }
  assert.equal(await act('take'), 'editing');
  assert.equal(await holder(), 'Bob');
  await act('leave');

  // The question is late, so its answer grants the lock.
  await click(alice, 'Edit');
  await says(alice, 'You are editing');
  assert.equal(await act('queue'), 'queued');
  const { there } = await hold('request');
  const asked = act('queue');
  const go = await there;
  await click(alice, 'Done');
  await reached('offered');
  go();
  assert.equal(await asked, 'offered');
  assert.equal(await act('take'), 'editing');
  await act('leave');
});

test('an offer of which the page hears nothing is shown when it asks', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const { page, act, reached } = await bare('Bob', { deaf: true });
  assert.equal(await act('queue'), 'queued');
  await click(alice, 'Done');
  await server.until("SELECT count(*) = 1 FROM lock_queue WHERE offered_until IS NOT NULL");
  assert.equal(await page.evaluate(() => form.state), 'queued');
  await page.evaluate(() => { dispatchEvent(new Event('online')); });
  await reached('offered');
  assert.equal(await act('leave'), 'reading');
  await server.until("SELECT NOT locked AND queued = 0 FROM lock_status('order:42')");
});

test('with auto, a turn is taken although a request fails, but not after the user has left', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const { page, hold, act, reached } = await bare('Bob');
  const queue = () => page.evaluate(() => form.queue({ auto: true }));
  assert.equal(await queue(), 'queued');
  const fail = (route) => (route.request().method() === 'POST' ? route.abort() : route.continue());
  await page.route('**/lock', fail);
  await click(alice, 'Done');
  await reached('offered');
  await page.unroute('**/lock', fail);
  await reached('editing');
  assert.equal(await act('leave'), 'reading');

  // The offer comes while the page says that it leaves.
  await click(alice, 'Edit');
  await says(alice, 'You are editing');
  assert.equal(await queue(), 'queued');
  const { there } = await hold('request');
  const left = act('leave');
  const go = await there;
  await click(alice, 'Done');
  await reached('offered');
  go();
  assert.equal(await left, 'reading');
  assert.equal(await act('ask'), 'reading'); // comes after what the page has asked
  await server.until("SELECT NOT locked AND queued = 0 FROM lock_status('order:42')");
});

test('who leaves has left, also if the page is about to ask whether it may go on', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const { page, hold, act } = await bare('Bob');
  for (const [action, state] of [['queue', 'queued'], ['open', 'editing']]) {
    assert.equal(await act(action), state);
    const { there } = await hold('answer');
    const left = act('leave');
    const go = await there;
    await page.evaluate(() => { form.check(); }); // as after an event
    go();
    assert.equal(await left, 'reading');
    assert.equal(await act('ask'), 'reading'); // comes after what the page has asked
    await server.until("SELECT queued = 0 FROM lock_status('order:42')");
    if (state === 'queued') await click(alice, 'Done');
    await server.until("SELECT NOT locked FROM lock_status('order:42')");
  }
});

test('a takeover, and a save of what is stale', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const carol = await user('Carol');
  await says(carol, 'Alice is editing');
  await click(carol, 'Take over');
  await says(carol, 'You are editing');
  await says(alice, 'You have lost it (Carol: it is urgent), Carol is editing');
  await picture(alice, 'lost');
  assert.equal(await save(carol, 'of Carol'), 'Saved');

  // The page of Alice does not know yet, and sends what it has, as if the network were slow.
  await click(carol, 'Done');
  await click(alice, 'Edit');
  await says(alice, 'You are editing');
  await alice.locator('#note:not([readonly])').waitFor();
  const stale = await alice.evaluate(() => document.getElementById('note').value);
  assert.equal(stale, 'of Carol'); // it has read again
  const answer = await alice.evaluate(async () => {
    const { edit } = await import('/atomic-lock.js');
    const other = edit('/orders/43/lock'); // for the headers: another page, that has a grant of another order
    await other.open();
    const response = await fetch('/orders/42', { method: 'POST', headers: { 'Content-Type': 'application/json', ...other.headers }, body: '{"note": "stale"}' });
    return [response.status, (await response.json()).reason];
  });
  assert.deepEqual(answer, [409, 'not_held']);
  assert.equal(await note(), 'of Carol');
});

test('a save by a former grant of the same page is refused by the guard', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  // The request that saves is held back, while Bob edits and Alice acquires again.
  let go;
  const held = new Promise((resolve) => { go = resolve; });
  await alice.route('**/orders/42', async (route) => {
    await held;
    await route.continue();
  });
  await alice.locator('#note').fill('stale');
  await click(alice, 'Save');
  await click(alice, 'Done');
  await says(alice, 'nobody is editing');
  const bob = await user('Bob');
  await says(bob, 'You are editing');
  assert.equal(await save(bob, 'of Bob'), 'Saved');
  await bob.close();
  await says(alice, 'nobody is editing');
  await click(alice, 'Edit');
  await says(alice, 'You are editing');
  go();
  await alice.locator('#saved', { hasText: 'Not saved (stale)' }).waitFor();
  assert.equal(await note(), 'of Bob');
  await says(alice, 'You are editing');
});

test('offline for longer than the lease, and online again', async () => {
  const brief = await startApp({ ttl: '4 s' });
  try {
    const alice = await user('Alice', { at: brief });
    await says(alice, 'You are editing');
    await alice.context().setOffline(true);
    await says(alice, 'You have lost it (expired)');
    const bob = await user('Bob', { at: brief });
    await says(bob, 'You are editing');
    await alice.context().setOffline(false);
    await says(alice, 'Bob is editing');
    assert.match(await alice.locator('#state').textContent(), /^You have lost it/);
  } finally {
    await brief.end();
  }
});

test('a page that sleeps for longer than its lease', async () => {
  const [own, brief] = [await launch(), await startApp({ ttl: '4 s' })];
  try {
    const alice = await user('Alice', { of: own, at: brief });
    await says(alice, 'You are editing');
    await alice.locator('#note').fill('typed before it slept');
    const { processInfo } = await (await own.newBrowserCDPSession()).send('SystemInfo.getProcessInfo');
    const renderers = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => id);
    assert.ok(renderers.length > 0);
    for (const pid of renderers) process.kill(pid, 'SIGSTOP');
    await server.until("SELECT NOT locked FROM lock_status('order:42')");
    const bob = await user('Bob', { at: brief });
    await says(bob, 'You are editing');
    assert.equal(await save(bob, 'of Bob'), 'Saved');
    for (const pid of renderers) process.kill(pid, 'SIGCONT');
    // The first request to the page
    await alice.locator('#form').evaluate((each) => each.requestSubmit());
    await alice.locator('#saved', { hasText: 'Not saved' }).waitFor();
    await says(alice, 'You have lost it');
    await says(alice, 'Bob is editing');
    assert.equal(await alice.locator('#save').isDisabled(), true);
    assert.equal(await alice.locator('#note').inputValue(), 'typed before it slept');
    assert.equal(await note(), 'of Bob');
  } finally {
    await own.close();
    await brief.end();
  }
});

test('the application restarts: who edits goes on, and who waits is told', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const bob = await user('Bob');
  await says(bob, 'Alice is editing');
  await click(bob, 'Wait in line');
  await says(bob, 'In line, place 1');
  await running.end();
  running = await startApp({ port: running.port });
  assert.equal(await holder(), 'Alice');
  await says(alice, 'You are editing');
  assert.equal(await save(alice, 'after the restart'), 'Saved');
  await click(alice, 'Done');
  await says(bob, 'It is your turn');
  await click(bob, 'Take it');
  await says(bob, 'You are editing');
});

test('the application is away for longer than the lease', async () => {
  let brief = await startApp({ ttl: '4 s' });
  try {
    const alice = await user('Alice', { at: brief });
    await says(alice, 'You are editing');
    await brief.end();
    await says(alice, 'You have lost it (expired)');
    brief = await startApp({ ttl: '5 min', port: brief.port });
    await click(alice, 'Edit');
    await says(alice, 'You are editing');
    assert.equal(await holder(), 'Alice');
  } finally {
    await brief.end();
  }
});

test('PostgreSQL restarts', async () => {
  const alice = await user('Alice');
  await says(alice, 'You are editing');
  const bob = await user('Bob');
  await says(bob, 'Alice is editing');
  await server.stop('immediate');
  await server.start();
  await click(alice, 'Done');
  await says(alice, 'nobody is editing');
  await says(bob, 'nobody is editing'); // the listener listens again
  await click(bob, 'Edit');
  await says(bob, 'You are editing');
});
