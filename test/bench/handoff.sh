# shellcheck shell=bash disable=SC2154
# test/bench/handoff.sh - the hand-over section of test/bench/run, which sources it: the time
# between a release and the next grant of a key.
#
# Ratios are to pg_advisory_lock, which also has its queue in memory, but neither writes nor
# flushes. Retrying every 100 ms is typical of libraries that keep locks in a table. handoff.c
# describes the measurement.

handoffs=(pg_advisory_lock atomic_lock atomic_lock_named atomic_lock_relaxed poll)
declare -A handoff_title=(
	[pg_advisory_lock]='pg_advisory_lock'
	[atomic_lock]='atomic_lock, grants flushed'
	[atomic_lock_named]='atomic_lock, owner named'
	[atomic_lock_relaxed]='atomic_lock, nothing flushed'
	[poll]='a try every 100 ms'
)

handoff_build() {
	local include lib
	include=$("$PG_CONFIG" --includedir) lib=$("$PG_CONFIG" --libdir)
	[ -f "$include/libpq-fe.h" ] || die "the headers of libpq are missing in $include: install libpq-dev (Debian, Ubuntu), or leave the hand-overs out with WAITERS="
	as_user gcc -O2 -Wall -Wextra "-I$include" "$here/handoff.c" -o "$AL_SCRATCH/handoff" \
		"-L$lib" "-Wl,-rpath,$lib" -lpq || die 'test/bench/handoff.c does not compile'
}

# run_handoff NAME WAITERS ROUND: adds a line to handoff.tsv
run_handoff() {
	local name=$1 waiters=$2 round=$3 role=app line
	[[ $name != *_relaxed ]] || role=app_relaxed
	if ! line=$(as_user "$AL_SCRATCH/handoff" "${name%_relaxed}" "$waiters" "$duration" \
		"host=$socket user=$role dbname=bench"); then
		tail -n 5 "$data.log" >&2
		die "hand-over $name with $waiters waiters has failed"
	fi
	printf '%s\t%s\t%s\t%s\n' "$name" "$waiters" "$round" "$line" >>"$handoff_runs"
}

run_handoffs() {
	local round waiters i name
	step "$rounds rounds of hand-overs with ${all_waiters// /, } waiters, $duration s each: $((rounds * ${#handoffs[@]} * $(wc -w <<<"$all_waiters") * duration)) s"
	printf 'mode\twaiters\tround\thandovers\tp50_us\tp99_us\tmax_us\tinversions\tlongest_wait_us\n' >"$handoff_runs"
	for ((round = 1; round <= rounds; round++)); do
		for waiters in $all_waiters; do
			printf 'round %d, %d waiters:' "$round" "$waiters"
			for ((i = 0; i < ${#handoffs[@]}; i++)); do
				name=${handoffs[$((round % 2 ? i : ${#handoffs[@]} - 1 - i))]}
				printf ' %s' "$name"
				run_handoff "$name" "$waiters" "$round"
			done
			printf '\n'
		done
	done
}

# Medians over the rounds, except the worst maximum and wait, and sums of counts
print_handoffs() {
	local name waiters
	step "Hand-overs, medians of $rounds rounds; $setting"
	printf '%-30s %7s %9s %8s %8s %8s %9s %10s %11s\n' '' waiters handovers p50_ms p99_ms max_ms \
		to_pg_adv inversions max_wait_ms
	for waiters in $all_waiters; do
		for name in "${handoffs[@]}"; do
			awk -F '\t' -v name="$name" -v waiters="$waiters" -v title="${handoff_title[$name]}" '
				'"$awk_median"'
				$2 != waiters { next }
				$1 == "pg_advisory_lock" { base[$3] = $5 }
				$1 == name {
					p50 = p50 " " $5; p99 = p99 " " $6; at[$3] = $5
					n += $4; inversions += $8
					if ($7 > max) max = $7
					if ($9 > wait) wait = $9
				}
				END {
					for (r in at) ratio = ratio " " at[r] / base[r]
					printf "  %-28s %7d %9d %8.3f %8.3f %8.1f %9.1f %10d %11.0f\n", title, waiters, n,
						median(p50) / 1000, median(p99) / 1000, max / 1000, median(ratio), inversions, wait / 1000
				}' "$handoff_runs"
		done
		say
	done
	say 'Times are from the release sent to the answer with the next grant; to_pg_adv is how'
	say 'many times that of pg_advisory_lock.  An inversion is a grant to somebody who asked'
	say 'after somebody who still waits: with many who poll one of them comes soon, but'
	say 'hardly the one who has waited longest, and max_wait_ms is what some of them wait.'
}
