#!/bin/sh
# Makes this checkout ready to run: virtual environment, locked packages, Java, locked jars, and the reporter's jar, which
# is compiled. Safe to run again: when nothing has changed it ends in milliseconds.
#
#   VENV   the virtual environment's folder (default .venv)
#   PYTHON the Python to make it with (default: the first of 3.11 or newer on PATH)
#
# Indexes, mirrors, proxies and certificates are pip's and Maven's own configuration; nothing is set here.
set -eu
cd "$(dirname "$0")/.."
venv="${VENV:-.venv}"
log="$venv/bootstrap.log"
stamp="$venv/bootstrap.stamp"
jar_cache="${KQUOTA_JARS_DIR:-${KQUOTA_CACHE:-$HOME/.cache/kquota}/jars}"

fail() { # what and where, how to mend it
  stop_ticking
  printf 'bootstrap: %s. Fix: %s\n' "$1" "$2" >&2
  exit 1
}

now_ms() {
  now=$(date +%s%3N)
  case "$now" in
    *N*) echo "$(date +%s)000" ;; # a date command without fractions of a second
    *) echo "$now" ;;
  esac
}

# A step shows how long it takes: on a terminal one line that moves each second, else a line each four seconds.
ticker=
[ -t 1 ] && over='\r\033[K' every=1 || over='' every=4

begin() {
  step="$1"
  began_ms=$(now_ms)
  [ -t 1 ] && printf '%s ' "$step"
  tick &
  ticker=$!
  trap 'kill $ticker 2>/dev/null || true' EXIT
}

tick() { # until it is killed, or this script has ended
  seconds=0
  while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    [ $((seconds % every)) -ne 0 ] && continue
    printf "$over%s %d s%s" "$step" $seconds "$(how_far)"
    [ -t 1 ] || echo
  done
}

how_far() {
  [ "$step" = packages ] || return 0
  set -- "$venv"/lib/python*/site-packages/*.dist-info
  megabytes=$(du -sm "$tmp" 2>/dev/null | cut -f 1)
  [ "${megabytes:-0}" -gt 1 ] && printf ', %d MB fetched and unpacked' "$megabytes"
  printf ', %d of %d in place' "$(($# < locked ? $# : locked))" "$locked"
}

stop_ticking() {
  [ -n "$ticker" ] || return 0
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  ticker=
  printf "$over"
}

end() { # what to add to the line, may be empty
  took_ms=$(($(now_ms) - began_ms))
  stop_ticking
  printf '%s %d.%d s%s\n' "$step" $((took_ms / 1000)) $((took_ms % 1000 / 100)) "${1:+ ($1)}"
}

find_python() {
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
}

pip_install() { # what it is, then pip's arguments
  what="$1"
  shift
  TMPDIR="$tmp" "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >"$log" 2>&1 && return
  cause=$(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")
  fail "pip could not install $what: $cause (all of it in $log)" \
    "check the network and pip's configuration ('$venv/bin/pip config list'), then run it again"
}

java_found() {
  "$venv/bin/python" - 2>"$log" <<'END'
from pipeline.jvm.java import find_java

java = find_java()
print(f"{java.version}, {'JDK' if java.has_compiler else 'JRE'} in {java.home}, from {java.origin}")
END
}

make_reporter() {
  made_jar=pipeline/meter/kquota-reporter.jar
  if [ -f "$made_jar" ] && [ -z "$(find deploy/reporter deploy/jvm/jars.lock -type f ! -name '*.pyc' -newer "$made_jar")" ]; then
    return 0
  fi
  begin reporter
  made=$("$venv/bin/python" -m deploy.reporter 2>"$log") || {
    stop_ticking
    tail -n 1 "$log" >&2
    exit 6
  }
  end "$made"
}

wanted="$(pwd) $(cat pyproject.toml deploy/*.lock deploy/jvm/jars.lock | cksum)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -d "$jar_cache" ]; then
  make_reporter
  exit 0
fi

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  python=$(find_python)
  [ -n "$python" ] || fail "no Python 3.11 or newer among: ${PYTHON:-python3.11, python3.12, python3.13, python3}" \
    "install Python 3.11 or newer, or set PYTHON to it"
  begin venv
  complaint=$("$python" -m venv "$venv" 2>&1) || {
    fail "$python cannot make a virtual environment in $venv: $(echo "$complaint" | grep . | head -n 1)" \
      "install its venv module (Debian, Ubuntu: apt-get install python3-venv), or check that $venv is writable"
  }
  end "$("$venv/bin/python" --version)"
fi
rm -f "$stamp"

locked=$(grep -c '==' deploy/requirements.lock)
mkdir -p "$venv/tmp"
tmp=$(cd "$venv/tmp" && pwd) # absolute, for pip
begin packages
# The lock is complete. With its resolver pip fails on the day on which a package named with an extra has a new release.
pip_install "the locked packages" --no-deps --require-hashes -r deploy/requirements.lock
pip_install "kquota itself" --no-deps --no-build-isolation --editable .
end "$locked locked"
rm -rf "$tmp"

begin java
java=$(java_found) || {
  fail "$(tail -n 1 "$log")" "set KQUOTA_JAVA_HOME to a Java 17 or newer, or unset it"
}
end "$java"

begin jars
jars=$("$venv/bin/kquota" jars fetch 2>"$log") || {
  stop_ticking
  tail -n 1 "$log" >&2
  exit 6
}
end "$jars"
make_reporter

echo "$wanted" >"$stamp"
