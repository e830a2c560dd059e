/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Deadlocks among waiters.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the nodes of the waits-for graph are sessions.  Edges lead from a waiter to
 *
 * - each session that waits in the queue for the owner of a lease in the waiter's way;
 * - the session with which such a lease ends;
 * - the sessions whose unfinished transactions have claimed the key.
 *
 * From a session that waits in the lock manager, edges lead to those that block it.  A reader
 * behind a writer has the edges of that writer.  Where max_holders limits the sharers, and no
 * waiter before this one wants the key exclusively, the end of any one share lets the waiter in.
 * So no edge leads to a sharer, and a cycle through sharers ends by a time-out.
 *
 * A waiter searches for a cycle through itself after deadlock_timeout, and then every second,
 * because leases change hands meanwhile.  The search locks nothing, so it is done twice: leases
 * with the same tokens and waits with the same ids existed all the time in between.  Then the
 * waiter resigns, unless another waiter of the cycle has already left.
 *
 * Locking rules: reads app_lock and the lock manager, keeps no lock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/owner.h"
#include "base/str.h"
#include "base/testpoint.h"
#include "claim/claim.h"
#include "claim/claimed.h"
#include "claim/holding.h"
#include "claim/tx_holdings.h"
#include "lease/deadlock.h"
#include "lease/state.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"

/* A session on the path, and why it waits for the next one */
typedef struct Link
{
	int			pid;
	AlWaiter	waiter;			/* id 0: waits in the lock manager */
	int64		fencing_token;	/* of the lease in its way; 0: a claim is */
	char	   *holder;			/* of that lease */
} Link;

typedef struct Visited
{
	int			pid;
	AlWaiter   *waiter;			/* the one waiter that is visited for its key; or NULL */
} Visited;

typedef struct Search
{
	Relation	rel;
	List	   *visited;		/* Visited * */
	Link	   *links;			/* the path from this backend */
	int			depth;
	int			size;
} Search;

static bool search_from(Search *search, int pid);

/* Does the path, extended by a link to any of these, lead back to us?  Then it is the cycle. */
static bool
search_processes(Search *search, const Link *link, List *pids)
{
	ListCell   *cell;
	int			depth = search->depth;

	foreach(cell, pids)
	{
		int			pid = lfirst_int(cell);

		if (search->depth == search->size)
		{
			search->size = Max(search->size * 2, 8);
			search->links = search->links ?
				repalloc(search->links, search->size * sizeof(Link)) :
				palloc(search->size * sizeof(Link));
		}
		search->links[search->depth++] = *link;
		if (pid == MyProcPid || search_from(search, pid))
			return true;
		search->depth = depth;
	}
	return false;
}

static List *
blocking_processes(int pid)
{
	Datum		array = DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(pid));
	int		   *elements = (int *) ARR_DATA_PTR(DatumGetArrayTypeP(array));
	int			count = ArrayGetNItems(ARR_NDIM(DatumGetArrayTypeP(array)),
									   ARR_DIMS(DatumGetArrayTypeP(array)));
	List	   *pids = NIL;

	for (int i = 0; i < count; i++)
	{
		if (elements[i] != 0)	/* a prepared transaction */
			pids = lappend_int(pids, elements[i]);
	}
	return pids;
}

static bool
has_visited_key(const Search *search, const AlWaiter *waiter)
{
	ListCell   *cell;

	foreach(cell, search->visited)
	{
		const Visited *visited = lfirst(cell);

		if (visited->waiter && visited->waiter->hash == waiter->hash &&
			al_string_equal(al_waiter_key(visited->waiter).name, al_waiter_key(waiter).name))
			return true;
	}
	return false;
}

/* Does the end of any one share let this waiter in? */
static bool
is_let_in_by_any(const AlWaiter *waiter)
{
	bool		limited;

	return waiter->is_shared && al_waiters_has_strict(waiter, &limited) && limited;
}

/* Does our own unfinished transaction hold the key that we wait for, with or without a row? */
static bool
is_in_own_way(const AlWaiter *waiter, List *leases, bool any)
{
	AlKey		key = al_waiter_key(waiter);
	ListCell   *cell;

	foreach(cell, list_concat_copy(leases, al_tx_mine(&key)))
	{
		const AlHolding *holding = lfirst(cell);

		if ((holding->lifetime == AL_TRANSACTION ||
			 TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(holding->tuple->t_data))) &&
			!al_owner_equal(al_waiter_owner(waiter), al_string(holding->owner)) &&
			!(any && al_is_shared(holding)))
			return true;
	}
	return false;
}

/* The processes that may end a lease: waiters of its owner, and the session of the lease */
static List *
ending_processes(const AlHolding *lease)
{
	int			count;
	AlWaiter   *waiters = al_waiters_of_owner(al_string(lease->owner), &count);
	List	   *pids = NIL;

	for (int i = 0; i < count; i++)
		pids = lappend_int(pids, waiters[i].pid);
	pfree(waiters);
	return lease->lifetime == AL_SESSION ? lappend_int(pids, lease->pid) : pids;
}

