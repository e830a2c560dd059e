// Answers that are lost, a server that restarts, a standby, 08007, and PgBouncer in
// transaction mode.  All calls are repeated with the same owner.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before } from 'node:test';
import pg from 'pg';
import { LockUnreachable, Locks } from '../index.js';
import { hasten, startServer, test } from './server.js';

let server, pool, locks;

before(async () => {
  server = await startServer();
  pool = new pg.Pool(server.config());
  locks = new Locks(pool, { patience: 300000 });
});
after(async () => {
  await pool.end();
  await server.end();
});

// A way to the server, on which the answers to statements that match get lost, or, while it is
// silent, everything
async function leakyWay(lose) {
  const dir = mkdtempSync(join(tmpdir(), 'alw-'));
  const way = { lost: 0, silent: false, socket: dir };
  const sockets = [];
  const listening = net.createServer((from) => {
    const to = net.connect(join(server.socket, '.s.PGSQL.5432'));
    sockets.push(from);
    let losing = false;
    from.on('data', (data) => {
      if (way.silent) return;
      losing ||= lose.test(data.toString('latin1')) && way.lost < way.wanted;
      to.write(data);
    });
    to.on('data', (data) => {
      if (way.silent) return undefined;
      if (!losing) return from.write(data);
      // It is the answer to a whole statement that is lost.
      if (!data.toString('latin1').includes('SELECT 1')) return undefined;
      way.lost++;
      to.destroy();
      return from.destroy();
    });
    from.on('close', () => to.destroy()).on('error', () => {});
    to.on('close', () => from.destroy()).on('error', () => {});
  });
  listening.listen(join(dir, '.s.PGSQL.5432'));
  await once(listening, 'listening');
  way.end = () => {
    listening.close();
    for (const socket of sockets) socket.destroy();
    rmSync(dir, { recursive: true });
  };
  return way;
}

test('a lost answer: acquire, heartbeat, release', async () => {
  const way = await leakyWay(/lock_(try_acquire|heartbeat|try_release)/);
  const leaky = new pg.Pool(server.config('shop', 'postgres', way.socket));
  const through = new Locks(leaky);
  way.wanted = 2;
  const lock = await through.acquire('lost', { ttl: '1 min' });
  assert.deepEqual([way.lost, lock.status], [2, 'reacquired']);
  way.wanted = 3;
  await lock.extend('2 min');
  assert.equal(way.lost, 3);
  assert.ok(lock.isOurs());
  way.wanted = 4;
  await lock.release();
  assert.equal(way.lost, 4);
  assert.equal((await locks.status(['lost']))[0].locked, false);

  // The owner of this call is new: the lock is its own.
  way.wanted = 5;
  const own = await through.acquire('lost', { onReacquire: 'error' });
  assert.deepEqual([way.lost, own.status], [5, 'reacquired']);
  await own.release();
  // This owner may have had the lock before, so the call does not end it.
  way.wanted = 6;
  await assert.rejects(through.acquire('lost', { owner: 'form', ttl: '1 h', onReacquire: 'error' }), LockUnreachable);
  assert.equal(way.lost, 6);
  const kept = await locks.acquire('lost', { owner: 'form' });
  assert.equal(kept.status, 'reacquired');
  await kept.release();

  // The server does not answer for longer than the patience: what was granted is given back later.
  way.wanted = Infinity;
  const impatient = new Locks(leaky, { patience: 200 });
  const failed = impatient.acquire('lost', { ttl: '1 h' });
  await assert.rejects(failed, LockUnreachable);
  way.wanted = 0;
  await server.until("SELECT NOT locked FROM lock_status('lost')");
  await leaky.end();
  way.end();
});

