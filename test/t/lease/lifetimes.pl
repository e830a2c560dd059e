# Locks with the lifetime of a session, and of a transaction.
#
# In a build with AL_TEST_HOOKS, if there is one, waiters sleep until they
# are woken or the holding ends by itself, so that a lost wake-up is a
# wait that does not end.  AL_SESSIONS in the environment is the number of connections
# that pass a key on by ending.
#
# Properties: a holding with lifetime session ends with its connection,
# however that ends, also within a transaction, after a crash and on a promoted
# standby; other sessions see the key free at once, with no sweep and no write, and the
# first in the queue is woken; the holding is bound to the connection of the latest committed
# acquire, whichever session uses it; another process with the same process id is not that
# connection.  A holding of a transaction lasts as long as the transaction, also when that is
# prepared.  lock_release_path keeps a folder below which such a holding is.  None of this needs the preload.
#
# Turns red when: the end of a session wakes no waiter, wakes waiters before they can
# see it, or only those of its first or last key; liveness goes by the
# process id alone, or by a list in the memory of the session that rollback and
# rebinding do not reach; DISCARD ALL ends no holding; the end needs app_lock, or a
# transaction that is not aborted; the sweep removes live holdings or leaves
# dead ones; a prepared transaction loses its holdings; lock_release_path overlooks them.

use strict;
use warnings FATAL => 'all';
use AtomicLockLoad;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $rounds = $ENV{AL_SESSIONS} || 400;
my $node = sleeping_server('session', q{
atomic_lock.sweep_interval = 0
max_connections = 50
restart_after_crash = on
}, allows_streaming => 1);
$node->safe_psql('postgres', q{
CREATE TABLE counter (value bigint);
INSERT INTO counter VALUES (0);
CREATE ROLE app LOGIN;
CREATE ROLE nobody LOGIN;
SELECT lock_grant_access('app', 'user');
});

my ($watch, $holder, $one, $two);

sub connect_all
{
	my ($server) = @_;
	($watch, $holder, $one, $two) = map { session($server, $_) } ('Watch', 'Holder', 'One', 'Two');
	return;
}
connect_all($node);

# A new session in place of the one that has ended
sub renew
{
	my ($server) = @_;
	end($holder);
	$holder = session($server || $node, 'Holder');
	return;
}

# An acquire with lifetime session; the owner is "holder" by default
sub acquire
{
	my ($key, $owner, $more) = @_;
	return "SELECT status FROM lock_acquire('$key', owner => '" . ($owner || 'holder') . "', lifetime => 'session'" . ($more || '') . ')';
}

# A wait that another session has to end
sub waiting
{
	my ($key, $owner, $more) = @_;
	return "SELECT status FROM lock_try_acquire('$key', '1 hour', '$owner', wait => '1 hour'" . ($more || '') . ')';
}
# A wait that releases the key when it has it
sub waiting_and_release
{
	my ($key, $owner) = @_;
	return waiting($key, $owner) . "; SELECT lock_try_release('$key', '$owner')";
}

# The attempt of another session, without a wait
sub try
{
	my ($key, $owner) = @_;
	return "SELECT status FROM lock_try_acquire('$key', '1 hour', '" . ($owner || 'other') . "')";
}

#
# The answer, lock_status and the table
#
is(ask($holder, q{SELECT acquired, status, mode, owner, expires_at IS NULL, fencing_token > 0, holder FROM lock_acquire('k', owner => 'holder', lifetime => 'session')}),
	't|acquired|exclusive|holder|t|t|Holder', 'an acquire with lifetime session');
is(ask($watch, q{SELECT locked, mode, holder, lifetime, holders, expires_at IS NULL, ttl_remaining IS NULL, pid FROM lock_status('k')}),
	't|exclusive|Holder|session|1|t|t|' . pid($holder), '... as lock_status shows it to others');
is(ask($watch, q{SELECT key, lifetime, pid FROM lock_status()}), 'k|session|' . pid($holder), '... in the list of all locks');
is(ask($watch, q{SELECT expires_at, pid, l.backend_start = a.backend_start FROM app_lock l JOIN pg_stat_activity a USING (pid)}),
	'infinity|' . pid($holder) . '|t', '... in the table');
is(ask($watch, q{SELECT status, mode, holder, expires_at IS NULL, acquired_at IS NOT NULL FROM lock_try_acquire('k', owner => 'other')}), 'held|exclusive|Holder|t|t', '... in the answer of a refusal');
start($watch, q{SELECT lock_acquire('k')});
like(answer($watch), qr/^ERROR:  55P03: lock "k" is held by Holder\nDETAIL:  (?!.*infinity).*\nHINT:/, '... and in its error');
is(ask($watch, q{SELECT lock_is_held('k', 'holder'), lock_holder('k')}), 't|Holder', '... by lock_is_held and lock_holder');
is(ask($holder, q{SELECT lock_extend('k', 'holder')}), 'infinity', 'an extension without ttl leaves it without an end');
is(ask($holder, acquire('k')), 'reacquired', 'the session acquires it again');
is(ask($two, q{SET ROLE app; } . try('k') . q{; SELECT locked, lifetime FROM lock_status('k'); RESET ROLE}), "held\nt|session", 'a role that may not see when other sessions connected sees that it is held');
is(ask($watch, q{SELECT lock_sweep()}), '0', 'a sweep keeps it');

# Only the end of the session, or DISCARD ALL, ends the holding.
is(ask($holder, q{SELECT pg_advisory_lock(1); SELECT pg_advisory_unlock_all(); RESET ALL; DISCARD TEMP; DISCARD PLANS; DISCARD SEQUENCES; DEALLOCATE ALL; CLOSE ALL; UNLISTEN *;
		SET SESSION AUTHORIZATION app; RESET SESSION AUTHORIZATION; SELECT 1}), "\n\n1", 'other resets of the session');
ask($holder, q{SET application_name = 'Holder'});
start($holder, 'BEGIN; SELECT 1 / 0');
like(answer($holder), qr/^ERROR:  22012/, '... and an error');
ask($holder, 'ROLLBACK');
is(ask($watch, try('k')), 'held', '... do not end the holding');

# The owner may make every call from every session.
is(ask($two, q{SELECT lock_release('k', 'holder')}), 't', 'a release from another session');
is(ask($watch, try('k', 'watch') . q{; SELECT lock_release('k', 'watch')}), "acquired\nt", '... frees the key');
is(ask($holder, acquire('k') . '; ' . acquire('k2') . q{; SELECT lock_release_all('holder'); SELECT lock_try_release('k', 'holder')}), "acquired\nacquired\n2\nalready_released", 'lock_release_all counts locks of a session');

#
# Every end of a session.  The session has "k", which another one waits for; "free", which
# has no waiter; and "read", which others share.  Then it runs "before".
#
my $another = sub { my ($sql) = @_; return sub { ask($two, $sql =~ s/PID/pid($holder)/er) } };
my $by_itself = sub { my ($sql) = @_; return sub { start($holder, $sql); answer($holder) } };
my $disconnect = sub { end($holder) };
my $signal = sub { my ($signal) = @_; return sub { kill $signal, pid($holder) } };
my $kill_client = sub { $holder->{run}->signal('KILL'); end($holder) };
my $terminate = $another->('SELECT pg_terminate_backend(PID)');

