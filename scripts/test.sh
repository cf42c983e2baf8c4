#!/bin/sh
# Runs every test and prints a summary with the reason of each skip. Fails if one failed.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false'
export DAYFLY_TEST_BIN="$PWD/bin" # where tests find the binary, the image and the wheels
go build -o bin/summary ./test/summary
log=bin/test.json
status=0
go test -json -count=1 -timeout 20m ./... >"$log" 2>bin/test.stderr || status=$?
bin/summary "$log" || status=1
[ "$status" = 0 ] || { cat bin/test.stderr; exit 1; }
