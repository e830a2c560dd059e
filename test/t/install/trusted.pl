# The extension is created, dumped and restored by the owner of a database, who is no
# superuser.
#
# Properties: a role that may create objects in a database may create the extension there,
# has all access levels, and grants them to others; the parts of the extension belong to a
# superuser, and are the same whatever settings the creating session has; the creator
# can write neither holdings nor tickets, cannot set superusers' settings, sees no owners,
# and owns nothing through which code could run for others; the schema cannot be renamed
# while a script runs; the creator needs rights on the schema; a new owner gets the levels and
# the former one loses them; policies written by hand are
# within the limits of lock_set_policy; the owner's dump has everything, as has the owner's
# restore, except the levels of others; the creator can drop the extension, and no other role
# with level admin can.
#
# Turns red when: the control file does not say "trusted"; the creator gets no
# level, or rights on more tables; the script follows a setting of the session; a table of
# policies accepts any number.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('trusted');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nautovacuum = off\nfsync = off\nlog_statement = none\natomic_lock.sweep_interval = 0\n");
$node->start;

sub psql
{
	my ($db, $sql, $user) = @_;
	return $node->safe_psql($db, $sql, extra_params => defined $user ? [ '-U', $user ] : []);
}
my $superuser = psql('postgres', 'SELECT quote_ident(current_user)');
my $space = PostgreSQL::Test::Utils::tempdir();
psql('postgres', q{
CREATE ROLE dbo LOGIN CREATEROLE; CREATE ROLE app LOGIN; CREATE ROLE boss LOGIN; CREATE ROLE stranger LOGIN});
psql('postgres', 'CREATE DATABASE shop OWNER dbo');
psql('postgres', 'CREATE DATABASE plain OWNER dbo');
psql('postgres', "CREATE TABLESPACE not_for_dbo LOCATION '$space'");

#
# The roles that may create the extension, and its parts
#
is(sqlstate($node, 'CREATE EXTENSION atomic_lock', 'shop', '-U', 'stranger'), '42501', 'a role that may not create objects in the database may not create the extension');
psql('plain', 'CREATE SCHEMA locks; CREATE EXTENSION atomic_lock SCHEMA locks', 'dbo');
# PostgreSQL 19 cannot turn these two off.
psql('shop', ($node->pg_version->major < 19 ? 'SET standard_conforming_strings = off; SET escape_string_warning = off;' : '') . q{SET transform_null_equals = on; SET backslash_quote = off;
	SET default_tablespace = not_for_dbo; SET default_toast_compression = pglz; SET quote_all_identifiers = on; SET check_function_bodies = off; SET row_security = off;
	SET "DateStyle" = 'German'; SET "IntervalStyle" = 'sql_standard'; SET "TimeZone" = 'Pacific/Kiritimati'; SET extra_float_digits = -15; SET array_nulls = off;
	SET xmloption = 'document'; SET enable_seqscan = off; SET enable_indexscan = off; SET default_transaction_isolation = 'serializable'; SET plpgsql.extra_errors = 'all';
	SET atomic_lock.owner = 'dbo'; SET atomic_lock.default_ttl = '1ms'; SET search_path = nowhere;
	CREATE SCHEMA locks; CREATE EXTENSION atomic_lock SCHEMA locks}, 'dbo');

