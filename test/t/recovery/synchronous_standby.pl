# A grant is as safe as the site's synchronous standbys.
#
# Properties: with synchronous standbys a grant is acknowledged only when they
# have it, even for a session that set synchronous_commit = local or off; a
# release does not wait; an acquire whose wait for the standby is cancelled
# counts as held, and is not acknowledged; a PREPARE that the standby has is acknowledged,
# also if its record ends at the end of a page; after a failover to the standby it has every
# acknowledged lease.
#
# Turns red when: grants are only flushed locally (ForceSyncCommit alone); the end of a record
# is taken to be behind the header of the next page, or the next record to belong to it; the
# relaxed release waits like any commit.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf', "log_statement = none\nautovacuum = off\nmax_prepared_transactions = 1\n");
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'standby'});
$primary->reload;
$primary->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die;

my $session = $primary->background_psql('postgres', on_error_stop => 0);
my $pid = ask($session, 'SELECT pg_backend_pid()');
my $highest = 0;

ask($session, q{SELECT lock_acquire('released', '1 hour', 'me'), lock_acquire('cancelled', '1 hour', 'me')});
foreach my $level ('off', 'local', 'remote_write', 'on')
{
	# The standby is stopped.
	$standby->stop;
	ask($session, "SET synchronous_commit = $level");
	is(ask($session, q{SELECT lock_release('released', 'me')}), 't', "$level: a release does not wait for the standby");
	$session->query_until(qr/waiting/,
		"\\echo waiting\nSELECT 'token ' || (lock_acquire('level-$level', '1 hour', 'me')).fencing_token;\n");
	ok( $primary->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
		"$level: a grant waits for the standby");
	is($primary->safe_psql('postgres', "SELECT lock_holder('level-$level') IS NULL, (lock_try_acquire('level-$level')).status"),
		't|pending', '... and another owner is not granted the key meanwhile');
	$standby->start;
	my $out = $session->query_until(qr/token \d+/, "\n");
	($highest) = $out =~ /token (\d+)/;
	pass("$level: ... the grant is acknowledged when the standby is back");
	ask($session, 'SET synchronous_commit = on');
	ask($session, q{SELECT lock_acquire('released', '1 hour', 'me')});
}

# The DBA wants no waits.
$standby->stop;
ask($session, q{SET synchronous_commit = local; SET atomic_lock.acquire_durability = session});
is(ask($session, q{SELECT (lock_acquire('decided', '1 hour', 'me')).acquired}), 't', 'acquire_durability = session follows the session');
ask($session, q{RESET atomic_lock.acquire_durability});

# The wait is cancelled: the grant is committed on the primary.
$session->query_until(qr/waiting/, "\\echo waiting\nSELECT lock_acquire('doubtful', '1 hour', 'me');\n");
$primary->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid") or die;
$primary->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
$primary->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)") or die;
$session->{run}->finish;
like($session->{stderr}, qr/FATAL:  terminating connection because a granted lock/, 'a cancelled wait ends the connection');
$session = $primary->background_psql('postgres', on_error_stop => 0);
is(ask($session, q{SELECT lock_is_held('doubtful', 'me')}), 't', '... and the lease is held');

# A PREPARE whose record ends at the end of a page: the standby has that page, but not the
# records behind it.  The test measures the size of a PREPARE, and fills the page so
# that its record ends there.
my $page = $primary->safe_psql('postgres', 'SHOW wal_block_size');
my ($cost, $full) = (0, 0);
my $preparing = session($primary, 'Preparing');

sub inserted { return $primary->safe_psql('postgres', q{SELECT pg_current_wal_insert_lsn() - '0/0'}); }
sub filled { return $primary->safe_psql('postgres', "SELECT pg_logical_emit_message(false, '', repeat('x', $_[0]))"); }
for (my $try = 1; $try <= 20 && !$full; $try++)
{
	my ($before, $after, $size);

	# To the beginning of a page, and measure the size of such a message
	$before = inserted();
	filled($page - $before % $page + 304);
	$before = inserted();
	filled(304);
	$size = inserted() - $before;
	my $left = $page - ($before + $size) % $page - $size - $cost;
	filled(304 + $left) if $left >= 0;
	$before = inserted();
	start($preparing, q{BEGIN; SELECT lock_acquire('page', '1 hour', 'me'); PREPARE TRANSACTION 'page'});
	$primary->poll_query_until('postgres', q{SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = } . pid($preparing)) or die;
	$after = inserted();
	# The next record would begin behind the header of a page.
	$full = int($before / $page) < int($after / $page) && $after % $page == 24;
	$cost = $after - $before - ($after % $page < $before % $page ? 24 : 0);
	filled(304);
	$standby->start;
	unlike(answer($preparing), qr/FATAL|WARNING/, 'PREPARE is acknowledged');
	$primary->safe_psql('postgres', q{COMMIT PREPARED 'page'});
	ask($preparing, q{SELECT lock_release('page', 'me')});
	$standby->stop;
}
end($preparing);
ok($full, '... in one try its record ended at the end of a page');

# Failover: the standby has every acknowledged lease.
$standby->start;
$primary->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die;
ask($session, q{SET synchronous_commit = off});
$highest = ask($session, q{SELECT (lock_acquire('last', '1 hour', 'me')).fencing_token});
$primary->stop('immediate');
$session->quit;
$standby->promote;
$standby->safe_psql('postgres', q{ALTER SYSTEM RESET synchronous_standby_names});
$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''\n");
$standby->reload;
is( $standby->safe_psql(
		'postgres', q{SELECT string_agg(key, ' ' ORDER BY key) FROM lock_status() WHERE key LIKE 'l%'}),
	'last level-local level-off level-on level-remote_write', 'after a failover all leases are visible');
is($standby->safe_psql('postgres', q{SELECT (lock_try_acquire('last')).status, lock_is_held('last', 'me')}), 'held|t', '... and others are refused');
cmp_ok($standby->safe_psql('postgres', q{SELECT (lock_acquire('new')).fencing_token}), '>', $highest, '... and tokens rise');

$standby->stop;
done_testing();
