# What was once wrong, or nearly, with shared keys, sets, and the lifetimes of
# sessions and transactions, each in as few steps as it takes.
#
# In a build with AL_TEST_HOOKS, where there is one, waiters sleep until they
# are woken or what is in the way ends by itself, so that a lost wake-up is a
# wait that does not end.
#
# Properties: what DISCARD ALL ends does not depend on what a transaction of the
# session did and undid; a session ends at once whatever others have locked and
# whatever it has set; whatever lets readers in wakes them, also where the key
# was claimed before; an owner's heartbeat passes those of its transactions that
# rely on the lease; an owner has one holding of a key; a set that has waited writes
# to the rows that there are then; nobody is the victim of a deadlock with itself, nor waits on in
# one; those who wait for the same do not wake each other; a rollback brings back
# readers as well; a claim that was given back is none.
#
# Turns red when: rows are written where they were before somebody rewrote the
# table; a list that grows is read where it was before; a savepoint gives back a claim and tells nobody; what is
# known of a table that was emptied is believed after a rollback.

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

# A wait whose end somebody else must see to
sub waiting
{
	my ($sql) = @_;
	return $sql =~ s/\)$/, wait => '1 hour')/r;
}

# Begin anew, with nothing held
sub clean
{
	# a warning if there is nothing to roll back
	start($_, 'ROLLBACK'), answer($_) for ($one, $two, $three, $four);
	ask($_, q{SELECT lock_release_all(o) FROM unnest('{a,b,c,o,p,w}'::text[]) o; DISCARD ALL; SET client_min_messages = error}) for ($one, $two, $three, $four);
	is(ask($watch, q{SELECT (SELECT count(*) FROM lock_status()), (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)}), '0|0|0', '(nothing is left)');
	ask($watch, 'TRUNCATE app_lock');
	return;
}

#
# DISCARD ALL ends all that the session has, whatever it has forgotten meanwhile.
# It goes over its list when there are many.
#
my $for_session = q{, lifetime => 'session'};
foreach my $end ('ROLLBACK', 'ROLLBACK TO s; COMMIT', q{PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'})
{
	is(ask($one, q{SELECT count(*) FROM generate_series(1, 64) n, lock_acquire('s' || n, owner => 'o', lifetime => 'session')}), '64', '64 locks of a session');
	ask($one, q{BEGIN; SAVEPOINT s; SELECT count(lock_release('s' || n, 'o')) FROM generate_series(1, 63) n; SELECT count(*) FROM generate_series(1, 80) n, lock_acquire('new' || n, owner => 'o', lifetime => 'session'); } . $end);
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '64', "... are there after $end of the release of most of them");
	ask($one, 'DISCARD ALL');
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '0', '... and not after DISCARD ALL');
}
foreach my $more ('', q{SELECT count(*) FROM generate_series(1, 200) n, lock_acquire('more' || n, owner => 'o', lifetime => 'session');})
{
	ask($one, "BEGIN;" . acquire('prepared', 'o', $for_session) . qq{; PREPARE TRANSACTION 'p'; $more\nDISCARD ALL;\n$more\nCOMMIT PREPARED 'p'});
	is(ask($watch, q{SELECT lifetime, pid FROM lock_status('prepared')}), 'session|' . pid($one), 'a lock of a session that was prepared when it said DISCARD ALL');
	ask($one, 'DISCARD ALL');
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '0', '... is not forgotten at the next time');
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
	[ 'no time for it', $two, 'BEGIN', @build ? 'SET atomic_lock.test_longest_exit = 0' : 'SELECT 1' ])
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
		is(ask($watch, acquire('k', 'w') . '; ' . acquire('r', 'w') . q{; SELECT lock_release_all('w')}), "acquired\nacquired\n2", '... others can have them');
	}
}
clean();

#
# Who relies on a lease lets its heartbeat pass.
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
	is(ask($two, acquire('k', 'w')), 'pending', '... nobody is given the key, though its time is up');
	is(ask($two, shared('k', 'w')), $mode eq 'exclusive' ? 'pending' : 'acquired', '... to share it, as far as it was not shared');
	is(ask($two, q{SELECT lock_sweep()}), '0', '... a sweep leaves it');
	ask($two, q{SELECT lock_try_release('k', 'w'); RESET lock_timeout});
	ask($one, 'COMMIT');
	is(ask($two, acquire('k', 'w')), 'acquired', '... until the transaction ends');
	clean();
}

