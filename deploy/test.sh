#!/bin/sh
# The test suite in three parts side by side: most tests with Spark or a broker wait more than they compute. One process
# runs all that needs Spark (one session for all), one what needs a broker alone, and two what needs no JVM, file by
# file in the order of their names (the longest are among the first), because some files have a fixture that takes long.
# What takes minutes (marker `long`) is left to `make test-long`. With arguments: one process, which gets them.
set -u
cd "$(dirname "$0")/.."
python="${VENV:-.venv}/bin/python"

# Where Python may not keep what it has compiled with the sources, it does so here: else each of the many processes
# compiles tests and packages anew, which takes a lane 9 s of CPU.
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
  unset PYTHONDONTWRITEBYTECODE
  PYTHONPYCACHEPREFIX="$(cd "${VENV:-.venv}" && pwd)/pycache"
  export PYTHONPYCACHEPREFIX
fi

if [ $# -gt 0 ]; then
  exec "$python" -m pytest "$@"
fi

# The tests without a JVM have their temporary folders in memory, where that has room (6 GB, 3 of them for the JVMs) and
# lets programs run: each commit of a table is synced to the disk, and that is a third of the time of a test with tables.
room_kb=$({
  df -Pk /dev/shm | awk 'END { print $4 }'
  awk '/^MemAvailable/ { print $2 }' /proc/meminfo
  cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes | awk '/^[0-9]+$/ { printf "%.0f\n", $1 / 1024 }'
} 2>/dev/null | sort -n | head -n 1)
folder=${TMPDIR:-/tmp}
[ "${room_kb:-0}" -gt 6000000 ] && ! grep -q ' /dev/shm .*noexec' /proc/mounts && folder=/dev/shm
logs=$(mktemp -d "$folder/kquota-test.XXXXXX")
pure= broker= # not started yet; below they are process ids
trap 'kill $pure $broker 2>/dev/null; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM
# The two others read only files that name their marker: to import all takes them 10 s of CPU each.
marked() { grep -rlE "mark\.$1" tests --include='test_*.py'; }

TMPDIR="$logs" "$python" -m pytest -q -p no:cacheprovider --numprocesses=2 --dist=loadfile --no-loadscope-reorder \
  --durations=15 -m 'not spark and not broker and not long' >"$logs/pure" 2>&1 &
pure=$!
"$python" -m pytest -q -p no:cacheprovider --durations=15 -m 'broker and not spark and not long' $(marked broker) >"$logs/broker" 2>&1 &
broker=$!
"$python" -m pytest -m 'spark and not long' --durations=15 $(marked spark)
failed=$?
wait "$pure" || failed=1
echo "== tests without a JVM"
cat "$logs/pure"
wait "$broker" || failed=1
echo "== tests with a broker and without Spark"
cat "$logs/broker"
exit "$failed"
