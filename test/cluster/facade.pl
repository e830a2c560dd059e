# The facade for PL/Proxy: two servers behind a proxy give the answers of one server.
#
# Properties: the same calls, with each function of the extension among them, get the same
# answers, SQLSTATEs, messages, details and hints from one server and through the proxy;
# calls that cannot mean the same are refused; the generator fails if it has no rule for a function;
# a proxy whose map is wrong is refused with LK010, and grants nothing; the braces of a key
# select the shard, as for lock_partition(); a set over both shards is taken by one of several clients
# at a time, and released if it is refused; a shard that is down gives 08006, and the locks on the other
# one are still released and extended; no log has an owner; a caller needs the access
# level on the shards.
#
# Turns red when: a new function of the extension is forgotten; an error of a shard comes
# through PL/Proxy, which changes its text and closes the connection; the part of a set on one
# shard is kept when the other refuses; a shard grants a key of another one.

use strict;
use warnings FATAL => 'all';
use AtomicLockCluster;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_plproxy();

my $settings = "atomic_lock.max_wait = '50min'\natomic_lock.sweep_interval = 0";
my @shards = shards(2, conf => $settings);
my $proxy = proxy('proxy', @shards);
my $wrong = proxy('wrong', reverse @shards);
my $one = PostgreSQL::Test::Cluster->new('one');

$one->init;
$one->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nlog_statement = none\n$settings");
$one->start;
$one->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
facade($shards[0], @shards, $proxy, $wrong);
is(slurp_file($proxy->logfile) =~ /ERROR/, '', 'the facade can be created');
$_->safe_psql('postgres', 'ALTER DATABASE postgres SET search_path = locks, public') for $proxy, $wrong;
for my $node ($one, @shards)
{
	$node->safe_psql('postgres', q{SELECT lock_set_policy('quota:', max_keys_per_role => 1, history => true)});
}

# Hides the differences between two runs of the same calls: moments, tokens, process ids and owners
# that were generated; times are rounded to the hour.
sub comparable
{
	my ($text) = @_;

	$text =~ s/^(?:CONTEXT|LOCATION|SQL statement|PL\/pgSQL function|SQL function).*\n//gm;
	$text =~ s/^psql:<stdin>:\d+: //gm;
	$text =~ s/\d{4}-\d\d-\d\d [\d:.]+\+\d\d/<moment>/g;
	$text =~ s/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/<uuid>/g;
	$text =~ s/\b\d{10,19}\b/<token>/g;
	$text =~ s/\bwaited for \d+ ms/waited for <n> ms/g;
	$text =~ s/\b(\d+):(\d\d):(\d\d(?:\.\d+)?)\b/sprintf '%d h', $1 + $2 \/ 60 + 0.5/ge;
	return $text;
}

# Answers and errors, in the order of the calls
sub output
{
	my ($node, $sql, $role) = @_;
	my ($out, $file) = ('', PostgreSQL::Test::Utils::tempdir() . '/out');
	my $name = $role // $node->safe_psql('postgres', 'SELECT current_user');

	append_to_file("$file.sql", $sql);
	# A call that hangs gives no output.
	run_log([
		'timeout', $PostgreSQL::Test::Utils::timeout_default, 'psql', '-X', '-A', '-t', '-q', '-v', 'VERBOSITY=verbose', '-h', $node->host, '-p', $node->port, '-U', $name,
		'-d', 'postgres'], '<', "$file.sql", '&>', $file);
	return comparable(slurp_file($file));
}

