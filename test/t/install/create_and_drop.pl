# Installing, preloading, dropping, and objects of other roles.
#
# Properties: everything works with and without preload; settings obey their
# contexts; databases are independent; a session that used the extension continues
# after DROP, CREATE in the same or another schema, and a rename of the schema;
# CREATE EXTENSION takes over no object that was created before it, and never uses an
# object of a caller in place of its own.
#
# Turns red when: OIDs are remembered over DROP and CREATE; claims do not distinguish
# databases; the script has OR REPLACE or IF NOT EXISTS, or quotes the
# schema's name; C code or functions use search_path; the value of a superuser's
# setting is believed that was set before the library was loaded.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('install');
$node->init;
$node->append_conf('postgresql.conf', "autovacuum = off\natomic_lock.default_ttl = '7min'\natomic_lock.sweep_interval = 0\n");
$node->start;

my $ttl = q{SELECT expires_at - acquired_at FROM lock_acquire('ttl', owner => 'me')};

#
# Without and with preload
#
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
is($node->safe_psql('postgres', $ttl), '00:07:00', 'not preloaded: settings of postgresql.conf apply to the first call');
is($node->safe_psql('postgres', q{SELECT lock_release('ttl', 'me')}), 't', 'not preloaded: release');
$node->safe_psql('postgres', q{SELECT lock_acquire('kept', '1 hour', 'me')});
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\n");
$node->restart;
# Not a setting in postgresql.conf: SHOW knows those without the library, too.
is($node->safe_psql('postgres', 'SHOW atomic_lock.max_ttl'), '1d', 'preloaded: settings are there before any call');
is($node->safe_psql('postgres', $ttl), '00:07:00', '... and apply');
is($node->safe_psql('postgres', q{SELECT lock_is_held('kept', 'me')}), 't', '... leases are unchanged');
is($node->safe_psql('postgres', q{SELECT lock_release('kept', 'me'), lock_release('ttl', 'me')}), 't|t', '... release');
is( $node->safe_psql(
		'postgres', q{
SELECT string_agg(name || ' ' || context, ', ' ORDER BY name) FROM pg_settings WHERE name LIKE 'atomic_lock.%'}),
	'atomic_lock.acquire_durability superuser, atomic_lock.default_ttl user, atomic_lock.enforce_guards superuser, atomic_lock.fencing_token user, atomic_lock.history_retention sighup, atomic_lock.lock_delay superuser, '
	  . 'atomic_lock.max_claims_per_transaction superuser, atomic_lock.max_lifetime superuser, atomic_lock.max_queue_places superuser, '
	  . 'atomic_lock.max_ttl superuser, atomic_lock.max_wait superuser, atomic_lock.on_reacquire user, '
	  . 'atomic_lock.owner user, atomic_lock.partition superuser, atomic_lock.partitions superuser, atomic_lock.release_durability user, atomic_lock.released_retention sighup, '
	  . 'atomic_lock.sweep_batch sighup, atomic_lock.sweep_databases sighup, atomic_lock.sweep_interval sighup', 'settings and who may change them');

#
# Settings that are reloaded
#
my $session = $node->background_psql('postgres', on_error_stop => 0);
is(ask($session, 'SHOW atomic_lock.sweep_batch'), '1000', 'a session before the reload');
ask($session, q{SELECT lock_acquire('swept-' || n, '1 ms') FROM generate_series(1, 3) n});
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM lock_status()}) or die;
$node->append_conf('postgresql.conf', "atomic_lock.sweep_batch = 2\natomic_lock.released_retention = '1d'\n");
$node->reload;
poll($session, q{SELECT current_setting('atomic_lock.sweep_batch') = '2'});
is(ask($session, 'SELECT lock_sweep()'), '2', '... sees the new value, which applies');
is(ask($session, 'SELECT lock_sweep()'), '1', '... also for the next batch');
is(ask($session, 'SHOW atomic_lock.released_retention'), '1d', '... like the other one');
is(sqlstate($node, q{SET atomic_lock.sweep_batch = 5}), '55P02', 'SET is refused');
$session->quit;

