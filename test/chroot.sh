# shellcheck shell=bash
# test/chroot.sh - a fresh Debian or Ubuntu of another release, in a directory.
#
# To be sourced after test/lib.sh.  mmdebstrap makes the trees from the machine's apt
# mirror.  They remain in CHROOTS (/var/cache/atomic_lock-chroots) for a month, and
# need root.  Each tree has its own process list, /dev/shm and mounts, which the
# kernel removes when the script ends, even by a signal.
#
#   al_chroot_need          becomes root by sudo if necessary (so call it first,
#                           with the script's arguments), and finds or installs
#                           mmdebstrap.
#   al_chroot NAME SUITE    sets AL_CHROOT, the tree NAME of the release SUITE
#                           (trixie, noble ...).  Makes the tree if necessary;
#                           installed packages remain.  No other script can use
#                           the tree until this one ends.
#   al_chroot_new NAME SUITE  the same, always fresh: no gcc, no make.
#   al_chroot_drop          removes AL_CHROOT.
#   al_chroot_add SUITE [COMPONENT..]  adds the packages of another release.
#   al_chroot_source        copies the project to AL_CHROOT_TOP in the tree.
#   al_chroot_run [VAR=x..] CMD..   runs CMD in the tree as root, in
#                           AL_CHROOT_TOP if that exists, without our
#                           environment and input; returns the status of CMD.
#                           Not in a pipeline: a shell that waits for one does
#                           not react to signals.
#
# DEBIAN_MIRROR and UBUNTU_MIRROR choose other mirrors than the machine's.

AL_CHROOTS=${CHROOTS:-/var/cache/atomic_lock-chroots}
AL_CHROOT=
AL_CHROOT_TOP=/usr/local/src/atomic_lock

al_chroot_need() {
	local v keep=()
	if [ "$(id -u)" != 0 ]; then
		sudo true 2>/dev/null ||
			die "chroots are made by root, and sudo does not let us be root; please say: sudo $0"
		for v in VERSIONS CHROOTS SUITE TESTS LIMIT DEBIAN_MIRROR UBUNTU_MIRROR http_proxy https_proxy no_proxy NODE_EXTRA_CA_CERTS; do
			if [ -n "${!v:-}" ]; then keep+=("$v=${!v}"); fi
		done
		exec sudo env ${keep[@]+"${keep[@]}"} "$0" "$@"
	fi
	command -v apt-get >/dev/null ||
		die "this system has no apt-get: chroots are made on Debian and Ubuntu"
	command -v mmdebstrap >/dev/null || al_apt_install mmdebstrap
	mkdir -p "$AL_CHROOTS"
	AL_CHROOTS=$(cd "$AL_CHROOTS" && pwd -P)
}

# al_chroot_mirror Debian|Ubuntu: sets mirror to the machine's mirror of the distribution,
# or to a public one
al_chroot_mirror() {
	local origin label uri
	case $1 in
		Debian) mirror=${DEBIAN_MIRROR:-} ;;
		Ubuntu) mirror=${UBUNTU_MIRROR:-} ;;
	esac
	[ -z "$mirror" ] || return 0
	# shellcheck disable=SC2016 # expanded by apt-get
	while IFS='|' read -r origin label uri; do
		if [ "$origin" = "$1" ] && [ "$label" = "$1" ] && [[ $uri =~ ^https?:// ]]; then
			mirror=${uri%/}
			return 0
		fi
	done < <(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null)
	case $1 in
		Debian) mirror=http://deb.debian.org/debian ;;
		Ubuntu) mirror=http://archive.ubuntu.com/ubuntu ;;
	esac
}

# al_chroot_distribution SUITE: sets distribution
al_chroot_distribution() {
	case $1 in
		jammy | noble | questing | resolute) distribution=Ubuntu ;;
		*) distribution=Debian ;;
	esac
}

# al_chroot_keyring DISTRIBUTION: sets keyring to the file with its keys
al_chroot_keyring() {
	local name=debian-archive-keyring
	[ "$1" = Debian ] || name=ubuntu-archive-keyring
	keyring=/usr/share/keyrings/$name.gpg
	[ ! -e "$keyring" ] || return 0
	if [ "$1" = Debian ]; then
		al_apt_install debian-archive-keyring
		return 0
	fi
	# If this Debian lacks Ubuntu's keys, get them from a newer Debian.
	al_chroot keys trixie
	keyring=$AL_CHROOT$keyring
	[ -e "$keyring" ] ||
		al_chroot_run DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends ubuntu-keyring >/dev/null' ||
		die "the keys of Ubuntu are not to be had"
}