#
# Wake-ups
#
my $reader = waiting(shared('k', 'c'));
my $writer = waiting(acquire('k', 'c'));
foreach my $case (
	# name, before, what the reader must learn of
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
	[ 'end of a transaction that had it', 'BEGIN; ' . acquire('k', 'a', q{, lifetime => 'transaction'}), 'COMMIT' ],
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

# One who leaves the queue with a conversion that somebody else has made
ask($one, q{SELECT status FROM lock_try_acquire('k', '1 hour', 'a', 'shared'); SELECT status FROM lock_try_acquire('k', '1 hour', 'b', 'shared')});
queue_up($watch, $two, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
queue_up($watch, $three, $writer);
ask($one, q{BEGIN; SELECT lock_release('k', 'b'), lock_convert('k', 'a', 'exclusive'); COMMIT});
is(answer($two), 'reacquired', 'a conversion that waits, and is made by another session of the owner');
ask($one, q{SELECT lock_extend('k', 'a', '300 ms')});
is(answer($three), 'acquired', '... the next in the queue learns when it ends');
clean();

#
# Deadlocks that are none
#
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two);
ask($two, q{SELECT lock_acquire('k', '1500 ms', 'b', 'shared')});
is(ask($one, shared('k', 'a') . q{; BEGIN; SELECT lock_release('k', 'a'); } . waiting(acquire('k', 'a')) . '; COMMIT'), "acquired\nt\nacquired", 'release, and wait for the key: no deadlock with oneself');
clean();
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two);
ask($three, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $one, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
queue_up($watch, $two, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
ask($three, q{SELECT lock_release('k', 'b')});
is(join(' ', sort map { answer($_) } ($one, $two)), 'acquired reacquired', 'a conversion that is asked for twice is made for both');
clean();
ask($three, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $one, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
start($two, q{SELECT status FROM lock_convert('k', 'b', wait => '1 hour')});
like(answer($two), qr/^ERROR:  40P01/, '... and where another owner asks, too, that one is refused at once');
ask($three, q{SELECT lock_release('k', 'b')});
is(answer($one), 'acquired', '... and the first goes on');
clean();

#
# ... and some that are hard to see: two who wait for the same key, and for each
# other
#
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two, $three);
ask($four, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $two, q{BEGIN; SELECT lock_release('k', 'a'); } . waiting(acquire('k', 'c')));
start($one, q{SELECT status FROM lock_convert('k', 'b', wait => '1 hour')});
# One of them has been refused; the other waits on.
poll($watch, sprintf(q{SELECT bool_or(state <> 'active') AND bool_or(pid = %1$s AND query ~ 'lock_convert') FROM pg_stat_activity WHERE pid IN (%1$s, %2$s)},
	pid($one), pid($two)));
ask($watch, 'SELECT count(pg_cancel_backend(pid)) FROM lock_waiters');
my @answers = map { answer($_) } ($one, $two);
is(scalar(grep { /40P01|deadlock/ } @answers), 1, 'a deadlock of one who upgrades and one whose transaction shared the key') or diag("@answers");
is(scalar(grep { /57014/ } @answers), 1, '... has one victim');
clean();
ask($_, q{SET deadlock_timeout = '50 ms'}) for ($one, $two, $three);
ask($four, shared('k', 'a') . '; ' . shared('k', 'b'));
queue_up($watch, $one, q{SELECT status FROM lock_convert('k', 'a', wait => '300 ms')});
queue_up($watch, $two, "SELECT status FROM lock_convert('k', 'a', wait => '1 hour')");
like(answer($one), qr/^ERROR:  55P03/, 'one of two who ask for the same conversion gives up');
start($three, q{SELECT status FROM lock_convert('k', 'b', wait => '1 hour')});
like(answer($three), qr/^ERROR:  40P01/, '... another owner is told of the other one');
ask($four, q{SELECT lock_release('k', 'b')});
is(answer($two), 'acquired', '... who goes on');
clean();

#
# Those who wait leave each other alone.
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
	# name, before, owners of those who wait to share the key, their answers after commit
	[ 'a lease that ran out, and a transaction relies on', acquire('k', 'a') . '; BEGIN; ' . acquire('k', 'a', q{, lifetime => 'transaction'}), [ 'b', 'c' ], 'acquired acquired' ],
	[ 'what their owner has just acquired', 'BEGIN; ' . shared('k', 'a'), [ 'a', 'a' ], 'reacquired reacquired' ],
	[ 'what their owner has for a transaction', 'BEGIN; ' . shared('k', 'a', q{, lifetime => 'transaction'}), [ 'a', 'a' ], 'acquired reacquired' ])
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
	is(join(' ', sort map { answer($_) } ($two, $three)), $expected, "... for $name, until that ends");
	clean();
}

