# The life of the background sweep.
#
# Properties: there is one launcher, connected to no database; expired leases, those of dead
# sessions and keys that were released long ago are removed from every database that has the
# extension, also from one that came later, and no other rows; an idle database
# is seldom visited; a reload changes which databases are swept, and whether;
# names in atomic_lock.sweep_databases are identifiers, and a missing database
# is one line in the log; a launcher that is terminated comes back;
# a session that locks a row, a catalog, or a key by a prepared transaction does not delay
# the sweep of the rest.
#
# Turns red when: the launcher remembers databases as they were at its start; it
# sleeps through a long interval before it notices a reload, or forgets its next
# visit; it exits with 0, so the postmaster does not restart it; it reads pg_database
# as only a session can; a visit counts as a change.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = PostgreSQL::Test::Cluster->new('sweeper');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_prepared_transactions = 5
atomic_lock.sweep_interval = '50ms'
atomic_lock.sweep_batch = 100
});
$node->start;
my $watch = session($node, 'Watch');

#
# The views of the sweep
#
my $launcher = launcher($watch);
ok($launcher, 'there is a launcher');
is(ask($watch, q{SELECT datname IS NULL FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher'}), 't', '... connected to no database');
ask($watch, 'CREATE EXTENSION atomic_lock; CREATE DATABASE one');
my $one = session($node, 'One', 'one');
ask($one, 'CREATE EXTENSION atomic_lock');
is(expire($_, 'a', 250), '250', 'expired leases') for ($watch, $one);
ok(swept($_, 'a'), '... are swept, in more than one batch') for ($watch, $one);
foreach my $psql ($watch, $one)
{
	ok(soon($psql, q{SELECT swept = 250 FROM lock_stats WHERE database = current_database()}), '... and counted') or diag(ask($psql, 'SELECT * FROM lock_stats'));
	is(ask($psql, q{SELECT grants, releases, expirations, steals, forced, sweeps > 0 FROM lock_stats WHERE database = current_database()}), '250|0|250|0|0|t', '... as expired, once each');
}
ok(soon($watch, q{SELECT status = 'running, sweeps every 50ms' AND hint IS NULL FROM lock_sweeper_status() WHERE database IS NULL}), 'lock_sweeper_status says that it runs')
  or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));
is(ask($watch, q{SELECT count(*) FILTER (WHERE database IS NULL) || ' ' || string_agg(database::text, ' ' ORDER BY database) FROM lock_sweeper_status()}), '1 one postgres', '... and which databases were swept');
is(ask($watch, q{SELECT bool_and(last_swept_at BETWEEN pg_postmaster_start_time() AND now() AND last_removed BETWEEN 0 AND 250 AND last_duration >= '0' AND hint IS NULL) FROM lock_sweeper_status() WHERE database IS NOT NULL}), 't', '... and when, how many rows, and how long')
  or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));

#
# Rows that are kept, and rows that are removed
#
my $holder = session($node, 'Holder');
my $dead = session($node, 'Dead');
ask($holder, q{SELECT lock_acquire('live', '1 hour', 'o'), lock_acquire('session', owner => 'o', lifetime => 'session'), lock_acquire('shared', '1 hour', 'o', 'shared'), lock_acquire('shared', '1 ms', 'p', 'shared'), lock_acquire('released', '1 hour', 'o')});
ask($holder, q{SELECT lock_release('released', 'o')});
ask($dead, q{SELECT lock_acquire('dead-' || n, owner => 'd', lifetime => 'session') FROM generate_series(1, 10) n});
my $open = session($node, 'Open');
ask($open, q{BEGIN; SELECT lock_acquire('open', '1 ms', 'o')});
kill 'TERM', pid($dead);
ok(swept($watch, 'dead'), 'the locks of a session that has ended are swept');
ok(sweep_passes($watch), 'sweeps pass');
is(ask($watch, q{SELECT string_agg(concat_ws(' ', key, owner), ', ' ORDER BY key, owner) FROM app_lock}), 'live o, released o, session o, shared o', '... live leases and released keys stay');
ask($open, 'COMMIT');
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'open'}), '... an expired lease of an open transaction is swept when that has ended');
is(ask($holder, q{SELECT lock_is_held('live', 'o'), lock_is_held('session', 'o'), lock_is_held('shared', 'o'), lock_try_release('released', 'o')}), 't|t|t|already_released', '... the rows that are kept are unchanged');
configure($node, $watch, q{atomic_lock.released_retention = 0});
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'released'}), 'a reload changes released_retention');
configure($node, $watch, q{atomic_lock.released_retention = '1h'});
is(ask($holder, q{SELECT lock_release_all('o')}), '3', 'the leases are released');