my @ends = (
	# name, before, the end, whether the session continues
	[ 'disconnect', '', $disconnect ],
	[ 'client killed', '', $kill_client ],
	[ 'pg_terminate_backend', '', $terminate ],
	[ 'pg_terminate_backend of itself', '', $by_itself->('SELECT pg_terminate_backend(pg_backend_pid()); SELECT pg_sleep(600)') ],
	[ 'SIGTERM', '', $signal->('TERM') ],
	[ 'idle_session_timeout', '', $by_itself->("SET idle_session_timeout = '50 ms'; SELECT 1") ],
	[ 'idle_in_transaction_session_timeout', 'BEGIN', $by_itself->("SET idle_in_transaction_session_timeout = '50 ms'; SELECT 1") ],
	[ 'disconnect in a transaction', 'BEGIN; SELECT 1', $disconnect ],
	[ 'disconnect in a transaction that has written', 'BEGIN; INSERT INTO counter VALUES (1)', $disconnect ],
	[ 'disconnect in a savepoint', 'BEGIN; SAVEPOINT s; SELECT 1', $disconnect ],
	[ 'disconnect in a failed transaction', \'BEGIN; SELECT 1 / 0', $disconnect ],
	[ 'disconnect in a failed savepoint', \'BEGIN; SAVEPOINT s; SELECT 1 / 0', $disconnect ],
	[ 'disconnect in a transaction that extended it', q{BEGIN; SELECT lock_extend('k', 'holder')}, $disconnect ],
	[ 'disconnect in a transaction that released it', q{BEGIN; SELECT lock_release('k', 'holder'), lock_release('free', 'holder')}, $disconnect ],
	[ 'disconnect in a transaction that acquired it again', 'BEGIN; ' . acquire('k') . '; SAVEPOINT s; ' . acquire('free'), $disconnect ],
	[ 'disconnect in a transaction that made a lease of it', q{BEGIN; SELECT lock_acquire('k', '1 hour', 'holder'), lock_acquire('free', '1 hour', 'holder')}, $disconnect ],
	[ 'SIGTERM in a transaction', q{BEGIN; SELECT lock_extend('k', 'holder')}, $signal->('TERM') ],
	[ 'pg_terminate_backend in a failed transaction', \'BEGIN; SELECT 1 / 0', $terminate ],
	[ 'disconnect where the holding has an expiry, too', q{SELECT lock_extend('k', 'holder', '1 hour'), lock_extend('free', 'holder', '1 hour')}, $disconnect ],
	[ 'disconnect of a session that may only read', 'SET default_transaction_read_only = on', $disconnect ],
	[ 'disconnect of a serializable session', q{SET default_transaction_isolation = serializable; BEGIN; SELECT count(*) FROM app_lock}, $disconnect ],
	[ 'disconnect with settings that could prevent a query', q{SET search_path = ''; SET row_security = off; SET atomic_lock.max_claims_per_transaction = 1; SET lock_timeout = 1; SET statement_timeout = 1}, $disconnect ],
	[ 'disconnect of a role that may do nothing', 'SET ROLE nobody', $disconnect ],
	[ 'pg_terminate_backend of a role that may do nothing', 'SET SESSION AUTHORIZATION nobody; BEGIN', $terminate ],
	[ 'disconnect of the session that bound the holding last', sub { ask($two, acquire('k') . '; ' . acquire('free')); ask($holder, acquire('k') . '; ' . acquire('free')); }, $disconnect ],
	[ 'DISCARD ALL', '', $by_itself->('DISCARD ALL'), 1 ],
	[ 'DISCARD ALL in a session that may only read', 'SET default_transaction_read_only = on', $by_itself->('DISCARD ALL'), 1 ],
	[ 'DISCARD ALL in a serializable session', 'SET default_transaction_isolation = serializable', $by_itself->('DISCARD ALL'), 1 ],
	[ 'DISCARD ALL of a role that may do nothing', 'SET ROLE nobody', $by_itself->('DISCARD ALL'), 1 ],
	[ 'DISCARD ALL, twice', 'SELECT 1', $by_itself->("DISCARD ALL;\nDISCARD ALL"), 1 ]);

foreach my $end (@ends)
{
	my ($name, $before, $action, $goes_on) = @$end;
	my $pid = pid($holder);

	ask($holder, acquire($_)) for ('k', 'free', 'left');
	ask($holder, acquire('read', 'reader', q{, mode => 'shared'}));
	ask($two, acquire('read', 'two', q{, mode => 'shared'}));
	if (ref $before eq 'CODE')
	{
		$before->();
	}
	elsif (ref $before)
	{
		start($holder, $$before);
		answer($holder);
	}
	elsif ($before ne '')
	{
		ask($holder, $before);
	}
	queue_up($watch, $one, waiting_and_release('k', 'one'));
	$action->();
	is(answer($one), "acquired\nreleased", "$name: the waiter is woken") or last;
	gone($watch, $pid) unless $goes_on;
	is( ask($watch, q{SELECT string_agg(concat_ws(' ', key, locked, holder, holders), ', ' ORDER BY n) FROM unnest('{k,free,left,read}'::text[]) WITH ORDINALITY u (k, n), lock_status(k)}),
		'k f, free f, left f, read t Two 1', '... lock_status shows it free');
	is(ask($watch, try('free') . '; ' . q{SELECT lock_try_release('free', 'other')}), "acquired\nreleased", '... and another session can acquire it');
	is(ask($watch, q{SELECT lock_try_release('left', 'holder'), lock_try_extend('left', 'holder') IS NULL, lock_is_held('left', 'holder')}), 'expired|t|f', '... its owner hears that it has expired');
	is(ask($watch, try('read') . q{; SELECT status FROM lock_try_acquire('read', '1 hour', 'other', 'shared'); SELECT lock_release('read', 'other')}), "held\nacquired\nt", '... other readers stay');
	is(ask($two, q{SELECT lock_release('read', 'two')}), 't', '... and can release their shares');
	ask($watch, try('read') . q{; SELECT lock_release('read', 'other')});
	if ($goes_on)
	{
		ask($holder, q{SET application_name = 'Holder'; SET client_min_messages = error});
		is(ask($holder, acquire('left') . q{; SELECT lock_release('left', 'holder')}), "acquired\nt", '... the session can acquire locks again');
	}
	else
	{
		renew();
	}
}

# The errors of the former owner
ask($holder, acquire('k'));
end($holder);
gone($watch, pid($holder));
start($watch, q{SELECT lock_release('k', 'holder')});
like(answer($watch), qr/^ERROR:  LK005: /, 'release after the end of the session');
start($watch, q{SELECT lock_extend('k', 'holder')});
like(answer($watch), qr/^ERROR:  LK005: /, '... extension');
start($watch, q{SELECT lock_convert('k', 'holder', 'shared')});
like(answer($watch), qr/^ERROR:  LK005: /, '... conversion');
start($watch, q{SELECT lock_transfer('k', 'holder', 'other')});
like(answer($watch), qr/^ERROR:  LK005: /, '... transfer');
start($watch, q{SELECT force_release('k', 'test')});
like(answer($watch), qr/^ERROR:  LK002: /, '... force_release');
is(ask($watch, q{SELECT lock_release_all('holder'), lock_extend_all('holder')}), '0|0', '... of all');
is(ask($watch, q{SELECT status FROM lock_try_acquire('k', '1 hour', 'holder')}), 'acquired', 'its owner can acquire the key anew');
is(ask($watch, q{SELECT lock_release('k', 'holder')}), 't', '... and release it');
renew();

