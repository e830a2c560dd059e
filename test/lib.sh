# shellcheck shell=bash
# test/lib.sh - functions that `make test`, `make demo` and `make bench` share.
#
# For bash scripts with `set -euo pipefail`.  These functions touch neither a
# cluster of the machine nor a file of its PostgreSQL.  They make a private copy
# of the PostgreSQL programs (15 to 20 MB) and install the extension into the
# copy.  Every server of the copy listens on a socket in a private directory and
# on no TCP port.
#
#   al_require THING...     finds PostgreSQL, and installs missing THINGs
#                           (build tap pgtap cron history libpq plots deb) with
#                           apt.  Sets PG_CONFIG, PG_MAJOR.
#                           PG_CONFIG=/path/pg_config or PGVERSION=17 in the
#                           environment choose one of several PostgreSQLs.
#   al_offer THING          the same for optional things (redis etcd drivers python
#                           plproxy patroni).  Prints a line and fails if THING
#                           is not available; installs the available drivers.
#   al_choose_user          sets AL_USER, the user of the servers: the caller, or,
#                           for root, the owner of the project, postgres or nobody.
#   as_user CMD...          runs CMD as AL_USER.
#   al_scratch              makes a temporary directory for AL_USER, AL_SCRATCH,
#                           changes to it, and removes it when the script ends
#                           (after stopping the servers in it).
#   al_keep NAME OF         in place of al_scratch: AL_SCRATCH is the directory of
#                           the last run if its OF was the same, and remains,
#                           with its servers.  AL_TOP/NAME is a link to it, which
#                           git ignores.  al_keep_end NAME removes both.
#   al_build DIR [VAR=x..]  copies the project to DIR/src, builds it there, and
#                           installs it into a private PostgreSQL below
#                           DIR/pg.  DIR must belong to AL_USER.  Sets AL_SRC,
#                           AL_BIN (psql, initdb, pgbench ...) and
#                           AL_PG_CONFIG.  VAR=x are options of make.  After
#                           al_keep only changed files are compiled.
#                           AL_POSTGRES=FILE in the environment replaces the
#                           server by that script; the server itself is then
#                           beside it as postgres.real.
#   al_initdb DATA [OPT..]  makes a data directory; superuser is "postgres".
#   al_start DATA SOCKETDIR starts its server; only AL_USER and root can connect.
#                           The caller may add settings to DATA/postgresql.conf
#                           between al_initdb and al_start.
#   al_stop DATA            stops the server, if it runs.
#   al_running DATA         whether the server runs.
#
#   al_within SECONDS CMD.. runs CMD and ends it after SECONDS.  If the load of the
#                           machine is n times its number of processors, a second
#                           counts as 1/n.  Sets al_late if the time ran out.
#
#   say, step, die, bad_input   output.
#
# Connect with:  as_user "$AL_BIN/psql" -X -h SOCKETDIR -U postgres -d postgres

unset CDPATH
[ -d "${TMPDIR:-/tmp}" ] || unset TMPDIR
AL_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
AL_USER=
AL_SCRATCH=
AL_KEPT=
AL_PG_MIN=15

# The caller's PG variables must not lead us to another server, and the variables of
# make's command line (TESTS, SUITE) must not reach the PGXS makefiles.
for al_var in $(compgen -e PG); do
	case $al_var in
		PG_CONFIG | PGVERSION | PG_TEST_*) ;;
		*) unset "$al_var" ;;
	esac
done
unset al_var MAKEFLAGS GNUMAKEFLAGS MAKEFILES MFLAGS MAKEOVERRIDES MAKELEVEL BASH_ENV ENV
unset "${!LC_@}" LANGUAGE
# PostgreSQL::Test unsets LC_ALL, pg_regress the rest
export LANG=C.UTF-8 LC_ALL=C.UTF-8
umask 022

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}
# The caller named a suite, test or version that does not exist: one line, exit status 2
bad_input() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 2
}

[[ ${PGVERSION:-$AL_PG_MIN} =~ ^[0-9]+$ ]] || bad_input "PGVERSION=$PGVERSION is no number"

