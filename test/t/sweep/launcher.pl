# The life of the background sweep.
#
# Properties: one launcher, of no database; leases that ran out, those of dead
# sessions and keys released long ago go from every database that has the
# extension, also one that came later, and nothing else does; a database in which
# nothing happens is seldom visited; what is swept, and whether, follows a
# reload; names in atomic_lock.sweep_databases are identifiers, one that is
# missing is one line in the log; a launcher that is terminated comes back;
# nobody who locks a row, a catalog, or a key with a prepared transaction holds up
# the rest.
#
# Turns red when: the launcher remembers databases by what it saw at its start;
# sleeps out a long interval before it looks at a reload, or forgets its next
# visit; exits with 0, which the postmaster takes for the end; reads pg_database
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
# What it looks like
#
my $launcher = launcher($watch);
ok($launcher, 'a launcher');
is(ask($watch, q{SELECT datname IS NULL FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher'}), 't', '... of no database');
ask($watch, 'CREATE EXTENSION atomic_lock; CREATE DATABASE one');
my $one = session($node, 'One', 'one');
ask($one, 'CREATE EXTENSION atomic_lock');
is(expire($_, 'a', 250), '250', 'leases that run out') for ($watch, $one);
ok(swept($_, 'a'), '... are swept, more than one batch') for ($watch, $one);
foreach my $psql ($watch, $one)
{
	ok(soon($psql, q{SELECT swept = 250 FROM lock_stats WHERE database = current_database()}), '... and counted') or diag(ask($psql, 'SELECT * FROM lock_stats'));
	is(ask($psql, q{SELECT grants, releases, expirations, steals, forced, sweeps > 0 FROM lock_stats WHERE database = current_database()}), '250|0|250|0|0|t', '... as expired, once each');
}
ok(soon($watch, q{SELECT status = 'running, sweeps every 50ms' AND hint IS NULL FROM lock_sweeper_status() WHERE database IS NULL}), 'lock_sweeper_status says that it runs')
  or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));
is(ask($watch, q{SELECT count(*) FILTER (WHERE database IS NULL) || ' ' || string_agg(database::text, ' ' ORDER BY database) FROM lock_sweeper_status()}), '1 one postgres', '... and what was swept');
is(ask($watch, q{SELECT bool_and(last_swept_at BETWEEN pg_postmaster_start_time() AND now() AND last_removed BETWEEN 0 AND 250 AND last_duration >= '0' AND hint IS NULL) FROM lock_sweeper_status() WHERE database IS NOT NULL}), 't', '... when, how much, how long')
  or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));

#
# What is left, and what is not
#
my $holder = session($node, 'Holder');
my $dead = session($node, 'Dead');
ask($holder, q{SELECT lock_acquire('live', '1 hour', 'o'), lock_acquire('session', owner => 'o', lifetime => 'session'), lock_acquire('shared', '1 hour', 'o', 'shared'), lock_acquire('shared', '1 ms', 'p', 'shared'), lock_acquire('released', '1 hour', 'o')});
ask($holder, q{SELECT lock_release('released', 'o')});
ask($dead, q{SELECT lock_acquire('dead-' || n, owner => 'd', lifetime => 'session') FROM generate_series(1, 10) n});
my $open = session($node, 'Open');
ask($open, q{BEGIN; SELECT lock_acquire('open', '1 ms', 'o')});
kill 'TERM', pid($dead);
ok(swept($watch, 'dead'), 'the locks of a session that is gone');
ok(sweep_passes($watch), 'sweeps pass');
is(ask($watch, q{SELECT string_agg(concat_ws(' ', key, owner), ', ' ORDER BY key, owner) FROM app_lock}), 'live o, released o, session o, shared o', '... live leases and released keys stay');
ask($open, 'COMMIT');
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'open'}), '... what a transaction has in hand goes once that is over');
is(ask($holder, q{SELECT lock_is_held('live', 'o'), lock_is_held('session', 'o'), lock_is_held('shared', 'o'), lock_try_release('released', 'o')}), 't|t|t|already_released', '... and are what they were');
configure($node, $watch, q{atomic_lock.released_retention = 0});
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'released'}), 'released_retention, by reload');
configure($node, $watch, q{atomic_lock.released_retention = '1h'});
is(ask($holder, q{SELECT lock_release_all('o')}), '3', 'clean up');

