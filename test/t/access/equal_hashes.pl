# Keys and owners whose hashes are equal.
#
# Needs a build with AL_TEST_HOOKS, which can shorten hashes to any number of bits:
# with none, all keys have one hash, as have all owners.
#
# Properties: where hashes are equal, every decision compares the whole
# text.  Keys of one hash share claims, so an unfinished transaction that has one
# of them keeps others from the rest.  They share nothing else: not their holdings, their
# readers, their waiters, their holders, nor the notes of a session or transaction about
# them.  No owner is taken for another holder or waiter.
#
# Turns red when: the holdings of a transaction are found by hashes; a waiter for one key is
# in the queue of another; two owners count as one in an upgrade or a cycle; the knowledge
# that a key has no readers is applied to its hash; a pin looks like a share of another key.

use strict;
use warnings FATAL => 'all';
use AtomicLockClock;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS' unless $ENV{AL_HOOKS};
my $clock = make_clock() or plan skip_all => 'needs a C compiler';

my $node = PostgreSQL::Test::Cluster->new('equal_hashes', install_path => $ENV{AL_HOOKS});
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = 0
atomic_lock.test_hash_bits = 0
log_statement = none
autovacuum = off
deadlock_timeout = '10 ms'
});
start_with_clock($node, $clock);
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
$node->safe_psql('postgres', q{CREATE TABLE inv (k text PRIMARY KEY, x int); INSERT INTO inv VALUES ('k1', 0), ('k2', 0); SELECT lock_protect('inv', '{k}')});

# The hash is SipHash-2-4 with 128 bits.  These are published test vectors
# (as bytes, on a little-endian machine).
$node->safe_psql('postgres', q{CREATE FUNCTION test_hash(bytea, bytea) RETURNS bytea AS '$libdir/atomic_lock', 'atomic_lock_test_hash' LANGUAGE C STRICT});
is( $node->safe_psql('postgres', q{SELECT encode(test_hash('\x000102030405060708090a0b0c0d0e0f', substr('\x000102030405060708090a0b0c0d0e'::bytea, 1, n)), 'hex') FROM unnest('{0,1,15}'::int[]) n}),
	"a3817f04ba25a8e66df67214c7550293\nda87c1d86b99af44347659119b22fc45\n5493e99933b0a8117e08ec0f97cfc3d9", 'the hash equals the published vectors');

my ($watch, $one, $two, $three) = map { session($node, $_) } ('Watch', 'One', 'Two', 'Three');

sub acquire
{
	my ($key, $owner, $rest) = @_;
	return "SELECT status FROM lock_try_acquire('$key', owner => '$owner'" . ($rest ? ", $rest" : '') . ')';
}
sub shared
{
	my ($key, $owner, $rest) = @_;
	return acquire($key, $owner, "mode => 'shared'" . ($rest ? ", $rest" : ''));
}

is(ask($watch, q{BEGIN; SELECT lock_acquire('x', owner => 'x', mode => 'shared') IS NOT NULL, lock_acquire('y', owner => 'y', mode => 'shared') IS NOT NULL; SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1706}),
	"t|t\n1", 'all keys have one hash');
ask($watch, 'ROLLBACK');

# Keys share claims, and only claims.
is(ask($one, 'BEGIN; ' . acquire('k1', 'a')), 'acquired', 'an unfinished transaction acquires a key');
is(ask($two, acquire('k2', 'b')), 'pending', '... is in the way of a key with the same hash');
is(ask($one, 'COMMIT; ' . acquire('k1', 'a')), 'reacquired', '... until it has ended');
is(ask($two, acquire('k2', 'b')), 'acquired', '... a lease is not in the way');
is(ask($two, q{SELECT lock_holder('k1'), lock_holder('k2'), lock_is_held('k1', 'b'), lock_is_held('k2', 'b'), lock_is_held('k3', 'b')}), 'One|Two|f|t|f', '... each has its holder');
is(ask($watch, q{SELECT key, holder FROM lock_status() ORDER BY key}), "k1|One\nk2|Two", '... in the list of all locks, too');
is(ask($one, q{SELECT lock_release_all('a')}), '1', '... and one is released');
is(ask($two, q{SELECT lock_release_all('b')}), '1', '... then the other');

