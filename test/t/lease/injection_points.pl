# Sessions are stopped in every window between two steps of our code.
#
# Needs PostgreSQL 17 or later, built with --enable-injection-points, and its
# extension injection_points (test/assert builds both): these can stop a backend
# in a window, or make it fail there.
#
# Properties: two sessions that race for a key never both have it, whatever one of them does
# while the other is stopped anywhere between its look and its commit; a call that is refused
# and joins the queue misses no release in between; a woken waiter that
# leaves, is stopped, or is overtaken by a steal neither takes nor blocks the
# key; a holder that is stopped after its commit, before it wakes waiters, blocks
# the key only for a while; a sweep judges a row again before it deletes it; an owner's call
# judges the holding again if another session has had the key meanwhile, and
# after that the key stays the owner's; a cycle that was seen once and has gone has no
# victim, one that two waiters have seen has one; a call that fails anywhere leaves no
# claim, position in the queue, or holding; index builds and rewrites of app_lock lose no
# entry of a grant that is made meanwhile.
#
# Turns red when: the second look is left out, or is before the claim; a call joins the
# queue after its look; a waiter that leaves does not wake the next; the
# sweep deletes the rows it chose without a second look; a cycle counts that was seen once.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs a server with injection points' unless qx(pg_config --configure) =~ /--enable-injection-points/;
my $clock = make_clock() or plan skip_all => 'needs a C compiler';

my $node = PostgreSQL::Test::Cluster->new('injection');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
deadlock_timeout = 1h
max_prepared_transactions = 5
atomic_lock.sweep_interval = 0
});
start_with_clock($node, $clock);
if ($node->safe_psql('postgres', q{SELECT count(*) FROM pg_available_extensions WHERE name = 'injection_points'}) eq '0')
{
	$node->stop;
	plan skip_all => 'needs the extension injection_points';
}
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock; CREATE EXTENSION injection_points');

# A session that can be stopped: the library must allocate its memory in a transaction before,
# or that memory would belong to the resource owner of the transaction that is stopped.
sub stopping_session
{
	my ($label) = @_;
	my $psql = session($node, $label);

	start($psql, q{SELECT injection_points_wakeup('nobody')});
	die 'a session waits at the point "nobody"' unless answer($psql) =~ /could not find injection point/;
	return $psql;
}

my ($watch, $one, $two, $three, $other) = map { stopping_session($_) } ('Watch', 'One', 'Two', 'Three', 'Other');

# Send SQL, and return when its backend is stopped at an injection point.  Other sessions
# pass the point after that.
sub halt
{
	my ($psql, $point, $sql) = @_;

	ask($watch, "SELECT injection_points_attach('$point', 'wait')");
	start($psql, $sql);
	stands($psql, $point);
	ask($watch, "SELECT injection_points_detach('$point')");
	return;
}

sub stands
{
	my ($psql, $point) = @_;
	poll($watch, "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = @{[ pid($psql) ]} AND wait_event = '$point'");
	return;
}

# Continue the session that was stopped there first, and see it leave: another wake-up
# before that would be for the same session.
sub go
{
	my ($point) = @_;
	my $standing = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = '$point'";
	my $before = ask($watch, $standing);

	ask($watch, "SELECT injection_points_wakeup('$point')");
	poll($watch, "SELECT ($standing) < $before");
	return;
}

sub go_and_answer
{
	my ($psql, $point) = @_;
	go($point);
	return answer($psql);
}

# The holders of a key, as lock_status shows them
sub holders
{
	my ($key) = @_;
	return ask($watch, "SELECT coalesce(string_agg(holder || ' ' || mode, ', ' ORDER BY holder), '') FROM lock_status() WHERE key = '$key'");
}

# No session waits, or has a claim.
sub all_clear
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(ask($watch, 'SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)'), '0|0', $name);
	return;
}

sub run_out
{
	my ($key) = @_;
	poll($watch, "SELECT count(*) = 0 FROM app_lock WHERE key = '$key' AND NOT released AND expires_at > clock_timestamp()");
	return;
}

sub acquire
{
	my ($key, $owner, %with) = @_;
	my $mode = $with{mode} || 'exclusive';
	my $ttl = $with{ttl} || '1 hour';
	my $wait = $with{wait} || '0';
	my $lifetime = $with{lifetime} || 'lease';
	$ttl = $lifetime eq 'lease' ? "'$ttl'" : 'NULL';
	return "SELECT status FROM lock_try_acquire('$key', $ttl, '$owner', '$mode', '$wait', lifetime => '$lifetime')";
}

