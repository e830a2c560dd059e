# Policies and history in dumps.
#
# Properties: a dump has every policy with all its parts, whatever its prefix
# contains, and the names of the roles that it admits: after a restore it admits
# roles of the same names, whatever their numbers are; a role that
# was dropped, before or during the dump, admits no role there, although
# another role has its number; a connected session follows policies that are
# restored, written by hand, loaded or truncated at its next call, also within a transaction,
# and never those that are rolled back; the dump has the history of grants that have ended,
# with their tokens, and the next grant of a key has a higher token.
#
# Turns red when: roles are dumped by their numbers; a dropped role is dumped; the dump
# looks up roles in its snapshot, or leaves out the mark that there were any; the
# table has no trigger for SQL writes, or one that is off for replication; rows of
# current grants are dumped, which would never end.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($from, $to) = map {
	my $node = PostgreSQL::Test::Cluster->new($_);
	$node->init;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nautovacuum = off\nfsync = off\natomic_lock.sweep_interval = 0\n");
	$node
} ('policies_from', 'policies_to');
$from->start;

my @roles = ('app', 'team', '"We ird"', '"9"', '"-"');
my $owner = q{SET atomic_lock.owner = 'me'};

# The number of a role
sub number
{
	my ($node, $role) = @_;
	return $node->safe_psql('postgres', qq{SELECT '$role'::regrole::oid});
}

#
# The content of the dump
#
$from->safe_psql('postgres', join('; ', map { "CREATE ROLE $_ LOGIN" } @roles, 'gone', 'late'));
$from->safe_psql('postgres', q{
CREATE EXTENSION atomic_lock;
SELECT lock_set_policy('all:', '1 min', '2 min', '3 s', '4 h', '0.001 s', '0 s', 5, 6, ARRAY['team', '"We ird"']::regrole[], false, true);
SELECT lock_set_policy('none:');
SELECT lock_set_policy('', max_lifetime => '0');
SELECT lock_set_policy(E't\tn\nb\\\\q''"Ä💥', max_holders => 1);
SELECT lock_set_policy('digit:', roles => ARRAY['"9"', '"-"']::regrole[]);
SELECT lock_set_policy('gone:', roles => '{gone}');
SELECT lock_set_policy('gone:deep:', max_ttl => '1 min');
SELECT lock_set_policy('some:', roles => '{gone,team,late}');
SELECT lock_set_policy('h:', history => true);
});
my $gone = number($from, 'gone');
my $late = number($from, 'late');
$from->safe_psql('postgres', 'DROP ROLE gone');
is($from->safe_psql('postgres', q{SELECT roles FROM lock_policies WHERE prefix = 'gone:'}), "{$gone}", 'a role that was dropped is shown by its number');

# History: a released grant, an expired one that no call has noticed, and a current one
$from->safe_psql('postgres', q{
SET application_name = 'Ann';
SELECT lock_acquire('h:ended', '1 hour', 'me'), lock_release('h:ended', 'me');
SELECT lock_acquire('h:goes on', '1 hour', 'me');
SELECT lock_acquire('h:expired', '1 ms', 'me');
SELECT lock_acquire('h:noticed', '1 ms', 'me')});
$from->poll_query_until('postgres', q{SELECT NOT locked FROM lock_status('h:noticed')}) or die;
$from->safe_psql('postgres', q{SELECT lock_acquire('h:noticed', '1 hour', 'you')});
is($from->safe_psql('postgres', q{SELECT key, ended_by FROM lock_history ORDER BY fencing_token}),
	"h:ended|released\nh:goes on|\nh:expired|\nh:noticed|expired\nh:noticed|", 'a history');

