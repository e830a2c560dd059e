# The background sweep on standbys, under hostile settings and table owners, and without a
# synchronous standby.
#
# Properties: there is no launcher on a standby, and one after its promotion,
# with no restart; settings of a database or a role do not prevent a
# sweep; no code of the table's owner (triggers, rules, policies, index expressions)
# runs with the rights of another role, in a background sweep or in lock_sweep();
# the sweep works while a synchronous standby is missing,
# and does not delay a shutdown.
#
# Turns red when: the worker uses SQL; plans a query of the table, or asks
# the relation cache for the expressions of its indexes; keeps the settings of
# the database; waits for a standby when it commits.
use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use AtomicLockSweep;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.sweep_interval = 0
});
$primary->start;
my $watch = session($primary, 'Watch');
ask($watch, 'CREATE EXTENSION atomic_lock');
$primary->backup('backup');
my $node = PostgreSQL::Test::Cluster->new('standby');
$node->init_from_backup($primary, 'backup', has_streaming => 1);
$node->append_conf('postgresql.conf', q{atomic_lock.sweep_interval = '50ms'});
$node->start;
expire($watch, 'a', 50);
ask($watch, q{SELECT lock_acquire('live', '1 hour', 'o')});
$primary->wait_for_catchup($node);

#
# A standby
#
my $session = session($node, 'Session');
is(ask($session, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'atomic_lock%'}), '0', 'no launcher on a standby');
is(ask($session, q{SELECT count(*) FROM app_lock}), '51', '... its rows stay');
like(ask($session, q{SELECT status FROM lock_sweeper_status() WHERE database IS NULL}), qr/standby|recovery/, 'lock_sweeper_status says why')
  or diag(ask($session, 'SELECT * FROM lock_sweeper_status()'));
start($session, 'SELECT lock_sweep()');
like(answer($session), qr/^ERROR:  25006/, 'lock_sweep() by hand: read-only');
my $postmaster = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/ ? $1 : die;
end($watch);
$primary->stop('fast');
$node->promote;
poll($session, 'SELECT NOT pg_is_in_recovery()');
ok(launcher($session), 'after the promotion there is a launcher');
ok(swept($session, 'a'), '... and rows are swept');
is(ask($session, q{SELECT string_agg(key, ' ') FROM app_lock}), 'live', '... only expired ones');
like(ask($session, q{SELECT status FROM lock_sweeper_status() WHERE database IS NULL}), qr/^running, /, '... lock_sweeper_status says so');
is(slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/ ? $1 : '', $postmaster, '... with no restart');

#
# Settings of databases and roles
#
ask($session, 'CREATE DATABASE odd');
$watch = session($node, 'Watch', 'odd');
ask($watch, q{
CREATE SCHEMA locks;
CREATE EXTENSION atomic_lock SCHEMA locks;
CREATE SCHEMA evil;
CREATE TABLE evil.app_lock (key text);
CREATE ROLE keeper;
ALTER TABLE locks.app_lock OWNER TO keeper;
SET search_path = locks});
my @settings = (
	q{default_transaction_read_only = on},
	q{default_transaction_isolation = 'serializable'},
	q{default_transaction_deferrable = on},
	q{search_path = 'evil, pg_catalog'},
	q{search_path = ''},
	q{search_path = 'no_such_schema', 'pg_temp'},
	q{synchronous_commit = remote_apply},
	q{lock_timeout = 1},
	q{statement_timeout = 1},
	q{idle_in_transaction_session_timeout = 1},
	q{row_security = off},
	q{role = keeper},
	q{default_table_access_method = 'heap'},
	q{session_replication_role = replica},
	q{client_min_messages = error},
	q{check_function_bodies = off},
	q{atomic_lock.owner = 'somebody'},
	q{atomic_lock.max_claims_per_transaction = 1},
	q{atomic_lock.enforce_guards = off},
	q{jit_above_cost = 0});
