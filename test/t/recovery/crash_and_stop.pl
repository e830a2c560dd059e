# Crashes and stops at bad moments, and the files that they leave.
#
# A primary writes its WAL with wal_consistency_checking = all, so that its own
# recovery and a standby compare each page that they make with the original
# page.  AL_CYCLES in the environment is the number of rounds with 50
# sessions that wait and are terminated.
#
# Properties: a crash in the middle of CREATE and DROP EXTENSION leaves
# the former state, and the statement can be repeated; a hundred waiters
# end with the server, whether it is stopped or its postmaster killed, and no process is
# left; a waiter answers PostgreSQL's requests to all processes (DROP
# DATABASE); sessions that wait and are terminated, many times, leave no
# waiter in the queue and no open file; when all processes are stopped for longer
# than a lease, the lease has ended when they continue, and its waiter gets the key; after
# crashes under load heap and indexes are consistent, on the primary and on a standby.
#
# Turns red when: the script commits in parts; a sleep ignores the death
# of the postmaster, or interrupts; a slot is not given back; the WAL record of a change
# does not match the change, or an index entry is missing.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $cycles = $ENV{AL_CYCLES} || 3;

my $node = PostgreSQL::Test::Cluster->new('crash');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 120
restart_after_crash = on
wal_consistency_checking = 'all'
wal_keep_size = '1GB'
atomic_lock.sweep_interval = '100ms'
atomic_lock.released_retention = 0
});
$node->start;
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;

