"""Locks of the PostgreSQL extension atomic_lock, with psycopg 3: see the README of the package"""

from ._async import AsyncListening, AsyncLock, AsyncLocks, AsyncQueue
from ._core import Event, Turn, lock_key
from ._sync import Listening, Lock, Locks, Queue
from ._version import VERSION as __version__
from .errors import (ExtensionError, LockAlreadyHeld, LockChanged, LockDeadlock, LockDenied, LockElsewhere, LockError, LockExpired,
                     LockForced, LockHeld, LockLifetimeExceeded, LockLost, LockNotFound, LockNotHeld, LockNotOwner, LockQuota,
                     LockReleased, LockStale, translate)

__all__ = [
    'AsyncListening', 'AsyncLock', 'AsyncLocks', 'AsyncQueue', 'Event', 'ExtensionError', 'Listening', 'Lock', 'LockAlreadyHeld',
    'LockChanged', 'LockDeadlock', 'LockDenied', 'LockElsewhere', 'LockError', 'LockExpired', 'LockForced', 'LockHeld',
    'LockLifetimeExceeded', 'LockLost', 'LockNotFound', 'LockNotHeld', 'LockNotOwner', 'LockQuota', 'LockReleased', 'LockStale', 'Locks',
    'Queue', 'Turn', '__version__', 'lock_key', 'translate']
