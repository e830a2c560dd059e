# Keys, owners and labels as bytes: in databases of other encodings, and in the
# logs of the server.
#
# Properties: a key is a string of bytes in the encoding of its database, whatever
# the encoding of the client and the collation of the database are: lengths count bytes,
# texts are cut after a whole character, and invalid text is refused; control characters are
# escaped, also single bytes above 127, so no key, label or reason can forge a line or record
# of a log; an owner that acquire has generated is in no log, with all logging turned on, and
# not in pg_stat_statements; a forced end is logged though it is rolled back.  No setting,
# argument or role name that is invalid text in the encoding of the database is stored,
# however it got there.
#
# Turns red when: a byte is taken for a character, or for a control character
# where it is part of a character; the collation of the database decides; something
# besides the client's own text is logged with an owner in it; a setting is trusted
# although the server verifies only settings that come by SET.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('text');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
log_statement = none
autovacuum = off
atomic_lock.sweep_interval = 0
});
$node->start;

#
# Encodings.  Texts are bytes of the database's encoding, in hex: some characters,
# the number of bytes of each, and the same characters in UTF-8.
#
my %encodings = (
	SQL_ASCII => [ 'fffe80', 1, '' ],
	LATIN1 => [ 'e9fcdf', 1, 'c3a9c3bcc39f' ],
	WIN1252 => [ '80e9', 1, 'e282acc3a9' ],
	EUC_JP => [ 'c6fccbdc', 2, 'e697a5e69cac' ],
	UTF8 => [ 'e282ac', 3, 'e282ac' ]);
