/*
 * tickets.h
 *		Rows of app_lock_queue: tickets, offers, and tickets that are void.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_TICKETS_H
#define AL_TABLE_TICKETS_H

#include "nodes/pg_list.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"

#include "atomic_lock.h"

typedef struct AlTicket
{
	ItemPointerData tid;
	AlString	key;
	int64		number;			/* rises in the order of arrival; 0: none */
	TimestampTz queued_at;
	TimestampTz expires_at;
	int64		offer;			/* for how long the key will be offered, in microseconds */
	TimestampTz offered_until;	/* end of its offer, perhaps past; 0: no offer */
	bool		is_pending;		/* its transaction is not committed yet */
	Oid			role;
	text	   *holder;
	text	   *owner;
} AlTicket;

typedef struct AlLine
{
	AlTicket	first;			/* its owner may take the key before all others */
	bool		is_offered;		/* the key is offered to the first ticket */
	TimestampTz until;			/* the end of the offer, or else of the first ticket */
	AlTicket	lapsed;			/* a ticket whose offer was not taken; number 0: none */
	AlTicket	mine;			/* the ticket of the owner in question; number 0: none */
} AlLine;

extern bool al_tickets_may_be(void);
extern bool al_tickets_is_pending(const AlKey *key);
extern bool al_tickets_look(const AlKey *key, const AlOwner *owner, AlLine *line);
extern int	al_tickets_count(const AlKey *key, int64 before, Oid role, int *of_role);
extern List *al_tickets_list(AlString prefix, bool is_key, bool dirty, int limit);
extern void al_ticket_insert(const AlKey *key, AlTicket *ticket);
extern bool al_ticket_delete(const AlTicket *ticket);
extern bool al_tickets_drop(const AlKey *key, const AlOwner *owner);
extern bool al_ticket_offer(const AlKey *key, const AlTicket *ticket, TimestampTz until);
extern void al_ticket_lapse(const AlKey *key, const AlTicket *ticket);
extern List *al_tickets_sweep(text **from, int64 max_keys, int64 max_rows, TimestampTz now,
							  int64 *removed, TimestampTz *next_due);

#endif							/* AL_TABLE_TICKETS_H */
