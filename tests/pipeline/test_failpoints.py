import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import failpoints
from pipeline.errors import PipelineError
from pipeline.failpoints import FAILPOINTS, VARIABLE, Failpoint, FailpointReached

_PROGRAM = """
from pipeline.failpoints import failpoint
for _ in range(3):
    failpoint("batch.pinned")
    failpoint("usage.appended")
    print("passed", flush=True)
"""


def run(failpoint: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, VARIABLE: failpoint, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False
    )


def test_the_process_dies_at_the_nth_time_as_by_kill_9() -> None:
    assert run("").stdout == "passed\n" * 3
    died = run("usage.appended:2")
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "passed\n")
    refused = run("usage.apended")
    assert refused.returncode != 0
    assert "usage.appended" in refused.stderr


def test_raise_raises_at_the_nth_time_and_never_again() -> None:
    failpoint = Failpoint("batch.pinned:2:raise")
    failpoint.hit()
    with pytest.raises(FailpointReached, match=r"batch\.pinned"):
        failpoint.hit()
    failpoint.hit()


@pytest.mark.parametrize("text", ["", "nowhere", "batch.pinned:x", "batch.pinned:1:2", "batch.pinned:raise:1", ":"])
def test_what_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match=VARIABLE):
        Failpoint(text)


def test_every_failpoint_is_somewhere_in_the_pipeline_and_no_other() -> None:
    package = Path(failpoints.__file__).parent
    calls = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.name != "failpoints.py")
    lines = [line for line in calls.splitlines() if "failpoint(" in line]
    named = set(re.findall(r'"([a-z_]+\.[a-z_]+)"', "\n".join(lines)))
    assert named == set(FAILPOINTS)
