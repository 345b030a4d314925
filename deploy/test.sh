#!/bin/sh
# The test suite in three processes at once, because two cores are the least there is: one runs all that needs a JVM
# (Spark session, real broker), two run the rest beside it, so that no core is idle (tests/conftest.py says what goes
# where). What takes minutes (marker `long`) is left to `make test-long`. With arguments: one process, which gets them.
set -eu
cd "$(dirname "$0")/.."
python="${VENV:-.venv}/bin/python"

if [ $# -eq 0 ]; then
  set -- -m 'not long' --numprocesses=3 --dist=loadgroup --no-loadscope-reorder --durations=15
fi
exec "$python" -m pytest "$@"
