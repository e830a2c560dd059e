"""Locks for asyncio: each call is awaited, and ends on the server where its task is cancelled"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from . import _core
from ._core import Event, Query, Seconds, Turn
from .errors import LockLost

T = TypeVar('T')
OnLost = Callable[[LockLost], object]


class _Flag(asyncio.Event):
    async def wait(self, seconds: float | None) -> bool:  # type: ignore[override]
        try:
            async with asyncio.timeout(seconds):
                return await super().wait()
        except TimeoutError:
            return False

    def close(self) -> None: ...


class _Mailbox:
    def __init__(self) -> None:
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        self._items.put_nowait(item)

    async def get(self, seconds: float | None) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await self._items.get()
        except TimeoutError:
            return None


class _Slots(asyncio.Semaphore):
    async def take(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await super().acquire()
        except TimeoutError:
            return False

    def give(self) -> None:
        super().release()


class _Job:
    def __init__(self, task: asyncio.Task[None]):
        self._task = task

    async def end(self, seconds: float | None = None) -> None:
        if self._task is not asyncio.current_task():
            await asyncio.wait([self._task], timeout=seconds)
            self._task.cancel()


class _Port:
    flag = wake = _Flag
    mailbox = _Mailbox

    def slots(self, count: int) -> _Slots:
        return _Slots(count)

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself has weak references

    def _task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start(self, work: Coroutine[Any, Any, None], name: str) -> _Job:
        return _Job(self._task(work))

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """To the end, also where we are cancelled meanwhile.  After that, we cancel the work if it takes long"""
        loop, task, cancelled = asyncio.get_running_loop(), self._task(work), None
        end: float | None = None
        while not task.done() and (end is None or loop.time() < end):
            try:
                await asyncio.wait([task], timeout=None if end is None else end - loop.time())
            except asyncio.CancelledError as error:
                cancelled, end = error, end or loop.time() + 2 * _core.GRACE
        if cancelled:
            task.cancel()
            self._forget(task)
            await asyncio.sleep(0)  # so that it has ended before the caller asks again
            raise cancelled
        return task.result()

    async def within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        task = self._task(work)
        try:
            await asyncio.wait([task], timeout=seconds)
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            task.cancel()  # which takes a while itself
            self._forget(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def row(self, pool: Any, query: Query, values: Callable[[], Sequence[Any]], seen: list[Any]) -> Any:
        """A cancelled task cancels the call on the server, and commits nothing afterwards"""
        at: list[Any] = []  # the connection, as long as we have it
        given_up = False

        async def transaction() -> Any:
            async with pool.connection() as connection:
                if given_up:
                    return None
                at.append(connection)
                try:
                    async with connection.transaction():
                        row = await self.execute(connection, query, values())
                        if given_up:
                            raise psycopg.Rollback
                        seen.append(row)
                except psycopg.errors.ReadOnlySqlTransaction:
                    await connection.close()  # that server is a standby now
                    raise
                finally:
                    at.clear()
                    if given_up:
                        await connection.close()  # a cancel that comes late must not hit the next statement
            return row

        task = self._task(transaction())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            given_up = True
            await self.finish(self._cancel(task, at))
            raise

    async def _cancel(self, task: asyncio.Task[Any], at: list[Any]) -> None:
        """Ends what runs on the server.  Again and again, since it may be between two statements.  Without a
        connection there is nothing to wait for: once the task has one, it gives it back"""
        loop = asyncio.get_running_loop()
        end = loop.time() + 2
        asked = _Flag()

        def cancel(connection: Any) -> None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(asked.set)
        while at and not task.done():
            connection = at[0]
            if loop.time() >= end:  # nobody is there
                await connection.close()
                task.cancel()
                break
            asked.clear()
            threading.Thread(target=cancel, args=(connection,), name='cancel of a call', daemon=True).start()  # it may hang
            await asked.wait(end - loop.time())
            await asyncio.wait([task], timeout=.1)
        self._forget(task)

    async def execute(self, connection: Any, query: Query, values: Sequence[Any]) -> Any:
        """Never prepared by name, which poolers may not know; never with the values in the text"""
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(query, values, prepare=False)
            return await cursor.fetchone() if cursor.description else None

    async def value(self, it: Any) -> Any:
        it = it() if callable(it) else it
        return await it if isinstance(it, Awaitable) else it

    async def connect(self, conninfo: str, options: dict[str, Any]) -> Any:
        return await psycopg.AsyncConnection.connect(conninfo, **options)

    async def readable(self, connection: Any, wake: _Flag, seconds: float) -> bool:
        loop, socket = asyncio.get_running_loop(), connection.fileno()
        loop.add_reader(socket, wake.set)
        try:
            return await wake.wait(seconds)
        finally:
            loop.remove_reader(socket)

    async def close(self, connection: Any) -> None:
        await connection.close()


class AsyncLock(_core.Held):
    """A lock that is held.  In `async with lock:`, heartbeats keep it, and the end releases it.
    If it is lost meanwhile, the block is cancelled, and raises LockLost"""

    _watched = True
    _work: asyncio.Task[Any] | None = None
    _cancelled = False
    _cancelling = 0

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Keeps it for `ttl` from now, or as long as before; raises LockLost"""
        await self._extend_to(ttl)

    async def release(self) -> None:
        """Raises LockLost if it was lost before"""
        await self._port.finish(self._release())

    async def assert_(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Lets this transaction write under guards, and keeps the lock until it ends; raises LockLost"""
        await self._assert(connection)

    def _told(self, lost: LockLost) -> None:
        super()._told(lost)
        if self._work:
            self._cancelled = self._work.cancel()

    async def __aenter__(self) -> AsyncLock:
        await self._enter()
        self._work = asyncio.current_task()
        if self._work:
            self._cancelling = self._work.cancelling()
        return self

    async def __aexit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        work, self._work = self._work, None
        ours = bool(self._cancelled and work and work.uncancel() <= self._cancelling and isinstance(error, asyncio.CancelledError))
        await self._leave(error, ours)


class Acquiring(Coroutine[Any, Any, AsyncLock]):
    """The result of acquire() and lock()"""

    def __init__(self, work: Coroutine[Any, Any, AsyncLock]):
        self._work = work

    def __await__(self) -> Generator[Any, None, AsyncLock]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    async def __aenter__(self) -> AsyncLock:
        self._lock = await self
        return await self._lock.__aenter__()

    async def __aexit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._lock.__aexit__(cls, error, trace)


class AsyncQueue(_core.Line[AsyncLock], AsyncIterator[Turn[AsyncLock]]):
    """A place in line.  The end of `async with` leaves the line, or releases the lock"""

    async def __anext__(self) -> Turn[AsyncLock]:
        if turn := await self._next():
            return turn
        raise StopAsyncIteration

    async def acquired(self) -> AsyncLock | None:
        """Waits until it is our turn; None if the locks are closed"""
        async for turn in self:
            if turn.lock:
                return turn.lock
        return None

    async def close(self) -> None:
        await self._port.finish(self._close())

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._leave(error)


class AsyncLocks(_core.Core):
    """The locks of an application, by a psycopg_pool.AsyncConnectionPool

    `waits`: a pool for the calls that wait.  `listen`: how to connect for events, where the
    pool leads to a pooler.  `patience`: for how long a call is repeated whose answer was lost.
    """

    def __init__(self, pool: Any, *, waits: Any = None, listen: str | None = None, patience: float = 60):
        super().__init__(_Port(), pool, waits, listen, patience)

    def acquire(self, key: str, owner: str | None = None, ttl: Seconds | None = None, wait: Seconds | None = 0, mode: str = 'exclusive',
                max_holders: int | None = None, holder: str | None = None, meta: Any = None, *, on_lost: OnLost | None = None) -> Acquiring:
        """Takes a lock, or raises LockHeld.  `wait` None: as long as the server allows.  To be awaited, or for `async with`"""
        owner = _core.Owner.of(owner)
        return Acquiring(self._acquire(AsyncLock, key, owner, ttl, wait, mode, max_holders, holder, meta, on_lost))

    lock = acquire

    def resume(self, key: str, owner: str, fencing_token: int | None = None, ttl: Seconds | None = None) -> AsyncLock:
        """A lock that another request has acquired.  Asks nobody: extend() tells whether it is still held"""
        owner = _core.Owner(owner)
        return AsyncLock(self, key, owner, fencing_token, ttl, float('inf'), 0, 'resumed')

    def queue(self, key: str, owner: str | None = None, ttl: Seconds | None = None, holder: str | None = None, offer: Seconds | None = None,
              keep: Seconds | None = None, poll: float = 30, meta: Any = None, *, on_lost: OnLost | None = None) -> AsyncQueue:
        """A place in line: what comes of it, as it comes"""
        owner = _core.Owner.of(owner)
        return AsyncQueue(self, AsyncLock, key, owner, ttl, holder, offer, keep, poll, meta, on_lost)

    async def lead(self, name: str, fn: Callable[[AsyncLock], Awaitable[T]], ttl: Seconds = 30, holder: str | None = None, *,
                   on_lost: OnLost | None = None) -> T | None:
        """Awaits fn(lock) when it is our turn, and again when the lock was lost; what fn returns, or None after close()"""
        poll = ttl if isinstance(ttl, (int, float)) else ttl.total_seconds()
        while True:
            lock = None
            try:
                async with self.queue(name, ttl=ttl, holder=holder, poll=poll / 3, on_lost=on_lost) as line:
                    lock = await line._lead()
                    if lock is None:
                        return None
                    async with lock:
                        return await fn(lock)
            except LockLost:
                if not (lock and lock.lost):
                    raise

    def listen(self, keys: Sequence[str]) -> AsyncListening:
        """The events of these keys; `connected`: ask, since events may have been lost"""
        return AsyncListening(self, keys)

    async def close(self) -> None:
        """Ends the listener, lines and leaders.  Not the pool"""
        await self._close()

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncListening(_core.Ear, AsyncIterator[Event]):
    async def __anext__(self) -> Event:
        if event := await self._next():
            return event
        raise StopAsyncIteration

    async def close(self) -> None:
        self._stop()

    async def __aenter__(self) -> AsyncListening:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
