#!/bin/sh
# The test suite in two parts side by side, because two cores are the least there is. One process runs all that needs
# Spark (one session for all). Beside it, two run what needs no JVM, file by file, because some files have a fixture that
# takes long; then one runs what needs a broker alone. What takes minutes (marker `long`) is left to `make test-long`.
# With arguments: one process, which gets them.
set -u
cd "$(dirname "$0")/.."
python="${VENV:-.venv}/bin/python"

if [ $# -gt 0 ]; then
  exec "$python" -m pytest "$@"
fi

without_spark() {
  trap 'kill "$child" 2>/dev/null; exit 1' TERM
  "$python" -m pytest -q -p no:cacheprovider --numprocesses=2 --dist=loadfile --durations=15 \
    -m 'not spark and not broker and not long' &
  child=$!
  wait "$child"
  pure=$?
  "$python" -m pytest -q -p no:cacheprovider --durations=15 -m 'broker and not spark and not long' &
  child=$!
  wait "$child" && [ "$pure" -eq 0 ]
}

log=$(mktemp)
trap 'rm -f "$log"; kill "$beside" 2>/dev/null' EXIT INT TERM
without_spark >"$log" 2>&1 &
beside=$!
"$python" -m pytest -m 'spark and not long' --durations=15
with_spark=$?
wait "$beside"
without=$?
echo "== tests without Spark: first those without a JVM, then those with a broker"
cat "$log"
[ "$with_spark" -eq 0 ] && [ "$without" -eq 0 ]
