# Backends that die, connections that break, transactions that grow too large.
#
# Properties: a lease does not depend on the connection that acquired it: it survives when
# that ends, is terminated, or is killed together with all others; an
# unfinished acquire ends with its backend; a call whose answer was lost can be
# repeated; a transaction beyond its limit of keys fails as a whole, and then
# holds nothing; thousands of savepoints do no harm.
#
# Turns red when: leases end with the session; state in the backend outlives an
# error (claims counted wrongly after a rollback or savepoint); the limit is
# checked after the grant was written, which survives; each call opens a
# subtransaction; the WAL of a token is not flushed before the token is shown.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('backends');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
autovacuum = off
restart_after_crash = on
wal_writer_delay = 10s
max_connections = 20
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

sub session
{
	return $node->background_psql('postgres', on_error_stop => 0);
}

my $watch = session();
sub holder
{
	my ($key) = @_;
	return ask($watch, "SELECT coalesce(lock_holder('$key'), 'nobody')");
}

# The session ends.
my $one = session();
ask($one, q{SELECT lock_acquire('ended', '1 hour', 'me', holder => 'Ann')});
ask($one, q{BEGIN; SELECT lock_acquire('unfinished', '1 hour', 'me', holder => 'Ann')});
my $pid = ask($one, 'SELECT pg_backend_pid()');
$one->quit;
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid") or die;
is(holder('ended'), 'Ann', 'a lease outlives its session');
is(ask($watch, q{SELECT (lock_try_acquire('unfinished', '1 hour', 'you')).status}), 'acquired', 'an unfinished acquire does not');
ask($watch, q{SELECT lock_release('unfinished', 'you')});

# The session is terminated.
$one = session();
$pid = ask($one, 'SELECT pg_backend_pid()');
ask($one, q{SELECT lock_acquire('terminated', '1 hour', 'me', holder => 'Bob')});
ask($one, q{BEGIN; SELECT lock_acquire('unfinished', '1 hour', 'me'), lock_release('terminated', 'me')});
ask($watch, "SELECT pg_terminate_backend($pid)");
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid") or die;
is(holder('terminated'), 'Bob', 'a lease outlives the termination of its backend, its unfinished release does not');
is(holder('unfinished'), 'nobody', '... nor does an unfinished acquire');
eval { $one->quit };

# The session is cancelled while it waits for a claim.
my $two = session();
$one = session();
$pid = ask($two, 'SELECT pg_backend_pid()');
ask($one, q{BEGIN; SELECT lock_extend('terminated', 'me')});
$two->query_until(qr/waiting/, "\\echo waiting\nSELECT lock_release('terminated', 'me');\n");
$node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid") or die;
is( ask($watch, "SELECT locktype, mode, objsubid, pg_blocking_pids(pid) = ARRAY[" . ask($one, 'SELECT pg_backend_pid()') . "]
		FROM pg_locks WHERE pid = $pid AND NOT granted"),
	'advisory|AccessExclusiveLock|1706|t', 'a waiting release shows in pg_locks');
ask($watch, "SELECT pg_cancel_backend($pid)");
$node->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid") or die;
ask($one, 'COMMIT');
is(holder('terminated'), 'Bob', 'a cancelled release releases nothing');
is(ask($watch, "SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'"), '0', '... and leaves no claim');
$two->query('SELECT 1');
like($two->{stderr}, qr/ERROR:  canceling statement due to user request/, '... its call fails');
$two->{stderr} = '';
is(ask($two, q{SELECT lock_release('terminated', 'me')}), 't', '... and can be repeated');
$two->quit;

# The backend is killed, and the server restarts itself.  A fencing token that is drawn after a
# checkpoint has WAL that only the commit would flush, which does not come.
ask($one, q{SELECT lock_acquire('killed', '1 hour', 'me', holder => 'Cyd')});
ask($one, 'CHECKPOINT');
my ($seen) = ask($one, q{BEGIN; SELECT (lock_acquire('unfinished', '1 hour', 'me')).fencing_token}) =~ /(\d+)/;
$pid = ask($one, 'SELECT pg_backend_pid()');
my $offset = -s $node->logfile;
PostgreSQL::Test::Utils::system_log('pg_ctl', 'kill', 'KILL', $pid);
$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
eval { $one->quit };
eval { $watch->quit };
$node->poll_query_until('postgres', 'SELECT true') or die;
$watch = session();
is(holder('killed'), 'Cyd', 'a lease outlives a killed backend and the restart');
is(holder('ended'), 'Ann', '... like any other');
is(holder('unfinished'), 'nobody', '... an unfinished acquire does not');
is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE objsubid = 1706}), '0', '... no claim is left');
is(ask($watch, q{SELECT (lock_try_acquire('killed', '1 hour', 'you')).status}), 'held', '... others are refused');
is(ask($watch, q{SELECT status || ' ' || holder FROM lock_acquire('killed', '1 hour', 'me')}), 'reacquired Cyd', '... the owner repeats its call and gets reacquired');
cmp_ok(ask($watch, q{SELECT fencing_token FROM lock_acquire('unfinished', '1 hour', 'you')}),
	'>', $seen, '... and a token that was seen is not given again, committed or not');
