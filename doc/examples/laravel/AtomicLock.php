<?php

namespace App\Cache;

use Illuminate\Cache\Lock;
use Illuminate\Contracts\Cache\LockTimeoutException;

/** A lock of Laravel's that calls the functions of atomic_lock */
class AtomicLock extends Lock
{
    protected $connection;

    public function __construct($connection, $name, $seconds, $owner = null)
    {
        parent::__construct($name, $seconds ?: 86400, $owner);
        $this->connection = $connection;
    }

    /** Whether we got the lock or have it already; waits in the order of arrival up to the given seconds, or max_wait */
    public function acquire($wait = 0)
    {
        return $this->ask('acquired FROM lock_policy(?) AS policy,
            lock_try_acquire(?, make_interval(secs => ?), ?, wait => least(make_interval(secs => ?), policy.max_wait))',
            $this->name, $this->seconds, $this->owner, $wait);
    }

    public function block($seconds, $callback = null)
    {
        if (! $this->acquire($seconds)) {
            throw new LockTimeoutException("lock \"{$this->name}\" is held by ".
                ($this->ask('lock_holder(?)') ?? 'a transaction'));
        }

        try {
            return $callback ? $callback() : true;
        } finally {
            $callback && $this->release();
        }
    }

    public function refresh($seconds = null)
    {
        return $this->ask('lock_try_extend(?, ?, make_interval(secs => ?)) IS NOT NULL', $this->owner, $seconds ?: $this->seconds);
    }

    public function release()
    {
        return $this->ask("lock_try_release(?, ?) = 'released'", $this->owner);
    }

    /** Needs level admin, and is audited */
    public function forceRelease()
    {
        $this->ask("lock_try_force_release(?, 'forceRelease of Laravel')");
    }

    /** Null means nobody: whether the lock is free */
    public function isOwnedBy($owner)
    {
        return $owner === null ? ! $this->ask('locked FROM lock_status(?)') : $this->ask('lock_is_held(?, ?)', $owner);
    }

    public function isOwnedByCurrentProcess()
    {
        return $this->isOwnedBy($this->owner);
    }

    public function getConnectionName()
    {
        return $this->connection->getName();
    }

    /** Never another's owner: ours, empty for another owner, or null */
    protected function getCurrentOwner()
    {
        return $this->isOwnedByCurrentProcess() ? $this->owner : ($this->ask('locked FROM lock_status(?)') ? '' : null);
    }

    private function ask($what, ...$arguments)
    {
        $row = $this->connection->selectOne("SELECT $what", [$this->name, ...$arguments], false);

        return current((array) $row);
    }
}
