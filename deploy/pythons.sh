#!/bin/sh
# The tests of quota, purgatory and schemas on other Pythons: each of PYTHONS that this machine can run gets a virtual
# environment with the locked packages under build/. One that is missing is named and skipped.
set -eu
cd "$(dirname "$0")/.."
failed=0
for python in ${PYTHONS:-python3.11 python3.12 python3.13}; do
  if ! "$python" -c '' 2>/dev/null; then
    echo "pythons: $python is not on this machine; skipped"
    continue
  fi
  venv="build/$(basename "$python")"
  [ -x "$venv/bin/pytest" ] || {
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r deploy/requirements.lock
  }
  echo "pythons: $("$venv/bin/python" --version)"
  "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/quota tests/purgatory tests/schemas || failed=1
done
exit "$failed"
