# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/policies.sh - the policies section of test/bench/run, which sources it: the cost of
# policies for acquires, releases and refusals.
#
#   none      acquire and release without policies
#   few       the same, with a hundred policies
#   many      the same, with ten thousand
#   history   the same, with one policy, which asks for history
#   flushed, flushed_history   none and history with flushed commits
#   refused   lock_acquire of a key that another owner holds
#   read      a session reads all policies
#
# Commits are flushed in the lanes named so only. All lanes use the same keys, and a policy
# rules each key of "few", "many" and "history". Refusals run beside ROWS leases of others. A
# VACUUM precedes each run, and ratios are taken within a round.

policy_lanes=(none few many history flushed flushed_history refused)
policy_clients=2 policy_keys=100000 policy_rows=${ROWS-1000000}
declare -A policy_title=(
	[none]='acquire and release, no policies'
	[few]='... a hundred policies'
	[many]='... ten thousand policies'
	[history]='... a policy with history'
	[flushed]='acquire and release, flushed'
	[flushed_history]='... a policy with history'
	[refused]='refused, as it is held'
)
# The lane that a lane is compared with
declare -A policy_base=([few]=none [many]=none [history]=none [flushed_history]=flushed)

policies_psql() { psql -d policies "$@"; }

# policies_set LANE: creates the policies of this lane
policies_set() {
	case $1 in
		few) policies_psql -c "SELECT lock_set_policy('tenant-' || n, '1 min', '1 hour', max_lifetime => '1 day') FROM generate_series(100, 199) n" ;;
		many) policies_psql -c "SELECT lock_set_policy('tenant-' || n || ':', '1 min', '1 hour', max_lifetime => '1 day') FROM generate_series(10000, 19999) n" ;;
		*history) policies_psql -c "SELECT lock_set_policy('tenant-', history => true)" ;;
	esac >/dev/null
}

policies_script() { as_user tee "$AL_SCRATCH/src/test/bench/policies_$1.sql" >/dev/null; }

policies_scripts() {
	local key="'tenant-' || (10000 + :n % 10000) || ':' || :n"
	policies_script pair <<-END
		\\set n random(0, $policy_keys - 1) / :clients * :clients + :client_id
		SELECT owner FROM lock_acquire($key) \\gset
		SELECT lock_release($key, :owner);
	END
	policies_script refused <<-'END'
		\set n random(0, 7)
		SELECT refused('held:' || :n, 'client:' || :client_id);
	END
}

# Common to all lanes: keys that have been used before, and leases of others
policies_start() {
	as_user "$AL_BIN/createdb" -h "$socket" -U postgres policies
	policies_psql -v keys=$policy_keys -v clients=$policy_clients -f "$here/policies.sql"
	[ -z "$policy_rows" ] || sweep_fill policies other "$policy_rows" '24 hours'
	policies_psql -c CHECKPOINT
}

# Tokens drawn, leases held, and rows of history with an end
policies_state() {
	policies_psql -c "SELECT (SELECT last_value FROM app_lock_fence), (SELECT count(*) FROM app_lock WHERE NOT released AND expires_at > now()),
		(SELECT count(*) FROM lock_history WHERE ended_by = 'released'), (SELECT count(*) FROM lock_history)"
}

# run_policy LANE ROUND: adds a line to policies.tsv
run_policy() {
	local lane=$1 round=$2 out=$AL_SCRATCH/pgbench.out script=pair role=app_relaxed n tps before after granted recorded=0
	case $lane in
		refused) script=$lane ;;
		flushed*) role=app ;;
	esac
	policies_psql -c 'TRUNCATE app_lock_policy, lock_history'
	policies_set "$lane"
	policies_psql -c 'VACUUM app_lock' -c 'VACUUM ANALYZE app_lock_policy'
	before=$(policies_state)
	rm -f "$AL_SCRATCH"/t/policies.*
	run_pgbench "policies: $lane" "$out" "$AL_BIN/pgbench" -n -M prepared -h "$socket" -U $role \
		-c $policy_clients -j $((policy_clients < cpus ? policy_clients : cpus)) -T "$duration" \
		-D clients=$policy_clients -l --sampling-rate=0.2 --log-prefix="$AL_SCRATCH/t/policies" \
		-f "$here/policies_$script.sql" policies
	after=$(policies_state)
	granted=$n
	[ "$script" = pair ] || granted=0
	[[ $lane != *history ]] || recorded=$n
	before=${before% * *}
	[ "$((${before% *} + granted)) ${before#* } $recorded $recorded" = "$after" ] || {
		wrong=yes
		printf '\nWRONG COUNTS in %s after %s transactions: tokens and leases were %s, and with history are %s\n' "$lane" "$n" "$before" "$after"
	}
	printf '%s\t%s\t%s\t%s\t%s\t\t\t%s\n' "$lane" "$round" "$n" "$tps" "$(percentiles policies)" "${policy_title[$lane]}" >>"$policy_runs"
}