test('a page whose open gets no answer keeps no lock, unless it asks again', async (t) => {
  const way = await leakyWay(/lock_try_acquire/);
  const leaky = new pg.Pool(server.config('shop', 'postgres', way.socket));
  const form = new Locks(leaky).editing(() => 'unanswered', { user: () => 'Alice', session: () => 'secret', ttl: '1 h' });
  const open = async () => {
    const res = Object.assign(new EventEmitter(), { writeHead: (status) => Object.assign(res, { status }), end: (text) => Object.assign(res, { answer: JSON.parse(text) }) });
    await form({ method: 'POST', headers: { 'content-type': 'application/json' }, body: { action: 'open', page: 'page-of-alice-00' } }, res);
    return res;
  };
  way.wanted = 1;
  const { now } = performance;
  t.mock.method(performance, 'now', () => now.call(performance) + way.lost * 3600000); // so long for one answer
  assert.equal((await open()).status, 503);
  assert.equal(way.lost, 1);
  await server.until("SELECT NOT locked FROM lock_status('unanswered')");
  way.wanted = 2;
  assert.equal((await open()).status, 503);
  assert.equal((await open()).answer.state, 'editing');
  await server.until("SELECT locked FROM lock_status('unanswered')");
  await leaky.end();
  way.end();
});

test('a connection that goes silent: calls end, and heartbeats go on by another one', async () => {
  const way = await leakyWay(/^$/);
  const leaky = new pg.Pool(server.config('shop', 'postgres', way.socket));
  const through = new Locks(leaky, { patience: 3000 });
  const lock = await through.acquire('silent', { ttl: '5 min' });
  const other = await through.acquire('other', { ttl: '1 h' });
  way.silent = true;
  const extended = lock.extend();
  await Promise.all([assert.rejects(through.acquire('another'), LockUnreachable), assert.rejects(other.release(), LockUnreachable)]);
  way.silent = false;
  await other.release();
  await extended;
  assert.ok(lock.isOurs());
  await lock.release();
  way.end();
  await leaky.end();
});

test('a place in line is given up at once, though the server is silent', async () => {
  const way = await leakyWay(/^$/);
  const leaky = new pg.Pool(server.config('shop', 'postgres', way.socket));
  const through = new Locks(leaky, { patience: 3600000 });
  const lock = await locks.acquire('left', { ttl: '1 h' });
  const stop = new AbortController();
  await assert.rejects(async () => {
    for await (const { state } of through.queue('left', { signal: stop.signal })) {
      assert.equal(state, 'queued');
      way.silent = true;
      stop.abort(new Error('gone'));
    }
  }, /gone/);
  way.silent = false;
  await server.until("SELECT queued = 0 FROM lock_status('left')");
  await lock.release();
  await leaky.end();
  way.end();
});

test('a restart in the middle: the lock is kept, the line and the listener go on', async () => {
  const lock = await locks.acquire('restart', { ttl: '1 min', holder: 'Alice' });
  await server.sql("SELECT lock_set_policy('restart', notify => true)");
  const states = [];
  const waiting = (async () => {
    for await (const { state } of locks.queue('restart', { holder: 'Bob', poll: 3600000 })) {
      states.push(state);
      if (state === 'acquired') break;
    }
  })();
  await server.until("SELECT queued = 1 FROM lock_status('restart')");
  await server.stop('immediate');
  const extended = lock.extend(); // asks until the server is there
  await server.start();
  await extended;
  assert.ok(lock.isOurs());
  await lock.release();
  await waiting;
  assert.deepEqual([states[0], states.at(-1)], ['queued', 'acquired']);
  await server.until("SELECT NOT locked FROM lock_status('restart')");
});

test('a lease that runs out while the server is down', async () => {
  const lock = await locks.acquire('down', { ttl: 900 });
  await server.stop('immediate');
  const error = await lock.ended;
  assert.equal(error.reason, 'expired');
  assert.equal(lock.signal.aborted, true);
  await server.start();
  await assert.rejects(lock.release(), error);
});

test('a server that is read-only, as a standby is', async () => {
  await server.sql('ALTER SYSTEM SET default_transaction_read_only = on');
  await server.sql('SELECT pg_reload_conf()');
  await server.until("SELECT current_setting('default_transaction_read_only') = 'on'");
  let done = false;
  const acquired = locks.acquire('standby').finally(() => { done = true; });
  await server.until("SELECT pg_read_file($1) ~ 'cannot execute lock_try_acquire\\(\\) in a read-only transaction'", [`${server.socket}/log`]);
  assert.equal(done, false);
  const client = new pg.Client({ ...server.config('postgres'), options: '-c default_transaction_read_only=off' });
  await client.connect();
  await client.query('ALTER SYSTEM RESET default_transaction_read_only');
  await client.query('SELECT pg_reload_conf()');
  await client.end();
  await (await acquired).release();
});

