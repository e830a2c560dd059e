// Orders that one user edits at a time, and a list that shows live who edits what
//
// node server.js postgresql://shop@localhost/shop 8080.  setup.sql makes what it needs.

import { createHmac, randomUUID } from 'node:crypto';
import express from 'express';
import pg from 'pg';
import { LockLost, Locks, lockKey } from 'atomic-lock';

const [connectionString, port] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString, application_name: 'orders' });
const locks = new Locks(pool);
const app = express();
const file = (path) => new URL(path, import.meta.url).pathname;

// Log in by the name in the address; an application has something better.
const secret = process.env.SECRET ?? randomUUID();
const sign = (text) => createHmac('sha256', secret).update(text).digest('hex');
app.use((req, res, next) => {
  if (req.query.user) {
    const id = randomUUID();
    res.cookie('session', [id, req.query.user, sign(id + req.query.user)].join('|'), { httpOnly: true, sameSite: 'strict' });
    return res.redirect(req.path);
  }
  const [id, user, signature] = decodeURIComponent(/session=([^;]+)/.exec(req.headers.cookie ?? '')?.[1] ?? '').split('|');
  req.session = id && signature === sign(id + user) ? { id, user } : {};
  return next();
});

// All that an edit form needs of the server: this handler, and a transaction that saves
const form = locks.editing((req) => lockKey('order', req.params.id), {
  user: (req) => req.session.user,
  session: (req) => req.session.id,
  ttl: process.env.TTL ?? '5 min',
  offer: process.env.OFFER ?? '2 min',
  takeOver: (req) => req.session.user === 'Carol', // who runs the shop
});
app.all('/orders/:id/lock', form);

// Pages and data are only for users that have logged in
const known = (req, res, next) => (req.session.user ? next() : res.status(401).send('Who are you? Say ?user=Alice'));

app.get('/orders/:id/data', known, async (req, res) => {
  const { rows: [order] } = await pool.query('SELECT * FROM orders WHERE id = $1', [req.params.id]);
  res.set('Cache-Control', 'no-store').status(order ? 200 : 404).json(order ?? {});
});

app.post('/orders/:id', known, express.json(), async (req, res) => {
  try {
    await form.transaction(req, (client) => client.query('UPDATE orders SET note = $1 WHERE id = $2', [req.body.note, req.params.id]));
    res.json({ saved: true });
  } catch (error) {
    if (!(error instanceof LockLost)) throw error;
    res.status(409).json({ reason: error.reason });
  }
});

// The list of editors: at once, and again after each event
app.get('/orders/events', known, async (req, res) => {
  const { rows } = await pool.query('SELECT id FROM orders ORDER BY id');
  const keys = rows.map(({ id }) => lockKey('order', id));
  const events = locks.listen(keys);
  res.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache' });
  res.on('close', () => events.end());
  do {
    const states = await locks.status(keys);
    res.write(`data: ${JSON.stringify(states.map(({ holder }, i) => ({ id: rows[i].id, holder })))}\n\n`);
    await events.heard(() => true, 10000); // what other processes have acquired is seen after ten seconds
  } while (!res.destroyed);
});

const page = (name) => (req, res) => res.sendFile(file(`public/${name}.html`));
app.get('/', known, page('list'));
app.get('/orders/:id', known, page('form'));
app.get('/atomic-lock.js', (req, res) => res.sendFile(new URL(import.meta.resolve('atomic-lock/browser')).pathname));
app.use(express.static(file('public')));
app.use((error, req, res, next) => {
  console.error(error);
  if (res.headersSent) next(error);
  else res.status(500).json({ error: error.name });
});

const server = app.listen(port, () => console.log(`http://localhost:${server.address().port}/?user=Alice`));
