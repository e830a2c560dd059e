# Waiters for one of a limited number of places.
#
# Properties: waiters are served in order, with any limits. Each end of a holding lets
# exactly one waiter in, and the end of several holdings lets several in, also into
# transactions that go on. Nobody is let in beyond the limit, nor before the commit. A
# waiter that leaves the queue lets those behind it go on, also while it was being let
# in. If two count at the same time, one gets the last place.
# A holder that comes and goes meanwhile is counted once. A cycle of waiters through
# sharers of a limited key ends by a time-out, and one through an exclusive lease by a
# deadlock.
#
# Turns red when: a wake-up is lost, or two are needed for one place; one is let in too
# many; a sharer without limit passes a waiter; the search for a deadlock gives a waiter
# for a place edges to all holders, or none.

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
# Does it stand at a test point, or wait for a claim?
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

case('one place after the other');
is(try($_, 2), "acquired|$_", "$_ has a place") for ('a', 'b');
is(try('c', 2), 'held|a', 'there is no third one');
wait_for($_, 2) for ('c', 'd', 'e');
is(queue(), 'c d e', 'three wait');
is(try('f', 2), 'held|a', 'full');
release('b');
granted('one has gone, the first is let in', 'c');
is(queue() . ' for ' . holders(), 'd e for a c', '... and nobody else');
is(try('c', 2), 'reacquired|c', 'who has a place takes no second one');
release('a');
granted('the next one', 'd');
release($_) for ('c', 'd');
granted('the last one', 'e');
is(try('f', 2), 'acquired|f', 'and now there is one for who just comes');

case('several places at once');
try($_, 3) for ('a', 'b', 'c');
wait_for($_, 3) for ('d', 'e', 'f');
ask($watch, "BEGIN; SELECT lock_release('$key', 'a'), lock_release('$key', 'b')");
is(queue(), 'd e f', 'nobody is let in before the commit');
ask($watch, 'COMMIT');
granted('two have gone, two are let in', 'd', 'e');
is(queue() . ' for ' . holders(), 'f for c d e', '... and not a third');
ask($watch, "SELECT force_release('$key', 'test')");
granted('all are forced out', 'f');

case('into transactions that go on');
try($_, 3) for ('a', 'b', 'c');
ask(by($_), 'BEGIN') for ('d', 'e');
wait_for($_, 3) for ('d', 'e', 'f');
ask($watch, "BEGIN; SELECT lock_release('$key', 'a'), lock_release('$key', 'b'), lock_release('$key', 'c'); COMMIT");
granted('nobody has to commit for the next one', 'd', 'e', 'f');
wait_for('g', 3);
is(ask($watch, "SELECT status FROM lock_try_acquire('$key', owner => 'h', mode => 'shared', max_holders => 4)"), 'held', 'others wait before');
is(queue(), 'g', 'what is not committed takes its place');
ask(by('d'), 'ROLLBACK');
granted('it is undone', 'g');
ask(by('e'), 'COMMIT');
is(holders(), 'e f g', 'three in the end');

case('a transaction that lets go and takes');
try($_, 2) for ('a', 'b');
wait_for($_, 2) for ('c', 'd');
ask(by('a'), "BEGIN; SELECT lock_release('$key', 'a'), lock_release('$key', 'b'); SELECT lock_acquire('x $key', '1 hour', 'a'); SAVEPOINT s; SELECT lock_acquire('y $key', '1 hour', 'a'); ROLLBACK TO s; COMMIT");
granted('a release among other things', 'c', 'd');
wait_for('e', 2);
ask(by('c'), "BEGIN; SELECT lock_release('$key', 'c'), lock_release('$key', 'd'); SAVEPOINT s; SELECT lock_acquire('$key', '1 hour', 'c', 'shared'); RELEASE s; COMMIT");
granted('two let go, one takes', 'e');
is(holders(), 'c e', '... which makes two');
wait_for('f', 2);
ask(by('c'), "BEGIN; SELECT lock_extend('$key', 'c'); SELECT lock_release('$key', 'c'); SELECT lock_acquire('$key', '1 hour', 'c 2', 'shared'); SELECT lock_release('$key', 'c 2'); COMMIT");
granted('back and forth', 'f');

