/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Deadlocks among waiters.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: the waits-for graph has sessions as its nodes.  A waiter waits for
 *
 *	- each session that waits in the queue for the owner of a lease in its way;
 *	- the session that ends such a lease by its own end;
 *	- the sessions whose unfinished transactions have claimed the key.
 *
 * Those may wait in the queue or in the lock manager.  A reader behind a writer has the
 * edges of that writer.  Where the number of sharers is limited, and nobody before the
 * waiter wants the key exclusively, any of the sharers may let it in.  So no edge leads
 * to a sharer, and a cycle through sharers ends by a time-out.
 *
 * A waiter searches for a cycle through itself after deadlock_timeout, and then every
 * second, because leases change hands meanwhile.
 *
 * The search locks nothing, so the edges that it saw may not have existed at one
 * time.  Therefore it is done twice.  Leases with the same tokens and waits with the
 * same ids existed all the time in between.  If several waiters find a cycle, one
 * resigns.
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

/* A session that was visited and has not led back, and for a waiter also its key */
typedef struct Visited
{
	int			pid;
	AlWaiter   *waiter;			/* NULL: of no key, or another waiter stands for it */
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

/*
 * Does the path, continued to any of these processes, lead back to us?  Then that is the
 * path from now on.
 */
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

/* The processes that a backend waits for in the lock manager */
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

/* Was another waiter for the same key visited before? */
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

/* May any of those who share its key let a waiter in? */
static bool
is_let_in_by_any(const AlWaiter *waiter)
{
	bool		limited;

	return waiter->is_shared && al_waiters_has_strict(waiter, &limited) && limited;
}

/* Does our own unfinished transaction hold the key that we wait for, by a lease or without? */
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

/* The processes that may end a lease: those that wait for its owner, and its session */
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

/*
 * Does a path from a waiter lead back to us?  Then the links are the cycle.  "any": any of the
 * sharers of the key may let the waiter in.
 */
static bool
search_from_waiter(Search *search, Link *link, bool any)
{
	const AlWaiter *waiter = &link->waiter;
	List	   *pids = list_delete_int(al_claim_blockers(waiter->hash, any), link->pid);
	List	   *leases = al_waiter_obstacles(search->rel, waiter);
	ListCell   *cell;

	/* Only a session itself can see that its own transaction is in its way. */
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

/* Does what a process waits for lead back to us? */
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
	/* Waiters come and go, perhaps faster than we search. */
	if (list_length(search->visited) > 2 * MaxBackends)
		return false;

	visited = palloc0(sizeof(Visited));
	visited->pid = pid;
	search->visited = lappend(search->visited, visited);
	if (al_waiters_of_backend(pid, &link.waiter))
	{
		bool		any = is_let_in_by_any(&link.waiter);

		/*
		 * Waiters for a key have the same edges, except upgrades, which share it, and
		 * waiters that any sharer may let in.
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
 * Would this backend, which is in the queue, wait forever?  Then it resigns, that is,
 * leaves the queue, and this returns a description of the cycle.  Otherwise returns NULL.
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
		return NULL;
	AL_TEST_POINT("cycle-confirmed");

	waiters = palloc(second.depth * sizeof(AlWaiter));
	for (int i = 0; i < second.depth; i++)
	{
		if (second.links[i].waiter.id != 0)
			waiters[count++] = second.links[i].waiter;
	}
	if (!al_waiters_resign(waiters, count))
		return NULL;
	AL_TEST_POINT("resigned");
	return describe(&second);
}
