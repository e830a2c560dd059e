// atomic-lock: locks of the PostgreSQL extension atomic_lock, for node-postgres

export * from './lib/errors.js';
export { Locks, lockKey } from './lib/locks.js';
