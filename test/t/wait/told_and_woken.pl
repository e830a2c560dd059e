# What listeners are told in any encoding, which roles may listen, and how soon a key is
# offered that nobody could offer at once.
#
# Properties: a payload is ASCII, whatever is in keys, labels, messages and names, in
# databases of any encoding, and a listener whose encoding lacks a character hears it and
# stays connected; a role that a policy leaves out gets no channel, unless it may see all;
# a place that another role renews stays on the account of the role that took it; a session
# that reads tables without indexes does not jump an offer; where a transaction takes a
# place while the key is let go of, or one that holds the key is rolled back, or offers
# lapse one after the other, the key is offered soon, without a sweep that is due.
#
# Turns red when: payloads are in the encoding of the database; lock_channel does not ask
# policies; a renewal changes the role of a place; rows are read in the order in which they
# come; nobody looks after both a place and a release; nobody wakes the launcher.

use strict;
use warnings FATAL => 'all';
use AtomicLockQueue;
use AtomicLockSweep;
use AtomicLockTest;
use AtomicLockWait;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('told');
$node->init;
# The launcher sweeps each database when the server has started, and then hardly ever.
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
max_prepared_transactions = 5
atomic_lock.sweep_databases = '*'
atomic_lock.sweep_interval = '1h'
});
$node->start;
$node->safe_psql('postgres', q{CREATE EXTENSION atomic_lock; CREATE ROLE u1; CREATE ROLE u2; CREATE ROLE mon; SELECT lock_grant_access(r, 'user') FROM unnest(ARRAY['u1', 'u2']::regrole[]) r; SELECT lock_grant_access('mon', 'monitor')});

#
# Encodings.  Texts are bytes in hex, and what JSON has of them
#
foreach my $case (
	[ 'UTF8', 'e282acf09f9880', '\u20ac\ud83d\ude00' ],
	[ 'LATIN1', 'e9fc', '\u00e9\u00fc' ],
	[ 'SQL_ASCII', 'fffe', '??' ])
{
	my ($encoding, $hex, $json) = @$case;
	my $db = 'told_' . lc $encoding;
	my $text = "convert_from('\\x$hex'::bytea, '$encoding')";
	my $channel;

	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql($db, 'CREATE EXTENSION atomic_lock');
	my ($listener, $me) = (session($node, 'Listener', $db), session($node, 'Me', $db));
	ask($_, 'SET client_encoding = SQL_ASCII') for ($listener, $me);
	$channel = ask($listener, "SELECT lock_channel($text)");
	ask($listener, 'SET client_encoding = ' . ($encoding eq 'LATIN1' ? 'UTF8' : 'LATIN1'));
	ask($listener, "LISTEN $channel");
	ask($me, "SELECT lock_acquire($text, owner => 'me', holder => $text)");
	ask($me, "SELECT lock_ask($text, $text)");
	my $heard = reply($listener, 'SELECT 1');
	my ($payload) = $heard =~ /with payload "(.*)" received/;
	$payload //= "nothing: $heard";
	is(scalar(() = $payload =~ /[^\x20-\x7e]/g), 0, "$encoding: the payload is ASCII");
	is(scalar(() = $payload =~ /"\Q$json\E"/g), 3, '... key, label and message are in it') or diag($payload);
	is(eval { JSON::PP->new->decode($payload)->{event} }, 'asked', '... and it is JSON');
	is(reply($listener, 'SELECT 1'), '1', '... the listener is connected');
	end($listener, $me);
}

my ($watch, $listener, $holder, $other) = map { session($node, $_) } ('Watch', 'Listener', 'Holder', 'Other');

#
# Roles
#
ask($watch, q{SELECT lock_set_policy('sec:', roles => ARRAY['u1']::regrole[])});
foreach my $case ([ 'u1', qr/^atomic_lock_/ ], [ 'u2', qr/^42501$/ ], [ 'mon', qr/^atomic_lock_/ ])
{
	ask($other, "SET ROLE $case->[0]");
	like(told($other, q{SELECT lock_channel('sec:1')}), $case->[1], "the channel of a key that is for u1 only, for $case->[0]");
}
ask($other, 'RESET ROLE');

