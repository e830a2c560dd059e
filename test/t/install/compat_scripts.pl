# The scripts of sql/compat: their installation, and the objects that they create.
#
# Properties: make install installs each script, make uninstall leaves none; without the
# extension, a script fails, says what to do, and creates nothing; with it, in any schema, it
# works for a role that is no superuser and may create objects in its own schema only; it may
# be run again, also after DROP EXTENSION ... CASCADE, with the extension in another schema,
# creates the same each time, and loses no row; pg_dump and pg_restore bring back the same
# objects, which work; every object has a comment; only its owner may write to
# a relation, unless others are granted that; the script takes over no object of another role.
#
# Turns red when: a script is left out of the Makefile; a name is not qualified or not
# quoted; CREATE is without OR REPLACE or IF NOT EXISTS; a body names an object that
# a restore creates later; a script needs a right that its documentation does not name; its
# check of owners leaves out a name.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# For each script: its options besides -v schema, the SQL that must run before or after it, and
# a statement that shows that it works, with the answer
my %with = (
	forrst => {
		works => q{SELECT app.lock_forrst('{"protocol": {"name": "forrst"}, "id": "r", "call": {"function": "f"}, "extensions":
			[{"urn": "urn:forrst:ext:atomicLock", "options": {"key": "k", "ttl": {"value": 1, "unit": "second"}}}]}')#>>'{extensions,0,data,acquired}'},
		answer => 'true',
		after => q{CREATE FUNCTION app.f(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'; COMMENT ON FUNCTION app.f IS 'registered';
			INSERT INTO app.forrst_function VALUES ('f', 'app.f(jsonb)')},
	},
	laravel => {
		options => [ '-v', 'prefix=app_' ],
		works => q{INSERT INTO app.cache_locks VALUES ('app_k', 'o', extract(epoch FROM now())::int + 60); DELETE FROM app.cache_locks WHERE key = 'app_k' AND owner = 'o' RETURNING key},
		answer => 'app_k',
	},
	session_end => {
		options => [ '-v', 'table=app.session' ],
		before => q{CREATE TABLE app.session (id text PRIMARY KEY); COMMENT ON TABLE app.session IS 'sessions of the application'},
		works => q{SELECT set_config('search_path', extnamespace::regnamespace::text, false) FROM pg_extension WHERE extname = 'atomic_lock' \gset
			INSERT INTO app.session VALUES ('s');
			SELECT status FROM lock_acquire('k', owner => encode(sha256('s'), 'hex'));
			DELETE FROM app.session;
			SELECT locked FROM lock_status('k')},
		answer => "acquired\nf",
	},
	spring => {
		works => q{INSERT INTO app.int_lock (region, lock_key, client_id, created_date) VALUES ('r', 'k', 'c', now()); DELETE FROM app.int_lock WHERE lock_key = 'k' AND client_id = 'c' RETURNING lock_key},
		answer => 'k',
	},
);

my $source = 'sql/compat';
chomp(my $share = qx(pg_config --sharedir));
my $installed = "$share/extension/atomic_lock";
my @names = map { m{([^/]+)\.sql$} } sort glob("$source/*.sql");
my $tmp = $PostgreSQL::Test::Utils::tmp_check;

cmp_ok(scalar @names, '>=', 1, 'there are scripts');
is_deeply([ map { m{([^/]+)$} } sort glob("$installed/*") ], [ map { "$_.sql" } @names ], 'every script is installed, and nothing else');
is(slurp_file("$installed/$_.sql"), slurp_file("$source/$_.sql"), "$_ equals the source") foreach @names;

# Not as part of the make that runs this test
{
	delete local @ENV{qw(MAKEFLAGS MAKELEVEL MFLAGS)};
	my @make = ('make', '-s', '-C', "$source/../..", 'PG_CONFIG=' . (qx(pg_config --bindir) =~ s/\n//r) . '/pg_config', 'with_llvm=no', "DESTDIR=$tmp/compat_dest");
	my $there = sub { return grep { /compat_dest.*atomic_lock/ } split /\n/, qx(find $tmp/compat_dest -type f) };

	command_ok([ @make, 'install' ], 'make install');
	is(scalar(grep { m{/extension/atomic_lock/(\w+)\.sql$} } $there->()), scalar @names, '... with the scripts');
	command_ok([ @make, 'uninstall' ], 'make uninstall');
	is_deeply([ $there->() ], [], '... leaves no file');
}

my $node = PostgreSQL::Test::Cluster->new('compat');
$node->init;
$node->append_conf('postgresql.conf', "autovacuum = off\nfsync = off\n");
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE "Installer" LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE planter; GRANT planter TO "Installer"');

# Run a script as the role Installer; returns whether it succeeds, and its messages
sub script
{
	my ($name, $db, @options) = @_;
	my ($out, $err);
	my $ok = IPC::Run::run([ 'psql', '-Xq', '-d', $node->connstr($db) . ' user=Installer', '-v', 'schema=app', @{ $with{$name}{options} // [] }, @options, '-f', "$installed/$name.sql" ], '>', \$out, '2>', \$err);
	return ($ok, $err =~ s/^psql:\S+ NOTICE: .*\n//mgr);
}

# The objects in the schema, as pg_dump writes them, with one name for all schemas of the extension
sub made
{
	my ($db) = @_;
	my ($out, $err);

	IPC::Run::run([ 'pg_dump', '-d', $node->connstr($db), '-n', 'app' ], '>', \$out, '2>', \$err) or die $err;
	$out =~ s/^\\(?:un)?restrict .*\n//mg;
	$out =~ s/(?:"Odd ""locks"""|\bother)\./LOCKS./g;
	return $out;
}

# Create the extension, and grant what a role that runs scripts needs
sub prepare
{
	my ($db, $schema) = @_;
	$node->safe_psql($db, qq{
CREATE SCHEMA IF NOT EXISTS $schema;
CREATE EXTENSION atomic_lock SCHEMA $schema;
SELECT $schema.lock_grant_access('"Installer"', 'user');
GRANT SELECT (key, slot, role, released, expires_at, owner, meta) ON $schema.app_lock TO "Installer"});
	return;
}

# plproxy.sql creates nothing, but prints a script for other servers, which cluster/facade runs.
foreach my $name (grep { $_ ne 'plproxy' } @names)
{
	my $db = "db_$name";
	my ($ok, $err);
	my $works = sub {
		my ($in) = @_;
		return $node->safe_psql($in, $with{$name}{works}, extra_params => [ '-U', 'Installer' ]);
	};

	if (!$with{$name})
	{
		fail("this test knows how to try $name");
		next;
	}
	$node->safe_psql('postgres', "CREATE DATABASE $db; REVOKE ALL ON DATABASE $db FROM PUBLIC; GRANT CONNECT ON DATABASE $db TO PUBLIC");
	$node->safe_psql($db, 'CREATE SCHEMA app AUTHORIZATION "Installer"');
	$node->safe_psql($db, $with{$name}{before}, extra_params => [ '-U', 'Installer' ]) if $with{$name}{before};
	my $empty = made($db);

	($ok, $err) = script($name, $db);
	ok(!$ok, "$name: without the extension it fails");
	like($err, qr/ERROR: .*\batomic_lock"? is not installed in this database\n.*HINT: .*CREATE EXTENSION atomic_lock/, '... and says what to do');
	is(made($db), $empty, '... and creates nothing');

	prepare($db, '"Odd ""locks"""');
	($ok, $err) = script($name, $db);
	ok($ok, "$name: a role that is no superuser, and may create objects in its own schema only, runs it") or diag($err);
	is($err, '', '... without a message');
	$node->safe_psql($db, $with{$name}{after}, extra_params => [ '-U', 'Installer' ]) if $with{$name}{after};
	is($works->($db), $with{$name}{answer}, '... and it works');
	my $made = made($db);
	is(join(',', script($name, $db)), '1,', "$name: the script runs a second time");
	is(made($db), $made, '... creates the same, and keeps the rows');

	is( $node->safe_psql($db, q{
SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'app'::regnamespace AND c.relkind IN ('r', 'v') AND obj_description(c.oid, 'pg_class') IS NULL
UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'app'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL}),
		'', "$name: everything has a comment");
	is( $node->safe_psql($db, q{
SELECT oid::regclass, p FROM pg_class, unnest('{INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
WHERE relnamespace = 'app'::regnamespace AND relkind IN ('r', 'v') AND has_table_privilege('stranger', oid, p)}),
		'', "$name: a role without grants may not write");

	# A dump is restored; only the extension needs a superuser
	$node->command_ok([ 'pg_dump', '-Fc', '-f', "$tmp/$db.dump", '-d', $node->connstr($db) ], "$name: dump");
	$node->safe_psql('postgres', "CREATE DATABASE restored_$name");
	$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr("restored_$name"), "$tmp/$db.dump" ], '... restore');
	is(made("restored_$name"), $made, '... brings back the same objects');
	is($works->("restored_$name"), $with{$name}{answer}, '... which work');

	# The extension is created again, in another schema.
	$node->safe_psql($db, 'SET client_min_messages = warning; DROP EXTENSION atomic_lock CASCADE');
	is((script($name, $db))[0], '', "$name: without the extension it fails again");
	prepare($db, 'other');
	is(join(',', script($name, $db)), '1,', '... and works with one in another schema');
	is(made($db) =~ s/^SET .*\n//mgr, $made =~ s/^SET .*\n//mgr, '... creates the same, and keeps the rows');
	is($works->($db), $with{$name}{answer}, '... and it works');

	# Each object in turn belongs to a role that Installer is a member of: all
	# statements of the script would succeed, and leave the object to that role.
	foreach my $planted (split /\n/, $node->safe_psql($db, q{
SELECT CASE relkind WHEN 'v' THEN 'VIEW ' ELSE 'TABLE ' END || oid::regclass FROM pg_class
WHERE relnamespace = 'app'::regnamespace AND relkind IN ('r', 'v') AND relname <> 'session'
UNION ALL SELECT 'ROUTINE ' || oid::regprocedure FROM pg_proc WHERE pronamespace = 'app'::regnamespace AND proname <> 'f'}))
	{
		$node->safe_psql($db, "ALTER $planted OWNER TO planter");
		($ok, $err) = script($name, $db);
		ok(!$ok, "$name: $planted of another role is not taken over");
		like($err, qr/ERROR: .* belongs to another role\n/, '... and the error says so');
		$node->safe_psql($db, "ALTER $planted OWNER TO \"Installer\"");
	}
}
done_testing();
