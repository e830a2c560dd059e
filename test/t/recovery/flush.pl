# The state after a crash: grants survive, releases may be lost, and nothing else is lost.
#
# Properties: the commit of a grant or extension, or of a ticket, is flushed
# before the client gets the answer, whatever synchronous_commit says and however the
# function was called; a transaction that only releases is not flushed, even
# if that offers the key to the next in line; a transaction that
# writes anything else is flushed, in whatever order; the session's own
# synchronous_commit is restored afterwards.
#
# Turns red when: no flush is forced; it is forced through SET LOCAL (undone
# by a function's SET clause or a subtransaction); a release makes a
# transaction asynchronous although it wrote more, before or after; the
# changed level leaks into the next transaction; the table is unlogged.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('crash');
$node->init;

# No other process writes or flushes WAL during a case.
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
wal_level = minimal
max_wal_senders = 0
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
synchronous_commit = on
});
$node->start;
my $is_wal_writer = q{FROM pg_stat_activity WHERE backend_type = 'walwriter'};
$node->poll_query_until('postgres', "SELECT count(*) = 1 $is_wal_writer") or die 'no WAL writer';
my $wal_writer = $node->safe_psql('postgres', "SELECT pid $is_wal_writer");
kill 'STOP', $wal_writer;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION atomic_lock;
CREATE TABLE data (id int);
CREATE TABLE baseline (id int);
CREATE SEQUENCE numbers;

-- Has all WAL been flushed?  If the last record ends a
-- page, the next one will be inserted behind the header of the next page.
CREATE FUNCTION flushed() RETURNS boolean LANGUAGE sql AS $$
	SELECT i = f OR (i - f IN (24, 40) AND (i - '0/0') % 8192 = i - f)
	FROM (SELECT pg_current_wal_insert_lsn() AS i, pg_current_wal_flush_lsn() AS f) s
$$;

CREATE FUNCTION acquire_with_path(k text) RETURNS boolean LANGUAGE plpgsql
	SET search_path = public, pg_temp AS $$
BEGIN
	RETURN acquired FROM lock_acquire(k, '1 hour', 'me');
END $$;

CREATE FUNCTION acquire_with_off(k text) RETURNS boolean LANGUAGE plpgsql
	SET synchronous_commit = off AS $$
BEGIN
	RETURN acquired FROM lock_acquire(k, '1 hour', 'me');
END $$;

CREATE FUNCTION acquire_in_block(k text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	got boolean;
BEGIN
	BEGIN
		got := acquired FROM lock_acquire(k, '1 hour', 'me');
	EXCEPTION WHEN division_by_zero THEN
		got := false;
	END;
	RETURN got;
END $$;

CREATE PROCEDURE acquire_and_commit(k text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lock_acquire(k, '1 hour', 'me');
	COMMIT;
END $$;

-- a trigger that writes when the transaction commits, fired from a table
-- that writes no WAL itself
CREATE FUNCTION late_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO data VALUES (-1);
	RETURN NULL;
END $$;
CREATE UNLOGGED TABLE unlogged (id int);
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON unlogged
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late_write();
});

is( $node->safe_psql(
		'postgres', q{
SELECT string_agg(DISTINCT relpersistence::text, '') FROM pg_class c
	JOIN pg_depend d ON d.refobjid = 'app_lock'::regclass AND d.objid = c.oid AND d.classid = 'pg_class'::regclass
	   OR c.oid IN ('app_lock'::regclass, 'app_lock_fence'::regclass, 'lock_audit'::regclass)}),
	'p', 'table, indexes, sequence and audit trail are logged');

my $session = $node->background_psql('postgres', on_error_stop => 0);
my $other = $node->background_psql('postgres', on_error_stop => 0);
ask($session, "SET client_min_messages = error");

# Flush everything that was written so far.
sub baseline
{
	ask($other, "INSERT INTO baseline VALUES (1)");
	return;
}

# Run one list of statements to prepare, another to test, and return
# whether the commit of the latter was flushed.
sub flushed_after
{
	my ($prepare, $sql) = @_;

	ask($session, $prepare) if $prepare;
	baseline();
	ask($session, $sql);
	return ask($session, 'SELECT flushed()');
}

#
# Grants, in a session with synchronous_commit = off
#
ask($session, 'SET synchronous_commit = off');
is(flushed_after('', 'INSERT INTO data VALUES (0)'),
	'f', 'control: the session does not flush by itself');

