# Pins and guards when a transaction does not end as usual, and when rows are replicated
# from another server.
#
# In a build with AL_TEST_HOOKS, if there is one, waiters sleep until they
# are woken or the holding ends by itself, so that a lost wake-up is a
# wait that does not end.
#
# Properties: a pin keeps an expired lease from all other owners until its transaction
# has ended, also if it is prepared, over a restart, a crash or a promotion; every
# end of the transaction wakes the waiter; a crash leaves no trace of the transaction, except
# the lease, if that has not expired.  On a standby lock_assert raises an error, guards and
# holdings are visible, and both apply after a promotion.  Logical replication
# applies rows, guarded or not, unless the guard is ENABLE ALWAYS, and then only if the
# subscription's owner has the lock.
#
# Turns red when: a pin is kept by the backend, or is of the session's kind; the claims of a
# prepared transaction are not written to disk; a waiter for an expired lease
# is not woken by the end of a pin; a guard ignores
# session_replication_role; lock_assert writes.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

note @build ? 'a build with hooks' : 'waiters look again every second';
my $conf = q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
log_error_verbosity = verbose
autovacuum = off
max_prepared_transactions = 10
deadlock_timeout = 1h
atomic_lock.max_wait = 1h
atomic_lock.sweep_interval = 0
restart_after_crash = on
};
my $tables = q{
CREATE EXTENSION atomic_lock;
CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE order_line (id int PRIMARY KEY, order_id int, qty int);
SELECT lock_protect('orders', 'order:{id}', '{insert,update,delete}'), lock_protect('order_line', 'order:{order_id}', '{insert,update,delete}');
};

my $node = PostgreSQL::Test::Cluster->new('guard_faults', @build);
$node->init;
$node->append_conf('postgresql.conf', $conf);
$node->append_conf('postgresql.conf', "atomic_lock.test_sleep_cap = 1h\n") if @build;
$node->start;
$node->safe_psql('postgres', $tables);
$node->safe_psql('postgres', q{SET atomic_lock.enforce_guards = off; INSERT INTO orders VALUES (1, 'before'), (2, 'before')});

my ($watch, $ann, $bob, $other);
sub connect_all
{
	($watch, $ann, $bob, $other) = map { session($node, $_) } ('Watch', 'Ann', 'Bob', 'Other');
	ask($ann, q{SET atomic_lock.owner = 'ann'});
	ask($other, q{SET lock_timeout = '10 ms'});
	return;
}

