// Locks with the real driver and a real server: acquire, heartbeat, loss, errors, transactions

import assert from 'node:assert/strict';
import { after, before } from 'node:test';
import { inspect } from 'node:util';
import pg from 'pg';
import {
  LockChanged, LockDeadlock, LockDenied, LockHeld, LockHeldByOwner, LockLifetimeExceeded, LockLost, LockPartition, LockQuota, LockSetup, LockStale, Locks, lockKey,
} from '../index.js';
import { milliseconds } from '../lib/calls.js';
import { hasten, startServer, test } from './server.js';

let server, pool, locks;

before(async () => {
  server = await startServer({ settings: 'deadlock_timeout = 100ms' });
  pool = new pg.Pool({ ...server.config(), max: 5 });
  locks = new Locks(pool, { holder: 'Alice' });
});
after(async () => {
  await pool.end();
  await server.end();
});

// The class of the error, and some of its members
async function thrown(promise, Class, members = {}) {
  const error = await promise.then(() => assert.fail('nothing was thrown'), (each) => each);
  assert.equal(error.constructor, Class, inspect(error));
  for (const [name, value] of Object.entries(members)) assert.deepEqual(error[name], value, name);
  return error;
}
const aborted = (signal) => signal.aborted || new Promise((resolve) => { signal.addEventListener('abort', resolve, { once: true }); });

test('acquire, a refusal that says whose it is, release', async () => {
  const lock = await locks.acquire('order:1', { ttl: '1 min', meta: { screen: 'totals' } });
  assert.equal(lock.status, 'acquired');
  assert.ok(lock.isOurs() && lock.fencingToken > 0 && lock.lost === null);
  const [status] = await locks.status(['order:1']);
  assert.deepEqual([status.holder, status.meta, status.mode], ['Alice', { screen: 'totals' }, 'exclusive']);
  const error = await thrown(locks.acquire('order:1', { holder: 'Bob' }), LockHeld, { holder: 'Alice', status: 'held', code: '55P03' });
  assert.ok(error.since instanceof Date && error.until - error.since === 60000);
  await lock.release();
  assert.equal(lock.isOurs(), false);
  assert.equal(await lock.ended, null);
  assert.equal((await locks.status(['order:1']))[0].locked, false);
});

test('the same owner has it again, and is told so if it likes', async () => {
  const lock = await locks.acquire('order:2', { owner: 'form-2' });
  const again = await locks.acquire('order:2', { owner: 'form-2' });
  assert.deepEqual([again.status, again.fencingToken], ['reacquired', lock.fencingToken]);
  await thrown(locks.acquire('order:2', { owner: 'form-2', onReacquire: 'error' }), LockHeldByOwner, { code: 'LK007' });
  await lock.release();
  await again.release();
});

test('shared, at most two', async () => {
  const [one, two] = [await locks.acquire('seats', { mode: 'shared', maxHolders: 2 }), await locks.acquire('seats', { mode: 'shared', maxHolders: 2 })];
  await thrown(locks.acquire('seats', { mode: 'shared', maxHolders: 2 }), LockHeld);
  await one.release();
  await two.release();
});

test('a heartbeat keeps a lease for longer than its length', async (t) => {
  hasten(t);
  const lock = await locks.acquire('kept', { ttl: '1 h' });
  for (let beats = 0; beats < 3; beats++) {
    const [{ end }] = await server.sql("SELECT expires_at::text AS end FROM lock_status('kept')");
    await server.until("SELECT expires_at > $1::timestamptz AND locked FROM lock_status('kept')", [end]);
  }
  assert.ok(lock.isOurs());
  await lock.release();
});

test('a lease that was made shorter is kept at its new pace', async (t) => {
  hasten(t);
  const lock = await locks.acquire('shorter', { ttl: '9 h' });
  await Promise.all([lock.extend('5 h'), lock.extend('1 h')]);
  for (let beats = 0; beats < 3; beats++) {
    const [{ end }] = await server.sql("SELECT expires_at::text AS end FROM lock_status('shorter')");
    await server.until("SELECT expires_at > $1::timestamptz AND ttl_remaining <= interval '1 h' FROM lock_status('shorter')", [end]);
  }
  assert.ok(lock.isOurs() && lock.lost === null);
  await lock.release();
});

