/*-------------------------------------------------------------------------
 *
 * events.c
 *		Events: messages about a key that listeners get by NOTIFY.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a verb notes an event when it acts, and the commit that makes the action visible sends
 * the event.  A rolled back action sends nothing, nor does a prepared transaction: PostgreSQL
 * refuses to prepare one that has used NOTIFY.
 *
 * An event is sent if the policy of the key or a ticket asks for it.  It is only a hint: anybody
 * who knows the name of a channel can send there, so listeners check what they hear.  The name is
 * a hash of the key with a secret, so a role that may not ask for it cannot guess it.
 *
 * If the notification queue of the server would be more than half full, events are left out, with
 * a message in the server log: PostgreSQL would roll back the commit.  They are also left out if
 * commits of others that notify are in the way for too long.
 *
 * Locking: commits that notify follow one another, by a lock that PostgreSQL takes late in the
 * commit and waits for.  We take that lock earlier, with a limit on the wait.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_database.h"
#include "catalog/pg_type_d.h"
#include "commands/async.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "base/compat.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/policy.h"
#include "base/settings.h"
#include "base/str.h"
#include "table/events.h"
#include "table/tickets.h"

/* NOTIFY takes less than 8000 bytes.  A label has up to LABEL_BYTES, a message the rest. */
#define MOST_BYTES		7900
#define LABEL_BYTES		400

/* Events are left out where the queue would be fuller than this. */
#ifdef AL_TEST_HOOKS
#define FULL			al_test_notify_full
#else
#define FULL			0.5
#endif

typedef struct NotedEvent
{
	int			level;			/* of nesting at which it was noted */
	char	   *channel;
	char	   *payload;
} NotedEvent;

/* How long a commit waits for others that notify, in milliseconds */
#define LONGEST_WAIT	500

/* May a commit wait for others that notify?  A session that ends must not. */
bool		al_events_wait = true;

/* In the order of their levels, in TopTransactionContext */
static List *events = NIL;

/* Has this transaction waited in vain for others that notify? */
static bool gave_up = false;

bool
al_event_is_wanted(const AlKey *key)
{
	AlLine		line;

	return (al_policy_any() && al_policy_value(key->name, AL_NOTIFY) > 0) ||
		al_tickets_look(key, NULL, &line);
}

char *
al_event_channel(const AlKey *key)
{
	AlHash		hash;

	al_hash_for(AL_HASH_CHANNELS, key->name, &hash);
	return psprintf("atomic_lock_%016llx%016llx", (unsigned long long) hash.words[0],
					(unsigned long long) hash.words[1]);
}

/* A text in UTF-8.  If it is SQL_ASCII or not valid, bytes that are not ASCII become "?". */
static char *
to_utf8(AlString string)
{
	int			encoding = GetDatabaseEncoding();
	int			size = string.len * MAX_CONVERSION_GROWTH + 1;
	bool		is_valid = encoding != PG_SQL_ASCII &&
		pg_verify_mbstr(encoding, string.data, string.len, true);
	Oid			conversion;
	char	   *utf8;

	if (is_valid && encoding == PG_UTF8)
		return pnstrdup(string.data, string.len);
	conversion = is_valid ? FindDefaultConversionProc(encoding, PG_UTF8) : InvalidOid;
	utf8 = palloc(size);
	if (OidIsValid(conversion))
	{
		(void) pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8,
											 (unsigned char *) string.data, string.len,
											 (unsigned char *) utf8, size, true);
		return utf8;
	}
	for (int i = 0; i < string.len; i++)
		utf8[i] = IS_HIGHBIT_SET(string.data[i]) ? '?' : string.data[i];
	utf8[string.len] = '\0';
	return utf8;
}

/*
 * Add a text as a member of the object, with at most "most" bytes in JSON.  ASCII only: a
 * character that the encoding of a listener lacks would end its connection.
 */
static void
add_text(StringInfo json, const char *name, const text *value, int most)
{
	int			end = json->len + strlen(name) + 4 + most;

	appendStringInfo(json, ",\"%s\":", name);
	if (value == NULL)
	{
		appendStringInfoString(json, "null");
		return;
	}
	appendStringInfoChar(json, '"');
	for (const unsigned char *c = (unsigned char *) to_utf8(al_string(unconstify(text *, value)));
		 *c != '\0'; c += pg_utf_mblen(c))
	{
		pg_wchar	code = utf8_to_unicode(c);
		char		escaped[16];

		if (code >= 0x10000)
			snprintf(escaped, sizeof(escaped), "\\u%04x\\u%04x",
					 (code - 0x10000) >> 10 | 0xd800, ((code - 0x10000) & 0x3ff) | 0xdc00);
		else if (code < ' ' || code >= 0x7f)
			snprintf(escaped, sizeof(escaped), "\\u%04x", code);
		else
			snprintf(escaped, sizeof(escaped), code == '"' || code == '\\' ? "\\%c" : "%c", (int) code);
		if (json->len + (int) strlen(escaped) >= end)
			break;
		appendStringInfoString(json, escaped);
	}
	appendStringInfoChar(json, '"');
}

static void
add_number(StringInfo json, const char *name, int64 value)
{
	if (value != 0)
		appendStringInfo(json, ",\"%s\":%lld", name, (long long) value);
	else
		appendStringInfo(json, ",\"%s\":null", name);
}