# Together with sweeps by hand, and with acquires of the same keys
ask($watch, 'SELECT lock_stats_reset()');
expire_rows($watch, 'both', 20_000);
$node->pgbench('-n -c 4 -t 30', 0, [qr/processed: 120\/120/], [qr/^(?!.*(?:ERROR|abort))/s], 'sweeps by hand and in the background, and acquires', {
	'sweep@2' => 'SELECT lock_sweep(300);',
	'acquire@1' => q{\set n random(1, 20000)
SELECT lock_try_acquire('both-' || :n, '1 ms', 'o' || :client_id);} });
ok(swept($watch, 'both'), '... sweep all');
ok(soon($watch, q{SELECT expirations = 20000 + grants FROM lock_stats WHERE database = current_database()}), '... and each lease is counted once') or diag(ask($watch, 'SELECT * FROM lock_stats'));

# A database in which nothing happens is seldom looked at.
my $idle = q{SELECT sweeps FROM lock_stats WHERE database = 'one'};
my ($since, $visits) = (time(), ask($watch, $idle));
for (1 .. 8)
{
	ok(sweep_passes($watch), 'sweeps pass') or last;
}
$visits = ask($watch, $idle) - $visits;
cmp_ok($visits, '<=', (time() - $since) / 0.5 + 2, "... a database in which nothing happens is seldom looked at: $visits");

# A new lease of a key that was swept
my $token = 0;
foreach my $n (1 .. 3)
{
	my $next = ask($watch, q{SELECT fencing_token FROM lock_acquire('again-1', '1 ms', 'o')});
	cmp_ok($next, '>', $token, 'fencing tokens rise over a sweep');
	$token = $next;
	ok(swept($watch, 'again'), '... which there is');
}

#
# What comes later
#
ask($watch, 'CREATE DATABASE late');
ok(sweep_passes($watch), 'a database without the extension');
my $late = session($node, 'Late', 'late');
ask($late, 'CREATE EXTENSION atomic_lock');
expire($late, 'b', 20);
ok(swept($late, 'b'), '... which gets it later, and is swept');
ask($late, 'DROP EXTENSION atomic_lock');
ok(sweep_passes($watch), '... loses it');
ask($late, 'CREATE SCHEMA elsewhere; CREATE EXTENSION atomic_lock SCHEMA elsewhere; SET search_path = elsewhere');
expire($late, 'b', 20);
ok(swept($late, 'b'), '... and gets it again, in another schema');
end($one);
ask($watch, 'CREATE DATABASE later TEMPLATE one');
$one = session($node, 'One', 'one');
my $later = session($node, 'Later', 'later');
expire($later, 'c', 20);
ok(swept($later, 'c'), 'a copy of a database');
is(ask($watch, q{SELECT string_agg(database::text, ' ' ORDER BY database) FROM lock_sweeper_status() WHERE database IS NOT NULL}), 'late later one postgres', 'lock_sweeper_status has them all');

