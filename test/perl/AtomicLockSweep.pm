# Helpers of the TAP tests of sweeping: expired leases, and waiting
# for actions of the background.

package AtomicLockSweep;

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use Exporter 'import';
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(soon expire expire_rows swept sweep_passes configure launcher worker_stands
  log_of count_in_log pause_sweep let_sweep unexpected_lines);

# Does the query become true in time?  Unlike poll, soon() does not die.
sub soon
{
	my ($psql, $sql) = @_;
	my $until = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (ask($psql, $sql) ne 't')
	{
		return 0 if time() > $until;
		usleep(10_000);
	}
	return 1;
}

# Grant leases, at most as many as a transaction may claim, and wait until they have expired
sub expire
{
	my ($psql, $prefix, $number) = @_;
	my $granted = ask($psql, "SELECT count(*) FROM generate_series(1, $number) n, lock_acquire('$prefix-' || n, '1 ms', 'owner of $prefix')");

	poll($psql, "SELECT NOT locked FROM lock_status('$prefix-$number')");
	return $granted;
}

# Insert many expired rows without a call of a function: the counters do not count them as
# granted.
sub expire_rows
{
	my ($psql, $prefix, $number) = @_;

	ask($psql, qq{INSERT INTO app_lock (fencing_token, acquired_at, expires_at, ttl_us, slot, role, key, mode, holder, owner)
		SELECT n, now() - interval '2 hours', now() - interval '1 hour', 3600000000, 0, 0, '$prefix-' || n, 'exclusive', 'x', 'o'
		FROM generate_series(1, $number) n});
	return;
}

# Are the rows of a prefix swept soon?
sub swept
{
	my ($psql, $prefix) = @_;

	return soon($psql, "SELECT count(*) = 0 FROM app_lock WHERE key LIKE '$prefix-%'");
}

# Wait until two sweeps of a database have begun and ended.
my $passes = 0;

sub sweep_passes
{
	my ($psql) = @_;

	foreach my $n (1, 2)
	{
		my $prefix = 'pass' . ++$passes;

		expire($psql, $prefix, 1);
		swept($psql, $prefix) or return 0;
	}
	return 1;
}

# Change settings of a running server; all connected sessions know them after that.
sub configure
{
	my ($node, $psql, @lines) = @_;
	my $loaded = ask($psql, 'SELECT pg_conf_load_time()');

	$node->append_conf('postgresql.conf', join("\n", @lines));
	$node->reload;
	poll($psql, "SELECT pg_conf_load_time() > '$loaded'");
	return;
}

# Process id of the launcher, once it exists
sub launcher
{
	my ($psql) = @_;

	soon($psql, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher'}) or return 0;
	return ask($psql, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher'});
}

# Process id of the worker, once it has stopped at the point of pause_sweep
sub worker_stands
{
	my ($psql) = @_;
	my $stands = q{FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper' AND wait_event_type = 'Lock' AND wait_event = 'advisory'};

	soon($psql, "SELECT count(*) = 1 $stands") or return 0;
	return ask($psql, "SELECT pid $stands");
}

# With AL_TEST_HOOKS and one of the pauses on, a sweep of the database of this
# session stops between pause_sweep and let_sweep.
sub pause_sweep
{
	my ($psql) = @_;
	ask($psql, 'SELECT pg_advisory_lock(1706)');
	return;
}

sub let_sweep
{
	my ($psql) = @_;
	ask($psql, 'SELECT pg_advisory_unlock_all()');
	return;
}

sub log_of
{
	my ($node) = @_;
	return slurp_file($node->logfile);
}

sub count_in_log
{
	my ($node, $pattern) = @_;
	my @found = log_of($node) =~ /$pattern/g;
	return scalar @found;
}

# The lines of a log that no test of sweeping may cause, except
# those that match one of the patterns
sub unexpected_lines
{
	my ($node, @allowed) = @_;
	my @lines = grep { /(?:WARNING|ERROR|FATAL|PANIC):  |TRAP:|XX000|terminated by signal/ } split /\n/, log_of($node);

	foreach my $allowed (@allowed)
	{
		@lines = grep { $_ !~ $allowed } @lines;
	}
	return join "\n", @lines;
}

1;
