# The background sweep is interrupted.
#
# Needs a build with AL_TEST_HOOKS, where a sweep can be stopped
# between its look at a row and the claim, or between a row that it has removed
# and the next, and can judge by a later time; waiters sleep until they are
# woken.
#
# Properties: the sweep of a key wakes its waiter; a row is judged again
# before it is deleted; an acquire of a key that a sweep has claimed looks again for a
# moment; a worker that is cancelled, terminated or killed at any
# moment leaves no part of a batch, and another one comes; DROP EXTENSION and LOCK
# TABLE wait for a batch and no longer; a worker that is stopped delays no
# shutdown; the counters add up,
# whatever the clock of the sweep says; a worker follows settings that change between two
# batches, and rests between them; a visit that could not sweep every row is followed by
# another at once.
#
# Turns red when: rows are deleted by key; a batch is more than one transaction;
# no waiter is woken, or one before the commit; the launcher waits for its worker in a
# way that signals disturb; removals that are rolled back are counted.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS' unless $ENV{AL_HOOKS};

my $node = PostgreSQL::Test::Cluster->new('sweeper_hooks', install_path => $ENV{AL_HOOKS});
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
restart_after_crash = on
deadlock_timeout = 1h
atomic_lock.sweep_interval = '50ms'
atomic_lock.sweep_batch = 100
atomic_lock.max_wait = '1h'
atomic_lock.test_sleep_cap = '1h'
atomic_lock.test_longest_visit = '1h'
});
$node->start;
my $watch = session($node, 'Watch');
ask($watch, 'CREATE EXTENSION atomic_lock');
my ($holder, $one) = map { session($node, $_) } ('Holder', 'One');

# A waiter for a key whose row the sweep removes
ask($holder, q{SELECT lock_acquire('k', '200 ms', 'holder')});
queue_up($watch, $one, q{SET atomic_lock.lock_delay = '1 h'; SELECT status FROM lock_try_acquire('k', '1 hour', 'one', wait => '1 h')});
is(answer($one), 'acquired', 'a waiter whose lock_delay is longer than that of the sweep is woken by the sweep');
ask($one, q{RESET atomic_lock.lock_delay; SELECT lock_release('k', 'one')});
ask($holder, q{SELECT lock_acquire('k-1', '1 hour', 'holder')});
queue_up($watch, $one, q{SELECT status FROM lock_try_acquire('k-1', '1 hour', 'one', wait => '1 h')});
kill 'STOP', pid($one);
ask($holder, q{SELECT lock_extend('k-1', 'holder', '1 ms')});
ok(swept($watch, 'k'), 'an expired lease is swept while a waiter is stopped');
kill 'CONT', pid($one);
is(answer($one), 'acquired', '... the waiter is granted the key');
ask($one, q{SELECT lock_release('k-1', 'one')});
ask($watch, 'DELETE FROM app_lock');

#
# The clock: a sweep that assumes a later time (or the same time) counts the
# rows that it removes, and nothing else.
#
configure($node, $watch, 'atomic_lock.sweep_interval = 0');
ok(soon($watch, q{SELECT status ~ '^turned off' FROM lock_sweeper_status() WHERE database IS NULL}), 'turned off');
ask($watch, 'SELECT lock_stats_reset()');
my $counters = q{SELECT grants, releases, expirations, forced, swept FROM lock_stats WHERE database = 'postgres'};
ask($watch, q{SELECT count(lock_acquire('min-' || n, n * interval '1 min', 'o')) FROM generate_series(1, 30) n});
ask($watch, q{SELECT count(lock_release('min-' || n, 'o')) FROM generate_series(1, 5) n});
ask($watch, q{SELECT force_release('min-6', 'test')});
is(ask($watch, "SELECT lock_sweep(); $counters"), "0\n30|5|0|1|0", 'a sweep that finds nothing to remove');
is(ask($watch, "SET atomic_lock.test_sweep_ahead = '10 min'; SELECT lock_sweep(); $counters"), "4\n30|5|4|1|4", 'ten minutes later: leases of 7 to 10 minutes');
is(ask($watch, "SELECT lock_sweep(); $counters"), "0\n30|5|4|1|4", '... counted once');
is(ask($watch, q{SET atomic_lock.test_sweep_ahead = '61 min'; SELECT lock_sweep(12)}), '12', 'an hour later: a part of the rows');
is(ask($watch, q{SELECT lock_sweep(100)}), '14', '... and the rest');
is(ask($watch, $counters), '30|5|24|1|30', '... the counters have all leases, and the released keys');
is(ask($watch, q{SELECT grants = releases + expirations + forced + (SELECT count(*) FROM app_lock WHERE NOT released) FROM lock_stats WHERE database = 'postgres'}), 't', 'the counters add up');
ask($watch, 'RESET atomic_lock.test_sweep_ahead');

