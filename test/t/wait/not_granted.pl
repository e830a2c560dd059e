# Waits that end without a grant: cancelled, timed out, killed, in a cycle.
#
# AL_STORM in the environment sets the number of disturbances of the storm at the end.
#
# Properties: however a wait ends, the waiter leaves the queue, the others keep their
# positions, the next one gets the key, and no lease belongs to a call that failed or to a
# client that is dead; a shutdown does not wait for waiters, and the crash of another backend
# keeps leases and empties the queue; an upgrade that does not run, and has lost its share, stops
# no other upgrade.  A cycle of owners or unfinished transactions, of any
# length, also where a part of it waits in the lock manager, ends with one victim, whose error
# shows the cycle and no owner; a mere chain has no victim.
#
# Turns red when: a position is not given back on error or at exit; the sleep ignores
# interrupts, or the end of the client; the queue outlives a crash; a search looks at leases
# only or at transactions only, or only at the moment when a waiter comes; one cycle has two
# victims, or a chain has one; a claim that was taken while waiting is kept.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $disturbances = $ENV{AL_STORM} || 500;

my $node = PostgreSQL::Test::Cluster->new('wait_ends');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 1000
restart_after_crash = on
deadlock_timeout = 100ms
log_min_messages = log
log_lock_waits = off
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock; CREATE TABLE data (id int PRIMARY KEY, n int); INSERT INTO data VALUES (1, 0), (2, 0)');

my $watch = session($node, 'Watch');
my $holder = session($node, 'Holder');
my ($one, $two, $three);

# No session waits, holds a lock, or has a claim.
sub all_clear
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( ask($watch, q{SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM lock_status()),
			(SELECT count(*) FROM pg_locks WHERE objsubid = 1706)}),
		'0|0|0', $name);
	return;
}

sub kill_client
{
	my ($psql) = @_;
	$psql->{run}->signal('KILL');
	return;
}

#
# A single wait ends: that of the first in the queue, and one in the middle.
#
my $acquire = q{SELECT status FROM lock_acquire('k', '1 hour', 'victim', wait => '5 min')};
my $canceled = qr/^ERROR:  57014: canceling statement due to user request/;
my $lost = qr/server closed the connection|connection to server was lost/;
my @ends = (
	# name, before, done by another session or us, the answer, whether the session is gone
	[ 'cancel', '', 'SELECT pg_cancel_backend(PID)', $canceled, 0 ],
	[ 'cancel in a transaction', q{BEGIN; SELECT lock_acquire('mine', '1 hour', 'victim')}, 'SELECT pg_cancel_backend(PID)', $canceled, 0 ],
	[ 'statement_timeout', q{BEGIN; SET LOCAL statement_timeout = '800 ms'}, 'SELECT 1', qr/^ERROR:  57014: canceling statement due to statement timeout/, 0 ],
	[ 'terminate', q{BEGIN; SELECT lock_acquire('mine', '1 hour', 'victim')}, 'SELECT pg_terminate_backend(PID)', qr/^FATAL:  57P01:/, 1 ],
	[ 'client killed', q{SET client_connection_check_interval = 0}, \&kill_client, undef, 1 ],
	[ 'client killed, in a transaction', q{SET client_connection_check_interval = 0; BEGIN; SELECT lock_acquire('mine', '1 hour', 'victim')}, \&kill_client, undef, 1 ],
	[ 'client killed, connection checked', q{SET client_connection_check_interval = '50 ms'}, \&kill_client, undef, 1 ]);
push @ends, [ 'transaction_timeout', q{SET transaction_timeout = '800 ms'}, 'SELECT 1', qr/^FATAL:  25P04:/, 1 ] if $node->pg_version >= 17;

