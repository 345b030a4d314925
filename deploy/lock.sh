#!/bin/sh
# Writes deploy/requirements.lock anew: names, versions and hashes, no addresses.
# Where packages come from is pip's own configuration. Needs pip-tools in the environment (VENV, default .venv).
# An existing lock is kept where it still fits; `--upgrade` (passed on) takes the newest versions instead.
set -eu
cd "$(dirname "$0")/.."
compile="${VENV:-.venv}/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options"

# What the image holds is a part of it, locked next to it, with the same versions and hashes: deploy/image/requirements.lock.
# What judges the files of deploy/ and what makes the site of docs/ have locks of their own.

# Everything pyproject.toml names: dependencies, extras, groups, and the build back-end with what it needs for
# editable installs, because the project itself is installed without build isolation.
named=$(mktemp)
held=$(mktemp)
trap 'rm -f "$named" "$held"' EXIT
"${VENV:-.venv}/bin/python" - "$named" "$held" <<'PYTHON'
import sys
import tomllib
from pathlib import Path

with open("pyproject.toml", "rb") as file:
    told = tomllib.load(file)
held = [told["build-system"]["requires"], told["project"]["dependencies"]]
held += told["project"]["optional-dependencies"].values()
named = [*held, ["editables"], *told["dependency-groups"].values()]
own = told["project"]["name"]  # an extra may be made of others
for path, lists in zip(sys.argv[1:], (named, held), strict=True):
    lines = [line for lines in lists for line in lines if isinstance(line, str) and not line.startswith(own)]
    Path(path).write_text("".join(f"{line}\n" for line in lines))
PYTHON

$compile "$@" --output-file deploy/requirements.lock "$named"
$compile "$@" --constraint deploy/requirements.lock --output-file deploy/image/requirements.lock "$held"
$compile "$@" --output-file deploy/check/requirements.lock deploy/check/requirements.in
$compile "$@" --output-file deploy/site/requirements.lock deploy/site/requirements.in

if grep -nE '://|^-' deploy/requirements.lock deploy/*/requirements.lock; then
  echo "lock: a lock must hold no address or option; got the lines above" >&2
  exit 1
fi
