# shellcheck shell=bash
# test/look.sh - several commands one after the other, and one table of their
# results.  Sourced by .ci/run and test/nightly.
#
#   look NAME CMD...   runs CMD, even after failures.  The last line "N passed, N failed"
#                      that CMD prints counts.
#   look_end           prints the table, the failures, and "N passed, N failed"; returns 1
#                      if anything failed, or nothing passed.
#
# A command fails if its status is not 0, or if it prints no such line or has run no test.
# The line "not offered" is no failure: the package archive lacks that version of
# PostgreSQL today.  An interrupted script ends its command.

# shellcheck source=test/lib.sh
. test/lib.sh

look_log=$(mktemp) look_failures=$(mktemp) look_table=$(mktemp) look_passed=0 look_failed=0 look_job=

al_at_exit() {
	[ -z "$look_job" ] || al_end_tree "$look_job"
	rm -f "$look_log" "$look_failures" "$look_table"
}

look() {
	local name=$1 status=0 ok='' bad='' note='' began=$SECONDS show
	shift
	# Run it in the background, since a trap waits for commands in the foreground.
	"$@" >"$look_log" 2>&1 </dev/null &
	look_job=$!
	tail -n +1 -s 0.5 -f --pid="$look_job" "$look_log" &
	show=$!
	wait "$look_job" || status=1
	look_job=
	wait "$show"
	grep -E -A 9 'Failed test |(^|\] )(test .* \.\.\. FAILED|not ok |diff |.*: the time ran out)' "$look_log" >>"$look_failures"
	# make may have printed lines after the last one.
	read -r ok bad < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$look_log" | tail -n 1) || ok=0 bad=1
	note=$(grep -oE '^[0-9a-z-]+ +not offered: apt has no .*' "$look_log" | sort -u | tr '\n' ';')
	if [ $((ok + bad)) = 0 ] && [ -z "$note" ]; then note='no test was run' bad=1; fi
	if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
	printf '%-14s %6d passed %5d failed %5d s  %s\n' "$name" "$ok" "$bad" $((SECONDS - began)) "$note" >>"$look_table"
	look_passed=$((look_passed + ok)) look_failed=$((look_failed + bad))
}

look_end() {
	printf '\n'
	cat "$look_table"
	if [ -s "$look_failures" ]; then printf '\nWhat failed:\n%s\n' "$(head -n 60 "$look_failures" | cut -c 1-200)"; fi
	printf '\n%d passed, %d failed\n' "$look_passed" "$look_failed"
	[ "$look_failed" = 0 ] && [ "$look_passed" -gt 0 ]
}
