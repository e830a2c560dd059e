# Guards in dumps, under new names, and without the extension.
#
# Properties: a dump in any format restores the same guards, on plain
# tables, partitions and children, with their events, templates and states, and
# they refuse the same writes; the data is loaded before them, leases are not
# dumped; a role that restores guards on its own tables needs level admin, and
# without it gets the data and an error; loading data into tables that are guarded
# for INSERT is refused, unless triggers are off; a guard stays with its table
# under another name and schema, and says when its columns no longer fit; DROP EXTENSION
# needs CASCADE if there are guards, and leaves tables that can be written and
# guarded again.  (install/next_version has guards over an update.)
#
# Turns red when: guarded tables are recorded by OID or name in a table,
# or anywhere but in the triggers; a guard is an internal trigger; its function
# is looked up by name in search_path, which pg_dump makes empty; the
# arguments of the trigger are not quoted as pg_get_triggerdef does; a session
# remembers guards over DDL.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('guard_dump');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nautovacuum = off\nmax_locks_per_transaction = 200\n");
$node->start;

sub psql
{
	my ($db, $sql, @params) = @_;
	return $node->safe_psql($db, $sql, extra_params => \@params);
}

psql('postgres', q{
CREATE ROLE keeper LOGIN;
CREATE ROLE writer LOGIN;
GRANT SET ON PARAMETER session_replication_role TO writer;
CREATE DATABASE shop;
});
psql('shop', q{
CREATE EXTENSION atomic_lock;
SELECT lock_grant_access('keeper', 'admin'), lock_grant_access('keeper', 'user'), lock_grant_access('writer', 'user');
CREATE SCHEMA app AUTHORIZATION keeper;
SET ROLE keeper;
SET search_path = app, public;

CREATE TABLE orders (id int PRIMARY KEY, note text);
CREATE TABLE order_line (id int PRIMARY KEY, order_id int REFERENCES orders, qty int);
SELECT lock_protect('orders', 'order:{id}'), lock_protect('order_line', 'order:{order_id}', '{delete,insert}');

CREATE TABLE parted (id int, part int, note text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2) PARTITION BY RANGE (id);
CREATE TABLE parted_2_low PARTITION OF parted_2 FOR VALUES FROM (0) TO (10);
CREATE TABLE attached (note text, part int NOT NULL, id int NOT NULL);
SELECT lock_protect('parted', 'parted:{part}:{id}', '{insert,update,delete}');
ALTER TABLE parted ATTACH PARTITION attached FOR VALUES IN (3);
-- once more, to refuse TRUNCATE of the attached partition
SELECT lock_protect('parted', 'parted:{part}:{id}', '{insert,update,delete}');

CREATE TABLE parent (id int PRIMARY KEY, note text);
CREATE TABLE child (more text) INHERITS (parent);
CREATE TABLE grandchild () INHERITS (child);
SELECT lock_protect('parent', 'parent:{id}');

CREATE TABLE "Odd 'table' \ ""x""" ("a'b\c "" d" int PRIMARY KEY, note text);
SELECT lock_protect('"Odd ''table'' \ ""x"""', $$it's \ {{odd}}:{a'b\c " d}$$);

CREATE TABLE one_lock (note text);
SELECT lock_protect('one_lock', 'all of it', '{INSERT,update}');
CREATE TABLE disabled (id int);
SELECT lock_protect('disabled', 'd:{id}', separator => $$ '"/$$);
ALTER TABLE disabled DISABLE TRIGGER "~atomic_lock_guard";
CREATE TABLE always (id int);
SELECT lock_protect('always', 'a:{id}');
ALTER TABLE always ENABLE ALWAYS TRIGGER "~atomic_lock_guard";
GRANT USAGE ON SCHEMA app TO writer;
GRANT ALL ON ALL TABLES IN SCHEMA app TO writer;
});
psql('shop', q{
SET search_path = app, public;
SET atomic_lock.owner = 'me';
SELECT count(*) FROM lock_acquire_all('{order:1,order:2,parted:1:1,parted:2:2,parted:3:3,all of it}', '1 hour');
INSERT INTO orders VALUES (1, 'one'), (2, 'two');
INSERT INTO order_line VALUES (10, 1, 1), (11, 1, 2), (12, 2, 3);
INSERT INTO parted VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c');
INSERT INTO parent VALUES (1, 'p');
INSERT INTO child VALUES (2, 'c');
INSERT INTO grandchild VALUES (3, 'g');
INSERT INTO "Odd 'table' \ ""x""" VALUES (1, 'odd');
INSERT INTO one_lock VALUES ('only');
INSERT INTO disabled VALUES (1);
INSERT INTO always VALUES (1);
});

# Everything that describes the guards
my $guards = q{SET search_path = app, public; SELECT relation, key_template, events, state, parent, problem, separator FROM lock_guards ORDER BY relation::text COLLATE "C"};
my $triggers = q{SET search_path = app, public; SELECT tgrelid::regclass, tgname, tgenabled, tgparentid <> 0, tgisinternal, pg_get_triggerdef(oid)
	FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgrelid::regclass::text COLLATE "C", tgname};
my $data = q{SET search_path = app, public; SELECT 'orders', id, note FROM orders UNION ALL SELECT 'order_line', id, qty::text FROM order_line
	UNION ALL SELECT tableoid::regclass::text, id, note FROM parted UNION ALL SELECT tableoid::regclass::text, id, note FROM parent
	UNION ALL SELECT 'odd', "a'b\c "" d", note FROM "Odd 'table' \ ""x""" UNION ALL SELECT 'one', 0, note FROM one_lock
	UNION ALL SELECT 'disabled', id, '' FROM disabled UNION ALL SELECT 'always', id, '' FROM always ORDER BY 1, 2};
my ($all_guards, $all_triggers, $all_data) = map { psql('shop', $_) } ($guards, $triggers, $data);

is($all_guards, q{"Odd 'table' \ ""x"""|it's \ {{odd}}:{a'b\c " d}|{update,delete}|enabled|||
always|a:{id}|{update,delete}|always|||
attached|parted:{part}:{id}|{insert,update,delete}|enabled|parted||
child|parent:{id}|{update,delete}|enabled|||
disabled|d:{id}|{update,delete}|disabled||| '"/
grandchild|parent:{id}|{update,delete}|enabled|||
one_lock|all of it|{insert,update}|enabled|||
order_line|order:{order_id}|{insert,delete}|enabled|||
orders|order:{id}|{update,delete}|enabled|||
parent|parent:{id}|{update,delete}|enabled|||
parted|parted:{part}:{id}|{insert,update,delete}|enabled|||
parted_1|parted:{part}:{id}|{insert,update,delete}|enabled|parted||
parted_2|parted:{part}:{id}|{insert,update,delete}|enabled|parted||
parted_2_low|parted:{part}:{id}|{insert,update,delete}|enabled|parted_2||}, 'lock_guards shows the guarded tables');

# Writes that are refused without the lock, and their keys
my @writes = (
	[ q{UPDATE orders SET note = note WHERE id = 1}, 'order:1' ],
	[ q{DELETE FROM order_line WHERE id = 10}, 'order:1' ],
	[ q{INSERT INTO order_line VALUES (20, 2, 1)}, 'order:2' ],
	[ q{UPDATE parted SET note = note WHERE id = 1}, 'parted:1:1' ],
	[ q{UPDATE parted_2_low SET note = note}, 'parted:2:2' ],
	[ q{INSERT INTO attached VALUES ('new', 3, 5)}, 'parted:3:5' ],
	[ q{UPDATE ONLY parent SET note = note}, 'parent:1' ],
	[ q{DELETE FROM parent WHERE id = 2}, 'parent:2' ],
	[ q{UPDATE grandchild SET note = note}, 'parent:3' ],
	[ q{DELETE FROM "Odd 'table' \ ""x"""}, q{it's \ {odd}:1} ],
	[ q{INSERT INTO one_lock VALUES ('more')}, 'all of it' ],
	[ q{SET session_replication_role = replica; DELETE FROM always}, 'a:1' ]);
my @allowed = (
	q{UPDATE order_line SET qty = qty},
	q{DELETE FROM one_lock},
	q{DELETE FROM disabled});

# Does a database have the same guards, and do they work?
sub works
{
	my ($db, $name, @params) = @_;
	my $path = 'SET search_path = app, public';

	subtest $name => sub {
		is(psql($db, $guards), $all_guards, 'lock_guards');
		is(psql($db, $triggers), $all_triggers, 'triggers');
		is(psql($db, $data), $all_data, 'data');
		is(psql($db, 'SELECT count(*) FROM lock_status()'), '0', 'no lease') if $db ne 'shop';
		foreach my $write (@writes)
		{
			my ($sql, $key) = @$write;

			is(sqlstate($node, "$path; SET atomic_lock.owner = 'she'; $sql", $db, @params), 'LK006', "refused: $sql");
			$key =~ s/'/''/g;
			is(sqlstate($node, "$path; SET atomic_lock.owner = 'she'; BEGIN; SELECT lock_acquire('$key', '1 hour'); $sql; ROLLBACK", $db, @params), 'no error: ', '... and allowed with its lock');
		}
		is(sqlstate($node, "$path; BEGIN; $_; ROLLBACK", $db, @params), 'no error: ', "not guarded: $_") for @allowed;
		foreach my $table ('orders CASCADE', 'parted', 'parted_1', 'parted_2_low', 'attached', 'ONLY child', 'grandchild', 'one_lock')
		{
			is(sqlstate($node, "$path; TRUNCATE $table", $db, @params), '55000', "refused: TRUNCATE $table");
		}
		is(psql($db, $data), $all_data, 'data is unchanged after these writes');
	};
	return;
}
psql('shop', q{SELECT lock_release_all('me')});
works('shop', 'before the dump');
psql('shop', q{SELECT lock_acquire('order:1', '1 hour', 'me')});

#
# Dump and restore by a superuser
#
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my ($plain, $custom) = ("$tmp/guard_dump.sql", "$tmp/guard_dump.custom");
$node->command_ok([ 'pg_dump', '--no-sync', '-f', $plain, 'shop' ], 'pg_dump');
$node->command_ok([ 'pg_dump', '--no-sync', '-Fc', '-f', $custom, 'shop' ], 'pg_dump -Fc');
my @restores = (
	[ plain => 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $plain ],
	[ custom => 'pg_restore', '-e', $custom ],
	[ parallel => 'pg_restore', '-e', '-j', '3', $custom ]);
foreach my $restore (@restores)
{
	my ($db, @command) = @$restore;

	# a parallel restore may create a guard before the data of a partition is loaded
	local $ENV{PGOPTIONS} = $db eq 'parallel' ? '-c atomic_lock.enforce_guards=off' : '';
	psql('postgres', "CREATE DATABASE $db");
	$node->command_ok([ @command, '-d', $db ], "restore: $db");
	works($db, "restored: $db", '-U', 'writer') if $db ne 'parallel';
	is(psql($db, $guards), $all_guards, '... with the same guards');
}
is(psql('custom', q{SET search_path = app; SELECT (public.lock_acquire('order:1', '1 hour', 'she')).status}), 'acquired', 'a key that was locked during the dump is free');

# Data only, into tables that are guarded for INSERT
psql('custom', q{SET atomic_lock.enforce_guards = off; DELETE FROM app.order_line; DELETE FROM app.orders; DELETE FROM app.parted; TRUNCATE app.one_lock});
$node->command_checks_all([ 'pg_restore', '--data-only', '-t', 'order_line', '-t', 'orders', '-t', 'one_lock', '-t', 'parted_1', '-d', 'custom', $custom ],
	1, [qr/^$/], [ qr/COPY failed for table "order_line"/, qr/COPY failed for table "parted_1"/ ], 'guards refuse a restore of data only');
is(psql('custom', 'SELECT (SELECT count(*) FROM app.order_line), (SELECT count(*) FROM app.orders), (SELECT count(*) FROM app.one_lock), (SELECT count(*) FROM app.parted_1)'),
	'0|2|0|0', '... in tables guarded for INSERT');
$node->command_ok([ 'pg_restore', '-e', '--data-only', '--disable-triggers', '-t', 'order_line', '-t', 'one_lock', '-t', 'parted_1', '-d', 'custom', $custom ],
	'... but not with --disable-triggers');
{
	local $ENV{PGOPTIONS} = '-c atomic_lock.enforce_guards=off';
	$node->command_ok([ 'pg_restore', '-e', '--data-only', '-t', 'parted_2_low', '-t', 'attached', '-d', 'custom', $custom ],
		'... nor with atomic_lock.enforce_guards = off');
}
psql('custom', q{SELECT lock_release_all('she')});
works('custom', '... guards are unchanged after that', '-U', 'writer');
psql('postgres', 'DROP DATABASE parallel');

#
# Dump and restore by the owner of the tables
#
my $owned = "$tmp/guard_dump_owned.sql";
$node->command_ok([ 'pg_dump', '--no-sync', '-U', 'keeper', '-n', 'app', '-f', $owned, 'shop' ], 'pg_dump of a schema by the owner of the tables');
$node->command_fails_like([ 'pg_dump', '--no-sync', '-U', 'keeper', '-f', "$owned.all", 'shop' ],
	qr/permission denied for (sequence app_lock_fence|table lock_audit)|failed to get data for sequence "app_lock_fence"; user may lack SELECT/, '... of the whole database needs the right to read tables of the extension');
psql('postgres', 'CREATE DATABASE owned_3; GRANT pg_read_all_data TO keeper');
$node->command_ok([ 'pg_dump', '--no-sync', '-U', 'keeper', '-f', "$owned.all", 'shop' ], '... which pg_read_all_data includes');
psql('postgres', 'REVOKE pg_read_all_data FROM keeper');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', 'owned_3', '-f', "$owned.all" ], '... restored by a superuser');
is(psql('owned_3', $guards), $all_guards, '... with the same guards');
psql('postgres', "CREATE DATABASE $_; GRANT CREATE ON DATABASE $_ TO keeper") for qw(owned_1 owned_2);
psql($_, q{CREATE EXTENSION atomic_lock; SELECT lock_grant_access('writer', 'user')}) for qw(owned_1 owned_2);
$node->command_checks_all([ 'psql', '-X', '-q', '-o', '/dev/null', '-U', 'keeper', '-d', 'owned_1', '-f', $owned ],
	0, [qr/^$/], [qr/ERROR:  permission denied for function public.lock_guard/], '... restored without level admin: an error');
is(psql('owned_1', $data), $all_data, '... the data is restored');
is(psql('owned_1', $guards), '', '... without guards');
psql('owned_1', q{SELECT lock_grant_access('keeper', 'admin')});
psql('owned_1', q{SET search_path = app, public; SELECT lock_protect('orders', 'order:{id}')}, '-U', 'keeper');
is(sqlstate($node, 'DELETE FROM app.orders', 'owned_1', '-U', 'writer'), 'LK006', '... which the owner can create again with level admin');
psql('owned_2', q{SELECT lock_grant_access('keeper', 'admin')});
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-U', 'keeper', '-d', 'owned_2', '-f', $owned ], '... restored with level admin');
works('owned_2', '... guards are restored', '-U', 'writer');
psql('postgres', "DROP DATABASE $_") for qw(owned_1 owned_2 owned_3);

#
# New names
#
my $session = $node->background_psql('plain', on_error_stop => 0);
sub errors
{
	my ($sql) = @_;

	$session->query("\\set VERBOSITY verbose\n$sql");
	my ($state) = $session->{stderr} =~ /^(?:psql:\S+ )?ERROR:  (\w{5}):/m;
	$session->{stderr} = '';
	return $state // 'no error';
}
ask($session, q{SET atomic_lock.owner = 'me'; SELECT lock_acquire('order:1', '1 hour')});
is(errors('UPDATE app.orders SET note = note WHERE id = 1'), 'no error', 'a session writes with the lock');
is(errors('UPDATE app.orders SET note = note WHERE id = 2'), 'LK006', '... and not without');
psql('plain', 'ALTER TABLE app.orders RENAME TO purchase; ALTER SCHEMA app RENAME TO shop; CREATE SCHEMA app; ALTER TABLE shop.parent SET SCHEMA app');
is(errors('UPDATE shop.purchase SET note = note WHERE id = 1'), 'no error', 'table and schema renamed: the key is the same');
is(errors('UPDATE shop.purchase SET note = note WHERE id = 2'), 'LK006', '... and the guard still works');
is(errors('DELETE FROM app.parent'), 'LK006', '... as does that of a table moved to another schema');
is(psql('plain', q{SELECT relation, key_template, problem FROM lock_guards WHERE relation IN ('shop.purchase'::regclass, 'app.parent'::regclass) ORDER BY relation::text}),
	"app.parent|parent:{id}|\nshop.purchase|order:{id}|", '... lock_guards shows the new names');
psql('plain', 'ALTER SCHEMA public RENAME TO locks');
is(errors('UPDATE shop.purchase SET note = note WHERE id = 1'), 'no error', 'the schema of the extension is renamed: the guard allows a write with the lock');
is(errors('UPDATE shop.purchase SET note = note WHERE id = 2'), 'LK006', '... and refuses one without');
psql('plain', 'ALTER SCHEMA locks RENAME TO public');

psql('plain', 'ALTER TABLE shop.purchase RENAME id TO number');
is(errors('UPDATE shop.purchase SET note = note WHERE number = 1'), '42703', 'a column of the template renamed: writes fail');
like(psql('plain', q{SELECT problem FROM lock_guards WHERE relation = 'shop.purchase'::regclass}), qr/^column "id" of relation "purchase" does not exist$/, '... lock_guards shows the reason');
psql('plain', q{SELECT lock_protect('shop.purchase', 'order:{number}')});
is(errors('UPDATE shop.purchase SET note = note WHERE number = 1'), 'no error', '... until lock_protect is called again');
is(errors('UPDATE shop.purchase SET note = note WHERE number = 2'), 'LK006', '... which guards by the same key');
is(psql('plain', q{SELECT key_template, problem FROM lock_guards WHERE relation = 'shop.purchase'::regclass}), 'order:{number}|', '... and lock_guards shows no problem');

#
# Without the extension
#
my $drop = 'DROP EXTENSION atomic_lock';
is(errors('DROP FUNCTION lock_guard() CASCADE'), '2BP01', 'the function of guards belongs to the extension');
is(errors($drop), '2BP01', '... and DROP EXTENSION is refused while there are guards');
is(errors('UPDATE shop.purchase SET note = note WHERE number = 2'), 'LK006', '... which still work');
ask($session, "SET client_min_messages = warning; BEGIN; $drop CASCADE; UPDATE shop.purchase SET note = note WHERE number = 2; ROLLBACK");
is(errors('UPDATE shop.purchase SET note = note WHERE number = 2'), 'LK006', '... also after CASCADE and ROLLBACK');
ask($session, "$drop CASCADE");
is(errors('UPDATE shop.purchase SET note = note WHERE number = 2'), 'no error', 'after CASCADE tables can be written');
is(errors('DELETE FROM shop.parted; INSERT INTO shop.parted VALUES (4, 1); TRUNCATE shop.parted, shop.one_lock; DELETE FROM app.parent'), 'no error', '... also partitions and children');
is(psql('plain', q{SELECT count(*) FROM pg_trigger WHERE tgname LIKE '~%'}), '0', '... no trigger is left');
is(psql('plain', q{SELECT count(*) FROM shop.purchase}), '2', '... and the tables still exist');
psql('plain', 'CREATE EXTENSION atomic_lock');
is(errors('UPDATE shop.purchase SET note = note WHERE number = 2'), 'no error', 'after CREATE EXTENSION no table is guarded');
is(psql('plain', 'SELECT count(*) FROM lock_guards'), '0', '... lock_guards is empty');
ask($session, q{SELECT lock_protect('shop.purchase', 'order:{number}'), lock_protect('shop.parted', 'parted:{id}', '{insert}')});
is(errors('UPDATE shop.purchase SET note = note WHERE number = 2'), 'LK006', '... until lock_protect is called');
is(errors('INSERT INTO shop.parted VALUES (4, 1)'), 'LK006', '... also for partitions');
ask($session, q{SELECT lock_acquire('order:2', '1 hour')});
is(errors('UPDATE shop.purchase SET note = note WHERE number = 2'), 'no error', '... a write with the lock is allowed');
ask($session, q{SELECT lock_unprotect('shop.purchase'), lock_unprotect('shop.parted')});
is(errors($drop), 'no error', 'DROP EXTENSION works without guards');
$session->quit;

$node->stop;
log_is_clean($node);
done_testing();
