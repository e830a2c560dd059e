# A key that is held all the time is never reported as free: many sessions ask for one
# owner's locks while two sessions change how they are held.
#
# One session converts a holding back and forth, another turns the locks of its
# transactions into leases.  Four others make, under the same owner, every call that
# must not say "no" meanwhile, at each isolation level.  AL_LOOK_CALLS in the
# environment is the number of calls of each session.
#
# Properties: a "no" is decided by one look, or under a claim: a holding that moves
# from one row to another, or from a transaction into a row, is found in one of
# them.  Where only the uncommitted transaction of another session has the holding, a call
# that extends, releases or relies on it waits for that, and answers by its outcome.
#
# Turns red when: the rows of a key are looked at one after the other, each at
# another moment, and the answer combines the first and the last look; a holding
# that a transaction turns into a lease is not visible until the commit.

use strict;
use warnings FATAL => 'all';
use AtomicLockTest;
use AtomicLockWait;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $calls = $ENV{AL_LOOK_CALLS} || 2000;
my @levels = ('read committed', 'read committed', 'repeatable read', 'serializable');
my $node = PostgreSQL::Test::Cluster->new('look');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
log_statement = none
autovacuum = off
shared_preload_libraries = 'atomic_lock'
atomic_lock.sweep_interval = '1s'
atomic_lock.released_retention = 0
});
$node->start;
my $watch = session($node, 'Watch');
ask($watch, q{
CREATE EXTENSION atomic_lock;
CREATE TABLE calls (call text, key text, level text, number bigint, refused bigint);
CREATE TABLE wrong (call text, key text, level text, answer text);
-- Marks outside of transactions; keys are held all the time between two equal values:
-- the batch of keys that the taker holds, and the batch of its leases; negative: none
CREATE SEQUENCE held MINVALUE -9223372036854775808;
CREATE SEQUENCE leased MINVALUE -9223372036854775808;
-- Called when the readers are done
CREATE SEQUENCE done;
CREATE TABLE changes (what text, number bigint, refused bigint);

-- One call: NULL for a right answer, "refused" where another session's claim was in
-- the way, otherwise the wrong answer
CREATE FUNCTION try_call(call text, k text, reader int, leases int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer	text;
	number	bigint;
BEGIN
	CASE call
		WHEN 'lock_is_held' THEN answer := CASE WHEN lock_is_held(k, 'o') THEN NULL ELSE 'false' END;
		WHEN 'lock_holder' THEN answer := CASE WHEN lock_holder(k) IS NULL THEN 'NULL' END;
		WHEN 'lock_status' THEN answer := CASE WHEN (lock_status(k)).locked THEN NULL ELSE 'not locked' END;
		WHEN 'lock_extend' THEN answer := CASE WHEN lock_extend(k, 'o', '1 hour') IS NULL THEN 'NULL' END;
		WHEN 'lock_try_extend' THEN answer := CASE WHEN lock_try_extend(k, 'o') IS NULL THEN 'NULL' END;
		WHEN 'lock_extend_all' THEN
			number := lock_extend_all('o', '1 hour');
			answer := CASE WHEN number < leases THEN number || ' of ' || leases END;
		WHEN 'lock_assert' THEN answer := CASE WHEN lock_assert(k, 'o') IS NULL THEN 'NULL' END;
		WHEN 'lock_try_release' THEN
			answer := lock_try_release(k, 'o');
			answer := nullif(answer, 'released');
		WHEN 'lock_release' THEN answer := CASE WHEN lock_release(k, 'o') THEN NULL ELSE 'false' END;
		WHEN 'lock_try_acquire' THEN
			answer := (lock_try_acquire(k, '1 hour', 'o', 'shared')).status;
			answer := CASE answer WHEN 'reacquired' THEN NULL WHEN 'held' THEN 'refused' WHEN 'pending' THEN 'refused' ELSE answer END;
		WHEN 'lock_try_acquire, another' THEN
			answer := (lock_try_acquire(k, '1 hour', 'p' || reader)).status;
			answer := CASE WHEN answer NOT IN ('held', 'pending') THEN answer END;
		WHEN 'lock_convert' THEN answer := CASE WHEN (lock_convert(k, 'o', 'shared')).acquired THEN NULL ELSE 'not acquired' END;
		WHEN 'lock_transfer' THEN answer := CASE WHEN (lock_transfer(k, 'o', 'q' || reader)).acquired THEN NULL ELSE 'not acquired' END;
		WHEN 'UPDATE' THEN
			EXECUTE format('UPDATE doc_%s SET x = x + 1', reader);
	END CASE;
	RETURN answer;
EXCEPTION
	WHEN lock_not_available THEN
		RETURN 'refused';
	WHEN OTHERS THEN
		RETURN SQLSTATE;
END
$$;
-- All calls in turn, each in a transaction of its own that is rolled back, until there
-- are enough, and each call was let through at least once
CREATE PROCEDURE read(reader int, enough int, taken boolean) LANGUAGE plpgsql AS $$
DECLARE
	calls	text[] := ARRAY['lock_is_held', 'lock_holder', 'lock_status', 'lock_extend', 'lock_is_held', 'lock_try_extend', 'lock_extend_all', 'lock_status', 'lock_assert', 'lock_try_release', 'lock_is_held', 'lock_release', 'lock_try_acquire', 'lock_holder', 'lock_try_acquire, another', 'lock_convert', 'lock_transfer', 'UPDATE'];
	level	text := current_setting('transaction_isolation');
	total	int := 0;
	number	bigint[] := array_fill(0::bigint, ARRAY[cardinality(calls), 2]);
	refused	bigint[] := number;
	i		int := reader * 4;
	c		int;
	kind	int;
	k		text;
	batch	bigint;
	lease	bigint;
	now		bigint;
	answer	text;
BEGIN
	WHILE total < enough OR EXISTS (SELECT FROM generate_subscripts(calls, 1) x, generate_series(1, 1 + taken::int) y
		WHERE number[x][y] = refused[x][y] AND (y = 1 OR calls[x] <> 'UPDATE'))
	LOOP
		i := i + 1;
		c := 1 + i % cardinality(calls);
		SELECT last_value INTO lease FROM leased;
		SELECT last_value INTO batch FROM held;
		kind := CASE WHEN taken AND batch > 0 AND random() < 0.6 AND calls[c] <> 'UPDATE' THEN 2 ELSE 1 END;
		k := CASE kind WHEN 1 THEN 'flip' ELSE format('take %s %s', batch, floor(random() * 4)) END;
		answer := try_call(calls[c], k, reader, CASE WHEN lease > 0 THEN 6 ELSE 2 END);
		ROLLBACK;
		-- was the key held until now?
		IF calls[c] = 'lock_extend_all' AND lease > 0 THEN
			SELECT last_value INTO now FROM leased;
			CONTINUE WHEN now <> lease;
		ELSIF kind = 2 THEN
			SELECT last_value INTO now FROM held;
			CONTINUE WHEN now <> batch;
		END IF;
		total := total + 1;
		number[c][kind] := number[c][kind] + 1;
		IF answer = 'refused' THEN
			refused[c][kind] := refused[c][kind] + 1;
		ELSIF answer IS NOT NULL THEN
			INSERT INTO wrong VALUES (calls[c], CASE kind WHEN 1 THEN 'converted' ELSE 'taken over' END, level, answer);
		END IF;
		COMMIT;
	END LOOP;
	FOR c IN 1..cardinality(calls) LOOP
		FOR kind IN 1..2 LOOP
			INSERT INTO calls VALUES (calls[c], CASE kind WHEN 1 THEN 'converted' ELSE 'taken over' END, level, number[c][kind], refused[c][kind]);
		END LOOP;
	END LOOP;
END
$$;
-- Convert back and forth until the readers are done; their claims may be in the way
CREATE PROCEDURE flip() LANGUAGE plpgsql AS $$
DECLARE
	mode	text := 'shared';
	number	bigint := 0;
BEGIN
	WHILE number = 0 OR NOT (SELECT is_called FROM done) LOOP
		BEGIN
			PERFORM lock_convert('flip', 'o', mode);
			mode := CASE mode WHEN 'shared' THEN 'exclusive' ELSE 'shared' END;
			number := number + 1;
		EXCEPTION WHEN lock_not_available THEN
			NULL;
		END;
		COMMIT;
	END LOOP;
	INSERT INTO changes VALUES ('converted', number, 0);
END
$$;
CREATE PROCEDURE take() LANGUAGE plpgsql AS $$
DECLARE
	n		bigint := 0;
	all_taken	boolean;
	not_taken	bigint := 0;
BEGIN
	WHILE n = 0 OR NOT (SELECT is_called FROM done) LOOP
		n := n + 1;
		FOR i IN 0..3 LOOP
			PERFORM lock_acquire(format('take %s %s', n, i), owner => 'o', mode => CASE n % 2 WHEN 0 THEN 'shared' ELSE 'exclusive' END, lifetime => 'transaction');
		END LOOP;
		PERFORM setval('held', n);
		PERFORM pg_sleep(0.002 * random());
		all_taken := true;
		FOR i IN 0..3 LOOP
			IF NOT (lock_try_acquire(format('take %s %s', n, i), '1 hour', 'o', CASE n % 2 WHEN 0 THEN 'shared' ELSE 'exclusive' END)).acquired THEN
				all_taken := false;
				not_taken := not_taken + 1;
			END IF;
		END LOOP;
		PERFORM pg_sleep(0.002 * random());
		IF all_taken THEN
			COMMIT;
			PERFORM setval('leased', n);
			COMMIT;
			PERFORM pg_sleep(0.002 * random());
		END IF;
		PERFORM setval('held', -n), setval('leased', -n);
		FOR i IN 0..3 LOOP
			PERFORM lock_try_release(format('take %s %s', n, i), 'o');
			COMMIT;
		END LOOP;
	END LOOP;
	INSERT INTO changes VALUES ('taken over', n * 4, not_taken);
END
$$});
foreach my $reader (1 .. @levels)
{
	ask($watch, qq{CREATE TABLE doc_$reader (k text, x int); INSERT INTO doc_$reader VALUES ('solid', 1); SELECT lock_protect('doc_$reader', '{k}')});
}

sub look
{
	my ($name, $number, $taken) = @_;
	my @readers;
	my @writers = map { session($node, $_) } ('Flip', $taken ? 'Take' : ());

	ask($watch, q{TRUNCATE calls, wrong, changes; SELECT setval('held', -1), setval('leased', -1), setval('done', 1, false), lock_release_all('o')});
	ask($watch, q{SELECT count(lock_acquire(k, '1 hour', 'o', holder => 'Owner')) FROM unnest(ARRAY['solid', 'flip']) k});
	foreach my $level (@levels)
	{
		my $reader = session($node, 'Reader');
		ask($reader, "SET default_transaction_isolation = '$level'; SET atomic_lock.owner = 'o'");
		push @readers, $reader;
	}
	start($readers[$_ - 1], "CALL read($_, $number, " . ($taken ? 'true' : 'false') . ')') for 1 .. @readers;
	start($writers[0], 'CALL flip()');
	start($writers[1], 'CALL take()') if $taken;
	is(answer($_), '', "$name: a reader ends without error") for @readers;
	ask($watch, q{SELECT nextval('done')});
	is(answer($_), '', "$name: a writer ends without error") for @writers;
	end(@readers, @writers);

	note $_ for split /\n/, ask($watch, q{SELECT format('%s: %s calls of what is %s, %s refused', call, sum(number), key, sum(refused)) FROM calls GROUP BY call, key HAVING sum(number) > 0 ORDER BY key, call});
	note $_ for split /\n/, ask($watch, q{SELECT format('%s %s', number, what) FROM changes});
	is(ask($watch, q{SELECT sum(refused) FROM changes}), '0', '... a transaction can turn its locks into leases while others wait for it');
	foreach my $key ('converted', $taken ? 'taken over' : ())
	{
		is(ask($watch, "SELECT count(*) FROM wrong WHERE key = '$key'"), '0', "... no wrong answer about a key that is $key")
		  or diag(ask($watch, "SELECT format('%s, %s: %s, %s times of %s', call, level, answer, count(*), (SELECT sum(number) FROM calls c WHERE c.call = w.call AND c.key = w.key AND c.level = w.level)) FROM wrong w WHERE key = '$key' GROUP BY call, level, answer, key ORDER BY 1"));
	}
	is(ask($watch, q{SELECT lock_is_held('flip', 'o'), lock_is_held('solid', 'o')}), 't|t', '... and both keys are held in the end');
	return;
}

look('preloaded', $calls, 1);
end($watch);
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
$watch = session($node, 'Watch');
look('not preloaded', $calls / 4, 0);
end($watch);
$node->stop;
log_is_clean($node, also => qr/40P01|40001|duplicate key/);

done_testing();
