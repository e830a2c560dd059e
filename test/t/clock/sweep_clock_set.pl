# The background sweep while the clock of the machine is set.
#
# Properties: a clock that is set back keeps the sweep neither from starting nor
# from continuing; a clock that is set forward makes the sweep remove the leases that expired by it and
# no others; each holding is counted once, whatever the clock did meanwhile; leases
# are judged by the present clock.
#
# Turns red when: the next round, or the next visit of a database, is a moment
# that the clock has to reach; a pause is the difference of two such moments; a
# visit has no end if its beginning is in the future; the launcher checks once a
# round whether the clock was set, but uses the clock more often.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $clock = make_clock() or plan skip_all => 'needs a C compiler';
my $node = PostgreSQL::Test::Cluster->new('clock');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.max_ttl = '1 d'
atomic_lock.sweep_interval = '100ms'
atomic_lock.sweep_batch = 20
});
start_with_clock($node, $clock);
my $watch = session($node, 'Watch');
ask($watch, 'CREATE EXTENSION atomic_lock');
clock_is_heeded($watch, $clock) or plan skip_all => 'needs LD_PRELOAD';

my $counters = q{FROM lock_stats WHERE database = 'postgres'};

# Leases of 30, 90, ... minutes
ask($watch, q{SELECT lock_acquire('lease-' || n, n * interval '30 min', 'o') FROM generate_series(1, 5, 2) n});
ok(sweep_passes($watch), 'sweeps pass');
ask($watch, 'SELECT lock_stats_reset()');
my $leases = q{SELECT string_agg(key, ' ' ORDER BY key) FROM app_lock};

# Set back: leases do not expire early, and sweeps are not delayed.
foreach my $seconds (-3600, -7200, -90_000)
{
	set_clock($clock, $seconds);
	is(ask($watch, $leases), 'lease-1 lease-3 lease-5', "the clock is set back, $seconds s: leases live on");
	ok(sweep_passes($watch), '... sweeps pass');
	ok(sweep_passes($watch), '... again');
	is(ask($watch, $leases), 'lease-1 lease-3 lease-5', '... and leave them');
	is(ask($watch, q{SELECT last_swept_at <= clock_timestamp() FROM lock_sweeper_status() WHERE database = 'postgres'}), 't', '... with a last_swept_at of this clock');
}
ok(soon($watch, "SELECT (grants, expirations, swept) = (12, 12, 12) $counters"), '... each row was counted once');

# Right again, and ahead
set_clock($clock, 0);
ok(sweep_passes($watch), 'the clock is right again: sweeps pass');
is(ask($watch, $leases), 'lease-1 lease-3 lease-5', '... leases live on');
set_clock($clock, 3600);
ok(soon($watch, q{SELECT count(*) = 2 FROM app_lock}), 'an hour ahead: the lease that expired by this is swept');
ok(sweep_passes($watch), '... sweeps pass');
is(ask($watch, $leases), 'lease-3 lease-5', '... and leave the others');
set_clock($clock, 0);
ok(sweep_passes($watch), 'the clock is right again: sweeps pass');
is(ask($watch, $leases), 'lease-3 lease-5', '... the other leases live on');
is(ask($watch, q{SELECT lock_is_held('lease-3', 'o'), lock_is_held('lease-1', 'o')}), 't|f', '... the swept lease is gone');
ok(soon($watch, "SELECT (grants, expirations, swept) = (18, 19, 19) $counters"), '... and counted');

# In the middle of a sweep
foreach my $seconds (-60, -3600, 3600, 0, -600)
{
	my $swept = ask($watch, "SELECT swept $counters");

	expire_rows($watch, 'many', 4000);
	poll($watch, "SELECT swept > $swept $counters");
	set_clock($clock, $seconds);
	# expired an hour ago, by the clock as it was
	ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key LIKE 'many-%' AND expires_at < clock_timestamp()}), "the clock is set in the middle of a sweep, to $seconds s: the sweep continues");
	ok(soon($watch, "SELECT swept - $swept + (SELECT count(*) FROM app_lock WHERE key LIKE 'many-%') = 4000 $counters"), '... and counts each row once');
	set_clock($clock, 0);
	ok(swept($watch, 'many'), '... and all rows are swept when the clock is right again');
}

# In the middle of a round: the clock is ahead for a moment, after the round has begun and before the
# first database is visited.  The launcher reads pg_database before that visit, and
# again when it has decided to visit a database, so a lock on pg_database stops it at both points.
{
	my ($first, $second) = map { session($node, $_) } ('First', 'Second');
	my $lock = 'BEGIN; LOCK pg_database IN ACCESS EXCLUSIVE MODE';
	my $stands = q{SELECT count(*) = 1 FROM pg_locks WHERE relation = 'pg_database'::regclass AND NOT granted AND pid = };
	my $launcher = launcher($watch);

	# No worker may meet the lock; the log line shows that none runs.
	configure($node, $watch, 'atomic_lock.sweep_interval = 0', q{atomic_lock.sweep_databases = 'nobody'});
	$node->wait_for_log(qr/database "nobody" in atomic_lock.sweep_databases does not exist/);
	ask($first, $lock);
	configure($node, $watch, q{atomic_lock.sweep_interval = '100ms'}, q{atomic_lock.sweep_databases = '*'});
	poll($watch, $stands . $launcher);
	start($second, $lock);
	poll($watch, $stands . pid($second));
	set_clock($clock, 3600);
	ask($first, 'COMMIT');
	answer($second);
	poll($watch, $stands . $launcher);
	set_clock($clock, 0);
	ask($second, 'COMMIT');
	end($first, $second);
	expire_rows($watch, 'unseen', 1);
	ok(swept($watch, 'unseen'), 'an hour ahead in the middle of a round, for a moment: an expired row that no grant has counted is swept');
	ok(sweep_passes($watch), '... sweeps pass');
}

# Again and again, within the hour since the rows expired
expire_rows($watch, 'many', 4000);
for (my $n = 0; $n < 100 && ask($watch, q{SELECT count(*) FROM app_lock WHERE key LIKE 'many-%'}) > 0; $n++)
{
	set_clock($clock, (-2500, 1, -1, 2500, 5, -60)[$n % 6]);
	usleep(20_000);
}
ok(swept($watch, 'many'), 'the clock is set again and again, and all rows are swept');
set_clock($clock, 0);
ok(sweep_passes($watch), '... sweeps pass');
is(ask($watch, $leases), 'lease-3 lease-5', '... and the live leases are there');

end($watch);
$node->stop('fast');
is(unexpected_lines($node, qr/FATAL:  terminating/), '', 'nothing unexpected in the log');

done_testing();
