# A library that is newer or older than the extension, and sessions with different
# libraries on one server.
#
# Needs an installation that can be copied, for libraries of versions that do not exist.
#
# Properties: every function that needs the library, as do views, guards and
# triggers, raises an error that says that the versions differ and what to do, in a session
# that loads the library by itself, at its start or preloaded, newer and older; functions that
# build keys still work; a session that worked before an update gets this error at its next
# call, whatever the script has changed; an update waits for transactions that have written or
# rely on a lock, prepared ones too; an older library installs no newer extension, and a
# newer one runs the scripts in between; the sweep logs it once, and sweeps again after
# the update; tables can be read, and pg_dump and DROP EXTENSION work, with either; a
# library never uses shared memory of another layout, and shares that of its own.
#
# Turns red when: a function does not begin with AL_FUNCTION(); versions are compared as
# numbers or texts; a script does not wait, or a lookup from before it is believed after
# it; the sweep fails at each interval; the layout of shared memory is not compared.

use strict;
use warnings FATAL => 'all';
use AtomicLockNext;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($bin, $share, $lib) = copy_installation('differ') or plan skip_all => 'no installation that can be copied';
my $version = version_of();
my $extension = "$share/extension/atomic_lock";
my %library = (
	old => "$PostgreSQL::Test::Utils::tmp_check/old.so",
	new => next_library($bin),
	ten => build_library($bin, '1.10'),
	layout => build_library($bin, $version, [ 'src/shmem/shmem.c', qr/#define LAYOUT\t\d+/, "#define LAYOUT\t1000" ]),
	size => build_library($bin, $version, [ 'src/shmem/contention.c', qr/(?<=#define SETS\t)32/, '64' ]));
system_or_bail('cp', "$lib/atomic_lock.so", $library{old});

my $node = PostgreSQL::Test::Cluster->new('differ', install_path => $bin =~ s{/bin$}{}r);
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
fsync = off
log_min_messages = debug1
log_statement = none
max_prepared_transactions = 5
deadlock_timeout = 1h
atomic_lock.sweep_interval = '20ms'
});
$node->start;

# The errors of a session whose library is newer, and older
my $newer = qr/^ERROR:  55000: extension "atomic_lock" has version [\d.]+ in this database, and its library has version 1\.1\nHINT:  Run ALTER EXTENSION atomic_lock UPDATE\.\n/;
my $older = qr/^ERROR:  55000: extension "atomic_lock" has version ([\d.]+) in this database, and its library has version \Q$version\E\nHINT:  Install the package of version \1 if it is not there, and restart the server\.\n/;
my $acquire = q{SELECT status FROM lock_try_acquire('k', '1 hour', 'o')};

# Everything that needs the library raises this error.
sub is_told
{
	my ($name, $psql, $like) = @_;
	my @functions = split /\n/, ask($psql, q{
SELECT format('SELECT %I(%s)', p.proname, (SELECT string_agg(format('NULL::%s', CASE t WHEN 'anyelement'::regtype THEN 'pg_class' ELSE t::regtype::text END), ', ' ORDER BY n)
	FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY a (t, n)))
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'atomic_lock'
WHERE p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'c') AND p.prorettype <> 'trigger'::regtype
	AND p.proname NOT IN ('lock_key', 'lock_path', 'lock_partition', 'lock_note') AND p.proname !~ '^app_lock_(begin|repeat|guard|prevent)_'});
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	cmp_ok(scalar @functions, '>', 45, "$name: functions");
	like(reply($psql, $_), $like, "$name: $_")
	  foreach @functions, q{SELECT app_lock_guard_problem('pg_class', 'x')},
	  $acquire, q{SELECT lock_try_release('k', 'o')}, q{SELECT lock_assert('kept', 'o')}, q{SELECT locked FROM lock_status('k')}, q{SELECT lock_sweep(1)},
	  (map { "SELECT * FROM $_" } qw(lock_activity lock_waiters lock_queue lock_stats lock_contention lock_guards)),
	  q{UPDATE orders SET id = 2}, q{DELETE FROM app_lock_policy};
	is(reply($psql, q{BEGIN; SET LOCAL atomic_lock.enforce_guards = off; UPDATE orders SET id = 2; ROLLBACK}), '', "$name: guarded tables can be written with enforce_guards = off");
	is(reply($psql, q{SELECT lock_key('a', 1), lock_partition('a', 1), (SELECT count(*) FROM app_lock WHERE NOT released), (SELECT count(*) FROM lock_audit), (SELECT count(*) FROM lock_policies)}), 'a:1|0|2|1|1',
		"$name: keys can be built, and tables read");
	is(reply($psql, q{SELECT lock_grant_access('clerk', 'user'); DISCARD ALL}), '', "$name: access can be granted");
	$node->command_ok([ 'pg_dump', '--no-sync', '-f', "$PostgreSQL::Test::Utils::tmp_check/differ.sql", 'postgres' ], "$name: pg_dump");
	return;
}

my $watch = session($node, 'Watch');
ask($watch, q{
CREATE ROLE clerk; CREATE TABLE orders (id int); INSERT INTO orders VALUES (1);
CREATE EXTENSION atomic_lock;
SELECT lock_protect('orders', 'order:{id}'), lock_set_policy('', history => true), lock_acquire('kept', '1 day', 'o'), lock_acquire('order:1', '1 day', 'o'),
	lock_acquire('gone', '1 day', 'p'), force_release('gone', 'why')});
my $leases = q{SELECT key, fencing_token, acquired_at, expires_at, owner FROM app_lock WHERE key IN ('kept', 'order:1') ORDER BY key};
my $before = ask($watch, $leases);

#
# The package is updated under a server that has not preloaded the library.
#
my ($old, $commits) = map { session($node, $_) } ('Old', 'Commits');
is(reply($_, "$acquire; SELECT lock_release('k', 'o')"), "acquired\nt", 'a session with the old library') foreach ($old, $commits);
next_scripts($share);
put_library($library{new}, $lib);
my $new = session($node, 'New');
is_told('newer', $new, $newer);
is(reply($old, "$acquire; SELECT lock_release('k', 'o'); SET atomic_lock.owner = 'o'; UPDATE orders SET id = 1"), "acquired\nt", '... while a session with the old library still works');
like(reply($new, "CREATE DATABASE fresh"), qr/^$/, '... another database is created');
is(ask(session($node, 'Fresh', 'fresh'), q{CREATE EXTENSION atomic_lock; SELECT status FROM lock_try_acquire('k')}), 'acquired', '... and another database has the new version from the start');
like(($node->psql('fresh', "BEGIN; DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock VERSION '$version'"))[2], qr/ERROR:  extension "atomic_lock" has version/, '... and cannot have the old one');

# The start of a session does not fail.
{
	local $ENV{PGOPTIONS} = '-c session_preload_libraries=atomic_lock';
	my $loaded = session($node, 'Loaded');

	is(reply($loaded, 'SHOW atomic_lock.note; SELECT 1'), "\n1", 'session_preload_libraries: the session starts');
	like(reply($loaded, $acquire), $newer, '... and its first call raises the error');
	end($loaded);
}

# Two libraries in one process, which AddressSanitizer does not allow
SKIP:
{
	skip 'with sanitizers', 2 if ($ENV{AL_COPT} // '') =~ /sanitize/;
	like(reply($old, "LOAD '$library{new}'"), qr/^ERROR: .*attempt to redefine parameter "atomic_lock\./, 'a session does not load a second library');
	is(reply($old, "$acquire; SELECT lock_release('k', 'o')"), "acquired\nt", '... and still works with its own');
}

# An update waits for transactions that have written, also for prepared ones.
ask($old, q{BEGIN; SELECT lock_acquire('written', '1 hour', 'o')});
like(reply($new, q{SET lock_timeout = '100 ms'; ALTER EXTENSION atomic_lock UPDATE}), qr/^ERROR:  55P03/, 'an update waits for an unfinished grant');
ask($old, q{PREPARE TRANSACTION 'p'});
like(reply($new, q{ALTER EXTENSION atomic_lock UPDATE}), qr/^ERROR:  55P03/, '... also for a prepared one');
like(reply($new, $acquire), $newer, '... and nothing has changed');
is(reply($new, q{COMMIT PREPARED 'p'}), '', '... the prepared transaction can be committed with any library');
is(ask($old, q{SELECT lock_release('written', 'o')}), 't', '... and its lease is held');

# A version in between, whose script changes nothing
append_to_file("$extension--$version--1.0.5.sql", "SELECT app_lock_begin_script();\nSELECT app_lock_refresh_access();\n");
append_to_file("$extension--1.0.5--1.0.10.sql", "SELECT app_lock_begin_script();\nSELECT app_lock_refresh_access();\n");
append_to_file("$extension--1.0.10--$version.sql", "SELECT app_lock_begin_script();\nSELECT app_lock_refresh_access();\n");
append_to_file("$extension--1.0.10--1.1.sql", slurp_file("$extension--1.0--1.1.sql"));
foreach my $relies (q{lock_acquire('mine', owner => 'o', lifetime => 'transaction')}, q{lock_assert('kept', 'o')}, q{lock_release('kept', 'o')}, q{force_release('kept', 'why')})
{
	ask($commits, "BEGIN; SELECT $relies");
	like(reply($new, q{ALTER EXTENSION atomic_lock UPDATE TO '1.0.5'}), qr/^ERROR:  55P03/, "... and for a transaction that has called $relies");
	ask($commits, 'ROLLBACK');
}
is(reply($new, q{RESET lock_timeout; ALTER EXTENSION atomic_lock UPDATE TO '1.0.5'}), '', 'a newer library runs a script in between');
like(reply($new, $acquire), $newer, '... which makes another version than its own');
like(reply($old, $acquire), $older, '... and a session with the old library gets an error at its next call');
like(reply($commits, q{BEGIN; SELECT lock_acquire('mine', owner => 'o', lifetime => 'transaction')}), $older, '... with any lifetime');
is(reply($commits, 'COMMIT'), '', '... its transaction can be ended');
like(reply($old, q{ALTER EXTENSION atomic_lock UPDATE TO '1.0.10'}), $older, 'an older library installs no newer extension');
is(ask($watch, q{SELECT extversion FROM pg_extension WHERE extname = 'atomic_lock'}), '1.0.5', '... nor a part of one');
is(reply($new, q{ALTER EXTENSION atomic_lock UPDATE TO '1.0.10'}), '', 'a newer one does');
like(reply($old, $acquire), $older, '... the session with the old library gets an error again');
is(reply($new, "BEGIN; ALTER EXTENSION atomic_lock UPDATE TO '$version'; ALTER EXTENSION atomic_lock UPDATE TO '1.0.5'; ALTER EXTENSION atomic_lock UPDATE TO '1.1'; $acquire; ROLLBACK; SELECT 1"), "acquired\n1", 'updates back and forth in a transaction');
like(reply($new, $acquire), $newer, '... which is rolled back: the versions still differ');
is_told('older', $old, $older);
ask($old, q{SELECT 1});
is(reply($new, 'ALTER EXTENSION atomic_lock UPDATE'), '', 'the update continues to the last version');
is(ask($new, $leases), $before, '... leases are unchanged');
is(reply($new, "$acquire; SELECT lock_release('k', 'o')"), "acquired\nt", '... and the new library works');
is_told('older by a version', $old, $older);
is(reply($new, q{SET atomic_lock.owner = 'o'; UPDATE orders SET id = 1; SELECT lock_is_held('kept', 'o')}), 't', '... as do guards');

# 1.10 is newer than 1.9.
append_to_file("$extension--1.1--1.9.sql", "SELECT app_lock_begin_script();\nSELECT app_lock_refresh_access();\n");
put_library($library{ten}, $lib);
my $ten = session($node, 'Ten');
like(reply($ten, "BEGIN; ALTER EXTENSION atomic_lock UPDATE TO '1.9'; $acquire"), qr/^ERROR:  55000: .*version 1\.9 in this database, and its library has version 1\.10\nHINT:  Run ALTER EXTENSION/, 'versions are compared number by number');
put_library($library{new}, $lib);
end($watch, $old, $new, $commits, $ten);

#
# Preloaded
#
sub restart
{
	my ($which) = @_;

	put_library($library{$which}, $lib);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\n");
	$node->restart;
	return session($node, $which);
}

# The number of visits of the sweep, and its messages
sub visits
{
	my ($offset) = @_;
	my $log = substr(slurp_file($node->logfile), $offset);
	my @visits = $log =~ /starting background worker process "atomic_lock sweeper"/g;
	my @said = $log =~ /LOG: +(?:55000: )?(no sweep of database .*)/g;

	unlike($log, qr/sweep of database "\w+" failed/, 'no sweep has failed');
	return (scalar @visits, @said);
}

my $offset = -s $node->logfile;
my $psql = restart('old');
is_told('older, preloaded', $psql, $older);
like(reply($psql, 'CREATE DATABASE other'), qr/^$/, '... another database is created');
like(($node->psql('other', 'CREATE EXTENSION atomic_lock', extra_params => [ '-v', 'VERBOSITY=verbose' ]))[2], qr/ERROR:  55000: extension "atomic_lock" has version 1\.1.*HINT:  Install the package of version 1\.1 if/s, 'CREATE EXTENSION before the restart');
is($node->safe_psql('other', q{SELECT count(*) FROM pg_class WHERE relname ~ '^(app_lock|lock_)'}), '0', '... creates nothing');
$node->safe_psql('other', "CREATE EXTENSION atomic_lock VERSION '$version'");
is($node->safe_psql('other', $acquire), 'acquired', '... the version of the library can be created');

my ($visits, @said);
for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
{
	my $log = substr(slurp_file($node->logfile), $offset);
	$log =~ s/.*?no sweep of database "postgres"//s or next;
	($visits = () = $log =~ /starting background worker process "atomic_lock sweeper"/g) > 5 and last;
}
continue
{
	select undef, undef, undef, 0.05;
}
($visits, @said) = visits($offset);
cmp_ok($visits, '>', 5, 'the sweep visits again and again');
is(scalar(grep { /database "postgres"/ } @said), 1, '... and has logged once why it does not sweep');
is(scalar(grep { /database "fresh"/ } @said), 1, '... and once for another database') or diag(join("\n", @said));
is(scalar(grep { /database "other"/ } @said), 0, '... but not for one whose versions are the same');
my $other = session($node, 'Other', 'other');
like(reply($other, q{SELECT status, hint FROM lock_sweeper_status() WHERE database = 'postgres'}), qr/^the background sweep failed at .*\|See the server log\.$/, '... lock_sweeper_status shows it in other databases');
end($psql, $other);

$psql = restart('new');
is(reply($psql, q{SELECT status FROM lock_acquire('due', '1 ms', 'o')}), 'acquired', 'after an update of the package and a restart the new library works');
poll($psql, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'due'});
pass('... as does the sweep');
$other = session($node, 'Other', 'other');
like(reply($other, $acquire), $newer, '... but not in another database before its update');
is(reply($other, "ALTER EXTENSION atomic_lock UPDATE; $acquire"), 'reacquired', '... and after it');
ask($other, q{SELECT lock_acquire('due', '1 ms', 'p')});
poll($other, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'due'});
pass('... including the sweep');
end($psql, $other);

# DROP EXTENSION with either library
$psql = restart('old');
like(reply($psql, $acquire), $older, 'an older library raises an error');
is(reply($psql, 'DROP EXTENSION atomic_lock CASCADE; UPDATE orders SET id = 1'), '', '... but can DROP EXTENSION');
is(reply($psql, "CREATE EXTENSION atomic_lock VERSION '$version'; $acquire"), 'acquired', '... and CREATE EXTENSION with its own version');
end($psql);
$psql = restart('new');
like(reply($psql, $acquire), $newer, 'a newer library raises an error');
is(reply($psql, "DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock; $acquire"), 'acquired', '... but can DROP EXTENSION and CREATE EXTENSION');
ask($psql, "DROP EXTENSION atomic_lock");
end($psql);

#
# Libraries of one version, but with another layout of shared memory
#
put_library($library{old}, $lib);
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
($old, $watch) = map { session($node, $_) } ('Old', 'Watch');
is(reply($old, "CREATE EXTENSION atomic_lock VERSION '$version'; $acquire"), 'acquired', 'a session without preloading');
put_library($library{old}, $lib);
my $same = session($node, 'Same');
start($same, q{SELECT status FROM lock_acquire('k', '1 hour', 'p', wait => '4 min')});
poll($watch, q{SELECT count(*) = 1 FROM lock_waiters}) if $node->pg_version >= 17;
is(reply($old, q{SELECT lock_release('k', 'o')}), 't', '... and one with another file of the same layout: the first releases');
is(answer($same), 'acquired', '... and the other is woken');
foreach my $which ('layout', 'size')
{
	put_library($library{$which}, $lib);
	$psql = session($node, $which);
	is(reply($psql, q{SELECT lock_is_held('k', 'p')}), 't', "another $which: a look needs no shared memory");
	if ($node->pg_version >= 17)
	{
		like(reply($psql, $_), qr/^ERROR:  55000: shared memory of atomic_lock was made by another version of its library\nHINT:  Restart the server\.\n/, "... other calls raise an error: $_")
		  foreach $acquire, $acquire, q{SELECT lock_sweep()}, q{SELECT * FROM lock_stats};
		is(reply($same, q{SELECT lock_release('k', 'p')}), 't', '... sessions with the first library still work');
		$node->restart;
		end($psql, $same);
		$psql = session($node, $which);
		is(reply($psql, "$acquire; SELECT lock_release('k', 'o'), (SELECT count(*) FROM lock_waiters)"), "acquired\nt|0", '... and after a restart this library works');
		($same) = session($node, 'Same');
	}
	else
	{
		is(reply($psql, q{SELECT status FROM lock_try_acquire('k', '1 hour', 'o')}), 'held', '... before PostgreSQL 17 other calls need none, either');
	}
	end($psql);
	put_library($library{old}, $lib);
	$node->restart if $node->pg_version >= 17;
	end($same);
	$same = session($node, 'Same');
	is(reply($same, q{SELECT status FROM lock_acquire('k', '1 hour', 'p')}), $node->pg_version >= 17 ? 'acquired' : 'reacquired', '... as does the old one when it is installed again');
}

end($old, $watch, $same);
$node->stop;
log_is_clean($node);

done_testing();
