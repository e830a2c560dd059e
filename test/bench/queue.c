/*-------------------------------------------------------------------------
 *
 * queue.c
 *		Measures how a lock goes through a line of users without a connection.
 *
 * usage: queue MODE NUMBER CONNINFO
 *
 * Modes of hand-overs: NUMBER users want a key that is held, over four
 * connections; a user that gets the key releases it at once. A hand-over lasts
 * from just before the release is sent until the answer with the next grant
 * has arrived.
 *
 *		queue		all users have tickets; a fifth connection listens, and the user
 *					with the offer calls lock_enqueue again
 *		calls		one user on each free connection waits in lock_acquire; the
 *					others wait for a connection
 *		poll		lock_try_acquire for one user after the other, every 5 ms on
 *					each connection
 *
 * Prints one line: "handover", the number of hand-overs, p50, p90 and maximum
 * in microseconds, and the number of users that got the key before one who had
 * come earlier. For calls that number is not measured, since the order of
 * arrival is unknown here; handoff.c measures it.
 *
 * Mode "line": a line of NUMBER tickets, which may be 0. Prints such a line
 * for each statement, with the mean instead of the last number:
 *
 *		release		lock_release, which offers the key if there is a line
 *		enqueue		lock_enqueue of a new owner, at the end of the line
 *		renew		the same again
 *		write		UPDATE of a row, for comparison
 *
 * IDENTIFICATION
 *		test/bench/queue.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE

#include <poll.h>
#include <stdbool.h>
#include <string.h>

#include "client.h"
#include "libpq-fe.h"

#define CONNECTIONS		4
#define MAX_PEOPLE		100000
#define TIMES			300
#define POLL_NS			INT64_C(5000000)
#define HANG_MS			20000

static PGconn *conns[CONNECTIONS];
static PGconn *listener;
static const char *key;
static int64_t *times;
static int	num_times;

static PGconn *
connect_to(const char *conninfo)
{
	PGconn	   *conn = PQconnectdb(conninfo);

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	return conn;
}

/* The owner as a parameter, which identifies the user */
static const char *
name_of(int person)
{
	static char names[2][32];
	static int	next = 0;
	char	   *name = names[next ^= 1];

	snprintf(name, sizeof(names[0]), "person-%d", person);
	return name;
}

static const char *const statements[][2] = {
	{"acquire", "SELECT fencing_token FROM lock_acquire($1, '1 hour', $2, wait => '4 min')"},
	{"try", "SELECT fencing_token FROM lock_try_acquire($1, '1 hour', $2)"},
	{"release", "SELECT lock_release($1, $2)"},
	{"enqueue", "SELECT coalesce(ticket, fencing_token) FROM lock_enqueue($1, $2, offer => '10 min')"},
	{"write", "UPDATE bench_row SET n = n + 1 WHERE id = length($1 || $2)"},
};

static void
prepare(PGconn *conn)
{
	static const Oid types[] = {25, 25};	/* text */

	for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++)
	{
		PGresult   *result = PQprepare(conn, statements[i][0], statements[i][1], 2, types);

		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			die("%s", PQresultErrorMessage(result));
		PQclear(result);
	}
}

static void
send_statement(PGconn *conn, const char *name, int person)
{
	const char *values[] = {key, name_of(person)};

	if (!PQsendQueryPrepared(conn, name, 2, values, NULL, NULL, 0))
		die("%s", PQerrorMessage(conn));
}

/* The answer to the last statement: a number, 1 for true, 0 for NULL */
static int64_t
receive(PGconn *conn)
{
	PGresult   *result = PQgetResult(conn);
	ExecStatusType status = PQresultStatus(result);
	int64_t		answer = 0;

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	if (status == PGRES_TUPLES_OK && !PQgetisnull(result, 0, 0))
		answer = *PQgetvalue(result, 0, 0) == 't' ? 1 : strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	PQclear(result);
	while ((result = PQgetResult(conn)) != NULL)
		PQclear(result);
	return answer;
}

static int64_t
execute(PGconn *conn, const char *name, int person)
{
	send_statement(conn, name, person);
	return receive(conn);
}

