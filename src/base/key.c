/*-------------------------------------------------------------------------
 *
 * key.c
 *		Keys, and how a value becomes a part of a key.
 *
 * Copyright (c) 2026, atomic_lock contributors
 *
 * Model: lock_key(), guards and lock_fetch() make their keys here, so the same values
 * make the same key everywhere.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "utils/float.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "atomic_lock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/key.h"
#include "base/partition.h"
#include "base/str.h"

/* Fill in a key with its hash; raises 42704 if the extension is not installed */
void
al_key_init(AlKey *key, AlString name)
{
	AlHash		hash;

	al_hash_for(AL_HASH_KEYS, name, &hash);
	key->name = name;
	key->hash = hash.words[0];
	key->check = hash.words[1];
}

/*
 * Raise 55000 if the hash of a key has changed: while app_lock was closed, the extension may have
 * been created again, with another secret.
 */
void
al_key_recheck(const AlKey *key)
{
	AlKey		now;

	al_key_init(&now, key->name);
	if (now.hash != key->hash || now.check != key->check)
		ereport(ERROR,
				(al_errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"atomic_lock\" was created again during the call"),
				 errhint("Retry the statement.")));
}

int
al_key_compare(const AlKey *a, const AlKey *b)
{
	return al_string_compare(a->name, b->name);
}

/*
 * Raises 22023 for a key that is empty or too long, 22021 for one that is invalid in the encoding
 * of the database, LK010 for one of another server.
 */
AlString
al_check_key(AlString name)
{
	al_check_text(name, "lock key", 1, AL_MAX_KEY_BYTES);
	if (al_is_elsewhere(name))
		al_raise_partition(name, true);
	return name;
}

/* Is the text of a type's values independent of the session's settings? */
static bool
is_plain(Oid type)
{
	switch (getBaseType(type))
	{
		case BOOLOID:
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case NUMERICOID:
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case NAMEOID:
		case UUIDOID:
		case UNKNOWNOID:
			return true;
		default:
			return get_typtype(getBaseType(type)) == TYPTYPE_ENUM;
	}
}

void
al_part_init(AlPart *part, Oid type)
{
	Oid			output;
	bool		is_varlena;

	getTypeOutputInfo(type, &output, &is_varlena);
	fmgr_info(output, &part->output);
	part->is_plain = is_plain(type);
	part->is_padded = getBaseType(type) == BPCHAROID;
}

static void
set_for_output(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}

/* The text of a value, by the output function of its type under fixed settings */
static char *
part_text(AlPart *part, Datum value)
{
	char	   *text;
	int			nest_level;

	if (part->is_plain)
		return OutputFunctionCall(&part->output, value);

	nest_level = NewGUCNestLevel();
	set_for_output("DateStyle", "ISO");
	set_for_output("IntervalStyle", "postgres");
	set_for_output("TimeZone", "UTC");
	set_for_output("bytea_output", "hex");
	set_for_output("quote_all_identifiers", "off");
	set_for_output("lc_monetary", "C");
	set_for_output("search_path", "pg_catalog, pg_temp");
	if (extra_float_digits < 1)
		set_for_output("extra_float_digits", "1");
	text = OutputFunctionCall(&part->output, value);
	AtEOXact_GUC(true, nest_level);
	return text;
}

/* Append a part, or a piece, with ":" and "\" escaped: different parts make different keys */
void
al_key_append(StringInfo key, const char *text)
{
	for (;;)
	{
		/* Neither byte is part of another character in any server encoding. */
		Size		plain = strcspn(text, ":\\");

		appendBinaryStringInfo(key, text, (int) plain);
		text += plain;
		if (*text == '\0')
			return;
		appendStringInfoChar(key, '\\');
		appendStringInfoChar(key, *text++);
	}
}

void
al_part_append(AlPart *part, Datum value, StringInfo key)
{
	char	   *text = part_text(part, value);

	for (char *end = text + strlen(text); part->is_padded && end > text && end[-1] == ' ';)
		*--end = '\0';
	al_key_append(key, text);
}
