# Corrected defects, and near misses, of pins, guards and lock_fetch, each in as few
# steps as possible.
#
# In a build with AL_TEST_HOOKS, if there is one, waiters sleep until they
# are woken or the holding ends by itself, so that a lost wake-up is a
# wait that does not end.
#
# Properties: no other owner gets a pinned lease that has expired, whatever else the
# transaction that pinned it did; dropping a claim leaves the claims of other
# code; a waiter in lock_fetch keeps no lock on the table, and gets an error
# if the table was altered; policies may call any function; no owner gets into
# the log; TRUNCATE of added partitions is refused.
#
# Turns red when: a transaction that pins is taken for one that shares; a pin is
# not recorded with its claim; a table is held open during a wait; the type of the rows
# is not compared with the type that the statement expects.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = sleeping_server('guard_faults', 'log_min_error_statement = error');
$node->safe_psql(
	'postgres', q{
CREATE TABLE inv (k text PRIMARY KEY, x int);
SELECT lock_protect('inv', '{k}');
});

my ($watch, $one, $two, $three) = map { session($node, $_) } ('Watch', 'One', 'Two', 'Three');

sub acquire
{
	my ($key, $owner, $more) = @_;
	return "SELECT status FROM lock_try_acquire('$key', owner => '$owner'" . ($more || '') . ')';
}
my $shared = q{, mode => 'shared'};

# The lease of owner "a" expires.
sub expire
{
	my ($key) = @_;
	return ask($watch, "SELECT pg_sleep_until(lock_extend('$key', 'a', '1 ms'))");
}

ask($watch, "SET atomic_lock.enforce_guards = off; INSERT INTO inv VALUES ('k', 0)");

#
# An expired exclusive lease that is pinned is not shared, whatever the transaction
# has in addition to the pin.
#
foreach my $case (
	[ 'a guarded write', 'k', q{}, q{UPDATE inv SET x = 1 WHERE k = 'k'} ],
	[ 'a lock with lifetime transaction', 'k', q{}, acquire('k', 'a', q{, lifetime => 'transaction'}) ],
	[ 'an assertion, before sharing the key', 'k', q{}, q{SELECT lock_assert('k', 'a') > 0}, acquire('k', 'b', $shared) ],
	[ 'a lock with lifetime transaction, before sharing the key', 'k', q{}, acquire('k', 'a', q{, lifetime => 'transaction'}), acquire('k', 'b', $shared) ])
{
	my ($name, $key, $before, $pin, $after) = @$case;

	ask($one, acquire($key, 'a'));
	ask($one, "SET atomic_lock.owner = 'a'; BEGIN; $before");
	ask($one, $pin);
	expire($key);
	ask($one, $after) if $after;
	foreach my $mode ('', $shared)
	{
		is(ask($two, acquire($key, 'c', $mode)), 'pending', "$name: the key of the expired lease cannot be acquired" . ($mode ? ' in shared mode' : ''));
	}
	queue_up($watch, $two, acquire($key, 'c', "$shared, wait => '1 hour'"));
	ask($one, 'COMMIT');
	is(answer($two), 'acquired', '... but when the transaction has ended');
	ask($two, q{SELECT lock_release_all('c')});
	ask($one, q{RESET atomic_lock.owner; SELECT lock_release_all('a'), lock_release_all('b')});
	ask($watch, 'TRUNCATE app_lock');
}

#
# An assertion by an owner with a lock with lifetime transaction, over an expired lease
#
ask($one, acquire('k', 'a') . '; BEGIN; ' . acquire('k', 'a', q{, lifetime => 'transaction'}));
expire('k');
is(ask($one, q{SELECT lock_assert('k', 'a') > 0; COMMIT}), 't', 'a lock with lifetime transaction proves an expired lease');
ask($watch, 'TRUNCATE app_lock');

#
# A claim is dropped, because the call changes nothing, beside a pin.
#
ask($one, q{SET atomic_lock.max_lifetime = '1h'; } . acquire('k', 'a', q{, ttl => '1 hour'}));
is(ask($one, q{BEGIN; SELECT lock_assert('k', 'a') > 0; SELECT lock_try_extend('k', 'a', '2 hours') IS NULL}), "t\nt", 'an extension is refused in a transaction that relies on the lease');
expire('k');
is(ask($one, q{SELECT lock_assert('k', 'a') > 0}), 't', '... the transaction still relies on it');
queue_up($watch, $two, acquire('k', 'c', q{, wait => '1 hour'}));
ask($one, 'COMMIT');
is(answer($two), 'acquired', '... and its end wakes the waiter');
ask($one, 'RESET atomic_lock.max_lifetime');
ask($watch, 'TRUNCATE app_lock');