# Background sweeps, sweeps by hand, and acquires of the same keys at the same time
ask($watch, 'SELECT lock_stats_reset()');
expire_rows($watch, 'both', 20_000);
$node->pgbench('-n -c 4 -t 30', 0, [qr/processed: 120\/120/], [qr/^(?!.*(?:ERROR|abort))/s], 'sweeps by hand and in the background, and acquires', {
	'sweep@2' => 'SELECT lock_sweep(300);',
	'acquire@1' => q{\set n random(1, 20000)
SELECT lock_try_acquire('both-' || :n, '1 ms', 'o' || :client_id);} });
ok(swept($watch, 'both'), '... every row is swept');
ok(soon($watch, q{SELECT expirations = 20000 + grants FROM lock_stats WHERE database = current_database()}), '... and each lease is counted once') or diag(ask($watch, 'SELECT * FROM lock_stats'));

# An idle database is seldom visited.
my $idle = q{SELECT sweeps FROM lock_stats WHERE database = 'one'};
my ($since, $visits) = (time(), ask($watch, $idle));
for (1 .. 8)
{
	ok(sweep_passes($watch), 'sweeps pass') or last;
}
$visits = ask($watch, $idle) - $visits;
cmp_ok($visits, '<=', (time() - $since) / 0.5 + 2, "... an idle database is seldom visited: $visits");

# A new lease of a key that was swept before
my $token = 0;
foreach my $n (1 .. 3)
{
	my $next = ask($watch, q{SELECT fencing_token FROM lock_acquire('again-1', '1 ms', 'o')});
	cmp_ok($next, '>', $token, 'fencing tokens rise over a sweep');
	$token = $next;
	ok(swept($watch, 'again'), '... the key is swept');
}

#
# Databases and extensions that are created later
#
ask($watch, 'CREATE DATABASE late');
ok(sweep_passes($watch), 'a database without the extension');
my $late = session($node, 'Late', 'late');
ask($late, 'CREATE EXTENSION atomic_lock');
expire($late, 'b', 20);
ok(swept($late, 'b'), '... gets it later, and is swept');
ask($late, 'DROP EXTENSION atomic_lock');
ok(sweep_passes($watch), '... loses it');
ask($late, 'CREATE SCHEMA elsewhere; CREATE EXTENSION atomic_lock SCHEMA elsewhere; SET search_path = elsewhere');
expire($late, 'b', 20);
ok(swept($late, 'b'), '... and gets it again, in another schema, and is swept');
end($one);
ask($watch, 'CREATE DATABASE later TEMPLATE one');
$one = session($node, 'One', 'one');
my $later = session($node, 'Later', 'later');
expire($later, 'c', 20);
ok(swept($later, 'c'), 'a copy of a database is swept');
is(ask($watch, q{SELECT string_agg(database::text, ' ' ORDER BY database) FROM lock_sweeper_status() WHERE database IS NOT NULL}), 'late later one postgres', 'lock_sweeper_status shows all of them');

