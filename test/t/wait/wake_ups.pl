# No wake-up is lost, and none is wasted: waits in a build that hides neither.
#
# In a build with AL_TEST_HOOKS a waiter looks again by itself after an hour here instead of
# a second, no sweep runs, and no search for deadlocks, so a lost wake-up is a wait that
# does not end; and the test can stop a waiter between its wake-up and its look.
# AL_HANDOVERS in the environment is the number of hand-overs between two sessions.
#
# Properties: every end of a holding wakes the first in the queue, after it is
# visible; a waiter that was woken and leaves passes the wake-up on, and one that looks when
# the lease ends passes that duty on; a release wakes one of 200 waiters, and calls that
# leave the key held wake no waiter; sleeping costs nothing.
#
# Turns red when: the wake-up comes before the commit, or is missing after an
# abort, a savepoint, or a claim that was dropped; it is lost between look and
# sleep; a waiter sleeps beyond a lease that ends meanwhile; a cancelled waiter keeps its
# wake-up; all waiters are woken.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS' unless $ENV{AL_HOOKS};

my $handovers = $ENV{AL_HANDOVERS} || 5_000;

my $node = PostgreSQL::Test::Cluster->new('wait_hooks', install_path => $ENV{AL_HOOKS});
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 230
deadlock_timeout = 1h
atomic_lock.max_wait = 1h
atomic_lock.sweep_interval = 0
atomic_lock.test_sleep_cap = 1h
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my $watch = session($node, 'Watch');
my $holder = session($node, 'Holder');
my @waiters = map { session($node, "Waiter $_") } (1 .. 4);
my ($one, $two, $three, $four) = @waiters;
is(ask($watch, q{SHOW atomic_lock.test_sleep_cap}), '1h', 'a build with hooks');

# How often a backend has gone to sleep; undef where /proc does not say
sub sleeps
{
	my ($pid) = @_;
	my $file = "/proc/$pid/status";

	return unless -e $file;
	return slurp_file($file) =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : undef;
}
my $has_proc = defined sleeps(pid($watch));

# Wait until all of these backends sleep, by their wait events and by the kernel.
sub settle
{
	my @pids = @_;
	my $sleep = "SELECT count(*) = @{[scalar @pids]} FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND pid IN (" . join(', ', @pids) . ')';

	do
	{
		poll($watch, $sleep);
	} while ($has_proc && grep { slurp_file("/proc/$_/status") !~ /^State:\s+S/m } @pids);
	return;
}

# A wait that another session must end
sub waiting
{
	my ($key, $owner, $more) = @_;
	return "SELECT status FROM lock_try_acquire('$key', '1 hour', '$owner', wait => '1 h')" . ($more || '');
}
sub waiting_and_release
{
	my ($key, $owner) = @_;
	return waiting($key, $owner, "; SELECT lock_try_release('$key', '$owner')");
}

#
# Every end of a holding wakes the waiter.
#
$holder = play_endings($node, $holder, $one, $two,
	sub { queue_up($watch, $one, waiting($_[0], 'waiter')) },
	sub { is(answer($one), 'acquired', "woken: $_[0]") });

# A key that is closed for a while after its lease has expired
ask($holder, q{SELECT lock_acquire('k', '200 ms', 'holder')});
queue_up($watch, $one, q{SET atomic_lock.lock_delay = '300 ms'; } . waiting('k', 'one'));
is(answer($one), 'acquired', 'woken: the end of atomic_lock.lock_delay');
ask($one, q{RESET atomic_lock.lock_delay; SELECT lock_release('k', 'one')});

