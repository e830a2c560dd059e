# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/growth_size.sh - the parts of the growth section of test/bench/run about single
# calls and sizes. test/bench/growth.sh sources it and describes them.

# ---------------------------------------------------------------------------
# owner
# ---------------------------------------------------------------------------

# growth_owner DATABASE WHAT LEASES OWNER...: releases LEASES leases of an owner, 21 times; the
# first time does not count
growth_owner() {
	local database=$1 what=$2 leases=$3 round out=$AL_SCRATCH/growth.out
	for ((round = 0; round <= 20; round++)); do
		printf '%s\n' '\o /dev/null' "$4" \
			"SELECT lock_acquire_all(ARRAY(SELECT 'mine:' || n FROM generate_series(1, $leases) n), owner => :'owner');" \
			'\o' '\timing on' "SELECT lock_release_all(:'owner');" '\timing off'
	done | growth_psql "$database" -U app -f - >"$out"
	growth_same "leases of one owner, released together" "$(grep -vc '^Time:' "$out") $(grep -v '^Time:' "$out" | sort -u)" "21 $leases"
	growth_owner_rows "$what" "$out"
}

growth_owner_rows() {
	awk -v OFS='\t' -v what="$1" -v held="$growth_held" '
		/^Time:/ && n++ { print "owner", what, n - 1, held, $2, "ms" }' "$2" >>"$growth_runs"
}

growth_run_owner() {
	local leases round out=$AL_SCRATCH/growth.out
	growth_need growth_named
	growth_need growth_full
	for leases in 1 100; do
		growth_owner growth_named "atomic_lock $leases" $leases "SELECT 'worker:1' AS owner \\gset"
		growth_owner growth_full "atomic_lock $leases generated" $leases "SELECT owner FROM lock_acquire('mine:1') \\gset"
	done
	for ((round = 0; round <= 20; round++)); do
		printf '%s\n' "INSERT INTO sql_lock VALUES ('mine:1', gen_random_uuid(), clock_timestamp() + '5 min') RETURNING owner \\gset" \
			'\timing on' "DELETE FROM sql_lock WHERE owner = :'owner';" '\timing off'
	done | growth_psql growth_full -U app -f - >"$out"
	growth_owner_rows 'sql 1' "$out"
	growth_left growth_named
	growth_left growth_full
}

# ---------------------------------------------------------------------------
# memory
# ---------------------------------------------------------------------------

# growth_memory_of DATABASE KIND WHAT
growth_memory_of() {
	local n=${growth_filled[$1 $2]} table=${growth_table[$1 $2]} index=${growth_index[$1 $2]}
	growth_row memory "$3" 1 "$n" "$(growth_ratio $((table + index)) "$n")" bytes/lease
	growth_row memory "$3 table" 1 "$n" "$(growth_ratio "$table" "$n")" bytes/lease
	growth_row memory "$3 index" 1 "$n" "$(growth_ratio "$index" "$n")" bytes/lease
}

# In empty tables. Keys in random order, like hashes, and a tenth of them in ascending order.
growth_run_memory() {
	local kind order held database
	declare -A title=([full]='atomic_lock generated' [named]='atomic_lock named' [sql]=sql)
	for order in random rising; do
		held=$growth_held
		[ $order = random ] || held=$((growth_held / 10))
		for kind in full named sql; do
			database=growth_memory
			# This database exists already.
			[ "$order $kind" != 'random named' ] || [ -z "${growth_filled[growth_named]-}" ] || database=growth_named
			[ $database = growth_named ] || growth_database $database 1
			growth_fill $database $kind $order "$held"
			growth_memory_of $database $kind "${title[$kind]}$([ $order = random ] || echo ' rising')"
			[ $database = growth_named ] || {
				growth_drop $database
				unset "growth_filled[$database $kind]" "growth_table[$database $kind]" "growth_index[$database $kind]"
			}
		done
	done
}

# ---------------------------------------------------------------------------
# backend
# ---------------------------------------------------------------------------

