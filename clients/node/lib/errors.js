// Errors are classes.  Each SQLSTATE of the extension has one; error.code is the SQLSTATE.

export class AtomicLockError extends Error {
  constructor(message, fields = {}, cause = undefined) {
    super(message, cause && { cause });
    Object.assign(this, fields);
  }

  get name() {
    return this.constructor.name;
  }
}

// Another owner has the lock: holder, since, until, status (held, pending, timeout)
export class LockHeld extends AtomicLockError {}
// The wait would have closed a cycle of owners
export class LockDeadlock extends LockHeld {}
// This owner has it already, and onReacquire is 'error'
export class LockHeldByOwner extends LockHeld {}
// We have lost it: reason (expired, forced, not_owner, not_found, already_released, not_held,
// stale, denied); if forced by (a role), why and at
export class LockLost extends AtomicLockError {}
// The lease may not be extended any further
export class LockLifetimeExceeded extends AtomicLockError {}
// The key belongs to another server
export class LockPartition extends AtomicLockError {}
// The grant that was to be ended does not hold the lock any more
export class LockChanged extends AtomicLockError {}
// lock_fetch with expect: the row has other values; detail names the columns
export class LockStale extends AtomicLockError {}
// A policy or an access level refuses it
export class LockDenied extends AtomicLockError {}
// The role has as many locks or places in line as it may have
export class LockQuota extends AtomicLockError {}
// The extension is missing, or older than this package, or older than its library
export class LockSetup extends AtomicLockError {}
// The server has not answered for as long as we ask.  Whether it did what we asked is not known.
export class LockUnreachable extends AtomicLockError {}

const reasons = { LK002: 'not_found', LK003: 'not_owner', LK004: 'already_released', LK005: 'stale', LK006: 'not_held', LK009: 'forced' };
const classes = {
  '55P03': LockHeld, '40P01': LockDeadlock, '42501': LockDenied, '53400': LockQuota, '55000': LockSetup,
  LK007: LockHeldByOwner, LK008: LockLifetimeExceeded, LK010: LockPartition, LK011: LockChanged, LK012: LockStale,
};
// The extension's message about an end by force
const forced = /^Role "(.*)" ended the lease by \S+ at (.*?), for the reason "(.*)"\./s;

// The error of ours that an error of the driver means; others stay as they are.  In a
// transaction of the application, 55P03 and others may be of its own tables.
export function translate(error, { only = /./ } = {}) {
  const code = error?.severity ? error.code : undefined;
  const Class = reasons[code] ? LockLost : classes[code];
  if (!Class || !only.test(code)) return error;
  const fields = { code, detail: error.detail, hint: error.hint };
  if (Class === LockLost) fields.reason = reasons[code];
  const [, by, at, why] = forced.exec(code === 'LK009' ? error.detail : '') ?? [];
  if (by !== undefined) Object.assign(fields, { by, at, why });
  return new Class(error.message, fields, error);
}

// Whether a repetition may succeed: no connection, a server that stops or starts, a standby
export function mayPass(error) {
  if (error?.severity) return /^(080|57P|25006)/.test(error.code);
  return /^E[A-Z]+$|^EAI_/.test(error?.code ?? '') || /terminated|timeout|connection error|was closed/i.test(error?.message ?? '');
}