# lock_delay: the key stays closed for a while, as after the end of a lease.
ask($holder, acquire('k') . '; ' . acquire('k2'));
end($holder);
gone($watch, pid($holder));
is(ask($watch, q{SET atomic_lock.lock_delay = '365d'; } . try('k2') . q{; RESET atomic_lock.lock_delay; } . try('k2') . q{; SELECT lock_release('k2', 'other')}), "held\nacquired\nt", 'atomic_lock.lock_delay also applies to the end of a session');
renew();

# Many locks: some have waiters, and one of these has two
is(ask($holder, q{SELECT count(*) FROM generate_series(1, 500) n, lock_acquire('many-' || n, owner => 'holder-' || n % 7, mode => CASE WHEN n % 5 = 0 THEN 'shared' ELSE 'exclusive' END, lifetime => 'session')}), '500', '500 locks of a session');
my @line = map { session($node, "Waiter $_") } (1 .. 6);
queue_up($watch, $line[0], waiting_and_release('many-1', 'w1'));
queue_up($watch, $line[1], waiting_and_release('many-250', 'w2'));
queue_up($watch, $line[2], waiting_and_release('many-500', 'w3'));
queue_up($watch, $line[3], waiting_and_release('many-500', 'w4'));
queue_up($watch, $line[4], waiting_and_release('many-77', 'w5'));
queue_up($watch, $line[5], waiting('many-77', 'w6'));
end($holder);
is(answer($line[$_]), "acquired\nreleased", 'a waiter is woken by the end of a session with many locks') for (0 .. 4);
is(answer($line[5]), 'acquired', '... and the next in the queue');
is(ask($watch, q{SELECT count(*) FROM generate_series(1, 500) n, lock_try_acquire('many-' || n, '1 hour', 'other') WHERE acquired}), '499', '... all its locks are free');
is(ask($watch, q{SELECT lock_release_all('other'), lock_release_all('w6')}), '499|1', '... except the one that the last waiter has acquired');
end(@line);
renew();

# More locks than one transaction may claim
foreach my $action ($disconnect, $by_itself->('DISCARD ALL'), $by_itself->("SET atomic_lock.max_claims_per_transaction = 7;\nDISCARD ALL"))
{
	my $pid = pid($holder);

	ask($holder, qq{SELECT count(*) FROM generate_series($_, $_ + 599) n, lock_acquire('many-' || n, owner => 'holder', lifetime => 'session')}) for (1, 601);
	queue_up($watch, $one, waiting_and_release('many-1', 'one'));
	queue_up($watch, $two, waiting_and_release('many-1200', 'two'));
	$action->();
	is(answer($_), "acquired\nreleased", 'a waiter is woken by the end of a session with more locks than a transaction may claim') for ($one, $two);
	gone($watch, $pid) if $action == $disconnect;
	is(ask($watch, q{SELECT count(*) FROM generate_series(1, 1200) n, lock_status('many-' || n) s WHERE s.locked}), '0', '... all are free');
	renew();
}

# DISCARD ALL waits for a transaction that has claimed one of the locks.  If it is cancelled
# then, it can be repeated.
ask($holder, acquire("many-$_")) for (1 .. 10);
ask($two, 'BEGIN;' . join ';', map { "SELECT lock_extend('many-$_', 'holder')" } (3, 7));
start($holder, 'DISCARD ALL');
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . pid($holder));
ask($watch, 'SELECT pg_cancel_backend(' . pid($holder) . ')');
like(answer($holder), qr/^ERROR:  57014/, 'DISCARD ALL is cancelled while it waits');
is(ask($watch, q{SELECT count(*) FROM generate_series(1, 10) n, lock_status('many-' || n) s WHERE s.locked}), '10', '... and no lock has ended');
start($holder, 'DISCARD ALL');
poll($watch, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . pid($holder));
ask($two, 'COMMIT');
is(answer($holder), '', '... it is repeated');
is(ask($watch, q{SELECT count(*) FROM generate_series(1, 10) n, lock_status('many-' || n) s WHERE s.locked}), '0', '... and all locks are free');
renew();

# Readers
ask($holder, acquire('k', 'holder', q{, mode => 'shared'}));
ask($two, acquire('k', 'two', q{, mode => 'shared'}));
queue_up($watch, $one, waiting_and_release('k', 'one'));
end($holder);
gone($watch, pid($holder));
is(ask($watch, q{SELECT holders, waiters, pid FROM lock_status('k')}), '1|1|' . pid($two), 'a writer waits for two readers; the session of one has ended');
is(ask($watch, q{SELECT status FROM lock_try_acquire('k', '1 hour', 'other', 'shared')}), 'held', '... a new reader does not pass the writer');
end($two);
is(answer($one), "acquired\nreleased", '... when the session of the other ends too, the writer gets the key');
$two = session($node, 'Two');
renew();
ask($holder, acquire('k'));
queue_up($watch, $one, waiting('k', 'one', q{, mode => 'shared'}));
queue_up($watch, $two, waiting('k', 'two', q{, mode => 'shared'}));
end($holder);
is(answer($one), 'acquired', 'readers wait for a writer, whose session ends');
is(answer($two), 'acquired', '... both get the key');
ask($watch, q{SELECT lock_release('k', 'one'), lock_release('k', 'two')});
renew();
ask($holder, acquire('k', 'holder', q{, mode => 'shared'}));
ask($two, q{SELECT lock_acquire('k', '1 hour', 'two', 'shared')});
queue_up($watch, $two, q{SELECT status FROM lock_convert('k', 'two', wait => '1 hour')});
end($holder);
is(answer($two), 'acquired', 'a waiting upgrade is woken by the end of the other reader');
is(ask($two, q{SELECT mode, lifetime FROM lock_status('k'); SELECT lock_release('k', 'two')}), "exclusive|lease\nt", '... and its lease stays a lease');
renew();
ask($holder, acquire('k', 'holder', q{, mode => 'shared'}) . q{; SELECT mode FROM lock_convert('k', 'holder')});
is(ask($watch, q{SELECT mode, lifetime, pid FROM lock_status('k')}), 'exclusive|session|' . pid($holder), 'an upgrade keeps the lifetime of the session');
queue_up($watch, $one, waiting_and_release('k', 'one'));
end($holder);
is(answer($one), "acquired\nreleased", '... and ends with the session');
renew();

