"""Locks for threads: each call blocks"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import select
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from . import _core
from ._core import Event, Query, Seconds, Turn
from .errors import LockLost

T = TypeVar('T')
OnLost = Callable[[LockLost], object]


def run(work: Coroutine[Any, Any, T]) -> T:
    """To the end, in this thread"""
    try:
        work.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    raise RuntimeError('the core of Locks was suspended')


class _Flag(threading.Event):
    async def wait(self, seconds: float | None) -> bool:  # type: ignore[override]
        return super().wait(None if seconds is None else min(max(seconds, 0), threading.TIMEOUT_MAX))


class _Wake(_Flag):
    """A flag that poll() can wait for"""

    def __init__(self) -> None:
        super().__init__()
        self.heard, self._said = socket.socketpair()
        self.heard.setblocking(False)
        self._said.setblocking(False)

    def set(self) -> None:
        super().set()
        with contextlib.suppress(OSError):  # it is full, so it will be heard, or closed
            self._said.send(b'.')

    def clear(self) -> None:
        super().clear()
        with contextlib.suppress(BlockingIOError):
            while self.heard.recv(4096):
                pass

    def close(self) -> None:
        self.heard.close()
        self._said.close()


class _Mailbox:
    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, item: Any) -> None:
        self._items.put(item)

    async def get(self, seconds: float | None) -> Any:
        try:
            return self._items.get(timeout=None if seconds is None else max(seconds, 0))
        except queue.Empty:
            return None


class _Slots(threading.Semaphore):
    async def take(self, seconds: float | None) -> bool:
        return super().acquire(timeout=None if seconds is None else min(max(seconds, 0), threading.TIMEOUT_MAX))

    def give(self) -> None:
        super().release()


class _Job(threading.Thread):
    async def end(self, seconds: float | None = None) -> None:
        if self is not threading.current_thread() and not sys.is_finalizing():  # no thread runs any more, and none ends
            self.join(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class _Port:
    flag, wake, mailbox = _Flag, _Wake, _Mailbox

    def slots(self, count: int) -> _Slots:
        return _Slots(count)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> _Job:
        job = _Job(target=run, args=(work,), name=name, daemon=True)
        job.start()
        return job

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        """Runs in a thread; the thread goes on after the limit"""
        if sys.is_finalizing():  # a thread that is started now never runs
            return await work
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def to_the_end() -> None:
            try:
                done.set_result(run(work))
            except BaseException as error:
                done.set_exception(error)
        try:
            threading.Thread(target=to_the_end, name='release of a lock', daemon=True).start()
        except RuntimeError:  # the interpreter ends, and starts no thread
            return await work
        return done.result(min(seconds, threading.TIMEOUT_MAX))

    async def row(self, pool: Any, query: Query, values: Callable[[], Sequence[Any]], seen: list[Any]) -> Any:
        with pool.connection() as connection:
            try:
                with connection.transaction():
                    row = await self.execute(connection, query, values())
                    seen.append(row)
            except psycopg.errors.ReadOnlySqlTransaction:
                connection.close()  # that server is a standby now
                raise
        return row

    async def execute(self, connection: Any, query: Query, values: Sequence[Any]) -> Any:
        """Never prepared by name, which poolers may not know; never with the values in the text"""
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(query, values, prepare=False)
            return cursor.fetchone() if cursor.description else None

    async def value(self, it: Any) -> Any:
        return it() if callable(it) else it

    async def connect(self, conninfo: str, options: dict[str, Any]) -> Any:
        return psycopg.connect(conninfo, **options)

    async def readable(self, connection: Any, wake: _Wake, seconds: float) -> bool:
        if not hasattr(select, 'poll'):  # on Windows
            return bool(select.select([connection, wake.heard], [], [], max(seconds, 0))[0])
        poll = select.poll()  # takes any descriptor
        for each in connection, wake.heard:
            poll.register(each, select.POLLIN)
        return bool(poll.poll(max(seconds, 0) * 1000))

    async def close(self, connection: Any) -> None:
        connection.close()


class Lock(_core.Held):
    """A lock that is held.  In `with lock:`, heartbeats keep it, and the end releases it"""

    def extend(self, ttl: Seconds | None = None) -> None:
        """Keeps it for `ttl` from now, or as long as before; raises LockLost"""
        run(self._extend_to(ttl))

    def release(self) -> None:
        """Raises LockLost if it was lost before"""
        run(self._release())

    def assert_(self, connection: psycopg.Connection[Any]) -> None:
        """Lets this transaction write under guards, and keeps the lock until it ends; raises LockLost"""
        run(self._assert(connection))

    def __enter__(self) -> Lock:
        run(self._enter())
        return self

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        run(self._leave(error))


class Queue(_core.Line[Lock], Iterator[Turn[Lock]]):
    """A place in line.  The end of `with` leaves the line, or releases the lock"""

    def __next__(self) -> Turn[Lock]:
        if turn := run(self._next()):
            return turn
        raise StopIteration

    def acquired(self) -> Lock | None:
        """Waits until it is our turn; None if the locks are closed"""
        return next((turn.lock for turn in self if turn.lock), None)

    def close(self) -> None:
        run(self._close())

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        run(self._leave(error))


class Locks(_core.Core):
    """The locks of an application, by a psycopg_pool.ConnectionPool

    `waits`: a pool for the calls that wait.  `listen`: how to connect for events, where the
    pool leads to a pooler.  `patience`: for how long a call is repeated whose answer was lost.
    """

    def __init__(self, pool: Any, *, waits: Any = None, listen: str | None = None, patience: float = 60):
        super().__init__(_Port(), pool, waits, listen, patience)

    def acquire(self, key: str, owner: str | None = None, ttl: Seconds | None = None, wait: Seconds | None = 0, mode: str = 'exclusive',
                max_holders: int | None = None, holder: str | None = None, meta: Any = None, *, on_lost: OnLost | None = None) -> Lock:
        """Takes a lock, or raises LockHeld.  `wait` None: as long as the server allows.  In `with`, a thread calls on_lost(lost)"""
        owner = _core.Owner.of(owner)
        return run(self._acquire(Lock, key, owner, ttl, wait, mode, max_holders, holder, meta, on_lost))

    lock = acquire

    def resume(self, key: str, owner: str, fencing_token: int | None = None, ttl: Seconds | None = None) -> Lock:
        """A lock that another request has acquired.  Asks nobody: extend() tells whether it is still held"""
        owner = _core.Owner(owner)
        return Lock(self, key, owner, fencing_token, ttl, float('inf'), 0, 'resumed')

    def queue(self, key: str, owner: str | None = None, ttl: Seconds | None = None, holder: str | None = None, offer: Seconds | None = None,
              keep: Seconds | None = None, poll: float = 30, meta: Any = None, *, on_lost: OnLost | None = None) -> Queue:
        """A place in line: what comes of it, as it comes"""
        owner = _core.Owner.of(owner)
        return Queue(self, Lock, key, owner, ttl, holder, offer, keep, poll, meta, on_lost)

    def lead(self, name: str, fn: Callable[[Lock], T], ttl: Seconds = 30, holder: str | None = None, *, on_lost: OnLost | None = None) -> T | None:
        """Calls fn(lock) when it is our turn, and again when the lock was lost; what fn returns, or None after close()"""
        poll = ttl if isinstance(ttl, (int, float)) else ttl.total_seconds()
        while True:
            lock = None
            try:
                with self.queue(name, ttl=ttl, holder=holder, poll=poll / 3, on_lost=on_lost) as line:
                    lock = run(line._lead())
                    if lock is None:
                        return None
                    with lock:
                        return fn(lock)
            except LockLost:
                if not (lock and lock.lost):
                    raise

    def listen(self, keys: Sequence[str]) -> Listening:
        """The events of these keys; `connected`: ask, since events may have been lost"""
        return Listening(self, keys)

    def close(self) -> None:
        """Ends the listener, lines and leaders.  Not the pool"""
        run(self._close())

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listening(_core.Ear, Iterator[Event]):
    def __next__(self) -> Event:
        if event := run(self._next()):
            return event
        raise StopIteration

    def close(self) -> None:
        self._stop()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
