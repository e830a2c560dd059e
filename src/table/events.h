/*
 * events.h
 *		Events: messages about a key that listeners get by NOTIFY.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_EVENTS_H
#define AL_TABLE_EVENTS_H

#include "datatype/timestamp.h"

#include "atomic_lock.h"

typedef struct AlEvent
{
	const char *word;
	const text *holder;			/* label; NULL: the event concerns no single holder */
	int64		fencing_token;	/* 0: none */
	Oid			by;				/* the acting role; 0: none, the clock did it */
	const text *from;			/* label of the caller that sends a message; or NULL */
	const text *reason;			/* reason or message; or NULL */
	TimestampTz until;			/* 0: none */
	int64		ticket;			/* 0: none */
} AlEvent;

extern bool al_events_wait;

extern bool al_event_is_wanted(const AlKey *key);
extern char *al_event_channel(const AlKey *key);
extern void al_event(const AlKey *key, const AlEvent *event);
extern bool al_events_any(void);
extern bool al_events_begin(void);
extern void al_events_commit(void);
extern void al_events_forget(void);
extern void al_events_subabort(int level);
extern void al_events_subcommit(int level);

#endif							/* AL_TABLE_EVENTS_H */
