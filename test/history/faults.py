"""The faults of the runs. Each class is a run with one kind of fault."""

import os
import resource
import shutil
import signal
import struct
import subprocess
import time

import psycopg2

from clients import Session
from falsify import CALLS, LINES, POLICIES
from proxy import Proxy
from runs import Run
from server import LIMIT, SETTINGS, Server, began, signal_to


CHILDREN = ('checkpointer', 'background writer', 'walwriter', 'autovacuum launcher', 'atomic_lock')


class Calm(Run):
    """Nothing goes wrong"""

    name = 'calm'
    ways = CALLS


class Kill(Run):
    """Backends are terminated, cancelled or suspended; other children of the postmaster are
    suspended; the sweep is terminated"""

    name = 'kill'
    faults = 20
    rolls_back_prepared = True

    def plan(self):
        kinds = ('terminate', 'terminate', 'cancel', 'cancel', 'stop', 'stop', 'child', 'sweep')
        while True:
            yield (self.random.uniform(0.02, 0.15), self.random.choice(kinds),
                   [f'c{self.random.randrange(self.clients)}', round(self.random.uniform(0.01, 0.3), 3),
                    self.random.choice(CHILDREN)])

    def pid_of(self, client):
        rows = self.server.ask('SELECT pid FROM pg_stat_activity WHERE application_name = %s', client)
        return rows[0][0] if rows else None

    def named(self, title):
        return [pid for pid, name in self.server.children().items() if title in name]

    def stop(self, pids, seconds):
        """Suspends the processes for some seconds"""
        for pid in pids:
            signal_to(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            for pid in pids:
                signal_to(pid, signal.SIGCONT)

    def do(self, kind, detail):
        client, seconds, child = detail
        if kind == 'sweep':
            for pid in self.named('atomic_lock')[-1:]:
                signal_to(pid, signal.SIGTERM)
            return
        if kind == 'child':
            self.stop(self.named(child), seconds)
            return
        pid = self.pid_of(client)
        if kind == 'stop':
            self.stop([pid], seconds)
        elif pid:
            self.server.ask(f'SELECT pg_{kind}_backend(%s)', pid)


class Policies(Kill):
    """The faults of Kill, under policies with quotas of roles and history. Policies for other
    prefixes change meanwhile."""

    name = 'policies'
    faults = 20
    keys = 8
    places = 4
    ways = POLICIES
    policies = {'k:': {'role': 4, 'holders': 3}, 'k:collision-': {'role': 2}}
    ROLES = ('blue', 'green', 'red')

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.roles = {f'c{n}': self.ROLES[n % len(self.ROLES)] for n in range(self.clients)}

    def dsn(self, name):
        return f'{super().dsn(name)} user={self.roles.get(name, "postgres")}'

    def limit(self, mode, limit):
        most = self.policies['k:']['holders']
        return limit if mode != 'shared' else min(limit or most, most)

    def create_database(self):
        super().create_database()
        for role in self.ROLES:
            self.server.ask(f"""
                CREATE ROLE {role} LOGIN;
                GRANT SELECT, UPDATE ON counter TO {role};
                GRANT INSERT ON journal TO {role};
                SELECT lock_grant_access('{role}', 'user')""")

    def go(self):
        for prefix, limits in self.policies.items():
            self.server.ask('SELECT lock_set_policy(%s, max_holders => %s, max_keys_per_role => %s, history => true)',
                            prefix, *(limits.get(part) for part in ('holders', 'role')))
        super().go()

    def plan(self):
        for number, (pause, kind, detail) in enumerate(super().plan()):
            yield pause / 2, kind, detail
            yield pause / 2, 'policy', [f'k:{self.random.randint(1, 9)}/{number}', number % 3 > 0]

    def do(self, kind, detail):
        if kind != 'policy':
            super().do(kind, detail)
        elif detail[1]:
            self.server.ask('SELECT lock_set_policy(%s, max_keys_per_role => 1)', detail[0])
        else:
            self.server.ask("SELECT count(lock_drop_policy(prefix)) FROM lock_policies WHERE prefix LIKE '%/%'")

    def relax(self, cursor):
        cursor.execute("SELECT lock_set_policy('k:', history => true), lock_drop_policy('k:collision-')")

    def recorded(self, cursor):
        until = time.monotonic() + LIMIT
        while True:
            cursor.execute('SELECT lock_sweep(100000)')
            cursor.execute('SELECT key, fencing_token FROM lock_history WHERE ended_at IS NULL')
            left = cursor.fetchall()
            if not left or time.monotonic() > until:
                break
        self.wrong += [f'history: {key} by token {token} has no end' for key, token in left]
        cursor.execute("""SELECT key, mode, fencing_token AS token, owner_digest AS digest, role::text,
			extract(epoch FROM acquired_at)::float8 AS begin, extract(epoch FROM ended_at)::float8 AS end, ended_by AS by
			FROM lock_history""")
        self.history.grants = Session.rows(cursor)
        cursor.execute("""SELECT key, acquired_at FROM lock_history h WHERE random() < 100.0 / (SELECT count(*) FROM lock_history)
			AND ARRAY(SELECT fencing_token FROM lock_held_at(h.key, h.acquired_at) ORDER BY 1)
				<> ARRAY(SELECT fencing_token FROM lock_history o WHERE o.key = h.key
					AND o.acquired_at <= h.acquired_at AND h.acquired_at < o.ended_at ORDER BY 1)""")
        self.wrong += [f'history: lock_held_at({key}, {at}) is not what lock_history has' for key, at in cursor.fetchall()]


class Crash(Run):
    """SIGKILL of a backend or another child, after which the postmaster restarts all children; an
    immediate stop; SIGKILL of the whole server"""

    name = 'crash'
    faults = 5
    rolls_back_prepared = True
    def plan(self):
        while True:
            kind = self.random.choice(('backend', 'child', 'immediate', 'all'))
            yield self.random.uniform(0.3, 1.2), kind, [self.random.random(), self.random.choice(CHILDREN)]

    def do(self, kind, detail):
        dice, child = detail
        with self.lost():
            if kind in ('backend', 'child'):
                if kind == 'backend':
                    pids = sorted(self.server.backends())
                    pids = pids and [pids[int(dice * len(pids))]]
                else:
                    pids = [pid for pid, title in self.server.children().items() if child in title]
                for pid in pids:
                    signal_to(pid, signal.SIGKILL)
                # From the kill until its restart the postmaster refuses connections.
                while any(os.path.exists(f'/proc/{pid}') for pid in pids):
                    time.sleep(0.001)
            else:
                self.server.crash(kind)
                self.server.start()
            self.server.connect().close()


class Queue(Crash, Kill):
    """Clients take tickets, for which no connection waits, beside clients that wait in calls.
    Backends and the sweep end, and the server crashes and restarts."""

    name = 'queue'
    faults = 20
    lines = True
    ways = LINES
    default_ttl = 0.15
    settings = f"atomic_lock.default_ttl = '{round(default_ttl * 1000)} ms'"

    def plan(self):
        kill = Kill.plan(self)
        while True:
            for _ in range(self.random.randint(3, 12)):
                yield next(kill)
            yield (self.random.uniform(0.1, 0.6), self.random.choice(('backend', 'child', 'immediate', 'all', 'restart')),
                   [self.random.random(), self.random.choice(CHILDREN)])

    def do(self, kind, detail):
        if kind == 'restart':
            with self.lost():
                self.server.stop('fast')
                self.server.start()
        elif kind in ('backend', 'child', 'immediate', 'all') and len(detail) == 2:
            super().do(kind, detail)
        else:
            Kill.do(self, kind, detail)


class Cut(Run):
    """Connections break, before the server has the call, or after it has executed the call and
    before the client has the answer"""

    name = 'cut'
    admins = 0			# otherwise the expected answer to a repeated call would be unknown

    def prepare(self):
        super().prepare()
        self.proxies = {}
        for n in range(self.clients + self.admins):
            directory = f'{self.directory}/p{n}'
            self.proxies[f'c{n}'] = Proxy(directory, f'{self.server.socket}/.s.PGSQL.5432',
                                          f'{self.seed}/{n}')

    def dsn(self, name):
        return f'host={self.proxies[name].directory} port=5432 user=postgres dbname=history application_name={name}'

    def before_call(self, session, operation):
        self.proxies[session.name].draw()

    def do(self, kind, detail):
        """Nothing: in a replay the proxies draw again"""

    def unseen(self, session):
        return self.proxies[session.name].unseen()

    def torment(self):
        super().torment()
        for proxy in self.proxies.values():
            for moment, how in proxy.cuts:
                self.history.faults.append((moment, moment, f'cut {how}', None))
            proxy.calm = True

    def finish(self):
        for proxy in self.proxies.values():
            proxy.close()
        super().finish()


class Failover(Run):
    """The primary is lost, and a standby that lagged is promoted. Leases may be lost, but tokens
    rise."""

    name = 'failover'
    rolls_back_prepared = True
    synchronous = False
    unfinished = True
    excused = (r'WARNING: +(canceling wait|.*synchronous)', )

    def prepare(self):
        super().prepare()
        self.standby = Server(self.bindir, self.directory, self.name + '-standby', self.settings)
        self.standby.clone(self.server, '')
        self.standby.start()
        if self.synchronous:
            self.server.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self.server.ask('SELECT pg_reload_conf()')
            self.standby_is('sync')
        else:
            self.standby_is('async')

    def standby_is(self, state):
        until = time.monotonic() + LIMIT
        while self.server.ask('SELECT sync_state FROM pg_stat_replication') != [(state,)]:
            if time.monotonic() > until:
                raise RuntimeError(f'the standby does not become {state}')
            time.sleep(0.05)

    def plan(self):
        for _ in range(3):
            yield self.seconds / 8, 'lag', 0.1 + self.random.random() / 4
        yield self.random.uniform(0, self.seconds / 8), 'promote', self.random.uniform(0.05, 0.4)

    def senders(self):
        return [pid for pid, title in self.server.children().items() if 'walsender' in title]

    def do(self, kind, detail):
        senders = self.senders()
        for pid in senders:
            signal_to(pid, signal.SIGSTOP)
        time.sleep(detail)
        if kind == 'lag':
            for pid in senders:
                signal_to(pid, signal.SIGCONT)
            return
        with self.lost(self.crashes, *[self.failovers] * (not self.synchronous)):
            self.server.crash('all')
            self.standby.promote()
            self.server, self.standby = self.standby, self.server

    def finish(self):
        self.standby.remove()
        super().finish()


class Synchronous(Failover):
    """The same with a synchronous standby: no acknowledged grant is lost"""

    name = 'synchronous'
    synchronous = True


class Bouncer(Run):
    """200 clients share ten connections in transaction mode"""

    name = 'pgbouncer'
    clients = 200
    patience = 0.2
    keys = 20
    places = 4
    greeting = 'SELECT 1'
    without = ('session', 'hurried')		# these rounds need a connection of their own
    PROGRAM = '/usr/sbin/pgbouncer'

    @classmethod
    def impossible(cls):
        return None if os.path.exists(cls.PROGRAM) else f'there is no {cls.PROGRAM}'

    def prepare(self):
        super().prepare()
        self.pooler = f'{self.directory}/pooler'
        os.makedirs(self.pooler)
        with open(f'{self.pooler}/ini', 'w', encoding='utf-8') as ini:
            ini.write(f"""[databases]
history = host={self.server.socket} port=5432 dbname=history user=postgres
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = {self.pooler}
unix_socket_mode = 0700
auth_type = any
pool_mode = transaction
default_pool_size = 10
max_client_conn = 400
ignore_startup_parameters = extra_float_digits,application_name
logfile = {self.pooler}/log
pidfile = {self.pooler}/pid
""")
        subprocess.run([self.PROGRAM, '-q', '-d', f'{self.pooler}/ini'], check=True, timeout=LIMIT)

    def dsn(self, name):
        return f'host={self.pooler} port=5432 user=postgres dbname=history'

    def leave(self, record, backend):
        """The pooler's connection has an unknown fate"""
        super().leave(record, None)

    def quiet(self, cursor):
        """Checks only that no connection is in a transaction, since the pooler keeps them open"""

    def finish(self):
        try:
            with open(f'{self.pooler}/pid', encoding='utf-8') as pid:
                signal_to(int(pid.read()), signal.SIGINT)
        except OSError:
            pass
        super().finish()
        shutil.rmtree(self.pooler, ignore_errors=True)


class Clock(Run):
    """The server's clock steps, and jumps back and forth"""

    name = 'clock'
    faults = 6

    @classmethod
    def impossible(cls):
        if os.environ.get('AL_POSTGRES'):
            return 'a library that moves the clock does not go with what watches the memory'
        return None

    def prepare(self):
        library = f'{self.directory}/clock.so'
        subprocess.run(['cc', '-std=gnu11', '-Wall', '-Wextra', '-Werror', '-O2', '-fPIC', '-shared', '-o', library,
                        f'{os.path.dirname(os.path.abspath(__file__))}/clock.c'], check=True)
        self.file = f'{self.directory}/clock.offset'
        with open(self.file, 'wb') as file:
            file.write(struct.pack('q', 0))
        self.highest = 0
        self.steps.clear()
        self.server = Server(self.bindir, self.directory, self.name, self.settings, env={
            'LD_PRELOAD': library, 'AL_CLOCK': self.file})
        self.server.create()
        self.server.start()
        self.create_database()
        moved = self.server.ask("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0]
        self.set_clock(1000)
        moved = self.server.ask("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0] - moved
        self.set_clock(0)
        self.steps.clear()
        if moved < 1000:
            raise RuntimeError(f'the clock of this server does not step: 1000 s are {moved}')

    def set_clock(self, seconds):
        begin = time.monotonic()
        with open(self.file, 'r+b', buffering=0) as file:
            file.write(struct.pack('q', round(seconds * 1e6)))
        # The clock is unknown while we set it.
        self.steps += [(begin, None), (time.monotonic(), seconds)]
        self.highest = max(self.highest, seconds)

    def plan(self):
        while True:
            if self.random.random() < 0.7:
                yield self.random.uniform(0.1, 0.8), 'step', self.random.choice(
                    (-288, -3600, -1, -0.01, 0, 0, 0.01, 1, 288, 3600)) * self.random.random()
            else:
                yield (self.random.uniform(0.1, 0.5), 'strobe',
                       [self.random.choice((0.004, 0.1, 3, 262)), self.random.choice((0.001, 0.01, 0.1)),
                        self.random.randint(5, 30)])

    def do(self, kind, detail):
        if kind == 'step':
            self.set_clock(detail)
            return
        width, period, times = detail
        for n in range(times):
            self.set_clock(width if n % 2 else -width)
            time.sleep(period)
            if self.over():
                break
        self.set_clock(0)

    def heal(self):
        # Leases that were granted while the clock was ahead must expire.
        self.set_clock(self.highest + 10)


class Disk(Run):
    """No space is left for WAL and tables"""

    name = 'disk'
    faults = 3
    allowed = ('57014', '53100', '53200', '58030')
    excused = (r'PANIC: .*No space left', r'signal 6:')
    settings = """min_wal_size = 2MB
max_wal_size = 8MB
shared_buffers = 16MB
wal_recycle = off"""
    place = os.environ.get('AL_HISTORY_DISK')

    @classmethod
    def impossible(cls):
        return None if cls.place else 'no small file system could be mounted'

    def prepare(self):
        self.server = Server(self.bindir, self.directory, self.name, self.settings, data=f'{self.place}/data')
        self.server.program('initdb', '-D', self.server.data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8',
                            '--locale=C.UTF-8', '-N', '--wal-segsize=1')
        self.server.configure(SETTINGS)
        self.server.start()
        self.create_database()
        self.server.ask('CREATE TABLE filler (t text)')

    def plan(self):
        while True:
            yield self.random.uniform(0.3, 1), 'full', self.random.uniform(0.1, 0.5)

    def do(self, kind, detail):
        with self.lost():
            self.fill(detail)
            self.revive()

    def fill(self, seconds):
        filler = f'{self.place}/filler'
        try:
            with open(filler, 'wb', buffering=0) as out:
                for size in (1 << 20, 1 << 16, 1 << 12, 1):
                    try:
                        while True:
                            out.write(b'\0' * size)
                    except OSError:
                        continue
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                # needs new WAL files and new pages
                try:
                    self.server.ask('SELECT pg_switch_wal()', patience=0)
                    self.server.ask("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 1000)",
                                    patience=0)
                except psycopg2.Error:
                    time.sleep(0.02)
        finally:
            os.unlink(filler)

    def revive(self):
        """The server must come back once there is space; if the postmaster gave up, after a start"""
        until = time.monotonic() + LIMIT
        while True:
            try:
                self.server.connect(seconds=1).close()
                return
            except psycopg2.OperationalError:
                if time.monotonic() > until:
                    raise
                if self.server.postmaster() is None or began(self.server.postmaster()) is None:
                    self.server.start(check=False)

    def heal(self):
        self.revive()


class Memory(Kill):
    """Backends get no more memory than they have"""

    name = 'memory'
    faults = 20
    allowed = ('57014', '53200')
    # The greeting sets the backend's name after the backend has taken all kinds of snapshots:
    # GetSnapshotData() allocates two arrays when a kind is first used, and if the second allocation
    # fails, PostgreSQL crashes the next time.
    greeting = "SET client_min_messages = error; SELECT lock_is_held('k:1', '?'); SET application_name = {}"

    @classmethod
    def impossible(cls):
        return "what watches the server's memory needs more of it" if os.environ.get('AL_POSTGRES') else None

    def plan(self):
        while True:
            yield (self.random.uniform(0.01, 0.05), 'squeeze',
                   [f'c{self.random.randrange(self.clients)}', self.random.choice((0, 0, 0, 64, 256)),
                    round(self.random.uniform(0.02, 0.3), 3)])

    def dsn(self, name):
        return self.server.dsn()

    def do(self, kind, detail):
        client, kilobytes, seconds = detail
        # A new backend allocates most.
        pid = old = self.pid_of(client)
        if old:
            self.server.ask('SELECT pg_terminate_backend(%s)', old)
        while pid in (old, None) and not self.over():
            pid = self.pid_of(client)
        if pid is None:
            return
        try:
            with open(f'/proc/{pid}/statm', encoding='utf-8') as statm:
                size = int(statm.read().split()[0]) * resource.getpagesize()
            _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (size + kilobytes * 1024, hard))
            time.sleep(seconds)
            resource.prlimit(pid, resource.RLIMIT_AS, (hard, hard))
        except (OSError, ProcessLookupError):
            pass			# the backend has ended


RUNS = {run.name: run for run in (Calm, Kill, Policies, Crash, Queue, Cut, Failover, Synchronous, Bouncer, Clock, Disk, Memory)}