#
# The session that a holding is bound to
#
sub is_bound
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(ask($watch, q{SELECT lifetime, pid FROM lock_status('k')}), $session ? 'session|' . pid($session) : 'lease|', $name);
	return;
}

ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
is(ask($two, q{BEGIN; } . acquire('k') . '; ROLLBACK'), 'reacquired', 'another session binds a lease');
is_bound(undef, '... rolled back: it is a lease');
is(ask($two, q{BEGIN; SAVEPOINT s; } . acquire('k') . '; ROLLBACK TO s; COMMIT'), 'reacquired', 'another session binds a lease in a savepoint');
is_bound(undef, '... rolled back: it is a lease');
end($two);
gone($watch, pid($two));
is(ask($watch, try('k')), 'held', '... which outlives that session');
$two = session($node, 'Two');
is(ask($two, acquire('k')), 'reacquired', 'a session binds a lease');
is_bound($two, '... the holding belongs to that session');
is(ask($holder, acquire('k')), 'reacquired', 'another session binds the holding');
is_bound($holder, '... and it belongs to that one');
queue_up($watch, $one, waiting_and_release('k', 'one'));
end($two);
gone($watch, pid($two));
is(ask($watch, q{SELECT count(*) FROM lock_waiters}), '1', '... the end of the former session wakes no waiter');
is(ask($watch, q{SELECT locked, holder, waiters FROM lock_status('k')}), 't|Holder|1', '... and the key is still held');
end($holder);
is(answer($one), "acquired\nreleased", '... the end of the latter session wakes the waiter');
renew();
$two = session($node, 'Two');

ask($holder, acquire('k'));
is(ask($two, q{SELECT status FROM lock_acquire('k', '1 hour', 'holder')}), 'reacquired', 'an acquire with ttl turns it into a lease');
is_bound(undef, '... which belongs to no session');
is(ask($watch, q{SELECT ttl_remaining > '30 min', ttl_remaining <= '1 hour' FROM lock_status('k')}), 't|t', '... has an expiry');
is(ask($watch, q{SELECT pid IS NULL, backend_start IS NULL FROM app_lock WHERE key = 'k' AND slot = 0}), 't|t', '... and no session in its row');
end($holder);
gone($watch, pid($holder));
is(ask($watch, try('k')), 'held', '... and outlives the session');
ask($watch, q{SELECT lock_release('k', 'holder')});
renew();

ask($holder, acquire('k'));
is(ask($two, q{SELECT status, owner, expires_at IS NULL FROM lock_transfer('k', 'holder', 'new')}), 'acquired|new|t', 'a transfer');
is_bound($holder, '... keeps the session that acquired the lock');
end($holder);
gone($watch, pid($holder));
is(ask($watch, q{SELECT lock_try_release('k', 'new'); } . try('k') . q{; SELECT lock_release('k', 'other')}), "expired\nacquired\nt", '... and the holding ends with that session');
renew();
ask($holder, acquire('k') . q{; SELECT lock_transfer('k', 'holder', 'new')});
is(ask($two, acquire('k', 'new')), 'reacquired', 'after a transfer the new owner binds the lock to its session');
end($holder);
gone($watch, pid($holder));
is(ask($watch, try('k')), 'held', '... the holding outlives the first session');
queue_up($watch, $one, waiting_and_release('k', 'one'));
end($two);
is(answer($one), "acquired\nreleased", '... and ends with the second');
$two = session($node, 'Two');
renew();

# A share that the new owner has already is its own, and does not end with the session of
# the owner that transfers another share to it.
foreach my $kind ([ 'a lease', q{ttl => '1 hour'} ], [ 'what its own session has', q{lifetime => 'session'} ])
{
	my ($what, $how) = @$kind;

	is(ask($two, "SELECT status FROM lock_acquire('k', owner => 'new', mode => 'shared', $how)"), 'acquired', "the new owner shares the key: $what");
	is(ask($holder, acquire('k', 'holder', q{, mode => 'shared'}) . q{; SELECT status, owner FROM lock_transfer('k', 'holder', 'new')}), "acquired\nacquired|new", '... and receives the share of another session by a transfer');
	end($holder);
	gone($watch, pid($holder));
	is(ask($watch, q{SELECT lock_is_held('k', 'new'), lifetime, holders, pid IS NOT DISTINCT FROM } . ($how =~ /ttl/ ? 'NULL' : pid($two)) . q{, coalesce(ttl_remaining > '30 min', true) FROM lock_status('k')}), $how =~ /ttl/ ? 't|lease|1|t|t' : 't|session|1|t|t', '... its share outlives that session');
	is(ask($watch, q{SELECT lock_try_release('k', 'new')}), 'released', '... and can be released');
	renew();
}

# A holding of a session with an expiry
is(ask($holder, q{SELECT status, expires_at - acquired_at FROM lock_acquire('k', '1 hour', 'holder', lifetime => 'session')}), 'acquired|01:00:00', 'lifetime session with a ttl');
is(ask($watch, q{SELECT lifetime, ttl_remaining <= '1 hour', pid FROM lock_status('k')}), 'session|t|' . pid($holder), '... lock_status shows its expiry');
is(ask($holder, q{SELECT lock_extend('k', 'holder', '2 hours') - clock_timestamp() BETWEEN '90 min' AND '2 hours'}), 't', '... it can be extended');
queue_up($watch, $one, waiting('k', 'one'));
my $end = ask($holder, q{SELECT lock_extend('k', 'holder', '300 ms')});
is(answer($one), 'acquired', '... it ends at its expiry');
is(ask($one, qq{SELECT acquired_at >= '$end' FROM lock_status('k'); SELECT lock_release('k', 'one')}), "t\nt", '... and not before');
is(ask($holder, acquire('k')), 'acquired', 'lifetime session without a ttl');
is(ask($holder, q{SELECT lock_extend('k', 'holder', '1 hour') < clock_timestamp() + '1 hour'; SELECT ttl_remaining <= '1 hour', lifetime FROM lock_status('k')}), "t\nt|session", '... it can be given a ttl by an extension');
queue_up($watch, $one, waiting_and_release('k', 'one'));
end($holder);
is(answer($one), "acquired\nreleased", '... and still ends with the session');
renew();

# Transactions of other sessions have claimed the lock when the session ends.
foreach my $case ([ 'extends', q{SELECT lock_extend('k', 'holder')}, 'COMMIT' ],
	[ 'extends', q{SELECT lock_extend('k', 'holder')}, 'ROLLBACK' ],
	[ 'releases', q{SELECT lock_release('k', 'holder')}, 'COMMIT' ],
	[ 'releases', q{SELECT lock_release('k', 'holder')}, 'ROLLBACK' ],
	[ 'transfers', q{SELECT lock_transfer('k', 'holder', 'new')}, 'COMMIT' ],
	[ 'transfers', q{SELECT lock_transfer('k', 'holder', 'new')}, 'ROLLBACK' ],
	[ 'converts', q{SELECT lock_convert('k', 'holder', 'shared')}, 'COMMIT' ],
	[ 'rebinds', acquire('k'), 'ROLLBACK' ],
	[ 'leases', q{SELECT lock_acquire('k', '1 hour', 'holder')}, 'ROLLBACK' ])
{
	my ($what, $sql, $how) = @$case;

	ask($holder, acquire('k'));
	ask($two, "BEGIN; $sql");
	queue_up($watch, $one, waiting_and_release('k', 'one'));
	end($holder);
	gone($watch, pid($holder));
	is(ask($watch, q{SELECT count(*) FROM lock_waiters}), '1', "the session ends while another transaction $what its lock");
	ask($two, $how);
	is(answer($one), "acquired\nreleased", "... the key is free after $how");
	renew();
}
foreach my $case ([ 'rebinds', acquire('k'), sub { end($two); $two = session($node, 'Two') } ],
	[ 'leases', q{SELECT lock_acquire('k', '1 hour', 'holder')}, sub { ask($two, q{SELECT lock_release('k', 'holder')}) } ])
{
	my ($what, $sql, $ends) = @$case;

	ask($holder, acquire('k'));
	ask($two, "BEGIN; $sql");
	queue_up($watch, $one, waiting_and_release('k', 'one'));
	end($holder);
	gone($watch, pid($holder));
	ask($two, 'COMMIT');
	is(ask($watch, q{SELECT locked, waiters FROM lock_status('k')}), 't|1', "the session ends while another $what its lock, which commits: the key is held");
	$ends->();
	is(answer($one), "acquired\nreleased", '... until the new holding ends');
	renew();
}

