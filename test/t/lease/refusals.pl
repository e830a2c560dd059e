# A refusal only reads, and no output that others can see names an owner.
#
# Properties: a refused acquire, release or extend takes no transaction id,
# writes no WAL and no row version, keeps no lock in an open transaction and
# adds no line to the server's log; errors, log lines, audit rows and other
# sessions' views never contain the owner of a lease.
#
# Turns red when: a refusal runs INSERT ... ON CONFLICT or UPDATE
# (transaction id, WAL, dead row), opens a subtransaction, keeps the claim or
# the table lock until the end of the transaction, logs; a message or detail
# shows an owner, its digest is left out, or the setting's own error echoes it.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('refusals');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
wal_level = minimal
max_wal_senders = 0
autovacuum = off
bgwriter_delay = 10s
checkpoint_timeout = 1h
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION atomic_lock;
SELECT lock_acquire('held', '1 hour', 'me', holder => 'Alice');
SELECT lock_acquire('released', '1 hour', 'me'), lock_release('released', 'me');
SELECT lock_acquire('forced', '1 hour', 'me'), force_release('forced', 'test');
SELECT lock_acquire('expired', '1 ms', 'me');
SET atomic_lock.max_lifetime = '1h';
SELECT lock_acquire('lived', '1 hour', 'me');
});
$node->poll_query_until('postgres', q{SELECT lock_holder('expired') IS NULL}) or die;

# so that reading the catalogs has nothing left to prune
$node->safe_psql('postgres', 'VACUUM');

# another session, whose transaction stays open
my $claimant = $node->background_psql('postgres', on_error_stop => 0);
ask($claimant, q{BEGIN; SELECT lock_acquire('claimed', '1 hour', 'claimant')});

my $session = $node->background_psql('postgres', on_error_stop => 0);
ask($session, q{SET atomic_lock.max_lifetime = '1h'});

# The first look at a row sets its hint bits, and may prune former versions.
ask($session, q{SELECT count(*) FROM app_lock});

# The state that a refused call must not change: transaction ids, WAL, the rows
my $state = q{SELECT pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn(),
	(SELECT string_agg(concat_ws(',', ctid, xmin, xmax, key, expires_at, released), ';' ORDER BY key) FROM app_lock),
	pg_relation_size('app_lock'), (SELECT concat(last_value, ',', log_cnt) FROM app_lock_fence)};

# The traces that a refused call must not leave in its transaction
my $traces = q{SELECT pg_current_xact_id_if_assigned() IS NULL,
	(SELECT count(*) FROM pg_locks l WHERE pid = pg_backend_pid()
		AND (locktype = 'advisory' OR relation::regclass::text LIKE ANY (ARRAY['%app_lock%', '%lock_audit%'])))};

my @refusals = (
	[ q{SELECT status FROM lock_try_acquire('held', '1 hour', 'you')}, 'held' ],
	[ q{SELECT status FROM lock_try_acquire('held')}, 'held' ],
	[ q{SELECT status FROM lock_try_acquire('claimed', '1 hour', 'you')}, 'pending' ],
	[ q{SELECT lock_try_release('held', 'you')}, 'not_owner' ],
	[ q{SELECT lock_try_release('free', 'me')}, 'not_found' ],
	[ q{SELECT lock_try_release('forced', 'me')}, 'forced' ],
	[ q{SELECT status FROM lock_try_convert('forced', 'me')}, 'forced' ],
	[ q{SELECT status FROM lock_try_convert('free', 'me')}, 'not_found' ],
	[ q{SELECT status FROM lock_try_transfer('held', 'you', 'us')}, 'not_owner' ],
	[ q{SELECT status FROM lock_try_transfer('expired', 'me', 'us')}, 'expired' ],
	[ q{SELECT lock_transfer_all('nobody', 'us')}, '0' ],
	[ q{SELECT lock_try_force_release('free', 'test')}, 'not_found' ],
	[ q{SELECT lock_try_force_release('expired', 'test')}, 'not_found' ],
	[ q{SELECT string_agg(status, ',') FROM lock_heartbeat('{forced,free,lived,released}', 'me', '2 hours')}, 'forced,not_found,lifetime_exceeded,already_released' ],
	[ q{SELECT count(*) FROM lock_heartbeat(NULL, 'nobody')}, '0' ],
	[ q{SELECT string_agg(key, ',') FROM lock_held('me')}, 'held,lived' ],
	[ q{SELECT lock_try_release('released', 'me')}, 'already_released' ],
	[ q{SELECT lock_try_release('released', 'you')}, 'not_found' ],
	[ q{SELECT lock_try_release('expired', 'me')}, 'expired' ],
	[ q{SELECT lock_try_release('expired', 'you')}, 'not_found' ],
	[ q{SELECT lock_try_extend('held', 'you') IS NULL}, 't' ],
	[ q{SELECT lock_try_extend('free', 'me') IS NULL}, 't' ],
	[ q{SELECT lock_try_extend('released', 'me') IS NULL}, 't' ],
	[ q{SELECT lock_try_extend('expired', 'me') IS NULL}, 't' ],
	[ q{SELECT lock_try_extend('lived', 'me', '2 hours') IS NULL}, 't' ],
	[ q{SELECT lock_release_all('nobody')}, '0' ],
	[ q{SELECT lock_extend_all('nobody')}, '0' ]);

