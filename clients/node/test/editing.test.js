// The handler of an edit form, on node:http: what it refuses, and requests that come late

import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import { after, before } from 'node:test';
import pg from 'pg';
import { LockLost, Locks } from '../index.js';
import { startServer, test } from './server.js';

let server, pool, locks, web, url, form;
const page = (name) => `page-of-${name}`.padEnd(32, '0');

before(async () => {
  server = await startServer();
  pool = new pg.Pool(server.config());
  locks = new Locks(pool);
  form = locks.editing((req) => /^\/(order:\d+)/.exec(req.url)?.[1], {
    wait: '1 min', user: (req) => req.headers['x-user'], session: (req) => req.headers['x-session'], takeOver: (req) => req.headers['x-user'] === 'Carol' });
  web = http.createServer((req, res) => {
    res.on('close', () => web.emit(`closed ${req.url}`));
    form(req, res);
  }).listen(0, '127.0.0.1');
  await new Promise((resolve) => { web.on('listening', resolve); });
  url = `http://127.0.0.1:${web.address().port}`;
  await server.sql('GRANT EXECUTE ON FUNCTION lock_steal TO shop');
});
after(async () => {
  web.close();
  web.closeAllConnections();
  await pool.end();
  await server.end();
});

function send(path, user, body, headers = {}) {
  return fetch(url + path, {
    method: 'POST', body: typeof body === 'string' ? body : JSON.stringify({ page: page(user), ...body }),
    headers: { 'Content-Type': 'application/json', 'X-User': user, 'X-Session': `session-of-${user}`, ...headers } });
}
const act = async (path, user, action, more) => (await send(path, user, { action, ...more })).json();

test('what it refuses', async () => {
  const status = async (...args) => (await send(...args)).status;
  assert.equal(await status('/nothing', 'Alice', { action: 'open' }), 404);
  assert.equal(await status('/order:1', '', { action: 'open' }), 401);
  assert.equal(await status('/order:1', 'Alice', { action: 'toString' }), 400);
  assert.equal(await status('/order:1', 'Alice', { action: 'open', page: 'short' }), 400);
  assert.equal(await status('/order:1', 'Alice', { action: 'open' }, { 'X-Session': '' }), 400);
  assert.equal(await status('/order:1', 'Alice', { action: 'open' }, { 'Content-Type': 'text/plain' }), 400); // another site
  assert.equal(await status('/order:1', 'Alice', 'no JSON'), 400);
  assert.equal(await status('/order:1', 'Alice', 'x'.repeat(20000)), 400);
  assert.equal(await status('/order:1', 'Alice', { action: 'takeOver' }), 403);
  assert.equal((await fetch(`${url}/order:1`, { method: 'PUT', headers: { 'X-User': 'Alice' } })).status, 405);
  assert.equal((await locks.status(['order:1']))[0].locked, false);
});

test('another session with the same page is another owner', async () => {
  const alice = await act('/order:2', 'Alice', 'open');
  assert.equal(alice.state, 'editing');
  const thief = await (await send('/order:2', 'Mallory', { action: 'keep', page: page('Alice') })).json();
  assert.deepEqual([thief.state, thief.reason, thief.holder], ['lost', 'not_owner', 'Alice']);
  const write = (user, token) => form.transaction({ headers: { 'x-user': user, 'x-session': `session-of-${user}`, 'atomic-lock': `${page('Alice')};${token}` } },
    (client) => client.query("SELECT lock_assert('order:2')"));
  await write('Alice', alice.token);
  await assert.rejects(write('Mallory', alice.token), LockLost);
  await assert.rejects(write('Alice', alice.token - 1), LockLost);
  assert.equal((await act('/order:2', 'Alice', 'leave')).free, true);
});

