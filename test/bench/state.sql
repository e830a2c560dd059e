-- What the server says happened so far: fencing tokens drawn, leases held,
-- changes to the tables of the other lanes.
SELECT (SELECT last_value FROM app_lock_fence),
	(SELECT count(*) FROM lock_status()),
	(SELECT count(*) FROM sql_lock),
	(SELECT sum(n) FROM bench_row),
	n_tup_ins, n_tup_upd, n_tup_del
	FROM pg_stat_all_tables WHERE relid = 'sql_lock'::regclass;