foreach my $end (@ends)
{
	my ($name, $before, $action, $expected, $is_gone) = @$end;

	foreach my $place (1, 2)
	{
		my @line = map { session($node, "Waiter $_") } (1 .. 3);
		my $victim = $line[ $place - 1 ];
		my @others = grep { $_ != $victim } @line;

		ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
		ask($victim, $before) unless $before =~ /statement_timeout|transaction_timeout/;
		foreach my $n (1 .. 3)
		{
			queue_up($watch, $line[ $n - 1 ],
				$n == $place ? ($before =~ /statement_timeout|transaction_timeout/ ? "$before;\n$acquire" : $acquire)
				: qq{SELECT status FROM lock_acquire('k', '1 hour', 'waiter $n', wait => '5 min'); SELECT lock_release('k', 'waiter $n')});
		}
		if (ref $action)
		{
			$action->($victim);
		}
		else
		{
			ask($watch, $action =~ s/PID/pid($victim)/er);
		}
		like(answer($victim), $expected, "$name, place $place") if $expected;
		gone($watch, pid($victim)) if $is_gone;
		is(ask($watch, q{SELECT string_agg(pid || ' ' || place, ', ' ORDER BY place) FROM lock_waiters}),
			pid($others[0]) . ' 1, ' . pid($others[1]) . ' 2', "$name, place $place: the victim has left the queue, the others keep their order");
		is(ask($watch, q{SELECT lock_holder('k'), lock_holder('mine') IS NULL}), 'Holder|t', '... the holder is the same, the lease of the aborted transaction is undone');
		if (!$is_gone)
		{
			ask($victim, 'ROLLBACK; RESET ALL');
			is(ask($victim, q{SELECT status FROM lock_try_acquire('k', owner => 'victim', wait => '10 ms')}), 'timeout', '... the session can wait again');
		}
		ask($holder, q{SELECT lock_release('k', 'holder')});
		is(answer($_), "acquired\nt", '... the next acquires the key and releases it') for @others;
		all_clear('... no waiter, lease or claim is left');
		end(@line);
	}
}

# lock_timeout applies to the lock manager only.
$one = session($node, 'One');
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
is(ask($one, q{SET lock_timeout = '20 ms'; SELECT status, waited >= interval '300 ms' FROM lock_try_acquire('k', wait => '300 ms'); RESET lock_timeout}),
	'timeout|t', 'lock_timeout does not end a wait for a lease');

# The client is dead when the key becomes free.  The backend is stopped until both have
# happened, so that it learns of both at once.
foreach my $interval ('0', '1 min')
{
	$two = session($node, 'Two');
	ask($two, "SET client_connection_check_interval = '$interval'");
	queue_up($watch, $two, q{SELECT lock_acquire('k', '1 hour', 'dead', wait => '5 min')});
	kill 'STOP', pid($two);
	kill_client($two);
	end($two);
	my $token = ask($watch, q{SELECT fencing_token FROM lock_status('k')});
	ask($holder, q{SELECT lock_release('k', 'holder')});
	kill 'CONT', pid($two);
	gone($watch, pid($two));
	is(ask($watch, q{SELECT fencing_token FROM app_lock WHERE key = 'k'}), $token, "a dead client is not granted a lock (client_connection_check_interval = $interval)");
	all_clear('... and no waiter, lease or claim is left');
	ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
}

# The first in the queue does not run.  After a while the others pass it; it continues
# when it runs again.
$two = session($node, 'Two');
queue_up($watch, $one, q{SELECT status FROM lock_acquire('k', '1 hour', 'one', wait => '5 min')});
queue_up($watch, $two, q{SELECT status FROM lock_acquire('k', '1 hour', 'two', wait => '5 min')});
kill 'STOP', pid($one);
ask($holder, q{SELECT lock_release('k', 'holder')});
is(answer($two), 'acquired', 'a waiter that is stopped does not stop the others');
is(ask($watch, q{SELECT lock_holder('k'), holder, place FROM lock_waiters}), 'Two|One|1', '... and keeps its position');
kill 'CONT', pid($one);
ask($two, q{SELECT lock_release('k', 'two')});
is(answer($one), 'acquired', '... and gets the key when it runs again');
queue_up($watch, $two, q{SELECT status FROM lock_acquire('k', '1 hour', 'two', wait => '5 min')});
kill 'STOP', pid($two);
ask($one, q{SELECT lock_release('k', 'one')});
poll($watch, q{SELECT (lock_try_acquire('k', '1 hour', 'watch')).acquired});
ok(1, 'a waiter that is stopped does not stop calls without wait for ever');
kill 'CONT', pid($two);
ask($watch, q{SELECT lock_release('k', 'watch')});
is(answer($two), 'acquired', '... and gets the key when it runs again');
ask($two, q{SELECT lock_release('k', 'two')});
all_clear('... no waiter, lease or claim is left');