test('08007: a grant that no standby has confirmed is asked for again', async () => {
  await server.sql("ALTER SYSTEM SET synchronous_standby_names = 'absent'");
  await server.sql('SELECT pg_reload_conf()');
  const waiting = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
  await server.until("SELECT current_setting('synchronous_standby_names') = 'absent'");
  const acquired = locks.acquire('unconfirmed', { ttl: '1 h' });
  await server.until(waiting);
  const [{ pid }] = await server.sql("SELECT pid, pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
  await server.until(`${waiting.replace(' WHERE', ` WHERE pid <> ${pid} AND`)}`); // on another connection
  assert.match(server.log(), /FATAL: .*\n/);
  await server.sql('ALTER SYSTEM RESET synchronous_standby_names');
  await server.sql('SELECT pg_reload_conf()');
  const lock = await acquired;
  assert.equal(lock.status, 'reacquired');
  await lock.release();
});

test('behind PgBouncer in transaction mode', async (t) => {
  const pgbouncer = '/usr/sbin/pgbouncer';
  if (!existsSync(pgbouncer)) return t.skip('no PgBouncer');
  hasten(t);
  const dir = mkdtempSync(join(tmpdir(), 'alb-'));
  writeFileSync(join(dir, 'ini'), `[databases]
* = host=${server.socket} user=shop
[pgbouncer]
listen_addr =
unix_socket_dir = ${dir}
listen_port = 5432
auth_type = any
pool_mode = transaction
default_pool_size = 2
logfile = ${dir}/log
pidfile = ${dir}/pid
`);
  const bouncer = spawn(pgbouncer, ['-q', join(dir, 'ini')], { stdio: 'ignore' });
  const pooled = new pg.Pool({ ...server.config('shop', 'postgres', dir), max: 4 });
  try {
    const behind = new Locks(pooled, { channel: { host: server.socket } });
    // It may not listen yet: then the call is repeated.
    const lock = await behind.acquire('pooled', { ttl: '1 h', owner: 'alice' });
    await lock.transaction((client) => lock.assert(client));
    const [{ owner }] = (await pooled.query("SELECT current_setting('atomic_lock.owner', true) AS owner")).rows;
    assert.ok(!owner); // the next transaction is not Alice
    const stop = new AbortController();
    const cancelled = behind.acquire('pooled', { wait: '1 min', signal: stop.signal });
    await server.until("SELECT waiters = 1 FROM lock_status('pooled')");
    stop.abort(new Error('gone'));
    await assert.rejects(cancelled, /gone/);
    const states = [];
    for await (const turn of behind.queue('pooled', { poll: 3600000 })) {
      states.push(turn.state);
      if (turn.state === 'queued') server.until("SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ '^LISTEN'").then(() => lock.release());
      if (turn.state === 'acquired') break;
    }
    assert.deepEqual([states[0], states.at(-1)], ['queued', 'acquired']);
  } finally {
    await pooled.end();
    bouncer.kill('SIGKILL');
    rmSync(dir, { recursive: true });
  }
  return undefined;
});

test('a program whose listener and idle connections are ended goes on, and ends by itself', () => {
  const program = `
    import pg from 'pg';
    import { Locks } from '${new URL('../index.js', import.meta.url)}';
    const pool = new pg.Pool(${JSON.stringify(server.config('postgres'))});
    const locks = new Locks(pool);
    const events = locks.listen(['k']);
    await events.next();
    await locks.status(['k']);
    const other = new pg.Client(${JSON.stringify(server.config('postgres'))});
    await other.connect();
    await other.query("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename = 'postgres'");
    await other.end();
    console.log((await events.next()).value.event);
    events.end();
    await (await locks.acquire('k', { ttl: '1 h' })).release();
    await pool.end();
  `;
  const said = execFileSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8', cwd: new URL('..', import.meta.url) });
  assert.equal(said, 'connected\n');
});
