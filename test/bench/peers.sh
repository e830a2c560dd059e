# shellcheck shell=bash disable=SC2034,SC2154
# test/bench/peers.sh - the servers other than PostgreSQL, for test/bench/run, which sources it:
# Redis twice, with default settings and with every write flushed, on private sockets, and etcd
# on a loopback port; and their clients.
#
# They keep their data beside PostgreSQL's, on the same disk. Each is stopped (SIGSTOP) while
# others are measured, so that its snapshots do not disturb them.

declare -A peer_pid=() peer_parent=() peer_address=() peer_version=()
peer_redis_always=(--appendonly yes --appendfsync always)

# peers_want SERVER...: installs those that are available
peers_want() {
	local server redis=''
	peers=()
	for server in "$@"; do
		if [ "$server" = etcd ]; then
			al_offer etcd || continue
			peer_version[etcd]=$(etcd --version | sed -n 's/^etcd Version: //p')
		else
			[ -n "$redis" ] || { al_offer redis && redis=yes || redis=no; }
			[ $redis = yes ] || continue
			peer_version[redis]=$(redis-server --version | sed -n 's/.*v=\([0-9.]*\).*/\1/p')
		fi
		peers+=("$server")
	done
}

peer_is_there() { [[ " ${peers[*]-} " == *" $1 "* ]]; }

# peers_build: compiles clients; peers_start waits for that of etcd, which takes a while.
peers_build() {
	local include lib redis=()
	include=$("$PG_CONFIG" --includedir) lib=$("$PG_CONFIG" --libdir)
	if peer_is_there redis_default || peer_is_there redis_always; then redis=(-DHAVE_HIREDIS -lhiredis); fi
	as_user gcc -O2 -Wall -Wextra "-I$include" "$here/hotset.c" -o "$AL_SCRATCH/hotset" "-L$lib" \
		"-Wl,-rpath,$lib" -lpq -pthread ${redis[@]+"${redis[@]}"} || die 'test/bench/hotset.c does not compile'
	peer_go=
	if peer_is_there etcd; then
		# The place of the client since etcd 3.5
		if [ -d /usr/share/gocode/src/go.etcd.io/etcd/client/v3 ]; then
			as_user sed -i 's|go.etcd.io/etcd/clientv3|go.etcd.io/etcd/client/v3|' "$here/peers/etcd.go"
		fi
		as_user env HOME="$AL_SCRATCH/t" GOCACHE="$AL_SCRATCH/t/go" GO111MODULE=off GOPROXY=off GOFLAGS= \
			GOPATH=/usr/share/gocode go build -o "$AL_SCRATCH/etcd_client" "$here/peers/etcd.go" \
			>"$AL_SCRATCH/go.log" 2>&1 &
		peer_go=$!
	fi
}

# peer_run SERVER COMMAND...: runs it in the background
peer_run() {
	local server=$1 as=()
	shift
	[ "$(id -u)" != 0 ] || as=(runuser -u "$AL_USER" --)
	# shellcheck disable=SC2016 # for that shell to expand
	HOME=$AL_SCRATCH ${as[@]+"${as[@]}"} sh -c 'echo $$ >"$0.pid"; exec "$@" >"$0.log" 2>&1 </dev/null' \
		"$data.$server" "$@" &
	# When started by root, this is runuser, which ends with the server.
	peer_parent[$server]=$!
	disown
	while [ ! -s "$data.$server.pid" ]; do sleep 0.02; done
	peer_pid[$server]=$(cat "$data.$server.pid")
}

# peer_wait SERVER COMMAND...: waits until the command succeeds
peer_wait() {
	local server=$1 i
	shift
	for ((i = 0; i < 200; i++)); do
		if "$@" >/dev/null 2>&1; then return 0; fi
		kill -0 "${peer_pid[$server]}" 2>/dev/null || return 1
		sleep 0.05
	done
	return 1
}

peer_port_answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }

peers_start() {
	local server port i options
	for server in ${peers[@]+"${peers[@]}"}; do
		as_user mkdir "$data.$server"
		if [ "$server" = etcd ]; then
			wait "$peer_go" || { cat "$AL_SCRATCH/go.log" >&2 && die 'test/bench/peers/etcd.go does not compile'; }
			for ((i = 0; i < 20; i++)); do
				port=$((20000 + RANDOM % 12000))
				if peer_port_answers $port 2>/dev/null; then continue; fi
				peer_run etcd etcd --data-dir "$data.etcd" --log-level error \
					--listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
					--listen-peer-urls http://127.0.0.1:0
				if peer_wait etcd peer_port_answers $port; then break; fi
			done
			peer_address[etcd]=127.0.0.1:$port
		else
			peer_address[$server]=$AL_SCRATCH/$server
			options=()
			[ "$server" != redis_always ] || options=("${peer_redis_always[@]}")
			peer_run "$server" redis-server --port 0 --unixsocket "${peer_address[$server]}" --unixsocketperm 700 \
				--dir "$data.$server" ${options[@]+"${options[@]}"}
			if peer_wait "$server" as_user redis-cli -s "${peer_address[$server]}" ping; then
				for ((i = 0; i < 10000; i++)); do printf 'SET held:%d somebody PX 86400000\r\n' "$i"; done |
					as_user redis-cli -s "${peer_address[$server]}" --pipe >/dev/null
			fi
		fi
		if ! kill -0 "${peer_pid[$server]}" 2>/dev/null; then
			cat "$data.$server.log" >&2
			die "$server does not start"
		fi
		peer_rest "$server"
	done
}

peer_wake() { kill -CONT "${peer_pid[$1]}"; }
peer_rest() { kill -STOP "${peer_pid[$1]}"; }

# peer_client SERVER KIND CLIENTS [OPTION...]: prints count, rate and percentiles like hotset.c
peer_client() {
	local server=$1 kind=$2 clients=$3 status=0
	shift 3
	peer_wake "$server"
	if [ "$server" = etcd ]; then
		as_user "$AL_SCRATCH/etcd_client" "$clients" "$duration" "$keys" "${peer_address[etcd]}" || status=$?
	else
		as_user "$AL_SCRATCH/hotset" "$@" "$kind" redis "$clients" "$duration" "${peer_address[$server]}" || status=$?
	fi
	peer_rest "$server"
	return $status
}

# Redis has only the keys that it had before.
peers_check() {
	local server n
	for server in ${peers[@]+"${peers[@]}"}; do
		[ "$server" != etcd ] || continue
		peer_wake "$server"
		n=$(as_user redis-cli -s "${peer_address[$server]}" dbsize)
		peer_rest "$server"
		[ "$n" != 10000 ] || continue
		wrong=yes
		printf '\nWRONG COUNTS: %s has %s keys in the end, not the 10000 of the beginning\n' "$server" "$n"
	done
}

peers_stop() {
	local server
	for server in "${!peer_pid[@]}"; do
		# The parent first, or it would report the kill
		kill -KILL "${peer_parent[$server]}" 2>/dev/null || true
		kill -KILL "${peer_pid[$server]}" 2>/dev/null || true
	done
	peer_pid=()
}
