# The update from this version to the next, as a DBA does it: the package, a restart,
# ALTER EXTENSION in each database; with a standby, and from a dump.
#
# Needs an installation that can be copied, for a version that does not exist.
#
# Properties: leases, shared ones, those of sessions, tickets and offers, guards,
# policies and their roles, history, audit, levels, rights that were granted by hand,
# settings and prepared transactions are the same before and after each step; until
# the restart every call works as before; from the restart to the update no lock changes
# its owner, and guarded tables cannot be written; after the update owners keep their locks,
# others are refused, the line moves, and new objects exist, for the roles that have their
# level; no token falls; an owner of the extension who is no superuser can update it; an
# updated extension equals one that was created anew; a standby whose library
# is older than the extension says so until it is restarted, and can then be promoted; a
# dump of the former version restores as the new one.
#
# Turns red when: an update script does not begin and end as it has to; the library cannot
# handle a new column at the end of app_lock; state that has to survive is stored in
# shared memory, or by the OID of an object that a script replaces.

use strict;
use warnings FATAL => 'all';
use AtomicLockNext;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($bin, $share, $lib) = copy_installation('next') or plan skip_all => 'no installation that can be copied';
my $library = next_library($bin);
my @install = (install_path => $bin =~ s{/bin$}{}r);
my $node = PostgreSQL::Test::Cluster->new('next', @install);
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
autovacuum = off
fsync = off
log_statement = none
max_prepared_transactions = 5
max_connections = 30
atomic_lock.sweep_interval = 0
});
$node->start;

# The answer to a role in a database, or the SQLSTATE of its error
sub as
{
	my ($role, $sql, $db) = @_;
	my ($status, $stdout, $stderr) = $node->psql($db // 'shop', $sql, on_error_stop => 1, extra_params => [ '-v', 'VERBOSITY=verbose', '-U', $role ]);

	return $status == 0 ? $stdout : $stderr =~ /^(?:psql:\S+ )?ERROR:  (\w{5}):/m ? $1 : "failed: $stderr";
}
my $dba = $node->safe_psql('postgres', 'SELECT current_user');

# The state that must stay the same
my %kept = (
	leases => q{SELECT fencing_token, acquired_at, expires_at, ttl_us, slot, mode, role::regrole, key, released, holder, owner, owner_hash, meta, pid, backend_start FROM app_lock WHERE key <> 'session' ORDER BY key, slot},
	places => q{SELECT * FROM app_lock_queue ORDER BY key, ticket},
	policies => q{SELECT * FROM lock_policies ORDER BY prefix},
	'roles of policies' => q{SELECT * FROM app_lock_policy_role ORDER BY 1, 2},
	history => q{SELECT * FROM lock_history ORDER BY key, fencing_token},
	audit => q{SELECT * FROM lock_audit ORDER BY at},
	guards => q{SELECT tgrelid::regclass, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 3},
	settings => q{SELECT setrole::regrole, setconfig FROM pg_db_role_setting ORDER BY 1},
	rights => q{SELECT o.name, a.grantee::regrole, a.privilege_type
FROM (SELECT 'pg_proc'::regclass, oid, oid::regprocedure::text, proowner, proacl FROM pg_proc
	UNION ALL SELECT 'pg_class'::regclass, oid, oid::regclass::text, relowner, relacl FROM pg_class
	UNION ALL SELECT 'pg_class'::regclass, attrelid, attrelid::regclass || '.' || attname, 0, attacl FROM pg_attribute) o (classid, oid, name, owner, acl)
	JOIN pg_depend d ON d.classid = o.classid AND d.objid = o.oid AND d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass,
	aclexplode(o.acl) a
WHERE a.grantee <> o.owner AND o.name !~ 'lock_note' ORDER BY 1, 2, 3});

sub look
{
	my ($db) = @_;
	return map { $_ => as($dba, $kept{$_}, $db) } keys %kept;
}

# All parts of the extension
my $definition = q{
SELECT pg_describe_object(d.classid, d.objid, 0), obj_description(d.objid, d.classid::regclass::name), CASE d.classid
	WHEN 'pg_proc'::regclass THEN (SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '-') FROM pg_proc WHERE oid = d.objid)
	WHEN 'pg_class'::regclass THEN (SELECT concat_ws(' ', relkind, relacl, reloptions,
		(SELECT string_agg(concat_ws(' ', attname, format_type(atttypid, atttypmod), attnotnull, attcollation::regcollation, attstorage, attacl,
				pg_get_expr(adbin, adrelid), col_description(attrelid, attnum)), E'\n' ORDER BY attnum)
			FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = c.oid AND attnum > 0),
		(SELECT string_agg(pg_get_indexdef(indexrelid), E'\n' ORDER BY indexrelid::regclass::text) FROM pg_index WHERE indrelid = c.oid),
		(SELECT string_agg(pg_get_constraintdef(oid), E'\n' ORDER BY conname) FROM pg_constraint WHERE conrelid = c.oid),
		CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) END) FROM pg_class c WHERE oid = d.objid) END,
	(SELECT initprivs FROM pg_init_privs i WHERE i.classoid = d.classid AND i.objoid = d.objid AND i.objsubid = 0)
FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e' AND e.extname = 'atomic_lock'
ORDER BY 1};

my $try = q{SELECT status FROM lock_try_acquire('order:1', '1 hour', 'eve')};

#
# The former version
#
as($dba, 'CREATE DATABASE shop', 'postgres');
as($dba, q{
CREATE ROLE clerk LOGIN; CREATE ROLE watcher LOGIN; CREATE ROLE super LOGIN; CREATE ROLE boss LOGIN; CREATE ROLE hand LOGIN;
ALTER ROLE clerk SET atomic_lock.default_ttl = '7min';
CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('clerk', 'user'), lock_grant_access('watcher', 'monitor'), lock_grant_access('super', 'supervisor'), lock_grant_access('boss', 'admin');
GRANT EXECUTE ON FUNCTION lock_holder(text) TO hand;
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT n, '' FROM generate_series(1, 3) n;
GRANT ALL ON orders TO clerk;
SELECT lock_protect('orders', 'order:{id}');
SELECT lock_set_policy('line:', history => true), lock_set_policy('few:', max_holders => 2), lock_set_policy('bosses:', roles => '{boss}')});
is( as('clerk', q{
SELECT status FROM lock_acquire('order:1', '1 day', 'ann', holder => 'Ann', meta => '{"a": 1}');
SELECT status FROM unnest('{ann,bob}'::text[]) o, lock_acquire('few:k', '1 day', o, 'shared');
SELECT status FROM lock_acquire('line:one', '1 day', 'ann');
SELECT status FROM lock_acquire('line:two', '1 day', 'ann');
SELECT status, place FROM lock_enqueue('line:one', 'bob', 'Bob', '1 day', '1 day');
SELECT status, place FROM lock_enqueue('line:one', 'carol', 'Carol', '1 day', '1 day');
SELECT status, place FROM lock_enqueue('line:two', 'bob', 'Bob', '1 day', '1 day');
SELECT lock_release('line:two', 'ann');
SELECT status FROM lock_acquire('forced', '1 day', 'ann');
SELECT status FROM lock_acquire('expired', '1 ms', 'ann');
SELECT status FROM lock_acquire('released', '1 day', 'ann');
SELECT lock_release('released', 'ann');
BEGIN; SELECT status FROM lock_acquire('prepared', '1 day', 'ann'); PREPARE TRANSACTION 'acquired';
BEGIN; SELECT lock_release('line:one', 'ann'); PREPARE TRANSACTION 'released';
}), join("\n", ('acquired') x 5, 'queued|1', 'queued|2', 'queued|1', 't', ('acquired') x 3, 't', 'acquired', 't'), 'locks and tickets of the former version');
is(as('boss', q{SELECT force_release('forced', 'is ill')}), 't', '... and a forced release');
as($dba, q{CREATE ROLE dbo LOGIN}, 'postgres');
as($dba, 'CREATE DATABASE owned OWNER dbo', 'postgres');
is(as('dbo', q{CREATE EXTENSION atomic_lock; SELECT status FROM lock_acquire('k', '1 day', 'o')}, 'owned'), 'acquired', 'an extension with an owner who is no superuser');
my $token = as($dba, q{SELECT last_value FROM app_lock_fence});
my %before = look('shop');
unlike($before{$_}, qr/^(\w{5}|failed.*|)\z/, "there are $_") foreach sort keys %before;
my $dump = "$PostgreSQL::Test::Utils::tmp_check/next.dump";
$node->command_ok([ 'pg_dump', '--no-sync', '-Fc', '-f', $dump, 'shop' ], 'a dump');

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby', @install);
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my $session = session($node, 'Session', 'shop');
is(ask($session, q{SELECT status FROM lock_acquire('session', owner => 'dan', lifetime => 'session')}), 'acquired', 'a lock with lifetime session');

