# One order for a key: waiters in a call, and tickets, which need no connection.
#
# Properties: the first to come gets the key first, whether it waits or has a ticket; a
# waiter whose owner has a ticket has the position of the ticket, though it called later; a
# ticket in line, or one that was left, delays no waiter; a transaction that shares a key
# lets no sharer past a waiter, except in place of a share that it has released;
# lock_queue and lock_enqueue count the waiters before a ticket; a waiter behind an offer gets
# the key when the offer ends, without a sweep; tickets are known after a restart, before any
# session has looked.
#
# Turns red when: waiters come before all tickets, or behind all of them; a waiter with a
# ticket joins the queue as the last; a waiter is not woken when the ticket before it goes;
# a key that is shared counts as taken, or one share that is released as many;
# after a restart a key with tickets counts as one without.
#
# iso_line_wait shows the same without shared memory.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Others pass a waiter that has not run for a second; here it is an hour.
my $node = PostgreSQL::Test::Cluster->new('line', @build);
$node->init;
# No sweep: only sessions that release a key make offers.
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\natomic_lock.sweep_interval = 0\nlog_statement = none\n");
$node->append_conf('postgresql.conf', 'atomic_lock.test_sleep_cap = 1h') if @build;
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my ($watch, $ann, $bob, $cid, $dan) = map { session($node, $_) } qw(Watch Ann Bob Cid Dan);