# A sweep that is rolled back counts nothing.
ask($watch, 'SELECT lock_stats_reset()');
expire($watch, 'back', 10);
is(ask($watch, "BEGIN; SELECT lock_sweep(4); ROLLBACK; $counters"), "4\n10|0|0|0|0", 'a sweep that is rolled back is not counted');
is(ask($watch, "BEGIN; SAVEPOINT s; SELECT lock_sweep(4); ROLLBACK TO s; SELECT lock_sweep(3); COMMIT; $counters"), "4\n3\n10|0|3|0|3", '... nor one that is rolled back to a savepoint');
is(ask($watch, "SELECT lock_sweep(100); $counters"), "7\n10|0|10|0|10", '... the other rows are counted');

# The worker judges by a clock that is an hour ahead.
ask($watch, q{SELECT lock_stats_reset(); SELECT count(lock_acquire('min-' || n, n * interval '1 min', 'o')) FROM generate_series(41, 100) n});
configure($node, $watch, q{atomic_lock.test_sweep_ahead = '1h'}, q{atomic_lock.sweep_interval = '50ms'}, 'atomic_lock.sweep_batch = 7');
ok(soon($watch, q{SELECT count(*) = 40 FROM app_lock}), 'the clock of the worker jumps an hour ahead: it removes leases that have expired by that clock');
ok(soon($watch, q{SELECT sweeps > 1 FROM lock_stats WHERE database = 'postgres'}), '... and sweeps again');
is(ask($watch, "SELECT count(*), min(ttl_us) / 60000000 FROM app_lock; $counters"), "40|61\n60|0|20|0|20", '... it removes no others, and counts each once');
configure($node, $watch, q{atomic_lock.test_sweep_ahead = 0}, 'atomic_lock.sweep_batch = 100');
ask($watch, q{SELECT lock_release_all('o'); DELETE FROM app_lock});

#
# A row is judged again after it was chosen.
#
configure($node, $watch, q{atomic_lock.test_pause_at = 'sweep-chosen'});
ok(sweep_passes($watch), 'sweeps pass');
foreach my $how (
	[ 'another owner acquires the key', q{SELECT status FROM lock_acquire('chosen-1', '1 hour', 'new')}, 'acquired' ],
	[ '... and releases it', q{SELECT lock_acquire('chosen-1', '1 hour', 'new') IS NOT NULL AND lock_release('chosen-1', 'new')}, 't' ],
	[ 'its owner acquires it again', q{SELECT status FROM lock_acquire('chosen-1', '1 hour', 'owner of chosen')}, 'acquired' ],
	[ 'a transaction acquires it', q{BEGIN; SELECT status FROM lock_acquire('chosen-1', '1 hour', 'new')}, 'acquired' ],
	[ 'an administrator steals it', q{SELECT status FROM lock_steal('chosen-1', 'new', 'test')}, 'acquired' ],
	[ 'another sweep is first', q{SET atomic_lock.test_pause_at = ''; SELECT lock_sweep(); RESET atomic_lock.test_pause_at}, '1' ],
	[ 'the row is deleted', q{DELETE FROM app_lock WHERE key = 'chosen-1' RETURNING 1}, '1' ])
{
	my ($name, $sql, $expected) = @$how;

	pause_sweep($holder);
	expire($watch, 'chosen', 1);
	ok(worker_stands($watch), 'a worker has chosen a row');
	is(ask($one, $sql), $expected, "... $name");
	my $rows = ask($one, q{SELECT string_agg(fencing_token || ' ' || owner, ',') FROM app_lock});
	let_sweep($holder);
	ok(sweep_passes($watch), '... the worker continues');
	is(ask($one, q{SELECT string_agg(fencing_token || ' ' || owner, ',') FROM app_lock}), $rows, '... and has not removed another row');
	ask($one, 'COMMIT') if $sql =~ /BEGIN/;
	ask($one, 'DELETE FROM app_lock');
}
configure($node, $watch, q{atomic_lock.test_pause_at = 'sweep-removed'});
ok(sweep_passes($watch), 'sweeps pass');

#
# In the middle of a batch
#
my $stand = sub {
	my ($prefix) = @_;
	my $pid;

	pause_sweep($holder);
	expire($watch, $prefix, 250);
	$pid = worker_stands($watch);
	ok($pid, "a worker is stopped in a batch: $prefix");
	return $pid;
};