# All parts of the extension in the catalog, without numbers
my $parts = q{
	SET search_path = pg_catalog;
	SELECT pg_describe_object(d.classid, d.objid, 0),
		pg_get_functiondef(p.oid), p.proowner::regrole, p.proacl,
		c.relowner::regrole, c.relacl, c.reltablespace, c.relpersistence, m.amname, c.reloptions, t.reltablespace, pg_get_viewdef(v.oid),
		(SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attstorage, attcompression, attnotnull, attcollation, pg_get_expr(adbin, adrelid)), ', ' ORDER BY attnum)
			FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = c.oid AND attnum > 0),
		(SELECT string_agg(pg_get_indexdef(indexrelid) || i.reltablespace::text, ', ' ORDER BY indexrelid) FROM pg_index JOIN pg_class i ON i.oid = indexrelid WHERE indrelid = c.oid),
		(SELECT string_agg(pg_get_constraintdef(k.oid), ', ' ORDER BY conname) FROM pg_constraint k WHERE conrelid = c.oid),
		(SELECT string_agg(pg_get_triggerdef(g.oid) || tgenabled::text, ', ' ORDER BY tgname) FROM pg_trigger g WHERE tgrelid = c.oid),
		y.typowner::regrole, obj_description(d.objid, d.classid::regclass::name)
	FROM pg_depend d
		LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
		LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
		LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
		LEFT JOIN pg_class v ON v.oid = c.oid AND v.relkind = 'v'
		LEFT JOIN pg_am m ON m.oid = c.relam
		LEFT JOIN pg_type y ON d.classid = 'pg_type'::regclass AND y.oid = d.objid
	WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
		AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'atomic_lock')
	ORDER BY 1};
my $plain = psql('plain', $parts);
cmp_ok(scalar(split /\n/, $plain), '>', 100, 'the extension has more than 100 parts');
# ... with a session that does not quote all identifiers
my $shop = psql('shop', $parts);
is($shop, $plain, '... they are the same whatever settings the creating session has');
is(psql('shop', q{SELECT extowner::regrole FROM pg_extension WHERE extname = 'atomic_lock'}), 'dbo', '... the extension belongs to its creator');
is(psql('shop', q{SELECT string_agg(DISTINCT refobjid::regrole::text, ',') FROM pg_shdepend s
	WHERE s.deptype = 'o' AND s.dbid = (SELECT oid FROM pg_database WHERE datname = 'shop') AND classid <> 'pg_extension'::regclass
		AND EXISTS (SELECT FROM pg_depend d WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND d.classid = s.classid AND d.objid = s.objid
			AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'atomic_lock'))}),
	'', '... its parts belong to the first superuser, which PostgreSQL does not record');

#
# The rights of the creator
#
is(psql('shop', q{SET search_path = locks;
	SELECT lock_grant_access('app', 'user'), lock_grant_access('boss', 'admin'), lock_set_policy('p:', history => true, max_ttl => '1 hour');
	SELECT status FROM lock_acquire('p:1', '1 hour', 'dbo-1');
	SELECT key FROM lock_status(); SELECT count(*) FROM lock_activity; SELECT force_release('p:1', 'test'); SELECT count(*) FROM lock_audit}, 'dbo'),
	"||\nacquired\np:1\n1\nt\n1", 'the creator has all levels');
is(psql('shop', q{SELECT (locks.lock_acquire('order:1', '1 hour', 'app-1')).status}, 'app'), 'acquired', '... and has granted access to others');
my %forbidden = (
	'TABLE locks.app_lock' => 'reads no owners',
	'TABLE locks.app_lock_queue' => 'reads no owners of tickets',
	q{INSERT INTO locks.app_lock SELECT} => 'writes no holding',
	q{UPDATE locks.app_lock SET expires_at = 'infinity'} => 'changes no holding',
	'DELETE FROM locks.app_lock' => 'deletes no holding',
	'TRUNCATE locks.app_lock' => 'truncates no table of holdings',
	q{UPDATE locks.lock_audit SET reason = 'mine'} => 'does not falsify the audit trail',
	'DELETE FROM locks.lock_history' => 'does not delete history',
	'CREATE TRIGGER t AFTER INSERT ON locks.lock_audit EXECUTE FUNCTION suppress_redundant_updates_trigger()' => 'creates no trigger',
	'CREATE INDEX ON locks.app_lock (abs(ttl_us))' => 'creates no index',
	'ALTER TABLE locks.app_lock OWNER TO dbo' => 'does not become the owner of a table',
	'CREATE OR REPLACE VIEW locks.lock_stats AS SELECT 1' => 'replaces no view',
	q{CREATE OR REPLACE FUNCTION locks.lock_holder(key text) RETURNS text LANGUAGE sql AS 'SELECT 1'} => 'replaces no function',
	'ALTER FUNCTION locks.lock_holder(text) SET search_path = public' => 'changes no function',
	'DROP FUNCTION locks.lock_holder(text)' => 'drops no function',
	'ALTER EXTENSION atomic_lock DROP FUNCTION locks.lock_holder(text)' => 'removes no function from the extension',
	q{SET atomic_lock.max_ttl = '2d'} => 'sets no limits',
	q{ALTER DATABASE shop SET atomic_lock.max_ttl = '2d'} => 'sets no limits for the database',
	q{SELECT locks.app_lock_refresh_access()} => 'does not call functions for scripts');
