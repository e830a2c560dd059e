<?php
// Work in a block that has a lock, with atomic_lock on PHP's PDO
//
// php block.php 'pgsql:host=...;dbname=...' plays a job, Bob and a DBA.  The database
// needs the extension and the role of setup.sql.
//
// PHP has no thread for a heartbeat, and PDO cannot be interrupted while it waits for an
// answer.  So the work calls step() between two steps, and no statement of it may take
// longer than what is left of the lease then.

// The block has ended without its lock.  The message is a word for the reason.
class Lost extends Exception {}

class Lock
{
	public string $owner;
	public int $token;
	private float $until, $next;

	public function __construct(private PDO $connection, private string $key, private float $ttl,
		private float $every, string $holder, float $wait)
	{
		$this->owner = 'job/' . bin2hex(random_bytes(16));
		$this->token = $this->call(
			'SELECT fencing_token, extract(epoch FROM waited + ttl_remaining)
			 FROM lock_acquire(?, ?, ?, holder => ?, wait => ?)',
			$key, "$ttl s", $this->owner, $holder, "$wait s");
	}

	// A call that returns the state of the lock, and the seconds that we still have it
	private function call(string $sql, ...$values)
	{
		$asked = self::clock();
		[$answer, $seconds] = row($this->connection, $sql, ...$values);
		$this->until = $asked + (float) $seconds; // counted from before the call
		$this->next = $asked + $this->every;
		return $answer;
	}

	// Between two steps of the work: a heartbeat, if it is time for one
	public function step(): void
	{
		if (self::clock() >= $this->next && $this->call(
			'SELECT status, extract(epoch FROM ttl_remaining) FROM lock_heartbeat(ARRAY[?], ?, ?)',
			$this->key, $this->owner, "$this->ttl s") !== 'extended')
			$this->until = 0;
		if (!$this->isOurs())
			throw new Lost('stopped');
	}

	// Uses our own clock, so no server can make us wait
	public function isOurs(): bool
	{
		return self::clock() < $this->until;
	}

	public function release(): string
	{
		return one($this->connection, 'SELECT lock_try_release(?, ?)', $this->key, $this->owner);
	}

	private static function clock(): float
	{
		return hrtime(true) / 1e9;
	}
}

// The lock of a key for a function, which works on the connection $work
function locked(string $dsn, PDO $work, string $key, float $ttl, string $holder, callable $block, ?float $every = null,
	float $wait = 0)
{
	$every ??= $ttl / 3;
	$former = one($work, 'SHOW statement_timeout');
	$lock = new Lock(connect($dsn), $key, $ttl, $every, $holder, $wait);
	try {
		// A statement that begins before the next heartbeat is due ends before the lease.
		setTimeout($work, max(1000, (int) (($ttl - $every) * 1000)));
		return $block($lock);
	} finally {
		$answer = $lock->release();
		try {
			restore($work, $former);
		} finally {
			if ($answer !== 'released')
				throw new Lost($answer);
		}
	}
}

// Rolls back the block's open transaction, which no longer has the lock.  The old time-out
// applies until it is changed, so the change may be cancelled, too, and is then repeated.
function restore(PDO $work, string $timeout): void
{
	try {
		if ($work->inTransaction())
			$work->rollBack();
		setTimeout($work, $timeout);
	} catch (PDOException $error) {
		if ($error->getCode() !== '57014')
			throw $error;
		restore($work, $timeout);
	}
}

function setTimeout(PDO $work, $timeout): void
{
	one($work, "SELECT set_config('statement_timeout', ?, false)", $timeout);
}

// A key that does not show its name to readers without the secret
function hiddenKey(string $secret, string $name): string
{
	if (strlen($secret) < 16)
		throw new InvalidArgumentException('the secret is shorter than 16 bytes');
	return hash_hmac('sha256', $name, $secret);
}

