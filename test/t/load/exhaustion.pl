# A resource runs out: connections, memory, transaction ids, the time that a transaction may idle.
#
# The part about memory needs prlimit(1) and /proc, the part about transaction ids a
# server that pg_resetwal can put near its limit.
#
# Properties: when all connections wait, each has a position in the queue, and an
# administrator can still use the reserved connections; a
# transaction that idles for too long loses its lease; a backend that gets no memory,
# at any point of a call, raises 53200, has no waiter and no claim
# afterwards, and works when there is memory again; heartbeats are HOT
# again when an old snapshot is gone, and the space is used again; on a server without
# transaction ids, refusals, looks and locks of a transaction work, grants are
# refused with 54000, the sweep does not fill the log, and everything works again
# after VACUUM.
#
# Turns red when: the queue has fewer slots than there are connections; an error path
# keeps a position, a claim or a spinlock; a refusal or a look takes a transaction
# id; the worker is restarted at once when it fails.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('limits');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_connections = 20
superuser_reserved_connections = 4
deadlock_timeout = 1h
atomic_lock.sweep_interval = 0
});
$node->start;
my ($watch, $holder, $one) = map { session($node, $_) } ('Watch', 'Holder', 'One');
ask($watch, q{CREATE EXTENSION atomic_lock; CREATE ROLE app LOGIN; SELECT lock_grant_access('app', 'user')});
end($one);
poll($watch, q{SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'client backend'});

sub nothing_left
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(ask($watch, q{SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM lock_status()), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)}), '0|0|0', $name);
	return;
}

