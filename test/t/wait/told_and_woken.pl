# Events in databases of any encoding, roles that may listen, and how soon a key is
# offered when no commit could offer it at once.
#
# Properties: a payload is ASCII, whatever keys, labels, messages and names contain, in
# databases of any encoding, and a listener whose encoding lacks a character receives it and
# stays connected; a role that a policy excludes gets no channel, unless it may monitor;
# a ticket that another role renews still counts for the role that took it; a session
# that reads tables without indexes does not jump an offer; the key is offered soon,
# long before a sweep is due, where a ticket is taken beside an uncommitted release, where
# the holder is rolled back, where offers lapse one after the other, and where a sweep finds
# the key claimed by a call that leaves it free.
#
# Turns red when: payloads are in the encoding of the database; lock_channel ignores
# policies; a renewal changes the role of a ticket; rows are read in physical order; a
# ticket and a release that commit at the same time lead to no offer; the launcher is not
# woken.

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
# The launcher sweeps each database when the server has started, and then once an hour.
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
# Encodings.  Each case has a text as bytes in hex, and as JSON escapes.
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
	is(scalar(() = $payload =~ /"\Q$json\E"/g), 3, '... it contains key, label and message') or diag($payload);
	is(eval { JSON::PP->new->decode($payload)->{event} }, 'asked', '... and it is JSON');
	is(reply($listener, 'SELECT 1'), '1', '... the listener is still connected');
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
is(ask($watch, q{SELECT string_agg(role, ' ') FROM lock_queue}), 'u1 u1', 'tickets that another role renews count for the role that took them');
is(told($other, q{SELECT lock_acquire('qc')}), '53400', '... whose quota is used up');
ask($other, 'RESET ROLE');
ask($watch, q{TRUNCATE app_lock, app_lock_queue; SELECT lock_drop_policy('q')});

#
# No indexes
#
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
ask($watch, q{SELECT lock_enqueue('k', lower(l), l, '1 hour') FROM unnest(ARRAY['One', 'Two']) l});
# A renewal puts the row of the first in line last.
ask($watch, q{SELECT lock_enqueue('k', 'one', 'One', '1 hour')});
ask($holder, q{SELECT lock_release('k', 'holder')});
{
	local $ENV{PGOPTIONS} = '-c ignore_system_indexes=on';
	my $rough = session($node, 'Rough');
	is(ask($rough, 'SHOW ignore_system_indexes'), 'on', 'a session that reads without indexes');
	is(ask($rough, try_as($_, 'k')), 'held|One', "... cannot jump the line as $_") foreach 'stranger', 'two';
	is(line_of($rough, 'k'), 'One* Two', '... and sees the same line');
	end($rough);
}
ask($watch, 'TRUNCATE app_lock, app_lock_queue');

#
# Keys that no commit could offer at once
#
# A ticket is written while the key is released: the later commit makes the offer.
ask($holder, q{SELECT lock_acquire('late', '1 hour', 'holder')});
ask($other, q{BEGIN; SELECT lock_enqueue('late', 'one', 'One', '1 hour')});
ask($holder, q{SELECT lock_release('late', 'holder')});
is(line_of($watch, 'late'), '', 'a ticket that is not committed when the key is released');
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

# Offers that lapse
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
ask($watch, qq{SELECT lock_enqueue('k', '$_', '$_', '1 ms')}) foreach 'a', 'b', 'c';
ask($watch, q{SELECT lock_enqueue('k', 'one', 'One', '1 hour')});
ask($holder, q{SELECT lock_release('k', 'holder')});
ok(soon($watch, q{SELECT acquired FROM lock_try_acquire('k', '1 hour', 'one')}), 'three offers lapse, and the fourth in line gets the key');
is(ask($watch, q{SELECT count(*) FROM lock_queue}), '0', '... and the line is empty');

# A sweep is requested, and finds the key claimed.
$node->safe_psql('postgres', 'CREATE DATABASE fresh');
$node->safe_psql('fresh', 'CREATE EXTENSION atomic_lock; ALTER DATABASE fresh SET log_min_messages = debug1');
my @fresh = map { session($node, $_, 'fresh') } ('Watch', 'Holder', 'Other');

# Take a ticket, and wait until the sweep that this asks for has ended
sub enqueue_and_sweep
{
	my $offset = -s $node->logfile;

	ask($fresh[2], q{SELECT lock_enqueue('k', 'one', 'One', '1 hour')});
	$node->wait_for_log(qr/may need an offer/, $offset);
	poll($fresh[0], q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'});
	return;
}

sub is_offered_soon
{
	my ($what) = @_;

	ok(soon($fresh[0], q{SELECT count(*) = 1 FROM lock_queue WHERE key = 'k' AND offered_until IS NOT NULL}), "$what: the key is offered soon");
	ask($fresh[2], q{SELECT lock_leave('k', 'one')});
	return;
}

ask($fresh[1], q{SELECT lock_acquire('k', '1 hour', 'holder'), lock_release('k', 'holder')});
ask($fresh[1], q{BEGIN; SELECT lock_acquire('k', '1 hour', 'holder'), lock_release('k', 'holder')});
enqueue_and_sweep();
is(line_of($fresh[0], 'k'), 'One', 'a sweep finds a key claimed');
ask($fresh[1], q{SELECT lock_acquire('l', '1 hour', 'holder'), lock_release('l', 'holder'); COMMIT});
is_offered_soon('... by a release that was there before the first ticket');

ask($fresh[1], q{BEGIN; SAVEPOINT s; SELECT lock_acquire('k', '1 hour', 'holder')});
enqueue_and_sweep();
is(line_of($fresh[0], 'k'), 'One', 'a sweep finds a key claimed');
ask($fresh[1], 'ROLLBACK TO s');
is_offered_soon('... in a savepoint that is rolled back');
ask($fresh[1], 'ROLLBACK');

# On a slow machine the set may give up before the sweep, which then makes the offer.
ask($fresh[2], q{SELECT lock_acquire('l', '1 hour', 'other')});
start($fresh[1], q{SELECT string_agg(status, ',') FROM lock_try_acquire_all(ARRAY['k', 'l'], '1 hour', 'holder', wait => '3 s')});
poll($fresh[0], q{SELECT count(*) = 1 FROM lock_waiters});
enqueue_and_sweep();
answer($fresh[1]);
is_offered_soon('a set that waits for another key gives up');
end(@fresh);

end($watch, $listener, $holder, $other);
$node->stop;
log_is_clean($node, also => qr/has no equivalent in encoding/);
done_testing();