/* The ticket of the next offer that the listener receives */
static int64_t
hear_offer(void)
{
	for (;;)
	{
		struct pollfd fd = {.fd = PQsocket(listener), .events = POLLIN};
		PGnotify   *notify = PQnotifies(listener);

		if (notify)
		{
			const char *ticket = strstr(notify->extra, "\"ticket\":");
			int64_t		number = strstr(notify->extra, "{\"event\":\"offered\"") && ticket ?
				strtoll(ticket + strlen("\"ticket\":"), NULL, 10) : 0;

			PQfreemem(notify);
			if (number)
				return number;
			continue;
		}
		if (poll(&fd, 1, HANG_MS) <= 0)
			die("nobody is offered the key");
		if (!PQconsumeInput(listener))
			die("%s", PQerrorMessage(listener));
	}
}

static void
note(int64_t since)
{
	times[num_times++] = now_ns(CLOCK_MONOTONIC) - since;
}

static int
compare(const void *a, const void *b)
{
	int64_t		x = *(const int64_t *) a;
	int64_t		y = *(const int64_t *) b;

	return (x > y) - (x < y);
}

static void
print(const char *what, int64_t overtaken)
{
	double		sum = 0;

	qsort(times, num_times, sizeof(*times), compare);
	for (int i = 0; i < num_times; i++)
		sum += times[i];
#define PERCENTILE(p) (times[(int) ((num_times - 1) * (p))] / 1000.0)
	printf("%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\n", what, num_times, PERCENTILE(0.5), PERCENTILE(0.9),
		   PERCENTILE(1), overtaken >= 0 ? (double) overtaken : sum / num_times / 1000);
	num_times = 0;
}

/* Users are numbered in the order of arrival, from 1; user 0 holds the key. */
static void
hand_over_queue(int people)
{
	int64_t    *tickets = calloc(people + 1, sizeof(int64_t));
	int64_t		overtaken = 0;
	PGresult   *result = PQexecParams(conns[0], "SELECT lock_channel($1)", 1, NULL, &key, NULL, NULL, 0);
	char		listen[100];

	snprintf(listen, sizeof(listen), "LISTEN %s", PQgetvalue(result, 0, 0));
	PQclear(result);
	PQclear(PQexec(listener, listen));
	for (int i = 1; i <= people; i++)
		tickets[i] = execute(conns[i % CONNECTIONS], "enqueue", i);
	for (int i = 0; i < people; i++)
	{
		PGconn	   *releases = conns[i % CONNECTIONS];
		PGconn	   *acquires = conns[(i + 1) % CONNECTIONS];
		int64_t		start = now_ns(CLOCK_MONOTONIC);

		send_statement(releases, "release", i);
		if (hear_offer() != tickets[i + 1])
			overtaken++;
		execute(acquires, "enqueue", i + 1);
		note(start);
		if (receive(releases) != 1)
			die("a release fails");
	}
	if (execute(conns[0], "release", people) != 1)
		die("the last one has nothing");
	print("handover", overtaken);
}

static void
hand_over_calls(int people)
{
	int			waits[CONNECTIONS];
	int			next = 1;
	int			holder = 0;
	int			served = 0;

	for (int c = 1; c < CONNECTIONS; c++)
	{
		send_statement(conns[c], "acquire", waits[c] = next++);
		usleep(10000);			/* one by one */
	}
	for (; served < people; served++)
	{
		struct pollfd fds[CONNECTIONS];
		int64_t		start;
		int			winner = -1;

		start = now_ns(CLOCK_MONOTONIC);
		send_statement(conns[holder], "release", served == 0 ? 0 : waits[holder]);
		while (winner < 0)
		{
			for (int c = 0; c < CONNECTIONS; c++)
				fds[c] = (struct pollfd) {.fd = c == holder ? -1 : PQsocket(conns[c]), .events = POLLIN};
			if (poll(fds, CONNECTIONS, HANG_MS) <= 0)
				die("nobody gets the key");
			for (int c = 0; c < CONNECTIONS && winner < 0; c++)
			{
				if (!fds[c].revents)
					continue;
				if (!PQconsumeInput(conns[c]))
					die("%s", PQerrorMessage(conns[c]));
				if (!PQisBusy(conns[c]))
					winner = c;
			}
		}
		(void) receive(conns[winner]);
		note(start);
		(void) receive(conns[holder]);
		/* The connection of the former holder serves the next user. */
		send_statement(conns[holder], "acquire", waits[holder] = next++);
		holder = winner;
	}
	print("handover", 0);
}

