# What doc/libraries.md says about ShedLock, with JDBC: the SQL of the LockProvider in
# doc/examples/shedlock, and why ShedLock's own provider cannot lock by a view.
#
# Properties: of two hosts, one runs the task; lockAtLeastFor keeps the lock after
# the task has ended, and no longer; a lock that ran out can be neither extended nor released.  The
# document quotes the programs.
#
# ShedLock itself is in no package of Debian, so AtomicLockProvider.java, which needs it,
# is not compiled here.  Left out where there is no Java or no JDBC driver.
#
# Turns red when: a lease has another length than the provider says; an answer changes;
# ON CONFLICT (...) DO UPDATE works for a view, and the document has to say so.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../../perl";
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $jdbc = '/usr/share/java/postgresql.jar';
plan skip_all => 'no Java, or no JDBC' unless -e $jdbc && eval { run_log([ 'javac', '-version' ]) };

my $password = join '', map { sprintf '%08x', rand 2**32 } 1 .. 4;
my $node = PostgreSQL::Test::Cluster->new('shedlock');
$node->init;
$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'\n");
unlink($node->data_dir . '/pg_hba.conf');
$node->append_conf('pg_hba.conf', "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
$node->start;
$node->safe_psql('postgres', <<"END");
CREATE EXTENSION atomic_lock;
CREATE ROLE batch LOGIN PASSWORD '$password';
SELECT lock_grant_access('batch', 'user');
END

my $classes = PostgreSQL::Test::Utils::tempdir;
my $pgpass = PostgreSQL::Test::Utils::tempdir_short . '/pgpass';
append_to_file($pgpass, "*:*:*:*:$password\n");
chmod 0600, $pgpass;
local $ENV{PGPASSFILE} = $pgpass;
system_or_bail('javac', '-cp', $jdbc, '-d', $classes, 'doc/examples/shedlock/ShedLockLease.java', 'test/t/clients/ShedLock.java');
my ($answer, $stderr) = run_command([ 'java', '-cp', "$classes:$jdbc", 'ShedLock',
	sprintf('jdbc:postgresql://127.0.0.1:%s/postgres?user=batch', $node->port) ]);
note($stderr) if $stderr ne '';
is("$answer\n", <<'END', 'two hosts');
another host: refused
extended: true, another host: refused
released: true, again: false
another host: granted
ran out, extended: false, released: false, with time left: false
released, to last 10 minutes: true, another host: refused
END
is($node->safe_psql('postgres', 'SELECT key, holder, round(ttl_us / 60e6) FROM app_lock WHERE NOT released'),
	'shedlock:night\:ly|one|10', 'what is left of the lease');

# ShedLock's own statement, on a view
$node->safe_psql('postgres', <<'END');
CREATE TABLE leases (name text PRIMARY KEY, lock_until timestamp, locked_at timestamp, locked_by text);
CREATE VIEW shedlock AS SELECT DISTINCT * FROM leases;
CREATE FUNCTION lock_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER lock_it INSTEAD OF INSERT OR UPDATE ON shedlock FOR EACH ROW EXECUTE FUNCTION lock_it();
END
my $insert = q{INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('nightly', now() + '1 h', now(), 'one')};
is(sqlstate($node, "$insert ON CONFLICT (name) DO UPDATE SET lock_until = excluded.lock_until"), '42P10', 'ShedLock by a view');
is(sqlstate($node, $insert), 'no error: ', 'but for ON CONFLICT');

my $text = slurp_file('doc/libraries.md') =~ s/^\t+//gmr;
foreach my $program ('ShedLockLease.java', 'AtomicLockProvider.java')
{
	foreach my $part (split /^\}?\n(?:\}\n)*\n/m, slurp_file("doc/examples/shedlock/$program") =~ s/^\t+//gmr)
	{
		next if $part =~ /^(?:import|\/\/ A )/;
		ok(index($text, $part) >= 0, "doc/libraries.md quotes $program") or diag($part);
	}
}

log_is_clean($node);
$node->stop;
done_testing();
