# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/readers.sh - the readers section of test/bench/run, which sources it: the cost of
# many other sharers of a key, and of a limit.
#
#   share     one more owner shares the key, and releases it
#   document  a path below the key, which is a folder: one more owner shares the key
#   refused   an exclusive request is refused
#   status    lock_status(key)
#   is_held   lock_is_held(key, owner) of one of the sharers
#   limited   share, with max_holders.  A seat is free for each client, so each finds
#             one.
#   unlimited the same key without max_holders
#   full      share, with max_holders, while all seats are taken
#
# The first five lanes run with each number of READERS, and ratios are to the lowest number; the
# others run with each of LIMITS, and the ratio is that of "limited" to "unlimited". A VACUUM
# precedes each run, ratios are taken within a round, and nothing is flushed.

all_readers=${READERS-1 1000 10000} all_limits=${LIMITS-10 100} reader_clients=2
for number in $all_limits; do
	[[ $number =~ ^[1-9][0-9]*$ && $number -gt $reader_clients ]] || die "LIMITS must be numbers above $reader_clients, not \"$number\""
done
declare -A reader_title=(
	[share]='share and release'
	[document]='a path below it, and release'
	[refused]='refused, asked for exclusively'
	[status]='lock_status(key)'
	[is_held]='lock_is_held(key, owner)'
	[unlimited]='share and release, no limit'
	[limited]='share and release, max_holders'
	[full]='refused, no place left'
)

readers_script() { as_user tee "$AL_SCRATCH/src/test/bench/readers_$1.sql" >/dev/null; }

# The key of a lane is named after its number of sharers.
readers_scripts() {
	local lane key="'readers:' || :readers || '/'"
	for lane in share unlimited; do
		readers_script $lane <<-END
			SELECT owner FROM lock_try_acquire($key, mode => 'shared') \\gset
			SELECT lock_release($key, :owner);
		END
	done
	readers_script document <<-END
		SELECT max(owner) AS owner FROM lock_try_acquire_path($key || :client_id) \\gset
		SELECT lock_release_path($key || :client_id, :owner);
	END
	readers_script limited <<-END
		SELECT owner FROM lock_try_acquire($key, mode => 'shared', max_holders => :limit) \\gset
		SELECT lock_release($key, :owner);
	END
	readers_script full <<-END
		SELECT acquired, holder, expires_at FROM lock_try_acquire($key, mode => 'shared', max_holders => :limit);
	END
	readers_script refused <<-END
		SELECT acquired, holder, expires_at FROM lock_try_acquire($key);
	END
	readers_script status <<-END
		SELECT locked, holder, expires_at FROM lock_status($key);
	END
	readers_script is_held <<-END
		\\set n random(1, :readers)
		SELECT lock_is_held($key, 'reader:' || :readers || ':' || :n);
	END
}

# The runs of a round, as LANE:READERS:LIMIT. Runs to be compared follow each other.
readers_runs() {
	local lane number
	for lane in share document refused status is_held; do
		for number in $all_readers; do echo "$lane:$number:"; done
	done
	for number in $all_limits; do
		printf '%s\n' "unlimited:$((number - reader_clients)):" "limited:$((number - reader_clients)):$number" "full:$number:$number"
	done
}

# Tokens drawn and leases held
readers_state() { psql -d readers -c 'SELECT (SELECT last_value FROM app_lock_fence), (SELECT count(*) FROM lock_status())'; }