# The same process id, but another process; and a process without a session
my $checkpointer = ask($watch, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'});
foreach my $change (q{backend_start = backend_start - interval '1 s'}, q{backend_start = backend_start + interval '1 us'},
	'pid = ' . pid($watch), "pid = $checkpointer", 'pid = 0', 'pid = -1', 'pid = 2147483647', q{backend_start = '-infinity'})
{
	is(ask($holder, acquire('k') . q{; SELECT locked FROM lock_status('k')}), "acquired\nt", 'a lock with lifetime session');
	ask($watch, "UPDATE app_lock SET $change WHERE key = 'k'");
	is(ask($watch, q{SELECT locked FROM lock_status('k'); SELECT count(*) FROM lock_status() WHERE key = 'k'; SELECT lock_is_held('k', 'holder'), lock_try_release('k', 'holder')}), "f\n0\nf|expired", "... $change: the holding has ended");
	is(ask($watch, try('k') . q{; SELECT lock_release('k', 'other')}), "acquired\nt", '... and the key is free');
}

# Sweeping removes holdings that have ended, and no others.
ask($watch, 'TRUNCATE app_lock');
ask($holder, acquire('dead-1') . '; ' . acquire('dead-2', 'x', q{, mode => 'shared', ttl => '1 hour'}) . '; ' . acquire('kept'));
ask($two, acquire('live-1') . '; ' . acquire('dead-2', 'y', q{, mode => 'shared'}) . q{; SELECT lock_acquire('kept', '1 hour', 'holder')});
is(ask($watch, q{SELECT lock_sweep()}), '0', 'a sweep keeps holdings of live sessions');
ask($two, acquire('kept'));
end($holder);
gone($watch, pid($holder));
is(ask($watch, q{SELECT lock_sweep()}), '2', '... and removes rows of a session that has ended');
is(ask($watch, q{SELECT string_agg(key || ' ' || owner, ', ' ORDER BY key) FROM app_lock}), 'dead-2 y, kept holder, live-1 holder', '... and no others');
is(ask($watch, q{SELECT lock_try_release('dead-1', 'holder')}), 'not_found', '... their owner gets the answer not_found');
end($two);
gone($watch, pid($two));
is(ask($watch, q{SELECT lock_sweep(1), lock_sweep(), lock_sweep()}), '1|2|0', '... also in batches');
is(ask($watch, q{SELECT count(*) FROM app_lock}), '0', '... until no row is left');
renew();
$two = session($node, 'Two');

# By force
ask($holder, acquire('k'));
queue_up($watch, $one, waiting_and_release('k', 'one'));
is(ask($watch, q{SELECT force_release('k', 'test')}), 't', 'force_release of a lock for a session');
is(ask($watch, q{SELECT action, key, previous_holder FROM lock_audit ORDER BY at DESC LIMIT 1}), 'force_release|k|Holder', '... is audited');
is(answer($one), "acquired\nreleased", '... and wakes the waiter');
ask($holder, acquire('k'));
is(ask($watch, q{SELECT status, expires_at IS NOT NULL FROM lock_steal('k', 'thief', 'test'); SELECT lifetime, pid FROM lock_status('k')}), "acquired|t\nlease|", 'lock_steal turns it into a lease');
end($holder);
gone($watch, pid($holder));
is(ask($watch, q{SELECT lock_release('k', 'thief')}), 't', '... which outlives the session');
renew();

#
# The end of a session does not need app_lock ...
#
ask($holder, acquire('k') . '; ' . acquire('free'));
# The waiter is not woken in this case, but looks every second.
ask($one, q{SET atomic_lock.test_sleep_cap = '1 s'}) if @build;
queue_up($watch, $one, waiting_and_release('k', 'one'));
ask($two, 'BEGIN; LOCK TABLE app_lock');
end($holder);
gone($watch, pid($holder));
is(ask($two, 'SELECT 1; COMMIT'), '1', 'a session ends while another one has locked app_lock');
is(answer($one), "acquired\nreleased", '... a waiter gets the key afterwards');
ask($one, 'RESET atomic_lock.test_sleep_cap') if @build;
is(ask($watch, try('free') . q{; SELECT lock_release('free', 'other')}), "acquired\nt", '... and a key without a waiter is free');
renew();

# ... nor the extension.
$node->safe_psql('postgres', 'CREATE DATABASE dropped');
foreach my $drop ('DROP EXTENSION atomic_lock', 'DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock')
{
	my $admin;

	$node->safe_psql('dropped', 'CREATE EXTENSION IF NOT EXISTS atomic_lock');
	$admin = session($node, 'Admin', 'dropped');
	foreach my $action ('disconnect', 'discard', 'terminate')
	{
		my $orphan = session($node, 'Orphan', 'dropped');
		my $offset;

		ask($admin, 'CREATE EXTENSION IF NOT EXISTS atomic_lock');
		ask($orphan, acquire('k') . '; ' . acquire('k2'));
		ask($admin, $drop);
		$offset = -s $node->logfile;
		ask($watch, 'SELECT pg_terminate_backend(' . pid($orphan) . ')') if $action eq 'terminate';
		is(ask($orphan, 'DISCARD ALL; SELECT 1'), '1', "$drop: DISCARD ALL") if $action eq 'discard';
		end($orphan);
		gone($watch, pid($orphan));
		unlike(substr(slurp_file($node->logfile), $offset), $action eq 'terminate' ? qr/ERROR|WARNING|PANIC|FATAL:  (?!terminating)/ : qr/ERROR|WARNING|PANIC|FATAL/, "$drop: the log is quiet on $action");
	}
	end($admin);
}
is($node->psql('postgres', 'DROP DATABASE dropped'), 0, 'its database can be dropped');

# The end of a session changes nothing in other databases.
$node->safe_psql('postgres', 'CREATE DATABASE elsewhere');
$node->safe_psql('elsewhere', 'CREATE EXTENSION atomic_lock');
my $elsewhere = session($node, 'Elsewhere', 'elsewhere');
ask($elsewhere, acquire('k'));
ask($holder, acquire('k'));
end($elsewhere);
gone($watch, pid($elsewhere));
is(ask($watch, try('k')), 'held', 'the end of a session in another database leaves the key held');
ask($holder, q{SELECT lock_release('k', 'holder')});

#
# Holdings with the lifetime of a transaction
#
sub acquire_tx
{
	my ($key, $owner, $more) = @_;
	return acquire($key, $owner, $more) =~ s/'session'/'transaction'/r;
}

is(ask($holder, acquire_tx('k') . q{; SELECT locked FROM lock_status('k')}), "acquired\nf", 'lifetime transaction in a transaction of one statement');
is(ask($holder, q{BEGIN; SELECT acquired, status, mode, owner, expires_at IS NULL, fencing_token > 0, holder FROM lock_acquire('k', owner => 'holder', lifetime => 'transaction');
		SELECT pg_current_xact_id_if_assigned() IS NULL, (SELECT count(*) FROM app_lock WHERE key = 'k' AND NOT released)}),
	"t|acquired|exclusive|holder|t|t|Holder\nt|0", 'a lock with lifetime transaction writes nothing');
is(ask($watch, q{SELECT locked, mode, holder, lifetime, holders, fencing_token > 0, acquired_at <= clock_timestamp(), expires_at IS NULL, pid FROM lock_status('k')}),
	't|exclusive|Holder|transaction|1|t|t|t|' . pid($holder), '... lock_status shows it to others');
is(ask($watch, q{SELECT key, lifetime, pid FROM lock_status()}), 'k|transaction|' . pid($holder), '... in the list of all locks');
is(ask($watch, q{SELECT key, mode, lifetime, fencing_token > 0, expires_at, ttl_remaining FROM lock_held('holder')}), 'k|exclusive|transaction|t||', '... lock_held shows it to its owner in another session');
is(ask($watch, q{SELECT lock_holder('k'); } . try('k')), "Holder\nheld", '... others see the holder, and are refused');
start($watch, q{SELECT lock_acquire('k')});
like(answer($watch), qr/^ERROR:  55P03: lock "k" is held by Holder\nDETAIL:  .*until the transaction of process @{[pid($holder)]} ends\.\n/, '... with an error that says until when');
start($watch, q{SELECT force_release('k', 'test')});
like(answer($watch), qr/^ERROR:  55P03: (?s:.*)process @{[pid($holder)]}\b(?s:.*)pg_terminate_backend/i, '... force_release does not wait');
start($watch, q{SELECT lock_steal('k', 'thief', 'test')});
like(answer($watch), qr/^ERROR:  55P03: (?s:.*)process @{[pid($holder)]}\b(?s:.*)pg_terminate_backend/i, '... nor lock_steal');
is(ask($watch, q{SELECT lock_try_force_release('k', 'test', fencing_token), lock_try_force_release('k', 'test', fencing_token - 1) FROM lock_status('k')}), 'pending|changed', '... nor force_release with its token; another token is not its own');
is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'}), '0', '... and these calls leave no claim');
ask($holder, 'COMMIT');
is(ask($watch, q{SELECT locked FROM lock_status('k'); SELECT count(*) FROM lock_status()}), "f\n0", '... the holding ends with the transaction');

ask($watch, q{SELECT count(*) FROM lock_acquire_path('a/b/c', '1 hour', 'holder')});
ask($holder, 'BEGIN; ' . acquire_tx('a/b/d'));
is(ask($watch, q{SELECT lock_release_path('a/b/c', 'holder'); SELECT string_agg(key || ' ' || mode, ',' ORDER BY key COLLATE "C") FROM lock_held('holder')}),
	"1\na/ shared,a/b/ shared,a/b/d exclusive", '... lock_release_path keeps the folders of a key that another transaction of the owner holds');
is(ask($one, q{SELECT status, key FROM lock_try_acquire_path('a/b/', owner => 'one')}), 'held|a/b/', '... and no other owner gets the folder');
ask($holder, 'COMMIT');
is(ask($watch, q{SELECT lock_release_all('holder')}), '2', '... until the owner releases them');

my @transaction_ends = (
	[ 'COMMIT', 'BEGIN; ' . acquire_tx('k'), $by_itself->('COMMIT'), 1 ],
	[ 'ROLLBACK', 'BEGIN; ' . acquire_tx('k'), $by_itself->('ROLLBACK'), 1 ],
	[ 'error', 'BEGIN; ' . acquire_tx('k'), $by_itself->('SELECT 1 / 0'), 1 ],
	[ 'ROLLBACK TO', 'BEGIN; SAVEPOINT s; ' . acquire_tx('k'), $by_itself->('ROLLBACK TO s'), 1 ],
	[ 'ROLLBACK TO an outer savepoint', 'BEGIN; SAVEPOINT s; SAVEPOINT t; ' . acquire_tx('k') . '; RELEASE t', $by_itself->('ROLLBACK TO s'), 1 ],
	[ 'COMMIT after RELEASE', 'BEGIN; SAVEPOINT s; ' . acquire_tx('k') . '; RELEASE s', $by_itself->('COMMIT'), 1 ],
	[ 'COMMIT of a release', 'BEGIN; ' . acquire_tx('k') . q{; SELECT lock_release('k', 'holder')}, $by_itself->('COMMIT'), 1 ],
	[ 'COMMIT, on top of a lease that is released', q{SELECT lock_acquire('k', '1 hour', 'holder'); BEGIN; } . acquire_tx('k') . q{; SELECT lock_release('k', 'holder')}, $by_itself->('COMMIT'), 1 ],
	[ 'COMMIT, on top of a lock for the session that is released', acquire('k') . '; BEGIN; ' . acquire_tx('k') . q{; SELECT lock_release('k', 'holder')}, $by_itself->('COMMIT'), 1 ],
	[ 'disconnect', 'BEGIN; ' . acquire_tx('k'), $disconnect ],
	[ 'disconnect, on top of a lock for the session', acquire('k') . '; BEGIN; ' . acquire_tx('k'), $disconnect ],
	[ 'client killed', 'BEGIN; ' . acquire_tx('k'), $kill_client ],
	[ 'pg_terminate_backend', 'BEGIN; ' . acquire_tx('k'), $terminate ],
	[ 'SIGTERM', 'BEGIN; ' . acquire_tx('k'), $signal->('TERM') ]);
foreach my $end (@transaction_ends)
{
	my ($name, $before, $action, $goes_on) = @$end;
	my $pid = pid($holder);

	ask($holder, $before);
	queue_up($watch, $one, waiting_and_release('k', 'one'));
	is(ask($watch, q{SELECT locked, waiters FROM lock_status('k')}), 't|1', "lifetime transaction, $name: held") unless $before =~ /lock_release/;
	$action->();
	is(answer($one), "acquired\nreleased", "lifetime transaction, $name: the waiter is woken") or last;
	is(ask($watch, q{SELECT count(*) FROM lock_status()}), '0', '... lock_status shows no lock');
	gone($watch, $pid) unless $goes_on;
	$goes_on ? ask($holder, 'ROLLBACK') : renew();
}
is(ask($holder, q{BEGIN; } . acquire_tx('k') . q{; SAVEPOINT s; SELECT lock_release('k', 'holder'); ROLLBACK TO s}), "acquired\nt", 'a release that is rolled back');
is(ask($watch, q{SELECT locked FROM lock_status('k'); } . try('k')), "t\nheld", '... leaves the lock held');
ask($holder, 'COMMIT');
start($holder, 'BEGIN; ' . acquire_tx('k') . '; DISCARD ALL');
like(answer($holder), qr/ERROR:  25001/, 'DISCARD ALL is refused in a transaction');
ask($holder, 'ROLLBACK');

# More locks than a session shows in the list
is(ask($holder, q{BEGIN; SELECT count(*) FROM generate_series(1, 40) n, lock_acquire('tx-' || n, owner => 'holder', lifetime => 'transaction')}), '40', 'forty locks with lifetime transaction');
is( ask($watch, q{SELECT count(*) FILTER (WHERE locked AND lifetime = 'transaction' AND pid = } . pid($holder) . q{),
		count(*) FILTER (WHERE NOT (lock_try_acquire('tx-' || n, '1 hour', 'other')).acquired) FROM generate_series(1, 40) n, lock_status('tx-' || n)}),
	'40|40', '... lock_status of each key shows it to others');
is(ask($watch, q{SELECT count(*) > 0 AND count(*) <= 40 FROM lock_status()}), 't', '... the list of all locks has at least some of them');
is(ask($holder, q{SELECT lock_release_all('holder'); ROLLBACK}), '40', '... lock_release_all counts them');
is(ask($watch, q{SELECT count(*) FILTER (WHERE locked) FROM generate_series(1, 40) n, lock_status('tx-' || n); SELECT count(*) FROM lock_status()}), "0\n0", '... and all have ended after the rollback');

# Prepared transactions
foreach my $how ('COMMIT', 'ROLLBACK')
{
	foreach my $first ('', 'disconnect')
	{
		is(ask($holder, 'BEGIN; ' . acquire_tx('k') . '; ' . acquire_tx('r', 'holder', q{, mode => 'shared'}) . q{; PREPARE TRANSACTION 'p'}), "acquired\nacquired", 'locks with lifetime transaction in a prepared transaction');
		if ($first)
		{
			end($holder);
			gone($watch, pid($holder));
			renew();
		}
		is(ask($watch, q{SELECT locked, pid FROM lock_status('k')}), 't|', '... the key is held, by no process');
		is(ask($watch, try('k') . '; ' . try('r') . '; ' . q{SELECT status FROM lock_try_acquire('r', '1 hour', 'other', 'shared'); SELECT lock_release('r', 'other')}), "held\nheld\nacquired\nt", '... others are refused');
		is(ask($holder, try('k')), 'held', '... as is the session that prepared it');
		start($watch, q{SELECT force_release('k', 'test')});
		like(answer($watch), qr/^ERROR:  55P03: /, '... force_release does not wait');
		is(ask($watch, q{SELECT lock_try_force_release('k', 'test', 1)}), 'pending', '... nor with a token, which cannot be compared');
		ask($two, "$how PREPARED 'p'");
		is(ask($watch, q{SELECT locked FROM lock_status('k'); } . try('k') . '; ' . try('r') . q{; SELECT lock_release_all('other')}), "f\nacquired\nacquired\n2", "... until $how PREPARED");
	}
}

# A prepared lock with lifetime session: its session may have ended before COMMIT PREPARED.
foreach my $first ('', 'disconnect')
{
	ask($holder, 'BEGIN; ' . acquire('k') . q{; PREPARE TRANSACTION 'p'});
	is(ask($watch, try('k')), 'pending', 'a prepared lock with lifetime session: pending');
	end($holder), gone($watch, pid($holder)) if $first;
	is(ask($watch, try('k')), 'pending', '... until it is committed');
	ask($two, q{COMMIT PREPARED 'p'});
	is(ask($watch, q{SELECT locked FROM lock_status('k'); } . try('k')), $first ? "f\nacquired" : "t\nheld", $first ? '... then the key is free, since the session has ended' : '... then the key is held');
	end($holder), gone($watch, pid($holder)) unless $first;
	is(ask($watch, $first ? q{SELECT lock_release('k', 'other')} : try('k') . q{; SELECT lock_release('k', 'other')}), $first ? 't' : "acquired\nt", '... and free when the session has ended');
	renew();
}
ask($holder, acquire('k') . q{; BEGIN; SELECT lock_release('k', 'holder'); PREPARE TRANSACTION 'p'});
end($holder);
gone($watch, pid($holder));
is(ask($watch, try('k')), 'pending', 'a prepared release of a session that has ended: pending');
ask($two, q{ROLLBACK PREPARED 'p'});
is(ask($watch, try('k') . q{; SELECT lock_release('k', 'other')}), "acquired\nt", '... until the prepared transaction ends');
renew();

#
# Connections that follow each other, and hold the key when they end
#
my ($out, $err) = ('', '');
my $script = pgbench_script($node, 'connections', q{\set way random(1, 3)
SELECT status FROM lock_acquire('hot', owner => gen_random_uuid()::text, wait => '1 hour', lifetime => 'session');
SELECT value FROM counter \gset
UPDATE counter SET value = :value + 1;
\if :way = 1
DISCARD ALL;
\endif
\if :way = 2
SELECT lock_acquire('cold-' || :client_id, owner => gen_random_uuid()::text, lifetime => 'session');
\endif
});
ask($watch, 'UPDATE counter SET value = 0');
my $limit = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default + $rounds / 10);
my $ok = eval {
	IPC::Run::run([ 'pgbench', '-n', '-C', '-c', 5, '-j', 1, '-t', int($rounds / 5), '-f', $script, $node->connstr('postgres') ],
		'<', \undef, '>', \$out, '2>', \$err, $limit);
};
ok($ok && $err !~ /abort|error/i, 'connections that pass a key on by ending') or diag($@ || $err);
is(ask($watch, 'SELECT value FROM counter'), int($rounds / 5) * 5, '... no two had it at the same time');
poll($watch, q{SELECT count(*) = 0 FROM lock_status()});
is(ask($watch, q{SELECT count(*) FROM lock_waiters}), '0', '... and no waiter is left');

