# What others do between the look at a key and the claim on it.
#
# Needs a build with AL_TEST_HOOKS, in which who has looked at a key can be made to
# stand still before it claims it.
#
# Properties: a claim that is about to be given back refuses nobody; fencing tokens rise in the order of the grants, also where one that
# began earlier is granted later; an acquire that learns under its claim that
# somebody else has the key has taken no transaction id and keeps no claim, be it
# for one key or a set, alone or to share it; what was judged before the claim is
# judged again: a lease that ran out and was extended, taken, or forced meanwhile, a
# key that had no row, or none that was committed;
# who is refused and joins the queue looks again when it is in it; two who come up
# against a quota count one after the other; whoever rewrites the table of places waits for a commit
# that has looked for those that it ends or offers the key to.
#
# Turns red when: the token is drawn before the key is claimed; a refusal under
# the claim leaves the claim to the end of the transaction, and so keeps others
# out; a grant goes by what was seen before; a wake-up is lost that comes before
# the waiter is in the queue; the count of a quota is not under a claim; a commit does not lock the table of places before it looks.

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

my $node = PostgreSQL::Test::Cluster->new('between_looks', install_path => $ENV{AL_HOOKS});
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = 0
atomic_lock.max_wait = 1h
log_statement = none
autovacuum = off
});
start_with_clock($node, $clock);
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my ($watch, $gate, $early, $other, $third) = map { session($node, $_) } ('Watch', 'Gate', 'Early', 'Other', 'Third');