#
# Settings that belong to the superuser.  Without preload the library is loaded after
# the SET, and has to judge the value that it finds.
#
# Each call exceeds only that limit, and has no other obstacle, as
# the call of a superuser shows, who can set it.
#
$node->safe_psql('postgres', q{CREATE ROLE regress_user LOGIN; SELECT lock_grant_access('regress_user', 'user')});
my @limited = (
	[ q{SET atomic_lock.max_ttl = '100d'}, '0', q{SELECT lock_acquire('greedy', '48 hours')}, '22023' ],
	[ q{SET atomic_lock.max_lifetime = 0}, '6h', q{SELECT lock_acquire('greedy', '12 hours')}, '22023' ],
	[ q{SET atomic_lock.max_claims_per_transaction = 5000}, '0', q{SELECT count(lock_acquire('greedy-' || n, '1 hour')) FROM generate_series(1, 1001) n}, '54000' ]);
foreach my $preload ('on', 'off')
{
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n") if $preload eq 'off';
	foreach my $limited (@limited)
	{
		my ($set, $max_lifetime, $call, $refusal) = @$limited;

		$node->append_conf('postgresql.conf', "atomic_lock.max_lifetime = $max_lifetime\n");
		$node->restart;
		is(sqlstate($node, $call, 'postgres', '-U', 'regress_user'), $refusal, "preload $preload: there is a limit");
		is(sqlstate($node, "$set; $call", 'postgres', '-U', 'regress_user'), $preload eq 'on' ? '42501' : $refusal, "... and a user cannot: $set");
		is(sqlstate($node, "BEGIN; $set; $call; ROLLBACK"), 'no error: ', '... a superuser can');
	}
}

#
# Two databases.  One is a copy of the other, so that keys have the same hashes in both.
#
$node->safe_psql('postgres', 'CREATE DATABASE other TEMPLATE postgres');
my $here = $node->background_psql('postgres', on_error_stop => 0);
my $there = $node->background_psql('other', on_error_stop => 0);
ask($here, q{BEGIN; SELECT lock_acquire('k', '1 hour', 'me')});
is(ask($there, q{SELECT (lock_try_acquire('k', '1 hour', 'you')).status}), 'acquired', 'a claim has no effect in another database');
ask($here, 'COMMIT');
is(ask($here, q{SELECT lock_holder('k') IS NOT NULL, lock_is_held('k', 'me'), lock_is_held('k', 'you')}), 't|t|f', '... nor has a lease');
is(ask($there, q{SELECT lock_try_release('k', 'me'), lock_release_all('me'), lock_is_held('k', 'you')}), 'not_owner|0|t', '... nor has a release');
is(ask($there, q{SELECT count(*) FROM lock_status()}), '1', '... lock_status shows only locks of its database');
is(ask($there, q{SELECT force_release('k', 'test')}), 't', '... force_release ends the lease there');
is(ask($here, q{SELECT lock_is_held('k', 'me')}), 't', '... and not the lease here');
$there->quit;
$node->safe_psql('postgres', 'DROP DATABASE other');

#
# DROP and CREATE while a session uses the extension
#
ask($here, q{PREPARE try AS SELECT (lock_try_acquire('k', '1 hour', 'me')).status});
is(ask($here, 'EXECUTE try'), 'reacquired', 'a session that uses the extension');
$node->safe_psql('postgres', 'DROP EXTENSION atomic_lock');
foreach my $sql ('EXECUTE try', q{SELECT lock_acquire('k')}, 'SELECT * FROM lock_status()')
{
	$here->query($sql);
	like($here->{stderr}, qr/ERROR:  (function|extension) .* does not exist|not installed/, "after DROP EXTENSION: $sql");
	$here->{stderr} = '';
}
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
is(ask($here, 'EXECUTE try'), 'acquired', '... and after CREATE EXTENSION the session works again, and the lease is gone');
is(ask($here, q{SELECT lock_release('k', 'me')}), 't', '... release');
ask($here, 'DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock');
is(ask($here, 'EXECUTE try'), 'acquired', '... dropped and created by the session itself');
is( ask($here, q{BEGIN; DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock; SELECT (lock_acquire('in', '1 hour', 'me')).status; ROLLBACK}),
	'acquired', '... in a transaction');
is(ask($here, 'EXECUTE try'), 'reacquired', '... which is rolled back: the lease is held');

# DROP waits for a transaction that uses the extension.
ask($here, q{BEGIN; SELECT lock_acquire('busy')});
is(sqlstate($node, q{SET lock_timeout = '50ms'; DROP EXTENSION atomic_lock}), '55P03', 'DROP EXTENSION waits for a transaction that has a grant');
ask($here, 'COMMIT');

