#!/bin/sh
# Builds the gVisor helper and packs it for embedding. What it was made from is noted beside it, so it is made once.
# gVisor is changed on a copy of its module: helper/gvisor/_mend holds a patch and files to add (docs/adr/0016-gvisor-start.md).
set -eu
cd "$(dirname "$0")/.."
out=internal/driver/gvisor/embedded/dayfly-gvisor.zst
made=bin/dayfly-gvisor.made
source=bin/gvisor-source
key=$(cat helper/gvisor/go.mod helper/gvisor/go.sum helper/gvisor/*.go $(find helper/gvisor/_mend -type f | LC_ALL=C sort) \
	scripts/helper.sh scripts/pack/*.go | sha256sum)
key="$key $(go version) $(go env GOARCH)"
mkdir -p bin
[ -s "$out" ] && [ -f "$made" ] && [ "$(cat "$made")" = "$key" ] && exit 0
echo "building gVisor (about two minutes the first time)" >&2
(cd helper/gvisor && go mod download gvisor.dev/gvisor)
version=$(cd helper/gvisor && go list -m -f '{{.Version}}' gvisor.dev/gvisor)
module=$(cd helper/gvisor && go list -m -f '{{.Dir}}' gvisor.dev/gvisor)

rm -rf "$source"
cp -r "$module" "$source"
chmod -R u+w "$source"
cp -r helper/gvisor/_mend/. "$source"
# Every hunk must fit to the letter. The ceiling keeps git from taking the copy for a part of this repository.
(cd "$source" && GIT_CEILING_DIRECTORIES="${PWD%/*}" git apply gvisor.patch) || {
	echo "helper.sh: helper/gvisor/_mend/gvisor.patch does not fit gVisor $version" >&2
	exit 1
}
cp helper/gvisor/go.mod bin/dayfly-gvisor.mod
cp helper/gvisor/go.sum bin/dayfly-gvisor.sum
go mod edit -replace "gvisor.dev/gvisor=$PWD/$source" bin/dayfly-gvisor.mod
modfile=$PWD/bin/dayfly-gvisor.mod
# The filters that every machine has are built now, once. It takes a program of this architecture, whose filters name process 1.
if [ "$(go env GOARCH)" = "$(go env GOHOSTARCH)" ]; then
	(cd helper/gvisor && go run -modfile "$modfile" -ldflags '-X gvisor.dev/gvisor/pkg/seccomp.pid=1' gvisor.dev/gvisor/dayfly/filters) \
		> bin/dayfly-gvisor.filters
	mv bin/dayfly-gvisor.filters "$source/pkg/seccomp/made_table.go"
fi
(cd helper/gvisor && go build -modfile "$modfile" \
	-ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$version" -o ../../bin/dayfly-gvisor .)
go run ./scripts/pack bin/dayfly-gvisor "$out.new" "$source/runsc/checkpointgofer/checkpointgofer.bin"
mv "$out.new" "$out"
rm -rf "$source" bin/dayfly-gvisor bin/dayfly-gvisor.mod bin/dayfly-gvisor.sum
printf '%s' "$key" > "$made"