test('a release that was refused may be repeated, and the clock goes on', async () => {
  const lock = await locks.acquire('refused', { ttl: '1 h' });
  await server.sql('REVOKE EXECUTE ON FUNCTION lock_try_release FROM shop');
  await thrown(lock.release(), LockDenied);
  assert.ok(lock.isOurs());
  await server.sql("SELECT lock_grant_access('shop', 'user')");
  await lock.release();
  assert.equal(await lock.ended, null);
  // The deadline counts, also before a timer has noticed it.
  const late = await locks.acquire('refused', { ttl: 100 });
  for (const start = performance.now(); performance.now() < start + 100;);
  assert.deepEqual([late.isOurs(), late.signal.aborted, late.lost.reason], [false, true, 'expired']);
  await late.release().catch(() => {});
});

test('an end by force aborts the signal, and says who and why', async (t) => {
  hasten(t);
  const lock = await locks.acquire('forced', { ttl: '1 h' });
  await server.sql("SELECT force_release('forced', 'Alice is at \"lunch\"')");
  await aborted(lock.signal);
  assert.ok(lock.lost instanceof LockLost && lock.lost === lock.signal.reason && lock.lost === await lock.ended);
  assert.deepEqual([lock.lost.reason, lock.lost.by, lock.lost.why], ['forced', 'postgres', 'Alice is at "lunch"']);
  assert.equal(lock.isOurs(), false);
  await thrown(lock.release(), LockLost, { reason: 'forced' });
});

test('the release finds out what no heartbeat has', async () => {
  const lock = await locks.acquire('late', { ttl: '1 h' });
  await server.sql("SELECT force_release('late', 'test')");
  await thrown(lock.release(), LockLost, { reason: 'forced', by: 'postgres', why: 'test' });
});

test('the local clock ends a lease whose heartbeats get no answer', async () => {
  const lock = await locks.acquire('silent', { ttl: 800 });
  const blocker = new pg.Client(server.config('postgres'));
  await blocker.connect();
  await blocker.query('BEGIN');
  await blocker.query('LOCK TABLE app_lock IN ACCESS EXCLUSIVE MODE');
  await aborted(lock.signal);
  assert.equal(lock.lost.reason, 'expired');
  await blocker.query('ROLLBACK');
  await blocker.end();
  await thrown(lock.release(), LockLost, { reason: 'expired' });
});

test('a wait for longer than the lease', async () => {
  const first = await locks.acquire('patient');
  const second = locks.acquire('patient', { ttl: 3000, wait: null });
  await server.until("SELECT longest_wait > interval '3.1 s' FROM lock_activity WHERE key = 'patient'");
  await first.release();
  const lock = await second;
  assert.ok(lock.isOurs());
  await lock.release();
});

test('waits leave a connection to the heartbeat', async () => {
  const small = new pg.Pool({ ...server.config(), max: 2 });
  const few = new Locks(small, { holder: 'Alice' });
  const first = await few.acquire('few', { ttl: '1 h' });
  const others = [few, new Locks(small), few].map((each) => each.acquire('few', { wait: '1 min' }).then((lock) => lock.release()));
  const giveUp = new AbortController();
  const last = few.acquire('few', { wait: '1 min', signal: giveUp.signal });
  await server.until("SELECT waiters = 1 FROM lock_status('few')");
  giveUp.abort(new Error('gone'));
  await assert.rejects(last, /gone/);
  await first.extend();
  // A call without a connection is refused at the end of its wait, and takes a lock that is free or becomes free.
  await thrown(few.acquire('few', { wait: 20 }), LockHeld, { status: 'held', holder: 'Alice' });
  await thrown(few.acquire('few', { wait: '00:00:00.02' }), LockHeld, { status: 'timeout' });
  await (await few.acquire('free', { wait: '1 min' })).release();
  const taken = await locks.acquire('free');
  const free = few.acquire('free', { wait: '5 min' });
  for (let i = 0; i < 2; i++) await few.status(['free']); // it has asked by then
  await taken.release();
  await (await free).release();
  await first.release();
  await Promise.all(others);
  await small.end();
});