/* Does a path from a waiter lead back to us?  "any" is the answer of is_let_in_by_any(). */
static bool
search_from_waiter(Search *search, Link *link, bool any)
{
	const AlWaiter *waiter = &link->waiter;
	List	   *pids = list_delete_int(al_claim_blockers(waiter->hash, any), link->pid);
	List	   *leases = al_waiter_obstacles(search->rel, waiter);
	ListCell   *cell;

	/* Only we can see that our own transaction is in our way. */
	if (link->pid == MyProcPid ? is_in_own_way(waiter, leases, any) :
		any ? al_claim_is_mine_alone(waiter->hash) : al_claimed_has(waiter->hash))
		pids = lappend_int(pids, MyProcPid);
	if (search_processes(search, link, pids))
		return true;

	foreach(cell, leases)
	{
		const AlHolding *lease = lfirst(cell);

		if (any && al_is_shared(lease))
			continue;
		link->fencing_token = lease->fencing_token;
		link->holder = al_display(al_string(lease->holder));
		if (search_processes(search, link, ending_processes(lease)))
			return true;
	}
	return false;
}

static bool
search_from(Search *search, int pid)
{
	Link		link = {.pid = pid};
	Visited    *visited;
	ListCell   *cell;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	foreach(cell, search->visited)
	{
		if (((Visited *) lfirst(cell))->pid == pid)
			return false;
	}
	/* Waiters come and go, perhaps faster than the search: end it at some point. */
	if (list_length(search->visited) > 2 * MaxBackends)
		return false;

	visited = palloc0(sizeof(Visited));
	visited->pid = pid;
	search->visited = lappend(search->visited, visited);
	if (al_waiters_of_backend(pid, &link.waiter))
	{
		bool		any = is_let_in_by_any(&link.waiter);

		/*
		 * All waiters for a key have the same edges, so visit one.  Exceptions: upgrades, which
		 * share the key, and waiters that any sharer may let in.
		 */
		if (!link.waiter.is_upgrade && !any)
		{
			if (has_visited_key(search, &link.waiter))
				return false;
			visited->waiter = palloc(sizeof(AlWaiter));
			*visited->waiter = link.waiter;
		}
		return search_from_waiter(search, &link, any);
	}
	return search_processes(search, &link, blocking_processes(pid));
}

static bool
same_cycle(const Search *a, const Search *b)
{
	if (a->depth != b->depth)
		return false;
	for (int i = 0; i < a->depth; i++)
	{
		if (a->links[i].pid != b->links[i].pid ||
			a->links[i].waiter.id != b->links[i].waiter.id ||
			a->links[i].fencing_token != b->links[i].fencing_token)
			return false;
	}
	return true;
}

static char *
describe(const Search *search)
{
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < search->depth; i++)
	{
		const Link *link = &search->links[i];
		int			next = search->links[(i + 1) % search->depth].pid;

		if (i > 0)
			appendStringInfoChar(&buf, '\n');
		if (link->waiter.id == 0)
			appendStringInfo(&buf, "Process %d waits for process %d.", link->pid, next);
		else
		{
			const AlWaiter *waiter = &link->waiter;

			appendStringInfo(&buf, "%s (process %d) waits for lock \"%s\", ",
							 al_display(al_cstring(waiter->holder)), waiter->pid,
							 al_display(al_waiter_key(waiter).name));
			if (link->fencing_token != 0)
				appendStringInfo(&buf, "held by %s.", link->holder);
			else
				appendStringInfo(&buf, "in use by the transaction of process %d.", next);
		}
	}
	return buf.data;
}

/*
 * Search for a deadlock of this backend, which is in the queue.  If it is the victim of one, it
 * leaves the queue, and the cycle is described; otherwise NULL.
 */
char *
al_deadlock_find(Relation rel)
{
	Search		first = {.rel = rel};
	Search		second = {.rel = rel};
	AlWaiter   *waiters;
	int			count = 0;

	if (!al_shmem_attach())
		return NULL;
	if (!search_from(&first, MyProcPid))
		return NULL;
	AL_TEST_POINT("cycle-seen");
	if (!search_from(&second, MyProcPid) || !same_cycle(&first, &second))
	{
		al_trace(DEBUG3, "a cycle of %d waits was not found a second time", first.depth);
		return NULL;
	}
	Assert(second.depth > 0 && second.links[0].pid == MyProcPid);
	AL_TEST_POINT("cycle-confirmed");

	waiters = palloc(second.depth * sizeof(AlWaiter));
	for (int i = 0; i < second.depth; i++)
	{
		if (second.links[i].waiter.id != 0)
			waiters[count++] = second.links[i].waiter;
	}
	if (!al_waiters_resign(waiters, count))
	{
		al_trace(DEBUG1, "deadlock of %d waits found; a waiter of the cycle has left", second.depth);
		return NULL;
	}
	AL_TEST_POINT("resigned");
	al_trace(DEBUG1, "deadlock of %d waits found; this process resigns", second.depth);
	return describe(&second);
}
