"""Locks of tooz by the package atomic_lock, as a driver: tooz.backends = atomic-lock = atomic_lock_driver:AtomicLockDriver"""

from psycopg_pool import ConnectionPool
from tooz import coordination, locking

from atomic_lock import LockHeld, LockLost, Locks


class AtomicLock(locking.Lock):
    """A lease that heartbeats of the package keep.  blocking=True waits for as long as max_wait allows"""

    def __init__(self, locks, name):
        super().__init__(name)
        self._locks, self._lock = locks, None

    @property
    def acquired(self):
        return self._lock is not None and self._lock.lost is None

    def is_still_owner(self):
        return self.acquired

    def acquire(self, blocking=True, shared=False, timeout=None):
        if self.acquired:
            return False
        wait = timeout if blocking is True else float(blocking)
        try:
            self._lock = self._locks.acquire(self.name.decode(), wait=wait, mode='shared' if shared else 'exclusive').__enter__()
        except LockHeld:
            return False
        return True

    def release(self):
        lock, self._lock = self._lock, None
        try:
            return lock is not None and lock.release() is None
        except LockLost:
            return False


class AtomicLockDriver(coordination.CoordinationDriver):
    """atomic-lock://host/database?user=shop"""

    def __init__(self, member_id, url, options):
        super().__init__(member_id, url, options)
        self._dsn = f'postgresql://{url.netloc}{url.path}?{url.query}'

    def _start(self):
        self._pool = ConnectionPool(self._dsn, open=True)
        self._locks = Locks(self._pool)

    def _stop(self):
        self._locks.close()
        self._pool.close()

    def get_lock(self, name):
        return AtomicLock(self._locks, name)
