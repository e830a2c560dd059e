# Random SQL, by roles of every level and by one without a level.
#
# Statements are random combinations of every function and view of the extension,
# arguments of all kinds, good and bad, and all ways of calling
# a function in SQL; several sessions send them at the same time, with transactions,
# savepoints, cursors and prepared transactions around them, while a superuser
# vacuums, reindexes, cancels and terminates.  SEED in the environment chooses
# the statements of a run, which prints its seed; AL_RANDOM_SECONDS is the length of
# the run.
#
# Policies come and go meanwhile, with quotas, roles and history, as do tickets.
#
# Properties: no crash and no failed assertion; only errors that the
# documentation of the function, or of the statement around it, announces,
# and never an internal one; no role can do more than its level includes, read or
# write the tables of the extension, or see the owner that another role has presented, not
# even in the server log.  Afterwards no waiter and no claim is left, no key
# has two holdings that exclude each other, or had them at any time in lock_history; every
# key can be acquired when there are no policies, the counters add up, and tables and indexes
# are correct.
#
# Turns red when: an argument is used before it is checked; a path that only an
# odd caller takes (a cursor, a subtransaction, a parallel plan, a read-only
# transaction) loses a claim, a slot of the queue, or a count; a message shows an
# owner; a function is callable by PUBLIC.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use IPC::Run ();
use List::Util qw(max min);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $seed = $ENV{SEED} // 1706;
my $seconds = $ENV{AL_RANDOM_SECONDS} || 0;
my $per_file = 150;

my $node = PostgreSQL::Test::Cluster->new('random_sql');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
autovacuum = off
fsync = off
max_connections = 40
max_prepared_transactions = 20
max_locks_per_transaction = 128
deadlock_timeout = 50ms
log_statement = none
log_min_messages = log
log_min_error_statement = panic
log_error_verbosity = terse
atomic_lock.max_wait = '400ms'
atomic_lock.max_lifetime = '2d'
atomic_lock.released_retention = '300ms'
atomic_lock.sweep_interval = '200ms'
atomic_lock.sweep_batch = 7
});
$node->start;

#
# Roles, and their tables, with names and keys that are as bad as possible.
# Level: the functions that a role may call.
#
my %level = (
	al_user => { user => 1 },
	al_user2 => { user => 1 },
	al_monitor => { monitor => 1 },
	al_super => { supervisor => 1 },
	al_admin => { admin => 1 },
	al_all => { user => 1, monitor => 1, supervisor => 1, admin => 1 },
	al_none => {});
my @roles = sort keys %level;
my $bad = q{"na""sty {id} 'table'"};
my @tables = ('t', $bad, 'part', 'part_1', 'parent', 'child', 'composite', 'odd_key', 'rls', 'no_key', 'temp_like');

$node->safe_psql('postgres', qq{
	CREATE SCHEMA locks;
	CREATE EXTENSION atomic_lock SCHEMA locks;
	CREATE ROLE al_guest;
	CREATE FOREIGN DATA WRAPPER none;
	CREATE SERVER nowhere FOREIGN DATA WRAPPER none;
	CREATE TABLE keys_seen (key text);});
