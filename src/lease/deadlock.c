/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *		Deadlocks among waiters.
 *
 * Model: the waits-for graph has sessions as its nodes.  A waiter waits for
 *
 *	- each session in which the owner of a lease in its way waits in the queue;
 *	- the session with which such a lease ends;
 *	- the sessions whose unfinished transactions have claimed the key.
 *
 * Those may wait in the queue or in the lock manager.  A waiter that would share a
 * key which others share waits for what the writer before it waits for.  If it waits for
 * one of a limited number of places, and nobody before it wants the key exclusively, any
 * of the holders may let it in, so it is a cycle only if all of these lead back.
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

/* Does what a session waits for lead back to us? */
typedef enum Leads
{
	LEADS_NOWHERE,
	LEADS_PERHAPS,				/* to one on the path, which is not decided yet */
	LEADS_BACK
} Leads;

/* A session that was visited, and for a waiter also its key */
typedef struct Visited
{
	int			pid;
	AlWaiter   *waiter;			/* NULL: of no key, or another waiter stands for it */
	Leads		leads;
} Visited;

typedef struct Search
{
	Relation	rel;
	List	   *visited;		/* Visited * */
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

static Leads search_from(Search *search, int pid);

/*
 * Does the path, continued to any of these processes, lead back to us?  Then that is the
 * path from now on.
 */
static Leads
search_processes(Search *search, Link *link, List *pids)
{
	ListCell   *cell;
	int			depth = search->depth;
	Leads		leads = LEADS_NOWHERE;

	foreach(cell, pids)
	{
		int			pid = lfirst_int(cell);
		Leads		this_one;

		if (search->depth == search->size)
		{
			search->size = Max(search->size * 2, 8);
			search->links = search->links ?
				repalloc(search->links, search->size * sizeof(Link)) :
				palloc(search->size * sizeof(Link));
		}
		search->links[search->depth++] = *link;
		this_one = pid == MyProcPid ? LEADS_BACK : search_from(search, pid);
		if (this_one == LEADS_BACK)
			return this_one;
		leads = Max(leads, this_one);
		search->depth = depth;
	}
	return leads;
}

/*
 * The same where all have to lead back, for some of them; false: these do not.  One on
 * the path may, since all of its ways have to lead back, too.  The first path is kept.
 */
static bool
search_some(Search *search, Link *link, List *pids, Path *path)
{
	int			depth = search->depth;
	Leads		leads = search_processes(search, link, pids);

	if (leads != LEADS_BACK)
		return leads == LEADS_PERHAPS;
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

/* A waiter for the same key that was visited before; NULL: there is none */
static Visited *
find_visited_key(Search *search, const AlWaiter *waiter)
{
	ListCell   *cell;

	foreach(cell, search->visited)
	{
		Visited    *visited = lfirst(cell);

		if (visited->waiter && visited->waiter->hash == waiter->hash &&
			al_string_equal(al_waiter_key(visited->waiter).name, al_waiter_key(waiter).name))
			return visited;
	}
	return NULL;
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

/* May any of those who share its key let a waiter in? */
static bool
is_let_in_by_any(const AlWaiter *waiter)
{
	bool		limited;

	return waiter->is_shared && al_queue_has_strict(waiter, &limited) && limited;
}

/* Does what a waiter waits for lead back to us?  Then the links are the cycle. */
static Leads
search_from_waiter(Search *search, Link *link, bool all)
{
	int			pid = link->pid;
	Path		path = {0};
	Leads		leads = LEADS_NOWHERE;
	bool		prepared;
	bool		is_free = true; /* nothing is in its way any more */
	List	   *pids;
	ListCell   *cell;

	/* Only a session itself can see that its own transaction is in its way. */
	pids = list_delete_int(al_claim_blockers(link->waiter.hash, &prepared), pid);
	if (pid == MyProcPid ? is_in_own_way(search->rel, &link->waiter) :
		al_claimed_has(link->waiter.hash))
		pids = lappend_int(pids, MyProcPid);
	/* Somebody else may end a prepared transaction. */
	if (all && prepared)
		return LEADS_NOWHERE;
	if (!all)
		leads = search_processes(search, link, pids);
	if (leads == LEADS_BACK)
		return leads;
	foreach(cell, all ? pids : NIL)
	{
		is_free = false;
		if (!search_some(search, link, list_make1_int(lfirst_int(cell)), &path))
			return LEADS_NOWHERE;
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
		if (holding->lifetime == AL_SESSION)
			pids = lappend_int(pids, holding->pid);
		link->fencing_token = holding->fencing_token;
		link->holder = al_display(al_string(holding->holder));
		is_free = false;
		if (all && !search_some(search, link, pids, &path))
			return LEADS_NOWHERE;
		if (!all)
		{
			Leads		this_way = search_processes(search, link, pids);

			if (this_way == LEADS_BACK)
				return this_way;
			leads = Max(leads, this_way);
		}
	}
	if (path.links == NULL)
		return all && !is_free ? LEADS_PERHAPS : leads;
	memcpy(search->links, path.links, path.depth * sizeof(Link));
	search->depth = path.depth;
	return LEADS_BACK;
}

/* Does what a process waits for lead back to us? */
static Leads
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
			return ((Visited *) lfirst(cell))->leads;
	}
	/* Waiters come and go, perhaps faster than we search. */
	if (list_length(search->visited) > 2 * MaxBackends)
		return LEADS_NOWHERE;

	visited = palloc0(sizeof(Visited));
	visited->pid = pid;
	visited->leads = LEADS_PERHAPS;
	search->visited = lappend(search->visited, visited);
	if (al_queue_of_backend(pid, &link.waiter))
	{
		bool		all = is_let_in_by_any(&link.waiter);

		/*
		 * Waiters for a key wait for the same sessions, except upgrades, which share it,
		 * and those who are let in by any of these.
		 */
		if (!link.waiter.is_upgrade && !all)
		{
			const Visited *other = find_visited_key(search, &link.waiter);

			if (other)
				return visited->leads = other->leads;
			visited->waiter = palloc(sizeof(AlWaiter));
			*visited->waiter = link.waiter;
		}
		visited->leads = search_from_waiter(search, &link, all);
	}
	else
		visited->leads = search_processes(search, &link, blocking_processes(pid));

	/* What perhaps led to this one, does not. */
	for (int i = list_length(search->visited) - 1;
		 visited->leads == LEADS_NOWHERE && list_nth(search->visited, i) != visited; i--)
	{
		Visited    *later = list_nth(search->visited, i);

		if (later->leads == LEADS_PERHAPS)
			later->leads = LEADS_NOWHERE;
	}
	return visited->leads;
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
	if (search_from(&first, MyProcPid) != LEADS_BACK)
		return NULL;
	AL_TEST_POINT("cycle-seen");
	if (search_from(&second, MyProcPid) != LEADS_BACK || !same_cycle(&first, &second))
		return NULL;
	AL_TEST_POINT("cycle-confirmed");

	waiters = palloc(second.depth * sizeof(AlWaiter));
	for (int i = 0; i < second.depth; i++)
	{
		if (second.links[i].waiter.id != 0)
			waiters[count++] = second.links[i].waiter;
	}
	if (!al_queue_resign(waiters, count))
		return NULL;
	AL_TEST_POINT("resigned");
	return describe(&second);
}
