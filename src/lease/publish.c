/*-------------------------------------------------------------------------
 *
 * publish.c
 *		Publishing grants, and the end of holdings.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a verb that ends a holding calls al_publish_end() once, which passes the end on to
 * history (table/history.c), listeners (table/events.c), and line (lease/line.c), where they
 * need it.  A holding with the lifetime of a transaction ends with the commit.  A grant that
 * writes a row calls al_publish_grant(), for history and listeners.
 *
 * Locking rules: those of the three files.  The caller has claimed the key.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/key.h"
#include "base/policy.h"
#include "claim/claimed.h"
#include "claim/tx_holdings.h"
#include "lease/line.h"
#include "lease/publish.h"
#include "shmem/tickets.h"
#include "table/catalog.h"
#include "table/events.h"
#include "table/tickets.h"

/* This transaction has ended a holding while no key had a ticket; one may have by the commit. */
static bool freed_unticketed = false;

/* The word of the event for an end; NULL: no event, since the owner still holds the key */
static const char *
word_of(AlEndedBy ended_by)
{
	static const char *const words[] = {
		[AL_ENDED_RELEASED] = "released",
		[AL_ENDED_EXPIRED] = "expired",
		[AL_ENDED_FORCED] = "forced",
		[AL_ENDED_STOLEN] = "stolen",
		[AL_ENDED_TRANSFERRED] = "transferred",
		[AL_ENDED_CONVERTED] = NULL,
		[AL_ENDED_SESSION] = "released",
		[AL_ENDED_TRANSACTION] = "released"
	};

	Assert((int) ended_by >= 0 && (int) ended_by < (int) lengthof(words));
	return words[ended_by];
}

/* The part of al_publish_grant() for databases with policies */
void
al_publish_by_policy(const AlKey *key, const AlHolding *holding, TimestampTz at, bool is_new)
{
	al_history_begin(key, holding, at);
	if (is_new && al_policy_value(key->name, AL_NOTIFY) > 0)
	{
		AlEvent		event = {.word = "acquired", .holder = holding->holder, .by = GetUserId()};

		al_event(key, &event);
	}
}

/* Publish the end of a holding, given as it was before; "reason": an administrator's, or NULL */
void
al_publish_end(const AlKey *key, const AlHolding *holding, TimestampTz at,
			   AlEndedBy ended_by, const text *reason)
{
	const char *word;
	bool		is_ticketed = !al_tickets_none() && al_tickets_any();

	if (ended_by != AL_ENDED_EXPIRED && ended_by != AL_ENDED_CONVERTED &&
		ended_by != AL_ENDED_TRANSFERRED)
		al_claimed_freed(key->hash, 1);
	if (!is_ticketed)
		freed_unticketed = true;

	if (!al_policy_any() && !is_ticketed)
		return;
	word = word_of(al_history_cause(holding, ended_by));
	/* A lease without ttl was ended by its session, which sent the event (session_end.c). */
	if (ended_by == AL_ENDED_EXPIRED && holding->lifetime == AL_LEASE && holding->ttl == 0)
		word = NULL;
	al_history_end(key, holding, at, ended_by);
	if (is_ticketed)
		al_line_check_offer(key);
	if (word && al_event_is_wanted(key))
	{
		AlEvent		event = {.word = word, .holder = holding->holder,
			.fencing_token = holding->fencing_token, .reason = reason,
			.by = ended_by == AL_ENDED_EXPIRED ? InvalidOid : GetUserId()};

		al_event(key, &event);
	}
}

/* Before a commit or PREPARE: publish ends of holdings without a row, make offers, send events */
void
al_publish_commit(bool is_prepared)
{
	bool		has_ends;
	ListCell   *cell;

	if (!al_policy_any() && al_tickets_none() && !al_line_has_to_offer() && !al_events_any())
		return;
	has_ends = al_tx_count() > 0 && (al_policy_any() || al_tickets_any());
	if (freed_unticketed && al_tickets_any())
		al_line_missed();

	/* The transaction may have dropped the extension. */
	if ((has_ends || al_line_has_to_offer()) && al_is_installed())
	{
		/* The last statement's snapshot no longer exists. */
		PushActiveSnapshot(GetTransactionSnapshot());
		foreach(cell, has_ends ? al_tx_mine(NULL) : NIL)
		{
			const AlHolding *holding = lfirst(cell);
			AlKey		key;

			al_key_init(&key, holding->key);
			al_publish_end(&key, holding, GetCurrentTimestamp(), AL_ENDED_TRANSACTION, NULL);
		}
		/* A prepared transaction may roll back, so it offers nothing; a sweep will. */
		if (!is_prepared)
			al_line_commit();
		else if (al_line_has_to_offer())
			al_line_missed();
		PopActiveSnapshot();
	}
	if (!is_prepared)
		al_events_commit();
}

void
al_publish_forget(void)
{
	freed_unticketed = false;
	al_line_forget();
	al_events_forget();
}
