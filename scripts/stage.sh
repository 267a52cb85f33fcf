# Runs a stage of the tests: steps, one after the other, with progress and the time
# left. scripts/test sources it. The time left is estimated from the duration of each
# step's last run that passed, in .cache/stage/times, or else the one in scripts/test.

logs=$cache/stage
times=$logs/times
mkdir -p "$logs"
steps=()     # "NAME SECONDS COMMAND…"
failed=()    # names of steps
durations=() # "NAME SECONDS" of the steps that have ended
stages=()    # the same of the stages, with their limits
passed_n=0 failed_n=0
: >"$logs/reasons"
: >"$logs/unstable"
: >"$logs/left"
count='^ *--- '

# step NAME SECONDS COMMAND…: adds a step. COMMAND is a function or a program; its
# output is written to a separate log.
step() { steps+=("$*"); }

# took NAME DEFAULT: seconds of the step's last run that passed.
took() {
	local t
	t=$(awk -v n="$1" '$1 == n { s = $2 } END { print s }' "$times" 2>/dev/null)
	echo "${t:-$2}"
}

clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# ahead N: seconds of the steps from the Nth (from 0) on.
ahead() {
	local s=0 i name seconds
	for ((i = $1; i < ${#steps[@]}; i++)); do
		read -r name seconds _ <<<"${steps[i]}"
		s=$((s + $(took "$name" "$seconds")))
	done
	echo "$s"
}

# running: the end-to-end tests that run, each with its duration so far, and those that have
# failed. A step that is killed at its limit has printed nothing about either of them.
running() {
	local f
	for f in "$logs"/e2e/running/*; do
		[ -e "$f" ] && printf '  %s %s' "${f##*/}" "$(clock $(($(date +%s) - $(stat -c %Y "$f"))))"
	done
	[ ! -s "$logs/e2e/failed" ] || printf '  failed: %s' "$(awk '{ print $2 }' "$logs/e2e/failed" | xargs)"
}

# watch N NAME EXPECTED LOG: prints, every half minute, how far a step is.
watch() {
	local began=$SECONDS spent last left
	while sleep 30 >/dev/null 2>&1; do
		spent=$((SECONDS - began))
		left=$(ahead $(($1 + 1)))
		[ "$3" -le $spent ] || left=$((left + $3 - spent))
		last=$(grep -E 'schedules  [0-9.]+/s' "$4" | tail -1 | xargs)
		[ -n "$last" ] || last="$(grep -cE "${count}PASS" "$4") tests passed"
		printf '         %s  %s of about %s  %s  about %s left in this stage%s\n' "$2" "$(clock $spent)" "$(clock "$3")" "$last" "$(clock $left)" "$([ "$2" != tests ] || running)"
	done
}

# run_steps TITLE LIMIT: runs the added steps until the step build fails, and adds the numbers
# of passed and failed tests to passed_n and failed_n. A step without tests counts as one
# test, a skipped test as failed, and a step that fails as at least one failed test. LIMIT is
# the time in seconds that the stage should take on two cores if its caches are filled; it
# adds a line to the array stages.
run_steps() {
	local i name seconds command log watcher began spent n p f s start=$SECONDS
	printf '\n== %s: %d steps, about %s\n' "$1" ${#steps[@]} "$(clock "$(ahead 0)")"
	for i in "${!steps[@]}"; do
		read -r name seconds command <<<"${steps[i]}"
		seconds=$(took "$name" "$seconds")
		log=$logs/$name.log
		: >"$log"
		printf '[%2d/%d] %-12s about %s, %s left in this stage\n' $((i + 1)) ${#steps[@]} "$name" "$(clock "$seconds")" "$(clock "$(ahead "$i")")"
		watch "$i" "$name" "$seconds" "$log" 2>/dev/null & # bash reports a subshell that ends at once
		watcher=$!
		began=$SECONDS
		if $command >"$log" 2>&1; then n=0; else n=1; fi
		spent=$((SECONDS - began))
		durations+=("$name $spent")
		kill "$watcher" 2>/dev/null
		wait "$watcher" 2>/dev/null
		p=$(grep -cE "${count}PASS" "$log")
		f=$(grep -cE "${count}FAIL" "$log")
		s=$(grep -cE "${count}SKIP" "$log")
		if [ "$s" -gt 0 ]; then
			echo "skipped tests count as failed: say what to install instead" >>"$log"
			n=1 f=$((f + s))
		fi
		[ $((p + f)) -gt 0 ] || p=$((1 - n))
		[ "$n" = 0 ] || [ "$f" -gt 0 ] || f=1
		passed_n=$((passed_n + p)) failed_n=$((failed_n + f))
		grep '^not run for lack of time: ' "$log" >>"$logs/left"
		if [ "$n" = 0 ]; then
			printf '        ok, %s, %d passed\n' "$(clock $spent)" "$p"
			echo "$name $spent" >>"$times"
		else
			failed+=("$name")
			printf '        FAILED, %s; %s\n' "$(clock $spent)" "$log"
			excerpt "$log"
			reasons "$name" "$log" >>"$logs/reasons"
			[ "$name" != build ] || break # the other steps would only say so again
		fi
	done
	steps=()
	stages+=("$1 $((SECONDS - start)) (with filled caches at most $2)")
}

# reasons NAME LOG: the failed tests of a step, each with the last lines that test files
# printed before it. scripts/test prints them last, since CI keeps the end of its output.
reasons() {
	awk -v step="$1" '
		/^ *--- (PASS|SKIP)/ { n = 0 }
		/_test\.go:[0-9]+: |FAIL: testdata/ { line[n++ % 12] = $0 }
		/^ *--- FAIL|^panic:/ {
			print step ": " $0
			for (i = n > 12 ? n - 12 : 0; i < n; i++) print substr(line[i % 12], 1, 400)
			n = 0
		}' "$2" | tail -60
}

# excerpt LOG: the part of a failed step's log that says why, without the notices of NATS
# servers and services, of which a test prints many more than it has lines of its own.
excerpt() {
	local quiet=' \[(DBG|INF|WRN)\] |"level":"(DEBUG|INFO)"'
	grep -vE "$quiet" "$1" |
		grep -E -B 25 -A 15 "${count}(FAIL|SKIP)|^panic:|WARNING: DATA RACE|\[build failed\]|\[setup failed\]" | head -300
	grep -qE "${count}FAIL|^panic:" "$1" || grep -vE "$quiet" "$1" | tail -40
}