#
# Names of databases
#
like($node->psql('postgres', qq{ALTER SYSTEM SET atomic_lock.sweep_databases = '$_'}) . '', qr/^3$/, "not a valid list of databases: $_") for ('one two', 'one,', '"one', ',', 'one,,two');
end($later);
ask($watch, 'CREATE DATABASE "' . $_ =~ s/"/""/gr . '" TEMPLATE later') for ('Two Words', 'a"b, c', 'One');
ask($watch, q{CREATE DATABASE tmpl IS_TEMPLATE true TEMPLATE later});
my ($words, $odd, $big, $template) = map { session($node, 'Name', $_) } ('Two Words', 'a"b, c', 'One', 'tmpl');
expire($_, 'd', 3) for ($template, $words);
ok(swept($words, 'd'), 'a database with an odd name is swept');
ok(sweep_passes($words), '... again');
is(ask($template, q{SELECT count(*) FROM app_lock}), '3', 'a template is not swept');

configure($node, $watch, q{atomic_lock.sweep_databases = ' ONE, "Two Words" , "a""b, c", Missing,tmpl, one'});
ok($node->wait_for_log(qr/LOG:  database "missing" in atomic_lock.sweep_databases does not exist/), 'the log has a line for a missing database');
expire($_, 'e', 3) for ($watch, $one, $words, $odd, $big, $late);
ok(swept($_, 'e'), 'a named database is swept') for ($one, $words, $odd);
ok(swept($template, 'd'), '... a template, too');
ok(sweep_passes($_), '... again') for ($one, $odd);
is(ask($_, q{SELECT count(*) FROM app_lock WHERE key LIKE 'e-%'}), '3', '... and no other') for ($watch, $big, $late);
my $left_out = q{SELECT status, hint ~ 'sweep_databases.*lock_schedule_sweep', last_swept_at IS NOT NULL FROM lock_sweeper_status() WHERE database = };
ask($watch, 'CREATE DATABASE unseen TEMPLATE later');
my $unseen = session($node, 'Unseen', 'unseen');
is(ask($unseen, "$left_out 'unseen'"), 'not swept: atomic_lock.sweep_databases leaves it out|t|f', '... and lock_sweeper_status says so there');
is(ask($watch, "$left_out 'postgres'"), 'not swept: atomic_lock.sweep_databases leaves it out|t|t', '... also where it was swept before');
is(ask($watch, q{SELECT string_agg(status || coalesce(hint, ''), ', ') FROM lock_sweeper_status() WHERE database IN ('one', 'Two Words')}), join(', ', ('swept by the background sweep') x 2), '... and says nothing of the kind about swept ones');
is(ask($watch, q{SELECT lock_sweep() >= 0}) . ask($watch, "$left_out 'postgres'"), 'tswept by lock_sweep()||t', '... nor about one that is swept by hand');
expire($watch, 'e', 3);
end($unseen);
is(count_in_log($node, qr/database "missing"/), 1, '... the line in the log is not repeated');
is(count_in_log($node, qr/does not exist/), 1, '... and there is no other such line');
ask($watch, 'CREATE DATABASE missing TEMPLATE later');
my $missing = session($node, 'Missing', 'missing');
expire($missing, 'f', 3);
ok(swept($missing, 'f'), 'the missing database is created, and swept');
configure($node, $watch, q{atomic_lock.sweep_databases = ''});
ok(soon($watch, q{SELECT hint IS NOT NULL FROM lock_sweeper_status() WHERE database IS NULL}), 'no database is named: lock_sweeper_status says what to set');
configure($node, $watch, q{atomic_lock.sweep_databases = '*'});
ok(swept($_, 'e'), 'all databases are swept after a reload') for ($watch, $big, $late);
end($words, $odd, $big, $template, $missing, $late);

# A lock keeps the worker waiting in one database.
ask($one, 'BEGIN; LOCK pg_extension IN ACCESS EXCLUSIVE MODE');
expire($watch, 'wait', 5);
ok(swept($watch, 'wait'), 'a catalog of one database is locked: others are swept');
ask($one, 'ROLLBACK');

#
# Sweeping is turned off and on.
#
configure($node, $watch, 'atomic_lock.sweep_interval = 0');
ok(soon($watch, q{SELECT status ~ '^turned off' AND hint ~ 'sweep_interval' FROM lock_sweeper_status() WHERE database IS NULL}), 'lock_sweeper_status says that sweeping is turned off')
  or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));
