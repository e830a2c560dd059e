# Clients that read, think and write, each step in a transaction of its own,
# under leases that are too short for some of them.
#
# Every round acquires a lease, reads a counter, may pause for longer than
# its lease, writes the counter plus one and adds an element of its own to a
# set, may pause again before COMMIT, and records its acknowledged writes.
# The proof that it may write depends on its table: a guard,
# lock_assert, lock_assert_fence, or none at all.  Backends are stopped and
# continued, a sweep and an administrator run beside them.  Before that come the same
# steps one by one, where the lease ends at the worst moments.  AL_HISTORY_SECONDS in the
# environment makes the load run longer.
#
# Properties: with any proof a counter is the number of acknowledged writes and
# a set has exactly their elements; a refused write is LK006 (LK005 for a token)
# and leaves nothing; fencing tokens rise in the order of the commits of a row;
# a lease that expires after the check is granted to no other owner before the
# transaction ends, and then at once.  Without a proof the same rounds lose
# updates, so this test can notice losses.
#
# Turns red when: the guard checks and does not pin; it judges before it waits
# for the row, by an old snapshot, or by the start of the transaction; a
# pin survives the rollback that undid its write, or is lost with a released
# savepoint; a sweep, force_release or lock_steal ignores a pin.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my @proofs = qw(guarded asserted fenced);
my @ways = (@proofs, 'unguarded');

my $node = PostgreSQL::Test::Cluster->new('guard_history');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
max_connections = 50
atomic_lock.released_retention = 0
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION atomic_lock;