foreach my $sql (sort keys %forbidden)
{
	like(sqlstate($node, "SET search_path = pg_catalog; $sql", 'shop', '-U', 'dbo'), qr/^(?:42501|2BP01)$/, "the creator $forbidden{$sql}") or diag($sql);
}
like(sqlstate($node, 'DROP EXTENSION atomic_lock', 'shop', '-U', 'boss'), qr/^42501$/, 'a role with level admin cannot drop the extension');
is(sqlstate($node, qq{SELECT locks.lock_revoke_access('dbo', '$_')}, 'shop', '-U', 'boss'), '22023', "... nor revoke the creator's level $_") foreach 'supervisor', 'admin';
is(psql('shop', q{SELECT has_function_privilege('dbo', 'locks.app_lock_supervisor()', 'EXECUTE')}), 't', 'the creator has level supervisor');
my %wrong = (
	default_ttl_us => 999, max_ttl_us => '3153600000000001', max_wait_us => -1, max_lifetime_us => '-9223372036854775808', lock_delay_us => '9223372036854775807',
	min_hold_us => -1, max_holders => 0, max_keys_per_role => '2147483648', history => 2, notify => -1, has_roles => 2);
foreach my $column (sort keys %wrong)
{
	is(sqlstate($node, "INSERT INTO locks.app_lock_policy (prefix, $column) VALUES ('wrong:', $wrong{$column})", 'shop', '-U', 'dbo'), '23514', "a policy written by hand is within the limits of $column");
}
is(sqlstate($node, q{INSERT INTO locks.app_lock_policy (prefix) VALUES (repeat('x', 1025))}, 'shop', '-U', 'dbo'), '23514', '... and of the prefix');
is(psql('shop', q{SELECT locks.lock_set_policy('widest:', '876000 h', '876000 h', '876000 h', '876000 h', '876000 h', '876000 h', 2147483647, 2147483647, '{app}', true, true),
	locks.lock_set_policy('least:', '1 ms', '1 ms', '0', '0', '0', '0', 1, 1, NULL, false, false);
	INSERT INTO locks.app_lock_policy SELECT 'copy of ' || prefix, default_ttl_us, max_ttl_us, max_wait_us, max_lifetime_us, lock_delay_us, min_hold_us, max_holders, max_keys_per_role, history, notify, has_roles FROM locks.app_lock_policy;
	SELECT count(*) FROM locks.lock_policies}, 'dbo'), "|\n6", '... everything that lock_set_policy allows is allowed');

#
# Dumped and restored by the owner
#
psql('shop', q{CREATE TABLE public.orders (id int PRIMARY KEY);
	INSERT INTO public.orders VALUES (42); SELECT locks.lock_protect('public.orders', 'order:{id}')}, 'dbo');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/trusted.dump";