#
# One holding for each owner
#
is(ask($one, 'BEGIN; ' . shared('k', 'a', q{, lifetime => 'transaction'}) . q{; SELECT owner FROM lock_transfer('k', 'a', 'p')}), "acquired\np", 'a holding for a transaction is handed over');
is(ask($two, shared('k', 'p')), 'held', '... to an owner who cannot have another');
ask($one, 'COMMIT');
is(ask($two, shared('k', 'p')), 'acquired', '... before that is over');
clean();
my $generated = ask($one, q{BEGIN; SELECT owner FROM lock_acquire('k', mode => 'shared', lifetime => 'transaction')});
is(ask($two, shared('k', $generated)), 'held', 'nor can one whom acquire has named');
is(ask($one, "SELECT mode FROM lock_convert('k', '$generated'); SELECT holders, mode FROM lock_status('k'); COMMIT"), "exclusive\n1|exclusive", '... who can have the key alone');
is(ask($two, shared('k', $generated) . "; SELECT lock_release('k', '$generated')"), "acquired\nt", '... and afterwards anew');
clean();
is( ask($one, q{BEGIN; SELECT lock_acquire('k', owner => 'a', mode => 'shared', lifetime => 'transaction'), lock_acquire('k', owner => 'b', mode => 'shared', lifetime => 'transaction') IS NOT NULL;
		SELECT (lock_transfer('k', 'a', 'b')).owner; SELECT holders FROM lock_status('k'); SELECT lock_release('k', 'b'); SELECT locked FROM lock_status('k'); COMMIT}) =~ s/^.*\n//r,
	"b\n1\nt\nf", 'two holdings for a transaction become one');
