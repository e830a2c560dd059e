/*
 * str.h
 *		Strings of bytes that are not terminated.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_BASE_STR_H
#define AL_BASE_STR_H

#include "atomic_lock.h"
#include "base/compat.h"

/* The result points into the datum, which must be detoasted. */
static inline AlString
al_string(text *datum)
{
	return (AlString) {VARDATA_ANY(datum), VARSIZE_ANY_EXHDR(datum)};
}

static inline AlString
al_cstring(const char *cstring)
{
	return (AlString) {cstring, strlen(cstring)};
}

static inline bool
al_string_equal(AlString a, AlString b)
{
	return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

extern bool al_string_begins(AlString string, AlString prefix);
extern int	al_string_compare(AlString a, AlString b);
extern text *al_string_text(AlString string);
extern int al_clip_length(AlString string, int size);
extern char *al_display(AlString string);
extern char *al_quote(AlString string);
extern char *al_literal(AlString string);
extern bool al_is_text(AlString string);
extern AlString al_check_encoding(AlString string, const char *what);
extern AlString al_check_text(AlString string, const char *what, int min, int max);
extern char *al_role_name(Oid role);

#endif							/* AL_BASE_STR_H */
