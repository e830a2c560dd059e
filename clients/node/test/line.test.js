// The line, leaders and the listener, with the real driver and a real server

import assert from 'node:assert/strict';
import { after, before } from 'node:test';
import pg from 'pg';
import { LockLost, LockUnreachable, Locks } from '../index.js';
import { Events } from '../lib/listener.js';
import { hasten, startServer, test } from './server.js';

let server, pool, locks;

before(async () => {
  server = await startServer({ settings: "atomic_lock.sweep_interval = '1s'\nlog_connections = on" });
  pool = new pg.Pool({ ...server.config(), max: 8 });
  locks = new Locks(pool);
});
after(async () => {
  await pool.end();
  await server.end();
});

const hour = 3600000; // a poll that comes too late to help
const listening = "SELECT count(*) = $1 FROM pg_stat_activity WHERE query ~ '^LISTEN' AND state = 'idle'";
const inLine = 'SELECT queued = $2 FROM lock_status($1)';

test('queued, offered, acquired, and given up by leaving the loop', async () => {
  const first = await locks.acquire('order:1', { holder: 'Alice' });
  const states = [];
  for await (const turn of locks.queue('order:1', { holder: 'Bob', poll: hour })) {
    states.push(turn.state);
    if (turn.state === 'queued') {
      assert.deepEqual([turn.place, turn.holder], [1, 'Alice']);
      // The line misses no event from when it has asked again, which it does once it listens.
      const [{ kept }] = await server.sql('SELECT expires_at::text AS kept FROM lock_queue');
      server.until('SELECT expires_at > $1 FROM lock_queue', [kept]).then(() => first.release());
    } else if (turn.state === 'offered') {
      assert.ok(turn.until instanceof Date);
      assert.equal((await server.sql("SELECT holder FROM lock_queue"))[0].holder, 'Bob');
    } else {
      assert.ok(turn.lock.isOurs());
      break;
    }
  }
  assert.deepEqual(states, ['queued', 'offered', 'acquired']);
  assert.equal((await locks.status(['order:1']))[0].locked, false);
  await server.until(listening, [0]); // and nobody listens any more
});

test('a turn that was missed: queued again, at the same place', async () => {
  const first = await locks.acquire('order:6');
  const states = [];
  const asked = "SELECT expires_at::text AS kept, ticket FROM lock_queue WHERE key = 'order:6'";
  const again = async ({ kept }) => server.until("SELECT expires_at > $1 FROM lock_queue WHERE key = 'order:6'", [kept]);
  for await (const { state } of locks.queue('order:6', { poll: hour })) {
    states.push(state);
    if (state === 'acquired') break;
    if (states.length > 2) continue;
    const [row] = await server.sql(asked);
    // The forged offer is no turn: the line asks again, and keeps its place.
    const [{ channel }] = await server.sql("SELECT lock_channel('order:6') AS channel");
    const offer = JSON.stringify({ event: 'offered', key: 'order:6', ticket: Number(row.ticket), until: new Date() });
    if (state === 'queued') again(row).then(() => server.sql('SELECT pg_notify($1, $2)', [channel, offer]));
    else again(row).then(() => first.release());
  }
  assert.deepEqual(states, ['queued', 'offered', 'queued', 'offered', 'acquired']);
});

test('a place is given up by leaving the loop, and by the signal', async () => {
  const first = await locks.acquire('order:2');
  for await (const { state } of locks.queue('order:2')) {
    assert.equal(state, 'queued');
    break;
  }
  await server.until(inLine, ['order:2', 0]);
  const stop = new AbortController();
  await assert.rejects(async () => {
    for await (const { state } of locks.queue('order:2', { signal: stop.signal })) if (state === 'queued') stop.abort(new Error('gone'));
  }, /gone/);
  await server.until(inLine, ['order:2', 0]);
  await first.release();
});

test('a lock from the line that is lost; its ttl and meta', async (t) => {
  hasten(t);
  const turns = [];
  for await (const turn of locks.queue('order:3', { ttl: '1 h', meta: { tab: 1 } })) {
    turns.push(turn);
    if (turn.state !== 'acquired') continue;
    const [{ long, meta }] = await server.sql("SELECT ttl_remaining > interval '30 min' AS long, meta FROM lock_status('order:3')");
    assert.deepEqual({ long, meta }, { long: true, meta: { tab: 1 } });
    await server.sql("SELECT force_release('order:3', 'test')");
  }
  assert.deepEqual(turns.map(({ state }) => state), ['acquired', 'lost']);
  assert.ok(turns[1].error instanceof LockLost && turns[1].error.why === 'test');
});

test('the channel adds to what the pool knows', async () => {
  const elsewhere = new pg.Pool({ connectionString: 'postgresql://shop@127.0.0.1:1/postgres?application_name=channel' });
  const events = new Locks(elsewhere, { channel: { host: server.socket, port: 5432 } }).listen(['nowhere']);
  // The listener leaves at once, since it cannot ask the pool's server for the channel.
  await server.until("SELECT pg_read_file($1) ~ 'user=shop database=postgres application_name=channel'", [`${server.socket}/log`]);
  events.end();
  await elsewhere.end();
});