foreach my $refusal (@refusals)
{
	my ($sql, $expected) = @$refusal;

	ask($session, $sql);
	my $before = ask($session, $state);
	ask($session, 'BEGIN');
	is(ask($session, $sql), $expected, "refused: $sql");
	is(ask($session, $traces), 't|0', '... no transaction id, no lock left');
	ask($session, 'COMMIT');
	is(ask($session, $state), $before, '... no WAL, no row version');
}

# The same for refusals that are errors
my @errors = (
	[ q{PERFORM lock_acquire('held', '1 hour', 'you')}, '55P03' ],
	[ q{PERFORM lock_acquire('claimed', '1 hour', 'you')}, '55P03' ],
	[ q{PERFORM lock_release('held', 'you')}, 'LK003' ],
	[ q{PERFORM lock_release('free', 'me')}, 'LK002' ],
	[ q{PERFORM lock_release('released', 'me')}, 'LK004' ],
	[ q{PERFORM lock_release('expired', 'me')}, 'LK005' ],
	[ q{PERFORM lock_release('forced', 'me')}, 'LK009' ],
	[ q{PERFORM lock_assert('forced', 'me')}, 'LK009' ],
	[ q{PERFORM lock_extend('held', 'you')}, 'LK003' ],
	[ q{PERFORM lock_extend('free', 'me')}, 'LK002' ],
	[ q{PERFORM lock_extend('released', 'me')}, 'LK004' ],
	[ q{PERFORM lock_extend('expired', 'me')}, 'LK005' ],
	[ q{PERFORM lock_extend('lived', 'me', '2 hours')}, 'LK008' ],
	[ q{PERFORM set_config('atomic_lock.on_reacquire', 'error', true); PERFORM lock_acquire('held', '1 hour', 'me')}, 'LK007' ],
	[ q{PERFORM force_release('free', 'test')}, 'LK002' ]);
foreach my $case (@errors)
{
	my ($sql, $expected) = @$case;
	my $caught = qq{DO \$\$ BEGIN $sql; EXCEPTION WHEN OTHERS THEN
		PERFORM set_config('test.caught', SQLSTATE, false); END \$\$};

	ask($session, $caught);
	my $before = ask($session, $state);
	ask($session, 'BEGIN');
	ask($session, $caught);
	is(ask($session, q{SHOW test.caught}), $expected, "error: $sql");
	is(ask($session, $traces), 't|0', '... no transaction id, no lock left');
	ask($session, 'COMMIT');
	is(ask($session, $state), $before, '... no WAL, no row version');
}

#
# Ten thousand refusals: in one transaction, and each in its own
#
my $before = ask($session, $state);
my $log_size = -s $node->logfile;
is( ask($session, q{SELECT count(*) FILTER (WHERE NOT (lock_try_acquire('held')).acquired) FROM generate_series(1, 6000)}),
	'6000', '6000 refusals in one statement');