# A renewal
ask($watch, q{SELECT lock_set_policy('q', max_keys_per_role => 2)});
ask($holder, q{SELECT lock_acquire(k, '1 hour', 'holder') FROM unnest(ARRAY['qa', 'qb']) k; SET ROLE u2});
is(told($holder, q{SELECT 1}), '1', 'keys of one role');
ask($other, q{SET ROLE u1; SELECT lock_enqueue(k, 'mine') FROM unnest(ARRAY['qa', 'qb']) k});
ask($holder, q{SELECT lock_enqueue(k, 'mine') FROM unnest(ARRAY['qa', 'qb']) k; RESET ROLE});
is(ask($watch, q{SELECT string_agg(role, ' ') FROM lock_queue}), 'u1 u1', 'places that another role renews are of who took them');
is(told($other, q{SELECT lock_acquire('qc')}), '53400', '... whose account is full');
ask($other, 'RESET ROLE');
ask($watch, q{TRUNCATE app_lock, app_lock_queue; SELECT lock_drop_policy('q')});

#
# No indexes
#
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
ask($watch, q{SELECT lock_enqueue('k', lower(l), l, '1 hour') FROM unnest(ARRAY['One', 'Two']) l});
# The row of the first comes last.
ask($watch, q{SELECT lock_enqueue('k', 'one', 'One', '1 hour')});
ask($holder, q{SELECT lock_release('k', 'holder')});
{
	local $ENV{PGOPTIONS} = '-c ignore_system_indexes=on';
	my $rough = session($node, 'Rough');
	is(ask($rough, 'SHOW ignore_system_indexes'), 'on', 'a session that reads without indexes');
	is(ask($rough, try_as($_, 'k')), 'held|One', "... does not jump the line as $_") foreach 'stranger', 'two';
	is(line_of($rough, 'k'), 'One* Two', '... and sees the same');
	end($rough);
}
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

#
# What nobody could offer at once
#
# A place that is written while the key is let go of: whoever commits last offers it.
ask($holder, q{SELECT lock_acquire('late', '1 hour', 'holder')});
ask($other, q{BEGIN; SELECT lock_enqueue('late', 'one', 'One', '1 hour')});
ask($holder, q{SELECT lock_release('late', 'holder')});
is(line_of($watch, 'late'), '', 'a place that is not committed when the key is let go of');
ask($other, 'COMMIT');
is(line_of($watch, 'late'), 'One*', '... is offered the key by its own commit');

# A rollback
listen_to($listener, 'k');
ask($holder, q{BEGIN; SELECT lock_acquire('k', owner => 'holder', lifetime => 'transaction')});
ask($watch, q{SELECT lock_enqueue('k', 'one', 'One', '1 hour')});
ask($holder, 'ROLLBACK');
ok(soon($watch, q{SELECT count(*) = 1 FROM lock_queue WHERE key = 'k' AND offered_until IS NOT NULL}), 'a holder that is rolled back: the key is offered, long before a sweep is due');
is(heard_soon($listener), 'offered One', '... and the first in line hears it');
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

# Offers that nobody takes
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
ask($watch, qq{SELECT lock_enqueue('k', '$_', '$_', '1 ms')}) foreach 'a', 'b', 'c';
ask($watch, q{SELECT lock_enqueue('k', 'one', 'One', '1 hour')});
ask($holder, q{SELECT lock_release('k', 'holder')});
ok(soon($watch, q{SELECT acquired FROM lock_try_acquire('k', '1 hour', 'one')}), 'the fourth gets the key behind three that do not answer');
is(ask($watch, q{SELECT count(*) FROM lock_queue}), '0', '... and nobody is in line');

end($watch, $listener, $holder, $other);
$node->stop;
log_is_clean($node, also => qr/has no equivalent in encoding/);
done_testing();