is(ask($watch, q{SELECT lock_release('killed', 'me')}), 't', '... and the lease can be released');

#
# Limits
#
ask($watch, q{SET atomic_lock.max_claims_per_transaction = 10});
sub fails
{
	my ($sql, $sqlstate, $name) = @_;
	ask($watch, '\set VERBOSITY verbose');
	$watch->query($sql);
	like($watch->{stderr}, qr/ERROR:  $sqlstate:/, $name);
	$watch->{stderr} = '';
	return;
}
my $acquire = q{SELECT count(*) FILTER (WHERE (lock_acquire('many-' || n, '1 hour', 'me')).acquired) FROM generate_series};
my $held = q{SELECT count(*) FROM lock_status() WHERE key LIKE 'many-%'};
fails("$acquire(1, 11) n", '54000', 'one key too many');
is(ask($watch, $held), '0', '... and no key is held');
ask($watch, "BEGIN; $acquire(1, 10) n");
fails("$acquire(11, 11) n", '54000', '... in a transaction');
ask($watch, 'ROLLBACK');
is(ask($watch, $held), '0', '... and no key is held');
is(ask($watch, "$acquire(1, 10) n"), '10', 'ten keys are allowed');
is(ask($watch, "$acquire(11, 20) n"), '10', '... and ten more in another transaction');

is(ask($watch, q{BEGIN; SELECT count(lock_extend('many-' || n, 'me')) FROM generate_series(1, 10) n}), '10', 'the limit counts keys: ten keys are extended');
is(ask($watch, q{SELECT count(lock_release('many-' || n, 'me')) FROM generate_series(1, 10) n}), '10', '... released');
is(ask($watch, "$acquire(1, 10) n; COMMIT"), '10', '... and acquired again');

# Claims that a savepoint gave back do not count, and neither do refusals.
ask($watch, "BEGIN; $acquire(21, 25) n; SAVEPOINT s; $acquire(26, 30) n; ROLLBACK TO s");
is(ask($watch, "$acquire(31, 35) n"), '5', 'keys of a savepoint that was rolled back do not count');
fails("$acquire(36, 36) n", '54000', '... keys from before the savepoint do');
ask($watch, 'ROLLBACK TO s');
is(ask($watch, "SAVEPOINT t; $acquire(31, 34) n; RELEASE t; $acquire(35, 35) n"), "4\n1", '... keys of a savepoint after an error do not count');
fails("$acquire(36, 36) n", '54000', '... keys of a released savepoint do');
ask($watch, 'ROLLBACK');
is( ask($watch, "BEGIN; SELECT count(*) FILTER (WHERE NOT (lock_try_acquire('unfinished', owner => 'x' || n)).acquired) FROM generate_series(1, 100) n;
		SELECT count(*) FILTER (WHERE lock_try_release('unfinished', 'x' || n) = 'not_owner') FROM generate_series(1, 100) n;
		$acquire(21, 30) n; ROLLBACK"),
	"100\n100\n10", 'refusals do not count');

ask($watch, 'RESET atomic_lock.max_claims_per_transaction');
ask($watch, q{SELECT lock_release('ended', 'me')});
is(ask($watch, "$acquire(1, 20) n"), '20', 'twenty leases');
ask($watch, q{SET atomic_lock.max_claims_per_transaction = 15});
fails(q{SELECT lock_release_all('me')}, '54000', 'release_all beyond the limit');
is(ask($watch, $held), '20', '... releases nothing');
ask($watch, 'RESET atomic_lock.max_claims_per_transaction');
is(ask($watch, q{SELECT lock_release_all('me')}), '20', '... and within the limit releases all');

# The default limit fits into the default lock table.
is(ask($watch, "$acquire(1, 1000) n"), '1000', 'a thousand keys in one transaction');
fails("$acquire(2001, 3001) n", '54000', '... and not one more');
is(ask($watch, q{SELECT lock_release_all('me')}), '1000', '... all are released in one transaction');

# Thousands of savepoints, and calls in a loop with an exception handler
is( ask($watch, q{
DO $$
BEGIN
	FOR i IN 1..3000 LOOP
		BEGIN
			PERFORM lock_acquire('sub', '1 hour', 'me');
			IF i % 2 = 0 THEN RAISE EXCEPTION 'undo'; END IF;
			PERFORM lock_release('sub', 'me');
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
	END LOOP;
END $$;
SELECT lock_try_release('sub', 'me')}), 'already_released', 'three thousand subtransactions leave a released key');
is( ask($watch, q{
BEGIN;
SELECT count(*) FILTER (WHERE (lock_acquire('plain', '1 hour', 'me')).acquired AND lock_release('plain', 'me')) FROM generate_series(1, 1000);
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - pg_current_xact_id()::text::bigint <= 1;
COMMIT}), "1000\nt", 'a call opens no subtransaction');

$watch->quit;
$node->stop;
done_testing();
