# pg_upgrade with live leases.  test/upgrade runs it; AL_OLD and AL_NEW are the
# two installations.
#
# Shows that, after pg_upgrade in every mode:
#
# - The rows of app_lock, the lines, policies, history, guards, owners, privileges,
#   lock_audit and the contents of a dump are unchanged.
# - Owners extend, prove, release and reacquire their leases with the same tokens.
#   Others are refused with the holder's label.
# - The reasons of expired, released and forced leases remain.  The leases of
#   sessions have ended.  Keys that lock_delay keeps closed, as set for the
#   database, remain closed.
# - Each new token is above all old ones of its key and of its database.
# - The sweep has not run in either server during pg_upgrade, and runs afterwards.
#   Waiters are woken.
# - A dump of the new database restores, without leases.  The old cluster, if
#   pg_upgrade has left it, still has its leases.
# - If the new cluster has the library of the next version, calls say so until ALTER
#   EXTENSION UPDATE.  Then all of this holds.
#
# Turns red when the sweep runs in binary upgrade mode, when state is outside of the
# tables (such as in shared memory) or refers to an OID, when a stored hash depends on
# the version, when the library of the new version expects other columns, or when the
# sequence of tokens begins anew.

use strict;
use warnings FATAL => 'all';
use Cwd;
use AtomicLockNext;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($old_path, $new_path) = @ENV{qw(AL_OLD AL_NEW)};
my $settings = q{
shared_preload_libraries = 'atomic_lock'
autovacuum = off
log_min_messages = debug1
log_connections = on
atomic_lock.sweep_interval = 0
};

# Settings of both clusters during pg_upgrade: a sweep would remove all ended leases.
my $eager = q{
atomic_lock.sweep_interval = '1ms'
atomic_lock.released_retention = 0
};

my $node;

sub psql
{
	my ($db, $sql, @params) = @_;
	my ($status, $stdout, $stderr) = $node->psql($db, $sql,
		on_error_stop => 1,
		extra_params => [ '-v', 'VERBOSITY=verbose', @params ]);

	return $status == 0 ? $stdout : $stderr =~ /ERROR:  (\w{5}):/ ? $1 : "failed: $stderr";
}

# The same, as one of the roles.  In depot the extension is in a schema of its own.
sub as
{
	my ($role, $db, $sql) = @_;

	return psql($db, $sql, '-U', $role);
}

sub log_between
{
	my ($of, $from) = @_;
	my $log = slurp_file($of->logfile);

	return substr($log, $from);
}

