# shellcheck shell=bash disable=SC2154
# test/bench/guard.sh - the guard section of test/bench/run, which sources it: the cost of a
# guard for writes, and of lock_fetch compared with an acquire and a SELECT.
#
# Each guarded run has an unguarded one in the same round, alternately before and after it, each
# after a VACUUM; ratios are taken within a round.

guards=(line item mixed 'update 1' 'update 8' 'relaxed 1' 'relaxed 8' 'fetch 1' 'fetch 8')
declare -A guard_title=(
	[line]='UPDATE of 100000 rows, one lock for all'
	[item]='UPDATE of 100000 rows, a lock for each'
	[mixed]='the same, not in the order of the locks'
	['update 1']='UPDATE of a row, 1 client'
	['update 8']='UPDATE of a row, 8 clients'
	['relaxed 1']='the same, nothing flushed, 1 client'
	['relaxed 8']='the same, nothing flushed, 8 clients'
	['fetch 1']='acquire, read, release, 1 client'
	['fetch 8']='acquire, read, release, 8 clients'
)

# A transaction that writes all rows pins that number of locks.
guard_start() {
	local table
	al_stop "$data"
	printf '%s\n' 'max_locks_per_transaction = 700' 'atomic_lock.max_claims_per_transaction = 1000000' |
		as_user tee -a "$data/postgresql.conf" >/dev/null
	al_start "$data" "$socket"
	psql -f "$here/guard.sql"
	for table in plain guarded; do
		printf '\\set id random(1, 100000)\nUPDATE %s_row SET qty = qty + 1, updated = now() WHERE id = :id;\n' $table |
			as_user tee "$here/guard_update_$table.sql" >/dev/null
	done
	# A row that belongs to this client alone
	printf '%s\n' '\set id random(0, 100000 / :clients - 1) * :clients + :client_id + 1' \
		"SELECT acquired FROM lock_acquire('plain_row:' || :id, owner => 'bench');" \
		'SELECT * FROM plain_row WHERE id = :id;' \
		"SELECT lock_release('plain_row:' || :id, 'bench');" | as_user tee "$here/guard_fetch_plain.sql" >/dev/null
	printf '%s\n' '\set id random(0, 100000 / :clients - 1) * :clients + :client_id + 1' \
		"SELECT * FROM lock_fetch(NULL::plain_row, :id::text, owner => 'bench');" \
		"SELECT lock_release('plain_row:' || :id, 'bench');" | as_user tee "$here/guard_fetch_guarded.sql" >/dev/null
}

# guard_time NAME plain|guarded: sets took to the microseconds of one transaction, for each
# client if there are several
guard_time() {
	local name=${1% *} clients=${1##* } out=$AL_SCRATCH/guard.out sync=on
	psql -c 'VACUUM'
	case $name in
		line | item | mixed)
			psql -c '\timing on' -c "SET atomic_lock.owner = 'bench'" \
				-c "UPDATE ${2}_$name SET qty = qty + 1, updated = now()" >"$out"
			took=$(awk '/^Time:/ { t = $2 } END { printf "%d", t * 1000 }' "$out")
			;;
		*)
			[ "$name" != relaxed ] || name=update sync=off
			if ! as_user env PGOPTIONS="-c atomic_lock.owner=bench -c synchronous_commit=$sync" \
				"$AL_BIN/pgbench" -n -M prepared -h "$socket" -U app \
				-c "$clients" -j $((clients < cpus ? clients : cpus)) -T "$duration" -D clients="$clients" \
				-f "$here/guard_${name}_$2.sql" bench >"$out" 2>&1; then
				cat "$out" >&2
				die "guard lane $1 has failed"
			fi
			took=$(awk -v clients="$clients" '/^tps = / { printf "%d", 1000000 * clients / $3 }' "$out")
			;;
	esac
	[ "${took:-0}" -gt 0 ] || die "nobody says how long guard lane $1 took"
}

run_guards() {
	local round name table first took
	declare -A times
	step "$rounds rounds of ${#guards[@]} guard lanes"
	guard_start
	printf 'lane\tround\tplain_us\tguarded_us\n' >"$guard_runs"
	for ((round = 1; round <= rounds; round++)); do
		printf 'round %d:' "$round"
		for name in "${guards[@]}"; do
			printf ' %s' "${name/ /_}"
			first=plain
			[ $((round % 2)) = 1 ] || first=guarded
			for table in $first $([ $first = plain ] && echo guarded || echo plain); do
				guard_time "$name" "$table"
				times[$table]=$took
			done
			printf '%s\t%s\t%s\t%s\n' "$name" "$round" "${times[plain]}" "${times[guarded]}" >>"$guard_runs"
		done
		printf '\n'
	done
}

print_guards() {
	local name
	step "Guards, medians of $rounds rounds; $setting"
	printf '%-42s %12s %12s %8s\n' '' without_ms with_ms times
	for name in "${guards[@]}"; do
		awk -F '\t' -v name="$name" -v title="${guard_title[$name]}" '
			'"$awk_median"'
			$1 == name { plain = plain " " $3; guarded = guarded " " $4; ratio = ratio " " $4 / $3 }
			END { printf "  %-40s %12.3f %12.3f %8.2f\n", title, median(plain) / 1000, median(guarded) / 1000, median(ratio) }' "$guard_runs"
	done
	say
	say 'Without and with the guard, or with lock_acquire and SELECT and with lock_fetch.'
}
