# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/hotset.sh - the hot set section of test/bench/run, which sources it: many clients
# compete for ten keys. Each client locks one of them, waiting as long as necessary, releases
# it, and takes the next.
#
# Libraries that keep locks in a table retry after a pause, taken from their sources. The
# hand-written SQL runs with several pauses. ShedLock does not wait, and cirello's pglock sleeps
# 20 s, too long to compare. hotset.c describes the measurement, and fails if two clients hold
# one key at once.

hotsets=()
declare -A hot_peer hot_pause hot_role hot_durable hot_title

# hot NAME DURABLE PEER PAUSE ROLE TITLE
hot() {
	hotsets+=("$1")
	hot_durable[$1]=$2 hot_peer[$1]=$3 hot_pause[$1]=$4 hot_role[$1]=$5 hot_title[$1]=$6
}

hot atomic_lock durable atomic_lock 0 app 'atomic_lock'
hot sql_at_once durable sql 0 app 'SQL, tried at once'
hot sql_1ms durable sql 1 app 'SQL, tried every ms'
hot sql_10ms durable sql 10 app 'SQL, tried every 10 ms'
hot sql_100ms durable sql 100 app 'SQL, tried every 100 ms'
hot laravel durable laravel 250 app 'Laravel block(), every 250 ms'
hot spring durable spring 100 app 'Spring lock(), every 100 ms'
hot redis_always durable redis_always 0 app 'Redis always flushed, at once'
hot redis_always_100ms durable redis_always 100 app 'Redis always flushed, every 100 ms'
hot pg_advisory_lock relaxed pg_advisory_lock 0 app 'pg_advisory_lock'
hot atomic_lock_relaxed relaxed atomic_lock 0 app_relaxed 'atomic_lock, nothing flushed'
hot sql_relaxed relaxed sql 0 app_relaxed 'SQL, nothing flushed, at once'
hot redis_default relaxed redis_default 0 app 'Redis, default, at once'
hot redis_default_100ms relaxed redis_default 100 app 'Redis, default, every 100 ms'

# Leaves out those without a server
hotset_choose() {
	local name chosen=()
	for name in "${hotsets[@]}"; do
		[[ $name == redis_* ]] && ! peer_is_there "${hot_peer[$name]}" || chosen+=("$name")
	done
	hotsets=("${chosen[@]}")
}

# run_hotset NAME CLIENTS ROUND: adds a line to hotset.tsv
run_hotset() {
	local name=$1 clients=$2 round=$3 line
	if [[ ${hot_peer[$name]} == redis_* ]]; then
		line=$(peer_client "${hot_peer[$name]}" hot "$clients" -p "${hot_pause[$name]}") || line=
	else
		line=$(as_user "$AL_SCRATCH/hotset" -p "${hot_pause[$name]}" hot "${hot_peer[$name]}" "$clients" "$duration" \
			"host=$socket user=${hot_role[$name]} dbname=bench") || line=
	fi
	if [ -z "$line" ]; then
		tail -n 5 "$data.log" >&2
		die "hot set $name with $clients clients has failed"
	fi
	printf '%s\t%s\t%s\t%s\t\t%s\n' "$name" "$clients" "$round" "$line" "${hot_title[$name]}" >>"$hotset_runs"
}

# The number of locks in all tables
hotset_locked() {
	psql -c 'SELECT (SELECT count(*) FROM lock_status()), (SELECT count(*) FROM sql_lock),
		(SELECT count(*) FROM cache_locks), (SELECT count(*) FROM int_lock)'
}

run_hotsets() {
	local round clients i name before after
	step "$rounds rounds of ten keys that ${all_hotset// / and } clients want, $duration s each: $((rounds * ${#hotsets[@]} * $(wc -w <<<"$all_hotset") * duration)) s"
	printf 'lane\tclients\tround\tpairs\tper_s\tp50_us\tp99_us\tinversions\ttitle\n' >"$hotset_runs"
	before=$(hotset_locked)
	for ((round = 1; round <= rounds; round++)); do
		for clients in $all_hotset; do
			printf 'round %d, %d clients:' "$round" "$clients"
			for ((i = 0; i < ${#hotsets[@]}; i++)); do
				name=${hotsets[$((round % 2 ? i : ${#hotsets[@]} - 1 - i))]}
				printf ' %s' "$name"
				run_hotset "$name" "$clients" "$round"
			done
			printf '\n'
		done
	done
	after=$(hotset_locked)
	[ "$before" != "$after" ] || return 0
	wrong=yes
	printf '\nWRONG COUNTS after the hot set: locks in the tables were %s, and are %s\n' "$before" "$after"
}

print_hotsets() {
	local name clients durable
	step "Ten keys that many want, medians of $rounds rounds; $setting"
	for durable in durable relaxed; do
		printf '\n%-38s %8s %10s %9s %9s %12s\n' "$([ $durable = durable ] && echo 'Grants flushed' || echo 'Nothing flushed')" \
			clients per_s p50_ms p99_ms atomic_lock
		for clients in $all_hotset; do
			for name in "${hotsets[@]}"; do
				[ "${hot_durable[$name]}" = $durable ] || continue
				awk -F '\t' -v name="$name" -v clients="$clients" -v title="${hot_title[$name]}" \
					-v base="$([ $durable = durable ] && echo atomic_lock || echo atomic_lock_relaxed)" '
					'"$awk_median"'
					$2 != clients { next }
					$1 == base { ours[$3] = $5 }
					$1 == name { n = n " " $5; p50 = p50 " " $6; p99 = p99 " " $7; at[$3] = $5 }
					END {
						for (r in at) ratio = ratio " " ours[r] / at[r]
						printf "  %-36s %8d %10d %9.3f %9.3f %11.2fx\n", title, clients, median(n),
							median(p50) / 1000, median(p99) / 1000, median(ratio)
					}' "$hotset_runs"
			done
		done
	done
	say
	say 'per_s counts acquires with their releases, the percentiles are of the wait for a grant, and'
	say 'the last column is how many times as many there were with atomic_lock, the same flushed.'
}