my @connection = ('-h', $node->host, '-p', $node->port, '-U', 'dbo');
$node->command_ok([ 'pg_dump', '--no-sync', '-Fc', '-f', $dump, @connection, 'shop' ], 'the creator dumps the database');
psql('postgres', 'CREATE DATABASE again OWNER dbo');
$node->command_ok([ 'pg_restore', '-e', @connection, '-d', 'again', $dump ], '... and restores it');
foreach my $table ('lock_audit', 'lock_history', 'app_lock_policy', 'app_lock_policy_role', 'lock_guards')
{
	my $rows = psql('shop', "SELECT x::text FROM locks.$table x ORDER BY 1");
	isnt($rows, '', "$table has rows");
	is(psql('again', "SELECT x::text FROM locks.$table x ORDER BY 1"), $rows, '... which are restored');
}
cmp_ok(psql('again', q{SELECT (locks.lock_acquire('p:2')).fencing_token}, 'dbo'), '>', psql('shop', q{SELECT (locks.lock_acquire('p:2')).fencing_token}, 'dbo'), '... tokens rise');
is(psql('again', q{SELECT count(*) FROM pg_proc, aclexplode(proacl) WHERE grantee IN ('app'::regrole, 'boss'::regrole)}), '0', '... the levels of others have to be granted again');
psql('again', q{SELECT locks.lock_grant_access('app', 'user')}, 'dbo');
is(psql('again', q{SELECT (locks.lock_acquire('order:1')).status}, 'app'), 'acquired', '... by the owner');

is(psql('again', 'DROP EXTENSION atomic_lock CASCADE; SELECT count(*) FROM pg_class WHERE relname ~ $$lock_$$ AND relnamespace = $$locks$$::regnamespace', 'dbo'), '0', 'the creator can drop it');


#
# The schema is not replaced by another one while the script runs.
#
psql('again', 'DROP SCHEMA locks CASCADE; CREATE SCHEMA locks; CREATE SCHEMA planted', 'dbo');
my ($blocks, $creates, $renames) = map { session($node, $_, 'again') } ('Blocks', 'Creates', 'Renames');
ask($_, 'SET ROLE dbo') for $blocks, $creates, $renames;
ask($blocks, 'BEGIN; CREATE TABLE locks.lock_history ()');
start($creates, 'CREATE EXTENSION atomic_lock SCHEMA locks');
my $watch = session($node, 'Watch');
poll($watch, sprintf q{SELECT %d = ANY (pg_blocking_pids(%d))}, pid($blocks), pid($creates));
start($renames, 'ALTER SCHEMA locks RENAME TO locks_old; ALTER SCHEMA planted RENAME TO locks');
my $waits = sprintf '%d = ANY (pg_blocking_pids(%d))', pid($creates), pid($renames);
poll($watch, sprintf q{SELECT %s OR (SELECT state = 'idle' AND query ~ 'planted' FROM pg_stat_activity WHERE pid = %d)}, $waits, pid($renames));
is(ask($watch, "SELECT $waits"), 't', 'a schema cannot be renamed while the script runs in it');
ask($blocks, 'ROLLBACK');
is(answer($creates), '', '... the script ends without error');
answer($renames);
is(psql('again', q{SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'atomic_lock'}), 'locks_old', '... and the schema is renamed after it');
end($_) for $blocks, $creates, $renames, $watch;
psql('again', 'DROP EXTENSION atomic_lock');

# ... nor while rights are granted
my ($grants, $other) = map { session($node, $_, 'shop') } ('Grants', 'Other');
ask($grants, q{BEGIN; SELECT locks.lock_grant_access('app', 'user')});
$watch = session($node, 'Watch');
start($other, 'SET ROLE dbo; ALTER SCHEMA locks RENAME TO other; ALTER SCHEMA other RENAME TO locks');
$waits = sprintf '%d = ANY (pg_blocking_pids(%d))', pid($grants), pid($other);
poll($watch, sprintf q{SELECT %s OR (SELECT state = 'idle' AND query ~ 'other' FROM pg_stat_activity WHERE pid = %d)}, $waits, pid($other));
is(ask($watch, "SELECT $waits"), 't', '... nor while rights are granted');
ask($grants, 'COMMIT');
is(answer($other), '', '... but afterwards');
end($_) for $grants, $other, $watch;

