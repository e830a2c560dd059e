# Moments that only occur while the clock of the server is stopped; those of each function,
# at the end of a lease, are in clock/clock_set.
#
# Properties: a proof in a transaction is valid to the end of the transaction, even if the lease has
# expired, but not longer, and does not delay extensions; an uncommitted extension
# excludes shared and exclusive requests alike, if the
# lease would have ended without it; readers, the sweep, atomic_lock.lock_delay and
# released_retention use the same moment as leases; a lease may last for
# max_lifetime and not a microsecond longer; tokens of a restored dump are above
# those of the dump even if the clock is behind them.
#
# Turns red when: the pin of one transaction is trusted in the next; a reader
# ignores an extension; one of the moments is compared with <= where the others
# have <; the sequence of tokens is left out of dumps, or leases are not.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $clock = make_clock() or plan skip_all => 'needs a C compiler';
my $node = PostgreSQL::Test::Cluster->new('stopped_clock');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.sweep_interval = 0
atomic_lock.released_retention = '2 h'
});
start_with_clock($node, $clock);
my ($psql, $open) = map { session($node, $_) } ('Holder', 'Other');
ask($psql, q{CREATE EXTENSION atomic_lock});
clock_is_heeded($psql, $clock) or plan skip_all => 'needs LD_PRELOAD';
ask($psql, q{CREATE TABLE data (id text PRIMARY KEY, n int); SELECT lock_protect('data', '{id}');
	CREATE FUNCTION outcome(statement text) RETURNS text LANGUAGE plpgsql AS $$
		DECLARE answer text; BEGIN EXECUTE statement INTO answer; RETURN coalesce(nullif(answer, ''), 'done'); EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$;
	INSERT INTO data VALUES ('k1', 0)});
my $start = int(time()) * 1_000_000 + 3_600_000_000;
my $hour = 3_600_000_000;

# A proof is valid to the end of its transaction, and no longer.
freeze_clock($clock, $start);
ask($psql, q{TRUNCATE app_lock; SELECT lock_acquire('k1', '1 h', 'o'); SET atomic_lock.owner = 'o'});
my @proofs = (q{SELECT outcome($$SELECT lock_assert('k1', 'o') > 0$$)}, q{SELECT outcome($$UPDATE data SET n = 1 WHERE id = 'k1' RETURNING true$$)});
foreach my $proof (@proofs)
{
	freeze_clock($clock, $start);
	is(ask($psql, "BEGIN; $proof"), 'true', 'proven in a transaction');
	freeze_clock($clock, $start + $hour);
	is(ask($psql, "$proof; COMMIT"), 'true', '... the proof is valid to its end, although the lease has expired by then');
	is(ask($psql, $proof), 'LK006', '... but not longer');
	freeze_clock($clock, $start);
	is(ask($psql, $proof), 'true', 'proven in a statement');
	freeze_clock($clock, $start + $hour);
	is(ask($psql, $proof), 'LK006', '... the proof is not valid for the next statement');
}
# A transaction that relies on a lease does not delay its heartbeats.
freeze_clock($clock, $start);
is(ask($open, q{BEGIN; SELECT lock_assert('k1', 'o') > 0}), 't', 'a transaction relies on a lease');
is(ask($psql, q{SELECT outcome($$SELECT lock_extend('k1', 'o', '2 h') IS NOT NULL$$)}), 'true', '... and another session extends the lease meanwhile');
is(ask($open, q{SELECT lock_assert('k1', 'o') > 0; COMMIT}), 't', '... and the transaction still relies on it');
ask($psql, 'RESET atomic_lock.owner');

# Shared holdings
foreach my $moment ('before', 'at')
{
	freeze_clock($clock, $start);
	ask($psql, q{TRUNCATE app_lock; SELECT lock_acquire('s', '1 h', 'a', 'shared'), lock_acquire('s', '1 h', 'b', 'shared')});
	freeze_clock($clock, $start + $hour - ($moment eq 'before'));
	is(ask($psql, q{SELECT count(*) FROM lock_status(); SELECT status FROM lock_try_acquire('s', owner => 'c')}), $moment eq 'at' ? "0\nacquired" : "2\nheld", "readers, $moment the end");
}

