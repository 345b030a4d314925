#!/bin/sh
# The test suite in two processes at once, because two cores are the least there is: one starts the JVMs (Spark session,
# real broker), the other needs none and gives way to it. What takes minutes (marker `long`) is left to `make test-long`.
# With arguments: one process, which gets them.
set -u
cd "$(dirname "$0")/.."
python="${VENV:-.venv}/bin/python"

if [ $# -gt 0 ]; then
  exec "$python" -m pytest "$@"
fi

pure_log=$(mktemp)
trap 'rm -f "$pure_log"; kill "$pure" 2>/dev/null' EXIT INT TERM
nice -n 15 "$python" -m pytest -q -p no:cacheprovider -m 'not spark and not broker and not long' >"$pure_log" 2>&1 &
pure=$!
"$python" -m pytest -m '(spark or broker) and not long' --durations=15
with_jvm=$?
wait "$pure"
without_jvm=$?
echo "== tests without a JVM"
cat "$pure_log"
[ "$with_jvm" -eq 0 ] && [ "$without_jvm" -eq 0 ]
