# Corrected defects, and near misses, of shared keys, sets, and the lifetimes of
# sessions and transactions, each in as few steps as possible.
#
# In a build with AL_TEST_HOOKS, if there is one, waiters sleep until they
# are woken or the holding ends by itself, so that a lost wake-up is a
# wait that does not end.
#
# Properties: DISCARD ALL ends the same locks whatever a transaction of the
# session did and undid; a session ends at once whatever others have locked and
# whatever it has set; every change that lets readers in wakes them, also where the key
# was claimed before; an owner's heartbeat passes those of its transactions that
# rely on the lease; an owner has one holding of a key; a set that has waited writes
# to the current rows; no session is the victim of a deadlock with itself, or waits for ever
# in a deadlock; waiters for the same key do not wake each other; a rollback brings back
# readers as well; a claim that was dropped refuses no caller.
#
# Turns red when: rows are written in their former positions after a rewrite of the
# table; a list that grows is read at its former address; a savepoint drops a claim and wakes
# no waiter; knowledge of a table that was emptied is kept after a rollback.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = sleeping_server('shared_faults', '');
$node->safe_psql('postgres', 'CREATE TABLE data (id int)');

my ($watch, $one, $two, $three, $four) = map { session($node, $_) } ('Watch', 'One', 'Two', 'Three', 'Four');

sub acquire
{
	my ($key, $owner, $more) = @_;
	return "SELECT status FROM lock_try_acquire('$key', owner => '$owner'" . ($more || '') . ')';
}
sub shared
{
	my ($key, $owner, $more) = @_;
	return acquire($key, $owner, q{, mode => 'shared'} . ($more || ''));
}

# A wait that another session has to end
sub waiting
{
	my ($sql) = @_;
	return $sql =~ s/\)$/, wait => '1 hour')/r;
}

# Start again, with no holdings.
sub clean
{
	# a warning if there is nothing to roll back
	start($_, 'ROLLBACK'), answer($_) for ($one, $two, $three, $four);
	ask($_, q{SELECT lock_release_all(o) FROM unnest('{a,b,c,o,p,w}'::text[]) o; DISCARD ALL; SET client_min_messages = error}) for ($one, $two, $three, $four);
	is(ask($watch, q{SELECT (SELECT count(*) FROM lock_status()), (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)}), '0|0|0', '(no lock, waiter or claim is left)');
	ask($watch, 'TRUNCATE app_lock');
	return;
}

#
# DISCARD ALL ends all locks of the session, also those that its list lost and got back.
# It reads its list when there are many locks.
#
my $for_session = q{, lifetime => 'session'};
foreach my $end ('ROLLBACK', 'ROLLBACK TO s; COMMIT', q{PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'})
{
	is(ask($one, q{SELECT count(*) FROM generate_series(1, 64) n, lock_acquire('s' || n, owner => 'o', lifetime => 'session')}), '64', '64 locks of a session');
	ask($one, q{BEGIN; SAVEPOINT s; SELECT count(lock_release('s' || n, 'o')) FROM generate_series(1, 63) n; SELECT count(*) FROM generate_series(1, 80) n, lock_acquire('new' || n, owner => 'o', lifetime => 'session'); } . $end);
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '64', "... are all held after $end of the release of most of them");
	ask($one, 'DISCARD ALL');
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '0', '... and none after DISCARD ALL');
}
foreach my $more ('', q{SELECT count(*) FROM generate_series(1, 200) n, lock_acquire('more' || n, owner => 'o', lifetime => 'session');})
{
	ask($one, "BEGIN;" . acquire('prepared', 'o', $for_session) . qq{; PREPARE TRANSACTION 'p'; $more\nDISCARD ALL;\n$more\nCOMMIT PREPARED 'p'});
	is(ask($watch, q{SELECT lifetime, pid FROM lock_status('prepared')}), 'session|' . pid($one), 'a lock of a session that was prepared during its DISCARD ALL is held after COMMIT PREPARED');
	ask($one, 'DISCARD ALL');
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '0', '... and ends with the next DISCARD ALL');
}
clean();

