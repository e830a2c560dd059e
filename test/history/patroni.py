"""Three servers under Patroni, and clients that work through all events.

Patroni, etcd and HAProxy are Debian's, with the settings of doc/failover.md. The test replaces only
addresses, passwords, directories, and settings that a test of minutes needs. One history has all
events: a switchover, a killed server, the loss of a host with all its processes, a suspended
synchronous standby, and a primary whose Patroni is suspended. No acknowledged grant may be lost,
whatever synchronous_commit the client has. Half of the clients connect through HAProxy, half try
all hosts. During each event a transaction is prepared; its key is held until the commit after the
event.
"""

import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import psycopg2

from runs import Run
from server import LIMIT, SETTINGS, Server, signal_to

DOCUMENT = os.environ.get('AL_DOC_HA') or os.path.join(os.path.dirname(__file__), '../../doc/failover.md')
LEVELS = ('off', 'local', 'remote_write', 'on', 'remote_apply')
PROGRAMS = {'patroni': '/usr/bin/patroni', 'patronictl': '/usr/bin/patronictl', 'etcd': '/usr/bin/etcd', 'haproxy': '/usr/sbin/haproxy'}
# Seconds that an event may take; no other rule judges how long it took.
PATIENCE = max(LIMIT, 120)


def block(language):
    """The first block of this language in the document"""
    with open(DOCUMENT, encoding='utf-8') as text:
        return re.search(rf'^```{language}\n(.*?)^```', text.read(), re.M | re.S).group(1)


def free_ports(number):
    places = [socket.socket() for _ in range(number)]
    for place in places:
        place.bind(('127.0.0.1', 0))
    ports = [place.getsockname()[1] for place in places]
    for place in places:
        place.close()
    return ports


def old_patroni():
    """Whether Patroni has an etcd3 client that would let a suspended Patroni take the lock from
    the new primary, see doc/failover.md"""
    words = subprocess.run([PROGRAMS['patroni'], '--version'], check=True, stdout=subprocess.PIPE, text=True).stdout
    return tuple(int(n) for n in re.findall(r'\d+', words)[:3]) < (3, 0, 3)


def until(what, condition, seconds=PATIENCE):
    """Waits until the condition is true and returns its value"""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise RuntimeError(f'still not after {seconds} s: {what}')
        time.sleep(0.1)


def daemon(log, *command, environment=None):
    """Starts a process that ends with us, even if we are killed"""
    # From the working directory test/cluster/patroni.pl sees whether the process was left behind.
    with open(log, 'ab') as out:
        return subprocess.Popen(['setpriv', '--pdeathsig', 'KILL', *command], stdin=subprocess.DEVNULL, stdout=out,
                                stderr=out, start_new_session=True, cwd=os.path.dirname(log), env=environment)


def end(process, number=signal.SIGKILL):
    if process is not None:
        signal_to(process.pid, signal.SIGCONT)
        signal_to(process.pid, number)
        process.wait()


