#!/bin/sh
# Builds the gVisor helper and packs it for embedding. What it was made from is noted beside it, so it is made once.
set -eu
cd "$(dirname "$0")/.."
out=internal/driver/gvisor/embedded/dayfly-gvisor.zst
made=bin/dayfly-gvisor.made
key=$(cat helper/gvisor/go.mod helper/gvisor/go.sum helper/gvisor/*.go scripts/helper.sh scripts/pack/*.go | sha256sum)
key="$key $(go version) $(go env GOARCH)"
mkdir -p bin
[ -s "$out" ] && [ -f "$made" ] && [ "$(cat "$made")" = "$key" ] && exit 0
echo "building gVisor (about two minutes the first time)" >&2
version=$(cd helper/gvisor && go list -m -f '{{.Version}}' gvisor.dev/gvisor)
(cd helper/gvisor && go build -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" -o ../../bin/dayfly-gvisor .)
blob=$(cd helper/gvisor && go list -m -f '{{.Dir}}' gvisor.dev/gvisor)/runsc/checkpointgofer/checkpointgofer.bin
go run ./scripts/pack bin/dayfly-gvisor "$out.new" "$blob"
mv "$out.new" "$out"
rm -f bin/dayfly-gvisor
printf '%s' "$key" > "$made"
