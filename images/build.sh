#!/usr/bin/env bash
# Builds a root file system image from its definition: images/build.sh [base] writes bin/base.tar.zst, its digest and the
# list of its packages. A definition is a directory beside this script with a file "packages" (Debian packages, one a line)
# and, each optional: "parent" (the definition to start from), "files" (a tree copied over the root) and "setup" (a program
# run inside). Nothing is done if the definition has not changed since the last build.
#
#   DAYFLY_IMAGE_MIRROR  where to take Debian from; by default mmdebstrap knows
#   DAYFLY_IMAGE_LEVEL   zstd level, 6 by default
set -euo pipefail
export LC_ALL=C
umask 022

readonly suite=bookworm
export SOURCE_DATE_EPOCH=1735689600 # no file of the image is newer; with one state of the mirror, the same bytes each time

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(dirname "$here")/bin
name=${1:-base}

die() { printf 'images/build.sh: %s\n' "$*" >&2; exit 1; }

# lineage prints the definitions that make up image $1, the first parent first.
lineage() {
	[ -f "$here/$1/packages" ] || die "there is no image definition $1 in $here"
	if [ -f "$here/$1/parent" ]; then lineage "$(cat "$here/$1/parent")"; fi
	printf '%s\n' "$1"
}

# definition prints a hash of everything that decides what the image holds.
definition() {
	(
		cd "$here"
		find build.sh "${layers[@]}" -type f -print0 | sort -z | xargs -0 sha256sum
		find "${layers[@]}" -type f -perm -u+x | sort
		printf '%s %s %s\n' "$(dpkg --print-architecture)" "${DAYFLY_IMAGE_MIRROR:-}" "${DAYFLY_IMAGE_LEVEL:-}"
	) | sha256sum | cut -d' ' -f1
}

current() {
	[ -f "$out/$name.tar.zst" ] && [ -f "$out/$name.packages" ] && [ -f "$out/$name.definition" ] &&
		[ "$(cat "$out/$name.definition")" = "$want" ] &&
		(cd "$out" && sha256sum --status -c "$name.tar.zst.sha256")
}

# need makes sure that Debian packages are installed here.
need() {
	local missing=() p
	for p in "$@"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
	done
	[ ${#missing[@]} -eq 0 ] && return
	command -v apt-get >/dev/null || die "install these first: ${missing[*]}"
	echo "images/build.sh: installing ${missing[*]}" >&2
	apt-get update -q >&2 || true
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 ||
		die "could not install ${missing[*]}: install them by hand and run this again"
}

# host_options passes on how this host's apt reaches its mirrors. They do not stay in the image.
host_options() {
	apt-config dump | grep -E '^Acquire::((http|https|ftp)::(Proxy|CaInfo|Timeout|Verify)|Check-Valid-Until|Check-Date|Retries|ForceIPv[46])[: ]' |
		sed -n '/""/!p' || true
}

packages() {
	local layer
	for layer in "${layers[@]}"; do sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$here/$layer/packages"; done | paste -sd,
}

# bootstrap fills $root with Debian and the packages.
bootstrap() {
	local args=(--mode=root --variant=minbase --format=directory --include="$(packages)" --skip=output/dev) option line
	while IFS= read -r option; do [ -n "$option" ] && args+=(--aptopt="$option"); done < <(host_options)
	while IFS= read -r line; do
		case $line in '' | '#'*) ;; *) args+=(--dpkgopt="$line") ;; esac
	done < <(cat "$here"/base/files/etc/dpkg/dpkg.cfg.d/dayfly)
	mmdebstrap --quiet "${args[@]}" "$suite" "$root" ${DAYFLY_IMAGE_MIRROR:+"$DAYFLY_IMAGE_MIRROR"}
	rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
}

# configure puts the definitions' own files in place and runs their setup inside.
configure() {
	local layer
	for layer in "${layers[@]}"; do
		if [ -d "$here/$layer/files" ]; then cp -r --no-preserve=ownership,timestamps "$here/$layer/files/." "$root/"; fi
		if [ -f "$here/$layer/setup" ]; then
			install -m 0755 "$here/$layer/setup" "$root/setup.dayfly"
			chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" /setup.dayfly
			rm "$root/setup.dayfly"
		fi
	done
}

# tidy removes what differs from build to build and what a driver supplies at each start.
tidy() {
	rm -rf "$root"/var/cache/ldconfig/aux-cache "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin \
		"$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/etc/*- "$root"/tmp/* "$root"/run/* "$root"/dev/*
	find "$root/var/log" -type f -delete
	local empty
	for empty in etc/machine-id etc/resolv.conf etc/hostname; do
		rm -f "$root/$empty"
		install -m 0644 /dev/null "$root/$empty"
	done
	rm -f "$root/var/lib/dbus/machine-id"
}

pack() {
	chroot "$root" dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' >"$work/packages"
	tar -C "$root" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime --numeric-owner --format=posix \
		--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime \
		--xattrs --xattrs-include=security.capability -cf - . |
		zstd -q -T0 -"${DAYFLY_IMAGE_LEVEL:-6}" -o "$work/tar.zst"
}

layers=()
while IFS= read -r layer; do layers+=("$layer"); done < <(lineage "$name")
[ ${#layers[@]} -gt 0 ] || exit 1
command -v dpkg >/dev/null || die "this needs Debian or Ubuntu (dpkg is not here)"
want=$(definition)
if current; then
	echo "bin/$name.tar.zst is up to date"
	exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || die "this needs root: run it as root or install sudo"
	exec sudo --preserve-env=DAYFLY_IMAGE_MIRROR,DAYFLY_IMAGE_LEVEL,http_proxy,https_proxy,no_proxy "${BASH_SOURCE[0]}" "$name"
fi

need mmdebstrap debian-archive-keyring zstd tar xz-utils
mkdir -p "$out"
work=$(mktemp -d "${TMPDIR:-/var/tmp}/dayfly-image.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root
started=$SECONDS
bootstrap
configure
tidy
pack

install -m 0644 "$work/packages" "$out/$name.packages"
mv "$work/tar.zst" "$out/$name.tar.zst.new"
chmod 0644 "$out/$name.tar.zst.new"
mv "$out/$name.tar.zst.new" "$out/$name.tar.zst"
(cd "$out" && sha256sum "$name.tar.zst" >"$name.tar.zst.sha256")
printf '%s\n' "$want" >"$out/$name.definition"
if [ -n "${SUDO_UID:-}" ]; then chown "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$out" "$out/$name".*; fi
printf 'bin/%s.tar.zst: %s, %s packages, %s s\n' "$name" "$(du -h "$out/$name.tar.zst" | cut -f1)" \
	"$(wc -l <"$out/$name.packages")" $((SECONDS - started))