# Start SQL of the session Early, which then stands before its claim, or elsewhere.
sub start_early
{
	my ($sql, $point) = @_;

	ask($gate, 'SELECT pg_advisory_lock(1706)');
	ask($early, "SET atomic_lock.test_pause_at = '" . ($point // 'before-claim') . "'");
	start($early, $sql);
	poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($early));
	return;
}

# Let it go on, and fetch its answer.
sub go_on
{
	ask($gate, 'SELECT pg_advisory_unlock_all()');
	my $answer = answer($early);
	ask($early, 'RESET atomic_lock.test_pause_at');
	return $answer;
}

sub clean
{
	ask($_, 'SET client_min_messages = error; ROLLBACK') for ($early, $other, $third);
	ask($watch, 'TRUNCATE app_lock, lock_audit');
	return;
}

#
# Tokens
#
foreach my $mode ('exclusive', 'shared')
{
	start_early(qq{SELECT fencing_token FROM lock_try_acquire('k', owner => 'early', mode => '$mode')});
	my $token = ask($other, qq{SELECT fencing_token FROM lock_try_acquire('k', owner => 'other', mode => '$mode'); SELECT lock_release('k', 'other')});
	$token =~ s/\n.*//;
	cmp_ok(go_on(), '>', $token, "who is granted the key later has the higher token ($mode)");
	clean();
}
start_early(q{SELECT max(fencing_token) FROM lock_try_acquire_all('{a,b}', owner => 'early')});
my $token = ask($other, q{SELECT fencing_token FROM lock_try_acquire('a', owner => 'other'); SELECT lock_release('a', 'other')}) =~ s/\n.*//r;
cmp_ok(go_on(), '>', $token, '... as does who takes a set');
clean();

#
# A sweep that was in the way, and ends before it is known as one
#
ask($other, q{SELECT pg_sleep_until(expires_at) FROM lock_acquire('k', '1 ms', 'other')});
ask($other, q{BEGIN; SELECT lock_sweep()});
start_early(q{SELECT status FROM lock_try_acquire('k', owner => 'early')}, 'claim-explained');
ask($other, 'COMMIT');
is(go_on(), 'acquired', 'a sweep that has just ended refuses nobody');
clean();

# One that has ended for all others, and still has its locks: it is looked for again and again.
ask($other, q{SELECT pg_sleep_until(expires_at) FROM lock_acquire('k', '1 ms', 'other')});
ask($other, q{SET atomic_lock.test_pause_at = 'before-release'; BEGIN; SELECT lock_sweep()});
ask($third, 'BEGIN; SELECT pg_advisory_lock(1707)');
start($other, 'COMMIT');
poll($watch, "SELECT bool_and(virtualtransaction LIKE '%/0') FROM pg_locks WHERE locktype = 'advisory' AND pid = " . pid($other));
start_early(q{SELECT status FROM lock_try_acquire('k', owner => 'early')}, 'claim-explained');
# Who stands behind it gets the advisory lock next, so that Early stops there once more.
start($watch, 'SELECT pg_advisory_lock(1706)');
poll($third, 'SELECT count(*) = 2 FROM pg_locks WHERE NOT granted AND objid = 1706');
ask($gate, 'SELECT pg_advisory_unlock_all()');
answer($watch);
poll($watch, "SELECT state = 'idle' OR wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($early));
ask($third, 'COMMIT');
answer($other);
ask($other, 'RESET atomic_lock.test_pause_at');
ask($watch, 'SELECT pg_advisory_unlock_all()');
is(go_on(), 'acquired', '... nor does one that is about to give back its claims');
clean();

#
# An owner that takes a ticket, and in another session is granted the key before that is
# there: it has no ticket beside the lock.
#
foreach my $end ('COMMIT', 'ROLLBACK')
{
	foreach my $is_early (1, 0)
	{
		ask($third, q{SELECT lock_acquire('k', owner => 'third')});
		start_early(q{SELECT status FROM lock_enqueue('k', 'early')}, 'before-ticket');
		ask($third, q{SELECT lock_release('k', 'third')});
		ask($other, q{BEGIN; SELECT status FROM lock_acquire('k', owner => 'early')});
		ask($other, $end) if $is_early;
		ask($gate, 'SELECT pg_advisory_unlock_all()');
		if (!$is_early)
		{
			poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . pid($early));
			ask($other, $end);
		}
		my $answer = answer($early);

		ask($early, 'RESET atomic_lock.test_pause_at');
		is($answer . ' ' . ask($watch, 'SELECT count(*) FROM lock_queue'),
			$end eq 'COMMIT' ? 'reacquired 0' : $is_early ? 'queued 1' : 'acquired 0', "a grant that ends with $end while a ticket is written");
		ask($watch, 'TRUNCATE app_lock_queue');
		clean();
	}
}

#
# Refused under the claim: nothing is left of it in a transaction that goes on.
#
my $left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid > 2 AND pid = " . pid($early);
my @requests = (
	[ 'an acquire', q{SELECT status FROM lock_try_acquire('k', owner => 'early')} ],
	[ 'an acquire to share', q{SELECT status FROM lock_try_acquire('k', owner => 'early', mode => 'shared')} ],
	[ 'an acquire for a transaction', q{SELECT status FROM lock_try_acquire('k', owner => 'early', lifetime => 'transaction')} ],
	[ 'an acquire for a session', q{SELECT status FROM lock_try_acquire('k', owner => 'early', lifetime => 'session')} ],
	[ 'a set', q{SELECT status FROM lock_try_acquire_all('{k,l}', owner => 'early')} ],
	[ 'an acquire that waits', q{SELECT status FROM lock_try_acquire('k', owner => 'early', wait => '1 ms')} ]);
foreach my $request (@requests)
{
	my ($name, $sql) = @$request;

	ask($early, 'BEGIN');
	start_early($sql);
	is(ask($other, q{SELECT status FROM lock_try_acquire('k', owner => 'other')}), 'acquired', "$name is about to claim, another is granted the key");
	is(go_on(), $name =~ /waits/ ? 'timeout' : 'held', '... and it learns that under its claim');
	is(ask($watch, $left), '0', '... of which nothing is left');
	is(ask($early, 'SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', '... nor has it a transaction id');
	is(ask($third, q{SELECT lock_release('k', 'other'); SELECT status FROM lock_try_acquire('k', owner => 'third')}), "t\nacquired", '... nor is it in the way');
	clean();
}

#
# A key of which there is no row when it is looked at, but one that is not
# committed yet: then there is one under the claim, or none again.
#
foreach my $end ([ 'COMMIT', 'held' ], [ 'ROLLBACK', 'acquired' ])
{
	foreach my $request (@requests)
	{
		my ($name, $sql) = @$request;
		my ($how, $status) = @$end;

		ask($other, q{BEGIN; SELECT status FROM lock_try_acquire('k', owner => 'other')});
		start_early($sql);
		ask($other, $how);
		is(go_on(), $status eq 'held' && $name =~ /waits/ ? 'timeout' : $name =~ /set/ && $status ne 'held' ? "$status\n$status" : $status,
			"$name is about to claim a new key that another has taken and not committed, before $how");
		is(ask($watch, q{SELECT count(*) FROM app_lock WHERE key = 'k' AND slot = 0}), $how eq 'COMMIT' || $name !~ /share|transaction/ ? '1' : '0', '... of which there is one row, or none');
		clean();
	}
}

#
# A lease that ran out, and what becomes of it before the claim
#
foreach my $meanwhile (
	[ 'acquired anew by its owner', q{SELECT status FROM lock_try_acquire('k', '1 hour', 'former')}, 'acquired', 'held' ],
	[ 'taken by somebody else', q{SELECT status FROM lock_try_acquire('k', '1 hour', 'other')}, 'acquired', 'held' ],
	[ 'stolen', q{SELECT (lock_steal('k', 'other', 'test')).status}, 'acquired', 'held' ],
	[ 'swept', q{SELECT lock_sweep()}, '1', 'acquired' ])
{
	my ($name, $sql, $answer, $then) = @$meanwhile;

	ask($other, q{SELECT lock_acquire('k', '1 ms', 'former')});
	poll($watch, q{SELECT NOT locked FROM lock_status('k')});
	start_early(q{SELECT status FROM lock_try_acquire('k', owner => 'early')});
	is(ask($other, $sql), $answer, "a lease that ran out is $name while somebody is about to claim it");
	is(go_on(), $then, "... who is told \"$then\"");
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '1', '... one has it');
	clean();
}

#
# Refused, and about to wait, when the key becomes free: nobody was there to be woken,
# so that it has to look once more.
#
foreach my $end (q{SELECT lock_release('k', 'other')}, q{SELECT force_release('k', 'test')}, 'ROLLBACK')
{
	ask($other, ($end eq 'ROLLBACK' ? 'BEGIN; ' : '') . q{SELECT lock_acquire('k', '1 hour', 'other')});
	ask($gate, 'SELECT pg_advisory_lock(1706)');
	ask($early, "SET atomic_lock.test_pause_at = 'refused'; SET atomic_lock.test_sleep_cap = '1 h'; SET deadlock_timeout = '1 h'");
	start($early, q{SELECT status FROM lock_try_acquire('k', owner => 'early', wait => '1 hour')});
	poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($early));
	ask($other, $end);
	is(go_on(), 'acquired', "a key that becomes free before one who wants it is in the queue: $end");
	ask($early, 'RESET atomic_lock.test_pause_at');
	clean();
}

