# Waiting where atomic_lock is not preloaded.
#
# Properties: waits are granted, time out and end with the lease as with a preloaded
# library.  From PostgreSQL 17 on there is a queue, too, which the first session to use it
# makes.  Before 17 there is no queue: waiters look at intervals, lock_waiters cannot know the
# waiters, and raises an error with the reason.  Sweeping is done by hand, and
# lock_sweeper_status() says so; counters are there where a queue is.
#
# Turns red when: waiting needs the preload; the queue ends with the session
# that made it, or each session has its own; polls continue for ever, or there are
# none; lock_waiters shows an empty queue where no queue exists; counters are all
# zero there, or the sweep needs them.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('wait_unloaded');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
autovacuum = off
max_prepared_transactions = 10
deadlock_timeout = 100ms
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my $has_queue = $node->pg_version >= 17;
note $has_queue ? 'a queue in dynamic shared memory' : 'no queue';

my ($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');

#
# Sweeping, and what monitoring shows
#
is(ask($watch, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'atomic_lock%'}), '0', 'no launcher');
is(ask($watch, q{SELECT database IS NULL, status, hint ~ 'shared_preload_libraries' FROM lock_sweeper_status()}), 't|not running: atomic_lock is not preloaded|t', 'lock_sweeper_status says that nothing sweeps, and what to do')
  or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));
expire($holder, 'sweep', 7);
is(ask($watch, q{SELECT lock_sweep(3), lock_sweep()}), '3|4', 'a sweep by hand');
ask($holder, q{SELECT lock_acquire('lease', '1 hour', 'holder'), lock_acquire('session', owner => 'holder', lifetime => 'session')});
is(ask($watch, q{SELECT string_agg(concat_ws(' ', key, holder, held_for >= '0', time_left > '0', pid), ', ' ORDER BY key) FROM lock_activity}), 'lease Holder t t, session Holder t ' . pid($holder), 'lock_activity shows holders and their keys');
is(ask($watch, q{SELECT string_agg(concat_ws(' ', key, application, session_state), ', ' ORDER BY key) FROM lock_activity}), 'lease, session Holder idle', '... and the state of the session that holds a key');
is(ask($watch, q{SELECT bool_and(waiters = 0), bool_or(waiters IS NOT NULL), bool_or(longest_wait IS NOT NULL) FROM lock_activity}), $has_queue ? 't|t|f' : '|f|f', '... and the number of waiters, as far as that is known');
ask($holder, q{SELECT lock_release_all('holder')});
if ($has_queue)
{
	is(ask($watch, q{SELECT grants, releases, expirations, swept FROM lock_stats WHERE database = current_database()}), '9|2|7|7', 'counters');
	is(ask($watch, q{SELECT lock_stats_reset(); SELECT grants, swept FROM lock_stats WHERE database = current_database(); SELECT count(*) FROM lock_contention}), "\n0|0\n0", '... reset');
}
else
{
	foreach my $sql ('SELECT * FROM lock_stats', 'SELECT * FROM lock_contention', 'SELECT lock_stats_reset()')
	{
		start($watch, $sql);
		like(answer($watch), qr/^ERROR:  55000: .*\n(?:.*\n)*HINT:  Add atomic_lock to shared_preload_libraries/, "$sql: an error, since there are no counters");
	}
}
ask($watch, 'TRUNCATE app_lock');

# Start SQL that waits for a lock.
sub wait_with
{
	my ($psql, $sql) = @_;

	return queue_up($watch, $psql, $sql, "SELECT wait_event_type = 'Extension' AND state = 'active' FROM pg_stat_activity WHERE pid = " . pid($psql));
}
sub waiting
{
	my ($key, $owner) = @_;
	return "SELECT status FROM lock_try_acquire('$key', '1 hour', '$owner', wait => '5 min')";
}

if ($has_queue)
{
	# The session that makes the queue does not wait, and has ended when others wait.
	my $first = session($node, 'First');
	is(ask($first, q{SELECT lock_acquire('k', '1 hour', 'holder') IS NOT NULL; SELECT count(*) FROM lock_waiters}), "t\n0", 'the first session to use the queue') ;
	end($first);
	gone($watch, pid($first));

	queue_up($watch, $one, waiting('k', 'one') . q{; SELECT lock_release('k', 'one')});
	queue_up($watch, $two, waiting('k', 'two'));
	is(ask($watch, q{SELECT string_agg(concat_ws(' ', place, holder, blocked_by), ', ' ORDER BY place) FROM lock_waiters}), '1 One First, 2 Two First', 'lock_waiters shows the waiters');
	is(ask($watch, q{SELECT waiters FROM lock_status('k')}), '2', '... lock_status counts them');
	ask($holder, q{SELECT lock_release('k', 'holder')});
	is(answer($one), "acquired\nt", 'a release by a session that has only just loaded the library wakes the first in the queue');
	is(answer($two), 'acquired', '... and the next one after that');
	ask($two, q{SELECT lock_release('k', 'two')});
	is(ask($watch, q{SELECT count(*) FROM lock_waiters}), '0', '... the queue is empty');
}
else
{
	start($watch, 'SELECT * FROM lock_waiters');
	like(answer($watch), qr/^ERROR:  55000: list of waiters is not available on this server\nDETAIL:  .*polls?\b.*\nHINT:  Add atomic_lock to shared_preload_libraries/, 'lock_waiters raises an error that says what is missing');
	ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
	wait_with($one, waiting('k', 'one'));
	is(ask($watch, q{SELECT locked, waiters IS NULL FROM lock_status('k')}), 't|t', 'lock_status shows an unknown number of waiters');
	is(ask($watch, q{SELECT waiters IS NULL FROM lock_status()}), 't', '... of all keys');
	ask($holder, q{SELECT lock_release('k', 'holder')});
	is(answer($one), 'acquired', '... the waiter notices a release');
	ask($one, q{SELECT lock_release('k', 'one')});
}