static void
hand_over_poll(int people)
{
	bool	   *served = calloc(people + 1, sizeof(bool));
	int64_t		tried[CONNECTIONS] = {0};
	int64_t		overtaken = 0;
	int			holder = 0;
	int			person = 0;
	int			first = 1;

	for (int n = 0; n < people; n++)
	{
		int64_t		start = now_ns(CLOCK_MONOTONIC);
		int64_t		token = 0;
		int			c = 0;

		if (execute(conns[0], "release", holder) != 1)
			die("a release fails");
		while (token == 0)
		{
			int64_t		now = now_ns(CLOCK_MONOTONIC);

			for (c = 1; c < CONNECTIONS && now - tried[c] < POLL_NS; c++)
				;
			if (c == CONNECTIONS)
			{
				usleep(100);
				continue;
			}
			do
				person = person % people + 1;
			while (served[person]);
			token = execute(conns[c], "try", person);
			/* They do not run in step. */
			tried[c] = now - (int64_t) (drand48() * POLL_NS / 2);
		}
		note(start);
		while (served[first])
			first++;
		overtaken += person != first;
		served[holder = person] = true;
		/* Start with another user */
		person = (int) (drand48() * people);
	}
	if (execute(conns[0], "release", holder) != 1)
		die("the last one has nothing");
	print("handover", overtaken);
}

/* Durations of statements in a line of that length */
static void
measure_line(int places)
{
	static const char *const what[] = {"release", "enqueue", "renew", "write"};
	static const char *const statement[] = {"release", "enqueue", "enqueue", "write"};
	int64_t    *all[4];

	for (int s = 0; s < 4; s++)
		all[s] = calloc(TIMES, sizeof(int64_t));
	for (int i = 0; i < TIMES; i++)
	{
		/* User i holds the key, users i + 1 to i + places are in line. */
		int			people[4] = {i, i + places + 1, i + places + 1, i};

		for (int s = places > 0 ? 1 : 3; s < 4; s++)
		{
			int64_t		start = now_ns(CLOCK_MONOTONIC);

			(void) execute(conns[0], statement[s], people[s]);
			all[s][i] = now_ns(CLOCK_MONOTONIC) - start;
		}
		{
			int64_t		start = now_ns(CLOCK_MONOTONIC);

			if (execute(conns[0], "release", i) != 1)
				die("a release fails");
			all[0][i] = now_ns(CLOCK_MONOTONIC) - start;
		}
		if (!execute(conns[1], "try", i + 1))
			die("the first in line does not get the key");
	}
	for (int s = 0; s < 4; s++)
	{
		if (places == 0 && (s == 1 || s == 2))
			continue;
		memcpy(times, all[s], TIMES * sizeof(int64_t));
		num_times = TIMES;
		print(what[s], -1);
	}
}

int
main(int argc, char **argv)
{
	static char name[64];
	const char *mode;
	int			people;

	if (argc != 4)
		die("usage: queue MODE NUMBER CONNINFO");
	mode = argv[1];
	people = number(argv[2], 0, MAX_PEOPLE);
	times = calloc((people > TIMES ? people : TIMES) + 1, sizeof(int64_t));
	srand48(now_ns(CLOCK_MONOTONIC));
	snprintf(name, sizeof(name), "queue-%s-%d-%lld", mode, people, (long long) now_ns(CLOCK_REALTIME));
	key = name;
	for (int i = 0; i < CONNECTIONS; i++)
		prepare(conns[i] = connect_to(argv[3]));
	listener = connect_to(argv[3]);

	if (!execute(conns[0], "try", 0))
		die("somebody else has the key");
	if (strcmp(mode, "queue") == 0)
		hand_over_queue(people);
	else if (strcmp(mode, "calls") == 0)
		hand_over_calls(people);
	else if (strcmp(mode, "poll") == 0)
		hand_over_poll(people);
	else if (strcmp(mode, "line") == 0)
	{
		for (int i = 1; i <= people; i++)
			(void) execute(conns[i % CONNECTIONS], "enqueue", i);
		measure_line(people);
	}
	else
		die("there is no mode \"%s\"", mode);
	_exit(fflush(stdout) != 0);
}
