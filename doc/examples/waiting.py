"""Waiting for a lock without a connection, on psycopg2: tickets, and events

python3 waiting.py 'host=... dbname=...' ['host=... dbname=...'] plays people who wait for
each other.  The second database is for listening, if the first is behind a pooler.
The database needs the extension and the table of setup.sql.
"""

import json
import select
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg2
from psycopg2 import sql
from psycopg2.pool import ThreadedConnectionPool

from edit_form import close_form, open_form, request, save


class Events:
    """One connection that listens for the whole application.  It is not from the pool."""

    def __init__(self, dsn):
        self.dsn, self.orders = dsn, []
        self.connect()

    def connect(self):
        self.connection = psycopg2.connect(self.dsn)
        self.connection.autocommit = True  # LISTEN counts from its commit on
        for order in self.orders:
            self.listen_to(order)

    def listen(self, order):
        self.orders.append(order)  # also for the next connection
        self.listen_to(order)

    def listen_to(self, order):
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT lock_channel(lock_key('order', %s))", (str(order),))
            channel = sql.Identifier(cursor.fetchone()[0])
            cursor.execute(sql.SQL('LISTEN {}').format(channel))

    def next(self, seconds):
        """The next event, or None after the timeout.  'connected': events were lost"""
        try:
            self.connection.poll()
            if not self.connection.notifies and select.select([self.connection], [], [], seconds)[0]:
                self.connection.poll()
        except psycopg2.Error:
            self.connect_again()
            return {'event': 'connected'}
        if not self.connection.notifies:
            return None
        return json.loads(self.connection.notifies.pop(0).payload)

    def connect_again(self):
        """Repeats until the server accepts us.  The pauses grow up to ten seconds."""
        pause = .1
        while True:
            self.connection.close()
            try:
                return self.connect()
            except psycopg2.Error:
                time.sleep(pause)
                pause = min(2 * pause, 10)


def enqueue(pool, owner, order, user):
    """Take the lock or a ticket; when repeated, take the lock at our turn, or keep the ticket"""
    with request(pool, owner) as cursor:
        cursor.execute(
            """SELECT status, place, ticket
               FROM lock_enqueue(lock_key('order', %s), holder => %s, offer => '2 min', keep => '10 min')""",
            (str(order), user))
        return cursor.fetchone()


def wait_for_turn(pool, events, owner, order, user, poll=30):
    """Repeats until we have the lock.  An event is only a hint to ask; the answer decides."""
    while True:
        status, _, ticket = enqueue(pool, owner, order, user)
        if status != 'queued':
            return status
        event = events.next(poll)
        while event and event['event'] != 'connected' and not (event['event'] == 'offered' and event['ticket'] == ticket):
            event = events.next(poll)


def leave(pool, owner, order):
    """Leave the line, so that nobody waits for us"""
    with request(pool, owner) as cursor:
        cursor.execute("SELECT lock_leave(lock_key('order', %s))", (str(order),))
        return 'left' if cursor.fetchone()[0] else 'was not in line'


def ask(pool, owner, order, message):
    """Ask the holder for the lock.  All listeners see the message."""
    with request(pool, owner) as cursor:
        cursor.execute("SELECT lock_ask(lock_key('order', %s), %s)", (str(order), message))
        return cursor.fetchone()[0]


def hand_over_if_asked(pool, events, owner, order, requests):
    """The holder's side.  The message names a request; only the application knows whose it is."""
    event = events.next(300)
    while event and event['event'] != 'asked':
        event = events.next(300)
    if event is None or event['reason'] not in requests:
        return 'nobody that we know asked'
    new_owner, user = requests[event['reason']]
    with request(pool, owner) as cursor:
        cursor.execute(
            "SELECT status FROM lock_transfer(lock_key('order', %s), %s, new_owner => %s, holder => %s)",
            (str(order), owner, new_owner, user))
        cursor.fetchone()
    return f'handed over to {user}'


def hear(events, word):
    """The next event with this word, as text"""
    event = events.next(300)
    while event and event['event'] != word:
        event = events.next(300)
    return f'{word}, {event["holder"]}' if event else 'nothing'


def play(dsn, listen_dsn):
    """What happens in an hour"""
    alice, bob = 'session-8f14e45f/tab-1', 'session-c9f0f895/tab-1'
    carol, dave = 'session-45c48cce/tab-1', 'session-d3d94468/tab-1'
    pool = ThreadedConnectionPool(1, 1, dsn)
    # Each of them is served by another process, which has one connection to listen.
    at_alice, at_bob, at_carol, at_job = (Events(listen_dsn) for _ in range(4))
    for events in at_alice, at_bob, at_carol:
        events.listen(42)

    print('Alice opens 42:', open_form(pool, alice, 42, 'Alice')[1])
    print('Bob stands in line:', *enqueue(pool, bob, 42, 'Bob')[:2])
    print('Carol stands in line:', *enqueue(pool, carol, 42, 'Carol')[:2])
    print('Dave stands in line:', *enqueue(pool, dave, 42, 'Dave')[:2])
    print('Bob asks:', ask(pool, bob, 42, 'Bob needs it by ten'))
    print('Alice hears:', hear(at_alice, 'asked'))

    # Everybody's connection may go, and the application with them.
    pool.closeall()
    pool = ThreadedConnectionPool(1, 2, dsn)
    print('Alice saves:', save(pool, alice, 42, 'of Alice'))
    print('Alice closes:', close_form(pool, alice, 42))
    print('Bob hears:', hear(at_bob, 'offered'))
    print('Erin opens 42:', *open_form(pool, 'session-6512bd43/tab-1', 42, 'Erin')[1:3])
    print('Bob comes back:', wait_for_turn(pool, at_bob, bob, 42, 'Bob'))
    print('Bob saves:', save(pool, bob, 42, 'of Bob'))

    print('Dave leaves:', leave(pool, dave, 42))
    print('Dave leaves again:', leave(pool, dave, 42))
    with ThreadPoolExecutor() as threads:
        turn = threads.submit(wait_for_turn, pool, at_carol, carol, 42, 'Carol')
        print('Bob closes:', close_form(pool, bob, 42))
        print('Carol has waited:', turn.result())
    print('Carol closes:', close_form(pool, carol, 42))

    # A long job gives way to a person.
    requests = {'request 7': (alice, 'Alice')}
    at_job.listen(43)
    print('The job opens 43:', open_form(pool, 'job-17', 43, 'nightly export')[1])
    at_alice.listen(43)
    print('Alice stands in line:', *enqueue(pool, alice, 43, 'Alice')[:2])
    print('Alice asks:', ask(pool, alice, 43, 'request 7'))
    print('The job:', hand_over_if_asked(pool, at_job, 'job-17', 43, requests))
    print('Alice hears:', hear(at_alice, 'transferred'))
    print('Alice comes back:', enqueue(pool, alice, 43, 'Alice')[0])
    print('The job ends:', close_form(pool, 'job-17', 43))
    print('Alice closes:', close_form(pool, alice, 43))

    print('Order 42 is now:', open_form(pool, bob, 42, 'Bob')[3])
    pool.closeall()


if __name__ == '__main__':
    play(sys.argv[1], sys.argv[-1])
