#!/usr/bin/env bash
# Fetches a file from the one server that the sandbox may reach, and tries
# another one.
#
#   python3 -m http.server 8765 --bind 127.0.0.1 --directory examples/data &
#   glovebox run --allow 127.0.0.1:8765 examples/fetch.sh http://127.0.0.1:8765/plan.json http://example.com/
#
# Expect exit code 0, "200" with the number of bytes for the first and "403" with
# the missing rule for the second: glovebox's own process, outside, has refused it
# without a connection. kill %1 ends the server. It needs curl.

for url in "$@"; do
  # A loopback address is the sandbox's own unless it goes through the proxy;
  # names find their way without that.
  status=$(curl --silent --show-error --noproxy '' --retry 3 --max-time 20 --output body --write-out '%{http_code}' "$url")
  case $status in
  200) echo "$status $url: $(wc -c <body) bytes" ;;
  *) echo "$status $url: $(head -n 1 body)" ;;
  esac
done
