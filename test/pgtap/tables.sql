-- Tables, views, types, sequences: columns, constraints, indexes, storage.
--
-- Turns red when: a column changes; an index would prevent HOT updates or use a collation other
-- than C; a table gets a property that our direct writes skip, such as a constraint, default or
-- trigger.
\set ECHO none
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
CREATE EXTENSION IF NOT EXISTS atomic_lock;

CREATE TEMP VIEW member AS
SELECT c.* FROM pg_class c
	JOIN pg_depend d ON (d.classid = 'pg_class'::regclass AND d.objid = c.oid OR d.classid = 'pg_type'::regclass AND d.objid = c.reltype AND c.relkind = 'c')
		AND d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'atomic_lock';
CREATE TEMP VIEW columns AS
SELECT a.attrelid::regclass::text AS rel, a.attnum, a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required
FROM pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped;

SELECT plan(84);

SELECT set_eq('SELECT relname::text, relkind::text FROM member',
	$$VALUES ('app_lock', 'r'), ('lock_audit', 'r'), ('app_lock_fence', 'S'), ('lock_grant', 'c'), ('lock_state', 'c'), ('lock_waiters', 'v'), ('lock_guards', 'v'),
		('lock_stats', 'v'), ('lock_contention', 'v'), ('lock_activity', 'v'), ('app_lock_policy', 'r'), ('app_lock_policy_role', 'r'), ('lock_policies', 'v'), ('lock_history', 'r'),
		('app_lock_queue', 'r'), ('lock_queue', 'v'), ('lock_place', 'c')$$,
	'the relations are as listed');

-- lock_grant
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_grant'),
	ARRAY['acquired boolean', 'status text', 'key text', 'mode text', 'owner text', 'fencing_token bigint',
		'acquired_at timestamp with time zone', 'expires_at timestamp with time zone', 'waited interval', 'holder text', 'ttl_remaining interval',
		'holders integer', 'max_holders integer'],
	'columns of lock_grant, in this order');

-- lock_state, the result of both forms of lock_status
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_state'),
	ARRAY['key text', 'locked boolean', 'mode text', 'owner text', 'holder text', 'fencing_token bigint',
		'acquired_at timestamp with time zone', 'expires_at timestamp with time zone', 'ttl_remaining interval', 'lifetime text',
		'holders integer', 'waiters integer', 'pid integer', 'meta jsonb', 'pending boolean', 'role name', 'closed_until timestamp with time zone', 'queued integer'],
	'columns of lock_state, in this order');

-- lock_waiters
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_waiters'),
	ARRAY['key text', 'place integer', 'holder text', 'since timestamp with time zone', 'blocked_by text', 'mode text', 'pid integer', 'blocking_pid integer'],
	'columns of lock_waiters, in this order');
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_waiters'),
	(SELECT array_agg(n || ' ' || format_type(t, NULL) ORDER BY i) FROM pg_proc, unnest(proargnames, proallargtypes) WITH ORDINALITY u(n, t, i) WHERE oid = 'lock_waiters()'::regprocedure),
	'lock_waiters() has the same columns');
SELECT is_empty($$SELECT name FROM columns WHERE rel = 'lock_waiters' AND name ~ 'owner'$$, 'lock_waiters has no column for owners');
SELECT is_empty($$SELECT refobjid::regclass FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
		WHERE r.ev_class = 'lock_waiters'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> 'lock_waiters'::regclass$$,
	'lock_waiters reads only lock_waiters()');
SELECT is((SELECT reloptions FROM pg_class WHERE oid = 'lock_waiters'::regclass), NULL, 'lock_waiters has no options');

-- lock_guards
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_guards'),
	ARRAY['relation regclass', 'key_template text', 'events text[]', 'state text', 'parent regclass', 'problem text', 'separator text'],
	'columns of lock_guards, in this order');
SELECT is((SELECT array_agg(DISTINCT refobjid::regclass::text) FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
		WHERE r.ev_class = 'lock_guards'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> 'lock_guards'::regclass), NULL,
	'lock_guards reads no user table: the triggers are the truth');
SELECT matches(pg_get_viewdef('lock_guards'), 'FROM \(+pg_trigger t', 'lock_guards reads pg_trigger');
SELECT is((SELECT reloptions FROM pg_class WHERE oid = 'lock_guards'::regclass), NULL, 'lock_guards has no options');

