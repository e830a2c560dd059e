# Looks at busy keys while a transaction keeps an old snapshot, and hints that are
# out of date.
#
# Properties: the cost of a look and of a grant does not grow with the number of
# former versions of a row that cannot be removed yet, as while a session
# waits; a hint leads to a former position of a row, and another row there is never taken
# for it, after a rollback, a sweep, TRUNCATE, VACUUM FULL, a change by hand, in another
# database, or after DROP and CREATE EXTENSION; links between versions are not followed
# beyond the end of the table.
#
# Turns red when: the index is asked first, or the chain of updates is not
# followed; updates check the primary key again; a hint or a link is followed
# without a check of the visibility, the key, or the size of the
# table.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
autovacuum = off
fsync = off
max_locks_per_transaction = 1000
atomic_lock.max_claims_per_transaction = 10000
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

# Number of buffers that a statement reads, once its session has warmed up
sub buffers
{
	my ($psql, $sql, $warm_up) = @_;
	my $plan;

	ask($psql, $warm_up || $sql);
	$plan = ask($psql, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) $sql");
	my ($hit) = $plan =~ /"Shared Hit Blocks": (\d+)/ or die "no buffers in $plan";
	my ($read) = $plan =~ /"Shared Read Blocks": (\d+)/ or die "no buffers in $plan";
	return $hit + $read;
}

# A new owner each time, so that updates are not HOT
my $hands = q{DO $$ BEGIN
	FOR i IN 1 .. 2000 LOOP
		PERFORM lock_acquire('busy', '1 hour', 'owner-' || i);
		PERFORM lock_release('busy', 'owner-' || i);
		COMMIT;
	END LOOP;
END $$};
my @pair = map { "SELECT lock_acquire('busy', '1 hour', '$_'), lock_release('busy', '$_')" } 'x', 'y';
my $look = q{SELECT lock_holder('busy')};

my $old = $node->background_psql('postgres');
my $busy = $node->background_psql('postgres');

