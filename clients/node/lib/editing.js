// The server's side of an edit form, for node:http and Express.  A page of browser.js sends
// its actions by POST, and hears by server-sent events (GET) when something has changed.
// The owner is a digest of the session and of a value that the page makes at each load.

import { createHash } from 'node:crypto';
import { interval, milliseconds } from './calls.js';
import { LockChanged, LockDenied, LockHeldByOwner, LockQuota, LockUnreachable } from './errors.js';

const remembered = 60000; // for how long a page that was closed is known

const streamed = 300000; // for how long a page hears by one stream; it connects again

const owned = `extract(epoch FROM waited + ttl_remaining) * 1000 AS left, fencing_token AS token`;

class BadRequest extends Error {}

function statusOf(error) {
  if (error instanceof BadRequest) return 400;
  if (error instanceof LockDenied) return 403;
  if (error instanceof LockQuota) return 429;
  return error instanceof LockUnreachable ? 503 : 500;
}

export function editing(locks, calls, keyOf, { user, session, ttl = '5 min', wait = '1 s', offer = '2 min', keep = '2 min', takeOver = () => false }) {
  const closed = new Map(); // owners of pages that have said so: an action that comes late must not lock again
  const pages = new Map(); // by owner and key: the outcome of a page's requests
  const silent = Math.min(Math.max(milliseconds(ttl), remembered), 86400000); // for how long a page that sends nothing is known
  const mine = (row) => ({ state: 'editing', token: Number(row.token ?? row.fencing_token), left: Number(row.left) });

  // The application's answer about a request is a text, or nothing.  All objects would be the same text.
  async function textOf(name, of, req) {
    const text = await of(req);
    if (typeof (text ?? '') !== 'string') throw new TypeError(`${name} of an edit form gives a text, or null`);
    return text;
  }

  async function ownerOf(req, page) {
    const secret = await textOf('session', session, req);
    if (!secret || !/^[\w-]{16,64}$/.test(page ?? '')) throw new BadRequest('no session, or no page');
    return createHash('sha256').update(`${secret}/${page}`).digest('base64url');
  }

  // newest and gone: the last request, and the last whose answer could not be sent; known: the
  // page has been told of its lock or place
  function pageOf(name) {
    const now = performance.now();
    for (const [each, { at, active }] of pages) {
      if (at > now - silent) break;
      if (active === 0) pages.delete(each);
    }
    const page = pages.get(name) ?? { newest: 0, gone: 0, active: 0, known: false };
    page.at = now;
    pages.delete(name);
    pages.set(name, page); // the oldest come first
    return page;
  }

  async function shown(key) {
    const [{ holder, since, left, locked, pending, queued }] = await locks.status([key]);
    return { holder: locked || pending ? holder : null, since: locked ? since : null, left: locked ? left : null, free: !locked && !pending && queued === 0, queued };
  }

  async function acquire(key, owner, holder) {
    const take = (longest, once) => calls.ask(
      `SELECT acquired, status, holder, ${owned} FROM @lock_try_acquire($1, ttl => $2, owner => $3, holder => $4, wait => $5)`,
      [key, interval(ttl), owner, holder, interval(longest)], { wait: milliseconds(longest), once });
    await calls.stay(key, owner);
    // A page that is loaded again may come before the last request of the one before.
    const { row } = await calls.waitFor(take, wait, undefined, (refused) => refused.status === 'pending' || (refused.status === 'held' && refused.holder === holder));
    return row.acquired ? mine(row) : { state: 'reading', ...await shown(key) };
  }

  async function extend(key, owner) {
    const { row } = await calls.heartbeat(key, owner, ttl, performance.now() + 5000);
    if (row.status === 'pending') return { state: 'editing' };
    if (row.left !== null) return { state: 'editing', left: Number(row.left) };
    const { by, why } = (row.status === 'forced' && await calls.forced(key, owner)) || {};
    return { state: 'lost', reason: row.status, by, why, ...await shown(key) };
  }

  const actions = {
    open: ({ key, owner, holder }) => acquire(key, owner, holder),
    keep: ({ key, owner }) => extend(key, owner),
    async queue({ key, owner, holder }) {
      const { row } = await calls.enqueue(key, { owner, holder, offer, keep, ttl });
      if (row.status !== 'queued') return mine(row);
      return { state: 'queued', ...await shown(key), place: row.place, ticket: row.ticket, holder: row.holder };
    },
    async leave({ key, owner }) {
      await calls.leave(key, owner);
      return { state: 'reading', ...await shown(key) };
    },
    async close({ key, owner }) {
      const now = performance.now();
      for (const [each, since] of closed) if (since < now - remembered) closed.delete(each);
      closed.set(owner, now);
      await calls.leave(key, owner);
      return { state: 'reading' };
    },
    async ask({ key, holder, body }) {
      return { holders: await locks.ask(key, `${holder}: ${String(body.message ?? '')}`.slice(0, 250)) };
    },
    async takeOver({ key, owner, holder, body, req }) {
      if (!await takeOver(req)) throw new LockDenied('this user may not take over');
      const [{ since, fencingToken }] = await locks.status([key]);
      // Not from somebody else than the page has shown
      if ((since?.toISOString() ?? null) !== (body.since ?? null)) return { state: 'reading', ...await shown(key) };
      await calls.stay(key, owner);
      try {
        const { row } = await calls.ask(
          `SELECT ${owned} FROM @lock_steal($1, $2, reason => $3, ttl => $4, holder => $5, fencing_token => $6)`,
          [key, owner, `${holder}: ${String(body.message ?? '')}`.slice(0, 250), interval(ttl), holder, fencingToken]);
        return mine(row);
      } catch (error) {
        // The answer to an earlier try was lost, or somebody else has the lock meanwhile.
        if (error instanceof LockHeldByOwner || error instanceof LockChanged) return acquire(key, owner, holder);
        throw error;
      }
    },
  };

  async function act(req, res, key, holder) {
    const body = await bodyOf(req);
    if (!Object.hasOwn(actions, body.action)) throw new BadRequest('no such action');
    const owner = await ownerOf(req, body.page);
    const taking = ['open', 'queue', 'takeOver'].includes(body.action);
    const page = pageOf(`${owner} ${key}`);
    const number = body.action === 'ask' ? page.newest : ++page.newest;
    // The answer cannot be sent: the page is gone, unless it asks again, or has been told of its lock.
    const unsent = async () => {
      if (number === page.newest) page.gone = number;
      if (closing() || (page.gone === page.newest && !page.known)) await calls.leave(key, owner);
    };
    const closing = () => body.action !== 'close' && closed.has(owner);
    if (['leave', 'close'].includes(body.action)) page.known = false;
    page.active++;
    try {
      const answer = closing() || (taking && res.destroyed) ? {} : await actions[body.action]({ key, owner, holder, body, req });
      if (closing()) await calls.leave(key, owner);
      if (!['keep', 'ask'].includes(body.action)) calls.listener.hint({ event: 'changed', key });
      if (res.destroyed) return taking && await unsent();
      if (taking) res.on('close', () => res.writableFinished || unsent());
      if (body.action !== 'ask') res.on('finish', () => { page.known = !closed.has(owner) && ['editing', 'queued'].includes(answer.state); });
      return res.writeHead(200, { 'Content-Type': 'application/json', 'Cache-Control': 'no-store' }).end(JSON.stringify(answer));
    } catch (error) {
      if (taking && error instanceof LockUnreachable) unsent(); // it may have been granted
      throw error;
    } finally {
      page.active--;
    }
  }

  // No owner is in what it sends, nor in what it is asked: addresses get into logs.
  async function stream(req, res, key) {
    let told = Promise.resolve(), off, timer, ending, polling = false;
    const stop = () => {
      off?.();
      clearInterval(timer);
      clearTimeout(ending);
    };
    const end = () => {
      stop();
      res.destroy(); // the page connects again
    };
    const tell = ({ event, holder, by, from, reason, ticket, until, at }) => {
      const poll = ['poll', 'changed'].includes(event);
      if (poll && polling) return; // one that has not begun tells the same
      polling ||= poll;
      told = told.then(async () => {
        if (poll) polling = false;
        const left = event === 'offered' ? Date.parse(until) - Date.parse(at) : undefined;
        const status = await shown(key);
        if (res.writableLength > 100000) end(); // nobody reads
        if (!res.destroyed && !res.writableEnded) res.write(`data: ${JSON.stringify({ event, holder, by, from, reason, ticket, left, status })}\n\n`);
      }).catch(end);
    };
    res.on('error', end).on('close', end);
    res.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-cache, no-transform', 'X-Accel-Buffering': 'no' });
    if (res.destroyed) return;
    res.write('retry: 3000\n\n');
    off = calls.listener.subscribe(key, tell);
    timer = setInterval(tell, 15000, { event: 'poll' });
    ending = setTimeout(() => {
      stop();
      res.end('retry: 200\n\n'); // the next stream says 3000 again
    }, streamed);
    tell({ event: 'poll' });
  }

  async function handler(req, res, next) {
    try {
      const key = await keyOf(req);
      const holder = key && await textOf('user', user, req);
      if (!key || !holder) res.writeHead(key ? 401 : 404).end();
      else if (req.method === 'GET') await stream(req, res, key);
      else if (req.method === 'POST') await act(req, res, key, holder);
      else res.writeHead(405, { Allow: 'GET, POST' }).end();
    } catch (error) {
      const status = statusOf(error);
      if (status === 500 && next) next(error);
      else if (!res.headersSent) res.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify({ error: error.name }));
    }
  }

  // The grant that a request of the page shows with form.headers
  handler.grant = async (req) => {
    const [page, token] = (req.headers['atomic-lock'] ?? '').split(';');
    // A secret, which console.log() and JSON do not show
    return Object.defineProperty({ fencingToken: Number(token) || 0 }, 'owner', { value: await ownerOf(req, page) });
  };

  // A transaction under that grant: where it is not the one that holds the lock, guards throw LockLost
  handler.transaction = async (req, work) => calls.transaction(await handler.grant(req), work);

  return handler;
}

// Other sites can send forms, but no JSON.
async function bodyOf(req) {
  if (!/^application\/json\b/.test(req.headers['content-type'] ?? '')) throw new BadRequest('JSON is wanted');
  if (req.body && typeof req.body === 'object') return req.body; // Express has read it
  let text = '';
  for await (const chunk of req) {
    text += chunk;
    if (text.length > 10000) throw new BadRequest('too long');
  }
  try {
    return Object(JSON.parse(text));
  } catch {
    throw new BadRequest('no JSON');
  }
}
