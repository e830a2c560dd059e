# Policies with ten thousand prefixes.
#
# SEED in the environment chooses other policies.
#
# Properties: for any key, and each part of a policy, the policy with the longest prefix that
# sets this part is found, as a query over lock_policies finds it, however the prefixes
# contain each other, and while they change; keys and prefixes are compared as bytes; the
# memory that a session needs for policies is at most a fixed number of bytes for each, is
# given back when they are dropped, and does not grow when they are read again.
#
# Turns red when: a link skips a shorter prefix, or leads to one that the policy does not
# begin with; the search stops at the nearest prefix, which does not set the part; the
# order of prefixes is that of a collation; the memory of a former read is kept.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $number = 10_000;
my $bytes = 400;    # of memory, for each short prefix
my $seed = $ENV{SEED} // 1706;
note "SEED=$seed";

my $node = PostgreSQL::Test::Cluster->new('many_policies');
$node->init;
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'atomic_lock'\nautovacuum = off\nfsync = off\natomic_lock.sweep_interval = 0\nlog_statement = none\n");
$node->start;
my ($watch, $session) = map { session($node, $_) } ('Watch', 'Session');

# The policies of a key by a query of lock_policies, part by part.  A prefix is
# compared as bytes, also where it ends within a character.
ask($watch, q{
CREATE EXTENSION atomic_lock;
CREATE FUNCTION oracle(key text) RETURNS jsonb STABLE LANGUAGE sql AS $$
	SELECT coalesce(jsonb_object_agg(part, prefix), '{}') FROM (
		SELECT DISTINCT ON (part) part, prefix FROM lock_policies p, LATERAL (VALUES
			('default_ttl', p.default_ttl IS NULL), ('max_ttl', p.max_ttl IS NULL), ('max_wait', p.max_wait IS NULL), ('max_lifetime', p.max_lifetime IS NULL),
			('lock_delay', p.lock_delay IS NULL), ('min_hold', p.min_hold IS NULL), ('max_holders', p.max_holders IS NULL),
			('max_keys_per_role', p.max_keys_per_role IS NULL),
			('roles', p.roles IS NULL), ('history', p.history IS NULL), ('notify', p.notify IS NULL)) v (part, missing)
		WHERE NOT missing AND substr(convert_to($1, 'UTF8'), 1, octet_length(prefix)) = convert_to(prefix, 'UTF8')
		ORDER BY part, octet_length(prefix) DESC) s
$$;
-- Random texts over few letters, so that many contain others; some have letters of
-- several bytes, and some whose order depends on the collation
CREATE FUNCTION letters(longest int) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg((ARRAY['a', 'b', 'B', ':', '-', ' ', 'ä', 'é', '𝄞', E'\x7f'])[1 + floor(random() ^ 2 * 10)::int], ''), '')
	FROM generate_series(1, floor(random() * (longest + 1))::int)
$$;
CREATE FUNCTION maybe(value anyelement) RETURNS anyelement LANGUAGE sql AS $$ SELECT CASE WHEN random() < 0.3 THEN value END $$;
CREATE FUNCTION set_random(prefix text) RETURNS void LANGUAGE sql AS $$
	SELECT lock_set_policy(prefix, maybe(interval '1 s'), maybe(interval '1 min'), maybe(interval '1 h'), maybe(interval '0'), maybe(interval '1 ms'), maybe(interval '2 s'),
		maybe(3), maybe(4), maybe(ARRAY[current_user::regrole]), maybe(true), maybe(false))
$$});
ask($watch, 'SELECT setseed(' . $seed / 2**31 . ')');

# Looks up policies of keys in both ways; returns the number of differences
sub wrong
{
	my ($keys) = @_;
	ask($watch, "DROP TABLE IF EXISTS keys; CREATE TABLE keys AS SELECT DISTINCT key FROM ($keys) k (key) WHERE key <> ''");
	return ask($session, q{SELECT count(*), max(format('%s: %s, not %s', quote_literal(key), prefixes, oracle)) FROM (SELECT key, (lock_policy(key)).prefixes, oracle(key) FROM keys OFFSET 0) s WHERE prefixes <> oracle});
}
sub contexts
{
	return ask($session, q{SELECT count(*), coalesce(sum(total_bytes), 0) FROM pg_backend_memory_contexts WHERE name = 'atomic_lock policies'});
}

