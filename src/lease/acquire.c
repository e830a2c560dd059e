/*-------------------------------------------------------------------------
 *
 * acquire.c
 *		Acquire one key or a set, with or without waiting; convert; steal.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: for one key,
 *
 *	1.	attempt the key (lease/attempt.c);
 *	2.	if that is refused and the request waits, join the queue (shmem/waiters.c);
 *	3.	attempt again and sleep in turns, until granted, timed out, or in a deadlock;
 *	4.	leave the queue, and write the grant (lease/grant.c).
 *
 * The keys of a set are attempted in order, and written when all are claimed, so that a
 * refusal leaves nothing to undo.  A request that waits for a key keeps its claims on the
 * keys before.  Keys that the owner already holds are claimed last, since that owner's
 * heartbeats would wait for the claim.
 *
 * An upgrade, from shared to exclusive, waits for the other sharers.  Two owners that upgrade
 * would wait for each other, so an upgrade is refused if another owner already waits for one;
 * a further session of the same owner waits too.  Without a queue, any second one is refused.
 * One that does not run is no reason to refuse another: if its owner still shares the key, the
 * search for a deadlock finds both.
 *
 * Locking rules: app_lock is closed while a call sleeps, so that a stronger lock on it
 * need not wait for that call.  A refused set drops its claims.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/owner.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "lease/acquire.h"
#include "lease/attempt.h"
#include "lease/deadlock.h"
#include "lease/grant.h"
#include "lease/line.h"
#include "lease/quota.h"
#include "lease/release.h"
#include "lease/report.h"
#include "lease/session_end.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"
#include "shmem/waiters.h"
#include "table/app_lock.h"
#include "table/catalog.h"
#include "table/fence.h"
#include "table/tickets.h"

/* Microseconds between two searches for a deadlock by one waiter */
#define SEARCH_INTERVAL		INT64CONST(1000000)

/* Maximum number of attempts to write a grant, and the microseconds between them */
#define MOST_TRIES			10
#define TRY_PAUSE			1000L

/* Can this outcome change by waiting? */
static bool
may_pass(AlOutcome outcome)
{
	return outcome == AL_HELD || outcome == AL_CLAIMED ||
		outcome == AL_CLOSED || outcome == AL_QUEUED;
}

/*
 * Microseconds until a waiter has to look again by itself.  One behind others need not look
 * when the obstacle ends: the one before it does.
 */
static int64
time_to_look(const AlAttempt *attempt)
{
	const AlResult *result = attempt->result;
	TimestampTz at = result->holding.expires_at;

	if (result->outcome == AL_CLOSED)
		at = al_closed_until(&result->holding);
	/* The holding that ends first frees a seat.  Else only the end of a claim helps: it wakes us. */
	if (result->outcome == AL_CLAIMED)
		at = result->is_full ? attempt->soonest : DT_NOEND;
	if (result->outcome == AL_QUEUED)
		at = attempt->line_until;
	if (!may_pass(result->outcome) || at == DT_NOEND ||
		al_waiters_precede(attempt->key, al_attempt_is_open(attempt), PG_INT64_MAX, NULL))
		return PG_INT64_MAX;
	return Max(at - GetCurrentTimestamp(), 0);
}

typedef struct Wait
{
	const AlKey *key;
	int64		since;			/* of al_monotonic_now() */
} Wait;

static void
leave_after_error(int code, Datum arg)
{
	Wait	   *wait = (Wait *) DatumGetPointer(arg);

	AL_TEST_POINT("leaving");
	al_waiters_leave(false, 0);
	if (al_tickets_any())
		al_line_missed();
	al_stat_waited(wait->key, al_monotonic_now() - wait->since);
}

static bool
is_upgrade(const AlAttempt *attempt)
{
	return attempt->own && al_is_shared(attempt->own) && !attempt->is_shared;
}

/* Refuse an upgrade while another owner waits for one: each would wait for the other's share. */
static void
refuse_second_upgrade(const AlAttempt *attempt)
{
	AlResult   *result = attempt->result;

	al_trace(DEBUG1, "lock \"%s\": refusing a second upgrade", al_display(attempt->key->name));
	result->obstacle = result->outcome;
	result->outcome = AL_DEADLOCK;
	result->cycle = pstrdup("Another caller that shares the lock is already waiting to convert it to exclusive mode.");
}

