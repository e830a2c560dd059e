/*-------------------------------------------------------------------------
 *
 * str.c
 *		Strings of bytes that are not terminated.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: keys, owners and labels are bytes, without case folding, normalization or
 * collation.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "atomic_lock.h"
#include "base/compat.h"
#include "base/errors.h"
#include "base/str.h"

/* The result points into the datum, which must be detoasted. */
AlString
al_string(text *datum)
{
	AlString	string;

	string.data = VARDATA_ANY(datum);
	string.len = VARSIZE_ANY_EXHDR(datum);
	return string;
}

AlString
al_cstring(const char *cstring)
{
	AlString	string = {cstring, strlen(cstring)};

	return string;
}

bool
al_string_equal(AlString a, AlString b)
{
	return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

bool
al_string_begins(AlString string, AlString prefix)
{
	return string.len >= prefix.len && memcmp(string.data, prefix.data, prefix.len) == 0;
}

/* Strings are ordered by their bytes; a prefix comes before longer strings. */
int
al_string_compare(AlString a, AlString b)
{
	int			order = memcmp(a.data, b.data, Min(a.len, b.len));

	return order != 0 ? order : a.len - b.len;
}

text *
al_string_text(AlString string)
{
	return cstring_to_text_with_len(string.data, string.len);
}

/* Are 0x80 to 0x9f control characters in the encoding of the database? */
static bool
has_c1_bytes(void)
{
	int			encoding = GetDatabaseEncoding();

	return (encoding >= PG_LATIN1 && encoding <= PG_LATIN10) ||
		(encoding >= PG_ISO_8859_5 && encoding <= PG_ISO_8859_8);
}

/*
 * The length of the whole characters in the first "size" bytes.  In an invalid string, the last
 * character may claim more bytes than there are.
 */
int
al_clip_length(AlString string, int size)
{
	Assert(size >= 0 && string.len >= 0);
	return Min(pg_mbcliplen(string.data, string.len, size), string.len);
}

/*
 * A key or label for a message, in new memory.  Control characters, which could forge lines in a
 * log or move the cursor of a terminal, become \xNN.
 */
char *
al_display(AlString string)
{
	StringInfoData buf;
	bool		utf8 = GetDatabaseEncoding() == PG_UTF8;
	bool		c1_bytes = has_c1_bytes();

	initStringInfo(&buf);
	for (int i = 0; i < string.len; i++)
	{
		unsigned char c = string.data[i];

		if (c < 0x20 || c == 0x7f || (c1_bytes && c >= 0x80 && c < 0xa0))
			appendStringInfo(&buf, "\\x%02x", c);
		else if (utf8 && c == 0xc2 && i + 1 < string.len &&
				 (unsigned char) string.data[i + 1] < 0xa0)
			appendStringInfo(&buf, "\\x%02x", (unsigned char) string.data[++i]);
		else
			appendStringInfoChar(&buf, c);
	}
	return buf.data;
}

bool
al_is_text(AlString string)
{
	int			i = 0;
	uint64		eight;

	/* Most strings are ASCII, which is valid in each encoding. */
	for (; i + 8 <= string.len; i += 8)
	{
		memcpy(&eight, string.data + i, 8);
		if (eight & UINT64CONST(0x8080808080808080))
			break;
	}
	while (i < string.len && !IS_HIGHBIT_SET(string.data[i]))
		i++;
	return i == string.len || pg_verify_mbstr(GetDatabaseEncoding(), string.data, string.len, true);
}

/*
 * Raise 22021 unless a string is valid in the encoding of the database.  The server does not
 * verify values from a connection request or another database, or role names.  The message calls
 * the string "what" and shows none of its bytes: it may be an owner.
 */
AlString
al_check_encoding(AlString string, const char *what)
{
	if (!al_is_text(string))
		ereport(ERROR,
				(al_errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
				 errmsg("invalid byte sequence for encoding \"%s\" in %s",
						GetDatabaseEncodingName(), what)));
	return string;
}

/* The name of a role, with "?" for each invalid byte; NULL if the role was dropped */
char *
al_role_name(Oid role)
{
	char	   *name = GetUserNameFromId(role, true);
	int			left = name ? strlen(name) : 0;

	if (name && al_is_text(al_cstring(name)))
		return name;
	for (char *c = name; left > 0;)
	{
		int			len = pg_encoding_verifymbchar(GetDatabaseEncoding(), c, left);

		if (len < 0)
		{
			*c = '?';
			len = 1;
		}
		c += len;
		left -= len;
	}
	return name;
}

/* Raise 22023 unless a string has min to max bytes, and 22021 as al_check_encoding() does */
AlString
al_check_text(AlString string, const char *what, int min, int max)
{
	Assert(min >= 0 && min <= max);
	if (string.len < min || string.len > max)
		ereport(ERROR,
				(al_errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be %d to %d bytes long", what, min, max),
				 errdetail("It has %d bytes.", string.len)));
	return al_check_encoding(string, what);
}