#
# Quotas: between the count and what is written
#
ask($watch, q{SELECT lock_set_policy('q:', max_keys_per_role => 1)});

# Early stands when it has counted, Other begins then, and is seen to be done or to wait.
my $counts = 0;

sub counts
{
	my ($first, $second) = @_;
	my $comment = '/* ' . ++$counts . ' */';
	my $waits;

	ask($gate, 'SELECT pg_advisory_lock(1706)');
	ask($early, q{SET atomic_lock.test_pause_at = 'quota-claimed'});
	start($early, $first);
	poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($early));
	start($other, "$comment $second");
	poll($watch, "SELECT query LIKE '$comment%' AND (state <> 'active' OR wait_event_type = 'Lock') FROM pg_stat_activity WHERE pid = " . pid($other));
	$waits = ask($watch, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = " . pid($other));
	my @told = map { /^ERROR:  (\w+)/ ? $1 : $_ } (go_on(), answer($other));
	return join ' ', ($waits ? 'waits:' : 'at once:'), @told;
}
my $acquire = q{SELECT status FROM lock_acquire('q:%s', '1 hour', 'me')};
my $count = q{SELECT count(*) FROM lock_held('me')};
is(counts(sprintf($acquire, 1), sprintf($acquire, 2)), 'waits: acquired 53400', 'two keys at once for a role that may have one');
is(ask($watch, $count), '1', '... it has one');
clean();
is(counts(q{SELECT count(*) FROM lock_acquire_all('{q:1,other}', '1 hour', 'me')}, q{SELECT count(*) FROM lock_acquire_all('{another,q:2}', '1 hour', 'me')}), 'waits: 2 53400', '... in sets');
is(ask($watch, $count), '2', '... one of which it has');
clean();
is(counts(sprintf($acquire, 1), q{SELECT lock_acquire('q:3', '1 hour', 'from'), lock_transfer('q:3', 'from', 'me')}), 'waits: acquired 53400', '... one of them by a transfer');
clean();
#
# The table of places is rewritten, so that rows are no more where they were looked at.
#
foreach my $rewrite ('VACUUM FULL app_lock_queue', 'CLUSTER app_lock_queue USING app_lock_queue_pkey')
{
	ask($early, q{SELECT lock_acquire('k', '1 hour', 'early')});
	# One does not take its offer, Two does.
	ask($other, "SELECT lock_enqueue('k', lower('$_'), '$_', '" . ($_ eq 'One' ? '1 ms' : '1 hour') . "')") foreach 'One', 'Two', 'Three';
	ask($early, q{SELECT lock_release('k', 'early')});
	poll($watch, q{SELECT clock_timestamp() > expires_at FROM app_lock_queue WHERE ticket = 0});
	is(ask($early, q{SELECT status FROM lock_try_acquire('k', '1 hour', 'two')}), 'acquired', 'a key with a place that has lapsed, and one');
	# Unlike a release, this has not written to the table.
	start_early(q{SELECT force_release('k', 'test')}, 'before-offer');
	start($third, $rewrite);
	poll($watch, "SELECT query LIKE '$rewrite%' AND (state = 'idle' OR wait_event_type = 'Lock') FROM pg_stat_activity WHERE pid = " . pid($third));
	is(ask($watch, 'SELECT count(*) FROM pg_stat_activity WHERE state = \'active\' AND pid = ' . pid($third)), '1', "$rewrite waits for a commit that has looked for places");
	is(go_on() . answer($third), 't', '... which ends');
	is(ask($watch, q{SELECT string_agg(coalesce(holder, 'offered'), ' ' ORDER BY ticket), max(offered) = max(ticket) FROM app_lock_queue}), 'offered Three|t', '... and has ended the one and offered the key to the other');
	clean();
	ask($watch, 'TRUNCATE app_lock_queue');
}

end($watch, $gate, $early, $other, $third);
$node->stop;
log_is_clean($node);

done_testing();
