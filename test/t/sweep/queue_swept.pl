# The events of a sweep, and its offers and removals of tickets.
#
# Needs a build with AL_TEST_HOOKS, where a sweep can be stopped.
#
# Properties: an expiry sends "expired" once, by the sweep or the next grant that notices it,
# also over a restart; a sweep offers an expired key to the first in line, once; an offer that
# lapses costs its owner the ticket, and the key is offered to the next; a ticket that was not
# renewed is removed, also the first one, and is in no owner's way before that;
# app_lock_queue is empty in the end; all of this in the background, too, where events reach
# listeners; a sweep that waits for the table of tickets has claimed no key; more keys than a
# transaction may claim, all held or claimed, keep no free key from an offer; the launcher
# serves a request for an offer in a moment, also if a worker has found a table locked.
#
# Turns red when: a sweep repeats an offer; a lapsed offer is made again to the same owner,
# or its ticket stays; the sweep claims a key before it has opened every table that it writes; each
# batch looks at the same keys; the launcher forgets a request that no worker has served.

use strict;
use warnings FATAL => 'all';
use AtomicLockQueue;
use AtomicLockSweep;
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'needs a build with AL_TEST_HOOKS, named by AL_HOOKS' unless $ENV{AL_HOOKS};

my $node = PostgreSQL::Test::Cluster->new('queue_sweeper', install_path => $ENV{AL_HOOKS});
$node->init;

# The launcher sweeps each database when the server has started, and then hardly ever.
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
restart_after_crash = on
atomic_lock.sweep_databases = ''
atomic_lock.sweep_interval = '50min'
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION atomic_lock');
my ($watch, $listener, $holder, $other);

sub connect_all
{
	end(grep { defined } $watch, $listener, $holder, $other);
	($watch, $listener, $holder, $other) = map { session($node, $_) } ('Watch', 'Listener', 'Holder', 'Other');
	listen_to($listener, 'k');
	return;
}

