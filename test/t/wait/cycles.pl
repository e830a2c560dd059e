# Cycles of waiters, each built in as few steps as possible.  wait/not_granted has more
# cycles, and the other ways for a wait to end.
#
# Properties: a cycle can consist of three owners that wait for each other's leases, of two
# owners that wait for each other's paths, of two waiters and a row lock or a seat of a limited key, or of two sessions that wait for the end
# of each other, whatever their owners are.  In each cycle one waiter is refused as the
# victim, the others continue to wait, and the next waiter finds the queue in order.  A chain
# is no cycle.  If two waiters find the same cycle at once, one of them keeps its position.
# Two connections that convert the lock of one owner are no cycle.
#
# Turns red when: the search ends at the direct blockers, at a process that waits in
# the lock manager, or at a lease whose owner waits under another name; a victim
# keeps its position, or a lock on the queue; a victim leaves the queue only after it has
# returned; any second conversion counts as a cycle; a deadlock is not counted.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('cycles', @build);
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = 0
log_statement = none
autovacuum = off
deadlock_timeout = 1h
});
$node->start;
$node->safe_psql('postgres', q{CREATE EXTENSION atomic_lock; CREATE TABLE data (id int); INSERT INTO data VALUES (1)});

my ($watch, @sessions) = map { session($node, $_) } ('Watch', 'One', 'Two', 'Three');
my ($one, $two, $three) = @sessions;

# Only the session that has to find the cycle searches for one soon.
my $soon = q{SET deadlock_timeout = '50 ms';};

# Release all locks of a session and reset its settings.
sub discard_all
{
	my ($psql) = @_;
	ask($psql, 'SET client_min_messages = error; ROLLBACK');
	ask($psql, 'DISCARD ALL');
	return;
}

sub clean
{
	discard_all($_) for @sessions;
	ask($watch, 'TRUNCATE app_lock');
	is(ask($watch, 'SELECT count(*) FROM lock_waiters'), '0', '... and the queue is empty');
	return;
}

# Three owners
foreach my $closed (1, 0)
{
	ask($sessions[$_], "SELECT lock_acquire('key-$_', '1 hour', 'owner-$_')") for (0 .. ($closed ? 2 : 1));
	queue_up($watch, $sessions[$_], "SELECT status FROM lock_try_acquire('key-@{[$_ + 1]}', '1 hour', 'owner-$_', wait => '5 min')") for (0 .. ($closed ? 1 : 0));
	if ($closed)
	{
		start($three, "$soon SELECT status FROM lock_try_acquire('key-0', '1 hour', 'owner-2', wait => '5 min')");
		is(answer($three), 'deadlock', 'a cycle of three: one gets the answer deadlock');
		ok(is_waiting($watch, $one) && is_waiting($watch, $two), '... the others continue to wait');
		ask($three, q{SELECT lock_release('key-2', 'owner-2')});
		is(answer($two), 'acquired', '... the second acquires the key that the victim releases');
		ask($two, q{SELECT lock_release_all('owner-1')});
		is(answer($one), 'acquired', '... then the first acquires its key');
	}
	else
	{
		start($three, "$soon SELECT status FROM lock_try_acquire('key-0', '1 hour', 'owner-2', wait => '200 ms')");
		is(answer($three), 'timeout', 'a chain of three is no cycle');
		ask($two, q{SELECT lock_release_all('owner-1')});
		is(answer($one), 'acquired', '... the next waiter acquires the key');
	}
	clean();
}

# Two owners of paths
ask($sessions[$_], "SELECT count(*) FROM lock_acquire_path('p/$_', '1 hour', 'owner-$_')") for (0, 1);
queue_up($watch, $one, q{SELECT count(*) FROM lock_acquire_path('p/1', '1 hour', 'owner-0', '5 min')});
start($two, "$soon SELECT count(*) FROM lock_acquire_path('p/0', '1 hour', 'owner-1', '5 min')");
like(answer($two), qr/^ERROR:  40P01: /, 'two owners that want the path of each other are a cycle');
ask($two, q{SELECT lock_release_path('p/1', 'owner-1')});
is(answer($one), '2', '... the other acquires the path that the victim releases');
clean();

# Through a row lock
ask($two, 'BEGIN; UPDATE data SET id = 1');
ask($one, q{BEGIN; SELECT lock_acquire('key', '1 hour', 'one')});
start($one, 'UPDATE data SET id = 2');
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . pid($one));
start($two, "$soon SELECT status FROM lock_try_acquire('key', '1 hour', 'two', wait => '5 min')");
is(answer($two), 'deadlock', 'a cycle through a row lock: the waiter for the lock gets the answer deadlock');
ask($two, 'ROLLBACK');
is(answer($one), '', '... the update succeeds');
clean();

