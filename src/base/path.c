/*-------------------------------------------------------------------------
 *
 * path.c
 *		Paths: a key and the folders above it.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: a folder is the beginning of a key, up to and including a separator.  So each key
 * of a path begins with the previous one, and the keys are sorted by their bytes.  A
 * backslash escapes the next character, as in the parts of lock_key().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/path.h"
#include "base/str.h"

bool
al_is_separator(AlString separator)
{
	return separator.len > 0 && separator.len <= AL_MAX_SEPARATOR_BYTES &&
		memchr(separator.data, '\\', separator.len) == NULL;
}

/* Return a valid separator; raise 22023 or 22021 for an invalid one */
AlString
al_check_separator(AlString separator)
{
	al_check_text(separator, "separator", 1, AL_MAX_SEPARATOR_BYTES);
	if (!al_is_separator(separator))
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("separator must not contain a backslash")));
	return separator;
}

/*
 * Add a key that ends at "key_end"; its last part is from "start" to "end".  Returns NULL, or
 * why the path is invalid.
 */
static const char *
add_part(AlPath *path, int start, int end, int key_end)
{
	if (start == end)
		return "parts of a lock path must not be empty";
	if (path->count == AL_MAX_PATH)
		return psprintf("a lock path must not have more than %d parts", AL_MAX_PATH);
	path->ends[path->count++] = key_end;
	return NULL;
}

/*
 * Split a path, which is valid text.  A separator at its beginning belongs to the first part.
 * Returns NULL, or why the path is invalid, in words that do not show the path.
 */
const char *
al_path_try_split(AlString name, AlString separator, AlPath *path)
{
	const char *problem = NULL;
	int			start = al_string_begins(name, separator) ? separator.len : 0;
	int			next;

	path->name = name;
	path->count = 0;
	for (int i = start; problem == NULL && i < name.len; i = next)
	{
		AlString	rest = {name.data + i, name.len - i};

		if (al_string_begins(rest, separator))
		{
			next = i + separator.len;
			problem = add_part(path, start, i, next);
			start = next;
			continue;
		}
		next = i + (*rest.data == '\\' && rest.len > 1);
		next += pg_encoding_mblen(GetDatabaseEncoding(), name.data + next);
	}
	path->is_folder = start == name.len && path->count > 0;
	if (problem == NULL && !path->is_folder)
		problem = add_part(path, start, name.len, name.len);
	Assert(problem || path->ends[path->count - 1] == name.len);
	return problem;
}

/* The same; raises 22023 for an invalid path */
void
al_path_split(AlString name, AlString separator, AlPath *path)
{
	const char *problem = al_path_try_split(name, separator, path);

	if (problem)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg_internal("%s", problem)));
}

AlString
al_path_key(const AlPath *path, int i)
{
	Assert(i >= 0 && i < path->count);
	return (AlString) {path->name.data, path->ends[i]};
}