#
# On a standby
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('session_standby', @build);
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
ask($holder, acquire('k') . '; ' . acquire('r', 'holder', q{, mode => 'shared'}) . q{; SELECT lock_acquire('lease', '1 hour', 'holder')});
ask($two, acquire('r', 'two', q{, mode => 'shared'}));
$node->wait_for_catchup($standby);
my $reader = session($standby, 'Reader');
is(ask($reader, q{SELECT locked, holder, lifetime, holders FROM lock_status('k')}), 't|Holder|session|1', 'on a standby, a lock for a session of the primary is held');
is(ask($reader, q{SELECT lock_holder('k'), lock_is_held('k', 'holder'), (SELECT holders FROM lock_status('r')), (SELECT count(*) FROM lock_status())}), 'Holder|t|2|4', '... by every function');
is(ask($reader, q{SELECT string_agg(concat_ws(' ', key, mode, lifetime), ',') FROM lock_held('holder')}), 'k exclusive session,lease exclusive lease,r shared session', '... lock_held shows it to its owner');
is(ask($reader, 'DISCARD ALL; SELECT 1'), '1', '... DISCARD ALL there');
is(ask($reader, q{SELECT locked FROM lock_status('k')}), 't', '... does not end the holding');
ask($holder, q{SELECT lock_release('k', 'holder')});
poll($reader, q{SELECT NOT locked FROM lock_status('k')});
ask($holder, acquire('k'));
$node->wait_for_catchup($standby);
is(ask($reader, q{SELECT locked FROM lock_status('k')}), 't', '... also when it was released and acquired again');
$node->stop('immediate');
end($watch, $holder, $one, $two);
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'promotion';
is(ask($reader, q{SELECT locked FROM lock_status('k'); } . try('k') . '; ' . try('r') . '; ' . try('lease')), "f\nacquired\nacquired\nheld", 'after a promotion the locks of sessions of the old primary have ended');
is(ask($reader, acquire('own', 'reader') . q{; SELECT locked, pid FROM lock_status('own')}), "acquired\nt|" . pid($reader), '... and sessions of the new primary can have locks');
end($reader);
$standby->stop;

