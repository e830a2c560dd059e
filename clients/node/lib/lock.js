// A lease that a heartbeat keeps, and its local deadline

import { present } from './calls.js';
import { LockLost, translate } from './errors.js';

const longest = 2 ** 31 - 1; // of a timer

export class Lock {
  #calls;
  #owner;
  #deadline;
  #watching;
  #beating;
  #lost = new AbortController();
  #over = false; // lost or released; why it was lost may still be asked
  #extended = Promise.resolve();
  #stopped = false; // there are no more heartbeats
  #released;
  #end;

  constructor(calls, key, owner, { row, asked }) {
    Object.assign(this, { key, mode: row.mode ?? 'exclusive', status: row.status, fencingToken: Number(row.fencing_token) });
    this.#calls = calls;
    this.#owner = owner;
    // Resolved with the LockLost, or with null after a release
    this.ended = new Promise((resolve) => { this.#end = resolve; });
    this.#keep(asked + Number(row.left));
  }

  // A secret: console.log() and JSON do not show what is behind an accessor
  get owner() {
    return this.#owner;
  }

  // Aborted when the lock is lost
  get signal() {
    if (!this.isOurs()) this.#lose('expired'); // the timer may be late
    return this.#lost.signal;
  }

  // The LockLost, or null
  get lost() {
    return this.signal.reason ?? null;
  }

  // By our own monotonic clock, so no server can keep us waiting
  isOurs() {
    return performance.now() < this.#deadline;
  }

  // Repeats the length of the lease, or gives it another.  One after the other: the last answer counts.
  extend(ttl) {
    const turn = this.#extended.then(() => this.#extend(ttl));
    this.#extended = turn.catch(() => {});
    return turn;
  }

  async #extend(ttl) {
    if (this.lost) throw this.lost;
    if (this.#stopped) return;
    const { row, asked } = await this.#calls.heartbeat(this.key, this.#owner, ttl, this.#deadline);
    if (this.lost) throw this.lost;
    if (this.#stopped || row.status === 'pending') return;
    if (row.left === null) throw await this.#lose(row.status);
    this.#keep(asked + Number(row.left));
  }

  // Ends the lease.  Throws LockLost if it was not ours to the end.  After LockUnreachable, it may
  // be called again.
  release() {
    this.#stopped = true;
    clearTimeout(this.#beating);
    this.#released ??= this.#release().catch((error) => {
      if (this.lost) throw this.lost;
      this.#released = undefined;
      throw error;
    });
    return this.#released;
  }

  async #release() {
    const { row } = await this.#calls.ask('SELECT @lock_try_release($1, $2) AS answer', [this.key, this.#owner],
      { until: Math.min(this.#deadline, performance.now() + this.#calls.patience) });
    if (this.lost) throw this.lost;
    // already_released: the answer to an earlier try was lost
    if (!/released$/.test(row.answer)) throw await this.#lose(row.answer);
    this.#finish();
    this.#end(null);
  }

  [Symbol.asyncDispose]() {
    return this.release();
  }

  // A transaction under this grant, for guards
  transaction(work) {
    return this.#calls.transaction(this, work);
  }

  // In a transaction of the caller's: proves that we have the lock by this grant, and keeps it
  // to the commit.  Guards know us from then on.
  async assert(client) {
    try {
      await present(client, this.#owner, this.fencingToken);
      await client.query(`SELECT ${await this.#calls.schema()}.lock_assert($1)`, [this.key]);
    } catch (error) {
      if (error.code === '22004') throw new Error('lock.assert() needs a transaction: say BEGIN before', { cause: error });
      throw translate(error, { only: /^LK/ });
    }
  }

  #keep(deadline) {
    this.#deadline = deadline;
    this.#watch();
    this.#plan();
  }

  // Apart from the heartbeat, which may get no answer
  #watch() {
    clearTimeout(this.#watching);
    const left = this.#deadline - performance.now();
    if (left <= 0) this.#lose('expired');
    else this.#watching = setTimeout(() => this.#watch(), Math.min(Math.ceil(left), longest));
  }

  // A heartbeat at each third of the time left
  #plan() {
    clearTimeout(this.#beating);
    if (this.#stopped || this.#over) return;
    this.#beating = setTimeout(async () => {
      await this.extend().catch(() => {}); // the clock decides
      this.#plan();
    }, Math.min(Math.max((this.#deadline - performance.now()) / 3, 0), longest));
  }

  #finish() {
    this.#over = true;
    this.#deadline = -Infinity;
    clearTimeout(this.#watching);
    clearTimeout(this.#beating);
  }

  async #lose(reason) {
    if (this.#over) return this.#lost.signal.reason ?? this.ended;
    this.#finish();
    const told = reason === 'forced' && await this.#calls.forced(this.key, this.#owner);
    this.#lost.abort(told || new LockLost(`lock "${this.key}" is lost (${reason})`, { reason }));
    this.#end(this.#lost.signal.reason);
    return this.#lost.signal.reason;
  }
}

// Runs work(lock, signal).  The signal is also aborted when the lock is lost.
export async function runUnder(lock, signal, work) {
  let answer;
  try {
    const under = signal ? AbortSignal.any([lock.signal, signal]) : lock.signal;
    under.throwIfAborted();
    answer = await work(lock, under);
  } catch (error) {
    await lock.release().catch(() => {});
    throw error;
  }
  await lock.release();
  return answer;
}
