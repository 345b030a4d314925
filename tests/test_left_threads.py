"""The rule of tests/left_threads.py, seen at work in a run of pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
LEAVES_A_THREAD = """
import pytest, threading
import tests.left_threads

tests.left_threads.PATIENCE_SECONDS = 0.0

@pytest.mark.parametrize("name", ["kafka-io-app", "app-network-thread", "watchdog"])
{mark}
def test_it(name):
    threading.Thread(target=threading.Event().wait, name=name, daemon=True).start()
"""


@pytest.mark.parametrize(("mark", "outcome"), [("", "3 passed, 2 errors"), ("@pytest.mark.broker", "3 passed")])
def test_a_pure_test_fails_that_leaves_a_thread_of_a_kafka_client(tmp_path: Path, mark: str, outcome: str) -> None:
    file = tmp_path / "test_leaving.py"
    file.write_text(LEAVES_A_THREAD.format(mark=mark), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = broker", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.left_threads", "--color=no", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert f" {outcome} in " in run.stdout
    assert ("the test leaves threads of a Kafka client behind: kafka-io-app" in run.stdout) is not bool(mark)
