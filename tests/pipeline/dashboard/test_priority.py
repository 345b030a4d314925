"""`kquota dashboard` as a process beside others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytest.importorskip("uvicorn", reason="the extra dashboard is not installed")


def test_it_yields_to_a_job_on_the_same_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline.cli.main", "dashboard", "--port", "0", "--tables", str(tmp_path)]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        expected = max(os.getpriority(os.PRIO_PROCESS, 0), 10)
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == expected, "a lower priority")
    finally:
        child.terminate()
        child.wait()
