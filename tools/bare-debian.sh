#!/usr/bin/env bash
# Runs commands of a fresh clone inside a bare Debian 12 (debootstrap minbase: no compiler, git, sudo or locale), timed.
#
#   sudo tools/bare-debian.sh [COMMAND...]      default: scripts/demo scripts/test
#
# First checks that scripts/test as an ordinary user without sudo prints the apt-get line and exits 6. The base system
# is kept as a tarball (RIDGE_BARE_TAR, default bare-debian.tar in the temporary folder), so only the first run fetches
# it. Needs root and debootstrap.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" -ne 0 ]; then
  echo "tools/bare-debian.sh: chroot needs root (run it with sudo)" >&2
  exit 2
fi
if [ $# -eq 0 ]; then set -- scripts/demo scripts/test; fi

tarball=${RIDGE_BARE_TAR:-${TMPDIR:-/tmp}/bare-debian.tar}
bare=$(mktemp -d)
clean() {
  umount "$bare/dev/pts" "$bare/proc" "$bare/sys" 2> /dev/null || true
  rm -rf --one-file-system "$bare"
}
trap clean EXIT

mirror() {
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null |
    grep -oE '^[^#]*' | grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1
}

if [ ! -f "$tarball" ]; then
  url=$(mirror || true)
  debootstrap --variant=minbase bookworm "$bare" "${url:-http://deb.debian.org/debian}"
  tar -C "$bare" -cf "$tarball" .
else
  tar -C "$bare" -xf "$tarball"
fi
cp /etc/resolv.conf "$bare/etc/resolv.conf"
mount -t proc proc "$bare/proc"
mount -t sysfs -o ro sysfs "$bare/sys"
mount -t devpts devpts "$bare/dev/pts"
git clone -q --no-hardlinks . "$bare/ridge"

# inside USER COMMAND: the command in the clone, with nothing of this machine's environment.
inside() {
  chroot --userspec="$1" "$bare" /usr/bin/env -i HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
    /bin/bash -c "cd /ridge && $2"
}

status=0
said=$(inside nobody:nogroup scripts/test 2>&1) || status=$?
echo "$said"
if [ "$status" -ne 6 ] || ! grep -q 'apt-get install .*g++' <<< "$said"; then
  echo "bare Debian: scripts/test without root exited $status, expected 6 and the apt-get line" >&2
  exit 1
fi

for command in "$@"; do
  started=$SECONDS
  inside root:root "$command"
  times+=("bare Debian: $command passed in $((SECONDS - started)) s")
done
printf '%s\n' "${times[@]}"