#
# A session ends at once.
#
foreach my $case (
	[ 'settings with which its next transaction would wait for a snapshot', $two, 'BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO data VALUES (1)',
		'SET default_transaction_isolation = serializable; SET default_transaction_read_only = on; SET default_transaction_deferrable = on' ],
	[ 'a locked row', $two, 'BEGIN; SELECT count(*) FROM (SELECT * FROM app_lock FOR UPDATE) l', 'SELECT 1' ],
	[ 'an updated row', $two, q{BEGIN; UPDATE app_lock SET holder = 'Somebody'}, 'SELECT 1' ],
	[ 'a deleted row', $two, q{BEGIN; DELETE FROM app_lock; ROLLBACK; BEGIN; DELETE FROM app_lock WHERE slot > 0}, 'SELECT 1' ],
	[ 'a locked table', $two, 'BEGIN; LOCK TABLE app_lock IN SHARE MODE', 'SELECT 1' ],
	[ 'a claim', $two, q{BEGIN; SELECT lock_extend('k', 'o'), lock_extend('r', 'o')}, 'SELECT 1' ],
	[ 'no time to end its locks', $two, 'BEGIN', @build ? 'SET atomic_lock.test_longest_exit = 0' : 'SELECT 1' ])
{
	my ($name, $other, $lock, $before) = @$case;

	foreach my $how ('disconnect', 'terminate')
	{
		my $victim = session($node, 'Victim');

		ask($victim, acquire('k', 'o', $for_session) . '; ' . shared('r', 'o', $for_session) . "; $before");
		ask($other, $lock);
		$how eq 'terminate' ? ask($watch, 'SELECT pg_terminate_backend(' . pid($victim) . ')') : end($victim);
		gone($watch, pid($victim));
		is(ask($watch, q{SELECT string_agg(locked::text, ' ') FROM unnest('{k,r}'::text[]) k, lock_status(k)}), 'false false', "$name, $how: the session ends, and its locks with it");
		ask($other, 'ROLLBACK');
		end($victim);
		is(ask($watch, acquire('k', 'w') . '; ' . acquire('r', 'w') . q{; SELECT lock_release_all('w')}), "acquired\nacquired\n2", '... others can acquire their keys');
	}
}
clean();

#
# A transaction that relies on a lease lets the heartbeat of its owner pass.
#
foreach my $mode ('exclusive', 'shared')
{
	my $again = acquire('k', 'o', ", ttl => '2 hours', mode => '$mode'");

	is(ask($one, $again . '; BEGIN; ' . acquire('k', 'o', ", mode => '$mode', lifetime => 'transaction'")), "acquired\nreacquired", "a transaction relies on an $mode lease");
	is(ask($two, q{SELECT lock_extend('k', 'o') IS NOT NULL, lock_try_extend('k', 'o') IS NOT NULL, lock_extend_all('o')}), 't|t|1', '... another session of the owner extends it');
	is(ask($two, $again), 'reacquired', '... or acquires it again');
	is(ask($two, 'BEGIN; ' . acquire('k', 'o', ", mode => '$mode', lifetime => 'transaction'")), 'reacquired', '... or relies on it, too');
	ask($two, q{COMMIT; SET lock_timeout = '1 ms'});
	foreach my $sql (q{lock_release('k', 'o')}, q{lock_transfer('k', 'o', 'p')}, q{force_release('k', 'test')}, q{lock_convert('k', 'o', '} . ($mode eq 'shared' ? 'exclusive' : 'shared') . q{')})
	{
		start($two, "SELECT $sql");
		like(answer($two), qr/^ERROR:  55P03/, "... but not $sql");
	}
	ask($watch, q{UPDATE app_lock SET expires_at = clock_timestamp() - interval '1 s' WHERE key = 'k'});
	is(ask($two, acquire('k', 'w')), 'pending', '... another owner is refused, although the lease has expired');
	is(ask($two, shared('k', 'w')), $mode eq 'exclusive' ? 'pending' : 'acquired', '... it may share the key only if the lease was shared');
	is(ask($two, q{SELECT lock_sweep()}), '0', '... a sweep keeps the row');
	ask($two, q{SELECT lock_try_release('k', 'w'); RESET lock_timeout});
	ask($one, 'COMMIT');
	is(ask($two, acquire('k', 'w')), 'acquired', '... another owner gets the key when the transaction has ended');
	clean();
}