# All ways to end a holding
$holder = play_endings($node, $holder, $one, $two,
	sub { wait_with($one, waiting($_[0], 'waiter')) },
	sub { is(answer($one), 'acquired', "granted: $_[0]") });
ask($holder, q{BEGIN; SELECT lock_acquire('k', '1 hour', 'holder'); PREPARE TRANSACTION 'p'});
wait_with($one, waiting('k', 'one'));
ask($two, q{ROLLBACK PREPARED 'p'});
is(answer($one), 'acquired', 'granted: ROLLBACK PREPARED');
ask($one, q{SELECT lock_release('k', 'one')});

# All ways to end a wait
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
is(ask($one, q{SELECT status, holder, waited >= interval '250 ms' FROM lock_try_acquire('k', wait => '250 ms')}), 'timeout|Holder|t', 'a wait ends by a time-out');
wait_with($one, waiting('k', 'one'));
ask($watch, 'SELECT pg_cancel_backend(' . pid($one) . ')');
like(answer($one), qr/^ERROR:  57014/, '... by a cancel');
start($one, q{BEGIN; SET LOCAL statement_timeout = '100 ms'; } . waiting('k', 'one'));
like(answer($one), qr/^ERROR:  57014: canceling statement due to statement timeout/, '... by statement_timeout');
ask($one, 'ROLLBACK');
my $dead = session($node, 'Dead');
ask($dead, 'SET client_connection_check_interval = 0');
wait_with($dead, waiting('k', 'dead'));
$dead->{run}->signal('KILL');
end($dead);
gone($watch, pid($dead));
is(ask($watch, q{SELECT lock_holder('k')}), 'Holder', '... by the death of the client');
wait_with($one, waiting('k', 'one'));
ask($watch, 'SELECT pg_terminate_backend(' . pid($one) . ')');
like(answer($one), qr/^FATAL:  57P01/, '... by a termination');
end($one);
$one = session($node, 'One');
ask($holder, q{SELECT lock_release('k', 'holder')});
is(ask($two, q{SELECT status FROM lock_try_acquire('k', owner => 'two')}), 'acquired', '... and none of these waiters is in the way of the next acquire');

# A cycle: without a queue it ends when the time of one wait has run out.
ask($one, q{SELECT lock_acquire('x', '1 hour', 'one')});
wait_with($one, "SELECT status FROM lock_try_acquire('k', owner => 'one', wait => '" . ($has_queue ? '5 min' : '700 ms') . "'); SELECT lock_release_all('one')");
start($two, q{SET deadlock_timeout = '1 h'; } . waiting('x', 'two'));
like(answer($one), $has_queue ? qr/^deadlock\n/ : qr/^timeout\n/, 'a cycle');
is(answer($two), 'acquired', '... the other acquires the key');

# Two owners that share a lock both convert to exclusive: the second one is refused, also without a queue.
ask($holder, q{SELECT lock_acquire('both', '1 hour', o, 'shared') FROM unnest(ARRAY['one', 'two']) o});
wait_with($one, q{SELECT (lock_convert('both', 'one', wait => '5 min')).status});
like(reply($two, q{SELECT lock_convert('both', 'two', wait => '10 s')}), qr/40P01/, 'the second of two conversions to exclusive is a deadlock');
ask($two, q{SELECT lock_release('both', 'two')});
is(answer($one), 'acquired', '... the first one is granted');

# A crash empties the queue.
ask($holder, q{SELECT lock_acquire('last', '1 hour', 'holder')});
wait_with($one, waiting('last', 'one'));
$node->stop('immediate');
end($watch, $holder, $one, $two);
$node->start;
($watch, $holder, $one) = map { session($node, $_) } ('Watch', 'Holder', 'One');
is(ask($watch, 'SELECT count(*) FROM lock_waiters'), '0', 'after a crash the queue is empty') if $has_queue;
wait_with($one, waiting('last', 'one'));
is(ask($holder, q{SELECT lock_release('last', 'holder')}), 't', 'after a crash the lease is there');
is(answer($one), 'acquired', '... and a waiter acquires the key');

end($watch, $holder, $one);
$node->stop;
log_is_clean($node);

done_testing();