foreach my $encoding (sort keys %encodings)
{
	my ($hex, $width, $utf8) = @{ $encodings{$encoding} };
	my $db = 'in_' . lc $encoding;
	my $key = "convert_from('\\x$hex'::bytea, '$encoding')";
	my $character = substr $hex, 0, 2 * $width;
	my ($one, $two, $watch);

	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C'");
	$node->safe_psql($db, 'CREATE EXTENSION atomic_lock');
	($one, $two, $watch) = map { session($node, $_, $db) } ('One', 'Two', 'Watch');
	# so that answers are ASCII in any case
	ask($_, 'SET client_encoding = SQL_ASCII') for ($one, $two, $watch);

	is(ask($one, "SELECT status FROM lock_acquire($key, '1 hour', $key, holder => $key, meta => to_jsonb('x'::text))"), 'acquired', "$encoding: acquired");
	is(ask($two, "SELECT status, holder = $key FROM lock_try_acquire($key, owner => 'two')"), 'held|t', '... the key is held');
	is(ask($two, "SELECT lock_is_held($key, $key), count(*) FROM app_lock WHERE convert_to(key, '$encoding') = '\\x$hex'"), 't|1', '... as these bytes');
	is(ask($two, "SELECT strpos(lock_explain($key), 'Lock \"' || $key || '\" is held in exclusive mode.') = 1, lock_explain($key) LIKE '%The holder is \"' || $key || '\".%', lock_explain($key) LIKE '%.lock_acquire(''' || $key || ''', wait => NULL);%'"), 't|t|t', '... lock_explain shows them, also in a statement');
	is(ask($two, "SELECT status FROM lock_try_acquire(convert_from('\\x${hex}20'::bytea, '$encoding'), owner => 'two')"), 'acquired', '... one byte more is another key');
	ask($two, q{SELECT lock_release_all('two')});

	# Another encoding of the client
	if ($utf8 ne '')
	{
		my $text = pack 'H*', $utf8;

		ask($two, 'SET client_encoding = UTF8');
		is(ask($two, "SELECT status FROM lock_try_acquire('$text', owner => 'two')"), 'held', '... by a client in UTF-8, too');
		like(reply($two, "SELECT lock_acquire('$text', owner => 'two')"), qr/55P03: lock "$text" is held by $text\n/, '... whose error shows key and holder in UTF-8');
		is(ask($two, "SELECT lock_release('$text', '$text')"), 't', '... and may present the owner');
		ask($two, 'SET client_encoding = SQL_ASCII');
		ask($one, "SELECT lock_acquire($key, '1 hour', $key, holder => $key)");
	}

	# Lengths count bytes: as many characters as fit, and one more
	my ($keys, $owners) = (int(1024 / $width), int(255 / $width));
	my $many = sub { return "convert_from(decode(repeat('$character', $_[0]), 'hex'), '$encoding')" };
	is(ask($two, "SELECT status, octet_length(key) FROM lock_acquire(@{[ $many->($keys) ]}, owner => @{[ $many->($owners) ]}, holder => @{[ $many->($owners) ]})"), 'acquired|' . $keys * $width, "... $keys characters are a key");
	like(reply($two, "SELECT lock_acquire(@{[ $many->($keys + 1) ]})"), qr/ 22023:/, '... one more is too long');
	like(reply($two, "SELECT lock_acquire('k', owner => @{[ $many->($owners + 1) ]})"), qr/ 22023:/, '... nor an owner of ' . ($owners + 1));

	# The label is cut for shared memory.
	queue_up($watch, $one, "SELECT status FROM lock_acquire(@{[ $many->($keys) ]}, owner => 'one', holder => @{[ $many->($owners) ]}, wait => '5 min')");
	is(ask($watch, "SELECT key = @{[ $many->($keys) ]}, octet_length(holder), octet_length(holder) % $width FROM lock_waiters"), 't|' . $width * int(63 / $width) . '|0', '... its waiter is shown, with a label cut after a character');
	is(ask($two, "SELECT lock_release_all(@{[ $many->($owners) ]})"), '1', '... released');
	is(answer($one), 'acquired', '... and granted');
	ask($one, q{SELECT lock_release_all('one')});

	# Control characters, and bytes of other characters
	my $control = $encoding eq 'UTF8' ? 'c29b' : '9b';
	my $of_text = $encoding =~ /EUC|WIN|ASCII/ ? '' : qq{convert_from('\\x61${control}62'::bytea, '$encoding')};
	if ($of_text ne '')
	{
		ask($one, "SELECT lock_acquire($of_text, '1 hour', 'one')");
		like(reply($two, "SELECT lock_acquire($of_text)"), qr/lock "a(?:\\x[0-9a-f]{2})+b" is held/, '... a control character above 127 is escaped');
		like(ask($two, "SELECT lock_explain($of_text)"), qr/^Lock "a(?:\\x[0-9a-f]{2})+b" is held.*^SELECT [^\n]*\(E'a(?:\\x[0-9a-f]{2})+b', wait/ms, '... also in the lines of lock_explain');
		ask($one, q{SELECT lock_release_all('one')});
	}
	like(reply($two, "SELECT lock_acquire(E'a\\x0ab\\x1b[31m', owner => 'two'), lock_acquire(E'a\\x0ab\\x1b[31m')"), qr/lock "a\\x0ab\\x1b\[31m" is/, '... like those below 32');
	like(reply($two, "SELECT lock_acquire($key)"), qr/lock "@{[ quotemeta pack('H*', $hex) ]}" is held by @{[ quotemeta pack('H*', $hex) ]}\n/, '... other bytes are not escaped') unless $encoding eq 'SQL_ASCII';
	if ($encoding =~ /EUC|UTF8/)
	{
		my ($half, $err) = (substr($character, 0, 2));
		$node->psql($db, "CREATE TEMP TABLE bad (key text);\nCOPY bad FROM STDIN;\n" . pack('H*', $half) . "\n\\.\n", stderr => \$err, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
		like($err, qr/22021: +invalid byte sequence/, '... half a character is refused in COPY');
		like(reply($two, "SELECT lock_acquire(E'x\\x$half')"), qr/22021: +invalid byte sequence/, '... nor as a literal');
		like(reply($two, "PREPARE p(text) AS SELECT lock_acquire(\$1); EXECUTE p(E'x\\x$half')"), qr/22021: +invalid byte sequence/, '... nor as a parameter');
	}
	end($one, $two, $watch);
}

# A database with a collation that ignores case
my (undef, undef, $no_icu) = $node->psql('postgres', q{CREATE DATABASE icu TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'und-u-ks-level1-kn-true'});
SKIP:
{
	skip "no ICU: $no_icu", 5 if $no_icu =~ /ERROR/;

	$node->safe_psql('icu', 'CREATE EXTENSION atomic_lock');
	my $icu = session($node, 'ICU', 'icu');
	is(ask($icu, q{SELECT count(*) FILTER (WHERE acquired), count(DISTINCT fencing_token) FROM unnest(ARRAY['a', 'A', 'ä', 'item 2', 'item 02', 'item 10']) k, lock_try_acquire(k, owner => 'o ' || k)}), '6|6', 'a database with a collation of ICU: keys are bytes');
	is(ask($icu, q{SELECT string_agg(key, ',') FROM lock_acquire_all(ARRAY['x10', 'x2', 'X2', 'x02'], owner => 'o')}), 'X2,x02,x10,x2', '... in the order of their bytes');
	is(ask($icu, q{SELECT lock_release_all('o A'), lock_is_held('a', 'o a'), lock_release_all('o item 2'), lock_is_held('item 02', 'o item 02')}), '1|t|1|t', '... and owners, too');
	is(ask($icu, q{SELECT collcollate, collname FROM pg_attribute a JOIN pg_collation c ON c.oid = attcollation WHERE attrelid = 'app_lock'::regclass AND attname = 'key'}), 'C|C', '... since the column says so');
	is(ask($icu, q{SELECT lock_sweep() >= 0, (SELECT count(*) FROM lock_status())}), 't|8', '... all other leases are still there');
	end($icu);
}
$node->stop;
log_is_clean($node);

#
# Settings and names that the server has not verified: options of the startup packet,
# settings from a database of another encoding, and the configuration file
#
my $rough = PostgreSQL::Test::Cluster->new('rough');
$rough->init;
$rough->append_conf('postgresql.conf', "log_statement = none\nautovacuum = off\nmax_prepared_transactions = 5\n");
$rough->start;
$rough->safe_psql('postgres', "CREATE DATABASE $_ TEMPLATE template0 ENCODING '$_' LC_COLLATE 'C' LC_CTYPE 'C'") for ('utf8', 'latin1');
$rough->safe_psql('utf8', q{
CREATE EXTENSION atomic_lock;
CREATE ROLE app;
CREATE ROLE by_role LOGIN IN ROLE app;
CREATE ROLE plain LOGIN IN ROLE app;
SELECT lock_grant_access('app', 'user'), lock_grant_access('app', 'admin'), lock_set_policy('h:', history => true);
CREATE TABLE doc (id int PRIMARY KEY, x int);
INSERT INTO doc VALUES (1, 1);
SELECT lock_protect('doc', 'doc:{id}');
GRANT ALL ON doc TO app});
# Names of roles are shared by all databases, and have no encoding.
my $role = "r\xe9";
my $role_oid = $rough->safe_psql('latin1', q{
SET client_encoding = SQL_ASCII;
DO $$ BEGIN EXECUTE format('CREATE ROLE %I LOGIN IN ROLE app', E'r\xe9'); END $$;
SELECT oid FROM pg_roles WHERE rolname = E'r\xe9'});

# Calls that take the owner from the setting
my @uses = (
	q{lock_acquire('x')}, q{lock_acquire('x', mode => 'shared')}, q{lock_acquire('x', lifetime => 'session')}, q{lock_acquire('x', lifetime => 'transaction')}, q{lock_try_acquire('x')},
	q{lock_acquire('x', wait => '10 ms')}, q{lock_acquire_all(ARRAY['x', 'y'])}, q{lock_try_acquire_all(ARRAY['x', 'y'])}, q{lock_convert('k')}, q{lock_transfer('k', NULL, 'new')}, q{lock_release('k')}, q{lock_try_release('k')},
	q{lock_release_all()}, q{lock_extend('k')}, q{lock_try_extend('k')}, q{lock_extend_all()}, q{lock_assert('k')}, q{lock_assert_fence('k', 1)}, q{lock_is_held('k')}, q{lock_fetch(NULL::doc, '1')}, q{lock_fetch(NULL::doc, '1', key => 'x')});
# A function that makes every call with one argument of invalid text.  Internal functions are
# not for callers, and lock_guard() is a trigger.
my $arguments = <<'SQL';
CREATE FUNCTION pg_temp.calls(OUT proc text, OUT "call" text, OUT "state" text) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	bad constant text := $b$current_setting('my.x')$b$;
	p record; value text;
BEGIN
	FOR p IN
		SELECT r.proname::text AS name, r.pronargs, r.pronargdefaults, r.proargnames AS names, a.n AS bad_at, format_type(t.t, NULL) AS bad_type,
			ARRAY(SELECT format_type(x, NULL) FROM unnest(r.proargtypes) WITH ORDINALITY y (x, n) ORDER BY n) AS types, r.provariadic <> 0 AS is_variadic
		FROM pg_depend d
			JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'atomic_lock'
			JOIN pg_proc r ON r.oid = d.objid
			CROSS JOIN generate_series(1, r.pronargs) a (n)
			CROSS JOIN LATERAL (SELECT r.proargtypes[a.n - 1]) t (t)
		WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
			AND r.proname NOT LIKE 'app\_lock\_%'
			AND t.t = ANY ('{text,text[],jsonb,"\"any\""}'::regtype[])
		ORDER BY r.proname, r.pronargs, a.n
	LOOP
		FOREACH value IN ARRAY CASE
			WHEN p.is_variadic THEN ARRAY[bad]
			ELSE CASE p.bad_type WHEN 'text' THEN ARRAY[bad, $b$'a' || $b$ || bad]
				WHEN 'text[]' THEN ARRAY[format('ARRAY[%s]', bad), format('ARRAY[''update'', %s]', bad)]
				ELSE ARRAY[format('to_jsonb(%s)', bad), format('jsonb_build_object(%s, 1)', bad), format($b$jsonb_build_object('a', jsonb_build_array(1, jsonb_build_object('b', %s)))$b$, bad)] END END
		LOOP
			proc := p.name;
			"call" := format('%s(%s)', p.name, (
				SELECT string_agg(CASE WHEN p.is_variadic THEN '' ELSE quote_ident(p.names[n]) || ' => ' END || CASE WHEN n = p.bad_at THEN value ELSE CASE p.types[n]
					WHEN 'text' THEN CASE p.names[n] WHEN 'level' THEN $b$'user'$b$ ELSE $b$'doc'$b$ END
					WHEN 'text[]' THEN $b$'{doc}'$b$
					WHEN 'anyelement' THEN 'NULL::doc' WHEN 'regclass' THEN $b$'doc'$b$ WHEN 'regrole' THEN $b$'app'$b$
					WHEN 'timestamp with time zone' THEN 'now()' ELSE '1' END END, ', ' ORDER BY n)
				FROM generate_series(1, p.pronargs) n
				WHERE n = p.bad_at OR n <= p.pronargs - p.pronargdefaults));
			BEGIN
				EXECUTE 'SELECT ' || "call";
				"state" := 'none';
			EXCEPTION WHEN OTHERS THEN
				"state" := SQLSTATE;
			END;
			RETURN NEXT;
		END LOOP;
	END LOOP;
END
$$;
SQL
# A session whose setting is invalid text: every call that would use it fails.
sub check_rough
{
	my ($watch, $how, $psql) = @_;
	my @passed = grep { told($psql, "SELECT $_") ne '22021' } @uses;

	is("@passed", '', "$how: calls that use atomic_lock.owner raise 22021") or diag(map { told($psql, "SELECT $_") . "\n" } @passed);
	is(told($psql, 'UPDATE doc SET x = x + 1'), '22021', '... so does a guard');
	like(told($psql, q{BEGIN; SAVEPOINT a; SELECT lock_acquire('x'); ROLLBACK TO a; SELECT status FROM lock_acquire('x', owner => 'given'); COMMIT}), qr/22021|acquired/, '... in a transaction, too');
	ask($watch, q{SELECT lock_release_all('given')});
	is(told($psql, q{SELECT status FROM lock_acquire('given', owner => 'given'); SELECT lock_is_held('given', 'given'), lock_release('given', 'given')}), "acquired\nt|t", '... an owner as an argument works');
	like(told($psql, q{SELECT locked, holder FROM lock_status('k')}), qr/^(?:t\|Keeper|22021)$/, '... a look at a key shows it, or raises the same');
	is(told($psql, q{SET atomic_lock.owner = 'valid'; SELECT status FROM lock_acquire('x'); SELECT lock_release('x'); RESET atomic_lock.owner}), "acquired\nt", '... so does an owner that is set by SET');
	is(told($psql, q{SELECT lock_acquire('x')}), '22021', '... until RESET');
	# as others see it
	is(told($watch, q{SET client_encoding = LATIN1; SELECT count(convert_to(owner, 'UTF8')) = count(owner) AND count(convert_to(holder, 'UTF8')) = count(*) FROM app_lock; SELECT key, owner, holder FROM lock_status()}), "t\nk||Keeper", '... app_lock contains only valid text');
	ask($watch, q{RESET client_encoding; TRUNCATE app_lock; SELECT count(*) FROM lock_acquire('k', '1 hour', 'keeper', holder => 'Keeper')});
	end($psql);
	return;
}

foreach my $preloaded (0, 1)
{
	my $where = $preloaded ? 'preloaded' : 'not preloaded';
	my $watch;

	$rough->append_conf('postgresql.conf', "shared_preload_libraries = '" . ($preloaded ? 'atomic_lock' : '') . "'\nsession_preload_libraries = ''\n");
	$rough->restart;
	$watch = session($rough, 'Watch', 'utf8');
	ask($watch, q{TRUNCATE app_lock; SELECT count(*) FROM lock_acquire('k', '1 hour', 'keeper', holder => 'Keeper')});

	# The startup packet
	foreach my $bytes ("\xff", "\xe9t\xe9", "valid\xc3", "\xc0\xaf", "\xed\xa0\x80", "keeper\xf5\x80\x80\x80")
	{
		local $ENV{PGOPTIONS} = "-c atomic_lock.owner=$bytes";
		check_rough($watch, "$where, startup packet, " . unpack('H*', $bytes), session($rough, 'Rough', 'utf8'));
	}
	{
		local $ENV{PGOPTIONS} = "-c atomic_lock.owner=\xc3\xa9t\xc3\xa9";
		my $psql = session($rough, 'Valid', 'utf8');
		is(told($psql, q{SELECT owner = U&'\00E9t\00E9' FROM lock_acquire('x'); SELECT lock_release('x')}), "t\nt", "$where: valid text is an owner");
		end($psql);
	}
	# A setting from a database of another encoding, where it was valid
	$rough->safe_psql('latin1', q{SET client_encoding = SQL_ASCII; ALTER ROLE by_role SET atomic_lock.owner = E'\xe9'});
	{
		local $ENV{PGUSER} = 'by_role';
		check_rough($watch, "$where, ALTER ROLE", session($rough, 'Rough', 'utf8'));
	}
	$rough->safe_psql('latin1', q{SET client_encoding = SQL_ASCII; ALTER ROLE by_role RESET atomic_lock.owner; ALTER DATABASE utf8 SET atomic_lock.owner = E'\xe9'});
	{
		local $ENV{PGUSER} = 'plain';
		check_rough($watch, "$where, ALTER DATABASE", session($rough, 'Rough', 'utf8'));
	}
	$rough->safe_psql('latin1', q{ALTER DATABASE utf8 RESET atomic_lock.owner});
	# The configuration file, for sessions that are connected and for new ones
	{
		my $old = session($rough, 'Rough', 'utf8');
		ask($old, 'SELECT count(*) FROM lock_waiters') if $preloaded;
		is(told($old, q{SELECT lock_is_held('k', 'keeper')}), 't', "$where: a session that has loaded the library");
		append_to_file($rough->data_dir . '/postgresql.conf', "atomic_lock.owner = 'keeper\xff'\n");
		$rough->reload;
		poll($old, q{SELECT octet_length(current_setting('atomic_lock.owner')) = 7});
		check_rough($watch, "$where, configuration file, reloaded", $old);
		check_rough($watch, "$where, configuration file", session($rough, 'Rough', 'utf8'));
		append_to_file($rough->data_dir . '/postgresql.conf', "atomic_lock.owner = ''\n");
		$rough->reload;
	}

	# Each argument of each function in the catalog: invalid text raises 22021.
	{
		local $ENV{PGOPTIONS} = "-c my.x=\xe9\xff";
		my $psql = session($rough, 'Arguments', 'utf8');

		ask($psql, "SET atomic_lock.owner = 'o'; $arguments");
		is(ask($psql, q{SELECT string_agg(concat_ws(' ', "call", "state"), E'\n') FROM pg_temp.calls() WHERE "state" <> '22021'}), '', "$where: arguments of invalid text raise 22021");
		is(ask($psql, q{SELECT count(*) > 80, count(DISTINCT proc) > 40 FROM pg_temp.calls()}), 't|t', '... which were more than 80 calls of more than 40 functions');
		end($psql);
	}

	# The default label is the name of the role, which is invalid text here.
	{
		local $ENV{PGUSER} = $role;
		my $psql = session($rough, 'Role', 'utf8');

		is(told($psql, q{SET application_name = ''; SELECT status, holder FROM lock_acquire('role', owner => 'o')}), "acquired|r?", "$where: invalid bytes of a role name are shown as question marks");
		is(told($psql, q{SELECT status, holder FROM lock_acquire('role, shared', owner => 'o', mode => 'shared'); SELECT holder FROM lock_acquire('role, session', owner => 'o', lifetime => 'session')}), "acquired|r?\nr?", '... in each mode');
		is(told($psql, q{SELECT holder FROM lock_transfer('role', 'o', 'p')}), "r?", '... after a transfer');
		is(told($psql, q{BEGIN; SELECT holder FROM lock_acquire('role, transaction', owner => 'o', lifetime => 'transaction')}), "r?", '... and with lifetime transaction');
		is(told($watch, q{SELECT (lock_try_acquire(k, owner => 'other')).holder FROM unnest(ARRAY['role', 'role, transaction']) k}), $preloaded || $node->pg_version >= 17 ? "r?\nr?" : "r?\n", '... also to others');
		is(told($watch, q{SET client_encoding = LATIN1; SELECT count(convert_to(holder, 'UTF8')), count(*), bool_and(holder ~ '^(r[?]|Keeper)$') FROM app_lock WHERE NOT released}), '4|4|t', '... and the label in app_lock is valid text');
		ask($watch, 'RESET client_encoding');
		is(told($psql, 'COMMIT; ' . q{SELECT lock_release_all('o') + lock_release_all('p')}), '3', '... released');
		end($psql);
	}
	# Waits of this role
	SKIP:
	{
		skip 'waiters poll', 1 if !$preloaded;
		local $ENV{PGUSER} = $role;
		my $psql = session($rough, 'Role', 'utf8');

		ask($psql, q{SET application_name = ''});
		queue_up($watch, $psql, q{SELECT status FROM lock_acquire('k', owner => 'o', wait => '5 min')});
		is(ask($watch, 'SELECT holder FROM lock_waiters'), "r?", "$where: the label of a waiter, too");
		ask($watch, q{SELECT lock_release('k', 'keeper')});
		is(answer($psql), 'acquired', '... which gets the key');
		ask($watch, q{SELECT lock_release('k', 'o')});
		end($psql);
	}
	end($watch);
}
# Actions of such an administrator are stored as valid text, shown to clients of any encoding, and restored.
{
	local $ENV{PGUSER} = $role;
	local $ENV{PGCLIENTENCODING} = 'SQL_ASCII';
	$rough->safe_psql('utf8', q{
RESET client_encoding;
SET application_name = '';
SELECT lock_acquire('h:1', owner => 'o'), lock_acquire('h:2', owner => 'o');
SELECT status FROM lock_enqueue('h:2', 'p');
SELECT force_release('h:1', 'why')});
}
for my $encoding ('LATIN1', 'UTF8')
{
	is($rough->safe_psql('utf8', qq{SET client_encoding = $encoding; SELECT holder, role FROM lock_activity WHERE key = 'h:2'; SELECT role, holder FROM lock_queue; SELECT acting_role, session_role FROM lock_audit; SELECT holder, role, ended_by FROM lock_history WHERE key = 'h:1'}),
		"r?|r?\nr?|r?\nr?|r?\nr?|r?|forced", "a role name of invalid text is shown to a client of $encoding");
}
$rough->safe_psql('postgres', q{CREATE DATABASE restored TEMPLATE template0 ENCODING 'UTF8'});
$rough->command_ok([ 'pg_dump', '-f', $rough->data_dir . '/dump.sql', 'utf8' ], 'a dump');
$rough->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $rough->data_dir . '/dump.sql', 'restored' ], '... is restored');
is($rough->safe_psql('restored', q{SELECT acting_role FROM lock_audit}), 'r?', '... with the audit trail');
# A dump of invalid text that an older version stored is repaired as doc/operating.md says.
{
	local $ENV{PGOPTIONS} = "-c my.x=a\xe9\xff";
	$rough->safe_psql('utf8', q{INSERT INTO lock_audit SELECT at, action, current_setting('my.x'), previous_holder, previous_owner_digest, fencing_token, session_role, acting_role, client_addr, reason, gen_random_uuid() FROM lock_audit});
}
$rough->safe_psql('postgres', q{CREATE DATABASE repaired TEMPLATE template0 ENCODING 'UTF8'});
$rough->command_ok([ 'pg_dump', '-Fc', '-f', $rough->data_dir . '/dump.old', 'utf8' ], 'a dump with invalid text of an older version');
$rough->command_fails([ 'pg_restore', '-e', '-d', 'repaired', $rough->data_dir . '/dump.old' ], '... cannot be restored');
$rough->safe_psql('postgres', $_) for 'DROP DATABASE repaired', q{CREATE DATABASE repaired TEMPLATE template0 ENCODING 'UTF8'};
$rough->command_ok([ 'sh', '-c', q{pg_restore -f - "$1" | iconv -c -f UTF-8 -t UTF-8 | psql -X -q -v ON_ERROR_STOP=1 -d repaired}, 'sh', $rough->data_dir . '/dump.old' ], '... until its invalid bytes are removed');
is($rough->safe_psql('repaired', q{SELECT string_agg(key, ' ' ORDER BY key) FROM lock_audit}), 'a h:1', '... and all other text is kept');
# In a database where it is valid, the text is an owner and a label.
$rough->safe_psql('latin1', 'CREATE EXTENSION atomic_lock');
$rough->safe_psql('latin1', q{SET client_encoding = SQL_ASCII; SELECT lock_grant_access('app', 'user'); ALTER ROLE by_role SET atomic_lock.owner = E'\xe9'});
{
	local $ENV{PGUSER} = 'by_role';
	is($rough->safe_psql('latin1', q{SET client_encoding = SQL_ASCII; SELECT owner = E'\xe9' FROM lock_acquire('x')}), 't', 'in a database of its encoding the setting is an owner');
	$ENV{PGUSER} = $role;
	is($rough->safe_psql('latin1', q{SET client_encoding = SQL_ASCII; SET application_name = ''; SELECT holder = E'r\xe9' FROM lock_acquire('y', owner => 'o')}), 't', '... and the name of the role is a label');
}
$rough->stop;
log_is_clean($rough);

