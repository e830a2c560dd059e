# More waiting clients than a pooler has connections.
#
# Properties: PgBouncer in transaction mode, with the pools and roles of doc/howto-wait.md.  If
# waiting calls use all connections of the main pool, a release and a heartbeat do not reach
# the server until one of the calls ends: the lease of the heartbeat expires.  With one connection
# left, neither has to wait.  The remedies: in a pool of their own, more calls than it has connections
# wait beside releases that get through, and all are served; a role whose max_wait is 0 is
# refused instead; and two thousand clients at once have tickets, through the pool that
# forbids waiting, and are notified of their offers over another.
#
# Turns red when: waiters in one pool take connections from the other; max_wait of a role
# is ignored; a ticket keeps a connection, or is lost among two thousand.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($python, $pgbouncer) = ('/usr/bin/python3', '/usr/sbin/pgbouncer');
plan skip_all => 'needs psycopg2' unless run_log([ $python, '-c', 'import psycopg2' ]);
plan skip_all => 'needs PgBouncer' unless -x $pgbouncer;

my $documents = slurp_file('doc/howto-wait.md') =~ s/.*\n## Behind PgBouncer\n//sr;
my ($pools, $roles) = $documents =~ /^```ini\n(.*?)^```.*?^```sql\n(.*?)^```/ms;

my $node = PostgreSQL::Test::Cluster->new('pooled');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 120
atomic_lock.max_wait = '1h'
});
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE shop');

my $clients = 2000;
my $scratch = PostgreSQL::Test::Utils::tempdir_short();
my $server = sprintf 'host=%s port=%s', $node->host, $node->port;
$pools =~ s/host=\S+/$server/g;
append_to_file("$scratch/users", qq{"shop" ""\n"shop_waits" ""\n"main" ""\n});
append_to_file("$scratch/ini", $pools . sprintf(<<'END', ($scratch) x 4));
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %s
auth_type = trust
auth_file = %s/users
admin_users = main
pool_mode = transaction
max_client_conn = 2300
query_wait_timeout = 0
client_login_timeout = 0
logfile = %s/log
pidfile = %s/pid
END
END { local ($?, $@); my $pid = $scratch && eval { slurp_file("$scratch/pid") }; kill 'INT', $pid + 0 if $pid; }
# Each client is an open file, for PgBouncer and for this test.
$clients = 0 if system('bash', '-c', 'ulimit -n 2600 2>/dev/null') != 0;
system_or_bail('bash', '-c', ($clients ? 'ulimit -n 2600;' : '') . 'exec "$@"', 'bash', $pgbouncer, '-q', '-d', "$scratch/ini");

my $program = <<'END';
import json, resource, select, sys, time
import psycopg2
from psycopg2.extensions import POLL_OK, POLL_READ

pooler, server, patience, clients = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])

def drive(connections, seconds=patience):
    """Waits until all have their answers, or the time is up; returns those without an answer"""
    poller, busy = select.poll(), {}
    for connection in connections:
        busy[connection.fileno()] = connection
        poller.register(connection, select.POLLOUT)
    until = time.monotonic() + seconds
    while busy and time.monotonic() < until:
        for number, _ in poller.poll(100):
            try:
                state = busy[number].poll()
            except psycopg2.Error as error:
                failures[busy[number]] = error.pgcode or str(error)
                state = POLL_OK
            if state == POLL_OK:
                poller.unregister(number)
                del busy[number]
            else:
                poller.modify(number, select.POLLIN if state == POLL_READ else select.POLLOUT)
    return list(busy.values())

failures, cursors = {}, {}

def connect(pool, number, role=None):
    """Opens number connections, in portions that PgBouncer takes at once"""
    found = []
    while len(found) < number:
        some = [psycopg2.connect(f'{pooler} dbname={pool} user={role or pool}', async_=True) for _ in range(min(50, number - len(found)))]
        if drive(some) or failures:
            sys.exit(f'{pool}: no connection: {failures}')
        found += some
    return found

