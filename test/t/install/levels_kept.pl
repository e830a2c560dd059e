# Access levels over updates of the extension, dumps, and the end of a role.
#
# Needs an installation that can be copied, for a version that does not exist.
#
# Properties: objects that an update script creates are granted to the roles that have their
# level, and to no other role, also not by ALTER DEFAULT PRIVILEGES; grants by hand
# stay, and are no level; a dump contains all of them; a role whose levels are revoked
# can be dropped, by an owner of the database who is no superuser; such an owner can
# restore the dump of a superuser, with everything but levels, and tokens rise.
#
# Turns red when: the grants of an update script count as parts of the extension;
# new functions are granted to PUBLIC; USAGE on the schema stays; restoring needs more
# than the documents say.

use strict;
use warnings FATAL => 'all';
use AtomicLockNext;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($bin, $share, $lib) = copy_installation('levels') or plan skip_all => 'no installation that can be copied';
my $node = PostgreSQL::Test::Cluster->new('levels', install_path => $bin =~ s{/bin$}{}r);
$node->init;
$node->append_conf('postgresql.conf', "autovacuum = off\nfsync = off\n");
$node->start;

sub psql
{
	my ($db, $sql, @params) = @_;
	return $node->safe_psql($db, $sql, extra_params => \@params);
}

# The rights of roles other than the owner on parts of the extension, and its schema
my $rights = q{
	SELECT a.grantee::regrole, string_agg(o.name || ' ' || lower(a.privilege_type), ', ' ORDER BY o.name COLLATE "C", a.privilege_type)
	FROM (SELECT 'pg_proc'::regclass, p.oid, p.oid::regprocedure::text, proowner, proacl FROM pg_proc p
			UNION ALL SELECT 'pg_class'::regclass, c.oid, c.oid::regclass::text, relowner, relacl FROM pg_class c) AS o (classid, oid, name, owner, acl)
		JOIN pg_depend d ON d.classid = o.classid AND d.objid = o.oid AND d.deptype = 'e'
		JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'atomic_lock',
		aclexplode(o.acl) a
	WHERE a.grantee <> o.owner GROUP BY 1 ORDER BY 1::text};
sub rights
{
	my ($db) = @_;
	return map { split /\|/, $_, 2 } split /\n/, psql($db, $rights);
}

#
# A new version: a function of each level, a view, a function without a level, and a new argument
#
psql('postgres', q{
CREATE ROLE clerk; CREATE ROLE watcher; CREATE ROLE super; CREATE ROLE boss; CREATE ROLE "All "" four"; CREATE ROLE hand; CREATE ROLE nobody;
CREATE ROLE dbo LOGIN CREATEROLE;
CREATE DATABASE shop OWNER dbo;
});
psql('shop', q{
CREATE SCHEMA "Locks"; CREATE EXTENSION atomic_lock SCHEMA "Locks"; SET search_path = "Locks";
SELECT lock_grant_access('clerk', 'user'), lock_grant_access('watcher', 'monitor'), lock_grant_access('super', 'supervisor'), lock_grant_access('boss', 'admin');
SELECT lock_grant_access('"All "" four"', l) FROM unnest('{user,monitor,supervisor,admin}'::text[]) l;
SELECT lock_grant_access('dbo', 'admin');
GRANT EXECUTE ON FUNCTION lock_acquire, force_release, lock_key(text[]) TO hand;
GRANT EXECUTE ON FUNCTION lock_key(text[]) TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO nobody;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO nobody;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO nobody;
});
my $definition = psql('shop', q{SELECT pg_get_functiondef('"Locks".app_lock_change_access'::regproc)}) =~ s/"Locks"\.//r;
$definition =~ s/('user', |)'lock_release_all'/$1'lock_release_all', 'lock_new_user'/ or die;
$definition =~ s/'lock_sweeper_status'/'lock_sweeper_status', 'lock_new_monitor'/ or die;
$definition =~ s/'app_lock_supervisor'\]/'app_lock_supervisor', 'lock_new_supervisor']/ or die;
$definition =~ s/'lock_sweep'/'lock_sweep', 'lock_new_admin'/ or die;
$definition =~ s/\('monitor', 'lock_stats', 'SELECT'\)/('monitor', 'lock_stats', 'SELECT'), ('monitor', 'lock_new', 'SELECT')/ or die;
my $new = "$definition;\n" . q{
CREATE FUNCTION lock_new_user() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION lock_new_monitor() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION lock_new_supervisor() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION lock_new_admin() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION app_lock_new() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE VIEW lock_new AS SELECT 1;
CREATE SEQUENCE app_lock_new_seq;
DROP FUNCTION lock_stats_reset();
CREATE FUNCTION lock_stats_reset(really bool DEFAULT true) RETURNS void LANGUAGE sql AS '';
SELECT app_lock_refresh_access();
};
append_to_file("$share/extension/atomic_lock--1.0--1.1.sql", "SELECT app_lock_begin_script();\n$new");
append_to_file("$share/extension/atomic_lock--1.1.sql", slurp_file("$share/extension/atomic_lock--1.0.sql") . $new);
append_to_file("$share/extension/atomic_lock.control", "default_version = '1.1'\n");
put_library(build_library($bin, '1.1'), $lib);

