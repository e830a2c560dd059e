# The sweep and the history.
#
# Properties: a sweep, by hand or in the background, deletes rows of lock_history
# whose grants ended longer ago than atomic_lock.history_retention, which a reload
# changes, and no others: not what has ended since, and not what goes on, however old
# it is; what ended while no policy asked for history goes, too; it deletes no more rows
# in a transaction than it may, but in the background it goes on until it is done; rows
# that somebody has locked are neither waited for nor in the way of the others; an
# expiry that it notices is in the history, with the time at which it was.
#
# Turns red when: rows are judged by when the grant began; what goes on is deleted, or
# what nobody knows the end of is kept; a row in use stops the sweep; a visit ends after
# one batch; the launcher visits a database only where leases are due; the worker may
# not write the table.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('history_sweep');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.sweep_interval = 0
atomic_lock.sweep_batch = 10
});
$node->start;
my ($watch, $other) = map { session($node, $_) } ('Watch', 'Other');
ask($watch, q{CREATE EXTENSION atomic_lock; SELECT lock_set_policy('h:', history => true)});

# Grants that began and ended so long ago
sub past
{
	my ($prefix, $number, $began, $ended) = @_;

	ask($watch, qq{INSERT INTO lock_history (key, mode, fencing_token, owner_digest, holder, role, application, acquired_at, ended_at, ended_by)
		SELECT '$prefix-' || n, 'exclusive', n, '', 'x', 'x', '', now() - interval '$began', now() - interval '$ended', 'released'
		FROM generate_series(1, $number) n});
	return;
}
# ... and that go on, exclusive and shared
sub present
{
	my ($prefix, $number, $began) = @_;

	ask($watch, qq{SELECT lock_acquire('$prefix-' || n, '1 hour', 'o', mode => CASE WHEN n % 2 = 0 THEN 'shared' ELSE 'exclusive' END) FROM generate_series(1, $number) n;
		UPDATE lock_history SET acquired_at = now() - interval '$began' WHERE key LIKE '$prefix-%'});
	return;
}
sub left
{
	my ($psql) = @_;
	return ask($psql // $watch, q{SELECT string_agg(format('%s %s', prefix, count), ', ' ORDER BY prefix) FROM (SELECT split_part(key, '-', 1), count(*) FROM lock_history GROUP BY 1) s (prefix, count)});
}

#
# By hand
#
is(ask($watch, 'SHOW atomic_lock.history_retention'), '90d', 'what is kept without a setting');
past('old', 25, '91 days', '90 days 1 minute');
past('new', 25, '91 days', '89 days 23 hours');
present('h:live', 25, '10 years');
ask($watch, q{SELECT lock_acquire('h:now-1', '1 hour', 'o')});
is(left(), 'h:live 25, h:now 1, new 25, old 25', 'a history');
is(ask($watch, 'SELECT lock_sweep(10)') . ' ' . left(), '10 h:live 25, h:now 1, new 25, old 15', 'lock_sweep trims no more rows than it is told to');
is(ask($watch, 'SELECT lock_sweep()') . ' ' . left(), '10 h:live 25, h:now 1, new 25, old 5', '... or than a batch');
ask($other, q{BEGIN; SELECT count(*) FROM (SELECT FROM lock_history WHERE key IN ('old-1', 'old-24', 'old-25') FOR UPDATE) s});
ask($watch, 'SELECT lock_sweep()');
is(left(), 'h:live 25, h:now 1, new 25, old ' . ask($watch, q{SELECT count(*) FROM lock_history WHERE key IN ('old-1', 'old-24', 'old-25')}), '... and leaves alone what is in use');
cmp_ok(ask($watch, q{SELECT count(*) FROM lock_history WHERE key LIKE 'old-%'}), '>=', 2, '... which there is');
ask($other, 'COMMIT');
ask($watch, 'SELECT lock_sweep()');
is(left(), 'h:live 25, h:now 1, new 25', '... until it is not');
past('old', 5, '91 days', '90 days 1 minute');
ask($watch, 'BEGIN; SELECT lock_sweep(); ROLLBACK');
is(left(), 'h:live 25, h:now 1, new 25, old 5', 'a sweep that is rolled back has trimmed nothing');
configure($node, $watch, q{atomic_lock.history_retention = '100d'});
is(ask($watch, 'SELECT lock_sweep()') . ' ' . left(), '0 h:live 25, h:now 1, new 25, old 5', 'a longer retention');
configure($node, $watch, q{atomic_lock.history_retention = '89d'});
ask($watch, 'SELECT lock_sweep()') for (1 .. 3);
is(left(), 'h:live 25, h:now 1', '... a shorter one');

# What ended while its policy asked for no history, and never will have an end
ask($watch, q{SELECT lock_set_policy('u:', history => true)});
present('u:old', 5, '91 days');
present('u:new', 5, '1 day');
present('u:live', 5, '91 days');
ask($watch, q{SELECT lock_drop_policy('u:'); SELECT count(lock_release(prefix || n, 'o')) FROM unnest('{u:old-,u:new-}'::text[]) prefix, generate_series(1, 5) n});
configure($node, $watch, 'atomic_lock.released_retention = 0');
ask($watch, 'SELECT lock_sweep()') for (1 .. 5);
is(left(), 'h:live 25, h:now 1, u:live 5, u:new 5', 'what nobody will write the end of goes when it began long ago');
configure($node, $watch, q{atomic_lock.released_retention = '1h'});

#
# In the background
#
ask($watch, 'CREATE DATABASE two');
my $two = session($node, 'Two', 'two');
ask($two, q{CREATE EXTENSION atomic_lock; SELECT lock_set_policy('', history => true)});
ask($two, q{SELECT lock_acquire('k-1', '1 hour', 'o'), lock_release('k-1', 'o')});
past('old', 250, '91 days', '90 days');
past('new', 25, '91 days', '1 hour');
# With this interval the launcher visits each database once.
configure($node, $watch, q{atomic_lock.sweep_interval = '1h'});
ok(soon($watch, q{SELECT count(*) = 0 FROM lock_history WHERE key LIKE 'old-%'}), 'the background sweep trims all, batch by batch');
configure($node, $watch, q{atomic_lock.sweep_interval = '20ms'});
ok(sweep_passes($_), '... over and over') for ($watch, $two);
is(left(), 'h:live 25, h:now 1, new 25, u:live 5, u:new 5', '... and leaves the rest');
like(left($two), qr{^k 1, pass\d 1, pass\d 1$}, '... in another database, too') or diag(ask($two, 'TABLE lock_history'));
is(ask($two, q{SELECT bool_and(ended_by = 'expired' AND ended_at - acquired_at = '1 ms') FROM lock_history WHERE key LIKE 'pass%'}), 't', '... where it notes expiries, as of their time');

# Nothing but history is due.
configure($node, $watch, q{atomic_lock.history_retention = 0}, 'atomic_lock.released_retention = 0');
ok(soon($watch, q{SELECT count(*) = 31 FROM lock_history}), 'no retention: all that has ended goes');
ok(soon($two, q{SELECT count(*) = 0 FROM lock_history}), '... in all databases');
is(left(), 'h:live 25, h:now 1, u:live 5', '... and what goes on stays');
ask($watch, q{SELECT lock_release('h:now-1', 'o')});
ok(soon($watch, q{SELECT count(*) = 30 FROM lock_history}), '... until it has ended');
is(unexpected_lines($node, qr/ERROR:  canceling statement due to lock timeout/), '', 'nothing unexpected in the log');

end($watch, $other, $two);
$node->stop;
done_testing();
