#!/bin/sh
# Makes the site of docs/ in build/site/html, which git ignores. Every link and anchor is checked. MkDocs and its theme are
# in an environment of their own, made of deploy/site/requirements.lock: no program of kquota needs them.
#
#   VENV  the checkout's virtual environment (default .venv)
#   SITE  where the site's environment is (default $VENV/site)
set -eu
cd "$(dirname "$0")/.."
python="${VENV:-.venv}/bin/python"
site="${SITE:-${VENV:-.venv}/site}"
wanted=$(cksum <deploy/site/requirements.lock)
stamp="$site/stamp"

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  "$python" -m venv --clear "$site"
  "$site/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r deploy/site/requirements.lock
  echo "$wanted" >"$stamp"
fi
VENV="${VENV:-.venv}" NO_MKDOCS_2_WARNING=1 "$site/bin/python" -m mkdocs build --strict --clean --config-file deploy/site/mkdocs.yml
echo "the site is in build/site/html: open index.html"