my @grants = (
	[ 'plain', q{SELECT lock_acquire('plain', '1 hour', 'me')} ],
	[ 'try', q{SELECT lock_try_acquire('try', '1 hour', 'me')} ],
	[ 'generated', q{SELECT lock_acquire('generated', '1 hour')} ],
	[ 'block', q{BEGIN; SELECT lock_acquire('block', '1 hour', 'me'); COMMIT} ],
	[ 'local', q{BEGIN; SELECT lock_acquire('local', '1 hour', 'me'); SET LOCAL synchronous_commit = off; COMMIT} ],
	[ 'savepoint', q{BEGIN; SAVEPOINT s; SELECT lock_acquire('savepoint', '1 hour', 'me'); RELEASE s; COMMIT} ],
	[ 'undone', q{BEGIN; SELECT lock_acquire('undone', '1 hour', 'me'); SAVEPOINT s; SELECT lock_acquire('x'); ROLLBACK TO s; COMMIT} ],
	[ 'path', q{SELECT acquire_with_path('path')} ],
	[ 'off', q{SELECT acquire_with_off('off')} ],
	[ 'exception', q{SELECT acquire_in_block('exception')} ],
	[ 'procedure', q{CALL acquire_and_commit('procedure')} ],
	[ 'before', q{BEGIN; SELECT lock_acquire('before', '1 hour', 'me'); SELECT lock_release('spare', 'me'); COMMIT},
		q{SELECT lock_acquire('spare', '1 hour', 'me')} ],
	[ 'after', q{BEGIN; SELECT lock_release('spare', 'me'); SELECT lock_acquire('after', '1 hour', 'me'); COMMIT},
		q{SELECT lock_acquire('spare', '1 hour', 'me')} ],
	[ 'stolen', q{SELECT lock_steal('stolen', 'me', 'test', '1 hour')} ]);
foreach my $grant (@grants)
{
	my ($key, $sql, $prepare) = @$grant;
	is(flushed_after($prepare, $sql), 't', "grant is flushed: $key");
}
is(flushed_after('', q{SELECT lock_extend('plain', 'me', '2 hours')}),
	't', 'extension is flushed');
is(flushed_after('', q{SELECT lock_extend_all('me', '2 hours')}),
	't', 'extension of all is flushed');
is(flushed_after('', q{SELECT lock_acquire('plain', '3 hours', 'me')}),
	't', 'acquiring again is flushed');
is(flushed_after('', q{SELECT lock_enqueue('plain', 'next')}),
	't', 'a ticket is flushed');
is(flushed_after('', q{SELECT lock_enqueue('plain', 'next', keep => '2 hours')}),
	't', 'its renewal is flushed');
is(ask($session, 'SHOW synchronous_commit'),
	'off', 'the session has its synchronous_commit back');
is(flushed_after('', 'INSERT INTO data VALUES (0)'),
	'f', '... and follows it');

