# Keys and owners that were made to have one hash, and secrets that hashes must
# not reveal.
#
# PostgreSQL's own hash of texts can be inverted: test/collisions.py makes texts
# that have the hash of another text, with the seeds once used to hash keys and owners.
# The first test asks the server whether the texts used here
# have equal hashes, since otherwise the others would show nothing.
#
# Properties: whatever another transaction, open or prepared, has done with a
# key, and whether it has waiters, every verb and every view of another key
# answers at once as if there were neither, also after a restart, a crash and a
# promotion; an owner whose name was made to have another owner's hash has none of
# its holdings, gets the answers of a stranger, and is not taken for it by waiters,
# in upgrades and in the search for deadlocks; the tags in pg_locks differ
# between databases and between installations of the extension, stay the same as
# long as one exists, are no hash that others could compute, and reveal no owner;
# their secret is shown to no role, not dumped, and not lost when
# the sequence is changed.
#
# Turns red when: a lookup of a transaction's claims, or in shared
# memory, uses a hash that others can choose; equal hashes count as equal texts;
# two sessions, or a session before and after a crash, hash differently.

use strict;
use warnings FATAL => 'all';
no warnings 'portable';		# numbers have 64 bits
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

#
# Made by test/collisions.py.  Keys with the hash of the first:
my @keys = (
	'invoice.42',
	']Cy[^6Y>NP1b', '^dTRp+l.(.gg', 'geOvYJt&KjxS', 'w68Mivjy2?ln', '0Yfx.X.xh~ll', '=<;tO8g)yH5?',
	'E=;9.hKAg66-', '9#Mnxlmh<ZuN', 'EyQh9g<8fj1m', '3&^cjg9W0mGY', '^zHcwR!6y+z>', ')c*S08/T9&iB',
	'zA5&A1Uzt-sX', 'UcsF#5S]7uYW', 'IhZju2<VFf=^', 'DNmq2Eu^tWS3', 'w-i5.lT]yNij', 'BvVMA14OeB!v',
	'2D((Qav<-aGG', 'R;1U76/(iwO&', 'v6mi^ueZvTV+', 'IS0TJxu64EFl', '?Wb+d(*L3*hi', 'q~0w>Pd<(Rfd',
	'q*qOV]PY63u4', 'yNb*5LYHYY&P', '9#lbvkbWlskI', 'p(=sk5!e6_sX', '3kV;8#gms>-B', 'PBkqz?MEhsR-',
	'<v_G])*bP_Oc', '5!EI86b1v?w]', 'Hf6Rzh=2k~aq', 'gLGBeqaD_B=a', '1YqaiPkD~>TD', '<WIWSd?A^=T5',
	'Jc5pg_d8.Q!W', '0vUf4L*XJkxv', '<IZ0R;Kh(r>Z', '?4w#BBH0yk1&', 'O!+QmUqNYk7H', 'xYP]qqKvYgP1',
	'nxm[!PDpYQ<v', 'qVng<_xw0nxY', 'B72-Po3XB[Yq', 'nz+nSs5UUI^n', 'e3.#HYUE)BkM', 'h2g<f^lii[u-',
	'MUfh~wr+dxyy', 'kT.44ByVK9?N', 'VW]kw&6hOP~b', 'J;&Xnb.a+-Wt', 'j~gxMZKq+ml3', 'Uxtm0o*lp)Fr',
	'!PQWz0V+K0(>', 'iTPcU.Zb(s)/', 'GmY8Xm4X;z-S', 'PD;R#!9OF/4t', 'ZOT&rXQ42S^n', 'O~-aDn?Qg[#~',
);

# owners with the hash of the first;
my ($ada, @adas) = (
	'ada',
	'_77plMCWtoB~', 'L-Pr?c<cqtxn', '.SrI][wzP0?E', 'Z~[sxD7yYs2]',
);

# a key and two owners, whose shared holdings have the tag of ada's holding of
# price-list;
my ($list, $report) = ('price-list', 'report');
my @reporters = (
	'O^wAW+o(kkx5', '#cLVXhX-JDsp',
);

# and two long keys with one hash that begin with the same 132 bytes.
my $long = substr('quarter-2026-' x 12, 0, 132);
my ($long1, $long2) = ($long . 'first-of-two', $long . '(5ZUEjVjoSPk');

# 'atomicky' and 'atomicow', the seeds of keys and owners
my ($seed_key, $seed_owner) = map { hex("61746f6d6963$_") } ('6b79', '6f77');

# The attacked key and the attacker; all other keys are used in peace.
my ($evil, @peaceful) = @keys;
my $eve = $adas[0];

my $node = PostgreSQL::Test::Cluster->new('primary');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = 0
log_statement = none
autovacuum = off
max_prepared_transactions = 10
deadlock_timeout = 1h
atomic_lock.max_wait = 1h
});
$node->start;
$node->safe_psql(
	'postgres', q{
CREATE EXTENSION atomic_lock;
CREATE TABLE guarded (k text PRIMARY KEY, n int);
SELECT lock_protect('guarded', '{k}');
CREATE ROLE usual;
CREATE ROLE outsider;
SELECT lock_grant_access('usual', 'user');
GRANT SELECT, UPDATE ON guarded TO usual});

# Sessions: one of an administrator, the others of roles that may lock
my ($admin, $owner, $other, $attacker);
sub connect_sessions
{
	my ($to) = @_;

	($admin, $owner, $other, $attacker) = map { session($to, $_) } ('Admin', 'Owner', 'Other', 'Attacker');
	ask($owner, "SET atomic_lock.owner = '$ada'");
	ask($_, 'SET SESSION AUTHORIZATION usual') for ($owner, $other, $attacker);
	return;
}
sub disconnect_sessions
{
	end($admin, $owner, $other, $attacker);
	return;
}

sub acquire
{
	my ($key, $by, $more) = @_;
	return "SELECT status FROM lock_try_acquire('$key', '1 hour', '$by'" . ($more || '') . ')';
}
# ... with the lifetime of a transaction, which has no ttl
sub acquire_for_transaction
{
	my ($key, $by, $more) = @_;
	return "SELECT status FROM lock_try_acquire('$key', owner => '$by', lifetime => 'transaction'" . ($more || '') . ')';
}
my $shared = q{, mode => 'shared'};

connect_sessions($node);

