# The extension is created in a schema whose owner is hostile.
#
# Properties: no code that the owner of the target schema has planted there (of schema public
# by owning the database, or of another schema) runs with the rights of another role: not when
# a superuser or the schema's owner creates the
# extension, nor when a superuser selects from its views, calls those of its functions that are
# not in C, drops it, or dumps the database, whatever the search_path; no part of the
# extension depends on an object of that owner;
# where a planted function makes a call of the script ambiguous, CREATE EXTENSION fails.
#
# Turns red when: a view, a function or a DO block of the script uses a function,
# an operator, a cast or a relation of pg_catalog without its schema, except
# under a fixed search_path; a function of the extension is called with other types
# than those of its parameters.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('hostile');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
fsync = off
# each trap takes a lock until all are created
max_locks_per_transaction = 512
atomic_lock.sweep_interval = 0
});
$node->start;

# The lines of an answer.  The search_path has only pg_catalog, or the query would
# run into the traps itself.
sub rows
{
	my ($db, $sql) = @_;

	return split /\n/, $node->safe_psql($db, "SET search_path = pg_catalog; $sql");
}

#
# The names that the script uses, read from its text.  Bodies of functions stay in the text,
# since they are between $$.
#
$node->safe_psql('postgres', q{CREATE EXTENSION atomic_lock; CREATE ROLE regress_user; CREATE ROLE regress_mallory LOGIN});
my $sharedir = qx(pg_config --sharedir);
chomp $sharedir;
my $script = join "\n", map { slurp_file($_) } glob "$sharedir/extension/atomic_lock--*.sql";
my $code = $script =~ s{--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'}{ }gsr;
my %word = map { lc $_ => 1 } $code =~ /(\w+)/g;
my %called = map { lc $_ => 1 } $code =~ /(\w+)\s*\(/g;
# Operators, also those that keywords stand for
my %operator = map { $_ => 1 } $code =~ m{([-+*/<>=~!@#%^&|`?]+)}g, '=', '<>', '<', '<=', '>=', '~~', '!~~';

# Only names that exist, in pg_catalog or in the extension
my @operators = grep { $operator{$_} } rows('postgres', 'SELECT DISTINCT oprname FROM pg_operator');
my @relations = grep { $word{$_} } rows('postgres', q{SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relkind IN ('r', 'v')});
my @type_names = grep { $word{$_} } rows('postgres', q{SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typrelid = 0});
my %own = map { $_ => 1 } rows('postgres', q{SELECT proname FROM pg_proc, pg_depend WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid AND deptype = 'e' AND refclassid = 'pg_extension'::regclass
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'atomic_lock')});

# Signatures: [name, result, arguments...].  A result that no trap can have is
# replaced by text.
my $names = join ', ', map { "'$_'" } sort keys %called;
my @functions = map { [ split /\|/, $_, -1 ] } rows('postgres', qq{
	SELECT proname, CASE WHEN t.typtype = 'p' OR t.typnamespace <> 'pg_catalog'::regnamespace THEN '' ELSE format_type(t.oid, NULL) END,
		array_to_string(ARRAY(SELECT format_type(a, NULL) FROM unnest(proargtypes) WITH ORDINALITY u (a, n) ORDER BY n), '|')
	FROM pg_proc JOIN pg_type t ON t.oid = prorettype WHERE proname IN ($names)});
$#$_ = 1 for grep { $$_[2] eq '' } @functions;

# Types: those that the extension's functions take and return, its relations
# contain and its views read, and others that these can be cast to.
my @types = rows('postgres', q{
	WITH member AS (SELECT classid, objid FROM pg_depend WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
			AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'atomic_lock')),
		used (type) AS (
			SELECT unnest(prorettype || coalesce(proallargtypes, proargtypes::oid[])) FROM pg_proc JOIN member ON classid = 'pg_proc'::regclass AND objid = oid
			UNION SELECT atttypid FROM pg_attribute JOIN member ON classid = 'pg_class'::regclass AND objid = attrelid AND attnum > 0
			UNION SELECT atttypid FROM pg_rewrite r JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = r.ev_class
				JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refclassid = 'pg_class'::regclass
				JOIN pg_attribute ON attrelid = d.refobjid AND (attnum = d.refobjsubid OR d.refobjsubid = 0 AND attnum > 0)
			UNION SELECT unnest(ARRAY['oid', 'regclass', 'regprocedure', 'regproc', 'regnamespace', 'regrole', 'name', 'text', '"char"', 'int2', 'int4', 'int8',
				'bool', 'bytea', 'interval', 'timestamptz', 'inet', 'text[]', 'name[]', 'oid[]', 'varchar', 'aclitem[]', 'anyelement', 'anyarray', 'anynonarray', 'anycompatible',
				'anycompatiblearray']::regtype[]))
	SELECT DISTINCT format_type(oid, NULL) FROM used JOIN pg_type ON oid = type
	WHERE typnamespace = 'pg_catalog'::regnamespace AND (typtype <> 'p' OR typname ~ '^any(element|array|nonarray|compatible|compatiblearray)$')
	ORDER BY 1});
note "operators: @operators";
note 'functions: ', join ' ', sort keys %{ { map { $$_[0] => 1 } @functions } };
note "relations: @relations";
note 'types: ', join ', ', @types;
cmp_ok(scalar @operators, '>', 5, 'the script uses operators');
cmp_ok(scalar(grep { !$own{$$_[0]} } @functions), '>', 20, '... functions of pg_catalog');
cmp_ok(scalar(grep { $own{$$_[0]} } @functions), '>', 30, '... functions of the extension');
cmp_ok(scalar @relations, '>', 5, '... catalogs');
cmp_ok(scalar @type_names, '>', 10, '... types');

#
# The traps: each one writes its name to the log, and raises.
#
sub is_polymorphic
{
	return $_[0] =~ /^any/;
}

# Statements that create the traps in a schema
sub traps
{
	my ($schema) = @_;
	my %made;
	my $trap = sub {
		my ($name, $result, @arguments) = @_;
		my $signature = "$name(" . join(', ', map { s/^VARIADIC | DEFAULT .*//gr } @arguments) . ')';
		my ($said) = map { s/'/''/gr } $signature =~ s/^.*?\.//r;

		return if $made{$signature}++;
		return "CREATE FUNCTION $name(" . join(', ', @arguments) . ") RETURNS $result LANGUAGE plpgsql AS \$\$BEGIN RAISE LOG 'hostile: $said'; RAISE EXCEPTION 'hostile: $said'; END\$\$";
	};
	my @all = (@types, "$schema.mine");
	my @sql = ("CREATE TYPE $schema.mine AS (i integer)", $trap->("$schema.trap", 'boolean', 'text'));
	my %result;

	# With the extension's own signatures, CREATE EXTENSION would only fail.
	$made{"$schema.$$_[0](" . join(', ', @$_[ 2 .. $#$_ ]) . ')'} = 1 for grep { $own{$$_[0]} } @functions;
	# The result type: that of a function of that name, or one of the arguments
	$result{ $$_[0] } ||= $$_[1] for @functions;
	my $function = sub {
		my ($name, @arguments) = @_;
		my ($concrete) = grep { !is_polymorphic($_) } map { s/^VARIADIC | DEFAULT .*//gr } @arguments;

		push @sql, $trap->("$schema.$name", $result{$name} || $concrete || 'text', @arguments);
	};

	# Casts between a hostile type and every other, both ways
	foreach my $type (grep { !is_polymorphic($_) } @types)
	{
		my $cast = "$schema.cast_to_" . $type =~ s/\W/_/gr;

		push @sql, $trap->("$schema.cast_from", "$schema.mine", $type), "CREATE CAST ($type AS $schema.mine) WITH FUNCTION $schema.cast_from($type) AS IMPLICIT";
		push @sql, $trap->($cast, $type, "$schema.mine"), "CREATE CAST ($schema.mine AS $type) WITH FUNCTION $cast($schema.mine) AS IMPLICIT";
	}

	foreach my $operator (@operators)
	{
		foreach my $left (undef, @all)
		{
			foreach my $right (@all)
			{
				my $result = $operator =~ /^[<>=~!]/ || is_polymorphic($left // $right) ? 'boolean' : $left // $right;
				my @both = defined $left ? ($left, $right) : ($right);

				# Only some can be prefix operators.
				next if @both == 1 && $operator !~ /^[-+~@]$/;
				push @sql, $trap->("$schema.\"$operator\"", $result, @both);
				push @sql, "CREATE OPERATOR $schema.$operator (FUNCTION = $schema.\"$operator\", RIGHTARG = $right" . (@both > 1 ? ", LEFTARG = $left)" : ')');
			}
		}
	}

	# Functions of one or two arguments with all types; of more, with all types
	# for each argument; then those with optional or additional arguments
	foreach my $signature (@functions)
	{
		my ($name, undef, @arguments) = @$signature;
		my @usable = map { /^(?:"?any|internal$|cstring$)/ ? 'anyelement' : $_ } @arguments;

		if (@arguments == 1 || @arguments == 2)
		{
			foreach my $first (@all)
			{
				$function->($name, $first) if @arguments == 1;
				$function->($name, $first, $_) for @arguments == 1 ? () : @all;
			}
		}
		foreach my $i (0 .. $#arguments)
		{
			$function->($name, @usable[ 0 .. $i - 1 ], $_, @usable[ $i + 1 .. $#usable ]) for @all;
		}
		$function->($name, "VARIADIC $_") for grep { /\[\]$|^any(compatible)?array$/ } @types;
		$function->($name, @usable, "VARIADIC $_") for grep { /\[\]$/ } @types;
		$function->($name, @usable, 'integer DEFAULT 0') unless $own{$name};
	}

	# Relations, types
	push @sql, "CREATE VIEW $schema.$_ AS SELECT * FROM pg_catalog.$_ WHERE $schema.trap('relation $_')" for @relations;
	push @sql, "CREATE DOMAIN $schema.\"$_\" AS text CHECK ($schema.trap('type $_'))" for @type_names;
	return grep { defined } @sql;
}

# The names of the traps that have run since the last call, each once
my $seen = 0;
sub ran
{
	my $log = slurp_file($node->logfile, $seen);
	my %ran = map { $_ => 1 } $log =~ /LOG:  hostile: (.*)/g;

	$seen += length $log;
	return join '; ', sort keys %ran;
}

# No trap runs in this statement, and it works.
sub harmless
{
	my ($name, $db, $sql, @options) = @_;
	my ($stdout, $stderr);

	ran();
	my $status = $node->psql($db, "SET client_min_messages = warning; $sql", stdout => \$stdout, stderr => \$stderr, on_error_stop => 1, extra_params => \@options);
	is("$status $stderr", '0 ', "$name: works") or diag($sql);
	is(ran(), '', "$name: no trap runs");
	return $stdout;
}

# A trap runs in this statement.
sub springs
{
	my ($name, $db, $sql) = @_;
	my $stderr;

	ran();
	$node->psql($db, $sql, stderr => \$stderr);
	like($stderr, qr/ERROR:  hostile: /, "control: $name") or diag($sql);
	isnt(ran(), '', "control: $name: the trap is in the log");
	return;
}

# A view with names that are not qualified, as lock_guards once was
my $unqualified = q{
CREATE VIEW control_guards AS
	SELECT t.tgrelid::regclass AS relation,
		a.key_template,
		array_remove(ARRAY[
			CASE WHEN t.tgtype & 4 <> 0 THEN 'insert' END,
			CASE WHEN t.tgtype & 16 <> 0 THEN 'update' END,
			CASE WHEN t.tgtype & 8 <> 0 THEN 'delete' END], NULL) AS events,
		app_lock_guard_problem(t.tgrelid, t.tgname) AS problem
	FROM pg_catalog.pg_trigger t
		CROSS JOIN LATERAL (SELECT pg_catalog.convert_from(
			pg_catalog.substr(t.tgargs, 1, pg_catalog.length(t.tgargs) - 1),
			pg_catalog.getdatabaseencoding()) AS key_template) a
	WHERE t.tgfoid = 'lock_guard()'::regprocedure AND t.tgtype & 1 <> 0 AND t.tgnargs = 1};

# The arguments of a function, by the types of its parameters
my %arguments = (
	regrole => [q{CAST('regress_user' AS pg_catalog.regrole)}],
	text => [ map { "CAST('$_' AS pg_catalog.text)" } 'user', 'monitor', 'admin' ],
	boolean => [ 'true', 'false' ]);

sub calls
{
	my ($function, @parameters) = @_;
	my @calls = ('');

	foreach my $type (@parameters)
	{
		die "$function: say here what to call a function with that has a parameter of type $type" unless $arguments{$type};
		@calls = map { my $before = $_; map { $before eq '' ? $_ : "$before, $_" } @{ $arguments{$type} } } @calls;
	}
	return map { "SELECT $function($_)" } @calls;
}

# A call that schedules sweeps, made by a role.  It is refused: pg_cron is not installed, and a
# superuser may not schedule sweeps in a schema of another role.
sub refused_call
{
	my ($schema, $role, $call) = @_;

	return qq{BEGIN; SELECT $schema.lock_grant_access(CAST('regress_user' AS pg_catalog.regrole), CAST('admin' AS pg_catalog.text));
		SET LOCAL ROLE $role; DO \$\$ BEGIN EXECUTE '} . $call =~ s/'/''/gr . q{';
			EXCEPTION WHEN SQLSTATE '42501' OR SQLSTATE '55000' THEN NULL; END $$; ROLLBACK};
}

# The owner of the database owns the schema public.
$node->safe_psql('postgres', 'CREATE DATABASE of_public OWNER regress_mallory');
my @traps = traps('public');
$node->safe_psql('of_public', join(";\n", 'SET check_function_bodies = off', 'SET search_path = pg_catalog', 'BEGIN', @traps, 'COMMIT'), extra_params => [ '-U', 'regress_mallory' ]);
note scalar @traps, ' traps';
$node->safe_psql('postgres', 'CREATE DATABASE of_locks TEMPLATE of_public');
$node->safe_psql('of_locks', q{
ALTER SCHEMA public RENAME TO locks;
ALTER SCHEMA locks OWNER TO regress_mallory;
CREATE SCHEMA public;
GRANT USAGE ON SCHEMA public TO PUBLIC});
is(ran(), '', 'creating the traps runs none of them');

foreach my $schema ('public', 'locks')
{
	my $db = "of_$schema";
	my $members = q{(SELECT objid FROM pg_depend WHERE classid = 'pg_%s'::regclass AND deptype = 'e' AND refclassid = 'pg_extension'::regclass
		AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'atomic_lock'))};

	foreach my $search_path ('default', "$schema, pg_catalog", 'pg_catalog')
	{
		my $path = $search_path eq 'default' ? '' : "SET search_path = $search_path;";
		my $name = "in $schema, search_path $search_path";

		# The owner of the database may create the extension himself.
		my @creator = $schema eq 'public' && $search_path eq 'pg_catalog' ? ('-U', 'regress_mallory') : ();
		harmless("$name: CREATE EXTENSION", $db, "$path CREATE EXTENSION atomic_lock SCHEMA $schema", @creator);
		is( join('; ', rows($db, sprintf q{
				SELECT DISTINCT pg_describe_object(d.classid, d.objid, 0) || ' on ' || pg_describe_object(d.refclassid, d.refobjid, 0)
				FROM pg_depend d JOIN pg_shdepend o ON o.classid = d.refclassid AND o.objid = d.refobjid AND o.deptype = 'o' AND o.refobjid = 'regress_mallory'::regrole
				WHERE o.dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND d.refclassid NOT IN ('pg_namespace'::regclass, 'pg_extension'::regclass)
					AND (d.classid = 'pg_rewrite'::regclass AND d.objid IN (SELECT oid FROM pg_rewrite WHERE ev_class IN %s)
						OR d.classid = 'pg_constraint'::regclass AND d.objid IN (SELECT oid FROM pg_constraint WHERE conrelid IN %s)
						OR d.classid = 'pg_attrdef'::regclass AND d.objid IN (SELECT oid FROM pg_attrdef WHERE adrelid IN %s)
						OR d.classid = 'pg_class'::regclass AND d.objid IN %s
						OR d.classid = 'pg_type'::regclass AND d.objid IN %s
						OR d.classid = 'pg_proc'::regclass AND d.objid IN %s)},
				map { sprintf $members, $_ } qw(class class class class type proc))),
			'', "$name: no part of the extension depends on a hostile object");

		# Guards, on partitions too; leases; and a waiter
		harmless("$name: guards and leases", $db, qq{$path
			DROP SCHEMA IF EXISTS app CASCADE;
			CREATE SCHEMA app;
			CREATE TABLE app.t (id pg_catalog.int4, PRIMARY KEY (id));
			CREATE TABLE app.parts (id pg_catalog.int4) PARTITION BY RANGE (id);
			CREATE TABLE app.part PARTITION OF app.parts FOR VALUES FROM (1) TO (2);
			SELECT $schema.lock_protect(relation => 'app.t', key_template => 't:{id}', events => '{insert,update,delete}'),
				$schema.lock_protect(relation => 'app.parts', key_template => 'parts:{id}', separator => ':');
			SELECT $schema.lock_set_policy(prefix => 'forced', history => true, roles => ARRAY['regress_user'::pg_catalog.regrole]);
			SELECT $schema.lock_acquire(key => 't:1', owner => 'me'), $schema.lock_acquire(key => 'forced', owner => 'me');
			SELECT $schema.force_release(key => 'forced', reason => 'test');
			SELECT $schema.lock_try_acquire(key => 't:1', owner => 'you');
			SET atomic_lock.owner = 'me';
			INSERT INTO app.t VALUES (1);
			SELECT $schema.lock_fetch(row_type => NULL::app.t, id => '1', expect => '{"id": 1}')});
		my $holder = $node->background_psql($db, on_error_stop => 0);
		my $waiter = $node->background_psql($db, on_error_stop => 0);
		ask($holder, "SELECT $schema.lock_acquire(key => 'k', owner => 'me', lifetime => 'session')");
		harmless("$name: a ticket", $db, "$path SELECT $schema.lock_enqueue(key => 'k', owner => 'another', holder => 'Another'), $schema.lock_ask(key => 'k', message => 'please'), $schema.lock_channel(key => 'k')");
		$waiter->query_until(qr/waits/, "\\echo waits\nSELECT $schema.lock_acquire(key => 'k', owner => 'you', wait => '5 min');\n");
		$node->poll_query_until($db, "SELECT pg_catalog.count(*) OPERATOR(pg_catalog.=) 1 FROM $schema.lock_waiters()") or die;

		# Every view, and every function that is not in C
		my @views = rows($db, sprintf q{SELECT oid::regclass FROM pg_class WHERE relkind IN ('v', 'm') AND oid IN %s ORDER BY relname}, sprintf $members, 'class');
		cmp_ok(scalar @views, '>=', 5, "$name: views");
		foreach my $view (@views)
		{
			isnt(harmless("$name: $view", $db, "$path SELECT * FROM $view"), '', "$name: $view has rows");
		}
		# The waiter would wait for the ticket before it.
		harmless("$name: the ticket is given up", $db, "$path SELECT $schema.lock_leave(key => 'k', owner => 'another')");
		my @routines = map { [ split /\|/ ] } rows($db, sprintf q{
			SELECT oid::regproc, array_to_string(ARRAY(SELECT format_type(a, NULL) FROM unnest(proargtypes) WITH ORDINALITY u (a, n) ORDER BY n), '|')
			FROM pg_proc WHERE prolang <> (SELECT oid FROM pg_language WHERE lanname = 'c') AND oid IN %s ORDER BY proname}, sprintf $members, 'proc');
		cmp_ok(scalar @routines, '>=', 3, "$name: functions that are not in C");
		foreach my $routine (@routines)
		{
			my ($function, @parameters) = @$routine;

			$function = "$schema.$function" unless $function =~ /\./;
			my @calls = calls($function, @parameters);
			@calls = map { refused_call($schema, $_, $calls[0]) } 'NONE', 'regress_user' if $function =~ /schedule_sweep/;
			harmless("$name: $function", $db, join '; ', $path, @calls);
		}
		is( join('', rows($db, sprintf q{SELECT count(*) FROM pg_proc WHERE has_function_privilege('regress_user', oid, 'EXECUTE') AND oid IN %s}, sprintf $members, 'proc')),
			'0', "$name: lock_revoke_access has revoked every function that was granted");

		if ($search_path eq 'default')
		{
			springs('an operator', $db, qq{SET search_path = $schema; SELECT oid(0) = regprocedure '-'});
			springs('another operator', $db, qq{SET search_path = $schema; SELECT int2 '1' & 4});
			springs('a function with polymorphic arguments', $db, qq{SET search_path = $schema; SELECT array_remove(ARRAY['a'], NULL)});
			springs('a function of the extension', $db, qq{SET search_path = $schema; SELECT app_lock_guard_problem(oid '1', 'x')});
			springs('a cast', $db, qq{SELECT CAST(oid '1' AS $schema.mine)});
			springs('a type', $db, qq{SELECT CAST('x' AS $schema.text)});
			springs('a relation', $db, qq{SET search_path = $schema, pg_catalog; SELECT 1 FROM pg_trigger});
			springs('a view with unqualified names', $db, qq{SET search_path = $schema; $unqualified; SELECT * FROM control_guards});
			$node->safe_psql($db, "DROP VIEW $schema.control_guards");
		}
		if ($search_path eq 'default' && $schema eq 'public')
		{
			ran();
			$node->command_ok([ 'pg_dump', '-f', "$PostgreSQL::Test::Utils::tmp_check/$db.sql", $node->connstr($db) ], "$name: pg_dump");
			is(ran(), '', "$name: pg_dump runs no trap");
		}
		ask($holder, "SELECT $schema.lock_release(key => 'k', owner => 'me')");
		$_->quit for ($holder, $waiter);
		harmless("$name: lock_unprotect", $db, "$path SELECT $schema.lock_unprotect(relation => 'app.t'), $schema.lock_unprotect(relation => 'app.parts')");
		harmless("$name: DROP EXTENSION", $db, "$path DROP EXTENSION atomic_lock");
	}
}

#
# A function with the name and arguments of one of the extension's, and one more argument
# with a default, makes calls ambiguous: CREATE EXTENSION fails.  The test drops each function
# that made it fail, until the extension can be created.
#
my $refused = 0;
my (@planted, %of_name);
foreach my $signature (grep { $own{$$_[0]} } @functions)
{
	my ($function, undef, @arguments) = @$signature;

	s/^"any"$/anyelement/ for @arguments;
	push @planted, "CREATE FUNCTION locks.$function(" . join(', ', @arguments, 'locks.another DEFAULT NULL') . ") RETURNS boolean LANGUAGE plpgsql AS \$\$BEGIN RAISE LOG 'hostile: $function'; RAISE EXCEPTION 'hostile: $function'; END\$\$";
	push @{ $of_name{$function} }, "locks.$function(" . join(', ', @arguments, 'locks.another') . ')';
}
$node->safe_psql('of_locks', join('; ', 'CREATE TYPE locks.another AS ENUM ()', @planted), extra_params => [ '-U', 'regress_mallory' ]);
while (1)
{
	my $status = $node->psql('of_locks', 'BEGIN; CREATE EXTENSION atomic_lock SCHEMA locks; SELECT * FROM locks.lock_guards; SELECT * FROM locks.lock_activity; DROP EXTENSION atomic_lock; COMMIT',
		stderr => \my $stderr, on_error_stop => 1);

	is(ran(), '', 'a planted function with one more argument does not run');
	last if $status == 0;
	my ($function) = $stderr =~ /ERROR:  function (?:locks\.)?(\w+)\(.*\) is not unique/;
	ok($function && $of_name{$function}, '... CREATE EXTENSION fails, since a call is ambiguous: ' . ($function // $stderr)) or last;
	$node->safe_psql('of_locks', 'DROP FUNCTION ' . join ', ', @{ delete $of_name{$function} });
	$refused++;
}
cmp_ok($refused, '>', 0, 'some planted functions make CREATE EXTENSION fail');

$node->stop;
done_testing();
