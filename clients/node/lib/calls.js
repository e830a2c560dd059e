// Calls of the extension's functions.  A call is repeated while its answer is lost: with the
// same owner that is safe.  Owners are parameters and never part of a statement.

import { setTimeout as pause } from 'node:timers/promises';
import { LockSetup, LockUnreachable, mayPass, translate } from './errors.js';
import { Listener } from './listener.js';

const oldest = [1, 0]; // version of the extension that has all we call
const ignore = () => {};
const longest = 2 ** 31 - 1; // of a timer
const waiting = new WeakMap(); // by pool: its statements that wait for a lock

// A duration is a number of milliseconds, or an interval of PostgreSQL such as '40 min'.
export const interval = (value) => (typeof value === 'number' ? `${value} ms` : value);

const units = {
  '': 1000, ms: 1, msec: 1, s: 1000, sec: 1000, second: 1000, m: 60000, min: 60000, minute: 60000,
  h: 3600000, hr: 3600000, hour: 3600000, d: 86400000, day: 86400000, week: 604800000,
};

// The milliseconds of a duration that is a number and one unit; of every other, Infinity
export function milliseconds(value) {
  if (typeof value === 'number') return value;
  const [, count, unit] = /^\s*([\d.]+)\s*([a-z]*?)\s*$/i.exec(value ?? '') ?? [];
  const ms = Number(count) * (units[unit?.toLowerCase()] ?? units[unit?.toLowerCase().replace(/s$/, '')]);
  return Number.isNaN(ms) ? Infinity : ms;
}

// The promise's outcome, or, once the signal is aborted, its reason
async function unless(signal, promise) {
  let stop;
  const stopped = new Promise((resolve, reject) => { stop = () => reject(signal.reason); });
  if (signal?.aborted) stop();
  signal?.addEventListener('abort', stop);
  return Promise.race([promise, stopped]).finally(() => signal?.removeEventListener('abort', stop));
}

export const json = (value) => (value === undefined ? null : JSON.stringify(value));

export const number = (text) => (text === null ? null : Number(text));

export class Calls {
  #pool;
  #schema;
  #found;
  #leaving = new Map(); // by key and owner: the last leave() that is not finished

  constructor(pool, { schema, channel, patience }) {
    this.#pool = pool;
    this.#schema = schema && `"${schema.replaceAll('"', '""')}"`;
    this.patience = patience;
    this.listener = new Listener(this, pool, channel);
    pool.on('error', ignore); // a connection that was lost while idle; without a listener, node would end
  }

