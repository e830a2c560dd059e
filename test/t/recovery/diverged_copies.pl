# Copies of a server that diverge: their tokens and leases.
#
# Properties: an acquire that was committed, and whose answer was lost while it
# waited for a standby, is held after a crash, and its owner gets the answer "reacquired",
# with the same token; fencing tokens of a copy are above all tokens that were given
# before the copy diverged, and of two copies that exist at the same
# time the later one has the higher tokens: after a fail-over to a
# standby that lacked acknowledged leases, with the old primary still alive, for
# two restores of one backup to one moment, and for an old primary that pg_rewind
# has turned into a standby; a resource that remembers the highest token refuses
# the holders of the lost time line.  On a standby a reader of leases may
# lose a conflict with the recovery, and has no other trouble.
#
# Turns red when: tokens continue from the number that the copy knows; copies are
# distinguished by system identifier and time line alone (two restores have the same); a
# session on a standby remembers rows over a replay.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1, has_archiving => 1);
$primary->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
restart_after_crash = on
wal_log_hints = on
wal_keep_size = '512MB'
atomic_lock.sweep_interval = '100ms'
});
$primary->start;
$primary->safe_psql(
	'postgres', q{
CREATE EXTENSION atomic_lock;
-- The resource: it accepts a write only with the highest token so far.
CREATE TABLE resource (id int PRIMARY KEY, token bigint, written text);
INSERT INTO resource VALUES (1, 0, '')});
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

