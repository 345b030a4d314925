"""The programs that judge the files of deploy/, in the environment that `make deploy-check` makes.

They are none of the project's own packages: schemas and linters are large, and only these tests need them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.commands import DEPLOY

ENVIRONMENT: Final = Path(os.environ.get("DEPLOY_CHECK", DEPLOY.parent / ".venv" / "deploy-check"))


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


def mistakes_by(models: str, given: Any) -> str:
    """What the models of `bundle` or `kubeflow` say of an object; "" if nothing is wrong."""
    done = run(checker("python"), Path(__file__).with_name("against_models.py"), models, given=given)
    assert done.stdout or done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The address of a program of kquota that tells its port on one of its first lines."""
    command = [sys.executable, "-m", "pipeline.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"(?:on port |http://127\.0\.0\.1:)(\d+)", line):
                    yield f"http://127.0.0.1:{found[1]}"
                    return
            pytest.fail("the program has ended")
        finally:
            process.kill()
