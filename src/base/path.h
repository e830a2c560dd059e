/*
 * path.h
 *		Paths: a key and the folders above it.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_PATH_H
#define AL_BASE_PATH_H

#include "atomic_lock.h"

#define AL_MAX_PATH				32	/* maximum number of keys in a path */
#define AL_MAX_SEPARATOR_BYTES	8

typedef struct AlPath
{
	AlString	name;
	bool		is_folder;		/* the last key ends with the separator */
	int			count;			/* number of keys */
	int			ends[AL_MAX_PATH];	/* length of each key */
} AlPath;

extern bool al_is_separator(AlString separator);
extern AlString al_check_separator(AlString separator);
extern const char *al_path_try_split(AlString name, AlString separator, AlPath *path);
extern void al_path_split(AlString name, AlString separator, AlPath *path);
extern AlString al_path_key(const AlPath *path, int i);

#endif							/* AL_BASE_PATH_H */
