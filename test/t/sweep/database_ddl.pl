# The background sweep does not get in the way of database statements.
#
# One part needs a build with AL_TEST_HOOKS, where a sweep can be stopped in a batch.
#
# Properties: DROP DATABASE, CREATE DATABASE ... TEMPLATE and ALTER DATABASE RENAME
# work at any moment, beside a launcher that is hardly ever idle, and leave at most one
# line in the log; a worker that is stopped in a batch leaves when
# the batch is done; if all background worker slots are taken, the log has one line
# that says what to do, lock_sweeper_status() says so, lock_sweep()
# works by hand, and a request for an offer is served when a slot is free again; a
# database that allows no connections is skipped; a new database has
# no counts of one that was dropped; batches are as large as the lock table allows.
#
# Turns red when: a worker stays connected from one sweep to the next, or until
# every row is swept; databases are remembered by name or for ever; each failure is
# logged, or none; a failed start ends the launcher, or loses a request; the slot of a dropped database
# keeps a count or a sweep; the size of the lock table is underestimated.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('sweeper_ddl', @build);
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
fsync = off
atomic_lock.sweep_interval = '10ms'
atomic_lock.sweep_batch = 10
});
$node->start;
my $watch = session($node, 'Watch');
my $other = session($node, 'Other');
ask($watch, 'CREATE DATABASE source');

# The output of a statement, or an empty string.  PostgreSQL waits five seconds until others
# have left a database; a worker that gets no processor takes longer, so the test repeats.
sub say_of
{
	my ($psql, $sql) = @_;
	my $said;

	for (1 .. 20)
	{
		$said = reply($psql, $sql);
		last if $said !~ /is being accessed by other users/;
	}
	return $said;
}