case('places that run out');
try('a', 2);
my $until = ask(by('b'), "SELECT expires_at FROM lock_acquire('$key', '10 min', 'b', 'shared', holder => 'b', max_holders => 2)");
is(ask(by('c'), "SELECT holder, expires_at = '$until', holders, max_holders FROM lock_try_acquire('$key', '1 hour', 'c', 'shared', max_holders => 2)"), 'b|t|2|2', 'whose place becomes free first');
$until = ask(by('b'), "SELECT lock_extend('$key', 'b', '700 ms')");
queue_up($watch, by('c'), "SELECT acquired_at >= '$until' FROM lock_acquire('$key', '1 hour', 'c', 'shared', wait => '1 h', holder => 'c', max_holders => 2)");
is(answer(by('c')), 't', 'let in when it has run out');
wait_for('d', 2);
ask(by('a'), "SELECT lock_extend('$key', 'a', '300 ms')");
granted('made shorter', 'd');

case('other limits');
try($_, 2) for ('a', 'b');
wait_for('one', 1);
wait_for('five', 5);
wait_for('any');
is(queue(), 'one five any', 'waiters with other limits, and with none');
is(try('c', 5), 'held|one', 'nobody passes who waits for one of fewer places');
is(try('c'), 'held|one', '... nor without a limit');
release('a');
is(queue(), 'one five any', 'one has gone, which is not enough for the first');
ask($watch, 'SELECT pg_cancel_backend(' . pid(by('one')) . ')');
like(answer(by('one')), qr/^ERROR:  57014/, 'it gives up');
granted('those behind it have room', 'five', 'any');
wait_for('one', 1);
release($_) for ('b', 'five');
is(queue(), 'one', 'one of three is left');
release('any');
granted('the last has gone', 'one');

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
is(queue(), 'writer d any', 'room for one, who waits behind the writer');
release('c');
granted('the writer', 'writer');
ask(by('writer'), "SELECT mode FROM lock_convert('$key', 'writer', 'shared')");
granted('it becomes a reader', 'd', 'any');
wait_for('e', 3);
ask(by('d'), "SELECT lock_transfer('$key', 'd', 'any')");
granted('two holdings are made one', 'e');

case('sessions and transactions');
ask(by('a'), "SELECT lock_acquire('$key', owner => 'a', mode => 'shared', lifetime => 'session', max_holders => 4)");
ask(by('b'), "BEGIN; SELECT lock_acquire('$key', owner => '$_', mode => 'shared', lifetime => 'transaction')") for ('b', 'b 2');
is(try('c', 2), 'held|a', 'a transaction that shares the key counts');
is(try('c', 3), 'acquired|c', '... as one, whoever it does so for');
wait_for($_, 3) for ('d', 'e');
end(delete $session{a});
granted('a session has ended', 'd');
ask(by('b'), 'COMMIT');
granted('a transaction', 'e');

case('a session that waits before it has held anything');
try('c', 1);
queue_up($watch, by('fresh'), "SELECT status FROM lock_try_acquire('$key', owner => 'fresh', mode => 'shared', wait => '1 h', lifetime => 'session', max_holders => 1)");
release('c');
is(answer(by('fresh')), 'acquired', 'let in for the session');
wait_for('d', 1);
end(delete $session{fresh});
granted('it has ended', 'd');

