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

#define QUOTED_BYTES	40

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
 * The bytes of the first character of a string, if it is a control character, or one of
 * Unicode that separates lines or changes the direction of text; or 0.  A terminal may take
 * text in SQL_ASCII for UTF-8.
 */
static int
control_length(AlString string, bool c1_bytes)
{
	const unsigned char *c = (const unsigned char *) string.data;
	bool		utf8 = GetDatabaseEncoding() == PG_UTF8 || GetDatabaseEncoding() == PG_SQL_ASCII;

	if (c[0] < 0x20 || c[0] == 0x7f || (c1_bytes && c[0] >= 0x80 && c[0] < 0xa0))
		return 1;
	if (!utf8 || string.len < 2)
		return 0;
	if ((c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) || (c[0] == 0xd8 && c[1] == 0x9c))
		return 2;
	if (string.len < 3 || c[0] != 0xe2)
		return 0;
	/* U+200E, U+200F, U+2028 to U+202E; U+2066 to U+2069 */
	return (c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xa8 && c[2] <= 0xae))) ||
		(c[1] == 0x81 && c[2] >= 0xa6 && c[2] <= 0xa9) ? 3 : 0;
}

/*
 * Must a byte of a literal be escaped?  A second blank, or else padding could make a line of a
 * terminal of the rest; and what an encoding that only clients have may turn into a backslash
 * or a quote.
 */
static bool
is_risky(AlString string, int i)
{
	return (string.data[i] == ' ' && i > 0 && string.data[i - 1] == ' ') ||
		(IS_HIGHBIT_SET(string.data[i]) && !PG_VALID_BE_ENCODING(pg_get_client_encoding()));
}

/*
 * A string in new memory, for a place between two characters "quote": for a message (0), a
 * sentence (") or a literal of SQL (').  Each byte of a control character becomes \xNN, and so
 * do " in a sentence and risky bytes of a literal, which has ' and \ doubled.
 */
static char *
escape(AlString string, char quote)
{
	StringInfoData buf;
	bool		c1_bytes = has_c1_bytes();

	initStringInfo(&buf);
	for (int i = 0; i < string.len;)
	{
		char		c = string.data[i];
		AlString	rest = {string.data + i, string.len - i};
		int			length = (quote == '"' && c == quote) || (quote == '\'' && is_risky(string, i)) ?
			1 : control_length(rest, c1_bytes);

		for (int j = 0; j < length; j++)
			appendStringInfo(&buf, "\\x%02x", (unsigned char) string.data[i + j]);
		if (length == 0 && quote == '\'' && (c == quote || c == '\\'))
			appendStringInfoChar(&buf, c);
		if (length == 0)
			appendStringInfoChar(&buf, c);
		i += Max(length, 1);
	}
	return buf.data;
}

/*
 * A key or label for a message.  Control characters could forge lines in a log, or move the
 * cursor of a terminal.
 */
char *
al_display(AlString string)
{
	return escape(string, 0);
}

/* A key, label or name for a sentence: in double quotes, and shortened to QUOTED_BYTES */
char *
al_quote(AlString string)
{
	AlString	whole = al_cstring(escape(string, '"'));
	int			length = al_clip_length(whole, QUOTED_BYTES);

	return psprintf("\"%.*s%s\"", length, whole.data, length < whole.len ? "..." : "");
}

/*
 * A string as a literal of SQL, on one line.  It has the same value whatever
 * standard_conforming_strings is.
 */
char *
al_literal(AlString string)
{
	char	   *escaped = escape(string, '\'');

	return psprintf("%s'%s'", strchr(escaped, '\\') ? "E" : "", escaped);
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
