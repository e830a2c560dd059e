# Many connections on few keys, and a check of everything that they have recorded.
#
# Each round acquires, does its work in transactions of its own, and releases,
# extends, rolls back, or lets the lease expire; an administrator forces and
# steals, a sweep runs, the table is rewritten, indexes are rebuilt and created.  All rounds
# record their grants and what they know of their ends, by the server's clock.
# AL_HISTORY_SECONDS in the environment makes the test run longer.
#
# Properties: no two holdings of a key overlap while their holders may rely on them;
# fencing tokens of a key rise in the order of its grants, and none occurs twice;
# a counter that only the lock guards loses no update; a fenced register never
# goes back; no client gets an error; at the end every key can be acquired.
#
# Turns red when: a take-over reads and writes in two steps; expiry is judged by
# the start of the transaction or another clock; an extension revives an expired
# lease; a token is drawn before the key is claimed; a release works without
# the owner; the sweep removes a row without looking again; an old snapshot decides about
# a grant; a row is missing in an index that is rebuilt or created.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('history');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
max_connections = 40
atomic_lock.released_retention = 0
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION atomic_lock;

-- The grants of all rounds.  A round may rely on its lease from granted (the clock
-- when the key was judged) until known_end
CREATE TABLE forced (key text);
CREATE TABLE history (
	key text, token bigint, granted timestamptz, known_end timestamptz,
	how text, released text);
CREATE TABLE counter (key text PRIMARY KEY, value bigint);
CREATE TABLE register (key text PRIMARY KEY, token bigint, refused bigint);
INSERT INTO counter SELECT 'long-' || n, 0 FROM generate_series(1, 2) n;
INSERT INTO register SELECT 'short-' || n, 0, 0 FROM generate_series(1, 3) n;

-- Long leases, always released or rolled back: they guard the counter.
CREATE PROCEDURE long_round(k text) LANGUAGE plpgsql AS $$
DECLARE
	g		lock_grant;
	v		bigint;
	t_end	timestamptz;
	answer	text;
BEGIN
	g := lock_try_acquire(k, '1 hour');
	IF g.acquired AND random() < 0.1 THEN
		ROLLBACK;
		RETURN;
	END IF;
	COMMIT;
	SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
	IF NOT g.acquired THEN
		RETURN;
	END IF;

	SELECT value INTO v FROM counter WHERE key = k;
	COMMIT;
	SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
	UPDATE counter SET value = v + 1 WHERE key = k;
	COMMIT;
	t_end := clock_timestamp();
	answer := lock_try_release(k, g.owner);
	IF random() < 0.1 THEN
		ROLLBACK;		-- and once more
		t_end := clock_timestamp();
		answer := lock_try_release(k, g.owner);
	END IF;
	INSERT INTO history VALUES (k, g.fencing_token, g.acquired_at, t_end, 'long', answer);
	COMMIT;
END $$;

-- Short leases: most expire, some are extended, some released too late.
CREATE PROCEDURE short_round(k text) LANGUAGE plpgsql AS $$
DECLARE
	g		lock_grant;
	t_end	timestamptz;
	e		timestamptz;
	answer	text := 'left';
	dice	double precision := random();
BEGIN
	g := lock_try_acquire(k, make_interval(secs => 0.001 + 0.01 * random()));
	COMMIT;
	SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
	IF NOT g.acquired THEN
		RETURN;
	END IF;

	t_end := g.expires_at;
	UPDATE register SET token = greatest(token, g.fencing_token),
		refused = refused + (token > g.fencing_token)::int WHERE key = k;
	COMMIT;
	WHILE dice < 0.5 LOOP
		-- about when the lease expires: either may win
		PERFORM pg_sleep(greatest(0, extract(epoch FROM t_end - clock_timestamp())) * (0.5 + random()));
		COMMIT;
		e := lock_try_extend(k, g.owner, make_interval(secs => 0.001 + 0.005 * random()));
		COMMIT;
		EXIT WHEN e IS NULL;
		t_end := e;
		dice := random();
	END LOOP;
	IF dice > 0.7 THEN
		e := clock_timestamp();
		answer := lock_try_release(k, g.owner);
		COMMIT;
		IF answer = 'released' THEN
			t_end := least(t_end, e);
		END IF;
	END IF;
	INSERT INTO history VALUES (k, g.fencing_token, g.acquired_at, t_end, 'short', answer);
	COMMIT;
END $$;

-- An administrator steals and forces
CREATE PROCEDURE admin_round(k text) LANGUAGE plpgsql AS $$
DECLARE
	g	lock_grant;
BEGIN
	IF random() < 0.5 THEN
		g := lock_steal(k, gen_random_uuid()::text, 'history', '5 ms');
		INSERT INTO history VALUES (k, g.fencing_token, g.acquired_at, g.expires_at, 'stolen', 'left');
	ELSE
		PERFORM force_release(k, 'history');
		INSERT INTO forced VALUES (k);
	END IF;
EXCEPTION WHEN SQLSTATE 'LK002' OR SQLSTATE '55P03' THEN
	NULL;
END $$;
});

my %loads = (
	'read committed' => 3,
	'repeatable read' => 2,
	'serializable' => 3);