# Ann acquires a lease and, in a transaction, writes a guarded row; repeated if a
# short lease has expired before the write
sub write_pinned
{
	my ($ttl) = @_;

	for ($ttl //= 3_600_000;; $ttl *= 2)
	{
		my $answer = reply($ann, qq{SELECT count(lock_acquire('order:1', '$ttl ms')); BEGIN; SAVEPOINT s; UPDATE orders SET note = 'written' WHERE id = 1});
		return if $answer eq '1';
		die $answer if $answer !~ /LK006/ || $ttl > 3_600_000;
		ask($ann, 'ROLLBACK');
	}
}

# The lease expires: because its owner shortens it, or by itself
sub run_out
{
	my ($by_itself) = @_;
	my $end = ask($watch, $by_itself ? q{SELECT expires_at FROM app_lock WHERE key = 'order:1'} : q{SELECT lock_extend('order:1', 'ann', '1 ms')});

	poll($watch, "SELECT clock_timestamp() > '$end'");
	return;
}
my $try = q{SELECT status, holder FROM lock_try_acquire('order:1', '1 hour', 'bob')};
my $wait = q{SELECT status FROM lock_try_acquire('order:1', '1 hour', 'bob', wait => '1 hour')};

sub is_pinned
{
	my ($name) = @_;

	is(ask($bob, $try), 'pending|', "$name: another owner does not get the lease, although it has expired");
	ask($other, 'SELECT lock_sweep()');
	is(ask($watch, q{SELECT count(*) FROM app_lock WHERE key = 'order:1'}), '1', '... the sweep keeps the row');
	start($other, q{SELECT lock_steal('order:1', 'thief', 'test')});
	like(answer($other), qr/^ERROR:  55P03/, '... lock_steal does not take it');
	start($other, q{SELECT force_release('order:1', 'test')});
	like(answer($other), qr/^ERROR:  (55P03|LK002)/, '... force_release does not end it, or finds nothing');
	return;
}
sub clean
{
	my ($note) = @_;

	is(ask($watch, 'SELECT note FROM orders WHERE id = 1'), $note, "... the note of the row is: $note");
	ask($watch, q{SELECT lock_try_release('order:1', o) FROM unnest('{ann,bob}'::text[]) o; SET atomic_lock.enforce_guards = off; UPDATE orders SET note = 'before'; RESET atomic_lock.enforce_guards});
	is(ask($watch, q{SELECT (SELECT count(*) FROM lock_status()), (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')}), '0|0|0', '(no lock, waiter or claim is left)');
	return;
}
connect_all();

#
# Every end of the transaction lets the waiter get the lease.  The waiter comes before
# the lease has expired, or later.
#
foreach my $end (
	[ 'COMMIT', sub { ask($ann, 'COMMIT') }, 'written' ],
	[ 'ROLLBACK', sub { ask($ann, 'ROLLBACK') } ],
	[ 'ROLLBACK TO a savepoint', sub { ask($ann, 'ROLLBACK TO s') } ],
	[ 'an error', sub { start($ann, 'SELECT 1 / 0'); answer($ann) } ],
	[ 'pg_terminate_backend', sub { ask($watch, 'SELECT pg_terminate_backend(' . pid($ann) . ')') } ],
	[ 'the death of the client', sub { $ann->{run}->signal('KILL') } ])
{
	my ($name, $how, $note) = @$end;

	foreach my $case ([ 'first', 0 ], [ 'first', 1 ], [ 'later', 0 ], [ 'later', 1 ])
	{
		my ($when, $by_itself) = @$case;

		write_pinned($by_itself ? 200 : undef);
		run_out($by_itself) if $when eq 'later';
		queue_up($watch, $bob, $wait);
		run_out($by_itself) if $when eq 'first';
		is(ask($watch, q{SELECT holder, place FROM lock_waiters}), 'Bob|1', "$name: Bob waits, $when, the lease " . ($by_itself ? 'has expired' : 'was shortened'));
		is(ask($watch, q{SELECT status FROM lock_try_acquire('order:1', '1 hour', 'carol')}), 'held', '... and a third owner is refused');
		$how->();
		is(answer($bob), 'acquired', '... Bob gets the lease when the transaction has ended');
		if ($name =~ /pg_terminate|death/)
		{
			gone($watch, pid($ann));
			end($ann);
			$ann = session($node, 'Ann');
			ask($ann, q{SET atomic_lock.owner = 'ann'});
		}
		elsif ($name =~ /savepoint/)
		{
			start($ann, 'UPDATE orders SET note = \'late\' WHERE id = 1');
			like(answer($ann), qr/^ERROR:  LK006/, '... Ann can no longer write');
		}
		start($ann, 'ROLLBACK'), answer($ann);
		clean($note // 'before');
	}
}

# The same for a lock with lifetime session, whose session ends meanwhile
foreach my $when ('first', 'later')
{
	my $session = session($node, 'Session');

	ask($session, q{SELECT lock_acquire('order:1', owner => 'ann', lifetime => 'session')});
	ask($ann, q{BEGIN; UPDATE orders SET note = 'written' WHERE id = 1});
	queue_up($watch, $bob, $wait) if $when eq 'first';
	end($session);
	gone($watch, pid($session));
	queue_up($watch, $bob, $wait) if $when eq 'later';
	is(ask($watch, q{SELECT holder, place FROM lock_waiters}), 'Bob|1', "a session ends whose lock is pinned: Bob waits, $when");
	is(ask($watch, q{SELECT status FROM lock_try_acquire('order:1', '1 hour', 'carol')}), 'held', '... and a third owner is refused');
	ask($ann, 'COMMIT');
	is(answer($bob), 'acquired', '... Bob gets the lock when the transaction has ended');
	clean('written');
}

#
# PREPARE TRANSACTION
#
foreach my $between ('', 'a restart', 'a crash')
{
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		write_pinned();
		ask($ann, q{PREPARE TRANSACTION 'pin'});
		run_out();
		if ($between)
		{
			$node->stop($between eq 'a crash' ? 'immediate' : 'fast');
			end($watch, $ann, $bob, $other);
			$node->start;
			connect_all();
		}
		is_pinned('prepared' . ($between && ", after $between"));
		start($ann, q{UPDATE orders SET note = 'late' WHERE id = 2});
		like(answer($ann), qr/^ERROR:  LK006/, '... other writes of Ann are refused');
		ask($bob, q{SET atomic_lock.test_sleep_cap = '50 ms'}) if @build;
		queue_up($watch, $bob, $wait);
		ask($watch, "$end PREPARED 'pin'");
		is(answer($bob), 'acquired', "... after $end PREPARED Bob gets the lease");
		ask($bob, q{RESET atomic_lock.test_sleep_cap}) if @build;
		clean($end eq 'COMMIT' ? 'written' : 'before');
	}
}

#
# A crash: of the server, or of a backend, which has the same effect
#
foreach my $how ('immediate', 'kill')
{
	foreach my $state ('expired', 'live')
	{
		write_pinned();
		run_out() if $state eq 'expired';
		queue_up($watch, $bob, $wait);
		if ($how eq 'kill')
		{
			my $offset = -s $node->logfile;

			system_log('pg_ctl', 'kill', 'KILL', pid($ann));
			$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
		}
		else
		{
			$node->stop('immediate');
			$node->start;
		}
		isnt(answer($bob), 'acquired', "$how, $state: the waiter gets an error");
		end($watch, $ann, $bob, $other);
		await_restart($node);
		connect_all();
		is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', '... no claim is left');
		is(ask($bob, $try), $state eq 'live' ? 'held|Ann' : 'acquired|Bob', '... the lease is held unless it has expired');
		is(ask($ann, 'SELECT note FROM orders WHERE id = 1'), 'before', '... the write is lost');
		if ($state eq 'live')
		{
			ask($ann, q{UPDATE orders SET note = 'written' WHERE id = 1});
			pass('... and can be repeated');
		}
		clean($state eq 'live' ? 'written' : 'before');
	}
}
end($watch, $ann, $bob, $other);
$node->stop;

#
# Logical replication, with guards on both sides
#
my $primary = PostgreSQL::Test::Cluster->new('guard_publisher', @build);
$primary->init(allows_streaming => 'logical');
$primary->append_conf('postgresql.conf', $conf);
$primary->start;
$primary->safe_psql('postgres', $tables);
my $subscriber = PostgreSQL::Test::Cluster->new('guard_subscriber', @build);
$subscriber->init(allows_streaming => 'logical');
$subscriber->append_conf('postgresql.conf', "$conf\nwal_retrieve_retry_interval = '100 ms'\n");
$subscriber->start;
$subscriber->safe_psql('postgres', $tables);

my $data = q{SELECT 'order', id, note FROM orders UNION ALL SELECT 'line', id, qty::text FROM order_line ORDER BY 1, 2};
my $owned = q{SET atomic_lock.owner = 'ann'};
sub is_applied
{
	my ($name) = @_;

	$primary->wait_for_catchup('sub');
	is($subscriber->safe_psql('postgres', $data), $primary->safe_psql('postgres', $data), $name);
	return;
}
$primary->safe_psql('postgres', qq{$owned; SELECT lock_acquire('order:' || n, '1 hour') FROM generate_series(1, 4) n;
	INSERT INTO orders VALUES (1, 'one'), (2, 'two'); INSERT INTO order_line VALUES (1, 1, 1), (2, 1, 2), (3, 2, 3)});
$primary->safe_psql('postgres', 'CREATE PUBLICATION pub FOR TABLE orders, order_line');
$subscriber->safe_psql('postgres', q{CREATE SUBSCRIPTION sub CONNECTION '} . $primary->connstr . q{ dbname=postgres' PUBLICATION pub});
$subscriber->wait_for_subscription_sync($primary, 'sub');
is_applied('the first copy is not stopped by guards of the subscriber');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM orders'), '2', '... the subscriber has the rows');
$primary->safe_psql('postgres', qq{$owned; UPDATE orders SET note = 'changed'; INSERT INTO orders VALUES (3, 'three');
	DELETE FROM order_line WHERE id = 2; UPDATE order_line SET order_id = 3 WHERE id = 3});
is_applied('... nor are inserts, updates and deletes');
$primary->safe_psql('postgres', q{SET atomic_lock.enforce_guards = off; TRUNCATE order_line});
is_applied('... nor is TRUNCATE');
is($subscriber->safe_psql('postgres', 'SELECT count(*) FROM order_line'), '0', '... the table is empty there');
is(sqlstate($subscriber, 'UPDATE orders SET note = note'), 'LK006', 'local writes on the subscriber are refused');
is(sqlstate($subscriber, 'TRUNCATE orders'), '55000', '... so is TRUNCATE');
is(sqlstate($subscriber, qq{$owned; UPDATE orders SET note = note}), 'LK006', '... locks of the publisher have no effect there');
is($subscriber->safe_psql('postgres', qq{$owned; BEGIN; SELECT (lock_acquire('order:3', '1 hour')).status; UPDATE orders SET note = 'local' WHERE id = 3 RETURNING note; ROLLBACK}),
	"acquired\nlocal", '... locks of the subscriber do');

my $offset = -s $subscriber->logfile;
$subscriber->safe_psql('postgres', 'ALTER TABLE orders ENABLE ALWAYS TRIGGER "~atomic_lock_guard"');
is($subscriber->safe_psql('postgres', q{SELECT relation, state FROM lock_guards ORDER BY 1::text}), "order_line|enabled\norders|always", 'lock_guards shows ENABLE ALWAYS');
$primary->safe_psql('postgres', qq{$owned; UPDATE orders SET note = 'stopped' WHERE id = 1});
$subscriber->wait_for_log(qr/ERROR:  LK006: /, $offset);
is($subscriber->safe_psql('postgres', 'SELECT note FROM orders WHERE id = 1'), 'changed', '... such a guard stops replicated writes');
$subscriber->safe_psql('postgres', q{ALTER ROLE CURRENT_USER SET atomic_lock.owner = 'replica'});
$subscriber->safe_psql('postgres', q{SELECT lock_acquire('order:1', '1 hour', 'replica')});
is_applied('... until the lock is held on the subscriber');
$offset = -s $subscriber->logfile;
$subscriber->safe_psql('postgres', q{CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.note := $$rewritten$$; RETURN new; END';
	CREATE TRIGGER "~b" BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION rewrite(); ALTER TABLE orders ENABLE REPLICA TRIGGER "~b"});
$primary->safe_psql('postgres', qq{$owned; UPDATE orders SET note = 'judged' WHERE id = 1});
$subscriber->wait_for_log(qr/ERROR:  55000: trigger "~b" of table "orders" fires after the guard/, $offset);
is($subscriber->safe_psql('postgres', 'SELECT note FROM orders WHERE id = 1'), 'stopped', '... a trigger that would fire after the guard stops them, too');
$subscriber->safe_psql('postgres', 'DROP TRIGGER "~b" ON orders');
is_applied('... until it is dropped');
$primary->safe_psql('postgres', qq{$owned; UPDATE orders SET note = 'stopped' WHERE id = 2});
$subscriber->wait_for_log(qr/ERROR:  LK006: .*order:2/, $offset);
$subscriber->safe_psql('postgres', 'ALTER TABLE orders ENABLE TRIGGER "~atomic_lock_guard"');
is_applied('... without ENABLE ALWAYS replicated writes pass');
$subscriber->safe_psql('postgres', q{ALTER ROLE CURRENT_USER RESET atomic_lock.owner});
is(sqlstate($subscriber, 'UPDATE orders SET note = note'), 'LK006', '... and local writes are refused');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION sub');
$subscriber->stop;

#
# A standby
#
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('guard_standby', @build);
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
my $guards = 'SELECT * FROM lock_guards ORDER BY relation::text';
my $token = $primary->safe_psql('postgres', q{SELECT fencing_token FROM lock_status('order:1')});
$primary->wait_for_catchup($standby);
is($standby->safe_psql('postgres', $guards), $primary->safe_psql('postgres', $guards), 'standby: lock_guards shows the guards');
is($standby->safe_psql('postgres', q{SELECT lock_is_held('order:1', 'ann'), lock_is_held('order:1', 'bob')}), 't|f', '... lock_is_held knows the lease');
foreach my $call (q{lock_assert('order:1', 'ann')}, q{lock_assert('order:1', 'bob')}, q{lock_assert('nobody', 'ann')},
	"lock_assert_fence('order:1', $token, 'ann')", q{lock_assert_fence('order:1', 1, 'ann')})
{
	is(sqlstate($standby, "SELECT $call"), '25006', "... refused: $call");
}
is(sqlstate($standby, 'SELECT * FROM ' . $_), '25006', "... refused: $_")
  for q{lock_fetch(NULL::orders, '1', owner => 'ann')}, q{lock_fetch(NULL::orders, '99', owner => 'bob')};
is(sqlstate($standby, "SELECT $_"), '25006', "... refused: $_")
  for q{lock_protect('orders', 'other:{id}')}, q{lock_unprotect('orders')};
is( $primary->safe_psql('postgres', "BEGIN READ ONLY; SELECT lock_assert('order:1', 'ann') = $token; SELECT lock_assert_fence('order:1', $token, 'ann')::text; SELECT pg_current_xact_id_if_assigned() IS NULL"),
	"t\n\nt", 'lock_assert works in a read-only transaction and writes nothing');

# A promotion: with leases, an expired one that a prepared
# transaction has pinned, and one pinned by a transaction that is lost.
my $before = $standby->background_psql('postgres', on_error_stop => 0);
ask($before, q{SET atomic_lock.owner = 'ann'; SELECT * FROM lock_guards; SELECT lock_is_held('order:1')});
$node = $primary;
connect_all();
ask($ann, q{BEGIN; UPDATE orders SET note = 'prepared' WHERE id = 1; PREPARE TRANSACTION 'pin'});
run_out();
ask($other, q{SET atomic_lock.owner = 'ann'; BEGIN; UPDATE orders SET note = 'lost' WHERE id = 3});
ask($watch, q{SELECT lock_extend('order:3', 'ann', '1 ms')});
$primary->wait_for_catchup($standby);
$primary->stop('immediate');
end($watch, $ann, $bob, $other);
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'promotion';
$node = $standby;
connect_all();
is(ask($before, q{UPDATE orders SET note = 'written' WHERE id = 2 RETURNING note}), 'written', 'promoted: a session from before writes with a lease from before');
is(ask($before, q{SELECT lock_assert('order:2') > 0}), 't', '... and asserts its lease');
start($bob, q{SET atomic_lock.owner = 'bob'; UPDATE orders SET note = 'no' WHERE id = 2});
like(answer($bob), qr/^ERROR:  LK006/, '... others are refused');
is(ask($bob, $try =~ s/order:1/order:2/r =~ s/, holder//r), 'held', '... the lease is held');
start($ann, q{UPDATE orders SET note = 'no' WHERE id = 3});
like(answer($ann), qr/^ERROR:  LK006/, '... Ann cannot write with an expired lease');
is(ask($bob, $try =~ s/order:1/order:3/r =~ s/, holder//r), 'acquired', '... whose key another owner can acquire, since the transaction that pinned it is lost');
is_pinned('promoted, a prepared pin');
ask($watch, q{COMMIT PREPARED 'pin'});
is(ask($bob, $try =~ s/, holder//r), 'acquired', '... another owner gets the key after COMMIT PREPARED');
is(ask($watch, 'SELECT string_agg(note, $$ $$ ORDER BY id) FROM orders'), 'prepared written three', '... and the rows have the committed notes');
is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', '... no claim is left');
eval { $before->quit };
end($watch, $ann, $bob, $other);
$standby->stop;

log_is_clean($_, killed => 1) for ($standby, $primary, $subscriber);
done_testing();
