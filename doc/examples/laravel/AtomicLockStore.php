<?php

namespace App\Cache;

use Illuminate\Cache\DatabaseStore;

/** Laravel's database cache, with locks of atomic_lock */
class AtomicLockStore extends DatabaseStore
{
    public function lock($name, $seconds = 0, $owner = null)
    {
        return new AtomicLock($this->lockConnection ?? $this->connection, $this->prefix.$name, $seconds, $owner);
    }

    /** Ends all locks whose keys have our prefix.  Needs the levels supervisor and monitor, and is audited */
    public function flushLocks(): bool
    {
        if ((string) $this->prefix === '') {
            throw new \RuntimeException('without a prefix, all locks of the database would be flushed');
        }
        ($this->lockConnection ?? $this->connection)->select(
            "SELECT lock_try_force_release(key, 'flushLocks of Laravel')
             FROM (SELECT DISTINCT key FROM lock_status() WHERE starts_with(key, ?)) AS ours", [$this->prefix], false);

        return true;
    }

    public function hasSeparateLockStore(): bool
    {
        return true;
    }
}