case('two-phase commit');
ask(by('a'), "BEGIN; SELECT lock_acquire('$key', owner => 'a', mode => 'shared', max_holders => 3); PREPARE TRANSACTION 'p'");
ask(by('b'), "BEGIN; SELECT lock_acquire('$key', owner => '$_', mode => 'shared', lifetime => 'transaction')") for ('b', 'c');
is(ask($watch, "SELECT status, holders, max_holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'pending|1|2', 'one is prepared');
ask(by('b'), q{PREPARE TRANSACTION 'q'});
is(ask($watch, "SELECT status, holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 1)"), 'held|1', 'a prepared transaction counts as one');
is(ask($watch, "SELECT status FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'pending', '... and another one may take the second place');
ask($watch, q{COMMIT PREPARED 'p'});
is(ask($watch, "SELECT status, holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'held|2', 'committed: full');
ask($watch, q{ROLLBACK PREPARED 'q'});
is(ask($watch, "SELECT status, holders FROM lock_try_acquire('$key', owner => 'd', mode => 'shared', max_holders => 2)"), 'acquired|2', 'one is gone');

# Every end of a holding lets one in, alone and beside one that stays.
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

	# One that is being let in, and goes
	foreach my $point ('woken', 'before-claim', 'claimed', 'before-grant')
	{
		case("one that is being let in: $point");
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
		like(answer($victim), qr/^ERROR:  57014/, "$point: a waiter is canceled while it is let in");
		granted("$point: the next one", 'c');
		is(holders(), 'a c', '... and the place is not lost');
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
	granted('the last place goes to the one who has counted first', 'b');
	is(answer(by('c')), 'pending|b', '... and not to the other');
	ask(by('b'), 'RESET atomic_lock.test_pause_at; COMMIT');
	is(holders(), 'a b', '... which makes two');

	case('one goes and another one comes while a third one counts');
	try($_, 2) for ('a', 'b');
	release('b');
	ask($keeper, "SELECT $pause");
	ask(by('c'), q{SET atomic_lock.test_pause_at = 'counting'});
	start(by('c'), share('c', 2));
	poll($watch, stands('c'));
	release('a');
	is(ask(by('b'), 'BEGIN; ' . share('b', 2)), 'acquired|b', 'there is never more than one holder');
	ask($keeper, 'SELECT pg_advisory_unlock_all()');
	granted('... who is counted once', 'c');
	ask(by('c'), 'RESET atomic_lock.test_pause_at');
	ask(by('b'), 'COMMIT');

	# It counts twice: before it has claimed the places, and after.
	case('one goes when the one that is let in has counted');
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
	granted('two have gone, two are let in', 'c', 'd');
	ask(by('c'), 'RESET atomic_lock.test_pause_at');
	end($keeper, $next);
}

# Cycles
# One request of a session: the key, and the limit; 0 wants the key exclusively
sub asks
{
	my ($who, $what, $limit, $wait) = @_;
	my $mode = $limit == 0 ? "'exclusive'" : "'shared'";
	my $max = $limit > 0 ? ", max_holders => $limit" : '';

	return "SELECT status FROM lock_try_acquire('$key $what', '1 hour', '$who', $mode, '" . ($wait // 0) . "', '$who'$max)";
}
foreach my $cycle (
	[ 'two who wait for the only place of each other', 0,
		[ [ 'p', 'm', 1 ], [ 'q', 'n', 1 ] ],
		[ [ 'p', 'n', 1 ], [ 'q', 'm', 1 ] ] ],
	[ 'all holders wait for the waiter for a place', 0,
		[ [ 'p', 'm', 2 ], [ 'q', 'm', 2 ], [ 'r', 'n', 0 ] ],
		[ [ 'p', 'n', 0 ], [ 'q', 'n', 0 ], [ 'r', 'm', 2 ] ] ],
	[ 'a waiter for a place behind an exclusive lease', 1,
		[ [ 'p', 'm', 0 ], [ 'r', 'n', 0 ] ],
		[ [ 'p', 'n', 0 ], [ 'r', 'm', 2 ] ] ],
	[ 'behind a writer, who waits for each', 1,
		[ [ 'p', 'm', -1 ], [ 'q', 'm', -1 ], [ 'r', 'n', 0 ] ],
		[ [ 's', 'm', 0 ], [ 'r', 'm', 5 ], [ 'p', 'n', 0 ] ] ],
	[ 'behind a writer, before somebody with a limit', 1,
		[ [ 'p', 'm', -1 ], [ 'q', 'm', -1 ], [ 'r', 'n', 0 ] ],
		[ [ 's', 'm', 0 ], [ 'r', 'm', -1 ], [ 't', 'm', 1000 ], [ 'p', 'n', 0 ] ] ],
	[ 'behind a writer, who is behind somebody with a limit', 1,
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

# Transactions that come and go while they are counted: nobody is to be named.
case('many for the time of a transaction');
my $output = '';
my $run = start_pgbench($node, \$output, '-c', 24, '-j', 2, '-t', 150,
	'-f', pgbench_script($node, 'moment', "SELECT status FROM lock_try_acquire('$key', mode => 'shared', lifetime => 'transaction');"),
	'-f', pgbench_script($node, 'counted', "SELECT status, holder FROM lock_try_acquire('$key', '1 ms', mode => 'shared', max_holders => 1);"));
$run->finish;
unlike($output, qr/ERROR|FATAL|aborted|closed the connection/, 'many share a key for a moment, and some count them');
is(ask($watch, 'SELECT 1'), 1, '... and the server is still there');

end($watch, values %session);
done_testing();