/*
 * Attempt and sleep in turns, until the key is granted or finally refused, or the caller must
 * queue anew: the request has become an upgrade, or is no longer one.
 */
static void
attempt_in_queue(Relation *rel, AlAttempt *attempt, int64 start, int64 *next_search,
				 bool as_upgrade)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "lock_acquire wait",
												  ALLOCSET_SMALL_SIZES);
	AlResult   *result = attempt->result;

	for (;;)
	{
		MemoryContext old_context;
		int64		sleep;

		MemoryContextReset(context);
		old_context = MemoryContextSwitchTo(context);
		al_waiters_look();
		al_attempt(*rel, attempt);
		result->waited = al_monotonic_now() - start;
		result->obstacle = result->outcome;
		if (may_pass(result->outcome))
		{
			if (result->waited >= attempt->request->wait)
				result->outcome = AL_TIMEOUT;
			else if (start + result->waited >= *next_search)
			{
				result->cycle = al_deadlock_find(*rel);
				if (result->cycle)
					result->outcome = AL_DEADLOCK;
				*next_search = al_monotonic_now() + SEARCH_INTERVAL;
			}
		}
		MemoryContextSwitchTo(old_context);
		if (!may_pass(result->outcome) || is_upgrade(attempt) != as_upgrade)
			return;

		sleep = Min(time_to_look(attempt),
					Min(start + attempt->request->wait, *next_search) - al_monotonic_now());
		al_trace(DEBUG3, "lock \"%s\": sleeping for at most " INT64_FORMAT " us after outcome %d",
				 al_display(attempt->key->name), Max(sleep, 0), (int) result->outcome);
		table_close(*rel, RowExclusiveLock);
		al_waiters_sleep(Max(sleep, 0), result->outcome == AL_CLAIMED);
		*rel = al_open_app_lock(RowExclusiveLock);
		al_key_recheck(attempt->key);
	}
}

/*
 * The number that orders a waiter among tickets: that of the owner's valid ticket; else a new
 * one, above those of all tickets so far; or 0 where no valid ticket is seen.  Waiters may join
 * in another order than their numbers, which are drawn before.
 */
static int64
arrival_of(const AlAttempt *attempt, bool *has_ticket)
{
	AlLine		line;

	*has_ticket = false;
	if (!al_tickets_look(attempt->key, &attempt->request->owner, &line))
		return 0;
	*has_ticket = line.mine.number != 0;
	return *has_ticket ? line.mine.number : al_fence_draw(1);
}

/* Wait in the queue; true: the request is granted or finally refused, false: queue anew */
static bool
wait_in_queue(Relation *rel, AlAttempt *attempt, int64 start, int64 *next_search)
{
	AlAcquire  *request = attempt->request;
	AlResult   *result = attempt->result;
	bool		as_upgrade = is_upgrade(attempt);
	bool		needs_claim = as_upgrade && al_waiters_count(attempt->key) < 0;
	bool		is_joined;
	int64		arrival;
	bool		has_ticket;
	Wait		wait = {attempt->key, al_monotonic_now()};

	Assert(!attempt->is_claimed && !attempt->has_seats);
	/* Without a queue, this claim shows other sessions that one waits to upgrade. */
	if (needs_claim && !al_claim_upgrade(attempt->key))
	{
		refuse_second_upgrade(attempt);
		return true;
	}
	arrival = arrival_of(attempt, &has_ticket);
	PG_ENSURE_ERROR_CLEANUP(leave_after_error, PointerGetDatum(&wait));
	{
		is_joined = al_waiters_join(attempt->key, &request->owner, request->is_shared, attempt->terms.max_holders,
									as_upgrade, arrival, has_ticket, request->holder ? request->holder : request->default_holder());
		if (is_joined)
			attempt_in_queue(rel, attempt, start, next_search, as_upgrade);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave_after_error, PointerGetDatum(&wait));
	if (!is_joined)
	{
		refuse_second_upgrade(attempt);
		return true;
	}
	al_waiters_leave(al_is_granted(result) && attempt->is_claimed, attempt->seats_used);
	al_stat_waited(wait.key, al_monotonic_now() - wait.since);
	al_trace(DEBUG3, "lock \"%s\": left the queue after " INT64_FORMAT " us, outcome %d",
			 al_display(attempt->key->name), al_monotonic_now() - wait.since, (int) result->outcome);
	if (needs_claim)
		al_claim_upgrade_end(attempt->key);
	if (!al_is_granted(result) && al_tickets_is_pending(attempt->key))
		al_line_missed();
	return !may_pass(result->outcome);
}

