/*-------------------------------------------------------------------------
 *
 * path.c
 *		Acquiring a key with the folders above it; releasing the key, and those of the
 *		folders that the owner no longer needs.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: an owner shares a folder as long as it holds a key below it.  Another session of
 * the owner that begins or ends such a holding needs the claim on the share of the folder,
 * too.  So first claim all keys of the path, then look at the owner's holdings.  Keep the
 * claims until the commit, also on folders that stay.  Otherwise a second release would see
 * a released but uncommitted key, and keep the folder because of it.  That happens where the
 * owner lacks the folder, since there is no share to claim: a session that gets the folder and
 * releases its key before we commit leaves the folder.
 *
 * Locking rules: those of al_claim_own().  The keys are claimed in order, so two such calls
 * cannot deadlock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/key.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/acquire.h"
#include "lease/path.h"
#include "lease/release.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "table/owner_rows.h"

/*
 * Complete the requests for the keys of a path: requests[0], which is given, is for the last
 * key, and requests[1] for the folders, which are shared.  Raises 42501 and 22023.
 */
void
al_lease_path_requests(const AlKey *keys, int count, AlAcquire *requests, bool *is_shared)
{
	al_terms_set_wait(keys, count, &requests[0]);
	for (int i = 0; i < count; i++)
	{
		is_shared[i] = i < count - 1;
		al_terms_admit(&keys[i]);
		(void) al_terms_new_ttl(&keys[i], requests[0].ttl);
	}
	requests[0].is_path = true;
	requests[1] = requests[0];
	requests[1].is_shared = true;
	requests[1].on_reacquire = AL_REACQUIRE_EXTEND;
}

/* Is a key below a folder held, other than the "count" keys that follow "folder" in its array? */
static bool
has_below(List *holdings, const AlKey *folder, int count)
{
	ListCell   *cell;

	foreach(cell, holdings)
	{
		AlString	name = ((AlOwned *) lfirst(cell))->key.name;
		bool		is_below = al_string_begins(name, folder->name);

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; is_below && i <= count; i++)
			is_below = !al_string_equal(name, folder[i].name);
		if (is_below)
			return true;
	}
	return false;
}

/*
 * The token of a key of the path that another session of the owner got after we looked at the
 * key; 0: none
 */
static int64
find_unclaimed(List *holdings, const AlOwnClaim *asks, int count)
{
	ListCell   *cell;

	foreach(cell, holdings)
	{
		const AlOwned *owned = lfirst(cell);

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < count; i++)
		{
			if (asks[i].own == NULL && al_key_compare(&owned->key, asks[i].key) == 0)
				return owned->row->fencing_token;
		}
	}
	return 0;
}

/*
 * Claim the keys of a path that the owner holds, and set "own" of each and *holdings, the owner's
 * live holdings.  Returns -1; or the index of a refused key, with the reason in *result: the
 * caller must raise an error, which ends the claims.
 */
static int
claim_path(Relation rel, const AlKey *keys, int count, const AlOwner *owner,
		   AlOwnClaim *asks, List **holdings, AlResult *result)
{
	int			last = count - 1;
	int64		missed = 0;
	int64		missed_before;
	List	   *transactions;
	TimestampTz now;

	for (;;)
	{
		for (int i = 0; i < count; i++)
		{
			asks[i] = (AlOwnClaim) {rel, &keys[i], owner, AL_CLAIM_TAKE, .result = result};
			if (!al_claim_own(&asks[i]) && (i == last || result->outcome == AL_IN_TRANSACTION))
				return i;
		}
		transactions = list_concat(al_tx_mine(NULL), al_tx_shown());
		*holdings = al_owned_live(al_owned_in_order(rel, owner, transactions), &now);
		missed_before = missed;
		missed = find_unclaimed(*holdings, asks, count);
		/* Twice the same: rows written by hand contradict each other. */
		if (missed == 0 || missed == missed_before)
			return -1;

		/* Keys are claimed in order, so give back the claims, and begin again. */
		al_trace(DEBUG3, "another session of the owner has got a folder of the path, claiming it again");
		for (int i = last; i >= 0; i--)
		{
			if (asks[i].own && asks[i].claim.hash != 0)
				al_claim_drop(&asks[i].claim);
		}
	}
}

/*
 * Release the last key of a path, and each folder above it that the owner (convert->owner) shares
 * and needs for no other key.  If the last key is a folder and the owner holds a key below it,
 * make it shared by the request "convert".  Returns -1, with the number of released keys in
 * *released; or writes nothing, and returns the index of a refused key: the caller must raise an
 * error, which ends the claims.  Raises 42501.
 *
 * Holdings of other transactions of the owner count if these show them: see al_tx_shown().
 */
int
al_lease_release_path(Relation *rel, const AlKey *keys, int count, bool is_folder,
					  AlAcquire *convert, AlResult *result, int64 *released)
{
	AlOwnClaim *asks = palloc0(count * sizeof(AlOwnClaim));
	const AlOwner *owner = &convert->owner;
	int			last = count - 1;
	int			refused;
	int			gone;			/* number of keys at the end that are released */
	List	   *holdings = NIL;

	Assert(count > 0);
	*released = 0;
	for (int i = 0; i < count; i++)
		al_terms_admit(&keys[i]);
	refused = claim_path(*rel, keys, count, owner, asks, &holdings, result);
	if (refused >= 0)
		return refused;

	gone = is_folder && has_below(holdings, &keys[last], 0) ? 0 : 1;
	if (gone == 1)
		al_lease_release(*rel, &keys[last], owner, NULL, result);
	else if (!al_is_shared(asks[last].own))
		al_lease_acquire(rel, &keys[last], convert, result);
	else
		result->outcome = AL_REACQUIRED;
	if (gone == 1 ? result->outcome != AL_RELEASED : !al_is_granted(result))
		return last;
	*released = gone;
	for (int i = last - 1; i >= 0; i--)
	{
		AlResult	ignored;

		/* A folder that stays keeps all above it; one that the owner does not hold does not. */
		if (gone == last - i && asks[i].own && al_is_shared(asks[i].own) &&
			!has_below(holdings, &keys[i], gone))
		{
			al_lease_release(*rel, &keys[i], owner, NULL, &ignored);
			*released += ignored.outcome == AL_RELEASED;
			gone++;
		}
		else if (asks[i].own == NULL && gone == last - i)
			gone++;
	}
	return -1;
}
