# Calls on a hot standby and in read-only transactions.
#
# Properties: on a hot standby and in a read-only transaction every function
# that writes raises 25006 at once, also if it would be refused anyway;
# every function that reads works.
#
# Turns red when: the check is left to the heap (XX000 "cannot assign
# TransactionIds during recovery", or no error at all in a read-only
# transaction of a primary, where direct table access ignores it); it comes
# after the look at the row, so that a call for a held key answers "held".

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf('postgresql.conf', "autovacuum = off\nshared_preload_libraries = 'atomic_lock'\n");
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
$primary->safe_psql('postgres',
	q{SELECT lock_acquire('held', '1 hour', 'me', holder => 'Alice', meta => '{"a": 1}')});
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
$primary->safe_psql('postgres', q{SELECT lock_acquire('streamed', '1 hour', 'me', holder => 'Bob')});
$primary->wait_for_catchup($standby);

my @writing = (
	q{lock_acquire('free', '1 hour', 'me')},
	q{lock_acquire('free')},
	q{lock_acquire('held', '1 hour', 'you')},
	q{lock_acquire('held', '1 hour', 'me')},
	q{lock_try_acquire('free', '1 hour', 'me')},
	q{lock_try_acquire('held', '1 hour', 'you')},
	q{lock_acquire('held', '1 hour', 'you', wait => '1 min')},
	q{lock_try_acquire('held', '1 hour', 'you', wait => '1 min')},
	q{lock_release('held', 'me')},
	q{lock_release('free', 'me')},
	q{lock_try_release('held', 'me')},
	q{lock_try_release('held', 'you')},
	q{lock_try_release('free', 'me')},
	q{lock_release_all('me')},
	q{lock_release_all('nobody')},
	q{lock_extend('held', 'me')},
	q{lock_extend('free', 'me')},
	q{lock_try_extend('held', 'me')},
	q{lock_try_extend('held', 'you')},
	q{lock_extend_all('me')},
	q{lock_extend_all('nobody')},
	q{lock_heartbeat('{held}', 'me')},
	q{lock_try_convert('free', 'me')},
	q{lock_try_transfer('free', 'me', 'you')},
	q{lock_transfer_all('nobody', 'you')},
	q{lock_try_force_release('free', 'test')},
	q{force_release('held', 'test')},
	q{force_release('free', 'test')},
	q{lock_force_release('held', 'test')},
	q{lock_steal('held', 'you', 'test')},
	q{lock_steal('free', 'you', 'test')},
	q{lock_sweep()});

my ($reader, $read_only) = (session($standby, 'Reader'), session($primary, 'Read-only'));
ask($read_only, 'SET default_transaction_read_only = on');
foreach my $call (@writing)
{
	is(told($reader, "SELECT $call"), '25006', "standby: $call");
	is(told($read_only, "SELECT $call"), '25006', "read-only: $call");
}

my %reading = (
	q{SELECT locked, mode, holder, lifetime, holders, waiters, meta FROM lock_status('held')} =>
	  't|exclusive|Alice|lease|1|0|{"a": 1}',
	q{SELECT locked, holder FROM lock_status('streamed')} => 't|Bob',
	q{SELECT key, locked, holder FROM lock_status('free')} => 'free|f|',
	q{SELECT string_agg(key, ',' ORDER BY key) FROM lock_status()} => 'held,streamed',
	q{SELECT string_agg(concat_ws(' ', key, mode, lifetime, ttl_remaining > '50 min', meta), ',') FROM lock_held('me')} =>
	  'held exclusive lease t {"a": 1},streamed exclusive lease t',
	q{SELECT lock_holder('held'), lock_holder('free') IS NULL} => 'Alice|t',
	q{SELECT lock_explain('held') ~ '^Lock "held" is held in exclusive mode[.]\nThe holder is "Alice"[.]\n', lock_explain('free') ~ '^Lock "free" is free[.]\n'} => 't|t',
	q{SELECT lock_is_held('held', 'me'), lock_is_held('held', 'you')} => 't|f',
	q{SELECT count(*) FROM lock_waiters} => '0',
	q{SELECT count(*) FROM lock_audit} => '0',
	q{SELECT lock_key('a:b', 'c')} => 'a\:b:c');

foreach my $sql (sort keys %reading)
{
	is(ask($reader, $sql), $reading{$sql}, "standby: $sql");
	is(ask($read_only, $sql), $reading{$sql}, "read-only: $sql");
	is(ask($reader, "BEGIN ISOLATION LEVEL REPEATABLE READ; $sql; COMMIT"), $reading{$sql}, "standby at REPEATABLE READ: $sql");
}
my ($text, $on_primary) = map { ask($_, q{SELECT lock_explain('held')}) } $reader, $read_only;
unlike($on_primary, qr/standby/, 'lock_explain on the primary');
like($text, qr/^Places in line: 0[.]  This server does not know about calls that wait[.]\n.*^This server is a standby[.].*primary[.]\n/ms, '... says on the standby what is not known there, and where the statement works');
like($_, qr/^SELECT public[.]force_release\('held', 'reason', [0-9]+\);$/m, '... and has the statement') foreach $text, $on_primary;
ask($read_only, q{SET default_transaction_read_only = off; SELECT lock_acquire('of session', owner => 'me', lifetime => 'session')});
$primary->wait_for_catchup($standby);
my $pid = ask($read_only, 'SELECT pg_backend_pid()');
like(ask($reader, q{SELECT lock_explain('of session')}), qr/^It ends with the session of process $pid of the primary[.]$/m, '... and whose process it is');
ask($read_only, q{SELECT lock_release('of session', 'me')});
end($reader, $read_only);

# A standby shows no uncommitted grant of the primary, whose processes it does not know.
my $open = $primary->background_psql('postgres', on_error_stop => 0);
ask($open, q{BEGIN; SELECT lock_acquire('open', '1 hour', 'me')});
$primary->safe_psql('postgres', q{SELECT lock_extend('streamed', 'me')});
$primary->wait_for_catchup($standby);
my $look = q{SELECT locked, pending, (SELECT count(*) FROM lock_status() WHERE key = 'open') FROM lock_status('open')};
is($primary->safe_psql('postgres', $look), 'f|t|1', 'the primary shows an uncommitted grant');
is($standby->safe_psql('postgres', $look), 'f|f|0', '... the standby does not');
ask($open, 'ROLLBACK');
$open->quit;

# A release arrives on the standby.
$primary->safe_psql('postgres', q{SELECT lock_release('streamed', 'me')});
ok($standby->poll_query_until('postgres', q{SELECT NOT locked FROM lock_status('streamed')}), 'a release reaches the standby, though its commit is not flushed at once');

# After the promotion the same session writes.
my $session = $standby->background_psql('postgres', on_error_stop => 0);
is(ask($session, q{SELECT lock_holder('held')}), 'Alice', 'a session of the standby');
$primary->stop;
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'promotion';
is(ask($session, q{SELECT (lock_acquire('free', '1 hour', 'me')).status}), 'acquired', '... acquires after the promotion');
is(ask($session, q{SELECT (lock_try_acquire('held', '1 hour', 'you')).status}), 'held', '... finds the lease that was streamed');
is(ask($session, q{SELECT lock_release('held', 'me')}), 't', '... and lets its owner release it');
$session->quit;
$standby->stop;

done_testing();
