/*
 * trigger.h
 *		The guard of a table.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_GUARD_TRIGGER_H
#define AL_GUARD_TRIGGER_H

#include "base/compat.h"
#include "guard/template.h"

/* Triggers fire in the order of their names; these names sort last. */
#define AL_ROW_TRIGGER		"~atomic_lock_guard"
#define AL_TRUNCATE_TRIGGER	"~atomic_lock_guard_truncate"

extern const struct Trigger *al_find_trigger(Relation rel, const char *name);
extern bool al_template_of_guard(Relation rel, const struct Trigger *guard,
								 AlTemplate *template);
extern void al_require_last_trigger(Relation rel, const struct Trigger *guard);
AL_NORETURN extern void al_refuse_truncate(Relation rel);

#endif							/* AL_GUARD_TRIGGER_H */