my $number = 0;
my $key;
sub new_key
{
	$key = 'k' . ++$number;
	return $key;
}

#
# Two sessions race, with all modes and lifetimes: one is stopped in a window while the other
# comes.  If the first has its claim, the other is refused; if not, the first.
#
my %claimed = ('before-look' => 0, 'before-claim' => 0, 'claimed' => 1, 'before-grant' => 1);
foreach my $window (sort keys %claimed)
{
	my $point = "atomic-lock-$window";

	foreach my $lifetimes ([ 'lease', 'lease' ], [ 'transaction', 'lease' ], [ 'lease', 'transaction' ], [ 'session', 'transaction' ])
	{
		foreach my $modes ([ 'exclusive', 'exclusive' ], [ 'exclusive', 'shared' ], [ 'shared', 'exclusive' ], [ 'shared', 'shared' ])
		{
			my ($my, $their) = @$modes;
			my ($mine, $theirs) = map { "$_->[0] $_->[1]" } [ 'One', $my ], [ 'Two', $their ];
			my $both = $my eq 'shared' && $their eq 'shared';
			my $loser = $both ? 'acquired' : $claimed{$window} || $lifetimes->[1] ne 'transaction' ? 'pending' : 'held';

			new_key();
			halt($one, $point, 'BEGIN; ' . acquire($key, 'one', mode => $my, lifetime => $lifetimes->[0]));
			is(ask($two, 'BEGIN; ' . acquire($key, 'two', mode => $their, lifetime => $lifetimes->[1])), $claimed{$window} ? $loser : 'acquired',
				"$window: one, $my for a $lifetimes->[0], stands, another comes, $their for a $lifetimes->[1]");
			is(go_and_answer($one, $point), $claimed{$window} ? 'acquired' : $loser, '... the first continues');
			ask($_, 'COMMIT; BEGIN; SET LOCAL client_min_messages = error; COMMIT') foreach ($one, $two);
			is(holders($key), join(', ', grep { $_ }
					($lifetimes->[0] ne 'transaction' && ($both || $claimed{$window}) ? $mine : ''),
					($lifetimes->[1] ne 'transaction' && ($both || !$claimed{$window}) ? $theirs : '')), '... and lock_status shows the holders');
		}
	}

	# The other session has acquired and released the key: a new grant, with a newer token.
	new_key();
	ask($one, acquire($key, 'one') . "; SELECT lock_release('$key', 'one')");
	halt($one, $point, acquire($key, 'one'));
	ask($two, acquire($key, 'two') . "; SELECT lock_try_release('$key', 'two')");
	is(go_and_answer($one, $point), 'acquired', "$window: another owner has had the key meanwhile");
	is(ask($watch, "SELECT count(*), max(fencing_token) = (SELECT last_value FROM app_lock_fence) FROM app_lock WHERE key = '$key'"), '1|t', '... only the row of the newer grant is left');

	# The row is deleted, or moves.
	foreach my $how ('SELECT lock_sweep(100000)', 'VACUUM app_lock')
	{
		new_key();
		ask($two, acquire($key, 'two', ttl => '1 ms'));
		run_out($key);
		halt($one, $point, acquire($key, 'one'));
		ask($other, $how);
		is(go_and_answer($one, $point), 'acquired', "$window: $how meanwhile");
		is(holders($key), 'One exclusive', '... and lock_status shows the holder');
	}

	# The other session has not committed yet, and then commits or rolls back.
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		new_key();
		halt($one, $point, acquire($key, 'one'));
		ask($two, 'BEGIN; ' . acquire($key, 'two'));
		is(go_and_answer($one, $point), $claimed{$window} ? 'acquired' : 'pending', "$window: against an unfinished transaction");
		ask($two, $end);
		is(holders($key), $claimed{$window} ? 'One exclusive' : $end eq 'COMMIT' ? 'Two exclusive' : '', "... after its $end");
	}

	# The session is cancelled, or terminated.
	new_key();
	halt($one, $point, acquire($key, 'one'));
	ask($watch, 'SELECT pg_cancel_backend(' . pid($one) . ')');
	like(answer($one), qr/57014/, "$window: cancelled");
	is(ask($two, acquire($key, 'two')), 'acquired', '... another owner can acquire the key');
	halt($one, $point, acquire(new_key(), 'one'));
	ask($watch, 'SELECT pg_terminate_backend(' . pid($one) . ')');
	like(answer($one), qr/57P01/, "$window: terminated");
	is(ask($two, acquire($key, 'two')), 'acquired', '... another owner can acquire the key');
	end($one);
	$one = stopping_session('One');
	all_clear('... and no waiter or claim is left');
}

