// Waiting for a lock without a connection, on node-postgres: tickets, and events
//
// node waiting.js postgresql://... [postgresql://...] plays people who wait for each
// other.  The second database is for listening, if the first is behind a pooler.  The
// database needs the extension and the table of setup.sql.

const { Client, Pool } = require('pg');
const { setTimeout: pause } = require('timers/promises');
const { closeForm, openForm, request, save } = require('./edit_form.js');

// One client that listens for the whole application.  It is not from the pool.
class Events {
  constructor(connectionString) {
    this.connectionString = connectionString;
    this.orders = [];
    this.heard = [];
    this.wake = () => {};
  }

  async connect() {
    const client = new Client({ connectionString: this.connectionString });
    client.on('error', () => {}); // without a listener, node would end; 'end' comes next
    client.on('notification', ({ payload }) => this.hear(JSON.parse(payload)));
    try {
      await client.connect();
      for (const order of this.orders) await this.listenTo(client, order);
    } catch (error) {
      await client.end().catch(() => {});
      throw error;
    }
    this.client = client;
    client.once('end', () => this.ended || this.connectAgain());
  }

  // Repeats until the server accepts us.  The pauses grow up to ten seconds.
  async connectAgain() {
    for (let milliseconds = 100; !this.ended; milliseconds = Math.min(2 * milliseconds, 10000)) {
      try {
        await this.connect();
        break;
      } catch {
        await pause(milliseconds);
      }
    }
    this.hear({ event: 'connected' }); // events of the meantime are lost, so waiters must ask again
  }

  hear(event) {
    this.heard.push(event);
    this.wake();
  }

  async listen(order) {
    this.orders.push(order); // also for the next connection
    await this.listenTo(this.client, order);
  }

  async listenTo(client, order) {
    const { rows } = await client.query("SELECT lock_channel(lock_key('order', $1::text)) AS channel", [order]);
    await client.query(`LISTEN ${client.escapeIdentifier(rows[0].channel)}`);
  }

  async end() {
    this.ended = true;
    await this.client.end();
  }

  // The next event that matches, or undefined after the timeout
  async next(fits, milliseconds) {
    const end = Date.now() + milliseconds;
    for (;;) {
      while (this.heard.length > 0) {
        const event = this.heard.shift();
        if (fits(event)) return event;
      }
      const left = end - Date.now();
      if (left <= 0) return undefined;
      let timer;
      await new Promise((resolve) => {
        this.wake = resolve;
        timer = setTimeout(resolve, left);
      });
      clearTimeout(timer);
    }
  }
}

// Take the lock or a ticket; when repeated, take the lock at our turn, or keep the ticket.
function enqueue(pool, owner, order, user) {
  return request(pool, owner, async (client) => {
    const { rows } = await client.query(
      `SELECT status, place, ticket
       FROM lock_enqueue(lock_key('order', $1::text), holder => $2, offer => '2 min', keep => '10 min')`,
      [order, user]);
    return rows[0];
  });
}

// Repeats until we have the lock.  An event is only a hint to ask; the answer decides.
async function waitForTurn(pool, events, owner, order, user, poll = 30000) {
  for (;;) {
    const { status, ticket } = await enqueue(pool, owner, order, user);
    if (status !== 'queued') return status;
    // A bigint is a string here.  Tickets are below 2^53, so the number in JSON is exact.
    await events.next((event) => event.event === 'connected' || (event.event === 'offered' && String(event.ticket) === ticket), poll);
  }
}

// Leave the line, so that nobody waits for us.
function leave(pool, owner, order) {
  return request(pool, owner, async (client) => {
    const { rows } = await client.query("SELECT lock_leave(lock_key('order', $1::text)) AS left", [order]);
    return rows[0].left ? 'left' : 'was not in line';
  });
}

// Ask the holder for the lock.  All listeners see the message.
async function ask(pool, owner, order, message) {
  const { rows } = await request(pool, owner, (client) =>
    client.query("SELECT lock_ask(lock_key('order', $1::text), $2) AS holders", [order, message]));
  return rows[0].holders;
}

