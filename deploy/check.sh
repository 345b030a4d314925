#!/bin/sh
# Checks the files of deploy/ with linters, schemas and the programs that read them, and prints what was checked. They
# are in an environment of their own, made of deploy/check/requirements.lock: no program of kquota needs them.
#
#   VENV         the checkout's virtual environment (default .venv)
#   DEPLOY_CHECK where the environment is (default $VENV/deploy-check)
#   SCHEMAS      a folder with schemas that no package has (docs/deploy.md says which)
#   RENEW        1 writes the result into docs/deploy.md
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
exec "$python" -m tests.deploy ${SCHEMAS:+--schemas "$SCHEMAS"} ${RENEW:+--renew} "$@"
