# Programs with real drivers, for test/t/clients: finds the installed drivers and runs
# a program with one of them.

package AtomicLockClients;

use strict;
use warnings FATAL => 'all';
use Exporter 'import';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw($jdbc $python afternoon clients_server compat_script example_database go_program have_driver jdbc_of lines lines_of
	long_waits night program_of run_timed socket_of);

our $python = '/usr/bin/python3';
my $user = 'order_desk';
our $jdbc = '/usr/share/java/postgresql.jar';
my $go = '/usr/share/gocode/src/github.com/jackc/pgx';

# These programs end before Java's second compiler is worth its time.
$ENV{JAVA_TOOL_OPTIONS} = '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC';
$ENV{NODE_PATH} = join(':', grep { defined } $ENV{NODE_PATH}, '/usr/share/nodejs');

# Each driver: a command that shows whether it is installed, the interpreter of a program, and
# the form of the connection string
my %drivers = (
	psycopg2 => [ [ $python, '-c', 'import psycopg2' ], [$python], \&socket_of ],
	psycopg => [ [ $python, '-c', 'import psycopg, psycopg_pool' ], [$python], \&socket_of ],
	pg => [ [ 'node', '-e', q{require('pg')} ], ['node'], \&uri_of ],
	jdbc => [ [ 'javac', '-version' ], [ 'java', '-cp', $jdbc ], \&jdbc_of ],
	pgx => [ [ 'go', 'version' ], [], \&socket_of ],
	pdo => [ [ 'php', '-r', q{exit(extension_loaded('pdo_pgsql') ? 0 : 1);} ], ['php'],
		sub { 'pgsql:' . socket_of(@_) =~ tr/ /;/r } ],
	ruby => [ [ '/usr/bin/ruby', '-e', q{require 'pg'} ], ['/usr/bin/ruby'], \&socket_of ],
	dbd => [ [ '/usr/bin/perl', '-MDBD::Pg', '-e', '1' ], ['/usr/bin/perl'], sub { 'dbi:Pg:' . socket_of(@_) =~ tr/ /;/r } ]);

sub have_driver
{
	my ($driver) = @_;

	return 0 if $driver eq 'jdbc' && !-e $jdbc || $driver eq 'pgx' && !-d "$go/v4" && !-d "$go/v5";
	return eval { run_log($drivers{$driver}[0]) };
}

