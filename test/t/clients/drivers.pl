# The edit form and the waiting programs of doc/examples, with real drivers: a restart of the
# application, a hand-over to a job and a conflict; users who wait for each other in a
# line, with listeners.
#
# Properties: the edit form has the same outcome with psycopg2, also through PgBouncer in
# transaction mode, with JDBC, PDO, ruby-pg and DBD::Pg (and pgx, in pgx.pl).  So has the
# waiting program.  Its listeners receive events on connections of their own, also if
# everything else goes through the pooler, and no ticket is left.  A listener whose connection is terminated connects and listens again, and the waiters
# ask again.  An owner that is set for the transaction does not stay on a connection; one
# that is SET does, as doc/concepts.md warns.  The programs contain the code that doc/clients.md
# and doc/libraries.md quote, and each program is run by a test.
#
# make test installs psycopg2 and PgBouncer if they are missing.
# Other drivers are skipped if they are not installed; NODE_PATH is respected.
#
# Turns red when: a driver cannot call a function, or an answer changes; the owner
# of one request stays for the next; an event is lost, or reaches the wrong listener;
# a ticket needs a connection; a document shows code that no test runs.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $pgbouncer = '/usr/sbin/pgbouncer';
my $scratch = PostgreSQL::Test::Utils::tempdir_short;
my $node = clients_server('drivers', undef, 'listener');
my $user = 'order_desk';

my @hour = split /\n/, <<'END';
Alice opens 42: acquired
Bob stands in line: queued 1
Carol stands in line: queued 2
Dave stands in line: queued 3
Bob asks: 1
Alice hears: asked, Alice
Alice saves: saved
Alice closes: released
Bob hears: offered, Bob
Erin opens 42: held Bob
Bob comes back: acquired
Bob saves: saved
Dave leaves: left
Dave leaves again: was not in line
Bob closes: released
Carol has waited: acquired
Carol closes: released
The job opens 43: acquired
Alice stands in line: queued 1
Alice asks: 1
The job: handed over to Alice
Alice hears: transferred, nightly export
Alice comes back: reacquired
The job ends: not_owner
Alice closes: released
Order 42 is now: of Bob
END

my $in_line = 'SELECT count(*) FROM lock_queue';

# Two requests in Python that follow each other on one connection: the statuses that they get
# when the first, as Alice, and then the second acquire the same key
sub next_request
{
	my ($dsn, $present) = @_;
	my $answer;

	IPC::Run::run([ $python, '-', $dsn, $present ], '<', \<<'END', '>', \$answer);
import sys
from psycopg2.pool import ThreadedConnectionPool
pool = ThreadedConnectionPool(1, 1, sys.argv[1])
for present in sys.argv[2], None:
    connection = pool.getconn()
    with connection, connection.cursor() as cursor:
        if present:
            cursor.execute(present)
        cursor.execute("SELECT status FROM lock_try_acquire('next')")
        print(cursor.fetchone()[0])
    pool.putconn(connection)
with connection, connection.cursor() as cursor:
    cursor.execute("SELECT force_release('next', 'the next test'), set_config('atomic_lock.owner', '', false)")
END
	return join ' ', split /\n/, $answer;
}

# However the test ends, PgBouncer is stopped.
END { local ($?, $@); my $pid = $scratch && eval { slurp_file("$scratch/pid") }; kill 'INT', $pid + 0 if $pid; }

my $set = q{SET atomic_lock.owner = 'alice'};
my $local = q{SELECT set_config('atomic_lock.owner', 'alice', true)};

