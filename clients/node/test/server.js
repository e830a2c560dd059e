// A private server for tests: it listens on a socket in a directory of its own and starts in
// a second.  PG_BIN names the programs of a PostgreSQL that has the extension.

import { execFile, execFileSync } from 'node:child_process';
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test as unlimited } from 'node:test';
import { promisify } from 'node:util';
import pg from 'pg';

const run = promisify(execFile);
const bin = process.env.PG_BIN ?? execFileSync('pg_config', ['--bindir'], { encoding: 'utf8' }).trim();

// A test that hangs fails by its name, long before the time of all tests runs out.
export const test = (name, ...more) => unlimited(name, { timeout: 360000, ...(more.length > 1 && more[0]) }, more.at(-1));

// In this test, heartbeats of leases of an hour come at once.  So no lease is so short that a slow
// machine loses it.
export function hasten(t) {
  const { setTimeout: real } = globalThis;
  const third = 20 * 60000;
  t.mock.method(globalThis, 'setTimeout', (then, time, ...more) => real(then, time > third - 60000 && time <= third ? 20 : time, ...more));
}

export async function startServer({ settings = '', extension = true } = {}) {
  const dir = mkdtempSync(join(tmpdir(), 'alc-'));
  const data = join(dir, 'data');
  const control = (...args) => run(join(bin, 'pg_ctl'), ['-D', data, '-l', join(dir, 'log'), '-w', ...args]);
  const server = {
    socket: dir,
    config: (user = 'shop', database = 'postgres', host = dir) => ({ host, user, database }),
    start: () => control('start'),
    stop: (mode = 'fast') => control('-m', mode, 'stop'),
    log: () => readFileSync(join(dir, 'log'), 'utf8'),
    // The rows of one statement, as the superuser
    async sql(text, values) {
      const client = new pg.Client(server.config('postgres'));
      await client.connect();
      try {
        return (await client.query(text, values)).rows;
      } finally {
        await client.end();
      }
    },
    // Asks until the answer of SELECT is true.  The limit is for hangs.
    async until(text, values) {
      const end = Date.now() + 300000;
      while (Object.values((await server.sql(text, values))[0])[0] !== true) if (Date.now() > end) throw new Error(`never true: ${text}`);
    },
    async end() {
      await server.stop('immediate').catch(() => {});
      rmSync(dir, { recursive: true });
    },
  };
  await run(join(bin, 'initdb'), ['-D', data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C.UTF-8', '-N']);
  appendFileSync(join(data, 'postgresql.conf'),
    `listen_addresses = ''\nunix_socket_directories = '${dir}'\nport = 5432\nfsync = off\nshared_preload_libraries = 'atomic_lock'\n${settings}\n`);
  await server.start();
  if (extension) await server.sql("CREATE EXTENSION atomic_lock; CREATE ROLE shop LOGIN; SELECT lock_grant_access('shop', 'user')");
  return server;
}