ok(soon($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'}), '... there is no worker');
expire($watch, 'g', 7);
my $before = ask($watch, q{SELECT sweeps FROM lock_stats WHERE database = 'postgres'});
# a wait as long as a few sweeps
ask($holder, q{SELECT lock_acquire('held', '1 hour', 'o')});
is(ask($watch, q{SELECT status FROM lock_try_acquire('held', wait => '300 ms')}), 'timeout', '... 300 ms pass');
is(ask($watch, qq{SELECT count(*) FROM app_lock WHERE key LIKE 'g-%'; SELECT sweeps - $before FROM lock_stats WHERE database = 'postgres'}), "7\n0", '... and no row is swept');
is(ask($watch, q{SELECT lock_sweep()}), '7', '... lock_sweep() works by hand');
is(ask($watch, q{SELECT last_removed FROM lock_sweeper_status() WHERE database = 'postgres'}), '7', '... and lock_sweeper_status shows that');
is(ask($watch, q{SELECT status FROM lock_try_acquire('h-1', '1 ms', 'o'); SELECT status FROM lock_try_acquire('h-1', '1 ms', 'p', wait => '5 min')}), "acquired\nacquired", '... an expired lease can be acquired without a sweep');
expire($watch, 'row', 5);
is(ask($open, q{BEGIN; SELECT count(*) FROM (SELECT FROM app_lock WHERE key = 'row-3' FOR UPDATE) l}), '1', 'a session locks a row');
is(ask($watch, q{SELECT lock_sweep(2)}), '2', '... a sweep by hand skips it');
configure($node, $watch, q{atomic_lock.sweep_interval = '50ms'});
ok(soon($watch, q{SELECT count(*) = 1 FROM app_lock WHERE key LIKE 'row-%'}), '... as does the background sweep');
ok(sweep_passes($watch), '... again');
ask($open, 'ROLLBACK');
ok(swept($watch, 'row'), '... until it is unlocked');
configure($node, $watch, q{atomic_lock.sweep_interval = '1h'});
ok(soon($watch, q{SELECT status ~ '^running\y.*(1 ?h|60 ?min)' FROM lock_sweeper_status() WHERE database IS NULL}), 'turned on, with a long interval');
expire($watch, 'h', 1);
configure($node, $watch, q{atomic_lock.sweep_interval = '50ms'});
ok(swept($watch, 'h'), '... a short interval takes effect without waiting for the end of the long one');

#
# Signals
#
$launcher = launcher($watch);
ask($watch, "SELECT pg_terminate_backend($launcher)");
ok(soon($watch, qq{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher' AND pid <> $launcher}), 'the launcher is terminated, and comes back');
expire($watch, 'i', 7);
ok(swept($watch, 'i'), '... and sweeps');
is(count_in_log($node, qr/background worker "atomic_lock launcher" \(PID $launcher\) exited/), 1, '... with a line in the log');
$launcher = launcher($watch);
kill 'USR1', $launcher;
kill 'USR2', $launcher;
ok(sweep_passes($watch), 'after other signals, sweeps pass');
is(launcher($watch), $launcher, '... and the launcher is the same');
ask($watch, "SELECT pg_cancel_backend($launcher)");
ok(sweep_passes($watch), '... also after pg_cancel_backend, by the same launcher or a new one');
$launcher = launcher($watch);
kill 'HUP', $launcher for (1 .. 20);
ok(sweep_passes($watch), '... also after many reloads');

is(unexpected_lines($node, qr/WARNING:  PID \d+ is not a PostgreSQL|FATAL:  terminating connection due to administrator command|FATAL:  terminating background worker|ERROR:  canceling statement due to lock timeout|invalid value for parameter "atomic_lock.sweep_databases"/), '', 'nothing unexpected in the log');
is(count_in_log($node, qr/has another version than its library/), 0, '... no line about a version');
is(count_in_log($node, qr/background worker "atomic_lock sweeper[^"]*" .*exited with exit code/), count_in_log($node, qr/ERROR:  canceling statement due to lock timeout/), '... and no line for each visit');

# A restart.  A prepared transaction has extended a lease, which has expired except for that
ask($watch, q{SELECT lock_release_all('o')});
for (my $lease = 1; $lease < 1000; $lease *= 2)
{
	ask($watch, "ROLLBACK; SELECT lock_acquire('prepared-1', '$lease s', 'o')");
	last if ask($watch, q{BEGIN; SELECT lock_try_extend('prepared-1', 'o', '1 hour') IS NOT NULL}) eq 't';
}
ask($watch, q{PREPARE TRANSACTION 'p'});
ask($watch, q{BEGIN; SELECT lock_acquire('prepared-2', '1 ms', 'o'); PREPARE TRANSACTION 'q'});
# ... and a database has been granted to more roles than fit into a page of the catalog;
# names have to be looked up before any session has connected.
ask($watch, q{DO $$
BEGIN
	FOR n IN 1 .. 1200 LOOP
		EXECUTE 'CREATE ROLE member' || n;
	END LOOP;
	EXECUTE 'GRANT CONNECT ON DATABASE late TO ' || (SELECT string_agg('member' || n, ',') FROM generate_series(1, 1200) n);
END $$});
end($watch, $one, $holder, $open, $dead);
$node->append_conf('postgresql.conf', q{atomic_lock.sweep_databases = 'nowhere, late, postgres'});
$node->restart;
ok($node->wait_for_log(qr/database "nowhere" in atomic_lock.sweep_databases does not exist/), 'names are looked up at the start');
$watch = session($node, 'Watch');
expire($watch, 'j', 7);
ok(swept($watch, 'j'), 'after a restart rows are swept');
poll($watch, q{SELECT expires_at < now() FROM app_lock WHERE key = 'prepared-1'});
ok(sweep_passes($watch), '... sweeps pass');
is(ask($watch, q{SELECT count(*) FROM app_lock WHERE key = 'prepared-1'}), '1', '... and keep the row that a prepared transaction has extended');
configure($node, $watch, q{atomic_lock.sweep_databases = '*'});
$late = session($node, 'Late', 'late');
ask($late, 'SET search_path = elsewhere');
expire($late, 'grants', 5);
ok(swept($late, 'grants'), '... a database with many grants is swept');
ask($watch, q{COMMIT PREPARED 'p'; COMMIT PREPARED 'q'});
is(ask($watch, q{SELECT lock_is_held('prepared-1', 'o')}), 't', '... the extended lease is held after COMMIT PREPARED');
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'prepared-2'}), '... an expired lease is swept after COMMIT PREPARED');

# Rows that do not fit into a page
ask($watch, q{SELECT lock_acquire('big-' || n, '1 ms', 'o', meta => (SELECT jsonb_object_agg(i, md5(i::text || n)) FROM generate_series(1, 150) i)) FROM generate_series(1, 5) n});
my $toast = ask($watch, q{SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'app_lock'::regclass});
ok(swept($watch, 'big'), 'leases with large meta are swept');
is(ask($watch, "SELECT count(*) FROM $toast"), '0', '... with their TOAST rows');

end($watch, $late);
$node->stop('smart');
unlike(log_of($node), qr/without having selected a database/, '... the launcher needs no database');

done_testing();
