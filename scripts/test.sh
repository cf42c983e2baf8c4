#!/bin/sh
# Runs every test, what starts servers under each isolation, and prints a summary with the reason of each skip. Fails if one
# failed. DAYFLY_TEST_ISOLATION names one isolation to run everything under instead of both.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false'
export DAYFLY_TEST_BIN="$PWD/bin" # where tests find the binary, the image and the wheels
export DAYFLY_TEST_IMAGE="$PWD/bin/base.tar.zst"
isolations="${DAYFLY_TEST_ISOLATION:-linux gvisor}"
first="${isolations%% *}" # what asks for no isolation itself runs under this one
go build -o bin/summary ./test/summary
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkfifo "$dir/one" "$dir/two" "$dir/compared"

# tests ISOLATION MARK ARGUMENTS: packages one after the other; a mark tells their lines from those of the other isolation.
tests() {
	isolation="$1" mark="${2:+ ($2)}"
	shift 2
	{ DAYFLY_ISOLATION_AUTO="$isolation" go test -p 1 -json -count=1 -timeout 15m "$@" 2>&1 || echo "$isolation $*" >>"$dir/failed"; } |
		sed -u 's/"Package":"\([^"]*\)"/"Package":"\1'"$mark"'"/'
}
# each ARGUMENTS: under each isolation. Servers that tests start give it to who asks for none.
each() {
	for i in $isolations; do
		mark="$i"
		[ "$i" != "$first" ] || mark=''
		tests "$i" "$mark" "$@"
	done
}

# Two runs at once, because much of either waits for leases to end: 11 servers at the most, of the 14 that a host has room for.
# What compares the whole host before and after comes first, alone; everything else looks at what bears its own mark.
one() {
	for i in $isolations; do
		DAYFLY_TEST_ALONE=1 tests "$i" "$i, alone" ./test/e2e -run AfterDestroyTheHostIsAsBefore
	done
	: >"$dir/compared"
	# shellcheck disable=SC2046 # packages have no spaces
	tests "$first" '' $(go list ./... | grep -v -e /test/e2e -e /test/faults -e /test/load -e /test/seeds)
	each ./test/load
	tests "$first" '' ./test/e2e
	: >"$dir/one.whole"
}
two() {
	cat "$dir/compared"
	each ./test/seeds
	each ./test/faults -parallel 4
	for i in $isolations; do
		[ "$i" = "$first" ] || tests "$i" "$i" ./test/e2e
	done
	: >"$dir/two.whole"
}
# A pipeline, not &: what sh puts into the background ignores Ctrl-C, and so would the programs that tests send one.
one | tee bin/test-one.json >"$dir/one" | two | tee bin/test-two.json >"$dir/two" | bin/summary "$dir/one" "$dir/two"
[ ! -e "$dir/failed" ] || { # the summary has told why, unless go test itself could not run
	cat "$dir/failed"
	exit 1
}
[ -e "$dir/one.whole" ] && [ -e "$dir/two.whole" ] || {
	echo 'a run of tests did not come to its end' >&2
	exit 1
}
