# The programs of doc/examples, with real drivers: an edit form with a pool, a
# restart of the application, a hand-over to a job and a conflict; people who wait
# for each other in a line, with listeners.
#
# Properties: the same afternoon has the same outcome with psycopg2, also through
# PgBouncer in transaction mode, with node-postgres and with JDBC, and so has the same
# hour of those who wait.  These hear events on connections of their own, also if
# everything else goes through the pooler, and nobody is left in line.  An owner that is
# set for the transaction is not left on a connection; one that is SET is, as
# doc/reference.md warns.  What doc/clients.md and doc/waiting.md quote is in the
# programs.
#
# psycopg2 and PgBouncer are always there, where make test installs what is missing.
# The others are left out where they are not installed; NODE_PATH is looked at.
#
# Turns red when: a driver cannot call a function, or an answer changes; the owner
# of one request is that of the next; an event does not come, or not to whom it is for;
# a place in line needs a connection.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../../perl";
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = '/usr/bin/python3';
my $pgbouncer = '/usr/sbin/pgbouncer';
my $jdbc = '/usr/share/java/postgresql.jar';
my $scratch = PostgreSQL::Test::Utils::tempdir_short;
local $ENV{NODE_PATH} = join(':', grep { defined } $ENV{NODE_PATH}, '/usr/share/nodejs');

my $node = PostgreSQL::Test::Cluster->new('drivers');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\n");

# JDBC needs TCP, and others may reach that.
my $password = join '', map { sprintf '%08x', rand 2**32 } 1 .. 4;
my $with_jdbc = -e $jdbc && eval { run_log([ 'javac', '-version' ]) };
if ($with_jdbc)
{
	$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\n");
	unlink($node->data_dir . '/pg_hba.conf');
	$node->append_conf('pg_hba.conf', "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
}
$node->start;
my $user = 'order_desk';
$node->safe_psql('postgres', "CREATE ROLE $user LOGIN PASSWORD '$password'");

my @afternoon = split /\n/, <<'END';
Alice opens 42: acquired
Alice opens 42 in another tab: held Alice
Bob opens 42: held Alice
Bob saves: refused: lock "order:42" is held by Alice, not by this owner
Alice goes on: extended
Alice saves: saved
After a restart, Alice goes on: extended
Alice reloads the page: reacquired
Alice hands 42 to a job: acquired
Alice saves: refused: lock "order:42" is held by nightly export, not by this owner
The job saves: saved
The job ends: released
Alice opens 42: acquired
Bob opens 42: acquired
Alice goes on: lost
Alice saves: refused: lock "order:42" is held by Bob, not by this owner
Alice closes: forced
Bob closes: released
The order is now: exported
END

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

# Runs a program on a new database; its lines
sub lines
{
	my ($database, @command) = @_;
	my ($stdout, $stderr);

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, slurp_file('doc/examples/setup.sql'));
	IPC::Run::run(\@command, '>', \$stdout, '2>', \$stderr);
	note($stderr) if $stderr ne '';
	return [ split /\n/, $stdout ];
}

sub socket_of
{
	my ($database) = @_;
	return sprintf('host=%s port=%s user=%s dbname=%s', $node->host, $node->port, $user, $database);
}

# A line of Python on two requests that follow each other on one connection: what the
# second is told when it acquires a key that the first, as Alice, has acquired
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

# However the test ends
END { local $?; kill 'INT', slurp_file("$scratch/pid") + 0 if $scratch && -e "$scratch/pid"; }

my $set = q{SET atomic_lock.owner = 'alice'};
my $local = q{SELECT set_config('atomic_lock.owner', 'alice', true)};

