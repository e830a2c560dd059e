# One owner in several sessions, and several owners in one transaction.
#
# Properties: a key that an owner holds by an unfinished transaction of another session is
# not reported as free, expired, or held by another owner, whatever else that transaction does
# with the key, and however much it holds; the owner's calls wait for the transaction.  A
# lease that expires while its owner extends it is live if the extension commits.  An owner
# has one holding of a key, also after a transfer of another.  A key whose max_lifetime is
# used up is refused, also after a wait.  A transaction that holds a key
# prevents DROP EXTENSION, even if the cursor that acquired the key failed.
#
# Turns red when: an entry in the list of a transaction's holdings is used for another
# owner; only current holdings are shown, not former ones; a key that is not in the list
# counts as free; a call does not wait for a claim to
# extend; a holding is left when its owner releases the key.

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

# A call of the second session has to wait for the transaction of the first one.
sub waits
{
	my ($sql) = @_;
	start($two, $sql);
	return poll($watch, 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND objsubid BETWEEN 1706 AND 1711 AND pid = ' . pid($two));
}
sub finish
{
	start($_, 'ROLLBACK; SELECT lock_release_all(o) FROM unnest(\'{A,B,C}\'::text[]) o'), answer($_) for ($one, $two, $three);
	is(ask($watch, q{SELECT (SELECT count(*) FROM lock_status()), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)}), '0|0', '(no lock or claim is left)');
	ask($watch, 'TRUNCATE app_lock');
	return;
}

#
# Other changes that the transaction makes to the key
#
foreach my $case (
	[ 'it became a lease', acquire('k', 'A', $shared) ],
	[ 'it became a lease, and another owner shares the key', acquire('k', 'A', $shared) . '; ' . acquire('k', 'B', $shared, $in_tx) ],
	[ 'another owner shares it, too', acquire('k', 'B', $shared, $in_tx) ],
	[ 'it was transferred after a savepoint', q{SAVEPOINT s; SELECT status FROM lock_transfer('k', 'A', 'B')}, 'ROLLBACK TO s' ],
	[ 'it was released after a savepoint', q{SAVEPOINT s; SELECT lock_release('k', 'A')}, 'ROLLBACK TO s' ],
	[ 'and has seven more', q{SELECT count(lock_acquire('more-' || n, owner => 'C', lifetime => 'transaction')) FROM generate_series(1, 7) n} ])
{
	my ($name, $then, $after) = @$case;

	is(ask($one, 'BEGIN; ' . acquire('k', 'A', $shared, $in_tx)), 'acquired', "a transaction shares a key: $name");
	ask($one, $then);
	is(ask($two, q{SELECT lock_is_held('k', 'A'), locked FROM lock_status('k')}), 't|t', '... others see the key held');
	waits(q{SELECT lock_try_release('k', 'A')});
	ask($one, $after) if $after;
	ask($one, acquire('k', 'A', $shared)) if $name !~ /became/;
	ask($one, 'COMMIT');
	is(answer($two), 'released', '... the owner, in another session, waits for it');
	finish();
}

ask($watch, q{CREATE TABLE guarded (k text); SELECT lock_protect('guarded', '{k}')});

# Holdings that lock_status cannot show with an owner: a ninth key, a long key, a prepared one
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
		like(answer($two), qr/ERROR:  55P03: /, "... raises 55P03 at once in $call");
	}
	ask($two, "SET atomic_lock.enforce_guards = off; DELETE FROM guarded; RESET atomic_lock.enforce_guards; INSERT INTO guarded VALUES ('$key')");
	start($two, "SET atomic_lock.owner = 'A'; DELETE FROM guarded; RESET atomic_lock.owner");
	like(answer($two), qr/ERROR:  55P03: /, '... and in a guard');
	is(ask($two, "SELECT locked, holder, holders FROM lock_status('$key')"), 't||1', '... lock_status shows it as held, without an owner');
	is(ask($two, acquire($key, 'B')), 'held', '... another owner is refused');
	$end =~ /PREPARE/ ? ask($one, q{COMMIT PREPARED 'p'}) : ask($one, $end);
	is(ask($two, "SELECT lock_try_release('$key', 'A')"), 'not_found', '... and it is free when the transaction has ended');
	finish();
}

