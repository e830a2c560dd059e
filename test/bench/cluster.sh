# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/cluster.sh - the cluster section of test/bench/run, which sources it: the cost of a
# proxy with PL/Proxy, for the proxy and for the shards. Runs only if LANES names it, and needs
# the package postgresql-N-plproxy.
#
#   pair      acquire and release a key of the client's own
#   refused   lock_try_acquire of a key that another owner holds
#
# Each lane runs directly on a server, and through a proxy with one, two and four shards, which
# are separate servers on the same machine. They all share its processors, unlike in a real
# cluster, so CPU time (of all processes of a server, from /proc) tells more than rates. Grants
# are flushed as always, with data in the usual place of make bench.

cluster_sides=(direct 1 2 4) cluster_shards=4

wanted_cluster() { [[ $only == *' cluster '* ]]; }

cluster_psql() {
	local server=$1
	shift
	as_user "$AL_BIN/psql" -X -q -At -v ON_ERROR_STOP=1 -h "$AL_SCRATCH/c$server" -U postgres -d postgres "$@"
}

# cluster_map SHARDS: the number of shards that the proxy uses; each shard knows its partition
cluster_map() {
	local n map=
	for ((n = 0; n < $1; n++)); do
		map+="${map:+, }p$n 'host=$AL_SCRATCH/c$n dbname=postgres user=postgres'"
		cluster_psql "$n" -c "ALTER SYSTEM SET atomic_lock.partitions = $1" -c "ALTER SYSTEM SET atomic_lock.partition = $n" \
			-c 'SELECT pg_reload_conf()' >/dev/null
		until [ "$(cluster_psql "$n" -c "SELECT current_setting('atomic_lock.partitions') || ' ' || current_setting('atomic_lock.partition')")" = "$1 $n" ]; do :; done
	done
	cluster_psql p -c 'SET client_min_messages = warning' -c 'DROP SERVER IF EXISTS locks CASCADE' -c "CREATE SERVER locks FOREIGN DATA WRAPPER plproxy OPTIONS ($map)" \
		-c 'CREATE USER MAPPING FOR PUBLIC SERVER locks'
}