# The role "late" is dropped when the dump has begun.
my $dump = "$PostgreSQL::Test::Utils::tmp_check/policies.dump";
my $session = session($from, 'Snapshot');
my $snapshot = ask($session, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_export_snapshot()');
$from->safe_psql('postgres', 'DROP ROLE late');
$from->command_ok([ 'pg_dump', '--no-sync', '-Fc', "--snapshot=$snapshot", '-f', $dump, 'postgres' ], 'pg_dump');
end($session);

#
# Another cluster, where another role has the number of a role that was dropped,
# and roles of the same names have other numbers
#
foreach my $intruder ([ first => $gone ], [ second => $late ])
{
	$to->command_ok([ 'pg_resetwal', '-o', $intruder->[1], $to->data_dir ], "the next number is $intruder->[1]");
	$to->start;
	$to->safe_psql('postgres', "CREATE ROLE $intruder->[0] LOGIN");
	is(number($to, $intruder->[0]), $intruder->[1], '... and a role gets it');
	$to->stop if $intruder->[0] eq 'first';
}
$to->safe_psql('postgres', join('; ', map { "CREATE ROLE $_ LOGIN" } reverse(@roles), 'gone', 'late'));
isnt(number($to, 'team'), number($from, 'team'), 'a role has another number');

$to->safe_psql('postgres', 'CREATE DATABASE copy');
$to->command_ok([ 'pg_restore', '-e', '-d', 'copy', $dump ], 'pg_restore');
# Without dropped roles, in the order of names
my $policies = q{SELECT prefix, default_ttl, max_ttl, max_wait, max_lifetime, lock_delay, min_hold, max_holders, max_keys_per_role,
	CASE WHEN roles IS NOT NULL THEN ARRAY(SELECT r::text FROM unnest(roles) r WHERE r::text !~ '^[0-9]' ORDER BY 1) END, history, notify FROM lock_policies};
is($to->safe_psql('copy', $policies), $from->safe_psql('postgres', $policies), 'every policy is restored');
is($to->safe_psql('copy', q{SELECT prefix, roles FROM lock_policies WHERE prefix IN ('gone:', 'some:')}), "gone:|{}\nsome:|{team}", '... without the roles that were dropped');

# The roles that may lock a key
sub admitted
{
	my ($db, $key) = @_;
	my @admitted = grep { sqlstate($to, "$owner; SELECT lock_try_acquire('$key', '1 ms')", $db, '-U', s/^"(.*)"$/$1/r) =~ /^no error: $/ }
	  ('first', 'second', 'gone', 'late', @roles);

	return join ' ', @admitted;
}
sub let_in
{
	my ($db) = @_;
	$to->safe_psql($db, join '; ', map { "SELECT lock_grant_access('$_', 'user')" } ('first', 'second', 'gone', 'late', @roles));
	return;
}
let_in('copy');
is(admitted('copy', 'free:k'), join(' ', 'first', 'second', 'gone', 'late', @roles), 'a key without a policy admits every role');
is(admitted('copy', 'all:k'), 'team "We ird"', 'roles of the same names are admitted');
is(admitted('copy', 'digit:k'), '"9" "-"', '... whatever characters their names have');
is(admitted('copy', 'gone:k'), '', 'a policy whose role was dropped admits no role');
is(admitted('copy', 'gone:deep:k'), '', '... nor does a longer prefix');
is(admitted('copy', 'some:k'), 'team', '... other roles of a policy are admitted');
is(sqlstate($to, "$owner; SELECT lock_acquire('gone:k')", 'copy'), 'no error: ', '... as are superusers');

# History
my $history = 'SELECT key, mode, fencing_token, owner_digest, holder, role, client_addr, application, extract(epoch from acquired_at), extract(epoch from ended_at), ended_by FROM lock_history WHERE ended_at IS NOT NULL ORDER BY fencing_token';
is($to->safe_psql('copy', $history), $from->safe_psql('postgres', $history), 'the history of ended grants is restored');
is($to->safe_psql('copy', 'SELECT count(*) FROM lock_history WHERE ended_at IS NULL'), '0', '... and no other');
is($to->safe_psql('copy', q{SELECT a.holder, a.ended_by FROM lock_history h, lock_held_at(h.key, h.acquired_at) a WHERE h.key = 'h:noticed'}), 'Ann|expired', '... lock_held_at names a former holder');
is($to->safe_psql('copy', q{SELECT count(*) FROM unnest('{h:goes on,h:expired,h:noticed}'::text[]) k, lock_held_at(k, clock_timestamp())}), '0', '... and no current holder');
is($to->safe_psql('copy', q{WITH g AS MATERIALIZED (SELECT (lock_acquire('h:noticed', '1 hour', 'me')).fencing_token)
	SELECT fencing_token > (SELECT max(fencing_token) FROM lock_history) FROM g}), 't', 'the next grant of a key has a higher token');
is($to->safe_psql('copy', q{SELECT ended_by FROM lock_history WHERE key = 'h:noticed' ORDER BY fencing_token}), "expired\n", '... and a row of its own');

#
# A connected session
#
$to->safe_psql('postgres', 'CREATE DATABASE live');
$to->safe_psql('live', 'CREATE EXTENSION atomic_lock');
let_in('live');
my ($admin, $app) = map { session($to, $_, 'live') } ('Admin', 'App');
ask($app, "SET SESSION AUTHORIZATION app; $owner");

# The answers to an acquire of 3 minutes, for two keys of the dump and another one
my $try = q{SELECT status FROM lock_try_acquire('%s', '3 min', 'me')};
my @keys = ('gone:deep:k', 'all:k', 'mine:k');
sub heard_of
{
	my ($psql, $key) = @_;
	return told($psql, sprintf $try, $key) =~ s/reacquired/acquired/r;
}
sub heard
{
	return join ' ', map { heard_of($app, $_) } @keys;
}
# Within a transaction errors have to be undone.
sub heard_within
{
	my @heard;

	foreach my $key (@keys)
	{
		ask($app, 'SAVEPOINT s');
		push @heard, heard_of($app, $key);
		ask($app, 'ROLLBACK TO s');
	}
	return join ' ', @heard;
}
my $free = 'acquired acquired acquired';
my $dumped = '42501 42501 acquired';
is(heard(), $free, 'a session without policies');
ask($admin, q{SELECT lock_set_policy('mine:', max_ttl => '1 min')});
is(heard(), 'acquired acquired 22023', '... with one policy');
ask($admin, 'TRUNCATE app_lock_policy, app_lock_policy_role');
is(heard(), $free, '... without policies after TRUNCATE');

my @data = ('pg_restore', '--data-only', '-t', 'app_lock_policy', '-t', 'app_lock_policy_role', '-d', 'live');
$to->command_ok([ @data, '-e', $dump ], 'policies are restored');
is(heard(), $dumped, '... and apply at its next call');
ask($admin, 'DELETE FROM app_lock_policy; DELETE FROM app_lock_policy_role');
is(heard(), $free, '... until they are deleted');
ask($app, 'BEGIN ISOLATION LEVEL SERIALIZABLE');
is(heard_within(), $free, 'within a transaction');
$to->command_ok([ @data, '-e', '--single-transaction', $dump ], '... policies are restored');
is(heard_within(), $dumped, '... and apply at the next call');
ask($app, 'ROLLBACK');
ask($admin, 'BEGIN; DELETE FROM app_lock_policy');
is(heard_of($admin, 'gone:deep:k'), 'acquired', 'an uncommitted DELETE applies in its own session');
is(heard(), $dumped, '... and in no other');
ask($admin, 'ROLLBACK');
is(heard_of($admin, 'gone:deep:k'), '22023', '... its rollback applies there');
is(heard(), $dumped, '... and in other sessions');

# Changes by hand, also as a subscription writes
ask($admin, q{UPDATE app_lock_policy SET prefix = 'x' || prefix WHERE prefix <> ''});
is(heard(), $free, 'an UPDATE');
ask($admin, q{SET session_replication_role = replica; UPDATE app_lock_policy SET prefix = substr(prefix, 2) WHERE prefix <> ''});
is(heard(), $dumped, '... also while triggers are off');
ask($admin, 'BEGIN; TRUNCATE app_lock_policy');
ask($admin, q{INSERT INTO app_lock_policy (prefix, max_ttl_us) VALUES ('mine:', 1000)});
is(heard_of($admin, 'mine:k'), '22023', 'TRUNCATE and INSERT in one transaction');
ask($admin, 'ROLLBACK; BEGIN; TRUNCATE app_lock_policy');
ask($admin, q{INSERT INTO app_lock_policy (prefix, max_ttl_us) VALUES ('mine:', 1000)});
is(heard_of($admin, 'mine:k'), '22023', '... repeated after a rollback');
ask($admin, 'ROLLBACK; BEGIN; TRUNCATE app_lock_policy');
ask($admin, q{INSERT INTO app_lock_policy (prefix, max_ttl_us) VALUES ('mine:', 1000); SELECT lock_policy('k'); TRUNCATE app_lock_policy});
is(heard_of($admin, 'mine:k'), 'acquired', '... and no policy after another TRUNCATE');
ask($admin, 'COMMIT; RESET session_replication_role');
is(heard(), $free, '... also for others');

end($admin, $app);
$_->stop for ($from, $to);
log_is_clean($_) for ($from, $to);
done_testing();
