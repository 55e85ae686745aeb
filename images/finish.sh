#!/bin/sh
# Makes of a Debian root file system, $1, one that sandboxes can share: the
# account named user, a place for everything that is mounted, and nothing that
# differs between two builds of the same packages.
set -eu
root=$1

useradd --root "$root" --create-home --uid 1000 --user-group --shell /bin/bash user
# sudo gives root where the sandbox's root has capabilities, that is in gVisor.
if [ -d "$root/etc/sudoers.d" ]; then
  printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/user"
  chmod 0440 "$root/etc/sudoers.d/user"
fi
# It is there to protect a system's own Python, which in a sandbox is the
# user's.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

# Nothing can be made in a root that is shared, so what is mounted over must be
# there.
for dir in proc dev sys run tmp var/tmp home/user .glovebox mnt opt srv; do
  mkdir -p "$root/$dir"
done
chmod 1777 "$root/tmp" "$root/var/tmp"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
printf 'glovebox\n' >"$root/etc/hostname"
: >"$root/etc/resolv.conf"
chmod 0644 "$root/etc/hosts" "$root/etc/hostname" "$root/etc/resolv.conf"

# The archive that anybody can reach: the mirror this was built from is the
# host's, and its address may hold a password.
rm -rf "$root"/etc/apt/sources.list.d/* "$root"/etc/apt/auth.conf* "$root"/etc/apt/apt.conf.d/99mmdebstrap
suite=$(. "$root/etc/os-release" && echo "$VERSION_CODENAME")
cat >"$root/etc/apt/sources.list" <<END
deb http://deb.debian.org/debian $suite main
deb http://deb.debian.org/debian $suite-updates main
deb http://deb.debian.org/debian-security $suite-security main
END

rm -rf "$root"/var/log/* "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/var/cache/ldconfig/*
rm -f "$root"/etc/passwd- "$root"/etc/group- "$root"/etc/shadow- "$root"/etc/gshadow- "$root"/etc/subuid* "$root"/etc/subgid*
rm -f "$root"/etc/machine-id "$root"/var/lib/dbus/machine-id "$root"/root/.bash_history "$root"/.dockerenv