#
# Logs, with all logging turned on
#
$node->append_conf(
	'postgresql.conf', q{
logging_collector = on
log_destination = 'stderr,csvlog,jsonlog'
log_filename = 'server.log'
log_rotation_size = 0
log_line_prefix = '@@ %p '
log_min_messages = debug1
log_min_error_statement = debug1
log_statement = all
log_min_duration_statement = 0
log_parameter_max_length = -1
log_parameter_max_length_on_error = -1
log_error_verbosity = verbose
log_lock_waits = on
deadlock_timeout = 10ms
track_activity_query_size = 10000
});
my $lib = qx(pg_config --pkglibdir);
chomp $lib;
my @more = grep { -e "$lib/$_.so" } ('auto_explain', 'pg_stat_statements');
$node->append_conf('postgresql.conf', "shared_preload_libraries = '" . join(',', 'atomic_lock', @more) . "'\n");
$node->append_conf('postgresql.conf', "auto_explain.log_min_duration = 0\nauto_explain.log_nested_statements = on\nauto_explain.log_verbose = on\nauto_explain.log_analyze = on\n") if grep { /auto/ } @more;
$node->append_conf('postgresql.conf', "pg_stat_statements.track = all\n") if grep { /statements/ } @more;
$node->start;
my ($one, $two) = map { session($node, $_) } ('One', 'Two');
ask($one, 'CREATE EXTENSION atomic_lock');
ask($one, 'CREATE EXTENSION pg_stat_statements') if grep { /statements/ } @more;
ask($one, q{CREATE TABLE doc (id int PRIMARY KEY, x int); INSERT INTO doc VALUES (1, 1), (2, 2); SELECT lock_protect('doc', 'doc:{id}')});

