#!/bin/sh
# Builds bin/dayfly-faults: the program and the agent in it, both with failpoints (see internal/failpoint). The agent that
# the usual build embeds is not touched.
set -eu
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false'
embedded=internal/driver/linux/embedded/dayfly-agent
agent=$PWD/bin/dayfly-faults-agent
mkdir -p bin
go build -tags failpoints -ldflags '-s -w' -o "$agent" ./cmd/dayfly-agent
printf '{"Replace":{"%s":"%s"}}\n' "$PWD/$embedded" "$agent" >bin/dayfly-faults.overlay
go build -tags failpoints -overlay bin/dayfly-faults.overlay -ldflags '-s -w -X main.version=faults' -o bin/dayfly-faults ./cmd/dayfly
