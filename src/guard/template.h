/*
 * template.h
 *		Key templates.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_GUARD_TEMPLATE_H
#define AL_GUARD_TEMPLATE_H

#include "access/htup.h"
#include "lib/stringinfo.h"
#include "utils/relcache.h"

#include "atomic_lock.h"
#include "base/key.h"
#include "base/path.h"

/* A piece of a template: literal bytes, or a column */
typedef struct AlTemplatePiece
{
	AlString	literal;
	AttrNumber	column;			/* 0: the piece is literal */
	AlPart		part;
} AlTemplatePiece;

/* A template, read for one relation */
typedef struct AlTemplate
{
	Oid			relid;
	int			count;
	AlTemplatePiece *pieces;
	AlString	separator;		/* of paths; empty: keys are no paths */
} AlTemplate;

/* Why a template does not fit a table */
typedef struct AlTemplateProblem
{
	int			sqlstate;
	char	   *message;
	const char *detail;
	const char *hint;
} AlTemplateProblem;

extern bool al_template_read(Oid relid, const char *template, const char *separator,
							 AlTemplate *guard, AlTemplateProblem *problem);
extern void al_template_default(Relation rel, const AttrNumber *columns, int count,
								AlTemplate *guard);
extern void al_template_require(Relation rel, const char *template, const char *separator,
								AlTemplate *guard);
extern void al_template_key(const AlTemplate *guard, Relation rel, HeapTuple row,
							StringInfo key);
extern void al_template_key_of_values(const AlTemplate *guard, Relation rel,
									  const Datum *values, const bool *nulls, StringInfo key);
extern void al_template_path(const AlTemplate *guard, Relation rel, AlString key,
							 AlPath *path);
extern bool al_template_is_same_key(const AlTemplate *guard, Relation rel,
									HeapTuple old_row, HeapTuple new_row);
extern bool al_template_may_see_key(const AlTemplate *guard, Relation rel, Oid role);

#endif							/* AL_GUARD_TEMPLATE_H */
