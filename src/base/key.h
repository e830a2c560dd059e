/*
 * key.h
 *		Keys, and parts of keys.
 */
#ifndef AL_BASE_KEY_H
#define AL_BASE_KEY_H

#include "fmgr.h"

#include "atomic_lock.h"

/* How values of a type become parts of keys */
typedef struct AlPart
{
	FmgrInfo	output;
	bool		is_plain;
} AlPart;

extern void al_key_init(AlKey *key, AlString name);
extern void al_key_recheck(const AlKey *key);
extern int	al_key_compare(const AlKey *a, const AlKey *b);
extern AlString al_check_key(AlString name);
extern void al_part_init(AlPart *part, Oid type);
extern char *al_part_text(AlPart *part, Datum value);

#endif							/* AL_BASE_KEY_H */