sub unchanged
{
	my ($step, $of) = @_;
	my %now = look($of // 'shop');
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is($now{$_}, $before{$_}, "$step: the same $_") foreach sort keys %now;
	return;
}

#
# The new package is installed.
#
next_scripts($share);
put_library($library, $lib);
is(as('clerk', $try), 'held', 'the new package, no restart: calls work as before');
is(as($dba, 'ALTER EXTENSION atomic_lock UPDATE'), '55000', '... the update has to wait for the restart');
is(as('clerk', q{SELECT lock_is_held('order:1', 'ann')}), 't', '... and changes nothing');
unchanged('before the restart');

#
# A restart
#
$node->restart;
is(as('clerk', $_), '55000', "restarted: $_") foreach $try, q{SELECT lock_extend_all('ann')}, q{UPDATE orders SET note = 'x' WHERE id = 2}, q{SELECT lock_enqueue('line:one', 'eve')};
is(as('clerk', 'SELECT count(*) FROM orders'), '3', '... guarded tables can be read');
unchanged('restarted');
like(as($dba, q{SELECT string_agg(gid, ' ' ORDER BY gid) FROM pg_prepared_xacts}), qr/^acquired released$/, '... prepared transactions are still there');
is(as($dba, q{SET lock_timeout = '100 ms'; ALTER EXTENSION atomic_lock UPDATE}), '55P03', '... the update waits for them');
is(as($dba, q{COMMIT PREPARED 'acquired'}), '', '... one can be committed');
is(as($dba, q{ROLLBACK PREPARED 'released'}), '', '... another rolled back');
$before{leases} = as($dba, $kept{leases});
like($before{leases}, qr/\|prepared\|f\|/, '... and the committed lease is in the table');

#
# The update
#
is($standby->safe_psql('shop', q{SELECT lock_is_held('order:1', 'ann')}), 't', 'a standby with the old library');
is(as($dba, 'ALTER EXTENSION atomic_lock UPDATE'), '', 'the update succeeds');
is(as($dba, q{SELECT extversion FROM pg_extension WHERE extname = 'atomic_lock'}), '1.1', '... and the extension has the new version');
unchanged('updated');

is(as('clerk', $try), 'held', '... others are refused');
is(as('clerk', q{SELECT lock_is_held('order:1', 'ann'), lock_extend_all('ann'), lock_try_release('forced', 'ann'), lock_try_release('expired', 'ann'), lock_try_release('released', 'ann'), lock_try_release('session', 'dan')}),
	't|4|forced|expired|already_released|expired', '... owners keep their locks, and hear which have ended');
is(as('clerk', q{SELECT status FROM lock_acquire('prepared', '1 day', 'ann')}), 'reacquired', '... also a lease that was prepared');
is(as('clerk', q{SELECT status FROM lock_try_acquire('few:k', '1 hour', 'eve', 'shared')}), 'held', '... policies apply');
is(as('clerk', q{SELECT lock_acquire('bosses:k')}), '42501', '... also their roles');
is(as('clerk', q{SET atomic_lock.owner = 'ann'; UPDATE orders SET note = 'x' WHERE id = 1 RETURNING id}), '1', '... a guard lets the owner write');
is(as('clerk', q{SET atomic_lock.owner = 'ann'; UPDATE orders SET note = 'x' WHERE id = 2}), 'LK006', '... and no other row');
is(as('clerk', q{SELECT status FROM lock_enqueue('line:two', 'bob'); SELECT lock_release('line:one', 'ann'); SELECT status FROM lock_try_acquire('line:one', owner => 'ann'); SELECT status, fencing_token > } . $token . q{ FROM lock_enqueue('line:one', 'bob')}),
	"acquired\nt\nheld\nacquired|t", '... the line moves on, and tokens rise');
is(as('clerk', q{SELECT expires_at - acquired_at FROM lock_acquire('new')}), '00:07:00', '... settings apply');
is(as('watcher', q{SELECT count(*) FROM lock_history WHERE key = 'line:one' AND ended_at IS NOT NULL}), '1', '... the history continues');
is(as('clerk', q{SET atomic_lock.note = 'call me'; SELECT status FROM lock_acquire('noted', '1 day', 'ann'); SELECT lock_note('noted'), lock_note('order:1')}), "acquired\ncall me|", '... a new setting, a new column, and a new function work');
is(as($_, q{SELECT lock_note('noted')}), '42501', "... the function is refused to $_") foreach ('watcher', 'super', 'boss', 'hand');
is(as('hand', q{SELECT lock_holder('order:1')}), 'Ann', '... a grant by hand is kept');
is(as('dbo', q{ALTER EXTENSION atomic_lock UPDATE; SELECT lock_is_held('k', 'o'), lock_note('k')}, 'owned'), 't|', 'an owner of the extension who is no superuser updates it, and may use the new function');
is(as('dbo', q{SELECT app_lock_begin_script()}, 'owned'), '42501', '... but may not begin scripts');
end($session);

#
# An updated extension equals a new one.
#
as($dba, 'CREATE DATABASE fresh', 'postgres');
as($dba, 'CREATE EXTENSION atomic_lock', 'fresh');
as($dba, q{SELECT lock_grant_access('clerk', 'user'), lock_grant_access('watcher', 'monitor'), lock_grant_access('super', 'supervisor'), lock_grant_access('boss', 'admin'); GRANT EXECUTE ON FUNCTION lock_holder(text) TO hand}, 'fresh');
my ($updated, $fresh) = map { as($dba, $definition, $_) } ('shop', 'fresh');
like($updated, qr/lock_note/, 'the parts of the updated extension');
# Differences are shown line by line.
my %in = map { $_ => 1 } split /\n/, $fresh;
is(join("\n", grep { !$in{$_} } split /\n/, $updated), '', '... contain nothing that a new extension lacks');
%in = map { $_ => 1 } split /\n/, $updated;
is(join("\n", grep { !$in{$_} } split /\n/, $fresh), '', '... and lack nothing that a new one contains');

#
# The dump of the former version
#
as($dba, 'CREATE DATABASE restored', 'postgres');
$node->command_ok([ 'pg_restore', '-e', '-d', 'restored', $dump ], 'the dump of the former version is restored');
my %restored = look('restored');
is($restored{$_}, $before{$_}, "... with the same $_") foreach 'policies', 'roles of policies', 'audit', 'guards', 'rights';
is(as($dba, q{SELECT extversion FROM pg_extension WHERE extname = 'atomic_lock'}, 'restored'), '1.1', '... as the new version');
is(as('clerk', qq{SELECT status, fencing_token > $token FROM lock_acquire('order:1')}, 'restored'), 'acquired|t', '... which works');
is(as('clerk', q{SELECT lock_note('order:1')}, 'restored'), '42501', '... the dump has no rights on new functions');
is(as($dba, q{SELECT app_lock_repeat_access()}, 'restored'), '', '... app_lock_repeat_access() grants them');
is(as('clerk', q{SELECT lock_note('order:1')}, 'restored'), '', '... to roles that have their level');
is(as('watcher', q{SELECT lock_note('order:1')}, 'restored'), '42501', '... and no other');

#
# The standby
#
$node->wait_for_catchup($standby);
$node->stop;
my ($status, $stdout, $stderr) = $standby->psql('shop', q{SELECT lock_is_held('order:1', 'ann')}, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($stderr, qr/ERROR:  55000: extension "atomic_lock" has version 1\.1 in this database, .*\nHINT:  Install the package of version 1\.1 if it is not there, and restart the server\./, 'a standby with the old library raises an error after the update');
$standby->restart;
is($standby->safe_psql('shop', q{SELECT lock_is_held('order:1', 'ann'), lock_note('noted')}), 't|call me', '... and works after a restart');
$standby->promote;
is($standby->safe_psql('shop', qq{$try; SELECT status, fencing_token > $token FROM lock_acquire('promoted'); SELECT status FROM lock_acquire('order:1', owner => 'ann')}), "held\nacquired|t\nreacquired", '... and as a primary');
$standby->stop;

log_is_clean($_) foreach ($node, $standby);

done_testing();