test('a page that was closed cannot lock any more, in whatever order its requests come', async () => {
  for (const action of ['close', 'open', 'queue']) {
    assert.deepEqual(await act('/order:3', 'Alice', action, { page: page('closed') }), action === 'close' ? { state: 'reading' } : {});
  }
  const [status] = await locks.status(['order:3']);
  assert.deepEqual([status.locked, status.queued], [false, 0]);

  // The acquire is on its way when the page is closed.
  const lock = await locks.acquire('order:3', { holder: 'Bob' });
  const late = act('/order:3', 'Bob', 'open', { page: page('late') });
  await server.until("SELECT waiters = 1 FROM lock_status('order:3')");
  await act('/order:3', 'Bob', 'close', { page: page('late') });
  await lock.release();
  await late;
  assert.equal((await locks.status(['order:3']))[0].locked, false);

  // The connection is lost while the answer is on its way.
  const other = await locks.acquire('order:4', { holder: 'Bob' });
  await dropped('/order:4', 'Bob', { action: 'open', page: page('gone') }, "SELECT waiters = 1 FROM lock_status('order:4')");
  await other.release();
  await server.until("SELECT NOT locked AND waiters IS NULL FROM lock_status('order:4')");
});

// A request whose connection the page loses while the server works on it.  Each has an address
// of its own, since an earlier request to the same path may be closed meanwhile.
let drops = 0;
async function dropped(path, user, body, working) {
  const gone = new AbortController(), address = `${path}?${++drops}`;
  const noticed = once(web, `closed ${address}`);
  const request = fetch(url + address, { method: 'POST', signal: gone.signal, body: JSON.stringify({ page: page(user), ...body }),
    headers: { 'Content-Type': 'application/json', 'X-User': user, 'X-Session': `session-of-${user}` } }).catch(() => {});
  await server.until(working);
  gone.abort();
  await Promise.all([request, noticed]);
}

test('a page whose connection is lost keeps what it knows to have, and what it asks for again', async (t) => {
  // Blocks what is asked, so that the answer to it finds no page
  const blocked = async (path, user, body) => {
    const blocker = new pg.Client(server.config('postgres'));
    await blocker.connect();
    await blocker.query('BEGIN; LOCK TABLE app_lock, app_lock_queue IN ACCESS EXCLUSIVE MODE');
    await dropped(path, user, body, "SELECT count(*) > 0 FROM pg_stat_activity WHERE usename = 'shop' AND wait_event_type = 'Lock'");
    await blocker.end();
    await server.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'shop' AND state = 'active'");
  };
  assert.equal((await act('/order:7', 'Alice', 'open')).state, 'editing');
  await blocked('/order:7', 'Alice', { action: 'keep' });
  assert.equal((await act('/order:7', 'Alice', 'keep')).state, 'editing');
  const { ticket } = await act('/order:7', 'Bob', 'queue');
  await blocked('/order:7', 'Bob', { action: 'queue' });
  await blocked('/order:7', 'Bob', { action: 'ask', message: 'please' });
  assert.equal((await act('/order:7', 'Bob', 'queue')).ticket, ticket);
  assert.equal((await act('/order:7', 'Alice', 'keep')).state, 'editing');

  const lock = await locks.acquire('order:8', { holder: 'Alice' });
  await dropped('/order:8', 'Alice', { action: 'open' }, "SELECT waiters = 1 FROM lock_status('order:8')");
  const again = act('/order:8', 'Alice', 'open');
  await server.until("SELECT waiters = 2 FROM lock_status('order:8')");
  await lock.release();
  assert.equal((await again).state, 'editing');
  await server.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'shop' AND state = 'active'");
  assert.equal((await act('/order:8', 'Alice', 'keep')).state, 'editing');

  // It was silent for a minute and a half of its five.
  const { now } = performance;
  t.mock.method(performance, 'now', () => now.call(performance) + 90000);
  await act('/order:9', 'Bob', 'keep');
  await blocked('/order:8', 'Alice', { action: 'open' });
  assert.equal((await act('/order:8', 'Alice', 'keep')).state, 'editing');
});

test('user and session may be asked of a database; other than texts are refused', async () => {
  const answer = { writeHead(status) { answer.status = status; return answer; }, end() {} };
  const asked = (options) => locks.editing(() => 'order:9', { user: async () => 'Alice', session: async () => 'secret', ...options });
  await asked({ user: async () => null })({ method: 'PUT', headers: {} }, answer);
  assert.equal(answer.status, 401);
  await asked({})({ method: 'PUT', headers: {} }, answer);
  assert.equal(answer.status, 405);
  const grant = (session) => asked({ session }).grant({ headers: { 'atomic-lock': `${page('Alice')};7` } });
  assert.equal((await grant(async () => 'secret')).fencingToken, 7);
  await assert.rejects(grant(() => ({ id: 'secret' })), TypeError);
  await assert.rejects(grant(async () => null));
});

