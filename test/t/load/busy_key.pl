# An administrator ends the lease of a key on which clients always have a claim.
#
# Several clients acquire, extend and release one key, so that at every moment a
# transaction of one of them has a claim on it, and none keeps its claim for long.
#
# Properties: force_release and lock_steal succeed, and the clients continue without an
# error; where one transaction keeps its claim all the time, while others come and go
# beside it, both raise 55P03 and do not wait for its end.
#
# Turns red when: a forced end only tries to claim the key, which is
# never free; or waits for a transaction that does not end.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $calls = 6;
my $node = PostgreSQL::Test::Cluster->new('busy_key');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.sweep_interval = 0
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my ($watch, $admin, $slow) = map { session($node, $_) } ('Watch', 'Admin', 'Slow');

# The scripts of the clients.  Each statement keeps its claim for some milliseconds.
my %loads = (
	# Claims of readers overlap.
	'readers' => q{SELECT (lock_try_acquire('readers', '1 hour', 'c:client_id', 'shared', wait => '1 min')).status, pg_sleep(0.02);
SELECT lock_try_release('readers', 'c:client_id'), pg_sleep(0.005);
},
	# Heartbeats of one owner queue for the claim, which passes from one to the next.
	'heartbeats' => q{SELECT (lock_try_acquire('heartbeats', '1 hour', 'one')).status;
SELECT lock_try_extend('heartbeats', 'one'), pg_sleep(0.01);
},
	# Writers wait for each other.
	'writers' => q{SELECT (lock_try_acquire('writers', '1 hour', 'c:client_id', wait => '1 min')).status, pg_sleep(0.01);
SELECT lock_try_release('writers', 'c:client_id'), pg_sleep(0.002);
});

# The answers that an administrator gets to repeated calls, each with its count.  A refusal does
# not count if one transaction had a claim on the key throughout the call.  not_found does not
# count: the key was free at that moment.
sub answers
{
	my ($key, $sql) = @_;
	my %count = (released => 0, acquired => 0);

	for (my ($counted, $tries) = (0, 0); $counted < $calls; $tries++)
	{
		die "$key: another transaction is always in the way" if $tries > 1000;
		poll($watch, "SELECT lock_holder('$key') <> 'Admin'");
		my $before = ask($watch, 'SELECT clock_timestamp()');
		my $told = told($admin, $sql =~ s/KEY/$key/gr);
		next if $told eq 'not_found';
		next if $told =~ /^(?:pending|55P03)$/
		  && ask($watch, "SELECT count(*) > 0 FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE objsubid = 1706 AND granted AND xact_start < '$before'") eq 't';
		$counted++;
		$count{$told}++;
		ask($admin, "SELECT lock_try_release('$key', 'thief')");
	}
	note join(', ', map { "$_: $count{$_}" } sort keys %count);
	return %count;
}

foreach my $load (sort keys %loads)
{
	my $output;
	my $run = start_pgbench($node, \$output, '-c', 6, '-T', 600, '-f', pgbench_script($node, $load, $loads{$load}));

	my %count = answers($load, q{SELECT lock_try_force_release('KEY', 'busy')});
	cmp_ok($count{released}, '>', $calls / 2, "$load: force_release ends leases");
	%count = answers($load, q{SELECT (lock_steal('KEY', 'thief', 'busy')).status});
	cmp_ok($count{acquired}, '>', $calls / 2, '... lock_steal succeeds, too');
	$run->signal('INT');
	$run->finish;
	unlike($output, qr/ERROR|FATAL|abort/, '... no client gets an error') or diag($output);
}
poll($watch, q{SELECT count(*) = 3 FROM pg_stat_activity WHERE backend_type = 'client backend'});

# One of the readers does not commit.
my $output;
my $run = start_pgbench($node, \$output, '-c', 6, '-T', 600, '-f', pgbench_script($node, 'others', $loads{readers}));
poll($watch, q{SELECT lock_holder('readers') IS NOT NULL});
ask($slow, q{BEGIN; SELECT lock_acquire('readers', '1 hour', 'slow', 'shared', wait => '4 min')});
is(told($admin, q{SELECT force_release('readers', 'busy')}), '55P03', 'force_release does not wait for a transaction that stays open');
is(told($admin, q{SELECT lock_steal('readers', 'thief', 'busy')}), '55P03', '... nor does lock_steal');
is(told($admin, q{SELECT lock_try_force_release('readers', 'busy')}), 'pending', '... nor lock_try_force_release');
ask($slow, 'COMMIT');
my %count = answers('readers', q{SELECT lock_try_force_release('KEY', 'busy')});
cmp_ok($count{released}, '>', $calls / 2, '... and ends leases when that transaction has ended');
$run->signal('INT');
$run->finish;
unlike($output, qr/ERROR|FATAL|abort/, '... no client gets an error') or diag($output);
end($watch, $admin, $slow);
$node->stop;
log_is_clean($node, also => qr/40P01/);

done_testing();
