/*-------------------------------------------------------------------------
 *
 * hotset.c
 *		Clients that lock keys, with the statements of several libraries.
 *
 * usage: hotset [-p PAUSE_MS] KIND PEER CLIENTS SECONDS CONNINFO
 *
 * Each client is a thread with its own connection. KIND is what the clients do
 * in a loop:
 *
 *		hot			lock one of ten keys, waiting as long as necessary, and
 *					release it at once
 *		own			lock and release a key that no other client wants
 *		refused		ask for a key that is held all the time
 *
 * PEER is how:
 *
 *		pg_advisory_lock	waits in the server's queue
 *		atomic_lock			lock_acquire with "wait"
 *		sql					INSERT ... ON CONFLICT, as in sql_pair.sql
 *		laravel				the statements of Laravel's DatabaseLock
 *		laravel_table		the same, parsed each time they are sent, as PDO does
 *		laravel_view		... on the view of sql/compat/laravel.sql
 *		laravel_class		the statements of the class in doc/examples/laravel
 *		spring				those of Spring's JdbcLockRegistry with its option
 *							ON CONFLICT DO NOTHING, without which a refused
 *							client would retry at once, with an error each time
 *		redis				SET NX PX and a script that compares and deletes;
 *							CONNINFO is the path of a socket
 *
 * Peers that cannot wait retry after PAUSE_MS, or at once.
 *
 * Prints one line with tabs between: the number of turns, turns per second,
 * p50 and p99 in microseconds. A turn is a lock with its release (own), the
 * wait from the first request to the answer with the grant (hot), or a
 * refusal.
 *
 * Fails if two clients hold the same key, if fencing tokens do not rise, if a
 * client's own key is refused, if a held key is granted, or if a release finds
 * nothing to release.
 *
 * IDENTIFICATION
 *		test/bench/hotset.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE				/* pthread_barrier_t */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "client.h"
#include "libpq-fe.h"
#ifdef HAVE_HIREDIS
#include <hiredis/hiredis.h>
#endif

#define MAX_CLIENTS		1000
#define HOT_KEYS		10
#define REFUSED_KEYS	8
#define OWN_KEYS		100000

/* Executions before the server keeps a plan */
#define WARM_UPS		6

/* The lease, in seconds */
#define TTL				300

typedef struct Client
{
	int			number;
	PGconn	   *conn;
#ifdef HAVE_HIREDIS
	redisContext *redis;
	char		script[64];		/* the releasing script, by its SHA-1 */
#endif
	char		key[64];
	char		owner[64];		/* proof of ownership */
	int64_t		token;			/* the fencing token of the grant, or 0 */
	uint64_t	random;
	int64_t    *times;
	int			num_times;
	int			max_times;
} Client;

typedef struct Statement
{
	const char *name;
	const char *sql;
} Statement;

typedef struct Peer
{
	const char *name;
	void		(*begin) (Client *client);
	bool		(*acquire) (Client *client);
	bool		(*release) (Client *client);
	const char *key_format;		/* of a kind and a number */
	Statement	statements[6];
} Peer;

typedef enum Kind
{
	HOT,
	OWN,
	REFUSED,
} Kind;

static const Peer *peer;
static Kind kind;
static const char *conninfo;
static int	num_clients;
static int64_t poll_pause;
static Client clients[MAX_CLIENTS];
static pthread_barrier_t ready;
static _Atomic int64_t end_at;

/* The holder of each hot key, or 0, and the key's last fencing token */
static _Atomic int holders[HOT_KEYS];
static _Atomic int64_t last_tokens[HOT_KEYS];