-- all writes; version, counted under the row lock, is the order of the commits of a row
CREATE TABLE written (way text, id int, version bigint, token bigint, element uuid);
-- writes that clients know to be committed; late: after the end of the lease
CREATE TABLE acknowledged (way text, id int, element uuid, late boolean);
CREATE TABLE refused (way text, id int, element uuid, error text, level text);
-- Called when the load is to end
CREATE SEQUENCE enough;
} . join('', map { qq{
CREATE TABLE $_ (id int PRIMARY KEY, value bigint, version bigint);
CREATE TABLE ${_}_item (id int, element uuid);
INSERT INTO $_ SELECT n, 0, 0 FROM generate_series(1, 20) n;
} } @ways) . q{
SELECT lock_protect('guarded', 'guarded:{id}');
SELECT lock_protect('guarded_item', 'guarded:{id}', '{insert,update,delete}');

-- The write of a round
CREATE FUNCTION put(way text, k int, value bigint, me text, token bigint, element uuid DEFAULT gen_random_uuid()) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	version bigint;
BEGIN
	PERFORM set_config('atomic_lock.owner', CASE way WHEN 'guarded' THEN me ELSE '' END, true);
	IF way = 'asserted' THEN
		IF lock_assert(way || ':' || k, me) <> token THEN
			RAISE 'lock_assert answers another token';
		END IF;
	ELSIF way = 'fenced' THEN
		PERFORM lock_assert_fence(way || ':' || k, token, me);
	END IF;
	EXECUTE format('UPDATE %I SET value = $1, version = version + 1 WHERE id = $2 RETURNING version', way)
		INTO version USING value, k;
	EXECUTE format('INSERT INTO %I VALUES ($1, $2)', way || '_item') USING k, element;
	INSERT INTO written VALUES (way, k, version, token, element);
	RETURN 'written';
END $$;

CREATE PROCEDURE play_round(way text, k int) LANGUAGE plpgsql AS $$
DECLARE
	me		text := gen_random_uuid();
	key		text := way || ':' || k;
	element	uuid := gen_random_uuid();
	error	text;
	late	boolean;
	value	bigint;
	dice	double precision := random();
	g		lock_grant;
BEGIN
	g := lock_try_acquire(key, make_interval(secs => 0.01 + 0.04 * random()), me,
		wait => CASE WHEN random() < 0.6 THEN interval '60 ms' ELSE '0' END);
	COMMIT;
	IF NOT g.acquired THEN
		PERFORM pg_sleep(0.002);
		RETURN;
	END IF;
	EXECUTE format('SELECT value FROM %I WHERE id = $1', way) INTO value USING k;
	COMMIT;

	-- Think; a quarter for too long
	LOOP
		PERFORM pg_sleep(0.005 * random());
		COMMIT;
		EXIT WHEN dice > 0.25 OR clock_timestamp() > g.expires_at + 0.005 * random() * interval '1 s';
	END LOOP;
	IF dice > 0.9 THEN
		g.expires_at := coalesce(lock_try_extend(key, me, '20 ms'), g.expires_at);
		COMMIT;
	END IF;

	-- Write.  The guarded check is in a subtransaction, which ends here.
	BEGIN
		PERFORM put(way, k, value + 1, me, g.fencing_token, element);
	EXCEPTION WHEN SQLSTATE 'LK005' OR SQLSTATE 'LK006' OR SQLSTATE 'LK009' OR serialization_failure THEN
		-- LK009: lock_assert after a forced end
		error := CASE SQLSTATE WHEN 'LK009' THEN 'LK006' ELSE SQLSTATE END;
	END;
	IF error IS NOT NULL THEN
		INSERT INTO refused VALUES (way, k, element, error, current_setting('transaction_isolation'));
		COMMIT;
		RETURN;
	END IF;
	IF random() < 0.05 THEN
		ROLLBACK;
		RETURN;
	END IF;
	-- half of them pause before they commit
	dice := random();
	LOOP
		PERFORM pg_sleep(0.003 * random());
		late := clock_timestamp() > g.expires_at;
		EXIT WHEN dice > 0.5 OR late;
	END LOOP;
	IF random() < 0.1 THEN
		PERFORM lock_try_release(key, me);
	END IF;
	COMMIT;

	INSERT INTO acknowledged VALUES (way, k, element, late);
	IF random() < 0.5 THEN
		PERFORM lock_try_release(key, me);
	END IF;
	COMMIT;
END $$;

CREATE PROCEDURE play(ways text[]) LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT (SELECT is_called FROM enough) LOOP
		CALL play_round(ways[1 + floor(random() * cardinality(ways))], 1 + (random() < 0.5)::int);
	END LOOP;
END $$;

CREATE PROCEDURE administer() LANGUAGE plpgsql AS $$
DECLARE
	key		text;
BEGIN
	WHILE NOT (SELECT is_called FROM enough) LOOP
		key := ('{guarded,asserted,fenced}'::text[])[1 + floor(random() * 3)] || ':' || 1 + (random() < 0.5)::int;
		BEGIN
			IF random() < 0.5 THEN
				PERFORM lock_steal(key, 'thief', 'history', '5 ms');
			ELSE
				PERFORM force_release(key, 'history');
			END IF;
		EXCEPTION WHEN SQLSTATE 'LK002' THEN
			NULL;
		END;
		COMMIT;
		PERFORM pg_sleep(0.015);
	END LOOP;
END $$;

CREATE PROCEDURE sweep() LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT (SELECT is_called FROM enough) LOOP
		PERFORM lock_sweep();
		COMMIT;
		PERFORM pg_sleep(0.003);
	END LOOP;
END $$;
});

#
# Step by step: A reads, and writes when its lease has ended.  Each schedule has a
# row of its own.
#
my ($watch, $ann, $bob, $other) = map { session($node, $_) } ('Watch', 'A', 'B', 'Other');
my $row = 10;
my ($way, $key, %token, %acknowledged);

sub value
{
	my ($who) = @_;
	return ask($who, "SELECT value FROM $way WHERE id = $row");
}
sub put
{
	my ($who, $value) = @_;
	my $name = $who == $ann ? 'A' : 'B';
	return "SELECT put('$way', $row, " . ($value + 1) . ", '$name', $token{$name})";
}

# Writes, or waits for the end of a write that was started before; the answer is
# "written" or the error.  Counts acknowledged writes.
sub do_put
{
	my ($who, $sql) = @_;
	my $answer;

	start($who, $sql) if defined $sql;
	$answer = answer($who);
	$acknowledged{"$way $row"}++ if $answer eq 'written';
	$answer = $1 if $answer =~ /^ERROR:  (LK\d+):/;
	return $answer;
}

