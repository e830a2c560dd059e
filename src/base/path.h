/*
 * path.h
 *		Paths: a key with the folders above it.
 */
#ifndef AL_BASE_PATH_H
#define AL_BASE_PATH_H

#include "atomic_lock.h"

#define AL_MAX_PATH				32	/* keys of a path */
#define AL_MAX_SEPARATOR_BYTES	8

typedef struct AlPath
{
	AlString	name;
	bool		is_folder;		/* there may be keys below it */
	int			count;			/* keys */
	int			ends[AL_MAX_PATH];	/* the length of each */
} AlPath;

extern AlString al_check_separator(AlString separator);
extern void al_path_split(AlString name, AlString separator, AlPath *path);
extern AlString al_path_key(const AlPath *path, int i);

#endif							/* AL_BASE_PATH_H */
