#!/usr/bin/env bash
# A shell pipeline over files: what a web server's log says about its paths,
# answers and times.
#
#   glovebox run --file examples/data/access.log examples/access_log.sh access.log
#
# Expect exit code 0, three small tables and the slowest request. It needs the
# coreutils and awk alone.
set -euo pipefail

log=${1:?the name of a log}
mkdir -p parts
# A file for each path, as if the log were too large to be held at once.
awk '{ name = $4; gsub("[^a-z]", "_", name); print >"parts/" name ".log" }' <(tr -d '"' <"$log")

echo "requests by path"
wc -l parts/*.log | sed '$d' | sort -k1,1nr -k2 | while read -r count file; do
  printf '  %4d  %s\n' "$count" "$(head -n 1 "$file" | cut -d' ' -f4)"
done

echo "requests by status"
cut -d'"' -f3 "$log" | cut -d' ' -f2 | sort | uniq -c | while read -r count status; do
  printf '  %4d  %s\n' "$count" "$status"
done

echo "milliseconds"
awk '{ sub("ms$", "", $NF); print $NF }' "$log" | sort -n | awk '
  { v[NR] = $1 }
  END { printf "  median %d, 95th percentile %d, longest %d\n", v[int((NR + 1) / 2)], v[int(NR * 0.95)], v[NR] }'

printf 'requests in all: %d from %d addresses\n' "$(wc -l <"$log")" "$(cut -d' ' -f1 "$log" | sort -u | wc -l)"
