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
}
