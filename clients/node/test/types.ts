// Not run as it is: types.test.js compiles it strictly, for a node without `await using`

import pg from 'pg';
import express from 'express';
import { createServer } from 'node:http';
import { LockHeld, LockLost, Locks, lockKey } from 'atomic-lock';
import type { Lock, Turn } from 'atomic-lock';
import type { Form, FormState } from 'atomic-lock/browser';

const pool = new pg.Pool(JSON.parse(process.argv[2]!));
const locks = new Locks(pool, { holder: 'types' });
const key = lockKey('order', 42);

async function block(): Promise<number> {
  await using lock: Lock = await locks.acquire(key, { ttl: '1 min', wait: null, signal: AbortSignal.timeout(600000) });
  const [status] = await locks.status([key]);
  if (!status?.locked || !lock.isOurs()) throw new Error('not locked');
  try {
    await locks.acquire(key);
  } catch (error) {
    if (!(error instanceof LockHeld)) throw error;
    console.log(error.holder, error.since!.getTime() <= error.until!.getTime());
  }
  return lock.fencingToken;
}

console.log(await block() > 0, (await locks.status([key]))[0]!.locked);
console.log(await locks.run(key, { meta: { a: 1 } }, async (lock, signal) => `${lock.mode} ${signal.aborted}`));
for await (const turn of locks.queue(key) satisfies AsyncIterable<Turn>) {
  if (turn.state === 'acquired') console.log(turn.state, turn.lock.status);
  break;
}
const handler = locks.editing<express.Request>((req) => req.params.id as string, { user: () => 'Alice', session: () => 'secret', takeOver: async () => true });
express().all('/orders/:id/lock', handler);
createServer(locks.editing((req) => req.url, { user: () => null, session: () => null })).close();
const lost = (error: unknown): string | undefined => (error instanceof LockLost && error.reason === 'forced' ? error.why : undefined);
const state = (form: Form): FormState => form.state;
const watch = (form: Form) => form.addEventListener('state', ({ detail }) => { const each: FormState = detail.state; void each; });
void watch;
// @ts-expect-error a mode that there is not
const wrong = () => locks.acquire(key, { mode: 'both' });
console.log(typeof lost, typeof state, typeof wrong);
await pool.end();
