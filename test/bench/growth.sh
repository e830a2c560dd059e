# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/growth.sh - the growth section of test/bench/run, which sources it: whether speed
# and size stay the same while the work grows, compared with hand-written SQL.
#
#   cycles   the same ten keys acquired and released CYCLES times without vacuum, and
#            a tenth of that beside an old snapshot
#   shared   ten owners share a key and release it a tenth of CYCLES times without
#            vacuum, and the same beside a thousand other sharers
#   held     pairs while up to HELD other leases are held
#   once     ONCE keys, each used a single time and swept
#   owner    lock_release_all() beside HELD leases of others
#   memory   bytes of table and index for each of HELD leases
#   backend  memory of a backend over CALLS calls
#   first    the first call of a backend
#
# The compared runs alternate, in another order each round, and each ratio is that of one
# round. growth.tsv has a line for each figure.

growths=()
for growth in ${GROWTH:-cycles shared held once owner memory backend first}; do
	[[ " cycles shared held once owner memory backend first " == *" $growth "* ]] || die "GROWTH has no part \"$growth\""
	growths+=("$growth")
done
growth_cycles=${CYCLES:-1000000} growth_held=${HELD:-1000000} growth_once=${ONCE:-100000} growth_calls=${CALLS:-1000000}
for growth in "$growth_cycles" "$growth_held" "$growth_once" "$growth_calls"; do
	[[ $growth =~ ^[1-9][0-9]*000$ ]] || die "CYCLES, HELD, ONCE and CALLS must be multiples of 1000, not \"$growth\""
done
growth_clients=8 growth_used=10000
growth_relaxed='-c synchronous_commit=off -c atomic_lock.acquire_durability=session'
# shellcheck source=test/bench/growth_size.sh
. "$AL_TOP/test/bench/growth_size.sh"
declare -A growth_filled growth_table growth_index

# ---------------------------------------------------------------------------
# Tools
# ---------------------------------------------------------------------------

# growth_psql DATABASE ARG...
growth_psql() {
	local database=$1
	shift
	psql "$@" -d "$database"
}

# growth_row SECTION WHAT ROUND X VALUE UNIT
growth_row() {
	local IFS=$'\t'
	printf '%s\n' "$*" >>"$growth_runs"
}

# growth_database NAME [USED]: creates a database with USED keys that have been used
growth_database() {
	growth_drop "$1"
	as_user "$AL_BIN/createdb" -h "$socket" -U postgres "$1"
	growth_psql "$1" -v used="${2-$growth_used}" -f "$here/growth.sql"
}

growth_drop() { as_user "$AL_BIN/dropdb" --if-exists -h "$socket" -U postgres "$1" 2>"$AL_SCRATCH/dropdb.err"; }

# growth_without_vacuum DATABASE
growth_without_vacuum() {
	growth_psql "$1" -c 'ALTER TABLE app_lock SET (autovacuum_enabled = false, toast.autovacuum_enabled = false)' \
		-c 'ALTER TABLE sql_lock SET (autovacuum_enabled = false, toast.autovacuum_enabled = false)'
}

# growth_pgbench ROLE DATABASE SCRIPT ARG...: sets n and tps
growth_pgbench() {
	local role=$1 database=$2 script=$3 out=$AL_SCRATCH/growth_$3.out
	shift 3
	run_pgbench "growth: $script" "$out" env PGOPTIONS="${growth_options-}" "$AL_BIN/pgbench" -n -M prepared \
		-h "$socket" -U "$role" "$@" -f "$here/growth_$script.sql" "$database"
}

# growth_pairs ROLE DATABASE lock|sql SCRIPT ARG...: 8 clients run pairs of this kind. Sets n
# and tps, and checks that the same number was granted.
growth_pairs() {
	local role=$1 database=$2 kind=$3 before after deadline
	shift 3
	before=$(growth_granted "$database" "$kind")
	# Avoid plans made for the small table of the beginning.
	growth_options='-c enable_seqscan=off' growth_pgbench "$role" "$database" "${kind}_$1" -c $growth_clients \
		-j $((growth_clients < cpus ? growth_clients : cpus)) -D used=$growth_used -D clients=$growth_clients "${@:2}"
	deadline=$((SECONDS + 10))
	# Backends report statistics when they end, slightly after their clients.
	while :; do
		after=$(growth_granted "$database" "$kind")
		[ "$((${before% *} + n)) $((${before#* } + n))" != "$after" ] || return 0
		[ $SECONDS -lt $deadline ] || break
		sleep 0.05
	done
	growth_wrong "$n pairs by $kind in $database: granted and released were $before before, and are $after"
}