#
# Policies that change state
#
$node->safe_psql(
	'postgres', q{
CREATE ROLE reader;
SELECT lock_grant_access('reader', 'user');
CREATE TABLE doc (id int PRIMARY KEY, x text);
INSERT INTO doc VALUES (1, 'one'), (2, 'two');
ALTER TABLE doc ENABLE ROW LEVEL SECURITY;
GRANT ALL ON doc TO reader;
CREATE FUNCTION claims(id int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_try_acquire('doc:' || id, owner => current_setting('my.policy'));
	RETURN current_setting('my.answer')::bool;
END $$;
CREATE POLICY p ON doc USING (claims(id));
});
my $fetch = q{SELECT x FROM lock_fetch(NULL::doc, '1', owner => 'u')};
is(ask($one, "SET ROLE reader; SET my.policy = u; SET my.answer = off; BEGIN; $fetch"), '', 'a policy that acquires the key for the same owner, and hides the row: no row');
is(ask($two, acquire('doc:1', 'b') . q{; SELECT lock_release('doc:1', 'b')}), "acquired\nt", '... and no lock is left');
ask($one, 'ROLLBACK');
is(ask($one, "SET my.answer = on; $fetch; SELECT lock_release('doc:1', 'u')"), "one\nt", '... if it shows the row, the row is fetched');
is(ask($one, "SET my.policy = p; SET my.answer = off; $fetch; SET my.answer = on; $fetch; SELECT lock_release('doc:1', 'u')"), "one\nt", '... a policy that acquires the key for another owner does not prevent a later fetch');
is(ask($watch, q{SELECT count(*) FROM lock_status()}), '0', '... no lock is left');
ask($one, 'RESET ROLE');

$node->safe_psql(
	'postgres', q{
CREATE TABLE own (id int PRIMARY KEY, x text);
INSERT INTO own VALUES (1, 'a'), (2, 'b');
ALTER TABLE own ENABLE ROW LEVEL SECURITY;
ALTER TABLE own FORCE ROW LEVEL SECURITY;
ALTER TABLE own OWNER TO reader;
CREATE FUNCTION renames(id int) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('my.renamed') = 'no' THEN
		SET my.renamed = 'yes';
		ALTER TABLE own RENAME COLUMN x TO y;
		PERFORM * FROM lock_fetch(NULL::own, '2', owner => 'u', key => 'inner');
	END IF;
	RETURN true;
END $$;
CREATE POLICY p ON own USING (renames(id));
});
like(reply($one, q{SET ROLE reader; SET my.renamed = 'no'; SELECT id FROM lock_fetch(NULL::own, '1', owner => 'u')}), qr/^1$|ERROR/, 'a policy that renames a column and fetches from the table again');
is(ask($one, q{SELECT id FROM lock_fetch(NULL::own, '1', owner => 'u'); SELECT count(*) FROM lock_status('own:1') WHERE locked; RESET ROLE}), "1\n1", '... does not crash the server');
ask($watch, 'TRUNCATE app_lock');

$node->safe_psql(
	'postgres', q{
CREATE TABLE swap (id text PRIMARY KEY, x name);
INSERT INTO swap VALUES ('one', 'one');
ALTER TABLE swap ENABLE ROW LEVEL SECURITY;
ALTER TABLE swap FORCE ROW LEVEL SECURITY;
ALTER TABLE swap OWNER TO reader;
CREATE FUNCTION swaps() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('my.swapped') = 'no' THEN
		SET my.swapped = 'yes';
		ALTER TABLE swap RENAME COLUMN id TO y;
		ALTER TABLE swap RENAME COLUMN x TO id;
		ALTER TABLE swap RENAME COLUMN y TO x;
		SET search_path = public, pg_catalog;
		RETURN false;
	END IF;
	RETURN true;
END $$;
CREATE POLICY p ON swap USING (swaps());
});
like(reply($one, q{SET ROLE reader; SET my.swapped = 'no'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM lock_fetch(NULL::swap, 'one', owner => 'u')}), qr/55000: +table "swap" was altered/, 'a policy that swaps columns of different types');
is(ask($one, q{ROLLBACK; RESET ROLE; RESET search_path; SELECT count(*) FROM lock_status()}), '0', '... and no lock is left');

$node->safe_psql(
	'postgres', q{
CREATE TABLE proof (id int PRIMARY KEY);
INSERT INTO proof VALUES (1);
ALTER TABLE proof ENABLE ROW LEVEL SECURITY;
GRANT SELECT ON proof TO reader;
CREATE POLICY p ON proof USING (lock_assert('proof:' || id) IS NOT NULL);
});
is(ask($one, q{SET ROLE reader; SET atomic_lock.owner = 'u'; SELECT id FROM lock_fetch(NULL::proof, '1')}), '1', 'a policy that asserts the lock of the fetched row');
is(ask($one, q{SELECT count(*) FROM lock_fetch(NULL::proof, '2'); SELECT count(*) FROM proof; SELECT lock_release_all(); RESET ROLE; RESET atomic_lock.owner}), "0\n1\n1", '... and a row that does not exist');

#
# Rows that lie next to each other: the next row is not taken for that of the key.
#
ask($one, q{SET atomic_lock.owner = 'a'; SELECT count(*) FROM lock_acquire_all('{seq:1,seq:2,seq:3}')});
ask($watch, q{CREATE TABLE seq (id int); INSERT INTO seq VALUES (1), (2), (9); SELECT lock_protect('seq', 'seq:{id}')});
ask($watch, q{SELECT count(*) FROM generate_series(1, 20000) n, lock_status('other:' || n) WHERE locked});
like(reply($one, 'UPDATE seq SET id = id'), qr/LK006: +lock "seq:9" is not held/, 'a guarded write does not take the next row for the lease of its key');
is(ask($one, q{UPDATE seq SET id = id WHERE id < 9; SELECT lock_release_all()}), '3', '... writes with the other leases succeed');

#
# One key under two settings; a cascade for another role; lock_protect again with ENABLE ALWAYS
#
ask($watch, q{CREATE TABLE reg (id regclass PRIMARY KEY); INSERT INTO reg VALUES ('seq')});
ask($one, q{SELECT count(*) FROM lock_fetch(NULL::reg, 'seq')});
like(reply($two, q{SET quote_all_identifiers = on; SELECT * FROM lock_fetch(NULL::reg, 'seq', owner => 'b')}), qr/55P03: +lock "reg:public.seq" is held by One/, 'quote_all_identifiers does not change the key');
ask($two, 'RESET quote_all_identifiers');
ask($watch, q{CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE, secret text);
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1, 'xyzzy'); SELECT lock_protect('child', 'child:{secret}'); GRANT SELECT, DELETE ON parent TO reader});
like(reply($one, 'SET ROLE reader; DELETE FROM parent'), qr/LK006: +the lock that covers a row of table "child" is not held(?!.*xyzzy)/s, 'a cascade does not show the key to a role that may not read it');
ask($one, 'RESET ROLE');
ask($watch, q{ALTER TABLE child ENABLE ALWAYS TRIGGER "~atomic_lock_guard"; SELECT lock_protect('child', 'child:{id}')});
is(ask($watch, q{SELECT key_template, state FROM lock_guards WHERE relation = 'child'::regclass}), 'child:{id}|always', 'lock_protect again keeps ENABLE ALWAYS');
ask($watch, 'TRUNCATE app_lock');

