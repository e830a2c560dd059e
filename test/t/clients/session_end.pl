# sql/compat/session_end.sql, for sessions that are deleted while their requests still write.
#
# Properties: a DELETE of sessions waits neither for a transaction that relies on a lock of
# such a session, extends, releases, hands over or has acquired one, prepared transactions included, nor
# for a transaction that keeps all others from writing; the DELETE releases at once the locks that
# are not in use.  session_end_rest() releases the others after that transaction has ended, not
# before.  Two calls that clean up at the same time do not wait for each other.  An UPDATE of
# the id does not wait, either: locks in use stay with the former id, and all others
# are handed over.  In databases of other encodings, no id keeps the locks of other sessions.
#
# Turns red when: a DELETE, an UPDATE or session_end_rest() waits; a lock that is not in
# use stays because another is in use; a lock that is in use is forgotten; the digest of an id is
# not that of its bytes in SQL_ASCII, or an id that has none stops the trigger.
use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('session_end');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nmax_prepared_transactions = 5\n");
# Vacuum locks the table for a moment to truncate it, and then the trigger leaves all locks for later.
$node->append_conf('postgresql.conf', "autovacuum = off\n");
$node->start;
$node->safe_psql('postgres', q{CREATE EXTENSION atomic_lock; CREATE TABLE sessions (id text PRIMARY KEY);
	CREATE ROLE app_locks; SELECT lock_grant_access('app_locks', 'user');
	GRANT CREATE ON SCHEMA public TO app_locks; GRANT TRIGGER ON sessions TO app_locks});
my ($sharedir) = run_command([ 'pg_config', '--sharedir' ]);
my @script = ('psql', '-XAtq', '-d', $node->connstr('postgres'), '-v', 'table=public.sessions', '-v', 'digest=off',
	'-f', "$sharedir/extension/atomic_lock/session_end.sql");
$node->command_fails_like(\@script, qr/ERROR:  role "\S+" is a superuser/, 'the script, by a superuser');
{
	local $ENV{PGOPTIONS} = '-c role=app_locks';
	$node->command_ok(\@script, 'the script');
}

my ($writer, $clearer, $other) = map { session($node, $_) } ('Writer', 'Clearer', 'Other');

# If one of these sessions waits, its statement is cancelled and the test fails.
ask($_, "SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'") for $clearer, $other;

my $held = q{SELECT coalesce(string_agg(key, ' ' ORDER BY key), '-') FROM lock_status() WHERE locked};
my $rest = 'CALL session_end_rest()';

sub begin_day
{
	ask($writer, q{INSERT INTO sessions VALUES ('A'), ('B')});
	is(ask($writer, q{SELECT count(*) FROM lock_acquire_all('{a,b}', '1 hour', 'A'), lock_acquire('c', '1 hour', 'B')}),
		2, 'two sessions have locks');
	return;
}

# The action of a request of session A, its SQL, the keys that are held meanwhile, and those that are held
# after the request has ended and the rest is released
my @busy = (
	[ 'relies on a lock', q{SELECT lock_assert('a', 'A')}, 'a', '-' ],
	[ 'extends a lock', q{SELECT lock_extend('a', 'A')}, 'a', '-' ],
	[ 'releases a lock', q{SELECT lock_release('a', 'A')}, 'a', '-' ],
	[ 'hands a lock over', q{SELECT lock_transfer('a', 'A', 'job')}, 'a', 'a' ],
	[ 'converts a lock', q{SELECT lock_convert('a', 'A', 'shared')}, 'a', '-' ],
	[ 'takes another lock', q{SELECT lock_acquire('n', '1 hour', 'A')}, '-', 'n' ],
	[ 'has a lock until it ends', q{SELECT lock_acquire('n', owner => 'A', lifetime => 'transaction')}, 'n', '-' ]);

foreach my $case (@busy)
{
	my ($name, $sql, $meanwhile, $afterwards) = @$case;

	# The session gets a new id, and the locks that are not in use go with it.
	begin_day();
	ask($writer, "BEGIN; $sql");
	is(told($clearer, q{UPDATE sessions SET id = 'A2' WHERE id = 'A' RETURNING id}), 'A2', "a request $name: its session gets a new id");
	is(ask($other, q{SELECT string_agg(key, ' ' ORDER BY key) FROM lock_held('A2')}), $meanwhile eq 'a' ? 'b' : 'a b',
		'the locks that are not in use go with it');
	ask($writer, q{ROLLBACK; SELECT lock_release_all(o) FROM unnest('{A,A2,B}'::text[]) o; DELETE FROM sessions});

	begin_day();
	ask($writer, "BEGIN; $sql");
	is(told($clearer, q{DELETE FROM sessions RETURNING id}), "A\nB", "a request $name: its session is deleted");
	is(ask($other, $held), $meanwhile, 'the locks that are not in use are free');
	is(told($clearer, $rest), '', 'session_end_rest does not wait');
	is(ask($other, $held), $meanwhile, 'the lock in use is held');
	ask($writer, 'COMMIT');
	is(told($clearer, $rest), '', 'the request ends, and session_end_rest runs again');
	is(ask($other, $held), $afterwards, $afterwards eq '-' ? 'no lock is held' : 'the lock that it acquired meanwhile is held');
	ask($writer, q{SELECT lock_release_all('A'), lock_release_all('job')});
	is(ask($other, 'SELECT count(*) FROM session_end_later'), 0, 'no session is left for later');
}

