# How a key comes to the first in line, for every end of the holding.
#
# Properties: a release, the orderly or forced end of a session, DISCARD ALL, and the
# commit of a transaction that holds the key to its end each offer it to the first in
# line, in the same commit, and send "released" and "offered" to listeners once; a rollback,
# also to a savepoint, offers nothing and sends nothing; PREPARE TRANSACTION and COMMIT
# PREPARED offer and send nothing, and the next sweep offers the key, once.  In some cases
# no backend can write an offer: a rollback, a crash of a session's backend, a session whose
# end is blocked, one that ends while another commit keeps all others from sending events.
# Then the first in line may acquire the key at once, a sweep offers it, and no other owner
# gets it in between.  The last of these sessions ends without waiting for that commit, and
# sends no event.
#
# Turns red when: the end of a session or of a transaction makes no offer; the offer is
# made before the commit, or kept by a rollback; an event is sent by PREPARE, or by
# the next transaction of that session; the sweep repeats an offer, or
# makes no offers; the end of a session waits for a commit.

use strict;
use warnings FATAL => 'all';
use AtomicLockQueue;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A session has a second to end its locks, and an hour in a build with AL_TEST_HOOKS.
my $node = PostgreSQL::Test::Cluster->new('queue_ends', @build);
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_prepared_transactions = 5
restart_after_crash = on
atomic_lock.sweep_interval = 0
# Only sessions that set synchronous_commit wait for a standby, for ever.
wal_level = replica
max_wal_senders = 1
synchronous_standby_names = 'nobody'
synchronous_commit = local
atomic_lock.acquire_durability = session
});
$node->append_conf('postgresql.conf', 'atomic_lock.test_longest_exit = 1h') if @build;
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

my ($watch, $listener, $holder, $other) = map { session($node, $_) } ('Watch', 'Listener', 'Holder', 'Other');
my $key;

# Two tickets for a key that is held
sub queue_two
{
	ask($watch, qq{SELECT lock_enqueue('$key', lower('$_'), '$_', '1 hour')}) foreach 'One', 'Two';
	is(line_of($watch, $key), 'One Two', "$key: two are in line") or diag(ask($watch, 'SELECT * FROM lock_status()'));
	hear($listener);
	return;
}