# Sessions with generated owners, and with named ones
foreach my $case ([ 'exclusive', 'NULL', 'NULL' ], [ 'shared', 'NULL', 'NULL' ], [ 'exclusive', "'one'", "'two'" ], [ 'shared', "'one'", "'two'" ])
{
	my ($mode, @owner) = @$case;

	ask($one, "SELECT lock_acquire('a', owner => $owner[0], mode => '$mode', lifetime => 'session')");
	ask($two, "SELECT lock_acquire('b', owner => $owner[1], mode => '$mode', lifetime => 'session')");
	queue_up($watch, $one, q{SELECT status FROM lock_try_acquire('b', wait => '5 min')});
	start($two, "$soon SELECT status FROM lock_try_acquire('a', wait => '5 min')");
	is(answer($two), 'deadlock', "two sessions that wait for the end of each other are a cycle, in mode $mode, owners @owner");
	discard_all($two);
	is(answer($one), 'acquired', '... the other acquires the lock that the victim discards');
	clean();
}

# A session holds a lock and waits for the snapshot of the session that waits for that lock.
ask($one, q{SELECT lock_acquire('a', owner => 'one', lifetime => 'session')});
queue_up($watch, $two, "$soon SELECT status FROM lock_try_acquire('a', owner => 'two', wait => '5 min')");
start($one, 'CREATE INDEX CONCURRENTLY ON data (id)');
is(answer($two), 'deadlock', 'a cycle through CREATE INDEX CONCURRENTLY: the waiter for the lock gets the answer deadlock');
is(answer($one), '', '... the index is built');
clean();

# Two waiters find the same cycle.  The second one is stopped between finding the cycle and
# resigning, while the first one resigns, and is stopped before it returns.
SKIP:
{
	skip 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS', 4 unless @build;
	my $stands = q{SELECT %s FROM pg_stat_activity WHERE wait_event = 'advisory' AND pid };
	my $both;

	# On a slow machine the first one may resign before the second one has searched.
	foreach my $later ('2 s', '30 s')
	{
		ask($watch, 'SELECT pg_advisory_lock(1706)');
		ask($one, q{SELECT lock_acquire('a', '1 hour', 'one'); SET atomic_lock.test_pause_at = 'resigned'});
		ask($two, q{SELECT lock_acquire('b', '1 hour', 'two'); SET atomic_lock.test_pause_at = 'cycle-confirmed'});
		queue_up($watch, $two, "$soon SELECT status FROM lock_try_acquire('a', '1 hour', 'two', wait => '5 min')");
		start($one, "SET deadlock_timeout = '$later'; SELECT status FROM lock_try_acquire('b', '1 hour', 'one', wait => '5 min')");
		poll($watch, sprintf("$stands = %d", 'count(*) = 1', pid($one)));
		$both = ask($watch, sprintf("$stands = %d", 'count(*)', pid($two)));
		last if $both;
		ask($watch, 'SELECT pg_advisory_unlock_all()');
		answer($one);
		ask($one, q{SELECT lock_release('a', 'one')});
		answer($two);
		clean();
	}
	ok($both, 'two waiters find the same cycle');
	kill 'STOP', pid($one);
	ask($watch, 'SELECT pg_advisory_unlock_all()');
	poll($watch, "SELECT state = 'idle' OR wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . pid($two));
	ok(is_waiting($watch, $two), '... one continues to wait');
	kill 'CONT', pid($one);
	is(answer($one), 'deadlock', '... the other gets the answer deadlock');
	ask($one, q{SELECT lock_release('a', 'one')});
	is(answer($two), 'acquired', '... and releases its lock');
	clean();
}

# One owner converts to exclusive on two connections.
ask($one, q{SELECT lock_acquire('k', '1 hour', o, 'shared') FROM unnest(ARRAY['one', 'other']) o});
queue_up($watch, $_, q{SELECT (lock_convert('k', 'one', wait => '5 min')).status}) for ($one, $two);
ask($three, q{SELECT lock_release('k', 'other')});
like(answer($_), qr/^(?:re)?acquired$/, 'two connections of one owner convert its lock') for ($one, $two);
clean();

# Two sharers both convert to exclusive.
ask($one, q{SELECT lock_acquire('quiet', '1 hour', 'one')});
ask($one, q{SELECT lock_acquire('k', '1 hour', o, 'shared') FROM unnest(ARRAY['one', 'two']) o});
ask($watch, 'SELECT lock_stats_reset()');
queue_up($watch, $one, q{SELECT (lock_convert('k', 'one', wait => '5 min')).status});
is( ask($watch, q{SELECT string_agg(concat_ws(' ', key, waiters, longest_wait >= '0'), ', ') FROM lock_activity}),
	'k 1 t, k 1 t, quiet 0', 'lock_activity lists keys with waiters first');
poll($watch, q{SELECT bool_and(longest_wait > '50 ms') FROM lock_activity WHERE key = 'k'});
like(reply($two, "$soon SELECT lock_convert('k', 'two', wait => '5 min')"), qr/40P01/, 'the second of two sharers that convert to exclusive is refused');
my $counted = q{SELECT deadlocks, waits, refusals, timeouts, grants FROM lock_stats WHERE database = 'postgres'};
is(ask($watch, $counted), '1|0|0|0|0', '... and counts as a deadlock');
ask($two, q{SELECT lock_release('k', 'two')});
is(answer($one), 'acquired', '... the first converts');
is(ask($watch, $counted), '1|1|0|0|0', '... and counts as a wait');
clean();

end($watch, @sessions);
$node->stop;
log_is_clean($node);

done_testing();
