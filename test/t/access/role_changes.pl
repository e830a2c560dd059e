# Policies that reserve keys for roles, while the roles change; and policies of two
# databases, which are independent.
#
# Properties: each call checks whether the role is admitted, in sessions that are connected
# and transactions that are open: a grant or a revocation of a role, without
# and with INHERIT, counts at once; a renamed role stays the same role; when a
# role is dropped, its policies admit no role, DROP ROLE succeeds, and a new
# role of that name is another one; DROP OWNED and REASSIGN OWNED leave policies
# alone, as does the end of the role that set them; a former grant stays valid, and its
# owner may not change it, while an administrator may end it; a woken waiter
# is checked again; policies, quotas and their counts belong to one database.
#
# Turns red when: a session remembers who is admitted; policies store the names of roles, or
# make roles depend on the extension; a policy whose roles do not exist is ignored; quotas
# are claimed in all databases at once.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('role_changes');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nautovacuum = off\nfsync = off\natomic_lock.sweep_interval = 0\n");
$node->start;
$node->safe_psql('postgres', q{
CREATE EXTENSION atomic_lock;
CREATE ROLE team; CREATE ROLE lead; CREATE ROLE boss LOGIN;
CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN; CREATE ROLE una LOGIN NOINHERIT;
GRANT team TO ann; GRANT lead TO team; GRANT team TO una;
SELECT lock_grant_access(r, 'user') FROM unnest('{ann,bob,una}'::regrole[]) r;
SELECT lock_grant_access('boss', 'admin'), lock_grant_access('boss', 'user');
CREATE DATABASE two;
});
my ($super, $boss, $ann, $bob, $una) = map { session($node, $_) } ('Super', 'Boss', 'Ann', 'Bob', 'Una');
ask($_->[0], "SET SESSION AUTHORIZATION $_->[1]; SET atomic_lock.owner = '$_->[1]'") for ([ $boss, 'boss' ], [ $ann, 'ann' ], [ $bob, 'bob' ], [ $una, 'una' ]);
ask($super, q{SET atomic_lock.owner = 'super'});

