#!/bin/sh
# Runs every test and prints a summary with the reason of each skip. Fails if one failed.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false'
export DAYFLY_TEST_BIN="$PWD/bin" # where tests find the binary, the image and the wheels
export DAYFLY_TEST_IMAGE="$PWD/bin/base.tar.zst"
# Servers that tests start give this isolation to who asks for none; what must hold under every driver asks for each.
export DAYFLY_ISOLATION_AUTO="${DAYFLY_TEST_ISOLATION:-linux}"
go build -o bin/summary ./test/summary
# Tests compare the host before and after, so packages run one after the other. The summary's exit code is this script's.
go test -p 1 -json -count=1 -timeout 12m ./... 2>&1 | tee bin/test.json | bin/summary
