"""Work in a block that has a lock, with atomic_lock on psycopg2

python3 block.py 'host=... dbname=...' plays a job, Bob and a DBA.  The database
needs the extension and the role of setup.sql.
"""

import contextlib
import hashlib
import hmac
import sys
import threading
import time
import uuid
from datetime import timedelta

import psycopg2


class Lost(Exception):
    """The block has ended without its lock.  The message is a word for the reason."""


class Lock:
    def __init__(self, key):
        self.key, self.owner, self.until = key, f'job/{uuid.uuid4()}', 0

    def is_ours(self):
        """Call this before each step.  It uses our own clock, so no server can make us wait"""
        return time.monotonic() < self.until


@contextlib.contextmanager
def locked(dsn, work, key, ttl, holder, every=None, wait=0):
    """The lock of `key` for a block, which works on the connection `work`; times in seconds"""
    lock, ended, lease = Lock(key), threading.Event(), timedelta(seconds=ttl)

    def call(sql, *values):
        asked = time.monotonic()
        answer, seconds = row(connection, sql, *values)
        lock.until = asked + float(seconds or 0)  # counted from before the call
        return answer

    def beat():
        while not ended.wait(every or ttl / 3):
            try:
                if lock.until and call(
                        """SELECT status, extract(epoch FROM ttl_remaining)
                           FROM lock_heartbeat(ARRAY[%s], %s, %s)""",
                        key, lock.owner, lease) != 'extended':
                    lock.until = 0
            except psycopg2.Error:
                lock.until = 0

    def watch():  # separate from the heartbeat, which may get no answer
        while not ended.wait(.2):
            if not lock.is_ours():
                with contextlib.suppress(psycopg2.Error):
                    work.cancel()  # repeatedly: the work may be between two statements

    connection = connect(dsn)  # a second one, since the work keeps the other busy
    try:
        lock.token = call(
            """SELECT fencing_token, extract(epoch FROM waited + ttl_remaining)
               FROM lock_acquire(%s, %s, %s, holder => %s, wait => %s)""",
            key, lease, lock.owner, holder, timedelta(seconds=wait))
        threads = [threading.Thread(target=each, daemon=True) for each in (beat, watch)]
        for thread in threads:
            thread.start()
        try:
            yield lock
        finally:
            ended.set()
            for thread in threads:
                thread.join()
            answer = one(connection, 'SELECT lock_try_release(%s, %s)', key, lock.owner)
            if answer != 'released':
                raise Lost(answer)
    finally:
        connection.close()


def hidden_key(secret, name):
    """A key that does not show its name to readers without the secret"""
    if len(secret) < 16:
        raise ValueError('the secret is shorter than 16 bytes')
    return hmac.new(secret, name.encode(), hashlib.sha256).hexdigest()


def connect(dsn):
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    return connection


def row(connection, sql, *values):
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone()


def one(connection, sql, *values):
    return row(connection, sql, *values)[0]


def until(connection, sql, *values):
    while not one(connection, sql, *values):
        time.sleep(.02)


def wait_and_give_up(connection, other, key):
    """The driver cancels a call that waits.  The call has not acquired the lock then."""
    def give_up():
        until(other, 'SELECT waiters > 0 FROM lock_status(%s)', key)
        connection.cancel()

    threading.Thread(target=give_up).start()
    try:
        one(connection, "SELECT lock_acquire(%s, wait => '1 min')", key)
    except psycopg2.Error as error:
        return 'cancelled' if error.pgcode == '57014' else error
    return 'acquired'


def play(dsn):
    """What happens in a night"""
    work, bob, other = connect(dsn), connect(dsn), connect(dsn)

    with locked(dsn, work, 'import:7', 600, 'nightly import', every=.2) as lock:
        print('The job has the lock:', 'go on' if lock.is_ours() else 'stop')
        first = one(other, "SELECT expires_at::text FROM lock_status('import:7')")
        until(other, "SELECT expires_at > %s::timestamptz FROM lock_status('import:7')", first)
        print('Its heartbeat: the lease ends later')
        try:
            one(bob, "SELECT lock_acquire('import:7')")
        except psycopg2.Error as error:
            print('Bob:', error.pgcode, error.diag.message_primary)
        print('Bob waits, and gives up:', wait_and_give_up(bob, other, 'import:7'))

    try:
        with locked(dsn, work, 'import:7', 600, 'nightly import'):
            one(work, 'SELECT 1 / 0')
    except psycopg2.Error as error:
        print('The work fails:', error.pgcode)
    print('Its lock:', 'held' if one(other, "SELECT locked FROM lock_status('import:7')") else 'free')

    try:
        with locked(dsn, work, 'import:7', 600, 'nightly import', every=.2):
            one(other, "SELECT force_release('import:7', 'it takes too long')")
            one(work, 'SELECT pg_sleep(600)')
    except Lost as lost:
        print('A DBA ends the lease, and the work is stopped:', lost)

    # Heartbeats that come too late, as after the sleep of a laptop
    take, drop = "SELECT lock_acquire(%s, owner => 'bob')", "SELECT lock_release(%s, 'bob')"
    for key, meanwhile in ('import:8', []), ('import:9', [take]), ('import:10', [take, drop]):
        try:
            with locked(dsn, work, key, .01, 'nightly import', every=3600) as lock:
                until(other, 'SELECT NOT locked FROM lock_status(%s)', key)
                for sql in meanwhile:
                    one(bob, sql, key)
                print('Overrun:', 'go on' if lock.is_ours() else 'stop')
        except Lost as lost:
            print('At release:', lost)

    print('Hidden key:', hidden_key(b'0123456789abcdef', 'patient:Müller'))
    try:
        hidden_key(b'0123456789abcde', 'patient:Müller')
    except ValueError as error:
        print('Hidden key:', error)


if __name__ == '__main__':
    play(sys.argv[1])