#
# Restarts and crashes
#
$node->start;
connect_all($node);
is(ask($watch, q{SELECT locked FROM lock_status('k'); SELECT locked FROM lock_status('lease'); SELECT count(*) FROM lock_status()}), "f\nt\n1", 'after an immediate stop leases are left, locks of sessions are not');
ask($watch, q{SELECT lock_release('lease', 'holder')});
foreach my $how ('immediate', 'fast', 'kill the session', 'kill another session')
{
	my $other = session($node, 'Other');

	ask($holder, acquire('k') . '; ' . acquire('free') . '; ' . acquire('r', 'holder', q{, mode => 'shared'}) . q{; SELECT lock_acquire('lease', '1 hour', 'holder')});
	ask($two, 'BEGIN; ' . acquire('claimed') . '; ' . acquire_tx('transaction'));
	ask($other, 'BEGIN; ' . acquire_tx('k3') . q{; PREPARE TRANSACTION 'p'});
	# If this waiter is the last to hear of a shutdown, it may be granted the key before.
	queue_up($watch, $one, 'BEGIN; ' . waiting('k', 'one'));
	if ($how =~ /kill/)
	{
		my $offset = -s $node->logfile;
		system_log('pg_ctl', 'kill', 'KILL', $how eq 'kill the session' ? pid($holder) : pid($other));
		$node->wait_for_log(qr/database system is ready to accept connections/, $offset);
	}
	else
	{
		$node->stop($how);
		$node->start;
	}
	end($watch, $holder, $one, $two, $other);
	await_restart($node);
	connect_all($node);
	is(ask($watch, q{SELECT string_agg(concat_ws(' ', key, locked), ', ' ORDER BY n) FROM unnest('{k,free,r,claimed,transaction,lease}'::text[]) WITH ORDINALITY u (k, n), lock_status(k)}),
		'k f, free f, r f, claimed f, transaction f, lease t', "$how: locks of sessions and transactions have ended");
	is(ask($watch, join '; ', map { try($_) } qw(k free r claimed transaction k3 lease)), "acquired\nacquired\nacquired\nacquired\nacquired\nheld\nheld", '... their keys can be acquired, except that of the prepared transaction');
	is(ask($watch, q{ROLLBACK PREPARED 'p'; } . try('k3') . q{; SELECT lock_release('lease', 'holder'); SELECT lock_release_all('other')}), "acquired\nt\n6", '... until that ends');
	ask($holder, acquire('k'));
	queue_up($watch, $one, waiting_and_release('k', 'one'));
	end($holder);
	is(answer($one), "acquired\nreleased", '... and the end of a session wakes a waiter');
	renew();
}
end($watch, $holder, $one, $two);
$node->stop;
log_is_clean($_, killed => 1) for ($node, $standby);