# The parts of a database that must not change, and their names in the output
my %unchanged = (
	'leases' => q{SELECT to_jsonb(l) - 'note' FROM LOCKS.app_lock l ORDER BY key, slot},
	'places' => q{SELECT * FROM LOCKS.app_lock_queue ORDER BY key, ticket},
	'policies' => q{SELECT * FROM LOCKS.lock_policies ORDER BY prefix},
	'history' => q{SELECT * FROM LOCKS.lock_history ORDER BY key, fencing_token},
	'audit' => q{SELECT * FROM LOCKS.lock_audit ORDER BY at, key},
	'guards' => q{SELECT relation, key_template, events, state, parent, problem, separator FROM LOCKS.lock_guards ORDER BY relation::text},
	'triggers' => q{SELECT tgrelid::regclass, tgname, tgenabled, tgparentid <> 0, pg_get_triggerdef(oid)
		FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgrelid::regclass::text, tgname},
	'extension' => q{SELECT extname, extowner::regrole, extnamespace::regnamespace, extrelocatable,
		ARRAY(SELECT c::regclass::text FROM unnest(extconfig) c ORDER BY 1), extcondition FROM pg_extension WHERE extname = 'atomic_lock'},
	# The privileges on each function, table, view, sequence and composite type.  Default
	# privileges may be explicit or not.
	'privileges' => q{WITH o AS (
			SELECT 'pg_proc'::regclass AS classid, oid, proowner AS owner, proacl AS acl, 'f' AS kind FROM pg_proc
			UNION ALL SELECT 'pg_class'::regclass, oid, relowner, relacl, CASE relkind WHEN 'S' THEN 's' ELSE 'r' END FROM pg_class
			UNION ALL SELECT 'pg_type'::regclass, oid, typowner, typacl, 'T' FROM pg_type
				WHERE typrelid IN (SELECT oid FROM pg_class WHERE relkind = 'c')),
		d AS (SELECT pg_describe_object(m.classid, m.objid, 0) AS object, o.owner,
				coalesce(o.acl, acldefault(o.kind::"char", o.owner)) AS acl, coalesce(i.initprivs, acldefault(o.kind::"char", o.owner)) AS initprivs
			FROM o JOIN pg_depend m ON m.classid = o.classid
				JOIN pg_extension e ON m.refclassid = 'pg_extension'::regclass AND m.refobjid = e.oid AND m.deptype = 'e'
				LEFT JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = m.objid AND i.objsubid = 0
			WHERE m.objid = o.oid AND e.extname = 'atomic_lock'
			UNION ALL SELECT 'schema ' || nspname, nspowner, coalesce(nspacl, acldefault('n', nspowner)), NULL FROM pg_namespace WHERE nspname = 'LOCKS'
			UNION ALL SELECT 'default ' || defaclobjtype::text, defaclrole, defaclacl, NULL FROM pg_default_acl)
		SELECT object, owner::regrole, ARRAY(SELECT a::text FROM unnest(acl) a ORDER BY 1), ARRAY(SELECT a::text FROM unnest(initprivs) a ORDER BY 1)
		FROM d WHERE object !~ 'lock_note' ORDER BY object},
	'columns and indexes' => q{SELECT c.oid::regclass, c.relkind, c.reloptions, c.relpersistence,
			ARRAY(SELECT format('%s %s %s %s', attname, format_type(atttypid, atttypmod), attstorage, attcollation::regcollation)
				FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND attname <> 'note' ORDER BY attnum),
			CASE WHEN c.relkind = 'i' THEN pg_get_indexdef(c.oid) END
		FROM pg_class c WHERE relname ~ '^(app_lock|lock_audit)' AND relkind IN ('r', 'i', 'S') ORDER BY c.oid::regclass::text},
	'data' => q{SELECT * FROM orders UNION ALL SELECT * FROM parted ORDER BY 1, 2});

sub look
{
	my ($db, $what) = @_;
	my $schema = $db =~ /^depot/ ? 'locks' : 'public';

	my $answer = psql($db, 'SET TimeZone = UTC; ' . $unchanged{$what} =~ s/\bLOCKS\b/$schema/gr);

	# Since PostgreSQL 17 the owner of a table has one more privilege.
	$answer =~ s/\b(postgres=arwdDxt)m\b/$1/g if $what eq 'privileges';
	return $answer;
}

my @databases = ('shop', 'depot');