my $long = pgbench_script($node, 'long', q{\set k random(1, 2)
CALL long_round('long-' || :k);
});
my $short = pgbench_script($node, 'short', q{\set k random(1, 3)
CALL short_round('short-' || :k);
});
my $admin = pgbench_script($node, 'admin', q{CALL admin_round('short-3');
\sleep 7 ms
});
my $sweep = pgbench_script($node, 'sweep', q{SELECT lock_sweep();
\sleep 3 ms
});
my $rebuild = pgbench_script($node, 'rebuild', q{DROP INDEX CONCURRENTLY IF EXISTS kept;
REINDEX TABLE CONCURRENTLY app_lock;
VACUUM app_lock;
\sleep 50 ms
VACUUM FULL app_lock;
\sleep 50 ms
CLUSTER app_lock USING app_lock_pkey;
CREATE INDEX CONCURRENTLY kept ON app_lock (holder, expires_at);
\sleep 100 ms
});

my (@runs, %output);
sub start_load
{
	my ($name, $options, @args) = @_;
	local $ENV{PGOPTIONS} = $options;

	push @runs, start_pgbench($node, \$output{$name}, @args);
	return;
}

my $errors = '';
sub play_round
{
	start_load($_, '-c default_transaction_isolation=' . s/ /\\ /r, '-c', $loads{$_}, '-j', 1, '-t', 60, '-f', "$long\@2", '-f', "$short\@3")
	  foreach sort keys %loads;
	start_load('admin', '', '-t', 40, '-f', $admin);
	start_load('sweep', '', '-t', 60, '-f', $sweep);
	start_load('rebuild', '', '-t', 2, '-f', $rebuild);
	$_->finish foreach splice @runs;
	$errors .= join '', grep { /error:|aborted|FATAL|ERROR/ } values %output;
}
play_rounds(\&play_round, sub { $errors || $node->safe_psql('postgres', q{SELECT count(*) FILTER (WHERE how = 'long') > 100
	AND count(*) FILTER (WHERE how = 'short') > 100 AND count(*) FILTER (WHERE how = 'stolen') > 50 AND (SELECT count(*) FROM forced) > 20 FROM history}) eq 't' });
is($errors, '', 'no client gets an error');
note $node->safe_psql('postgres', 'SELECT how, released, count(*) FROM history GROUP BY 1, 2 ORDER BY 1, 2');

# A lease that an administrator has force-released ended then, at the latest; a stolen one, when
# the thief got its grant.
$node->safe_psql(
	'postgres', q{
CREATE TABLE holding AS
SELECT h.key, h.token, h.how, h.granted,
	least(h.known_end, CASE a.action WHEN 'force_release' THEN a.at
		WHEN 'lock_steal' THEN (SELECT min(granted) FROM history n
			WHERE n.key = h.key AND n.how = 'stolen' AND n.token > h.token) END) AS known_end
FROM history h LEFT JOIN lock_audit a ON a.key = h.key AND a.fencing_token = h.token;
});
is( $node->safe_psql(
		'postgres', q{
SELECT * FROM (SELECT *, lead(granted) OVER w AS next_granted, lead(token) OVER w AS next_token, lead(how) OVER w AS next_how
	FROM holding WINDOW w AS (PARTITION BY key ORDER BY token)) s
WHERE next_granted < known_end LIMIT 5}), '', 'no two holdings of a key overlap');
is( $node->safe_psql(
		'postgres', q{
SELECT * FROM (SELECT *, lag(token) OVER (PARTITION BY key ORDER BY granted, token) AS previous FROM holding) s
WHERE token <= previous LIMIT 5}), '', 'tokens rise in the order of the grants');
is($node->safe_psql('postgres', 'SELECT token FROM history GROUP BY token HAVING count(*) > 1'), '', 'no token is given twice');
is( $node->safe_psql(
		'postgres', q{
SELECT c.key, c.value, count(h.*) FROM counter c LEFT JOIN history h ON h.key = c.key
GROUP BY c.key, c.value HAVING c.value <> count(h.*)}), '', 'the counter has lost no update');
is($node->safe_psql('postgres', q{SELECT released, count(*) FROM history WHERE how = 'long' AND released <> 'released' GROUP BY 1}),
	'', 'no long lease was lost');
is( $node->safe_psql(
		'postgres', q{SELECT DISTINCT released FROM history WHERE released NOT IN ('left', 'released', 'expired', 'forced', 'not_owner', 'not_found')}),
	'', 'late releases get an answer that is possible');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM history h WHERE h.released = 'already_released'}), '0', '... none gets already_released for the release of another owner');
is( $node->safe_psql(
		'postgres', q{
SELECT count(*) FROM history h WHERE h.released = 'forced' AND NOT EXISTS (SELECT FROM lock_audit a WHERE a.key = h.key AND a.fencing_token = h.token)}), '0', '... none gets forced without an audited forced end');

# Afterwards
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM lock_status()}) or die 'leases that do not end';
is( $node->safe_psql(
		'postgres', q{SELECT bool_and((lock_try_acquire(k)).acquired) FROM unnest('{long-1,long-2,short-1,short-2,short-3}'::text[]) k}),
	't', 'every key can be acquired');
$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');
is( $node->safe_psql(
		'postgres', q{SELECT count(bt_index_check(indexrelid, true)) FROM pg_index WHERE indrelid = 'app_lock'::regclass AND indisvalid}),
	'3', 'the indexes are correct, also the one that was created meanwhile');
is($node->safe_psql('postgres', q{SELECT count(*) FROM app_lock GROUP BY key HAVING count(*) > 1}), '', 'each key has one row');
$node->stop;

log_is_clean($node, also => qr/could not serialize|concurrently (?:updated|deleted)|duplicate key/);

done_testing();
