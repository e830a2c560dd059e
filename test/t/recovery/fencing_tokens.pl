# Fencing tokens rise over all events in the life of a server.
#
# Properties: a token that was seen is never given again, committed or
# not, and every later grant has a higher one: after a crash, a promotion that
# lost the last WAL, a dump and restore, a sweep; drawing a token does not change
# the session's lastval(); the sequence ends with an error, not a cycle, and
# then no key is held.
#
# Turns red when: the sequence is not logged before its numbers are used, or
# logged and not flushed (crash inside an open transaction); there is no epoch,
# or a backend remembers it over a promotion, or it is determined by server and
# timeline alone (restore or clone in the same server), or counted up from the number in
# the dump (restored twice); leases are dumped; nextval() is used; the
# counter is stored in the row (sweep); the grant is written before the token is
# drawn, and survives an error in drawing it.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $highest = 0;

# Grant some new leases and return their lowest token; remember the highest.
my $grants = 0;
sub grants
{
	my ($run, $count) = @_;
	my $prefix = 'g' . $grants++;
	my $out = $run->(
		"SELECT min(t) || ' ' || max(t) || ' ' || count(DISTINCT t) FROM
		 (SELECT (lock_acquire('$prefix-' || n, '1 hour', 'me')).fencing_token AS t
		  FROM generate_series(1, $count) n) s");
	my ($min, $max, $distinct) = split / /, $out;

	die "no grants: $out" unless defined $distinct && $distinct == $count;
	$highest = $max if $max > $highest;
	return $min;
}

sub grants_on
{
	my ($node, $count, $db) = @_;
	return grants(sub { $node->safe_psql($db // 'postgres', $_[0]) }, $count);
}

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
log_statement = none
autovacuum = off
checkpoint_timeout = 1h
atomic_lock.released_retention = 0
});
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');

#
# The ordinary life of a key
#
is( $primary->safe_psql(
		'postgres', q{
SELECT bool_and(t > coalesce(previous, 0)) FROM (
	SELECT t, lag(t) OVER (ORDER BY n) AS previous FROM (
		SELECT n, (lock_acquire('life', '1 hour', 'me')).fencing_token AS t,
			lock_release('life', 'me') AS released
		FROM generate_series(1, 100) n) a) b}),
	't', 'rises over 100 grants and releases');
my $life = q{SELECT (lock_acquire('life', '1 hour', 'me')).fencing_token};
$highest = $primary->safe_psql('postgres', $life);
foreach my $round (1 .. 5)
{
	$primary->safe_psql('postgres', q{SELECT lock_release('life', 'me')});
	$primary->safe_psql('postgres', 'SELECT lock_sweep()');
	is($primary->safe_psql('postgres', q{SELECT count(*) FROM app_lock WHERE key = 'life'}), '0', 'swept');
	my $token = $primary->safe_psql('postgres', $life);
	cmp_ok($token, '>', $highest, "rises over sweep $round");
	$highest = $token;
}
is( $primary->safe_psql(
		'postgres', q{
SELECT a.status = 'reacquired' AND a.fencing_token = s.fencing_token
FROM lock_status('life') s, lock_acquire('life', '2 hours', 'me') a}),
	't', 'acquiring again keeps the token');
is( $primary->safe_psql(
		'postgres', q{
CREATE SEQUENCE mine;
SELECT nextval('mine');
SELECT (lock_acquire('lastval')).acquired;
SELECT lastval(), currval('mine')}), "1\nt\n1|1", 'lastval() of the session is unchanged');
is( sqlstate($primary, q{SELECT lock_acquire('lastval-2'); SELECT lastval()}),
	'55000', '... and stays undefined if it was');

#
# A crash; some tokens were seen, but never committed.
#
grants_on($primary, 600);
my $session = $primary->background_psql('postgres', on_error_stop => 0);
ask($session, 'BEGIN');
grants(sub { ask($session, $_[0]) }, 900);
my $seen = $highest;
$primary->stop('immediate');
$session->quit;
$primary->start;
cmp_ok(grants_on($primary, 1), '>', $seen, 'rises over a crash, above tokens of a transaction that was lost');
is( $primary->safe_psql('postgres', 'SELECT count(*) FROM lock_status() WHERE fencing_token > 0 AND key LIKE ' . q{'g1-%'}),
	'0', '... which left no leases');

# two more crashes, one with a checkpoint between the draws
foreach my $round (1 .. 2)
{
	my $held = $primary->background_psql('postgres', on_error_stop => 0);

	$primary->safe_psql('postgres', 'CHECKPOINT') if $round == 2;
	ask($held, 'BEGIN');
	grants(sub { ask($held, $_[0]) }, 5);
	$seen = $highest;
	$primary->stop('immediate');
	$held->quit;
	$primary->start;
	cmp_ok(grants_on($primary, 1), '>', $seen, "... and over crash $round after that");
}

# a clean restart
$seen = $highest;
$primary->restart;
cmp_ok(grants_on($primary, 1), '>', $seen, 'rises over a restart');

#
# Two promotions that lose the last WAL.  Each standby is a copy
# that knows none of the later grants of its primary.
#
my $lived = $primary;
foreach my $round (1 .. 2)
{
	my $standby = PostgreSQL::Test::Cluster->new("standby$round");

	$lived->backup("backup$round");
	$standby->init_from_backup($lived, "backup$round");
	$standby->set_standby_mode;
	$standby->start;
	my $before = $standby->background_psql('postgres', on_error_stop => 0);
	my $pid = ask($before, 'SELECT pg_backend_pid()');
	ask($before, q{SELECT lock_holder('life')});

	# grants that the standby never receives: more than the sequence logs ahead
	foreach my $part (1 .. 3)
	{
		grants_on($lived, 900);
	}
	$seen = $highest;
	$lived->stop('immediate');
	$standby->promote;
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'promotion';

	# The first grant is committed in one round, and rolled back in the other.
	foreach my $end ($round == 1 ? ('COMMIT', 'ROLLBACK') : ('ROLLBACK', 'COMMIT'))
	{
		ask($before, 'BEGIN');
		cmp_ok(grants(sub { ask($before, $_[0]) }, 2), '>', $seen, "rises over promotion $round, in a session from before, $end");
		$seen = $highest;

		# a grant in another session meanwhile
		cmp_ok(grants_on($standby, 2), '>', $seen, '... and in another session at the same time');
		$seen = $highest;
		ask($before, $end);
	}
	is(ask($before, 'SELECT pg_backend_pid()'), $pid, '... the session from before is still the same');
	$before->quit;
	$lived = $standby;
}

#
# Dump and restore
#
$lived->safe_psql('postgres', q{SELECT force_release('life', 'for the record')});
my $audit = $lived->safe_psql('postgres', 'SELECT * FROM lock_audit');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/fencing_dump.sql";
$lived->command_ok([ 'pg_dump', '--no-sync', '-f', $dump, 'postgres' ], 'pg_dump');
grants_on($lived, 900) for (1 .. 3);
$seen = $highest;
unlike(slurp_file($dump), qr/COPY public\.app_lock \(|INSERT INTO public\.app_lock /, 'the dump has no leases');

# restored into another cluster
my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init;
$restored->start;
$restored->command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-q', '-d', 'postgres', '-f', $dump ], 'restore');
is($restored->safe_psql('postgres', 'SELECT count(*) FROM app_lock'), '0', 'no lease is restored');
is($restored->safe_psql('postgres', 'SELECT * FROM lock_audit'), $audit, 'the audit trail is restored');
cmp_ok(grants_on($restored, 2), '>', $seen, 'rises over dump and restore, above grants made after the dump');
my $seen_restored = $highest;
$restored->restart;
cmp_ok(grants_on($restored, 2), '>', $seen_restored, '... and rises after that');

# restored into other databases of the same cluster, one after the other: the second
# copy knows nothing of the first, and still has to have higher tokens
foreach my $copy ('again', 'once_more')
{
	$lived->safe_psql('postgres', "CREATE DATABASE $copy");
	$lived->command_ok([ 'psql', '-X', '-v', 'ON_ERROR_STOP=1', '-q', '-d', $copy, '-f', $dump ], "restore in the same cluster: $copy");
	$seen = $highest;
	cmp_ok(grants_on($lived, 2, $copy), '>', $seen, 'rises over dump and restore in the same cluster');
}
$lived->safe_psql('postgres', 'DROP DATABASE again');

# a clone, and DROP and CREATE EXTENSION
$seen = $highest;
$lived->safe_psql('postgres', 'CREATE DATABASE clone TEMPLATE once_more');
grants_on($lived, 900, 'once_more');
cmp_ok(grants_on($lived, 2, 'clone'), '>', $seen, 'rises over CREATE DATABASE ... TEMPLATE');
$seen = $highest;
$lived->safe_psql('clone', 'DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock');
cmp_ok(grants_on($lived, 2, 'clone'), '>', $seen, 'rises over DROP and CREATE EXTENSION');
my $drop = $lived->background_psql('clone', on_error_stop => 0);
foreach my $end ('ROLLBACK', 'COMMIT')
{
	grants(sub { ask($drop, $_[0]) }, 2);
	$seen = $highest;
	ask($drop, 'BEGIN; DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock');
	cmp_ok(grants(sub { ask($drop, $_[0]) }, 2), '>', $seen, "... in a session that does so, before $end");
	$seen = $highest;
	ask($drop, $end);
	if ($end eq 'COMMIT')
	{
		cmp_ok(grants(sub { ask($drop, $_[0]) }, 2), '>', $seen, '... and after COMMIT');
	}
}
$drop->quit;
$restored->stop;

#
# Changes of the sequence by a DBA
#
grants_on($lived, 1);
$seen = $highest;
$lived->safe_psql('postgres', q{SELECT setval('app_lock_fence', 5)});
cmp_ok(grants_on($lived, 2), '>', $seen, 'setval() downwards does not lower the tokens');
grants_on($lived, 1);
$seen = $highest + 1_000_000;
$lived->safe_psql('postgres', "SELECT setval('app_lock_fence', $seen)");
cmp_ok(grants_on($lived, 1), '>', $seen, 'setval() upwards is followed');
is( $lived->safe_psql('postgres', "SELECT $highest = last_value FROM app_lock_fence"),
	't', '... the sequence shows the token that was given last');

# The end of the sequence
$lived->safe_psql('postgres', q{SELECT lock_acquire('old', '1 hour', 'me')});
$lived->safe_psql('postgres', q{SELECT setval('app_lock_fence', 9223372036854775807 - 1024 * 1024 - 16 * 1024 - 1)});
grants_on($lived, 1);
is(sqlstate($lived, q{SELECT lock_acquire('end', '1 hour', 'me')}), '2200H', 'no number left: an error');
is(sqlstate($lived, q{SELECT lock_try_acquire('end', '1 hour', 'me')}), '2200H', '... in both functions');
is($lived->safe_psql('postgres', q{SELECT locked FROM lock_status('end')}), 'f', '... and the key is not held');
is($lived->safe_psql('postgres', q{SELECT (lock_acquire('old', '2 hours', 'me')).status}), 'reacquired', '... a held key can be reacquired');
is($lived->safe_psql('postgres', q{SELECT lock_release('old', 'me')}), 't', '... and released');
is(sqlstate($lived, q{SELECT lock_acquire('old', '1 hour', 'you')}), '2200H', '... also for a key that was released');
is($lived->safe_psql('postgres', q{SELECT locked FROM lock_status('old')}), 'f', '... which stays free');

$lived->stop;

done_testing();
