// Locks as JustScale has them, with atomic_lock on node-postgres: locking reads the row
// anew, functions take the lock as a proof, and locking twice is an error
//
// node justscale.js postgresql://... shows it.  The database needs the extension and the
// table of setup.sql.

const { AsyncLocalStorage } = require('async_hooks');
const { randomUUID } = require('crypto');
const { Pool } = require('pg');

class DoubleLockError extends Error {}

// One owner for each request, so that locking twice in one request is an error
const requests = new AsyncLocalStorage();
const inRequest = (work) => requests.run(`request/${randomUUID()}`, work);

// A row that was locked and then read.  Only Repository.lock() makes one.
class Locked {
  #release;

  constructor(row, owner, release) {
    Object.assign(this, row);
    Object.defineProperty(this, 'owner', { value: owner });
    this.#release = release;
  }

  [Symbol.asyncDispose]() {
    return this.#release();
  }
}

class Repository {
  constructor(pool) {
    this.pool = pool;
  }

  // A transaction in which we are `owner`, and a second acquire is an error
  async transaction(owner, work) {
    const client = await this.pool.connect();
    try {
      await client.query('BEGIN');
      await client.query(
        `SELECT set_config('atomic_lock.owner', $1, true), set_config('atomic_lock.on_reacquire', 'error', true)`,
        [owner]);
      const answer = await work(client);
      await client.query('COMMIT');
      return answer;
    } catch (error) {
      await client.query('ROLLBACK');
      throw error.code === 'LK007' ? new DoubleLockError(error.message) : error;
    } finally {
      client.release();
    }
  }

  // The row as it is under the lock, or null if there is none.  Nothing is locked then.
  async lock(id, { ttl = '5 min', wait = '5 s' } = {}) {
    const owner = requests.getStore();
    const { rows } = await this.transaction(owner, (client) =>
      client.query('SELECT * FROM lock_fetch(NULL::orders, $1, ttl => $2, wait => $3)', [String(id), ttl, wait]));
    return rows.length === 0 ? null : new Locked(rows[0], owner, () => this.transaction(owner, (client) =>
      client.query("SELECT lock_try_release(lock_key('order', $1::text))", [id])));
  }

  // Where there is no `using` yet: before node 24.  There, `await using order = await orders.lock(42)`
  async withLock(id, work, options) {
    const locked = await this.lock(id, options);
    if (locked === null) return null;
    try {
      return await work(locked);
    } finally {
      await locked[Symbol.asyncDispose]();
    }
  }

  // Checks the proof.  The guard of the table refuses the write after the lease has expired.
  save(locked) {
    if (!(locked instanceof Locked)) throw new TypeError('save() needs a Locked');
    return this.transaction(locked.owner, (client) =>
      client.query('UPDATE orders SET note = $1 WHERE id = $2', [locked.note, locked.id]));
  }
}

// Takes the lock as an argument, and does not lock
async function approve(orders, locked) {
  locked.note = `${locked.note}, approved`;
  await orders.save(locked);
}

async function play(connectionString) {
  const pool = new Pool({ connectionString, max: 3 });
  const orders = new Repository(pool);
  const say = (...words) => console.log(words.join(' '));

  await inRequest(async () => {
    const stale = (await pool.query('SELECT * FROM orders WHERE id = 42')).rows[0];
    await inRequest(() => orders.withLock(42, (order) => { order.note = 'of Bob'; return orders.save(order); }));
    await orders.withLock(42, async (order) => {
      say('Read before:', stale.note, '- under the lock:', order.note);
      await approve(orders, order);
      await orders.lock(42).catch((error) => say(`${error.constructor.name}:`, error.message));
      await inRequest(() => orders.lock(42, { wait: '0' })).catch((error) => say('Another request:', error.code));
    });
    say('No such order:', String(await orders.lock(44)));
    await Promise.resolve().then(() => orders.save(stale)).catch((error) => say('Without a proof:', error.message));

    const over = await orders.lock(42);
    await over[Symbol.asyncDispose]();
    over.note = 'too late';
    await orders.save(over).catch((error) => say('With a proof that is over:', error.code));
  });
  say('The order is now:', (await pool.query('SELECT note FROM orders WHERE id = 42')).rows[0].note);
  await pool.end();
}

play(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