test('a wait whose connection is lost goes on for what is left of it', async (t) => {
  const first = await locks.acquire('resumed', { ttl: '1 h' });
  const long = locks.acquire('resumed', { wait: '5 min' });
  const refused = thrown(locks.acquire('resumed', { wait: '2 min' }), LockHeld, { status: 'held' });
  await server.until("SELECT waiters = 2 FROM lock_status('resumed')");
  const { now } = performance;
  t.mock.method(performance, 'now', () => now.call(performance) + 180000); // three minutes later
  await server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop' AND state = 'active'");
  await refused;
  await first.release();
  await (await long).release();
});

test('a wait that times out, and one that is cancelled', async () => {
  const first = await locks.acquire('cancelled', { ttl: '1 h' });
  await thrown(locks.acquire('cancelled', { wait: 20 }), LockHeld, { status: 'timeout', holder: 'Alice' });
  const giveUp = new AbortController();
  const second = locks.acquire('cancelled', { wait: '1 min', signal: giveUp.signal });
  await server.until("SELECT waiters = 1 FROM lock_status('cancelled')");
  process.env.PGSSLNEGOTIATION = 'direct'; // as for a pool that has TLS
  giveUp.abort(new Error('the user has gone'));
  delete process.env.PGSSLNEGOTIATION;
  await assert.rejects(second, /the user has gone/);
  assert.equal((await server.sql("SELECT waiters FROM lock_status('cancelled')"))[0].waiters, 0);
  await first.release();
  const other = await locks.acquire('cancelled');
  await other.release();
});

test('a call that was given up ends nothing that it has not made', async () => {
  const lock = await locks.acquire('given up', { owner: 'form', ttl: '1 h' });
  await assert.rejects(locks.acquire('given up', { owner: 'form', signal: AbortSignal.abort(new Error('gone')) }), /gone/);
  await assert.rejects(locks.queue('given up', { owner: 'form', signal: AbortSignal.abort(new Error('gone')) }).next(), /gone/);
  await lock.extend();
  await lock.release();
  // A lock that the call may have got is released before the call ends.
  const first = await locks.acquire('given up');
  const giveUp = new AbortController();
  const second = locks.acquire('given up', { owner: 'form', wait: '1 min', signal: giveUp.signal });
  await server.until("SELECT waiters = 1 FROM lock_status('given up')");
  giveUp.abort(new Error('gone'));
  await assert.rejects(second, /gone/);
  await first.release();
  const third = await locks.acquire('given up', { owner: 'form' });
  assert.equal(third.status, 'acquired');
  await third.extend();
  // A refused call has no lock to release.
  const small = new pg.Pool({ ...server.config(), max: 1 });
  const one = new Locks(small);
  const stop = new AbortController();
  const polling = one.acquire('given up', { owner: 'other', wait: '1 min', signal: stop.signal });
  for (let i = 0; i < 2; i++) await one.status(['given up']); // it has asked by then
  const busy = await small.connect();
  await third.release();
  const fourth = await locks.acquire('given up', { owner: 'other' });
  stop.abort(new Error('gone'));
  await assert.rejects(polling, /gone/);
  busy.release();
  await one.status(['given up']);
  await fourth.extend();
  await fourth.release();
  await small.end();
});

