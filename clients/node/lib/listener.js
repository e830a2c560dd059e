// One connection that listens to the channels of all keys.  It connects again, listens again,
// and then says 'connected': what came meanwhile is lost, so a waiter has to ask.

import { setTimeout as pause } from 'node:timers/promises';

const ping = 30000; // a connection that is half open says nothing by itself

export class Listener {
  #calls;
  #pool;
  #channel;
  #client;
  #heard = new Map(); // by key: the functions that are called
  #queries = Promise.resolve();
  #running = false;

  constructor(calls, pool, channel) {
    this.#calls = calls;
    this.#pool = pool;
    this.#channel = channel;
  }

  // The channel adds to the configuration of the pool, which may come from a connection string.
  #connection() {
    const { options, Client } = this.#pool, channel = this.#channel;
    const more = { connectionTimeoutMillis: 10000, keepAlive: true };
    if (typeof channel === 'string') return new Client({ ...more, connectionString: channel });
    // pg.Pool hides the password from those who enumerate
    const config = { ...more, ...options, ...('password' in options && { password: options.password }) };
    if (!channel) return new Client(config);
    const { connectionParameters, password } = new Client(config);
    return new Client({ ...config, ...connectionParameters, connectionString: undefined, password, ...channel });
  }

  // Calls hear(event) for each event of the key, until the function that it returns is called
  subscribe(key, hear) {
    const hears = this.#heard.get(key) ?? new Set();
    this.#heard.set(key, hears.add(hear));
    if (this.#client) this.#listen(this.#client, key, [hear]).catch(() => {});
    if (!this.#running) this.#run();
    return () => {
      hears.delete(hear);
      if (hears.size > 0 || this.#heard.get(key) !== hears) return;
      this.#heard.delete(key);
      if (this.#heard.size === 0) this.#client?.end().catch(() => {});
      else if (this.#client) this.#query(this.#client, 'UNLISTEN', key).catch(() => {});
    };
  }

  // Events that this process knows before the server sends them
  hint(event) {
    for (const hear of this.#heard.get(event.key) ?? []) hear(event);
  }

  async #run() {
    this.#running = true;
    let since; // when the connection was first found to be missing
    for (let wait = 100; this.#heard.size > 0; wait = Math.min(2 * wait, 10000)) {
      let client;
      try {
        client = this.#connection();
        const ended = new Promise((resolve) => { client.once('end', resolve); });
        client.on('error', () => {}); // without a listener, node would end; 'end' comes next
        client.on('notification', ({ payload }) => this.#notified(payload));
        await client.connect();
        this.#client = client;
        await Promise.all([...this.#heard].map(([key, hears]) => this.#listen(client, key, hears)));
        wait = 50;
        since = undefined;
        while (this.#heard.size > 0 && await Promise.race([ended.then(() => false), pause(ping, true, { ref: false })])) {
          await this.#query(client, 'SELECT 1');
        }
      } catch (error) {
        client?.connection?.stream?.destroy();
        since ??= performance.now();
        if (performance.now() - since >= this.#calls.patience) {
          process.emitWarning(`no connection to hear of locks: ${error.message}`, 'AtomicLockWarning');
          since = Infinity; // says so once
        }
      }
      this.#client = undefined;
      client?.end().catch(() => {});
      if (this.#heard.size > 0) await pause(wait * (0.5 + Math.random() / 2));
    }
    this.#running = false;
  }

  // These errors of the server concern this key alone: a policy may reserve it for others, it
  // may be of another server, and some texts are no keys.  After any other, the connection is made anew.
  async #listen(client, key, hears) {
    try {
      await this.#query(client, 'LISTEN', key);
      for (const hear of hears) hear({ event: 'connected', key });
    } catch (error) {
      if (!error.severity || !/^(42501|22|54|LK010)/.test(error.code)) {
        client.connection?.stream?.destroy();
        throw error;
      }
      for (const hear of hears) hear({ event: 'denied', key });
    }
  }

  // One after the other, since the channel's name comes first
  #query(client, command, key) {
    const turn = this.#queries.then(async () => {
      if (key === undefined) return client.query({ text: command, query_timeout: 10000 });
      if ((command === 'LISTEN') !== this.#heard.has(key)) return undefined; // too late
      const { rows: [{ channel }] } = await client.query({
        text: `SELECT ${await this.#calls.schema()}.lock_channel($1) AS channel`, values: [key], query_timeout: 10000 });
      return client.query({ text: `${command} ${client.escapeIdentifier(channel)}`, query_timeout: 10000 });
    });
    this.#queries = turn.catch(() => {});
    return turn;
  }

  #notified(payload) {
    try {
      this.hint(JSON.parse(payload));
    } catch {
      // Any role can send any payload.
    }
  }
}

// Events of some keys, as an async iterator
export class Events {
  #buffer = [];
  #wakes = [];
  #ended = false;
  #offs = [];
  #signal;
  #stop = () => this.end(); // a loop does not call return() after an error of next()

  constructor(listener, keys, signal) {
    this.#signal = signal;
    if (signal?.aborted) return;
    this.#offs = keys.map((key) => listener.subscribe(key, (event) => this.#hear(event)));
    signal?.addEventListener('abort', this.#stop);
  }

  #wake() {
    for (const wake of this.#wakes.splice(0)) wake();
  }

  #hear(event) {
    if (this.#buffer.push(event) > 10000) this.#buffer = [{ event: 'connected', key: event.key }]; // nobody reads: some are lost
    this.#wake();
  }

  // The next event that fits; undefined if none comes within that many milliseconds
  async heard(fits, milliseconds) {
    const late = new AbortController();
    const timer = setTimeout(() => {
      late.abort();
      this.#wake();
    }, milliseconds);
    try {
      for (;;) {
        this.#signal?.throwIfAborted();
        while (this.#buffer.length > 0) {
          const event = this.#buffer.shift();
          if (fits(event)) return event;
        }
        if (late.signal.aborted || this.#ended) return undefined;
        await new Promise((resolve) => { this.#wakes.push(resolve); });
      }
    } finally {
      clearTimeout(timer);
    }
  }

  async next() {
    let value;
    do value = await this.heard(() => true, 2 ** 31 - 1); while (!value && !this.#ended);
    return this.#ended ? { done: true, value: undefined } : { done: false, value };
  }

  async return() {
    this.end();
    return { done: true, value: undefined };
  }

  end() {
    this.#ended = true;
    this.#signal?.removeEventListener('abort', this.#stop);
    for (const off of this.#offs.splice(0)) off();
    this.#wake();
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  async [Symbol.asyncDispose]() {
    this.end();
  }
}
