"""demo/cluster.py BINDIR DIRECTORY - the steps of demo/cluster, on servers below DIRECTORY"""

import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), '../test/history'))
from patroni import Cluster, end, until		# noqa: E402  pylint: disable=wrong-import-position
from server import Server		# noqa: E402  pylint: disable=wrong-import-position

KEYS = [f'order:{n}' for n in range(41, 49)]


def title(text):
    print(f'\n== {text}', flush=True)


class Demo:
    """A proxy, a single server, and a server with a standby"""

    def __init__(self, bindir, directory):
        self.bindir, self.directory = bindir, directory
        self.proxy = Server(bindir, directory, 'proxy')
        self.single = Server(bindir, directory, 'single')
        self.cluster = Cluster(bindir, directory, 'ab')
        self.primary = None

    def psql(self, dsn, sql, *options):
        done = subprocess.run([f'{self.bindir}/psql', '-X', '-v', 'ON_ERROR_STOP=1', '-P', 'footer=off', *options, '-d', dsn],
                              input=sql, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return re.sub(r'\nLOCATION: .*', '', done.stdout).strip('\n')

    def ask(self, who, sql, *expected):
        """Shows a statement and its answer, which must contain all expected texts"""
        print(f'\n{who}=> {sql}')
        answer = self.psql(self.proxy.dsn('shop'), 'SET search_path = locks;\n' + sql, '-q', '-v', 'VERBOSITY=verbose', '-v', 'SHOW_CONTEXT=never')
        print(answer, flush=True)
        for text in expected:
            if text not in answer:
                sys.exit(f'UNEXPECTED: there is no {text} in this answer')

    def bare(self, sql):
        return self.psql(self.proxy.dsn('shop'), 'SET search_path = locks;\n' + sql, '-qAt')

    def begin(self):
        title('A server of its own for one half of the keys; for the other half a primary and a standby under Patroni')
        for server in (self.proxy, self.single):
            server.create()
            server.start()
        self.primary = self.cluster.begin()
        shards = [self.single.dsn('shop'), f'host={self.cluster.route} port=5432 user=postgres dbname=shop']
        for server in (self.proxy, self.single, self.primary):
            server.ask('CREATE DATABASE shop', database='postgres')
        for partition, server in enumerate((self.single, self.primary)):
            server.ask(f'''CREATE EXTENSION atomic_lock;
                ALTER DATABASE shop SET atomic_lock.partitions = 2;
                ALTER DATABASE shop SET atomic_lock.partition = {partition};''', database='shop')
        print(f'The standby of {self.primary.name} is synchronous, as doc/failover.md says. HAProxy asks Patroni which of the two is the primary.')

        title('A proxy, which has the functions of atomic_lock and no locks')
        share = subprocess.run([f'{self.bindir}/pg_config', '--sharedir'], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        facade = self.psql(self.single.dsn('shop'), '', '-At', '-f', f'{share}/extension/atomic_lock/plproxy.sql')
        self.proxy.ask(f'''CREATE EXTENSION plproxy;
            CREATE SERVER locks FOREIGN DATA WRAPPER plproxy OPTIONS (p0 '{shards[0]}', p1 '{shards[1]}');
            CREATE USER MAPPING FOR PUBLIC SERVER locks;''', database='shop')
        for dsn in (*shards, self.proxy.dsn('shop')):
            said = self.psql(dsn, facade, '-q')
            if 'ERROR' in said:
                sys.exit(f'UNEXPECTED: {said}')

    def play(self):
        title('Alice locks eight orders. The proxy sends each call to the server that has the key')
        self.ask('alice', f"""SELECT g.key, lock_partition(g.key, 2) AS server, g.status, g.fencing_token
FROM unnest('{{{','.join(KEYS)}}}'::text[]) AS o (key),
    lock_acquire(o.key, ttl => '15 min', owner => 'alice-tab-1', holder => 'Alice') AS g;""", *KEYS, 'acquired')
        tokens = self.bare("SELECT key, fencing_token FROM lock_held('alice-tab-1') ORDER BY key")
        placed = {key: int(self.bare(f"SELECT lock_partition('{key}', 2)")) for key in KEYS}
        here, there = (next(key for key in KEYS if placed[key] == n) for n in (0, 1))
        self.ask('bob', f"SELECT status, holder FROM lock_try_acquire('{there}', owner => 'bob-tab-1');", 'held', 'Alice')

        title(f'The host of {self.primary.name} is lost: PostgreSQL and Patroni are killed, all processes at once')
        lost = self.primary
        lost.patroni.send_signal(signal.SIGSTOP)		# otherwise Patroni would restart the server
        lost.killed()
        end(lost.patroni)
        began = time.monotonic()
        print('The other half of the keys works as before:')
        self.ask('bob', f"SELECT status, holder FROM lock_try_acquire('{here}', owner => 'bob-tab-1');", 'held', 'Alice')
        print('\nWho wants a key of the lost server is told so, and gets nothing:')
        self.ask('bob', f"SELECT status, holder FROM lock_try_acquire('{there}', owner => 'bob-tab-1');", 'ERROR:  08006')

        title('Patroni promotes the standby when the lock of the lost primary in etcd has run out')
        print('Alice repeats her call with the same owner until there is an answer ...', flush=True)
        again = f"SELECT status FROM lock_try_acquire('{there}', ttl => '15 min', owner => 'alice-tab-1')"
        until('there is a primary again', lambda: self.bare(again) == 'reacquired')
        print(f'... which she gets after {time.monotonic() - began:.0f} seconds.')
        self.ask('alice', f"SELECT status, fencing_token FROM lock_try_acquire('{there}', ttl => '15 min', owner => 'alice-tab-1');", 'reacquired')
        if self.bare("SELECT key, fencing_token FROM lock_held('alice-tab-1') ORDER BY key") != tokens:
            sys.exit('UNEXPECTED: a lock or a token is another')
        print('\nShe still has all eight orders, with the same tokens; and Bob still has none:')
        self.ask('alice', "SELECT key, fencing_token FROM lock_held('alice-tab-1') ORDER BY key;", *KEYS)
        self.ask('bob', f"SELECT status, holder FROM lock_try_acquire('{there}', owner => 'bob-tab-1');", 'held', 'Alice')

        title('The host is back, and becomes the standby')
        lost.run()
        self.primary = self.cluster.whole_again()
        if self.primary is lost:
            sys.exit('UNEXPECTED: it is the primary')
        print(f'{lost.name} follows {self.primary.name}, and is synchronous.')

        title('Alice is done, and Bob gets the order, with a higher token')
        self.ask('alice', "SELECT lock_release_all('alice-tab-1');", str(len(KEYS)))
        self.ask('bob', f"SELECT status, fencing_token FROM lock_try_acquire('{there}', owner => 'bob-tab-1');", 'acquired')
        before = dict(line.split('|') for line in tokens.splitlines())[there]
        if int(self.bare("SELECT fencing_token FROM lock_held('bob-tab-1')")) <= int(before):
            sys.exit('UNEXPECTED: the token has not risen')

    def close(self):
        self.cluster.end()
        self.single.remove()
        self.proxy.remove()


def main():
    demo = Demo(*sys.argv[1:])
    try:
        demo.begin()
        demo.play()
    finally:
        demo.close()
    print('\nDone. Nothing of this is left; doc/several-servers.md and doc/failover.md say how to set it up.')


main()