# ----------------------------------------------------------------------
# The old cluster
# ----------------------------------------------------------------------
my $old = $node = PostgreSQL::Test::Cluster->new('old', install_path => $old_path);
$node->init(extra => ['-k']);
$node->append_conf('postgresql.conf', $settings);
$node->start;
$node->safe_psql('postgres', q{
CREATE ROLE clerk LOGIN;
CREATE ROLE watcher LOGIN;
CREATE ROLE super LOGIN;
CREATE ROLE chief LOGIN;
CREATE ROLE nobody LOGIN;
CREATE ROLE depot_owner LOGIN;
CREATE DATABASE shop;
CREATE DATABASE depot OWNER depot_owner;
ALTER DATABASE depot SET atomic_lock.lock_delay = '1d';
ALTER DATABASE depot SET search_path = public, locks;
ALTER ROLE clerk SET atomic_lock.default_ttl = '7min';
});
$node->safe_psql('shop', 'CREATE EXTENSION atomic_lock');
$node->safe_psql('depot', q{
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO nobody;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO nobody;
CREATE SCHEMA locks;
CREATE EXTENSION atomic_lock SCHEMA locks;
GRANT USAGE ON SCHEMA locks TO nobody;
ALTER TABLE locks.lock_audit SET (fillfactor = 50);
});
foreach my $db (@databases)
{
	is(psql($db, q{
SELECT lock_grant_access('clerk', 'user'), lock_grant_access('watcher', 'monitor'), lock_grant_access('super', 'supervisor');
SELECT lock_grant_access('chief', 'admin'), lock_grant_access('chief', 'monitor'), lock_grant_access('chief', 'user');
GRANT CREATE ON SCHEMA public TO chief;
SET ROLE chief;
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders VALUES (1, 'one'), (2, 'two');
CREATE TABLE parted (id int, note text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
INSERT INTO parted VALUES (3, 'three');
SELECT lock_protect('orders', 'order:{id}'), lock_protect('parted', 'parted:{id}', '{insert,update,delete}', '/');
GRANT ALL ON orders, parted, parted_1 TO clerk;
SELECT lock_set_policy('line:', history => true), lock_set_policy('chiefs:', roles => '{chief}');
}), "||\n||\n|\n|", "$db: the old cluster");

	# Leases: exclusive, shared, with and without an owner's name, held by others
	# before, with a key and a meta of maximal size
	is(as('clerk', $db, q{
SET application_name = 'desk';
SELECT status FROM lock_acquire('order:1', '2 hours', 'ann', holder => 'Ann', meta => '{"screen": "totals"}');
SELECT status FROM lock_acquire('parted:3', '1 hour', 'ann');
SELECT status FROM lock_acquire('price-list', '1 hour', 'ann', mode => 'shared', holder => 'Ann');
SELECT status FROM lock_acquire('price-list', '3 hours', 'bob', mode => 'shared', holder => 'Bob');
SELECT status FROM lock_acquire('made up', '1 hour', holder => 'Anybody');
SELECT status FROM lock_acquire('big', '1 hour', 'ann', meta => (SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 200) n));
SELECT status FROM lock_acquire(repeat('k', 1024), '1 hour', repeat('o', 255), holder => repeat('h', 255));
SELECT status FROM lock_acquire('Schlüssel ☃', '1 hour', 'bob', holder => 'Łukasz');
SELECT count(*) FROM (SELECT lock_acquire('hot', '1 hour', 'bob'), lock_release('hot', 'bob') FROM generate_series(1, 100)) x;
SELECT status FROM lock_acquire('hot', '1 hour', 'ann');
SELECT lock_acquire('handed over', '1 hour', 'ann') IS NULL;
SELECT status FROM lock_transfer('handed over', 'ann', 'bob', 'Bob');
SELECT status FROM lock_acquire('expired', '1 ms', 'bob', holder => 'Bob');
SELECT status FROM lock_acquire('released', '1 hour', 'bob');
SELECT lock_release('released', 'bob');
SELECT status FROM lock_acquire('forced', '1 hour', 'bob', holder => 'Bob');
SELECT status FROM lock_acquire('stolen', '1 hour', 'bob', holder => 'Bob');
SELECT status FROM lock_acquire('line:k', '1 hour', 'zoe'), lock_release('line:k', 'zoe');
SELECT status FROM lock_acquire('line:k', '1 hour', 'ann', holder => 'Ann');
SELECT status, place FROM lock_enqueue('line:k', 'bob', 'Bob', '1 day', '1 day');
}), join("\n", ('acquired') x 8, 100, 'acquired', 'f', ('acquired') x 3, 't', ('acquired') x 4, 'queued|1'), "$db: leases");
	is(as('chief', $db, q{
SELECT force_release('forced', 'is ill');
SELECT status FROM lock_steal('stolen', 'ann', 'is away', '1 hour', 'Ann');
}), "t\nacquired", "$db: audited ends");

	# A crash ends a session.  Only its row remains.
	my $session = $node->background_psql($db);
	is(ask($session, q{SELECT status FROM lock_acquire('session', owner => 'bob', lifetime => 'session')}), 'acquired', "$db: for a session");
	$node->stop('immediate');
	eval { $session->quit };
	$node->start;
}
is(psql('shop', q{SELECT count(*), count(*) FILTER (WHERE expires_at > clock_timestamp() AND NOT released) FROM app_lock}), '16|13', 'the old cluster has 16 rows, 13 of them live');

my %before;
foreach my $db (@databases)
{
	$before{$db}{$_} = look($db, $_) foreach keys %unchanged;
	unlike($before{$db}{$_}, qr/^(failed.*|\w{5}|)\z/, "$db: the old cluster has $_") foreach sort keys %unchanged;
	$before{$db}{tokens} = psql($db, 'SELECT max(fencing_token) FROM app_lock');
	$before{$db}{last} = psql($db, 'SELECT last_value FROM app_lock_fence');
	$before{$db}{owner} = psql($db, q{SELECT owner FROM app_lock WHERE key = 'made up'});
	$before{$db}{ann} = psql($db, q{SELECT count(*) FROM app_lock WHERE owner = 'ann' AND NOT released});
}
like(slurp_file($node->logfile), qr/registering background worker "atomic_lock launcher"/, 'the log of the old cluster shows the start of the launcher');
$node->stop;
$old->backup_fs_cold('cold');