def send(connections, sql):
    """{n} is the number of each"""
    for n, connection in enumerate(connections):
        cursors[connection] = connection.cursor()
        cursors[connection].execute(sql.replace('{n}', str(n)))

def answer(connection):
    if connection in failures:
        return failures.pop(connection)
    return cursors[connection].fetchone()[0]

def ask(connection, sql):
    send([connection], sql)
    return 'no answer' if drive([connection]) else answer(connection)

def direct(sql):
    cursor.execute(sql)
    return cursor.fetchone()[0]

def until(what, condition):
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            sys.exit(f'still not: {what}')
        time.sleep(0.02)

def waiters(number):
    until(f'{number} wait', lambda: direct('SELECT count(*) FROM lock_waiters') == number)

def pool(name, column):
    admin.execute('SHOW POOLS')
    names = [c.name for c in admin.description]
    return sum(row[names.index(column)] for row in admin if row[0] == name)

straight = psycopg2.connect(server)
straight.autocommit = True
cursor = straight.cursor()
console = psycopg2.connect(f'{pooler} dbname=pgbouncer user=main')
console.autocommit = True
admin = console.cursor()

HEARTBEAT = "SELECT lock_try_extend('other', 'editor') IS NOT NULL"
RELEASE = "SELECT lock_release('document', 'editor')"

def crowd_waits(place, number):
    """number calls wait in that pool for the lock of the editor, who is in the main pool, and has
    another lease that needs a heartbeat"""
    editor, other = connect('shop', 2)
    ask(editor, "SELECT lock_release_all('editor')")
    ask(editor, "SELECT lock_acquire('document', '1 hour', 'editor')")
    ask(other, f"SELECT lock_acquire('other', '{'1 s' if number == 20 else '1 hour'}', 'editor')")
    crowd = connect(place, number)
    send(crowd, "SELECT (lock_try_acquire('document', owner => 'waiter {n}', wait => '1 hour', lifetime => 'transaction')).status")
    drive(crowd, 0)
    return editor, other, crowd

def over(title, crowd, *others):
    """All waiters get the key for a moment, one after the other"""
    late = drive(crowd)
    told = [answer(c) for c in crowd if c not in late]
    print(title, ', '.join(f'{told.count(what)} {what}' for what in sorted(set(told))), end=f', {len(late)} late\n')
    for connection in (*crowd, *others):
        connection.close()

# The main pool, with one connection left
editor, other, crowd = crowd_waits('shop', 19)
waiters(19)
print('19: heartbeat', ask(other, HEARTBEAT), 'release', ask(editor, RELEASE))
over('19:', crowd, editor, other)

# ... and with none, until the last in line gives up
editor, other, crowd = crowd_waits('shop', 20)
waiters(20)
send([other], HEARTBEAT)
drive([other], 0)
send([editor], RELEASE)
until('two wait for a connection', lambda: drive([other, editor], 0.1) and pool('shop', 'cl_waiting') == 2)
until('the lease is over', lambda: direct("SELECT count(*) FROM lock_status() WHERE key = 'other' AND locked") == 0)
print('20: unanswered', len(drive([other, editor], 0)), 'waiting', direct('SELECT count(*) FROM lock_waiters'))
direct('SELECT pg_cancel_backend(pid) FROM lock_waiters ORDER BY place DESC LIMIT 1')
drive([other, editor])
print('20: heartbeat', answer(other), 'release', answer(editor))
over('20:', crowd, editor, other)

# The roles of the document, whose settings apply to new connections
cursor.execute(sys.argv[5])
admin.execute('RECONNECT shop')
editor, other, crowd = crowd_waits('shop', 40)
print('forbidden: heartbeat', ask(other, HEARTBEAT), 'release', ask(editor, RELEASE))
over('forbidden:', crowd, editor, other)

# A pool of their own
editor, other, crowd = crowd_waits('shop_waits', 200)
waiters(60)
print('apart: without a place', pool('shop_waits', 'cl_waiting'), 'heartbeat', ask(other, HEARTBEAT), 'release', ask(editor, RELEASE))
over('apart:', crowd, editor, other)

