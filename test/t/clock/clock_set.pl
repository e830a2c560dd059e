# Locks while the clock of the machine is set; the sweep is in clock/sweep_clock_set.
#
# Properties: for every function, a lease has expired at exactly the microsecond of
# expires_at, and not a microsecond before.  A clock that is set forward ends
# leases but no wait, and the former owner is refused, also by a fence; a clock that is set back
# lengthens leases but no wait; an extension never shortens a lease unless asked to;
# a clock that is set all the time, or runs too fast or too slow, makes no two
# holdings of a key overlap by that clock; a standby whose clock
# is behind still issues tokens above those of its primary, and a standby whose
# clock is ahead leaves keys closed for atomic_lock.lock_delay.
#
# Turns red when: "<" is "<=" in one of the functions; a wait ends at a moment of
# this clock; a pause is computed from two of its moments; lock_extend counts
# from now and ignores the present end; tokens come from the clock alone.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $clock = make_clock() or plan skip_all => 'needs a C compiler';
my $node = PostgreSQL::Test::Cluster->new('clocks');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
deadlock_timeout = 100ms
atomic_lock.max_wait = '1d'
atomic_lock.sweep_interval = 0
});
start_with_clock($node, $clock);
my ($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
ask($watch, 'CREATE EXTENSION atomic_lock; CREATE TABLE doc (id int); INSERT INTO doc VALUES (1)');
clock_is_heeded($watch, $clock) or plan skip_all => 'needs LD_PRELOAD';
ask($watch, q{SELECT lock_protect('doc', 'edge')});

#
# The exact moment of expires_at
#
my @calls = (
	# a call, its answer a microsecond before the end of the lease, and its answer at the end
	[ q{SELECT lock_is_held('edge', 'me')}, 't', 'f' ],
	[ q{SELECT coalesce(lock_holder('edge'), 'nobody')}, 'Holder', 'nobody' ],
	[ q{SELECT locked FROM lock_status('edge')}, 't', 'f' ],
	[ q{SELECT count(*) FROM lock_status()}, '1', '0' ],
	[ q{SELECT count(*) FROM lock_activity}, '1', '0' ],
	[ q{BEGIN; SELECT lock_assert('edge', 'me') > 0; ROLLBACK}, 't', 'LK006' ],
	[ q{BEGIN; SELECT lock_assert_fence('edge', TOKEN, 'me')::text; ROLLBACK}, '', 'LK005' ],
	[ q{BEGIN; SET LOCAL atomic_lock.owner = 'me'; UPDATE doc SET id = id RETURNING id; ROLLBACK}, '1', 'LK006' ],
	[ q{BEGIN; SELECT status FROM lock_try_acquire('edge', owner => 'you'); ROLLBACK}, 'held', 'acquired' ],
	[ q{BEGIN; SELECT status FROM lock_try_acquire('edge', owner => 'you', mode => 'shared'); ROLLBACK}, 'held', 'acquired' ],
	[ q{BEGIN; SELECT status FROM lock_try_acquire('edge', owner => 'you', lifetime => 'transaction'); ROLLBACK}, 'held', 'acquired' ],
	[ q{BEGIN; SELECT status FROM lock_acquire('edge', owner => 'me'); ROLLBACK}, 'reacquired', 'acquired' ],
	[ q{SELECT lock_release('edge', 'me')}, 't', 'LK005' ],
	[ q{SELECT lock_try_release('edge', 'me')}, 'released', 'expired' ],
	[ q{SELECT lock_release_all('me')}, '1', '0' ],
	[ q{SELECT lock_extend('edge', 'me') IS NOT NULL}, 't', 'LK005' ],
	[ q{SELECT lock_try_extend('edge', 'me') IS NOT NULL}, 't', 'f' ],
	[ q{SELECT lock_extend_all('me')}, '1', '0' ],
	[ q{SELECT mode FROM lock_convert('edge', 'me', 'shared')}, 'shared', 'LK005' ],
	[ q{SELECT owner FROM lock_transfer('edge', 'me', 'you')}, 'you', 'LK005' ],
	[ q{SELECT force_release('edge', 'why')}, 't', 'LK002' ],
	[ q{SELECT lock_sweep()}, '0', '1' ]);
my $moment = int(time()) * 1_000_000;
foreach my $call (@calls)
{
	foreach my $early (1, 0)
	{
		my ($sql, $before, $at) = @$call;
		my $token;

		freeze_clock($clock, $moment);
		ask($watch, 'TRUNCATE app_lock');
		($token, my $end) = split /\|/, ask($holder, q{SELECT fencing_token, extract(epoch FROM expires_at) * 1000000 FROM lock_acquire('edge', '10 min', 'me')});
		# cut off the decimals: 1 is a microsecond
		$end = int $end;
		freeze_clock($clock, $end - $early);
		start($one, $sql =~ s/TOKEN/$token/r);
		my $answer = answer($one);
		$answer = $1 if $answer =~ /ERROR:  (\w{5})/;
		is($answer, $early ? $before : $at, ($early ? 'a microsecond before' : 'at') . " the end: $sql");
		told($one, 'ROLLBACK');
	}
}
set_clock($clock, 0);
ask($watch, 'TRUNCATE app_lock; SELECT lock_unprotect($$doc$$)');

#
# Set forward
#
ask($holder, q{SELECT lock_acquire('k', '30 min', 'me'); SELECT lock_acquire('longer', '2 hours', 'me')});
my $token = ask($watch, q{SELECT fencing_token FROM lock_status('k')});
queue_up($watch, $one, q{SELECT status FROM lock_try_acquire('k', '30 min', 'one', wait => '5 hours')});
queue_up($watch, $two, q{SELECT status, waited >= '1500 ms' FROM lock_try_acquire('longer', '30 min', 'two', wait => '1500 ms')});
set_clock($clock, 3600);
is(answer($one), 'acquired', 'an hour forward: the waiter gets the key of the lease that expired by this');
is(answer($two), 'timeout|t', '... and waits for the full time if the lease has not expired');
is(told($holder, q{SELECT lock_extend('k', 'me')}), 'LK003', '... the former owner cannot extend the lease');
is(told($holder, qq{SELECT lock_assert_fence('k', $token, 'me')}), 'LK005', '... nor prove ownership with the token');
cmp_ok(ask($watch, q{SELECT fencing_token FROM lock_status('k')}), '>', $token, '... and that token is lower than the new one');
set_clock($clock, 0);
is(ask($watch, q{SELECT locked, holder, ttl_remaining > '1 hour' FROM lock_status('k')}), 't|One|t', 'the clock is right again: the new lease lasts, longer than intended');
is(told($holder, q{SELECT lock_extend('k', 'me')}), 'LK003', '... and does not return to the former owner');
is(ask($watch, q{SELECT force_release('k', 'a clock was wrong')}), 't', '... and can be ended by force');

#
# Set back
#
my $end = ask($holder, q{SELECT expires_at FROM lock_acquire('back', '30 min', 'me')});
queue_up($watch, $one, q{SELECT status, waited >= '1500 ms' FROM lock_try_acquire('back', '30 min', 'one', wait => '1500 ms')});
set_clock($clock, -3600);
is(answer($one), 'timeout|t', 'an hour back: a wait lasts for the requested time');
is(ask($one, q{SELECT status, waited >= '1 s' FROM lock_try_acquire('back', wait => '1 s')}), 'timeout|t', '... so does a wait that begins then');
is(ask($holder, qq{SELECT lock_extend('back', 'me') = '$end'}), 't', '... an extension without ttl does not shorten the lease');
is(ask($holder, qq{SELECT status, expires_at = '$end' FROM lock_acquire('back', '30 min', 'me')}), 'reacquired|t', '... nor does acquiring again');
is(ask($holder, q{SELECT lock_extend_all('me', NULL); SELECT expires_at >= '} . $end . q{' FROM lock_status('back')}), "2\nt", '... nor a heartbeat');
is(ask($holder, qq{SELECT lock_extend('back', 'me', '30 min') < '$end'}), 't', '... an extension with a ttl does, as requested');
set_clock($clock, 0);
is(ask($watch, q{SELECT lock_is_held('back', 'me')}), 'f', '... and that lease has expired by the right clock');
ask($watch, 'TRUNCATE app_lock');

# The clock goes back and forth while keys change hands.  The clock at the time of the
# grant determines how long a lease lasts, so only leases that last for hours
# are exclusive here.
#
ask($watch, q{CREATE TABLE done (key text); CREATE TABLE counter (key text PRIMARY KEY, value bigint); INSERT INTO counter SELECT 'hand-' || n, 0 FROM generate_series(1, 2) n});
my $output;
my $script = pgbench_script($node, 'hand', q{\set k random(1, 2)
\set p random(1, 5)
SELECT acquired AS got FROM lock_try_acquire('hand-' || :k, '20 hours', 'c:client_id', wait => CASE WHEN :p = 1 THEN interval '2 ms' ELSE '30 s' END) \gset
\if :got
SELECT value AS v FROM counter WHERE key = 'hand-' || :k \gset
BEGIN;
UPDATE counter SET value = :v + 1 WHERE key = 'hand-' || :k;
INSERT INTO done VALUES ('hand-' || :k);
COMMIT;
SELECT lock_release('hand-' || :k, 'c:client_id');
\endif
});
ask($holder, q{SELECT lock_acquire('days', '24 hours', 'me')});
queue_up($watch, $one, q{SELECT status FROM lock_try_acquire('days', '1 hour', 'one', wait => '20 hours')});
my $updates = q{SELECT coalesce(sum(value), 0) FROM counter};
my $run = start_pgbench($node, \$output, '-c', 6, '-T', 3600, '-f', $script);
my $steps = 0;
while (ask($watch, $updates) < 1500 || $steps < 400)
{
	set_clock($clock, (-7200, 0.004, 262, -1, 7200, 1, -262, 0)[ $steps++ % 8 ]);
	usleep((1, 10, 3, 30)[ $steps % 4 ] * 1000);
	last if $steps > 100_000;
}
set_clock($clock, 0);
$run->signal('INT');
$run->finish;
unlike($output, qr/ERROR|FATAL|abort/, 'the clock is set back and forth: no error') or diag($output);
poll($watch, q{SELECT count(*) = 4 FROM pg_stat_activity WHERE backend_type = 'client backend'});
is(ask($watch, q{SELECT count(*) FROM counter c WHERE value <> (SELECT count(*) FROM done d WHERE d.key = c.key)}), '0', '... and no update is lost');
ok(is_waiting($watch, $one), '... the waiter for the longer lease still waits');
ask($holder, q{SELECT lock_release('days', 'me')});
is(answer($one), 'acquired', '... until it is released');

#
# Too fast, too slow: short leases by a clock of another pace
#
ask($watch, 'TRUNCATE app_lock');
ask($watch, q{CREATE TABLE grant_of (pace text, token bigint, since timestamptz, until timestamptz)});
foreach my $pace (2, 0.5)
{
	pace_clock($clock, $pace);
	my @line = ($holder, $one, $two);
	start($line[$_], qq{DO \$\$ BEGIN FOR i IN 1 .. 4 LOOP
		INSERT INTO grant_of SELECT '$pace', fencing_token, acquired_at, expires_at FROM lock_acquire('pace', '300 ms', 'o$_ ' || i, wait => '5 hours');
		COMMIT; END LOOP; END \$\$}) for (0 .. 2);
	is(answer($_), '', "a clock that runs at $pace: granted") for @line;
	is(ask($watch, qq{SELECT count(*), bool_and(since >= coalesce(before, since)) FROM (SELECT since, lag(until) OVER (ORDER BY token) AS before FROM grant_of WHERE pace = '$pace') s}), '12|t', '... one after the other, by that clock');
}
set_clock($clock, 0);
ask($watch, 'TRUNCATE app_lock');

#
# A standby with a clock of its own
#
$node->backup('backup');
foreach my $ahead (-600, 600)
{
	my $name = $ahead < 0 ? 'behind' : 'ahead';
	my $its_clock = make_clock();
	my $standby = PostgreSQL::Test::Cluster->new($name);
	my ($highest, $session);

	$standby->init_from_backup($node, 'backup', has_streaming => 1);
	start_with_clock($standby, $its_clock);
	set_clock($its_clock, $ahead);
	ask($holder, qq{SELECT lock_acquire('lease-$name', '5 min', 'me')});
	$highest = ask($holder, qq{SELECT max(fencing_token) FROM generate_series(1, 900) n, lock_acquire('$name-' || n, '1 hour', 'me')});
	$node->wait_for_catchup($standby);
	# the standby does not receive these
	$standby->append_conf('postgresql.conf', "primary_conninfo = ''\natomic_lock.lock_delay = '1h'\n");
	$standby->reload;
	$session = session($standby, 'Session');
	poll($session, q{SELECT count(*) = 0 FROM pg_stat_wal_receiver});
	$highest = ask($holder, qq{SELECT max(fencing_token) FROM generate_series(1, 900) n, lock_acquire('$name-lost-' || n, '1 hour', 'me')});
	$standby->promote;
	poll($session, 'SELECT NOT pg_is_in_recovery()');
	cmp_ok(ask($session, q{SELECT fencing_token FROM lock_acquire('new')}), '>', $highest, "a standby whose clock is 10 minutes $name: its tokens are above those of its primary");
	is(ask($session, qq{SELECT locked FROM lock_status('lease-$name')}), $ahead < 0 ? 't' : 'f', '... a lease of five minutes is ' . ($ahead < 0 ? 'held' : 'expired'));
	is(ask($session, qq{SELECT status FROM lock_try_acquire('lease-$name', owner => 'you')}), 'held', $ahead < 0 ? '... by its owner' : '... and its key closed for lock_delay');
	end($session);
	$standby->stop;
}

end($watch, $holder, $one, $two);
$node->stop;
is(unexpected_lines($node, qr/LK\d|55P03|lock "|canceling|terminating|replication|standby|no transaction in progress|connection to client lost/), '', 'nothing unexpected in the log');

done_testing();
