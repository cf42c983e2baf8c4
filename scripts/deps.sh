#!/bin/sh
# Installs the Debian packages that building, running and testing Dayfly need; names them and fails where it cannot.
set -eu
want="btrfs-progs busybox-static ca-certificates curl git iproute2 mmdebstrap nftables procps python3 python3-pip python3-requests zstd"
[ "$(. /etc/os-release && echo "$ID")" = debian ] || want="$want debian-archive-keyring"
missing=""
for package in $want; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
echo "installing:$missing"
here=$(dirname "$0")
install() {
	"$here/root.sh" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}
"$here/root.sh" apt-get update -qq
install || { echo "could not install these packages; install them by hand:$missing" >&2; exit 1; }