# The first in line acquires the key, and passes it to the second.
sub passes_on
{
	my ($name, $event) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(ask($other, try_as('stranger', $key)), 'held|One', "$name: a stranger cannot jump the line");
	is(ask($other, try_as('two', $key)), 'held|One', '... nor can the second in line');
	is(ask($other, try_as('one', $key)), 'acquired|', '... the first acquires the key');
	is(line_of($watch, $key), 'Two', '... and its ticket is gone');
	is(heard($listener), $event // '', '... and sends the event of the former end, if it was not sent yet');
	ask($other, qq{SELECT lock_release('$key', 'one')});
	is(heard($listener), 'released Other, offered Two', '... its release offers the key to the second');
	ask($other, qq{SELECT lock_leave('$key', 'two')});
	hear($listener);
	return;
}

my $lease = q{SELECT lock_acquire('KEY', '1 hour', 'holder')};
my $session = q{SELECT lock_acquire('KEY', owner => 'holder', lifetime => 'session')};
my $transaction = q{SELECT lock_acquire('KEY', owner => 'holder', lifetime => 'transaction')};
my $release = q{SELECT lock_release('KEY', 'holder')};

# Name; what the holder does; how it ends (SQL of the holder, or code); what listeners hear
my @offered = (
	[ 'release', $lease, $release ],
	[ 'release_all', $lease, q{SELECT lock_release_all('holder')} ],
	[ 'release_in_block', $lease, "BEGIN; $release; SELECT 1; COMMIT" ],
	[ 'release_in_savepoint', $lease, "BEGIN; SAVEPOINT s; $release; RELEASE s; COMMIT" ],
	[ 'release_twice', $lease, "BEGIN; SAVEPOINT s; $release; ROLLBACK TO s; $release; COMMIT" ],
	[ 'release_in_procedure', $lease, q{DO $$ BEGIN PERFORM lock_release('KEY', 'holder'); COMMIT; PERFORM lock_acquire('KEY-other', '1 hour', 'holder'); END $$} ],
	[ 'release_shared', q{SELECT lock_acquire('KEY', '1 hour', 'holder', 'shared')}, $release ],
	[ 'release_of_session', $session, $release ],
	[ 'force_release', $lease, q{SELECT force_release('KEY', 'test')}, 'forced' ],
	[ 'try_force_release', $lease, q{SELECT lock_try_force_release('KEY', 'test')}, 'forced' ],
	[ 'disconnect', $session, sub { end($holder) } ],
	[ 'disconnect_shared', q{SELECT lock_acquire('KEY', owner => 'holder', mode => 'shared', lifetime => 'session')}, sub { end($holder) } ],
	[ 'disconnect_lease_too', q{SELECT lock_acquire('KEY', '2 hours', 'holder', lifetime => 'session')}, sub { end($holder) } ],
	[ 'disconnect_in_transaction', "$session; BEGIN; SELECT 1", sub { end($holder) } ],
	[ 'disconnect_in_failed', $session, sub { reply($holder, 'BEGIN; SELECT 1 / 0'); end($holder) } ],
	[ 'terminate', $session, sub { ask($watch, 'SELECT pg_terminate_backend(' . pid($holder) . ')') } ],
	[ 'terminate_in_transaction', "$session; BEGIN; SELECT pg_current_xact_id()", sub { ask($watch, 'SELECT pg_terminate_backend(' . pid($holder) . ')') } ],
	[ 'client_killed', $session, sub { $holder->{run}->signal('KILL') } ],
	[ 'discard_all', $session, 'DISCARD ALL' ],
	[ 'commit', "BEGIN; $transaction", 'COMMIT' ],
	[ 'commit_savepoint', "BEGIN; SAVEPOINT s; $transaction; RELEASE s", 'COMMIT' ],
	[ 'commit_shared', q{BEGIN; SELECT lock_acquire('KEY', owner => 'holder', mode => 'shared', lifetime => 'transaction')}, 'COMMIT' ],
	[ 'commit_of_writer', "BEGIN; $transaction; CREATE TEMP TABLE IF NOT EXISTS t ()", 'COMMIT' ],
	[ 'commit_read_only', "BEGIN; $transaction; SET TRANSACTION READ ONLY", 'COMMIT' ],
	[ 'commit_serializable', "BEGIN ISOLATION LEVEL SERIALIZABLE; $transaction", 'COMMIT' ],
	[ 'commit_chain', "BEGIN; $transaction", 'COMMIT AND CHAIN; ROLLBACK' ],
	[ 'commit_released', "BEGIN; $transaction", "$release; COMMIT" ],
	[ 'commit_of_lease', "BEGIN; $transaction; SELECT lock_acquire('KEY-2', '1 hour', 'holder')", 'COMMIT' ]);

foreach my $case (@offered)
{
	my ($name, $before, $how, $event) = map { ref || !defined ? $_ : s/KEY/$case->[0]/gr } @$case;

	$key = $name;
	listen_to($listener, $key);
	ask($holder, $before);
	queue_two();
	if (ref $how)
	{
		my $pid = pid($holder);

		$how->();
		gone($watch, $pid);
		end($holder);
		$holder = session($node, 'Holder');
	}
	else
	{
		ask($holder, $how);
	}
	is(heard($listener), ($event // 'released') . ' Holder, offered One', "$name: the key is offered at once");
	is(line_of($watch, $key), 'One* Two', '... to the first in line');
	# Without the sweep, the next grant finds the row of the former holder.
	ask($watch, 'SELECT lock_sweep()') unless $name =~ /^(?:disconnect|discard_all|terminate)$/;
	is(heard($listener), '', '... and a sweep does not repeat it');
	passes_on($name);
	ask($holder, "SET application_name = 'Holder'; SELECT lock_release_all('holder')");
	ask($watch, 'TRUNCATE app_lock, app_lock_queue');
}

#
# A rollback undoes the release.
#
$key = 'undone';
listen_to($listener, $key);
ask($holder, $lease =~ s/KEY/$key/r);
queue_two();
ask($holder, qq{BEGIN; SELECT lock_release('$key', 'holder'); ROLLBACK});
ask($holder, qq{BEGIN; SAVEPOINT s; SELECT lock_release('$key', 'holder'); ROLLBACK TO s; COMMIT});
ask($holder, qq{DO \$\$ BEGIN PERFORM lock_release('$key', 'holder'); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END \$\$});
ask($holder, 'SELECT pg_current_xact_id()');
is(heard($listener) . ' ' . line_of($watch, $key), ' One Two', 'a release that is rolled back offers nothing and sends no event');
ask($holder, qq{BEGIN; SELECT lock_release('$key', 'holder')});
ask($watch, 'SELECT pg_terminate_backend(' . pid($holder) . ')');
gone($watch, pid($holder));
end($holder);
$holder = session($node, 'Holder');
is(heard($listener) . ' ' . line_of($watch, $key), ' One Two', '... nor does one of a session that is terminated');
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

#
# No backend writes an offer: the first in line may acquire the key at once, a sweep offers it.
#

# Run code while the commit of another session has the lock that sessions take one after the
# other to send notifications.  That commit waits for a standby, and any role could cause it.
sub beside_notify
{
	my ($do) = @_;

	start($other, 'BEGIN; SET LOCAL synchronous_commit = on; SELECT pg_logical_emit_message(true, \'\', \'\'); NOTIFY others; COMMIT');
	poll($watch, q{SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = } . pid($other));
	$do->();
	ask($watch, 'SELECT pg_cancel_backend(' . pid($other) . ')');
	answer($other);
	return;
}

sub end_beside_notify
{
	beside_notify(sub { end($holder); gone($watch, pid($holder)) });
	$holder = session($node, 'Holder');
	return;
}

# The release neither fails nor waits for that commit, whatever lock_timeout is.
sub release_beside_notify
{
	beside_notify(sub { ask($holder, qq{SET lock_timeout = '50 ms'; SELECT lock_release('$key', 'holder'); RESET lock_timeout}) });
	return;
}

sub sweep_beside_notify
{
	ask($holder, qq{SELECT lock_extend('$key', 'holder', '1 ms')});
	poll($watch, qq{SELECT NOT locked FROM lock_status('$key')});
	beside_notify(sub { ask($watch, 'SELECT lock_sweep()'); is(ask($watch, 'SELECT count(*) FROM app_lock'), '0', 'a sweep removes the row meanwhile') });
	return;
}

my @unoffered = (
	[ 'rollback', "BEGIN; $transaction", sub { ask($holder, 'ROLLBACK') }, 'offered One' ],
	[ 'rollback_of_lease', "BEGIN; $lease", sub { ask($holder, 'ROLLBACK') }, 'offered One' ],
	[ 'expiry', $lease, sub { ask($holder, qq{SELECT lock_extend('$key', 'holder', '1 ms')}); poll($watch, qq{SELECT NOT locked FROM lock_status('$key')}) }, 'expired Holder, offered One' ],
	[ 'blocked_end_of_session', $session, sub { ask($other, qq{BEGIN; SELECT lock_extend('$key', 'holder')}); end($holder); gone($watch, pid($holder)); ask($other, 'ROLLBACK'); $holder = session($node, 'Holder') }, 'released Holder, offered One' ],
	[ 'end_of_session_beside_notify', $session, \&end_beside_notify, 'offered One' ],
	[ 'release_beside_notify', $lease, \&release_beside_notify, 'offered One' ],
	[ 'sweep_beside_notify', $lease, \&sweep_beside_notify, 'offered One' ],
	[ 'prepared_release', "$lease; BEGIN; $release; PREPARE TRANSACTION 'p'; SELECT pg_current_xact_id()", sub { ask($holder, q{COMMIT PREPARED 'p'}) }, 'offered One' ],
	[ 'prepared_transaction', "BEGIN; $transaction; PREPARE TRANSACTION 'p'; SELECT pg_current_xact_id()", sub { ask($other, q{COMMIT PREPARED 'p'}) }, 'offered One' ],
	[ 'prepared_rolled_back', "BEGIN; $lease; PREPARE TRANSACTION 'p'", sub { ask($other, q{ROLLBACK PREPARED 'p'}) }, 'offered One' ]);
foreach my $by ('first', 'sweep')
{
	foreach my $case (@unoffered)
	{
		my ($name, $before, $how, $event) = map { ref || !defined ? $_ : s/KEY/"$case->[0]-$by"/ger } @$case;

		$key = "$name-$by";
		listen_to($listener, $key);
		if ($name eq 'prepared_release')
		{
			# The tickets are there before the release.
			ask($holder, $before =~ s/;.*//sr);
			queue_two();
			ask($holder, $before =~ s/^[^;]*;//sr);
			is(heard($listener), '', 'PREPARE TRANSACTION sends no event');
			is(ask($watch, 'SELECT lock_sweep()') . heard($listener), '0', '... and a sweep offers nothing before COMMIT PREPARED');
		}
		else
		{
			ask($holder, $before);
			queue_two();
		}
		$how->();
		is(heard($listener) . ' ' . line_of($watch, $key), ' One Two', "$key: no backend could offer the key");
		is(ask($watch, try_as('stranger', $key)), 'held|One', '... a stranger cannot acquire it');
		if ($by eq 'sweep')
		{
			ask($watch, 'SELECT lock_sweep()');
			is(heard($listener), $event, '... a sweep offers the key');
			is(line_of($watch, $key), 'One* Two', '... to the first in line');
			ask($watch, 'SELECT lock_sweep()');
			is(heard($listener), '', '... only once');
		}
		passes_on($key, $by eq 'first' ? $event =~ s/,? ?offered One//r : '');
		ask($watch, 'TRUNCATE app_lock, app_lock_queue');
	}
}

# A commit that makes an offer and writes a ticket beside a claim waits for that claim first, and
# only then takes the lock for notifications.
my $before_claims = -s $node->logfile;
ask($holder, q{SELECT lock_acquire('offer_and_ticket', owner => 'holder')});
ask($watch, q{SELECT lock_enqueue('offer_and_ticket', 'one', 'One')});
ask($other, q{BEGIN; SELECT lock_acquire('claimed', owner => 'other')});
ask($holder, q{SET log_min_messages = debug2; BEGIN; SELECT lock_release('offer_and_ticket', 'holder'); SELECT lock_enqueue('claimed', 'holder'); COMMIT; RESET log_min_messages});
ask($other, 'ROLLBACK');
my @steps = slurp_file($node->logfile, $before_claims) =~ /DEBUG:  (waiting for others that have claimed|lock "offer_and_ticket": offered)/g;
is($steps[-1], 'lock "offer_and_ticket": offered', 'a commit waits for claims before it makes an offer');
cmp_ok(scalar @steps, '>', 1, '... and there were claims');
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

# A grant that wants an event does not wait for that commit either.
ask($watch, q{SELECT lock_set_policy('granted', notify => true)});
listen_to($listener, 'granted');
foreach my $limit ('50 ms', '0')
{
	my $seen = -s $node->logfile;

	beside_notify(sub { is(ask($holder, qq{SET lock_timeout = '$limit'; SELECT status FROM lock_acquire('granted', '1 hour', 'holder', holder => 'Holder'); RESET lock_timeout}), 'acquired', "a grant beside a commit that notifies, lock_timeout $limit") });
	is(heard($listener), '', '... sends no event');
	like(slurp_file($node->logfile, $seen), qr/LOG:  1 event of a lock was left out/, '... and the log says so');
	ask($holder, q{SELECT force_release('granted', 'test')});
	is(heard($listener), 'forced Holder', '... the next event is sent');
}
ask($holder, q{BEGIN; SELECT lock_acquire('granted', '1 hour', 'holder'); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'; SELECT lock_release('granted', 'holder')});
is(heard($listener), 'released Holder', 'a grant by a prepared transaction sends no event');
is(ask($holder, q{SELECT status FROM lock_acquire('granted', '1 hour', 'holder', holder => 'Holder')}) . ' ' . heard($listener), 'acquired acquired Holder', '... another does');
ask($watch, q{SELECT lock_drop_policy('granted'); TRUNCATE app_lock});

# The death of a backend ends all others.  The lock has the lifetime of its session.
$key = 'crash';
ask($holder, $session =~ s/KEY/$key/r);
ask($watch, qq{SELECT lock_enqueue('$key', lower('$_'), '$_', '1 hour')}) foreach 'One', 'Two';
my $offset = -s $node->logfile;
kill 'KILL', pid($holder);
ok($node->wait_for_log(qr/database system is ready to accept connections/, $offset), 'the server is back');
end($watch, $listener, $holder, $other);
await_restart($node);
($watch, $listener, $other) = map { session($node, $_) } ('Watch', 'Listener', 'Other');
listen_to($listener, $key);
is(ask($watch, try_as('stranger', $key)), 'held|One', '... and a stranger cannot jump the line');
ask($watch, 'SELECT lock_sweep()');
is(heard($listener), 'released Holder, offered One', '... a sweep offers the key');
passes_on('a crash');

end($watch, $listener, $other);
$node->stop;
log_is_clean($node, killed => 1);
done_testing();
