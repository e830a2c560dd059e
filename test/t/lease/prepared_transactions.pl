# PREPARE TRANSACTION: claims of a transaction that no backend runs.
#
# Properties: until a prepared transaction is finished, an acquire of its keys
# is refused at once, a release or extension waits, a sweep skips the rows, also
# after a crash; COMMIT PREPARED by any session makes the grant or release valid,
# ROLLBACK PREPARED undoes it; a prepared grant is durable whatever
# synchronous_commit says.
#
# Turns red when: claims are not transferred to the prepared transaction (locks
# of the session's kind, or memory of the backend); the backend still
# counts them; the answer needs the process that has the claim.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('two_phase');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
autovacuum = off
max_prepared_transactions = 10
wal_writer_delay = 10s
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

sub psql
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}
my $try = q{SELECT status, holder FROM lock_try_acquire('k', '1 hour', 'you')};
my $wait = q{SET lock_timeout = '20ms'};

foreach my $crash (0, 1)
{
	my $when = $crash ? 'after a crash' : 'without a crash';
	my $crash_now = sub {
		return unless $crash;
		$node->stop('immediate');
		$node->start;
	};

	# a grant
	foreach my $end ('ROLLBACK', 'COMMIT')
	{
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		ask($session, q{SET synchronous_commit = off; BEGIN; SELECT lock_acquire('k', '1 hour', 'me', holder => 'Ann'); PREPARE TRANSACTION 'grant'});
		is(ask($session, $try), 'pending|Ann', "$when: prepared grant: pending for the same session") ;
		$session->quit;
		$crash_now->();
		is(psql($try), 'pending|Ann', "$when: ... and for others");
		is(psql(q{SELECT lock_holder('k') IS NULL, lock_is_held('k', 'me')}), 't|f', '... it is not visible yet');
		is(psql(q{SELECT locked, pending, holder, pid IS NULL, (SELECT count(*) FROM lock_activity WHERE state = 'pending') FROM lock_status('k')}), 'f|t|Ann|t|1', '... lock_status names its future holder');
		is(sqlstate($node, q{SELECT lock_acquire('k')}), '55P03', '... lock_acquire raises 55P03');
		is(sqlstate($node, "$wait; SELECT force_release('k', 'test')"), '55P03', '... as does force_release');
		is(sqlstate($node, "$wait; SELECT lock_steal('k', 'you', 'test')"), '55P03', '... as does lock_steal');
		psql("$end PREPARED 'grant'");
		if ($end eq 'ROLLBACK')
		{
			is(psql($try), 'acquired|prepared_transactions.pl', "$when: rolled back: free");
			psql(q{SELECT lock_release('k', 'you')});
		}
		else
		{
			is(psql($try), 'held|Ann', "$when: committed: held");
		}
	}

	# an extension and a release
	foreach my $end ('ROLLBACK', 'COMMIT')
	{
		psql(q{BEGIN; SELECT lock_extend('k', 'me', '3 hours'), lock_release('k', 'me'); PREPARE TRANSACTION 'release'});
		$crash_now->();
		is(psql($try), 'held|Ann', "$when: prepared release: held");
		is(sqlstate($node, "$wait; SELECT lock_release('k', 'me')"), '55P03', '... another release waits');
		is(sqlstate($node, "$wait; SELECT lock_try_extend('k', 'me')"), '55P03', '... an extension waits');
		is(sqlstate($node, "$wait; SELECT lock_release_all('me')"), '55P03', '... release_all waits');
		psql("$end PREPARED 'release'");
		is(psql(q{SELECT lock_is_held('k', 'me'), (SELECT ttl_remaining > '1 hour' FROM lock_status('k'))}),
			$end eq 'ROLLBACK' ? 't|f' : 'f|', "$when: $end");
	}
	is(psql($try), 'acquired|prepared_transactions.pl', '... and the key is free');
	psql(q{SELECT lock_release('k', 'you')});

	# a sweep passes by
	psql(q{SELECT lock_acquire('old', '1 ms', 'me'), lock_acquire('other', '1 ms', 'me')});
	$node->poll_query_until('postgres', q{SELECT lock_holder('old') IS NULL AND lock_holder('other') IS NULL}) or die;
	psql(q{BEGIN; SELECT lock_acquire('old', '1 hour', 'me'); PREPARE TRANSACTION 'sweep'});
	$crash_now->();
	psql('SELECT lock_sweep()');
	psql(q{COMMIT PREPARED 'sweep'});
	is(psql(q{SELECT lock_is_held('old', 'me'), (SELECT count(*) FROM app_lock WHERE key = 'other')}), 't|0', "$when: a sweep keeps the row of an expired lease that a prepared transaction has acquired");
	psql(q{SELECT lock_release_all('me')});
}

# Waiting for a prepared transaction ends when that does.
psql(q{SELECT lock_acquire('k', '1 hour', 'me')});
psql(q{BEGIN; SELECT lock_extend('k', 'me'); PREPARE TRANSACTION 'wait'});
my $waiter = $node->background_psql('postgres', on_error_stop => 0);
my $pid = ask($waiter, 'SELECT pg_backend_pid()');
$waiter->query_until(qr/waiting/, "\\echo waiting\nSELECT 'then ' || lock_try_release('k', 'me');\n");
$node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid") or die;
psql(q{COMMIT PREPARED 'wait'});
like($waiter->query_until(qr/then \w+/, "\n"), qr/then released/, 'a waiting release ends after COMMIT PREPARED');
$waiter->quit;

# The session that prepared a transaction counts its next claims from zero.
my $session = $node->background_psql('postgres', on_error_stop => 0);
ask($session, q{SET atomic_lock.max_claims_per_transaction = 2});
ask($session, q{BEGIN; SELECT lock_acquire('a'), lock_acquire('b'); PREPARE TRANSACTION 'count'});
is(ask($session, q{SELECT (lock_acquire('c')).acquired, (lock_acquire('d')).acquired}), 't|t', 'claims of a prepared transaction are not counted in the next one');
is(ask($session, 'SHOW synchronous_commit'), 'on', 'synchronous_commit is unchanged');
ask($session, q{COMMIT PREPARED 'count'});
$session->quit;

is(psql('SELECT count(*) FROM pg_prepared_xacts'), '0', 'no prepared transaction is left');
$node->stop;
done_testing();