# If a script defines al_at_exit, al_exit calls it last, with the exit status.
al_exit() {
	local status=$?
	al_apt_done
	al_scratch_end
	if declare -F al_at_exit >/dev/null; then al_at_exit "$status"; fi
}
trap al_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# al_end_jobs: ends the background jobs of a script and their children, before the
# script removes their directories
al_end_jobs() {
	local job
	for job in $(jobs -pr); do al_end_tree "$job"; done
	wait || true
}

# al_end_tree PID [SIGNAL]
al_end_tree() {
	local child
	# Stop it first, so that it starts no more children.
	kill -STOP "$1" 2>/dev/null || return 0
	for child in $(ps -o pid= --ppid "$1"); do al_end_tree "$child" "${2:-TERM}"; done
	kill -"${2:-TERM}" "$1" 2>/dev/null || true
	kill -CONT "$1" 2>/dev/null || true
}

al_within() {
	local limit=$1 owner=$BASHPID job watch status=0
	shift
	"$@" &
	job=$!
	(
		exec >/dev/null 2>&1 9>&-
		trap 'exit 1' TERM
		left=$((limit * 1000)) processors=$(nproc || echo 1)
		while [ "$left" -gt 0 ]; do
			sleep 5
			kill -0 "$owner" && kill -0 "$job" || exit 1
			load=0
			read -r load _ </proc/loadavg || true
			load=$((10#${load/./})) # hundredths
			left=$((left - 5000 * processors * 100 / (load > processors * 100 ? load : processors * 100)))
		done
		trap '' TERM
		al_end_tree "$job"
		for _ in {1..30}; do
			kill -0 "$job" || exit 0
			sleep 1
		done
		al_end_tree "$job" KILL
	) &
	watch=$!
	wait "$job" || status=$?
	al_end_tree "$watch"
	# shellcheck disable=SC2034 # for the caller
	if wait "$watch"; then al_late=yes status=124; else al_late=; fi
	return $status
}

# ---------------------------------------------------------------------------
# Finding PostgreSQL, installing what is missing
# ---------------------------------------------------------------------------

# al_apt_conf: prevents that packages create a "main" cluster or start a service while
# apt unpacks them.  al_apt_done removes the files that this takes.
al_apt_made=()

al_apt_conf() {
	local f=/etc/postgresql-common/createcluster.d/zz_atomic_lock.conf d
	for d in /etc/postgresql-common "${f%/*}"; do
		[ -d "$d" ] || { al_sudo mkdir "$d" && al_apt_made=("$d" ${al_apt_made[@]+"${al_apt_made[@]}"}); }
	done
	al_apt_made=("$f" ${al_apt_made[@]+"${al_apt_made[@]}"})
	echo 'create_main_cluster = false' | al_sudo tee "$f" >/dev/null
	f=/usr/sbin/policy-rc.d
	if [ ! -e "$f" ]; then
		al_apt_made=("$f" "${al_apt_made[@]}")
		printf '#!/bin/sh\n# of atomic_lock: no service starts while its tools are installed\nexit 101\n' |
			al_sudo tee "$f" >/dev/null
		al_sudo chmod 755 "$f"
	fi
}

al_apt_done() {
	local f
	for f in ${al_apt_made[@]+"${al_apt_made[@]}"}; do
		if [ -d "$f" ]; then
			al_sudo rmdir --ignore-fail-on-non-empty "$f"
		else
			al_sudo rm -f "$f"
		fi
	done
	al_apt_made=()
}

al_sudo() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

al_apt_update_done=
al_apt_update() {
	[ -z "$al_apt_update_done" ] || return 0
	command -v apt-get >/dev/null ||
		die "this system has no apt-get; please install PostgreSQL $AL_PG_MIN or newer with its server headers, gcc and make, and name its pg_config: PG_CONFIG=/path/to/pg_config"
	if ! al_sudo true; then
		die "packages are missing and sudo does not let us install them; please have this done as root: apt-get install ${*:-postgresql-N postgresql-server-dev-N gcc make}"
	fi
	say "Bringing apt's package lists up to date"
	al_sudo apt-get update -qq || say "(apt-get update failed; going on with the lists there are)"
	al_apt_update_done=yes
}

al_apt_install() {
	local log
	al_apt_update "$@"
	say "Installing with apt-get: $*"
	if [[ " $*" == *" postgresql-"* || " $*" == *" pgbouncer"* || " $*" == *-server* || " $*" == *" haproxy"* ]]; then al_apt_conf; fi
	log=$(mktemp)
	if ! al_sudo env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
		apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 \
		-o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null; then
		tail -n 40 "$log" >&2
		rm -f "$log"
		die "apt-get could not install: $*"
	fi
	rm -f "$log"
	al_apt_done
}

# al_probe: is this a PostgreSQL with server programs?  Sets PG_MAJOR.
al_probe() {
	local v bin
	v=$("$1" --version 2>/dev/null) || return 1
	v=${v#PostgreSQL }
	PG_MAJOR=${v%%[!0-9]*}
	bin=$("$1" --bindir)
	[ -x "$bin/postgres" ]
}

al_has_headers() {
	[ -f "$("$1" --pgxs)" ] && [ -f "$("$1" --includedir-server)/postgres.h" ]
}

# al_find_pg: sets PG_MAJOR, and PG_CONFIG unless a package has to be installed
# first.
al_find_pg() {
	local n c best=
	if [ -n "${PG_CONFIG:-}" ]; then
		c=$(command -v "$PG_CONFIG") || c=$PG_CONFIG
		if al_probe "$c"; then
			PG_CONFIG=$c
		elif [[ $c =~ ^/usr/lib/postgresql/([0-9]+)/bin/pg_config$ ]]; then
			PGVERSION=${BASH_REMATCH[1]} PG_CONFIG=
		else
			die "$PG_CONFIG is not the pg_config of a PostgreSQL server"
		fi
	fi
	if [ -n "${PG_CONFIG:-}" ]; then
		:
	elif [ -n "${PGVERSION:-}" ]; then
		PG_MAJOR=$PGVERSION
	elif al_probe pg_config && [ "$PG_MAJOR" -ge $AL_PG_MIN ] && al_has_headers pg_config; then
		PG_CONFIG=$(command -v pg_config)
	else
		PG_MAJOR=
		for c in /usr/lib/postgresql/*/bin/postgres; do
			n=${c#/usr/lib/postgresql/} n=${n%%/*}
			if [ -x "$c" ] && [[ $n =~ ^[0-9]+$ ]] && [ "$n" -ge $AL_PG_MIN ] &&
				[ "$n" -gt "${best:-0}" ]; then
				best=$n
			fi
		done
		if [ -z "$best" ]; then
			al_apt_update
			best=$(apt-cache depends postgresql 2>/dev/null |
				sed -n 's/^ *Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1)
			[ -n "$best" ] || die "apt knows no package postgresql"
			[ "$best" -ge $AL_PG_MIN ] ||
				die "this distribution has PostgreSQL $best, atomic_lock needs $AL_PG_MIN or newer; please add the packages of https://apt.postgresql.org and say PGVERSION=17"
		fi
		PG_MAJOR=$best
	fi
	[ "$PG_MAJOR" -ge $AL_PG_MIN ] 2>/dev/null ||
		die "PostgreSQL ${PG_MAJOR:-(unknown)} is too old, atomic_lock needs $AL_PG_MIN or newer"
	AL_PACKAGED=
	if [ -z "${PG_CONFIG:-}" ]; then
		PG_CONFIG=/usr/lib/postgresql/$PG_MAJOR/bin/pg_config
	fi
	case $("$PG_CONFIG" --bindir 2>/dev/null || echo "${PG_CONFIG%/*}") in
		/usr/lib/postgresql/*) AL_PACKAGED=yes ;;
	esac
}

al_require() {
	local thing p=() other=()
	al_find_pg
	for thing in "$@"; do
		case $thing in
			build)
				command -v gcc >/dev/null || p+=(gcc)
				command -v make >/dev/null || p+=(make)
				command -v ps >/dev/null || p+=(procps)
				[ -f /usr/include/stdio.h ] || p+=(libc6-dev)
				al_probe "$PG_CONFIG" || other+=("postgresql-$PG_MAJOR")
				al_has_headers "$PG_CONFIG" 2>/dev/null || other+=("postgresql-server-dev-$PG_MAJOR")
				;;
			tap)
				perl -MTest::More -MTAP::Harness -e 1 2>/dev/null || p+=(perl)
				perl -MIPC::Run -e 1 2>/dev/null || p+=(libipc-run-perl)
				;;
			pgtap)
				[ -f "$("$PG_CONFIG" --sharedir 2>/dev/null)/extension/pgtap.control" ] ||
					other+=("postgresql-$PG_MAJOR-pgtap")
				;;
			cron)
				[ -f "$("$PG_CONFIG" --sharedir 2>/dev/null)/extension/pg_cron.control" ] ||
					other+=("postgresql-$PG_MAJOR-cron")
				;;
			history)
				/usr/bin/python3 -c 'import psycopg2' 2>/dev/null || p+=(python3 python3-psycopg2)
				[ -x /usr/sbin/pgbouncer ] || p+=(pgbouncer)
				;;
			libpq)
				[ -f "$("$PG_CONFIG" --includedir 2>/dev/null)/libpq-fe.h" ] || p+=(libpq-dev)
				;;
			plots)
				/usr/bin/python3 -c 'import matplotlib' 2>/dev/null || p+=(python3 python3-matplotlib)
				;;
			deb)
				[ -x /usr/bin/dh ] || p+=(debhelper)
				[ -x /usr/bin/dh_pgxs_test ] || p+=(postgresql-server-dev-all)
				;;
			*) die "al_require: $thing?" ;;
		esac
	done
	if [ ${#other[@]} -gt 0 ] && [ -z "$AL_PACKAGED" ]; then
		die "the PostgreSQL of $PG_CONFIG lacks what these packages have: ${other[*]}"
	fi
	p+=(${other[@]+"${other[@]}"})
	[ ${#p[@]} -eq 0 ] || al_apt_install "${p[@]}"
	hash -r
	al_probe "$PG_CONFIG" || die "$PG_CONFIG is not the pg_config of a PostgreSQL server"
	al_has_headers "$PG_CONFIG" || die "the server headers of $PG_CONFIG are missing"
}

al_offer() {
	local p=() there=() package
	case $1 in
		redis)
			command -v redis-server >/dev/null || p+=(redis-server)
			[ -f /usr/include/hiredis/hiredis.h ] || p+=(libhiredis-dev)
			;;
		etcd)
			[ -x /usr/bin/etcd ] || p+=(etcd-server)
			command -v go >/dev/null || p+=(golang-go)
			[ -d /usr/share/gocode/src/go.etcd.io/etcd ] || p+=(golang-etcd-server-dev)
			;;
		drivers)
			# The drivers of doc/clients.md.  If the distribution lacks a
			# package, the tests of that driver are skipped.
			local go=/usr/share/gocode/src/github.com/jackc/pgx
			command -v php >/dev/null || p+=(php-cli)
			php -m 2>/dev/null | grep -q '^pdo_pgsql$' || p+=(php-pgsql)
			[ -d /usr/share/php/Illuminate/Cache ] || p+=(php-laravel-framework)
			[ -d /usr/share/php/Symfony/Component/Lock ] || p+=(php-symfony-lock)
			command -v javac >/dev/null || p+=(default-jdk-headless)
			[ -f /usr/share/java/postgresql.jar ] || p+=(libpostgresql-jdbc-java)
			/usr/bin/python3 -c 'import psycopg, psycopg_pool' 2>/dev/null || p+=(python3-psycopg python3-psycopg-pool)
			/usr/bin/python3 -c 'import tooz' 2>/dev/null || p+=(python3-tooz)
			/usr/bin/ruby -e 'require "pg"' 2>/dev/null || p+=(ruby ruby-pg)
			/usr/bin/perl -MDBD::Pg -e 1 2>/dev/null || p+=(libdbd-pg-perl)
			command -v go >/dev/null || p+=(golang-go)
			[ -d "$go/v5" ] || [ -d "$go/v4" ] || p+=(golang-github-jackc-pgx-v5-dev golang-github-jackc-pgx-v4-dev)
			command -v node >/dev/null || p+=(nodejs)
			NODE_PATH=${NODE_PATH:-}:/usr/share/nodejs node -e 'require("pg")' 2>/dev/null ||
				command -v npm >/dev/null || p+=(node-pg) # or see al_node_pg
			;;
		python)
			# The tools that build the package of clients/python, and what the package needs
			/usr/bin/python3 -c 'import psycopg, psycopg_pool' 2>/dev/null || p+=(python3-psycopg python3-psycopg-pool)
			/usr/bin/python3 -c 'import pip, setuptools, wheel' 2>/dev/null || p+=(python3-pip python3-setuptools python3-wheel)
			;;
		plproxy)
			[ -f "$("$PG_CONFIG" --sharedir)/extension/plproxy.control" ] || p+=("postgresql-$PG_MAJOR-plproxy")
			/usr/bin/python3 -c 'import psycopg' 2>/dev/null || p+=(python3-psycopg)
			;;
		patroni)
			[ -x /usr/bin/patroni ] || p+=(patroni)
			[ -x /usr/bin/etcd ] || p+=(etcd-server)
			/usr/bin/python3 -c 'import etcd' 2>/dev/null || p+=(python3-etcd)
			[ -x /usr/sbin/haproxy ] || p+=(haproxy)
			;;
		*) die "al_offer: $1?" ;;
	esac
	[ ${#p[@]} -gt 0 ] || return 0
	if ! command -v apt-get >/dev/null || ! al_sudo true 2>/dev/null || [[ "$1" == plproxy && -z "$AL_PACKAGED" ]]; then
		say "$1 is left out: it needs the packages ${p[*]}"
		return 1
	fi
	al_apt_update "${p[@]}"
	for package in "${p[@]}"; do
		if apt-get install -s -q --no-install-recommends "$package" >/dev/null 2>&1; then
			there+=("$package")
		elif [ "$1" = drivers ]; then
			say "$package is left out: it cannot be installed here"
		else
			say "$1 is left out: this distribution has no package $package"
			return 1
		fi
	done
	[ ${#there[@]} -gt 0 ] || return 0
	al_apt_install "${there[@]}"
	hash -r
}

# al_node_pg DIR: installs node-postgres by npm into DIR if the distribution's package
# does not work with the installed node.  Sets NODE_PATH.
al_node_pg() {
	export NODE_PATH=${NODE_PATH:+$NODE_PATH:}$1/node_modules:/usr/share/nodejs
	node -e 'require("pg")' 2>/dev/null && return 0
	command -v npm >/dev/null || return 0
	as_user mkdir -p "$1"
	as_user npm install --silent --no-audit --no-fund --prefix "$1" --cache "$1/cache" pg@8 >/dev/null ||
		say 'node-postgres is left out: npm cannot install it'
}

# ---------------------------------------------------------------------------
# The user that runs servers, and directories
# ---------------------------------------------------------------------------

al_choose_user() {
	local u
	AL_USER=$(id -un)
	[ "$(id -u)" = 0 ] || return 0
	# Servers refuse to run as root.
	for u in "$(stat -c %U "$AL_TOP")" postgres nobody; do
		if [ "$u" != root ] && id "$u" >/dev/null 2>&1; then
			AL_USER=$u
			return 0
		fi
	done
	die "servers refuse to run as root, and there is no user postgres or nobody"
}

as_user() {
	if [ "$(id -u)" = 0 ]; then
		HOME=${AL_SCRATCH:-/} runuser -u "$AL_USER" -- "$@"
	else
		"$@"
	fi
}

# al_tmpdir: makes a directory for AL_USER with a name short enough for a socket
al_tmpdir() {
	local base=${TMPDIR:-/tmp} d
	# AL_USER may have no access to root's TMPDIR, and the path of a socket has at most 107 bytes.
	if [ "$(id -u)" = 0 ] || [ ${#base} -gt 40 ]; then base=/tmp; fi
	d=$(mktemp -d "$base/$1.XXXXXX")
	[ "$(id -u)" != 0 ] || chown "$AL_USER:" "$d"
	(cd "$d" && pwd -P)
}

al_scratch() {
	AL_SCRATCH=$(al_tmpdir al)
	as_user mkdir "$AL_SCRATCH/t"
	export TMPDIR=$AL_SCRATCH/t
	cd "$AL_SCRATCH" || exit
}

al_scratch_end() {
	[ -n "$AL_SCRATCH" ] && [ -z "$AL_KEPT" ] || return 0
	al_stop_all "$AL_SCRATCH"
	cd /
	rm -rf "$AL_SCRATCH"
}

# al_stop_all DIR: stops all servers with data directories below DIR
al_stop_all() {
	local pid
	find "$1" -name postmaster.pid 2>/dev/null | while IFS= read -r pid; do
		al_stop "${pid%/postmaster.pid}" </dev/null >/dev/null 2>&1 || true
	done || true # find fails if a directory vanishes meanwhile
}

# al_kept NAME: sets AL_SCRATCH to the directory that al_keep left, if it belongs to us
al_kept() {
	AL_SCRATCH=$(readlink "$AL_TOP/$1") && [ -d "$AL_SCRATCH" ] &&
		[ "$(stat -c %U "$AL_SCRATCH")" = "$AL_USER" ] || AL_SCRATCH=
	[ -n "$AL_SCRATCH" ]
}

al_keep() {
	if al_kept "$1" && [ "$(cat "$AL_SCRATCH/of" 2>/dev/null)" != "$2" ]; then al_keep_end "$1"; fi
	if [ -z "$AL_SCRATCH" ]; then
		AL_SCRATCH=$(al_tmpdir al)
		as_user tee "$AL_SCRATCH/of" <<<"$2" >/dev/null
		as_user mkdir "$AL_SCRATCH/t"
		ln -sfn "$AL_SCRATCH" "$AL_TOP/$1"
		[ "$(id -u)" != 0 ] || chown -h --reference="$AL_TOP" "$AL_TOP/$1"
	fi
	AL_KEPT=yes
	# al_start closes this descriptor for servers.
	exec 9>"$AL_SCRATCH/lock"
	flock -n 9 || die "another run has $AL_SCRATCH"
	export TMPDIR=$AL_SCRATCH/t
	cd "$AL_SCRATCH" || exit
}

al_keep_end() {
	if al_kept "$1"; then
		AL_BIN=$(find "$AL_SCRATCH/pg" -name pg_ctl -printf '%h\n' -quit 2>/dev/null) AL_KEPT=
		al_scratch_end
	fi
	AL_SCRATCH=
	rm -f "$AL_TOP/$1"
}

# ---------------------------------------------------------------------------
# The private PostgreSQL
# ---------------------------------------------------------------------------

# al_private_pg ROOT: makes a private PostgreSQL below ROOT.  PostgreSQL finds its files
# relative to its programs, so copies of the programs, and links to the rest at the same
# relative paths, suffice, also for pg_config.  This works with every version and
# packaging; only Debian has the setting extension_destdir, and only before PostgreSQL 18.
al_private_pg() {
	local root=$1 bin share lib inc dir f
	bin=$("$PG_CONFIG" --bindir) share=$("$PG_CONFIG" --sharedir)
	lib=$("$PG_CONFIG" --pkglibdir)
	rm -rf "$root"
	mkdir -p "$root$bin"
	for f in postgres psql initdb createdb dropdb createuser dropuser vacuumdb reindexdb clusterdb pgbench; do
		[ ! -x "$bin/$f" ] || cp "$bin/$f" "$root$bin/"
	done
	cp "$bin"/pg_* "$root$bin/"
	if [ -n "${AL_POSTGRES:-}" ]; then
		mv "$root$bin/postgres" "$root$bin/postgres.real"
		install -m 755 "$AL_POSTGRES" "$root$bin/postgres"
	fi
	# Do not link an installed atomic_lock: an installation through a linked directory
	# would write into the system, and bitcode would be that of another build.
	for dir in "$lib" "$lib/bitcode" "$share" "$share/extension"; do
		[ -d "$dir" ] || continue
		mkdir -p "$root$dir"
		for f in "$dir"/*; do
			if [ "$f" = "$lib/bitcode" ] || [ "$f" = "$share/extension" ]; then continue; fi
			case ${f##*/} in
				atomic_lock | atomic_lock.* | atomic_lock--*) ;;
				*) ln -sf "$f" "$root$dir/" ;;
			esac
		done
	done
	for inc in "$("$PG_CONFIG" --includedir-server)" "$("$PG_CONFIG" --pkgincludedir)/internal"; do
		mkdir -p "$root${inc%/*}"
		[ -e "$root$inc" ] || ln -s "$inc" "$root$inc"
	done
}

