# lock_forrst() of sql/compat/forrst.sql in several sessions.
#
# Properties: while a registered function runs, other sessions learn that the lock is held,
# and no answer names the owner: status, calls with and without block, release by the owner
# and by another owner, force-release; a waiter gets the lock when the call before it has
# been committed, so that no increment of an unprotected counter is lost; a cancel and a
# lock_timeout of a waiting call are raised, also in the function, and leave no lock, no
# waiter and no write; a serialization failure is raised, and the repeated call succeeds.
#
# Turns red when: the lock is a lease that others see as free until it is committed; status
# sees only committed locks; the lock ends before the transaction; errors are caught
# by their class and not by their meaning.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('forrst');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nautovacuum = off\nfsync = off\n");
$node->start;

$node->safe_psql('postgres', 'CREATE SCHEMA locks; CREATE EXTENSION atomic_lock SCHEMA locks');
is(compat_script($node, 'postgres', 'forrst', 'schema=api'), '', 'the script');
$node->safe_psql('postgres', q{
ALTER DATABASE postgres SET search_path = public, locks;
CREATE TABLE counter (n int);
INSERT INTO counter VALUES (0);
-- Reads, waits for the gate, writes: an increment that is lost without a lock
CREATE FUNCTION increment(arguments jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	before	int := (SELECT n FROM counter);
BEGIN
	PERFORM pg_advisory_xact_lock_shared(1) WHERE arguments ? 'gate';
	UPDATE counter SET n = before + 1;
	RETURN before + 1;
END
$$;
INSERT INTO api.forrst_function VALUES ('count', 'public.increment(jsonb)');
-- The result of a request, or the code of its error and the message
CREATE FUNCTION ask(function text, arguments text, options text DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	jsonb := api.lock_forrst(jsonb_strip_nulls(jsonb_build_object('protocol', '{"name": "forrst", "version": "0.1.0"}'::jsonb, 'id', 'req',
		'call', jsonb_build_object('function', function, 'arguments', arguments::jsonb),
		'extensions', CASE WHEN options IS NOT NULL THEN jsonb_build_array(jsonb_build_object('urn', 'urn:forrst:ext:atomicLock',
			'options', '{"key": "k", "ttl": {"value": 1, "unit": "hour"}, "scope": "global"}' || options::jsonb)) END)));
BEGIN
	RETURN coalesce(concat_ws(': ', answer->'errors'->0->>'code', answer->'errors'->0->>'message'), '') || coalesce(nullif(answer->'result', 'null')::text, '');
END
$$;
});
my $fn = 'urn:cline:forrst:ext:atomic-lock:fn';
my $held = 'LOCK_ACQUISITION_FAILED: Unable to acquire lock';

my ($gate, $caller, $other, $watch) = map { session($node, $_) } qw(gate caller other watch);

# Is a session waiting for the gate?
sub in_function
{
	my ($session) = @_;
	return poll($watch, 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = ' . "'advisory' AND objsubid = 1 AND pid = " . pid($session));
}

sub nothing_left
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(ask($watch, q{SELECT locked, pending, coalesce(waiters, 0) FROM lock_status('lock:k')}), 'f|f|0', "$what: no lock and no waiter is left");
}

#
# While the function runs
#
foreach my $releases ('true', 'false')
{
	my $name = "auto_release $releases";

	ask($watch, 'UPDATE counter SET n = 0');
	ask($gate, 'SELECT pg_advisory_lock(1)');
	start($caller, qq{SELECT ask('count', '{"gate": 1}', '{"owner": "secret", "auto_release": $releases}')});
	in_function($caller);
	my $status = reply($other, qq{SELECT ask('$fn:status', '{"key": "lock:k"}')});
	like($status, qr/"locked": true/, "$name: status says that the key is locked");
	like($status, qr/"acquired_at": "\d{4}-/, '... since when');
	unlike($status, qr/secret/, '... and does not name the owner');
	is(reply($other, q{SELECT ask('count', '{}', '{}')}), $held, '... a call is refused');
	is(reply($other, q{SELECT ask('count', '{}', '{"block": {"value": 1, "unit": "millisecond"}}')}),
		'LOCK_TIMEOUT: Lock acquisition timed out after 1 millisecond', '... or times out');
	is( reply($other, qq{SELECT ask('$fn:force-release', '{"key": "lock:k"}')}),
		'LOCK_ACQUISITION_FAILED: Lock is held by a call in progress', '... force-release says why it is refused');
	is( reply($other, qq{SELECT ask('$fn:release', '{"key": "lock:k", "owner": "guess"}')}),
		'LOCK_OWNERSHIP_MISMATCH: Lock is owned by a different process', '... release by another owner is refused');
	my $releaser = session($node, 'releaser');
	start($releaser, qq{SELECT ask('$fn:release', '{"key": "lock:k", "owner": "secret"}')});
	queue_up($watch, $other, q{SELECT ask('count', '{}', '{"block": {"value": 4, "unit": "minute"}}')});
	poll($watch, 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND pid = ' . pid($releaser));
	ask($gate, 'SELECT pg_advisory_unlock(1)');
	is(answer($caller), '1', '... the function continues');
	# With auto_release this release comes too late, and the waiter may already have the lock.
	like(answer($releaser), $releases eq 'true' ? qr/^LOCK_(NOT_FOUND|OWNERSHIP_MISMATCH): / : qr/^{"key": "lock:k", "released": true}$/,
		'... release by its owner waits for the function');
	is(answer($other), '2', '... and then the waiter has the lock, and sees the write');
	nothing_left($name);
	end($releaser);
}

#
# Cancels and timeouts
#
my $before = ask($watch, 'SELECT n FROM counter');
ask($gate, 'SELECT pg_advisory_lock(1)');
start($caller, q{SELECT ask('count', '{"gate": 1}', '{}')});
in_function($caller);
queue_up($watch, $other, q{SELECT ask('count', '{}', '{"block": {"value": 4, "unit": "minute"}}')});
ask($watch, 'SELECT pg_cancel_backend(' . pid($other) . ')');
like(answer($other), qr/^ERROR:  57014:/, 'a cancel of a waiting call');
ask($watch, 'SELECT pg_cancel_backend(' . pid($caller) . ')');
like(answer($caller), qr/^ERROR:  57014:/, 'a cancel in the function');
nothing_left('cancelled');
start($caller, q{BEGIN; SET LOCAL statement_timeout = '100ms'; SELECT ask('count', '{"gate": 1}', '{"auto_release": false}')});
like(answer($caller), qr/^ERROR:  57014:/, 'a timeout in the function');
is(told($caller, 'COMMIT'), '', '... ends the transaction');
nothing_left('timed out');
ask($gate, 'SELECT pg_advisory_unlock(1)');
is(ask($watch, 'SELECT n FROM counter'), $before, '... and nothing was written');

#
# Serialization failures
#
ask($caller, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT n FROM counter');
my $there = reply($other, q{SELECT ask('count', '{}', '{}')});
is(told($caller, q{SELECT ask('count', '{}', '{}')}), '40001', 'a serialization failure is raised');
ask($caller, 'ROLLBACK');
is(reply($caller, q{SELECT ask('count', '{}', '{}')}), $there + 1, '... and the repeated call succeeds');
end($gate, $caller, $other, $watch);

#
# No increment is lost
#
$node->safe_psql('postgres', 'UPDATE counter SET n = 0');
append_to_file("$PostgreSQL::Test::Utils::tmp_check/forrst.pgbench",
	q{SELECT ask('count', '{}', '{"block": {"value": 4, "unit": "minute"}}')::int > 0;});
$node->command_ok([ 'pgbench', '-n', '-c', '4', '-t', '100', '-f', "$PostgreSQL::Test::Utils::tmp_check/forrst.pgbench", 'postgres' ], 'four clients count');
is($node->safe_psql('postgres', 'SELECT n FROM counter'), '400', '... and no increment is lost');
log_is_clean($node);
done_testing();
