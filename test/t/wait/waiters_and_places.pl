# One line for a key: those who wait in a call, and those whose places need no connection.
#
# Properties: who came first gets the key first, whichever way it waits; who waits in a
# call and has a place comes where the place is, though it called later; nobody who is in
# line, or has left, makes a waiter sleep any longer; a transaction that shares a key lets
# nobody past a waiter, except in place of who released a share in it; lock_queue and lock_enqueue count
# those who wait before; a waiter behind an offer is let in at its end, without a sweep;
# places are known after a restart, before anybody has looked.
#
# Turns red when: waiters come before all places, or behind all of them; a waiter with a
# place joins the queue as the last; a waiter is not woken when the place before it goes;
# a key that is shared counts as taken, or one share that is released as many;
# after a restart a key with places is thought to have none.
#
# Where there is no shared memory, see iso_line_wait.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Others pass a waiter that has not run for a second, or here for an hour.
my $node = PostgreSQL::Test::Cluster->new('line', @build);
$node->init;
# No sweep: what is offered is offered by those who let go of a key.
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\natomic_lock.sweep_interval = 0\nlog_statement = none\n");
$node->append_conf('postgresql.conf', 'atomic_lock.test_sleep_cap = 1h') if @build;
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my ($watch, $ann, $bob, $cid, $dan) = map { session($node, $_) } qw(Watch Ann Bob Cid Dan);