# ... nor while a table is protected.  Here an event trigger, which only a superuser can
# create, replaces the schema at the right moment.
psql('shop', q{
CREATE SCHEMA planted; CREATE TABLE public.protected (id int PRIMARY KEY);
CREATE FUNCTION planted.lock_guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION planted.exchange() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN ALTER SCHEMA locks RENAME TO other; ALTER SCHEMA planted RENAME TO locks; END';
CREATE EVENT TRIGGER exchange ON ddl_command_start WHEN tag IN ('CREATE TRIGGER') EXECUTE FUNCTION planted.exchange()});
is(sqlstate($node, q{SELECT locks.lock_protect('public.protected', 'p:{id}')}, 'shop'), '55006', '... nor while a table is protected');
is(psql('shop', q{DROP EVENT TRIGGER exchange; DROP SCHEMA planted CASCADE; SELECT locks.lock_protect('public.protected', 'p:{id}'); SELECT count(*) FROM locks.lock_guards WHERE relation = 'public.protected'::regclass}), "\n1", '... and the schema is the same');

# Nor is a schema used whose name search_path takes for another one.
psql('again', 'CREATE SCHEMA "$user"; CREATE SCHEMA ' . $superuser, 'dbo');
# Recent minor versions of PostgreSQL refuse it by themselves.
like(sqlstate($node, 'CREATE EXTENSION atomic_lock SCHEMA "$user"', 'again', '-U', 'dbo'), qr/^(?:55006|42939)$/, 'the extension is not created in a schema "$user", which search_path takes for that of the superuser');
is(psql('again', "SELECT count(*) FROM pg_class WHERE relnamespace = '$superuser'::regnamespace"), '0', '... whose schema stays empty');

# Rights on the schema
psql('again', 'CREATE SCHEMA secret; CREATE SCHEMA half; GRANT USAGE, CREATE ON SCHEMA half TO dbo');
is(sqlstate($node, "CREATE EXTENSION atomic_lock SCHEMA $_", 'again', '-U', 'dbo'), '42501', "the extension is not created in schema $_") for qw(secret half information_schema);
psql('again', 'GRANT USAGE ON SCHEMA half TO dbo WITH GRANT OPTION');
is(psql('again', 'CREATE EXTENSION atomic_lock SCHEMA half; SELECT count(*) FROM half.lock_activity; DROP EXTENSION atomic_lock', 'dbo'), '0', 'USAGE with grant option and CREATE on the schema are enough');

psql('again', 'CREATE EXTENSION atomic_lock SCHEMA half', 'dbo');
psql('again', 'REVOKE GRANT OPTION FOR USAGE ON SCHEMA half FROM dbo');
psql('again', q{SELECT half.lock_grant_access('app', 'user')}, 'dbo');
is(psql('again', q{SELECT has_schema_privilege('app', 'half', 'USAGE'), has_function_privilege('app', 'half.lock_holder(text)', 'EXECUTE')}), 'f|t', 'a right that the owner cannot grant is not granted');
psql('again', 'DROP EXTENSION atomic_lock', 'dbo');

# A new owner
psql('again', 'CREATE ROLE heir LOGIN');
psql('again', 'CREATE EXTENSION atomic_lock SCHEMA public', 'dbo');
psql('again', 'REASSIGN OWNED BY dbo TO heir; SELECT app_lock_repeat_access()');
psql('again', q{SELECT lock_grant_access('heir', 'user'), lock_revoke_access('dbo', 'user'), lock_revoke_access('dbo', 'monitor'), lock_revoke_access('dbo', 'supervisor'), lock_revoke_access('dbo', 'admin')}, 'heir');
is(psql('again', q{SELECT count(*) FROM lock_activity; SELECT count(*) FROM app_lock_policy}, 'heir'), "0\n0", 'the new owner has the levels');
is(psql('again', q{SELECT count(*) FROM (SELECT proacl FROM pg_proc UNION ALL SELECT relacl FROM pg_class) x (acl), aclexplode(acl) WHERE grantee = 'dbo'::regrole}), '0', '... and the former one has no rights');

$node->stop;
log_is_clean($node);
done_testing();