/*
 * Try to get a key until request->wait microseconds after "start", of al_monotonic_now().  A wait
 * sets result->waited, which the caller has set to 0.  Outcomes: those of al_attempt(); if the
 * request waits, also AL_TIMEOUT, and AL_DEADLOCK, which a second upgrade gets without sleeping.
 */
static void
attempt_since(Relation *rel, AlAttempt *attempt, int64 start)
{
	int64		next_search;

	/* This may read many rows and register an exit callback: not while in the queue. */
	if (attempt->request->is_shared && attempt->request->lifetime == AL_SESSION)
	{
		al_terms_of(attempt->key, attempt->request, &attempt->terms);
		if (attempt->terms.max_holders > 0)
			al_session_end_note(*rel, attempt->key);
	}
	al_attempt(*rel, attempt);
	if (attempt->request->wait > 0)
	{
		if (may_pass(attempt->result->outcome))
		{
			AL_TEST_POINT("refused");
			/* Raise now if a quota is used up: probably it still is after the wait. */
			al_quota_check(*rel, attempt);
		}
		next_search = al_monotonic_now() + INT64CONST(1000) * DeadlockTimeout;
		while (may_pass(attempt->result->outcome) &&
			   !wait_in_queue(rel, attempt, start, &next_search))
			;
	}
	if (!al_is_granted(attempt->result))
		al_attempt_explain_pending(*rel, attempt);
}

/* Acquire, renew or convert a key, and count a refusal.  Outcomes: of attempt_since(); AL_FORCED */
void
al_lease_acquire(Relation *rel, const AlKey *key, AlAcquire *request, AlResult *result)
{
	AlAttempt	attempt = {.key = key, .request = request, .result = result};
	int64		start = request->wait > 0 ? al_monotonic_now() : 0;
	int64		forced = 0;

	result->waited = 0;
	for (int tries = 0; tries < MOST_TRIES; tries++)
	{
		List	   *quotas;
		bool		is_written;

		attempt_since(rel, &attempt, start);
		if (!al_is_granted(result))
		{
			if (request->is_convert && al_check_forced(key, &request->owner, result, &forced))
				continue;
			break;
		}
		AL_TEST_POINT("before-grant");
		quotas = al_quota_claim_attempts(*rel, &attempt, 1);
		is_written = al_grant(*rel, &attempt);
		al_quota_end(quotas);
		if (is_written)
			return;
		al_trace(DEBUG3, "lock \"%s\": attempting again after %d tries", al_display(key->name), tries + 1);
		al_attempt_drop(&attempt);
		pg_usleep(TRY_PAUSE);
	}
	al_attempt_count_refusal(key, result);
}

/* Refuse a set because of attempts[refused]; returns "refused" */
static int
refuse_set(AlAttempt *attempts, int count, int refused)
{
	Assert(refused >= 0 && refused < count);
	al_trace(DEBUG3, "lock \"%s\": refusing a set of %d keys, outcome %d",
			 al_display(attempts[refused].key->name), count, (int) attempts[refused].result->outcome);
	for (int i = 0; i < count; i++)
		al_attempt_give_up(&attempts[i]);
	al_attempt_count_refusal(attempts[refused].key, attempts[refused].result);
	return refused;
}

/*
 * Write the grants of a set whose keys are all claimed.  False: the first holding has ended since
 * its attempt, and nothing was written.  Raises an error if a later one has ended.
 */