# A waiter that looks every millisecond does not get the key before the commit.
ask($one, q{SET atomic_lock.test_sleep_cap = '1 ms'});
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
queue_up($watch, $one, waiting('k', 'one') =~ s/SELECT/SELECT acquired_at,/r);
ask($holder, q{BEGIN; SELECT lock_release('k', 'holder')});
SKIP:
{
	skip 'no /proc', 1 unless $has_proc;
	my $before = sleeps(pid($one));
	usleep(1000) while sleeps(pid($one)) < $before + 50;
	ok(is_waiting($watch, $one), 'a waiter does not get a key whose release is not committed, however often it looks');
}
my $moment = ask($holder, 'SELECT clock_timestamp(); COMMIT');
like(my $granted = answer($one), qr/\|acquired$/, '... but after the commit');
is(ask($watch, "SELECT '" . $granted =~ s/\|.*//r . "'::timestamptz >= '$moment'"), 't', '... not before');
ask($one, q{RESET atomic_lock.test_sleep_cap; SELECT lock_release('k', 'one')});

# A call drops a claim that it does not need: a waiter that met the claim can have the key now.
foreach my $way ('release', 'extend')
{
	my $drops = $way eq 'release' ? q{SELECT lock_try_release('k', 'holder')} : q{SELECT lock_try_extend('k', 'holder') IS NULL};

	ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder'); BEGIN; SELECT lock_release('k', 'holder')});
	start($two, "BEGIN; $drops");
	poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = @{[pid($two)]}");
	queue_up($watch, $one, waiting('k', 'one'));
	settle(pid($one));
	kill 'STOP', pid($two);		# it will get the claim while it is stopped
	ask($holder, 'COMMIT');
	settle(pid($one));			# it has looked, and met the claim
	is(ask($watch, 'SELECT blocking_pid FROM lock_waiters'), pid($two), "$way: the claim is in the way");
	kill 'CONT', pid($two);
	is(answer($two), $way eq 'release' ? 'already_released' : 't', '... the call does not need it');
	is(answer($one), 'acquired', '... and the waiter that met the claim is woken when it is dropped');
	ask($two, 'COMMIT');
	ask($one, q{SELECT lock_release('k', 'one')});
}

#
# A waiter that leaves without the key passes its wake-up on.
#
my $pause = 'pg_advisory_lock(1706)';
foreach my $kind ('cancel', 'terminate', 'statement_timeout')
{
	foreach my $transaction ('', 'BEGIN; SAVEPOINT s;')
	{
		my $victim = session($node, 'Victim');

		ask($holder, "SELECT lock_acquire('k', '1 hour', 'holder'); SELECT $pause");
		queue_up($watch, $victim, "SET atomic_lock.test_pause_at = 'woken';" . ($kind eq 'statement_timeout' ? "SET statement_timeout = '1 s';" : '')
			  . "$transaction " . waiting('k', 'victim'));
		queue_up($watch, $two, waiting_and_release('k', 'two'));
		# The time-out may come at any moment.
		settle($kind eq 'statement_timeout' ? () : pid($victim), pid($two));
		ask($holder, q{SELECT lock_release('k', 'holder')});
		if ($kind ne 'statement_timeout')
		{
			poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($victim));
			is(ask($watch, q{SELECT string_agg(holder || coalesce(blocked_by, ''), ' ' ORDER BY place) FROM lock_waiters}), 'Victim Waiter 2', "$kind $transaction one is woken, the other waits for it");
			ask($watch, "SELECT pg_${kind}_backend(" . pid($victim) . ')');
		}
		like(answer($victim), $kind eq 'terminate' ? qr/57P01/ : qr/57014/, "$kind $transaction of a waiter that was woken");
		is(answer($two), "acquired\nreleased", '... the next waiter gets the key');
		ask($holder, 'SELECT pg_advisory_unlock_all()');
		is(ask($watch, q{SELECT lock_holder('k') IS NULL, count(*) FROM lock_waiters}), 't|0', '... and no waiter or lease is left');
		end($victim);
	}
}

# Two waiters leave, one after the other.
ask($_, q{SET atomic_lock.test_pause_at = 'woken'}) for ($one, $two);
ask($holder, "SELECT lock_acquire('k', '1 hour', 'holder'); SELECT $pause");
queue_up($watch, $waiters[$_], waiting_and_release('k', "waiter $_")) for (0 .. 3);
settle(map { pid($_) } @waiters);
ask($holder, q{SELECT lock_release('k', 'holder')});
foreach my $victim ($one, $two)
{
	poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($victim));
	ask($watch, 'SELECT pg_cancel_backend(' . pid($victim) . ')');
	like(answer($victim), qr/57014/, 'two woken waiters are cancelled one after the other');
}
is(answer($_), "acquired\nreleased", '... those behind them get the key') for ($three, $four);
ask($holder, 'SELECT pg_advisory_unlock_all()');
ask($_, 'RESET atomic_lock.test_pause_at') for ($one, $two);