#
# At any moment
#
{
	my $psql = session($node, 'Setup', 'source');
	ask($psql, 'CREATE EXTENSION atomic_lock');
	end($psql);
}
foreach my $n (1 .. 12)
{
	my $psql = session($node, 'Setup', 'source');

	expire($psql, "round$n", 5);
	expire_rows($psql, "many$n", 1500);
	end($psql);
	is(say_of($other, 'CREATE DATABASE copy TEMPLATE source'), '', "round $n: a database that is being swept is copied");
	is(say_of($other, 'ALTER DATABASE copy RENAME TO renamed'), '', '... its copy renamed');
	is(say_of($other, 'ALTER DATABASE source RENAME TO copy'), '', '... itself renamed');
	is(say_of($other, 'ALTER DATABASE copy RENAME TO source'), '', '... and back');
	is(say_of($other, 'DROP DATABASE renamed' . ($n % 3 ? '' : ' WITH (FORCE)')), '', '... the copy dropped');
}
my $source = session($node, 'Source', 'source');
ok(swept($source, '%'), 'after these statements every row is swept');
ok(launcher($watch), '... by a launcher that is still there');
is(ask($watch, q{SELECT string_agg(database::text, ' ' ORDER BY database) FROM lock_sweeper_status() WHERE database <> current_database()}), 'source', 'lock_sweeper_status shows no dropped database') if ask($watch, 'CREATE EXTENSION atomic_lock; SELECT 1');
is(ask($watch, q{SELECT count(*) FROM lock_stats WHERE database IS NULL OR database NOT IN (SELECT datname FROM pg_database)}), '0', '... nor does lock_stats');
# The launcher frees the slots of dropped databases, and then stops sweeping.
configure($node, $watch, 'atomic_lock.sweep_interval = 0');
ok(soon($watch, q{SELECT status ~ '^turned off' FROM lock_sweeper_status() WHERE database IS NULL}), 'turned off');
ask($watch, 'CREATE DATABASE fresh');
my $fresh = session($node, 'Fresh', 'fresh');
is(ask($fresh, q{CREATE EXTENSION atomic_lock; SELECT lock_acquire('k', '1 hour', 'o') IS NOT NULL; SELECT grants, expirations, swept FROM lock_stats WHERE database = 'fresh'}), "t\n1|0|0", '... the counters of a new database begin with 0');
is(ask($fresh, q{SELECT since > clock_timestamp() - interval '1 hour', (SELECT count(*) FROM lock_sweeper_status() WHERE database = 'fresh') FROM lock_stats WHERE database = 'fresh'}), 't|0', '... its counters begin now, and it was never swept');
end($fresh);
ask($watch, 'DROP DATABASE fresh');
configure($node, $watch, q{atomic_lock.sweep_interval = '10ms'});
is(unexpected_lines($node, qr/FATAL:  database (?:"\w+"|with OID \d+|\d+) does not exist/, qr/FATAL:  terminating (?:connection|background worker) .*due to administrator command/), '', 'nothing unexpected in the log');
# From PostgreSQL 19 on, these statements end a worker, which logs that.
cmp_ok(count_in_log($node, qr/atomic_lock[^\n]*exited with exit code/) - count_in_log($node, qr/terminating background worker "atomic_lock/), '<=', 12, '... there is no restart loop');
cmp_ok(count_in_log($node, qr/LOG:  (?:sweep of|could not start a sweep of) database/), '<=', 12, '... nor a loop of failed sweeps');
end($source);

#
# While the worker is stopped in a batch
#
if (@build)
{
	# many more rows than a worker removes while others wait for it
	configure($node, $watch, 'atomic_lock.sweep_batch = 2', q{atomic_lock.test_longest_visit = '1h'});
	foreach my $sql ('DROP DATABASE standing', 'ALTER DATABASE standing RENAME TO gone', 'CREATE DATABASE copy TEMPLATE gone')
	{
		my $name = $sql =~ /(?:TEMPLATE|DATABASE) (\w+)(?: RENAME.*)?$/ ? $1 : die;

		ask($watch, "CREATE DATABASE $name TEMPLATE source") unless ask($watch, "SELECT count(*) FROM pg_database WHERE datname = '$name'");
		my $psql = session($node, 'Inside', $name);
		configure($node, $watch, q{atomic_lock.test_pause_at = 'sweep-removed'}, q{atomic_lock.sweep_interval = '10ms'});
		ok(sweep_passes($psql), 'sweeps pass');
		pause_sweep($psql);
		expire_rows($psql, 'many', 40_000);
		expire($psql, 'few', 5);
		ok(worker_stands($watch), "$sql: a worker is stopped in a batch");
		# this visit is the last one
		configure($node, $watch, 'atomic_lock.sweep_interval = 0');
		start($other, $sql);
		poll($watch, "SELECT count(*) > 0 FROM pg_locks l JOIN pg_database d ON l.locktype = 'object' AND l.classid = 'pg_database'::regclass AND l.objid = d.oid AND d.datname = '$name' AND l.pid = " . pid($other));
		end($psql);
		my $said = answer($other);
		is($said =~ /is being accessed by other users/ ? say_of($other, $sql) : $said, '', '... the statement waits until the batch is done');
		next if $sql =~ /DROP/;
		$psql = session($node, 'Inside', $sql =~ /(?:TO|DATABASE) (\w+)(?: TEMPLATE.*)?$/);
		cmp_ok(ask($psql, 'SELECT count(*) FROM app_lock'), '>', 30_000, '... and not for the rest of the rows');
		end($psql);
	}
	is(ask($watch, q{SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database WHERE datname !~ '^template'}), 'copy gone postgres source', '... all three statements have succeeded');

	configure($node, $watch, q{atomic_lock.sweep_interval = '10ms'});
	# The owner of a database, who may not end sessions of others
	ask($watch, q{CREATE ROLE boss LOGIN; CREATE DATABASE owned TEMPLATE source OWNER boss});
	foreach my $n (1 .. 3)
	{
		my $setup = session($node, 'Setup', 'owned');
		my ($inside, $boss) = map { $node->background_psql($_, on_error_stop => 0, extra_params => [ '-U', 'boss' ]) } ('owned', 'postgres');
		pause_sweep($inside);
		expire_rows($setup, 'many', 2000);
		expire($setup, 'few', 5);
		end($setup);
		gone($watch, pid($setup));
		ok(worker_stands($watch), 'a worker is stopped in a batch');
		$boss->{al_sent} = 0;
		start($boss, 'DROP DATABASE owned WITH (FORCE)');
		poll($watch, q{SELECT count(*) > 0 FROM pg_locks l JOIN pg_database d ON l.locktype = 'object' AND l.classid = 'pg_database'::regclass AND l.objid = d.oid AND d.datname = 'owned' AND l.mode = 'AccessExclusiveLock'});
		end($inside);
		is(answer($boss), '', '... the owner of the database ends it with FORCE');
		end($boss);
		ask($watch, q{CREATE DATABASE owned TEMPLATE source OWNER boss});
	}
	ask($watch, 'DROP DATABASE owned');
	configure($node, $watch, q{atomic_lock.test_pause_at = ''}, 'atomic_lock.sweep_batch = 1000');
	foreach my $name ('copy', 'gone')
	{
		my $psql = session($node, 'Inside', $name);
		ask($psql, 'TRUNCATE app_lock');
		expire($psql, 'few', 5);
		ok(swept($psql, 'few'), "... and $name is still swept");
		end($psql);
	}
}

#
# Databases that allow no connections
#
my $closed = session($node, 'Closed', 'source');
foreach my $way ('datallowconn = false, datconnlimit = -1', 'datallowconn = true, datconnlimit = -2')
{
	ask($watch, "UPDATE pg_database SET $way WHERE datname = 'source'");
	# The launcher may have read the list of databases before, and come once more.
	ok(sweep_passes($watch), 'sweeps pass') for (1, 2);
	my $lines = count_in_log($node, qr/\n/);
	expire($closed, 'closed', 10);
	ok(sweep_passes($watch), '... and pass') for (1, 2);
	is(ask($closed, q{SELECT count(*) FROM app_lock}), '10', "a database that allows no connections, or was nearly dropped, is not swept: $way");
	unlike(join("\n", (split /\n/, log_of($node))[$lines .. count_in_log($node, qr/\n/) - 1]), qr/source/, '... and not mentioned in the log');
}
ask($watch, q{UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'source'});
ask($watch, 'ALTER DATABASE source ALLOW_CONNECTIONS true');
expire($closed, 'open', 1);
ok(swept($closed, 'closed'), '... but is swept when it allows them again');
end($closed);

#
# No slot is left for a worker.
#
end($watch, $other);
$node->append_conf('postgresql.conf', q{
max_worker_processes = 1
max_logical_replication_workers = 0
atomic_lock.sweep_databases = 'postgres'
atomic_lock.sweep_interval = '20ms'
});
$node->restart;
$watch = session($node, 'Watch');
ok(launcher($watch), 'a launcher with no slot left for its workers');
expire($watch, 'slot', 10);
ok($node->wait_for_log(qr/LOG:  could not start a sweep of database "postgres".*\n(?:.*DETAIL:  .*\n)?.*HINT:  .*max_worker_processes/), '... logs the reason, and what to do');
ok(soon($watch, q{SELECT bool_or(hint ~ 'max_worker_processes') FROM lock_sweeper_status()}), 'lock_sweeper_status says so') or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));
ask($watch, q{SELECT lock_acquire('held', '1 hour', 'o')});
is(ask($watch, q{SELECT status FROM lock_try_acquire('held', wait => '1 s')}), 'timeout', '... a second passes');
is(count_in_log($node, qr/could not start a sweep/), 1, '... and there is one line in the log');
my $written = -s $node->logfile;
$node->append_conf('postgresql.conf', q{atomic_lock.sweep_interval = '1h'});
$node->reload;
ok($node->wait_for_log(qr/could not start a sweep/, $written), '... and again after a reload, at the first failure');
is(ask($watch, q{SELECT lock_sweep()}), '10', '... lock_sweep() works by hand');
ok(launcher($watch), '... the launcher is still running');
end($watch);

