#!/usr/bin/env bash
# Boots a Debian 12 guest with its own kernel, systemd and pure cgroup v2, in software (no KVM), and runs guest.sh in it
# with bin/dayfly and the tests of the disk pool. What the guest says goes to standard output and to bin/vm/log; the exit code
# is 1 if a check failed.
# The guest has no network card. Kernel, packages and disk are kept in bin/vm and made again when their definition changes.
#
#   VM_TIMEOUT  seconds the guest may take (900)
#   VM_SCRIPT   what runs in the guest instead of guest.sh, as root
#   VM_FILES    directory whose content lies beside that script
set -euo pipefail
export LC_ALL=C
umask 022

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$(dirname "$here")")
keep=$top/bin/vm
readonly memory_mb=3072 cpus=2

die() { printf 'test/vm: %s\n' "$*" >&2; exit 1; }

# skip says in the runner's words why nothing could be tested here.
skip() { printf 'vm: skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$*"; exit 0; }

[ "$(uname -m)" = x86_64 ] || skip "this needs an x86_64 host, for Debian's kernel"
grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release || skip "this needs Debian 12, for its kernel"
[ -x "$top/bin/dayfly" ] || die "bin/dayfly is missing: run make build"
[ -x "$top/bin/disk.test" ] || die "bin/disk.test is missing: run make test-vm"
if ! command -v qemu-system-x86_64 >/dev/null; then
	echo "test/vm: installing qemu-system-x86" >&2
	apt-get update -q >&2 || true
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends qemu-system-x86 >&2 || die "could not install qemu-system-x86"
fi
"$here/build.sh"

payload=$(mktemp "$keep/payload.XXXXXX")
stage=$(mktemp -d "$keep/stage.XXXXXX")
trap 'rm -rf "$payload" "$stage"' EXIT
cp "$top/bin/dayfly" "$top/bin/disk.test" "$keep/base.tar" "$stage/"
if [ -n "${VM_FILES:-}" ]; then cp -r "$VM_FILES/." "$stage/"; fi
install -m 0755 "${VM_SCRIPT:-$here/guest.sh}" "$stage/guest.sh"
tar -C "$stage" -cf "$payload" .
truncate -s %1M "$payload" # whole sectors

# no_timer_check: on a loaded host the emulated timer comes too late for the kernel's check of it, which then panics.
started=$SECONDS
timeout --foreground -k 10 "${VM_TIMEOUT:-900}" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory_mb" \
	-kernel "$keep/vmlinuz" -initrd "$keep/initrd" -nodefaults -no-reboot -display none -serial stdio -nic none \
	-append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off no_timer_check systemd.show_status=0 systemd.unified_cgroup_hierarchy=1" \
	-drive file="$keep/disk",if=virtio,format=raw,snapshot=on -drive file="$payload",if=virtio,format=raw,readonly=on \
	</dev/null | sed -u 's/\r$//' | tee "$keep/log" || true
printf 'vm: %s s\n' $((SECONDS - started)) | tee -a "$keep/log"
closing=$(grep -aE '^[0-9]+ passed, [0-9]+ failed$' "$keep/log" | tail -n 1 || true)
[ -n "$closing" ] || { echo 'vm: FAIL guest: it did not come to its end'; echo '0 passed, 1 failed'; exit 1; }
[ "${closing##*, }" = "0 failed" ]