#
# A lease expires while its owner extends it.
#
foreach my $mode ('exclusive', 'shared')
{
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		is(ask($one, acquire('k', 'A', "mode => '$mode'", q{ttl => '1 hour'})), 'acquired', "a lease of an hour, $mode, $end");
		is(ask($one, q{BEGIN; SELECT lock_extend('k', 'A', '5 hours') IS NOT NULL}), 't', '... its extension is not committed');
		pass_hours($clock, 2);
		is(ask($watch, q{SELECT count(*) FROM lock_status() WHERE locked}), '0', '... the lease expires');
		waits(q{SELECT lock_try_extend('k', 'A', '9 hours') IS NOT NULL});
		ask($one, $end);
		is(answer($two), $end eq 'COMMIT' ? 't' : 'f', '... another session of the owner waits for the extension');
		start($two, q{SELECT lock_assert('k', 'A') > 0});
		like(answer($two), $end eq 'COMMIT' ? qr/^t$/ : qr/LK006/, '... and lock_assert knows the outcome');
		finish();
	}
}
# A heartbeat waits for such an extension, too, though it has seen the expiry of its rows.
foreach my $mode ('exclusive', 'shared')
{
	is(ask($one, acquire('k', 'A', q{ttl => '9 hours'}) . '; ' . acquire('l', 'A', "mode => '$mode'", q{ttl => '1 hour'})), "acquired\nacquired", "a long lease, and a short one, $mode");
	is(ask($one, q{BEGIN; SELECT lock_extend('k', 'A', '9 hours') IS NOT NULL}), 't', '... the extension of the first is not committed');
	is(ask($three, q{BEGIN; SELECT lock_extend('l', 'A', '5 hours') IS NOT NULL}), 't', '... nor is that of the second, in another transaction');
	waits(q{SELECT string_agg(key || ' ' || status, ' ' ORDER BY key) FROM lock_heartbeat(owner => 'A', ttl => '9 hours')});
	pass_hours($clock, 2);
	ask($one, 'COMMIT');
	poll($watch, q{SELECT state = 'idle' OR EXISTS (SELECT FROM pg_locks l WHERE NOT granted AND l.pid = a.pid) FROM pg_stat_activity a WHERE pid = } . pid($two));
	ask($three, 'COMMIT');
	is(answer($two), 'k extended l extended', '... a heartbeat waits for both');
	finish();
}
# The owner does not wait for the uncommitted grant of another owner.
is(ask($one, acquire('k', 'A', q{ttl => '1 hour'})), 'acquired', 'a lease that expires');
pass_hours($clock, 2);
is(ask($one, 'BEGIN; ' . acquire('k', 'B')), 'acquired', '... another owner acquires the key');
is(ask($two, q{SELECT lock_try_release('k', 'A')}), 'expired', '... the former owner gets the answer expired at once');
ask($one, 'COMMIT');
finish();

#
# An owner shares a key by its transaction and receives another share: it has one holding.
#
is(ask($one, acquire('k', 'A', $shared)), 'acquired', 'a shared lease');
is(ask($one, 'BEGIN; ' . acquire('k', 'B', $shared, $in_tx) . q{; SELECT status FROM lock_transfer('k', 'A', 'B'); } . acquire('k', 'B')), "acquired\nacquired\nacquired", '... is transferred to an owner that shares the key in its transaction, and converts to exclusive');
ask($one, 'COMMIT');
is(ask($two, q{SELECT lock_release('k', 'B'), lock_is_held('k', 'B'); } . acquire('k', 'C')), "t|f\nacquired", '... its release frees the key');
finish();

#
# max_lifetime is used up after a wait for another key of the set.
#
ask($three, acquire('b', 'C', q{ttl => '9 hours'}));
ask($one, q{SET atomic_lock.max_lifetime = '1h'; } . acquire('a', 'A', q{ttl => '1 hour'}));
queue_up($watch, $one, q{BEGIN; SELECT lock_release('a', 'A'); SELECT key, status FROM lock_try_acquire_all('{a,b}', owner => 'B', ttl => '1 hour', wait => '5 min')});
pass_hours($clock, 2);
ask($three, q{SELECT lock_release('b', 'C')});
like(answer($one), qr/^t\na\|lifetime_exceeded$/, 'a key whose max_lifetime is used up is not acquired after a wait');
ask($one, 'ROLLBACK; RESET atomic_lock.max_lifetime');
finish();

#
# A cursor acquires a lock with lifetime transaction, and fails after a savepoint.
#
ask($one, q{BEGIN; DECLARE c CURSOR FOR SELECT status, 10 / (2 - i) FROM generate_series(1, 5) i, LATERAL lock_acquire('c' || i, owner => 'A', lifetime => 'transaction')});
is(ask($one, 'FETCH 1 c; SAVEPOINT x'), 'acquired|10', 'a cursor acquires a lock with lifetime transaction');
start($one, 'FETCH 1 c; ROLLBACK TO x');
like(answer($one), qr/22012/, '... and fails');
start($two, q{SET lock_timeout = '100 ms'; DROP EXTENSION atomic_lock});
like(answer($two), qr/55P03/, '... DROP EXTENSION has to wait');
ask($two, 'RESET lock_timeout');
is(ask($one, q{SELECT lock_is_held('c1', 'A'); COMMIT}), 't', '... while it is held');
finish();

end($_) for ($watch, $one, $two, $three);
$node->stop;
log_is_clean($node);

done_testing();
