# Waiters for one of a limited number of seats (max_holders).
#
# Properties: waiters are served in order, with any limits. Each end of a holding lets
# exactly one waiter in, and the end of several holdings lets several in, also while the
# transactions of the former ones are open. No waiter gets in beyond the limit, nor before
# the commit. When a waiter leaves the queue, those behind it get in, also if it was just
# getting in itself. If two callers count at the same time, one gets the last seat.
# A holder that comes and goes meanwhile is counted once. A cycle of waiters through
# sharers of a limited key ends by a time-out, and one through an exclusive lease by a
# deadlock.
#
# Turns red when: a wake-up is lost, or one seat needs two; one holder too many
# gets in; a sharer without limit passes a waiter; the search for a deadlock gives a waiter
# for a seat edges to all holders, or to none of them.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = sleeping_server('places', 'max_connections = 70');

my $watch = session($node, 'Watch');
my %session;
my $number = 0;
my $key;

# A session by its label, which is also its owner
sub by
{
	my ($who) = @_;
	return $session{$who} //= session($node, $who);
}

# Each case has a key of its own.
sub case
{
	my ($name) = @_;
	$key = 'key ' . ++$number;
	note($name);
	return;
}

# Share the key, with a limit and without.
sub share
{
	my ($who, $limit, $more) = @_;
	return "SELECT status, holder FROM lock_try_acquire('$key', '1 hour', '$who', 'shared', holder => '$who', max_holders => "
	  . ($limit // 'NULL') . ($more // '') . ')';
}
sub try
{
	my ($who, $limit, $more) = @_;
	return ask(by($who), share($who, $limit, $more));
}
sub wait_for
{
	my ($who, $limit, $more) = @_;
	queue_up($watch, by($who), share($who, $limit, ", wait => '1 h'" . ($more // '')));
	return;
}
sub release
{
	my ($who) = @_;
	return ask(by($who), "SELECT lock_release('$key', '$who')");
}
sub queue
{
	return ask($watch, "SELECT string_agg(holder, ' ' ORDER BY place) FROM lock_waiters WHERE key = '$key'");
}
sub holders
{
	return ask($watch, "SELECT string_agg(holder, ' ' ORDER BY holder) FROM lock_status() WHERE key = '$key' AND locked");
}
# Does the session stop at a test point, or wait for a claim?
sub stands
{
	my ($who) = @_;
	return "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid(by($who));
}
sub granted
{
	my ($name, @who) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(answer(by($_)), "acquired|$_", "$name: $_") for @who;
	return;
}

case('one seat after the other');
is(try($_, 2), "acquired|$_", "$_ has a seat") for ('a', 'b');
is(try('c', 2), 'held|a', 'there is no third seat');
wait_for($_, 2) for ('c', 'd', 'e');
is(queue(), 'c d e', 'three wait');
is(try('f', 2), 'held|a', 'a call that does not wait is refused');
release('b');
granted('a release lets the first waiter in', 'c');
is(queue() . ' for ' . holders(), 'd e for a c', '... and no other');
is(try('c', 2), 'reacquired|c', 'a holder takes no second seat');
release('a');
granted('the next release lets the second waiter in', 'd');
release($_) for ('c', 'd');
granted('... and the third', 'e');
is(try('f', 2), 'acquired|f', 'a seat that no waiter wants is free for a new caller');

case('several seats at once');
try($_, 3) for ('a', 'b', 'c');
wait_for($_, 3) for ('d', 'e', 'f');
ask($watch, "BEGIN; SELECT lock_release('$key', 'a'), lock_release('$key', 'b')");
is(queue(), 'd e f', 'nothing changes before the commit');
ask($watch, 'COMMIT');
granted('two releases let two waiters in', 'd', 'e');
is(queue() . ' for ' . holders(), 'f for c d e', '... and no third');
ask($watch, "SELECT force_release('$key', 'test')");
granted('a forced release of all holdings lets the next in', 'f');

case('into transactions that stay open');
try($_, 3) for ('a', 'b', 'c');
ask(by($_), 'BEGIN') for ('d', 'e');
wait_for($_, 3) for ('d', 'e', 'f');
ask($watch, "BEGIN; SELECT lock_release('$key', 'a'), lock_release('$key', 'b'), lock_release('$key', 'c'); COMMIT");
granted('all are let in before any of them commits', 'd', 'e', 'f');
wait_for('g', 3);
is(ask($watch, "SELECT status FROM lock_try_acquire('$key', owner => 'h', mode => 'shared', max_holders => 4)"), 'held', 'a caller with a higher limit does not pass the waiter');
is(queue(), 'g', 'an uncommitted holding occupies a seat');
ask(by('d'), 'ROLLBACK');
granted('its rollback lets the waiter in', 'g');
ask(by('e'), 'COMMIT');
is(holders(), 'e f g', 'three holders in the end');

case('a transaction that releases and acquires');
try($_, 2) for ('a', 'b');
wait_for($_, 2) for ('c', 'd');
ask(by('a'), "BEGIN; SELECT lock_release('$key', 'a'), lock_release('$key', 'b'); SELECT lock_acquire('x $key', '1 hour', 'a'); SAVEPOINT s; SELECT lock_acquire('y $key', '1 hour', 'a'); ROLLBACK TO s; COMMIT");
granted('a release among other things', 'c', 'd');
wait_for('e', 2);
ask(by('c'), "BEGIN; SELECT lock_release('$key', 'c'), lock_release('$key', 'd'); SAVEPOINT s; SELECT lock_acquire('$key', '1 hour', 'c', 'shared'); RELEASE s; COMMIT");
granted('a transaction with two releases and one acquire lets one waiter in', 'e');
is(holders(), 'c e', '... and there are two holders');
wait_for('f', 2);
ask(by('c'), "BEGIN; SELECT lock_extend('$key', 'c'); SELECT lock_release('$key', 'c'); SELECT lock_acquire('$key', '1 hour', 'c 2', 'shared'); SELECT lock_release('$key', 'c 2'); COMMIT");
granted('a transaction with two releases and one acquire in between lets one waiter in', 'f');

case('seats that expire');
try('a', 2);
my $until = ask(by('b'), "SELECT expires_at FROM lock_acquire('$key', '10 min', 'b', 'shared', holder => 'b', max_holders => 2)");
is(ask(by('c'), "SELECT holder, expires_at = '$until', holders, max_holders FROM lock_try_acquire('$key', '1 hour', 'c', 'shared', max_holders => 2)"), 'b|t|2|2', 'a refusal names the holder whose seat becomes free first');
$until = ask(by('b'), "SELECT lock_extend('$key', 'b', '700 ms')");
queue_up($watch, by('c'), "SELECT acquired_at >= '$until' FROM lock_acquire('$key', '1 hour', 'c', 'shared', wait => '1 h', holder => 'c', max_holders => 2)");
is(answer(by('c')), 't', 'a waiter gets in when that lease has expired');
wait_for('d', 2);
ask(by('a'), "SELECT lock_extend('$key', 'a', '300 ms')");
granted('a holder shortens its lease', 'd');

case('other limits');
try($_, 2) for ('a', 'b');
wait_for('one', 1);
wait_for('five', 5);
wait_for('any');
is(queue(), 'one five any', 'waiters with different limits, and without a limit');
is(try('c', 5), 'held|one', 'a caller with a higher limit does not pass a waiter with a lower one');
is(try('c'), 'held|one', '... nor does a caller without a limit');
release('a');
is(queue(), 'one five any', 'one release is not enough for the first waiter');
ask($watch, 'SELECT pg_cancel_backend(' . pid(by('one')) . ')');
like(answer(by('one')), qr/^ERROR:  57014/, 'it is cancelled');
granted('those behind it get in', 'five', 'any');
wait_for('one', 1);
release($_) for ('b', 'five');
is(queue(), 'one', 'a waiter for the only seat waits while one of three holders is left');
release('any');
granted('the last holder has released', 'one');

case('others in the queue');
try($_, 2) for ('a', 'b');
wait_for('c', 2);
queue_up($watch, by('writer'), "SELECT status, holder FROM lock_try_acquire('$key', '1 hour', 'writer', holder => 'writer', wait => '1 h')");
wait_for('d', 2);
wait_for('any');
release('a');
granted('the first waiter', 'c');
is(queue(), 'writer d any', '... and not those behind the writer');
release('b');
is(queue(), 'writer d any', 'a free seat does not help a reader behind the writer');
release('c');
granted('the writer', 'writer');
ask(by('writer'), "SELECT mode FROM lock_convert('$key', 'writer', 'shared')");
granted('the writer converts to shared', 'd', 'any');
wait_for('e', 3);
ask(by('d'), "SELECT lock_transfer('$key', 'd', 'any')");
granted('a transfer joins two holdings', 'e');

case('sessions and transactions');
ask(by('a'), "SELECT lock_acquire('$key', owner => 'a', mode => 'shared', lifetime => 'session', max_holders => 4)");
ask(by('b'), "BEGIN; SELECT lock_acquire('$key', owner => '$_', mode => 'shared', lifetime => 'transaction')") for ('b', 'b 2');
is(try('c', 2), 'held|a', 'a transaction that shares the key occupies a seat');
is(try('c', 3), 'acquired|c', '... only one, although it has two owners');
wait_for($_, 3) for ('d', 'e');
end(delete $session{a});
granted('the end of a session lets one in', 'd');
ask(by('b'), 'COMMIT');
granted('the commit of a transaction lets one in', 'e');

case('a session that waits before it has held anything');
try('c', 1);
queue_up($watch, by('fresh'), "SELECT status FROM lock_try_acquire('$key', owner => 'fresh', mode => 'shared', wait => '1 h', lifetime => 'session', max_holders => 1)");
release('c');
is(answer(by('fresh')), 'acquired', 'the waiter gets in for the lifetime of its session');
wait_for('d', 1);
end(delete $session{fresh});
granted('that session has ended', 'd');

case('two-phase commit');
ask(by('a'), "BEGIN; SELECT lock_acquire('$key', owner => 'a', mode => 'shared', max_holders => 3); PREPARE TRANSACTION 'p'");
ask(by('b'), "BEGIN; SELECT lock_acquire('$key', owner => '$_', mode => 'shared', lifetime => 'transaction')") for ('b', 'c');
is(ask($watch, "SELECT status, holders, max_holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'pending|1|2', 'a prepared transaction and two shares of another');
ask(by('b'), q{PREPARE TRANSACTION 'q'});
is(ask($watch, "SELECT status, holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 1)"), 'held|1', 'a prepared transaction with two shares counts as one holder');
is(ask($watch, "SELECT status FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'pending', '... and the other prepared transaction may take the second seat');
ask($watch, q{COMMIT PREPARED 'p'});
is(ask($watch, "SELECT status, holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'held|2', 'COMMIT PREPARED makes it a holder: no seat is free');
ask($watch, q{ROLLBACK PREPARED 'q'});
is(ask($watch, "SELECT status, holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'acquired|2', 'ROLLBACK PREPARED frees a seat');

# Every end of a holding lets one waiter in, with no other holder and beside one that stays.
my $holder = session($node, 'Holder');
$holder = play_endings($node, $holder, by('one'), by('two'),
	sub { queue_up($watch, by('one'), "SELECT status FROM lock_try_acquire('$_[0]', '1 hour', 'waiter', 'shared', '1 h', max_holders => 1)") },
	sub { is(answer(by('one')), 'acquired', "let in: $_[0]") }, 'shared');
$holder = play_endings($node, $holder, by('one'), by('two'),
	sub {
		ask(by('two'), "SELECT lock_acquire('$_[0]', '1 hour', 'stays', 'shared')");
		queue_up($watch, by('one'), "SELECT status FROM lock_try_acquire('$_[0]', '1 hour', 'waiter', 'shared', '1 h', max_holders => 2)");
	},
	sub { is(answer(by('one')), 'acquired', "let in beside another: $_[0]"); }, 'shared');
end($holder);

SKIP:
{
	skip 'needs a build with AL_TEST_HOOKS', 1 unless @build;
	my $pause = 'pg_advisory_lock(1706)';

	# A waiter is cancelled while it gets in.
	foreach my $point ('woken', 'before-claim', 'claimed', 'before-grant')
	{
		case("a waiter that is just getting in: $point");
		my $victim = session($node, 'Victim');
		my $keeper = session($node, 'Keeper');

		try($_, 2) for ('a', 'b');
		ask($keeper, "SELECT $pause");
		ask($victim, "SET atomic_lock.test_pause_at = '$point'");
		queue_up($watch, $victim, share('victim', 2, ", wait => '1 h'"));
		wait_for('c', 2);
		release('b');
		poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($victim));
		ask($watch, 'SELECT pg_cancel_backend(' . pid($victim) . ')');
		like(answer($victim), qr/^ERROR:  57014/, "$point: a waiter is cancelled while it gets in");
		granted("$point: the next one gets in", 'c');
		is(holders(), 'a c', '... and the seat is not lost');
		end($victim, $keeper);
	}

	my $keeper = session($node, 'Keeper');

	case('two who count at the same time');
	try('a', 2);
	ask($keeper, "SELECT $pause");
	ask(by('b'), q{SET atomic_lock.test_pause_at = 'before-grant'; BEGIN});
	start(by('b'), share('b', 2));
	poll($watch, stands('b'));
	start(by('c'), share('c', 2));
	poll($watch, 'SELECT (' . stands('c') . ") OR EXISTS (SELECT FROM lock_status() WHERE key = '$key' AND holder = 'c')");
	ask($keeper, 'SELECT pg_advisory_unlock_all()');
	granted('the last seat goes to the caller that has counted first', 'b');
	is(answer(by('c')), 'pending|b', '... and the other is refused');
	ask(by('b'), 'RESET atomic_lock.test_pause_at; COMMIT');
	is(holders(), 'a b', '... and there are two holders');

	case('one holder releases and another one acquires while a third caller counts');
	try($_, 2) for ('a', 'b');
	release('b');
	ask($keeper, "SELECT $pause");
	ask(by('c'), q{SET atomic_lock.test_pause_at = 'counting'});
	start(by('c'), share('c', 2));
	poll($watch, stands('c'));
	release('a');
	is(ask(by('b'), 'BEGIN; ' . share('b', 2)), 'acquired|b', 'a holder has released and another one acquires: there is never more than one');
	ask($keeper, 'SELECT pg_advisory_unlock_all()');
	granted('... so the third caller gets the second seat', 'c');
	ask(by('c'), 'RESET atomic_lock.test_pause_at');
	ask(by('b'), 'COMMIT');

	# The waiter counts twice: before it has claimed the seats, and after.
	case('a holder releases when the waiter that is getting in has counted');
	my $next = session($node, 'Next keeper');
	try($_, 2) for ('a', 'b');
	ask(by('c'), q{SET atomic_lock.test_pause_at = 'counting'});
	wait_for($_, 2) for ('c', 'd');
	ask($keeper, "SELECT $pause");
	release('a');
	poll($watch, stands('c'));
	start($next, "SELECT $pause");
	poll($watch, q{SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = } . pid($next));
	ask($keeper, 'SELECT pg_advisory_unlock_all()');
	answer($next);
	poll($watch, stands('c'));
	release('b');
	ask($next, 'SELECT pg_advisory_unlock_all()');
	granted('two releases let two waiters in', 'c', 'd');
	ask(by('c'), 'RESET atomic_lock.test_pause_at');
	end($keeper, $next);
}

# Cycles
# One request of a session: the key and the limit; -1 shares without limit, 0 is exclusive
sub asks
{
	my ($who, $what, $limit, $wait) = @_;
	my $mode = $limit == 0 ? "'exclusive'" : "'shared'";
	my $max = $limit > 0 ? ", max_holders => $limit" : '';

	return "SELECT status FROM lock_try_acquire('$key $what', '1 hour', '$who', $mode, '" . ($wait // 0) . "', '$who'$max)";
}
foreach my $cycle (
	[ 'two holders that wait for the only seat of each other', 0,
		[ [ 'p', 'm', 1 ], [ 'q', 'n', 1 ] ],
		[ [ 'p', 'n', 1 ], [ 'q', 'm', 1 ] ] ],
	[ 'all holders wait for the waiter for a seat', 0,
		[ [ 'p', 'm', 2 ], [ 'q', 'm', 2 ], [ 'r', 'n', 0 ] ],
		[ [ 'p', 'n', 0 ], [ 'q', 'n', 0 ], [ 'r', 'm', 2 ] ] ],
	[ 'a waiter for a seat behind an exclusive lease', 1,
		[ [ 'p', 'm', 0 ], [ 'r', 'n', 0 ] ],
		[ [ 'p', 'n', 0 ], [ 'r', 'm', 2 ] ] ],
	[ 'a waiter for a seat behind a writer, which waits for every holder', 1,
		[ [ 'p', 'm', -1 ], [ 'q', 'm', -1 ], [ 'r', 'n', 0 ] ],
		[ [ 's', 'm', 0 ], [ 'r', 'm', 5 ], [ 'p', 'n', 0 ] ] ],
	[ 'a waiter without limit behind a writer, and before one with a limit', 1,
		[ [ 'p', 'm', -1 ], [ 'q', 'm', -1 ], [ 'r', 'n', 0 ] ],
		[ [ 's', 'm', 0 ], [ 'r', 'm', -1 ], [ 't', 'm', 1000 ], [ 'p', 'n', 0 ] ] ],
	[ 'a waiter for a seat behind a writer, which is behind one with a limit', 1,
		[ [ 'p', 'm', -1 ], [ 'q', 'm', -1 ], [ 'r', 'n', 0 ] ],
		[ [ 't', 'm', 1 ], [ 's', 'm', 0 ], [ 'r', 'm', 5 ], [ 'p', 'n', 0 ] ] ])
{
	my ($name, $is_cycle, $have, $want) = @$cycle;
	my @told;

	case($name);
	foreach (@$have)
	{
		ask(by($_->[0]), asks(@$_));
	}
	foreach (@$want)
	{
		ask(by($_->[0]), q{SET deadlock_timeout = '100 ms'});
		queue_up($watch, by($_->[0]), asks(@$_, $is_cycle ? '1 h' : '500 ms'));
	}
	if ($is_cycle)
	{
		poll($watch, 'SELECT count(*) < ' . @$want . ' FROM lock_waiters');
		ask($watch, 'SELECT pg_cancel_backend(pid) FROM lock_waiters');
	}
	@told = map { scalar answer(by($_->[0])) } @$want;
	is(scalar(grep { $_ eq 'deadlock' } @told), $is_cycle, $is_cycle ? "a deadlock: $name" : "no deadlock: $name");
	ask(by($_), "SELECT lock_release_all('$_')") for ('p', 'q', 'r', 's', 't');
}

# Transactions share the key and end while others count them: a refusal may find no holder to name.
case('many holdings with the lifetime of a transaction');
my $output = '';
my $run = start_pgbench($node, \$output, '-c', 24, '-j', 2, '-t', 150,
	'-f', pgbench_script($node, 'moment', "SELECT status FROM lock_try_acquire('$key', mode => 'shared', lifetime => 'transaction');"),
	'-f', pgbench_script($node, 'counted', "SELECT status, holder FROM lock_try_acquire('$key', '1 ms', mode => 'shared', max_holders => 1);"));
$run->finish;
unlike($output, qr/ERROR|FATAL|aborted|closed the connection/, 'many share a key for a moment, and others count them, without an error');
is(ask($watch, 'SELECT 1'), 1, '... and the server is still there');

end($watch, values %session);
done_testing();
