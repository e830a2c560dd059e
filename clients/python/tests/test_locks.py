"""The package on a real server, behind a real PgBouncer, over restarts: AL_BIN has the programs of a PostgreSQL

Everything in Scenarios is run with AsyncLocks, and with Locks in threads.

Properties: a lock excludes others, and its error names the holder; a heartbeat keeps it; its end
releases it, also where the block fails; where it is lost, the block is told why, by its own
clock if no heartbeat is answered; a call whose answer was lost is repeated, and is the same
grant; whoever is cancelled has no lock and leaves no call; the line needs no connection, and
its listener connects again; there is one leader, and another when that is lost; an owner is
in no error, log or repr; each SQLSTATE of the extension is a class.

Turns red when: an answer of the server has another form; a wait of the client hides a
missing wake-up, since polls are an hour apart here; a connection is left with an owner.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib.metadata
import io
import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import traceback
import unittest
import unittest.mock
from datetime import timedelta

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, TooManyRequests

import atomic_lock
from atomic_lock import (AsyncLocks, ExtensionError, LockAlreadyHeld, LockDenied, LockError, LockExpired, LockForced, LockHeld,
                         LockLost, LockNotHeld, LockQuota, LockReleased, Locks, lock_key, translate)
from private_server import PrivateServer

SECRET = 'secret-owner'
HOUR = 3600
FILES = pathlib.Path(os.environ['AL_FILES'])
LIMIT = float(os.environ.get('AL_PATIENCE', 100))  # for what hangs


def setUpModule():
    global server
    server = PrivateServer(os.environ['AL_BIN'], **{'atomic_lock.sweep_interval': '1h', 'max_prepared_transactions': 10})
    server.start()
    server.sql("""CREATE EXTENSION atomic_lock; CREATE TABLE orders (id int PRIMARY KEY, note text); INSERT INTO orders VALUES (42, '');
        SELECT lock_protect('orders', 'order:{id}'); CREATE ROLE desk LOGIN; GRANT ALL ON orders TO desk; SELECT lock_grant_access('desk', 'user')""")


def tearDownModule():
    server.__exit__()


async def until(query, *values):
    """Asks the server until the answer is true"""
    async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as connection, asyncio.timeout(LIMIT):
        while not (await (await connection.execute(query, values or None)).fetchone())[0]:
            await asyncio.sleep(.01)


def waits(key):
    return until('SELECT count(*) = 1 FROM lock_waiters WHERE key = %s', key)


async def sql(*query, **options):
    """In a thread, so that it waits for nobody who cannot go on meanwhile"""
    return await asyncio.to_thread(server.sql, *query, **options)


async def require_standby():
    """From now on commits wait for a standby that there is not"""
    await sql('ALTER SYSTEM SET synchronous_standby_names = nobody')
    await sql('SELECT pg_reload_conf()')
    waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    noticed = False
    while not noticed:
        probe = asyncio.ensure_future(sql("SELECT lock_acquire('probe', owner => 'probe')"))
        while not probe.done():
            noticed = bool(await sql(waiting)) or noticed
        await asyncio.wait([probe])
        noticed = probe.exception() is not None


async def free(key):
    return await sql('SELECT NOT locked AND NOT pending AND coalesce(waiters, 0) = 0 AND queued = 0 FROM lock_status(%s)', key) == (True,)


class Threaded:
    """An object of Locks, with the calls of AsyncLocks"""

    threads = concurrent.futures.ThreadPoolExecutor(64)

    def __init__(self, it):
        self.it = it

    @classmethod
    async def call(cls, function, *args):
        answer = await asyncio.get_running_loop().run_in_executor(cls.threads, functools.partial(function, *args))
        return cls.of(answer)

    @classmethod
    def of(cls, answer):
        return cls(answer) if isinstance(answer, (atomic_lock.Lock, atomic_lock.Queue, atomic_lock.Listening)) else answer

    def __getattr__(self, name):
        value = getattr(self.it, name)
        if not callable(value):
            return value
        if name in ('queue', 'listen', 'resume'):
            return lambda *args, **options: self.of(value(*args, **options))
        return lambda *args, **options: self.call(functools.partial(value, *args, **options))

    async def lead(self, name, fn, **options):
        loop = asyncio.get_running_loop()
        return await self.call(functools.partial(
            self.it.lead, name, lambda lock: asyncio.run_coroutine_threadsafe(fn(Threaded(lock)), loop).result(), **options))

    async def __aenter__(self):
        return await self.call(self.it.__enter__)

    async def __aexit__(self, *error):
        await self.call(self.it.__exit__, *error)

    def __aiter__(self):
        return self

    async def __anext__(self):
        answer = await self.call(next, self.it, None)
        if answer is None:
            raise StopAsyncIteration
        return answer

    def __repr__(self):
        return repr(self.it)


class Base(unittest.IsolatedAsyncioTestCase):
    is_async = True

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)
        self.stack = contextlib.AsyncExitStack()
        self.key = self.id().rpartition('.')[2] + ('/async' if self.is_async else '')
        # The last thread to wait must end, or the test would not.
        self.locks = await self.open()

    async def asyncTearDown(self):
        async with asyncio.timeout(LIMIT):
            await self.stack.aclose()

    async def open(self, dsn=None, **options):
        """Locks of another process, as it were"""
        dsn = dsn or f'{server.dsn} user=desk application_name=locks'
        size = options.pop('size', 2)
        if self.is_async:
            pool = await self.stack.enter_async_context(AsyncConnectionPool(dsn, min_size=1, max_size=size, open=False))
            locks = AsyncLocks(pool, **options)
        else:
            pool = self.stack.enter_context(ConnectionPool(dsn, min_size=1, max_size=size))
            locks = Threaded(Locks(pool, **options))
        self.pool = pool
        self.stack.push_async_callback(locks.close)
        return locks

    async def event(self):
        """Something to wait for, and what sets it from any thread"""
        loop, event = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        return event, lambda value: loop.call_soon_threadsafe(lambda: event.done() or event.set_result(value))

    def hasten(self, lock):
        """Its next heartbeat comes at once, however long the lease is"""
        lock = lock if self.is_async else lock.it
        lock._lasts = 0
        lock._again.set()

    async def follow(self, line):
        """The next turn of a line that is queued, once that can miss no event: it listens, and has asked again since then"""
        (before,) = await sql('SELECT expires_at FROM lock_queue WHERE key = %s', self.key)
        following = self.start(anext(line))
        await until('SELECT expires_at > %s FROM lock_queue WHERE key = %s', before, self.key)
        return following

    def start(self, work):
        """A task; it has to end in the end"""
        task = asyncio.ensure_future(work)

        async def end():
            await asyncio.wait([task])
        self.stack.push_async_callback(end)
        return task


class Scenarios(Base):
    async def test_others_are_told_who_has_it(self):
        async with await self.locks.acquire(self.key, ttl=60, holder='Ann', meta={'tab': 1}) as lock:
            with self.assertRaises(LockHeld) as held:
                await self.locks.acquire(self.key, holder='Bob')
            status = await sql('SELECT holder, acquired_at, expires_at, fencing_token, meta FROM lock_status(%s)', self.key)
            self.assertEqual((held.exception.holder, held.exception.since, held.exception.until, lock.fencing_token, {'tab': 1}), status)
            self.assertEqual(str(held.exception), f'lock "{self.key}" is held by Ann')
            self.assertEqual((held.exception.status, held.exception.sqlstate, lock.lost), ('held', '55P03', None))
            with self.assertRaises(LockHeld) as held:
                await self.locks.acquire(self.key, wait=timedelta(milliseconds=50))
            self.assertEqual(held.exception.status, 'timeout')
        self.assertTrue(await free(self.key))
        with psycopg.connect(server.dsn) as connection:
            connection.execute('SELECT lock_acquire(%s)', (self.key,))
            with self.assertRaises(LockHeld) as held:
                await self.locks.acquire(self.key)
            self.assertEqual(held.exception.status, 'pending')
            connection.rollback()

    async def test_the_end_of_a_block_releases(self):
        with self.assertRaises(KeyError):
            async with await self.locks.acquire(self.key):
                raise KeyError
        self.assertTrue(await free(self.key))
        lock = await self.locks.acquire(self.key)
        await lock.release()
        await lock.release()
        self.assertTrue(await free(self.key))
        self.assertIsNone(lock.lost)
        with self.assertRaises(LockReleased):
            async with lock:
                self.fail('a block without its lock')

    async def test_an_empty_owner(self):
        """It is a mistake, and not the wish for a new one"""
        with self.assertRaises(ValueError):
            await self.locks.acquire(self.key, '')
        with self.assertRaises(ValueError):
            self.locks.queue(self.key, '')

    async def test_modes(self):
        shared = [await self.locks.acquire(self.key, mode='shared', max_holders=2, holder=name) for name in ('a', 'b')]
        with self.assertRaises(LockHeld) as held:
            await self.locks.acquire(self.key, mode='shared', max_holders=2)
        self.assertEqual((held.exception.holders, held.exception.max_holders, held.exception.mode), (2, 2, 'shared'))
        for lock in shared:
            self.assertEqual(lock.mode, 'shared')
            await lock.release()
        self.assertTrue(await free(self.key))

    async def test_waits_and_has_it_for_its_lease(self):
        """Also where the wait is longer than that"""
        first = await self.locks.acquire(self.key, ttl=60)
        second = self.start(self.locks.acquire(self.key, ttl=1, wait=None))
        await waits(self.key)
        await until("SELECT clock_timestamp() > min(since) + interval '1.1 s' FROM lock_waiters WHERE key = %s", self.key)
        await first.release()
        lock = await second
        self.assertIsNone(lock.lost)
        self.assertLessEqual(lock._lasts, 1)  # which says when the first heartbeat is due
        await lock.extend(60)
        self.assertTrue((await sql("SELECT ttl_remaining > '50 s' FROM lock_status(%s)", self.key))[0])
        await lock.release()

    async def test_those_who_wait_leave_a_connection(self):
        """To the one who releases"""
        locks = await self.open(size=2)
        first = await locks.acquire(self.key, ttl=60)
        others = [self.start(locks.acquire(self.key, ttl=60, wait=60)) for _ in range(3)]
        await waits(self.key)
        async with asyncio.timeout(LIMIT / 4):
            await first.extend()
            await first.release()
            while others:
                done, others = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    await (await each).release()
        first = await locks.acquire(self.key, ttl=60)
        second = self.start(locks.acquire(self.key, ttl=60, wait=60))
        await waits(self.key)
        async with asyncio.timeout(LIMIT / 4):
            with self.assertRaises(LockHeld):  # as soon as its own wait is over
                await locks.acquire(self.key, ttl=60, wait=.1)
            await (await locks.acquire(self.key + '2', ttl=60, wait=60)).release()
        await first.release()
        await (await second).release()

    async def test_a_lease_with_a_longest_life(self):
        """Once it cannot be extended, its heartbeats are not more frequent than others"""
        await sql("ALTER ROLE desk SET atomic_lock.max_lifetime = '30 s'")
        try:
            locks = await self.open()
            await locks.acquire(self.key, SECRET, ttl=30)
            async with locks.resume(self.key, SECRET, ttl=60) as lock:
                async with asyncio.timeout(LIMIT):
                    while not lock._lasts:  # which says when the next one is
                        await asyncio.sleep(.01)
                self.assertGreater(lock._lasts, 20)
                self.assertIsNone(lock.lost)
        finally:
            await sql('ALTER ROLE desk RESET atomic_lock.max_lifetime')

    async def test_a_heartbeat_keeps_it(self):
        async with await self.locks.acquire(self.key, ttl=HOUR) as lock:
            end = (await sql('SELECT expires_at FROM lock_status(%s)', self.key))[0]
            self.hasten(lock)
            await until('SELECT locked AND expires_at > %s FROM lock_status(%s)', end, self.key)
            self.assertIsNone(lock.lost)
        self.assertTrue(await free(self.key))

    async def test_a_shorter_lease_has_an_earlier_heartbeat(self):
        core = atomic_lock._core
        timer, core.TIMER = core.TIMER, HOUR
        try:
            async with await self.locks.acquire(self.key, ttl=HOUR) as lock:
                begun, tell = await self.event()
                again, wait = lock._again, lock._again.wait

                async def noted(seconds):
                    if seconds <= 20:  # a third of the shorter lease
                        tell(seconds)
                    return await wait(seconds)
                again.wait = noted
                await lock.extend(60)
                async with asyncio.timeout(LIMIT):
                    await begun
        finally:
            core.TIMER = timer

    async def test_a_block_that_begins_late(self):
        """Its first heartbeat comes before the end of the lease"""
        core = atomic_lock._core
        clock, timer = core.now, core.TIMER
        core.TIMER = HOUR
        try:
            lock = await self.locks.acquire(self.key, ttl=HOUR)
            begun, tell = await self.event()
            again, wait = lock._again, lock._again.wait

            async def noted(seconds):
                tell(seconds)
                return await wait(seconds)
            again.wait = noted
            core.now = lambda: clock() + HOUR - 60
            async with lock:
                async with asyncio.timeout(LIMIT):
                    self.assertLessEqual(await begun, 20)
        finally:
            core.now, core.TIMER = clock, timer

    async def test_a_shorter_lease_in_doubt(self):
        """Counts, since it may be committed"""
        locks = await self.open(patience=0)
        lock = await locks.acquire(self.key, ttl=HOUR)
        port = (locks if self.is_async else locks.it)._port
        row = port.row

        async def lose(*args):
            await row(*args)
            raise psycopg.OperationalError('the answer is lost')
        port.row = lose
        with self.assertRaises(psycopg.OperationalError):
            await lock.extend(60)
        port.row = row
        self.assertLess(lock._until - atomic_lock._core.now(), 61)
        await lock.release()

    async def test_extensions_follow_each_other(self):
        """An extension during a heartbeat comes last"""
        lock = await self.locks.acquire(self.key, ttl=60)
        with psycopg.connect(server.dsn) as keeper:
            keeper.execute('LOCK TABLE app_lock')
            calls = [self.start(lock.extend(90))]
            await until("SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'locks' AND wait_event_type = 'Lock'")
            turn, (asked, tell) = lock._turn, await self.event()
            take = turn.take

            async def noted(seconds):
                tell(seconds)
                return await take(seconds)
            turn.take = noted
            calls.append(self.start(lock.extend(30)))
            async with asyncio.timeout(LIMIT):
                await asked
            self.assertEqual(await sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'locks' AND wait_event_type = 'Lock'"), (1,))
            keeper.rollback()
        for call in calls:
            await call
        self.assertTrue((await sql("SELECT ttl_remaining <= '30 s' FROM lock_status(%s)", self.key))[0])
        await lock.release()

    async def test_an_extension_after_the_release(self):
        """It does not wait for another one that hangs"""
        hang = "SELECT count(*) = %s FROM pg_stat_activity WHERE application_name = 'locks' AND wait_event_type = 'Lock'"
        lock = await self.locks.acquire(self.key, ttl=HOUR)
        with psycopg.connect(server.dsn) as keeper:
            keeper.execute('LOCK TABLE app_lock')
            first = self.start(lock.extend())
            await until(hang, 1)
            release = self.start(lock.release())
            await until(hang, 2)
            with self.assertRaises(LockReleased):
                async with asyncio.timeout(LIMIT / 4):
                    await lock.extend()
            keeper.rollback()
        with contextlib.suppress(LockReleased):
            await first
        await release

    async def test_a_machine_that_was_suspended(self):
        """Its timers stand still meanwhile, and the clock does not"""
        core = atomic_lock._core
        told, tell = await self.event()
        clock, timer = core.now, core.TIMER
        core.TIMER = .2
        try:
            lock = await self.locks.acquire(self.key, ttl=HOUR, on_lost=tell)
            with self.assertRaises(LockExpired):
                async with lock:
                    core.now = lambda: clock() + 2 * HOUR
                    async with asyncio.timeout(LIMIT):
                        await asyncio.shield(told)
                        if self.is_async:
                            await asyncio.Event().wait()  # is cancelled
        finally:
            core.now, core.TIMER = clock, timer

    async def test_forced(self):
        """The heartbeat tells who and why"""
        told, tell = await self.event()
        with self.assertRaises(LockForced) as forced:
            async with await self.locks.acquire(self.key, ttl=HOUR, on_lost=tell) as lock:
                self.assertTrue((await sql('SELECT force_release(%s, %s)', self.key, 'it "takes" long'))[0])
                self.hasten(lock)
                async with asyncio.timeout(LIMIT):
                    await asyncio.shield(told)
                    if self.is_async:
                        await asyncio.Event().wait()  # is cancelled
        self.assertIs(forced.exception, lock.lost)
        self.assertIs(forced.exception, await told)
        self.assertEqual((lock.lost.reason, lock.lost.by, lock.lost.why, lock.lost.sqlstate),
                         ('forced', 'postgres', 'it "takes" long', 'LK009'))
        self.assertIn('postgres', lock.lost.detail)

    async def test_found_out_at_the_end(self):
        """Where no heartbeat has"""
        with self.assertRaises(LockForced) as forced:
            async with await self.locks.acquire(self.key, ttl=HOUR):
                await sql('SELECT force_release(%s, %s)', self.key, 'why not')
        self.assertEqual(forced.exception.why, 'why not')
        with self.assertRaises(KeyError) as error:  # the block's own error counts more, and has a note
            async with await self.locks.acquire(self.key, ttl=HOUR):
                await sql('SELECT force_release(%s, %s)', self.key, 'why not')
                raise KeyError
        self.assertIn('LockForced', ''.join(error.exception.__notes__))

    async def test_its_own_clock_ends_it(self):
        """Heartbeats without an answer: somebody has locked the table"""
        told, tell = await self.event()
        lock = await self.locks.acquire(self.key, ttl=1, on_lost=tell)
        with psycopg.connect(server.dsn) as keeper:
            keeper.execute('LOCK TABLE app_lock')
            if self.is_async:
                with self.assertRaises(LockExpired):
                    async with lock:
                        async def unlock():
                            await asyncio.shield(told)
                            keeper.rollback()
                        self.start(unlock())
                        await asyncio.Event().wait()  # is cancelled
            else:
                await lock.__aenter__()
                await told
                keeper.rollback()
                with self.assertRaises(LockExpired):
                    await lock.__aexit__(None, None, None)
        self.assertEqual((await told).reason, 'expired')
        self.assertEqual(lock.lost.reason, 'expired')

    async def test_an_outage_that_outlives_the_lease(self):
        """The end of the block raises the loss, and not the error of the connection"""
        lock = await self.locks.acquire(self.key, ttl=3)
        self.pool.timeout = .1
        try:
            with self.assertLogs('atomic_lock', 'WARNING'), self.assertRaises(LockExpired) as expired:
                async with lock:
                    server.stop()
                    async with asyncio.timeout(LIMIT):
                        while not lock.lost:
                            await asyncio.sleep(.01)
            self.assertIs(expired.exception, lock.lost)
            await lock.release()  # there is nothing to do
        finally:
            server.start()

    async def test_a_server_that_falls_silent(self):
        """It keeps nobody in the block: neither the heartbeat that hangs nor the release"""
        locks = await self.open(size=1)
        lock = await locks.acquire(self.key, ttl=1)
        (pid,) = await sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'locks' AND query LIKE 'COMMIT%%' ORDER BY state_change DESC LIMIT 1")
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(LIMIT / 4):
                with self.assertRaises(LockExpired):
                    async with lock:
                        if self.is_async:
                            await asyncio.Event().wait()  # is cancelled
                        while not lock.lost:
                            await asyncio.sleep(.01)
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def silence(self):
        """Locks with one connection, and what stops its server until the end of the block"""
        locks = await self.open(f'{server.dsn} user=desk application_name={self.key}', size=1, patience=1)
        await (await locks.acquire(self.key + '2')).release()
        (pid,) = await sql("SELECT pid FROM pg_stat_activity WHERE application_name = %s", self.key)
        try:
            yield locks, functools.partial(os.kill, pid, signal.SIGSTOP)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def test_a_resumed_lock_of_a_silent_server(self):
        """The end of its lease is unknown, and so is the outcome of its release.  So the release can be repeated, and nothing else can be done"""
        await self.locks.acquire(self.key, SECRET, ttl=HOUR)
        async with self.silence() as (locks, fall_silent):
            lock = locks.resume(self.key, SECRET)
            fall_silent()
            async with asyncio.timeout(LIMIT / 4):
                with self.assertRaisesRegex(psycopg.OperationalError, 'does not answer'):
                    async with lock:
                        pass
            with self.assertRaises(LockReleased):
                async with lock:
                    self.fail('a block without its lock')
        await lock.release()
        self.assertTrue(await free(self.key))

    async def test_a_grant_after_a_wait_for_a_connection(self):
        """Its lease is counted from the call on the server"""
        core = atomic_lock._core
        await (await self.locks.acquire(self.key)).release()
        clock = core.now
        line = self.locks.queue(self.key + '2', ttl=HOUR, poll=HOUR)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                if self.is_async:
                    await stack.enter_async_context(self.pool.connection())
                else:
                    stack.enter_context(self.pool.connection())
            calls = [self.start(self.locks.acquire(self.key, ttl=HOUR)), self.start(anext(line))]
            async with asyncio.timeout(LIMIT):
                while self.pool.get_stats().get('requests_waiting') != 2:
                    await asyncio.sleep(.01)
            core.now = lambda: clock() + 2 * HOUR
        try:
            lock, turn = [await call for call in calls]
            self.assertEqual((lock.lost, turn.lock.lost), (None, None))
        finally:
            core.now = clock
        await lock.release()
        await line.close()

    async def test_a_release_of_a_silent_server(self):
        """It has an end, also without a block"""
        await self.locks.acquire(self.key, SECRET, ttl=HOUR)
        with unittest.mock.patch.object(atomic_lock._core, 'GRACE', .1):
            async with self.silence() as (locks, fall_silent):
                lock = locks.resume(self.key, SECRET)
                fall_silent()
                async with asyncio.timeout(LIMIT / 4):
                    with self.assertRaisesRegex(psycopg.OperationalError, 'does not answer'):
                        await lock.release()
        await lock.release()
        self.assertTrue(await free(self.key))

    async def test_an_interrupted_release(self):
        """It can be repeated, also if it has not asked yet"""
        class Interrupt(BaseException):
            pass

        class Job:
            async def end(self, seconds):
                jobs.clear()
                raise Interrupt
        lock = await self.locks.acquire(self.key, ttl=HOUR)
        jobs = lock._jobs
        jobs.append(Job())
        with self.assertRaises(Interrupt):
            await lock.release()
        await lock.release()
        self.assertTrue(await free(self.key))

    async def test_a_line_of_a_silent_server(self):
        """It keeps nobody who leaves"""
        first = await self.locks.acquire(self.key, ttl=HOUR)
        async with self.silence() as (locks, fall_silent):
            line = locks.queue(self.key, poll=HOUR)
            self.assertEqual((await anext(line)).state, 'queued')
            fall_silent()
            with self.assertLogs('atomic_lock', 'WARNING') as logs:
                async with asyncio.timeout(LIMIT / 4):
                    await line.close()
            self.assertIn('the server does not answer', logs.output[-1])
        await first.release()

    async def test_a_block_without_its_lease(self):
        lock = await self.locks.acquire(self.key, ttl=HOUR)
        (lock if self.is_async else lock.it)._until = 0
        with self.assertRaises(LockExpired):
            async with lock:
                self.fail('a block without its lock')
        self.assertTrue(await free(self.key))

    async def test_a_failure_of_heartbeats_is_not_the_end(self):
        """As long as one is answered in time"""
        async with await self.locks.acquire(self.key, ttl=HOUR) as lock:
            end = (await sql('SELECT expires_at FROM lock_status(%s)', self.key))[0]
            with self.assertLogs('atomic_lock', 'WARNING') as logs:
                await sql("ALTER FUNCTION lock_heartbeat RENAME TO lock_heartbeat_away")
                self.hasten(lock)
                try:
                    async with asyncio.timeout(LIMIT):
                        while not any('heartbeat' in line for line in logs.output):
                            await asyncio.sleep(.01)
                finally:
                    await sql("ALTER FUNCTION lock_heartbeat_away RENAME TO lock_heartbeat")
            await until('SELECT expires_at > %s FROM lock_status(%s)', end, self.key)
            self.assertIsNone(lock.lost)

    async def test_cancelled_and_terminated(self):
        """A connection that ends is replaced, and the call repeated; one that is cancelled has not got the lock"""
        first = await self.locks.acquire(self.key, ttl=60)
        second = self.start(self.locks.acquire(self.key, ttl=60, wait=60))
        for _ in range(3):  # more often than the pool has connections
            await waits(self.key)
            pid = (await sql('SELECT pid FROM lock_waiters WHERE key = %s', self.key))[0]
            await sql('SELECT pg_terminate_backend(%s, 60000)', pid)
        await waits(self.key)
        await sql('SELECT pg_cancel_backend(pid) FROM lock_waiters WHERE key = %s', self.key)
        with self.assertRaises(psycopg.errors.QueryCanceled):
            await second
        await first.release()
        self.assertTrue(await free(self.key))

    async def test_in_doubt(self):
        """08007: granted here, and confirmed by no standby.  The repeated call is the same grant"""
        await require_standby()
        in_doubt = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'locks'"
        try:
            task = self.start(self.locks.acquire(self.key, ttl=60, owner=SECRET))
            await until(in_doubt)
            pid = (await sql("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))[0]
            await sql('SELECT pg_cancel_backend(%s)', pid)
            await until(in_doubt + ' AND pid <> %s', pid)
        finally:
            await sql('ALTER SYSTEM RESET synchronous_standby_names')
            await sql('SELECT pg_reload_conf()')
        lock = await task
        self.assertEqual(lock.status, 'reacquired')
        self.assertEqual((lock.fencing_token,), await sql('SELECT fencing_token FROM lock_status(%s)', self.key))
        await lock.release()

    async def test_restart(self):
        """Each connection of the pool is lost, the lock is not"""
        locks = await self.open(size=4)
        lock = await locks.acquire(self.key, ttl=60)
        if self.is_async:
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(4):
                    await stack.enter_async_context(self.pool.connection())
        else:
            with contextlib.ExitStack() as stack:
                for _ in range(4):
                    stack.enter_context(self.pool.connection())
        async with lock:
            server.stop()
            server.start()
            await lock.extend(90)
            self.assertTrue((await sql("SELECT ttl_remaining > '80 s' FROM lock_status(%s)", self.key))[0])
        self.assertTrue(await free(self.key))

    async def test_guards(self):
        async def write(*locks, connection):
            for lock in locks:
                await lock.assert_(connection)
            done = connection.execute("UPDATE orders SET note = 'x' WHERE id = 42")
            if self.is_async:
                await done

        @contextlib.asynccontextmanager
        async def transaction():
            if self.is_async:
                async with self.pool.connection() as connection:
                    yield connection
            else:
                with self.pool.connection() as connection:
                    yield connection
        lock = await self.locks.acquire('order:42', ttl=60, owner=SECRET)
        other = await self.locks.acquire('order:43', ttl=60, owner=SECRET)
        async with transaction() as connection:
            await write(lock, other, connection=connection)  # both cover the transaction
        async with transaction() as connection:  # and their owner is not on the connection
            cursor = connection.execute("SELECT current_setting('atomic_lock.owner', true)")
            self.assertIn((await (await cursor).fetchone() if self.is_async else cursor.fetchone())[0], (None, ''))
        again = self.locks.resume('order:42', SECRET, lock.fencing_token)
        async with transaction() as connection:
            await write(again, connection=connection)
        await lock.release()
        renewed = await self.locks.acquire('order:42', ttl=60, owner=SECRET)
        with self.assertRaises(LockExpired):  # the form is stale
            async with transaction() as connection:
                await again.assert_(connection)
        await renewed.release()
        with self.assertRaises(LockNotHeld):
            async with transaction() as connection:
                await renewed.assert_(connection)
        with self.assertRaises(psycopg.Error) as refused:
            async with transaction() as connection:
                cursor = connection.execute("UPDATE orders SET note = 'x'")
                if self.is_async:
                    await cursor
        self.assertIsInstance(translate(refused.exception), LockNotHeld)
        kind = psycopg.AsyncConnection if self.is_async else psycopg.Connection
        connection = kind.connect(server.dsn, autocommit=True)
        connection = await connection if self.is_async else connection
        with self.assertRaisesRegex(LockError, 'outside of a transaction'):
            await other.assert_(connection)
        closing = connection.close()
        if self.is_async:
            await closing
        await other.release()

    async def test_assert_needs_no_other_connection(self):
        """Not for the first statement of the application either"""
        lock = await self.locks.acquire(self.key, SECRET, ttl=60)
        locks = await self.open(size=1)
        again = locks.resume(self.key, SECRET, lock.fencing_token)
        if self.is_async:
            async with self.pool.connection() as connection:
                self.pool.timeout = .1
                await again.assert_(connection)
        else:
            with self.pool.connection() as connection:
                self.pool.timeout = .1
                await again.assert_(connection)
        await lock.release()

    async def test_from_request_to_request(self):
        lock = await self.locks.acquire(self.key, SECRET, ttl=60)
        again = self.locks.resume(self.key, SECRET, lock.fencing_token, ttl=90)
        await again.extend()
        self.assertTrue((await sql("SELECT ttl_remaining > '80 s' FROM lock_status(%s)", self.key))[0])
        await again.release()
        with self.assertRaises(LockReleased):
            await lock.release()
        with self.assertRaises(LockReleased):
            await self.locks.resume(self.key, SECRET).extend()

    async def test_line(self):
        first = await self.locks.acquire(self.key, ttl=60, holder='Ann')
        async with self.locks.queue(self.key, holder='Bob', ttl=60, poll=HOUR, meta={'tab': 1}) as line:
            turns = aiter(line)
            turn = await anext(turns)
            self.assertEqual((turn.state, turn.place, turn.holder), ('queued', 1, 'Ann'))
            following = await self.follow(turns)
            await first.release()
            turn = await following
            self.assertEqual(turn.state, 'offered')
            self.assertEqual(await sql('SELECT offered_until FROM lock_queue WHERE key = %s', self.key), (turn.until,))
            turn = await anext(turns)
            self.assertEqual(turn.state, 'acquired')
            lock = Threaded.of(turn.lock)
            self.assertEqual(await sql('SELECT (expires_at - acquired_at)::text, meta FROM lock_status(%s)', self.key), ('00:01:00', {'tab': 1}))
            following = self.start(anext(turns))
            await sql('SELECT force_release(%s, %s)', self.key, 'for the next')
            with contextlib.suppress(LockLost):
                await lock.extend()
            turn = await following
            self.assertEqual((turn.state, turn.lost.reason), ('lost', 'forced'))
            self.assertEqual([turn async for turn in turns], [])
        self.assertTrue(await free(self.key))

    async def test_a_line_watches_the_clock(self):
        """Of the lock that it has got, also where heartbeats get no answer; no event waits for it"""
        async with self.locks.queue(self.key, ttl=2, poll=HOUR) as line:
            turn = await anext(line)
            self.assertEqual(turn.state, 'acquired')
            core = self.locks if self.is_async else self.locks.it
            self.assertEqual(set(core._listener._boxes.values()), {frozenset()})
            with psycopg.connect(server.dsn) as keeper:
                keeper.execute('LOCK TABLE app_lock')
                async with asyncio.timeout(LIMIT / 2):
                    turn = await anext(line)
                self.assertEqual((turn.state, turn.lost.reason), ('lost', 'expired'))
                keeper.rollback()

    async def test_a_line_that_somebody_else_leaves(self):
        """It asks no more, and a call that is on its way gets nothing"""
        core = atomic_lock._core
        first = await self.locks.acquire(self.key, ttl=60)
        locks = self.locks if self.is_async else self.locks.it
        line, asked, ask = self.locks.queue(self.key, poll=HOUR), [], locks._ask
        self.assertEqual((await anext(line)).state, 'queued')
        following = await self.follow(line)

        async def noted(text, *args, **options):
            asked.append(text)
            return await ask(text, *args, **options)
        locks._ask = noted
        await line.close()
        with self.assertRaises(StopAsyncIteration):
            await following
        self.assertNotIn(core.ENQUEUE, asked)
        for there in True, False:
            with self.subTest(held=there):
                line = self.locks.queue(self.key, poll=HOUR)

                async def late(text, *args, **options):
                    if text == core.ENQUEUE:
                        await (line if self.is_async else line.it)._close()
                    return await ask(text, *args, **options)
                locks._ask = late
                self.assertEqual([turn async for turn in line], [])
                self.assertEqual(await sql('SELECT locked, queued FROM lock_status(%s)', self.key), (there, 0))
                if there:
                    await first.release()

    async def test_a_line_that_finds_the_loss_first(self):
        """The line also tells the block, whose end raises the loss.  The end of the line releases the lock on the server"""
        core, told = atomic_lock._core, []
        line = self.locks.queue(self.key, ttl=HOUR, poll=HOUR)
        with unittest.mock.patch.object(core.Held, '_keep'):
            lock = (await anext(line)).lock
        lock._on_lost = told.append
        raw = line if self.is_async else line.it
        wait = lock._stirred.wait

        async def first(seconds):
            lock._stirred.wait = wait
            lock._until = 0
            self.assertEqual((await raw._next()).state, 'lost')
            await raw._close()
        lock._stirred.wait = first
        await (lock._watch() if self.is_async else Threaded.call(atomic_lock._sync.run, lock._watch()))
        self.assertEqual(told, [lock.lost])
        self.assertTrue(await free(self.key))
        with self.assertRaises(LockExpired) as expired:
            await Threaded.of(lock).__aexit__(None, None, None)
        self.assertIs(expired.exception, lock.lost)

    async def test_a_block_that_releases_a_lost_lock(self):
        """It is cancelled, if it has a task, and its end raises the loss"""
        lock = await self.locks.acquire(self.key, ttl=HOUR)
        with self.assertRaises(LockExpired):
            async with lock:
                (lock if self.is_async else lock.it)._until = 0
                with contextlib.suppress(LockExpired):
                    await lock.release()
        self.assertTrue(await free(self.key))

    async def test_leaves_the_line(self):
        first = await self.locks.acquire(self.key, ttl=60)
        async with self.locks.queue(self.key, poll=HOUR) as line:
            self.assertEqual((await anext(line)).state, 'queued')
            self.assertEqual(await sql('SELECT queued FROM lock_status(%s)', self.key), (1,))
        self.assertEqual(await sql('SELECT queued FROM lock_status(%s)', self.key), (0,))
        await first.release()
        async with self.locks.queue(self.key, poll=HOUR) as line:
            self.assertEqual((await anext(line)).state, 'acquired')
        self.assertTrue(await free(self.key))

    async def test_the_listener_connects_again_and_asks(self):
        first = await self.locks.acquire(self.key, ttl=60)
        async with self.locks.queue(self.key, poll=HOUR) as line:
            self.assertEqual((await anext(line)).state, 'queued')
            following = await self.follow(line)
            await sql('ALTER ROLE desk NOLOGIN')  # the offer is made while nobody listens
            try:
                await sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'locks' AND query LIKE 'LISTEN %%'")
                await first.release()
                await until('SELECT offered_until IS NOT NULL FROM lock_queue WHERE key = %s', self.key)
            finally:
                await sql('ALTER ROLE desk LOGIN')
            async with asyncio.timeout(LIMIT):
                self.assertEqual((await following).state, 'acquired')

    async def test_events(self):
        ear = self.locks.listen([self.key])
        self.assertEqual((await anext(ear)).event, 'connected')
        await sql('SELECT lock_set_policy(%s, notify => true)', self.key)
        lock = await self.locks.acquire(self.key, ttl=60, holder='Ann')
        event = await anext(ear)
        self.assertEqual((event.event, event.key, event.holder, event.fencing_token, event.by), ('acquired', self.key, 'Ann', None, 'desk'))
        await sql('SELECT lock_drop_policy(%s)', self.key)
        lacks = {'event': 'x', 'from': None, 'until': None, 'at': None}
        for payload in 'no event', '[' * 5000, json.dumps({**lacks, 'key': []}), json.dumps({**lacks, 'key': self.key, 'event': []}), '\xe4':
            await sql("SELECT pg_notify(lock_channel(%s), %s)", self.key, payload)
        await sql('SELECT lock_ask(%s, %s)', self.key, 'please')
        event = await anext(ear)
        self.assertEqual((event.event, event.key, event.holder, event.fencing_token, event.by, event.reason),
                         ('asked', self.key, 'Ann', lock.fencing_token, 'postgres', 'please'))
        second = self.locks.listen([self.key])  # a second one on the same connection
        self.assertEqual((await anext(second)).event, 'connected')
        following = self.start(anext(ear, 'the end'))
        for each in second, ear:
            await each.close()
        self.assertEqual(await following, 'the end')
        await lock.release()

    async def test_the_listener_asks_whether_the_server_is_there(self):
        listener = (self.locks if self.is_async else self.locks.it)._listener
        ear = self.locks.listen([self.key])
        self.assertEqual((await anext(ear)).event, 'connected')
        readable, pings = listener._port.readable, []
        ping = listener._ping

        async def impatient(connection, wake, seconds):
            return await readable(connection, wake, .05 if seconds == 30 else seconds)

        async def counted(connection, seconds=10):
            pings.append(connection.info.backend_pid)
            await ping(connection, .2)
        listener._port.readable, listener._ping = impatient, counted
        second = self.locks.listen([self.key + '2'])  # wakes it
        self.assertEqual((await anext(second)).event, 'connected')
        async with asyncio.timeout(LIMIT):
            while len(pings) < 3:
                await asyncio.sleep(.01)
        await sql('SELECT pg_notify(lock_channel(%s), %s)', self.key, json.dumps(
            {'event': 'x', 'key': self.key, 'from': None, 'until': None, 'at': None, 'of a newer server': 1}))
        self.assertEqual((await anext(ear)).event, 'x')
        pid = pings[-1]
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(LIMIT):
                self.assertEqual((await anext(ear)).event, 'connected')  # again
        finally:
            os.kill(pid, signal.SIGCONT)
        for each in ear, second:
            await each.close()

    async def test_a_listener_that_met_a_standby(self):
        """It connects again, until a server allows LISTEN"""
        port = (self.locks if self.is_async else self.locks.it)._port
        execute, refused = port.execute, []

        async def standby(connection, query, values):
            if 'LISTEN' in query.as_string(connection) and not refused:
                refused.append(connection)
                raise psycopg.errors.ReadOnlySqlTransaction('cannot execute LISTEN during recovery')
            return await execute(connection, query, values)
        port.execute = standby
        ear = self.locks.listen([self.key])
        async with asyncio.timeout(LIMIT):
            self.assertEqual((await anext(ear)).event, 'connected')
        self.assertEqual(len(refused), 1)
        await ear.close()

    async def test_a_listener_that_hangs(self):
        """It does not keep close()"""
        locks = self.locks if self.is_async else self.locks.it
        hanging, tell = await self.event()
        end = locks._port.flag()

        async def hang(*_):
            tell(True)
            await end.wait(None)
            raise psycopg.OperationalError
        locks._port.connect = hang
        ear = self.locks.listen([self.key])
        async with asyncio.timeout(LIMIT):
            await hanging
        try:
            with unittest.mock.patch.object(atomic_lock._core, 'GRACE', .1):
                async with asyncio.timeout(LIMIT / 4):
                    await self.locks.close()
        finally:
            end.set()
        await ear.close()

    async def test_a_pool_with_a_function_for_its_conninfo(self):
        """Newer psycopg_pools allow that"""
        conninfo, kwargs = self.pool.conninfo, self.pool.kwargs

        async def later():
            return conninfo
        self.pool.conninfo, self.pool.kwargs = later if self.is_async else lambda: conninfo, lambda: kwargs
        ear = self.locks.listen([self.key])
        try:
            async with asyncio.timeout(LIMIT):
                self.assertEqual((await anext(ear)).event, 'connected')
        finally:
            self.pool.conninfo, self.pool.kwargs = conninfo, kwargs
        await ear.close()

    async def test_events_in_another_encoding(self):
        ear = (await self.open(f'{server.dsn} client_encoding=latin1')).listen([self.key + 'ä'])
        self.assertEqual((await anext(ear)).event, 'connected')
        await sql("SELECT pg_notify(lock_channel(%s), 'ä')", self.key + 'ä')
        lock = await self.locks.acquire(self.key + 'ä', ttl=60)
        await sql('SELECT lock_ask(%s, %s)', self.key + 'ä', 'bitte schön')
        async with asyncio.timeout(LIMIT):
            event = await anext(ear)
        self.assertEqual((event.event, event.key, event.reason), ('asked', self.key + 'ä', 'bitte schön'))
        await lock.release()
        await ear.close()

    async def test_leaders(self):
        """One at a time; a leader that is cut off starts again"""
        led = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def candidate(name, locks):
            async def work(lock):
                go = loop.create_future()
                led.put_nowait((name, lock, go))
                if self.is_async:
                    return await go
                return await asyncio.wait_for(go, LIMIT)
            return self.start(locks.lead(self.key, work, ttl=60, holder=name))
        one = candidate('one', self.locks)
        name, lock, go = await led.get()
        two = candidate('two', await self.open())
        await until('SELECT count(*) = 1 FROM lock_queue WHERE key = %s', self.key)
        self.assertTrue(led.empty())
        await sql('SELECT force_release(%s, %s)', self.key, 'another one')
        with contextlib.suppress(LockForced):
            await lock.extend()
        if not self.is_async:
            go.set_result('the lock is lost, so this does not count')
        name, lock, go = await led.get()
        self.assertEqual(name, 'two')
        await until('SELECT count(*) = 1 FROM lock_queue WHERE key = %s', self.key)
        go.set_result('done')
        self.assertEqual(await two, 'done')
        name, lock, go = await led.get()
        self.assertEqual(name, 'one')
        go.set_result('done, too')
        self.assertEqual(await one, 'done, too')
        self.assertTrue(await free(self.key))

    async def test_a_leader_whose_lease_is_over_before_it_leads(self):
        """It waits again"""
        core, led = atomic_lock._core, []

        async def late(line):
            led.append(await lead(line))
            if len(led) == 1:
                led[0]._until = 0
            return led[-1]

        async def work(lock):
            return 'led'
        lead, core.Line._lead = core.Line._lead, late
        try:
            self.assertEqual(await self.locks.lead(self.key, work, ttl=60), 'led')
        finally:
            core.Line._lead = lead
        self.assertEqual(len(led), 2)

    async def test_a_leader_who_waits_over_an_outage(self):
        """It waits on, however long that is"""
        async def work(lock):
            return 'led'
        first = await self.locks.acquire(self.key, ttl=60)
        others = await self.open(patience=0)
        leader = self.start(others.lead(self.key, work, ttl=3))
        await until('SELECT count(*) = 1 FROM lock_queue WHERE key = %s', self.key)
        with self.assertLogs('atomic_lock', 'WARNING') as logs:
            server.stop()
            patient, self.pool.timeout = self.pool.timeout, .1
            try:
                async with asyncio.timeout(LIMIT):
                    while not any('asks again' in line for line in logs.output):
                        await asyncio.sleep(.01)
            finally:
                server.start()
                self.pool.timeout = patient
        self.assertFalse(leader.done())
        await first.release()
        async with asyncio.timeout(LIMIT):
            self.assertEqual(await leader, 'led')

    async def test_a_leader_whose_pool_is_full(self):
        """It waits on, too"""
        async def work(lock):
            return 'led'
        port = (self.locks if self.is_async else self.locks.it)._port
        row = port.row

        async def full(*args):
            port.row = row
            raise TooManyRequests
        port.row = full
        self.assertEqual(await self.locks.lead(self.key, work, ttl=60), 'led')

    async def test_close_ends_those_who_wait(self):
        lock = await self.locks.acquire(self.key, ttl=60)
        others = await self.open()
        leader = self.start(others.lead(self.key, None, ttl=HOUR))
        ear = others.listen(['some key'])
        self.assertEqual((await anext(ear)).event, 'connected')
        following = self.start(anext(ear, 'the end'))
        await until('SELECT count(*) = 1 FROM lock_queue WHERE key = %s', self.key)
        await others.close()
        self.assertEqual((await leader, await following), (None, 'the end'))
        await lock.release()
        self.assertTrue(await free(self.key))

    async def test_pgbouncer(self):
        """In transaction mode, with one connection to the server; the listener goes around it"""
        with pgbouncer() as dsn:
            locks = await self.open(dsn, listen=f'{server.dsn} application_name=around', size=4)
            lock = await locks.acquire(self.key, ttl=60, owner=SECRET)
            async with locks.queue(self.key, poll=HOUR) as line:
                self.assertEqual((await anext(line)).state, 'queued')
                following = await self.follow(line)
                if self.is_async:
                    async with self.pool.connection() as connection:
                        await lock.assert_(connection)
                else:
                    with self.pool.connection() as connection:
                        await lock.assert_(connection)
                self.assertIn((await sql("SELECT current_setting('atomic_lock.owner', true)", dsn=dsn))[0], (None, ''))  # it is not left there
                for _ in range(8):  # more often than it takes psycopg to prepare a statement
                    await lock.extend()
                await lock.release()
                self.assertEqual((await following).state, 'offered')
                self.assertEqual((await anext(line)).state, 'acquired')
            async with await locks.acquire(self.key, ttl=60) as lock:
                server.stop()
                server.start()
                await lock.extend()
            self.assertTrue(await free(self.key))
            with self.assertLogs('atomic_lock', 'WARNING') as logs:
                locks = await self.open(dsn)
                await anext(locks.listen([self.key]))
            self.assertIn('pooler', logs.output[0])

    async def test_owners_do_not_show(self):
        """In errors with all variables, logs of everybody, and reprs"""
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        for logger in map(logging.getLogger, ('psycopg', 'psycopg.pool', 'atomic_lock', 'asyncio')):
            level = logger.level
            self.addCleanup(logger.setLevel, level)
            self.addCleanup(logger.removeHandler, handler)
            logger.setLevel(logging.DEBUG)
            logger.addHandler(handler)
        lock = await self.locks.acquire(self.key, SECRET, ttl=60)
        self.assertEqual(lock.owner, SECRET)
        line = self.locks.queue(self.key, SECRET + '2', poll=HOUR)
        await anext(line)
        failures = []
        secret = atomic_lock._core.Owner(SECRET)
        for work in (self.locks.acquire(self.key, secret + '3'), self.locks.acquire(self.key, secret, ttl=-1), self.locks.acquire('', secret),
                     self.locks.acquire(self.key, secret, mode='none')):
            try:
                await work
            except Exception as error:
                failures.append(error)
        self.assertEqual([type(error).__name__ for error in failures], ['LockHeld'] + 3 * ['InvalidParameterValue'])
        await sql('SELECT force_release(%s, %s)', self.key, 'x')
        with contextlib.suppress(LockForced):
            await lock.release()
        await line.close()
        self.assertRegex(repr(lock), '"test_owners_do_not_show.*" lost: forced')
        texts = [repr([lock, line, lock.lost, lock.owner, self.locks, *failures]), said.getvalue()]
        for error in [*failures, lock.lost]:
            trace = traceback.TracebackException.from_exception(error, capture_locals=True)
            # The caller's frames show what it has passed: those of this file and of its threads.
            frames = [frame for frame in trace.stack if frame.filename not in (__file__, concurrent.futures.thread.__file__)]
            texts += [str(error), ''.join(traceback.StackSummary.from_list(frames).format())]
        self.assertIn('connection', said.getvalue())  # something is logged
        for text in texts:
            self.assertNotIn(SECRET, text)

    async def test_extension_is_missing_or_older(self):
        try:
            await sql('CREATE DATABASE without')
            there = server.dsn.replace('dbname=postgres', 'dbname=without')
            locks = await self.open(there)
            with self.assertRaisesRegex(ExtensionError, 'database "without" has no extension atomic_lock'):
                await locks.acquire(self.key)
            for schema in 'one', 'Another "one"':  # it may be in any, and is found again
                await sql(psycopg.sql.SQL('CREATE SCHEMA {0}; CREATE EXTENSION atomic_lock SCHEMA {0}').format(psycopg.sql.Identifier(schema)), dsn=there)
                await (await locks.acquire(self.key)).release()
                await sql('DROP EXTENSION atomic_lock', dsn=there)
            with self.assertRaisesRegex(ExtensionError, 'no extension'):
                await locks.acquire(self.key)
            await sql("UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'atomic_lock'")
            with self.assertRaisesRegex(ExtensionError, 'has version 0.9 in database "postgres", and this package needs 1.0'):
                await (await self.open()).acquire(self.key)
        finally:
            await sql("UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'atomic_lock'")
            await self.stack.aclose()
            await sql('DROP DATABASE without WITH (FORCE)')

    async def test_policies(self):
        await sql("SELECT lock_set_policy('reserved:', roles => '{postgres}'), lock_set_policy('quota:', max_keys_per_role => 1)")
        with self.assertRaises(LockDenied):
            await self.locks.acquire('reserved:1')
        for _ in range(2):
            ear = self.locks.listen(['reserved:1'])  # and goes on
            with self.assertRaises(LockDenied):
                async with asyncio.timeout(LIMIT):
                    await anext(ear)
        await sql("SELECT lock_drop_policy('reserved:')")
        async with asyncio.timeout(LIMIT):
            self.assertEqual((await anext(self.locks.listen(['reserved:1']))).event, 'connected')
        async with await self.locks.acquire('quota:1'):
            with self.assertRaises(LockQuota):
                await self.locks.acquire('quota:2')
        await sql('ALTER ROLE desk SET atomic_lock.on_reacquire = error')
        try:
            locks = await self.open()
            lock = await locks.acquire(self.key, SECRET, ttl=60)
            with self.assertRaises(LockAlreadyHeld):
                await locks.acquire(self.key, SECRET)
            await lock.release()
        finally:
            await sql('ALTER ROLE desk RESET atomic_lock.on_reacquire')


class Async(Scenarios):
    async def test_cancelled_task(self):
        """Its call ends on the server, and it has not got the lock"""
        first = await self.locks.acquire(self.key, ttl=60)
        for _ in range(3):
            task = asyncio.ensure_future(self.grant(self.key, None, 60))
            await waits(self.key)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(await sql('SELECT count(*) FROM lock_waiters WHERE key = %s', self.key), (0,))
        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(.05):
                await self.locks.acquire(self.key, wait=60)
        await first.release()
        self.assertTrue(await free(self.key))
        await (await self.locks.acquire(self.key)).release()  # the pool has its connections

    async def test_nobody_waits_for_a_cancel_that_hangs(self):
        """Not the end of the program either, which waits for the threads that are no daemons"""
        cancel, threads = psycopg.AsyncConnection.cancel, []

        def noted(connection):
            threads.append(threading.current_thread())
            cancel(connection)
        psycopg.AsyncConnection.cancel = noted
        try:
            await self.test_cancelled_task()
        finally:
            psycopg.AsyncConnection.cancel = cancel
        self.assertEqual({thread.daemon for thread in threads}, {True})

    async def test_a_task_of_its_own(self):
        """acquire() is a coroutine"""
        lock = await asyncio.create_task(self.locks.acquire(self.key, ttl=60))
        waiting = asyncio.create_task(self.locks.acquire(self.key, wait=60))
        await waits(self.key)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        await lock.release()
        self.assertTrue(await free(self.key))

    async def test_cancelled_in_the_commit(self):
        """A grant whose answer was lost is given back"""
        held = await self.locks.acquire(self.key + '2', SECRET, ttl=60)
        await require_standby()
        try:
            tasks = [self.start(self.grant(self.key, None)), self.start(self.grant(self.key + '2', SECRET))]
            await until("SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'locks'")
            for task in tasks:
                task.cancel()
            for task in tasks:
                with self.assertRaises(asyncio.CancelledError):
                    await task
            self.assertTrue(await free(self.key))
        finally:
            await sql('ALTER SYSTEM RESET synchronous_standby_names')
            await sql('SELECT pg_reload_conf()')
        await held.release()  # what was held before is not

    async def grant(self, key, owner, wait=0):
        return await self.locks.acquire(key, owner, ttl=60, wait=wait)

    async def test_cancelled_without_a_connection(self):
        """A caller that waits for the pool ends at once, and takes no connection from it"""
        first = await self.locks.acquire(self.key, ttl=HOUR)
        locks = await self.open(size=1)
        await (await locks.acquire(self.key + '2')).release()
        async with self.pool.connection():
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(.05):
                    await locks.acquire(self.key, wait=None)
        async with asyncio.timeout(LIMIT):  # the call that was given up does not wait now, on the only connection
            await (await locks.acquire(self.key + '2')).release()
        await first.release()
        self.assertTrue(await free(self.key))

    async def test_a_release_that_is_cancelled(self):
        """It ends soon, however long the server is silent"""
        with unittest.mock.patch.object(atomic_lock._core, 'GRACE', .1):
            async with self.silence() as (locks, fall_silent):
                lock = await locks.acquire(self.key, ttl=HOUR)
                fall_silent()
                task = self.start(lock.release())
                await asyncio.sleep(0)  # it has begun
                for _ in range(2):
                    task.cancel()
                    await asyncio.sleep(0)
                with self.assertRaises(asyncio.CancelledError):
                    async with asyncio.timeout(LIMIT / 4):
                        await asyncio.shield(task)
                self.assertTrue(task.cancelled())
        await lock.release()
        self.assertTrue(await free(self.key))

    async def test_a_block_that_is_cancelled(self):
        """By somebody else: that is no loss, and the lock is released, also if it is cancelled twice"""
        inside = asyncio.Event()

        async def work():
            async with self.locks.lock(self.key, ttl=60):
                inside.set()
                await asyncio.Event().wait()
        task = self.start(work())
        await inside.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertTrue(await free(self.key))


class Sync(Scenarios):
    is_async = False

    async def test_interrupted(self):
        """Ctrl-C in a call that waits"""
        await self.locks.acquire(self.key, SECRET, ttl=60)
        program = """