my ($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');

# Is a process alive?  A zombie is not.
sub alive
{
	my ($pid) = @_;
	my $file = "/proc/$pid/stat";

	return 0 unless kill 0, $pid;
	return 1 unless -e $file;
	return (eval { slurp_file($file) } // '(x) Z') !~ /\) Z/;
}

sub crashed
{
	my ($offset) = @_;

	ok($node->wait_for_log(qr/database system is ready to accept connections/, $offset), '... the server is back');
	end($watch, $holder, $one, $two);
	$node->poll_query_until('postgres', 'SELECT true') or die 'no restart';
	($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
	return;
}

#
# In the middle of DDL.  An event trigger stops the session when the given number of
# commands of the script is done, or all objects are dropped.
#
ask($watch, q{
CREATE FUNCTION stand() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('test.stand', true) <> '' THEN
		PERFORM set_config('test.stand', (current_setting('test.stand')::int - 1)::text, false);
		IF current_setting('test.stand') = '0' THEN
			PERFORM pg_advisory_lock(1706);
		END IF;
	END IF;
END $$;
CREATE EVENT TRIGGER stand_end ON ddl_command_end EXECUTE FUNCTION stand();
CREATE EVENT TRIGGER stand_drop ON sql_drop EXECUTE FUNCTION stand()});
my $objects = q{SELECT count(*) FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid WHERE e.extname = 'atomic_lock' AND d.deptype = 'e'};
my $strays = q{SELECT (SELECT count(*) FROM pg_class WHERE relname ~ '^(app_lock|lock_)'), (SELECT count(*) FROM pg_proc WHERE proname ~ '^(app_lock_|lock_|force_release)'), (SELECT count(*) FROM pg_extension WHERE extname = 'atomic_lock')};
my $works = q{SELECT status, lock_release('k', 'o') FROM lock_acquire('k', '1 hour', 'o')};
my $nothing = ask($watch, $strays);
my $all;

sub kill_in
{
	my ($sql, $after) = @_;
	my $offset;

	ask($holder, 'SELECT pg_advisory_lock(1706)');
	start($one, "SET test.stand = $after; $sql");
	poll($watch, 'SELECT wait_event = \'advisory\' FROM pg_stat_activity WHERE pid = ' . pid($one));
	$offset = -s $node->logfile;
	kill 'KILL', pid($one);
	crashed($offset);
	return;
}
foreach my $after (1, 20, 60)
{
	kill_in('CREATE EXTENSION atomic_lock', $after);
	is(ask($watch, $strays), $nothing, "CREATE EXTENSION, killed after $after commands: no object is left");
}
ask($watch, 'CREATE EXTENSION atomic_lock');
$all = ask($watch, $objects);
is(ask($watch, $works), 'acquired|t', '... and can be repeated');
my $lease = ask($watch, q{SELECT fencing_token FROM lock_acquire('kept', '1 hour', 'o')});
kill_in('DROP EXTENSION atomic_lock', 1);
is(ask($watch, $objects), $all, 'DROP EXTENSION, killed when all objects are dropped: all are back');
is(ask($watch, q{SELECT fencing_token FROM lock_status('kept')}), $lease, '... and so is a lease');
ask($watch, 'DROP EXTENSION atomic_lock');
is(ask($watch, $strays), $nothing, 'DROP EXTENSION, repeated: no object is left');
ask($watch, 'DROP EVENT TRIGGER stand_end; DROP EVENT TRIGGER stand_drop; CREATE EXTENSION atomic_lock');
is(ask($watch, $works), 'acquired|t', 'CREATE EXTENSION, again');

#
# A hundred waiters
#
my $script = pgbench_script($node, 'waiters', qq{SELECT lock_acquire('crowd', '1 hour', 'o:client_id', wait => '4 min');\n});
my $output;

sub crowd
{
	my ($number) = @_;
	my $run;

	ask($holder, q{SELECT lock_acquire('crowd', '1 hour', 'holder')});
	$run = start_pgbench($node, \$output, '-c', $number, '-t', 1, '-f', $script);
	poll($watch, "SELECT count(*) = $number FROM lock_waiters");
	return $run;
}

my $run = crowd(100);
is(ask($watch, q{CREATE DATABASE other; DROP DATABASE other; SELECT count(*) FROM lock_waiters}), '100', 'DROP DATABASE does not hang with a hundred waiters');
my @pids = split /\n/, ask($watch, q{SELECT pid FROM lock_waiters});
$node->stop('fast');
$run->finish;
is(scalar(grep { alive($_) } @pids), 0, 'a fast stop ends all waiters');
like($output, qr/terminating connection due to administrator command/, '... with an error');
end($watch, $holder, $one, $two);
$node->start;
($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
is(ask($watch, q{SELECT (SELECT count(*) FROM lock_waiters), lock_is_held('crowd', 'holder')}), '0|t', '... after the start the queue is empty, and the lease is held');

$run = crowd(100);
@pids = split /\n/, ask($watch, q{SELECT pid FROM pg_stat_activity});
cmp_ok(scalar @pids, '>', 100, 'a hundred waiters, the launcher, and others');
$node->kill9;
$run->finish;
my $left = @pids;
for (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
{
	$left = grep { alive($_) } @pids;
	last unless $left;
	usleep(10_000);
}
is($left, 0, 'the postmaster is killed: all of them end by themselves');
# In a container the dead postmaster may stay a zombie, and a new one would take it for alive.
my $pid_file = $node->data_dir . '/postmaster.pid';
my ($killed) = slurp_file($pid_file) =~ /^(\d+)/;
unlink $pid_file, $node->host . '/.s.PGSQL.' . $node->port . '.lock' if kill(0, $killed) && !alive($killed);
end($watch, $holder, $one, $two);
$node->start;
($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
is(ask($watch, q{SELECT (SELECT count(*) FROM lock_waiters), lock_is_held('crowd', 'holder'); SELECT lock_release('crowd', 'holder')}), "0|t\nt", '... and a new one starts');

# Many rounds.  Sessions use slots that others have left.
my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
my $open_files = "SELECT count(*) FROM pg_ls_dir('/proc/$postmaster/fd', true, false)";
# The tables of PostgreSQL that grow in use, such as that of locks, are anonymous.
my $shared = q{SELECT count(*), sum(allocated_size) FROM pg_shmem_allocations WHERE name <> '<anonymous>'};
my ($before, $files);
foreach my $cycle (1 .. $cycles)
{
	$run = crowd(50);
	ask($watch, 'SELECT count(pg_terminate_backend(pid)) FROM lock_waiters');
	$run->finish;
	poll($watch, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name NOT IN ('Holder', 'One', 'Two', 'standby') AND backend_type = 'client backend'});
	# the first round may use something for the first time
	($before, $files) = (ask($watch, $shared), ask($watch, $open_files)) if $cycle == 1;
}
is(ask($watch, q{SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)}), '0|0', "$cycles times 50 waiters are terminated: no waiter or claim is left");
is(ask($watch, $shared), $before, '... shared memory has the same size');
poll($watch, "SELECT ($open_files) <= $files");
pass('... and the number of open files');
is(ask($holder, q{SELECT lock_release('crowd', 'holder')}), 't', '... the holder still has its lease');
$run = crowd(100);
ask($watch, 'SELECT count(pg_cancel_backend(pid)) FROM lock_waiters');
$run->finish;
pass('... and there is room for a hundred');
ask($holder, q{SELECT lock_release('crowd', 'holder')});

#
# All processes are stopped for longer than a lease.
#
ask($holder, q{SELECT lock_acquire('still', '1 hour', 'holder')});
queue_up($watch, $one, q{SELECT status FROM lock_try_acquire('still', '1 hour', 'one', wait => '4 min')});
my $end = ask($holder, q{SELECT extract(epoch FROM lock_extend('still', 'holder', '1500 ms'))});
my @all = ($postmaster, split /\n/, ask($watch, 'SELECT pid FROM pg_stat_activity'));
kill 'STOP', @all;
start($holder, q{SELECT lock_try_extend('still', 'holder', '1 hour') IS NULL, lock_try_release('still', 'holder')});
start($two, q{SELECT status FROM lock_try_acquire('still', '1 hour', 'two')});
usleep(10_000) while time() < $end;
kill 'CONT', reverse @all;
# The row may have been swept by then.
like(answer($holder), qr/^t\|(?:expired|not_owner|not_found)$/, 'all processes are stopped for longer than a lease: it has ended when they continue');
is(answer($one), 'acquired', '... the waiter gets the key');
# The waiter may be about to get the key when this call looks.
like(answer($two), qr/^(?:held|pending)$/, '... and another caller does not');
ask($one, q{SELECT lock_release('still', 'one')});

#
# Crashes under load
#
$node->safe_psql('postgres', q{CREATE TABLE doc (id int PRIMARY KEY, v int); INSERT INTO doc SELECT n, 0 FROM generate_series(1, 20) n; SELECT lock_protect('doc', 'doc:{id}');
CREATE INDEX own_index ON app_lock (holder, expires_at)});
my %load = (
	single => q{SELECT lock_try_acquire('k' || :k, '1 hour', :me);
SELECT lock_try_extend('k' || :k, :me);
SELECT lock_try_release('k' || :k, :me);
},
	shared => q{SELECT lock_try_acquire('k' || :k, '20 ms', :me, 'shared', meta => to_jsonb(repeat('x', :k * 100)));
SELECT lock_try_acquire('k' || :k, '20 ms', :me);
},
	set => q{BEGIN;
SAVEPOINT s;
SELECT lock_try_acquire_all(ARRAY['s' || :k, 's' || (:k + 1), 's' || (:k + 2)], owner => :me);
ROLLBACK TO s;
SELECT lock_try_acquire_all(ARRAY['s' || :k, 's' || (:k + 1)], owner => :me);
COMMIT;
SELECT lock_release_all(:me);
},
	lifetimes => q{BEGIN;
SELECT lock_try_acquire('t' || :k, owner => :me, lifetime => 'transaction');
SELECT lock_try_acquire('x' || :k, owner => :me, lifetime => 'session');
COMMIT;
SELECT lock_release_all(:me);
},
	guard => q{SET atomic_lock.owner = :me;
SELECT count(*) FROM lock_fetch(NULL::doc, :k::text, key => 'doc:' || :k, wait => '4 min');
UPDATE doc SET v = v + 1 WHERE id = :k AND lock_is_held('doc:' || :k);
SELECT lock_release_all();
},
	rebuild => q{REINDEX TABLE CONCURRENTLY app_lock;
VACUUM app_lock;
});
foreach my $round (1 .. 3)
{
	my @files;

	foreach my $name (sort keys %load)
	{
		my $file = pgbench_script($node, "$name-$round", "\\set k random(1, 18)\n" . $load{$name} =~ s/:me/'o:client_id'/gr);

		push @files, '-f', $file . ($name eq 'rebuild' ? '@1' : '@20');
	}
	{
		local $ENV{PGAPPNAME} = 'load';
		$run = start_pgbench($node, \$output, '-c', 8, '-T', 600, @files);
	}
	my $grants = ask($watch, q{SELECT coalesce(sum(grants), 0) FROM lock_stats});
	poll($watch, "SELECT sum(grants) - $grants > 800 FROM lock_stats");
	if ($round == 2)
	{
		my $offset = -s $node->logfile;
		kill 'KILL', split /\n/, ask($watch, q{SELECT pid FROM pg_stat_activity WHERE application_name = 'load' LIMIT 1});
		$run->finish;
		crashed($offset);
	}
	else
	{
		$node->stop('immediate');
		$run->finish;
		end($watch, $holder, $one, $two);
		$node->start;
		($watch, $holder, $one, $two) = map { session($node, $_) } ('Watch', 'Holder', 'One', 'Two');
	}
	unlike($output =~ s/^.*(?:because of crash|server closed|terminat|unexpectedly|perhaps|before or while|aborted|incorrect|WARNING|DETAIL|HINT|immediate shutdown).*$//rmg, qr/ERROR:/, "crash $round: no error before it") or diag($output);
	# An interrupted rebuild leaves an invalid index.
	ask($watch, q{DO $$ DECLARE i regclass; BEGIN FOR i IN SELECT indexrelid FROM pg_index WHERE indrelid IN ('app_lock'::regclass) AND NOT indisvalid LOOP EXECUTE 'DROP INDEX ' || i; END LOOP; END $$});
	is(ask($watch, $works), 'acquired|t', '... and locks can be acquired after it');
	$node->command_ok([ 'pg_amcheck', '--install-missing', '--heapallindexed', ($node->pg_version >= 17 ? '--checkunique' : ()), '--all' ], '... heaps and indexes are consistent');
}
is(ask($watch, q{SELECT count(*) FROM (SELECT FROM app_lock WHERE NOT released AND mode = 'exclusive' GROUP BY key HAVING count(*) > 1) s}), '0', 'no key has two writers');

# The standby has compared every page.
ask($watch, q{SELECT lock_acquire('last', '1 hour', 'o'); ALTER SYSTEM SET atomic_lock.sweep_interval = 0; SELECT pg_reload_conf()});
poll($watch, q{SELECT status ~ '^turned off' FROM lock_sweeper_status() WHERE database IS NULL});
poll($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'});
$node->wait_for_catchup($standby);
my $rows = q{SELECT count(*), md5(string_agg(l::text, ' ' ORDER BY l.key, l.slot)) FROM app_lock l};
is($standby->safe_psql('postgres', $rows), ask($watch, $rows), 'the standby has the same rows');
is($standby->safe_psql('postgres', q{SELECT count(bt_index_check(indexrelid, true)) FROM pg_index WHERE indrelid = 'app_lock'::regclass}), '3', '... and its indexes are correct');
end($watch, $holder, $one, $two);
$standby->stop;
$node->stop;
log_is_clean($standby, killed => 1, also => qr/inconsistent page/);
log_is_clean($node, killed => 1, also => qr/inconsistent page/);

done_testing();
