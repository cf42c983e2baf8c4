#!/usr/bin/env bash
# Fetches what scripts/compat serves to sandboxes, once, through this host's own apt and npm:
#   fetch.sh DIR
# DIR/debs   Debian packages with all that the image lacks of their dependencies, and an index of them
# DIR/npm    the tarballs of a web framework and its dependencies
# DIR/image.tar.zst   the image base-node with a git repository in it, so that it is in the sandbox's lower layer
# What cannot be had is named and left out; the table then says so.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
image=$here/bin/base-node.tar.zst
packages="chromium golang-go postgresql-15 sqlite3"
framework=express@4.21.2
want="$(sha256sum <"$image") $packages $framework"
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$want" ] && exit 0

# debs takes the packages by the host's apt, but as if the image's packages were those that are installed.
debs() {
	rm -rf "$dir/debs" "$dir/apt"
	mkdir -p "$dir/debs" "$dir/apt/lists/partial" "$dir/apt/archives/partial" "$dir/apt/sources"
	zstd -dcq "$image" | tar -x -C "$dir/apt" ./var/lib/dpkg/status
	sources=/etc/apt/sources.list
	for f in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/debian*.list; do [ -f "$f" ] && cp "$f" "$dir/apt/sources/"; done
	[ -f "$sources" ] || sources=/dev/null
	cat >"$dir/apt/apt.conf" <<-END
		Dir::State "$dir/apt";
		Dir::State::status "$dir/apt/var/lib/dpkg/status";
		Dir::Cache "$dir/apt";
		Dir::Etc::sourcelist "$sources";
		Dir::Etc::sourceparts "$dir/apt/sources";
	END
	export APT_CONFIG=$dir/apt/apt.conf
	apt-get -qq update
	# shellcheck disable=SC2086
	apt-get -qq -y --no-install-recommends --download-only install $packages >/dev/null
	unset APT_CONFIG
	local f
	for f in "$dir"/apt/archives/*.deb; do mv "$f" "$dir/debs/$(dpkg-deb -f "$f" Package).deb"; done # no % in a name
	rm -rf "$dir/apt"
	cd "$dir/debs"
	for f in *.deb; do
		dpkg-deb -f "$f"
		printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$f" "$(stat -c %s "$f")" "$(sha256sum <"$f" | cut -d' ' -f1)"
	done >Packages
}

modules() {
	rm -rf "$dir/npm" "$dir/modules"
	mkdir -p "$dir/npm" "$dir/modules"
	cd "$dir/modules"
	npm install --silent --no-audit --no-fund --ignore-scripts "$framework"
	find node_modules -name package.json -printf './%h\n' |
		grep -E 'node_modules/(@[^/]+/)?[^/@]+$' |
		xargs npm pack --silent --ignore-scripts --pack-destination "$dir/npm" >/dev/null
	cd "$dir"
	rm -rf "$dir/modules"
}

lower() {
	local work
	work=$(mktemp -d "$dir/image.XXXXXX")
	git init -q --initial-branch=main "$work/srv/lower"
	for i in $(seq 50); do echo "file $i" >"$work/srv/lower/file$i"; done
	git -C "$work/srv/lower" add .
	git -C "$work/srv/lower" -c user.name=A -c user.email=a@example.invalid commit -q -m files
	zstd -dcq "$image" -o "$work/image.tar"
	tar -rf "$work/image.tar" -C "$work" --owner=0 --group=0 ./srv/lower
	zstd -q -3 -f "$work/image.tar" -o "$dir/image.tar.zst"
	rm -rf "$work"
}

# attempt runs a function to its first failure and tells in $failed whether there was one. (In a condition, set -e would not hold.)
attempt() {
	set +e
	(set -e; "$@")
	failed=$?
	set -e
}

attempt debs
[ "$failed" = 0 ] || { echo "compat: no Debian packages could be fetched" >&2; rm -rf "$dir/debs" "$dir/apt"; }
if command -v npm >/dev/null; then
	attempt modules
	[ "$failed" = 0 ] || { echo "compat: no npm packages could be fetched" >&2; rm -rf "$dir/npm" "$dir/modules"; }
else
	echo "compat: this host has no npm to fetch packages with" >&2
fi
lower
printf '%s\n' "$want" >"$dir/.stamp"