# A server with the library, and roles that can log in besides the usual one.  JDBC needs
# TCP, which other users of the machine may reach, so the roles have a password.
sub clients_server
{
	my ($name, $settings, @roles) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nlisten_addresses = '127.0.0.1'\n");
	$node->append_conf('postgresql.conf', $settings) if $settings;
	unlink($node->data_dir . '/pg_hba.conf');
	$node->append_conf('pg_hba.conf', "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
	$node->start;

	my $password = join '', map { sprintf '%08x', rand 2**32 } 1 .. 4;
	$ENV{PGPASSFILE} = PostgreSQL::Test::Utils::tempdir_short . '/pgpass';
	append_to_file($ENV{PGPASSFILE}, "*:*:*:*:$password\n");
	chmod 0600, $ENV{PGPASSFILE};
	$node->safe_psql('postgres', "CREATE ROLE $_ LOGIN PASSWORD '$password'") foreach $user, @roles;
	return $node;
}

sub socket_of
{
	my ($node, $database) = @_;
	return sprintf('host=%s port=%s user=%s dbname=%s', $node->host, $node->port, $user, $database);
}

# The form that older versions of node-postgres, which Debian has, read too
sub uri_of
{
	my ($node, $database) = @_;
	return sprintf('postgresql://%s@localhost:%s/%s?host=%s', $user, $node->port, $database, $node->host);
}

sub jdbc_of
{
	my ($node, $database, $role) = @_;
	return sprintf('jdbc:postgresql://127.0.0.1:%s/%s?user=%s', $node->port, $database, $role // $user);
}

# A new database, set up for the examples
sub example_database
{
	my ($node, $database) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, slurp_file('doc/examples/setup.sql'));
	return;
}

# Runs programs, all at the same time; returns whether all succeeded.  If one hangs, all are ended.
sub run_timed
{
	my (@harness) = @_;
	my $running = IPC::Run::harness(@harness, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my $ok;

	eval { $ok = $running->run; 1 } or do
	{
		diag($@);
		$running->kill_kill;
	};
	return $ok;
}

# Runs a script of sql/compat with these variables, as a role; returns its errors
sub compat_script
{
	my ($node, $role, $name, @variables) = @_;
	my ($sharedir) = run_command([ 'pg_config', '--sharedir' ]);
	local $ENV{PGOPTIONS} = "-c role=$role -c client_min_messages=warning";

	run_timed([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), (map { ('-v', $_) } @variables),
			'-f', "$sharedir/extension/atomic_lock/$name.sql" ], '<', \undef, '>', \my $stdout, '2>', \my $stderr);
	return $stderr;
}

# Runs a program on a new database; returns its lines
sub lines
{
	my ($node, $database, @command) = @_;
	my ($stdout, $stderr) = ('', '');

	example_database($node, $database);
	run_timed(\@command, '>', \$stdout, '2>', \$stderr);
	note($stderr) if $stderr ne '';
	return [ split /\n/, $stdout ];
}

# The command that runs a program with a driver; its last argument is the server to connect to
sub program_of
{
	my ($node, $driver, $database, @program) = @_;
	my (undef, $runs, $dsn) = @{ $drivers{$driver} };

	return [ @$runs, @program, $dsn->($node, $database) ];
}

# Runs programs at the same time.  Each waits for the key that has the name of its driver, for
# a lease of 10 seconds.  All wait longer than that before they get it.  Returns their lines, by driver
sub long_waits
{
	my ($node, $database, %programs) = @_;
	my @drivers = sort keys %programs;
	my $keys = join ', ', map { "'$_'" } @drivers;
	my (%stdout, %stderr, @harness);

	example_database($node, $database);
	$node->safe_psql($database, "SELECT lock_acquire(key, '1 h', 'test') FROM unnest(ARRAY[$keys]) AS key");
	foreach my $driver (@drivers)
	{
		push @harness, '&' if @harness;
		push @harness, program_of($node, $driver, $database, @{ $programs{$driver} }), '<', \undef, '>', \$stdout{$driver},
		  '2>', \$stderr{$driver};
	}
	my $running = IPC::Run::start(@harness, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	my $all = $node->poll_query_until($database, "SELECT bool_and(waiters = 1) FROM unnest(ARRAY[$keys]) AS key, lock_status(key)");
	ok($all, "$database: all wait");
	$node->safe_psql($database, 'SELECT pg_sleep(11)') if $all;    # and from here on for longer than a lease
	$node->safe_psql($database, "SELECT lock_release(key, 'test') FROM unnest(ARRAY[$keys]) AS key");
	eval { $running->finish; 1 } or do
	{
		diag($@);
		$running->kill_kill;
	};
	note($_) foreach grep { $_ ne '' } values %stderr;
	return { map { $_ => [ split /\n/, $stdout{$_} // '' ] } @drivers };
}

# The lines of a program with a driver
sub lines_of
{
	my ($node, $driver, $database, @program) = @_;

	return lines($node, $database, @{ program_of($node, $driver, $database, @program) });
}

# The lines of the edit forms
sub afternoon
{
	return [ split /\n/, <<'END' ];
Alice opens 42: acquired
Alice opens 42 in another tab: held Alice
Bob opens 42: held Alice
Bob saves: refused: lock "order:42" is held by Alice, not by this owner
Alice goes on: extended
Alice saves: saved
After a restart, Alice goes on: extended
Alice reloads the page: reacquired
Alice hands 42 to a job: acquired
Alice saves: refused: lock "order:42" is held by nightly export, not by this owner
The job saves: saved
The job ends: released
Alice opens 42: acquired
Bob opens 42: acquired
Alice goes on: lost
Alice saves: refused: lock "order:42" is held by Bob, not by this owner
Alice closes: forced
Bob closes: released
The order is now: exported
END
}

# The lines of the blocks
sub night
{
	return [ split /\n/, <<'END' ];
The job has the lock: go on
Its heartbeat: the lease ends later
Bob: 55P03 lock "import:7" is held by nightly import
Bob waits, and gives up: cancelled
The work fails: 22012
Its lock: free
A DBA ends the lease, and the work is stopped: forced
Overrun: stop
At release: expired
Overrun: stop
At release: not_owner
Overrun: stop
At release: not_found
Hidden key: be15264301c34ee98fe4bb8424972a1c09e6acc8bbc61c9d74601d5983a1c95b
Hidden key: the secret is shorter than 16 bytes
END
}

# The path of a program in Go, compiled for the installed pgx; $main, if given, replaces its own main()
sub go_program
{
	my ($name, $main) = @_;
	my $scratch = PostgreSQL::Test::Utils::tempdir_short;
	my $source = slurp_file("doc/examples/$name.go");

	$source =~ s/^func main\(\)/func play()/m if $main;
	append_to_file("$scratch/main.go", $main) if $main;

	if (-d "$go/v5")
	{
		$source =~ s{jackc/pgx/v4}{jackc/pgx/v5}g;
		$source =~ s{jackc/pgconn}{jackc/pgx/v5/pgconn};
		$source =~ s{pgxpool\.Connect\(}{pgxpool.New(};
	}
	append_to_file("$scratch/$name.go", $source);
	local %ENV = (%ENV, GO111MODULE => 'off', GOPATH => '/usr/share/gocode', GOFLAGS => '', GOTOOLCHAIN => 'local',
		GOCACHE => "$PostgreSQL::Test::Utils::tmp_check/go");
	system_or_bail('go', 'build', '-o', "$scratch/$name", glob("$scratch/*.go"));
	return "$scratch/$name";
}

1;