-- lock_stats and lock_contention
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_stats'),
	ARRAY['database name', 'grants bigint', 'regrants bigint', 'refusals bigint', 'timeouts bigint', 'deadlocks bigint', 'releases bigint', 'extends bigint',
		'expirations bigint', 'steals bigint', 'forced bigint', 'sweeps bigint', 'swept bigint', 'waits bigint', 'total_wait interval', 'longest_wait interval', 'since timestamp with time zone', 'guard_refusals bigint'],
	'columns of lock_stats, in this order');
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_contention'),
	ARRAY['key text', 'refusals bigint', 'waits bigint', 'total_wait interval', 'longest_wait interval', 'last_at timestamp with time zone'],
	'columns of lock_contention, in this order');
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = v),
	(SELECT array_agg(n || ' ' || format_type(t, NULL) ORDER BY i) FROM pg_proc, unnest(proargnames, proallargtypes) WITH ORDINALITY u(n, t, i) WHERE oid = (v || '()')::regprocedure),
	v || '() has the same columns as the view') FROM unnest(ARRAY['lock_stats', 'lock_contention']) v;
SELECT is_empty(format($$SELECT refobjid::regclass FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
		WHERE r.ev_class = %L::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> r.ev_class$$, v), v || ' reads only its function') FROM unnest(ARRAY['lock_stats', 'lock_contention']) v;

-- lock_activity
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_activity'),
	ARRAY['key text', 'state text', 'holder text', 'held_for interval', 'time_left interval', 'waiters integer', 'longest_wait interval', 'mode text', 'lifetime text', 'application text', 'pid integer', 'session_state text',
		'expires_at timestamp with time zone', 'role name', 'fencing_token bigint'],
	'columns of lock_activity, in this order');
SELECT is_empty($$SELECT refobjid::regclass FROM pg_depend d JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
		WHERE r.ev_class = 'lock_activity'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid IN ('app_lock'::regclass, 'lock_audit'::regclass)$$,
	'lock_activity reads none of our tables');
SELECT is_empty($$SELECT relname, name FROM member m JOIN columns c ON c.rel = m.relname WHERE m.relkind = 'v' AND c.name ~ 'owner'$$, 'no view shows an owner');
SELECT is((SELECT reloptions FROM pg_class WHERE oid = v::regclass), NULL, v || ' has no options') FROM unnest(ARRAY['lock_stats', 'lock_contention', 'lock_activity', 'lock_policies']) v;

-- policies: the table, its view, and the rules for a key
SELECT is((SELECT array_agg(name || ' ' || type || CASE WHEN required THEN ' required' ELSE '' END ORDER BY attnum) FROM columns WHERE rel = 'app_lock_policy'),
	ARRAY['prefix text required', 'default_ttl_us bigint', 'max_ttl_us bigint', 'max_wait_us bigint', 'max_lifetime_us bigint', 'lock_delay_us bigint', 'min_hold_us bigint',
		'max_holders bigint', 'max_keys_per_role bigint', 'history bigint', 'notify bigint', 'has_roles bigint'],
	'columns of app_lock_policy, in this order');
SELECT is((SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'app_lock_policy'::regclass AND contype = 'p'), 'PRIMARY KEY (prefix)', 'a prefix has at most one policy');
SELECT is((SELECT array_agg(name || ' ' || type || CASE WHEN required THEN ' required' ELSE '' END ORDER BY attnum) FROM columns WHERE rel = 'app_lock_policy_role'),
	ARRAY['prefix text required', 'role regrole required'], 'columns of app_lock_policy_role, in this order');
SELECT is((SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'app_lock_policy_role'::regclass AND contype = 'p'), 'PRIMARY KEY (prefix, role)', 'a policy has each of its roles once');
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_policies'),
	ARRAY['prefix text', 'roles regrole[]', 'default_ttl interval', 'max_ttl interval', 'max_wait interval', 'max_holders integer', 'max_lifetime interval', 'lock_delay interval', 'min_hold interval',
		'max_keys_per_role integer', 'history boolean', 'notify boolean'],
	'columns of lock_policies, in this order');
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY name) FROM columns WHERE rel = 'lock_policies'),
	(SELECT array_agg(n || ' ' || format_type(t, NULL) ORDER BY n) FROM pg_proc, unnest(proargnames, proargtypes::oid[]) u(n, t) WHERE proname = 'lock_set_policy'),
	'columns of lock_policies: the arguments of lock_set_policy()');
