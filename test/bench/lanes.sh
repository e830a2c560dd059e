# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/lanes.sh - the lanes of test/bench/run, which sources it: what runs, which changes
# it must make, and how the results are computed.
#
# Ratios are to the hand-written SQL of the same group, or to the "sql..." lane that it names;
# for Laravel's lanes, to Laravel's own table; and to round trips without work.
#
#   lane NAME GROUP STATEMENTS SCRIPT ROLE CHANGES TITLE
#
# STATEMENTS is the number of statements in one transaction of the script. CHANGES are the
# changes that one transaction makes to test/bench/state.sql, by name; all other values must
# stay. SCRIPT is for pgbench, or names another program and its task: ":redis_always own",
# ":etcd own" or ":laravel refused".
#
# Lanes named "..._one" call functions that return a row as "SELECT (f(...)).column", and so
# does lock_next, beside its release; all other lanes of ours call them in FROM.

lanes=() groups=()
declare -A group statements script role changes title base group_title

lane() {
	local name=$1
	[[ $only =~ ^\ +$ || $only == *" $name "* || $name == roundtrip ]] || return 0
	lanes+=("$name")
	group[$name]=$2 statements[$name]=$3 script[$name]=$4 role[$name]=$5 changes[$name]=$6 title[$name]=$7
	[[ $name != sql* ]] || base[$2]=$name
	[[ " ${groups[*]-} " == *" $2 "* ]] || groups+=("$2")
}

group_title[floor]='To compare with: no locks, or what any of them has to pay'
group_title[memory]='Acquire and release, in memory only'
group_title[durable]='Acquire and release, grants flushed'
group_title[ways]='Other ways to acquire and release, grants flushed'
group_title[relaxed]='Acquire and release, nothing flushed (synchronous_commit = off)'
group_title[set]='100 keys of an owner, acquired and released, grants flushed'
group_title[paths]='Four keys of an owner, acquired and released, grants flushed'
group_title[light]='Locks that end with their transaction, nothing written'
group_title[refused]='Refused acquires, nothing flushed where nothing is written'
group_title[read]='Looking who has a lock'
group_title[php]='Laravel, acquire and release, grants flushed, statements parsed anew as PDO does'
group_title[php_refused]='Laravel, refused, statements parsed anew'

# The changes that the statements of each peer make
sql='sql_inserted=1 sql_deleted=1' plpgsql='plpgsql_inserted=1 plpgsql_deleted=1'
laravel='laravel_inserted=1 laravel_deleted=1' shedlock='shedlock_updated=2'