ask($busy, q{SELECT count(*) FROM lock_acquire('busy', '1 hour', 'o') WHERE lock_release('busy', 'o')});
my ($look_before, $pair_before) = (buffers($busy, $look), buffers($busy, @pair));
ask($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ');
ask($old, 'SELECT 1');
ask($busy, $hands);
cmp_ok(buffers($busy, $look), '<', $look_before + 10, 'a look costs no more after 4000 updates');
cmp_ok(buffers($busy, @pair), '<', $pair_before + 40, '... nor does an acquire and release');
my $fresh = $node->background_psql('postgres');
cmp_ok(buffers($fresh, $look), '<', $look_before + 10, '... nor a look in a new session');
ask($fresh, 'SET default_transaction_isolation = serializable');
cmp_ok(buffers($fresh, $look), '<', $look_before + 10, '... nor under SERIALIZABLE');
ask($old, 'COMMIT');

# Versions that were never committed, in the chain and at its end
my $one = $node->background_psql('postgres');
is(ask($one, q{SELECT (lock_acquire('busy', '1 hour', 'A', holder => 'Ann')).acquired}), 't', 'a lease');
ask($busy, 'BEGIN');
ask($busy, q{SELECT lock_extend('busy', 'A')});
ask($busy, q{SAVEPOINT s});
ask($busy, q{SELECT lock_release('busy', 'A')});
is(ask($busy, q{SELECT lock_holder('busy') IS NULL}), 't', 'a session sees its own uncommitted release');
is(ask($one, $look), 'Ann', '... another session the committed version');
ask($busy, 'ROLLBACK TO s');
is(ask($busy, $look), 'Ann', '... the former version after ROLLBACK TO');
ask($busy, 'ROLLBACK');
is(ask($_, $look), 'Ann', '... every session the committed version after ROLLBACK') foreach ($busy, $one, $fresh);

# Rows that were deleted, and their positions that other rows have now
ask($one, q{SELECT count(lock_acquire('k' || i, '1 hour', 'A', holder => 'k' || i)) FROM generate_series(1, 3000) i});
my $right = q{SELECT count(*) FROM generate_series(1, 3000) i WHERE lock_holder('k' || i) = 'k' || i};
is(ask($busy, $right), '3000', 'each key has its row');
ask($one, q{DELETE FROM app_lock WHERE key LIKE 'k%' AND right(key, 1) <> '7'});
is(ask($busy, $right), '300', 'deleted rows are no longer found');
ask($one, 'VACUUM app_lock');
ask($one, q{SELECT count(lock_acquire('n' || i, '1 hour', 'A', holder => 'n' || i)) FROM generate_series(1, 2500) i});
is(ask($busy, $right), '300', '... nor when other rows are in their positions');
ask($one, 'VACUUM FULL app_lock');
is(ask($busy, $right), '300', 'rows that were moved are found');
is(ask($busy, q{SELECT lock_try_release('n' || 2500, 'A'), lock_try_release('n1', 'B')}), 'released|not_owner', '... and can be changed');
ask($one, q{UPDATE app_lock SET key = 'moved' WHERE key = 'k7'});
is(ask($busy, q{SELECT lock_holder('k7') IS NULL, lock_holder('moved')}), 't|k7', 'a key that was changed by hand');
ask($one, 'TRUNCATE app_lock');
is(ask($busy, $right), '0', 'a table that was truncated');
is(ask($busy, q{SELECT (lock_try_acquire('k3000', '1 hour', 'B', holder => 'Bob')).status}), 'acquired', '... and is used again');

# A link that an aborted transaction left, to a page that VACUUM has removed.
# Only before PostgreSQL 17: later VACUUMs leave that page where it is here.
my $vacuum = session($node, 'vacuum');
for my $try (1 .. 20)
{
	die 'VACUUM never truncates the table' if $try == 20;
	ask($one, 'TRUNCATE app_lock');
	ask($one, q{SELECT count(lock_acquire('first', '1 hour', 'A'))});
	last if $node->pg_version >= 17;
	ask($busy, 'BEGIN');
	for my $version (1 .. 20)
	{
		ask($busy, q{SELECT count(lock_acquire('linked', '1 hour', 'B',
			meta => (SELECT to_jsonb(string_agg(md5(i::text || random()), '')) FROM generate_series(1, 38) i)))});
		last if ask($busy, q{SELECT ctid::text LIKE '(1,%' FROM app_lock WHERE key = 'linked'}) eq 't';
	}
	ask($old, 'BEGIN; DECLARE pin CURSOR FOR SELECT ctid FROM app_lock');
	ask($old, 'FETCH pin');
	ask($busy, 'ROLLBACK');
	start($vacuum, 'VACUUM (TRUNCATE ON) app_lock');
	poll($one, q{SELECT count(*) = 1 FROM pg_stat_progress_vacuum WHERE phase = 'truncating heap'});
	ask($old, 'COMMIT');
	answer($vacuum);
	# VACUUM leaves the end of the table where it waits for longer than it wants to.
	last if ask($one, q{SELECT pg_relation_size('app_lock') / current_setting('block_size')::int}) eq '1';
}
is(ask($one, q{SELECT lock_holder('linked') IS NULL, (lock_try_acquire('linked', '1 hour', 'C')).status}), 't|acquired', 'a link to a page that was removed does no harm');

# A link without a target, of a row that was moved to another table
ask($one, q{CREATE TABLE parent (LIKE app_lock) PARTITION BY LIST (key);
ALTER TABLE parent ATTACH PARTITION app_lock FOR VALUES IN ('first', 'linked');
CREATE TABLE other PARTITION OF parent FOR VALUES IN ('other');
UPDATE parent SET key = 'other' WHERE key = 'linked'});
my $size = ask($one, q{SELECT pg_relation_size('app_lock')});
is(ask($one, q{SELECT lock_holder('linked') IS NULL}), 't', 'a row that was moved to another table is no longer found');
is(ask($one, q{SELECT pg_relation_size('app_lock')}), $size, '... and looking for it leaves the table as it is');
ask($one, 'ALTER TABLE parent DETACH PARTITION app_lock; DROP TABLE parent');

# Rows with the same key in another database, and in a new table
ask($one, q{SELECT lock_acquire('k3000', '1 hour', 'B', holder => 'Bob')});
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION atomic_lock');
is($node->safe_psql('other', q{SELECT lock_holder('k3000') IS NULL}), 't', 'another database has its own rows');
$node->safe_psql('other', q{SELECT lock_acquire('k3000', '1 hour', 'C', holder => 'Carol')});
is(ask($busy, q{SELECT lock_holder('k3000')}), 'Bob', '... and does not change those of the first');
ask($one, 'DROP EXTENSION atomic_lock');
ask($one, 'CREATE EXTENSION atomic_lock');
is(ask($busy, q{SELECT lock_holder('k3000') IS NULL}), 't', 'a row of the dropped extension is not found');

$_->quit foreach ($old, $busy, $fresh, $one, $vacuum);
$node->stop;
done_testing();
