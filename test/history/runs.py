"""A run: a server, clients, faults, and the judgement afterwards.

A run is seeded. Clients and faults have their own random generators, so that the same seed makes
the same calls and faults. Their interleaving depends on the machine; the history records it. Each
kind of fault is a subclass in faults.py: plan() yields the faults and their times, and do()
executes a fault, so that a recorded run can be repeated.
"""

import contextlib
import math
import random
import time

import psycopg2

from cases import misjudged
from checker import Checker
from clients import GRANT, Admin, Client, History, Listener, Session, Watch, key_name
from falsify import falsify
from server import LIMIT, Server

# A run ends after RATE calls for each of its seconds, or when its time has passed, but not before
# FEWEST calls.
RATE, FEWEST = 500, 300

SCHEMA = """
CREATE EXTENSION atomic_lock;
CREATE EXTENSION amcheck;
CREATE TABLE counter (id int PRIMARY KEY, name text NOT NULL, value bigint NOT NULL);
CREATE TABLE journal (write bigint, number int);
SELECT lock_protect('counter', 'k:{name}');
INSERT INTO counter SELECT n, name, 0 FROM unnest('{%s}'::text[]) WITH ORDINALITY AS k (name, n);
"""

LEFT = """
SELECT 'waiter: ' || w::text FROM lock_waiters w
UNION ALL SELECT 'holding: ' || s::text FROM lock_status() s
UNION ALL SELECT 'place: ' || q::text FROM lock_queue q
UNION ALL SELECT 'offer: ' || q::text FROM app_lock_queue q WHERE ticket = 0 OR expires_at < now() - interval '1 s'
UNION ALL SELECT 'lock: ' || l::text FROM pg_locks l
	WHERE locktype IN ('advisory', 'userlock')
	-- the sweeper's worker may be at work just now
	AND (pid IS NULL OR EXISTS (SELECT FROM pg_stat_activity a
		WHERE a.pid = l.pid AND backend_type = 'client backend'))
UNION ALL SELECT 'transaction: ' || a::text FROM pg_stat_activity a
	WHERE datname = current_database() AND pid <> pg_backend_pid()
	AND backend_type = 'client backend' AND xact_start IS NOT NULL
"""