static void
add_time(StringInfo json, const char *name, TimestampTz at)
{
	char		buffer[MAXDATELEN + 1];
	int			utc = 0;

	if (at == 0)
		appendStringInfo(json, ",\"%s\":null", name);
	else
		appendStringInfo(json, ",\"%s\":\"%s\"", name,
						 JsonEncodeDateTime(buffer, TimestampTzGetDatum(at), TIMESTAMPTZOID, &utc));
}

/* Note an event, to be sent by the commit */
void
al_event(const AlKey *key, const AlEvent *event)
{
	MemoryContext old_context;
	NotedEvent *noted;
	char	   *by = OidIsValid(event->by) ? al_role_name(event->by) : NULL;
	StringInfoData json;

	Assert(event->word != NULL);
	initStringInfo(&json);
	appendStringInfo(&json, "{\"event\":\"%s\"", event->word);
	/* The longest key fits, even if each of its characters is escaped. */
	add_text(&json, "key", al_string_text(key->name), MOST_BYTES);
	add_text(&json, "holder", event->holder, LABEL_BYTES);
	add_number(&json, "fencing_token", event->fencing_token);
	add_text(&json, "by", by ? al_string_text(al_cstring(by)) : NULL, LABEL_BYTES);
	add_text(&json, "from", event->from, LABEL_BYTES);
	add_number(&json, "ticket", event->ticket);
	add_time(&json, "until", event->until);
	add_time(&json, "at", GetCurrentTimestamp());
	add_text(&json, "reason", event->reason, Max(MOST_BYTES - json.len, 2));
	appendStringInfoChar(&json, '}');
	Assert(json.len < 8000);

	old_context = MemoryContextSwitchTo(TopTransactionContext);
	noted = palloc(sizeof(NotedEvent));
	noted->level = GetCurrentTransactionNestLevel();
	noted->channel = al_event_channel(key);
	noted->payload = pstrdup(json.data);
	events = lappend(events, noted);
	MemoryContextSwitchTo(old_context);
	pfree(json.data);
}

/* Would the events make the notification queue too full? */
static bool
is_queue_full(void)
{
	double		room = (double) AL_NOTIFY_QUEUE_PAGES * BLCKSZ;
	Size		needed = 0;
	ListCell   *cell;

	LOCAL_FCINFO(usage, 0);

	foreach(cell, events)
		needed += strlen(((NotedEvent *) lfirst(cell))->payload) + 2 * NAMEDATALEN;
	InitFunctionCallInfoData(*usage, NULL, 0, InvalidOid, NULL, NULL);
	return DatumGetFloat8(pg_notification_queue_usage(usage)) + needed / room > FULL;
}

bool
al_events_any(void)
{
	return events != NIL;
}

/* Wait for a lock, for at most "longest" milliseconds; false: it is still not free */
static bool
wait_for_lock(const LOCKTAG *tag, int longest)
{
	MemoryContext context = CurrentMemoryContext;
	int			lock_timeout = LockTimeout;
	volatile bool is_locked = false;

	LockTimeout = lock_timeout > 0 ? Min(lock_timeout, longest) : longest;
	PG_TRY();
	{
		(void) LockAcquire(tag, AccessExclusiveLock, false, false);
		is_locked = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = lock_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		/* LockErrorCleanup() has undone the wait. */
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
			PG_RE_THROW();
		FlushErrorState();
		FreeErrorData(error);
	}
	PG_END_TRY();
	LockTimeout = lock_timeout;
	return is_locked;
}

/*
 * Take the lock that the commit needs to send notifications.  Any role of the server can hold it
 * for long.  False after LONGEST_WAIT: the transaction sends nothing.  Raises 57014 and 57P01.
 */
bool
al_events_begin(void)
{
	LOCKTAG		tag;

	if (gave_up)
		return false;
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	gave_up = LockAcquire(&tag, AccessExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL &&
		!(al_events_wait && wait_for_lock(&tag, LONGEST_WAIT));
	return !gave_up;
}

static void
log_left_out(const char *detail, const char *hint)
{
	ereport(LOG,
			(al_hide_owners(),
			 errmsg_plural("%d event of a lock was left out", "%d events of locks were left out",
						   list_length(events), list_length(events)),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

void
al_events_commit(void)
{
	ListCell   *cell;

	if (events == NIL)
		return;
	if (!al_events_begin())
		log_left_out("Other commits that notify were in the way for too long.",
					 "Look for a long COMMIT in pg_stat_activity, of any database.");
	else if (is_queue_full())
		log_left_out("The notification queue is more than half full.",
					 "A session that listens may be in a long transaction; see pg_notification_queue_usage().");
	else
	{
		al_trace(DEBUG2, "commit sends %d events", list_length(events));
		foreach(cell, events)
		{
			const NotedEvent *noted = lfirst(cell);

			Async_Notify(noted->channel, noted->payload);
		}
	}
	events = NIL;
}

void
al_events_forget(void)
{
	events = NIL;
	gave_up = false;
}

void
al_events_subabort(int level)
{
	Assert(level > 1);
	while (events != NIL && ((NotedEvent *) llast(events))->level >= level)
		events = list_delete_last(events);
}

void
al_events_subcommit(int level)
{
	Assert(level > 1);
	for (int i = list_length(events) - 1; i >= 0; i--)
	{
		NotedEvent *noted = list_nth(events, i);

		if (noted->level < level)
			break;
		noted->level = level - 1;
	}
}