# A waiter is woken, and does not know yet that the key has got a new, short lease.
ask($one, q{SET atomic_lock.test_pause_at = 'woken'});
ask($holder, "SELECT lock_acquire('k', '1 hour', 'holder'); SELECT $pause");
queue_up($watch, $one, waiting_and_release('k', 'one'));
settle(pid($one));
ask($holder, q{SELECT lock_release('k', 'holder')});
poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($one));
ask($watch, q{SELECT lock_steal('k', 'thief', 'test', '500 ms')});
ask($holder, 'SELECT pg_advisory_unlock_all()');
is(answer($one), "acquired\nreleased", 'a woken waiter that finds a new lease gets the key when that ends');
ask($one, 'RESET atomic_lock.test_pause_at');

# A waiter has looked, and does not sleep yet, when the lease is shortened.
ask($one, q{SET atomic_lock.test_pause_at = 'before-sleep'});
ask($holder, "SELECT lock_acquire('k', '1 hour', 'holder'); SELECT $pause");
queue_up($watch, $one, waiting_and_release('k', 'one'));
poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($one));
ask($watch, q{SELECT lock_extend('k', 'holder', '500 ms')});
ask($holder, 'SELECT pg_advisory_unlock_all()');
is(answer($one), "acquired\nreleased", 'a lease is shortened while the waiter is about to sleep');
ask($one, 'RESET atomic_lock.test_pause_at');

# The first waiter leaves while the key is held.  This wakes the next waiter, which
# becomes the first.
foreach my $kind ('cancel', 'terminate', 'timeout', 'deadlock', 'client killed')
{
	my $victim = session($node, 'Victim');
	my $wait = $kind eq 'timeout' ? '100 ms' : '1 h';
	my $expected = { cancel => qr/57014/, terminate => qr/57P01/, timeout => qr/^timeout$/, deadlock => qr/^deadlock$/ }->{$kind};
	my $before;

	ask($holder, qq{SELECT lock_acquire('k', '1 hour', 'holder'), lock_release_all('victim')});
	ask($victim, q{SET client_connection_check_interval = '50 ms'}) if $kind eq 'client killed';
	if ($kind eq 'deadlock')
	{
		ask($victim, q{SET deadlock_timeout = '100 ms'; SELECT lock_acquire('of victim', '1 hour', 'victim')});
		queue_up($watch, $three, waiting('of victim', 'holder', q{; SELECT lock_release('of victim', 'holder')}));
	}
	# The victim does not time out before the next waiter sleeps.
	ask($watch, "SELECT $pause");
	ask($victim, q{SET atomic_lock.test_pause_at = 'before-sleep'}) if $kind =~ /timeout|deadlock/;
	queue_up($watch, $victim, "SELECT status FROM lock_try_acquire('k', '1 hour', 'victim', wait => '$wait')");
	queue_up($watch, $two, waiting_and_release('k', 'two'));
	settle(pid($two));
	$before = sleeps(pid($two));
	ask($watch, 'SELECT pg_advisory_unlock_all()');
	ask($watch, 'SELECT pg_' . $kind . '_backend(' . pid($victim) . ')') if $kind =~ /cancel|terminate/;
	$victim->{run}->signal('KILL') if $kind eq 'client killed';
	like(answer($victim), $expected, "$kind of the first in the queue") if $expected;
	gone($watch, pid($victim)) if $kind eq 'client killed';
	settle(pid($two));
	cmp_ok(sleeps(pid($two)), '>', $before, "$kind: the next in the queue looks") if $has_proc;
	ask($holder, q{SELECT lock_release('k', 'holder'), lock_release_all('victim')});
	is(answer($two), "acquired\nreleased", '... and gets the key');
	is(answer($three), "acquired\nt", '... and a waiter for the key of the victim gets that') if $kind eq 'deadlock';
	end($victim);
}
is(ask($watch, q{SELECT lock_release_all('victim'), (SELECT count(*) FROM lock_waiters)}), '0|0', '... no waiter or lease is left');