# Time and memory that a session needs to read ten thousand policies
policies_read() {
	local round
	policies_psql -c 'TRUNCATE app_lock_policy'
	policies_set many
	policies_psql -c 'VACUUM ANALYZE app_lock_policy'
	for ((round = 1; round <= rounds; round++)); do
		policies_psql -c "SELECT lock_status('one that loads the library')" \
			-c "SELECT lock_set_policy('')" -c '\timing on' -c "SELECT lock_policy('k')" -c '\timing off' \
			-c "SELECT total_bytes FROM pg_backend_memory_contexts WHERE name = 'atomic_lock policies'" |
			awk -v round="$round" -v title='a session reads ten thousand policies' -v OFS='\t' '
				/^Time:/ { ms = $2 }
				END { print "read", round, 1, "", "", "", ms, $1, title }' >>"$policy_runs"
	done
}

run_policies() {
	local round i lane lanes=("${policy_lanes[@]}")
	[ -n "$policy_rows" ] || lanes=("${lanes[@]/refused/}")
	read -r -a lanes <<<"${lanes[*]}"
	step "$rounds rounds of ${#lanes[@]} runs with policies, $duration s each: $((rounds * ${#lanes[@]} * duration)) s"
	policies_scripts
	policies_start
	printf 'lane\tround\ttransactions\tper_s\tp50_us\tp99_us\tms\tbytes\ttitle\n' >"$policy_runs"
	for ((round = 1; round <= rounds; round++)); do
		printf 'round %d:' "$round"
		for ((i = 0; i < ${#lanes[@]}; i++)); do
			lane=${lanes[$((round % 2 ? i : ${#lanes[@]} - 1 - i))]}
			printf ' %s' "$lane"
			run_policy "$lane" "$round"
		done
		printf '\n'
	done
	policies_read
	as_user "$AL_BIN/dropdb" -h "$socket" -U postgres policies
}

# shellcheck disable=SC2016 # they are those of awk
awk_policies='
	function times(lane,    r, list) {
		for (r = 1; r <= rounds; r++)
			if ((lane, r) in at && (base[lane], r) in at) list = list " " at[lane, r] / at[base[lane], r]
		return median(list)
	}
	function ms(list) { list = median(list); return list == "" ? "" : sprintf("%.3f", list / 1000) }
	BEGIN { n = split(bases, list, " "); for (i = 1; i < n; i += 2) base[list[i]] = list[i + 1] }
	NR == 1 { next }
	{
		if (!($1 in title)) order[++lines] = $1
		title[$1] = $9; at[$1, $2] = $4
		per_s[$1] = per_s[$1] " " $4; p50[$1] = p50[$1] " " $5; p99[$1] = p99[$1] " " $6
		took[$1] = took[$1] " " $7; bytes[$1] = bytes[$1] " " $8
	}'

policies_bases() {
	local lane
	for lane in "${!policy_base[@]}"; do printf '%s %s ' "$lane" "${policy_base[$lane]}"; done
}

print_policies() {
	step "Policies, medians of $rounds rounds; $setting"
	printf '%-42s %10s %9s %9s %8s\n' "$policy_clients clients, nothing flushed" per_s p50_ms p99_ms times
	awk -F '\t' -v rounds="$rounds" -v bases="$(policies_bases)" "$awk_median$awk_policies"'
		END {
			for (l = 1; l <= lines; l++) {
				lane = order[l]
				ratio = lane in base ? times(lane) : ""
				if (lane == "read")
					printf "  %-40s %s ms, %s bytes, %.0f for each\n", title[lane], median(took[lane]), median(bytes[lane]), median(bytes[lane]) / 10000
				else
					printf "  %-40s %10d %9s %9s %8s\n", title[lane], median(per_s[lane]), ms(p50[lane]), ms(p99[lane]),
						ratio == "" ? "" : sprintf("%.2f", ratio)
			}
		}' "$policy_runs"
	say
	say 'The last column is to the same without a policy.'
	[ -z "$policy_rows" ] || say "Refusals are beside $policy_rows leases of others, and are errors that a function catches."
}