#
# The hashes do collide.
#
sub public_hash
{
	my ($text, $seed) = @_;
	return ask($admin, "SELECT hashtextextended('$text', $seed)");
}
# hash_combine64() and its inverse
my $random = 0x49a0f4dd15e5a8e3;
sub combine
{
	use integer;
	my ($x, $y) = map { $_ + 0 } @_;
	return $x ^ ($y + $random + ($x << 54) + ($x >> 7 & 0x1ffffffffffffff));
}
sub uncombine
{
	use integer;
	my ($x, $combined) = map { $_ + 0 } @_;
	return ($combined ^ $x) - $random - ($x << 54) - ($x >> 7 & 0x1ffffffffffffff);
}
is(ask($admin, "SELECT count(DISTINCT k), count(DISTINCT hashtextextended(k, $seed_key)) FROM unnest(ARRAY['" . join("', '", @keys) . q{']) k}), scalar(@keys) . '|1', 'keys of one public hash');
is(ask($admin, "SELECT count(DISTINCT o), count(DISTINCT hashtextextended(o, $seed_owner)) FROM unnest(ARRAY['" . join("', '", $ada, @adas) . q{']) o}), (1 + @adas) . '|1', 'owners of one public hash');
is(public_hash($long1, $seed_key), public_hash($long2, $seed_key), 'long keys of one public hash');
{
	my $tag = combine(public_hash($list, $seed_key), public_hash($ada, $seed_owner));

	is(uncombine(public_hash($list, $seed_key), $tag), public_hash($ada, $seed_owner), 'combined hashes can be taken apart');
	is(combine(public_hash($report, $seed_key), public_hash($_, $seed_owner)), $tag, 'shared holdings of one public tag') for @reporters;
}

#
# All calls on a key: a name, the session, the state before
# the attack, the call, and the answer.  KEY is another key each time.
#
my $have = q{SELECT lock_acquire('KEY', '1 hour', 'ADA', holder => 'Ada');};
my $share = q{SELECT lock_acquire('KEY', '1 hour', 'ADA', mode => 'shared', holder => 'Ada');};
my @verbs = (
	[ 'lock_acquire', \$owner, '', q{SELECT status FROM lock_acquire('KEY', '1 hour', 'ADA')}, 'acquired' ],
	[ 'lock_acquire, shared', \$owner, '', q{SELECT status FROM lock_acquire('KEY', '1 hour', 'ADA', 'shared')}, 'acquired' ],
	[ 'lock_try_acquire', \$owner, '', acquire('KEY', 'ADA'), 'acquired' ],
	[ 'lock_try_acquire, shared', \$owner, '', acquire('KEY', 'ADA', $shared), 'acquired' ],
	[ 'lock_try_acquire, with a generated owner', \$owner, '', q{SET atomic_lock.owner = ''; SELECT status FROM lock_try_acquire('KEY'); SET atomic_lock.owner = 'ADA'}, 'acquired' ],
	[ 'lock_try_acquire, shared, with a generated owner', \$owner, '', q{SET atomic_lock.owner = ''; SELECT status FROM lock_try_acquire('KEY', mode => 'shared'); SET atomic_lock.owner = 'ADA'}, 'acquired' ],
	[ 'lock_try_acquire, lifetime session', \$owner, '', acquire('KEY', 'ADA', q{, lifetime => 'session'}), 'acquired' ],
	[ 'lock_try_acquire, lifetime transaction', \$owner, '', 'BEGIN; ' . acquire_for_transaction('KEY', 'ADA') . '; COMMIT', 'acquired' ],
	[ 'lock_try_acquire, lifetime transaction, shared', \$owner, '', 'BEGIN; ' . acquire_for_transaction('KEY', 'ADA', $shared) . '; COMMIT', 'acquired' ],
	[ 'lock_try_acquire with wait', \$owner, '', acquire('KEY', 'ADA', q{, wait => '1 hour'}), 'acquired' ],
	[ 'lock_try_acquire with wait, shared', \$owner, '', acquire('KEY', 'ADA', qq{$shared, wait => '1 hour'}), 'acquired' ],
	[ 'lock_try_acquire again', \$owner, $have, acquire('KEY', 'ADA'), 'reacquired' ],
	[ 'lock_try_acquire again, shared', \$owner, $share, acquire('KEY', 'ADA', $shared), 'reacquired' ],
	[ 'lock_try_acquire, exclusive, of a shared key', \$owner, $share, acquire('KEY', 'ADA'), 'acquired' ],
	[ 'lock_try_acquire again, lifetime transaction', \$owner, $have, 'BEGIN; ' . acquire_for_transaction('KEY', 'ADA') . '; COMMIT', 'reacquired' ],
	[ 'lock_try_acquire of a key that another owner holds', \$owner, q{SELECT lock_acquire('KEY', '1 hour', 'bob', holder => 'Bob')}, acquire('KEY', 'ADA') =~ s/status/status, holder, expires_at > now()/r, 'held|Bob|t' ],
	[ 'lock_acquire_all', \$owner, '', q{SELECT string_agg(status, ' ') FROM lock_acquire_all(ARRAY['KEY', 'and KEY'], '1 hour', 'ADA')}, 'acquired acquired' ],
	[ 'lock_try_acquire_all', \$owner, '', q{SELECT string_agg(status, ' ') FROM lock_try_acquire_all(ARRAY['KEY', 'or KEY'], '1 hour', 'ADA', 'shared')}, 'acquired acquired' ],
	[ 'lock_convert', \$owner, $share, q{SELECT status, mode FROM lock_convert('KEY', 'ADA')}, 'acquired|exclusive' ],
	[ 'lock_convert with wait', \$owner, $share, q{SELECT status, mode FROM lock_convert('KEY', 'ADA', wait => '1 hour')}, 'acquired|exclusive' ],
	[ 'lock_convert to shared', \$owner, $have, q{SELECT status, mode FROM lock_convert('KEY', 'ADA', 'shared')}, 'acquired|shared' ],
	[ 'lock_extend', \$owner, $have, q{SELECT lock_extend('KEY', 'ADA', '2 hours') > now()}, 't' ],
	[ 'lock_try_extend, shared', \$owner, $share, q{SELECT lock_try_extend('KEY', 'ADA') > now()}, 't' ],
	[ 'lock_extend_all', \$owner, $have =~ s/ADA/extends/r, q{SELECT lock_extend_all('extends')}, '1' ],
	[ 'lock_release', \$owner, $have, q{SELECT lock_release('KEY', 'ADA')}, 't' ],
	[ 'lock_try_release, shared', \$owner, $share, q{SELECT lock_try_release('KEY', 'ADA')}, 'released' ],
	[ 'lock_try_release of a free key', \$owner, '', q{SELECT lock_try_release('KEY', 'ADA')}, 'not_found' ],
	[ 'lock_release_all', \$owner, $have =~ s/ADA/releases/r, q{SELECT lock_release_all('releases')}, '1' ],
	[ 'lock_transfer', \$owner, $have, q{SELECT status, holder FROM lock_transfer('KEY', 'ADA', 'bob', 'Bob')}, 'acquired|Bob' ],
	[ 'lock_transfer, shared', \$owner, $share, q{SELECT status, holder FROM lock_transfer('KEY', 'ADA', 'bob', 'Bob')}, 'acquired|Bob' ],
	[ 'lock_assert', \$owner, $have, q{SELECT lock_assert('KEY', 'ADA') > 0}, 't' ],
	[ 'lock_assert, shared', \$owner, $share, q{SELECT lock_assert('KEY', 'ADA') > 0}, 't' ],
	[ 'lock_assert_fence', \$owner, $have, q{SELECT count(*) FROM lock_status('KEY') s, lock_assert_fence('KEY', s.fencing_token)}, '1' ],
	[ 'a guarded UPDATE', \$owner, $have, q{UPDATE guarded SET n = 1 WHERE k = 'KEY' RETURNING n}, '1' ],
	[ 'lock_fetch', \$owner, '', q{SELECT n FROM lock_fetch(NULL::guarded, 'KEY', '1 hour', 'ADA', key => 'KEY')}, '0' ],
	[ 'force_release', \$admin, $have, q{SELECT force_release('KEY', 'test')}, 't' ],
	[ 'force_release, shared', \$admin, $share, q{SELECT force_release('KEY', 'test')}, 't' ],
	[ 'lock_steal', \$admin, $have, q{SELECT status FROM lock_steal('KEY', 'bob', 'test')}, 'acquired' ],
	[ 'lock_steal of a free key', \$admin, '', q{SELECT status FROM lock_steal('KEY', 'bob', 'test')}, 'acquired' ],
	[ 'a sweep', \$admin, "$have UPDATE app_lock SET expires_at = clock_timestamp() - interval '1 h' WHERE key = 'KEY';", q{SELECT lock_sweep() > 0; SELECT count(*) FROM app_lock WHERE key = 'KEY'}, "t\n0" ],
	[ 'lock_is_held', \$owner, $have, q{SELECT lock_is_held('KEY', 'ADA'), lock_is_held('KEY', 'EVE')}, 't|f' ],
	[ 'lock_is_held of a free key', \$owner, '', q{SELECT lock_is_held('KEY', 'ADA'), lock_is_held('KEY', 'EVE'), lock_holder('KEY') IS NULL}, 'f|f|t' ],
	[ 'lock_holder', \$owner, $share, q{SELECT lock_holder('KEY')}, 'Ada' ],
	[ 'lock_status(key)', \$owner, $have, q{SELECT locked, mode, holder, lifetime, holders, waiters, pid FROM lock_status('KEY')}, 't|exclusive|Ada|lease|1|0|' ],
	[ 'lock_status(key), shared', \$owner, "$share SELECT lock_acquire('KEY', '1 hour', 'bob', mode => 'shared')", q{SELECT locked, mode, holder, lifetime, holders, waiters, pid FROM lock_status('KEY')}, 't|shared|Ada|lease|2|0|' ],
	[ 'lock_status(key) of a free key', \$owner, '', q{SELECT locked, mode, holder, holders, waiters, pid FROM lock_status('KEY')}, 'f|||||' ],
	[ 'lock_status()', \$admin, $share, q{SELECT holder, holders, waiters FROM lock_status() WHERE key = 'KEY'}, 'Ada|1|0' ],
	[ 'lock_activity', \$admin, $have, q{SELECT holder, waiters, longest_wait IS NULL FROM lock_activity WHERE key = 'KEY'}, 'Ada|0|t' ]);

# ... and cases that need more than one session, each with a key of its own
my @more = ('a wait for a held key', 'a wait to convert beside another sharer', 'the end of a session');

die 'more verbs than keys' if @verbs + @more > @peaceful;
my %key_of;
@key_of{ (map { $_->[0] } @verbs), @more } = @peaceful;
die 'two verbs of one name' if keys %key_of != @verbs + @more;

sub fill_in
{
	my ($sql, $key) = @_;
	my %is = (KEY => $key, ADA => $ada, EVE => $eve);

	return $sql =~ s/\b(KEY|ADA|EVE)\b/$is{$1}/gr;
}

# The state before the attack
my $ending;
sub set_up
{
	my ($with_session) = @_;
	my $sql = join ";\n", map { $_->[2] ? fill_in($_->[2], $key_of{ $_->[0] }) : () } @verbs;

	ask($admin, "$sql; SELECT count(*) FROM guarded");
	ask($admin, fill_in($have, $key_of{ $more[0] }));
	ask($admin, fill_in("$share SELECT lock_acquire('KEY', '1 hour', 'bob', mode => 'shared', holder => 'Bob')", $key_of{ $more[1] }));
	$ending = $with_session ? session($node, 'Ending') : undef;
	ask($ending, acquire($key_of{ $more[2] }, 'ending', q{, lifetime => 'session'})) if $ending;
	return;
}

# All calls work during an attack.
sub all_goes_on
{
	my ($when, $without) = @_;

	foreach my $verb (grep { !$without || $_->[0] !~ $without } @verbs)
	{
		my ($name, $who, undef, $sql, $expected) = @$verb;

		is(reply($$who, fill_in($sql, $key_of{$name})), $expected, "$when: $name");
		ask($$who, 'ROLLBACK') if $sql =~ /BEGIN/;
	}
	return if $without;

	my ($held, $both, $of_session) = @key_of{@more};
	queue_up($admin, $other, acquire($held, 'bob', q{, wait => '1 hour'}));
	is(reply($admin, "SELECT place, blocked_by, blocking_pid FROM lock_waiters WHERE key = '$held' AND pid = " . pid($other)), '1|Ada|', "$when: lock_waiters");
	is(reply($admin, "SELECT waiters FROM lock_status('$held')"), '1', "$when: lock_status(key) counts the waiter");
	is(reply($owner, "SELECT lock_release('$held', '$ada')"), 't', "$when: lock_release of a key with a waiter");
	is(answer($other), 'acquired', '... wakes the waiter');

	queue_up($admin, $other, "SELECT status FROM lock_convert('$both', 'bob', wait => '1 hour')");
	is(reply($owner, "SELECT lock_release('$both', '$ada')"), 't', "$when: lock_release beside a waiting conversion");
	is(answer($other), 'acquired', '... the other owner converts');

	if ($ending)
	{
		is(reply($ending, 'DISCARD ALL'), '', "$when: the end of a session");
		is(reply($admin, "SELECT locked FROM lock_status('$of_session')"), 'f', '... ends its lock');
	}
	return;
}

# No trace is left.
sub clean_up
{
	my ($when) = @_;

	end($ending) if $ending;
	ask($_, 'ROLLBACK') for ($owner, $other, $attacker);
	ask($owner, q{SELECT lock_release_all()});
	ask($admin, q{TRUNCATE app_lock; SET atomic_lock.enforce_guards = off; UPDATE guarded SET n = 0; RESET atomic_lock.enforce_guards});
	is(ask($admin, q{SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM lock_waiters)}), '0|0', "$when: no claim or waiter is left");
	return;
}
ask($admin, 'SET atomic_lock.enforce_guards = off; INSERT INTO guarded VALUES ' . join(', ', map { "('$_', 0)" } @peaceful) . '; RESET atomic_lock.enforce_guards');

#
# Attacks: a name, the state before, and the call of the attacker in a transaction
#
my $by_eve = "SELECT lock_acquire('$evil', '1 hour', '$eve');";
my $shared_by_eve = "SELECT lock_acquire('$evil', '1 hour', '$eve', mode => 'shared');";
my @attacks = (
	[ 'an acquire', '', acquire($evil, $eve) ],
	[ 'a shared acquire', '', acquire($evil, $eve, $shared) ],
	[ 'a lock with lifetime transaction', '', acquire_for_transaction($evil, $eve) ],
	[ 'a shared lock with lifetime transaction', '', acquire_for_transaction($evil, $eve, $shared) ],
	[ 'an extension', $by_eve, "SELECT lock_extend('$evil', '$eve')" ],
	[ 'a shared extension', $shared_by_eve, "SELECT lock_extend('$evil', '$eve')" ],
	[ 'a release', $by_eve, "SELECT lock_release('$evil', '$eve')" ],
	[ 'a pin', $by_eve, "SELECT lock_assert('$evil', '$eve')" ],
	[ 'a shared pin', $shared_by_eve, "SELECT lock_assert('$evil', '$eve')" ],
	[ 'a conversion', $shared_by_eve, "SELECT status FROM lock_convert('$evil', '$eve')" ],
	[ 'a transfer', $shared_by_eve, "SELECT status FROM lock_transfer('$evil', '$eve', '$adas[1]')" ]);

foreach my $attack (@attacks)
{
	my ($name, $before, $sql) = @$attack;

	set_up(1);
	ask($admin, $before) if $before;
	ask($attacker, "BEGIN; $sql");
	all_goes_on("$name in an open transaction");
	ask($attacker, 'ROLLBACK');
	clean_up($name);
}
foreach my $attack (@attacks[ 0, 1, 2, 3, 7, 9 ])
{
	my ($name, $before, $sql) = @$attack;

	set_up(1);
	ask($admin, $before) if $before;
	ask($attacker, "BEGIN; $sql; PREPARE TRANSACTION 'evil'");
	all_goes_on("$name in a prepared transaction");
	ask($admin, q{ROLLBACK PREPARED 'evil'});
	clean_up("prepared $name");
}
foreach my $attack (
	[ 'waiting', q{SELECT lock_acquire('EVIL', '1 hour', 'bob');}, acquire($evil, $eve, q{, wait => '1 hour'}) ],
	[ 'waiting to share', q{SELECT lock_acquire('EVIL', '1 hour', 'bob');}, acquire($evil, $eve, qq{$shared, wait => '1 hour'}) ],
	[ 'waiting in a transaction that has locks', q{SELECT lock_acquire('EVIL', '1 hour', 'bob');}, 'BEGIN; ' . acquire('anything', $eve) . ";\n" . acquire($evil, $eve, q{, wait => '1 hour'}) ],
	[ 'waiting to convert', $shared_by_eve . q{SELECT lock_acquire('EVIL', '1 hour', 'bob', mode => 'shared');}, "SELECT status FROM lock_convert('$evil', '$eve', wait => '1 hour')" ])
{
	my ($name, $before, $sql) = @$attack;

	set_up(1);
	ask($admin, $before =~ s/EVIL/$evil/r);
	queue_up($admin, $attacker, $sql);
	all_goes_on($name);
	ask($admin, 'SELECT pg_cancel_backend(' . pid($attacker) . ')');
	answer($attacker);
	clean_up($name);
}

#
# The same over restarts, crashes and promotions.  A prepared transaction has claims
# of every kind, and keeps them.
#
my @evil = ($evil, @peaceful[ @verbs + @more .. $#peaceful ]);
die 'too few keys' if @evil < 3;
my $tags = q{SELECT string_agg(concat_ws(' ', classid, objid, objsubid, mode), ', ' ORDER BY classid, objid, objsubid, mode) FROM pg_locks WHERE locktype = 'advisory' AND objsubid BETWEEN 1706 AND 1711};
my $everything = 'BEGIN; ' . join('; ', acquire($evil[0], $eve), acquire_for_transaction($evil[1], $eve), acquire($evil[2], $adas[2], $shared), "SELECT lock_assert('pinned', '$eve')") . q{; PREPARE TRANSACTION 'evil'};
my $standby = PostgreSQL::Test::Cluster->new('standby');
$node->backup('backup');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
foreach my $round (
	[ 'after a restart', sub { $node->restart } ],
	[ 'after a crash', sub { $node->stop('immediate'); $node->start } ],
	[ 'after a promotion', sub {
			$node->wait_for_catchup($standby);
			$node->stop('immediate');
			$standby->promote;
			$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'promotion';
			$node = $standby;
		} ])
{
	my ($when, $do) = @$round;
	my ($before, $of_key);

	set_up(0);
	ask($admin, "SELECT lock_acquire('pinned', '1 hour', '$eve')");
	ask($attacker, $everything);
	$before = ask($admin, $tags);
	$of_key = ask($admin, "BEGIN; SELECT lock_acquire('some key', mode => 'shared', owner => 'x') IS NULL; $tags AND pid = pg_backend_pid(); ROLLBACK");
	disconnect_sessions();
	$do->();
	connect_sessions($node);
	is(ask($admin, $tags), $before, "$when: a prepared transaction has kept its claims");
	is(ask($admin, "BEGIN; SELECT lock_acquire('some key', mode => 'shared', owner => 'x') IS NULL; $tags AND pid = pg_backend_pid(); ROLLBACK"), $of_key, '... under the same tags as new claims of those keys');
	like(reply($owner, acquire($evil[$_], $ada, $_ == 2 ? '' : $shared)), qr{^(held|pending)$}, '... so another owner is refused') for (0 .. 2);
	like(reply($admin, q{SET lock_timeout = '10 ms'; SELECT force_release('pinned', 'test')}), qr/^ERROR:  55P03/, '... and a forced end of its pinned lease waits');
	ask($admin, 'RESET lock_timeout');
	all_goes_on($when);
	ask($admin, q{COMMIT PREPARED 'evil'});
	is(ask($admin, "SELECT lock_is_held('$evil[0]', '$eve'), lock_is_held('$evil[1]', '$eve'), lock_is_held('$evil[2]', '$adas[2]')"), 't|f|t', "$when: committed");
	clean_up($when);
}

#
# Owners: an owner that was made to have another owner's hash has none of its holdings.
#
ask($other, "BEGIN; " . acquire_for_transaction($evil, $ada, q{, holder => 'Ada'}) . '; ' . acquire_for_transaction($peaceful[1], $ada, $shared));
is(ask($admin, "SELECT lock_is_held('$evil', '$ada'), lock_is_held('$peaceful[1]', '$ada')"), 't|t', 'a transaction holds two keys for an owner');
is(ask($admin, qq{SELECT count(*) FROM unnest(ARRAY['$evil', '$peaceful[1]']) k, unnest(ARRAY['} . join(q{', '}, @adas) . qq{']) o WHERE lock_is_held(k, o)}), '0', '... not for other owners of that hash');
is(ask($admin, qq{SELECT count(*) FROM unnest(ARRAY['} . join(q{', '}, grep { $_ ne $peaceful[1] } @peaceful) . qq{']) k, unnest(ARRAY['} . join(q{', '}, $ada, @adas) . qq{']) o WHERE lock_is_held(k, o)}), '0', '... and no other keys of that hash');
is(ask($admin, qq{SELECT string_agg(holder, ', ') FROM unnest(ARRAY['} . join(q{', '}, grep { $_ ne $peaceful[1] } @peaceful) . qq{']) k, lock_holder(k) holder}), '', '... which have no holder');
foreach my $call (
	q{SELECT lock_try_release('KEY', 'ME')},
	q{SELECT lock_release('KEY', 'ME')},
	q{SELECT lock_try_extend('KEY', 'ME')},
	q{SELECT lock_extend('KEY', 'ME')},
	q{SELECT status, holder, mode FROM lock_try_acquire('KEY', '1 hour', 'ME')},
	q{SELECT status, holder, mode FROM lock_try_acquire('KEY', '1 hour', 'ME', 'shared', '10 ms')},
	q{SELECT status, holder, mode FROM lock_try_acquire('KEY', owner => 'ME', lifetime => 'transaction')},
	q{SELECT key, status, holder FROM lock_try_acquire_all(ARRAY['KEY', 'x'], '1 hour', 'ME')},
	q{SELECT lock_acquire('KEY', '1 hour', 'ME')},
	q{SELECT lock_convert('KEY', 'ME')},
	q{SELECT lock_transfer('KEY', 'ME', 'bob')},
	q{SELECT lock_assert('KEY', 'ME')},
	q{SET atomic_lock.owner = 'ME'; SELECT locked, owner, holder, holders FROM lock_status('KEY'); SET atomic_lock.owner = 'ADA'},
	q{SELECT lock_release_all('ME'), lock_extend_all('ME')})
{
	my ($theirs, $strangers) = map { reply($owner, $call =~ s/\bME\b/$_/gr =~ s/\bADA\b/$ada/gr =~ s/\bKEY\b/$evil/gr) } ($eve, 'stranger');

	is($theirs, $strangers, 'an owner of the same hash gets the answer of a stranger: ' . ($call =~ s/.*FROM //r));
	reply($owner, q{SELECT lock_release_all('stranger')});
	reply($owner, "SELECT lock_release_all('$eve')");
}

# The record whose reader has to hold its lock, see doc/howto-protect.md
ask(
	$admin, q{
CREATE TABLE medical_record (id int PRIMARY KEY, finding text);
INSERT INTO medical_record VALUES (1, 'healthy'), (2, 'not so');
ALTER TABLE medical_record ENABLE ROW LEVEL SECURITY;
CREATE POLICY who_holds_the_lock ON medical_record USING (lock_is_held('medical_record:' || id));
SELECT lock_protect('medical_record', 'medical_record:{id}');
GRANT SELECT, UPDATE ON medical_record TO usual});
is(ask($other, acquire_for_transaction('medical_record:2', $ada)), 'acquired', 'a record is locked with lifetime transaction');
is(reply($owner, 'SELECT id FROM medical_record'), '2', '... its owner sees the record');
foreach my $who (@adas, 'stranger')
{
	is(reply($attacker, "SET atomic_lock.owner = '$who'; SELECT id FROM medical_record; RESET atomic_lock.owner"), '', "... $who does not");
}
ask($other, 'ROLLBACK');

# The views distinguish keys and owners of one hash.
ask($admin, "SELECT lock_acquire('$evil', '1 hour', '$_', mode => 'shared') IS NULL, lock_acquire('$peaceful[0]', '1 hour', '$_', mode => 'shared') IS NULL") for ($ada, $eve);
ask($admin, "SELECT lock_acquire('$evil', '1 hour', 'bob', mode => 'shared') IS NULL");
is(ask($admin, q{SELECT string_agg(holders::text, ' ' ORDER BY key = '} . $evil . q{', holders) FROM lock_status()}), '2 2 3 3 3', 'lock_status() counts the holders of each key');
is(ask($admin, "SELECT lock_release_all('$eve')"), '2', 'lock_release_all ends the locks of one owner');
is(ask($admin, "SELECT lock_is_held('$evil', '$ada'), lock_is_held('$evil', '$eve'), lock_is_held('$peaceful[0]', '$ada'), lock_is_held('$peaceful[0]', '$eve')"), 't|f|t|f', '... and no more');
ask($admin, 'TRUNCATE app_lock');
ask($admin, "SELECT lock_acquire('$_', '1 hour', '$ada') IS NULL") for ($long1, $long2);
queue_up($admin, $other, acquire($long1, 'bob', q{, wait => '1 hour'}));
queue_up($admin, $attacker, acquire($long2, 'eve', q{, wait => '1 hour'}));
is(ask($admin, "SELECT string_agg(concat_ws(' ', CASE key WHEN '$long1' THEN 1 WHEN '$long2' THEN 2 END, holder, place, waiters), ', ' ORDER BY holder DESC) FROM (SELECT w.*, s.waiters FROM lock_waiters w, lock_status(w.key) s) s"), '1 Other 1 1, 2 Attacker 1 1', 'lock_waiters shows each long key');
ask($admin, "SELECT lock_release_all('$ada')");
is(answer($_), 'acquired', '... and each waiter gets its key') for ($other, $attacker);
ask($admin, 'TRUNCATE app_lock');

# Shared holdings whose tags were once equal
ask($attacker, 'BEGIN; ' . acquire($report, $_, $shared)) for $reporters[0];
is(reply($owner, acquire($list, $ada, $shared)), 'acquired', 'a key is shared while another owner shares another key');
is(reply($owner, "SELECT lock_try_extend('$list', '$ada') > now(), lock_try_release('$list', '$ada')"), 't|released', '... extended and released');
ask($attacker, 'ROLLBACK');
ask($attacker, 'BEGIN; ' . acquire($list, $ada, $shared));
is(reply($owner, acquire($report, $_, $shared)), 'acquired', 'a key is shared while another owner shares another key') for @reporters;
ask($attacker, 'ROLLBACK');
ask($admin, 'TRUNCATE app_lock');

#
# Upgrades
#
# Two sharers that both convert to exclusive would wait for each other, whatever
# their names are.
ask($admin, "SELECT lock_acquire('both', '1 hour', '$_', mode => 'shared') IS NULL") for ($ada, $eve);
queue_up($admin, $other, "SELECT status FROM lock_convert('both', '$ada', wait => '1 hour')");
like(reply($owner, "SELECT status FROM lock_convert('both', '$eve', wait => '1 hour')"), qr/^ERROR:  40P01: .*\nDETAIL:  Another caller that shares the lock is already waiting/, 'the second conversion is refused, also if its owner has the hash of the first');
reply($admin, "SELECT lock_release('both', '$eve')");
is(answer($other), 'acquired', '... the first converts when the second has released');
ask($admin, 'TRUNCATE app_lock');

# Two keys with one hash are upgraded independently.
ask($admin, "SELECT lock_acquire('$evil', '1 hour', '$_', mode => 'shared') IS NULL") for ($eve, 'ann');
ask($admin, "SELECT lock_acquire('$peaceful[0]', '1 hour', '$_', mode => 'shared') IS NULL") for ('bob', 'cid');
queue_up($admin, $attacker, "SELECT status FROM lock_convert('$evil', '$eve', wait => '1 hour')");
queue_up($admin, $other, "SELECT status FROM lock_convert('$peaceful[0]', 'bob', wait => '1 hour')");
is(ask($admin, q{SELECT count(*), count(DISTINCT key), max(place) FROM lock_waiters}), '2|2|1', 'two conversions wait for two keys');
reply($admin, q{SELECT lock_release_all('ann'), lock_release_all('cid')});
is(answer($other), 'acquired', '... one converts');
is(answer($attacker), 'acquired', '... and the other');
ask($admin, 'TRUNCATE app_lock');

#
# Deadlocks.  Some sessions search soon, and again every second; the others
# do not search.
#
my $soon = q{SET deadlock_timeout = '50 ms'};
my ($first, $second, $third) = map { session($node, $_) } ('First', 'Second', 'Third');
sub have_looked
{
	return poll($admin, "SELECT count(*) < $_[0] OR bool_and(clock_timestamp() - since > '1500 ms') FROM lock_waiters");
}

# First waits for Ada's key.  Eve, who has Ada's hash, waits for First's key.
ask($admin, "SELECT lock_acquire('of ada', '1 hour', '$ada') IS NULL, lock_acquire('of first', '1 hour', 'first') IS NULL");
ask($_, $soon) for ($first, $second);
queue_up($admin, $second, acquire('of first', $eve, q{, wait => '1 hour'}));
queue_up($admin, $first, acquire('of ada', 'first', q{, wait => '1 hour'}));
have_looked(2);
is(ask($admin, 'SELECT count(*) FROM lock_waiters'), '2', 'no deadlock: an owner of the same hash waits');
reply($admin, "SELECT lock_try_release('of ada', '$ada')");
is(answer($first), 'acquired', '... the first gets its key');
reply($admin, q{SELECT lock_try_release('of first', 'first')});
is(answer($second), 'acquired', '... and then the second');
ask($admin, 'TRUNCATE app_lock');

# First has one key in an open transaction, and waits for Second's key.
# Second waits for another key of the same hash, which Third has.
ask($admin, "SELECT lock_acquire('of second', '1 hour', 'second') IS NULL, lock_acquire('$peaceful[0]', '1 hour', 'third') IS NULL");
ask($first, 'BEGIN; ' . acquire($evil, 'first'));
queue_up($admin, $second, acquire($peaceful[0], 'second', q{, wait => '1 hour'}));
queue_up($admin, $first, acquire('of second', 'first', q{, wait => '1 hour'}));
have_looked(2);
is(ask($admin, 'SELECT count(*) FROM lock_waiters'), '2', 'no deadlock: a transaction has a key of the same hash');
is(ask($admin, "SELECT blocked_by, blocking_pid IS NULL FROM lock_waiters WHERE pid = " . pid($second)), 'Admin|t', '... as lock_waiters says');
reply($admin, q{SELECT lock_try_release('} . $peaceful[0] . q{', 'third')});
is(answer($second), 'acquired', '... the second gets its key');
reply($admin, q{SELECT lock_try_release('of second', 'second')});
is(answer($first), 'acquired', '... and then the first');
ask($first, 'ROLLBACK');
ask($admin, 'TRUNCATE app_lock');

# First waits for a key that Second and Third share.  Second waits for a key whose owner
# does not wait, Third for a key of the same hash, which First has: a deadlock.
ask($_, q{SET deadlock_timeout = '1 h'}) for ($second, $third);
ask($admin, "SELECT lock_acquire('of both', '1 hour', '$_', mode => 'shared') IS NULL") for ('second', 'third');
ask($admin, "SELECT lock_acquire('$peaceful[0]', '1 hour', 'nobody') IS NULL, lock_acquire('$evil', '1 hour', 'first') IS NULL");
queue_up($admin, $second, acquire($peaceful[0], 'second', q{, wait => '1 hour'}));
queue_up($admin, $third, acquire($evil, 'third', q{, wait => '1 hour'}));
is(reply($first, acquire('of both', 'first', q{, wait => '1 hour'})), 'deadlock', 'a deadlock is found behind two keys of one hash');
reply($admin, qq{SELECT lock_try_release('$peaceful[0]', 'nobody'), lock_try_release('$evil', 'first')});
is(answer($_), 'acquired', '... the others get their keys') for ($second, $third);
ask($admin, 'TRUNCATE app_lock');
end($first, $second, $third);

#
# The tags in pg_locks
#
# The tags of key, shared holding and lock of a transaction, in this order, as a role
# without rights can read them
my $number = q{(classid::bigint << 32 | objid::bigint)};
sub tags_of
{
	my ($psql, $key, $by) = @_;
	my @tags = split /\n/, ask($psql, 'BEGIN; ' . (acquire_for_transaction($key, $by, $shared) =~ s/SELECT status/SELECT count(*) FILTER (WHERE acquired)/r) . "; SET LOCAL ROLE outsider; SELECT $number FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' ORDER BY objsubid; ROLLBACK");

	is(scalar(@tags), 4, 'a shared lock with lifetime transaction has tags of key, holding and transaction') or diag("@tags");
	shift @tags;
	return @tags;
}
sub tags_in
{
	my ($database) = @_;
	my $psql = session($node, 'Tags', $database);
	my @tags = tags_of($psql, $evil, $ada);

	end($psql);
	return "@tags";
}
# Do any two of these lists have an element in common?
sub differ
{
	my ($name, @lists) = @_;
	my %seen;
	my @twice;

	foreach my $list (@lists)
	{
		push @twice, grep { $seen{$_} } @$list;
		$seen{$_} = 1 for @$list;
	}
	return is("@twice", '', $name);
}

my @tags = tags_of($admin, $evil, $ada);
my @others = map { [ tags_of($admin, $_, $ada) ] } @peaceful[ 0 .. 9 ];
differ('keys of one public hash have tags of their own', \@tags, @others);
differ('... so do owners of one public hash', map { [ (tags_of($admin, $evil, $_))[1] ] } ($ada, @adas));
differ('... and holdings of one public tag', [ (tags_of($admin, $list, $ada))[1] ], map { [ (tags_of($admin, $report, $_))[1] ] } @reporters);

# All 64-bit numbers that SQL functions make of a text; of shorter hashes, each half
my $hashes = q{
WITH texts AS (SELECT t, convert_to(t, 'UTF8') AS b FROM unnest(ARRAY['TEXTS']) t),
	seeds AS (SELECT s FROM unnest(ARRAY[0, 1, 42, SEEDS, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), (SELECT system_identifier FROM pg_control_system())]) s),
	digests AS (SELECT d FROM texts, LATERAL (VALUES (decode(md5(b), 'hex')), (sha224(b)), (sha256(b)), (sha384(b)), (sha512(b)), (b)) v (d))
SELECT h FROM texts, seeds, LATERAL (VALUES (hashtextextended(t, s)), (hashbpcharextended(t::bpchar, s)), (hashnameextended(t::name, s)), (jsonb_hash_extended(to_jsonb(t), s)),
	(hash_array_extended(ARRAY[t], s)), (hash_record_extended(ROW(t), s)), (hashint8extended(hashtextextended(t, s), s))) v (h)
UNION ALL SELECT ('x' || encode(substr(d, n, 8), 'hex'))::bit(64)::bigint FROM digests, generate_series(1, length(d) - 7) n
UNION ALL SELECT ('x' || encode(reverse(substr(d, n, 8)), 'hex'))::bit(64)::bigint FROM digests, generate_series(1, length(d) - 7) n};
ask($admin, q{CREATE FUNCTION pg_temp.reverse(b bytea) RETURNS bytea LANGUAGE sql AS 'SELECT string_agg(substr(b, n, 1), '''' ORDER BY n DESC) FROM generate_series(1, length(b)) n'});
$hashes =~ s/\breverse\(/pg_temp.reverse(/;
$hashes =~ s/TEXTS/join(q{', '}, $evil, $ada, $evil . $ada, $ada . $evil)/e;
$hashes =~ s/SEEDS/$seed_key, $seed_owner/;
my %public = map { $_ => 1 } split /\n/, ask($admin, $hashes);
cmp_ok(scalar(keys %public), '>', 500, 'SQL makes many numbers of a key and an owner');
ok($public{ public_hash($evil, $seed_key) } && $public{ public_hash($ada, $seed_owner) }, '... among them the former hashes of tags');
is(join(' ', grep { $public{$_} } @tags), '', '... none of them is a tag');
# The halves of a tag: one half may match one of many numbers by chance, but not both.
my %halves = map { ($_ & 0xffffffff) => 1, ($_ >> 32 & 0xffffffff) => 1 } split(/\n/, ask($admin, "SELECT hashtext(t)::bigint FROM unnest(ARRAY['$evil', '$ada']) t")), public_hash($evil, $seed_key), public_hash($ada, $seed_owner);
is(join(' ', grep { $halves{ $_ & 0xffffffff } && $halves{ $_ >> 32 & 0xffffffff } } @tags), '', '... and no tag has two such halves');
{
	use integer;
	my %owners = map { $_ => 1 } (public_hash($ada, $seed_owner), public_hash($ada, $seed_key), public_hash($ada, 0));
	my @derived = map { my $hash = $_ + 0; (uncombine($hash, $tags[1]), uncombine($tags[1], $hash), $hash ^ ($tags[1] + 0)) } ($tags[0], public_hash($evil, $seed_key));

	is(join(' ', grep { $owners{$_} } @derived), '', 'the tags of a shared holding and its key do not reveal the hash of the owner');
}

#
# The tags in other databases, and after the extension was created anew
#
my $tags_before = "@tags";
$node->safe_psql('postgres', $_) for ('CREATE DATABASE two', 'CREATE DATABASE plain', 'CREATE DATABASE custom', 'CREATE DATABASE seldom');
$node->safe_psql($_, 'CREATE EXTENSION atomic_lock') for ('two', 'seldom');
my %tags = map { $_ => [ split / /, tags_in($_) ] } ('postgres', 'two');
is("@{$tags{postgres}}", $tags_before, 'another session has the same tags');
differ('another database has other tags', @tags{qw(postgres two)});

my $using = session($node, 'Using', 'two');
is("@{[tags_of($using, $evil, $ada)]}", "@{$tags{two}}", 'a session uses the extension');
$node->safe_psql('two', 'DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock');
$tags{again} = [ split / /, tags_in('two') ];
differ('an extension that is created anew has other tags', @tags{qw(postgres two again)});
is("@{[tags_of($using, $evil, $ada)]}", "@{$tags{again}}", '... also for a session that has used the former one');
end($using);

# Creation that is rolled back, and in the transaction that uses the extension
$node->safe_psql('two', 'BEGIN; DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock; SELECT lock_acquire(\'x\'); ROLLBACK');
is(tags_in('two'), "@{$tags{again}}", 'an extension whose replacement was rolled back has its own tags');
$using = session($node, 'Using', 'two');
ask($using, 'BEGIN; DROP EXTENSION atomic_lock; CREATE EXTENSION atomic_lock; ' . acquire($evil, $ada) . '; ROLLBACK; BEGIN; ' . acquire($evil, $ada));
{
	my $psql = session($node, 'Two', 'two');

	is(ask($psql, acquire($evil, 'bob')), 'pending', '... so that the claims of two sessions conflict');
	end($psql);
}
ask($using, 'ROLLBACK');
is(ask($using, acquire($evil, 'bob') . "; SELECT lock_release('$evil', 'bob')"), "acquired\nt", '... and the key is free after the rollback');
end($using);

#
# The first use ever: in a transaction that is rolled back, in two sessions at a time, and in
# a read-only session
#
{
	my ($one, $two) = map { session($node, $_, 'seldom') } ('One', 'Two');

	is(ask($one, 'SET default_transaction_read_only = on; SELECT locked FROM lock_status(\'x\'); SELECT lock_is_held(\'x\', \'y\'); RESET default_transaction_read_only'), "f\nf", 'the first use of an extension may be a look');
	is(ask($one, 'BEGIN; ' . acquire('x', 'one')), 'acquired', '... or an acquire');
	is(ask($two, acquire('x', 'two')), 'pending', '... whose claim refuses others');
	my $first_tags = ask($two, $tags);
	ask($one, 'ROLLBACK');
	is(ask($two, 'BEGIN; ' . acquire('x', 'two')), 'acquired', '... until it is rolled back');
	is(ask($one, $tags), $first_tags, '... under the same tag');
	end($one, $two);
}

#
# The secret of the tags
#
# It is stored on the page of the sequence, behind the columns.
sub page
{
	my ($psql) = @_;

	ask($psql, 'CHECKPOINT');
	return pack 'H*', ask($psql, q{SELECT encode(pg_read_binary_file(pg_relation_filepath('app_lock_fence'), 0, 8192), 'hex')});
}
# All bytes of a sequence's page that belong neither to its columns nor to
# the page header, as far as they are not zero: runs of eight or more
sub behind_columns
{
	my ($page) = @_;
	my ($upper, $special) = unpack 'x14 S S', $page;
	my $offset = unpack('x24 L', $page) & 0x7fff;
	my $hoff = unpack "x$offset x22 C", $page;
	my $end = $offset + $hoff + 17;		# last_value, log_cnt, is_called

	substr($page, 0, 28) = "\0" x 28;
	substr($page, $offset, $end - $offset) = "\0" x ($end - $offset);
	substr($page, $special, 4) = "\0" x 4;
	return grep { length >= 8 } split /\0{3,}/, $page;
}
my @secrets = behind_columns(page($admin));
ok(@secrets > 0, 'the secret is stored behind the columns of the sequence');
cmp_ok(length(join '', @secrets), '>=', 12, '... long enough');

# The forms of the secret in texts: bytes in hex, numbers of eight bytes
my %shown;
foreach my $bytes (@secrets)
{
	foreach my $i (0 .. length($bytes) - 8)
	{
		my $part = substr $bytes, $i, 8;

		$shown{$_} = 1 for (unpack('H*', $part), unpack('H*', reverse $part));
		next if $i % 8 != 0;
		$shown{$_} = 1 for map { (unpack($_, $part), unpack($_, reverse $part)) } ('q', 'Q');
	}
}
delete @shown{ grep { length $_ < 12 } keys %shown };
sub told_by
{
	my ($text) = @_;
	$text = lc $text;
	return scalar grep { index($text, $_) >= 0 } keys %shown;
}

is(ask($admin, q{SELECT count(*), string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'app_lock_fence'::regclass AND attnum > 0}), '3|last_value log_cnt is_called', 'the sequence has the columns of a sequence');
is(ask($admin, q{SELECT length(record_send(s)) FROM (SELECT * FROM app_lock_fence) s}), 4 + 3 * 8 + 17, '... its row has no other bytes');
like(reply($admin, 'SELECT app_lock_fence FROM app_lock_fence'), qr/^ERROR:  42809|^\(\d+,\d+,[tf]\)$/, '... also as a row, if the server allows that');
foreach my $sql (
	q{SELECT * FROM app_lock_fence}, q{SELECT to_jsonb(s), s::text, record_send(s) FROM (SELECT *, ctid, xmin, xmax, tableoid FROM app_lock_fence) s},
	q{TABLE pg_sequences}, q{SELECT pg_sequence_last_value('app_lock_fence'), pg_sequence_parameters('app_lock_fence'::regclass::oid)}, q{SELECT * FROM information_schema.sequences}, q{SELECT query_to_xml('SELECT * FROM app_lock_fence', true, false, '')})
{
	is(told_by(reply($admin, "SET bytea_output = hex; $sql")), 0, "the secret is not shown by $sql");
}

# All relations and functions that a role may read that may read everything, and has all levels
ask(
	$admin, q{
CREATE ROLE reader IN ROLE pg_read_all_data, pg_monitor;
SELECT lock_grant_access('reader', l) FROM unnest('{user,monitor,admin}'::text[]) l;
CREATE FUNCTION pg_temp.read_all(secrets text[], OUT source text, OUT bytes bigint, OUT tells boolean, OUT has_key boolean)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
BEGIN
	FOR source IN
		SELECT oid::regclass::text FROM pg_class
		WHERE relkind IN ('r', 'v', 'm', 'S', 'p') AND has_table_privilege(oid, 'SELECT')
		UNION ALL SELECT format('%s(%s)', p.oid::regproc, CASE pronargs WHEN 1 THEN '''some key''' END)
		FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
			JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		WHERE extname = 'atomic_lock' AND p.prorettype <> 'trigger'::regtype
			AND (pronargs = 0 OR pronargs = 1 AND proargtypes[0] = 'text'::regtype)
			AND has_function_privilege(p.oid, 'EXECUTE')
	LOOP
		BEGIN
			-- except this query itself, which contains the secret
			EXECUTE format('SELECT string_agg(lower(t::text), E''\n'') FROM %s t', CASE source WHEN 'pg_stat_activity' THEN '(SELECT * FROM pg_stat_activity WHERE pid <> pg_backend_pid())' ELSE source END) INTO answer;
		EXCEPTION WHEN others THEN
			answer := sqlerrm;
		END;
		bytes := length(answer);
		tells := EXISTS (SELECT FROM unnest(secrets) s WHERE strpos(answer, s) > 0);
		has_key := strpos(answer, 'some key') > 0;
		RETURN NEXT;
	END LOOP;
END$$});
ask($admin, "SELECT lock_acquire('some key', '1 hour', '$ada'), lock_acquire('another', lifetime => 'session')");
ask($admin, 'SET SESSION AUTHORIZATION reader; SET bytea_output = hex');
is(reply($admin, q[SELECT sum(bytes) > 100000, bool_or(has_key AND source = 'app_lock'), bool_or(has_key AND source LIKE '%lock_status()'), bool_or(source = 'app_lock_fence'), string_agg(source, ', ') FILTER (WHERE tells)
	FROM pg_temp.read_all('{] . join(',', sort keys %shown) . q[}')]), 't|t|t|t|', 'a role that may read everything reads leases, and not the secret of the tags');
ask($admin, 'RESET SESSION AUTHORIZATION; RESET bytea_output');
ask($admin, q{SELECT force_release('some key', 'test'), force_release('another', 'test')});

# Dumps, and databases restored from them
{
	my $dir = PostgreSQL::Test::Utils::tempdir;
	my @dump = ('pg_dump', '--no-sync', '-d', $node->connstr('postgres'));
	my ($dumped, $bytes);

	$node->command_ok([ @dump, '-f', "$dir/plain" ], 'a dump');
	$node->command_ok([ @dump, '-Fc', '-Z0', '-f', "$dir/custom" ], '... in the custom format');
	$node->command_ok([ 'pg_dump', '--no-sync', '-d', $node->connstr('postgres'), '--binary-upgrade', '-s', '-f', "$dir/upgrade" ], '... as for pg_upgrade');
	$dumped = join '', map { slurp_file("$dir/$_") } ('plain', 'custom', 'upgrade');
	is(told_by($dumped), 0, '... without the secret of the tags');
	is(scalar(grep { index($dumped, $_) >= 0 } @secrets), 0, '... also as bytes');
	$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('plain'), '-f', "$dir/plain" ], '... is restored');
	$node->command_ok([ 'pg_restore', '-d', $node->connstr('custom'), "$dir/custom" ], '... also from the custom format');
	$tags{$_} = [ split / /, tags_in($_) ] for ('plain', 'custom');
	differ('... the restored databases have other tags', @tags{qw(postgres two again plain custom)});
	is(tags_in('postgres'), $tags_before, '... the dumped database has the same tags as before');
}

#
# Changes of the sequence change neither the tags nor the conflicts of claims.
#
sub is_unchanged
{
	my ($what) = @_;

	is("@{[tags_of($admin, $evil, $ada)]}", $tags_before, "$what: the tags are the same");
	return is(tags_in('postgres'), $tags_before, '... also for a new session');
}
ask($admin, q{SELECT lock_acquire('kept', '1 hour', 'eve')});
ask($attacker, q{BEGIN; SELECT lock_extend('kept', 'eve'); PREPARE TRANSACTION 'kept'});
foreach my $sql (
	q{SELECT setval('app_lock_fence', last_value) > 0 FROM app_lock_fence},
	q{SELECT setval('app_lock_fence', last_value + 1000, false) > 0 FROM app_lock_fence},
	q{SELECT nextval('app_lock_fence') > 0},
	q{ALTER SEQUENCE app_lock_fence RESTART},
	q{ALTER SEQUENCE app_lock_fence RESTART WITH 1000},
	q{BEGIN; ALTER SEQUENCE app_lock_fence RESTART; ROLLBACK},
	q{BEGIN; ALTER SEQUENCE app_lock_fence RESTART; SELECT lock_acquire('x', '1 hour', 'o') IS NOT NULL; ROLLBACK},
	q{BEGIN; SAVEPOINT s; ALTER SEQUENCE app_lock_fence RESTART WITH 7; ROLLBACK TO s; COMMIT},
	q{ALTER SEQUENCE app_lock_fence MINVALUE 1 NO MAXVALUE},
	q{ALTER SEQUENCE app_lock_fence CACHE 1},
	q{VACUUM (FREEZE) app_lock})
{
	is(reply($admin, $sql), $sql =~ /SELECT/ ? 't' : '', $sql);
	is_unchanged($sql);
	like(reply($owner, q{SET lock_timeout = '10 ms'; SELECT lock_release('kept', 'eve')}), qr/^ERROR:  55P03/, '... and conflict with those of a prepared transaction');
}
disconnect_sessions();
$node->stop('immediate');
$node->start;
connect_sessions($node);
is_unchanged('after a crash as well');
like(reply($owner, q{SET lock_timeout = '10 ms'; SELECT lock_release('kept', 'eve')}), qr/^ERROR:  55P03/, '... and conflict with those of a prepared transaction');
ask($admin, q{ROLLBACK PREPARED 'kept'});
is(reply($owner, q{RESET lock_timeout; SELECT lock_release('kept', 'eve')}), 't', '... until that is rolled back');
foreach my $sql (
	q{ALTER SEQUENCE app_lock_fence SET UNLOGGED; ALTER SEQUENCE app_lock_fence SET LOGGED},
	q{CREATE ROLE other_owner; ALTER SEQUENCE app_lock_fence OWNER TO other_owner; ALTER SEQUENCE app_lock_fence OWNER TO CURRENT_USER; DROP ROLE other_owner})
{
	is(reply($admin, $sql), '', $sql);
	is_unchanged($sql);
}
is(tags_in($_), "@{$tags{$_ eq 'two' ? 'again' : $_}}", "... in database $_ too") for ('two', 'plain', 'custom');
disconnect_sessions();

#
# The library is not preloaded.
#
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
connect_sessions($node);
ask($admin, 'TRUNCATE app_lock');
ask($_, q{SELECT lock_is_held('x', 'y')}) for ($admin, $owner, $attacker);
is("@{[tags_of($admin, $evil, $ada)]}", $tags_before, 'not preloaded: the tags are the same');
# Without a queue, a waiting conversion has a tag, too.
ask($admin, "SELECT lock_acquire('$evil', '1 hour', '$_', mode => 'shared') IS NULL") for ($ada, 'bob');
queue_up($admin, $other, "SELECT status FROM lock_convert('$evil', '$ada', wait => '1 hour')",
	"SELECT wait_event_type = 'Extension' AND state = 'active' FROM pg_stat_activity WHERE pid = " . pid($other));
{
	my @of_upgrade = split /\n/, ask($admin, "SELECT $number FROM pg_locks WHERE objsubid = 1709");

	is(scalar(@of_upgrade), $node->pg_version >= 17 ? 0 : 1, 'without a queue, a waiting conversion has a tag');
	is(join(' ', grep { $public{$_} } @of_upgrade), '', '... which SQL cannot compute');
}
ask($admin, q{SELECT lock_release_all('bob')});
is(answer($other), 'acquired', '... the conversion succeeds');
ask($admin, 'TRUNCATE app_lock');
foreach my $attack (@attacks[ 0, 2, 7 ])
{
	my ($name, $before, $sql) = @$attack;

	set_up(0);
	ask($admin, $before) if $before;
	ask($attacker, "BEGIN; $sql");
	all_goes_on("not preloaded, $name in an open transaction", qr/lock_status|lock_activity/);
	ask($attacker, 'ROLLBACK');
	ask($owner, 'SELECT lock_release_all()');
	ask($admin, q{TRUNCATE app_lock; SET atomic_lock.enforce_guards = off; UPDATE guarded SET n = 0; RESET atomic_lock.enforce_guards});
}
disconnect_sessions();
$node->stop;
log_is_clean($node, killed => 1);

#
# A server that writes as little WAL as possible: the extension is created and used
# in one transaction, and then the server crashes.
#
my $minimal = PostgreSQL::Test::Cluster->new('minimal');
$minimal->init;
$minimal->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'atomic_lock'
wal_level = minimal
max_wal_senders = 0
log_statement = none
max_prepared_transactions = 10
});
$minimal->start;
$minimal->safe_psql('postgres', 'BEGIN; CREATE EXTENSION atomic_lock; ' . acquire('x', 'one') . '; COMMIT');
$minimal->safe_psql('postgres', 'BEGIN; ' . acquire('y', 'one') . q{; PREPARE TRANSACTION 'y'});
my $minimal_tags = $minimal->safe_psql('postgres', $tags);
$minimal->stop('immediate');
$minimal->start;
is($minimal->safe_psql('postgres', $tags), $minimal_tags, 'wal_level = minimal: a prepared transaction keeps its tags over a crash');
is($minimal->safe_psql('postgres', acquire('x', 'two') . '; ' . acquire('y', 'two')), "held\npending", '... and new claims have the same tags');
$minimal->safe_psql('postgres', q{ROLLBACK PREPARED 'y'});
$minimal->stop;

done_testing();
