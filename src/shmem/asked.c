/*-------------------------------------------------------------------------
 *
 * asked.c
 *		How often somebody asks for a key.
 *
 * Model: a role may ask for a key once in a while, from however many sessions.  The hash
 * of both selects a set of a few places, each with the time at which it was taken.  A
 * place is taken by others only when that is over.  Where a set has no such place, the role
 * with the most places in it loses the oldest; if that is the one who asks, the request is
 * refused.  So nobody can make room for more requests for one key by asking for others, or
 * keep other roles from asking.
 *
 * Without shared memory, each session has a set of places of its own.
 *
 * Locking rules: one LWLock, held for a look at one set.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"

#include "atomic_lock.h"
#include "base/clock.h"
#include "shmem/asked.h"

/* A role may ask for a key once in so many microseconds. */
#define PAUSE	INT64CONST(1000000)

#define SETS	512
#define WAYS	8

typedef struct Asked
{
	uint64		tag;			/* hash of key, role and database */
	Oid			role;
	int64		at;				/* by al_monotonic_now(); 0: never */
} Asked;

typedef struct Memory
{
	LWLock		lock;
	Asked		places[SETS][WAYS];
} Memory;

static Memory *memory = NULL;	/* until this process attaches */

static void
init_memory(void *address)
{
	al_shmem_init_lock(&((Memory *) address)->lock);
}

const AlShmemPart al_asked_part = {sizeof(Memory), 0, init_memory, (void **) &memory};

/* The oldest place of the role with the most places in a full set, unless that is "role" */
static Asked *
find_victim(Asked *set, Oid role)
{
	Asked	   *victim = NULL;
	int			most = 0;

	for (int i = 0; i < WAYS; i++)
	{
		int			places = 0;

		for (int j = 0; j < WAYS; j++)
			places += set[j].role == set[i].role;
		if (places > most || (places == most && set[i].at < victim->at))
			victim = &set[i];
		most = Max(most, places);
	}
	return victim->role == role ? NULL : victim;
}

/* Note that a role asks for a key now; false: it did so a moment ago */
bool
al_asked_note(const AlKey *key, Oid role)
{
	static Asked own_set[WAYS];
	uint64		tag = hash_combine64(hash_combine64(key->check, murmurhash32(role)),
									 murmurhash32(MyDatabaseId));
	Asked	   *set = memory ? memory->places[tag % SETS] : own_set;
	Asked	   *place = NULL;
	bool		is_known = false;
	int64		now = al_monotonic_now();

	if (memory)
		LWLockAcquire(&memory->lock, LW_EXCLUSIVE);
	for (int i = 0; i < WAYS; i++)
	{
		if (set[i].at != 0 && now - set[i].at < PAUSE)
			is_known = is_known || set[i].tag == tag;
		else if (place == NULL)
			place = &set[i];
	}
	if (place == NULL)
		place = find_victim(set, role);
	if (is_known)
		place = NULL;
	if (place)
	{
		place->tag = tag;
		place->role = role;
		place->at = now;
	}
	if (memory)
		LWLockRelease(&memory->lock);
	return place != NULL;
}
