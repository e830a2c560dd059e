/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Deadlocks among waiters.
 *
 * Model: the waits-for graph has sessions as its nodes.  A waiter waits for
 *
 *	- each session in which the owner of a lease in its way waits in the queue;
 *	- the session with which such a lease ends, if nobody else knows the owner;
 *	- the sessions whose unfinished transactions have claimed the key.
 *
 * Those may wait in the queue or in the lock manager.  A waiter that would share a
 * key which others share waits for what the writer before it waits for.  Where a waiter
 * for a limited number of places is among those, any of the holders may let them in, so
 * it is a cycle only if all of these lead back.  A waiter
 * searches for a cycle through itself after deadlock_timeout, and then every second,
 * because leases change hands meanwhile.
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
#include "claim/held.h"
#include "claim/holding.h"
#include "lease/deadlock.h"
#include "lease/state.h"
#include "shmem/queue.h"
#include "shmem/shmem.h"

/* A session on the path, and why it waits for the next one */
typedef struct Link
{
	int			pid;
	AlWaiter	waiter;			/* id 0: waits in the lock manager */
	int64		fencing_token;	/* of the lease in its way; 0: a claim is */
	char	   *holder;			/* of that lease */
} Link;

typedef struct Search
{
	Relation	rel;
	List	   *visited;		/* process ids */
	List	   *leading;		/* those of them that lead back to us */
	List	   *visited_keys;	/* AlWaiter *: one waiter for each key */
	Link	   *links;			/* the path from this backend */
	int			depth;
	int			size;
} Search;

/* A path that led back, kept while others are searched */
typedef struct Path
{
	Link	   *links;			/* NULL: none yet */
	int			depth;
} Path;

static bool search_from(Search *search, int pid);

/* Does the path, continued to any of these processes, lead back to us? */
static bool
search_processes(Search *search, Link *link, List *pids)
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

/* The same where all have to lead back, for some of them.  The first path is kept. */
static bool
search_some(Search *search, Link *link, List *pids, Path *path)
{
	int			depth = search->depth;

	if (!search_processes(search, link, pids))
		return false;
	if (path->links == NULL)
	{
		path->links = palloc(search->depth * sizeof(Link));
		memcpy(path->links, search->links, search->depth * sizeof(Link));
		path->depth = search->depth;
	}
	search->depth = depth;
	return true;
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

/* Was a waiter for the same key visited before?  Notes that one is now. */
static bool
is_visited_key(Search *search, const AlWaiter *waiter)
{
	ListCell   *cell;
	AlWaiter   *copy;

	foreach(cell, search->visited_keys)
	{
		const AlWaiter *visited = lfirst(cell);

		if (visited->hash == waiter->hash &&
			al_string_equal(al_waiter_key(visited).name, al_waiter_key(waiter).name))
			return true;
	}
	if (list_length(search->visited_keys) == MaxBackends)
		return true;			/* waiters come and go faster than we search */
	copy = palloc(sizeof(AlWaiter));
	*copy = *waiter;
	search->visited_keys = lappend(search->visited_keys, copy);
	return false;
}

static bool
is_ours(const AlHolding *holding)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(holding->tuple->t_data));
}

/* Does our own unfinished transaction hold the key that we wait for? */
static bool
is_in_own_way(Relation rel, const AlWaiter *waiter)
{
	AlKey		key = al_waiter_key(waiter);
	ListCell   *cell;

	foreach(cell, al_waiter_obstacles(rel, waiter))
	{
		if (is_ours(lfirst(cell)))
			return true;
	}
	foreach(cell, al_held_mine(&key))
	{
		if (!al_owner_equal(al_waiter_owner(waiter),
							al_string(((AlHolding *) lfirst(cell))->owner)))
			return true;
	}
	return false;
}

/* May any of those who share its key let a waiter in?  Some wait for a place there. */
static bool
is_let_in_by_any(const AlWaiter *waiter)
{
	AlKey		key = al_waiter_key(waiter);
	bool		limited;

	return waiter->is_shared && al_queue_has_strict(&key, &limited) && limited;
}

/* Does what a waiter waits for lead back to us?  Then the links are the cycle. */
static bool
search_from_waiter(Search *search, Link *link)
{
	int			pid = link->pid;
	bool		all = is_let_in_by_any(&link->waiter);
	Path		path = {0};
	List	   *pids;
	ListCell   *cell;

	/*
	 * Waiters for a key wait for the same sessions, except upgrades, which share it, and
	 * those who wait for all of them to block.
	 */
	if (!link->waiter.is_upgrade && !all && is_visited_key(search, &link->waiter))
		return false;

	/* Only a session itself can see that its own transaction is in its way. */
	pids = list_delete_int(al_claim_blockers(link->waiter.hash), pid);
	if (pid == MyProcPid ? is_in_own_way(search->rel, &link->waiter) :
		al_claimed_has(link->waiter.hash))
		pids = lappend_int(pids, MyProcPid);
	if (!all && search_processes(search, link, pids))
		return true;
	foreach(cell, all ? pids : NIL)
	{
		if (!search_some(search, link, list_make1_int(lfirst_int(cell)), &path))
			return false;
	}

	foreach(cell, al_waiter_obstacles(search->rel, &link->waiter))
	{
		const AlHolding *holding = lfirst(cell);
		int			count;
		AlWaiter   *waiters;

		/* We have claimed the key, and wait. */
		if (all && is_ours(holding))
			continue;
		waiters = al_queue_of_owner(al_string(holding->owner), &count);
		pids = NIL;
		for (int i = 0; i < count; i++)
			pids = lappend_int(pids, waiters[i].pid);
		pfree(waiters);
		/* An owner that the application named can release it in any session. */
		if (holding->lifetime == AL_SESSION &&
			al_owner_looks_generated(al_string(holding->owner)))
			pids = lappend_int(pids, holding->pid);
		link->fencing_token = holding->fencing_token;
		link->holder = al_display(al_string(holding->holder));
		if (!all && search_processes(search, link, pids))
			return true;
		if (all && !search_some(search, link, pids, &path))
			return false;
	}
	if (path.links == NULL)
		return false;
	memcpy(search->links, path.links, path.depth * sizeof(Link));
	search->depth = path.depth;
	return true;
}

/* Does what a process waits for lead back to us? */
static bool
search_from(Search *search, int pid)
{
	Link		link = {.pid = pid};
	bool		leads;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	if (list_member_int(search->visited, pid))
		return list_member_int(search->leading, pid);
	search->visited = lappend_int(search->visited, pid);
	leads = al_queue_of_backend(pid, &link.waiter) ?
		search_from_waiter(search, &link) :
		search_processes(search, &link, blocking_processes(pid));
	if (leads)
		search->leading = lappend_int(search->leading, pid);
	return leads;
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
 * leaves the queue, and this returns who waits for whom.  Otherwise returns NULL.
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
	return al_queue_resign(waiters, count) ? describe(&second) : NULL;
}