# The lease expires: its owner shortens it, and the test waits for the clock.
sub run_out
{
	my $end = ask($watch, "SELECT lock_extend('$key', 'A', '1 ms')");

	poll($watch, "SELECT clock_timestamp() > '$end'");
	return;
}

sub takes
{
	my ($who) = @_;
	my $name = $who == $ann ? 'A' : 'B';
	my ($status, $token) = split /\|/, ask($who, "SELECT status, fencing_token FROM lock_try_acquire('$key', '1 hour', '$name')");

	$token{$name} = $token if $status eq 'acquired';
	return $status;
}

sub is_blocked
{
	my ($who) = @_;
	poll($watch, 'SELECT wait_event_type = \'Lock\' FROM pg_stat_activity WHERE pid = ' . pid($who));
	return;
}

my %refusal = (guarded => 'LK006', asserted => 'LK006', fenced => 'LK005', unguarded => 'written');
my $is_stopped;
sub stop
{
	kill 'STOP', pid($ann);
	$is_stopped = 1;
	return;
}
sub go_on
{
	kill 'CONT', pid($ann) if $is_stopped;
	$is_stopped = 0;
	return;
}
END
{
	go_on();
}

foreach my $schedule (
	'between read and write', 'between read and write, its backend stopped', 'after a write that was rolled back to a savepoint',
	'waiting for the row',
	'before COMMIT', 'before COMMIT, its backend stopped', 'before COMMIT, the write in a savepoint')
{
	$row++;
	foreach (@ways)
	{
		my ($read, $b_read);

		$way = $_;
		$key = "$way:$row";
		is(takes($ann), 'acquired', "$way, $schedule: A has a lease");
		$read = value($ann);

		if ($schedule =~ /^before COMMIT/)
		{
			is(do_put($ann, $schedule =~ /savepoint/ ? 'BEGIN; SAVEPOINT s; ' . put($ann, $read) . '; RELEASE s' : 'BEGIN; ' . put($ann, $read)), 'written', '... writes');
			stop() if $schedule =~ /stopped/;
			start($ann, 'COMMIT') if $schedule =~ /stopped/;
			run_out();
			if ($way eq 'unguarded')
			{
				is(takes($bob), 'acquired', '... and loses the lease');
				start($bob, put($bob, value($bob)));
				is_blocked($bob);
			}
			else
			{
				is(takes($bob), 'pending', '... and B does not get the lease, although it has expired');
				ask($other, 'SELECT lock_sweep()');
				foreach my $call ("lock_steal('$key', 'thief', 'test')", "force_release('$key', 'test')", "lock_release('$key', 'A')")
				{
					start($other, "SET lock_timeout = '10 ms'; SELECT $call");
					like(answer($other), $call =~ /steal/ ? qr/^ERROR:  55P03/ : qr/^ERROR:  (55P03|LK002|LK005)/, "... nor has $call an effect");
				}
				queue_up($watch, $bob, "SELECT fencing_token FROM lock_acquire('$key', '1 hour', 'B', wait => '5 min')");
			}
			go_on();
			start($ann, 'COMMIT') unless $schedule =~ /stopped/;
			is(answer($ann), '', '... A commits');
			if ($way eq 'unguarded')
			{
				is(do_put($bob), 'written', '... B writes over it');
			}
			else
			{
				like($token{B} = answer($bob), qr/^\d+$/, '... B gets the lease then');
				is(do_put($bob, put($bob, value($bob))), 'written', '... and writes');
			}
		}
		elsif ($schedule =~ /waiting for the row/ && $way =~ /asserted|fenced/)
		{
			# checked before it waits, and pinned while it waits
			ask($other, "BEGIN; SELECT id FROM $way WHERE id = $row FOR UPDATE");
			start($ann, put($ann, $read));
			is_blocked($ann);
			run_out();
			is(takes($bob), 'pending', '... while it waits, B does not get the lease');
			ask($other, 'COMMIT');
			is(do_put($ann), 'written', '... A writes');
			is(takes($bob), 'acquired', '... B gets the lease then');
			is(do_put($bob, put($bob, value($bob))), 'written', '... and writes');
		}
		else
		{
			if ($schedule =~ /savepoint/)
			{
				ask($ann, 'BEGIN; SAVEPOINT s; ' . put($ann, $read) . '; ROLLBACK TO s');
			}
			elsif ($schedule =~ /stopped/)
			{
				stop();
				start($ann, put($ann, $read));
			}
			elsif ($schedule =~ /waiting for the row/)
			{
				ask($other, "BEGIN; SELECT id FROM $way WHERE id = $row FOR UPDATE");
				start($ann, put($ann, $read));
				is_blocked($ann);
			}
			run_out();
			is(takes($bob), 'acquired', '... the lease has expired, B acquires it');
			$b_read = value($bob);
			if ($schedule =~ /waiting for the row/)
			{
				ask($other, 'COMMIT');
				is(do_put($ann), $refusal{$way}, '... A is ' . ($way eq 'unguarded' ? 'not refused' : 'refused'));
				is(do_put($bob, put($bob, $b_read)), 'written', '... B writes');
			}
			else
			{
				is(do_put($bob, put($bob, $b_read)), 'written', '... B writes');
				go_on();
				is(do_put($ann, $schedule =~ /stopped/ ? undef : put($ann, $read)), $refusal{$way}, '... A is ' . ($way eq 'unguarded' ? 'not refused' : 'refused'));
			}
			ask($ann, $way eq 'unguarded' ? 'COMMIT' : 'ROLLBACK') if $schedule =~ /savepoint/;
		}

		my $counted = "$acknowledged{\"$way $row\"}|$acknowledged{\"$way $row\"}";
		my $found = ask($watch, "SELECT value, (SELECT count(*) FROM ${way}_item WHERE id = $row) FROM $way WHERE id = $row");
		if ($way eq 'unguarded')
		{
			is($found, '1|2', '... and an update is lost');
		}
		else
		{
			is($found, $counted, '... and no update is lost or left over');
		}
		start($other, 'ROLLBACK; RESET lock_timeout'), answer($other);
		ask($watch, "SELECT lock_try_release('$key', o) FROM unnest('{A,B}'::text[]) o");
	}
}