# The numbers of grants and releases. Counting rows of app_lock would prune it, so growth_left
# looks at the remaining ones at the end.
growth_granted() {
	if [ "$2" = lock ]; then
		growth_psql "$1" -c 'SELECT last_value, last_value FROM app_lock_fence'
	else
		growth_psql "$1" -c "SELECT n_tup_ins, n_tup_del FROM pg_stat_all_tables WHERE relid = 'sql_lock'::regclass"
	fi
}

# growth_left DATABASE: checks that only the leases of growth_fill are held
growth_left() {
	local held="expires_at > clock_timestamp() AND (key < 'order:' OR key >= 'order;')"
	growth_same "leases left in $1" "$(growth_psql "$1" -c "SELECT (SELECT count(*) FROM app_lock WHERE $held AND NOT released),
		(SELECT count(*) FROM sql_lock WHERE $held)")" '0 0'
}

# growth_same WHAT FOUND EXPECTED
growth_same() { [ "$2" = "$3" ] || growth_wrong "$1 should be $3, and are $2"; }

growth_wrong() {
	wrong=yes
	printf '\nWRONG COUNTS where it grows: %s\n' "$*"
}

# growth_script NAME: writes a script from standard input
growth_script() { as_user tee "$here/growth_$1.sql" >/dev/null; }

# growth_pair_scripts NAME KEY SETTER...: scripts for pairs of both kinds, on keys of the
# client's own
growth_pair_scripts() {
	local name=$1 key=$2
	shift 2
	growth_script "lock_$name" <<-END
		$(printf '%s\n' "$@")
		SELECT owner FROM lock_acquire($key) \\gset
		SELECT lock_release($key, :owner);
	END
	growth_script "sql_$name" <<-END
		$(printf '%s\n' "$@")
		INSERT INTO sql_lock AS l (key, owner, expires_at)
			VALUES ($key, gen_random_uuid(), clock_timestamp() + interval '5 minutes')
			ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at
			WHERE l.expires_at <= clock_timestamp()
			RETURNING owner \\gset
		DELETE FROM sql_lock WHERE key = $key AND owner = :owner;
	END
}

growth_scripts() {
	# Two of the clients have two keys.
	growth_pair_scripts cycle "'cycle:' || :n" \
		'\set n :client_id + 8 * random(0, CASE WHEN :client_id < 2 THEN 1 ELSE 0 END)'
	growth_script lock_shared <<-END
		\\set n :client_id + 8 * random(0, CASE WHEN :client_id < 2 THEN 1 ELSE 0 END)
		SELECT acquired FROM lock_acquire('shared', owner => 'owner:' || :n, mode => 'shared');
		SELECT lock_release('shared', 'owner:' || :n);
	END
	growth_pair_scripts pair "'pair:' || :n" '\set n random(0, :used / :clients - 1) * :clients + :client_id'
	growth_pair_scripts once "'once:' || :client_id || ':' || :i" '\set i :i + 1'
	# Keys of 30 bytes
	growth_fill_scripts random "'order:' || substr(md5(n::text), 1, 24)"
	growth_fill_scripts rising "'order:' || lpad(n::text, 24, '0')"
	growth_backend_scripts
}