# Two readers have looked at the same dead row, and chosen it.
new_key();
ask($other, acquire($key, 'gone', mode => 'shared', ttl => '1 ms'));
run_out($key);
halt($_->[0], 'atomic-lock-before-grant', acquire($key, $_->[1], mode => 'shared')) foreach ([ $one, 'one' ], [ $two, 'two' ]);
is(go_and_answer($one, 'atomic-lock-before-grant'), 'acquired', 'two readers write over one dead row: the first');
is(go_and_answer($two, 'atomic-lock-before-grant'), 'acquired', '... the second');
is(holders($key), 'One shared, Two shared', '... each has a row of its own');

#
# A call joins the queue and misses no end of a holding in between.  If it slept, it would
# have missed the end; sleeping fails here.
#
foreach my $window ('refused', 'enqueued')
{
	my $point = "atomic-lock-$window";

	foreach my $ends (
		[ 'lease', '', 'SELECT lock_release(KEY, OWNER)' ], [ 'lease', '', 'SELECT force_release(KEY, OWNER)' ], [ 'lease', 'BEGIN', 'COMMIT; SELECT lock_release(KEY, OWNER)' ],
		[ 'lease', 'BEGIN', 'ROLLBACK' ], [ 'transaction', 'BEGIN', 'COMMIT' ], [ 'transaction', 'BEGIN; SAVEPOINT s', 'ROLLBACK TO s' ], [ 'session', '', 'DISCARD ALL' ], [ 'lease', 'BEGIN', "PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'" ])
	{
		my ($lifetime, $before, $sql) = @$ends;

		new_key();
		ask($other, "$before; " . acquire($key, 'other', lifetime => $lifetime));
		halt($one, $point, acquire($key, 'one', wait => '2 min'));
		ask($watch, q{SELECT injection_points_attach('atomic-lock-before-sleep', 'error')});
		ask($other, $sql =~ s/KEY/'$key'/r =~ s/OWNER/'other'/r);
		is(go_and_answer($one, $point), 'acquired', "$window: the holder ends by $sql, and the call does not sleep");
		ask($watch, q{SELECT injection_points_detach('atomic-lock-before-sleep')});
		ask($other, q{SET client_min_messages = error; ROLLBACK; SET application_name = 'Other'});
		is(holders($key), 'One exclusive', '... and lock_status shows the holder');
	}
}
all_clear('no waiter or claim is left');

# The key is released while a waiter is about to sleep.
new_key();
ask($other, acquire($key, 'other'));
halt($one, 'atomic-lock-before-sleep', acquire($key, 'one', wait => '2 min'));
ask($other, "SELECT lock_release('$key', 'other')");
is(ask($two, acquire($key, 'two')), 'held', 'a waiter is about to sleep: the key is free, but another session does not overtake it');
is(go_and_answer($one, 'atomic-lock-before-sleep'), 'acquired', '... and the waiter gets the key');

#
# A waiter is woken, and stopped before it looks.
#
sub woken
{
	new_key();
	ask($other, acquire($key, 'other'));
	queue_up($watch, $one, acquire($key, 'one', wait => '5 min'));
	ask($watch, q{SELECT injection_points_attach('atomic-lock-woken', 'wait')});
	ask($other, "SELECT lock_release('$key', 'other')");
	stands($one, 'atomic-lock-woken');
	ask($watch, q{SELECT injection_points_detach('atomic-lock-woken')});
	return;
}

woken();
is(ask($two, acquire($key, 'two')), 'held', 'woken: another session does not overtake the waiter');
is(go_and_answer($one, 'atomic-lock-woken'), 'acquired', '... and the waiter gets the key');

