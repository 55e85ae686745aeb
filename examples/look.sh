#!/usr/bin/env bash
# A look around from inside a sandbox: what a program sees of the machine it
# runs on, and what it can change. Each line is measured when it is printed.
#
#   CGO_ENABLED=0 go run ./cmd/glovebox run examples/look.sh
#
# Expect exit code 3, the script's own choice, and a receipt on standard error.
# Nothing but the kernel is needed. Started with plain bash it shows what the
# sandbox takes away; it writes a file to the working directory then.

line() { printf '%-26s %s\n' "$1" "$2"; }

# try WHAT COMMAND... runs a command and says whether it worked.
try() {
  local what=$1
  shift
  if "$@" >/dev/null 2>&1; then line "$what" "possible"; else line "$what" "refused"; fi
}

shopt -s nullglob dotglob
processes=(/proc/[0-9]*)
homes=(/root/* /home/*/*)
interfaces=()
while IFS=: read -r name rest; do
  [ -z "$rest" ] || interfaces+=("${name// /}")
done < <(cat /proc/net/dev 2>/dev/null)

line "I am" "$(id -un 2>/dev/null || id -u)"
line "processes I see" "${#processes[@]}"
line "network interfaces I see" "${interfaces[*]:-none}"
line "files in homes I see" "${#homes[@]}"
try "read /etc/shadow" cat /etc/shadow
try "write to /usr/bin" bash -c '[ -w /usr/bin ]'
try "mount a file system" unshare --user --map-root-user --mount mount -t tmpfs none /mnt
try "connect to 1.1.1.1:53" timeout 2 bash -c ': </dev/tcp/1.1.1.1/53'
try "write to my own home" bash -c 'seq 100000 >numbers'
line "sum of what I wrote" "$(awk '{ s += $1 } END { printf "%.0f", s }' numbers)"
exit 3
