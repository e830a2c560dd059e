/*
 * columns.h
 *		Columns of the tables, in the order of the install script.
 *
 * Copyright (c) 2026, atomic_lock contributors
 */
#ifndef AL_TABLE_COLUMNS_H
#define AL_TABLE_COLUMNS_H

#define Anum_app_lock_fencing_token		1
#define Anum_app_lock_acquired_at		2
#define Anum_app_lock_expires_at		3
#define Anum_app_lock_ttl_us			4
#define Anum_app_lock_slot				5
#define Anum_app_lock_mode				6
#define Anum_app_lock_role				7
#define Anum_app_lock_key				8
#define Anum_app_lock_released			9
#define Anum_app_lock_holder			10
#define Anum_app_lock_owner				11
#define Anum_app_lock_owner_hash		12
#define Anum_app_lock_meta				13
#define Anum_app_lock_pid				14
#define Anum_app_lock_backend_start		15
#define Natts_app_lock					15

#define Anum_lock_audit_at						1
#define Anum_lock_audit_action					2
#define Anum_lock_audit_key						3
#define Anum_lock_audit_previous_holder			4
#define Anum_lock_audit_previous_owner_digest	5
#define Anum_lock_audit_fencing_token			6
#define Anum_lock_audit_session_role			7
#define Anum_lock_audit_acting_role				8
#define Anum_lock_audit_client_addr				9
#define Anum_lock_audit_reason					10
#define Anum_lock_audit_id						11
#define Natts_lock_audit						11

/* The parts of a policy follow each other as in AlPolicyPart. */
#define Anum_policy_prefix		1
#define Anum_policy_first_part	2
#define Natts_policy			12

#define Anum_policy_role_prefix	1
#define Anum_policy_role_role	2
#define Natts_policy_role		2

#define Anum_lock_history_key			1
#define Anum_lock_history_mode			2
#define Anum_lock_history_fencing_token	3
#define Anum_lock_history_owner_digest	4
#define Anum_lock_history_holder		5
#define Anum_lock_history_role			6
#define Anum_lock_history_client_addr	7
#define Anum_lock_history_application	8
#define Anum_lock_history_acquired_at	9
#define Anum_lock_history_ended_at		10
#define Anum_lock_history_ended_by		11
#define Natts_lock_history				11

#define Anum_queue_key			1
#define Anum_queue_ticket		2
#define Anum_queue_expires_at	3
#define Anum_queue_queued_at	4
#define Anum_queue_offer_us		5
#define Anum_queue_offered		6
#define Anum_queue_role			7
#define Anum_queue_holder		8
#define Anum_queue_owner		9
#define Anum_queue_owner_hash	10
#define Natts_queue				10

#endif							/* AL_TABLE_COLUMNS_H */
