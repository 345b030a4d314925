#!/bin/sh
# Checks the files of deploy/ with linters, schemas and the programs that read them. These are
# in an environment of their own, made of deploy/check/requirements.lock: no program of kquota needs them.
#
#   VENV         the checkout's virtual environment (default .venv)
#   DEPLOY_CHECK where the environment is (default $VENV/deploy-check)
set -eu
cd "$(dirname "$0")/.."
python="${VENV:-.venv}/bin/python"
DEPLOY_CHECK="${DEPLOY_CHECK:-${VENV:-.venv}/deploy-check}"
export DEPLOY_CHECK
wanted=$(cksum <deploy/check/requirements.lock)
stamp="$DEPLOY_CHECK/stamp"

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  "$python" -m venv --clear "$DEPLOY_CHECK"
  "$DEPLOY_CHECK/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    -r deploy/check/requirements.lock
  echo "$wanted" >"$stamp"
fi
exec "$python" -m pytest -q -p no:cacheprovider -m "not spark and not broker and not long" tests/deploy/test_image.py \
  tests/deploy/test_files.py "$@"