# ----------------------------------------------------------------------
# After the upgrade
# ----------------------------------------------------------------------
sub upgraded
{
	my ($name, $db) = @_;
	my $b = $before{$db};
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(look($db, $_), $b->{$_}, "$name: unchanged $_") foreach sort keys %unchanged;
	cmp_ok(psql($db, 'SELECT last_value FROM app_lock_fence'), '>=', $b->{last}, "$name: the sequence of tokens has not gone back");

	# Others are refused
	is(as('clerk', $db, q{SELECT acquired, status, mode, holder FROM lock_try_acquire('order:1', owner => 'eve')}), 'f|held|exclusive|Ann', "$name: another owner is refused with the label of the holder");
	is(as('clerk', $db, q{SELECT lock_acquire('order:1', owner => 'eve')}), '55P03', "$name: ... or gets SQLSTATE 55P03");
	is(as('clerk', $db, q{SELECT status, holder FROM lock_try_acquire('price-list', owner => 'eve')}), 'held|Bob', "$name: another owner is refused a shared key");
	is(as('clerk', $db, q{SELECT status, holder FROM lock_try_acquire('price-list', owner => 'ann')}), 'held|Bob', "$name: a sharer is refused an exclusive lock beside another sharer");
	is(as('clerk', $db, q{SELECT lock_try_release('order:1', 'eve'), lock_try_extend('order:1', 'eve'), lock_is_held('order:1', 'eve')}), 'not_owner||f', "$name: another owner cannot release, extend or prove a lease");

	# Ended leases
	is(as('clerk', $db, q{SELECT lock_try_release('expired', 'bob'), lock_try_release('released', 'bob'), lock_try_release('forced', 'bob'), lock_try_release('stolen', 'bob'), lock_try_release('session', 'bob')}),
		'expired|already_released|forced|forced|expired', "$name: ended leases keep the reason of their end");
	is(as('watcher', $db, q{SELECT count(*), count(pid), sum(holders) FROM lock_status()}), '12|0|14', "$name: lock_status has all live leases");

	# Guards
	is(as('clerk', $db, q{UPDATE orders SET note = 'x' WHERE id = 1}), 'LK006', "$name: the guard refuses a write without an owner");
	is(as('clerk', $db, q{SET atomic_lock.owner = 'eve'; UPDATE orders SET note = 'x' WHERE id = 1}), 'LK006', "$name: ... by another owner");
	is(as('clerk', $db, q{SET atomic_lock.owner = 'ann'; UPDATE orders SET note = 'x' WHERE id = 2}), 'LK006', "$name: ... and of another row");
	is(as('clerk', $db, q{SET atomic_lock.owner = 'ann'; UPDATE orders SET note = 'changed' WHERE id = 1 RETURNING note}), 'changed', "$name: ... and lets the owner write");
	is(as('clerk', $db, q{SET atomic_lock.owner = 'bob'; DELETE FROM parted_1}), 'LK006', "$name: the guard of a partition refuses another owner");
	is(as('clerk', $db, q{SET atomic_lock.owner = 'ann'; UPDATE parted SET note = 'changed' RETURNING id}), '3', "$name: ... and lets the owner write through the parent table");
	is(as('chief', $db, q{TRUNCATE orders}), '55000', "$name: ... and refuses TRUNCATE");

	# Effects of privileges
	is(as('nobody', $db, $_), '42501', "$name: a role without access is refused: $_")
	  foreach (q{SELECT locked FROM lock_status('x')}, q{SELECT lock_sweep()}, q{SELECT * FROM lock_activity}, q{SELECT * FROM app_lock}, q{SELECT * FROM lock_audit});
	is(as('clerk', $db, q{SELECT force_release('order:1', 'because')}), '42501', "$name: level user may not force a release");
	is(as('watcher', $db, q{SELECT lock_acquire('x')}), '42501', "$name: level monitor may not acquire");
	is(as('super', $db, q{SELECT lock_try_force_release('nobody has it', 'because')}), 'not_found', "$name: level supervisor may force a release");
	is(as('chief', $db, q{SELECT count(*) FROM lock_audit}), '2', "$name: level admin reads the audit");
	is(as('clerk', $db, q{SELECT acquired_at + '7 min' >= expires_at AND lock_release('x', owner) FROM lock_acquire('x')}), 't', "$name: the default_ttl of a role applies");

	# Owners continue
	my $token = psql($db, q{SELECT fencing_token FROM app_lock WHERE key = 'order:1'});
	is(as('clerk', $db, q{SELECT lock_assert('order:1', 'ann')}), $token, "$name: the owner proves the lease with the old token");
	is(as('clerk', $db, qq{SELECT lock_assert_fence('order:1', $token, 'ann')}), '', "$name: ... and by passing the token");
	is(as('clerk', $db, q{SET atomic_lock.owner = 'ann'; SELECT n.status, n.fencing_token = o.fencing_token, n.acquired_at = o.acquired_at, n.expires_at > o.expires_at, n.holder
		FROM lock_status('order:1') o, lock_acquire('order:1', '2 hours', 'ann') n}), 'reacquired|t|t|t|Ann', "$name: the owner reacquires with the same token, and extends the lease");
	is(as('clerk', $db, q{SELECT lock_extend('price-list', 'bob') - clock_timestamp() BETWEEN '2 hours 59 min' AND '3 hours'}), 't', "$name: a sharer extends by the ttl of the old call");
	is(as('clerk', $db, q{SELECT status, mode FROM lock_acquire('price-list', '1 hour', 'carol', mode => 'shared')}), 'acquired|shared', "$name: a third owner shares the key");
	is(as('clerk', $db, q{SELECT lock_release('price-list', 'carol'), lock_release('price-list', 'ann')}), 't|t', "$name: ... and releases it, as does one of the others");
	is(as('clerk', $db, q{SELECT status, mode, holder FROM lock_convert('price-list', 'bob')}), 'acquired|exclusive|Bob', "$name: the last sharer converts to exclusive");
	is(as('clerk', $db, qq{SELECT lock_extend('made up', '$b->{owner}') > clock_timestamp(), lock_extend_all('$b->{owner}')}), 't|1', "$name: a generated owner extends its lease");
	is(as('clerk', $db, qq{SELECT lock_release_all('$b->{owner}')}), '1', "$name: ... and releases it");
	is(as('clerk', $db, q{SELECT lock_extend_all('ann')}), $b->{ann} - 1, "$name: lock_extend_all extends all leases of an owner");

	# The line, policies and history
	is(as('clerk', $db, q{SELECT lock_release('line:k', 'ann'); SELECT status, holder FROM lock_try_acquire('line:k', owner => 'ann'); SELECT status FROM lock_enqueue('line:k', 'bob'); SELECT lock_release('line:k', 'bob')}),
		"t\nheld|Bob\nacquired\nt", "$name: the first in line gets the key after a release");
	is(as('clerk', $db, q{SELECT lock_acquire('chiefs:k')}), '42501', "$name: policies apply");
	is(as('watcher', $db, q{SELECT count(ended_at) FROM lock_history}), '3', "$name: the history has the new ends");

	# Waits, in the shared memory of the new server
	my ($waiter, $owner) = map { $node->background_psql($db, extra_params => [ '-U', 'clerk' ]) } (1, 2);
	$waiter->query_until(qr/waiting/, "\\echo waiting\nSELECT status FROM lock_acquire('hot', '1 hour', 'bob', wait => '100 s');\n");
	ok($node->poll_query_until($db, q{SELECT count(*) = 1 FROM lock_waiters WHERE key = 'hot'}), "$name: a waiter joins the queue");
	is(ask($owner, q{SELECT lock_release('hot', 'ann')}), 't', "$name: ... the holder releases the key");
	is(ask($waiter, q{SELECT 'next'}), "acquired\nnext", "$name: ... and the waiter is granted the key");
	$_->quit foreach ($waiter, $owner);

	# New tokens.  Every old key gets a new owner.
	if ($db eq 'depot')
	{
		is(as('clerk', $db, q{SELECT status FROM lock_try_acquire('expired', owner => 'eve')}), 'held', "$name: lock_delay keeps the key of an expired lease closed");
		is(as('clerk', $db, q{SELECT status FROM lock_try_acquire('session', owner => 'eve')}), 'held', "$name: ... and the key of an ended session");
		is(as('clerk', $db, q{SELECT status, lock_release('released', 'eve') FROM lock_try_acquire('released', owner => 'eve')}), 'acquired|t', "$name: ... but not a released key");
	}
	is(psql($db, q{SET atomic_lock.lock_delay = 0;
		SELECT count(lock_try_release(key, owner)) > 10 FROM app_lock WHERE owner IS NOT NULL AND NOT released;
		SELECT count(*) FROM (SELECT DISTINCT key FROM app_lock) k,
			LATERAL (SELECT max(fencing_token) AS token FROM app_lock a WHERE a.key = k.key) a,
			LATERAL lock_try_acquire(k.key, '1 hour', 'eve') g
			WHERE g.acquired AND g.fencing_token > } . $b->{tokens} . q{ AND g.fencing_token > a.token;
		SELECT count(DISTINCT key) FROM app_lock; SELECT lock_release_all('eve') > 10;
		}), "t\n16\n16\nt", "$name: a new owner of every key has a higher token");
	return;
}