# A waiter that does not run is no reason to refuse another owner's upgrade, once it is passed over:
# it may have lost its share meanwhile.  If it has not, the search finds the deadlock.
ask($holder, qq{SELECT lock_acquire('k', '1 hour', '$_', 'shared')}) for ('one', 'two', 'three');
queue_up($watch, $one, q{SELECT status FROM lock_try_convert('k', 'one', wait => '5 min')});
kill 'STOP', pid($one);
is(ask($two, q{SELECT status FROM lock_try_convert('k', 'two', wait => '5 min')}), 'deadlock', 'an upgrade that is stopped, and has its share, is a deadlock for another');
ask($holder, q{SELECT lock_release('k', 'one')});
poll($watch, q{SELECT (lock_try_convert('k', 'two', wait => '10 ms')).status = 'timeout'});
ok(1, 'an upgrade that is stopped, and has lost its share, does not stop another');
queue_up($watch, $two, q{SELECT status FROM lock_try_convert('k', 'two', wait => '5 min')});
ask($holder, q{SELECT lock_release('k', 'three')});
is(answer($two), 'acquired', '... which gets the key');
kill 'CONT', pid($one);
is(answer($one), 'already_released', '... and the first one ends when it runs again');
ask($two, q{SELECT lock_release('k', 'two')});
all_clear('... no waiter, lease or claim is left');
end($one, $two);