foreach my $role (@roles)
{
	my $levels = join '', map { "SELECT locks.lock_grant_access('$role', '$_');" } sort keys %{ $level{$role} };

	$node->safe_psql('postgres', <<"END");
		CREATE ROLE $role LOGIN;
		GRANT CREATE, TEMP ON DATABASE postgres TO $role;
		GRANT USAGE ON SCHEMA locks TO $role;
		GRANT USAGE ON FOREIGN SERVER nowhere TO $role;
		ALTER ROLE $role SET search_path = "\$user", locks, public;
		ALTER ROLE $role SET statement_timeout = '1s';
		ALTER ROLE $role SET lock_timeout = '60ms';
		ALTER ROLE $role SET idle_in_transaction_session_timeout = '20s';
		$levels
		SET SESSION AUTHORIZATION $role;
		CREATE SCHEMA $role;
		SET search_path = $role, pg_catalog;
		CREATE TABLE t (id int PRIMARY KEY, a text, b numeric, c timestamptz DEFAULT now(), g int GENERATED ALWAYS AS (id + 1) STORED);
		INSERT INTO t SELECT n, 'a' || n, n FROM generate_series(-3, 30) n;
		CREATE TABLE $bad (id int PRIMARY KEY, "{id}" text, "{{" text);
		INSERT INTO $bad VALUES (1, 'x', 'y'), (2, NULL, NULL);
		CREATE TABLE part (id int, region text, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
		CREATE TABLE part_1 PARTITION OF part FOR VALUES IN ('a');
		CREATE TABLE part_2 PARTITION OF part DEFAULT;
		INSERT INTO part VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c:d', 0);
		CREATE TABLE parent (id int PRIMARY KEY, v int);
		CREATE TABLE child (w int) INHERITS (parent);
		INSERT INTO child VALUES (7, 7, 7);
		CREATE TABLE composite (a text COLLATE "C", b date, c bytea, d int[], PRIMARY KEY (a, b, c, d));
		INSERT INTO composite VALUES ('x:y', 'infinity', '\\x00ff', '{1,NULL}'), ('', '2024-02-29', '', '{}');
		CREATE DOMAIN positive AS numeric CHECK (VALUE > 0);
		CREATE TABLE odd_key (id positive PRIMARY KEY, v text);
		INSERT INTO odd_key VALUES (1.0, 'one'), (1e30, 'many');
		CREATE TABLE rls (id int PRIMARY KEY, v int);
		INSERT INTO rls SELECT n, n FROM generate_series(1, 9) n;
		ALTER TABLE rls ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
		CREATE POLICY odd ON rls USING (v % 2 = 1);
		CREATE TABLE no_key (v int);
		CREATE TABLE temp_like (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int);
		CREATE TABLE log (at timestamptz DEFAULT clock_timestamp(), what text);
		CREATE VIEW v AS SELECT * FROM t;
		CREATE MATERIALIZED VIEW mv AS SELECT 1 AS id;
		CREATE SEQUENCE s;
		CREATE FOREIGN TABLE f (id int) SERVER nowhere;
		CREATE TYPE pair AS (id int, v int);
		CREATE FUNCTION tried(sql text) RETURNS text LANGUAGE plpgsql AS \$f\$
			DECLARE answer text;
			BEGIN
				EXECUTE sql INTO answer;
				RETURN answer;
			EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE;
			END\$f\$;
		CREATE FUNCTION on_write() RETURNS trigger LANGUAGE plpgsql AS \$f\$
			BEGIN
				PERFORM lock_try_acquire('by trigger ' || TG_OP, '100 ms');
				RETURN coalesce(NEW, OLD);
			END\$f\$ SET search_path = locks, pg_catalog;
		CREATE TRIGGER write BEFORE INSERT OR UPDATE OR DELETE ON parent FOR EACH ROW EXECUTE FUNCTION on_write();
END
}

#
# Chance
#
sub chance
{
	my ($percent) = @_;
	return rand(100) < $percent;
}

sub one_of
{
	return $_[ int rand @_ ];
}

# An element, or the result of an element that is code
sub one_made
{
	my $made = one_of(@_);
	return ref $made ? $made->() : $made;
}

#
# Arguments: mostly good ones, so that many calls succeed
#
my $role;		# the role that the statements are for
# Two keys whose hash equals that of k1 in PostgreSQL, with the seed that was once used for
# keys; see test/collisions.py
my @same_hash = ('X/M<P*VsiVTS', 'KSLdny##_IZY');
my @keys = map { "'$_'" } ('k1', 'k2', 'k3', 'k4', @same_hash);

sub key
{
	return one_of(@keys) if chance(70);
	return one_made(
		'NULL', q{''}, q{repeat('x', 1024)}, q{repeat('x', 1025)}, q{repeat('é', 512)}, q{repeat('é', 513)},
		q{E'a\n\tb\x01'}, q{'😀'}, q{'a:b\c'}, q{'t:1'}, q{'order:{id}'}, q{lock_key('k', '1')}, q{lock_key(NULL)},
		q{chr(1114111)}, q{' k1'}, q{'k1'::name}, q{'k1'::varchar(1)}, q{random()::text},
		q{(SELECT min(key) FROM lock_status('k1'))}, q{E'\xff'}, q{E'k\xc3'}, q{repeat('k', 10000000)}, q{pg_backend_pid()::text},
		sub { "'k" . int(rand(500)) . "'" });
}

# Only sessions of its role know an owner with "secret" in its name.
sub owner
{
	return "'secret-of-$role-" . int(rand(3)) . q{'} if chance(60);
	# The third has the same hash as the first, as some keys above.
	return one_of(q{'o1'}, q{'o2'}, q{'Hxu6XF+jjnmn'}) if chance(50);
	return one_of('NULL', 'NULL', q{''}, q{repeat('o', 255)}, q{repeat('o', 256)}, q{E'\x07'}, 'gen_random_uuid()::text', q{repeat('ö', 127)}, q{current_user});
}

sub ttl
{
	return one_of(q{'1 min'}, q{'20 ms'}, q{'100 ms'}, q{'1 hour'}, 'NULL') if chance(75);
	return one_of(
		q{'0'}, q{'1 ms'}, q{'-1 s'}, q{'0.4 ms'}, q{'1 month'}, q{'1 day'}, q{'24:00:00'}, q{'24:00:00.001'}, q{'2 days -24 h'}, q{'1 year -12 months 5 s'},
		q{'infinity'}, q{'-infinity'}, q{'178000000 years'}, q{'-178000000 years'}, q{'2562047788 hours'}, q{make_interval(days => 2147483647)},
		q{make_interval(months => -2147483648)}, q{'1 microsecond'}, q{justify_interval('30 days')}, q{'nonsense'}, q{clock_timestamp() - 'epoch'});
}

sub wait_for
{
	return q{'0'} if chance(40);
	return one_of(q{'5 ms'}, q{'30 ms'}, q{'100 ms'}, q{'400 ms'}) if chance(75);
	return one_of('NULL', q{'-1 ms'}, q{'401 ms'}, q{'1 year'}, q{'infinity'}, q{'1 month -30 days'}, q{'0.001 ms'}, q{'2562047788 hours'});
}

sub mode     { return chance(85) ? one_of(q{'exclusive'}, q{'shared'}) : one_of('NULL', q{''}, q{'SHARED'}, q{'shared '}, q{repeat('s', 100000)}) }
sub lifetime { return chance(85) ? one_of(q{'lease'}, q{'session'}, q{'transaction'}) : one_of('NULL', q{''}, q{'Lease'}, q{E'\x01'}) }

sub max_holders
{
	return one_of('1', '2', '3', 'NULL') if chance(80);
	return one_of('0', '-1', '100', '101', '2147483647', '-2147483648', '2147483648', q{'2'}, q{'x'}, q{'1e1'}, '1.5', '2::smallint', '3::bigint', q{(SELECT holders FROM lock_status('k1'))}, q{(random() * 3)::int});
}

sub holder
{
	return one_of(q{'Ann'}, 'NULL', 'NULL', q{''}, q{repeat('h', 255)}, q{repeat('h', 256)}, q{repeat('é', 64)}, q{E'a\r\nERROR:  b\x1b[1m'}, q{E'\xe2\x82'});
}

sub meta
{
	return one_of('NULL', 'NULL', q{'{}'}, q{'null'}, q{'[1, [2, {"a": null}]]'}, q{jsonb_build_object('x', repeat('y', 7900))}, q{jsonb_build_object('x', repeat('y', 9000))},
		q{(repeat('[', 500) || repeat(']', 500))::jsonb}, q{(repeat('[', 100000) || repeat(']', 100000))::jsonb}, q{to_jsonb(1e1000)}, q{'nonsense'}, q{'{"a": "\u0000"}'});
}

sub keys_array
{
	return 'ARRAY[' . join(', ', map { one_of(@keys) } 1 .. 1 + int rand 4) . ']' if chance(65);
	return one_of(
		'NULL', q{'{}'}, q{ARRAY[NULL]::text[]}, q{ARRAY['k1', NULL]}, q{ARRAY[['k1', 'k2'], ['k3', 'k4']]}, q{'[5:6]={k1,k2}'}, q{ARRAY['k1', '']}, q{array_fill('k1'::text, ARRAY[1000])},
		q{(SELECT array_agg('many-' || n) FROM generate_series(1, 40) n)}, q{(SELECT array_agg('most-' || n) FROM generate_series(1, 1000) n)},
		q{(SELECT array_agg('many-' || n) FROM generate_series(1, 1001) n)}, q{(SELECT array_agg('many-' || n) FROM generate_series(1, 10000) n)}, q{'{k1,"k2"}'}, q{ARRAY['k1']::varchar[]}, q['{k1']);
}

sub path      { return one_of(q{'k1/a'}, q{'k1/a/b'}, q{'k1/'}, q{'k1/a/'}, q{'k2/x:y'}) if chance(80); return one_of(key(), q{'/'}, q{'a//b'}, q{repeat('x/', 32)}, q{repeat('x/', 33)}, q{'a\/b'}) }
sub separator { return chance(80) ? q{'/'} : one_of('NULL', q{''}, q{':'}, q{'\'}, q{'k'}, q{'éé'}, q{E'\xc3'}, q{repeat('s', 9)}) }

# Sometimes one mode for each key
sub modes
{
	return 'NULL' if chance(50);
	return 'ARRAY[' . join(', ', map { one_of(q{'exclusive'}, q{'shared'}) } 1 .. 1 + int rand 4) . ']' if chance(80);
	return one_of(q{'{}'}, q{'{shared,NULL}'}, q{'{{shared},{shared}}'}, q{'{Shared}'}, q{'[5:6]={shared,exclusive}'}, q{array_fill('shared'::text, ARRAY[1000])}, q{ARRAY[E'\xff']}, q{ARRAY[repeat('s', 100000)]});
}

sub relation
{
	return q{'} . one_of(@tables) =~ s/'/''/gr . q{'} if chance(65);
	return one_of('NULL', q{'v'}, q{'mv'}, q{'s'}, q{'f'}, q{'pair'}, q{'t_pkey'}, q{'pg_class'}, q{'app_lock'}, q{'lock_audit'}, q{'lock_waiters'}, '0', '4294967295', '1', q{'nothing'},
		q{'al_user.t'}, q{'pg_toast.pg_toast_1255'}, q{'temp_one'}, q{'log'});
}

sub template
{
	return one_of(q{'t:{id}'}, q{'t:{id}'}, q{'k1'}, q{'{id}'}, q{'v:{v}'}, q{'{a}:{b}'}, 'NULL', q{''}, q['{'], q['}'], q['{{'], q{'{}'}, q{'{none}'}, q['{id'], q['{id}}'], q{'{"{id}"}'}, q{'{g}'},
		q{'{ctid}'}, q{'{tableoid}'}, q{repeat('{id}', 300)}, q{repeat('x', 2000)}, q{'{' || repeat('x', 100) || '}'}, q{E'{id}\x01'}, q{'{ID}'}, q{E'\\{id}'});
}

sub events { return one_of(q{'{update,delete}'}, q{'{insert,update,delete}'}, q{'{insert}'}, 'NULL', q{'{}'}, q{'{UPDATE}'}, q{ARRAY[NULL]::text[]}, q{'{truncate}'}, q{'{{insert},{update}}'}, q{array_fill('insert'::text, ARRAY[500])}) }
sub token  { return one_of('1', '0', '-1', 'NULL', '9223372036854775807', q{(SELECT fencing_token FROM lock_status('k1'))}, q{(SELECT fencing_token FROM lock_status('k2'))}) }
sub id     { return one_of(q{'1'}, q{'1'}, q{'2'}, q{'7'}, 'NULL', q{''}, q{'x'}, q{'1.0'}, q{'99999999999'}, q{'{"id": 1, "region": "a"}'}, q{'{"id": 2, "region": "b"}'}, q{'{"a": "x:y", "b": "infinity", "c": "\\x00ff", "d": "{1,NULL}"}'}, q{'{}'}, q{'[1]'}, q{'{"id": null}'}, q{'NaN'}, q{repeat('9', 500)}, q{'1e30'}) }
sub expect { return one_of('NULL', 'NULL', q{'{}'}, q{'{"id": 1}'}, q{'{"id": 1}'}, q{'{"id": "1", "v": null}'}, q{'{"v": 0}'}, q{'{"id": 1, "region": "a"}'}, q{'{"none": 1}'}, q{'{"ctid": "(0,1)"}'}, q{'{"id": [1]}'}, q{'{"id": 1e30}'}, q{'{"a": "x:y", "d": [1, null]}'}, q{'[1]'}, q{'null'}, q['{'], q{(SELECT jsonb_object_agg('c' || i, i) FROM generate_series(1, 1000) i)}, q{to_jsonb((SELECT t FROM t LIMIT 1))}, q{'{"' || repeat('n', 100) || '": 1}'}) }
sub reason { return one_of(q{'why'}, q{'why'}, q{'why'}, 'NULL', q{''}, q{repeat('r', 1024)}, q{repeat('r', 1025)}, q{E'line\nforged'}) }
sub prefix
{
	return one_of(q{'k'}, q{'k1'}, q{'k2'}, q{'k3'}, q{'k4'}, q{'X'}, q{'many-'}, q{'most-1'}, q{'t:'}, q{'by trigger'}) if chance(85);
	return one_of(q{''}, q{''}, 'NULL', q{repeat('p', 1024)}, q{repeat('p', 1025)}, q{repeat('é', 513)}, q{E'k\n'}, q{E'\xff'}, key());
}

# Durations, numbers and roles of policies: mostly NULL
sub part   { return chance(75) ? 'NULL' : one_of(q{'1 min'}, q{'100 ms'}, q{'10 ms'}, q{'0'}, q{'30 s'}, q{'1 hour'}, q{'-1 s'}, q{'1 month'}, q{'infinity'}, q{'36500 days'}, q{'36501 days'}) }
sub quota  { return chance(60) ? 'NULL' : one_of('1', '2', '3', '5', '100', '2147483647', '0', '-1', '2147483648', '1.5') }
sub whom   { return chance(85) ? 'NULL' : one_of(q{'{al_user,al_all}'}, q{'{al_user2}'}, q{'{al_guest,al_user,al_user2,al_all}'}, q{'{}'}, q{'{NULL}'}, q{'{nobody}'}, q{'{0}'}, q{'{4294967295}'}, q{'{{al_user},{al_all}}'}, q{array_fill('al_user'::regrole, ARRAY[500])}) }
sub moment { return one_of('now()', 'clock_timestamp()', q{clock_timestamp() - interval '100 ms'}, q{now() - interval '1 s'}, 'NULL', q{'infinity'}, q{'-infinity'}, q{'epoch'}, q{'nonsense'}, q{(SELECT max(acquired_at) FROM lock_history)}) }
sub truth  { return one_of('NULL', 'true', 'true', 'false', q{'maybe'}) }

sub rows   { return one_of('NULL', '1', '5', '1000', '0', '-1', '9223372036854775807', '1000000') }

sub row_type
{
	return 'NULL::' . one_of(@tables) if chance(70);
	return one_of('NULL', 'NULL::pg_class', 'NULL::app_lock', 'NULL::int', 'NULL::pair', 'NULL::v', 'NULL::f', q{(SELECT t FROM t LIMIT 1)}, 'ROW(1, 2)', 'NULL::record', 'NULL::positive', 'NULL::t[]', 'NULL::al_user.t', 'NULL::log', 'NULL::nothing');
}

#
# The functions: levels, kind (which determines the possible errors)
# and arguments
#
my @limit = ([ max_holders => \&max_holders ]);
my @sharing = ([ mode => sub { q{'shared'} } ], @limit, [ owner => \&owner ], [ wait => \&wait_for ]);
my @path = ([ path => \&path ]);
my @acquire_path = ([ ttl => \&ttl ], [ owner => \&owner ], [ wait => \&wait_for ], [ holder => \&holder ], [ meta => \&meta ]);
my @modes = ([ modes => \&modes ]);
my @acquire = ([ ttl => \&ttl ], [ owner => \&owner ], [ mode => \&mode ], [ wait => \&wait_for ], [ holder => \&holder ], [ meta => \&meta ]);
my @key = ([ key => \&key ]);
my @grant = ([ fencing_token => sub { chance(50) ? 'NULL' : token() } ]);
my @own = (@key, [ owner => \&owner ]);
my @functions = (
	[ 'lock_acquire', 'user', 'verb', @key, @acquire, [ lifetime => \&lifetime ], @limit ],
	[ 'lock_try_acquire', 'user', 'verb', @key, @acquire, [ lifetime => \&lifetime ], @limit ],
	[ 'lock_try_acquire', 'user', 'verb', @key, @acquire, [ lifetime => \&lifetime ], @limit ],
	[ 'lock_acquire_all', 'user', 'verb', [ keys => \&keys_array ], @acquire, @limit, @modes ],
	[ 'lock_try_acquire_all', 'user', 'verb', [ keys => \&keys_array ], @acquire, @limit, @modes ],
	[ 'lock_acquire_path', 'user', 'verb', @path, @acquire_path, [ separator => \&separator ] ],
	[ 'lock_try_acquire_path', 'user', 'verb', @path, @acquire_path, [ separator => \&separator ] ],
	[ 'lock_release_path', 'user', 'verb', @path, [ owner => \&owner ], [ separator => \&separator ] ],
	[ 'lock_path', 'user monitor', 'look', @path, [ separator => \&separator ] ],
	[ 'lock_acquire', 'user', 'verb', @key, @sharing, [ lifetime => \&lifetime ] ],
	[ 'lock_try_acquire', 'user', 'verb', @key, @sharing, [ lifetime => \&lifetime ] ],
	[ 'lock_try_acquire_all', 'user', 'verb', [ keys => \&keys_array ], @sharing ],
	[ 'lock_convert', 'user', 'verb', @own, [ mode => \&mode ], [ wait => \&wait_for ] ],
	[ 'lock_transfer', 'user', 'verb', @own, [ new_owner => \&owner ], [ holder => \&holder ], [ ttl => \&ttl ] ],
	[ 'lock_try_convert', 'user', 'verb', @own, [ mode => \&mode ], [ wait => \&wait_for ] ],
	[ 'lock_try_transfer', 'user', 'verb', @own, [ new_owner => \&owner ], [ holder => \&holder ], [ ttl => \&ttl ] ],
	[ 'lock_transfer_all', 'user', 'verb', [ owner => \&owner ], [ new_owner => \&owner ], [ holder => \&holder ] ],
	[ 'lock_release', 'user', 'verb', @own ],
	[ 'lock_try_release', 'user', 'verb', @own ],
	[ 'lock_release_all', 'user', 'verb', [ owner => \&owner ] ],
	[ 'lock_extend', 'user', 'verb', @own, [ ttl => \&ttl ] ],
	[ 'lock_try_extend', 'user', 'verb', @own, [ ttl => \&ttl ] ],
	[ 'lock_extend_all', 'user', 'verb', [ owner => \&owner ], [ ttl => \&ttl ] ],
	[ 'lock_heartbeat', 'user', 'verb', [ keys => \&keys_array ], [ owner => \&owner ], [ ttl => \&ttl ] ],
	[ 'lock_held', 'user', 'look', [ owner => \&owner ] ],
	([ 'lock_enqueue', 'user', 'verb', @own, [ holder => \&holder ], [ offer => \&ttl ], [ keep => \&ttl ], [ ttl => \&ttl ], [ meta => \&meta ] ]) x 3,
	([ 'lock_leave', 'user', 'verb', @own ]) x 2,
	[ 'lock_ask', 'user', 'verb', @key, [ message => \&reason ] ],
	[ 'lock_channel', 'user monitor', 'look', @key ],
	[ 'lock_queue', 'monitor', 'look' ],
	[ 'lock_assert', 'user', 'verb', @own ],
	[ 'lock_assert_fence', 'user', 'verb', @key, [ fencing_token => \&token ], [ owner => \&owner ] ],
	[ 'lock_fetch', 'user', 'fetch', [ row_type => \&row_type ], [ id => \&id ], [ ttl => \&ttl ], [ owner => \&owner ], [ wait => \&wait_for ], [ key => \&key ], [ holder => \&holder ], [ expect => \&expect ] ],
	[ 'lock_is_held', 'user monitor', 'look', @own ],
	[ 'lock_holder', 'user monitor', 'look', @key ],
	[ 'lock_status', 'user monitor', 'look', @key ],
	[ 'lock_explain', 'user monitor', 'look', @key ],
	[ 'lock_key', 'user monitor', 'look', [ VARIADIC => \&keys_array ] ],
	[ 'lock_status', 'monitor', 'look' ],
	[ 'lock_waiters', 'monitor', 'look' ],
	[ 'lock_stats', 'monitor', 'look' ],
	[ 'lock_contention', 'monitor', 'look' ],
	[ 'lock_sweeper_status', 'monitor', 'look' ],
	[ 'force_release', 'supervisor admin', 'verb', @key, [ reason => \&reason ], @grant ],
	[ 'lock_force_release', 'supervisor admin', 'verb', @key, [ reason => \&reason ], @grant ],
	[ 'lock_try_force_release', 'supervisor admin', 'verb', @key, [ reason => \&reason ], @grant ],
	[ 'lock_steal', 'supervisor admin', 'verb', @key, [ new_owner => \&owner ], [ reason => \&reason ], [ ttl => \&ttl ], [ holder => \&holder ], @grant ],
	[ 'lock_sweep', 'admin', 'verb', [ max_rows => \&rows ] ],
	[ 'lock_schedule_sweep', 'admin', 'schedule', [ schedule => sub { one_of(q{'* * * * *'}, 'NULL', q{''}, q{repeat('*', 300)}) } ] ],
	[ 'lock_unschedule_sweep', 'admin', 'schedule' ],
	[ 'lock_protect', 'admin', 'protect', [ relation => \&relation ], [ key_template => \&template ], [ events => \&events ], [ separator => sub { chance(60) ? 'NULL' : separator() } ] ],
	[ 'lock_unprotect', 'admin', 'protect', [ relation => \&relation ] ],
	[ 'lock_policy', 'user', 'look', @key ],
	[ 'lock_held_at', 'monitor', 'look', @key, [ at => \&moment ] ],
	([ 'lock_set_policy', 'admin', 'policy', [ prefix => \&prefix ], (map { [ $_ => \&part ] } qw(default_ttl max_ttl max_wait max_lifetime lock_delay min_hold)), (map { [ $_ => \&quota ] } qw(max_holders max_keys_per_role)), [ roles => \&whom ], [ history => \&truth ], [ notify => \&truth ] ]) x 3,
	[ 'lock_drop_policy', 'admin', 'policy', [ prefix => \&prefix ] ],
	[ 'lock_grant_access', 'admin', 'access', [ role => sub { one_of(q{'al_guest'}, q{'al_guest'}, 'NULL', q{'nobody'}, '0', '4294967295', q{'-'}) } ], [ level => sub { one_of(q{'user'}, q{'monitor'}, q{'supervisor'}, q{'admin'}, 'NULL', q{''}, q{'USER'}) } ] ],
	[ 'lock_revoke_access', 'admin', 'access', [ role => sub { one_of(q{'al_guest'}, q{'nobody'}, 'NULL') } ], [ level => sub { one_of(q{'user'}, q{'supervisor'}, q{'admin'}, 'NULL', q{'x'}) } ] ]);
my @views = ([ 'lock_waiters', 'monitor' ], [ 'lock_stats', 'monitor' ], [ 'lock_contention', 'monitor' ], [ 'lock_activity', 'monitor' ], [ 'lock_guards', 'monitor' ], [ 'lock_audit', 'admin' ], [ 'lock_policies', 'monitor' ], [ 'lock_history', 'monitor' ], [ 'lock_queue', 'monitor' ]);
# Statements that no role here may run
my @forbidden = (
	'SELECT * FROM app_lock', 'SELECT owner FROM app_lock', 'SELECT count(*) FROM app_lock', 'DELETE FROM app_lock', q{UPDATE app_lock SET expires_at = 'infinity'}, 'TRUNCATE app_lock',
	q{INSERT INTO app_lock SELECT * FROM app_lock}, 'LOCK TABLE app_lock IN ACCESS SHARE MODE', 'SELECT * FROM app_lock_fence', q{SELECT nextval('app_lock_fence')}, q{SELECT setval('app_lock_fence', 1)},
	'COPY app_lock TO STDOUT', 'CREATE INDEX ON app_lock (holder)', 'ALTER TABLE app_lock ADD x int', 'DROP TABLE app_lock CASCADE', 'DROP EXTENSION atomic_lock CASCADE', q{UPDATE lock_audit SET reason = ''}, 'TRUNCATE lock_audit', 'INSERT INTO lock_audit SELECT * FROM lock_audit',
	'SELECT * FROM app_lock_queue', 'SELECT owner FROM app_lock_queue', q{UPDATE app_lock_queue SET ticket = 1}, q{INSERT INTO app_lock_queue (key, ticket, expires_at) VALUES ('k1', 0, 'infinity')}, 'TRUNCATE app_lock_queue', 'COPY app_lock_queue TO STDOUT', q{SET atomic_lock.max_queue_places = 1},
	'SELECT * FROM app_lock_policy', q{INSERT INTO app_lock_policy VALUES ('')}, 'DELETE FROM app_lock_policy', 'SELECT * FROM app_lock_policy_role', q{INSERT INTO app_lock_policy_role VALUES ('', 'al_user')}, 'TRUNCATE app_lock_policy', 'COPY app_lock_policy TO STDOUT', 'DELETE FROM lock_history', q{UPDATE lock_history SET ended_by = 'released'}, q{INSERT INTO lock_policies (prefix) VALUES ('')}, 'SELECT app_lock_policy_changed()',
	'CREATE TRIGGER x BEFORE UPDATE ON app_lock FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()', 'CREATE TABLE like_child () INHERITS (app_lock)', 'ALTER FUNCTION lock_acquire OWNER TO CURRENT_USER',
	q{SELECT app_lock_change_access('al_none', 'admin', true)}, 'GRANT ALL ON app_lock TO PUBLIC', q{CREATE OR REPLACE FUNCTION locks.lock_holder(key text) RETURNS text LANGUAGE sql AS 'SELECT key'},
	'SET SESSION AUTHORIZATION postgres', q{SELECT pg_read_file('postgresql.conf')}, 'SET ROLE al_other', q{SET atomic_lock.enforce_guards = off}, q{SET atomic_lock.max_wait = '1 h'}, q{SET atomic_lock.max_claims_per_transaction = 5},
	q{SET atomic_lock.lock_delay = 0}, q{SET atomic_lock.max_ttl = '2 d'}, q{SET atomic_lock.acquire_durability = 'session'}, q{SET atomic_lock.sweep_batch = 1}, 'CREATE VIEW mine AS SELECT * FROM app_lock; SELECT * FROM mine');

# A call: name(arguments), positional, named or both
sub call
{
	my ($function) = @_;
	my ($name, undef, undef, @arguments) = @$function;
	my ($count, $positional) = (scalar @arguments, 0);
	my @list;

	if (@arguments && $arguments[0][0] eq 'VARIADIC')
	{
		@list = chance(50) ? 'VARIADIC ' . $arguments[0][1]->() . '::text[]' : map { chance(70) ? key() : one_of('42', '1.50', 'now()', q{ARRAY['a', NULL]}, 'ROW(1, NULL)', 'NULL::uuid', q{'y'::char(3)}) } 1 .. 1 + int rand 3;
	}
	else
	{
		# Most arguments from the second or third on have defaults.
		$count = int rand($count + 1) if chance(60);
		$count = 1 if $count == 0 && @arguments;
		$count = 2 if $count < 2 && $name =~ /^((?:lock_|lock_try_)?force_release|lock_transfer_all|lock_assert_fence|lock_fetch|lock_protect|lock_grant_access|lock_revoke_access|lock_held_at)$/;
		# A policy sets any of its parts.
		$count = @arguments if $name eq 'lock_set_policy' && chance(80);
		$count = 3 if $count < 3 && $name =~ /^(lock_(?:try_)?transfer|lock_steal)$/;
		$positional = chance(50) ? $count : int rand($count + 1);
		# A call with mode "shared" leaves out the arguments before the mode.
		($count, $positional) = (max($count, 3), min($positional, 1)) if @arguments > 1 && $arguments[1][0] eq 'mode';
		for my $i (0 .. $count - 1)
		{
			my ($argument, $value) = @{ $arguments[$i] };
			push @list, ($i < $positional ? '' : "$argument => ") . $value->();
		}
	}
	return (chance(90) ? '' : 'locks.') . "$name(" . join(', ', @list) . ')';
}

# Does the role have one of the levels that may call a function?
sub may_call
{
	my ($function) = @_;
	return scalar grep { $level{$role}{$_} } split / /, $function->[1];
}

sub any_function
{
	my @may = grep { may_call($_) } @functions;
	return one_of(@may && chance(92) ? @may : @functions);
}

#
# Statements around the call.  Only a direct call must fail if the role may not make it.
#
my $number = 0;

sub wrapped
{
	my ($call) = @_;
	my $quoted = $call =~ s/'/''/gr;
	my $n = ++$number;

	return one_of(
		"SELECT $call FROM generate_series(1, 3)",
		"SELECT * FROM generate_series(1, 2) n, LATERAL $call",
		"SELECT * FROM ROWS FROM ($call, generate_series(1, 2)) WITH ORDINALITY",
		"SELECT count(*), count($call) FROM t",
		"SELECT array_agg($call ORDER BY id), string_agg(id::text, ',') FILTER (WHERE ($call) IS NULL) FROM t WHERE id < 3",
		"SELECT id FROM t WHERE ($call) IS NOT NULL ORDER BY id LIMIT 3",
		"SELECT id FROM t ORDER BY ($call)::text LIMIT 2",
		"SELECT max(id) OVER (PARTITION BY ($call)::text) FROM t WHERE id < 2",
		"SELECT CASE WHEN id > 5 THEN ($call)::text ELSE 'none' END FROM t",
		"SELECT coalesce(NULL, ($call)::text) FROM t GROUP BY 1 HAVING ($call)::text IS NOT NULL",
		"WITH w AS MATERIALIZED (SELECT $call) SELECT * FROM w, w AS again",
		"WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 4 AND ($call) IS NOT NULL) SELECT * FROM r",
		"SELECT EXISTS (SELECT $call)", "SELECT (SELECT ($call)::text)", "VALUES (($call)::text), ('x')", "SELECT ($call)::text UNION SELECT 'x' EXCEPT SELECT ($call)::text",
		"INSERT INTO log (what) SELECT ($call)::text FROM generate_series(1, 2)", "INSERT INTO log (what) VALUES (($call)::text) RETURNING ($call)::text",
		"UPDATE t SET a = ($call)::text WHERE id = 1", "DELETE FROM log WHERE what = ($call)::text",
		"MERGE INTO log USING t ON what = a WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND id = 1 THEN INSERT (what) VALUES (($call)::text)",
		"COPY (SELECT $call) TO STDOUT", "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT $call", "EXPLAIN VERBOSE SELECT $call",
		"CREATE TEMP TABLE temp_$n AS SELECT ($call)::text AS x", "CREATE TEMP VIEW view_$n AS SELECT ($call)::text AS x; SELECT * FROM view_$n",
		"CREATE INDEX ON t ((($call)::text))", "CREATE TEMP TABLE checked_$n (id int CHECK (($call)::text <> 'x') DEFAULT 1); INSERT INTO checked_$n VALUES (1), (2)",
		"CREATE TEMP TABLE defaulted_$n (id int, x text DEFAULT ($call)::text); INSERT INTO defaulted_$n (id) VALUES (1), (2)",
		"DO \$\$ BEGIN PERFORM $call; EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', SQLSTATE; END \$\$",
		"DO \$\$ BEGIN FOR i IN 1 .. 3 LOOP BEGIN PERFORM $call; IF i % 2 = 0 THEN RAISE division_by_zero; END IF; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END \$\$",
		"DO \$\$ DECLARE r record; BEGIN FOR r IN SELECT $call AS x FROM t LIMIT 2 LOOP NULL; END LOOP; COMMIT; PERFORM $call; ROLLBACK; END \$\$",
		"SELECT tried('SELECT $quoted')", "SELECT tried('SELECT $quoted'), tried('SELECT 1 / 0'), tried('SELECT $quoted')",
		"PREPARE p_$n AS SELECT $call; EXECUTE p_$n; EXECUTE p_$n; DEALLOCATE p_$n",
		"DECLARE c_$n CURSOR FOR SELECT $call FROM t; FETCH 2 FROM c_$n; MOVE 3 FROM c_$n; CLOSE c_$n", "DECLARE h_$n SCROLL CURSOR WITH HOLD FOR SELECT $call FROM t LIMIT 3", "DECLARE o_$n CURSOR FOR SELECT $call FROM t; FETCH 1 FROM o_$n",
		"SELECT $call FROM t FOR UPDATE LIMIT 1", "SELECT ($call) IS DISTINCT FROM ($call)", "SELECT $call, $call",
		"SELECT id FROM t TABLESAMPLE BERNOULLI (50) WHERE ($call)::text > ''", "SELECT * FROM t JOIN part ON ($call) IS NOT NULL AND t.id = part.id", "SELECT DISTINCT ON (1) ($call)::text, id FROM t LIMIT 1 OFFSET 1",
		"CREATE OR REPLACE FUNCTION of_mine_$n() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = $role, locks AS \$\$ SELECT ($call)::text \$\$; SELECT of_mine_$n()",
		"CREATE OR REPLACE FUNCTION said_stable_$n() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS \$\$ SELECT ($call)::text \$\$; SELECT said_stable_$n() FROM t",
		"SELECT $call \\; SELECT $call \\; SELECT 1");
}

# Not DEFERRABLE: PostgreSQL itself fails an assertion if such a wait is cancelled
# and the transaction continues from a savepoint.
sub transaction
{
	return one_of(
		'BEGIN', 'BEGIN', 'BEGIN', 'BEGIN ISOLATION LEVEL REPEATABLE READ', 'BEGIN ISOLATION LEVEL SERIALIZABLE', 'BEGIN READ ONLY', 'BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY',
		'COMMIT', 'COMMIT', 'COMMIT', 'COMMIT', 'ROLLBACK', 'ROLLBACK', 'COMMIT AND CHAIN', 'ROLLBACK AND CHAIN', 'SET TRANSACTION READ ONLY', 'SET TRANSACTION ISOLATION LEVEL SERIALIZABLE',
		(map { ("SAVEPOINT $_", "SAVEPOINT $_", "ROLLBACK TO $_", "RELEASE $_") } ('a', 'b', 'c')),
		"PREPARE TRANSACTION '$role'", "PREPARE TRANSACTION '$role'", "COMMIT PREPARED '$role'", 'SELECT 1 / 0');
}

sub setting
{
	return one_of(
		"SET atomic_lock.owner = 'secret-of-$role-1'", "SET atomic_lock.owner = 'secret-of-$role-2'", q{SET LOCAL atomic_lock.owner = 'o1'}, 'RESET atomic_lock.owner', q{SET atomic_lock.default_ttl = '1 min'}, q{SET atomic_lock.default_ttl = '1 year'},
		q{SET atomic_lock.default_ttl = 0}, q{SET atomic_lock.default_ttl = 'x'}, q{SET atomic_lock.on_reacquire = 'error'}, q{SET atomic_lock.on_reacquire = 'extend'}, q{SET atomic_lock.release_durability = 'session'},
		q{SET atomic_lock.release_durability = 'relaxed'}, q{SET atomic_lock.nothing = 1}, q{SELECT set_config('atomic_lock.owner', repeat('o', 256), false)}, q{SET synchronous_commit = off}, q{SET synchronous_commit = on},
		q{SET search_path = ''}, q{SET search_path = locks}, q{SET search_path = "$user", locks, public}, 'RESET search_path', q{SET search_path = pg_temp, "$user", locks}, 'RESET ALL', 'DISCARD ALL', 'DISCARD TEMP', 'DISCARD PLANS',
		'SET jit_above_cost = 0', 'SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0', 'SET enable_seqscan = off', q{SET plan_cache_mode = 'force_generic_plan'}, 'SET work_mem = 64',
		($node->pg_version >= 16 ? 'SET debug_parallel_query = on' : 'SET force_parallel_mode = on'), q{SET statement_timeout = '40ms'}, q{SET statement_timeout = '1s'}, q{SET lock_timeout = '10ms'}, q{SET lock_timeout = '60ms'},
		(map { "DO \$\$ BEGIN EXECUTE 'LISTEN ' || lock_channel($keys[$_]); END \$\$" } 0 .. 1), 'UNLISTEN *', q{SET default_transaction_isolation = 'serializable'}, q{SET default_transaction_read_only = on}, q{SET default_transaction_read_only = off}, q{SET application_name = 'secret? no: a label'}, q{SET application_name = ''}, q{SET DateStyle = 'German'},
		q{SET IntervalStyle = 'sql_standard'}, q{SET TimeZone = 'Pacific/Kiritimati'}, q{SET client_encoding = 'LATIN1'}, q{SET client_encoding = 'UTF8'}, q{SET check_function_bodies = off}, q{SET row_security = off}, q{SET row_security = on},
		q{SET client_min_messages = 'debug5'}, q{SET client_min_messages = 'error'}, q{SET temp_buffers = 100}, q{SET enable_hashjoin = off}, q{SET quote_all_identifiers = on});
}

# Writes to tables of the role; some of the tables are guarded by then
sub write_own
{
	my $table = one_of(@tables);
	return one_of(
		"UPDATE $table SET id = id WHERE id = 1", 'UPDATE t SET id = id + 1000 WHERE id = 30', 'UPDATE t SET a = NULL', 'DELETE FROM t WHERE id = 29', q{INSERT INTO t (id) VALUES (29) ON CONFLICT (id) DO UPDATE SET a = 'again'},
		q{UPDATE part SET region = 'z' WHERE id = 2}, q{INSERT INTO part VALUES (5, 'a', 1) ON CONFLICT DO NOTHING}, 'DELETE FROM parent', 'INSERT INTO child VALUES (8, 8, 8)', "TRUNCATE $table", "DELETE FROM $table",
		"SELECT * FROM $table FOR UPDATE", 'UPDATE v SET a = a WHERE id = 3', 'ALTER TABLE t RENAME a TO z', 'ALTER TABLE t RENAME z TO a', "ALTER TABLE $table DISABLE TRIGGER USER", "ALTER TABLE $table ENABLE ALWAYS TRIGGER \"~atomic_lock_guard\"", "ALTER TABLE $table ENABLE TRIGGER USER",
		'CREATE TEMP TABLE IF NOT EXISTS temp_one (id int PRIMARY KEY)', 'CREATE TRIGGER mine BEFORE INSERT ON log FOR EACH ROW EXECUTE FUNCTION lock_guard()', q[CREATE TRIGGER mine2 AFTER UPDATE ON log FOR EACH STATEMENT EXECUTE FUNCTION lock_guard('{', 'x')],
		'DROP TRIGGER IF EXISTS mine ON log', 'DROP TRIGGER IF EXISTS mine2 ON log', q{INSERT INTO log (what) VALUES ('x')}, q{UPDATE log SET what = 'y'}, 'SELECT lock_guard()', q{SELECT app_lock_guard_problem('t', '{id}')}, q{SELECT app_lock_longest_wait('k1')}, q{SELECT app_lock_count_waiters('k1')});
}

# Returns kind, whether it must be refused, and the statement
sub statement
{
	my $dice = rand 100;
	my ($function, $view);

	return ('transaction', 0, transaction()) if $dice < 18;
	return ('setting', 0, setting()) if $dice < 24;
	return ('table', 0, write_own()) if $dice < 31;
	return ('forbidden', 1, one_of(@forbidden)) if $dice < 33;
	# administrators may do this
	return ('table', !$level{$role}{admin}, 'DELETE FROM app_lock_queue WHERE ticket ' . one_of('> 0', '= 0', '% 2 = 0', '< 0')) if $dice < 34;
	if ($dice < 37)
	{
		$view = one_of(@views);
		return ('look', !$level{$role}{ $view->[1] }, one_of("SELECT * FROM $view->[0]", "SELECT count(*) FROM $view->[0]", "TABLE $view->[0]"));
	}
	$function = any_function();
	return ($function->[2], !may_call($function), one_of('SELECT * FROM ', 'SELECT ') . call($function)) if $dice < 75;
	return ('any', 0, wrapped(call($function)));
}

# Statements of a superuser meanwhile
sub maintenance
{
	my $all = q{SELECT %s(pid) FROM pg_stat_activity WHERE usename LIKE 'al\_%%' ORDER BY random() LIMIT 1};

	return one_of(
		'VACUUM locks.app_lock', 'VACUUM (FREEZE, INDEX_CLEANUP on) locks.app_lock', 'VACUUM FULL locks.app_lock', 'REINDEX TABLE locks.app_lock', 'REINDEX TABLE CONCURRENTLY locks.app_lock', 'ANALYZE locks.app_lock', 'CHECKPOINT', 'CLUSTER locks.app_lock USING app_lock_pkey',
		'VACUUM locks.app_lock_queue', 'VACUUM FULL locks.app_lock_queue', 'REINDEX TABLE CONCURRENTLY locks.app_lock_queue', 'CLUSTER locks.app_lock_queue USING app_lock_queue_pkey', 'LOCK TABLE locks.app_lock_queue IN ACCESS EXCLUSIVE MODE', 'SELECT * FROM locks.lock_queue', q{UPDATE locks.app_lock_queue SET expires_at = clock_timestamp()}, 'DELETE FROM locks.app_lock_queue', q{SELECT locks.lock_set_policy('k', max_ttl => '1 min', notify => true)},
		'SELECT count(locks.lock_drop_policy(prefix)) FROM locks.lock_policies', 'DELETE FROM locks.app_lock_policy', 'TRUNCATE locks.app_lock_policy, locks.app_lock_policy_role', 'DELETE FROM locks.app_lock_policy_role', 'VACUUM FULL locks.app_lock_policy', q{SELECT locks.lock_set_policy('k', max_ttl => '1 min', max_keys_per_role => 3, history => true)}, 'REINDEX TABLE CONCURRENTLY locks.lock_history', 'ALTER TABLE locks.app_lock_policy SET (fillfactor = 90)',
		'SELECT pg_reload_conf()', 'SELECT * FROM locks.lock_activity', 'SELECT * FROM locks.lock_status()', 'SELECT locks.lock_sweep()', q{CREATE INDEX extra ON locks.app_lock (holder)}, 'DROP INDEX IF EXISTS locks.extra', 'SELECT pg_sleep(0.01)', 'SELECT pg_sleep(0.01)', q{LOCK TABLE locks.app_lock IN ACCESS EXCLUSIVE MODE},
		'SELECT count(*) FROM locks.app_lock', q{COMMENT ON TABLE locks.app_lock IS 'x'}, q{SELECT locks.lock_steal('k1', 'o1', 'maintenance')}, (sprintf($all, 'pg_cancel_backend')) x 4, sprintf($all, 'pg_terminate_backend'));
}

#
# The errors that are possible
#
sub codes { return map { $_ => 1 } map { split ' ' } @_ }

# Refused, cancelled, in a transaction that had failed, or under a search_path
# without the extension
my $always = '00000 57014 25P02 42501 25006 55P03 40P01 40001 42883 42P01 42704 22004 22021 3F000 53200 54000 25P03 57P01';
my $argument = '22023 22007 22008 22015 22P02 22P05 54001 22003';
my $state = 'LK002 LK003 LK004 LK005 LK006 LK007 LK008 LK009 LK011 25000 53400';
my %expected = (
	verb => { codes($always, $argument, $state) },
	look => { codes($always, $argument) },
	fetch => { codes($always, $argument, $state, 'LK012 42809 0A000 42703 55000 42804 42P18 2200F 22001 23502 23514 42846 42601') },
	schedule => { codes($always, $argument, '55000') },
	policy => { codes($always, $argument) },
	access => { codes($always, $argument, '42602') },
	protect => { codes($always, $argument, '42809 42703 0A000 55000 55006 3F000 42602') },
	setting => { codes($always, $argument, '25001 22P06 42602 0A000 LK002') },
	transaction => { codes($always, $argument, '25001 25P01 3B001 42710 22012 0A000 55000 53400 2D000 22023 40002', $state) },
	table => { codes($always, $argument, $state, '42703 42809 0A000 23505 23514 23502 55000 55006 42710 42P17 428C9 42701 42P07 40002 39P01 27000 42P13') },
	forbidden => { codes($always, '25001 25P01 42P07 0A000 42602 22023 55P02 42809') });
# A cursor WITH HOLD makes the rest of its calls at COMMIT.
$expected{transaction} = { map { %$_ } @expected{qw(transaction verb look fetch schedule policy access protect)} };
# The errors of any statement around a call
$expected{any} = { map { %$_ } values %expected };
$expected{any}{$_} = 1 for split ' ', '0A000 21000 22012 23502 23514 2D000 26000 34000 42611 42803 42804 42809 42846 42703 42P02 42P03 42P05 42P07 42P13 42P16 42P17 42P20 42601 24000 2F003 25001 25P01 42702 42P10 42P18 42P19 55000 09000 42725 54023 42710 54011 3F000 P0001 40002';

#
# Run the statements.
#
my $dir = PostgreSQL::Test::Utils::tempdir;
my @complaints;
my (%seen, %answered);
my ($told, $not_told) = (0, 0);    # sessions that were terminated, with and without a message
my $statements = 0;

sub complain
{
	my ($text) = @_;
	push @complaints, $text if @complaints < 30;
	return;
}

# Write the statements of a session to a file.
sub write_script
{
	my ($file, $script) = @_;
	# Half of the scripts have a savepoint around each statement.
	my $text = "\\set VERBOSITY verbose\n\\set ON_ERROR_ROLLBACK " . one_of('on', 'off') . "\n\\pset null '~'\n";

	foreach my $i (0 .. $#$script)
	{
		# psql does not set SQLSTATE if its own savepoint fails.  The marker also ends text that a
		# bad statement has left open.
		$text .= "\\set SQLSTATE none\n$script->[$i][2];\n\\echo '##' $i :SQLSTATE\n";
	}
	open my $handle, '>', $file or die "$file: $!";
	print $handle $text;
	close $handle or die "$file: $!";
	return;
}

# Check the output of a session.
sub judge
{
	my ($file, $who, $script) = @_;
	my $output = slurp_file($file);
	my $next = 0;
	my $shown = '';

	foreach my $line (split /\n/, $output)
	{
		if ($line =~ /^## (\d+) (\w*)$/)
		{
			my ($place, $code) = ($1, $2);
			my ($kind, $refused, $sql) = @{ $script->[$place] };
			my @codes = $shown =~ /ERROR:\s+(\w{5}):/g;

			$next = $place + 1;
			$statements++;
			# psql does not set SQLSTATE after a COPY that it rolls back, nor where the
			# session was terminated, whose message may be lost.
			@codes = ('57P01') if $shown =~ /FATAL:\s+57P01:|server closed the connection unexpectedly/;
			push @codes, $code if !@codes || $code !~ /^(?:none)?$/ && $code ne $codes[-1] && $codes[-1] ne '57P01';
			$seen{ $codes[-1] }++;
			$answered{$1}++
			  if $codes[-1] eq '00000' && $sql =~ /^SELECT (?:\* FROM )?(?:locks\.)?(\w+)\(/;
			complain("$who: $_ of: " . substr($sql, 0, 600) . "\n" . substr($shown, 0, 1500))
			  foreach grep { $who ne 'postgres' && !$expected{$kind}{$_} } @codes;
			complain("$who was not refused: $sql") if $refused && $codes[-1] eq '00000';
			$shown = '';
			next;
		}
		$shown .= "$line\n";
		complain("$who gets an internal error: $line") if $who ne 'postgres' && $line =~ /\bXX00[0-2]\b/;
		complain("$who is shown the owner of $1: $line")
		  if $who !~ /^(postgres|al_super|al_admin|al_all)$/ && $line =~ /secret-of-(\w+)-/ && $1 ne $who;
	}
	# A client that sends a statement while it is terminated may not get the message.
	$told++ if $output =~ /57P01/;
	if ($output !~ /57P01/ && $output =~ /server closed the connection unexpectedly/) { $not_told++; return }
	# PostgreSQL ends a session that is cancelled while it begins a subtransaction.
	complain("the session of $who ended: " . substr($shown, 0, 2000) . "\nin: $script->[$next][2]")
	  if $next < @$script && $output !~ /(57P01|25P03|57P05|FATAL:  57014)/;
	return;
}

# One round: a session of each role, and more of those that may lock, at the same time
sub play
{
	my (@run, @files);

	foreach my $who (@roles, 'al_user', 'al_all', 'postgres')
	{
		my $file = "$dir/" . scalar(@files);
		my @script;

		$role = $who;
		push @script, $who eq 'postgres' ? [ 'any', 0, maintenance() ] : [ statement() ] for 1 .. $per_file;
		unshift @script, [ 'any', 0, q{SET lock_timeout = '100ms'; SET statement_timeout = '2s'} ] if $who eq 'postgres';
		write_script("$file.sql", \@script);
		push @files, [ "$file.out", $who, \@script ];
		push @run, '&' if @run;
		push @run, [ 'psql', '-XAqt', '-f', "$file.sql", '-d', $node->connstr('postgres') . " user=$who" ], '<', \undef, '>', "$file.out", '2>&1';
	}
	# Terminated sessions do not end well; judge() recognizes them.
	IPC::Run::run(@run, IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));
	judge(@$_) foreach @files;
	return;
}

# The functions of each level work, so that random calls mean something.
my $prologue = join ';', q{SET atomic_lock.owner = 'me'; SELECT lock_stats_reset(); SELECT lock_key('a')}, map { "SELECT count(*) FROM $_" }
  q{lock_acquire('p')}, q{lock_try_acquire('p')}, q{lock_acquire_all('{p,q}')}, q{lock_try_acquire_all('{p,q}')}, q{lock_try_acquire('r', mode => 'shared', max_holders => 1)}, q{lock_transfer('q', 'me', 'you')}, q{lock_extend('p')}, q{lock_try_extend('p')}, q{lock_extend_all()}, q{lock_heartbeat()}, q{lock_held()}, q{lock_enqueue('p', 'me')}, q{lock_enqueue('p', 'you')}, q{lock_queue}, q{lock_queue()}, q{lock_leave('p', 'you')}, q{lock_ask('p', 'please')}, q{lock_channel('p')}, q{lock_assert('p')},
  q{lock_assert_fence('p', (SELECT fencing_token FROM lock_status('p')))}, q{lock_fetch(NULL::t, '1')}, q{lock_convert('p', mode => 'shared')}, q{lock_try_convert('p', mode => 'shared')}, q{lock_try_transfer('p', 'me', 'me')}, q{lock_transfer_all('me', 'me')}, q{lock_is_held('p')}, q{lock_holder('p')}, q{lock_status('p')}, q{lock_explain('p')}, q{lock_release('p')}, q{lock_try_release('p')}, q{lock_release_all()},
  q{lock_status()}, q{lock_waiters()}, q{lock_waiters}, q{lock_stats()}, q{lock_contention()}, q{lock_sweeper_status()}, q{lock_activity}, q{lock_guards}, q{lock_audit}, q{lock_set_policy('z', history => true)}, q{lock_policies}, q{lock_policy('z')}, q{lock_drop_policy('z')}, q{lock_history}, q{lock_held_at('z', now())}, q{force_release('q', 'why')}, q{lock_steal('q', 'me', 'why')}, q{lock_force_release('q', 'why')}, q{lock_try_force_release('q', 'why')}, q{lock_sweep()}, q{lock_protect('t', 't:{id}')}, q{lock_unprotect('t')};
{
	local $ENV{PGOPTIONS} = '-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0';
	is($node->psql('postgres', $prologue, extra_params => [ '-v', 'ON_ERROR_STOP=1', '-U', 'al_all' ]), 0, 'a role with all levels can call all functions');
}
my ($status, $output) = $node->psql('postgres', join(' UNION ALL ', map { "SELECT '$_->[0]', has_table_privilege('al_none', 'locks.$_->[0]', 'SELECT')" } @views), on_error_die => 1);
unlike($output, qr/\|t/, 'a role without a level cannot read the views');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'atomic_lock' WHERE has_function_privilege('al_none', p.oid, 'EXECUTE')}),
	'0', '... nor call a function');

srand($seed);
note("AL_SEED=$seed");
my $end = time + $seconds;
my $rounds = 0;
do { play(); $rounds++ } while (($rounds < 3 || time < $end) && !@complaints);
note("$rounds rounds, $statements statements; by SQLSTATE: " . join(', ', map { "$_ $seen{$_}" } sort { $seen{$b} <=> $seen{$a} } keys %seen));
ok(!@complaints, "$statements statements raise only the errors that are documented (SEED=$seed)")
  or diag("AL_SEED=$seed\n", map { "$_\n" } @complaints);

# Many calls were not refused.
cmp_ok($seen{'00000'} // 0, '>', $statements / 10, '... and many succeed');
cmp_ok(scalar(keys %answered), '>=', 10, '... as do most functions');

#
# The state afterwards
#
my $watch = session($node, 'Watch');
ask($watch, 'SET search_path = locks, public; SET atomic_lock.max_claims_per_transaction = 100000');
# A session that has lost its timeouts may wait for a prepared transaction.
foreach my $pass (1, 2)
{
	ask($watch, "COMMIT PREPARED '$_'") foreach split /\n/, ask($watch, 'SELECT gid FROM pg_prepared_xacts');
	poll($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE usename LIKE 'al\_%'});
}
ask($watch, 'DROP INDEX IF EXISTS locks.extra');
# Keys that policies keep closed are open without them.
is(ask($watch, q{SELECT string_agg(concat_ws(' ', p, g), ', ') FROM lock_policies p, lock_policy(p.prefix || '+') g WHERE octet_length(p.prefix) < 1024 AND (p.min_hold <> g.min_hold OR p.min_hold IS NOT NULL AND p.prefix <> g.prefixes->>'min_hold' OR p.max_keys_per_role IS DISTINCT FROM g.max_keys_per_role AND p.max_keys_per_role IS NOT NULL)}), '', 'each policy applies to keys with its prefix');
ask($watch, 'SELECT count(lock_drop_policy(prefix)) FROM lock_policies');
# From here on, only the expiry of leases changes the state.
ask($watch, 'ALTER SYSTEM SET atomic_lock.sweep_interval = 0');
ask($watch, 'SELECT pg_reload_conf()');
poll($watch, q{SELECT status ~ '^turned off' FROM lock_sweeper_status() WHERE database IS NULL});
poll($watch, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'atomic_lock sweeper'});
# The owners of tickets do not come any more.  A busy machine leaves more tickets than
# a batch removes.
ask($watch, $_) foreach ('UPDATE app_lock_queue SET expires_at = clock_timestamp()', 'SELECT lock_sweep(1000000)');
is(ask($watch, 'SELECT (SELECT count(*) FROM lock_queue), (SELECT count(*) FROM app_lock_queue q WHERE ticket > 0 AND NOT EXISTS (SELECT FROM app_lock_queue o WHERE o.key = q.key AND o.offered = q.ticket))'), '0|0', 'no ticket is left, except one that may be offered its key');
is(ask($watch, 'SELECT (SELECT count(*) FROM lock_waiters), (SELECT count(*) FROM pg_locks WHERE objsubid BETWEEN 1706 AND 1711)'), '0|0', 'no waiter and no claim is left');
is(ask($watch, q{SELECT count(*) FROM (SELECT key FROM app_lock WHERE slot = 0 AND NOT released AND pid IS NULL AND expires_at > clock_timestamp()) e JOIN app_lock s ON s.key = e.key AND s.slot > 0 AND NOT s.released AND s.pid IS NULL AND s.expires_at > clock_timestamp()}),
	'0', 'no key is held in exclusive and in shared mode');
is(ask($watch, q{SELECT count(*) FROM (SELECT fencing_token FROM app_lock WHERE fencing_token > 0 GROUP BY fencing_token HAVING count(*) > 1) t}), '0', 'no fencing token was given twice');
is(ask($watch, q{SELECT count(*) FROM lock_history a JOIN lock_history b ON b.key = a.key AND b.fencing_token > a.fencing_token AND b.acquired_at < a.ended_at AND b.ended_at > a.acquired_at AND (a.mode = 'exclusive' OR b.mode = 'exclusive')}), '0', '... nor was one at any time that lock_history knows');
is(ask($watch, q{SELECT count(*) FROM lock_history WHERE ended_at < acquired_at OR (ended_at IS NULL) <> (ended_by IS NULL) OR owner_digest !~ '^[0-9a-f]{64}$' OR ended_by NOT IN ('released', 'expired', 'forced', 'stolen', 'transferred', 'converted', 'session', 'transaction')}), '0', 'every entry of lock_history is consistent');
is(ask($watch, q{SELECT grants - releases - expirations - forced - (SELECT count(*) FROM app_lock WHERE NOT released) FROM lock_stats WHERE database = 'postgres'}), '0', 'grants = releases + expirations + forced + held');
poll($watch, q{SELECT count(*) = 0 FROM app_lock a WHERE (SELECT locked FROM lock_status(a.key)) <> EXISTS (SELECT FROM lock_status() s WHERE s.key = a.key)});
pass('lock_status(key) and lock_status() agree');
ask($watch, $_) foreach (q{SELECT count(lock_steal(key, 'end', 'end')) FROM (SELECT DISTINCT key FROM lock_status()) s}, q{SELECT lock_release_all('end')});
is(ask($watch, q{SELECT string_agg(k || ' ' || g.status, ', ') FROM unnest(ARRAY(SELECT DISTINCT key FROM app_lock) || ARRAY[} . join(', ', @keys) . q{]) k, lock_try_acquire(k, '1 min', 'last') g WHERE NOT g.acquired}), '', 'every key can be acquired');
is(ask($watch, q{SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace AND nspname = 'locks' WHERE has_table_privilege('al_none', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') AND relkind IN ('r', 'v')}), '0', 'the role without rights still has none');
SKIP:
{
	skip 'needs amcheck', 1 unless ask($watch, q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'});
	ask($watch, 'CREATE EXTENSION amcheck SCHEMA public');
	is(ask($watch, q{SELECT count(*) FROM (SELECT bt_index_check(indexrelid, true) FROM pg_index WHERE indrelid IN ('app_lock'::regclass, 'lock_history'::regclass, 'app_lock_policy'::regclass, 'app_lock_policy_role'::regclass, 'app_lock_queue'::regclass) AND indisvalid) i, unnest('{app_lock,app_lock_queue,lock_history,app_lock_policy,app_lock_policy_role}'::regclass[]) t, verify_heapam(t) h}), '0', 'tables and indexes are correct');
}
end($watch);
$node->stop;
my $log = slurp_file($node->logfile);
unlike($log, qr/TRAP:|PANIC:|terminated by signal|could not find block|ERROR:  XX/, 'no crash, no failed assertion');
unlike($log, qr/^.*secret-of-.*$/m, 'no owner in the log');
# The end of a parallel worker is an error of the session that it works for.
my $terminated = () = $log =~ /FATAL: .*terminating (?:connection|background worker "parallel worker") due to administrator command/g;
cmp_ok($told + $not_told, '<=', $terminated, 'sessions that ended without a message were terminated');

done_testing();