#
# Without preloading
#
my $unloaded = PostgreSQL::Test::Cluster->new('session_unloaded');
$unloaded->init;
$unloaded->append_conf('postgresql.conf', "log_statement = none\nautovacuum = off\nmax_prepared_transactions = 10\ndeadlock_timeout = 1h\natomic_lock.max_wait = 1h\n");
$unloaded->start;
$unloaded->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
connect_all($unloaded);
sub start_waiting
{
	my ($key) = @_;

	start($one, waiting_and_release($key, 'one'));
	poll($watch, "SELECT wait_event_type = 'Extension' AND state = 'active' FROM pg_stat_activity WHERE pid = " . pid($one));
	return;
}

foreach my $end (
	[ 'disconnect', acquire('k'), $disconnect ],
	[ 'client killed', acquire('k'), $kill_client ],
	[ 'pg_terminate_backend', acquire('k'), $terminate ],
	[ 'SIGTERM in a transaction', acquire('k') . '; BEGIN', $signal->('TERM') ],
	[ 'DISCARD ALL', acquire('k'), $by_itself->('DISCARD ALL'), 1 ],
	[ 'COMMIT', 'BEGIN; ' . acquire_tx('k'), $by_itself->('COMMIT'), 1 ],
	[ 'ROLLBACK', 'BEGIN; ' . acquire_tx('k'), $by_itself->('ROLLBACK'), 1 ],
	[ 'disconnect in a transaction', 'BEGIN; ' . acquire_tx('k'), $disconnect ],
	[ 'pg_terminate_backend in a transaction', 'BEGIN; ' . acquire_tx('k'), $terminate ])
{
	my ($name, $before, $action, $goes_on) = @$end;
	my $pid = pid($holder);

	ask($holder, $before);
	is(ask($watch, q{SELECT locked, lifetime, pid FROM lock_status('k')}), 't|' . ($before =~ /transaction/ ? 'transaction' : 'session') . "|$pid", "not preloaded, $name: held");
	is(ask($watch, try('k')), 'held', '... others are refused');
	start_waiting('k');
	$action->();
	is(answer($one), "acquired\nreleased", '... a waiter gets the key afterwards');
	gone($watch, $pid) unless $goes_on;
	is(ask($watch, q{SELECT locked FROM lock_status('k'); } . try('k') . q{; SELECT lock_release('k', 'other')}), "f\nacquired\nt", '... as does a new caller');
	$goes_on ? ask($holder, q{SET application_name = 'Holder'; SET client_min_messages = error}) : renew($unloaded);
}
my $fresh = session($unloaded, 'Fresh');
ask($holder, 'BEGIN; ' . acquire_tx('k') . '; ' . acquire_tx('r', 'holder', q{, mode => 'shared'}));
is(ask($fresh, q{SELECT locked, lifetime, pid, mode FROM lock_status('k'); SELECT locked, pid, mode FROM lock_status('r')}), 't|transaction|' . pid($holder) . "|exclusive\nt|" . pid($holder) . '|shared', 'not preloaded: lock_status shows the locks to a session that has not used the library before');
start($fresh, q{SELECT force_release('k', 'test')});
like(answer($fresh), qr/^ERROR:  55P03: (?s:.*)process @{[pid($holder)]}\b/i, '... force_release is refused there');
ask($holder, q{PREPARE TRANSACTION 'p'});
is(ask($fresh, q{SELECT locked, pid FROM lock_status('k'); } . try('k')), "t|\nheld", '... the prepared lock is held');
ask($fresh, q{COMMIT PREPARED 'p'});
is(ask($fresh, q{SELECT locked FROM lock_status('k'); } . try('k') . q{; SELECT lock_release('k', 'other')}), "f\nacquired\nt", '... and free after COMMIT PREPARED');
ask($holder, acquire('k'));
end($fresh, $watch, $one, $two);
$unloaded->stop('immediate');
end($holder);
$unloaded->start;
connect_all($unloaded);
is(ask($watch, try('k')), 'acquired', 'not preloaded: after a crash the lock of a session has ended');
end($watch, $holder, $one, $two);
$unloaded->stop;
log_is_clean($unloaded);

done_testing();