# Prepared transactions
begin_day();
ask($writer, q{BEGIN; SELECT lock_assert('a', 'A'); PREPARE TRANSACTION 'request'});
is(told($clearer, 'DELETE FROM sessions RETURNING id'), "A\nB", 'a prepared transaction uses a lock');
is(ask($other, $held), 'a', 'the locks that are not in use are free');
ask($writer, q{COMMIT PREPARED 'request'});
is(told($clearer, $rest), '', 'session_end_rest');
is(ask($other, $held), '-', 'no lock is held');

# A transaction keeps all others from writing, as CREATE INDEX does.
begin_day();
ask($writer, 'BEGIN; LOCK TABLE app_lock IN SHARE MODE');
is(told($clearer, q{UPDATE sessions SET id = 'A2' WHERE id = 'A' RETURNING id}), 'A2', 'no session can write to app_lock: a web session gets a new id');
is(told($clearer, q{UPDATE sessions SET id = 'A' WHERE id = 'A2' RETURNING id}), 'A', '... and its old id again');
is(told($clearer, 'DELETE FROM sessions'), '', '... and sessions are deleted');
is(told($clearer, $rest), '', 'session_end_rest does not wait');
is(ask($other, $held), 'a b c', 'all locks are held');
ask($writer, 'COMMIT');
is(told($clearer, $rest), '', 'session_end_rest');
is(ask($other, $held), '-', 'no lock is held');

# Two sessions clean up, and one of them has not committed.
begin_day();
ask($writer, q{BEGIN; SELECT lock_assert('a', 'A')});
ask($clearer, 'DELETE FROM sessions');
ask($writer, 'COMMIT');
ask($writer, q{BEGIN; SELECT session_end_some()});
is(ask($clearer, 'SELECT session_end_some()'), 0, 'another session skips the row that is being cleaned up');
is(told($clearer, q{INSERT INTO sessions VALUES ('A'); DELETE FROM sessions RETURNING id}), 'A', 'the session comes and goes again');
ask($writer, 'ROLLBACK');
is(told($clearer, $rest), '', 'session_end_rest');
is(ask($other, $held), '-', 'no lock is held');
is(ask($other, 'SELECT count(*) FROM session_end_later'), 0, 'no session is left for later');

# Ids that are not UTF-8, or that have no equivalent in UTF-8
foreach my $case ([ 'SQL_ASCII', 'ff', '-', '' ], [ 'EUC_JP', 'a9a1', 'c', 'locks of sessions that have ended stay until they run out: character' ])
{
	my ($encoding, $hex, $left, $warning) = @$case;
	my $id = "convert_from('\\x$hex', '$encoding')";
	my $err;

	$node->safe_psql('postgres', "CREATE DATABASE \L$encoding\E TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql(lc $encoding, q{CREATE EXTENSION atomic_lock; CREATE TABLE sessions (id text PRIMARY KEY);
		SELECT lock_grant_access('app_locks', 'user');
		GRANT CREATE ON SCHEMA public TO app_locks; GRANT TRIGGER ON sessions TO app_locks});
	{
		local $ENV{PGOPTIONS} = '-c role=app_locks';
		$node->command_ok([ 'psql', '-XAtq', '-d', $node->connstr(lc $encoding), '-v', 'table=public.sessions', '-f', $script[-1] ], "$encoding: the script");
	}
	$node->safe_psql(lc $encoding, qq{INSERT INTO sessions VALUES ('1'), ($id), ('3');
		SELECT lock_acquire(k, owner => encode(sha256(s::bytea), 'hex')) FROM (VALUES ('a', '1'), ('b', '3'), ('c', '\\x$hex')) v (k, s)});
	$node->psql(lc $encoding, 'DELETE FROM sessions', stderr => \$err);
	like($err, $warning ? qr/WARNING:  \Q$warning\E/ : qr/^$/, "$encoding: sessions are deleted");
	is($node->safe_psql(lc $encoding, $held), $left, '... and their locks are free');
}

end($writer, $clearer, $other);
log_is_clean($node);
$node->stop;
done_testing();