test('a listener that cannot connect says so once', async (t) => {
  const { mock: said } = t.mock.method(process, 'emitWarning', () => {});
  let tries = 0, thrice;
  const tried = new Promise((resolve) => { thrice = resolve; });
  const channel = { get host() { // of each try
    if (++tries === 3) thrice();
    return '/nowhere';
  } };
  const events = new Locks(pool, { channel, patience: 0 }).listen(['nowhere']);
  await tried;
  events.end();
  assert.deepEqual(said.calls.map(({ arguments: [, name] }) => name), ['AtomicLockWarning']);
  assert.match(said.calls[0].arguments[0], /no connection to hear of locks: .*nowhere/);
});

test('without events, the line is polled', async () => {
  const unheard = new Locks(pool, { channel: { host: '/nowhere' } });
  const first = await locks.acquire('order:4');
  for await (const turn of unheard.queue('order:4', { poll: 50 })) {
    if (turn.state === 'queued') await first.release();
    else if (turn.state === 'acquired') break;
  }
  assert.equal((await locks.status(['order:4']))[0].locked, false);
});

test('one of two leads, the other takes over, and the first leads again', async (t) => {
  hasten(t);
  const led = [];
  const stop = new AbortController();
  const lead = (name) => locks.lead('leader', { holder: name, ttl: '1 h', poll: hour, signal: stop.signal }, async (lock, signal) => {
    led.push(name);
    await new Promise((resolve) => { signal.addEventListener('abort', resolve); });
    led.push(`${name} ${lock.lost ? 'lost' : 'stopped'}`);
    signal.throwIfAborted();
  });
  const a = lead('a');
  await server.until("SELECT holder = 'a' FROM lock_status('leader')");
  const b = lead('b');
  await server.until(inLine, ['leader', 1]);
  await server.sql("SELECT force_release('leader', 'test')");
  await server.until("SELECT holder = 'b' AND queued = 1 FROM lock_status('leader')"); // a stands in line
  await server.sql("SELECT force_release('leader', 'test')");
  await server.until("SELECT holder = 'a' AND queued = 1 FROM lock_status('leader')");
  stop.abort();
  for (const each of await Promise.allSettled([a, b])) assert.equal(each.reason.name, 'AbortError');
  // The server knows of a loss before the leader does.
  assert.deepEqual(led.filter((each) => each.startsWith('a')), ['a', 'a lost', 'a', 'a stopped']);
  assert.deepEqual(led.filter((each) => each.startsWith('b')), ['b', 'b lost']);
  await server.until("SELECT NOT locked AND queued = 0 FROM lock_status('leader')");
});

test('a leader whose work ends, and one whose work fails', async () => {
  assert.equal(await locks.lead('once', undefined, () => 'done'), 'done');
  await assert.rejects(locks.lead('once', {}, () => { throw new RangeError('of the work'); }), RangeError);
  assert.equal((await locks.status(['once']))[0].locked, false);
});

test('a leader whose work has returned does not work again, though the release finds the lock lost', async () => {
  let times = 0;
  const answer = await locks.lead('returned', { ttl: '1 h' }, async () => {
    times++;
    await server.sql("SELECT force_release('returned', 'test')");
    return 'done';
  });
  assert.deepEqual([answer, times], ['done', 1]);
  await assert.rejects(locks.lead('returned', { ttl: '1 h' }, () => {
    times++;
    throw new LockUnreachable('of the work');
  }), /of the work/);
  assert.equal(times, 2);
});

// Calls then() at each answer to lock_enqueue()
function atPlace(t, then) {
  const { query } = pg.Client.prototype;
  t.mock.method(pg.Client.prototype, 'query', async function answered(text, ...more) {
    const answer = await query.call(this, text, ...more);
    if (/lock_enqueue/.test(text)) then();
    return answer;
  });
}

test('a leader that is stopped while the server answers does no work, and has no lock', async (t) => {
  const stop = new AbortController();
  atPlace(t, () => stop.abort(new Error('gone')));
  await assert.rejects(locks.lead('stopped', { ttl: '1 h', signal: stop.signal }, () => assert.fail('it works')), /gone/);
  await server.until("SELECT NOT locked FROM lock_status('stopped')");
});

test('a leader whose lease has run out when it arrives leads by the next one', async (t) => {
  const { now } = performance;
  let late;
  t.mock.method(performance, 'now', () => now.call(performance) + (late ?? 0));
  atPlace(t, () => { late ??= 3600000; });
  const led = [];
  await locks.lead('late', { ttl: '1 min' }, (lock, signal) => led.push(signal.aborted));
  assert.deepEqual(led, [false]);
});

test('an abort while a leader pauses is told by its reason', async (t) => {
  const stop = new AbortController();
  t.mock.method(Math, 'random', () => { // the length of the pause
    stop.abort(new Error('gone'));
    return 0;
  });
  await assert.rejects(locks.lead('paused', { signal: stop.signal }, async (lock) => {
    await server.sql("SELECT force_release('paused', 'test')");
    await lock.extend();
  }), /gone/);
});

