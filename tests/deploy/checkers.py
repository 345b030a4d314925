"""The programs that judge the files of deploy/, in the environment that `make deploy-check` makes.

They are none of the project's own packages: schemas and linters are large, and only these tests need them.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.commands import DEPLOY

ENVIRONMENT: Final = Path(os.environ.get("DEPLOY_CHECK", DEPLOY.parent / ".venv" / "deploy-check"))
SCHEMAS: Final = os.environ.get("DEPLOY_SCHEMAS", "")
"""A folder with schemas that no package has: CRDs (*.yaml) and what `databricks bundle schema` prints (bundle.json)."""
_THIS_FOLDER: Final = Path(__file__).parent
_NO_DEFINITION: Final = 3


def checker(name: str) -> str:
    """The path of a program of that environment; the test is skipped without it."""
    path = ENVIRONMENT / "bin" / name
    if not path.exists():
        pytest.skip(f"needs {ENVIRONMENT.name}/bin/{name}: `make deploy-check` installs it")
    return str(path)


def of_the_system(name: str, package: str) -> str:
    """The path of a program of the machine; the test is skipped without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install --no-install-recommends {package}")
    return found


def run(*command: str | Path, given: Any = None, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program with an object as JSON on its standard input."""
    return subprocess.run(
        command, input=json.dumps(given), cwd=folder, capture_output=True, text=True, check=False, errors="replace"
    )


def mistakes_by(script: str, given: Any, *arguments: str | Path) -> str:
    """What one of the scripts beside this file says of an object; "" if nothing is wrong."""
    done = run(checker("python"), _THIS_FOLDER / script, *arguments, given=given)
    assert done.returncode in {0, 1, _NO_DEFINITION}, done.stderr
    assert done.stdout or done.returncode != 1, done.stderr
    if done.returncode == _NO_DEFINITION:
        pytest.skip(f"needs the definition of {given['apiVersion']} {given['kind']} in the folder {arguments[0]}")
    return done.stdout


def given_schemas() -> Path:
    """The folder of schemas that the operator has given; the test is skipped without one."""
    if not SCHEMAS:
        pytest.skip("needs schemas that no package has: make deploy-check SCHEMAS=FOLDER")
    return Path(SCHEMAS).absolute()