class Run:
    """Many clients on few keys"""

    name = ''
    clients = 24
    admins = 1
    keys = 5
    places = 2			# the number of further keys, which are mostly used with max_holders
    patience = 1.0			# factor for the length of waits
    reconnect = 0.02		# seconds until a refused connection is tried again
    settings = ''
    greeting = 'SET client_min_messages = error'
    allowed = ('57014',)		# errors that clients may get; this is the hurried round's statement_timeout
    excused = ()			# patterns of log lines that the faults explain
    without = ()			# rounds that make no sense in this run
    causes = True
    # The statistics count a prepared grant even if it is rolled back.
    rolls_back_prepared = False
    # prefix: limits of a policy; and client: role
    policies = {}
    roles = {}
    ways = ()			# ways to falsify the history afterwards
    faults = 0			# the fewest faults
    unfinished = False		# whether the whole plan must be executed
    lines = False		# whether clients take tickets, and a listener records events
    default_ttl = 300
    relaxed = ()			# clients whose commits wait for no standby, so that their writes may be lost

    def __init__(self, bindir, directory, seed, seconds, script=None):
        self.bindir, self.directory = bindir, directory
        self.seed, self.seconds = seed, seconds
        self.random = random.Random(f'{seed}/{self.name}')
        self.history = History()
        self.script = script
        self.until, self.least, self.again = 0.0, 0, ''
        self.rolled_back = False	# whether a prepared transaction of an ended client was rolled back
        self.watch = Watch()
        self.ended = False
        self.server = None
        self.crashes = []
        self.failovers = []
        self.steps = []
        self.threads = []
        self.wrong = []
        self.noticed = self.unnoticed = ()

    @classmethod
    def impossible(cls):
        """Why this run is impossible here, or None"""
        return None

    # -- for the clients ----------------------------------------------------

    def over(self):
        if self.script is not None:
            return self.ended or time.monotonic() > self.until
        calls = len(self.history.records) - self.least
        return self.ended or not self.unfinished and len(self.history.faults) >= self.faults and (
            calls >= self.seconds * RATE or calls >= FEWEST and time.monotonic() > self.until)

    def may(self, name):
        return name not in self.without and (name != 'several' or bool(self.policies)) and \
            (name not in ('line', 'patient') or self.lines)

    def limit(self, mode, limit):
        """The max_holders that applies when the caller requests limit"""
        return limit

    def dsn(self, name):
        return f'{self.server.dsn()} application_name={name}'

    def before_call(self, session, operation):
        """Called before each call, for faults of a single connection"""

    def leave(self, record, backend):
        """Notes that a client has given up its connection"""
        record['gone'] = math.inf
        if backend is not None:
            self.watch.left.append((record, backend))

    def unseen(self, session):
        """The first row of an answer that the client did not get, if known"""
        return None

    # -- the server ---------------------------------------------------------

    def prepare(self):
        self.server = Server(self.bindir, self.directory, self.name, self.settings)
        self.server.create()
        self.server.start()
        self.create_database()

    def key_names(self):
        return [f'k:{key_name(n)}' for n in range(1, self.keys + self.places + 1)]

    def create_database(self):
        self.server.ask('CREATE DATABASE history', database='postgres')
        self.server.ask(SCHEMA % ','.join(key_name(n) for n in range(1, self.keys + self.places + 1)))

    # -- faults -------------------------------------------------------------

    def plan(self):
        """Yields (pause in seconds, kind, detail)"""
        return iter(())

    def do(self, kind, detail):
        raise NotImplementedError(kind)

    def torment(self):
        """Executes the faults of the plan or of the record"""
        if self.script is not None:
            plan = self.script.faults()
        else:
            plan = self.plan()
        for pause, kind, detail in plan:
            time.sleep(pause)
            if self.over():
                break
            begin = time.monotonic()
            detail = self.do(kind, detail) or detail
            self.history.fault(kind, begin, detail)
        self.unfinished, self.least = False, len(self.history.records) if self.unfinished else self.least
        while not self.over() and (self.script is None or any(t.is_alive() for t in self.threads)):
            if time.monotonic() > self.until + LIMIT:
                raise TimeoutError(f'{self.name}: too little happens')
            time.sleep(0.1)

    @contextlib.contextmanager
    def lost(self, *kinds):
        """Notes that the server is lost during this block"""
        begin = time.monotonic()
        yield
        for kind in kinds or (self.crashes,):
            kind.append((begin, time.monotonic()))

    def heal(self):
        """Ends faults that would continue, before the clients stop"""

    # -- the whole ----------------------------------------------------------

    def run(self):
        self.prepare()
        self.watch.start()
        try:
            until = time.monotonic() + LIMIT
            # Repeat until the history has enough events to contradict each false answer.
            while not self.again or self.unnoticed and not self.wrong and time.monotonic() < until:
                self.go()
                self.judge()
                self.again += '+'
            self.wrong += [f'checker: does not notice {what}' for what in self.unnoticed]
        finally:
            self.ended = self.watch.ended = True
            self.finish()
        return self.wrong

    def go(self):
        """Runs the clients and the faults"""
        self.ended, self.least = False, len(self.history.records)
        self.until = time.monotonic() + self.seconds
        if self.script is not None:
            self.threads = self.script.clients(self)
            self.until += self.script.seconds + LIMIT
        else:
            self.threads = [Client(self, n) for n in range(self.clients)]
            self.threads += [Admin(self, self.clients + n) for n in range(self.admins)]
        listener = Listener(self, self.key_names())
        for thread in self.threads + [listener] * self.lines:
            thread.start()
        try:
            self.torment()
        finally:
            self.ended = True
            self.heal()
        self.join()
        listener.ended = True
        if self.lines:
            listener.join()

    def join(self):
        until = time.monotonic() + LIMIT
        alive, left = True, True
        while (alive or left) and time.monotonic() < until:
            # Prepared transactions of clients that have ended would block the others.
            gone = [thread.name for thread in self.threads if not thread.is_alive()]
            alive = len(gone) < len(self.threads)
            left = [gid for gid, in self.server.ask('SELECT gid FROM pg_prepared_xacts')]
            for gid in left:
                if gid.partition('/')[0] in gone:
                    try:
                        self.server.ask(f"ROLLBACK PREPARED '{gid}'")
                        self.rolled_back = True
                    except psycopg2.Error:
                        pass		# the backend of a lost connection is just finishing it
            time.sleep(0.1)
        for thread in self.threads:
            if thread.is_alive():
                last = [r for r in self.history.records if r['client'] == thread.name][-1:]
                self.wrong.append(f'liveness: {thread.name} does not come back from {last}')
            elif thread.failure is not None:
                self.wrong.append(f'harness: {thread.name} failed: {thread.failure!r}')

    def finish(self):
        self.server.remove()

    # -- judgement ----------------------------------------------------------

    def judge(self):
        conn = self.server.connect()
        with conn.cursor() as cursor:
            self.quiet(cursor)
            self.relax(cursor)
            self.obtain(cursor)
            self.left(cursor)
            cursor.execute('SELECT id, value FROM counter')
            counters = dict(cursor.fetchall())
            cursor.execute('SELECT write, number FROM journal')
            journal = cursor.fetchall()
            self.whole(cursor)
            self.counted(cursor)
            self.recorded(cursor)
        conn.close()
        self.checker = Checker(self.history, crashes=self.crashes, failovers=self.failovers,
                               steps=self.steps, causes=self.causes, policies=self.policies, roles=self.roles,
                               relaxed=self.relaxed, allowed=self.allowed + (('25P01',) if self.script else ()))
        self.checker.run()
        self.checker.counters(counters, journal)
        self.wrong += self.checker.wrong
        self.judge_the_judge(counters, journal)
        # a replay may end a transaction that is not open
        excused = self.excused + ((r'transaction in progress',) if self.script else ())
        self.wrong += [f'log: {line}' for line in self.server.shameful(excused)]

    def judge_the_judge(self, counters, journal):
        """Checks that the checker finds contradictions"""
        if not self.ways or self.wrong or self.script is not None:
            return
        self.wrong += [f'checker: {what}' for what in misjudged()]
        self.unnoticed, self.noticed = falsify(self.history, counters, journal, self.random, self.ways, allowed=self.allowed,
                                               policies=self.policies, roles=self.roles, crashes=self.crashes)

    def quiet(self, cursor):
        """Waits until no backend of a client is left"""
        until = time.monotonic() + LIMIT
        while True:
            cursor.execute("SELECT array_agg(pid || ' ' || state || ' ' || query) FROM pg_stat_activity "
                           "WHERE datname = current_database() AND backend_type = 'client backend' "
                           "AND pid <> pg_backend_pid() AND application_name ~ '^c[0-9]'")
            backends = cursor.fetchone()[0]
            if not backends and not self.watch.left:
                return
            if time.monotonic() > until:
                self.wrong.append(f'liveness: backends of clients that have gone: {backends}')
                return
            time.sleep(0.05)

    def relax(self, cursor):
        """Removes limits that would hinder the judge"""

    def recorded(self, cursor):
        """Reads lock_history, where there is one"""

    def asked(self, cursor, operation, sql, *params, **facts):
        """A call of the judge, recorded like a client's call"""
        record = self.history.begin(client='judge', op=operation, sql=sql, params=params, **facts)
        cursor.execute(sql, params)
        record['rows'] = Session.rows(cursor)
        record['comp'] = time.monotonic()
        record['outcome'] = 'ok'
        Session.judge(record)
        return record

    def acquired(self, cursor, key, owner, limit=None, wait=300):
        mode = 'exclusive' if limit is None else 'shared'
        return self.asked(cursor, 'acquire', f"SELECT {GRANT} FROM lock_try_acquire(%s, '1 hour', %s, %s, %s, max_holders => %s)",
                          key, owner, mode, f'{wait} s', limit,
                          key=key, owner=owner, mode=mode, lifetime='lease', ttl=3600, wait=wait, limit=limit)

    def obtain(self, cursor):
        """After all leases have expired, the judge must get every key, with a token above all
        others, and every seat"""
        keys = self.key_names()
        for key in keys:
            self.had(cursor, key, self.acquired(cursor, key, 'judge'))
            self.asked(cursor, 'release', 'SELECT lock_try_release(%s, %s) AS released', key, 'judge', key=key, owner='judge')
        time.sleep(0.01)		# more than the checker's tolerance for clocks
        for key in keys[self.keys - 1:]:
            for n in range(3):
                self.had(cursor, key, self.acquired(cursor, key, f'judge/{n}', 3))
            self.asked(cursor, 'look', 'SELECT locked, pending, mode, holders FROM lock_status(%s)', key, key=key)
            if self.acquired(cursor, key, 'judge/3', 3, 0)['outcome'] == 'ok':
                self.wrong.append(f'limits: there are more than three places of {key}')
            self.asked(cursor, 'release', 'SELECT lock_try_release(%s, %s) AS released', key, 'judge/1', key=key, owner='judge/1')
            self.had(cursor, key, self.acquired(cursor, key, 'judge/3', 3, 0))
        for n in range(4):
            self.asked(cursor, 'release_all', 'SELECT lock_release_all(%s) AS number', f'judge/{n}', owner=f'judge/{n}')

    def had(self, cursor, key, record):
        if record['outcome'] != 'ok':
            cursor.execute('SELECT s::text FROM lock_status(%s) s', (key,))
            self.wrong.append(f'liveness: {key} cannot be had: {record["rows"]} {cursor.fetchone()}')

    def left(self, cursor):
        until = time.monotonic() + LIMIT
        while True:
            if self.lines:
                cursor.execute('SELECT lock_sweep(100000)')
            cursor.execute(LEFT)
            left = cursor.fetchall()
            # Another sweep, or a backend of a pooler, may be working.
            if not left or time.monotonic() > until:
                break
            time.sleep(0.1)
        self.wrong += [f'left behind: {row[0]}' for row in left]

    @staticmethod
    def whole(cursor):
        """Raises an error if an index or a table is corrupt"""
        cursor.execute("""SELECT bt_index_check(indexrelid, true), count(v.*)
			FROM pg_index i LEFT JOIN LATERAL verify_heapam(indrelid) v ON true
			WHERE indrelid IN ('app_lock'::regclass, 'app_lock_queue'::regclass) GROUP BY indexrelid""")
        broken = [row for row in cursor.fetchall() if row[1]]
        if broken:
            raise RuntimeError(f'app_lock is corrupt: {broken}')

    def counted(self, cursor):
        """In the statistics, all grants must have ended, unless a crash lost some counts"""
        if self.crashes or self.failovers or self.rolls_back_prepared or self.rolled_back:
            return
        cursor.execute("SELECT grants, releases + expirations + forced FROM lock_stats "
                       "WHERE database = current_database()")
        grants, ended = cursor.fetchone()
        # an expired lease counts once a sweep or the next grant finds it
        until = time.monotonic() + LIMIT
        while grants != ended and time.monotonic() < until:
            cursor.execute('SELECT lock_sweep(100000)')
            cursor.execute("SELECT grants, releases + expirations + forced FROM lock_stats "
                           "WHERE database = current_database()")
            grants, ended = cursor.fetchone()
        if grants != ended:
            self.wrong.append(f'statistics: {grants} grants, {ended} ends')

    def summary(self):
        outcomes = {}
        for record in self.history.records:
            outcomes[record.get('outcome')] = outcomes.get(record.get('outcome'), 0) + 1
        faults = {}
        for _, _, kind, _ in self.history.faults:
            faults[kind] = faults.get(kind, 0) + 1
        grants = sum(1 for h in self.checker.holdings if h.counts) if hasattr(self, 'checker') else 0
        words = [f'{len(self.history.records)} calls', f'{grants} grants']
        words += [f'{n} {what}' for what, n in sorted(outcomes.items(), key=str) if what != 'ok']
        words += [f'{n} x {what}' for what, n in sorted(faults.items())]
        if self.lines:
            words.append(f'{len(self.history.events)} events')
            if hasattr(self, 'checker'):
                words.append(self.checker.of_lines())
        if self.noticed:
            words.append('falsified answers noticed: ' + ', '.join(self.noticed))
        return ', '.join(words)