#
# Wake-ups
#
my $reader = waiting(shared('k', 'c'));
my $writer = waiting(acquire('k', 'c'));
foreach my $case (
	# name, before, the change that the readers must notice
	[ 'release and acquire to share', acquire('k', 'a'), "BEGIN; SELECT lock_release('k', 'a'); " . shared('k', 'b') . '; COMMIT' ],
	[ 'release, acquire to share and extend', acquire('k', 'a'), "BEGIN; SELECT lock_release('k', 'a'); " . shared('k', 'b') . q{; SELECT lock_extend('k', 'b', '2 hours'); COMMIT} ],
	[ 'release, acquire to share and transfer', acquire('k', 'a'), "BEGIN; SELECT lock_release('k', 'a'); " . shared('k', 'b') . q{; SELECT lock_transfer('k', 'b', 'p'); COMMIT} ],
	[ 'conversion', acquire('k', 'a'), q{SELECT lock_convert('k', 'a', 'shared')} ],
	[ 'conversion and extension', acquire('k', 'a'), q{BEGIN; SELECT lock_convert('k', 'a', 'shared'), lock_extend('k', 'a', '2 hours'); COMMIT} ],
	[ 'rollback of an upgrade', shared('k', 'a') . q{; BEGIN; SELECT lock_convert('k', 'a')}, 'ROLLBACK' ],
	[ 'ROLLBACK TO of an upgrade', shared('k', 'a') . q{; BEGIN; SAVEPOINT s; SELECT lock_convert('k', 'a')}, 'ROLLBACK TO s' ],
	[ 'ROLLBACK TO of an upgrade of what the transaction acquired', 'BEGIN; ' . shared('k', 'a') . q{; SAVEPOINT s; SELECT lock_convert('k', 'a')}, 'ROLLBACK TO s' ],
	[ 'ROLLBACK TO of an upgrade by acquire', 'BEGIN; ' . shared('k', 'a') . '; SAVEPOINT s; ' . acquire('k', 'a'), 'ROLLBACK TO s' ],
	[ 'ROLLBACK TO of an upgrade for a transaction', 'BEGIN; ' . shared('k', 'a', q{, lifetime => 'transaction'}) . '; SAVEPOINT s; ' . acquire('k', 'a', q{, lifetime => 'transaction'}), 'ROLLBACK TO s' ],
	[ 'ROLLBACK TO of another exclusive lock', shared('k', 'a') . q{; BEGIN; SELECT lock_extend('k', 'a'); SAVEPOINT s; SELECT lock_release('k', 'a'); } . acquire('k', 'b'), 'ROLLBACK TO s' ],
	[ 'end of a transaction that had the key', 'BEGIN; ' . acquire('k', 'a', q{, lifetime => 'transaction'}), 'COMMIT' ],
	[ 'force_release and acquire to share', acquire('k', 'a'), q{BEGIN; SELECT force_release('k', 'test'); } . shared('k', 'b') . '; COMMIT' ])
{
	my ($name, $before, $sql) = @$case;

	ask($one, $before);
	queue_up($watch, $two, $reader);
	queue_up($watch, $three, waiting(shared('k', 'w')));
	ask($one, $sql);
	is(answer($_), 'acquired', "readers are woken: $name") for ($two, $three);
	clean();
}