my %before = rights('shop');
psql('shop', 'ALTER EXTENSION atomic_lock UPDATE');
my %after = rights('shop');
is(scalar(grep { s/lock_stats_reset\(boolean\)/lock_stats_reset()/ } values %after), 3, 'a function with a new argument has the grants of the former one');
is(join(' ', sort keys %after), join(' ', sort keys %before), 'an update gives access to no role that has none');
foreach my $role (sort keys %after)
{
	my @new = grep { /new/ } map { s/"Locks"\.//gr } $after{$role} =~ /("Locks"\.\w+(?:\([^)]*\))? \w+)/g;
	my %expected = (
		clerk => 'lock_new_user() execute',
		watcher => 'lock_new select, lock_new_monitor() execute',
		super => 'lock_new_supervisor() execute',
		boss => 'lock_new_admin() execute',
		dbo => 'lock_new_admin() execute',
		'"All "" four"' => 'lock_new select, lock_new_admin() execute, lock_new_monitor() execute, lock_new_supervisor() execute, lock_new_user() execute');

	is(join(', ', @new), $expected{$role} // '', "new rights of $role");
	is($after{$role} =~ s/, "Locks"\.lock_new\w*(?:\(\))? \w+//gr, $before{$role}, '... the other rights are unchanged');
}
psql('shop', 'ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM nobody; ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM nobody; ALTER DEFAULT PRIVILEGES REVOKE ALL ON SEQUENCES FROM nobody');
is(psql('shop', q{SELECT count(*) FROM pg_init_privs i, aclexplode(i.initprivs) a WHERE a.grantee IN (SELECT oid FROM pg_roles WHERE rolname !~ '^pg_' AND NOT rolsuper)}),
	'0', 'no grant of the site is a part of the extension');

#
# A dump contains everything, and a superuser restores it.
#
psql('shop', q{SELECT "Locks".lock_acquire('k', '1 hour', 'o'); SELECT "Locks".force_release('k', 'for the record');
	CREATE TABLE orders (id int); ALTER TABLE orders OWNER TO dbo; INSERT INTO orders VALUES (42)});
my $dump = "$PostgreSQL::Test::Utils::tmp_check/levels.dump";
$node->command_ok([ 'pg_dump', '--no-sync', '-Fc', '-f', $dump, 'shop' ], 'pg_dump');
psql('postgres', 'CREATE DATABASE copy');
$node->command_ok([ 'pg_restore', '-e', '-d', 'copy', $dump ], 'restored by a superuser');
is(psql('copy', $rights), psql('shop', $rights), '... with all rights');
is(psql('copy', 'SELECT * FROM "Locks".lock_audit'), psql('shop', 'SELECT * FROM "Locks".lock_audit'), '... and the audit trail');

# The owner of the database restores it, and would then grant levels again.
psql('postgres', 'CREATE DATABASE owned OWNER dbo');
$node->command_ok([ 'pg_restore', '-e', '-O', '-x', '-U', 'dbo', '-d', 'owned', $dump ], 'restored by the owner of the database');
is(psql('owned', 'SELECT * FROM "Locks".lock_audit'), psql('shop', 'SELECT * FROM "Locks".lock_audit'), '... with the audit trail');
is(psql('owned', 'SELECT * FROM orders'), '42', '... and data');
cmp_ok(psql('owned', q{SELECT (("Locks".lock_acquire('k')).fencing_token)}), '>', psql('shop', q{SELECT (("Locks".lock_acquire('k')).fencing_token)}), '... tokens rise');

#
# The end of a role
#
foreach my $levels ('user', 'monitor', 'supervisor', 'admin', 'user monitor supervisor admin')
{
	psql('shop', 'CREATE ROLE gone', '-U', 'dbo');
	psql('shop', qq{SELECT "Locks".lock_$_->[0]_access('gone', '$_->[1]')}, '-U', 'dbo') foreach map { my $do = $_; map { [ $do, $_ ] } split / /, $levels } 'grant', 'revoke';
	is(sqlstate($node, 'DROP ROLE gone', 'shop', '-U', 'dbo'), 'no error: ', "a role that had $levels can be dropped by the owner of the database");
}

$node->stop;
log_is_clean($node);
done_testing();
