#!/bin/sh
# Fetches the wheels that demo and tests serve from their local package index, once.
#   wheels.sh DIR
set -eu
dir=$1
want="pytest==8.4.2 pluggy==1.6.0 iniconfig==2.1.0 packaging==25.0 pygments==2.19.2"
stamp=$dir/.stamp
[ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && exit 0
rm -rf "$dir"
mkdir -p "$dir"
/usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
	--dest "$dir" $want
echo "$want" >"$stamp"
