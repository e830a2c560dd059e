/*
 * answer.h
 *		Answers of SQL functions.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_API_ANSWER_H
#define AL_API_ANSWER_H

#include "fmgr.h"

#include "atomic_lock.h"
#include "lease/state.h"

/* The number of columns of lock_grant */
#define AL_GRANT_COLUMNS	13

extern Datum al_interval_datum(int64 microseconds);
extern Datum al_database_name(Oid oid);
extern const char *al_status_word(const AlResult *result);
extern void al_grant_columns(const AlKey *key, const AlOwner *owner,
							 const AlResult *result, Datum *values, bool *nulls);
extern Datum al_row_datum(FunctionCallInfo fcinfo, int columns, Datum *values,
						  bool *nulls);
extern Datum al_grant_datum(FunctionCallInfo fcinfo, const AlKey *key,
							const AlOwner *owner, const AlResult *result);

#endif							/* AL_API_ANSWER_H */
