# The table of tickets while it is dropped, rewritten, locked or dumped.
#
# Properties: DROP EXTENSION and CREATE EXTENSION leave no ticket and no offer, and make a
# new channel, also in the transaction that releases a key; tickets of a role that was
# dropped stay, and any caller with the owner can use them; a dump has no ticket, no owner and
# no offer; VACUUM FULL, CLUSTER, REINDEX and REINDEX CONCURRENTLY do not change a line,
# and while they run under load no call fails and no two owners get one key; while an
# administrator has locked the table, a session can end, and every other call waits until the
# table is unlocked: then the first in line gets the key.
#
# Turns red when: the table is remembered by its OID or its file; the end of a session
# waits for it; its contents are configuration.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockQueue;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('queue_table');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.sweep_interval = 0
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my ($watch, $listener, $holder, $other) = map { session($node, $_) } ('Watch', 'Listener', 'Holder', 'Other');
my $line = q{SELECT key, place, holder, queued_at, expires_at, offer, offered_until, ticket FROM lock_queue ORDER BY key, place};

sub make_line
{
	my ($key, @labels) = @_;

	ask($holder, qq{SELECT lock_acquire('$key', '1 hour', 'holder')});
	ask($watch, qq{SELECT lock_enqueue('$key', 'secret ' || lower('$_'), '$_', '1 hour')}) foreach @labels;
	return;
}

#
# A dump, and statements that rewrite the table
#
make_line('k', 'One', 'Two', 'Three');
make_line('free', 'One');
ask($holder, q{SELECT lock_release('free', 'holder')});
my $before = ask($watch, $line);
my $dump = "$PostgreSQL::Test::Utils::tmp_check/queue.sql";
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ], 'pg_dump');
unlike(slurp_file($dump), qr/secret|app_lock_queue/, '... has no ticket');
foreach my $sql (
	'VACUUM FULL app_lock_queue', 'CLUSTER app_lock_queue USING app_lock_queue_pkey', 'REINDEX TABLE app_lock_queue',
	'REINDEX TABLE CONCURRENTLY app_lock_queue', 'VACUUM FREEZE app_lock_queue')
{
	ask($other, $sql);
	is(ask($watch, $line), $before, "$sql does not change the line");
	is(ask($watch, try_as('stranger', 'free')) . ' ' . ask($watch, q{SELECT place FROM lock_enqueue('k', 'secret two', 'Two')}), 'held|One 2', '... a stranger does not jump it, and a ticket is renewed');
	$before = ask($watch, $line);
}
ask($holder, q{SELECT lock_release('k', 'holder')});
is(line_of($watch, 'k'), 'One* Two Three', '... and a release offers the key');
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

# The same under load: each client increments a counter that only the lock protects.
ask($watch, 'CREATE TABLE counted (k int PRIMARY KEY, n int); INSERT INTO counted SELECT k, 0 FROM generate_series(1, 3) k; CREATE SEQUENCE counts');
my ($output, $run);
{
	my $script = pgbench_script($node, 'queue', q{\set k random(1, 3)
SELECT (status <> 'queued')::int AS granted FROM lock_enqueue('k' || :k, 'o:client_id', offer => '1 hour') \gset
\if :granted
SELECT n AS seen FROM counted WHERE k = :k \gset
SELECT nextval('counts');
UPDATE counted SET n = :seen + 1 WHERE k = :k;
SELECT lock_release('k' || :k, 'o:client_id');
\endif
});
	$run = start_pgbench($node, \$output, '-c', 6, '-T', 600, '-f', $script);
}
foreach my $round (1 .. 3)
{
	foreach my $sql ('VACUUM FULL app_lock_queue', 'REINDEX TABLE CONCURRENTLY app_lock_queue', 'CLUSTER app_lock_queue USING app_lock_queue_pkey', 'VACUUM app_lock_queue')
	{
		my $counts = ask($watch, 'SELECT last_value FROM counts');

		ask($other, $sql);
		# The first ticket may belong to a client that comes to this key again.
		poll($watch, "SELECT last_value > $counts + 20 FROM counts");
	}
}
$run->signal('INT');
$run->finish;
unlike($output =~ s/^.*(?:canceling|interrupt).*$//rmg, qr/ERROR:|aborted/, 'no call fails while the table is rewritten') or diag($output);
is(ask($watch, q{SELECT (SELECT last_value FROM counts) - sum(n) BETWEEN 0 AND 6 FROM counted}), 't', '... and no count is lost but those of clients that were stopped') or diag(ask($watch, 'SELECT *, (SELECT last_value FROM counts) FROM counted'));
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

#
# LOCK TABLE
#
make_line('k', 'One');
make_line('by session');
ask($holder, q{SELECT lock_acquire('session', owner => 'holder', lifetime => 'session')});
ask($watch, q{SELECT lock_enqueue('session', 'secret one', 'One', '1 hour')});
ask($other, 'BEGIN; LOCK TABLE app_lock_queue');
ask($watch, q{SET lock_timeout = '50 ms'});
is(told($watch, q{SELECT lock_try_acquire('nobody waits', '1 hour', 'me')}), '55P03', 'while there are tickets, an acquire of any key looks at their table');
is(told($watch, q{SELECT lock_release('k', 'holder')}), '55P03', '... a release of another key waits, like any write');
is(told($watch, q{SELECT lock_enqueue('k', 'secret two', 'Two')}), '55P03', '... as does an enqueue');
ask($watch, 'RESET lock_timeout');
my $pid = pid($holder);
end($holder);
gone($watch, $pid);
pass('a session can end');
start($watch, q{SELECT lock_release('k', 'holder')});
poll($listener, q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'app_lock_queue'::regclass});
ask($other, 'COMMIT');
is(answer($watch), 't', '... a release waits, and succeeds when the table is unlocked');
is(line_of($watch, 'k'), 'One*', '... and offers the key');
is(ask($watch, try_as('stranger', 'session')) . ' ' . ask($watch, try_as('secret one', 'session')), 'held|One acquired|', '... the first in line gets the key of the ended session');
$holder = session($node, 'Holder');
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

