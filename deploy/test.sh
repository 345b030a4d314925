#!/bin/sh
# The test suite in two parts side by side, because two cores are the least there is: one process runs all that needs a
# JVM (one Spark session, one broker for all), two run the rest, file by file, because some files have a fixture that
# takes long. What takes minutes (marker `long`) is left to `make test-long`.
# With arguments: one process, which gets them.
set -u
cd "$(dirname "$0")/.."
python="${VENV:-.venv}/bin/python"

if [ $# -gt 0 ]; then
  exec "$python" -m pytest "$@"
fi

pure_log=$(mktemp)
trap 'rm -f "$pure_log"; kill "$pure" 2>/dev/null' EXIT INT TERM
"$python" -m pytest -q -p no:cacheprovider --numprocesses=2 --dist=loadfile --durations=15 \
  -m 'not spark and not broker and not long' >"$pure_log" 2>&1 &
pure=$!
"$python" -m pytest -m '(spark or broker) and not long' --durations=15
with_jvm=$?
wait "$pure"
without_jvm=$?
echo "== tests without a JVM"
cat "$pure_log"
[ "$with_jvm" -eq 0 ] && [ "$without_jvm" -eq 0 ]