# The events of a sweep
sub sweep
{
	my ($by) = @_;
	ask($by // $watch, 'SELECT lock_sweep()');
	return heard($listener);
}
sub rows
{
	return ask($watch, 'SELECT count(*) FROM app_lock_queue');
}
sub expired
{
	my ($key) = @_;
	poll($watch, "SELECT NOT locked FROM lock_status('$key')");
	return;
}

#
# Expiries
#
connect_all();
ask($watch, q{SELECT lock_set_policy('k', notify => true)});
sub expire_k
{
	ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
	ask($watch, qq{SELECT lock_enqueue('k', lower('$_->[0]'), '$_->[0]', '$_->[1]', '$_->[2]')}) foreach @_;
	ask($holder, q{SELECT lock_extend('k', 'holder', '1 ms')});
	expired('k');
	hear($listener);
	return;
}
sub clear
{
	ask($watch, 'TRUNCATE app_lock, app_lock_queue');
	hear($listener);
	return;
}
expire_k();
is(sweep() . ' ' . sweep(), 'expired Holder ', 'a sweep sends the event of an expiry, once');
expire_k();
is(ask($other, try_as('other', 'k')) . heard($listener), 'acquired|expired Holder, acquired Other', 'the next grant sends the event of an expiry');
is(sweep(), '', '... and a sweep does not repeat it');
is(ask($watch, q{SELECT force_release('k', 'test')}) . heard($listener), 'tforced Other', '... the end of that grant is sent once, too') or note(heard($listener));
clear();
foreach my $stop ('fast', 'immediate')
{
	expire_k([ 'One', '1 hour', '1 hour' ], [ 'Two', '1 hour', '1 hour' ]);
	is(sweep(), 'expired Holder, offered One', 'an expired key is offered to the first in line');
	my $line = q{SELECT holder, offered_until, ticket FROM lock_queue};
	my $offer = ask($watch, $line);
	$node->stop($stop);
	$node->start;
	connect_all();
	is(sweep() . ' ' . sweep($other), ' ', "... once, over a restart, $stop");
	is(ask($watch, $line), $offer, '... the offer is unchanged');
	is(ask($watch, try_as('two', 'k')) . ' ' . ask($watch, try_as('one', 'k')), 'held|One acquired|', '... and only the first in line can acquire the key');
	clear();
}

#
# Offers that lapse, and tickets that are not renewed
#
expire_k([ 'One', '1 ms', '1 hour' ], [ 'Two', '1 ms', '1 hour' ], [ 'Three', '1 hour', '1 hour' ]);
is(sweep(), 'expired Holder, offered One', 'a sweep makes an offer');
poll($watch, q{SELECT clock_timestamp() > expires_at FROM app_lock_queue WHERE ticket = 0});
is(line_of($watch, 'k'), 'Two Three', '... which lapses: the ticket is lost');
is(ask($other, try_as('one', 'k')) . ' ' . ask($other, try_as('three', 'k')), 'held|Two held|Two', '... the next in line is first');
is(sweep(), 'offered Two', '... and a sweep makes it an offer');
poll($watch, q{SELECT clock_timestamp() > expires_at FROM app_lock_queue WHERE ticket = 0});
is(ask($other, q{SELECT status, place, holder FROM lock_enqueue('k', 'one', 'One')}) . ', ' . heard($listener), 'queued|2|Three, offered Three', '... or the commit of an owner that joins the line');
is(line_of($watch, 'k'), 'Three* One', '... the third in line has the offer');
is(ask($watch, q{SELECT count(*) FROM app_lock_queue}), '3', '... lapsed tickets leave no rows');
is(sweep(), '', '... and the offer stays valid');
clear();

# The next in line after a lapsed offer need not wait for a sweep.
expire_k([ 'One', '1 ms', '1 hour' ], [ 'Two', '1 hour', '1 hour' ]);
sweep();
poll($watch, q{SELECT clock_timestamp() > expires_at FROM app_lock_queue WHERE ticket = 0});
is(ask($other, try_as('two', 'k')), 'acquired|', 'the next in line may acquire the key before a sweep offers it');
ask($other, q{SELECT lock_release('k', 'two')});
sweep();
is(rows(), '0', '... when the key is free again, the line has no rows');
clear();

expire_k([ 'One', '1 hour', '1 ms' ], [ 'Two', '1 hour', '1 hour' ], [ 'Three', '1 hour', '1 ms' ]);
poll($watch, q{SELECT clock_timestamp() > max(expires_at) FROM app_lock_queue WHERE holder IN ('One', 'Three')});
is(line_of($watch, 'k'), 'Two', 'a ticket that is not renewed does not count');
is(sweep(), 'expired Holder, offered Two', '... and gets no offer');
is(ask($watch, q{SELECT string_agg(coalesce(holder, 'offer'), ' ' ORDER BY ticket) FROM app_lock_queue}), 'offer Two', '... and is removed');
clear();
expire_k([ 'One', '1 hour', '1 ms' ]);
poll($watch, q{SELECT clock_timestamp() > max(expires_at) FROM app_lock_queue});
is(ask($other, try_as('other', 'k')), 'acquired|', 'when all tickets have expired, a stranger can acquire the key');
sweep();
is(rows(), '0', '... and a sweep leaves no row');
clear();

# An offer outlives its ticket.
expire_k([ 'One', '1 hour', '1 hour' ]);
is(sweep(), 'expired Holder, offered One', 'an offer to a ticket that is about to expire');
ask($watch, q{UPDATE app_lock_queue SET expires_at = now() - interval '1 s' WHERE ticket > 0});
is(sweep() . line_of($watch, 'k') . ' ' . ask($other, try_as('other', 'k')), 'One* held|One', '... keeps the ticket');
is(ask($other, try_as('one', 'k')), 'acquired|', '... until the offer is taken');
clear();

#
# Another session has locked the table of tickets.
#
expire_k([ 'One', '1 hour', '1 hour' ]);
ask($holder, q{SELECT lock_acquire('other key', '1 ms', 'holder')});
expired('other key');
ask($other, 'BEGIN; LOCK TABLE app_lock_queue');
my $waiter = session($node, 'Waiter');
start($waiter, 'SELECT lock_sweep()');
poll($watch, q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'app_lock_queue'::regclass});
is(ask($watch, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1706}), '0', 'a sweep that waits for a table has claimed no key');
ask($other, 'ROLLBACK');
answer($waiter);
is(heard($listener), 'expired Holder, offered One', '... and sweeps after that');
end($waiter);
clear();