# The state at the start of the transaction, or in its snapshot, does not count;
# also if no other owner has acquired the lease.
$row++;
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	foreach (@proofs)
	{
		my $read;

		$way = $_;
		$key = "$way:$row";
		foreach my $taken (0, 1)
		{
			is(takes($ann), 'acquired', "$way, $level: A has a lease");
			$read = ask($ann, "BEGIN ISOLATION LEVEL $level; SELECT value FROM $way WHERE id = $row");
			run_out();
			is(takes($bob), 'acquired', '... then B has one') if $taken;
			is(do_put($ann, put($ann, $read)), $refusal{$way}, '... A is refused in a transaction that began before the end');
			ask($ann, 'ROLLBACK');
		}
		is(ask($watch, "SELECT lock_release('$key', 'B')"), 't', '(B has only acquired the lease)');
	}
}
is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', 'no claim is left');

# Tokens that fall in the order of the commits of a row
sub fallen_tokens
{
	my ($where) = @_;
	return ask($watch, qq{
SELECT count(*) FROM (SELECT *, lag(token) OVER (PARTITION BY way, id ORDER BY version) AS previous FROM written) w
WHERE token <= previous AND $where});
}
is(fallen_tokens(q{way <> 'unguarded'}), '0', 'tokens rise in the order of the commits');
cmp_ok(fallen_tokens(q{way = 'unguarded'}), '>', 0, '... but not without a proof');
end($ann, $bob, $other);

#
# All ways at once, until each has shown every outcome
#
my @players = map { session($node, "Player $_") } (1 .. 20);
my ($administrator, $sweep) = map { session($node, $_) } ('Administrator', 'Sweep');
my $enough = qq{
SELECT bool_and((SELECT count(*) > 100 AND count(*) FILTER (WHERE late) > 5 FROM acknowledged WHERE way = w)
	AND (w = 'unguarded' OR (SELECT count(*) > 5 FROM refused WHERE way = w)))
	AND (SELECT sum(value) FROM unguarded WHERE id < 10) < (SELECT count(*) FROM acknowledged WHERE way = 'unguarded')
FROM unnest('{@{[ join ',', @ways ]}}'::text[]) w};

