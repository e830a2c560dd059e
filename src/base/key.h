/*
 * key.h
 *		Keys, and parts of keys.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_KEY_H
#define AL_BASE_KEY_H

#include "fmgr.h"
#include "lib/stringinfo.h"

#include "atomic_lock.h"

typedef struct AlPart
{
	FmgrInfo	output;
	bool		is_plain;		/* the text depends on no setting */
	bool		is_padded;		/* char(n): blanks at the end are dropped */
} AlPart;

extern void al_key_init(AlKey *key, AlString name);
extern void al_key_recheck(const AlKey *key);
extern int	al_key_compare(const AlKey *a, const AlKey *b);
extern AlString al_check_key(AlString name);
extern void al_part_init(AlPart *part, Oid type);
extern void al_part_append(AlPart *part, Datum value, StringInfo key);
extern void al_key_append(StringInfo key, const char *text);

#endif							/* AL_BASE_KEY_H */