#
# DROP ROLE
#
ask($watch, q{CREATE ROLE one; SELECT lock_grant_access('one', 'user')});
make_line('k');
ask($other, q{SET ROLE one; SELECT lock_enqueue('k', 'secret one', 'One', '1 hour'); RESET ROLE});
ask($watch, q{SELECT lock_enqueue('k', 'secret two', 'Two', '1 hour')});
is(ask($watch, q{SELECT holder, role FROM lock_queue}), "One|one\nTwo|" . ask($watch, 'SELECT current_user'), 'a ticket shows its role');
ask($watch, q{SELECT lock_revoke_access('one', 'user'); DROP ROLE one});
is(ask($watch, q{SELECT holder, role IS NULL FROM lock_queue}), "One|t\nTwo|f", '... and stays when the role is dropped');
ask($holder, q{SELECT lock_release('k', 'holder')});
is(line_of($watch, 'k'), 'One* Two', '... gets an offer');
is(ask($watch, q{SELECT status FROM lock_enqueue('k', 'secret one')}), 'acquired', '... and another role with its owner acquires the key');
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

#
# DROP EXTENSION
#
make_line('k', 'One', 'Two');
make_line('free', 'One');
listen_to($listener, 'k', 'free');
my $channel = ask($watch, q{SELECT lock_channel('k')});
ask($holder, q{SELECT lock_release('free', 'holder')});
hear($listener);
ask($holder, q{BEGIN; SELECT lock_release('k', 'holder'); DROP EXTENSION atomic_lock; COMMIT});
is(heard($listener), 'released Holder', 'DROP EXTENSION removes the line: no offer is sent');
ask($watch, 'CREATE EXTENSION atomic_lock');
isnt(ask($watch, q{SELECT lock_channel('k')}), $channel, '... and the channel is another one');
is(ask($watch, q{SELECT count(*) FROM lock_queue}), '0', '... the line is empty');
is(ask($_->[0], try_as('stranger', $_->[1])), 'acquired|', "... a stranger can acquire a key: $_->[1]") foreach [ $watch, 'free' ], [ $other, 'k' ];
ask($watch, q{SELECT lock_enqueue('k', 'secret one', 'One', '1 hour')});
ask($holder, q{BEGIN; SELECT lock_release('k', 'stranger'); DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock; SELECT lock_acquire('k', '1 hour', 'holder'); SELECT lock_enqueue('k', 'secret two', 'Two', '1 hour'); SELECT lock_release('k', 'holder'); COMMIT});
is(line_of($watch, 'k'), 'Two*', '... a ticket of the new extension is made and offered in one transaction');
ask($holder, q{BEGIN; DROP EXTENSION atomic_lock; ROLLBACK});
is(ask($watch, try_as('stranger', 'k')) . ' ' . ask($holder, try_as('secret two', 'k')), 'held|Two acquired|', '... and is still there after a drop that was rolled back');

end($watch, $listener, $holder, $other);
$node->stop;
log_is_clean($node);
done_testing();