# Knowledge about one key is not applied to another.
is(ask($one, shared('k1', 'a')), 'acquired', 'a key is shared');
is(ask($two, acquire('k2', 'b')), 'acquired', '... another key is acquired');
is(ask($two, acquire('k2', 'b')), 'reacquired', '... and has no readers');
is(ask($two, acquire('k1', 'b')), 'held', '... the first has a reader');
is(ask($two, q{SELECT lock_release_all('b'); } . shared('k2', 'b') . q{; SELECT lock_release_all('b')}), "1\nacquired\n1", '... the second changes its mode');
is(ask($two, acquire('k1', 'b')), 'held', '... the first still has a reader');
is(ask($three, q{SELECT locked FROM lock_status('k2'); SELECT holders, holder FROM lock_status('k1')}), "f\n1|One", '... as lock_status shows');
is(ask($one, q{SELECT lock_release_all('a')}), '1', '... until it is released');

# Holdings of a transaction
is(ask($one, 'BEGIN; ' . acquire('k1', 'a', q{lifetime => 'transaction'})), 'acquired', 'a lock with lifetime transaction');
is(ask($two, q{SELECT locked FROM lock_status('k1'); SELECT locked FROM lock_status('k2')}), "t\nf", '... is on one key');
is(ask($two, q{SELECT lock_is_held('k1', 'a'), lock_is_held('k1', 'b'), lock_is_held('k2', 'a')}), 't|f|f', '... of one owner');
is(ask($two, q{SELECT lock_holder('k1'), lock_holder('k2')}), 'One|', '... with its label');
is(ask($two, q{SELECT lock_try_release('k1', 'b'), lock_try_release('k2', 'a'), lock_try_release('k3', 'b')}), 'not_found|not_found|not_found', '... calls of other owners or for other keys find nothing, and do not wait');
is(ask($one, acquire('k2', 'b', q{lifetime => 'transaction'})), 'acquired', '... the transaction acquires the other key for another owner');
is(ask($two, q{SELECT lock_is_held('k1', 'a'), lock_is_held('k1', 'b'), lock_is_held('k2', 'a'), lock_is_held('k2', 'b')}), 't|f|f|t', '... each owner holds its own key');
ask($one, 'COMMIT');

# Holdings of a session
is(ask($one, acquire('k1', 'a', q{lifetime => 'session'}) . '; ' . acquire('k2', 'a', q{lifetime => 'session'}) . ";\nDISCARD ALL"), "acquired\nacquired", 'two locks with lifetime session');
is(ask($two, q{SELECT locked FROM lock_status('k1'); SELECT locked FROM lock_status('k2')}), "f\nf", '... DISCARD ALL ends both');

ask($one, q{SET application_name = 'One'});

# The queue
is(ask($one, acquire('k1', 'a')), 'acquired', 'a key with a waiter');
queue_up($watch, $two, acquire('k1', 'b', q{wait => '5 min'}));
is(ask($three, acquire('k2', 'c')), 'acquired', '... is not in the way of another');
is(ask($three, q{SELECT waiters FROM lock_status('k1'); SELECT waiters FROM lock_status('k2')}), "1\n0", '... which has no waiter');
is(ask($watch, q{SELECT key, place, blocked_by FROM lock_waiters}), 'k1|1|One', '... as lock_waiters shows');
is(ask($watch, q{SELECT key, longest_wait IS NULL FROM lock_activity ORDER BY key}), "k1|f\nk2|t", '... and lock_activity');
is(ask($three, q{SELECT lock_release_all('c')}), '1', '... the other key is released');
is(ask($one, q{SELECT lock_release_all('a')}), '1', '... then the first');
is(answer($two), 'acquired', '... which goes to its waiter');
ask($two, q{SELECT lock_release_all('b')});

# Two sharers both convert to exclusive; one of them does so in two sessions.
is(ask($one, shared('k1', 'a')) . ask($two, shared('k1', 'b')), 'acquiredacquired', 'a key that two share');
queue_up($watch, $one, q{SELECT mode FROM lock_convert('k1', 'a', 'exclusive', '5 min')});
start($two, q{SELECT lock_convert('k1', 'b', 'exclusive', '5 min')});
like(answer($two), qr/40P01/, '... the conversion of the second owner is refused');
queue_up($watch, $three, q{SELECT mode FROM lock_convert('k1', 'a', 'exclusive', '5 min')});
is(ask($two, q{SELECT lock_release('k1', 'b')}), 't', '... the second owner releases its share');
is(answer($one), 'exclusive', '... the first converts');
is(answer($three), 'exclusive', '... in both sessions');
ask($one, q{SELECT lock_release_all('a')});