# Dumps and restores the upgraded database; the dump has no leases
sub restored
{
	my ($name, $from) = @_;
	my $to = "${from}_restored";
	my $file = "$PostgreSQL::Test::Utils::tmp_check/$name.dump";
	my $audit = look($from, 'audit');
	my $token = psql($from, 'SELECT max(fencing_token) FROM app_lock');
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$node->command_ok([ $node->installed_command('pg_dump'), '-Fc', '-f', $file, '-d', $node->connstr($from) ], "$name: pg_dump");
	psql('postgres', "CREATE DATABASE $to; ALTER DATABASE $to SET search_path = public, locks");
	$node->command_ok([ $node->installed_command('pg_restore'), '-e', '-d', $node->connstr($to), $file ], "$name: ... and pg_restore");
	is(psql($to, 'SELECT count(*) FROM app_lock'), '0', "$name: ... without leases");
	is(look($to, 'audit'), $audit, "$name: ... with the audit");
	is(look($to, $_), look($from, $_), "$name: ... with the same $_") foreach ('guards', 'policies', 'privileges', 'data');
	cmp_ok(as('clerk', $to, q{SELECT fencing_token FROM lock_acquire('order:1', owner => 'new')}), '>', $token, "$name: ... with a higher token");
	return;
}

# Run pg_upgrade in its own directory, and keep the logs of its servers, which show their
# processes.  Returns the error of a failed restore, or nothing.
sub pg_upgrade
{
	my ($source, $target, $dir, @options) = @_;
	my $top = getcwd;

	mkdir $dir or die "mkdir $dir: $!";
	chdir $dir or die "chdir $dir: $!";
	my $upgraded = run_log([
			$target->installed_command('pg_upgrade'), '--no-sync', '--retain',
			'-d', $source->data_dir, '-D', $target->data_dir,
			'-b', $source->config_data('--bindir'), '-B', $target->config_data('--bindir'),
			'-s', $target->host, '-p', $source->port, '-P', $target->port, @options ]);
	chdir $top or die "chdir $top: $!";
	return if $upgraded;
	my $log = join('', map { slurp_file($_) } glob($target->data_dir . '/pg_upgrade_output.d/*/log/pg_upgrade_dump_*.log'));
	return $log =~ /(error: .*)/ ? $1 : 'pg_upgrade failed, not in a restore';
}