# Any schema
my $odd = q{"Odd ""schema"" 'n' $$;"};
foreach my $schema ('plain', '"With Capitals"', $odd)
{
	ask($here, 'DROP EXTENSION atomic_lock');
	ask($here, "CREATE SCHEMA $schema; CREATE EXTENSION atomic_lock SCHEMA $schema");
	is(ask($here, "SELECT (${schema}.lock_acquire('k', '1 hour', 'me')).status"), 'acquired', "schema $schema: acquire");
	is(ask($here, "SELECT locked FROM ${schema}.lock_status('k')"), 't', '... status');
	is(ask($here, "SELECT ${schema}.lock_steal('k', 'you', 'test') IS NOT NULL, ${schema}.lock_release('k', 'you')"), 't|t', '... steal, release');
	is(ask($here, "SELECT count(*) FROM ${schema}.lock_audit"), '1', '... audit');
	$node->safe_psql('postgres', "SELECT ${schema}.lock_grant_access('regress_user', 'user')");
	is($node->safe_psql('postgres', "SELECT (${schema}.lock_try_acquire('k')).status", extra_params => [ '-U', 'regress_user' ]), 'acquired', '... lock_grant_access');
	is(sqlstate($node, "SELECT ${schema}.force_release('k', 'test')", 'postgres', '-U', 'regress_user'), '42501', '... grants no more than the level');
}
ask($here, "ALTER SCHEMA $odd RENAME TO renamed");
is(ask($here, q{SELECT (renamed.lock_acquire('renamed', '1 hour', 'me')).status}), 'acquired', 'the schema is renamed');
is(sqlstate($node, 'ALTER EXTENSION atomic_lock SET SCHEMA public'), '0A000', 'the extension is not relocatable');

# Changes to the table by a DBA
ask($here, 'BEGIN; ALTER TABLE renamed.app_lock ADD COLUMN more int');
$here->query(q{SELECT renamed.lock_acquire('more')});
like($here->{stderr}, qr/ERROR:  definition of relation "app_lock" does not match this version of atomic_lock/, 'a changed table is refused');
$here->{stderr} = '';
ask($here, 'ROLLBACK');
ask($here, 'BEGIN; CREATE INDEX wrong ON renamed.app_lock (lower(key))');
$here->query(q{SELECT renamed.lock_acquire('more')});
like($here->{stderr}, qr/ERROR:  index "wrong" on table "app_lock" is not supported/, '... as is an index that runs code');
$here->{stderr} = '';
ask($here, 'ROLLBACK');
is(ask($here, q{SELECT (renamed.lock_acquire('more', '1 hour', 'me')).status}), 'acquired', '... without these changes the table is used again');
ask($here, 'DROP EXTENSION atomic_lock');

#
# An attacker has created objects before the extension
#
my $public = $node->safe_psql('postgres', q{GRANT CREATE ON SCHEMA public TO regress_user; SELECT 1});
my $objects = q{SELECT count(*) FROM pg_class WHERE relname ~ '^(app_lock|lock_)'
	UNION ALL SELECT count(*) FROM pg_proc WHERE proname ~ '^(app_lock_|lock_|force_release)'
	UNION ALL SELECT count(*) FROM pg_type WHERE typname IN ('lock_grant', 'app_lock', 'lock_stats', 'lock_activity', 'lock_contention', 'app_lock_policy', 'app_lock_policy_role', 'lock_policies', 'lock_history', 'app_lock_queue', 'lock_queue', 'lock_place')
	UNION ALL SELECT count(*) FROM pg_extension WHERE extname = 'atomic_lock'};
