"""An edit form with atomic_lock, on psycopg 3 and its connection pool

python3 edit_form3.py 'host=... dbname=...' plays Alice, Bob and a job.  The database
needs the extension and the table of setup.sql.
"""

import contextlib
import sys

import psycopg
from psycopg_pool import ConnectionPool


@contextlib.contextmanager
def request(pool, owner):
    """One request: a connection of the pool, and a transaction in which we are `owner`"""
    with pool.connection() as connection, connection.cursor() as cursor:  # commits, or rolls back
        cursor.execute("SELECT set_config('atomic_lock.owner', %s, true)", (owner,))
        yield cursor


def open_form(pool, owner, order, user):
    """Take the lock, then read.  Without the lock, the form is shown for reading only."""
    with request(pool, owner) as cursor:
        cursor.execute(
            """SELECT acquired, status, holder
               FROM lock_try_acquire(lock_key('order', %s), ttl => '5 min', holder => %s)""",
            (str(order), user))
        acquired, status, holder = cursor.fetchone()
        cursor.execute('SELECT note FROM orders WHERE id = %s', (order,))
        return acquired, status, holder, cursor.fetchone()[0]


def keep_open(pool, owner, order):
    """The page calls this every 100 seconds, a third of the lease"""
    with request(pool, owner) as cursor:
        cursor.execute("SELECT lock_try_extend(lock_key('order', %s)) IS NOT NULL", (str(order),))
        return 'extended' if cursor.fetchone()[0] else 'lost'


def save(pool, owner, order, note):
    """The guard of the table refuses this without the lock"""
    try:
        with request(pool, owner) as cursor:
            cursor.execute('UPDATE orders SET note = %s WHERE id = %s', (note, order))
    except psycopg.Error as error:
        if error.sqlstate != 'LK006':
            raise
        return f'refused: {error.diag.message_primary}'
    return 'saved'


def close_form(pool, owner, order):
    """The answer is a word for the result"""
    with request(pool, owner) as cursor:
        cursor.execute("SELECT lock_try_release(lock_key('order', %s))", (str(order),))
        return cursor.fetchone()[0]


def hand_over(pool, owner, order, job):
    """From the form to a job.  The job has its own owner, and the form no longer has the lock."""
    with request(pool, owner) as cursor:
        cursor.execute(
            """SELECT status FROM lock_transfer(lock_key('order', %s), owner => %s, new_owner => %s,
               holder => 'nightly export', ttl => '10 min')""",
            (str(order), owner, job))
        return cursor.fetchone()[0]


def open_pool(dsn):
    """Behind PgBouncer in transaction mode, statements must not be prepared by name"""
    return ConnectionPool(dsn, min_size=1, max_size=1, open=True, kwargs={'prepare_threshold': None})


def play(dsn):
    """What happens in an afternoon"""
    alice, tab2, bob = 'session-8f14e45f/tab-1', 'session-8f14e45f/tab-2', 'session-c9f0f895/tab-1'
    pool = open_pool(dsn)

    print('Alice opens 42:', open_form(pool, alice, 42, 'Alice')[1])
    print('Alice opens 42 in another tab:', *open_form(pool, tab2, 42, 'Alice')[1:3])
    print('Bob opens 42:', *open_form(pool, bob, 42, 'Bob')[1:3])
    print('Bob saves:', save(pool, bob, 42, 'of Bob'))
    print('Alice goes on:', keep_open(pool, alice, 42))
    print('Alice saves:', save(pool, alice, 42, 'of Alice'))

    # The owner comes with each request, so the application may forget everything.
    pool.close()
    pool = open_pool(dsn)
    print('After a restart, Alice goes on:', keep_open(pool, alice, 42))
    print('Alice reloads the page:', open_form(pool, alice, 42, 'Alice')[1])

    print('Alice hands 42 to a job:', hand_over(pool, alice, 42, 'job-17'))
    print('Alice saves:', save(pool, alice, 42, 'of Alice, too late'))
    print('The job saves:', save(pool, 'job-17', 42, 'exported'))
    print('The job ends:', close_form(pool, 'job-17', 42))

    # Alice goes to lunch; a colleague has her lock ended, and Bob takes it.
    print('Alice opens 42:', open_form(pool, alice, 42, 'Alice')[1])
    with request(pool, '') as cursor:
        cursor.execute("SELECT force_release('order:42', 'Alice is at lunch')")
    print('Bob opens 42:', open_form(pool, bob, 42, 'Bob')[1])
    print('Alice goes on:', keep_open(pool, alice, 42))
    print('Alice saves:', save(pool, alice, 42, 'of Alice, after lunch'))
    print('Alice closes:', close_form(pool, alice, 42))
    print('Bob closes:', close_form(pool, bob, 42))

    with request(pool, '') as cursor:
        cursor.execute('SELECT note FROM orders WHERE id = 42')
        print('The order is now:', cursor.fetchone()[0])
    pool.close()


if __name__ == '__main__':
    play(sys.argv[1])