SKIP:
{
	skip 'no psycopg2', 1 unless have_driver('psycopg2');
	my $program = 'doc/examples/edit_form.py';
	my $waiting = 'doc/examples/waiting.py';

	is_deeply(lines_of($node, 'psycopg2', 'python', $program), afternoon(), 'psycopg2');
	is_deeply(lines_of($node, 'psycopg2', 'waiting_python', $waiting), \@hour, 'psycopg2, waiting');
	is($node->safe_psql('waiting_python', $in_line), 0, 'no ticket is left');
	is(next_request(socket_of($node, 'python'), $local), 'acquired held', 'the next request on a connection has another owner');
	is(next_request(socket_of($node, 'python'), $set), 'acquired reacquired', '... but is Alice if the owner was SET');

	skip 'no PgBouncer', 1 unless -x $pgbouncer;
	my $at = "host=$scratch port=6432 user=$user dbname=";

	append_to_file("$scratch/ini", sprintf(<<'END', $node->host, $node->port, $user, ($scratch) x 3));
[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %s
auth_type = any
pool_mode = transaction
default_pool_size = 1
query_wait_timeout = 0
client_login_timeout = 0
ignore_startup_parameters = extra_float_digits
logfile = %s/log
pidfile = %s/pid
END
	system_or_bail($pgbouncer, '-q', '-d', "$scratch/ini");
	is_deeply(lines($node, 'pooled', $python, $program, $at . 'pooled'),
		afternoon(), 'psycopg2 behind PgBouncer in transaction mode');
	is_deeply(
		lines($node, 'waiting_pooled', $python, $waiting, $at . 'waiting_pooled', socket_of($node, 'waiting_pooled')),
		\@hour, 'psycopg2, waiting behind PgBouncer, with direct connections for the listeners');
	is(next_request($at . 'pooled', $local), 'acquired held', 'the next transaction of a connection has another owner');

	# Another client gets the same server connection from the pooler.
	$node->connect_ok("${at}pooled", 'Alice says SET', sql => $set);
	$node->connect_ok("${at}pooled", 'and the next client is Alice',
		sql => 'SHOW atomic_lock.owner', expected_stdout => qr/^alice$/);
}

my @others = (
	[ 'jdbc', 'JDBC', 'EditForm.java' ],
	[ 'pdo', 'PDO', 'edit_form.php' ],
	[ 'ruby', 'ruby-pg', 'edit_form.rb' ],
	[ 'dbd', 'DBD::Pg', 'edit_form.pl' ]);
foreach my $other (@others)
{
	my ($driver, $name, $program) = @$other;

  SKIP:
	{
		skip "no $name", 1 unless have_driver($driver);
		is_deeply(lines_of($node, $driver, "with_$driver", "doc/examples/$program"), afternoon(), $name);
	}
}

# A listener whose connection is terminated connects again, listens to all keys again, and the waiters
# ask again.  The poll, after an hour, comes too late to help.
SKIP:
{
	skip 'no psycopg2', 1 unless have_driver('psycopg2');
	my $program = PostgreSQL::Test::Utils::tempdir . '/listening.py';
	my $database = 'listens';
	my $queued = q{SELECT count(*) = 1 FROM lock_queue WHERE key = lock_key('order', '%d') AND offered_until IS NULL};
	my $listens = q{FROM pg_stat_activity WHERE usename = 'listener' AND datname = current_database()};
	my ($stdout, $stderr) = ('', '');

	append_to_file($program, <<'END');
import sys
sys.path.insert(0, 'doc/examples')
from waiting import Events, ThreadedConnectionPool, wait_for_turn
pool, events = ThreadedConnectionPool(1, 1, sys.argv[1]), Events(sys.argv[1].replace('order_desk', 'listener'))
for order in 42, 43:
    events.listen(order)
for order in 42, 43:
    print(order, wait_for_turn(pool, events, 'bob', order, 'Bob', poll=3600))
END
	example_database($node, $database);
	$node->safe_psql($database, q{GRANT order_desk TO listener; SELECT lock_acquire(lock_key('order', n), '1 h', 'alice') FROM unnest('{42,43}'::text[]) AS n});
	my $running = IPC::Run::start(program_of($node, 'psycopg2', $database, $program), '<', \undef, '>', \$stdout, '2>', \$stderr,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));

	# The offer of 42 is made while no session listens.
	ok($node->poll_query_until($database, sprintf $queued, 42), "Bob waits for 42");
	$node->safe_psql('postgres', 'ALTER ROLE listener NOLOGIN');
	is($node->safe_psql($database, "SELECT pg_terminate_backend(pid, 60000) $listens"), 't', "the listener's connection is terminated");
	$node->safe_psql($database, q{SELECT lock_release(lock_key('order', '42'), 'alice')});
	$node->safe_psql('postgres', 'ALTER ROLE listener LOGIN');

	# The listener's connection is terminated while Bob waits for 43, and is back when 43 is offered.
	if (ok($node->poll_query_until($database, sprintf $queued, 43), "Bob has 42, and waits for 43"))
	{
		my $former = $node->safe_psql($database, "SELECT pid $listens");
		$node->safe_psql($database, "SELECT pg_terminate_backend(pid, 60000) $listens");
		ok( $node->poll_query_until($database,
				"SELECT count(*) = 1 $listens AND pid <> $former AND state = 'idle' AND query ~ ('^LISTEN.*' || lock_channel(lock_key('order', '43')))"),
			"the listener listens again");
	}
	$node->safe_psql($database, q{SELECT lock_release(lock_key('order', '43'), 'alice')});
	eval { $running->finish; 1 } or do { diag($@); $running->kill_kill };
	note($stderr) if $stderr ne '';
	is($stdout, "42 acquired\n43 acquired\n", "Bob got both");
}

# Code that the documents show is run, here or by another test; SQL is run by docs/examples.pl.
my %suffixes = (python => 'py', js => 'js', java => 'java', go => 'go', php => 'php', ruby => 'rb', perl => 'pl');
my %sources = map { $_ => slurp_file($_) =~ s/^\s+//gmr } glob 'doc/examples/*.* doc/examples/*/*.*';
foreach my $document ('doc/clients.md', 'doc/libraries.md')
{
	my $text = slurp_file($document);
	my $quotes = 0;

	while ($text =~ /^```(\w*)\n(.*?)^```$/gms)
	{
		my ($language, $quote) = ($1, $2);
		my $suffix = $suffixes{$language} // 'none';

		next if $language =~ /^(?:sql|sh|json|ini|)$/;    # no program

		foreach my $part (split /\n\n+(?=\S)/, $quote)
		{
			$part =~ s/^\s+//gm;
			$part =~ s/\s+\z//;
			ok(scalar(grep { /\.$suffix$/ && index($sources{$_}, $part) >= 0 } keys %sources),
				"$document quotes a program ($language)") or diag($part);
			$quotes++;
		}
	}
	cmp_ok($quotes, '>', 0, "$document quotes the programs");
}

my $tests = join '', map { slurp_file($_) } glob "test/t/clients/*.pl";
foreach my $program (sort grep { !m{examples/.*/} } keys %sources)
{
	my $name = $program =~ s{.*/}{}r;
	my $named = $name =~ /(.*)\.go$/ ? "go_program('$1')" : $name;

	like($tests, qr/\b\Q$named\E/, "a test runs $name") if $name ne 'setup.sql';
}

log_is_clean($node);
$node->stop;
done_testing();
