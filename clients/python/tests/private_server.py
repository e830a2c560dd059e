"""A PostgreSQL of one's own, for tests: it starts in a second, and is reached by a socket in its directory only

    with PrivateServer('/usr/lib/postgresql/15/bin') as server:
        server.sql('CREATE EXTENSION atomic_lock')
        pool = ConnectionPool(server.dsn)

PostgreSQL refuses to run as root.
"""

import pathlib
import shutil
import subprocess
import tempfile

import psycopg


class PrivateServer:
    def __init__(self, bin, **settings):
        self.bin = pathlib.Path(bin)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix='al_'))  # short, since a socket's path is
        self.dsn = f'host={self.directory} user=postgres dbname=postgres'
        settings = {'listen_addresses': '', 'unix_socket_directories': self.directory, 'fsync': 'off',
                    'shared_preload_libraries': 'atomic_lock', **settings}
        self.run('initdb', '-D', self.data, '-U', 'postgres', '-A', 'trust', '-E', 'UTF8', '--locale=C.UTF-8', '-N')
        with open(self.data / 'postgresql.conf', 'a') as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    data = property(lambda self: self.directory / 'data')

    def run(self, program, *arguments):
        # A server keeps what it has inherited, so no pipe.
        subprocess.run([self.bin / program, *arguments], check=True, stdout=subprocess.DEVNULL)

    def start(self):
        self.run('pg_ctl', '-D', self.data, '-l', self.directory / 'log', '-w', 'start')

    def stop(self):
        self.run('pg_ctl', '-D', self.data, '-m', 'fast', '-w', 'stop')

    def sql(self, query, *values, dsn=None):
        """The first row, if there is one"""
        with psycopg.connect(dsn or self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchone() if cursor.description else None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()
        shutil.rmtree(self.directory)