#
# Connections: all connections that ordinary roles may use wait.
#
my $output;
my $script = pgbench_script($node, 'waiters', q{SELECT lock_acquire('crowd', '1 hour', 'o:client_id', wait => '4 min');
SELECT lock_release('crowd', 'o:client_id');
});
ask($holder, q{SELECT lock_acquire('crowd', '1 hour', 'holder')});
my $free = $node->safe_psql('postgres', q{SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int - 2});
my $run = start_pgbench($node, \$output, '-U', 'app', '-c', $free, '-t', 1, '-f', $script);
poll($watch, "SELECT count(*) = $free FROM lock_waiters");
is(ask($watch, q{SELECT array_agg(place ORDER BY place) = array_agg(n::int ORDER BY n) FROM (SELECT place, row_number() OVER (ORDER BY place) AS n FROM lock_waiters) s}), 't', 'all connections wait, each with a position of its own');
my ($code, undef, $refused) = $node->psql('postgres', 'SELECT 1', extra_params => [ '-U', 'app' ]);
isnt($code, 0, '... another connection is refused');
like($refused, qr/FATAL:  (?:sorry, too many clients|remaining connection slots)/, '... with an error that says why');
# A role that may signal backends can end a wait, but not the sweep.
$node->safe_psql('postgres', q{CREATE ROLE guard; GRANT pg_signal_backend TO guard});
($code, undef, $refused) = $node->psql('postgres', q{SELECT pid AS launcher FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher' \gset
SET ROLE guard; SELECT pg_terminate_backend(:launcher)}, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($refused, qr/ 42501:/, '... a role that may signal backends cannot end the launcher');
is($node->safe_psql('postgres', q{SELECT pid AS last FROM lock_waiters ORDER BY place DESC LIMIT 1 \gset
SET ROLE guard; SELECT pg_cancel_backend(:last)}), 't', '... but can cancel a wait');
poll($watch, "SELECT count(*) = $free - 1 FROM lock_waiters");
is($node->safe_psql('postgres', q{SELECT force_release('crowd', 'all wait')}), 't', '... an administrator can connect and force the release');
$run->finish;
is(scalar(() = $output =~ /ERROR:/g), 1, '... all waiters get the key, except the cancelled one') or diag($output);
poll($watch, q{SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'client backend'});
nothing_left('... no waiter, lease or claim is left');

#
# A transaction that idles for too long
#
$one = session($node, 'One');
ask($one, q{BEGIN; SELECT lock_acquire('idle', '1 hour', 'one')});
queue_up($watch, $holder, q{SELECT status FROM lock_acquire('idle', '1 hour', 'holder', wait => '4 min')});
start($one, q{SET idle_in_transaction_session_timeout = '10 ms'});
is(answer($holder), 'acquired', 'a transaction that idles for too long loses its lease, and the waiter gets the key');
ask($holder, q{SELECT lock_release('idle', 'holder')});
end($one);
nothing_left('... no waiter, lease or claim is left');

#
# Memory
#
SKIP:
{
	skip 'a memory checker needs more memory', 1 if $ENV{AL_POSTGRES};
	skip 'needs prlimit and /proc', 1 unless -e "/proc/@{[pid($watch)]}/status" && system('prlimit --version >/dev/null 2>&1') == 0;

	ask($watch, q{CREATE TABLE doc (id int PRIMARY KEY, x text); INSERT INTO doc VALUES (1, 'one');
	SELECT lock_acquire('held', '1 hour', 'holder'); SELECT lock_protect('doc', 'doc:{id}')});
	my @calls = (
		q{SELECT count(*) FROM lock_acquire_all((SELECT array_agg('all-' || n) FROM generate_series(1, 400) n), owner => 'o')},
		q{SELECT count(lock_acquire('many-' || n, owner => 'o', lifetime => 'session')) FROM generate_series(1, 400) n},
		q{SELECT count(lock_acquire('tx-' || n, owner => 'o', lifetime => 'transaction')) FROM generate_series(1, 600) n},
		q{SELECT count(lock_acquire('big-' || n, owner => 'o', meta => to_jsonb(repeat('x', 8000)))) FROM generate_series(1, 100) n},
		q{SELECT count(lock_acquire(repeat('k', 1000) || n, owner => 'o', mode => 'shared')) FROM generate_series(1, 300) n},
		q{SELECT status FROM lock_try_acquire('held', owner => 'o', wait => '20 ms')},
		q{SELECT count(lock_assert('pin-' || n, 'holder')) FROM generate_series(1, 400) n},
		q{SELECT x FROM lock_fetch(NULL::doc, '1', owner => 'o')},
		q{SELECT lock_release_all('nobody'), count(*) FROM lock_status()},
		q{SELECT force_release('forced', repeat('x', 1000))},
		q{DO $$ BEGIN FOR n IN 1 .. 200 LOOP BEGIN PERFORM lock_acquire('sub-' || n, owner => 'o'); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$});
	my (%seen, @others);
	my $uses = q{SELECT lock_is_held('x', 'y'); SELECT count(*) FROM app_lock; BEGIN; SELECT lock_acquire('y', owner => 'o'); ROLLBACK};

	is(ask($watch, q{SELECT count(*) FROM generate_series(1, 400) n, lock_acquire('pin-' || n, '1 hour', 'holder')}), '400', 'leases for the assertions below');
	foreach my $call (@calls)
	{
		foreach my $first ('first use', 'in use')
		{
			# The limit, in kilobytes above its current size: too little even for its catalog caches,
			# or just too little for the call
			foreach my $more (0, 64, 256, 1024)
			{
				my $victim = session($node, 'Victim');
				my ($size, $answer);

				ask($victim, 'DO $$ BEGIN END $$');	# libraries have errors of their own

				ask($watch, q{SELECT lock_try_acquire('forced', '1 hour', 'holder')});
				ask($victim, $uses) if $first eq 'in use';
				($size) = slurp_file('/proc/' . pid($victim) . '/status') =~ /^VmSize:\s+(\d+) kB/m or die;
				system_or_bail('prlimit', '--pid', pid($victim), '--as=' . 1024 * ($size + $more) . ':');
				start($victim, $call);
				$answer = answer($victim);
				$seen{ $answer =~ /(?:ERROR|FATAL):  (\w+)/ ? $1 : 'none' }++;
				# PostgreSQL's SHA-256 reports a lack of memory in its own way.
				push @others, $answer if $answer =~ /(?:ERROR|FATAL):  (?!53200|XX000: could not initialize SHA256 context)/ || $answer =~ /lost|closed/;
				system_or_bail('prlimit', '--pid', pid($victim), '--as=unlimited:');
				start($victim, 'ROLLBACK');
				answer($victim);
				is(ask($victim, q{SELECT lock_release_all('o') >= 0; SELECT status, lock_release('after', 'o') FROM lock_acquire('after', owner => 'o')}), "t\nacquired|t", 'a session that had no memory works again') or last;
				is(ask($watch, 'SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711), (SELECT count(*) FROM lock_status() WHERE lifetime <> $$lease$$ OR key !~ $$^(held|forced|pin)$$)'), '0|0|0', '... and has left no waiter, claim or lease') if $answer =~ /53200/;
				end($victim);
			}
		}
	}
	note join ', ', map { "$_: $seen{$_}" } sort keys %seen;
	is(join("\n", @others), '', 'a lack of memory raises no other error than 53200');
	cmp_ok($seen{53200} // 0, '>', 10, '... it occurred often');
	cmp_ok($seen{none} // 0, '>', 10, '... and many calls succeeded');
	ask($watch, q{SELECT lock_release_all('holder'), lock_unprotect('doc'); DROP TABLE doc});
}
nothing_left('... no waiter, lease or claim is left');

#
# Heartbeats of a hundred leases while a transaction keeps an old snapshot
#
$one = session($node, 'One');
ask($watch, 'TRUNCATE app_lock');
ask($watch, q{SELECT count(lock_acquire('beat-' || n, '1 hour', 'worker ' || n)) FROM generate_series(1, 100) n; VACUUM app_lock; SELECT pg_stat_reset_single_table_counters('app_lock'::regclass)});
my $beat = q{DO $$ BEGIN FOR i IN 1 .. 60 LOOP PERFORM lock_extend('beat-' || n, 'worker ' || n, '2 hours') FROM generate_series(1, 100) n; COMMIT; END LOOP; END $$};
my $blocks = q{SELECT pg_relation_size('app_lock') / 8192, pg_indexes_size('app_lock') / 8192};

# The statistics of a session are complete when it has ended; those of former statements of
# other sessions must not arrive later.
sub beats
{
	ask($_, 'SELECT pg_stat_force_next_flush()') for ($watch, $holder, $one);
	ask($watch, q{SELECT pg_stat_reset_single_table_counters('app_lock'::regclass)});
	my $psql = session($node, 'Beats');
	ask($psql, $beat);
	end($psql);
	poll($watch, q{SELECT pg_stat_get_tuples_updated('app_lock'::regclass) >= 6000});
	return ask($watch, q{SELECT 100 * pg_stat_get_tuples_hot_updated('app_lock'::regclass) / pg_stat_get_tuples_updated('app_lock'::regclass)});
}
ask($one, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
note 'HOT under an old snapshot: ' . beats() . ' %, blocks ' . ask($watch, $blocks);
ask($one, 'COMMIT');
ask($watch, 'VACUUM app_lock');
my $grown = ask($watch, $blocks);
cmp_ok(beats(), '>', 90, 'heartbeats are HOT');
is(ask($watch, $blocks), $grown, '... and use the space of former versions');
cmp_ok((split /\|/, $grown)[0], '<', 200, '... the old snapshot has made the table larger, within a limit');
ask($watch, q{TRUNCATE app_lock});
end($watch, $holder, $one);
$node->stop;
log_is_clean($node);

#
# Transaction ids: the server is put three million before their end, where
# PostgreSQL assigns none any more.  A table that cannot be vacuumed, since its
# file is missing, keeps them from becoming available by themselves.
#
$node->start;
$watch = session($node, 'Watch');
ask($watch, q{CREATE TABLE stuck (id int); INSERT INTO stuck VALUES (1);
SELECT lock_acquire('held', '10 hours', 'me', holder => 'Ann'), lock_acquire('short', '1 ms', 'me')});
my $file = $node->data_dir . '/' . ask($watch, q{SELECT pg_relation_filepath('stuck')});
my $oldest = ask($watch, q{SELECT relfrozenxid FROM pg_class WHERE relname = 'stuck'});
end($watch);
$node->stop;
my $next = $oldest + 2**31 - 1 - 3_000_000 + 100;
my $segment = sprintf '%s/pg_xact/%04X', $node->data_dir, $next / (8192 * 4 * 32);
command_ok([ 'pg_resetwal', '-x', $next, $node->data_dir ], "pg_resetwal to transaction $next");
append_to_file($segment, "\0" x (8192 * 32)) unless -e $segment;
rename $file, "$file.away" or die "$file: $!";
$node->append_conf('postgresql.conf', q{atomic_lock.sweep_interval = '50ms'});
$node->start;
($watch, $one) = map { session($node, $_) } ('Watch', 'One');
start($watch, 'CREATE TABLE another (id int)');
like(answer($watch), qr/^ERROR:  54000: database is not accepting commands/, 'a server without transaction ids');
is(ask($watch, q{SELECT locked, holder FROM lock_status('held')}), 't|Ann', '... shows the holder of a lock');
is(ask($watch, q{SELECT lock_is_held('held', 'me'), lock_assert('held', 'me') > 0, count(*) FROM lock_status()}) =~ s/\|\d+$//r, 't|t', '... and proves a holding');
is(ask($watch, q{SELECT status FROM lock_try_acquire('held', owner => 'you'); SELECT lock_try_release('held', 'you')}), "held\nnot_owner", '... refuses other owners');
is(ask($watch, q{SELECT status FROM lock_try_acquire('held', owner => 'you', wait => '50 ms')}), 'timeout', '... lets a call wait until its time-out');
is(ask($one, q{BEGIN; SELECT status FROM lock_acquire('tx', owner => 'me', lifetime => 'transaction'); COMMIT}), 'acquired', '... and grants a lock with lifetime transaction, which needs no row');
foreach my $call (q{lock_acquire('new', owner => 'me')}, q{lock_try_acquire('new', owner => 'me')}, q{lock_extend('held', 'me')}, q{lock_release('held', 'me')}, q{lock_try_acquire_all('{a,b}', owner => 'me')},
	q{lock_try_acquire('new', owner => 'me', mode => 'shared', wait => '1 s')}, q{force_release('held', 'why')}, q{lock_acquire('session', owner => 'me', lifetime => 'session')})
{
	start($one, "SELECT $call");
	like(answer($one), qr/^ERROR:  54000: database is not accepting commands/, "... but not $call");
}
is(ask($watch, q{SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711), (SELECT count(*) FROM app_lock)}), '0|0|2', '... these calls leave no waiter, claim or row');
poll($watch, q{SELECT NOT locked FROM lock_status('short')});
poll($watch, q{SELECT count(*) = 1 FROM lock_sweeper_status() WHERE database = 'postgres' AND hint IS NOT NULL});
pass('the sweep has failed, and lock_sweeper_status says so');
$node->wait_for_log(qr/(?:"atomic_lock sweeper"[^\n]* exited with exit code 1\n.*?){3}/s);
is(count_in_log($node, qr/LOG:  sweep of database "postgres" failed/), 1, '... the log has only the first failure');
rename "$file.away", $file or die "$file: $!";
# Autovacuum takes care of template0 in such an emergency.
ask($watch, 'VACUUM (FREEZE, TRUNCATE off) stuck');
$node->safe_psql($_, 'VACUUM (FREEZE, TRUNCATE off)') for ('postgres', 'template1');
poll($watch, q{SELECT bool_and(age(datfrozenxid) < 2000000000) FROM pg_database});
is(ask($one, q{SELECT status FROM lock_acquire('new', '1 hour', 'me'); SELECT lock_extend('held', 'me') IS NOT NULL; SELECT lock_release_all('me')}), "acquired\nt\n2", 'after VACUUM all calls work again');
ask($watch, 'SELECT pg_reload_conf()');
poll($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'short'});
pass('... as does the sweep');
end($watch, $one);
$node->stop;
log_is_clean($node);

done_testing();