my $nothing = $node->safe_psql('postgres', $objects);
my %traps = (
	'TABLE app_lock' => 'CREATE TABLE app_lock (key text)',
	'TABLE lock_audit' => 'CREATE TABLE lock_audit (key text)',
	'VIEW app_lock' => 'CREATE VIEW app_lock AS SELECT 1 AS key',
	'TABLE app_lock_policy' => 'CREATE TABLE app_lock_policy (prefix text)',
	'TABLE app_lock_policy_role' => 'CREATE TABLE app_lock_policy_role (prefix text)',
	'TABLE lock_history' => 'CREATE TABLE lock_history (key text)',
	'TABLE app_lock_queue' => 'CREATE TABLE app_lock_queue (key text)',
	'VIEW lock_queue' => 'CREATE VIEW lock_queue AS SELECT 1 AS key',
	'TYPE lock_place' => 'CREATE TYPE lock_place AS (status text)',
	'FUNCTION lock_enqueue(text, text, text, interval, interval, interval, jsonb)' =>
	  q{CREATE FUNCTION lock_enqueue(text, text, text, interval, interval, interval, jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1'},
	'VIEW lock_policies' => 'CREATE VIEW lock_policies AS SELECT 1 AS prefix',
	'FUNCTION app_lock_policy_changed()' => q{CREATE FUNCTION app_lock_policy_changed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'},
	'SEQUENCE app_lock_fence' => 'CREATE SEQUENCE app_lock_fence',
	'VIEW lock_stats' => 'CREATE VIEW lock_stats AS SELECT 1 AS grants',
	'FUNCTION lock_stats_reset()' => q{CREATE FUNCTION lock_stats_reset() RETURNS void LANGUAGE sql AS ''},
	'TYPE lock_grant' => 'CREATE TYPE lock_grant AS (acquired boolean)',
	'FUNCTION lock_holder(text)' => q{CREATE FUNCTION lock_holder(key text) RETURNS text LANGUAGE sql AS 'SELECT 1::text'},
	'FUNCTION lock_acquire(text, interval, text, text, interval, text, jsonb, text, integer, text)' =>
	  q{CREATE FUNCTION lock_acquire(text, interval, text, text, interval, text, jsonb, text, integer, text) RETURNS int LANGUAGE sql AS 'SELECT 1'},
	'FUNCTION app_lock_change_access(regrole, text, boolean)' =>
	  q{CREATE FUNCTION app_lock_change_access(regrole, text, boolean) RETURNS void LANGUAGE sql AS ''});
foreach my $trap (sort keys %traps)
{
	$node->safe_psql('postgres', $traps{$trap}, extra_params => [ '-U', 'regress_user' ]);
	like(sqlstate($node, 'CREATE EXTENSION atomic_lock'), qr/^(42P07|42710|42723)$/, "CREATE EXTENSION fails beside a foreign $trap");
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_extension WHERE extname = 'atomic_lock'}), '0', '... the extension does not exist');
	$node->safe_psql('postgres', "DROP $trap");
	is($node->safe_psql('postgres', $objects), $nothing, '... nor does any part of it');
}

#
# Objects of a caller with the same names
#
$node->safe_psql('postgres', q{CREATE SCHEMA locks; CREATE EXTENSION atomic_lock SCHEMA locks;
	SELECT locks.lock_grant_access('regress_user', 'user')});
is( $node->safe_psql(
		'postgres', q{
CREATE TEMP TABLE app_lock (LIKE locks.app_lock);
CREATE TEMP SEQUENCE app_lock_fence;
CREATE TEMP TABLE pg_extension (extname name, oid oid);
CREATE TEMP TABLE pg_class (oid oid);
CREATE SCHEMA evil;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''-infinity''::timestamptz';
CREATE FUNCTION evil.format(text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_concat_ws';
CREATE FUNCTION evil.texteq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.texteq);
SET search_path = evil, pg_temp, pg_catalog, locks;
SELECT (lock_acquire('k', '1 hour', 'me')).status;
SELECT (lock_try_acquire('other', '1 hour', 'you')).status;
SELECT lock_is_held('k', 'you'), lock_is_held('k', 'me');
SELECT (SELECT count(*) FROM pg_temp.app_lock), (SELECT count(*) FROM locks.app_lock), (SELECT is_called FROM pg_temp.app_lock_fence);
SELECT lock_steal('k', 'you', 'test') IS NOT NULL;
SELECT lock_revoke_access('regress_user', 'user'), lock_grant_access('regress_user', 'user');
SELECT pg_catalog.has_function_privilege('regress_user', 'locks.lock_holder(text)', 'EXECUTE');
}), "acquired\nacquired\nf|t\n0|2|f\nt\n|\nt", 'search_path, temporary objects and operators of a caller change nothing');

# A trigger, a rule or row security on the table runs no code.
is( $node->safe_psql(
		'postgres', q{
CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'ran'; END $$;
CREATE TRIGGER boom BEFORE INSERT OR UPDATE OR DELETE ON locks.app_lock FOR EACH ROW EXECUTE FUNCTION boom();
ALTER TABLE locks.app_lock ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
SELECT (locks.lock_acquire('t', '1 hour', 'me')).status, locks.lock_release('t', 'me');
SELECT (locks.lock_try_acquire('k', '1 hour', 'she')).status;
-- row security does not apply to a superuser
SET SESSION AUTHORIZATION regress_user;
SELECT (locks.lock_acquire('t', '1 hour', 'me')).status, locks.lock_release('t', 'me');
SELECT (locks.lock_try_acquire('k', '1 hour', 'she')).status;
}), "acquired|t\nheld\nacquired|t\nheld", 'triggers and row security on the table are not run');

$here->quit;
$node->stop;
done_testing();