my $calls = <<'END';
SET application_name = 'test';
-- a lease, from its beginning to its end
SELECT * FROM lock_acquire('a', '10 h', 'secret-1', holder => 'Ann', meta => '{"n": 1}');
SELECT * FROM lock_acquire('a', '10 h', 'secret-1', holder => 'Ann');
SELECT * FROM lock_acquire('b');
SELECT * FROM lock_acquire('a', owner => 'secret-2');
SELECT * FROM lock_try_acquire('a', owner => 'secret-2');
SELECT * FROM lock_acquire('a', owner => 'secret-2', wait => '50 ms');
SELECT status, key, holder FROM lock_try_acquire('a', owner => 'secret-2', wait => '50 ms');
SELECT status FROM lock_try_acquire('a', owner => 'secret-1', on_reacquire => 'error');
SELECT lock_acquire('a', owner => 'secret-1', on_reacquire => 'error');
SELECT lock_acquire('a', on_reacquire => 'never');
SELECT lock_is_held('a', 'secret-1'), lock_is_held('a', 'secret-2'), lock_holder('a'), lock_holder('none');
SELECT * FROM lock_status('a');
SELECT * FROM lock_status('none');
SELECT lock_extend('a', 'secret-1', '20 h'), lock_try_extend('a', 'secret-1'), lock_try_extend('a', 'secret-2');
SELECT lock_extend('a', 'secret-2');
SELECT lock_extend('none', 'secret-2');
SELECT lock_release('a', 'secret-2');
SELECT lock_try_release('a', 'secret-2');
SELECT lock_release('a', 'secret-1');
SELECT lock_release('a', 'secret-1');
SELECT lock_try_release('a', 'secret-1'), lock_try_release('none', 'secret-1');
SELECT status FROM lock_acquire('short', '1 ms', 'secret-1');
SELECT pg_sleep_until(expires_at) FROM lock_status('short');
SELECT lock_release('short', 'secret-1');
-- sharing, converting, handing over
SELECT * FROM lock_acquire('shared', owner => 'secret-1', mode => 'shared', max_holders => 2, holder => 'Ann');
SELECT * FROM lock_acquire('shared', owner => 'secret-2', mode => 'shared', max_holders => 2, holder => 'Bob', ttl => '2 h');
SELECT * FROM lock_acquire('shared', owner => 'secret-3', mode => 'shared', max_holders => 2);
SELECT * FROM lock_convert('shared', 'secret-1');
SELECT acquired, status FROM lock_try_convert('shared', 'secret-1');
SELECT * FROM lock_try_convert('shared', 'secret-9');
SELECT * FROM lock_transfer('shared', 'secret-1', 'secret-2', 'Bob');
SELECT * FROM lock_transfer('shared', 'secret-1', 'secret-2', 'Bob');
SELECT * FROM lock_try_transfer('shared', 'secret-1', 'secret-2');
SELECT * FROM lock_try_transfer('none', 'secret-1', 'secret-2');
SELECT * FROM lock_convert('shared', 'secret-2');
SELECT * FROM lock_convert('shared', 'secret-2', 'shared');
SELECT lock_release('shared', 'secret-2');
-- arguments
SELECT lock_acquire(NULL);
SELECT lock_acquire('');
SELECT lock_acquire(repeat('x', 1025));
SELECT lock_acquire('a', ttl => '2 days');
SELECT lock_acquire('a', ttl => '1 month');
SELECT lock_acquire('a', mode => 'big');
SELECT lock_acquire('a', mode => NULL);
SELECT lock_acquire('a', wait => '1 hour');
SELECT status, key FROM lock_acquire('a', owner => 'secret-n', wait => NULL);
SELECT lock_release('a', 'secret-n');
SELECT lock_acquire('a', lifetime => 'long');
SELECT lock_acquire('a', lifetime => NULL);
SELECT lock_acquire('a', owner => repeat('x', 256));
SELECT lock_acquire('a', holder => repeat('x', 256));
SELECT lock_acquire('a', max_holders => 2);
SELECT lock_release('a');
SELECT lock_extend('a');
SELECT lock_release(NULL, 'secret-1');
SELECT lock_acquire_all('{}'), lock_acquire_all(NULL);
SELECT lock_acquire_all('{{a,b}}');
SELECT lock_acquire_all('{a,NULL}');
SELECT lock_path('a/b/c'), lock_path('a:b', ':');
SELECT lock_path('a//b');
SELECT lock_acquire_all('{a,b}', modes => '{shared}');
SELECT lock_acquire_all('{a}', modes => '{shared,exclusive}');
SELECT lock_acquire_all('{a,b,a}', modes => '{shared,shared,exclusive}');
SELECT lock_acquire_all('{a,b}', modes => '{shared,NULL}');
SELECT lock_acquire_all(array_fill('a'::text, '{1001}'));
SELECT * FROM lock_heartbeat('{a,NULL}', 'secret-1');
SELECT * FROM lock_heartbeat();
-- what the session has set
SET atomic_lock.owner = 'secret-4';
SET atomic_lock.default_ttl = '7 h';
SET atomic_lock.on_reacquire = 'error';
SELECT * FROM lock_acquire('mine');
SELECT * FROM lock_acquire('mine');
SELECT owner, ttl_remaining FROM lock_status('mine');
SELECT lock_is_held('mine'), lock_release('mine');
SET application_name = '';
SELECT holder = current_user FROM lock_acquire('mine');
SELECT lock_release('mine');
RESET ALL;
SET application_name = 'test';
BEGIN READ ONLY;
SELECT lock_acquire('a');
ROLLBACK;
BEGIN READ ONLY;
SELECT lock_is_held('a', 'x'), lock_holder('a');
COMMIT;
-- sets, over both shards and on one
SELECT * FROM lock_acquire_all('{k3,k1,k2,k4,k5,k3}', owner => 'secret-5', holder => 'Eve');
SELECT * FROM lock_acquire_all('{k0,k1,k8,k9}', owner => 'secret-6');
SELECT * FROM lock_try_acquire_all('{k1,k8,k9}', owner => 'secret-6');
SELECT status, key FROM lock_try_acquire_all('{k1,k8,k9}', owner => 'secret-6', wait => '50 ms');
SELECT key, status FROM lock_acquire_all('{k3,k1,k9}', owner => 'secret-5');
SELECT count(*), count(DISTINCT owner), bool_and(acquired) FROM lock_acquire_all('{g1,g2,g3,g4,g5}');
SELECT key, status FROM lock_acquire_all(ARRAY['{x}:1', '{x}:2', '{x}:3'], owner => 'secret-5');
SELECT key, mode, lifetime, ttl_remaining, meta FROM lock_held('secret-5');
SELECT count(*) FROM lock_held('secret-6');
SELECT * FROM lock_heartbeat('{k1,k2,k8}', 'secret-5', '9 h');
SELECT key, status FROM lock_heartbeat(owner => 'secret-5');
SELECT lock_extend_all('secret-5', '20 h'), lock_extend_all('nobody');
SELECT lock_transfer_all('secret-5', 'secret-7', 'Fay');
SELECT count(*) FROM lock_held('secret-5');
SELECT lock_release_all('secret-7'), lock_release_all('secret-7');
SELECT lock_release_all();
-- upgrade of a share in a set that is refused
SELECT status FROM lock_acquire('k1', owner => 'secret-8');
SELECT key, mode FROM lock_acquire_all('{m1,m2,m3,m4,m5,m6}', owner => 'secret-9', modes => '{shared,exclusive,shared,exclusive,shared,exclusive}');
SELECT status, key FROM lock_try_acquire_all('{m1,m3,m5,m6}', owner => 'secret-8', modes => '{shared,shared,shared,shared}');
SELECT lock_release_all('secret-9');
SELECT count(*) FROM lock_acquire_all('{u1,u2,u3,u4,u5,u6}', owner => 'secret-9', mode => 'shared');
SELECT status, key FROM lock_try_acquire_all('{u1,u2,u3,u4,u5,u6,k1}', owner => 'secret-9');
SELECT key, mode FROM lock_held('secret-9');
SELECT status, key FROM lock_try_acquire_all('{u1,u2,u3,u4,u5,u6,k5}', owner => 'secret-9');
SELECT lock_release_all('secret-8'), lock_release_all('secret-9');
-- rules and quotas
SELECT status FROM lock_acquire('quota:1', owner => 'secret-1');
SELECT * FROM lock_acquire('{quota:1}quota:2', owner => 'secret-1');
SELECT max_keys_per_role, history, prefixes FROM lock_policy('quota:1');
SELECT prefix, max_keys_per_role FROM lock_policies GROUP BY 1, 2;
SELECT mode, owner_digest, holder, role = current_user, application, ended_by FROM lock_held_at('quota:1', clock_timestamp());
-- administrators
SELECT force_release('none', 'why');
SELECT force_release('quota:1', 'because');
SELECT lock_release('quota:1', 'secret-1');
SELECT lock_try_force_release('quota:1', 'because');
SELECT status FROM lock_acquire('forced', owner => 'secret-1');
SELECT * FROM lock_steal('forced', 'secret-2', 'mine', holder => 'Sue');
SELECT lock_extend('forced', 'secret-1');
SELECT lock_force_release('forced', 'enough');
SELECT force_release('forced', NULL);
SELECT lock_sweep() >= 0;
-- in line
SELECT * FROM lock_enqueue('line', 'secret-1', 'Ann');
SELECT * FROM lock_enqueue('line', 'secret-2', 'Bob', offer => '1 hour', keep => '2 hours');
SELECT * FROM lock_enqueue('line', 'secret-2', offer => '1 year');
SELECT key, place, holder, role = current_user, offer FROM lock_queue;
SELECT key, place, holder FROM lock_queue();
SELECT lock_ask('line', 'please'), lock_ask('none');
SELECT lock_ask('line', 'please');
SELECT lock_release('line', 'secret-1');
SELECT * FROM lock_acquire('line', owner => 'secret-3');
SELECT lock_leave('line', 'secret-2'), lock_leave('line', 'secret-2');
SELECT lock_leave('line');
-- looking
SELECT status FROM lock_acquire('z1', owner => 'secret-1', holder => 'Ann', ttl => '1 h');
SELECT status FROM lock_acquire('z3', owner => 'secret-2', holder => 'Bob', ttl => '1 h');
SELECT status FROM lock_acquire('z2', owner => 'secret-3', holder => 'Col', ttl => '1 h');
SELECT key, locked, owner, holder, lifetime, holders, pid, pending, queued FROM lock_status() WHERE key LIKE 'z_' ORDER BY key;
SELECT key, holder, time_left, mode, state FROM lock_activity WHERE key LIKE 'z_' ORDER BY key;
SELECT count(*) FROM lock_waiters;
SELECT count(*) FROM lock_waiters();
SELECT sum(forced), sum(steals), sum(extends) > 0 FROM lock_stats WHERE database = 'postgres';
SELECT sum(grants) > 0 FROM lock_stats();
SELECT key, refusals, waits FROM lock_contention WHERE key = 'k1';
SELECT key, refusals, waits FROM lock_contention() WHERE key = 'a';
SELECT status <> '' FROM lock_sweeper_status() WHERE database IS NULL LIMIT 1;
SELECT lock_stats_reset();
SELECT sum(grants) FROM lock_stats;
SELECT lock_key('order', '42', 'a:b\c'), lock_key(VARIADIC '{x}'::text[]), lock_partition('{order:42}:line', 4);
SELECT lock_key('a', NULL);
SELECT lock_partition('a', 0);
END