bool
al_grant_all(Relation rel, AlAttempt *attempts, int count)
{
	List	   *quotas = al_quota_claim_attempts(rel, attempts, count);
	int			tokens = 0;
	int64		token = 0;
	bool		is_written = true;

	/* All backends draw from one page, so draw the tokens of the set at once. */
	for (int i = 0; i < count; i++)
	{
		Assert(al_is_granted(attempts[i].result));
		tokens += attempts[i].result->outcome == AL_ACQUIRED;
	}
	if (tokens > 0)
		token = al_fence_draw(tokens);
	for (int i = 0; is_written && i < count; i++)
	{
		if (attempts[i].result->outcome == AL_ACQUIRED)
			attempts[i].token = token++;
		if (attempts[i].request->is_path && i > 0)
			attempts[i].latest_end = attempts[i - 1].result->holding.expires_at;
		is_written = al_grant(rel, &attempts[i]);
		/* Earlier keys have been written already; the error undoes them. */
		if (!is_written && i > 0)
			al_raise(attempts[i].key, attempts[i].result);
	}
	al_quota_end(quotas);
	return is_written;
}

/* The attempts at a set of keys; arguments as for al_lease_acquire_all() */
AlAttempt *
al_attempts_at(const AlKey *keys, int count, AlAcquire *requests, const bool *is_shared,
			   AlResult *results)
{
	AlAttempt  *attempts = palloc0(count * sizeof(AlAttempt));

	for (int i = 0; i < count; i++)
	{
		attempts[i].key = &keys[i];
		attempts[i].request = &requests[is_shared[i]];
		attempts[i].result = &results[i];
	}
	return attempts;
}

/*
 * Attempt all keys of a set, and claim them, for al_grant_all().
 * The requests have the same owner and wait.  Returns -1; or the index of the refused key.  Then
 * only that key's result is valid, no claim is left, and the refusal is counted.
 */
int
al_attempt_all(Relation *rel, AlAttempt *attempts, int count)
{
	List	   *order = NIL;
	int64		start = al_monotonic_now();
	int64		waited = 0;
	int64		ttl = PG_INT64_MAX;

	/* Check the terms of all keys first: do not wait where another key cannot be granted. */
	for (int i = 0; i < count; i++)
	{
		al_terms_of_set(attempts[i].key, attempts[i].request, &attempts[i].terms);
		order = lappend_int(order, i);
	}
	for (int done = 0; done < list_length(order); done++)
	{
		int			i = list_nth_int(order, done);
		AlAttempt  *attempt = &attempts[i];

		attempt->result->waited = 0;
		attempt_since(rel, attempt, start);
		/* A policy may have changed during the wait. */
		al_terms_of_set(attempt->key, attempt->request, &attempt->terms);
		waited = Max(waited, attempt->result->waited);
		if (!al_is_granted(attempt->result))
			return refuse_set(attempts, count, i);
		if (count > 1 && done < count && attempt->request->wait > 0 &&
			attempt->result->outcome == AL_REACQUIRED)
		{
			al_attempt_drop(attempt);
			order = lappend_int(order, i);
		}
	}
	for (int i = 0; i < count; i++)
	{
		attempts[i].result->waited = waited;
		if (waited > 0)
			al_attempt_refresh(*rel, &attempts[i]);
		if (!al_is_granted(attempts[i].result))
			return refuse_set(attempts, count, i);
		ttl = Min(ttl, attempts[i].terms.ttl);
	}
	/* After the wait, so that a policy which has changed meanwhile applies to all keys. */
	for (int i = 0; attempts[0].request->is_path && i < count; i++)
		attempts[i].terms.ttl = ttl;
	return -1;
}

/*
 * Acquire all keys of a set, which are sorted, or none.  "requests" has the exclusive and the
 * shared request, with the same owner and a wait for the whole set; "is_shared" has the modes.
 * Returns -1 if all are granted; otherwise the index of the refused key, the only valid result.
 */
