/*-------------------------------------------------------------------------
 *
 * path.c
 *		Release a key and the folders above it that its owner needs no longer.
 *
 * Model: what an owner has below a folder is why it shares the folder.  Another session of
 * the owner that takes something below needs the claim on that share, too.  So all keys of
 * the path are claimed first, and then the owner's holdings are looked at.  The claims are
 * kept, also on folders that stay: until the release is committed, another one would take
 * what is released for a reason to keep them.
 *
 * Locking rules: those of al_claim_own(), in the order of keys, so that two such calls
 * cannot deadlock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "atomic_lock.h"
#include "base/key.h"
#include "base/str.h"
#include "claim/claim.h"
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/acquire.h"
#include "lease/path.h"
#include "lease/release.h"
#include "lease/state.h"
#include "lease/terms.h"
#include "table/owner_rows.h"

/* All that an owner holds: a list of AlHolding *, some perhaps twice */
static List *
holdings_of(Relation rel, const AlOwner *owner)
{
	List	   *all = al_held_mine(NULL);
	List	   *live = NIL;
	TimestampTz now = GetCurrentTimestamp();
	ListCell   *cell;

	foreach(cell, al_owner_rows(rel, owner))
		all = lappend(all, ((AlOwned *) lfirst(cell))->row);
	foreach(cell, all)
	{
		AlHolding  *holding = lfirst(cell);

		if (al_is_owned_by(holding, owner) && al_is_live(holding, now))
			live = lappend(live, holding);
	}
	return live;
}

/* Is there a holding of something below a folder, other than the next "count" keys of the path? */
static bool
has_below(List *holdings, const AlKey *folder, int count)
{
	ListCell   *cell;

	foreach(cell, holdings)
	{
		AlString	name = ((AlHolding *) lfirst(cell))->key;
		bool		is_below = al_string_begins(name, folder->name);

		for (int i = 0; is_below && i <= count; i++)
			is_below = !al_string_equal(name, folder[i].name);
		if (is_below)
			return true;
	}
	return false;
}

static void
drop_claims(AlOwnClaim *asks, int count)
{
	for (int i = 0; i < count; i++)
	{
		if (asks[i].own && asks[i].claim.hash != 0)
			al_claim_drop(&asks[i].claim);
	}
}

/*
 * Release the last key of a path for the owner of a request, and each folder above it that
 * the owner shares and below which it holds nothing else; "released" is how many.  Where the
 * last key is a folder below which the owner holds something, it is converted to shared by
 * that request.  Returns -1, or the number of a key that does not allow it, whose result
 * says why: nothing has been written then.  Raises 42501.
 */
int
al_lease_release_path(Relation *rel, const AlKey *keys, int count, bool is_folder,
					  AlAcquire *convert, AlResult *result, int64 *released)
{
	AlOwnClaim *asks = palloc0(count * sizeof(AlOwnClaim));
	const AlOwner *owner = &convert->owner;
	int			last = count - 1;
	int			gone;			/* keys behind a folder that are released */
	List	   *holdings;

	*released = 0;
	for (int i = 0; i < count; i++)
		al_terms_admit(&keys[i]);
	for (int i = 0; i < count; i++)
	{
		asks[i] = (AlOwnClaim) {*rel, &keys[i], owner, AL_CLAIM_TAKE, .result = result};
		if (al_claim_own(&asks[i]) == NULL && (i == last || result->outcome == AL_IN_TRANSACTION))
		{
			drop_claims(asks, i);
			return i;
		}
	}
	holdings = holdings_of(*rel, owner);

	gone = is_folder && has_below(holdings, &keys[last], 0) ? 0 : 1;
	if (gone == 1)
		al_lease_release(*rel, &keys[last], owner, NULL, result);
	else if (!al_is_shared(asks[last].own))
		al_lease_acquire(rel, &keys[last], convert, result);
	else
		result->outcome = AL_REACQUIRED;
	if (gone == 1 ? result->outcome != AL_RELEASED : !al_is_granted(result))
	{
		drop_claims(asks, count);
		return last;
	}
	*released = gone;
	for (int i = last - 1; i >= 0; i--)
	{
		AlResult	ignored;

		/* A folder that stays is below all folders above it. */
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
