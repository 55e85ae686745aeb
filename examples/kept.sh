#!/usr/bin/env bash
# Keeps a sandbox for several commands, each a process of its own, as a service
# would that is restarted between them.
#
#   bash examples/kept.sh
#
# Expect exit code 0, a table of orders by region that was made inside from a
# file of the host's, how the program left running in it ended, and no sandbox
# left. It runs on the host and needs glovebox on the PATH.
set -euo pipefail

id=$(glovebox create -q --lifetime 5m)
trap 'glovebox kill --force "$id" >/dev/null' EXIT

glovebox cp examples/data/sales.csv "$id:sales.csv"
glovebox exec "$id" sh -c 'tail -n +2 sales.csv | cut -d, -f3 | sort | uniq -c >regions.txt'
glovebox cp "$id:regions.txt" regions.txt
cat regions.txt

# What outlives the command that started it.
job=$(glovebox exec --detach "$id" sh -c 'while [ ! -e go ]; do sleep 0.1; done; echo "gone on"; exit 4')
glovebox exec "$id" touch go
glovebox wait --command "$job" "$id" || true # prints its exit code and ends with it
glovebox logs --command "$job" "$id"