#
# Shutdown, and crash of another backend
#
foreach my $how ('fast', 'kill another', 'kill a waiter', 'immediate')
{
	my @line = map { session($node, "Waiter $_") } (1 .. 3);
	my $other = session($node, 'Other');

	ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
	ask($other, q{BEGIN; SELECT lock_acquire('claimed', '1 hour', 'holder')});
	queue_up($watch, $line[$_], q{SELECT lock_acquire('k', wait => '5 min')}) for (0, 1);
	# If this waiter is the last to hear of a shutdown, it may be granted the key before.
	queue_up($watch, $line[2], q{BEGIN; SELECT lock_acquire('claimed', wait => '5 min')});
	if ($how =~ /kill/)
	{
		my $offset = -s $node->logfile;
		system_log('pg_ctl', 'kill', 'KILL', $how eq 'kill another' ? pid($other) : pid($line[0]));
		$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
	}
	else
	{
		$node->stop($how);
		$node->start;
	}
	like(answer($_), $how eq 'fast' ? qr/57P01|^\(t,acquired,claimed,/ : qr/57P02|57P01|$lost/, "$how: the waiter gets an error") for @line;
	end(@line, $other, $holder, $watch);
	await_restart($node);

	($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
	is(ask($watch, 'SELECT count(*) FROM lock_waiters'), '0', "$how: the queue is empty");
	is(ask($watch, q{SELECT lock_holder('k'), lock_holder('claimed') IS NULL}), 'Holder|t', '... the committed lease is there, the uncommitted one is not');
	queue_up($watch, $one, q{SELECT status FROM lock_acquire('k', '1 hour', 'one', wait => '5 min'); SELECT lock_release('k', 'one')});
	queue_up($watch, $two, q{SELECT status FROM lock_acquire('k', '1 hour', 'two', wait => '5 min'); SELECT lock_release('k', 'two')});
	ask($holder, q{SELECT lock_release('k', 'holder')});
	is(answer($_), "acquired\nt", '... new waiters acquire the key in turn') for ($one, $two);
	all_clear('... and no waiter, lease or claim is left');
	end($one, $two);
}

#
# Deadlocks
#
my @ring = map { session($node, "Member $_") } (1 .. 6);
($one, $two, $three) = @ring;

# A chain whose last member does not wait.  It lasts as long as two searches take;
# its answers are checked below.
my @chain = map { session($node, "Link $_") } (1 .. 4);
ask($chain[$_], "SELECT lock_acquire('link-$_', '1 hour', 'link $_')") for (0 .. 3);
foreach my $n (0 .. 2)
{
	queue_up($watch, $chain[$n], "SELECT status FROM lock_try_acquire('link-" . ($n + 1) . "', '1 hour', 'link $n', wait => '2500 ms')");
}

# Leases: each member wants the lease of the next one, and releases all its leases when
# it has acquired that one or was refused.
foreach my $members (2, 3, 6)
{
	my @answers;

	ask($ring[$_], "SELECT lock_acquire('ring-$_', '1 hour', 'secret-$_')") for (0 .. $members - 1);
	foreach my $n (0 .. $members - 1)
	{
		my $next = ($n + 1) % $members;
		start($ring[$n], "SELECT status FROM lock_try_acquire('ring-$next', '1 hour', 'secret-$n', wait => '5 min');
			SELECT lock_release_all('secret-$n')");
	}
	@answers = sort map { answer($_) } @ring[ 0 .. $members - 1 ];
	is(join(' ', @answers), join(' ', ("acquired\n2") x ($members - 1), "deadlock\n1"), "a deadlock of $members has one victim");
}

# The error of the victim shows the cycle.
ask($one, q{SELECT lock_acquire('x', '1 hour', 'secret-1', holder => 'Ann')});
ask($two, q{SELECT lock_acquire('y', '1 hour', 'secret-2'); SET deadlock_timeout = '1 h'});
queue_up($watch, $two, q{SELECT status FROM lock_acquire('x', '1 hour', 'secret-2', wait => '5 min')});
start($one, q{SELECT lock_acquire('y', '1 hour', 'secret-1', wait => '5 min', holder => E'An\nn')});
my $message = answer($one);
my ($pid_one, $pid_two) = (pid($one), pid($two));
like($message, qr/^ERROR:  40P01: deadlock detected while waiting for lock "y"
DETAIL:  An\\x0an \(process $pid_one\) waits for lock "y", held by Member 2\.
Member 2 \(process $pid_two\) waits for lock "x", held by Ann\.
HINT:  Release the locks that you hold/, 'the error of a deadlock says who waits for whom');
unlike($message, qr/secret/, '... and shows no owner');
ok(is_waiting($watch, $two), '... the other one continues to wait');
is(ask($one, q{SELECT lock_is_held('x', 'secret-1'); SELECT lock_release('x', 'secret-1')}), "t\nt", '... since the victim keeps its lease');
is(answer($two), 'acquired', '... and acquires it when the victim releases it');
ask($two, q{SELECT lock_release_all('secret-2'); RESET deadlock_timeout});

# Transactions with claims on what they have not committed
ask($one, q{BEGIN; SELECT lock_acquire('x', '1 hour', 'secret-1')});
ask($two, q{BEGIN; SELECT lock_acquire('y', '1 hour', 'secret-2'); SET LOCAL deadlock_timeout = '1 h'});
queue_up($watch, $two, q{SELECT status FROM lock_acquire('x', '1 hour', 'secret-2', wait => '5 min')});
start($one, q{SELECT lock_acquire('y', '1 hour', 'secret-1', wait => '5 min')});
like(answer($one), qr/^ERROR:  40P01: .*
DETAIL:  Member 1 \(process $pid_one\) waits for lock "y", in use by the transaction of process $pid_two\.
Member 2 \(process $pid_two\) waits for lock "x", in use by the transaction of process $pid_one\.
/, 'two transactions with claims');
is(answer($two), 'acquired', '... the abort of the victim lets the other acquire its key');
ask($one, 'ROLLBACK');
ask($two, 'ROLLBACK');

# Four transactions that want each other's keys in a ring, at the same moment
ask($ring[$_], "BEGIN; SELECT lock_acquire('ring-$_', '1 hour', 'secret-$_')") for (0 .. 3);
start($ring[$_], "SELECT status FROM lock_acquire('ring-" . (($_ + 1) % 4) . "', '1 hour', 'secret-$_', wait => '5 min'); SELECT lock_release_all('secret-$_'); COMMIT") for (0 .. 3);
my @outcomes = map { answer($_) } @ring[ 0 .. 3 ];
is(scalar(grep { /^ERROR:  40P01/ } @outcomes), 1, 'four transactions: one victim');
is(scalar(grep { $_ eq "acquired\n2" } @outcomes), 3, '... the others acquire their keys');

# The try_ form answers deadlock, and the transaction keeps what it has.
ask($one, q{BEGIN; SELECT lock_acquire('x', '1 hour', 'secret-1')});
ask($two, q{BEGIN; SELECT lock_acquire('y', '1 hour', 'secret-2'); SET LOCAL deadlock_timeout = '1 h'});
queue_up($watch, $two, q{SELECT status FROM lock_acquire('x', '1 hour', 'secret-2', wait => '5 min')});
is(ask($one, q{SELECT acquired, status, owner, fencing_token FROM lock_try_acquire('y', '1 hour', 'secret-1', wait => '5 min')}), 'f|deadlock||', 'lock_try_acquire reports the deadlock');
ok(is_waiting($watch, $two), '... the other one continues to wait');
ask($one, 'COMMIT');
ok(is_waiting($watch, $two), '... also when the claim has become a lease');
ask($one, q{SELECT lock_release('x', 'secret-1')});
is(answer($two), 'acquired', '... and acquires it when it is released');
ask($two, 'ROLLBACK');

# A part of the cycle is in the lock manager: a row ...
ask($one, q{BEGIN; UPDATE data SET n = 1 WHERE id = 1});
ask($two, q{BEGIN; SET LOCAL deadlock_timeout = '1 h'; SELECT lock_acquire('x', '1 hour', 'secret-2')});
start($two, q{UPDATE data SET n = 2 WHERE id = 1});
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid_two");
start($one, q{SELECT lock_acquire('x', '1 hour', 'secret-1', wait => '5 min')});
like(answer($one), qr/^ERROR:  40P01: .*
DETAIL:  Member 1 \(process $pid_one\) waits for lock "x", in use by the transaction of process $pid_two\.
Process $pid_two waits for process $pid_one\.
/, 'a cycle through a row lock');
is(answer($two), '', '... the update succeeds');
ask($_, 'ROLLBACK') for ($one, $two);

# ... or a release that waits for the claim of an extension.
ask($watch, q{SELECT lock_acquire('x', '1 hour', 'secret-x')});
ask($one, q{BEGIN; SELECT lock_extend('x', 'secret-x')});
ask($two, q{BEGIN; SET LOCAL deadlock_timeout = '1 h'; SELECT lock_acquire('y', '1 hour', 'secret-2')});
start($two, q{SELECT lock_release('x', 'secret-x')});
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid_two");
is(ask($one, q{SELECT status FROM lock_try_acquire('y', '1 hour', 'secret-1', wait => '5 min')}), 'deadlock', 'a cycle through a claim in the lock manager');
ask($one, 'ROLLBACK');
is(answer($two), 't', '... the release succeeds');
ask($_, 'COMMIT') for ($one, $two);
ask($two, q{SELECT lock_release('y', 'secret-2')});

# A transaction waits for a key that it has claimed itself.
ask($one, q{BEGIN; SELECT lock_acquire('x', '1 hour', 'secret-1')});
start($one, q{SELECT lock_acquire('x', '1 hour', 'secret-2', wait => '5 min')});
like(answer($one), qr/^ERROR:  40P01: .*
DETAIL:  Member 1 \(process $pid_one\) waits for lock "x", in use by the transaction of process $pid_one\.
/, 'a transaction that waits for itself');
ask($one, 'ROLLBACK');

# A cycle that closes while all its members wait: by a steal.
ask($one, q{SELECT lock_acquire('x', '1 hour', 'secret-1')});
ask($three, q{SELECT lock_acquire('y', '1 hour', 'secret-3')});
ask($two, q{SET deadlock_timeout = '1 h'});
queue_up($watch, $one, q{SELECT status FROM lock_try_acquire('y', '1 hour', 'secret-1', wait => '5 min')});
queue_up($watch, $two, q{SELECT status FROM lock_try_acquire('x', '1 hour', 'secret-2', wait => '5 min')});
# By then a first search has found nothing.
poll($watch, q{SELECT clock_timestamp() > max(since) + interval '500 ms' FROM lock_waiters});
ask($watch, q{SELECT lock_steal('y', 'secret-2', 'test')});
is(answer($one), 'deadlock', 'a steal closes a cycle whose members wait already');
ask($one, q{SELECT lock_release('x', 'secret-1')});
is(answer($two), 'acquired', '... the other one acquires the key');
ask($two, q{RESET deadlock_timeout; SELECT lock_release_all('secret-2')});

# Waits that look like a cycle and are none: the lease has another holder by then, ends by
# itself, or belongs to an owner that waits for something else.
foreach my $n (0 .. 2)
{
	is(answer($chain[$n]), 'timeout', 'a chain is no cycle');
}
ask($chain[$_], "SELECT lock_release_all('link $_')") for (0 .. 3);
ask($one, q{SELECT lock_acquire('x', '1 hour', 'secret-1')});
queue_up($watch, $two, q{SELECT status FROM lock_try_acquire('x', '1 hour', 'secret-2', wait => '5 min'); SELECT lock_release('x', 'secret-2')});
queue_up($watch, $three, q{SELECT status FROM lock_try_acquire('x', '1 hour', 'secret-3', wait => '5 min'); SELECT lock_release('x', 'secret-3')});
is(ask($one, q{SELECT status FROM lock_try_acquire('z', '1 hour', 'secret-1', wait => '5 min'); SELECT lock_release_all('secret-1')}), "acquired\n2", 'two wait for an owner that acquires a free key with wait');
is(answer($_), "acquired\nt", '... and acquire its key when it releases') for ($two, $three);

# A waiter for a member of a cycle is not in the cycle.
ask($one, q{SET deadlock_timeout = '1 h'; SELECT lock_acquire('x', '1 hour', 'secret-1')});
ask($two, q{SET deadlock_timeout = '1 h'; SELECT lock_acquire('y', '1 hour', 'secret-2')});
queue_up($watch, $one, q{SELECT status FROM lock_try_acquire('y', '1 hour', 'secret-1', wait => '5 min')});
queue_up($watch, $two, q{SELECT status FROM lock_try_acquire('x', '1 hour', 'secret-2', wait => '5 min')});
is(ask($three, q{SELECT status FROM lock_try_acquire('x', '1 hour', 'secret-3', wait => '500 ms')}), 'timeout', 'a waiter for a member of a cycle is no victim');
ask($watch, q{SELECT force_release('x', 'test')});
is(answer($two), 'acquired', '... a forced release opens the cycle');
ask($two, q{SELECT lock_release_all('secret-2')});
is(answer($one), 'acquired', '... and its members acquire their keys');
ask($one, q{SELECT lock_release_all('secret-1')});
all_clear('after the deadlocks no waiter, lease or claim is left');
end(@ring, @chain);

# Two sessions close a cycle at the same moment, many times: each time there is one victim.
# max_connections is high, so that a search takes long.
$node->safe_psql(
	'postgres', q{
CREATE TABLE duels (round int, me text, status text);
CREATE PROCEDURE duel(me text, other text, rounds int) LANGUAGE plpgsql AS $$
DECLARE
	status	text;
BEGIN
	FOR round IN 1 .. rounds LOOP
		PERFORM lock_acquire(format('duel %s %s', round, me), '1 hour', me);
		COMMIT;
		WHILE NOT (lock_status(format('duel %s %s', round, other))).locked LOOP END LOOP;
		FOR i IN 1 .. (500 * random())::int LOOP END LOOP;
		status := (lock_try_acquire(format('duel %s %s', round, other), '1 hour', me, wait => '5 min')).status;
		INSERT INTO duels VALUES (round, me, status);
		COMMIT;
		-- the key of the victim, and so the other one may go on
		PERFORM lock_release(format('duel %s %s', round, me), me);
		COMMIT;
	END LOOP;
END $$;
});
($one, $two) = map { session($node, $_) } ('Left', 'Right');
ask($_, q{SET deadlock_timeout = '1 ms'}) for ($one, $two);
start($one, q{CALL duel('left', 'right', 400)});
start($two, q{CALL duel('right', 'left', 400)});
is(answer($_), '', 'two sessions run 400 rounds that end in a cycle') for ($one, $two);
is(ask($watch, q{SELECT outcome, count(*) FROM (SELECT string_agg(status, ' ' ORDER BY status) AS outcome FROM duels GROUP BY round) s GROUP BY 1}),
	'acquired deadlock|400', '... each round has one victim');
ask($watch, q{SELECT lock_release_all('left'), lock_release_all('right')});
all_clear('... no waiter, lease or claim is left');
end($one, $two);

#
# A storm of cancels, time-outs and terminations, while some sessions are left undisturbed
#
$node->safe_psql(
	'postgres', q{
CREATE TABLE counter (key text PRIMARY KEY, value bigint);
INSERT INTO counter SELECT 'storm-' || n, 0 FROM generate_series(1, 4) n;
CREATE TABLE history (key text, token bigint, steady boolean, deadlock boolean DEFAULT false);

-- not atomic: safe only with the lock
CREATE FUNCTION work(k text, g lock_grant, steady boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	v	bigint;
BEGIN
	v := value FROM counter WHERE key = k;
	IF random() < 0.3 THEN
		PERFORM pg_sleep(0.001);
	END IF;
	UPDATE counter SET value = v + 1 WHERE key = k;
	INSERT INTO history VALUES (k, g.fencing_token, steady);
END $$;

-- all in one transaction, which leaves nothing when it is disturbed
CREATE FUNCTION round(k text, other text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	g	lock_grant;
	h	lock_grant;
BEGIN
	g := lock_try_acquire(k, '1 hour', wait => '10 s');
	IF NOT g.acquired THEN
		RETURN g.status;
	END IF;
	PERFORM work(k, g, false);
	IF other <> k AND random() < 0.3 THEN
		h := lock_try_acquire(other, '1 hour', wait => '10 s');
		IF h.acquired THEN
			PERFORM work(other, h, false);
			PERFORM lock_release(other, h.owner);
		END IF;
	END IF;
	PERFORM lock_release(k, g.owner);
	RETURN h.status;
END $$;

-- the same as a subtransaction, which is rolled back alone
CREATE FUNCTION caught_round(k text, other text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN round(k, other);
EXCEPTION WHEN query_canceled THEN
	RETURN 'canceled';
END $$;

-- a lease that outlives transactions: only for sessions that are not disturbed
CREATE PROCEDURE steady_round(k text) LANGUAGE plpgsql AS $$
DECLARE
	g	lock_grant;
BEGIN
	g := lock_acquire(k, '1 hour', wait => '5 min');
	COMMIT;
	PERFORM work(k, g, true);
	COMMIT;
	PERFORM lock_release(k, g.owner);
	COMMIT;
END $$;

-- disturbs sessions at least this often, and until both kinds have finished 50 rounds
CREATE PROCEDURE disturb(times int) LANGUAGE plpgsql AS $$
DECLARE
	n		int := 0;
	victim	int;
BEGIN
	WHILE n < times OR (SELECT least(count(*) FILTER (WHERE steady), count(*) FILTER (WHERE NOT steady)) < 50 FROM history) LOOP
		n := n + 1;
		victim := pid FROM pg_stat_activity WHERE application_name = 'storm' ORDER BY random() LIMIT 1;
		IF random() < 0.05 THEN
			PERFORM pg_terminate_backend(victim);
		ELSE
			PERFORM pg_cancel_backend(victim);
		END IF;
		PERFORM count(*) FROM lock_waiters;
		PERFORM pg_sleep(0.002);
		COMMIT;
	END LOOP;
END $$;
});

my $dir = $node->basedir;
my $stop = "$dir/stop";
my $key = sub { "'storm-" . (1 + int rand 4) . "'" };
append_to_file("$dir/storm.sql", join('', "\\set VERBOSITY sqlstate\nSET application_name = 'storm';\n",
	map { 'SET statement_timeout = ' . int(rand 6) . '; SELECT ' . ($_ % 2 ? 'round' : 'caught_round') . '(' . $key->() . ', ' . $key->() . ");\n" } (1 .. 500)));
append_to_file("$dir/steady.sql", join('', "\\set VERBOSITY verbose\nSET application_name = 'steady';\n",
	map { 'CALL steady_round(' . $key->() . ");\n" } (1 .. 20)));

my @names = ((map { "storm-$_" } (1 .. 8)), (map { "steady-$_" } (1 .. 2)));
my @runs;
foreach my $run (@names)
{
	my $file = $run =~ s/-.*//r;
	push @runs, IPC::Run::start(
		[ 'sh', '-c', 'while [ ! -e "$1" ]; do psql -XAtq -d "$2" -f "$3"; done', 'sh', $stop, $node->connstr('postgres'), "$dir/$file.sql" ],
		'<', \undef, '>', "$dir/$run.out", '2>&1');
}
ask($watch, "CALL disturb($disturbances)");
append_to_file($stop, '');
$_->finish for @runs;
poll($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name IN ('storm', 'steady')});

all_clear('after the storm nobody waits or holds a lock');
is(ask($watch, q{SELECT string_agg((lock_acquire(key, '1 hour', 'watch')).status, ' ') FROM counter}), 'acquired acquired acquired acquired', '... and every key can be acquired');
my $storm = join('', map { slurp_file("$dir/$_.out") } grep { /storm/ } @names);
my %errors;
$errors{$1}++ while $storm =~ /(?:ERROR|FATAL):  (\w+)/g;
is(join(' ', grep { !/^(57014|57P01)$/ } sort keys %errors), '', '... the storm has raised no errors but cancels and terminations');
note "$_: $errors{$_}" for sort keys %errors;
ok($errors{57014}, '... and some of these');
is(join('', map { slurp_file("$dir/$_.out") } grep { /steady/ } @names), '', '... and undisturbed sessions no error');
is(ask($watch, q{SELECT c.key, c.value, count(h.*) FROM counter c LEFT JOIN history h ON h.key = c.key GROUP BY c.key, c.value HAVING c.value <> count(h.*)}),
	'', '... no two sessions had a key at a time: the counters have lost nothing');
is(ask($watch, 'SELECT token FROM history GROUP BY token HAVING count(*) > 1'), '', '... no token was given twice');

end($watch, $holder);
$node->stop;
log_is_clean($node, killed => 1, also => qr/could not serialize|concurrently (?:updated|deleted)/);

done_testing();