push @settings, q{transaction_timeout = 1} if $node->pg_version >= 17;
foreach my $setting (@settings)
{
	foreach my $whose ('DATABASE odd', 'ROLE ' . ask($session, 'SELECT current_user'), 'ROLE keeper')
	{
		# For roles, only the settings that could matter are tried.
		next if $whose ne 'DATABASE odd' && $setting !~ /read_only|serializable|evil|role =/;
		ask($watch, "ALTER $whose SET $setting");
		expire($watch, 'set', 3);
		ok(swept($watch, 'set'), "ALTER $whose SET $setting");
		ask($watch, "ALTER $whose RESET ALL");
	}
}
ask($watch, "ALTER DATABASE odd SET $_") for (q{default_transaction_read_only = on}, q{default_transaction_isolation = 'serializable'}, q{search_path = 'evil'});
expire_rows($watch, 'set', 1500);
ok(swept($watch, 'set'), 'many settings at once, more than one batch');
ask($watch, 'ALTER DATABASE odd RESET ALL; ALTER DATABASE odd CONNECTION LIMIT 0');
expire($watch, 'limit', 3);
ok(swept($watch, 'limit'), 'a database with CONNECTION LIMIT 0 is swept');
ask($watch, 'ALTER DATABASE odd CONNECTION LIMIT -1; REVOKE CONNECT ON DATABASE odd FROM PUBLIC; REVOKE USAGE ON SCHEMA locks FROM PUBLIC; REVOKE ALL ON locks.app_lock FROM keeper');
expire($watch, 'revoke', 3);
ok(swept($watch, 'revoke'), 'a table whose owner has no rights is swept');
ask($watch, 'GRANT ALL ON locks.app_lock TO keeper');
ask($watch, 'SET default_transaction_read_only = off; SET default_transaction_isolation = "read committed"; SET statement_timeout = 0; SET lock_timeout = 0');
configure($node, $watch, 'default_transaction_read_only = on', q{default_transaction_isolation = 'serializable'}, 'default_transaction_deferrable = on', 'lock_timeout = 1', 'statement_timeout = 1');
expire($watch, 'all', 3);
ok(swept($watch, 'all'), 'settings of the server do not prevent a sweep');
configure($node, $watch, 'default_transaction_read_only = off', q{default_transaction_isolation = 'read committed'}, 'default_transaction_deferrable = off', 'lock_timeout = 0', 'statement_timeout = 0');
is(unexpected_lines($node, qr/cannot execute lock_sweep\(\) during recovery|FATAL:  terminating walreceiver|could not (?:connect|receive|send)|WARNING:  .*search_path/), '', 'nothing unexpected in the log');