class Reaper(threading.Thread):
    """Waits for servers whose parents have ended. No other process can, and a zombie would look
    like a running server."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ended = threading.Event()
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)		# PR_SET_CHILD_SUBREAPER

    def run(self):
        while not self.ended.wait(0.02):
            while self.one():
                pass

    @staticmethod
    def one():
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if dead is None:
                return False
            with open(f'/proc/{dead.si_pid}/comm', encoding='utf-8') as name:
                # Other processes belong to those who started them.
                return name.read() == 'postgres\n' and os.waitpid(dead.si_pid, 0)
        except OSError:
            return False


class Node(Server):
    """A server with its Patroni"""

    def __init__(self, bindir, directory, name, ports, password):
        super().__init__(bindir, directory, name)
        self.port, self.rest = ports
        self.configuration = f'{directory}/{name}.yml'
        self.password = password
        self.patroni = None
        self.memory = []		# ids of shared memory of killed servers
        os.makedirs(self.socket)

    def dsn(self, database='history'):
        return f'host={self.socket} port={self.port} user=postgres dbname={database}'

    def write(self, etcd):
        """Writes the configuration of doc/failover.md with our addresses"""
        import yaml			# Patroni needs yaml, too

        local, directory = '127.0.0.1', os.path.dirname(self.data)
        conf = yaml.safe_load(block('yaml').replace('secret', self.password))
        conf['name'] = self.name
        coordinator = conf.pop('etcd')
        coordinator['hosts'] = [f'{local}:{etcd}']
        conf['etcd' if old_patroni() else 'etcd3'] = coordinator
        conf['restapi'].update(listen=f'{local}:{self.rest}', connect_address=f'{local}:{self.rest}')
        conf['watchdog'] = {'mode': 'off'}
        conf['log'] = {'level': 'INFO'}
        parameters = conf['bootstrap']['dcs']['postgresql']['parameters']
        for line in SETTINGS.strip().splitlines():
            name, _, value = line.partition(' = ')
            if name not in ('listen_addresses', 'port', 'shared_preload_libraries'):
                parameters[name] = value.strip("'")
        # With mmap a killed server leaves nothing in /dev/shm.
        parameters['dynamic_shared_memory_type'] = 'mmap'
        conf['bootstrap']['initdb'] += [{'locale': 'C.UTF-8'}, 'no-sync']
        server = conf['postgresql']
        server.update(listen=f'{local}:{self.port}', connect_address=f'{local}:{self.port}', data_dir=self.data,
                      bin_dir=self.bindir, pgpass=f'{directory}/pgpass-{self.name}')
        # Our user may not be postgres; Patroni connects by TCP.
        server['pg_hba'].insert(0, 'local all all trust')
        server['parameters'] = {'unix_socket_directories': self.socket, 'logging_collector': 'on', 'log_rotation_age': 0,
                                'log_directory': directory, 'log_filename': os.path.basename(self.log)}
        with open(self.configuration, 'w', encoding='utf-8', opener=lambda p, f: os.open(p, f, 0o600)) as out:
            json.dump(conf, out)		# JSON is also YAML

    def run(self):
        directory = os.path.dirname(self.data)
        self.patroni = daemon(f'{directory}/patroni-{self.name}.log', PROGRAMS['patroni'], self.configuration)

    def says(self, path, method='GET', data=None):
        """(status, answer) of this node's Patroni to a request without a password"""
        request = urllib.request.Request(f'http://127.0.0.1:{self.rest}/{path}', data and json.dumps(data).encode(), method=method)
        try:
            with urllib.request.urlopen(request, timeout=1 if method == 'GET' else PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return None, ''

    def leads(self):
        return self.says('primary')[0] == 200

    def killed(self):
        """Kills the server and all its processes, each by its pid. The standbys do not get the
        last commits."""
        for pid, title in self.children().items():
            if 'walsender' in title:
                signal_to(pid, signal.SIGSTOP)
        time.sleep(0.3)
        pids = [self.postmaster(), *self.children()]
        with open(f'{self.data}/postmaster.pid', encoding='utf-8') as lines:
            self.memory.append(lines.read().split('\n')[6].split()[1])
        for pid in pids:
            signal_to(pid, signal.SIGKILL)
        for pid in pids:
            while os.path.exists(f'/proc/{pid}'):
                time.sleep(0.01)

    def remove(self):
        end(self.patroni)
        for pid in (self.postmaster(), *self.children()):
            signal_to(pid, signal.SIGCONT)
        self.stop('immediate')
        # Remove shared memory that the next server on these data did not.
        with open('/proc/sysvipc/shm', encoding='utf-8') as blocks:
            for number, attached in [(line.split()[1], line.split()[6]) for line in blocks]:
                if number in self.memory and attached == '0':
                    subprocess.run(['ipcrm', '-m', number], check=False)
        shutil.rmtree(self.data, ignore_errors=True)


class Cluster:
    """Servers under Patroni, one etcd, and HAProxy, as in doc/failover.md"""

    def __init__(self, bindir, directory, names='abc'):
        self.directory, self.route = directory, f'{directory}/route'
        self.etcd = self.haproxy = None
        self.reaper = Reaper()
        ports = free_ports(2 + 2 * len(names))
        self.listen, self.peers = ports[:2]
        self.password = secrets.token_hex(16)
        self.nodes = [Node(bindir, directory, name, ports[2 + 2 * n:4 + 2 * n], self.password) for n, name in enumerate(names)]

    def begin(self):
        """Starts everything; returns the primary"""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit('terminated'))	# runs the clean-up
        listen, peers = (f'http://127.0.0.1:{port}' for port in (self.listen, self.peers))
        self.reaper.start()
        self.etcd = daemon(f'{self.directory}/etcd.log', PROGRAMS['etcd'], environment=self.environment(listen, peers))
        for node in self.nodes:
            node.write(self.listen)
            node.run()
        leader = self.whole_again()
        os.makedirs(self.route)
        conf = re.sub(r'bind .*', f'bind unix@{self.route}/.s.PGSQL.5432 mode 600', block('haproxy'))
        conf = re.sub(r'^ *server .*\n', '', conf, flags=re.M) + ''.join(
            f'    server {n.name} unix@{n.socket}/.s.PGSQL.{n.port} check addr 127.0.0.1 port {n.rest}\n' for n in self.nodes)
        with open(f'{self.directory}/haproxy.cfg', 'w', encoding='utf-8') as out:
            out.write(conf)
        self.haproxy = daemon(f'{self.directory}/haproxy.log', PROGRAMS['haproxy'], '-db', '-f', f'{self.directory}/haproxy.cfg')
        return leader

    def environment(self, listen, peers):
        """The environment of doc/failover.md for etcd, with our addresses and without the other hosts"""
        text = re.sub(r',etcd-[bc]=[^,\n]*', '', block('ini'))
        for port, ours in ((2379, listen), (2380, peers)):
            text = re.sub(rf'http://[^:]*:{port}', ours, text)
        settings = dict(line.split('=', 1) for line in text.splitlines() if not line.startswith('#'))
        if not old_patroni():
            del settings['ETCD_ENABLE_V2']
        return dict(os.environ, ETCD_DATA_DIR=f'{self.directory}/etcd', **settings)

    def end(self):
        for node in self.nodes:
            end(node.patroni)		# first, so that no node is promoted now
        for node in self.nodes:
            node.remove()
        end(self.haproxy)
        end(self.etcd)
        self.reaper.ended.set()

    def whole_again(self, but=None):
        """Waits until the primary has a synchronous standby that Patroni knows, and all other
        standbys; returns the primary"""
        others = [n for n in self.nodes if n is not but]

        def whole():
            leaders = [n for n in others if n.leads()]
            if len(leaders) != 1:
                return None
            try:
                roles = [m['role'] for m in json.loads(leaders[0].says('cluster')[1])['members']]
                states = [state for state, in leaders[0].ask(
                    "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'", database='postgres', patience=1)]
            except (psycopg2.Error, ValueError, KeyError):
                return None
            return leaders[0] if 'sync_standby' in roles and 'sync' in states and len(states) == len(others) - 1 else None

        return until('the cluster is whole', whole)