# Each call has a marker, so that a difference shows the call.
my (@sql) = split /\n/, $calls;
my $marked = join "\n", map { my $echo = s/'/''/gr; ("\\echo '== $echo'", $_) } @sql;
my ($expected, $got) = map { [ split /^== /m, $_ ] } output($one, $marked), output($proxy, $marked);
my $differ = 0;

is(scalar @$got, scalar @$expected, 'the proxy gives as many answers');
for my $i (0 .. $#$expected)
{
	$differ += !is($got->[$i], $expected->[$i], 'the same through the proxy') if $got->[$i] ne $expected->[$i];
}
is($differ, 0, scalar(@$expected) . ' calls are answered alike');
cmp_ok(scalar(grep { /ERROR/ } @$expected), '>', 45, '... many of them by an error');

# Each function is called above, or refused.
my %refused = (
	lock_assert => q{'a', 'secret'},
	lock_assert_fence => q{'a', 1, 'secret'},
	lock_fetch => q{NULL::pg_class, '1', owner => 'secret'},
	lock_protect => q{'pg_class', 'a:{oid}'},
	lock_unprotect => q{'pg_class'},
	lock_channel => q{'a'},
	lock_explain => q{'a'},
	lock_acquire_path => q{'a/b'},
	lock_try_acquire_path => q{'a/b'},
	lock_release_path => q{'a/b', 'o'},
	lock_set_policy => q{'a'},
	lock_drop_policy => q{'a'},
	lock_schedule_sweep => '',
	lock_unschedule_sweep => '',
	lock_grant_access => q{'postgres', 'user'},
	lock_revoke_access => q{'postgres', 'user'});
my @functions = split /\n/, $one->safe_psql(
	'postgres', q{
		SELECT DISTINCT p.proname FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
		WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e' AND p.proname !~ '^app_lock' AND p.proname <> 'lock_guard'
			AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'atomic_lock')});
is(join(' ', grep { !$refused{$_} && $calls !~ /\b$_\(/ && !exists $refused{$_} } @functions), '', 'no function is forgotten');
is(sqlstate($proxy, "SELECT $_($refused{$_})"), '0A000', "$_ is refused") for sort keys %refused;
$proxy->safe_psql('postgres', 'CREATE TABLE guarded (id integer); CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION lock_guard(); CREATE TABLE written (id integer)');
is(sqlstate($proxy, 'INSERT INTO guarded VALUES (1)'), '0A000', 'a guard refuses');
$proxy->safe_psql('postgres', 'DROP TABLE guarded');

# The generator must have a rule for each new function and view.
$one->safe_psql('postgres', q{CREATE FUNCTION lock_new() RETURNS integer LANGUAGE sql AS 'SELECT 1'; ALTER EXTENSION atomic_lock ADD FUNCTION lock_new()});
like(printed($one), qr/plproxy\.sql does not say what a proxy does with lock_new\(\)/, 'the generator wants a rule for a new function');
$one->safe_psql('postgres', 'ALTER EXTENSION atomic_lock DROP FUNCTION lock_new()');
$one->safe_psql('postgres', 'CREATE VIEW lock_news AS SELECT 1 AS n; ALTER EXTENSION atomic_lock ADD VIEW lock_news');
like(printed($one), qr/does with view lock_news/, '... and for a new view');

# Calls that a transaction that has written may not make
my $locked = q{SELECT status FROM lock_acquire('a', owner => 'secret-t', ttl => '1 h')};
$proxy->safe_psql('postgres', $locked);
my $wrote = 'BEGIN; INSERT INTO written VALUES (1); SELECT';
is(sqlstate($proxy, "$wrote $_"), '25001', "not after a write: $_")
  for q{lock_release('a', 'secret-t')}, q{lock_try_release('a', 'secret-t')}, q{lock_transfer('a', 'secret-t', 'secret-u')},
  q{lock_release_all('secret-t')}, q{force_release('a', 'x')}, q{lock_steal('a', 'secret-u', 'x')}, q{lock_convert('a', 'secret-t', 'shared')},
  q{lock_leave('a', 'secret-t')};
is(sqlstate($proxy, "$wrote $_"), 'no error: ', "after a write: $_")
  for q{lock_extend('a', 'secret-t')}, q{lock_convert('a', 'secret-t')}, q{lock_holder('a')};
is(sqlstate($proxy, qq{SELECT lock_acquire('a', lifetime => '$_')}), '0A000', "no lifetime $_") for 'session', 'transaction';
is(sqlstate($proxy, q{SET client_connection_check_interval = 0; SELECT lock_acquire('a', wait => '1 s')}), '55000', 'without connection checks, no call may wait');
is(sqlstate($proxy, qq{SET client_connection_check_interval = 0; SELECT * FROM $_}), '55000', "... $_") for q{lock_acquire('a', wait => NULL)}, q{lock_acquire_all('{a,b}', wait => NULL)};

# A client that is killed waits no longer, and is granted nothing.  (The log has the end of the client with
# its statement, as on one server.)
my ($in, $out) = ('', '');
my $waits = IPC::Run::start([ 'psql', '-X', '-d', connect_string($proxy), '-c', q{SELECT lock_acquire('a', owner => 'k', wait => '20 min')} ], '<', \$in, '>&', \$out);
ok($proxy->poll_query_until('postgres', 'SELECT count(*) = 1 FROM lock_waiters'), 'a client waits');
$waits->signal('KILL');
$waits->finish;
ok($proxy->poll_query_until('postgres', 'SELECT count(*) = 0 FROM lock_waiters'), '... and its wait ends when it is killed');

# Maps
is(sqlstate($wrong, q{SELECT lock_acquire('a')}), 'LK010', 'a proxy with another map is refused');
is(sqlstate($wrong, q{SELECT lock_holder('a')}), 'LK010', '... for queries, too');
is(sqlstate($wrong, "SELECT $_"), 'LK010', "... for $_, too")
  for q{lock_held('x')}, 'lock_status()', '* FROM lock_activity', q{lock_release_all('x')}, q{lock_heartbeat(owner => 'x')};
my $half = proxy('half', $shards[0]);
facade($shards[0], $half);
is(sqlstate($half, q{SELECT locks.lock_release_all('x')}), 'LK010', 'a proxy that knows half of the shards is refused');
$half->stop;
my $braces = <<'END';
SELECT count(*) FILTER (WHERE app_lock_hash(k) & 1 = lock_partition(k, 2)) = count(*), count(DISTINCT lock_partition(k, 2))
FROM (SELECT unnest(ARRAY['{', '}', '{}', '{}{a}', '{a', '}{b}', '{{a}', E'{\n}x', '{a}{b}', 'ä{ö}', ' '])
	UNION ALL SELECT 'key:' || n FROM generate_series(1, 200) n) k (k)
END
is($proxy->safe_psql('postgres', $braces), 't|2', 'the proxy finds the partition that the shards find');
$proxy->safe_psql('postgres', q{CREATE SERVER three FOREIGN DATA WRAPPER plproxy OPTIONS (modular_mapping '1', p0 '', p1 '', p2 '')});

# facade.sql is run again, and where it must be refused.
$proxy->safe_psql('postgres', q{
	CREATE ROLE clerk; CREATE ROLE watcher;
	GRANT EXECUTE ON FUNCTION locks.lock_acquire, locks.lock_status(text) TO clerk WITH GRANT OPTION;
	GRANT SELECT ON locks.lock_activity TO watcher; GRANT USAGE ON SCHEMA locks TO clerk, watcher;
	CREATE TABLE locks.ours (id integer); CREATE TABLE public.others (); CREATE FUNCTION locks.my_own() RETURNS integer LANGUAGE sql AS 'SELECT 1'});
my $rights = q{SELECT string_agg(concat_ws(' ', o, a.grantee::regrole, a.privilege_type, a.is_grantable), E'\n' ORDER BY o, a.grantee)
	FROM (SELECT oid::regclass::text, relacl, relowner FROM pg_class WHERE relnamespace = 'locks'::regnamespace
		UNION ALL SELECT oid::regprocedure::text, proacl, proowner FROM pg_proc WHERE pronamespace = 'locks'::regnamespace) x (o, acl, owner), aclexplode(acl) a
	WHERE a.grantee <> owner};
my $before = $proxy->safe_psql('postgres', $rights);
like($before, qr/lock_acquire.* clerk EXECUTE t\n(?:.*\n)*.*lock_activity watcher SELECT f/, 'roles have rights');
unlike(output($proxy, "\\i @{[printed_file()]}"), qr/ERROR/, 'facade.sql can be run again');
is($proxy->safe_psql('postgres', $rights), $before, '... and keeps the rights of roles');
is($proxy->safe_psql('postgres', 'SELECT count(*), locks.my_own() FROM locks.ours'), '0|1', '... and objects that are not of the facade');
$proxy->safe_psql('postgres', 'CREATE VIEW public.dependent AS SELECT key FROM locks.lock_activity');
like(output($proxy, "\\i @{[printed_file()]}"), qr/2BP01: .*\n.*view public.dependent/, '... and is refused if another object depends on the facade');
is($proxy->safe_psql('postgres', 'DROP VIEW public.dependent; SELECT count(*) >= 0 FROM locks.lock_activity'), 't', '... and then changes nothing');
my $elsewhere = PostgreSQL::Test::Utils::tempdir() . '/elsewhere.sql';
append_to_file($elsewhere, printed($shards[0], '-v', 'schema=public'));
like(output($proxy, "\\i $elsewhere"), qr/42P06: .*schema public has something else in it/, 'the facade needs a schema of its own');
is($proxy->safe_psql('postgres', 'SELECT count(*) FROM public.others'), '0', '... and keeps other objects');
my $named = PostgreSQL::Test::Utils::tempdir() . '/named.sql';
append_to_file($named, printed($shards[0], '-v', q{schema=Bob's "own"}));
unlike(output($proxy, "\\i $named"), qr/ERROR/, 'its schema may have any name');
is($proxy->safe_psql('postgres', q{SET client_min_messages = warning; SET search_path = "Bob's ""own"""; SELECT count(*) FROM lock_acquire_all('{n1,n2,n3,n4}', owner => 'n'); SELECT lock_release_all('n');
	DROP SCHEMA "Bob's ""own""" CASCADE}), "4\n4", '... and the facade works there');
like(output($one, "\\i @{[printed_file()]}"), qr/55000: .*this shard does not know which partition it has/, 'a server without a partition is no shard');
$shards[1]->safe_psql('postgres', q{UPDATE pg_extension SET extversion = '0.9' WHERE extname = 'atomic_lock'});
like(output($shards[1], "\\i @{[printed_file()]}"), qr/55000: .*this shard has another version of atomic_lock than 1\.0/, '... nor is a server with another version');
$shards[1]->safe_psql('postgres', q{UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'atomic_lock'});
my $three = PostgreSQL::Test::Utils::tempdir() . '/three.sql';
append_to_file($three, printed($shards[0], '-v', 'schema=three', '-v', 'server=three'));
like(output($proxy, "\\i $three"), qr/55000: server "three" must have a power of two of partitions, not 3/, 'three shards are refused');

$proxy->safe_psql('postgres', q{CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C'});
$proxy->safe_psql('latin', q{CREATE EXTENSION plproxy; CREATE SERVER locks FOREIGN DATA WRAPPER plproxy OPTIONS (p0 '')});
like(output($proxy, "\\c latin\n\\i @{[printed_file()]}"), qr/55000: the databases of proxy and shard must have the same encoding/, 'another encoding is refused');
is(sqlstate($proxy, q{SELECT lock_key('a', 1)}), '42883', 'lock_key takes no numbers');

# Waits for a waiter, then runs SQL that lets its set proceed
sub let_in
{
	my ($node, $sql) = @_;

	$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM lock_waiters') or die;
	$node->safe_psql('postgres', $sql);
	return;
}

# Sets of several clients: only one client is inside at a time.
my $program = <<'END';
\set a random(1, 4)
\set b random(5, 8)
SELECT count(*) FILTER (WHERE acquired) = 2 AS mine FROM lock_try_acquire_all(ARRAY['set:' || :a, 'set:' || :b], '1 hour', 'client-' || :client_id, wait => '20 s') \gset
\if :mine
INSERT INTO inside VALUES ('set:' || :a, :client_id), ('set:' || :b, :client_id);
DELETE FROM inside WHERE client = :client_id;
SELECT lock_release_all('client-' || :client_id);
\endif
END
$proxy->safe_psql('postgres', 'CREATE TABLE inside (key text PRIMARY KEY, client integer)');
$proxy->pgbench('-n -c 6 -t 25', 0, [qr{processed: 150/150}], [qr/^$/], 'six clients take sets', { sets => $program });
is($_->safe_psql('postgres', q{SELECT count(*) FROM lock_status() WHERE key LIKE 'set:%'}), 0, '... and leave no lock') for @shards;

# A key on each shard
my @there = map { $proxy->safe_psql('postgres', "SELECT min('d' || n) FROM generate_series(1, 99) n WHERE lock_partition('d' || n, 2) = $_") } 0, 1;
$proxy->safe_psql('postgres', "SELECT lock_acquire('$there[1]', '1 hour', 'secret-s')");
my $waiter = session($proxy, 'sets');
start($waiter, "SELECT (array_agg(expires_at ORDER BY key = '$there[1]'))[1] >= max(expires_at), count(*)
	FROM lock_acquire_all('{$there[0],$there[1]}', '1 hour', 'secret-u', wait => '20 min')");
let_in($proxy, "SELECT lock_release('$there[1]', 'secret-s')");
is(answer($waiter), 't|2', 'after a wait, the leases that were taken before it are as long as the last');
end($waiter);
is($proxy->safe_psql('postgres', q{SELECT lock_release_all('secret-u')}), 2, '... and both are released');

# After a wait, a set has the same leases as on one server: longer leases stay long, no answer shows
# an expired lease, and keys that were shared before are shared after a refusal.
my ($early, $late) = @there;
for my $node ($one, $proxy)
{
	my $name = $node->name;
	my $set = "lock_try_acquire_all('{$early,$late}', '1 h', 'owner-w', wait => '20 min')";
	my $psql = session($node, 'sets');

	$node->safe_psql('postgres', "SELECT lock_acquire('$early', '10 h', 'owner-w'), lock_acquire('$late', '1 h', 'owner-v')");
	start($psql, "SELECT key = '$early', status, ttl_remaining > '9 h', ttl_remaining <= expires_at - statement_timestamp(), waited > '0' FROM $set ORDER BY 1 DESC");
	let_in($node, "SELECT lock_release('$late', 'owner-v')");
	is(answer($psql), "t|reacquired|t|t|t\nf|acquired|f|t|t", "$name: a longer lease stays as it is after a wait");
	$node->safe_psql('postgres', qq{SELECT lock_release_all('owner-w'), lock_acquire('$late', '1 h', 'owner-v')});

	start($psql, "SELECT bool_and(acquired), bool_and(ttl_remaining <= '1 ms' AND waited > '0'), count(*) FROM lock_try_acquire_all('{$early,$late}', '1 ms', 'owner-w', wait => '20 min')");
	let_in($node, "SELECT lock_release('$late', 'owner-v')");
	is(answer($psql), 't|t|2', "$name: leases may be shorter than the wait");
	end($psql);
	is($node->safe_psql('postgres', "SELECT status FROM lock_acquire('$early', owner => 'owner-v', wait => '20 min')"), 'acquired', "$name: ... and have then expired");
	$node->safe_psql('postgres', q{SELECT lock_release_all('owner-v')});

	# While the set waits for a key that another owner shares, its first key is ended by force, or
	# the set is cancelled.
	foreach my $end ("force_release('$early', 'test')", q{pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'sets'})
	{
		my $said = '';

		$node->safe_psql('postgres', "SELECT lock_acquire('$late', '10 min', 'owner-w', mode => 'shared'), lock_acquire('$late', '10 min', 'owner-v', mode => 'shared'),
			lock_acquire('$early', '10 min', 'owner-w', mode => 'shared')");
		my $waits = IPC::Run::start([ 'psql', '-X', '-A', '-t', '-v', 'VERBOSITY=sqlstate', '-d', connect_string($node) . ' application_name=sets', '-c', "SELECT status, key FROM $set" ], '<', \undef, '>&', \$said);
		let_in($node, "SELECT $end");
		$node->safe_psql('postgres', "SELECT lock_release('$late', 'owner-v')");
		$waits->finish;
		isnt($said, '', "$name: a set ends by $end");
		note $said;
		is($node->safe_psql('postgres', "SELECT key, mode FROM lock_held('owner-w') WHERE key = '$late'"), "$late|shared", '... and the key that was shared before is shared after it') if $end !~ /force/ || $said !~ /acquired/;
		$node->safe_psql('postgres', q{SELECT lock_release_all('owner-w'), lock_release_all('owner-v')});
	}
}

# A refused set does not take keys from its owner that another call has acquired meanwhile.
{
	my $said = '';

	$proxy->safe_psql('postgres', "SELECT lock_acquire('$late', owner => 'other')");
	my $waits = IPC::Run::start([ 'psql', '-X', '-A', '-t', '-d', connect_string($proxy), '-c', "SELECT status FROM lock_try_acquire_all('{$early,$late}', '1 h', 'owner-r', wait => '20 min')" ], '<', \undef, '>&', \$said);
	$proxy->poll_query_until('postgres', 'SELECT count(*) = 1 FROM lock_waiters') or die;
	is($proxy->safe_psql('postgres', "SELECT status FROM lock_acquire('$early', '1 h', 'owner-r')"), 'reacquired', 'a set has a key and waits for another: another call of the owner reacquires the first');
	$proxy->safe_psql('postgres', q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND query LIKE '%owner-r%'});
	$waits->finish;
	like($said, qr/canceling statement/, '... the set is cancelled');
	is($proxy->safe_psql('postgres', "SELECT lock_is_held('$early', 'owner-r'), lock_release('$early', 'owner-r')"), 't|t', '... and the owner still holds the reacquired key');
	$proxy->safe_psql('postgres', q{SELECT lock_release_all('other')});
}
$proxy->safe_psql('postgres', "SELECT lock_acquire('$late', owner => 'other')");
is($proxy->safe_psql('postgres', "SELECT count(*), bool_or(acquired) FROM lock_try_acquire_all('{$early,$late}'); SELECT locked FROM lock_status('$early'); SELECT lock_release_all('other')"),
	"1|f\nf\n1", 'a refused set without a named owner releases its keys');
is($proxy->safe_psql('postgres', qq{SELECT count(DISTINCT t) FROM (
	SELECT fencing_token FROM lock_acquire('$early', owner => 'owner-t') UNION ALL SELECT fencing_token FROM lock_acquire('$early', owner => 'owner-t')
	UNION ALL SELECT fencing_token FROM lock_acquire_all('{$early}', owner => 'owner-t') UNION ALL SELECT fencing_token FROM lock_held('owner-t')
	UNION ALL SELECT fencing_token FROM lock_status('$early')) x (t)}), 1, 'every call returns the same token');
$proxy->safe_psql('postgres', q{SELECT lock_release_all('owner-t')});

# The settings of the session and the form of its keys change no answer.
$proxy->safe_psql('postgres', "SELECT lock_acquire('quota:m', '1 h', 'secret-m')");
is($proxy->safe_psql('postgres', q{SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Kolkata'; SET intervalstyle = 'sql_standard'; SELECT mode FROM lock_held_at('quota:m', clock_timestamp())}), 'exclusive', 'a moment is the same on the shard');
$proxy->safe_psql('postgres', q{SELECT lock_release('quota:m', 'secret-m')});
# Neither do the styles for dates and intervals of a shard or of the session.
my $styles = q{
SET timezone = 'Asia/Kolkata';
SELECT expires_at - clock_timestamp() BETWEEN '1 h 59 min' AND '2 h', ttl_remaining BETWEEN '1 h 59 min' AND '2 h' FROM lock_acquire('quota:m', '2 h', 'secret-m');
SELECT lock_extend('quota:m', 'secret-m', '1 day 2 h') - clock_timestamp() BETWEEN '1 day 1 h 59 min' AND '1 day 2 h';
SELECT count(*) FROM lock_heartbeat('{quota:m}', 'secret-m', '1 day 3 h') WHERE ttl_remaining > '1 day 2 h 59 min';
SELECT lock_extend_all('secret-m', '1 day 4 h'), (SELECT ttl_remaining > '1 day 3 h 59 min' FROM lock_status('quota:m'));
SELECT count(*) FROM lock_acquire_all('{quota:m}', '1 day 5 h', 'secret-m') WHERE ttl_remaining > '1 day 4 h 59 min';
};
for my $shard ("datestyle = 'ISO'", "datestyle = 'SQL, MDY'; ALTER DATABASE postgres SET intervalstyle = 'sql_standard'; ALTER DATABASE postgres SET timezone = 'Asia/Kolkata'")
{
	$_->safe_psql('postgres', "ALTER DATABASE postgres SET atomic_lock.max_ttl = '10d'; ALTER DATABASE postgres SET $shard") for @shards;
	# The settings apply to new connections.
	$proxy->restart;
	for my $style (qw(postgres sql_standard iso_8601 postgres_verbose))
	{
		is($proxy->safe_psql('postgres', "SET intervalstyle = '$style'; SET datestyle = 'German'; $styles"), "t|t\nt\n1\n1|t\n1", "moments and intervals are the same on the shard: $style, $shard");
		is(sqlstate($proxy, "SET intervalstyle = '$style'; SELECT $_"), '22023', "... also negative ones: $_")
		  for q{lock_extend('quota:m', 'secret-m', '-1 day -30 hours')}, q{lock_extend('quota:m', 'secret-m', '-1 day 2 hours')}, q{lock_extend_all('secret-m', '-1 day -30 hours')},
		  q{lock_heartbeat('{quota:m}', 'secret-m', '-1 day -30 hours')}, q{lock_acquire('quota:m', '-1 day -30 hours', 'secret-m')}, q{lock_acquire_all('{quota:m}', '-1 day -30 hours', 'secret-m')};
		$proxy->safe_psql('postgres', q{SELECT lock_release('quota:m', 'secret-m')});
	}
}
$_->safe_psql('postgres', join("; ", map { "ALTER DATABASE postgres RESET $_" } qw(datestyle intervalstyle timezone atomic_lock.max_ttl))) for @shards;
$proxy->restart;
SKIP:
{
	skip 'PostgreSQL is built without ICU', 2 unless $proxy->safe_psql('postgres', q{SELECT count(*) FROM pg_collation WHERE collprovider = 'i'}) > 0;
	$proxy->safe_psql('postgres', q{CREATE COLLATION public.caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)});
	is($proxy->safe_psql('postgres', q{SELECT acquired, key FROM lock_acquire('{c}:1' COLLATE public.caseless, owner => 'secret-c'); SELECT count(*) FROM lock_acquire_all(ARRAY['c' COLLATE public.caseless, 'C', 'd', 'e', '{c}:1'], owner => 'secret-c');
		SELECT lock_release_all('secret-c' COLLATE public.caseless)}), "t|{c}:1\n5\n5", 'keys of any collation');
	is(sqlstate($proxy, q{SELECT lock_release('c' COLLATE public.caseless, 'secret-c')}), 'LK004', '... and refusals of such keys');
}

# A grant in doubt is in doubt through the proxy, too.
$shards[1]->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
$shards[1]->reload;
$out = '';
my $doubts = IPC::Run::start([ 'psql', '-X', '-v', 'VERBOSITY=verbose', '-d', connect_string($proxy), '-c', "SELECT lock_acquire('$there[1]', owner => 'in-doubt')" ], '<', \$in, '>&', \$out);
my $waiting = q{FROM pg_stat_activity WHERE wait_event = 'SyncRep'};
ok($shards[1]->poll_query_until('postgres', "SELECT count(*) = 1 $waiting"), 'a grant waits for a standby');
$shards[1]->safe_psql('postgres', "SELECT pg_cancel_backend(pid) $waiting");
$doubts->finish;
like($out, qr/ERROR:  08007/, '... and is in doubt if it is cancelled');
$shards[1]->safe_psql('postgres', q{ALTER SYSTEM RESET synchronous_standby_names});
$shards[1]->reload;
is($proxy->safe_psql('postgres', "SELECT status FROM lock_acquire('$there[1]', owner => 'in-doubt')"), 'reacquired', '... and a repetition by the same owner tells');
$proxy->safe_psql('postgres', "SELECT lock_release('$there[1]', 'in-doubt')");

# A role needs rights on the proxy, and the level on the shards.
for my $node ($proxy, @shards)
{
	$node->safe_psql('postgres', 'CREATE ROLE app LOGIN');
}
$proxy->safe_psql('postgres', 'CREATE USER MAPPING FOR app SERVER locks OPTIONS (user \'app\')');
like(output($proxy, q{SELECT lock_holder('a')}, 'app'), qr/42883|42501/, 'a role has no rights on the proxy');
$proxy->safe_psql('postgres', 'GRANT USAGE ON SCHEMA locks TO app; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA locks TO app; GRANT USAGE ON FOREIGN SERVER locks TO app');
like(output($proxy, q{SELECT lock_holder('a')}, 'app'), qr/42501: permission denied for function lock_holder/, '... and none on the shards');
$_->safe_psql('postgres', q{SELECT lock_grant_access('app', 'user')}) for @shards;
is(output($proxy, q{SELECT lock_holder('a'), lock_release('a', 'wrong')}, 'app') =~ /(LK003)/ ? $1 : '', 'LK003', 'with both, it can call lock functions');
like(output($proxy, q{SELECT force_release('a', 'x')}, 'app'), qr/42501/, '... but not those of an administrator');
unlike(output($proxy, q{SELECT lock_acquire('q', owner => 'q', holder => 'q')}, 'app'), qr/ERROR/, '... and can acquire');

# The role may change its user mapping, so the shards must authenticate it.
for my $shard (@shards)
{
	$shard->safe_psql('postgres', q{SET password_encryption = 'scram-sha-256'; ALTER ROLE app PASSWORD 'of app'; CREATE ROLE ops LOGIN SUPERUSER PASSWORD 'of ops'});
	my $hba = $shard->data_dir . '/pg_hba.conf';
	my $rules = slurp_file($hba);
	unlink $hba;
	append_to_file($hba, "local all app,ops scram-sha-256\n$rules");
	$shard->reload;
}
my $become = sub { return $proxy->safe_psql('postgres', "ALTER USER MAPPING FOR app SERVER locks OPTIONS ($_[0])", extra_params => [ '-U', 'app' ]) };
like(output($proxy, q{SELECT lock_holder('a')}, 'app'), qr/08006/, 'a role without a password is refused');
$become->(q{ADD password 'of app'});
unlike(output($proxy, q{SELECT lock_holder('a')}, 'app'), qr/ERROR/, '... and is accepted with its password');
$become->(q{SET user 'ops'});
like(output($proxy, q{SELECT lock_holder('a')}, 'app'), qr/08006/, '... and cannot become another role');

# The client finds the shard itself, as in doc/several-servers.md.
SKIP:
{
	my $python = '/usr/bin/python3';

	skip 'needs psycopg 3', 2 unless run_log([ $python, '-c', 'import psycopg' ]);
	my ($code) = slurp_file('doc/several-servers.md') =~ /```python\n(.*?)```/s;
	my $urls = join ', ', map { "'" . connect_string($_) . "'" } @shards;

	run_log([ $python, '-c', "import functools, psycopg\nurls = [$urls]\nowner = 'routed'\n$code" ], '>&', \$out);
	is($out, '', 'the program of doc/several-servers.md runs');
	is($proxy->safe_psql('postgres', q{SELECT count(*) FROM lock_held('routed')}), 3, '... and finds the shards');
}

# A call that a shard cancels is cancelled through the proxy, as on one server.
$proxy->safe_psql('postgres', "SELECT lock_acquire('$late', owner => 'other')");
$shards[1]->safe_psql('postgres', q{ALTER DATABASE postgres SET statement_timeout = '300ms'});
like(output($proxy, "SELECT lock_acquire('$late', owner => 'owner-c', wait => '20 min')"), qr/57014: canceling statement due to statement timeout\n/, 'a statement_timeout of the shard');
like(output($proxy, "SELECT * FROM lock_try_acquire_all('{$early,$late}', owner => 'owner-c', wait => '20 min')"), qr/57014: canceling statement due to statement timeout\n/, '... for a set');
is($proxy->safe_psql('postgres', "SELECT locked FROM lock_status('$early')"), 'f', '... and the set keeps no key');
$shards[1]->safe_psql('postgres', 'ALTER DATABASE postgres RESET statement_timeout');
$proxy->safe_psql('postgres', q{SELECT lock_release_all('other')});

# A map may name several servers for a shard: a server that is down is skipped.
$proxy->safe_psql('postgres', sprintf q{ALTER SERVER locks OPTIONS (SET p0 'host=/nowhere,%s port=1,%s dbname=postgres target_session_attrs=read-write')}, $shards[0]->host, $shards[0]->port);
is($proxy->safe_psql('postgres', "SELECT status FROM lock_acquire('$there[0]', owner => 'several'); SELECT lock_release('$there[0]', 'several')"), "acquired\nt", 'a map with several servers');

# A shard is down.
$proxy->safe_psql('postgres', "SELECT lock_acquire('$_', owner => 'secret-d', ttl => '20 min')") for @there;
my $stays = $proxy->background_psql('postgres', on_error_stop => 0);
ask($stays, "SELECT lock_holder('$_') IS NOT NULL") for @there;
$shards[0]->stop('immediate');
is(sqlstate($proxy, "SELECT lock_acquire('$there[0]', owner => 'secret-d')"), '08006', 'a shard that is down');
is($proxy->safe_psql('postgres', "SELECT lock_holder('$there[1]') IS NOT NULL"), 't', '... the other answers');
is(sqlstate($proxy, "SELECT $_"), '08006', "down: $_")
  for q{lock_extend_all('secret-d', '1 h')}, q{lock_heartbeat(owner => 'secret-d')}, q{lock_held('secret-d')}, 'lock_status()',
  qq{lock_acquire_all('{$there[0],$there[1]}', owner => 'secret-e')};
is($shards[1]->safe_psql('postgres', "SELECT ttl_remaining > '30 min' FROM lock_status('$there[1]')"), 't', '... and the lease on the other shard is extended');
is(sqlstate($proxy, q{SELECT lock_release_all('secret-d')}), '08006', 'down: lock_release_all');
is($shards[1]->safe_psql('postgres', "SELECT locked FROM lock_status('$there[1]')"), 'f', '... and the lease on the other shard is released');
$shards[0]->start;
# The connection to this shard may still be the old one: the first call, which notices that, fails.
$stays->query("SET client_min_messages = error; SELECT lock_holder('$there[0]')");
$stays->{stderr} = '';
is(ask($stays, "SELECT lock_try_release('$there[0]', 'secret-d')"), 'released', 'the proxy finds the shard again');
$stays->quit;

for my $node ($proxy, $wrong, @shards)
{
	log_is_clean($node, also => qr/secret-|REMOTE ERROR/);
}
is(scalar(() = slurp_file($proxy->logfile) =~ /55P03|LK00\d|is held by/g), 0, 'no refusal is in the log of the proxy');

done_testing();