my $worker = $stand->('look');
is(ask($watch, "SELECT datname, backend_type FROM pg_stat_activity WHERE pid = $worker"), 'postgres|atomic_lock sweeper', 'the worker in pg_stat_activity');
like(ask($watch, "SELECT query, state FROM pg_stat_activity WHERE pid = $worker"), qr/^sweeping\b.*\|active$/, '... shows what it does');
is(ask($watch, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'atomic_lock%'}), '2', '... there is one worker');
is(ask($watch, q{SELECT count(*) FROM app_lock}), '250', '... its removals are not visible before the commit');
is(ask($one, q{SELECT count(*) FILTER (WHERE status = 'acquired'), count(*) FILTER (WHERE status = 'pending'), clock_timestamp() - statement_timestamp() > '400 ms' FROM generate_series(1, 250) n, lock_try_acquire('look-' || n, '1 ms', 'other')}), '249|1|t', '... the key of the removed row, and only that, cannot be acquired yet, and the call waits a moment before it is refused');
configure($node, $watch, 'atomic_lock.sweep_batch = 5', q{atomic_lock.sweep_interval = '60ms'});
my $xids = q{SELECT pg_snapshot_xmax(pg_current_snapshot())};
my $batches = ask($watch, $xids);
let_sweep($holder);
ok(swept($watch, 'look'), 'settings change, and the worker continues');
$batches = ask($watch, $xids) - $batches;
cmp_ok($batches, '>=', 30, "... with the new size of batches: $batches");
configure($node, $watch, 'atomic_lock.sweep_batch = 50');