# From then on the next waiter also looks when the lease ends: otherwise it would sleep for an
# hour.  The lease is long enough to outlast the waiter that leaves.
for (my ($lease, $lasts) = (1, 0); !$lasts && $lease < 1000; $lease *= 2)
{
	ask($holder, "SELECT lock_acquire('k', '$lease s', 'holder')");
	queue_up($watch, $one, waiting_and_release('k', 'one'));
	queue_up($watch, $two, waiting_and_release('k', 'two'));
	ask($watch, 'SELECT pg_cancel_backend(' . pid($one) . ')');
	answer($one);
	$lasts = ask($watch, q{SELECT lock_is_held('k', 'holder')}) eq 't';
	is(answer($two), "acquired\nreleased", 'the next in the queue looks when the lease ends');
}

# A waiter gets the key, and a rollback gives it back.
foreach my $undo ('ROLLBACK', 'ROLLBACK TO s', 'SELECT 1 / 0')
{
	ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
	queue_up($watch, $one, 'BEGIN; SAVEPOINT s; ' . waiting('k', 'one'));
	queue_up($watch, $two, waiting_and_release('k', 'two'));
	settle(pid($one), pid($two));
	ask($holder, q{SELECT lock_release('k', 'holder')});
	is(answer($one), 'acquired', "a grant after waiting");
	settle(pid($two));
	start($one, $undo);
	answer($one);
	is(answer($two), "acquired\nreleased", "... undone by $undo: the next waiter gets the key");
	ask($one, 'ROLLBACK');
}

#
# A herd: 200 wait, and one is woken
#
my $script = $node->basedir . '/herd.pgbench';
my $output = '';
append_to_file($script, qq{SELECT lock_acquire('herd', '1 hour', 'herd-:client_id', wait => '1 h');\n});
ask($holder, q{SELECT lock_acquire('herd', '1 hour', 'holder')});
my $herd = do
{
	local $ENV{PGOPTIONS} = '-c log_min_messages=debug3';	# which says what ends a sleep

	IPC::Run::start([ 'pgbench', '-n', '-c', 200, '-t', 1, '-f', $script, $node->connstr('postgres') ],
		'<', \undef, '>', \$output, '2>&1');
};
poll($watch, 'SELECT count(*) = 200 FROM lock_waiters');
my @pids = split /\n/, ask($watch, 'SELECT pid FROM lock_waiters ORDER BY place');
settle(@pids);
my $seen = -s $node->logfile;
my $woken = sub {
	my %woken = map { $_ => 1 } slurp_file($node->logfile, $seen) =~ /\[(\d+)\] .*slept, behind a claim: \d, woken: 1/g;

	$seen = -s $node->logfile;
	return join ' ', sort keys %woken;
};

ask($holder, q{SELECT lock_extend('herd', 'holder', '2 hours')});
is(ask($holder, q{SELECT status FROM lock_try_acquire('herd', owner => 'other')}), 'held', 'the lease is extended, and another owner refused');
is(ask($holder, q{BEGIN; SELECT lock_release('herd', 'holder'); ROLLBACK; SELECT locked FROM lock_status('herd')}), "t\nt", '... a release is rolled back');
settle(@pids);
like($woken->(), qr/^(?:$pids[0])?$/, '... calls that leave the key held wake no waiter, except perhaps the first, which may have met the claim');

foreach my $n (1 .. 3)
{
	my $first = shift @pids;

	$n == 1 ? ask($holder, q{SELECT lock_release('herd', 'holder')}) : ask($watch, q{SELECT force_release('herd', 'test')});
	poll($watch, "SELECT lock_holder('herd') IS NOT NULL AND count(*) = 200 - $n FROM lock_waiters");
	is(ask($watch, 'SELECT pid FROM lock_waiters WHERE place = 1'), $pids[0], '... the first in the queue has got the key');
	settle(@pids);
	is($woken->(), $first, "... and release $n has woken none of the other " . @pids);
}
ask($watch, 'SELECT count(pg_cancel_backend(pid)) FROM lock_waiters');
$herd->finish;
is(ask($watch, q{SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM lock_status())}), '0|1', 'all waiters are cancelled at once: the queue is empty, one owner has the key')
  or diag($output);