// The holder's side.  The message names a request; only the application knows whose it is.
async function handOverIfAsked(pool, events, owner, order, requests) {
  const event = await events.next(({ event }) => event === 'asked', 300000);
  const asker = requests.get(event && event.reason);
  if (!asker) return 'nobody that we know asked';
  await request(pool, owner, (client) =>
    client.query(
      "SELECT status FROM lock_transfer(lock_key('order', $1::text), $2, new_owner => $3, holder => $4)",
      [order, owner, asker.owner, asker.user]));
  return `handed over to ${asker.user}`;
}

// What happens in an hour
async function play(connectionString, listenTo) {
  const [alice, bob] = ['session-8f14e45f/tab-1', 'session-c9f0f895/tab-1'];
  const [carol, dave] = ['session-45c48cce/tab-1', 'session-d3d94468/tab-1'];
  const say = (...words) => console.log(words.join(' '));
  // Each of them is served by another process, which has one client to listen.
  const listeners = [1, 2, 3, 4].map(() => new Events(listenTo));
  const [atAlice, atBob, atCarol, atJob] = listeners;
  let pool = new Pool({ connectionString, max: 1 });

  async function hear(events, word) {
    const event = await events.next((each) => each.event === word, 300000);
    return event ? `${word}, ${event.holder}` : 'nothing';
  }
  async function standInLine(owner, order, user) {
    const { status, place } = await enqueue(pool, owner, order, user);
    say(`${user} stands in line:`, status, place);
  }

  for (const events of listeners) await events.connect();
  for (const events of [atAlice, atBob, atCarol]) await events.listen(42);
  say('Alice opens 42:', (await openForm(pool, alice, 42, 'Alice')).status);
  await standInLine(bob, 42, 'Bob');
  await standInLine(carol, 42, 'Carol');
  await standInLine(dave, 42, 'Dave');
  say('Bob asks:', await ask(pool, bob, 42, 'Bob needs it by ten'));
  say('Alice hears:', await hear(atAlice, 'asked'));

  // Everybody's connection may go, and the application with them.
  await pool.end();
  pool = new Pool({ connectionString, max: 1 });
  say('Alice saves:', await save(pool, alice, 42, 'of Alice'));
  say('Alice closes:', await closeForm(pool, alice, 42));
  say('Bob hears:', await hear(atBob, 'offered'));
  const erin = await openForm(pool, 'session-6512bd43/tab-1', 42, 'Erin');
  say('Erin opens 42:', erin.status, erin.holder);
  say('Bob comes back:', await waitForTurn(pool, atBob, bob, 42, 'Bob'));
  say('Bob saves:', await save(pool, bob, 42, 'of Bob'));

  say('Dave leaves:', await leave(pool, dave, 42));
  say('Dave leaves again:', await leave(pool, dave, 42));
  const turn = waitForTurn(pool, atCarol, carol, 42, 'Carol');
  say('Bob closes:', await closeForm(pool, bob, 42));
  say('Carol has waited:', await turn);
  say('Carol closes:', await closeForm(pool, carol, 42));

  // A long job gives way to a person.
  const requests = new Map([['request 7', { owner: alice, user: 'Alice' }]]);
  await atJob.listen(43);
  say('The job opens 43:', (await openForm(pool, 'job-17', 43, 'nightly export')).status);
  await atAlice.listen(43);
  await standInLine(alice, 43, 'Alice');
  say('Alice asks:', await ask(pool, alice, 43, 'request 7'));
  say('The job:', await handOverIfAsked(pool, atJob, 'job-17', 43, requests));
  say('Alice hears:', await hear(atAlice, 'transferred'));
  say('Alice comes back:', (await enqueue(pool, alice, 43, 'Alice')).status);
  say('The job ends:', await closeForm(pool, 'job-17', 43));
  say('Alice closes:', await closeForm(pool, alice, 43));

  say('Order 42 is now:', (await openForm(pool, bob, 42, 'Bob')).note);
  await pool.end();
  for (const events of listeners) await events.end();
}

module.exports = { Events, waitForTurn };

if (require.main === module) {
  play(process.argv[2], process.argv[process.argv.length - 1]).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