# Two thousand tickets
if clients:
    resource.setrlimit(resource.RLIMIT_NOFILE, (2600, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    listener = psycopg2.connect(f'{pooler} dbname=shop_events user=shop')
    listener.autocommit = True
    with listener.cursor() as hear:
        hear.execute("SELECT lock_channel('document')")
        hear.execute('LISTEN ' + hear.fetchone()[0])
    editor, = connect('shop', 1)
    ask(editor, "SELECT lock_acquire('document', '1 hour', 'editor')")
    crowd = connect('shop', clients)
    enqueue = "SELECT status || ' ' || coalesce(ticket, 0) FROM lock_enqueue('document', 'waiter {n}', offer => '10 min', keep => '10 min')"
    send(crowd, enqueue)
    drive(crowd)
    number_of = {answer(c): n for n, c in enumerate(crowd)}
    print('line:', sum(told.startswith('queued ') for told in number_of), direct('SELECT max(place) FROM lock_queue'))
    ask(editor, RELEASE)
    order = []
    while len(order) < 100 and select.select([listener], [], [], patience)[0]:
        listener.poll()
        for event in (json.loads(n.payload) for n in listener.notifies):
            if event['event'] == 'offered':
                n = number_of.pop(f"queued {event['ticket']}")
                if ask(crowd[n], enqueue.replace('{n}', str(n))).startswith('acquired '):
                    order.append(event['ticket'])
                ask(crowd[n], f"SELECT lock_release('document', 'waiter {n}')")
        listener.notifies.clear()
    print('line: served', len(order) >= 100, 'in order', order == sorted(order))
    send(crowd, "SELECT lock_leave('document', 'waiter {n}')")
    over('line:', crowd, editor)
    print('line: left', direct('SELECT count(*) FROM lock_queue'))
END
my ($stdout, $stderr);
my ($grants, $settings) = $roles =~ s/'1min'/'1h'/r =~ /\A(.*?)(ALTER ROLE.*)\z/s;
$node->safe_psql('shop', "CREATE EXTENSION atomic_lock; $grants SELECT lock_grant_access('shop', 'monitor')");
IPC::Run::run(
	[   $python, '-', "host=$scratch port=6432", "$server dbname=shop", $PostgreSQL::Test::Utils::timeout_default, $clients, $settings ],
	'<', \$program, '>', \$stdout, '2>', \$stderr);
my %told;
push @{ $told{$1} }, $2 while $stdout =~ /^(\w+): (.*)$/gm;
my %expected = (
	19 => [ 'heartbeat True release True', '19 acquired, 0 late' ],
	20 => [ 'unanswered 2 waiting 20', 'heartbeat False release True', '1 57014, 19 acquired, 0 late' ],
	forbidden => [ 'heartbeat True release True', '40 22023, 0 late' ],
	apart => [ 'without a place 140 heartbeat True release True', '200 acquired, 0 late' ],
	line => [ "$clients $clients", 'served True in order True', '100 False, ' . ($clients - 100) . ' True, 0 late', 'left 0' ]);
my %title = (
	19 => 'one connection left in the pool: heartbeat and release are answered, and all waiters are served',
	20 => 'no connection left: neither is answered until a waiter gives up, and the lease expires',
	forbidden => 'calls that may not wait there are refused, and heartbeat and release are answered',
	apart => 'in a pool of their own, more calls wait than it has connections, beside heartbeat and release',
	line => "$clients tickets are in line at once, and their offers come in order");
foreach my $scene (qw(19 20 forbidden apart line))
{
	next if $scene eq 'line' && !$clients;
	is_deeply($told{$scene}, $expected{$scene}, $title{$scene}) or diag($stderr);
}
diag('2,000 clients are left out: ulimit -n cannot be raised to 2600') unless $clients;

kill 'INT', slurp_file("$scratch/pid") + 0;
$node->stop;
log_is_clean($node);
done_testing();