# An uncommitted extension, at the time when the lease would have ended without it
foreach my $end ('COMMIT', 'ROLLBACK')
{
	foreach my $mode ('exclusive', 'shared')
	{
		freeze_clock($clock, $start);
		ask($psql, q{TRUNCATE app_lock; SELECT lock_acquire('e', '1 h', 'a')});
		ask($open, q{BEGIN; SELECT lock_extend('e', 'a', '3 h')});
		freeze_clock($clock, $start + $hour);
		my $wanted = "SELECT status FROM lock_try_acquire('e', owner => 'b', mode => '$mode')";
		is(ask($psql, $wanted), 'pending', "a lease with an uncommitted extension is not granted to another owner, in mode $mode");
		ask($open, $end);
		is(ask($psql, $wanted), $end eq 'COMMIT' ? 'held' : 'acquired', "... after $end the key is held or free");
	}
}

# A sweep of expired and of released leases
foreach my $moment ('before', 'at')
{
	my $ends = $moment eq 'at';

	freeze_clock($clock, $start);
	ask($psql, q{TRUNCATE app_lock; SELECT lock_acquire('s', '2 h', 'a'), lock_acquire('r', '3 h', 'a'), lock_release('r', 'a')});
	freeze_clock($clock, $start + 2 * $hour - !$ends);
	is(ask($psql, 'SELECT lock_sweep(10)'), $ends ? 2 : 0, "lock_sweep, $moment the end");
}

# lock_delay
foreach my $moment ('before', 'at')
{
	freeze_clock($clock, $start);
	ask($psql, q{TRUNCATE app_lock; SET atomic_lock.lock_delay = '1 h'; SELECT lock_acquire('d', '1 h', 'a')});
	freeze_clock($clock, $start + 2 * $hour - ($moment eq 'before'));
	is(ask($psql, q{SELECT lock_sweep(10)}), $moment eq 'at' ? '1' : '0', "a key that is closed by lock_delay is swept, $moment the end");
	is(ask($psql, q{SELECT status FROM lock_try_acquire('d', owner => 'b')}), $moment eq 'at' ? 'acquired' : 'held', "... and granted");
}
ask($psql, 'RESET atomic_lock.lock_delay');

# A lease may last as long as max_lifetime, to the microsecond, and no longer.
freeze_clock($clock, $start);
is(ask($psql, q{TRUNCATE app_lock; SET atomic_lock.max_lifetime = '1 h'; SELECT extract(epoch FROM expires_at - acquired_at)::int FROM lock_acquire('m', '1 h', 'a')}), '3600', 'a lease lasts for the whole max_lifetime');
is(ask($psql, q{SELECT outcome($$SELECT lock_acquire('n', interval '1 h' + '1 us', 'a')$$)}), '22023', '... a microsecond more is refused');
freeze_clock($clock, $start + 1);
is(ask($psql, q{SELECT outcome($$SELECT lock_extend('m', 'a')$$), lock_try_extend('m', 'a') IS NULL}), 'LK008|t', '... and the lease cannot be extended');
freeze_clock($clock, $start + $hour - 1);
is(ask($psql, q{SELECT outcome($$SELECT lock_extend('m', 'a')$$), lock_is_held('m', 'a')}), 'LK008|t', '... to its last microsecond');

# A dump of a server whose clock was ahead is restored on a server whose clock is right: the
# number in the dump counts.  The dump has no leases.
freeze_clock($clock, $start + 240 * $hour);
my $token = ask($psql, q{SELECT fencing_token FROM lock_acquire('of the dump', '1 h', 'a')});
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '--no-sync', '-f', $dump, 'postgres' ], 'pg_dump of a server whose clock is ahead');
freeze_clock($clock, $start);
$node->safe_psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-q', '-d', 'copy', '-f', $dump ], '... restored when the clock is right');
is($node->safe_psql('copy', q{SELECT count(*) FROM app_lock}), '0', '... the dump has no leases');
cmp_ok($node->safe_psql('copy', q{SELECT fencing_token FROM lock_acquire('of the dump', '1 h', 'b')}), '>', $token, '... and the next token is above those of the dump');

end($psql, $open);
$node->stop;
log_is_clean($node);

done_testing();