test('a takeover, of what the page has seen only', async () => {
  await act('/order:5', 'Alice', 'open');
  const seen = await act('/order:5', 'Carol', 'open');
  await act('/order:5', 'Alice', 'leave');
  await act('/order:5', 'Dave', 'open');
  const changed = await act('/order:5', 'Carol', 'takeOver', { since: seen.since, message: 'urgent' });
  assert.deepEqual([changed.state, changed.holder], ['reading', 'Dave']);
  assert.equal((await act('/order:5', 'Carol', 'takeOver', { since: changed.since, message: 'urgent' })).state, 'editing');
  // As a repetition does, after an answer that was lost
  const [{ since }] = await locks.status(['order:5']);
  assert.equal((await act('/order:5', 'Carol', 'takeOver', { since, message: 'urgent' })).state, 'editing');
  const lost = await act('/order:5', 'Dave', 'keep');
  assert.deepEqual([lost.state, lost.reason, lost.by, lost.why, lost.holder], ['lost', 'forced', 'shop', 'Carol: urgent', 'Carol']);
});

test('what a page hears has no owner in it', async () => {
  const stop = new AbortController();
  const response = await fetch(`${url}/order:6`, { headers: { 'X-User': 'Bob', 'X-Session': 'session' }, signal: stop.signal });
  assert.equal(response.headers.get('content-type'), 'text/event-stream');
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const heard = async (pattern) => {
    while (!pattern.test(text)) {
      const { done, value } = await reader.read();
      assert.ok(!done, `the stream has ended, without ${pattern}: ${text}`);
      text += value;
    }
  };
  await heard(/"event":"connected".*"free":true/); // from now on it misses no event
  await act('/order:6', 'Alice', 'open');
  await heard(/"event":"changed".*"holder":"Alice"/);
  await act('/order:6', 'Bob', 'queue');
  await act('/order:6', 'Alice', 'leave');
  await heard(/"event":"offered".*\n/);
  // The server makes the event after the offer: a millisecond may have passed.
  const left = Number(/"event":"offered".*?"left":(\d+)/.exec(text)[1]);
  assert.ok(left > 60000 && left <= 120000, `${left} ms`);
  assert.doesNotMatch(text, /page-of|session-of/);
  const owners = (await server.sql('SELECT owner FROM app_lock UNION SELECT owner FROM app_lock_queue')).map(({ owner }) => owner).filter(Boolean);
  assert.ok(owners.length > 0 && owners.every((owner) => !text.includes(owner)));
  stop.abort();
  await server.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ '^LISTEN'");
});

test('a stream that cannot be told goes away, and stops asking', async () => {
  const renamed = (from, to) => server.sql(`ALTER FUNCTION ${from}(text) RENAME TO ${to}`);
  await renamed('lock_status', 'lock_status_away');
  try {
    const response = await fetch(`${url}/order:10`, { headers: { 'X-User': 'Bob', 'X-Session': 'session' } });
    await assert.rejects(response.text());
  } finally {
    await renamed('lock_status_away', 'lock_status');
  }
  await server.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ '^LISTEN'");
});

test('a stream ends after five minutes as a whole response, and the page connects again soon', async (t) => {
  let due;
  const { setTimeout: real } = globalThis;
  t.mock.method(globalThis, 'setTimeout', (then, time, ...more) => (time === 300000 ? (due = then) : real(then, time, ...more)));
  const response = await fetch(`${url}/order:11`, { headers: { 'X-User': 'Bob', 'X-Session': 'session' } });
  await server.until("SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^LISTEN'");
  due();
  assert.match(await response.text(), /^retry: 3000\n\n[^]*retry: 200\n\n$/);
  await server.until("SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ '^LISTEN'");
});
