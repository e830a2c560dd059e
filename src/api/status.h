/*
 * status.h
 *		The state of a key, for functions that show it.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_API_STATUS_H
#define AL_API_STATUS_H

#include "nodes/pg_list.h"

#include "atomic_lock.h"
#include "claim/holding.h"

typedef struct AlKeyView
{
	AlKey		key;			/* set by the caller */
	TimestampTz now;
	List	   *holdings;		/* live ones, AlHolding *: the caller's, and some others */
	int			holders;		/* number of live holdings, up to AL_MOST_COUNTED */
	const AlHolding *shown;		/* the caller's, or the one that lasts longest; without
								 * holders, what an unfinished transaction has written; or NULL */
	bool		is_own;			/* its owner is atomic_lock.owner */
	int			pid;			/* of an unfinished transaction that claims the key; 0:
								 * prepared; -1: no transaction claims it */
	int			queued;			/* number of tickets */
} AlKeyView;

extern int	al_waiter_compare(const void *a, const void *b);
extern void al_key_view(AlKeyView *view);

#endif							/* AL_API_STATUS_H */