class Patroni(Run):
    """A primary and two standbys, one of them synchronous. No event may lose an acknowledged
    grant."""

    name = 'patroni'
    clients = 15
    reconnect = 0.2
    # COMMIT PREPARED follows the session's synchronous_commit, which may be off here.
    without = ('prepared',)
    rolls_back_prepared = True
    # pg_rewind copies prepared transactions, and recovery finds them again in the WAL.
    excused = (r'WARNING: +(canceling wait|.*synchronous|removing future two-phase)', )
    unfinished = True
    relaxed = {f'c{n}' for n in range(clients) if n % len(LEVELS) < LEVELS.index('on')}

    @classmethod
    def impossible(cls):
        missing = [path for path in PROGRAMS.values() if not os.access(path, os.X_OK)]
        return f'there is no {" and no ".join(missing)}' if missing else None

    # -- the cluster --------------------------------------------------------

    def prepare(self):
        self.direct, self.gaps, self.keepers = True, {}, []
        self.cluster = Cluster(self.bindir, self.directory)
        self.nodes, self.route = self.cluster.nodes, self.cluster.route
        try:
            self.server = self.cluster.begin()
            self.create_database()
        except BaseException:
            self.finish()
            raise

    def finish(self):
        self.cluster.end()

    def whole_again(self, but=None):
        self.server = self.cluster.whole_again(but)

    def standby(self):
        """The synchronous standby"""
        name = self.server.ask("SELECT application_name FROM pg_stat_replication WHERE sync_state = 'sync'")[0][0]
        return next(n for n in self.nodes if n.name == name)

    def dsn(self, name):
        number = int(name[1:])
        level = LEVELS[number % len(LEVELS)] if number < self.clients else 'on'
        if self.direct and number % 2:
            ports = ','.join(str(n.port) for n in self.nodes)
            return self.conninfo('127.0.0.1,127.0.0.1,127.0.0.1', ports, name, level) + f' password={self.cluster.password}'
        return self.conninfo(self.route, 5432, name, level)

    @staticmethod
    def conninfo(hosts, ports, name, level):
        """The connection string of doc/failover.md, with our addresses"""
        return re.sub('host=.* dbname=[^ ]*', f'host={hosts} port={ports} dbname=history', block('conninfo').strip()) + \
            f" user=postgres application_name={name} options='-c synchronous_commit={level}'"

    # -- events -------------------------------------------------------------

    def torment(self):
        self.keepers = [Keeper(self, n, level) for n, level in enumerate(LEVELS)]
        for keeper in self.keepers:
            keeper.start()
        super().torment()

    def plan(self):
        for kind in ('switchover', 'killed', 'lost', 'standby', 'orphan'):
            yield self.seconds / 5, kind, None

    def do(self, kind, detail):
        before, begin = self.server, time.monotonic()
        self.begun = begin
        self.prepares()
        getattr(self, f'do_{kind}')()
        self.kept(kind)
        self.commits_prepared(kind)
        self.swept(kind)
        self.gaps[kind] = self.gap(begin)
        if kind != 'standby' and self.server is before:
            self.wrong.append(f'{kind}: {before.name} is the primary again')

    def after(self, what, but):
        """Waits for the next primary"""
        leader = until(f'a primary after {what}', lambda: next((n for n in self.nodes if n is not but and n.leads()), None))
        # the last releases may be lost
        self.crashes.append((self.begun, time.monotonic()))
        return leader

    def paused(self):
        """Suspends the Patroni of the primary and returns the primary. Tries again if Patroni had
        just found that no standby streams, since then no standby could be promoted."""
        while True:
            self.whole_again()
            signal_to(self.server.patroni.pid, signal.SIGSTOP)
            if any('"sync_standby"' in n.says('cluster')[1] for n in self.nodes if n is not self.server):
                return self.server
            signal_to(self.server.patroni.pid, signal.SIGCONT)

    def do_switchover(self):
        old, new = self.server, self.standby()
        self.refused_to_strangers()
        done = subprocess.run([PROGRAMS['patronictl'], '-c', old.configuration, 'switchover', 'shop', '--candidate', new.name, '--force'],
                              check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise RuntimeError(f'switchover: {done.stdout}')
        self.after('the switchover', old)
        self.whole_again()

    def refused_to_strangers(self):
        """Without Patroni's password a client can read, but change nothing"""
        for node in self.nodes:
            for method, path, data in (('PATCH', 'config', {'synchronous_mode': False}), ('POST', 'restart', {}), ('POST', 'reinitialize', {}),
                                       ('POST', 'switchover', {'leader': self.server.name, 'candidate': self.standby().name})):
                status = node.says(path, method, data)[0]
                if status != 401:
                    raise RuntimeError(f'{method} {path} without a password: {status} of {node.name}')

    def do_killed(self):
        old = self.server
        old.killed()
        self.after('the kill', old)
        self.whole_again()

    def do_lost(self):
        old = self.paused()
        old.killed()
        end(old.patroni)
        self.after('the loss of its host', old)
        self.whole_again(but=old)
        old.run()
        self.whole_again()

    def do_standby(self):
        """Suspends all processes of the standby, so that no connection ends"""
        lost = self.standby()
        pids = [lost.patroni.pid, lost.postmaster(), *lost.children()]
        for pid in pids:
            signal_to(pid, signal.SIGSTOP)
        try:
            until('another synchronous standby', lambda: self.standby_is_not(lost))
        finally:
            for pid in pids:
                signal_to(pid, signal.SIGCONT)
        self.whole_again()

    def standby_is_not(self, lost):
        rows = self.server.ask("SELECT application_name FROM pg_stat_replication WHERE sync_state = 'sync'")
        return rows and rows != [(lost.name,)]

    def do_orphan(self):
        """Suspends the Patroni of the primary; the primary continues"""
        self.by_route(self.server)
        stray = Stray(self.server)
        stray.acquires('stray:kept')
        old = self.paused()
        try:
            new = self.after('Patroni stands still', old)
            self.whole_again(but=old)
            self.wrong += [f'orphan: {what}' for what in stray.judged(new, self)]
        finally:
            signal_to(old.patroni.pid, signal.SIGCONT)
        self.whole_again()
        grants = old.ask("SELECT key FROM app_lock WHERE key = 'stray:relaxed'")
        if not old.ask('SELECT pg_is_in_recovery()')[0][0] or grants:
            self.wrong.append(f'orphan: it has come back with {grants}')

    def by_route(self, old):
        """Moves all clients to HAProxy, which asks Patroni; a client that tries all hosts may
        stay at an orphan. The connections of HAProxy do not use TCP here."""
        self.direct = False
        odd = [f'c{n}' for n in range(1, self.clients + self.admins, 2)]
        until('all come by HAProxy', lambda: old.ask("""
            SELECT count(CASE WHEN client_addr IS NOT NULL THEN pg_terminate_backend(pid) END) = 0
                    AND count(DISTINCT application_name) FILTER (WHERE client_addr IS NULL AND application_name = ANY (%s)) = %s
                FROM pg_stat_activity WHERE backend_type = 'client backend'""",
                                                               odd, len(odd))[0][0])

    # -- judgement ----------------------------------------------------------

    def swept(self, kind):
        """The background sweep must work on the current primary"""
        self.server.ask('SELECT lock_acquire(%s, %s)', f'swept:{kind}', '1 ms')
        until(f'the lease is swept after {kind}',
              lambda: self.server.ask('SELECT count(*) FROM app_lock WHERE key = %s', f'swept:{kind}') == [(0,)])

    def prepares(self):
        self.server.ask("BEGIN; SELECT lock_acquire('prepared', '1 hour', 'preparer'); PREPARE TRANSACTION 'prepared'")

    def commits_prepared(self, kind):
        """The prepared transaction must hold its key until its commit and afterwards"""
        other = "SELECT (lock_try_acquire('prepared', '1 hour', 'other')).status"
        found = [self.server.ask(other)[0][0]]
        self.server.ask("COMMIT PREPARED 'prepared'")
        found += [self.server.ask(other)[0][0], self.server.ask("SELECT lock_release('prepared', 'preparer')")[0][0]]
        if found != ['pending', 'held', True]:
            self.wrong.append(f'{kind}: what was prepared: {found}')

    def kept(self, when):
        """The keepers must have all grants that were acknowledged to them"""
        for keeper in self.keepers:
            acknowledged = list(keeper.keys)
            held = {key for key, in self.server.ask('SELECT key FROM lock_held(%s)', keeper.name)}
            lost = [key for key in acknowledged if key not in held]
            if lost:
                self.wrong.append(f'loss: {when} has lost {len(lost)} of {len(acknowledged)} grants, such as {lost[-1]}')

    def gap(self, begin):
        """The longest time without an acknowledged grant since begin"""
        moments = [begin] + sorted(r['comp'] for r in self.history.records if r['op'] == 'acquire'
                                   and r.get('outcome') == 'ok' and r['comp'] >= begin) + [time.monotonic()]
        return max(b - a for a, b in zip(moments, moments[1:]))

    def judge(self):
        for keeper in self.keepers:
            keeper.join(PATIENCE)
            if keeper.failure is not None:
                self.wrong.append(f'recipe: {keeper.failure!r}')
        self.kept('the end')
        for keeper in self.keepers:
            # A transaction may release at most a thousand keys.
            until('all is released', lambda k=keeper: self.server.ask(
                'SELECT count(lock_try_release(key, %s)) FROM (SELECT key FROM lock_held(%s) LIMIT 500) h', k.name, k.name) == [(0,)])
        super().judge()
        for node in self.nodes:
            if node is not self.server:
                self.wrong += [f'log of {node.name}: {line}' for line in node.shameful(self.excused)]

    def summary(self):
        return super().summary() + f', {sum(len(k.keys) for k in self.keepers)} leases were kept, ' + 'without a grant for: ' + \
            ', '.join(f'{kind} {gap:.1f} s' for kind, gap in self.gaps.items())


class Keeper(threading.Thread):
    """Acquires leases as doc/failover.md says, and keeps them all"""

    def __init__(self, run, number, level):
        super().__init__(name=f'k{number}', daemon=True)
        self.run_of, self.level = run, level
        self.keys, self.failure = [], None

    def run(self):
        recipe = {}
        exec(block('python'), recipe)		# pylint: disable=exec-used
        conninfo = self.run_of.conninfo(self.run_of.route, 5432, self.name, self.level)
        try:
            while not self.run_of.over():
                key = f'{self.name}:{len(self.keys)}'
                status = recipe['acquire'](lambda: psycopg2.connect(conninfo), key, self.name, '1 hour')
                if status not in ('acquired', 'reacquired'):
                    raise RuntimeError(f'{key} is {status}')
                self.keys.append(key)
                time.sleep(0.05)
        except Exception as failure:		# shown by the run
            self.failure = failure


class Stray:
    """A client that stays at a primary that has lost its cluster"""

    def __init__(self, node):
        self.node = node
        self.conn = self.connect()
        self.token = None

    def connect(self):
        conn = psycopg2.connect(self.node.dsn(), application_name='stray')
        conn.autocommit = True
        return conn

    def ask(self, sql, conn=None):
        with (conn or self.conn).cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]

    def acquires(self, key):
        self.token = self.ask(f"SELECT (lock_acquire('{key}', '1 hour', 'stray')).fencing_token")

    def cancelled(self, sql):
        """Cancels a statement that waits for a standby; returns the SQLSTATE that the client gets"""
        conn, told = self.connect(), []

        def send():
            try:
                told.append(self.ask(sql, conn))
            except psycopg2.Error as error:
                # Some versions of libpq report only the last error: the connection is lost.
                told.append(error.pgcode or conn.closed and '08007')

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        until('the stray client waits for a standby', lambda: told or self.ask(
            f"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = {conn.info.backend_pid}"))
        if not told:
            conn.cancel()
        thread.join(PATIENCE)
        return told[0] if told else 'nothing'

    def judged(self, new, run):
        """Compares the orphan's answers with doc/failover.md"""
        wrong = []

        def expect(what, value, expected):
            if value != expected:
                wrong.append(f'{what}: {value!r}, not {expected!r}')

        until('no client has stayed', lambda: self.ask(
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name ~ '^[ck][0-9]' AND backend_type = 'client backend'"))
        # The orphan acknowledges no grant.
        expect('a grant', self.cancelled("SELECT (lock_acquire('stray:doubt', '1 hour', 'stray')).status"), '08007')
        expect('a grant, repeated', self.cancelled("SELECT (lock_acquire('stray:kept', '1 hour', 'stray')).status"), '08007')
        expect('an extension', self.cancelled("SELECT lock_extend('stray:kept', 'stray', '2 hours')"), '08007')
        # The new primary grants the key to the first client that asks, and has the acknowledged
        # grants.
        other = psycopg2.connect(new.dsn())
        other.autocommit = True
        expect('the key, for another', self.ask("SELECT (lock_try_acquire('stray:doubt', '1 hour', 'other')).status", other), 'acquired')
        expect('the key, repeated', self.ask("SELECT (lock_try_acquire('stray:doubt', '1 hour', 'stray')).status", other), 'held')
        expect('what was acknowledged', self.ask(
            f"SELECT (g.status, g.fencing_token = {self.token})::text FROM lock_try_acquire('stray:kept', '1 hour', 'stray') g", other),
               '(reacquired,t)')
        # The orphan still answers these calls.
        expect('a reading', self.ask("SELECT holder IS NOT NULL FROM lock_status('stray:kept')"), True)
        expect('a proof', self.ask("SELECT lock_is_held('stray:kept', 'stray')"), True)
        expect('a release', self.ask("SELECT lock_release('stray:kept', 'stray')"), True)
        expect('a lock of a transaction', self.ask("SELECT (lock_acquire('stray:t', lifetime => 'transaction')).status"), 'acquired')
        conn = self.connect()
        self.ask("SELECT set_config('atomic_lock.acquire_durability', 'session', false), set_config('synchronous_commit', 'local', false)", conn)
        expect('a grant that waits for nobody', self.ask("SELECT (lock_acquire('stray:relaxed', '1 hour', 'stray')).status", conn), 'acquired')
        # A client that tries the orphan first stays there.
        ports = f'{self.node.port},{new.port}'
        first = psycopg2.connect(f'host=127.0.0.1,127.0.0.1 port={ports} user=postgres dbname=history password={run.cluster.password} '
                                 'target_session_attrs=read-write')
        expect('who tries it first', first.info.port, self.node.port)
        self.ask("SELECT count(force_release(key, 'over')) FROM lock_status() WHERE key ~ '^stray:'", other)
        for each in (other, conn, first, self.conn):
            each.close()
        return wrong


RUNS = {run.name: run for run in (Patroni,)}
