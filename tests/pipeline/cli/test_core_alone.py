"""Commands that need Spark, where only the core of kquota is installed: they say what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.command_line import extra_text
from tests.waiting import PATIENCE_SECONDS

# An import of a module that is None in sys.modules fails as that of one which is not installed.
WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = sys.modules["delta"] = sys.modules["py4j"] = None
from pipeline.cli.main import main
main()
"""


@pytest.mark.parametrize("command", ["run --bootstrap-server 127.0.0.1:1", "demo", "quotas sql SELECT"])
def test_a_command_that_needs_spark_names_the_extra_in_one_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = [sys.executable, "-c", WITHOUT_SPARK, *command.split()]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 1
    assert " is not installed. Fix: " in done.stderr
    assert done.stderr.endswith(f". Fix: {extra_text('job')}\n")
    assert done.stderr.count("\n") == 1