int
al_lease_acquire_all(Relation *rel, const AlKey *keys, int count,
					 AlAcquire *requests, const bool *is_shared, AlResult *results)
{
	AlAttempt  *attempts = al_attempts_at(keys, count, requests, is_shared, results);
	int			refused;

	requests[false].owner.in_index = requests[true].owner.in_index = true;
	refused = al_attempt_all(rel, attempts, count);
	if (refused >= 0)
		return refused;
	if (requests[false].owner.generated)
	{
		al_owner_generate(&requests[false].owner, InvalidBlockNumber);
		requests[true].owner = requests[false].owner;
	}
	if (!al_grant_all(*rel, attempts, count))
		al_raise(&keys[0], &results[0]);
	return -1;
}

/* Grant a key whose holdings the caller has ended, in the mode of the request */
static void
grant_stolen(Relation rel, AlAttempt *attempt)
{
	AlTicket	nobody = {.number = 0};
	AlLine		line;
	List	   *quotas;

	attempt->result->outcome = AL_ACQUIRED;
	attempt->result->waited = 0;
	quotas = al_quota_claim_attempts(rel, attempt, 1);
	(void) al_grant(rel, attempt);
	al_quota_end(quotas);
	/* The ticket that has the offer cannot take the key: withdraw the offer, keep the ticket. */
	if (!attempt->is_shared && al_tickets_look(attempt->key, NULL, &line) &&
		line.is_offered)
		(void) al_ticket_offer(attempt->key, &nobody, 0);
}

/*
 * End the holdings of a key and grant the key to an owner, past the line.  Returns copies of
 * the holdings that were ended, AlHolding *.  Outcomes: AL_ACQUIRED; AL_IN_TRANSACTION.
 */
List *
al_lease_steal(Relation rel, const AlKey *key, AlAcquire *request, const text *reason,
			   AlResult *result)
{
	AlAttempt	attempt = {.key = key, .request = request, .result = result,
	.is_shared = request->is_shared, .lifetime = request->lifetime};
	List	   *ended;

	al_terms_of(key, request, &attempt.terms);
	ended = al_lease_end(rel, key, &attempt.claim, AL_ENDED_STOLEN, reason, result);
	if (result->outcome == AL_IN_TRANSACTION)
		return NIL;
	al_trace(DEBUG1, "lock \"%s\": stolen from %d holdings", al_display(key->name), list_length(ended));
	al_look(rel, key, &request->owner, AL_LOOK_OWN, &attempt.state);
	grant_stolen(rel, &attempt);
	return ended;
}

/*
 * End the holding with a fencing token, and grant its mode of the key to an owner.  Returns a
 * list as al_lease_steal() does.  Outcomes also: AL_CHANGED, AL_HELD_BY_OWNER.
 */
List *
al_lease_steal_grant(Relation rel, const AlKey *key, AlAcquire *request, int64 token,
					 const text *reason, AlResult *result)
{
	AlAttempt	attempt = {.key = key, .request = request, .result = result,
	.is_shared = request->is_shared, .lifetime = request->lifetime};
	AlClaim		claim;
	AlHolding  *holding;
	AlHolding  *ended = NULL;
	AlHolding  *own;

	al_terms_of(key, request, &attempt.terms);
	holding = al_lease_claim_grant(rel, key, token, &claim, result);
	if (holding == NULL)
		return NIL;
	attempt.is_shared = al_is_shared(holding);
	if (attempt.is_shared &&
		!al_lease_claim_soon(rel, key, &request->owner, AL_CLAIM_SHARE, &attempt.claim, result))
	{
		al_claim_drop(&claim);
		return NIL;
	}
	al_look(rel, key, &request->owner, AL_LOOK_OWN, &attempt.state);
	if (al_judge_owner(&attempt.state, &request->owner, result, &own) == AL_RELEASED)
		result->outcome = AL_HELD_BY_OWNER;
	else
		ended = al_lease_end_claimed(rel, key, holding, AL_ENDED_STOLEN, reason, result);
	if (ended == NULL)
	{
		if (attempt.is_shared)
			al_claim_drop(&attempt.claim);
		al_claim_drop(&claim);
		return NIL;
	}
	al_look(rel, key, &request->owner, AL_LOOK_OWN, &attempt.state);
	grant_stolen(rel, &attempt);
	return list_make1(ended);
}