test('an abort is heard at once, whatever the call is about to do', async () => {
  const hung = async (call, there) => {
    const giveUp = new AbortController();
    let heard;
    const given = call(giveUp.signal).catch((error) => { heard = error.message; });
    await there();
    giveUp.abort(new Error('gone'));
    await new Promise((resolve) => { setImmediate(resolve); });
    assert.equal(heard, 'gone');
    await given;
  };
  const blocker = new pg.Client(server.config('postgres'));
  await blocker.connect();
  const blocked = (query) => server.until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ $1", [query]);

  // It asks where the extension is.
  await blocker.query('BEGIN; LOCK TABLE pg_extension IN ACCESS EXCLUSIVE MODE');
  await hung((signal) => new Locks(pool).acquire('abort', { signal }), () => blocked('extversion'));
  await blocker.query('ROLLBACK');

  // It stays until an earlier call of the owner has ended.
  const patient = new Locks(pool, { patience: 3600000 });
  await patient.status(['abort']);
  const first = new AbortController();
  await blocker.query('BEGIN; LOCK TABLE app_lock, app_lock_queue IN ACCESS EXCLUSIVE MODE');
  const left = assert.rejects(patient.acquire('abort', { owner: 'form', signal: first.signal }), /left/);
  await blocked('lock_try_acquire');
  first.abort(new Error('left'));
  await blocked('lock_leave');
  await hung((signal) => patient.acquire('abort', { owner: 'form', signal }), async () => {});
  await blocker.end();
  await left;
});

test('a lease counts from when the statement was sent, and not from when the call began', async (t) => {
  const small = new pg.Pool({ ...server.config(), max: 1 });
  const one = new Locks(small);
  await one.status(['sent']);
  const busy = await small.connect();
  const acquired = one.acquire('sent', { ttl: '30 min' });
  while (small.waitingCount === 0) await new Promise((resolve) => { setImmediate(resolve); });
  const { now } = performance;
  t.mock.method(performance, 'now', () => now.call(performance) + 3600000); // the connection comes an hour later
  busy.release();
  const lock = await acquired;
  assert.ok(lock.isOurs());
  await lock.release();
  await small.end();
});

test('durations are those of the server', async () => {
  for (const text of ['0', '0 s', '1', '1.5 s', '100 msec', '20 ms', '3 secs', '1 m', '2 min', '1 hr', '2 hours', '1 day', '2 weeks']) {
    const [{ ms }] = await server.sql('SELECT extract(epoch FROM $1::interval) * 1000 AS ms', [text]);
    assert.equal(milliseconds(text), Number(ms), text);
  }
  for (const other of [null, '1 min 30 s', '00:00:03', '1 century']) assert.equal(milliseconds(other), Infinity);
});

test('run() gives an answer, releases, and passes errors on', async (t) => {
  hasten(t);
  assert.equal(await locks.run('run', {}, async (lock, signal) => (lock.isOurs() && !signal.aborted ? 'done' : 'lost')), 'done');
  assert.equal(await locks.run('run', undefined, () => 'done'), 'done');
  await assert.rejects(locks.run('run', {}, () => { throw new RangeError('of the work'); }), RangeError);
  assert.equal((await locks.status(['run']))[0].locked, false);
  await thrown(locks.run('run', { ttl: '1 h' }, async (lock, signal) => {
    await server.sql("SELECT force_release('run', 'test')");
    await aborted(signal);
  }), LockLost, { reason: 'forced' });
  const stop = new AbortController();
  await assert.rejects(locks.run('run', { signal: stop.signal }, async (lock, signal) => {
    stop.abort();
    signal.throwIfAborted();
  }), { name: 'AbortError' });
  assert.equal((await locks.status(['run']))[0].locked, false);
});

test('Symbol.asyncDispose releases', async () => {
  const lock = await locks.acquire('using');
  await lock[Symbol.asyncDispose]();
  await lock.release();
  assert.equal((await locks.status(['using']))[0].locked, false);
});

test('guards: a write under the lock, without it, and of a form that is stale', async () => {
  await server.sql(`CREATE TABLE orders (id int PRIMARY KEY, note text); INSERT INTO orders VALUES (42, 'new'); GRANT SELECT, UPDATE ON orders TO shop;
    SELECT lock_protect('orders', 'order:{id}')`);
  const write = (client) => client.query('UPDATE orders SET note = $1 WHERE id = 42 RETURNING note', ['written']);
  const lock = await locks.acquire(lockKey('order', 42), { owner: 'form-42' });
  assert.equal((await lock.transaction(write)).rows[0].note, 'written');
  await thrown(locks.transaction({ owner: 'form-43' }, write), LockLost, { reason: 'not_held', code: 'LK006' });
  await lock.release();
  const again = await locks.acquire('order:42', { owner: 'form-42' });
  await thrown(lock.transaction(write), LockLost, { reason: 'stale', code: 'LK005' });
  assert.equal((await again.transaction(write)).rowCount, 1);
  // The pool's connections have forgotten the owner.
  await assert.rejects(pool.query("UPDATE orders SET note = '' WHERE id = 42"), { code: 'LK006' });
  await assert.rejects(lock.transaction((client) => client.query('SELECT 1 / 0')), { code: '22012' });
  await assert.rejects(again.transaction((client) => client.query('SELECT 1 / 0').catch(() => 'swallowed')), /rolled back/);
  await again.release();
});