SELECT is((SELECT array_agg(n || ' ' || format_type(t, NULL) ORDER BY i) FROM pg_proc, unnest(proargnames, proallargtypes, proargmodes) WITH ORDINALITY u(n, t, m, i) WHERE oid = 'lock_policy(text)'::regprocedure AND m = 'o'),
	(SELECT array_agg(n || ' ' || format_type(t, NULL) ORDER BY i) FROM pg_proc, unnest(proargnames, proargtypes::oid[]) WITH ORDINALITY u(n, t, i) WHERE proname = 'lock_set_policy' AND i > 1) || 'prefixes jsonb'::text,
	'lock_policy() has the parts that lock_set_policy() sets, in its order, and the prefixes they come from');

-- lock_history
SELECT is((SELECT array_agg(name || ' ' || type || CASE WHEN required THEN ' required' ELSE '' END ORDER BY attnum) FROM columns WHERE rel = 'lock_history'),
	ARRAY['key text required', 'mode text required', 'fencing_token bigint required', 'owner_digest text required', 'holder text required', 'role name required', 'client_addr inet', 'application text required',
		'acquired_at timestamp with time zone required', 'ended_at timestamp with time zone', 'ended_by text'],
	'columns of lock_history, in this order');
SELECT is((SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'lock_history'::regclass AND contype = 'p'), 'PRIMARY KEY (key, fencing_token)', 'a grant of a key has one row');
SELECT is((SELECT array_agg(n || ' ' || format_type(t, NULL) ORDER BY i) FROM pg_proc, unnest(proargnames, proallargtypes, proargmodes) WITH ORDINALITY u(n, t, m, i) WHERE proname = 'lock_held_at' AND m = 'o'),
	(SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_history' AND attnum > 1),
	'lock_held_at() has the same columns, without the key');
SELECT is((SELECT array_agg(a.attrelid::regclass || '.' || a.attname ORDER BY a.attrelid, a.attnum) FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid IN ('app_lock_policy'::regclass, 'app_lock_policy_role'::regclass, 'lock_history'::regclass, 'app_lock_queue'::regclass) AND a.attnum > 0 AND a.atttypid = 'text'::regtype AND c.collname = 'C'),
	ARRAY['app_lock_policy.prefix', 'app_lock_policy_role.prefix', 'app_lock_queue.key', 'app_lock_queue.holder', 'app_lock_queue.owner', 'lock_history.key', 'lock_history.owner_digest'], 'prefixes, keys and digests are compared byte by byte');
SELECT is_empty($$SELECT i.indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
		WHERE i.indrelid IN ('app_lock_policy'::regclass, 'lock_history'::regclass, 'app_lock_queue'::regclass) AND (m.amname <> 'btree' OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL OR NOT i.indisvalid OR EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]) AND a.attname ~ '^ended'))$$,
	'indexes of policies, history and tickets are plain B-trees, without the end of a grant');

-- the line: the table, its view, and what lock_enqueue() returns
SELECT is((SELECT array_agg(name || ' ' || type || CASE WHEN required THEN ' required' ELSE '' END ORDER BY attnum) FROM columns WHERE rel = 'app_lock_queue'),
	ARRAY['key text required', 'ticket bigint required', 'expires_at timestamp with time zone required', 'queued_at timestamp with time zone', 'offer_us bigint', 'offered bigint',
		'role oid', 'holder text', 'owner text', 'owner_hash bigint'],
	'columns of app_lock_queue, in this order');
SELECT is((SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'app_lock_queue'::regclass AND contype = 'p'), 'PRIMARY KEY (key, ticket)', 'tickets are unique for a key');
SELECT is((SELECT array_agg(pg_get_indexdef(indexrelid, 1, false) || ' ' || indisunique) FROM pg_index WHERE indrelid = 'app_lock_queue'::regclass AND NOT indisprimary), ARRAY['owner_hash false'], 'tickets are indexed by the hash of their owner');
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_queue'),
	ARRAY['key text', 'place integer', 'holder text', 'queued_at timestamp with time zone', 'offered_until timestamp with time zone', 'expires_at timestamp with time zone', 'offer interval',
		'role name', 'ticket bigint'],
	'columns of lock_queue, in this order');
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_place'),
	ARRAY['status text', 'place integer', 'key text', 'expires_at timestamp with time zone', 'ttl_remaining interval', 'owner text', 'fencing_token bigint', 'ticket bigint', 'holder text'],
	'columns of lock_place, in this order');

