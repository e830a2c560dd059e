# Paths of the code that are seldom taken, and that no other test reaches.
#
# Properties: hooks of a library that was loaded before ours still run, as do
# ours; TRUNCATE of a guarded table is refused in a session that has not loaded
# the library; a template may have any number of columns; lock_release_all releases all
# locks of an owner whose name looks like a generated one; a pin is found again
# when its row has moved by more than one version and no hint leads to it; a
# cycle of ten is a deadlock, two ways to the same process are none, and a
# transaction that waits for itself is refused; a commit that
# writes more than a release is flushed; a session that could not clear its row at its end
# has a known time of death when many others have ended like it since.
#
# Turns red when: a hook does not call the former one; the search for a
# cycle has room for eight, or takes a node that it has seen for its start; a row is not
# found by index; a commit's writes after our callback are ignored; the time of death of a
# session is lost when its slot is reused.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('seldom');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
atomic_lock.sweep_interval = 0
log_statement = none
autovacuum = off
deadlock_timeout = 1h
wal_writer_delay = 10s
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

#
# A session that has not loaded the library, on a server without preloading
#
$node->safe_psql(
	'postgres', q{
CREATE TABLE wide (a int, b int, c int, d int, e int);
INSERT INTO wide VALUES (1, 2, 3, 4, 5);
SELECT lock_protect('wide', 'wide:{a}.{b}.{c}.{d}.{e}:{a}')});
my ($watch, $one, $two) = map { session($node, $_) } ('Watch', 'One', 'Two');
start($one, 'TRUNCATE wide');
like(answer($one), qr/ERROR:  55\w{3}: .*cannot truncate table "wide"/, 'the first statement of a session is TRUNCATE: refused');
start($two, 'DELETE FROM wide');
like(answer($two), qr/ERROR:  LK006: .*\"wide:1\.2\.3\.4\.5:1\"/, 'a key of eleven pieces guards');
is(ask($two, q{SET atomic_lock.owner = 'me'; SELECT status FROM lock_acquire('wide:1.2.3.4.5:1', '1 hour'); DELETE FROM wide; SELECT count(*) FROM wide}),
	"acquired\n0", '... and the owner may delete the row');
ask($two, 'RESET atomic_lock.owner');

# A commit that need not be flushed for its release, but writes more after our callback:
# it locks a table to empty it.
ask($one, 'CREATE TEMPORARY TABLE emptied (id int) ON COMMIT DELETE ROWS');
ask($one, q{SELECT lock_acquire('done', '1 hour', 'me')});
my $lsn = ask($one, q{BEGIN; INSERT INTO emptied SELECT lock_release('done', 'me')::int; SELECT pg_current_wal_insert_lsn()});
is(ask($one, "COMMIT; SELECT pg_current_wal_flush_lsn() > '$lsn'"), 't', 'a commit that writes more after a release is flushed');

# Owners that look like generated ones
my $made = ask($one, q{SELECT owner FROM lock_acquire('made', '1 hour')});
foreach my $owner (
	$made,
	$made =~ s/.$/g/r,
	$made =~ s/-/0/r,
	$made =~ s/^./x/r,
	uc $made,
	'00000000-0000-4000-8000-000000000000')
{
	ask($one, "SELECT lock_acquire('first $owner', '1 hour', '$owner'), lock_acquire('second $owner', '1 hour', '$owner')");
	is(ask($one, "SELECT lock_release_all('$owner')"), $owner eq $made ? '3' : '2', "all locks of an owner are released: $owner");
}

# The row of a pinned share moves.
foreach my $level ('READ COMMITTED', 'REPEATABLE READ')
{
	ask($one, qq{SELECT lock_acquire('shared', '1 hour', o, mode => 'shared') FROM unnest('{first,second}'::text[]) o; SELECT lock_acquire('other', '1 hour', 'first')});
	my $token = ask($one, "BEGIN ISOLATION LEVEL $level; SELECT lock_assert('shared', 'second')");
	ask($two, q{SELECT lock_extend('shared', 'second', '2 hours')}) for (1 .. 3);
	ask($watch, 'VACUUM app_lock');
	is(ask($one, q{SELECT lock_release('other', 'first'); SELECT lock_assert('shared', 'second')}), "t\n$token", "a pinned row has moved: it is found, $level");
	start($one, q{SELECT lock_release('shared', 'second'); SELECT lock_assert('shared', 'second')});
	like(answer($one), qr/ERROR:  LK006: .*"shared"/, '... but not after its release');
	ask($one, 'ROLLBACK');
	is(ask($one, q{SELECT lock_release_all('first'), lock_release_all('second')}), '2|1', '... whose rollback restores it');
}
# The table is replaced while a session waits to open it.
ask($one, q{SELECT lock_acquire('found', '1 hour', 'one')});
ask($two, 'BEGIN; DROP EXTENSION atomic_lock CASCADE; CREATE EXTENSION atomic_lock');
start($one, q{SELECT lock_holder('found') IS NULL});
poll($watch, 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND pid = ' . pid($one));
ask($two, 'COMMIT');
is(answer($one), 't', 'a session that waits for the table while it is created anew looks into the new one');
end($watch, $one, $two);

#
# After another preloaded library, if it is installed
#
my $lib = qx(pg_config --pkglibdir);
chomp $lib;
my @before = grep { -e "$lib/$_.so" } 'pg_stat_statements';
$node->append_conf('postgresql.conf', "shared_preload_libraries = '" . join(',', @before, 'atomic_lock') . "'\nmax_connections = 50\n");
$node->restart;
my @sessions = map { session($node, "S$_") } (0 .. 9);
($watch, $one, $two) = map { session($node, $_) } ('Watch', 'One', 'Two');
SKIP:
{
	skip 'pg_stat_statements is not installed', 2 unless @before;

	ask($watch, 'CREATE EXTENSION pg_stat_statements; SELECT pg_stat_statements_reset()');
	ask($one, q{SELECT lock_acquire('gone', lifetime => 'session'); DISCARD ALL});
	is(ask($watch, q{SELECT sum(calls) FROM pg_stat_statements WHERE query = 'DISCARD ALL'}), '1', 'the library before ours has its shared memory and its hooks');
	is(ask($watch, q{SELECT lock_holder('gone') IS NULL, count(*) FROM lock_waiters()}), 't|0', '... and atomic_lock has its own');
}

# Several holdings of another session's transaction
ask($one, q{BEGIN; SELECT lock_acquire('of-one-' || i, lifetime => 'transaction') FROM generate_series(1, 3) i});
is(ask($two, q{SELECT lock_holder('of-one-3') IS NULL, status FROM lock_try_acquire('of-one-2')}), 'f|held', 'one of several locks of a transaction is visible to others');
ask($one, 'ROLLBACK');
is(ask($two, q{SELECT lock_holder('of-one-3') IS NULL, status FROM lock_try_acquire('of-one-2', '1 hour', 'two')}), 't|acquired', '... until it ends');

#
# Cycles, and graphs without a cycle
#
my $soon = q{SET deadlock_timeout = '50 ms';};
ask($sessions[$_], "SELECT lock_acquire('key-$_', '1 hour', 'owner-$_')") for (0 .. 9);
queue_up($watch, $sessions[$_], "SELECT status FROM lock_try_acquire('key-@{[$_ + 1]}', '1 hour', 'owner-$_', wait => '5 min')") for (0 .. 8);
start($sessions[9], "$soon SELECT status FROM lock_try_acquire('key-0', '1 hour', 'owner-9', wait => '5 min')");
is(answer($sessions[9]), 'deadlock', 'a cycle of ten waiters has a victim');
for my $i (reverse 0 .. 8)
{
	ask($sessions[ $i + 1 ], "SELECT lock_release_all('owner-@{[$i + 1]}')");
	is(answer($sessions[$i]), 'acquired', "... waiter $i gets its key");
}
ask($sessions[0], q{SELECT lock_release_all('owner-0')});

ask($sessions[0], q{SELECT lock_acquire('end-1', '1 hour', 'owner-0'), lock_acquire('end-2', '1 hour', 'owner-0')});
for my $i (1, 2)
{
	ask($sessions[$i], "SELECT lock_acquire('middle', '1 hour', 'owner-$i', mode => 'shared')");
	queue_up($watch, $sessions[$i], "SELECT status FROM lock_try_acquire('end-$i', '1 hour', 'owner-$i', wait => '5 min')");
}
ask($sessions[3], q{SELECT lock_acquire('begin', '1 hour', 'owner-3')});
ask($sessions[4], q{SELECT lock_acquire('aside', '1 hour', 'owner-4')});
queue_up($watch, $sessions[0], q{SELECT status FROM lock_try_acquire('aside', '1 hour', 'owner-0', wait => '5 min')});
start($sessions[3], "$soon SELECT status FROM lock_try_acquire('middle', '1 hour', 'owner-3', wait => '300 ms')");
is(answer($sessions[3]), 'timeout', 'two ways to the same process are no cycle');
ask($sessions[4], q{SELECT lock_release_all('owner-4')});
is(answer($sessions[0]), 'acquired', '... that process gets its key');
ask($sessions[0], q{SELECT lock_release_all('owner-0')});
is(join(' ', map { answer($sessions[$_]) } 1, 2), 'acquired acquired', '... and so do the other waiters');

start($one, qq{$soon BEGIN; SELECT lock_acquire('own', owner => 'a', lifetime => 'transaction') IS NULL; SELECT status FROM lock_acquire('own', '1 hour', 'b', wait => '5 min')});
like(answer($one), qr/ERROR:  40P01: /, 'a waiter for its own transaction is refused');
ask($one, 'ROLLBACK');

#
# Sessions that cannot clear their rows at their end
#
my $since = ask($watch, 'SELECT clock_timestamp()');
ask($one, q{SELECT lock_acquire('orphan', owner => 'gone', lifetime => 'session')});
ask($two, 'BEGIN; LOCK TABLE app_lock IN ACCESS EXCLUSIVE MODE');
my $pid = pid($one);
$one->quit;
gone($watch, $pid);
ask($two, 'ROLLBACK');

# Another transaction is sharing the key, so a session cannot know whether its share is the last one.
ask($two, q{BEGIN; SELECT lock_acquire('crowd', '1 hour', 'open', mode => 'shared')});
$node->safe_psql('postgres', qq{SELECT status FROM lock_acquire('crowd', mode => 'shared', lifetime => 'session')\n;\n\\c\n} x 150);
poll($watch, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = '$ENV{PGAPPNAME}'");
ask($two, 'COMMIT');
my $known = ask($watch, 'SELECT clock_timestamp()');
is(ask($watch, q{SELECT status FROM lock_try_acquire('crowd')}), 'held', 'of many sharers the one that did not end is left');
is(ask($watch, q{SELECT lock_release('crowd', 'open'); SELECT status FROM lock_try_acquire('crowd')}), "t\nacquired", '... and no other');

is(ask($watch, q{SET atomic_lock.lock_delay = '1h'; SELECT status FROM lock_try_acquire('orphan')}), 'held', 'a session before them could not clear its row: the key is closed');
is(ask($watch, qq{SELECT closed_until - interval '1 hour' BETWEEN '$since' AND '$known' FROM lock_status('orphan')}), 't', '... for lock_delay after its end, which is still known');

end($watch, $two, @sessions);
$node->stop;
log_is_clean($node);

done_testing();