function connect(string $dsn): PDO
{
	return new PDO($dsn, null, null, [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
}

function row(PDO $connection, string $sql, ...$values): array
{
	$statement = $connection->prepare($sql);
	$statement->execute($values);
	return $statement->fetch(PDO::FETCH_NUM);
}

function one(PDO $connection, string $sql, ...$values)
{
	return row($connection, $sql, ...$values)[0];
}

// PDO cannot cancel a call.  The server does so by statement_timeout; the call has not
// acquired the lock then.  The time-out ends with the transaction.
function waitAndGiveUp(PDO $connection, string $key): string
{
	$connection->beginTransaction();
	try {
		$connection->exec("SET LOCAL statement_timeout = '200ms'");
		one($connection, "SELECT lock_acquire(?, wait => '1 min')", $key);
		$connection->commit();
	} catch (PDOException $error) {
		if ($connection->inTransaction())
			$connection->rollBack();
		if ($error->getCode() !== '57014')
			throw $error;
		return 'cancelled';
	}
	return 'acquired';
}

function say(string ...$words): void
{
	echo implode(' ', $words), "\n";
}

// What happens in a night
function play(string $dsn): void
{
	[$work, $bob, $other] = [connect($dsn), connect($dsn), connect($dsn)];

	locked($dsn, $work, 'import:7', 600, 'nightly import', every: .2, block: function (Lock $lock) use ($bob, $other) {
		say('The job has the lock:', $lock->isOurs() ? 'go on' : 'stop');
		$first = one($other, "SELECT expires_at FROM lock_status('import:7')");
		while (!one($other, "SELECT expires_at > ? FROM lock_status('import:7')", $first))
			$lock->step();
		say('Its heartbeat: the lease ends later');
		try {
			one($bob, "SELECT lock_acquire('import:7')");
		} catch (PDOException $error) {
			preg_match('/ERROR:\s+(.*)/', $error->errorInfo[2], $message);
			say('Bob:', $error->getCode(), $message[1]);
		}
		say('Bob waits, and gives up:', waitAndGiveUp($bob, 'import:7'));
	});

	try {
		locked($dsn, $work, 'import:7', 600, 'nightly import', fn () => one($work, 'SELECT 1 / 0'));
	} catch (PDOException $error) {
		say('The work fails:', $error->getCode());
	}
	say('Its lock:', one($other, "SELECT locked FROM lock_status('import:7')") ? 'held' : 'free');

	try {
		locked($dsn, $work, 'import:7', 600, 'nightly import', every: .2, block: function (Lock $lock) use ($work, $other) {
			one($other, "SELECT force_release('import:7', 'it takes too long')");
			for ($i = 0; $i < 6000; $i++) {
				$lock->step();
				one($work, 'SELECT pg_sleep(0.1)');
			}
		});
	} catch (Lost $lost) {
		say('A DBA ends the lease, and the work is stopped:', $lost->getMessage());
	}

	// Heartbeats that come too late, as after the sleep of a laptop
	$take = "SELECT lock_acquire(?, owner => 'bob')";
	$drop = "SELECT lock_release(?, 'bob')";
	foreach (['import:8' => [], 'import:9' => [$take], 'import:10' => [$take, $drop]] as $key => $meanwhile) {
		try {
			locked($dsn, $work, $key, .01, 'nightly import', every: 3600,
				block: function (Lock $lock) use ($bob, $other, $key, $meanwhile) {
					while (!one($other, 'SELECT NOT locked FROM lock_status(?)', $key))
						usleep(20000);
					foreach ($meanwhile as $sql)
						one($bob, $sql, $key);
					say('Overrun:', $lock->isOurs() ? 'go on' : 'stop');
				});
		} catch (Lost $lost) {
			say('At release:', $lost->getMessage());
		}
	}

	say('Hidden key:', hiddenKey('0123456789abcdef', 'patient:Müller'));
	try {
		hiddenKey('0123456789abcde', 'patient:Müller');
	} catch (InvalidArgumentException $error) {
		say('Hidden key:', $error->getMessage());
	}
}

if (realpath($argv[0]) === __FILE__)
	play($argv[1]);
