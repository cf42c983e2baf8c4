#!/bin/sh
# Runs its arguments as root: directly, or through sudo when it is there.
set -eu
if [ "$(id -u)" = 0 ]; then
	exec "$@"
fi
if command -v sudo >/dev/null 2>&1; then
	exec sudo -E "$@"
fi
echo "this needs root: run it as root, or install sudo" >&2
exit 1