#
# More keys than a sweep may claim come before a free key, whose holder has rolled back.
#
sub roll_back
{
	my ($key) = @_;
	ask($holder, qq{BEGIN; SELECT lock_acquire('$key', '1 hour', 'holder')});
	ask($watch, qq{SELECT lock_enqueue('$key', 'one', 'One')});
	ask($holder, 'ROLLBACK');
	return;
}
my @first = map { "a$_" } 1 .. 5;
ask($other, qq{SELECT lock_acquire('$_', '1 hour', 'other')}) foreach @first;
ask($watch, qq{SELECT lock_enqueue('$_', 'one', 'One')}) foreach @first;
roll_back($_) foreach 'b1' .. 'b4';
is(line_of($watch, 'b1'), 'One', 'a rollback makes no offer');
my $offers = q{SELECT string_agg(key, ' ' ORDER BY key) FROM lock_queue WHERE offered_until IS NOT NULL};
is(ask($watch, "SET atomic_lock.max_claims_per_transaction = 3; SELECT lock_sweep(); $offers"), "0\nb1 b2 b3", '... a sweep passes the held keys, and makes as many offers as it may claim keys');
is(ask($watch, "SELECT lock_sweep(); $offers; RESET atomic_lock.max_claims_per_transaction"), "0\nb1 b2 b3 b4", '... the next one makes the others');
clear();

#
# In the background
#
configure($node, $watch, q{atomic_lock.sweep_databases = '*'}, q{atomic_lock.max_claims_per_transaction = 3}, q{atomic_lock.sweep_interval = '1h'});
ask($other, qq{BEGIN; SET LOCAL atomic_lock.max_claims_per_transaction = 10; SELECT count(lock_acquire(key, '1 hour', 'other')) FROM unnest('{@{[join ',', @first]}}'::text[]) key});
ask($watch, qq{SELECT lock_enqueue('$_', 'one', 'One')}) foreach @first;
roll_back('b1');
ok(soon($watch, "SELECT 'b1' = ($offers)"), 'a key behind others that a transaction has claimed is offered soon');
ask($other, 'COMMIT');
clear();

# Requests for an offer that no worker can serve at once
configure($node, $watch, q{log_min_messages = debug1});
ask($holder, q{BEGIN; SELECT lock_acquire('k', '1 hour', 'holder')});
ask($watch, q{SELECT lock_enqueue('k', 'one', 'One')});
start($other, 'BEGIN; LOCK TABLE app_lock');
poll($watch, q{SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND relation = 'app_lock'::regclass});
my $logged = -s $node->logfile;
ask($holder, 'ROLLBACK');
answer($other);
ok($node->wait_for_log(qr/sweep of the lines of database "postgres": the database or a table was not free/, $logged), 'a worker that is asked for an offer finds a table locked');
ask($other, 'ROLLBACK');
ok(soon($watch, "SELECT 'k' = ($offers)"), '... and another one makes the offer');
clear();
configure($node, $watch, q{log_min_messages = warning}, q{atomic_lock.max_claims_per_transaction = 1000}, q{atomic_lock.sweep_interval = '50ms'});
ok(soon($watch, q{SELECT sweeps > 0 FROM lock_stats WHERE database = 'postgres'}), 'sweeps in the background');
ask($watch, 'TRUNCATE app_lock_policy, app_lock_policy_role');
hear($listener);
ask($holder, q{SELECT lock_acquire('k', '1 hour', 'holder')});
ask($watch, q{SELECT lock_enqueue('k', 'one', 'One', '100 ms', '1 hour'), lock_enqueue('k', 'two', 'Two', '1 hour', '1 ms'), lock_enqueue('k', 'three', 'Three', '1 hour', '1 hour')});
ask($holder, q{SELECT lock_extend('k', 'holder', '1 ms')});
ok(soon($watch, q{SELECT count(*) = 1 FROM lock_queue WHERE offered_until IS NOT NULL AND holder = 'Three'}), 'a lease expires, two tickets lapse, and the key is offered to the last in line')
  or diag(ask($watch, 'SELECT * FROM app_lock_queue'));
ok(sweep_passes($watch), '... sweeps pass');
# A lease may expire between the two steps of a sweep: then its row goes after the first offer.
my @heard = split /, /, heard($listener);
is(join(', ', (grep { /^expired/ } @heard), (grep { !/^expired/ } @heard)), 'expired Holder, offered One, offered Three', '... each event is sent once');
is(ask($watch, q{SELECT string_agg(coalesce(holder, 'offer'), ' ' ORDER BY ticket) FROM app_lock_queue WHERE ticket >= 0}), 'offer Three', '... tickets that have expired are removed');
is(ask($watch, try_as('three', 'k')), 'acquired|', '... and the last in line acquires the key');

end($watch, $listener, $holder, $other);
$node->stop;
log_is_clean($node);
done_testing();