# run_reader LANE READERS LIMIT ROUND: adds a line to readers.tsv
run_reader() {
	local lane=$1 readers=$2 limit=$3 round=$4 out=$AL_SCRATCH/pgbench.out n tps before after granted=0
	psql -d readers -c 'VACUUM app_lock'
	before=$(readers_state)
	rm -f "$AL_SCRATCH"/t/readers.*
	run_pgbench "readers: $lane" "$out" "$AL_BIN/pgbench" -n -M prepared -h "$socket" -U app_relaxed \
		-c $reader_clients -j $((reader_clients < cpus ? reader_clients : cpus)) -T "$duration" \
		-D readers="$readers" -D limit="${limit:-0}" -l --sampling-rate=0.2 --log-prefix="$AL_SCRATCH/t/readers" \
		-f "$here/readers_$lane.sql" readers
	after=$(readers_state)
	case $lane in
		share | unlimited | limited) granted=$n ;;
		document) granted=$((2 * n)) ;;
	esac
	[ "$((${before% *} + granted)) ${before#* }" = "$after" ] || {
		wrong=yes
		printf '\nWRONG COUNTS in %s with %s readers after %s transactions: tokens and leases were %s, and are %s\n' \
			"$lane" "$readers" "$n" "$before" "$after"
	}
	printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$lane" "$readers" "$limit" "$round" "$n" "$tps" \
		"$(percentiles readers)" "${reader_title[$lane]}" >>"$readers_runs"
}

run_readers() {
	local round run i all lane readers limit
	mapfile -t all < <(readers_runs)
	step "$rounds rounds of ${#all[@]} runs with readers, $duration s each: $((rounds * ${#all[@]} * duration)) s"
	readers_scripts
	as_user "$AL_BIN/createdb" -h "$socket" -U postgres readers
	# Each number once
	psql -d readers -f "$here/readers.sql" \
		-v readers="{$(cut -d : -f 2 < <(printf '%s\n' "${all[@]}") | sort -nu | paste -s -d ,)}"
	psql -c CHECKPOINT
	printf 'lane\treaders\tmax_holders\tround\ttransactions\tper_s\tp50_us\tp99_us\ttitle\n' >"$readers_runs"
	for ((round = 1; round <= rounds; round++)); do
		printf 'round %d:' "$round"
		for ((i = 0; i < ${#all[@]}; i++)); do
			run=${all[$((round % 2 ? i : ${#all[@]} - 1 - i))]}
			IFS=: read -r lane readers limit <<<"$run"
			printf ' %s_%s' "$lane" "$readers"
			run_reader "$lane" "$readers" "$limit" "$round"
		done
		printf '\n'
	done
	as_user "$AL_BIN/dropdb" -h "$socket" -U postgres readers
}

# times(lane, readers): the ratio to the run it is compared with, or "" if there is none
# shellcheck disable=SC2016 # they are those of awk
awk_readers='
	function times(lane, readers,    other, r, list) {
		other = lane == "limited" ? "unlimited" SUBSEP readers : lane SUBSEP fewest
		if (lane == "full" || lane == "unlimited") return ""
		for (r = 1; r <= rounds; r++)
			if (((lane, readers, r) in at) && ((other, r) in at)) list = list " " at[lane, readers, r] / at[other, r]
		return median(list)
	}
	function ms(list) { list = median(list); return list == "" ? "" : sprintf("%.3f", list / 1000) }
	NR == 1 { next }
	{
		if (!(($1, $2) in per_s)) order[++lines] = $1 SUBSEP $2
		if ($1 == "share" && (fewest == "" || $2 < fewest)) fewest = $2
		per_s[$1, $2] = per_s[$1, $2] " " $6
		p50[$1, $2] = p50[$1, $2] " " $7
		p99[$1, $2] = p99[$1, $2] " " $8
		limit[$1, $2] = $3; title[$1] = $9; at[$1, $2, $4] = $6
	}'

print_readers() {
	step "Keys with many readers, medians of $rounds rounds; $setting"
	printf '%-36s %8s %12s %10s %9s %9s %8s\n' "$reader_clients clients, nothing flushed" readers max_holders per_s p50_ms p99_ms times
	awk -F '\t' -v rounds="$rounds" "$awk_median$awk_readers"'
		END {
			for (l = 1; l <= lines; l++) {
				split(order[l], k, SUBSEP)
				ratio = times(k[1], k[2])
				printf "  %-34s %8d %12s %10d %9s %9s %8s\n", title[k[1]], k[2], limit[order[l]], median(per_s[order[l]]),
					ms(p50[order[l]]), ms(p99[order[l]]), ratio == "" ? "" : sprintf("%.2f", ratio)
			}
		}' "$readers_runs"
	say
	say 'The last column is to the same with the fewest readers, and with max_holders to sharing the'
	say 'same key without it.'
}
