"""The behaviour of both Locks and AsyncLocks, written once.

All of it is `async def`.  AsyncLocks awaits it in an event loop.  Locks runs it in the
thread of the caller, where no function of the port suspends: each blocks, and run() goes
from the first line to the last.  The differences are in the port: connections, threads or
tasks, and how to wait.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import Jsonb
from psycopg_pool import PoolTimeout, TooManyRequests

from . import errors
from ._version import VERSION

logger = logging.getLogger('atomic_lock')
T = TypeVar('T')
Seconds = float | timedelta
Query = sql.Composed | sql.SQL

# This clock counts the time for which the machine sleeps, and cannot be set.
if hasattr(time, 'clock_gettime'):
    _CLOCK = getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC)

    def now() -> float:
        return time.clock_gettime(_CLOCK)
else:
    now = time.monotonic


class Owner(str):
    """Proof of ownership of a lock.  It does not show itself in the repr of anything, nor where a tool prints variables"""

    def __repr__(self) -> str:
        return "'(owner)'"

    @classmethod
    def of(cls, owner: str | None) -> Owner:
        """A new owner, if the caller has none: with an owner, a call whose answer was lost can be repeated"""
        if owner == '':
            raise ValueError('an owner must not be empty')
        return cls(uuid.uuid4() if owner is None else owner)


def lock_key(*parts: str | int | uuid.UUID) -> str:
    """The key that lock_key() of the extension, and the templates of guards, make of these parts"""
    return ':'.join(str(part).replace('\\', '\\\\').replace(':', '\\:') for part in parts)


def interval(value: Seconds | None) -> timedelta | None:
    return timedelta(seconds=value) if isinstance(value, (int, float)) else value


def jsonb(value: Any) -> Jsonb | None:
    return None if value is None else Jsonb(value)


class Flag(Protocol):
    """An event of threading or asyncio"""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self, seconds: float | None) -> bool: ...


class Mailbox(Protocol):
    def put(self, item: Any) -> None: ...
    async def get(self, seconds: float | None) -> Any: ...  # None if nothing comes for so long


class Slots(Protocol):
    """A semaphore of threading or asyncio"""

    async def take(self, seconds: float | None) -> bool: ...  # False if there was none for so long
    def give(self) -> None: ...


class Job(Protocol):
    async def end(self, seconds: float | None = None) -> None: ...  # waits for it, and no longer than this


class Port(Protocol):
    def flag(self) -> Flag: ...
    def wake(self) -> Any: ...  # a flag for readable(), and close()
    def mailbox(self) -> Mailbox: ...
    def slots(self, count: int) -> Slots: ...
    def start(self, work: Coroutine[Any, Any, None], name: str) -> Job: ...
    async def finish(self, work: Coroutine[Any, Any, T]) -> T: ...
    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T: ...  # or raises TimeoutError
    async def row(self, pool: Any, query: Query, values: Callable[[], Sequence[Any]], seen: list[Any]) -> Any: ...
    async def value(self, it: Any) -> Any: ...  # which may be a function
    async def connect(self, conninfo: str, options: dict[str, Any]) -> Any: ...
    async def execute(self, connection: Any, query: Query, values: Sequence[Any]) -> Any: ...
    async def readable(self, connection: Any, wake: Any, seconds: float) -> bool: ...  # False if nothing came for so long
    async def close(self, connection: Any) -> None: ...


class Event(NamedTuple):
    """An event of a key: a hint that it is worth asking.  `event` is `connected` where some may have been lost"""

    event: str
    key: str
    holder: str | None = None
    fencing_token: int | None = None
    by: str | None = None
    from_: str | None = None
    ticket: int | None = None
    until: datetime | None = None
    at: datetime | None = None
    reason: str | None = None


CLOSED = Event('closed', '')
TIMER = 5  # seconds of a timer at most, since it stands still where the machine sleeps
GRACE = 5  # seconds for a call at the end, beyond the lease if there is one


def parse(payload: str) -> Event:
    """The event of a notification; an error if it is malformed, since any role may send one"""
    what = json.loads(payload)
    what['from_'] = what.pop('from')
    if not isinstance(what['key'], str) or not isinstance(what['event'], str):
        raise ValueError('its key or event is no text')
    for name in 'until', 'at':
        what[name] = what[name] and datetime.fromisoformat(what[name])
    return Event(**{name: what[name] for name in Event._fields if name in what})  # a newer server may tell more


class Grant(NamedTuple):
    status: str
    token: int | None
    lasts: float | None
    mode: str | None
    holder: str | None
    since: datetime | None
    until: datetime | None
    holders: int
    max_holders: int


LOOK = sql.SQL("""SELECT current_database()::text, e.extversion, n.nspname::text FROM (VALUES (1)) AS one
    LEFT JOIN pg_catalog.pg_extension AS e ON e.extname = 'atomic_lock' LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace""")
ACQUIRE = """SELECT status, fencing_token, extract(epoch FROM waited + ttl_remaining)::float8, mode, holder, acquired_at, expires_at, holders, max_holders
    FROM {schema}.lock_try_acquire(%s::text, %s::interval, %s::text, %s::text, %s::interval, %s::text, %s::jsonb, 'lease', %s::integer)"""
ENQUEUE = """SELECT status, fencing_token, extract(epoch FROM ttl_remaining)::float8, place, holder, ticket
    FROM {schema}.lock_enqueue(%s::text, %s::text, %s::text, %s::interval, %s::interval, %s::interval, %s::jsonb)"""
HEARTBEAT = """SELECT status, extract(epoch FROM ttl_remaining)::float8
    FROM {schema}.lock_heartbeat(ARRAY[%s::text], %s::text, %s::interval)"""
EXTEND = 'SELECT {schema}.lock_extend(%s::text, %s::text)'
RELEASE = 'SELECT {schema}.lock_try_release(%s::text, %s::text)'
LEAVE = 'SELECT {schema}.lock_leave(%s::text, %s::text)'
CHANNEL = 'SELECT {schema}.lock_channel(%s::text)'
PRESENT = sql.SQL("""SELECT set_config('atomic_lock.owner', %s, true), set_config('atomic_lock.fencing_token',
    concat_ws(',', nullif(current_setting('atomic_lock.fencing_token', true), ''), %s::text), true)""")
ASSERT = 'SELECT {schema}.lock_assert(%s::text)'


class Core:
    """One object for each application"""

    def __init__(self, port: Port, pool: Any, waits: Any, listen: str | None, patience: float):
        self._port, self._pool, self._waits, self._patience = port, pool, waits or pool, patience
        # Those who wait must leave a connection of the pool to heartbeats and releases.
        size = getattr(pool, 'max_size', 0) or 0
        self._slots = port.slots(max(size - 1, 1)) if waits is None and size > 0 else None
        self._schema: str | None = None
        self._closed = port.flag()
        self._listener = Listener(self, listen)

    async def _sql(self, text: str, connection: Any = None) -> sql.Composed:
        return sql.SQL(text).format(schema=sql.Identifier(self._schema or await self._look(connection)))

    async def _look(self, connection: Any) -> str:
        """The schema of the extension, if that is there and new enough.  By this connection, or one of the pool"""
        database, version, schema = await (self._port.execute(connection, LOOK, ()) if connection else self._port.row(self._pool, LOOK, tuple, []))
        if version is None:
            raise errors.ExtensionError(f'database "{database}" has no extension atomic_lock',
                                        hint='Say CREATE EXTENSION atomic_lock, as the owner of the database.')
        ours = VERSION.split('.')[:2]
        if [int(part) for part in version.split('.')[:2]] < [int(part) for part in ours]:
            raise errors.ExtensionError(
                f'extension atomic_lock has version {version} in database "{database}", and this package needs {".".join(ours)}',
                hint='Install the newer extension, and say ALTER EXTENSION atomic_lock UPDATE, or install an older package.')
        self._schema = str(schema)
        return self._schema

    async def _ask(self, text: str, values: Callable[[], Sequence[Any]], key: str, *, pool: Any = None, seen: list[Any] | None = None,
                   patience: float | None = None, stop: Flag | None = None) -> Any:
        """The row of one statement in a transaction of its own, which is repeated where its answer was lost.

        `values` is called for each attempt that has a connection.  `seen` gets each row that there was before its commit.
        """
        began, tries = now(), 0
        pool, seen, stop = pool or self._pool, [] if seen is None else seen, stop or self._closed
        while True:
            known = self._schema
            try:
                query = await self._sql(text)
                return await self._port.row(pool, query, values, seen)
            except psycopg.Error as error:
                tries += 1
                if error.sqlstate in ('42883', '3F000') and known:  # it was dropped, or is in another schema now
                    self._schema = None
                    continue
                # Each attempt has cost a connection of the pool, which replaces it.  So each of them is tried, without a pause.
                stale = tries <= getattr(pool, 'max_size', 1)
                late = now() - began > min(self._patience, self._patience if patience is None else patience)
                if not errors.may_pass(error) or late and not stale:
                    raise errors.translate(error, key) from None
            if not stale and await stop.wait(.5):
                raise errors.LockError(f'lock "{key}": the call was given up, without an answer', key=key)

    async def _last(self, seconds: float, asking: Coroutine[Any, Any, T]) -> T:
        """A call at the end.  A server that does not answer keeps nobody for longer"""
        try:
            return await self._port.within(seconds, asking)
        except TimeoutError:
            raise psycopg.OperationalError('the server does not answer') from None

    async def _granted(self, text: str, values: Callable[[], Sequence[Any]], key: str, owner: str, pool: Any = None) -> Any:
        """The same, for a call that grants.  A caller that is interrupted, or gets no answer, must not hold a lock without knowing it"""
        seen: list[Any] = []
        try:
            return await self._ask(text, values, key, pool=pool, seen=seen)
        except BaseException:
            if any(row[0] == 'acquired' for row in seen):
                await self._port.finish(self._give_back(key, owner))
            raise

    async def _give_back(self, key: str, owner: str) -> None:
        try:
            await self._last(GRACE, self._ask(RELEASE, lambda: (key, owner), key, patience=0))
        except (psycopg.Error, errors.LockError) as error:
            logger.warning('lock "%s" may be held until its lease runs out: %s', key, error)

    async def _acquire(self, make: Callable[..., L], key: str, owner: Owner, ttl: Seconds | None, wait: Seconds | None, mode: str,
                       max_holders: int | None, holder: str | None, meta: Any, on_lost: Callable[[errors.LockLost], object] | None) -> L:
        begun = asked = now()
        limit, none = interval(wait), timedelta()

        def left() -> timedelta | None:
            return limit and max(limit - timedelta(seconds=now() - begun), none)

        async def ask(pool: Any, rest: Callable[[], timedelta | None]) -> Grant:
            def values() -> Sequence[Any]:
                nonlocal asked
                asked = now()
                return (key, interval(ttl), owner, mode, rest(), holder, jsonb(meta), max_holders)
            return Grant._make(await self._granted(ACQUIRE, values, key, owner, pool))

        if limit is not None and limit <= none:
            answer = await ask(self._pool, lambda: limit)
        elif self._slots is None:
            answer = await ask(self._waits, left)
        else:  # a lock that is free needs no turn
            answer = await ask(self._pool, timedelta)
            rest = left()
            if answer.status in ('held', 'pending') and await self._slots.take(None if rest is None else rest.total_seconds()):
                try:
                    answer = await ask(self._pool, left)
                finally:
                    self._slots.give()
        if answer.token is None or answer.lasts is None:
            refused = errors.refused(key, answer)
            if isinstance(refused, errors.LockHeld) and limit and left() == none:
                refused.status = 'timeout'
            raise refused
        until = asked + answer.lasts
        return make(self, key, owner, answer.token, ttl, until, until - now(), answer.status, answer.mode, on_lost)

    async def _close(self) -> None:
        self._closed.set()
        await self._listener.end()


class Held:
    """A lock that an owner has: what Lock and AsyncLock have in common"""

    _watched = False  # whether _told() does something

    def __init__(self, locks: Core, key: str, owner: Owner, fencing_token: int | None, ttl: Seconds | None, until: float, lasts: float,
                 status: str, mode: str | None = 'exclusive', on_lost: Callable[[errors.LockLost], object] | None = None):
        self.key, self.owner, self.fencing_token, self.mode, self.status = key, owner, fencing_token, mode, status
        self._locks, self._port, self._ttl, self._until, self._lasts, self._on_lost = locks, locks._port, ttl, until, lasts, on_lost
        self._lost: errors.LockLost | None = None
        self._jobs: list[Job] = []
        self._released, self._attempts = False, 0
        self._box: Mailbox | None = None  # of the line, which waits for the end of the lock
        self._turn = self._port.slots(1)  # of the one call that extends
        self._stirred, self._again, self._over = self._port.flag(), self._port.flag(), self._port.flag()

    def __repr__(self) -> str:
        lost = self.lost
        return f'<{type(self).__name__} "{self.key}" {f"lost: {lost.reason}" if lost else "released" if self._released else "held"}>'

    @property
    def lost(self) -> errors.LockLost | None:
        """None as long as the lock is ours, by our own clock: no server can keep us waiting for this"""
        if self._lost is None and not self._released and now() >= self._until:
            self._lose(errors.LockExpired(f'lease of lock "{self.key}" is over, and no heartbeat was answered in time', key=self.key))
        return self._lost

    def _left(self, more: float = 0) -> float:
        """Seconds to the end of the lease, plus `more`; of a lease with an unknown end, the length that a heartbeat asks for"""
        if self._until == float('inf') and not self._lost:
            ttl = interval(self._ttl)
            return (self._locks._patience if ttl is None else ttl.total_seconds()) + more
        return (0 if self._lost else max(self._until - now(), 0)) + more

    def _check(self) -> None:
        """Raises if the lock is lost, or if it was released, as far as we know: then only that may be repeated"""
        if lost := self.lost:
            raise lost
        if self._over.is_set():
            raise errors.LockReleased(f'lock "{self.key}" was released before', key=self.key)

    def _lose(self, lost: errors.LockLost) -> None:
        self._lost = lost
        self._stop()

    def _stop(self) -> None:
        for flag in self._over, self._again, self._stirred:
            flag.set()
        if self._box:
            self._box.put(self)

    async def _lost_by(self, status: str) -> errors.LockLost:
        """The state of the lock: the server tells more where it raises"""
        lost = errors.LOST.get(status, errors.LockExpired)(f'lock "{self.key}" is lost: {status}', key=self.key)
        try:
            await self._locks._last(GRACE, self._locks._ask(EXTEND, lambda: (self.key, self.owner), self.key, patience=0))
        except errors.LockLost as told:
            lost = told
        except (psycopg.Error, errors.LockError) as error:
            logger.warning('what has become of lock "%s": %s', self.key, error)
        return lost

    async def _extend(self) -> None:
        """One heartbeat: sets the deadline, or `lost`, which it raises"""
        self._check()
        while not await self._turn.take(min(self._until - now(), TIMER)):  # the server sees the calls in the order of their values
            self._check()
        try:
            self._check()
            await self._beat()
        finally:
            self._turn.give()
        self._check()

    async def _beat(self) -> None:
        begun = asked = now()
        seen: list[Any] = []

        def values() -> Sequence[Any]:
            nonlocal asked
            asked = now()
            return (self.key, self.owner, interval(self._ttl))

        try:
            status, lasts = await self._locks._ask(HEARTBEAT, values, self.key, seen=seen, patience=self._until - asked, stop=self._over)
        except BaseException:
            # Each of these may be committed, and a lease may be shorter than before.
            self._until = min([self._until, *(begun + lasts for _, lasts in seen if lasts is not None)])
            self._stirred.set()
            raise
        if lasts is not None:
            self._until = asked + lasts
            self._lasts = lasts
            self._stirred.set()
        elif status in ('pending', 'denied'):
            raise errors.LockError(f'lock "{self.key}" was not extended: {status}', key=self.key)
        elif not self._over.is_set():  # else the end is known, such as a release
            self._lose(await self._lost_by(status))

    async def _extend_to(self, ttl: Seconds | None) -> None:
        self._ttl = self._ttl if ttl is None else ttl
        try:
            await self._extend()
        finally:
            self._again.set()

    async def _enter(self) -> None:
        """The beginning of a block.  A block that does not begin leaves no lease on the server"""
        try:
            self._check()
            self._keep()
        except BaseException:
            with contextlib.suppress(psycopg.Error, errors.LockError):
                await self._port.finish(self._release())
            raise

    def _keep(self) -> None:
        """From now on, heartbeats keep it"""
        if not self._jobs:
            self._jobs.append(self._port.start(self._beats(), f'heartbeat of lock {self.key}'))
            if self._watched or self._on_lost:
                self._jobs.append(self._port.start(self._watch(), f'deadline of lock {self.key}'))

    async def _beats(self) -> None:
        """A heartbeat comes after a third of the lease, or of its rest, and after a failure three come in a tenth of the lease"""
        failed, since = False, now()
        while not self._over.is_set():
            due = since + max(self._lasts / 30 if failed else min(self._lasts, self._until - since) / 3, .1)
            if await self._again.wait(min(max(due - now(), 0), TIMER)):
                self._again.clear()  # the lease has another length, or is over
                since = now()
                continue
            if now() < due:
                continue
            try:
                await self._extend()
                failed = False
            except errors.LockLost:
                return
            except (psycopg.Error, errors.LockError) as error:
                failed = True
                logger.warning('heartbeat of lock "%s": %s', self.key, error)
            since = now()

    async def _watch(self) -> None:
        """Apart from the heartbeat, which may get no answer"""
        while not self.lost:
            await self._stirred.wait(min(self._until - now(), TIMER))
            self._stirred.clear()
            if self._released and not self._lost:
                return
        if self._lost:
            self._told(self._lost)

    def _told(self, lost: errors.LockLost) -> None:
        try:
            if self._on_lost:
                self._on_lost(lost)
        except Exception:
            logger.exception('on_lost of lock "%s"', self.key)

    async def _release(self) -> None:
        """Ends the lease, and the heartbeat; raises LockLost if the lock was lost before"""
        if self._released:
            return
        lost = self.lost
        self._released = True
        self._stop()

        def values() -> Sequence[Any]:
            self._attempts += 1
            return (self.key, self.owner)

        try:
            for job in self._jobs[:1]:  # the heartbeat, which may hang
                await job.end(self._left())
            for job in self._jobs[1:]:
                await job.end(self._left(GRACE))
            asking = self._locks._ask(RELEASE, values, self.key, patience=0 if lost or self._lost else self._until - now())
            (answer,) = await self._locks._last(self._left(GRACE), asking)
        except BaseException as error:
            self._released = False  # as far as we know; one may try again, unless the lease is over
            if isinstance(error, (psycopg.Error, errors.LockError)) and (lost := self.lost):
                self._released = True
                raise lost from error
            raise
        lost = self._lost or lost
        if answer != 'released' and not (self._attempts > 1 and answer in ('already_released', 'not_found')):
            if lost is None or isinstance(lost, errors.LockExpired):
                lost = await self._lost_by(answer)
            self._lost = lost
        if lost:
            raise lost

    async def _leave(self, error: BaseException | None, ours: bool = False) -> None:
        """The end of a block, which may have failed.  Its error counts more, unless it comes from the loss of the lock"""
        try:
            await self._port.finish(self._release())
            if self._lost and self._lost is not error:  # only another call was told
                raise self._lost
        except (psycopg.Error, errors.LockError) as trouble:
            if error is None or ours or isinstance(trouble, errors.LockLost) and isinstance(error, (psycopg.Error, errors.LockError)):
                raise trouble from error or trouble.__cause__
            error.add_note(f'{type(trouble).__name__}: {trouble}')

    async def _assert(self, connection: Any) -> None:
        if connection.autocommit and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise errors.LockError(f'lock "{self.key}" is asserted outside of a transaction, where that would be over at once', key=self.key)
        token = None if self.fencing_token is None else str(self.fencing_token)
        try:
            query = await self._locks._sql(ASSERT, connection)
            await self._port.execute(connection, PRESENT, (self.owner, token))
            await self._port.execute(connection, query, (self.key,))
        except psycopg.Error as error:
            raise errors.translate(error, self.key) from None


L = TypeVar('L', bound=Held)


@dataclass(frozen=True)
class Turn(Generic[L]):
    """The state of a place in line.  `state` is queued, offered, acquired or lost"""

    state: str
    key: str
    place: int | None = None  # queued: 1 is next
    holder: str | None = None  # queued: who has the lock, or comes first
    until: datetime | None = None  # offered: until when the key is kept for us
    lock: L | None = None  # acquired
    lost: errors.LockLost | None = None


class Line(Generic[L]):
    """A place in line, which needs no connection: what Queue and AsyncQueue have in common"""

    def __init__(self, locks: Core, make: Callable[..., L], key: str, owner: Owner, ttl: Seconds | None, holder: str | None,
                 offer: Seconds | None, keep: Seconds | None, poll: float, meta: Any, on_lost: Callable[[errors.LockLost], object] | None):
        self.key, self.owner = key, owner
        self._locks, self._port, self._make, self._ttl, self._on_lost = locks, locks._port, make, ttl, on_lost
        self._values = (key, self.owner, holder, interval(offer), interval(4 * poll if keep is None else keep), interval(ttl), jsonb(meta))
        self._poll, self._ticket = poll, 0
        self._shown: tuple[Any, ...] | None = None
        self._box: Mailbox | None = None
        self._lock: L | None = None
        self._ended = self._told = False  # told: of the loss of the lock

    def __repr__(self) -> str:
        return f'<{type(self).__name__} "{self.key}">'

    async def _next(self) -> Turn[L] | None:
        """The next turn; None at the end"""
        asked = now()

        def values() -> Sequence[Any]:
            nonlocal asked
            asked = now()
            return self._values

        if self._box is None and not self._ended:
            self._box = self._locks._listener.subscribe([self.key])
        while self._lock and not self._ended:
            lost = self._lock.lost
            if self._lock._over.is_set() or self._locks._closed.is_set():
                self._ended = True
                if lost and not self._lock._released:
                    self._told = True
                    return Turn('lost', self.key, lost=lost)
            elif box := self._box:
                await box.get(min(self._lock._until - now(), TIMER))
        while not (self._ended or self._locks._closed.is_set()):
            if self._shown and (event := await self._hear()):
                self._shown = None
                return Turn('offered', self.key, until=event.until)
            if self._ended or self._locks._closed.is_set():
                break
            status, token, lasts, place, holder, ticket = await self._locks._granted(ENQUEUE, values, self.key, self.owner)
            if status != 'queued':
                # Counted from before the call, it may end too early, and never too late.
                self._lock = self._make(self._locks, self.key, self.owner, token, self._ttl, asked + lasts, lasts, status,
                                        'exclusive', self._on_lost)
            if self._ended:  # by somebody else, perhaps before this call reached the server
                await self._port.finish(self._quit())
                break
            if self._lock:
                self._lock._box = self._box
                if self._box:
                    self._locks._listener.mute(self._box)
                self._lock._keep()
                return Turn('acquired', self.key, lock=self._lock)
            seen, self._ticket = self._shown, ticket
            self._shown = (place, holder, ticket)
            if self._shown != seen:
                return Turn('queued', self.key, place=place, holder=holder)
        return None

    async def _lead(self) -> L | None:
        """The lock, once it is our turn, however long there is no connection; None at the end"""
        while True:
            try:
                while turn := await self._next():
                    if turn.lock:
                        return turn.lock
                return None
            except psycopg.Error as error:
                if not (errors.may_pass(error) or isinstance(error, (PoolTimeout, TooManyRequests))):
                    raise
                logger.warning('the line for lock "%s" asks again: %s', self.key, error)
            except errors.LockError:
                if not self._locks._closed.is_set():  # which gives calls up
                    raise
            await self._locks._closed.wait(random.uniform(.5, 1))

    async def _hear(self) -> Event | None:
        """The offer to us; None where it is time to ask without one"""
        end = now() + self._poll
        while (box := self._box) and (event := await box.get(end - now())):
            if isinstance(event, BaseException):
                raise event
            if event.event in ('connected', 'closed'):
                break
            if event.event == 'offered' and event.ticket == self._ticket:
                assert isinstance(event, Event)
                return event
        return None

    async def _close(self) -> None:
        """Leaves the line, and releases the lock"""
        self._ended = True
        box, self._box = self._box, None
        if box:
            self._locks._listener.unsubscribe(box)
        if self._lock or box:
            await self._quit()

    async def _quit(self) -> None:
        if self._lock:
            try:
                await self._lock._release()  # also a lost one: a heartbeat without an answer may have kept it on the server
            except errors.LockLost:
                if not self._told:
                    raise
        else:
            try:
                await self._locks._last(GRACE, self._locks._ask(LEAVE, lambda: (self.key, self.owner), self.key, patience=0))
            except (psycopg.Error, errors.LockError) as error:
                logger.warning('the place in line for lock "%s" is kept for a while: %s', self.key, error)

    async def _leave(self, error: BaseException | None) -> None:
        """The end of a block"""
        try:
            await self._port.finish(self._close())
        except (psycopg.Error, errors.LockError) as trouble:
            if error is None:
                raise
            error.add_note(f'{type(trouble).__name__}: {trouble}')


class Ear:
    """The result of listen(): the common part of Listening and AsyncListening"""

    def __init__(self, locks: Core, keys: Iterable[str]):
        self._listener, self._closed = locks._listener, locks._closed
        self._box: Mailbox | None = self._listener.subscribe(keys)

    async def _next(self) -> Event | None:
        event = await self._box.get(None) if self._box and not self._closed.is_set() else None
        if isinstance(event, BaseException):
            raise event
        return event if isinstance(event, Event) and event is not CLOSED else None

    def _stop(self) -> None:
        if self._box:
            self._listener.unsubscribe(self._box)
            self._box = None


# Of the connection that listens, where the conninfo says nothing else
DEFAULTS = {'connect_timeout': 10, 'keepalives_idle': 30, 'keepalives_interval': 10, 'keepalives_count': 3, 'tcp_user_timeout': 60000}


class Listener:
    """One connection that listens for the whole application.  It is not from the pool"""

    def __init__(self, locks: Core, conninfo: str | None):
        self._locks, self._port, self._conninfo = locks, locks._port, conninfo
        self._boxes: dict[Mailbox, frozenset[str]] = {}
        self._mutex = threading.Lock()
        self._wake = self._port.wake()
        self._heard: dict[str, str | None] = {}  # keys and their channels
        self._job: Job | None = None

    def subscribe(self, keys: Iterable[str]) -> Mailbox:
        box = self._port.mailbox()
        with self._mutex:
            self._boxes[box] = wanted = frozenset(keys)
            for key in wanted & self._heard.keys():
                if self._heard[key]:
                    box.put(Event('connected', key))
                else:
                    del self._heard[key]  # it was denied, which may be over
            if self._job is None:
                self._job = self._port.start(self._run(), 'listener of locks')
        self._wake.set()
        return box

    def mute(self, box: Mailbox) -> None:
        """From now on, only the end comes"""
        with self._mutex:
            if box in self._boxes:
                self._boxes[box] = frozenset()
        self._wake.set()

    def unsubscribe(self, box: Mailbox) -> None:
        with self._mutex:
            self._boxes.pop(box, None)
        box.put(CLOSED)
        self._wake.set()

    def _post(self, key: str | None, item: Any) -> None:
        with self._mutex:
            boxes = [box for box, keys in self._boxes.items() if key is None or key in keys]
        for box in boxes:
            box.put(item)

    async def _run(self) -> None:
        """Until the end: connect, listen, tell that events may have been lost, hear"""
        pause = .1
        while not self._locks._closed.is_set():
            connection = None
            try:
                connection = await self._connect()
                self._heard = {}
                connection.add_notify_handler(lambda notify: self._hear(notify.payload))
                while not self._locks._closed.is_set():
                    await self._listen(connection)
                    pause = .1
                    if not await self._port.readable(connection, self._wake, 30):
                        await self._ping(connection)
                    connection.pgconn.consume_input()
                    while notify := connection.pgconn.notifies():
                        self._hear(notify.extra.decode(connection.info.encoding, 'replace'))
            except Exception as error:
                logger.warning('the listener connects again: %s', error)
                await self._locks._closed.wait(pause * random.uniform(.5, 1))
                pause = min(2 * pause, 10)
            finally:
                if connection is not None:
                    await self._port.close(connection)

    async def _ping(self, connection: Any, seconds: float = 10) -> None:
        """A connection whose other side has vanished is silent, too"""
        end = now() + seconds
        connection.pgconn.send_query(b'')
        connection.pgconn.flush()
        while True:
            connection.pgconn.consume_input()
            while not connection.pgconn.is_busy():
                if connection.pgconn.get_result() is None:
                    return
            if now() >= end:
                raise psycopg.OperationalError('the server does not answer')
            self._wake.clear()  # _listen() comes next
            await self._port.readable(connection, self._wake, end - now())

    async def _connect(self) -> Any:
        pool = self._locks._pool
        conninfo, kwargs = (pool.conninfo, pool.kwargs) if self._conninfo is None else (self._conninfo, {})
        conninfo, kwargs = await self._port.value(conninfo), await self._port.value(kwargs)
        given = conninfo_to_dict(conninfo)
        options = {name: value for name, value in DEFAULTS.items() if name not in given}
        connection = await self._port.connect(conninfo, {**options, **(kwargs or {}), 'autocommit': True})
        (pid,) = await self._port.execute(connection, sql.SQL('SELECT pg_backend_pid()'), ())
        if self._conninfo is None and pid != connection.info.backend_pid:
            logger.warning('there is a pooler between us and the server; in transaction mode no event comes through it: '
                           'pass the way around it as listen=')
        return connection

    async def _listen(self, connection: Any) -> None:
        """To the keys that somebody wants to hear of now"""
        self._wake.clear()
        with self._mutex:
            wanted = {key for keys in self._boxes.values() for key in keys}
            new, old = wanted - self._heard.keys(), self._heard.keys() - wanted
        for key in new:
            answer: Any = Event('connected', key)
            try:
                (channel,) = await self._port.execute(connection, await self._locks._sql(CHANNEL, connection), (key,))
                await self._port.execute(connection, sql.SQL('LISTEN {}').format(sql.Identifier(channel)), ())
            except (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):  # the latter in recovery
                raise
            except psycopg.Error as error:
                channel, answer = None, errors.translate(error, key)
            with self._mutex:
                self._heard[key] = channel
            self._post(key, answer)
        for key in old:
            with self._mutex:
                channel = self._heard.pop(key, None)
            if channel:
                await self._port.execute(connection, sql.SQL('UNLISTEN {}').format(sql.Identifier(channel)), ())

    def _hear(self, payload: str) -> None:
        try:
            event = parse(payload)
            self._post(event.key, event)
        except Exception:
            logger.warning('a notification that is no event')

    async def end(self) -> None:
        self._wake.set()
        self._post(None, CLOSED)
        if self._job:
            await self._job.end(GRACE)
        self._wake.close()