ask($two, q{SELECT lock_acquire('k', '1 hour', 'b', 'shared')});
my ($old, $new) = split /\n/, ask($one, 'BEGIN; SELECT fencing_token FROM ' . (shared('k', 'a', q{, lifetime => 'transaction'}) =~ s/.*FROM //r) . q{; SELECT fencing_token FROM lock_transfer('k', 'a', 'b'); COMMIT});
cmp_ok($new, '>', $old, '... also with a lease, which has a new fencing token then');
is(ask($two, q{SELECT holders, lifetime, fencing_token FROM lock_status('k')}), "1|lease|$new", '... and goes on');
clean();

# The row of a reader who is gone, wanted by two at a time
is(ask($one, shared('k', 'a') . q{; SELECT lock_release('k', 'a')}), "acquired\nt", 'a reader comes and goes');
is(ask($two, 'BEGIN; ' . shared('k', 'b')), 'acquired', '... one who has not committed may have its row');
is(ask($three, shared('k', 'c')), 'acquired', '... the next does not wait for that');
is(ask($four, shared('k', 'a')), 'acquired', '... nor does the first when it comes back');
ask($two, 'ROLLBACK');
is(ask($three, q{SELECT holders FROM lock_status('k')}), '2', '... and all is counted');
clean();

#
# What was seen before the claim may be wrong under it.
if (@build)
{
	# By name: what was done with the key before, what One asks for, and what Two
	# gets between its look and its claim
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
		is(ask($two, $between), 'acquired', "$name comes between");
		ask($four, 'SELECT pg_advisory_unlock_all()');
		is(answer($one), 'held', '... and has it');
		is(ask($watch, q{SELECT count(*) FROM lock_status() WHERE key LIKE 'race:%'}), 1, '... alone');
		ask($two, q{SELECT lock_release_all('two')});
	}
}

# Very many holdings of a transaction
#
is(ask($one, q{BEGIN; SELECT count(lock_acquire('d' || n, owner => 'a', lifetime => 'transaction')) FROM generate_series(1, 1000) n}), '1000', 'a thousand for a transaction');
is(ask($one, q{SAVEPOINT s; SELECT count(lock_release('d' || n, 'a')) FROM generate_series(1, 600) n}), '600', '... most of which are released');
is(ask($one, q{SELECT count(*) FROM generate_series(1, 1000) n WHERE lock_is_held('d' || n, 'a')}), '400', '... 400 are left');
is(ask($one, q{ROLLBACK TO s; SELECT count(*) FROM generate_series(1, 1000) n WHERE lock_is_held('d' || n, 'a')}), '1000', '... or all, when that is rolled back');
is(ask($one, q{SELECT sum(lock_release_all('a')); ROLLBACK TO s; SELECT count(lock_transfer('d' || n, 'a', 'b')) FROM generate_series(1, 1000) n; SELECT lock_release_all('b'); COMMIT}), "1000\n1000\n1000", '... and handed over');
is(ask($two, q{SELECT count(*) FROM generate_series(1, 1000) n, lock_status('d' || n) WHERE locked}), '0', '... and free in the end');
clean();

#
# A set that has some of its keys and waits for another, while app_lock is
# rewritten: the rows are elsewhere then.
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
		is(ask($watch, q{SELECT count(*) FILTER (WHERE lock_is_held('z' || n, 'zo' || n)), (SELECT count(*) FROM app_lock WHERE key LIKE 'z%') FROM generate_series(10, 30) n}), '21|21', '... and what others have is theirs');
		is(ask($watch, q{SELECT string_agg(key || ' ' || owner, ', ' ORDER BY key) FROM app_lock WHERE NOT released AND key IN ('a', 'b')}), 'a w, b w', '... as what it has is its own');
		is(ask($watch, q{SELECT count(*) FROM (SELECT key FROM app_lock GROUP BY key, slot HAVING count(*) > 1) s}), '0', '... no row is there twice');
		ask($one, q{SELECT lock_release_all('zo' || n) FROM generate_series(10, 30) n});
		clean();
	}
}

#
# A transaction that relies on a lease, and was refused a set with its key, does
# nothing more with it than before: it and the heartbeats let each other pass.
#
my $for_transaction = q{, lifetime => 'transaction'};
is(ask($one, acquire('b', 'o') . '; ' . acquire('z', 'w')), "acquired\nacquired", 'a lease');
is(ask($two, 'BEGIN; ' . acquire('b', 'o', $for_transaction)), 'reacquired', '... on which a transaction relies');
is(ask($two, q{SELECT status FROM lock_try_acquire_all('{b,z}', owner => 'o')}), 'held', '... that is refused a set');
is(ask($one, q{BEGIN; SELECT lock_extend('b', 'o') IS NOT NULL}), 't', '... and extended by another');
is(ask($two, acquire('b', 'o', $for_transaction)), 'reacquired', '... on which the first relies once more');
ask($_, 'COMMIT') for ($one, $two);
clean();

#
# Who empties the table, or makes another, and finds no readers there, has said
# nothing when that is rolled back.
#
foreach my $empty ('TRUNCATE app_lock', 'SAVEPOINT s; TRUNCATE app_lock', 'DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock')
{
	is(ask($one, shared('k', 'a')), 'acquired', 'a key is shared');
	is(ask($two, "BEGIN; $empty; " . acquire('k', 'b') . ($empty =~ /SAVEPOINT/ ? '; ROLLBACK TO s; COMMIT' : '; ROLLBACK')), 'acquired', "... it is free after $empty");
	is(ask($three, acquire('k', 'c')), 'held', '... and is still shared after the rollback');
	clean();
}

end($watch, $one, $two, $three, $four);
$node->stop;
log_is_clean($node, also => qr/concurrently (?:updated|deleted)/);

done_testing();
