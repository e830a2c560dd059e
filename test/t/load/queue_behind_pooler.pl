# Two hundred browsers in line behind PgBouncer, and one listener.
#
# Properties: 200 clients share a pool of four connections in transaction mode, and wait for
# a key without using a connection; one direct connection listens and tells each client when
# it is its turn.  All clients are served in the order of arrival, while others come
# and go; no client whose ticket was known is overtaken by a client that came later; each
# grant goes to one client, with a fencing token that rises.  No client tries before its turn.
#
# Turns red when: a waiting client keeps a connection of the pool; an offer is lost, goes to
# two clients, or to the first that asks; tickets are ordered by renewal.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($python, $pgbouncer) = ('/usr/bin/python3', '/usr/sbin/pgbouncer');
plan skip_all => 'needs psycopg2' unless run_log([ $python, '-c', 'import psycopg2' ]);
plan skip_all => 'needs PgBouncer' unless -x $pgbouncer;

my $node = PostgreSQL::Test::Cluster->new('queue_pooled');
$node->init;
# If two clients come at the moment when the key is released, the sweep may have to
# make the offer.
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.sweep_interval = '200ms'
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my $scratch = PostgreSQL::Test::Utils::tempdir_short();
my $user = $node->safe_psql('postgres', 'SELECT current_user');
append_to_file("$scratch/ini", sprintf(<<'END', $node->host, $node->port, $user, ($scratch) x 3));
[databases]
postgres = host=%s port=%s user=%s
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 400
query_wait_timeout = 0
client_login_timeout = 0
ignore_startup_parameters = extra_float_digits
logfile = %s/log
pidfile = %s/pid
END
END { local ($?, $@); my $pid = $scratch && eval { slurp_file("$scratch/pid") }; kill 'INT', $pid + 0 if $pid; }
system_or_bail($pgbouncer, '-q', '-d', "$scratch/ini");

my $program = <<'END';
import json, select, sys, threading, time
import psycopg2

direct, pooled, browsers, patience = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
threading.stack_size(256 * 1024)
guard = threading.Lock()
connecting = threading.Lock()
offered = {}			# by ticket
grants = []				# (fencing token, ticket or None, asked, answered, name)
errors = []
holders = 0
done = threading.Event()

def turn(ticket):
    with guard:
        return offered.setdefault(ticket, threading.Event())

def listen(ready):
    connection = psycopg2.connect(direct)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SELECT lock_channel('document')")
        cursor.execute('LISTEN ' + cursor.fetchone()[0])
    ready.set()
    while not done.is_set():
        if select.select([connection], [], [], 0.2)[0]:
            connection.poll()
        while connection.notifies:
            event = json.loads(connection.notifies.pop(0).payload)
            if event['event'] == 'offered':
                if turn(event['ticket']).is_set():
                    errors.append(f"ticket {event['ticket']} is told twice")
                turn(event['ticket']).set()

def enqueue(cursor, name):
    cursor.execute("SELECT status, ticket, fencing_token FROM lock_enqueue('document', %s, holder => %s, offer => '10 min')", (name, name))
    return cursor.fetchone()

def serve(cursor, name):
    """Enqueue, wait for the turn, acquire the key, and release it"""
    global holders
    asked = time.monotonic()
    status, ticket, token = enqueue(cursor, name)
    answered = time.monotonic()
    if status == 'queued':
        arrived.append(name)
        if not turn(ticket).wait(patience):
            errors.append(f'{name} starves')
            return
        # Another session may have a claim on the key for a moment, to look at the line.
        while status == 'queued' and time.monotonic() < asked + 2 * patience:
            status, _, token = enqueue(cursor, name)
    if status != 'acquired':
        errors.append(f'{name} hears {status}')
        return
    with guard:
        holders += 1
        if holders != 1:
            errors.append(f'{name} is not alone')
        grants.append((token, ticket, asked, answered, name))
        holders -= 1
    cursor.execute("SELECT lock_release('document', %s)", (name,))

def browse(number, first):
    try:
        # PgBouncer does not accept this many connections at the same instant.
        with connecting:
            connection = psycopg2.connect(pooled)
        connection.autocommit = True
        with connection.cursor() as cursor:
            serve(cursor, f'{first}-{number}')
        connection.close()
    except Exception as error:
        errors.append(f'{first}-{number}: {error}')

def run(number, first):
    threads = [threading.Thread(target=browse, args=(n, first)) for n in range(number)]
    for thread in threads:
        thread.start()
    return threads

arrived = []
ready = threading.Event()
listener = threading.Thread(target=listen, args=(ready,))
listener.start()
ready.wait(patience)

# All clients come while the key is held; it is released when all are in line.
holder = psycopg2.connect(pooled)
holder.autocommit = True
cursor = holder.cursor()
cursor.execute("SELECT lock_acquire('document', '1 hour', 'editor')")
threads = run(browsers, 'first')
until = time.monotonic() + patience
while len(arrived) < browsers and not errors and time.monotonic() < until:
    time.sleep(0.01)
cursor.execute("SELECT count(*), max(place) FROM lock_queue")
print('in line', *cursor.fetchone())
cursor.execute("SELECT lock_release('document', 'editor')")
# The same number of clients comes while these are served.
threads += run(browsers, 'second')
for thread in threads:
    thread.join(patience)
done.set()
listener.join()

tickets = [g[1] for g in sorted(grants) if g[4].startswith('first')]
print('served', len(grants), 'in order', tickets == sorted(tickets))
print('tokens', len(set(g[0] for g in grants)))
# A client that had its ticket before another one asked is served before that one.
overtaken = 0
order = sorted(grants)
first_answer = float('inf')
for token, ticket, asked, answered, name in reversed(order):
    if first_answer < asked:
        overtaken += 1
    first_answer = min(first_answer, answered)
print('overtaken', overtaken)
for error in sorted(errors)[:10]:
    print(error)
END
my ($stdout, $stderr);
my $run = IPC::Run::start([ $python, '-', 'host=' . $node->host . ' port=' . $node->port . " user=$user dbname=postgres",
		"host=$scratch port=6432 user=$user dbname=postgres", 200, $PostgreSQL::Test::Utils::timeout_default ],
	'<', \$program, '>', \$stdout, '2>', \$stderr);
$run->finish;
is($stdout, "in line 200 200\nserved 400 in order True\ntokens 400\novertaken 0\n", 'all clients are served, in order') or diag($stderr);
is($node->safe_psql('postgres', q{SELECT count(*) FROM lock_queue}), '0', '... the line is empty');

kill 'INT', slurp_file("$scratch/pid") + 0;
$node->stop;
log_is_clean($node);
done_testing();