# Four calls in a script, or a thousand in a block; the backend reports its memory after 100
# calls for the first time, so that later reports cost nothing.
growth_backend_scripts() {
	local moments=100 when calls sample
	for ((calls = 1000; calls <= growth_calls; calls *= 10)); do moments+=" $calls"; done
	when=":i = ${moments// / OR :i = }"
	sample="(SELECT jsonb_object_agg(name, bytes) FROM
			(SELECT name, sum(total_bytes) AS bytes FROM pg_backend_memory_contexts GROUP BY name) AS context),
		(regexp_match(pg_read_file('/proc/self/status'), 'RssAnon:\s*(\d+)'))[1]::bigint * 1024;"
	growth_script backend_calls <<-SCRIPT
		\\set i :i + 4
		SELECT owner FROM lock_acquire('backend-calls') \\gset
		SELECT lock_release('backend-calls', :owner);
		SELECT locked FROM lock_status('backend-calls');
		SELECT status FROM lock_try_acquire('backend-taken');
		\\if $when
		INSERT INTO growth_backend SELECT 'atomic_lock', :i, $(tr '\n' ' ' <<<"$sample")
		\\endif
	SCRIPT
	growth_script backend_loop <<-SCRIPT
		DO \$\$
		BEGIN
			FOR i IN 1 .. CASE WHEN EXISTS (SELECT FROM growth_backend WHERE what = 'atomic_lock loop') THEN 250 ELSE 25 END LOOP
				PERFORM lock_acquire('backend-loop', owner => 'loop');
				PERFORM lock_release('backend-loop', 'loop');
				PERFORM lock_status('backend-loop');
				PERFORM lock_try_acquire('backend-taken');
				COMMIT;
			END LOOP;
		END \$\$;
		\\if $when
		INSERT INTO growth_backend SELECT 'atomic_lock loop', :i, $(tr '\n' ' ' <<<"$sample")
		\\endif
		\\set i CASE WHEN :i = 100 THEN 1000 ELSE :i + 1000 END
	SCRIPT
}

# Both at the same time, since speed does not matter here
growth_run_backend() {
	local before after n tps first
	growth_database growth_backend
	growth_psql growth_backend -c "SELECT lock_acquire('backend-taken', '24 hours')" >/dev/null
	before=$(growth_granted growth_backend lock)
	growth_options=$growth_relaxed growth_pgbench postgres growth_backend backend_loop -c 1 -t $((growth_calls / 1000 + 1)) -D i=100 &
	first=$!
	growth_options=$growth_relaxed growth_pgbench postgres growth_backend backend_calls -c 1 -t $((growth_calls / 4)) -D i=0
	wait $first || die 'calls in a loop have failed'
	after=$(growth_granted growth_backend lock)
	growth_same 'grants in backends' $((${after% *} - ${before% *})) $((growth_calls / 2 + 25))
	# In total, and the contexts whose size has changed
	growth_psql growth_backend -F $'\t' -c "
		WITH figure AS (
			SELECT what, ' rss' AS of, calls, anonymous AS bytes FROM growth_backend
			UNION ALL
			SELECT what, '', calls, (SELECT sum(value::bigint) FROM jsonb_each_text(contexts)) FROM growth_backend
			UNION ALL
			SELECT what, ' ' || key, calls, value::bigint FROM growth_backend, jsonb_each_text(contexts)
				WHERE calls > 100 AND (what, key) IN (SELECT what, key FROM growth_backend, jsonb_each_text(contexts)
					WHERE calls > 100 GROUP BY what, key HAVING min(value) <> max(value) OR count(*) < $((${#growth_calls} - 3)))
		)
		SELECT 'backend', what || of, 1, calls, bytes, 'bytes' FROM figure WHERE calls > 100 ORDER BY what, of, calls" >>"$growth_runs"
	growth_drop growth_backend
}

# ---------------------------------------------------------------------------
# first
# ---------------------------------------------------------------------------

# First calls of 50 backends each
growth_run_first() {
	local round what statement out=$AL_SCRATCH/growth.out
	growth_database growth_first
	growth_psql growth_first -c "SELECT lock_acquire('first:taken', '24 hours')" >/dev/null
	for ((round = 1; round <= 50; round++)); do
		for what in $(growth_turns $round roundtrip sql atomic_lock refused status); do
			case $what in
				roundtrip) statement='SELECT true' ;;
				sql) statement="INSERT INTO sql_lock AS l (key, owner, expires_at)
					VALUES ('first:$round', gen_random_uuid(), clock_timestamp() + interval '5 minutes')
					ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
					WHERE l.expires_at <= clock_timestamp() RETURNING true" ;;
				atomic_lock) statement="SELECT acquired FROM lock_acquire('first:$round')" ;;
				refused) statement="SELECT NOT acquired FROM lock_try_acquire('first:taken')" ;;
				status) statement="SELECT locked FROM lock_status('first:taken')" ;;
			esac
			growth_psql growth_first -U app -c '\timing on' -c "$statement" >"$out"
			growth_same "first answer of $what" "$(head -n 1 "$out")" t
			[[ $what != refused && $what != status ]] || what="atomic_lock $what"
			growth_row first "$what" $round 1 "$(awk '/^Time:/ { print $2 }' "$out")" ms
		done
	done
	growth_drop growth_first
}
