"""Clients that use locks, and the history of their calls and the answers.

Each call is a record: the statement, the times of its invocation and of its answer (seconds of
the monotonic clock), and the outcome:

  ok       done; in a transaction block, unless the block is rolled back later
  refused  a status or an SQLSTATE says that the state of the lock forbids the call
  error    another error of the server: the call did nothing
  info     unknown: the connection was lost, or the backend ended

The next step of a client depends only on its answers and on its random generator, which is seeded
with the numbers of the run and of the client. A client never looks at other clients: the records
alone must suffice for the checker.
"""

import itertools
import json
import random
import select
import threading
import time

import psycopg2

from server import began

REFUSALS = {'55P03', '40P01', '53400', 'LK002', 'LK003', 'LK004', 'LK005', 'LK006', 'LK007', 'LK008', 'LK009'}
LOST = {'57P01', '57P02', '57P03', '57P05', '08007', '08006', '08003', '08000', '25P03', '08P01'}
# The columns that we read of lock_enqueue, and of lock_queue
PLACE = ("status, place, key, 'exclusive' AS mode, extract(epoch FROM expires_at)::float8 AS expires, "
         'fencing_token, ticket, holder, owner')
LINE = '''SELECT place, holder, ticket, extract(epoch FROM expires_at)::float8 AS expires,
    extract(epoch FROM offer)::float8 AS offer, extract(epoch FROM offered_until)::float8 AS until
    FROM lock_queue WHERE key = %s'''
GRANT = ('acquired, status, mode, fencing_token, extract(epoch FROM expires_at)::float8 AS expires, '
         'holder, key, extract(epoch FROM acquired_at)::float8 AS since, holders, max_holders')

# Names from test/collisions.py, for keys (after "k:") and owners. Keys 1, 2 and 5 have one hash in
# PostgreSQL, with the seed that was once used for keys; keys 3 and 4 have another; the owners share
# one. The collisions must not matter.
KEY_NAMES = {2: 'collision-8rq87W5H2RK_', 4: 'collision-.wJ5(5vX&_Zl', 5: 'collision-9Ov^bK2FhUfj'}
OWNERS = ('dE*dH_)0ofwk', '39L&g]y!nZ&k', 'H9cH?T5mS#MN', '<B;]6J<1q(C-',
          'e6n6B0mX<9^w', 'a]l#3!Tj)23p', 'a/7)f[Fz&?;o', 'IGB/>ZPI^C[7')


def key_name(number):
    return KEY_NAMES.get(number, str(number))


KEY_NUMBERS = {f'k:{name}': number for number, name in KEY_NAMES.items()}


def key_number(key):
    return KEY_NUMBERS.get(key) or int(key[2:])


def backend_of(conn):
    return conn.info.backend_pid, began(conn.info.backend_pid)


class Stop(Exception):
    """The run has ended"""


class History:
    """The records, in the order of their invocation"""

    def __init__(self):
        self.records = []
        self.number = itertools.count()
        self.faults = []		# (from, to, kind, detail)
        self.grants = []		# rows of lock_history at the end, where policies ask for it
        self.events = []		# events that the listener received: (when, key, payload)
        # The difference of the clocks, since expires_at is real time. The clocks may drift apart a
        # little. An interruption between the two readings makes the difference smaller.
        self.offset = max(time.time() - time.monotonic() for _ in range(1000))

    def begin(self, **record):
        record['id'] = next(self.number)
        record['inv'] = time.monotonic()
        record['comp'] = None
        self.records.append(record)
        return record

    def fault(self, kind, begin, detail=None):
        self.faults.append((begin, time.monotonic(), kind, detail))

    def save(self, path, **about):
        about['offset'] = self.offset
        about['faults'] = self.faults
        about['grants'] = self.grants
        about['events'] = self.events
        with open(path, 'w', encoding='utf-8') as out:
            out.write(json.dumps(about) + '\n')
            for record in self.records:
                out.write(json.dumps(record) + '\n')

    @classmethod
    def load(cls, path):
        history = cls()
        with open(path, encoding='utf-8') as lines:
            about = json.loads(next(lines))
            history.records = [json.loads(line) for line in lines]
        history.offset = about['offset']
        history.faults = [tuple(fault) for fault in about['faults']]
        history.grants = about['grants']
        history.events = about['events']
        return history, about


