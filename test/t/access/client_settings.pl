# Settings that a client sends when it connects, where atomic_lock is not preloaded.
#
# Properties: a role without the right to a setting cannot override the value that an
# administrator has set for the database or in the configuration file by sending another one
# before the library is loaded: every function then raises 42501. A role with the right may
# send the setting, and every role may send settings for users. A session that sets such a
# setting after it has connected keeps the administrator's value.
#
# Turns red when: PostgreSQL drops the administrator's value for one that it refuses later;
# a session can make calls after its setting was refused.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('client_settings');
$node->init;
$node->append_conf('postgresql.conf', "atomic_lock.max_wait = '1 s'\n");
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION atomic_lock;
CREATE ROLE regress_al_user LOGIN;
CREATE ROLE regress_al_trusted LOGIN;
GRANT SET ON PARAMETER atomic_lock.max_ttl TO regress_al_trusted;
SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['regress_al_user', 'regress_al_trusted']::regrole[]) r;
ALTER DATABASE postgres SET atomic_lock.max_ttl = '1 min';
ALTER DATABASE postgres SET atomic_lock.partitions = 4;
ALTER DATABASE postgres SET atomic_lock.partition = 1;
});

# The answer or SQLSTATE of a statement on a new connection that sends these options
sub answer
{
	my ($role, $options, $sql) = @_;
	local $ENV{PGOPTIONS} = $options;
	my ($status, $stdout, $stderr) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$sql", extra_params => [ '-U', $role ]);

	return $stdout ne '' ? $stdout : $stderr =~ s/.*ERROR: +//sr;
}

my ($here, $elsewhere) =
  map { $node->safe_psql('postgres', "SELECT min(k) FROM (SELECT 'k' || i AS k FROM generate_series(1, 100) i) s WHERE lock_partition(k, 4) = $_") } 1, 2;
my $long = "BEGIN; SELECT status FROM lock_acquire('$here', '1 hour', 'me'); ROLLBACK";
my $other = "SELECT lock_holder('$elsewhere')";

is(answer('regress_al_user', '', $long), '22023', 'max_ttl of the database');
is(answer('regress_al_user', '', $other), 'LK010', '... and its partition');
foreach my $setting ('max_ttl=1000000000', 'max_ttl=5', 'partitions=0', 'partition=2', 'max_wait=100000', 'enforce_guards=off', 'max_claims_per_transaction=10', 'released_retention=0', 'no_such=1')
{
	is(answer('regress_al_user', "-c atomic_lock.$setting", $_), '42501', "$setting is not for users to send") foreach $long, $other;
	is(answer('regress_al_user', "-c atomic_lock.$setting", "SELECT 1"), '1', '... which affects only our functions');
}
is(answer('regress_al_user', '-c atomic_lock.partitions=0', "SET atomic_lock.partitions = 4; SET atomic_lock.partition = 2;\n$other"), '42501', '... and a later SET does not help');
is(answer('regress_al_user', '', "SET atomic_lock.max_ttl = '1 day';\n$long"), '22023', 'a SET before the first call sets nothing');
is(answer('regress_al_user', "-c atomic_lock.$_", "SELECT lock_holder('$here') IS NULL"), 't', "users may send $_")
  foreach 'owner=me', 'default_ttl=10000', 'on_reacquire=error', 'release_durability=session';
is(answer('regress_al_trusted', '-c atomic_lock.max_ttl=7200000', $long), 'acquired', 'a role that was granted a setting may send it');
is(answer('regress_al_trusted', '-c atomic_lock.max_wait=7200000', $long), '42501', '... and no other');
is($node->safe_psql('postgres', "SELECT lock_release_all('x')"), '0', 'a superuser');
{
	local $ENV{PGOPTIONS} = '-c atomic_lock.partitions=0';
	is($node->safe_psql('postgres', "SELECT lock_holder('$elsewhere') IS NULL"), 't', '... may send every setting');
}

$node->stop;
done_testing();
