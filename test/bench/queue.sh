# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/queue.sh - the queue section of test/bench/run, which sources it: the cost of
# waiting without a connection, and of events. queue.c describes the measurement.
#
#   hand-overs  PEOPLE users want a key, over four connections: with tickets and a
#               listener, waiting in calls, and polling
#   line        a release, a new ticket and its renewal, with PLACES tickets and none
#   events      acquire and release by app_relaxed, with a policy that asks for events
#
# The session that measures the line flushes nothing, so that a release is comparable with a
# write that is not flushed either.

all_people=${PEOPLE-300} all_places=${PLACES-10 10000}
queue_modes=(queue queue_relaxed calls poll)
declare -A queue_title=(
	[queue]='places, four connections, a listener'
	[queue_relaxed]='the same, nothing flushed'
	[calls]='waiting in calls, three at a time'
	[poll]='a try every 5 ms on each connection'
	[line_release]='release'
	[line_enqueue]='a new place, at the end'
	[line_renew]='its renewal'
	[line_write]='UPDATE of a row'
	[plain]='acquire and release, no events'
	[notify]='... with events'
)

queue_build() {
	local include lib
	include=$("$PG_CONFIG" --includedir) lib=$("$PG_CONFIG" --libdir)
	as_user gcc -O2 -Wall -Wextra "-I$include" "$here/queue.c" -o "$AL_SCRATCH/queue" \
		"-L$lib" "-Wl,-rpath,$lib" -lpq || die 'test/bench/queue.c does not compile'
}

# run_queue MODE NUMBER ROLE ROUND: adds lines to queue.tsv
run_queue() {
	local mode=$1 number=$2 role=$3 round=$4 out=$AL_SCRATCH/queue.out
	[[ $mode != *_relaxed ]] || role=app_relaxed
	as_user "$AL_SCRATCH/queue" "${mode%_relaxed}" "$number" "host=$socket user=$role dbname=bench" >"$out" || {
		tail -n 5 "$data.log" >&2
		die "queue $mode $number has failed"
	}
	awk -v mode="$mode" -v number="$number" -v round="$round" -v OFS='\t' \
		'{ print (mode == "line" ? "line_" $1 : mode), number, round, $2, $3, $4, $5, $6 }' "$out" >>"$queue_runs"
}

# run_queue_events LANE ROUND: pairs, with and without events, of one client
run_queue_events() {
	local lane=$1 round=$2 out=$AL_SCRATCH/pgbench.out n tps
	rm -f "$AL_SCRATCH"/t/queue.*
	run_pgbench "queue: $lane" "$out" "$AL_BIN/pgbench" -n -M prepared -h "$socket" -U app_relaxed \
		-c 2 -j 2 -T "$duration" -l --log-prefix="$AL_SCRATCH/t/queue" -f "$here/queue_$lane.sql" bench
	sort -n -k 3,3 "$AL_SCRATCH"/t/queue.* | awk -v mode="$lane" -v round="$round" -v n="$n" -v tps="$tps" -v OFS='\t' '
		{ t[NR] = $3 }
		END { print mode, 0, round, n, t[int(NR * 0.5) + 1], t[int(NR * 0.9) + 1], t[NR], tps }' >>"$queue_runs"
}

run_queues() {
	local round mode lane number
	step "$rounds rounds of $all_people hand-overs through a line, and of a line of ${all_places:-no} places"
	queue_build
	for lane in plain notify; do
		as_user tee "$here/queue_$lane.sql" >/dev/null <<-END
			\\set n random(0, 9999) * 2 + :client_id
			SELECT owner FROM lock_acquire('$lane:' || :n) \\gset
			SELECT lock_release('$lane:' || :n, :owner);
		END
	done
	psql -c "ALTER SYSTEM SET atomic_lock.max_queue_places = 100000" -c 'SELECT pg_reload_conf()' >/dev/null
	printf 'mode\tnumber\tround\tn\tp50_us\tp90_us\tmax_us\tovertaken\n' >"$queue_runs"
	for ((round = 1; round <= rounds; round++)); do
		printf 'round %d:' "$round"
		for mode in "${queue_modes[@]}"; do
			printf ' %s' "$mode"
			run_queue "$mode" "$all_people" app "$round"
		done
		for number in 0 $all_places; do
			printf ' line_%s' "$number"
			run_queue line "$number" app_relaxed "$round"
			psql -c 'TRUNCATE app_lock_queue' -c 'VACUUM app_lock'
		done
		psql -c "SELECT lock_set_policy('notify:', notify => true)" >/dev/null
		for lane in plain notify; do
			printf ' %s' "$lane"
			# The policy exists in both cases.
			run_queue_events "$lane" "$round"
		done
		psql -c "SELECT lock_drop_policy('notify:')" >/dev/null
		printf '\n'
	done
}

print_queues() {
	step "Waiting without a connection, medians of $rounds rounds; $setting"
	awk -F '\t' -v names="$(queue_titles)" "$awk_median"'
		BEGIN { m = split(names, list, "|"); for (i = 1; i < m; i += 2) titles[list[i]] = list[i + 1] }
		NR == 1 { next }
		{
			k = $1 SUBSEP $2
			if (!(k in n)) order[++lines] = k
			n[k] += $4; p50[k] = p50[k] " " $5; p90[k] = p90[k] " " $6; over[k] += $8
		}
		END {
			printf "%-44s %8s %8s %9s %9s %10s\n", "", "number", "n", "p50_ms", "p90_ms", "overtaken"
			for (l = 1; l <= lines; l++) {
				split(order[l], f, SUBSEP)
				printf "  %-42s %8d %8d %9.3f %9.3f %10s\n", titles[f[1]], f[2], n[order[l]], median(p50[order[l]]) / 1000,
					median(p90[order[l]]) / 1000, f[1] ~ /^(queue|queue_relaxed|poll)$/ ? over[order[l]] : ""
			}
		}
		' "$queue_runs"
	say
	say 'A hand-over is from the release sent to the answer with the next grant.  Overtaken are those'
	say 'who came before somebody who got the key earlier.'
}

queue_titles() {
	local mode
	for mode in "${!queue_title[@]}"; do printf '%s|%s|' "$mode" "${queue_title[$mode]}"; done
}
