#!/bin/sh
# Runs every fuzz target for the given time.
set -eu
cd "$(dirname "$0")/.."
time=$1
export GOFLAGS='-trimpath -buildvcs=false'
grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do
	dir=$(dirname "$file")
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
		echo "== $dir $target"
		go test "$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
	done
done