# al_sources: writes the project as a tar, without the output of make, which may be for
# another PostgreSQL
al_sources() {
	tar -C "$AL_TOP" -cf - --exclude=./.git --exclude=./.quick --exclude=./demo_server --exclude=./test_results \
		--exclude=./bench_results --exclude=./tmp_check --exclude=./tmp_check_iso --exclude=./results --exclude=./log \
		--exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude='*.d' --exclude='./*.zip' --exclude='./*.deb' .
}

al_build() {
	local dir=$1 log=$1/build.log
	shift
	AL_SRC=$dir/src AL_BIN=$dir/pg$("$PG_CONFIG" --bindir) AL_PG_CONFIG=$AL_BIN/pg_config
	if [ -n "$AL_KEPT" ] && [ -e "$dir/built" ]; then
		# Remove all files but objects: the project may have removed some.
		find "$AL_SRC" ! -type d ! -name '*.[do]' -delete
	else
		al_private_pg "$dir/pg"
		rm -rf "$AL_SRC"
	fi
	mkdir -p "$AL_SRC"
	al_sources | tar -C "$AL_SRC" -xf -
	if [ "$(id -u)" = 0 ]; then
		chown "$AL_USER:" "$dir"
		chown -hR "$AL_USER:" "$AL_SRC" "$dir/pg"
	fi
	if ! as_user make -s -C "$AL_SRC" -j2 PG_CONFIG="$AL_PG_CONFIG" with_llvm=no "$@" >"$log" 2>&1; then
		cat "$log" >&2
		die "the build failed"
	fi
	if ! as_user make -s -C "$AL_SRC" PG_CONFIG="$AL_PG_CONFIG" with_llvm=no "$@" install >>"$log" 2>&1; then
		cat "$log" >&2
		die "the installation into $dir/pg failed"
	fi
	as_user touch "$dir/built"
}

