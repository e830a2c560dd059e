# A caller without a right on a key does not touch it, not even for an instant.
#
# Needs a build with AL_TEST_HOOKS, where a backend stops when it has a claim.
#
# Properties: a role that a policy excludes never claims the key, by any function
# of the extension, whatever the state of the key is; neither does a role without a level,
# by a guard on a table of its own; nor any caller that acts on a holding that its owner does
# not have.  The rows of the key stay as they are, and listeners hear nothing.  So none of
# them can make an acquire or release of an admitted role fail.
#
# Turns red when: a function claims the key before it knows that the owner holds it; it checks
# the roles of the policy after the claim; a new function does either.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS' unless $ENV{AL_HOOKS};

my $node = PostgreSQL::Test::Cluster->new('kept_out', install_path => $ENV{AL_HOOKS});
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = 0
autovacuum = off
});
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION atomic_lock;
CREATE ROLE member LOGIN;
CREATE ROLE outsider LOGIN;
CREATE ROLE tabler LOGIN;
SELECT lock_grant_access('member', 'user'), lock_grant_access('outsider', 'user');
SELECT lock_set_policy('pay:run', roles => '{member}', notify => true);
CREATE TABLE doc (id text PRIMARY KEY, x int);
INSERT INTO doc VALUES ('mine', 1), ('run', 1);
SELECT lock_protect('doc', 'pay:{id}');
ALTER TABLE doc OWNER TO tabler;

-- Calls of each function on the key, by an owner that does not hold it: all, or those that
-- act on a holding
CREATE FUNCTION public.calls(own_only boolean) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT format('%I(%s)', f.name, (
		SELECT string_agg(quote_ident(f.names[n]) || ' => ' || CASE
			WHEN f.names[n] IN ('key', 'prefix', 'path') THEN quote_literal('pay:run')
			WHEN f.names[n] = 'keys' THEN $b$'{pay:run}'$b$
			-- 'o' holds another key
			WHEN f.names[n] = 'owner' THEN CASE WHEN f.names && '{key,keys,path}' THEN $b$'o'$b$ ELSE $b$'nobody'$b$ END
			WHEN n = v.n THEN v.value
			WHEN f.types[n] = 'text' THEN $b$'x'$b$
			WHEN f.types[n] = 'anyelement' THEN 'NULL::doc'
			WHEN f.types[n] IN ('regclass', 'regrole') THEN $b$'doc'$b$
			WHEN f.types[n] = 'timestamp with time zone' THEN 'now()'
			ELSE '1' END, ', ')
		FROM generate_series(1, f.pronargs) n
		WHERE n = v.n OR n <= f.pronargs - f.pronargdefaults OR f.names[n] IN ('key', 'keys', 'path', 'owner')))
	FROM (
		SELECT r.proname::text AS name, r.pronargs, r.pronargdefaults, r.proargnames AS names,
			ARRAY(SELECT format_type(x, NULL) FROM unnest(r.proargtypes) WITH ORDINALITY y (x, n) ORDER BY n) AS types
		FROM pg_depend d
			JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'atomic_lock'
			JOIN pg_proc r ON r.oid = d.objid
		WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
			AND r.proname NOT LIKE 'app\_lock\_%' AND r.provariadic = 0
			-- claims the ticket of its own owner only
			AND r.proname <> 'lock_leave' AND r.prorettype <> 'trigger'::regtype) f
		-- without optional arguments, and with each value that changes the call
		CROSS JOIN LATERAL (
			SELECT 0 AS n, NULL AS value
			UNION ALL
			SELECT n, value
			FROM generate_series(1, f.pronargs) n
				JOIN (VALUES ('mode', $b$'shared'$b$), ('lifetime', $b$'session'$b$), ('lifetime', $b$'transaction'$b$), ('wait', $b$'50 ms'$b$), ('new_owner', $b$'p'$b$)) a (name, value)
					ON a.name = f.names[n]) v
	WHERE NOT own_only OR f.name ~ '^lock_(try_)?(release|extend|assert|convert|transfer|heartbeat|is_held|held)'
$$;
-- Makes the calls, undoes each, logs its text, and returns their number
CREATE FUNCTION public.make_calls(own_only boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	call text; made bigint := 0;
BEGIN
	FOR call IN SELECT public.calls(own_only) LOOP
		PERFORM set_config('my.call', call, false);
		RAISE LOG 'making call %', call;
		BEGIN
			EXECUTE 'SELECT ' || call;
			RAISE SQLSTATE 'RB000';
		EXCEPTION WHEN OTHERS THEN
			made := made + 1;
		END;
	END LOOP;
	RETURN made;
END
$$;
});

my ($watch, $gate, $member, $outsider, $tabler) = map { session($node, $_) } ('Watch', 'Gate', 'Member', 'Outsider', 'Tabler');