#
# A waiter in lock_fetch
#
ask($watch, q{CREATE TABLE item (id int PRIMARY KEY, x int); INSERT INTO item VALUES (1, 1)});
foreach my $case (
	[ 'ALTER TABLE item ADD y int DEFAULT 7', qr/55000: +table "item" was altered while lock_fetch waited/ ],
	[ 'ALTER TABLE item DROP y', qr/55000: +table "item" was altered/ ],
	[ 'ALTER TABLE item ALTER x TYPE text', qr/55000: +table "item" was altered/ ],
	[ 'ALTER TABLE item ALTER id TYPE bigint', qr/55000: +table "item" was altered/ ],
	[ 'ALTER TABLE item RENAME x TO z', qr/^1\|1$/ ],
	[ 'UPDATE item SET id = 1', qr/^1\|1$/ ],
	[ 'ALTER TABLE item RENAME TO thing', qr/^1\|1$/ ],
	[ 'DROP TABLE thing', qr/42P01: / ])
{
	my ($ddl, $outcome) = @$case;
	my $table = ask($watch, q{SELECT coalesce(to_regclass('item'), to_regclass('thing'))});

	ask($one, acquire("$table:1", 'h'));
	queue_up($watch, $two, "SELECT * FROM lock_fetch(NULL::$table, '1', owner => 'w', wait => '1 hour')");
	is(ask($three, $ddl), '', "while lock_fetch waits: $ddl");
	ask($one, "SELECT lock_release('$table:1', 'h')");
	like(answer($two), $outcome, '... the outcome when it has the lock');
	ask($watch, 'TRUNCATE app_lock');
}

#
# Added partitions
#
ask($watch, q{SET atomic_lock.enforce_guards = on;
CREATE TABLE part (id int) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10);
SELECT lock_protect('part', 'part:{id}');
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10) TO (20);
CREATE TABLE part3 (id int);
ALTER TABLE part ATTACH PARTITION part3 FOR VALUES FROM (20) TO (30)});
like(reply($one, "TRUNCATE $_"), qr/55000: +cannot truncate table "$_"/, "TRUNCATE $_") for ('part', 'part1', 'part2', 'part3');
is(ask($one, 'ALTER TABLE part DETACH PARTITION part3; TRUNCATE part3'), '', 'TRUNCATE of a detached partition is allowed');

#
# Owners in the log
#
reply($one, q{SELECT * FROM lock_fetch(NULL::inv, NULL, owner => 'SECRET')});
reply($one, q{SELECT * FROM lock_fetch(NULL::part, '1', owner => 'SECRET')});
ask($watch, q{CREATE TABLE num (id int PRIMARY KEY)});
like(reply($one, q{SELECT * FROM lock_fetch(NULL::num, 'x', owner => 'SECRET')}), qr/22P02/, 'a bad id');
like(reply($one, q{DO $$ BEGIN PERFORM lock_fetch(NULL::num, 'x', owner => 'SECRET'); END $$}), qr/22P02/, '... in a function');
unlike(slurp_file($node->logfile) =~ s/STATEMENT:  DO .*//r, qr/SECRET/, 'the log has no owner');
log_is_clean($node);

end($_) for ($watch, $one, $two, $three);
$node->stop;
done_testing();