# A parallel query has the only slot when a session requests an offer.
$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
$node->restart;
($watch, $other) = (session($node, 'Watch'), session($node, 'Other'));
my $sleeper = session($node, 'Sleeper');
ok(soon($watch, q{SELECT last_swept_at IS NOT NULL FROM lock_sweeper_status() WHERE database = 'postgres'}), 'the launcher has a slot for a worker');
ask($sleeper, q{SELECT set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')});
my $sleeps = q{FROM pg_stat_activity WHERE wait_event = 'PgSleep'};

sub free_slot
{
	ask($watch, 'SELECT pg_cancel_backend(' . pid($sleeper) . ')');
	answer($sleeper);
	return;
}

sub take_slot
{
	while (1)
	{
		start($sleeper, 'SELECT pg_sleep(3600)');
		poll($watch, "SELECT count(*) > 0 $sleeps");
		return if ask($watch, "SELECT backend_type $sleeps") eq 'parallel worker';
		# The sweep still had the slot.
		free_slot();
	}
	return;
}
take_slot();
ask($other, q{BEGIN; SELECT lock_acquire('offer', '1 hour', 'other')});
# The call asks for a sweep, too.  The launcher logs the first failure in a row.
$written = -s $node->logfile;
ask($watch, q{SELECT lock_enqueue('offer', 'one', 'One')});
ask($other, 'ROLLBACK');
ok($node->wait_for_log(qr/could not start a sweep/, $written), '... which a parallel query takes, so the sweep for an offer does not start');
free_slot();
ok(soon($watch, q{SELECT offered_until IS NOT NULL FROM lock_queue WHERE key = 'offer'}), '... the offer is made when the slot is free again');

# The same when nothing has changed since the last visit
$written = -s $node->logfile;
configure($node, $watch, 'log_min_messages = debug1');
$node->wait_for_log(qr/sweep of database "postgres"/, $written);
take_slot();
$written = -s $node->logfile;
ask($other, q{BEGIN; SELECT lock_acquire('rolled back'); ROLLBACK});
$node->wait_for_log(qr/could not start a sweep/, $written);
$written = -s $node->logfile;
free_slot();
$node->wait_for_log(qr/sweep of .*database "postgres"/, $written);
ok(soon($watch, q{SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher'}), '... and the launcher sleeps after that');
configure($node, $watch, 'log_min_messages = warning');
end($watch, $other, $sleeper);
$node->append_conf('postgresql.conf', q{
max_worker_processes = 0
atomic_lock.sweep_interval = '20ms'
});
$node->restart;
$watch = session($node, 'Watch');
expire($watch, 'none', 10);
is(ask($watch, q{SELECT status ~ '^not running' AND hint ~ 'log.*max_worker_processes.*restart' FROM lock_sweeper_status() WHERE database IS NULL}), 't', 'no slot for the launcher') or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));
is(ask($watch, q{SELECT lock_sweep()}), '10', '... lock_sweep() works by hand');
end($watch);
$node->append_conf('postgresql.conf', q{
max_worker_processes = 8
atomic_lock.sweep_batch = 100000
max_connections = 15
max_prepared_transactions = 100
max_locks_per_transaction = 10
});
$node->restart;
$watch = session($node, 'Watch');
expire($watch, 'slot', 10);
ok(swept($watch, 'slot'), 'after a restart with more slots, the sweep works');
my $xids = q{SELECT pg_snapshot_xmax(pg_current_snapshot())};
my $batches = ask($watch, $xids);
expire_rows($watch, 'lock', 5000);
ok(swept($watch, 'lock'), '... also if a batch does not fit into the lock table');
$batches = ask($watch, $xids) - $batches;
cmp_ok($batches, '<', 500, "... a batch uses a sixteenth of that: $batches batches");
is(count_in_log($node, qr/out of shared memory/), 0, '... and does not fill it');
is(ask($watch, q{SELECT count(*) FROM lock_sweeper_status() WHERE hint IS NOT NULL}), '0', '... and lock_sweeper_status has no hint') or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));

# A very short interval, with nothing to do
configure($node, $watch, 'atomic_lock.sweep_interval = 0.0001', q{atomic_lock.sweep_databases = ''});
end($watch);
$node->stop('fast');

done_testing();