cluster_start() {
	local n dir=${data%/*}
	for n in p $(seq 0 $((cluster_shards - 1))) d; do
		al_initdb "$dir/c$n"
		as_user tee -a "$dir/c$n/postgresql.conf" <"$here/bench.conf" >/dev/null
		[ "$n" != p ] || echo "shared_preload_libraries = ''" | as_user tee -a "$dir/c$n/postgresql.conf" >/dev/null
		al_start "$dir/c$n" "$AL_SCRATCH/c$n"
		[ "$n" = p ] || cluster_psql "$n" -c 'CREATE EXTENSION atomic_lock'
	done
	cluster_psql p -c 'CREATE EXTENSION plproxy' -c 'ALTER DATABASE postgres SET search_path = locks, public'
	cluster_psql 0 -f "$("$AL_PG_CONFIG" --sharedir)/extension/atomic_lock/plproxy.sql" | as_user tee "$here/facade.sql" >/dev/null
	cluster_map $cluster_shards
	for n in p $(seq 0 $((cluster_shards - 1))); do cluster_psql "$n" -f "$here/facade.sql" >/dev/null; done
	as_user tee "$here/cluster_pair.sql" >/dev/null <<-'END'
		\set n random(0, 9999)
		SELECT acquired, owner, expires_at FROM lock_acquire('order:' || :client_id || ':' || :n, owner => 'client-' || :client_id);
		SELECT lock_release('order:' || :client_id || ':' || :n, 'client-' || :client_id);
	END
	as_user tee "$here/cluster_refused.sql" >/dev/null <<-'END'
		\set n random(0, 7)
		SELECT acquired, holder, expires_at FROM lock_try_acquire('held:' || :n);
	END
}

# cluster_ticks SERVER: CPU time, in hundredths of a second, of its processes that have ended
cluster_ticks() {
	awk '{ print $14 + $15 + $16 + $17 }' "/proc/$(head -n 1 "${data%/*}/c$1/postmaster.pid")/stat"
}

# The servers of a side
cluster_servers() { if [ "$1" = direct ]; then echo d; else seq 0 $(($1 - 1)); fi; }

cluster_grants() {
	local n sum=0
	for n in $(cluster_servers "$1"); do
		sum=$((sum + $(cluster_psql "$n" -c "SELECT sum(grants) FROM lock_stats")))
	done
	echo "$sum"
}

# cluster_used SIDE: ticks of the proxy, and of all shards
cluster_used() {
	local n shards=0
	# A backend's CPU time counts once it has ended.
	for n in p $(cluster_servers "$1"); do
		while [ "$(cluster_psql "$n" -c "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")" != 1 ]; do :; done
	done
	for n in $(cluster_servers "$1"); do shards=$((shards + $(cluster_ticks "$n"))); done
	echo "$(cluster_ticks p) $shards"
}

# run_cluster_lane LANE SIDE CLIENTS ROUND: adds a line to cluster.tsv
run_cluster_lane() {
	local lane=$1 side=$2 clients=$3 round=$4 to=p n tps before after granted proxy shards used
	[ "$side" != direct ] || to=d
	before=$(cluster_grants "$side")
	used=$(cluster_used "$side")
	run_pgbench "cluster: $lane" "$AL_SCRATCH/pgbench.out" "$AL_BIN/pgbench" -n -M prepared -h "$AL_SCRATCH/c$to" -U postgres \
		-c "$clients" -j $((clients < cpus ? clients : cpus)) -T "$duration" -f "$here/cluster_$lane.sql" postgres
	after=$(cluster_grants "$side")
	read -r proxy shards <<<"$(cluster_used "$side")"
	proxy=$((proxy - ${used% *})) shards=$((shards - ${used#* }))
	granted=$n
	[ "$lane" = pair ] || granted=0
	[ $((before + granted)) = "$after" ] || {
		wrong=yes
		printf '\nWRONG COUNTS in %s on %s after %s transactions: grants were %s, and are %s\n' "$lane" "$side" "$n" "$before" "$after"
	}
	printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$lane" "$side" "$clients" "$round" "$n" "$tps" \
		$((proxy * 10000 / n)) $((shards * 10000 / n)) >>"$cluster_runs"
}

run_cluster() {
	local round lane side clients to n
	step "$rounds rounds of 16 runs on a cluster, $duration s each: $((rounds * 16 * duration)) s"
	cluster_start
	cluster_psql d -c "SELECT count(*) FROM generate_series(0, 7) n, lock_acquire('held:' || n, '1 d', 'holder')" >/dev/null
	printf 'lane\tshards\tclients\tround\ttransactions\tper_s\tproxy_us\tshards_us\n' >"$cluster_runs"
	for ((round = 1; round <= rounds; round++)); do
		printf 'round %d:' "$round"
		for side in "${cluster_sides[@]}"; do
			printf ' %s' "$side"
			if [ "$side" != direct ]; then
				cluster_map "$side"
				cluster_psql p -c "SELECT count(*) FROM generate_series(0, 7) n, lock_acquire('held:' || n, '1 d', 'holder')" >/dev/null
			fi
			for lane in pair refused; do
				for clients in 1 8; do run_cluster_lane $lane "$side" $clients "$round"; done
			done
		done
		printf '\n'
	done
	for n in p $(seq 0 $((cluster_shards - 1))) d; do al_stop "${data%/*}/c$n"; done
}

print_cluster() {
	step "A proxy before shards, medians of $rounds rounds; $setting"
	printf '%-10s %8s %10s %10s %8s %10s %10s\n' '' clients shards per_s times proxy_us shards_us
	awk -F '\t' -v rounds="$rounds" "$awk_median"'
		NR == 1 { next }
		{
			k = $1 SUBSEP $3 SUBSEP $2
			if (!(k in per_s)) order[++lines] = k
			at[k, $4] = $6
			per_s[k] = per_s[k] " " $6; proxy[k] = proxy[k] " " $7; shards[k] = shards[k] " " $8
		}
		function times(k,    other, a, r, list) {
			split(k, a, SUBSEP); other = a[1] SUBSEP a[2] SUBSEP "direct"
			for (r = 1; r <= rounds; r++) list = list " " at[k, r] / at[other, r]
			return median(list)
		}
		END {
			for (l = 1; l <= lines; l++) {
				k = order[l]; split(k, a, SUBSEP)
				printf "  %-8s %8d %10s %10d %8.2f %10d %10d\n", a[1], a[2], a[3], median(per_s[k]), times(k), median(proxy[k]), median(shards[k])
			}
		}' "$cluster_runs"
	say
	say 'CPU time is in microseconds for each pair or refusal; that of the shards together.'
}
