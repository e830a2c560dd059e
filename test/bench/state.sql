-- The server's counters, one per line: fencing tokens drawn, leases held, changes to the tables
-- of the other lanes.
SELECT 'tokens', last_value FROM app_lock_fence
UNION ALL
SELECT 'held', count(*) FROM lock_status()
UNION ALL
SELECT 'sum', sum(n) FROM bench_row
UNION ALL
SELECT 'versions', last_value FROM locks_rvn
UNION ALL
SELECT title || '_' || what, n
	FROM (VALUES ('sql', 'sql_lock'), ('plpgsql', 'plpgsql_lock'), ('laravel', 'cache_locks'),
			('shedlock', 'shedlock'), ('spring', 'int_lock'), ('pglock', 'locks')) t(title, name),
		pg_stat_all_tables s,
		LATERAL (VALUES ('inserted', n_tup_ins), ('updated', n_tup_upd), ('deleted', n_tup_del)) c(what, n)
	WHERE relid = name::regclass;