/* splitmix64 */
static uint64_t
random_bits(Client *client)
{
	uint64_t	z = (client->random += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* ---------------------------------------------------------------------------
 * PostgreSQL
 * ---------------------------------------------------------------------------
 */

/* For peers whose statements are parsed each time */
static void
pg_connect(Client *client)
{
	client->conn = PQconnectdb(conninfo);
	if (PQstatus(client->conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(client->conn));
}

static void
pg_begin(Client *client)
{
	pg_connect(client);
	for (const Statement *statement = peer->statements; statement->name; statement++)
	{
		PGresult   *result = PQprepare(client->conn, statement->name, statement->sql, 0, NULL);

		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			die("%s", PQresultErrorMessage(result));
		PQclear(result);
	}
}

static void
check(Client *client, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s: %s", peer->name, result ? PQresultErrorMessage(result) : PQerrorMessage(client->conn));
}

/* The number of rows that a statement has returned or changed */
static long
rows_of(PGresult *result)
{
	long		rows;

	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		rows = PQntuples(result);
	else
		rows = strtol(PQcmdTuples(result), NULL, 10);
	PQclear(result);
	return rows;
}

static PGresult *
send_and_wait(Client *client, const char *name, int n, const char *const *values)
{
	for (const Statement *statement = peer->statements; statement->name; statement++)
		if (peer->begin == pg_connect && strcmp(statement->name, name) == 0)
			return PQexecParams(client->conn, statement->sql, n, NULL, values, NULL, NULL, 0);
	return PQexecPrepared(client->conn, name, n, values, NULL, NULL, 0);
}

static PGresult *
execute(Client *client, const char *name, int n, const char *const *values)
{
	PGresult   *result = send_and_wait(client, name, n, values);

	check(client, result);
	return result;
}

/* A transaction's first statement goes together with its BEGIN. */
static PGresult *
begin_and_execute(Client *client, const char *name, int n, const char *const *values)
{
	PGconn	   *conn = client->conn;
	PGresult   *answer = NULL;
	int			results = 0;

	if (!PQenterPipelineMode(conn) ||
		!PQsendQueryPrepared(conn, "begin", 0, NULL, NULL, NULL, 0) ||
		!PQsendQueryPrepared(conn, name, n, values, NULL, NULL, 0) ||
		!PQpipelineSync(conn))
		die("%s", PQerrorMessage(conn));
	for (;;)
	{
		PGresult   *result = PQgetResult(conn);

		if (!result)
			continue;			/* the end of one statement's results */
		if (PQresultStatus(result) == PGRES_PIPELINE_SYNC)
		{
			PQclear(result);
			break;
		}
		check(client, result);
		if (++results == 2)
			answer = result;
		else
			PQclear(result);
	}
	if (!answer || !PQexitPipelineMode(conn))
		die("%s", PQerrorMessage(conn));
	return answer;
}

static bool
advisory_acquire(Client *client)
{
	const char *values[] = {client->key};

	return rows_of(execute(client, "acquire", 1, values)) == 1;
}

static bool
advisory_release(Client *client)
{
	const char *values[] = {client->key};
	PGresult   *result = execute(client, "release", 1, values);
	bool		released = *PQgetvalue(result, 0, 0) == 't';

	PQclear(result);
	return released;
}

/* Keep the owner generated by the server */
static bool
sql_acquire(Client *client)
{
	const char *values[] = {client->key};
	PGresult   *result = execute(client, "acquire", 1, values);
	bool		granted = PQntuples(result) == 1 && !PQgetisnull(result, 0, 0);

	if (granted)
		snprintf(client->owner, sizeof(client->owner), "%s", PQgetvalue(result, 0, 0));
	if (granted && PQnfields(result) > 1)
		client->token = strtoll(PQgetvalue(result, 0, 1), NULL, 10);
	PQclear(result);
	return granted;
}

static bool
sql_release(Client *client)
{
	const char *values[] = {client->key, client->owner};

	return rows_of(execute(client, "release", 2, values)) == 1;
}

static bool
laravel_acquire(Client *client)
{
	static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	char		now[32];
	char		expiration[32];
	const char *values[] = {client->key, client->owner, expiration, now};
	time_t		seconds = time(NULL);
	PGresult   *result;
	bool		granted;

	for (int i = 0; i < 16; i++)
		client->owner[i] = letters[random_bits(client) % (sizeof(letters) - 1)];
	client->owner[16] = '\0';
	snprintf(now, sizeof(now), "%lld", (long long) seconds);
	snprintf(expiration, sizeof(expiration), "%lld", (long long) seconds + TTL);

	result = send_and_wait(client, "insert", 3, values);
	granted = PQresultStatus(result) == PGRES_COMMAND_OK;
	if (!granted && strcmp(PQresultErrorField(result, PG_DIAG_SQLSTATE), "23505") != 0)
		check(client, result);
	PQclear(result);
	if (!granted)
		granted = rows_of(execute(client, "update", 4, values)) == 1;
	if (random_bits(client) % 100 < 2)
	{
		values[0] = now;
		PQclear(execute(client, "prune", 1, values));
	}
	return granted;
}

static bool
laravel_class_acquire(Client *client)
{
	const char *values[] = {client->key, "nobody"};
	PGresult   *result = execute(client, "acquire", 2, values);
	bool		granted = *PQgetvalue(result, 0, 0) == 't';

	PQclear(result);
	return granted;
}

/* A client is a process there, with one UUID for all of its locks. */
static bool
spring_acquire(Client *client)
{
	char		times[2][64];
	const char *values[] = {client->key, client->owner, times[0], times[1]};
	time_t		seconds = time(NULL);
	PGresult   *result;
	bool		granted;

	snprintf(client->owner, sizeof(client->owner), "b4d9a7c2-31f5-4e08-9c6a-%012d", client->number);
	for (int i = 0; i < 2; i++)
	{
		struct tm	tm;

		gmtime_r(&seconds, &tm);
		strftime(times[i], sizeof(times[i]), "%Y-%m-%d %H:%M:%S.000000", &tm);
		seconds += TTL;
	}
	result = begin_and_execute(client, "update", 4, values);
	granted = rows_of(result) == 1;
	if (!granted)
		granted = rows_of(execute(client, "insert", 4, values)) == 1;
	PQclear(execute(client, "commit", 0, NULL));
	return granted;
}

static bool
spring_release(Client *client)
{
	const char *values[] = {client->key, client->owner};
	PGresult   *result = begin_and_execute(client, "delete", 2, values);
	bool		released = rows_of(result) == 1;

	PQclear(execute(client, "commit", 0, NULL));
	return released;
}

/* ---------------------------------------------------------------------------
 * Redis
 * ---------------------------------------------------------------------------
 */

#ifdef HAVE_HIREDIS
static redisReply *
redis_check(Client *client, redisReply *reply)
{
	if (!reply || reply->type == REDIS_REPLY_ERROR)
		die("redis: %s", reply ? reply->str : client->redis->errstr);
	return reply;
}

static void
redis_begin(Client *client)
{
	redisReply *reply;

	client->redis = redisConnectUnix(conninfo);
	if (!client->redis || client->redis->err)
		die("redis: %s", client->redis ? client->redis->errstr : "out of memory");
	reply = redis_check(client, redisCommand(client->redis, "SCRIPT LOAD %s",
											 "if redis.call('get', KEYS[1]) == ARGV[1] then"
											 " return redis.call('del', KEYS[1]) else return 0 end"));
	snprintf(client->script, sizeof(client->script), "%s", reply->str);
	freeReplyObject(reply);
}

static bool
redis_acquire(Client *client)
{
	uint64_t	bits[2] = {random_bits(client), random_bits(client)};
	redisReply *reply;
	bool		granted;

	memcpy(client->owner, bits, sizeof(bits));
	reply = redis_check(client, redisCommand(client->redis, "SET %s %b NX PX %d", client->key,
											 client->owner, sizeof(bits), TTL * 1000));
	granted = reply->type == REDIS_REPLY_STATUS;
	freeReplyObject(reply);
	return granted;
}

static bool
redis_release(Client *client)
{
	redisReply *reply = redis_check(client, redisCommand(client->redis, "EVALSHA %s 1 %s %b", client->script,
														 client->key, client->owner, (size_t) 16));
	bool		released = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;

	freeReplyObject(reply);
	return released;
}
#endif							/* HAVE_HIREDIS */

/* ---------------------------------------------------------------------------
 * ---------------------------------------------------------------------------
 * Their statements
 * ---------------------------------------------------------------------------
 */

#define LARAVEL_STATEMENTS(schema) { \
		{"insert", "INSERT INTO " schema "cache_locks (\"key\", \"owner\", \"expiration\") VALUES ($1, $2, $3)"}, \
		{"update", \
			"UPDATE " schema "cache_locks SET \"owner\" = $2, \"expiration\" = $3" \
			" WHERE \"key\" = $1 AND (\"owner\" = $2 OR \"expiration\" <= $4)"}, \
		{"prune", "DELETE FROM " schema "cache_locks WHERE \"expiration\" <= $1"}, \
		{"release", "DELETE FROM " schema "cache_locks WHERE \"key\" = $1 AND \"owner\" = $2"} \
	}

static const Peer peers[] = {
	{
		"pg_advisory_lock", pg_begin, advisory_acquire, advisory_release, "%s:%d",
		{
			{"acquire", "SELECT pg_advisory_lock(hashtextextended($1, 0))"},
			{"release", "SELECT pg_advisory_unlock(hashtextextended($1, 0))"}
		}
	},
	{
		"atomic_lock", pg_begin, sql_acquire, sql_release, "%s:%d",
		{
			{"acquire", "SELECT owner, fencing_token FROM lock_acquire($1, wait => '4 min')"},
			{"release", "SELECT lock_release($1, $2)"}
		}
	},
	{
		"sql", pg_begin, sql_acquire, sql_release, "%s:%d",
		{
			{"acquire",
				"INSERT INTO sql_lock AS l (key, owner, expires_at)"
				" VALUES ($1, gen_random_uuid(), clock_timestamp() + interval '5 minutes')"
				" ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at"
			" WHERE l.expires_at <= clock_timestamp() RETURNING owner"},
			{"release", "DELETE FROM sql_lock WHERE key = $1 AND owner = $2"}
		}
	},
	{"laravel", pg_begin, laravel_acquire, sql_release, "%s:%d", LARAVEL_STATEMENTS("")},
	{"laravel_table", pg_connect, laravel_acquire, sql_release, "%s:%d", LARAVEL_STATEMENTS("")},
	{"laravel_view", pg_connect, laravel_acquire, sql_release, "laravel_%s:%d", LARAVEL_STATEMENTS("laravel.")},
	{
		"laravel_class", pg_connect, laravel_class_acquire, sql_release, "laravel_%s:%d",
		{
			{"acquire",
				"SELECT acquired FROM lock_try_acquire($1, make_interval(secs => 300), $2,"
			" wait => make_interval(secs => 0))"},
			{"release", "SELECT lock_try_release($1, $2) = 'released'"}
		}
	},
	{
		/* UUIDs in text of a fixed length */
		"spring", pg_begin, spring_acquire, spring_release, "7f0c5e21-8a64-4d3b-b1e9-%.1s%011d",
		{
			{"begin", "BEGIN"},
			{"update",
				"UPDATE int_lock SET client_id = $2, expired_after = $4"
			" WHERE region = 'DEFAULT' AND lock_key = $1 AND (client_id = $2 OR expired_after < $3)"},
			{"insert",
				"INSERT INTO int_lock (region, lock_key, client_id, created_date, expired_after)"
			" VALUES ('DEFAULT', $1, $2, $3, $4) ON CONFLICT DO NOTHING"},
			{"delete", "DELETE FROM int_lock WHERE region = 'DEFAULT' AND lock_key = $1 AND client_id = $2"},
			{"commit", "COMMIT"}
		}
	},
#ifdef HAVE_HIREDIS
	{"redis", redis_begin, redis_acquire, redis_release, "%s:%d", {{NULL, NULL}}},
#endif
};

/* ---------------------------------------------------------------------------
 * ---------------------------------------------------------------------------
 * Their loops
 * ---------------------------------------------------------------------------
 */

static void
remember(Client *client, int64_t duration)
{
	if (client->num_times == client->max_times)
	{
		client->max_times = client->max_times ? 2 * client->max_times : 65536;
		client->times = realloc(client->times, client->max_times * sizeof(*client->times));
		if (!client->times)
			die("out of memory");
	}
	client->times[client->num_times++] = duration;
}

static void
choose_key(Client *client, const char *prefix, int n)
{
	/* Each format has a string and a number */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(client->key, sizeof(client->key), peer->key_format, prefix, n);
#pragma GCC diagnostic pop
}

static void
release(Client *client)
{
	if (!peer->release(client))
		die("%s: client %d could not release %s", peer->name, client->number, client->key);
}

static void
take_turn_hot(Client *client)
{
	int			n = (int) (random_bits(client) % HOT_KEYS);
	int64_t		start;
	int64_t		granted;
	int			nobody = 0;

	choose_key(client, "hot", n);
	start = now_ns(CLOCK_MONOTONIC);
	while (!peer->acquire(client))
	{
		if (poll_pause)
			nanosleep(&(struct timespec) {poll_pause / 1000000000, poll_pause % 1000000000}, NULL);
		if (now_ns(CLOCK_MONOTONIC) >= end_at)
			return;
	}
	granted = now_ns(CLOCK_MONOTONIC);
	if (!atomic_compare_exchange_strong(&holders[n], &nobody, client->number + 1))
		die("%s: client %d was granted %s, which client %d still has",
			peer->name, client->number, client->key, nobody - 1);
	if (client->token)
	{
		if (client->token <= last_tokens[n])
			die("fencing token %lld of %s after %lld", (long long) client->token, client->key,
				(long long) last_tokens[n]);
		last_tokens[n] = client->token;
	}
	holders[n] = 0;
	release(client);
	if (now_ns(CLOCK_MONOTONIC) < end_at)
		remember(client, granted - start);
}

static void
take_turn_own(Client *client)
{
	int			n = (int) (random_bits(client) % OWN_KEYS);
	int64_t		start;

	choose_key(client, "order", n / num_clients * num_clients + client->number);
	start = now_ns(CLOCK_MONOTONIC);
	if (!peer->acquire(client))
		die("%s: client %d was refused %s", peer->name, client->number, client->key);
	release(client);
	if (now_ns(CLOCK_MONOTONIC) < end_at)
		remember(client, now_ns(CLOCK_MONOTONIC) - start);
}

/* The server counts the statements, so none may be left out. */
static void
take_turn_refused(Client *client)
{
	int64_t		start;

	choose_key(client, "held", (int) (random_bits(client) % REFUSED_KEYS));
	start = now_ns(CLOCK_MONOTONIC);
	if (peer->acquire(client))
		die("%s: client %d was granted %s", peer->name, client->number, client->key);
	remember(client, now_ns(CLOCK_MONOTONIC) - start);
}

static void *
run_client(void *argument)
{
	Client	   *client = argument;
	void		(*take_turn) (Client *) = kind == HOT ? take_turn_hot :
		kind == OWN ? take_turn_own : take_turn_refused;

	peer->begin(client);
	choose_key(client, "warm up", client->number);
	for (int i = 0; i < WARM_UPS; i++)
	{
		/* Refused clients get no grant, so that only refusals are counted. */
		if (kind == REFUSED)
			break;
		if (!peer->acquire(client))
			die("%s: client %d does not get a key of its own", peer->name, client->number);
		release(client);
	}
	client->token = 0;
	pthread_barrier_wait(&ready);	/* all are ready */
	pthread_barrier_wait(&ready);	/* the end is known */
	while (now_ns(CLOCK_MONOTONIC) < end_at)
		take_turn(client);
	PQfinish(client->conn);
	return NULL;
}

static int
compare(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
	pthread_t	threads[MAX_CLIENTS];
	int64_t    *times;
	int64_t		seed = now_ns(CLOCK_REALTIME);
	long		seconds;
	int			total = 0;
	int			c;

	while ((c = getopt(argc, argv, "p:")) != -1)
	{
		if (c == 'p')
			poll_pause = number(optarg, 0, 10000) * INT64_C(1000000);
		else
			exit(1);
	}
	if (argc - optind != 5)
		die("usage: hotset [-p PAUSE_MS] KIND PEER CLIENTS SECONDS CONNINFO");
	if (strcmp(argv[optind], "hot") == 0)
		kind = HOT;
	else if (strcmp(argv[optind], "own") == 0)
		kind = OWN;
	else if (strcmp(argv[optind], "refused") == 0)
		kind = REFUSED;
	else
		die("there is no kind \"%s\"", argv[optind]);
	for (size_t i = 0; i < sizeof(peers) / sizeof(peers[0]); i++)
		if (strcmp(peers[i].name, argv[optind + 1]) == 0)
			peer = &peers[i];
	if (!peer)
		die("there is no peer \"%s\"", argv[optind + 1]);
	num_clients = (int) number(argv[optind + 2], 1, MAX_CLIENTS);
	seconds = number(argv[optind + 3], 1, 86400);
	conninfo = argv[optind + 4];

	pthread_barrier_init(&ready, NULL, num_clients + 1);
	for (int i = 0; i < num_clients; i++)
	{
		clients[i].number = i;
		clients[i].random = (uint64_t) seed + ((uint64_t) i << 40);
		if (pthread_create(&threads[i], NULL, run_client, &clients[i]) != 0)
			die("no thread for client %d", i);
	}
	pthread_barrier_wait(&ready);
	end_at = now_ns(CLOCK_MONOTONIC) + seconds * INT64_C(1000000000);
	pthread_barrier_wait(&ready);
	for (int i = 0; i < num_clients; i++)
	{
		pthread_join(threads[i], NULL);
		total += clients[i].num_times;
	}
	if (total == 0)
		die("%s: nobody got anything", peer->name);

	times = malloc(total * sizeof(*times));
	if (!times)
		die("out of memory");
	total = 0;
	for (int i = 0; i < num_clients; i++)
	{
		memcpy(times + total, clients[i].times, clients[i].num_times * sizeof(*times));
		total += clients[i].num_times;
	}
	qsort(times, total, sizeof(*times), compare);
#define PERCENTILE(p) (times[(int) ((total - 1) * (p))] / 1000.0)
	printf("%d\t%.1f\t%.0f\t%.0f\n", total, (double) total / seconds,
		   PERCENTILE(0.5), PERCENTILE(0.99));
	return 0;
}