# The highest token of each server
my %highest;
my $grants = 0;
sub grant
{
	my ($node, $number) = @_;
	my $prefix = 'g' . $grants++;
	my ($low, $high) = split /\|/, $node->safe_psql('postgres', "SELECT min(fencing_token), max(fencing_token) FROM generate_series(1, $number) n, lock_acquire('$prefix-' || n, '1 hour', 'o')");

	$highest{ $node->name } = $high if $high > ($highest{ $node->name } // 0);
	return $low;
}
sub highest_of_all
{
	my ($highest) = sort { $b <=> $a } values %highest;
	return $highest;
}

#
# An answer is lost while its commit waits for a standby.
#
my $session = session($primary, 'Session');
my $watch = session($primary, 'Watch');
my %token;
$primary->safe_psql('postgres', q{ALTER SYSTEM SET synchronous_standby_names = 'standby'});
$primary->reload;
$primary->poll_query_until('postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}) or die;
grant($primary, 10);
$standby->stop;

sub wait_for_standby
{
	my ($key) = @_;

	start($session, "SELECT fencing_token FROM lock_acquire('$key', '1 hour', 'me', holder => 'Me')");
	poll($watch, 'SELECT wait_event = \'SyncRep\' FROM pg_stat_activity WHERE pid = ' . pid($session));
	return;
}
wait_for_standby('terminated');
ask($watch, 'SELECT pg_terminate_backend(' . pid($session) . ')');
like(answer($session), qr/server closed the connection|connection to server was lost/, 'terminated while it waits for the standby: the client gets no answer');
ok($primary->log_contains(qr/WARNING:  .*canceling the wait for synchronous replication and terminating connection/), '... the log has a warning');
end($session);
is(ask($watch, q{SELECT lock_holder('terminated')}), 'Me', '... the lease is held');
$session = session($primary, 'Session');
wait_for_standby('killed');
my $offset = -s $primary->logfile;
kill 'KILL', pid($session);
$primary->wait_for_log(qr/database system is ready to accept connections/, $offset);
end($session, $watch);
await_restart($primary);
($session, $watch) = map { session($primary, $_) } ('Session', 'Watch');
wait_for_standby('stopped');
end($watch);
$primary->stop('immediate');
end($session);
$primary->append_conf('postgresql.auto.conf', q{synchronous_standby_names = ''});
$primary->start;
($session, $watch) = map { session($primary, $_) } ('Session', 'Watch');
foreach my $key ('terminated', 'killed', 'stopped')
{
	my ($token, $again) = split /\n/, ask($session, "SELECT fencing_token FROM lock_status('$key'); SELECT fencing_token FROM lock_acquire('$key', '1 hour', 'me') WHERE status = 'reacquired'");

	is($again, $token, "$key: after a crash its owner gets the answer reacquired, with the same token");
	is(ask($watch, "SELECT status FROM lock_try_acquire('$key', owner => 'you')"), 'held', '... and another owner is refused');
	$token{$key} = $token;
}
$highest{primary} = (sort { $b <=> $a } values %token, $highest{primary})[0];

#
# The standby, which has none of these leases, becomes the primary, and the old primary is
# still alive.
#
grant($primary, 3000 / 3) for (1 .. 3);
my $doomed = ask($session, q{SELECT fencing_token FROM lock_acquire('both', '1 hour', 'old')});
$highest{primary} = $doomed;
$standby->append_conf('postgresql.conf', "primary_conninfo = ''\nsynchronous_standby_names = ''\n");
$standby->start;
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'promotion';
is($standby->safe_psql('postgres', q{SELECT count(*) FROM lock_status() WHERE key IN ('terminated', 'killed', 'stopped')}), '0', 'a standby that has not received the leases is promoted, without them');
cmp_ok(grant($standby, 1), '>', $highest{primary}, '... but its tokens are higher than theirs');
my $token = $standby->safe_psql('postgres', q{SELECT fencing_token FROM lock_acquire('both', '1 hour', 'new')});
$highest{standby} = $token;
cmp_ok($token, '>', $doomed, 'both primaries grant the key, the new one with the higher token');
grant($primary, 1000) for (1 .. 5);
cmp_ok($highest{primary}, '<', $token, '... and the tokens of the old one stay lower, however much it grants');
is(ask($session, q{SELECT status FROM lock_try_acquire('both', owner => 'third')}), 'held', '... each primary grants the key to one owner');
my $write = q{UPDATE resource SET token = TOKEN, written = 'WHO' WHERE id = 1 AND token <= TOKEN RETURNING written};
foreach my $who ([ 'old', $doomed, 'old' ], [ 'new', $token, 'new' ], [ 'old', $doomed, '' ], [ 'old', $highest{primary}, '' ], [ 'new', $token, 'new' ])
{
	my ($name, $with, $expected) = @$who;

	is($standby->safe_psql('postgres', $write =~ s/TOKEN/$with/gr =~ s/WHO/$name/r), $expected, "a resource: $name, " . ($expected ? 'written' : 'refused'));
}

#
# The old primary is turned into a standby of the new one.
#
end($session, $watch);
$primary->stop('fast');
my $config = $primary->data_dir . '/postgresql.conf';
my $saved = slurp_file($config);
$standby->safe_psql('postgres', 'CHECKPOINT');
command_ok([ 'pg_rewind', '--no-sync', '--target-pgdata', $primary->data_dir, '--source-server', $standby->connstr('postgres') ], 'pg_rewind');
unlink $config, $primary->data_dir . '/postgresql.auto.conf', $primary->data_dir . '/standby.signal';
append_to_file($config, $saved);
append_to_file($primary->data_dir . '/postgresql.auto.conf', '');
$primary->set_standby_mode;
$primary->enable_streaming($standby);
$primary->start;
grant($standby, 2);
$standby->wait_for_catchup($primary);
is($primary->safe_psql('postgres', q{SELECT string_agg(key || ' ' || fencing_token, ', ') FROM lock_status() WHERE key IN ('both', 'terminated', 'killed', 'stopped')}), "both $token", 'the old primary, rewound, has the leases of the new one, and no others');
is($primary->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'atomic_lock%'}), '0', '... and no sweep');

