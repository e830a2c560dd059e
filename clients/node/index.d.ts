import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ClientBase, ClientConfig, Pool } from 'pg';

/** Milliseconds, or an interval of PostgreSQL such as '40 min' */
export type Duration = number | string;

export interface LocksOptions {
  /** Schema of the extension, by its name without quotes; by default it is looked up */
  schema?: string;
  /** Where to listen, if the pool is one of a pooler in transaction mode; the rest is as in the pool.  A text is a whole connection string: the pool adds nothing to it */
  channel?: ClientConfig | string;
  /** Label that others see; by default application_name, or the role's name */
  holder?: string;
  /** For how long a call is repeated whose answer is lost, and for how long the listener connects before it warns, in milliseconds; 30000 */
  patience?: number;
}

export interface LineOptions {
  owner?: string;
  holder?: string;
  ttl?: Duration;
  /** For how long the lock is kept for us when our turn comes */
  offer?: Duration;
  /** For how long the place is kept from each question on; '2 min' */
  keep?: Duration;
  /** Milliseconds between two questions; 30000 */
  poll?: number;
  /** JSON of the lock that our turn brings */
  meta?: unknown;
  signal?: AbortSignal;
}

export interface AcquireOptions {
  /** Proves who has the lock: a secret.  By default a random one */
  owner?: string;
  ttl?: Duration;
  /** Longest wait; null: as long as max_wait of the key allows, or without end while half of the pool's connections wait already */
  wait?: Duration | null;
  mode?: 'exclusive' | 'shared';
  maxHolders?: number;
  holder?: string;
  meta?: unknown;
  /** If the owner has the lock already; 'error': LockHeldByOwner, or LockUnreachable where an answer of this call was lost */
  onReacquire?: 'extend' | 'error';
  signal?: AbortSignal;
}

export interface Grant {
  readonly owner: string;
  readonly fencingToken?: number;
}

export interface Lock extends AsyncDisposable {
  readonly key: string;
  readonly mode: 'exclusive' | 'shared';
  readonly status: 'acquired' | 'reacquired';
  /** Rises with every grant of the key */
  readonly fencingToken: number;
  readonly owner: string;
  /** Aborted when the lock is lost; its reason is the LockLost */
  readonly signal: AbortSignal;
  readonly lost: LockLost | null;
  /** Resolved with the LockLost, or with null after a release */
  readonly ended: Promise<LockLost | null>;
  /** By the local monotonic clock */
  isOurs(): boolean;
  /** Repeats the length of the lease, or gives it another.  Has no effect after release(), even if that failed, nor while an unfinished transaction has changed the lock.  isOurs() knows of a shorter lease only once the server has answered */
  extend(ttl?: Duration): Promise<void>;
  /** Throws LockLost if the lock was not ours to the end */
  release(): Promise<void>;
  /** In a transaction of the caller's: proves that we have the lock, and keeps it to the commit */
  assert(client: ClientBase): Promise<void>;
  transaction<T>(work: (client: ClientBase) => Promise<T>): Promise<T>;
}

export type Turn =
  | { state: 'queued'; place: number; holder: string | null }
  | { state: 'offered'; until: Date }
  | { state: 'acquired'; lock: Lock }
  | { state: 'lost'; error: LockLost };

export interface LockEvent {
  /** 'connected': events were lost, ask.  'changed': something was done in this process */
  event: 'offered' | 'asked' | 'acquired' | 'released' | 'transferred' | 'forced' | 'stolen' | 'expired' | 'connected' | 'denied' | 'changed';
  key: string;
  holder?: string | null;
  fencing_token?: number | null;
  by?: string | null;
  from?: string | null;
  ticket?: number | null;
  until?: string | null;
  at?: string;
  reason?: string | null;
}

export interface Events extends AsyncIterableIterator<LockEvent>, AsyncDisposable {
  /** The next event that fits, or undefined if none comes for so long */
  heard(fits: (event: LockEvent) => boolean, milliseconds: number): Promise<LockEvent | undefined>;
  end(): void;
}

export interface LockStatus {
  key: string;
  locked: boolean;
  /** A transaction that is not finished has acquired, released or changed it */
  pending: boolean;
  mode: 'exclusive' | 'shared' | null;
  holder: string | null;
  since: Date | null;
  until: Date | null;
  /** Milliseconds */
  left: number | null;
  /** Shown to roles of level monitor */
  fencingToken: number | null;
  queued: number;
  waiters: number | null;
  meta: unknown;
}

type Work<T> = (lock: Lock, signal: AbortSignal) => Promise<T> | T;

export class Locks {
  constructor(pool: Pool, options?: LocksOptions);
  acquire(key: string, options?: AcquireOptions): Promise<Lock>;
  run<T>(key: string, options: AcquireOptions | undefined, work: Work<T>): Promise<T>;
  lead<T>(name: string, options: LineOptions | undefined, work: Work<T>): Promise<T>;
  queue(key: string, options?: LineOptions): AsyncGenerator<Turn, void, undefined>;
  listen(keys: string[], options?: { signal?: AbortSignal }): Events;
  status(keys: string[]): Promise<LockStatus[]>;
  ask(key: string, message?: string): Promise<number>;
  transaction<T>(grant: Grant, work: (client: ClientBase) => Promise<T>): Promise<T>;
  editing<Req extends IncomingMessage = IncomingMessage>(
    key: (req: Req) => string | null | undefined | Promise<string | null | undefined>, options: EditingOptions<Req>): EditingHandler<Req>;
}

export interface EditingOptions<Req> {
  /** Label of the user; without one the answer is 401 */
  user(req: Req): string | null | undefined | Promise<string | null | undefined>;
  /** A secret of the user's session, such as its id: a text, not the session itself */
  session(req: Req): string | null | undefined | Promise<string | null | undefined>;
  /** Length of a lease, '5 min': hidden pages extend once a minute at best, so not below three */
  ttl?: Duration;
  wait?: Duration;
  offer?: Duration;
  keep?: Duration;
  takeOver?(req: Req): boolean | Promise<boolean>;
}

export interface EditingHandler<Req> {
  (req: Req, res: ServerResponse, next?: (error: unknown) => void): Promise<void>;
  /** Of a request that the page has sent with form.headers */
  grant(req: Req): Promise<Required<Grant>>;
  transaction<T>(req: Req, work: (client: ClientBase) => Promise<T>): Promise<T>;
}

/** The key that lock_key() makes of texts and numbers */
export function lockKey(...parts: (string | number | bigint)[]): string;

export class AtomicLockError extends Error {
  readonly code?: string;
  readonly detail?: string;
  readonly hint?: string;
}
export class LockHeld extends AtomicLockError {
  readonly key?: string;
  readonly status?: string;
  readonly holder?: string | null;
  readonly since?: Date | null;
  readonly until?: Date | null;
}
export class LockDeadlock extends LockHeld {}
export class LockHeldByOwner extends LockHeld {}
export class LockLost extends AtomicLockError {
  readonly reason: 'expired' | 'forced' | 'not_owner' | 'not_found' | 'already_released' | 'not_held' | 'stale' | 'denied';
  readonly by?: string;
  readonly why?: string;
  readonly at?: string;
}
export class LockLifetimeExceeded extends AtomicLockError {}
export class LockPartition extends AtomicLockError {}
export class LockChanged extends AtomicLockError {}
export class LockStale extends AtomicLockError {}
export class LockDenied extends AtomicLockError {}
export class LockQuota extends AtomicLockError {}
export class LockSetup extends AtomicLockError {}
export class LockUnreachable extends AtomicLockError {}
