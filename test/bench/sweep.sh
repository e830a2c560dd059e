# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/sweep.sh - the sweep section of test/bench/run, which sources it: how long the
# background worker takes to delete expired leases, the effect on acquires and releases of other
# keys, and the cost of a sweep that finds nothing.
#
# "Before" and "during" use the same rows in the table, first without a sweep, then with the
# worker. "During" counts the pairs that ended within the sweep. If the worker needs several
# visits, the time between them counts, too.

sweep_clients=4
declare -A sweep_title=(
	[before]='acquire and release, nobody sweeps'
	[during]='the same while the worker sweeps'
)

# sweep_psql DATABASE ARG...
sweep_psql() {
	local database=$1
	shift
	psql "$@" -d "$database"
}

# sweep_interval VALUE: sets the worker's interval; it starts at once
sweep_interval() {
	psql -c "ALTER SYSTEM SET atomic_lock.sweep_databases = 'sweep_expired'" \
		-c "ALTER SYSTEM SET atomic_lock.sweep_interval = '$1'" -c 'SELECT pg_reload_conf()' >/dev/null
}

# sweep_database NAME: creates one with 10000 keys that have been used before
sweep_database() {
	as_user "$AL_BIN/createdb" -h "$socket" -U postgres "$1"
	sweep_psql "$1" -c 'CREATE EXTENSION atomic_lock' -c "SELECT lock_grant_access('app', 'user')" >/dev/null
	sweep_psql "$1" >/dev/null <<-'END'
		SELECT format('SELECT count(lock_release(key, owner)) FROM generate_series(%s, %s) n, LATERAL lock_acquire(''order:'' || n)',
					  n, n + 499)
			FROM generate_series(0, 10000, 500) n
		\gexec
	END
}

# sweep_fill DATABASE PREFIX ROWS TTL: locks ROWS keys
sweep_fill() {
	local script=$AL_SCRATCH/fill.sql
	as_user tee "$script" >/dev/null <<-END
		\\set i :i + 1
		SELECT count(*) FROM generate_series(0, 499) AS n,
			LATERAL lock_acquire('$2:' || ((:i - 1) * 500 + n) * :clients + :client_id, ttl => '$4');
	END
	as_user "$AL_BIN/pgbench" -n -M prepared -h "$socket" -U postgres -c 2 -j 2 -t $(($3 / 1000)) \
		-D i=0 -D clients=2 -f "$script" "$1" >"$AL_SCRATCH/pgbench.out" 2>&1 || {
		cat "$AL_SCRATCH/pgbench.out" >&2
		die "$3 keys could not be locked"
	}
}

sweep_clock() { psql -c 'SELECT extract(epoch FROM clock_timestamp())'; }

# sweep_pairs DATABASE SECONDS: runs pairs, and records their durations
sweep_pairs() {
	if ! as_user "$AL_BIN/pgbench" -n -M prepared -h "$socket" -U app \
		-c $sweep_clients -j $((sweep_clients < cpus ? sweep_clients : cpus)) -T "$2" -D keys=10000 -D clients=$sweep_clients \
		-l --log-prefix="$AL_SCRATCH/t/sweep" -f "$here/lock_pair.sql" "$1" >"$AL_SCRATCH/pgbench.out" 2>&1; then
		cat "$AL_SCRATCH/pgbench.out" >&2
		tail -n 5 "$data.log" >&2
		die 'pairs beside the sweep have failed'
	fi
	cat "$AL_SCRATCH"/t/sweep.* >>"$AL_SCRATCH/sweep.log"
	rm -f "$AL_SCRATCH"/t/sweep.*
}

# sweep_percentiles FROM TO: pairs per second, median and 99th percentile in microseconds, of
# the pairs that ended in this time
sweep_percentiles() {
	awk -v from="$1" -v to="$2" '{ at = $5 + $6 / 1000000; if (at >= from && at <= to) print $3 }' "$AL_SCRATCH/sweep.log" |
		sort -n | awk -v OFS='\t' -v seconds="$(awk -v a="$1" -v b="$2" 'BEGIN { print b - a }')" '
			{ us[NR] = $1 }
			END { if (NR) print NR / seconds, us[int((NR - 1) * 0.5) + 1], us[int((NR - 1) * 0.99) + 1]; else print "", "", "" }'
}

# sweep_check WHAT QUERY EXPECTED
sweep_check() {
	local got
	got=$(sweep_psql sweep_expired -c "$2")
	[ "$got" != "$3" ] || return 0
	wrong=yes
	printf '\nWRONG COUNTS in the sweep: %s should be %s, and are %s\n' "$1" "$3" "$got"
}

# The worker's progress
sweep_swept() {
	psql -c "SELECT coalesce(max(swept), 0) FROM lock_stats WHERE database = 'sweep_expired'"
}

