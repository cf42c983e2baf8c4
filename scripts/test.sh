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
tests() { go test -p 1 -json -count=1 -timeout 12m "$@" 2>&1; }
# Under gVisor, which is what users get by default, once more: the programs of the seeds, each promise in short, and kill -9.
promises='Default|Internet|Everyone|InEveryState|WardenAlone|ARestartEnds|AfterDelete|AMachineWithout|Bug(14|27|38|49|74|121)|ATerminalIs|ATerminalOutlives|InputSurvives'
gvisor() {
	export DAYFLY_ISOLATION_AUTO=gvisor
	tests ./test/seeds || true
	tests ./test/e2e -run "$promises" || true
	ROUNDS=15 tests ./test/faults -run Campaign
}
{
	tests ./... || true # the summary tells what failed
	[ -n "${DAYFLY_TEST_ISOLATION:-}" ] || gvisor | sed 's/"Package":"\([^"]*\)"/"Package":"\1 (gvisor)"/'
} | tee bin/test.json | bin/summary