ask($_, q{SET default_transaction_isolation = 'repeatable read'}) for @players[ 14 .. 19 ];
start($_, qq{CALL play('{@{[ join ',', @ways ]}}')}) for @players;
start($administrator, 'CALL administer()');
start($sweep, 'CALL sweep()');

# Meanwhile backends are stopped, wherever they are.
my $end = time + ($ENV{AL_HISTORY_SECONDS} || 0);
for (my $stops = 0; time < $end || $stops < 6 || ask($watch, $enough) ne 't';)
{
	my @pids = split /\n/, ask($watch, q{SELECT pid FROM pg_stat_activity WHERE query LIKE 'CALL play%' AND state = 'active'});

	if (@pids)
	{
		my $pid = $pids[ rand @pids ];

		kill 'STOP', $pid;
		usleep(20_000 + rand 60_000);
		kill 'CONT', $pid;
		$stops++;
	}
	die 'the load never shows enough' if time > $end + $PostgreSQL::Test::Utils::timeout_default;
	usleep(20_000);
}
ask($watch, q{SELECT nextval('enough')});
is(answer($_), '', 'a session ends without error') for (@players, $administrator, $sweep);
end(@players, $administrator, $sweep);

foreach (@ways)
{
	$way = $_;
	my $counts = ask($watch, qq{
SELECT (SELECT count(*) FROM acknowledged WHERE way = '$way'), (SELECT sum(value) FROM $way WHERE id < 10),
	(SELECT count(*) FROM acknowledged WHERE way = '$way' AND late), (SELECT count(*) FROM refused WHERE way = '$way')});
	my ($all, $sum) = split /\|/, $counts;

	note "$way: acknowledged|sum|late|refused $counts";
	if ($way eq 'unguarded')
	{
		is(ask($watch, q{SELECT count(*) FROM refused WHERE way = 'unguarded' AND (error <> '40001' OR level = 'read committed')}), '0', 'unguarded: no round is refused, except by PostgreSQL at REPEATABLE READ');
		cmp_ok($sum, '<', $all, '... and updates are lost');
		next;
	}
	is( ask($watch, qq{
SELECT t.id, t.value, t.version, count(a.*) FROM $way t LEFT JOIN acknowledged a ON a.way = '$way' AND a.id = t.id
WHERE t.id < 10 GROUP BY 1 HAVING t.value <> count(a.*) OR t.version <> count(a.*)}), '', "$way: no counter has lost an update");
	is( ask($watch, qq{
(SELECT id, element FROM ${way}_item WHERE id < 10 EXCEPT ALL SELECT id, element FROM acknowledged WHERE way = '$way')
UNION ALL (SELECT id, element FROM acknowledged WHERE way = '$way' EXCEPT ALL SELECT id, element FROM ${way}_item)}), '', '... the set has the acknowledged elements, and no others');
	is( ask($watch, qq{SELECT string_agg(DISTINCT error, ' ') FROM refused WHERE way = '$way' AND level = 'read committed'}),
		$refusal{$way}, '... refusals have the right SQLSTATE');
	is( ask($watch, qq{SELECT DISTINCT error FROM refused WHERE way = '$way' AND error NOT IN ('$refusal{$way}', '40001')}),
		'', '... also at REPEATABLE READ');
}
is( ask($watch, q{SELECT count(*) FROM refused JOIN written USING (way, id, element)}), '0', 'a refused write leaves nothing');
is(fallen_tokens(q{way <> 'unguarded'}), '0', 'tokens rise in the order of the commits');

# Afterwards
poll($watch, q{SELECT count(*) = 0 FROM lock_status()});
is( ask($watch, q{SELECT bool_and((lock_try_acquire(w || ':' || k)).acquired) FROM unnest('{guarded,asserted,fenced}'::text[]) w, generate_series(1, 2) k}),
	't', 'every key can be acquired');
is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', '... no claim is left');
end($watch);
$node->stop;

log_is_clean($node, also => qr/duplicate key/);

done_testing();
