// atomic-lock/browser: a page that edits something under a lock.  No dependencies.
//
// form.state is reading, editing, queued, offered or lost, and true at each moment: it goes
// by the page's own clocks, and by the answers of the server.  'state' events tell of changes.

// The monotonic clock stands still in a laptop that sleeps, and the wall clock may be set:
// whichever has gone further counts, and the server is asked if it was too far.
const clock = (() => {
  let time = 0, monotonic = performance.now(), wall = Date.now();
  return () => {
    const [m, w] = [performance.now(), Date.now()];
    time += Math.max(m - monotonic, w - wall);
    [monotonic, wall] = [m, w];
    return time;
  };
})();

// By state, the question that finds out whether the state is true; the other states need no answer
const asks = { opening: 'open', editing: 'keep', 'lost?': 'keep', queued: 'queue' };

// One owner for each page load: a tab that is duplicated or loaded again has another.
function makePage() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

export class Form extends EventTarget {
  #url;
  #page = makePage();
  #phase = 'opening'; // a state, or what to do next: opening, lost? (not confirmed)
  #until = 0; // by the clock: end of the lease or offer
  #held = false; // an offer: whether we have the lock already
  #offered; // the last offer of the key to anybody, and when we heard of it
  #auto = false;
  #token = 0;
  #ticket;
  #facts = {};
  #last = Promise.resolve();
  #failures = 0;
  #timer;
  #watching;
  #stream;
  #closed = false;