ask($member, q{SET SESSION AUTHORIZATION member});
ask($gate, 'SELECT pg_advisory_lock(1706)');
# The owner has another key, and relies on it, as the next row of a guard may find.
ask($outsider, q{SELECT status FROM lock_acquire('pay:mine', '1 day', 'o')});
ask($outsider, q{SET SESSION AUTHORIZATION outsider});
ask($tabler, q{SET SESSION AUTHORIZATION tabler; SET atomic_lock.owner = 'o'});
ask($watch, 'LISTEN ' . ask($watch, q{SELECT lock_channel('pay:run')}));
my $rows = q{SELECT string_agg(ctid || ' ' || xmin || ' ' || key, E'\n' ORDER BY key, slot) FROM app_lock; SELECT string_agg(ctid || ' ' || xmin || ' ' || ticket, E'\n' ORDER BY ticket) FROM app_lock_queue};

# The SQL of a session ends without a claim.
sub claims_nothing
{
	my ($psql, $sql, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $pid = pid($psql);
	my $before = ask($watch, $rows);

	ask($psql, q{BEGIN; SELECT lock_assert('pay:mine', 'o') > 0; SET LOCAL atomic_lock.test_pause_at = 'claimed'}) if $psql != $tabler;
	ask($psql, q{BEGIN; UPDATE doc SET x = 2 WHERE id = 'mine'; SET LOCAL atomic_lock.test_pause_at = 'claimed'}) if $psql == $tabler;
	start($psql, $sql);
	poll($watch, "SELECT wait_event = 'advisory' OR state LIKE 'idle%' AND strpos(query, \$query\$$sql\$query\$) > 0 FROM pg_stat_activity WHERE pid = $pid");
	my $has_claimed = ask($watch, "SELECT coalesce(wait_event = 'advisory', false) FROM pg_stat_activity WHERE pid = $pid") eq 't';
	is($has_claimed, '', "$name: no claim") or do
	{
		diag('the last call: ', slurp_file($node->logfile) =~ /.*making call (.*?)$/ms);
		ask($watch, "SELECT pg_cancel_backend($pid)");
	};
	my $answer = answer($psql);
	ask($psql, 'SET client_min_messages = error; ROLLBACK');
	is(ask($watch, $rows), $before, '... no row has changed');
	return $answer;
}

my @states = (
	[ 'never used', 'SELECT 1' ],
	[ 'held', q{SELECT status FROM lock_acquire('pay:run', '1 day', 'm')} ],
	[ 'held, and someone in line', q{SELECT status FROM lock_enqueue('pay:run', 'n')} ],
	[ 'offered', q{SELECT lock_release('pay:run', 'm')} ],
	[ 'released', q{SELECT lock_leave('pay:run', 'n')} ],
	[ 'shared', q{SELECT status FROM lock_acquire('pay:run', '1 day', 'm', 'shared')} ],
	[ 'held in a transaction', q{SELECT lock_release('pay:run', 'm'); BEGIN; SELECT status FROM lock_acquire('pay:run', owner => 'm', lifetime => 'transaction')} ]);
foreach my $state (@states)
{
	my ($name, $sql) = @$state;

	ask($member, $sql);
	ask($watch, 'SELECT 1');
	cmp_ok(claims_nothing($outsider, 'SELECT public.make_calls(false)', "$name, an excluded role"), '>', 60, '... by many calls');
	claims_nothing($tabler, q{DO $$ BEGIN UPDATE doc SET x = 2 WHERE id = 'run'; EXCEPTION WHEN OTHERS THEN NULL; END $$}, "$name, a guard");
	unlike(ask($watch, q{SELECT 'heard'}), qr/notification/, '... listeners hear nothing');
	# Admitted callers, which act on a holding that they do not have
	ask($outsider, q{RESET SESSION AUTHORIZATION; SET ROLE member});
	cmp_ok(claims_nothing($outsider, 'SELECT public.make_calls(true)', "$name, an owner that does not hold it"), '>', 20, '... by many calls');
	ask($outsider, q{SET SESSION AUTHORIZATION outsider});
}
ask($member, 'COMMIT');
# An owner without a ticket that leaves the line keeps no claim.
ask($member, q{SELECT status FROM lock_acquire('pay:run', '1 day', 'm'); SELECT status FROM lock_enqueue('pay:run', 'n')});
is(ask($member, q{BEGIN; SELECT lock_leave('pay:run', 'p'); SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()}), "f\n0", 'lock_leave without a ticket leaves no claim');
ask($member, q{COMMIT; SELECT lock_leave('pay:run', 'n'), lock_release('pay:run', 'm')});

# A control: the test notices a claim.
ask($outsider, q{RESET SESSION AUTHORIZATION; BEGIN; SET LOCAL atomic_lock.test_pause_at = 'claimed'});
start($outsider, q{SELECT status FROM lock_acquire('pay:run')});
poll($watch, "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = " . pid($outsider));
ask($gate, 'SELECT pg_advisory_unlock_all()');
is(answer($outsider), 'acquired', 'control: a session with a claim is stopped');
end($watch, $gate, $member, $outsider, $tabler);
$node->stop;
log_is_clean($node);
done_testing();
