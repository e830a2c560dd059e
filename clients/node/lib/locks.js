// Locks: one for each application

import { randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import { Calls, interval, json, milliseconds, number } from './calls.js';
import { editing } from './editing.js';
import { LockDeadlock, LockHeld, LockHeldByOwner, LockLifetimeExceeded, LockUnreachable } from './errors.js';
import { Events } from './listener.js';
import { Lock, runUnder } from './lock.js';

// The key that lock_key() makes of texts and numbers
export function lockKey(...parts) {
  for (const part of parts) if (!['string', 'number', 'bigint'].includes(typeof part)) throw new TypeError(`a key is made of texts and numbers, and not of ${part}`);
  return parts.map((part) => String(part).replace(/[\\:]/g, '\\$&')).join(':');
}

const refusals = {
  deadlock: [LockDeadlock, '40P01'], held_by_owner: [LockHeldByOwner, 'LK007'], lifetime_exceeded: [LockLifetimeExceeded, 'LK008'],
};

export class Locks {
  #calls;
  #holder;

  constructor(pool, { schema, channel, holder, patience = 30000 } = {}) {
    this.#calls = new Calls(pool, { schema, channel, patience });
    this.#holder = holder;
  }

  // Takes the lock, or throws LockHeld.  A heartbeat keeps it until it is released or lost.
  async acquire(key, { owner: given, ttl, wait = 0, mode = 'exclusive', maxHolders, holder = this.#holder, meta, onReacquire, signal } = {}) {
    const owner = given ?? randomUUID();
    const again = given ? onReacquire : 'extend'; // a new owner has the lock by this call only
    const call = { signal };
    const take = async (longest, once) => {
      Object.assign(call, { wait: milliseconds(longest), once });
      const answered = await this.#calls.ask(
        `SELECT status, mode, holder, fencing_token, acquired_at, expires_at, extract(epoch FROM waited + ttl_remaining) * 1000 AS left
         FROM @lock_try_acquire($1, ttl => $2, owner => $3, mode => $4, wait => $5, holder => $6, meta => $7, max_holders => $8, on_reacquire => $9)`,
        [key, interval(ttl), owner, mode, interval(longest), holder, json(meta), maxHolders, again], call);
      call.sent = undefined;
      return answered;
    };
    let answer;
    try {
      signal?.throwIfAborted();
      await this.#calls.stay(key, owner, signal);
      answer = await this.#calls.waitFor(take, wait, signal);
    } catch (error) {
      // Of a call without an answer nobody knows whether it has the lock.
      if (call.sent && (signal?.aborted || error instanceof LockUnreachable)) await this.#calls.quit(key, owner);
      throw error;
    }
    const { status, holder: other, acquired_at: since, expires_at: until } = answer.row;
    if (/^(re)?acquired$/.test(status)) {
      const lock = new Lock(this.#calls, key, owner, answer);
      if (!signal?.aborted) return lock;
      await lock.release().catch(() => {}); // the cancel came too late
      throw signal.reason;
    }
    if (status === 'held_by_owner' && call.lost) throw new LockUnreachable(`an answer was lost: the owner has lock "${key}" by this call or by an earlier one`);
    const [Refusal, code] = refusals[status] ?? [LockHeld, '55P03'];
    throw new Refusal(`lock "${key}" is not free (${status})${other === null ? '' : `: ${other} has it or comes first`}`,
      { code, key, status, holder: other, since, until });
  }

  // Runs work(lock, signal) under the lock
  async run(key, options = {}, work) {
    return runUnder(await this.acquire(key, options), options.signal, work);
  }

  // Waits in line for the lock, and runs work(lock, signal) while we have it; again after a
  // loss, until the work ends by itself or options.signal is aborted
  async lead(name, options = {}, work) {
    for (;;) {
      let lock, done;
      try {
        for await (const turn of this.#line(name, options)) lock = turn.lock;
        return await runUnder(lock, options.signal, async (...under) => {
          const answer = await work(...under);
          if (!lock.lost) done = { answer };
          return answer;
        });
      } catch (error) {
        if (done) return done.answer; // only the release has failed
        if (options.signal?.aborted || !(lock ? lock.lost : error instanceof LockUnreachable)) throw error;
      }
      await pause(500 + Math.random() * 500, undefined, { signal: options.signal ?? undefined }).catch(() => {});
    }
  }

  // A place in line that needs no connection.  Yields { state: 'queued', place, holder },
  // { state: 'offered', until }, { state: 'acquired', lock } and { state: 'lost', error }.
  // To go on after 'offered' takes the lock; to leave the loop gives up the place or the lock.
  async *queue(key, options = {}) {
    let lock;
    try {
      for await (const turn of this.#line(key, options)) {
        ({ lock } = turn);
        yield turn;
      }
      const { signal } = options;
      signal?.throwIfAborted();
      let stop;
      const stopped = new Promise((resolve) => { stop = resolve; });
      signal?.addEventListener('abort', stop);
      const error = await Promise.race([lock.ended, stopped]).finally(() => signal?.removeEventListener('abort', stop));
      signal?.throwIfAborted();
      if (error) yield { state: 'lost', error };
    } finally {
      await lock?.release().catch(() => {});
    }
  }

  async *#line(key, { owner = randomUUID(), holder = this.#holder, offer, keep = '2 min', ttl, meta, poll = 30000, signal }) {
    const call = { signal };
    let events, last, done;
    try {
      for (;;) {
        const answer = await this.#calls.enqueue(key, { owner, holder, offer, keep, ttl, meta }, call);
        signal?.throwIfAborted(); // the cancel came too late
        const { status, ticket, place } = answer.row;
        if (status !== 'queued') {
          done = true;
          yield { state: 'acquired', lock: new Lock(this.#calls, key, owner, answer) };
          return;
        }
        if (place !== last) yield { state: 'queued', place, holder: answer.row.holder };
        last = place;
        // An event is a hint that it is time to ask; the answer counts.
        events ??= this.listen([key], { signal });
        const event = await events.heard((each) => each.event === 'connected' || (each.event === 'offered' && each.ticket === ticket), poll);
        if (event?.event !== 'offered') continue;
        yield { state: 'offered', until: new Date(event.until) };
        last = undefined; // a missed turn costs the place; the next place may have the same number
      }
    } finally {
      events?.end();
      if (!done && call.sent) await this.#calls.quit(key, owner);
    }
  }

  // Events of these keys.  { event: 'connected' } comes first, and after each loss of the
  // connection: events were lost, so ask.
  listen(keys, { signal } = {}) {
    return new Events(this.#calls.listener, keys, signal);
  }

  async status(keys) {
    const { rows } = await this.#calls.ask(
      `SELECT key, locked, pending, mode, holder, acquired_at AS since, expires_at AS until, extract(epoch FROM ttl_remaining) * 1000 AS left,
         fencing_token AS "fencingToken", queued, waiters, meta
       FROM unnest($1::text[]) AS k, LATERAL @lock_status(k)`, [keys]);
    return rows.map((row) => ({ ...row, left: number(row.left), fencingToken: number(row.fencingToken) }));
  }

  // Tells the holders of the key that another owner wants it; returns their number
  async ask(key, message) {
    return (await this.#calls.ask('SELECT @lock_ask($1, $2) AS holders', [key, message])).row.holders;
  }

  // A transaction of this owner; with its fencing token, guards accept no other
  // grant.  A write may be refused with LockLost, and then nothing was written.
  transaction(grant, work) {
    return this.#calls.transaction(grant, work);
  }

  // The server's side of an edit form: a handler for node:http and Express
  editing(key, options) {
    return editing(this, this.#calls, key, options);
  }
}
