#!/bin/sh
# Runs every test and prints a summary with the reason of each skip. Fails if one failed.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false'
export DAYFLY_TEST_BIN="$PWD/bin" # where tests find the binary, the image and the wheels
go build -o bin/summary ./test/summary
log=bin/test.json
status=0
: >bin/test.stderr
run() { go test -json -count=1 -timeout 25m "$@" 2>>bin/test.stderr || status=1; }
# Tests compare the host before and after, so packages run one after the other.
run -p 1 ./... >"$log"
bin/summary "$log" || status=1
[ "$status" = 0 ] || { cat bin/test.stderr; exit 1; }