# al_chroot_lock NAME: waits until no other script uses the tree
declare -A al_chroot_locks
al_chroot_lock() {
	local fd
	[ -z "${al_chroot_locks[$1]:-}" ] || return 0
	exec {fd}>"$AL_CHROOTS/$1.lock"
	if ! flock -n "$fd"; then
		say "Waiting for another script that has $AL_CHROOTS/$1"
		flock "$fd"
	fi
	al_chroot_locks[$1]=$fd
}

al_chroot_unlock() {
	local fd=${al_chroot_locks[$1]}
	exec {fd}>&-
	unset "al_chroot_locks[$1]"
}

# al_chroot_there DIR: whether the tree is at most a month old.  A tree gets its name
# only when it is complete.
al_chroot_there() {
	[ -n "$(find "$1" -maxdepth 0 -mtime -30 2>/dev/null)" ]
}

# al_chroot_remove DIR: removes the tree, but nothing that is mounted in it
al_chroot_remove() {
	[ ! -e "$1" ] || rm -rf --one-file-system "$1"
}

# al_chroot_base SUITE: sets base to an unused tree of that suite
al_chroot_base() {
	local suite=$1 distribution mirror keyring include=apt components=main log
	base=$AL_CHROOTS/base-$suite
	al_chroot_distribution "$suite"
	al_chroot_there "$base" || al_chroot_keyring "$distribution"
	base=$AL_CHROOTS/base-$suite
	al_chroot_lock "base-$suite"
	if al_chroot_there "$base"; then
		al_chroot_unlock "base-$suite"
		return 0
	fi
	al_chroot_mirror "$distribution"
	[ "$distribution" = Debian ] || components=main,universe
	[[ $mirror != https:* ]] || include+=,ca-certificates
	say "Making a tree of $suite from $mirror"
	al_chroot_remove "$base.new"
	log=$AL_CHROOTS/base-$suite.log
	# Mirrors may be old copies, and a power failure does not matter here.
	if ! mmdebstrap --quiet --mode=root --variant=minbase --components="$components" \
		--keyring="$keyring" --aptopt='Acquire::Check-Valid-Until "false"' \
		--dpkgopt=force-unsafe-io --include="$include" \
		"$suite" "$base.new" "$mirror" </dev/null >"$log" 2>&1; then
		cat "$log" >&2
		al_chroot_remove "$base.new"
		al_chroot_unlock "base-$suite"
		return 1
	fi
	al_chroot_remove "$base"
	touch "$base.new"
	mv "$base.new" "$base"
	al_chroot_unlock "base-$suite"
}

al_chroot() {
	local name=$1 suite=$2 base
	al_chroot_lock "$name"
	if ! al_chroot_there "$AL_CHROOTS/$name"; then
		al_chroot_base "$suite" || return 1
		al_chroot_remove "$AL_CHROOTS/$name.new"
		cp -a "$base" "$AL_CHROOTS/$name.new"
		al_chroot_remove "$AL_CHROOTS/$name"
		mv "$AL_CHROOTS/$name.new" "$AL_CHROOTS/$name"
	fi
	AL_CHROOT=$AL_CHROOTS/$name
	al_chroot_network
	# An interrupted run may have left packages half installed.
	al_chroot_run dpkg --configure -a >/dev/null 2>&1
}

al_chroot_new() {
	al_chroot_lock "$1"
	al_chroot_remove "$AL_CHROOTS/$1"
	al_chroot "$1" "$2"
}

al_chroot_drop() {
	al_chroot_remove "$AL_CHROOT"
	AL_CHROOT=
}