#
# Code of the table's owner: each piece writes a line to the log when it runs,
# also when the transaction is rolled back.
#
ask($watch, q{
CREATE SCHEMA keeper AUTHORIZATION keeper;
GRANT USAGE, CREATE ON SCHEMA locks TO keeper;
SET ROLE keeper;
CREATE FUNCTION keeper.ran() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE LOG 'ran: % as % of %', tg_name, current_user, session_user; RETURN coalesce(old, new); END $$;
CREATE FUNCTION keeper.ran(i int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN RAISE LOG 'ran: index as % of %', current_user, session_user; RETURN i; END $$;
CREATE FUNCTION keeper.policy() RETURNS bool LANGUAGE plpgsql STABLE AS $$
BEGIN RAISE LOG 'ran: policy as % of %', current_user, session_user; RETURN false; END $$;
CREATE FUNCTION keeper.compare(text, text) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN RAISE LOG 'ran: comparison as % of %', current_user, session_user; RETURN bttextcmp($1, $2); END $$;
RESET ROLE});
# by no superuser, so that nothing but the sweep could make the code run
my $ran = 0;
sub ran
{
	my $found = count_in_log($node, qr/ran: /);
	my $new = $found - $ran;
	$ran = $found;
	return $new;
}

# Run SQL as the owner, and make sure that its code shows in the log when it runs.
sub make
{
	my ($name, $sql, $proof) = @_;

	ask($watch, "SET ROLE keeper; $sql; RESET ROLE");
	ran();
	if ($proof)
	{
		start($watch, "BEGIN; SET LOCAL ROLE keeper; $proof; ROLLBACK; RESET ROLE");
		answer($watch);
		cmp_ok(ran(), '>', 0, "$name: the log shows when it runs") or diag($name);
	}
	return;
}

# A row is made without running code of the owner, and then swept.
my $key = 0;
sub sweep_both
{
	my ($name, $is_swept) = @_;

	start($watch, q{SELECT count(*) FROM lock_acquire('own-1', '1 ms', 'o')});
	my $acquired = answer($watch);
	note $acquired;
	is(ran(), 0, "$name: no code of the owner runs when a key is acquired");
	if ($is_swept)
	{
		is($acquired, '1', '... the key is acquired');
		ok(swept($watch, 'own'), '... and the row is swept');
		is(ask($watch, q{SELECT lock_acquire('own-2', '1 ms', 'o') IS NOT NULL; SELECT lock_sweep() < 2}), "t\nt", '... also by hand');
		ok(swept($watch, 'own'), '... and is removed');
	}
	else
	{
		# in a session that has not looked at the indexes yet, like the worker
		my $fresh = session($node, 'Fresh', ask($watch, 'SELECT current_database()'));
		start($fresh, q{SELECT locks.lock_sweep() >= 0});
		unlike(answer($fresh), qr/does not exist/, "$name: swept by hand, or refused");
		end($fresh);
	}
	is(ran(), 0, "$name: no code of the owner runs in a sweep");
	return;
}

make('triggers', q{
CREATE TRIGGER t1 BEFORE DELETE ON locks.app_lock FOR EACH ROW EXECUTE FUNCTION keeper.ran();
CREATE TRIGGER t2 AFTER DELETE ON locks.app_lock FOR EACH ROW EXECUTE FUNCTION keeper.ran();
CREATE TRIGGER t3 BEFORE DELETE ON locks.app_lock FOR EACH STATEMENT EXECUTE FUNCTION keeper.ran();
CREATE TRIGGER t4 AFTER DELETE ON locks.app_lock REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION keeper.ran();
CREATE CONSTRAINT TRIGGER t5 AFTER DELETE ON locks.app_lock DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION keeper.ran();
CREATE TRIGGER t6 BEFORE UPDATE ON locks.app_lock FOR EACH ROW EXECUTE FUNCTION keeper.ran();
ALTER TABLE locks.app_lock ENABLE ALWAYS TRIGGER t1}, 'DELETE FROM locks.app_lock');
sweep_both('triggers', 1);
make('no triggers', join ';', map { "DROP TRIGGER t$_ ON locks.app_lock" } (1 .. 6));

make('rules', q{CREATE RULE r1 AS ON DELETE TO locks.app_lock DO ALSO SELECT keeper.policy();
CREATE RULE r2 AS ON UPDATE TO locks.app_lock DO INSTEAD SELECT keeper.policy()}, 'DELETE FROM locks.app_lock');
sweep_both('rules', 1);
make('no rules', 'DROP RULE r1 ON locks.app_lock; DROP RULE r2 ON locks.app_lock');

make('policies', q{CREATE POLICY p1 ON locks.app_lock USING (keeper.policy()); ALTER TABLE locks.app_lock ENABLE ROW LEVEL SECURITY; ALTER TABLE locks.app_lock FORCE ROW LEVEL SECURITY});
ask($watch, q{INSERT INTO locks.app_lock (fencing_token, acquired_at, expires_at, ttl_us, slot, role, key, mode, holder, owner) VALUES (1, 'infinity', 'infinity', 1, 0, 0, 'live', 'exclusive', 'x', 'o')});
make('policies', '', 'SELECT count(*) FROM locks.app_lock');
sweep_both('policies', 1);
make('no policies', 'ALTER TABLE locks.app_lock DISABLE ROW LEVEL SECURITY; ALTER TABLE locks.app_lock NO FORCE ROW LEVEL SECURITY; DROP POLICY p1 ON locks.app_lock');

make('a foreign key', q{CREATE TABLE keeper.child (key text COLLATE "C", slot int, FOREIGN KEY (key, slot) REFERENCES locks.app_lock ON DELETE CASCADE);
CREATE TRIGGER t BEFORE DELETE ON keeper.child FOR EACH STATEMENT EXECUTE FUNCTION keeper.ran();
INSERT INTO keeper.child SELECT key, slot FROM locks.app_lock}, 'DELETE FROM locks.app_lock');
sweep_both('a foreign key', 1);
make('no foreign key', 'DROP TABLE keeper.child');

# The sweep must neither use these nor look at them: the relation cache folds
# constants when it reads expressions or predicates.
foreach my $index (
	[ 'an index on an expression', 'CREATE INDEX own_idx ON locks.app_lock (keeper.ran(1))' ],
	[ 'an index on an expression of a column', 'CREATE INDEX own_idx ON locks.app_lock (keeper.ran(slot))' ],
	[ 'a unique index on an expression', 'CREATE UNIQUE INDEX own_idx ON locks.app_lock (key, slot, keeper.ran(1))' ],
	[ 'a partial index', 'CREATE INDEX own_idx ON locks.app_lock (key) WHERE keeper.ran(1) = 2' ],
	[ 'a partial index on columns', 'CREATE INDEX own_idx ON locks.app_lock (key, slot) WHERE keeper.ran(slot) = 2' ],
	[ 'an exclusion constraint', 'ALTER TABLE locks.app_lock ADD CONSTRAINT own_idx EXCLUDE USING btree (keeper.ran(2) WITH =) WHERE (keeper.ran(1) = 2)' ],
	[ 'extended statistics', 'CREATE STATISTICS locks.own_stat ON keeper.ran(1), (keeper.ran(slot) + 1) FROM locks.app_lock' ],
	[ 'a check', 'ALTER TABLE locks.app_lock ADD CONSTRAINT own_check CHECK (keeper.ran(1) = 1) NOT VALID' ])
{
	my ($name, $sql) = @$index;

	# While the index is created, its function runs, as the owner.
	expire($watch, 'own', 3);
	ok(swept($watch, 'own'), "$name: before");
	start($watch, "SET ROLE keeper; $sql");
	my $made = answer($watch);
	ask($watch, 'RESET ROLE');
	ran();
	is($made, '', "$name: created") or next;
	start($watch, q{BEGIN; SET LOCAL ROLE keeper; SELECT count(*) FROM locks.app_lock WHERE key = 'x'; INSERT INTO locks.app_lock (fencing_token, acquired_at, expires_at, ttl_us, slot, role, key, mode, holder, owner) VALUES (1, 'infinity', 'infinity', 1, 0, 0, 'more', 'exclusive', 'x', 'o'); ROLLBACK});
	answer($watch);
	cmp_ok(ran(), '>', 0, '... the log shows when its function runs');
	sweep_both($name, 0);
	# The worker comes to this database, and either sweeps it or logs a failure.
	start($session, q{SELECT lock_acquire('pass-x', '1 ms', 'o')});
	answer($session);
	ok(swept($session, 'pass'), '... the worker sweeps another database');
	ok(sweep_passes($session), '... again');
	is(ran(), 0, "$name: no code of the owner runs in the background sweep");
	ask($watch, $sql =~ /STATISTICS/ ? 'DROP STATISTICS locks.own_stat' : $sql =~ /CONSTRAINT (\w+)/ ? "ALTER TABLE locks.app_lock DROP CONSTRAINT $1" : 'DROP INDEX locks.own_idx');
	ran();
}
expire($watch, 'end', 3);
ok(swept($watch, 'end'), 'without these objects, the sweep works again');
is(ran(), 0, '... and no code of the owner runs');
cmp_ok(count_in_log($node, qr/LOG:  sweep of database "odd" failed/), '<=', 40, 'no flood of lines');

#
# A synchronous standby is missing.
#
configure($node, $session, q{synchronous_standby_names = 'nobody'}, q{atomic_lock.acquire_durability = session});
ask($_, 'SET synchronous_commit = local') for ($session, $watch);
expire($_, 'sync', 200) for ($session, $watch);
ok(swept($_, 'sync'), 'rows are swept without the synchronous standby') for ($session, $watch);
ok(sweep_passes($_), '... again') for ($session, $watch);
is(ask($session, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'}), '0', '... no session waits for it');
# A shutdown while the sweep has work
expire_rows($session, 'more', 20_000);
end($watch, $session);
$node->stop('fast');

done_testing();
