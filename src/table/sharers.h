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

/* So many live holdings of a key are counted, where nobody asks for more */
#define AL_MOST_COUNTED		100

/* The rows of a key that one look has found */
typedef struct AlRows
{
	AlHolding	exclusive;		/* the row in slot 0, live or over; or none */
	List	   *shared;			/* rows in other slots, AlHolding * */
	bool		is_complete;	/* the list has them all */
	int			more;			/* live ones that are not in the list */
} AlRows;

/* Who is in the way of one more sharer where no more than a number may share */
typedef struct AlSeats
{
	int			held;			/* live holdings that others can see */
	int			pending;		/* rows of unfinished transactions that may add to them */
	AlHolding	one_pending;	/* one of those, with the process; or none */
	TimestampTz soonest;		/* when the first of those held ends */
	AlHolding	first;			/* when it ends, there is a seat; only if held >= limit */
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