# In this order, so that lanes to be compared run one after the other
lane updates floor 2 updates app 'sum=2' 'two one-row UPDATEs'
lane sql_pair durable 2 sql_pair app "$sql" 'hand-written SQL'
lane plpgsql_pair durable 2 peers/plpgsql app "$plpgsql" 'SQL in PL/pgSQL'
lane laravel_pair durable 2 peers/laravel app "$laravel" 'Laravel DatabaseLock'
lane shedlock_pair durable 2 peers/shedlock app "$shedlock" 'ShedLock'
lane spring_pair durable 5 peers/spring app 'spring_inserted=1 spring_deleted=1' 'Spring JdbcLockRegistry'
lane pglock_pair durable 3 peers/pglock app 'pglock_inserted=1 pglock_deleted=1 versions=1' 'cirello pglock'
lane etcd durable 2 ':etcd own' '' '' 'etcd'
lane one_flush_plpgsql floor 2 peers/plpgsql_later app "$plpgsql" 'PL/pgSQL, one flushed'
lane one_flush floor 2 one_flush app 'sum=2' 'two UPDATEs, one flushed'
lane one_write floor 2 one_write app 'sum=1' 'one UPDATE and SELECT 1'
lane lock_pair durable 2 lock_pair app 'tokens=1' 'atomic_lock'
lane redis_always durable 2 ':redis_always own' '' '' 'Redis, appendfsync always'
lane lock_pair_one ways 2 lock_pair_one app 'tokens=1' 'atomic_lock, one column'
lane lock_pair_owner ways 2 lock_pair_owner app 'tokens=1' 'atomic_lock, owner named'
lane lock_pair_owners ways 2 lock_pair_owners app 'tokens=1' 'atomic_lock, owners changing'
lane lock_next ways 1 lock_next app 'tokens=1' 'atomic_lock, with the next'
lane lock_pipeline ways 2 lock_pipeline app 'tokens=1' 'atomic_lock, in a pipeline'
lane lock_shared ways 2 lock_shared app 'tokens=1' 'atomic_lock, 10 keys shared'
lane advisory_pair memory 2 advisory_pair app '' 'pg_try_advisory_lock'
lane redis_default relaxed 2 ':redis_default own' '' '' 'Redis, default'
lane plpgsql_relaxed relaxed 2 peers/plpgsql app_relaxed "$plpgsql" 'SQL in PL/pgSQL'
lane laravel_relaxed relaxed 2 peers/laravel app_relaxed "$laravel" 'Laravel DatabaseLock'
lane shedlock_relaxed relaxed 2 peers/shedlock app_relaxed "$shedlock" 'ShedLock'
lane lock_relaxed relaxed 2 lock_pair app_relaxed 'tokens=1' 'atomic_lock'
lane sql_relaxed relaxed 2 sql_pair app_relaxed "$sql" 'hand-written SQL'
lane lock_relaxed_one relaxed 2 lock_pair_one app_relaxed 'tokens=1' 'atomic_lock, one column'
lane sql_singles set 101 singles app 'tokens=100' 'an acquire for each'
lane lock_set set 2 lock_set app 'tokens=100' 'lock_acquire_all'
lane sql_four paths 2 four app 'tokens=4' 'four keys of a set'
lane lock_path paths 2 lock_path app 'tokens=4' 'a path of four parts'
lane sql_advisory light 1 advisory app '' 'pg_advisory_xact_lock'
lane lock_transaction light 1 lock_transaction app 'tokens=1' 'atomic_lock'
lane sql_refused refused 1 sql_refused app '' 'INSERT ... ON CONFLICT'
lane laravel_refused refused 2 ':laravel refused' app 'laravel_inserted=1' 'Laravel DatabaseLock'
lane shedlock_refused refused 1 peers/shedlock_refused app '' 'ShedLock'
lane redis_refused refused 1 ':redis_default refused' '' '' 'Redis, default'
lane from_row floor 1 from_row app '' 'a row of a built-in function, in FROM'
lane read_row read 1 read_row app '' 'SELECT by primary key'
lane lock_status read 1 lock_status app '' 'lock_status'
lane lock_refused refused 1 lock_refused app '' 'atomic_lock'
lane roundtrip floor 1 roundtrip app '' 'SELECT 1'
lane lock_refused_one refused 1 lock_refused_one app '' 'atomic_lock, one column'
lane lock_status_one read 1 lock_status_one app '' 'lock_status, one column'
lane lock_is_held read 1 lock_is_held app '' 'lock_is_held'
lane laravel_table php 2 peers/laravel app "$laravel" 'its table'
lane laravel_view php 2 laravel_view app 'tokens=1' 'the view of atomic_lock'
lane laravel_class php 2 laravel_class app 'tokens=1' 'a class that calls functions'
lane laravel_table_refused php_refused 2 ':laravel_table refused' app 'laravel_inserted=1' 'its table'
lane laravel_view_refused php_refused 2 ':laravel_view refused' app '' 'the view of atomic_lock'
lane laravel_class_refused php_refused 1 ':laravel_class refused' app '' 'a class that calls functions'

if [[ " ${lanes[*]} " == *' sql_pair '* ]]; then base[ways]=sql_pair; fi
if [[ " ${lanes[*]} " == *' laravel_table '* ]]; then base[php]=laravel_table; fi
if [[ " ${lanes[*]} " == *' laravel_table_refused '* ]]; then base[php_refused]=laravel_table_refused; fi

# Leaves out lanes without a server
lanes_choose() {
	local name server chosen=()
	for name in "${lanes[@]}"; do
		server=${script[$name]#:}
		server=${server% *}
		if [[ ${script[$name]} == :redis* || ${script[$name]} == :etcd* ]] && ! peer_is_there "$server"; then continue; fi
		chosen+=("$name")
	done
	lanes=("${chosen[@]}")
}

# lane_clients NAME: the numbers of clients that run it. A lane without peers does not run with
# many.
lane_clients() {
	local n few=
	for n in $all_clients; do
		[ "$n" -gt 8 ] || few+=" $n"
	done
	: "${few:=$all_clients}"
	case ${group[$1]} in
		floor | memory | durable | relaxed) few=$all_clients ;;
	esac
	xargs -n 1 <<<"$few" | sort -nu | xargs
}

# Their duration in seconds
lanes_seconds() {
	local name n=0
	for name in ${lanes[@]+"${lanes[@]}"}; do n=$((n + $(lane_clients "$name" | wc -w))); done
	echo $((n * rounds * duration))
}

# ---------------------------------------------------------------------------
# One run
# ---------------------------------------------------------------------------

declare -A state

