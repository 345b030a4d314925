#!/bin/sh
# Asks the side-car before every upload. Start it first: kquota gate --bootstrap-server broker:9092
#
#   examples/sidecar.sh http://127.0.0.1:8787 alice etl
#
# Waits up to 2 s in the gate. Then it prints "go", or the reason and how long to wait. If the side-car does not
# answer, go on: throttling fails open.
set -eu
gate=$1 user=$2 client_id=$3
body=$(mktemp)
trap 'rm -f "$body"' EXIT

status=$(curl --silent --get --max-time 5 --output "$body" --write-out '%{http_code}' "$gate/v1/throttle" \
  --data-urlencode "user=$user" --data-urlencode "client_id=$client_id" --data wait_ms=2000) || status=000

case $status in
  200) echo "go" ;;
  429) echo "throttled: $(cat "$body")" ; exit 75 ;;
  000) echo "go (the side-car does not answer)" ;;
  *) echo "the side-car says $status: $(cat "$body")" >&2 ; exit 1 ;;
esac