# Owners that are in no statement: acquire generates them, and a table stores them.
ask($one, q{CREATE TABLE mine AS SELECT key, owner FROM unnest('{a,b,c,d}'::text[]) k, lock_acquire(k, '1 hour')});
ask($one, q{INSERT INTO mine SELECT key, owner FROM lock_acquire('doc:1', '1 hour')});
ask($one, q{INSERT INTO mine SELECT key, owner FROM lock_acquire('s', '1 hour', mode => 'shared')});
ask($one, q{INSERT INTO mine SELECT key, owner FROM lock_acquire('session', lifetime => 'session')});
sub owner_of
{
	my ($key) = @_;
	return "(SELECT owner FROM mine WHERE key = '$key')";
}
foreach my $sql (
	q{SELECT lock_acquire('a')}, q{SELECT lock_acquire('a', wait => '20 ms')}, q{SELECT lock_release('a', OWNER b)}, q{SELECT lock_extend('a', OWNER b)},
	q{SELECT lock_acquire('a', '-1 s', OWNER a)}, q{SELECT lock_acquire('a', owner => repeat(OWNER a, 100))}, q{SELECT lock_acquire(OWNER a || repeat('x', 2000))},
	q{SET atomic_lock.on_reacquire = error; SELECT lock_acquire('a', owner => OWNER a)}, q{RESET atomic_lock.on_reacquire},
	q{SELECT lock_extend('a', OWNER a)}, q{SELECT lock_release('b', OWNER b)}, q{SELECT lock_release('b', OWNER b)}, q{SELECT lock_assert('a', OWNER b)}, q{SELECT lock_assert('a', OWNER a)},
	q{SELECT lock_convert('s', OWNER s)}, q{SELECT lock_transfer('c', OWNER c, OWNER d)}, q{SELECT lock_extend_all(OWNER d)}, q{SELECT lock_release_all(OWNER c)},
	q{SELECT set_config('atomic_lock.owner', OWNER a, false) IS NULL}, q{UPDATE doc SET x = 2 WHERE id = 1}, q{SELECT set_config('atomic_lock.owner', OWNER doc:1, false) IS NULL}, q{UPDATE doc SET x = 2 WHERE id = 1}, q{UPDATE doc SET x = 2},
	q{SELECT * FROM lock_fetch(NULL::doc, '1')}, q{SELECT * FROM lock_fetch(NULL::doc, 'x')}, q{SELECT set_config('atomic_lock.owner', repeat(OWNER a, 100), false)},
	q{INSERT INTO app_lock SELECT * FROM app_lock LIMIT 1}, q{SELECT lock_steal('d', OWNER a, 'why')}, q{SELECT force_release('d', 'why')}, q{SELECT 1 / 0 FROM lock_release('a', OWNER a)},
	q{SELECT * FROM lock_status()}, q{SELECT lock_sweep()}, q{SELECT lock_acquire_all(ARRAY['z', 'a'], owner => OWNER b)})
{
	my $statement = $sql =~ s/OWNER (\S+?)(?=[\s,)])/owner_of($1)/ger;

	$statement =~ s/SELECT lock_(acquire|steal|transfer|convert|acquire_all)\(/SELECT count(*) FROM lock_$1(/;
	note reply($one, $statement) =~ s/\n.*//sr;
}
# The log shows a wait in the lock manager together with its statement.
ask($one, q{BEGIN; SELECT lock_extend('a', } . owner_of('a') . ') IS NOT NULL');
ask($two, q{SET lock_timeout = '100 ms'});
like(reply($two, q{SELECT force_release('a', 'why')}), qr/55P03/, 'a wait that is logged');
ask($one, 'COMMIT');
my @owners = split /\n/, ask($two, 'SELECT owner FROM mine');
is(scalar(grep { /^[0-9a-f]{8}-[0-9a-f]{4}-4/ } @owners), 7, 'owners that acquire has generated');

# A key with control characters, and a forced end that is rolled back
my $nasty = q{E'k\n@@ 1 LOG:  forged\r"",\\\\x1b\x1b[31m{"a": "b"},\x01'};
ask($two, qq{SELECT count(*) FROM lock_acquire($nasty, '1 hour', 'o', holder => $nasty)});
like(reply($two, "SELECT lock_acquire($nasty)"), qr/55P03: lock "k\\x0a\@\@ 1 LOG:  forged\\x0d/, 'a key with line ends is escaped in an error');
ask($two, qq{BEGIN; SELECT force_release($nasty, $nasty); ROLLBACK});
is(ask($two, qq{SELECT locked, (SELECT count(*) FROM lock_audit WHERE reason ~ 'forged') FROM lock_status($nasty)}), 't|0', 'a forced end that is rolled back');
my $seen = ask($two, 'SELECT query FROM pg_stat_activity');
$seen .= ask($two, 'SELECT query FROM pg_stat_statements') if grep { /statements/ } @more;
end($one, $two);
$node->stop;

my %log = map { $_ => slurp_file($node->data_dir . "/log/server.$_") } ('log', 'csv', 'json');
foreach my $format (sort keys %log)
{
	cmp_ok(length $log{$format}, '>', 10_000, "the log has much text: $format");
	is(scalar(grep { index($log{$format}, $_) >= 0 } @owners), 0, '... but no generated owner');
	like($log{$format}, qr/force_release of lock [^\n]*k\\+x0a\@\@ 1 LOG:  forged/, '... and the forced end, escaped');
}
is(scalar(grep { index($seen, $_) >= 0 } @owners), 0, 'no generated owner in pg_stat_activity' . (@more > 1 ? ' and pg_stat_statements' : ''));
note join ', ', 'with', @more;

# The number of records in each format
my @lines = grep { /^\S* ?(?:LOG|ERROR|FATAL): / } map { s/^@@ \d+ //r } grep { /^@@ \d+ / } split /\n/, $log{log};
is(scalar(grep { /^LOG:  .*forged/ && !/force_release|statement:|duration:/ } @lines), 0, 'no line of the log is forged') or diag(grep { /forged/ } @lines);
my @records = eval { map { decode_json($_) } split /\n/, $log{json} };
is($@, '', 'each line of jsonlog is JSON');
is(scalar(grep { ($_->{message} // '') =~ /^force_release of lock "k\\x0a/ } @records), 1, '... one record is the forced end');
is(scalar(grep { ($_->{message} // '') =~ /^(?:force_release of|lock ").*[\x00-\x1f]/s } @records), 0, '... no message of atomic_lock has a control character');
my ($end) = grep { ($_->{message} // '') =~ /^force_release of lock "k\\x0a/ } @records;
note $end->{message}, ' ', $end->{detail} // '';
my $reader = PostgreSQL::Test::Cluster->new('reader');
$reader->init;
$reader->start;
$reader->safe_psql('postgres', 'CREATE TABLE csv (' . join(', ', map { "c$_ text" } (1 .. 26)) . "); COPY csv FROM '" . $node->data_dir . "/log/server.csv' CSV");
is($reader->safe_psql('postgres', q{SELECT count(*), string_agg(c12, '') FROM csv WHERE c14 LIKE 'force_release of lock "k\\\\x0a%'}), '1|LOG', 'csvlog can be read, with one record of the forced end');
$reader->stop;

done_testing();