run_sweep_expired() {
	local round=$1 from start to swept end before during pairs
	printf 'round %d: %d leases expire' "$round" "$sweep_rows"
	sweep_database sweep_expired
	swept=$(sweep_swept)
	sweep_fill sweep_expired expired "$sweep_rows" '1 ms'
	# Flush the writes of the filling, so that later measurements do not pay for them.
	psql -c CHECKPOINT
	: >"$AL_SCRATCH/sweep.log"

	printf ', pairs beside them'
	: >"$AL_SCRATCH/sweep_pairs_go"
	# In slices, since the length of the sweep is unknown. The first slice contains all of a quick
	# one.
	while [ -e "$AL_SCRATCH/sweep_pairs_go" ]; do sweep_pairs sweep_expired 15; done &
	pairs=$!
	sleep 1
	from=$(sweep_clock)
	sleep 8
	start=$(sweep_clock)
	printf ', and beside the sweep'
	sweep_interval '1 min'
	end=$((SECONDS + 600))
	while [ $(($(sweep_swept) - swept)) -lt "$sweep_rows" ]; do
		[ $SECONDS -lt $end ] || die "$sweep_rows rows are not removed within 10 minutes"
		kill -0 $pairs 2>/dev/null || die 'pairs beside the sweep have ended'
		sleep 0.2
	done
	to=$(sweep_clock)
	rm -f "$AL_SCRATCH/sweep_pairs_go"
	wait $pairs || die 'pairs beside the sweep have failed'
	sweep_interval 0
	before=$(sweep_percentiles "$from" "$start")
	during=$(sweep_percentiles "$start" "$to")
	sweep_check 'rows left' "SELECT count(*) FROM app_lock WHERE key LIKE 'expired:%'" 0
	sweep_check 'expirations' "SELECT expirations FROM lock_stats WHERE database = current_database()" "$sweep_rows"
	printf 'expired\t%s\t%s\t%s\t%s\n' "$round" "$(awk -v a="$start" -v b="$to" 'BEGIN { print b - a }')" \
		"$before" "$during" >>"$sweep_runs"
	as_user "$AL_BIN/dropdb" -h "$socket" -U postgres sweep_expired
	printf '\n'
}

# The first sweep is of a table that has not been read since it was filled.
run_sweep_live() {
	local round out=$AL_SCRATCH/sweep.out
	printf '%d leases that are live' "$sweep_rows"
	sweep_database sweep_live
	sweep_fill sweep_live live "$sweep_rows" '24 hours'
	psql -c CHECKPOINT
	for ((round = 0; round <= 5; round++)); do
		printf '%s' "$([ $round = 0 ] && echo ', a sweep that finds nothing:')"
		sweep_psql sweep_live -c '\timing on' -c 'SELECT lock_sweep()' >"$out"
		[ "$(head -n 1 "$out")" = 0 ] || [ "$(grep -cx 0 "$out")" = 1 ] || {
			wrong=yes
			printf '\nWRONG: a sweep has removed live leases\n'
		}
		awk -v OFS='\t' -v round=$round '/^Time:/ { print "live", round, $2 / 1000 }' "$out" >>"$sweep_runs"
		printf ' %s ms' "$(awk '/^Time:/ { printf "%d", $2 }' "$out")"
	done
	as_user "$AL_BIN/dropdb" -h "$socket" -U postgres sweep_live
	printf '\n'
}

run_sweeps() {
	local round sweep_rounds=$((rounds < 3 ? rounds : 3))
	step "Sweeps of $sweep_rows leases, $sweep_rounds rounds"
	printf 'what\tround\tseconds\tper_s_before\tp50_before_us\tp99_before_us\tper_s_during\tp50_during_us\tp99_during_us\n' >"$sweep_runs"
	run_sweep_live
	for ((round = 1; round <= sweep_rounds; round++)); do run_sweep_expired $round; done
}

print_sweeps() {
	local when
	step "Sweeps of $sweep_rows leases, medians; $setting"
	awk -F '\t' '
		'"$awk_median"'
		$1 == "expired" { rows = rows " " $3; if ($3 > worst) worst = $3 }
		$1 == "live" && $2 == 0 { first = $3 }
		$1 == "live" && $2 > 0 { none = none " " $3 }
		END {
			printf "  %-40s %8.1f s, the longest %.1f s\n", "removed by the worker, all expired", median(rows), worst
			printf "  %-40s %8.3f s, the first %.3f s\n", "lock_sweep() that finds all live", median(none), first
		}' "$sweep_runs"
	printf '\n%-42s %10s %9s %9s\n' "$sweep_clients clients" per_s p50_ms p99_ms
	for when in before during; do
		awk -F '\t' -v at="$([ $when = before ] && echo 4 || echo 7)" -v title="${sweep_title[$when]}" '
			'"$awk_median"'
			$1 == "expired" { n = n " " $at; p50 = p50 " " $(at + 1); p99 = p99 " " $(at + 2) }
			END { printf "  %-40s %10d %9.3f %9.3f\n", title, median(n), median(p50) / 1000, median(p99) / 1000 }' "$sweep_runs"
	done
}
