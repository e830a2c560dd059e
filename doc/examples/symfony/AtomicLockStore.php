<?php

namespace App\Lock;

use Symfony\Component\Lock\BlockingSharedLockStoreInterface;
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Key;

/** A store of Symfony's Lock component, with leases of atomic_lock */
class AtomicLockStore implements BlockingStoreInterface, BlockingSharedLockStoreInterface
{
    /** The ttl is for locks that are made without one */
    public function __construct(private \PDO $db, private float $ttl = 300)
    {
    }

    public function save(Key $key): void
    {
        $this->take($key, 'exclusive', 0);
    }

    public function saveRead(Key $key): void
    {
        $this->take($key, 'shared', 0);
    }

    /** Waits in the order of arrival, for as long as max_wait */
    public function waitAndSave(Key $key): void
    {
        $this->take($key, 'exclusive', null);
    }

    public function waitAndSaveRead(Key $key): void
    {
        $this->take($key, 'shared', null);
    }

    public function putOffExpiration(Key $key, float $ttl): void
    {
        if (! $this->exists($key) || ! $this->ask('lock_try_extend(?, ?, make_interval(secs => ?)) IS NOT NULL', $key, $ttl)) {
            throw new LockConflictedException();
        }
        $key->reduceLifetime($ttl);
    }

    public function delete(Key $key): void
    {
        $key->hasState(self::class) && $this->ask('lock_try_release(?, ?)', $key);
    }

    public function exists(Key $key): bool
    {
        return $key->hasState(self::class) && $this->ask('lock_is_held(?, ?)', $key);
    }

    /** An owner who has the lock exclusively, and wants to share it, converts it */
    private function take(Key $key, string $mode, ?int $wait): void
    {
        $key->hasState(self::class) || $key->setState(self::class, bin2hex(random_bytes(16)));
        $has = $this->ask('CASE WHEN acquired THEN mode END FROM lock_try_acquire(?, owner => ?,
            ttl => make_interval(secs => ?), mode => ?, wait => make_interval(secs => ?))', $key, $this->ttl, $mode, $wait);
        if ($has === null) {
            throw new LockConflictedException();
        }
        if ($has !== $mode) {
            $this->ask('lock_try_convert(?, ?, ?)', $key, $mode);
        }
        $key->reduceLifetime($this->ttl);
    }

    private function ask(string $what, Key $key, ...$more): mixed
    {
        $statement = $this->db->prepare("SELECT $what");
        $statement->execute([(string) $key, $key->getState(self::class), ...$more]);

        return $statement->fetchColumn();
    }
}
