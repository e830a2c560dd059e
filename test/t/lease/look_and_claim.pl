# Changes by others between the look at a key and the claim on it, in cases that the explorer
# (test/explore) cannot show: the traces of a refused call in its transaction, and rewrites of
# a table.
#
# Needs a build with AL_TEST_HOOKS, which can stop a call after its look at a key and before it
# claims the key.
#
# Properties: a claim that is about to be dropped refuses no caller; an acquire that learns
# under its claim that another owner has the key has taken no transaction id and keeps no
# claim; two calls that meet a quota count one after the other; VACUUM FULL of the table of
# tickets waits for a commit that has looked for tickets; no lease is written that has ended
# already; DISCARD ALL ends a share that is handed over meanwhile; lock_explain survives a policy
# that is dropped meanwhile.
#
# Turns red when: a refused call keeps its claim to the end of the transaction; a sweep that
# ends refuses others; the count of a quota is not under a claim; a commit does not lock the
# table of tickets before it looks; a grant relies on a lease that has expired since; DISCARD ALL
# relies on the owner that it saw before its claim.

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

# Start SQL of the session Early, and return when it is stopped before its claim, or at $point.
sub start_early
{
	my ($sql, $point) = @_;

	ask($gate, 'SELECT pg_advisory_lock(1706)');
	ask($early, "SET atomic_lock.test_pause_at = '" . ($point // 'before-claim') . "'");
	start($early, $sql);
	poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($early));
	return;
}

# Continue the session Early, and return its answer.
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
# A sweep was in the way, and ends before the caller has recognized it as a sweep.
#
ask($other, q{SELECT pg_sleep_until(expires_at) FROM lock_acquire('k', '1 ms', 'other')});
ask($other, q{BEGIN; SELECT lock_sweep()});
start_early(q{SELECT status FROM lock_try_acquire('k', owner => 'early')}, 'claim-explained');
ask($other, 'COMMIT');
is(go_on(), 'acquired', 'a sweep that has just ended refuses no caller');
clean();

# A sweep has committed, and still has its locks: the caller asks for its transaction again and again.
ask($other, q{SELECT pg_sleep_until(expires_at) FROM lock_acquire('k', '1 ms', 'other')});
ask($other, q{SET atomic_lock.test_pause_at = 'before-release'; BEGIN; SELECT lock_sweep()});
ask($third, 'BEGIN; SELECT pg_advisory_lock(1707)');
start($other, 'COMMIT');
poll($watch, "SELECT bool_and(virtualtransaction LIKE '%/0') FROM pg_locks WHERE locktype = 'advisory' AND pid = " . pid($other));
start_early(q{SELECT status FROM lock_try_acquire('k', owner => 'early')}, 'claim-explained');
# The session queued behind the gate gets the advisory lock next, so that Early stops there once more.
start($watch, 'SELECT pg_advisory_lock(1706)');
poll($third, 'SELECT count(*) = 2 FROM pg_locks WHERE NOT granted AND objid = 1706');
ask($gate, 'SELECT pg_advisory_unlock_all()');
answer($watch);
poll($watch, "SELECT state = 'idle' OR wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($early));
ask($third, 'COMMIT');
answer($other);
ask($other, 'RESET atomic_lock.test_pause_at');
ask($watch, 'SELECT pg_advisory_unlock_all()');
is(go_on(), 'acquired', '... nor does one that is about to drop its claims');
clean();

#
# The policy that excludes a monitor is dropped while lock_explain looks at the key.
#
ask($watch, q{CREATE ROLE keeper; CREATE ROLE viewer; SELECT lock_grant_access('viewer', 'monitor'), lock_set_policy('k', roles => '{keeper}')});
ask($other, q{BEGIN; SELECT lock_acquire('k', owner => 'other')});
start_early(q{SET ROLE viewer; SELECT lock_explain('k') ~ 'reserved'; RESET ROLE}, 'reader-between');
ask($watch, q{SELECT lock_drop_policy('k')});
is(go_on(), 'f', 'lock_explain goes by one state of the policies');
clean();
ask($watch, q{DROP OWNED BY viewer; DROP ROLE keeper, viewer});

#
# A call refused under its claim leaves nothing in its open transaction.
#
my $left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid > 2 AND pid = " . pid($early);
my @requests = (
	[ 'an acquire', q{SELECT status FROM lock_try_acquire('k', owner => 'early')} ],
	[ 'an acquire to share', q{SELECT status FROM lock_try_acquire('k', owner => 'early', mode => 'shared')} ],
	[ 'an acquire with lifetime transaction', q{SELECT status FROM lock_try_acquire('k', owner => 'early', lifetime => 'transaction')} ],
	[ 'an acquire with lifetime session', q{SELECT status FROM lock_try_acquire('k', owner => 'early', lifetime => 'session')} ],
	[ 'a set', q{SELECT status FROM lock_try_acquire_all('{k,l}', owner => 'early')} ],
	[ 'an acquire that waits', q{SELECT status FROM lock_try_acquire('k', owner => 'early', wait => '1 ms')} ]);
foreach my $request (@requests)
{
	my ($name, $sql) = @$request;

	ask($early, 'BEGIN');
	start_early($sql);
	is(ask($other, q{SELECT status FROM lock_try_acquire('k', owner => 'other')}), 'acquired', "$name is about to claim, and another owner is granted the key");
	is(go_on(), $name =~ /waits/ ? 'timeout' : 'held', '... it is refused under its claim');
	is(ask($watch, $left), '0', '... keeps no claim');
	is(ask($early, 'SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', '... has no transaction id');
	is(ask($third, q{SELECT lock_release('k', 'other'); SELECT status FROM lock_try_acquire('k', owner => 'third')}), "t\nacquired", '... and is not in the way of others');
	clean();
}

#
# A lease expires between its judgement and the grant that relies on it: the granted lease
# would have ended already.
#
ask($watch, q{SELECT lock_set_policy('h:', history => true), lock_set_policy('m:', max_lifetime => '1 hour')});
my %late = (
	'h:convert' => [ q{lock_try_convert('h:convert', 'early', 'exclusive')}, 'expired', '0' ],
	'h:acquire' => [ q{lock_try_acquire('h:acquire', '3 hours', 'early')}, 'acquired', '1' ],
	'm:lifetime' => [ q{lock_try_acquire('m:lifetime', '1 hour', 'early')}, 'lifetime_exceeded', '0' ]);
foreach my $key (sort keys %late)
{
	my ($sql, $status, $live) = @{ $late{$key} };

	if ($key =~ /^m/)
	{
		ask($early, 'BEGIN');
		ask($early, "SELECT lock_acquire('$key', owner => 'early', mode => 'shared', lifetime => 'transaction')");
	}
	else
	{
		ask($early, "SELECT lock_acquire('$key', '1 hour', 'early', mode => 'shared')");
	}
	start_early("SELECT status FROM $sql", 'before-grant');
	set_clock($clock, 7200);
	is(go_on(), $status, "$key: the lease expires before the grant");
	ask($early, 'COMMIT') if $key =~ /^m/;
	is(ask($watch, "SELECT count(*) FROM app_lock WHERE key = '$key' AND expires_at > clock_timestamp()"), $live, '... no lease is written that has ended already');
	is(ask($watch, "SELECT count(*) FROM lock_history WHERE ended_at < acquired_at"), '0', '... the history has no entry that ends before it begins');
	set_clock($clock, 0);
	clean();
}
ask($watch, 'CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)');
my $fetch = q{SELECT count(*) FROM lock_fetch(NULL::item, '1', '1 hour', 'early', key => 'f')};
ask($early, $fetch);
start_early($fetch, 'before-quota');
set_clock($clock, 7200);
is(go_on(), '1', 'lock_fetch by the owner of a lease that expires meanwhile: the row');
is(ask($watch, q{SELECT count(*) FROM app_lock WHERE key = 'f' AND expires_at > clock_timestamp()}), '1', '... under a new lease');
set_clock($clock, 0);
clean();

#
# A convert beside an extension of the lease, which has claimed the lease and written nothing,
# while the lease expires
#
foreach my $mode ('exclusive', 'shared')
{
	ask($early, "SELECT lock_acquire('x', '1 hour', 'both', mode => '$mode')");
	start_early(q{SELECT lock_extend('x', 'both', '1 hour') IS NOT NULL}, 'own-judged');
	set_clock($clock, 7200);
	like(reply($other, "SELECT lock_convert('x', 'both', '" . ($mode eq 'shared' ? 'exclusive' : 'shared') . "')"),
		qr/^ERROR:  55P03: .*\nDETAIL:  Process @{[pid($early)]} has/, "a convert of the $mode lease is refused, and names the process that extends it");
	is(go_on(), 't', '... which then goes on');
	set_clock($clock, 0);
	clean();
}

#
# Debug messages on the way of a guard, to a role that may not read the column of the key
#
ask($watch, q{CREATE TABLE sec (name text, x int); INSERT INTO sec VALUES ('hidden', 1); SELECT lock_protect('sec', 'sec:{name}')});
ask($watch, q{CREATE ROLE blind; SELECT lock_grant_access('blind', 'user'); GRANT UPDATE (x) ON sec TO blind});
ask($other, q{BEGIN; SELECT lock_acquire('sec:hidden', '1 hour', 'both')});
ask($early, q{SET atomic_lock.owner = 'both'; SET ROLE blind});
ask($early, 'SET client_min_messages = debug3');
start($early, 'UPDATE sec SET x = 2');
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . pid($early));
ask($other, 'COMMIT');
my $said = answer($early);
like($said, qr/waiting for a transaction/, 'a guard that waits says so at DEBUG3');
unlike($said, qr/hidden/, '... and does not show the key');
ask($early, 'RESET client_min_messages; RESET ROLE; RESET atomic_lock.owner');
clean();

#
# Quotas: between the count and the grant
#
ask($watch, q{SELECT lock_set_policy('q:', max_keys_per_role => 1)});

# Early is stopped when it has counted.  Other begins then, and either ends or waits.
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
is(counts(sprintf($acquire, 1), sprintf($acquire, 2)), 'waits: acquired 53400', 'two concurrent acquires by a role with a quota of one');
is(ask($watch, $count), '1', '... the role has one key');
clean();
is(counts(q{SELECT count(*) FROM lock_acquire_all('{q:1,other}', '1 hour', 'me')}, q{SELECT count(*) FROM lock_acquire_all('{another,q:2}', '1 hour', 'me')}), 'waits: 2 53400', 'two concurrent sets');
is(ask($watch, $count), '2', '... the role has one of them');
clean();
is(counts(sprintf($acquire, 1), q{SELECT lock_acquire('q:3', '1 hour', 'from'), lock_transfer('q:3', 'from', 'me')}), 'waits: acquired 53400', 'an acquire and a transfer');
clean();
#
# The table of tickets is rewritten, so that rows are no longer where a commit looked at them.
#
foreach my $rewrite ('VACUUM FULL app_lock_queue', 'CLUSTER app_lock_queue USING app_lock_queue_pkey')
{
	ask($early, q{SELECT lock_acquire('k', '1 hour', 'early')});
	# One lets its offer lapse, Two takes its offer.
	ask($other, "SELECT lock_enqueue('k', lower('$_'), '$_', '" . ($_ eq 'One' ? '1 ms' : '1 hour') . "')") foreach 'One', 'Two', 'Three';
	ask($early, q{SELECT lock_release('k', 'early')});
	poll($watch, q{SELECT clock_timestamp() > expires_at FROM app_lock_queue WHERE ticket = 0});
	is(ask($early, q{SELECT status FROM lock_try_acquire('k', '1 hour', 'two')}), 'acquired', 'a key with one lapsed ticket and one valid ticket');
	# Unlike a release, force_release has not written to the table of tickets.
	start_early(q{SELECT force_release('k', 'test')}, 'before-offer');
	start($third, $rewrite);
	poll($watch, "SELECT query LIKE '$rewrite%' AND (state = 'idle' OR wait_event_type = 'Lock') FROM pg_stat_activity WHERE pid = " . pid($third));
	is(ask($watch, 'SELECT count(*) FROM pg_stat_activity WHERE state = \'active\' AND pid = ' . pid($third)), '1', "$rewrite waits for a commit that has looked for tickets");
	is(go_on() . answer($third), 't', '... the commit ends');
	is(ask($watch, q{SELECT string_agg(coalesce(holder, 'offered'), ' ' ORDER BY ticket), max(offered) = max(ticket) FROM app_lock_queue}), 'offered Three|t', '... and has removed the lapsed ticket and offered the key to the other');
	clean();
	ask($watch, 'TRUNCATE app_lock_queue');
}

#
# A share of the session is handed to another owner, who extends it, while DISCARD ALL claims it.
#
{
	local $ENV{PGOPTIONS} = '-c atomic_lock.test_pause_at=session-end';
	$early = session($node, 'Early');
}
ask($early, q{SELECT lock_acquire('k', '1 hour', 'early', 'shared', lifetime => 'session')});
ask($gate, 'SELECT pg_advisory_lock(1706)');
start($early, 'DISCARD ALL');
poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($early));
ask($other, q{SELECT lock_transfer('k', 'early', 'third', 'Third')});
ask($third, q{BEGIN; SELECT lock_extend('k', 'third', '2 hours')});
ask($gate, 'SELECT pg_advisory_unlock_all()');
poll($watch, "SELECT state = 'idle' OR EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND NOT granted AND objid <> 1706) FROM pg_stat_activity a WHERE pid = " . pid($early));
ask($third, 'COMMIT');
answer($early);
is(ask($watch, q{SELECT locked FROM lock_status('k')}), 'f', 'DISCARD ALL ends a share that has another owner by then');

end($watch, $gate, $early, $other, $third);
$node->stop;
log_is_clean($node);

done_testing();
