/*
 * sharers.h
 *		Rows of the shared holdings of a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_SHARERS_H
#define AL_TABLE_SHARERS_H

#include "nodes/pg_list.h"
#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"

struct SnapshotData;

/* How many live holdings of a key are counted, unless a limit is higher */
#define AL_MOST_COUNTED		100

typedef struct AlRows
{
	AlHolding	exclusive;		/* the row in slot 0, live or ended; or none */
	List	   *shared;			/* rows in other slots, AlHolding * */
	bool		is_complete;	/* the list has all of them */
	int			more;			/* how many live ones are not in the list */
} AlRows;

typedef struct AlSeats
{
	int			held;			/* live holdings that others can see */
	int			pending;		/* rows of unfinished transactions that may add to them */
	AlHolding	one_pending;	/* one of those, with its process; or none */
	TimestampTz soonest;		/* the earliest end of the "held" ones; DT_NOEND: none */
	AlHolding	first;			/* its end frees a seat; only if held >= limit */
} AlSeats;

extern List *al_sharers_of_owner(Relation rel, const AlKey *key, const AlOwner *owner,
								 struct SnapshotData *given);
extern void al_sharers_look(Relation rel, const AlKey *key, int32 first_slot, bool all,
							struct SnapshotData *given, AlRows *rows);
extern const AlHolding *al_sharers_find_token(const AlRows *rows, int64 fencing_token);
extern void al_sharers_note_over(const AlKey *key, ItemPointer tid);
extern List *al_sharers_noted(Relation rel, const AlKey *key);
extern List *al_sharers_over(Relation rel, const AlKey *key);
extern int32 al_sharers_new_slot(Relation rel, const AlKey *key, int64 fencing_token);
extern void al_sharers_count(Relation rel, const AlKey *key, int limit, bool is_claimed,
							 AlSeats *seats);

#endif							/* AL_TABLE_SHARERS_H */
