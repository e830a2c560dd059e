# Sixty-four clients on one key, on ten thousand, on sets that overlap, and on a
# lease at the moment of its end.
#
# Each client records its grants, and until when it relied on them,
# by the server's clock.  AL_HISTORY_SECONDS in the environment makes the test run longer.
#
# Properties: no two holdings of a key overlap; tokens of a key rise in the order
# of its grants; a client that waits for a set of keys in any order is never the
# victim of a deadlock; when a lease ends, one of many clients that try at that moment gets
# the key; no client gets an error, and in the end every key is free.
#
# Turns red when: the take-over of an expired lease is not atomic; a token is drawn before
# the key is claimed; sets are claimed in the order of the arguments, or by hash; a waiter
# or a claim is left behind.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('crowd');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
max_connections = 80
atomic_lock.max_wait = '1h'
atomic_lock.sweep_interval = '50ms'
atomic_lock.released_retention = 0
});
$node->start;
my $watch = session($node, 'Watch');
ask($watch, q{CREATE EXTENSION atomic_lock; CREATE EXTENSION amcheck;
CREATE TABLE history (what text, key text, token bigint, since timestamptz, until timestamptz)});

# The steps of a client after a grant
my $rely = q{\if :got
SELECT quote_literal(clock_timestamp()) AS until \gset
SELECT lock_release(:key, 'c:client_id');
INSERT INTO history VALUES ('WHAT', :key, :token, :since, :until);
\endif
};
my $grant = 'acquired::int AS got, quote_literal(key) AS key, fencing_token AS token, quote_literal(acquired_at) AS since';
my %loads = (
	'one key' => qq{SELECT $grant FROM lock_try_acquire('one', '1 hour', 'c:client_id', wait => '1 hour') \\gset
$rely},
	'ten thousand keys' => qq{\\set k random_zipfian(1, 10000, 1.1)
SELECT $grant FROM lock_try_acquire('key-' || :k, '1 hour', 'c:client_id') \\gset
$rely},
	'the end of a lease' => qq{\\set k random(1, 2)
SELECT $grant, quote_literal(expires_at) AS until FROM lock_try_acquire('short-' || :k, '2 ms') \\gset
\\if :got
INSERT INTO history VALUES ('WHAT', :key, :token, :since, :until);
\\endif
},
	'sets' => q{\set n random(2, 5)
SELECT quote_literal(string_agg(key || '=' || fencing_token || '=' || extract(epoch FROM acquired_at), ',')) AS granted FROM lock_acquire_all((SELECT array_agg('set-' || (1 + floor(random() * 8))) FROM generate_series(1, :n)), '1 hour', 'c:client_id', wait => '1 hour') \gset
SELECT quote_literal(clock_timestamp()) AS until \gset
SELECT lock_release_all('c:client_id');
INSERT INTO history SELECT 'WHAT', split_part(g, '=', 1), split_part(g, '=', 2)::bigint, to_timestamp(split_part(g, '=', 3)::numeric), :until FROM unnest(string_to_array(:granted, ',')) g;
});

foreach my $what (sort keys %loads)
{
	my $file = pgbench_script($node, $what =~ s/ /_/gr, $loads{$what} =~ s/WHAT/$what/gr);
	my $ok = 1;

	play_rounds(
		sub { $ok &&= runs_well($node, '-c', 64, '-t', 10, '-f', $file) },
		sub { !$ok || ask($watch, "SELECT count(*) > 1000 FROM history WHERE what = '$what'") eq 't' });
	ok($ok, "$what: 64 clients, no error");
	poll($watch, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'});
	note ask($watch, "SELECT count(*), count(DISTINCT key) FROM history WHERE what = '$what'");
	is(ask($watch, qq{SELECT * FROM (SELECT *, lead(since) OVER (PARTITION BY key ORDER BY token) AS next FROM history WHERE what = '$what') h WHERE next < until LIMIT 5}), '', '... no two holdings of a key overlap');
	is(ask($watch, qq{SELECT * FROM (SELECT *, lag(token) OVER (PARTITION BY key ORDER BY since, token) AS before FROM history WHERE what = '$what') h WHERE token <= before LIMIT 5}), '', '... tokens rise in the order of the grants');
	poll($watch, 'SELECT count(*) = 0 FROM lock_status()');
	poll($watch, 'SELECT (SELECT count(*) FROM lock_waiters) + (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711) = 0');
}
is(ask($watch, 'SELECT token FROM history GROUP BY token HAVING count(*) > 1'), '', 'no token was given twice');
is(ask($watch, q{SELECT count(bt_index_check(indexrelid, true)) FROM pg_index WHERE indrelid = 'app_lock'::regclass}), '2', 'the indexes are correct');
end($watch);
$node->stop;
log_is_clean($node, also => qr/40P01|duplicate key/);

done_testing();
