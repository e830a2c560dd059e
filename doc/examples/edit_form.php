<?php
// An edit form with atomic_lock, on PHP's PDO
//
// php edit_form.php 'pgsql:host=...;dbname=...' plays Alice, Bob and a job.  The database
// needs the extension and the table of setup.sql.

// One request: a transaction in which we are $owner
function request(PDO $db, string $owner, callable $work)
{
	$db->beginTransaction();
	try {
		row($db, "SELECT set_config('atomic_lock.owner', ?, true)", $owner);
		$answer = $work($db);
		$db->commit();
		return $answer;
	} finally {
		if ($db->inTransaction())
			$db->rollBack();
	}
}

function row(PDO $db, string $sql, ...$values): array
{
	$statement = $db->prepare($sql);
	$statement->execute($values);
	return $statement->fetch(PDO::FETCH_NUM) ?: [];
}

// Take the lock, then read.  Without the lock, the form is shown for reading only.
function openForm(PDO $db, string $owner, int $order, string $user): array
{
	return request($db, $owner, fn () => [
		...row($db, "SELECT status, holder FROM lock_try_acquire(lock_key('order', ?), ttl => '5 min', holder => ?)",
			$order, $user),
		...row($db, 'SELECT note FROM orders WHERE id = ?', $order)]);
}

// The page calls this every 100 seconds, a third of the lease.
function keepOpen(PDO $db, string $owner, int $order): string
{
	return request($db, $owner, fn () =>
		row($db, "SELECT lock_try_extend(lock_key('order', ?))", $order)[0] === null ? 'lost' : 'extended');
}

// The guard of the table refuses this without the lock.
function save(PDO $db, string $owner, int $order, string $note): string
{
	try {
		request($db, $owner, fn () => row($db, 'UPDATE orders SET note = ? WHERE id = ?', $note, $order));
	} catch (PDOException $error) {
		if ($error->getCode() !== 'LK006')
			throw $error;
		preg_match('/ERROR:\s+(.*)/', $error->errorInfo[2], $message); // the line without detail and hint
		return "refused: $message[1]";
	}
	return 'saved';
}

// The answer is a word for the result.
function closeForm(PDO $db, string $owner, int $order): string
{
	return request($db, $owner, fn () => row($db, "SELECT lock_try_release(lock_key('order', ?))", $order)[0]);
}

// From the form to a job.  The job has its own owner, and the form no longer has the lock.
function handOver(PDO $db, string $owner, int $order, string $job): string
{
	return request($db, $owner, fn () => row($db, "SELECT status FROM lock_transfer(lock_key('order', ?),
		owner => ?, new_owner => ?, holder => 'nightly export', ttl => '10 min')", $order, $owner, $job)[0]);
}

function say(string ...$words): void
{
	echo implode(' ', $words), "\n";
}

// What happens in an afternoon
function play(string $dsn): void
{
	[$alice, $tab2, $bob] = ['session-8f14e45f/tab-1', 'session-8f14e45f/tab-2', 'session-c9f0f895/tab-1'];
	$connect = fn () => new PDO($dsn, null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
	$db = $connect();

	say('Alice opens 42:', openForm($db, $alice, 42, 'Alice')[0]);
	say('Alice opens 42 in another tab:', ...array_slice(openForm($db, $tab2, 42, 'Alice'), 0, 2));
	say('Bob opens 42:', ...array_slice(openForm($db, $bob, 42, 'Bob'), 0, 2));
	say('Bob saves:', save($db, $bob, 42, 'of Bob'));
	say('Alice goes on:', keepOpen($db, $alice, 42));
	say('Alice saves:', save($db, $alice, 42, 'of Alice'));

	// The owner comes with each request, so the application may forget everything.
	$db = null;
	$db = $connect();
	say('After a restart, Alice goes on:', keepOpen($db, $alice, 42));
	say('Alice reloads the page:', openForm($db, $alice, 42, 'Alice')[0]);

	say('Alice hands 42 to a job:', handOver($db, $alice, 42, 'job-17'));
	say('Alice saves:', save($db, $alice, 42, 'of Alice, too late'));
	say('The job saves:', save($db, 'job-17', 42, 'exported'));
	say('The job ends:', closeForm($db, 'job-17', 42));

	// Alice goes to lunch; a colleague has her lock ended, and Bob takes it.
	say('Alice opens 42:', openForm($db, $alice, 42, 'Alice')[0]);
	row($db, "SELECT force_release('order:42', 'Alice is at lunch')");
	say('Bob opens 42:', openForm($db, $bob, 42, 'Bob')[0]);
	say('Alice goes on:', keepOpen($db, $alice, 42));
	say('Alice saves:', save($db, $alice, 42, 'of Alice, after lunch'));
	say('Alice closes:', closeForm($db, $alice, 42));
	say('Bob closes:', closeForm($db, $bob, 42));

	say('The order is now:', row($db, 'SELECT note FROM orders WHERE id = 42')[0]);
}

play($argv[1]);
