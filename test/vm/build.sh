#!/usr/bin/env bash
# Makes what run.sh boots, in bin/vm: Debian's kernel (vmlinuz, modules, initrd), the guest's root disk and a small base image.
# Nothing is done if the definition (this directory but for run.sh and guest.sh, and the kernel's package) is the same.
set -euo pipefail
export LC_ALL=C
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
keep=$(dirname "$(dirname "$here")")/bin/vm
readonly suite=bookworm disk_size=12G

temporary=()
trap '[ ${#temporary[@]} -eq 0 ] || rm -rf --one-file-system "${temporary[@]}"' EXIT

die() { printf 'test/vm: %s\n' "$*" >&2; exit 1; }

need() {
	local missing=() p
	for p in "$@"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
	done
	[ ${#missing[@]} -eq 0 ] && return
	echo "test/vm: installing ${missing[*]}" >&2
	apt-get update -q >&2 || true
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 || die "could not install: ${missing[*]}"
}

# kernel fetches Debian's kernel and takes it out of its package: $keep/vmlinuz and $keep/modules.
kernel() {
	local work deb
	work=$(mktemp -d "$keep/work.XXXXXX")
	temporary+=("$work")
	chmod 0755 "$work"
	(cd "$work" && apt-get download -q "$1" busybox-static >&2)
	for deb in "$work"/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
	rm -rf "$keep/modules" && mv "$work/root/lib/modules" "$keep/modules"
	mv "$work/root/bin/busybox" "$work/root/boot/vmlinuz-${1#linux-image-}" "$keep/"
	mv "$keep/vmlinuz-${1#linux-image-}" "$keep/vmlinuz"
}

# initrd packs busybox, init and the modules that reach the disk.
initrd() {
	local work release module
	work=$(mktemp -d "$keep/work.XXXXXX")
	temporary+=("$work")
	release=$(ls "$keep/modules")
	mkdir -p "$work/bin" "$work/modules"
	cp "$keep/busybox" "$work/bin/busybox"
	install -m 0755 "$here/init" "$work/init"
	depmod -b "$keep/depmod" "$release"
	for module in virtio_pci virtio_blk; do
		modprobe -d "$keep/depmod" -S "$release" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
	done | awk '!seen[$0]++' | while read -r module; do
		cp "$module" "$work/modules/"
		basename "$module" >>"$work/modules/order"
	done
	(cd "$work" && find . | cpio -o -H newc --quiet) >"$keep/initrd"
}

# disk makes the guest's root disk.
disk() {
	local work root option args=()
	work=$(mktemp -d "${TMPDIR:-/var/tmp}/dayfly-vm.XXXXXX")
	temporary+=("$work")
	root=$work/root
	while IFS= read -r option; do args+=(--aptopt="$option"); done < <(apt-config dump |
		grep -E '^Acquire::((http|https)::(Proxy|CaInfo|Verify)|Check-Valid-Until|Retries)[: ]' | sed -n '/""/!p' || true)
	mmdebstrap --quiet --mode=root --variant=minbase "${args[@]}" --skip=output/dev \
		--include="$(sed -e 's/#.*//' -e '/^ *$/d' "$here/packages" | paste -sd,)" "$suite" "$root" \
		${DAYFLY_IMAGE_MIRROR:+"$DAYFLY_IMAGE_MIRROR"} || die "mmdebstrap failed"
	rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/locale
	mkdir -p "$root/lib/modules" && cp -r "$keep/modules/." "$root/lib/modules/"
	cp "$here/vmtest.service" "$root/etc/systemd/system/"
	mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
	ln -sf ../vmtest.service "$root/etc/systemd/system/multi-user.target.wants/vmtest.service"
	local unit
	for unit in serial-getty@ttyS0.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer fstrim.timer e2scrub_all.timer \
		e2scrub_reap.service systemd-timesyncd.service systemd-resolved.service dpkg-db-backup.timer; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
	echo dayfly-vm >"$root/etc/hostname"
	echo 127.0.0.1 localhost dayfly-vm >"$root/etc/hosts"
	: >"$root/etc/machine-id"
	truncate -s "$disk_size" "$work/disk"
	mkfs.ext4 -q -d "$root" -E root_owner=0:0 "$work/disk"
	mv "$work/disk" "$keep/disk"
}

# image makes a root file system that unpacks fast in emulation: busybox, a user and nothing else.
image() {
	local work name
	work=$(mktemp -d "$keep/work.XXXXXX")
	temporary+=("$work")
	mkdir -p "$work"/{bin,etc,home/user,root,tmp,usr/bin,var/tmp,proc,sys,dev,run}
	chmod 0755 "$work"
	chmod 1777 "$work/tmp" "$work/var/tmp"
	install -m 0755 "$keep/busybox" "$work/bin/busybox"
	"$keep/busybox" --list | while read -r name; do [ "$name" = busybox ] || ln -s busybox "$work/bin/$name"; done
	printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n' >"$work/etc/passwd"
	printf 'root:x:0:\nuser:x:1000:\n' >"$work/etc/group"
	mkdir "$work/etc/dayfly"
	printf '{"user": "user", "workdir": "/home/user", "env": {"PATH": "/usr/bin:/bin"}}\n' >"$work/etc/dayfly/image.json"
	chown -R 1000:1000 "$work/home/user"
	tar -C "$work" -cf "$keep/base.tar" .
}

# kernel_package names the package that Debian's kernel is in now.
kernel_package() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ && !n++ {print $2}'; }

definition() { (cat "$here"/{build.sh,init,packages,vmtest.service} && kernel_package) | sha256sum | cut -d' ' -f1; }

# prepare makes everything unless it was made from the same definition.
prepare() {
	[ "$(cat "$keep/definition" 2>/dev/null)" = "$(definition)" ] && return
	rm -rf "$keep/definition" "$keep"/work.*
	apt-get update -q >&2 || true # the lists may name versions that are gone
	local package
	package=$(kernel_package)
	[ -n "$package" ] || die "apt knows no kernel linux-image-cloud-amd64"
	kernel "$package"
	mkdir -p "$keep/depmod/lib" && ln -sfn ../../modules "$keep/depmod/lib/modules"
	initrd
	image
	disk
	definition >"$keep/definition"
}

need mmdebstrap debian-archive-keyring cpio kmod e2fsprogs
mkdir -p "$keep"
prepare