#
# A few hundred policies that contain each other, while they change
#
is(contexts(), '0|0', 'a session on a server without policies');
foreach my $round (1 .. 8)
{
	ask($watch, q{SELECT count(set_random(letters(8))) FROM generate_series(1, 60)});
	ask($watch, q{SELECT count(set_random(repeat('a', n))) FROM generate_series(0, 40) n}) if $round == 3;
	ask($watch, q{SELECT count(lock_drop_policy(prefix)) FROM (SELECT prefix FROM lock_policies WHERE random() < 0.3 OFFSET 0) p}) if $round % 2;
	is(wrong(q{SELECT letters(12) FROM generate_series(1, 250) UNION ALL SELECT prefix FROM lock_policies WHERE random() < 0.2
			UNION ALL SELECT prefix || letters(2) FROM lock_policies WHERE random() < 0.2 UNION ALL SELECT left(prefix, -1) FROM lock_policies WHERE random() < 0.2}),
		'0|', 'round ' . $round . ': ' . ask($watch, 'SELECT count(*) FROM lock_policies') . ' policies');
}

# Each prefix of the longest key has a policy.
ask($watch, q{TRUNCATE app_lock_policy; SELECT count(set_random(repeat('x', n))) FROM generate_series(0, 1024) n});
is(wrong(q{SELECT repeat('x', n) FROM generate_series(1, 1024, 31) n UNION ALL SELECT repeat('x', 1024) UNION ALL SELECT repeat('x', n) || 'y' FROM generate_series(0, 1000, 100) n}), '0|', 'a policy for a prefix of each length');

#
# Ten thousand policies: tenants, some with parts of their own, and policies for all tenants
#
ask($watch, qq{TRUNCATE app_lock_policy;
	SELECT set_random(''), set_random('tenant-');
	SELECT count(set_random('tenant-' || n || CASE WHEN n % 7 = 0 THEN ':jobs:' WHEN n % 5 = 0 THEN '' ELSE ':' END)) FROM generate_series(1, $number - 2) n});
is(ask($watch, 'SELECT count(*) FROM lock_policies'), $number, "$number prefixes");
is(wrong(qq{SELECT 'tenant-' || floor(random() * $number * 1.2)::int || (ARRAY['', ':', ':k', ':jobs:', ':jobs:k', '0', '-'])[1 + floor(random() * 7)::int] FROM generate_series(1, 100)
	UNION ALL VALUES ('a'), ('z'), ('tenant'), ('tenant-'), ('tenant-:')}), '0|', '... random keys have the right policies');

# Many more keys in another way: the number in the key names its policy.
is(ask($session, qq{SELECT count(*) FROM generate_series(1, $number - 2) n
		LEFT JOIN lock_policies p ON p.prefix = 'tenant-' || n || ':'
	WHERE n % 7 <> 0 AND n % 5 <> 0 AND p.max_ttl IS NOT NULL AND ((lock_policy('tenant-' || n || ':k')).prefixes ->> 'max_ttl') IS DISTINCT FROM p.prefix}), '0', '... and each tenant has its own policy');

# Memory
sub is_within
{
	my ($name) = @_;
	my ($count, $size) = split /\|/, contexts();

	is($count, 1, "$name: one context");
	cmp_ok($size, '<', $number * $bytes, "... of less than $bytes bytes for each") && note(sprintf 'bytes for each: %.0f', $size / $number);
	return $size;
}
is_within("$number prefixes");
ask($watch, q{DELETE FROM app_lock_policy_role; UPDATE app_lock_policy SET has_roles = NULL});
ask($session, q{SELECT lock_policy('k')});
my $size = is_within('... without roles');
foreach my $n (1 .. 50)
{
	ask($watch, "SELECT lock_set_policy('tenant-1:', max_ttl => '$n min')");
	ask($session, q{SELECT lock_policy('k')});
}
is(contexts(), "1|$size", '... the size stays the same, however often they are read');
is(ask($session, q{SELECT max_ttl FROM lock_policy('tenant-1:k')}), '00:50:00', '... and the last change is known');
ask($watch, 'TRUNCATE app_lock_policy');
ask($session, q{SELECT lock_policy('k')});
cmp_ok((split /\|/, contexts())[1], '<=', 8192, '... and the memory is given back when they are dropped');

# More policies than are allowed
ask($watch, q{INSERT INTO app_lock_policy (prefix) SELECT 'too many ' || n FROM generate_series(1, 100001) n});
like(reply($session, q{SELECT lock_holder('k')}), qr/^ERROR: .*too many policies/, 'more than 100,000 policies are an error');
ask($watch, q{SELECT lock_drop_policy('too many 1')});
is(reply($session, q{SELECT lock_holder('k') IS NULL}), 't', '... until one is dropped');

end($watch, $session);
$node->stop;
log_is_clean($node);
done_testing();