# The worker is cancelled, or terminated.
foreach my $what ('cancel', 'terminate')
{
	my $pid = $stand->($what);

	ask($watch, "SELECT pg_${what}_backend($pid)");
	ok(soon($watch, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"), "$what: the worker has ended") if $what eq 'terminate';
	let_sweep($holder);
	ok(swept($watch, $what), '... its rows are swept later');
}
ok(launcher($watch), '... the launcher is still running');
note join "\n", grep { /canceling|terminating|sweep of/ } split /\n/, log_of($node);
cmp_ok(count_in_log($node, qr/canceling statement/), '<=', 1, '... the log has at most one line for the cancel');
cmp_ok(count_in_log($node, qr/FATAL:  terminating/), '<=', 1, '... and one for the termination');

# The worker is terminated at any moment; the launcher tries again, after a delay that grows
# with each failure, or after a reload.
configure($node, $watch, 'atomic_lock.sweep_batch = 1');
foreach my $n (1 .. 5)
{
	expire_rows($watch, "any$n", 3000);
	poll($watch, q{SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'});
	configure($node, $watch, q{atomic_lock.sweep_interval = '50ms'});
}
configure($node, $watch, 'atomic_lock.sweep_batch = 1000');
ok(swept($watch, 'any%'), 'workers are terminated at any moment: every row is swept') or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));

configure($node, $watch, 'atomic_lock.sweep_batch = 50');

# A visit ends before every row is swept: the next one does not wait for the interval.
# Only the worker sees the setting of the database: each visit ends after a batch, and the
# launcher, which ends a worker that is late, has an hour.
configure($node, $watch, q{atomic_lock.sweep_interval = 0}, 'atomic_lock.sweep_batch = 1');
poll($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'});
ask($watch, q{ALTER DATABASE postgres SET atomic_lock.test_longest_visit = 0});
expire($watch, 'long', 4);
my $visits = ask($watch, q{SELECT sweeps FROM lock_stats WHERE database = 'postgres'});
configure($node, $watch, q{atomic_lock.sweep_interval = '1h'});
ok(swept($watch, 'long'), 'a visit that ends before every row is swept is followed by another');
ok(soon($watch, "SELECT sweeps - $visits >= 4 FROM lock_stats WHERE database = 'postgres'"), '... a batch each');
ask($watch, q{ALTER DATABASE postgres RESET atomic_lock.test_longest_visit});

# Batches that are large enough for a visible rest
configure($node, $watch, q{atomic_lock.sweep_interval = '50ms'}, 'atomic_lock.sweep_batch = 1000');
my $rests = 0;
foreach my $n (1 .. 20)
{
	last if $rests;
	expire_rows($watch, "rest$n", 20_000);
	until ($rests || ask($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key LIKE 'rest%'}) eq 't')
	{
		$rests = ask($watch, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper' AND wait_event_type = 'Extension'});
	}
}
ok($rests, 'a sweep rests between two batches');
ask($watch, q{DELETE FROM app_lock WHERE key LIKE 'rest%'});
configure($node, $watch, 'atomic_lock.sweep_batch = 50');

# The worker is killed while sweeping is turned off, so that its leftovers would be visible.
$worker = $stand->('kill');
configure($node, $watch, 'atomic_lock.sweep_interval = 0');
my $status = q{SELECT status FROM lock_sweeper_status() WHERE database IS NULL};
like(ask($watch, $status), qr/^being turned off/, '... sweeping is being turned off');
my $crashes = count_in_log($node, qr/all server processes terminated; reinitializing/);
kill 'KILL', $worker;
end($watch, $holder, $one);
ok($node->wait_for_log(qr/all server processes terminated; reinitializing/), 'the worker is killed: the server restarts');
await_restart($node);
($watch, $holder, $one) = map { session($node, $_) } ('Watch', 'Holder', 'One');
is(ask($watch, q{SELECT count(*) FROM app_lock WHERE key LIKE 'kill-%'}), '250', '... nothing of its batch was removed');
is(ask($one, q{SELECT count(*) FROM generate_series(1, 250) n, lock_try_acquire('kill-' || n, '1 ms', 'other') WHERE acquired}), '250', '... and no row is locked');
configure($node, $watch, q{atomic_lock.sweep_interval = '50ms'});
ok(swept($watch, 'kill'), '... the rows are swept when sweeping is turned on again');
$worker = $stand->('again');
my $logged = -s $node->logfile;
kill 'KILL', $worker;
end($watch, $holder, $one);
ok($node->wait_for_log(qr/all server processes terminated; reinitializing/, $logged), 'a worker is killed again: the server restarts');
await_restart($node);
($watch, $holder, $one) = map { session($node, $_) } ('Watch', 'Holder', 'One');
ok(swept($watch, 'again'), '... the launcher is back by itself');
is(count_in_log($node, qr/all server processes terminated; reinitializing/), $crashes + 2, '... after one restart for each kill');

# DROP EXTENSION
$stand->('drop');
start($one, 'DROP EXTENSION atomic_lock');
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . pid($one));
pass('DROP EXTENSION waits for the batch');
let_sweep($holder);
is(answer($one), '', '... and not longer');
is(ask($watch, q{SELECT count(*) FROM pg_extension WHERE extname = 'atomic_lock'; CREATE EXTENSION atomic_lock}), '0', 'CREATE EXTENSION');
# sessions that have seen the former extension, and a new one
expire($holder, 'new', 50);
ok(swept($watch, 'new'), '... the new table is swept');
foreach my $n (1 .. 5)
{
	expire_rows($watch, "many$n", 2000);
	start($one, "DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock");
	is(answer($one), '', 'the extension is dropped at any moment');
}
expire($watch, 'last', 50);
ok(swept($watch, 'last'), '... the last table is swept');

# A session locks the table between two batches.
$stand->('table');
start($one, 'BEGIN; LOCK app_lock');
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . pid($one));
let_sweep($holder);
is(answer($one), '', 'LOCK TABLE waits for the batch, too');
ok(soon($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'}), '... the worker does not wait for that lock');
is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE relation = 'app_lock'::regclass AND NOT granted}), '0', '... nor does another session');
ask($one, 'ROLLBACK');
ok(swept($watch, 'table'), '... but the sweep comes again when the lock is released');

# A worker that does not end by itself: other databases are swept meanwhile.
ask($watch, 'CREATE DATABASE second');
my $second = session($node, 'Second', 'second');
ask($second, 'CREATE EXTENSION atomic_lock');
configure($node, $watch, q{atomic_lock.test_longest_visit = '250ms'});
my $failures = count_in_log($node, qr/sweep of database "postgres" failed/);
my $hung = $stand->('hung');
expire($second, 'other', 3);
ok(swept($second, 'other'), 'a worker is stopped, and another database is swept');
is(ask($watch, "SELECT count(*) FROM pg_stat_activity WHERE pid = $hung"), '0', '... since the launcher has ended the worker');
is(count_in_log($node, qr/sweep of database "postgres" failed/), $failures, '... which does not count as a failure');
configure($node, $watch, q{atomic_lock.test_longest_visit = '1h'});
let_sweep($holder);
ok(swept($watch, 'hung'), '... the rest of its rows is swept later');
end($second);

# Shutdown while a worker is stopped in a batch
$stand->('stop');
$node->stop('fast');
end($watch, $holder, $one);
is(unexpected_lines($node, qr/WARNING:  PID \d+ is not a PostgreSQL|FATAL:  terminating|ERROR:  canceling|terminated by signal 9|WARNING:  terminating connection because of crash|FATAL:  the database system is (?:in recovery mode|starting up|shutting down|not yet accepting)/), '', 'nothing unexpected in the log');

done_testing();
