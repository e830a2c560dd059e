/*
 * catalog.h
 *		Where the objects of the extension are in this database.
 */
#ifndef AL_TABLE_CATALOG_H
#define AL_TABLE_CATALOG_H

#include "storage/lockdefs.h"
#include "utils/relcache.h"

extern void al_catalog_init(void);
extern char *al_schema_name(void);
extern Datum al_mode_value(bool is_shared);
extern Relation al_open_app_lock(LOCKMODE lockmode);
extern Relation al_open_policies(LOCKMODE lockmode);
extern Relation al_open_policy_roles(LOCKMODE lockmode);
extern Relation al_open_history(LOCKMODE lockmode);
extern Relation al_open_queue(LOCKMODE lockmode);
extern void al_prevent_writing(const char *function);
extern Relation al_open_for_writing(const char *function);
extern bool al_is_installed(void);
extern Relation al_open_now(bool *missing);
extern Relation al_open_fence(LOCKMODE lockmode);
extern Relation al_open_audit_now(void);
extern Relation al_open_audit(LOCKMODE lockmode);
extern bool al_is_monitor(void);

#endif							/* AL_TABLE_CATALOG_H */