# The error of pg_upgrade for a plain table in clusters without atomic_lock, or an empty string
sub plain_upgrade
{
	my $source = PostgreSQL::Test::Cluster->new('old_plain', install_path => $old_path);
	my $target = PostgreSQL::Test::Cluster->new('new_plain', install_path => $new_path);

	$_->init(extra => ['-k']) foreach $source, $target;
	$source->start;
	$source->safe_psql('postgres', 'CREATE TABLE plain (id integer)');
	$source->stop;
	return pg_upgrade($source, $target, "$PostgreSQL::Test::Utils::tmp_check/upgrade_plain") // '';
}

sub try_mode
{
	my ($mode, $next) = @_;
	my $name = $next ? "$mode, next version" : $mode;
	my $source = PostgreSQL::Test::Cluster->new($next ? "before_$mode" : "old_$mode", install_path => $old_path);
	my $target = PostgreSQL::Test::Cluster->new($next ? "next_$mode" : "new_$mode", install_path => $next // $new_path);
	my $dir = "$PostgreSQL::Test::Utils::tmp_check/upgrade_$mode" . ($next ? '_next' : '');

	$source->init_from_backup($old, 'cold');
	$source->append_conf('postgresql.conf', $eager);
	$target->init(extra => ['-k']);
	$target->append_conf('postgresql.conf', $settings . $eager);
	my $problem = pg_upgrade($source, $target, $dir, $mode eq 'copy' && $target->pg_version < 16 ? () : "--$mode");
	if (defined $problem && $problem eq plain_upgrade())
	{
		# Some minor versions do not match, such as 17.12, which stores an option with each
		# column, and 18.6, which does not know that option.
		diag("pg_upgrade cannot upgrade a plain table between these two either: $problem");
		$_->clean_node foreach $source, $target;
		done_testing();
		exit 0;
	}
	is($problem, undef, "$name: pg_upgrade");
	my @logs = glob($target->data_dir . '/pg_upgrade_output.d/*/log/pg_upgrade_server.log');
	is(scalar @logs, 1, "$name: pg_upgrade has kept the log of its servers");
	my $log = slurp_file($logs[0]);
	like($log, qr/loaded library "atomic_lock"/, "$name: ... which loaded the library");
	unlike($log, qr/atomic_lock (launcher|sweeper)/, "$name: ... and started no sweep");

	$node = $target;
	$node->append_conf('postgresql.conf', $settings);
	$node->start;
	foreach my $db ($next ? @databases : ())
	{
		is(as('clerk', $db, $_), '55000', "$name, $db: before ALTER EXTENSION UPDATE, calls are refused: $_") foreach q{SELECT lock_try_acquire('order:1', owner => 'eve')}, q{UPDATE orders SET note = 'x' WHERE id = 1};
		is(look($db, $_), $before{$db}{$_}, "$name, $db: ... with unchanged $_") foreach sort grep { $_ ne 'guards' } keys %unchanged;
		is(psql($db, 'ALTER EXTENSION atomic_lock UPDATE; SELECT extversion FROM pg_extension WHERE extname = $$atomic_lock$$'), '1.1', "$name, $db: ALTER EXTENSION UPDATE");
	}
	upgraded("$name, $_", $_) foreach @databases;
	restored("$name, $_", $_) foreach @databases;

	# Now the sweep may run
	psql('depot', q{SELECT lock_acquire('kept', '1 hour', 'zoe')});
	my $from = -s $node->logfile;
	$node->append_conf('postgresql.conf', $eager);
	$node->reload;
	ok($node->poll_query_until($_, q{SELECT count(*) = 0 FROM app_lock WHERE released}), "$name, $_: the sweep removes released leases") foreach @databases;
	like(psql('shop', q{SELECT status FROM lock_sweeper_status() WHERE database IS NULL}), qr/^running/, "$name: ... and lock_sweeper_status shows that it runs");
	is(psql('depot', q{SELECT owner FROM app_lock}), 'zoe', "$name: ... and leaves a live lease");
	like(log_between($node, $from), qr/atomic_lock sweeper/, "$name: ... and the log shows its worker");

	$node->command_ok([ $node->installed_command('pg_amcheck'), '--install-missing', '--heapallindexed', '-d', 'shop', '-d', 'depot', '-p', $node->port, '-h', $node->host ], "$name: pg_amcheck finds tables and indexes sound");
	psql('depot', q{DROP EXTENSION atomic_lock CASCADE; CREATE EXTENSION atomic_lock SCHEMA locks});
	cmp_ok(psql('depot', q{SELECT fencing_token FROM lock_acquire('kept', '1 hour', 'new')}), '>', $before{depot}{tokens}, "$name: a new extension grants a higher token than the old one");
	$node->stop;
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|XX000/, "$name: nothing unexpected in the log");

	if ($mode eq 'copy' && !$next)
	{
		# A user who returns to the old cluster finds its leases.
		$node = $source;
		$node->append_conf('postgresql.conf', $settings);
		$node->start;
		upgraded("back to the old, $_", $_) foreach @databases;
		$node->stop;
	}
	return;
}

try_mode('copy');
try_mode('link');
try_mode('swap') if PostgreSQL::Test::Cluster->new('version', install_path => $new_path)->pg_version >= 18;

# A new package of PostgreSQL and of the extension at once
my ($bin, $share, $lib) = copy_installation('next') or die 'the installation cannot be copied';
put_library(next_library($bin), $lib);
next_scripts($share);
try_mode('copy', $bin =~ s{/bin$}{}r);

done_testing();
