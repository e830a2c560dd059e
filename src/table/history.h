/*
 * history.h
 *		Rows of lock_history: each grant of a key, and its end.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_HISTORY_H
#define AL_TABLE_HISTORY_H

#include "utils/relcache.h"

#include "atomic_lock.h"
#include "claim/holding.h"

typedef enum AlEndedBy
{
	AL_ENDED_RELEASED,
	AL_ENDED_EXPIRED,			/* or its session had ended, see al_history_cause() */
	AL_ENDED_FORCED,
	AL_ENDED_STOLEN,
	AL_ENDED_TRANSFERRED,
	AL_ENDED_CONVERTED,
	AL_ENDED_SESSION,
	AL_ENDED_TRANSACTION
} AlEndedBy;

extern AlEndedBy al_history_cause(const AlHolding *holding, AlEndedBy ended_by);
extern const char *al_history_word(const AlHolding *holding, AlEndedBy ended_by);
extern void al_history_begin(const AlKey *key, const AlHolding *holding, TimestampTz at);
extern void al_history_end(const AlKey *key, const AlHolding *holding, TimestampTz at,
						   AlEndedBy ended_by);
extern char *al_history_find_end(const AlKey *key, AlString owner, int64 token,
								 TimestampTz *ended_at);
extern int64 al_history_trim(Relation app_lock, int64 max_rows, TimestampTz *from);

#endif							/* AL_TABLE_HISTORY_H */
