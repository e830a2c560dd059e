// Work in a block that has a lock, with atomic_lock on node-postgres
//
// node block.js postgresql://... plays a job, Bob and a DBA.  The database needs the
// extension and the role of setup.sql.

const { Client } = require('pg');
const { createHmac, randomUUID } = require('crypto');
const { performance } = require('perf_hooks');
const { setTimeout: pause } = require('timers/promises');

// The block has ended without its lock.  The message is a word for the reason.
class Lost extends Error {}

// The lock of `key` for a function, which works on the client `work`
async function locked(connectionString, work, { key, ttl, holder, every = ttl / 3, wait = 0 }, block) {
  const client = await connect(connectionString); // a second one, since the work keeps the other busy
  const owner = `job/${randomUUID()}`;
  const lost = new AbortController();
  const ended = new AbortController();
  const isOurs = () => !lost.signal.aborted && performance.now() < until;
  let until = 0;

  async function call(sql, values) {
    const asked = performance.now();
    const { answer, seconds } = await row(client, sql, values);
    until = asked + seconds * 1000; // counted from before the call
    return answer;
  }

  async function beat() {
    try {
      if (!lost.signal.aborted && await call(
        `SELECT status AS answer, extract(epoch FROM ttl_remaining) AS seconds
         FROM lock_heartbeat(ARRAY[$1], $2, $3)`, [key, owner, `${ttl} s`]) !== 'extended') {
        lost.abort();
      }
    } catch {
      lost.abort();
    }
  }

  // Separate from the heartbeat, which may get no answer
  async function watch() {
    while (await pause(200, true, { signal: ended.signal }).catch(() => false)) {
      if (!isOurs()) {
        lost.abort();
        await cancel(connectionString, work).catch(() => {}); // repeatedly: the work may be between two statements
      }
    }
  }

  try {
    const token = await call(
      `SELECT fencing_token AS answer, extract(epoch FROM waited + ttl_remaining) AS seconds
       FROM lock_acquire($1, $2, $3, holder => $4, wait => $5)`, [key, `${ttl} s`, owner, holder, `${wait} s`]);
    const timer = setInterval(beat, every * 1000);
    const watching = watch();
    try {
      // isOurs() is for each step of the work, the signal for what takes one, such as fetch().
      return await block({ owner, token, signal: lost.signal, isOurs });
    } finally {
      clearInterval(timer);
      ended.abort();
      await watching;
      const answer = await one(client, 'SELECT lock_try_release($1, $2)', [key, owner]);
      if (answer !== 'released') throw new Lost(answer);
    }
  } finally {
    await client.end();
  }
}

// A key that does not show its name to readers without the secret
function hiddenKey(secret, name) {
  if (Buffer.byteLength(secret) < 16) throw new RangeError('the secret is shorter than 16 bytes');
  return createHmac('sha256', secret).update(name).digest('hex');
}

async function connect(connectionString) {
  const client = new Client({ connectionString });
  client.on('error', () => {}); // without a listener, node would end; the next call fails
  await client.connect();
  return client;
}

async function row(client, sql, values) {
  return (await client.query(sql, values)).rows[0];
}

async function one(client, sql, values) {
  return Object.values(await row(client, sql, values))[0];
}

// node-postgres has no call to cancel.  The server is asked on another connection.
async function cancel(connectionString, work) {
  const client = await connect(connectionString);
  await one(client, 'SELECT pg_cancel_backend($1)', [work.processID]).finally(() => client.end());
}

async function until(client, sql, values) {
  while (!await one(client, sql, values)) await pause(20);
}

async function waitAndGiveUp(client, other, key) {
  const call = one(client, "SELECT lock_acquire($1, wait => '1 min')", [key])
    .then(() => 'acquired', (error) => (error.code === '57014' ? 'cancelled' : error));
  await until(other, 'SELECT waiters > 0 FROM lock_status($1)', [key]);
  await one(other, 'SELECT pg_cancel_backend($1)', [client.processID]);
  return call;
}

// What happens in a night
async function play(dsn) {
  const [work, bob, other] = [await connect(dsn), await connect(dsn), await connect(dsn)];
  const say = (...words) => console.log(words.join(' '));
  const job = { key: 'import:7', ttl: 600, holder: 'nightly import' };

  await locked(dsn, work, { ...job, every: 0.2 }, async (lock) => {
    say('The job has the lock:', lock.isOurs() ? 'go on' : 'stop');
    const first = await one(other, "SELECT expires_at::text FROM lock_status('import:7')");
    await until(other, "SELECT expires_at > $1::timestamptz FROM lock_status('import:7')", [first]);
    say('Its heartbeat: the lease ends later');
    await one(bob, "SELECT lock_acquire('import:7')").catch((error) => say('Bob:', error.code, error.message));
    say('Bob waits, and gives up:', await waitAndGiveUp(bob, other, 'import:7'));
  });

  await locked(dsn, work, job, () => one(work, 'SELECT 1 / 0'))
    .catch((error) => say('The work fails:', error.code));
  say('Its lock:', await one(other, "SELECT locked FROM lock_status('import:7')") ? 'held' : 'free');

  await locked(dsn, work, { ...job, every: 0.2 }, async () => {
    await one(other, "SELECT force_release('import:7', 'it takes too long')");
    await one(work, 'SELECT pg_sleep(600)');
  }).catch((error) => say('A DBA ends the lease, and the work is stopped:', error.message));

  // Heartbeats that come too late, as after the sleep of a laptop
  const [take, drop] = ["SELECT lock_acquire($1, owner => 'bob')", "SELECT lock_release($1, 'bob')"];
  for (const [key, ...meanwhile] of [['import:8'], ['import:9', take], ['import:10', take, drop]]) {
    await locked(dsn, work, { ...job, key, ttl: 0.01, every: 3600 }, async (lock) => {
      await until(other, 'SELECT NOT locked FROM lock_status($1)', [key]);
      for (const sql of meanwhile) await one(bob, sql, [key]);
      say('Overrun:', lock.isOurs() ? 'go on' : 'stop');
    }).catch((error) => say('At release:', error.message));
  }

  say('Hidden key:', hiddenKey('0123456789abcdef', 'patient:Müller'));
  try {
    hiddenKey('0123456789abcde', 'patient:Müller');
  } catch (error) {
    say('Hidden key:', error.message);
  }
  for (const client of [work, bob, other]) await client.end();
}

module.exports = { connect, hiddenKey, locked, one, until };

if (require.main === module) {
  play(process.argv[2]).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