test('assert() in a transaction of the caller', async () => {
  const lock = await locks.acquire('asserted');
  const client = await pool.connect();
  await assert.rejects(lock.assert(client), /needs a transaction/);
  await client.query('BEGIN');
  await lock.assert(client);
  const [status] = await locks.status(['asserted']);
  assert.equal(status.pending, true);
  await client.query('ROLLBACK');
  await server.sql("SELECT force_release('asserted', 'test')");
  await client.query('BEGIN');
  await thrown(lock.assert(client), LockLost, { reason: 'forced', why: 'test' });
  await client.query('ROLLBACK');
  client.release();
  await lock.release().catch(() => {});
});

test('errors are classes', async () => {
  await server.sql("SELECT lock_set_policy('theirs:', roles => '{postgres}'), lock_set_policy('few:', max_keys_per_role => 1), lock_set_policy('short:', max_lifetime => '1 s')");
  await thrown(locks.acquire('theirs:1'), LockDenied, { code: '42501' });
  const few = await locks.acquire('few:1');
  await thrown(locks.acquire('few:2'), LockQuota, { code: '53400' });
  await few.release();
  const short = await locks.acquire('short:1', { ttl: 500 });
  await aborted(short.signal);
  assert.equal(short.lost.reason, 'expired');
  await assert.rejects(locks.acquire('k', { ttl: '2 centuries' }), { code: '22023' });

  // Errors that only other functions or servers raise
  const { translate } = await import('../lib/errors.js');
  const of = (text, ...values) => pool.query(text, values).catch((error) => { throw translate(error); });
  await thrown(of("SELECT lock_release('nobody', 'x')"), LockLost, { reason: 'not_found', code: 'LK002' });
  const lock = await locks.acquire('theirs', { owner: 'x' });
  await thrown(of("SELECT lock_release('theirs', 'y')"), LockLost, { reason: 'not_owner', code: 'LK003' });
  await lock.release();
  await thrown(of("SELECT lock_release('theirs', 'x')"), LockLost, { reason: 'already_released', code: 'LK004' });
  await server.sql('GRANT EXECUTE ON FUNCTION force_release TO shop');
  const grant = await locks.acquire('theirs');
  await thrown(of("SELECT force_release('theirs', 'test', 1)"), LockChanged, { code: 'LK011' });
  await thrown(of("SELECT lock_fetch(NULL::orders, '42', owner => 'x', expect => '{\"id\": 2}')"), LockStale, { code: 'LK012' });
  await grant.release();
  await server.sql("ALTER ROLE shop SET atomic_lock.partitions = 2; ALTER ROLE shop SET atomic_lock.partition = -1");
  const other = new pg.Pool(server.config());
  const elsewhere = new Locks(other), events = elsewhere.listen(['k']);
  await thrown(elsewhere.acquire('k'), LockPartition, { code: 'LK010' });
  assert.deepEqual((await events.next()).value, { event: 'denied', key: 'k' });
  events.end();
  await other.end();
  await server.sql('ALTER ROLE shop RESET ALL');
  const client = await pool.connect();
  await client.query('BEGIN');
  await client.query("SELECT lock_acquire('short:2', '1 s', 'z'), lock_release('short:2', 'z')");
  await client.query('SELECT pg_sleep_until(clock_timestamp() + interval \'1 s\')');
  const again = client.query("SELECT lock_acquire('short:2', '1 s', 'z')").catch((error) => { throw translate(error); });
  await again.catch(() => {});
  await client.query('ROLLBACK');
  client.release();
  await thrown(again, LockLifetimeExceeded, { code: 'LK008' });
});

