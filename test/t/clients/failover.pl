# How doc/failover.md says that clients should connect and repeat, without a failover.
#
# Properties: the string for libpq and the URL for JDBC, as the document has them, connect to
# the second host if the first is down or is a standby; without the parameter
# that asks for a primary they stay at the standby.  JDBC knows each parameter.  The
# document's program repeats its call if there is no connection, if the server ends it,
# and if the server is a standby.  The program raises at once, after a single connection, every error
# that a repetition does not cure: a cancelled statement, a lock_timeout, a wrong password, a
# connection that pg_hba.conf does not admit.
#
# The failovers themselves are in test/cluster/patroni.pl.  JDBC is skipped if it is not installed.
#
# Turns red when: a parameter of the document is misspelt, or does not suffice; its program
# repeats every error of the driver, or too few.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $document = slurp_file('doc/failover.md');
my ($conninfo) = $document =~ /^```conninfo\n(.*)\n```$/m or die 'no string for libpq';
my ($url) = $document =~ /`(jdbc:postgresql:[^`]*)`/ or die 'no URL for JDBC';
my ($program) = $document =~ /^```python\n(.*?)^```$/ms or die 'no program';

my $primary = clients_server('ha_primary', "wal_level = replica\nmax_wal_senders = 4\nhot_standby = on\n", 'shut_out');
$primary->safe_psql('postgres', 'CREATE DATABASE shop');
$primary->safe_psql('shop', q{CREATE EXTENSION atomic_lock; SELECT lock_grant_access('order_desk', 'user')});
unlink($primary->data_dir . '/pg_hba.conf');
$primary->append_conf('pg_hba.conf', <<'END');
local all all trust
local replication all trust
host shop order_desk 127.0.0.1/32 scram-sha-256
END
$primary->reload;
$primary->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('ha_standby');
$standby->init_from_backup($primary, 'standby', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));

my $down = PostgreSQL::Test::Cluster::get_free_port();
my %first = (down => $down, standby => $standby->port);

# The document's connection string, with two hosts of this test, which may take minutes to answer
sub libpq
{
	my ($first) = @_;
	my $ports = "$first," . $primary->port;

	(my $ours = $conninfo) =~ s/host=proxy-a,proxy-b port=5000/host=127.0.0.1,127.0.0.1 port=$ports/ or die $conninfo;
	return $ours =~ s/(connect_timeout)=\d+/$1=$PostgreSQL::Test::Utils::timeout_default/r . ' user=order_desk';
}

sub jdbc
{
	my ($first) = @_;
	my $second = $primary->port;

	(my $ours = $url) =~ s/proxy-a:5000,proxy-b:5000/127.0.0.1:$first,127.0.0.1:$second/ or die $url;
	return $ours =~ s/(\w+Timeout)=\d+/$1=$PostgreSQL::Test::Utils::timeout_default/gr . '&user=order_desk';
}

my $where = q{SELECT inet_server_port() || ' ' || CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE
	(lock_try_acquire('order:' || gen_random_uuid())).status END};
my $granted = $primary->port . ' acquired';
my $stays = $standby->port . ' standby';

# The output of psql and its errors, in one line
sub psql
{
	my ($dsn) = @_;
	return join ' ', grep { $_ ne '' } run_command([ 'psql', '-XAtd', $dsn, '-c', $where ]);
}

foreach my $what (sort keys %first)
{
	is(psql(libpq($first{$what})), $granted, "libpq: the first host is $what");
}
is(psql(libpq($first{standby}) =~ s/target_session_attrs=\S+//r), $stays, 'libpq: without target_session_attrs it stays at the standby');

SKIP:
{
	skip 'no Java, or no JDBC', 1 unless have_driver('jdbc');
	my $source = PostgreSQL::Test::Utils::tempdir . '/Hosts.java';

	append_to_file($source, <<'END');
import java.sql.*;
public class Hosts {
	public static void main(String[] args) throws Exception {
		for (int n = 1; n < args.length; n++)
			try (Connection c = DriverManager.getConnection(args[n]); ResultSet r = c.createStatement().executeQuery(args[0])) {
				r.next();
				System.out.println(r.getString(1));
			}
		for (String parameter : args[1].replaceFirst(".*[?]", "").split("&"))
			if (org.postgresql.PGProperty.forName(parameter.replaceFirst("=.*", "")) == null)
				System.out.println("unknown: " + parameter);
	}
}
END
	run_timed([ 'java', '-cp', $jdbc, $source, $where, (map { jdbc($first{$_}) } sort keys %first),
			jdbc($first{standby}) =~ s/targetServerType=\w+&//r ], '>', \my $stdout, '2>', \my $stderr);
	is($stdout, "$granted\n$granted\n$stays\n", 'JDBC: the same, and each parameter is known') or diag($stderr);
}

SKIP:
{
	skip 'no psycopg2', 1 unless have_driver('psycopg2');
	my $scratch = PostgreSQL::Test::Utils::tempdir;
	my $alive = "host=127.0.0.1 user=order_desk dbname=shop port=" . $primary->port;

	append_to_file("$scratch/recipe.py", $program);
	append_to_file("$scratch/repeats.py", <<'END');
import sys
import psycopg2
import recipe

alive, down, standby, patience = sys.argv[1:]

def tries(what, first, then=alive, end=False):
    """The answer, and how many connections the program has asked for"""
    asked = []

    def connect():
        asked.append(None)
        connection = psycopg2.connect(first if len(asked) == 1 else then)
        if end and len(asked) == 1:
            with psycopg2.connect(alive) as other, other.cursor() as cursor:
                cursor.execute('SELECT pg_terminate_backend(%s, 600000)', (connection.info.backend_pid,))
        return connection

    try:
        answer = recipe.acquire(connect, what, 'me', '1 min', patience=int(patience))
    except psycopg2.Error as error:
        answer = error.pgcode or str(error).strip().rpartition('FATAL:  ')[2]
    print(f'{what}: {answer}, {len(asked)}', flush=True)

tries('down', f'{alive} port={down}')
tries('standby', f'{alive} port={standby}')
tries('ended', alive, end=True)
tries('password', f'{alive} password=wrong')
tries('pg_hba', f'{alive} user=shut_out')
# From here on, another session locks the table.
sys.stdin.readline()
for what, setting in ('cancelled', 'statement_timeout'), ('timeout', 'lock_timeout'):
    tries(what, *[f"{alive} options='-c {setting}=100ms'"] * 2)
END
	my ($stdin, $stdout, $stderr) = ('', '', '');
	my $running = IPC::Run::start([ $python, '-B', "$scratch/repeats.py", $alive, $down, $standby->port, $PostgreSQL::Test::Utils::timeout_default ], '<', \$stdin, '>', \$stdout, '2>', \$stderr,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$running->pump until $stdout =~ /^pg_hba/m || $stderr ne '';
	my $keeper = $primary->background_psql('shop');
	ask($keeper, 'BEGIN; LOCK TABLE app_lock');
	$stdin .= "\n";
	$running->finish;
	$keeper->quit;
	like($stdout, qr/\A
		down:\ acquired,\ 2\n
		standby:\ acquired,\ 2\n
		ended:\ acquired,\ 2\n
		password:\ password\ authentication\ failed\ .*,\ 1\n
		pg_hba:\ no\ pg_hba.conf\ entry\ .*,\ 1\n
		cancelled:\ 57014,\ 1\n
		timeout:\ 55P03,\ 1\n\z/x, 'what the program repeats, and what it raises at once') or diag($stderr);
}

log_is_clean($primary);
$_->stop for $standby, $primary;
done_testing();