# The answers to each of the sessions when they acquire a key of the team for a moment
my $try = q{SELECT status FROM lock_acquire('t:' || current_user, '1 ms')};
sub heard
{
	return join ' ', map { told($_, $try) =~ s/reacquired/acquired/r } ($ann, $bob, $una, $super);
}
sub hears
{
	my ($answer, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(heard(), $answer, $name);
	return;
}

hears('acquired acquired acquired acquired', 'without a policy');
ask($boss, q{SELECT lock_set_policy('t:', roles => '{team}')});
hears('acquired 42501 42501 acquired', 'a policy for a team admits roles with its rights, and superusers');
is(told($una, "BEGIN; SET LOCAL ROLE team; $try; COMMIT"), '42501', 'a member without INHERIT may take the role, which needs level user')
  and ask($una, 'ROLLBACK');
ask($super, q{SELECT lock_grant_access('team', 'user')});
is(ask($una, "BEGIN; SET LOCAL ROLE team; $try; COMMIT"), 'acquired', '... and acquires when the role has it');

#
# Membership
#
ask($bob, 'BEGIN');
ask($super, 'GRANT team TO bob');
is(told($bob, $try), 'acquired', 'a role that is granted counts at once, within a transaction');
ask($super, 'REVOKE team FROM bob');
is(told($bob, $try), '42501', '... as does a revocation');
ask($bob, 'ROLLBACK');
ask($super, 'GRANT lead TO bob');
hears('acquired 42501 42501 acquired', 'a role that the team is a member of does not count');
ask($boss, q{SELECT lock_set_policy('t:', roles => '{lead}')});
hears('acquired acquired 42501 acquired', '... if that role is admitted, all of its members are');
ask($boss, q{SELECT lock_set_policy('t:', roles => '{team}')});
ask($super, 'REVOKE lead FROM bob; BEGIN; GRANT team TO bob');
is(told($bob, $try), '42501', 'a grant that is not committed does not count');
ask($super, 'ROLLBACK');
hears('acquired 42501 42501 acquired', '... nor one that is rolled back');

# As PostgreSQL does it in functions
ask($super, q{CREATE FUNCTION as_definer(k text) RETURNS text SECURITY DEFINER LANGUAGE sql AS $$ SELECT status FROM lock_try_acquire(k, '1 hour', 'def') $$;
	ALTER FUNCTION as_definer OWNER TO ann});
is(told($bob, q{SELECT as_definer('t:definer')}), 'acquired', 'SECURITY DEFINER: the owner of the function counts');
ask($super, q{ALTER FUNCTION as_definer OWNER TO bob});
is(told($ann, q{SELECT as_definer('t:definer')}), '42501', '... and not its caller');

#
# Names
#
ask($super, 'ALTER ROLE team RENAME TO crew');
hears('acquired 42501 42501 acquired', 'a role that is renamed is the same one');
is(ask($super, q{SELECT roles FROM lock_policies; SELECT roles FROM lock_policy('t:k')}), "{crew}\n{crew}", '... under its new name');
ask($super, 'CREATE ROLE team; GRANT team TO bob');
hears('acquired 42501 42501 acquired', '... a new role of its former name is not admitted');

#
# Policies and leases after DROP ROLE
#
is(told($ann, q{SELECT status FROM lock_acquire('t:held', '1 hour')}), 'acquired', 'a lease');
is(told($ann, q{SELECT status FROM lock_acquire('t:read', '1 hour', mode => 'shared')}), 'acquired', '... and a shared one');
is(told($super, 'DROP OWNED BY crew; REASSIGN OWNED BY crew TO bob'), '', 'DROP OWNED and REASSIGN OWNED');
is(ask($super, q{SELECT roles FROM lock_policies}), '{crew}', '... leave a policy alone');
hears('acquired 42501 42501 acquired', '... and admit the same roles');
my $number = ask($super, q{SELECT 'crew'::regrole::oid});
is(told($super, 'BEGIN; DROP ROLE crew'), '', 'DROP ROLE succeeds');
hears('acquired 42501 42501 acquired', '... has no effect before its commit');
ask($super, 'ROLLBACK');
hears('acquired 42501 42501 acquired', '... or after its rollback');

# A woken waiter is checked again.
ask($super, q{GRANT crew TO bob; SELECT lock_acquire('t:wait', '1 hour')});
queue_up($super, $bob, q{SELECT lock_acquire('t:wait', wait => '5 min')});
ask($super, q{REVOKE crew FROM bob; SELECT lock_release('t:wait')});
like(answer($bob), qr/^ERROR:  42501: permission denied for lock "t:wait"/, 'a woken waiter whose role is no longer admitted is refused');
is(ask($super, q{SELECT count(*) FROM lock_waiters; SELECT locked FROM lock_status('t:wait')}), "0\nf", '... and leaves the queue and the key');

is(told($super, 'DROP ROLE crew'), '', 'DROP ROLE');
hears('42501 42501 42501 acquired', '... the policy admits no role any more');
is(ask($super, q{SELECT roles FROM lock_policies; SELECT roles FROM lock_policy('t:k')}), "{$number}\n{$number}", '... and shows the number of the role');
ask($super, 'CREATE ROLE crew; GRANT crew TO ann, bob');
hears('42501 42501 42501 acquired', 'a new role of that name is another one');

# Grants from before the policy
is(told($ann, $_), '42501', "its owner may not: $_") for (q{SELECT lock_release('t:held')}, q{SELECT lock_extend('t:held')}, q{SELECT lock_try_release('t:held')}, q{SELECT lock_transfer('t:held', 'ann', 'bob')},
	q{SELECT lock_convert('t:read', 'ann')});
is(ask($ann, q{SELECT lock_release_all(); SELECT string_agg(key || ' ' || status, ', ') FROM lock_heartbeat()}), "0\nt:held denied, t:read denied", '... nor by calls for all its keys');
is(ask($ann, q{SELECT lock_is_held('t:held', 'ann'), lock_assert('t:held', 'ann') IS NOT NULL, (SELECT count(*) FROM lock_held() WHERE key = 't:held')}), 't|t|1', '... it may look');
is(ask($boss, q{SELECT force_release('t:held', 'test')}), 't', '... an administrator may end it');
is(told($boss, q{SELECT lock_steal('t:read', 'boss', 'test')}), '42501', '... but not steal it');
ask($boss, q{SELECT lock_set_policy('t:', roles => '{crew}')});
hears('acquired acquired 42501 acquired', 'a new policy admits a role');
is(ask($ann, q{SELECT lock_release('t:read')}), 't', '... which may release its former grant');

# The role that set a policy does not matter.
ask($super, q{SELECT lock_revoke_access('boss', 'admin'), lock_revoke_access('boss', 'user')});
end($boss);
is(told($super, 'DROP ROLE boss'), '', 'the role that set the policy can be dropped');
hears('acquired acquired 42501 acquired', '... and the policy stays');
is(sqlstate($node, q{SELECT lock_set_policy('u:', roles => '{boss}')}), '42704', '... a policy for the dropped role is refused');
is(sqlstate($node, "SELECT lock_set_policy('u:', roles => ARRAY[$number]::regrole[])"), '42704', 'a policy for the number of no role is refused');

#
# Another database
#
my ($two, $ann2) = map { session($node, $_, 'two') } ('Two', 'Ann2');
ask($two, q{CREATE EXTENSION atomic_lock; SELECT lock_grant_access('ann', 'user')});
ask($ann2, q{SET SESSION AUTHORIZATION ann; SET atomic_lock.owner = 'ann'});
is(ask($ann2, $try), 'acquired', 'a session of another database');
ask($super, q{SELECT lock_set_policy('', max_ttl => '1 min', max_keys_per_role => 1, roles => '{team}', history => true, max_holders => 1)});
is(told($ann, q{SELECT lock_acquire('k', '1 min')}), '42501', 'a policy for all keys');
is(ask($ann2, q{SELECT (lock_acquire(k, '1 hour', mode => 'shared')).status FROM unnest('{k,l,t:k}'::text[]) k}), "acquired\nacquired\nacquired", '... applies to one database');
is(ask($two, q{SELECT count(*) FROM lock_policies; SELECT count(*) FROM lock_history; SELECT prefixes FROM lock_policy('k')}), "0\n0\n{}", '... as do its history and its prefixes');

# The same quota in both databases, also of a transaction: the count, and the claim
ask($_, q{TRUNCATE app_lock; SELECT lock_drop_policy(''), lock_drop_policy('t:'), lock_set_policy('q:', max_keys_per_role => 1)}) for ($super, $two);
ask($ann, q{BEGIN; SELECT lock_acquire('q:1', lifetime => 'transaction')});
is(told($ann2, q{SELECT status FROM lock_acquire('q:2', '1 hour')}), 'acquired', 'a quota counts keys of its own database');
is(told($ann2, q{SELECT status FROM lock_acquire('q:1', '1 hour')}), '53400', '... all of them');
is(told($ann, q{SELECT lock_acquire('q:2', '1 hour')}), '53400', '... in both databases');
ask($ann, 'ROLLBACK');

end($super, $ann, $bob, $una, $two, $ann2);
$node->stop;
log_is_clean($node);
done_testing();