# Sets state to the server's counters
read_state() {
	local name n
	state=()
	while read -r name n; do state[$name]=$n; done < <(psql -f "$here/state.sql")
	[ ${#state[@]} -gt 4 ] || die 'the server does not answer what was counted'
}

# check LANE N: N transactions of the lane have made exactly the changes they should
check() {
	local lane=$1 n=$2 name change expected got
	local deadline=$((SECONDS + 10))
	declare -A want
	for name in "${!state[@]}"; do want[$name]=${state[$name]}; done
	for change in ${changes[$lane]}; do
		name=${change%=*}
		want[$name]=$((want[$name] + ${change#*=} * n))
	done
	# Backends report statistics when they end, slightly after their clients.
	while :; do
		read_state
		expected='' got=''
		for name in "${!want[@]}"; do
			[ "${want[$name]}" = "${state[$name]-}" ] || {
				expected+="$name ${want[$name]}, "
				got+="$name ${state[$name]-}, "
			}
		done
		[ -n "$expected" ] || return 0
		[ $SECONDS -lt $deadline ] || break
		sleep 0.05
	done
	wrong=yes
	printf '\nWRONG COUNTS in lane %s after %s transactions:\n  expected: %s\n  found:    %s\n' \
		"$lane" "$n" "${expected%, }" "${got%, }"
}

# run_pgbench WHAT OUT COMMAND...: writes its output to OUT; sets n and tps
run_pgbench() {
	local what=$1 out=$2
	shift 2
	if ! as_user "$@" >"$out" 2>&1 || grep -qE 'failed transactions: [1-9]|pgbench: error' "$out"; then
		cat "$out" >&2
		tail -n 5 "$data.log" >&2
		die "$what has failed"
	fi
	n=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$out")
	tps=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$out")
	if [ -z "$n" ] || [ -z "$tps" ]; then die "pgbench says nothing of how fast it was"; fi
}

# run_program LANE CLIENTS ROUND: like run_lane, for programs other than pgbench
run_program() {
	local lane=$1 clients=$2 round=$3 what=${script[$1]#:} line
	case $what in
		redis* | etcd*) line=$(peer_client "${what% *}" "${what#* }" "$clients") || line= ;;
		*)
			line=$(as_user "$AL_SCRATCH/hotset" "${what#* }" "${what% *}" "$clients" "$duration" \
				"host=$socket user=${role[$lane]} dbname=bench") || line=
			;;
	esac
	if [ -z "$line" ]; then
		tail -n 5 "$data.log" >&2
		die "lane $lane has failed"
	fi
	check "$lane" "${line%%$'\t'*}"
	printf '%s\t%s\t%s\t%s\t%s\n' "${group[$lane]}" "$lane" "$clients" "$round" "$line" >>"$runs"
}

# run_lane LANE CLIENTS ROUND: adds a line to runs.tsv
run_lane() {
	local lane=$1 clients=$2 round=$3 out=$AL_SCRATCH/pgbench.out n tps now
	local threads=$((clients < cpus ? clients : cpus)) protocol=prepared
	[ "${group[$lane]}" != php ] || protocol=extended
	if [[ ${script[$lane]} == :* ]]; then
		run_program "$@"
		return
	fi
	# The time on the client's clock, for peers that send it
	now=$(date -u +%s)
	rm -f "$AL_SCRATCH"/t/latency.*
	run_pgbench "lane $lane" "$out" "$AL_BIN/pgbench" -n -M $protocol -h "$socket" -U "${role[$lane]}" \
		-c "$clients" -j $threads -T "$duration" -D keys="$keys" -D clients="$clients" -D first=1 \
		-D before=0 -D now="$now" -D at="$(date -u -d "@$now" +%FT%T)" -D until="$(date -u -d "@$((now + 300))" +%FT%T)" \
		-l --sampling-rate=0.2 --log-prefix="$AL_SCRATCH/t/latency" \
		-f "$here/${script[$lane]}.sql" bench
	# Workers that release one key and take the next have one left at the end.
	if [[ $lane == lock_next || $lane == lock_pipeline ]]; then
		psql -c "SELECT sum(lock_release_all('worker:' || n)) FROM generate_series(0, $clients - 1) n" >/dev/null
	fi
	check "$lane" "$n"
	printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "${group[$lane]}" "$lane" "$clients" "$round" "$n" "$tps" "$(percentiles latency)" >>"$runs"
}

# percentiles PREFIX: median and 99th percentile, in microseconds, of pgbench's logs with this
# prefix
percentiles() {
	cat "$AL_SCRATCH/t/$1".* | cut -d ' ' -f 3 | sort -n | awk -v OFS='\t' '
		{ us[NR] = $1 }
		# pgbench logs 0 if the answer had arrived before it read the clock again; if that is
		# frequent, its percentiles mean nothing.
		$1 == 0 { unseen++ }
		function percentile(p) { return unseen <= NR / 100 ? us[int((NR - 1) * p) + 1] : "" }
		END { print percentile(0.5), percentile(0.99) }'
}

run_lanes() {
	local round clients i name
	declare -A at
	for name in "${lanes[@]}"; do at[$name]=" $(lane_clients "$name") "; done
	step "$rounds rounds of ${#lanes[@]} lanes, $duration s each: $(lanes_seconds) s"
	printf 'group\tlane\tclients\tround\ttransactions\ttps\tp50_us\tp99_us\n' >"$runs"
	for ((round = 1; round <= rounds; round++)); do
		for clients in $(xargs -n 1 <<<"${at[*]}" | sort -nu); do
			printf 'round %d, %d clients:' "$round" "$clients"
			for ((i = 0; i < ${#lanes[@]}; i++)); do
				# In reverse order every second round, so that a lane does not always follow the same one.
				name=${lanes[$((round % 2 ? i : ${#lanes[@]} - 1 - i))]}
				[[ ${at[$name]} == *" $clients "* ]] || continue
				printf ' %s' "$name"
				run_lane "$name" "$clients" "$round"
			done
			printf '\n'
		done
	done
}

# ---------------------------------------------------------------------------
# Medians over the rounds; of ratios, the median of those within each round
# ---------------------------------------------------------------------------

awk_median='
	function median(list,    a, n, i, j, t) {
		if (split(list, a, " ") < rounds) return ""
		n = split(list, a, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
		return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
	}'

summarize_lanes() {
	local name
	for name in "${lanes[@]}"; do
		printf '%s\t%s\t%s\t%s\n' "$name" "${statements[$name]}" "${base[${group[$name]}]-}" "${title[$name]}"
	done >"$AL_SCRATCH/lanes.tsv"
	awk -F '\t' -v OFS='\t' '
		'"$awk_median"'
		FNR == NR { statements[$1] = $2; base[$1] = $3; title[$1] = $4; next }
		FNR == 1 { next }
		{
			if (!(($2, $3) in tps)) order[++lines] = $1 SUBSEP $2 SUBSEP $3
			tps[$2, $3] = tps[$2, $3] " " $6
			p50[$2, $3] = p50[$2, $3] " " $7
			p99[$2, $3] = p99[$2, $3] " " $8
			at[$2, $3, $4] = $6
			if ($4 > rounds) rounds = $4
		}
		END {
			print "group", "lane", "clients", "tps", "p50_us", "p99_us", "to_sql", "to_roundtrip", "title"
			for (l = 1; l <= lines; l++) {
				split(order[l], k, SUBSEP)
				sql = trip = ""
				for (r = 1; r <= rounds; r++) {
					if ((base[k[2]], k[3], r) in at) sql = sql " " at[k[2], k[3], r] / at[base[k[2]], k[3], r]
					trip = trip " " at[k[2], k[3], r] * statements[k[2]] / at["roundtrip", k[3], r]
				}
				print k[1], k[2], k[3], sprintf("%.0f", median(tps[k[2], k[3]])),
					median(p50[k[2], k[3]]), median(p99[k[2], k[3]]),
					sql == "" ? "" : sprintf("%.3f", median(sql)), sprintf("%.3f", median(trip)), title[k[2]]
			}
		}' "$AL_SCRATCH/lanes.tsv" "$runs" >"$summary"
}

print_lanes() {
	local g clients numbers name
	step "Medians of $rounds rounds; $setting"
	numbers=$(cut -f 3 "$summary" | sed 1d | sort -nu)
	for g in "${groups[@]}"; do
		printf '\n%s\n%-30s %8s %10s %9s %9s %10s %12s\n' "${group_title[$g]}" '' clients per_s p50_ms p99_ms to_the_SQL to_SELECT_1
		for clients in $numbers; do
			for name in "${lanes[@]}"; do
				[ "${group[$name]}" = "$g" ] || continue
				awk -F '\t' -v lane="$name" -v clients="$clients" -v title="${title[$name]}" '
					$2 == lane && $3 == clients {
						printf "  %-28s %8d %10d %9s %9s %10s %12.2f\n", title, clients, $4,
							$5 == "" ? "" : sprintf("%.3f", $5 / 1000), $6 == "" ? "" : sprintf("%.3f", $6 / 1000),
							$7 == "" ? "" : sprintf("%.2f", $7), $8
					}' "$summary"
			done
		done
	done
	say
	say 'per_s counts pairs, sets of 100 keys, or acquires where nothing is released; to_the_SQL is'
	say 'to the hand-written SQL, or what stands for it in a group; to_SELECT_1 is how many of their'
	say 'statements got through in the time of one SELECT 1.'
}