$node->pgbench(
	'--no-vacuum -c 4 -t 1000', 0,
	[qr{processed: 4000/4000}], [qr{^$}],
	'4000 refusals in a transaction each',
	{
		'refused' => q{SELECT acquired FROM lock_try_acquire('held', '1 hour', 'you') WHERE NOT acquired \gset
SELECT 1 / (lock_try_release('held', 'you') = 'not_owner')::int;
}
	});
is(ask($session, $state), $before, '... take no transaction id and write no WAL');
foreach my $case (@errors)
{
	my $sql = $case->[0] =~ s/PERFORM/SELECT/gr;

	isnt(
		$node->psql(
			'postgres', "SET atomic_lock.max_lifetime = '1h'; SET atomic_lock.on_reacquire = error; $sql",
			on_error_stop => 1),
		0, "an error for the client: $sql");
}
is(-s $node->logfile, $log_size, '... and add nothing to the log');

#
# No message, log line, audit row or view of another role shows an owner.  Owners come
# from the setting, so that no statement but SET contains them.  Refusals are in
# the log only if log_min_messages is below warning.
#
my $secret = 'owner-4d1f7a';
$session->quit;
ask($claimant, 'ROLLBACK');
$node->safe_psql(
	'postgres', q{
CREATE ROLE regress_locker LOGIN;
CREATE ROLE regress_watcher LOGIN;
SELECT lock_grant_access('regress_locker', 'user');
ALTER ROLE regress_locker SET log_min_messages = notice;
SELECT lock_grant_access('regress_watcher', 'monitor'), lock_grant_access('regress_watcher', 'user');
});

my $offset = -s $node->logfile;
my $owner = $node->background_psql('postgres', on_error_stop => 0,
	extra_params => [ '-U', 'regress_locker', '-v', 'VERBOSITY=verbose' ]);