# A commit that fails after the level was raised: two transactions with a
# serialization conflict
ask($session, 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM data');
ask($other, 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM baseline; INSERT INTO data VALUES (9)');
ask($session, q{SELECT lock_acquire('skew', '1 hour', 'me'); INSERT INTO baseline VALUES (9)});
ask($other, 'COMMIT');
$session->query('COMMIT');
like($session->{stderr}, qr/ERROR:  could not serialize access/, 'the commit of a grant fails');
$session->{stderr} = '';
is(ask($session, 'SHOW synchronous_commit'), 'off', '... synchronous_commit is unchanged');
is(ask($session, q{SELECT lock_holder('skew') IS NULL}), 't', '... the key is not held');
is(flushed_after('', 'INSERT INTO data VALUES (0)'), 'f', '... the next commit is not flushed');

ask($session, q{SET atomic_lock.acquire_durability = session});
is(flushed_after('', q{SELECT lock_release('spare', 'me') FROM lock_acquire('spare', '1 hour', 'me')}),
	'f', 'acquire_durability = session follows synchronous_commit');
ask($session, q{RESET atomic_lock.acquire_durability});

#
# Releases, in a session with synchronous_commit = on
#
ask($session, 'SET synchronous_commit = on');
my $hold = q{SELECT lock_acquire('k1', '1 hour', 'rel'), lock_acquire('k2', '1 hour', 'rel')};
my $release = q{SELECT lock_release('k1', 'rel')};

my @releases = (
	[ 'alone', $release ],
	[ 'in a block', "BEGIN; $release; COMMIT" ],
	[ 'two', "BEGIN; $release; SELECT lock_try_release('k2', 'rel'); COMMIT" ],
	[ 'all', q{SELECT lock_release_all('rel')} ]);
# The first call of a function may prune pages of the catalog, which
# adds WAL to the transaction.
ask($session, "$hold; $_->[1]") for @releases;
foreach my $case (@releases)
{
	my ($name, $sql) = @$case;
	is(flushed_after($hold, $sql), 'f', "release is not flushed: $name");
}
is(flushed_after("$hold; SELECT lock_enqueue('k1', 'next')", $release),
	'f', '... nor is one that offers the key to the next in line');
ask($session, q{SELECT lock_leave('k1', 'next')});
is(ask($session, 'SHOW synchronous_commit'),
	'on', 'the session has its synchronous_commit back');
is(flushed_after($hold, "$release; INSERT INTO data VALUES (0)"),
	't', '... and the next transaction follows it');
is(flushed_after($hold, "BEGIN; $release; ROLLBACK; INSERT INTO data VALUES (0)"),
	't', '... also after a rollback');

my $insert = 'INSERT INTO data VALUES (1)';
my @mixed = (
	[ 'insert, release', "$insert; $release" ],
	[ 'release, insert', "$release; $insert" ],
	[ 'release, insert, release', "$release; $insert; SELECT lock_release('k2', 'rel')" ],
	[ 'release, savepoint, insert', "$release; SAVEPOINT s; $insert; RELEASE s" ],
	[ 'savepoint, insert, release savepoint, release', "SAVEPOINT s; $insert; RELEASE s; $release" ],
	[ 'savepoint, release, release savepoint, insert', "SAVEPOINT s; $release; RELEASE s; $insert" ],
	[ 'insert, release undone, release', "$insert; SAVEPOINT s; $release; ROLLBACK TO s; $release" ],
	[ 'release undone, insert', "SAVEPOINT s; $release; ROLLBACK TO s; $insert; $release" ],
	[ 'create table, release', "CREATE TABLE made (id int); $release" ],
	[ 'release, create table', "$release; CREATE TABLE made (id int)" ],
	[ 'release, drop table', "$release; DROP TABLE made" ],
	[ 'release, comment', "$release; COMMENT ON TABLE data IS 'x'" ],
	[ 'sequence, release', "SELECT setval('numbers', 1); SELECT nextval('numbers'); $release" ],
	[ 'release, sequence', "$release; SELECT setval('numbers', 1)" ],
	[ 'release, message', "$release; SELECT pg_logical_emit_message(true, 'a', 'b')" ],
	[ 'message, release', "SELECT pg_logical_emit_message(true, 'a', 'b'); $release" ],
	[ 'release, deferred trigger', "$release; INSERT INTO unlogged VALUES (1)" ],
	[ 'deferred trigger, release', "INSERT INTO unlogged VALUES (1); $release" ],
	[ 'force_release and audit, release', "SELECT force_release('k2', 'test'); $release" ],
	[ 'release, force_release and audit', "$release; SELECT force_release('k2', 'test')" ],
	[ 'release, grant', "$release; SELECT lock_acquire('k1', '1 hour', 'rel')" ],
	[ 'release, extension', "$release; SELECT lock_extend('k2', 'rel')" ],
	[ 'extension, release', "SELECT lock_extend('k2', 'rel'); $release" ]);
foreach my $case (@mixed)
{
	my ($name, $sql) = @$case;
	my $prepare = $hold;

	$prepare .= '; DROP TABLE IF EXISTS made' if $name =~ /create table/;
	is(flushed_after($prepare, "BEGIN; $sql; COMMIT"),
		't', "a release with other writes is flushed: $name");
}

ask($session, 'SET atomic_lock.release_durability = session');
is(flushed_after($hold, $release), 't', 'release_durability = session flushes');
ask($session, 'RESET atomic_lock.release_durability');

#
# The crash itself
#
ask($session, 'SET synchronous_commit = off');
ask($session, q{SELECT acquire_with_off('last')});
my $held = q{SELECT string_agg(key || '=' || fencing_token || '@' || extract(epoch FROM expires_at), ' ' ORDER BY key)
	FROM lock_status() WHERE key NOT IN ('k1', 'k2', 'spare')};
my $line = q{SELECT holder, expires_at, ticket FROM lock_queue WHERE key = 'plain' ORDER BY place};
ask($session, q{SELECT lock_enqueue('plain', 'last', 'Last')});
my ($before, $line_before) = (ask($session, $held), ask($session, $line));
kill 'CONT', $wal_writer;
$node->stop('immediate');
$session->quit;
$other->quit;
$node->start;

is($node->safe_psql('postgres', $held), $before, 'all leases survive, with their tokens and times');
like($before, qr/\blast=/, '... also the last lease');
is($node->safe_psql('postgres', $line), $line_before, '... and all tickets');
like($line_before, qr/\nLast\|/, '... also the last ticket');
is( $node->safe_psql(
		'postgres', 'SELECT count(*) FROM lock_status() WHERE key IN ('
		  . join(', ', map { "'$_->[0]'" } @grants) . ')'),
	scalar(@grants), '... no lease is missing');
is( $node->safe_psql('postgres', q{SELECT status FROM lock_try_acquire('last')}),
	'held', '... and another owner is refused');
is( $node->safe_psql('postgres', q{SELECT lock_release('last', 'me')}),
	't', '... until its owner releases it');

$node->stop;
done_testing();
