#!/bin/sh
# Writes deploy/requirements.lock anew: names, versions and hashes, no addresses.
# Where packages come from is pip's own configuration. Needs pip-tools in the environment (VENV, default .venv).
# An existing lock is kept where it still fits; `--upgrade` (passed on) takes the newest versions instead.
set -eu
cd "$(dirname "$0")/.."
compile="${VENV:-.venv}/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options"

# Everything pyproject.toml names: dependencies, extras, groups, and the build back-end with what it needs for
# editable installs, because the project itself is installed without build isolation.
named=$(mktemp)
trap 'rm -f "$named"' EXIT
"${VENV:-.venv}/bin/python" >"$named" <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    told = tomllib.load(file)
lists = [told["build-system"]["requires"], ["editables"], told["project"]["dependencies"]]
lists += [*told["project"]["optional-dependencies"].values(), *told["dependency-groups"].values()]
own = told["project"]["name"]  # an extra may be made of others
print(*(line for lines in lists for line in lines if isinstance(line, str) and not line.startswith(own)), sep="\n")
PYTHON

$compile "$@" --output-file deploy/requirements.lock "$named"

if grep -nE '://|^-' deploy/requirements.lock; then
  echo "lock: deploy/requirements.lock must hold no address or option; got the lines above" >&2
  exit 1
fi
