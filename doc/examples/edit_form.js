// An edit form with atomic_lock, on node-postgres and its pool
//
// node edit_form.js postgresql://... plays Alice, Bob and a job.  The database needs
// the extension and the table of setup.sql.

const { Pool } = require('pg');

// One request: a client of the pool, and a transaction in which we are `owner`
async function request(pool, owner, work) {
  const client = await pool.connect();
  let broken;
  try {
    await client.query('BEGIN');
    await client.query("SELECT set_config('atomic_lock.owner', $1, true)", [owner]);
    const answer = await work(client);
    await client.query('COMMIT');
    return answer;
  } catch (error) {
    await client.query('ROLLBACK').catch((lost) => { broken = lost; });
    throw error;
  } finally {
    client.release(broken);
  }
}

// Take the lock, then read.  Without the lock, the form is shown for reading only.
function openForm(pool, owner, order, user) {
  return request(pool, owner, async (client) => {
    const lock = await client.query(
      `SELECT acquired, status, holder
       FROM lock_try_acquire(lock_key('order', $1::text), ttl => '5 min', holder => $2)`,
      [order, user]);
    const row = await client.query('SELECT note FROM orders WHERE id = $1', [order]);
    return { ...lock.rows[0], ...row.rows[0] };
  });
}

// The page calls this every 100 seconds, a third of the lease.
function keepOpen(pool, owner, order) {
  return request(pool, owner, async (client) => {
    const { rows } = await client.query(
      "SELECT lock_try_extend(lock_key('order', $1::text)) IS NOT NULL AS extended", [order]);
    return rows[0].extended ? 'extended' : 'lost';
  });
}

// The guard of the table refuses this without the lock.
async function save(pool, owner, order, note) {
  try {
    await request(pool, owner, (client) =>
      client.query('UPDATE orders SET note = $1 WHERE id = $2', [note, order]));
  } catch (error) {
    if (error.code !== 'LK006') throw error;
    return `refused: ${error.message}`;
  }
  return 'saved';
}

// The answer is a word for the result.
function closeForm(pool, owner, order) {
  return request(pool, owner, async (client) => {
    const { rows } = await client.query(
      "SELECT lock_try_release(lock_key('order', $1::text)) AS status", [order]);
    return rows[0].status;
  });
}

// From the form to a job.  The job has its own owner, and the form no longer has the lock.
function handOver(pool, owner, order, job) {
  return request(pool, owner, async (client) => {
    const { rows } = await client.query(
      `SELECT status FROM lock_transfer(lock_key('order', $1::text), owner => $2, new_owner => $3,
       holder => 'nightly export', ttl => '10 min')`,
      [order, owner, job]);
    return rows[0].status;
  });
}

// What happens in an afternoon
async function play(connectionString) {
  const [alice, tab2, bob] = ['session-8f14e45f/tab-1', 'session-8f14e45f/tab-2', 'session-c9f0f895/tab-1'];
  const say = (...words) => console.log(words.join(' '));
  let pool = new Pool({ connectionString, max: 1 });
  let form;

  say('Alice opens 42:', (await openForm(pool, alice, 42, 'Alice')).status);
  form = await openForm(pool, tab2, 42, 'Alice');
  say('Alice opens 42 in another tab:', form.status, form.holder);
  form = await openForm(pool, bob, 42, 'Bob');
  say('Bob opens 42:', form.status, form.holder);
  say('Bob saves:', await save(pool, bob, 42, 'of Bob'));
  say('Alice goes on:', await keepOpen(pool, alice, 42));
  say('Alice saves:', await save(pool, alice, 42, 'of Alice'));

  // The owner comes with each request, so the application may forget everything.
  await pool.end();
  pool = new Pool({ connectionString, max: 1 });
  say('After a restart, Alice goes on:', await keepOpen(pool, alice, 42));
  say('Alice reloads the page:', (await openForm(pool, alice, 42, 'Alice')).status);

  say('Alice hands 42 to a job:', await handOver(pool, alice, 42, 'job-17'));
  say('Alice saves:', await save(pool, alice, 42, 'of Alice, too late'));
  say('The job saves:', await save(pool, 'job-17', 42, 'exported'));
  say('The job ends:', await closeForm(pool, 'job-17', 42));

  // Alice goes to lunch; a colleague has her lock ended, and Bob takes it.
  say('Alice opens 42:', (await openForm(pool, alice, 42, 'Alice')).status);
  await request(pool, '', (client) => client.query("SELECT force_release('order:42', 'Alice is at lunch')"));
  say('Bob opens 42:', (await openForm(pool, bob, 42, 'Bob')).status);
  say('Alice goes on:', await keepOpen(pool, alice, 42));
  say('Alice saves:', await save(pool, alice, 42, 'of Alice, after lunch'));
  say('Alice closes:', await closeForm(pool, alice, 42));
  say('Bob closes:', await closeForm(pool, bob, 42));

  const { rows } = await request(pool, '', (client) => client.query('SELECT note FROM orders WHERE id = 42'));
  say('The order is now:', rows[0].note);
  await pool.end();
}

module.exports = { closeForm, openForm, request, save };

if (require.main === module) {
  play(process.argv[2]).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