class Session:
    """The connection of a client, and the records of its calls"""

    def __init__(self, run, name):
        self.run = run
        self.name = name
        self.conn = self.backend = None
        self.in_transaction = False

    def connect(self):
        """Connects, however long the server needs; raises Stop after the run"""
        while self.conn is None:
            if self.run.over():
                raise Stop
            record = self.run.history.begin(client=self.name, op='connect')
            try:
                conn = psycopg2.connect(self.run.dsn(self.name), connect_timeout=5)
                conn.autocommit = True
                with conn.cursor() as cursor:
                    cursor.execute(self.run.greeting.format(self.name))
                self.conn, self.backend = conn, backend_of(conn)
                record['outcome'] = 'ok'
            except psycopg2.Error as error:
                record['outcome'] = 'info'
                record['message'] = str(error)[:200]
                time.sleep(self.run.reconnect)
            record['comp'] = time.monotonic()
        self.in_transaction = False

    def disconnect(self):
        record = self.run.history.begin(client=self.name, op='disconnect', outcome='ok')
        self.drop(record)
        record['comp'] = time.monotonic()

    def drop(self, record):
        """Closes the connection; the run notes when the backend ends, which may take a while"""
        if self.conn is not None:
            self.run.leave(record, self.backend)
            try:
                self.conn.close()
            except psycopg2.Error:
                pass
        self.conn = None
        self.in_transaction = False

    def call(self, operation, sql, *params, **facts):
        """Sends a call and returns its record"""
        if self.conn is None:
            self.connect()
        self.run.before_call(self, operation)
        record = self.run.history.begin(
            client=self.name, op=operation, sql=sql, params=params, **facts)
        try:
            with self.conn.cursor() as cursor:
                cursor.execute(sql, params or None)
                record['rows'] = self.rows(cursor)
                record['tag'] = cursor.statusmessage
            record['outcome'] = 'ok'
        except psycopg2.Error as error:
            state = error.pgcode
            record['sqlstate'] = state
            record['message'] = str(error)[:300]
            if state is None or state in LOST or self.conn.closed:
                record['outcome'] = 'info'
                record['unseen'] = self.run.unseen(self)
            elif state in REFUSALS:
                record['outcome'] = 'refused'
            else:
                record['outcome'] = 'error'
        record['comp'] = time.monotonic()
        if record['outcome'] == 'info':
            self.drop(record)
        elif operation == 'begin' and record['outcome'] == 'ok':
            self.in_transaction = True
        elif operation in ('commit', 'rollback', 'prepare'):
            self.in_transaction = False
        self.judge(record)
        return record

    @staticmethod
    def rows(cursor):
        if cursor.description is None:
            return cursor.rowcount
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row)) for row in cursor.fetchall()]

    @staticmethod
    def judge(record):
        """Marks a refusal that the call returned instead of raising an error"""
        rows = record.get('rows')
        if record['outcome'] != 'ok' or not isinstance(rows, list) or not rows:
            return
        row = rows[0]
        if row.get('acquired') is False:
            record['outcome'] = 'refused'
        elif 'released' in row and row['released'] not in (True, 'released'):
            record['outcome'] = 'refused'
        elif 'extended' in row and row['extended'] is None:
            record['outcome'] = 'refused'
        elif row.get('held') is False:
            record['outcome'] = 'refused'


class Worker(threading.Thread):
    """A thread with a session. The thread ends with the run; subclasses implement work()."""

    def __init__(self, run, name):
        super().__init__(name=name, daemon=True)
        self.run_of = run
        self.session = Session(run, name)
        self.failure = None

    def run(self):
        try:
            self.work()
        except Stop:
            pass
        except Exception as failure:	# reported by the run
            self.failure = failure
            raise
        finally:
            self.session.disconnect()

    def work(self):
        raise NotImplementedError


