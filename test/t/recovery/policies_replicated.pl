# Policies and history on a standby, after its promotion, and in a subscription.
#
# Properties: on a hot standby lock_policy, lock_policies, lock_held_at and
# lock_status answer by the replayed state, also in a session that has asked before,
# and within its transaction; changes that are rolled back never count; no policy can be
# set there; an expiry is known there by the clock, with no write; after a
# promotion the policies bind the same session, and the history continues,
# with the ends of former grants; a subscriber follows replicated
# changes, in sessions that are connected.  A publication of all tables
# brings a subscriber policies and no locks, and no key stops the replication of other tables.
#
# Turns red when: policies are remembered until the session itself writes; they are read
# before a change is visible and kept after it; only sessions of the primary notice a
# change; the table has triggers for statements only; a subscriber applies rows of
# locks, tickets or history.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = q{
shared_preload_libraries = 'atomic_lock'
autovacuum = off
max_prepared_transactions = 5
atomic_lock.sweep_interval = 0
};
my $primary = PostgreSQL::Test::Cluster->new('policies_primary');
$primary->init(allows_streaming => 'logical');
$primary->append_conf('postgresql.conf', $conf);
$primary->start;
$primary->safe_psql('postgres', q{
CREATE EXTENSION atomic_lock;
CREATE ROLE app LOGIN;
CREATE ROLE tenant LOGIN;
SELECT lock_grant_access('app', 'user'), lock_grant_access('tenant', 'user');
});
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('policies_standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

my $writer = session($primary, 'Writer');
ask($writer, 'SET atomic_lock.release_durability = session');
my $session = session($standby, 'Session');
my $open = session($standby, 'Open');
my $app = session($standby, 'App');
ask($app, q{SET SESSION AUTHORIZATION app; SET atomic_lock.owner = 'me'});
# In a transaction without a snapshot, which would keep the standby from replaying
ask($open, 'BEGIN');

# Run SQL on the primary, and wait until the standby has replayed it.
sub replayed
{
	my ($sql) = @_;

	ask($writer, $sql);
	$primary->wait_for_catchup($standby);
	return;
}

#
# The policy of a key
#
my $look = q{SELECT max_ttl, max_keys_per_role, roles, prefixes FROM lock_policy('t:1:k')};
sub rules
{
	my ($answer, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(ask($session, $look), $answer, $name);
	is(ask($open, $look), $answer, '... within a transaction');
	is(ask($app, $look), $answer, '... and for a user');
	return;
}
rules('1 day|||{}', 'a standby without policies');
replayed(q{SELECT lock_set_policy('t:', max_ttl => '1 hour', max_keys_per_role => 2)});
rules('01:00:00|2||{"max_ttl": "t:", "max_keys_per_role": "t:"}', 'a policy is known there when it is replayed');
replayed(q{SELECT lock_set_policy('t:1:', max_ttl => '1 min', roles => '{tenant}')});
rules('00:01:00|2|{tenant}|{"roles": "t:1:", "max_ttl": "t:1:", "max_keys_per_role": "t:"}', '... and one with a longer prefix');
is(ask($session, 'SELECT prefix, max_ttl, max_keys_per_role, roles FROM lock_policies'), "t:|01:00:00|2|\nt:1:|00:01:00||{tenant}", 'lock_policies');
replayed(q{BEGIN; SELECT lock_drop_policy('t:1:'), lock_set_policy('t:', max_ttl => '2 hours')});
rules('00:01:00|2|{tenant}|{"roles": "t:1:", "max_ttl": "t:1:", "max_keys_per_role": "t:"}', 'an uncommitted policy has no effect');
replayed(q{ROLLBACK});
rules('00:01:00|2|{tenant}|{"roles": "t:1:", "max_ttl": "t:1:", "max_keys_per_role": "t:"}', '... nor one that is rolled back');
replayed(q{BEGIN; SELECT lock_drop_policy('t:1:'); PREPARE TRANSACTION 'drop'});
rules('00:01:00|2|{tenant}|{"roles": "t:1:", "max_ttl": "t:1:", "max_keys_per_role": "t:"}', '... nor one that is prepared');
replayed(q{COMMIT PREPARED 'drop'});
rules('01:00:00|2||{"max_ttl": "t:", "max_keys_per_role": "t:"}', '... until it is committed');
replayed('TRUNCATE app_lock_policy');
rules('1 day|||{}', 'TRUNCATE');
replayed(q{INSERT INTO app_lock_policy (prefix, max_ttl_us) VALUES ('t:', 60000000)});
rules('00:01:00|||{"max_ttl": "t:"}', 'INSERT');
is(sqlstate($standby, $_), '25006', "not on a standby: $_") for (q{SELECT lock_set_policy('t:')}, q{SELECT lock_drop_policy('t:')}, q{SELECT lock_drop_policy('no such policy')});

#
# The holders of a key
#
replayed(q{SELECT lock_set_policy('h:', history => true, min_hold => '1 day'), lock_set_policy('t:1:', max_ttl => '1 hour', max_keys_per_role => 1, roles => '{app}', history => true)});
replayed(q{SELECT lock_acquire('h:released', '1 hour', 'o', holder => 'Ann'), lock_acquire('h:expired', '1 ms', 'o', holder => 'Bob'), lock_acquire('h:live', '1 hour', 'o', holder => 'Cyd')});
my $held = q{SELECT h.key, a.holder, a.ended_at IS NULL, a.ended_by FROM lock_history h, lock_held_at(h.key, h.acquired_at) a WHERE h.key LIKE 'h:%' ORDER BY 1};
poll($session, q{SELECT NOT locked FROM lock_status('h:expired')});
is(ask($session, $held), "h:expired|Bob|f|expired\nh:live|Cyd|t|\nh:released|Ann|t|", 'lock_held_at on a standby knows an expiry');
is(ask($session, q{SELECT count(*) FROM lock_held_at('h:expired', clock_timestamp())}), '0', '... after the expiry there is no holder');
is(ask($session, q{SELECT ended_at IS NULL FROM lock_history WHERE key = 'h:expired'}), 't', '... which is not written in the history');
replayed(q{SELECT lock_release('h:released', 'o')});
is(ask($session, $held), "h:expired|Bob|f|expired\nh:live|Cyd|t|\nh:released|Ann|f|released", '... and a release');
is(ask($session, q{SELECT count(*) FROM lock_held_at('h:released', clock_timestamp())}), '0', '... after the release there is no holder');
is(ask($session, q{SELECT locked, closed_until > clock_timestamp() + interval '23 hours' FROM lock_status('h:released')}), 'f|t', 'lock_status shows until when a key is closed');

#
# A subscription
#
my $subscriber = PostgreSQL::Test::Cluster->new('policies_subscriber');
$subscriber->init;
$subscriber->append_conf('postgresql.conf', $conf);
$subscriber->start;
$subscriber->safe_psql('postgres', 'CREATE EXTENSION atomic_lock; CREATE ROLE other; CREATE ROLE tenant; CREATE ROLE app');
my $sub = session($subscriber, 'Subscriber');
# Both servers have granted the same key, as level user can, and recorded it with the same token.
ask($writer, q{CREATE TABLE orders (id int PRIMARY KEY); SELECT status FROM lock_acquire('h:both', '1 day', 'p')});
ask($sub, q{CREATE TABLE orders (id int PRIMARY KEY); SELECT lock_set_policy('h:', history => true); SELECT status FROM lock_acquire('h:both', '1 day', 's'); SELECT lock_drop_policy('h:')});
ask($sub, q{DELETE FROM app_lock_policy; UPDATE lock_history SET fencing_token = } . ask($writer, q{SELECT fencing_token FROM lock_history WHERE key = 'h:both'}));
ask($writer, 'CREATE PUBLICATION policies FOR ALL TABLES');
is(ask($sub, $look), '1 day|||{}', 'a server without policies, before it subscribes');
$subscriber->safe_psql('postgres', q{CREATE SUBSCRIPTION policies CONNECTION '} . $primary->connstr . q{ dbname=postgres' PUBLICATION policies});
$subscriber->wait_for_subscription_sync($primary, 'policies');
sub applied
{
	my ($sql, $answer, $name) = @_;

	ask($writer, $sql);
	$primary->wait_for_catchup('policies');
	is(ask($sub, $look), $answer, "$name is applied");
	return;
}
applied('SELECT 1', '01:00:00|1|{app}|{"roles": "t:1:", "history": "t:1:", "max_ttl": "t:1:", "max_keys_per_role": "t:1:"}', 'the first copy');
applied(q{SELECT lock_set_policy('t:1:', roles => '{tenant}')}, '00:01:00||{tenant}|{"roles": "t:1:", "max_ttl": "t:"}', 'a policy in place of another');
applied(q{SELECT lock_drop_policy('t:1:')}, '00:01:00|||{"max_ttl": "t:"}', 'the end of a policy');
applied(q{UPDATE app_lock_policy SET max_ttl_us = 1000000 WHERE prefix = 't:'}, '00:00:01|||{"max_ttl": "t:"}', 'an UPDATE');
applied(q{BEGIN; TRUNCATE app_lock_policy; SELECT lock_set_policy('t:', max_keys_per_role => 3); COMMIT}, '1 day|3||{"max_keys_per_role": "t:"}', 'TRUNCATE, and a new policy');

# Locks, tickets and history stay on their server; other tables are replicated.
my $own = q{SELECT array_agg(h.key ORDER BY h.key) FROM lock_held('s') h; SELECT count(*), count(owner_hash) FROM app_lock; SELECT ticket, role::regrole FROM app_lock_queue; SELECT holder, ended_at IS NULL FROM lock_history};
ask($sub, q{SET application_name = 'own'; SELECT status FROM lock_acquire('l:held', '1 day', 's'); SELECT status FROM lock_acquire('l:line', '1 day', 's'); SELECT status FROM lock_enqueue('l:line', 't')});
my $before = ask($sub, $own);
ask($writer, q{SELECT lock_set_policy('l:', history => true); SELECT status FROM lock_acquire('l:held', '1 day', 'p'); SELECT status FROM lock_acquire('l:line', '1 day', 'p'); SELECT status FROM lock_enqueue('l:line', 'q')});
ask($writer, $_) for q{INSERT INTO orders VALUES (1)}, q{SELECT lock_extend('l:held', 'p', '12 h')}, q{SELECT status FROM lock_transfer('l:held', 'p', 'q')}, q{SELECT lock_release('l:held', 'q'), lock_release('l:line', 'p'), lock_release('h:both', 'p'), lock_leave('l:line', 'q')}, q{DELETE FROM app_lock WHERE key LIKE 'l:%'}, q{DELETE FROM app_lock_queue}, q{DELETE FROM lock_history WHERE key = 'h:both'}, q{INSERT INTO orders VALUES (2)};
$primary->wait_for_catchup('policies');
is(ask($sub, 'SELECT count(*) FROM orders'), '2', 'rows of other tables are replicated');
is(ask($sub, $own), $before, '... and no locks, tickets or history');
like($before, qr/^\{h:both,l:held,l:line\}\n/, '... the subscriber has its own locks');
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION policies');
end($sub);
$subscriber->stop;

#
# After a promotion
#
replayed(q{SELECT lock_set_policy('h:', history => true), lock_set_policy('t:', max_ttl => '1 hour', max_keys_per_role => 1, roles => '{app}', history => true), lock_set_policy('t:1:', roles => '{tenant}')});
end($open, $writer);
$primary->stop;
$standby->promote;
poll($session, 'SELECT NOT pg_is_in_recovery()');
is(told($app, q{SELECT lock_acquire('t:1:k', '1 min')}), '42501', 'after the promotion roles are checked');
is(told($app, q{SELECT lock_acquire('t:k', '2 hours')}), '22023', '... a ttl is limited');
is(told($app, q{SELECT status FROM lock_acquire('t:k', '1 hour')}), 'acquired', '... and an allowed call succeeds');
is(told($app, q{SELECT status FROM lock_acquire('t:l', '1 min')}), '53400', '... up to the quota');
is(ask($session, q{SELECT lock_release('h:live', 'o'); SELECT status FROM lock_acquire('h:expired', '1 hour', 'p', holder => 'Dan')}), "t\nacquired", 'a grant from before the promotion is released');
is(ask($session, q{SELECT key, holder, ended_by FROM lock_history WHERE key ~ '^h:(live|exp)' ORDER BY key, fencing_token}), "h:expired|Bob|expired\nh:expired|Dan|\nh:live|Cyd|released", '... and the history continues');
is(ask($session, q{SELECT lock_drop_policy('t:')}), 't', 'a policy can be dropped');
is(told($app, q{SELECT status FROM lock_acquire('t:l', '2 hours')}), 'acquired', '... which takes effect at once');

end($session, $app);
$standby->stop;
log_is_clean($_) for ($primary, $standby, $subscriber);
done_testing();