#
# Names
#
like($node->psql('postgres', qq{ALTER SYSTEM SET atomic_lock.sweep_databases = '$_'}) . '', qr/^3$/, "no list of databases: $_") for ('one two', 'one,', '"one', ',', 'one,,two');
end($later);
ask($watch, 'CREATE DATABASE "' . $_ =~ s/"/""/gr . '" TEMPLATE later') for ('Two Words', 'a"b, c', 'One');
ask($watch, q{CREATE DATABASE tmpl IS_TEMPLATE true TEMPLATE later});
my ($words, $odd, $big, $template) = map { session($node, 'Name', $_) } ('Two Words', 'a"b, c', 'One', 'tmpl');
expire($_, 'd', 3) for ($template, $words);
ok(swept($words, 'd'), 'an odd name');
ok(sweep_passes($words), '... again');
is(ask($template, q{SELECT count(*) FROM app_lock}), '3', 'a template is not swept');

configure($node, $watch, q{atomic_lock.sweep_databases = ' ONE, "Two Words" , "a""b, c", Missing,tmpl, one'});
ok($node->wait_for_log(qr/LOG:  database "missing" in atomic_lock.sweep_databases does not exist/), 'a line for a name that is missing');
expire($_, 'e', 3) for ($watch, $one, $words, $odd, $big, $late);
ok(swept($_, 'e'), 'a database that is named') for ($one, $words, $odd);
ok(swept($template, 'd'), '... a template too');
ok(sweep_passes($_), '... again') for ($one, $odd);
is(ask($_, q{SELECT count(*) FROM app_lock WHERE key LIKE 'e-%'}), '3', '... and no other') for ($watch, $big, $late);
my $left_out = q{SELECT status, hint ~ 'sweep_databases.*lock_schedule_sweep', last_swept_at IS NOT NULL FROM lock_sweeper_status() WHERE database = };
ask($watch, 'CREATE DATABASE unseen TEMPLATE later');
my $unseen = session($node, 'Unseen', 'unseen');
is(ask($unseen, "$left_out 'unseen'"), 'not swept: atomic_lock.sweep_databases leaves it out|t|f', '... and lock_sweeper_status says so there');
is(ask($watch, "$left_out 'postgres'"), 'not swept: atomic_lock.sweep_databases leaves it out|t|t', '... also where it was swept before');
is(ask($watch, q{SELECT string_agg(status || coalesce(hint, ''), ', ') FROM lock_sweeper_status() WHERE database IN ('one', 'Two Words')}), join(', ', ('swept by the background sweep') x 2), '... and not of others');
is(ask($watch, q{SELECT lock_sweep() >= 0}) . ask($watch, "$left_out 'postgres'"), 'tswept by lock_sweep()||t', '... nor of one that somebody else sweeps');
expire($watch, 'e', 3);
end($unseen);
is(count_in_log($node, qr/database "missing"/), 1, '... which is not repeated');
is(count_in_log($node, qr/does not exist/), 1, '... and there is no other');
ask($watch, 'CREATE DATABASE missing TEMPLATE later');
my $missing = session($node, 'Missing', 'missing');
expire($missing, 'f', 3);
ok(swept($missing, 'f'), 'the one that was missing is there');
configure($node, $watch, q{atomic_lock.sweep_databases = ''});
ok(soon($watch, q{SELECT hint IS NOT NULL FROM lock_sweeper_status() WHERE database IS NULL}), 'no database is named: that is shown, and what to set');
configure($node, $watch, q{atomic_lock.sweep_databases = '*'});
ok(swept($_, 'e'), 'all, by reload') for ($watch, $big, $late);
end($words, $odd, $big, $template, $missing, $late);

# Somebody keeps the worker waiting in one database.
ask($one, 'BEGIN; LOCK pg_extension IN ACCESS EXCLUSIVE MODE');
expire($watch, 'wait', 5);
ok(swept($watch, 'wait'), 'catalogs of one database are locked: others are swept');
ask($one, 'ROLLBACK');

#
# Off and on
#
configure($node, $watch, 'atomic_lock.sweep_interval = 0');
ok(soon($watch, q{SELECT status ~ '^turned off' AND hint ~ 'sweep_interval' FROM lock_sweeper_status() WHERE database IS NULL}), 'turned off, says lock_sweeper_status')
  or diag(ask($watch, 'SELECT * FROM lock_sweeper_status()'));
ok(soon($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'}), '... no worker');
expire($watch, 'g', 7);
my $before = ask($watch, q{SELECT sweeps FROM lock_stats WHERE database = 'postgres'});
# as long as a few sweeps would take
ask($holder, q{SELECT lock_acquire('held', '1 hour', 'o')});
is(ask($watch, q{SELECT status FROM lock_try_acquire('held', wait => '300 ms')}), 'timeout', '... a while');
is(ask($watch, qq{SELECT count(*) FROM app_lock WHERE key LIKE 'g-%'; SELECT sweeps - $before FROM lock_stats WHERE database = 'postgres'}), "7\n0", '... and nothing is swept');
is(ask($watch, q{SELECT lock_sweep()}), '7', '... but by hand');
is(ask($watch, q{SELECT last_removed FROM lock_sweeper_status() WHERE database = 'postgres'}), '7', '... which is shown');
is(ask($watch, q{SELECT status FROM lock_try_acquire('h-1', '1 ms', 'o'); SELECT status FROM lock_try_acquire('h-1', '1 ms', 'p', wait => '5 min')}), "acquired\nacquired", '... a lease that ran out is free without a sweep');
expire($watch, 'row', 5);
is(ask($open, q{BEGIN; SELECT count(*) FROM (SELECT FROM app_lock WHERE key = 'row-3' FOR UPDATE) l}), '1', 'somebody locks a row');
is(ask($watch, q{SELECT lock_sweep(2)}), '2', '... a sweep by hand passes it');
configure($node, $watch, q{atomic_lock.sweep_interval = '50ms'});
ok(soon($watch, q{SELECT count(*) = 1 FROM app_lock WHERE key LIKE 'row-%'}), '... as does that in the background');
ok(sweep_passes($watch), '... again');
ask($open, 'ROLLBACK');
ok(swept($watch, 'row'), '... until it is let go');
configure($node, $watch, q{atomic_lock.sweep_interval = '1h'});
ok(soon($watch, q{SELECT status ~ '^running\y.*(1 ?h|60 ?min)' FROM lock_sweeper_status() WHERE database IS NULL}), 'on, with a long interval');
expire($watch, 'h', 1);
configure($node, $watch, q{atomic_lock.sweep_interval = '50ms'});
ok(swept($watch, 'h'), '... a short one, without waiting for the end of the other');

#
# Signals
#
$launcher = launcher($watch);
ask($watch, "SELECT pg_terminate_backend($launcher)");
ok(soon($watch, qq{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'atomic_lock launcher' AND pid <> $launcher}), 'the launcher is terminated, and comes back');
expire($watch, 'i', 7);
ok(swept($watch, 'i'), '... sweeps');
is(count_in_log($node, qr/background worker "atomic_lock launcher" \(PID $launcher\) exited/), 1, '... with a line in the log');
$launcher = launcher($watch);
kill 'USR1', $launcher;
kill 'USR2', $launcher;
ok(sweep_passes($watch), 'other signals');
is(launcher($watch), $launcher, '... do nothing to it');
ask($watch, "SELECT pg_cancel_backend($launcher)");
ok(sweep_passes($watch), '... nor does pg_cancel_backend, or it comes back');
$launcher = launcher($watch);
kill 'HUP', $launcher for (1 .. 20);
ok(sweep_passes($watch), '... nor do many reloads');

is(unexpected_lines($node, qr/WARNING:  PID \d+ is not a PostgreSQL|FATAL:  terminating connection due to administrator command|FATAL:  terminating background worker|ERROR:  canceling statement due to lock timeout|invalid value for parameter "atomic_lock.sweep_databases"/), '', 'nothing unexpected in the log');
is(count_in_log($node, qr/has another version than its library/), 0, '... no line about a version');
is(count_in_log($node, qr/background worker "atomic_lock sweeper[^"]*" .*exited with exit code/), count_in_log($node, qr/ERROR:  canceling statement due to lock timeout/), '... and no line for each visit');

# A restart; a prepared transaction has a lease in hand, that ran out but for it
ask($watch, q{SELECT lock_release_all('o')});
for (my $lease = 1; $lease < 1000; $lease *= 2)
{
	ask($watch, "ROLLBACK; SELECT lock_acquire('prepared-1', '$lease s', 'o')");
	last if ask($watch, q{BEGIN; SELECT lock_try_extend('prepared-1', 'o', '1 hour') IS NOT NULL}) eq 't';
}
ask($watch, q{PREPARE TRANSACTION 'p'});
ask($watch, q{BEGIN; SELECT lock_acquire('prepared-2', '1 ms', 'o'); PREPARE TRANSACTION 'q'});
# ... and a database is granted to so many that its row does not fit into a page;
# names have to be looked up before anybody connects.
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
ok(swept($watch, 'j'), 'after a restart');
poll($watch, q{SELECT expires_at < now() FROM app_lock WHERE key = 'prepared-1'});
ok(sweep_passes($watch), '... sweeps pass');
is(ask($watch, q{SELECT count(*) FROM app_lock WHERE key = 'prepared-1'}), '1', '... by what a prepared transaction has in hand');
configure($node, $watch, q{atomic_lock.sweep_databases = '*'});
$late = session($node, 'Late', 'late');
ask($late, 'SET search_path = elsewhere');
expire($late, 'grants', 5);
ok(swept($late, 'grants'), '... also where there are many grants');
ask($watch, q{COMMIT PREPARED 'p'; COMMIT PREPARED 'q'});
is(ask($watch, q{SELECT lock_is_held('prepared-1', 'o')}), 't', '... and it lives on');
ok(soon($watch, q{SELECT count(*) = 0 FROM app_lock WHERE key = 'prepared-2'}), '... or not, and is swept');

# Rows that do not fit into a page
ask($watch, q{SELECT lock_acquire('big-' || n, '1 ms', 'o', meta => (SELECT jsonb_object_agg(i, md5(i::text || n)) FROM generate_series(1, 150) i)) FROM generate_series(1, 5) n});
my $toast = ask($watch, q{SELECT reltoastrelid::regclass FROM pg_class WHERE oid = 'app_lock'::regclass});
ok(swept($watch, 'big'), 'leases with much to keep');
is(ask($watch, "SELECT count(*) FROM $toast"), '0', '... are swept as a whole');

end($watch, $late);
$node->stop('smart');
unlike(log_of($node), qr/without having selected a database/, '... the launcher needs no database');

done_testing();
