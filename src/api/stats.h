/*
 * stats.h
 *		What is counted, as people see it.
 */
#ifndef AL_API_STATS_H
#define AL_API_STATS_H

extern Datum al_database_name(Oid oid);

#endif							/* AL_API_STATS_H */
