-- The tables of the libraries that keep locks in a table, with the libraries' own definitions,
-- each with the same ten thousand locks held.

-- Functions as people write them around the statements of sql_lock
CREATE TABLE plpgsql_lock (LIKE sql_lock INCLUDING ALL);

CREATE FUNCTION plpgsql_acquire(lock_key text, ttl interval) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
	result uuid;
BEGIN
	INSERT INTO plpgsql_lock AS l (key, owner, expires_at)
		VALUES (lock_key, gen_random_uuid(), clock_timestamp() + ttl)
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
		WHERE l.expires_at <= clock_timestamp()
		RETURNING owner INTO result;
	RETURN result;
END $$;

CREATE FUNCTION plpgsql_release(lock_key text, lock_owner uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM plpgsql_lock WHERE key = lock_key AND owner = lock_owner;
	RETURN FOUND;
END $$;

-- The same without a flush: if a crash undoes the release, the lock expires by itself.
CREATE FUNCTION plpgsql_release_later(lock_key text, lock_owner uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('synchronous_commit', 'off', true);
	DELETE FROM plpgsql_lock WHERE key = lock_key AND owner = lock_owner;
	RETURN FOUND;
END $$;

-- Laravel's DatabaseLock
CREATE TABLE cache_locks (
	"key" varchar(255) PRIMARY KEY,
	"owner" varchar(255) NOT NULL,
	"expiration" bigint NOT NULL
);
CREATE INDEX ON cache_locks ("expiration");

-- ShedLock
CREATE TABLE shedlock (
	name varchar(64) NOT NULL,
	lock_until timestamp NOT NULL,
	locked_at timestamp NOT NULL,
	locked_by varchar(255) NOT NULL,
	PRIMARY KEY (name)
);

-- Spring's JdbcLockRegistry
CREATE TABLE int_lock (
	lock_key char(36) NOT NULL,
	region varchar(100) NOT NULL,
	client_id char(36),
	created_date timestamp NOT NULL,
	expired_after timestamp NOT NULL,
	PRIMARY KEY (lock_key, region)
);

-- cirello.io/pglock
CREATE TABLE locks (
	name varchar(255) PRIMARY KEY,
	record_version_number bigint,
	data bytea,
	owner varchar(255)
);
CREATE SEQUENCE locks_rvn CYCLE OWNED BY locks.record_version_number;

GRANT SELECT, INSERT, UPDATE, DELETE ON plpgsql_lock, cache_locks, shedlock, int_lock, locks TO app, app_relaxed;
GRANT USAGE ON SEQUENCE locks_rvn TO app, app_relaxed;

INSERT INTO plpgsql_lock TABLE sql_lock;
INSERT INTO cache_locks
	SELECT 'held:' || n, 1000000000000000 + n, extract(epoch FROM now() + interval '1 day')
	FROM generate_series(0, 9999) n;
INSERT INTO shedlock
	SELECT 'held:' || n, timezone('utc', now() + interval '1 day'), timezone('utc', now()), 'host'
	FROM generate_series(0, 9999) n;
INSERT INTO int_lock
	SELECT '7f0c5e21-8a64-4d3b-b1e9-' || 900000000000 + n, 'DEFAULT', gen_random_uuid(),
		timezone('utc', now()), timezone('utc', now() + interval '1 day')
	FROM generate_series(0, 9999) n;
INSERT INTO locks
	SELECT 'held:' || n, nextval('locks_rvn'), NULL, 'host'
	FROM generate_series(0, 9999) n;

-- ShedLock keeps its rows: all keys have been used before.
INSERT INTO shedlock
	SELECT 'order:' || n, timezone('utc', now()), timezone('utc', now()), 'host'
	FROM generate_series(0, :keys + 1000) n;

VACUUM ANALYZE;