-- app_lock: at least these columns
SELECT col_type_is('app_lock', 'key', 'text', 'app_lock.key');
SELECT col_type_is('app_lock', 'owner', 'text', 'app_lock.owner');
SELECT col_type_is('app_lock', 'mode', 'lock_mode', 'app_lock.mode');
SELECT col_type_is('app_lock', 'fencing_token', 'bigint', 'app_lock.fencing_token');
SELECT col_type_is('app_lock', 'acquired_at', 'timestamp with time zone', 'app_lock.acquired_at');
SELECT col_type_is('app_lock', 'expires_at', 'timestamp with time zone', 'app_lock.expires_at');
SELECT col_type_is('app_lock', 'released', 'boolean', 'app_lock.released');
SELECT col_type_is('app_lock', 'holder', 'text', 'app_lock.holder');
SELECT col_type_is('app_lock', 'meta', 'jsonb', 'app_lock.meta');
SELECT col_type_is('app_lock', 'role', 'oid', 'app_lock.role');
SELECT col_type_is('app_lock', 'pid', 'integer', 'app_lock.pid');
SELECT col_type_is('app_lock', 'backend_start', 'timestamp with time zone', 'app_lock.backend_start');
SELECT is((SELECT array_agg(name ORDER BY attnum) FROM columns WHERE rel = 'app_lock' AND attnum > 13), ARRAY['pid', 'backend_start'], 'pid and backend_start are the last columns of app_lock');
SELECT is((SELECT array_agg(e ORDER BY e) FROM unnest(enum_range(NULL::lock_mode)) e), '{exclusive,shared}'::lock_mode[], 'lock_mode has the values exclusive and shared');
SELECT is((SELECT bool_or(required) FROM columns WHERE rel = 'app_lock' AND name IN ('pid', 'backend_start')), false, 'pid and backend_start may be NULL, as in a lease');
SELECT is((SELECT array_agg(name ORDER BY name) FROM columns WHERE rel = 'app_lock' AND required AND name IN ('key', 'mode', 'fencing_token', 'acquired_at', 'expires_at', 'ttl_us', 'released', 'holder')),
	ARRAY['acquired_at', 'expires_at', 'fencing_token', 'holder', 'key', 'mode', 'released', 'ttl_us'], 'columns that every lease has are NOT NULL');

-- uniqueness and indexes
SELECT ok(EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'app_lock'::regclass AND contype IN ('p', 'u') AND NOT condeferrable
		AND conkey[1] = (SELECT attnum FROM columns WHERE rel = 'app_lock' AND name = 'key')),
	'a unique constraint on key, not deferrable, decides between grants');
SELECT is_empty($$SELECT indexrelid::regclass, a.attname FROM pg_index i, unnest(i.indkey::int2[]) k JOIN pg_attribute a ON a.attnum = k AND a.attrelid = 'app_lock'::regclass
		WHERE i.indrelid = 'app_lock'::regclass AND a.attname IN ('fencing_token', 'acquired_at', 'expires_at', 'ttl_us', 'holder', 'owner', 'released', 'meta', 'pid', 'backend_start')$$,
	'no index contains a column that acquire, extend or release changes');
SELECT is_empty($$SELECT indexrelid::regclass FROM pg_index i WHERE i.indrelid = 'app_lock'::regclass
		AND pg_get_expr(indpred, indrelid) ~ '\m(fencing_token|acquired_at|expires_at|ttl_us|holder|owner|released|meta|pid|backend_start)\M'$$,
	'no index has a predicate on such a column');
SELECT is((SELECT array_agg(c.relname::text) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = 'app_lock'::regclass AND c.reloptions = '{deduplicate_items=off}'), '{app_lock_owner_idx}', 'the index of owners does not deduplicate entries');
SELECT is_empty($$SELECT indexrelid::regclass FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
		WHERE i.indrelid = 'app_lock'::regclass AND (m.amname <> 'btree' OR i.indexprs IS NOT NULL OR NOT i.indisvalid)$$,
	'all indexes of app_lock are plain B-trees');
