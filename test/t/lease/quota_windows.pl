# Keys that move to another row while another session counts the keys of their role.
#
# Needs a build with AL_TEST_HOOKS, in which a count can be stopped between
# two rows.  An index is read by pages: entries that come later are not seen.
#
# Properties: a key that is held all the time is counted, although it moves from one row to
# another during a count, and the move is finished afterwards; so no role gets one key more
# than its quota.
#
# Turns red when: a convert or an upgrade is written without the claim on the quota.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS' unless $ENV{AL_HOOKS};
my $clock = make_clock() or plan skip_all => 'needs a C compiler';

my $node = PostgreSQL::Test::Cluster->new('counting_keys', install_path => $ENV{AL_HOOKS});
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = 0
log_statement = none
autovacuum = off
});
start_with_clock($node, $clock);
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my ($watch, $gate, $counter, $mover) = map { session($node, $_) } ('Watch', 'Gate', 'Counter', 'Mover');
my $number = 0;

# The role holds two keys, which is its quota.
sub prepare
{
	my ($hold) = @_;
	my $prefix = 'p' . ++$number . ':';

	ask($watch, "SELECT lock_set_policy('$prefix', max_keys_per_role => 2)");
	ask($mover, $hold =~ s/K(\d)/$prefix$1/gr);
	ask($gate, 'SELECT pg_advisory_lock(1706)');
	return $prefix;
}

# Send SQL, and return true when the session waits: at a test point or for a claim.  False: the
# call has ended before.
sub waits
{
	my ($psql, $sql, $point) = @_;

	ask($psql, "SET atomic_lock.test_pause_at = '$point'") if $point;
	start($psql, $sql);
	until (ask($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($psql)) eq 't')
	{
		$psql->{run}->pump_nb;
		return if $psql->{stderr} =~ /end of $psql->{al_sent}\r?\n/;
		die 'a call that does not end' if $psql->{timeout}->is_expired;
		usleep(10_000);
	}
	return 1;
}

sub clean
{
	ask($gate, 'SELECT pg_advisory_unlock_all()');
	ask($_, 'RESET atomic_lock.test_pause_at') for ($counter, $mover);
	ask($watch, 'TRUNCATE app_lock');
	return;
}

# One key has been counted when both move.
foreach my $case (
	[ 'converted', '', q{SELECT (lock_convert('K1', 'me', 'shared')).status; SELECT (lock_convert('K2', 'me', 'shared')).status}, "acquired\nacquired" ],
	[ 'converted back', ', mode => $$shared$$', q{SELECT (lock_convert('K1', 'me')).status; SELECT (lock_convert('K2', 'me')).status}, "acquired\nacquired" ],
	[ 'acquired again, in a stronger mode', ', mode => $$shared$$', q{SELECT status FROM lock_acquire_all('{K1,K2}', '1 hour', 'me')}, "acquired\nacquired" ])
{
	my ($name, $mode, $move, $answer) = @$case;
	my $prefix = prepare("SELECT lock_acquire(k, '1 hour', 'me'$mode) FROM unnest('{K1,K2}'::text[]) k");

	waits($counter, "SELECT status FROM lock_try_acquire('${prefix}3', '1 hour', 'me')", 'counting-keys') or die answer($counter);
	waits($mover, $move =~ s/K(\d)/$prefix$1/gr);
	ask($gate, 'SELECT pg_advisory_unlock_all()');
	like(answer($counter), qr/^ERROR:  53400:/, "two keys are $name during a count: no third key is granted");
	is(answer($mover), $answer, '... and the keys are moved afterwards');
	is(ask($watch, q{SELECT count(DISTINCT key) FROM lock_status() WHERE locked}), '2', '... the role has two keys');
	clean();
}

end($watch, $gate, $counter, $mover);
$node->stop;
log_is_clean($node);
done_testing();