test('the signal ends a lock from the line', async () => {
  const stop = new AbortController();
  await assert.rejects(async () => {
    for await (const { state } of locks.queue('order:5', { signal: stop.signal })) if (state === 'acquired') setImmediate(() => stop.abort(new Error('gone')));
  }, /gone/);
  assert.equal((await locks.status(['order:5']))[0].locked, false);
});

test('one connection hears of all keys, also after it was ended', async () => {
  await server.sql("SELECT lock_set_policy('heard:', notify => true)");
  const events = locks.listen(['heard:1', 'heard:2']);
  const next = async () => (({ event, key }) => `${event} ${key}`)((await events.next()).value);
  assert.deepEqual([await next(), await next()].sort(), ['connected heard:1', 'connected heard:2']);
  await server.until(listening, [1]);
  await (await locks.acquire('heard:1')).release();
  await (await locks.acquire('heard:2')).release();
  assert.deepEqual([await next(), await next(), await next(), await next()], ['acquired heard:1', 'released heard:1', 'acquired heard:2', 'released heard:2']);
  await server.sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE query ~ '^LISTEN'");
  assert.deepEqual([await next(), await next()].sort(), ['connected heard:1', 'connected heard:2']);
  await (await locks.acquire('heard:2')).release();
  assert.deepEqual([await next(), await next()], ['acquired heard:2', 'released heard:2']);
  // A forged payload that is no JSON is ignored.
  const [{ channel }] = await server.sql("SELECT lock_channel('heard:1') AS channel");
  await server.sql("SELECT pg_notify($1, 'no JSON')", [channel]);
  await locks.ask('heard:2').then((holders) => assert.equal(holders, 0));
  const lock = await locks.acquire('heard:1', { holder: 'Ann' });
  const { value: { event, holder, fencing_token: token } } = await events.next();
  assert.deepEqual({ event, holder, token }, { event: 'acquired', holder: 'Ann', token: null });
  assert.equal(await locks.ask('heard:1', 'Bob needs it'), 1);
  const { value } = await events.next();
  assert.deepEqual([value.event, value.reason], ['asked', 'Bob needs it']);
  await lock.release();
  events.end();
  assert.deepEqual(await events.next(), { done: true, value: undefined });
  await server.until(listening, [0]);
});

test('a key that a policy reserves for others does not keep us from hearing of the rest', async () => {
  await server.sql("SELECT lock_set_policy('theirs:', roles => '{postgres}')");
  const events = locks.listen(['theirs:1', 'heard:1']);
  const first = [(await events.next()).value, (await events.next()).value].map(({ event, key }) => `${event} ${key}`).sort();
  assert.deepEqual(first, ['connected heard:1', 'denied theirs:1']);
  // Nor does a text that is no key end the connection of those that hear already.
  for (const key of ['no\0key', 'x'.repeat(5000)]) {
    const wrong = locks.listen([key]);
    assert.deepEqual((await wrong.next()).value, { event: 'denied', key });
    wrong.end();
  }
  await (await locks.acquire('heard:1')).release();
  const { value } = await events.next();
  assert.equal(`${value.event} ${value.key}`, 'acquired heard:1'); // and not connected, as after a loss
  events.end();
});

test('a server that cannot say the channel denies nothing: the listener connects again', async () => {
  await server.sql('ALTER FUNCTION lock_channel(text) RENAME TO lock_channel_away');
  const events = locks.listen(['late']);
  await server.until("SELECT pg_read_file($1) ~ 'lock_channel\\(\\w+\\) does not exist'", [`${server.socket}/log`]);
  await server.sql('ALTER FUNCTION lock_channel_away(text) RENAME TO lock_channel');
  assert.deepEqual((await events.next()).value, { event: 'connected', key: 'late' });
  events.end();
});

test('two may wait for the next event', async () => {
  let hear;
  const events = new Events({ subscribe: (key, each) => { hear = each; } }, ['k']);
  const heard = [];
  for (let i = 0; i < 2; i++) events.next().then(({ value }) => heard.push(value.event));
  hear({ event: 'acquired' });
  hear({ event: 'released' });
  await new Promise((resolve) => { setImmediate(resolve); });
  assert.deepEqual(heard, ['acquired', 'released']);
});

test('a listener may be stopped before it is connected', async () => {
  locks.listen(['heard:1']).end();
  const events = locks.listen(['heard:1']);
  assert.equal((await events.next()).value.event, 'connected');
  const stop = new AbortController();
  const other = locks.listen(['heard:3'], { signal: stop.signal });
  assert.equal((await other.next()).value.event, 'connected');
  stop.abort(new Error('enough'));
  await assert.rejects(other.next(), /enough/);
  await assert.rejects(locks.listen(['heard:3'], { signal: stop.signal }).next(), /enough/);
  events.end();
  await server.until(listening, [0]);
});
