"""A private server for the history runs"""

import os
import re
import shutil
import signal
import subprocess
import time

import psycopg2

SETTINGS = """
shared_preload_libraries = 'atomic_lock'
listen_addresses = ''
unix_socket_permissions = 0700
port = 5432
max_connections = 100
max_prepared_transactions = 100
deadlock_timeout = 100ms
wal_level = replica
fsync = off
max_wal_senders = 5
hot_standby = on
log_min_messages = warning
log_line_prefix = '%m [%p] %b '
checkpoint_timeout = 30s
max_wal_size = 256MB
shared_buffers = 32MB
atomic_lock.sweep_interval = '200 ms'
atomic_lock.released_retention = '100 ms'
"""


# Seconds after which an operation counts as hung
LIMIT = int(os.environ.get('PG_TEST_TIMEOUT_DEFAULT') or 180)


class Server:
    """A data directory and its server, which runs as the user of this script"""

    def __init__(self, bindir, directory, name, settings='', env=None, data=None):
        self.bindir, self.name = bindir, name
        self.data = data or f'{directory}/{name}'
        self.socket = f'{directory}/s-{name}'
        self.log = f'{directory}/{name}.log'
        self.settings = settings
        self.env = dict(os.environ, **(env or {}))
        self.deaths = []

    def program(self, name, *arguments, check=True, timeout=2 * LIMIT):
        done = subprocess.run([f'{self.bindir}/{name}', *arguments], check=False, timeout=timeout,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if check and done.returncode != 0:
            raise RuntimeError(f'{name} failed: {done.stdout[-2000:]}')
        return done.stdout

    def create(self):
        self.program('initdb', '-D', self.data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8',
                     '--locale=C.UTF-8', '-N')
        self.configure(SETTINGS)

    def clone(self, origin, settings):
        """Makes this a standby of origin"""
        self.program('pg_basebackup', '-D', self.data, '-h', origin.socket, '-p', '5432', '-U', 'postgres',
                     '-R', '-N', '-c', 'fast', '-X', 'stream')
        self.configure(settings)

    def configure(self, text):
        if os.path.exists(self.log):
            os.unlink(self.log)
        os.makedirs(self.socket, exist_ok=True)
        with open(f'{self.data}/postgresql.conf', 'a', encoding='utf-8') as conf:
            conf.write(f"{text}\nunix_socket_directories = '{self.socket}'\n{self.settings}\n")

    def start(self, check=True):
        # The server must not inherit the pipe that we read.
        with open(os.devnull, 'w', encoding='utf-8') as null:
            # Shared memory stays in use until the backends of a killed server notice its end.
            until = time.monotonic() + LIMIT
            while True:
                done = subprocess.run(
                    [f'{self.bindir}/pg_ctl', '-D', self.data, '-w', '-t', str(LIMIT), '-l', self.log, 'start'],
                    env=self.env, stdin=subprocess.DEVNULL, stdout=null, stderr=null, check=False)
                if done.returncode == 0 or not self.is_memory_in_use() or time.monotonic() > until:
                    break
                time.sleep(0.1)
        if check and done.returncode != 0:
            raise RuntimeError(f'{self.name} did not start, see {self.log}')
        return done.returncode == 0

    def is_memory_in_use(self):
        """Whether the log has the reason why the server did not start: shared memory in use"""
        with open(self.log, encoding='utf-8', errors='replace') as log:
            return 'is still in use' in ''.join(log.readlines()[-5:])

    def stop(self, mode='fast'):
        if os.path.exists(f'{self.data}/postmaster.pid'):
            self.program('pg_ctl', '-D', self.data, '-m', mode, '-w', '-t', str(LIMIT), 'stop', check=False)

    def postmaster(self):
        try:
            with open(f'{self.data}/postmaster.pid', encoding='utf-8') as pid:
                return int(pid.readline())
        except (OSError, ValueError):
            return None

    def children(self):
        """pid: title, of the postmaster's children"""
        parent, found = self.postmaster(), {}
        for entry in os.listdir('/proc'):
            if not entry.isdigit():
                continue
            try:
                with open(f'/proc/{entry}/stat', encoding='utf-8') as stat:
                    if int(stat.read().rpartition(')')[2].split()[1]) != parent:
                        continue
                with open(f'/proc/{entry}/cmdline', encoding='utf-8') as line:
                    title = line.read().strip('\0')
                found[int(entry)] = re.sub(r'^postgres: ', '', title)
            except (OSError, ValueError):
                continue
        return found

    def backends(self):
        return [pid for pid, title in self.children().items() if re.match(r'postgres history ', title)]

    def dsn(self, database='history'):
        return f"host={self.socket} port=5432 user=postgres dbname={database}"

    def connect(self, database='history', seconds=LIMIT):
        """A connection for the harness, which waits for a server that is starting"""
        until = time.monotonic() + seconds
        while True:
            try:
                conn = psycopg2.connect(self.dsn(database), connect_timeout=10)
                conn.autocommit = True
                return conn
            except psycopg2.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def ask(self, sql, *params, database='history', patience=LIMIT):
        conn = self.connect(database, patience)
        try:
            with conn.cursor() as cursor:
                cursor.execute(sql, params or None)
                return cursor.fetchall() if cursor.description else None
        finally:
            conn.close()

    def crash(self, how):
        """Crashes the whole server; returns when all its processes have ended"""
        self.deaths.append(time.monotonic())
        if how == 'immediate':
            self.stop('immediate')
        else:
            pids = [self.postmaster(), *self.children()]
            for pid in pids:
                signal_to(pid, signal.SIGKILL)
            for pid in pids:
                while pid and began(pid) is not None:
                    time.sleep(0.01)
            # The next postmaster would take these files for those of a running server as long as
            # the killed one is a zombie.
            for name in (f'{self.data}/postmaster.pid', f'{self.socket}/.s.PGSQL.5432.lock'):
                if os.path.exists(name):
                    os.unlink(name)

    def promote(self):
        self.program('pg_ctl', '-D', self.data, '-w', '-t', str(LIMIT), 'promote')

    def remove(self):
        self.stop('immediate')
        shutil.rmtree(self.data, ignore_errors=True)

    def shameful(self, allowed=()):
        """Lines of the log that no fault explains"""
        lines = []
        with open(self.log, encoding='utf-8', errors='replace') as log:
            for line in log:
                if re.search(r'TRAP:|PANIC|XX000|signal (4|6|7|8|11):|could not (open|read) (relation|block)'
                             r'|stuck spinlock|WARNING:(?! +(terminating connection|PID [0-9]+ is not))', line):
                    if not any(re.search(pattern, line) for pattern in allowed):
                        lines.append(line.rstrip())
        return lines


def signal_to(pid, number):
    try:
        if pid:
            os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def began(pid):
    """Start time of a process in ticks; None if it has ended, even if it is still a zombie"""
    try:
        with open(f'/proc/{pid}/stat', encoding='utf-8') as stat:
            fields = stat.read().rpartition(')')[2].split()
        return None if fields[0] == 'Z' else fields[19]
    except OSError:
        return None