my $stranger = $node->background_psql('postgres', on_error_stop => 0,
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
my $seen = '';

sub run
{
	my ($who, $sql, $sqlstate) = @_;
	my $out = $who->query($sql);
	my $err = $who->{stderr};

	$who->{stderr} = '';
	$seen .= $out . $err;
	my $name = $sqlstate ? "$sqlstate: $sql" : "works: $sql";
	if ($sqlstate)
	{
		like($err, qr/ERROR:  $sqlstate:/, $name);
	}
	else
	{
		is($err, '', $name);
	}
	return $out;
}

ask($stranger, 'SET log_min_messages = notice');
ask($owner, "SET atomic_lock.owner = '$secret-a'");
ask($stranger, "SET atomic_lock.owner = '$secret-b'");
ask($owner, q{SELECT (lock_acquire('a', '1 hour')).acquired, (lock_acquire('b', '1 hour')).acquired});
run($stranger, q{SELECT lock_acquire('a')}, '55P03');
run($stranger, q{SELECT lock_try_acquire('a')});
run($stranger, q{SELECT lock_release('a')}, 'LK003');
run($stranger, q{SELECT lock_extend('a')}, 'LK003');
run($stranger, q{SELECT lock_release('nothing')}, 'LK002');
run($owner, q{SELECT lock_release('b')});
run($owner, q{SELECT lock_release('b')}, 'LK004');
run($owner, q{SELECT lock_extend('b')}, 'LK004');
run($owner, q{SET atomic_lock.on_reacquire = error});
run($owner, q{SELECT lock_acquire('a')}, 'LK007');
run($owner, q{RESET atomic_lock.on_reacquire});
run($stranger, q{SET atomic_lock.max_lifetime = '1h'});
run($stranger, q{SELECT (lock_acquire('long', '1 hour')).status});
run($stranger, q{SELECT lock_extend('long', ttl => '2 hours')}, 'LK008');
run($stranger, q{RESET atomic_lock.max_lifetime});
run($owner, q{SELECT (lock_acquire('short', '1 ms')).status});
$node->poll_query_until('postgres', q{SELECT lock_holder('short') IS NULL}) or die;
run($owner, q{SELECT lock_extend('short')}, 'LK005');
run($owner, q{SELECT lock_release('short')}, 'LK005');
run($stranger, q{SET atomic_lock.lock_delay = '1h'});
run($stranger, q{SELECT lock_acquire('short')}, '55P03');
run($stranger, q{RESET atomic_lock.lock_delay});
run($owner, q{BEGIN; SELECT lock_extend('a', ttl => '2 hours') > clock_timestamp()});
run($owner, q{SELECT (lock_acquire('fresh')).status});
run($stranger, q{SELECT lock_acquire('a')}, '55P03');
run($stranger, q{SELECT lock_acquire('fresh')}, '55P03');
run($stranger, q{SET lock_timeout = '10ms'});
run($stranger, q{SET log_lock_waits = on});
run($stranger, q{SET deadlock_timeout = '1ms'});
run($stranger, q{SELECT force_release('a', 'gone')}, '55P03');
run($stranger, q{RESET lock_timeout});
run($owner, q{COMMIT});
run($stranger, q{SET atomic_lock.max_claims_per_transaction = 1});
run($stranger, q{SELECT lock_acquire('c1'), lock_acquire('c2')}, '54000');
run($stranger, q{RESET atomic_lock.max_claims_per_transaction});
run($stranger, q{SELECT force_release('a', 'gone')});
run($owner, q{SELECT lock_release('a')}, 'LK009');
run($owner, q{SELECT (lock_acquire('a')).status});
run($stranger, q{SELECT status FROM lock_steal('a', NULL, 'mine now')});
run($owner, q{SELECT lock_release('a')}, 'LK009');
run($owner, q{SELECT lock_release_all(), lock_extend_all()});
run($owner, q{SELECT (lock_acquire('mine')).status});
run($stranger, qq{SET atomic_lock.owner = '$secret-} . 'x' x 250 . q{'}, '22023');
run($stranger, qq{SELECT lock_acquire('z', owner => '$secret-} . 'x' x 250 . q{')}, '22023');
# our errors are logged without the statement, which contains an owner here
run($stranger, qq{SELECT lock_extend('z', '$secret-lit', '-1 s')}, '22023');
run($stranger, qq{DO \$\$ BEGIN PERFORM lock_extend('z', '$secret-lit', '-1 s'); END \$\$}, '22023');
run($stranger, qq{SELECT lock_release('z', '$secret-lit')}, 'LK002');
$seen .= ask($stranger, q{SELECT * FROM lock_audit});
$seen .= ask($stranger, q{SELECT a.query, a.application_name, l.* FROM pg_stat_activity a JOIN pg_locks l USING (pid) WHERE a.pid <> pg_backend_pid()});
ask($stranger, 'RESET atomic_lock.owner; SET ROLE regress_watcher');
$seen .= ask($stranger, q{SELECT * FROM lock_status()});
$seen .= ask($stranger, q{SELECT * FROM lock_status('mine')});
$seen .= ask($stranger, q{SELECT query FROM pg_stat_activity});
like($seen, qr/^mine\|t/m, 'the view of another role shows the lease');
like($seen, qr/\Q@{[ ask($stranger, qq{SELECT encode(sha256('$secret-a'), 'hex')}) ]}/, 'the audit trail has the digest');

# Statements are the clients' own text.
my $log = substr(slurp_file($node->logfile), $offset);
my $log_text = join "\n", grep { !/STATEMENT:/ } split /\n/, $log;
my $seen_text = join "\n", grep { !/^LINE \d|^STATEMENT|^CONTEXT/ } split /\n/, $seen;
unlike($seen_text, qr/$secret/, 'no owner in the messages to clients');
unlike($log_text, qr/$secret/, 'no owner in the log');
unlike($log, qr/$secret(?!-x)/, '... nor in the statements that it quotes');
like($log, qr/LOG:  force_release of lock "a"/, 'force_release is logged');
like($log, qr/ERROR:  lock "a" is held by/, '... and so are refusals, with log_min_messages = notice');

$owner->quit;
$stranger->quit;
$claimant->quit;
$node->stop;
done_testing();