# Conversions of two keys do not refuse each other.
is(ask($one, shared('k1', 'a')) . ask($watch, shared('k1', 'w') . '; ' . shared('k2', 'w')) . ask($two, shared('k2', 'b')), "acquiredacquired\nacquiredacquired", 'two keys that three owners share');
queue_up($watch, $one, q{SELECT mode FROM lock_convert('k1', 'a', 'exclusive', '5 min')});
queue_up($watch, $two, q{SELECT mode FROM lock_convert('k2', 'b', 'exclusive', '5 min')});
is(ask($watch, q{SELECT lock_release_all('w')}), '2', '... the common sharer releases both');
is(answer($one), 'exclusive', '... one conversion succeeds');
is(answer($two), 'exclusive', '... as does the other');
ask($_, q{SELECT lock_release_all('a'), lock_release_all('b')}) for ($one, $two);

# No cycle: a waits for b; c, which holds nothing that b wants,
# waits for a.
is(ask($one, acquire('k1', 'a')) . ask($watch, acquire('k2', 'b')), 'acquiredacquired', 'no cycle of owners');
queue_up($watch, $two, acquire('k1', 'c', q{wait => '5 min'}));
is(ask($one, acquire('k2', 'a', q{wait => '100 ms'})), 'timeout', '... the last waiter times out');
ask($watch, q{SELECT lock_release_all('b')});
ask($one, q{SELECT lock_release_all('a')});
is(answer($two), 'acquired', '... the other waiter gets the key');
ask($two, q{SELECT lock_release_all('c')});

# A pin is distinguished from a share of another key.
foreach my $case ([ 'after', shared('k2', 'a'), q{} ], [ 'in a savepoint after', shared('k2', 'a') . '; SAVEPOINT s', q{} ], [ 'before', q{}, shared('k2', 'a') ])
{
	my ($when, $before, $after) = @$case;

	ask($one, q{SET atomic_lock.owner = 'a'; } . acquire('k1', 'a'));
	ask($one, "BEGIN; $before");
	ask($one, q{UPDATE inv SET x = 1 WHERE k = 'k1'});
	ask($one, $after) if $after;
	pass_hours($clock, 2);
	is(ask($two, acquire('k1', 'c')) . ask($two, shared('k1', 'c')), 'pendingpending', "an expired lease cannot be acquired while a transaction relies on it: it shares another key $when that");
	ask($one, 'COMMIT');
	is(ask($two, shared('k1', 'c')), 'acquired', '... but when that has ended');
	ask($_, q{SELECT lock_release_all('a'), lock_release_all('c')}) for ($one, $two);
	ask($watch, 'TRUNCATE app_lock');
}

# Many calls at once: no two owners hold a key at the same time.
$node->safe_psql(
	'postgres', q{
CREATE TABLE inside (key text PRIMARY KEY, owner text);
CREATE PROCEDURE play(me text) LANGUAGE plpgsql AS $$
DECLARE
	k	text;
	n	int := 0;
BEGIN
	WHILE n < 100 LOOP
		k := 'many-' || (random() * 3)::int;
		IF (lock_try_acquire(k, owner => me, wait => '20 ms')).acquired THEN
			COMMIT;
			INSERT INTO inside VALUES (k, me);
			COMMIT;
			DELETE FROM inside WHERE key = k;
			PERFORM lock_release(k, me);
			n := n + 1;
		END IF;
		COMMIT;
	END LOOP;
END
$$});
start($_->[0], "CALL play('$_->[1]')") for ([ $one, 'one' ], [ $two, 'two' ], [ $three, 'three' ]);
is(answer($_), '', 'no two owners hold a key at the same time') for ($one, $two, $three);

end($_) for ($watch, $one, $two, $three);
$node->stop;
log_is_clean($node);

done_testing();