#
# A session reads on the standby, and the recovery has priority.
#
$primary->append_conf('postgresql.conf', "max_standby_streaming_delay = 0\nhot_standby_feedback = off\n");
$primary->reload;
my $reader = session($primary, 'Reader');
poll($reader, q{SELECT current_setting('max_standby_streaming_delay') = '0'});
ask($reader, q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM lock_status()});
$standby->safe_psql('postgres', q{SELECT lock_release_all('o'); UPDATE app_lock SET expires_at = expires_at - interval '1 day' WHERE released AND owner = 'o'});
$standby->safe_psql('postgres', q{SELECT count(lock_sweep()) FROM generate_series(1, 20)});
$standby->safe_psql('postgres', 'VACUUM (FREEZE) app_lock');
ok($primary->wait_for_log('conflict with recovery'), 'a reader on the standby conflicts with the recovery');
start($reader, q{SELECT count(*) FROM lock_status()});
like(answer($reader), qr/^(?:ERROR|FATAL):  40001: .*conflict with recovery|^FATAL/, '... and is ended by it');
end($reader);
$reader = session($primary, 'Reader');
is(ask($reader, q{SELECT locked, holder IS NOT NULL FROM lock_status('both')}), 't|t', '... a new session can read');
is(ask($reader, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), '0', '... no claim is left');
end($reader);

$standby->stop('immediate');
$primary->promote;
$primary->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'promotion';
my $before = highest_of_all();
cmp_ok(grant($primary, 1), '>', $before, 'after a promotion its tokens are above all former ones');
is($primary->safe_psql('postgres', q{SELECT lock_is_held('both', 'new')}), 't', '... it has the leases of the former primary');
$session = session($primary, 'Session');
ok(launcher($session), '... and sweeps');
end($session);

#
# One backup is restored twice, to the same moment.
#
$primary->backup('base');
$primary->safe_psql('postgres', q{SELECT lock_acquire('at the point', '1 day', 'me', holder => 'Ann'), lock_acquire('gone by then', '1 day', 'me'), lock_release('gone by then', 'me')});
$highest{primary} = $primary->safe_psql('postgres', q{SELECT max(fencing_token) FROM app_lock});
my $point = $primary->safe_psql('postgres', q{SELECT pg_create_restore_point('point')});
$primary->safe_psql('postgres', q{SELECT lock_acquire('after the point', '1 day', 'me'), lock_release('at the point', 'me'), lock_acquire('gone by then', '1 day', 'you')});
grant($primary, 1000) for (1 .. 18);
$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
$primary->poll_query_until('postgres', q{SELECT last_archived_wal >= pg_walfile_name('} . $point . q{') FROM pg_stat_archiver}) or die 'archive';
my @restored;
foreach my $number (1, 2)
{
	my $node = PostgreSQL::Test::Cluster->new("restored$number");
	my $seen;

	push @restored, $node;
	$node->init_from_backup($primary, 'base', standby => 0, has_restoring => 1);
	$node->append_conf('postgresql.conf', q{
recovery_target_name = 'point'
recovery_target_action = 'promote'
archive_mode = off
});
	$node->start;
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'recovery';
	is($node->safe_psql('postgres', q{SELECT string_agg(concat_ws(' ', key, holder), ', ' ORDER BY key) FROM lock_status() WHERE key ~ 'point|by then'}), 'at the point Ann', "restore $number: the leases of that moment");
	$seen = highest_of_all();
	cmp_ok(grant($node, 2), '>', $seen, '... new tokens are above those that were given after that moment' . ($number == 2 ? ', and by the other restore' : ''));
	is($node->safe_psql('postgres', q{SELECT (lock_try_acquire('at the point', owner => 'you')).status, lock_release('at the point', 'me')}), 'held|t', '... the owner holds its lease, and can release it');
	grant($node, 1000);
	grant($primary, 1000);
}
is(scalar(grep { grant($_, 1) <= 0 } @restored), 0, 'both restored servers still grant');
foreach my $node (@restored, $primary)
{
	$node->stop;
	log_is_clean($node, killed => 1);
}

done_testing();