# A waiter for a conversion leaves the queue because another session has made the conversion.
ask($one, q{SELECT status FROM lock_try_acquire('k', '1 hour', 'a', 'shared'); SELECT status FROM lock_try_acquire('k', '1 hour', 'b', 'shared')});
queue_up($watch, $two, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
queue_up($watch, $three, $writer);
ask($one, q{BEGIN; SELECT lock_release('k', 'b'), lock_convert('k', 'a', 'exclusive'); COMMIT});
is(answer($two), 'reacquired', 'a waiting conversion, which another session of the owner has made');
ask($one, q{SELECT lock_extend('k', 'a', '300 ms')});
is(answer($three), 'acquired', '... the next in the queue gets the key when the lease ends');
clean();

#
# Waits that are no deadlock
#
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two);
ask($two, q{SELECT lock_acquire('k', '1500 ms', 'b', 'shared')});
is(ask($one, shared('k', 'a') . q{; BEGIN; SELECT lock_release('k', 'a'); } . waiting(acquire('k', 'a')) . '; COMMIT'), "acquired\nt\nacquired", 'a transaction releases a key and waits for it: no deadlock with itself');
clean();
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two);
ask($three, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $one, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
queue_up($watch, $two, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
ask($three, q{SELECT lock_release('k', 'b')});
is(join(' ', sort map { answer($_) } ($one, $two)), 'acquired reacquired', 'two sessions of an owner that wait for the same conversion both get it');
clean();
ask($three, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $one, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
start($two, q{SELECT status FROM lock_convert('k', 'b', wait => '1 hour')});
like(answer($two), qr/^ERROR:  40P01/, 'another owner that converts, too, is refused at once');
ask($three, q{SELECT lock_release('k', 'b')});
is(answer($one), 'acquired', '... and the first one converts');
clean();

#
# Deadlocks that are hard to see: two sessions wait for the same key, and for each
# other.
#
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two, $three);
ask($four, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $two, q{BEGIN; SELECT lock_release('k', 'a'); } . waiting(acquire('k', 'c')));
start($one, q{SELECT status FROM lock_convert('k', 'b', wait => '1 hour')});
# One of them has been refused; the other continues to wait.
poll($watch, sprintf(q{SELECT bool_or(state <> 'active') AND bool_or(pid = %1$s AND query ~ 'lock_convert') FROM pg_stat_activity WHERE pid IN (%1$s, %2$s)},
	pid($one), pid($two)));
ask($watch, 'SELECT count(pg_cancel_backend(pid)) FROM lock_waiters');
my @answers = map { answer($_) } ($one, $two);
is(scalar(grep { /40P01|deadlock/ } @answers), 1, 'a deadlock of an upgrade and a waiter whose transaction has released its share') or diag("@answers");
is(scalar(grep { /57014/ } @answers), 1, '... has one victim');
clean();
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two, $three);
ask($four, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $one, q{SELECT status FROM lock_convert('k', 'a', wait => '300 ms')});
queue_up($watch, $two, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
like(answer($one), qr/^ERROR:  55P03/, 'one of two waits for the same conversion times out');
start($three, q{SELECT status FROM lock_convert('k', 'b', wait => '1 hour')});
like(answer($three), qr/^ERROR:  40P01/, '... the conversion of another owner is a deadlock with the second');
ask($four, q{SELECT lock_release('k', 'b')});
is(answer($two), 'acquired', '... which converts');
clean();

#
# Waiters do not wake each other.
#
sub switches
{
	my $count = 0;

	foreach my $file (map { '/proc/' . pid($_) . '/status' } @_)
	{
		return unless -e $file;
		$count += $_ for slurp_file($file) =~ /^(?:non)?voluntary_ctxt_switches:\s+(\d+)/mg;
	}
	return $count;
}
foreach my $case (
	# name, before, owners that wait to share the key, their answers after commit
	[ 'a lease that ran out, on which a transaction relies', acquire('k', 'a') . '; BEGIN; ' . acquire('k', 'a', q{, lifetime => 'transaction'}), [ 'b', 'c' ], 'acquired acquired' ],
	[ 'a key that their owner has just acquired', 'BEGIN; ' . shared('k', 'a'), [ 'a', 'a' ], 'reacquired reacquired' ],
	[ 'a key that a transaction of their owner holds', 'BEGIN; ' . shared('k', 'a', q{, lifetime => 'transaction'}), [ 'a', 'a' ], 'acquired reacquired' ])
{
	my ($name, $before, $owners, $expected) = @$case;
	my ($switches, $more);

	ask($one, $before);
	ask($four, q{SELECT pg_sleep_until(lock_extend('k', 'a', '1 ms'))}) if $name =~ /ran out/;
	queue_up($watch, $two, waiting(shared('k', $owners->[0])));
	queue_up($watch, $three, waiting(shared('k', $owners->[1])));
  SKIP:
	{
		# Others look again every second.
		$switches = switches($two, $three) if @build;
		skip 'needs a build with hooks, and /proc', 1 unless defined $switches;
		poll($watch, q{SELECT min(since) < clock_timestamp() - interval '300 ms' FROM lock_waiters});
		$more = switches($two, $three) - $switches;
		cmp_ok($more, '<', 100, "two wait for $name, and sleep");
	}
	ask($one, 'COMMIT');
	is(join(' ', sort map { answer($_) } ($two, $three)), $expected, "... until the end of the transaction: $name");
	clean();
}

#
# An owner has one holding of a key.
#
is(ask($one, 'BEGIN; ' . shared('k', 'a', q{, lifetime => 'transaction'}) . q{; SELECT owner FROM lock_transfer('k', 'a', 'p')}), "acquired\np", 'a holding with lifetime transaction is transferred');
is(ask($two, shared('k', 'p')), 'held', '... its new owner cannot share the key in another session');
ask($one, 'COMMIT');
is(ask($two, shared('k', 'p')), 'acquired', '... before the transaction has ended');
clean();
my $generated = ask($one, q{BEGIN; SELECT owner FROM lock_acquire('k', mode => 'shared', lifetime => 'transaction')});
is(ask($two, shared('k', $generated)), 'held', 'a generated owner cannot share the key in another session, either');
is(ask($one, "SELECT mode FROM lock_convert('k', '$generated'); SELECT holders, mode FROM lock_status('k'); COMMIT"), "exclusive\n1|exclusive", '... but can convert to exclusive');
is(ask($two, shared('k', $generated) . "; SELECT lock_release('k', '$generated')"), "acquired\nt", '... and acquire the key anew after the transaction');
clean();
is( ask($one, q{BEGIN; SELECT lock_acquire('k', owner => 'a', mode => 'shared', lifetime => 'transaction'), lock_acquire('k', owner => 'b', mode => 'shared', lifetime => 'transaction') IS NOT NULL;
		SELECT (lock_transfer('k', 'a', 'b')).owner; SELECT holders FROM lock_status('k'); SELECT lock_release('k', 'b'); SELECT locked FROM lock_status('k'); COMMIT}) =~ s/^.*\n//r,
	"b\n1\nt\nf", 'a transfer joins two holdings with lifetime transaction');
ask($two, q{SELECT lock_acquire('k', '1 hour', 'b', 'shared')});
my ($old, $new) = split /\n/, ask($one, 'BEGIN; SELECT fencing_token FROM ' . (shared('k', 'a', q{, lifetime => 'transaction'}) =~ s/.*FROM //r) . q{; SELECT fencing_token FROM lock_transfer('k', 'a', 'b'); COMMIT});
cmp_ok($new, '>', $old, 'a transfer joins such a holding with a lease, which gets a new fencing token');
is(ask($two, q{SELECT holders, lifetime, fencing_token FROM lock_status('k')}), "1|lease|$new", '... and outlives the transaction');
clean();

# Two sessions at a time want the row of a reader that has released.
is(ask($one, shared('k', 'a') . q{; SELECT lock_release('k', 'a')}), "acquired\nt", 'a reader comes and goes');
is(ask($two, 'BEGIN; ' . shared('k', 'b')), 'acquired', '... an uncommitted reader may use its row');
is(ask($three, shared('k', 'c')), 'acquired', '... the next reader does not wait for that one');
is(ask($four, shared('k', 'a')), 'acquired', '... nor does the first when it comes back');
ask($two, 'ROLLBACK');
is(ask($three, q{SELECT holders FROM lock_status('k')}), '2', '... and both committed readers are counted');
clean();

#
# The look before the claim may be out of date under the claim.
if (@build)
{
	# By name: the history of the key, the call of One, and the call of Two, which comes
	# between One's look and its claim
	my @races = (
		[ 'a reader of a new key', '', acquire('race:1', 'one'), shared('race:1', 'two') ],
		[ 'a reader of a key that was a writer\'s', acquire('race:2', 'zero') . q{; SELECT lock_release('race:2', 'zero')}, acquire('race:2', 'one'), shared('race:2', 'two') ],
		[ 'a reader of a key that was a reader\'s', shared('race:3', 'zero') . q{; SELECT lock_release('race:3', 'zero')}, acquire('race:3', 'one'), shared('race:3', 'two') ],
		[ 'a writer of a new key', '', shared('race:4', 'one'), acquire('race:4', 'two') ],
		[ 'a writer of a key that was a writer\'s', acquire('race:5', 'zero') . q{; SELECT lock_release('race:5', 'zero')}, shared('race:5', 'one'), acquire('race:5', 'two') ]);

	foreach my $race (@races)
	{
		my ($name, $before, $wanted, $between) = @$race;

		ask($watch, $before) if $before;
		ask($four, 'SELECT pg_advisory_lock(1706)');
		start($one, "SET atomic_lock.test_pause_at = 'before-claim'; $wanted; RESET atomic_lock.test_pause_at");
		poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($one));
		is(ask($two, $between), 'acquired', "$name acquires between look and claim");
		ask($four, 'SELECT pg_advisory_unlock_all()');
		is(answer($one), 'held', '... the call before it is refused');
		is(ask($watch, q{SELECT count(*) FROM lock_status() WHERE key LIKE 'race:%'}), 1, '... and one holding is left');
		ask($two, q{SELECT lock_release_all('two')});
	}
}

# Very many holdings of a transaction
#
is(ask($one, q{BEGIN; SELECT count(lock_acquire('d' || n, owner => 'a', lifetime => 'transaction')) FROM generate_series(1, 1000) n}), '1000', 'a thousand locks with lifetime transaction');
is(ask($one, q{SAVEPOINT s; SELECT count(lock_release('d' || n, 'a')) FROM generate_series(1, 600) n}), '600', '... most of which are released');
is(ask($one, q{SELECT count(*) FROM generate_series(1, 1000) n WHERE lock_is_held('d' || n, 'a')}), '400', '... 400 are left');
is(ask($one, q{ROLLBACK TO s; SELECT count(*) FROM generate_series(1, 1000) n WHERE lock_is_held('d' || n, 'a')}), '1000', '... or all of them, when the release is rolled back');
is(ask($one, q{SELECT sum(lock_release_all('a')); ROLLBACK TO s; SELECT count(lock_transfer('d' || n, 'a', 'b')) FROM generate_series(1, 1000) n; SELECT lock_release_all('b'); COMMIT}), "1000\n1000\n1000", '... all are transferred and released');
is(ask($two, q{SELECT count(*) FROM generate_series(1, 1000) n, lock_status('d' || n) WHERE locked}), '0', '... and all keys are free in the end');
clean();

#
# A set has some of its keys and waits for another, while app_lock is rewritten: the rows have
# new positions then.
#
foreach my $rewrite ('VACUUM FULL app_lock', 'CLUSTER app_lock USING app_lock_pkey', 'ALTER TABLE app_lock SET (fillfactor = 80); VACUUM FULL app_lock')
{
	foreach my $mode ('exclusive', 'shared')
	{
		ask($one, q{SELECT count(lock_acquire('junk' || n, owner => 'junk')) FROM generate_series(1, 5) n;
			SELECT lock_acquire('a', owner => 'a'), lock_release('a', 'a');
			SELECT count(lock_acquire('z' || n, owner => 'zo' || n)) FROM generate_series(10, 30) n;
			SELECT lock_acquire('b', owner => 'o');
			DELETE FROM app_lock WHERE key LIKE 'junk%'});
		queue_up($watch, $two, qq{SELECT key, status FROM lock_try_acquire_all('{b,a}', owner => 'w', mode => '$mode', wait => '1 hour')});
		ask($three, join ";\n", split /; /, $rewrite);
		ask($one, q{SELECT lock_release('b', 'o')});
		is(answer($two), "a|acquired\nb|acquired", "a set waits during $rewrite ($mode)");
		is(ask($watch, q{SELECT count(*) FILTER (WHERE lock_is_held('z' || n, 'zo' || n)), (SELECT count(*) FROM app_lock WHERE key LIKE 'z%') FROM generate_series(10, 30) n}), '21|21', '... the locks of other owners are unchanged');
		is(ask($watch, q{SELECT string_agg(key || ' ' || owner, ', ' ORDER BY key) FROM app_lock WHERE NOT released AND key IN ('a', 'b')}), 'a w, b w', '... the keys of the set belong to its owner');
		is(ask($watch, q{SELECT count(*) FROM (SELECT key FROM app_lock GROUP BY key, slot HAVING count(*) > 1) s}), '0', '... no holding has two rows');
		ask($one, q{SELECT lock_release_all('zo' || n) FROM generate_series(10, 30) n});
		clean();
	}
}

#
# A transaction relies on a lease, and was refused a set with its key.  That changes
# nothing for the key: the transaction and heartbeats still let each other pass.
#
my $for_transaction = q{, lifetime => 'transaction'};
is(ask($one, acquire('b', 'o') . '; ' . acquire('z', 'w')), "acquired\nacquired", 'a lease');
is(ask($two, 'BEGIN; ' . acquire('b', 'o', $for_transaction)), 'reacquired', '... a transaction relies on it');
is(ask($two, q{SELECT status FROM lock_try_acquire_all('{b,z}', owner => 'o')}), 'held', '... and is refused a set with its key');
is(ask($one, q{BEGIN; SELECT lock_extend('b', 'o') IS NOT NULL}), 't', '... another session extends the lease');
is(ask($two, acquire('b', 'o', $for_transaction)), 'reacquired', '... and the transaction relies on it once more');
ask($_, 'COMMIT') for ($one, $two);
clean();

#
# A transaction empties the table, or creates another, and finds no readers there.  Its
# rollback brings the readers back.
#
foreach my $empty ('TRUNCATE app_lock', 'SAVEPOINT s; TRUNCATE app_lock', 'DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock')
{
	is(ask($one, shared('k', 'a')), 'acquired', 'a key is shared');
	is(ask($two, "BEGIN; $empty; " . acquire('k', 'b') . ($empty =~ /SAVEPOINT/ ? '; ROLLBACK TO s; COMMIT' : '; ROLLBACK')), 'acquired', "... the key is free after $empty");
	is(ask($three, acquire('k', 'c')), 'held', '... and still shared after the rollback');
	clean();
}

end($watch, $one, $two, $three, $four);
$node->stop;
log_is_clean($node, also => qr/concurrently (?:updated|deleted)/);

done_testing();