import sys
from psycopg_pool import ConnectionPool
from atomic_lock import Locks
with ConnectionPool(sys.argv[1]) as pool, Locks(pool) as locks:
    try:
        with locks.lock(sys.argv[2], wait=60):
            print('acquired')
    except KeyboardInterrupt:
        print('interrupted')
"""
        process = await asyncio.create_subprocess_exec(sys.executable, '-c', program, f'{server.dsn} user=desk', self.key,
                                                       stdout=asyncio.subprocess.PIPE)
        await waits(self.key)
        process.send_signal(signal.SIGINT)
        self.assertEqual(await process.stdout.read(), b'interrupted\n')
        await process.wait()
        self.assertEqual(await sql('SELECT count(*) FROM lock_waiters WHERE key = %s', self.key), (0,))
        await self.locks.resume(self.key, SECRET).release()

    async def test_the_end_of_the_program(self):
        """Closes a generator that has a lock; no thread runs any more"""
        program = """
import sys
from psycopg_pool import ConnectionPool
from atomic_lock import Locks
def work():
    with locks.lock(sys.argv[2], ttl=60):
        yield
locks = Locks(ConnectionPool(sys.argv[1]))
suspended = work()
next(suspended)
"""
        await asyncio.to_thread(subprocess.run, [sys.executable, '-c', program, f'{server.dsn} user=desk', self.key], check=True, timeout=LIMIT / 4)
        self.assertTrue(await free(self.key))

    async def test_on_lost_that_hangs(self):
        """Keeps nobody in the block"""
        told, tell = await self.event()
        end = threading.Event()

        def hang(lost):
            tell(lost)
            end.wait()
        lock = await self.locks.acquire(self.key, ttl=HOUR, on_lost=hang)
        await lock.__aenter__()
        await sql('SELECT force_release(%s, %s)', self.key, 'x')
        try:
            with self.assertRaises(LockForced):
                await lock.extend()
            await told
            with self.assertRaises(LockForced):
                async with asyncio.timeout(LIMIT / 4):
                    await lock.__aexit__(None, None, None)
        finally:
            end.set()

    async def test_a_release_while_the_watch_is_awake(self):
        """It is not overlooked"""
        lock = (await self.locks.acquire(self.key, ttl=HOUR)).it
        stirred, waits = lock._stirred, []
        wait, clear = stirred.wait, stirred.clear

        async def noted(seconds):
            waits.append(seconds)
            return await wait(seconds)

        def late():
            lock._released = True
            lock._stop()
            clear()
        stirred.wait, stirred.clear = noted, late
        stirred.set()
        await Threaded.call(atomic_lock._sync.run, lock._watch())
        self.assertEqual(len(waits), 1)

    async def test_release_in_on_lost(self):
        """By the very thread that tells"""
        done, tell = await self.event()

        def let_go(lost):
            try:
                lock.it.release()
            except LockLost as error:
                tell(error)
        lock = await self.locks.acquire(self.key, ttl=1, on_lost=let_go)
        await lock.__aenter__()
        await sql('SELECT force_release(%s, %s)', self.key, 'x')
        self.assertEqual((await done).reason, 'forced')

    async def test_a_pool_for_those_who_wait(self):
        """They take no connection from those who release"""
        with ConnectionPool(f'{server.dsn} user=desk', min_size=1, max_size=1) as waiting:
            locks = await self.open(size=1, waits=waiting)
            first = await locks.acquire(self.key, ttl=60)
            second = self.start(locks.acquire(self.key, ttl=60, wait=60))
            await waits(self.key)
            await first.release()
            await (await second).release()


class Errors(unittest.TestCase):
    def test_each_sqlstate_has_a_class(self):
        codes = set(re.findall(r"'L', *'K', *'(\d)', *'(\d)', *'(\d)'", (FILES / 'errors.h').read_text()))
        ours = {'LK' + ''.join(code) for code in codes}
        self.assertGreaterEqual(len(ours), 9)
        self.assertLessEqual(ours, atomic_lock.errors.CLASSES.keys())

    def test_version(self):
        """The installed package has the version of the extension"""
        version = json.loads((FILES / 'META.json').read_text())['version']
        self.assertEqual((importlib.metadata.version('atomic_lock'), atomic_lock.__version__), (version, version))

    def test_readme(self):
        """Its programs run, and print what it says"""
        readme = (pathlib.Path(__file__).parent.parent / 'README.md').read_text()
        programs = re.findall(r'^```python\n(.*?)^```$', readme, re.DOTALL | re.MULTILINE)
        self.assertEqual(len(programs), 2)
        for program in programs:
            expected = re.findall(r'# => (.*)$', program, re.MULTILINE)
            ran = subprocess.run([sys.executable, '-c', program.replace('dbname=shop', f'{server.dsn} user=desk')], text=True, capture_output=True)
            self.assertEqual((ran.stdout.splitlines(), ran.stderr), (expected, ''))

    def test_translate(self):
        """Errors of the server become classes with key and detail"""
        server.sql("SELECT lock_acquire('mine', '1 h', 'me', holder => 'Ann'), lock_acquire('released', owner => 'me'), lock_release('released', 'me')")
        for call, state, reason in (("lock_release('none', 'me')", 'LK002', 'not_found'), ("lock_release('mine', 'you')", 'LK003', 'not_owner'),
                                    ("lock_release('released', 'me')", 'LK004', 'already_released'),
                                    ("lock_assert('mine', 'you')", 'LK006', 'not_held'), ("lock_acquire('mine')", '55P03', None),
                                    ("lock_acquire('mine', owner => 'me', on_reacquire => 'error')", 'LK007', None),
                                    ("lock_fetch(NULL::orders, '42', owner => 'me', expect => '{\"id\": 2}')", 'LK012', None)):
            with self.subTest(call), self.assertRaises(psycopg.Error) as error:
                server.sql('SELECT ' + call)
            ours = translate(error.exception, 'some key')
            self.assertEqual((ours.sqlstate, getattr(ours, 'reason', None), ours.key, ours.detail is not None), (state, reason, 'some key', True))
        server.sql("SELECT lock_release('mine', 'me')")
        with self.assertRaises(psycopg.Error) as error:  # one of an application's own
            server.sql("DO $$BEGIN RAISE deadlock_detected; END$$")
        self.assertIs(translate(error.exception), error.exception)

    def test_keys_are_those_of_the_server(self):
        for parts in ('order', 42), ('file', 'C:\\temp', 'a:b'), ('', ''), ('ä',):
            self.assertEqual((lock_key(*parts),), server.sql('SELECT lock_key(VARIADIC %s::text[])', [str(part) for part in parts]))


@contextlib.contextmanager
def pgbouncer():
    """Its dsn; one connection to the server, in transaction mode"""
    directory = server.directory / 'pgbouncer'
    directory.mkdir(exist_ok=True)
    (directory / 'ini').write_text(f"""[databases]
* = host={server.directory} user=desk pool_size=1
[pgbouncer]
listen_addr =
unix_socket_dir = {directory}
auth_type = any
pool_mode = transaction
server_login_retry = 0.1
ignore_startup_parameters = extra_float_digits
logfile = {directory}/log
""")
    process = subprocess.Popen([os.environ.get('AL_PGBOUNCER', '/usr/sbin/pgbouncer'), '-q', directory / 'ini'])
    try:
        dsn = f'host={directory} port=6432 user=desk dbname=postgres'
        ready = threading.Event()
        while not ready.wait(.01):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(dsn).close()
                ready.set()
        yield dsn
    finally:
        process.kill()  # since 1.23, SIGTERM waits for clients
        process.wait()


del Scenarios, Base

if __name__ == '__main__':
    program = unittest.main(exit=False, verbosity=2)
    ran, bad = program.result.testsRun, len(program.result.failures) + len(program.result.errors)
    print(f'{ran - bad} passed, {bad} failed')
    sys.exit(bad > 0 or ran == 0)
