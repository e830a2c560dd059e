# One owner in several sessions, and several owners in one transaction.
#
# Properties: what an owner holds by an unfinished transaction of another session is
# not said to be free, over, or somebody else's, whatever else that transaction does
# with the key, and however much it holds; the owner's calls wait for it.  A lease that
# has run out while its owner extends it has not, if that commits.  An owner has one
# holding of a key, also after it was handed another.  What is acquired when nothing is
# left of max_lifetime is refused, also after a wait.  A transaction that holds a key
# keeps the extension from being dropped, though the cursor that took it failed.
#
# Turns red when: a place in the list of what a transaction holds is used for another
# owner; only what is held now is shown; what is not shown is taken for free; a claim to
# extend is not waited for; a holding is left when its owner releases the key.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $clock = make_clock() or plan skip_all => 'needs a C compiler';
my $node = PostgreSQL::Test::Cluster->new('one_owner');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
max_prepared_transactions = 5
atomic_lock.sweep_interval = 0
log_statement = none
autovacuum = off
});
start_with_clock($node, $clock);
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my ($watch, $one, $two, $three) = map { session($node, $_) } ('Watch', 'One', 'Two', 'Three');

my $shared = q{mode => 'shared'};
my $in_tx = q{lifetime => 'transaction'};
sub acquire
{
	my ($key, $owner, @rest) = @_;
	return "SELECT status FROM lock_try_acquire('$key', " . join(', ', "owner => '$owner'", @rest) . ')';
}

# A call of the second session has to wait for the first one's transaction
sub waits
{
	my ($sql) = @_;
	start($two, $sql);
	return poll($watch, 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND objsubid BETWEEN 1706 AND 1711 AND pid = ' . pid($two));
}
sub finish
{
	start($_, 'ROLLBACK; SELECT lock_release_all(o) FROM unnest(\'{A,B,C}\'::text[]) o'), answer($_) for ($one, $two, $three);
	is(ask($watch, q{SELECT (SELECT count(*) FROM lock_status()), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)}), '0|0', '(nothing is left)');
	ask($watch, 'TRUNCATE app_lock');
	return;
}

#
# What else the transaction does with the key
#
foreach my $case (
	[ 'it became a lease', acquire('k', 'A', $shared) ],
	[ 'it became a lease, and another owner shares the key', acquire('k', 'A', $shared) . '; ' . acquire('k', 'B', $shared, $in_tx) ],
	[ 'another owner does, too', acquire('k', 'B', $shared, $in_tx) ],
	[ 'it was handed over after a savepoint', q{SAVEPOINT s; SELECT status FROM lock_transfer('k', 'A', 'B')}, 'ROLLBACK TO s' ],
	[ 'it was released after a savepoint', q{SAVEPOINT s; SELECT lock_release('k', 'A')}, 'ROLLBACK TO s' ],
	[ 'and has seven more', q{SELECT count(lock_acquire('more-' || n, owner => 'C', lifetime => 'transaction')) FROM generate_series(1, 7) n} ])
{
	my ($name, $then, $after) = @$case;

	is(ask($one, 'BEGIN; ' . acquire('k', 'A', $shared, $in_tx)), 'acquired', "a transaction shares a key: $name");
	ask($one, $then);
	is(ask($two, q{SELECT lock_is_held('k', 'A'), locked FROM lock_status('k')}), 't|t', '... which others see');
	waits(q{SELECT lock_try_release('k', 'A')});
	ask($one, $after) if $after;
	ask($one, acquire('k', 'A', $shared)) if $name !~ /became/;
	ask($one, 'COMMIT');
	is(answer($two), 'released', '... and the owner, in another session, waits for');
	finish();
}

ask($watch, q{CREATE TABLE guarded (k text); SELECT lock_protect('guarded', '{k}')});

# What is not shown: a ninth key, what is too long, what is prepared
foreach my $case (
	[ 'a ninth key', q{SELECT count(lock_acquire('more-' || n, owner => 'C', lifetime => 'transaction')) FROM generate_series(1, 8) n}, 'k', 'COMMIT' ],
	[ 'a long key', q{SELECT lock_acquire(repeat('x', 1000), owner => 'C', lifetime => 'transaction') IS NULL}, 'k' x 801, 'COMMIT' ],
	[ 'a prepared transaction', 'SELECT 1', 'k', q{PREPARE TRANSACTION 'p'} ])
{
	my ($name, $before, $key, $end) = @$case;

	ask($one, "BEGIN; $before");
	is(ask($one, acquire($key, 'A', $in_tx)), 'acquired', $name);
	ask($one, $end) if $end =~ /PREPARE/;
	foreach my $call ("lock_try_release('$key', 'A')", "lock_release('$key', 'A')", "lock_assert('$key', 'A')", "lock_assert_fence('$key', 1, 'A')", "lock_extend('$key', 'A')", "lock_try_extend('$key', 'A')",
		"lock_transfer('$key', 'A', 'B')", "lock_convert('$key', 'A', 'shared')", "lock_convert('$key', 'A', wait => '10 ms')", "lock_acquire('$key', owner => 'A')", "force_release('$key', 'test')")
	{
		start($two, "SELECT $call");
		like(answer($two), qr/ERROR:  55P03: /, "... is not said to be free, nor waited for, by $call");
	}
	ask($two, "SET atomic_lock.enforce_guards = off; DELETE FROM guarded; RESET atomic_lock.enforce_guards; INSERT INTO guarded VALUES ('$key')");
	start($two, "SET atomic_lock.owner = 'A'; DELETE FROM guarded; RESET atomic_lock.owner");
	like(answer($two), qr/ERROR:  55P03: /, '... nor by a guard');
	is(ask($two, "SELECT locked, holder, holders FROM lock_status('$key')"), 't||1', '... nor by lock_status, which does not know whose it is');
	is(ask($two, acquire($key, 'B')), 'held', '... and is not to be had');
	$end =~ /PREPARE/ ? ask($one, q{COMMIT PREPARED 'p'}) : ask($one, $end);
	is(ask($two, "SELECT lock_try_release('$key', 'A')"), 'not_found', '... until it is');
	finish();
}