test('a deadlock of two owners', async () => {
  const [a, b] = [await locks.acquire('dead:a', { owner: 'a' }), await locks.acquire('dead:b', { owner: 'b' })];
  let victims = 0;
  const wait = async (mine, key, owner) => {
    try {
      await (await locks.acquire(key, { owner, wait: '1 min' })).release();
    } catch (error) {
      assert.equal(error.constructor, LockDeadlock);
      victims++;
    }
    await mine.release(); // the other one goes on
  };
  await Promise.all([wait(a, 'dead:b', 'a'), wait(b, 'dead:a', 'b')]);
  assert.equal(victims, 1);
});

test('the extension is missing, or too old', async () => {
  await server.sql('CREATE DATABASE empty');
  const other = new pg.Pool(server.config('shop', 'empty'));
  const none = new Locks(other);
  await assert.rejects(none.acquire('k'), (error) => error instanceof LockSetup && /"empty" has no extension atomic_lock.*CREATE EXTENSION/.test(error.message));
  await server.sql("UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'atomic_lock'");
  const old = new Locks(pool);
  await assert.rejects(old.acquire('k'), (error) => error instanceof LockSetup && /version 0\.9, and this package needs 1\.0.*ALTER EXTENSION/.test(error.message));
  await server.sql("UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'atomic_lock'");
  await (await old.acquire('k')).release();
  await other.end();
});

test('the extension in a schema that is not in the path', async () => {
  await server.sql('CREATE DATABASE hidden');
  const setup = new pg.Client(server.config('postgres', 'hidden'));
  await setup.connect();
  await setup.query(`CREATE SCHEMA "$& ""Of"" Locks"; CREATE EXTENSION atomic_lock SCHEMA "$& ""Of"" Locks"; SELECT "$& ""Of"" Locks".lock_grant_access('shop', 'user')`);
  await setup.end();
  const other = new pg.Pool(server.config('shop', 'hidden'));
  for (const options of [{}, { schema: '$& "Of" Locks' }]) {
    const lock = await new Locks(other, options).acquire('k');
    await lock.transaction((client) => lock.assert(client));
    await lock.release();
  }
  await other.end();
});

test('lockKey() writes keys as lock_key() does', async () => {
  for (const parts of [['order', '42'], ['a:b', 'c\\d', ''], [':', '\\:'], ['ü', '🔒']]) {
    const [{ key }] = await server.sql('SELECT lock_key(VARIADIC $1::text[]) AS key', [parts]);
    assert.equal(lockKey(...parts), key);
  }
  for (const part of [undefined, null, {}, []]) assert.throws(() => lockKey('order', part), TypeError);
});

test('owners are shown nowhere', async (t) => {
  hasten(t);
  const owner = 'secret-8f14e45f';
  const seen = [];
  const lock = await locks.acquire('secret', { owner, ttl: '1 h' });
  seen.push(lock, locks, lock.signal);
  seen.push(await locks.acquire('secret', { owner: `${owner}-2` }).catch((error) => error));
  seen.push(await locks.acquire('secret', { owner, ttl: '2 centuries' }).catch((error) => error));
  seen.push(await locks.acquire('secret', { owner, onReacquire: 'error' }).catch((error) => error));
  seen.push(await locks.transaction({ owner: `${owner}-3` }, (client) => client.query('UPDATE orders SET id = id')).catch((error) => error));
  await server.sql("SELECT force_release('secret', 'test')");
  await aborted(lock.signal);
  seen.push(lock.lost, await lock.release().catch((error) => error));
  assert.equal(lock.owner, owner);
  assert.equal(seen.length, 9);
  for (const each of seen) {
    assert.doesNotMatch(inspect(each, { showHidden: true, depth: 20 }) + JSON.stringify(each) + String(each), /secret-8f/);
  }
  assert.doesNotMatch(server.log(), /secret-8f/);
  const [{ shown }] = await server.sql("SELECT count(*) FILTER (WHERE query ~ 'secret-8f') AS shown FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
  assert.equal(shown, '0');
});