SKIP:
{
	skip 'no psycopg2', 1 unless run_log([ $python, '-c', 'import psycopg2' ]);
	my $program = [ $python, 'doc/examples/edit_form.py' ];

	is_deeply(lines('python', @$program, socket_of('python')), \@afternoon, 'psycopg2');
	is_deeply(
		lines('waiting_python', $python, 'doc/examples/waiting.py', socket_of('waiting_python')),
		\@hour, 'psycopg2, in line');
	is($node->safe_psql('waiting_python', $in_line), 0, 'nobody is left in line');
	is(next_request(socket_of('python'), $local), 'acquired held', 'the next request on a connection is not Alice');
	is(next_request(socket_of('python'), $set), 'acquired reacquired', 'where her owner was SET, it is');

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
ignore_startup_parameters = extra_float_digits
logfile = %s/log
pidfile = %s/pid
END
	system_or_bail($pgbouncer, '-q', '-d', "$scratch/ini");
	is_deeply(lines('pooled', @$program, $at . 'pooled'), \@afternoon, 'psycopg2 behind PgBouncer in transaction mode');
	is_deeply(
		lines('waiting_pooled', $python, 'doc/examples/waiting.py', $at . 'waiting_pooled', socket_of('waiting_pooled')),
		\@hour, 'psycopg2 in line behind PgBouncer, with listeners beside it');
	is(next_request($at . 'pooled', $local), 'acquired held', 'the next transaction of a connection is not Alice');

	# Another client, on the connection that the pooler gives it
	$node->connect_ok("${at}pooled", 'Alice says SET', sql => $set);
	$node->connect_ok("${at}pooled", 'and the next client is Alice',
		sql => 'SHOW atomic_lock.owner', expected_stdout => qr/^alice$/);
}

SKIP:
{
	skip 'no node-postgres', 1 unless eval { run_log([ 'node', '-e', q{require('pg')} ]) };
	my $at = sprintf('postgresql://%s@%s:%s/', $user, $node->host =~ s{/}{%2F}gr, $node->port);

	is_deeply(lines('nodejs', 'node', 'doc/examples/edit_form.js', $at . 'nodejs'), \@afternoon, 'node-postgres');
	is_deeply(
		lines('waiting_nodejs', 'node', 'doc/examples/waiting.js', $at . 'waiting_nodejs'),
		\@hour, 'node-postgres, in line');
	is($node->safe_psql('waiting_nodejs', $in_line), 0, 'nobody is left in line');
}

SKIP:
{
	skip 'no JDBC', 1 unless $with_jdbc;
	local $ENV{PGPASSFILE} = "$scratch/pgpass";

	append_to_file("$scratch/pgpass", "*:*:*:*:$password\n");
	chmod 0600, "$scratch/pgpass";
	is_deeply(
		lines('java', 'java', '-cp', $jdbc, 'doc/examples/EditForm.java',
			sprintf('jdbc:postgresql://127.0.0.1:%s/java?user=%s', $node->port, $user)),
		\@afternoon, 'JDBC');
}

# What the documents show is what has been run.
my %programs = (
	'doc/clients.md' => { python => 'edit_form.py', js => 'edit_form.js', java => 'EditForm.java' },
	'doc/waiting.md' => { python => 'waiting.py', js => 'waiting.js' });
foreach my $document (sort keys %programs)
{
	my $text = slurp_file($document) =~ s/^## Spring Integration\n.*//msr;    # shedlock.pl looks at the rest
	my $quotes = 0;

	foreach my $language (sort keys %{ $programs{$document} })
	{
		my $program = $programs{$document}{$language};
		my $source = slurp_file("doc/examples/$program") =~ s/^\t+//gmr;

		while ($text =~ /^```$language\n(.*?)^```$/gms)
		{
			my $quote = $1 =~ s/^\t+//gmr;

			foreach my $part (split /\n\n+(?=\S)/, $quote)
			{
				ok(index($source, $part =~ s/\s+\z//r) >= 0, "$document quotes $program")
				  or diag($part);
				$quotes++;
			}
		}
	}
	cmp_ok($quotes, '>=', 2, "$document quotes the programs");
}

log_is_clean($node);
$node->stop;
done_testing();
