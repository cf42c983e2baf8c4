#!/bin/sh
# Builds the gVisor helper and packs it for embedding. What it was made from is noted beside it, so it is made once.
# One line of gVisor is changed on a copy of its module (see mend below).
set -eu
cd "$(dirname "$0")/.."
out=internal/driver/gvisor/embedded/dayfly-gvisor.zst
made=bin/dayfly-gvisor.made
source=bin/gvisor-source
key=$(cat helper/gvisor/go.mod helper/gvisor/go.sum helper/gvisor/*.go scripts/helper.sh scripts/pack/*.go | sha256sum)
key="$key $(go version) $(go env GOARCH)"
mkdir -p bin
[ -s "$out" ] && [ -f "$made" ] && [ "$(cat "$made")" = "$key" ] && exit 0
echo "building gVisor (about two minutes the first time)" >&2
(cd helper/gvisor && go mod download gvisor.dev/gvisor)
version=$(cd helper/gvisor && go list -m -f '{{.Version}}' gvisor.dev/gvisor)
module=$(cd helper/gvisor && go list -m -f '{{.Dir}}' gvisor.dev/gvisor)

# A freeze of the control group (pause) interrupts the thread that runs system calls in a guest's address space while it waits
# for the sentry. The kernel then takes its notification back (ENOENT) and makes a new one after the thaw; the sentry took
# that for the end of the address space, and the machine died.
mend() {
	file=$source/pkg/sentry/platform/systrap/syscall_thread_unsafe.go
	sed -i 's/if errno == unix.EINTR && t.subproc.alive() {/if (errno == unix.EINTR || errno == unix.ENOENT) \&\& t.subproc.alive() {/' "$file"
	[ "$(grep -c 'errno == unix.ENOENT) && t.subproc.alive' "$file")" = 1 ] || {
		echo "helper.sh: the line to mend is not in gVisor $version any more" >&2
		exit 1
	}
}

rm -rf "$source"
cp -r "$module" "$source"
chmod -R u+w "$source"
mend
cp helper/gvisor/go.mod bin/dayfly-gvisor.mod
cp helper/gvisor/go.sum bin/dayfly-gvisor.sum
go mod edit -replace "gvisor.dev/gvisor=$PWD/$source" bin/dayfly-gvisor.mod
(cd helper/gvisor && go build -modfile "$PWD/../../bin/dayfly-gvisor.mod" \
	-ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" -o ../../bin/dayfly-gvisor .)
go run ./scripts/pack bin/dayfly-gvisor "$out.new" "$source/runsc/checkpointgofer/checkpointgofer.bin"
mv "$out.new" "$out"
rm -rf "$source" bin/dayfly-gvisor bin/dayfly-gvisor.mod bin/dayfly-gvisor.sum
printf '%s' "$key" > "$made"
