# The statements of doc/libraries.md about ShedLock, with JDBC: the SQL of the LockProvider in
# doc/examples/shedlock, and why ShedLock's own provider cannot lock by a view.
#
# Properties: of two hosts, one runs the task; lockAtLeastFor keeps the lock after
# the task has ended, and no longer; an expired lock can be neither extended nor
# released.  The provider returns the answers of the SQL.
#
# Debian has no package of ShedLock, so AtomicLockProvider.java is compiled with
# stubs of the ShedLock classes that it needs.  Skipped without Java or the JDBC driver.
#
# Turns red when: a lease has another length than the provider says; an answer changes;
# ON CONFLICT (...) DO UPDATE works for a view, and the document has to say so.

use strict;
use warnings FATAL => 'all';
use AtomicLockClients;
use AtomicLockTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no Java, or no JDBC' unless have_driver('jdbc');

# Stubs of the ShedLock classes that the provider needs, with their signatures
my %shedlock = (
	'core/SimpleLock' => q{interface SimpleLock {
		void unlock();
		java.util.Optional<SimpleLock> extend(java.time.Duration atMost, java.time.Duration atLeast); }},
	'core/LockProvider' => q{interface LockProvider { java.util.Optional<SimpleLock> lock(LockConfiguration task); }},
	'core/ExtensibleLockProvider' => q{interface ExtensibleLockProvider extends LockProvider { }},
	'core/ClockProvider' => q{class ClockProvider { public static java.time.Instant now() { return java.time.Instant.now(); } }},
	'core/LockConfiguration' => q{class LockConfiguration {
		final String name; final java.time.Duration atMost; final java.time.Instant atLeast;
		public LockConfiguration(java.time.Instant now, String name, java.time.Duration atMost, java.time.Duration atLeast) {
			this.name = name; this.atMost = atMost; this.atLeast = now.plus(atLeast); }
		public String getName() { return name; }
		public java.time.Duration getLockAtMostFor() { return atMost; }
		public java.time.Instant getLockAtLeastUntil() { return atLeast; } }},
	'core/AbstractSimpleLock' => q{abstract class AbstractSimpleLock implements SimpleLock {
		protected final LockConfiguration lockConfiguration;
		protected AbstractSimpleLock(LockConfiguration task) { lockConfiguration = task; }
		public final void unlock() { doUnlock(); }
		protected abstract void doUnlock();
		public java.util.Optional<SimpleLock> extend(java.time.Duration atMost, java.time.Duration atLeast) {
			return doExtend(new LockConfiguration(ClockProvider.now(), lockConfiguration.getName(), atMost, atLeast)); }
		protected java.util.Optional<SimpleLock> doExtend(LockConfiguration task) { throw new UnsupportedOperationException(); } }},
	'support/LockException' => q{class LockException extends RuntimeException {
		public LockException(String message, Throwable cause) { super(message, cause); } }});

my $classes = PostgreSQL::Test::Utils::tempdir;
foreach my $name (sort keys %shedlock)
{
	my ($package, $class) = split '/', $name;
	append_to_file("$classes/$class.java", "package net.javacrumbs.shedlock.$package;\npublic $shedlock{$name}\n");
}
system_or_bail('javac', '-Xlint:all,-serial', '-Werror', '-cp', $jdbc, '-d', $classes, glob("$classes/*.java"), glob('doc/examples/shedlock/*.java'),
	'test/t/clients/ShedLock.java');

my $node = clients_server('shedlock');
is_deeply(lines($node, 'shedlock', 'java', '-cp', "$classes:$jdbc", 'ShedLock', jdbc_of($node, 'shedlock')), [ split /\n/, <<'END' ], 'two hosts');
another host: refused
extended: true, another host: refused
released: true, again: false
another host: granted
ran out, extended: false, released: false, with time left: false
released, to last 10 minutes: true, another host: refused
for less than a millisecond: true, extended: true
the provider: another host: false, extended, another host: false
unlocked, another host: granted, the first extends: false
END
is($node->safe_psql('shedlock', 'SELECT key, holder, round(ttl_us / 60e6) FROM app_lock WHERE NOT released AND expires_at > now()'),
	'shedlock:night\:ly|one|10', 'the lease that is left');

# ShedLock's own statement, on a view
$node->safe_psql('postgres', <<'END');
CREATE TABLE leases (name text PRIMARY KEY, lock_until timestamp, locked_at timestamp, locked_by text);
CREATE VIEW shedlock AS SELECT DISTINCT * FROM leases;
CREATE FUNCTION lock_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER lock_it INSTEAD OF INSERT OR UPDATE ON shedlock FOR EACH ROW EXECUTE FUNCTION lock_it();
END
my $insert = q{INSERT INTO shedlock (name, lock_until, locked_at, locked_by) VALUES ('nightly', now() + '1 h', now(), 'one')};
is(sqlstate($node, "$insert ON CONFLICT (name) DO UPDATE SET lock_until = excluded.lock_until"), '42P10', 'ShedLock by a view');
is(sqlstate($node, $insert), 'no error: ', '... and without ON CONFLICT');

log_is_clean($node);
$node->stop;
done_testing();