# growth_turns ROUND WORD...: the words, in reverse order every second round
growth_turns() {
	local round=$1 i
	shift
	for ((i = 1; i <= $#; i++)); do
		if [ $((round % 2)) = 1 ]; then printf '%s\n' "${!i}"; else printf '%s\n' "${@:$(($# + 1 - i)):1}"; fi
	done
}

growth_what() { if [ "$1" = lock ]; then echo atomic_lock; else echo "$1"; fi; }

# growth_ratio A B
growth_ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.4f", a / b }'; }

# ---------------------------------------------------------------------------
# Databases with many leases: growth_full, with owners generated by lock_acquire, and
# growth_named, with UUIDs of the clients as owners
# ---------------------------------------------------------------------------

# growth_fill_scripts ORDER KEY: scripts for leases :from to :to, 500 per transaction
growth_fill_scripts() {
	local range='generate_series(:start, least(:start + 499, :to - 1)) n'
	local setter='\set i :i + 1' start='\set start :from + ((:i - 1) * :clients + :client_id) * 500'
	growth_script "fill_full_$1" <<-END
		$setter
		$start
		SELECT count(*) FROM $range, LATERAL lock_acquire($2, ttl => '24 hours');
	END
	growth_script "fill_named_$1" <<-END
		$setter
		$start
		SELECT count(*) FROM $range, LATERAL lock_acquire($2, ttl => '24 hours', owner => gen_random_uuid()::text);
	END
	growth_script "fill_sql_$1" <<-END
		$setter
		$start
		INSERT INTO sql_lock SELECT $2, gen_random_uuid(), clock_timestamp() + interval '24 hours' FROM $range;
	END
}

# growth_fill DATABASE full|named|sql ORDER TO: holds leases up to number TO. The growth in size
# is added to growth_table and growth_index.
growth_fill() {
	local database=$1 what=$2 order=$3 to=$4 table=app_lock clients=2 from n tps before after
	[ "$what" != sql ] || table=sql_lock
	[ "$order" = random ] || clients=1
	from=${growth_filled[$database $what]-0}
	[ "$from" -lt "$to" ] || return 0
	before=$(growth_psql "$database" -c "SELECT pg_table_size('$table'), pg_indexes_size('$table')")
	growth_options=$growth_relaxed growth_pgbench postgres "$database" "fill_${what}_$order" -c $clients -j $clients \
		-t $(((to - from + 500 * clients - 1) / (500 * clients))) -D i=0 -D clients=$clients -D from="$from" -D to="$to"
	after=$(growth_psql "$database" -c "SELECT pg_table_size('$table'), pg_indexes_size('$table')")
	growth_table[$database $what]=$((${growth_table[$database $what]-0} + ${after% *} - ${before% *}))
	growth_index[$database $what]=$((${growth_index[$database $what]-0} + ${after#* } - ${before#* }))
	growth_filled[$database $what]=$to
	# Do the work that filling has left, so that later measurements do not pay for it.
	growth_psql "$database" -c "VACUUM ANALYZE $table" -c CHECKPOINT
	growth_same "leases of $database" "$(growth_psql "$database" -c "SELECT count(*) FROM $table
		WHERE expires_at > clock_timestamp() AND key ~ '^order:'")" "$to"
}

# growth_need DATABASE: creates and fills it, if that has not been done
growth_need() {
	if [ -z "${growth_filled[$1]-}" ]; then
		growth_database "$1" 1
		growth_filled[$1]=yes
	fi
	growth_fill "$1" "${1#growth_}" random "$growth_held"
	growth_fill "$1" sql random "$growth_held"
}

# ---------------------------------------------------------------------------
# cycles
# ---------------------------------------------------------------------------

# growth_cycle SECTION KIND SCRIPT CYCLES STEPS WHAT: runs CYCLES cycles in STEPS steps, or as
# many as the time allows
growth_cycle() {
	local section=$1 kind=$2 script=$3 cycles=$4 steps=$5 what=$6 step=0 done=0 n tps database=growth_$2 table=app_lock
	local seconds=$(((cycles / 20 + 6000) / 12000))
	[ "$kind" = lock ] || table=sql_lock
	printf '%s:' "$what"
	while [ $step -lt 4 ] || [ $done -lt "$cycles" ]; do
		[ $((step += 1)) -le "$steps" ] || break
		growth_pairs app "$database" "$kind" "$script" -T $((seconds > 0 ? seconds : 1))
		done=$((done + n))
		growth_row "$section" "$what" "$step" $done "$tps" pairs/s
		growth_row "$section" "$what" "$step" $done "$(growth_psql "$database" -c "SELECT pg_total_relation_size('$table')")" bytes
		printf ' %.0f' "$tps"
	done
	printf ' pairs/s, %d cycles\n' $done
}

# Compares the used table with a new one, at the machine's present speed
growth_cycles_again() {
	local round database seconds=$((duration < 2 ? duration : 2)) n tps
	declare -A at
	growth_database growth_new 1
	growth_without_vacuum growth_new
	growth_pairs app growth_new lock cycle -T 1
	for ((round = 1; round <= rounds; round++)); do
		for database in $(growth_turns $round growth_lock growth_new); do
			growth_pairs app "$database" lock cycle -T $seconds
			at[$database]=$tps
		done
		growth_row cycles atomic_lock $round "$growth_cycles" "$(growth_ratio "${at[growth_lock]}" "${at[growth_new]}")" times_new
	done
	growth_drop growth_new
}

growth_run_cycles() {
	local kind what holder
	# A step of a million cycles is 4 s: ours has 240 s in all, enough from 4200 pairs/s on. The
	# SQL's table keeps growing, which a part of the cycles shows.
	declare -A steps=([lock]=60 [sql]=15)
	for kind in lock sql; do
		what=$(growth_what $kind)
		growth_database growth_$kind 1
		growth_without_vacuum growth_$kind
		growth_cycle cycles $kind cycle "$growth_cycles" "${steps[$kind]}" "$what"
		[ $kind = sql ] || growth_cycles_again
		growth_left growth_$kind
		growth_drop growth_$kind
	done
	for kind in lock sql; do
		what="$(growth_what $kind) old_snapshot"
		growth_database growth_$kind 1
		growth_without_vacuum growth_$kind
		mkfifo "$AL_SCRATCH/growth.fifo"
		growth_psql growth_$kind <"$AL_SCRATCH/growth.fifo" >"$AL_SCRATCH/growth.snapshot" &
		holder=$!
		exec 7>"$AL_SCRATCH/growth.fifo"
		printf 'BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) FROM sql_lock;\n' >&7
		while [ ! -s "$AL_SCRATCH/growth.snapshot" ]; do sleep 0.05; done
		growth_cycle cycles $kind cycle $((growth_cycles / 10)) 15 "$what"
		growth_same 'open snapshots' "$(psql -c "SELECT count(*) FROM pg_stat_activity
			WHERE datname = 'growth_$kind' AND state = 'idle in transaction' AND backend_xmin IS NOT NULL")" 1
		exec 7>&-
		wait $holder
		rm -f "$AL_SCRATCH/growth.fifo"
		growth_left growth_$kind
		growth_drop growth_$kind
	done
}

# ---------------------------------------------------------------------------
# shared
# ---------------------------------------------------------------------------

# Time enough for 100,000 cycles at 1700 a second. No peer shares keys, so there is no
# comparison.
growth_run_shared() {
	local readers what
	for readers in 0 1000; do
		what=atomic_lock
		[ $readers = 0 ] || what+=" $readers readers"
		growth_database growth_lock 1
		growth_without_vacuum growth_lock
		growth_psql growth_lock -c "SELECT count(*) FROM generate_series(1, $readers) n,
			LATERAL lock_acquire('shared', '24 hours', 'reader:' || n, 'shared')" >/dev/null
		growth_row shared "$what" 0 0 "$(growth_psql growth_lock -c "SELECT pg_total_relation_size('app_lock')")" bytes
		growth_cycle shared lock shared $((growth_cycles / 10)) 60 "$what"
		growth_same 'readers that are left' "$(growth_psql growth_lock -c 'SELECT count(*) FROM lock_status()')" $readers
		growth_drop growth_lock
	done
}

# ---------------------------------------------------------------------------
# held
# ---------------------------------------------------------------------------

growth_run_held() {
	local level round kind role what database n tps seconds=$((duration < 2 ? duration : 2))
	local level_rounds=$((rounds < 3 ? rounds : 3))
	declare -A at
	growth_database growth_empty
	growth_database growth_full
	growth_filled[growth_full]=yes
	for level in $((growth_held / 100)) $((growth_held / 10)) "$growth_held"; do
		growth_fill growth_full full random "$level"
		growth_fill growth_full sql random "$level"
		# After a checkpoint, pages are written in full once.
		for database in growth_empty growth_full; do
			for kind in lock sql; do growth_pairs app_relaxed $database $kind pair -T 1; done
		done
		printf '%d held:' "$level"
		for ((round = 1; round <= level_rounds; round++)); do
			for kind in lock sql; do
				for role in app app_relaxed; do
					what=$(growth_what $kind)
					[ $role = app ] || what+=' relaxed'
					for database in $(growth_turns $round growth_empty growth_full); do
						growth_pairs $role "$database" $kind pair -T $seconds
						at[$database]=$tps
					done
					growth_row held "$what" $round 0 "${at[growth_empty]}" pairs/s
					growth_row held "$what" $round "$level" "${at[growth_full]}" pairs/s
					growth_row held "$what" $round "$level" "$(growth_ratio "${at[growth_full]}" "${at[growth_empty]}")" times_empty
					printf ' %s %.2f' "${what/ /_}" "$(growth_ratio "${at[growth_full]}" "${at[growth_empty]}")"
				done
			done
		done
		printf '\n'
	done
	growth_left growth_empty
	growth_left growth_full
	growth_drop growth_empty
}

# ---------------------------------------------------------------------------
# once
# ---------------------------------------------------------------------------

# growth_once ROUND KIND ROLE
growth_once() {
	local round=$1 kind=$2 role=$3 n tps what table=sql_lock suffix='' pairs sweep=0 vacuum out=$AL_SCRATCH/growth.out
	[ "$role" = app ] || suffix=' relaxed'
	what=$(growth_what "$kind")$suffix
	growth_database growth_once 1
	growth_pairs "$role" growth_once "$kind" once -t $((growth_once / growth_clients)) -D i=0
	pairs=$(awk -v n="$n" -v tps="$tps" 'BEGIN { printf "%.3f", n / tps }')
	if [ "$kind" = lock ]; then
		table=app_lock
		# All rows are deleted, and the last call finds none.
		for ((n = 0; n < growth_once / 1000 + 2; n++)); do echo 'SELECT lock_sweep();'; done |
			growth_psql growth_once -c '\timing on' -f - >"$out"
		growth_same 'rows that are swept' "$(awk '!/^Time:/ { n += $1 } END { print n + 0 }' "$out")" \
			$((growth_once / growth_clients * growth_clients + 1))
		growth_same 'rows of the last sweep' "$(grep -v '^Time:' "$out" | tail -n 1)" 0
		sweep=$(awk '/^Time:/ { t += $2 } END { printf "%.3f", t / 1000 }' "$out")
		growth_row once "$what sweep" "$round" "$growth_once" "$sweep" s
	fi
	growth_row once "$what" "$round" "$growth_once" "$(awk -v a="$pairs" -v b="$sweep" 'BEGIN { printf "%.3f", a + b }')" s
	vacuum=$(growth_psql growth_once -c '\timing on' -c "VACUUM $table" | awk '/^Time:/ { printf "%.3f", $2 / 1000 }')
	growth_row once "$what vacuum" "$round" "$growth_once" "$vacuum" s
	growth_drop growth_once
	printf ' %s %s+%s+%s' "${what/ /_}" "$pairs" "$sweep" "$vacuum"
}

growth_run_once() {
	local round lane once_rounds=$((rounds < 3 ? rounds : 3))
	psql -c "ALTER SYSTEM SET atomic_lock.released_retention = 0" -c 'SELECT pg_reload_conf()' >/dev/null
	for ((round = 1; round <= once_rounds; round++)); do
		printf 'seconds of pairs, sweep and vacuum:'
		for lane in $(growth_turns $round lock:app sql:app lock:app_relaxed sql:app_relaxed); do
			growth_once $round "${lane%:*}" "${lane#*:}"
		done
		printf '\n'
	done
	psql -c "ALTER SYSTEM RESET atomic_lock.released_retention" -c 'SELECT pg_reload_conf()' >/dev/null
}

# ---------------------------------------------------------------------------

run_growths() {
	local name began
	growth_scripts
	printf 'section\twhat\tround\tx\tvalue\tunit\n' >"$growth_runs"
	for name in "${growths[@]}"; do
		step "Growth: $name"
		began=$SECONDS
		"growth_run_$name"
		say "$name took $((SECONDS - began)) s"
	done
	for name in growth_full growth_named; do growth_drop $name; done
}

# Medians of figures with several rounds
print_growths() {
	step "Growth, medians; $setting"
	awk -F '\t' '
		'"$awk_median"'
		NR > 1 && !($1 ~ /^(cycles|shared)$/ && $6 != "times_new" && $3 % 5 != 1) {
			line = $1 SUBSEP $2 SUBSEP $4 SUBSEP $6
			if (!(line in list)) order[++lines] = line
			list[line] = list[line] " " $5
		}
		END {
			rounds = 1
			for (l = 1; l <= lines; l++) {
				split(order[l], k, SUBSEP)
				if (k[1] != section) { section = k[1]; printf "\n%s\n", section }
				value = median(list[order[l]])
				printf "  %-32s %9d %14s %s\n", k[2], k[3], sprintf(value < 100 ? "%.3f" : "%.0f", value), k[4]
			}
		}' "$growth_runs"
	say
	say 'The number before each figure is that of cycles so far (every fifth step), of leases held,'
	say 'of keys, or of calls.  Seconds of once have the sweep in them; vacuum comes on top of that.'
}