  // Where the extension is, and whether it has what we call
  schema() {
    this.#found ??= this.#find().catch((error) => {
      this.#found = undefined; // to be asked again
      throw error;
    });
    return this.#found;
  }

  async #find() {
    const { rows: [{ database, version, schema }] } = await this.#send(
      `SELECT pg_catalog.current_database() AS database, extversion AS version, pg_catalog.quote_ident(nspname) AS schema
       FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_extension ON extname = 'atomic_lock'
         LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = extnamespace`, [], {}, Math.min(Math.max(this.patience / 3, 1000), 10000));
    if (version === null) throw new LockSetup(`the database "${database}" has no extension atomic_lock: say CREATE EXTENSION atomic_lock`);
    const [major, minor] = version.split('.').map(Number);
    if (major < oldest[0] || (major === oldest[0] && minor < oldest[1])) {
      throw new LockSetup(`the extension atomic_lock of the database "${database}" has version ${version}, and this package needs `
        + `${oldest.join('.')} or newer: install it, and say ALTER EXTENSION atomic_lock UPDATE`);
    }
    return this.#schema ?? schema;
  }

  // @name in the statement is a function of the extension.  Answers { row, rows, asked }, where
  // asked is the moment that durations in the answer count from.  After an abort of lasting, a
  // statement under way is finished and not repeated; nor is it with once.
  // A try may take as long as the statement waits, and a part of the time there is: a connection
  // that has gone silent says nothing by itself.
  // Sets call.sent to the moment when a statement was sent: from then on it may have had its effect.
  // Sets call.lost if no answer to such a statement came.
  async ask(sql, values, call = {}) {
    const { until = performance.now() + this.patience, signal, lasting, updating, once, wait: waits = 0 } = call;
    for (let wait = 50; ; wait = Math.min(2 * wait, 2000)) {
      try {
        signal?.throwIfAborted();
        lasting?.throwIfAborted();
        const schema = await unless(signal, this.schema());
        const limit = waits + Math.min(Math.max((until - performance.now()) / 3, 1000), 10000);
        const { rows } = await this.#send(sql.replaceAll('@', () => `${schema}.`), values, call, limit);
        return { row: rows[0], rows, asked: call.sent };
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        if (!mayPass(error) && !(updating && error.code === '55000')) throw translate(error);
        if (call.sent) call.lost = true;
        if (once || performance.now() + wait > until) throw new LockUnreachable(`the server does not answer: ${error.message}`, {}, error);
      }
      await pause(wait, undefined, { signal: signal ?? lasting }).catch(ignore);
    }
  }

  // Each statement has a connection to itself until it is answered.  One that does not answer in
  // time, or not within seconds of a cancel, is closed.
  async #send(text, values, call, limit) {
    const { signal } = call;
    let client, connecting, broken, timer, late;
    const over = new Promise((resolve, reject) => { late = () => reject(new Error('timeout: no answer')); });
    over.catch(ignore);
    const within = (time) => {
      clearTimeout(timer);
      if (time <= longest) timer = setTimeout(late, time);
    };
    const cancel = () => {
      if (!client) return late();
      broken = true; // the request may arrive late, and would hit the next statement
      within(5000);
      const { connection } = new this.#pool.Client({ host: client.host, port: client.port, ssl: false, sslnegotiation: 'postgres' });
      connection?.on('error', ignore).once('connect', () => connection.cancel(client.processID, client.secretKey));
      if (client.host.startsWith('/')) connection?.connect(`${client.host}/.s.PGSQL.${client.port}`);
      else connection?.connect(client.port, client.host);
      return undefined;
    };
    within(limit);
    signal?.addEventListener('abort', cancel);
    try {
      signal?.throwIfAborted();
      connecting = this.#pool.connect();
      client = await Promise.race([connecting, over]);
      client.on('error', ignore);
      signal?.throwIfAborted();
      call.sent = performance.now();
      return await Promise.race([client.query(text, values), over]);
    } catch (error) {
      broken = true;
      throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', cancel);
      if (client) {
        client.release(broken);
        if (!broken) client.off('error', ignore);
      } else {
        connecting?.then((other) => other.release(), ignore);
      }
    }
  }

  // take(wait) asks for a lock.  If it is not free, a statement waits for it, on a connection of its
  // own.  Such statements have half of the pool's connections at most, since heartbeats need one.
  // A further call, or one that loses its connection, asks again from time to time, and is refused at
  // the end of its wait.  Where the server alone knows how long the wait is, it has to end it.
  async waitFor(take, wait, signal, worth = ({ status }) => /^(held|pending)$/.test(status)) {
    let end;
    for (;;) {
      const answer = await take(0);
      end ??= performance.now() + milliseconds(wait);
      const left = end - performance.now();
      if (left <= 0 || !worth(answer.row)) return answer;
      const waits = waiting.get(this.#pool) ?? 0;
      if (waits < Math.floor((this.#pool.options.max ?? 10) / 2) || (left === Infinity && wait !== null)) {
        waiting.set(this.#pool, waits + 1);
        try {
          return await take(left === Infinity ? wait : Math.ceil(left), true);
        } catch (error) {
          if (signal?.aborted || !(error instanceof LockUnreachable)) throw error;
        } finally {
          waiting.set(this.#pool, waiting.get(this.#pool) - 1);
        }
      }
      await pause(Math.min(left, 500 + Math.random() * 500), undefined, { signal: signal ?? undefined }).catch(ignore);
    }
  }

  // Takes the lock, or a place in line, or renews that
  async enqueue(key, { owner, holder, offer, keep, ttl, meta }, call = {}) {
    await this.stay(key, owner, call.signal);
    const answer = await this.ask(
      `SELECT status, place, ticket, holder, fencing_token, extract(epoch FROM ttl_remaining) * 1000 AS left
       FROM @lock_enqueue($1, $2, $3, $4, $5, $6, $7)`, [key, owner, holder, interval(offer), interval(keep), interval(ttl), json(meta)], call);
    answer.row.ticket = number(answer.row.ticket);
    return answer;
  }

  heartbeat(key, owner, ttl, until) {
    return this.ask('SELECT status, extract(epoch FROM ttl_remaining) * 1000 AS left FROM @lock_heartbeat(ARRAY[$1], $2, $3)',
      [key, owner, interval(ttl)], { until, updating: true });
  }

  // Gives up the place, the offer and the lock, whichever there is.  If it fails, they run out.
  leave(key, owner) {
    const name = JSON.stringify([key, owner]), before = this.#leaving.get(name), lasting = new AbortController();
    before?.lasting.abort(); // this one does the same
    const asked = this.ask('SELECT @lock_leave($1, $2), @lock_try_release($1, $2)', [key, owner], { lasting: lasting.signal }).catch(ignore);
    const leave = { lasting, done: Promise.all([before?.done, asked]).then(() => {
      if (this.#leaving.get(name) === leave) this.#leaving.delete(name);
    }) };
    this.#leaving.set(name, leave);
    return leave.done;
  }

  // leave() of a caller that gives up; it waits a second at most for the answer
  quit(key, owner) {
    return Promise.race([this.leave(key, owner), pause(1000, undefined, { ref: false })]);
  }

  // This owner asks again: no leave() from before may end what it gets
  async stay(key, owner, signal) {
    const leave = this.#leaving.get(JSON.stringify([key, owner]));
    leave?.lasting.abort();
    await unless(signal, leave?.done);
  }

  // The LK009 that says who ended a lease by force and why, or undefined
  forced(key, owner) {
    const told = this.ask('SELECT @lock_extend($1, $2)', [key, owner], { until: 0 }).then(ignore, (error) => (error.by === undefined ? undefined : error));
    return Promise.race([told, pause(500, undefined, { ref: false })]);
  }

  async transaction({ owner, fencingToken = '' }, work) {
    const client = await this.#pool.connect();
    let broken;
    client.on('error', ignore); // without a listener, node would end; the statement fails
    try {
      await client.query('BEGIN');
      await present(client, owner, fencingToken);
      const answer = await work(client);
      const { command } = await client.query('COMMIT');
      if (command !== 'COMMIT') throw new Error('the transaction was rolled back, since a statement in it had failed');
      return answer;
    } catch (error) {
      await client.query('ROLLBACK').catch((lost) => { broken = lost; });
      throw translate(error, { only: /^LK/ });
    } finally {
      client.off('error', ignore);
      client.release(broken);
    }
  }
}

// Until the end of the transaction, we are this owner, by that grant
export async function present(client, owner, fencingToken) {
  await client.query("SELECT set_config('atomic_lock.owner', $1, true), set_config('atomic_lock.fencing_token', $2, true)", [owner, String(fencingToken)]);
}