  constructor(url) {
    super();
    this.#url = url;
    addEventListener('pagehide', () => this.#hide());
    addEventListener('pageshow', (event) => event.persisted && this.#show());
    addEventListener('online', () => this.check());
    document.addEventListener('resume', () => this.check());
    document.addEventListener('visibilitychange', () => {
      this.#listen();
      if (!document.hidden) this.check();
    });
    this.#listen();
    this.check();
  }

  get state() {
    this.#watch();
    return this.#phase === 'opening' ? 'reading' : this.#phase.replace('?', '');
  }

  // { holder, since, queued, free, place, reason, by, why, error }: what is known beside the state
  get facts() {
    return this.#facts;
  }

  // Milliseconds until the end of the lease or the offer
  get left() {
    return Math.max(this.#until - clock(), 0);
  }

  // For requests that save
  get headers() {
    return { 'Atomic-Lock': `${this.#page};${this.#token}` };
  }

  // Edit, if nobody else does; after a loss, load what is edited again
  open() {
    return this.#act('open');
  }

  // Stand in line.  With auto, the turn is taken; otherwise the state is offered, and take() takes it.
  queue({ auto = false } = {}) {
    this.#auto = auto;
    return this.#act('queue');
  }

  take() {
    if (this.state !== 'offered') return Promise.resolve(this.state);
    if (!this.#held) return this.#act('queue', { taking: true });
    this.#set('editing');
    return this.#act('keep');
  }

  // Stop editing, or leave the line; the page stays open for reading
  leave() {
    return this.#act('leave');
  }

  // Tell the editor that this page waits
  ask(message) {
    return this.#act('ask', { message });
  }

  // End somebody's lock, if the server lets us, and edit
  takeOver(message) {
    return this.#act('takeOver', { message, since: this.#facts.since ?? null });
  }

  // Ask the server whether what we know is still so
  check() {
    clearTimeout(this.#timer);
    if (this.#question && !this.#closed) this.#act().catch(() => {});
  }

  // With auto, an offer is taken, and taken again after a failure.
  get #question() {
    return this.#phase === 'offered' && this.#auto ? 'queue' : asks[this.#phase];
  }

  // One request after the other.  The page chooses its own question when its turn comes:
  // the user may have left meanwhile, or has an offer, which a question would accept.
  #act(action, more = {}) {
    const turn = this.#last.then(async () => {
      action ??= this.#question;
      if (!action) return this.state;
      const [page, asked] = [this.#page, clock()];
      try {
        const answer = await this.#post({ action, page, ...more });
        this.#failures = 0;
        if (page === this.#page && !this.#closed) this.#answered(action, answer, asked, more.taking);
      } catch (error) {
        if (page !== this.#page || this.#closed) return this.state;
        this.#facts = { ...this.#facts, error: String(error.message) };
        this.#plan(Math.min(500 * 2 ** this.#failures++, 10000) * (0.5 + Math.random() / 2));
        this.#tell();
        throw error;
      }
      return this.state;
    });
    this.#last = turn.catch(() => {});
    return turn;
  }

  async #post(body) {
    const response = await fetch(this.#url, {
      method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body), signal: AbortSignal.timeout(40000) });
    if (!response.ok) throw new Error(`${response.status} ${(await response.json().catch(() => ({}))).error ?? response.statusText}`);
    return response.json();
  }

  #answered(action, { state, token, left, ticket, ...facts }, asked, taking) {
    if (!state) return; // to ask(), or to a page that was closed
    if (state === 'editing' && left === undefined) return this.#plan(1000); // a transaction is not finished: nothing is new
    const waited = ['queued', 'offered'].includes(this.#phase) && action === 'queue' && !taking && !this.#auto;
    this.#facts = facts;
    this.#ticket = ticket;
    this.#token = token ?? this.#token;
    if (state === 'editing') this.#until = asked + left;
    this.#held = state === 'editing';
    // Our turn has come while nobody looked, or between question and answer: it is for the user to take it.
    const { ticket: turn, heard, until } = this.#offered ?? {};
    if (state === 'editing' && waited) this.#offer(Math.min(left, 120000));
    else if (state === 'queued' && ticket === turn && heard >= asked) this.#offer(until - clock());
    else this.#set(state);
    if (state === 'editing') this.#plan((this.#until - clock()) / 3);
    else if (this.#phase === 'queued') this.#plan(30000 * (0.75 + Math.random() / 4));
  }

  #offer(left) {
    this.#until = clock() + left;
    this.#set('offered');
    if (this.#auto) this.check();
  }

  #plan(milliseconds) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.check(), Math.max(milliseconds, 0));
  }

  // The end of a lease or an offer
  #watch() {
    clearTimeout(this.#watching);
    if (!['editing', 'offered'].includes(this.#phase)) return;
    const left = this.#until - clock();
    if (left > 0) {
      this.#watching = setTimeout(() => this.#watch(), Math.min(left + 1, 2 ** 31 - 1));
    } else if (this.#phase === 'editing') {
      this.#facts = { reason: 'expired' };
      this.#set('lost?');
      this.check(); // if the server knows better, we go on
    } else {
      this.#facts = { reason: 'offer_over' };
      this.#set('reading');
      this.leave().catch(() => {});
    }
  }

  #set(phase) {
    const changed = phase !== this.#phase;
    this.#phase = phase;
    if (!['editing', 'queued', 'lost?'].includes(phase)) clearTimeout(this.#timer);
    this.#watch();
    if (changed) this.#listen();
    this.#tell();
  }

  #tell() {
    this.dispatchEvent(new CustomEvent('state', { detail: { state: this.state, ...this.#facts } }));
  }

  // A browser has few connections for each site: a page that nobody sees keeps none, unless it waits.
  #listen() {
    const wanted = !this.#closed && (!document.hidden || ['queued', 'offered'].includes(this.#phase));
    if (!wanted) {
      this.#stream?.close();
      this.#stream = undefined;
    } else if (!this.#stream) {
      const stream = new EventSource(this.#url);
      this.#stream = stream;
      stream.onmessage = ({ data }) => stream === this.#stream && this.#heard(JSON.parse(data));
      stream.onerror = () => {
        if (stream.readyState !== EventSource.CLOSED || stream !== this.#stream) return; // it connects again by itself
        this.#stream = undefined;
        setTimeout(() => this.#listen(), 3000);
      };
    }
  }

  // An event is a hint.  Of our own lock only an answer counts.
  #heard({ event, reason, ticket, left, from, status }) {
    const state = this.state;
    if (event === 'asked' && state === 'editing') this.dispatchEvent(new CustomEvent('asked', { detail: { message: reason, from } }));
    if (event === 'offered') this.#offered = { ticket, heard: clock(), until: clock() + left };
    if (event === 'offered' && state === 'queued' && ticket === this.#ticket) {
      this.#held = false;
      this.#offer(left);
    } else if (event === 'connected' || (state !== 'queued' && ['forced', 'stolen', 'transferred', 'expired', 'released'].includes(event))) {
      this.check(); // who is in line waits for the offer
    }
    if (['reading', 'queued', 'lost'].includes(this.state) && this.#phase !== 'opening') {
      this.#facts = { ...this.#facts, ...status, ...(this.state === 'queued' && { holder: status.holder ?? this.#facts.holder }) };
      this.#tell();
    }
  }

  // The browser keeps no order between requests, so this owner is not used again.
  #hide() {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#watching);
    this.#phase = 'reading';
    this.#listen();
    navigator.sendBeacon(this.#url, new Blob([JSON.stringify({ action: 'close', page: this.#page })], { type: 'application/json' }));
  }

  // The page comes back from the browser's cache.
  #show() {
    this.#page = makePage();
    this.#closed = false;
    this.#token = 0;
    this.#facts = {};
    this.#last = Promise.resolve();
    this.#set('opening');
    this.#listen();
    this.check();
  }
}

// Opens the form whose lock the handler at this address has
export function edit(url) {
  return new Form(url);
}