ask($watch, q{SELECT force_release('herd', 'test')});

#
# Hand-overs
#
sub run_pgbench
{
	my ($name, $clients, $transactions, %scripts) = @_;
	my ($out, $err) = ('', '');
	my @files;
	my $limit = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default + $clients * $transactions / 100);
	my $ok;

	local $ENV{PGAPPNAME} = 'load';
	foreach my $script (sort keys %scripts)
	{
		my $file = $node->basedir . "/$name-$script.pgbench" =~ s/ /_/gr;
		append_to_file($file, $scripts{$script});
		push @files, '-f', $file;
	}
	$ok = eval {
		IPC::Run::run([ 'pgbench', '-n', '-c', $clients, '-j', 1, '-t', $transactions, @files, $node->connstr('postgres') ],
			'<', \undef, '>', \$out, '2>', \$err, $limit);
	};
	ok($ok && $err !~ /abort|error/i, "$name: no session hangs") or diag($@ || $err);
	note $out;
	my $left = session($node, 'Left');
	poll($left, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'load'});
	is(ask($left, q{SELECT count(*) FROM lock_waiters}), '0', '... and the queue is empty');
	ask($left, 'TRUNCATE app_lock');
	end($left);
	return;
}
end(@waiters, $holder);
my $mine = q{'o:client_id'};
my $take = "SELECT lock_acquire('hot', '1 hour', $mine, wait => '1 h');\n";
my $take_short = $take =~ s/1 hour', $mine/1 ms', gen_random_uuid()::text/r;
my $give = "SELECT lock_release('hot', $mine);\n";

run_pgbench("$handovers hand-overs between two", 2, int($handovers / 2), plain => "$take$give");
run_pgbench('hand-overs among five', 5, 400, plain => "$take$give");

# Leases that end by expiry only
run_pgbench('leases that expire', 4, 300,
	short => $take_short);

# All kinds of ends at once, while other waiters are cancelled; refusals are expected.
append_to_file($node->basedir . '/canceled.sql', join('', map { 'SET statement_timeout = ' . (1 + $_ % 5) . ";
SELECT lock_acquire('hot', '1 hour', 'canceled', wait => '1 h'), lock_release('hot', 'canceled');
" } (1 .. 500)));
my @canceled;
{
	local $ENV{PGAPPNAME} = 'load';		# so that its end is awaited, too
	push @canceled, IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', $node->basedir . '/canceled.sql' ],
		'<', \undef, '>', $node->basedir . "/canceled-$_.out", '2>&1') for (1, 2);
}
run_pgbench('all kinds of ends', 6, 400,
	plain => "$take$give",
	commit => "BEGIN;\n${take}COMMIT;\nBEGIN;\n${give}COMMIT;\n",
	one => "BEGIN;\n$take${give}COMMIT;\n",
	rollback => "BEGIN;\n${take}ROLLBACK;\n",
	savepoint => "BEGIN;\nSAVEPOINT s;\n${take}ROLLBACK TO s;\nSELECT 1;\nCOMMIT;\n",
	again => "$take${take}BEGIN;\n${give}ROLLBACK;\n$give",
	force => "${take}SELECT force_release('hot', 'test');\n",
	expiry => $take_short,
	shorter => "${take}SELECT lock_extend('hot', $mine, '1 ms');\n",
	impatient => "SELECT lock_try_acquire('hot', '1 hour', $mine, wait => '1 ms');\nSELECT lock_try_release('hot', $mine);\n",
	overtaker => "SELECT lock_try_acquire('hot', '1 hour', $mine);\nSELECT lock_try_release('hot', $mine);\n",
	stranger => "SELECT lock_try_release('hot', $mine);\nSELECT lock_try_extend('hot', $mine);\n",
);
$_->finish for @canceled;

end($watch);
$node->stop;
log_is_clean($node);

done_testing();