SELECT is((SELECT collname::text FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid = 'app_lock'::regclass AND a.attname = 'key'), 'C', 'key has the collation C');
SELECT is_empty($$SELECT a.attname FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation WHERE a.attrelid = 'app_lock'::regclass AND a.attnum > 0 AND c.collname <> 'C'$$, 'every text column of app_lock has the collation C');
SELECT is_empty($$SELECT i.indexrelid::regclass FROM pg_index i, unnest(i.indcollation::oid[]) o JOIN pg_collation c ON c.oid = o WHERE i.indrelid = 'app_lock'::regclass AND c.collname <> 'C'$$, 'every index on app_lock has the collation C');
SELECT ok((SELECT option_value::int < 100 FROM pg_class c, pg_options_to_table(c.reloptions) WHERE c.oid = 'app_lock'::regclass AND option_name = 'fillfactor'), 'app_lock has a fillfactor below 100, for HOT updates');

-- lock_audit
SELECT is((SELECT array_agg(name || ' ' || type ORDER BY attnum) FROM columns WHERE rel = 'lock_audit'),
	ARRAY['at timestamp with time zone', 'action text', 'key text', 'previous_holder text', 'previous_owner_digest text', 'fencing_token bigint',
		'session_role name', 'acting_role name', 'client_addr inet', 'reason text', 'id uuid'],
	'columns of lock_audit, in this order');
SELECT is((SELECT array_agg(name ORDER BY attnum) FROM columns WHERE rel = 'lock_audit' AND required), ARRAY['at', 'action', 'key', 'session_role', 'acting_role', 'reason', 'id'], 'columns that every audit record has are NOT NULL');
SELECT is((SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'lock_audit'::regclass AND contype = 'p'), 'PRIMARY KEY (id)', 'lock_audit has a primary key');
SELECT is_empty($$SELECT relname FROM member m WHERE relkind = 'r' AND (relreplident <> 'd' OR NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = m.oid AND contype = 'p'))$$, 'all tables have a primary key as replica identity');

-- sequences
SELECT is((SELECT row(format_type(seqtypid, NULL), seqincrement, seqmin, seqmax, seqcache, seqcycle)::text FROM pg_sequence WHERE seqrelid = 'app_lock_fence'::regclass),
	'(bigint,1,1,9223372036854775807,1,f)', 'app_lock_fence never cycles and caches nothing');
SELECT is_empty($$SELECT objid FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = 'app_lock_fence'::regclass AND deptype IN ('a', 'i')$$, 'no column owns a sequence');

-- storage
SELECT is_empty('SELECT relname FROM member WHERE relpersistence <> ''p''', 'all relations are logged');
SELECT is_empty($$SELECT c.relname FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN member m ON m.oid = i.indrelid WHERE c.relpersistence <> 'p'$$, 'all indexes are logged');
SELECT is_empty($$SELECT relname FROM member m JOIN pg_am a ON a.oid = m.relam WHERE relkind = 'r' AND a.amname <> 'heap'$$, 'tables are heaps, whatever default_table_access_method is');
SELECT is_empty($$SELECT tgname FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM member) AND NOT tgisinternal AND tgname NOT IN ('app_lock_policy_changed', 'app_lock_policy_truncated', 'app_lock_keep_own')$$, 'the only triggers are those of policies and for subscriptions');
SELECT is_empty($$SELECT rulename FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM member WHERE relkind <> 'v') OR ev_class IN (SELECT oid FROM member) AND rulename <> '_RETURN'$$, 'there are no rules');
SELECT is_empty($$SELECT relname FROM member WHERE relrowsecurity OR relforcerowsecurity$$, 'there is no row security');
SELECT is_empty($$SELECT conname FROM pg_constraint WHERE conrelid IN (SELECT oid FROM member) AND contype IN ('c', 'f', 'x', 't') AND conname <> 'app_lock_policy_check'$$, 'there is no constraint that our direct writes would skip, except the check of app_lock_policy');
SELECT is_empty($$SELECT adrelid::regclass, pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM member) AND pg_get_expr(adbin, adrelid) <> 'false'$$, 'there is no default that our direct writes would skip');
SELECT is_empty($$SELECT attname FROM pg_attribute WHERE attrelid IN (SELECT oid FROM member) AND (attgenerated <> '' OR attidentity <> '')$$, 'there are no generated columns');
SELECT is_empty($$SELECT inhrelid FROM pg_inherits WHERE inhrelid IN (SELECT oid FROM member) OR inhparent IN (SELECT oid FROM member)$$, 'there is no inheritance');
SELECT is_empty($$SELECT relname FROM member m JOIN pg_extension e ON e.extname = 'atomic_lock' WHERE m.relowner <> e.extowner OR m.relnamespace <> e.extnamespace$$, 'all relations are in the schema of the extension and owned by its owner');

SELECT * FROM finish();
ROLLBACK;