class Client(Worker):
    """A client of the run: repeats random rounds of typical uses of locks"""

    # the rounds and their frequencies
    ROUNDS = (('lease', 40), ('shared', 14), ('place', 30), ('set', 14), ('several', 40), ('session', 10),
              ('relied', 14), ('transaction', 14), ('prepared', 7), ('fetch', 8), ('stranger', 7), ('hurried', 6),
              ('line', 120), ('patient', 14))

    def __init__(self, run, number):
        super().__init__(run, f'c{number}')
        self.own_name = OWNERS[number] if number < len(OWNERS) else self.name
        self.random = random.Random(f'{run.seed}/{number}{run.again}')
        self.owners = itertools.count()

    # -- the steps of rounds ------------------------------------------------

    def call(self, operation, sql, *params, **facts):
        return self.session.call(operation, sql, *params, **facts)

    def chance(self, p):
        return self.random.random() < p

    def key(self, places=False):
        """A random key; with places=True mostly one that is used with max_holders"""
        keys = self.run_of.keys
        if self.chance(0.75 if places else 0.05):
            return f'k:{key_name(keys + self.random.randint(1, self.run_of.places))}'
        return f'k:{key_name(self.random.randint(1, keys))}'

    def limit(self, key):
        """A random max_holders or None; for the first key with max_holders it is mostly 2"""
        if self.chance(0.1):
            return None
        return 2 if key_number(key) == self.run_of.keys + 1 else self.random.choice((1, 2, 3, 3))

    def lifetime(self, *choices):
        return self.random.choice([c for c in choices if self.run_of.may(c)])

    def request(self):
        """A random key, with mode and max_holders"""
        if self.chance(0.6):
            return self.key(), 'exclusive', None
        key = self.key(places=True)
        return key, 'shared', self.limit(key)

    def owner(self):
        """Mostly a new owner, sometimes the fixed owner of this client"""
        return self.own_name if self.chance(0.3) else f'{self.name}/{next(self.owners)}'

    def ttl(self):
        """A random duration in seconds"""
        return round(self.random.choice((0.005, 0.02, 0.1, 0.5)) * (0.5 + self.random.random()), 4)

    def wait(self):
        return round(self.random.choice((0, 0, 0.005, 0.05, 0.3)) * self.run_of.patience, 4)

    def think(self, seconds=None):
        if seconds is None:
            seconds = self.random.choice((0, 0, 0.001, 0.01)) * self.random.random()
        if seconds > 0:
            time.sleep(seconds)

    def acquire(self, key, owner, mode='exclusive', lifetime='lease', ttl=None, wait=None, limit=None):
        if mode == 'shared' and lifetime == 'transaction':
            limit = None		# not allowed together
            if self.run_of.limit(mode, None) is not None:
                lifetime = 'lease'
        ttl = self.ttl() if ttl is None else ttl
        wait = self.wait() if wait is None else wait
        verb = 'lock_try_acquire' if self.chance(0.8) else 'lock_acquire'
        return self.call(
            'acquire',
            f'SELECT {GRANT} FROM {verb}(%s, %s, %s, %s, %s, %s, lifetime => %s, max_holders => %s)',
            key, None if lifetime == 'transaction' else f'{ttl} s', owner, mode, f'{wait} s', owner, lifetime, limit,
            key=key, owner=owner, mode=mode, lifetime=lifetime, ttl=ttl, wait=wait, limit=self.run_of.limit(mode, limit))

    def release(self, key, owner):
        if self.chance(0.8):
            return self.call('release', 'SELECT lock_try_release(%s, %s) AS released', key, owner,
                             key=key, owner=owner)
        return self.call('release', 'SELECT lock_release(%s, %s) AS released', key, owner,
                         key=key, owner=owner)

    def extend(self, key, owner):
        ttl = self.ttl()
        verb = 'lock_try_extend' if self.chance(0.8) else 'lock_extend'
        return self.call('extend', f'SELECT extract(epoch FROM {verb}(%s, %s, %s))::float8 AS extended',
                         key, owner, f'{ttl} s', key=key, owner=owner, ttl=ttl)

    def look(self, key):
        return self.call('look', 'SELECT locked, pending, mode, holders FROM lock_status(%s)', key, key=key)

    def finish(self):
        """Ends an open transaction; returns whether it certainly committed"""
        if not self.session.in_transaction:
            return False
        if self.chance(0.85):
            return self.call('commit', 'COMMIT')['outcome'] == 'ok'
        self.call('rollback', 'ROLLBACK')
        return False

    def write(self, key, owner, value=None):
        """A guarded read-modify-write, in the open transaction or in its own"""
        number = key_number(key)
        mine = not self.session.in_transaction
        if mine:
            if self.call('begin', 'BEGIN')['outcome'] != 'ok':
                return
        steps = [('set', "SELECT set_config('atomic_lock.owner', %s, true)", (owner,))]
        if value is None:
            steps.append(('read', 'SELECT value FROM counter WHERE id = %s', (number,)))
        for operation, sql, params in steps:
            record = self.call(operation, sql, *params, key=key, owner=owner)
            if record['outcome'] != 'ok':
                break
            if operation == 'read':
                value = record['rows'][0]['value']
                self.think()
        else:
            record = self.call('write', 'UPDATE counter SET value = %s WHERE id = %s',
                               value + 1, number, key=key, owner=owner)
            if record['outcome'] == 'ok':
                self.call('journal', 'INSERT INTO journal VALUES (%s, %s)', record['id'], number,
                          key=key, owner=owner, write=record['id'])
                self.think()
        if mine and self.session.in_transaction:
            self.call('commit', 'COMMIT')

    def use(self, key, owner, expires, token):
        """Uses a lock that the client has or believes to have"""
        for _ in range(self.random.randint(0, 3)):
            what = self.random.choice(('extend', 'held', 'assert', 'fence', 'write', 'write', 'again', 'sleep', 'oversleep'))
            if what == 'extend':
                record = self.extend(key, owner)
                if record['outcome'] != 'ok':
                    return False
                expires = record['rows'][0]['extended']
            elif what == 'held':
                self.call('held', 'SELECT lock_is_held(%s, %s) AS held', key, owner, key=key, owner=owner)
            elif what == 'assert':
                self.call('assert', 'SELECT lock_assert(%s, %s) AS token', key, owner, key=key, owner=owner)
            elif what == 'fence':
                self.call('fence', 'SELECT lock_assert_fence(%s, %s, %s)', key, token, owner, key=key, owner=owner)
            elif what == 'write':
                self.write(key, owner)
            elif what == 'again':
                record = self.acquire(key, owner)
                if record['outcome'] != 'ok':
                    return False
                expires, token = record['rows'][0]['expires'], record['rows'][0]['fencing_token']
            elif what == 'oversleep' and expires is not None:
                # a moment just before or after the expiry
                left = expires - time.time()
                self.think(min(1, max(0, left + self.random.uniform(-0.003, 0.003))))
            else:
                self.think()
            if self.session.conn is None:
                return False
        return True

    # -- the rounds ---------------------------------------------------------

    def lease(self):
        key, owner = self.key(), self.owner()
        record = self.acquire(key, owner)
        if record['outcome'] == 'info':
            # the answer was lost: repeat the call
            record = self.acquire(key, owner)
        if record['outcome'] != 'ok':
            return
        self.use(key, owner, record['rows'][0]['expires'], record['rows'][0]['fencing_token'])
        dice = self.random.random()
        if dice < 0.6:
            self.release(key, owner)
        elif dice < 0.75:
            heir = f'{self.name}/{next(self.owners)}'
            ttl = self.ttl()
            record = self.call('transfer', f'SELECT {GRANT} FROM lock_transfer(%s, %s, %s, %s, %s)',
                               key, owner, heir, heir, f'{ttl} s',
                               key=key, owner=owner, heir=heir, ttl=ttl)
            if record['outcome'] == 'ok':
                self.write(key, heir)
                self.release(key, owner)
                self.release(key, heir)

    def shared(self):
        key, owner = self.key(), self.owner()
        if self.acquire(key, owner, mode='shared')['outcome'] != 'ok':
            return
        if self.chance(0.1):
            self.look(key)
        self.think()
        for mode in ('exclusive', 'shared'):
            if not self.chance(0.4):
                break
            wait = self.wait()
            record = self.call('convert', f'SELECT {GRANT} FROM lock_convert(%s, %s, %s, %s)',
                               key, owner, mode, f'{wait} s', key=key, owner=owner, mode=mode, wait=wait)
            if record['outcome'] != 'ok':
                break
            if mode == 'exclusive':
                self.write(key, owner)
        if self.chance(0.8):
            self.release(key, owner)

    def place(self):
        """Shares a key with max_holders"""
        key, owner = self.key(places=True), self.owner()
        limit, lifetime = self.limit(key), self.lifetime('lease', 'lease', 'session')
        record = self.acquire(key, owner, mode='shared', lifetime=lifetime, limit=limit)
        if record['outcome'] == 'info':
            record = self.acquire(key, owner, mode='shared', lifetime=lifetime, limit=limit)
        if record['outcome'] != 'ok':
            return
        for _ in range(self.random.randint(0, 2)):
            what = self.random.choice(('extend', 'held', 'look', 'again', 'convert', 'sleep'))
            if what == 'extend':
                record = self.extend(key, owner)
            elif what == 'held':
                record = self.call('held', 'SELECT lock_is_held(%s, %s) AS held', key, owner, key=key, owner=owner)
            elif what == 'look':
                record = self.look(key)
            elif what == 'again':
                # the owner has a seat, so a smaller limit does not matter
                record = self.acquire(key, owner, mode='shared', limit=1)
            elif what == 'convert' and self.chance(0.3):
                wait = self.wait()
                record = self.call('convert', f'SELECT {GRANT} FROM lock_try_convert(%s, %s, %s, %s)',
                                   key, owner, 'exclusive', f'{wait} s', key=key, owner=owner, mode='exclusive', wait=wait)
            else:
                self.think(self.random.random() / 10)
            if record['outcome'] != 'ok':
                break
        dice = self.random.random()
        if dice < 0.7:
            self.release(key, owner)
        elif dice < 0.8:
            heir, ttl = f'{self.name}/{next(self.owners)}', self.ttl()
            self.call('transfer', f'SELECT {GRANT} FROM lock_transfer(%s, %s, %s, %s, %s)',
                      key, owner, heir, heir, f'{ttl} s', key=key, owner=owner, heir=heir, ttl=ttl)
            self.release(key, heir)
        elif dice < 0.85 and lifetime == 'session' and self.session.conn is not None:
            self.session.disconnect()

    def set(self):
        mode, limit = ('shared', self.random.choice((1, 2, 3, None))) if self.chance(0.4) else ('exclusive', None)
        keys = [self.key(places=mode == 'shared') for _ in range(self.random.randint(2, 4))]
        owner, ttl, wait = self.owner(), self.ttl(), self.wait()
        if self.run_of.limit(mode, limit) is not None:
            wait = 0		# a set with max_holders may not wait
        record = self.call('acquire_all',
                           f'SELECT {GRANT} FROM lock_try_acquire_all(%s, %s, %s, %s, %s, %s, max_holders => %s)',
                           keys, f'{ttl} s', owner, mode, f'{wait} s', owner, limit,
                           keys=sorted(set(keys)), owner=owner, mode=mode, lifetime='lease',
                           ttl=ttl, wait=wait, limit=self.run_of.limit(mode, limit))
        if record['outcome'] != 'ok':
            return
        if mode == 'exclusive':
            self.write(keys[0], owner)
        if self.chance(0.3):
            ttl = self.ttl()
            self.call('extend_all', 'SELECT lock_extend_all(%s, %s) AS number', owner, f'{ttl} s',
                      owner=owner, ttl=ttl)
        if self.chance(0.8):
            self.call('release_all', 'SELECT lock_release_all(%s) AS number', owner, owner=owner)

    def several(self):
        """Acquires several keys for one owner, to reach the role's quota and to exceed it"""
        owner, lifetime = self.owner(), self.lifetime('lease', 'lease', 'session', 'transaction')
        if lifetime == 'transaction' and self.call('begin', 'BEGIN')['outcome'] != 'ok':
            return
        keys = []
        for _ in range(self.random.randint(2, 4)):
            (key, mode, limit), savepoint = self.request(), self.session.in_transaction and self.chance(0.4)
            if key in keys:
                continue
            if savepoint:
                self.call('savepoint', 'SAVEPOINT s')
            record = self.acquire(key, owner, mode=mode, limit=limit, lifetime=lifetime, wait=self.wait() / 3)
            if record['outcome'] == 'info':
                return
            if record['outcome'] == 'ok':
                keys.append(key)
            if savepoint and self.session.in_transaction and (record.get('sqlstate') or self.chance(0.3)):
                self.call('rollback to', 'ROLLBACK TO s')
            elif record.get('sqlstate') and self.session.in_transaction:
                break
        self.think()
        if keys and lifetime != 'transaction' and self.chance(0.2):
            heir, ttl = f'{self.name}/{next(self.owners)}', self.ttl()
            self.call('transfer', f'SELECT {GRANT} FROM lock_transfer(%s, %s, %s, %s, %s)',
                      keys[0], owner, heir, heir, f'{ttl} s', key=keys[0], owner=owner, heir=heir, ttl=ttl)
        if lifetime == 'transaction':
            self.finish()
        elif self.session.conn is not None and self.chance(0.3):
            self.call('release_all', 'SELECT lock_release_all(%s) AS number', owner, owner=owner)
        elif self.session.conn is not None:
            for key in keys[:self.random.randint(0, len(keys))]:
                self.release(key, owner)

    def session_round(self):
        (key, mode, limit), owner = self.request(), self.owner()
        if self.acquire(key, owner, lifetime='session', mode=mode, limit=limit, ttl=self.ttl() + 0.2)['outcome'] != 'ok':
            return
        self.think()
        if mode == 'exclusive' or self.chance(0.2):
            self.write(key, owner)
        if self.chance(0.5):
            self.release(key, owner)
        elif self.chance(0.5) and self.session.conn is not None:
            self.session.disconnect()

    def relied(self):
        """Relies on a lease in a transaction that outlives the lease"""
        (key, mode, limit), owner = self.request(), self.owner()
        ttl = round(self.random.choice((0.005, 0.02, 0.05)) * (0.5 + self.random.random()), 4)
        record = self.acquire(key, owner, mode=mode, limit=limit, ttl=ttl)
        if record['outcome'] != 'ok' or self.call('begin', 'BEGIN')['outcome'] != 'ok':
            return
        row = record['rows'][0]
        savepoint = self.chance(0.3)
        if savepoint:
            self.call('savepoint', 'SAVEPOINT s')
        what = self.random.choice(('assert', 'fence', 'again'))
        if what == 'assert':
            record = self.call('assert', 'SELECT lock_assert(%s, %s) AS token', key, owner, key=key, owner=owner)
        elif what == 'fence':
            record = self.call('fence', 'SELECT lock_assert_fence(%s, %s, %s)', key, row['fencing_token'], owner,
                               key=key, owner=owner)
        else:
            record = self.acquire(key, owner, mode=mode, lifetime='transaction', limit=limit)
        if record['outcome'] == 'ok':
            self.think(min(0.3, max(0, row['expires'] - time.time()) + self.random.random() / 20))
            if savepoint and self.session.in_transaction and self.chance(0.4):
                self.call('rollback to', 'ROLLBACK TO s')
                self.think()
            if self.chance(0.3):
                self.call('held', 'SELECT lock_is_held(%s, %s) AS held', key, owner, key=key, owner=owner)
        if record['outcome'] != 'info':
            self.finish()
            if self.chance(0.5):
                self.release(key, owner)

    def transaction(self):
        (key, mode, limit), owner = self.request(), self.owner()
        level = self.random.choice(('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE'))
        if self.call('begin', f'BEGIN ISOLATION LEVEL {level}')['outcome'] != 'ok':
            return
        savepoint = self.chance(0.5)
        if savepoint:
            self.call('savepoint', 'SAVEPOINT s')
        record = self.acquire(key, owner, mode=mode, limit=limit, wait=self.wait() / 3,
                              lifetime=self.lifetime('lease', 'lease', 'session', 'transaction', 'transaction'))
        if record['outcome'] == 'ok':
            self.think()
            if self.chance(0.3):
                self.release(key, owner)
            if savepoint and self.session.in_transaction and self.chance(0.5):
                self.call('rollback to', 'ROLLBACK TO s')
                if mode == 'shared' and self.chance(0.5):
                    # the rollback gave up the seat
                    self.acquire(key, owner, mode=mode, limit=limit, lifetime='transaction', wait=self.wait() / 3)
                    self.think()
            if mode == 'exclusive' and level == 'READ COMMITTED' and self.session.in_transaction:
                self.write(key, owner)
        if record['outcome'] != 'info':
            self.finish()
            if self.chance(0.5):
                self.release(key, owner)

    def prepared(self):
        """Commits in two phases, through crashes in between"""
        (key, mode, limit), owner = self.request(), self.owner()
        if self.call('begin', 'BEGIN')['outcome'] != 'ok':
            return
        record = self.acquire(key, owner, mode=mode, limit=limit, wait=self.wait() / 3,
                              lifetime=self.random.choice(('lease', 'transaction')))
        if record['outcome'] != 'ok':
            return
        if mode == 'exclusive':
            self.write(key, owner)
        if not self.session.in_transaction:
            return
        name = f'{self.name}/{next(self.owners)}'
        record = self.call('prepare', f"PREPARE TRANSACTION '{name}'")
        if record['outcome'] == 'error' or record.get('tag') == 'ROLLBACK':
            return
        self.think()
        verb = 'ROLLBACK' if self.run_of.rolls_back_prepared and self.chance(0.2) else 'COMMIT'
        while True:
            record = self.call('finish', f"{verb} PREPARED '{name}'", verb=verb)
            if record['outcome'] == 'ok' or record.get('sqlstate') == '42704':
                break		# finished now, or before an answer was lost
            self.think(0.01)
        if self.chance(0.5):
            self.release(key, owner)

    def fetch(self):
        """Acquires a lock and reads a row under that lock in one statement"""
        key, owner, ttl, wait = self.key(), self.owner(), self.ttl(), self.wait()
        if self.call('begin', 'BEGIN')['outcome'] != 'ok':
            return
        record = self.call('fetch', 'SELECT value FROM lock_fetch(NULL::counter, %s, %s, %s, %s, %s)',
                           str(key_number(key)), f'{ttl} s', owner, f'{wait} s', key,
                           key=key, owner=owner, mode='exclusive', lifetime='lease', ttl=ttl, wait=wait)
        if record['outcome'] == 'ok':
            self.write(key, owner, value=record['rows'][0]['value'])
        if self.session.in_transaction:
            self.finish()
            self.release(key, owner)

    def stranger(self):
        """A client without a lease, or without one any more"""
        key, owner = self.key(), f'{self.name}/{self.random.randint(0, 5)}x'
        what = self.random.randint(0, 5)
        if what == 0:
            self.release(key, owner)
        elif what == 5:
            self.look(self.key(places=True))
        elif what == 1:
            self.extend(key, owner)
        elif what == 2:
            self.write(key, owner)
        elif what == 3:
            self.call('release_all', 'SELECT lock_release_all(%s) AS number', owner, owner=owner)
        else:
            self.call('transfer', f'SELECT {GRANT} FROM lock_transfer(%s, %s, %s, %s, %s)',
                      key, owner, owner + 'y', '', '1 s', key=key, owner=owner, heir=owner + 'y', ttl=1)

    def enqueue(self, key, owner):
        """lock_enqueue with an offer and a time to keep the ticket, each short or long"""
        offer = round(self.random.choice((0.005, 0.02, 0.05, 0.05, 0.3, 2.5)) * (0.5 + self.random.random()), 4)
        keep = round(self.random.choice((0.05, 0.3, 0.5, 3)) * (0.5 + self.random.random()), 4)
        return self.call('enqueue', f'SELECT {PLACE} FROM lock_enqueue(%s, %s, %s, %s, %s)',
                         key, owner, owner, f'{offer} s', f'{keep} s',
                         key=key, owner=owner, mode='exclusive', lifetime='lease', ttl=self.run_of.default_ttl,
                         offer=offer, keep=keep)

    def leave(self, key, owner):
        return self.call('leave', 'SELECT lock_leave(%s, %s) AS left', key, owner, key=key, owner=owner)

    def line(self):
        """Takes a ticket, and renews the ticket, leaves the line, or never returns"""
        key, owner = self.key(), self.owner()
        for _ in range(self.random.randint(1, 6)):
            block = self.chance(0.15)
            if block and self.call('begin', 'BEGIN')['outcome'] != 'ok':
                return
            savepoint = block and self.chance(0.5)
            if savepoint:
                self.call('savepoint', 'SAVEPOINT s')
            dice = self.random.random()
            if dice < 0.6:
                record = self.enqueue(key, owner)
            elif dice < 0.75:
                record = self.acquire(key, owner, wait=self.wait())
            elif dice < 0.83:
                record = self.acquire(key, owner, mode='shared', lifetime=self.lifetime('lease', 'session', 'transaction'))
            elif dice < 0.9:
                record = self.leave(key, owner)
            else:
                record = self.call('places', LINE, key, key=key)
            if block and self.session.in_transaction:
                if savepoint and self.chance(0.5):
                    self.call('rollback to', 'ROLLBACK TO s')
                    if self.chance(0.5):
                        record = self.enqueue(key, owner)
                if self.session.in_transaction and not self.finish():
                    continue
            if record['outcome'] == 'info' or record['outcome'] == 'refused' and self.chance(0.5):
                continue
            if record['op'] in ('enqueue', 'acquire') and record['outcome'] == 'ok' and \
               record['rows'][0]['status'] != 'queued':
                row = record['rows'][0]
                if self.use(key, owner, row['expires'], row['fencing_token']) and self.chance(0.9):
                    self.release(key, owner)
                return
            if record['op'] == 'leave' and self.chance(0.5):
                return
            self.think(self.random.choice((0, 0.005, 0.05, 0.2)) * self.random.random())

    def patient(self):
        """Renews its ticket until it is granted the key"""
        key, owner = self.key(), f'{self.name}/{next(self.owners)}'
        until = time.monotonic() + 3
        while time.monotonic() < until and not self.run_of.over():
            record = self.enqueue(key, owner)
            if record['outcome'] == 'ok' and record['rows'][0]['status'] != 'queued':
                self.write(key, owner)
                self.release(key, owner)
                return
            self.think(0.03)

    def hurried(self):
        """Gives up a wait by statement_timeout"""
        (key, mode, limit), owner = self.request(), self.owner()
        if self.call('set', f'SET statement_timeout = {self.random.randint(1, 20)}')['outcome'] != 'ok':
            return
        record = self.acquire(key, owner, mode=mode, limit=limit, wait=0.2)
        if record['outcome'] == 'info':
            return
        if self.call('set', 'SET statement_timeout = 0')['outcome'] == 'ok':
            self.release(key, owner)
        elif self.session.conn is not None:
            self.session.disconnect()		# the SET timed out, too

    def work(self):
        names = [name for name, _ in self.ROUNDS if self.run_of.may(name)]
        weights = [weight for name, weight in self.ROUNDS if self.run_of.may(name)]
        self.session.connect()
        while not self.run_of.over():
            name = self.random.choices(names, weights)[0]
            getattr(self, 'session_round' if name == 'session' else name)()
            if self.session.in_transaction:
                self.call('rollback', 'ROLLBACK')
            self.think()


