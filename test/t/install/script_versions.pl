# Update scripts and DDL on the extension while it is in use.
#
# Needs an installation that can be copied, for scripts of versions that do not
# exist.  These scripts do not begin as they should, or the library would refuse them;
# install/versions_differ and install/next_version have proper scripts.
#
# Properties: ALTER EXTENSION UPDATE does not wait for waiters, and these are granted
# their keys by the new state, or get an error that says why not; it waits for an unfinished
# grant; if it is killed in its middle, the former version stays; DROP EXTENSION does not wait
# for waiters, and for the sweep at most for one batch, at any moment, and after CREATE
# EXTENSION everything works again, including the sweep, with no restart.
#
# Turns red when: a lookup from before an update is believed after it; a wait keeps a
# lock on the table; the launcher remembers an extension that was dropped.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($bin, $share) = copy_installation('versions') or plan skip_all => 'no installation that can be copied';
my $node = PostgreSQL::Test::Cluster->new('versions', install_path => $bin =~ s{/bin$}{}r);
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 80
restart_after_crash = on
deadlock_timeout = 1h
atomic_lock.max_wait = 1h
atomic_lock.sweep_interval = '20ms'
atomic_lock.sweep_batch = 10
});
$node->start;
my ($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
ask($watch, 'CREATE EXTENSION atomic_lock');
my $version = ask($watch, q{SELECT extversion FROM pg_extension WHERE extname = 'atomic_lock'});

# A script for an update
sub script
{
	my ($from, $to, $sql) = @_;
	append_to_file("$share/extension/atomic_lock--$from--$to.sql", $sql);
	return;
}
script($version, '1.0.1', q{ALTER TABLE app_lock SET (fillfactor = 71);
ALTER TABLE app_lock ADD CONSTRAINT made CHECK (fencing_token > 0);
CREATE FUNCTION lock_new() RETURNS int LANGUAGE sql AS 'SELECT 1'});
script('1.0.1', $version, q{ALTER TABLE app_lock DROP CONSTRAINT made; ALTER EXTENSION atomic_lock DROP FUNCTION lock_new(); DROP FUNCTION lock_new()});

#
# An update while fifty calls wait
#
my ($run, $output);
my $file = pgbench_script($node, 'waiters', q{SELECT lock_acquire('crowd', '1 hour', 'o:client_id', wait => '1 hour');
SELECT lock_release('crowd', 'o:client_id');
});
sub crowd
{
	my ($number) = @_;

	ask($holder, q{SELECT lock_acquire('crowd', '1 hour', 'holder')});
	$run = start_pgbench($node, \$output, '-c', $number, '-t', 1, '-f', $file);
	poll($watch, "SELECT count(*) = $number FROM lock_waiters");
	return;
}
crowd(50);
is(reply($one, "BEGIN; ALTER EXTENSION atomic_lock UPDATE TO '1.0.1'; ALTER EXTENSION atomic_lock UPDATE TO '$version'; COMMIT"), '', 'an update and back, while fifty wait, does not wait for them');
is(ask($two, q{SELECT lock_is_held('crowd', 'holder'), (SELECT count(*) FROM lock_waiters)}), 't|50', '... which continue to wait');
is(ask($holder, q{SELECT lock_release('crowd', 'holder')}), 't', '... the holder releases');
$run->finish;
unlike($output, qr/ERROR|abort/, '... and all waiters get the key in turn') or diag($output);
crowd(5);
is(reply($one, q{ALTER EXTENSION atomic_lock UPDATE TO '1.0.1'}), '', 'an update to another version than the library has');
is(ask($two, 'SELECT lock_new()'), '1', '... succeeds');
$run->finish;
my $told = () = $output =~ /ERROR:  extension "atomic_lock" has version 1\.0\.1 in this database/g;
is($told, 5, '... and the waiters get an error') or diag($output);
is(reply($one, "ALTER EXTENSION atomic_lock UPDATE TO '$version'"), '', '... and back');
is(ask($two, q{SELECT count(*), lock_release('crowd', 'holder') FROM lock_waiters}), '0|t', '... the queue is empty, and the holder still has its lease');

# An update waits for open transactions with a grant, as any DDL does.
ask($two, q{BEGIN; SELECT lock_acquire('hand', '1 hour', 'two')});
like(reply($one, q{SET lock_timeout = '50 ms'; ALTER EXTENSION atomic_lock UPDATE TO '1.0.1'}), qr/55P03/, 'an update waits for an unfinished grant, and no longer than lock_timeout');
ask($two, q{COMMIT; SELECT lock_release('hand', 'two')});
ask($one, 'RESET lock_timeout');

# An update is killed in its middle.
ask($watch, q{
CREATE FUNCTION stand() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
	IF current_setting('test.stand', true) = tg_tag THEN PERFORM pg_advisory_lock(1706); END IF;
END $$;
CREATE EVENT TRIGGER stand ON ddl_command_end EXECUTE FUNCTION stand()});
ask($holder, 'SELECT pg_advisory_lock(1706)');
start($one, q{SET test.stand = 'CREATE FUNCTION'; ALTER EXTENSION atomic_lock UPDATE TO '1.0.1'});
poll($watch, 'SELECT wait_event = \'advisory\' FROM pg_stat_activity WHERE pid = ' . pid($one));
my $offset = -s $node->logfile;
kill 'KILL', pid($one);
$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
end($watch, $holder, $one, $two);
await_restart($node);
($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
is(ask($watch, q{SELECT extversion, to_regproc('lock_new') FROM pg_extension WHERE extname = 'atomic_lock'}), "$version|", 'an update that is killed in its middle leaves the former version');
ask($watch, 'DROP EVENT TRIGGER stand');
is(ask($watch, q{ALTER EXTENSION atomic_lock UPDATE TO '1.0.1'; SELECT lock_new()}), '1', '... and can be repeated');
ask($watch, "ALTER EXTENSION atomic_lock UPDATE TO '$version'");

#
# DROP EXTENSION at any moment, with waiters, and during a sweep
#
my $launcher = launcher($watch);
foreach my $round (1 .. 4)
{
	crowd(20);
	expire_rows($holder, "old$round", 3000);
	poll($watch, q{SELECT swept > 0 FROM lock_stats WHERE database = 'postgres'});
	is(reply($one, 'DROP EXTENSION atomic_lock'), '', "round $round: DROP EXTENSION with 20 waiters, during a sweep");
	$run->finish;
	$told = () = $output =~ /ERROR: /g;
	is($told, 20, '... the waiters get an error');
	unlike($output, qr/XX\d\d\d|cache lookup|lost|closed/, '... a proper one') or diag($output);
	is(ask($one, q{CREATE EXTENSION atomic_lock; SELECT status FROM lock_acquire('k', '1 hour', 'o'); SELECT lock_release('k', 'o'), (SELECT count(*) FROM lock_waiters)}), "acquired\nt|0", '... after CREATE EXTENSION locks work');
	expire($holder, "new$round", 20);
	ok(swept($watch, "new$round"), '... as does the sweep');
}
is(launcher($watch), $launcher, '... by the same launcher');

end($watch, $holder, $one, $two);
$node->stop;
log_is_clean($node, killed => 1);

done_testing();