# ---------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------

al_initdb() {
	local data=$1
	shift
	as_user "$AL_BIN/initdb" -D "$data" -U postgres -A trust -E UTF8 --locale=C.UTF-8 -N "$@" >"$data.initdb.log" 2>&1 || {
		cat "$data.initdb.log" >&2
		die "initdb failed"
	}
	rm -f "$data.initdb.log"
	echo "include_if_exists = 'atomic_lock_private.conf'" | as_user tee -a "$data/postgresql.conf" >/dev/null
}

al_running() {
	[ -d "$1" ] && as_user "$AL_BIN/pg_ctl" -D "$1" status >/dev/null 2>&1
}

al_start() {
	local data=$1 socket=$2
	[ ${#socket} -le 90 ] || die "the path of the socket is too long: $socket"
	as_user mkdir -p "$socket"
	# "trust" is safe, since only the owner and root can reach the socket.
	as_user tee "$data/atomic_lock_private.conf" >/dev/null <<-END
		listen_addresses = ''
		unix_socket_directories = '"${socket//\'/\'\'}"'
		unix_socket_permissions = 0700
		port = 5432
	END
	# The server may outlive this script, so it must not keep our output open.
	if ! as_user "$AL_BIN/pg_ctl" -D "$data" -w -t 600 -l "$data.log" start >/dev/null 2>&1 </dev/null 9>&-; then
		tail -n 20 "$data.log" >&2
		die "the server did not start; its log is $data.log"
	fi
}

al_stop() {
	al_running "$1" || return 0
	as_user "$AL_BIN/pg_ctl" -D "$1" -m fast -w -t 60 stop >/dev/null 2>&1 ||
		as_user "$AL_BIN/pg_ctl" -D "$1" -m immediate -w -t 300 stop >/dev/null
}