# Who is in line, waiters by "=": the places that lock_waiters and lock_queue tell
sub line
{
	my ($key) = @_;
	return ask($watch, qq{SELECT string_agg(place || ' ' || holder || CASE WHEN offered_until IS NULL THEN '' ELSE ' (offered)' END, ', ' ORDER BY place) FROM lock_queue WHERE key = '$key'});
}
sub take { my ($psql, $key, $owner) = @_; return ask($psql, "SELECT status FROM lock_try_acquire('$key', '1 hour', '$owner')") }
sub enter { my ($psql, $key, $owner, $more) = @_; return ask($psql, "SELECT status, place FROM lock_enqueue('$key', '$owner'" . ($more // q{, offer => '1 hour'}) . ')') }
sub release { my ($psql, $key, $owner) = @_; return ask($psql, "SELECT lock_release('$key', '$owner')") }
sub wait_for { my ($psql, $key, $owner, $more) = @_; return queue_up($watch, $psql, "SELECT status FROM lock_try_acquire('$key', '1 hour', '$owner', wait => '5 min'" . ($more // '') . ')') }

# In the order of arrival: Bob waits, Cid has a place, Dan waits
take($ann, 'order', 'ann');
wait_for($bob, 'order', 'bob');
is(enter($cid, 'order', 'cid'), 'queued|2', 'a place behind one who waits');
wait_for($dan, 'order', 'dan');
is(enter($watch, 'order', 'eve', q{, 'Eve', '1 hour'}), 'queued|4', '... and one behind a place and two who wait');
is(line('order'), '2 Cid, 4 Eve', 'lock_queue counts both');
is(ask($watch, q{SELECT queued, waiters FROM lock_status('order')}), '2|2', 'lock_status tells them apart');
release($ann, 'order', 'ann');
is(answer($bob), 'acquired', 'who waits and came first gets the key');
is(line('order'), '1 Cid, 3 Eve', '... and it is offered to nobody');
is(take($ann, 'order', 'ann'), 'held', '... nor had by another');
release($bob, 'order', 'bob');
is(line('order'), '1 Cid (offered), 3 Eve', 'then the place has its turn');
ok(is_waiting($watch, $dan), '... and who came later waits on');
is(ask($watch, q{SELECT holder, state, waiters, longest_wait > '0' FROM lock_activity WHERE key = 'order'}), 'Cid|offered|1|t', '... as lock_activity shows');
is(take($cid, 'order', 'cid'), 'acquired', '... until it has had the key');
release($cid, 'order', 'cid');
is(answer($dan), 'acquired', '... and is next');
release($dan, 'order', 'dan');
is(line('order'), '1 Eve (offered)', '... before the last place');

# Who waits in a call and has a place comes where the place is.
take($ann, 'own', 'ann');
enter($bob, 'own', 'bob');
enter($cid, 'own', 'cid');
wait_for($dan, 'own', 'dan');
wait_for($cid, 'own', 'cid');
wait_for($bob, 'own', 'bob');
is(ask($watch, q{SELECT string_agg(holder, ', ' ORDER BY place) FROM lock_waiters WHERE key = 'own'}), 'Bob, Cid, Dan', 'they stand in the order of their places');
release($ann, 'own', 'ann');
is(answer($bob), 'acquired', 'the first place is first, though it called last');
release($bob, 'own', 'bob');
is(answer($cid), 'acquired', '... then the second');
release($cid, 'own', 'cid');
is(answer($dan), 'acquired', '... then who has none');
is(line('own'), '', 'nobody is in line any more');

# Nobody passes a waiter, because the place behind which that came is gone.
take($ann, 'late', 'ann');
enter($cid, 'late', 'cid');
wait_for($dan, 'late', 'dan');
ask($cid, q{SELECT lock_leave('late', 'cid')});
wait_for($bob, 'late', 'bob');
is(ask($watch, q{SELECT string_agg(holder, ', ' ORDER BY place) FROM lock_waiters WHERE key = 'late'}), 'Dan, Bob', 'a waiter who came behind a place that was left since');
release($ann, 'late', 'ann');
is(answer($dan), 'acquired', '... is first');
release($dan, 'late', 'dan');
is(answer($bob), 'acquired', '... before who came afterwards');

# The place before a waiter goes.
foreach my $how (
	[ 'is left', q{SELECT lock_leave('KEY', 'cid')} ],
	[ 'is used, and the key released', q{SELECT lock_acquire('KEY', '1 hour', 'cid'); SELECT lock_release('KEY', 'cid')} ],
	[ 'is used, and that is rolled back, and left', q{BEGIN; SELECT lock_acquire('KEY', '1 hour', 'cid'); ROLLBACK; SELECT lock_leave('KEY', 'cid')} ],
	[ 'loses its offer', '', q{, offer => '200 ms'} ],
	[ 'expires', '', q{, offer => '200 ms', keep => '200 ms'} ])
{
	my ($name, $sql, $more) = @$how;
	my $key = "gone: $name";

	take($ann, $key, 'ann');
	enter($cid, $key, 'cid', $more);
	foreach my $mode ('exclusive', 'shared')
	{
		wait_for($dan, $key, 'dan', ", mode => '$mode'");
		release($ann, $key, 'ann') if $mode eq 'exclusive';
		ask($cid, $sql =~ s/KEY/$key/gr) if $sql ne '' && $mode eq 'exclusive';
		is(answer($dan), $mode eq 'exclusive' ? 'acquired' : 'reacquired', "a waiter behind a place that $name, $mode");
	}
	is(line($key), '', '... of which nothing is left');
	release($dan, $key, 'dan');
	is(take($ann, $key, 'ann'), 'acquired', '... and then the key is free for all');
}

# Who shares a key lets nobody past a waiter.
my $share = q{SELECT status, CASE WHEN acquired THEN '' ELSE holder END FROM lock_try_acquire('shared', '1 hour', 'OWNER', 'shared')};
sub share { my ($psql, $owner) = @_; return ask($psql, $share =~ s/OWNER/$owner/r) }
share($ann, 'ann');
share($cid, 'cid');
wait_for($bob, 'shared', 'bob');
is(share($dan, 'dan'), 'held|Bob', 'who wants to share a key does not pass who waits for it');
foreach my $has (q{SELECT lock_assert('shared', 'ann')}, q{SELECT lock_extend('shared', 'ann')})
{
	ask($ann, "BEGIN; $has");
	is(share($ann, 'dan'), 'held|Bob', "... nor in a transaction that has called it: $has");
	is(ask($ann, q{SELECT lock_release('shared', 'ann')}) . ' ' . share($ann, 'dan') . ' ' . share($ann, 'eve'), 't acquired| held|Bob', '... except for one in place of the one that it has released');
	ask($ann, 'ROLLBACK');
}
ok(is_waiting($watch, $bob), '... who waits on');
release($ann, 'shared', 'ann');
release($cid, 'shared', 'cid');
is(answer($bob), 'acquired', '... until all have released it');
release($bob, 'shared', 'bob');
ask($ann, 'BEGIN');
is(share($ann, 'ann'), 'acquired|', 'a transaction shares a free key');
wait_for($bob, 'shared', 'bob');
is(share($ann, 'dan'), 'held|Bob', '... and lets nobody past who waits for it since');
ask($ann, 'ROLLBACK');
is(answer($bob), 'acquired', '... and has the key when it is rolled back');
release($bob, 'shared', 'bob');

# Nobody waits for those in line, nor do these for anybody.
take($ann, 'busy', 'ann');
enter($bob, 'busy', 'bob');
ask($ann, q{BEGIN; SELECT lock_release('busy', 'ann')});
ask($bob, q{BEGIN; SELECT status FROM lock_enqueue('busy', 'bob', offer => '1 hour')});
is(ask($cid, q{SET lock_timeout = '1ms'; SELECT status, place FROM lock_enqueue('busy', 'cid', offer => '1 hour'); SELECT lock_leave('busy', 'cid'); SELECT status, place FROM lock_enqueue('busy', 'cid', offer => '1 hour'); RESET lock_timeout}),
	"queued|2\nt\nqueued|2", 'beside two unfinished transactions others take and leave places');
ask($ann, 'COMMIT');
is(line('busy'), '1 Bob (offered), 2 Cid', '... the release is committed, and offers the key');
ask($bob, 'ROLLBACK');
is(line('busy'), '1 Bob (offered), 2 Cid', '... to a place whose renewal is rolled back');

# After a restart
take($ann, 'kept', 'ann');
enter($bob, 'kept', 'bob');
enter($cid, 'kept', 'cid');
release($ann, 'kept', 'ann');
end($ann, $bob, $cid, $dan, $watch);
$node->restart;
($watch, $ann, $bob, $cid) = map { session($node, $_) } qw(Watch Ann Bob Cid);
is(take($ann, 'kept', 'ann'), 'held', 'after a restart nobody jumps the line');
is(line('kept'), '1 Bob (offered), 2 Cid', '... of which all is known');
is(take($bob, 'kept', 'bob'), 'acquired', '... the offer stands');
release($bob, 'kept', 'bob');
is(line('kept'), '1 Cid (offered)', '... and the next one follows');

end($watch, $ann, $bob, $cid);
$node->stop;
log_is_clean($node);
done_testing();