# The line: the positions that lock_queue shows, which also count waiters
sub line
{
	my ($key) = @_;
	return ask($watch, qq{SELECT string_agg(place || ' ' || holder || CASE WHEN offered_until IS NULL THEN '' ELSE ' (offered)' END, ', ' ORDER BY place) FROM lock_queue WHERE key = '$key'});
}
sub take { my ($psql, $key, $owner) = @_; return ask($psql, "SELECT status FROM lock_try_acquire('$key', '1 hour', '$owner')") }
sub enter { my ($psql, $key, $owner, $more) = @_; return ask($psql, "SELECT status, place FROM lock_enqueue('$key', '$owner'" . ($more // q{, offer => '1 hour'}) . ')') }
sub release { my ($psql, $key, $owner) = @_; return ask($psql, "SELECT lock_release('$key', '$owner')") }
sub wait_for { my ($psql, $key, $owner, $more) = @_; return queue_up($watch, $psql, "SELECT status FROM lock_try_acquire('$key', '1 hour', '$owner', wait => '5 min'" . ($more // '') . ')') }

# In the order of arrival: Bob waits, Cid has a ticket, Dan waits.
take($ann, 'order', 'ann');
wait_for($bob, 'order', 'bob');
is(enter($cid, 'order', 'cid'), 'queued|2', 'a ticket behind one waiter');
wait_for($dan, 'order', 'dan');
is(enter($watch, 'order', 'eve', q{, 'Eve', '1 hour'}), 'queued|4', '... and one behind a ticket and two waiters');
is(line('order'), '2 Cid, 4 Eve', 'lock_queue counts both');
is(ask($watch, q{SELECT queued, waiters FROM lock_status('order')}), '2|2', 'lock_status counts them separately');
is(ask($watch, q{SELECT 14 + sum(w) BETWEEN 60 AND 80 FROM (SELECT greatest(length(c.key), max(length(c.value))) AS w FROM lock_waiters, json_each_text(json_build_object('key', key, 'place', place, 'holder', holder, 'since', since::text, 'blocked_by', blocked_by)) c GROUP BY c.key) x}), 't', 'the main columns of lock_waiters fit in 80 columns');
my @pids = map { pid($_) } $bob, $dan;
my $explained = ask($watch, q{SELECT lock_explain('order')});
like($explained, qr/^Calls that wait for it: 2[.]  Places in line: 2[.]\n  1[.] "Bob" has waited since [^\n]* in process $pids[0]\.\n  2[.] "Cid" has had a place since [^\n]*[.]\n  3[.] "Dan" has waited[^\n]* $pids[1]\.\n  4[.] "Eve" has had a place/m,
	'lock_explain lists them in this order');
cmp_ok(length, '<=', 80, "... on a line of at most 80 columns: $_") foreach split /\n/, $explained;
ask($watch, q{CREATE ROLE al_plain; SELECT lock_grant_access('al_plain', 'user')});
$explained = ask($watch, q{SET ROLE al_plain; SELECT lock_explain('order'); RESET ROLE});
like($explained, qr/^Calls that wait for it: 2[.]  Places in line: 2[.]$/m, '... and counts them for level user');
unlike($explained, qr/Bob|Cid|Dan|Eve/, '... without their labels');
release($ann, 'order', 'ann');
is(answer($bob), 'acquired', 'the waiter that came first gets the key');
is(line('order'), '1 Cid, 3 Eve', '... and no ticket has an offer');
is(take($ann, 'order', 'ann'), 'held', '... and another owner is refused');
release($bob, 'order', 'bob');
is(line('order'), '1 Cid (offered), 3 Eve', 'then the key is offered to the ticket');
ok(is_waiting($watch, $dan), '... and the later waiter continues to wait');
is(ask($watch, q{SELECT holder, state, waiters, longest_wait > '0' FROM lock_activity WHERE key = 'order'}), 'Cid|offered|1|t', '... as lock_activity shows');
is(take($cid, 'order', 'cid'), 'acquired', '... the owner of the ticket acquires the key');
release($cid, 'order', 'cid');
is(answer($dan), 'acquired', '... then the waiter acquires it');
release($dan, 'order', 'dan');
is(line('order'), '1 Eve (offered)', '... then the last ticket has an offer');

# A waiter whose owner has a ticket has the position of the ticket.
take($ann, 'own', 'ann');
enter($bob, 'own', 'bob');
enter($cid, 'own', 'cid');
wait_for($dan, 'own', 'dan');
wait_for($cid, 'own', 'cid');
wait_for($bob, 'own', 'bob');
is(ask($watch, q{SELECT string_agg(holder, ', ' ORDER BY place) FROM lock_waiters WHERE key = 'own'}), 'Bob, Cid, Dan', 'waiters stand in the order of their tickets');
release($ann, 'own', 'ann');
is(answer($bob), 'acquired', 'the first ticket is first, though its owner called last');
release($bob, 'own', 'bob');
is(answer($cid), 'acquired', '... then the second ticket');
release($cid, 'own', 'cid');
is(answer($dan), 'acquired', '... then the waiter without a ticket');
is(line('own'), '', 'the line is empty');

# A waiter that joins before the ticket is committed comes first.
take($ann, 'unfinished', 'ann');
is(ask($cid, q{BEGIN; SELECT status, place FROM lock_enqueue('unfinished', 'cid', 'Cid')}), 'queued|1', 'a ticket counts the calls that wait when it is written');
wait_for($dan, 'unfinished', 'dan');
ask($cid, 'COMMIT');
is(line('unfinished'), '2 Cid', '... and one that joins before its commit comes first');
release($ann, 'unfinished', 'ann');
is(answer($dan), 'acquired', '... and gets the key');
release($dan, 'unfinished', 'dan');
is(line('unfinished'), '1 Cid (offered)', '... before the ticket');
ask($cid, q{SELECT lock_leave('unfinished', 'cid')});

# An owner that shares the key takes a ticket once, and a conversion that is ended by force tells how long it has waited.
ask($_->[0], "SELECT status FROM lock_try_acquire('both', '1 hour', '$_->[1]', 'shared')") foreach [ $ann, 'ann' ], [ $bob, 'bob' ];
my $refusals = ask($watch, q{SELECT refusals FROM lock_stats WHERE database = current_database()});
is(enter($bob, 'both', 'bob'), 'queued|1', 'an owner that shares the key takes a ticket');
is(ask($watch, qq{SELECT refusals - $refusals FROM lock_stats WHERE database = current_database()}), '1', '... which counts as one refusal');
queue_up($watch, $bob, q{SELECT status, waited > '0' FROM lock_try_convert('both', 'bob', wait => '5 min')});
ask($watch, q{SELECT force_release('both', 'test')});
is(answer($bob), 'forced|t', '... and whose conversion is ended by force, after a wait');
ask($bob, q{SELECT lock_leave('both', 'bob')});

# No two tickets show the same place while a waiter before them comes and goes.
ask($_->[0], "SELECT status FROM lock_try_acquire('views', '1 hour', '$_->[1]', 'shared')") foreach [ $ann, 'ann' ], [ $bob, 'bob' ];
ask($cid, q{SELECT count(lock_enqueue('views', 'cid ' || i)) FROM generate_series(1, 300) i});
start($bob, q{DO $$ BEGIN WHILE NOT (SELECT locked FROM lock_status('end')) LOOP PERFORM lock_try_convert('views', 'bob', wait => '1 ms'); END LOOP; END $$});
my ($views, $same) = (0, 0);
my $waits = ask($watch, q{SELECT waits FROM lock_stats WHERE database = current_database()});
do
{
	$views++;
	$same += ask($watch, q{SELECT count(*) - count(DISTINCT place) FROM lock_queue WHERE key = 'views'});
} until $views >= 1000 && ask($watch, qq{SELECT waits > $waits + 300 FROM lock_stats WHERE database = current_database()}) eq 't';
is($same, 0, "no two tickets show the same place in $views views");
take($watch, 'end', 'watch');
answer($bob);
ask($watch, q{SELECT count(lock_leave('views', 'cid ' || i)) FROM generate_series(1, 300) i});

# A waiter keeps its position when the ticket before it is given up.
take($ann, 'late', 'ann');
enter($cid, 'late', 'cid');
wait_for($dan, 'late', 'dan');
ask($cid, q{SELECT lock_leave('late', 'cid')});
wait_for($bob, 'late', 'bob');
is(ask($watch, q{SELECT string_agg(holder, ', ' ORDER BY place) FROM lock_waiters WHERE key = 'late'}), 'Dan, Bob', 'a waiter that came behind a ticket that was given up since');
release($ann, 'late', 'ann');
is(answer($dan), 'acquired', '... gets the key first');
release($dan, 'late', 'dan');
is(answer($bob), 'acquired', '... before a waiter that came afterwards');

# The ticket before a waiter goes.
foreach my $how (
	[ 'is given up', q{SELECT lock_leave('KEY', 'cid')} ],
	[ 'is used, and the key released', q{SELECT lock_acquire('KEY', '1 hour', 'cid'); SELECT lock_release('KEY', 'cid')} ],
	[ 'is used, which is rolled back, and given up', q{BEGIN; SELECT lock_acquire('KEY', '1 hour', 'cid'); ROLLBACK; SELECT lock_leave('KEY', 'cid')} ],
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
		is(answer($dan), $mode eq 'exclusive' ? 'acquired' : 'reacquired', "a waiter behind a ticket that $name, $mode");
	}
	is(line($key), '', '... the line is empty');
	release($dan, $key, 'dan');
	is(take($ann, $key, 'ann'), 'acquired', '... and then the key is free for another owner');
}

# A holder of a share lets no other sharer past a waiter.
my $share = q{SELECT status, CASE WHEN acquired THEN '' ELSE holder END FROM lock_try_acquire('shared', '1 hour', 'OWNER', 'shared')};
sub share { my ($psql, $owner) = @_; return ask($psql, $share =~ s/OWNER/$owner/r) }
share($ann, 'ann');
share($cid, 'cid');
wait_for($bob, 'shared', 'bob');
is(share($dan, 'dan'), 'held|Bob', 'a sharer does not pass a waiter');
foreach my $has (q{SELECT lock_assert('shared', 'ann')}, q{SELECT lock_extend('shared', 'ann')})
{
	ask($ann, "BEGIN; $has");
	is(share($ann, 'dan'), 'held|Bob', "... nor in a transaction that has called it: $has");
	is(ask($ann, q{SELECT lock_release('shared', 'ann')}) . ' ' . share($ann, 'dan') . ' ' . share($ann, 'eve'), 't acquired| held|Bob', '... except for one owner in place of the share that it has released');
	ask($ann, 'ROLLBACK');
}
ok(is_waiting($watch, $bob), '... the waiter still waits');
release($ann, 'shared', 'ann');
release($cid, 'shared', 'cid');
is(answer($bob), 'acquired', '... and gets the key when all have released it');
release($bob, 'shared', 'bob');
ask($ann, 'BEGIN');
is(share($ann, 'ann'), 'acquired|', 'a transaction shares a free key');
wait_for($bob, 'shared', 'bob');
is(share($ann, 'dan'), 'held|Bob', '... and lets no sharer past a waiter that has come since');
ask($ann, 'ROLLBACK');
is(answer($bob), 'acquired', '... which gets the key when the transaction is rolled back');
release($bob, 'shared', 'bob');

# Calls that take or give up tickets neither wait for others in line nor are in their way.
take($ann, 'busy', 'ann');
enter($bob, 'busy', 'bob');
ask($ann, q{BEGIN; SELECT lock_release('busy', 'ann')});
ask($bob, q{BEGIN; SELECT status FROM lock_enqueue('busy', 'bob', offer => '1 hour')});
is(ask($cid, q{SET lock_timeout = '1ms'; SELECT status, place FROM lock_enqueue('busy', 'cid', offer => '1 hour'); SELECT lock_leave('busy', 'cid'); SELECT status, place FROM lock_enqueue('busy', 'cid', offer => '1 hour'); RESET lock_timeout}),
	"queued|2\nt\nqueued|2", 'beside two unfinished transactions others take and give up tickets');
ask($ann, 'COMMIT');
is(line('busy'), '1 Bob (offered), 2 Cid', '... the commit of the release offers the key');
ask($bob, 'ROLLBACK');
is(line('busy'), '1 Bob (offered), 2 Cid', '... to a ticket whose renewal is rolled back');

# After a restart
take($ann, 'kept', 'ann');
enter($bob, 'kept', 'bob');
enter($cid, 'kept', 'cid');
release($ann, 'kept', 'ann');
end($ann, $bob, $cid, $dan, $watch);
$node->restart;
($watch, $ann, $bob, $cid) = map { session($node, $_) } qw(Watch Ann Bob Cid);
is(take($ann, 'kept', 'ann'), 'held', 'after a restart a stranger cannot jump the line');
is(line('kept'), '1 Bob (offered), 2 Cid', '... tickets and offer are the same');
is(take($bob, 'kept', 'bob'), 'acquired', '... the offer is valid');
release($bob, 'kept', 'bob');
is(line('kept'), '1 Cid (offered)', '... and the key is then offered to the next ticket');

end($watch, $ann, $bob, $cid);
$node->stop;
log_is_clean($node);
done_testing();
