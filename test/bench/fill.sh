# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/fill.sh - the fill section of test/bench/run, which sources it: how often pages of
# app_lock are pruned, and how fast a pair is, depending on the table's fillfactor.
#
# Each fillfactor has its own database, in which the same number of keys has been used as in the
# lanes; "70_100" was filled at 70 and set to 100 afterwards. The databases take turns within a
# round, and are not vacuumed, so all pruning is done by clients. The WAL shows the number of
# prunes, and which updates were HOT.

fills=(70 87 100 70_100)
fill_warm=50000

fill_require() {
	[ -e "$("$PG_CONFIG" --sharedir)/extension/pg_walinspect.control" ] ||
		die 'lane fill needs pg_walinspect, which is one of the contrib modules'
}

fill_psql() {
	local fill=$1
	shift
	psql "$@" -d "fill_$fill"
}

fill_start() {
	local fill n tps
	for fill in "${fills[@]}"; do
		as_user "$AL_BIN/createdb" -h "$socket" -U postgres "fill_$fill"
		fill_psql "$fill" -c 'CREATE EXTENSION atomic_lock' \
			-c "SELECT lock_grant_access('app', 'user'), lock_grant_access('app_relaxed', 'user')" \
			-c "ALTER TABLE app_lock SET (fillfactor = ${fill%_*}, autovacuum_enabled = false)" >/dev/null
		fill_psql "$fill" >/dev/null <<-'END'
			SELECT format('SELECT count(*) FROM generate_series(%s, %s) n, LATERAL lock_acquire(''order:'' || n, ttl => ''1 ms'')',
						  n, n + 499)
				FROM generate_series(0, :keys, 500) n
			\gexec
		END
		fill_psql "$fill" -c "ALTER TABLE app_lock SET (fillfactor = ${fill#*_})"
		# Until all pages have been full for the first time
		fill_pgbench "$fill" app_relaxed 8 -t $((fill_warm / 8))
	done
	# WAL records do not tell which process wrote them.
	psql -c 'CREATE EXTENSION pg_walinspect' -c 'ALTER SYSTEM SET autovacuum = off' -c 'SELECT pg_reload_conf()' >/dev/null
}

# fill_pgbench FILL ROLE CLIENTS ARG...: sets n and tps
fill_pgbench() {
	local fill=$1 role=$2 clients=$3
	shift 3
	run_pgbench "fill: $fill" "$AL_SCRATCH/pgbench.out" "$AL_BIN/pgbench" -n -M prepared -h "$socket" -U "$role" \
		-c "$clients" -j $((clients < cpus ? clients : cpus)) -D keys="$keys" -D clients="$clients" "$@" \
		-f "$here/lock_pair.sql" "fill_$fill"
}

# run_fill FILL ROLE CLIENTS ROUND: adds a line to fill.tsv
run_fill() {
	local fill=$1 role=$2 clients=$3 round=$4 n tps begin tokens
	tokens=$(fill_psql "$fill" -c 'SELECT last_value FROM app_lock_fence')
	begin=$(psql -c 'SELECT pg_current_wal_insert_lsn()')
	fill_pgbench "$fill" "$role" "$clients" -T "$duration"
	[ $((tokens + n)) = "$(fill_psql "$fill" -c 'SELECT last_value FROM app_lock_fence')" ] || {
		wrong=yes
		printf '\nWRONG COUNTS at fill factor %s: %s pairs, and another number of tokens\n' "$fill" "$n"
	}
	# Only flushed WAL can be read.
	psql -c "SELECT pg_logical_emit_message(true, 'bench', '')" >/dev/null
	psql -F $'\t' -v begin="$begin" >>"$fill_runs" <<-END
		SELECT '$fill', '$role', $clients, $round, $n, $tps,
			sum(count) FILTER (WHERE type ~ '^Heap2/PRUNE'), sum(count) FILTER (WHERE type ~ '^Heap/HOT_UPDATE'),
			sum(count) FILTER (WHERE type ~ '^Heap/UPDATE')
		FROM pg_get_wal_stats(:'begin', pg_current_wal_flush_lsn(), true) s(type, count);
	END
}

run_fills() {
	local round fill role clients
	step "$rounds rounds of ${#fills[@]} fill factors, $duration s each: $((rounds * $(fill_seconds))) s"
	fill_start
	printf 'fill\trole\tclients\tround\tpairs\tper_s\tprunes\thot\tnot_hot\n' >"$fill_runs"
	for ((round = 1; round <= rounds; round++)); do
		printf 'round %d:' "$round"
		for role in app app_relaxed; do
			for clients in $all_clients; do
				printf ' %s %s' "$role" "$clients"
				for fill in $(growth_turns "$round" "${fills[@]}"); do run_fill "$fill" $role "$clients" "$round"; done
			done
		done
		printf '\n'
	done
	for fill in "${fills[@]}"; do as_user "$AL_BIN/dropdb" -h "$socket" -U postgres "fill_$fill"; done
	psql -c 'ALTER SYSTEM RESET autovacuum' -c 'SELECT pg_reload_conf()' >/dev/null
}

# Seconds of a round
fill_seconds() { echo $((${#fills[@]} * 2 * $(wc -w <<<"$all_clients") * duration)); }

print_fills() {
	step "Acquire and release by the fill factor of the table, medians of $rounds rounds; $setting"
	printf '%-14s %8s %8s %10s %10s %14s %10s\n' '' clients fill per_s to_87 pairs_a_prune not_hot
	awk -F '\t' -v rounds="$rounds" "$awk_median"'
		NR == 1 { next }
		{
			k = $2 SUBSEP $3 SUBSEP $1
			if (!(k in per_s)) order[++lines] = k
			at[k, $4] = $6; per_s[k] = per_s[k] " " $6
			pairs[k] += $5; prunes[k] += $7; hot[k] += $8; cold[k] += $9
		}
		END {
			for (l = 1; l <= lines; l++) {
				k = order[l]; split(k, a, SUBSEP); list = ""
				for (r = 1; r <= rounds; r++) list = list " " at[k, r] / at[a[1] SUBSEP a[2] SUBSEP "87", r]
				printf "  %-12s %8d %8s %10d %10.2f %14.2f %9.1f%%\n", a[1], a[2], a[3], median(per_s[k]), median(list),
					prunes[k] ? pairs[k] / prunes[k] : 0, hot[k] + cold[k] ? 100 * cold[k] / (hot[k] + cold[k]) : 0
			}
		}' "$fill_runs"
}