woken();
is(ask($two, "SELECT status FROM lock_steal('$key', 'two', 'test')"), 'acquired', 'woken: the key is stolen meanwhile');
go('atomic-lock-woken');
poll($watch, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = @{[ pid($one) ]} AND wait_event = 'AtomicLock'");
is(holders($key), 'Two exclusive', '... and the woken waiter continues to wait');
ask($two, "SELECT lock_release('$key', 'two')");
is(answer($one), 'acquired', '... until the key is free again');

foreach my $end ([ 'cancelled', 'pg_cancel_backend', '57014' ], [ 'terminated', 'pg_terminate_backend', '57P01' ])
{
	my ($name, $function, $code) = @$end;

	woken();
	queue_up($watch, $two, acquire($key, 'two', wait => '5 min'));
	ask($watch, "SELECT $function(@{[ pid($one) ]})");
	like(answer($one), qr/$code/, "woken: $name");
	is(answer($two), 'acquired', '... and the next waiter gets the key');
	is(holders($key), 'Two exclusive', '... alone');
	if ($code eq '57P01')
	{
		end($one);
		$one = stopping_session('One');
	}
}

# The woken waiter is stopped for so long that the others pass it.
woken();
queue_up($watch, $two, acquire($key, 'two', wait => '5 min'));
is(answer($two), 'acquired', 'woken, but stopped: the next waiter gets the key');
go('atomic-lock-woken');
poll($watch, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = @{[ pid($one) ]} AND wait_event = 'AtomicLock'");
is(holders($key), 'Two exclusive', '... alone');
ask($two, "SELECT lock_release('$key', 'two')");
is(answer($one), 'acquired', '... and the one that was stopped gets it after that');

# Two waiters, woken one after the other, look at the same time.
woken();
halt($two, 'atomic-lock-woken', acquire($key, 'two', wait => '5 min'));
go('atomic-lock-woken');
go('atomic-lock-woken');
poll($watch, "SELECT count(*) = 1 FROM lock_status() WHERE key = '$key'");
like(holders($key), qr/^(One|Two) exclusive$/, 'two woken waiters look at the same time: one gets the key');
ask($watch, "SELECT force_release('$key', 'test')");
is_deeply([ answer($one), answer($two) ], [ 'acquired', 'acquired' ], '... and the other gets it after that');

# A waiter is cancelled, and stopped before it has left the queue.
new_key();
ask($other, acquire($key, 'other'));
queue_up($watch, $one, acquire($key, 'one', wait => '5 min'));
ask($watch, q{SELECT injection_points_attach('atomic-lock-leaving', 'wait')});
ask($watch, "SELECT pg_cancel_backend(@{[ pid($one) ]})");
stands($one, 'atomic-lock-leaving');
ask($watch, q{SELECT injection_points_detach('atomic-lock-leaving')});
queue_up($watch, $two, acquire($key, 'two', wait => '5 min'));
ask($other, "SELECT lock_release('$key', 'other')");
is(answer($two), 'acquired', 'cancelled, but still in the queue: the next gets the key');
like(go_and_answer($one, 'atomic-lock-leaving'), qr/57014/, '... and the cancelled call fails');
is(holders($key), 'Two exclusive', '... and the next has the key alone');
all_clear('no waiter or claim is left');

#
# The holder is stopped after its commit, before it wakes waiters.
#
foreach my $how (
	[ 'a release', '', "SELECT lock_release('KEY', 'other')" ],
	[ 'the end of a transaction that has it', 'BEGIN', 'COMMIT' ])
{
	my ($name, $begin, $sql) = @$how;

	new_key();
	ask($other, "$begin; " . acquire($key, 'other', lifetime => $begin ? 'transaction' : 'lease'));
	queue_up($watch, $one, acquire($key, 'one', wait => '5 min'));
	queue_up($watch, $two, acquire($key, 'two', wait => '5 min'));
	halt($other, 'atomic-lock-before-wake', $sql =~ s/KEY/$key/r);
	is(answer($one), 'acquired', "$name is committed, but has not woken a waiter yet: the first in the queue gets the key by itself");
	go('atomic-lock-before-wake');
	answer($other);
	is(holders($key), 'One exclusive', '... the second is woken after that, and does not get the key');
	ask($one, "SELECT lock_release('$key', 'one')");
	is(answer($two), 'acquired', '... until the key is free');
}

#
# The sweep
#
my %meanwhile = (
	'another session acquires the key' => [ acquire('KEY', 'two'), 'Two exclusive' ],
	'another session shares the key' => [ acquire('KEY', 'two', mode => 'shared'), 'Two shared' ],
	'another session has the key for a transaction' => [ 'BEGIN; ' . acquire('KEY', 'two', lifetime => 'transaction'), 'Two exclusive' ]);
foreach my $name (sort keys %meanwhile)
{
	my ($sql, $holds) = @{ $meanwhile{$name} };

	ask($watch, 'SELECT lock_sweep(100000)');
	new_key();
	ask($other, acquire($key, 'other', ttl => '1 ms'));
	run_out($key);
	halt($three, 'atomic-lock-sweep-chosen', 'SELECT lock_sweep(10)');
	ask($two, $sql =~ s/KEY/$key/r);
	like(go_and_answer($three, 'atomic-lock-sweep-chosen'), $name =~ /shares/ ? qr/^[01]$/ : qr/^0$/, "a sweep has chosen a row, $name");
	is(holders($key), $holds, '... and holds it after the sweep');
	ask($two, q{ROLLBACK; SELECT lock_release_all('two')});

	ask($watch, 'SELECT lock_sweep(100000)');
	new_key();
	ask($other, acquire($key, 'other', ttl => '1 ms'));
	run_out($key);
	halt($three, 'atomic-lock-sweep-claimed', 'SELECT lock_sweep(10)');
	is(ask($two, ($sql =~ s/KEY/$key/r)), 'pending', "a sweep has claimed a row, and is stopped: pending, when $name");
	ask($two, 'ROLLBACK');
	queue_up($watch, $two, acquire($key, 'two', wait => '5 min'));
	is(go_and_answer($three, 'atomic-lock-sweep-claimed'), '1', '... the sweep continues');
	is(answer($two), 'acquired', '... and a waiter gets the key');
	ask($two, q{SELECT lock_release_all('two')});
}
new_key();
ask($other, acquire($key, 'other', ttl => '1 ms'));
run_out($key);
halt($three, 'atomic-lock-sweep-claimed', 'SELECT lock_sweep(10)');
ask($watch, 'SELECT pg_cancel_backend(' . pid($three) . ')');
like(answer($three), qr/57014/, 'a sweep is cancelled after it has claimed a row');
is(ask($two, acquire($key, 'two')), 'acquired', '... the key can be acquired');
all_clear('... and no waiter or claim is left');

#
# An owner's call sees its holding, claims it, and judges it again.
#
my %verb = (
	"SELECT lock_release('KEY', 'one')" => '',
	"SELECT lock_extend('KEY', 'one', '9 hours') > clock_timestamp()" => 'One exclusive',
	"SELECT status = 'acquired' FROM lock_transfer('KEY', 'one', 'heir', 'Heir', '9 hours')" => 'Heir exclusive',
	"SELECT lock_assert('KEY', 'one') > 0" => '');
foreach my $sql (sort keys %verb)
{
	my $left = $verb{$sql};
	my $name = $sql =~ s/^SELECT .*?(lock_\w+).*/$1/r;

	# Before its claim the lease expires, and in one case another owner acquires the key.
	foreach my $meanwhile (
		[ 'the lease runs out', '', $name eq 'lock_assert' ? 'LK006' : 'LK005', '' ],
		[ 'the lease runs out, and another owner acquires the key', acquire('KEY', 'two'), $name eq 'lock_assert' ? 'LK006' : 'LK00[35]', 'Two exclusive' ],
		[ 'it is force-released', "SELECT force_release('KEY', 'test')", 'LK009', '' ],
		[ 'it is stolen', "SELECT status FROM lock_steal('KEY', 'two', 'test', holder => 'Two')", 'LK009', 'Two exclusive' ],
		[ 'it is released on another connection', "SELECT lock_release('KEY', 'one')", $name eq 'lock_assert' ? 'LK006' : 'LK004', '' ])
	{
		my ($what, $theirs, $code, $holds) = @$meanwhile;

		new_key();
		ask($one, acquire($key, 'one'));
		halt($one, 'atomic-lock-own-seen', $sql =~ s/KEY/$key/r);
		pass_hours($clock, 2) if $what =~ /runs out/;
		ask($two, $theirs =~ s/KEY/$key/r) if $theirs;
		like(go_and_answer($one, 'atomic-lock-own-seen'), qr/ERROR:  $code/, "$name has seen its holding, then $what");
		is(holders($key), $holds, '... and the call changes nothing');
	}

	# After its claim, the end of the lease changes nothing.
	foreach my $window ('own-claimed', 'own-judged')
	{
		new_key();
		ask($one, acquire($key, 'one'));
		halt($one, "atomic-lock-$window", 'BEGIN; ' . $sql =~ s/KEY/$key/r);
		is(ask($two, acquire($key, 'two')), 'held', "$name, $window: others are refused");
		pass_hours($clock, 2) if $window eq 'own-judged';
		is(ask($two, acquire($key, 'two')), 'pending', '... also when the lease has expired') if $window eq 'own-judged';
		is(go_and_answer($one, "atomic-lock-$window"), 't', '... the call succeeds');
		like(ask($two, acquire($key, 'two')), qr/^(held|pending)$/, '... others are refused before the commit');
		ask($one, 'COMMIT');
		is(holders($key), $left, '... and lock_status shows the outcome') unless $name eq 'lock_assert';
	}
}

# One owner calls twice at the same time.
new_key();
ask($one, acquire($key, 'one'));
halt($_, 'atomic-lock-own-seen', "SELECT lock_try_release('$key', 'one')") foreach ($one, $two);
is(go_and_answer($one, 'atomic-lock-own-seen') . ', ' . go_and_answer($two, 'atomic-lock-own-seen'), 'released, already_released', 'two releases by one owner');
new_key();
ask($one, acquire($key, 'one'));
halt($one, 'atomic-lock-own-seen', "SELECT lock_try_release('$key', 'one')");
halt($two, 'atomic-lock-own-seen', "SELECT status FROM lock_transfer('$key', 'one', 'two')");
is(go_and_answer($one, 'atomic-lock-own-seen'), 'released', 'a release and a transfer by one owner');
like(go_and_answer($two, 'atomic-lock-own-seen'), qr/LK004/, '... the second call fails');

#
# The end of a session
#
new_key();
my $leaving = stopping_session('Leaving');
ask($leaving, acquire($key, 'leaving', lifetime => 'session'));
ask($watch, q{SELECT injection_points_attach('atomic-lock-exit', 'wait')});
start($leaving, '\q');
stands($leaving, 'atomic-lock-exit');
ask($watch, q{SELECT injection_points_detach('atomic-lock-exit')});
is(ask($one, acquire($key, 'one')), 'held', 'a session has disconnected, but has not released its locks yet');
queue_up($watch, $one, acquire($key, 'one', wait => '5 min'));
go('atomic-lock-exit');
is(answer($one), 'acquired', '... and wakes the waiter when it has released them');
end($leaving);

#
# Deadlocks
#
sub cycle
{
	my ($point) = @_;
	my ($first, $second) = (new_key(), new_key());

	ask($one, acquire($first, 'one'));
	ask($two, acquire($second, 'two'));
	queue_up($watch, $one, "SET deadlock_timeout = '1 h'; " . acquire($second, 'one', wait => '5 min'));
	halt($two, $point, "SET deadlock_timeout = '10 ms'; " . acquire($first, 'two', wait => '5 min'));
	return ($first, $second);
}
foreach my $window ('cycle-seen', 'cycle-confirmed')
{
	my ($first, $second) = cycle("atomic-lock-$window");
	ask($other, "SELECT lock_release('$second', 'two')");
	is(answer($one), 'acquired', "$window: a lock of the cycle is released in between");
	go("atomic-lock-$window");
	ask($other, "SELECT lock_release('$first', 'one')");
	is(answer($two), 'acquired', '... there is no victim');
	ask($other, "SELECT lock_release('$first', 'two'), lock_release('$second', 'one')");

	($first, $second) = cycle("atomic-lock-$window");
	is(go_and_answer($two, "atomic-lock-$window"), 'deadlock', "$window: nothing happens in between: deadlock");
	is(ask($watch, 'SELECT count(*) FROM lock_waiters'), '1', '... the other continues to wait');
	ask($other, "SELECT lock_release('$second', 'two')");
	is(answer($one), 'acquired', '... and gets the key');
	ask($other, "SELECT lock_release('$first', 'one'), lock_release('$second', 'one')");
}

# The lock that one session waits for is stolen: both still wait, but not for each other.
{
	my ($first, $second) = cycle('atomic-lock-cycle-seen');
	ask($other, "SELECT lock_steal('$second', 'thief', 'test')");
	go('atomic-lock-cycle-seen');
	poll($watch, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = @{[ pid($two) ]} AND wait_event = 'AtomicLock'");
	ask($other, "SELECT lock_release('$second', 'thief')");
	is(answer($one), 'acquired', 'cycle-seen: a lock of the cycle is stolen: its waiter gets it from the thief');
	ask($other, "SELECT lock_release('$first', 'one')");
	is(answer($two), 'acquired', '... there is no victim');
	ask($other, "SELECT lock_release('$first', 'two'), lock_release('$second', 'one')");
}

# Both sessions have found the cycle.
my ($first, $second) = (new_key(), new_key());
ask($one, "SET deadlock_timeout = '10 ms'; " . acquire($first, 'one'));
ask($two, "SET deadlock_timeout = '10 ms'; " . acquire($second, 'two'));
ask($watch, q{SELECT injection_points_attach('atomic-lock-cycle-confirmed', 'wait')});
start($one, acquire($second, 'one', wait => '5 min'));
start($two, acquire($first, 'two', wait => '5 min'));
stands($_, 'atomic-lock-cycle-confirmed') foreach ($one, $two);
ask($watch, q{SELECT injection_points_detach('atomic-lock-cycle-confirmed')});
go('atomic-lock-cycle-confirmed');
go('atomic-lock-cycle-confirmed');
poll($watch, 'SELECT count(*) = 1 FROM lock_waiters');
my $waiting = is_waiting($watch, $one) ? $one : $two;
my $victim = $waiting == $one ? $two : $one;
is(answer($victim), 'deadlock', 'two find the same cycle: one is the victim');
ask($other, q{SELECT lock_release_all('} . ($victim == $one ? 'one' : 'two') . q{')});
is(answer($waiting), 'acquired', '... the other gets the key');
ask($_, 'RESET deadlock_timeout') foreach ($one, $two);
ask($other, q{SELECT lock_release_all('one'), lock_release_all('two')});
all_clear('no waiter or claim is left');

#
# A call that fails in a window leaves nothing, and its transaction continues.
#
ask($watch, 'CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)');
my %calls = (
	acquire => q{lock_acquire('KEY', owner => 'one')}, share => q{lock_acquire('KEY', owner => 'one', mode => 'shared')}, set => q{lock_acquire_all('{KEY-a,KEY,KEY-b}', owner => 'one')}, fetch => q{lock_fetch(NULL::item, '1', owner => 'one', key => 'KEY')},
	session => q{lock_acquire('KEY', owner => 'one', lifetime => 'session')}, transaction => q{lock_acquire('KEY', owner => 'one', lifetime => 'transaction')}, 'wait' => q{lock_acquire('KEY', owner => 'one', wait => '50 ms')}, 'wait to share' => q{lock_acquire('KEY', owner => 'one', mode => 'shared', wait => '50 ms')},
	'wait for a set' => q{lock_acquire_all('{KEY-a,KEY,KEY-b}', owner => 'one', wait => '50 ms')}, release => q{lock_release('KEY', 'mine')}, extend => q{lock_extend('KEY', 'mine')}, transfer => q{lock_transfer('KEY', 'mine', 'one')}, assert => q{lock_assert('KEY', 'mine')},
	convert => q{lock_convert('KEY', 'mine', 'shared')}, sweep => q{lock_sweep(100000)});
my %failed;
foreach my $window ('before-look', 'before-claim', 'claimed', 'before-grant', 'refused', 'enqueued', 'before-sleep', 'woken', 'own-seen', 'own-claimed', 'own-judged', 'sweep-chosen', 'sweep-claimed')
{
	foreach my $call (sort keys %calls)
	{
		my $held = $call =~ /wait/ || $calls{$call} =~ /mine/;
		my $sql = $calls{$call};
		my ($before, $answer);

		new_key();
		$sql =~ s/KEY/$key/g;
		ask($other, "SELECT lock_acquire('$key', '1 hour', 'mine', holder => 'mine')") if $held;
		ask($other, "SELECT lock_acquire('$key', '1 ms', 'mine')") if $call eq 'sweep';
		run_out($key) if $call eq 'sweep';
		$before = ask($watch, "SELECT md5(string_agg(a::text, ';' ORDER BY key, slot)) FROM app_lock a");
		ask($watch, "SELECT injection_points_attach('atomic-lock-$window', 'error')");
		# A call that does not get to the window has effects, which are rolled back.
		$answer = ask($one, qq{BEGIN;
			DO \$\$ BEGIN PERFORM $sql; RAISE 'not here' USING ERRCODE = 'ZZ001'; EXCEPTION WHEN OTHERS THEN PERFORM set_config('my.state', SQLSTATE, false); END \$\$;
			SELECT current_setting('my.state'), count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND objsubid BETWEEN 1706 AND 1711});
		ask($watch, "SELECT injection_points_detach('atomic-lock-$window')");
		$failed{$window}++ if $answer =~ /^XX000/;
		$failed{$call}++ if $answer =~ /^XX000/;
		my $ok = $answer =~ /\|0$/ && $answer =~ /^(XX000|ZZ001|55P03)/
		  && $before eq ask($watch, "SELECT md5(string_agg(a::text, ';' ORDER BY key, slot)) FROM app_lock a")
		  && ask($watch, 'SELECT count(*) FROM lock_waiters') eq '0';
		if ($ok && !$held)
		{
			$answer = ask($two, acquire($key, 'two'));
			$ok = $answer eq 'acquired';
		}
		ask($one, 'COMMIT');
		ok($ok, "$call that fails at $window leaves no claim, waiter or holding") or diag($answer);
	}
}
cmp_ok($failed{$_} // 0, '>', 0, "$_ has failed at least once") foreach ('before-look', 'before-claim', 'claimed', 'before-grant', 'refused', 'enqueued', 'before-sleep', 'woken', 'own-seen', 'own-claimed', 'own-judged', 'sweep-chosen', 'sweep-claimed', sort keys %calls);
ask($other, q{SELECT lock_release_all('mine'), lock_release_all('one'), lock_release_all('two')});
all_clear('no waiter or claim is left');

#
# Windows in PostgreSQL itself
#
# A grant has found its row, and not written it yet.
foreach my $what ('VACUUM app_lock', 'VACUUM (FREEZE) app_lock', 'ANALYZE app_lock', 'CHECKPOINT')
{
	new_key();
	ask($one, acquire($key, 'one') . "; SELECT lock_release('$key', 'one')");
	halt($one, 'heap_update-before-pin', acquire($key, 'one'));
	ask($other, $what);
	is(ask($two, acquire($key, 'two')), 'pending', "a grant about to be written, $what meanwhile: another owner is refused");
	is(ask($two, "SELECT locked FROM lock_status('$key')"), 'f', '... and the key is not locked yet');
	is(go_and_answer($one, 'heap_update-before-pin'), 'acquired', '... the grant succeeds');
	is(holders($key), 'One exclusive', '... and is visible');
}

# An index is being built or rebuilt: it must contain new versions of rows, and no chain of
# updates may hide that an indexed column has changed.
SKIP:
{
	skip 'needs amcheck', 3 unless ask($watch, q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'});
	ask($watch, 'CREATE EXTENSION amcheck');
	my @steps = grep { ask($watch, "SELECT $_->[2]") eq 't' } (
		[ 'REINDEX TABLE CONCURRENTLY app_lock', 'reindex-conc-index-safe', 'true' ],
		[ 'REINDEX TABLE CONCURRENTLY app_lock', 'reindex-conc-index-built', 'true' ]);
	foreach my $step (@steps)
	{
		my ($ddl, $point) = @$step;
		my $keys = new_key();

		ask($one, q{SELECT lock_release_all('one')});
		ask($one, "SELECT count(lock_acquire('$keys-' || n, '1 hour', 'one', mode => CASE n % 3 WHEN 0 THEN 'shared' ELSE 'exclusive' END)) FROM generate_series(1, 60) n");
		halt($other, $point, $ddl);
		ask($one, "SELECT count(lock_release('$keys-' || n, 'one')) FROM generate_series(1, 60, 2) n");
		ask($one, "SELECT count(lock_acquire('$keys-' || n, '1 hour', 'new ' || n, mode => CASE n % 5 WHEN 0 THEN 'shared' ELSE 'exclusive' END)) FROM generate_series(1, 100) n WHERE n > 60 OR n % 2 = 1");
		is(go_and_answer($other, $point), '', "$ddl, stopped at $point, ends without error");
		is(ask($watch, q{SELECT count(bt_index_check(indexrelid, true)) FROM pg_index WHERE indrelid = 'app_lock'::regclass AND indisvalid}), '2', '... no index lacks an entry');
		is(ask($two, "SELECT count(*) FROM generate_series(1, 100) n, lock_try_acquire('$keys-' || n, '1 hour', 'two') g WHERE g.acquired"), '0', '... every lock that was granted is found');
		is(ask($one, q{SELECT lock_release_all('one')}) + ask($one, "SELECT sum(lock_release_all('new ' || n)) FROM generate_series(1, 100) n"), 100, '... also by its owner');
	}
}
end($watch, $one, $two, $three, $other);
$node->stop;
unlike(slurp_file($node->logfile), qr/TRAP:|PANIC:|terminated by signal/, 'no crash, no failed assertion');

done_testing();