# al_chroot_network: copies the machine's network settings for mirrors
al_chroot_network() {
	local f
	for f in resolv.conf hosts; do
		rm -f "$AL_CHROOT/etc/$f"
		[ ! -e "/etc/$f" ] || cp -L "/etc/$f" "$AL_CHROOT/etc/$f"
	done
	[ -z "${NODE_EXTRA_CA_CERTS:-}" ] || cp -L "$NODE_EXTRA_CA_CERTS" "$AL_CHROOT/etc/npm-ca.crt"
	apt-config dump | grep -E '^Acquire::(Retries|ForceIPv[46]|https?)(::| )' |
		grep -viE '::proxy-?auto' >"$AL_CHROOT/etc/apt/apt.conf.d/90machine" || true
	echo 'Acquire::Check-Valid-Until "false";' >"$AL_CHROOT/etc/apt/apt.conf.d/91old_mirror"
}

al_chroot_add() {
	local suite=$1 distribution mirror
	shift
	al_chroot_distribution "$suite"
	al_chroot_mirror "$distribution"
	echo "deb $mirror $suite ${*:-main}" >"$AL_CHROOT/etc/apt/sources.list.d/$suite.list"
}

al_chroot_source() {
	al_chroot_remove "$AL_CHROOT$AL_CHROOT_TOP"
	mkdir -p "$AL_CHROOT$AL_CHROOT_TOP"
	al_sources | tar -C "$AL_CHROOT$AL_CHROOT_TOP" --no-same-owner -xf -
}

# The first process of a tree; the others end with it.  It is a shell, since the first
# process must wait for servers whose parent has ended.
# shellcheck disable=SC2016 # expanded there
al_chroot_init='
	set -e
	root=$1 top=$2
	shift 2
	mount -t proc proc "$root/proc"
	mount -t sysfs -o ro sys "$root/sys" 2>/dev/null || true
	mount -t tmpfs -o mode=755,size=1m dev "$root/dev"
	for f in null zero full random urandom tty; do
		: >"$root/dev/$f"
		mount --bind "/dev/$f" "$root/dev/$f"
	done
	mkdir "$root/dev/pts" "$root/dev/shm"
	mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts" || true
	ln -s pts/ptmx "$root/dev/ptmx"
	ln -s /proc/self/fd "$root/dev/fd"
	ln -s fd/0 "$root/dev/stdin"
	ln -s fd/1 "$root/dev/stdout"
	ln -s fd/2 "$root/dev/stderr"
	mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
	status=0
	chroot "$root" "$@" || status=$?
	exit $status
'

# al_chroot_may_mount: whether we may mount; a container may lack this right
al_chroot_may_mount() {
	unshare --mount --pid --ipc --fork --propagation private \
		mount -t tmpfs none "$AL_CHROOTS" >/dev/null 2>&1
}

al_chroot_run() {
	local v vars=() status=0
	for v in http_proxy https_proxy no_proxy; do
		if [ -n "${!v:-}" ]; then vars+=("$v=${!v}"); fi
	done
	if [ -e "$AL_CHROOT/etc/npm-ca.crt" ]; then vars+=(NODE_EXTRA_CA_CERTS=/etc/npm-ca.crt); fi
	# shellcheck disable=SC2016 # expanded there
	set -- /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		HOME=/root LANG=C.UTF-8 ${vars[@]+"${vars[@]}"} \
		/bin/sh -c 'cd "$0" 2>/dev/null; exec env "$@"' "$AL_CHROOT_TOP" "$@"
	# Run it in the background, so that we react to signals.  unshare ends with us, and
	# all processes in the tree end with unshare.
	if al_chroot_may_mount; then
		setpriv --pdeathsig KILL unshare --mount --pid --ipc --fork --kill-child --propagation private -- \
			bash -c "$al_chroot_init" init "$AL_CHROOT" "$AL_CHROOT_TOP" "$@" </dev/null &
		wait $! || status=$?
	else
		mkdir -p "$AL_CHROOT/dev/shm"
		chmod 1777 "$AL_CHROOT/dev/shm"
		chroot "$AL_CHROOT" "$@" </dev/null &
		wait $! || status=$?
		al_chroot_end
	fi
	return $status
}

# al_chroot_end: ends the processes in the tree; needed only if we may not mount.  A
# script calls it from its al_at_exit.
al_chroot_end() {
	local p
	[ -n "$AL_CHROOT" ] || return 0
	for p in /proc/[0-9]*; do
		if [ "$(readlink "$p/root")" = "$AL_CHROOT" ]; then kill -KILL "${p#/proc/}" || true; fi
	done 2>/dev/null
}