class Admin(Client):
    """Forces, steals and sweeps from time to time"""

    def work(self):
        while not self.run_of.over():
            self.think(self.random.uniform(0.02, 0.2))
            key = self.key()
            what = self.random.randint(0, 3)
            if what == 0:
                self.call('force', "SELECT force_release(%s, 'history') AS forced", key, key=key)
            elif what == 1:
                owner, ttl = self.owner(), self.ttl()
                record = self.call(
                    'steal', f'SELECT {GRANT} FROM lock_steal(%s, %s, %s, %s, %s)',
                    key, owner, 'history', f'{ttl} s', owner,
                    key=key, owner=owner, mode='exclusive', lifetime='lease', ttl=ttl)
                if record['outcome'] == 'ok':
                    self.write(key, owner)
                    self.release(key, owner)
            else:
                self.call('sweep', 'SELECT lock_sweep(100)')


class Watch(threading.Thread):
    """Notes when the backends of closed or lost connections end"""

    def __init__(self):
        super().__init__(name='watch', daemon=True)
        self.left, self.ended = [], False

    def run(self):
        while not self.ended or self.left:
            for entry in list(self.left):
                record, (pid, since) = entry
                if since is None or began(pid) != since:
                    record['gone'] = time.monotonic()
                    self.left.remove(entry)
            time.sleep(0.005)


class Listener(threading.Thread):
    """Receives the events of the keys and notes the times"""

    def __init__(self, run, keys):
        super().__init__(name='listener', daemon=True)
        self.run_of, self.keys = run, keys
        self.ended = False

    def run(self):
        while not self.ended:
            try:
                conn = psycopg2.connect(self.run_of.server.dsn() + ' application_name=listener', connect_timeout=5)
                conn.autocommit = True
                with conn.cursor() as cursor:
                    channels = {}
                    for key in self.keys:
                        cursor.execute('SELECT lock_channel(%s)', (key,))
                        channels[cursor.fetchone()[0]] = key
                        cursor.execute(f'LISTEN {list(channels)[-1]}')
                self.hear(conn, channels)
                conn.close()
            except psycopg2.Error:
                time.sleep(0.02)

    def hear(self, conn, channels):
        while not self.ended:
            if not select.select([conn], [], [], 0.1)[0]:
                continue
            conn.poll()
            for notify in conn.notifies:
                self.run_of.history.events.append((time.monotonic(), channels[notify.channel], json.loads(notify.payload)))
            conn.notifies.clear()
