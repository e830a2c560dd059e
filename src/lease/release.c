/*-------------------------------------------------------------------------
 *
 * release.c
 *		Ending holdings: release by the owner, and end by an administrator.
 *
 * Locking rules: those of lease/state.c.  An administrator does not wait for a claim,
 * but is told who has it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "claim/claim.h"
#include "claim/durability.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/record.h"
#include "lease/release.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "shmem/stat.h"
#include "shmem/tickets.h"
#include "table/app_lock.h"
#include "table/pending.h"
#include "table/sharers.h"
#include "table/tickets.h"

/* To end a holding by force, a claim is tried so often, after so many microseconds */
#define MOST_TRIES		500
#define TRY_PAUSE		1000L

/* Write that a holding is over; "forget": as if its owner had never had it */
void
al_end_row(Relation rel, const AlKey *key, AlHolding *holding, TimestampTz now, bool forget)
{
	holding->released_at = now;
	holding->meta = NULL;
	if (forget)
		holding->owner = NULL;
	al_table_put(rel, key, holding);
}

/* A row is taken or ended: if it was not released, note that its lease expired */
void
al_note_expired(const AlKey *key, const AlHolding *row)
{
	if (!ItemPointerIsValid(&row->tid) || row->released_at != 0)
		return;
	al_stat_count(AL_COUNT_EXPIRATIONS, 1);
	al_record_end(key, row, al_ended_at(row), AL_ENDED_EXPIRED, NULL);
}

/* End what an owner holds by this transaction, except for the holding "but" */
void
al_end_mine(const AlKey *key, const AlState *state, const AlOwner *owner,
			const AlHolding *but, AlEndedBy ended_by)
{
	ListCell   *cell;

	foreach(cell, state->mine)
	{
		if (lfirst(cell) == but || !al_is_owned_by(lfirst(cell), owner))
			continue;
		al_held_end(lfirst(cell), false);
		al_record_end(key, lfirst(cell), GetCurrentTimestamp(), ended_by, NULL);
		al_stat_count(AL_COUNT_RELEASES, 1);
	}
}

/*
 * Release what an owner holds.  "seen" is as in AlOwnClaim.  Outcomes: AL_RELEASED,
 * and the others of al_claim_own().  Raises 42501.
 */
void
al_lease_release(Relation rel, const AlKey *key, const AlOwner *owner,
				 const AlHolding *seen, AlResult *result)
{
	AlOwnClaim	ask = {rel, key, owner, AL_CLAIM_TAKE, .seen = seen, .result = result};
	AlHolding  *own;

	al_terms_admit(key);
	own = al_claim_own(&ask);
	if (own == NULL)
		return;

	al_end_mine(key, &ask.state, owner, NULL, AL_ENDED_RELEASED);
	if (own->lifetime == AL_TRANSACTION)
		return;
	al_durability_before_release();
	own->released_at = result->at;
	own->meta = NULL;
	if (!al_put_over(rel, key, own))
	{
		al_claim_drop(&ask.claim);
		result->outcome = AL_EXPIRED;
		return;
	}
	if (al_is_shared(own))
		al_sharers_note_over(key, &own->tid);
	al_record_end(key, own, result->at, AL_ENDED_RELEASED, NULL);
	/* Who had the key alone, and took a place elsewhere at that moment, needs none. */
	if (!al_is_shared(own) && !al_tickets_none())
		(void) al_tickets_drop(key, owner);
	result->holding = *own;
	al_durability_released();
	al_stat_count(AL_COUNT_RELEASES, 1);
}

/*
 * Claim a key for taking it; false where another transaction has claimed it since we
 * began.  Most are about to go: those of heartbeats, sweeps, and of who was refused.
 * Where others have come instead of them, we wait for those, or a busy key could never
 * be had.
 */
static bool
claim_soon(AlClaim *claim, const AlKey *key)
{
	VirtualTransactionId *first = NULL;

	for (int tries = 0; tries < MOST_TRIES; tries++)
	{
		if (al_claim_try(claim, key, NULL, AL_CLAIM_TAKE))
			return true;
		if (first == NULL)
			first = al_claim_others(key->hash);
		CHECK_FOR_INTERRUPTS();
		pg_usleep(TRY_PAUSE);
	}
	for (const VirtualTransactionId *now = al_claim_others(key->hash);
		 VirtualTransactionIdIsValid(*now); now++)
	{
		for (const VirtualTransactionId *then = first; VirtualTransactionIdIsValid(*then); then++)
		{
			if (VirtualTransactionIdEquals(*now, *then))
				return false;
		}
	}
	al_claim(claim, key, NULL, AL_CLAIM_TAKE);
	return true;
}

/*
 * End all holdings of a key, whoever has them, and return copies of what they were: a
 * list of AlHolding *.  A key that min_hold keeps closed is open then, and that alone is
 * AL_RELEASED, too.  Former owners are forgotten: they find no lock, not a
 * released one.  Outcomes: AL_RELEASED, AL_NOT_FOUND, and the key stays claimed;
 * without a claim AL_IN_TRANSACTION, where another transaction holds the key to its
 * end, or has claimed it and does not end soon.  Waits for those that come after us.
 */
List *
al_lease_end(Relation rel, const AlKey *key, AlClaim *claim, AlEndedBy ended_by,
			 const text *reason, AlResult *result)
{
	List	   *others = al_held_by_others(key);
	List	   *ended = NIL;
	AlState		state;
	TimestampTz now;
	bool		was_closed = false;
	ListCell   *cell;

	if (others != NIL)
	{
		result->outcome = AL_IN_TRANSACTION;
		result->blocker = ((AlHolding *) linitial(others))->pid;
		return NIL;
	}

	if (!claim_soon(claim, key))
	{
		const AlHolding *pending = al_pending_find(rel, key, NULL);

		result->outcome = AL_IN_TRANSACTION;
		result->blocker = pending ? pending->pid : al_claim_blocker(claim);
		return NIL;
	}
	al_look(rel, key, NULL, AL_LOOK_ALL, &state);
	now = GetCurrentTimestamp();
	foreach(cell, al_live_holdings(&state, now))
	{
		AlHolding  *holding = lfirst(cell);
		AlHolding  *copy = palloc(sizeof(AlHolding));

		*copy = *holding;
		ended = lappend(ended, copy);
		al_record_end(key, copy, now, ended_by, reason);
		if (holding->lifetime == AL_TRANSACTION)
			al_held_end(holding, true);
		else
			al_end_row(rel, key, holding, now, true);
	}
	foreach(cell, lcons(&state.rows.exclusive, state.rows.shared))
	{
		AlHolding  *row = lfirst(cell);

		if (!ItemPointerIsValid(&row->tid) || now >= al_min_held_until(row))
			continue;
		al_note_expired(key, row);
		/* It ended when it did, as lock_held_at() tells where no history was asked for. */
		al_end_row(rel, key, row, row->released_at != 0 ? row->released_at : Min(al_ended_at(row), now), true);
		was_closed = true;
	}
	result->outcome = ended != NIL || was_closed ? AL_RELEASED : AL_NOT_FOUND;
	result->is_in_use = false;
	return ended;
}
