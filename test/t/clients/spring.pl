# sql/compat/spring.sql with JDBC: the statements of Spring's DefaultLockRepository,
# of versions 5, 6 and 7, in its transactions and with its ways to bind values; see
# Spring.java.
#
# Properties: clients of each version, and callers without Spring, exclude each
# other: eight clients that count under one lock lose no increment.  A client that
# has the lock acquires it again; one that has lost it can neither renew nor delete it.
# Spring's role has been granted the view, and nothing else.
# An unfinished DELETE by another role, also a prepared one, makes no INSERT wait, and
# does not keep direct callers from the lock.  Refused clients do not make an unlock wait.
# The script says what is missing, and takes over no object of another role.
#
# Skipped without Java or the JDBC driver.
#
# Turns red when: a statement has another answer, or raises an error, at which JDBC would end
# the transaction; a lock is granted wrongly or refused wrongly; an INSERT waits for a row.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no Java, or no JDBC' unless have_driver('jdbc');

my $day = <<'END';
A acquires: true, again: true
B acquires: false, directly: held
is acquired by A: true, by B: false
A renews: true, B: false
B deletes: false, what is expired: false, all: false
A deletes: true, again: false
directly: acquired
A acquires: false, is acquired: false, renews: false, deletes: false
directly: released
A acquires: true, another: true
A closes: true, B acquires: true, true, closes: true
C acquires: true
is acquired: false, renews: false, deletes: false
B acquires: true, deletes: true
END

my $node = clients_server('spring', 'max_prepared_transactions = 2', 'web', 'desk');

sub script
{
	my ($role, @variables) = @_;
	return compat_script($node, $role, 'spring', @variables);
}

$node->safe_psql('postgres', <<'END');
CREATE ROLE shop_locks;
CREATE ROLE somebody;
ALTER ROLE web SET search_path = shop;
CREATE SCHEMA shop;
CREATE SCHEMA brief;
GRANT CREATE, USAGE ON SCHEMA shop, brief TO shop_locks, somebody;
GRANT USAGE ON SCHEMA shop, brief TO web, desk;
END
like(script('shop_locks', 'schema=shop'), qr/extension atomic_lock is not installed.*CREATE EXTENSION/s, 'without the extension');
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
like(script('shop_locks', 'schema=shop'), qr/role "shop_locks" needs level user/, 'without level user');
$node->safe_psql('postgres', q{SELECT lock_grant_access(r, 'user') FROM unnest('{shop_locks,desk}'::regrole[]) r});
like(script('shop_locks', 'schema=shop', 'ttl=25 hours'), qr/ttl is 25 hours, and keys may be held for 1 day/, 'a ttl beyond max_ttl');
$node->safe_psql('postgres', 'SET ROLE somebody; CREATE TABLE shop.int_lock_client (region text, lock_key text, client_id text, role oid, ahead interval, PRIMARY KEY (region, lock_key))');
$node->safe_psql('postgres', 'GRANT somebody TO shop_locks');
like(script('shop_locks', 'schema=shop'), qr/belongs to another role/, 'a table of another role');
like(script('postgres', 'schema=shop'), qr/role "postgres" is a superuser/, 'by a superuser');
$node->safe_psql('postgres', 'DROP TABLE shop.int_lock_client');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_class WHERE relname ~ '^int_lock'}), 0, 'the refused runs leave no object');

is(script('shop_locks', 'schema=shop'), '', 'the script');
is(script('shop_locks', 'schema=shop', 'ttl=10 min'), '', '... can be run again');
is(script('shop_locks', 'schema=brief', 'ttl=1 ms'), '', '... and for another schema');
$node->safe_psql('postgres', <<'END');
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.int_lock, brief.int_lock TO web;
CREATE TABLE counter AS SELECT 0 AS value;
GRANT SELECT, UPDATE ON counter TO desk;
END

run_timed([ 'java', '-cp', $jdbc, 'test/t/clients/Spring.java', map { jdbc_of($node, 'postgres', $_) } 'web', 'desk' ],
	'>', \my $answer, '2>', \my $stderr);
note($stderr) if $stderr ne '';
is($answer, join('', map { "version $_\n$day" } 5 .. 7) . "counted: 200, failed: 0\n", 'Spring');
is($node->safe_psql('postgres', 'SELECT count(*) FROM shop.int_lock_client'), 0, 'no row of a client is left');

#
# An expired lock is deleted by an unfinished transaction.
#
$node->safe_psql('postgres', <<'END');
CREATE ROLE mallory;
GRANT USAGE ON SCHEMA shop TO mallory;
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.int_lock TO mallory;
END
my $insert = q{INSERT INTO shop.int_lock VALUES ('k', 'DEFAULT', '%s', now(), now() + interval '%s') RETURNING client_id};
my $directly = q{SELECT (lock_try_acquire('int_lock:DEFAULT:k', owner => 'desk')).acquired, lock_try_release('int_lock:DEFAULT:k', 'desk')};
my %session = map { $_ => $node->background_psql('postgres', on_error_stop => 0) } 'mallory', 'web', 'another';
ask($session{mallory}, 'SET ROLE mallory');
# Neither of them waits.
ask($session{$_}, 'SET ROLE web') for 'web', 'another';

is(ask($session{mallory}, sprintf $insert, 'm', '1 ms'), 'm', 'a lock that soon expires');
$node->poll_query_until('postgres', q{SELECT NOT lock_is_held('int_lock:DEFAULT:k', 'm')}) or die;
ask($session{mallory}, q{BEGIN; DELETE FROM shop.int_lock WHERE lock_key = 'k'});
is(ask($session{web}, sprintf $insert, 'w', '1 h'), '', 'INSERT does not wait for a DELETE');
is($node->safe_psql('postgres', $directly), 't|released', '... nor do direct callers');
ask($session{mallory}, q{PREPARE TRANSACTION 'm'});
ask($session{web}, q{BEGIN});
is(ask($session{web}, sprintf $insert, 'w', '1 h'), '', '... nor for a prepared one');
is($node->safe_psql('postgres', $directly), 't|released', '... also while the refused transaction is open');
ask($session{web}, q{COMMIT});
$node->safe_psql('postgres', q{COMMIT PREPARED 'm'});
is(ask($session{web}, sprintf $insert, 'w', '1 h'), 'w', '... and INSERT gets the lock afterwards');

ask($session{another}, q{BEGIN});
is(ask($session{another}, sprintf $insert, 'a', '1 h'), '', 'a refusal in an open transaction');
is(ask($session{web}, q{DELETE FROM shop.int_lock WHERE client_id = 'w' RETURNING lock_key}), 'k', '... does not make the unlock wait');
ask($session{another}, q{COMMIT});
$_->quit for values %session;

log_is_clean($node);
$node->stop;
done_testing();