#
# A lease that runs out while its owner extends it
#
foreach my $mode ('exclusive', 'shared')
{
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		is(ask($one, acquire('k', 'A', "mode => '$mode'", q{ttl => '1 hour'})), 'acquired', "a lease of an hour, $mode, $end");
		is(ask($one, q{BEGIN; SELECT lock_extend('k', 'A', '5 hours') IS NOT NULL}), 't', '... is being extended');
		pass_hours($clock, 2);
		is(ask($watch, q{SELECT count(*) FROM lock_status() WHERE locked}), '0', '... and runs out');
		waits(q{SELECT lock_try_extend('k', 'A', '9 hours') IS NOT NULL});
		ask($one, $end);
		is(answer($two), $end eq 'COMMIT' ? 't' : 'f', '... and another session waits for that');
		start($two, q{SELECT lock_assert('k', 'A') > 0});
		like(answer($two), $end eq 'COMMIT' ? qr/^t$/ : qr/LK006/, '... and knows');
		finish();
	}
}
# A heartbeat, too, waits for that, though it has seen what it goes over.
foreach my $mode ('exclusive', 'shared')
{
	is(ask($one, acquire('k', 'A', q{ttl => '9 hours'}) . '; ' . acquire('l', 'A', "mode => '$mode'", q{ttl => '1 hour'})), "acquired\nacquired", "a long lease, and a short one, $mode");
	is(ask($one, q{BEGIN; SELECT lock_extend('k', 'A', '9 hours') IS NOT NULL}), 't', '... are being extended');
	is(ask($three, q{BEGIN; SELECT lock_extend('l', 'A', '5 hours') IS NOT NULL}), 't', '... each in a transaction');
	waits(q{SELECT string_agg(key || ' ' || status, ' ' ORDER BY key) FROM lock_heartbeat(owner => 'A', ttl => '9 hours')});
	pass_hours($clock, 2);
	ask($one, 'COMMIT');
	poll($watch, q{SELECT state = 'idle' OR EXISTS (SELECT FROM pg_locks l WHERE NOT granted AND l.pid = a.pid) FROM pg_stat_activity a WHERE pid = } . pid($two));
	ask($three, 'COMMIT');
	is(answer($two), 'k extended l extended', '... and a heartbeat waits for both');
	finish();
}
# Somebody else who has it in hand is not waited for.
is(ask($one, acquire('k', 'A', q{ttl => '1 hour'})), 'acquired', 'a lease that runs out');
pass_hours($clock, 2);
is(ask($one, 'BEGIN; ' . acquire('k', 'B')), 'acquired', '... and that another owner takes');
is(ask($two, q{SELECT lock_try_release('k', 'A')}), 'expired', '... is over at once');
ask($one, 'COMMIT');
finish();

#
# An owner that is handed what it shares by its transaction has one holding.
#
is(ask($one, acquire('k', 'A', $shared)), 'acquired', 'a lease that is shared');
is(ask($one, 'BEGIN; ' . acquire('k', 'B', $shared, $in_tx) . q{; SELECT status FROM lock_transfer('k', 'A', 'B'); } . acquire('k', 'B')), "acquired\nacquired\nacquired", '... is handed to who shares it for the transaction, and wants it alone');
ask($one, 'COMMIT');
is(ask($two, q{SELECT lock_release('k', 'B'), lock_is_held('k', 'B'); } . acquire('k', 'C')), "t|f\nacquired", '... and releases all of it');
finish();

#
# Nothing is left of max_lifetime, after a wait for another key of the set.
#
ask($three, acquire('b', 'C', q{ttl => '9 hours'}));
ask($one, q{SET atomic_lock.max_lifetime = '1h'; } . acquire('a', 'A', q{ttl => '1 hour'}));
queue_up($watch, $one, q{BEGIN; SELECT lock_release('a', 'A'); SELECT key, status FROM lock_try_acquire_all('{a,b}', owner => 'B', ttl => '1 hour', wait => '5 min')});
pass_hours($clock, 2);
ask($three, q{SELECT lock_release('b', 'C')});
like(answer($one), qr/^t\na\|lifetime_exceeded$/, 'what has no life left is not acquired after a wait');
ask($one, 'ROLLBACK; RESET atomic_lock.max_lifetime');
finish();

#
# A cursor takes a lock for the transaction, and fails after a savepoint.
#
ask($one, q{BEGIN; DECLARE c CURSOR FOR SELECT status, 10 / (2 - i) FROM generate_series(1, 5) i, LATERAL lock_acquire('c' || i, owner => 'A', lifetime => 'transaction')});
is(ask($one, 'FETCH 1 c; SAVEPOINT x'), 'acquired|10', 'a cursor takes a lock for the transaction');
start($one, 'FETCH 1 c; ROLLBACK TO x');
like(answer($one), qr/22012/, '... and fails');
start($two, q{SET lock_timeout = '100 ms'; DROP EXTENSION atomic_lock});
like(answer($two), qr/55P03/, '... but nobody drops the extension under it');
ask($two, 'RESET lock_timeout');
is(ask($one, q{SELECT lock_is_held('c1', 'A'); COMMIT}), 't', '... while it is held');
finish();

end($_) for ($watch, $one, $two, $three);
$node->stop;
log_is_clean($node);

done_testing();
