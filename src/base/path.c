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

AlString
al_check_separator(AlString separator)
{
	al_check_text(separator, "separator", 1, AL_MAX_SEPARATOR_BYTES);
	if (memchr(separator.data, '\\', separator.len))
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("separator must not contain a backslash")));
	return separator;
}

/* Add a key that ends at "key_end"; its last part is from "start" to "end" */
static void
add_part(AlPath *path, int start, int end, int key_end)
{
	if (start == end)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("parts of a lock path must not be empty")));
	if (path->count == AL_MAX_PATH)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a lock path must not have more than %d parts", AL_MAX_PATH)));
	path->ends[path->count++] = key_end;
}

/* Split a valid path.  A separator at its beginning belongs to the first part.  Raises 22023. */
void
al_path_split(AlString name, AlString separator, AlPath *path)
{
	int			start = al_string_begins(name, separator) ? separator.len : 0;
	int			next;

	path->name = name;
	path->count = 0;
	for (int i = start; i < name.len; i = next)
	{
		AlString	rest = {name.data + i, name.len - i};

		if (al_string_begins(rest, separator))
		{
			next = i + separator.len;
			add_part(path, start, i, next);
			start = next;
			continue;
		}
		next = i + (*rest.data == '\\' && rest.len > 1);
		next += pg_encoding_mblen(GetDatabaseEncoding(), name.data + next);
	}
	path->is_folder = start == name.len && path->count > 0;
	if (!path->is_folder)
		add_part(path, start, name.len, name.len);
	Assert(path->count > 0 && path->ends[path->count - 1] == name.len);
}

AlString
al_path_key(const AlPath *path, int i)
{
	Assert(i >= 0 && i < path->count);
	return (AlString) {path->name.data, path->ends[i]};
}
