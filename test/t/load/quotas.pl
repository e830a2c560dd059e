# Sixteen clients that reach quotas all the time.
#
# Each client records from when to when it certainly held a key, by
# the server's clock: between the answer to the grant and the request to end it.
# AL_HISTORY_SECONDS in the environment makes the test run longer.
#
# Properties: at no moment does a role hold more keys than its policy allows, with all
# lifetimes, by many clients at once, over conversions, transfers, sets, rollbacks and prepared
# transactions. Many calls are granted, so leases that have ended do not count.
# There is no victim of a deadlock, and no claim on a quota is left.
#
# Turns red when: two callers count at the same time; a key that is not committed, or has no
# row, is not counted; a quota is claimed before a wait, or in two orders.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('quotas');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
fsync = off
max_connections = 40
max_prepared_transactions = 20
atomic_lock.sweep_interval = '50ms'
atomic_lock.released_retention = 0
});
$node->start;
my $watch = session($node, 'Watch');
ask($watch, q{CREATE EXTENSION atomic_lock;
CREATE TABLE history (what text, who text, key text, since timestamptz, until timestamptz);
SELECT lock_set_policy('r:', max_keys_per_role => 5), lock_set_policy('r:x', max_ttl => '2 hours');
-- A quota refuses by an error, which would end pgbench.
CREATE FUNCTION try(key text, owner text, ttl interval, lifetime text, OUT got int, OUT ends timestamptz) LANGUAGE plpgsql AS $$
BEGIN
	SELECT acquired::int, coalesce(expires_at, 'infinity') INTO got, ends FROM lock_try_acquire(key, ttl, owner, lifetime => lifetime);
EXCEPTION WHEN configuration_limit_exceeded THEN
	got := 0;
	ends := '-infinity';
END $$;
CREATE FUNCTION try(statement text, OUT got int) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	got := 1;
EXCEPTION WHEN configuration_limit_exceeded THEN
	got := 0;
END $$});

# Groups of four clients act for one owner, with keys of their own; all have one role.
my $begin = q{\set o :client_id % 4
\set n random(1, 5)
\set p random(1, 3)
SELECT quote_literal('PREFIX:' || CASE :p WHEN 1 THEN 'x' ELSE '' END || :client_id || ':' || :n) AS key \gset
};
my $held = q{INSERT INTO history VALUES ('WHAT', 'o' || :o, :key, :since, :until);
};
my $now = 'SELECT quote_literal(clock_timestamp()) AS %s \gset' . "\n";
my $since = sprintf $now, 'since';
my $until = sprintf $now, 'until';
my %ways = (
	lease => qq{SELECT * FROM try(:key, 'o' || :o, '1 hour', 'lease') \\gset
\\if :got
$since${until}SELECT lock_release(:key, 'o' || :o);
$held\\endif
},
	session => qq{SELECT * FROM try(:key, 'o' || :o, NULL, 'session') \\gset
\\if :got
$since${until}SELECT lock_release(:key, 'o' || :o);
$held\\endif
},
	transaction => qq{BEGIN;
SELECT * FROM try(:key, 'o' || :o, NULL, 'transaction') \\gset
\\if :got
$since${until}\\endif
COMMIT;
\\if :got
$held\\endif
},
	# Left uncommitted for a while, or rolled back
	unfinished => qq{BEGIN;
SELECT * FROM try(:key, 'o' || :o, '1 hour', 'lease') \\gset
\\if :got
$since${until}\\endif
\\if :n = 1
ROLLBACK;
\\else
COMMIT;
\\endif
\\if :got
SELECT lock_try_release(:key, 'o' || :o);
$held\\endif
},
	prepared => qq{BEGIN;
SELECT * FROM try(:key, 'o' || :o, '1 hour', 'lease') \\gset
SELECT * FROM try(:key || 't', 'o' || :o, NULL, 'transaction') \\gset second_
PREPARE TRANSACTION 'p:client_id';
$since${until}COMMIT PREPARED 'p:client_id';
\\if :second_got
INSERT INTO history VALUES ('WHAT', 'o' || :o, :key || 't', :since, :until);
\\endif
\\if :got
SELECT lock_try_release(:key, 'o' || :o);
$held\\endif
},
	# From one owner to another, both of the same role
	transfer => qq{SELECT * FROM try(:key, 'from:client_id', '1 hour', 'lease') \\gset
\\if :got
SELECT try(format('SELECT lock_transfer(%L, %L, %L)', :key, 'from:client_id', 'o' || :o)) AS handed \\gset
\\if :handed
$since${until}SELECT lock_try_release(:key, 'o' || :o);
$held\\else
SELECT lock_try_release(:key, 'from:client_id');
\\endif
\\endif
},
	set => qq{SELECT try(format('SELECT lock_acquire_all(ARRAY[%L, %L], %L, %L)', :key || 'b', :key || 'a', '1 hour', 'o' || :o)) AS got \\gset
\\if :got
$since${until}SELECT lock_release(:key || 'a', 'o' || :o), lock_release(:key || 'b', 'o' || :o);
INSERT INTO history SELECT 'WHAT', 'o' || :o, :key || k, :since, :until FROM unnest('{a,b}'::text[]) k;
\\endif
});

my @files = map { ('-f', pgbench_script($node, $_, ($begin . $ways{$_}) =~ s/WHAT/r/gr =~ s/PREFIX/r/gr)) } sort keys %ways;
my $ok = 1;

play_rounds(
	sub { $ok &&= runs_well($node, '-c', 16, '-t', 50, @files) },
	sub { !$ok || ask($watch, 'SELECT count(*) > 200 FROM history') eq 't' });
ok($ok, '16 clients get no error');
poll($watch, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'});
my $most = ask($watch, q{SELECT coalesce(max(n), 0) FROM (SELECT sum(delta) OVER (ORDER BY at, delta) AS n
	FROM history, LATERAL (VALUES (since, 1), (until, -1)) e (at, delta)) s});
note "at most $most by the role";
cmp_ok($most, '<=', 5, '... the role never holds more than five keys');
poll($watch, 'SELECT count(*) = 0 FROM lock_status()');
poll($watch, 'SELECT count(*) = 0 FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711');

end($watch);
$node->stop;
log_is_clean($node, also => qr/40P01/);
done_testing();
