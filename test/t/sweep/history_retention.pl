# The sweep trims the history.
#
# Properties: a sweep, by hand or in the background, deletes the rows of lock_history
# whose grants ended longer ago than atomic_lock.history_retention, which a reload
# changes, and no others: neither grants that have ended since, nor current ones, however
# old they are; grants that ended while no policy asked for history are deleted, too; a
# transaction deletes no more rows than its limit, but the background sweep repeats until no
# such row is left; the sweep neither waits for locked rows nor skips others because of them;
# an expiry that the sweep notices is written to the history, with its own time.
#
# Turns red when: rows are judged by the begin of the grant; a current grant is deleted, or
# one with an unknown end is kept for ever; a locked row stops the sweep; a visit ends after
# one batch; the launcher visits a database only if leases are due; the worker may
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

# Grants that began and ended the given times ago
sub past
{
	my ($prefix, $number, $began, $ended) = @_;

	ask($watch, qq{INSERT INTO lock_history (key, mode, fencing_token, owner_digest, holder, role, application, acquired_at, ended_at, ended_by)
		SELECT '$prefix-' || n, 'exclusive', n, '', 'x', 'x', '', now() - interval '$began', now() - interval '$ended', 'released'
		FROM generate_series(1, $number) n});
	return;
}
# Current grants, exclusive and shared
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
is(ask($watch, 'SHOW atomic_lock.history_retention'), '90d', 'the default retention');
past('old', 25, '91 days', '90 days 1 minute');
past('new', 25, '91 days', '89 days 23 hours');
present('h:live', 25, '10 years');
ask($watch, q{SELECT lock_acquire('h:now-1', '1 hour', 'o')});
is(left(), 'h:live 25, h:now 1, new 25, old 25', 'a history');
is(ask($watch, 'SELECT lock_sweep(10)') . ' ' . left(), '10 h:live 25, h:now 1, new 25, old 15', 'lock_sweep trims no more rows than its argument allows');
is(ask($watch, 'SELECT lock_sweep()') . ' ' . left(), '10 h:live 25, h:now 1, new 25, old 5', '... or than a batch has');
ask($other, q{BEGIN; SELECT count(*) FROM (SELECT FROM lock_history WHERE key IN ('old-1', 'old-24', 'old-25') FOR UPDATE) s});
ask($watch, 'SELECT lock_sweep()');
is(left(), 'h:live 25, h:now 1, new 25, old ' . ask($watch, q{SELECT count(*) FROM lock_history WHERE key IN ('old-1', 'old-24', 'old-25')}), '... and skips locked rows');
cmp_ok(ask($watch, q{SELECT count(*) FROM lock_history WHERE key LIKE 'old-%'}), '>=', 2, '... some of which are left');
ask($other, 'COMMIT');
ask($watch, 'SELECT lock_sweep()');
is(left(), 'h:live 25, h:now 1, new 25', '... until they are unlocked');
past('old', 5, '91 days', '90 days 1 minute');
ask($watch, 'BEGIN; SELECT lock_sweep(); ROLLBACK');
is(left(), 'h:live 25, h:now 1, new 25, old 5', 'a sweep that is rolled back has trimmed nothing');
configure($node, $watch, q{atomic_lock.history_retention = '100d'});
is(ask($watch, 'SELECT lock_sweep()') . ' ' . left(), '0 h:live 25, h:now 1, new 25, old 5', 'a longer retention keeps rows');
configure($node, $watch, q{atomic_lock.history_retention = '89d'});
ask($watch, 'SELECT lock_sweep()') for (1 .. 3);
is(left(), 'h:live 25, h:now 1', '... a shorter one does not');

# Grants that ended while their policy asked for no history, so their ends are never written
ask($watch, q{SELECT lock_set_policy('u:', history => true)});
present('u:old', 5, '91 days');
present('u:new', 5, '1 day');
present('u:live', 5, '91 days');
ask($watch, q{SELECT lock_drop_policy('u:'); SELECT count(lock_release(prefix || n, 'o')) FROM unnest('{u:old-,u:new-}'::text[]) prefix, generate_series(1, 5) n});
configure($node, $watch, 'atomic_lock.released_retention = 0');
ask($watch, 'SELECT lock_sweep()') for (1 .. 5);
is(left(), 'h:live 25, h:now 1, u:live 5, u:new 5', 'an old grant whose end will never be written is deleted');
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
ok(soon($watch, q{SELECT count(*) = 0 FROM lock_history WHERE key LIKE 'old-%'}), 'the background sweep trims every old row, batch by batch');
configure($node, $watch, q{atomic_lock.sweep_interval = '20ms'});
ok(sweep_passes($_), '... sweeps pass') for ($watch, $two);
is(left(), 'h:live 25, h:now 1, new 25, u:live 5, u:new 5', '... and keep the other rows');
like(left($two), qr{^k 1, pass\d 1, pass\d 1$}, '... also in another database') or diag(ask($two, 'TABLE lock_history'));
is(ask($two, q{SELECT bool_and(ended_by = 'expired' AND ended_at - acquired_at = '1 ms') FROM lock_history WHERE key LIKE 'pass%'}), 't', '... and writes expiries there, with their times');

# Only history is due.
configure($node, $watch, q{atomic_lock.history_retention = 0}, 'atomic_lock.released_retention = 0');
ok(soon($watch, q{SELECT count(*) = 31 FROM lock_history}), 'no retention: every grant that has ended is deleted');
ok(soon($two, q{SELECT count(*) = 0 FROM lock_history}), '... in all databases');
is(left(), 'h:live 25, h:now 1, u:live 5', '... and current grants are kept');
ask($watch, q{SELECT lock_release('h:now-1', 'o')});
ok(soon($watch, q{SELECT count(*) = 30 FROM lock_history}), '... until they end');
is(unexpected_lines($node, qr/ERROR:  canceling statement due to lock timeout/), '', 'nothing unexpected in the log');

end($watch, $other, $two);
$node->stop;
done_testing();
